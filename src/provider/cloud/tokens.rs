//! Access tokens of clouds: requested with OAuth, and kept in memory until shortly before they expire.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::endpoint::Secret;
use crate::http::Http;
use crate::sign_in::form;
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

/// Locked while a token is requested, so that concurrent requests use the same one.
static EXCHANGING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Returns the token of this source; `request` is only awaited if there is none but the one that the service has rejected.
pub(super) async fn cached(
    source: String,
    rejected: Option<&str>,
    request: impl Future<Output = Result<AccessToken, String>>,
) -> Result<AccessToken, String> {
    if let Some(token) = find(&source, rejected) {
        return Ok(token);
    }
    let _alone = EXCHANGING.lock().await;
    if let Some(token) = find(&source, rejected) {
        return Ok(token);
    }
    let token = request.await?;
    let mut tokens = TOKENS.lock().unwrap_or_else(PoisonError::into_inner);
    tokens.retain(|_, token| token.expires > now());
    tokens.insert(source, token.clone());
    Ok(token)
}

fn find(source: &str, rejected: Option<&str>) -> Option<AccessToken> {
    let tokens = TOKENS.lock().unwrap_or_else(PoisonError::into_inner);
    let least = now() + u64::try_from(RENEWED_BEFORE.as_millis()).unwrap_or(0);
    let found = tokens.get(source).filter(|token| token.expires > least);
    found.filter(|token| rejected != Some(token.token.expose())).cloned()
}

/// Posts a form to a token server. The error is a clause without secrets.
pub(super) async fn exchange(
    http: &Http,
    url: &str,
    fields: &[(&str, String)],
) -> Result<AccessToken, String> {
    let pairs: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let headers = [("content-type".to_owned(), Secret::new("application/x-www-form-urlencoded"))];
    let body = form(&pairs).into_bytes();
    let answered = http.post(url, &headers, body, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX).await;
    let (status, answer) = answered.map_err(|why| format!("{url} could not be asked for a token: {why}"))?;
    token_in(status, &answer).map_err(|why| format!("{url} gave no token: {why}"))
}

/// Parses the response of a token server. The error is a clause.
pub(super) fn token_in(status: u16, body: &[u8]) -> Result<AccessToken, String> {
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| answer[name].as_str().filter(|text| !text.is_empty());
    match (status, text("access_token")) {
        (200, Some(token)) => {
            let seconds = answer["expires_in"].as_u64().unwrap_or(LIFETIME_SECONDS);
            let expires = now() + seconds.saturating_mul(1000);
            Ok(AccessToken { token: Secret::new(token), quota_project: None, expires })
        }
        _ => {
            let why = text("error_description").or(text("error")).unwrap_or("the answer has no token");
            Err(format!("{why} (HTTP {status})"))
        }
    }
}
