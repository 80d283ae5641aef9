//! What a running call has put out so far, which is its outcome if it is cancelled.

use std::sync::Arc;

use parking_lot::Mutex;

use super::ToolResult;
use epitome_thread::OutcomeStatus;

/// What follows the output of a cancelled call.
pub const CANCELLED: &str = "[cancelled before it finished; changes already made were kept]";

type Describe = Box<dyn FnOnce() -> ToolResult + Send>;

/// Describes what a call has put out so far. Shared by the tool, which is dropped by a cancel, and the session.
#[derive(Clone, Default)]
pub struct PartialResult(Arc<Mutex<Option<Describe>>>);

impl PartialResult {
    pub fn set(&self, describe: impl FnOnce() -> ToolResult + Send + 'static) {
        *self.0.lock() = Some(Box::new(describe));
    }

    /// The result of a call that was stopped now; `None` if it has put nothing out.
    pub fn take(&self) -> Option<ToolResult> {
        let describe = self.0.lock().take()?;
        Some(ToolResult { status: OutcomeStatus::Interrupted, ..describe() })
    }
}
