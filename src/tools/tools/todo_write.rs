//! `todo_write`: records the agent's plan, which the editor displays. Has no other effect.

use std::future::ready;

use serde_json::{Value, json};

use epitome_thread::{CallDisplay, PLAN_TOOL, PlanPriority, PlanStatus, PlanStep, ToolKind, ToolSpec};

use super::schema::{self, InputKey};
use super::{BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, truncate};

/// Maximum steps of a plan; users wouldn't read longer ones.
pub const STEPS_MAX: usize = 100;

/// Maximum bytes of a step's text, which is displayed as one line.
pub const STEP_BYTES_MAX: usize = 1_000;

pub struct TodoWrite;

impl ParsedTool for TodoWrite {
    type Call = Vec<PlanStep>;

    fn spec(&self) -> ToolSpec {
        let steps = json!({
            "type": "array",
            "description": "All steps in their order.",
            "items": {
                "type": "object",
                "properties": {
                    "content": {"type": "string", "description": "What is to be done, in a few words."},
                    "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                    "priority": {"type": "string", "enum": ["high", "medium", "low"]}
                },
                "required": ["content", "status"]
            }
        });
        schema::spec(
            PLAN_TOOL,
            "Writes down the plan for the task, for the user to follow. Use it for work of three or more steps, and \
             again whenever a step begins or is done. Each call replaces the whole plan. Keep one step in_progress at \
             a time, and mark a step completed as soon as it is.",
            [InputKey::new("todos", steps).required()],
        )
    }

    fn display(&self, _: &Value, _: &Workspace) -> CallDisplay {
        CallDisplay { title: "Update the plan".to_string(), kind: ToolKind::Think, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<Vec<PlanStep>, ToolError> {
        read(input)
    }

    fn run(&self, steps: Vec<PlanStep>, _: ToolContext) -> BoxFuture<ToolResult> {
        let text = summary(&steps);
        Box::pin(ready(ToolResult { plan: Some(steps), ..ToolResult::completed(text) }))
    }
}

fn summary(steps: &[PlanStep]) -> String {
    let count = |status: PlanStatus| steps.iter().filter(|step| step.status == status).count();
    let mut text = format!(
        "The plan has {} steps: {} completed, {} in progress, {} pending.",
        steps.len(),
        count(PlanStatus::Completed),
        count(PlanStatus::InProgress),
        count(PlanStatus::Pending)
    );
    if count(PlanStatus::InProgress) > 1 {
        text.push_str(" Keep only one step in progress at a time.");
    }
    text
}

/// Parses the steps. Models spell statuses in many ways, and some pass the list as a JSON string.
fn read(input: &Value) -> Result<Vec<PlanStep>, ToolError> {
    let wrong = || {
        ToolError::new(
            "`todos` must be a list of objects with `content` and `status` (pending, in_progress or completed).",
        )
    };
    let parsed;
    let items = match input.get("todos") {
        Some(Value::Array(items)) => items,
        Some(Value::String(text)) => {
            parsed = serde_json::from_str::<Vec<Value>>(text).map_err(|_| wrong())?;
            &parsed
        }
        _ => return Err(wrong()),
    };
    if items.len() > STEPS_MAX {
        return Err(ToolError::new(format!(
            "The plan has {} steps; at most {STEPS_MAX} can be kept. Join some of them.",
            items.len()
        )));
    }
    let mut steps = Vec::with_capacity(items.len());
    for item in items {
        steps.extend(step(item).ok_or_else(wrong)?);
    }
    Ok(steps)
}

/// Parses a step. `None` if the item is invalid, `Some(None)` if the step was cancelled and is removed from the plan.
fn step(item: &Value) -> Option<Option<PlanStep>> {
    let content = match item {
        Value::String(content) => content,
        Value::Object(_) => item.get("content")?.as_str()?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
    };
    let word = |key: &str| item.get(key).and_then(Value::as_str).map(plain).unwrap_or_default();
    let status = match word("status").as_str() {
        "" | "pending" | "todo" | "open" | "notstarted" | "new" => PlanStatus::Pending,
        "inprogress" | "doing" | "active" | "started" | "current" | "running" => PlanStatus::InProgress,
        "completed" | "complete" | "done" | "finished" | "closed" => PlanStatus::Completed,
        "cancelled" | "canceled" | "skipped" | "removed" => return Some(None),
        _ => return None,
    };
    let priority = match word("priority").as_str() {
        "high" | "urgent" | "critical" => PlanPriority::High,
        "low" => PlanPriority::Low,
        _ => PlanPriority::Medium,
    };
    Some(Some(PlanStep { content: truncate::line(content.trim(), STEP_BYTES_MAX), status, priority }))
}

/// Normalizes a word: `In-Progress`, `in progress` and `IN_PROGRESS` become equal.
fn plain(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(status: &str) -> Option<PlanStatus> {
        let input = json!({"todos": [{"content": "a", "status": status}]});
        read(&input).ok()?.first().map(|step| step.status)
    }

    #[test]
    fn a_plan_is_read_with_its_order_and_priorities() {
        let input = json!({"todos": [
            {"content": "Read the code", "status": "completed", "priority": "high"},
            {"content": "Fix it", "status": "in_progress"},
        ]});
        let step = |content: &str, status, priority| PlanStep { content: content.into(), status, priority };
        assert_eq!(
            read(&input),
            Ok(vec![
                step("Read the code", PlanStatus::Completed, PlanPriority::High),
                step("Fix it", PlanStatus::InProgress, PlanPriority::Medium),
            ])
        );
    }

    #[test]
    fn statuses_are_read_however_they_are_written() {
        for status in ["in_progress", "In Progress", "in-progress", "doing"] {
            assert_eq!(one(status), Some(PlanStatus::InProgress), "{status}");
        }
        for status in ["completed", "DONE", "finished"] {
            assert_eq!(one(status), Some(PlanStatus::Completed), "{status}");
        }
        assert_eq!(one(""), Some(PlanStatus::Pending));
        assert_eq!(one("banana"), None);
    }

    #[test]
    fn a_cancelled_step_leaves_the_plan() {
        let input = json!({"todos": [{"content": "a", "status": "cancelled"}, "b"]});
        let steps = read(&input).expect("a plan");
        assert_eq!(steps.iter().map(|step| step.content.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_list_that_was_written_as_text_is_read_too() {
        let input = json!({"todos": r#"[{"content": "a", "status": "pending"}]"#});
        assert_eq!(read(&input).map(|steps| steps.len()), Ok(1));
        assert!(read(&json!({"todos": "read the code"})).is_err());
        assert!(read(&json!({})).is_err());
    }
}
