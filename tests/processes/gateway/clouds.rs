//! Models of clouds and plans, whose requests the server signs, or for which it gets and renews tokens. The services are
//! a front of the scripted model that checks each request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use epitome::config::{ChatGptLogin, ChatGptTokens, LoginSecret, Logins, StoredLogin};
use epitome_scripted_model::ScriptedModel;
use epitome_test_harness::agent::obey;
use epitome_test_harness::user::User;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Machine, assert_nowhere};
use crate::daemon::remote::{serve, token};

/// A request to the service.
struct Asked {
    method: String,
    path: String,
    /// Names are lower case.
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

enum Decision {
    Answer(u16, Value),
    /// The scripted model answers at this path.
    Forward(String),
}

impl Asked {
    fn read(stream: &TcpStream) -> Option<Asked> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut asked = Asked { method, path, headers, body: Vec::new() };
        let length = asked.header("content-length").parse().unwrap_or(0);
        asked.body.resize(length, 0);
        reader.read_exact(&mut asked.body).ok()?;
        Some(asked)
    }

    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// A field of a form.
    fn field(&self, name: &str) -> String {
        let body = String::from_utf8_lossy(&self.body).into_owned();
        let mut pairs = body.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(known, _)| *known == name).map_or("", |(_, value)| value);
        value.replace("%2D", "-").replace("%2E", ".").replace("%5F", "_")
    }

    /// Passes the request on, and returns the whole response.
    fn forward(&self, model: &str, path: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(model).expect("the model listens");
        let mut head = format!("{} {path} HTTP/1.1\r\nconnection: close\r\n", self.method);
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "connection") {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).expect("it reads");
        stream.write_all(&self.body).expect("it reads");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("it answers");
        response
    }
}

/// Starts a service, and returns its origin.
fn service(
    model: &ScriptedModel,
    mut decide: impl FnMut(&str, &Asked) -> Decision + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let origin = format!("http://{}", listener.local_addr().expect("it is bound"));
    let model = model.base_url().trim_start_matches("http://").to_owned();
    let own = origin.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Some(asked) = Asked::read(&stream) else { continue };
            let response = match decide(&own, &asked) {
                Decision::Forward(path) => asked.forward(&model, &path),
                Decision::Answer(status, body) => {
                    let body = body.to_string();
                    let length = body.len();
                    format!(
                        "HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                    )
                    .into_bytes()
                }
            };
            // A client may have gone away.
            drop(stream.write_all(&response));
            drop(stream.shutdown(Shutdown::Write));
        }
    });
    origin
}

fn rejected() -> Decision {
    let error = json!({ "type": "authentication_error", "message": "the credential is not valid" });
    Decision::Answer(401, json!({ "type": "error", "error": error }))
}

/// A server with a credential for a service that `decide` plays, and a machine without it.
fn machines(
    decide: impl FnMut(&str, &Asked) -> Decision + Send + 'static,
    configure: impl FnOnce(&mut User, &str),
) -> (Machine, User) {
    let model = ScriptedModel::start(obey).expect("loopback");
    let origin = service(&model, decide);
    let mut user = User::new();
    configure(&mut user, &origin);
    let reader = token(&user, "screen", "read");
    let server = serve(&user, &["--listen", "127.0.0.1:0"]);
    let machine = Machine { user, model, server, reader };
    let worker = machine.ready();
    (machine, worker)
}

fn says_hello(worker: &User, model: &str) {
    let said = worker.run(&["run", "--model", model, "say hello"]).ok();
    assert!(said.contains("You said hello."), "{model}: {said}");
}

// ── Amazon Bedrock ─────────────────────────────────────────────────────────────────────────────────

const AWS: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "AKIAOFTHESERVER"),
    ("AWS_SECRET_ACCESS_KEY", "secret-of-the-server"),
    ("AWS_SESSION_TOKEN", "session-of-the-server"),
    ("AWS_REGION", "eu-west-1"),
];

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// HMAC with SHA-256 (RFC 2104) for keys of at most 64 bytes.
fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let padded = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(byte, of_key)| *byte ^= of_key);
        block
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}

/// The signature (version 4) that this request needs, computed from what has arrived.
fn signature(asked: &Asked, signed: &str) -> String {
    let headers: String =
        signed.split(';').map(|name| format!("{name}:{}\n", asked.header(name).trim())).collect();
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let method = &asked.method;
    let body = hex(Sha256::digest(&asked.body));
    let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{signed}\n{body}");
    let date = asked.header("x-amz-date");
    let scope = format!("{}/eu-west-1/bedrock/aws4_request", &date[..8]);
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(Sha256::digest(canonical)));
    let mut key = format!("AWS4{}", AWS[1].1).into_bytes();
    for part in [&date[..8], "eu-west-1", "bedrock", "aws4_request", &text] {
        key = hmac(&key, part);
    }
    format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature={}",
        AWS[0].1,
        hex(key)
    )
}

#[test]
fn the_server_signs_the_requests_of_its_clients_for_bedrock() {
    let decide = |_: &str, asked: &Asked| {
        let sent = asked.header("authorization");
        let signed = sent.split_once("SignedHeaders=").and_then(|(_, rest)| rest.split_once(','));
        let is_signed = signed.is_some_and(|(signed, _)| {
            signed.split(';').any(|name| name == "host") && signature(asked, signed) == sent
        });
        let is_session = asked.header("x-amz-security-token") == AWS[2].1;
        if is_signed && is_session { Decision::Forward(asked.path.clone()) } else { rejected() }
    };
    let model = "bedrock/anthropic.claude-sonnet-5-5";
    let (machine, worker) = machines(decide, |user, origin| {
        AWS.iter().for_each(|(name, value)| user.set(name, *value));
        user.set("ANTHROPIC_BEDROCK_BASE_URL", origin);
        user.set("EPITOME_MODEL", model);
    });
    says_hello(&worker, model);
    worker.end_daemon();
    AWS[..3].iter().for_each(|(_, secret)| assert_nowhere(&worker.home(), secret));
    assert!(machine.model.refusals().is_empty());
}

// ── Google Vertex AI ───────────────────────────────────────────────────────────────────────────────

const SERVICE_ACCOUNT_KEY: &str = include_str!("service-account.key");

/// Regression: Google had revoked a token before its end. Until then, for up to an hour, each call was made with it and
/// rejected, also without a gateway.
#[test]
fn the_server_gets_tokens_for_vertex_and_another_one_when_it_is_rejected() {
    let issued = Arc::new(Mutex::new(0));
    // The service takes the tokens from this one on.
    let first = Arc::new(Mutex::new(1));
    let (count, least) = (issued.clone(), first.clone());
    let decide = move |origin: &str, asked: &Asked| {
        let mut issued = count.lock();
        if asked.path == "/token" {
            let assertion = asked.field("assertion");
            let claims =
                assertion.split('.').nth(1).and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
            let claims: Value = serde_json::from_slice(&claims.expect("base64")).expect("JSON");
            assert_eq!(
                (&claims["iss"], &claims["aud"]),
                (&json!("robot@p"), &json!(format!("{origin}/token")))
            );
            *issued += 1;
            let token = format!("vertex-token-{issued}-");
            return Decision::Answer(200, json!({ "access_token": token, "expires_in": 3600 }));
        }
        let least = *least.lock();
        let is_valid =
            |number: &u32| asked.header("authorization") == format!("Bearer vertex-token-{number}-");
        let method = asked.path.strip_prefix("/v1/projects/p/locations/eu/publishers/google");
        match (method, (least..=*issued).any(|number| is_valid(&number))) {
            (Some(method), true) => Decision::Forward(format!("/v1beta{method}")),
            (None, _) => Decision::Answer(404, json!({})),
            (_, false) => rejected(),
        }
    };
    let model = "vertex/gemini-3.8-flash";
    let (_machine, worker) = machines(decide, |user, origin| {
        user.set("VERTEX_BASE_URL", format!("{origin}/v1/projects/p/locations/eu"));
        let account = json!({ "type": "service_account", "client_email": "robot@p",
            "private_key": SERVICE_ACCOUNT_KEY, "token_uri": format!("{origin}/token") });
        user.write("account.json", &account.to_string());
        user.set("GOOGLE_APPLICATION_CREDENTIALS", user.home().join("account.json"));
        user.set("EPITOME_MODEL", model);
    });
    says_hello(&worker, model);
    says_hello(&worker, model);
    assert_eq!(*issued.lock(), 1, "a token is used until it ends");
    *first.lock() = 2;
    says_hello(&worker, model);
    assert_eq!(*issued.lock(), 2);
    // A token that is new is rejected, too.
    *first.lock() = 100;
    let refused = worker.run(&["run", "--model", model, "say hello"]);
    assert!(refused.code != Some(0) && refused.err.contains("the credential is not valid"), "{refused:?}");
    assert_eq!(*issued.lock(), 3, "it asks for another one only once");
    worker.end_daemon();
    for secret in ["vertex-token-", "robot@p", SERVICE_ACCOUNT_KEY.lines().nth(1).expect("it has lines")] {
        assert_nowhere(&worker.home(), secret);
    }
}

// ── The plan of ChatGPT ────────────────────────────────────────────────────────────────────────────

#[test]
fn the_server_renews_the_sign_in_with_chatgpt() {
    let issued = Arc::new(Mutex::new(0));
    let count = issued.clone();
    let decide = move |_: &str, asked: &Asked| {
        let mut issued = count.lock();
        if asked.path == "/api/accounts/oauth/token" {
            let is_newest = asked.field("refresh_token") == format!("plan-refresh-{issued}-");
            if asked.field("client_id") != "client" || !is_newest {
                return Decision::Answer(400, json!({ "error": "refresh_token_reused" }));
            }
            *issued += 1;
            let (access, refresh) = (format!("plan-access-{issued}-"), format!("plan-refresh-{issued}-"));
            return Decision::Answer(
                200,
                json!({ "access_token": access, "refresh_token": refresh, "expires_in": 3600 }),
            );
        }
        match asked.header("authorization") == format!("Bearer plan-access-{issued}-") {
            true => Decision::Forward(asked.path.clone()),
            false => rejected(),
        }
    };
    let model = "chatgpt/gpt-6-sol";
    let sign_in = |user: &User, origin: &str, access: &str, refresh: &str, expires_at: u64| {
        let tokens = ChatGptTokens {
            access: access.to_owned(),
            refresh: refresh.to_owned(),
            expires_at,
            subject: "user-1".to_owned(),
        };
        let login = ChatGptLogin {
            host_id: "host".to_owned(),
            client_id: Some("client".to_owned()),
            tokens: Some(tokens),
        };
        let stored = StoredLogin::new(origin, LoginSecret::ChatGpt(login));
        Logins::below(&user.own().join("data")).store("chatgpt", &stored).expect("it can be written");
    };
    let mut at = String::new();
    let (machine, worker) = machines(decide, |user, origin| {
        at = origin.to_owned();
        sign_in(user, origin, "plan-access-0-", "plan-refresh-0-", 0);
        user.set("CHATGPT_BASE_URL", format!("{origin}/v1"));
        user.set("EPITOME_MODEL", model);
    });
    // The token has expired.
    says_hello(&worker, model);
    assert_eq!(*issued.lock(), 1);
    says_hello(&worker, model);
    assert_eq!(*issued.lock(), 1);
    // The service does not take the token any longer, although it has not expired.
    sign_in(&machine.user, &at, "plan-access-old-", "plan-refresh-1-", u64::MAX);
    says_hello(&worker, model);
    assert_eq!(*issued.lock(), 2);
    // The sign-in was revoked elsewhere.
    sign_in(&machine.user, &at, "plan-access-old-", "plan-refresh-0-", 0);
    let refused = worker.run(&["run", "--model", model, "say hello"]);
    assert!(refused.code != Some(0) && refused.err.contains("The sign-in is no longer valid"), "{refused:?}");
    worker.end_daemon();
    assert_nowhere(&worker.home(), "plan-access-");
    assert_nowhere(&worker.home(), "plan-refresh-");
}
