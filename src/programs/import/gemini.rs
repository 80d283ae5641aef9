//! Sessions of Gemini CLI: JSON lines of records, or one document in older versions.
//!
//! - A message written again with the same id replaces the earlier one, for example to add results to calls.
//! - `$rewindTo` removes a message and everything after it.
//! - `$set` with `messages` replaces the model's view. A compaction does this with its summary, an acknowledgment and
//!   the kept messages, which get new ids.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::builder::Builder;
use super::{
    ImportContext, list, model_name, moment, text, text_of, thinking, time, token_counts, with_thinking,
};
use epitome_thread::{Content, OutcomeStatus, Trigger, Usage};
use epitome_transfer::ImportFile;

/// The model's fixed reply to the summary of a compaction.
const ACKNOWLEDGED: &str = "Got it. Thanks for the additional context!";

/// Marks a summary.
const SNAPSHOT: &str = "<state_snapshot>";

/// Start of the context that Gemini CLI sends before the first prompt.
const SURROUNDINGS: &str = "<session_context>";

/// Start of a hook's context for the model.
const HOOK: &str = "<hook_context>";

/// Precedes the directories of a session, in the initial context.
const FOLDERS: &str = "**Workspace Directories:**";

/// Precedes the exit code in the result of a command.
const EXIT_CODE: &str = "Exit Code: ";

/// The author of messages that Gemini CLI added.
const BY: &str = "Gemini CLI";

pub(super) fn read(records: Vec<Value>, _: ImportFile, context: &ImportContext) -> Builder {
    let mut session = GeminiSession::default();
    for record in &records {
        session.record(record);
    }
    let (cwd, is_certain) = session.cwd(context);
    let log = Builder::new(cwd.to_str(), session.started, context);
    let mut reader = GeminiReader { log, answered: HashSet::new() };
    for (at, item) in session.items.iter().enumerate() {
        reader.log.mark(at);
        reader.item(item);
    }
    let mut log = reader.log;
    log.left_out_times(session.rewound, "messages that were undone");
    log.left_out_times(session.unknown, "records of an unknown form");
    if !is_certain {
        log.remark(format!("it does not name its folder; {} was used", cwd.display()));
    }
    log.title(session.title.as_deref().unwrap_or_default());
    log.foreign_id(session.id.as_deref().unwrap_or_default());
    log
}

/// The state of a session after processing all records of a file.
#[derive(Default)]
struct GeminiSession {
    id: Option<String>,
    project: Option<String>,
    started: Option<u64>,
    title: Option<String>,
    items: Vec<GeminiItem>,
    rewound: usize,
    unknown: usize,
}

struct GeminiItem {
    /// Its current id, used to replace or rewind it.
    id: String,
    message: Value,
    is_summary: bool,
    /// The index of the first item that the summary keeps.
    kept: Option<usize>,
}

impl GeminiSession {
    fn record(&mut self, record: &Value) {
        if let Some(id) = record["$rewindTo"].as_str() {
            let from = self.index(id).unwrap_or(0);
            self.rewound += self.items.len() - from;
            self.items.truncate(from);
        } else if record["id"].is_string() {
            self.message(record);
        } else if record["$set"].is_object() {
            self.set(&record["$set"]);
        } else if record["sessionId"].is_string() {
            self.set(record);
        } else {
            self.unknown += 1;
        }
    }

    /// Reads the fields that concern the entire session.
    fn set(&mut self, fields: &Value) {
        let field = |name: &str| fields[name].as_str().map(str::to_owned);
        self.id = field("sessionId").or(self.id.take());
        self.project = field("projectHash").or(self.project.take());
        // For a subagent, the summary is its answer instead of a title.
        let title = field("summary").filter(|_| fields["kind"] != "subagent");
        self.title = title.or(self.title.take());
        self.started = self.started.or_else(|| moment(&fields["startTime"]));
        if let Some(messages) = fields["messages"].as_array() {
            self.replaced(messages);
        }
    }

    fn index(&self, id: &str) -> Option<usize> {
        self.items.iter().rposition(|item| item.id == id)
    }

    fn message(&mut self, message: &Value) {
        let id = message["id"].as_str().unwrap_or_default().to_owned();
        let known = self.index(&id).filter(|_| !id.is_empty());
        let item = GeminiItem { id, message: message.clone(), is_summary: false, kept: None };
        match known {
            Some(index) => self.items[index] = item,
            None => self.items.push(item),
        }
    }

    /// Replaces the model's view. Messages that are no longer in it remain in the log.
    fn replaced(&mut self, messages: &[Value]) {
        let is_known = |message: &Value| message["id"].as_str().is_some_and(|id| self.index(id).is_some());
        let summary = messages.iter().enumerate().position(|(at, message)| {
            let is_acknowledged =
                messages.get(at + 1).is_some_and(|next| words(&next["content"]) == ACKNOWLEDGED);
            let is_new = message["type"] == "user" && !is_known(message);
            is_new && (is_acknowledged || words(&message["content"]).contains(SNAPSHOT))
        });
        let Some(index) = summary.filter(|_| !self.items.is_empty()) else {
            for message in messages.iter().filter(|message| message["id"].is_string()) {
                // A known message may be repeated in the form of a request, without its results.
                if message["id"].as_str().is_none_or(|id| self.index(id).is_none()) {
                    self.message(message);
                }
            }
            return;
        };
        let summary = &messages[index];
        let behind = &messages[index + 1..];
        let is_acknowledged = behind.first().is_some_and(|next| words(&next["content"]) == ACKNOWLEDGED);
        let tail = &behind[usize::from(is_acknowledged)..];
        let kept = self.adopt(tail);
        let id = summary["id"].as_str().unwrap_or_default().to_owned();
        self.items.push(GeminiItem { id, message: summary.clone(), is_summary: true, kept });
        if kept.is_none() {
            tail.iter().for_each(|message| self.message(message));
        }
    }

    /// Finds the newest items that are equal to these messages, and changes their ids to the new ones. Returns the
    /// index of the first one.
    fn adopt(&mut self, tail: &[Value]) -> Option<usize> {
        let is_message = |(_, item): &(usize, &mut GeminiItem)| {
            !item.is_summary && matches!(item.message["type"].as_str(), Some("user" | "gemini"))
        };
        let messages: Vec<_> = self.items.iter_mut().enumerate().filter(is_message).collect();
        let skipped = messages.len().checked_sub(tail.len())?;
        let mut pairs: Vec<_> = messages.into_iter().skip(skipped).zip(tail).collect();
        let is_same = |((_, item), message): &((usize, &mut GeminiItem), &Value)| {
            let known = &item.message;
            known["type"] == message["type"]
                && (known["type"] == "gemini" || words(&known["content"]) == words(&message["content"]))
        };
        if !pairs.iter().all(is_same) {
            return None;
        }
        for ((_, item), message) in &mut pairs {
            item.id = message["id"].as_str().unwrap_or_default().to_owned();
        }
        pairs.first().map(|((at, _), _)| *at)
    }

    /// Returns the working directory, and whether it is certain. It is recorded as text and as a hash that verifies
    /// it.
    fn cwd(&self, context: &ImportContext) -> (PathBuf, bool) {
        let recorded = self.items.iter().find_map(|item| {
            let words = words(&item.message["content"]);
            let (_, folders) = words.strip_prefix(SURROUNDINGS)?.split_once(FOLDERS)?;
            folders.lines().find_map(|line| line.trim().strip_prefix("- ")).map(PathBuf::from)
        });
        let is_project = |folder: &PathBuf| {
            let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            self.project.as_ref().is_some_and(|project| *project == digits)
        };
        let here = context.cwd.to_path_buf();
        match recorded {
            Some(recorded) if !is_project(&here) => (recorded, true),
            _ => (here.clone(), is_project(&here)),
        }
    }
}

struct GeminiReader {
    log: Builder,
    /// Calls that are recorded together with their results.
    answered: HashSet<String>,
}

impl GeminiReader {
    fn item(&mut self, item: &GeminiItem) {
        let message = &item.message;
        self.log.at(time(message));
        match message["type"].as_str() {
            _ if item.is_summary => {
                let kept = item.kept.and_then(|at| self.log.marked(at));
                self.log.summarized(kept, &words(&message["content"]), Trigger::Threshold, 0);
            }
            Some("user") => self.prompt(message),
            Some("gemini") => self.reply(message),
            // Messages from the program to the user.
            Some("info" | "error" | "warning") => {}
            Some(_) | None => self.log.left_out("messages of an unknown type"),
        }
    }

    fn prompt(&mut self, message: &Value) {
        let content = &message["content"];
        self.results(content);
        let start = words(content);
        if start.starts_with(SURROUNDINGS) {
            return;
        }
        let typed = &message["displayContent"];
        if start.starts_with(HOOK) {
            let context = self.contents(content);
            self.log.context(context, BY);
        } else if !words(typed).is_empty() && typed != content {
            // Contents of mentioned files and other additions follow the user's text.
            let prompt = self.contents(typed);
            let is_typed = |part: &Content| prompt.iter().any(|typed| is_same(typed, part));
            let context: Vec<Content> =
                self.contents(content).into_iter().filter(|part| !is_typed(part)).collect();
            self.log.prompt(prompt);
            self.log.context(context, BY);
        } else {
            let prompt = self.contents(content);
            self.log.prompt(prompt);
        }
    }

    fn reply(&mut self, message: &Value) {
        self.log.model(model_name(None, "gemini", message["model"].as_str()));
        self.log.add(list(&message["thoughts"]).filter_map(thought));
        let content = self.contents(&message["content"]);
        self.log.add(content);
        let calls: Vec<&Value> = list(&message["toolCalls"]).collect();
        // Calls occur twice in a message in the form of a request.
        let requested: Vec<&Value> = list(&message["content"])
            .map(|part| &part["functionCall"])
            .filter(|call| call.is_object() && calls.is_empty())
            .collect();
        for call in calls.iter().chain(&requested) {
            self.log.call(&call["id"], &call["name"], &call["args"]);
        }
        self.log.replied(usage(&message["tokens"]), None);
        for call in calls {
            self.result(call);
        }
    }

    /// Adds the outcome that is recorded with a call. If there is none, it may follow later.
    fn result(&mut self, call: &Value) {
        let id = call["id"].as_str().unwrap_or_default();
        if call["result"].is_null() {
            return;
        }
        let status = match call["status"].as_str() {
            Some("error") => OutcomeStatus::Failed,
            Some("cancelled") => OutcomeStatus::Denied,
            Some("success") => OutcomeStatus::Completed,
            Some(_) | None => return,
        };
        let own = one_or_many(&call["result"]).iter().filter(|part| {
            let answered = part["functionResponse"]["id"].as_str();
            answered.is_none() || answered == Some(id)
        });
        self.log.at(time(call));
        let content = own.filter_map(outcome).collect();
        self.outcome(id, status, content);
        self.answered.insert(id.to_owned());
    }

    /// Adds outcomes of calls that were recorded without one.
    fn results(&mut self, content: &Value) {
        for part in list(content).filter(|part| part["functionResponse"].is_object()) {
            let id = part["functionResponse"]["id"].as_str().unwrap_or_default();
            if !self.answered.contains(id) {
                let is_error = part["functionResponse"]["response"]["error"].is_string();
                let status = if is_error { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
                self.outcome(id, status, outcome(part).into_iter().collect());
            }
        }
    }

    fn outcome(&mut self, id: &str, status: OutcomeStatus, content: Vec<Content>) {
        let lines = content.iter().filter_map(Content::as_text).flat_map(|text| text.lines().rev());
        let code = lines.filter_map(|line| line.strip_prefix(EXIT_CODE)?.trim().parse().ok()).next();
        self.log.outcome(Some(id), status, content, code);
    }

    /// Parses text, images and documents from a string, a part or a list of parts.
    fn contents(&mut self, value: &Value) -> Vec<Content> {
        let mut contents = Vec::new();
        for part in one_or_many(value) {
            if let Some(words) = text_of(part).or_else(|| text_of(&part["text"])) {
                contents.push(if part["thought"] == true { thinking(words) } else { text(words) });
            } else if part["inlineData"].is_object() {
                match super::part(part) {
                    Some(content) => contents.push(content),
                    None => self.log.left_out("attachments of an unknown form"),
                }
            }
        }
        contents
    }
}

/// Returns the elements of a list, or a single part; empty for `null`.
fn one_or_many(value: &Value) -> &[Value] {
    match value {
        Value::Array(parts) => parts,
        Value::Null => &[],
        part => std::slice::from_ref(part),
    }
}

/// Whether two parts are equal, ignoring white space around text.
fn is_same(one: &Content, other: &Content) -> bool {
    match (one, other) {
        (Content::Text { text: one }, Content::Text { text: other }) => one.trim() == other.trim(),
        (one, other) => one == other,
    }
}

/// Returns the text of a string, a part or a list of parts.
fn words(value: &Value) -> String {
    match value {
        Value::Array(parts) => parts.iter().map(words).collect(),
        Value::String(text) => text.clone(),
        part => part["text"].as_str().unwrap_or_default().to_owned(),
    }
}

fn thought(value: &Value) -> Option<Content> {
    match (text_of(&value["subject"]), text_of(&value["description"])) {
        (Some(subject), Some(description)) => Some(thinking(format!("{subject}\n\n{description}"))),
        (one, other) => one.or(other).map(thinking),
    }
}

/// Returns the result of a call, as the model read it.
fn outcome(part: &Value) -> Option<Content> {
    let response = &part["functionResponse"]["response"];
    let words = text_of(&response["output"])
        .or_else(|| text_of(&response["error"]))
        .or_else(|| text_of(&part["text"]));
    let content = words.map(text).or_else(|| super::part(part));
    content.or_else(|| response.is_object().then(|| text(response.to_string())))
}

fn usage(tokens: &Value) -> Option<Usage> {
    token_counts(tokens, ["input", "output", "cached", "", "thoughts"]).map(with_thinking)
}
