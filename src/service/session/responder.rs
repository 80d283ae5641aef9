//! Answers that a session owes: to prompts, to clients that attach and to clients that leave.

use super::{Attachment, ClientId, SessionAnswer, SessionError, SessionEvent, Ticket};
use epitome_thread::{Content, MessageId, SessionId, StopReason, Usage};

/// A client that detaches once the turn has ended.
pub struct LeavingClient {
    pub client: ClientId,
    /// The receiver of the answer, if the client has asked to leave; otherwise its connection has closed.
    pub responder: Option<Responder>,
}

/// A prompt that has not started.
pub struct QueuedPrompt {
    pub responder: Responder,
    pub client: ClientId,
    pub content: Vec<Content>,
}

impl QueuedPrompt {
    pub(super) fn may_be_command(&self) -> bool {
        outer_texts(&self.content).any(|(_, text)| text.trim_start().starts_with('/'))
    }
}

/// Owes one answer. If it is dropped without one (the session panicked), it answers with an internal error.
pub struct Responder {
    pub(super) ticket: Ticket,
    session: SessionId,
    attachment: Attachment,
    /// The key of the prompt, if its client gave one.
    key: Option<String>,
    /// Whether the prompt is a message of the conversation.
    inserted: bool,
    owes: bool,
}

impl Responder {
    pub fn new(ticket: Ticket, session: SessionId, attachment: Attachment) -> Responder {
        Responder { ticket, session, attachment, key: None, inserted: false, owes: true }
    }

    pub(super) fn set_key(&mut self, key: Option<String>) {
        self.key = key;
    }

    pub(super) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(super) fn is_inserted(&self) -> bool {
        self.inserted
    }

    /// Announces to the client, once, that the prompt is now this message.
    pub(super) fn inserted(&mut self, message: MessageId) {
        if !std::mem::replace(&mut self.inserted, true) && self.attachment.outlet.follows_state() {
            let out = SessionEvent::Inserted { ticket: self.ticket, message };
            self.attachment.outlet.put(&self.session, out);
        }
    }

    pub(super) fn client(&self) -> ClientId {
        self.attachment.client
    }

    pub fn answer(mut self, answer: Result<SessionAnswer, SessionError>) {
        self.owes = false;
        self.attachment.outlet.put(&self.session, SessionEvent::Answer { ticket: self.ticket, answer });
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.owes {
            let message = "the session ended before it could answer; load it again and repeat".to_owned();
            let answer = Err(SessionError::Internal(message));
            self.attachment.outlet.put(&self.session, SessionEvent::Answer { ticket: self.ticket, answer });
        }
    }
}

/// The answer to a prompt that was cancelled.
pub(super) fn cancelled() -> SessionAnswer {
    SessionAnswer::TurnEnded { reason: StopReason::Cancelled, usage: Usage::default(), meta: None }
}

/// The first and the last text of a prompt, each with the index of its content part: where a command may be.
pub(super) fn outer_texts(content: &[Content]) -> impl Iterator<Item = (usize, &str)> {
    let mut texts = content.iter().enumerate().filter_map(|(at, part)| Some((at, part.as_text()?)));
    [texts.next(), texts.next_back()].into_iter().flatten()
}
