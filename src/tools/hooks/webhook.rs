//! Webhooks: the payload is posted, and the body of a 2xx response is the result.
//!
//! With a `secret` the body is signed in the same way as GitHub's webhooks: the header `X-Epitome-Signature`
//! contains `sha256=` and the HMAC-SHA-256 of the body in hexadecimal. Redirects are not followed, because
//! the payload would reach a host that was not configured. Messages never contain a URL's path, a header's
//! value or the secret: any of them may be a key.

use std::collections::BTreeMap;
use std::time::Duration;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::output::RawOutcome;
use super::process::STDOUT_BYTES_MAX;
use epitome_provider::endpoint::Secret;
use epitome_provider::http::Http;

/// The header with the signature.
pub const SIGNATURE_HEADER: &str = "X-Epitome-Signature";

/// Maximum size of a response in bytes: as much as a process may print.
const ANSWER_BYTES_MAX: usize = STDOUT_BYTES_MAX;

/// The target of a webhook.
#[derive(Clone, Copy, Debug)]
pub struct Webhook<'a> {
    pub url: &'a str,
    pub headers: &'a BTreeMap<String, String>,
    pub secret: Option<&'a str>,
}

/// Posts the payload. A 2xx response is `RawOutcome::Replied`, to be read like a process's stdout; everything else
/// is `RawOutcome::Failed`.
pub async fn post(http: &Http, to: Webhook<'_>, payload: Vec<u8>, limit: Duration) -> RawOutcome {
    if !["http://", "https://"].iter().any(|scheme| to.url.starts_with(scheme)) {
        return RawOutcome::Failed("its url begins with neither http:// nor https://".to_owned());
    }
    let host = host(to.url);
    let mut headers = vec![("content-type".to_owned(), Secret::new("application/json"))];
    let given = |name: &str| to.headers.keys().any(|given| given.eq_ignore_ascii_case(name));
    headers.retain(|(name, _)| !given(name));
    headers.extend(to.headers.iter().map(|(name, value)| (name.clone(), Secret::new(value.as_str()))));
    if let Some(secret) = to.secret {
        headers.push((SIGNATURE_HEADER.to_owned(), Secret::new(signature(secret, &payload))));
    }
    match http.post(to.url, &headers, payload, ANSWER_BYTES_MAX, limit).await {
        Ok((status @ 200..=299, body)) => RawOutcome::Replied { status, body },
        Ok((status @ 300..=399, _)) => {
            RawOutcome::Failed(format!("{host} answered with {status}: redirects are not followed"))
        }
        Ok((status, _)) => RawOutcome::Failed(format!("{host} answered with {status}")),
        Err(why) => RawOutcome::Failed(format!("{host} gave no answer: {why}")),
    }
}

/// The signature of a body.
fn signature(secret: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(body);
    format!("sha256={:x}", mac.finalize().into_bytes())
}

/// The host of a URL with its port, without user and password.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit('@').next().unwrap_or(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_match_rfc_4231() {
        let expected = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(signature("Jefe", b"what do ya want for nothing?"), expected);
    }

    #[test]
    fn the_host_is_shown_without_credentials() {
        for (url, expected) in [
            ("https://hooks.example.com/services/T0/KEY", "hooks.example.com"),
            ("https://user:key@example.com:8443?token=KEY", "example.com:8443"),
        ] {
            assert_eq!(host(url), expected);
        }
    }
}
