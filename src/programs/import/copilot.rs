//! Sessions of Copilot CLI: JSON lines of events, in `events.jsonl` in the session's directory.
//!
//! - A reply may be split over several events of one model call, before the results of its calls.
//! - A compaction may run while the conversation continues: messages after its start are kept.
//! - `session.snapshot_rewind` removes events.
//! - Messages of subagents contain their id; in the session, their result is the result of a call.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::Value;

use super::builder::Builder;
use super::{
    ImportContext, file_part, list, model_name, ran, text, text_of, text_part, thinking_part, time,
    token_counts, trigger_of,
};
use epitome_thread::{Content, OutcomeStatus, Seq, StopReason, Trigger, Usage};
use epitome_transfer::ImportFile;

/// The author of messages that Copilot CLI added.
const BY: &str = "Copilot CLI";

/// Precedes the exit code, at the end of a shell tool's result.
const EXIT_CODE: &str = "with exit code ";

/// Prefixes of the types of events whose text is not part of the conversation, unless handled explicitly.
const SILENT: [&str; 5] = ["assistant.", "hook.", "skill.", "system.", "tool."];

pub(super) fn read(events: Vec<Value>, _: ImportFile, context: &ImportContext) -> Builder {
    let (events, rewound) = without_rewound(events);
    let start = events.iter().find(|event| event["type"] == "session.start").unwrap_or(&Value::Null);
    let workspace = workspace(context);
    let field = |name: &str| workspace.get(name).map(String::as_str);
    let cwd = start["data"]["context"]["cwd"].as_str().or(field("cwd"));
    let mut reader = CopilotReader {
        log: Builder::new(cwd, time(start), context),
        model: None,
        call: None,
        usages: HashMap::new(),
        assets: HashMap::new(),
        known: HashSet::new(),
        asked: HashMap::new(),
        compaction: None,
    };
    for event in &events {
        reader.event(event);
    }
    reader.flush();
    let mut log = reader.log;
    log.settle();
    log.left_out_times(rewound, "events that were undone");
    let name = field("name").filter(|_| field("user_named") == Some("true"));
    log.title(name.or(field("summary")).unwrap_or_default());
    log.foreign_id(start["data"]["sessionId"].as_str().unwrap_or_default());
    log
}

/// Returns the events without the rewound ones, and the number of the latter.
fn without_rewound(events: Vec<Value>) -> (Vec<Value>, usize) {
    let mut kept: Vec<Value> = Vec::new();
    let mut rewound = 0;
    for event in events {
        if event["type"] != "session.snapshot_rewind" {
            kept.push(event);
            continue;
        }
        let (before, rewind) = (kept.len(), &event["data"]);
        if let Some(ids) = rewind["eventIds"].as_array() {
            let listed: HashSet<&str> = ids.iter().filter_map(Value::as_str).collect();
            kept.retain(|event| event["id"].as_str().is_none_or(|id| !listed.contains(id)));
        } else if let Some(first) = kept.iter().rposition(|event| event["id"] == rewind["upToEventId"]) {
            kept.truncate(first);
        }
        rewound += before - kept.len();
    }
    (kept, rewound)
}

/// The fields of a session's `workspace.yaml`, which all are scalars. Their values may go on in indented lines.
fn workspace(context: &ImportContext) -> HashMap<String, String> {
    let text = (context.read_sibling)(Path::new("workspace.yaml")).unwrap_or_default();
    let mut fields: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        let (is_indented, line) = (line.starts_with(' '), line.trim());
        match (line.split_once(':'), fields.last_mut()) {
            (_, Some((_, value))) if is_indented => *value = format!("{value} {line}"),
            (Some((name, value)), _) => fields.push((name, value.trim().to_owned())),
            (None, _) => {}
        }
    }
    let fields = fields.into_iter().rev().map(|(name, value)| (name.to_owned(), scalar(&value)));
    fields.filter(|(_, value)| !matches!(value.as_str(), "" | "null" | "~")).collect()
}

/// The text of a scalar of YAML, in one line.
fn scalar(value: &str) -> String {
    let within = |quote| value.strip_prefix(quote).and_then(|rest: &str| rest.strip_suffix(quote));
    match (within('"'), within('\''), value.strip_prefix(['|', '>'])) {
        (Some(inner), _, _) => serde_json::from_str(value).unwrap_or_else(|_| inner.to_owned()),
        (_, Some(inner), _) => inner.replace("''", "'"),
        (_, _, Some(block)) => block.trim_start_matches(['-', '+']).trim().to_owned(),
        (None, None, None) => value.to_owned(),
    }
}

struct CopilotReader {
    log: Builder,
    /// The most recently selected model.
    model: Option<String>,
    /// The model call that the current reply is from.
    call: Option<String>,
    /// Usage, by model call.
    usages: HashMap<String, Usage>,
    /// Images and other assets, `(type, data)`, by the id used in messages.
    assets: HashMap<String, (String, String)>,
    /// Calls announced by a reply or by their start event.
    known: HashSet<String>,
    /// Commands that the user ran outside of the conversation, by call.
    asked: HashMap<String, String>,
    /// The running compaction: the next entry at its start, its trigger, and the number of tokens.
    compaction: Option<(Seq, Trigger, u64)>,
}

impl CopilotReader {
    fn event(&mut self, event: &Value) {
        let data = &event["data"];
        let is_of_subagent = event["agentId"].is_string() || data["parentToolCallId"].is_string();
        self.log.at(time(event));
        match event["type"].as_str() {
            Some("user.message" | "assistant.message") if is_of_subagent => {
                self.log.left_out("messages of subagents");
            }
            Some(
                "tool.execution_start"
                | "tool.execution_complete"
                | "tool.user_requested"
                | "session.error"
                | "abort",
            ) if is_of_subagent => {}
            Some("tool.execution_start") => self.started(data),
            Some("session.start" | "session.resume") => self.chosen(&data["selectedModel"]),
            Some("session.model_change") => self.chosen(&data["newModel"]),
            Some("session.usage_record") => {
                let call = data["usage"]["apiCallId"].as_str();
                if let (Some(call), Some(usage)) = (call, usage(&data["usage"])) {
                    self.usages.insert(call.to_owned(), usage);
                }
            }
            Some("session.binary_asset") => {
                let field = |name: &str| data[name].as_str().map(str::to_owned);
                if let (Some(id), Some(mime), Some(data)) =
                    (field("assetId"), field("mimeType"), field("data"))
                {
                    self.assets.insert(id, (mime, data));
                }
            }
            Some("user.message") => self.prompt(data),
            Some("assistant.message") => self.reply(data),
            Some("tool.user_requested") => {
                let arguments = &data["arguments"];
                let command =
                    arguments["command"].as_str().map_or_else(|| arguments.to_string(), str::to_owned);
                self.asked.insert(data["toolCallId"].as_str().unwrap_or_default().to_owned(), command);
            }
            Some("tool.execution_complete") => self.outcome(data),
            Some("system.notification") => {
                let content = Vec::from_iter(text_part(&data["content"]));
                self.add_when_idle(|log| log.context(content, BY));
            }
            Some("session.compaction_start") => {
                self.flush();
                let tokens = data["currentTokens"].as_u64().unwrap_or_default();
                self.compaction = Some((self.log.next_seq(), trigger_of(&data["trigger"]), tokens));
            }
            Some("session.compaction_complete") => self.compacted(data),
            Some("session.context_cleared") => {
                let what = "commands that cleared what the model sees (what was said before is in it)";
                self.log.left_out(what);
            }
            Some("session.error") => self.ended(StopReason::Failed),
            Some("abort") => self.ended(StopReason::Cancelled),
            Some(other)
                if data["content"].is_string() && !SILENT.iter().any(|kind| other.starts_with(kind)) =>
            {
                self.log.left_out(&format!("events of the type {other:?}"));
            }
            Some(_) => {}
            None => self.log.left_out("events without a type"),
        }
    }

    fn chosen(&mut self, model: &Value) {
        self.model = model.as_str().map(str::to_owned).or(self.model.take());
    }

    fn ended(&mut self, reason: StopReason) {
        self.flush();
        self.log.turn_ended(reason);
        self.log.settle();
    }

    /// Adds an entry as soon as no call is running.
    fn add_when_idle(&mut self, add: impl FnOnce(&mut Builder) + 'static) {
        self.flush();
        self.log.later(add);
        self.log.settle_when_idle();
    }

    fn prompt(&mut self, data: &Value) {
        let mut content = Vec::from_iter(text_part(&data["content"]));
        for attached in list(&data["attachments"]) {
            match self.attachment(attached) {
                Some(part) => content.push(part),
                None => self.log.left_out("attachments of an unknown form"),
            }
        }
        // Messages of skills, other agents and the autopilot also have the user's role.
        let is_typed = data["source"].as_str().is_none_or(|source| source == "user")
            && data["isAutopilotContinuation"] != true;
        self.add_when_idle(move |log| match is_typed {
            true => log.prompt(content),
            false => log.context(content, BY),
        });
    }

    fn attachment(&self, attached: &Value) -> Option<Content> {
        let field = |name: &str| attached[name].as_str().map(str::to_owned);
        let asset = attached["assetId"].as_str().and_then(|id| self.assets.get(id)).cloned();
        let name = field("displayName");
        if let Some((mime_type, data)) = asset.or_else(|| Some((field("mimeType")?, field("data")?))) {
            return file_part(&mime_type, &data, name.as_deref());
        }
        let path = field("path").or_else(|| field("filePath"))?;
        let uri = format!("file://{path}");
        match field("text") {
            Some(text) => Some(Content::Resource { uri, text }),
            None => Some(Content::ResourceLink { uri, name: name.unwrap_or(path) }),
        }
    }

    fn reply(&mut self, data: &Value) {
        let call = data["apiCallId"].as_str().map(str::to_owned);
        if call.is_none() || self.call != call {
            self.flush();
            self.log.settle();
            self.chosen_for(data);
            self.call = call;
        }
        self.log.add(thinking_part(&data["reasoningText"]));
        self.log.add(text_part(&data["content"]));
        for request in list(&data["toolRequests"]) {
            self.call(&request["toolCallId"], &request["name"], &request["arguments"]);
        }
    }

    /// Handles the start of a call that was not announced by its reply, as in older versions.
    fn started(&mut self, data: &Value) {
        let id = data["toolCallId"].as_str().unwrap_or_default();
        if !self.known.contains(id) && !self.asked.contains_key(id) {
            if !self.log.is_replying() {
                self.chosen_for(data);
            }
            self.call(&data["toolCallId"], &data["toolName"], &data["arguments"]);
        }
    }

    /// Sets the model of a reply that begins with these data.
    fn chosen_for(&mut self, data: &Value) {
        let model = data["model"].as_str().or(self.model.as_deref());
        self.log.model(model_name(None, "copilot", model));
    }

    fn call(&mut self, id: &Value, name: &Value, input: &Value) {
        self.known.extend(id.as_str().map(str::to_owned));
        self.log.call(id, name, input);
    }

    /// Completes the current reply.
    fn flush(&mut self) {
        let usage = self.call.take().and_then(|call| self.usages.remove(&call));
        self.log.replied(usage, None);
    }

    fn outcome(&mut self, data: &Value) {
        self.flush();
        let id = data["toolCallId"].as_str().unwrap_or_default();
        let (result, error) = (&data["result"], &data["error"]);
        let words =
            text_of(&result["content"]).or_else(|| text_of(&error["message"])).or_else(|| text_of(error));
        let recorded = data["shellExecution"]["exitCode"].as_i64();
        let code = recorded
            .or_else(|| words?.lines().next_back()?.split_once(EXIT_CODE)?.1.strip_suffix('>')?.parse().ok());
        if let Some(command) = self.asked.remove(id) {
            let ran = ran(&command, words.unwrap_or_default());
            return self.add_when_idle(|log| log.context(vec![ran], BY));
        }
        let status = match (data["success"].as_bool(), error["code"].as_str()) {
            (Some(false), Some("rejected" | "denied")) => OutcomeStatus::Denied,
            (Some(false), _) => OutcomeStatus::Failed,
            (Some(true) | None, _) => OutcomeStatus::Completed,
        };
        let mut content = Vec::from_iter(words.map(text));
        for part in list(&result["binaryResultsForLlm"]) {
            match self.attachment(part) {
                Some(part @ (Content::Image { .. } | Content::Document { .. })) => content.push(part),
                Some(_) | None => self.log.left_out("results of an unknown form"),
            }
        }
        self.log.outcome(Some(id), status, content, code);
        self.log.settle_when_idle();
    }

    fn compacted(&mut self, data: &Value) {
        let started = self.compaction.take();
        let Some(summary) = text_of(&data["summaryContent"]).filter(|_| data["success"] != false) else {
            return self.log.left_out("compactions that failed");
        };
        let (next, trigger, tokens) = started.unwrap_or((self.log.next_seq(), Trigger::Threshold, 0));
        let tokens_before = data["preCompactionTokens"].as_u64().unwrap_or(tokens);
        let summary = summary.to_owned();
        self.add_when_idle(move |log| log.summarized(Some(next), &summary, trigger, tokens_before));
    }
}

fn usage(usage: &Value) -> Option<Usage> {
    let names = ["inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens"];
    token_counts(usage, names)
}
