//! Login and logout. The login itself happens elsewhere: in a terminal, or in the editor's environment.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_client_protocol::v1::schema as wire;

use super::{AcpServer, ProviderRoute, Routed};
use crate::answers::{self, LoginCommand, LoginState};
use crate::envelope;
use crate::from_wire::{BadParams, RequestParams};
use crate::requests::RequestKind;
use epitome_session_api::Overrides;
use epitome_session_api::port::StoredSessionPort;
use epitome_session_api::{ProviderSettings, SessionError};

/// The logins of a client's user. All methods read files.
pub trait UserLogin: Send + Sync {
    /// Whether a model is currently usable; the error says what is missing. Must be quick: `initialize` calls it on the
    /// reader thread, because its response must be the first line.
    fn check(&self) -> Result<(), SessionError>;

    /// Whether the model of a new session takes audio.
    fn takes_audio(&self) -> bool {
        false
    }

    /// The state of the login, without using the network.
    fn state(&self) -> LoginState;

    /// The providers whose requests the client may redirect.
    fn routes(&self) -> Vec<ProviderRoute>;

    /// Redirects the requests of sessions that are opened from now on.
    fn route(&self, provider: String, to: ProviderSettings);

    /// Settings with precedence over the configuration, for the sessions that this client opens.
    fn overrides(&self) -> Arc<Overrides>;

    /// Removes all stored logins. Returns whether there were any.
    fn log_out(&self) -> io::Result<bool>;
}

impl<P: StoredSessionPort> AcpServer<P> {
    /// The command that the client runs in a terminal for a login. It stores keys where the sessions of this client look for
    /// them.
    pub(super) fn login_command(&self) -> LoginCommand {
        let program = std::env::current_exe().ok().filter(|path| path.exists());
        let program =
            program.map_or_else(|| "epitome".to_owned(), |path| path.to_string_lossy().into_owned());
        // Variables that locate the user's files.
        let is_location = |name: &OsString| name == "EPITOME_HOME" || name == "XDG_DATA_HOME";
        let locations = self.config.environment.iter().filter(|(name, _)| is_location(name));
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        let environment = locations.map(|(name, path)| (text(name), text(path))).collect();
        LoginCommand { program, environment }
    }

    pub(super) fn log_out(&self, id: &str) -> Result<Routed, wire::Error> {
        self.gated.store(true, Ordering::Relaxed);
        let login = self.config.login.clone();
        let notify = self.login_notifier();
        self.in_background(id, RequestKind::Write, move |_| {
            let is_usable = login.check().is_ok();
            match login.log_out() {
                Ok(false) if is_usable => Err(answers::internal(
                    "There is no stored login: the key is in the environment of the editor, or the model needs none",
                )),
                Ok(_) => {
                    notify();
                    Ok(answers::empty())
                }
                Err(why) => Err(answers::internal(format!("The stored logins can't be removed: {why}"))),
            }
        })
    }

    /// Succeeds if a prompt would; otherwise, the error says what to do. The login itself happens elsewhere.
    pub(super) fn authenticate(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let method: String = params.required("methodId")?;
        if method != answers::AUTH_METHOD {
            return Err(answers::bad_params(&BadParams(
                "`methodId` names no method of this agent".to_owned(),
            )));
        }
        let (login, notify) = (self.config.login.clone(), self.login_notifier());
        self.in_background(id, RequestKind::Read, move |_| {
            login.check().map_err(|missing| answers::session_error(&missing))?;
            notify();
            Ok(answers::empty())
        })
    }

    pub(super) fn auth_status(&self, id: &str) -> Result<Routed, wire::Error> {
        let (login, sent) = (self.config.login.clone(), self.sent_login.clone());
        self.in_background(id, RequestKind::Read, move |_| {
            let state = login.state();
            let response = answers::raw(&answers::auth_status(&state));
            *sent.lock() = Some(state);
            response
        })
    }

    /// Returns a function that sends the login state to the client if it changed and the client has requested it
    /// before.
    fn login_notifier(&self) -> impl FnOnce() + Send + 'static + use<P> {
        let (login, sent) = (self.config.login.clone(), self.sent_login.clone());
        let outbox = self.outbox.clone();
        move || {
            let mut sent = sent.lock();
            let Some(before) = sent.as_mut() else { return };
            let state = login.state();
            if *before != state {
                let status = answers::auth_status(&state);
                outbox.put_line(|line| envelope::notification(line, "auth/status_update", &status));
                *before = state;
            }
        }
    }
}
