//! Projects the `model` to version 1 of the protocol. Pure.

use agent_client_protocol::v1::schema as wire;
use serde_json::{Map, Value, json};
use wire::SessionUpdate;

use super::answers;
use super::model::{
    CallContent, CallUpdate, PermissionCard, ShownStatus, TerminalChange, TerminalExit, TextUpdate, Update,
};
use super::updates::wire_path;
use epitome_session::{CommandInfo, TextKind};
use epitome_thread::{Location, PlanPriority, PlanStatus, PlanStep, SessionId, ToolKind};

/// Passes the updates of version 1 for an update to `send`. What version 1 can't express is left out.
pub fn project(update: Update, send: &mut dyn FnMut(SessionUpdate)) {
    send(match update {
        Update::Shared(update) => update,
        Update::Text(TextUpdate { kind, id, text, piece: _, meta }) => {
            let chunk = wire::ContentChunk::new(wire::ContentBlock::from(text)).message_id(id).meta(meta);
            match kind {
                TextKind::Reply => SessionUpdate::AgentMessageChunk(chunk),
                TextKind::Thinking => SessionUpdate::AgentThoughtChunk(chunk),
            }
        }
        Update::UserMessage { id, content, meta } => {
            for block in content {
                let chunk = wire::ContentChunk::new(block).message_id(id.clone()).meta(meta.clone());
                send(SessionUpdate::UserMessageChunk(chunk));
            }
            return;
        }
        Update::Call(call) if call.is_new => SessionUpdate::ToolCall(announcement(*call)),
        Update::Call(call) => SessionUpdate::ToolCallUpdate(change(*call)),
        Update::TerminalOutput { id, text, .. } => {
            let fields = wire::ToolCallUpdateFields::new().status(wire::ToolCallStatus::InProgress);
            let meta = object("terminal_output", json!({ "terminal_id": id.0, "data": text }));
            SessionUpdate::ToolCallUpdate(wire::ToolCallUpdate::new(id.0, fields).meta(meta))
        }
        Update::Plan(steps) => SessionUpdate::Plan(plan(&steps)),
        Update::Commands { list: commands, .. } => SessionUpdate::AvailableCommandsUpdate(
            wire::AvailableCommandsUpdate::new(commands.iter().map(command).collect()),
        ),
        Update::Options { options, shows_booleans } => SessionUpdate::ConfigOptionUpdate(
            wire::ConfigOptionUpdate::new(answers::config_options(&options, shows_booleans)),
        ),
        Update::Mode(mode) => SessionUpdate::CurrentModeUpdate(wire::CurrentModeUpdate::new(mode.id())),
        Update::TerminalReplaced { .. }
        | Update::TerminalOpened { .. }
        | Update::TerminalEnded { .. }
        | Update::State(_) => return,
    });
}

fn announcement(call: CallUpdate) -> wire::ToolCall {
    let meta = call.terminal.as_ref().map(|terminal| terminal_meta(&call.id, terminal));
    let id = call.id;
    let mut announced = wire::ToolCall::new(id.clone(), call.title.unwrap_or_default())
        .name(call.name)
        .kind(kind(call.kind.unwrap_or(ToolKind::Other)))
        .locations(locations(&call.locations.unwrap_or_default()))
        .raw_input(call.raw_input)
        .meta(meta);
    if let Some(shown) = call.content {
        announced = announced.content(content(&id, shown));
    }
    announced
}

fn change(call: CallUpdate) -> wire::ToolCallUpdate {
    let meta = call.terminal.as_ref().map(|terminal| terminal_meta(&call.id, terminal));
    wire::ToolCallUpdate::new(call.id.clone(), fields(call)).meta(meta)
}

fn fields(call: CallUpdate) -> wire::ToolCallUpdateFields {
    let CallUpdate { id, name, title, kind: of_kind, status: now, content: shown, .. } = call;
    wire::ToolCallUpdateFields::new()
        .name(name)
        .title(title)
        .kind(of_kind.map(kind))
        .status(now.map(status))
        .content(shown.map(|shown| content(&id, shown)))
        .locations(call.locations.as_deref().map(locations))
        .raw_input(call.raw_input)
        .raw_output(call.raw_output)
}

/// A permission request.
pub fn permission(session: &SessionId, card: PermissionCard) -> wire::RequestPermissionRequest {
    let call = wire::ToolCallUpdate::new(card.call.id.clone(), fields(card.call));
    wire::RequestPermissionRequest::new(session.0.clone(), call, card.options)
}

fn terminal_meta(id: &str, change: &TerminalChange) -> Map<String, Value> {
    match change {
        TerminalChange::Created { command: _, cwd } => {
            let mut info = json!({ "terminal_id": id });
            if let Some(cwd) = cwd {
                info["cwd"] = json!(wire_path(cwd));
            }
            object("terminal_info", info)
        }
        TerminalChange::Ended(exit @ TerminalExit { code, .. }) => {
            let mut ended = json!({ "terminal_id": id });
            if let Some(code) = code {
                ended["exit_code"] = json!(code);
            }
            if let Some(signal) = exit.signal_name() {
                ended["signal"] = json!(signal);
            }
            object("terminal_exit", ended)
        }
    }
}

fn content(id: &str, shown: Vec<CallContent>) -> Vec<wire::ToolCallContent> {
    let one = |part: CallContent| match part {
        CallContent::Text(text) => wire::ToolCallContent::from(text),
        CallContent::Image { mime_type, data } => wire::ToolCallContent::Content(wire::Content::new(
            wire::ContentBlock::Image(wire::ImageContent::new(data, mime_type)),
        )),
        CallContent::Diff { path, old, new } => {
            wire::ToolCallContent::Diff(wire::Diff::new(wire_path(&path), new).old_text(old))
        }
        CallContent::Terminal => wire::ToolCallContent::Terminal(wire::Terminal::new(id.to_owned())),
    };
    shown.into_iter().map(one).collect()
}

fn status(status: ShownStatus) -> wire::ToolCallStatus {
    match status {
        ShownStatus::Pending => wire::ToolCallStatus::Pending,
        ShownStatus::InProgress => wire::ToolCallStatus::InProgress,
        ShownStatus::Completed => wire::ToolCallStatus::Completed,
        ShownStatus::Failed | ShownStatus::Cancelled => wire::ToolCallStatus::Failed,
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

pub fn plan(steps: &[PlanStep]) -> wire::Plan {
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
    wire::Plan::new(steps.iter().map(entry).collect())
}

/// A slash command.
fn command(command: &CommandInfo) -> wire::AvailableCommand {
    let input = command.hint.as_ref().map(|hint| {
        wire::AvailableCommandInput::Unstructured(wire::UnstructuredCommandInput::new(hint.clone()))
    });
    wire::AvailableCommand::new(command.name.clone(), command.description.clone()).input(input)
}

fn object(name: &str, value: Value) -> Map<String, Value> {
    Map::from_iter([(name.to_owned(), value)])
}
