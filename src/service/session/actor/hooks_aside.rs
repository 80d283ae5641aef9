//! Hooks of events that nothing waits for: a permission request, a notification, an agent's start, a completed item of
//! the plan. Their results may come at any time; one for a permission request may answer it while it is open.

use tokio::task::AbortHandle;
use tracing::Instrument as _;

use super::Session;
use super::hook_dispatch::internal_error;
use crate::background::BackgroundResult;
use crate::{AskId, SessionEvent, effects};
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

impl Session {
    /// Runs the hooks for a permission request that was shown to the user.
    pub(super) fn run_permission_hooks(&mut self, call: &ToolCall) {
        let ask = self.core.permissions.open_ask();
        let call = self.hook_call(call, call.input.as_object().cloned().unwrap_or_default());
        let message = format!("Permission is needed to use {}.", claude_tools::tool_name(&call.tool));
        let hooks = self.start_hooks_aside(EventData::PermissionRequest(call), ask);
        self.core.permissions.set_hooks(hooks);
        self.start_hooks_aside(EventData::Notification { kind: "permission_prompt", message }, None);
    }

    /// The model's new plan has items that are done and were not.
    pub(super) fn run_plan_hooks(&mut self, before: &[PlanStep], steps: &[PlanStep]) {
        let is_done = |step: &PlanStep| step.status == PlanStatus::Completed;
        let was_done = |step: &PlanStep| before.iter().any(|old| old.content == step.content && is_done(old));
        for (at, step) in steps.iter().enumerate().filter(|(_, step)| is_done(step) && !was_done(step)) {
            let what = EventData::TaskCompleted { number: at + 1, subject: step.content.clone() };
            self.start_hooks_aside(what, None);
        }
    }

    /// Runs the hooks of an event off the session's task; `None` if there are none.
    pub(super) fn start_hooks_aside(&mut self, what: EventData, ask: Option<AskId>) -> Option<AbortHandle> {
        let event = what.event();
        if !self.may_run(event) {
            return None;
        }
        let hook_context = self.hook_context(what);
        let links = self.links(&hook_context);
        if links.is_empty() {
            return None;
        }
        let runner = self.hooks.runner(&self.core);
        let scope = self.core.trace.session().clone();
        let job = async move {
            let perform = run::perform(&runner, Chain::new(hook_context, links));
            effects::guarded(perform, || internal_error(event)).await
        };
        Some(self.core.start(job.instrument(scope), move |resolution| {
            let resolution = Box::new(resolution);
            BackgroundResult::HooksEnded { event, ask, resolution }
        }))
    }

    /// Handles the result of such hooks.
    pub(super) fn hooks_aside_ended(
        &mut self,
        event: HookEvent,
        ask: Option<AskId>,
        mut resolution: Resolution,
    ) {
        let decision = resolution.decision.take();
        let commits = self.record(event, &mut resolution);
        self.commit_all(commits);
        for (hook, context) in resolution.context {
            let output = LateOutput { notice: None, context: Some(context) };
            self.hooks.late().take_in(&self.core, LateNews { hook, output });
        }
        let Some((ask, (decision, hook, why))) = ask.zip(decision) else { return };
        match decision {
            PermissionDecision::Allow => self.decide_by_hook(ask, true, hook, why),
            PermissionDecision::Deny => self.decide_by_hook(ask, false, hook, why),
            PermissionDecision::Ask => {}
        }
    }

    /// Answers a permission request, unless the user already has.
    fn decide_by_hook(&mut self, ask: AskId, allows: bool, hook: String, why: Option<String>) {
        let Some((call, access)) = self.core.permissions.asked_call(ask) else { return };
        let is_same = self.core.still_touches(&call, &access);
        let permissions = &mut self.core.permissions;
        if !permissions.may_be_answered_by_hook(ask) || !permissions.drop_permission(&call) {
            return;
        }
        self.core.announce(&SessionEvent::Withdrawn { ask });
        if allows && self.refuse_by_mode(&call) {
            return;
        }
        let permit = match allows {
            true if is_same => Permit::Allowed,
            true => Permit::Denied("The files changed while a hook decided.".to_owned()),
            false => Permit::Denied(why.unwrap_or_else(|| format!("The hook {hook} refused this call."))),
        };
        let allowed = permit == Permit::Allowed;
        self.note_decided(&call, Some(RecordedDecision { allowed, by: Decider::Hook { hook } }));
        self.answer_turn(EffectResult::Permission(call, permit));
    }
}
