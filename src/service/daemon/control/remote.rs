//! The sessions of a daemon, used as if they ran in this process.

use std::collections::BTreeSet;
use std::sync::Arc;

use jsonrpsee::core::client::Subscription;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::client::ControlClient;
use super::fault::{Fault, FaultKind};
use super::port::{AttachParams, CreateParams, EventsParams, PortEvent, RemoteOpening, SendParams, ids_in};
use crate::build::Build;
use epitome_session::port::SessionPort;
use epitome_session::registry::{Header, SessionQuery};
use epitome_session::{
    ClientId, EventSink, Opening, Replay, SessionCommand, SessionError, SessionEvent, Ticket,
};
use epitome_thread::{Seq, SessionId};

/// Sessions over a connection to the control API. Calls block until the daemon answers and must not be made
/// on a runtime thread. Supports one session client at a time, because a connection is one client.
#[derive(Clone)]
pub struct RemoteSessions {
    client: ControlClient,
    runtime: Handle,
    here: Arc<LocalState>,
}

#[derive(Default)]
struct LocalState(Mutex<RemoteState>);

#[derive(Default)]
struct RemoteState {
    outlet: Option<(SessionId, Arc<dyn EventSink>)>,
    /// Tickets that have not been answered.
    open: BTreeSet<Ticket>,
}

impl LocalState {
    fn take(&self, PortEvent { session, out }: PortEvent) {
        let mut state = self.0.lock();
        if let SessionEvent::Answer { ticket, .. } = &out {
            state.open.remove(ticket);
        }
        // The outlet may block, so it must not be called under the lock.
        let outlet = state.outlet.clone();
        drop(state);
        if let Some((_, outlet)) = outlet {
            outlet.put(&session, out);
        }
    }

    /// Answers all open tickets with an error, because nothing else will.
    fn fail(&self, error: &SessionError) {
        let mut state = self.0.lock();
        let (open, outlet) = (std::mem::take(&mut state.open), state.outlet.clone());
        drop(state);
        if let Some((session, outlet)) = outlet {
            for ticket in open {
                outlet.put(&session, SessionEvent::Answer { ticket, answer: Err(error.clone()) });
            }
        }
    }
}

impl RemoteSessions {
    /// Subscribes to the daemon's session events. A daemon of another build refuses.
    pub async fn begin(client: ControlClient) -> Result<RemoteSessions, Fault> {
        let here = Arc::new(LocalState::default());
        let params = EventsParams { build: Build::current().clone() };
        let events = client.subscribe::<PortEvent>("port.events", params, "port.end").await?;
        let runtime = Handle::current();
        // On a dedicated thread, because an outlet may block on a terminal.
        let (local, runs_on) = (here.clone(), runtime.clone());
        std::thread::spawn(move || take_all(&local, events, &runs_on));
        Ok(RemoteSessions { client, runtime, here })
    }

    fn call<R: DeserializeOwned>(
        &self,
        method: &str,
        params: impl Serialize + Send,
    ) -> Result<R, SessionError> {
        self.runtime.block_on(self.client.call_as(method, params)).map_err(error_of)
    }

    fn expect(&self, ticket: Ticket) {
        self.here.0.lock().open.insert(ticket);
    }

    /// Answers a ticket locally whose request did not reach the daemon.
    fn refuse(&self, session: &SessionId, ticket: Ticket, error: SessionError) {
        let out = SessionEvent::Answer { ticket, answer: Err(error) };
        self.here.take(PortEvent { session: session.clone(), out });
    }
}

fn take_all(here: &LocalState, mut events: Subscription<PortEvent>, runtime: &Handle) {
    loop {
        match runtime.block_on(events.next()) {
            Some(Ok(event)) => here.take(event),
            Some(Err(error)) => tracing::error!(%error, "an event of the daemon can't be parsed"),
            None => {
                let text = "the daemon ended before the answer came; what was done is in the session's log";
                return here.fail(&SessionError::Internal(text.to_owned()));
            }
        }
    }
}

impl SessionPort for RemoteSessions {
    fn create(&self, ticket: Ticket, opening: Opening) -> SessionId {
        self.expect(ticket);
        let unnamed = SessionId(String::new());
        self.here.0.lock().outlet = Some((unnamed.clone(), opening.attachment.outlet.clone()));
        let params = CreateParams { ticket, opening: RemoteOpening::new(&opening) };
        match self.call::<SessionId>("port.create", params) {
            Ok(session) => {
                self.here.0.lock().outlet = Some((session.clone(), opening.attachment.outlet));
                session
            }
            Err(error) => {
                self.refuse(&unnamed, ticket, error);
                unnamed
            }
        }
    }

    fn attach(&self, ticket: Ticket, session: SessionId, opening: Opening, replay: Replay) {
        self.expect(ticket);
        self.here.0.lock().outlet = Some((session.clone(), opening.attachment.outlet.clone()));
        let opening = RemoteOpening::new(&opening);
        let attach = AttachParams { ticket, session: session.clone(), opening, replay };
        if let Err(error) = self.call::<Value>("port.attach", attach) {
            self.refuse(&session, ticket, error);
        }
    }

    fn send(&self, session: &SessionId, mut command: SessionCommand) -> Result<(), SessionError> {
        let ticket = match ids_in(&mut command) {
            (Some(ticket), Some(_)) => Some(*ticket),
            _ => None,
        };
        if let Some(ticket) = ticket {
            self.expect(ticket);
        }
        let params = SendParams { session: session.clone(), command };
        let sent = self.call::<Result<(), SessionError>>("port.send", params).flatten();
        if sent.is_err()
            && let Some(ticket) = ticket
        {
            self.here.0.lock().open.remove(&ticket);
        }
        sent
    }

    fn list(&self, query: &SessionQuery) -> Result<Vec<Header>, SessionError> {
        Ok(query.select(self.call::<Vec<Header>>("port.list", json!({}))?))
    }

    fn fork(&self, session: &SessionId, at: Option<Seq>) -> Result<SessionId, SessionError> {
        let mut params = json!({ "session": session });
        if let Some(at) = at {
            params["entry"] = json!(at);
        }
        #[derive(Deserialize)]
        struct Forked {
            session: SessionId,
        }
        self.call::<Forked>("sessions.fork", params).map(|forked| forked.session)
    }

    fn detach(&self, _: ClientId) {
        // If the daemon is gone, there is nothing to detach from.
        drop(self.call::<Value>("port.detach", json!({})));
    }
}

fn error_of(fault: Fault) -> SessionError {
    match fault.kind {
        FaultKind::AuthRequired => SessionError::AuthRequired(fault.message),
        FaultKind::Refused | FaultKind::InvalidParams | FaultKind::NotFound => {
            SessionError::Invalid(fault.message)
        }
        FaultKind::Store => SessionError::Store(fault.message),
        FaultKind::OverBudget => SessionError::OverBudget(fault.message),
        FaultKind::TooLong => SessionError::TooLong(fault.message),
        FaultKind::Provider => SessionError::Provider { message: fault.message, hint: fault.hint },
        FaultKind::Parse
        | FaultKind::InvalidRequest
        | FaultKind::UnknownMethod
        | FaultKind::Internal
        | FaultKind::Busy
        | FaultKind::InUse
        | FaultKind::TimedOut
        | FaultKind::Unauthorized => SessionError::Internal(fault.message),
    }
}
