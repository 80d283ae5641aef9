//! MCP servers over HTTP: the requests that they receive, and the notices to the user if they cannot be reached.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use epitome::session::SessionEvent;
use epitome::thread::{Change, StopReason};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::in_turn;
use epitome_test_harness::session::{Setup, TestSession};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::mcp::status;

/// Used in place of a status: the server requires a login.
const LOGIN: &str = "login";
const TOKEN: &str = "sk-token-of-the-login";
const KEY: &str = "sk-key-of-the-server";
/// Used in place of a status: the server closes its connections instead of answering tool calls.
const LEAVES: &str = "leaves";
/// Used in place of a status: the results of the server's tools end within characters.
const HALVES: &str = "halves";
/// The same, as a stream of events.
const HALVES_IN_EVENTS: &str = "halves in events";

/// A server on loopback that responds with JSON; returns its URL and the heads of its requests.
fn server(status: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}/mcp/sk-in-the-path", listener.local_addr().expect("an address"));
    let (heads, seen) = channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let heads = heads.clone();
            thread::spawn(move || connection(stream, &heads, status));
        }
    });
    (url, seen)
}

/// Answers the requests on one connection, until it closes.
fn connection(stream: TcpStream, heads: &Sender<String>, status: &str) -> Option<()> {
    let own = stream.local_addr().expect("an address").to_string();
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut writer = stream;
    loop {
        let (head, body) = read_body(&mut reader)?;
        let lower = head.to_lowercase();
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status == LEAVES && request["method"] == "tools/call" {
            return None;
        }
        let (halves, is_event) = (status.starts_with(HALVES), status == HALVES_IN_EVENTS);
        let status = if status == LEAVES || halves { "200 OK" } else { status };
        // A finished test has dropped the receiver.
        drop(heads.send(lower));
        let answered =
            answer(&request).map(|result| json!({"jsonrpc": "2.0", "id": request["id"], "result": result}));
        let (status, body) = match answered {
            _ if status == LOGIN && !head.contains(TOKEN) => {
                login(&head, &String::from_utf8_lossy(&body), &own)
            }
            Some(answer) if status == LOGIN => ("200 OK", answer.to_string()),
            None if status == LOGIN => ("202 Accepted", String::new()),
            _ if status != "200 OK" => (status, String::new()),
            Some(answer) => (status, answer.to_string()),
            None if head.starts_with("GET") => ("405 Method Not Allowed", String::new()),
            None => ("202 Accepted", String::new()),
        };
        // A body that begins with a line break is an additional header.
        let (more, body) = match body.strip_prefix("\r\n") {
            Some(header) => (format!("\r\n{header}"), String::new()),
            None => (String::new(), body),
        };
        let is_event = is_event && !body.is_empty();
        let (kind, body) = match is_event {
            true => ("text/event-stream", format!("event: message\nid: 1\ndata: {body}\n\n")),
            false => ("application/json", body),
        };
        let body = match body.split_once("seen") {
            Some((before, after)) if halves => {
                [before.as_bytes(), b"cut \\ud83d, caf\xe9", after.as_bytes()].concat()
            }
            _ => body.into_bytes(),
        };
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}{more}\r\n\r\n");
        writer.write_all(&[head.as_bytes(), &body].concat()).ok()?;
    }
}

/// The head and body of the next request.
fn read_body(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return None;
        }
    }
    let lower = head.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// The responses of a server that requires a login, and of its authorization server with dynamic registration
/// and PKCE.
fn login(head: &str, body: &str, own: &str) -> (&'static str, String) {
    let base = format!("http://{own}");
    let path = head.split(' ').nth(1).unwrap_or_default();
    let response = match path {
        path if path.starts_with("/.well-known/oauth-protected-resource") => {
            json!({"resource": format!("{base}/mcp/sk-in-the-path"), "authorization_servers": [base]})
        }
        path if path.starts_with("/.well-known/oauth-authorization-server") => json!({
            "issuer": base,
            "authorization_endpoint": format!("{base}/authorize"),
            "token_endpoint": format!("{base}/token"),
            "registration_endpoint": format!("{base}/register"),
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
        }),
        "/register" => json!({"client_id": "epitome-1", "redirect_uris": []}),
        "/token" if body.contains("grant_type=refresh_token") => {
            return ("401 Unauthorized", json!({"error": "invalid_client"}).to_string());
        }
        "/token" => json!({
            "access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600, "refresh_token": "sk-refresh",
        }),
        path if path.starts_with("/mcp") => {
            let challenge =
                format!("Bearer resource_metadata=\"{base}/.well-known/oauth-protected-resource\"");
            return ("401 Unauthorized", format!("\r\nwww-authenticate: {challenge}"));
        }
        _ => return ("404 Not Found", String::new()),
    };
    ("200 OK", response.to_string())
}

fn answer(request: &Value) -> Option<Value> {
    match request["method"].as_str()? {
        "initialize" => Some(json!({
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "test", "version": "1"},
        })),
        "tools/list" => Some(
            json!({"tools": [{"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}}]}),
        ),
        "tools/call" => Some(json!({"content": [{"type": "text", "text": "seen"}]})),
        _ => None,
    }
}

fn started(url: &str, replies: Vec<Vec<ModelStep>>) -> TestSession {
    let config = format!(
        "mode = \"full\"\n[mcp.servers.net]\nurl = {url:?}\nheaders = {{ X-Team = \"core-team\", Authorization = \"Bearer {KEY}\" }}\n"
    );
    Setup::with_config(&config).start(in_turn(replies))
}

#[test]
fn a_server_receives_its_configured_headers() {
    let (url, heads) = server("200 OK");
    let mut test =
        started(&url, vec![vec![ModelStep::Call { name: "mcp__net__look".into(), input: json!({}) }]]);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let shown = test.client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    assert_eq!(shown, "seen");
    let heads: Vec<String> = heads.try_iter().collect();
    assert!(heads.len() >= 3, "{heads:?}");
    for head in heads.iter().filter(|head| head.starts_with("post")) {
        assert!(head.contains("x-team: core-team") && head.contains(&format!("authorization: bearer {KEY}")));
    }
    let log = format!("{:?}{:?}", test.log(), test.client.seen);
    assert!(!log.contains(KEY) && !log.contains("sk-in-the-path"));
}

/// Regression: a user's server over HTTP cut a text in the middle of an emoji. The call had run, and its result was lost.
#[test]
fn results_with_half_a_character_are_read() {
    for role in [HALVES, HALVES_IN_EVENTS] {
        let (url, _) = server(role);
        let mut test =
            started(&url, vec![vec![ModelStep::Call { name: "mcp__net__look".into(), input: json!({}) }]]);
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
        let shown = test.client.entry(|change| match change {
            Change::ToolFinished { outcome } => Some(outcome.model_text()),
            _ => None,
        });
        assert_eq!(shown, "cut \u{fffd}, caf\u{fffd}", "{role}");
    }
}

/// Each row is the response of a server, and the notice for the user.
#[test]
fn an_unreachable_server_is_reported_without_its_secrets() {
    for (status, words) in [
        ("500 Internal Server Error", "500"),
        ("404 Not Found", "404"),
        ("405 Method Not Allowed", "over the older SSE transport: it answers with HTTP 405"),
    ] {
        let (url, _) = server(status);
        let mut test = started(&url, Vec::new());
        let shown = test.client.until(|out| match out {
            SessionEvent::Notice { text, .. } if text.contains("net") => Some(text.clone()),
            _ => None,
        });
        assert!(shown.contains(words), "{status}: {shown}");
        assert!(!shown.contains(KEY) && !shown.contains("sk-in-the-path"), "{shown}");
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
    }
}

/// A server of the older transport: a GET opens the stream of its messages, which contains the address for the client's
/// messages.
/// `token` is the token that it requires in each request, once the user has logged in.
fn sse_server(token: Option<&'static str>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}/sse", listener.local_addr().expect("an address"));
    let (heads, seen) = channel();
    let events: Arc<Mutex<Option<TcpStream>>> = Arc::default();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (heads, events) = (heads.clone(), events.clone());
            thread::spawn(move || sse_connection(stream, &heads, &events, token));
        }
    });
    (url, seen)
}

fn sse_connection(
    mut writer: TcpStream,
    heads: &Sender<String>,
    events: &Mutex<Option<TcpStream>>,
    token: Option<&str>,
) -> Option<()> {
    let own = writer.local_addr().expect("an address").to_string();
    let mut reader = BufReader::new(writer.try_clone().expect("a second handle"));
    loop {
        let (head, body) = read_body(&mut reader)?;
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        drop(heads.send(head.to_lowercase()));
        let respond = |writer: &mut TcpStream, status: &str| {
            write!(writer, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").ok()
        };
        let is_known = token.is_none_or(|token| head.contains(token));
        let is_of_login = ["/register", "/token", "/.well-known"].iter().any(|path| head.contains(path));
        if token.is_some() && is_of_login {
            let (status, body) = login(&head, &String::from_utf8_lossy(&body), &own);
            let body = body.replace("/mcp/sk-in-the-path", "/sse");
            let length = body.len();
            let kind = "content-type: application/json";
            write!(writer, "HTTP/1.1 {status}\r\n{kind}\r\ncontent-length: {length}\r\n\r\n{body}").ok()?;
        } else if ["GET /sse", "POST /messages"].iter().any(|start| head.starts_with(start)) && !is_known {
            respond(&mut writer, "401 Unauthorized")?;
        } else if head.starts_with("GET /sse") {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
            write!(writer, "{head}event: endpoint\ndata: /messages?id=1\n\n").ok()?;
            *events.lock() = Some(writer);
            return Some(());
        } else if head.starts_with("POST /messages?id=1") {
            respond(&mut writer, "202 Accepted")?;
            if let Some(result) = answer(&request) {
                let message = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
                let mut events = events.lock();
                write!(events.as_mut()?, "event: message\ndata: {message}\n\n").ok()?;
            }
        } else {
            respond(&mut writer, "405 Method Not Allowed")?;
        }
    }
}

/// Regression: servers of the older transport could not be used.
#[test]
fn an_address_that_refuses_the_newer_transport_is_tried_with_the_older_one() {
    let (url, heads) = sse_server(None);
    let mut test =
        started(&url, vec![vec![ModelStep::Call { name: "mcp__net__look".into(), input: json!({}) }]]);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let shown = test.client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    assert_eq!(shown, "seen");
    let heads: Vec<String> = heads.try_iter().collect();
    let with_key = heads.iter().filter(|head| head.contains(&format!("authorization: bearer {KEY}"))).count();
    assert_eq!(with_key, heads.len(), "{heads:?}");
}

/// A server of the older transport that requires a login was given up.
#[test]
fn a_login_works_over_the_older_transport() {
    let (url, heads) = sse_server(Some(TOKEN));
    let look = vec![ModelStep::Call { name: "mcp".into(), input: json!({"tool": "mcp__net__look"}) }];
    let config = format!("mode = \"full\"\n[mcp.servers.net]\nurl = {url:?}\n");
    let mut test = Setup::with_config(&config).start(in_turn(vec![look]));
    log_in(&mut test);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let shown = test.client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    assert_eq!(shown, "seen");
    let posts: Vec<String> = heads.try_iter().filter(|head| head.starts_with("post /messages")).collect();
    let token = format!("authorization: bearer {TOKEN}");
    assert!(!posts.is_empty() && posts.iter().all(|head| head.contains(&token)), "{posts:?}");
}

/// The model read the names of Rust types, and the user nothing.
#[test]
fn a_server_that_goes_away_is_reported_in_plain_words() {
    let (url, _) = server(LEAVES);
    let mut test =
        started(&url, vec![vec![ModelStep::Call { name: "mcp__net__look".into(), input: json!({}) }]]);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let shown = test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } if text.contains("net") => Some(text.clone()),
        _ => None,
    });
    assert!(
        shown.starts_with("The MCP server net did not get or answer the call: it cannot be reached"),
        "{shown}"
    );
    assert!(!shown.contains("::") && !shown.contains("sk-in-the-path"), "{shown}");
    assert!(status(&mut test).contains("its last call failed: it cannot be reached"));
}

/// Follows the link like the user's browser.
fn log_in(test: &mut TestSession) {
    let notice = test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } if text.contains("Open this link") => Some(text.clone()),
        _ => None,
    });
    let link = notice.split("Open this link: ").nth(1).unwrap_or_else(|| panic!("a link: {notice}"));
    let query = |name: &str| {
        let pairs = link.split(['?', '&']);
        let found = pairs.filter_map(|pair| pair.strip_prefix(&format!("{name}="))).next();
        found.unwrap_or_else(|| panic!("{name} in {link}")).to_owned()
    };
    assert_eq!(query("code_challenge_method"), "S256");
    let back = query("redirect_uri").replace("%3A", ":").replace("%2F", "/");
    let address = back.strip_prefix("http://").and_then(|back| back.split('/').next()).expect("loopback");
    let mut browser = TcpStream::connect(address).expect("it listens");
    let path = format!("/callback?code=c-1&state={}", query("state"));
    write!(browser, "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").expect("it reads");
    let mut page = String::new();
    browser.read_to_string(&mut page).expect("it answers");
    assert!(page.contains("You are logged in"), "{page}");

    // The browser shows the final page before the tokens have arrived.
    loop {
        let shown = status(test);
        if shown.contains("connected, 1 tool") {
            break;
        }
        assert!(!shown.contains("failed"), "{shown}");
    }
}

fn with_login(replies: Vec<Vec<ModelStep>>) -> TestSession {
    let (url, _) = server(LOGIN);
    let config = format!("mode = \"full\"\n[mcp.servers.net]\nurl = {url:?}\n");
    Setup::with_config(&config).start(in_turn(replies))
}

/// The file that contains the tokens.
fn token_file(test: &TestSession) -> std::path::PathBuf {
    let folder = epitome::paths::Paths::below(&test.home).data.join("mcp-logins");
    let files: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
    assert_eq!(files.len(), 1);
    files[0].clone()
}

/// Regression: a server that had lost Epitome's registration was unusable until the user deleted the login's file.
#[test]
fn a_lost_registration_leads_to_a_new_login() {
    let mut test = with_login(Vec::new());
    log_in(&mut test);
    let file = token_file(&test);
    let mut stored: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("it is there")).expect("JSON");
    // The token has expired and must be renewed.
    stored["token_received_at"] = 1.into();
    std::fs::write(&file, stored.to_string()).expect("it is ours");
    test.create(test.environment());
    log_in(&mut test);
}

/// After the login, requests contain the token.
#[test]
fn a_login_shows_a_link_and_the_token_stays_private() {
    let look = vec![ModelStep::Call { name: "mcp".into(), input: json!({"tool": "mcp__net__look"}) }];
    let mut test = with_login(vec![look]);
    log_in(&mut test);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let shown = test.client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    assert_eq!(shown, "seen");
    let file = token_file(&test);
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().expect("it is there").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let log = format!("{:?}{:?}", test.log(), test.client.seen);
    assert!(!log.contains(TOKEN) && !log.contains("sk-refresh"));
}
