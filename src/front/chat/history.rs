//! The prompts of earlier chats, in a file that only the user can read: one JSON text a line, the newest last.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use epitome_platform::os::OpenOptionsExt as _;

use crate::draft::HISTORY_MAX;

/// Bytes of the file that are read, and longer prompts are not kept.
const READ_BYTES_MAX: u64 = 1024 * 1024;
const PROMPT_BYTES_MAX: usize = 16 * 1024;

/// The newest prompts. A file that can't be read has none: the chat works without them.
pub fn load(file: &Path) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(file)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let lines: Vec<String> =
        bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    lines[lines.len().saturating_sub(HISTORY_MAX)..].to_vec()
}

pub fn add(file: &Path, prompt: &str) -> io::Result<()> {
    if prompt.len() > PROMPT_BYTES_MAX {
        return Ok(());
    }
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let line = serde_json::to_string(prompt).map_err(io::Error::other)? + "\n";
    OpenOptions::new().create(true).append(true).mode(0o600).open(file)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_kept_for_later_chats() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let file = scratch.path().join("state/prompts.jsonl");
        assert_eq!(load(&file), Vec::<String>::new());
        for prompt in ["one", "two\nlines", &"x".repeat(PROMPT_BYTES_MAX + 1)] {
            add(&file, prompt).expect("it can be written");
        }
        std::fs::OpenOptions::new()
            .append(true)
            .open(&file)
            .and_then(|mut file| file.write_all(b"cut"))
            .expect("written");
        assert_eq!(load(&file), ["one", "two\nlines"]);
    }
}
