//! Access tokens of clouds: requested with OAuth, and kept in memory until shortly before they expire.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use crate::http::Http;
use crate::secret::Secret;
use epitome_config::logins::now;

/// Tokens are renewed this long before they expire.
const RENEWED_BEFORE: Duration = Duration::from_secs(5 * 60);
pub(super) const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);
pub(super) const EXCHANGE_BYTES_MAX: usize = 64 * 1024;
/// Lifetime of a token whose server names none.
const LIFETIME_SECONDS: u64 = 3600;

/// An access token.
#[derive(Clone)]
pub(super) struct AccessToken {
    pub token: Secret,
    /// The project that is billed for a user's own login at Google.
    pub quota_project: Option<String>,
    /// Milliseconds since the epoch.
    pub expires: u64,
}

/// The tokens of this process, by source. Expired ones are removed, so the map has at most one token per source in use.
static TOKENS: Mutex<BTreeMap<String, AccessToken>> = Mutex::new(BTreeMap::new());

/// Locked while a token of a source is requested, so that concurrent requests use the same one, and other sources don't
/// wait for it.
static EXCHANGING: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// Why there is no token, in a clause without secrets. Its only reader is the user.
pub type TokenError = Box<dyn Error + Send + Sync>;

/// Returns the token of this source; `request` is only awaited if there is none but the one that the service `rejected`.
pub(super) async fn cached(
    source: String,
    rejected: Option<&str>,
    request: impl Future<Output = Result<AccessToken, TokenError>>,
) -> Result<AccessToken, TokenError> {
    if let Some(token) = find(&source, rejected) {
        return Ok(token);
    }
    let lock = {
        let mut exchanging = EXCHANGING.lock();
        exchanging.retain(|_, lock| Arc::strong_count(lock) > 1);
        exchanging.entry(source.clone()).or_default().clone()
    };
    let _alone = lock.lock().await;
    if let Some(token) = find(&source, rejected) {
        return Ok(token);
    }
    let token = request.await?;
    let mut tokens = TOKENS.lock();
    tokens.retain(|_, token| token.expires > now());
    tokens.insert(source, token.clone());
    Ok(token)
}

fn find(source: &str, rejected: Option<&str>) -> Option<AccessToken> {
    let tokens = TOKENS.lock();
    let least = now() + u64::try_from(RENEWED_BEFORE.as_millis()).unwrap_or(0);
    let is_usable = |token: &&AccessToken| token.expires > least && rejected != Some(token.token.expose());
    tokens.get(source).filter(is_usable).cloned()
}

/// Posts a form to a token server.
pub(super) async fn exchange(
    http: &Http,
    url: &str,
    fields: &[(&str, &str)],
) -> Result<AccessToken, TokenError> {
    let answered = http.post_form(url, fields, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX).await;
    let (status, answer) = answered.map_err(|why| format!("{url} could not be asked for a token: {why}"))?;
    token_in(status, &answer).map_err(|why| format!("{url} gave no token: {why}").into())
}

/// Parses the response of a token server.
pub(super) fn token_in(status: u16, body: &[u8]) -> Result<AccessToken, TokenError> {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| answer[name].as_str().filter(|text| !text.is_empty());
    match (status, text("access_token")) {
        (200, Some(token)) => {
            let seconds = answer["expires_in"].as_u64().unwrap_or(LIFETIME_SECONDS);
            let expires = now().saturating_add(seconds.saturating_mul(1000));
            Ok(AccessToken { token: Secret::new(token), quota_project: None, expires })
        }
        _ => {
            let reason = text("error_description").or(text("error")).unwrap_or("the answer has no token");
            Err(format!("{reason} (HTTP {status})").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    /// Regression: a cloud whose token server did not answer held up the calls of all others for half a minute.
    #[tokio::test]
    async fn a_source_does_not_wait_for_another() {
        let token = AccessToken { token: Secret::new("t"), quota_project: None, expires: u64::MAX };
        tokio::select! {
            biased;
            _ = cached("silent".to_owned(), None, pending()) => panic!("it does not answer"),
            found = cached("another".to_owned(), None, ready(Ok(token))) => {
                assert_eq!(found.expect("it is ready").token.expose(), "t");
            }
        }
    }
}
