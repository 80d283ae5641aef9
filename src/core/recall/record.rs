//! The searchable records of an entry: one for each message, call and outcome.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::NAME;
use super::ask::RecordKind;
use epitome_thread::titles::plain_title;
use epitome_thread::{
    CallId, Change, Content, Entry, EntryPart, Location, Message, Origin, OutcomeContent, OutcomeStatus,
    PINNED_BY_PERSON, PartId, Role, ToolCall, ToolDisplay, ToolOutcome, ViewEdit, describe,
};

/// Maximum bytes of a call's title.
const TITLE_BYTES_MAX: usize = 120;

/// A message, call or outcome.
pub(super) struct Record<'a> {
    pub part: PartId,
    /// Milliseconds since the Unix epoch.
    pub at: u64,
    pub kind: RecordKind,
    body: RecordBody<'a>,
}

#[derive(Clone, Copy)]
enum RecordBody<'a> {
    /// A message, with its author if that is not implied by the kind.
    Message(&'a Message, &'static str),
    Call(&'a ToolCall),
    Outcome(&'a ToolOutcome, Option<&'a ToolCall>),
}

/// Appends an entry's records to those of earlier entries; `calls` contains the calls seen so far.
pub(super) fn of<'a>(
    entry: &'a Arc<Entry>,
    calls: &mut HashMap<&'a CallId, &'a ToolCall>,
    records: &mut Vec<Record<'a>>,
) {
    let mut push = |part: Option<u32>, kind: RecordKind, body: RecordBody<'a>| {
        records.push(Record { part: PartId { entry: entry.seq, part }, at: entry.at, kind, body });
    };
    // A queued prompt can be found after it has entered the view; a withheld one is never found.
    if matches!(entry.change, Change::Queued { .. } | Change::Withheld { .. }) {
        return;
    }
    let editor = match &entry.change {
        Change::Edited { by, .. } if by == PINNED_BY_PERSON => speaker(&Origin::Person),
        _ => "by a hook",
    };
    let mut added = 0;
    for part in describe(&entry.change).parts {
        match part {
            EntryPart::Prompt(message, origin) => {
                push(None, RecordKind::Said, RecordBody::Message(message, speaker(origin)));
            }
            EntryPart::Reply(message) => {
                if message.content.iter().any(is_text) {
                    push(None, RecordKind::Reply, RecordBody::Message(message, ""));
                }
                for (number, call) in (1..).zip(message.calls()) {
                    calls.insert(&call.id, call);
                    push(Some(number), RecordKind::Call, RecordBody::Call(call));
                }
            }
            EntryPart::Outcome(outcome) => {
                push(
                    None,
                    RecordKind::Outcome,
                    RecordBody::Outcome(outcome, calls.get(&outcome.call).copied()),
                );
            }
            EntryPart::Summary(summary) => push(None, RecordKind::Summary, RecordBody::Message(summary, "")),
            EntryPart::Spoken(role, message) => {
                added += 1;
                push(Some(added), kind_of(role), RecordBody::Message(message, editor));
            }
            EntryPart::Edit(ViewEdit::Append { role, message }) => {
                added += 1;
                push(Some(added), kind_of(*role), RecordBody::Message(message, editor));
            }
            _ => {}
        }
    }
}

impl<'a> Record<'a> {
    /// The complete text.
    pub fn text(&self) -> Cow<'a, str> {
        match self.body {
            RecordBody::Message(message, _) => message_text(message),
            RecordBody::Call(call) => Cow::Owned(call_text(call)),
            RecordBody::Outcome(outcome, _) => outcome_text(outcome),
        }
    }

    /// A short description.
    pub fn title(&self) -> String {
        let kind = self.kind.id();
        match self.body {
            RecordBody::Message(_, "") => kind.to_owned(),
            RecordBody::Message(_, speaker) => format!("{kind} {speaker}"),
            RecordBody::Call(call) => format!("call of {}", called(call)),
            RecordBody::Outcome(outcome, call) => {
                let how = match outcome.status {
                    OutcomeStatus::Completed => "",
                    OutcomeStatus::Failed => ", failed",
                    OutcomeStatus::Denied => ", denied",
                    OutcomeStatus::Interrupted => ", interrupted",
                };
                format!("outcome of {}{how}", call.map_or_else(|| "a call".to_owned(), called))
            }
        }
    }

    pub fn call_id(&self) -> Option<&'a CallId> {
        match self.body {
            RecordBody::Message(..) => None,
            RecordBody::Call(call) => Some(&call.id),
            RecordBody::Outcome(outcome, _) => Some(&outcome.call),
        }
    }

    /// Whether it belongs to recall: without this check, a search would find all earlier searches.
    pub fn is_recall(&self) -> bool {
        match self.body {
            RecordBody::Message(..) => false,
            RecordBody::Call(call) => call.name == NAME,
            RecordBody::Outcome(_, call) => call.is_some_and(|call| call.name == NAME),
        }
    }

    /// Whether it is about this file, or a file below this directory. `path` is as written in the query, `absolute`
    /// is resolved against the working directory.
    pub fn touches(&self, path: &str, absolute: &Path) -> bool {
        let is_it = |touched: &Path| touched.starts_with(absolute) || touched.ends_with(path);
        let located = |locations: &[Location]| locations.iter().any(|location| is_it(&location.path));
        match self.body {
            RecordBody::Message(message, _) => message.content.iter().any(|content| match content {
                Content::Resource { uri, .. } | Content::ResourceLink { uri, .. } => {
                    is_it(Path::new(uri.strip_prefix("file://").unwrap_or(uri)))
                }
                Content::Text { .. }
                | Content::Thinking { .. }
                | Content::Image { .. }
                | Content::Document { .. }
                | Content::Call(_)
                | Content::Search(_) => false,
            }),
            RecordBody::Call(call) => located(&call.card.locations) || mentions(call, path),
            RecordBody::Outcome(outcome, call) => {
                let of_call = call.is_some_and(|call| located(&call.card.locations) || mentions(call, path));
                of_call || located(&outcome.locations) || changed(outcome).any(|path| is_it(path))
            }
        }
    }
}

fn changed(outcome: &ToolOutcome) -> impl Iterator<Item = &PathBuf> {
    outcome.shown.iter().filter_map(|shown| match shown {
        ToolDisplay::Diff { path, .. } => Some(path),
        ToolDisplay::Text { .. } => None,
    })
}

/// Whether an input of the call mentions the path, which is the only way in which a command does.
fn mentions(call: &ToolCall, path: &str) -> bool {
    let texts = call.input.as_object().into_iter().flat_map(|input| input.values());
    texts.filter_map(Value::as_str).any(|text| text.contains(path))
}

fn is_text(content: &Content) -> bool {
    matches!(content, Content::Text { text } if !text.trim().is_empty())
}

fn kind_of(role: Role) -> RecordKind {
    match role {
        Role::User | Role::System => RecordKind::Said,
        Role::Assistant => RecordKind::Reply,
    }
}

fn speaker(origin: &Origin) -> &'static str {
    match origin {
        Origin::Person | Origin::Queue { .. } => "by the user",
        Origin::Recipe { .. } => "by a recipe",
        Origin::Hook { .. } => "by a hook",
        Origin::Context { .. } => "as context",
        Origin::Instructions { .. } => "as instructions",
    }
}

fn called(call: &ToolCall) -> String {
    let title = plain_title(&call.card);
    let title = title.lines().next().unwrap_or_default();
    let end = title.floor_char_boundary(TITLE_BYTES_MAX.min(title.len()));
    match &title[..end] {
        "" => call.name.clone(),
        title => format!("{} ({title})", call.name),
    }
}

fn message_text(message: &Message) -> Cow<'_, str> {
    if let [Content::Text { text }] = message.content.as_slice() {
        return Cow::Borrowed(text);
    }
    let parts: Vec<Cow<str>> = message
        .content
        .iter()
        .filter_map(|content| match content {
            Content::Text { text } => Some(Cow::Borrowed(text.as_str())),
            Content::Resource { uri, text } => Some(Cow::Owned(format!("[attached: {uri}]\n{text}"))),
            Content::ResourceLink { uri, name } => Some(Cow::Owned(format!("[link: {name} {uri}]"))),
            Content::Image { mime_type, uri, .. } => {
                Some(Cow::Owned(format!("[image: {}]", uri.as_ref().unwrap_or(mime_type))))
            }
            Content::Document { mime_type, name, .. } => {
                Some(Cow::Owned(format!("[document: {}]", name.as_ref().unwrap_or(mime_type))))
            }
            Content::Search(search) => Some(Cow::Owned(search.text())),
            Content::Thinking { .. } | Content::Call(_) => None,
        })
        .collect();
    Cow::Owned(parts.join("\n\n"))
}

/// Returns a call's inputs with unescaped texts: lines of a file can't be found in JSON strings.
fn call_text(call: &ToolCall) -> String {
    let Some(input) = call.input.as_object() else { return call.input.to_string() };
    let lines: Vec<String> = input
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => format!("{key}: {text}"),
            value => format!("{key}: {value}"),
        })
        .collect();
    lines.join("\n")
}

fn outcome_text(outcome: &ToolOutcome) -> Cow<'_, str> {
    match (&outcome.whole, outcome.content.as_slice()) {
        (Some(whole), _) => Cow::Borrowed(whole),
        (None, [OutcomeContent::Text { text }]) => Cow::Borrowed(text),
        (None, _) => Cow::Owned(outcome.model_text()),
    }
}
