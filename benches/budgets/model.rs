//! A scripted model: an HTTP/1.1 server inside the bench process that speaks Anthropic's streaming Messages
//! API and records when it read and wrote. It ignores everything in a request but its length and whether it
//! offers tools, and never retries.
//!
//! Each event is one chunk of the chunked body. Clocks are read immediately before a write and immediately
//! after a read, so that the model's own work is not attributed to the agent.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;

/// Deltas of a flood, and the text of each.
pub const FLOOD_DELTAS: usize = 20_000;
pub const DELTA: &str = "twenty characters.. ";

/// The minimum time between two deltas of a real model. With it, each timed delta finds an agent that is
/// waiting, as in practice; without it, the first one would be timed together with the response head.
const PACE: Duration = Duration::from_millis(2);

/// How long to wait for the agent to call the model before the measure is abandoned.
const ASKED_WITHIN: Duration = Duration::from_secs(30);

/// Upper bound of a request, far above what a thread can contain; guards against an invalid length.
const REQUEST_BYTES_MAX: usize = 256 << 20;

/// How the model answers its next request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A complete short answer in one write.
    Short,
    /// This many deltas of [`DELTA`], each on [`Performance::go_on`]; the end is sent with the last one.
    Stepped(usize),
    /// This many deltas at this pace, each containing the time at which it was written; see [`stamps`].
    Stamped { deltas: usize, every: Duration },
    /// [`FLOOD_DELTAS`] deltas as fast as the agent reads them.
    Flood,
    /// One call of a tool of the agent: the path of a file to be read, or a command line to be run.
    Call(CalledTool, String),
    /// One delta, then nothing until the agent closes the connection.
    Hang,
}

/// An action of the model and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The last byte of the request was read.
    Asked(Instant),
    /// About to write a delta; for the last write of a reply, together with the end.
    Wrote(Instant),
}

/// The measure's handle on one scripted reply.
pub struct Performance {
    moments: Receiver<Moment>,
    go: Sender<()>,
}

impl Performance {
    /// Waits for the agent's request; returns when it was complete.
    pub fn asked(&self) -> Result<Instant> {
        match self.moments.recv_timeout(ASKED_WITHIN) {
            Ok(Moment::Asked(at)) => Ok(at),
            Ok(Moment::Wrote(_)) => bail!("the model wrote before it was asked"),
            Err(_) => bail!("the agent did not ask the model within {ASKED_WITHIN:?}"),
        }
    }

    /// The time of the next write, in order.
    pub fn wrote(&self) -> Result<Instant> {
        match self.moments.recv_timeout(ASKED_WITHIN) {
            Ok(Moment::Wrote(at)) => Ok(at),
            Ok(Moment::Asked(_)) => bail!("the moments of the request were not read"),
            Err(_) => bail!("the model did not get to write: the agent closed the connection"),
        }
    }

    /// Lets a [`Reply::Stepped`] write its next delta, after the pause of a real model.
    pub fn go_on(&self) -> Result<()> {
        std::thread::sleep(PACE);
        self.go.send(()).context("the model's connection ended early")
    }
}

/// A tool that the model calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalledTool {
    ReadFile,
    Shell,
}

/// The agent's name for a tool, and for the argument that the model gives.
#[derive(Clone, Debug)]
pub struct ToolName {
    pub name: String,
    pub argument: String,
}

/// The agent's names for the tools that the model calls.
#[derive(Clone, Debug)]
pub struct ToolNames {
    pub read_file: ToolName,
    pub shell: ToolName,
}

struct Cue {
    reply: Reply,
    moments: Sender<Moment>,
    go: Receiver<()>,
}

/// The server. It lives as long as the process, with a thread per connection.
pub struct Model {
    address: SocketAddr,
    cues: Arc<Mutex<VecDeque<Cue>>>,
}

impl Model {
    pub fn start(names: ToolNames) -> Result<Model> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
        let address = listener.local_addr()?;
        let cues: Arc<Mutex<VecDeque<Cue>>> = Arc::default();
        let model = Model { address, cues: Arc::clone(&cues) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (cues, names) = (Arc::clone(&cues), names.clone());
                // An agent may close a connection at any time; that is not an error here.
                std::thread::spawn(move || serve(stream, &cues, &names));
            }
        });
        Ok(model)
    }

    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Queues a reply after those that were not requested yet. An unscripted request is answered with
    /// [`Reply::Short`], and so is one without tools: with it, an agent titles a session on its own accord.
    pub fn plan(&self, reply: Reply) -> Performance {
        let (moments, seen) = channel();
        let (go, going) = channel();
        self.cues.lock().push_back(Cue { reply, moments, go: going });
        Performance { moments: seen, go }
    }

    /// Drops the replies that a failed measure left over.
    pub fn clear(&self) {
        self.cues.lock().clear();
    }
}

fn serve(mut stream: TcpStream, cues: &Mutex<VecDeque<Cue>>, names: &ToolNames) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut left = Vec::new();
    loop {
        let (path, request) = read_request(&mut stream, &mut left)?;
        let asked = Instant::now();
        // About what a provider counts; agents decide with it whether to compact.
        let tokens = request.len() / 4;
        if !path.ends_with("/v1/messages") {
            stream.write_all(NOT_FOUND.as_bytes())?;
            continue;
        }
        if !offers_tools(&request) {
            // What is asked for is a summary, or a title.
            write_text(&mut stream, "<summary>A person typed lines.</summary>", tokens)?;
            continue;
        }
        let Some(cue) = cues.lock().pop_front() else {
            write_text(&mut stream, "Done.", tokens)?;
            continue;
        };
        // A measure that only builds a thread may have dropped the receiver.
        let tell = |moment| {
            let _ = cue.moments.send(moment);
        };
        tell(Moment::Asked(asked));
        match cue.reply {
            Reply::Short => write_text(&mut stream, "Done.", tokens)?,
            Reply::Stepped(deltas) => {
                stream.write_all(head(true, tokens).as_bytes())?;
                for number in 1..=deltas {
                    if cue.go.recv().is_err() {
                        return Ok(());
                    }
                    let mut bytes = text_delta(DELTA);
                    if number == deltas {
                        bytes += &tail("end_turn");
                    }
                    tell(Moment::Wrote(Instant::now()));
                    stream.write_all(bytes.as_bytes())?;
                }
            }
            Reply::Stamped { deltas, every } => {
                stream.write_all(head(true, tokens).as_bytes())?;
                for number in 1..=deltas {
                    std::thread::sleep(every);
                    let mut bytes = text_delta(&stamp());
                    if number == deltas {
                        bytes += &tail("end_turn");
                        tell(Moment::Wrote(Instant::now()));
                    }
                    stream.write_all(bytes.as_bytes())?;
                }
            }
            Reply::Flood => {
                let bytes = text_delta(DELTA).repeat(FLOOD_DELTAS)
                    + &tail_of("end_turn", FLOOD_DELTAS * DELTA.len() / 4);
                stream.write_all(head(true, tokens).as_bytes())?;
                std::thread::sleep(PACE);
                tell(Moment::Wrote(Instant::now()));
                stream.write_all(bytes.as_bytes())?;
            }
            Reply::Call(tool, argument) => {
                let name = match tool {
                    CalledTool::ReadFile => &names.read_file,
                    CalledTool::Shell => &names.shell,
                };
                let bytes = head(false, tokens) + &tool_call(name, &argument) + &tail("tool_use");
                tell(Moment::Wrote(Instant::now()));
                stream.write_all(bytes.as_bytes())?;
            }
            Reply::Hang => {
                stream.write_all((head(true, tokens) + &text_delta(DELTA)).as_bytes())?;
                // Only the agent's close can arrive: it must not pipeline during a response.
                drop(stream.read(&mut [0; 1]));
                return Ok(());
            }
        }
    }
}

/// The origin of all stamps.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The current time, as a word.
fn stamp() -> String {
    format!("{} ", BEGUN.elapsed().as_micros())
}

/// Parses the stamps that make up a text.
pub fn stamps(text: &str) -> impl Iterator<Item = Instant> {
    text.split_whitespace().filter_map(|word| Some(*BEGUN + Duration::from_micros(word.parse().ok()?)))
}

fn write_text(stream: &mut TcpStream, text: &str, tokens: usize) -> std::io::Result<()> {
    stream.write_all((head(true, tokens) + &text_delta(text) + &tail("end_turn")).as_bytes())
}

/// Whether a request has tools. No string in it can contain the key with its quotes.
fn offers_tools(request: &[u8]) -> bool {
    const KEY: &[u8] = b"\"tools\":";
    request.windows(KEY.len()).position(|piece| piece == KEY).is_some_and(|at| {
        let list = request[at + KEY.len()..].iter().filter(|byte| !byte.is_ascii_whitespace());
        list.take(2).eq(b"[{")
    })
}

/// Reads one complete request and returns its path without the query, and all its bytes. `left` keeps surplus bytes.
fn read_request(stream: &mut TcpStream, left: &mut Vec<u8>) -> Result<(String, Vec<u8>)> {
    let mut piece = vec![0; 64 << 10];
    let mut more = |left: &mut Vec<u8>| -> Result<()> {
        let count = stream.read(&mut piece)?;
        ensure!(count > 0, "the agent closed the connection");
        left.extend_from_slice(&piece[..count]);
        Ok(())
    };
    let head_end = loop {
        if let Some(at) = left.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        more(left)?;
    };
    let head = String::from_utf8_lossy(&left[..head_end]).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().to_owned();
    let header = |name: &str| {
        head.lines().filter_map(|line| line.split_once(':')).find_map(|(key, value)| {
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_ascii_lowercase())
        })
    };
    let end = if header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
        // Only the end matters; a JSON body cannot contain the raw line breaks of the last chunk.
        let mut searched = head_end;
        loop {
            if let Some(at) = left[searched..].windows(5).position(|five| five == b"0\r\n\r\n") {
                break searched + at + 5;
            }
            searched = left.len().saturating_sub(4).max(head_end);
            ensure!(left.len() < REQUEST_BYTES_MAX, "an endless request");
            more(left)?;
        }
    } else {
        let length: usize = header("content-length").map_or(Ok(0), |text| text.parse())?;
        ensure!(length < REQUEST_BYTES_MAX, "an endless request");
        while left.len() < head_end + length {
            more(left)?;
        }
        head_end + length
    };
    let rest = left.split_off(end);
    Ok((path, std::mem::replace(left, rest)))
}

const NOT_FOUND: &str =
    "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

fn event(name: &str, data: &str) -> String {
    let body = format!("event: {name}\ndata: {data}\n\n");
    format!("{:x}\r\n{body}\r\n", body.len())
}

/// The response head and the start of the message, with the request's size, plus the start of a text block if `text` is set.
fn head(text: bool, tokens: usize) -> String {
    let mut bytes = String::from(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    bytes += &event(
        "message_start",
        &format!(
            r#"{{"type":"message_start","message":{{"id":"msg_bench","type":"message","role":"assistant","model":"scripted","content":[],"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{tokens},"output_tokens":1}}}}}}"#
        ),
    );
    if text {
        bytes += &event(
            "content_block_start",
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        );
    }
    bytes
}

fn text_delta(text: &str) -> String {
    event(
        "content_block_delta",
        &format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
        ),
    )
}

fn tool_call(tool: &ToolName, argument: &str) -> String {
    // An agent may take a second call with the same id for the first one, delivered again.
    static CALLS: AtomicU64 = AtomicU64::new(1);
    let id = format!("toolu_bench{}", CALLS.fetch_add(1, Ordering::Relaxed));
    let input = serde_json::json!({ tool.argument.as_str(): argument }).to_string();
    let start = serde_json::json!({
        "type": "content_block_start", "index": 0,
        "content_block": { "type": "tool_use", "id": id, "name": tool.name, "input": {} },
    });
    let delta = serde_json::json!({
        "type": "content_block_delta", "index": 0,
        "delta": { "type": "input_json_delta", "partial_json": input },
    });
    event("content_block_start", &start.to_string()) + &event("content_block_delta", &delta.to_string())
}

fn tail(stop_reason: &str) -> String {
    tail_of(stop_reason, 9)
}

/// The end of a message with this many tokens.
fn tail_of(stop_reason: &str, tokens: usize) -> String {
    event("content_block_stop", r#"{"type":"content_block_stop","index":0}"#)
        + &event(
            "message_delta",
            &format!(
                r#"{{"type":"message_delta","delta":{{"stop_reason":"{stop_reason}","stop_sequence":null}},"usage":{{"output_tokens":{tokens}}}}}"#
            ),
        )
        + &event("message_stop", r#"{"type":"message_stop"}"#)
        + "0\r\n\r\n"
}
