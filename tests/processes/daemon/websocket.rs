//! Clients over WebSocket, implemented with an independent library.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use epitome_scripted_model::ModelStep;
use epitome_test_harness::user::User;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::user;

pub const TOKEN: &str = "a-token-of-the-test";

/// `epitome acp --listen`, ended when dropped.
pub struct Listening {
    child: Child,
    pub address: String,
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn listen(user: &User) -> Listening {
    let mut command =
        user.command(&["acp", "--listen", "127.0.0.1:0", "--allow-origin", "https://editor.example"]);
    command.env("EPITOME_ACP_TOKEN", TOKEN).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut errors = BufReader::new(child.stderr.take().expect("it is a pipe"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("it says where it listens");
    let address = line.trim().strip_prefix("listening on ws://").and_then(|at| at.strip_suffix("/acp"));
    Listening { address: address.unwrap_or_else(|| panic!("{line:?}")).to_owned(), child }
}

pub struct Socket {
    socket: WebSocketStream<TcpStream>,
    id: String,
    /// Number of this client's frames that the agent acknowledged.
    arrived: u64,
    /// Number of received frames.
    received: u64,
}

/// Connects with these headers; if refused, returns the HTTP status.
pub async fn connect(address: &str, path: &str, headers: &[(&'static str, &str)]) -> Result<Socket, u16> {
    let mut request = format!("ws://{address}{path}").into_client_request().expect("a URL");
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).expect("text"));
    }
    let stream = TcpStream::connect(address).await.expect("it listens");
    match client_async(request, stream).await {
        Ok((socket, response)) => {
            let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
            let arrived = header("acp-received").parse().expect("a number");
            Ok(Socket { socket, id: header("acp-connection-id"), arrived, received: 0 })
        }
        Err(Error::Http(response)) => Err(response.status().as_u16()),
        Err(other) => panic!("{other}"),
    }
}

pub const BEARER: (&str, &str) = ("authorization", "Bearer a-token-of-the-test");

impl Socket {
    pub async fn send(&mut self, message: Value) {
        self.socket.send(Message::from(message.to_string())).await.expect("it is connected");
    }

    async fn next(&mut self) -> Value {
        self.try_next().await.expect("it is connected")
    }

    /// The next message; `None` if the server has ended the connection.
    pub async fn try_next(&mut self) -> Option<Value> {
        loop {
            match self.socket.next().await?.ok()? {
                Message::Text(text) => {
                    self.received += 1;
                    return Some(serde_json::from_str(text.as_str()).expect("one message in each frame"));
                }
                Message::Ping(_) | Message::Pong(_) => {}
                Message::Close(_) => return None,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Reads up to the first matching message, which is the last one returned.
    pub async fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut seen = Vec::new();
        loop {
            seen.push(self.next().await);
            if seen.last().is_some_and(&is_it) {
                return seen;
            }
        }
    }

    pub async fn request(&mut self, id: u64, method: &str, params: Value) {
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
    }

    /// Sends a request that is refused, and returns why.
    pub async fn refusal(&mut self, id: u64, method: &str, params: Value) -> String {
        self.request(id, method, params).await;
        let answer = self.until(|message| message["id"] == id).await.pop().expect("the answer");
        answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{method}: {answer}")).to_owned()
    }

    /// Sends a request and returns its result; earlier messages are skipped.
    pub async fn call(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.request(id, method, params).await;
        self.answer(id).await
    }

    pub async fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.next().await;
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{message}");
                return message["result"].clone();
            }
        }
    }

    async fn session(&mut self, user: &User) -> String {
        self.call(1, "initialize", json!({ "protocolVersion": 1 })).await;
        let opened = self.call(2, "session/new", json!({ "cwd": user.project(), "mcpServers": [] })).await;
        opened["sessionId"].as_str().expect("an id").to_owned()
    }

    async fn prompt(&mut self, id: u64, session: &str) {
        let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "Count." }] });
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params })).await;
    }
}

fn text_of(message: &Value) -> Option<&str> {
    let update = &message["params"]["update"];
    (update["sessionUpdate"] == "agent_message_chunk").then(|| update["content"]["text"].as_str())?
}

#[tokio::test]
async fn a_client_needs_the_token_and_pages_need_permission() {
    let user = user(|_| vec![ModelStep::Text("ok".into())]);
    let at = listen(&user);
    let origin = |origin| ("origin", origin);
    assert_eq!(connect(&at.address, "/acp", &[]).await.err(), Some(401));
    assert_eq!(connect(&at.address, "/acp", &[("authorization", "Bearer wrong")]).await.err(), Some(401));
    assert_eq!(connect(&at.address, "/other", &[BEARER]).await.err(), Some(404));
    assert_eq!(
        connect(&at.address, "/acp", &[BEARER, origin("https://evil.example")]).await.err(),
        Some(403)
    );
    let unknown = [BEARER, ("acp-connection-id", "unknown"), ("acp-received", "0")];
    assert_eq!(connect(&at.address, "/acp", &unknown).await.err(), Some(404));
    let mut socket =
        connect(&at.address, "/acp", &[BEARER, origin("https://editor.example")]).await.expect("admitted");
    assert!(!socket.id.is_empty());
    let offered = socket.call(1, "initialize", json!({ "protocolVersion": 1 })).await;
    assert_eq!(offered["agentInfo"]["name"], "epitome");
}

/// Regression: pages of an allowed origin could never connect, because browsers let no page set the `Authorization` of a
/// WebSocket. They offer the token as a subprotocol, and need one of the offered subprotocols in the response.
#[tokio::test]
async fn a_page_offers_its_token_as_a_subprotocol() {
    let user = user(|_| vec![ModelStep::Text("ok".into())]);
    let at = listen(&user);
    let origin = ("origin", "https://editor.example");
    let offering = |protocols| [origin, ("sec-websocket-protocol", protocols)];
    let wrong = connect(&at.address, "/acp", &offering("acp, bearer.wrong")).await;
    assert_eq!(wrong.err(), Some(401));
    // The library refuses a response that selects none.
    let mut socket =
        connect(&at.address, "/acp", &offering("acp, bearer.a-token-of-the-test")).await.expect("admitted");
    let offered = socket.call(1, "initialize", json!({ "protocolVersion": 1 })).await;
    assert_eq!(offered["agentInfo"]["name"], "epitome");
}

/// Regression: any local process could open sockets that stayed silent, until the server had no descriptors left.
#[tokio::test]
async fn silent_sockets_are_closed_and_block_no_others() {
    let user = user(|_| vec![ModelStep::Text("ok".into())]);
    let at = listen(&user);
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(&at.address).await.expect("it listens"));
    }
    let mut socket = connect(&at.address, "/acp", &[BEARER]).await.expect("admitted");
    socket.call(1, "initialize", json!({ "protocolVersion": 1 })).await;
    // They are given ten seconds for their first bytes.
    for socket in &mut silent {
        assert!(matches!(socket.read(&mut [0]).await, Ok(0) | Err(_)));
    }
}

#[test]
fn it_listens_on_loopback_only() {
    let user = User::new();
    let ran = user.run(&["acp", "--listen", "0.0.0.0:0"]).exited(1);
    assert!(ran.err.contains("not a loopback address"), "{}", ran.err);
}

#[tokio::test]
async fn a_message_may_be_spread_over_lines_within_its_frame() {
    let user = user(|_| vec![ModelStep::Text("ok".into())]);
    let at = listen(&user);
    let mut socket = connect(&at.address, "/acp", &[BEARER]).await.expect("admitted");
    let message =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } });
    let pretty = serde_json::to_string_pretty(&message).expect("JSON");
    socket.socket.send(Message::from(pretty)).await.expect("it is connected");
    assert_eq!(socket.answer(1).await["protocolVersion"], 1);
}

/// A client's network may fail at any time; its turn continues.
#[tokio::test]
async fn a_client_that_lost_its_socket_goes_on_without_a_gap() {
    let steps = || {
        let numbers = (1..=200).map(|number| ModelStep::Text(format!("{number} ")));
        let (begin, rest): (Vec<_>, Vec<_>) =
            (numbers.clone().take(20).collect(), numbers.skip(20).collect());
        [begin, vec![ModelStep::Wait], rest].concat()
    };
    let user = user(move |_| steps());
    let at = listen(&user);
    let mut socket = connect(&at.address, "/acp", &[BEARER]).await.expect("admitted");
    let session = socket.session(&user).await;
    socket.prompt(3, &session).await;
    let mut said = String::new();
    while !said.contains("20 ") {
        said.push_str(text_of(&socket.next().await).unwrap_or_default());
    }
    let (id, received) = (socket.id.clone(), socket.received.to_string());
    // Without a close frame, as when a network fails.
    drop(socket);
    user.model().release();
    let back = [BEARER, ("acp-connection-id", id.as_str()), ("acp-received", received.as_str())];
    let mut socket = connect(&at.address, "/acp", &back).await.expect("the connection is kept");
    assert_eq!((socket.id.as_str(), socket.arrived), (id.as_str(), 3));
    let ended = loop {
        let message = socket.next().await;
        said.push_str(text_of(&message).unwrap_or_default());
        if message["id"] == 3 {
            break message["result"]["stopReason"].clone();
        }
    };
    assert_eq!(ended, "end_turn");
    assert_eq!(said, (1..=200).map(|number| format!("{number} ")).collect::<String>());
    // The connection works as before.
    let listed = socket.call(4, "session/list", json!({})).await;
    assert_eq!(listed["sessions"][0]["sessionId"], session);
}

/// A client that closes its socket does not reconnect: its turn is canceled, and another client can load the session.
#[tokio::test]
async fn a_closed_connection_ends_and_its_session_can_be_loaded() {
    let user = user(|_| vec![ModelStep::Text("Once".into()), ModelStep::Hang]);
    let at = listen(&user);
    let mut socket = connect(&at.address, "/acp", &[BEARER]).await.expect("admitted");
    let session = socket.session(&user).await;
    socket.prompt(3, &session).await;
    while text_of(&socket.next().await).is_none() {}
    let id = socket.id.clone();
    socket.socket.close(None).await.expect("it is connected");
    // The close handshake is complete when the server has answered.
    while let Some(Ok(_)) = socket.socket.next().await {}
    let back = [BEARER, ("acp-connection-id", id.as_str()), ("acp-received", "0")];
    assert!(matches!(connect(&at.address, "/acp", &back).await.err(), Some(404 | 409)));
    let mut socket = connect(&at.address, "/acp", &[BEARER]).await.expect("admitted");
    socket.call(1, "initialize", json!({ "protocolVersion": 1 })).await;
    let params = json!({ "sessionId": session, "cwd": user.project(), "mcpServers": [] });
    socket.send(json!({ "jsonrpc": "2.0", "id": 2, "method": "session/load", "params": params })).await;
    let mut said = String::new();
    loop {
        let message = socket.next().await;
        said.push_str(text_of(&message).unwrap_or_default());
        if message["id"] == 2 {
            break;
        }
    }
    assert_eq!(said, "Once");
}
