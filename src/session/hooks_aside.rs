//! Hooks of events that nothing waits for: a permission request, a notification, an agent's start, a completed item of
//! the plan. What they say comes when it comes; one of a permission request may answer the card while it is open.

use tokio::task::AbortHandle;
use tracing::Instrument as _;

use super::actor::Session;
use super::calls;
use super::hook_dispatch::internal_error;
use super::{AskId, SessionEvent, effects};
use epitome_hooks::aside::LateNews;
use epitome_hooks::chain::Chain;
use epitome_hooks::claude::output::LateOutput;
use epitome_hooks::claude::tools as claude_tools;
use epitome_hooks::event::HookEvent;
use epitome_hooks::hook_context::EventData;
use epitome_hooks::output::{PermissionDecision, Resolution};
use epitome_hooks::run;
use epitome_thread::{Decider, PlanStatus, PlanStep, RecordedDecision, ToolCall};
use epitome_turn::{EffectResult, Permit};

/// Runs the hooks for a permission request that was shown to the user.
pub(super) fn asked(session: &mut Session, call: &ToolCall) {
    let ask = session.core.permissions.open_ask();
    let call = session.hook_call(call, call.input.as_object().cloned().unwrap_or_default());
    let message = format!("Permission is needed to use {}.", claude_tools::tool_name(&call.tool));
    let hooks = start(session, EventData::PermissionRequest(call), ask);
    session.core.permissions.set_hooks(hooks);
    start(session, EventData::Notification { kind: "permission_prompt", message }, None);
}

/// The model's new plan has items that are done and were not.
pub(super) fn planned(session: &mut Session, before: &[PlanStep], steps: &[PlanStep]) {
    let is_done = |step: &PlanStep| step.status == PlanStatus::Completed;
    let was_done = |step: &PlanStep| before.iter().any(|old| old.content == step.content && is_done(old));
    for (at, step) in steps.iter().enumerate().filter(|(_, step)| is_done(step) && !was_done(step)) {
        let what = EventData::TaskCompleted { number: at + 1, subject: step.content.clone() };
        start(session, what, None);
    }
}

/// Runs the hooks of an event off the session's task; `None` if there are none.
pub(super) fn start(session: &mut Session, what: EventData, ask: Option<AskId>) -> Option<AbortHandle> {
    let event = what.event();
    if !session.may_run(event) {
        return None;
    }
    let hook_context = session.hook_context(what);
    let links = session.links(&hook_context);
    if links.is_empty() {
        return None;
    }
    let runner = session.hooks.runner(&session.core);
    let scope = session.core.trace.session().clone();
    let job = async move {
        let perform = run::perform(&runner, Chain::new(hook_context, links));
        effects::guarded(perform, || internal_error(event)).await
    };
    let then = move |session: &mut Session, resolution| resolved(session, event, ask, resolution);
    Some(session.core.start(job.instrument(scope), then))
}

/// Handles the result of such hooks.
fn resolved(session: &mut Session, event: HookEvent, ask: Option<AskId>, mut resolution: Resolution) {
    let decision = resolution.decision.take();
    let commits = session.record(event, &mut resolution);
    session.commit_all(commits);
    for (hook, context) in resolution.context {
        let output = LateOutput { notice: None, context: Some(context) };
        session.hooks.late().take_in(&session.core, LateNews { hook, output });
    }
    let Some((ask, (decision, hook, why))) = ask.zip(decision) else { return };
    match decision {
        PermissionDecision::Allow => decide(session, ask, true, hook, why),
        PermissionDecision::Deny => decide(session, ask, false, hook, why),
        PermissionDecision::Ask => {}
    }
}

/// Answers a permission request, unless the user already has.
fn decide(session: &mut Session, ask: AskId, allows: bool, hook: String, why: Option<String>) {
    let Some((call, access)) = session.core.permissions.asked_call(ask) else { return };
    let is_same = session.core.still_touches(&call, &access);
    let permissions = &mut session.core.permissions;
    if !permissions.may_be_answered_by_hook(ask) || !permissions.drop_permission(&call) {
        return;
    }
    session.core.announce(&SessionEvent::Withdrawn { ask });
    if allows && calls::refuse_by_mode(session, &call) {
        return;
    }
    let permit = match allows {
        true if is_same => Permit::Allowed,
        true => Permit::Denied("What this call would touch changed while it was decided.".to_owned()),
        false => Permit::Denied(why.unwrap_or_else(|| format!("The hook {hook} refused this call."))),
    };
    let allowed = permit == Permit::Allowed;
    session.note_decided(&call, Some(RecordedDecision { allowed, by: Decider::Hook { hook } }));
    session.answer_turn(EffectResult::Permission(call, permit));
}
