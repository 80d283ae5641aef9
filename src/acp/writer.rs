//! The writer's translation: turns outbox items into lines, in order. Keeps a cursor for each session.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use agent_client_protocol::v1::schema as wire;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::answers;
use super::from_wire::ClientTraits;
use super::outbox::{Item, Outbox};
use super::requests::{Asked, RequestKind, What};
use super::to_wire::Cursor;
use super::tool_wire::{self, Detail};
use super::updates::wire_path;
use epitome_session::{
    Answer, AskId, AskedByAgent, Out, PermissionAsk, Question, SessionError, Shows, Subagent, SubagentState,
    Ticket, Wants, Wish,
};
use epitome_thread::{Card, SessionId, ToolCall};

/// URL elicitations tracked at a time.
const ADDRESSES_MAX: usize = 256;

/// Turns items into lines.
#[derive(Default)]
pub struct UpdateWriter {
    cursors: HashMap<SessionId, Cursor>,
    updates: Vec<wire::SessionUpdate>,
    /// Ids of the URL elicitations that the client was sent.
    addresses: HashSet<String>,
}

impl UpdateWriter {
    /// Appends the lines for an item.
    pub fn write(&mut self, item: Item, traits: &ClientTraits, outbox: &Outbox, buffer: &mut Vec<u8>) {
        match item {
            Item::Own(line) => buffer.extend_from_slice(&line),
            Item::Event { session, out } => match out {
                Out::Ask { ask, permission } => self.ask(session, ask, &permission, traits, outbox, buffer),
                Out::Question { ask, question } => {
                    self.question(session, ask, &question, traits, outbox, buffer);
                }
                Out::QuestionDone { id } => {
                    // Sent once, and only to a client that was sent the elicitation.
                    if self.addresses.remove(&id) {
                        notification(buffer, "elicitation/complete", &json!({ "elicitationId": id }));
                    }
                }
                Out::Wish { ask, wish } => wish_for(session, ask, &wish, outbox, buffer),
                Out::Withdrawn { ask } => {
                    let asked = outbox.requests().withdraw(&session, ask);
                    if let Some(id) = asked {
                        let params = wire::CancelRequestNotification::new(wire::RequestId::Number(id as i64));
                        notification(buffer, "$/cancel_request", &params);
                    }
                }
                Out::Subagent(now) => self.agent(&session, now, traits, outbox, buffer),
                Out::Answer { ticket, answer } => {
                    self.answer(&session, ticket, answer, traits, outbox, buffer);
                }
                out @ (Out::Entry { .. }
                | Out::Text { .. }
                | Out::CallStarted { .. }
                | Out::CallProgress { .. }
                | Out::CallFinished { .. }
                | Out::CallsSeen { .. }
                | Out::Compaction { .. }
                | Out::Usage(_)
                | Out::Commands(_)
                | Out::Options(_)
                | Out::Notice { .. }) => self.translate(&session, out, traits, buffer),
            },
        }
    }

    fn translate(&mut self, session: &SessionId, out: Out, traits: &ClientTraits, buffer: &mut Vec<u8>) {
        let mut updates = std::mem::take(&mut self.updates);
        self.cursor(session).translate(out, traits, &mut updates);
        for update in updates.drain(..) {
            session_update(buffer, session, &update);
        }
        self.updates = updates;
    }

    /// Translates a subagent's state. The subagent has a cursor from its announcement to its end.
    fn agent(
        &mut self,
        parent: &SessionId,
        now: Subagent,
        traits: &ClientTraits,
        outbox: &Outbox,
        buffer: &mut Vec<u8>,
    ) {
        if !traits.subagents {
            return;
        }
        let agent = now.session.clone();
        if now.about.is_some() {
            self.cursors.insert(agent.clone(), Cursor::of_agent(&agent, parent));
        }
        match now.state {
            SubagentState::Running | SubagentState::RequiresAction => {
                outbox.requests().agent_works(agent, parent.clone());
            }
            SubagentState::Ended(_) => {
                outbox.requests().agent_ended(&agent);
                let mut updates = Vec::new();
                if let Some(mut cursor) = self.cursors.remove(&agent) {
                    cursor.end(&mut updates);
                }
                for update in &updates {
                    session_update(buffer, &agent, update);
                }
            }
        }
        self.translate(parent, Out::Subagent(now), traits, buffer);
    }

    fn ask(
        &mut self,
        session: SessionId,
        ask: AskId,
        permission: &PermissionAsk,
        traits: &ClientTraits,
        outbox: &Outbox,
        buffer: &mut Vec<u8>,
    ) {
        // A subagent's permission request is shown in the subagent's session if the client shows that; the
        // answer still belongs to the session that asked.
        let of_agent = permission.agent.as_ref().filter(|agent| self.cursors.contains_key(&agent.session));
        let (shown_in, permission) = match of_agent {
            Some(AskedByAgent { session, call, title }) => {
                let card = Card { title: title.clone(), ..permission.card.clone() };
                let permission = PermissionAsk { call: call.clone(), card, ..permission.clone() };
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
        if let Some(update) = self.cursor(&shown_in).announce(&call, traits, Detail::Live) {
            session_update(buffer, &shown_in, &update);
        }
        let params = tool_wire::permission(&shown_in, &permission);
        let id = outbox.requests().ask(Asked {
            session,
            ask,
            what: What::Permission { always: permission.always.is_some(), never: permission.never.is_some() },
        });
        request(buffer, id, "session/request_permission", &params);
    }

    /// Sends a question, unless the client can't show that kind.
    fn question(
        &mut self,
        session: SessionId,
        ask: AskId,
        question: &Question,
        traits: &ClientTraits,
        outbox: &Outbox,
        buffer: &mut Vec<u8>,
    ) {
        let shows = Shows { forms: traits.elicitation_form, urls: traits.elicitation_url };
        if !shows.can(&question.wants) {
            return;
        }
        let mut params = json!({ "sessionId": session.0, "message": question.message });
        match &question.wants {
            Wants::Form { schema } => {
                params["mode"] = json!("form");
                params["requestedSchema"] = schema.clone();
            }
            Wants::Url { url, id } => {
                params["mode"] = json!("url");
                params["url"] = json!(url);
                params["elicitationId"] = json!(id);
                if self.addresses.len() < ADDRESSES_MAX {
                    self.addresses.insert(id.clone());
                }
            }
        }
        let asked = Asked { session, ask, what: What::Elicitation };
        let id = outbox.requests().ask(asked);
        request(buffer, id, "elicitation/create", &params);
    }

    fn answer(
        &mut self,
        session: &SessionId,
        ticket: Ticket,
        answer: Result<Answer, SessionError>,
        traits: &ClientTraits,
        outbox: &Outbox,
        buffer: &mut Vec<u8>,
    ) {
        let Some(open) = outbox.requests().answer(ticket) else {
            tracing::warn!(%session, ?ticket, "a second answer to a request is dropped");
            return;
        };
        let gone = match (&answer, open.kind) {
            (Ok(Answer::Closed), _) => true,
            (Err(_), RequestKind::New | RequestKind::Fork | RequestKind::Load | RequestKind::Resume) => true,
            (Ok(_) | Err(_), _) => false,
        };
        if gone {
            self.cursors.remove(session);
        }
        let result = match answer {
            Ok(answer) => answers::result(open.kind, answer),
            Err(error) if traits.details_alone => {
                Err(answers::told_in_details(answers::session_error(&error)))
            }
            Err(error) => Err(answers::session_error(&error)),
        };
        response(buffer, &open.id, result);
    }

    fn cursor(&mut self, session: &SessionId) -> &mut Cursor {
        if !self.cursors.contains_key(session) {
            self.cursors.insert(session.clone(), Cursor::new(session));
        }
        self.cursors.get_mut(session).expect("it was put in if it was missing")
    }
}

/// Requests a file's text from an editor, or to write one. Sent only to clients that offer it.
fn wish_for(session: SessionId, ask: AskId, wish: &Wish, outbox: &Outbox, buffer: &mut Vec<u8>) {
    let (method, what, params) = match wish {
        Wish::Text { path } => {
            ("fs/read_text_file", What::Text, json!({ "sessionId": session.0, "path": wire_path(path) }))
        }
        Wish::Put { path, text } => (
            "fs/write_text_file",
            What::Put,
            json!({ "sessionId": session.0, "path": wire_path(path), "content": text }),
        ),
    };
    let id = outbox.requests().ask(Asked { session, ask, what });
    request(buffer, id, method, &params);
}

/// Appends the response to a request. `id` is the request's JSON, unchanged.
pub fn response(buffer: &mut Vec<u8>, id: &str, result: Result<Box<RawValue>, wire::Error>) {
    buffer.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    buffer.extend_from_slice(id.as_bytes());
    match result {
        Ok(result) => {
            buffer.extend_from_slice(br#","result":"#);
            buffer.extend_from_slice(result.get().as_bytes());
        }
        Err(error) => {
            buffer.extend_from_slice(br#","error":"#);
            serde_json::to_writer(&mut *buffer, &error).expect("an error is made of strings and numbers");
        }
    }
    buffer.extend_from_slice(b"}\n");
}

fn session_update(buffer: &mut Vec<u8>, session: &SessionId, update: &wire::SessionUpdate) {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        session_id: &'a str,
        update: &'a wire::SessionUpdate,
    }
    notification(buffer, "session/update", &Params { session_id: &session.0, update });
}

fn notification(buffer: &mut Vec<u8>, method: &'static str, params: &impl Serialize) {
    let start = buffer.len();
    buffer.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
    finish(buffer, start, method, params);
}

fn request(buffer: &mut Vec<u8>, id: u64, method: &'static str, params: &impl Serialize) {
    let start = buffer.len();
    buffer.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    buffer.extend_from_slice(id.to_string().as_bytes());
    buffer.extend_from_slice(br#","method":""#);
    finish(buffer, start, method, params);
}

fn finish(buffer: &mut Vec<u8>, start: usize, method: &'static str, params: &impl Serialize) {
    buffer.extend_from_slice(method.as_bytes());
    buffer.extend_from_slice(br#"","params":"#);
    if let Err(error) = serde_json::to_writer(&mut *buffer, params) {
        // A partial line would corrupt the stream; dropping one message does not.
        tracing::error!(%error, method, "a message could not be written as JSON");
        buffer.truncate(start);
        return;
    }
    buffer.extend_from_slice(b"}\n");
}
