//! Who may come in, and what they get: a request's head in, a way or a refusal out. It reads no body.
//!
//! The page is on loopback, where every program and every web page of the person's browser can knock. So the
//! host must be ours by name (a foreign name that was made to point here is refused), the origin must be our
//! own page, and who has no ticket must have the cookie.

use std::time::Instant;

use super::assets::{self, Asset};
use super::keys::Keys;
use epitome_thread::{Seq, SessionId};

/// What of a request's head is looked at. A header that is there twice, or is no text, is an empty one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub query: &'a str,
    pub host: Option<&'a str>,
    pub origin: Option<&'a str>,
    /// `Sec-Fetch-Site`: who asks, as the browser says.
    pub site: Option<&'a str>,
    pub cookie: Option<&'a str>,
    pub content_type: Option<&'a str>,
}

/// What is asked for, by who may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// With the cookie, where a ticket was shown for it.
    Page {
        with_cookie: bool,
    },
    Asset(&'static Asset),
    /// A call of the control API.
    Call,
    /// What happens in a session, from an entry on.
    Events {
        session: SessionId,
        from: Seq,
    },
}

/// Why not, for who knocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not our name.
    Host,
    /// Not our page.
    Origin,
    /// No cookie, and no ticket that is good.
    Stranger,
    NotFound,
    Method,
    /// No JSON.
    ContentType,
    /// No such session could be.
    Parameters,
}

impl Refusal {
    /// The status, and a sentence.
    pub fn told(self) -> (u16, &'static str) {
        match self {
            Refusal::Host => (403, "This server is asked for by the address 127.0.0.1 or localhost only."),
            Refusal::Origin => (403, "Another page may not read this one."),
            Refusal::Stranger => {
                (403, "This link was used already, or is too old. `epitome inspect` gives a new one.")
            }
            Refusal::NotFound => (404, "There is nothing here. `epitome inspect` gives a link to the page."),
            Refusal::Method => (405, "That can't be done here."),
            Refusal::ContentType => (415, "A call is one JSON object, as application/json."),
            Refusal::Parameters => (400, "Events are of a session, from an entry on: ?session=s_…&from=0."),
        }
    }
}

/// Decides about a request to the page on this port.
pub fn admit(head: &Head<'_>, keys: &Keys, port: u16, now: Instant) -> Result<Way, Refusal> {
    let hosts = [format!("127.0.0.1:{port}"), format!("localhost:{port}")];
    let host = head.host.filter(|host| hosts.iter().any(|ours| ours == host)).ok_or(Refusal::Host)?;
    let is_ours = |origin: &str| origin.strip_prefix("http://") == Some(host);
    if !head.origin.is_none_or(is_ours) {
        return Err(Refusal::Origin);
    }
    // `none` is the person themselves: a link, the address bar. A browser that says nothing is an old one.
    let same_site = head.site.is_none_or(|site| matches!(site, "same-origin" | "none"));
    let folder = keys.folder();
    let is_known = head.cookie.is_some_and(|cookies| keys.is_known(cookies, port));
    let Some(name) = head.path.strip_prefix(folder.as_str()) else {
        // Strangers are not told whether there is such a folder.
        return Err(Refusal::NotFound);
    };
    if name.is_empty() {
        if head.method != "GET" {
            return Err(Refusal::Method);
        }
        // A link may be followed from anywhere: a mail, a terminal in the browser. It is good once.
        let ticket = value_of(head.query, "ticket");
        if ticket.is_some_and(|ticket| keys.redeem(ticket, now)) {
            return Ok(Way::Page { with_cookie: true });
        }
        return match is_known && same_site {
            true => Ok(Way::Page { with_cookie: false }),
            false => Err(Refusal::Stranger),
        };
    }
    if !is_known {
        return Err(Refusal::Stranger);
    }
    if !same_site {
        return Err(Refusal::Origin);
    }
    match (head.method, name) {
        ("POST", "rpc") => {
            // Browsers say where a POST is from.
            if head.origin.is_none() {
                return Err(Refusal::Origin);
            }
            let is_json = |kind: &str| kind.split(';').next().is_some_and(|kind| kind == "application/json");
            if !head.content_type.is_some_and(is_json) {
                return Err(Refusal::ContentType);
            }
            Ok(Way::Call)
        }
        ("GET", "events") => {
            let session = value_of(head.query, "session").and_then(SessionId::parse);
            let from = value_of(head.query, "from").and_then(|from| from.parse().ok());
            match (session, from) {
                (Some(session), Some(from)) => Ok(Way::Events { session, from: Seq(from) }),
                _ => Err(Refusal::Parameters),
            }
        }
        ("GET", name) => assets::find(name).map(Way::Asset).ok_or(Refusal::NotFound),
        (_, name) if matches!(name, "rpc" | "events") || assets::find(name).is_some() => Err(Refusal::Method),
        _ => Err(Refusal::NotFound),
    }
}

/// A value of a query whose values need no decoding.
fn value_of<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
