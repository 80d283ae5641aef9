//! The `editor>` lines: shorthand for messages of an editor, in both directions.
//!
//! Everything without shorthand is written as `METHOD {params}`, and a line that is not JSON-RPC as
//! `raw "…"`, so every line can be written.

use serde_json::{Value, json};

use super::book::{RequestRef, Shorthand, method};
use super::words::{LineWord, as_text, bare, bare_or_json};

/// Maximum size in bytes of a `raw` line; enough to exceed any agent's limit for a line.
const RAW_BYTES_MAX: usize = 256 * 1024 * 1024;

/// An action of the editor.
#[derive(Clone, Debug, PartialEq)]
pub enum EditorAct {
    /// `raw "…" [times N]`: these bytes as one line.
    Raw { text: String, times: usize },
    /// `{…}` or `[…]`: this value as one line.
    Json(Value),
    /// `result {…}`: answers the agent's oldest open request.
    Result(Value),
    /// `result allow_once`, `result cancelled`: answers it with the option of this kind in a permission request.
    Choose(String),
    /// `error CODE "…"`: answers the agent's oldest open request with an error.
    Error { code: i64, message: String },
    /// `METHOD …`, or `notify METHOD …` for notifications that are not known as such.
    Call { notify: bool, method: String, params: CallParams },
}

/// The parameters of a call: a value that may contain placeholders, or the request to be cancelled.
#[derive(Clone, Debug, PartialEq)]
pub enum CallParams {
    Value(Value),
    CancelRequest(RequestRef),
}

/// Whether the method is a notification without being marked by `notify`.
pub(super) fn is_notification(method: &str) -> bool {
    matches!(method, "session/cancel" | "session/update" | "elicitation/complete") || method.starts_with("$/")
}

impl EditorAct {
    /// Parses the words of an `editor>` line. The error describes the valid forms.
    pub fn read(words: &[LineWord]) -> Result<EditorAct, String> {
        match words {
            [LineWord::Json(value @ (Value::Object(_) | Value::Array(_)))] => {
                Ok(EditorAct::Json(value.clone()))
            }
            [LineWord::Bare(raw), LineWord::Json(Value::String(text)), times @ ..] if raw == "raw" => {
                let times = match times {
                    [] => 1,
                    [LineWord::Bare(word), LineWord::Bare(count)] if word == "times" => {
                        count.parse().map_err(|_| "`times` takes a number")?
                    }
                    _ => return Err("a raw line is: raw \"…\", or raw \"…\" times N".into()),
                };
                if text.len().saturating_mul(times) > RAW_BYTES_MAX {
                    return Err(format!("a raw line may have at most {RAW_BYTES_MAX} bytes"));
                }
                Ok(EditorAct::Raw { text: text.clone(), times })
            }
            [LineWord::Bare(result), LineWord::Bare(kind)] if result == "result" => {
                Ok(EditorAct::Choose(kind.clone()))
            }
            [LineWord::Bare(result), LineWord::Json(value)] if result == "result" => {
                Ok(EditorAct::Result(value.clone()))
            }
            [LineWord::Bare(error), LineWord::Bare(code), LineWord::Json(Value::String(message))]
                if error == "error" =>
            {
                let code = code.parse().map_err(|_| "an error has a number")?;
                Ok(EditorAct::Error { code, message: message.clone() })
            }
            [LineWord::Bare(notify), LineWord::Bare(method), rest @ ..] if notify == "notify" => {
                Ok(EditorAct::Call { notify: true, method: method.clone(), params: params(method, rest)? })
            }
            [LineWord::Bare(method), rest @ ..] => Ok(EditorAct::Call {
                notify: is_notification(method),
                method: method.clone(),
                params: params(method, rest)?,
            }),
            _ => Err("an editor's line is METHOD …, result …, error …, raw \"…\", or a JSON value".into()),
        }
    }

    /// Returns the line to send, and the message in it, if any. `id` is used for a new request.
    pub fn line(&self, book: &Shorthand, id: u64) -> Result<(Vec<u8>, Option<Value>), String> {
        let asked = || book.agent_open.first().ok_or("the agent has asked nothing");
        let message = match self {
            EditorAct::Raw { text, times } => {
                return Ok((book.names.fill_text(text)?.repeat(*times).into_bytes(), None));
            }
            EditorAct::Json(value) => book.names.fill(value)?,
            EditorAct::Result(value) => {
                json!({"jsonrpc": "2.0", "id": asked()?.0, "result": book.names.fill(value)?})
            }
            EditorAct::Choose(kind) => {
                let (id, request) = asked()?;
                json!({"jsonrpc": "2.0", "id": id, "result": choice(kind, request)?})
            }
            EditorAct::Error { code, message } => {
                json!({"jsonrpc": "2.0", "id": asked()?.0, "error": {"code": code, "message": message}})
            }
            EditorAct::Call { notify, method, params } => {
                let params = match params {
                    CallParams::Value(value) => book.names.fill(value)?,
                    CallParams::CancelRequest(to) => {
                        let id = book.editor_request(to).ok_or("no such request is open")?;
                        json!({"requestId": id})
                    }
                };
                if *notify {
                    json!({"jsonrpc": "2.0", "method": method, "params": params})
                } else {
                    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
                }
            }
        };
        Ok((message.to_string().into_bytes(), Some(message)))
    }
}

/// Returns the answer that selects the option of a kind in a permission request.
fn choice(kind: &str, request: &Value) -> Result<Value, String> {
    if kind == "cancelled" {
        return Ok(json!({"outcome": {"outcome": "cancelled"}}));
    }
    let options = request.pointer("/params/options").and_then(Value::as_array);
    let option = options.into_iter().flatten().find(|option| option["kind"] == kind);
    match option.and_then(|option| option.get("optionId")) {
        Some(id) => Ok(json!({"outcome": {"outcome": "selected", "optionId": id}})),
        None => Err(format!("the agent's question has no option of the kind {kind}")),
    }
}

/// Expands shorthand: converts the words after a method to its parameters.
fn params(method: &str, words: &[LineWord]) -> Result<CallParams, String> {
    let value = match (method, words) {
        (_, [LineWord::Json(value @ Value::Object(_))]) => value.clone(),
        ("$/cancel_request", [LineWord::Bare(to)]) => {
            let number = to.strip_prefix('#').and_then(|number| number.parse().ok());
            return Ok(CallParams::CancelRequest(
                number.map_or_else(|| RequestRef::Method(to.clone()), RequestRef::Number),
            ));
        }
        ("initialize", []) => json!({"protocolVersion": 1, "clientCapabilities": {}}),
        ("session/new", []) => json!({"cwd": "$DIR", "mcpServers": []}),
        ("session/load" | "session/resume", [LineWord::Bare(session)]) => {
            json!({"sessionId": session, "cwd": "$DIR", "mcpServers": []})
        }
        ("session/prompt", [LineWord::Bare(session), LineWord::Json(blocks @ Value::Array(_))]) => {
            json!({"sessionId": session, "prompt": blocks})
        }
        ("session/prompt", [LineWord::Bare(session), texts @ ..]) => {
            let blocks: Option<Vec<Value>> = texts
                .iter()
                .map(|word| match word {
                    LineWord::Json(Value::String(text)) => Some(json!({"type": "text", "text": text})),
                    LineWord::Json(_) | LineWord::Bare(_) | LineWord::Pair(..) => None,
                })
                .collect();
            let blocks = blocks.ok_or("a prompt is one text or more, in quotes, or an array of blocks")?;
            json!({"sessionId": session, "prompt": blocks})
        }
        ("session/set_mode", [LineWord::Bare(session), mode]) => {
            json!({"sessionId": session, "modeId": as_text(mode).ok_or("a mode is a word")?})
        }
        ("session/set_config_option", [LineWord::Bare(session), option, value]) => json!({
            "sessionId": session,
            "configId": as_text(option).ok_or("an option is a word")?,
            "value": as_text(value).ok_or("a value is a word")?,
        }),
        (_, [LineWord::Bare(session)]) if session.starts_with("$S") => json!({"sessionId": session}),
        (_, []) => json!({}),
        _ => return Err(format!("there is no shorthand of {method} like this; write {method} {{…}}")),
    };
    Ok(CallParams::Value(value))
}

/// Writes an editor's message as words, in the shortest form that is parsed to the same message.
pub fn words_of(message: &Value, book: &mut Shorthand) -> Vec<LineWord> {
    let Some(method) = method(message).map(str::to_owned) else {
        return answer_words(message, book);
    };
    let params = message.get("params").cloned().unwrap_or_else(|| json!({}));
    let named = book.names.with_names(&params);
    let short = short_params(&method, &params, &named, book);
    let plain = message.get("jsonrpc").is_some_and(|version| version == "2.0") && named.is_object();
    match method_words(message, &method).filter(|_| plain) {
        Some(mut words) => {
            words.extend(short.unwrap_or_else(|| vec![LineWord::Json(named)]));
            words
        }
        None => vec![LineWord::Json(book.names.with_names(message))],
    }
}

/// The words that a request or notification begins with; `None` if there are none for such a message.
pub(super) fn method_words(message: &Value, method: &str) -> Option<Vec<LineWord>> {
    match (message.get("id").is_none(), is_notification(method)) {
        (true, false) => Some(vec![bare("notify"), bare(method)]),
        (false, true) => None,
        (true, true) | (false, false) => Some(vec![bare(method)]),
    }
}

fn answer_words(message: &Value, book: &mut Shorthand) -> Vec<LineWord> {
    let first = book.agent_open.first().cloned();
    let answers_first = first.as_ref().is_some_and(|(id, _)| message.get("id") == Some(id));
    let result = message.get("result").filter(|_| answers_first);
    if let (Some(result), Some((_, request))) = (result, first) {
        let options = request.pointer("/params/options").and_then(Value::as_array).cloned();
        let kinds = options.iter().flatten().filter_map(|option| option["kind"].as_str());
        for kind in kinds.chain(["cancelled"]) {
            if choice(kind, &request).as_ref() == Ok(result) {
                return vec![bare("result"), bare(kind)];
            }
        }
        return match book.names.with_names(result) {
            named @ (Value::Object(_) | Value::Array(_) | Value::String(_)) => {
                vec![bare("result"), LineWord::Json(named)]
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => vec![LineWord::Json(message.clone())],
        };
    }
    vec![LineWord::Json(book.names.with_names(message))]
}

/// The shorthand for exactly these parameters, if it exists.
fn short_params(given: &str, original: &Value, named: &Value, book: &Shorthand) -> Option<Vec<LineWord>> {
    let text = |key: &str| named.get(key).and_then(Value::as_str);
    let session =
        || text("sessionId").filter(|id| id.starts_with("$S")).map(|id| LineWord::Bare(id.to_owned()));
    let words = match given {
        "$/cancel_request" => {
            return match book.reference(original.get("requestId")?) {
                RequestRef::Oldest | RequestRef::Null => {
                    let (_, method) = book.editor_open.first()?;
                    Some(vec![LineWord::Bare(method.clone())])
                }
                RequestRef::Method(method) => Some(vec![LineWord::Bare(method)]),
                RequestRef::Number(number) => Some(vec![LineWord::Bare(format!("#{number}"))]),
            };
        }
        "session/prompt" => {
            let blocks = named.get("prompt")?;
            let texts: Option<Vec<LineWord>> = blocks
                .as_array()?
                .iter()
                .map(|block| match (block["type"].as_str(), &block["text"]) {
                    (Some("text"), text @ Value::String(_)) => Some(LineWord::Json(text.clone())),
                    _ => None,
                })
                .collect();
            let mut words = vec![session()?];
            words.extend(texts.unwrap_or_else(|| vec![LineWord::Json(blocks.clone())]));
            words
        }
        "session/set_mode" => vec![session()?, bare_or_json(text("modeId")?)],
        "session/set_config_option" => {
            vec![session()?, bare_or_json(text("configId")?), bare_or_json(text("value")?)]
        }
        _ => session().map_or_else(Vec::new, |session| vec![session]),
    };
    match params(given, &words) {
        Ok(CallParams::Value(value)) if value == *named => Some(words),
        Ok(CallParams::Value(_) | CallParams::CancelRequest(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::read;

    fn message_of(line: &str, book: &Shorthand) -> Value {
        let (words, _) = read(line).expect("the line is well formed");
        let act = EditorAct::read(&words).expect("the line has a meaning");
        let (bytes, _) = act.line(book, 7).expect("the line can be sent");
        serde_json::from_slice(&bytes).expect("the line is JSON")
    }

    fn book() -> Shorthand {
        let mut book = Shorthand::default();
        book.names.bind_place("$DIR", "/w");
        book.names.matches_text("$S1", "s_1");
        book
    }

    #[test]
    fn a_prompt_has_a_session_and_texts() {
        assert_eq!(
            message_of(r#"session/prompt $S1 "Hello" "again""#, &book()),
            json!({"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": {"sessionId": "s_1",
                "prompt": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "again"}]}})
        );
    }

    #[test]
    fn a_new_session_is_in_the_workspace_by_default() {
        assert_eq!(message_of("session/new", &book())["params"], json!({"cwd": "/w", "mcpServers": []}));
        assert_eq!(message_of(r#"session/new {"cwd":"a"}"#, &book())["params"], json!({"cwd": "a"}));
    }

    #[test]
    fn a_notification_has_no_id() {
        assert_eq!(message_of("session/cancel $S1", &book()).get("id"), None);
        assert_eq!(message_of("notify _ping {}", &book()).get("id"), None);
    }

    #[test]
    fn a_choice_selects_the_option_of_that_kind() {
        let mut book = book();
        book.record_agent_message(&json!({"id": 40, "method": "session/request_permission", "params":
            {"options": [{"kind": "allow_once", "optionId": "a"}, {"kind": "reject_once", "optionId": "r"}]}}));
        assert_eq!(
            message_of("result reject_once", &book),
            json!({"jsonrpc": "2.0", "id": 40, "result": {"outcome": {"outcome": "selected", "optionId": "r"}}})
        );
        let act = EditorAct::Choose("allow_always".into());
        assert!(act.line(&book, 1).unwrap_err().contains("no option of the kind allow_always"));
    }

    #[test]
    fn editor_messages_are_written_in_their_shortest_form() {
        for line in [
            "initialize",
            "session/new",
            r#"session/prompt $S1 "Hello""#,
            "session/load $S1",
            "session/cancel $S1",
            "session/set_mode $S1 read_only",
            "session/set_config_option $S1 model anthropic/claude-sonnet-4-6",
            "session/list",
            r#"_other/method {"x":[1,2]}"#,
            r#"notify _other {"x":1}"#,
        ] {
            let mut book = book();
            let message = message_of(line, &book);
            let (words, _) = read(line).expect("the line is well formed");
            assert_eq!(words_of(&message, &mut book), words, "{line}");
        }
    }
}
