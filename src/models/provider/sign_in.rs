//! Sign-ins in the browser, using OAuth with PKCE. The user consents on a page of the provider, which redirects the
//! browser to this machine with a code. The code is exchanged for a key or for tokens.
//!
//! OpenRouter issues a key that does not expire (<https://openrouter.ai/docs/use-cases/oauth-pkce>). Its flow has no
//! `state`: the path of the redirect is random instead. ChatGPT's flow is described in `chatgpt`.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::rand::{self, Random, SystemRandom};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::address::{beneath, host_of, is_loopback};
use super::chatgpt::{self, DYNAMIC_CLIENT, RESOURCE, SCOPES};
use super::endpoint::{Endpoint, Secret};
use super::http::Http;
use super::loopback::{RedirectListener, has, parameter};
use epitome_config::{ChatGptLogin, LoginSecret, Logins, StoredLogin, origin};

/// Timeout of the request that exchanges the code.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum bytes of its response.
const EXCHANGE_BYTES_MAX: usize = 64 * 1024;
/// Maximum bytes of an accepted code.
const CODE_BYTES_MAX: usize = 4 * 1024;

/// A sign-in that waits for the user's consent. Dropping it cancels the sign-in.
pub struct SignIn {
    listener: RedirectListener,
    link: String,
    verifier: String,
    http: Http,
    /// Scheme, host and port of the service for which the login is valid.
    origin: String,
    kind: SignInKind,
}

enum SignInKind {
    OpenRouter { exchange_url: String },
    ChatGpt(Box<ChatGptSignIn>),
}

struct ChatGptSignIn {
    issuer: String,
    state: String,
    nonce: String,
    /// The registration from an earlier sign-in, with or without tokens.
    earlier: ChatGptLogin,
    logins: Logins,
}

/// The parameters of the redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirected {
    code: String,
    /// The client id with which the sign-in registered this installation.
    client: Option<String>,
}

/// Whether a provider offers a sign-in for programs like this one.
pub fn has_sign_in(provider: &str) -> bool {
    matches!(provider, "openrouter" | "chatgpt")
}

/// Whether a provider can only be used with a sign-in, not with a key.
pub fn needs_sign_in(provider: &str) -> bool {
    provider == "chatgpt"
}

/// Revokes a removed login at the service that issued it. `None` for a key, which only its owner can delete at the
/// provider. The error is a clause without secrets. `service` is the provider's endpoint, for its network settings.
pub async fn revoke(http: &Http, service: &Endpoint, removed: &StoredLogin) -> Option<Result<(), String>> {
    let LoginSecret::ChatGpt(login) = &removed.secret else { return None };
    login.tokens.as_ref()?;
    let issuer = chatgpt::issuer(&removed.origin)?;
    Some(chatgpt::revoke(&http.within(service.network.clone()), &issuer, login).await)
}

impl SignIn {
    /// Opens the port for the redirect. `service` is the provider's own service, or a test server on loopback; `logins`
    /// may contain the registration of an earlier sign-in. The error is a clause.
    pub async fn begin(http: &Http, service: &Endpoint, logins: &Logins) -> Result<SignIn, String> {
        let verifier = random()?;
        let http = http.within(service.network.clone());
        match service.provider() {
            "chatgpt" => SignIn::with_chatgpt(http, service, logins, verifier).await,
            _ => SignIn::with_openrouter(http, service, verifier).await,
        }
    }

    async fn with_openrouter(http: Http, service: &Endpoint, verifier: String) -> Result<SignIn, String> {
        let host = host_of(&service.base_url);
        let is_theirs = host == "openrouter.ai" && service.base_url.starts_with("https://");
        if !is_theirs && !is_loopback(host) {
            return Err(format!("the sign-in is one of openrouter.ai, not of {host}"));
        }
        let listener = RedirectListener::open(format!("/{}", random()?)).await?;
        let origin = origin(&service.base_url);
        let query = form(&[
            ("callback_url", &listener.url()),
            ("code_challenge", &challenge(&verifier)),
            ("code_challenge_method", "S256"),
        ]);
        let kind = SignInKind::OpenRouter { exchange_url: beneath(&service.base_url, "/auth/keys") };
        Ok(SignIn { link: format!("{origin}/auth?{query}"), listener, verifier, http, origin, kind })
    }

    async fn with_chatgpt(
        http: Http,
        service: &Endpoint,
        logins: &Logins,
        verifier: String,
    ) -> Result<SignIn, String> {
        let issuer = chatgpt::issuer(&service.base_url)
            .ok_or_else(|| format!("the sign-in is one of OpenAI, not of {}", host_of(&service.base_url)))?;
        let listener = RedirectListener::open("/auth/callback").await?;
        let earlier = match logins.find(service.provider()) {
            Ok(Some(StoredLogin { secret: LoginSecret::ChatGpt(login), .. })) => login,
            // A damaged login is replaced.
            Ok(_) | Err(_) => ChatGptLogin { host_id: host_id()?, client_id: None, tokens: None },
        };
        let (state, nonce) = (random()?, random()?);
        let (redirect, challenge) = (listener.url(), challenge(&verifier));
        let client = earlier.client_id.as_deref().unwrap_or(DYNAMIC_CLIENT);
        let mut fields = vec![
            ("client_id", client),
            ("ext_agent_host_id", &earlier.host_id),
            ("response_type", "code"),
            ("redirect_uri", &redirect),
            ("scope", SCOPES),
            ("resource", RESOURCE),
            ("state", &state),
            ("nonce", &nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        if earlier.client_id.is_none() {
            fields.push(("agent_name_hint", "Epitome"));
        }
        let link = format!("{issuer}/api/accounts/authorize?{}", form(&fields));
        let origin = origin(&service.base_url);
        let kind = ChatGptSignIn { issuer, state, nonce, earlier, logins: logins.clone() };
        Ok(SignIn { listener, link, verifier, http, origin, kind: SignInKind::ChatGpt(Box::new(kind)) })
    }

    /// The URL of the page on which the user consents.
    pub fn link(&self) -> &str {
        &self.link
    }

    /// Waits for the redirect. Redirects of other sign-ins are ignored. The error completes a sentence.
    pub async fn redirected(&self) -> Result<Redirected, String> {
        let address = self.listener.redirected(|query| self.accepts(query)).await?;
        self.redirect_in(&address).ok_or_else(|| "the browser brought no code".to_owned())
    }

    /// Parses a redirect URL that a user copied from a browser on another machine; `None` if it isn't for this sign-in.
    pub fn redirect_in(&self, pasted: &str) -> Option<Redirected> {
        let query = pasted.trim().strip_prefix(&self.listener.url())?.strip_prefix('?')?;
        if !self.accepts(query) {
            return None;
        }
        let code = decoded(query, "code").filter(|code| code.len() <= CODE_BYTES_MAX)?;
        Some(Redirected { code, client: decoded(query, "client_id") })
    }

    fn accepts(&self, query: &str) -> bool {
        match &self.kind {
            SignInKind::OpenRouter { .. } => has(query, &["code"]),
            SignInKind::ChatGpt(sign_in) => {
                let client = decoded(query, "client_id");
                let is_ours = match &sign_in.earlier.client_id {
                    Some(earlier) => client.as_ref() == Some(earlier),
                    None => client.is_some_and(|client| client != DYNAMIC_CLIENT),
                };
                is_ours && has(query, &["code"]) && decoded(query, "state").as_ref() == Some(&sign_in.state)
            }
        }
    }

    /// Exchanges the code for a login to be stored. The error completes a sentence and contains no secrets.
    pub async fn login(&self, redirected: &Redirected) -> Result<StoredLogin, String> {
        match &self.kind {
            SignInKind::OpenRouter { exchange_url } => {
                let key = self.key(exchange_url, &redirected.code).await?;
                Ok(StoredLogin::api_key(&*self.origin, key))
            }
            SignInKind::ChatGpt(sign_in) => self.tokens(sign_in, redirected).await,
        }
    }

    async fn key(&self, exchange_url: &str, code: &str) -> Result<String, String> {
        let body = json!({ "code": code, "code_verifier": self.verifier, "code_challenge_method": "S256" });
        let headers = [("content-type".to_owned(), Secret::new("application/json"))];
        let body = body.to_string().into_bytes();
        let asked = self.http.post(exchange_url, &headers, body, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX);
        match asked.await.map_err(|why| format!("OpenRouter could not be reached: {why}"))? {
            (200, answer) => serde_json::from_slice::<Value>(&answer)
                .ok()
                .and_then(|answer| Some(answer["key"].as_str()?.to_owned()))
                .ok_or_else(|| "OpenRouter answered without a key".to_owned()),
            (400 | 403, _) => Err("the code was rejected or has expired".to_owned()),
            (status, _) => Err(format!("OpenRouter answers with HTTP {status}")),
        }
    }

    async fn tokens(&self, sign_in: &ChatGptSignIn, redirected: &Redirected) -> Result<StoredLogin, String> {
        let client = redirected.client.clone().ok_or("the browser brought no registration")?;
        let registered =
            ChatGptLogin { client_id: Some(client.clone()), tokens: None, ..sign_in.earlier.clone() };
        let login = |login| StoredLogin::new(&*self.origin, LoginSecret::ChatGpt(login));
        if sign_in.earlier.client_id.is_none() {
            // Before the exchange, so that an expired code doesn't lead to a second registration.
            let stored = sign_in.logins.store("chatgpt", &login(registered.clone()));
            stored.map_err(|error| format!("the registration can't be stored: {error}"))?;
        }
        let redirect = self.listener.url();
        let fields = [
            ("grant_type", "authorization_code"),
            ("client_id", &client),
            ("code", &redirected.code),
            ("code_verifier", &self.verifier),
            ("redirect_uri", &redirect),
            ("resource", RESOURCE),
        ];
        let ChatGptSignIn { issuer, nonce, .. } = sign_in;
        let tokens = chatgpt::exchange_code(&self.http, issuer, &client, nonce, &fields).await?;
        Ok(login(ChatGptLogin { tokens: Some(tokens), ..registered }))
    }
}

/// Encodes name and value pairs as a query or a form.
pub(super) fn form(fields: &[(&str, &str)]) -> String {
    let escaped = |value: &str| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> =
        fields.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    pairs.join("&")
}

fn decoded(query: &str, name: &str) -> Option<String> {
    Some(percent_decode_str(parameter(query, name)?).decode_utf8().ok()?.into_owned())
}

fn challenge(verifier: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()))
}

/// 256 random bits, encoded for a URL.
fn random() -> Result<String, String> {
    Ok(BASE64_URL_SAFE_NO_PAD.encode(random_bytes::<32>()?))
}

/// An id for this installation: a random UUID as a URN.
fn host_id() -> Result<String, String> {
    let mut bytes = random_bytes::<16>()?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(format!("urn:uuid:{a}-{b}-{c}-{d}-{e}"))
}

fn random_bytes<const N: usize>() -> Result<[u8; N], String> {
    let random = rand::generate(&SystemRandom::new());
    random.map(Random::expose).map_err(|_| "the system provides no random numbers".to_owned())
}

#[cfg(test)]
#[path = "sign_in_tests.rs"]
mod tests;
