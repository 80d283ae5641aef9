//! Parses error bodies in all common shapes.

use std::time::Duration;

use serde_json::Value;

/// The parsed fields of an error body.
#[derive(Debug, Default)]
pub(super) struct ErrorBody {
    /// `error.type`, `error.code`, `error.status` and the reasons in the details, if they are strings.
    words: Vec<String>,
    pub message: String,
    pub request_id: Option<String>,
    pub used: Option<u64>,
    pub limit: Option<u64>,
    pub param: Option<String>,
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
            return ErrorBody { message, ..ErrorBody::default() };
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
        let mut words: Vec<String> =
            [&error["type"], &error["code"], &error["status"], &details["error_code"]]
                .into_iter()
                .chain(listed.iter().map(|detail| &detail["reason"]))
                .filter_map(text)
                .collect();
        let mut message = text(error)
            .or_else(|| text(&error["message"]))
            .or_else(|| text(&value["detail"]))
            .unwrap_or_default();
        // OpenRouter passes on the upstream provider's message separately; it may itself be an error object.
        if let Some(raw) = error["metadata"]["raw"].as_str() {
            let inner = ErrorBody::read(raw);
            if !inner.message.is_empty() {
                message = format!("{message}: {}", inner.message);
            }
            words.extend(inner.words);
        }
        if message.is_empty() && !value["detail"].is_null() {
            message = value["detail"].to_string();
        }
        let quotas = listed.iter().filter_map(|detail| detail["violations"].as_array()).flatten();
        ErrorBody {
            words,
            message,
            request_id: text(&value["request_id"]),
            used: error["n_prompt_tokens"].as_u64(),
            limit: error["n_ctx"].as_u64(),
            param: text(&error["param"]),
            // LiteLLM sends it as a string.
            status: error["code"]
                .as_u64()
                .or_else(|| error["code"].as_str()?.parse().ok())
                .and_then(|code| u16::try_from(code).ok()),
            retry_after: listed.iter().find_map(|detail| seconds(detail["retryDelay"].as_str()?)),
            is_daily: quotas.filter_map(|quota| quota["quotaId"].as_str()).any(|id| id.contains("PerDay")),
        }
    }

    pub(super) fn is(&self, words: &[&str]) -> bool {
        self.words.iter().any(|word| words.contains(&word.as_str()))
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

/// Parses `9s` or `0.5s`.
fn seconds(text: &str) -> Option<Duration> {
    let seconds = text.trim().strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}
