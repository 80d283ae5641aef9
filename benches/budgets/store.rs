//! Fills a home with conversations, for the measures that must not depend on how many there are.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

use crate::driver::end;
use crate::measures::Stage;
use crate::progress;

/// How full the store is for `--big`.
pub const BIG_STORE_BYTES: u64 = 500 << 20;

/// Bytes of a prompt: below the size from which a body would become a file of its own.
const PROMPT_BYTES: usize = 48 << 10;
/// Prompts of a session: well below a window of 200,000 tokens, so that nothing is compacted.
const PROMPTS: usize = 4;
/// Sessions of a process, so that filling never needs much memory.
const SESSIONS: usize = 200;

/// Prompts long texts over the wire until the home holds [`BIG_STORE_BYTES`]. It is slower than writing
/// journals would be, but what it leaves is exactly what an agent leaves, whatever its format.
pub fn fill(stage: &Stage<'_>) -> Result<()> {
    let mut number = 0_usize;
    let mut held = bytes_below(&stage.home)?;
    while held < BIG_STORE_BYTES {
        let mut agent = stage.ready()?;
        for _ in 0..SESSIONS {
            let (session, _) = agent.new_session()?;
            for _ in 0..PROMPTS {
                number += 1;
                // Each text is another one, or a store by content would keep it once.
                let sentence = format!("Sentence {number} of a long paste. ");
                let text = sentence.repeat(PROMPT_BYTES / sentence.len());
                stage.short_turn(&mut agent, &session, &text)?;
            }
        }
        end(agent)?;
        let before = std::mem::replace(&mut held, bytes_below(&stage.home)?);
        if held < before + 1_000_000 {
            bail!("prompts don't fill the store: {held} bytes after {number} of them");
        }
        progress(&format!("filling the store: {} MB", held >> 20));
    }
    Ok(())
}

fn bytes_below(directory: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += if metadata.is_dir() { bytes_below(&entry.path())? } else { metadata.len() };
    }
    Ok(sum)
}
