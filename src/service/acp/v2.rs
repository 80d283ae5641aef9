//! Projects the `model` to version 2 of the protocol (a preview, `unstable_protocol_v2` in the schema crate). Pure.

#[expect(clippy::duplicate_mod, reason = "it has the types of another version in each of them")]
#[path = "both_versions.rs"]
mod same;

use agent_client_protocol::schema::MaybeUndefined;
use agent_client_protocol::v2::schema as wire;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use wire::SessionUpdate;

use super::answers;
use super::model::{
    CallContent, CallUpdate, FileDiff, MessagePiece, PermissionCard, TerminalChange, TextUpdate, Update,
    UpdateLine,
};
use super::unpublished;
use super::updates::{chunk, wire_path};
use epitome_session_api::{CommandInfo, Foreground, SessionState, TextKind, WorkEnd};
use epitome_thread::diff::git_patch;
use epitome_thread::{SessionId, Usage};
pub use same::{auth_methods, config_options, session_capabilities, tokens};
use same::{location, plan, tool_kind};

/// The id of the plan. A session has one.
const PLAN: &str = "plan";

/// Passes the updates of version 2 for an update to `send`.
pub fn project(update: Update, send: &mut dyn FnMut(UpdateLine)) {
    let update = match update {
        Update::Shared(update) => *update,
        Update::Text(text) if text.piece == MessagePiece::More => chunk(text),
        Update::Text(TextUpdate { kind, id, text, piece: _ }) => {
            let content = vec![wire::ContentBlock::from(text)];
            match kind {
                TextKind::Reply => SessionUpdate::AgentMessage(wire::AgentMessage::new(id).content(content)),
                TextKind::Thinking => {
                    SessionUpdate::AgentThought(wire::AgentThought::new(id).content(content))
                }
            }
        }
        Update::UserMessage { id, content, meta } => {
            SessionUpdate::UserMessage(wire::UserMessage::new(id).content(content).meta(given(meta)))
        }
        Update::Call(mut call) => {
            if let Some(change) = call.terminal.take() {
                send(UpdateLine::V2(terminal(&call.id, change)));
            }
            SessionUpdate::ToolCallUpdate(call_update(*call))
        }
        Update::TerminalOutput { id, text, bytes } => {
            let data = STANDARD.encode(bytes.unwrap_or_else(|| text.into_bytes()));
            SessionUpdate::TerminalOutputChunk(wire::TerminalOutputChunk::new(id.0, data))
        }
        Update::TerminalReplaced { id, text } => {
            let output = wire::TerminalOutput::new(STANDARD.encode(text));
            SessionUpdate::TerminalUpdate(wire::TerminalUpdate::new(id.0).output(output))
        }
        Update::Terminal { id, change } => terminal(&id.0, change),
        Update::Plan { steps, .. } => plan(PLAN, &steps),
        Update::Commands { list, shows_skills } => SessionUpdate::AvailableCommandsUpdate(
            wire::AvailableCommandsUpdate::new(commands(&list, shows_skills)),
        ),
        Update::Options { options, .. } => {
            SessionUpdate::ConfigOptionUpdate(wire::ConfigOptionUpdate::new(config_options(&options, true)))
        }
        // Sent as an option.
        Update::Mode(_) => return,
        Update::State(now) => SessionUpdate::StateUpdate(state(&now)),
    };
    send(UpdateLine::V2(update));
}

/// A field that is left out if there is no value.
pub fn given<T>(value: Option<T>) -> MaybeUndefined<T> {
    value.map(Some).into()
}

fn call_update(call: CallUpdate) -> wire::ToolCallUpdate {
    let terminal_id = wire::TerminalId::new(call.id.as_str());
    let part = |part| match part {
        CallContent::Text(text) => wire::ContentBlock::from(text).into(),
        CallContent::Image { mime_type, data } => {
            wire::ContentBlock::Image(wire::ImageContent::new(data, mime_type)).into()
        }
        CallContent::Diff(change) => diff(change).into(),
        CallContent::Terminal => wire::Terminal::new(terminal_id.clone()).into(),
        CallContent::Agent(child) => wire::SessionReference::new(child.0).into(),
    };
    let can_cancel = || wire::ToolCallCapabilities::new().cancel(wire::ToolCallCancelCapabilities::new());
    wire::ToolCallUpdate::new(call.id)
        .name(given(call.name))
        .title(given(call.title))
        .kind(given(call.kind.map(tool_kind)))
        .status(given(call.status))
        .content(given(call.content.map(|parts| parts.into_iter().map(part).collect())))
        .locations(given(call.locations.map(|locations| locations.iter().map(location).collect())))
        .raw_input(given(call.raw_input))
        .raw_output(given(call.raw_output))
        .capabilities(given(call.can_cancel).map(|can| can.filter(|can| *can).map(|_| can_cancel())))
}

/// Converts a diff. The patch is left out if it is too long: a client can't show all of the change then.
fn diff(FileDiff { path, old, new, bytes_max }: FileDiff) -> wire::Diff {
    let shown = wire_path(&path);
    let change = match old {
        Some(_) => wire::DiffChange::modify(shown),
        None => wire::DiffChange::add(shown),
    };
    let patch = git_patch(&path, old.as_deref(), &new).filter(|patch| patch.len() <= bytes_max);
    wire::Diff::new(vec![change.file_type(wire::DiffFileType::Text)])
        .with_patch(patch.map(wire::DiffPatch::new))
}

fn terminal(id: &str, change: TerminalChange) -> SessionUpdate {
    let update = wire::TerminalUpdate::new(id);
    SessionUpdate::TerminalUpdate(match change {
        TerminalChange::Created { command, cwd } => update
            .command(command)
            .cwd(given(cwd.map(|cwd| wire_path(&cwd).into())))
            .capabilities(wire::TerminalCapabilities::new().cancel(wire::TerminalCancelCapabilities::new())),
        TerminalChange::Ended(exit) => {
            let status = wire::TerminalExitStatus::new().exit_code(exit.code).signal(exit.signal_name());
            update.exit_status(status).capabilities(None)
        }
    })
}

/// The slash commands, with skills as a separate kind for clients that support it.
pub fn commands(list: &[CommandInfo], shows_skills: bool) -> Vec<wire::AvailableCommand> {
    let command = |command: &CommandInfo| {
        if let Some(file) = command.skill.as_ref().filter(|_| shows_skills) {
            return unpublished::skill(command, file);
        }
        let input = command.hint.as_ref().map(wire::TextCommandInput::new);
        let shown = wire::Command::new(&command.name, &command.description)
            .input(input.map(wire::AvailableCommandInput::Text));
        wire::AvailableCommand::Command(shown)
    };
    list.iter().map(command).collect()
}

/// The state of a session.
pub fn state(now: &SessionState) -> wire::StateUpdate {
    let terminal = |call: &str| wire::BackgroundWork::Terminal(wire::BackgroundTerminal::new(call));
    let background: Vec<_> = now.background.iter().map(|shown| terminal(&shown.call.0)).collect();
    match &now.foreground {
        Foreground::Running => {
            wire::StateUpdate::Running(wire::RunningStateUpdate::new().background(background))
        }
        Foreground::RequiresAction => {
            let state = wire::RequiresActionStateUpdate::new();
            wire::StateUpdate::RequiresAction(state.background(background))
        }
        Foreground::Idle(end) => {
            let idle = end.as_ref().map_or_else(wire::IdleStateUpdate::new, idle);
            wire::StateUpdate::Idle(idle.background(background))
        }
    }
}

fn idle(WorkEnd { reason, usage, error }: &WorkEnd) -> wire::IdleStateUpdate {
    let reason = match (error, answers::stop_reason(*reason)) {
        (None, Some(reason)) => reason,
        (Some(error), _) => failed(answers::session_error(error)),
        (None, None) => failed(answers::internal("The turn did not finish")),
    };
    let usage = (*usage != Usage::default()).then(|| tokens(usage));
    wire::IdleStateUpdate::new().stop_reason(reason).usage(usage)
}

/// The reason why work that failed has stopped.
pub fn failed(error: answers::Error) -> wire::StopReason {
    let error = wire::Error::new(i32::from(error.code), error.message).data(error.data);
    wire::StopReason::Error(wire::ErrorStopReason::new().error(error))
}

/// A permission request.
pub fn permission(session: &SessionId, card: PermissionCard) -> wire::RequestPermissionRequest {
    let title = card.call.title.clone().unwrap_or_default();
    let subject = wire::ToolCallPermissionSubject::new(call_update(card.call));
    wire::RequestPermissionRequest::new(session.0.as_str(), title, card.options)
        .subject(wire::RequestPermissionSubject::ToolCall(Box::new(subject)))
}
