//! Functions of an embedding program, registered under the names by which hooks call them and recipes declare
//! them. Runs them and catches their panics; their results are interpreted like those of scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::handlers::Handler;
use super::hook::RUN_TIME_MAX;
use super::hook_context::HookContext;
use super::output::{HookOutput, Utterance};
pub use epitome_tools::BoxError;

type FunctionFuture<T> = BoxFuture<'static, Result<T, BoxError>>;
type CallbackFunction = Arc<dyn Fn(CallbackInput) -> FunctionFuture<CallbackOutput> + Send + Sync>;
type HandlerFunction = Arc<dyn Fn(Handler, HookContext) -> FunctionFuture<HookOutput> + Send + Sync>;

/// Callbacks and handlers by name. Cheap to clone; a clone does not see later registrations, so register
/// first and then pass it to the sessions (the field `functions` of
/// [`Services`](epitome_session::registry::Services)).
///
/// A callback is the function that a hook names in `{"result": "callback", "callback": NAME}`. It takes
/// precedence over a recipe of the same name. A handler is the function that a recipe names in its `hooks`
/// table; it takes precedence over the built-in handler of the same name. For both, a later registration
/// replaces an earlier one.
///
/// ```
/// use epitome_hooks::functions::{CallbackInput, CallbackOutput, Functions};
/// use epitome_hooks::output::Utterance;
///
/// let mut functions = Functions::default();
/// functions.register_callback("redact-pii", |input: CallbackInput| async move {
///     let mask = input.args.get("mask").cloned().unwrap_or_else(|| "[mail]".to_owned());
///     let redact = |text: &str| -> String {
///         let words = text.split(' ').map(|word| if word.contains('@') { mask.as_str() } else { word });
///         words.collect::<Vec<_>>().join(" ")
///     };
///     let messages = input.messages.iter();
///     let messages = messages.map(|message| Utterance { text: redact(&message.text), ..message.clone() }).collect();
///     Ok(CallbackOutput { messages, ..CallbackOutput::default() })
/// });
///
/// // A session does this when a hook answers `{"result": "callback", "callback": "redact-pii"}`.
/// # use epitome_thread::Role;
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let message = Utterance { role: Role::User, text: "write to ann@example.org today".to_owned() };
/// let input = CallbackInput { messages: vec![message], ..CallbackInput::default() };
/// let output = functions.call("redact-pii", input).await.expect("it does not fail");
/// assert_eq!(output.messages[0].text, "write to [mail] today");
///
/// let missing = functions.call("redact-pi", CallbackInput::default()).await.expect_err("no such name");
/// assert_eq!(missing.to_string(), "no function is called \"redact-pi\"");
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Functions {
    callbacks: BTreeMap<String, CallbackFunction>,
    handlers: BTreeMap<String, HandlerFunction>,
}

/// The input of a callback.
#[derive(Clone, Debug, Default)]
pub struct CallbackInput {
    /// The hook's `callback_args`.
    pub args: BTreeMap<String, String>,
    /// The hook context at which the callback was requested; `None` if it was not requested by a hook.
    pub hook_context: Option<HookContext>,
    /// The conversation as the model sees it, oldest message first.
    pub messages: Vec<Utterance>,
}

/// The result of a callback. Empty text and no messages change nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallbackOutput {
    /// Replaces the history with one user message; ignored if `messages` is not empty.
    pub text: String,
    /// The new history.
    pub messages: Vec<Utterance>,
    /// Whether an agent that stops continues with the new history.
    pub go_on: bool,
}

/// Why a function returned no result.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    #[error("no function is called {0:?}")]
    NotFound(String),
    /// The function's own error, or its panic message.
    #[error("the function {name:?} failed: {source}")]
    Failed { name: String, source: BoxError },
}

impl Functions {
    /// Registers a function that hooks can call as a callback.
    pub fn register_callback<F, R>(&mut self, name: impl Into<String>, function: F)
    where
        F: Fn(CallbackInput) -> R + Send + Sync + 'static,
        R: Future<Output = Result<CallbackOutput, BoxError>> + Send + 'static,
    {
        let function: CallbackFunction = Arc::new(move |input| Box::pin(function(input)));
        self.callbacks.insert(name.into(), function);
    }

    /// Registers a function that recipes can declare as a handler.
    pub fn register_handler<F, R>(&mut self, name: impl Into<String>, function: F)
    where
        F: Fn(Handler, HookContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<HookOutput, BoxError>> + Send + 'static,
    {
        let function: HandlerFunction =
            Arc::new(move |handler, hook_context| Box::pin(function(handler, hook_context)));
        self.handlers.insert(name.into(), function);
    }

    /// Whether a callback with this name is registered.
    pub fn has_callback(&self, name: &str) -> bool {
        self.callbacks.contains_key(name)
    }

    /// Whether a handler with this name is registered.
    pub fn has_handler(&self, name: &str) -> bool {
        self.handlers.contains_key(name)
    }

    /// The names of all registered handlers.
    pub fn handler_names(&self) -> BTreeSet<&str> {
        self.handlers.keys().map(String::as_str).collect()
    }

    /// Runs a callback, without a timeout: the caller sets one and drops the future.
    pub async fn call(&self, name: &str, input: CallbackInput) -> Result<CallbackOutput, FunctionError> {
        let function = self.callbacks.get(name);
        let function = function.ok_or_else(|| FunctionError::NotFound(name.to_owned()))?.clone();
        caught(name, async move { function(input).await }).await
    }

    /// Runs a registered handler, for as long as a hook's program may be configured to run.
    pub async fn handle(
        &self,
        handler: &Handler,
        hook_context: &HookContext,
    ) -> Result<HookOutput, FunctionError> {
        let function = self.handlers.get(&handler.name);
        let function = function.ok_or_else(|| FunctionError::NotFound(handler.name.clone()))?.clone();
        let (given, hook_context) = (handler.clone(), hook_context.clone());
        let run = async move { function(given, hook_context).await };
        let in_time = async {
            let ended = tokio::time::timeout(RUN_TIME_MAX, run).await;
            ended
                .unwrap_or_else(|_| Err(format!("it did not end within {} s", RUN_TIME_MAX.as_secs()).into()))
        };
        caught(&handler.name, in_time).await
    }
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Functions")
            .field("callbacks", &self.callbacks.keys())
            .field("handlers", &self.handlers.keys())
            .finish()
    }
}

/// Turns a panic of foreign code into an error.
async fn caught<T>(
    name: &str,
    running: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, FunctionError> {
    let source = match AssertUnwindSafe(running).catch_unwind().await {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error,
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("it panicked: {}", message.unwrap_or("without a message")).into()
        }
    };
    Err(FunctionError::Failed { name: name.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> CallbackOutput {
        CallbackOutput { text: text.to_owned(), ..CallbackOutput::default() }
    }

    async fn call(functions: &Functions, name: &str) -> Result<CallbackOutput, String> {
        functions.call(name, CallbackInput::default()).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn later_registrations_replace_earlier_ones_but_not_in_clones() {
        let mut functions = Functions::default();
        functions.register_callback("greet", |_| async { Ok(text("one")) });
        let before = functions.clone();
        functions.register_callback("greet", |_| async { Ok(text("two")) });
        assert_eq!(call(&functions, "greet").await, Ok(text("two")));
        assert_eq!(call(&before, "greet").await, Ok(text("one")));
    }

    #[tokio::test]
    async fn an_unknown_name_is_not_found() {
        let functions = Functions::default();
        assert!(!functions.has_callback("greet"));
        assert_eq!(call(&functions, "greet").await, Err("no function is called \"greet\"".to_owned()));
    }

    #[tokio::test]
    async fn errors_and_panics_name_the_function() {
        let mut functions = Functions::default();
        functions.register_callback("fails", |_| async { Err("no key".into()) });
        functions.register_callback("late", |_| async { panic!("on the way") });
        functions.register_callback("early", |input: CallbackInput| {
            assert!(!input.args.is_empty(), "before it begins");
            async { Ok(text("never")) }
        });
        let why = |name: &str, why: &str| Err(format!("the function {name:?} failed: {why}"));
        assert_eq!(call(&functions, "fails").await, why("fails", "no key"));
        assert_eq!(call(&functions, "late").await, why("late", "it panicked: on the way"));
        assert_eq!(call(&functions, "early").await, why("early", "it panicked: before it begins"));
    }
}
