//! What hooks say after they have ended in the background: lines for the user at once, context with the model's next
//! call.

use epitome_hooks::aside::LateNews;
use tokio::sync::mpsc;

use crate::NoticeSeverity;
use crate::core::Core;

/// News that may wait for the session; hooks with more wait.
const NEWS_MAX: usize = 64;
/// Contexts that may wait for a call of the model; the newest are dropped beyond that.
const CONTEXTS_MAX: usize = 64;

/// See the module.
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
    /// Where hooks send their news.
    pub fn sender(&self) -> mpsc::Sender<LateNews> {
        self.news.0.clone()
    }

    pub async fn next(&mut self) -> Option<LateNews> {
        self.news.1.recv().await
    }

    /// Shows a line, and keeps context for the model.
    pub fn take_in(&mut self, core: &Core, LateNews { hook, output }: LateNews) {
        if let Some(notice) = output.notice {
            core.notify(NoticeSeverity::Info, format!("{hook}: {notice}"));
        }
        if let Some(context) = output.context.filter(|_| self.contexts.len() < CONTEXTS_MAX) {
            self.contexts.push((hook, context));
        }
    }

    /// The contexts for the model, each with the name of its hook.
    pub fn take_contexts(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.contexts)
    }
}
