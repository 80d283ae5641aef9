//! How a turn goes on: what it asks for is begun, until it waits or ends.

use super::actor::Session;
use super::work::{Prompt, Work};
use epitome_turn::{Answer as Told, Ask, Next};

impl Session {
    /// Lets the turn go on until it waits or ends, then begins what waits.
    pub(super) async fn drive(&mut self) {
        loop {
            if self.recipes.are_rendering() || self.rewinding || self.waits_for_hooks() {
                return;
            }
            let Some(work) = &mut self.work else {
                // What begins with a slash may be a recipe's name, and skills are in the frame, once all of them are read.
                let may_be_command = self.waiting.front().is_some_and(Prompt::may_be_command);
                let names_known =
                    self.recipes.are_read() || (self.thread.frame().is_some() && !may_be_command);
                match self.waiting.pop_front_if(|_| names_known) {
                    Some(prompt) => {
                        if !self.begin(prompt) {
                            return;
                        }
                        continue;
                    }
                    None => return,
                }
            };
            match work.turn.next(&self.thread) {
                Next::Commit(change) => {
                    let change = self.arrived(*change);
                    if let Err(error) = self.commit(change) {
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
            Ask::Greet(said) => self.greet(*said),
            Ask::CallModel => {
                let from = self.thread.next_seq();
                if let Some(work) = &mut self.work {
                    work.trace.asks_model(from);
                }
                self.call_model();
            }
            Ask::Compact { focus, why } => self.compact(focus, why),
            Ask::BeforeTool(call) => self.before_tool(call),
            Ask::Permission(call) => self.ask_permission(call),
            Ask::RunTool(call) => self.run_tool(call),
            Ask::RoundEnd { last } => {
                if let Some(work) = &mut self.work {
                    work.trace.round_ended(&self.thread);
                }
                self.round_ended(last);
            }
            Ask::Stop(reason) => self.would_stop(reason),
            Ask::Swapped => self.swapped(),
        }
    }

    pub(super) fn start_work(&mut self, work: Work) {
        self.work = Some(work);
        self.sync_beside();
    }

    pub(super) fn tell(&mut self, answer: Told) {
        if let Some(work) = &mut self.work {
            work.turn.tell(answer, &self.thread);
        }
    }
}
