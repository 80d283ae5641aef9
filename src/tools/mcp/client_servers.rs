//! Servers that a client provides over its own connection (MCP over ACP). Each request is one message to the client,
//! with its answer; there is no connection besides the client's. So a client that opens the session again can replace
//! one that has gone.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::received;

/// Messages of the client that are queued for one server.
const QUEUED_MAX: usize = 256;
/// The part of the queue that notifications leave for answers. More requests than this are not sent at a time.
const REQUESTS_MAX: usize = 64;

/// JSON-RPC's code for a fault of the other side.
const INTERNAL_ERROR: i32 = -32603;

/// A client's connection, as the way to the servers that it provides.
pub trait ClientMcp: Send + Sync {
    /// Sends a request to a server; the answer, and notifications that belong to it, arrive in `events`. Must not block.
    fn request(
        &self,
        server: &str,
        request: &str,
        method: &str,
        params: Option<Value>,
        events: mpsc::Sender<FromClient>,
    ) -> Result<(), ClientMcpFault>;

    /// Cancels a request. Its answer, if one arrives, is ignored.
    fn cancel(&self, server: &str, request: &str);

    /// Whether it is still connected.
    fn is_open(&self) -> bool;
}

/// A message of a client for one of its servers.
#[derive(Debug)]
pub enum FromClient {
    /// The answer to a request: the server's result or error in an object.
    Answer {
        request: String,
        outcome: Result<Value, ClientMcpFault>,
    },
    Notification {
        method: String,
        params: Option<Value>,
    },
}

/// Why a request to a client's server was not answered. Its text completes a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientMcpFault {
    /// The client that provided the server is gone.
    #[error("the editor that provides it has disconnected")]
    Disconnected,
    /// No client that is connected provides the server.
    #[error("the editor does not provide it any more")]
    NotProvided,
    /// Too many requests wait for this server.
    #[error("{REQUESTS_MAX} requests to it wait already")]
    ServerBusy,
    /// Too many requests wait for the client.
    #[error("too many requests wait for the editor already")]
    ClientBusy,
    /// The client's own error.
    #[error("the editor could not pass it on: {0}")]
    NotPassedOn(String),
    #[error("its answer can't be read")]
    Unreadable,
    #[error("its answer is empty")]
    Empty,
}

impl FromClient {
    /// Passes a message on. Answers always find room; notifications are dropped while there are too many messages.
    pub fn send(self, events: &mpsc::Sender<FromClient>) {
        let is_answer = matches!(self, FromClient::Answer { .. });
        if is_answer || events.capacity() > REQUESTS_MAX {
            // It fails only if the session has ended.
            let _ = events.try_send(self);
        }
    }
}

/// The clients that provide a session's servers. The connected one that opened the session last is asked.
#[derive(Clone, Default)]
pub struct SharedClient(Arc<Mutex<Vec<Arc<dyn ClientMcp>>>>);

impl SharedClient {
    /// Adds a client that has opened the session.
    pub fn add(&self, client: Arc<dyn ClientMcp>) {
        let mut clients = self.0.lock();
        clients.retain(|known| known.is_open() && !Arc::ptr_eq(known, &client));
        clients.push(client);
    }

    pub fn get(&self) -> Option<Arc<dyn ClientMcp>> {
        let clients = self.0.lock();
        clients.iter().rev().find(|client| client.is_open()).cloned()
    }
}

/// The SDK's view of one server.
pub(super) struct ClientTransport {
    server: String,
    client: SharedClient,
    /// Distinguishes the requests of this session from those of others to the same server.
    prefix: String,
    /// Number of requests without an answer.
    open: usize,
    events: mpsc::Sender<FromClient>,
    received: mpsc::Receiver<FromClient>,
}

impl ClientTransport {
    pub fn new(server: String, client: SharedClient) -> ClientTransport {
        let (events, received) = mpsc::channel(QUEUED_MAX);
        ClientTransport {
            server,
            client,
            prefix: format!("{:016x}", fastrand::u64(..)),
            open: 0,
            events,
            received,
        }
    }

    fn ask(&mut self, id: &Value, method: &str, params: Option<Value>) {
        let request = format!("{}.{id}", self.prefix);
        let sent = match self.client.get() {
            _ if self.open >= REQUESTS_MAX => Err(ClientMcpFault::ServerBusy),
            None => Err(ClientMcpFault::NotProvided),
            Some(client) => client.request(&self.server, &request, method, params, self.events.clone()),
        };
        self.open += 1;
        if let Err(why) = sent {
            FromClient::Answer { request, outcome: Err(why) }.send(&self.events);
        }
    }

    /// The SDK's message for a message of the client; `None` if it belongs to no request of this session.
    fn read(&mut self, event: FromClient) -> Option<RxJsonRpcMessage<RoleClient>> {
        let message = match event {
            FromClient::Notification { method, params } => {
                json!({ "jsonrpc": "2.0", "method": method, "params": params.unwrap_or_else(|| json!({})) })
            }
            FromClient::Answer { request, outcome } => {
                let id: Value =
                    serde_json::from_str(request.strip_prefix(&self.prefix)?.strip_prefix('.')?).ok()?;
                self.open = self.open.saturating_sub(1);
                let failed = |why: &str| ("error", json!({ "code": INTERNAL_ERROR, "message": why }));
                let (kind, content) = match outcome {
                    Ok(Value::Object(mut outcome)) => {
                        match (outcome.remove("result"), outcome.remove("error")) {
                            (Some(result), _) => ("result", result),
                            (None, Some(error)) => ("error", error),
                            (None, None) => failed("the answer has no result"),
                        }
                    }
                    Ok(_) => failed("the answer is not an object"),
                    Err(why) => failed(&why.to_string()),
                };
                json!({ "jsonrpc": "2.0", "id": id, kind: content })
            }
        };
        match serde_json::from_value::<ServerJsonRpcMessage>(received::plain(message)) {
            Ok(message) => Some(message),
            Err(error) => {
                tracing::info!(server = self.server, %error, "a message of a client's MCP server can't be read");
                None
            }
        }
    }
}

impl Transport<RoleClient> for ClientTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let sent = serde_json::to_value(&item).map_err(io::Error::other).map(|mut message| {
            let (id, method, params) =
                (message["id"].take(), message["method"].take(), message.get_mut("params").map(Value::take));
            match (method.as_str(), id) {
                (Some("notifications/cancelled"), Value::Null) => {
                    let request = format!("{}.{}", self.prefix, params.unwrap_or_default()["requestId"]);
                    self.open = self.open.saturating_sub(1);
                    if let Some(client) = self.client.get() {
                        client.cancel(&self.server, &request);
                    }
                }
                // Other notifications, and answers: servers of this version of the protocol expect neither.
                (None, _) | (Some(_), Value::Null) => {}
                (Some(method), id) => self.ask(&id, method, params.filter(|params| !params.is_null())),
            }
        });
        std::future::ready(sent)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let event = self.received.recv().await?;
            if let Some(message) = self.read(event) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Recording(Mutex<Vec<String>>);

    impl ClientMcp for Recording {
        fn request(
            &self,
            server: &str,
            request: &str,
            method: &str,
            params: Option<Value>,
            events: mpsc::Sender<FromClient>,
        ) -> Result<(), ClientMcpFault> {
            let params = params.unwrap_or_default();
            self.0.lock().push(format!("{server} {method} {params}"));
            let outcome = Ok(json!({ "result": { "tools": [] } }));
            FromClient::Notification { method: "notifications/message".into(), params: None }.send(&events);
            FromClient::Answer { request: request.to_owned(), outcome }.send(&events);
            Ok(())
        }

        fn cancel(&self, _: &str, _: &str) {}

        fn is_open(&self) -> bool {
            true
        }
    }

    fn list(id: i64) -> TxJsonRpcMessage<RoleClient> {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list", "params": {} });
        serde_json::from_value(request).expect("a request")
    }

    #[tokio::test]
    async fn requests_go_to_the_client_that_is_there_now() {
        let shared = SharedClient::default();
        let mut transport = ClientTransport::new("ide".into(), shared.clone());
        transport.send(list(1)).await.expect("it never fails");
        let refused = serde_json::to_value(transport.receive().await.expect("an answer")).expect("JSON");
        assert_eq!(refused["id"], 1);
        assert_eq!(refused["error"]["message"], "the editor does not provide it any more");
        let client = Arc::new(Recording(Mutex::default()));
        shared.add(client.clone());
        transport.send(list(2)).await.expect("it never fails");
        let answer = loop {
            let message = serde_json::to_value(transport.receive().await.expect("a message")).expect("JSON");
            if message["id"] == 2 {
                break message;
            }
        };
        assert_eq!(answer["result"]["tools"], json!([]));
        assert_eq!(*client.0.lock(), ["ide tools/list {}"]);
    }

    /// Regression: a second window of the same editor took the place of the first, and when it left, the first one's
    /// servers could not be called any more.
    #[test]
    fn a_client_that_leaves_makes_way_for_the_one_before_it() {
        struct Window(AtomicBool);
        impl ClientMcp for Window {
            fn request(
                &self,
                _: &str,
                _: &str,
                _: &str,
                _: Option<Value>,
                _: mpsc::Sender<FromClient>,
            ) -> Result<(), ClientMcpFault> {
                Ok(())
            }
            fn cancel(&self, _: &str, _: &str) {}
            fn is_open(&self) -> bool {
                self.0.load(Ordering::Relaxed)
            }
        }
        let windows = [1, 2].map(|_| Arc::new(Window(AtomicBool::new(true))));
        let shared = SharedClient::default();
        windows.iter().for_each(|window| shared.add(window.clone()));
        let is_asked = |window: &Arc<Window>| {
            let window: Arc<dyn ClientMcp> = window.clone();
            shared.get().is_some_and(|asked| Arc::ptr_eq(&asked, &window))
        };
        assert!(is_asked(&windows[1]));
        windows[1].0.store(false, Ordering::Relaxed);
        assert!(is_asked(&windows[0]));
        windows[0].0.store(false, Ordering::Relaxed);
        assert!(shared.get().is_none());
    }
}
