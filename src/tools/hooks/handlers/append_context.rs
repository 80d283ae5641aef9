//! `append_context`: appends the reply to the history as context, with an optional label.
//!
//! Unlike the reply itself, the context is not a turn of the conversation: later turns read it as known
//! information.

use super::HandlerError;
use super::{BuiltInHandler, HandlerRun, has_final_text, params};
use crate::event::HookEvent;
use crate::hook_context::{EventData, HookContext};
use crate::output::HookOutput;

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "append_context",
    events: &[HookEvent::TurnEnd],
    params: &["label", "once_per_session"],
    check: |params| {
        once_per_session(params)?;
        params::text(params, "label").map(|_| None)
    },
    qualifies: has_final_text,
    run: HandlerRun::Pure(answer),
};

/// Maximum size of a context in bytes. A longer reply is not a note.
const CONTEXT_BYTES_MAX: usize = 64 * 1024;

/// Whether it has at most one successful run per session.
pub fn once_per_session(params: &super::HandlerParams) -> Result<bool, HandlerError> {
    Ok(params::truth(params, "once_per_session")?.unwrap_or(false))
}

fn answer(params: &super::HandlerParams, hook_context: &HookContext) -> Result<HookOutput, HandlerError> {
    let label = params::text(params, "label")?;
    let EventData::TurnEnd(round) = &hook_context.what else {
        return Err(HandlerError::new("there is no reply to append"));
    };
    let text = round.response.trim();
    if text.is_empty() {
        return Err(HandlerError::new("the reply has no text to append"));
    }
    if text.len() > CONTEXT_BYTES_MAX {
        let length = text.len();
        return Err(HandlerError::new(format!(
            "the reply has {length} bytes, more than the {CONTEXT_BYTES_MAX} of a context"
        )));
    }
    let context = match label {
        Some(label) => format!("{label}:\n{text}"),
        None => text.to_owned(),
    };
    Ok(HookOutput { context: vec![context], ..HookOutput::default() })
}
