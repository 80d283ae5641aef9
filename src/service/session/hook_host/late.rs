//! Output of hooks that run in the background: notices are shown to the user at once, context goes into the next
//! model call.

use epitome_hooks::aside::LateNews;
use epitome_hooks::words;
use tokio::sync::mpsc;

use crate::NoticeSeverity;
use crate::core::Core;

/// Capacity of the queue; further hooks wait.
const NEWS_MAX: usize = 64;
/// Contexts kept for the next model call; newer ones are dropped.
const CONTEXTS_MAX: usize = 64;

/// Receives and keeps the late output; see the module.
pub struct LateHooks {
    news: (mpsc::Sender<LateNews>, mpsc::Receiver<LateNews>),
    contexts: Vec<(String, String)>,
}

impl Default for LateHooks {
    fn default() -> LateHooks {
        LateHooks { news: mpsc::channel(NEWS_MAX), contexts: Vec::new() }
    }
}

impl LateHooks {
    /// The channel into which hooks send their output.
    pub fn sender(&self) -> mpsc::Sender<LateNews> {
        self.news.0.clone()
    }

    pub async fn next(&mut self) -> Option<LateNews> {
        self.news.1.recv().await
    }

    /// Shows the notice, and keeps the context for the model.
    pub fn take_in(&mut self, core: &Core, LateNews { hook, output }: LateNews) {
        if let Some(notice) = output.notice {
            core.notify(NoticeSeverity::Info, format!("{hook}: {notice}"));
        }
        if let Some(mut context) = output.context.filter(|_| self.contexts.len() < CONTEXTS_MAX) {
            words::cut(&mut context, words::CONTEXT_BYTES_MAX);
            self.contexts.push((hook, context));
        }
    }

    /// Takes the contexts for the model, each with the name of its hook.
    pub fn take_contexts(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.contexts)
    }
}
