//! Fills a home with conversations, for measurements that must not depend on the size of the store.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

use crate::driver::end;
use crate::measures::Stage;
use crate::progress;

/// Size of the store with `--big`.
pub const BIG_STORE_BYTES: u64 = 500 << 20;

/// Bytes of a prompt: below the size at which a body is stored in a separate file.
const PROMPT_BYTES: usize = 48 << 10;
/// Prompts per session: far below a window of 200,000 tokens, so that nothing is compacted.
const PROMPTS: usize = 4;
/// Sessions per process, so that filling never needs much memory.
const SESSIONS: usize = 200;

/// Sends long prompts over the wire until the home contains [`BIG_STORE_BYTES`]. This is slower than writing
/// journals directly, but it produces exactly what an agent stores, whatever its format.
pub fn fill(stage: &Stage<'_>) -> Result<()> {
    let mut number = 0_usize;
    let mut size = bytes_below(&stage.home)?;
    while size < BIG_STORE_BYTES {
        let mut agent = stage.ready()?;
        for _ in 0..SESSIONS {
            let (session, _) = agent.new_session()?;
            for _ in 0..PROMPTS {
                number += 1;
                // All texts differ; a content-addressed store would keep equal ones once.
                let sentence = format!("Sentence {number} of a long paste. ");
                let text = sentence.repeat(PROMPT_BYTES / sentence.len());
                stage.short_turn(&mut agent, &session, &text)?;
            }
        }
        end(agent)?;
        let before = std::mem::replace(&mut size, bytes_below(&stage.home)?);
        if size < before + 1_000_000 {
            bail!("prompts don't fill the store: {size} bytes after {number} of them");
        }
        progress(&format!("filling the store: {} MB", size >> 20));
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
