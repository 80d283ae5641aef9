//! Builds single updates, each from one internal value. Pure and stateless: `to_wire` tracks what a client has been
//! shown.

use std::path::PathBuf;

use agent_client_protocol::v1::schema as wire_v1;
use agent_client_protocol::v2::schema as wire;
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};
use wire::SessionUpdate;

use super::envelope::session_update;
use super::model::{AcpVersion, MessagePiece, TextUpdate, Update, UpdateLine};
use epitome_session_api::{NoticeSeverity, TextKind};
pub(super) use epitome_thread::visible::fenced;
use epitome_thread::visible::visible_line;
use epitome_thread::{Content, Entry, Message, MessageId, Origin, ReplyCut, StopReason, describe, text};

/// Longest text of one chunk, in bytes: some clients read lines of at most 10 MiB.
const CHUNK_TEXT_BYTES_MAX: usize = 1024 * 1024;

/// Largest document embedded in an update, in bytes of base64, for the same reason; a larger one is only
/// linked.
const DOCUMENT_BASE64_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The id of one part of an agent's message. Each part is a separate message for the client, because text
/// before and after a call, or thinking and reply, would otherwise run together.
pub(super) fn part_id(message: MessageId, part: u32) -> wire::MessageId {
    wire::MessageId::new(format!("{message}.{part}"))
}

/// Appends text of an agent's message, split into pieces that clients can read.
pub(super) fn chunks(
    kind: TextKind,
    id: &wire::MessageId,
    piece: MessagePiece,
    text: String,
    updates: &mut Vec<Update>,
) {
    let mut send = |text: String, piece| {
        updates.push(Update::Text(TextUpdate { kind, id: id.clone(), text, piece }));
    };
    if text.len() > CHUNK_TEXT_BYTES_MAX {
        for (index, part) in pieces(&text).enumerate() {
            send(part.to_owned(), if index == 0 { piece } else { MessagePiece::More });
        }
    } else if !text.is_empty() {
        send(text, piece);
    }
}

/// Splits text into pieces of at most `CHUNK_TEXT_BYTES_MAX`.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(CHUNK_TEXT_BYTES_MAX));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Appends one of Epitome's own sentences, as a separate message.
pub(super) fn agent_line(id: &str, text: String, updates: &mut Vec<Update>) {
    chunks(TextKind::Reply, &wire::MessageId::new(id), MessagePiece::First, text, updates);
}

/// A follow-up prompt by a hook, shown as a line of the agent.
pub(super) fn follow_up(message: &Message, hook: &str, updates: &mut Vec<Update>) {
    agent_line(&message.id.to_string(), text::follow_up(hook, message), updates);
}

/// Shows an entry by its one-line description.
pub(super) fn entry_line(entry: &Entry, updates: &mut Vec<Update>) {
    if let Some(line) = describe(&entry.change).line {
        agent_line(&entry.seq.to_string(), line, updates);
    }
}

/// Puts an empty line before one of Epitome's texts that follows other text. Most clients separate messages by id; the
/// others would append it directly to the last word.
pub(super) fn set_apart(update: &mut Update) {
    if let Update::Text(text) = update {
        text.text.insert_str(0, "\n\n");
    }
}

/// The id of the message that a piece of the agent's text belongs to.
pub(super) fn line_id(update: &Update) -> Option<wire::MessageId> {
    match update {
        Update::Text(TextUpdate { kind: TextKind::Reply, id, .. }) => Some(id.clone()),
        _ => None,
    }
}

/// An empty line appended to one of Epitome's lines when the model's text follows, for clients that don't separate
/// messages by id.
pub(super) fn empty_line(line: &wire::MessageId) -> Update {
    Update::Text(TextUpdate {
        kind: TextKind::Reply,
        id: line.clone(),
        text: "\n\n".to_owned(),
        piece: MessagePiece::More,
    })
}

/// The kind of text that a client shows last after this update, given what it showed last before.
pub(super) fn last_shown(update: &Update, before: Option<TextKind>) -> Option<TextKind> {
    match update {
        Update::Text(text) => Some(text.kind),
        // Shown outside the conversation.
        Update::Commands { .. } | Update::Options { .. } | Update::Mode(_) | Update::State(_) => before,
        Update::Shared(update)
            if matches!(**update, SessionUpdate::UsageUpdate(_) | SessionUpdate::SessionInfoUpdate(_)) =>
        {
            before
        }
        Update::Shared(_)
        | Update::UserMessage { .. }
        | Update::Call(_)
        | Update::TerminalOutput { .. }
        | Update::TerminalReplaced { .. }
        | Update::Terminal { .. }
        | Update::Plan { .. } => None,
    }
}

/// Appends a message of the user. A message from a recipe shows the typed command instead of the recipe's text.
pub(super) fn user_message(message: &Message, origin: &Origin, updates: &mut Vec<Update>) {
    let id = wire::MessageId::new(message.id.to_string());
    let mut shown = Vec::with_capacity(message.content.len());
    let typed = if let Origin::Recipe { typed, .. } = origin { Some(typed) } else { None };
    shown.extend(typed.map(wire::ContentBlock::from));
    for content in &message.content {
        match content {
            Content::Text { .. } if typed.is_some() => {}
            Content::Text { text } => shown.extend(pieces(text).map(wire::ContentBlock::from)),
            Content::Document { data, name, .. } if data.len() > DOCUMENT_BASE64_BYTES_MAX => {
                let name = name.as_deref().unwrap_or(UNNAMED);
                let link = wire::ResourceLink::new(name, attachment_uri(name));
                shown.push(wire::ContentBlock::ResourceLink(link));
            }
            other => shown.extend(prompt_block(other, UNNAMED)),
        }
    }
    if !shown.is_empty() {
        let author = message.author.as_ref();
        let meta = author.and_then(|author| json!({ "epitome": { "author": author } }).as_object().cloned());
        updates.push(Update::UserMessage { id, content: shown, meta });
    }
}

/// A part of a prompt as a block; `None` for content of models only. `unnamed` is the name of a document without one.
pub fn prompt_block(content: &Content, unnamed: &str) -> Option<wire::ContentBlock> {
    let embedded = |resource| wire::ContentBlock::Resource(wire::EmbeddedResource::new(resource));
    Some(match content {
        Content::Text { text } => text.as_str().into(),
        Content::Image { mime_type, data, uri } => {
            let image = wire::ImageContent::new(data, mime_type.as_str()).uri(uri.clone());
            wire::ContentBlock::Image(image)
        }
        Content::Document { mime_type, data, name } => {
            let blob =
                wire::BlobResourceContents::new(data, attachment_uri(name.as_deref().unwrap_or(unnamed)));
            let blob = blob.mime_type(mime_type.as_str());
            embedded(wire::EmbeddedResourceResource::BlobResourceContents(blob))
        }
        Content::Resource { uri, text } => {
            let text = wire::TextResourceContents::new(text, uri);
            embedded(wire::EmbeddedResourceResource::TextResourceContents(text))
        }
        Content::ResourceLink { uri, name } => {
            wire::ContentBlock::ResourceLink(wire::ResourceLink::new(name, uri))
        }
        Content::Thinking { .. } | Content::Call(_) | Content::Search(_) => return None,
    })
}

/// Characters encoded in a URI: all except those that RFC 3986 calls unreserved.
const NOT_IN_A_NAME: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The name of a document that has none.
const UNNAMED: &str = "document";

/// A URI for an attachment that no longer exists as a file; clients show the name at its end.
fn attachment_uri(name: &str) -> String {
    format!("attachment:///{}", utf8_percent_encode(name, NOT_IN_A_NAME))
}

/// Why a reply was cut short; `None` if the user cancelled it.
pub(super) fn cut_line(cut: &ReplyCut) -> Option<String> {
    Some(match cut {
        ReplyCut::Cancelled => return None,
        ReplyCut::MaxTokens => "Cut short: the model reached its output limit.".to_owned(),
        ReplyCut::Refused { reason } if reason.is_empty() => "Cut short: the model declined.".to_owned(),
        ReplyCut::Refused { reason } => format!("Cut short: the model declined: {reason}"),
        ReplyCut::Broken { reason } => format!("Cut short: {reason}"),
        ReplyCut::WindowFull => "Cut short: the model's window was full.".to_owned(),
        ReplyCut::Filtered { reason } => {
            format!("Cut short: a filter of the provider withheld the reply: {reason}")
        }
        ReplyCut::Other { reason } => format!("The model stopped: {reason}"),
    })
}

/// The line that reports how a turn ended, in addition to the prompt's response. The response to a failed turn contains
/// its error, so this line is shown only in a replay.
pub(super) fn ending_line(reason: StopReason, failure: Option<&str>, replay: bool) -> Option<String> {
    match reason {
        StopReason::Interrupted => {
            Some("Interrupted: the agent's process ended before this turn was done.".to_owned())
        }
        StopReason::Failed if replay => Some(match failure {
            Some(failure) => format!("This turn ended with an error: {failure}"),
            None => "This turn ended with an error.".to_owned(),
        }),
        StopReason::Failed
        | StopReason::EndTurn
        | StopReason::MaxTokens
        | StopReason::MaxRounds
        | StopReason::Refusal
        | StopReason::Cancelled => None,
    }
}

/// The session's title, and the time of its last activity if that is now.
pub(super) fn info_update(title: &str, at: Option<u64>) -> Update {
    let mut update = wire::SessionInfoUpdate::new().title(visible_line(title));
    if let Some(at) = at {
        update = update.updated_at(timestamp(at));
    }
    Update::shared(SessionUpdate::SessionInfoUpdate(update))
}

/// An update for clients that read logs only: it has no fields of its own, so that others ignore it.
pub(super) fn log_update(reported: Value) -> Update {
    Update::shared(SessionUpdate::SessionInfoUpdate(
        wire::SessionInfoUpdate::new().meta(epitome_meta(reported)),
    ))
}

/// `_meta` with a field of Epitome's own clients.
pub fn epitome_meta(own: Value) -> Map<String, Value> {
    Map::from_iter([("epitome".to_owned(), own)])
}

/// Formats milliseconds since the Unix epoch as RFC 3339, in UTC.
pub fn timestamp(millis: u64) -> String {
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX).to_string()
}

/// Builds a notice. The first line of the text is the title, the rest is the description.
pub(super) fn notice(severity: NoticeSeverity, text: &str) -> Update {
    let severity = match severity {
        NoticeSeverity::Info => wire::NoticeSeverity::Info,
        NoticeSeverity::Warning => wire::NoticeSeverity::Warning,
        NoticeSeverity::Error => wire::NoticeSeverity::Error,
    };
    let text = text.trim();
    let (title, rest) = text.split_once('\n').unwrap_or((text, ""));
    let rest = Some(rest.trim()).filter(|rest| !rest.is_empty()).map(str::to_owned);
    Update::shared(SessionUpdate::Notice(wire::Notice::new(severity, title.trim_end()).description(rest)))
}

/// The line with which a front end shows why its session waits for a daemon.
pub fn waiting_line(session: &str, text: &str, version: AcpVersion) -> Vec<u8> {
    let update = match version {
        AcpVersion::V1 => {
            let chunk = wire_v1::ContentChunk::new(format!("{text}\n\n").into());
            UpdateLine::V1(wire_v1::SessionUpdate::AgentThoughtChunk(chunk))
        }
        AcpVersion::V2 => {
            UpdateLine::V2(SessionUpdate::Notice(wire::Notice::new(wire::NoticeSeverity::Warning, text)))
        }
    };
    line_of(session, &update)
}

/// The line with which a front end shows that a session no longer runs. Only in version 2.
pub fn idle_line(session: &str) -> Vec<u8> {
    let idle = wire::StateUpdate::Idle(wire::IdleStateUpdate::new());
    line_of(session, &UpdateLine::V2(SessionUpdate::StateUpdate(idle)))
}

fn line_of(session: &str, update: &UpdateLine) -> Vec<u8> {
    let mut line = Vec::new();
    session_update(&mut line, session, update);
    line
}

/// A piece of the agent's text.
pub(super) fn chunk(TextUpdate { kind, id, text, piece: _ }: TextUpdate) -> SessionUpdate {
    let chunk = wire::ContentChunk::new(wire::ContentBlock::from(text), id);
    match kind {
        TextKind::Reply => SessionUpdate::AgentMessageChunk(chunk),
        TextKind::Thinking => SessionUpdate::AgentThoughtChunk(chunk),
    }
}

/// A path that can be serialized even if it is not UTF-8.
pub fn wire_path(path: &std::path::Path) -> PathBuf {
    PathBuf::from(path.to_string_lossy().into_owned())
}
