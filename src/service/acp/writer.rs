//! The translation on the writer thread: turns outbox items into lines, in order. Keeps a cursor for each session.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use agent_client_protocol::v1::schema as wire_v1;
use agent_client_protocol::v2::schema as wire;
use serde::Serialize;
use serde_json::{Value, json};
use wire::ToolCallStatus;

use super::answers;
pub use super::envelope::response;
use super::envelope::{self, Incoming, notification, request, session_update};
use super::from_wire::ClientTraits;
use super::model::{AcpVersion, CallContent, CallUpdate, TextUpdate, Update, UpdateLine};
use super::outbox::{Outbox, OutboxItem};
use super::requests::{FinishedAgent, OpeningState, OutgoingKind, OutgoingRequest, RequestKind};
use super::to_wire::Cursor;
use super::tool_wire::{self, CallDetail};
use super::unpublished;
use super::updates::{epitome_meta, log_update, wire_path};
use super::{subagent_wire, v1, v2, v2_answers};
use epitome_session_api::{
    AskId, AskedByAgent, CommandInfo, EditorRequest, PermissionRequest, Position, QuestionKind,
    SessionAnswer, SessionError, SessionEvent, Subagent, SubagentState, TextKind, Ticket, UserQuestion,
    agent_of_call,
};
use epitome_thread::visible::visible;
use epitome_thread::{CallDisplay, CallId, Change, Entry, MessageId, SessionId, StopReason, ToolCall};

/// URL elicitations tracked at a time.
const ADDRESSES_MAX: usize = 256;

/// The beginning of the line that reports to a front end its position in a session. It precedes the updates that lead
/// to that position. The front end forwards them only together, because a daemon may die between two lines of an entry.
pub const POSITION: &[u8] = br#"{"jsonrpc":"2.0","method":"$/epitome_position","params":"#;

/// The params of the position line.
#[derive(Serialize)]
struct PositionLine<'a> {
    session: &'a str,
    /// Number of updates that follow.
    lines: usize,
    /// Whether the session is now shown from its beginning.
    begins: bool,
    at: &'a Position,
}

/// A question with a form. Its schema is that of a tool or an MCP server and is passed on unchanged, while the schema
/// crate's type would drop the fields that it does not know.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FormQuestion<'a> {
    #[serde(flatten)]
    scope: wire::ElicitationSessionScope,
    mode: &'static str,
    message: Cow<'a, str>,
    requested_schema: &'a Value,
}

/// Whether position lines are sent to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    #[default]
    Omitted,
    Included,
}

/// Turns items into lines.
#[derive(Default)]
pub struct UpdateWriter {
    positions: Positions,
    /// The last position sent to the client, by session.
    sent: HashMap<SessionId, Position>,
    cursors: HashMap<SessionId, Cursor>,
    updates: Vec<Update>,
    /// Ids of the URL elicitations sent to the client.
    addresses: HashSet<String>,
    /// The subagents started by calls that have not ended for the client.
    links: HashMap<(SessionId, CallId), LinkedAgent>,
    /// Replayed calls that have started a subagent and have no result yet.
    replayed: HashMap<(SessionId, CallId), (SessionId, String)>,
    /// The id of the agent's last message, by session, for clients that support cursors.
    last_messages: HashMap<SessionId, String>,
    /// Prompts that became messages and whose turns have not ended, with the ids of their requests, for clients that read
    /// logs.
    turns: HashMap<Ticket, Box<str>>,
}

/// A subagent that the call that has started it links to.
#[derive(Clone)]
enum LinkedAgent {
    /// A running subagent, for clients that show these as sessions.
    Running(SessionId),
    /// A finished subagent, for clients that load these.
    Finished(SessionId),
}

/// The client that lines are written for.
struct WriteTarget<'a> {
    traits: &'a ClientTraits,
    outbox: &'a Outbox,
    buffer: &'a mut Vec<u8>,
}

impl WriteTarget<'_> {
    /// Writes the lines of an update.
    fn update(&mut self, session: &SessionId, update: Update) {
        let mut send = |line: UpdateLine| session_update(self.buffer, &session.0, &line);
        match self.traits.version {
            AcpVersion::V1 => v1::project(update, &mut send),
            AcpVersion::V2 => v2::project(update, &mut send),
        }
    }

    /// Sends a request to the client for a session. The answer goes to that session.
    fn request(
        &mut self,
        session: SessionId,
        ask: AskId,
        what: OutgoingKind,
        method: &'static str,
        params: &impl Serialize,
    ) {
        let id = self.outbox.requests().ask(OutgoingRequest { session, ask, what });
        request(self.buffer, id, method, params);
    }
}

impl UpdateWriter {
    pub fn new(positions: Positions) -> UpdateWriter {
        UpdateWriter { positions, ..UpdateWriter::default() }
    }

    /// Appends the lines for an item.
    pub fn write(&mut self, item: OutboxItem, traits: &ClientTraits, outbox: &Outbox, buffer: &mut Vec<u8>) {
        let target = &mut WriteTarget { traits, outbox, buffer };
        match item {
            OutboxItem::Own(line) => target.buffer.extend_from_slice(&line),
            OutboxItem::Event { session, out } if is_dropped(&session, &out, outbox) => {
                tracing::debug!(%session, "an event of a session that the client has given up is dropped");
                drop(out);
            }
            OutboxItem::Event { session, out } => match out {
                SessionEvent::Ask { ask, permission } => self.ask(session, ask, &permission, target),
                SessionEvent::Question { ask, question } => self.question(session, ask, &question, target),
                SessionEvent::QuestionDone { id } => {
                    // Sent once, and only to a client that received the elicitation.
                    if self.addresses.remove(&id) {
                        let done = wire::CompleteElicitationNotification::new(id);
                        notification(target.buffer, "elicitation/complete", &done);
                    }
                }
                SessionEvent::EditorRequest { ask, request } => {
                    editor_request(session, ask, &request, target)
                }
                SessionEvent::Withdrawn { ask } => {
                    let asked = target.outbox.requests().withdraw(&session, ask);
                    if let Some(id) = asked {
                        envelope::cancel_request(target.buffer, id);
                    }
                }
                SessionEvent::Subagent(now) => self.agent(&session, now, target),
                SessionEvent::Answer { ticket, answer } => self.answer(&session, ticket, answer, target),
                SessionEvent::Inserted { ticket, message } => self.inserted(ticket, message, target),
                out @ (SessionEvent::Entry { .. }
                | SessionEvent::Text { .. }
                | SessionEvent::CallStarted { .. }
                | SessionEvent::CallProgress { .. }
                | SessionEvent::CallFinished { .. }
                | SessionEvent::Seen(_)
                | SessionEvent::Compaction { .. }
                | SessionEvent::Usage(_)
                | SessionEvent::Commands(_)
                | SessionEvent::Options(_)
                | SessionEvent::State(_)
                | SessionEvent::TerminalEnded { .. }
                | SessionEvent::Notice { .. }) => self.translate(&session, out, target),
            },
        }
    }

    fn translate(&mut self, session: &SessionId, out: SessionEvent, target: &mut WriteTarget<'_>) {
        let mut updates = std::mem::take(&mut self.updates);
        if let SessionEvent::Entry { entry, replay: true, .. } = &out {
            self.find_finished_agents(session, entry, target);
        }
        let begins = matches!(
            &out,
            SessionEvent::Entry { entry, replay: true, .. } if matches!(entry.change, Change::Opened { .. })
        );
        if let SessionEvent::Commands(commands) = &out {
            list_skills(session, commands, target);
        }
        let entry = match &out {
            SessionEvent::Entry { entry, .. } if target.traits.cursors => Some(entry.clone()),
            _ => None,
        };
        self.cursor(session).translate(out, target.traits, &mut updates);
        let start = target.buffer.len();
        if let Some(last) = last_agent_message(&updates).filter(|_| target.traits.cursors) {
            self.last_messages.insert(session.clone(), last);
        }
        let cursor = entry.and_then(|entry| self.cursor_after(session, &entry, &updates, target));
        for update in updates.drain(..) {
            self.update(session, update, target);
        }
        if let Some(params) = cursor {
            notification(target.buffer, "session/update", &params);
        }
        self.updates = updates;
        if begins || target.buffer.len() > start {
            self.insert_position(session, begins, start, target.buffer);
        }
    }

    /// Writes the lines of an update. A call that has started a subagent links to it in addition to its own content; each
    /// content replaces the previous one.
    fn update(&mut self, session: &SessionId, mut update: Update, target: &mut WriteTarget<'_>) {
        if let Update::Call(call) = &mut update
            && !call.is_new
            && !self.links.is_empty()
        {
            let key = (session.clone(), CallId(call.id.clone()));
            let is_over = matches!(
                call.status,
                Some(ToolCallStatus::Completed | ToolCallStatus::Failed | ToolCallStatus::Cancelled)
            );
            let linked = match is_over {
                true => self.links.remove(&key),
                false => self.links.get(&key).cloned(),
            };
            match linked {
                Some(LinkedAgent::Running(child)) => {
                    call.content
                        .iter_mut()
                        .for_each(|content| content.push(CallContent::Agent(child.clone())));
                }
                Some(LinkedAgent::Finished(child)) if is_over || call.content.is_some() => {
                    call.agent = Some(child);
                }
                Some(LinkedAgent::Finished(_)) | None => {}
            }
        }
        target.update(session, update);
    }

    /// Links the replayed calls of finished subagents to the sessions that the client can load. Only in version 1:
    /// version 2 has no such link.
    fn find_finished_agents(&mut self, session: &SessionId, entry: &Arc<Entry>, target: &WriteTarget<'_>) {
        match &entry.change {
            Change::Replied { message, .. } if target.traits.version == AcpVersion::V1 => {
                for call in message.calls() {
                    let Some(agent) = agent_of_call(session, entry.seq, call) else { continue };
                    let task = call.input["prompt"].as_str().unwrap_or_default().to_owned();
                    self.replayed.insert((session.clone(), call.id.clone()), (agent, task));
                }
            }
            Change::ToolFinished { outcome } => {
                let key = (session.clone(), outcome.call.clone());
                if let Some((agent, task)) = self.replayed.remove(&key)
                    && outcome.whole.is_some()
                {
                    let record = FinishedAgent { parent: session.clone(), task, outcome: entry.clone() };
                    target.outbox.requests().agent_can_be_loaded(agent.clone(), record);
                    self.links.insert(key, LinkedAgent::Finished(agent));
                }
            }
            _ => {}
        }
    }

    /// The cursor after an entry, given the updates that show it: after each user message that is shown and after each
    /// turn.
    /// `None` for a subagent, which can't be forked.
    fn cursor_after(
        &mut self,
        session: &SessionId,
        entry: &Entry,
        updates: &[Update],
        target: &WriteTarget<'_>,
    ) -> Option<Value> {
        let (kind, message) = match &entry.change {
            Change::TurnEnded { .. } => ("agent_message", self.last_messages.remove(session)?),
            change if change.is_said_by_user() => {
                let shown = updates.iter().find_map(|update| match update {
                    Update::UserMessage { id, .. } => Some(id.0.to_string()),
                    _ => None,
                });
                ("user_message", shown?)
            }
            _ => return None,
        };
        let is_child = target.outbox.requests().root_of(session).is_some();
        (!is_child).then(|| unpublished::cursor_update(session, entry.seq, kind, &message))
    }

    /// Inserts the client's position before the lines that begin at `start`, if it has changed. An entry that a client is shown
    /// nothing of has no position of its own: another process shows nothing of it either. The answer to a prompt has one,
    /// because another process can no longer know that the prompt was the client's own.
    fn insert_position(&mut self, session: &SessionId, begins: bool, start: usize, buffer: &mut Vec<u8>) {
        if self.positions == Positions::Omitted {
            return;
        }
        let Some(at) = self.cursor(session).position() else { return };
        if !begins && self.sent.get(session) == Some(&at) {
            return;
        }
        let lines = buffer[start..].iter().filter(|byte| **byte == b'\n').count();
        let step = PositionLine { session: &session.0, lines, begins, at: &at };
        let json = serde_json::to_vec(&step).expect("a position is made of strings and numbers");
        buffer.splice(start..start, [POSITION, &json, b"}\n"].concat());
        self.sent.insert(session.clone(), at);
    }

    /// Translates a subagent's state. The subagent has a cursor from its announcement to its end.
    fn agent(&mut self, parent: &SessionId, now: Subagent, target: &mut WriteTarget<'_>) {
        if !target.traits.subagents {
            return;
        }
        let agent = now.session.clone();
        if let Some(about) = &now.about {
            let mut cursor = Cursor::for_agent(&agent, parent);
            cursor.works_in(&about.cwd);
            self.cursors.insert(agent.clone(), cursor);
        }
        match now.state {
            SubagentState::Running | SubagentState::RequiresAction => {
                target.outbox.requests().agent_works(agent, parent.clone());
            }
            SubagentState::Ended(_) => {
                target.outbox.requests().agent_ended(&agent);
                let mut updates = Vec::new();
                if let Some(mut cursor) = self.cursors.remove(&agent) {
                    cursor.end(target.traits.version, &mut updates);
                }
                for update in updates {
                    self.update(&agent, update, target);
                }
            }
        }
        let call = now.about.as_ref().and_then(|about| about.call.clone());
        let child = now.session.clone();
        self.translate(parent, SessionEvent::Subagent(now), target);
        if let Some(call) = call {
            let content = Some(vec![CallContent::Agent(child.clone())]);
            let update = CallUpdate { id: call.0.clone(), content, ..CallUpdate::default() };
            target.update(parent, Update::Call(Box::new(update)));
            self.links.insert((parent.clone(), call), LinkedAgent::Running(child));
        }
    }

    fn ask(
        &mut self,
        session: SessionId,
        ask: AskId,
        permission: &PermissionRequest,
        target: &mut WriteTarget<'_>,
    ) {
        // A subagent's permission request is shown in the subagent's session if the client shows such sessions. The
        // answer still goes to the session that asked.
        let of_agent = permission.agent.as_ref().filter(|agent| self.cursors.contains_key(&agent.session));
        let (shown_in, permission) = match of_agent {
            Some(AskedByAgent { session, call, title }) => {
                let card = CallDisplay { title: title.clone(), ..permission.card.clone() };
                let permission = PermissionRequest { call: call.clone(), card, ..permission.clone() };
                (session.clone(), Cow::Owned(permission))
            }
            None => (session.clone(), Cow::Borrowed(permission)),
        };
        let call = ToolCall {
            id: permission.call.clone(),
            name: permission.tool.clone(),
            input: permission.input.clone(),
            card: permission.card.clone(),
        };
        if let Some(update) = self.cursor(&shown_in).announce(&call, target.traits, CallDetail::Live) {
            target.update(&shown_in, update);
        }
        let card = tool_wire::permission(&permission);
        let what = OutgoingKind::Permission {
            always: permission.always.is_some(),
            never: permission.never.is_some(),
        };
        let method = "session/request_permission";
        match target.traits.version {
            AcpVersion::V1 => target.request(session, ask, what, method, &v1::permission(&shown_in, card)),
            AcpVersion::V2 => {
                let whole = json!({ "permission": permission });
                let meta = target.traits.reads_log.then(|| epitome_meta(whole));
                let params = v2::permission(&shown_in, card).meta(meta);
                target.request(session, ask, what, method, &params);
            }
        }
    }

    /// Sends a question, unless the client can't show that kind.
    fn question(
        &mut self,
        session: SessionId,
        ask: AskId,
        question: &UserQuestion,
        target: &mut WriteTarget<'_>,
    ) {
        if !target.traits.questions().can(&question.wants) {
            return;
        }
        let call = question.call.as_ref().map(|call| wire::ToolCallId::new(call.0.as_str()));
        let scope = wire::ElicitationSessionScope::new(session.0.as_str()).tool_call_id(call);
        let (kind, method) = (OutgoingKind::Elicitation, "elicitation/create");
        match &question.wants {
            QuestionKind::Form { schema } => {
                let message = visible(&question.message);
                let form = FormQuestion { scope, mode: "form", message, requested_schema: schema };
                target.request(session, ask, kind, method, &form);
            }
            QuestionKind::Url { url, id } => {
                if self.addresses.len() < ADDRESSES_MAX {
                    self.addresses.insert(id.clone());
                }
                let mode = wire::ElicitationUrlMode::new(scope, id.as_str(), url);
                let params = wire::CreateElicitationRequest::new(mode, visible(&question.message));
                target.request(session, ask, kind, method, &params);
            }
        }
    }

    fn answer(
        &mut self,
        session: &SessionId,
        ticket: Ticket,
        answer: Result<SessionAnswer, SessionError>,
        target: &mut WriteTarget<'_>,
    ) {
        let is_v2 = target.traits.version == AcpVersion::V2;
        if target.traits.reads_log {
            self.report_end(session, ticket, &answer, target);
        }
        let Some(open) = target.outbox.requests().answer(ticket) else {
            if is_v2 {
                // The prompt was answered when it became a message. The session's state reports how its turn ended.
                return;
            }
            tracing::warn!(%session, ?ticket, "a second answer to a request is dropped");
            return;
        };
        let is_cancelled = matches!(open.opening, OpeningState::Cancelled(_));
        let gone = is_cancelled
            || match (&answer, open.kind) {
                (Ok(SessionAnswer::Closed), _) => true,
                // A session that was open before remains so.
                (
                    Err(_),
                    RequestKind::New | RequestKind::Load | RequestKind::Resume | RequestKind::ResumeReplayed,
                ) => open.opening != OpeningState::None,
                (Ok(_) | Err(_), _) => false,
            };
        if let Ok(SessionAnswer::Attached { session, cwd, .. }) = &answer
            && !is_cancelled
        {
            target.outbox.requests().session_opens(session.clone());
            self.cursor(session).works_in(cwd);
        }
        if let Ok(SessionAnswer::Attached { session, now: Some(now), .. }) = &answer {
            list_skills(session, &now.commands, target);
            if open.kind == RequestKind::ResumeReplayed && !is_cancelled {
                // The schema crate has no type for it yet.
                let params =
                    json!({ "sessionId": session.0, "update": { "sessionUpdate": "replay_complete" } });
                notification(target.buffer, "session/update", &params);
            }
            if matches!(open.kind, RequestKind::Resume | RequestKind::ResumeReplayed) {
                self.translate(session, SessionEvent::State(Arc::new(now.state.clone())), target);
            }
        }
        let refused = match open.kind {
            RequestKind::Prompt => self.cursors.get_mut(session).and_then(Cursor::take_refused),
            _ => None,
        };
        if self.cursors.contains_key(session) {
            let end = target.buffer.len();
            self.insert_position(session, false, end, target.buffer);
        }
        if gone {
            target.outbox.requests().session_closed(session);
            self.cursors.remove(session);
            self.sent.remove(session);
            self.links.retain(|(parent, _), _| parent != session);
            self.last_messages.remove(session);
        }
        let result = match answer {
            Ok(_) if is_cancelled => Err(answers::cancelled()),
            Ok(answer) if is_v2 => v2_answers::result(open.kind, answer, refused, target.traits),
            Ok(answer) => answers::result(open.kind, answer, target.traits),
            Err(error) if target.traits.details_alone => {
                Err(answers::put_message_in_details(answers::session_error(&error)))
            }
            Err(error) if target.traits.reads_log => {
                Err(answers::session_error(&error).data(json!({ "error": error })))
            }
            Err(error) => Err(answers::session_error(&error)),
        };
        response(target.buffer, &open.id, result);
    }

    /// Reports the end of a prompt, which the protocol leaves to the state of the session.
    fn report_end(
        &mut self,
        session: &SessionId,
        ticket: Ticket,
        answer: &Result<SessionAnswer, SessionError>,
        target: &mut WriteTarget<'_>,
    ) {
        let refused = || {
            let requests = target.outbox.requests();
            let open = requests.unanswered(ticket).filter(|open| open.kind == RequestKind::Prompt);
            open.map(|open| open.id.clone())
        };
        let Some(request) = self.turns.remove(&ticket).or_else(refused) else { return };
        let request: Option<u64> = request.parse().ok();
        let ended = match answer {
            Ok(SessionAnswer::TurnEnded { reason, usage, meta }) => {
                let result =
                    meta.as_ref().and_then(|meta| meta.get("epitome")).filter(|result| result.is_object());
                let none = json!({});
                json!({
                    "request": request, "reason": reason, "usage": usage, "result": result.unwrap_or(&none),
                })
            }
            Ok(_) => json!({ "request": request, "reason": StopReason::Cancelled }),
            Err(error) => json!({ "request": request, "error": error }),
        };
        target.update(session, log_update(json!({ "ended": ended })));
    }

    /// Answers a prompt that has become a message. Only for clients of version 2.
    fn inserted(&mut self, ticket: Ticket, message: MessageId, target: &mut WriteTarget<'_>) {
        let open = target.outbox.requests().answer(ticket);
        if let Some(open) = open {
            response(target.buffer, &open.id, v2_answers::inserted(message));
            if target.traits.reads_log {
                self.turns.insert(ticket, open.id);
            }
        }
    }

    fn cursor(&mut self, session: &SessionId) -> &mut Cursor {
        if !self.cursors.contains_key(session) {
            self.cursors.insert(session.clone(), Cursor::new(session));
        }
        self.cursors.get_mut(session).expect("it was put in if it was missing")
    }
}

/// Records the skills that a client is shown, which it can start by name.
fn list_skills(session: &SessionId, commands: &[CommandInfo], target: &WriteTarget<'_>) {
    if target.traits.skills {
        let names = commands.iter().filter(|command| command.skill.is_some());
        let names = names.map(|command| command.name.clone());
        target.outbox.requests().lists_skills(session, names);
    }
}

/// The id of the agent's last message in these updates.
fn last_agent_message(updates: &[Update]) -> Option<String> {
    updates.iter().rev().find_map(|update| match update {
        Update::Text(TextUpdate { kind: TextKind::Reply, id, .. }) => Some(id.0.to_string()),
        _ => None,
    })
}

/// Whether an event is dropped because the client has cancelled the request that opened its session.
fn is_dropped(session: &SessionId, out: &SessionEvent, outbox: &Outbox) -> bool {
    !matches!(out, SessionEvent::Answer { .. }) && outbox.requests().is_abandoned(session)
}

/// Asks an editor to read or write a file. Sent only to clients that support it.
fn editor_request(session: SessionId, ask: AskId, request: &EditorRequest, target: &mut WriteTarget<'_>) {
    let id = wire_v1::SessionId::new(session.0.as_str());
    match request {
        EditorRequest::Text { path } => {
            let params = wire_v1::ReadTextFileRequest::new(id, wire_path(path));
            target.request(session, ask, OutgoingKind::Text, "fs/read_text_file", &params);
        }
        EditorRequest::Put { path, text } => {
            let params = wire_v1::WriteTextFileRequest::new(id, wire_path(path), text);
            target.request(session, ask, OutgoingKind::Put, "fs/write_text_file", &params);
        }
    }
}

/// How a line that was too long to read is handled.
pub enum TooLongLine {
    /// It is a request, or can't be read. This line is sent back as its answer.
    Refused(Vec<u8>),
    /// It is a response. This error is read in its place, so that the request that it belongs to does not wait for ever.
    Replaced(Vec<u8>),
}

/// Decides by its outline how a line that was too long is handled.
pub fn too_long(outline: &[u8]) -> TooLongLine {
    let error = |id| {
        let mut line = Vec::new();
        response(&mut line, id, Err(answers::line_too_long()));
        line
    };
    match envelope::read(outline) {
        Incoming::Request { id, .. } | Incoming::Invalid { id, .. } => TooLongLine::Refused(error(id)),
        Incoming::Response { id, .. } => TooLongLine::Replaced(error(id)),
        Incoming::Notification { .. } | Incoming::Blank => TooLongLine::Refused(error("null")),
    }
}

/// The lines that show a finished subagent to a client that loads it.
pub fn finished_agent(session: &SessionId, agent: &FinishedAgent) -> Option<Vec<u8>> {
    let mut lines = Vec::new();
    for update in subagent_wire::record(agent)? {
        v1::project(update, &mut |line| session_update(&mut lines, &session.0, &line));
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::requests::{Cancellation, IncomingRequest};
    use super::*;
    use epitome_thread::{Content, Message, MessageId, ModelName, Seq, ToolKind};

    fn written(out: SessionEvent, traits: &ClientTraits) -> Vec<Value> {
        let (outbox, mut buffer) = (Outbox::new(0), Vec::new());
        let session = SessionId("s_1".to_owned());
        UpdateWriter::default().write(OutboxItem::Event { session, out }, traits, &outbox, &mut buffer);
        let lines = buffer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("each line is JSON")).collect()
    }

    /// Regression: the schema omits the default status, and clients that don't know it showed "undefined".
    #[test]
    fn a_call_has_a_status_from_the_start() {
        let card = CallDisplay { title: "ls".into(), kind: ToolKind::Execute, locations: Vec::new() };
        let call = ToolCall { id: CallId("c1".into()), name: "bash".into(), input: json!({}), card };
        let message = Message { id: MessageId(1), content: vec![Content::Call(call)], author: None };
        let change = Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None };
        let entry = Arc::new(Entry { seq: Seq(1), at: 0, change });
        let out = SessionEvent::Entry { entry, replay: false, own: true };
        let lines = written(out, &ClientTraits::default());
        assert_eq!(lines[0]["params"]["update"]["status"], "pending");
        assert_eq!(lines[0]["params"]["update"]["toolCallId"], "c1");
    }

    #[test]
    fn a_question_names_the_call_that_asks() {
        let wants = QuestionKind::Form { schema: json!({ "type": "object" }) };
        let question = UserQuestion { message: "Which?".into(), wants, call: Some(CallId("c1".into())) };
        let out = SessionEvent::Question { ask: AskId(7), question: Arc::new(question) };
        let traits = ClientTraits { elicitation_form: true, ..ClientTraits::default() };
        let lines = written(out, &traits);
        assert_eq!(lines[0]["method"], "elicitation/create");
        assert_eq!(lines[0]["params"]["toolCallId"], "c1");
    }

    /// A client that cancels the loading of a long session must not get the rest of it, nor any later event.
    #[test]
    fn nothing_is_written_of_a_session_whose_opening_was_cancelled() {
        let outbox = Outbox::new(0);
        let session = SessionId("s_1".to_owned());
        let request = IncomingRequest {
            id: "7".into(),
            kind: RequestKind::Load,
            session: Some(session.clone()),
            opening: OpeningState::Begun,
        };
        let ticket = outbox.requests().open(request).expect("one request is not too many");
        outbox.requests().session_opens(session.clone());
        assert!(outbox.requests().attaching(ticket, &session));
        let noted = |text: &str| {
            let change = Change::Noted { message: MessageId(1), text: text.to_owned() };
            let entry = Arc::new(Entry { seq: Seq(1), at: 0, change });
            SessionEvent::Entry { entry, replay: true, own: false }
        };
        let options = Arc::new(epitome_session_api::SessionOptions {
            mode: epitome_thread::Mode::Ask,
            model: None,
            models: Vec::new(),
            thought: epitome_thread::ThoughtLevel::Medium,
            remarks: Vec::new(),
            auto_compact: true,
        });
        let attached =
            SessionAnswer::Attached { session: session.clone(), cwd: "/w".into(), options, now: None };
        let (mut writer, mut buffer) = (UpdateWriter::default(), Vec::new());
        let mut write = |out| {
            let item = OutboxItem::Event { session: session.clone(), out };
            writer.write(item, &ClientTraits::default(), &outbox, &mut buffer);
        };
        write(noted("one"));
        assert_eq!(outbox.requests().cancel("7"), Cancellation::Detach(session.clone()));
        write(noted("two"));
        write(SessionEvent::Answer { ticket, answer: Ok(attached) });
        write(noted("three"));
        let text = String::from_utf8(buffer).expect("JSON");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].contains("one"), "{text}");
        let answer: Value = serde_json::from_str(lines[1]).expect("JSON");
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-32800)));
        assert!(!outbox.requests().has_opened(&session));
    }

    /// Each content of a call replaces the previous one, so every content has the link to its subagent until the call
    /// ends.
    #[test]
    fn a_call_keeps_the_link_to_its_subagent() {
        let outbox = Outbox::new(0);
        let (parent, child) = (SessionId("s_1".to_owned()), SessionId("s_2".to_owned()));
        let traits = ClientTraits { subagents: true, ..ClientTraits::default() };
        let (mut writer, mut buffer) = (UpdateWriter::default(), Vec::new());
        let card = CallDisplay { title: "Find it".into(), kind: ToolKind::Other, locations: Vec::new() };
        let call = ToolCall { id: CallId("c1".into()), name: "task".into(), input: json!({}), card };
        let message = Message { id: MessageId(1), content: vec![Content::Call(call)], author: None };
        let change = Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None };
        let entry = Arc::new(Entry { seq: Seq(1), at: 0, change });
        let about = epitome_session_api::SubagentInfo {
            call: Some(CallId("c1".into())),
            title: "Find it".into(),
            description: String::new(),
            cwd: "/w".into(),
        };
        let began = Subagent { session: child, about: Some(Arc::new(about)), state: SubagentState::Running };
        let done = epitome_thread::ToolOutcome::text(
            CallId("c1".into()),
            epitome_thread::OutcomeStatus::Completed,
            "Found.",
        );
        for out in [
            SessionEvent::Entry { entry, replay: false, own: true },
            SessionEvent::Subagent(began),
            SessionEvent::CallProgress { call: CallId("c1".into()), output: "Looking.".into() },
            SessionEvent::CallFinished { outcome: Arc::new(done) },
        ] {
            let item = OutboxItem::Event { session: parent.clone(), out };
            writer.write(item, &traits, &outbox, &mut buffer);
        }
        let text = String::from_utf8(buffer).expect("JSON");
        let link = json!({ "type": "session", "sessionId": "s_2" });
        let contents: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
            .filter(|line| line["params"]["update"]["sessionUpdate"] == "tool_call_update")
            .map(|line| line["params"]["update"]["content"].clone())
            .collect();
        assert_eq!(contents.len(), 3, "{text}");
        let linked: Vec<usize> = contents.iter().map(|all| all.as_array().map_or(0, Vec::len)).collect();
        assert_eq!(linked, [1, 2, 2], "{text}");
        let has_link = |all: &Value| all.as_array().is_some_and(|all| all.contains(&link));
        assert!(contents.iter().all(has_link), "{text}");
        assert!(writer.links.is_empty());
    }
}
