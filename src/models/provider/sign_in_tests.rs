//! Tests sign-ins against a server that simulates OpenRouter and OpenAI, and checks PKCE.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::endpoint::{resolve, service};
use crate::listing;
use crate::{ErrorClass, ProviderError};
use epitome_config::Settings;
use epitome_thread::ModelName;

const CODE: &str = "a code";
const CLIENT: &str = "oaiapp_test";

/// An OAuth server and the service that accepts its tokens.
struct OauthServer {
    origin: String,
    state: Arc<Mutex<OauthState>>,
}

#[derive(Default)]
struct OauthState {
    /// The challenge with which the consent page was opened; removed when a code is exchanged.
    challenge: Option<String>,
    nonce: String,
    /// How many pairs of tokens were issued; only the newest is valid.
    issued: u32,
    refreshes: u32,
    scope: &'static str,
    /// The error with which refreshes are answered.
    revoked: Option<&'static str>,
    /// Whether the refresh token remains valid, so that a refresh returns no new one.
    keeps_refresh: bool,
    /// The directory that can't be written any more once tokens are refreshed.
    breaks: Option<PathBuf>,
    /// The tokens that were revoked, and the revocation endpoint in the discovery document.
    ended: Vec<String>,
    revocation: Option<String>,
}

impl OauthState {
    fn answer(&mut self, line: &str, head: &str, body: &str, issuer: &str) -> (u16, String) {
        let field = |name: &str| decoded(body, name).unwrap_or_default();
        match line {
            "POST /api/v1/auth/keys HTTP/1.1" => {
                let body: Value = serde_json::from_str(body).unwrap_or_default();
                let verifier = body["code_verifier"].as_str().unwrap_or_default();
                match body["code"] == CODE && self.challenge.take() == Some(challenge(verifier)) {
                    true => (200, r#"{"key":"sk-or-v1-made-up"}"#.to_owned()),
                    false => (403, r#"{"error":{"message":"Invalid code a code"}}"#.to_owned()),
                }
            }
            "POST /api/accounts/oauth/token HTTP/1.1" if field("client_id") != CLIENT => {
                (401, r#"{"error":"invalid_client"}"#.to_owned())
            }
            "POST /api/accounts/oauth/token HTTP/1.1" if field("grant_type") == "refresh_token" => {
                if let Some(error) = self.revoked {
                    return (400, format!(r#"{{"error":{{"code":"{error}"}}}}"#));
                }
                if field("refresh_token") != format!("refresh-{}", self.issued) {
                    return (400, r#"{"error":"refresh_token_reused"}"#.to_owned());
                }
                self.refreshes += 1;
                if let Some(directory) = self.breaks.take() {
                    std::fs::rename(&directory, directory.with_extension("away")).expect("it exists");
                    std::fs::write(&directory, "").expect("nothing is there");
                }
                if self.keeps_refresh {
                    return (200, format!(r#"{{"access_token":"access-{}","expires_in":3600}}"#, self.issued));
                }
                (200, self.tokens(issuer))
            }
            "POST /api/accounts/oauth/token HTTP/1.1" => {
                let proof = challenge(&field("code_verifier"));
                match field("code") == CODE && self.challenge.take() == Some(proof) {
                    true => (200, self.tokens(issuer)),
                    false => (400, r#"{"error":"invalid_grant"}"#.to_owned()),
                }
            }
            "GET /.well-known/openid-configuration HTTP/1.1" => match &self.revocation {
                Some(address) => (200, json!({ "issuer": issuer, "revocation_endpoint": address }).to_string()),
                None => (404, "{}".to_owned()),
            },
            "POST /api/accounts/oauth/revoke HTTP/1.1" => {
                assert_eq!((field("client_id"), field("token_type_hint")), (CLIENT.into(), "refresh_token".into()));
                self.ended.push(field("token"));
                (200, String::new())
            }
            "GET /v1/models HTTP/1.1" => match head.contains(&format!("Bearer access-{}\r\n", self.issued)) {
                true => (200, r#"{"models":[{"slug":"gpt-6-sol","visibility":"list"},{"slug":"x","visibility":"hide"}]}"#.to_owned()),
                false => (401, r#"{"error":{"code":"invalid_token","message":"no"}}"#.to_owned()),
            },
            _ => (404, "{}".to_owned()),
        }
    }

    fn tokens(&mut self, issuer: &str) -> String {
        self.issued += 1;
        let claims = json!({ "iss": issuer, "aud": CLIENT, "nonce": self.nonce, "sub": "user-1" });
        let id = format!("e30.{}.x", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));
        json!({ "access_token": format!("access-{}", self.issued), "refresh_token": format!("refresh-{}", self.issued),
            "id_token": id, "expires_in": 3_600, "scope": self.scope })
        .to_string()
    }
}

async fn request(stream: &mut TcpStream) -> (String, String) {
    let mut bytes = vec![0; 16 * 1024];
    let mut count = 0;
    loop {
        let more = stream.read(&mut bytes[count..]).await.unwrap_or_default();
        count += more;
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = |line: &str| line.to_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok();
        if more == 0 || body.len() >= head.lines().find_map(length).unwrap_or(0) {
            return (format!("{head}\r\n"), body.to_owned());
        }
    }
}

impl OauthServer {
    async fn start() -> OauthServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let origin = format!("http://{}", listener.local_addr().expect("it is bound"));
        let state = Arc::new(Mutex::new(OauthState { scope: SCOPES, ..OauthState::default() }));
        let (shared, issuer) = (state.clone(), origin.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (head, body) = request(&mut stream).await;
                let line = head.lines().next().unwrap_or_default();
                let (status, answer) = shared.lock().answer(line, &head, &body, &issuer);
                let answer = format!(
                    "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                    answer.len()
                );
                drop(stream.write_all(answer.as_bytes()).await);
            }
        });
        OauthServer { origin, state }
    }

    fn env(&self) -> [(std::ffi::OsString, std::ffi::OsString); 2] {
        [
            ("OPENROUTER_BASE_URL".into(), format!("{}/api/v1", self.origin).into()),
            ("CHATGPT_BASE_URL".into(), format!("{}/v1", self.origin).into()),
        ]
    }

    async fn sign_in(&self, provider: &str, logins: &Logins) -> SignIn {
        let service = service(provider, &Settings::default(), &self.env()).expect("it is built in");
        SignIn::begin(&Http::new(), &service, logins).await.expect("a port is free")
    }

    /// The user consents; returns the URL to which the browser is redirected.
    fn consent(&self, link: &str) -> String {
        let (page, query) = link.split_once('?').expect("it has a query");
        let value = |name| decoded(query, name).unwrap_or_default();
        assert_eq!(value("code_challenge_method"), "S256");
        self.state.lock().challenge = Some(value("code_challenge"));
        if page == format!("{}/auth", self.origin) {
            return format!("{}?code=a%20code", value("callback_url"));
        }
        assert_eq!(page, format!("{}/api/accounts/authorize", self.origin));
        self.state.lock().nonce = value("nonce");
        let state = form(&[("state", &value("state"))]);
        format!("{}?{state}&code=a%20code&client_id={CLIENT}", value("redirect_uri"))
    }

    /// Signs in with ChatGPT, and returns settings that use it.
    async fn signed_in(&self, data: &tempfile::TempDir) -> Settings {
        let logins = Logins::below(data.path());
        let sign_in = self.sign_in("chatgpt", &logins).await;
        let redirected = sign_in.redirect_in(&self.consent(sign_in.link())).expect("it is of this sign-in");
        let login = sign_in.login(&redirected).await.expect("the code is valid");
        logins.store("chatgpt", &login).expect("it is written");
        Settings { logins, ..Settings::default() }
    }

    /// Requests the service's models, as a separate process would.
    async fn models(&self, settings: &Settings) -> Result<usize, ProviderError> {
        let model = ModelName("chatgpt/gpt-6-sol".into());
        let endpoint = resolve(&model, settings, &self.env())?;
        let authenticated = endpoint.authenticated(&Http::new()).await;
        authenticated?;
        let listed = listing::list(&Http::new(), &endpoint).await;
        Ok(listed.map_or(0, |listed| listed.len()))
    }
}

fn chatgpt(settings: &Settings) -> ChatGptLogin {
    match settings.logins.find("chatgpt").expect("it is read").expect("it is there").secret {
        LoginSecret::ChatGpt(login) => login,
        LoginSecret::ApiKey { .. } => panic!("it is no key"),
    }
}

/// Makes the access token expire.
fn expire(settings: &Settings) {
    let mut stored = settings.logins.find("chatgpt").expect("it is read").expect("it is there");
    let mut login = chatgpt(settings);
    login.tokens.as_mut().expect("there are tokens").expires_at = 0;
    stored.secret = LoginSecret::ChatGpt(login);
    settings.logins.store("chatgpt", &stored).expect("it is written");
}

async fn visit(address: &str) -> String {
    let rest = address.strip_prefix("http://").expect("an address of this machine");
    let (authority, path) = rest.split_once('/').expect("it has a path");
    let mut stream = TcpStream::connect(authority).await.expect("it listens");
    stream.write_all(format!("GET /{path} HTTP/1.1\r\n\r\n").as_bytes()).await.expect("it reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).await.expect("it answers");
    page
}

// ── OpenRouter ─────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn consent_in_the_browser_gives_a_key_once() {
    let server = OauthServer::start().await;
    let sign_in = server.sign_in("openrouter", &Logins::default()).await;
    let address = server.consent(sign_in.link());
    let browser = tokio::spawn(async move { visit(&address).await });
    let redirected = sign_in.redirected().await.expect("the browser came back");
    browser.await.expect("no panic");
    let login = sign_in.login(&redirected).await.expect("the code is valid");
    assert_eq!(login.secrets(), ["sk-or-v1-made-up"]);
    let again = sign_in.login(&redirected).await.expect_err("a code counts once");
    assert_eq!(again, "the code was rejected or has expired");
}

/// On a machine without a browser, the redirect fails on the machine that has one, but its URL can be pasted.
#[tokio::test]
async fn the_address_of_the_redirect_can_be_pasted() {
    let server = OauthServer::start().await;
    let sign_in = server.sign_in("openrouter", &Logins::default()).await;
    let address = server.consent(sign_in.link());
    for wrong in ["", "a code", "http://127.0.0.1:1/x?code=a", "https://openrouter.ai/?code=a"] {
        assert_eq!(sign_in.redirect_in(wrong), None, "{wrong}");
    }
    let redirected = sign_in.redirect_in(&format!(" {address}\n")).expect("it has the code");
    assert!(sign_in.login(&redirected).await.is_ok());
}

#[tokio::test]
async fn a_code_of_another_sign_in_is_rejected() {
    let server = OauthServer::start().await;
    let first = server.sign_in("openrouter", &Logins::default()).await;
    let second = server.sign_in("openrouter", &Logins::default()).await;
    let address = server.consent(first.link());
    assert_eq!(second.redirect_in(&address), None, "its path is another one");
    let redirected = first.redirect_in(&address).expect("it has the code");
    assert!(second.login(&redirected).await.is_err(), "its verifier is another one");
}

/// The variable for the base URL may come from a repository's `.envrc`.
#[tokio::test]
async fn no_other_service_gets_a_sign_in() {
    for (provider, variable, base) in [
        ("openrouter", "OPENROUTER_BASE_URL", "https://openrouter.example/api/v1"),
        ("openrouter", "OPENROUTER_BASE_URL", "http://openrouter.ai/api/v1"),
        ("chatgpt", "CHATGPT_BASE_URL", "https://openai.example/v1"),
    ] {
        let env = [(variable.into(), base.into())];
        let service = service(provider, &Settings::default(), &env).expect("it is built in");
        assert!(SignIn::begin(&Http::new(), &service, &Logins::default()).await.is_err(), "{base}");
    }
}

// ── ChatGPT ────────────────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn a_redirect_with_another_state_or_without_a_registration_is_ignored() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = OauthServer::start().await;
    let sign_in = server.sign_in("chatgpt", &Logins::below(data.path())).await;
    let address = server.consent(sign_in.link());
    let (page, query) = address.split_once('?').expect("it has a query");
    let state = parameter(query, "state").expect("it is there");
    let wrong = [
        format!("{page}?state=another&code=c&client_id={CLIENT}"),
        format!("{page}?state={state}&code=c"),
        format!("{page}?state={state}&code=c&client_id={DYNAMIC_CLIENT}"),
        format!("{page}?state={state}&client_id={CLIENT}"),
    ];
    let right = address.clone();
    let browser = tokio::spawn(async move {
        for address in wrong {
            assert!(visit(&address).await.starts_with("HTTP/1.1 400"), "{address}");
        }
        visit(&right).await
    });
    let redirected = sign_in.redirected().await.expect("the browser came back");
    assert!(browser.await.expect("no panic").contains("You are logged in"));
    assert!(sign_in.login(&redirected).await.is_ok());
}

#[tokio::test]
async fn a_denied_sign_in_and_one_without_the_plan_store_no_tokens() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let (server, logins) = (OauthServer::start().await, Logins::below(data.path()));
    let sign_in = server.sign_in("chatgpt", &logins).await;
    let address = server.consent(sign_in.link());
    let denied = format!("{}?error=access_denied", address.split_once('?').expect("it has a query").0);
    let browser = tokio::spawn(async move { visit(&denied).await });
    assert_eq!(sign_in.redirected().await, Err("its login was refused".to_owned()));
    browser.await.expect("no panic");
    server.state.lock().scope = "openid profile";
    let redirected = sign_in.redirect_in(&address).expect("it is of this sign-in");
    let error = sign_in.login(&redirected).await.expect_err("the plan is not shared");
    assert!(error.contains("the use of your plan"), "{error}");
    let settings = Settings { logins, ..Settings::default() };
    assert!(chatgpt(&settings).tokens.is_none());
    assert!(server.models(&settings).await.is_err(), "nothing is sent");
}

#[tokio::test]
async fn a_code_that_has_expired_registers_no_second_installation() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let (server, logins) = (OauthServer::start().await, Logins::below(data.path()));
    let sign_in = server.sign_in("chatgpt", &logins).await;
    let redirected = sign_in.redirect_in(&server.consent(sign_in.link())).expect("it is of this sign-in");
    server.state.lock().challenge = None;
    assert!(sign_in.login(&redirected).await.expect_err("it has expired").contains("invalid_grant"));
    let again = server.sign_in("chatgpt", &logins).await;
    let id = |link: &str| decoded(link.split_once('?').expect("a query").1, "ext_agent_host_id");
    assert_eq!(id(again.link()), id(sign_in.link()));
    assert!(again.link().contains(&form(&[("client_id", CLIENT)])), "{}", again.link());
}

#[tokio::test]
async fn tokens_are_used_and_refreshed_once_for_several_processes() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = OauthServer::start().await;
    let settings = server.signed_in(&data).await;
    assert_eq!(server.models(&settings).await, Ok(1), "only what is for choosing is listed");
    expire(&settings);
    let (first, second, third) =
        tokio::join!(server.models(&settings), server.models(&settings), server.models(&settings));
    assert_eq!((first, second, third), (Ok(1), Ok(1), Ok(1)));
    assert_eq!(server.state.lock().refreshes, 1);
    assert_eq!(chatgpt(&settings).tokens.expect("there are tokens").refresh, "refresh-2");
}

/// A turn that is canceled during a refresh must not lose the only valid refresh token.
#[tokio::test]
async fn a_refresh_is_completed_although_its_request_is_cancelled() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Arc::new(OauthServer::start().await);
    let settings = server.signed_in(&data).await;
    expire(&settings);
    let (asked, asks) = (server.clone(), settings.clone());
    let request = tokio::spawn(async move { asked.models(&asks).await });
    while server.state.lock().refreshes == 0 {
        tokio::task::yield_now().await;
    }
    request.abort();
    while chatgpt(&settings).tokens.is_none_or(|tokens| tokens.refresh != "refresh-2") {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.models(&settings).await, Ok(1));
    assert_eq!(server.state.lock().refreshes, 1);
}

/// Regression: a refresh whose answer had no new refresh token, as OAuth allows, failed.
#[tokio::test]
async fn a_refresh_token_that_is_not_replaced_remains() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = OauthServer::start().await;
    let settings = server.signed_in(&data).await;
    server.state.lock().keeps_refresh = true;
    expire(&settings);
    assert_eq!(server.models(&settings).await, Ok(1));
    assert_eq!(chatgpt(&settings).tokens.expect("there are tokens").refresh, "refresh-1");
}

/// Regression: the disk was full when the tokens were refreshed. The new refresh token was lost, and the stored one was not
/// valid any more, so the user had to sign in again.
#[tokio::test]
async fn tokens_that_can_not_be_stored_remain_usable() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = OauthServer::start().await;
    let settings = server.signed_in(&data).await;
    // Others have it too, and it is the key of what could not be stored.
    let mut stored = settings.logins.find("chatgpt").expect("it is read").expect("it is there");
    let mut login = chatgpt(&settings);
    server.state.lock().issued = 1_000;
    login.tokens.as_mut().expect("there are tokens").refresh = "refresh-1000".to_owned();
    stored.secret = LoginSecret::ChatGpt(login);
    settings.logins.store("chatgpt", &stored).expect("it is written");
    expire(&settings);
    let directory = data.path().join("logins");
    server.state.lock().breaks = Some(directory.clone());
    let model = ModelName("chatgpt/gpt-6-sol".into());
    let endpoint = resolve(&model, &settings, &server.env()).expect("there is a login");
    assert!(endpoint.authenticated(&Http::new()).await.is_ok());
    std::fs::remove_file(&directory).expect("it is a file");
    std::fs::rename(directory.with_extension("away"), &directory).expect("nothing is there");
    assert_eq!(chatgpt(&settings).tokens.expect("there are tokens").refresh, "refresh-1000");
    assert_eq!(server.models(&settings).await, Ok(1));
    assert_eq!(server.state.lock().refreshes, 1);
    assert_eq!(chatgpt(&settings).tokens.expect("there are tokens").refresh, "refresh-1001");
}

#[tokio::test]
async fn a_rejected_token_is_refreshed_and_the_request_sent_again() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = OauthServer::start().await;
    let settings = server.signed_in(&data).await;
    // The service invalidates the access token before it expires.
    let refresh = |state: &mut OauthState| state.tokens("elsewhere");
    drop(refresh(&mut server.state.lock()));
    let mut login = chatgpt(&settings);
    login.tokens.as_mut().expect("there are tokens").refresh = "refresh-2".to_owned();
    let stored = StoredLogin::new(&*server.origin, LoginSecret::ChatGpt(login));
    settings.logins.store("chatgpt", &stored).expect("it is written");
    assert_eq!(server.models(&settings).await, Ok(1));
    assert_eq!(server.state.lock().refreshes, 1);
}

#[tokio::test]
async fn a_sign_in_that_was_revoked_asks_to_sign_in_again() {
    for error in ["invalid_grant", "refresh_token_reused"] {
        let data = tempfile::tempdir().expect("a temporary directory");
        let server = OauthServer::start().await;
        let settings = server.signed_in(&data).await;
        expire(&settings);
        server.state.lock().revoked = Some(error);
        let error = server.models(&settings).await.expect_err("it was revoked");
        assert_eq!(error.class, ErrorClass::Auth);
        assert_eq!(error.hint.as_deref(), Some("Run `epitome login chatgpt` in a terminal."));
        let kept = chatgpt(&settings);
        assert!(kept.tokens.is_none() && kept.client_id.as_deref() == Some(CLIENT));
    }
}

/// Regression: a logout removed the tokens only from this machine, so a copy of them remained valid for 30 days.
#[tokio::test]
async fn a_logout_revokes_the_tokens_at_the_issuer_and_nowhere_else() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = OauthServer::start().await;
    let settings = server.signed_in(&data).await;
    let removed = settings.logins.remove("chatgpt").expect("it is removed").expect("there was one");
    let login = removed.login.expect("it is readable");
    let service = service("chatgpt", &Settings::default(), &server.env()).expect("it is built in");
    let revoke = || async { revoke(&Http::new(), &service, &login).await.expect("there are tokens") };

    assert_eq!(revoke().await, Err("the service does not publish where tokens are revoked".to_owned()));
    server.state.lock().revocation = Some("http://127.0.0.1:9/api/accounts/oauth/revoke".to_owned());
    assert_eq!(revoke().await, Err("the service does not publish where tokens are revoked".to_owned()));
    server.state.lock().revocation = Some(format!("{}/api/accounts/oauth/revoke", server.origin));
    assert_eq!(revoke().await, Ok(()));
    assert_eq!(server.state.lock().ended, ["refresh-1"]);

    let key = StoredLogin::api_key("https://api.openai.com", "sk-made-up");
    assert_eq!(super::revoke(&Http::new(), &service, &key).await, None, "only its owner can delete a key");
}

#[tokio::test]
async fn a_failure_of_the_issuer_does_not_sign_out() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = OauthServer::start().await;
    let settings = server.signed_in(&data).await;
    expire(&settings);
    server.state.lock().revoked = Some("temporarily_unavailable");
    let error = server.models(&settings).await.expect_err("there is no token");
    assert_eq!(error.class, ErrorClass::Retry { after: None });
    server.state.lock().revoked = None;
    assert_eq!(server.models(&settings).await, Ok(1));
}
