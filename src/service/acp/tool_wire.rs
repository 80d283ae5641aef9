//! Translates tool calls, their results and permission requests to the `model`. Pure.
//!
//! Texts are truncated here: clients read lines of at most 10 MiB, and old output makes up most of a long
//! session.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use agent_client_protocol::v2::schema as wire;
use serde_json::Value;
use wire::ToolCallStatus;

use super::model::{CallContent, CallUpdate, FileDiff, PermissionCard, TerminalChange, TerminalExit, Update};
use super::updates::fenced;
use epitome_secrets::has_mask;
use epitome_session_api::PermissionRequest;
use epitome_thread::visible::{exact, exact_line, invisible_in};
use epitome_thread::{
    CallDisplay, CallId, OutcomeContent, OutcomeStatus, RAW_FILES, ToolCall, ToolDisplay, ToolKind,
    ToolOutcome, text,
};

/// How much of a call is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDetail {
    /// A permission request: everything that it asks about, with limits above those of a command or a call's arguments.
    Prompt,
    /// A running call: everything within generous limits.
    Live,
    /// A past call: enough to see what it did.
    Replay,
}

impl CallDetail {
    /// Longest text of a result, and longest string within raw input and output, in bytes.
    fn text_bytes_max(self) -> usize {
        match self {
            CallDetail::Prompt => 4 * 1024 * 1024,
            CallDetail::Live => 256 * 1024,
            CallDetail::Replay => 8 * 1024,
        }
    }

    /// Longest diff in bytes. A longer one is omitted, because a truncated diff would be wrong.
    fn diff_bytes_max(self) -> usize {
        match self {
            CallDetail::Prompt | CallDetail::Live => 2 * 1024 * 1024,
            CallDetail::Replay => 256 * 1024,
        }
    }
}

/// Largest image shown, in bytes of base64. A larger one is only named.
const IMAGE_BYTES_MAX: usize = 5 * 1024 * 1024;

/// Lines with invisible characters that are listed below a diff.
const INVISIBLE_LINES_MAX: usize = 20;

/// Longest such line, in bytes.
const INVISIBLE_LINE_BYTES_MAX: usize = 1_000;

/// The ids of a permission request's options.
pub const ALLOW_ONCE: &str = "allow_once";
pub const ALLOW_ALWAYS: &str = "allow_always";
pub const REJECT_ALWAYS: &str = "reject_always";
pub const REJECT_ONCE: &str = "reject_once";

/// Whether the call may be shown as a terminal.
pub fn has_terminal(call: &ToolCall) -> bool {
    call.card.kind == ToolKind::Execute
}

/// Announces a call before it runs.
pub fn announcement(call: &ToolCall, terminal: Option<TerminalChange>, detail: CallDetail) -> CallUpdate {
    CallUpdate {
        id: call.id.0.clone(),
        is_new: true,
        name: Some(call.name.clone()),
        title: Some(title(&call.card, &call.name)),
        kind: Some(call.card.kind),
        status: Some(ToolCallStatus::Pending),
        content: terminal.as_ref().map(|_| vec![CallContent::Terminal]),
        locations: Some(call.card.locations.clone()),
        raw_input: Some(capped(&call.input, detail.text_bytes_max())),
        terminal,
        ..CallUpdate::default()
    }
}

/// The terminal of a call, with its working directory if known.
pub fn terminal_of(call: &ToolCall, cwd: Option<&Path>) -> TerminalChange {
    let command = call.input.get("command").and_then(Value::as_str);
    let command = cut(command.unwrap_or(&call.card.title), CallDetail::Replay.text_bytes_max());
    TerminalChange::Created { command, cwd: cwd.map(Path::to_path_buf) }
}

/// The update for a call whose input was changed by a hook.
pub fn changed(call: &CallId, input: &Value, card: &CallDisplay, detail: CallDetail) -> CallUpdate {
    CallUpdate {
        id: call.0.clone(),
        raw_input: Some(capped(input, detail.text_bytes_max())),
        // An empty title would replace the call's title.
        title: (!card.title.is_empty()).then(|| exact_line(&card.title).into_owned()),
        locations: (!card.locations.is_empty()).then(|| card.locations.clone()),
        ..CallUpdate::default()
    }
}

/// The newest output of a running call.
pub fn progress(call: &CallId, tail: &str) -> CallUpdate {
    CallUpdate {
        id: call.0.clone(),
        status: Some(ToolCallStatus::InProgress),
        content: Some(vec![CallContent::Text(fenced("", tail))]),
        ..CallUpdate::default()
    }
}

/// The update for a call that starts to run. A permission request may have replaced its terminal with other content.
pub fn started(call: &CallId, terminal: bool) -> CallUpdate {
    CallUpdate {
        id: call.0.clone(),
        status: Some(ToolCallStatus::InProgress),
        content: terminal.then(|| vec![CallContent::Terminal]),
        can_cancel: Some(true),
        ..CallUpdate::default()
    }
}

/// The update for a call's result. It always has a status, and diffs come first: editors rely on both.
pub fn outcome(outcome: &ToolOutcome, detail: CallDetail) -> CallUpdate {
    finished(outcome, shown_content(outcome, detail), detail)
}

/// The updates for the result of a call shown as a terminal that received `streamed` bytes of output. If it received
/// none, the output is sent first; if some is missing, the text is shown as well.
pub fn terminal_outcome(outcome: &ToolOutcome, streamed: usize, detail: CallDetail) -> Vec<Update> {
    let mut updates = Vec::with_capacity(2);
    if streamed == 0 {
        let text = cut(&outcome.model_text(), detail.text_bytes_max());
        updates.push(Update::TerminalOutput { id: outcome.call.clone(), text, bytes: None });
    }
    let mut content = vec![CallContent::Terminal];
    if streamed > 0 && printed(outcome).is_some_and(|output| output.len() > streamed) {
        content.extend(shown_content(outcome, detail));
    }
    updates.push(ended(outcome, content, detail));
    updates
}

/// Like [`terminal_outcome`], for a client whose terminals are run by the agent: unless all bytes that the command
/// wrote were sent, the logged text replaces them. A key that was streamed in two pieces may be masked only in the log.
pub fn own_terminal_outcome(outcome: &ToolOutcome, has_all: bool, detail: CallDetail) -> Vec<Update> {
    let mut updates = Vec::with_capacity(2);
    let whole = match printed(outcome) {
        Some(output) => Cow::Borrowed(output),
        None => Cow::Owned(outcome.model_text()),
    };
    if !whole.is_empty() && (!has_all || has_mask(&whole)) {
        let text = cut(&whole, detail.text_bytes_max());
        updates.push(Update::TerminalReplaced { id: outcome.call.clone(), text });
    }
    match runs_on(outcome) {
        // The terminal stays open, and the user can still cancel it.
        true => updates.push(Update::Call(Box::new(finished(outcome, vec![CallContent::Terminal], detail)))),
        false => updates.push(ended(outcome, vec![CallContent::Terminal], detail)),
    }
    updates
}

/// Whether the command of this call continues in the background.
pub fn runs_on(outcome: &ToolOutcome) -> bool {
    outcome
        .raw
        .as_ref()
        .and_then(|raw| raw.pointer("/background/state"))
        .is_some_and(|state| state == "running")
}

fn ended(outcome: &ToolOutcome, content: Vec<CallContent>, detail: CallDetail) -> Update {
    let number = |key: &str| outcome.raw.as_ref().and_then(|raw| raw.get(key)).and_then(Value::as_i64);
    let exit = TerminalExit { code: number("exitCode"), signal: number("signal") };
    let update = finished(outcome, content, detail);
    Update::Call(Box::new(CallUpdate { terminal: Some(TerminalChange::Ended(exit)), ..update }))
}

fn printed(outcome: &ToolOutcome) -> Option<&str> {
    outcome.raw.as_ref().and_then(|raw| raw.get("stdout")).and_then(Value::as_str)
}

fn finished(outcome: &ToolOutcome, content: Vec<CallContent>, detail: CallDetail) -> CallUpdate {
    let status = match outcome.status {
        OutcomeStatus::Completed => ToolCallStatus::Completed,
        OutcomeStatus::Failed | OutcomeStatus::Denied => ToolCallStatus::Failed,
        OutcomeStatus::Interrupted => ToolCallStatus::Cancelled,
    };
    let raw = outcome.raw.as_ref().filter(|raw| has_more_than_files(raw));
    CallUpdate {
        id: outcome.call.0.clone(),
        status: Some(status),
        content: Some(content),
        locations: (!outcome.locations.is_empty()).then(|| outcome.locations.clone()),
        raw_output: raw.map(|raw| capped(raw, detail.text_bytes_max())),
        can_cancel: Some(false),
        ..CallUpdate::default()
    }
}

/// Whether the raw output contains more than the file states that the model has seen. Those are internal to the log,
/// and editors that prefer raw output to content would show them instead of the file.
fn has_more_than_files(raw: &Value) -> bool {
    raw.as_object().is_none_or(|keys| keys.keys().any(|key| key != RAW_FILES))
}

/// A permission request with at most one option of each kind, because editors bind keys to kinds. Invisible characters
/// are escaped everywhere except in a diff, which has to be exact: those that it adds are listed below it.
pub fn permission(ask: &PermissionRequest) -> PermissionCard {
    // Content replaces what the call already shows; an empty list would remove its terminal.
    let content = (!ask.preview.is_empty()).then(|| {
        let mut content = diffs_first(&escape_preview(&ask.preview), CallDetail::Prompt);
        content.extend(ask.preview.iter().filter_map(invisible_added));
        content
    });
    let call = CallUpdate {
        id: ask.call.0.clone(),
        title: Some(title(&ask.card, &ask.tool)),
        name: Some(ask.tool.clone()),
        kind: Some(ask.card.kind),
        status: Some(ToolCallStatus::Pending),
        raw_input: Some(capped(&ask.input, CallDetail::Live.text_bytes_max())),
        content,
        locations: (!ask.card.locations.is_empty()).then(|| ask.card.locations.clone()),
        ..CallUpdate::default()
    };
    let option = |id: &'static str, name: String, kind| wire::PermissionOption::new(id, name, kind);
    let mut options = vec![option(ALLOW_ONCE, "Allow".to_owned(), wire::PermissionOptionKind::AllowOnce)];
    if let Some(always) = &ask.always {
        let name = format!("Always allow: {}", exact_line(always));
        options.push(option(ALLOW_ALWAYS, name, wire::PermissionOptionKind::AllowAlways));
    }
    options.push(option(REJECT_ONCE, "Reject".to_owned(), wire::PermissionOptionKind::RejectOnce));
    if let Some(never) = &ask.never {
        let name = format!("Never allow: {}", exact_line(never));
        options.push(option(REJECT_ALWAYS, name, wire::PermissionOptionKind::RejectAlways));
    }
    PermissionCard { call, options }
}

/// The content of a permission request, with the invisible characters of its texts escaped.
fn escape_preview(preview: &[ToolDisplay]) -> Vec<ToolDisplay> {
    let escaped = |shown: &ToolDisplay| match shown {
        ToolDisplay::Text { text } => ToolDisplay::Text { text: exact(text).into_owned() },
        ToolDisplay::Diff { .. } => shown.clone(),
    };
    preview.iter().map(escaped).collect()
}

/// Lists the invisible characters that a change adds to a file, with their lines.
fn invisible_added(shown: &ToolDisplay) -> Option<CallContent> {
    let ToolDisplay::Diff { path, old, new } = shown else { return None };
    let known: HashSet<&str> = old.as_deref().unwrap_or_default().lines().collect();
    let lines: Vec<&str> = new
        .lines()
        .filter(|line| !known.contains(line) && !invisible_in(line).is_empty())
        .take(INVISIBLE_LINES_MAX + 1)
        .collect();
    if lines.is_empty() {
        return None;
    }
    let mut listed: String = lines
        .iter()
        .take(INVISIBLE_LINES_MAX)
        .map(|line| format!("{}\n", cut(&exact_line(line), INVISIBLE_LINE_BYTES_MAX)))
        .collect();
    if lines.len() > INVISIBLE_LINES_MAX {
        listed.push_str("…\n");
    }
    let path = path.display().to_string();
    Some(CallContent::Text(format!(
        "This change of {} has characters that can't be seen, shown here as `\\u{{…}}`:\n\n{}",
        exact_line(&path),
        fenced("", &listed)
    )))
}

fn shown_content(outcome: &ToolOutcome, detail: CallDetail) -> Vec<CallContent> {
    if let Some(refused) = text::refused_by_user(outcome) {
        return vec![CallContent::Text(refused.to_owned())];
    }
    let is_image = |content: &&OutcomeContent| matches!(content, OutcomeContent::Image { .. });
    let mut content = diffs_first(&outcome.shown, detail);
    // Display content replaces the text that the model reads, but not its images.
    let rest = outcome.content.iter().filter(|content| outcome.shown.is_empty() || is_image(content));
    let show = |content: &OutcomeContent| match content {
        OutcomeContent::Text { text } if text.is_empty() => None,
        OutcomeContent::Text { text } => {
            let text = cut(text, detail.text_bytes_max());
            Some(CallContent::Text(match outcome.status {
                // Epitome's message about a call that did not run, not output.
                OutcomeStatus::Denied | OutcomeStatus::Interrupted => text,
                OutcomeStatus::Completed | OutcomeStatus::Failed => fenced("", &text),
            }))
        }
        OutcomeContent::Image { mime_type, data } if data.len() <= IMAGE_BYTES_MAX => {
            Some(CallContent::Image { mime_type: mime_type.clone(), data: data.clone() })
        }
        OutcomeContent::Image { mime_type, data } => {
            Some(CallContent::Text(format!("({mime_type}, {} bytes: too large to show)", data.len() / 4 * 3)))
        }
        // Editors can't show documents, and the user has the file.
        OutcomeContent::Document { mime_type, data, name } => {
            let name = name.as_ref().map(|name| format!("{name}, ")).unwrap_or_default();
            Some(CallContent::Text(format!("({name}{mime_type}, {} bytes)", data.len() / 4 * 3)))
        }
    };
    content.extend(rest.filter_map(show));
    content
}

fn diffs_first(shown: &[ToolDisplay], detail: CallDetail) -> Vec<CallContent> {
    let is_diff = |shown: &&ToolDisplay| matches!(shown, ToolDisplay::Diff { .. });
    let diffs = shown.iter().filter(is_diff);
    let texts = shown.iter().filter(|shown| !is_diff(shown));
    diffs.chain(texts).map(|shown| show(shown, detail)).collect()
}

fn show(shown: &ToolDisplay, detail: CallDetail) -> CallContent {
    match shown {
        ToolDisplay::Text { text } => CallContent::Text(cut(text, detail.text_bytes_max())),
        ToolDisplay::Diff { path, old, new } => CallContent::Diff(FileDiff {
            path: path.clone(),
            old: old.clone(),
            new: new.clone(),
            bytes_max: detail.diff_bytes_max(),
        }),
    }
}

/// The title with invisible characters escaped, or the tool's name if it is empty: some editors show nothing for an
/// empty title.
fn title(card: &CallDisplay, tool: &str) -> String {
    let title = if card.title.is_empty() { tool } else { card.title.as_str() };
    exact_line(title).into_owned()
}

/// Shortens a long text to its beginning and end.
fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(bytes_max / 2)];
    let tail = &text[text.ceil_char_boundary(text.len() - bytes_max / 2)..];
    let left_out = text.len() - head.len() - tail.len();
    format!("{head}\n… {left_out} bytes are not shown …\n{tail}")
}

/// Shortens the long strings in a JSON value.
fn capped(value: &Value, bytes_max: usize) -> Value {
    match value {
        Value::String(text) => Value::String(cut(text, bytes_max)),
        Value::Array(values) => Value::Array(values.iter().map(|value| capped(value, bytes_max)).collect()),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(name, value)| (name.clone(), capped(value, bytes_max))).collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
