//! The `model!` and `model?` lines: the script of a model, and the requests that its provider receives.
//!
//! Both are provider-neutral: one fixture runs against every wire format that the scripted model supports. Properties
//! of a single provider (cache markers, signatures, the system prompt) are omitted.

use serde_json::Value;

use super::names::Names;
use super::words::{LineWord, as_text, bare, pair, quoted};

/// A step of a scripted model. A reply is a sequence of steps; consecutive `Text` steps are pieces of one
/// text.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelStep {
    /// `text "…"`
    Text(String),
    /// `think "…"`
    Think(String),
    /// `call NAME {…}`; several in a row are parallel calls of one reply.
    Call { name: String, input: Value },
    /// `search "QUERY" "URL"`: the provider searches the web and finds this page, which the next text cites. Chat
    /// Completions has no such searches.
    Search { query: String, url: String },
    /// `stop max_tokens`. Without this step, the stop reason is that of a complete reply, or of one with tool
    /// calls.
    Stop(ScriptedStop),
    /// `usage INPUT OUTPUT`: the token counts reported with the reply.
    Usage { input: u64, output: u64 },
    /// `cached TOKENS`: the number of input tokens that came from the provider's cache.
    Cached(u64),
    /// `error 429 retry-after=1 "…"`: an HTTP status as the first step, and an error within the stream
    /// otherwise.
    Error { status: u16, retry_after: Option<u64>, message: Option<String> },
    /// `error overflow`: the provider's error for a request that exceeds the window.
    Overflow,
    /// `cut`: the connection is closed.
    Cut,
    /// `hang`: nothing more is sent until the client gives up.
    Hang,
    /// `wait`: nothing more is sent until `ScriptedModel::release`. In a fixture, this is called when the
    /// conversation reaches the next `model!` line, which continues the same reply.
    Wait,
    /// `flood COUNT "…"`: this many deltas with the text, written as fast as the socket accepts them.
    Flood { count: usize, text: String },
}

/// The stop reason of a scripted model, if its steps do not determine it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptedStop {
    MaxTokens,
    Refusal(String),
    /// The window was full before the end of the reply.
    Window,
    /// The provider paused a long turn and expects the reply to be sent back.
    Pause,
}

impl ModelStep {
    /// Parses the words of a `model!` line. The error describes the valid forms.
    pub fn read(words: &[LineWord]) -> Result<ModelStep, String> {
        let (verb, rest) = split_verb(words)?;
        match (verb, rest) {
            ("text", [LineWord::Json(Value::String(text))]) => Ok(ModelStep::Text(text.clone())),
            ("think", [LineWord::Json(Value::String(text))]) => Ok(ModelStep::Think(text.clone())),
            ("call", [LineWord::Bare(name), LineWord::Json(input @ Value::Object(_))]) => {
                Ok(ModelStep::Call { name: name.clone(), input: input.clone() })
            }
            ("search", [LineWord::Json(Value::String(query)), LineWord::Json(Value::String(url))]) => {
                Ok(ModelStep::Search { query: query.clone(), url: url.clone() })
            }
            ("stop", [LineWord::Bare(reason), more @ ..]) => {
                let stop = match (reason.as_str(), more) {
                    ("max_tokens", []) => ScriptedStop::MaxTokens,
                    ("refusal", []) => ScriptedStop::Refusal(String::new()),
                    ("refusal", [LineWord::Json(Value::String(why))]) => ScriptedStop::Refusal(why.clone()),
                    ("window", []) => ScriptedStop::Window,
                    ("pause", []) => ScriptedStop::Pause,
                    _ => return Err("a stop is max_tokens, refusal [\"why\"], window or pause".into()),
                };
                Ok(ModelStep::Stop(stop))
            }
            ("usage", [LineWord::Bare(input), LineWord::Bare(output)]) => {
                let tokens = |text: &str| {
                    text.parse().map_err(|_| "usage takes two numbers of tokens: input and output")
                };
                Ok(ModelStep::Usage { input: tokens(input)?, output: tokens(output)? })
            }
            ("cached", [LineWord::Bare(tokens)]) => {
                Ok(ModelStep::Cached(tokens.parse().map_err(|_| "cached takes a number of tokens")?))
            }
            ("error", [LineWord::Bare(kind)]) if kind == "overflow" => Ok(ModelStep::Overflow),
            ("error", [LineWord::Bare(status), more @ ..]) => read_error(status, more),
            ("cut", []) => Ok(ModelStep::Cut),
            ("hang", []) => Ok(ModelStep::Hang),
            ("wait", []) => Ok(ModelStep::Wait),
            ("flood", [LineWord::Bare(count), LineWord::Json(Value::String(text))]) => {
                let count = count.parse().map_err(|_| "flood takes a number of deltas and their text")?;
                Ok(ModelStep::Flood { count, text: text.clone() })
            }
            _ => Err("a model says: text \"…\", think \"…\", call NAME {…}, search \"…\" \"…\", stop WHY, usage IN OUT, \
                      cached TOKENS, error STATUS, error overflow, cut, hang, wait, or flood COUNT \"…\""
                .into()),
        }
    }

    /// Returns this step with placeholders replaced by their values.
    pub fn filled(&self, names: &Names) -> Result<ModelStep, String> {
        Ok(match self {
            ModelStep::Text(text) => ModelStep::Text(names.fill_text(text)?),
            ModelStep::Think(text) => ModelStep::Think(names.fill_text(text)?),
            ModelStep::Call { name, input } => {
                ModelStep::Call { name: name.clone(), input: names.fill(input)? }
            }
            ModelStep::Search { .. }
            | ModelStep::Stop(_)
            | ModelStep::Usage { .. }
            | ModelStep::Cached(_)
            | ModelStep::Error { .. }
            | ModelStep::Overflow
            | ModelStep::Cut
            | ModelStep::Hang
            | ModelStep::Wait
            | ModelStep::Flood { .. } => self.clone(),
        })
    }

    /// The words that `read` parses as this step.
    pub fn words(&self) -> Vec<LineWord> {
        match self {
            ModelStep::Text(text) => vec![bare("text"), quoted(text)],
            ModelStep::Think(text) => vec![bare("think"), quoted(text)],
            ModelStep::Call { name, input } => vec![bare("call"), bare(name), LineWord::Json(input.clone())],
            ModelStep::Search { query, url } => vec![bare("search"), quoted(query), quoted(url)],
            ModelStep::Stop(ScriptedStop::MaxTokens) => vec![bare("stop"), bare("max_tokens")],
            ModelStep::Stop(ScriptedStop::Refusal(why)) => {
                let why = Some(why.as_str()).filter(|why| !why.is_empty()).map(quoted);
                [bare("stop"), bare("refusal")].into_iter().chain(why).collect()
            }
            ModelStep::Stop(ScriptedStop::Window) => vec![bare("stop"), bare("window")],
            ModelStep::Stop(ScriptedStop::Pause) => vec![bare("stop"), bare("pause")],
            ModelStep::Usage { input, output } => {
                vec![bare("usage"), bare(&input.to_string()), bare(&output.to_string())]
            }
            ModelStep::Cached(tokens) => vec![bare("cached"), bare(&tokens.to_string())],
            ModelStep::Error { status, retry_after, message } => {
                let mut words = vec![bare("error"), bare(&status.to_string())];
                words.extend(retry_after.map(|seconds| pair("retry-after", &seconds.to_string())));
                words.extend(message.as_deref().map(quoted));
                words
            }
            ModelStep::Overflow => vec![bare("error"), bare("overflow")],
            ModelStep::Cut => vec![bare("cut")],
            ModelStep::Hang => vec![bare("hang")],
            ModelStep::Wait => vec![bare("wait")],
            ModelStep::Flood { count, text } => vec![bare("flood"), bare(&count.to_string()), quoted(text)],
        }
    }
}

fn read_error(status: &str, more: &[LineWord]) -> Result<ModelStep, String> {
    let status = status
        .parse::<u16>()
        .ok()
        .filter(|status| (400..600).contains(status))
        .ok_or("an error has an HTTP status from 400 to 599, or is `overflow`")?;
    let mut retry_after = None;
    let mut message = None;
    for word in more {
        match (word.attribute(), word) {
            (Some(("retry-after", seconds)), _) => {
                retry_after = Some(seconds.parse().map_err(|_| "retry-after is a number of seconds")?);
            }
            (None, LineWord::Json(Value::String(text))) => message = Some(text.clone()),
            _ => return Err("an error may have retry-after=SECONDS and a \"message\"".into()),
        }
    }
    Ok(ModelStep::Error { status, retry_after, message })
}

/// A part of the request that a provider received.
#[derive(Clone, Debug, PartialEq)]
pub enum SeenPart {
    /// `anew`: the following parts are the complete request, which does not extend the previous one.
    Anew,
    /// `again`: the previous request is repeated without changes.
    Again,
    /// `user "…"`
    User(String),
    /// `user image`, `user document`: a part that is not text.
    UserPart(String),
    /// `agent "…"`
    Agent(String),
    /// `agent call NAME {…}`
    AgentCall { name: String, input: Value },
    /// `result NAME "…"`: a tool's outcome as the model reads it.
    Result { tool: String, text: String },
}

impl SeenPart {
    /// Parses the words of a `model?` line.
    pub fn read(words: &[LineWord]) -> Result<SeenPart, String> {
        let (verb, rest) = split_verb(words)?;
        match (verb, rest) {
            ("anew", []) => Ok(SeenPart::Anew),
            ("again", []) => Ok(SeenPart::Again),
            ("user", [LineWord::Json(Value::String(text))]) => Ok(SeenPart::User(text.clone())),
            ("user", [LineWord::Bare(kind)]) => Ok(SeenPart::UserPart(kind.clone())),
            ("agent", [LineWord::Bare(call), LineWord::Bare(name), LineWord::Json(input)])
                if call == "call" =>
            {
                Ok(SeenPart::AgentCall { name: name.clone(), input: input.clone() })
            }
            ("agent", [LineWord::Json(Value::String(text))]) => Ok(SeenPart::Agent(text.clone())),
            ("result", [LineWord::Bare(tool), text]) => match as_text(text) {
                Some(text) => Ok(SeenPart::Result { tool: tool.clone(), text }),
                None => Err("a result has the tool's name and a text".into()),
            },
            _ => Err("a provider is sent: user \"…\", agent \"…\", agent call NAME {…}, \
                      result NAME \"…\", again, or anew and all of these"
                .into()),
        }
    }

    /// Whether the received part matches this pattern.
    pub fn matches(&self, actual: &SeenPart, names: &mut Names) -> bool {
        match (self, actual) {
            (SeenPart::Anew, SeenPart::Anew) | (SeenPart::Again, SeenPart::Again) => true,
            (SeenPart::User(pattern), SeenPart::User(text))
            | (SeenPart::Agent(pattern), SeenPart::Agent(text)) => names.matches_text(pattern, text),
            (SeenPart::UserPart(pattern), SeenPart::UserPart(kind)) => pattern == kind,
            (SeenPart::AgentCall { name: pattern, input: inputs }, SeenPart::AgentCall { name, input }) => {
                pattern == name && names.matches(inputs, input)
            }
            (SeenPart::Result { tool: pattern, text: texts }, SeenPart::Result { tool, text }) => {
                pattern == tool && names.matches_text(texts, text)
            }
            (
                SeenPart::Anew
                | SeenPart::Again
                | SeenPart::User(_)
                | SeenPart::UserPart(_)
                | SeenPart::Agent(_)
                | SeenPart::AgentCall { .. }
                | SeenPart::Result { .. },
                _,
            ) => false,
        }
    }

    /// Returns this part with placeholders for ids and paths.
    pub fn with_names(&self, names: &mut Names) -> SeenPart {
        match self {
            SeenPart::Anew | SeenPart::Again | SeenPart::UserPart(_) => self.clone(),
            SeenPart::User(text) => SeenPart::User(names.text_with_names(text)),
            SeenPart::Agent(text) => SeenPart::Agent(names.text_with_names(text)),
            SeenPart::AgentCall { name, input } => {
                SeenPart::AgentCall { name: name.clone(), input: names.with_names(input) }
            }
            SeenPart::Result { tool, text } => {
                SeenPart::Result { tool: tool.clone(), text: names.text_with_names(text) }
            }
        }
    }

    /// The words that `read` parses as this part.
    pub fn words(&self) -> Vec<LineWord> {
        match self {
            SeenPart::Anew => vec![bare("anew")],
            SeenPart::Again => vec![bare("again")],
            SeenPart::User(text) => vec![bare("user"), quoted(text)],
            SeenPart::UserPart(kind) => vec![bare("user"), bare(kind)],
            SeenPart::Agent(text) => vec![bare("agent"), quoted(text)],
            SeenPart::AgentCall { name, input } => {
                vec![bare("agent"), bare("call"), bare(name), LineWord::Json(input.clone())]
            }
            SeenPart::Result { tool, text } => vec![bare("result"), bare(tool), quoted(text)],
        }
    }
}

fn split_verb(words: &[LineWord]) -> Result<(&str, &[LineWord]), String> {
    match words {
        [LineWord::Bare(verb), rest @ ..] => Ok((verb, rest)),
        _ => Err("the line begins with a word that says what happens".into()),
    }
}
