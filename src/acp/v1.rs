//! Projects the `model` to version 1 of the protocol. Pure.

use serde_json::{Value, json};

use super::config_options::config_options;
use super::lines::{self, UpdateLine};
use super::model::{AcpVersion, CallUpdate, FileDiff, PermissionCard, ShownStatus, TerminalChange, Update};
use epitome_session::CommandInfo;
use epitome_thread::diff::changed_part;
use epitome_thread::{SessionId, ToolKind};

/// The id of the plan. A session has one.
const PLAN: &str = "todos";

/// Passes the updates of version 1 for an update to `send`. What version 1 can't express is left out.
pub fn project(update: Update, send: &mut dyn FnMut(UpdateLine)) {
    let update = match update {
        Update::Shared(update) => update,
        Update::Text(text) => return send(lines::chunk(text)),
        Update::UserMessage { id, content, meta } => {
            for block in content {
                let mut chunk = json!({ "sessionUpdate": "user_message_chunk", "messageId": id });
                chunk["content"] = block;
                if let Some(meta) = &meta {
                    chunk["_meta"] = json!(meta);
                }
                send(UpdateLine::Json(chunk));
            }
            return;
        }
        Update::Call(call) => call_update(*call),
        Update::TerminalOutput { id, text, .. } => json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id.0, "status": "in_progress",
            "_meta": { "terminal_output": { "terminal_id": id.0, "data": text } },
        }),
        Update::Plan { steps, by_id: true } => json!({
            "sessionUpdate": "plan_update", "plan": { "type": "items", "planId": PLAN, "entries": steps },
        }),
        Update::Plan { steps, by_id: false } => json!({ "sessionUpdate": "plan", "entries": steps }),
        Update::Commands { list, .. } => lines::object([
            ("sessionUpdate", json!("available_commands_update")),
            ("availableCommands", list.iter().map(command).collect()),
        ]),
        Update::Options { options, shows_booleans } => json!({
            "sessionUpdate": "config_option_update",
            "configOptions": config_options(&options, AcpVersion::V1, shows_booleans),
        }),
        Update::Mode(mode) => json!({ "sessionUpdate": "current_mode_update", "currentModeId": mode.id() }),
        Update::TerminalReplaced { .. } | Update::Terminal { .. } | Update::State(_) => return,
    };
    send(UpdateLine::Json(update));
}

fn call_update(mut call: CallUpdate) -> Value {
    let meta = call.terminal.as_ref().map(|terminal| terminal_meta(&call.id, terminal));
    let mut update = match call.is_new {
        true => {
            // What is missing is empty, and the kind `other`.
            call.locations = call.locations.filter(|locations| !locations.is_empty());
            call.kind = call.kind.filter(|kind| *kind != ToolKind::Other);
            json!({ "sessionUpdate": "tool_call" })
        }
        false => json!({ "sessionUpdate": "tool_call_update" }),
    };
    add_call(&mut update, call);
    if let Some(meta) = meta {
        update["_meta"] = meta;
    }
    update
}

fn add_call(update: &mut Value, mut call: CallUpdate) {
    if call.status == Some(ShownStatus::Cancelled) {
        call.status = Some(ShownStatus::Failed);
    }
    lines::add_call(update, call, diff);
}

fn diff(FileDiff { path, mut old, mut new, bytes_max }: FileDiff) -> Value {
    let bytes = old.as_ref().map_or(0, String::len) + new.len();
    if bytes > bytes_max {
        // Clients show the lines that differ, so they need no others.
        let (before, after) = changed_part(old.as_deref().unwrap_or_default(), &new);
        if before.len() + after.len() > bytes_max {
            let note = format!("{}: the change is too large to show ({bytes} bytes)", path.display());
            return json!({ "type": "content", "content": lines::text_block(note) });
        }
        let after = after.to_owned();
        old = old.is_some().then(|| before.to_owned());
        new = after;
    }
    let mut diff = json!({ "type": "diff", "path": path.to_string_lossy() });
    diff["newText"] = Value::String(new);
    if let Some(old) = old {
        diff["oldText"] = Value::String(old);
    }
    diff
}

/// A permission request.
pub fn permission(session: &SessionId, card: PermissionCard) -> Value {
    let mut call = json!({});
    add_call(&mut call, card.call);
    lines::object([("sessionId", json!(session.0)), ("toolCall", call), ("options", json!(card.options))])
}

fn terminal_meta(id: &str, change: &TerminalChange) -> Value {
    let mut meta = json!({ "terminal_id": id });
    let name = match change {
        TerminalChange::Created { cwd, .. } => {
            if let Some(cwd) = cwd {
                meta["cwd"] = json!(cwd.to_string_lossy());
            }
            "terminal_info"
        }
        TerminalChange::Ended(exit) => {
            if let Some(code) = exit.code {
                meta["exit_code"] = json!(code);
            }
            if let Some(signal) = exit.signal_name() {
                meta["signal"] = json!(signal);
            }
            "terminal_exit"
        }
    };
    json!({ name: meta })
}

/// A slash command.
fn command(command: &CommandInfo) -> Value {
    let mut shown = json!({ "name": command.name, "description": command.description });
    if let Some(hint) = &command.hint {
        shown["input"] = json!({ "hint": hint });
    }
    shown
}
