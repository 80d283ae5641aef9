//! Validation rules of Anthropic's Messages API. Signatures of thinking are not verified: only their issuer
//! can do that.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{is_name, list, services, text};

/// Maximum characters of a tool name.
const NAME_MAX: usize = 128;

/// Maximum cache marks per request.
const MARKS_MAX: usize = 4;

/// A content block and the index of its message. A plain string counts as one block.
struct Block<'a> {
    message: usize,
    at: usize,
    value: &'a Value,
}

impl<'a> Block<'a> {
    fn kind(&self) -> &'a str {
        if self.value.is_string() { "text" } else { text(&self.value["type"]) }
    }

    fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_else(|| text(&self.value["text"]))
    }
}

/// A turn: the API merges adjacent messages of a role.
struct Turn<'a> {
    role: &'a str,
    blocks: Vec<Block<'a>>,
}

/// Why the body would be rejected.
pub fn problems(body: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let messages = list(&body["messages"]);
    if messages.is_empty() {
        return vec!["messages: at least one message is required".into()];
    }
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = text(&message["role"]);
        if !matches!(role, "user" | "assistant") {
            found.push(format!("messages.{at}.role: Input should be 'user' or 'assistant'"));
            continue;
        }
        let blocks = blocks(at, &message["content"], &mut found);
        match turns.last_mut() {
            Some(turn) if turn.role == role => turn.blocks.extend(blocks),
            Some(_) | None => turns.push(Turn { role, blocks }),
        }
    }
    content(&turns, &mut found);
    order(body, &turns, &mut found);
    pairs(&turns, &mut found);
    searches(&turns, &mut found);
    budget(body, &turns, &mut found);
    around(body, &turns, &mut found);
    found
}

fn blocks<'a>(message: usize, content: &'a Value, found: &mut Vec<String>) -> Vec<Block<'a>> {
    match content {
        Value::String(_) => vec![Block { message, at: 0, value: content }],
        Value::Array(blocks) if !blocks.is_empty() => {
            blocks.iter().enumerate().map(|(at, value)| Block { message, at, value }).collect()
        }
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            found.push(format!("messages.{message}: all messages must have non-empty content"));
            Vec::new()
        }
    }
}

const EMPTY_TEXT: &str = "messages: text content blocks must be non-empty";

fn content(turns: &[Turn<'_>], found: &mut Vec<String>) {
    let mut ids = BTreeSet::new();
    for turn in turns {
        for block in &turn.blocks {
            let Block { message, at, value } = block;
            let place = format!("messages.{message}.content.{at}");
            let kind = block.kind();
            match (turn.role, kind) {
                (_, "text") => {
                    if block.text().trim().is_empty() {
                        found.push(EMPTY_TEXT.into());
                    }
                }
                ("assistant", "tool_use") => {
                    let id = text(&value["id"]);
                    if !is_name(id, usize::MAX) {
                        found.push(format!(
                            "{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
                        ));
                    }
                    if !ids.insert(id) {
                        found.push(format!("{place}: `tool_use` ids must be unique"));
                    }
                    if !value["input"].is_object() {
                        found.push(format!("{place}.tool_use.input: Input should be a valid dictionary"));
                    }
                }
                ("user", "tool_result") => {
                    let parts = list(&value["content"]);
                    let is_empty =
                        |part: &&Value| part["type"] == "text" && text(&part["text"]).trim().is_empty();
                    if parts.iter().any(|part| is_empty(&part)) {
                        found.push(EMPTY_TEXT.into());
                    }
                }
                ("assistant", "thinking") => {
                    if text(&value["signature"]).is_empty() {
                        found.push(format!("{place}.thinking.signature: Field required"));
                    }
                }
                (_, "compaction") => {
                    if (*message, *at) != (0, 0) {
                        found.push(COMPACTION_MISPLACED.into());
                    }
                }
                ("assistant", "server_tool_use") => {
                    if text(&value["id"]).is_empty() || !value["input"].is_object() {
                        found.push(format!("{place}.server_tool_use: Field required"));
                    }
                }
                ("assistant", "web_search_tool_result") => {
                    let is_sealed = |page: &Value| !text(&page["encrypted_content"]).is_empty();
                    if !list(&value["content"]).iter().all(is_sealed) {
                        found.push(format!("{place}.web_search_tool_result.content: Field required"));
                    }
                }
                ("assistant", "redacted_thinking") | ("user", "image" | "document") => {}
                ("user", "tool_use" | "thinking" | "redacted_thinking") => {
                    found.push(format!("{place}: `{kind}` blocks can only be in `assistant` messages"));
                }
                ("assistant", "tool_result" | "image" | "document") => {
                    found.push(format!("{place}: `{kind}` blocks can only be in `user` messages"));
                }
                (_, _) => found.push(format!(
                    "{place}: Input tag '{kind}' found does not match any of the expected tags"
                )),
            }
        }
    }
}

/// The service's wording.
const COMPACTION_MISPLACED: &str = "The `compaction` block must be the first block of the conversation.";

fn order(body: &Value, turns: &[Turn<'_>], found: &mut Vec<String>) {
    let begins_short =
        |turn: &Turn<'_>| turn.blocks.first().is_some_and(|block| block.kind() == "compaction");
    if turns.first().is_some_and(|turn| turn.role != "user" && !begins_short(turn)) {
        found.push("messages: first message must use the \"user\" role".into());
    }
    for turn in turns.iter().filter(|turn| turn.role == "assistant") {
        if let Some(last) = turn.blocks.last().filter(|block| block.kind().ends_with("thinking")) {
            found.push(format!(
                "messages.{}: The final block in an assistant message cannot be `thinking`.",
                last.message
            ));
        }
    }
    // A paused search goes on. The model doesn't reply to a request for a compaction.
    let goes_on = |turn: &Turn<'_>| turn.blocks.last().is_some_and(|block| is_of_search(block.kind()));
    if body["compaction"].is_null()
        && turns.last().is_some_and(|turn| turn.role == "assistant" && !goes_on(turn))
    {
        found.push(
            "This model does not support assistant message prefill. The conversation must end with a user \
             message."
                .into(),
        );
    }
}

fn is_of_search(kind: &str) -> bool {
    matches!(kind, "server_tool_use" | "web_search_tool_result")
}

/// Each search must have its result in the same turn, unless the model still runs it.
fn searches(turns: &[Turn<'_>], found: &mut Vec<String>) {
    for (at, turn) in turns.iter().enumerate() {
        let called = ids(Some(turn), "server_tool_use", "id");
        let answered = ids(Some(turn), "web_search_tool_result", "tool_use_id");
        for id in answered.iter().filter(|id| !called.contains(id)) {
            found.push(format!(
                "unexpected `tool_use_id` found in `web_search_tool_result` blocks: {id}. Each block must have a \
                 corresponding `server_tool_use` block before it."
            ));
        }
        let is_last = at + 1 == turns.len();
        for id in called.iter().filter(|id| !is_last && !answered.contains(id)) {
            found.push(format!(
                "`web_search` tool use with id `{id}` was found without a corresponding `web_search_tool_result` block"
            ));
        }
    }
}

fn ids<'a>(turn: Option<&Turn<'a>>, kind: &str, field: &str) -> Vec<&'a str> {
    let blocks = turn.map_or(&[][..], |turn| turn.blocks.as_slice()).iter();
    blocks
        .filter(|block| block.kind() == kind)
        .map(|block| block.value[field].as_str().unwrap_or_default())
        .collect()
}

fn pairs(turns: &[Turn<'_>], found: &mut Vec<String>) {
    for (at, turn) in turns.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| turns.get(at));
        let asked = ids(before, "tool_use", "id");
        let mut answered = BTreeSet::new();
        let mut in_front = true;
        for block in &turn.blocks {
            if block.kind() != "tool_result" {
                in_front = false;
                continue;
            }
            let id = text(&block.value["tool_use_id"]);
            let place = format!("messages.{}.content.{}", block.message, block.at);
            if !asked.contains(&id) {
                found.push(format!(
                    "{place}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each \
                     `tool_result` block must have a corresponding `tool_use` block in the previous message."
                ));
            } else if in_front && !answered.insert(id) {
                found.push(format!(
                    "{place}: each `tool_use` must have a single result. Found multiple `tool_result` \
                     blocks with id: {id}"
                ));
            }
        }
        let missing: Vec<&str> = asked.into_iter().filter(|id| !answered.contains(id)).collect();
        if !missing.is_empty() {
            found.push(unanswered(before, &missing));
        }
    }
    let open = ids(turns.last(), "tool_use", "id");
    if !open.is_empty() {
        found.push(unanswered(turns.last(), &open));
    }
}

fn unanswered(turn: Option<&Turn<'_>>, ids: &[&str]) -> String {
    let message = turn.and_then(|turn| turn.blocks.last()).map_or(0, |block| block.message);
    format!(
        "messages.{message}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. \
         Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        ids.join(", ")
    )
}

/// Budgeted thinking can only continue after tool results if the reply began with thinking.
fn budget(body: &Value, turns: &[Turn<'_>], found: &mut Vec<String>) {
    let thinking = &body["thinking"];
    if thinking["type"] != "enabled" {
        return;
    }
    let budget = thinking["budget_tokens"].as_u64().unwrap_or(0);
    if budget < 1024 {
        found.push("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024".into());
    }
    if body["max_tokens"].as_u64().is_some_and(|max| max <= budget) {
        found.push("`max_tokens` must be greater than `thinking.budget_tokens`.".into());
    }
    let [.., reply, results] = turns else { return };
    let goes_on = results.blocks.iter().any(|block| block.kind() == "tool_result");
    let first = reply.blocks.first().map_or("", Block::kind);
    if goes_on && !matches!(first, "thinking" | "redacted_thinking") {
        found.push(format!(
            "Expected `thinking` or `redacted_thinking`, but found `{first}`. When `thinking` is enabled, a \
             final `assistant` message must start with a thinking block (preceeding the lastmost set of \
             `tool_use` and `tool_result` blocks)."
        ));
    }
}

fn around(body: &Value, turns: &[Turn<'_>], found: &mut Vec<String>) {
    let system = list(&body["system"]);
    if system.iter().any(|block| text(&block["text"]).is_empty()) {
        found.push("system: text content blocks must be non-empty".into());
    }
    let tools = list(&body["tools"]);
    let mut names = BTreeSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let name = text(&tool["name"]);
        if !is_name(name, NAME_MAX) {
            found.push(format!(
                "tools.{at}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
            ));
        }
        let is_hosted = text(&tool["type"]).starts_with("web_search_");
        if !is_hosted && tool["input_schema"]["type"] != "object" {
            found.push(format!("tools.{at}.custom.input_schema.type: Input should be 'object'"));
        }
        if services::alternatives_at_root(&tool["input_schema"]) {
            found.push(format!(
                "tools.{at}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
            ));
        }
        let keys = tool["input_schema"]["properties"].as_object().into_iter().flat_map(|all| all.keys());
        let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if keys.into_iter().any(|key| !(1..=64).contains(&key.len()) || !key.chars().all(is_known)) {
            found.push(format!(
                "tools.{at}.custom.input_schema.properties: Property keys should match pattern \
                 '^[a-zA-Z0-9_.-]{{1,64}}$'"
            ));
        }
        if !names.insert(name) {
            found.push("tools: Tool names must be unique.".into());
        }
    }
    let said = turns.iter().flat_map(|turn| &turn.blocks).map(|block| block.value);
    let marked = tools.iter().chain(system).chain(said).chain(std::iter::once(body));
    let marks = marked.filter(|value| !value["cache_control"].is_null()).count();
    if marks > MARKS_MAX {
        found.push(format!(
            "A maximum of {MARKS_MAX} blocks with cache_control may be provided. Found {marks}."
        ));
    }
}
