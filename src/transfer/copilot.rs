//! Sessions of Copilot CLI: JSON lines of events, in `events.jsonl` in the session's folder.
//!
//! - A reply may be split over several events of one model call, before the results of its calls.
//! - A compaction may run while the conversation continues: messages after its start are kept.
//! - `session.snapshot_rewind` removes events.
//! - Messages of subagents carry their id; the session has their result as the result of a call.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::build::{Builder, ForeignCall};
use super::{Circumstances, Draft, File, Source, text, text_of, time};
use epitome_problem::Problem;
use epitome_thread::{Content, OutcomeContent, OutcomeStatus, Seq, StopReason, Trigger, Usage};

/// The author of messages that Copilot CLI added itself.
const BY: &str = "Copilot CLI";

/// Precedes the exit code, at the end of a shell tool's result.
const EXIT_CODE: &str = "with exit code ";

/// Prefixes of event types that are not part of the conversation, unless handled explicitly.
const SILENT: [&str; 22] = [
    "agent.",
    "assistant.",
    "auto_mode_switch.",
    "capabilities.",
    "command.",
    "commands.",
    "elicitation.",
    "exit_plan_mode.",
    "external_tool.",
    "hook.",
    "mcp.",
    "mcp_app.",
    "model.",
    "pending_messages.",
    "permission.",
    "sampling.",
    "session.",
    "skill.",
    "subagent.",
    "system.",
    "tool.",
    "user_input.",
];

pub(super) fn read(file: File, text: &str, circumstances: &Circumstances) -> Result<Draft, Problem> {
    let (objects, broken) = file.objects(text);
    let events: Vec<Value> = objects.into_iter().map(|(_, event)| event).collect();
    let (events, taken_back) = standing(events);
    let start = events.iter().find(|event| event["type"] == "session.start").unwrap_or(&Value::Null);
    let workspace = Workspace::beside(circumstances);
    let cwd = start["data"]["context"]["cwd"].as_str().map(str::to_owned).or(workspace.cwd);
    let cwd = cwd.map_or_else(|| circumstances.cwd.to_path_buf(), PathBuf::from);
    let mut reader = Reader {
        log: Builder::new(&cwd, time(start).unwrap_or(circumstances.now)),
        model: None,
        reply: None,
        usages: HashMap::new(),
        assets: HashMap::new(),
        known: HashSet::new(),
        asked: HashMap::new(),
        compaction: None,
        later: Vec::new(),
    };
    for event in &events {
        reader.event(event);
    }
    reader.flush();
    reader.settle();
    let mut log = reader.log;
    if log.is_empty() {
        return Err(match broken {
            Some(broken) => broken.first,
            None => file.problem(1, "nothing is said in this session"),
        });
    }
    for _ in 0..taken_back {
        log.left_out("events that were taken back");
    }
    if let Some(broken) = broken {
        log.remark(broken.words());
    }
    log.title(
        workspace.name.filter(|_| workspace.user_named).or(workspace.summary).as_deref().unwrap_or_default(),
    );
    log.foreign_id(start["data"]["sessionId"].as_str().unwrap_or_default());
    Ok(log.finish(Source::Copilot))
}

/// The events without those that were rewound, and the number of the latter.
fn standing(events: Vec<Value>) -> (Vec<Value>, usize) {
    let mut standing: Vec<Value> = Vec::new();
    let mut taken_back = 0;
    for event in events {
        let rewind = &event["data"];
        if event["type"] == "session.snapshot_rewind" {
            let listed: Option<HashSet<&str>> =
                rewind["eventIds"].as_array().map(|ids| ids.iter().filter_map(Value::as_str).collect());
            let first = standing.iter().rposition(|event| event["id"] == rewind["upToEventId"]);
            let before = standing.len();
            let mut at = 0;
            standing.retain(|event| {
                at += 1;
                match &listed {
                    Some(listed) => event["id"].as_str().is_none_or(|id| !listed.contains(id)),
                    None => first.is_none_or(|first| at <= first),
                }
            });
            taken_back += before - standing.len();
        } else {
            standing.push(event);
        }
    }
    (standing, taken_back)
}

/// The contents of a session's `workspace.yaml`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Workspace {
    cwd: Option<String>,
    name: Option<String>,
    user_named: bool,
    summary: Option<String>,
}

impl Workspace {
    fn beside(circumstances: &Circumstances) -> Workspace {
        let text = (circumstances.beside)(Path::new("workspace.yaml"));
        text.and_then(|text| serde_saphyr::from_str(&text).ok()).unwrap_or_default()
    }
}

struct Reader {
    log: Builder,
    /// The most recently selected model.
    model: Option<String>,
    /// A reply that may be incomplete.
    reply: Option<Reply>,
    /// Usage, by model call.
    usages: HashMap<String, Usage>,
    /// Images and other assets, `(type, data)`, by the id used in messages.
    assets: HashMap<String, (String, String)>,
    /// Calls announced by a reply or by their start event.
    known: HashSet<String>,
    /// Commands that the user ran outside of the conversation, by call.
    asked: HashMap<String, String>,
    /// For the running compaction: the next entry at its start, its trigger, and the number of tokens.
    compaction: Option<(Seq, Trigger, u64)>,
    /// Messages that arrived while calls were running, to be added after their results.
    later: Vec<Later>,
}

enum Later {
    Prompt(Vec<Content>),
    Context(Vec<Content>),
    Compacted { through: Seq, summary: String, trigger: Trigger, tokens: u64 },
}

struct Reply {
    /// The model call.
    call: Option<String>,
    model: String,
    content: Vec<Content>,
}

impl Reader {
    fn event(&mut self, event: &Value) {
        let data = &event["data"];
        let is_of_subagent = event["agentId"].is_string() || data["parentToolCallId"].is_string();
        if let Some(at) = time(event) {
            self.log.at(at);
        }
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
                let told = |name: &str| data[name].as_str().map(str::to_owned);
                if let (Some(id), Some(mime), Some(data)) = (told("assetId"), told("mimeType"), told("data"))
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
                if let Some(told) = text_of(&data["content"]) {
                    self.say(Later::Context(vec![text(told)]));
                }
            }
            Some("session.compaction_start") => {
                self.flush();
                let trigger = match data["trigger"].as_str() {
                    Some("manual") => Trigger::Manual,
                    Some(_) | None => Trigger::Threshold,
                };
                let tokens = data["currentTokens"].as_u64().unwrap_or_default();
                self.compaction = Some((self.log.next_seq(), trigger, tokens));
            }
            Some("session.compaction_complete") => self.compacted(data),
            Some("session.context_cleared") => {
                self.log
                    .left_out("commands that cleared what the model sees (what was said before is in it)");
            }
            Some("session.error") => self.ended(StopReason::Failed),
            Some("abort") => self.ended(StopReason::Cancelled),
            Some(other) if SILENT.iter().any(|kind| other.starts_with(kind)) => {}
            Some(other) => self.log.left_out(&format!("events of the type {other:?}")),
            None => self.log.left_out("events without a type"),
        }
    }

    fn chosen(&mut self, model: &Value) {
        self.model = model.as_str().map(str::to_owned).or(self.model.take());
    }

    fn ended(&mut self, reason: StopReason) {
        self.flush();
        self.log.turn_ended(reason);
        self.settle();
    }

    /// Adds something to the log as soon as no call is running.
    fn say(&mut self, what: Later) {
        self.flush();
        self.later.push(what);
        if !self.log.is_waiting() {
            self.settle();
        }
    }

    fn settle(&mut self) {
        for what in std::mem::take(&mut self.later) {
            match what {
                Later::Prompt(content) => self.log.prompt(content),
                Later::Context(content) => Some(self.log.context(content, BY)),
                Later::Compacted { through, summary, trigger, tokens } => {
                    Some(self.log.compacted(Some(through), summary, trigger, tokens))
                }
            };
        }
    }

    fn prompt(&mut self, data: &Value) {
        let mut content: Vec<Content> = text_of(&data["content"]).map(text).into_iter().collect();
        for attached in data["attachments"].as_array().into_iter().flatten() {
            match self.attachment(attached) {
                Some(part) => content.push(part),
                None => self.log.left_out("attachments of a form that is not known here"),
            }
        }
        // Skills, other agents and the autopilot write as the user too.
        let is_typed = data["source"].as_str().is_none_or(|source| source == "user")
            && data["isAutopilotContinuation"] != true;
        if !content.is_empty() {
            self.say(if is_typed { Later::Prompt(content) } else { Later::Context(content) });
        }
    }

    fn attachment(&self, attached: &Value) -> Option<Content> {
        let told = |name: &str| attached[name].as_str().map(str::to_owned);
        let asset = attached["assetId"].as_str().and_then(|id| self.assets.get(id)).cloned();
        let name = told("displayName");
        if let Some((mime_type, data)) = asset.or_else(|| Some((told("mimeType")?, told("data")?))) {
            return match mime_type.as_str() {
                "application/pdf" => Some(Content::Document { mime_type, data, name }),
                mime if mime.starts_with("image/") => Some(Content::Image { mime_type, data, uri: None }),
                _ => None,
            };
        }
        let path = told("path").or_else(|| told("filePath"))?;
        let uri = format!("file://{path}");
        match told("text") {
            Some(text) => Some(Content::Resource { uri, text }),
            None => Some(Content::ResourceLink { uri, name: name.unwrap_or(path) }),
        }
    }

    fn reply(&mut self, data: &Value) {
        let call = data["apiCallId"].as_str().map(str::to_owned);
        if !self.reply.as_ref().is_some_and(|reply| reply.call.is_some() && reply.call == call) {
            self.flush();
            self.settle();
        }
        let mut content = Vec::new();
        content.extend(
            text_of(&data["reasoningText"])
                .map(|thought| Content::Thinking { text: thought.to_owned(), native: None }),
        );
        content.extend(text_of(&data["content"]).map(text));
        for request in data["toolRequests"].as_array().into_iter().flatten() {
            content.push(self.call(&request["toolCallId"], &request["name"], &request["arguments"]));
        }
        self.reply_of(data, call).append(&mut content);
    }

    /// Handles the start of a call that its reply did not announce, as in older versions.
    fn started(&mut self, data: &Value) {
        let id = data["toolCallId"].as_str().unwrap_or_default();
        if !self.known.contains(id) && !self.asked.contains_key(id) {
            let call = self.call(&data["toolCallId"], &data["toolName"], &data["arguments"]);
            self.reply_of(data, None).push(call);
        }
    }

    fn call(&mut self, id: &Value, name: &Value, input: &Value) -> Content {
        let id = id.as_str().unwrap_or_default().to_owned();
        self.known.insert(id.clone());
        self.log.call(ForeignCall {
            id,
            name: name.as_str().unwrap_or("tool").to_owned(),
            title: None,
            kind: None,
            locations: Vec::new(),
            input: input.clone(),
        })
    }

    /// The parts of the current reply.
    fn reply_of(&mut self, data: &Value, call: Option<String>) -> &mut Vec<Content> {
        let model = data["model"].as_str().or(self.model.as_deref()).unwrap_or("unknown").to_owned();
        &mut self.reply.get_or_insert(Reply { call, model, content: Vec::new() }).content
    }

    /// Completes the current reply.
    fn flush(&mut self) {
        if let Some(Reply { call, model, content }) = self.reply.take() {
            let usage = call.and_then(|call| self.usages.remove(&call));
            self.log.reply(content, &format!("copilot/{model}"), usage, None);
        }
    }

    fn outcome(&mut self, data: &Value) {
        self.flush();
        let id = data["toolCallId"].as_str().unwrap_or_default();
        let (result, error) = (&data["result"], &data["error"]);
        let words =
            text_of(&result["content"]).or_else(|| text_of(&error["message"])).or_else(|| text_of(error));
        let told = data["shellExecution"]["exitCode"].as_i64();
        let code = told
            .or_else(|| words?.lines().next_back()?.split_once(EXIT_CODE)?.1.strip_suffix('>')?.parse().ok());
        if let Some(command) = self.asked.remove(id) {
            let ran = format!("The person ran `{command}`:\n\n{}", words.unwrap_or_default());
            return self.say(Later::Context(vec![text(ran)]));
        }
        let status = match (data["success"].as_bool(), error["code"].as_str()) {
            (Some(false), Some("rejected" | "denied")) => OutcomeStatus::Denied,
            (Some(false), _) => OutcomeStatus::Failed,
            (Some(true) | None, _) => OutcomeStatus::Completed,
        };
        let mut content: Vec<OutcomeContent> =
            words.map(|words| OutcomeContent::Text { text: words.to_owned() }).into_iter().collect();
        for part in result["binaryResultsForLlm"].as_array().into_iter().flatten() {
            match self.attachment(part) {
                Some(Content::Image { mime_type, data, .. }) => {
                    content.push(OutcomeContent::Image { mime_type, data });
                }
                Some(Content::Document { mime_type, data, name }) => {
                    content.push(OutcomeContent::Document { mime_type, data, name });
                }
                Some(_) | None => self.log.left_out("results of a form that is not known here"),
            }
        }
        if let (Some(_), Some(code)) = (self.log.outcome(id, status, content), code) {
            self.log.exit_code(code);
        }
        if !self.log.is_waiting() {
            self.settle();
        }
    }

    fn compacted(&mut self, data: &Value) {
        let started = self.compaction.take();
        let Some(summary) = text_of(&data["summaryContent"]).filter(|_| data["success"] != false) else {
            return self.log.left_out("compactions that failed");
        };
        let summary = format!("A summary of what was said and done so far:\n\n{summary}");
        let (next, trigger, tokens) = started.unwrap_or((self.log.next_seq(), Trigger::Threshold, 0));
        let tokens = data["preCompactionTokens"].as_u64().unwrap_or(tokens);
        let through = Seq(next.0.saturating_sub(1));
        self.say(Later::Compacted { through, summary, trigger, tokens });
    }
}

fn usage(usage: &Value) -> Option<Usage> {
    let count = |name: &str| super::tokens(&usage[name]);
    usage.is_object().then(|| Usage {
        input: count("inputTokens"),
        output: count("outputTokens"),
        cache_read: count("cacheReadTokens"),
        cache_write: count("cacheWriteTokens"),
        thinking: count("reasoningTokens"),
    })
}
