//! Reads the sessions of other agents, and finds them on this machine. The program `epitome-import` prints them as JSON
//! for `epitome sessions import`, which stores them.
//!
//! | format | recognized by | module |
//! | --- | --- | --- |
//! | Epitome's export | the first line opens a log | `epitome-transfer` |
//! | a protocol transcript, recorded with `--transcript` | `editor>` lines | `recorded` |
//! | a session of the pi coding agent, versions 1 to 3 | the first line has `"type":"session"` | `pi` |
//! | Claude Code | a line has `parentUuid` | `claude_code` |
//! | Codex | the first line has `"type":"session_meta"` | `codex` |
//! | opencode, as written by `opencode export` | an object with `info` and `messages` | `opencode` |
//! | Gemini CLI | an object with `sessionId`, and `projectHash` or times; a message of the type `gemini` | `gemini` |
//! | Cline and Roo Code | an array of messages with `role` and `content` | `cline` |
//! | Copilot CLI | the first line has `"type":"session.start"` | `copilot` |
//! | Kimi Code and Kimi CLI | a line has `protocol_version`, a `context.append_…` or a role that begins with `_` | `kimi` |
//! | kodelet | an object with `kodelet`, from a row of its database | `kodelet` |
//! | aider | `# aider chat started at` | `aider` |
//! | a trajectory of SWE-agent | an object with `trajectory` and `history` | `swe_agent` |
//! | a request to a model, of Anthropic or OpenAI | `messages` or `input`, or messages with `role` | `messages` |
//!
//! In Epitome's formats and pi's, a line that cannot be read fails the import with a `Problem` that names the line.
//! The formats of other agents change without notice, so their unreadable lines and unknown types are skipped and
//! counted. Contents that can't be represented in a log (another branch, an unknown kind of image) are skipped and
//! reported.

#[cfg(feature = "stored")]
mod agents;
mod aider;
mod builder;
mod claude_code;
mod cline;
mod codex;
mod copilot;
#[cfg(feature = "stored")]
mod database;
mod earlier;
#[cfg(feature = "stored")]
mod files;
mod gemini;
mod kimi;
mod kodelet;
#[cfg(feature = "stored")]
mod kodelet_store;
mod marker;
mod messages;
mod opencode;
#[cfg(feature = "stored")]
mod opencode_store;
mod pi;
mod recorded;
#[cfg(feature = "stored")]
mod stored;
mod swe_agent;

use std::borrow::Cow;
use std::path::Path;

use serde_json::Value;

use epitome_thread::problem::Problem;
use epitome_thread::{Content, Trigger, Usage};
use epitome_transfer::{ImportDraft, ImportFile, ImportSource};

#[cfg(feature = "stored")]
pub use agents::{ForeignAgent, Machine};
pub use builder::Builder;
pub use earlier::{OwnCompaction, unfolded};
#[cfg(feature = "stored")]
pub use files::{read_bytes, read_sibling};
pub use marker::sealed;
pub use messages::{has_call, is_result};

/// Without the feature `stored`, a session is one text.
#[cfg(not(feature = "stored"))]
pub fn read_sibling(_: &Path, _: &Path) -> Option<String> {
    None
}

/// Upper limit for token counts: more than any conversation has used, and small enough that sums can't overflow.
const TOKENS_MAX: u64 = 1 << 40;

/// Information for an import that its file may lack.
pub struct ImportContext<'a> {
    /// The working directory for a conversation whose file doesn't contain one.
    pub cwd: &'a Path,
    /// Milliseconds since the Unix epoch, for entries without a recorded time.
    pub now: u64,
    /// Reads another file of the same session, by its path relative to the directory of the imported file. `None` if
    /// there is no such file.
    pub read_sibling: &'a dyn Fn(&Path) -> Option<String>,
}

/// Reads the conversations of a file. `path` is used for messages and as a hint to the session's directory and id. A
/// transcript may contain several conversations.
pub fn read(path: &Path, text: &str, context: &ImportContext) -> Result<Vec<ImportDraft>, Problem> {
    let (file, text) = (ImportFile { path }, &*without_comments(text));
    let draft = match detect(text) {
        Some(ImportSource::Transcript) => return recorded::read(file, text, context),
        Some(ImportSource::Export) => epitome_transfer::read(file, text),
        source => of_agent(source, file, text, context).map(|draft| {
            let entries = unfolded(draft.entries, OwnCompaction::Kept);
            ImportDraft { entries, ..draft }
        }),
    };
    draft.map(|draft| vec![draft])
}

/// Reads the conversation of another agent. Programs that read nothing else don't contain the readers of Epitome's formats.
pub fn read_foreign(path: &Path, text: &str, context: &ImportContext) -> Result<ImportDraft, Problem> {
    let text = &*without_comments(text);
    of_agent(detect(text), ImportFile { path }, text, context)
}

fn of_agent(
    source: Option<ImportSource>,
    file: ImportFile,
    text: &str,
    context: &ImportContext,
) -> Result<ImportDraft, Problem> {
    let Some(source) = source else {
        let problem = Problem::new(file.path, "this is not a conversation in a known format");
        return Err(problem.with_hint(
            "import takes what `epitome sessions export` writes, a journal, a transcript of `epitome acp \
             --transcript`, and session files of Claude Code, Codex, opencode (`opencode export`), Gemini CLI, \
             Cline, Copilot CLI, Kimi, aider, SWE-agent and pi",
        ));
    };
    let of_lines = |read: fn(Vec<Value>, ImportFile, &ImportContext) -> Builder| {
        let (lines, broken) = objects(file, text);
        Ok((read(lines, file, context), broken))
    };
    let of_document = |read: fn(&Value, ImportFile, &ImportContext) -> Builder| {
        Ok((read(&document(file, text)?, file, context), None))
    };
    let (log, broken) = match source {
        ImportSource::ClaudeCode => of_lines(claude_code::read),
        ImportSource::Codex => of_lines(codex::read),
        ImportSource::Gemini => of_lines(gemini::read),
        ImportSource::Copilot => of_lines(copilot::read),
        ImportSource::Kimi => of_lines(kimi::read),
        ImportSource::Opencode => of_document(opencode::read),
        ImportSource::Cline => of_document(cline::read),
        ImportSource::Kodelet => of_document(kodelet::read),
        ImportSource::SweAgent => of_document(swe_agent::read),
        ImportSource::Messages => of_document(messages::read),
        ImportSource::Pi => pi::read(file, text, context).map(|log| (log, None)),
        ImportSource::Aider => Ok((aider::read(file, text, context), None)),
        ImportSource::Export | ImportSource::Transcript => {
            Err(file.problem(1, "this is a conversation of Epitome, not of another agent"))
        }
    }?;
    log.finish(source, file, broken)
}

/// Reads the messages of a request, whatever else their form could be.
pub fn read_request(path: &Path, text: &str, context: &ImportContext) -> Result<ImportDraft, Problem> {
    let file = ImportFile { path };
    let request = document(file, text)?;
    if messages::messages_of(&request).is_none() {
        let message = "this is neither an array of messages nor a request with `messages` or `input`";
        return Err(file.problem(1, message));
    }
    messages::read(&request, file, context).finish(ImportSource::Messages, file, None)
}

/// The text without a byte order mark and the `//` lines on top, which somebody who published a session may have added. They
/// become empty lines, so that all others keep their numbers.
fn without_comments(text: &str) -> Cow<'_, str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n')
        && (line.trim().is_empty() || line.trim_start().starts_with("//"))
    {
        rest = after;
    }
    match text.trim_start().starts_with("//") {
        true => Cow::Owned("\n".repeat(text[..text.len() - rest.len()].matches('\n').count()) + rest),
        false => Cow::Borrowed(text),
    }
}

/// The line that aider writes before each chat.
const AIDER_OPENING: &str = "# aider chat started at ";

/// Number of JSON values that are examined to detect the format of a file.
const PROBED_VALUES: usize = 50;

/// Detects the format of a text by its beginning.
pub fn detect(text: &str) -> Option<ImportSource> {
    let text = &*without_comments(text);
    // JSON lines, or a single document.
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let known = values.map_while(Result::ok).take(PROBED_VALUES).find_map(|value| detect_value(&value));
    known.or_else(|| {
        let has_line = |start: &str| text.lines().any(|line| line.starts_with(start));
        match has_line(AIDER_OPENING) {
            true => Some(ImportSource::Aider),
            false => has_line("editor>").then_some(ImportSource::Transcript),
        }
    })
}

fn detect_value(value: &Value) -> Option<ImportSource> {
    let is = |name: &str, word: &str| value[name].as_str() == Some(word);
    let has = |name: &str| value.get(name).is_some();
    Some(match value {
        _ if is("change", "opened") => ImportSource::Export,
        _ if is("type", "session_meta") || codex::is_old_header(value) => ImportSource::Codex,
        _ if is("type", "session.start") => ImportSource::Copilot,
        _ if has("parentUuid") || is("type", "summary") && has("leafUuid") => ImportSource::ClaudeCode,
        _ if has("sessionId") && (has("projectHash") || has("startTime") && has("lastUpdated")) => {
            ImportSource::Gemini
        }
        _ if is("type", "gemini") && has("timestamp") => ImportSource::Gemini,
        _ if kimi::is_record(value) => ImportSource::Kimi,
        _ if value["kodelet"].is_object() => ImportSource::Kodelet,
        _ if value["info"].is_object() && value["messages"].is_array() => ImportSource::Opencode,
        _ if value["trajectory"].is_array() && value["history"].is_array() => ImportSource::SweAgent,
        _ if messages::is_request(value) => ImportSource::Messages,
        _ if has("sessionId") && value["messages"].is_array() => ImportSource::Cline,
        _ if value[0]["role"].is_string() && !value[0]["content"].is_null() => ImportSource::Cline,
        _ if is("type", "session") => ImportSource::Pi,
        _ => return None,
    })
}

/// Lines of another agent's file that could not be read and were skipped: the problem of the first, and a sentence for the user.
type BrokenLines = (Problem, String);

/// Returns the text of a JSON string that is not blank.
fn text_of(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.trim().is_empty())
}

fn text(text: impl Into<String>) -> Content {
    Content::Text { text: text.into() }
}

/// Returns a text as a part of a message, if it is not blank.
fn text_part(value: &Value) -> Option<Content> {
    text_of(value).map(text)
}

/// Returns the model's reasoning as a part of a reply, if it is not blank. Signatures are not imported: they are
/// valid only in requests of the program that recorded them.
fn thinking_part(value: &Value) -> Option<Content> {
    text_of(value).map(thinking)
}

fn thinking(text: impl Into<String>) -> Content {
    Content::Thinking { text: text.into(), native: None }
}

/// Returns an image or a document with its base64 data; `None` for other types, which no model accepts.
fn file_part(mime_type: &str, data: &str, name: Option<&str>) -> Option<Content> {
    let data = data.to_owned();
    match mime_type {
        "application/pdf" => {
            let name = name.map(str::to_owned);
            Some(Content::Document { mime_type: mime_type.to_owned(), data, name })
        }
        mime if mime.starts_with("image/") => {
            Some(Content::Image { mime_type: mime_type.to_owned(), data, uri: None })
        }
        _ => None,
    }
}

/// Returns an image or a document in a `data:` URL.
fn data_url_part(url: &str, name: Option<&str>) -> Option<Content> {
    let (mime_type, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    file_part(mime_type, data, name)
}

/// Returns a part of a message in the form of any provider or agent: a text, an image or a document.
fn part(part: &Value) -> Option<Content> {
    let url = [&part["image_url"], &part["image_url"]["url"], &part["imageUrl"]["url"]];
    if part["text"].is_string() {
        return text_part(&part["text"]);
    }
    if let Some(url) = url.into_iter().find_map(Value::as_str) {
        return data_url_part(url, None);
    }
    let file =
        [&part["source"], &part["inlineData"], part].into_iter().find(|file| file["data"].is_string())?;
    let mime_type = ["media_type", "mimeType", "mediaType"].iter().find_map(|key| file[*key].as_str())?;
    file_part(mime_type, file["data"].as_str()?, text_of(&part["title"]))
}

/// Returns the arguments of a call, which OpenAI's forms write as JSON in a text.
fn arguments(value: &Value) -> Value {
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    parsed.unwrap_or_else(|| value.clone())
}

/// Returns the elements of a list; empty if the value is not a list.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Parses the content of a message: a plain text, or a list of parts.
fn contents(value: &Value) -> Vec<Content> {
    contents_of(value, part)
}

fn contents_of(value: &Value, part: impl FnMut(&Value) -> Option<Content>) -> Vec<Content> {
    match text_part(value) {
        Some(text) => vec![text],
        None => list(value).filter_map(part).collect(),
    }
}

/// Returns the texts of a message, joined by blank lines.
fn joined_text(content: &[Content]) -> String {
    let texts = content.iter().filter_map(Content::as_text);
    texts.collect::<Vec<_>>().join("\n\n")
}

/// Whether a part is a text that starts with one of these prefixes.
fn begins_with(part: &Content, starts: &[&str]) -> bool {
    matches!(part, Content::Text { text } if starts.iter().any(|start| text.trim_start().starts_with(start)))
}

/// Describes a command that the user ran outside of the conversation, with its output.
fn ran(command: &str, output: &str) -> Content {
    text(format!("The user ran `{command}`:\n\n{output}").trim_end())
}

/// Returns the token counts of a reply, by the names of the fields: input, output, cache reads, cache writes and
/// thinking. An empty name means that the number is not recorded.
fn token_counts(value: &Value, names: [&str; 5]) -> Option<Usage> {
    let [input, output, cache_read, cache_write, thinking] = names.map(|name| tokens(&value[name]));
    value.is_object().then_some(Usage {
        input,
        output,
        cache_read,
        cache_write,
        thinking,
        ..Usage::default()
    })
}

/// Adds the cached tokens to the input, for agents that count them separately. Epitome's input includes them.
fn with_cache(usage: Usage) -> Usage {
    Usage { input: usage.input + usage.cache_read + usage.cache_write, ..usage }
}

/// Adds the thinking tokens to the output, for agents that count them separately. Epitome's output includes them.
fn with_thinking(usage: Usage) -> Usage {
    Usage { output: usage.output + usage.thinking, ..usage }
}

/// A number of tokens; zero if the value is not a number.
fn tokens(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default().min(TOKENS_MAX)
}

/// Returns `provider/model`, with Epitome's names for providers.
fn model_name(provider: Option<&str>, default_provider: &str, model: Option<&str>) -> String {
    let provider = match provider {
        Some("google") => "gemini",
        Some(provider) => provider,
        None => default_provider,
    };
    format!("{provider}/{}", model.unwrap_or("unknown"))
}

/// Returns the trigger of a compaction. Most agents call a compaction at the user's request `manual`.
fn trigger_of(value: &Value) -> Trigger {
    if value == "manual" { Trigger::Manual } else { Trigger::Threshold }
}

/// Returns the time of a line in milliseconds since the Unix epoch, from the field that most agents use.
fn time(value: &Value) -> Option<u64> {
    moment(&value["timestamp"])
}

/// Parses a time to milliseconds since the Unix epoch.
fn moment(value: &Value) -> Option<u64> {
    let moment: jiff::Timestamp = value.as_str()?.parse().ok()?;
    u64::try_from(moment.as_millisecond()).ok()
}

/// Parses the objects in a file of JSON lines, or its only one, which may have several lines. An agent that was killed
/// leaves an incomplete line and may append the next object to it. Returns everything readable, and reports the rest.
fn objects(file: ImportFile, text: &str) -> (Vec<Value>, Option<BrokenLines>) {
    if let Ok(document @ Value::Object(_)) = serde_json::from_str(text) {
        return (vec![document], None);
    }
    let mut objects = Vec::new();
    let (mut first, mut count) = (None, 0);
    for (number, line) in (1..).zip(text.lines()) {
        for value in serde_json::Deserializer::from_str(line).into_iter::<Value>() {
            match value {
                Ok(value) if value.is_object() => objects.push(value),
                Ok(_) => {}
                Err(error) => {
                    count += 1;
                    first.get_or_insert((number, error));
                }
            }
        }
    }
    let broken = first.map(|(line, error)| {
        let problem = file.json_problem(line, &error);
        let words = match count {
            1 if error.is_eof() && line == text.lines().count() => {
                "its last line is incomplete and was left out".to_owned()
            }
            1 => format!("line {line} was left out: {}", problem.message),
            count => {
                format!("{count} lines were left out, the first of them line {line}: {}", problem.message)
            }
        };
        (problem, words)
    });
    (objects, broken)
}

fn document(file: ImportFile, text: &str) -> Result<Value, Problem> {
    serde_json::from_str(text).map_err(|error| file.json_problem(error.line(), &error))
}

#[cfg(test)]
mod tests;
