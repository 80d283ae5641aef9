//! Validation rules of Gemini. Signatures are not verified: only their issuer can do that.

use serde_json::Value;

use super::{is_name, list, text};
use epitome_provider::abilities::is_before_gemini_3;

/// Maximum characters of a function name.
const NAME_MAX: usize = 128;

/// The possible data fields of a part, which must have exactly one.
const DATA: [&str; 7] =
    ["text", "inlineData", "fileData", "functionCall", "functionResponse", "toolCall", "toolResponse"];

struct Content<'a> {
    role: &'a str,
    parts: &'a [Value],
    calls: Vec<&'a Value>,
    responses: Vec<&'a Value>,
}

/// Why the body would be rejected.
pub fn problems(model: &str, body: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let contents: Vec<Content<'_>> = list(&body["contents"])
        .iter()
        .map(|content| Content {
            role: content["role"].as_str().unwrap_or("user"),
            parts: list(&content["parts"]),
            calls: of(content, "functionCall"),
            responses: of(content, "functionResponse"),
        })
        .collect();
    if contents.is_empty() {
        return vec!["* GenerateContentRequest.contents: contents is not specified".into()];
    }
    shapes(&contents, &mut found);
    pairs(&contents, &mut found);
    if !is_before_gemini_3(model) {
        signatures(&contents, &mut found);
    }
    searches(model, body, &contents, &mut found);
    let declared = list(&body["tools"]).iter().flat_map(|tool| list(&tool["functionDeclarations"]));
    for (at, function) in declared.enumerate() {
        let name = text(&function["name"]);
        if !is_name(name, NAME_MAX) {
            found.push(format!(
                "* GenerateContentRequest.tools[0].function_declarations[{at}].name: Invalid function name."
            ));
        }
        let (schema, subset) = (&function["parametersJsonSchema"], &function["parameters"]);
        let is_defined =
            |name: &Value| name.as_str().is_some_and(|name| !schema["properties"][name].is_null());
        if !list(&schema["required"]).iter().all(is_defined) {
            found.push(format!(
                "* GenerateContentRequest.tools[0].function_declarations[{at}].parameters.required[0]: property is not \
                 defined"
            ));
        }
        if !schema.is_null() && !subset.is_null() {
            found.push(format!("parameters and parametersJsonSchema are both set for function {name}."));
        }
    }
    found
}

/// Tools of the service can only be used together with functions since Gemini 3, if the request says that it takes
/// their parts.
fn searches(model: &str, body: &Value, contents: &[Content<'_>], found: &mut Vec<String>) {
    let has = |name: &str| list(&body["tools"]).iter().any(|tool| !tool[name].is_null());
    let mut parts = contents.iter().flat_map(|content| content.parts);
    let takes_parts = body["toolConfig"]["includeServerSideToolInvocations"] == true;
    if has("googleSearch") && has("functionDeclarations") {
        if is_before_gemini_3(model) {
            found.push("Tool use with function calling is unsupported by the model.".into());
        } else if !takes_parts {
            found.push(
                "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with \
                 Function calling."
                    .into(),
            );
        }
    }
    let ids = |name: &str| -> Vec<&Value> {
        contents.iter().flat_map(|content| content.parts).filter_map(|part| part[name].get("id")).collect()
    };
    if ids("toolCall") != ids("toolResponse") {
        found.push("Please ensure that every tool call is followed by its tool response.".into());
    }
    if parts.any(|part| !part["toolCall"].is_null() && text(&part["thoughtSignature"]).is_empty()) {
        found.push("A toolCall part is missing its thought_signature.".into());
    }
}

fn of<'a>(content: &'a Value, field: &str) -> Vec<&'a Value> {
    list(&content["parts"]).iter().map(|part| &part[field]).filter(|data| !data.is_null()).collect()
}

fn shapes(contents: &[Content<'_>], found: &mut Vec<String>) {
    for (at, content) in contents.iter().enumerate() {
        let place = format!("* GenerateContentRequest.contents[{at}].parts");
        if !matches!(content.role, "user" | "model") {
            found.push("Please use a valid role: user, model.".into());
        }
        if content.parts.is_empty() {
            found.push(format!("{place}: contents.parts must not be empty."));
        }
        for (at, part) in content.parts.iter().enumerate() {
            match DATA.iter().filter(|field| !part[**field].is_null()).count() {
                1 => {}
                0 => found.push(format!(
                    "{place}[{at}].data: required oneof field 'data' must have one initialized field"
                )),
                _ => found
                    .push(format!("Invalid value at 'contents.parts[{at}]' (oneof), 'data' is set twice.")),
            }
            let function = part.get("functionCall").or(part.get("functionResponse"));
            if function.is_some_and(|function| text(&function["name"]).is_empty()) {
                found.push(format!("{place}[{at}].function.name: Name cannot be empty."));
            }
            if part.get("functionResponse").is_some_and(|response| !response["response"].is_object()) {
                found.push(format!("Invalid value at 'contents.parts[{at}].function_response.response'."));
            }
        }
    }
    if contents.last().is_some_and(|content| content.role == "model") {
        found.push(
            "Please ensure that multiturn requests ends with a user role or a function response.".into(),
        );
    }
}

fn pairs(contents: &[Content<'_>], found: &mut Vec<String>) {
    let nothing = Content { role: "", parts: &[], calls: Vec::new(), responses: Vec::new() };
    for (at, content) in contents.iter().enumerate() {
        let before = at.checked_sub(1).map_or(&nothing, |at| &contents[at]);
        if !content.calls.is_empty() && (content.role != "model" || before.role != "user") {
            found.push(
                "Please ensure that function call turn comes immediately after a user turn or after a \
                 function response turn."
                    .into(),
            );
        }
        if !content.responses.is_empty() && before.calls.is_empty() {
            found.push(
                "Please ensure that function response turn comes immediately after a function call turn."
                    .into(),
            );
        }
        if !before.calls.is_empty() {
            answered(&before.calls, &content.responses, found);
        }
    }
    if let Some(Content { calls, .. }) = contents.last()
        && !calls.is_empty()
    {
        found.push(COUNTS.into());
    }
}

const COUNTS: &str = "Please ensure that the number of function response parts is equal to the number of \
                      function call parts of the function call turn.";

fn answered(calls: &[&Value], responses: &[&Value], found: &mut Vec<String>) {
    if calls.len() != responses.len() {
        found.push(COUNTS.into());
        return;
    }
    let sorted = |all: &[&Value], field: &str| {
        let mut all: Vec<String> = all.iter().map(|one| text(&one[field]).to_owned()).collect();
        all.sort_unstable();
        all
    };
    let with_ids = calls.iter().chain(responses).all(|one| one["id"].is_string());
    let ids_differ = with_ids && sorted(calls, "id") != sorted(responses, "id");
    if sorted(calls, "name") != sorted(responses, "name") || ids_differ {
        found.push(
            "Please ensure that function response names and ids match the function calls of the function \
             call turn."
                .into(),
        );
    }
}

/// Since the user's last message, the first call of each step must have a signature.
fn signatures(contents: &[Content<'_>], found: &mut Vec<String>) {
    let is_prompt = |content: &Content<'_>| content.role == "user" && content.responses.is_empty();
    let from = contents.iter().rposition(is_prompt).unwrap_or(0);
    for (at, content) in contents.iter().enumerate().skip(from) {
        let first = content.parts.iter().find(|part| !part["functionCall"].is_null());
        let Some(call) = first.filter(|part| text(&part["thoughtSignature"]).is_empty()) else { continue };
        let name = text(&call["functionCall"]["name"]);
        found.push(format!(
            "Function call is missing a thought_signature in functionCall parts. This is required for tools \
             to work correctly, and missing thought_signature may lead to degraded model performance. \
             Additional data, function call `default_api:{name}` , position {}.",
            at + 1
        ));
    }
}
