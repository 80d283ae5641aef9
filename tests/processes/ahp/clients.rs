//! Clients of AHP: the protocol's own, over an independent WebSocket, with states folded by the protocol's reducers.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use ahp::ahp_types::actions::{ActionEnvelope, StateAction};
use ahp::ahp_types::state::{ChatState, RootState, SessionLifecycle, SessionState, Snapshot, SnapshotState};
use ahp::reducers::{ReduceOutcome, apply_action_to_chat, apply_action_to_root, apply_action_to_session};
use ahp::{
    Client, ClientConfig, ClientError, ClientEvent, ClientEventStream, SubscriptionEvent, Transport,
    TransportError, TransportMessage,
};
use epitome_test_harness::WITHIN;
use epitome_test_harness::user::User;
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

/// Has a character that is encoded in an address.
pub const TOKEN: &str = "a token";

/// `epitome ahp`, ended when dropped.
pub struct Listening {
    child: Child,
    address: String,
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub fn listen(user: &User, arguments: &[&str]) -> Listening {
    let mut command = user.command(&[&["ahp", "--listen", "127.0.0.1:0"], arguments].concat());
    command.env("EPITOME_AHP_TOKEN", TOKEN).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut errors = BufReader::new(child.stderr.take().expect("it is a pipe"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("it prints where it listens");
    let address = line.trim().strip_prefix("listening on ws://").and_then(|at| at.strip_suffix('/'));
    Listening { address: address.unwrap_or_else(|| panic!("{line:?}")).to_owned(), child }
}

pub struct Socket(WebSocketStream<TcpStream>);

/// Connects with these headers; if refused, returns the HTTP status.
pub async fn handshake(at: &Listening, path: &str, headers: &[(&'static str, &str)]) -> Result<Socket, u16> {
    let mut request = format!("ws://{}{path}", at.address).into_client_request().expect("a URL");
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).expect("text"));
    }
    let stream = TcpStream::connect(&at.address).await.expect("it listens");
    match client_async(request, stream).await {
        Ok((socket, _)) => Ok(Socket(socket)),
        Err(Error::Http(response)) => Err(response.status().as_u16()),
        Err(other) => panic!("{other}"),
    }
}

impl Transport for Socket {
    async fn send(&mut self, message: TransportMessage) -> Result<(), TransportError> {
        let TransportMessage::Text(text) = message else { panic!("{message:?}") };
        self.0.send(Message::text(text)).await.map_err(|_| TransportError::Closed)
    }

    async fn recv(&mut self) -> Result<Option<TransportMessage>, TransportError> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => return Ok(Some(TransportMessage::Text(text.to_string()))),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(_) | Err(_)) | None => return Ok(None),
            }
        }
    }
}

/// A connection without a client.
pub async fn admitted(at: &Listening) -> WebSocketStream<TcpStream> {
    admit(at).await.unwrap_or_else(|status| panic!("refused with {status}")).0
}

async fn admit(at: &Listening) -> Result<Socket, u16> {
    handshake(at, &format!("/?tkn={}", TOKEN.replace(' ', "%20")), &[]).await
}

/// A client that is not initialized.
pub async fn connect(at: &Listening, name: &str) -> Result<Client, u16> {
    let socket = admit(at).await?;
    let config = ClientConfig { subscription_buffer: 4096, ..ClientConfig::default() };
    Ok(Client::connect(socket, config).await.unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// A client that follows one session, and has folded each action that it received.
pub struct AhpWindow {
    client: Client,
    events: ClientEventStream,
    name: String,
    pub root: RootState,
    pub session: SessionState,
    pub chat: ChatState,
    channels: [String; 2],
    /// The actions of the chat.
    heard: Vec<ActionEnvelope>,
    last: u64,
    rejections: Vec<String>,
}

/// The state that a client keeps when its socket fails.
pub struct LostWindow {
    name: String,
    root: RootState,
    session: SessionState,
    chat: ChatState,
    channels: [String; 2],
    last: u64,
}

pub struct Reconnected {
    pub window: AhpWindow,
    pub answer: Value,
}

impl AhpWindow {
    pub async fn start(at: &Listening, name: &str) -> AhpWindow {
        let client = connect(at, name).await.expect("it is admitted");
        let (events, versions) = (client.events(), vec!["1.0.0".to_owned()]);
        let root = vec!["ahp-root://".to_owned()];
        let answer = client.initialize(name.to_owned(), versions, root).await.expect("it is initialized");
        let [Snapshot { state: SnapshotState::Root(root), .. }] = &answer.snapshots[..] else {
            panic!("{answer:?}");
        };
        let root = RootState::clone(root);
        let (session, chat) = empty();
        AhpWindow {
            client,
            events,
            name: name.to_owned(),
            root,
            session,
            chat,
            channels: [String::new(), String::new()],
            heard: Vec::new(),
            last: 0,
            rejections: Vec::new(),
        }
    }

    pub async fn call(&self, method: &str, params: Value) -> Value {
        let result = self.client.request::<_, Value>(method, params).await;
        result.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    pub async fn error(&self, method: &str, params: Value) -> i32 {
        match self.client.request::<_, Value>(method, params).await {
            Err(ClientError::Rpc(error)) => error.code,
            other => panic!("{method}: {other:?}"),
        }
    }

    /// Creates a session with an address of this client's choice.
    pub async fn create(&mut self) -> String {
        let address = format!("ahp-session:/of-{}", self.name);
        self.call("createSession", json!({ "channel": address })).await;
        address
    }

    pub async fn list(&self) -> Vec<Value> {
        let listed = self.call("listSessions", json!({ "channel": "ahp-root://" })).await;
        listed["items"].as_array().expect("items").clone()
    }

    /// Follows a session and its chat, once the session is ready. Returns the chat's address.
    pub async fn follow(&mut self, session: &str) -> String {
        let SnapshotState::Session(state) = self.subscribe(session).await.state else { panic!("{session}") };
        self.session = *state;
        self.channels[0] = session.to_owned();
        let chat = self.session.default_chat.clone().expect("a chat");
        let snapshot = self.subscribe(&chat).await;
        let SnapshotState::Chat(state) = snapshot.state else { panic!("{chat}") };
        self.drain();
        self.chat = *state;
        self.channels[1].clone_from(&chat);
        self.last = u64::try_from(snapshot.from_seq).expect("a number");
        self.until_session("ready", |session| session.lifecycle == SessionLifecycle::Ready).await;
        chat
    }

    async fn subscribe(&self, channel: &str) -> Snapshot {
        let (result, _) = self.client.subscribe(channel.to_owned()).await.expect("it can be followed");
        result.snapshot.expect("a state")
    }

    /// The host's state of the chat and its number. Earlier messages are folded by then.
    pub async fn snapshot(&mut self, chat: &str) -> (ChatState, u64) {
        let snapshot = self.subscribe(chat).await;
        self.drain();
        let SnapshotState::Chat(state) = snapshot.state else { panic!("{chat}") };
        (*state, u64::try_from(snapshot.from_seq).expect("a number"))
    }

    pub async fn session_snapshot(&mut self, session: &str) -> SessionState {
        let SnapshotState::Session(state) = self.subscribe(session).await.state else { panic!("{session}") };
        self.drain();
        *state
    }

    /// A state of the chat with the actions that came after this number.
    pub fn fold_after(&self, mut state: ChatState, number: u64) -> ChatState {
        for envelope in self.heard.iter().filter(|envelope| envelope.server_seq > number) {
            apply_action_to_chat(&mut state, &envelope.action);
        }
        state
    }

    pub async fn dispatch(&self, channel: &str, action: Value) {
        let action: StateAction = serde_json::from_value(action).expect("an action");
        self.client.dispatch(channel.to_owned(), action).await.expect("it is connected");
    }

    pub async fn begin(&self, chat: &str, turn: &str, text: &str) {
        let message = json!({ "text": text, "origin": { "kind": "user" } });
        let time = "2026-11-26T10:00:00Z";
        let action =
            json!({ "type": "chat/turnStarted", "turnId": turn, "startedAt": time, "message": message });
        self.dispatch(chat, action).await;
    }

    pub async fn decide(&self, chat: &str, turn: &str, call: &str, approved: bool) {
        let action = json!({
            "type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": call, "approved": approved,
            "confirmed": "user-action",
        });
        self.dispatch(chat, action).await;
    }

    /// Dispatches an action and returns why it was rejected.
    pub async fn rejected(&mut self, channel: &str, action: Value) -> String {
        self.dispatch(channel, action).await;
        loop {
            if let Some(reason) = self.rejections.pop() {
                return reason;
            }
            self.hear("a rejection").await;
        }
    }

    /// The error of a session that could not be created.
    pub async fn failed_session(&mut self, session: &str) -> (SessionLifecycle, String) {
        let SnapshotState::Session(state) = self.subscribe(session).await.state else { panic!("{session}") };
        self.session = *state;
        self.channels[0] = session.to_owned();
        self.until_session("failure", |session| session.creation_error.is_some()).await;
        let error = self.session.creation_error.clone().expect("it failed");
        (self.session.lifecycle.clone(), error.message)
    }

    pub async fn until(&mut self, what: &str, is_so: impl Fn(&ChatState) -> bool) {
        while !is_so(&self.chat) {
            self.hear(what).await;
        }
    }

    pub async fn until_session(&mut self, what: &str, is_so: impl Fn(&SessionState) -> bool) {
        while !is_so(&self.session) {
            self.hear(what).await;
        }
    }

    async fn hear(&mut self, what: &str) {
        let event = tokio::time::timeout(WITHIN, self.events.recv()).await;
        let event =
            event.unwrap_or_else(|_| panic!("{}: no {what} within {WITHIN:?}: {:#?}", self.name, self.chat));
        self.fold(event.unwrap_or_else(|| panic!("{}: no {what}: the connection ended", self.name)));
    }

    /// Folds what has arrived.
    fn drain(&mut self) {
        while let Some(Some(event)) = self.events.recv().now_or_never() {
            self.fold(event);
        }
    }

    fn fold(&mut self, event: ClientEvent) {
        let SubscriptionEvent::Action(envelope) = event.event else { return };
        assert!(envelope.server_seq > self.last, "{}: {envelope:?}", self.name);
        self.last = envelope.server_seq;
        if let Some(reason) = envelope.rejection_reason {
            return self.rejections.push(reason);
        }
        let outcome = if event.channel == self.channels[1] {
            self.heard.push(envelope.clone());
            apply_action_to_chat(&mut self.chat, &envelope.action)
        } else if event.channel == self.channels[0] {
            apply_action_to_session(&mut self.session, &envelope.action)
        } else {
            apply_action_to_root(&mut self.root, &envelope.action)
        };
        assert!(matches!(outcome, ReduceOutcome::Applied | ReduceOutcome::NoOp), "{outcome:?}: {envelope:?}");
    }

    /// The socket fails.
    pub fn lose(self) -> LostWindow {
        let AhpWindow { name, root, session, chat, channels, last, .. } = self;
        LostWindow { name, root, session, chat, channels, last }
    }
}

impl LostWindow {
    pub async fn reconnect(self, at: &Listening) -> Reconnected {
        let client = connect(at, &self.name).await.expect("it is admitted");
        let events = client.events();
        // Without a channel, as VS Code sends it.
        let params = json!({
            "clientId": self.name, "lastSeenServerSeq": self.last,
            "subscriptions": ["ahp-root://", self.channels[0], self.channels[1]],
        });
        let answer: Value = client.request("reconnect", params).await.expect("it is answered");
        let LostWindow { name, root, session, chat, channels, last } = self;
        let (heard, rejections) = (Vec::new(), Vec::new());
        let mut window =
            AhpWindow { client, events, name, root, session, chat, channels, heard, last, rejections };
        for action in answer["actions"].as_array().into_iter().flatten() {
            let envelope: ActionEnvelope = serde_json::from_value(action.clone()).expect("an envelope");
            let channel = envelope.channel.clone();
            window.fold(ClientEvent { channel, event: SubscriptionEvent::Action(envelope) });
        }
        Reconnected { window, answer }
    }
}

/// The states of a client that follows nothing.
fn empty() -> (SessionState, ChatState) {
    let session = json!({
        "provider": "", "title": "", "status": 1, "lifecycle": "creating", "chats": [], "activeClients": [],
    });
    let chat = json!({ "resource": "", "title": "", "status": 1, "modifiedAt": "", "turns": [] });
    (serde_json::from_value(session).expect("a session"), serde_json::from_value(chat).expect("a chat"))
}
