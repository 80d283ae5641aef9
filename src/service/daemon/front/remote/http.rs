//! A connection over HTTP: `POST` carries messages of the client, and server-sent events carry those of the agent, on
//! one stream for the connection and one for each session (the protocol's RFD on streamable HTTP).
//!
//! Each event has a number as its id. A client whose stream broke continues with `Last-Event-ID`.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::connection::{Carrier, ClientStream, NoStream, RemoteConnection};
use super::{CONNECTION_HEADER, RemoteClients, RemoteResponse, SESSION_HEADER, full, text, value};
use crate::front::access::AdmittedToken;
use epitome_acp::connection::LINE_BYTES_MAX;

/// Time limit for the body of a request.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// Time limit for the answer to `initialize`.
const INITIALIZE_TIME_MAX: Duration = Duration::from_secs(30);

/// Interval of keep-alives on streams, by which a client that has gone is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Methods whose requests name their session in a header too. Others may.
const ABOUT_A_SESSION: [&str; 9] = [
    "session/prompt",
    "session/cancel",
    "session/close",
    "session/delete",
    "session/fork",
    "session/load",
    "session/resume",
    "session/set_config_option",
    "session/set_mode",
];

/// The parts of a message that decide about its stream.
#[derive(Deserialize)]
struct MessageHead<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionField {
    session_id: Option<String>,
}

/// `update` of a notification, as far as it announces a subagent.
#[derive(Deserialize)]
struct AnnouncedUpdate {
    update: AnnouncedSubagent,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnnouncedSubagent {
    session_update: String,
    session_id: Option<String>,
}

fn session_in(part: Option<&RawValue>) -> Option<String> {
    let field: SessionField = serde_json::from_str(part?.get()).ok()?;
    field.session_id
}

/// Determines the stream of each message of a connection.
#[derive(Default)]
pub struct HttpRoutes {
    /// The streams of the answers to the client's requests, by the id's JSON.
    answers: HashMap<String, AnswerRoute>,
    /// Subagents, whose messages are sent with those of the session that has started them.
    agents: HashMap<String, String>,
    /// The request that waits for the answer to `initialize`.
    initialize: Option<oneshot::Sender<Utf8Bytes>>,
}

enum AnswerRoute {
    /// The answer to the request itself.
    Initialize,
    Connection,
    Session(String),
}

/// The destination of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct RoutedMessage {
    pub stream: ClientStream,
    /// A session that the message opens.
    pub opens: Option<String>,
}

impl HttpRoutes {
    /// Routes a message of the agent. `None` if it is the answer to `initialize`, which is delivered.
    pub fn route(&mut self, message: &Utf8Bytes, is_known: impl Fn(&str) -> bool) -> Option<RoutedMessage> {
        let to = |stream| Some(RoutedMessage { stream, opens: None });
        let Ok(head) = serde_json::from_str::<MessageHead<'_>>(message.as_str()) else {
            return to(ClientStream::Connection);
        };
        if head.method.is_some() {
            let Some(session) = session_in(head.params) else { return to(ClientStream::Connection) };
            let root = self.agents.get(&session).cloned().unwrap_or(session);
            if let Some(AnnouncedUpdate { update }) =
                head.params.and_then(|params| serde_json::from_str::<AnnouncedUpdate>(params.get()).ok())
                && update.session_update == "subagent_update"
                && let Some(agent) = update.session_id
            {
                self.agents.insert(agent, root.clone());
            }
            return to(if is_known(&root) { ClientStream::Session(root) } else { ClientStream::Connection });
        }
        let answer = head.id.and_then(|id| self.answers.remove(id.get()));
        match answer {
            Some(AnswerRoute::Initialize) => {
                // The request may have been given up.
                drop(self.initialize.take()?.send(message.clone()));
                None
            }
            Some(AnswerRoute::Session(session)) => to(ClientStream::Session(session)),
            Some(AnswerRoute::Connection) | None => {
                let stream = ClientStream::Connection;
                Some(RoutedMessage { stream, opens: session_in(head.result) })
            }
        }
    }
}

/// A message of a client, ready to be passed on.
struct ClientMessage {
    text: String,
    /// The id's JSON, if the message is a request.
    id: Option<String>,
    method: Option<String>,
    session: Option<String>,
}

/// Takes a message of the client.
pub async fn post(
    clients: &Arc<RemoteClients>,
    request: Request<Incoming>,
    token: AdmittedToken,
) -> RemoteResponse {
    let (head, body) = request.into_parts();
    let message = match read(&head.headers, body).await {
        Ok(message) => message,
        Err(refused) => return *refused,
    };
    if !head.headers.contains_key(&CONNECTION_HEADER) {
        return initialize(clients, message, token).await;
    }
    let connection = match clients.find(&head.headers, &token) {
        Ok(connection) => connection,
        Err(refused) => return *refused,
    };
    let session = message.session.clone();
    let session = session.filter(|session| match message.method.as_deref() {
        // The answer follows the replay, on the same stream if it has a reader.
        Some("session/load" | "session/resume") => connection.know_session(session),
        Some("session/new" | "session/fork") => false,
        Some(_) | None => connection.knows_session(session),
    });
    let routed = connection.with_routes(|routes| {
        if let Some(id) = &message.id {
            let route = session.map_or(AnswerRoute::Connection, AnswerRoute::Session);
            routes.answers.insert(id.clone(), route);
        }
    });
    if routed.is_none() {
        return text(StatusCode::BAD_REQUEST, "This connection is a WebSocket");
    }
    match connection.forward(&message.text, || true).await {
        Ok(()) => text(StatusCode::ACCEPTED, ""),
        Err(_) => {
            text(StatusCode::NOT_FOUND, "The connection has ended; open a new one and load its sessions")
        }
    }
}

/// Reads and checks a message.
async fn read(headers: &HeaderMap, body: Incoming) -> Result<ClientMessage, Box<RemoteResponse>> {
    let refused = |status, why: &str| Err(Box::new(text(status, why)));
    let is_json =
        value(headers, &header::CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json"));
    if !is_json {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json");
    }
    let bytes = collect(body, BODY_TIME_MAX).await?;
    let Ok(message) = String::from_utf8(bytes.into()) else {
        return refused(StatusCode::BAD_REQUEST, "The message is not UTF-8");
    };
    if message.trim_start().starts_with('[') {
        return refused(
            StatusCode::NOT_IMPLEMENTED,
            "Send one message in each request: batches are not supported",
        );
    }
    let Ok(head) = serde_json::from_str::<MessageHead<'_>>(&message) else {
        return refused(StatusCode::BAD_REQUEST, "The message is not a JSON object of JSON-RPC");
    };
    let named = value(headers, &SESSION_HEADER);
    let session = session_in(head.params);
    let needs_header = head.method.as_deref().is_some_and(|method| ABOUT_A_SESSION.contains(&method));
    match (named, &session) {
        (None, _) if needs_header => {
            return refused(StatusCode::BAD_REQUEST, "The header Acp-Session-Id is missing");
        }
        (Some(named), Some(session)) if named != session => {
            return refused(StatusCode::BAD_REQUEST, "Acp-Session-Id and `sessionId` differ");
        }
        _ => {}
    }
    let id = head.id.filter(|_| head.method.is_some()).map(|id| id.get().to_owned());
    let method = head.method;
    Ok(ClientMessage { id, method, session, text: message })
}

/// Reads the body of a request within this time.
async fn collect(body: Incoming, time: Duration) -> Result<Bytes, Box<RemoteResponse>> {
    let refused = |status, why: &str| Err(Box::new(text(status, why)));
    match tokio::time::timeout(time, Limited::new(body, LINE_BYTES_MAX - 1).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            refused(StatusCode::PAYLOAD_TOO_LARGE, "The message is longer than 64 MiB")
        }
        Ok(Err(_)) => refused(StatusCode::BAD_REQUEST, "The message did not arrive whole"),
        Err(_) => refused(StatusCode::REQUEST_TIMEOUT, "The message took too long to arrive"),
    }
}

/// Opens a connection with its first message, and answers with the response to it.
async fn initialize(
    clients: &Arc<RemoteClients>,
    message: ClientMessage,
    token: AdmittedToken,
) -> RemoteResponse {
    let (Some(id), Some("initialize")) = (message.id, message.method.as_deref()) else {
        let why = "Only `initialize` opens a connection; all other messages name theirs in Acp-Connection-Id";
        return text(StatusCode::BAD_REQUEST, why);
    };
    let (sender, answered) = oneshot::channel();
    let answers = HashMap::from([(id, AnswerRoute::Initialize)]);
    let routes = HttpRoutes { answers, initialize: Some(sender), ..HttpRoutes::default() };
    let connection = match clients.open(Carrier::Http(routes), token, None).await {
        Ok(connection) => connection,
        Err(error) => {
            tracing::warn!(%error, "a connection is not served");
            return text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string());
        }
    };
    let ends = EndUnlessKept(Some(connection.clone()));
    let answer = async {
        connection.forward(&message.text, || true).await.ok()?;
        answered.await.ok()
    };
    let Ok(Some(answer)) = tokio::time::timeout(INITIALIZE_TIME_MAX, answer).await else {
        return text(StatusCode::GATEWAY_TIMEOUT, "The agent did not answer");
    };
    let is_opened =
        serde_json::from_str::<MessageHead<'_>>(answer.as_str()).is_ok_and(|head| head.result.is_some());
    let mut response = Response::new(full(Bytes::from(answer.to_string())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if is_opened {
        ends.keep();
        tokio::spawn(connection.clone().end_unless_used());
        let id = HeaderValue::from_str(&connection.id).unwrap_or(HeaderValue::from_static(""));
        response.headers_mut().insert(CONNECTION_HEADER, id);
    }
    response
}

/// Ends a connection whose client has gone or was refused during `initialize`.
struct EndUnlessKept(Option<Arc<RemoteConnection>>);

impl EndUnlessKept {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for EndUnlessKept {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.end();
        }
    }
}

/// Sends the messages of a stream as events.
pub fn events(clients: &RemoteClients, request: &Request<Incoming>, token: &AdmittedToken) -> RemoteResponse {
    let headers = request.headers();
    let is_accepted =
        value(headers, &header::ACCEPT).is_some_and(|accepted| accepted.contains("text/event-stream"));
    if !is_accepted {
        return text(StatusCode::NOT_ACCEPTABLE, "Accept must name text/event-stream");
    }
    let connection = match clients.find(headers, token) {
        Ok(connection) => connection,
        Err(refused) => return *refused,
    };
    if connection.with_routes(|_| ()).is_none() {
        return text(StatusCode::BAD_REQUEST, "This connection is a WebSocket");
    }
    let session = value(headers, &SESSION_HEADER).map(|session| ClientStream::Session(session.to_owned()));
    let last = value(headers, &HeaderName::from_static("last-event-id"));
    let received = match last.map(str::parse::<u64>) {
        None => None,
        Some(Ok(received)) => Some(received),
        Some(Err(_)) => return text(StatusCode::BAD_REQUEST, "Last-Event-ID is not the id of an event"),
    };
    let reader = match connection.read(session.unwrap_or(ClientStream::Connection), received) {
        Ok(reader) => reader,
        Err(NoStream::Busy) => return text(StatusCode::CONFLICT, "This stream is being read already"),
        Err(NoStream::Gone) => {
            return text(StatusCode::CONFLICT, "The events after this one are gone; load the session again");
        }
        Err(NoStream::Unknown) => return text(StatusCode::NOT_FOUND, "The connection has ended"),
        Err(NoStream::TooMany) => {
            return text(
                StatusCode::TOO_MANY_REQUESTS,
                "This connection reads as many streams as it can; end one, or open another connection",
            );
        }
    };
    let frames = stream::unfold(reader, |reader| async move {
        let event = match tokio::time::timeout(HEARTBEAT, reader.next()).await {
            // JSON on one line: it contains no line breaks.
            Ok(Some((number, message))) => format!("id: {number}\ndata: {message}\n\n"),
            Ok(None) => return None,
            Err(_) => ":\n\n".to_owned(),
        };
        Some((Ok::<_, io::Error>(Frame::data(Bytes::from(event))), reader))
    });
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Ends a connection.
pub fn end(clients: &RemoteClients, request: &Request<Incoming>, token: &AdmittedToken) -> RemoteResponse {
    match clients.find(request.headers(), token) {
        Ok(connection) => {
            connection.end();
            text(StatusCode::ACCEPTED, "")
        }
        Err(refused) => *refused,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn route(routes: &mut HttpRoutes, message: &Value, known: &[&str]) -> Option<RoutedMessage> {
        routes.route(&Utf8Bytes::from(message.to_string()), |session| known.contains(&session))
    }

    fn session(id: &str) -> ClientStream {
        ClientStream::Session(id.to_owned())
    }

    #[test]
    fn messages_go_to_the_streams_of_their_sessions() {
        let mut routes = HttpRoutes::default();
        let update = |session: &str, update: Value| json!({ "method": "session/update", "params": { "sessionId": session, "update": update } });
        let text = json!({ "sessionUpdate": "agent_message_chunk" });
        let begun = json!({ "sessionUpdate": "subagent_update", "sessionId": "child" });
        let known = ["s"];
        let stream_of =
            |routes: &mut HttpRoutes, message: &Value| route(routes, message, &known).expect("routed").stream;
        assert_eq!(stream_of(&mut routes, &update("s", text.clone())), session("s"));
        // The stream of a subagent would have no reader, as no request has opened it.
        assert_eq!(stream_of(&mut routes, &update("child", text.clone())), ClientStream::Connection);
        assert_eq!(stream_of(&mut routes, &update("s", begun)), session("s"));
        assert_eq!(stream_of(&mut routes, &update("child", text)), session("s"));
        assert_eq!(
            stream_of(&mut routes, &json!({ "method": "auth/status_update", "params": {} })),
            ClientStream::Connection
        );
    }

    #[test]
    fn answers_go_where_their_requests_belong() {
        let mut routes = HttpRoutes::default();
        routes.answers.insert("1".into(), AnswerRoute::Connection);
        routes.answers.insert("2".into(), AnswerRoute::Session("s".into()));
        let opened = json!({ "id": 1, "result": { "sessionId": "s" } });
        let expected = RoutedMessage { stream: ClientStream::Connection, opens: Some("s".into()) };
        assert_eq!(route(&mut routes, &opened, &[]), Some(expected));
        let prompted = route(&mut routes, &json!({ "id": 2, "result": {} }), &["s"]).expect("routed");
        assert_eq!(prompted.stream, session("s"));
        assert!(routes.answers.is_empty());
    }
}
