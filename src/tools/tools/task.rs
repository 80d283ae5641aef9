//! `task`: delegates work to a subagent with its own conversation and returns its final message. The session
//! defines the subagents and runs them; the tool only parses and forwards the request.

use std::future::ready;

use serde_json::Value;

use super::schema::{self, InputKey};
use super::{BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, input, truncate};
use epitome_thread::titles::words_in_title;
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

pub const NAME: &str = "task";

/// The agent that runs a task that names none.
pub const GENERAL: &str = "general";

/// Maximum bytes of a prompt; longer input belongs in a file.
const PROMPT_BYTES_MAX: usize = 128 * 1024;

const TITLE_BYTES_MAX: usize = 100;

/// A request to run a subagent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRequest {
    /// A few words, for display.
    pub description: String,
    pub prompt: String,
    /// The agent to run; `None` is `GENERAL`.
    pub agent: Option<String>,
    /// `main`, `small` or a model's name; `None` uses the agent's default.
    pub model: Option<String>,
}

/// Starts subagents.
pub trait AgentRunner: Send + Sync {
    /// Runs a subagent to its end; dropping the future stops it and everything that it started. Its activity is
    /// reported line by line to the context's `progress`.
    fn run(&self, request: TaskRequest, context: ToolContext) -> BoxFuture<ToolResult>;
}

pub struct Task;

impl ParsedTool for Task {
    type Call = TaskRequest;

    fn spec(&self) -> ToolSpec {
        schema::spec(
            NAME,
            "Gives a task to another agent and returns its report. The agent knows only `prompt`: state what it needs \
             to know, what to do and what to report. It can't ask you questions. Use it for searches through many \
             files and for independent work; call it several times in one reply to run agents in parallel. To look \
             into one or two files, your own tools are faster.",
            [
                InputKey::text("description", "The work in 3 to 7 words.").required(),
                InputKey::text("prompt", "Everything that the agent needs to know.").required(),
                InputKey::text("agent", "Which agent; see above."),
                InputKey::text("model", "`main`, `small` or a model's name; by default the agent's own."),
            ],
        )
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        let text = |key: &str| input.get(key).and_then(Value::as_str).map(str::trim).unwrap_or_default();
        let agent = Some(text("agent")).filter(|agent| !agent.is_empty()).unwrap_or("Agent");
        let what = text("description").replace('\n', " ");
        let title = if what.is_empty() { agent.to_string() } else { format!("{agent}: {what}") };
        let kind = ToolKind::Think;
        let title = words_in_title(kind, &truncate::line(&title, TITLE_BYTES_MAX)).into_owned();
        CallDisplay { title, kind, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<TaskRequest, ToolError> {
        read(input)
    }

    // The call accesses nothing: each call of the subagent is decided separately.

    fn rule_names(&self, input: &Value) -> Vec<(&'static str, String)> {
        let request = read(input).ok();
        request
            .map(|request| (NAME, request.agent.unwrap_or_else(|| GENERAL.to_owned())))
            .into_iter()
            .collect()
    }

    fn agent_request(&self, input: &Value) -> Option<TaskRequest> {
        read(input).ok()
    }

    fn run(&self, request: TaskRequest, context: ToolContext) -> BoxFuture<ToolResult> {
        start(request, context)
    }
}

/// Runs an agent to its end.
pub(super) fn start(request: TaskRequest, context: ToolContext) -> BoxFuture<ToolResult> {
    match context.agents.clone() {
        Some(agents) => agents.run(request, context),
        None => {
            let text = "There are no agents here. Do the work yourself.";
            Box::pin(ready(ToolResult::failed(text)))
        }
    }
}

/// Parses the input. The error is a message for the model.
pub fn read(input: &Value) -> Result<TaskRequest, ToolError> {
    let prompt = input::named(input, "prompt")?;
    if prompt.len() > PROMPT_BYTES_MAX {
        return Err(ToolError::new(format!(
            "`prompt` has {} bytes; at most {PROMPT_BYTES_MAX} are taken. Put the rest into a file and name it.",
            prompt.len()
        )));
    }
    Ok(TaskRequest {
        description: input::named(input, "description")?,
        prompt,
        agent: input::optional_named(input, "agent")?,
        model: input::optional_named(input, "model")?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn task_is_parsed_and_titled_with_its_agent() {
        let workspace = Workspace::new(PathBuf::from("/w"), Vec::new(), Arc::default());
        let title = |input: &Value| Task.display(input, &workspace).title;
        let input = json!({"description": "Find the parser", "prompt": "Where is it?", "agent": "explore"});
        assert_eq!(title(&input), "explore: Find the parser");
        assert_eq!(title(&json!({"description": "Find the parser"})), "Agent: Find the parser");
        assert_eq!(title(&json!({})), "Agent");
        let request = read(&input).expect("a task");
        assert_eq!((request.agent.as_deref(), request.model), (Some("explore"), None));
    }

    #[test]
    fn missing_or_oversized_prompt_is_refused() {
        assert!(read(&json!({"description": "a"})).expect_err("refused").to_string().contains("`prompt`"));
        let long = "x".repeat(PROMPT_BYTES_MAX + 1);
        assert!(
            read(&json!({"description": "a", "prompt": long}))
                .expect_err("refused")
                .to_string()
                .contains("a file")
        );
    }
}
