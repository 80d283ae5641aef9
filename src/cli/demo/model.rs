//! The model of the demo: answers over HTTP on loopback, in the format of a local server (Chat Completions), with
//! scripted replies. It serves nothing else, and closes each connection after one response.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

/// Maximum bytes of a request's body; the largest of the demo has about 100 KB.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A part of a scripted reply.
pub enum ScriptStep {
    Text(&'static str),
    Call {
        name: &'static str,
        input: Value,
    },
    /// Nothing more is sent until the client gives up.
    Hang,
}

/// A reply, and the number of input tokens that it reports.
pub struct ScriptReply {
    pub steps: Vec<ScriptStep>,
    pub input_tokens: u64,
}

/// Returns the reply to a request, given the number of earlier requests; `None` results in an error response.
type Script = fn(usize, &Value) -> Option<ScriptReply>;

/// A running model server. Its threads end with the process.
pub struct DemoModel {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl DemoModel {
    /// Listens on a free loopback port.
    pub fn start(name: &'static str, window: u64, script: Script) -> io::Result<DemoModel> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let list = json!({ "object": "list", "data": [{ "id": name, "max_model_len": window }] });
        let received = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (list, received) = (list.clone(), received.clone());
                // Errors are ignored: the client has disconnected.
                std::thread::spawn(move || serve(stream, &list, &received, script).ok());
            }
        });
        Ok(DemoModel { address, requests })
    }

    /// The base URL for `EPITOME_LOCAL_URL`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.lock().len()
    }

    /// The body of the newest request.
    pub fn last_request(&self) -> Option<Value> {
        self.requests.lock().last().cloned()
    }
}

fn serve(stream: TcpStream, list: &Value, received: &Mutex<Vec<Value>>, script: Script) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (head, body) = read_request(&mut reader)?;
    match head.as_str() {
        "GET /v1/models" => plain(stream, "200 OK", list),
        "POST /v1/chat/completions" => {
            let request: Value = serde_json::from_slice(&body)?;
            let mut requests = received.lock();
            let number = requests.len();
            let reply = script(number, &request);
            requests.push(request);
            drop(requests);
            match reply {
                Some(reply) => stream_reply(stream, &mut reader, number, reply),
                None => {
                    let error = json!({ "error": { "message": "the script has no more replies" } });
                    plain(stream, "400 Bad Request", &error)
                }
            }
        }
        _ => plain(stream, "404 Not Found", &json!({ "error": { "message": "there is no such page" } })),
    }
}

/// Returns the request line's method and path, and the body.
fn read_request(reader: &mut impl BufRead) -> io::Result<(String, Vec<u8>)> {
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
            }
            Some(_) => {}
            None => break,
        }
    }
    if length > BODY_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let words: Vec<&str> = first.split(' ').take(2).collect();
    Ok((words.join(" "), body))
}

fn plain(mut stream: TcpStream, status: &str, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = "content-type: application/json\r\nconnection: close";
    write!(stream, "HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn stream_reply(
    mut stream: TcpStream,
    reader: &mut impl Read,
    number: usize,
    reply: ScriptReply,
) -> io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
    let mut calls = 0;
    for step in reply.steps {
        let delta = match step {
            ScriptStep::Text(text) => json!({ "content": text }),
            ScriptStep::Call { name, input } => {
                let function = json!({ "name": name, "arguments": input.to_string() });
                let id = format!("call_{number}_{calls}");
                let call = json!({ "index": calls, "id": id, "type": "function", "function": function });
                calls += 1;
                json!({ "tool_calls": [call] })
            }
            ScriptStep::Hang => {
                io::copy(reader, &mut io::sink())?;
                return Ok(());
            }
        };
        let chunk = json!({ "choices": [{ "index": 0, "delta": delta }] });
        write!(stream, "data: {chunk}\n\n")?;
    }
    let reason = if calls > 0 { "tool_calls" } else { "stop" };
    let end = json!({
        "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }],
        "usage": { "prompt_tokens": reply.input_tokens, "completion_tokens": 40 },
    });
    write!(stream, "data: {end}\n\ndata: [DONE]\n\n")
}
