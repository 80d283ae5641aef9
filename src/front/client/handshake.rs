//! The requests with which a connection begins, before it has sessions. Blocking. Errors are sentences for the user.

use std::io::{self, BufRead, BufReader, Write};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v2::schema as wire;
use serde::Serialize;
use serde_json::{Value, json};

use super::link::{AcpLink, LinkMessage};
use epitome_platform::local::Stream;

/// A connection that has no session yet, so that the agent sends nothing but answers.
pub struct Handshake<R, W> {
    link: AcpLink<()>,
    reader: R,
    writer: W,
    agent_meta: Value,
    takes_images: bool,
}

/// The two halves of a socket, in blocking mode.
pub fn halves(stream: Stream) -> Result<(BufReader<Stream>, Stream), String> {
    let writer = stream.set_nonblocking(false).and_then(|()| stream.try_clone()).map_err(unusable)?;
    Ok((BufReader::new(stream), writer))
}

impl<R: BufRead, W: Write> Handshake<R, W> {
    /// Initializes a connection with version 2 of the protocol.
    pub fn begin(
        (reader, writer): (R, W),
        info: wire::Implementation,
        capabilities: wire::ClientCapabilities,
    ) -> Result<Handshake<R, W>, String> {
        let mut handshake = Handshake {
            link: AcpLink::default(),
            reader,
            writer,
            agent_meta: Value::Null,
            takes_images: false,
        };
        let params = wire::InitializeRequest::new(ProtocolVersion::V2, info).capabilities(capabilities);
        let mut answer = handshake.call("initialize", &params)?;
        if answer["protocolVersion"] != json!(ProtocolVersion::V2) {
            return Err("the daemon does not offer version 2 of the protocol, which `acp_v2 = false` in \
                        config.toml turns off"
                .to_owned());
        }
        handshake.agent_meta = answer["_meta"].take();
        handshake.takes_images = answer["capabilities"]["session"]["prompt"]["image"].is_object();
        Ok(handshake)
    }

    /// Whether the agent adds the log to what it sends (see the crate).
    pub fn reports_log(&self) -> bool {
        self.agent_meta["epitome"]["log"] == true
    }

    /// Whether prompts may have images.
    pub fn takes_images(&self) -> bool {
        self.takes_images
    }

    /// Sends a request and waits for its answer.
    pub fn call(&mut self, method: &'static str, params: &impl Serialize) -> Result<Value, String> {
        self.link.request(method, params, ());
        self.writer.write_all(&self.link.take_lines()).map_err(unusable)?;
        let mut line = Vec::new();
        loop {
            line.clear();
            if self.reader.read_until(b'\n', &mut line).map_err(unusable)? == 0 {
                return Err("the daemon closed the connection".to_owned());
            }
            let message = self.link.receive(&line);
            match message.map_err(|error| format!("the daemon's answer can't be read: {error}"))? {
                LinkMessage::Answer((), answer) => return answer.map_err(|error| sentence(&error)),
                LinkMessage::Request { .. } | LinkMessage::Notification { .. } | LinkMessage::Nothing => {}
            }
        }
    }

    /// The connection for requests about sessions, and its two halves.
    pub fn finish<K>(self) -> (AcpLink<K>, R, W) {
        (self.link.for_purposes(), self.reader, self.writer)
    }
}

fn unusable(error: io::Error) -> String {
    format!("the connection to the daemon can't be used: {error}")
}

/// An error of the agent, with its hint.
pub fn sentence(error: &Value) -> String {
    with_hint(error["message"].as_str().unwrap_or("the daemon refused it"), error.get("data"))
}

/// The message of an error with the hint in its data.
pub fn with_hint(message: &str, data: Option<&Value>) -> String {
    match data.and_then(|data| data.get("details")).and_then(Value::as_str) {
        Some(hint) if !message.contains(hint) => format!("{}. {hint}", message.trim_end_matches('.')),
        Some(_) | None => message.to_owned(),
    }
}
