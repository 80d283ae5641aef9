//! Routes each method of the protocol to the sessions. Runs on the reader thread, where it never waits for disk or
//! network.

mod login;
mod mcp;
mod opening;
mod providers;
mod scope;
mod stored;
mod v2;

pub use login::UserLogin;
pub use providers::ProviderRoute;
pub use stored::PAGE_SESSIONS;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_client_protocol::v1::schema as wire;
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::answers::{self, LoginOffer, LoginState};
use super::envelope::{self, Incoming};
use super::from_wire::{self, BadParams, ClientTraits, RequestParams};
use super::model::AcpVersion;
use super::outbox::Outbox;
use super::requests::{
    Cancellation, FinishedAgent, IncomingRequest, OpeningState, OutgoingKind, RequestKind,
};
use super::tool_wire::{ALLOW_ALWAYS, ALLOW_ONCE, REJECT_ALWAYS, REJECT_ONCE};
use super::unpublished::SentPrompt;
use super::v2_answers;
use super::writer::{self, Positions, TooLongLine};
use epitome_platform::blocking;
use epitome_session_api::port::StoredSessionPort;
use epitome_session_api::{
    AccessGrant, AccessScope, ClientId, ClientMcp, EditorResponse, EditorSupport, EventSink, QuestionSupport,
    Replay, SessionCommand, SessionEvent, Ticket, UserDecision,
};
use epitome_thread::SessionId;

/// Configuration of a connection, apart from its reader and writer.
pub struct ConnectionConfig<P> {
    pub sessions: P,
    /// Runtime for listing, forking and deleting, which access the disk.
    pub runtime: tokio::runtime::Handle,
    pub client: ClientId,
    /// The rights of a client on another machine. `None` for the user, who has all.
    pub grant: Option<Arc<AccessGrant>>,
    /// The editor's environment.
    pub environment: Arc<Vec<(OsString, OsString)>>,
    pub login: Arc<dyn UserLogin>,
    /// The highest id of a request to this client that it received from an earlier process.
    pub ids_above: u64,
    pub positions: Positions,
    /// Whether a client that requests version 2 of the protocol gets it. Called on `initialize`; must be quick.
    pub offers_v2: Box<dyn Fn() -> bool + Send + Sync>,
}

/// Counts the work that must finish before a connection can end.
#[derive(Clone)]
pub(super) struct PendingCount(Arc<watch::Sender<usize>>);

impl PendingCount {
    pub fn new() -> PendingCount {
        PendingCount(Arc::new(watch::Sender::new(0)))
    }

    /// Counts one more until the guard is dropped.
    fn one_more(&self) -> PendingGuard {
        self.0.send_modify(|open| *open += 1);
        PendingGuard(self.clone())
    }

    /// Waits until the count is zero.
    pub async fn settled(&self) {
        // The sender is owned by `self`, so waiting can't fail.
        drop(self.0.subscribe().wait_for(|open| *open == 0).await);
    }
}

struct PendingGuard(PendingCount);

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}

/// A session's reference to the outbox, dropped when the session releases the client.
struct OutboxHandle {
    outbox: Arc<Outbox>,
    grant: Option<Arc<AccessGrant>>,
    _pending: PendingGuard,
}

impl EventSink for OutboxHandle {
    fn put(&self, session: &SessionId, out: SessionEvent) {
        if let Some(out) = scope::instead_of_question(out, self.grant()) {
            self.outbox.put(session, out);
        }
    }

    fn shows(&self) -> QuestionSupport {
        match scope::allows(self.grant(), AccessScope::Approve) {
            true => self.outbox.traits().questions(),
            false => QuestionSupport::default(),
        }
    }

    fn shows_summaries(&self) -> bool {
        let ClientTraits { compaction, reads_log, .. } = self.outbox.traits();
        compaction && !reads_log
    }

    fn offers(&self) -> EditorSupport {
        if !scope::allows(self.grant(), AccessScope::Prompt) {
            return EditorSupport::default();
        }
        let ClientTraits { read_text_file: reads, write_text_file: writes, reviews_writes, .. } =
            self.outbox.traits();
        EditorSupport { reads, writes, reviews_writes }
    }

    fn shows_agents(&self) -> bool {
        self.outbox.traits().subagents
    }

    fn follows_state(&self) -> bool {
        self.outbox.traits().version == AcpVersion::V2
    }

    fn mcp(&self) -> Option<Arc<dyn ClientMcp>> {
        Some(self.outbox.clone())
    }

    fn is_gone(&self) -> bool {
        self.outbox.is_leaving()
    }

    fn grant(&self) -> Option<&AccessGrant> {
        self.grant.as_deref()
    }
}

/// Routes the messages of one client.
pub struct AcpServer<P> {
    config: ConnectionConfig<P>,
    background: PendingCount,
    unreleased: PendingCount,
    outbox: Arc<Outbox>,
    initialized: AtomicBool,
    /// Whether there were requests after `initialize`.
    requested: AtomicBool,
    /// Opening a session requires a usable model.
    gated: AtomicBool,
    /// The last login state sent to the client, if it has requested the state.
    sent_login: Arc<Mutex<Option<LoginState>>>,
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

impl<P: StoredSessionPort> AcpServer<P> {
    pub(super) fn new(
        config: ConnectionConfig<P>,
        outbox: Arc<Outbox>,
        background: PendingCount,
        unreleased: PendingCount,
    ) -> AcpServer<P> {
        AcpServer {
            config,
            background,
            unreleased,
            outbox,
            initialized: AtomicBool::new(false),
            requested: AtomicBool::new(false),
            gated: AtomicBool::new(false),
            sent_login: Arc::default(),
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

    /// Handles a line that was too long to read, by its outline.
    pub fn line_too_long(&self, outline: &[u8]) {
        match writer::too_long(outline) {
            TooLongLine::Refused(answer) => self.outbox.put_line(|line| line.extend_from_slice(&answer)),
            TooLongLine::Replaced(response) => self.receive(envelope::read(&response)),
        }
    }

    fn request(&self, id: &str, method: &str, params: Option<&RawValue>) -> Result<Routed, wire::Error> {
        if method == "initialize" {
            return Ok(Routed::Now(self.initialize(params)));
        }
        if !self.initialized.load(Ordering::Relaxed) {
            return Err(answers::invalid_request("Send `initialize` first"));
        }
        self.requested.store(true, Ordering::Relaxed);
        self.check_scope(method, params)?;
        let is_v2 = self.outbox.traits().version == AcpVersion::V2;
        if is_v2 && id == "null" {
            return Err(answers::invalid_request("The id of a request must not be null"));
        }
        let params = &RequestParams::read(params)?;
        match method {
            "auth/status" => self.auth_status(id),
            "providers/list" => self.list_providers(id),
            "providers/set" => self.route_provider(params),
            "providers/disable" => Err(providers::is_required()),
            "session/new" => self.new_session(id, params),
            "session/fork" => self.fork(id, params),
            "session/list" => self.list(id, params),
            "session/delete" => self.delete(id, params),
            "session/status" => self.status(id, params),
            "session/set_title" => self.set_title(id, params),
            "session/archive" => self.archive(id, params, true),
            "session/unarchive" => self.archive(id, params, false),
            "session/options" => self.options(id, params),
            "session/prompt" => self.prompt(id, params),
            // An extension supported by several clients: input for a running turn.
            "_session/steering" => {
                let content = params.prompt()?;
                let steer = |ticket, client| SessionCommand::Steer { ticket, client, content };
                self.command(id, params, RequestKind::Steer, steer)
            }
            "session/set_config_option" => {
                if is_v2 {
                    params.required::<String>("type")?;
                }
                let (option, value) = (params.required("configId")?, params.option_value()?);
                let set = |ticket, client| SessionCommand::SetOption { ticket, client, option, value };
                self.command(id, params, RequestKind::SetOption, set)
            }
            _ if is_v2 => self.request_v2(id, method, params),
            "authenticate" => self.authenticate(id, params),
            "logout" => self.log_out(id),
            "session/load" => self.attach(id, params, RequestKind::Load, Replay::Everything),
            "session/resume" => self.attach(id, params, RequestKind::Resume, Replay::Nothing),
            "session/set_mode" => {
                let mode = params.required("modeId")?;
                let set = |ticket, client| SessionCommand::SetMode { ticket, client, mode };
                self.command(id, params, RequestKind::SetMode, set)
            }
            // The record of a finished subagent is only shown, so there is nothing to end.
            "session/close" if self.finished_agent(&session_of(params)?).is_some() => {
                Ok(Routed::Now(Ok(answers::empty())))
            }
            "session/close" => self.close(id, params),
            unknown => Err(answers::method_not_found(unknown)),
        }
    }

    fn prompt(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let SentPrompt { skill, content, key } = SentPrompt::read(params, self.outbox.traits().version)?;
        if let Some(skill) = skill
            && !self.outbox.requests().has_skill(&session_of(params)?, &skill)
        {
            return Err(BadParams(format!("there is no skill {skill:?}")).into());
        }
        let prompt = |ticket, client| SessionCommand::Prompt { ticket, client, content, key };
        self.command(id, params, RequestKind::Prompt, prompt)
    }

    /// Closing a session that is not open succeeds: archiving has closed it, or another client.
    fn close(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        params.session_id()?;
        if !session_of(params).is_ok_and(|session| self.outbox.requests().has_opened(&session)) {
            return Ok(Routed::Now(Ok(answers::empty())));
        }
        let close = |ticket, client| SessionCommand::Close { ticket, client };
        self.command(id, params, RequestKind::Close, close)
    }

    fn notification(&self, method: &str, params: Option<&RawValue>) {
        if let Err(error) = self.check_scope(method, params) {
            return tracing::info!(method, why = error.message, "a notification of a client is dropped");
        }
        let Ok(params) = RequestParams::read(params) else { return };
        match method {
            "session/cancel" => {
                let session = params.session_id().ok().and_then(|text| from_wire::session_id(&text));
                let Some(session) = session else { return };
                let (root, has_opened) = {
                    let requests = self.outbox.requests();
                    (requests.root_of(&session), requests.has_opened(&session))
                };
                match root {
                    Some(root) => self.send_command(&root, SessionCommand::CancelAgent { agent: session }),
                    None if has_opened => self.send_command(&session, SessionCommand::Cancel),
                    // A client may have no right to open it.
                    None => {}
                }
            }
            "$/cancel_request" => {
                let Ok(id) = params.required::<Box<RawValue>>("requestId") else { return };
                let cancelled = self.outbox.requests().cancel(id.get());
                match cancelled {
                    Cancellation::Prompt(ticket, session) => {
                        self.send_command(&session, SessionCommand::CancelPrompt { ticket });
                    }
                    Cancellation::Answer(request) => self.answer(&request.id, Err(answers::cancelled())),
                    Cancellation::Detach(session) => {
                        self.send_command(&session, SessionCommand::Detach { client: self.config.client });
                    }
                    Cancellation::Nothing => {}
                }
            }
            "mcp/message" => {
                if let Err(BadParams(why)) = mcp::notified(&self.outbox, &params) {
                    tracing::info!(why, "a notification of a client's MCP server is dropped");
                }
            }
            _ => {}
        }
    }

    fn initialize(&self, params: Option<&RawValue>) -> Result<Box<RawValue>, wire::Error> {
        let version = self.choose_version(params)?;
        let name = from_wire::client_name(params, version);
        self.outbox.set_client(ClientTraits::from_initialize(params, version), name);
        let traits = self.outbox.traits();
        self.gated.store(traits.drops_prompt_errors, Ordering::Relaxed);
        self.initialized.store(true, Ordering::Relaxed);
        let offer = match self.config.login.check() {
            Ok(()) => LoginOffer::None,
            Err(_) if traits.auth_terminal => LoginOffer::Terminal(self.login_command()),
            Err(_) => LoginOffer::Key,
        };
        let takes_audio = self.config.login.takes_audio();
        match version {
            AcpVersion::V1 => answers::initialize(offer, takes_audio),
            AcpVersion::V2 => v2_answers::initialize(offer, takes_audio, &traits),
        }
    }

    /// Whether there were requests after `initialize`.
    fn has_requests(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    fn finished_agent(&self, session: &SessionId) -> Option<FinishedAgent> {
        self.outbox.requests().finished_agent(session)
    }

    /// Refuses a request to a subagent, which the client is shown as a session. A running one can only be cancelled, and
    /// a finished one only be loaded and closed.
    fn check_no_agent(&self, session: &SessionId) -> Result<(), BadParams> {
        if self.finished_agent(session).is_some() {
            return Err(BadParams(
                "`sessionId` is that of a finished subagent, which only `session/load` and `session/close` take".to_owned(),
            ));
        }
        match self.outbox.requests().root_of(session) {
            None => Ok(()),
            Some(_) => Err(BadParams(
                "`sessionId` is that of a subagent, which only `session/cancel` takes".to_owned(),
            )),
        }
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
        self.check_no_agent(&session)?;
        // A session accepts commands only from its own clients.
        if !self.outbox.requests().has_opened(&session) {
            return Err(answers::not_found(&session.0));
        }
        let ticket = self.open(id, kind, Some(session.clone()), OpeningState::None)?;
        if let Err(error) = self.config.sessions.send(&session, command(ticket, self.config.client)) {
            // Through the outbox, so that it does not overtake the session's earlier events.
            self.outbox.put(&session, SessionEvent::Answer { ticket, answer: Err(error) });
        }
        Ok(Routed::Later)
    }

    /// Runs work that reads the disk on a blocking thread, and responds with its result.
    fn in_background(
        &self,
        id: &str,
        kind: RequestKind,
        work: impl FnOnce(&P) -> Result<Box<RawValue>, wire::Error> + Send + 'static,
    ) -> Result<Routed, wire::Error> {
        let sessions = self.config.sessions.clone();
        self.respond_later(id, kind, blocking::run(move || work(&sessions)))
    }

    /// Responds with the result of work.
    fn respond_later(
        &self,
        id: &str,
        kind: RequestKind,
        work: impl Future<Output = Result<Box<RawValue>, wire::Error>> + Send + 'static,
    ) -> Result<Routed, wire::Error> {
        let ticket = self.open(id, kind, None, OpeningState::None)?;
        let outbox = self.outbox.clone();
        self.spawn(async move {
            // A panic in the store must not leave the client without a response.
            let failed = |_| Err(answers::internal("The session store failed; see the log"));
            let result = tokio::spawn(work).await.unwrap_or_else(failed);
            respond(&outbox, ticket, result);
        });
        Ok(Routed::Later)
    }

    /// Starts work for which the connection waits before it ends.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let pending = self.background.one_more();
        self.config.runtime.spawn(async move {
            work.await;
            drop(pending);
        });
    }

    /// Passes on the answer to a request from the agent. Only an offered option can be an approval. An error (no
    /// `result`) is not a decision: an editor that can't show the request leaves it to the session's other clients.
    fn decided(&self, id: &str, result: Option<&RawValue>, error: Option<&RawValue>) {
        let Ok(id) = id.parse::<u64>() else { return };
        let call = self.outbox.requests().mcp().take(id);
        if let Some(call) = call {
            return call.answered(result, error);
        }
        let Some(asked) = self.outbox.requests().decided(id) else { return };
        let is_for_user = matches!(asked.what, OutgoingKind::Permission { .. } | OutgoingKind::Elicitation);
        if is_for_user && result.is_none() {
            let (ask, client) = (asked.ask, self.config.client);
            return self.send_command(&asked.session, SessionCommand::Absent { ask, client });
        }
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
        let outcome = &result["outcome"];
        let chosen = match outcome["outcome"].as_str() {
            Some("selected") => outcome["optionId"].as_str(),
            Some(_) | None => None,
        };
        let decision = match chosen {
            Some(ALLOW_ONCE) => UserDecision::AllowOnce,
            Some(ALLOW_ALWAYS) if always => UserDecision::AllowAlways,
            Some(REJECT_ONCE) => match result.pointer("/_meta/epitome/reason").and_then(Value::as_str) {
                Some(reason) => UserDecision::RejectBecause(reason.to_owned()),
                None => UserDecision::Reject,
            },
            Some(REJECT_ALWAYS) if never => UserDecision::RejectAlways,
            Some(_) | None => UserDecision::Dismissed,
        };
        self.send_command(&asked.session, SessionCommand::Decide { ask: asked.ask, decision });
    }

    /// Sends a command without a response. It is dropped if the session is gone.
    fn send_command(&self, session: &SessionId, command: SessionCommand) {
        if let Err(error) = self.config.sessions.send(session, command) {
            tracing::debug!(%session, %error, "a notification was for a session that is not open");
        }
    }

    fn open(
        &self,
        id: &str,
        kind: RequestKind,
        session: Option<SessionId>,
        opening: OpeningState,
    ) -> Result<Ticket, wire::Error> {
        let request = IncomingRequest { id: id.into(), kind, session, opening };
        self.outbox.requests().open(request).ok_or_else(answers::too_many_requests)
    }

    fn answer(&self, id: &str, result: Result<Box<RawValue>, wire::Error>) {
        self.outbox.put_line(|line| envelope::response(line, id, result));
    }
}

/// Answers a request, unless it has been answered already.
fn respond(outbox: &Outbox, ticket: Ticket, result: Result<Box<RawValue>, wire::Error>) {
    let open = outbox.requests().answer(ticket);
    if let Some(open) = open {
        outbox.put_line(|line| envelope::response(line, &open.id, result));
    }
}

/// The session that a request names.
fn session_of(params: &RequestParams<'_>) -> Result<SessionId, wire::Error> {
    let text = params.session_id()?;
    from_wire::session_id(&text).ok_or_else(|| answers::not_found(&text))
}
