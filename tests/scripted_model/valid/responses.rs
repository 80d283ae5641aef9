//! Validation rules of OpenAI's Responses API for requests without server-side state. Encrypted reasoning is
//! not verified: only its issuer can do that.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{chat, list, text};

/// Why the body would be rejected.
pub fn problems(body: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match &body["input"] {
        Value::Array(items) if !items.is_empty() => {
            shapes(items, &mut found);
            reasoning(body, items, &mut found);
            pairs(items, &mut found);
        }
        Value::String(said) if !said.is_empty() => {}
        Value::Array(_)
        | Value::String(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Object(_) => found.push("Missing required parameter: 'input'.".into()),
    }
    if let Some(earlier) = body["previous_response_id"].as_str() {
        found.push(format!("Previous response with id '{earlier}' not found."));
    }
    for (at, tool) in list(&body["tools"]).iter().enumerate() {
        if tool["type"] == "function" {
            chat::function(tool, &format!("tools[{at}]"), &mut found);
        }
    }
    found
}

/// The type of an item; messages may omit it.
fn kind(item: &Value) -> &str {
    item["type"].as_str().unwrap_or("message")
}

fn shapes(items: &[Value], found: &mut Vec<String>) {
    for (at, item) in items.iter().enumerate() {
        match kind(item) {
            "message" => message(at, item, found),
            "function_call" => {
                if !item["arguments"].is_string() {
                    found.push(format!("Invalid type for 'input[{at}].arguments': expected a string."));
                }
            }
            "function_call_output" => {
                let output = &item["output"];
                if !output.is_string() && !output.is_array() {
                    found.push(format!("Invalid type for 'input[{at}].output'."));
                }
                parts(&format!("input[{at}].output"), output, &OF_USER, found);
            }
            "compaction" => {
                if text(&item["encrypted_content"]).is_empty() {
                    found.push(format!("Missing required parameter: 'input[{at}].encrypted_content'."));
                }
                // Its other output fields are rejected as input.
                let known = ["type", "id", "encrypted_content"];
                for name in item.as_object().into_iter().flat_map(|fields| fields.keys()) {
                    if !known.contains(&name.as_str()) {
                        found.push(format!("Unknown parameter: 'input[{at}].{name}'."));
                    }
                }
            }
            "web_search_call" => {
                for field in ["id", "status"] {
                    if text(&item[field]).is_empty() {
                        found.push(format!("Missing required parameter: 'input[{at}].{field}'."));
                    }
                }
            }
            "reasoning" | "item_reference" => {}
            other => found.push(format!("Invalid value: '{other}' for 'input[{at}].type'.")),
        }
    }
}

const OF_AGENT: [&str; 2] = ["output_text", "refusal"];
const OF_USER: [&str; 3] = ["input_text", "input_image", "input_file"];

fn message(at: usize, item: &Value, found: &mut Vec<String>) {
    let role = text(&item["role"]);
    let allowed: &[&str] = match role {
        "assistant" => &OF_AGENT,
        "user" | "system" | "developer" => &OF_USER,
        other => {
            found.push(format!("Invalid value: '{other}' for 'input[{at}].role'."));
            return;
        }
    };
    let content = &item["content"];
    if content.is_null() || content.as_array().is_some_and(Vec::is_empty) {
        found.push(format!("Missing required parameter: 'input[{at}].content'."));
    }
    parts(&format!("input[{at}].content"), content, allowed, found);
}

fn parts(place: &str, content: &Value, allowed: &[&str], found: &mut Vec<String>) {
    for (at, part) in list(content).iter().enumerate() {
        let kind = text(&part["type"]);
        if !allowed.contains(&kind) {
            found.push(format!(
                "Invalid value: '{kind}'. Supported values are: '{}'. ({place}[{at}].type)",
                allowed.join("', '")
            ));
        }
    }
}

/// Reasoning must be complete and followed by what it was generated for.
fn reasoning(body: &Value, items: &[Value], found: &mut Vec<String>) {
    for (at, item) in items.iter().enumerate() {
        if kind(item) != "reasoning" {
            continue;
        }
        let id = text(&item["id"]);
        if text(&item["encrypted_content"]).is_empty() && body["store"] == false {
            found.push(format!(
                "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try \
                 again with `store` set to true, or remove this item from your input."
            ));
        }
        let follows = items.get(at + 1).is_some_and(|next| match kind(next) {
            "message" => next["role"] == "assistant",
            "function_call" | "web_search_call" | "reasoning" | "compaction" => true,
            _ => false,
        });
        if !follows {
            found.push(format!(
                "Item '{id}' of type 'reasoning' was provided without its required following item."
            ));
        }
    }
}

fn pairs(items: &[Value], found: &mut Vec<String>) {
    let mut open: Vec<&str> = Vec::new();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for item in items {
        let id = text(&item["call_id"]);
        match kind(item) {
            "function_call" => {
                if !known.insert(id) {
                    found.push(format!("Duplicate function call with call_id {id}."));
                }
                open.push(id);
            }
            "function_call_output" => match open.iter().position(|open| *open == id) {
                Some(answered) => {
                    open.remove(answered);
                }
                None => found.push(format!("No tool call found for function call output with call_id {id}.")),
            },
            _ => {}
        }
    }
    found.extend(open.iter().map(|id| format!("No tool output found for function call {id}.")));
}
