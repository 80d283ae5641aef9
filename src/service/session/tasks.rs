//! Agents that the model starts with `task`: their definitions, their inputs and their reports.
//!
//! An agent is a child with a separate conversation. It may do no more than its session: it starts with the session's
//! mode and rules, its tools are the session's or fewer, and its permission prompts are shown to the same user.

pub(super) mod report;

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Semaphore, watch};

use super::SubagentInfo;
use super::child::news::NewsSender;
use super::child::{self, ChildLog, ChildModel, ChildSpec};
use super::core::Core;
use super::lineage::Lineage;
use super::recipes::offered_model;
use super::services::SessionServices;
use super::subagents::Subagents;
use epitome_config::Settings;
use epitome_hooks::claude::tools as claude_tools;
use epitome_platform::blocking;
use epitome_provider::endpoint::Endpoint;
use epitome_provider::models;
use epitome_recall as recall;
use epitome_recipe::agents::{AgentCatalog, AgentDefinition, GENERAL};
use epitome_recipe::parse::{RecipeModel, RecipeSource};
use epitome_thread::problem::Problem;
use epitome_thread::{Mode, ModelName, SessionId, ToolSpec};
use epitome_tools::listing::{self, ListedItem};
use epitome_tools::task::{self, TaskRequest};
use epitome_tools::{BoxFuture, ToolContext, ToolError, ToolResult};

/// The state with which agents start: the session's when the call began.
#[derive(Clone)]
pub(super) struct AgentStarter {
    pub services: SessionServices,
    pub settings: Arc<Settings>,
    /// The specification, except for the parts that depend on the agent and its task.
    pub template: ChildSpec,
    pub main: Option<Endpoint>,
    /// Models that the user could choose.
    pub offered: Arc<[ModelName]>,
    /// Names of the session's tools that the running recipe may use.
    pub tools: Arc<[String]>,
    pub slots: Arc<Semaphore>,
    pub modes: watch::Receiver<Mode>,
    /// The number of this agent in the turn, from 1.
    pub number: u32,
    pub child_log: Arc<ChildLog>,
    /// The agent's id, and the title of its call.
    pub session: SessionId,
    pub title: String,
    pub news: NewsSender,
}

impl Subagents {
    /// Lists the agents in the description of `task`, which is then frozen. Removes the tool if no agent may be
    /// started.
    pub(super) fn name_in(&self, core: &Core, tools: &mut Vec<ToolSpec>) {
        if core.lineage.depth >= core.settings.agents.max_depth {
            tools.retain(|tool| tool.name != task::NAME);
        }
        let Some(tool) = tools.iter_mut().find(|tool| tool.name == task::NAME) else { return };
        let agents = self.definitions().agents.iter();
        let items: Vec<ListedItem<'_>> =
            agents.map(|agent| ListedItem { name: &agent.name, about: &agent.description }).collect();
        let list = listing::lines(&items, listing::bytes_in(core.model.window()));
        tool.description.push_str(&format!("\n\nThe agents:{list}"));
        let names: Vec<&str> = self.definitions().agents.iter().map(|agent| agent.name.as_str()).collect();
        tool.schema["properties"]["agent"]["enum"] = serde_json::json!(names);
    }

    /// Stores the agents that were found, and reports problems with them.
    pub(super) fn found(&mut self, core: &mut Core, found: AgentCatalog) {
        let names: Vec<String> = core.services.toolbox.specs().into_iter().map(|spec| spec.name).collect();
        let without_any = found.agents.iter().filter(|agent| {
            agent.tools.as_ref().is_some_and(|tools| !tools.is_empty())
                && !names.iter().any(|name| name != recall::NAME && has(agent, name))
        });
        let without_any = without_any.map(|agent| {
            Problem::new(
                agent.source.path(),
                format!("the agent {} has none of its tools here, and works without", agent.name),
            )
            .with_hint(format!("there are {}", names.join(", ")))
        });
        let reported = found.problems.iter().chain(&found.remarks).cloned();
        let problems: Vec<Problem> = reported.chain(without_any).collect();
        core.clients.notify_problems_of("agents", &problems);
        self.define(found);
    }
}

/// Whether an agent has this tool, under any of its names in Claude Code's hooks and agents.
fn has(agent: &AgentDefinition, tool: &str) -> bool {
    let is_it = |name: &String| claude_tools::is_name_of(name, tool);
    // An agent must be able to recall what a compaction removed from its view.
    let is_given =
        |tools: &Vec<String>| tools.iter().any(is_it) || (tool == recall::NAME && !tools.is_empty());
    agent.tools.as_ref().is_none_or(is_given) && !agent.without.iter().any(is_it)
}

impl task::AgentRunner for AgentStarter {
    fn run(&self, request: TaskRequest, context: ToolContext) -> BoxFuture<ToolResult> {
        let starter = self.clone();
        Box::pin(async move { starter.hand_over(request, context).await.unwrap_or_else(ToolResult::failed) })
    }
}

impl AgentStarter {
    /// Runs an agent to its end. After an error, none was started.
    async fn hand_over(self, request: TaskRequest, context: ToolContext) -> Result<ToolResult, ToolError> {
        let bounds = &self.settings.agents;
        if self.template.lineage.depth > bounds.max_depth {
            return Err(ToolError::new(
                "No agent may be started from here (agents.max_depth). Do the work yourself.",
            ));
        }
        if self.number > bounds.max_per_turn {
            return Err(ToolError::new(format!(
                "{} agents were started for this prompt, and no more may be (agents.max_per_turn). Do the rest yourself.",
                bounds.max_per_turn
            )));
        }
        let (cwd, paths) = (self.template.workspace.cwd.clone(), self.services.paths.clone());
        let found = blocking::start(move || AgentCatalog::load(&cwd, &paths)).await.map_err(|error| {
            ToolError::caused("The agents' files could not be read. Do the work yourself.", error)
        })?;
        let name = request.agent.as_deref().unwrap_or(GENERAL);
        let agent = found.find(name).ok_or_else(|| unknown(name, &found))?;
        let (model, remark) = self.model(agent, request.model.as_deref())?;
        let mut child = self.child(agent, &request, model, &context);
        let slot = match self.slots.clone().try_acquire_owned() {
            Ok(slot) => Ok(slot),
            Err(_) => {
                (context.progress)("waiting for another agent to end\n".into());
                self.slots.clone().acquire_owned().await
            }
        };
        // The semaphore is never closed.
        let _slot = slot.map_err(|error| ToolError::caused("No agent can be started any more.", error))?;
        // Before its first call: the session may hear of its start only after that.
        if self.modes.has_changed().unwrap_or_default() && !agent.plans {
            child.mode = *self.modes.borrow();
        }
        let began = Instant::now();
        let ran = child::run(self.services.clone(), child, self.news.clone()).await;
        let report =
            report::AgentReport { agent: &agent.name, request: &request, settings: &self.settings, remark };
        Ok(report.result(ran, &self.child_log.entries(), began.elapsed()))
    }

    /// The model of an agent, and a remark about the choice for the user.
    fn model(
        &self,
        agent: &AgentDefinition,
        asked: Option<&str>,
    ) -> Result<(ChildModel, Option<String>), ToolError> {
        let main = || self.main.clone().map_or(ChildModel::Configured, |main| ChildModel::At(Box::new(main)));
        let small = || models::small(&self.settings, self.main.as_ref()).map_or_else(main, ChildModel::Named);
        match (asked, &agent.model) {
            (Some("main"), _) | (None, RecipeModel::Main) => Ok((main(), None)),
            (Some("small"), _) | (None, RecipeModel::Small) => Ok((small(), None)),
            (Some(name), _) => {
                let name = ModelName::parse(name);
                if self.offered.contains(&name) {
                    return Ok((ChildModel::Named(name), None));
                }
                Err(ToolError::new(format!(
                    "There is no model {name} here. Leave `model` out, or say `main` or `small`."
                )))
            }
            // Claude Code's model names have no provider.
            (None, RecipeModel::Named(name)) if !name.contains('/') => {
                let main_name = self.main.as_ref().map(|endpoint| &endpoint.name);
                match offered_model(name, self.offered.iter(), main_name, &agent.source) {
                    Ok(name) => Ok((ChildModel::Named(ModelName(name)), None)),
                    Err(why) => Ok((main(), Some(format!("The session's own model was used: {why}.")))),
                }
            }
            // A repository may not choose which provider gets the user's files.
            (None, RecipeModel::Named(name)) if matches!(agent.source, RecipeSource::Repository(_)) => {
                let remark =
                    format!("The repository's file asks for the model {name}; the session's own was used.");
                Ok((main(), Some(remark)))
            }
            (None, RecipeModel::Named(name)) => Ok((ChildModel::Named(ModelName::parse(name)), None)),
        }
    }

    fn child(
        &self,
        agent: &AgentDefinition,
        request: &TaskRequest,
        model: ChildModel,
        context: &ToolContext,
    ) -> ChildSpec {
        let bounds = &self.settings.agents;
        let is_last = self.template.lineage.depth >= bounds.max_depth;
        let tools = self.tools.iter().filter(|name| has(agent, name) && !(is_last && *name == task::NAME));
        let rounds = agent.max_rounds.unwrap_or(bounds.max_rounds).min(bounds.max_rounds);
        ChildSpec {
            lineage: Lineage {
                recipe: agent.name.clone(),
                role: Some(role(agent)),
                ..self.template.lineage.clone()
            },
            prompt: request.prompt.clone(),
            model,
            mode: if agent.plans { Mode::ReadOnly } else { self.template.mode },
            allowed_tools: Some(tools.cloned().collect()),
            max_rounds: Some(rounds),
            agent: Some(child::ChildAgent {
                session: self.session.clone(),
                about: Arc::new(SubagentInfo {
                    call: context.call.clone(),
                    title: self.title.clone(),
                    description: agent.description.clone(),
                    cwd: self.template.workspace.cwd.clone(),
                }),
                tokens_max: bounds.max_tokens,
                follows_mode: !agent.plans,
                progress: context.progress.clone(),
                child_log: self.child_log.clone(),
            }),
            ..self.template.clone()
        }
    }
}

/// The system prompt's section about the agent's role.
fn role(agent: &AgentDefinition) -> String {
    format!(
        "# Your part\n\nYou are the agent {:?}: another agent gave you the task that the conversation begins with. \
         The user does not see your messages, and you can't ask questions. Your last message is your report, and \
         nothing else of your work is passed on: make it complete and short.\n\n{}",
        agent.name, agent.prompt
    )
}

fn unknown(name: &str, found: &AgentCatalog) -> ToolError {
    let names: Vec<&str> = found.agents.iter().map(|agent| agent.name.as_str()).collect();
    let of_file = |problem: &&Problem| problem.path.file_stem().is_some_and(|stem| stem == name);
    let why = found.problems.iter().find(of_file).map(|problem| format!(" ({problem})")).unwrap_or_default();
    ToolError::new(format!("There is no agent {name:?}{why}. The agents are {}.", names.join(", ")))
}
