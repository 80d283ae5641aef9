//! Model providers: what is asked of one, what streams back, and what can go wrong.
//!
//! Encoders and decoders are pure and below `wire`, an encoder and a decoder file for each wire format;
//! only `http` sends anything, for itself and for `listing`, `local`, `count` and `compact`. No agent loop lives in a
//! provider.
//!
//! The way of a call: `wire::encoding` writes a `Request` for an `Endpoint`, `http` sends it and gives
//! `ProviderEvent`s, which a `collect::Collector` makes into a reply.

pub mod abilities;
mod address;
pub mod attachments;
pub mod catalog;
pub mod collect;
pub mod compact;
pub mod count;
pub mod endpoint;
pub(crate) mod failure;
pub mod http;
pub mod learned;
pub mod listing;
mod local;
pub mod models;
pub mod network;
pub mod retry;
pub mod spent;
pub mod wire;

use std::time::Duration;

use serde_json::Value;

use epitome_thread::{Seq, ThoughtLevel, ToolSpec, Usage, ViewItem};

/// One model call, as a view of the thread.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub system: &'a str,
    pub tools: &'a [ToolSpec],
    pub items: Vec<ViewItem<'a>>,
    pub thought: ThoughtLevel,
    /// The most tokens that the reply may have.
    pub max_output: u32,
    /// Equal for all requests of a session, for the providers' prompt caches.
    pub cache_key: &'a str,
    /// By which an encoder knows what it has written already; `None` for a request that stands alone.
    pub basis: Option<Basis>,
}

/// Requests of a conversation with an equal basis begin with the same messages: the later one has more
/// behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Basis {
    /// The entry that holds system text and tools.
    pub frame: Seq,
    /// The last change of the view other than by appending.
    pub revision: Seq,
}

/// What streams back, in the order in which it came. Events of a part are contiguous.
#[derive(Clone, Debug, PartialEq)]
pub enum ProviderEvent {
    Text(String),
    Thinking(String),
    /// The running thinking part ends; `data` is what its provider needs to take it back. Without one it
    /// is a part of its own, which has no text: what the provider wants back with the part that follows.
    ThinkingSealed {
        data: Value,
    },
    /// A tool call begins. `index` tells calls of one reply apart.
    CallStarted {
        index: u32,
        id: String,
        name: String,
    },
    /// A piece of the call's arguments as JSON text.
    CallArguments {
        index: u32,
        json: String,
    },
    /// Tokens so far; later reports replace earlier ones field by field where they are not zero.
    Usage(Usage),
    /// The reply is complete. Without it, a stream that ends was cut.
    Stopped(ReplyStop),
}

impl ProviderEvent {
    /// Whether a person sees this when it comes. Calls are shown when the reply is whole: one that breaks
    /// before any of it was shown can be asked for again.
    pub fn is_shown(&self) -> bool {
        match self {
            ProviderEvent::Text(_) | ProviderEvent::Thinking(_) => true,
            ProviderEvent::ThinkingSealed { .. }
            | ProviderEvent::CallStarted { .. }
            | ProviderEvent::CallArguments { .. }
            | ProviderEvent::Usage(_)
            | ProviderEvent::Stopped(_) => false,
        }
    }
}

/// Why the model stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyStop {
    /// Said all, or asks for tools.
    Finished,
    MaxTokens,
    Refused {
        reason: String,
    },
    /// The window was full before the reply was whole.
    WindowExceeded,
    /// Send the reply back as it is to go on (Anthropic `pause_turn`).
    Paused,
    /// The provider held the reply back, or a part of it: a filter of contents.
    Filtered {
        reason: String,
    },
    /// For a reason that is not known here, or one that says that the model made a mistake (a call that
    /// can't be read). `reason` is the provider's word, and a sentence where it gives one.
    Other {
        reason: String,
    },
}

/// What a failed call means for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// May work a moment later; `after` is the provider's own word.
    Retry { after: Option<Duration> },
    /// Key missing, wrong, or without the right; billing.
    Auth,
    /// The request does not fit. The sizes in tokens where the provider told them. `window`: it said that it is the
    /// model's window which is exceeded; else that is supposed, or it was a size in bytes.
    TooLong { used: Option<u64>, limit: Option<u64>, window: bool },
    /// What a model thought, or what its provider made of the conversation, is sent back to it and not
    /// taken: changed, of another account, or no longer known. The same request without any of it would be
    /// taken.
    BadReasoning,
    /// The provider refuses this request and would refuse it again.
    Refused,
    /// The answer can't be understood, or broke off.
    Broken,
}

/// A model call that failed. `message` is a sentence for a person without any secret; `hint` says
/// what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    pub class: ErrorClass,
    pub message: String,
    pub hint: Option<String>,
}
