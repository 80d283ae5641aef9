//! The HTTP client of the SDK's transport "streamable HTTP", which reads what is received as [`received`] does. An answer
//! that the SDK's own client can't parse is lost.

use std::collections::HashMap;
use std::io::{self, Cursor};
use std::sync::Arc;

use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _, try_unfold};
use http::header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::child::LINE_BYTES_MAX;
use super::received;
use epitome_provider::http::{Client, Response};
use epitome_thread::terminal_text::Cleaner;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// Names a session in requests and responses.
const SESSION: &str = "mcp-session-id";
/// Maximum bytes of an error page that are quoted.
const QUOTED_BYTES_MAX: usize = 500;

type ServerHttpError = StreamableHttpError<<ServerHttp as StreamableHttpClient>::Error>;
type EventStream = BoxStream<'static, Result<Sse, SseError>>;

#[derive(Clone)]
pub struct ServerHttp(pub Client);

impl StreamableHttpClient for ServerHttp {
    type Error = <Client as StreamableHttpClient>::Error;

    async fn post_message(
        &self,
        url: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        mut headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, ServerHttpError> {
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        let mut request = self.0.post(&*url).headers(headers.into_iter().collect());
        if let Some(session) = &session {
            request = request.header(SESSION, &**session);
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let mut response = request.body(serde_json::to_vec(&message)?).send().await?;
        let status = response.status();
        let header = |name| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let (challenge, own) = (header(WWW_AUTHENTICATE), header(HeaderName::from_static(SESSION)));
        match (status, challenge) {
            (StatusCode::UNAUTHORIZED, Some(challenge)) => {
                return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)));
            }
            (StatusCode::NOT_FOUND, _) if session.is_some() => {
                return Err(StreamableHttpError::SessionExpired);
            }
            _ => {}
        }
        let kind = header(CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
        if status.is_success() && kind.starts_with(EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(events(response), own));
        }
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await? {
            body.extend_from_slice(&piece);
            if body.len() > LINE_BYTES_MAX {
                return Err(StreamableHttpError::ResponseBodyTooLarge { max_size: LINE_BYTES_MAX });
            }
        }
        match received::message(&body) {
            Some(answer) if status.is_success() || matches!(answer, ServerJsonRpcMessage::Error(_)) => {
                Ok(StreamableHttpPostResponse::Json(answer, own))
            }
            // Servers answer notifications in several ways; the answer to a request may come in the stream of `get_stream`.
            _ if status.is_success()
                && (status != StatusCode::OK || !matches!(message, ClientJsonRpcMessage::Request(_))) =>
            {
                Ok(StreamableHttpPostResponse::Accepted)
            }
            _ => {
                body.truncate(QUOTED_BYTES_MAX);
                let body = Cleaner::default().clean(&body);
                Err(StreamableHttpError::UnexpectedServerResponse(format!("HTTP {status}: {body}").into()))
            }
        }
    }

    async fn get_stream(
        &self,
        url: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<EventStream, ServerHttpError> {
        let events = self.0.get_stream(url, session, last_event, token, headers).await?;
        Ok(events.map_ok(readable).boxed())
    }

    async fn delete_session(
        &self,
        url: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), ServerHttpError> {
        self.0.delete_session(url, session, token, headers).await
    }
}

/// The events of a response. One that is too long ends them.
pub fn events(response: Response) -> EventStream {
    let start = (response, Cleaner::default(), UnfinishedEvent::default());
    let pieces = try_unfold(start, |(mut response, mut cleaner, mut unfinished)| async move {
        let Some(piece) = response.chunk().await.map_err(io::Error::other)? else { return Ok(None) };
        let text = cleaner.clean(&piece);
        match unfinished.add(&text) > LINE_BYTES_MAX {
            true => Err(io::Error::from(io::ErrorKind::FileTooLarge)),
            false => Ok(Some((Cursor::new(text), (response, cleaner, unfinished)))),
        }
    });
    SseStream::from_bytes_stream(pieces).map_ok(readable).boxed()
}

/// The event that is being received.
#[derive(Default)]
struct UnfinishedEvent {
    bytes: usize,
    ends_line: bool,
}

impl UnfinishedEvent {
    /// Adds a piece of the stream. Returns the bytes of the event so far, which are 0 if one ended in the piece: with an empty
    /// line.
    fn add(&mut self, text: &str) -> usize {
        let is_end = text.contains("\n\n")
            || text.contains("\n\r")
            || self.ends_line && text.starts_with(['\n', '\r']);
        self.ends_line = text.ends_with('\n') || self.ends_line && text.is_empty();
        self.bytes = if is_end { 0 } else { self.bytes + text.len() };
        self.bytes
    }
}

fn readable(mut event: Sse) -> Sse {
    let json = event.data.as_deref().and_then(|data| received::json(data.as_bytes()));
    event.data = json.map(|json| json.to_string()).or(event.data);
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: of a server that sends the empty line at the end of an event separately, all events counted as one, and a
    /// connection that lasts would have ended after 16 MiB.
    #[test]
    fn an_event_ends_with_an_empty_line_wherever_the_stream_is_cut() {
        for pieces in [
            &["data: 1\n\n"][..],
            &["data: 1\r\n\r\n"],
            &["data: 1\n", "\n"],
            &["data: 1\r\n", "\r\n"],
            &["data: 1\r\n\r", "\n"],
            &["data: 1\n", "", "\n"],
        ] {
            let mut event = UnfinishedEvent::default();
            let ended = pieces.iter().any(|piece| event.add(piece) == 0);
            assert!(ended, "{pieces:?}");
        }
        let mut event = UnfinishedEvent::default();
        assert_eq!((event.add("data: 1\n"), event.add("data: 2\n")), (8, 16));
    }
}
