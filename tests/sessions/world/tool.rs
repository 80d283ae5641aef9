//! The tools of the simulated model: one that takes as long as its input requests, and one that writes a file. They
//! record that they ran.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use epitome_thread::{CallDisplay, OutcomeStatus, ToolSpec};
use epitome_tools::{Access, BoxFuture, Tool, ToolContext, ToolError, ToolResult, Workspace};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// How often each call was started, by its number.
pub type Executions = BTreeMap<u64, u32>;

/// Input: `{"number": 7, "ms": 20, "asks": true, "fails": false, "bytes": 10}`. Each number is used once.
pub struct Work {
    pub executions: Arc<Mutex<Executions>>,
}

impl Tool for Work {
    fn spec(&self) -> ToolSpec {
        let schema = json!({"type": "object", "properties": {}});
        ToolSpec { name: "work".into(), description: "Works.".into(), schema }
    }

    fn display(&self, _: &Value, _: &Workspace) -> CallDisplay {
        CallDisplay { title: "Working".into(), ..CallDisplay::default() }
    }

    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, ToolError> {
        match input["asks"] == true {
            true => Ok(Access::Command { line: "work".into(), confined: true, changes_git: false }),
            false => Ok(Access::Nothing),
        }
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let executions = self.executions.clone();
        Box::pin(async move {
            let number = input["number"].as_u64().unwrap_or_default();
            *executions.lock().entry(number).or_default() += 1;
            (context.progress)("working".into());
            tokio::time::sleep(Duration::from_millis(input["ms"].as_u64().unwrap_or_default())).await;
            let bytes = input["bytes"].as_u64().unwrap_or_default() as usize;
            let result = ToolResult::completed(format!("work {number} {}", "x".repeat(bytes)));
            match input["fails"] == true {
                true => ToolResult { status: OutcomeStatus::Failed, ..result },
                false => result,
            }
        })
    }
}

/// All contents ever written to files of the workspace. A file never contains only a part of one.
pub type Written = Arc<Mutex<BTreeSet<String>>>;

/// Input: `{"number": 7, "path": "f1.txt", "text": "..."}`
pub struct Write {
    pub executions: Arc<Mutex<Executions>>,
    pub written: Written,
}

impl Tool for Write {
    fn spec(&self) -> ToolSpec {
        let schema = json!({"type": "object", "properties": {}});
        ToolSpec { name: "write".into(), description: "Writes.".into(), schema }
    }

    fn display(&self, _: &Value, _: &Workspace) -> CallDisplay {
        CallDisplay { title: "Writing".into(), ..CallDisplay::default() }
    }

    fn access(&self, input: &Value, workspace: &Workspace) -> Result<Access, ToolError> {
        let path = input["path"].as_str().ok_or_else(|| ToolError::new("no path"))?;
        Ok(Access::Write(vec![workspace.real(path)]))
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let (executions, written) = (self.executions.clone(), self.written.clone());
        Box::pin(async move {
            let number = input["number"].as_u64().unwrap_or_default();
            *executions.lock().entry(number).or_default() += 1;
            let path = context.workspace.real(input["path"].as_str().unwrap_or_default());
            let text = input["text"].as_str().unwrap_or_default();
            written.lock().insert(text.to_owned());
            match std::fs::write(&path, text) {
                Ok(()) => ToolResult::completed(format!("wrote {number}")),
                Err(error) => ToolResult::failed(error.to_string()),
            }
        })
    }
}
