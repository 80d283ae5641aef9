//! Guards that prevent infinite loops of hooks, and the validation of mutations. Pure.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::output::{CallbackRequest, HistoryAction, Resolution, Utterance};
use epitome_thread::{HookRunResult, Role};

/// Names of callbacks that are compactions.
const COMPACTING: [&str; 2] = ["compact", "compact-brief"];

/// Inserted before a history that begins with the agent: providers require a user message first.
pub const BEGINNING: &str = "(The conversation so far.)";

/// The state of a turn when a resolution is to be carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    /// How many times hooks have continued this prompt.
    pub continuations: u32,
    pub continuations_max: u32,
    /// The hooks of Claude Code, which have a separate limit and may repeat themselves.
    pub claude: BTreeSet<String>,
    pub claude_continuations_max: u32,
    /// The text with which hooks last continued the prompt; see [`follow_up_text`].
    pub last_follow_up: Option<String>,
    /// Whether the history was compacted since the last model call.
    pub compacted_since_call: bool,
    /// Whether automatic compaction is paused because two in a row gained nothing.
    pub auto_compact_paused: bool,
    /// 0 normally, 1 in a callback's run.
    pub depth: u32,
    pub running_recipe: Option<String>,
}

/// Removes from a resolution what the guards forbid. Each refusal is added to the trail, at the run of the
/// requesting hook; the code that records the trail informs the user.
pub fn enforce(resolution: &mut Resolution, guards: &Guards) {
    if let Some(why) = forbidden(&resolution.action, guards) {
        let by = std::mem::take(&mut resolution.action_by);
        resolution.action = HistoryAction::None;
        resolution.go_on = false;
        refuse(resolution, &by, why);
    }
    continuation(resolution, guards);
}

/// Whether the agent continues after a resolution at its stop: there are follow-ups, or a hook requested it.
pub fn continues(resolution: &Resolution) -> bool {
    resolution.halt.is_none() && (resolution.go_on || !resolution.follow_ups.is_empty())
}

/// All follow-ups as one text, used to detect repetitions.
pub fn follow_up_text(resolution: &Resolution) -> String {
    let texts: Vec<&str> =
        resolution.follow_ups.iter().map(|(_, follow_up)| follow_up.text.as_str()).collect();
    texts.join("\n\n")
}

/// Why messages can't be a history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    #[error("a history cannot be empty")]
    Empty,
    #[error("message {at} of {count} is blank")]
    Blank { at: usize, count: usize },
}

/// Validates a mutation's messages and returns them ready for use. Whether they fit the window is checked by code that can
/// count tokens.
pub fn checked(messages: &[Utterance]) -> Result<Vec<Utterance>, HistoryError> {
    let first = messages.first().ok_or(HistoryError::Empty)?;
    if let Some(at) = messages.iter().position(|message| message.text.trim().is_empty()) {
        return Err(HistoryError::Blank { at: at + 1, count: messages.len() });
    }
    let mut ready = Vec::with_capacity(messages.len() + 1);
    if first.role == Role::Assistant {
        ready.push(Utterance { role: Role::User, text: BEGINNING.to_owned() });
    }
    ready.extend_from_slice(messages);
    Ok(ready)
}

/// Why an action is forbidden; `None` if it is allowed.
fn forbidden(action: &HistoryAction, guards: &Guards) -> Option<String> {
    let compacts = match action {
        HistoryAction::Callback(callback) => COMPACTING.contains(&callback.name.as_str()),
        HistoryAction::Swap { .. } | HistoryAction::Compact { .. } => true,
        HistoryAction::None | HistoryAction::Mutate { .. } => false,
    };
    match action {
        HistoryAction::Mutate { target: None, .. } if guards.depth > 0 => Some(
            "inside a callback a mutation must name its conversation in `target_conversation_id`".to_owned(),
        ),
        HistoryAction::None | HistoryAction::Mutate { .. } => None,
        _ if guards.depth > 0 => Some("this already runs inside a callback".to_owned()),
        HistoryAction::Callback(CallbackRequest { name, .. })
            if guards.running_recipe.as_ref() == Some(name) =>
        {
            Some(format!("the recipe {name} is running already"))
        }
        _ if compacts && guards.compacted_since_call => {
            Some("the history was already compacted since the last model call".to_owned())
        }
        HistoryAction::Compact { threshold: true, .. } if guards.auto_compact_paused => {
            Some("automatic compaction is paused: the last two gained nothing".to_owned())
        }
        HistoryAction::Callback(_) | HistoryAction::Swap { .. } | HistoryAction::Compact { .. } => None,
    }
}

/// How often the Stop hooks of Claude Code may continue a prompt (CHANGELOG 2.1.143). Their texts are not compared: a
/// loop such as that of its plugin ralph-wiggum sends the same prompt each time.
pub const CLAUDE_CONTINUATIONS: u32 = 8;
/// The environment variable that overrides this limit.
const CLAUDE_CONTINUATIONS_VARIABLE: &str = "CLAUDE_CODE_STOP_HOOK_BLOCK_CAP";
/// The largest limit that this variable may set.
const CLAUDE_CONTINUATIONS_MAX: u32 = 1_000;

/// The limit for Claude Code's hooks in this environment, at least that of other hooks.
pub fn claude_continuations(environment: &[(OsString, OsString)], of_others: u32) -> u32 {
    let set = environment.iter().find(|(name, _)| name == CLAUDE_CONTINUATIONS_VARIABLE);
    let set = set.and_then(|(_, value)| value.to_str()?.trim().parse::<u32>().ok());
    set.map_or(CLAUDE_CONTINUATIONS.max(of_others), |limit| limit.min(CLAUDE_CONTINUATIONS_MAX))
}

/// Removes follow-ups beyond the limit, and those that repeat the previous one.
fn continuation(resolution: &mut Resolution, guards: &Guards) {
    let is_over = |by: &str| {
        let is_claude = guards.claude.contains(by);
        let most = if is_claude { guards.claude_continuations_max } else { guards.continuations_max };
        guards.continuations >= most
    };
    let ends = resolution.go_on && is_over(&resolution.action_by);
    resolution.go_on &= !ends;
    let over = resolution.follow_ups.extract_if(.., |(by, _)| is_over(by)).map(|(by, _)| by);
    let go_on = ends.then(|| resolution.action_by.clone());
    let mut by: Vec<String> = go_on.into_iter().chain(over).collect();
    by.dedup();
    for hook in by {
        let why =
            format!("hooks have continued this prompt {} times, which is the limit", guards.continuations);
        refuse(resolution, &hook, why);
    }
    let Some(last) = &guards.last_follow_up else { return };
    let all_again = follow_up_text(resolution) == *last;
    let is_again = |(by, follow_up): &mut (String, Utterance)| {
        !guards.claude.contains(by) && (all_again || follow_up.text == *last)
    };
    let again: Vec<_> = resolution.follow_ups.extract_if(.., is_again).collect();
    for (by, _) in again {
        refuse(resolution, &by, "it is the same as the previous follow-up, so the agent stops");
    }
}

/// Records at the hook's last run in the trail that its request is refused, and why.
pub fn refuse(resolution: &mut Resolution, by: &str, why: impl Into<String>) {
    if let Some(run) = resolution.trail.iter_mut().rev().find(|run| run.hook == by) {
        run.verdict = HookRunResult::Refused;
        run.remarks.push(why.into());
    }
}
