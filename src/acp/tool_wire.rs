//! Translates tool calls, their results and permission requests to wire types. Pure.
//!
//! Texts are truncated here: clients read lines of at most 10 MiB, and old output makes up most of a long
//! session.

use std::collections::HashSet;
use std::path::Path;

use agent_client_protocol::v1::schema as wire;
use serde_json::{Map, Value, json};

use super::updates::{fenced, wire_path};
use epitome_session::PermissionRequest;
use epitome_thread::visible::{invisible_in, visible, visible_line};
use epitome_thread::{
    CallDisplay, CallId, Location, OutcomeContent, OutcomeStatus, RAW_FILES, SessionId, ToolCall,
    ToolDisplay, ToolKind, ToolOutcome, text,
};

/// How much of a call is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDetail {
    /// A permission request: everything that it asks about. A command or the arguments of a call have less.
    Prompt,
    /// A running call: everything within reason.
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

    /// Longest diff, old and new text together, in bytes. A longer one is omitted, because a truncated diff
    /// would be wrong.
    fn diff_bytes_max(self) -> usize {
        match self {
            CallDetail::Prompt | CallDetail::Live => 2 * 1024 * 1024,
            CallDetail::Replay => 256 * 1024,
        }
    }
}

/// Largest image shown, in bytes of base64; a larger one is only named.
const IMAGE_BYTES_MAX: usize = 5 * 1024 * 1024;

/// Lines with invisible characters that are listed below a diff.
const INVISIBLE_LINES_MAX: usize = 20;

/// Longest of these lines, in bytes.
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

/// A terminal that is announced to clients with its call.
pub struct TerminalInfo<'a> {
    /// Where the command runs, once it is known.
    pub cwd: Option<&'a Path>,
}

/// Announces a call before it runs.
pub fn announcement(
    call: &ToolCall,
    terminal: Option<TerminalInfo<'_>>,
    detail: CallDetail,
) -> wire::ToolCall {
    let announced = wire::ToolCall::new(call.id.0.clone(), title(&call.card, &call.name))
        .name(call.name.clone())
        .kind(kind(call.card.kind))
        .locations(locations(&call.card.locations))
        .raw_input(capped(&call.input, detail.text_bytes_max()));
    let Some(TerminalInfo { cwd }) = terminal else { return announced };
    let shown = wire::ToolCallContent::Terminal(wire::Terminal::new(call.id.0.clone()));
    let mut info = json!({ "terminal_id": call.id.0 });
    if let Some(cwd) = cwd {
        info["cwd"] = json!(wire_path(cwd));
    }
    announced.content(vec![shown]).meta(object("terminal_info", info))
}

/// A call whose input was changed by a hook.
pub fn changed(call: &CallId, input: &Value, card: &CallDisplay, detail: CallDetail) -> wire::ToolCallUpdate {
    let mut fields = wire::ToolCallUpdateFields::new().raw_input(capped(input, detail.text_bytes_max()));
    // An empty title would replace the call's own.
    if !card.title.is_empty() {
        fields = fields.title(visible_line(&card.title));
    }
    if !card.locations.is_empty() {
        fields = fields.locations(locations(&card.locations));
    }
    wire::ToolCallUpdate::new(call.0.clone(), fields)
}

/// The newest output of a running call.
pub fn progress(call: &CallId, tail: &str) -> wire::ToolCallUpdate {
    let fields = wire::ToolCallUpdateFields::new()
        .status(wire::ToolCallStatus::InProgress)
        .content(vec![wire::ToolCallContent::from(fenced("", tail))]);
    wire::ToolCallUpdate::new(call.0.clone(), fields)
}

/// The new output of a running call, for a client that shows a terminal.
pub fn terminal_output(call: &CallId, output: &str) -> wire::ToolCallUpdate {
    let fields = wire::ToolCallUpdateFields::new().status(wire::ToolCallStatus::InProgress);
    let meta = object("terminal_output", json!({ "terminal_id": call.0, "data": output }));
    wire::ToolCallUpdate::new(call.0.clone(), fields).meta(meta)
}

/// A call that starts to run. A permission request may have replaced its terminal with other content.
pub fn started(call: &CallId, terminal: bool) -> wire::ToolCallUpdate {
    let mut fields = wire::ToolCallUpdateFields::new().status(wire::ToolCallStatus::InProgress);
    if terminal {
        fields = fields.content(vec![wire::ToolCallContent::Terminal(wire::Terminal::new(call.0.clone()))]);
    }
    wire::ToolCallUpdate::new(call.0.clone(), fields)
}

/// The result of a call. It always has a status, and diffs come first: editors rely on both.
pub fn outcome(outcome: &ToolOutcome, detail: CallDetail) -> wire::ToolCallUpdate {
    finished(outcome, shown_content(outcome, detail), detail)
}

/// The result of a call shown as a terminal, to which `streamed` bytes of output were sent. If that is none,
/// the output is sent first; if some is missing, the text is shown as well.
pub fn terminal_outcome(
    outcome: &ToolOutcome,
    streamed: usize,
    detail: CallDetail,
) -> Vec<wire::ToolCallUpdate> {
    let mut updates = Vec::with_capacity(2);
    if streamed == 0 {
        let text = cut(&outcome.model_text(), detail.text_bytes_max());
        updates.push(terminal_output(&outcome.call, &text));
    }
    let mut content = vec![wire::ToolCallContent::Terminal(wire::Terminal::new(outcome.call.0.clone()))];
    let output = outcome.raw.as_ref().and_then(|raw| raw.get("stdout")).and_then(Value::as_str);
    if streamed > 0 && output.is_some_and(|output| output.len() > streamed) {
        content.extend(shown_content(outcome, detail));
    }
    let number = |key: &str| outcome.raw.as_ref().and_then(|raw| raw.get(key)).and_then(Value::as_i64);
    let mut exit = json!({ "terminal_id": outcome.call.0 });
    if let Some(code) = number("exitCode") {
        exit["exit_code"] = code.into();
    }
    if let Some(signal) = number("signal") {
        exit["signal"] = signal_name(signal).into();
    }
    updates.push(finished(outcome, content, detail).meta(object("terminal_exit", exit)));
    updates
}

/// The name of a signal; clients expect text.
fn signal_name(signal: i64) -> String {
    let names = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (14, "SIGALRM"),
        (15, "SIGTERM"),
    ];
    let name = names.iter().find(|(number, _)| *number == signal).map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("signal {signal}"))
}

fn finished(
    outcome: &ToolOutcome,
    content: Vec<wire::ToolCallContent>,
    detail: CallDetail,
) -> wire::ToolCallUpdate {
    let status = match outcome.status {
        OutcomeStatus::Completed => wire::ToolCallStatus::Completed,
        OutcomeStatus::Failed | OutcomeStatus::Denied | OutcomeStatus::Interrupted => {
            wire::ToolCallStatus::Failed
        }
    };
    let mut fields = wire::ToolCallUpdateFields::new().status(status).content(content);
    if !outcome.locations.is_empty() {
        fields = fields.locations(locations(&outcome.locations));
    }
    if let Some(raw) = outcome.raw.as_ref().filter(|raw| tells_more_than_files(raw)) {
        fields = fields.raw_output(capped(raw, detail.text_bytes_max()));
    }
    wire::ToolCallUpdate::new(outcome.call.0.clone(), fields)
}

/// Whether the raw output contains more than the file states that the model has seen. Those are internal to
/// the log, and editors that prefer raw output to content would show them instead of the file.
fn tells_more_than_files(raw: &Value) -> bool {
    raw.as_object().is_none_or(|keys| keys.keys().any(|key| key != RAW_FILES))
}

/// A permission request with at most one option of each kind, because editors bind keys to kinds. Invisible characters
/// are escaped everywhere but in a diff, which has to be exact: what it adds of them is listed below it.
pub fn permission(session: &SessionId, ask: &PermissionRequest) -> wire::RequestPermissionRequest {
    let mut fields = wire::ToolCallUpdateFields::new()
        .title(title(&ask.card, &ask.tool))
        .name(ask.tool.clone())
        .kind(kind(ask.card.kind))
        .status(wire::ToolCallStatus::Pending)
        .raw_input(capped(&ask.input, CallDetail::Live.text_bytes_max()));
    // Content replaces what the call shows already; an empty list would remove its terminal.
    if !ask.preview.is_empty() {
        let mut content = diffs_first(&escape_preview(&ask.preview), CallDetail::Prompt);
        content.extend(ask.preview.iter().filter_map(invisible_added));
        fields = fields.content(content);
    }
    if !ask.card.locations.is_empty() {
        fields = fields.locations(locations(&ask.card.locations));
    }
    let option = |id: &'static str, name: String, kind| wire::PermissionOption::new(id, name, kind);
    let mut options = vec![option(ALLOW_ONCE, "Allow".to_owned(), wire::PermissionOptionKind::AllowOnce)];
    if let Some(always) = &ask.always {
        let name = format!("Always allow: {}", visible_line(always));
        options.push(option(ALLOW_ALWAYS, name, wire::PermissionOptionKind::AllowAlways));
    }
    options.push(option(REJECT_ONCE, "Reject".to_owned(), wire::PermissionOptionKind::RejectOnce));
    if let Some(never) = &ask.never {
        let name = format!("Never allow: {}", visible_line(never));
        options.push(option(REJECT_ALWAYS, name, wire::PermissionOptionKind::RejectAlways));
    }
    let call = wire::ToolCallUpdate::new(ask.call.0.clone(), fields);
    wire::RequestPermissionRequest::new(session.0.clone(), call, options)
}

/// What a permission request shows, with the invisible characters of its texts escaped.
fn escape_preview(preview: &[ToolDisplay]) -> Vec<ToolDisplay> {
    let escaped = |shown: &ToolDisplay| match shown {
        ToolDisplay::Text { text } => ToolDisplay::Text { text: visible(text).into_owned() },
        ToolDisplay::Diff { .. } => shown.clone(),
    };
    preview.iter().map(escaped).collect()
}

/// Says which invisible characters a change brings into a file, with the lines that they are in.
fn invisible_added(shown: &ToolDisplay) -> Option<wire::ToolCallContent> {
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
        .map(|line| format!("{}\n", cut(&visible_line(line), INVISIBLE_LINE_BYTES_MAX)))
        .collect();
    if lines.len() > INVISIBLE_LINES_MAX {
        listed.push_str("…\n");
    }
    let path = path.display().to_string();
    Some(wire::ToolCallContent::from(format!(
        "This change of {} has characters that can't be seen, shown here as `\\u{{…}}`:\n\n{}",
        visible_line(&path),
        fenced("", &listed)
    )))
}

fn shown_content(outcome: &ToolOutcome, detail: CallDetail) -> Vec<wire::ToolCallContent> {
    if let Some(refused) = text::refused_by_user(outcome) {
        return vec![wire::ToolCallContent::from(refused.to_owned())];
    }
    let is_image = |content: &&OutcomeContent| matches!(content, OutcomeContent::Image { .. });
    let mut content = diffs_first(&outcome.shown, detail);
    // Display content replaces the text that the model reads, but not its images.
    let rest = outcome.content.iter().filter(|content| outcome.shown.is_empty() || is_image(content));
    let show = |content: &OutcomeContent| match content {
        OutcomeContent::Text { text } if text.is_empty() => None,
        OutcomeContent::Text { text } => {
            let text = cut(text, detail.text_bytes_max());
            Some(wire::ToolCallContent::from(match outcome.status {
                // Our own message about a call that did not run, not output.
                OutcomeStatus::Denied | OutcomeStatus::Interrupted => text,
                OutcomeStatus::Completed | OutcomeStatus::Failed => fenced("", &text),
            }))
        }
        OutcomeContent::Image { mime_type, data } if data.len() <= IMAGE_BYTES_MAX => {
            let image = wire::ImageContent::new(data.clone(), mime_type.clone());
            Some(wire::ToolCallContent::Content(wire::Content::new(wire::ContentBlock::Image(image))))
        }
        OutcomeContent::Image { mime_type, data } => Some(wire::ToolCallContent::from(format!(
            "({mime_type}, {} bytes: too large to show)",
            data.len() / 4 * 3
        ))),
        // Editors can't show documents, and the user has the file.
        OutcomeContent::Document { mime_type, data, name } => {
            let name = name.as_ref().map(|name| format!("{name}, ")).unwrap_or_default();
            Some(wire::ToolCallContent::from(format!("({name}{mime_type}, {} bytes)", data.len() / 4 * 3)))
        }
    };
    content.extend(rest.filter_map(show));
    content
}

fn diffs_first(shown: &[ToolDisplay], detail: CallDetail) -> Vec<wire::ToolCallContent> {
    let is_diff = |shown: &&ToolDisplay| matches!(shown, ToolDisplay::Diff { .. });
    let diffs = shown.iter().filter(is_diff);
    let texts = shown.iter().filter(|shown| !is_diff(shown));
    diffs.chain(texts).map(|shown| show(shown, detail)).collect()
}

fn show(shown: &ToolDisplay, detail: CallDetail) -> wire::ToolCallContent {
    match shown {
        ToolDisplay::Text { text } => wire::ToolCallContent::from(cut(text, detail.text_bytes_max())),
        ToolDisplay::Diff { path, old, new } => {
            let bytes = new.len() + old.as_ref().map_or(0, String::len);
            if bytes > detail.diff_bytes_max() {
                let line = format!("{}: the change is too large to show ({bytes} bytes)", path.display());
                return wire::ToolCallContent::from(line);
            }
            wire::ToolCallContent::Diff(wire::Diff::new(wire_path(path), new.clone()).old_text(old.clone()))
        }
    }
}

/// The title with invisible characters escaped, or the tool's name if it is empty: some editors show nothing for an
/// empty title.
fn title(card: &CallDisplay, tool: &str) -> String {
    let title = if card.title.is_empty() { tool } else { card.title.as_str() };
    visible_line(title).into_owned()
}

fn kind(kind: ToolKind) -> wire::ToolKind {
    match kind {
        ToolKind::Read => wire::ToolKind::Read,
        ToolKind::Edit => wire::ToolKind::Edit,
        ToolKind::Delete => wire::ToolKind::Delete,
        ToolKind::Move => wire::ToolKind::Move,
        ToolKind::Search => wire::ToolKind::Search,
        ToolKind::Execute => wire::ToolKind::Execute,
        ToolKind::Think => wire::ToolKind::Think,
        ToolKind::Fetch => wire::ToolKind::Fetch,
        ToolKind::Other => wire::ToolKind::Other,
    }
}

fn locations(locations: &[Location]) -> Vec<wire::ToolCallLocation> {
    let location =
        |location: &Location| wire::ToolCallLocation::new(wire_path(&location.path)).line(location.line);
    locations.iter().map(location).collect()
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

/// Shortens the long strings within a JSON value.
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

fn object(name: &str, value: Value) -> Map<String, Value> {
    Map::from_iter([(name.to_owned(), value)])
}
