//! The `agent<` lines: messages of the agent, compared with a fixture's expectations, and written as words.
//!
//! Shorthand compares only what it mentions. JSON compares a complete value, except for `*`.

use serde_json::Value;

use super::book::{RequestRef, Shorthand, method};
use super::call_shape::CallShape;
use super::editor::{is_notification, method_words};
use super::names::PlaceholderKind;
use super::update::ExpectedUpdate;
use super::words::{LineWord, bare, quoted};

/// The next message that a fixture expects from the agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// `result …`
    Result { to: RequestRef, value: ExpectedValue },
    /// `error CODE "…" {data}`; the code `*` matches any.
    Error { to: RequestRef, code: Option<i64>, message: Option<String>, data: Option<Value> },
    /// `session/update $S1 …`
    Update { session: String, update: ExpectedUpdate },
    /// `session/request_permission $S1 TOOL … KINDS`
    Permission { session: String, call: Box<CallShape>, kinds: Vec<String> },
    /// `METHOD {params}`, `notify METHOD {params}`
    Call { notify: bool, method: String, params: Value },
    /// `{…}`: a complete message.
    Json(Value),
}

/// The value of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum ExpectedValue {
    /// `*`
    Any,
    /// `end_turn`: the stop reason of a prompt, ignoring the rest of the result.
    Stop(String),
    Json(Value),
}

/// The result of comparing a message with an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Same,
    Different,
    /// A text that matches so far; the rest may follow in another chunk.
    More,
    /// A text whose first bytes, this many, are the complete expectation of this line.
    Part(usize),
}

/// The parts of a message that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteDetail {
    /// Ids of messages and calls.
    pub ids: bool,
    /// Kinds, locations, inputs and outputs of tool calls.
    pub calls: bool,
}

impl Expected {
    /// Parses the words of an `agent<` line. The error describes the valid forms.
    pub fn read(words: &[LineWord]) -> Result<Expected, String> {
        match words {
            [LineWord::Json(value @ Value::Object(_))] => Ok(Expected::Json(value.clone())),
            [LineWord::Bare(verb), rest @ ..] if verb == "result" => {
                let (to, rest) = match rest {
                    [LineWord::Bare(to), value] => (read_ref(to)?, std::slice::from_ref(value)),
                    _ => (RequestRef::Oldest, rest),
                };
                let value = match rest {
                    [LineWord::Json(value)] => ExpectedValue::Json(value.clone()),
                    [LineWord::Bare(word)] if word == "*" => ExpectedValue::Any,
                    [LineWord::Bare(word)] if word == "null" => ExpectedValue::Json(Value::Null),
                    [LineWord::Bare(word)] => ExpectedValue::Stop(word.clone()),
                    _ => return Err("a result is {…}, a stop reason, or *".into()),
                };
                Ok(Expected::Result { to, value })
            }
            [LineWord::Bare(verb), rest @ ..] if verb == "error" => read_error(rest),
            [LineWord::Bare(verb), LineWord::Bare(session), rest @ ..] if verb == "session/update" => {
                Ok(Expected::Update { session: session.clone(), update: ExpectedUpdate::read(rest)? })
            }
            [LineWord::Bare(verb), LineWord::Bare(session), rest @ ..]
                if verb == "session/request_permission" =>
            {
                let (call, rest) = CallShape::read(rest)?;
                Ok(Expected::Permission { session: session.clone(), call: Box::new(call), kinds: rest })
            }
            [LineWord::Bare(verb), LineWord::Bare(method), LineWord::Json(params)] if verb == "notify" => {
                Ok(Expected::Call { notify: true, method: method.clone(), params: params.clone() })
            }
            [LineWord::Bare(method), LineWord::Json(params)] => Ok(Expected::Call {
                notify: is_notification(method),
                method: method.clone(),
                params: params.clone(),
            }),
            _ => Err("an agent's line is result …, error …, session/update …, \
                      session/request_permission …, METHOD {…}, or a JSON value"
                .into()),
        }
    }

    /// Compares with a message. Placeholders are bound only if it matches.
    pub fn compare(&self, message: &Value, book: &mut Shorthand) -> Comparison {
        let before = book.names.clone();
        let verdict = match (self, update_of(message)) {
            (Expected::Update { session, update }, Some(actual))
                if book.names.matches_text(session, session_of(message)) =>
            {
                update.compare(actual, book)
            }
            _ if self.is_same(message, book) => Comparison::Same,
            _ => Comparison::Different,
        };
        if verdict == Comparison::Different {
            book.names = before;
        }
        verdict
    }

    fn is_same(&self, message: &Value, book: &mut Shorthand) -> bool {
        match self {
            Expected::Result { to, value } => {
                let Some(result) = message.get("result") else { return false };
                if book.editor_request(to).as_ref() != message.get("id") {
                    return false;
                }
                match value {
                    ExpectedValue::Any => true,
                    ExpectedValue::Stop(reason) => result["stopReason"] == reason.as_str(),
                    ExpectedValue::Json(pattern) => book.names.matches(pattern, result),
                }
            }
            Expected::Error { to, code, message: text, data } => {
                let Some(error) = message.get("error") else { return false };
                book.editor_request(to).as_ref() == message.get("id")
                    && code.is_none_or(|code| error["code"] == code)
                    && text.as_ref().is_none_or(|text| {
                        error["message"].as_str().is_some_and(|actual| book.names.matches_text(text, actual))
                    })
                    && data.as_ref().is_none_or(|data| book.names.matches(data, &error["data"]))
            }
            Expected::Update { .. } => false,
            Expected::Permission { session, call, kinds } => {
                method(message) == Some("session/request_permission")
                    && book.names.matches_text(session, session_of(message))
                    && call.is_same(&message["params"]["toolCall"], book)
                    && *kinds == option_kinds(message)
            }
            Expected::Call { notify, method: name, params } => {
                method(message) == Some(name)
                    && message.get("id").is_none() == *notify
                    && book.names.matches(params, message.get("params").unwrap_or(&Value::Null))
            }
            Expected::Json(pattern) => book.names.matches(pattern, message),
        }
    }
}

fn read_ref(word: &str) -> Result<RequestRef, String> {
    match word.strip_prefix('#') {
        Some("null") => Ok(RequestRef::Null),
        Some(number) => {
            number.parse().map(RequestRef::Number).map_err(|_| "a request is #NUMBER or #null".into())
        }
        None => Ok(RequestRef::Method(word.to_owned())),
    }
}

fn read_error(words: &[LineWord]) -> Result<Expected, String> {
    let is_code = |word: &str| word == "*" || word.parse::<i64>().is_ok();
    let (to, rest) = match words {
        [LineWord::Bare(first), ..] if is_code(first) => (RequestRef::Oldest, words),
        [LineWord::Bare(first), rest @ ..] => (read_ref(first)?, rest),
        _ => return Err("an error is CODE, then maybe a \"message\", then maybe {data}".into()),
    };
    let [LineWord::Bare(code), rest @ ..] = rest else { return Err("an error has a code".into()) };
    let code = match code.as_str() {
        "*" => None,
        code => Some(code.parse::<i64>().map_err(|_| "an error's code is a number")?),
    };
    let (message, rest) = match rest {
        [LineWord::Json(Value::String(text)), rest @ ..] => (Some(text.clone()), rest),
        _ => (None, rest),
    };
    let data = match rest {
        [] => None,
        [LineWord::Json(data)] => Some(data.clone()),
        _ => return Err("behind an error's message there may be {data}".into()),
    };
    Ok(Expected::Error { to, code, message, data })
}

/// Writes an agent's message as words. The words, parsed with [`Expected::read`], match the message.
pub fn words_of(message: &Value, book: &mut Shorthand, detail: WriteDetail) -> Vec<LineWord> {
    let id = message.get("id");
    if let (Some(id), Some(result)) = (id, message.get("result")) {
        let mut words = vec![bare("result")];
        words.extend(ref_word(&book.reference(id)));
        words.push(match book.names.with_names(result) {
            Value::Object(map) if is_stop(&map) => bare(map["stopReason"].as_str().unwrap_or("*")),
            Value::Null => bare("null"),
            named => LineWord::Json(named),
        });
        return words;
    }
    if let (Some(id), Some(error)) = (id, message.get("error")) {
        let mut words = vec![bare("error")];
        words.extend(ref_word(&book.reference(id)));
        words.push(error["code"].as_i64().map_or_else(|| bare("*"), |code| bare(&code.to_string())));
        words.extend(error["message"].as_str().map(|text| quoted(&book.names.text_with_names(text))));
        let data = error.get("data").filter(|data| data.is_object());
        words.extend(data.map(|data| LineWord::Json(book.names.with_names(data))));
        return words;
    }
    let params = message.get("params").filter(|params| params.is_object() || params.is_array());
    match (method(message), params) {
        (Some("session/update"), Some(params)) if update_of(message).is_some() => {
            let mut words = vec![bare("session/update"), session_word(params, book)];
            words.extend(ExpectedUpdate::words_of(&params["update"], book, detail));
            words
        }
        (Some("session/request_permission"), Some(params)) if params["toolCall"].is_object() => {
            let mut words = vec![bare("session/request_permission"), session_word(params, book)];
            words.extend(CallShape::words_of(&params["toolCall"], None, true, book, detail));
            words.extend(option_kinds(message).iter().map(|kind| bare(kind)));
            words
        }
        (Some(method), Some(params)) if let Some(mut words) = method_words(message, method) => {
            words.push(LineWord::Json(book.names.with_names(params)));
            words
        }
        _ => vec![LineWord::Json(book.names.with_names(message))],
    }
}

fn session_word(params: &Value, book: &mut Shorthand) -> LineWord {
    let id = params["sessionId"].as_str();
    LineWord::Bare(id.map_or_else(|| "*".to_owned(), |id| book.names.name(PlaceholderKind::Session, id)))
}

fn is_stop(result: &serde_json::Map<String, Value>) -> bool {
    result.get("stopReason").is_some_and(Value::is_string)
        && result.keys().all(|key| matches!(key.as_str(), "stopReason" | "usage" | "_meta"))
}

fn ref_word(to: &RequestRef) -> Option<LineWord> {
    match to {
        RequestRef::Oldest => None,
        RequestRef::Method(method) => Some(bare(method)),
        RequestRef::Number(number) => Some(LineWord::Bare(format!("#{number}"))),
        RequestRef::Null => Some(bare("#null")),
    }
}

/// The update in a `session/update` message.
pub fn update_of(message: &Value) -> Option<&Value> {
    (method(message) == Some("session/update")).then(|| message.pointer("/params/update")).flatten()
}

fn session_of(message: &Value) -> &str {
    message.pointer("/params/sessionId").and_then(Value::as_str).unwrap_or("")
}

fn option_kinds(message: &Value) -> Vec<String> {
    let options = message.pointer("/params/options").and_then(Value::as_array);
    let kinds = options.into_iter().flatten().filter_map(|option| option["kind"].as_str());
    kinds.map(str::to_owned).collect()
}
