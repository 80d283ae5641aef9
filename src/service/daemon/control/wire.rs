//! Serves one connection of the control API: one request per line; responses are sent in the order in which
//! they are ready.
//!
//! A client that shuts down only its writing side, as a shell pipe does, still gets its responses. When a
//! client disconnects, the calls it made are cancelled.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use epitome_platform::local::{AsyncStream, OwnedReadHalf, OwnedWriteHalf, closed, peer};
use jsonrpsee::{ConnectionId, Extensions, MethodCallback, MethodResponse, ResponsePayload};
use jsonrpsee_types::{Id, Params, Request};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::fault::{Fault, FaultKind};
use super::lines::{BoundedLineReader, LINE_BYTES_MAX, LineResult};
use super::{METHOD_TABLE, METHODS, REPLACED};
use crate::Daemon;
use crate::attachments::{Attached, Gauge, fresh_client};
use crate::handshake::Home;
use crate::listener::PendingPermit;
use crate::token::Token;
use epitome_thread::problem;

/// Calls of one connection that may be unanswered at once. Beyond that nothing is read until the client takes
/// its responses.
pub const CALLS_MAX: usize = 256;

/// How many of them may be commands of a session, which take long. This leaves room for a cancel.
pub const PROMPTS_MAX: usize = 64;

/// Longest response, in bytes: a complete session as JSON. Longer ones must be requested in parts or written
/// to a file.
pub const ANSWER_BYTES_MAX: u32 = 256 * 1024 * 1024;

/// Lines that may wait for a client to read.
const OUTGOING_MAX: usize = 256;

/// Time limit for writing the last responses.
const WRITE_WITHIN: Duration = Duration::from_secs(5);

/// Time limit for running calls when the daemon shuts down.
const FINISH_WITHIN: Duration = Duration::from_secs(2);

/// The first request of a connection.
pub const AUTHENTICATE: &str = "authenticate";

/// Longest first line of a connection, in bytes; it contains only the token and two paths.
const FIRST_LINE_BYTES_MAX: usize = 16 * 1024;

/// Time limit for a client to send its token.
const FIRST_LINE_WITHIN: Duration = Duration::from_secs(5);

static NEXT_CONNECTION: AtomicUsize = AtomicUsize::new(1);

/// The connection a call comes from, for methods that act on it.
#[derive(Clone)]
pub struct Caller {
    pub daemon: Arc<Daemon>,
    prompts: Arc<Semaphore>,
}

impl Caller {
    pub fn new(daemon: Arc<Daemon>) -> Caller {
        Caller { daemon, prompts: Arc::new(Semaphore::new(PROMPTS_MAX)) }
    }

    /// A permit for one more command of a session, released when dropped.
    pub fn room(&self) -> Result<OwnedSemaphorePermit, Fault> {
        self.prompts.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{PROMPTS_MAX} commands of this connection are unanswered already");
            Fault::new(FaultKind::Busy, message).hint("wait for answers first")
        })
    }
}

/// Serves a connection of another process, whose first request must be `authenticate` with the daemon's token.
/// Otherwise, or if the process is `refused` for this reason, the answer is an error and the connection ends.
/// `permit` is dropped once the client is authenticated.
pub async fn admit(
    daemon: Arc<Daemon>,
    stream: AsyncStream,
    token: Arc<Token>,
    permit: Option<PendingPermit>,
    refused: Option<String>,
) {
    let pid = pid_of(&stream);
    let (reading, mut writing) = stream.into_split();
    let mut lines = BoundedLineReader::bounded(reading, FIRST_LINE_BYTES_MAX);
    let Ok(Ok(line)) = tokio::time::timeout(FIRST_LINE_WITHIN, lines.next()).await else { return };
    let line = match line {
        LineResult::Whole(line) => line,
        LineResult::TooLong => Vec::new(),
        // A probe that only checked whether the daemon accepts connections.
        LineResult::End => return,
    };
    let (id, known) = authenticated(&line, &token, &Home::new(&daemon.paths));
    let known = match refused {
        Some(why) => Err(Fault::new(FaultKind::Unauthorized, why)),
        None => known,
    };
    let answer = match &known {
        Ok(()) => MethodResponse::response(id, ResponsePayload::success(true), ANSWER_BYTES_MAX as usize),
        Err(fault) => {
            tracing::warn!(pid, %fault, "a client of the control API is refused");
            MethodResponse::error(id, jsonrpsee_types::ErrorObjectOwned::from(fault.clone()))
        }
    };
    let line = format!("{}\n", answer.into_json().get());
    let written = tokio::time::timeout(WRITE_WITHIN, writing.write_all(line.as_bytes())).await;
    drop(permit);
    if known.is_ok() && matches!(written, Ok(Ok(()))) {
        lines.set_bytes_max(LINE_BYTES_MAX);
        serve_lines(daemon, lines, writing, pid).await;
    }
}

/// Checks whether the first line of a connection has the token, and returns it with the id of its request. A client that
/// names its directories must have those of the daemon.
fn authenticated(line: &[u8], token: &Token, home: &Home) -> (Id<'static>, Result<(), Fault>) {
    let missing = || {
        Fault::new(FaultKind::Unauthorized, "the first request of a connection is \"authenticate\"").hint(
            r#"send {"jsonrpc": "2.0", "id": 0, "method": "authenticate", "params": {"token": "…"}} with the text of the file `token` next to the socket"#,
        )
    };
    let Ok(request) = serde_json::from_slice::<Request<'_>>(line) else { return (Id::Null, Err(missing())) };
    let id = request.id.into_owned();
    if request.method != AUTHENTICATE {
        return (id, Err(missing()));
    }
    let params = request.params.and_then(|params| serde_json::from_str::<Value>(params.get()).ok());
    let given = params.as_ref().and_then(|params| params.get("token")).and_then(Value::as_str);
    if !given.is_some_and(|given| token.matches(given.trim_end())) {
        let fault = Fault::new(FaultKind::Unauthorized, "this is not the token of the running daemon");
        return (id, Err(fault.hint("each daemon writes a new one to the file `token` next to the socket")));
    }
    let place = params.as_ref().and_then(|params| Home::deserialize(params.get("place")?).ok());
    let same = place.map_or(Ok(()), |place| home.check(&place, "client"));
    let hint = "`epitome daemon stop` ends it; the next window starts a new one";
    (id, same.map_err(|why| Fault::new(FaultKind::Refused, why.to_string()).hint(hint)))
}

fn pid_of(stream: &AsyncStream) -> Option<u32> {
    u32::try_from(peer(stream).ok()?.process?.as_raw_pid()).ok()
}

/// Serves a connection within this process.
pub async fn serve(daemon: Arc<Daemon>, stream: AsyncStream) {
    let pid = pid_of(&stream);
    let (reading, writing) = stream.into_split();
    serve_lines(daemon, BoundedLineReader::new(reading), writing, pid).await;
}

/// Serves one connection until its client disconnects or has sent its last request and received all
/// responses.
async fn serve_lines(
    daemon: Arc<Daemon>,
    mut lines_in: BoundedLineReader<OwnedReadHalf>,
    writing: OwnedWriteHalf,
    pid: Option<u32>,
) {
    let client = fresh_client();
    let (outgoing, lines) = mpsc::channel(OUTGOING_MAX);
    let caller = Caller::new(daemon.clone());
    let _present = daemon.attachments.enter(Attached::control(client, pid), waiting(&outgoing));
    // Aborted when this function returns, even if senders of its channel still exist.
    let mut writer = JoinSet::new();
    writer.spawn(write(writing, lines));
    let mut connection = ControlConnection {
        id: ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed)),
        caller,
        outgoing,
        calls: JoinSet::new(),
    };
    let mut stop = daemon.stop.subscribe();
    let is_answered = tokio::select! {
        is_answered = connection.run(&mut lines_in) => is_answered,
        () = stopped(&mut stop) => {
            connection.finish().await;
            true
        }
    };
    connection.calls.shutdown().await;
    if is_answered {
        drop(connection);
        drop(tokio::time::timeout(WRITE_WITHIN, writer.join_next()).await);
    }
    drop(writer);
}

/// Counts the lines waiting for the client to read, without keeping them alive.
fn waiting(outgoing: &mpsc::Sender<Box<RawValue>>) -> Gauge {
    let outgoing = outgoing.downgrade();
    Box::new(move || (outgoing.upgrade().map_or(0, |lines| lines.max_capacity() - lines.capacity()), None))
}

/// Answers a call that came over no connection of its own, such as the page's. `None` if it is no request.
pub async fn answer(caller: Caller, call: &str) -> Option<String> {
    let request = serde_json::from_str::<Request<'_>>(call).ok()?;
    let id = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
    let answer = match begun(request, id, caller) {
        Ok(answer) => answer.await,
        Err(refused) => refused,
    };
    Some(answer.into_json().get().to_owned())
}

/// Begins a call. An error is the response to one of an unknown method.
fn begun(
    request: Request<'_>,
    connection: ConnectionId,
    caller: Caller,
) -> Result<impl Future<Output = MethodResponse> + Send + use<>, MethodResponse> {
    let Request { id, method, params, .. } = request;
    let id = id.into_owned();
    // There are no others.
    let Some(MethodCallback::Async(call)) = METHOD_TABLE.method(&method) else {
        let fault = unknown_method(&method);
        return Err(MethodResponse::error(id, jsonrpsee_types::ErrorObjectOwned::from(fault)));
    };
    let mut extensions = Extensions::new();
    extensions.insert(caller);
    let params = Params::new(params.as_ref().map(|params| params.get())).into_owned();
    Ok(call(id, params, connection, ANSWER_BYTES_MAX as usize, extensions))
}

/// Waits for the daemon to shut down.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender is owned by the daemon, which outlives its connections.
    drop(stop.wait_for(|stop| *stop).await);
}

struct ControlConnection {
    id: ConnectionId,
    caller: Caller,
    outgoing: mpsc::Sender<Box<RawValue>>,
    /// Running calls. They are aborted when the connection is dropped.
    calls: JoinSet<()>,
}

impl ControlConnection {
    /// Returns whether the client has all its responses and sends no more requests. Otherwise it has gone.
    async fn run(&mut self, lines: &mut BoundedLineReader<OwnedReadHalf>) -> bool {
        loop {
            let line = tokio::select! {
                line = lines.next(), if self.calls.len() < CALLS_MAX => line,
                Some(_) = self.calls.join_next() => continue,
                () = self.outgoing.closed() => return false,
            };
            match line {
                Ok(LineResult::Whole(line)) => self.take(line),
                Ok(LineResult::TooLong) => {
                    let message = format!("a line has at most {LINE_BYTES_MAX} bytes");
                    self.refuse(Id::Null, Fault::new(FaultKind::InvalidRequest, message));
                }
                Ok(LineResult::End) => return self.drain(lines.source()).await,
                Err(error) => {
                    tracing::debug!(%error, "a control connection broke");
                    return false;
                }
            }
        }
    }

    /// The daemon shuts down: quick calls are still answered, and so are commands, after their cancellation.
    async fn finish(&mut self) {
        let answered = async { while self.calls.join_next().await.is_some() {} };
        drop(tokio::time::timeout(FINISH_WITHIN, answered).await);
    }

    /// Waits for running calls, as long as the client is connected; returns whether it still is.
    async fn drain(&mut self, reading: &OwnedReadHalf) -> bool {
        let calls = &mut self.calls;
        tokio::select! {
            () = async { while calls.join_next().await.is_some() {} } => true,
            () = closed(reading.as_ref()) => false,
            () = self.outgoing.closed() => false,
        }
    }

    fn take(&mut self, line: Vec<u8>) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let request = match serde_json::from_slice::<Request<'_>>(&line) {
            Ok(request) => request,
            Err(error) => {
                if let Some((id, fault)) = not_a_request(&line, &error) {
                    self.refuse(id, fault);
                }
                return;
            }
        };
        match begun(request, self.id, self.caller.clone()) {
            Ok(answer) => {
                let outgoing = self.outgoing.clone();
                self.calls.spawn(async move { send(&outgoing, answer.await).await });
            }
            Err(refused) => self.answer(refused),
        }
    }

    fn refuse(&mut self, id: Id<'_>, fault: Fault) {
        self.answer(MethodResponse::error(id, jsonrpsee_types::ErrorObjectOwned::from(fault)));
    }

    fn answer(&mut self, answer: MethodResponse) {
        let outgoing = self.outgoing.clone();
        self.calls.spawn(async move { send(&outgoing, answer).await });
    }
}

async fn send(outgoing: &mpsc::Sender<Box<RawValue>>, answer: MethodResponse) {
    // Fails only if the client has disconnected.
    drop(outgoing.send(answer.to_json()).await);
}

async fn write(writing: OwnedWriteHalf, mut lines: mpsc::Receiver<Box<RawValue>>) {
    let mut writing = BufWriter::new(writing);
    let written = async {
        while let Some(first) = lines.recv().await {
            // All lines queued after it are flushed with it.
            let mut next = Some(first);
            while let Some(line) = next {
                writing.write_all(line.get().as_bytes()).await?;
                writing.write_all(b"\n").await?;
                next = lines.try_recv().ok();
            }
            writing.flush().await?;
        }
        Ok::<_, io::Error>(())
    };
    if let Err(error) = written.await {
        tracing::debug!(%error, "a client of the control API has gone");
    }
}

/// The error for a line that is not a request; `None` for a notification, which gets no response.
fn not_a_request(line: &[u8], error: &serde_json::Error) -> Option<(Id<'static>, Fault)> {
    let Ok(value) = serde_json::from_slice::<Value>(line) else {
        let fault = Fault::new(FaultKind::Parse, format!("this line is not JSON: {error}"));
        return Some((Id::Null, fault.hint("send one request a line")));
    };
    let object = match value {
        Value::Array(_) => {
            let fault = Fault::new(FaultKind::InvalidRequest, "batches are not supported");
            return Some((Id::Null, fault.hint("send one request a line; many may be unanswered at once")));
        }
        Value::Object(object) => object,
        _ => return Some((Id::Null, Fault::new(FaultKind::InvalidRequest, "a request is a JSON object"))),
    };
    let id = object.get("id").and_then(id_of);
    let message = if object.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        "a request has \"jsonrpc\": \"2.0\""
    } else if !object.get("method").is_some_and(Value::is_string) {
        "a request has a \"method\", a text"
    } else if !object.contains_key("id") {
        return None;
    } else {
        "a request's \"id\" is a number or a text"
    };
    let fault = Fault::new(FaultKind::InvalidRequest, message)
        .hint(r#"as in {"jsonrpc": "2.0", "id": 1, "method": "status"}"#);
    Some((id.unwrap_or(Id::Null), fault))
}

fn id_of(id: &Value) -> Option<Id<'static>> {
    match id {
        Value::Number(number) => number.as_u64().map(Id::Number),
        Value::String(text) => Some(Id::Str(text.clone().into())),
        _ => None,
    }
}

fn unknown_method(method: &str) -> Fault {
    if let Some((_, replacement)) = REPLACED.iter().find(|(replaced, _)| *replaced == method) {
        let message =
            format!("there is no method {method:?} any more: use {replacement} of the Agent Client Protocol");
        return Fault::new(FaultKind::UnknownMethod, message)
            .hint("`epitome acp` speaks it on stdin and stdout; docs/builders/control.md shows how");
    }
    let fault = Fault::new(FaultKind::UnknownMethod, format!("there is no method {method:?}"));
    match problem::nearest(method, METHODS) {
        Some(near) => fault.hint(format!("did you mean {near:?}?")),
        None => fault.hint(format!("there are: {}", METHODS.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_a_request_gets_a_specific_error() {
        for (line, wanted) in [
            ("{", Some((Id::Null, FaultKind::Parse, "not JSON"))),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"status"}{"#,
                Some((Id::Null, FaultKind::Parse, "not JSON")),
            ),
            ("[]", Some((Id::Null, FaultKind::InvalidRequest, "batches"))),
            ("5", Some((Id::Null, FaultKind::InvalidRequest, "a JSON object"))),
            (r#"{"id":7,"method":"status"}"#, Some((Id::Number(7), FaultKind::InvalidRequest, "jsonrpc"))),
            (
                r#"{"jsonrpc":"2.0","id":"a"}"#,
                Some((Id::Str("a".into()), FaultKind::InvalidRequest, "method")),
            ),
            (
                r#"{"jsonrpc":"2.0","id":{},"method":"status"}"#,
                Some((Id::Null, FaultKind::InvalidRequest, "id")),
            ),
            (r#"{"jsonrpc":"2.0","method":"status"}"#, None),
        ] {
            let error = serde_json::from_str::<Request<'_>>(line).expect_err("it is none");
            let answer = not_a_request(line.as_bytes(), &error);
            match (answer, wanted) {
                (None, None) => {}
                (Some((id, fault)), Some((wanted, kind, text))) => {
                    assert_eq!((id, fault.kind), (wanted, kind), "{line}");
                    assert!(fault.message.contains(text), "{line}: {}", fault.message);
                }
                (answer, _) => panic!("{line}: {answer:?}"),
            }
        }
    }
}
