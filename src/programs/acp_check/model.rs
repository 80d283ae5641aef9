//! A scripted model that agents can use while rules are checked. A mark in the user's prompt selects its reply; the
//! prompts are sentences that a real model understands as well.

use std::ffi::OsString;
use std::io;

use clap::ValueEnum;
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel, SeenPart};
use serde_json::{Map, Value, json};

/// The key that agents get; the model accepts any.
const KEY: &str = "acp-check-key";

/// Marks in prompts.
const HANG: &str = "(acp-check: hang)";
const RUN: &str = "(acp-check: run)";
const SLEEP: &str = "(acp-check: sleep)";

/// The file that the command of `RUN` creates in the workspace.
pub const PROBE_FILE: &str = "acp-check-probe.txt";

/// A prompt for a short reply that contains `PING`.
pub const SAY_PING: &str = "Reply with the single word ping and nothing else.";
pub const PING: &str = "ping";

/// A prompt for a reply that does not end until it is canceled.
pub fn hang() -> String {
    format!("Write a story of twenty thousand words about a walnut, without asking back. {HANG}")
}

/// A prompt for running a command that creates `PROBE_FILE`.
pub fn run_command() -> String {
    format!("Run exactly this shell command, once: touch {PROBE_FILE} {RUN}")
}

/// A prompt for running a command that takes minutes.
pub fn run_long() -> String {
    format!("Run exactly this shell command in the foreground, once: sleep 311 {SLEEP}")
}

/// The wire formats of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ModelFormat {
    /// Anthropic's Messages
    Anthropic,
    /// OpenAI's Responses
    OpenaiResponses,
    /// Chat Completions
    OpenaiChat,
    /// Gemini
    Gemini,
}

/// A running scripted model.
pub struct CheckModel {
    format: ModelFormat,
    model: ScriptedModel,
}

impl CheckModel {
    pub fn start(format: ModelFormat) -> io::Result<CheckModel> {
        Ok(CheckModel { format, model: ScriptedModel::start_lenient(reply)? })
    }

    /// The environment variables that make an agent use this model.
    pub fn variables(&self) -> Vec<(String, OsString)> {
        let (url, key) = match self.format {
            ModelFormat::Anthropic => (("ANTHROPIC_BASE_URL", self.model.base_url()), "ANTHROPIC_API_KEY"),
            ModelFormat::OpenaiResponses | ModelFormat::OpenaiChat => {
                (("OPENAI_BASE_URL", self.model.openai_base_url()), "OPENAI_API_KEY")
            }
            ModelFormat::Gemini => {
                (("GOOGLE_GEMINI_BASE_URL", self.model.gemini_base_url()), "GEMINI_API_KEY")
            }
        };
        vec![(url.0.to_owned(), url.1.into()), (key.to_owned(), KEY.into())]
    }

    /// The number of calls so far.
    pub fn calls(&self) -> usize {
        self.model.requests().len()
    }

    /// Defects of requests for which a provider would reject them, for a report.
    pub fn refusals(&self) -> Vec<String> {
        self.model.refusals()
    }
}

fn reply(request: &RecordedRequest) -> Vec<ModelStep> {
    let text = |text: &str| vec![ModelStep::Text(text.to_owned())];
    let seen = request.seen();
    // The turn ends after the result of a call.
    if matches!(seen.last(), Some(SeenPart::Result { .. })) {
        return text("Done.");
    }
    let is_asked = |mark: &str| {
        seen.iter().rev().find_map(|part| match part {
            SeenPart::User(said) if said.contains("acp-check:") => Some(said.contains(mark)),
            _ => None,
        }) == Some(true)
    };
    let command = |command: &str| match call(&request.body, command) {
        Some(call) => vec![call],
        None => text("There is no tool for commands."),
    };
    match () {
        () if is_asked(HANG) => vec![ModelStep::Text("Once upon a time".to_owned()), ModelStep::Hang],
        () if is_asked(RUN) => command(&format!("touch {PROBE_FILE}")),
        () if is_asked(SLEEP) => command("sleep 311"),
        () => text(PING),
    }
}

/// Returns the names and schemas of the tools in a request of any format.
fn tools(body: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for tool in body["tools"].as_array().into_iter().flatten() {
        let declared = tool["functionDeclarations"].as_array().cloned();
        for function in declared.unwrap_or_else(|| vec![tool.get("function").unwrap_or(tool).clone()]) {
            let schema = ["input_schema", "parameters", "parametersJsonSchema"]
                .into_iter()
                .find_map(|key| function.get(key).filter(|schema| schema.is_object()));
            if let (Some(name), Some(schema)) = (function["name"].as_str(), schema) {
                found.push((name.to_owned(), schema.clone()));
            }
        }
    }
    found
}

/// A call of the first tool with a property for a shell command; `None` if there is none.
fn call(body: &Value, command: &str) -> Option<ModelStep> {
    for (name, schema) in tools(body) {
        for property in ["command", "cmd"] {
            let wanted = &schema["properties"][property];
            let value = match wanted["type"].as_str().map(str::to_lowercase).as_deref() {
                Some("string") => json!(command),
                Some("array") => json!(["bash", "-lc", command]),
                _ => continue,
            };
            let mut input = Map::from_iter([(property.to_owned(), value)]);
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            for other in required.filter(|other| *other != property) {
                input.insert(other.to_owned(), filler(&schema["properties"][other]));
            }
            return Some(ModelStep::Call { name, input: Value::Object(input) });
        }
    }
    None
}

/// Returns a value that satisfies a schema.
fn filler(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str().map(str::to_lowercase).as_deref() {
        Some("number" | "integer") => json!(600_000),
        Some("boolean") => json!(false),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("Probe"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_for_commands_is_found_in_each_format() {
        let string = json!({ "type": "object", "required": ["command", "why"],
            "properties": { "command": { "type": "string" }, "why": { "type": "string" } } });
        let list = json!({ "type": "object", "properties": { "command": { "type": "array" } } });
        let other = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
        let bodies = [
            json!({ "tools": [{ "name": "read", "input_schema": other }, { "name": "bash", "input_schema": string }] }),
            json!({ "tools": [{ "type": "function", "name": "shell", "parameters": list }] }),
            json!({ "tools": [{ "type": "function", "function": { "name": "run", "parameters": string } }] }),
            json!({ "tools": [{ "functionDeclarations": [{ "name": "run", "parametersJsonSchema": string }] }] }),
        ];
        let called = bodies.iter().map(|body| match call(body, "ls") {
            Some(ModelStep::Call { name, input }) => format!("{name} {input}"),
            other => format!("{other:?}"),
        });
        assert_eq!(
            called.collect::<Vec<_>>(),
            [
                r#"bash {"command":"ls","why":"Probe"}"#,
                r#"shell {"command":["bash","-lc","ls"]}"#,
                r#"run {"command":"ls","why":"Probe"}"#,
                r#"run {"command":"ls","why":"Probe"}"#,
            ]
        );
        assert_eq!(call(&json!({}), "ls"), None);
    }
}
