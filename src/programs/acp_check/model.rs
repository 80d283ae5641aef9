//! A scripted model that agents can use while rules are checked. A mark in the user's prompt selects its reply; the
//! prompts are sentences that a real model understands as well.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::ValueEnum;
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel, SeenPart, WireFormat};
use serde_json::{Map, Value, json};

/// The key that agents get; the model accepts any.
const KEY: &str = "acp-check-key";

/// Stands for the model's address in the value of a variable.
const URL: &str = "{url}";

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

/// The model that an agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ModelChoice {
    /// A scripted model that speaks all formats, with the variables of each
    Scripted,
    /// The same, with the variables of Anthropic's Messages only
    Anthropic,
    /// The same, with those of OpenAI's Responses only
    OpenaiResponses,
    /// The same, with those of Chat Completions only
    OpenaiChat,
    /// The same, with those of Gemini only
    Gemini,
    /// The agent's own model, with your environment
    Own,
}

impl ModelChoice {
    /// The formats of the scripted model; none if the agent uses its own.
    pub fn formats(self) -> Vec<WireFormat> {
        match self {
            ModelChoice::Scripted => WireFormat::ALL.to_vec(),
            ModelChoice::Anthropic => vec![WireFormat::AnthropicMessages],
            ModelChoice::OpenaiResponses => vec![WireFormat::OpenAiResponses],
            ModelChoice::OpenaiChat => vec![WireFormat::OpenAiChat],
            ModelChoice::Gemini => vec![WireFormat::Gemini],
            ModelChoice::Own => Vec::new(),
        }
    }
}

/// The formats of the scripted model, of which the first is preferred, and further variables for agents: `NAME` for the
/// address, or `NAME=VALUE`.
#[derive(Clone, Debug, Default)]
pub struct ModelVariables {
    pub formats: Vec<WireFormat>,
    pub named: Vec<String>,
}

impl ModelVariables {
    /// The environment variables that make an agent use this model, if there is one.
    pub fn of(&self, model: Option<&ScriptedModel>) -> Vec<(String, OsString)> {
        let mut all: Vec<(String, OsString)> = Vec::new();
        let mut push = |name: &str, value: String| {
            if !all.iter().any(|(known, _)| known == name) {
                all.push((name.to_owned(), value.into()));
            }
        };
        for format in self.formats.iter().filter(|_| model.is_some()) {
            let (address, key, chosen) = match format {
                WireFormat::AnthropicMessages => {
                    ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "anthropic/claude-sonnet-5-5")
                }
                WireFormat::OpenAiResponses => ("OPENAI_BASE_URL", "OPENAI_API_KEY", "openai/gpt-6-astra"),
                WireFormat::OpenAiChat => ("OPENAI_BASE_URL", "OPENAI_API_KEY", "openai/gpt-4.1"),
                WireFormat::Gemini => ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "gemini/gemini-4-argon"),
            };
            let is_openai = address == "OPENAI_BASE_URL";
            let url = model.map(|model| if is_openai { model.openai_base_url() } else { model.base_url() });
            push(address, url.unwrap_or_default());
            push(key, KEY.to_owned());
            push("EPITOME_MODEL", chosen.to_owned());
        }
        for named in &self.named {
            let (name, value) = named.split_once('=').unwrap_or((named, URL));
            let url = model.map(ScriptedModel::base_url).unwrap_or_default();
            push(name, value.replace(URL, &url));
        }
        all
    }
}

/// A running scripted model.
pub struct CheckModel {
    variables: Vec<(String, OsString)>,
    model: ScriptedModel,
    calls: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
}

impl CheckModel {
    pub fn start(variables: &ModelVariables) -> io::Result<CheckModel> {
        CheckModel::start_with(variables, reply)
    }

    /// The same with another script.
    pub fn start_with(
        variables: &ModelVariables,
        reply: fn(&RecordedRequest) -> Vec<ModelStep>,
    ) -> io::Result<CheckModel> {
        let (calls, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (calls.clone(), held.clone());
        let model = ScriptedModel::start_lenient(move |request| {
            let steps = reply(request);
            counts.0.fetch_add(1, Ordering::SeqCst);
            counts.1.fetch_add(usize::from(steps.contains(&ModelStep::Hang)), Ordering::SeqCst);
            steps
        })?;
        Ok(CheckModel { variables: variables.of(Some(&model)), model, calls, held })
    }

    /// The environment variables that make an agent use this model.
    pub fn variables(&self) -> Vec<(String, OsString)> {
        self.variables.clone()
    }

    /// The number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// How many replies the model has begun that do not end until they are cancelled.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Defects of requests for which a provider would reject them, for a report.
    pub fn refusals(&self) -> Vec<String> {
        self.model.refusals()
    }
}

pub(crate) fn reply(request: &RecordedRequest) -> Vec<ModelStep> {
    let text = |text: &str| vec![ModelStep::Text(text.to_owned())];
    let seen = request.seen();
    if let Some(schema) = answer_schema(&request.body) {
        return text(&filler(schema).to_string());
    }
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

/// The schema that the reply must have, if a request gives one, as agents do for tasks of their own.
fn answer_schema(body: &Value) -> Option<&Value> {
    let places = [
        "/generationConfig/responseJsonSchema",
        "/generationConfig/responseSchema",
        "/response_format/json_schema/schema",
        "/text/format/schema",
        "/output_config/format/schema",
    ];
    places.into_iter().find_map(|place| body.pointer(place).filter(|schema| schema.is_object()))
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
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            required.map(|name| (name.to_owned(), filler(&schema["properties"][name]))).collect()
        }
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

    /// Regression: an agent that lets a small model choose its model called it for ever, because the answer had no JSON of its
    /// schema.
    #[test]
    fn a_reply_with_a_schema_satisfies_it() {
        let schema = json!({ "type": "object", "required": ["choice", "score"], "properties": {
            "choice": { "type": "string", "enum": ["flash", "pro"] }, "score": { "type": "integer" } } });
        let body = json!({ "generationConfig": { "responseJsonSchema": schema } });
        let found = answer_schema(&body).expect("it has a schema");
        assert_eq!(filler(found), json!({ "choice": "flash", "score": 600_000 }));
    }
}
