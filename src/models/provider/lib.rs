//! Model providers: requests, streamed replies and errors.
//!
//! `resolve` finds a model's `Endpoint` in settings and an environment. `wire` contains the pure encoders and decoders,
//! one file per wire format. `calls` sends requests to endpoints, with the clients of `http`, which knows no endpoints
//! and also serves `local`, `sign_in` and `chatgpt`. `authentication` adds the headers of an endpoint's
//! `credential`: API keys, stored logins or the cloud accounts in `cloud`. A `budget` limits the cost of calls. This
//! crate contains no agent loop.
//!
//! Data flow of a call: `wire::encoding` encodes a `ModelRequest` for an `Endpoint`, `calls` sends it and yields
//! `ProviderEvent`s, and a `collect::Collector` assembles them into a reply.

pub mod abilities;
mod address;
pub mod attachments;
mod authentication;
pub mod budget;
pub mod calls;
pub mod catalog;
mod chatgpt;
mod cloud;
pub mod collect;
pub mod compact;
pub mod count;
pub mod credential;
pub mod endpoint;
mod environment;
pub(crate) mod failure;
pub mod http;
pub mod learned;
pub mod listing;
mod local;
pub mod login;
pub mod loopback;
mod model_endpoint;
pub mod models;
pub mod network;
mod resolve;
pub mod retry;
pub mod search;
mod secret;
pub mod sign_in;
pub mod spent;
pub mod wire;

pub use failure::REWIND_HINT;

use std::time::Duration;

use serde_json::Value;

use epitome_thread::{HostedSearch, Seq, ThoughtLevel, ToolSpec, Usage, ViewItem};

/// One model call: a view of the thread with its parameters.
#[derive(Clone, Debug)]
pub struct ModelRequest<'a> {
    pub system: &'a str,
    pub tools: &'a [ToolSpec],
    pub items: Vec<ViewItem<'a>>,
    pub thought: ThoughtLevel,
    /// Maximum tokens of the reply.
    pub max_output: u32,
    /// Equal for all requests of a session, so that they hit the provider's prompt cache.
    pub cache_key: &'a str,
    /// Lets an encoder reuse earlier output; `None` for a request outside a conversation.
    pub basis: Option<Basis>,
}

/// Identifies the shared start of a conversation's requests: with equal bases, a later request only appends messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// The entry that contains the system prompt and the tools.
    pub frame: Seq,
    /// The last change of the view other than an append.
    pub revision: Seq,
}

/// Events of a streamed reply, in order of arrival. The events of one part are contiguous, except for the arguments of
/// parallel calls.
#[derive(Clone, Debug, PartialEq)]
pub enum ProviderEvent {
    Text(String),
    /// Ends the current text: the next one is a part of its own.
    TextEnded,
    Thinking(String),
    /// Ends the current thinking part; `data` is what the provider requires when the part is sent back. Without a
    /// current part, this is a separate part without text, to be sent back before the part that follows.
    ThinkingSealed {
        data: Value,
    },
    /// A tool call begins. `index` distinguishes the calls of one reply.
    CallStarted {
        index: u32,
        id: String,
        name: String,
    },
    /// A fragment of the call's arguments as JSON text.
    CallArguments {
        index: u32,
        json: String,
    },
    /// A web search by the provider, the result of the one before it, or the sources of the text before it. `blocks` is
    /// what the provider gets back.
    Searched {
        search: HostedSearch,
        blocks: Vec<Value>,
    },
    /// Token counts so far; later reports replace earlier ones, except for zero fields.
    Usage(Usage),
    /// The reply is complete. A stream that ends without this event was interrupted.
    Stopped(ReplyStop),
}

impl ProviderEvent {
    /// Whether the user sees this event on arrival. Calls are shown only when the reply is complete, so a model call
    /// that fails before anything was shown can be retried.
    pub fn is_shown(&self) -> bool {
        match self {
            ProviderEvent::Text(_) | ProviderEvent::Thinking(_) => true,
            ProviderEvent::TextEnded
            | ProviderEvent::ThinkingSealed { .. }
            | ProviderEvent::Searched { .. }
            | ProviderEvent::CallStarted { .. }
            | ProviderEvent::CallArguments { .. }
            | ProviderEvent::Usage(_)
            | ProviderEvent::Stopped(_) => false,
        }
    }

    /// The bytes of its text or data.
    fn bytes(&self) -> usize {
        match self {
            ProviderEvent::Text(text)
            | ProviderEvent::Thinking(text)
            | ProviderEvent::CallArguments { json: text, .. } => text.len(),
            ProviderEvent::ThinkingSealed { data } => data.to_string().len(),
            ProviderEvent::Searched { blocks, .. } => {
                blocks.iter().map(|block| block.to_string().len()).sum()
            }
            ProviderEvent::TextEnded
            | ProviderEvent::CallStarted { .. }
            | ProviderEvent::Usage(_)
            | ProviderEvent::Stopped(_) => 0,
        }
    }
}

/// Why the model stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyStop {
    /// The model finished its answer or requests tools.
    Finished,
    MaxTokens,
    Refused {
        reason: String,
    },
    /// The context window was full before the reply was complete.
    WindowExceeded,
    /// To continue, send the reply back unchanged (Anthropic's `pause_turn`).
    Paused,
    /// A content filter withheld all or part of the reply.
    Filtered {
        reason: String,
    },
    /// Any other reason, including a mistake of the model such as an unparsable call. `reason` is the provider's code,
    /// followed by its explanation, if any.
    Other {
        reason: String,
    },
}

/// The kind of a failed call, which tells the caller whether to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// May succeed later; `after` is the delay that the provider requests.
    Retry { after: Option<Duration> },
    /// The key is missing, wrong or lacks permission, or there is a billing problem.
    Auth,
    /// The request is too long. `used` and `limit` are in tokens, if the provider reports them. `window` is true if the
    /// provider reports that the model's context window is exceeded; otherwise the limit is unknown, in bytes, or that
    /// of the account's rate.
    TooLong { used: Option<u64>, limit: Option<u64>, window: bool },
    /// The service answered with nothing at all, as some do if the request is too long.
    Empty,
    /// The provider rejects reasoning or a compaction that was sent back: altered, from another account, or expired.
    /// It would accept the same request without them.
    BadReasoning,
    /// The service rejects tools in this form for the model; `Learned::other_form` returns the next form to try.
    ToolForm,
    /// The user's budget doesn't allow the call; nothing was sent.
    Budget,
    /// The provider rejects this request, and would do so again.
    Refused,
    /// The answer is malformed or incomplete.
    Broken,
}

/// How a service might accept a request that it has refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Omit this field, which the refusal names.
    OmitField(&'static str),
    /// Omit the tool at this position of the list that was sent; without a position, one that the message names.
    OmitTool(Option<usize>),
    /// Omit images and documents: the refusal is about one, and rarely says which.
    OmitAttachments,
    /// Send a shorter conversation. `is_likely` if the refusal mentions its length.
    Shorten { is_likely: bool },
}

/// A failed model call. `message` is a sentence for the user, without secrets; `hint` suggests what the user can do, and
/// `remedy` what can be done without the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub class: ErrorClass,
    pub message: String,
    pub hint: Option<String>,
    pub remedy: Option<Remedy>,
}

impl ProviderError {
    pub fn new(class: ErrorClass, message: impl Into<String>) -> ProviderError {
        ProviderError { class, message: message.into(), hint: None, remedy: None }
    }

    /// Decides whether a failure for which a service gives no clear reason means that the request is too long: services
    /// word that in too many ways to know them all. `attempts` is the number of earlier failures of the same request,
    /// `is_large` whether it is counted as more than half of the window.
    pub fn judged(mut self, attempts: u32, is_large: bool) -> ProviderError {
        let is_too_long = match (&self.class, &self.remedy) {
            (ErrorClass::Empty, _) => is_large,
            // A fault of the service that comes again for the same request.
            (ErrorClass::Retry { .. }, Some(Remedy::Shorten { is_likely })) => {
                attempts > 0 && (is_large || *is_likely)
            }
            (_, Some(Remedy::Shorten { is_likely })) => is_large || *is_likely,
            _ => false,
        };
        if is_too_long {
            self.class = ErrorClass::TooLong { used: None, limit: None, window: true };
        } else if self.class == ErrorClass::Empty {
            self.class = ErrorClass::Retry { after: None };
        }
        self
    }

    pub fn with_hint(self, hint: impl Into<String>) -> ProviderError {
        ProviderError { hint: Some(hint.into()), ..self }
    }
}
