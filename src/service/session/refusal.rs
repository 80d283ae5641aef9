//! Why the request of a hook is refused, and why a child or a completion that it started has no result. The trail records
//! the text.

use std::time::Duration;

use super::provider_errors::sentence;
use super::{ReplacementRefusal, SessionError, WorkerFault};
use epitome_compaction::CompactionRefusal;
use epitome_hooks::functions::FunctionError;
use epitome_provider::ProviderError;
use epitome_recipe::command::ArgumentError;
use epitome_thread::problem::Problem;
use epitome_thread::{ModelName, ReplayError};

/// Why an action that a hook requested at the end of a round is not done, or the call of a resident hook not served.
#[derive(Debug, thiserror::Error)]
pub enum HookRefusal {
    #[error("a callback works on its own conversation, and {0} is another one")]
    OtherConversation(String),
    #[error("there is no recipe or function called {0:?}; epitome recipes list shows all")]
    NoCallback(String),
    #[error("the recipe {0} does not let hooks call it (callable_by)")]
    NotCallable(String),
    #[error("a background callback of {0} is still running; one at a time")]
    BackgroundBusy(String),
    #[error("the history was edited while it ran, so its result is stale and was dropped")]
    Stale,
    #[error("it did not end within {} s", .0.as_secs())]
    Late(Duration),
    #[error(
        "there is no method {0:?}; there are context.read, compact, recipe.run, model.complete and notice"
    )]
    NoMethod(String),
    #[error("{of} needs {what}")]
    Missing { of: &'static str, what: &'static str },
    #[error("{what} can be {choices}, not {value:?}")]
    NotAChoice { what: &'static str, choices: &'static str, value: String },
    #[error("a callback run {0}")]
    InCallback(&'static str),
    #[error("no turn runs{0}")]
    NoTurn(&'static str),
    #[error("hooks may start {0} recipes and model calls in one turn")]
    TooManyPaidCalls(u32),
    #[error("hooks may ask a model {0} times in one turn")]
    TooManyJudgements(u32),
    #[error("there is no recipe {0:?}")]
    NoRecipe(String),
    #[error("the session is ending")]
    Ending,
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Completion(#[from] CompletionError),
    #[error(transparent)]
    NoGain(#[from] CompactionRefusal),
    #[error(transparent)]
    Arguments(#[from] ArgumentError),
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error(transparent)]
    Function(#[from] FunctionError),
    #[error(transparent)]
    Replacement(#[from] ReplacementRefusal),
    #[error(transparent)]
    Fault(#[from] WorkerFault),
}

/// Why a child has no result.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// Its prompt can't be rendered.
    #[error(transparent)]
    Prompt(#[from] Problem),
    #[error("The {kind} {name:?} failed: {cause}")]
    Failed {
        /// `agent` or `recipe`
        kind: &'static str,
        name: String,
        #[source]
        cause: Box<ChildFailure>,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum ChildFailure {
    /// Its first request is too long. `window`: the model's window, if the provider reported it.
    #[error("{why}")]
    TooLong { why: String, window: Option<u64> },
    #[error("it did not end within {} s and was stopped", .0.as_secs_f64())]
    Late(Duration),
    /// Its turn has ended without a result, for this reason.
    #[error("{0}")]
    Ended(String),
    #[error("{}", sentence(.0))]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Why a model has not answered.
#[derive(Debug, thiserror::Error)]
pub enum CompletionError {
    #[error("the last message must be a user's: there is nothing to answer")]
    NothingToAnswer,
    #[error("{model} did not answer within {} s", limit.as_secs())]
    Late { model: ModelName, limit: Duration },
    #[error("{model} declined: {reason}")]
    Declined { model: ModelName, reason: String },
    #[error("{}", sentence(.0))]
    Provider(#[from] ProviderError),
}
