//! Summaries that a named model wrote of our own conversations, each in a file with what it was asked. The
//! conversation itself is made anew from its seed, so a file is good only as long as that gives the same one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use epitome::compaction::flat;
use serde::{Deserialize, Serialize};

use super::generate::{Order, generate};
use super::phrases::Half;
use super::session::{Session, follow, opened};

/// Bytes of a conversation that are put into a prompt.
const FLAT_BYTES_MAX: usize = 200_000;

/// A summary that a model wrote of one of our conversations, with what it was asked.
#[derive(Debug, Serialize, Deserialize)]
pub struct Recorded {
    pub model: String,
    pub seed: u64,
    pub tokens: u64,
    pub each: usize,
    pub prompt: String,
    pub summary: String,
}

impl Recorded {
    pub fn session(&self) -> Session {
        generate(Order { seed: self.seed, tokens: self.tokens, each: self.each, half: Half::Open })
    }
}

/// What a model is asked: the conversation, and what to do with it.
pub fn prompt(session: &Session, instruction: &str) -> String {
    format!("{}{instruction}", conversation(session))
}

/// The prompt up to the instruction.
fn conversation(session: &Session) -> String {
    let mut thread = opened();
    follow(&mut thread, &session.steps);
    let flat = flat(thread.view(), FLAT_BYTES_MAX);
    format!(
        "Below is a conversation between a person and a coding agent.\n\n<conversation>\n{flat}\n</conversation>\n\n"
    )
}

/// The recorded summaries of a folder, each with its conversation; none where there is no folder. An error names a
/// file that cannot be read, or whose summary is of another conversation than its seed gives today.
pub fn read(folder: &Path) -> Result<Vec<(Recorded, Session)>> {
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

fn read_one(file: &Path) -> Result<(Recorded, Session)> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let recorded: Recorded = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    let session = recorded.session();
    ensure!(
        recorded.prompt.starts_with(&conversation(&session)),
        "{}: the summary is of another conversation than the one that seed {} gives now: phrases, noise or how a \
         conversation is shown to a model have changed since. Record it again (--record URL {:?}) or delete the file",
        file.display(),
        recorded.seed,
        recorded.model
    );
    Ok((recorded, session))
}
