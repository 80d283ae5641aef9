//! Clients over HTTP with server-sent events, in HTTP/1.1 and HTTP/2.

use std::collections::VecDeque;

use bytes::Bytes;
use epitome_scripted_model::ModelStep;
use epitome_test_harness::user::User;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::user;
use super::websocket::{BEARER, Listening, listen};

const CONNECTION: &str = "acp-connection-id";
const SESSION: &str = "acp-session-id";
const JSON: (&str, &str) = ("content-type", "application/json");
const EVENTS: (&str, &str) = ("accept", "text/event-stream");

/// Sends a request on a socket of its own.
async fn send(
    at: &Listening,
    is_http2: bool,
    method: Method,
    headers: &[(&str, &str)],
    body: String,
) -> Response<Incoming> {
    let mut request = Request::builder().method(method).uri(format!("http://{}/acp", at.address));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    let stream = TokioIo::new(TcpStream::connect(&at.address).await.expect("it listens"));
    if is_http2 {
        let (mut sender, driver) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
        tokio::spawn(driver);
        return sender.send_request(request).await.expect("a response");
    }
    let (mut sender, driver) = hyper::client::conn::http1::handshake(stream).await.expect("HTTP/1.1");
    tokio::spawn(driver);
    sender.send_request(request).await.expect("a response")
}

/// A client with an open connection.
struct Client<'a> {
    at: &'a Listening,
    is_http2: bool,
    id: String,
}

impl<'a> Client<'a> {
    async fn open(at: &'a Listening, is_http2: bool) -> Client<'a> {
        let message =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } });
        let opened = send(at, is_http2, Method::POST, &[BEARER, JSON], message.to_string()).await;
        assert_eq!(opened.status(), StatusCode::OK);
        let id = opened.headers()[CONNECTION].to_str().expect("text").to_owned();
        let body = opened.into_body().collect().await.expect("a body").to_bytes();
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!((&answer["id"], &answer["result"]["agentInfo"]["name"]), (&json!(1), &json!("epitome")));
        Client { at, is_http2, id }
    }

    async fn post(&self, session: Option<&str>, id: u64, method: &str, params: Value) -> StatusCode {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let session = session.map(|session| (SESSION, session));
        let headers: Vec<_> = [BEARER, JSON, (CONNECTION, &self.id)].into_iter().chain(session).collect();
        send(self.at, self.is_http2, Method::POST, &headers, message.to_string()).await.status()
    }

    async fn read(&self, session: Option<&str>, last: Option<u64>) -> Result<Events, StatusCode> {
        let session = session.map(|session| (SESSION, session));
        let last = last.map(|last| last.to_string());
        let last = last.as_deref().map(|last| ("last-event-id", last));
        let headers: Vec<_> =
            [BEARER, EVENTS, (CONNECTION, &self.id)].into_iter().chain(session).chain(last).collect();
        let response = send(self.at, self.is_http2, Method::GET, &headers, String::new()).await;
        match response.status() {
            StatusCode::OK => {
                Ok(Events { body: response.into_body(), text: String::new(), events: VecDeque::new() })
            }
            refused => Err(refused),
        }
    }
}

/// The events of a stream.
struct Events {
    body: Incoming,
    text: String,
    events: VecDeque<(u64, Value)>,
}

impl Events {
    /// The next message and its number; `None` at the end of the stream.
    async fn next(&mut self) -> Option<(u64, Value)> {
        while self.events.is_empty() {
            let frame = self.body.frame().await?.expect("a frame");
            self.text.push_str(std::str::from_utf8(frame.data_ref().expect("data")).expect("UTF-8"));
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(id), Some(data)) = (field("id: "), field("data: ")) {
                    let message = serde_json::from_str(data).expect("JSON");
                    self.events.push_back((id.parse().expect("a number"), message));
                }
                self.text = rest.to_owned();
            }
        }
        self.events.pop_front()
    }

    async fn until(&mut self, is_wanted: impl Fn(&Value) -> bool) -> (Vec<(u64, Value)>, Value) {
        let mut before = Vec::new();
        loop {
            let (number, message) = self.next().await.expect("the stream goes on");
            if is_wanted(&message) {
                return (before, message);
            }
            before.push((number, message));
        }
    }
}

fn text_of(message: &Value) -> &str {
    let update = &message["params"]["update"];
    match update["sessionUpdate"] == "agent_message_chunk" {
        true => update["content"]["text"].as_str().unwrap_or_default(),
        false => "",
    }
}

fn opened(user: &User) -> Value {
    json!({ "cwd": user.project(), "mcpServers": [] })
}

#[tokio::test]
async fn requests_are_checked_before_anything_is_opened() {
    let user = user(|_| vec![ModelStep::Text("ok".into())]);
    let at = listen(&user);
    let status = async |method, headers: &[(&str, &str)], body: &str| {
        send(&at, false, method, headers, body.to_owned()).await.status().as_u16()
    };
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#;
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}"#;
    let unknown = (CONNECTION, "unknown");
    assert_eq!(status(Method::POST, &[JSON], initialize).await, 401);
    assert_eq!(
        status(Method::POST, &[BEARER, JSON, ("origin", "https://evil.example")], initialize).await,
        403
    );
    assert_eq!(status(Method::POST, &[BEARER], initialize).await, 415);
    assert_eq!(status(Method::POST, &[BEARER, JSON], "{").await, 400);
    assert_eq!(status(Method::POST, &[BEARER, JSON], &format!("[{initialize}]")).await, 501);
    assert_eq!(status(Method::POST, &[BEARER, JSON], list).await, 400);
    assert_eq!(status(Method::POST, &[BEARER, JSON, unknown], list).await, 404);
    assert_eq!(status(Method::GET, &[BEARER, unknown], "").await, 406);
    assert_eq!(status(Method::GET, &[BEARER, EVENTS], "").await, 400);
    assert_eq!(status(Method::GET, &[BEARER, EVENTS, unknown], "").await, 404);
    assert_eq!(status(Method::DELETE, &[BEARER], "").await, 400);
    assert_eq!(status(Method::DELETE, &[BEARER, unknown], "").await, 404);
    assert_eq!(status(Method::PUT, &[BEARER], "").await, 405);
    let page = [("origin", "https://editor.example")];
    let preflight = send(&at, false, Method::OPTIONS, &page, String::new()).await;
    assert_eq!(preflight.status(), 204);
    assert_eq!(preflight.headers()["access-control-allow-origin"], "https://editor.example");
    let client = Client::open(&at, false).await;
    let prompt = json!({ "sessionId": "s", "prompt": [{ "type": "text", "text": "Count." }] });
    assert_eq!(client.post(None, 2, "session/prompt", prompt.clone()).await, 400, "its session is no header");
    assert_eq!(client.post(Some("t"), 2, "session/prompt", prompt).await, 400, "two different sessions");
}

/// A stream breaks in the middle of a turn, and its client goes on after the last event that it has.
#[tokio::test]
async fn a_session_whose_stream_breaks_goes_on_without_a_gap() {
    for is_http2 in [false, true] {
        let steps = || {
            let numbers = (1..=200).map(|number| ModelStep::Text(format!("{number} ")));
            let (begin, rest): (Vec<_>, Vec<_>) =
                (numbers.clone().take(20).collect(), numbers.skip(20).collect());
            [begin, vec![ModelStep::Wait], rest].concat()
        };
        let user = user(move |_| steps());
        let at = listen(&user);
        let client = Client::open(&at, is_http2).await;
        let mut own = client.read(None, None).await.expect("the stream of the connection");
        assert_eq!(client.read(None, None).await.err(), Some(StatusCode::CONFLICT), "it has a reader");
        assert_eq!(client.post(None, 2, "session/new", opened(&user)).await, StatusCode::ACCEPTED);
        let (_, made) = own.until(|message| message["id"] == 2).await;
        let session = made["result"]["sessionId"].as_str().expect("an id").to_owned();
        let mut events = client.read(Some(&session), None).await.expect("the stream of the session");
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "Count." }] });
        assert_eq!(client.post(Some(&session), 3, "session/prompt", prompt).await, StatusCode::ACCEPTED);
        let (before, last) = events.until(|message| text_of(message).contains("10 ")).await;
        let mut said: String = before.iter().map(|(_, message)| text_of(message)).collect();
        said.push_str(text_of(&last));
        // The last event that was read completely; more may be on the way.
        let received = before.last().map_or(1, |(number, _)| number + 1);
        drop(events);
        user.model().release();
        let mut events = client.read(Some(&session), Some(received)).await.expect("the events are kept");
        let (rest, ended) = events.until(|message| message["id"] == 3).await;
        said.extend(rest.iter().map(|(_, message)| text_of(message)));
        assert_eq!(ended["result"]["stopReason"], "end_turn");
        assert_eq!(said, (1..=200).map(|number| format!("{number} ")).collect::<String>());
        assert_eq!(client.read(Some(&session), Some(1_000_000)).await.err(), Some(StatusCode::CONFLICT));
        // The answer to what is about no open session comes with those of the connection.
        client.post(None, 4, "session/list", json!({})).await;
        let (_, listed) = own.until(|message| message["id"] == 4).await;
        assert_eq!(listed["result"]["sessions"][0]["sessionId"], session);
    }
}

/// The past of a session comes on its stream before the answer, and a deleted connection ends its streams.
#[tokio::test]
async fn a_session_is_loaded_by_another_client() {
    let user = user(|_| vec![ModelStep::Text("Once".into())]);
    let at = listen(&user);
    let first = Client::open(&at, false).await;
    let mut own = first.read(None, None).await.expect("a stream");
    first.post(None, 2, "session/new", opened(&user)).await;
    let (_, made) = own.until(|message| message["id"] == 2).await;
    let session = made["result"]["sessionId"].as_str().expect("an id").to_owned();
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "Say it." }] });
    first.post(Some(&session), 3, "session/prompt", prompt).await;
    // Unread messages are kept.
    let mut events = first.read(Some(&session), None).await.expect("a stream");
    events.until(|message| message["id"] == 3).await;
    let deleted = [BEARER, (CONNECTION, first.id.as_str())];
    assert_eq!(
        send(&at, false, Method::DELETE, &deleted, String::new()).await.status(),
        StatusCode::ACCEPTED
    );
    while own.next().await.is_some() {}
    while events.next().await.is_some() {}
    let second = Client::open(&at, false).await;
    let mut events =
        second.read(Some(&session), None).await.expect("it is opened before the session is loaded");
    let mut params = opened(&user);
    params["sessionId"] = json!(session);
    assert_eq!(second.post(Some(&session), 2, "session/load", params.clone()).await, StatusCode::ACCEPTED);
    let (past, _) = events.until(|message| text_of(message) == "Once").await;
    assert!(past.iter().any(|(_, message)| message.to_string().contains("Say it.")), "{past:?}");
    let (_, loaded) = events.until(|message| message["id"] == 2).await;
    assert!(loaded["result"].is_object(), "{loaded}");
    // The session's stream has no reader: the answer comes on the other one, and the past waits.
    let third = Client::open(&at, false).await;
    let mut own = third.read(None, None).await.expect("a stream");
    third.post(Some(&session), 2, "session/load", params).await;
    own.until(|message| message["id"] == 2).await;
    let mut events = third.read(Some(&session), None).await.expect("a stream");
    events.until(|message| text_of(message) == "Once").await;
}
