//! Projects the `model` to version 2 of the protocol (a preview, `unstable_protocol_v2` in the schema crate). Pure.

use std::path::Path;

use agent_client_protocol::v1::schema as v1;
use agent_client_protocol::v2::schema as wire;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

use super::answers;
use super::model::{
    CallContent, CallUpdate, MessagePiece, PermissionCard, ShownStatus, TerminalChange, TerminalExit,
    TextUpdate, Update,
};
use super::unpublished;
use super::updates::wire_path;
use epitome_session::{CommandInfo, Foreground, SessionOptions, SessionState, TextKind, WorkEnd};
use epitome_thread::diff::git_patch;
use epitome_thread::{Location, PlanPriority, PlanStatus, PlanStep, SessionId, StopReason, ToolKind, Usage};

/// The id of the plan. A session has one.
const PLAN: &str = "plan";

/// A line of version 2.
#[derive(Serialize)]
#[serde(untagged)]
pub enum UpdateV2 {
    Typed(Box<wire::SessionUpdate>),
    /// The same as in version 1.
    Shared(Box<v1::SessionUpdate>),
    /// Consists of the same parts as in version 1, under another name.
    Json(Value),
}

/// Passes the updates of version 2 for an update to `send`.
pub fn project(update: Update, send: &mut dyn FnMut(UpdateV2)) {
    let typed = |update| UpdateV2::Typed(Box::new(update));
    let line = match update {
        Update::Shared(update) => UpdateV2::Shared(Box::new(update)),
        Update::Text(text) => message(text),
        Update::UserMessage { id, content, meta } => {
            let mut message = json!({ "sessionUpdate": "user_message", "messageId": id, "content": content });
            if let Some(meta) = meta {
                message["_meta"] = Value::Object(meta);
            }
            UpdateV2::Json(message)
        }
        Update::Call(call) => {
            let id = call.id.clone();
            match &call.terminal {
                Some(TerminalChange::Created { command, cwd }) => {
                    send(typed(opened(&id, command.clone(), cwd.as_deref())));
                }
                Some(TerminalChange::Ended(exit)) => send(typed(closed(&id, exit))),
                None => {}
            }
            typed(wire::SessionUpdate::ToolCallUpdate(call_update(*call)))
        }
        Update::TerminalOutput { id, text, bytes } => {
            let bytes = bytes.unwrap_or_else(|| text.into_bytes());
            let chunk = wire::TerminalOutputChunk::new(id.0, STANDARD.encode(bytes));
            typed(wire::SessionUpdate::TerminalOutputChunk(chunk))
        }
        Update::TerminalReplaced { id, text } => {
            let output = wire::TerminalOutput::new(STANDARD.encode(text));
            typed(wire::SessionUpdate::TerminalUpdate(wire::TerminalUpdate::new(id.0).output(output)))
        }
        Update::TerminalOpened { id, command, cwd } => typed(opened(&id.0, command, cwd.as_deref())),
        Update::TerminalEnded { id, exit } => typed(closed(&id.0, &exit)),
        Update::Plan(steps) => {
            let items = wire::PlanItems::new(PLAN, plan(&steps));
            let plan = wire::PlanUpdate::new(wire::PlanUpdateContent::Items(items));
            typed(wire::SessionUpdate::PlanUpdate(plan))
        }
        Update::Commands { list, shows_skills } => UpdateV2::Json(json!({
            "sessionUpdate": "available_commands_update", "availableCommands": commands(&list, shows_skills),
        })),
        Update::Options { options, .. } => UpdateV2::Json(json!({
            "sessionUpdate": "config_option_update", "configOptions": config_options(&options),
        })),
        // Sent as an option.
        Update::Mode(_) => return,
        Update::State(now) => UpdateV2::Json(state(&now)),
    };
    send(line);
}

fn message(TextUpdate { kind, id, text, piece, meta }: TextUpdate) -> UpdateV2 {
    match piece {
        MessagePiece::More => {
            let chunk = v1::ContentChunk::new(v1::ContentBlock::from(text)).message_id(id).meta(meta);
            UpdateV2::Shared(Box::new(match kind {
                TextKind::Reply => v1::SessionUpdate::AgentMessageChunk(chunk),
                TextKind::Thinking => v1::SessionUpdate::AgentThoughtChunk(chunk),
            }))
        }
        MessagePiece::First => {
            let kind = match kind {
                TextKind::Reply => "agent_message",
                TextKind::Thinking => "agent_thought",
            };
            let mut message = json!({
                "sessionUpdate": kind, "messageId": id, "content": [{ "type": "text", "text": text }],
            });
            if let Some(meta) = meta {
                message["_meta"] = Value::Object(meta);
            }
            UpdateV2::Json(message)
        }
    }
}

fn call_update(call: CallUpdate) -> wire::ToolCallUpdate {
    let mut update = wire::ToolCallUpdate::new(call.id.clone());
    if let Some(name) = call.name {
        update = update.name(name);
    }
    if let Some(title) = call.title {
        update = update.title(title);
    }
    if let Some(of_kind) = call.kind {
        update = update.kind(kind(of_kind));
    }
    if let Some(now) = call.status {
        update = update.status(status(now));
    }
    if let Some(shown) = call.content {
        let content: Vec<_> = shown.into_iter().map(|part| content(&call.id, part)).collect();
        update = update.content(content);
    }
    if let Some(shown) = &call.locations {
        update = update.locations(locations(shown));
    }
    if let Some(input) = call.raw_input {
        update = update.raw_input(input);
    }
    if let Some(output) = call.raw_output {
        update = update.raw_output(output);
    }
    match call.can_cancel {
        Some(true) => {
            let cancel = wire::ToolCallCancelCapabilities::new();
            update.capabilities(wire::ToolCallCapabilities::new().cancel(cancel))
        }
        Some(false) => update.capabilities(None::<wire::ToolCallCapabilities>),
        None => update,
    }
}

fn content(id: &str, part: CallContent) -> wire::ToolCallContent {
    match part {
        CallContent::Text(text) => wire::ToolCallContent::from(text),
        CallContent::Image { mime_type, data } => {
            wire::ToolCallContent::from(wire::ContentBlock::Image(wire::ImageContent::new(data, mime_type)))
        }
        CallContent::Diff { path, old, new } => {
            let place = wire::DiffPathChange::new(wire_path(&path));
            let operation = match old {
                None => wire::DiffChangeOperation::Add(place),
                Some(_) => wire::DiffChangeOperation::Modify(place),
            };
            let change = wire::DiffChange::new(operation).file_type(wire::DiffFileType::Text);
            let patch = git_patch(&path, old.as_deref(), &new).map(wire::DiffPatch::new);
            wire::ToolCallContent::Diff(wire::Diff::new(vec![change]).with_patch(patch))
        }
        CallContent::Terminal => wire::ToolCallContent::Terminal(wire::Terminal::new(id.to_owned())),
    }
}

fn opened(id: &str, command: String, cwd: Option<&Path>) -> wire::SessionUpdate {
    let cancel = wire::TerminalCancelCapabilities::new();
    let mut terminal = wire::TerminalUpdate::new(id.to_owned())
        .command(command)
        .capabilities(wire::TerminalCapabilities::new().cancel(cancel));
    if let Some(cwd) = cwd {
        terminal = terminal.cwd(wire_path(cwd));
    }
    wire::SessionUpdate::TerminalUpdate(terminal)
}

fn closed(id: &str, exit: &TerminalExit) -> wire::SessionUpdate {
    let status = wire::TerminalExitStatus::new().exit_code(exit.code).signal(exit.signal_name());
    let terminal = wire::TerminalUpdate::new(id.to_owned())
        .exit_status(status)
        .capabilities(None::<wire::TerminalCapabilities>);
    wire::SessionUpdate::TerminalUpdate(terminal)
}

fn status(status: ShownStatus) -> wire::ToolCallStatus {
    match status {
        ShownStatus::Pending => wire::ToolCallStatus::Pending,
        ShownStatus::InProgress => wire::ToolCallStatus::InProgress,
        ShownStatus::Completed => wire::ToolCallStatus::Completed,
        ShownStatus::Failed => wire::ToolCallStatus::Failed,
        ShownStatus::Cancelled => wire::ToolCallStatus::Cancelled,
    }
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

fn plan(steps: &[PlanStep]) -> Vec<wire::PlanEntry> {
    let entry = |step: &PlanStep| {
        let priority = match step.priority {
            PlanPriority::High => wire::PlanEntryPriority::High,
            PlanPriority::Medium => wire::PlanEntryPriority::Medium,
            PlanPriority::Low => wire::PlanEntryPriority::Low,
        };
        let status = match step.status {
            PlanStatus::Pending => wire::PlanEntryStatus::Pending,
            PlanStatus::InProgress => wire::PlanEntryStatus::InProgress,
            PlanStatus::Completed => wire::PlanEntryStatus::Completed,
        };
        wire::PlanEntry::new(step.content.clone(), priority, status)
    };
    steps.iter().map(entry).collect()
}

/// The slash commands, with skills as a separate kind for clients that support it.
pub fn commands(list: &[CommandInfo], shows_skills: bool) -> Vec<Value> {
    let command = |command: &CommandInfo| {
        if let Some(file) = command.skill.as_ref().filter(|_| shows_skills) {
            return unpublished::skill(command, file);
        }
        let mut shown =
            json!({ "type": "command", "name": command.name, "description": command.description });
        if let Some(hint) = &command.hint {
            shown["input"] = json!({ "type": "text", "hint": hint });
        }
        shown
    };
    list.iter().map(command).collect()
}

/// The options of version 1, with the names of version 2 for their ids.
pub fn config_options(options: &SessionOptions) -> Value {
    let mut offered = json!(answers::config_options(options, true));
    for option in offered.as_array_mut().into_iter().flatten() {
        rename(option, "id", "configId");
        for group in option.get_mut("options").and_then(Value::as_array_mut).into_iter().flatten() {
            rename(group, "group", "groupId");
        }
    }
    offered
}

fn rename(value: &mut Value, from: &str, to: &str) {
    if let Some(fields) = value.as_object_mut()
        && let Some(id) = fields.remove(from)
    {
        fields.insert(to.to_owned(), id);
    }
}

/// The state of a session.
pub fn state(now: &SessionState) -> Value {
    let background: Vec<Value> = now
        .background
        .iter()
        .map(|terminal| json!({ "type": "terminal", "terminalId": terminal.call.0 }))
        .collect();
    let mut update = match &now.foreground {
        Foreground::Running => json!({ "state": "running" }),
        Foreground::RequiresAction => json!({ "state": "requires_action" }),
        Foreground::Idle(None) => json!({ "state": "idle" }),
        Foreground::Idle(Some(end)) => idle(end),
    };
    update["sessionUpdate"] = json!("state_update");
    update["background"] = json!(background);
    update
}

fn idle(WorkEnd { reason, usage, error }: &WorkEnd) -> Value {
    let stopped = match (reason, error) {
        (_, Some(error)) => {
            let mut update = json!({ "stopReason": "error" });
            update["error"] = json!(answers::session_error(error));
            update
        }
        (StopReason::EndTurn, None) => json!({ "stopReason": "end_turn" }),
        (StopReason::MaxTokens, None) => json!({ "stopReason": "max_tokens" }),
        (StopReason::MaxRounds, None) => json!({ "stopReason": "max_turn_requests" }),
        (StopReason::Refusal, None) => json!({ "stopReason": "refusal" }),
        (StopReason::Cancelled, None) => json!({ "stopReason": "cancelled" }),
        (StopReason::Failed | StopReason::Interrupted, None) => {
            json!({ "stopReason": "error", "error": answers::internal("The turn did not finish") })
        }
    };
    let mut update = stopped;
    update["state"] = json!("idle");
    if *usage != Usage::default() {
        update["usage"] = tokens(usage);
    }
    update
}

/// The token usage of the work that has just completed.
fn tokens(usage: &Usage) -> Value {
    json!({
        "totalTokens": usage.total(),
        "inputTokens": usage.input,
        "outputTokens": usage.output,
        "thoughtTokens": usage.thinking,
        "cachedReadTokens": usage.cache_read,
        "cachedWriteTokens": usage.cache_write,
    })
}

/// A permission request.
pub fn permission(session: &SessionId, card: PermissionCard) -> Value {
    let title = card.call.title.clone().unwrap_or_default();
    json!({
        "sessionId": session.0,
        "title": title,
        "subject": { "type": "tool_call", "toolCall": call_update(card.call) },
        "options": card.options,
    })
}
