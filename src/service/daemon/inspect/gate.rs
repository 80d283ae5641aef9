//! Access control of the page: maps a request's head to a route or a refusal. It does not read bodies.
//!
//! The page is served on loopback, where every local program and every web page in the user's browser can
//! reach it. So the `Host` must be ours (which defeats DNS rebinding), the origin must be our own page, and a
//! request must carry the cookie or a valid ticket.

use std::time::Instant;

use hyper::header::{self, HeaderName};
use hyper::{HeaderMap, Request};

use super::assets::{self, Asset};
use super::keys::Keys;
use epitome_thread::{Seq, SessionId};

/// The origin of a request, according to the browser.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// An admitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmittedRequest {
    /// Sets the cookie if the request redeemed a ticket.
    Page {
        with_cookie: bool,
    },
    Asset(&'static Asset),
    /// A call of the control API.
    Call,
    /// The events of a session, starting at an entry.
    Events {
        session: SessionId,
        from: Seq,
    },
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Host,
    Origin,
    Unauthenticated,
    NotFound,
    Method,
    ContentType,
    Parameters,
}

impl Refusal {
    /// The HTTP status and a message.
    pub fn response(self) -> (u16, &'static str) {
        match self {
            Refusal::Host => (403, "Use the address 127.0.0.1 or localhost."),
            Refusal::Origin => (403, "Requests from other pages are rejected."),
            Refusal::Unauthenticated => (
                403,
                "This link was used already, or is too old. `epitome sessions inspect` gives a new one.",
            ),
            Refusal::NotFound => {
                (404, "There is nothing here. `epitome sessions inspect` gives a link to the page.")
            }
            Refusal::Method => (405, "This method is not allowed here."),
            Refusal::ContentType => (415, "A call is one JSON object, as application/json."),
            Refusal::Parameters => (400, "Name a session and an entry: ?session=s_…&from=0."),
        }
    }
}

/// Admits or rejects a request to the page on this port.
pub fn admit<B>(
    request: &Request<B>,
    keys: &Keys,
    port: u16,
    now: Instant,
) -> Result<AdmittedRequest, Refusal> {
    let (method, query) = (request.method().as_str(), request.uri().query().unwrap_or_default());
    let value = |name: HeaderName| only(request.headers(), &name);
    let hosts = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let host = value(header::HOST).filter(|host| hosts.iter().any(|ours| ours == host));
    let host = host.ok_or(Refusal::Host)?;
    let origin = value(header::ORIGIN);
    let is_ours = |origin: &str| origin.strip_prefix("http://") == Some(host);
    if !origin.is_none_or(is_ours) {
        return Err(Refusal::Origin);
    }
    // `none` means that the user opened it from a link or the address bar. Old browsers send no such header.
    let same_site = value(SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
    let folder = keys.folder();
    let is_known = value(header::COOKIE).is_some_and(|cookies| keys.is_known(cookies, port));
    let Some(name) = request.uri().path().strip_prefix(folder.as_str()) else {
        // Clients without access don't learn whether the folder exists.
        return Err(Refusal::NotFound);
    };
    if name.is_empty() {
        if method != "GET" {
            return Err(Refusal::Method);
        }
        // A link may be opened from anywhere, such as an email or a terminal in the browser. Its ticket is
        // valid once.
        let ticket = value_of(query, "ticket");
        if ticket.is_some_and(|ticket| keys.redeem(ticket, now)) {
            return Ok(AdmittedRequest::Page { with_cookie: true });
        }
        return match is_known && same_site {
            true => Ok(AdmittedRequest::Page { with_cookie: false }),
            false => Err(Refusal::Unauthenticated),
        };
    }
    if !is_known {
        return Err(Refusal::Unauthenticated);
    }
    if !same_site {
        return Err(Refusal::Origin);
    }
    match (method, name) {
        ("POST", "rpc") => {
            // Browsers always send the origin of a POST.
            if origin.is_none() {
                return Err(Refusal::Origin);
            }
            let is_json = |kind: &str| kind.split(';').next().is_some_and(|kind| kind == "application/json");
            if !value(header::CONTENT_TYPE).is_some_and(is_json) {
                return Err(Refusal::ContentType);
            }
            Ok(AdmittedRequest::Call)
        }
        ("GET", "events") => {
            let session = value_of(query, "session").and_then(SessionId::parse);
            let from = value_of(query, "from").and_then(|from| from.parse().ok());
            match (session, from) {
                (Some(session), Some(from)) => Ok(AdmittedRequest::Events { session, from: Seq(from) }),
                _ => Err(Refusal::Parameters),
            }
        }
        ("GET", name) => assets::find(name).map(AdmittedRequest::Asset).ok_or(Refusal::NotFound),
        (_, name) if matches!(name, "rpc" | "events") || assets::find(name).is_some() => Err(Refusal::Method),
        _ => Err(Refusal::NotFound),
    }
}

/// The value of a header; an empty string if it is repeated or is not text, which never matches.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    Some(if values.next().is_some() { "" } else { first.to_str().unwrap_or_default() })
}

/// Returns a query value that needs no decoding.
fn value_of<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
