//! Model providers: what is asked of one, what streams back, and what can go wrong.
//!
//! Encoders and decoders are pure, an encoder and a decoder file for each wire format; only `http` and
//! `local` perform requests. No agent loop lives in a provider.
//!
//! Start at `http`: it encodes a `Request` for an `Endpoint` and gives `ProviderEvent`s, which a
//! `collect::Collector` makes into a reply.

mod address;
mod anthropic;
mod anthropic_stream;
pub mod collect;
pub mod endpoint;
mod failure;
pub mod http;
mod local;
pub mod models;
mod openai_chat;
mod openai_stream;
pub mod retry;
pub mod scripted;
pub mod sse;
pub mod stream;
#[cfg(test)]
mod test_views;
mod turns;

use std::time::Duration;

use serde_json::Value;

use crate::thread::{ThoughtLevel, ToolSpec, Usage, ViewItem};

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
}

/// What streams back, in the order in which it came. Events of a part are contiguous.
#[derive(Clone, Debug, PartialEq)]
pub enum ProviderEvent {
    Text(String),
    Thinking(String),
    /// The running thinking part ends; `data` is what its provider needs to take it back.
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
}

/// What a failed call means for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// May work a moment later; `after` is the provider's own word.
    Retry { after: Option<Duration> },
    /// Key missing, wrong, or without the right; billing.
    Auth,
    /// The request does not fit the window. The sizes in tokens where the provider told them.
    TooLong { used: Option<u64>, limit: Option<u64> },
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
