//! Projects the `model` to version 2 of the protocol (a preview, `unstable_protocol_v2` in the schema crate). Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::answers;
use super::config_options::{self, ConfigOption};
use super::lines::{self, UpdateLine};
use super::model::{
    AcpVersion, CallUpdate, FileDiff, MessagePiece, PermissionCard, TerminalChange, TextUpdate, Update,
};
use super::unpublished;
use super::updates::tokens;
use epitome_session::{CommandInfo, Foreground, SessionOptions, SessionState, TextKind, WorkEnd};
use epitome_thread::diff::git_patch;
use epitome_thread::{SessionId, Usage};

/// The id of the plan. A session has one.
const PLAN: &str = "plan";

/// Passes the updates of version 2 for an update to `send`.
pub fn project(update: Update, send: &mut dyn FnMut(UpdateLine)) {
    let update = match update {
        Update::Shared(update) => update,
        Update::Text(text) if text.piece == MessagePiece::More => return send(lines::chunk(text)),
        Update::Text(TextUpdate { kind, id, text, piece: _, meta }) => {
            let kind = match kind {
                TextKind::Reply => "agent_message",
                TextKind::Thinking => "agent_thought",
            };
            message(kind, &id.0, vec![lines::text_block(text)], meta)
        }
        Update::UserMessage { id, content, meta } => message("user_message", &id.0, content, meta),
        Update::Call(mut call) => {
            if let Some(change) = call.terminal.take() {
                send(UpdateLine::Json(terminal(&call.id, change)));
            }
            let mut update = json!({ "sessionUpdate": "tool_call_update" });
            add_call(&mut update, *call);
            update
        }
        Update::TerminalOutput { id, text, bytes } => {
            let data = STANDARD.encode(bytes.unwrap_or_else(|| text.into_bytes()));
            json!({ "sessionUpdate": "terminal_output_chunk", "terminalId": id.0, "data": data })
        }
        Update::TerminalReplaced { id, text } => {
            let output = json!({ "data": STANDARD.encode(text) });
            json!({ "sessionUpdate": "terminal_update", "terminalId": id.0, "output": output })
        }
        Update::Terminal { id, change } => terminal(&id.0, change),
        Update::Plan { steps, .. } => json!({
            "sessionUpdate": "plan_update", "plan": { "type": "items", "planId": PLAN, "entries": steps },
        }),
        Update::Commands { list, shows_skills } => json!({
            "sessionUpdate": "available_commands_update", "availableCommands": commands(&list, shows_skills),
        }),
        Update::Options { options, .. } => json!({
            "sessionUpdate": "config_option_update", "configOptions": config_options(&options),
        }),
        // Sent as an option.
        Update::Mode(_) => return,
        Update::State(now) => state(&now),
    };
    send(UpdateLine::Json(update));
}

/// A complete message.
fn message(kind: &str, id: &str, content: Vec<Value>, meta: Option<Map<String, Value>>) -> Value {
    let mut message = json!({ "sessionUpdate": kind, "messageId": id });
    message["content"] = Value::Array(content);
    if let Some(meta) = meta {
        message["_meta"] = Value::Object(meta);
    }
    message
}

fn add_call(update: &mut Value, call: CallUpdate) {
    let can_cancel = call.can_cancel;
    lines::add_call(update, call, diff);
    if let Some(can_cancel) = can_cancel {
        update["capabilities"] = if can_cancel { json!({ "cancel": {} }) } else { Value::Null };
    }
}

/// Without a patch if it is too long: a client can't show all of the change then.
fn diff(FileDiff { path, old, new, bytes_max }: FileDiff) -> Value {
    let operation = if old.is_some() { "modify" } else { "add" };
    let change = json!({ "fileType": "text", "operation": operation, "path": path.to_string_lossy() });
    let mut diff = json!({ "type": "diff", "changes": [change] });
    if let Some(patch) = git_patch(&path, old.as_deref(), &new).filter(|patch| patch.len() <= bytes_max) {
        diff["patch"] = lines::object([("format", json!("git_patch")), ("text", patch.into())]);
    }
    diff
}

fn terminal(id: &str, change: TerminalChange) -> Value {
    let mut update = json!({ "sessionUpdate": "terminal_update", "terminalId": id });
    match change {
        TerminalChange::Created { command, cwd } => {
            update["command"] = json!(command);
            update["capabilities"] = json!({ "cancel": {} });
            if let Some(cwd) = cwd {
                update["cwd"] = json!(cwd.to_string_lossy());
            }
        }
        TerminalChange::Ended(exit) => {
            update["capabilities"] = Value::Null;
            update["exitStatus"] = json!({});
            if let Some(code) = exit.code {
                update["exitStatus"]["exitCode"] = json!(code);
            }
            if let Some(signal) = exit.signal_name() {
                update["exitStatus"]["signal"] = json!(signal);
            }
        }
    }
    update
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

/// The options of a session.
pub fn config_options(options: &SessionOptions) -> Vec<ConfigOption<'_>> {
    config_options::config_options(options, AcpVersion::V2, true)
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
    let unfinished = || answers::internal("The turn did not finish");
    let mut update = match (error, answers::stop_reason(*reason)) {
        (None, Some(reason)) => json!({ "stopReason": reason }),
        (Some(error), _) => json!({ "stopReason": "error", "error": answers::session_error(error) }),
        (None, None) => json!({ "stopReason": "error", "error": unfinished() }),
    };
    update["state"] = json!("idle");
    if *usage != Usage::default() {
        update["usage"] = tokens(usage);
    }
    update
}

/// A permission request.
pub fn permission(session: &SessionId, card: PermissionCard) -> Value {
    let (title, mut call) = (card.call.title.clone().unwrap_or_default(), json!({}));
    add_call(&mut call, card.call);
    json!({
        "sessionId": session.0,
        "title": title,
        "subject": { "type": "tool_call", "toolCall": call },
        "options": card.options,
    })
}
