//! Client side of the control API: connects to a daemon's socket or, if none runs, to the same methods served
//! in this process. A command written against it works the same either way.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jsonrpsee::core::client::async_client::RpcService;
use jsonrpsee::core::client::{
    self, ClientBuilder, ClientT, ReceivedMessage, TransportReceiverT, TransportSenderT,
};
use jsonrpsee::core::middleware::RpcServiceBuilder;
use jsonrpsee::core::traits::ToRpcParams;
use jsonrpsee_types::ErrorObjectOwned;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::fault::{Fault, FaultKind};
use super::limits::{GRACE, MethodTimeouts};
use super::lines::{BoundedLineReader, LineResult};
use super::wire::{self, AUTHENTICATE};
use crate::Daemon;
use crate::build::Build;
use crate::front::attach::{CLOSES_MAX, TRY_ENDING_AGAIN};
use crate::handshake::Home;
use crate::runtime_dir::RuntimeDir;
use crate::token::Token;
use epitome_files::paths::Paths;
use epitome_platform::local::{AsyncStream, OwnedReadHalf, OwnedWriteHalf, async_pair, connect_async};

/// The library's own time limit: practically none, because each method has its own.
const CALL_TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// A connection to the control API. Cheap to clone.
#[derive(Clone)]
pub struct ControlClient {
    inner: Arc<client::Client<RpcService>>,
    serves: Serves,
}

/// The process at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    Daemon,
    ThisProcess,
}

impl ControlClient {
    /// Connects to the daemon of `runtime_dir`, whichever directories it works on; `None` if none runs.
    pub async fn connect(runtime_dir: &RuntimeDir) -> Result<Option<ControlClient>, Fault> {
        ControlClient::dial(runtime_dir, None).await
    }

    /// Connects to the daemon that works on these directories; `None` if none runs. One that works on others, of another
    /// `HOME` for example, can have the same directory for its sockets; that is a fault of the kind `Refused`.
    pub async fn connect_for(paths: &Paths) -> Result<Option<ControlClient>, Fault> {
        ControlClient::dial(&RuntimeDir::new(paths), Some(&Home::new(paths))).await
    }

    async fn dial(runtime_dir: &RuntimeDir, home: Option<&Home>) -> Result<Option<ControlClient>, Fault> {
        let socket = runtime_dir.control_socket();
        let fault = |error: io::Error| {
            let message = format!("the daemon's socket {} can't be used: {error}", socket.display());
            Fault::new(FaultKind::Internal, message).hint("`epitome doctor` checks it")
        };
        // Reset: the daemon was killed before it accepted the connection.
        let is_absent = |error: &io::Error| {
            use io::ErrorKind::{ConnectionRefused, ConnectionReset, NotFound};
            matches!(error.kind(), NotFound | ConnectionRefused | ConnectionReset)
        };
        let unanswered = || {
            let process =
                runtime_dir.daemon().map_or_else(String::new, |process| format!(", process {process},"));
            Fault::new(FaultKind::Internal, format!("the daemon{process} does not answer")).hint(
                "`epitome daemon logs` may say why; end a stuck daemon with kill, and open windows reconnect to \
                 the next one",
            )
        };
        for _ in 0..=CLOSES_MAX {
            match runtime_dir.check() {
                Err(error) if is_absent(&error) => return Ok(None),
                checked => checked.map_err(fault)?,
            }
            let stream = match connect_async(&socket).await {
                Err(error) if is_absent(&error) => return Ok(None),
                connected => connected.map_err(fault)?,
            };
            let token = Token::read(runtime_dir).map_err(fault)?;
            let client = ControlClient::authenticated(stream, &token, home, unanswered).await?;
            if client.is_some() {
                return Ok(client);
            }
            // It ends. A window may start the next one.
            tokio::time::sleep(TRY_ENDING_AGAIN).await;
        }
        Err(unanswered())
    }

    /// Sends the token as the first request. A daemon of an earlier version doesn't know that request and requires no
    /// token. `None` if the daemon closes the connection without an answer.
    async fn authenticated(
        stream: AsyncStream,
        token: &Token,
        home: Option<&Home>,
        unanswered: impl Fn() -> Fault,
    ) -> Result<Option<ControlClient>, Fault> {
        let (reading, mut writing) = stream.into_split();
        let mut lines = BoundedLineReader::new(reading);
        let mut params = json!({ "token": token.text() });
        if let Some(home) = home {
            params["place"] = json!(home);
        }
        let request = json!({ "jsonrpc": "2.0", "id": 0, "method": AUTHENTICATE, "params": params });
        let answer = async {
            writing.write_all(format!("{request}\n").as_bytes()).await?;
            lines.next().await
        };
        let line = match tokio::time::timeout(GRACE, answer).await {
            Ok(Ok(LineResult::Whole(line))) => line,
            Ok(Ok(LineResult::End) | Err(_)) => return Ok(None),
            Ok(Ok(LineResult::TooLong)) | Err(_) => return Err(unanswered()),
        };
        let answer: Value = serde_json::from_slice(&line).map_err(|_| unanswered())?;
        let Some(error) = answer.get("error") else {
            return Ok(Some(ControlClient::new(lines, writing, Serves::Daemon)));
        };
        let fault = Fault::from(ErrorObjectOwned::deserialize(error).map_err(|_| unanswered())?);
        match fault.kind {
            FaultKind::UnknownMethod => Ok(Some(ControlClient::new(lines, writing, Serves::Daemon))),
            _ => Err(fault),
        }
    }

    /// Serves the methods in this process.
    pub fn here(daemon: Arc<Daemon>) -> Result<ControlClient, Fault> {
        let pair = async_pair().map_err(|error| {
            Fault::new(FaultKind::Internal, format!("no pair of sockets can be made: {error}"))
        });
        let (ours, theirs) = pair?;
        tokio::spawn(wire::serve(daemon, theirs));
        Ok(ControlClient::over(ours, Serves::ThisProcess))
    }

    /// Connects to the daemon that works on these directories if one runs, otherwise serves the methods in this process.
    pub async fn connect_or_here(
        paths: &Paths,
        daemon: impl FnOnce() -> Result<Arc<Daemon>, Fault>,
    ) -> Result<ControlClient, Fault> {
        match ControlClient::connect_for(paths).await {
            Ok(Some(client)) => Ok(client),
            Ok(None) => ControlClient::here(daemon()?),
            Err(fault) if fault.kind == FaultKind::Refused => {
                tracing::warn!(why = fault.message, "the daemon is not used");
                ControlClient::here(daemon()?)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Must be called within a runtime.
    pub fn over(stream: AsyncStream, serves: Serves) -> ControlClient {
        let (reading, writing) = stream.into_split();
        ControlClient::new(BoundedLineReader::new(reading), writing, serves)
    }

    fn new(
        lines: BoundedLineReader<OwnedReadHalf>,
        writing: OwnedWriteHalf,
        serves: Serves,
    ) -> ControlClient {
        // The library's own log of calls is disabled: calls contain environments.
        let builder =
            ClientBuilder::new().request_timeout(CALL_TIME_MAX).set_rpc_middleware(RpcServiceBuilder::new());
        let inner = builder.build_with_tokio(ControlSender(writing), ControlReceiver(lines));
        ControlClient { inner: Arc::new(inner), serves }
    }

    pub fn serves(&self) -> Serves {
        self.serves
    }

    /// Calls a method; `params` must be an object.
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, Fault> {
        self.call_as(method, params).await
    }

    /// Calls a method with typed parameters and result.
    pub async fn call_as<R: DeserializeOwned>(
        &self,
        method: &str,
        params: impl Serialize + Send,
    ) -> Result<R, Fault> {
        match limited(method, self.inner.request(method, NamedParams(params))).await {
            Ok(answered) => Ok(answered),
            Err(fault) => Err(self.explained(fault).await),
        }
    }

    /// If the daemon is a different build and the fault is due to that, returns a fault that says so.
    async fn explained(&self, fault: Fault) -> Fault {
        let may_be_due = matches!(fault.kind, FaultKind::UnknownMethod | FaultKind::InvalidParams);
        if self.serves != Serves::Daemon || !may_be_due {
            return fault;
        }
        let status = self.inner.request::<Value, _>("status", NamedParams(json!({})));
        let status = limited("status", status).await.unwrap_or_default();
        // A daemon that sends no build sends at least its version.
        let build = status.get("build").unwrap_or(&status).clone();
        match serde_json::from_value::<Build>(build) {
            Ok(theirs) if !theirs.is(Build::current()) => {
                Fault::incompatible_builds(&theirs, Build::current())
            }
            Ok(_) | Err(_) => fault,
        }
    }
}

struct NamedParams<P>(P);

impl<P: Serialize> ToRpcParams for NamedParams<P> {
    fn to_rpc_params(self) -> Result<Option<Box<RawValue>>, serde_json::Error> {
        serde_json::value::to_raw_value(&self.0).map(Some)
    }
}

/// Waits for an answer slightly longer than the daemon's own time limit, so that the daemon can report its
/// timeout.
async fn limited<T>(
    method: &str,
    answer: impl Future<Output = Result<T, client::Error>>,
) -> Result<T, Fault> {
    let limit = MethodTimeouts::default().limit(method) + GRACE;
    match tokio::time::timeout(limit, answer).await {
        Ok(answered) => answered.map_err(fault_of),
        Err(_) => Err(Fault::unanswered(method, limit)),
    }
}

fn fault_of(error: client::Error) -> Fault {
    match error {
        client::Error::Call(error) => error.into(),
        client::Error::RestartNeeded(_) | client::Error::Transport(_) => Fault::daemon_ended(),
        other => Fault::new(FaultKind::Internal, other.to_string()),
    }
}

struct ControlSender(OwnedWriteHalf);

impl TransportSenderT for ControlSender {
    type Error = io::Error;

    async fn send(&mut self, mut message: String) -> io::Result<()> {
        message.push('\n');
        self.0.write_all(message.as_bytes()).await
    }
}

struct ControlReceiver(BoundedLineReader<OwnedReadHalf>);

impl TransportReceiverT for ControlReceiver {
    type Error = io::Error;

    async fn receive(&mut self) -> io::Result<ReceivedMessage> {
        match self.0.next().await? {
            LineResult::Whole(line) => Ok(ReceivedMessage::Bytes(line)),
            LineResult::TooLong => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer is too long")),
            LineResult::End => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::UnixListener;

    use super::*;

    /// Regression: a daemon was killed, and `epitome sessions list` connected before its socket was closed, or while a window
    /// started the next daemon. It failed with "the daemon does not answer".
    #[tokio::test]
    async fn a_daemon_that_ends_before_it_answers_is_not_the_last_word() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let runtime_dir = RuntimeDir { directory: scratch.path().to_path_buf() };
        let socket = runtime_dir.control_socket();
        let listen = || {
            let _ = std::fs::remove_file(&socket);
            UnixListener::bind(&socket).expect("it listens")
        };
        let close_one = async |listener: &UnixListener| drop(listener.accept().await.expect("a client"));

        let killed = listen();
        let (client, ()) = tokio::join!(ControlClient::connect(&runtime_dir), async {
            close_one(&killed).await;
            drop(killed);
        });
        assert!(client.expect("no fault").is_none(), "no daemon runs any more");

        let next = listen();
        let (client, ()) = tokio::join!(ControlClient::connect(&runtime_dir), async {
            close_one(&next).await;
            let (stream, _) = next.accept().await.expect("it comes again");
            let mut stream = BufReader::new(stream);
            stream.read_line(&mut String::new()).await.expect("a token");
            let answer = b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":true}\n";
            stream.write_all(answer).await.expect("it is read");
        });
        assert!(client.expect("no fault").is_some(), "the next daemon serves it");

        let broken = listen();
        let (client, ()) = tokio::join!(ControlClient::connect(&runtime_dir), async {
            for _ in 0..=CLOSES_MAX {
                close_one(&broken).await;
            }
        });
        let fault = client.err().expect("it closes every connection");
        assert!(fault.message.contains("does not answer"), "{fault}");
    }
}
