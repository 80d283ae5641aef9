//! Tools whose input is parsed into a type, once per query about a call. Calls with invalid input skip all queries:
//! the parse error is their result.

use std::future::ready;

use serde_json::Value;

use super::task::TaskRequest;
use super::{Access, BoxFuture, Needs, Tool, ToolContext, ToolError, ToolResult, Workspace, truncate};
use epitome_thread::{CallDisplay, ToolDisplay, ToolSpec};

/// Maximum bytes of an unknown parameter's name in the refusal.
const UNKNOWN_KEY_BYTES_MAX: usize = 60;

/// A tool with parsed input; implements [`Tool`], whose methods have the same meaning.
pub trait ParsedTool: Send + Sync {
    /// The parsed input.
    type Call: Send + 'static;

    const NEEDS: Needs = Needs::Nothing;

    fn spec(&self) -> ToolSpec;

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay;

    /// Parses the input. The error is a message for the model.
    fn parse(&self, input: &Value, workspace: &Workspace) -> Result<Self::Call, ToolError>;

    fn access(&self, _call: Self::Call, _workspace: &Workspace) -> Result<Access, ToolError> {
        Ok(Access::Nothing)
    }

    fn preview(&self, _call: Self::Call, _context: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        Box::pin(ready(Vec::new()))
    }

    fn check(&self, _call: Self::Call, _context: ToolContext) -> BoxFuture<Result<(), ToolError>> {
        Box::pin(ready(Ok(())))
    }

    fn is_listed(&self) -> bool {
        true
    }

    fn agent_request(&self, _input: &Value) -> Option<TaskRequest> {
        None
    }

    fn rule_names(&self, _input: &Value) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn run(&self, call: Self::Call, context: ToolContext) -> BoxFuture<ToolResult>;
}

/// Parses an input, and refuses parameters that the tool doesn't have: an ignored one would leave the model with wrong
/// assumptions about what its call does.
fn parse<T: ParsedTool>(tool: &T, input: &Value, workspace: &Workspace) -> Result<T::Call, ToolError> {
    let call = tool.parse(input, workspace)?;
    let spec = tool.spec();
    if let (Some(given), Some(known)) = (input.as_object(), spec.schema["properties"].as_object())
        && let Some((unknown, _)) =
            given.iter().find(|(key, value)| !value.is_null() && !known.contains_key(key.as_str()))
    {
        let known: Vec<String> = known.keys().map(|key| format!("`{key}`")).collect();
        let takes = if known.is_empty() {
            "It takes none".to_owned()
        } else {
            format!("It takes {}", known.join(", "))
        };
        return Err(ToolError::new(format!(
            "{} has no parameter `{}`. {takes}. Call it again without that one.",
            spec.name,
            truncate::line(unknown, UNKNOWN_KEY_BYTES_MAX)
        )));
    }
    Ok(call)
}

impl<T: ParsedTool> Tool for T {
    fn spec(&self) -> ToolSpec {
        ParsedTool::spec(self)
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        ParsedTool::display(self, input, workspace)
    }

    fn access(&self, input: &Value, workspace: &Workspace) -> Result<Access, ToolError> {
        ParsedTool::access(self, parse(self, input, workspace)?, workspace)
    }

    fn preview(&self, input: &Value, context: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        match parse(self, input, &context.workspace) {
            Ok(call) => ParsedTool::preview(self, call, context),
            Err(_) => Box::pin(ready(Vec::new())),
        }
    }

    fn check(&self, input: &Value, context: ToolContext) -> BoxFuture<Result<(), ToolError>> {
        match parse(self, input, &context.workspace) {
            Ok(call) => ParsedTool::check(self, call, context),
            Err(why) => Box::pin(ready(Err(why))),
        }
    }

    fn is_listed(&self) -> bool {
        ParsedTool::is_listed(self)
    }

    fn needs(&self) -> Needs {
        T::NEEDS
    }

    fn agent_request(&self, input: &Value) -> Option<TaskRequest> {
        ParsedTool::agent_request(self, input)
    }

    fn rule_names(&self, input: &Value) -> Vec<(&'static str, String)> {
        ParsedTool::rule_names(self, input)
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        match parse(self, &input, &context.workspace) {
            Ok(call) => ParsedTool::run(self, call, context),
            Err(why) => Box::pin(ready(ToolResult::failed(why))),
        }
    }
}
