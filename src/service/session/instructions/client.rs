//! Instructions that a client gives for its session, at the level of the system prompt.

use crate::SessionError;
use crate::core::Core;
use crate::mcp::instructions::split_section;
use crate::prompt;
use epitome_thread::{Change, ClientInstructions};

/// Records a client's instructions when it opens the session, if they differ from the session's. `None` changes
/// nothing.
pub(crate) fn take(core: &mut Core, given: Option<&ClientInstructions>) -> Result<(), SessionError> {
    match given {
        Some(given) if core.thread.client_instructions() != Some(given) => {
            let change = Change::ClientInstructed(given.clone());
            core.commit(change).map(drop).map_err(|error| SessionError::Store(error.to_string()))
        }
        Some(_) | None => Ok(()),
    }
}

/// Puts the client's newest instructions into the frame; the rest of the frame stays byte-identical. Providers must
/// process the conversation uncached once.
pub(crate) fn reframe(core: &mut Core) -> Result<(), SessionError> {
    let Some((system, tools)) = core.thread.frame().filter(|_| core.thread.is_frame_outdated()) else {
        return Ok(());
    };
    let (before, now) = (core.thread.framed_client_instructions(), core.thread.client_instructions());
    // The instructions of MCP servers follow the system text.
    let (own, of_servers) = split_section(system);
    let Some(own) = prompt::reframed(own, before, now) else { return Ok(()) };
    let (system, tools) = (own + of_servers, tools.to_vec());
    core.commit(Change::Framed { system, tools }).map(drop)
}
