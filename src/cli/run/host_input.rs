//! `--input-format stream-json`: the lines that a program writes to stdin, in the format of SDKs of Claude Code.

use std::io::{self, BufRead, BufReader, Read as _, Stdin};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::acp::attached;
use crate::cli::queue::{InputQueue, RunInput};
use crate::thread::attached::prompt_too_large;
use crate::thread::{ClientInstructions, Content};

/// Maximum bytes of a line. It may contain images.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A line that a program wrote.
#[derive(Debug, PartialEq)]
pub enum HostLine {
    Prompt(Vec<Content>),
    Request {
        id: String,
        request: HostRequest,
    },
    /// The answer to a question, or why the program has none.
    Answer {
        id: String,
        answer: Result<Value, String>,
    },
    /// Something that needs no reaction.
    Nothing,
}

/// A request of the program, which gets an answer.
#[derive(Debug, PartialEq)]
pub enum HostRequest {
    Initialize(Box<HostSetup>),
    Interrupt,
    SetMode(String),
    SetModel(String),
    Unsupported(String),
}

/// The program's configuration before its first prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostSetup {
    pub instructions: Option<ClientInstructions>,
    /// The JSON Schema of replies.
    pub schema: Option<Value>,
    /// Settings that Epitome does not support.
    pub unsupported: Vec<&'static str>,
}

impl HostSetup {
    pub fn check(&self) -> Result<(), String> {
        match self.unsupported[..] {
            [] => Ok(()),
            [..] => Err(format!(
                "Epitome does not support these options of SDKs: {}",
                self.unsupported.join(", ")
            )),
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WrittenLine {
    User {
        message: WrittenMessage,
    },
    ControlRequest {
        request_id: String,
        request: Map<String, Value>,
    },
    ControlResponse {
        response: WrittenResponse,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct WrittenMessage {
    content: WrittenContent,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "the content is neither a text nor a list of blocks (text, image, document)")]
enum WrittenContent {
    Text(String),
    Blocks(Vec<WrittenBlock>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WrittenBlock {
    Text { text: String },
    Image { source: WrittenSource },
    Document { source: WrittenSource, title: Option<String> },
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum WrittenSource {
    Base64 { media_type: String, data: String },
}

#[derive(Deserialize)]
#[serde(tag = "subtype", rename_all = "snake_case")]
enum WrittenResponse {
    Success {
        request_id: String,
        #[serde(default)]
        response: Value,
    },
    Error {
        request_id: String,
        error: String,
    },
}

pub fn parse(line: &str) -> Result<HostLine, String> {
    let written: WrittenLine = serde_json::from_str(line).map_err(|error| {
        // Parsing starts at each line of stdin anew.
        let text = error.to_string().replace(" at line 1 column ", " at column ");
        if error.is_syntax() { format!("it is not JSON: {text}") } else { text }
    })?;
    Ok(match written {
        WrittenLine::User { message } => HostLine::Prompt(content(message.content)?),
        WrittenLine::ControlRequest { request_id, request } => {
            HostLine::Request { id: request_id, request: host_request(&request) }
        }
        WrittenLine::ControlResponse { response } => match response {
            WrittenResponse::Success { request_id, response } => {
                HostLine::Answer { id: request_id, answer: Ok(response) }
            }
            WrittenResponse::Error { request_id, error } => {
                HostLine::Answer { id: request_id, answer: Err(error) }
            }
        },
        WrittenLine::Other => HostLine::Nothing,
    })
}

fn content(written: WrittenContent) -> Result<Vec<Content>, String> {
    let content = match written {
        WrittenContent::Text(text) => vec![Content::Text { text }],
        WrittenContent::Blocks(blocks) => blocks.into_iter().map(part).collect(),
    };
    let is_blank = |part: &Content| part.as_text().is_some_and(|text| text.trim().is_empty());
    match prompt_too_large(&content) {
        Some(why) => Err(format!("the prompt has {why}")),
        None if content.iter().all(is_blank) => Err("the prompt is empty".to_owned()),
        None => {
            let checked =
                |(at, part)| attached::checked(&format!("content[{at}]"), part).map_err(|bad| bad.0);
            content.into_iter().enumerate().map(checked).collect()
        }
    }
}

fn part(block: WrittenBlock) -> Content {
    match block {
        WrittenBlock::Text { text } => Content::Text { text },
        WrittenBlock::Image { source: WrittenSource::Base64 { media_type, data } } => {
            Content::Image { mime_type: media_type, data, uri: None }
        }
        WrittenBlock::Document { source: WrittenSource::Base64 { media_type, data }, title } => {
            Content::Document { mime_type: media_type, data, name: title }
        }
    }
}

fn host_request(request: &Map<String, Value>) -> HostRequest {
    let text = |field: &str| request.get(field).and_then(Value::as_str).map(str::to_owned);
    match (text("subtype").as_deref(), text("mode"), text("model")) {
        (Some("initialize"), ..) => HostRequest::Initialize(Box::new(setup(request))),
        (Some("interrupt"), ..) => HostRequest::Interrupt,
        (Some("set_permission_mode"), Some(mode), _) => HostRequest::SetMode(mode),
        (Some("set_model"), _, Some(model)) => HostRequest::SetModel(model),
        (subtype, ..) => HostRequest::Unsupported(subtype.unwrap_or("without a subtype").to_owned()),
    }
}

fn setup(request: &Map<String, Value>) -> HostSetup {
    let is_given = |field: &str| match request.get(field) {
        None | Some(Value::Null) => false,
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    let texts = |field: &str| match request.get(field) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n\n"),
        _ => String::new(),
    };
    HostSetup {
        instructions: instructions(texts("systemPrompt"), texts("appendSystemPrompt")),
        schema: request.get("jsonSchema").filter(|schema| !schema.is_null()).cloned(),
        unsupported: ["hooks", "sdkMcpServers", "agents", "toolAliases"]
            .into_iter()
            .filter(|field| is_given(field))
            .collect(),
    }
}

/// The instructions for a system prompt that replaces Epitome's description of its role, or is appended to it.
pub fn instructions(replacing: String, appended: String) -> Option<ClientInstructions> {
    let replaces_role = !replacing.trim().is_empty();
    let texts: Vec<String> =
        [replacing, appended].into_iter().filter(|text| !text.trim().is_empty()).collect();
    (!texts.is_empty()).then(|| ClientInstructions { text: texts.join("\n\n"), replaces_role })
}

/// Reads lines from stdin.
pub struct HostReader {
    lines: BufReader<Stdin>,
    number: u64,
}

impl HostReader {
    pub fn new() -> HostReader {
        HostReader { lines: BufReader::new(io::stdin()), number: 0 }
    }

    /// Returns the next line that is not empty; `None` at the end of stdin.
    pub fn next(&mut self) -> Option<Result<HostLine, String>> {
        loop {
            let mut bytes = Vec::new();
            self.number += 1;
            let read = (&mut self.lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes);
            let line = match read {
                Ok(0) => return None,
                Ok(_) if bytes.len() as u64 == LINE_BYTES_MAX => {
                    Err(format!("it has more than {} MiB", LINE_BYTES_MAX / (1024 * 1024)))
                }
                Ok(_) => String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            let line = match line {
                Ok(line) if line.trim().is_empty() => continue,
                Ok(line) => parse(&line),
                Err(error) => Err(error),
            };
            return Some(line.map_err(|why| format!("line {} of stdin can't be used: {why}", self.number)));
        }
    }

    /// Starts the thread that queues all further lines. It ends with stdin or the process.
    pub fn feed(mut self, queue: &Arc<InputQueue>) -> io::Result<()> {
        let queue = queue.clone();
        let read = move || {
            while let Some(line) = self.next() {
                let is_last = line.is_err();
                queue.put_input(RunInput::Host(line));
                if is_last {
                    return;
                }
            }
            queue.put_input(RunInput::HostLeft);
        };
        std::thread::Builder::new().name("stdin".to_owned()).spawn(read).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(value: Value) -> HostLine {
        parse(&value.to_string()).expect("a good line")
    }

    #[test]
    fn prompts_are_texts_or_blocks() {
        let text = |text: &str| Content::Text { text: text.to_owned() };
        let written = json!({ "type": "user", "message": { "role": "user", "content": "hello" } });
        assert_eq!(line(written), HostLine::Prompt(vec![text("hello")]));
        let source = json!({ "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=" });
        let blocks = json!([{ "type": "text", "text": "look" }, { "type": "image", "source": source }]);
        let image =
            Content::Image { mime_type: "image/png".to_owned(), data: "iVBORw0KGgo=".to_owned(), uri: None };
        let written = json!({ "type": "user", "session_id": "", "parent_tool_use_id": null,
            "message": { "role": "user", "content": blocks } });
        assert_eq!(line(written), HostLine::Prompt(vec![text("look"), image]));
    }

    /// Regression: images were stored as they came. With a wrong type, providers refused each later prompt of the session.
    #[test]
    fn images_have_the_type_of_their_first_bytes() {
        let image = |media_type: &str, data: &str| {
            let source = json!({ "type": "base64", "media_type": media_type, "data": data });
            let content = [json!({ "type": "image", "source": source })];
            json!({ "type": "user", "message": { "content": content } })
        };
        let HostLine::Prompt(parts) = line(image("image/jpeg", "iVBORw0KGgo=")) else { panic!("a prompt") };
        assert!(matches!(&parts[..], [Content::Image { mime_type, .. }] if mime_type == "image/png"));
        for data in ["aGVsbG8=", "no!"] {
            let error = parse(&image("image/png", data).to_string()).expect_err("it is refused");
            assert!(error.contains("`content[0]"), "{error}");
        }
    }

    #[test]
    fn a_line_that_can_not_be_used_is_an_error_and_not_skipped() {
        for (written, expected) in [
            (r#"{"type":"user"}"#, "missing field `message`"),
            (r#"{"type":"user","message":{"content":[]}}"#, "the prompt is empty"),
            (r#"{"type":"user","message":{"content":[{"type":"audio"}]}}"#, "neither a text nor a list"),
            ("hello", "expected value"),
        ] {
            let error = parse(written).expect_err("it is refused");
            assert!(error.contains(expected), "{written}: {error}");
        }
        assert_eq!(parse(r#"{"type":"keep_alive"}"#), Ok(HostLine::Nothing));
    }

    /// Both SDKs send an empty system prompt unless the program sets one.
    #[test]
    fn an_empty_system_prompt_changes_nothing() {
        let of = |request: Value| {
            let written = json!({ "type": "control_request", "request_id": "1", "request": request });
            match line(written) {
                HostLine::Request { request: HostRequest::Initialize(setup), .. } => *setup,
                other => panic!("{other:?}"),
            }
        };
        let setup = of(json!({ "subtype": "initialize", "systemPrompt": [""], "hooks": null }));
        assert_eq!(setup, HostSetup::default());
        let setup = of(json!({ "subtype": "initialize", "appendSystemPrompt": "Be brief.", "jsonSchema": {},
            "hooks": { "PreToolUse": [{}] }, "sdkMcpServers": [] }));
        let brief = ClientInstructions { text: "Be brief.".to_owned(), replaces_role: false };
        assert_eq!((setup.instructions, setup.schema), (Some(brief), Some(json!({}))));
        assert_eq!(setup.unsupported, ["hooks"]);
    }
}
