//! `task`: the model hands a piece of work to another agent, which has a conversation of its own, and gets its last
//! words. Who the agents are and how one runs is the session's: the tool reads what is asked for, and passes it on.

use serde_json::{Value, json};

use super::{Access, BoxFuture, Tool, ToolContext, ToolResult, Workspace, input, truncate};
use epitome_thread::{Card, ToolKind, ToolSpec};

/// The tool's name.
pub const NAME: &str = "task";

/// Bytes of what an agent is told to do. What is longer belongs into a file.
const PROMPT_BYTES_MAX: usize = 128 * 1024;

/// Bytes of a title.
const TITLE_BYTES_MAX: usize = 100;

/// A piece of work for an agent, as the model asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOrder {
    /// In a few words, for people.
    pub description: String,
    pub prompt: String,
    /// Who is to do it; `None` leaves it to the session.
    pub agent: Option<String>,
    /// `main`, `small` or a model's name; `None` leaves it to the agent.
    pub model: Option<String>,
}

/// Starts agents.
pub trait Agents: Send + Sync {
    /// Runs one to its end; dropping the future stops it with all that it started. Lines of what it does go to the
    /// context's `progress`.
    fn run(&self, order: TaskOrder, context: ToolContext) -> BoxFuture<ToolResult>;
}

pub struct Task;

impl Tool for Task {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: NAME.to_string(),
            description: "Hands a piece of work to another agent and gives you its report. The agent begins with \
                          nothing but `prompt`: say there what it needs to know, what to do and what to report. It \
                          can't ask you back. Use it for searches through many files, and for work that is \
                          independent of yours; call it several times in one reply to have agents work at once. \
                          For a look into one or two files your own tools are quicker."
                .to_string(),
            schema: json!({
                "type": "object",
                "properties": {
                    "description": {"type": "string", "description": "The work in 3 to 7 words."},
                    "prompt": {"type": "string", "description": "All that the agent is told."},
                    "agent": {"type": "string", "description": "Which agent; see above."},
                    "model": {"type": "string", "description": "`main`, `small` or a model's name; by default the \
                                                                agent's own."}
                },
                "required": ["description", "prompt"]
            }),
        }
    }

    fn card(&self, input: &Value, _: &Workspace) -> Card {
        let text = |key: &str| input.get(key).and_then(Value::as_str).map(str::trim).unwrap_or_default();
        let agent = Some(text("agent")).filter(|agent| !agent.is_empty()).unwrap_or("Agent");
        let what = text("description").replace('\n', " ");
        let title = if what.is_empty() { agent.to_string() } else { format!("{agent}: {what}") };
        Card { title: truncate::line(&title, TITLE_BYTES_MAX), kind: ToolKind::Think, locations: Vec::new() }
    }

    /// Nothing of itself: whatever the agent does is decided on call by call.
    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, String> {
        read(input).map(|_| Access::Nothing)
    }

    fn starts_agents(&self) -> bool {
        true
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let order = read(&input);
        Box::pin(async move {
            match (order, context.agents.clone()) {
                (Ok(order), Some(agents)) => agents.run(order, context).await,
                (Ok(_), None) => ToolResult::failed("There are no agents here. Do the work yourself."),
                (Err(sentence), _) => ToolResult::failed(sentence),
            }
        })
    }
}

/// Reads what is asked for. An error is a sentence for the model.
pub fn read(input: &Value) -> Result<TaskOrder, String> {
    let prompt = input::named(input, "prompt")?;
    if prompt.len() > PROMPT_BYTES_MAX {
        return Err(format!(
            "`prompt` has {} bytes; at most {PROMPT_BYTES_MAX} are taken. Put the rest into a file and name it.",
            prompt.len()
        ));
    }
    Ok(TaskOrder {
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

    use super::*;

    #[test]
    fn a_task_is_read_and_titled_with_its_agent() {
        let workspace =
            Workspace { cwd: PathBuf::from("/w"), directories: Vec::new(), environment: Arc::default() };
        let title = |input: &Value| Task.card(input, &workspace).title;
        let input = json!({"description": "Find the parser", "prompt": "Where is it?", "agent": "explore"});
        assert_eq!(title(&input), "explore: Find the parser");
        assert_eq!(title(&json!({"description": "Find the parser"})), "Agent: Find the parser");
        assert_eq!(title(&json!({})), "Agent");
        let order = read(&input).expect("a task");
        assert_eq!((order.agent.as_deref(), order.model), (Some("explore"), None));
        assert_eq!(Task.access(&input, &workspace), Ok(Access::Nothing));
    }

    #[test]
    fn a_task_without_a_prompt_or_with_a_book_is_refused() {
        assert!(read(&json!({"description": "a"})).expect_err("refused").contains("`prompt`"));
        let long = "x".repeat(PROMPT_BYTES_MAX + 1);
        assert!(read(&json!({"description": "a", "prompt": long})).expect_err("refused").contains("a file"));
    }
}
