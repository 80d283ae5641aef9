//! Shorthand for the kinds of `session/update`.

use serde_json::Value;

use super::agent::{Comparison, WriteDetail};
use super::book::Shorthand;
use super::call_shape::CallShape;
use super::names::{GAP, PlaceholderKind};
use super::words::{LineWord, as_text, bare, bare_or_json, pair, quoted};

/// An expected update.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpectedUpdate {
    /// `text [$M1] "…"`, `think …`, `user …`: a chunk of a message; `summary …`: of a compaction's summary.
    Chunk { kind: ChunkKind, message: Option<String>, text: String },
    /// `tool_call …` announces a call, `tool_call_update …` updates it.
    Call { announced: bool, call: Box<CallShape> },
    /// `plan completed "…" in_progress "…"`
    Plan(Vec<(String, String)>),
    /// `available_commands /compact /undo`; `…` at the end permits others.
    Commands { names: Vec<String>, others: bool },
    /// `mode ask`
    Mode(String),
    /// `options mode=ask model=anthropic/x`; `…` at the end permits others.
    Options { values: Vec<(String, String)>, others: bool },
    /// `title "…"`
    Title(String),
    /// `usage USED/SIZE`; each may be `*`.
    Usage { used: String, size: String },
    /// `notice warning "…"`
    Notice { severity: String, title: String },
    /// `compaction [$M1] completed "…"`: its status, and its summary or error.
    Compaction { id: Option<String>, status: String, text: Option<String> },
    /// `{…}`: the complete update.
    Json(Value),
}

/// The kinds of streamed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    Text,
    Think,
    User,
    /// Summary of a compaction.
    Summary,
}

impl ChunkKind {
    const ALL: [ChunkKind; 4] = [ChunkKind::Text, ChunkKind::Think, ChunkKind::User, ChunkKind::Summary];

    /// Its word, its name on the wire, and the JSON key of the id that the chunk belongs to.
    fn names(self) -> [&'static str; 3] {
        match self {
            ChunkKind::Text => ["text", "agent_message_chunk", "messageId"],
            ChunkKind::Think => ["think", "agent_thought_chunk", "messageId"],
            ChunkKind::User => ["user", "user_message_chunk", "messageId"],
            ChunkKind::Summary => ["summary", "compaction_summary_chunk", "compactionId"],
        }
    }

    fn word(self) -> &'static str {
        self.names()[0]
    }
}

/// A chunk of streamed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextChunk<'a> {
    pub kind: ChunkKind,
    pub message: Option<&'a str>,
    pub text: &'a str,
}

/// Returns the chunk in an update, if it is one.
pub fn chunk_of(update: &Value) -> Option<TextChunk<'_>> {
    let name = update.get("sessionUpdate").and_then(Value::as_str)?;
    let kind = ChunkKind::ALL.into_iter().find(|kind| kind.names()[1] == name)?;
    let text = update.pointer("/content/text").and_then(Value::as_str)?;
    (update["content"]["type"] == "text").then(|| TextChunk {
        kind,
        message: update.get(kind.names()[2]).and_then(Value::as_str),
        text,
    })
}

/// Returns the word for the kind of an update, as used by `aside`; its name on the wire if there is no word.
pub fn word_for(update: &Value) -> &str {
    match update.get("sessionUpdate").and_then(Value::as_str).unwrap_or("") {
        "compaction_update" => "compaction",
        "available_commands_update" => "available_commands",
        "current_mode_update" => "mode",
        "config_option_update" => "options",
        "session_info_update" => "title",
        "usage_update" => "usage",
        name => match ChunkKind::ALL.into_iter().find(|kind| kind.names()[1] == name) {
            Some(chunk) => chunk.word(),
            None => name,
        },
    }
}

/// Words for the kinds of updates that may appear anywhere among others: clients accept them at any time.
pub const FREE: [&str; 3] = ["available_commands", "title", "usage"];

/// Whether the update may appear anywhere among others.
pub fn is_free(update: &Value) -> bool {
    FREE.contains(&word_for(update))
}

impl ExpectedUpdate {
    /// Parses the words after the session of a `session/update`.
    pub fn read(words: &[LineWord]) -> Result<ExpectedUpdate, String> {
        let [LineWord::Bare(verb), rest @ ..] = words else {
            return match words {
                [LineWord::Json(value @ Value::Object(_))] => Ok(ExpectedUpdate::Json(value.clone())),
                _ => Err("an update is a word for its kind and more, or {…}".into()),
            };
        };
        if let Some(kind) = ChunkKind::ALL.into_iter().find(|kind| kind.word() == verb) {
            return match rest {
                [LineWord::Json(Value::String(text))] => {
                    Ok(ExpectedUpdate::Chunk { kind, message: None, text: text.clone() })
                }
                [LineWord::Bare(message), LineWord::Json(Value::String(text))] => {
                    Ok(ExpectedUpdate::Chunk { kind, message: Some(message.clone()), text: text.clone() })
                }
                _ => Err(format!("{verb} has a text in quotes, and may have $M1 before it")),
            };
        }
        match (verb.as_str(), rest) {
            ("tool_call" | "tool_call_update", rest) => {
                let (mut call, others) = CallShape::read(rest)?;
                match others.as_slice() {
                    [] => {}
                    [status] => call.status = Some(status.clone()),
                    _ => return Err("a call has a tool, a status, attributes, and maybe a \"text\"".into()),
                }
                Ok(ExpectedUpdate::Call { announced: verb == "tool_call", call: Box::new(call) })
            }
            ("plan", steps) => {
                let steps: Option<Vec<(String, String)>> = steps
                    .chunks(2)
                    .map(|step| match step {
                        [LineWord::Bare(status), LineWord::Json(Value::String(text))] => {
                            Some((status.clone(), text.clone()))
                        }
                        _ => None,
                    })
                    .collect();
                steps
                    .map(ExpectedUpdate::Plan)
                    .ok_or_else(|| "a plan is: STATUS \"step\" STATUS \"step\" …".into())
            }
            ("available_commands", names) => {
                let (names, others) = split_others(names);
                let names: Option<Vec<String>> =
                    names.iter().map(|name| as_text(name)?.strip_prefix('/').map(str::to_owned)).collect();
                let names = names.ok_or("commands are written with a slash: /compact")?;
                Ok(ExpectedUpdate::Commands { names, others })
            }
            ("mode", [mode]) => {
                as_text(mode).map(ExpectedUpdate::Mode).ok_or_else(|| "a mode is a word".into())
            }
            ("options", values) => {
                let (values, others) = split_others(values);
                let values: Option<Vec<(String, String)>> = values
                    .iter()
                    .map(|word| word.attribute().map(|(key, value)| (key.to_owned(), value)))
                    .collect();
                let values = values.ok_or("options are written OPTION=VALUE")?;
                Ok(ExpectedUpdate::Options { values, others })
            }
            ("title", [LineWord::Json(Value::String(title))]) => Ok(ExpectedUpdate::Title(title.clone())),
            ("usage", [LineWord::Bare(usage)]) => {
                let (used, size) = usage.split_once('/').ok_or("usage is USED/SIZE")?;
                Ok(ExpectedUpdate::Usage { used: used.to_owned(), size: size.to_owned() })
            }
            ("notice", [LineWord::Bare(severity), LineWord::Json(Value::String(title))]) => {
                Ok(ExpectedUpdate::Notice { severity: severity.clone(), title: title.clone() })
            }
            ("compaction", rest) => {
                let (id, rest) = match rest {
                    [LineWord::Bare(id), rest @ ..] if id.starts_with('$') => (Some(id.clone()), rest),
                    _ => (None, rest),
                };
                let (status, text) = match rest {
                    [LineWord::Bare(status)] => (status, None),
                    [LineWord::Bare(status), LineWord::Json(Value::String(text))] => {
                        (status, Some(text.clone()))
                    }
                    _ => return Err("a compaction has a status and may have a \"text\"".into()),
                };
                Ok(ExpectedUpdate::Compaction { id, status: status.clone(), text })
            }
            _ => Err(format!("there is no shorthand of an update {verb} like this; write {{…}}")),
        }
    }

    pub(super) fn compare(&self, actual: &Value, book: &mut Shorthand) -> Comparison {
        if let (ExpectedUpdate::Chunk { kind, message, text }, Some(chunk)) = (self, chunk_of(actual)) {
            let same_message = message.as_ref().is_none_or(|message| {
                chunk.message.is_some_and(|actual| book.names.matches_text(message, actual))
            });
            if *kind != chunk.kind || !same_message {
                return Comparison::Different;
            }
            return compare_text(text, chunk.text, book);
        }
        if self.is_same(actual, book) { Comparison::Same } else { Comparison::Different }
    }

    fn is_same(&self, actual: &Value, book: &mut Shorthand) -> bool {
        let name = actual.get("sessionUpdate").and_then(Value::as_str).unwrap_or("");
        match self {
            ExpectedUpdate::Chunk { .. } => false,
            ExpectedUpdate::Call { announced, call } => {
                let expected = if *announced { "tool_call" } else { "tool_call_update" };
                name == expected && call.is_same(actual, book)
            }
            ExpectedUpdate::Plan(steps) => {
                let entries = actual.get("entries").and_then(Value::as_array);
                name == "plan"
                    && entries.is_some_and(|entries| {
                        entries.len() == steps.len()
                            && entries.iter().zip(steps).all(|(entry, (status, text))| {
                                entry["status"] == status.as_str() && text_fits(text, &entry["content"], book)
                            })
                    })
            }
            ExpectedUpdate::Commands { names, others } => {
                let all = list(actual, "availableCommands", "name");
                name == "available_commands_update"
                    && (if *others {
                        names.iter().all(|name| all.contains(&name.as_str()))
                    } else {
                        *names == all
                    })
            }
            ExpectedUpdate::Mode(mode) => {
                name == "current_mode_update" && actual["currentModeId"] == mode.as_str()
            }
            ExpectedUpdate::Options { values, others } => {
                let options = actual.get("configOptions").and_then(Value::as_array);
                name == "config_option_update"
                    && options.is_some_and(|options| {
                        (*others || options.len() == values.len())
                            && values.iter().all(|(key, value)| {
                                let option = options.iter().find(|option| option["id"] == key.as_str());
                                option.is_some_and(|option| text_fits(value, &option["currentValue"], book))
                            })
                    })
            }
            ExpectedUpdate::Title(title) => {
                name == "session_info_update" && text_fits(title, &actual["title"], book)
            }
            ExpectedUpdate::Usage { used, size } => {
                name == "usage_update"
                    && [(used, "used"), (size, "size")]
                        .iter()
                        .all(|(pattern, key)| *pattern == "*" || text_fits(pattern, &actual[key], book))
            }
            ExpectedUpdate::Notice { severity, title } => {
                name == "notice"
                    && actual["severity"] == severity.as_str()
                    && text_fits(title, &actual["title"], book)
            }
            ExpectedUpdate::Compaction { id, status, text } => {
                let actual_id = actual["compactionId"].as_str().unwrap_or("");
                name == "compaction_update"
                    && actual["status"] == status.as_str()
                    && id.as_ref().is_none_or(|id| book.names.matches_text(id, actual_id))
                    && text.as_ref().is_none_or(|text| {
                        compaction_text(actual).is_some_and(|actual| book.names.matches_text(text, &actual))
                    })
            }
            ExpectedUpdate::Json(pattern) => book.names.matches(pattern, actual),
        }
    }

    /// Writes an update as words. The words, parsed with `read`, match the update.
    pub(super) fn words_of(update: &Value, book: &mut Shorthand, detail: WriteDetail) -> Vec<LineWord> {
        let short = ExpectedUpdate::short(update, book, detail);
        short.unwrap_or_else(|| vec![LineWord::Json(book.names.with_names(update))])
    }

    fn short(update: &Value, book: &mut Shorthand, detail: WriteDetail) -> Option<Vec<LineWord>> {
        if let Some(chunk) = chunk_of(update) {
            let mut words = vec![bare(chunk.kind.word())];
            if let Some(message) = chunk.message.filter(|_| detail.ids) {
                words.push(LineWord::Bare(book.names.name(PlaceholderKind::Message, message)));
            }
            words.push(quoted(&book.names.text_with_names(chunk.text)));
            return Some(words);
        }
        let mut words = vec![bare(word_for(update))];
        match word_for(update) {
            "tool_call" => {
                let status = update["status"].as_str().unwrap_or("pending");
                words.extend(CallShape::words_of(update, Some(status), true, book, detail));
            }
            "tool_call_update" => {
                let status = update["status"].as_str();
                words.extend(CallShape::words_of(update, status, detail.calls, book, detail));
            }
            "plan" => {
                for entry in update.get("entries")?.as_array()? {
                    words.push(bare(entry["status"].as_str()?));
                    words.push(quoted(&book.names.text_with_names(entry["content"].as_str()?)));
                }
            }
            "available_commands" => {
                let names = list(update, "availableCommands", "name");
                words.extend(names.iter().map(|name| bare_or_json(&format!("/{name}"))));
            }
            "mode" => words.push(bare_or_json(update["currentModeId"].as_str()?)),
            "options" => {
                for option in update.get("configOptions")?.as_array()? {
                    words.push(pair(option["id"].as_str()?, option["currentValue"].as_str()?));
                }
            }
            "title" => words.push(quoted(&book.names.text_with_names(update["title"].as_str()?))),
            "usage" => {
                let (used, size) = (update["used"].as_u64()?, update["size"].as_u64()?);
                words.push(LineWord::Bare(format!("{used}/{size}")));
            }
            "notice" if update.get("description").is_none() => {
                words.push(bare(update["severity"].as_str()?));
                words.push(quoted(&book.names.text_with_names(update["title"].as_str()?)));
            }
            "compaction" => {
                if let Some(id) = update["compactionId"].as_str().filter(|_| detail.ids) {
                    words.push(LineWord::Bare(book.names.name(PlaceholderKind::Message, id)));
                }
                words.push(bare(update["status"].as_str()?));
                words.extend(compaction_text(update).map(|text| quoted(&book.names.text_with_names(&text))));
            }
            _ => return None,
        }
        Some(words)
    }
}

/// Returns the error of a compaction, or the text of its summary, with blocks joined by a blank line.
fn compaction_text(update: &Value) -> Option<String> {
    if let Some(error) = update["error"].as_str() {
        return Some(error.to_owned());
    }
    let texts: Vec<&str> =
        update["summary"].as_array()?.iter().filter_map(|block| block["text"].as_str()).collect();
    Some(texts.join("\n\n"))
}

pub(super) fn compare_text(pattern: &str, actual: &str, book: &mut Shorthand) -> Comparison {
    if book.names.matches_text(pattern, actual) {
        return Comparison::Same;
    }
    let Ok(expected) = book.names.fill_text(pattern) else { return Comparison::Different };
    let (begin, gap) = match expected.split_once(GAP) {
        Some((begin, _)) => (begin, true),
        None => (expected.as_str(), false),
    };
    if begin.starts_with(actual) || (gap && actual.starts_with(begin)) {
        Comparison::More
    } else if !gap && !begin.is_empty() && actual.starts_with(begin) {
        Comparison::Part(begin.len())
    } else {
        Comparison::Different
    }
}

/// Whether a text pattern matches any number of further chunks.
pub fn is_open(pattern: &str) -> bool {
    pattern == "*" || pattern.ends_with(GAP)
}

pub(super) fn text_fits(pattern: &str, actual: &Value, book: &mut Shorthand) -> bool {
    match actual {
        Value::String(actual) => book.names.matches_text(pattern, actual),
        Value::Null => false,
        other => book.names.matches_text(pattern, &other.to_string()),
    }
}

pub(super) fn split_others(words: &[LineWord]) -> (&[LineWord], bool) {
    match words {
        [rest @ .., LineWord::Bare(last)] if last == "…" => (rest, true),
        _ => (words, false),
    }
}

fn list<'a>(update: &'a Value, key: &str, field: &str) -> Vec<&'a str> {
    let items = update.get(key).and_then(Value::as_array);
    items.into_iter().flatten().filter_map(|item| item[field].as_str()).collect()
}
