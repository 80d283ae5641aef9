//! Sessions of Gemini CLI: JSON lines of records, or one document in older versions.
//!
//! - A message written again with the same id replaces the earlier one, for example to add results to calls.
//! - `$rewindTo` removes a message and everything after it.
//! - `$set` with `messages` replaces what the model sees. A compaction does this with its summary, an
//!   acknowledgement and the kept messages, which get new ids.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::build::{Builder, ForeignCall};
use super::{Circumstances, Draft, File, Source, text, text_of, time};
use epitome_problem::Problem;
use epitome_thread::{Content, OutcomeContent, OutcomeStatus, Seq, Trigger, Usage};

/// The model's fixed reply to the summary of a compaction.
const ACKNOWLEDGED: &str = "Got it. Thanks for the additional context!";

/// Marks a summary.
const SNAPSHOT: &str = "<state_snapshot>";

/// Start of the context that Gemini CLI sends before the first prompt.
const SURROUNDINGS: &str = "<session_context>";

/// Start of a hook's context for the model.
const HOOK: &str = "<hook_context>";

/// Precedes the folders of a session, in the initial context.
const FOLDERS: &str = "**Workspace Directories:**";

/// Precedes the exit code in the result of a command.
const EXIT_CODE: &str = "Exit Code: ";

/// The author of messages that Gemini CLI added itself.
const BY: &str = "Gemini CLI";

pub(super) fn read(file: File, text: &str, circumstances: &Circumstances) -> Result<Draft, Problem> {
    let (records, broken) = match serde_json::from_str::<Value>(text) {
        Ok(document) => (vec![(1, document)], None),
        Err(_) => file.objects(text),
    };
    let mut session = Session::default();
    for (_, record) in &records {
        session.record(record);
    }
    let (cwd, is_told) = session.cwd(circumstances);
    let started = session.started.unwrap_or(circumstances.now);
    let mut reader = Reader { log: Builder::new(&cwd, started), first: Vec::new(), answered: HashSet::new() };
    for item in session.items {
        let next = reader.log.next_seq();
        reader.first.push(next);
        reader.item(&item);
    }
    let mut log = reader.log;
    if log.is_empty() {
        return Err(match broken {
            Some(broken) => broken.first,
            None => file.problem(1, "nothing is said in this session"),
        });
    }
    for _ in 0..session.taken_back {
        log.left_out("messages that were taken back");
    }
    for _ in 0..session.unknown {
        log.left_out("records of an unknown form");
    }
    if let Some(broken) = broken {
        log.remark(broken.words());
    }
    if !is_told {
        log.remark(format!("it does not tell its folder; {} was taken", cwd.display()));
    }
    log.title(session.title.as_deref().unwrap_or_default());
    log.foreign_id(session.id.as_deref().unwrap_or_default());
    Ok(log.finish(Source::Gemini))
}

/// The state of a session after all records of a file.
#[derive(Default)]
struct Session {
    id: Option<String>,
    project: Option<String>,
    started: Option<u64>,
    title: Option<String>,
    items: Vec<Item>,
    taken_back: usize,
    unknown: usize,
}

struct Item {
    /// Its current id, by which it can be replaced or rewound.
    id: String,
    what: What,
}

enum What {
    Message(Value),
    /// `kept` is the index of the first item that the summary keeps.
    Summary {
        text: String,
        kept: Option<usize>,
        at: Option<u64>,
    },
}

impl Session {
    fn record(&mut self, record: &Value) {
        if let Some(id) = record["$rewindTo"].as_str() {
            let from = self.place(id).unwrap_or(0);
            self.taken_back += self.items.len() - from;
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

    /// Reads the fields that concern the complete session.
    fn set(&mut self, fields: &Value) {
        let told = |name: &str| fields[name].as_str().map(str::to_owned);
        self.id = told("sessionId").or(self.id.take());
        self.project = told("projectHash").or(self.project.take());
        // For a subagent, the summary is its answer.
        let title = told("summary").filter(|_| fields["kind"] != "subagent");
        self.title = title.or(self.title.take());
        self.started = self.started.or_else(|| moment(&fields["startTime"]));
        if let Some(messages) = fields["messages"].as_array() {
            self.replaced(messages);
        }
    }

    fn place(&self, id: &str) -> Option<usize> {
        self.items.iter().rposition(|item| item.id == id)
    }

    fn message(&mut self, message: &Value) {
        let id = message["id"].as_str().unwrap_or_default();
        let what = What::Message(message.clone());
        match self.place(id).filter(|_| !id.is_empty()) {
            Some(place) => self.items[place].what = what,
            None => self.items.push(Item { id: id.to_owned(), what }),
        }
    }

    /// Replaces what the model sees. Messages that it no longer sees stay in the log.
    fn replaced(&mut self, messages: &[Value]) {
        let is_known = |message: &Value| message["id"].as_str().is_some_and(|id| self.place(id).is_some());
        let summary = messages.iter().enumerate().position(|(at, message)| {
            let is_acknowledged =
                messages.get(at + 1).is_some_and(|next| words(&next["content"]) == ACKNOWLEDGED);
            let is_new = message["type"] == "user" && !is_known(message);
            is_new && (is_acknowledged || words(&message["content"]).contains(SNAPSHOT))
        });
        let Some(place) = summary.filter(|_| !self.items.is_empty()) else {
            for message in messages.iter().filter(|message| message["id"].is_string()) {
                // A known message may be repeated in the form of a request, without its results.
                if message["id"].as_str().is_none_or(|id| self.place(id).is_none()) {
                    self.message(message);
                }
            }
            return;
        };
        let summary = &messages[place];
        let behind = &messages[place + 1..];
        let is_acknowledged = behind.first().is_some_and(|next| words(&next["content"]) == ACKNOWLEDGED);
        let tail = &behind[usize::from(is_acknowledged)..];
        let kept = self.adopt(tail);
        let what = What::Summary { text: words(&summary["content"]), kept, at: time(summary) };
        self.items.push(Item { id: summary["id"].as_str().unwrap_or_default().to_owned(), what });
        if kept.is_none() {
            tail.iter().for_each(|message| self.message(message));
        }
    }

    /// Finds the newest items that are equal to these messages, and gives them the new ids. Returns the index
    /// of the first one.
    fn adopt(&mut self, tail: &[Value]) -> Option<usize> {
        let is_said = |item: &Item| match &item.what {
            What::Message(message) => message["type"] == "user" || message["type"] == "gemini",
            What::Summary { .. } => false,
        };
        let said: Vec<usize> = (0..self.items.len()).filter(|at| is_said(&self.items[*at])).collect();
        let places = said.get(said.len().checked_sub(tail.len())?..)?.to_vec();
        let is_same = |(at, message): (&usize, &Value)| match &self.items[*at].what {
            What::Message(known) => {
                let (one, other) = (words(&known["content"]), words(&message["content"]));
                known["type"] == message["type"] && (one == other || known["type"] == "gemini")
            }
            What::Summary { .. } => false,
        };
        if tail.is_empty() || !places.iter().zip(tail).all(is_same) {
            return None;
        }
        for (at, message) in places.iter().zip(tail) {
            self.items[*at].id = message["id"].as_str().unwrap_or_default().to_owned();
        }
        places.first().copied()
    }

    /// The working directory, and whether it is certain. It is recorded as text and as a hash that verifies
    /// it.
    fn cwd(&self, circumstances: &Circumstances) -> (PathBuf, bool) {
        let told = self.items.iter().find_map(|item| match &item.what {
            What::Message(message) => {
                let words = words(&message["content"]);
                let (_, folders) = words.strip_prefix(SURROUNDINGS)?.split_once(FOLDERS)?;
                folders.lines().find_map(|line| line.trim().strip_prefix("- ")).map(PathBuf::from)
            }
            What::Summary { .. } => None,
        });
        let is_project = |folder: &PathBuf| {
            let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
            let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            self.project.as_ref().is_some_and(|project| *project == digits)
        };
        let here = circumstances.cwd.to_path_buf();
        match told {
            Some(told) if !is_project(&here) => (told, true),
            _ => (here.clone(), is_project(&here)),
        }
    }
}

struct Reader {
    log: Builder,
    /// The first entry of each item, for compactions.
    first: Vec<Seq>,
    /// Calls whose results are recorded with them.
    answered: HashSet<String>,
}

impl Reader {
    fn item(&mut self, item: &Item) {
        match &item.what {
            What::Summary { text, kept, at } => {
                self.log.at(at.unwrap_or_default());
                let through =
                    kept.and_then(|at| self.first.get(at)).map(|first| Seq(first.0.saturating_sub(1)));
                let summary = format!("A summary of what was said and done so far:\n\n{text}");
                self.log.compacted(through, summary, Trigger::Threshold, 0);
            }
            What::Message(message) => {
                self.log.at(time(message).unwrap_or_default());
                match message["type"].as_str() {
                    Some("user") => self.prompt(message),
                    Some("gemini") => self.reply(message),
                    // Messages of the program to the user.
                    Some("info" | "error" | "warning") => {}
                    Some(_) | None => self.log.left_out("messages of an unknown type"),
                }
            }
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
            let told = self.contents(content);
            self.log.context(told, BY);
        } else if !words(typed).is_empty() && typed != content {
            // Contents of mentioned files and the like follow the user's text.
            let said = self.contents(typed);
            let is_typed = |part: &Content| said.iter().any(|typed| is_same(typed, part));
            let told: Vec<Content> =
                self.contents(content).into_iter().filter(|part| !is_typed(part)).collect();
            self.log.prompt(said);
            if !told.is_empty() {
                self.log.context(told, BY);
            }
        } else {
            let said = self.contents(content);
            if !said.is_empty() {
                self.log.prompt(said);
            }
        }
    }

    fn reply(&mut self, message: &Value) {
        let thoughts = message["thoughts"].as_array().into_iter().flatten();
        let mut content: Vec<Content> = thoughts.filter_map(thought).collect();
        content.extend(self.contents(&message["content"]));
        let calls: Vec<&Value> = message["toolCalls"].as_array().into_iter().flatten().collect();
        let told = message["content"].as_array().into_iter().flatten().map(|part| &part["functionCall"]);
        let told: Vec<&Value> = told.filter(|call| call.is_object()).collect();
        // Calls occur twice in a message in the form of a request.
        for call in if calls.is_empty() { told } else { calls.clone() } {
            content.push(self.log.call(ForeignCall {
                id: call["id"].as_str().unwrap_or_default().to_owned(),
                name: call["name"].as_str().unwrap_or("tool").to_owned(),
                title: None,
                kind: None,
                locations: Vec::new(),
                input: call["args"].clone(),
            }));
        }
        let model = format!("gemini/{}", message["model"].as_str().unwrap_or("unknown"));
        self.log.reply(content, &model, usage(&message["tokens"]), None);
        for call in calls {
            self.result(call);
        }
    }

    /// Adds the outcome that is recorded with a call. Without one, it may follow later.
    fn result(&mut self, call: &Value) {
        let id = call["id"].as_str().unwrap_or_default();
        let results = match &call["result"] {
            Value::Array(parts) => parts.as_slice(),
            Value::Null => return,
            part => std::slice::from_ref(part),
        };
        let status = match call["status"].as_str() {
            Some("error") => OutcomeStatus::Failed,
            Some("cancelled") => OutcomeStatus::Denied,
            Some("success") => OutcomeStatus::Completed,
            Some(_) | None => return,
        };
        let ours = results.iter().filter(|part| {
            let told = part["functionResponse"]["id"].as_str();
            told.is_none() || told == Some(id)
        });
        if let Some(at) = time(call) {
            self.log.at(at);
        }
        let content = ours.filter_map(outcome).collect();
        self.outcome(id, status, content);
        self.answered.insert(id.to_owned());
    }

    /// Adds outcomes of calls that were recorded without one.
    fn results(&mut self, content: &Value) {
        let parts = content.as_array().into_iter().flatten();
        for part in parts.filter(|part| part["functionResponse"].is_object()) {
            let id = part["functionResponse"]["id"].as_str().unwrap_or_default();
            if !self.answered.contains(id) {
                let is_error = part["functionResponse"]["response"]["error"].is_string();
                let status = if is_error { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
                self.outcome(id, status, outcome(part).into_iter().collect());
            }
        }
    }

    fn outcome(&mut self, id: &str, status: OutcomeStatus, content: Vec<OutcomeContent>) {
        let code = content.iter().find_map(|content| match content {
            OutcomeContent::Text { text } => {
                text.lines().rev().find_map(|line| line.strip_prefix(EXIT_CODE)?.trim().parse().ok())
            }
            OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => None,
        });
        if let (Some(_), Some(code)) = (self.log.outcome(id, status, content), code) {
            self.log.exit_code(code);
        }
    }

    /// Text, images and documents, from a string, a part or a list of parts.
    fn contents(&mut self, value: &Value) -> Vec<Content> {
        let parts = match value {
            Value::Array(parts) => parts.as_slice(),
            Value::Null => &[],
            part => std::slice::from_ref(part),
        };
        let mut contents = Vec::new();
        for part in parts {
            let data = &part["inlineData"];
            if let Some(said) = text_of(part).or_else(|| text_of(&part["text"])) {
                let said = said.to_owned();
                contents.push(match part["thought"] == true {
                    true => Content::Thinking { text: said, native: None },
                    false => text(said),
                });
            } else if let (Some(mime_type), Some(data)) = (data["mimeType"].as_str(), data["data"].as_str()) {
                let (mime_type, data) = (mime_type.to_owned(), data.to_owned());
                match mime_type.as_str() {
                    "application/pdf" => contents.push(Content::Document { mime_type, data, name: None }),
                    mime if mime.starts_with("image/") => {
                        contents.push(Content::Image { mime_type, data, uri: None })
                    }
                    _ => self.log.left_out("attachments of a form that is not known here"),
                }
            }
        }
        contents
    }
}

/// Whether two parts are equal, ignoring white space around text.
fn is_same(one: &Content, other: &Content) -> bool {
    match (one, other) {
        (Content::Text { text: one }, Content::Text { text: other }) => one.trim() == other.trim(),
        (one, other) => one == other,
    }
}

/// The text of a string, a part or a list of parts.
fn words(value: &Value) -> String {
    match value {
        Value::Array(parts) => parts.iter().map(words).collect(),
        Value::String(text) => text.clone(),
        part => part["text"].as_str().unwrap_or_default().to_owned(),
    }
}

fn thought(value: &Value) -> Option<Content> {
    let (subject, description) = (text_of(&value["subject"]), text_of(&value["description"]));
    let text = match (subject, description) {
        (Some(subject), Some(description)) => format!("{subject}\n\n{description}"),
        (one, other) => one.or(other)?.to_owned(),
    };
    Some(Content::Thinking { text, native: None })
}

/// The result of a call, as the model read it.
fn outcome(part: &Value) -> Option<OutcomeContent> {
    let response = &part["functionResponse"]["response"];
    let told = text_of(&response["output"])
        .or_else(|| text_of(&response["error"]))
        .or_else(|| text_of(&part["text"]));
    let data = &part["inlineData"];
    match (told, data["mimeType"].as_str(), data["data"].as_str()) {
        (Some(text), _, _) => Some(OutcomeContent::Text { text: text.to_owned() }),
        (None, Some(mime_type), Some(data)) if mime_type.starts_with("image/") => {
            Some(OutcomeContent::Image { mime_type: mime_type.to_owned(), data: data.to_owned() })
        }
        (None, _, _) if response.is_object() => Some(OutcomeContent::Text { text: response.to_string() }),
        (None, _, _) => None,
    }
}

/// Gemini CLI counts thinking separately from the output; we include it.
fn usage(tokens: &Value) -> Option<Usage> {
    let count = |name: &str| super::tokens(&tokens[name]);
    tokens.is_object().then(|| Usage {
        input: count("input"),
        output: count("output") + count("thoughts"),
        cache_read: count("cached"),
        cache_write: 0,
        thinking: count("thoughts"),
    })
}

/// Milliseconds since the Unix epoch.
fn moment(value: &Value) -> Option<u64> {
    let moment: jiff::Timestamp = value.as_str()?.parse().ok()?;
    u64::try_from(moment.as_millisecond()).ok()
}
