//! Summaries that a named model wrote of our own conversations, each in a file with its conversation and what was
//! asked: what is generated may change, a recording does not.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use epitome::compaction::flat;
use serde::{Deserialize, Serialize};

use super::session::{Session, follow, opened};

/// Bytes of a conversation that are put into a prompt.
const FLAT_BYTES_MAX: usize = 200_000;

/// A summary that a model wrote of one of our conversations.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    pub model: String,
    /// What it was asked to do with the conversation.
    pub instruction: String,
    pub summary: String,
    pub session: Session,
}

/// What a model is asked: the conversation, and what to do with it.
pub fn prompt(session: &Session, instruction: &str) -> String {
    let mut thread = opened();
    follow(&mut thread, &session.steps);
    let flat = flat(thread.view(), FLAT_BYTES_MAX);
    format!(
        "Below is a conversation between a person and a coding agent.\n\n<conversation>\n{flat}\n</conversation>\n\n\
         {instruction}"
    )
}

/// The recorded summaries of a folder; none where there is no folder. An error names a file that cannot be read.
pub fn read(folder: &Path) -> Result<Vec<Recorded>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    files.iter().map(|file| read_one(file)).collect()
}

fn read_one(file: &Path) -> Result<Recorded> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}
