//! A miniature ACP agent on a thread: sufficient to test the fixture runner.
//!
//! It answers prompts by calling an Anthropic-like model and forwarding its text. It has no tools, no cancel
//! and no persistent memory.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use epitome_acp_check::agent::{AgentEnvironment, Launch, LaunchedAgent};
use serde_json::{Value, json};

/// How often a `MiniAgent` with heartbeats sends one.
const BEAT_EVERY: Duration = Duration::from_millis(100);

/// Starts a `MiniAgent` for each launch.
#[derive(Default)]
pub struct MiniAgent {
    /// Whether it sends notifications all the time.
    pub beats: bool,
    /// How long it waits for more of the model's reply before it ends the turn.
    pub patience: Option<Duration>,
    /// Whether it answers without the model.
    pub answers_itself: bool,
}

impl Launch for MiniAgent {
    fn launch(&self, surroundings: &AgentEnvironment) -> io::Result<LaunchedAgent> {
        let (from_editor, input) = io::pipe()?;
        let (output, to_editor) = io::pipe()?;
        let url = surroundings.variables.iter().find(|(name, _)| name == "ANTHROPIC_BASE_URL");
        if self.beats {
            let mut out = to_editor.try_clone()?;
            let beat = json!({"jsonrpc": "2.0", "method": "_mini/heartbeat", "params": {}});
            std::thread::spawn(move || {
                while out.write_all(format!("{beat}\n").as_bytes()).is_ok() {
                    std::thread::sleep(BEAT_EVERY);
                }
            });
        }
        let address = url.map(|(_, url)| url.to_string_lossy().replace("http://", ""));
        let MiniAgent { patience, answers_itself, .. } = *self;
        std::thread::spawn(move || {
            let mut conversation = Conversation {
                out: to_editor,
                address,
                patience,
                answers_itself,
                sessions: 0,
                messages: Vec::new(),
            };
            for line in BufReader::new(from_editor).lines() {
                let Ok(line) = line else { return };
                if conversation.receive(&line).is_err() {
                    return; // The editor has gone.
                }
            }
        });
        Ok(LaunchedAgent {
            input: Box::new(input),
            output: Box::new(output),
            errors: None,
            kill: Box::new(|| {}),
        })
    }
}

struct Conversation {
    out: io::PipeWriter,
    address: Option<String>,
    patience: Option<Duration>,
    answers_itself: bool,
    sessions: u32,
    messages: Vec<Value>,
}

impl Conversation {
    fn receive(&mut self, line: &str) -> io::Result<()> {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            let error = json!({"code": -32700, "message": "This is no JSON."});
            return self.write(&json!({"jsonrpc": "2.0", "id": null, "error": error}));
        };
        let id = message["id"].clone();
        let result = match message["method"].as_str().unwrap_or("") {
            "initialize" => json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": false}}),
            "session/new" => {
                self.sessions += 1;
                let session = format!("mini-{}", self.sessions);
                self.write(&json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": session}}))?;
                let commands = json!([{"name": "help", "description": "Helps"}]);
                let update =
                    json!({"sessionUpdate": "available_commands_update", "availableCommands": commands});
                return self.update(&session, update);
            }
            "session/prompt" => {
                let session = message["params"]["sessionId"].as_str().unwrap_or("").to_owned();
                self.messages.push(json!({"role": "user", "content": message["params"]["prompt"]}));
                self.update(&session, json!({"sessionUpdate": "usage_update", "used": 7, "size": 100}))?;
                let text = self.ask_model(&session)?;
                self.messages.push(json!({"role": "assistant", "content": text}));
                json!({"stopReason": "end_turn"})
            }
            _ if id.is_null() => return Ok(()),
            _ => {
                let error = json!({"code": -32601, "message": "There is no such method."});
                return self.write(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
            }
        };
        self.write(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    /// Streams the model's text to the editor and returns it.
    fn ask_model(&mut self, session: &str) -> io::Result<String> {
        if self.answers_itself {
            let content = json!({"type": "text", "text": "Hello."});
            self.update(session, json!({"sessionUpdate": "agent_message_chunk", "content": content}))?;
            return Ok("Hello.".to_owned());
        }
        let address = self.address.clone().ok_or_else(|| io::Error::other("there is no model"))?;
        let mut stream = TcpStream::connect(address)?;
        let body = json!({"model": "m", "stream": true, "messages": self.messages}).to_string();
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes())?;
        stream.set_read_timeout(self.patience)?;
        let mut answer = Vec::new();
        // What came before a timeout is the reply.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let mut text = String::new();
        for data in answer.lines().filter_map(|line| line.strip_prefix("data: ")) {
            let event: Value = serde_json::from_str(data).map_err(io::Error::other)?;
            if let Some(piece) = event["delta"]["text"].as_str() {
                text.push_str(piece);
                let content = json!({"type": "text", "text": piece});
                let update =
                    json!({"sessionUpdate": "agent_message_chunk", "messageId": "m1", "content": content});
                self.update(session, update)?;
            }
        }
        Ok(text)
    }

    fn update(&mut self, session: &str, update: Value) -> io::Result<()> {
        let params = json!({"sessionId": session, "update": update});
        self.write(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    }

    fn write(&mut self, message: &Value) -> io::Result<()> {
        // In one piece: heartbeats are written by another thread.
        self.out.write_all(format!("{message}\n").as_bytes())
    }
}
