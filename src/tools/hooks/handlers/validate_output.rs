//! `validate_output`: the reply must be JSON that matches a schema; if it does not, either the model gets
//! the errors and tries again, or the user is notified.

use super::HandlerError;
use super::json::{self, OnFail, Schema};
use super::{BuiltInHandler, HandlerRun, final_reply, params};
use crate::event::HookEvent;
use crate::hook_context::{EventData, HookContext};
use crate::output::{HookOutput, Utterance};
use epitome_thread::{Change, Origin, Role};
use epitome_tools::Workspace;

pub const HANDLER: BuiltInHandler = BuiltInHandler {
    name: "validate_output",
    events: &[HookEvent::TurnEnd],
    params: &["schema", "on_fail", "max_retries"],
    check: |params| read(params).map(|_| None),
    // A reply that calls tools is not the answer yet.
    qualifies: |hook_context| final_reply(hook_context).is_some(),
    run: HandlerRun::OnDisk(perform),
};

/// Maximum retries that a recipe may request: each is a paid reply.
const RETRIES_MAX: u64 = 10;
/// Default number of retries.
const RETRIES: u64 = 1;

/// The beginning of a follow-up, by which earlier ones are recognized.
const FOLLOW_UP: &str = "The reply does not match the required schema:";

fn read(params: &super::HandlerParams) -> Result<(Schema, OnFail, u64), HandlerError> {
    let retries = params::integer(params, "max_retries", RETRIES_MAX)?.unwrap_or(RETRIES);
    Ok((Schema::read(params)?, json::on_fail(params)?, retries))
}

fn perform(
    params: &super::HandlerParams,
    hook_context: &HookContext,
    workspace: &Workspace,
) -> Result<HookOutput, HandlerError> {
    let (schema, on_fail, retries) = read(params)?;
    let EventData::TurnEnd(round) = &hook_context.what else {
        return Err(HandlerError::new("there is no reply to check"));
    };
    let faults = json::faults(&round.response, &schema.validator(workspace)?);
    if faults.is_empty() {
        return Ok(HookOutput::default());
    }
    let tried = retries_so_far(hook_context);
    if on_fail == OnFail::Continue && tried < retries {
        let text = format!(
            "{FOLLOW_UP}\n- {}\n\nAnswer again with the whole JSON, corrected, and nothing else.",
            faults.join("\n- ")
        );
        let follow_ups = vec![Utterance { role: Role::User, text }];
        return Ok(HookOutput { follow_ups, ..HookOutput::default() });
    }
    let tries = match tried {
        0 => String::new(),
        1 => " after 1 retry".to_owned(),
        tried => format!(" after {tried} retries"),
    };
    let notice = Some(format!("The reply does not fit its schema{tries}: {}", faults.join("; ")));
    Ok(HookOutput { notice, ..HookOutput::default() })
}

/// Number of this handler's follow-ups since the user's last message.
fn retries_so_far(hook_context: &HookContext) -> u64 {
    let mut count = 0;
    for entry in hook_context.base.view.entries().iter().rev() {
        let Change::Said { message, origin } = &entry.change else { continue };
        match origin {
            Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => break,
            Origin::Hook { .. } => count += u64::from(message.text().starts_with(FOLLOW_UP)),
            Origin::Context { .. } | Origin::Instructions { .. } => {}
        }
    }
    count
}
