//! The page's HTTP server on loopback, for browsers admitted by `gate`. It is independent of the command
//! line.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::assets::{Asset, PAGE};
use super::calls::Backend;
use super::gate::{self, AdmittedRequest, Refusal};
use super::keys::Keys;
use epitome_thread::{Seq, SessionId};

/// Concurrent connections; a browser opens up to six per server, and event streams stay open.
const CONNECTIONS_MAX: usize = 64;

/// Concurrent event streams: browser tabs that follow a session.
const STREAMS_MAX: usize = 16;

/// Calls processed concurrently; few, so that the page does not slow down the daemon.
const CALLS_MAX: usize = 2;

const CALL_BYTES_MAX: usize = 64 * 1024;

const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Time limit for receiving a request's head, and for a call's body.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// Interval of keep-alives on event streams, by which a disconnected browser is detected.
const HEARTBEAT: Duration = Duration::from_secs(15);

const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The methods of the control API that the page may call; they change nothing.
pub const METHODS: [&str; 9] = [
    "status",
    "metrics",
    "sessions.list",
    "sessions.search",
    "sessions.show",
    "sessions.entries",
    "sessions.timeline",
    "sessions.entry",
    "hooks.trail",
];

/// State of one served page.
pub struct PageState {
    pub keys: Keys,
    pub port: u16,
    idle: Duration,
    used: Mutex<Used>,
    changed: Notify,
    calls: Semaphore,
}

struct Used {
    last: Instant,
    streams: usize,
    closed: bool,
}

impl PageState {
    /// A page on this port that stops after being unused for `idle`.
    pub fn new(keys: Keys, port: u16, idle: Duration) -> PageState {
        let used = Mutex::new(Used { last: Instant::now(), streams: 0, closed: false });
        PageState { keys, port, idle, used, changed: Notify::new(), calls: Semaphore::new(CALLS_MAX) }
    }

    /// Marks the page as used; `false` if it has stopped.
    pub fn touch(&self) -> bool {
        let mut used = self.used.lock();
        used.last = Instant::now();
        !used.closed
    }

    /// Waits until the page has been unused for its idle time, and marks it closed.
    async fn unused(&self) {
        loop {
            let changed = self.changed.notified();
            let until = {
                let mut used = self.used.lock();
                let until = used.last + self.idle;
                if used.streams == 0 && until <= Instant::now() {
                    used.closed = true;
                    return;
                }
                (used.streams == 0).then_some(until)
            };
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => changed.await,
            }
        }
    }

    /// Keeps the page open for a stream; `None` if there are too many.
    fn stream(self: &Arc<PageState>) -> Option<OpenEventStream> {
        let mut used = self.used.lock();
        if used.streams >= STREAMS_MAX {
            return None;
        }
        used.streams += 1;
        Some(OpenEventStream(self.clone()))
    }
}

struct OpenEventStream(Arc<PageState>);

impl Drop for OpenEventStream {
    fn drop(&mut self) {
        let mut used = self.0.used.lock();
        used.streams -= 1;
        used.last = Instant::now();
        self.0.changed.notify_one();
    }
}

type PageResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Serves the page until it has been unused for its idle time. Dropping the future closes all connections.
pub async fn serve(listener: TcpListener, page: Arc<PageState>, backend: Arc<Backend>) {
    let mut connections = JoinSet::new();
    let mut unused = pin!(page.unused());
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                // When the limit is reached, the connection is closed, and browsers retry.
                Ok((stream, _)) if connections.len() < CONNECTIONS_MAX => {
                    connections.spawn(connection(stream, page.clone(), backend.clone()));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "the page's server can't take a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = &mut unused => return,
        }
    }
}

async fn connection(stream: TcpStream, page: Arc<PageState>, backend: Arc<Backend>) {
    let service = service_fn(|request| {
        let (page, backend) = (page.clone(), backend.clone());
        async move { Ok::<PageResponse, Infallible>(answer(request, &page, backend).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIME_MAX).max_buf_size(HEAD_BYTES_MAX);
    // A browser that disconnected is not an error.
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection to the page ended");
    }
}

async fn answer(request: Request<Incoming>, page: &Arc<PageState>, backend: Arc<Backend>) -> PageResponse {
    match gate::admit(&request, &page.keys, page.port, Instant::now()) {
        Err(refusal) => refused(refusal),
        Ok(route) => {
            page.touch();
            match route {
                AdmittedRequest::Page { with_cookie } => {
                    let mut answer = asset(&PAGE);
                    let cookie = with_cookie.then(|| HeaderValue::try_from(page.keys.set_cookie(page.port)));
                    if let Some(Ok(cookie)) = cookie {
                        answer.headers_mut().insert(header::SET_COOKIE, cookie);
                    }
                    answer
                }
                AdmittedRequest::Asset(found) => asset(found),
                AdmittedRequest::Call => call(request.into_body(), page, &backend).await,
                AdmittedRequest::Events { session, from } => events(page, backend, session, from).await,
            }
        }
    }
}

// ── Calls ──────────────────────────────────────────────────────────────────────────────────────────

/// The part of a call that is checked before it is passed on.
#[derive(Deserialize)]
struct PageCall {
    method: String,
}

async fn call(body: Incoming, page: &PageState, backend: &Backend) -> PageResponse {
    let read = tokio::time::timeout(REQUEST_TIME_MAX, Limited::new(body, CALL_BYTES_MAX).collect());
    let Ok(Ok(body)) = read.await else {
        return plain_text(
            StatusCode::PAYLOAD_TOO_LARGE,
            "The call is too long, or it took too long to arrive.",
        );
    };
    let bytes = body.to_bytes();
    let Ok(PageCall { method }) = serde_json::from_slice(&bytes) else {
        return plain_text(StatusCode::BAD_REQUEST, "A call is one JSON object with a method.");
    };
    if !METHODS.contains(&method.as_str()) {
        return plain_text(StatusCode::FORBIDDEN, "The page can only read, so it can't call this method.");
    }
    let Ok(call) = String::from_utf8(bytes.into()) else {
        return plain_text(StatusCode::BAD_REQUEST, "A call is UTF-8.");
    };
    let Ok(_turn) = page.calls.acquire().await else {
        return plain_text(StatusCode::SERVICE_UNAVAILABLE, "The page is closing.");
    };
    let answered = backend.answer(call).await;
    typed(StatusCode::OK, "application/json", Full::new(Bytes::from(answered)).boxed_unsync())
}

// ── Events ─────────────────────────────────────────────────────────────────────────────────────────

async fn events(page: &Arc<PageState>, backend: Arc<Backend>, session: SessionId, from: Seq) -> PageResponse {
    let Some(open) = page.stream() else {
        return plain_text(StatusCode::SERVICE_UNAVAILABLE, "Too many windows follow sessions: close one.");
    };
    let followed = tokio::task::spawn_blocking(move || backend.follow(&session, from)).await;
    let following = match followed {
        Ok(Ok(following)) => following,
        Ok(Err(error)) => return plain_text(StatusCode::NOT_FOUND, &error.to_string()),
        Err(_) => return plain_text(StatusCode::INTERNAL_SERVER_ERROR, "The session could not be read."),
    };
    let frames = stream::unfold((following, open), |mut state| async move {
        let news = tokio::time::timeout(HEARTBEAT, state.0.next()).await.ok();
        // JSON on one line: it contains no line breaks.
        let piece = match news.and_then(|news| serde_json::to_string(&news).ok()) {
            Some(news) => format!("event: news\ndata: {news}\n\n"),
            None => ": \n\n".to_owned(),
        };
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(piece))), state))
    });
    typed(StatusCode::OK, "text/event-stream", BodyExt::boxed_unsync(StreamBody::new(frames)))
}

// ── Answers ────────────────────────────────────────────────────────────────────────────────────────

fn asset(asset: &Asset) -> PageResponse {
    let text = Full::new(Bytes::from_static(asset.text.as_bytes())).boxed_unsync();
    typed(StatusCode::OK, asset.content_type, text)
}

fn refused(refusal: Refusal) -> PageResponse {
    let (status, sentence) = refusal.response();
    plain_text(StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN), sentence)
}

fn plain_text(status: StatusCode, sentence: &str) -> PageResponse {
    let text = Full::new(Bytes::from(format!("{sentence}\n"))).boxed_unsync();
    typed(status, "text/plain; charset=utf-8", text)
}

/// Builds a response with the security headers that all of them have: same-origin resources only, nothing
/// inline, no framing, no caching, no referrer.
fn typed(
    status: StatusCode,
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, Infallible>,
) -> PageResponse {
    const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                          connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    const SAID: [(HeaderName, &str); 7] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in SAID {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
