//! A scripted model behind a real HTTP server on loopback: a rehearsal partner.
//!
//! It says what a script tells it to say, in the wire format of whoever asks, and remembers what it
//! was asked. Like the real services it refuses a request that breaks their rules, and thinking that comes
//! back changed or behind another conversation. It serves fixtures, benches and `epitome demo`. It is never
//! a fallback for a real model: nothing chooses it but the code that starts it, and it understands nothing of
//! what it reads.

mod cache;
mod compact;
mod encode;
mod http;
mod refusal;
mod route;
mod seal;
mod seen;
pub mod valid;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

pub use cache::{CacheUse, PromptCache};
use encode::{Piece, Reply};
use epitome_config::WireFormat;
pub use epitome_transcript::{ModelStep, Seen, Stop};
use http::{Head, Reader};
use refusal::Refusal;
use route::{Asked, Asks};

/// Connections that are served at a time; a client that opens more is waiting for itself.
const CONNECTIONS_MAX: usize = 256;

/// How long a finished connection may take to say good-bye, so that one stuck client cannot hold the
/// server's end.
const STOP_WITHIN: Duration = Duration::from_millis(200);

/// A model call as it came in.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub wire: WireFormat,
    /// The model that is asked for.
    pub model: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
    /// The body as it came.
    pub bytes: Vec<u8>,
    /// What Anthropic's prompt cache would make of it; the other formats have no marks to look at.
    pub cache: Option<CacheUse>,
    /// Its number among the model calls, from 0.
    pub number: usize,
}

impl RecordedRequest {
    /// All messages of the request, flat and in no provider's terms. The system text is not among them.
    pub fn seen(&self) -> Vec<Seen> {
        seen::read(self.wire, &self.body)
    }

    /// The text of the last part that a person said.
    pub fn last_user_text(&self) -> String {
        let seen = self.seen().into_iter().rev();
        let mut texts = seen.filter_map(|seen| match seen {
            Seen::User(text) => Some(text),
            Seen::Anew
            | Seen::Again
            | Seen::UserPart(_)
            | Seen::Agent(_)
            | Seen::AgentCall { .. }
            | Seen::Result { .. } => None,
        });
        texts.next().unwrap_or_default()
    }

    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A first request as fixtures tell it: neighbouring texts of the person are one.
pub fn all_news(now: &[Seen]) -> Vec<Seen> {
    seen::joined(now)
}

/// What of `now` is new to somebody who knows `before` and what was then said; `Seen::Anew` and all
/// of it where `now` is no continuation, `Seen::Again` where nothing is new.
pub fn news(before: &[Seen], said: &[ModelStep], now: &[Seen]) -> Vec<Seen> {
    seen::news(before, said, now)
}

type Script = Box<dyn FnMut(&RecordedRequest) -> Vec<ModelStep> + Send>;

struct Shared {
    script: Mutex<Script>,
    requests: Mutex<Vec<RecordedRequest>>,
    refusals: Mutex<Vec<String>>,
    cache: Mutex<PromptCache>,
    calls: AtomicU64,
    released: Semaphore,
    given_up: AtomicU64,
    connections: Arc<Semaphore>,
}

/// A running scripted model. Dropping it ends the server and all its connections.
pub struct ScriptedModel {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedModel {
    /// Starts a server on a free port of the loopback interface, on a thread of its own. `script` is
    /// called for each model call, in their order, and gives the steps of its reply.
    pub fn start(
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> io::Result<ScriptedModel> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: Mutex::new(Box::new(script)),
            requests: Mutex::new(Vec::new()),
            refusals: Mutex::new(Vec::new()),
            cache: Mutex::default(),
            calls: AtomicU64::new(0),
            released: Semaphore::new(0),
            given_up: AtomicU64::new(0),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        });
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

    /// The model calls so far, in the order in which they came.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        lock(&self.shared.requests).clone()
    }

    /// Why requests were refused that broke their provider's rules; empty where all is well. What a
    /// script refuses is not among them.
    pub fn refusals(&self) -> Vec<String> {
        lock(&self.shared.refusals).clone()
    }

    /// Lets one `ModelStep::Wait` go on, the present one or the next.
    pub fn release(&self) {
        self.shared.released.add_permits(1);
    }

    /// How many replies a client gave up in the middle.
    pub fn given_up(&self) -> u64 {
        self.shared.given_up.load(Ordering::SeqCst)
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the server's thread was printed where it happened.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedModel").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A poisoned lock means that a script panicked; what it guards is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    loop {
        let permit = shared.connections.clone().acquire_owned().await;
        let (Ok(permit), Ok((stream, _))) = (permit, listener.accept().await) else { return };
        let shared = shared.clone();
        tokio::spawn(async move {
            // A client that breaks off is news for `given_up`, not an error of the server.
            let _ = serve(stream, &shared).await;
            drop(permit);
        });
    }
}

/// Answers the requests of one connection, one after the other.
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
    let (wire, model, body, asks) = match route::route(head, bytes) {
        Err(refusal) => return Answer::Reply(Reply::Refused(refusal)),
        Ok(Asked::Models(list)) => return Answer::Plain(list),
        Ok(Asked::Model { wire, model, body, asks }) => (wire, model, body, asks),
    };
    let problems = [
        valid::problems(wire, &model, &body),
        compact::problems(wire, head, &body),
        seal::problems(wire, &model, &body),
    ]
    .concat();
    if let Some(first) = problems.first() {
        let refusal = Refusal::of_problem(wire, first);
        lock(&shared.refusals).extend(problems);
        return Answer::Reply(Reply::Refused(refusal));
    }
    let compacts = match asks {
        Asks::Count(answer) => return Answer::Plain(answer),
        Asks::Reply => false,
        Asks::Compact => true,
    };
    let mut requests = lock(&shared.requests);
    let number = requests.len();
    let (path, headers) = (head.path.clone(), head.headers.clone());
    let cache = match wire {
        WireFormat::AnthropicMessages => Some(lock(&shared.cache).take(&body)),
        WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => None,
    };
    let bytes = bytes.to_vec();
    let request = RecordedRequest { wire, model, path, headers, body, bytes, cache, number };
    requests.push(request.clone());
    drop(requests);
    let steps = lock(&shared.script)(&request);
    let mut next_call = || shared.calls.fetch_add(1, Ordering::SeqCst) + 1;
    let RecordedRequest { model, body, .. } = &request;
    match compacts {
        true => compact::answer(wire, model, body, &steps, &mut next_call),
        false => Answer::Reply(encode::reply(wire, model, body, &steps, &mut next_call)),
    }
}

enum Play {
    /// The reply is whole; the connection can take another request.
    Whole,
    /// The connection is of no use any more.
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
            // Without the closing chunk the client knows that something is missing.
            Piece::Cut => return Ok(Play::Broken),
        }
    }
    http::end_stream(output).await?;
    Ok(Play::Whole)
}

/// Reads until the other side is gone.
async fn drain(input: &mut tokio::net::tcp::OwnedReadHalf, kept: &mut Vec<u8>) {
    let mut some = [0; 1024];
    loop {
        match input.read(&mut some).await {
            Ok(0) | Err(_) => return,
            // An early next request is kept for when this one is answered.
            Ok(count) if kept.len() < http::HEAD_BYTES_MAX => kept.extend_from_slice(&some[..count]),
            Ok(_) => return,
        }
    }
}

#[cfg(test)]
mod tests;
