//! Converts a hook's result into a [`HookOutput`]. The only place that knows all spellings.
//!
//! Scripts were written against several documents: `result` or `action`, messages as strings or objects,
//! follow-ups under two names. A field of the wrong type is ignored with a warning; the other fields still
//! count. `null` counts as missing. Unknown fields are ignored; so are known fields that have no meaning at
//! the event, with a warning unless they are empty. Claude Code's results are handled elsewhere.

mod round;

use serde_json::{Map, Value};

use super::event::HookEvent;
use super::fields::{ObjectFields, block_text};
use super::output::{HookOutput, PermissionDecision, RequestedEdit, RequestedEdits, ResultChange, Utterance};
use super::read::shown;
use epitome_thread::terminal_text::plain;
use epitome_thread::{PartId, Role, Seq};
use round::round;

/// Result fields of `turn_end` and `agent_stop`.
const ROUND_FIELDS: &str = "result action messages follow_up_messages replace_messages callback callback_args \
    target_conversation_id continue preserve_recent context_edits revision async notice";

/// Fields that only Claude Code defines; here they only indicate that a line is a result.
const CLAUDE_FIELDS: &str = "hookSpecificOutput stopReason suppressOutput systemMessage";

/// The fields that have a meaning at an event.
fn fields_of(event: HookEvent) -> &'static str {
    match event {
        HookEvent::UserMessageSend => "blocked reason message context notice",
        HookEvent::BeforeToolCall => "blocked reason input decision notice",
        HookEvent::AfterToolCall => "output output_text context notice",
        HookEvent::TurnEnd | HookEvent::AgentStop => ROUND_FIELDS,
        HookEvent::PreCompact => {
            "blocked reason custom_instructions context summary context_edits revision notice"
        }
        HookEvent::SessionStart | HookEvent::TaskCompleted => "context notice",
        HookEvent::PermissionRequest => "decision reason notice",
        HookEvent::PostCompact
        | HookEvent::SessionEnd
        | HookEvent::TurnFailed
        | HookEvent::Notification
        | HookEvent::SubagentStart => "notice",
    }
}

fn contains(fields: &str, name: &str) -> bool {
    fields.split(' ').any(|field| field == name)
}

/// Whether results have this field at any event.
pub fn is_known(name: &str) -> bool {
    contains(CLAUDE_FIELDS, name) || HookEvent::ALL.iter().any(|event| contains(fields_of(*event), name))
}

/// Normalizes a result for the event at which it was printed.
pub fn normalise(event: HookEvent, object: &Map<String, Value>) -> HookOutput {
    let mut fields = ObjectFields::default();
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        if contains(fields_of(event), name) {
            fields.put(name, value);
        } else if is_known(name) && says_something(value) {
            fields.warn(format!("`{name}` has no meaning in {event}; it was ignored"));
        }
    }
    // Fields that have no meaning at the event are not among `fields`.
    let mut output = HookOutput { notice: fields.text("notice"), ..HookOutput::default() };
    if let HookEvent::TurnEnd | HookEvent::AgentStop = event {
        round(&mut fields, &mut output);
    } else {
        let reason = fields.text("reason");
        output.block = fields.flag("blocked").then(|| reason.clone());
        output.decision = decision(&mut fields);
        output.decision_reason = output.decision.and(reason);
        output.input = fields.object("input").cloned();
        output.message = fields.text("message");
        output.output = result_change(&mut fields);
        output.output_text = fields.exact_text("output_text");
        output.custom_instructions = fields.text("custom_instructions");
        output.context = fields.texts("context");
        output.summary = fields.text("summary");
        output.edits = edits(&mut fields);
    }
    output.warnings = fields.into_warnings();
    output
}

/// Whether a value is not empty. Scripts that fill in every field print `false`, zero and empty values.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
    }
}

fn decision(fields: &mut ObjectFields<'_>) -> Option<PermissionDecision> {
    let word = fields.text("decision")?;
    let decision = match word.to_ascii_lowercase().as_str() {
        // Claude Code's older hooks use it. A guard must not be ignored because of its spelling.
        "block" => Some(PermissionDecision::Deny),
        word => PermissionDecision::parse(word),
    };
    if decision.is_none() {
        fields.warn_value("decision", &word, "allow, deny or ask");
    }
    decision
}

fn result_change(fields: &mut ObjectFields<'_>) -> Option<ResultChange> {
    let object = fields.object("output")?;
    let mut inner = ObjectFields::new("output", object);
    let metadata_type = inner.text("metadataType").or_else(|| inner.text("metadata_type"));
    let change = ResultChange {
        success: inner.optional_flag("success"),
        error: inner.exact_text("error"),
        metadata_type,
        metadata: inner.any("metadata").cloned(),
    };
    fields.take_warnings(inner);
    Some(change)
}

/// Why a message or an edit is invalid, to follow its name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ItemError {
    #[error("is neither text nor an object")]
    NeitherTextNorObject,
    #[error("is not an object")]
    NotAnObject,
    #[error("has no {0}")]
    Missing(&'static str),
    #[error("has {0} that is not text")]
    NoText(&'static str),
    #[error("has blank `content`")]
    Blank,
    #[error("has the role {0:?}")]
    Role(String),
    #[error("has the entry {0:?}, which is not an id")]
    Entry(String),
    #[error("has the op {0:?}, which is not known")]
    Op(String),
}

/// Parses a message: a string (from the user), or an object with `role` and `content`.
pub(super) fn utterance(value: &Value) -> Result<Utterance, ItemError> {
    match value {
        Value::String(text) => Ok(Utterance { role: Role::User, text: plain(text.clone()) }),
        Value::Object(object) => {
            let role = match object.get("role") {
                None | Some(Value::Null) => Role::User,
                Some(Value::String(word)) => serde_json::from_value(word.to_ascii_lowercase().into())
                    .map_err(|_| ItemError::Role(shown(word)))?,
                Some(_) => return Err(ItemError::NoText("a role")),
            };
            let content = object.get("content").ok_or(ItemError::Missing("content"))?;
            let text = content_text(content).ok_or(ItemError::NoText("content"))?;
            Ok(Utterance { role, text: plain(text) })
        }
        _ => Err(ItemError::NeitherTextNorObject),
    }
}

/// Content as text: a string, or a list of strings and text blocks, joined by blank lines.
fn content_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            let texts: Option<Vec<&str>> = blocks.iter().map(block_text).collect();
            texts.map(|texts| texts.join("\n\n"))
        }
        _ => None,
    }
}

/// Parses the edits. If one is invalid, none are returned.
fn edits(fields: &mut ObjectFields<'_>) -> Option<RequestedEdits> {
    let revision = fields.any("revision").and_then(|value| {
        let number = value.as_u64().or_else(|| value.as_str()?.trim_start_matches('e').parse().ok());
        if number.is_none() {
            fields.warn_type("revision", "a number", value);
        }
        number.map(Seq)
    });
    let items = fields.list("context_edits");
    let mut edits = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        match edit(item) {
            Ok(edit) => edits.push(edit),
            Err(why) => {
                fields.warn(format!("`context_edits[{at}]` {why}; none of the edits was made"));
                return None;
            }
        }
    }
    (!edits.is_empty()).then_some(RequestedEdits { revision, edits })
}

fn edit(value: &Value) -> Result<RequestedEdit, ItemError> {
    let object = value.as_object().ok_or(ItemError::NotAnObject)?;
    let op = object.get("op").and_then(Value::as_str).ok_or(ItemError::Missing("`op`"))?;
    let entry = || {
        let id = object.get("entry").and_then(Value::as_str).ok_or(ItemError::Missing("`entry`"))?;
        id.parse::<PartId>().map_err(|()| ItemError::Entry(shown(id)))
    };
    let content = || {
        let text = object
            .get("content")
            .and_then(content_text)
            .ok_or(ItemError::Missing("`content` that is text"))?;
        if text.trim().is_empty() { Err(ItemError::Blank) } else { Ok(text) }
    };
    match op {
        "pin" => Ok(RequestedEdit::Pin(entry()?)),
        "unpin" => Ok(RequestedEdit::Unpin(entry()?)),
        "mask" => {
            let note = object.get("note").and_then(Value::as_str).unwrap_or_default();
            Ok(RequestedEdit::Mask(entry()?, note.to_owned()))
        }
        "drop" => Ok(RequestedEdit::Drop(entry()?)),
        "replace" => Ok(RequestedEdit::Replace(entry()?, content()?)),
        "append" => {
            content()?;
            Ok(RequestedEdit::Append(utterance(value)?))
        }
        other => Err(ItemError::Op(shown(other))),
    }
}
