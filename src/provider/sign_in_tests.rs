//! The sign-in against a server that plays OpenRouter's part and checks PKCE.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::endpoint::service;
use epitome_config::Settings;

/// An OAuth server with one code, which can be exchanged once by whoever knows the verifier.
struct OauthServer {
    base: String,
    /// The challenge that the page of consent was opened with.
    challenge: Arc<Mutex<Option<String>>>,
}

const CODE: &str = "a code";

async fn request(stream: &mut TcpStream) -> (String, String) {
    let mut bytes = vec![0; 16 * 1024];
    let mut count = 0;
    loop {
        count += stream.read(&mut bytes[count..]).await.expect("a request");
        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0_usize) {
            return (head.lines().next().unwrap_or_default().to_owned(), body.to_owned());
        }
    }
}

impl OauthServer {
    async fn start() -> OauthServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let base = format!("http://{}/api/v1", listener.local_addr().expect("it is bound"));
        let challenge: Arc<Mutex<Option<String>>> = Arc::default();
        let expected = challenge.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (line, body) = request(&mut stream).await;
                let body: Value = serde_json::from_str(&body).unwrap_or_default();
                let verifier = body["code_verifier"].as_str().unwrap_or_default();
                let proof = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
                // A code counts once.
                let is_valid = line.starts_with("POST /api/v1/auth/keys ")
                    && body["code"] == CODE
                    && body["code_challenge_method"] == "S256"
                    && expected.lock().expect("no panic").take().as_deref() == Some(&proof);
                let (status, answer) = match is_valid {
                    true => ("200 OK", r#"{"key":"sk-or-v1-made-up"}"#),
                    false => ("403 Forbidden", r#"{"error":{"message":"Invalid code or verifier a code"}}"#),
                };
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                    answer.len()
                );
                drop(stream.write_all(answer.as_bytes()).await);
            }
        });
        OauthServer { base, challenge }
    }

    async fn sign_in(&self) -> SignIn {
        let env = [("OPENROUTER_BASE_URL".into(), self.base.clone().into())];
        let service = service("openrouter", &Settings::default(), &env).expect("it is built in");
        SignIn::begin(&Http::new(), &service).await.expect("a port is free")
    }

    /// The user agrees; returns the address that the browser is sent to.
    fn consent(&self, link: &str) -> String {
        let (page, query) = link.split_once('?').expect("it has a query");
        assert_eq!(page, self.base.replace("/api/v1", "/auth"));
        let value = |name| {
            let value = parameter(query, name).expect("it is there");
            percent_decode_str(value).decode_utf8().expect("text").into_owned()
        };
        assert_eq!(value("code_challenge_method"), "S256");
        *self.challenge.lock().expect("no panic") = Some(value("code_challenge"));
        format!("{}?code=a%20code", value("callback_url"))
    }
}

async fn visit(address: &str) {
    let rest = address.strip_prefix("http://").expect("an address of this machine");
    let (authority, path) = rest.split_once('/').expect("it has a path");
    let mut stream = TcpStream::connect(authority).await.expect("it listens");
    stream.write_all(format!("GET /{path} HTTP/1.1\r\n\r\n").as_bytes()).await.expect("it reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).await.expect("it answers");
}

#[tokio::test]
async fn consent_in_the_browser_gives_a_key() {
    let server = OauthServer::start().await;
    let sign_in = server.sign_in().await;
    let address = server.consent(sign_in.link());
    let browser = tokio::spawn(async move { visit(&address).await });
    let code = sign_in.code().await.expect("the browser came back");
    browser.await.expect("no panic");
    assert_eq!(sign_in.key(&code).await.as_deref(), Ok("sk-or-v1-made-up"));
    let again = sign_in.key(&code).await.expect_err("a code counts once");
    assert_eq!(again, "the code was rejected or has expired");
}

/// On a machine without a browser, the redirect fails on the machine that has one: its address can be pasted.
#[tokio::test]
async fn the_address_of_the_redirect_can_be_pasted() {
    let server = OauthServer::start().await;
    let sign_in = server.sign_in().await;
    let address = server.consent(sign_in.link());
    for wrong in ["", "a code", "http://127.0.0.1:1/x?code=a", "https://openrouter.ai/?code=a"] {
        assert_eq!(sign_in.code_in(wrong), None, "{wrong}");
    }
    let code = sign_in.code_in(&format!(" {address}\n")).expect("it has the code");
    assert_eq!(sign_in.key(&code).await.as_deref(), Ok("sk-or-v1-made-up"));
}

#[tokio::test]
async fn a_code_of_another_sign_in_is_rejected() {
    let server = OauthServer::start().await;
    let (first, second) = (server.sign_in().await, server.sign_in().await);
    let address = server.consent(first.link());
    assert_eq!(second.code_in(&address), None, "its path is another one");
    let code = first.code_in(&address).expect("it has the code");
    assert!(second.key(&code).await.is_err(), "its verifier is another one");
}

/// The variable for the base URL may come from a repository's `.envrc`.
#[tokio::test]
async fn no_other_service_gets_a_sign_in() {
    for base in ["https://openrouter.example/api/v1", "http://openrouter.ai/api/v1"] {
        let env = [("OPENROUTER_BASE_URL".into(), base.into())];
        let service = service("openrouter", &Settings::default(), &env).expect("it is built in");
        assert!(SignIn::begin(&Http::new(), &service).await.is_err(), "{base}");
    }
}
