//! Reads what the agent sends about a session. Pure.

use std::sync::Arc;

use agent_client_protocol::schema::MaybeUndefined;
use agent_client_protocol::v2::schema as wire;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use epitome_session_api::{AskId, CommandInfo, NoticeSeverity, PermissionRequest, SessionError, TextKind};
use epitome_thread::visible::unfenced;
use epitome_thread::{CallId, Entry, MessageId, Mode, StopReason, ThoughtLevel, ToolOutcome, Usage};

/// An event of a session, as front ends show it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub enum ClientEvent {
    /// An entry of the log. `replay`: it is from the past.
    Entry {
        entry: Arc<Entry>,
        replay: bool,
    },
    /// A piece of the message that the model writes.
    Text {
        message: MessageId,
        part: u32,
        kind: TextKind,
        text: String,
    },
    CallStarted {
        call: CallId,
    },
    /// The newest output of a running command.
    CallProgress {
        call: CallId,
        output: String,
    },
    /// The outcome of a subagent's call whose permission request was shown. The call is not in this log.
    CallFinished {
        outcome: Arc<ToolOutcome>,
    },
    /// A compaction began, with so many tokens in context.
    Compacting {
        tokens: u64,
    },
    Usage(ContextUsage),
    /// The complete list of slash commands.
    Commands(Vec<CommandInfo>),
    Options(SessionChoices),
    Notice {
        severity: NoticeSeverity,
        text: String,
    },
    /// A permission request to the user.
    Ask {
        ask: AskId,
        permission: Arc<PermissionRequest>,
    },
    /// Another question to the user.
    Question {
        ask: AskId,
        question: Box<wire::CreateElicitationRequest>,
    },
    /// The question was answered or is obsolete.
    Withdrawn {
        ask: AskId,
    },
    /// A prompt of this client has ended. It follows the last entry of its turn.
    PromptEnded(Box<PromptEnd>),
}

/// How full the context window is, and what the session has cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ContextUsage {
    /// Tokens in context.
    pub used: u64,
    /// The window, in tokens.
    pub size: u64,
    /// US dollars since the session began; `None` if prices are unknown.
    pub cost: Option<f64>,
}

/// The options of a session that front ends know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionChoices {
    pub mode: Option<Mode>,
    pub model: Option<String>,
    /// Models to choose from, each with its price and window as text.
    pub models: Vec<(String, String)>,
    pub thought: Option<ThoughtLevel>,
}

/// How a prompt ended: its reason, or an error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PromptEnd {
    /// The id of the request.
    pub request: u64,
    #[serde(default)]
    pub reason: Option<StopReason>,
    #[serde(default)]
    pub usage: Usage,
    /// The result of a command under its name. Empty for a prompt.
    #[serde(default)]
    pub result: Map<String, Value>,
    #[serde(default)]
    pub error: Option<SessionError>,
}

/// The fields of `_meta.epitome` in updates.
#[derive(Default, Deserialize)]
#[serde(default)]
struct EpitomeMeta {
    entry: Option<Arc<Entry>>,
    replay: bool,
    ended: Option<Box<PromptEnd>>,
    outcome: Option<Arc<ToolOutcome>>,
    tokens: Option<u64>,
}

/// Reads the params of `session/update`. `None` for what front ends that read the log show from its entries, or not at all.
pub fn updated(params: Value) -> Option<ClientEvent> {
    let update: wire::UpdateSessionNotification = match serde_json::from_value(params) {
        Ok(update) => update,
        Err(error) => {
            tracing::warn!(%error, "an update of the agent can't be read");
            return None;
        }
    };
    match update.update {
        wire::SessionUpdate::AgentMessageChunk(chunk) => text(TextKind::Reply, chunk),
        wire::SessionUpdate::AgentThoughtChunk(chunk) => text(TextKind::Thinking, chunk),
        wire::SessionUpdate::SessionInfoUpdate(update) => {
            let MaybeUndefined::Value(meta) = update.meta else { return None };
            let meta = epitome(&meta);
            let entry = meta.entry.map(|entry| ClientEvent::Entry { entry, replay: meta.replay });
            let ended = meta.ended.map(ClientEvent::PromptEnded);
            entry.or(ended).or(meta.outcome.map(|outcome| ClientEvent::CallFinished { outcome }))
        }
        wire::SessionUpdate::ToolCallUpdate(update) => call(update),
        wire::SessionUpdate::TerminalOutputChunk(chunk) => {
            let bytes = STANDARD.decode(&chunk.data).ok()?;
            let output = String::from_utf8_lossy(&bytes).into_owned();
            Some(ClientEvent::CallProgress { call: CallId(chunk.terminal_id.0.to_string()), output })
        }
        wire::SessionUpdate::CompactionUpdate(update) => {
            let MaybeUndefined::Value(meta) = update.meta else { return None };
            Some(ClientEvent::Compacting { tokens: epitome(&meta).tokens? })
        }
        wire::SessionUpdate::UsageUpdate(usage) => {
            let cost = match usage.cost {
                MaybeUndefined::Value(cost) => Some(cost.amount),
                MaybeUndefined::Null | MaybeUndefined::Undefined => None,
            };
            Some(ClientEvent::Usage(ContextUsage { used: usage.used, size: usage.size, cost }))
        }
        wire::SessionUpdate::AvailableCommandsUpdate(update) => {
            Some(ClientEvent::Commands(slash_commands(update.available_commands)))
        }
        wire::SessionUpdate::ConfigOptionUpdate(update) => {
            Some(ClientEvent::Options(choices(update.config_options)))
        }
        wire::SessionUpdate::Notice(notice) => {
            let severity = match notice.severity {
                wire::NoticeSeverity::Error => NoticeSeverity::Error,
                wire::NoticeSeverity::Warning => NoticeSeverity::Warning,
                _ => NoticeSeverity::Info,
            };
            let text = match notice.description {
                Some(description) => format!("{}\n{description}", notice.title),
                None => notice.title,
            };
            Some(ClientEvent::Notice { severity, text })
        }
        _ => None,
    }
}

/// Reads a request of the agent to the user. `None` if this client can't show it.
pub fn asked(ask: AskId, method: &str, params: Value) -> Option<ClientEvent> {
    #[derive(Deserialize)]
    struct Asked {
        permission: Arc<PermissionRequest>,
    }
    match method {
        "session/request_permission" => {
            let Asked { permission } = Asked::deserialize(params.pointer("/_meta/epitome")?).ok()?;
            Some(ClientEvent::Ask { ask, permission })
        }
        "elicitation/create" => {
            Some(ClientEvent::Question { ask, question: serde_json::from_value(params).ok()? })
        }
        _ => None,
    }
}

/// The slash commands that a session has.
pub fn slash_commands(list: Vec<wire::AvailableCommand>) -> Vec<CommandInfo> {
    let command = |command| match command {
        wire::AvailableCommand::Command(wire::Command { name, description, input, .. }) => {
            let hint = match input {
                Some(wire::AvailableCommandInput::Text(text)) => Some(text.hint),
                _ => None,
            };
            Some(CommandInfo { name, description, hint, skill: None })
        }
        _ => None,
    };
    list.into_iter().filter_map(command).collect()
}

/// The options that a session has.
pub fn choices(options: Vec<wire::SessionConfigOption>) -> SessionChoices {
    let mut choices = SessionChoices::default();
    for option in options {
        let wire::SessionConfigKind::Select(select) = option.kind else { continue };
        let current = select.current_value.0.to_string();
        match &*option.config_id.0 {
            "mode" => choices.mode = Mode::parse(&current),
            "thought_level" => choices.thought = ThoughtLevel::parse(&current),
            "model" => {
                choices.model = Some(current);
                let options = match select.options {
                    wire::SessionConfigSelectOptions::Ungrouped(options) => options,
                    wire::SessionConfigSelectOptions::Grouped(groups) => {
                        groups.into_iter().flat_map(|group| group.options).collect()
                    }
                    _ => Vec::new(),
                };
                let model = |option: wire::SessionConfigSelectOption| {
                    (option.value.0.to_string(), option.description.unwrap_or_default())
                };
                choices.models = options.into_iter().map(model).collect();
            }
            _ => {}
        }
    }
    choices
}

fn epitome(meta: &wire::Meta) -> EpitomeMeta {
    let Some(fields) = meta.get("epitome") else { return EpitomeMeta::default() };
    EpitomeMeta::deserialize(fields).unwrap_or_else(|error| {
        tracing::warn!(%error, "`_meta.epitome` of an update can't be read");
        EpitomeMeta::default()
    })
}

/// A piece of a message of the model. Lines of the agent itself have ids of another form: their entries are shown.
fn text(kind: TextKind, chunk: wire::ContentChunk) -> Option<ClientEvent> {
    let (message, part) = chunk.message_id.0.strip_prefix('m')?.split_once('.')?;
    let (message, part) = (MessageId(message.parse().ok()?), part.parse().ok()?);
    let wire::ContentBlock::Text(text) = chunk.content else { return None };
    Some(ClientEvent::Text { message, part, kind, text: text.text })
}

/// A call that started, or its newest output.
fn call(update: wire::ToolCallUpdate) -> Option<ClientEvent> {
    let MaybeUndefined::Value(wire::ToolCallStatus::InProgress) = update.status else { return None };
    let call = CallId(update.tool_call_id.0.to_string());
    let MaybeUndefined::Value(content) = update.content else {
        return Some(ClientEvent::CallStarted { call });
    };
    let output = content.into_iter().find_map(|content| match content {
        wire::ToolCallContent::Content(content) => match content.content {
            wire::ContentBlock::Text(text) => Some(unfenced(&text.text).to_owned()),
            _ => None,
        },
        _ => None,
    });
    Some(match output {
        Some(output) => ClientEvent::CallProgress { call, output },
        None => ClientEvent::CallStarted { call },
    })
}
