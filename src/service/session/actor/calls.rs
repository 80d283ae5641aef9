//! A session's tool calls: permission, execution and outcome.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;
use tracing::field::Empty;
use tracing::{Instrument as _, info_span};

use super::Session;
use crate::core::Core;
use crate::permissions::{Ruling, RulingContext};
use crate::work::JobResult;
use crate::{AskId, SessionEvent, UserDecision};
use crate::{checkpoints, diagnostics, editor_buffers, effects, output_truncation};
use epitome_platform::timing::TimedSpan;
use epitome_recall::RecallLog;
use epitome_thread::{
    CallId, Change, Mode, OutcomeStatus, PlanStep, RecordedDecision, ToolCall, ToolDisplay, ToolOutcome,
};
use epitome_tools::buffers::BufferQuery;
use epitome_tools::permission::ruled::HiddenFiles;
use epitome_tools::{Access, Needs, PartialResult, Tool, ToolContext, ToolError};
use epitome_turn::{EffectResult, Permit};

impl Core {
    /// Whether the call would still touch what the user was asked about. A symbolic link may have been swapped
    /// meanwhile.
    pub(super) fn still_touches(&self, id: &CallId, access: &Access) -> bool {
        let now = self.effective_call(id).and_then(|call| {
            let tool = self.services.toolbox.get(&call.name)?;
            tool.access(&call.input, &self.workspace).ok()
        });
        now.as_ref() == Some(access)
    }

    /// A call as it is run: with the input that a hook gave it, if any.
    fn effective_call(&self, id: &CallId) -> Option<ToolCall> {
        let call = self.thread.call(id)?;
        match self.thread.input_of(id) {
            Some((input, card)) => {
                Some(ToolCall { input: input.clone(), card: card.clone(), ..call.clone() })
            }
            None => Some(call.clone()),
        }
    }
}

impl Session {
    pub(super) fn ask_permission(&mut self, id: CallId) {
        let question = match self.ruling(&id) {
            Ruling::Settled(permit, decided) => {
                self.note_decided(&id, decided);
                return self.answer_turn(EffectResult::Permission(id, permit));
            }
            Ruling::Allowed(access, decided) => {
                self.tools.call(&id).access = Some(Arc::new(access));
                self.note_decided(&id, decided);
                return self.answer_turn(EffectResult::Permission(id, Permit::Allowed));
            }
            Ruling::AskPerson(question) => question,
        };
        self.core.report_sandbox_gap(&question.access);
        self.tools.call(&id).access = Some(Arc::new(question.access.clone()));
        let Some(call) = self.core.effective_call(&id) else { return };
        let Some(tool) = self.core.services.toolbox.get(&call.name).cloned() else { return };
        let context = self.tool_context(&tool, &id);
        let look = self.editor_look(&tool, &question.access);
        // Waits for earlier edits of the same reply, so that the preview sees what they write.
        let entrance = self.tools.enter(&Access::Read(Vec::new()));
        if self.work.is_none() {
            return;
        }
        self.core.permissions.open(id.clone(), question);
        let looked = async move {
            let _turn = entrance.await;
            let context = editor_buffers::looked(look, context).await;
            tool.check(&call.input, context.clone()).await?;
            Ok(tool.preview(&call.input, context).await)
        };
        let looked = effects::guarded(looked, || Ok(Vec::new()));
        self.start_job(looked, move |preview| JobResult::PermissionPreviewed { call: id, preview });
    }

    /// Asks the user about a call, unless it can't run in the current state.
    pub(super) fn permission_previewed(
        &mut self,
        call: CallId,
        preview: Result<Vec<ToolDisplay>, ToolError>,
    ) {
        match preview {
            Ok(preview) => self.show_ask(&call, preview),
            Err(why) => self.cannot_run(call, why.to_string()),
        }
    }

    /// Records who decided about a call, for its outcome.
    pub(super) fn note_decided(&mut self, id: &CallId, decided: Option<RecordedDecision>) {
        if let Some(decided) = decided {
            self.tools.call(id).decided = Some(decided);
        }
    }

    /// Answers a permission request whose call can't run in the current state.
    fn cannot_run(&mut self, id: CallId, why: String) {
        if self.core.permissions.drop_permission(&id) {
            self.answer_turn(EffectResult::Permission(id, Permit::Impossible(why)));
        }
    }

    fn tool_context(&mut self, tool: &Arc<dyn Tool>, id: &CallId) -> ToolContext {
        let files = self.tools.files(&self.core.thread, &self.core.workspace);
        // A hook may remove something from the outcome, so live output is hidden until the hook has seen it.
        let call = self.core.effective_call(id);
        let is_hidden = call.as_ref().is_some_and(|call| self.is_seen_before_shown(call));
        let masker = self.tools.masker(&self.core);
        let progress = self.tools.output_of(id.clone(), masker, is_hidden);
        let log = if tool.needs() == Needs::Log {
            RecallLog::snapshot(&self.core.thread, self.core.recall_bytes())
        } else {
            RecallLog::default()
        };
        let name = call.map(|call| call.name).unwrap_or_default();
        ToolContext {
            call: Some(id.clone()),
            workspace: self.core.workspace.clone(),
            hidden: Arc::new(HiddenFiles::from(&name, &self.core.settings.permissions, &self.core.workspace)),
            progress,
            log: Arc::new(log),
            mode: self.core.thread.mode(),
            decided: self.tools.call(id).access.clone(),
            files,
            sees_images: self.core.model.endpoint().is_none_or(|endpoint| endpoint.abilities.images),
            fetches_private: self.core.settings.fetch_private,
            agents: None,
            sandbox: self.core.sandbox_rules(),
            background: self.tools.background().clone(),
            unsaved: Arc::default(),
            partial: self.tools.call(id).partial.clone(),
        }
    }

    fn show_ask(&mut self, id: &CallId, mut preview: Vec<ToolDisplay>) {
        let Some(call) = self.core.effective_call(id) else { return };
        if let Some(text) =
            self.core.permissions.asked_access(id).and_then(|access| self.core.sandbox_remark(access))
        {
            preview.push(ToolDisplay::Text { text });
        }
        let by_hook = self.tools.decided_by_hook(id);
        if let Some(card) = self.core.permissions.show(&call, preview, by_hook) {
            self.core.announce(&card);
            self.run_permission_hooks(&call);
        }
    }

    pub(super) fn decided(&mut self, ask: AskId, decision: UserDecision) {
        if self.consented(ask, &decision) || self.subagents.decided(ask, &decision) {
            return;
        }
        let asked = self.core.permissions.asked_call(ask);
        let is_same = asked.is_some_and(|(call, access)| self.core.still_touches(&call, &access));
        let Some(answer) = self.core.permissions.answer(ask, &decision, is_same) else { return };
        self.core.announce(&SessionEvent::Withdrawn { ask });
        if answer.permit == Permit::Allowed && self.refuse_by_mode(&answer.call) {
            return;
        }
        if let Some(rule) = answer.rule
            && let Err(error) = self.core.commit(Change::Allowed { rule })
        {
            return self.abandon(&error);
        }
        self.note_decided(&answer.call, Some(answer.decided));
        self.answer_turn(EffectResult::Permission(answer.call, answer.permit));
    }

    pub(super) fn run_tool(&mut self, id: CallId) {
        let Some(call) = self.core.effective_call(&id) else { return };
        let Some(tool) = self.core.services.toolbox.get(&call.name).cloned() else { return };
        self.tools.call(&id).started = Some(Instant::now());
        self.core.announce(&SessionEvent::CallStarted { call: id.clone() });
        // The access that was decided: the same path may lead elsewhere now.
        let access = match &self.tools.call(&id).access {
            Some(access) => Ok(Access::clone(access)),
            None => tool.access(&call.input, &self.core.workspace),
        };
        let reads = matches!(access, Ok(Access::Read(_) | Access::Nothing));
        if let Ok(access) = &access {
            self.core.report_sandbox_gap(access);
        }
        let kept = self.core.call_checkpoint(access.as_ref().ok());
        let sync_first = (!reads).then(|| self.core.log.syncer());
        let agents = tool.agent_request(&call.input).map(|request| self.agents_for(&id, request));
        let context = ToolContext { agents, ..self.tool_context(&tool, &id) };
        // Looks at the editor again after a permission request: the user may have typed while it was open.
        let look = access.as_ref().ok().and_then(|access| self.editor_look(&tool, access));
        let entrance = self.tools.enter(&access.unwrap_or(Access::Nothing));
        let masker = self.tools.masker(&self.core);
        let edits = self.tools.edits().clone();
        let stop = Arc::new(Notify::new());
        self.tools.call(&id).stop = Some(stop.clone());
        let partial = context.partial.clone();
        let Some(work) = &mut self.work else { return };
        let span = info_span!(parent: self.core.trace.scope(), "tool", call = %id, name = call.name, outcome = Empty);
        let mut timed = TimedSpan::new(span.clone());
        let job = async move {
            let run = async {
                let _turn = entrance.await;
                let context = editor_buffers::looked(look, context).await;
                let synced = async {
                    match sync_first {
                        Some(syncer) => syncer.sync().await,
                        None => Ok(()),
                    }
                };
                let run = |synced| effects::run_tool(tool, call, context, synced);
                checkpoints::around(kept, synced, run).await
            };
            let (mut outcome, plan) = tokio::select! {
                biased;
                done = effects::guarded(run, || (internal_error(id.clone()), None)) => done,
                // Dropping the tool's future stops what it runs.
                () = stop.notified() => (stopped(id.clone(), &partial), None),
            };
            edits.edited(diagnostics::edits_of(&outcome));
            // Here and not on the session's task: an outcome may have some megabytes.
            if let Some(masker) = masker {
                output_truncation::mask(&mut outcome, &masker);
            }
            timed.end(outcome.status.id());
            JobResult::Tool(id, Box::new(outcome), plan)
        };
        work.jobs.spawn(job.instrument(span));
    }

    /// The query for the editor's unsaved texts that precedes a call's access to files.
    fn editor_look(&self, tool: &Arc<dyn Tool>, access: &Access) -> Option<BufferQuery> {
        let how = (self.core.settings.editor_writes, &self.core.workspace);
        self.editors.look((tool, access), self.prompting_client(), &self.core.clients, how)
    }

    pub(super) fn tool_done(
        &mut self,
        call: &CallId,
        outcome: Box<ToolOutcome>,
        plan: Option<Vec<PlanStep>>,
    ) {
        self.core.report_checkpoint_errors();
        if let Some(steps) = plan {
            let before = self.core.thread.plan().to_vec();
            if let Err(error) = self.core.commit(Change::Planned { steps: steps.clone() }) {
                return self.abandon(&error);
            }
            self.run_plan_hooks(&before, &steps);
        }
        self.subagents.ended(call);
        // Record an agent's spending, and show a call's output, before the outcome.
        self.take_child_news();
        self.take_progress();
        self.answer_turn(EffectResult::Ran(outcome));
    }

    /// Gives the running calls of a cancelled turn their outcomes, with what they have put out so far. Hooks see them like
    /// any other. A tool that finished just before the cancel has done its work, so its own outcome counts.
    pub(super) fn stop_calls(&mut self) {
        while let Some(job) = self.work.as_mut().and_then(|work| work.jobs.try_join_next()) {
            if let Ok(JobResult::Tool(call, outcome, plan)) = job {
                self.tool_done(&call, outcome, plan);
            }
        }
        self.take_progress();
        let masker = self.tools.masker(&self.core);
        for call in self.core.thread.open_calls().to_vec() {
            let Some(result) = self.tools.call(&call).partial.take() else { continue };
            let mut outcome = effects::outcome(call, result);
            if let Some(masker) = &masker {
                output_truncation::mask(&mut outcome, masker);
            }
            self.answer_turn(EffectResult::Ran(Box::new(outcome)));
        }
    }
}

impl Session {
    /// Decides whatever can be decided about a call without a user, in the current mode.
    fn ruling(&mut self, id: &CallId) -> Ruling {
        let saved =
            self.core.permissions.saved(&self.core.services.paths, self.core.thread.cwd()).unwrap_or_else(
                |problem| {
                    self.core.clients.notify_problems(&[problem]);
                    [].into()
                },
            );
        let call = self.core.effective_call(id);
        let work = self.work.as_ref();
        let mode = self.core.thread.mode();
        // Only this mode depends on it, and finding it out starts a process.
        let is_sandboxed = mode == Mode::Auto && self.core.sandbox_rules().is_complete();
        self.core.permissions.rule(
            call.as_ref(),
            &RulingContext {
                toolbox: &self.core.services.toolbox,
                mode,
                is_sandboxed,
                settings: &self.core.settings,
                workspace: &self.core.workspace,
                saved: &saved,
                allowed_tools: work.and_then(|work| work.run.allowed_tools.as_deref()),
                allowed_commands: work.and_then(|work| work.run.allowed_commands.as_deref()),
                by_hook: self.tools.decided_by_hook(id),
                wraps_up: self.core.lineage.wraps_up(),
                is_alone: self.core.clients.is_empty(),
            },
        )
    }

    /// Refuses a call that was just allowed at its permission prompt, if the mode denies it now: the mode may have changed
    /// while the prompt was open. Returns whether it did.
    pub(super) fn refuse_by_mode(&mut self, id: &CallId) -> bool {
        let (permit, decided) = match self.ruling(id) {
            Ruling::Settled(permit @ (Permit::Denied(_) | Permit::Impossible(_)), decided) => {
                (permit, decided)
            }
            Ruling::Settled(Permit::Allowed, _) | Ruling::Allowed(..) | Ruling::AskPerson(_) => return false,
        };
        self.note_decided(id, decided);
        self.answer_turn(EffectResult::Permission(id.clone(), permit));
        true
    }
}

/// The outcome of a call that the user stopped.
fn stopped(call: CallId, partial: &PartialResult) -> ToolOutcome {
    match partial.take() {
        Some(result) => effects::outcome(call, result),
        None => {
            let text = "The user stopped this call while it ran. Changes already made were kept.";
            ToolOutcome::text(call, OutcomeStatus::Interrupted, text)
        }
    }
}

/// The outcome of a call whose tool panicked.
fn internal_error(call: CallId) -> ToolOutcome {
    let text = "The tool failed with an internal error of Epitome; its log has the details.";
    ToolOutcome::text(call, OutcomeStatus::Failed, text)
}
