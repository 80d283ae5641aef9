//! A scripted model: an HTTP/1.1 server inside the bench process that speaks Anthropic's streamed
//! Messages and says when it did what. It understands no request beyond its length, and never retries.
//!
//! Each event is one chunk of the chunked body. Clocks are read at the latest moment before a write and
//! at the earliest after a read, so that the model's own work is not counted as the agent's.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Deltas of a flood, and the characters of each.
pub const FLOOD_DELTAS: usize = 20_000;
pub const DELTA: &str = "twenty characters.. ";

/// How long a real model takes at least between two deltas. With it, each timed delta finds an agent
/// that waits, which is what a person sees; without it, the first would be timed together with the
/// response's head.
const PACE: Duration = Duration::from_millis(2);

/// How long to wait for the agent to ask the model before the measure is given up.
const ASKED_WITHIN: Duration = Duration::from_secs(30);

/// No request is longer: a bound against a broken length, far above what a thread can hold.
const REQUEST_BYTES_MAX: usize = 256 << 20;

/// What the model does when it is next asked.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A whole short answer in one write.
    Short,
    /// So many deltas of [`DELTA`], each on [`Performance::go_on`]; the end comes with the last one.
    Stepped(usize),
    /// So many deltas at this pace, each with the moment at which it was written; see [`stamps`].
    Stamped { deltas: usize, every: Duration },
    /// [`FLOOD_DELTAS`] deltas as fast as the agent takes them.
    Flood,
    /// One call of `file_read` for this file.
    ReadFile(PathBuf),
    /// One delta, then nothing until the agent closes the connection.
    Hang,
}

/// What the model saw or did, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The last byte of the request was read.
    Asked(Instant),
    /// About to write a delta; for the last write of a reply, the end with it.
    Wrote(Instant),
}

/// One scripted reply, as the measure follows it.
pub struct Performance {
    moments: Receiver<Moment>,
    go: Sender<()>,
}

impl Performance {
    /// Waits until the agent has asked; the moment at which its request was complete.
    pub fn asked(&self) -> Result<Instant> {
        match self.moments.recv_timeout(ASKED_WITHIN) {
            Ok(Moment::Asked(at)) => Ok(at),
            Ok(Moment::Wrote(_)) => bail!("the model wrote before it was asked"),
            Err(_) => bail!("the agent did not ask the model within {ASKED_WITHIN:?}"),
        }
    }

    /// The moment of the next write, in order.
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

struct Cue {
    reply: Reply,
    moments: Sender<Moment>,
    go: Receiver<()>,
}

/// The server. It ends with the process; each connection has a thread.
pub struct Model {
    address: SocketAddr,
    cues: Arc<Mutex<VecDeque<Cue>>>,
}

impl Model {
    pub fn start() -> Result<Model> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
        let address = listener.local_addr()?;
        let cues: Arc<Mutex<VecDeque<Cue>>> = Arc::default();
        let model = Model { address, cues: Arc::clone(&cues) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let cues = Arc::clone(&cues);
                // An agent may close whenever it likes: the end of a connection is no news here.
                std::thread::spawn(move || serve(stream, &cues));
            }
        });
        Ok(model)
    }

    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Puts a reply behind those that were not asked for yet. An unscripted request is answered
    /// [`Reply::Short`].
    pub fn plan(&self, reply: Reply) -> Performance {
        let (moments, seen) = channel();
        let (go, going) = channel();
        self.cues().push_back(Cue { reply, moments, go: going });
        Performance { moments: seen, go }
    }

    /// Drops what a failed measure left over.
    pub fn clear(&self) {
        self.cues().clear();
    }

    fn cues(&self) -> std::sync::MutexGuard<'_, VecDeque<Cue>> {
        self.cues.lock().expect("no thread panics while it holds the cues")
    }
}

fn serve(mut stream: TcpStream, cues: &Mutex<VecDeque<Cue>>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut left = Vec::new();
    loop {
        let path = read_request(&mut stream, &mut left)?;
        let asked = Instant::now();
        if !path.ends_with("/v1/messages") {
            stream.write_all(NOT_FOUND.as_bytes())?;
            continue;
        }
        let cue = cues.lock().expect("no thread panics while it holds the cues").pop_front();
        let Some(cue) = cue else {
            write_short(&mut stream)?;
            continue;
        };
        // The measure may have lost interest (building a thread): then nobody receives.
        let tell = |moment| {
            let _ = cue.moments.send(moment);
        };
        tell(Moment::Asked(asked));
        match cue.reply {
            Reply::Short => write_short(&mut stream)?,
            Reply::Stepped(deltas) => {
                stream.write_all(head(true).as_bytes())?;
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
                stream.write_all(head(true).as_bytes())?;
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
                let bytes = text_delta(DELTA).repeat(FLOOD_DELTAS) + &tail("end_turn");
                stream.write_all(head(true).as_bytes())?;
                std::thread::sleep(PACE);
                tell(Moment::Wrote(Instant::now()));
                stream.write_all(bytes.as_bytes())?;
            }
            Reply::ReadFile(file) => {
                let bytes = head(false) + &tool_call(&file) + &tail("tool_use");
                tell(Moment::Wrote(Instant::now()));
                stream.write_all(bytes.as_bytes())?;
            }
            Reply::Hang => {
                stream.write_all((head(true) + &text_delta(DELTA)).as_bytes())?;
                // Nothing but the agent's closing can come: it may not pipeline on a running answer.
                drop(stream.read(&mut [0; 1]));
                return Ok(());
            }
        }
    }
}

/// What stamps count from.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The present moment, as a word.
fn stamp() -> String {
    format!("{} ", BEGUN.elapsed().as_micros())
}

/// The moments that a text is made of.
pub fn stamps(text: &str) -> impl Iterator<Item = Instant> {
    text.split_whitespace().filter_map(|word| Some(*BEGUN + Duration::from_micros(word.parse().ok()?)))
}

fn write_short(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all((head(true) + &text_delta("Done.") + &tail("end_turn")).as_bytes())
}

/// Reads one request to its last byte and returns its path without the query. `left` keeps bytes that
/// came beyond it.
fn read_request(stream: &mut TcpStream, left: &mut Vec<u8>) -> Result<String> {
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
        // Only whether it ended matters; a JSON body cannot hold the last chunk's raw line ends.
        loop {
            if let Some(at) = left[head_end..].windows(5).position(|five| five == b"0\r\n\r\n") {
                break head_end + at + 5;
            }
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
    left.drain(..end);
    Ok(path)
}

const NOT_FOUND: &str =
    "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

fn event(name: &str, data: &str) -> String {
    let body = format!("event: {name}\ndata: {data}\n\n");
    format!("{:x}\r\n{body}\r\n", body.len())
}

/// The response's head and the start of the message, with its first text block where there is text.
fn head(text: bool) -> String {
    let mut bytes = String::from(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    bytes += &event(
        "message_start",
        r#"{"type":"message_start","message":{"id":"msg_bench","type":"message","role":"assistant","model":"scripted","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"output_tokens":1}}}"#,
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

fn tool_call(file: &std::path::Path) -> String {
    let input = serde_json::json!({ "file_path": file }).to_string();
    let start = r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"toolu_bench","name":"file_read","input":{}}}"#;
    let delta = serde_json::json!({
        "type": "content_block_delta", "index": 0,
        "delta": { "type": "input_json_delta", "partial_json": input },
    });
    event("content_block_start", start) + &event("content_block_delta", &delta.to_string())
}

fn tail(stop_reason: &str) -> String {
    event("content_block_stop", r#"{"type":"content_block_stop","index":0}"#)
        + &event(
            "message_delta",
            &format!(
                r#"{{"type":"message_delta","delta":{{"stop_reason":"{stop_reason}","stop_sequence":null}},"usage":{{"output_tokens":9}}}}"#
            ),
        )
        + &event("message_stop", r#"{"type":"message_stop"}"#)
        + "0\r\n\r\n"
}
