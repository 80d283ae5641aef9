//! Projects the `model` to version 1 of the protocol: version 2, translated where its form is another one. Pure.

#[expect(clippy::duplicate_mod, reason = "it has the types of another version in each of them")]
#[path = "both_versions.rs"]
mod same;

use agent_client_protocol::v1::schema as wire;
use agent_client_protocol::v2::schema as wire_v2;
use serde_json::{Map, json};
use wire::SessionUpdate;

use super::model::{
    AnnouncedCall, CallContent, CallUpdate, FileDiff, PermissionCard, TerminalChange, Update, UpdateLine,
};
use super::updates::{chunk, wire_path};
use epitome_session_api::{CommandInfo, SessionOptions};
use epitome_thread::diff::changed_part;
use epitome_thread::{Mode, SessionId, ToolKind};
pub use same::{auth_methods, config_options, session_capabilities, tokens};
use same::{location, plan, plan_entry, tool_kind};

/// The id of the plan. A session has one.
const PLAN: &str = "todos";

/// Passes the updates of version 1 for an update to `send`. Anything that version 1 can't express is left out.
pub fn project(update: Update, send: &mut dyn FnMut(UpdateLine)) {
    let update = match update {
        Update::Shared(update) => return send(UpdateLine::V2(*update)),
        Update::Text(text) => return send(UpdateLine::V2(chunk(text))),
        Update::UserMessage { id, content, meta } => {
            for block in content {
                let chunk = wire_v2::ContentChunk::new(block, id.clone()).meta(meta.clone());
                send(UpdateLine::V2(wire_v2::SessionUpdate::UserMessageChunk(chunk)));
            }
            return;
        }
        Update::Call(call) => {
            let is_new = call.is_new;
            let call = call_update(*call);
            if is_new {
                return send(UpdateLine::Announced(AnnouncedCall { kind: "tool_call", call }));
            }
            SessionUpdate::ToolCallUpdate(call)
        }
        Update::TerminalOutput { id, text, .. } => {
            let fields = wire::ToolCallUpdateFields::new().status(wire::ToolCallStatus::InProgress);
            let meta = json!({ "terminal_output": { "terminal_id": id.0, "data": text } });
            SessionUpdate::ToolCallUpdate(
                wire::ToolCallUpdate::new(id.0, fields).meta(meta.as_object().cloned()),
            )
        }
        Update::Plan { steps, by_id: true } => plan(PLAN, &steps),
        Update::Plan { steps, by_id: false } => {
            SessionUpdate::Plan(wire::Plan::new(steps.iter().map(plan_entry).collect()))
        }
        Update::Commands { list, .. } => {
            let list = list.iter().map(command).collect();
            SessionUpdate::AvailableCommandsUpdate(wire::AvailableCommandsUpdate::new(list))
        }
        Update::Options { options, shows_booleans } => SessionUpdate::ConfigOptionUpdate(
            wire::ConfigOptionUpdate::new(config_options(&options, shows_booleans)),
        ),
        Update::Mode(mode) => SessionUpdate::CurrentModeUpdate(wire::CurrentModeUpdate::new(mode.id())),
        Update::TerminalReplaced { .. } | Update::Terminal { .. } | Update::State(_) => return,
    };
    send(UpdateLine::V1(update));
}

fn call_update(call: CallUpdate) -> wire::ToolCallUpdate {
    let mut meta =
        call.terminal.as_ref().map(|terminal| terminal_meta(&call.id, terminal)).unwrap_or_default();
    if let Some(agent) = &call.agent {
        // Zed finds the session to load by it (`SubagentSessionInfo` of its crate `acp_thread`). The indexes are those of
        // the two messages of `subagent_wire::record`.
        let info = json!({ "session_id": agent.0, "message_start_index": 0, "message_end_index": 1 });
        meta.insert("subagent_session_info".to_owned(), info);
    }
    let terminal_id = wire::TerminalId::new(call.id.as_str());
    let part = |part| match part {
        CallContent::Text(text) => text.into(),
        CallContent::Image { mime_type, data } => {
            wire::ContentBlock::Image(wire::ImageContent::new(data, mime_type)).into()
        }
        CallContent::Diff(change) => diff(change),
        CallContent::Terminal => wire::ToolCallContent::Terminal(wire::Terminal::new(terminal_id.clone())),
        CallContent::Agent(child) => wire::SessionReference::new(child.0).into(),
    };
    // Fields that are left out of a new call are empty, and its kind is `other`.
    let is_new = call.is_new;
    let locations = call.locations.filter(|locations| !(is_new && locations.is_empty()));
    let fields = wire::ToolCallUpdateFields::new()
        .name(call.name)
        .title(call.title)
        .kind(call.kind.filter(|kind| !(is_new && *kind == ToolKind::Other)).map(tool_kind))
        .status(call.status.map(status))
        .content(call.content.map(|parts| parts.into_iter().map(part).collect::<Vec<_>>()))
        .locations(locations.map(|locations| locations.iter().map(location).collect::<Vec<_>>()))
        .raw_input(call.raw_input)
        .raw_output(call.raw_output);
    wire::ToolCallUpdate::new(call.id, fields).meta((!meta.is_empty()).then_some(meta))
}

fn status(status: wire_v2::ToolCallStatus) -> wire::ToolCallStatus {
    match status {
        wire_v2::ToolCallStatus::Pending => wire::ToolCallStatus::Pending,
        wire_v2::ToolCallStatus::Completed => wire::ToolCallStatus::Completed,
        wire_v2::ToolCallStatus::Failed | wire_v2::ToolCallStatus::Cancelled => wire::ToolCallStatus::Failed,
        _ => wire::ToolCallStatus::InProgress,
    }
}

fn diff(FileDiff { path, mut old, mut new, bytes_max }: FileDiff) -> wire::ToolCallContent {
    let bytes = old.as_ref().map_or(0, String::len) + new.len();
    if bytes > bytes_max {
        // Clients show the lines that differ, so they need no others.
        let (before, after) = changed_part(old.as_deref().unwrap_or_default(), &new);
        if before.len() + after.len() > bytes_max {
            return format!("{}: the change is too large to show ({bytes} bytes)", path.display()).into();
        }
        let after = after.to_owned();
        old = old.is_some().then(|| before.to_owned());
        new = after;
    }
    wire::Diff::new(wire_path(&path), new).old_text(old).into()
}

/// A permission request.
pub fn permission(session: &SessionId, card: PermissionCard) -> wire::RequestPermissionRequest {
    let option = |option: wire_v2::PermissionOption| {
        let kind = match option.kind {
            wire_v2::PermissionOptionKind::AllowOnce => wire::PermissionOptionKind::AllowOnce,
            wire_v2::PermissionOptionKind::AllowAlways => wire::PermissionOptionKind::AllowAlways,
            wire_v2::PermissionOptionKind::RejectAlways => wire::PermissionOptionKind::RejectAlways,
            _ => wire::PermissionOptionKind::RejectOnce,
        };
        wire::PermissionOption::new(option.option_id.0, option.name, kind)
    };
    let options = card.options.into_iter().map(option).collect();
    wire::RequestPermissionRequest::new(session.0.clone(), call_update(card.call), options)
}

fn terminal_meta(id: &str, change: &TerminalChange) -> wire::Meta {
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
    Map::from_iter([(name.to_owned(), meta)])
}

/// A slash command.
fn command(command: &CommandInfo) -> wire::AvailableCommand {
    let input = command.hint.as_ref().map(wire::UnstructuredCommandInput::new);
    wire::AvailableCommand::new(&command.name, &command.description)
        .input(input.map(wire::AvailableCommandInput::Unstructured))
}

/// The modes in the older form, for clients that don't support the `mode` option.
pub fn modes(options: &SessionOptions) -> wire::SessionModeState {
    let mode = |mode: Mode| wire::SessionMode::new(mode.id(), mode.name()).description(mode.description());
    wire::SessionModeState::new(options.mode.id(), Mode::ALL.map(mode).to_vec())
}
