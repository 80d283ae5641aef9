//! "Sign in with ChatGPT", the flow that OpenAI offers to open-source programs (developers.openai.com/siwc). The first
//! sign-in registers this installation. Refreshes are serialized, because each refresh token is valid only once.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::Value;

use super::address::{host_of, is_loopback};
use super::http::{Http, HttpError};
use epitome_config::logins::now;
use epitome_config::{ChatGptLogin, ChatGptTokens, LockedLogin, LoginSecret, Logins, StoredLogin, origin};
use epitome_platform::blocking;

/// The API that tokens are issued for.
pub(super) const RESOURCE: &str = "https://api.openai.com/v1";
/// The client id of a first sign-in, which registers the installation's own client.
pub(super) const DYNAMIC_CLIENT: &str = "dynamic_agent_client";
/// The scopes of a sign-in. The last one permits use of the ChatGPT plan.
pub(super) const SCOPES: &str =
    "openid profile email offline_access resource.invoke chatgpt.tokens.use.direct";
const PLAN_SCOPE: &str = "chatgpt.tokens.use.direct";

/// Error codes after which a refresh token is unusable.
const SIGNED_OUT: [&str; 6] = [
    "invalid_grant",
    "invalid_refresh_token",
    "token_expired",
    "refresh_token_expired",
    "refresh_token_invalidated",
    "refresh_token_reused",
];

/// Access tokens are renewed this long before they expire.
const RENEWED_BEFORE: Duration = Duration::from_secs(5 * 60);
/// Timeout of a token request.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);
/// Timeout of each request that revokes tokens; a logout waits for them.
const REVOKE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long to wait for another refresh of the same login.
const LOCK_TIME_MAX: Duration = Duration::from_secs(45);
/// Maximum bytes of an answer.
const EXCHANGE_BYTES_MAX: usize = 256 * 1024;

/// Renewed tokens that could not be stored, for example on a full disk, by the refresh token that they replace, which is
/// no longer valid.
static UNSTORED: Mutex<BTreeMap<String, ChatGptTokens>> = Mutex::new(BTreeMap::new());

/// Returns the issuer for a service at this base URL: OpenAI's, or the base URL's origin if it is loopback (for tests).
/// `None` for any other.
pub(super) fn issuer(base_url: &str) -> Option<String> {
    match host_of(base_url) {
        "api.openai.com" => Some("https://auth.openai.com".to_owned()),
        host if is_loopback(host) => Some(origin(base_url)),
        _ => None,
    }
}

/// Why no token is available.
pub(super) enum RefreshError {
    /// The user has to sign in again.
    SignedOut,
    /// A clause without secrets.
    Failed(String),
}

/// Why a request for tokens brought none. Its text completes a sentence and contains no secrets.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("the code was rejected or has expired ({code})")]
    Rejected { code: String },
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the service answers with HTTP {status}")]
    Status { status: u16 },
    #[error("it does not include the use of your plan; sign in again and agree to it")]
    NoPlan,
    #[error("the answer does not identify the user")]
    NoUser,
    #[error("the answer has no tokens")]
    NoTokens,
}

/// Why a login's tokens could not be revoked. Its text is a clause without secrets.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the service does not publish where tokens are revoked")]
    NoAddress,
    #[error("the service answers with HTTP {status}")]
    Status { status: u16 },
}

/// Keeps the tokens of a stored login valid.
pub(super) struct TokenRefresher {
    pub logins: Logins,
    pub provider: String,
    pub issuer: String,
    pub http: Http,
}

impl TokenRefresher {
    /// Returns an access token that is not about to expire and is not the rejected one. A refresh is completed even if
    /// the caller is canceled, because its response contains the only valid refresh token.
    pub async fn token(self, login: &ChatGptLogin, rejected: Option<&str>) -> Result<String, RefreshError> {
        if let Some(token) = usable(login, rejected)? {
            return Ok(token);
        }
        let rejected = rejected.map(str::to_owned);
        let refreshed = tokio::spawn(async move { self.refreshed(rejected.as_deref()).await });
        refreshed.await.unwrap_or_else(|_| Err(RefreshError::Failed("the refresh failed".to_owned())))
    }

    async fn refreshed(&self, rejected: Option<&str>) -> Result<String, RefreshError> {
        let lock = self.lock().await?;
        // Another task or process may have refreshed the login in the meantime.
        let stored = match self.logins.find(&self.provider) {
            Ok(Some(stored)) => stored,
            Ok(None) => return Err(RefreshError::SignedOut),
            Err(error) => return Err(RefreshError::Failed(error.to_string())),
        };
        let LoginSecret::ChatGpt(mut login) = stored.secret.clone() else {
            return Err(RefreshError::SignedOut);
        };
        let replaced = login.tokens.as_ref().map(|tokens| tokens.refresh.clone()).unwrap_or_default();
        let renewed = UNSTORED.lock().get(&replaced).cloned();
        if renewed.is_some() {
            login.tokens = renewed;
            store(&lock, &stored, &login, &replaced);
        }
        if let Some(token) = usable(&login, rejected)? {
            return Ok(token);
        }
        self.refresh(&lock, stored, login, &replaced).await
    }

    async fn refresh(
        &self,
        lock: &LockedLogin,
        stored: StoredLogin,
        mut login: ChatGptLogin,
        replaced: &str,
    ) -> Result<String, RefreshError> {
        let (Some(client), Some(tokens)) = (login.client_id.clone(), login.tokens.take()) else {
            return Err(RefreshError::SignedOut);
        };
        let fields = [
            ("grant_type", "refresh_token"),
            ("client_id", &client),
            ("refresh_token", &tokens.refresh),
            ("resource", RESOURCE),
        ];
        match request_tokens(&self.http, &self.issuer, &fields).await {
            Ok(answer) => {
                // Without a new refresh token, the old one remains valid (RFC 6749, section 6).
                let renewed = read_tokens(&answer, tokens.subject, Some(tokens.refresh.clone()))
                    .ok_or_else(|| RefreshError::Failed(ExchangeError::NoTokens.to_string()))?;
                let access = renewed.access.clone();
                store(lock, &stored, &ChatGptLogin { tokens: Some(renewed), ..login }, replaced);
                Ok(access)
            }
            Err(ExchangeError::Rejected { code }) if SIGNED_OUT.contains(&code.as_str()) => {
                store(lock, &stored, &login, replaced);
                Err(RefreshError::SignedOut)
            }
            Err(ExchangeError::Rejected { code }) => Err(RefreshError::Failed(code)),
            Err(error) => Err(RefreshError::Failed(error.to_string())),
        }
    }

    async fn lock(&self) -> Result<LockedLogin, RefreshError> {
        let (logins, provider) = (self.logins.clone(), self.provider.clone());
        let locking = blocking::run(move || logins.lock(&provider));
        match tokio::time::timeout(LOCK_TIME_MAX, locking).await {
            Ok(lock) => lock.map_err(|error| RefreshError::Failed(error.to_string())),
            Err(_) => Err(RefreshError::Failed("another process holds its lock".to_owned())),
        }
    }
}

/// Stores a login. A login that can't be stored remains in memory until it is needed again. `replaced`: the refresh
/// token that is stored so far.
fn store(lock: &LockedLogin, stored: &StoredLogin, login: &ChatGptLogin, replaced: &str) {
    let stored = StoredLogin { secret: LoginSecret::ChatGpt(login.clone()), ..stored.clone() };
    match lock.store(&stored) {
        Ok(()) => drop(UNSTORED.lock().remove(replaced)),
        Err(error) => {
            tracing::error!(%error, "a renewed login can't be stored");
            if let Some(tokens) = &login.tokens {
                UNSTORED.lock().insert(replaced.to_owned(), tokens.clone());
            }
        }
    }
}

/// The login's access token; `None` if it must be refreshed.
fn usable(login: &ChatGptLogin, rejected: Option<&str>) -> Result<Option<String>, RefreshError> {
    let tokens = login.tokens.as_ref().ok_or(RefreshError::SignedOut)?;
    let is_fresh = tokens.expires_at > now() + RENEWED_BEFORE.as_millis() as u64;
    Ok((is_fresh && rejected != Some(&tokens.access)).then(|| tokens.access.clone()))
}

/// Exchanges a sign-in's code for tokens.
pub(super) async fn exchange_code(
    http: &Http,
    issuer: &str,
    client: &str,
    nonce: &str,
    fields: &[(&str, &str)],
) -> Result<ChatGptTokens, ExchangeError> {
    let answer = request_tokens(http, issuer, fields).await?;
    let scopes = answer["scope"].as_str().unwrap_or_default();
    if !scopes.split(' ').any(|scope| scope == PLAN_SCOPE) {
        return Err(ExchangeError::NoPlan);
    }
    let subject = answer["id_token"]
        .as_str()
        .and_then(|token| subject_of(token, issuer, client, nonce))
        .ok_or(ExchangeError::NoUser)?;
    read_tokens(&answer, subject, None).ok_or(ExchangeError::NoTokens)
}

/// Revokes a login's tokens (RFC 7009) at the endpoint in the issuer's discovery document.
pub(super) async fn revoke(http: &Http, issuer: &str, login: &ChatGptLogin) -> Result<(), RevokeError> {
    let (Some(client), Some(tokens)) = (&login.client_id, &login.tokens) else { return Ok(()) };
    let discovery = format!("{issuer}/.well-known/openid-configuration");
    let (status, document) = http.get(&discovery, EXCHANGE_BYTES_MAX, REVOKE_TIME_MAX).await?;
    let document: Value = serde_json::from_slice(&document).unwrap_or_default();
    let address = document["revocation_endpoint"]
        .as_str()
        .filter(|address| status == 200 && origin(address) == issuer)
        .ok_or(RevokeError::NoAddress)?;
    let fields = [("token", &*tokens.refresh), ("token_type_hint", "refresh_token"), ("client_id", client)];
    match http.post_form(address, &fields, EXCHANGE_BYTES_MAX, REVOKE_TIME_MAX).await? {
        (200, _) => Ok(()),
        (status, _) => Err(RevokeError::Status { status }),
    }
}

async fn request_tokens(http: &Http, issuer: &str, fields: &[(&str, &str)]) -> Result<Value, ExchangeError> {
    let url = format!("{issuer}/api/accounts/oauth/token");
    let asked = http.post_form(&url, fields, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX);
    let (status, body) = asked.await?;
    let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
    match status {
        200 => Ok(answer),
        400..=403 => {
            // `error` is a string, or an object with a code.
            let code = answer["error"].as_str().or(answer["error"]["code"].as_str()).unwrap_or("no reason");
            // A longer text is not a code, and might echo parts of the request.
            let code: String =
                code.chars().filter(|c| c.is_ascii_lowercase() || *c == '_').take(60).collect();
            Err(ExchangeError::Rejected { code })
        }
        status => Err(ExchangeError::Status { status }),
    }
}

/// `refresh`: the refresh token, if the answer has no new one.
fn read_tokens(answer: &Value, subject: String, refresh: Option<String>) -> Option<ChatGptTokens> {
    let seconds = answer["expires_in"].as_u64().unwrap_or(3_600);
    Some(ChatGptTokens {
        access: answer["access_token"].as_str()?.to_owned(),
        refresh: answer["refresh_token"].as_str().map(str::to_owned).or(refresh)?,
        expires_at: now().saturating_add(seconds.saturating_mul(1_000)),
        subject,
    })
}

/// Returns the user that an identity token names, if it was issued for this sign-in. The token came directly from the
/// issuer over TLS, so its signature need not be verified (OpenID Connect Core 3.1.3.7).
fn subject_of(token: &str, issuer: &str, client: &str, nonce: &str) -> Option<String> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    let audience = &claims["aud"];
    let is_for_us = audience == client
        || audience.as_array().is_some_and(|all| all.iter().any(|audience| audience == client));
    (claims["iss"] == issuer && is_for_us && claims["nonce"] == nonce)
        .then(|| claims["sub"].as_str().map(str::to_owned))?
}
