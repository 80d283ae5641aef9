//! Decides whether a hook runs at an event.

use globset::GlobBuilder;

use super::claude;
use super::hook::{Hook, HookConditions, HookKind};
use super::hook_context::{CompactTrigger, HookContext, InvokedBy};

/// The name under which the hook registered for the event, if it handles the event and its conditions match.
/// A hook registered under several names of one event still runs once.
pub fn registered<'a>(hook: &'a Hook, hook_context: &HookContext) -> Option<&'a str> {
    let event = hook_context.what.event();
    let name = hook.events.iter().find(|(registered, name)| {
        // Claude Code's name for the stop of a subagent only.
        let of_subagents = name == "SubagentStop";
        *registered == event && (!of_subagents || hook_context.base.invoked_by == InvokedBy::Subagent)
    });
    let (_, name) = name?;
    let fits = match hook.kind {
        HookKind::Claude { .. } => claude::matches(hook, hook_context),
        _ => hook.manifest.matches.matches(hook_context),
    };
    fits.then_some(name)
}

impl HookConditions {
    /// Whether all given conditions hold. A condition that does not apply to the event (a tool's name at
    /// the end of a round) is ignored.
    pub fn matches(&self, hook_context: &HookContext) -> bool {
        let (base, what) = (&hook_context.base, &hook_context.what);
        let used_share = base.usage.used as f64 / base.usage.size.max(1) as f64;
        named(&self.tool_name, what.call().map(|call| call.tool.as_str()))
            && named(&self.recipe, Some(&base.recipe))
            && named(&self.invoked_by, Some(base.invoked_by.id()))
            && named(&self.trigger, what.trigger().map(CompactTrigger::id))
            && self.usage_ratio_gte.is_none_or(|least| used_share >= least)
            && self
                .every_turns
                .zip(what.round())
                .is_none_or(|(every, round)| round.number % every.max(1) == 0)
    }
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
