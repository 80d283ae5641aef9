//! How a turn goes on: what it asks for is begun, and what came of it is handed back, until it waits or ends.

use super::actor::Session;
use super::work::{Done, LookedFor, Prompt, Thought, Work};
use epitome_hooks::event::HookEvent;
use epitome_hooks::output::Resolution;
use epitome_turn::{Answer as Told, Ask, CompactAnswer, HookAsk, Next};

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
                    let change = self.arrived(*change);
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
            Ask::RunHooks(ask) => self.ask_hooks(ask),
            Ask::CallModel => {
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
        }
    }

    /// Runs the hooks that a turn asks for; without any, the turn is answered at once.
    fn ask_hooks(&mut self, ask: HookAsk) {
        match ask {
            HookAsk::SessionStart => self.session_starts(),
            HookAsk::Prompt(said) => self.greet(*said),
            HookAsk::BeforeTool(call) => self.before_tool(call),
            HookAsk::AfterTool(outcome) => self.after_tool(*outcome),
            HookAsk::RoundEnd { last } => {
                self.core.trace.round_ended(&self.core.thread);
                self.round_ended(last);
            }
            HookAsk::Stop(reason) => self.would_stop(reason),
            HookAsk::PreCompact => self.pre_compact(),
            HookAsk::Composed(change) => self.accept(*change),
            HookAsk::PostCompact => self.committed(),
            HookAsk::Restart => self.restart(),
        }
    }

    /// All hooks of an ask have spoken.
    fn hooks_done(&mut self, ask: HookAsk, resolution: Resolution) {
        match ask {
            HookAsk::SessionStart | HookAsk::Restart => self.start_resolved(resolution),
            HookAsk::Prompt(said) => self.greeted(*said, resolution),
            HookAsk::BeforeTool(call) => self.tool_seen(call, resolution),
            HookAsk::AfterTool(outcome) => self.outcome_seen(*outcome, resolution),
            HookAsk::RoundEnd { last } => self.round_resolved(HookEvent::TurnEnd, last, resolution),
            HookAsk::Stop(_) => self.round_resolved(HookEvent::AgentStop, true, resolution),
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
            Done::Thought(thought) => self.thought(*thought),
            Done::Looked(looked, before) => {
                self.looked(*looked);
                self.go_on_looked(before);
            }
            Done::Hooks(ask, resolution) => self.hooks_done(ask, *resolution),
            Done::Callback(pending, called) => self.called_back(*pending, called),
            Done::Elsewhere(pending, told) => self.mutated_elsewhere(*pending, told),
        }
    }

    fn thought(&mut self, thought: Thought) {
        match thought {
            Thought::Planned(why, decided) => self.planned(why, decided),
            Thought::Pruned(revision, pruned) => self.pruned(revision, pruned),
            Thought::Composed(composed) => self.composed(composed),
            Thought::Eased(revision, cut) => self.eased(revision, cut),
            Thought::Swapped(pending, revision, made) => self.text_composed(*pending, revision, made),
            Thought::Called(pending, recipe, callback, decided) => {
                self.compaction_weighed(*pending, recipe, callback, decided);
            }
        }
    }

    /// Goes on once the files of instructions were looked at.
    pub(super) fn go_on_looked(&mut self, before: LookedFor) {
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

    pub(super) fn tell(&mut self, answer: Told) {
        if let Some(work) = &mut self.work {
            work.turn.tell(answer, &self.core.thread);
        }
    }
}
