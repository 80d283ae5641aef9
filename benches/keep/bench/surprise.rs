//! The surprise of a model at what the agent really did next: the mean negative log-probability per token of its next words,
//! given what is left of the conversation.
//!
//! The model is behind an address that takes OpenAI's completions with `echo` and `logprobs`, such as that of vLLM or of
//! llama-cpp-python. Nothing is generated but one token, which is not counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::corpus::{Message, Session};

/// Characters of the agent's next words that are counted. Later ones depend on what happened in between.
const NEXT_CHARS: usize = 1_500;

/// A small model on two cores reads a long message for minutes.
const TIME_MAX: Duration = Duration::from_secs(3_600);

/// A model that says how probable a text is.
pub struct Oracle {
    host: String,
    path: String,
    model: String,
}

impl Oracle {
    /// A model at an address such as `http://127.0.0.1:8000/v1`.
    pub fn at(address: &str, model: &str) -> Result<Oracle> {
        let rest = address.strip_prefix("http://").context("the address does not begin with http://")?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, "v1"));
        let path = format!("/{}/completions", path.trim_matches('/'));
        Ok(Oracle { host: host.to_owned(), path, model: model.to_owned() })
    }

    /// The mean negative log-probability in bits of the tokens of `next` behind `context`.
    pub fn surprise(&self, context: &str, next: &str) -> Result<f64> {
        let prompt = format!("{context}{next}");
        let request = json!({
            "model": self.model, "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0,
        });
        let reply = self.post(&request)?;
        let found = &reply["choices"][0]["logprobs"];
        let list = |name: &str| found[name].as_array().with_context(|| format!("no {name} in {reply:.300}"));
        let (from, to) = (context.chars().count(), prompt.chars().count());
        let (mut bits, mut tokens) = (0.0, 0_u32);
        for (offset, probability) in list("text_offset")?.iter().zip(list("token_logprobs")?) {
            let offset = offset.as_u64().unwrap_or_default() as usize;
            // The first token of a text has no probability.
            if let Some(probability) = probability.as_f64().filter(|_| (from..to).contains(&offset)) {
                bits -= probability / std::f64::consts::LN_2;
                tokens += 1;
            }
        }
        ensure!(
            tokens > 0,
            "the reply has no log-probabilities of the prompt; the server has to know `echo`"
        );
        Ok(bits / f64::from(tokens))
    }

    fn post(&self, request: &Value) -> Result<Value> {
        let body = request.to_string();
        let mut stream =
            TcpStream::connect(&self.host).with_context(|| format!("cannot reach {}", self.host))?;
        stream.set_read_timeout(Some(TIME_MAX))?;
        // To a request of HTTP/1.0, the reply is neither in chunks nor followed by another one.
        write!(
            stream,
            "POST {} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.path,
            self.host,
            body.len()
        )?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let (head, body) = reply.split_once("\r\n\r\n").context("the reply is not HTTP")?;
        if head.split(' ').nth(1) != Some("200") {
            bail!("{}: {body:.300}", head.lines().next().unwrap_or_default());
        }
        serde_json::from_str(body).with_context(|| format!("the reply is not JSON: {body:.300}"))
    }
}

/// Returns the first words and calls of the agent after the compaction; `None` if the session has none.
pub fn next_words(session: &Session) -> Option<String> {
    let is_agents = |message: &&Message| matches!(message, Message::Agent(_));
    let words: Vec<String> = session.later.iter().filter(is_agents).map(Message::words).collect();
    let words: String = words.join("\n").chars().take(NEXT_CHARS).collect();
    (!words.trim().is_empty()).then_some(words)
}
