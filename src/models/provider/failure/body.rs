//! Parses error bodies in all common shapes.

use std::time::Duration;

use serde_json::Value;

use crate::retry::duration;

/// The parsed fields of an error body.
#[derive(Debug, Default)]
pub(super) struct ErrorBody {
    /// `error.type`, `error.code`, `error.status` and the reasons in the details, if they are strings.
    words: Vec<String>,
    pub message: String,
    pub request_id: Option<String>,
    pub used: Option<u64>,
    pub limit: Option<u64>,
    /// The parts of the request that the error names as data; those of lists of faults begin their messages.
    pub paths: Vec<String>,
    /// Whether the error has a reply of the model that the service could not use.
    pub has_failed_generation: bool,
    /// The status that an error inside a stream would have as a response.
    pub status: Option<u16>,
    /// `RetryInfo.retryDelay` of Google's errors.
    pub retry_after: Option<Duration>,
    /// Whether the exhausted quota is a daily one.
    pub is_daily: bool,
}

impl ErrorBody {
    pub(super) fn read(body: &str) -> ErrorBody {
        let Ok(value) = serde_json::from_str::<Value>(body) else {
            let is_unfit = body.trim_start().starts_with('<') || is_binary(body);
            let message = if is_unfit { String::new() } else { body.trim().to_owned() };
            return ErrorBody { retry_after: delay_in(&message), message, ..ErrorBody::default() };
        };
        // Gemini wraps errors in a list where the reply would be a list.
        let value = value.get(0).unwrap_or(&value);
        // Most services wrap the error object in `error`. Ollama's error is a bare string. Older vLLM's and the
        // Responses event `error` are not wrapped; `response.failed` is wrapped twice.
        let error = match (&value["error"], &value["response"]["error"]) {
            (Value::Null, Value::Null) => value,
            (Value::Null, error) | (error, _) => error,
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let details = &error["details"];
        let listed = details.as_array().map(Vec::as_slice).unwrap_or_default();
        // xAI's code is next to its error, which is a string.
        let of_both = [value, error].into_iter().flat_map(|it| [&it["type"], &it["code"], &it["status"]]);
        let mut words: Vec<String> = of_both
            .chain([&details["error_code"]])
            .chain(listed.iter().map(|detail| &detail["reason"]))
            .filter_map(text)
            .collect();
        let mut message = text_of(error).or_else(|| text_of(value)).unwrap_or_default();
        let mut paths: Vec<String> = [value, error].into_iter().filter_map(|it| text(&it["param"])).collect();
        // OpenRouter passes on the upstream provider's message separately; it may itself be an error object.
        let raw = &error["metadata"]["raw"];
        if !raw.is_null() {
            let inner = ErrorBody::read(&raw.as_str().map_or_else(|| raw.to_string(), str::to_owned));
            if !inner.message.is_empty() {
                message = format!("{message}: {}", inner.message);
            }
            words.extend(inner.words);
            paths.extend(inner.paths);
        }
        let is_empty = value.as_object().is_some_and(serde_json::Map::is_empty) || value.is_null();
        if message.is_empty() && !is_empty {
            message = value.to_string();
        }
        let quotas = listed.iter().filter_map(|detail| detail["violations"].as_array()).flatten();
        ErrorBody {
            words,
            request_id: text(&value["request_id"]),
            used: error["n_prompt_tokens"].as_u64(),
            limit: error["n_ctx"].as_u64(),
            paths,
            has_failed_generation: !error["failed_generation"].is_null(),
            // LiteLLM sends it as a string.
            status: error["code"]
                .as_u64()
                .or_else(|| error["code"].as_str()?.parse().ok())
                .and_then(|code| u16::try_from(code).ok()),
            retry_after: listed
                .iter()
                .find_map(|detail| duration(detail["retryDelay"].as_str()?))
                .or_else(|| delay_in(&message)),
            is_daily: quotas.filter_map(|quota| quota["quotaId"].as_str()).any(|id| id.contains("PerDay")),
            message,
        }
    }

    /// Whether the error is about the length of the request, in whatever words.
    pub(super) fn mentions_length(&self) -> bool {
        const LENGTH: &str = "context|tokens|length|too long|too large";
        const MUCH: &str = "exceed|maximum|limit|count|many";
        let words = self.words.iter().any(|word| LENGTH.split('|').any(|length| word.contains(length)));
        words || self.says(LENGTH) || self.says("token") && self.says(MUCH)
    }

    /// The tool that is refused: its position in the list that was sent, or `None` if the message calls it by its name.
    pub(super) fn named_tool(&self) -> Option<Option<usize>> {
        let texts = self.paths.iter().chain([&self.message]);
        let position = texts.filter_map(|text| {
            let list = ["function_declarations", "functionDeclarations", "tools"];
            list.into_iter().find_map(|name| position_after(text, name))
        });
        let is_of_schema = self.mentions(&["schema"]) && self.mentions(&["function", "tool"]);
        position.map(Some).next().or(is_of_schema.then_some(None))
    }

    /// Whether one of these types and codes, separated by spaces, is that of the error.
    pub(super) fn is(&self, codes: &str) -> bool {
        self.words.iter().any(|word| codes.split_whitespace().any(|code| code == word))
    }

    /// Whether the message contains one of these phrases, separated by bars; as in `mentions`.
    pub(super) fn says(&self, phrases: &str) -> bool {
        self.mentions(&phrases.split('|').collect::<Vec<_>>())
    }

    /// Whether the message contains one of these. Compares in lower case and without quotation marks.
    pub(super) fn mentions(&self, sentences: &[&str]) -> bool {
        let message = self.message.to_lowercase().replace(['`', '\'', '"'], "");
        sentences.iter().any(|sentence| message.contains(sentence))
    }
}

/// Whether a body is no text, as if it was compressed in a way that was not asked for.
pub(crate) fn is_binary(body: &str) -> bool {
    body.contains(|c: char| c == '\u{fffd}' || (c.is_control() && !c.is_whitespace()))
}

/// The text of an error in any shape: a string, a list, or an object with one of the usual fields.
fn text_of(value: &Value) -> Option<String> {
    const NAMES: [&str; 10] = [
        "message",
        "Message",
        "msg",
        "detail",
        "error",
        "errors",
        "error_description",
        "description",
        "title",
        "reason",
    ];
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Array(list) => {
            let texts: Vec<String> = list.iter().filter_map(text_of).collect();
            (!texts.is_empty()).then(|| texts.join("; "))
        }
        Value::Object(fields) => {
            let text = NAMES.into_iter().find_map(|name| text_of(fields.get(name)?))?;
            let path = fields.get("loc").and_then(path_of).map(|path| format!("{path}: "));
            Some(path.unwrap_or_default() + &text)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// A path that is given as a list of names and positions, without the part of the request that it begins with.
fn path_of(list: &Value) -> Option<String> {
    let names = list.as_array()?.iter().filter(|name| *name != "body");
    let names = names.map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
    Some(names.collect::<Vec<_>>().join("."))
}

/// The number in `NAME[3]` or `NAME.3`.
fn position_after(text: &str, name: &str) -> Option<usize> {
    text.match_indices(name).find_map(|(at, _)| {
        let rest = text[at + name.len()..].strip_prefix(['[', '.'])?;
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    })
}

/// The delay that a message asks for, as in "Please try again in 1m2.5s."
fn delay_in(message: &str) -> Option<Duration> {
    let message = message.to_lowercase();
    let words = ["again in ", "retry in ", "retry after ", "again after "];
    words.iter().find_map(|words| duration(message.split_once(words)?.1))
}
