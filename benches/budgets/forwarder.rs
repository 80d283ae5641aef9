//! The floor: the minimum that any agent process must spend. A bare forwarder between an editor's pipe and the model's
//! socket that understands just enough of both protocols for the bench to drive it. It stores nothing, validates
//! nothing, parses no JSON (strings are copied with their escapes) and is not usable as an agent.
//! Two threads: the main thread reads the editor's lines and writes the model's requests; the other one
//! blocks in reads of the model's socket and writes the chunks. No timed path hands a message from one thread
//! to another.

use std::io::{BufRead, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

/// Messages that every `session/load` replays, as many as the measured thread contains.
pub const LOADED_MESSAGES: usize = 1_000;

/// Bytes of the model's answer that are read at once; whatever has arrived is merged into one chunk.
const PIECE_BYTES: usize = 64 << 10;

/// State shared by the two threads: the prompt in flight.
#[derive(Default)]
struct Flight {
    /// The request's id as it was written, and its session id.
    prompt: Option<(String, String)>,
    model: Option<TcpStream>,
}

pub fn run() {
    let flight: Arc<Mutex<Flight>> = Arc::default();
    let mut sessions = 0;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let id = after(&line, "\"id\":").map(|rest| &rest[..rest.find([',', '}']).unwrap_or(0)]);
        let session = string(&line, "\"sessionId\":\"").unwrap_or_default();
        let (method, id) = (string(&line, "\"method\":\"").unwrap_or_default(), id.unwrap_or_default());
        match method {
            "initialize" => answer(id, r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}"#),
            "session/new" => {
                sessions += 1;
                answer(id, &format!("{{\"sessionId\":\"s_{sessions:020x}\"}}"));
            }
            "session/load" => {
                say(&replay(session));
                answer(id, "{}");
            }
            "session/prompt" => {
                let text = string(&line, "\"text\":\"").unwrap_or_default();
                let mut now = flight.lock();
                now.prompt = Some((id.to_owned(), session.to_owned()));
                if now.model.is_none() {
                    let Some(stream) = connect() else { return };
                    let (reader, shared) = (stream.try_clone(), Arc::clone(&flight));
                    now.model = Some(stream);
                    std::thread::spawn(move || reader.is_ok_and(|reader| forward(reader, &shared)));
                }
                if let Some(stream) = &now.model {
                    ask(stream, text);
                }
            }
            "session/cancel" => {
                let mut now = flight.lock();
                if let Some((id, _)) = now.prompt.take() {
                    answer(&id, r#"{"stopReason":"cancelled"}"#);
                }
                if let Some(stream) = now.model.take() {
                    drop(stream.shutdown(Shutdown::Both));
                }
            }
            _ => {}
        }
    }
}

/// Copies the model's text to the editor until the connection ends. Each event is a separate HTTP chunk, so the lines
/// between events (the chunk lengths) are skipped like every line that does not start with `data:`.
fn forward(mut model: TcpStream, flight: &Mutex<Flight>) -> bool {
    let mut bytes = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut file = None;
    loop {
        match model.read(&mut piece) {
            Ok(count) if count > 0 => bytes.extend_from_slice(&piece[..count]),
            _ => return false,
        }
        let (mut text, mut ended, mut start) = (String::new(), false, 0);
        while let Some(length) = bytes[start..].iter().position(|byte| *byte == b'\n') {
            let line = &bytes[start..start + length];
            start += length + 1;
            let Some(data) = line.strip_prefix(b"data: ").and_then(|data| std::str::from_utf8(data).ok())
            else {
                continue;
            };
            if let Some(delta) = string(data, "\"text_delta\",\"text\":\"") {
                text += delta;
            } else if let Some(path) = string(data, "\\\":\\\"") {
                file = Some(path.trim_end_matches('\\').to_owned());
            } else {
                ended |= data.contains("\"message_stop\"");
            }
        }
        bytes.drain(..start);
        let mut now = flight.lock();
        let Some((id, session)) = &now.prompt else { continue };
        if !text.is_empty() {
            say(&chunk(session, "agent_message_chunk", &text));
        }
        if !ended {
            continue;
        }
        match file.take() {
            Some(path) => {
                let length = std::fs::read(Path::new(&path)).map_or(0, |content| content.len());
                say(&chunk(session, "agent_thought_chunk", &path));
                ask(&model, &format!("{path}: {length} bytes"));
            }
            None => {
                answer(id, r#"{"stopReason":"end_turn"}"#);
                now.prompt = None;
            }
        }
    }
}

fn connect() -> Option<TcpStream> {
    let base = std::env::var("ANTHROPIC_BASE_URL").ok()?;
    let stream = TcpStream::connect(base.strip_prefix("http://")?).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

/// Sends one request, head and body in one write. The reading thread notices when the model has disconnected.
fn ask(mut model: &TcpStream, text: &str) {
    let body = format!(
        r#"{{"model":"scripted","max_tokens":1024,"stream":true,"messages":[{{"role":"user","content":"{text}"}}],"tools":[{{}}]}}"#
    );
    let request = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: test\r\nanthropic-version: 2026-10-21\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    drop(model.write_all(request.as_bytes()));
}

fn answer(id: &str, result: &str) {
    say(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n"));
}

/// Writes complete lines. An editor that has disconnected closes stdin too, which ends the process.
fn say(lines: &str) {
    let mut out = std::io::stdout().lock();
    drop(out.write_all(lines.as_bytes()).and_then(|()| out.flush()));
}

fn chunk(session: &str, kind: &str, text: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"{session}\",\
         \"update\":{{\"sessionUpdate\":\"{kind}\",\"content\":{{\"type\":\"text\",\"text\":\"{text}\"}}}}}}}}\n"
    )
}

fn replay(session: &str) -> String {
    (0..LOADED_MESSAGES)
        .map(|number| match number % 2 {
            0 => chunk(session, "user_message_chunk", "Say that it is done."),
            _ => chunk(session, "agent_message_chunk", "Done."),
        })
        .collect()
}

fn after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.find(key).map(|at| &line[at + key.len()..])
}

/// The text after `key` up to the next quote: sufficient for strings without escaped quotes.
fn string<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = after(line, key)?;
    Some(&rest[..rest.find('"')?])
}
