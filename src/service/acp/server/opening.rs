//! Requests that open a session: a new one, a stored one, or a fork.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_client_protocol::v1::schema as wire;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{AcpServer, OutboxHandle, Routed, respond, session_of};
use crate::answers;
use crate::from_wire::{BadParams, RequestParams};
use crate::requests::{OpeningState, RequestKind};
use crate::unpublished::{self, SentPrompt};
use crate::writer;
use epitome_platform::blocking;
use epitome_session_api::port::StoredSessionPort;
use epitome_session_api::{
    AccessScope, Attachment, Opening, PendingPrompt, Position, Replay, SessionCommand, SessionError, Ticket,
};
use epitome_thread::{Seq, SessionId};

impl<P: StoredSessionPort> AcpServer<P> {
    pub(super) fn new_session(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let opening = self.opening(params)?;
        let ticket = self.open(id, RequestKind::New, None, OpeningState::Begun)?;
        let (outbox, client) = (self.outbox.clone(), self.config.client);
        self.when_usable(ticket, None, move |sessions| {
            let session = sessions.create(ticket, opening);
            // Not in the condition, which would hold the lock while a command is sent to the session.
            let is_given_up = outbox.requests().created(ticket, &session);
            if is_given_up && let Err(error) = sessions.send(&session, SessionCommand::Detach { client }) {
                tracing::debug!(%session, %error, "a session that was cancelled is gone already");
            }
        });
        Ok(Routed::Later)
    }

    pub(super) fn attach(
        &self,
        id: &str,
        params: &RequestParams<'_>,
        kind: RequestKind,
        replay: Replay,
    ) -> Result<Routed, wire::Error> {
        let mut opening = self.opening(params)?;
        let session = session_of(params)?;
        if kind == RequestKind::Load
            && let Some(lines) =
                self.finished_agent(&session).and_then(|agent| writer::finished_agent(&session, &agent))
        {
            let ticket = self.open(id, kind, Some(session), OpeningState::None)?;
            self.outbox.put_line(|line| *line = lines);
            respond(&self.outbox, ticket, Ok(answers::empty()));
            return Ok(Routed::Later);
        }
        self.check_no_agent(&session)?;
        let is_open = self.outbox.requests().has_opened(&session);
        let state = if is_open { OpeningState::None } else { OpeningState::Begun };
        let rest = self.rest(params, &session);
        let kind = match &rest {
            // The client has had the end of that replay.
            Some(Replay::Rest { position, .. })
                if !position.replay && kind == RequestKind::ResumeReplayed =>
            {
                RequestKind::Resume
            }
            Some(_) | None => kind,
        };
        let ticket = self.open(id, kind, Some(session.clone()), state)?;
        self.outbox.requests().session_opens(session.clone());
        let outbox = self.outbox.clone();
        let name = session.clone();
        let attach = move |sessions: &P, opening: Opening, replay: Replay| {
            if outbox.requests().attaching(ticket, &name) {
                sessions.attach(ticket, name, opening, replay);
            } else {
                outbox.requests().session_closed(&name);
                respond(&outbox, ticket, Err(answers::cancelled()));
            }
        };
        match rest {
            // The session was open before its daemon died, and its options may have changed since it was opened.
            Some(rest) => {
                opening.choices.clear();
                attach(&self.config.sessions, opening, rest);
            }
            None => {
                let session = (!is_open).then_some(session);
                self.when_usable(ticket, session, move |sessions| attach(sessions, opening, replay))
            }
        }
        Ok(Routed::Later)
    }

    /// Opens a session, which is `session` unless it is new or open already. If the client needs to know that prompts can
    /// be answered, this is checked first, in the background because it reads files; the request fails if no model is
    /// usable.
    fn when_usable(
        &self,
        ticket: Ticket,
        session: Option<SessionId>,
        open: impl FnOnce(&P) + Send + 'static,
    ) {
        if !self.gated.load(Ordering::Relaxed) {
            return open(&self.config.sessions);
        }
        let (sessions, outbox) = (self.config.sessions.clone(), self.outbox.clone());
        let login = self.config.login.clone();
        self.spawn(blocking::run(move || {
            let error = match login.check() {
                Ok(()) if outbox.requests().is_wanted(ticket) => return open(&sessions),
                Ok(()) => answers::cancelled(),
                Err(missing) => answers::session_error(&missing),
            };
            if let Some(session) = session {
                outbox.requests().session_closed(&session);
            }
            respond(&outbox, ticket, Err(error));
        }));
    }

    /// Reads the request of a front end whose daemon died: the position from which to replay, and its unanswered
    /// prompts, which are opened as requests. `None` for other clients. See `daemon::front::reconnect`.
    fn rest(&self, params: &RequestParams<'_>, session: &SessionId) -> Option<Replay> {
        #[derive(Deserialize)]
        struct Meta<'a> {
            #[serde(borrow)]
            epitome: Option<Epitome<'a>>,
        }
        #[derive(Deserialize)]
        struct Epitome<'a> {
            rest: Option<Position>,
            #[serde(borrow, default)]
            prompts: Vec<PromptAgain<'a>>,
        }
        #[derive(Deserialize)]
        struct PromptAgain<'a> {
            #[serde(borrow)]
            id: &'a RawValue,
            key: String,
            #[serde(default)]
            cancelled: bool,
            #[serde(borrow)]
            params: Option<&'a RawValue>,
        }
        let meta = params.raw("_meta")?;
        // Other clients may send anything in `_meta`.
        let Ok(Meta { epitome: Some(Epitome { rest: Some(position), prompts }) }) =
            serde_json::from_str::<Meta<'_>>(meta.get())
        else {
            return None;
        };
        // A client without the right to prompt has none that waits, and must not cancel those of others.
        let prompts = if self.has_scope(AccessScope::Prompt) { prompts } else { Vec::new() };
        let version = self.outbox.traits().version;
        let prompts = prompts.into_iter().filter_map(|PromptAgain { id, key, cancelled, params }| match self
            .open(id.get(), RequestKind::Prompt, Some(session.clone()), OpeningState::None)
        {
            Ok(ticket) => {
                let params = params.and_then(|params| RequestParams::read(Some(params)).ok());
                let sent = params.and_then(|params| SentPrompt::read(&params, version).ok());
                let content = sent.map(|sent| sent.content);
                Some(PendingPrompt { ticket, key, content, was_cancelled: cancelled })
            }
            Err(error) => {
                self.answer(id.get(), Err(error));
                None
            }
        });
        Some(Replay::Rest { position: Box::new(position), prompts: prompts.collect() })
    }

    /// Creates a session with the context of another, which need not be open. `cursorId`, or `_meta.epitome.at` for
    /// clients without cursors, names the last entry to include.
    pub(super) fn fork(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let opening = self.opening(params)?;
        let source = session_of(params)?;
        self.check_no_agent(&source)?;
        let at = match unpublished::fork_cursor(params)? {
            Some(entry) => Some(entry),
            None => entry_in_meta(params)?,
        };
        let ticket = self.open(id, RequestKind::New, None, OpeningState::Begun)?;
        let (sessions, outbox) = (self.config.sessions.clone(), self.outbox.clone());
        self.spawn(async move {
            let (store, from, wanted) = (sessions.clone(), source.clone(), opening.clone());
            let forked = blocking::start(move || store.fork(&from, at, &wanted)).await;
            let failed = || SessionError::Internal("the session store failed; see the log".to_owned());
            let fork = match forked.unwrap_or_else(|_| Err(failed())) {
                Ok(fork) => fork,
                Err(error) => return respond(&outbox, ticket, Err(answers::session_error(&error))),
            };
            if outbox.requests().attaching(ticket, &fork) {
                return sessions.attach(ticket, fork, opening, Replay::Nothing);
            }
            if let Err(error) = sessions.delete(&fork).await {
                tracing::warn!(session = %fork, %error, "a fork that was cancelled could not be deleted");
            }
            respond(&outbox, ticket, Err(answers::cancelled()));
        });
        Ok(Routed::Later)
    }

    pub(super) fn attachment(&self) -> Attachment {
        Attachment {
            client: self.config.client,
            outlet: Arc::new(OutboxHandle {
                outbox: self.outbox.clone(),
                grant: self.config.grant.clone(),
                _pending: self.unreleased.one_more(),
            }),
        }
    }

    fn opening(&self, params: &RequestParams<'_>) -> Result<Opening, wire::Error> {
        Ok(Opening {
            attachment: self.attachment(),
            cwd: params.cwd()?,
            directories: params.directories()?,
            mcp_servers: params.mcp_servers(self.outbox.traits().version)?,
            environment: self.config.environment.clone(),
            overrides: self.config.login.overrides(),
            instructions: params.system_prompt()?,
            choices: params.initial_options()?,
        })
    }
}

fn entry_in_meta(params: &RequestParams<'_>) -> Result<Option<Seq>, BadParams> {
    let meta: Option<Value> = params.optional("_meta")?;
    match meta.as_ref().map(|meta| &meta["epitome"]["at"]) {
        None | Some(Value::Null) => Ok(None),
        Some(at) => {
            let entry = at.as_str().and_then(unpublished::entry_of);
            let wrong = || BadParams("`_meta.epitome.at` names an entry, as \"e12\"".to_owned());
            entry.ok_or_else(wrong).map(Some)
        }
    }
}
