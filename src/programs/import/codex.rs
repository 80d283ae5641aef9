//! Sessions of Codex ("rollouts"): JSON lines with a `type` and a `payload`. The `response_item` lines contain the
//! model's input and output; most `event_msg` lines repeat them for the screen.
//!
//! A `compacted` line replaces everything before it: with the items of its `replacement_history`, or in older
//! versions with the user's messages and a summary. A summary that the service encrypted is readable only for Codex.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::builder::Builder;
use super::{
    ImportContext, arguments, begins_with, contents, joined_text, list, text, text_of, thinking_part, time,
    token_counts,
};
use epitome_thread::{Content, OutcomeStatus, StopReason, Trigger, Usage};
use epitome_transfer::{ENCRYPTED, ImportFile};

/// The author of messages that the user did not type.
const BY: &str = "Codex";

/// Maximum bytes of user messages that older versions keep in addition to a summary.
const KEPT_BYTES_MAX: usize = 80_000;

/// Prefixes of user messages that Codex adds before each turn: its environment and the project's instructions.
/// Epitome adds its equivalents.
const SCAFFOLDING: [&str; 6] = [
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<permissions instructions>",
    "<collaboration_mode>",
    "<turn_aborted>",
];

/// Prefixes of user messages for the model that the user did not type as a prompt.
const NOT_TYPED: [&str; 4] = ["<user_shell_command>", "<subagent_notification>", "<skill>", "<hook_prompt"];

/// The first line that Codex's extensions for editors write above a prompt, and the last one.
const EDITOR: &str = "# Context from my IDE setup:";
const REQUEST: &str = "## My request for Codex:\n";

/// Starts of the results of calls that the user, a rule or a reviewer rejected.
const REJECTED: [&str; 3] = ["exec command rejected", "patch rejected", "This action was rejected"];

/// The same in the error of a script, after the call.
const REJECTED_IN_SCRIPT: &str = "Rejected(";

/// Start of the result of a script that ended with an error.
const SCRIPT_FAILED: &str = "Script failed\n";

/// Whether this is the first line of a rollout from before lines had types.
pub(super) fn is_old_header(value: &Value) -> bool {
    value["type"].is_null() && value["id"].is_string() && value.get("instructions").is_some()
}

pub(super) fn read(lines: Vec<Value>, _: ImportFile, context: &ImportContext) -> Builder {
    let lines: Vec<Value> = lines.into_iter().map(in_envelope).collect();
    let (lines, rolled_back) = without_rolled_back(&lines);
    let meta = lines.iter().find(|line| line["type"] == "session_meta").copied().unwrap_or(&Value::Null);
    let cwd = lines.iter().find_map(|line| text_of(&line["payload"]["cwd"]));
    let mut reader = CodexReader {
        log: Builder::new(cwd, time(meta), context),
        provider: meta["payload"]["model_provider"].as_str(),
        exit_codes: HashMap::new(),
        total_tokens: None,
        context_tokens: 0,
        prompts: Vec::new(),
    };
    reader.chosen(None);
    reader.log.left_out_times(rolled_back, "turns that were undone");
    for line in &lines {
        reader.log.at(time(line));
        reader.line(line);
    }
    let mut log = reader.log;
    log.settle();
    log.foreign_id(meta["payload"]["id"].as_str().unwrap_or_default());
    log
}

/// Converts a line to the form of newer versions.
fn in_envelope(line: Value) -> Value {
    let kind = match () {
        () if line["payload"].is_object() => return line,
        () if is_old_header(&line) => "session_meta",
        () if line["record_type"].is_string() => "state",
        () => "response_item",
    };
    json!({ "timestamp": line["timestamp"], "type": kind, "payload": line })
}

/// Returns the lines without the turns that the user rolled back, and the number of these turns.
fn without_rolled_back(lines: &[Value]) -> (Vec<&Value>, usize) {
    let mut kept: Vec<&Value> = Vec::new();
    // The positions of the prompts among them.
    let mut prompts: Vec<usize> = Vec::new();
    let mut count = 0;
    for line in lines {
        let payload = &line["payload"];
        if payload["type"] != "thread_rolled_back" {
            if prompt_of(payload).is_some() {
                prompts.push(kept.len());
            }
            kept.push(line);
            continue;
        }
        let turns = payload["num_turns"].as_u64().unwrap_or_default();
        let turns = usize::try_from(turns).unwrap_or(usize::MAX).min(prompts.len());
        if let Some(first) = prompts.drain(prompts.len() - turns..).next() {
            kept.truncate(first);
        }
        count += turns;
    }
    (kept, count)
}

/// Returns the user's prompt, if the item is one.
fn prompt_of(item: &Value) -> Option<Vec<Content>> {
    if item["type"] != "message" || item["role"] != "user" {
        return None;
    }
    let mut content = contents(&item["content"]);
    content.retain(|part| !begins_with(part, &SCAFFOLDING) && !begins_with(part, &NOT_TYPED));
    for part in &mut content {
        if let Content::Text { text } = part
            && text.starts_with(EDITOR)
            && let Some((_, typed)) = text.split_once(REQUEST)
        {
            *text = typed.trim().to_owned();
        }
    }
    (!content.is_empty()).then_some(content)
}

struct CodexReader<'a> {
    log: Builder,
    provider: Option<&'a str>,
    /// Exit codes of commands, by call.
    exit_codes: HashMap<String, i64>,
    /// The session's total tokens, as last reported.
    total_tokens: Option<u64>,
    /// The tokens of the last request and its reply, as reported.
    context_tokens: u64,
    /// The user's messages so far.
    prompts: Vec<String>,
}

impl CodexReader<'_> {
    fn chosen(&mut self, model: Option<&str>) {
        self.log.model(format!("{}/{}", self.provider.unwrap_or("openai"), model.unwrap_or("unknown")));
    }

    fn line(&mut self, line: &Value) {
        let payload = &line["payload"];
        match line["type"].as_str().unwrap_or_default() {
            "turn_context" => {
                if let Some(model) = payload["model"].as_str() {
                    self.log.replied(None, None);
                    self.chosen(Some(model));
                }
            }
            "response_item" => self.item(payload),
            "compacted" => self.compaction(payload),
            "event_msg" => self.event(payload),
            "session_meta"
            | "state"
            | "world_state"
            | "token_usage_record"
            | "inter_agent_communication_metadata" => {}
            kind => self.log.left_out(&format!("lines of the type {kind:?}")),
        }
    }

    fn item(&mut self, item: &Value) {
        let call = if item["call_id"].is_string() { &item["call_id"] } else { &item["id"] };
        match item["type"].as_str().unwrap_or_default() {
            "message" => self.message(item),
            "reasoning" => {
                self.log.add(list(&item["summary"]).filter_map(|part| thinking_part(&part["text"])));
            }
            "function_call" => self.log.call(call, &item["name"], &arguments(&item["arguments"])),
            "custom_tool_call" => self.log.call(call, &item["name"], &json!({ "input": item["input"] })),
            "local_shell_call" => self.log.call(call, &json!("local_shell"), &item["action"]),
            "function_call_output" | "custom_tool_call_output" => {
                self.output(call.as_str().unwrap_or_default(), &item["output"]);
            }
            "web_search_call" => self.log.left_out("web searches, whose results are not in the file"),
            // What a subagent reports while the agent goes on.
            "agent_message" => {
                let content = contents(&item["content"]);
                self.log.later(|log| log.context(content, BY));
                self.log.settle_when_idle();
            }
            "ghost_snapshot" => {}
            kind => self.log.left_out(&format!("items of the type {kind:?}")),
        }
    }

    fn message(&mut self, message: &Value) {
        match message["role"].as_str() {
            Some("assistant") => self.log.add(contents(&message["content"])),
            Some("user") => {
                self.log.settle();
                for part in contents(&message["content"]) {
                    if begins_with(&part, &NOT_TYPED) {
                        self.log.context(vec![part], BY);
                    }
                }
                if let Some(content) = prompt_of(message) {
                    self.prompts.push(joined_text(&content));
                    self.log.prompt(content);
                }
            }
            // Messages from Codex to the model about itself.
            Some(_) | None => {}
        }
    }

    fn output(&mut self, call: &str, output: &Value) {
        let output = match output {
            Value::Object(fields) => {
                fields.get("content_items").or_else(|| fields.get("content")).unwrap_or(output)
            }
            output => output,
        };
        // Older versions write a command's result as JSON within the text.
        let inner: Value =
            output.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let content = match inner["output"].as_str() {
            Some(printed) if inner["metadata"].is_object() => vec![text(printed)],
            Some(_) | None => contents(output),
        };
        let words = joined_text(&content);
        let recorded = inner["metadata"]["exit_code"].as_i64().or_else(|| exit_code(&words));
        let failed = self.exit_codes.remove(call).or(recorded).is_some_and(|code| code != 0);
        let status = match () {
            () if REJECTED.iter().any(|begin| words.starts_with(begin)) => OutcomeStatus::Denied,
            () if words.starts_with(SCRIPT_FAILED) && words.contains(REJECTED_IN_SCRIPT) => {
                OutcomeStatus::Denied
            }
            () if failed || words.starts_with(SCRIPT_FAILED) => OutcomeStatus::Failed,
            () => OutcomeStatus::Completed,
        };
        self.log.outcome(Some(call), status, content, None);
        self.log.settle_when_idle();
    }

    fn event(&mut self, event: &Value) {
        match event["type"].as_str() {
            Some("exec_command_end") => {
                if let (Some(call), Some(code)) = (event["call_id"].as_str(), event["exit_code"].as_i64()) {
                    self.exit_codes.insert(call.to_owned(), code);
                }
            }
            Some("token_count") => {
                // The same numbers are often reported twice.
                let total = event["info"]["total_token_usage"]["total_tokens"].as_u64();
                if let Some(usage) = usage(&event["info"]["last_token_usage"])
                    && total != self.total_tokens
                {
                    self.total_tokens = total;
                    self.context_tokens = usage.input + usage.output;
                    self.log.spent(&usage);
                }
            }
            Some("task_started" | "task_complete") => self.log.replied(None, None),
            Some("turn_aborted") => self.log.turn_ended(StopReason::Cancelled),
            Some("thread_name_updated") => {
                self.log.title(event["thread_name"].as_str().unwrap_or_default());
            }
            Some(_) | None => {}
        }
    }

    fn compaction(&mut self, compacted: &Value) {
        // The reply that contains the summary is recorded before it.
        let reply = self.log.take_reply();
        let words = joined_text(&reply);
        let is_summary = compacted["message"].as_str().is_some_and(|message| message.ends_with(&words));
        if words.is_empty() || !is_summary {
            self.log.add(reply);
        }
        let items = compacted["replacement_history"].as_array().filter(|items| !items.is_empty());
        let kept: Vec<String> = match items {
            Some(items) => items.iter().filter_map(kept_item).collect(),
            None => {
                let mut left = KEPT_BYTES_MAX;
                let mut kept: Vec<String> = Vec::new();
                for words in self.prompts.iter().rev() {
                    let Some(rest) = left.checked_sub(words.len()) else { break };
                    left = rest;
                    kept.push(format!("The user said:\n{words}"));
                }
                kept.reverse();
                kept.extend(text_of(&compacted["message"]).map(str::to_owned));
                kept
            }
        };
        let summary = format!("What Codex kept of the conversation so far:\n\n{}", kept.join("\n\n"));
        self.log.compacted(None, summary, Trigger::Threshold, self.context_tokens);
    }
}

/// Formats an item that is kept after a compaction as text.
fn kept_item(item: &Value) -> Option<String> {
    let words = || joined_text(&contents(&item["content"]));
    match (item["type"].as_str(), item["role"].as_str()) {
        (Some("message"), Some("user")) => {
            prompt_of(item).map(|content| format!("The user said:\n{}", joined_text(&content)))
        }
        (Some("message"), Some("assistant")) => Some(format!("The agent said:\n{}", words())),
        (Some("compaction" | "compaction_summary" | "context_compaction"), _) => Some(ENCRYPTED.to_owned()),
        _ => None,
    }
}

/// Returns the exit code of a command from the first lines of the text for the model.
fn exit_code(output: &str) -> Option<i64> {
    const HEAD_LINES: usize = 6;
    let code = output.lines().take(HEAD_LINES).find_map(|line| {
        ["Exit code: ", "Process exited with code "].iter().find_map(|head| line.strip_prefix(head))
    });
    code?.trim().parse().ok()
}

fn usage(value: &Value) -> Option<Usage> {
    let names = ["input_tokens", "output_tokens", "cached_input_tokens", "", "reasoning_output_tokens"];
    token_counts(value, names)
}
