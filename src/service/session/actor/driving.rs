//! Drives a turn: starts the effects that it requests and returns their results, until it waits or ends.

use super::Session;
use crate::responder::QueuedPrompt;
use crate::work::{AfterScan, JobResult, RunningTurn};
use epitome_hooks::event::HookEvent;
use epitome_hooks::hook_context::EventData;
use epitome_hooks::output::Resolution;
use epitome_turn::{Effect, EffectResult, HookPoint, HooksResult, NextStep, Stuck};

impl Session {
    /// Advances the turn until it waits or ends, then begins the waiting prompts.
    pub(super) async fn drive(&mut self) {
        loop {
            if self.recipes.are_rendering() || self.inbox.is_paused() || self.waits_for_hooks() {
                return;
            }
            let Some(work) = &mut self.work else {
                // A prompt with a slash may be a recipe, and a new frame lists the skills: both need the recipes to be
                // loaded.
                let may_be_command = self.inbox.first().is_some_and(QueuedPrompt::may_be_command);
                let names_known =
                    self.recipes.are_read() || (self.core.thread.frame().is_some() && !may_be_command);
                if !names_known {
                    return;
                }
                match self.inbox.take_first().map(|prompt| self.begin(prompt)) {
                    Some(true) => continue,
                    Some(false) | None => return,
                }
            };
            match work.turn.next(&self.core.thread) {
                NextStep::Commit(change) => {
                    let change = self.tools.truncated_outcome(&mut self.core, *change);
                    if let Err(error) = self.commit_of_turn(change) {
                        self.abandon(&error);
                    }
                    // A disk that is slower than the turn slows it down.
                    if self.core.log.is_full() {
                        // An error has ended the turn.
                        drop(self.settle_log().await);
                    }
                }
                // Effects require that the log is on disk. If its entries can't be written, the turn is over.
                NextStep::Run(ask) => {
                    if self.settle_log().await.is_ok() {
                        self.perform(ask);
                    }
                }
                NextStep::Wait => return,
                NextStep::End(reason) => self.end(reason).await,
            }
        }
    }

    pub(super) fn perform(&mut self, ask: Effect) {
        match ask {
            Effect::RunHooks(HookPoint::Composed(change)) => self.accept_compaction(*change),
            Effect::RunHooks(ask) => self.ask_hooks(ask),
            Effect::CallModel => {
                if let Err(error) = self.core.check_log() {
                    return self.abandon(&error);
                }
                let from = self.core.thread.next_seq();
                self.core.trace.asks_model(from);
                self.scan_first(AfterScan::CallModel);
            }
            Effect::Permission(call) => self.ask_permission(call),
            Effect::RunTool(call) => self.run_tool(call),
            Effect::Ease { edited } => self.prune_old_outcomes(edited),
            Effect::PlanCompaction(why) => self.plan_compaction(why),
            Effect::Summarise => self.summarise(),
            Effect::Compose => self.compose(),
            Effect::AbandonCompaction(why) => self.fail_compaction(why),
            Effect::Report(stuck) => self.report_stuck(&stuck),
        }
    }

    /// Runs the hooks for this point of the turn. Without hooks, the turn continues at once.
    pub(super) fn ask_hooks(&mut self, ask: HookPoint) {
        let what = match &ask {
            HookPoint::SessionStart => Some(EventData::SessionStart { source: self.hooks.source() }),
            HookPoint::Restart => Some(EventData::SessionStart { source: "compact" }),
            HookPoint::Prompt(prompt) => self.prompt_event(prompt),
            HookPoint::BeforeTool(call) => self.call_event(call),
            HookPoint::AfterTool(outcome) => self.outcome_event(outcome),
            HookPoint::RoundEnd { .. } => {
                self.core.trace.round_ended(&self.core.thread);
                self.apply_background_callback();
                if let Some((hook, reason)) = self.hooks.take_halt() {
                    let answer = self.halted(&hook, &reason);
                    return self.answer_turn(EffectResult::Hooks(answer));
                }
                Some(EventData::TurnEnd(self.round()))
            }
            HookPoint::Stop(reason) => {
                self.apply_background_callback();
                Some(self.stop_event(*reason))
            }
            HookPoint::PreCompact => self.compaction_event(),
            // These hooks run when the change is accepted.
            HookPoint::Composed(_) => None,
            HookPoint::PostCompact => self.committed(),
        };
        let unseen = match what {
            Some(what) => self.run_hooks(what, ask),
            None => Some(ask),
        };
        if let Some(ask) = unseen {
            self.hooks_done(ask, None);
        }
    }

    /// Applies the result of the hooks; `None` if there were no hooks.
    pub(super) fn hooks_done(&mut self, ask: HookPoint, resolution: Option<Resolution>) {
        let is_seen = resolution.is_some();
        let mut resolution = resolution.unwrap_or_default();
        // Hooks may quote files.
        if is_seen && let Some(masker) = self.tools.masker(&self.core) {
            resolution.for_each_text(|text| {
                masker.mask_in(text);
            });
        }
        match ask {
            HookPoint::SessionStart | HookPoint::Restart => self.start_resolved(resolution),
            HookPoint::Prompt(prompt) => self.prompt_resolved(*prompt, resolution),
            HookPoint::BeforeTool(call) => self.tool_seen(call, resolution),
            HookPoint::AfterTool(outcome) if is_seen => self.outcome_seen(*outcome, resolution),
            HookPoint::AfterTool(outcome) => self.outcome_settled(*outcome),
            HookPoint::RoundEnd { last } if is_seen => {
                self.round_resolved(HookEvent::TurnEnd, last, resolution);
            }
            HookPoint::RoundEnd { .. } => self.round_unseen(),
            HookPoint::Stop(_) if is_seen => self.round_resolved(HookEvent::AgentStop, true, resolution),
            HookPoint::Stop(_) => self.answer_turn(EffectResult::Hooks(HooksResult::default())),
            HookPoint::PreCompact => self.pre_compact_resolved(resolution),
            HookPoint::Composed(change) => self.callback_stop_resolved(*change, resolution),
            HookPoint::PostCompact => self.post_compact_resolved(resolution),
        }
    }

    /// Starts a job of the running turn, which goes on with its result; a cancel drops both. Does nothing without a
    /// running turn.
    pub(super) fn start_job<T: Send + 'static>(
        &mut self,
        job: impl Future<Output = T> + Send + 'static,
        result: impl FnOnce(T) -> JobResult + Send + 'static,
    ) {
        let Some(work) = &mut self.work else { return };
        work.jobs.spawn(async move { result(job.await) });
    }

    pub(super) fn start_work(&mut self, mut work: RunningTurn) {
        if !self.hooks.has_started() {
            work.turn.start_session();
        }
        self.core.trace.begin_turn(self.core.thread.next_seq());
        self.work = Some(work);
        self.begin_foreground();
        self.core.sync_in_background();
    }

    pub(super) fn answer_turn(&mut self, answer: EffectResult) {
        if let Some(work) = &mut self.work {
            work.turn.handle(answer, &self.core.thread);
        }
    }
}

impl Session {
    /// Records that the turn repeats itself: a sentence for the user, and the answer's `_meta` for programs.
    fn report_stuck(&mut self, stuck: &Stuck) {
        tracing::warn!(session = %self.core.id(), ?stuck, "a turn repeats itself");
        if let Some(work) = &mut self.work {
            let meta = work.meta.get_or_insert_default();
            meta["epitome"]["stopped"] = stuck.id().into();
        }
        let note = self.core.note(stuck.sentence());
        self.answer_turn(EffectResult::Reported(Box::new(note)));
    }
}
