//! A session's tool calls: who may run, who is asked, and what came of it.

use std::sync::Arc;

use tracing::field::Empty;
use tracing::{Instrument as _, info_span};

use super::actor::Session;
use super::permissions::{Circumstances, Ruling};
use super::work::Done;
use super::{AskId, Decision, Out};
use super::{arrival, checkpoints, editor_buffers, effects, trace};
use epitome_recall::Log;
use epitome_secrets::Masker;
use epitome_thread::{CallId, Change, Decided, OutcomeStatus, PlanStep, Shown, ToolCall, ToolOutcome};
use epitome_timing::TimedSpan;
use epitome_tools::buffers::Look;
use epitome_tools::permission::ruled::Hidden;
use epitome_tools::{Access, Needs, Tool, ToolContext, task};
use epitome_turn::{Answer as Told, Permit};

impl Session {
    pub(super) fn ask_permission(&mut self, id: CallId) {
        let saved =
            self.permissions.saved(&self.services.paths, self.thread.cwd()).unwrap_or_else(|problem| {
                self.show_problems(&[problem]);
                [].into()
            });
        let call = self.effective_call(&id);
        let work = self.work.as_ref();
        let ruling = self.permissions.rule(
            call.as_ref(),
            &Circumstances {
                toolbox: &self.services.toolbox,
                mode: self.thread.mode(),
                settings: &self.settings,
                workspace: &self.workspace,
                saved: &saved,
                allowed_tools: work.and_then(|work| work.allowed_tools.as_deref()),
                allowed_commands: work.and_then(|work| work.allowed_commands.as_deref()),
                by_hook: work.and_then(|work| work.decisions.get(&id)),
                wraps_up: self.lineage.wraps_up(),
                is_alone: self.clients.is_empty(),
            },
        );
        let question = match ruling {
            Ruling::Settled(permit, decided) => {
                self.note_decided(&id, decided);
                return self.tell(Told::Permission(id, permit));
            }
            Ruling::AskPerson(question) => question,
        };
        let Some(call) = call else { return };
        let Some(tool) = self.services.toolbox.get(&call.name).cloned() else { return };
        let context = self.tool_context(&tool, &id);
        let look = self.editor_look(&tool, &question.access);
        // What an edit before it in the same reply writes is there when it is looked at.
        let entrance = self.tools.enter(&Access::Read(Vec::new()));
        let Some(work) = &mut self.work else { return };
        self.permissions.open(id.clone(), question);
        work.jobs.spawn(async move {
            let looked = async {
                let _turn = entrance.turn().await;
                let context = editor_buffers::looked(look, context).await;
                tool.check(&call.input, context.clone()).await?;
                Ok(tool.preview(&call.input, context).await)
            };
            Done::Preview(id, effects::guarded(looked, || Ok(Vec::new())).await)
        });
    }

    /// Keeps who decided about a call, for its outcome.
    pub(super) fn note_decided(&mut self, id: &CallId, decided: Option<Decided>) {
        if let (Some(work), Some(decided)) = (&mut self.work, decided) {
            work.decided.insert(id.clone(), decided);
        }
    }

    /// Whether the call would still touch what the person was asked about: a link on the way may have
    /// been exchanged while they thought.
    fn still_touches(&self, id: &CallId, access: &Access) -> bool {
        let now = self.effective_call(id).and_then(|call| {
            let tool = self.services.toolbox.get(&call.name)?;
            tool.access(&call.input, &self.workspace).ok()
        });
        now.as_ref() == Some(access)
    }

    /// A call that was to be asked about cannot run as things stand.
    pub(super) fn cannot_run(&mut self, id: CallId, why: String) {
        if self.permissions.drop_card(&id) {
            self.tell(Told::Permission(id, Permit::Impossible(why)));
        }
    }

    /// What knows the keys of whoever sent the prompt; `None` where they want no masks. It is made once for an
    /// environment.
    pub(super) fn masker(&mut self) -> Option<Arc<Masker>> {
        if !self.settings.mask_secrets {
            return None;
        }
        Some(self.tools.masker(&self.workspace.environment))
    }

    /// What the tool has at hand for this call.
    fn tool_context(&mut self, tool: &Arc<dyn Tool>, id: &CallId) -> ToolContext {
        let files = self.tools.files(&self.thread, &self.workspace);
        // What a hook will see first may hold what it takes out.
        let call = self.effective_call(id);
        let is_hidden = call.as_ref().is_some_and(|call| self.is_seen_before_shown(call));
        let masker = self.masker();
        let progress = self.tools.output_of(id.clone(), masker, is_hidden);
        let log = if tool.needs() == Needs::Log {
            Log::of(&self.thread, self.recall_bytes())
        } else {
            Log::default()
        };
        let name = call.map(|call| call.name).unwrap_or_default();
        ToolContext {
            workspace: self.workspace.clone(),
            hidden: Arc::new(Hidden::from(&name, &self.settings.permissions, &self.workspace)),
            progress,
            log: Arc::new(log),
            mode: self.thread.mode(),
            files,
            sees_images: self.model.endpoint().is_none_or(|endpoint| endpoint.abilities.images),
            fetches_private: self.settings.fetch_private,
            agents: None,
            sandbox: self.sandbox_rules(),
            background: self.tools.background().clone(),
            unsaved: Arc::default(),
        }
    }

    pub(super) fn show_ask(&mut self, id: &CallId, mut preview: Vec<Shown>) {
        let Some(call) = self.effective_call(id) else { return };
        if let Some(text) = self.permissions.asked_access(id).and_then(|access| self.sandbox_remark(access)) {
            preview.push(Shown::Text { text });
        }
        let by_hook = self.work.as_ref().and_then(|work| work.decisions.get(id));
        if let Some(card) = self.permissions.show(&call, preview, by_hook) {
            self.announce(&card);
        }
    }

    pub(super) fn decided(&mut self, ask: AskId, decision: Decision) {
        if self.consented(ask, &decision) || self.subagents.decided(ask, &decision) {
            return;
        }
        let asked = self.permissions.asked_call(ask);
        let is_same = asked.is_some_and(|(call, access)| self.still_touches(&call, &access));
        let Some(answer) = self.permissions.answer(ask, &decision, is_same) else { return };
        self.announce(&Out::Withdrawn { ask });
        if let Some(rule) = answer.rule
            && let Err(error) = self.commit(Change::Allowed { rule })
        {
            return self.abandon(&error);
        }
        self.note_decided(&answer.call, Some(answer.decided));
        self.tell(Told::Permission(answer.call, answer.permit));
    }

    pub(super) fn run_tool(&mut self, id: CallId) {
        let Some(call) = self.effective_call(&id) else { return };
        let Some(tool) = self.services.toolbox.get(&call.name).cloned() else { return };
        self.mark_started(&id);
        self.announce(&Out::CallStarted { call: id.clone() });
        let access = tool.access(&call.input, &self.workspace);
        let reads = matches!(access, Ok(Access::Read(_) | Access::Nothing));
        self.tell_sandbox_gap(access.as_ref());
        let kept = self.kept(&access);
        let sync_first = (!reads).then(|| self.log.syncer());
        let agents =
            (tool.needs() == Needs::Agents).then(|| self.agents_for(&id, task::read(&call.input).ok()));
        let context = ToolContext { agents, ..self.tool_context(&tool, &id) };
        // Once more behind a card: the person may have typed while it was open.
        let look = access.as_ref().ok().and_then(|access| self.editor_look(&tool, access));
        let entrance = self.tools.enter(&access.unwrap_or(Access::Nothing));
        let masker = self.masker();
        let Some(work) = &mut self.work else { return };
        let span =
            info_span!(parent: work.trace.scope(), "tool", call = %id, name = call.name, outcome = Empty);
        let mut timed = TimedSpan::new(span.clone());
        let job = async move {
            let run = async {
                let _turn = entrance.turn().await;
                let context = editor_buffers::looked(look, context).await;
                checkpoints::around(kept, effects::run_tool(tool, call, context, sync_first)).await
            };
            let (mut outcome, plan) = effects::guarded(run, || (fault_of_ours(id.clone()), None)).await;
            // Here and not on the session's task: an outcome may have some megabytes.
            if let Some(masker) = masker {
                arrival::mask(&mut outcome, &masker);
            }
            timed.end(trace::outcome(outcome.status));
            Done::Tool(id, Box::new(outcome), plan)
        };
        work.jobs.spawn(job.instrument(span));
    }

    /// The look at the editor that a call takes before it touches files.
    fn editor_look(&self, tool: &Arc<dyn Tool>, access: &Access) -> Option<Look> {
        self.editors.look((tool, access), self.prompting_client(), &self.clients, &self.workspace)
    }

    /// A call as it is run: with the input that a hook gave it, where one did.
    fn effective_call(&self, id: &CallId) -> Option<ToolCall> {
        let call = self.thread.call(id)?;
        match self.thread.input_of(id) {
            Some((input, card)) => {
                Some(ToolCall { input: input.clone(), card: card.clone(), ..call.clone() })
            }
            None => Some(call.clone()),
        }
    }

    pub(super) fn tool_done(
        &mut self,
        call: &CallId,
        outcome: Box<ToolOutcome>,
        plan: Option<Vec<PlanStep>>,
    ) {
        self.tell_checkpoint_troubles();
        if let Some(steps) = plan
            && let Err(error) = self.commit(Change::Planned { steps })
        {
            return self.abandon(&error);
        }
        if let Some(work) = &mut self.work {
            work.running_agents.remove(call);
        }
        // What an agent spent is told before it ends, and what a call printed before its outcome.
        self.hear_children();
        self.hear_progress();
        self.tell(Told::Ran(outcome));
    }
}

/// The outcome of a call whose tool panicked.
fn fault_of_ours(call: CallId) -> ToolOutcome {
    let text = "The tool failed by a fault of Epitome's own; the log has the details.";
    ToolOutcome::text(call, OutcomeStatus::Failed, text)
}
