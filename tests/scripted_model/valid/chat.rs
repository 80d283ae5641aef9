//! Validation rules of OpenAI's Chat Completions API. Compatible servers accept more.

use serde_json::Value;

use super::{is_name, list, services, text};

/// Maximum characters of a function name.
const NAME_MAX: usize = 64;

/// Why the body would be rejected.
pub fn problems(model: &str, body: &Value) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(tools_with_reasoning(model, body));
    let messages = list(&body["messages"]);
    if messages.is_empty() {
        found.push(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty \
             array instead."
                .into(),
        );
    }
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = text(&message["role"]);
        if role == "tool" {
            let id = text(&message["tool_call_id"]);
            match open.iter().position(|open| *open == id) {
                Some(answered) => {
                    open.remove(answered);
                }
                None => found.push(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding \
                     message with 'tool_calls'."
                        .into(),
                ),
            }
            continue;
        }
        unanswered(&open, &mut found);
        open.clear();
        match role {
            "assistant" => {
                let calls = &message["tool_calls"];
                if calls.as_array().is_some_and(Vec::is_empty) {
                    found.push(format!(
                        "Invalid 'messages[{at}].tool_calls': empty array. Expected an array with minimum \
                         length 1, but got an empty array instead."
                    ));
                }
                open = list(calls).iter().map(|call| text(&call["id"])).collect();
                if message["content"].is_null() && open.is_empty() {
                    found.push("Invalid value for 'content': expected a string, got null.".into());
                }
                for call in list(calls) {
                    if !call["function"]["arguments"].is_string() {
                        found.push(format!(
                            "Invalid type for 'messages[{at}].tool_calls[0].function.arguments': expected \
                             a string."
                        ));
                    }
                }
            }
            "user" | "system" | "developer" => {
                if message["content"].is_null() || message["content"].as_array().is_some_and(Vec::is_empty) {
                    found.push(format!("Invalid value for 'messages[{at}].content': expected a string."));
                }
            }
            other => found.push(format!(
                "Invalid value: '{other}'. Supported values are: 'system', 'assistant', 'user', 'tool', \
                 and 'developer'."
            )),
        }
    }
    unanswered(&open, &mut found);
    for (at, tool) in list(&body["tools"]).iter().enumerate() {
        function(&tool["function"], &format!("tools[{at}].function"), &mut found);
    }
    found
}

/// The refusal of tools for models that reason, as reported of OpenAI's service in openai/openai-openapi#541,
/// pipecat-ai/pipecat#4043 and BerriAI/litellm#34569: GPT-5.4 and 5.5 take tools without an effort or with `none`, from
/// 5.6 on the default effort counts, and the models that always reason take none here.
fn tools_with_reasoning(model: &str, body: &Value) -> Option<String> {
    let name = model.rsplit('/').next()?;
    let version = name.strip_prefix("gpt-")?;
    let is = |lines: &[&str]| lines.iter().any(|line| version.starts_with(line));
    let effort = body["reasoning_effort"].as_str();
    let is_refused = if is(&["6.1-sol", "6.2"]) || version.contains("astra") {
        true
    } else if is(&["5.6", "6"]) {
        effort != Some("none")
    } else {
        is(&["5.4", "5.5"]) && effort.is_some_and(|effort| effort != "none")
    };
    (is_refused && !list(&body["tools"]).is_empty()).then(|| {
        format!(
            "Function tools with reasoning_effort are not supported for {name} in /v1/chat/completions. To use \
             function tools, use /v1/responses or set reasoning_effort to 'none'."
        )
    })
}

fn unanswered(open: &[&str], found: &mut Vec<String>) {
    if !open.is_empty() {
        found.push(format!(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
             'tool_call_id'. The following tool_call_ids did not have response messages: {}",
            open.join(", ")
        ));
    }
}

/// The rules for functions that both of OpenAI's formats share.
pub(super) fn function(function: &Value, place: &str, found: &mut Vec<String>) {
    let name = text(&function["name"]);
    if !is_name(name, NAME_MAX) {
        found.push(format!(
            "Invalid '{place}.name': string does not match pattern. Expected a string that matches the \
             pattern '^[a-zA-Z0-9_-]+$'."
        ));
    }
    let parameters = &function["parameters"];
    if !parameters.is_null() && parameters["type"] != "object" {
        found.push(format!(
            "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got \
             'type: {}'.",
            parameters["type"]
        ));
    }
    if services::alternatives_at_root(parameters) {
        found.push(format!(
            "Invalid schema for function '{name}': schema must have type 'object' and not have \
             'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level."
        ));
    }
    if let Some(pattern) = services::unknown_pattern(parameters) {
        found.push(format!("Invalid schema for function '{name}': '{pattern}' is not a 'regex'."));
    }
    for (key, property) in parameters["properties"].as_object().into_iter().flatten() {
        if property["type"] == "array" && property["items"].is_null() {
            found.push(format!(
                "Invalid schema for function '{name}': In context=('properties', '{key}'), array schema missing items."
            ));
        }
    }
    if function["strict"] == true && parameters["additionalProperties"] != false {
        found.push(format!(
            "Invalid schema for function '{name}': In context=(), 'additionalProperties' is required to be \
             supplied and to be false."
        ));
    }
}
