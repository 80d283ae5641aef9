//! The methods of version 2. Methods that are the same in version 1 share its code.

use agent_client_protocol::v1::schema as wire;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{AcpServer, Routed, providers, session_of};
use crate::answers;
use crate::from_wire::{BadParams, RequestParams};
use crate::model::AcpVersion;
use crate::requests::RequestKind;
use crate::unpublished;
use crate::v2_answers;
use epitome_session::port::StoredSessionPort;
use epitome_session::{CancelTarget, Replay, SessionCommand};
use epitome_thread::CallId;

impl<P: StoredSessionPort> AcpServer<P> {
    /// Chooses the version of this connection. Only an integer of at least 2 requests version 2, so clients of version
    /// 1 are answered as if no other version existed. A front end whose daemon died names the version that its editor
    /// has been using, and gets it even if it is no longer offered to new clients.
    pub(super) fn choose_version(&self, params: Option<&RawValue>) -> Result<AcpVersion, wire::Error> {
        let requested: Value = RequestParams::read(params)
            .and_then(|params| params.optional("protocolVersion"))
            .unwrap_or_default()
            .unwrap_or_default();
        let asks_v2 = requested.as_u64().is_some_and(|version| version >= 2);
        if self.outbox.traits().version == AcpVersion::V2 {
            if self.has_requests() {
                return Err(v2_answers::initialized_already());
            }
            if !asks_v2 {
                return Err(v2_answers::unsupported_version(&requested));
            }
        }
        // The sessions of a connection that is in use have been shown in its version.
        let is_given = asks_v2 && !self.has_requests() && (is_continued(params) || (self.config.offers_v2)());
        Ok(if is_given { AcpVersion::V2 } else { AcpVersion::V1 })
    }

    pub(super) fn request_v2(
        &self,
        id: &str,
        method: &str,
        params: &RequestParams<'_>,
    ) -> Result<Routed, wire::Error> {
        if id == "null" {
            return Err(v2_answers::null_id());
        }
        match method {
            "auth/login" => self.authenticate(id, params),
            "auth/logout" => self.log_out(id),
            "session/new" => self.new_session(id, params),
            "session/resume" => {
                let replay = replay_from(params)?;
                self.attach(id, params, RequestKind::Resume, replay)
            }
            "session/fork" => self.fork(id, params),
            "session/list" => self.list(id, params),
            "session/delete" => self.delete(id, params),
            "session/status" => self.status(id, params),
            "session/set_title" => self.set_title(id, params),
            "session/archive" => self.archive(id, params, true),
            "session/unarchive" => self.archive(id, params, false),
            "session/options" => self.options(id, params),
            "auth/status" => self.auth_status(id),
            "providers/list" => self.list_providers(id),
            "providers/set" => self.route_provider(params),
            "providers/disable" => Err(providers::is_required()),
            "session/prompt" => {
                let content = match unpublished::skill_prompt(params)? {
                    Some((skill, content)) => {
                        let session = session_of(params)?;
                        if !self.outbox.requests().has_skill(&session, &skill) {
                            return Err(BadParams(format!("there is no skill {skill:?}")).into());
                        }
                        content
                    }
                    None => params.prompt()?,
                };
                let key = unpublished::idempotency_key(params)?;
                let prompt = |ticket, client| SessionCommand::Prompt { ticket, client, content, key };
                self.command(id, params, RequestKind::Prompt, prompt)
            }
            "_session/steering" => {
                let content = params.prompt()?;
                let steer = |ticket, client| SessionCommand::Steer { ticket, client, content };
                self.command(id, params, RequestKind::Steer, steer)
            }
            "session/set_config_option" => {
                params.required::<String>("type")?;
                let (option, value) = (params.required("configId")?, params.option_value()?);
                let set = |ticket, client| SessionCommand::SetOption { ticket, client, option, value };
                self.command(id, params, RequestKind::SetOption, set)
            }
            "session/close" => self.close(id, params),
            "tool_call/cancel" => {
                let target = CancelTarget::Call(CallId(params.required("toolCallId")?));
                self.cancel_one(id, params, target)
            }
            "terminal/cancel" => {
                let target = CancelTarget::Terminal(CallId(params.required("terminalId")?));
                self.cancel_one(id, params, target)
            }
            unknown => Err(answers::method_not_found(unknown)),
        }
    }

    /// Closing a session that is not open succeeds.
    fn close(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let Ok(session) = session_of(params) else {
            params.session_id()?;
            return Ok(Routed::Now(Ok(answers::empty())));
        };
        if !self.outbox.requests().has_opened(&session) {
            return Ok(Routed::Now(Ok(answers::empty())));
        }
        let close = |ticket, client| SessionCommand::Close { ticket, client };
        self.command(id, params, RequestKind::Close, close)
    }

    fn cancel_one(
        &self,
        id: &str,
        params: &RequestParams<'_>,
        target: CancelTarget,
    ) -> Result<Routed, wire::Error> {
        let cancel = |ticket, client| SessionCommand::CancelOne { ticket, client, target };
        self.command(id, params, RequestKind::CancelOne, cancel)
    }
}

/// The part of the conversation that a client wants replayed. A request that can't be followed exactly is refused.
fn replay_from(params: &RequestParams<'_>) -> Result<Replay, wire::Error> {
    let from: Option<Value> = params.optional("replayFrom")?;
    match from.as_ref().map(|from| from["type"].as_str()) {
        None => Ok(Replay::Nothing),
        Some(Some("start")) => Ok(Replay::Everything),
        Some(_) => Err(BadParams("`replayFrom` must be of the type start".to_owned()).into()),
    }
}

/// Whether an `initialize` continues a connection of a daemon that died. See `daemon::front::reconnect`.
fn is_continued(params: Option<&RawValue>) -> bool {
    let params = params.and_then(|params| serde_json::from_str::<Value>(params.get()).ok());
    params.is_some_and(|params| params["_meta"]["epitome"]["continued"] == true)
}
