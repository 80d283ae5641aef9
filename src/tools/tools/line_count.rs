//! `line_count`: counts the lines of a text file. Reads nothing else and changes nothing.

use serde_json::Value;

use super::schema::{self, InputKey};
use super::{Access, BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input};
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

pub struct LineCounter;

impl ParsedTool for LineCounter {
    type Call = String;

    fn spec(&self) -> ToolSpec {
        let file = InputKey::text("file_path", "The file.").required();
        schema::spec("line_count", "Counts the lines of a text file.", [file])
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        disk::display("Count lines of", ToolKind::Read, ("file_path", "a file"), input, workspace)
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<String, ToolError> {
        input::named(input, "file_path")
    }

    fn access(&self, path: String, workspace: &Workspace) -> Result<Access, ToolError> {
        Ok(Access::Read(vec![workspace.real(&path)]))
    }

    fn run(&self, path: String, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, _| count(&path, context))
    }
}

fn count(path: &str, context: &ToolContext) -> Result<ToolResult, ToolError> {
    let workspace = &context.workspace;
    let bytes = disk::read_whole(&workspace.real(path), workspace)?;
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    Ok(ToolResult::completed(format!("{lines} lines")))
}
