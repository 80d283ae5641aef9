//! Tools whose input is parsed into a type, once per query about a call. Calls with invalid input skip all queries:
//! the parse error is their result.

use std::future::ready;

use serde_json::Value;

use super::task::TaskRequest;
use super::{Access, BoxFuture, Needs, Tool, ToolContext, ToolError, ToolResult, Workspace};
use epitome_thread::{CallDisplay, ToolDisplay, ToolSpec};

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

impl<T: ParsedTool> Tool for T {
    fn spec(&self) -> ToolSpec {
        ParsedTool::spec(self)
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        ParsedTool::display(self, input, workspace)
    }

    fn access(&self, input: &Value, workspace: &Workspace) -> Result<Access, ToolError> {
        ParsedTool::access(self, self.parse(input, workspace)?, workspace)
    }

    fn preview(&self, input: &Value, context: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        match self.parse(input, &context.workspace) {
            Ok(call) => ParsedTool::preview(self, call, context),
            Err(_) => Box::pin(ready(Vec::new())),
        }
    }

    fn check(&self, input: &Value, context: ToolContext) -> BoxFuture<Result<(), ToolError>> {
        match self.parse(input, &context.workspace) {
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
        match self.parse(&input, &context.workspace) {
            Ok(call) => ParsedTool::run(self, call, context),
            Err(why) => Box::pin(ready(ToolResult::failed(why))),
        }
    }
}
