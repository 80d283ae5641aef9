//! The bounded queue of messages from child sessions to their parent.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::event_queue::{EventQueue, PutResult, QueueLimits, QueuedItem};
use crate::lineage::RunningCost;
use crate::{AskId, PermissionRequest, SessionCommand, SessionEvent, SubagentEnd, SubagentInfo};
use epitome_thread::{Mode, ModelName, Rule, SessionId, ToolOutcome, Usage};

/// Streamed text and output are kept only briefly, since the entries that follow contain them. Everything else is
/// kept; a child's limits on rounds and calls bound it.
const LIMITS: QueueLimits = QueueLimits {
    bytes: 1024 * 1024,
    text_bytes: 16 * 1024,
    output_bytes: 64 * 1024,
    notices: 64,
    replaces_states: true,
    ..QueueLimits::NONE
};

/// A message from a child to its parent. Call ids are unique across parent and children.
#[derive(Debug)]
pub enum ChildNews {
    /// The user must be asked. The answer is sent to `answers` as a `Decide` with `ask`.
    Asked {
        child: SessionId,
        ask: AskId,
        permission: Arc<PermissionRequest>,
        answers: mpsc::WeakSender<SessionCommand>,
    },
    /// The question is answered or void.
    Settled { child: SessionId, ask: AskId },
    /// A call that the user was asked about has its outcome.
    Finished { child: SessionId, outcome: Arc<ToolOutcome> },
    /// The user chose "always". The rule already applies; this is for the log.
    Allowed { rule: Rule },
    /// Usage of one of the child's model calls, reported even if the child fails; `by` names the agent or recipe.
    Spent { model: ModelName, usage: Usage, by: String },
    /// A child has started.
    Began {
        child: SessionId,
        commands: mpsc::WeakSender<SessionCommand>,
        /// The mode that it begins in.
        mode: Mode,
        /// Whether a mode that the user chooses while it runs applies to the child too.
        follows_mode: bool,
        /// The description of an agent for clients; `None` for a callback, which is not shown.
        about: Option<Arc<SubagentInfo>>,
    },
    /// An event of an agent, or of an agent below it.
    Streamed { session: SessionId, out: SessionEvent },
    /// The child has ended; its open questions are void.
    Ended { child: SessionId, end: SubagentEnd },
}

/// Creates a queue for the messages of any number of children.
pub fn news() -> (NewsSender, NewsReceiver) {
    let queue = Arc::new(Mutex::new(EventQueue::new(LIMITS)));
    let (wake, woken) = mpsc::channel(1);
    (NewsSender { queue: queue.clone(), wake }, NewsReceiver { queue, woken })
}

type NewsQueue = Arc<Mutex<EventQueue<ChildNews>>>;

#[derive(Clone)]
pub struct NewsSender {
    queue: NewsQueue,
    wake: mpsc::Sender<()>,
}

pub struct NewsReceiver {
    queue: NewsQueue,
    woken: mpsc::Receiver<()>,
}

impl NewsSender {
    /// Returns `false` if the receiver is gone.
    pub fn send(&self, news: ChildNews) -> bool {
        if self.wake.is_closed() {
            return false;
        }
        match news {
            ChildNews::Streamed { session, out } => match self.queue.lock().put(&session, out) {
                PutResult::Queued | PutResult::Dropped | PutResult::Gap => {}
                PutResult::Full(_) => unreachable!("the number of items has no limit"),
            },
            news => self.queue.lock().put_own(news),
        }
        // A wake-up that is already queued is enough.
        let _ = self.wake.try_send(());
        true
    }
}

impl NewsReceiver {
    /// The next message; `None` once no sender is left. Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<ChildNews> {
        loop {
            if let Some(news) = self.try_recv() {
                return Some(news);
            }
            if self.woken.recv().await.is_none() {
                return self.try_recv();
            }
        }
    }

    /// The next message, if one is queued.
    pub fn try_recv(&mut self) -> Option<ChildNews> {
        self.queue.lock().pop().map(|item| match item {
            QueuedItem::Event { session, out } => ChildNews::Streamed { session, out },
            QueuedItem::Own(news) => news,
        })
    }
}

/// Reports the end of a child to its parent on drop, so that no path can forget it, and the cost of a model call that this
/// interrupts.
pub(super) struct ChildGoneGuard {
    pub child: SessionId,
    /// The name of the agent or recipe.
    pub name: String,
    pub running: RunningCost,
    /// The reason, if it is known.
    pub end: SubagentEnd,
    pub news: NewsSender,
}

impl Drop for ChildGoneGuard {
    fn drop(&mut self) {
        if let Some((model, usage)) = self.running.take() {
            self.news.send(ChildNews::Spent { model, usage, by: self.name.clone() });
        }
        // Sending fails if the parent is gone too, which does not matter.
        self.news.send(ChildNews::Ended { child: self.child.clone(), end: self.end.clone() });
    }
}
