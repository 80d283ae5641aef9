//! How a turn goes on: what it asks for is begun, and what came of it is handed back, until it waits or ends.

use super::actor::Session;
use super::work::{Done, LookedFor, Prompt, Work};
use epitome_hooks::event::HookEvent;
use epitome_hooks::moment::What;
use epitome_hooks::output::Resolution;
use epitome_thread::Change;
use epitome_turn::{Answer as TurnAnswer, Ask, CompactAnswer, HookAsk, HooksAnswer, Next, Stuck};

impl Session {
    /// Lets the turn go on until it waits or ends, then begins what waits.
    pub(super) async fn drive(&mut self) {
        loop {
            if self.recipes.are_rendering() || self.inbox.is_held() || self.waits_for_hooks() {
                return;
            }
            let Some(work) = &mut self.work else {
                // What begins with a slash may be a recipe's name, and skills are in the frame, once all of them are read.
                let may_be_command = self.inbox.first().is_some_and(Prompt::may_be_command);
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
                Next::Commit(change) => {
                    let change = self.tools.truncated_outcome(&mut self.core, *change);
                    if let Err(error) = self.core.commit(change) {
                        self.abandon(&error);
                    }
                }
                Next::Ask(ask) => self.perform(ask),
                Next::Wait => return,
                Next::End(reason) => self.end(reason).await,
            }
        }
    }

    pub(super) fn perform(&mut self, ask: Ask) {
        match ask {
            Ask::RunHooks(HookAsk::Composed(change)) => self.accept(*change),
            Ask::RunHooks(ask) => self.ask_hooks(ask),
            Ask::CallModel => {
                if let Err(error) = self.core.check_log() {
                    return self.abandon(&error);
                }
                let from = self.core.thread.next_seq();
                self.core.trace.asks_model(from);
                self.look_first(LookedFor::Call);
            }
            Ask::Permission(call) => self.ask_permission(call),
            Ask::RunTool(call) => self.run_tool(call),
            Ask::Ease { edited } => self.ease(edited),
            Ask::PlanCompaction(why) => self.plan_compaction(why),
            Ask::Summarise => self.summarise(),
            Ask::Compose => self.compose(),
            Ask::AbandonCompaction(why) => self.end_compaction(CompactAnswer::Failed(why)),
            Ask::Report(stuck) => report(self, &stuck),
        }
    }

    /// Runs the hooks that a turn asks for; where there are none, they have asked for nothing at once.
    pub(super) fn ask_hooks(&mut self, ask: HookAsk) {
        let what = match &ask {
            HookAsk::SessionStart => Some(What::SessionStart { source: self.hooks.source() }),
            HookAsk::Restart => Some(What::SessionStart { source: "compact" }),
            HookAsk::Prompt(said) => self.prompt_event(said),
            HookAsk::BeforeTool(call) => self.call_event(call),
            HookAsk::AfterTool(outcome) => self.outcome_event(outcome),
            HookAsk::RoundEnd { .. } => {
                self.core.trace.round_ended(&self.core.thread);
                self.apply_background_callback();
                if let Some((hook, reason)) = self.hooks.turn().halt.take() {
                    let answer = self.halted(&hook, &reason);
                    return self.answer_turn(TurnAnswer::Hooks(answer));
                }
                Some(What::TurnEnd(self.round()))
            }
            HookAsk::Stop(reason) => {
                self.apply_background_callback();
                Some(self.stop_event(*reason))
            }
            HookAsk::PreCompact => self.compaction_event(),
            // They are asked where the change is accepted.
            HookAsk::Composed(_) => None,
            HookAsk::PostCompact => self.committed(),
        };
        let unseen = match what {
            Some(what) => self.run_hooks(what, ask),
            None => Some(ask),
        };
        if let Some(ask) = unseen {
            self.hooks_done(ask, None);
        }
    }

    /// All hooks of an ask have spoken; `None` where there are none.
    fn hooks_done(&mut self, ask: HookAsk, said: Option<Resolution>) {
        let is_seen = said.is_some();
        let resolution = said.unwrap_or_default();
        match ask {
            HookAsk::SessionStart | HookAsk::Restart => self.start_resolved(resolution),
            HookAsk::Prompt(said) => self.greeted(*said, resolution),
            HookAsk::BeforeTool(call) => self.tool_seen(call, resolution),
            HookAsk::AfterTool(outcome) if is_seen => self.outcome_seen(*outcome, resolution),
            HookAsk::AfterTool(outcome) => self.outcome_settled(*outcome),
            HookAsk::RoundEnd { last } if is_seen => {
                self.round_resolved(HookEvent::TurnEnd, last, resolution);
            }
            HookAsk::RoundEnd { .. } => self.round_unseen(),
            HookAsk::Stop(_) if is_seen => self.round_resolved(HookEvent::AgentStop, true, resolution),
            HookAsk::Stop(_) => self.answer_turn(TurnAnswer::Hooks(HooksAnswer::default())),
            HookAsk::PreCompact => self.pre_compact_resolved(resolution),
            HookAsk::Composed(change) => self.callback_stop_resolved(*change, resolution),
            HookAsk::PostCompact => self.post_compact_resolved(resolution),
        }
    }

    /// Takes the result of a job in.
    pub(super) fn job_done(&mut self, done: Done) {
        match done {
            Done::Tool(call, outcome, plan) => self.tool_done(&call, outcome, plan),
            Done::Preview(call, Ok(preview)) => self.show_ask(&call, preview),
            Done::Preview(call, Err(why)) => self.cannot_run(call, why),
            Done::Summary(attempt) => self.summarised(*attempt),
            Done::Looked(looked, before) => {
                self.looked(*looked);
                self.continue_after_look(before);
            }
            Done::Hooks(ask, resolution) => self.hooks_done(ask, Some(*resolution)),
            Done::Callback(called) => self.called_back(called),
            Done::Elsewhere(told) => self.mutated_elsewhere(told),
            Done::Planned(why, decided) => self.planned(why, decided),
            Done::Pruned(revision, pruned) => self.pruned(revision, pruned),
            Done::Composed(composed) => self.composed(composed),
            Done::Eased(revision, cut) => self.eased(revision, cut),
            Done::Swapped(revision, made) => self.text_composed(revision, made),
            Done::Called(recipe, callback, decided) => self.compaction_weighed(recipe, callback, decided),
        }
    }

    /// Goes on once the files of instructions were looked at.
    pub(super) fn continue_after_look(&mut self, before: LookedFor) {
        match before {
            LookedFor::Call => self.call_with_instructions(),
            LookedFor::Compaction(why) => self.plan(why),
        }
    }

    pub(super) fn start_work(&mut self, mut work: Work) {
        if !self.hooks.has_started() {
            work.turn.start_session();
        }
        self.core.trace.begin_turn(self.core.thread.next_seq());
        self.work = Some(work);
        self.core.sync_beside();
    }

    pub(super) fn answer_turn(&mut self, answer: TurnAnswer) {
        if let Some(work) = &mut self.work {
            work.turn.tell(answer, &self.core.thread);
        }
    }
}

/// Notes that the turn repeats itself: for the user as a sentence, for programs in the answer's `_meta`.
fn report(session: &mut Session, stuck: &Stuck) {
    tracing::warn!(session = %session.core.id(), ?stuck, "a turn repeats itself");
    if let Some(work) = &mut session.work {
        let meta = work.meta.get_or_insert_default();
        meta["epitome"]["stopped"] = stuck.id().into();
    }
    let note = Change::Noted { message: session.core.fresh_message(), text: stuck.sentence() };
    session.answer_turn(TurnAnswer::Reported(Box::new(note)));
}
