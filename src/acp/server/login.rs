//! Logging in and out. The login itself happens elsewhere: in a terminal, or in the environment of the editor.

use std::ffi::OsString;
use std::sync::atomic::Ordering;

use agent_client_protocol::v1::schema as wire;

use super::{AcpServer, Routed};
use crate::answers::{self, LoginProgram};
use crate::from_wire::{BadParams, RequestParams};
use crate::requests::RequestKind;
use epitome_session::port::SessionPort;

impl<P: SessionPort> AcpServer<P> {
    /// How the client starts a login that stores its keys where this client's sessions look for them.
    pub(super) fn login_program(&self) -> LoginProgram {
        let program = std::env::current_exe().ok().filter(|path| path.exists());
        let program =
            program.map_or_else(|| "epitome".to_owned(), |path| path.to_string_lossy().into_owned());
        let places = self
            .config
            .environment
            .iter()
            .filter(|(name, _)| ["EPITOME_HOME", "XDG_DATA_HOME"].iter().any(|place| name == place));
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        LoginProgram { program, environment: places.map(|(name, path)| (text(name), text(path))).collect() }
    }

    /// Refuses to open a session that could not answer a prompt, where the client needs it.
    pub(super) fn check_gate(&self) -> Result<(), wire::Error> {
        if !self.gated.load(Ordering::Relaxed) {
            return Ok(());
        }
        (self.config.configured)().map_err(|missing| answers::session_error(&missing))
    }

    pub(super) fn log_out(&self, id: &str) -> Result<Routed, wire::Error> {
        self.gated.store(true, Ordering::Relaxed);
        let is_usable = (self.config.configured)().is_ok();
        let log_out = self.config.log_out.clone();
        self.in_background(id, RequestKind::Logout, None, move |_| match log_out() {
            Ok(false) if is_usable => Err(answers::internal(
                "There is no stored login: the key is in the environment of the editor, or the model needs none",
            )),
            Ok(_) => answers::raw(&wire::LogoutResponse::new()),
            Err(why) => Err(answers::internal(format!("The stored logins can't be removed: {why}"))),
        })
    }

    pub(super) fn authenticate(&self, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let method: String = params.required("methodId")?;
        if method != answers::AUTH_METHOD {
            return Err(answers::bad_params(&BadParams(
                "`methodId` names no method of this agent".to_owned(),
            )));
        }
        // The login itself happens elsewhere: this succeeds if a prompt would, and otherwise says what to do.
        (self.config.configured)().map_err(|missing| answers::session_error(&missing))?;
        Ok(Routed::Now(answers::raw(&wire::AuthenticateResponse::new())))
    }
}
