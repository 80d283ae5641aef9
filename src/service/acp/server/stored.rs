//! Requests about stored sessions that don't open them: listing, deleting, archiving, titles, status and options.

use agent_client_protocol::v1::schema as wire;

use super::{AcpServer, Routed, session_of};
use crate::answers;
use crate::from_wire::{self, BadParams, RequestParams};
use crate::model::AcpVersion;
use crate::requests::RequestKind;
use crate::v2_answers;
use epitome_session_api::port::{Header, SessionQuery};
use epitome_session_api::port::{OptionsQuery, SessionStatus, StoredSessionPort};
use epitome_session_api::{AccessGrant, SessionError};
use epitome_thread::SessionId;

/// Sessions per page of a listing.
pub const PAGE_SESSIONS: usize = 50;

impl<P: StoredSessionPort> AcpServer<P> {
    pub(super) fn list(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let cwd: Option<String> = params.optional("cwd")?;
        let cwd = cwd.map(|cwd| from_wire::absolute("cwd", cwd)).transpose()?;
        let cursor: Option<String> = params.optional("cursor")?;
        let bad = || BadParams("`cursor` was not issued by this agent".to_owned());
        let after = cursor.map(|cursor| read_cursor(&cursor).ok_or_else(bad)).transpose()?;
        let archived = match params.optional("archived")? {
            None | Some(wire::SessionArchiveFilter::Exclude) => Some(false),
            Some(wire::SessionArchiveFilter::Include) => None,
            Some(wire::SessionArchiveFilter::Only) => Some(true),
            Some(_) => {
                return Err(BadParams("`archived` must be exclude, include or only".to_owned()).into());
            }
        };
        let grant = self.config.grant.clone();
        self.in_background(id, RequestKind::Read, move |sessions| {
            let query = SessionQuery {
                cwd,
                has_prompt: true,
                archived,
                after,
                // One more shows whether there is another page.
                limit: Some(PAGE_SESSIONS + 1),
                ..SessionQuery::default()
            };
            let headers = sessions.list(&query).map_err(|error| answers::session_error(&error))?;
            answers::raw(&page(&headers, grant.as_deref()))
        })
    }

    pub(super) fn delete(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        // Deleting a session that does not exist succeeds, even with an invalid id.
        let Some(session) = from_wire::session_id(&params.session_id()?) else {
            return Ok(Routed::Now(Ok(answers::empty())));
        };
        let sessions = self.config.sessions.clone();
        self.respond_later(id, RequestKind::Write, async move {
            match sessions.delete(&session).await {
                Ok(()) | Err(SessionError::NotFound(_)) => Ok(answers::empty()),
                Err(error) => Err(answers::session_error(&error)),
            }
        })
    }

    pub(super) fn status(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let (session, version) = (session_of(params)?, self.outbox.traits().version);
        self.in_background(id, RequestKind::Read, move |sessions| {
            let status = sessions.status(&session).map_err(|error| answers::session_error(&error))?;
            match (status, version) {
                (SessionStatus::Open(now), AcpVersion::V2) => v2_answers::open_status(&now),
                (SessionStatus::Open(_), AcpVersion::V1) => {
                    answers::raw(&wire::SessionStatusResponse::new(wire::SessionStatus::Open))
                }
                (SessionStatus::Saved, _) => {
                    answers::raw(&wire::SessionStatusResponse::new(wire::SessionStatus::Saved))
                }
            }
        })
    }

    pub(super) fn set_title(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let (session, title) = (session_of(params)?, params.required::<String>("title")?);
        let sessions = self.config.sessions.clone();
        self.respond_later(id, RequestKind::Write, async move {
            let stored = sessions.set_title(&session, &title).await;
            let stored = stored.map_err(|error| answers::session_error(&error))?;
            answers::raw(&wire::SetSessionTitleResponse::new(stored))
        })
    }

    pub(super) fn archive(
        &self,
        id: &str,
        params: &RequestParams<'_>,
        archived: bool,
    ) -> Result<Routed, wire::Error> {
        let session = session_of(params)?;
        let (sessions, outbox) = (self.config.sessions.clone(), self.outbox.clone());
        self.respond_later(id, RequestKind::Write, async move {
            let archiving = sessions.set_archived(&session, archived).await;
            archiving.map_err(|error| answers::session_error(&error))?;
            if archived {
                outbox.requests().session_closed(&session);
            }
            Ok(answers::empty())
        })
    }

    /// The options of a stored session, or of a new one in `cwd`.
    pub(super) fn options(&self, id: &str, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let cwd = params.cwd()?;
        // The result does not depend on them, but invalid ones are refused like in the request that would follow.
        params.directories()?;
        let session = match params.optional::<String>("sessionId")? {
            None => None,
            Some(text) => Some(from_wire::session_id(&text).ok_or_else(|| answers::not_found(&text))?),
        };
        let (environment, overrides) = (self.config.environment.clone(), self.config.login.overrides());
        let traits = self.outbox.traits();
        self.in_background(id, RequestKind::Read, move |sessions| {
            let query = OptionsQuery { session, cwd, environment, overrides };
            let options = sessions.options(&query).map_err(|error| answers::session_error(&error))?;
            match traits.version {
                AcpVersion::V1 => answers::options(&options, traits.boolean_options),
                AcpVersion::V2 => v2_answers::options(&options, &sessions.commands(&query), traits.skills),
            }
        })
    }
}

/// Reads the start of a page: after the session with this time and id, in the order of the listing. Sessions that are
/// created or used while a client pages move to the front, so nothing after it shifts.
fn read_cursor(cursor: &str) -> Option<(u64, SessionId)> {
    let (time, session) = cursor.split_once('.')?;
    Some((u64::from_str_radix(time, 16).ok()?, SessionId::parse(session)?))
}

/// A page of sessions.
/// A page of a list, without the sessions in other directories than those of the client's token.
fn page(headers: &[Header], grant: Option<&AccessGrant>) -> wire::ListSessionsResponse {
    let shown = &headers[..headers.len().min(PAGE_SESSIONS)];
    let next = match shown.last() {
        Some(last) if shown.len() < headers.len() => Some(format!("{:x}.{}", last.updated_at, last.session)),
        Some(_) | None => None,
    };
    let is_granted = |header: &&Header| grant.is_none_or(|grant| grant.check_directory(&header.cwd).is_ok());
    let shown = shown.iter().filter(is_granted).map(answers::session_info);
    wire::ListSessionsResponse::new(shown.collect()).next_cursor(next)
}
