//! The methods that only version 2 has.

use agent_client_protocol::v1::schema as wire;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{AcpServer, Routed, session_of};
use crate::answers;
use crate::from_wire::{BadParams, RequestParams};
use crate::model::AcpVersion;
use crate::requests::RequestKind;
use crate::unpublished;
use crate::v2_answers;
use epitome_session_api::port::StoredSessionPort;
use epitome_session_api::{CancelTarget, Replay, SessionCommand};
use epitome_thread::{CallId, Seq};

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
                return Err(answers::invalid_request("The connection is initialized already"));
            }
            if !asks_v2 {
                return Err(v2_answers::unsupported_version(&requested));
            }
        }
        // Version 1 has no error for it, and clients of that version are not refused where it is the only one.
        if requested.as_u64() == Some(0) && (self.config.offers_v2)() {
            return Err(v2_answers::unsupported_version(&requested));
        }
        // The sessions of a connection that is in use have been shown in its version.
        let is_given = asks_v2 && !self.has_requests() && (needs_v2(params) || (self.config.offers_v2)());
        Ok(if is_given { AcpVersion::V2 } else { AcpVersion::V1 })
    }

    /// Handles a request that version 1 does not have in this form.
    pub(super) fn request_v2(
        &self,
        id: &str,
        method: &str,
        params: &RequestParams<'_>,
    ) -> Result<Routed, wire::Error> {
        match method {
            "auth/login" => self.authenticate(id, params),
            "auth/logout" => self.log_out(id),
            "session/resume" => match watched_from(params)? {
                Some(from) => self.watch(id, params, from),
                None => {
                    let replay = replay_from(params)?;
                    let kind = match replay {
                        Replay::Everything => RequestKind::ResumeReplayed,
                        Replay::Nothing | Replay::Rest { .. } => RequestKind::Resume,
                    };
                    self.attach(id, params, kind, replay)
                }
            },
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

    /// Follows a session without opening it: it is not kept alive, and asks this client nothing.
    fn watch(&self, id: &str, params: &RequestParams<'_>, from: Seq) -> Result<Routed, wire::Error> {
        let (session, attachment) = (session_of(params)?, self.attachment());
        self.in_background(id, RequestKind::Read, move |sessions| {
            let watched = sessions.watch(&session, from, attachment);
            watched.map(|()| answers::empty()).map_err(|error| answers::session_error(&error))
        })
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

/// Whether an `initialize` continues a connection of a daemon that died (see `daemon::front::reconnect`), or is that of a
/// client that reads logs, which version 1 has no place for.
fn needs_v2(params: Option<&RawValue>) -> bool {
    let params = params.and_then(|params| serde_json::from_str::<Value>(params.get()).ok());
    params.is_some_and(|params| {
        params["_meta"]["epitome"]["continued"] == true
            || params["capabilities"]["_meta"]["epitome"]["log"] == true
    })
}

/// `_meta.epitome.watch`: the entry from which a client follows a session that it does not open.
fn watched_from(params: &RequestParams<'_>) -> Result<Option<Seq>, wire::Error> {
    let meta: Option<Value> = params.optional("_meta")?;
    match meta.as_ref().map(|meta| &meta["epitome"]["watch"]) {
        None | Some(Value::Null) => Ok(None),
        Some(from) => {
            let entry = from.as_str().and_then(unpublished::entry_of);
            let wrong = || BadParams("`_meta.epitome.watch` names an entry, as \"e12\"".to_owned());
            Ok(Some(entry.ok_or_else(wrong)?))
        }
    }
}
