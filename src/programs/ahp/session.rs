//! A session as its clients share it: its state and that of its chat, changed only by actions.
//!
//! A client's turn begins with the client's action, before the daemon knows of it. Until the daemon has shown its prompt,
//! the turn is not *inserted*: the end of earlier work does not end it. A turn that is cancelled ends at once; what the
//! daemon still sends about it belongs to no turn, until the daemon is idle.

use std::collections::{HashMap, VecDeque};

use ahp::ahp_types::actions::{
    ActionOrigin, ChatPendingMessageRemovedAction, ChatPendingMessageSetAction, ChatToolCallConfirmedAction,
    ChatTurnCancelledAction, ChatTurnStartedAction, StateAction,
};
use ahp::ahp_types::state::{
    ActiveTurn, ChatState, Message, MessageKind, PendingMessageKind, ResponsePart, SessionLifecycle,
    SessionState, SessionStatus, SessionSummary, ToolCallState,
};
use ahp::reducers::{ReduceOutcome, apply_action_to_chat, apply_action_to_session};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::calls::{AgentCall, CallCard};
use super::messages::{self, of_form};
use super::uri;

/// The name of the only agent of this host.
pub const PROVIDER: &str = "epitome";

/// Messages that wait for the end of a turn, at most.
const QUEUED_MAX: usize = 32;

/// An action of a session, in the order in which it was applied.
pub struct AppliedAction {
    /// Whether it is one of the chat.
    pub on_chat: bool,
    pub action: StateAction,
    pub origin: Option<ActionOrigin>,
}

/// How a turn ended.
pub enum TurnEnd {
    Complete,
    Cancelled,
    Failed(String),
}

/// A message to the daemon that an action of a client leads to.
#[derive(Debug, PartialEq)]
pub enum AgentCommand {
    /// `turn`: the turn that the prompt begins; `None` if it steers the running one.
    Prompt {
        turn: Option<String>,
        /// The model to answer it with from now on, if it is to be another.
        model: Option<String>,
        blocks: Vec<Value>,
    },
    Cancel,
    /// Answers a request for permission with the id of an option.
    Decide {
        request: Value,
        option: String,
    },
    SetTitle(String),
}

/// A prompt that the daemon has not shown yet.
struct UnseenPrompt {
    text: String,
    role: PromptRole,
}

impl UnseenPrompt {
    /// Whether the daemon shows it with this text: without the other texts if one is a command, and in pieces if it is
    /// long.
    fn is_shown_as(&self, shown: &str) -> bool {
        let is_command = || {
            let (after, before) = (self.text.strip_prefix(shown), self.text.strip_suffix(shown));
            shown.trim_start().starts_with('/')
                && (after.is_some_and(|rest| rest.starts_with('\n'))
                    || before.is_some_and(|rest| rest.ends_with('\n')))
        };
        let is_in_pieces = || shown.len() > self.text.len() && unbroken(shown).eq(unbroken(&self.text));
        self.text == shown || is_command() || is_in_pieces()
    }
}

/// The bytes of a text without line breaks.
fn unbroken(text: &str) -> impl Iterator<Item = u8> {
    text.bytes().filter(|byte| *byte != b'\n')
}

pub enum PromptRole {
    Turn(String),
    /// The pending message that it was.
    Steering(String),
    /// The suggestion of a client that denied a call.
    Suggestion,
}

/// Known facts about the daemon's work that are not part of the state.
#[derive(Default)]
pub struct AgentWork {
    pub running: bool,
    /// Commands in the background.
    pub background: usize,
    /// Whether the daemon has shown the prompt of the active turn.
    pub inserted: bool,
    /// Whether the daemon may still send something about a turn that was cancelled.
    pub draining: bool,
    /// Whether the past is being shown.
    pub replaying: bool,
    pub calls: HashMap<String, AgentCall>,
    pub cards: HashMap<String, CallCard>,
}

pub struct SharedSession {
    pub uri: String,
    pub chat_uri: String,
    /// The daemon's id, once the session exists.
    pub agent_id: Option<String>,
    created_at: String,
    pub(super) state: SessionState,
    pub(super) chat: ChatState,
    pub(super) work: AgentWork,
    sent: VecDeque<UnseenPrompt>,
    applied: Vec<AppliedAction>,
}

impl SharedSession {
    pub fn new(
        uri: String,
        title: &str,
        directory: &str,
        time: &str,
        lifecycle: SessionLifecycle,
    ) -> SharedSession {
        let chat_uri = uri::of_chat(&uri);
        let (status, origin) = (SessionStatus::Idle.bits(), json!({ "kind": "user" }));
        let entry = json!({
            "resource": chat_uri, "title": title, "status": status, "modifiedAt": time, "origin": origin,
        });
        let mut chat = entry.clone();
        chat["turns"] = json!([]);
        let state = json!({
            "provider": PROVIDER, "title": title, "status": status, "workingDirectories": [directory],
            "lifecycle": lifecycle, "activeClients": [], "chats": [entry], "defaultChat": chat_uri,
        });
        SharedSession {
            uri,
            chat_uri,
            agent_id: None,
            created_at: time.to_owned(),
            state: of_form(state),
            chat: of_form(chat),
            work: AgentWork::default(),
            sent: VecDeque::new(),
            applied: Vec::new(),
        }
    }

    /// Whether nothing would be lost if this host left the session.
    pub fn is_at_rest(&self) -> bool {
        let waits =
            self.chat.active_turn.is_some() || self.chat.queued_messages.is_some() || !self.sent.is_empty();
        self.state.lifecycle != SessionLifecycle::Creating
            && !waits
            && !self.work.running
            && self.work.background == 0
    }

    /// The entry in lists of sessions.
    pub fn summary(&self) -> SessionSummary {
        let chat = json!({
            "resource": self.chat_uri, "title": self.chat.title, "origin": self.chat.origin,
            "status": self.chat.status,
        });
        of_form(json!({
            "resource": self.uri, "provider": PROVIDER, "title": self.state.title, "status": self.chat.status,
            "workingDirectories": self.state.working_directories, "createdAt": self.created_at,
            "modifiedAt": self.chat.modified_at, "chats": [chat], "defaultChat": self.chat_uri,
        }))
    }

    /// The actions since the last call, with those that keep the session's entry of its chat like the chat.
    pub fn take_applied(&mut self) -> Vec<AppliedAction> {
        let entry = &self.state.chats[0];
        let status = (entry.status != self.chat.status).then_some(self.chat.status);
        let modified_at = (entry.modified_at != self.chat.modified_at).then(|| self.chat.modified_at.clone());
        if status.is_some() || modified_at.is_some() {
            let changes = json!({ "status": status, "modifiedAt": modified_at });
            let chat = &self.chat_uri;
            self.act(json!({ "type": "session/chatUpdated", "chat": chat, "changes": changes }));
        }
        std::mem::take(&mut self.applied)
    }

    /// Applies an action of the host.
    pub(super) fn act(&mut self, action: Value) {
        self.apply(of_form(action), None);
    }

    pub(super) fn pending_removed(&mut self, kind: &str, id: &str) {
        self.act(json!({ "type": "chat/pendingMessageRemoved", "kind": kind, "id": id }));
    }

    fn turn_started(&mut self, turn: &str, started_at: &str, message: &Message, queued: Option<&str>) {
        self.act(json!({
            "type": "chat/turnStarted", "turnId": turn, "startedAt": started_at, "message": message,
            "queuedMessageId": queued,
        }));
    }

    /// Applies an action with the protocol's reducers. One that changes nothing is distributed only to its client.
    pub(super) fn apply(&mut self, action: StateAction, origin: Option<ActionOrigin>) {
        let (on_chat, outcome) = match apply_action_to_chat(&mut self.chat, &action) {
            ReduceOutcome::OutOfScope => (false, apply_action_to_session(&mut self.state, &action)),
            outcome => (true, outcome),
        };
        match outcome {
            ReduceOutcome::NoOp if origin.is_none() => {}
            ReduceOutcome::Applied | ReduceOutcome::NoOp => {
                self.applied.push(AppliedAction { on_chat, action, origin });
            }
            ReduceOutcome::OutOfScope | ReduceOutcome::Invalid(_) => {
                tracing::error!(session = self.uri, ?outcome, "an action could not be applied");
            }
        }
    }

    /// The session exists in the daemon, or could not be created.
    pub fn created(&mut self, created: Result<String, String>) {
        let action = match created {
            Ok(id) => {
                self.agent_id = Some(id);
                json!({ "type": "session/ready" })
            }
            Err(message) => {
                let error = json!({ "errorType": "agent", "message": message });
                json!({ "type": "session/creationFailed", "error": error })
            }
        };
        self.act(action);
    }

    /// Handles an action of a client. The error is why it is rejected.
    pub fn dispatch(
        &mut self,
        action: StateAction,
        origin: ActionOrigin,
        now: Timestamp,
    ) -> Result<Vec<AgentCommand>, String> {
        if self.state.lifecycle != SessionLifecycle::Ready {
            return Err("the session is not ready".to_owned());
        }
        let mut commands = Vec::new();
        match &action {
            StateAction::ChatTurnStarted(started) => commands.push(self.begin(started)?),
            StateAction::ChatTurnCancelled(cancelled) => {
                self.check_active(cancelled)?;
                self.work.draining = self.work.running;
                self.work.inserted = false;
                self.forget_calls();
                commands.push(AgentCommand::Cancel);
            }
            StateAction::ChatToolCallConfirmed(confirmed) => commands = self.decide(confirmed)?,
            StateAction::ChatPendingMessageSet(pending) => commands = self.set_pending(pending)?,
            StateAction::ChatPendingMessageRemoved(removed) => self.check_pending(removed)?,
            StateAction::SessionTitleChanged(changed) if changed.title.trim().is_empty() => {
                return Err("a title must not be empty".to_owned());
            }
            StateAction::SessionTitleChanged(changed) => {
                commands.push(AgentCommand::SetTitle(changed.title.clone()))
            }
            StateAction::SessionActiveClientSet(set) if set.active_client.client_id != origin.client_id => {
                return Err("a client can enter only itself".to_owned());
            }
            StateAction::SessionActiveClientRemoved(removed) if removed.client_id != origin.client_id => {
                return Err("a client can remove only itself".to_owned());
            }
            // They concern the clients alone.
            StateAction::SessionActiveClientSet(_)
            | StateAction::SessionActiveClientRemoved(_)
            | StateAction::SessionIsReadChanged(_)
            | StateAction::ChatIsReadChanged(_)
            | StateAction::ChatDraftChanged(_) => {}
            _ => return Err("epitome does not support this action".to_owned()),
        }
        self.apply(action, Some(origin));
        commands.extend(self.next_queued(now));
        Ok(commands)
    }

    fn begin(&mut self, started: &ChatTurnStartedAction) -> Result<AgentCommand, String> {
        if self.chat.active_turn.is_some() {
            return Err("a turn is running; queue the message, or steer the turn with it".to_owned());
        }
        if self.chat.turns.iter().any(|turn| turn.id == started.turn_id) {
            return Err(format!("there was a turn {:?} already", started.turn_id));
        }
        if started.started_at.parse::<Timestamp>().is_err() {
            return Err(format!("`startedAt` is not a time: {:?}", started.started_at));
        }
        let blocks = messages::to_blocks(&started.message)?;
        let model = started.message.model.as_ref().map(|model| model.id.clone());
        Ok(self.prompt(PromptRole::Turn(started.turn_id.clone()), model, blocks))
    }

    fn prompt(&mut self, role: PromptRole, model: Option<String>, blocks: Vec<Value>) -> AgentCommand {
        let turn = match &role {
            PromptRole::Turn(turn) => {
                self.work.inserted = false;
                Some(turn.clone())
            }
            PromptRole::Steering(_) | PromptRole::Suggestion => None,
        };
        self.sent.push_back(UnseenPrompt { text: messages::text_of(&blocks), role });
        AgentCommand::Prompt { turn, model, blocks }
    }

    fn check_active(&self, cancelled: &ChatTurnCancelledAction) -> Result<(), String> {
        match &self.chat.active_turn {
            Some(active) if active.id == cancelled.turn_id => Ok(()),
            Some(_) | None => Err("this turn is not running".to_owned()),
        }
    }

    /// Passes a client's decision about a call on. Only an option that the daemon has offered can approve it.
    fn decide(&mut self, confirmed: &ChatToolCallConfirmedAction) -> Result<Vec<AgentCommand>, String> {
        let call = &confirmed.tool_call_id;
        let active = self.chat.active_turn.as_ref().filter(|active| active.id == confirmed.turn_id);
        let is_asked =
            active.is_some() && matches!(self.phase(call), Some(ToolCallState::PendingConfirmation(_)));
        if confirmed.edited_tool_input.is_some() {
            return Err("the input of a call can't be edited".to_owned());
        }
        let Some(card) = self.work.cards.get(call).filter(|_| is_asked) else {
            return Err("this call does not wait for a decision".to_owned());
        };
        let option = card.option(confirmed.approved, confirmed.selected_option_id.as_deref())?;
        let suggestion = confirmed.user_suggestion.as_ref().map(messages::to_blocks).transpose()?;
        let decision = AgentCommand::Decide { request: card.request.clone(), option };
        self.work.cards.remove(call);
        let suggestion = suggestion.map(|blocks| self.prompt(PromptRole::Suggestion, None, blocks));
        Ok(std::iter::once(decision).chain(suggestion).collect())
    }

    fn set_pending(&mut self, pending: &ChatPendingMessageSetAction) -> Result<Vec<AgentCommand>, String> {
        let blocks = messages::to_blocks(&pending.message)?;
        match pending.kind {
            // The daemon itself waits until the model can be given the message.
            PendingMessageKind::Steering if self.work.inserted => {
                Ok(vec![self.prompt(PromptRole::Steering(pending.id.clone()), None, blocks)])
            }
            PendingMessageKind::Steering => Err("no turn is running that could be steered".to_owned()),
            PendingMessageKind::Queued => {
                let queued = self.chat.queued_messages.iter().flatten().count();
                if queued >= QUEUED_MAX {
                    Err(format!("{QUEUED_MAX} messages are queued already"))
                } else {
                    Ok(vec![])
                }
            }
        }
    }

    fn check_pending(&self, removed: &ChatPendingMessageRemovedAction) -> Result<(), String> {
        let is_queued = self.chat.queued_messages.iter().flatten().any(|message| message.id == removed.id);
        match removed.kind {
            PendingMessageKind::Queued if is_queued => Ok(()),
            PendingMessageKind::Queued => Err("no such message is queued".to_owned()),
            PendingMessageKind::Steering => Err("the agent was given the message already".to_owned()),
        }
    }

    /// Begins a turn with the first queued message, if none is running.
    pub fn next_queued(&mut self, now: Timestamp) -> Option<AgentCommand> {
        if self.chat.active_turn.is_some() || self.work.replaying {
            return None;
        }
        let next = self.chat.queued_messages.as_ref()?.first()?.clone();
        let turn = format!("queued-{}", next.id);
        self.pending_removed("queued", &next.id);
        // It was checked when it was queued.
        let blocks = messages::to_blocks(&next.message).unwrap_or_default();
        self.turn_started(&turn, &now.to_string(), &next.message, Some(&next.id));
        Some(self.prompt(PromptRole::Turn(turn), next.message.model.map(|model| model.id), blocks))
    }

    /// The daemon's answer to the prompt of a turn; an error if it was not inserted.
    pub fn prompted(&mut self, turn: Option<&str>, result: Result<(), &Value>, now: Timestamp) {
        let is_this = |sent: &UnseenPrompt| match (&sent.role, turn) {
            (PromptRole::Turn(sent), Some(turn)) => sent == turn,
            (PromptRole::Steering(_) | PromptRole::Suggestion, None) => result.is_err(),
            _ => false,
        };
        let sent = self.sent.iter().position(is_this).and_then(|at| self.sent.remove(at));
        // The daemon shows a prompt before it answers. One that was not recognized is not waited for any longer.
        let Err(error) = result else { return };
        match sent.map(|sent| sent.role) {
            Some(PromptRole::Turn(turn)) if self.is_active(&turn) => {
                let message = error["message"].as_str().unwrap_or("the prompt was refused").to_owned();
                let is_cancelled = error["code"] == CANCELLED;
                self.end_turn(if is_cancelled { TurnEnd::Cancelled } else { TurnEnd::Failed(message) }, now);
            }
            Some(PromptRole::Steering(id)) => self.pending_removed("steering", &id),
            Some(PromptRole::Turn(_) | PromptRole::Suggestion) | None => {}
        }
    }

    /// Removes the oldest sent prompt that the daemon shows with this text as a message of the conversation.
    pub(super) fn take_sent(&mut self, shown: &str) -> Option<PromptRole> {
        let at = self.sent.iter().position(|sent| sent.is_shown_as(shown))?;
        self.sent.remove(at).map(|sent| sent.role)
    }

    pub(super) fn is_active(&self, turn: &str) -> bool {
        self.chat.active_turn.as_ref().is_some_and(|active| active.id == turn)
    }

    /// The id of the active turn. Work that no prompt began is a turn with an empty message of the system.
    pub(super) fn turn(&mut self, first: &str, now: Timestamp) -> String {
        if let Some(active) = &self.chat.active_turn {
            return active.id.clone();
        }
        let id = format!("work-{first}");
        self.begin_foreign(&id, &messages::message(MessageKind::SystemNotification, String::new()), now);
        id
    }

    /// Begins a turn that no client of this host has begun.
    pub(super) fn begin_foreign(&mut self, turn: &str, message: &Message, now: Timestamp) {
        let started_at = self.clock(now);
        self.turn_started(turn, &started_at, message, None);
        self.work.inserted = true;
    }

    /// Ends the active turn, if there is one.
    pub(super) fn end_turn(&mut self, end: TurnEnd, now: Timestamp) {
        let Some(ActiveTurn { id, started_at, .. }) = &self.chat.active_turn else { return };
        let (id, ended) = (id.clone(), self.clock(now).parse::<Timestamp>().unwrap_or(now));
        let began = started_at.parse::<Timestamp>().unwrap_or(ended);
        let duration = i64::try_from(ended.duration_since(began).as_millis()).unwrap_or_default();
        let mut action = json!({ "turnId": id, "duration": duration.max(0) });
        action["type"] = json!(match end {
            TurnEnd::Complete => "chat/turnComplete",
            TurnEnd::Cancelled => "chat/turnCancelled",
            TurnEnd::Failed(message) => {
                action["part"] = json!({ "error": { "errorType": "agent", "message": message } });
                "chat/error"
            }
        });
        self.act(action);
        self.work.inserted = false;
        self.forget_calls();
    }

    fn forget_calls(&mut self) {
        self.work.calls.clear();
        self.work.cards.clear();
    }

    /// The time of the current update. In a replay, only the time of its end is known.
    fn clock(&self, now: Timestamp) -> String {
        if self.work.replaying { self.created_at.clone() } else { now.to_string() }
    }

    /// The state of a call of the active turn.
    pub(super) fn phase(&self, call: &str) -> Option<&ToolCallState> {
        let parts = &self.chat.active_turn.as_ref()?.response_parts;
        parts.iter().find_map(|part| match part {
            ResponsePart::ToolCall(part) => {
                Some(&part.tool_call).filter(|state| call_id(state) == Some(call))
            }
            _ => None,
        })
    }

    /// A client has left.
    pub fn left(&mut self, client_id: &str) {
        self.act(json!({ "type": "session/activeClientRemoved", "clientId": client_id }));
    }
}

/// The daemon's code for a prompt that was cancelled before it was inserted.
const CANCELLED: i64 = -32800;

fn call_id(state: &ToolCallState) -> Option<&str> {
    match state {
        ToolCallState::Streaming(call) => Some(&call.tool_call_id),
        ToolCallState::PendingConfirmation(call) => Some(&call.tool_call_id),
        ToolCallState::Running(call) => Some(&call.tool_call_id),
        ToolCallState::AuthRequired(call) => Some(&call.tool_call_id),
        ToolCallState::PendingResultConfirmation(call) => Some(&call.tool_call_id),
        ToolCallState::Completed(call) => Some(&call.tool_call_id),
        ToolCallState::Cancelled(call) => Some(&call.tool_call_id),
        ToolCallState::Unknown(_) => None,
    }
}
