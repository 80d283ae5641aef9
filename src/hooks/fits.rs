//! Whether a hook runs at a moment.

use globset::GlobBuilder;

use super::claude;
use super::hook::{Hook, Kind, Match};
use super::moment::{Base, CompactTrigger, InvokedBy, Moment, What};

/// The name under which the hook registered for the event, if it handles the event and its conditions match.
/// A hook registered under several names of one event still runs once.
pub fn registered<'a>(hook: &'a Hook, moment: &Moment) -> Option<&'a str> {
    let event = moment.what.event();
    let name = hook.events.iter().find(|(registered, name)| {
        // Claude Code's name for the stop of a subagent only.
        let of_subagents = name == "SubagentStop";
        *registered == event && (!of_subagents || moment.base.invoked_by == InvokedBy::Subagent)
    });
    name.filter(|_| fits(hook, moment)).map(|(_, name)| name.as_str())
}

fn fits(hook: &Hook, moment: &Moment) -> bool {
    match &hook.kind {
        Kind::Script { .. } | Kind::Resident { .. } | Kind::Declared { .. } | Kind::Webhook { .. } => {
            hook.manifest.matches.fits(moment)
        }
        Kind::Claude { .. } => claude::fits(hook, moment),
    }
}

impl Match {
    /// Whether all given conditions hold. A condition on something that the moment lacks (a tool's name at
    /// the end of a round) is ignored.
    pub fn fits(&self, moment: &Moment) -> bool {
        let base = &moment.base;
        let tool = moment.what.call().map(|call| call.tool.as_str());
        let trigger = match &moment.what {
            What::PreCompact { trigger, .. } | What::PostCompact { trigger, .. } => Some(trigger.name()),
            What::SessionStart { .. }
            | What::UserMessageSend { .. }
            | What::BeforeToolCall(_)
            | What::AfterToolCall { .. }
            | What::TurnEnd(_)
            | What::AgentStop { .. }
            | What::SessionEnd { .. } => None,
        };
        let round = match &moment.what {
            What::TurnEnd(round) | What::AgentStop { round, .. } => Some(round.number),
            What::SessionStart { .. }
            | What::UserMessageSend { .. }
            | What::BeforeToolCall(_)
            | What::AfterToolCall { .. }
            | What::PreCompact { .. }
            | What::PostCompact { .. }
            | What::SessionEnd { .. } => None,
        };
        named(&self.tool_name, tool)
            && named(&self.recipe, Some(&base.recipe))
            && named(&self.invoked_by, Some(base.invoked_by.name()))
            && named(&self.trigger, trigger)
            && self.usage_ratio_gte.is_none_or(|least| used_share(base) >= least)
            && self.every_turns.zip(round).is_none_or(|(every, round)| round % every.max(1) == 0)
    }
}

impl InvokedBy {
    /// The name in payloads and conditions.
    pub fn name(self) -> &'static str {
        match self {
            InvokedBy::Main => "main",
            InvokedBy::Subagent => "subagent",
        }
    }
}

impl CompactTrigger {
    /// The name in payloads and conditions.
    pub fn name(self) -> &'static str {
        match self {
            CompactTrigger::Auto => "auto",
            CompactTrigger::Manual => "manual",
        }
    }
}

/// The used fraction of the context window.
fn used_share(base: &Base) -> f64 {
    base.usage.used as f64 / base.usage.size.max(1) as f64
}

/// Whether any of the globs matches the name. An empty name (no recipe runs) matches only an empty glob, so
/// that `*` means any recipe. An invalid glob is compared literally.
fn named(globs: &[String], name: Option<&str>) -> bool {
    let Some(name) = name else { return true };
    globs.is_empty()
        || globs.iter().any(|glob| {
            glob == name
                || !name.is_empty()
                    && GlobBuilder::new(glob).build().is_ok_and(|glob| glob.compile_matcher().is_match(name))
        })
}
