//! Starting and stopping agents that the model delegates tasks to.

use std::sync::Arc;

use super::Session;
use crate::agent_id;
use crate::child::ChildLog;
use crate::subagents::{RunningAgent, numbered_call};
use crate::tasks::{AgentStarter, report};
use crate::work::RecipeRun;
use epitome_hooks::hook_context::EventData;
use epitome_recipe::agents::GENERAL;
use epitome_store::new_id;
use epitome_thread::{CallId, OutcomeStatus, ToolOutcome};
use epitome_tools::task::{self, TaskRequest};
use epitome_turn::EffectResult;

impl Session {
    /// Returns the runner that starts the agent of this call.
    pub(super) fn agents_for(&mut self, id: &CallId, request: TaskRequest) -> Arc<dyn task::AgentRunner> {
        let offered = self.core.options().models.iter().map(|choice| choice.name.clone()).collect();
        let RecipeRun { recipe, endpoint, allowed_tools: limits, allowed_commands: commands, .. } =
            self.work.as_ref().map(|work| work.run.clone()).unwrap_or_default();
        let tools = self.core.services.toolbox.specs().into_iter().map(|spec| spec.name);
        let is_allowed = |name: &String| limits.as_ref().is_none_or(|limits| limits.contains(name));
        let child_log = Arc::new(ChildLog::default());
        let name = request.agent.clone().unwrap_or_else(|| GENERAL.to_owned());
        let number = self.subagents.start(id, RunningAgent { request, child_log: child_log.clone() });
        // Every running call belongs to a reply.
        let (session, title) = numbered_call(&self.core.thread, id).map_or_else(
            || (new_id(), String::new()),
            |(reply, call)| (agent_id(self.core.id(), reply, id), call.card.title.clone()),
        );
        let what = EventData::SubagentStart { agent: name, id: session.0.clone() };
        self.start_hooks_aside(what, None);
        let runs_hooks = recipe.is_none_or(|recipe| recipe.run_hooks);
        let hooks = self.hooks.for_child(runs_hooks);
        let mut template = self.core.child_spec(String::new(), self.core.settings.agents.timeout, hooks);
        template.lineage.allowed_commands = commands;
        Arc::new(AgentStarter {
            services: self.core.services.clone(),
            settings: self.core.settings.shared(),
            template,
            main: endpoint.or_else(|| self.core.model.endpoint().cloned()),
            offered,
            tools: tools.filter(is_allowed).collect(),
            slots: self.subagents.slots(),
            modes: self.subagents.modes(),
            number,
            child_log,
            session,
            title,
            news: self.subagents.sender(),
        })
    }

    /// Gives the calls of stopped agents their outcomes, with the work done so far.
    pub(super) fn stop_agents(&mut self) {
        self.subagents.show_all_ended(&self.core.clients);
        let running = self.subagents.take_running();
        let Some(work) = &mut self.work else { return };
        for (call, RunningAgent { request, child_log }) in running {
            if !self.core.thread.open_calls().contains(&call) {
                continue;
            }
            let entries = child_log.entries();
            let text = format!(
                "{}The agent was stopped with the turn. Changes already made were kept.",
                report::last_words(&entries)
            );
            let outcome = ToolOutcome {
                whole: Some(report::transcript(&request, &entries)),
                ..ToolOutcome::text(call, OutcomeStatus::Interrupted, text)
            };
            work.turn.handle(EffectResult::Ran(Box::new(outcome)), &self.core.thread);
        }
    }
}
