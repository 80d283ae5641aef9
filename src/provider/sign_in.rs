//! The sign-in of OpenRouter: the user agrees in the browser, and a code is exchanged for a key that does not expire
//! (OAuth with PKCE, as in <https://openrouter.ai/docs/use-cases/oauth-pkce>). There is no `state`: the path of the
//! redirect is random instead.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::address::{beneath, host_of, is_loopback};
use super::endpoint::{Endpoint, Secret};
use super::http::Http;
use super::loopback::{RedirectListener, parameter};
use epitome_config::origin;

/// Timeout of the request that exchanges the code.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum bytes of its response.
const EXCHANGE_BYTES_MAX: usize = 64 * 1024;
/// Longest text that counts as a pasted code or address, in bytes.
const PASTED_BYTES_MAX: usize = 4 * 1024;

/// A sign-in that waits for the user's consent. Dropping it ends it.
pub struct SignIn {
    listener: RedirectListener,
    link: String,
    exchange_url: String,
    verifier: String,
    http: Http,
}

/// Whether a provider has a sign-in for programs like this one.
pub fn has_sign_in(provider: &str) -> bool {
    provider == "openrouter"
}

impl SignIn {
    /// Opens the port for the redirect. `service` is OpenRouter's, or a test's on this machine. An error is a sentence
    /// without its full stop.
    pub async fn begin(http: &Http, service: &Endpoint) -> Result<SignIn, String> {
        let host = host_of(&service.base_url);
        let is_theirs = host == "openrouter.ai" && service.base_url.starts_with("https://");
        if !is_theirs && !is_loopback(host) {
            return Err(format!("the sign-in is one of openrouter.ai, not of {host}"));
        }
        let listener = RedirectListener::open(format!("/{}", random()?)).await?;
        let verifier = random()?;
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        let callback = utf8_percent_encode(&listener.url(), NON_ALPHANUMERIC).to_string();
        let link = format!(
            "{}/auth?callback_url={callback}&code_challenge={challenge}&code_challenge_method=S256",
            origin(&service.base_url)
        );
        let exchange_url = beneath(&service.base_url, "/auth/keys");
        Ok(SignIn { listener, link, exchange_url, verifier, http: http.within(service.network.clone()) })
    }

    /// The page on which the user agrees.
    pub fn link(&self) -> &str {
        &self.link
    }

    /// Waits for the browser, and returns the code that it brings. An error completes a sentence.
    pub async fn code(&self) -> Result<String, String> {
        let address = self.listener.redirected(&["code"]).await?;
        self.code_in(&address).ok_or_else(|| "the browser brought no code".to_owned())
    }

    /// The code in an address that a user copied from a browser on another machine; `None` if it has none.
    pub fn code_in(&self, pasted: &str) -> Option<String> {
        let pasted = pasted.trim();
        let query = pasted.strip_prefix(&self.listener.url()).and_then(|rest| rest.strip_prefix('?'))?;
        let code = parameter(query, "code").filter(|code| code.len() <= PASTED_BYTES_MAX)?;
        Some(percent_decode_str(code).decode_utf8().ok()?.into_owned())
    }

    /// Exchanges the code for a key. An error completes a sentence and contains no secrets.
    pub async fn key(&self, code: &str) -> Result<String, String> {
        let body = json!({ "code": code, "code_verifier": self.verifier, "code_challenge_method": "S256" });
        let headers = [("content-type".to_owned(), Secret::new("application/json"))];
        let asked = self.http.post(
            &self.exchange_url,
            &headers,
            body.to_string().into_bytes(),
            EXCHANGE_BYTES_MAX,
            EXCHANGE_TIME_MAX,
        );
        match asked.await.map_err(|why| format!("OpenRouter could not be reached: {why}"))? {
            (200, answer) => serde_json::from_slice::<Value>(&answer)
                .ok()
                .and_then(|answer| Some(answer["key"].as_str()?.to_owned()))
                .ok_or_else(|| "OpenRouter answered without a key".to_owned()),
            (400 | 403, _) => Err("the code was rejected or has expired".to_owned()),
            (status, _) => Err(format!("OpenRouter answers with HTTP {status}")),
        }
    }
}

/// 256 random bits for a URL.
fn random() -> Result<String, String> {
    let mut bytes = [0; 32];
    let source = rustls::crypto::ring::default_provider().secure_random;
    source.fill(&mut bytes).map_err(|_| "the system provides no random numbers".to_owned())?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
#[path = "sign_in_tests.rs"]
mod tests;
