//! A scripted model behind a real HTTP server on loopback, for tests and demos, or in memory, for simulations.
//!
//! It replies with the steps of a script, in the wire format of the request, and records the requests. Like
//! the real services, it rejects requests that violate their rules, and thinking that was altered or comes
//! back in another conversation. It serves fixtures, benchmarks and `epitome demo`. It is never a fallback
//! for a real model: only the code that starts it uses it, and it doesn't interpret what it reads.

mod cache;
mod compact;
mod encode;
mod http;
mod in_memory;
mod refusal;
mod route;
mod seal;
mod seen;
pub mod valid;
mod whole;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

pub use cache::{CacheUse, PromptCache};
use encode::{Piece, Reply};
pub use epitome_config::WireFormat;
pub use epitome_transcript::{ModelStep, ScriptedStop, SeenPart};
use http::{Head, Reader};
pub use in_memory::SimulatedModel;
use refusal::Refusal;
use route::{Asked, Asks};

/// Maximum concurrent connections; a client that opens more has to wait.
const CONNECTIONS_MAX: usize = 256;

/// Time limit for a finished connection to close, so that a stuck client can't delay the server's shutdown.
const STOP_WITHIN: Duration = Duration::from_millis(200);

/// A recorded model call.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub wire: WireFormat,
    /// The requested model.
    pub model: String,
    pub path: String,
    /// Names are lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// The raw body.
    pub bytes: Vec<u8>,
    /// Tokens that Anthropic's prompt cache would read and write; the other formats have no cache marks to
    /// evaluate.
    pub cache: Option<CacheUse>,
    /// Index among the model calls, from 0.
    pub number: usize,
}

impl RecordedRequest {
    /// All messages of the request, flat and independent of the wire format. The system text is not included.
    pub fn seen(&self) -> Vec<SeenPart> {
        seen::read(self.wire, &self.body)
    }

    /// The text of the user's last text part.
    pub fn last_user_text(&self) -> String {
        let seen = self.seen().into_iter().rev();
        let mut texts = seen.filter_map(|seen| match seen {
            SeenPart::User(text) => Some(text),
            SeenPart::Anew
            | SeenPart::Again
            | SeenPart::UserPart(_)
            | SeenPart::Agent(_)
            | SeenPart::AgentCall { .. }
            | SeenPart::Result { .. } => None,
        });
        texts.next().unwrap_or_default()
    }

    /// The value of a header, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The messages of a first request as fixtures record them: adjacent texts of the user are merged.
pub fn all_news(now: &[SeenPart]) -> Vec<SeenPart> {
    seen::joined(now)
}

/// The messages in `now` that follow `before` and the reply `said`. Starts with `SeenPart::Anew` and contains all
/// messages if `now` is no continuation; `SeenPart::Again` if nothing is new.
pub fn news(before: &[SeenPart], said: &[ModelStep], now: &[SeenPart]) -> Vec<SeenPart> {
    seen::news(before, said, now)
}

type Script = Box<dyn FnMut(&RecordedRequest) -> Vec<ModelStep> + Send>;

/// How requests that violate a rule are handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strictness {
    Refuses,
    Records,
}

struct Shared {
    script: Mutex<Script>,
    strictness: Strictness,
    requests: Mutex<Vec<RecordedRequest>>,
    refusals: Mutex<Vec<String>>,
    cache: Mutex<PromptCache>,
    calls: AtomicU64,
    released: Semaphore,
    given_up: AtomicU64,
    connections: Arc<Semaphore>,
}

impl Shared {
    fn new(script: Script, strictness: Strictness) -> Shared {
        Shared {
            script: Mutex::new(script),
            strictness,
            requests: Mutex::new(Vec::new()),
            refusals: Mutex::new(Vec::new()),
            cache: Mutex::default(),
            calls: AtomicU64::new(0),
            released: Semaphore::new(0),
            given_up: AtomicU64::new(0),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        }
    }
}

/// A running scripted model. Dropping it stops the server and closes all its connections.
pub struct ScriptedModel {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedModel {
    /// Starts a server on a free loopback port, on its own thread. `script` is called for each model call, in
    /// order, and returns the steps of the reply.
    pub fn start(
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> io::Result<ScriptedModel> {
        ScriptedModel::start_with(script, Strictness::Refuses)
    }

    /// Like [`ScriptedModel::start`], but for other programs: answers requests that violate a rule, and records the
    /// violation.
    pub fn start_lenient(
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> io::Result<ScriptedModel> {
        ScriptedModel::start_with(script, Strictness::Records)
    }

    fn start_with(
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
        strictness: Strictness,
    ) -> io::Result<ScriptedModel> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(Box::new(script), strictness));
        let stop = Arc::new(Notify::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (for_thread, until) = (shared.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("scripted-model".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, for_thread) => {}
                    () = until.notified() => {}
                }
            });
            runtime.shutdown_timeout(STOP_WITHIN);
        })?;
        Ok(ScriptedModel { address, shared, stop, thread: Some(thread) })
    }

    /// For `ANTHROPIC_BASE_URL`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// For `OPENAI_BASE_URL`.
    pub fn openai_base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// For `GOOGLE_GEMINI_BASE_URL`.
    pub fn gemini_base_url(&self) -> String {
        self.base_url()
    }

    /// The model calls so far, in order of arrival.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.requests.lock().clone()
    }

    /// Why requests that violate their provider's rules were rejected, or would have been. Errors that the script
    /// returns are not included.
    pub fn refusals(&self) -> Vec<String> {
        self.shared.refusals.lock().clone()
    }

    /// The same, for a test that expects them.
    pub fn take_refusals(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.refusals.lock())
    }

    /// Releases one `ModelStep::Wait`, the current one or the next.
    pub fn release(&self) {
        self.shared.released.add_permits(1);
    }

    /// Number of replies that clients aborted.
    pub fn given_up(&self) -> u64 {
        self.shared.given_up.load(Ordering::SeqCst)
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the server thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedModel").field("address", &self.address).finish_non_exhaustive()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    loop {
        let permit = shared.connections.clone().acquire_owned().await;
        let (Ok(permit), Ok((stream, _))) = (permit, listener.accept().await) else { return };
        let shared = shared.clone();
        tokio::spawn(async move {
            // An aborted connection is counted in `given_up` and isn't an error of the server.
            let _ = serve(stream, &shared).await;
            drop(permit);
        });
    }
}

/// Serves the requests of one connection in sequence.
async fn serve(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (input, mut output) = stream.into_split();
    let mut reader = Reader::new(input);
    while let Some((head, body)) = reader.request(&mut output).await? {
        let keep = head.keep_alive;
        match answer(&head, &body, shared) {
            Answer::Plain(value) => http::plain(&mut output, 200, &[], &value, keep).await?,
            Answer::Reply(Reply::Refused(Refusal { status, headers, body })) => {
                http::plain(&mut output, status, &headers, &body, keep).await?;
            }
            Answer::Reply(Reply::Stream(pieces)) => {
                if let Play::Broken = play(pieces, &mut reader, &mut output, shared).await? {
                    return Ok(());
                }
            }
        }
        if !keep {
            break;
        }
    }
    Ok(())
}

enum Answer {
    Plain(Value),
    Reply(Reply),
}

fn answer(head: &Head, bytes: &[u8], shared: &Shared) -> Answer {
    let (wire, model, body, asks, streams) = match route::route(head, bytes) {
        Err(refusal) => return Answer::Reply(Reply::Refused(refusal)),
        Ok(Asked::Models(list)) => return Answer::Plain(list),
        Ok(Asked::Model { wire, model, body, asks, streams }) => (wire, model, body, asks, streams),
    };
    let problems = [
        valid::problems(wire, &model, &body),
        compact::problems(wire, head, &body),
        seal::problems(wire, &model, &body),
    ]
    .concat();
    if let Some(first) = problems.first() {
        let refusal = Refusal::of_problem(wire, first);
        shared.refusals.lock().extend(problems);
        if shared.strictness == Strictness::Refuses {
            return Answer::Reply(Reply::Refused(refusal));
        }
    }
    if !streams && shared.strictness == Strictness::Refuses {
        let refusal = Refusal::of_problem(wire, "the scripted model only streams");
        return Answer::Reply(Reply::Refused(refusal));
    }
    let compacts = match asks {
        Asks::Count(answer) => return Answer::Plain(answer),
        Asks::Reply => false,
        Asks::Compact => true,
    };
    let mut requests = shared.requests.lock();
    let number = requests.len();
    let (path, headers) = (head.path.clone(), head.headers.clone());
    let cache = match wire {
        WireFormat::AnthropicMessages => Some(shared.cache.lock().take(&body)),
        WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => None,
    };
    let bytes = bytes.to_vec();
    let request = RecordedRequest { wire, model, path, headers, body, bytes, cache, number };
    requests.push(request.clone());
    drop(requests);
    let steps = shared.script.lock()(&request);
    let mut next_call = || shared.calls.fetch_add(1, Ordering::SeqCst) + 1;
    let RecordedRequest { model, body, .. } = &request;
    // A reply that does not end can't be sent as a whole.
    if !streams && !steps.contains(&ModelStep::Hang) {
        return Answer::Plain(whole::reply(wire, model, &steps, &mut next_call));
    }
    match compacts {
        true => compact::answer(wire, model, body, &steps, &mut next_call),
        false => Answer::Reply(encode::reply(wire, model, body, &steps, &mut next_call)),
    }
}

enum Play {
    /// The reply is complete; the connection can be reused.
    Whole,
    /// The connection can't be used any more.
    Broken,
}

async fn play(
    pieces: Vec<Piece>,
    reader: &mut Reader,
    output: &mut tokio::net::tcp::OwnedWriteHalf,
    shared: &Shared,
) -> io::Result<Play> {
    let gave_up = || {
        shared.given_up.fetch_add(1, Ordering::SeqCst);
        Ok(Play::Broken)
    };
    if http::begin_stream(output).await.is_err() {
        return gave_up();
    }
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => {
                if http::chunk(output, &bytes).await.is_err() {
                    return gave_up();
                }
            }
            Piece::Wait => tokio::select! {
                permit = shared.released.acquire() => if let Ok(permit) = permit { permit.forget() },
                () = reader.closed() => return gave_up(),
            },
            Piece::Hang => {
                reader.closed().await;
                return gave_up();
            }
            // Without the final chunk, the client knows that the reply is incomplete.
            Piece::Cut => return Ok(Play::Broken),
        }
    }
    http::end_stream(output).await?;
    Ok(Play::Whole)
}

/// Reads until the peer closes the connection.
async fn drain(input: &mut tokio::net::tcp::OwnedReadHalf, kept: &mut Vec<u8>) {
    let mut some = [0; 1024];
    loop {
        match input.read(&mut some).await {
            Ok(0) | Err(_) => return,
            // Bytes of a pipelined request are kept until this one has been answered.
            Ok(count) if kept.len() < http::HEAD_BYTES_MAX => kept.extend_from_slice(&some[..count]),
            Ok(_) => return,
        }
    }
}

#[cfg(test)]
mod tests;
