//! `validate_output`: the reply must be JSON that matches a schema; if it does not, either the model gets
//! the errors and tries again, or the user is notified.

use super::json::{self, OnFail, Schema};
use super::{BuiltIn, Run, final_reply, params};
use crate::event::HookEvent;
use crate::moment::{Moment, What};
use crate::output::{HookOutput, Utterance};
use epitome_thread::{Change, Origin, Role};
use epitome_tools::Workspace;

pub const HANDLER: BuiltIn = BuiltIn {
    name: "validate_output",
    events: &[HookEvent::TurnEnd],
    params: &["schema", "on_fail", "max_retries"],
    check: |params| Params::read(params).map(|_| None),
    // A reply that calls tools is not the answer yet.
    qualifies: |moment| final_reply(moment).is_some(),
    run: Run::OnDisk(perform),
};

/// Maximum retries that a recipe may request: each is a paid reply.
const RETRIES_MAX: u64 = 10;
/// Default number of retries.
const RETRIES: u64 = 1;

/// The beginning of a follow-up, by which earlier ones are recognized.
const FOLLOW_UP: &str = "The reply does not fit the schema that it must fit:";

pub struct Params {
    schema: Schema,
    on_fail: OnFail,
    retries: u64,
}

impl Params {
    pub fn read(params: &super::Params) -> Result<Params, String> {
        let retries = params::whole(params, "max_retries", RETRIES_MAX)?.unwrap_or(RETRIES);
        Ok(Params { schema: Schema::read(params)?, on_fail: json::on_fail(params)?, retries })
    }
}

fn perform(params: &super::Params, moment: &Moment, workspace: &Workspace) -> Result<HookOutput, String> {
    let Params { schema, on_fail, retries } = Params::read(params)?;
    let What::TurnEnd(round) = &moment.what else { return Err("there is no reply to check".to_owned()) };
    let faults = json::faults(&round.response, &schema.validator(workspace)?);
    if faults.is_empty() {
        return Ok(HookOutput::default());
    }
    let tried = retries_so_far(moment);
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
fn retries_so_far(moment: &Moment) -> u64 {
    let mut count = 0;
    for entry in moment.base.view.entries().iter().rev() {
        let Change::Said { message, origin } = &entry.change else { continue };
        match origin {
            Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => break,
            Origin::Hook { .. } => count += u64::from(message.text().starts_with(FOLLOW_UP)),
            Origin::Context { .. } | Origin::Instructions { .. } => {}
        }
    }
    count
}
