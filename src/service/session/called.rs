//! The results of hooks' callbacks.

use super::WorkerFault;
use super::effects;
use super::lineage::HandedHistory;
use super::refusal::HookRefusal;
use epitome_hooks::functions::CallbackOutput;
use epitome_recipe::parse::OutputMode;
use epitome_thread::Seq;

/// The result of a callback.
#[derive(Debug)]
pub struct Called {
    pub output: CallbackOutput,
    /// How its text is used.
    pub becomes: OutputMode,
    /// The rounds and tokens that it took, as text for the trail.
    pub took: String,
    /// Remarks for the trail, before the text is used.
    pub remarks: Vec<String>,
    /// Replacement histories for this conversation, from hooks of the callback's run.
    pub handed: Vec<HandedHistory>,
}

/// A callback that was started in the background; a session has at most one.
pub(super) struct StartedCallback {
    /// The hook that started it.
    pub by: String,
    /// The last entry of the history when it began.
    pub through: Seq,
    pub revision: Seq,
    /// Its result, kept until the next safe point.
    pub result: Option<Result<Called, HookRefusal>>,
}

/// Runs a callback and turns a panic into an error.
pub(super) async fn guarded<T, E: From<WorkerFault>>(
    called: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    effects::guarded(called, || Err(WorkerFault.into())).await
}
