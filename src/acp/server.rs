//! Routes each method of the protocol to the sessions. Runs on the reader thread and never waits there for
//! disk or network.

mod login;

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_client_protocol::v1::schema as wire;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::answers;
use super::envelope::Incoming;
use super::from_wire::{self, BadParams, ClientTraits, RequestParams};
use super::outbox::Outbox;
use super::requests::{IncomingRequest, OutgoingKind, RequestKind};
use super::tool_wire::{ALLOW_ALWAYS, ALLOW_ONCE, REJECT_ALWAYS, REJECT_ONCE};
use super::writer::{self, Positions};
use epitome_platform::blocking;
use epitome_session::port::SessionPort;
use epitome_session::registry::{Header, Overrides};
use epitome_session::{
    Attachment, ClientId, EditorResponse, EditorSupport, EventSink, Opening, PendingPrompt, Position,
    QuestionSupport, Replay, SessionCommand, SessionError, SessionEvent, Ticket, UserDecision,
};
use epitome_thread::{PartId, SessionId};

/// Sessions on one page of a listing.
pub const PAGE_SESSIONS: usize = 50;

/// Configuration of a connection, apart from its reader and writer.
pub struct ConnectionConfig<P> {
    pub sessions: P,
    /// Runtime for listing, forking and deleting, which access the disk.
    pub runtime: tokio::runtime::Handle,
    pub client: ClientId,
    /// The editor's environment.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    /// Overrides from the command line that the editor launched.
    pub overrides: Arc<Overrides>,
    /// Checks whether a model is currently usable; the error says what is missing. Called on `initialize`;
    /// must be quick.
    pub configured: Box<dyn Fn() -> Result<(), SessionError> + Send + Sync>,
    /// Removes all stored logins, and returns whether there were any. An error is a clause. It accesses the disk.
    pub log_out: Arc<dyn Fn() -> Result<bool, String> + Send + Sync>,
    /// The highest id of our requests that this client has seen from an earlier process.
    pub ids_above: u64,
    pub positions: Positions,
}

/// Counts what must finish before a connection can end.
#[derive(Clone)]
pub(super) struct PendingCount(Arc<watch::Sender<usize>>);

impl PendingCount {
    pub fn new() -> PendingCount {
        PendingCount(Arc::new(watch::Sender::new(0)))
    }

    fn one_more(&self) {
        self.0.send_modify(|open| *open += 1);
    }

    fn one_less(&self) {
        self.0.send_modify(|open| *open -= 1);
    }

    /// Waits until the count is zero.
    pub async fn settled(&self) {
        // The sender is owned by `self`, so waiting can't fail.
        drop(self.0.subscribe().wait_for(|open| *open == 0).await);
    }
}

/// A session's reference to the outbox, dropped when the session releases the client.
struct OutboxHandle {
    outbox: Arc<Outbox>,
    count: PendingCount,
}

impl OutboxHandle {
    fn new(outbox: Arc<Outbox>, count: PendingCount) -> OutboxHandle {
        count.one_more();
        OutboxHandle { outbox, count }
    }
}

impl EventSink for OutboxHandle {
    fn put(&self, session: &SessionId, out: SessionEvent) {
        self.outbox.put(session, out);
    }

    fn shows(&self) -> QuestionSupport {
        self.outbox.shows()
    }

    fn offers(&self) -> EditorSupport {
        self.outbox.offers()
    }

    fn shows_agents(&self) -> bool {
        self.outbox.shows_agents()
    }
}

impl Drop for OutboxHandle {
    fn drop(&mut self) {
        self.count.one_less();
    }
}

/// Routes the messages of one client.
pub struct AcpServer<P> {
    config: ConnectionConfig<P>,
    background: PendingCount,
    held: PendingCount,
    outbox: Arc<Outbox>,
    initialized: AtomicBool,
    /// Opening a session requires a usable model.
    gated: AtomicBool,
}

/// A response that is known immediately, or one that arrives through the outbox.
enum Routed {
    Now(Result<Box<RawValue>, wire::Error>),
    Later,
}

impl From<wire::Error> for Routed {
    fn from(error: wire::Error) -> Routed {
        Routed::Now(Err(error))
    }
}

impl From<BadParams> for wire::Error {
    fn from(bad: BadParams) -> wire::Error {
        answers::bad_params(&bad)
    }
}

impl<P: SessionPort> AcpServer<P> {
    pub(super) fn new(
        config: ConnectionConfig<P>,
        outbox: Arc<Outbox>,
        background: PendingCount,
        held: PendingCount,
    ) -> AcpServer<P> {
        AcpServer {
            config,
            background,
            held,
            outbox,
            initialized: AtomicBool::new(false),
            gated: AtomicBool::new(false),
        }
    }

    /// Handles one message. Each request gets exactly one response, now or later; other messages get none.
    pub fn receive(&self, incoming: Incoming<'_>) {
        match incoming {
            Incoming::Blank => {}
            Incoming::Invalid { id, code, message } => self.answer(id, Err(wire::Error::new(code, message))),
            Incoming::Notification { method, params } => self.notification(&method, params),
            Incoming::Response { id, result, error } => self.decided(id, result, error),
            Incoming::Request { id, method, params } => {
                match self.request(id, &method, params).unwrap_or_else(Routed::from) {
                    Routed::Now(result) => self.answer(id, result),
                    Routed::Later => {}
                }
            }
        }
        self.outbox.wait_for_room();
    }

    /// Answers a line that was too long to be read; its id is unknown.
    pub fn line_too_long(&self) {
        self.answer("null", Err(answers::line_too_long()));
    }

    fn request(&self, id: &str, method: &str, params: Option<&RawValue>) -> Result<Routed, wire::Error> {
        if method == "initialize" {
            return Ok(Routed::Now(self.initialize(params)));
        }
        if !self.initialized.load(Ordering::Relaxed) {
            return Err(answers::not_initialized());
        }
        let params = &RequestParams::read(params)?;
        match method {
            "authenticate" => self.authenticate(params),
            "logout" => self.log_out(id),
            "session/new" => self.new_session(id, params),
            "session/load" => self.attach(id, params, RequestKind::Load, Replay::Everything),
            "session/resume" => self.attach(id, params, RequestKind::Resume, Replay::Nothing),
            "session/fork" => self.fork(id, params),
            "session/list" => self.list(id, params),
            "session/delete" => self.delete(id, params),
            "session/prompt" => {
                let content = params.prompt()?;
                let prompt = |ticket, client| SessionCommand::Prompt { ticket, client, content };
                self.command(id, params, RequestKind::Prompt, prompt)
            }
            // An extension supported by several clients: input for a running turn.
            "_session/steering" => {
                let content = params.prompt()?;
                let steer = |ticket, client| SessionCommand::Steer { ticket, client, content };
                self.command(id, params, RequestKind::Steer, steer)
            }
            "session/set_mode" => {
                let mode = params.required("modeId")?;
                let set = |ticket, client| SessionCommand::SetMode { ticket, client, mode };
                self.command(id, params, RequestKind::SetMode, set)
            }
            "session/set_config_option" => {
                // All our options are selects, so a boolean value has the wrong type.
                let (option, value) = (params.required("configId")?, params.required("value")?);
                let set = |ticket, client| SessionCommand::SetOption { ticket, client, option, value };
                self.command(id, params, RequestKind::SetOption, set)
            }
            "session/close" => {
                let close = |ticket, client| SessionCommand::Close { ticket, client };
                self.command(id, params, RequestKind::Close, close)
            }
            unknown => Err(answers::method_not_found(unknown)),
        }
    }

    fn notification(&self, method: &str, params: Option<&RawValue>) {
        let Ok(params) = RequestParams::read(params) else { return };
        match method {
            "session/cancel" => {
                let session = params.session_id().ok().and_then(|text| from_wire::session_id(&text));
                let Some(session) = session else { return };
                let root = self.outbox.requests().root_of(&session);
                match root {
                    Some(root) => self.send_command(&root, SessionCommand::CancelAgent { agent: session }),
                    None => self.send_command(&session, SessionCommand::Cancel),
                }
            }
            "$/cancel_request" => {
                // Other requests are answered immediately, or must complete once started.
                let Ok(id) = params.required::<Box<RawValue>>("requestId") else { return };
                let prompt = self.outbox.requests().prompt_with_id(id.get());
                if let Some((ticket, session)) = prompt {
                    self.send_command(&session, SessionCommand::CancelPrompt { ticket });
                }
            }
            _ => {}
        }
    }

    fn initialize(&self, params: Option<&RawValue>) -> Result<Box<RawValue>, wire::Error> {
        self.outbox.set_traits(ClientTraits::from_initialize(params));
        let traits = self.outbox.traits();
        self.gated.store(traits.drops_prompt_errors, Ordering::Relaxed);
        self.initialized.store(true, Ordering::Relaxed);
        let methods = match (self.config.configured)() {
            Ok(()) => Vec::new(),
            Err(_) => answers::auth_methods(traits.auth_terminal.then(|| self.login_program())),
        };
        answers::initialize(methods)
    }

    fn new_session(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let opening = self.opening(params)?;
        self.check_gate()?;
        let ticket = self.open(id, RequestKind::New, None)?;
        self.config.sessions.create(ticket, opening);
        Ok(Routed::Later)
    }

    fn attach(
        &self,
        id: &str,
        params: &RequestParams<'_>,
        kind: RequestKind,
        replay: Replay,
    ) -> Result<Routed, wire::Error> {
        let opening = self.opening(params)?;
        let session = session_of(params)?;
        let replay = match self.rest(params, &session)? {
            // The session was open before its daemon died.
            Some(rest) => rest,
            None => {
                self.check_gate()?;
                replay
            }
        };
        let ticket = self.open(id, kind, Some(session.clone()))?;
        self.outbox.requests().session_opens(session.clone());
        self.config.sessions.attach(ticket, session, opening, replay);
        Ok(Routed::Later)
    }

    /// What a front end asks for whose daemon died; see `daemon::front::reconnect`.
    fn rest(&self, params: &RequestParams<'_>, session: &SessionId) -> Result<Option<Replay>, wire::Error> {
        #[derive(Deserialize)]
        struct Meta<'a> {
            #[serde(borrow)]
            epitome: Option<Epitome<'a>>,
        }
        #[derive(Deserialize)]
        struct Epitome<'a> {
            rest: Option<Position>,
            #[serde(borrow, default)]
            prompts: Vec<Unanswered<'a>>,
        }
        #[derive(Deserialize)]
        struct Unanswered<'a> {
            #[serde(borrow)]
            id: &'a RawValue,
            sent_at: Option<Position>,
            #[serde(borrow)]
            params: &'a RawValue,
        }
        let Some(meta) = params.raw("_meta") else { return Ok(None) };
        // Other clients may put anything there.
        let Ok(Meta { epitome: Some(Epitome { rest: Some(position), prompts }) }) =
            serde_json::from_str::<Meta<'_>>(meta.get())
        else {
            return Ok(None);
        };
        let mut pending = Vec::with_capacity(prompts.len());
        for prompt in &prompts {
            let content = RequestParams::read(Some(prompt.params))?.prompt()?;
            let ticket = self.open(prompt.id.get(), RequestKind::Prompt, Some(session.clone()))?;
            let sent_after = prompt.sent_at.as_ref().and_then(|at| at.after);
            pending.push(PendingPrompt { ticket, content, sent_after });
        }
        Ok(Some(Replay::Rest { position: Box::new(position), prompts: pending }))
    }

    /// Creates a session with the context of another, which need not be open. `_meta.epitome.at` names the
    /// last entry to include.
    fn fork(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let opening = self.opening(params)?;
        let session = session_of(params)?;
        let meta: Option<Value> = params.optional("_meta")?;
        let at = match meta.as_ref().map(|meta| &meta["epitome"]["at"]) {
            None | Some(Value::Null) => None,
            Some(at) => {
                let part =
                    at.as_str().and_then(|at| at.parse::<PartId>().ok()).filter(|part| part.part.is_none());
                let wrong = || BadParams("`_meta.epitome.at` names an entry, as \"e12\"".to_owned());
                Some(part.ok_or_else(wrong)?.entry)
            }
        };
        let ticket = self.open(id, RequestKind::Fork, Some(session.clone()))?;
        let (sessions, outbox, background) =
            (self.config.sessions.clone(), self.outbox.clone(), self.background.clone());
        background.one_more();
        blocking::start_on(&self.config.runtime, move || {
            let forked = catch_unwind(AssertUnwindSafe(|| sessions.fork(&session, at)));
            let failed = || SessionError::Internal("the session store failed; see the log".to_owned());
            match forked.unwrap_or_else(|_| Err(failed())) {
                Ok(fork) => sessions.attach(ticket, fork, opening, Replay::Nothing),
                Err(error) => outbox.put(&session, SessionEvent::Answer { ticket, answer: Err(error) }),
            }
            background.one_less();
        });
        Ok(Routed::Later)
    }

    fn opening(&self, params: &RequestParams<'_>) -> Result<Opening, wire::Error> {
        Ok(Opening {
            attachment: Attachment {
                client: self.config.client,
                outlet: Arc::new(OutboxHandle::new(self.outbox.clone(), self.held.clone())),
            },
            cwd: params.cwd()?,
            directories: params.directories()?,
            mcp_servers: params.mcp_servers()?,
            environment: self.config.environment.clone(),
            overrides: self.config.overrides.clone(),
            instructions: params.system_prompt()?,
        })
    }

    /// Sends a command to a session; the response arrives through the outbox.
    fn command(
        &self,
        id: &str,
        params: &RequestParams<'_>,
        kind: RequestKind,
        command: impl FnOnce(Ticket, ClientId) -> SessionCommand,
    ) -> Result<Routed, wire::Error> {
        let session = session_of(params)?;
        // A session answers its own clients only.
        if !self.outbox.requests().has_opened(&session) {
            return Err(answers::not_found(&session.0));
        }
        let ticket = self.open(id, kind, Some(session.clone()))?;
        if let Err(error) = self.config.sessions.send(&session, command(ticket, self.config.client)) {
            // Through the outbox, so that it does not overtake the session's earlier events.
            self.outbox.put(&session, SessionEvent::Answer { ticket, answer: Err(error) });
        }
        Ok(Routed::Later)
    }

    fn list(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let cwd: Option<String> = params.optional("cwd")?;
        let cwd = cwd.map(|cwd| from_wire::place("cwd", cwd)).transpose()?;
        let cursor: Option<String> = params.optional("cursor")?;
        let after = match cursor {
            None => None,
            Some(cursor) => {
                let bad =
                    || answers::bad_params(&BadParams("`cursor` was not issued by this agent".to_owned()));
                Some(PageKey::read(&cursor).ok_or_else(bad)?)
            }
        };
        self.in_background(id, RequestKind::List, None, move |sessions| {
            let headers = sessions.list(cwd.as_deref()).map_err(|error| answers::session_error(&error))?;
            answers::raw(&page(headers, cwd, after))
        })
    }

    fn delete(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        // Deleting a session that does not exist succeeds, even with an invalid id.
        let Some(session) = from_wire::session_id(&params.session_id()?) else {
            return Ok(Routed::Now(answers::raw(&wire::DeleteSessionResponse::new())));
        };
        self.in_background(id, RequestKind::Delete, Some(session.clone()), move |sessions| {
            match sessions.delete(&session) {
                Ok(()) | Err(SessionError::NotFound(_)) => answers::raw(&wire::DeleteSessionResponse::new()),
                Err(error) => Err(answers::session_error(&error)),
            }
        })
    }

    /// Runs work that reads the disk on a blocking thread, and responds from there.
    fn in_background(
        &self,
        id: &str,
        kind: RequestKind,
        session: Option<SessionId>,
        work: impl FnOnce(&P) -> Result<Box<RawValue>, wire::Error> + Send + 'static,
    ) -> Result<Routed, wire::Error> {
        let ticket = self.open(id, kind, session)?;
        let (sessions, outbox) = (self.config.sessions.clone(), self.outbox.clone());
        let background = self.background.clone();
        background.one_more();
        blocking::start_on(&self.config.runtime, move || {
            // A panic in the store must not leave the client without a response.
            let result = catch_unwind(AssertUnwindSafe(|| work(&sessions)))
                .unwrap_or_else(|_| Err(answers::internal("The session store failed; see the log")));
            let open = outbox.requests().answer(ticket);
            if let Some(open) = open {
                let mut line = Vec::new();
                writer::response(&mut line, &open.id, result);
                outbox.put_line(line);
            }
            background.one_less();
        });
        Ok(Routed::Later)
    }

    /// Passes on the answer to one of our requests. Anything other than an offered option is not an approval.
    /// An error (no `result`) is not a decision: an editor that can't show the request leaves it to the
    /// session's other clients.
    fn decided(&self, id: &str, result: Option<&RawValue>, error: Option<&RawValue>) {
        let Ok(id) = id.parse::<u64>() else { return };
        let Some(asked) = self.outbox.requests().decided(id) else { return };
        let is_error = result.is_none();
        let result: Value =
            result.and_then(|result| serde_json::from_str(result.get()).ok()).unwrap_or_default();
        let (always, never) = match asked.what {
            OutgoingKind::Permission { always, never } => (always, never),
            OutgoingKind::Elicitation => {
                let reply = from_wire::elicited(&result);
                return self.send_command(&asked.session, SessionCommand::Answer { ask: asked.ask, reply });
            }
            OutgoingKind::Text => {
                let answer = match error {
                    Some(error) => from_wire::unfulfilled(error),
                    None => from_wire::editor_text(result),
                };
                return self.send_command(&asked.session, SessionCommand::Fulfil { ask: asked.ask, answer });
            }
            OutgoingKind::Put => {
                let answer = error.map_or(EditorResponse::Taken, from_wire::unfulfilled);
                return self.send_command(&asked.session, SessionCommand::Fulfil { ask: asked.ask, answer });
            }
        };
        if is_error {
            let (ask, client) = (asked.ask, self.config.client);
            return self.send_command(&asked.session, SessionCommand::Absent { ask, client });
        }
        let outcome = &result["outcome"];
        let chosen = match outcome["outcome"].as_str() {
            Some("selected") => outcome["optionId"].as_str(),
            Some(_) | None => None,
        };
        let decision = match chosen {
            Some(ALLOW_ONCE) => UserDecision::AllowOnce,
            Some(ALLOW_ALWAYS) if always => UserDecision::AllowAlways,
            Some(REJECT_ONCE) => UserDecision::Reject,
            Some(REJECT_ALWAYS) if never => UserDecision::RejectAlways,
            Some(_) | None => UserDecision::Dismissed,
        };
        self.send_command(&asked.session, SessionCommand::Decide { ask: asked.ask, decision });
    }

    /// Sends a command that has no response. It is dropped if the session is gone.
    fn send_command(&self, session: &SessionId, command: SessionCommand) {
        if let Err(error) = self.config.sessions.send(session, command) {
            tracing::debug!(%session, %error, "a notification was for a session that is not open");
        }
    }

    fn open(&self, id: &str, kind: RequestKind, session: Option<SessionId>) -> Result<Ticket, wire::Error> {
        let request = IncomingRequest { id: id.into(), kind, session };
        self.outbox.requests().open(request).ok_or_else(answers::too_many_requests)
    }

    fn answer(&self, id: &str, result: Result<Box<RawValue>, wire::Error>) {
        let mut line = Vec::new();
        writer::response(&mut line, id, result);
        self.outbox.put_line(line);
    }
}

/// The session that a request names.
fn session_of(params: &RequestParams<'_>) -> Result<SessionId, wire::Error> {
    let text = params.session_id()?;
    from_wire::session_id(&text).ok_or_else(|| answers::not_found(&text))
}

/// Start of a page: after this session, in the order of the listing. Sessions created or used while a client
/// pages move to the front and shift nothing after the key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PageKey {
    updated_at: u64,
    session: SessionId,
}

impl PageKey {
    fn read(cursor: &str) -> Option<PageKey> {
        let (time, session) = cursor.split_once('.')?;
        Some(PageKey { updated_at: u64::from_str_radix(time, 16).ok()?, session: SessionId::parse(session)? })
    }

    fn write(&self) -> String {
        format!("{:x}.{}", self.updated_at, self.session)
    }
}

fn page(
    mut headers: Vec<Header>,
    cwd: Option<PathBuf>,
    after: Option<PageKey>,
) -> wire::ListSessionsResponse {
    let key = |header: &Header| (std::cmp::Reverse(header.updated_at), header.session.clone());
    headers.retain(|header| header.has_prompt && cwd.as_ref().is_none_or(|cwd| header.cwd == *cwd));
    headers.sort_by_key(key);
    let from = after.map_or(0, |after| {
        let after = (std::cmp::Reverse(after.updated_at), after.session);
        headers.partition_point(|header| key(header) <= after)
    });
    let rest = &headers[from..];
    let shown = &rest[..rest.len().min(PAGE_SESSIONS)];
    let next = match shown.last() {
        Some(last) if shown.len() < rest.len() => {
            Some(PageKey { updated_at: last.updated_at, session: last.session.clone() }.write())
        }
        Some(_) | None => None,
    };
    wire::ListSessionsResponse::new(shown.iter().map(answers::session_info).collect()).next_cursor(next)
}
