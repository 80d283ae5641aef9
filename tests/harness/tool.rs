//! A tool that does what its input says.

use std::sync::Arc;

use epitome_thread::{CallDisplay, Location, OutcomeContent, OutcomeStatus, ToolDisplay, ToolSpec};
use epitome_tools::{Access, BoxFuture, Tool, ToolContext, ToolError, ToolResult, Workspace};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// `{"do": "wait" | "panic" | "say", "bytes": 10, "says": "a text", "prints": "live", "image": true, "asks":
/// "nothing" | "person" | "the impossible", "preview": "panic", "touches": "a path", "whole_repeats": "the
/// text that is stored in full, without its dashes"}`
pub struct Does {
    pub name: &'static str,
    pub gate: Arc<Semaphore>,
}

impl Tool for Does {
    fn spec(&self) -> ToolSpec {
        let schema = json!({"type": "object", "properties": {}});
        ToolSpec { name: self.name.into(), description: "Does what it is told.".into(), schema }
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let touched = input["touches"].as_str().map(|path| workspace.resolve(path));
        let locations = touched.map(|path| Location { path, line: None }).into_iter().collect();
        CallDisplay { title: "Doing".into(), locations, ..CallDisplay::default() }
    }

    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, ToolError> {
        match input["asks"].as_str() {
            Some("person") => Ok(Access::Command { line: "do".into(), confined: true, changes_git: false }),
            Some("the impossible") => Err(ToolError::new("that can't be done")),
            _ => Ok(Access::Nothing),
        }
    }

    fn preview(&self, input: &Value, _: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        assert_ne!(input["preview"], "panic", "the tool was told to panic");
        Box::pin(async { Vec::new() })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let gate = self.gate.clone();
        Box::pin(async move {
            assert_ne!(input["do"], "panic", "the tool was told to panic");
            if let Some(live) = input["prints"].as_str() {
                (context.progress)(live.into());
            }
            if input["do"] == "wait" || input["command"].as_str().is_some_and(|line| line.contains("wait")) {
                gate.acquire().await.expect("the gate stays").forget();
            }
            let bytes = input["bytes"].as_u64().unwrap_or(4);
            let words = "done ".repeat(usize::try_from(bytes / 5 + 1).expect("a small number"));
            let words = input["says"].as_str().map_or(words, str::to_owned);
            let repeated = |text: &str| format!("{}\n", text.replace('-', "")).repeat(10_000);
            let whole = input["whole_repeats"].as_str().map(repeated);
            let mut result =
                ToolResult { status: OutcomeStatus::Completed, whole, ..ToolResult::completed(words) };
            if input["image"] == true {
                let image = OutcomeContent::Image { mime_type: "image/png".into(), data: "aGk=".into() };
                result.content.push(image);
            }
            result
        })
    }
}
