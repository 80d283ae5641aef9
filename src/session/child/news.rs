//! What children say to the session that started them, in one bounded queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::event_queue::{EventQueue, PutResult, QueueLimits, QueuedItem};
use crate::{AskId, PermissionRequest, SessionCommand, SessionEvent, SubagentEnd, SubagentInfo};
use epitome_thread::{ModelName, Rule, SessionId, ToolOutcome, Usage};

/// Streamed text and output wait in few bytes, since the entries that follow contain them. All else is kept: what
/// bounds it are a child's rounds and calls.
const LIMITS: QueueLimits = QueueLimits {
    bytes: 1024 * 1024,
    text_bytes: 16 * 1024,
    output_bytes: 64 * 1024,
    notices: 64,
    replaces_states: true,
    ..QueueLimits::NONE
};

/// What a child has to say to its parent. Calls have ids that no call of the parent has.
#[derive(Debug)]
pub enum ChildNews {
    /// The user must be asked. The answer goes to `answers` as a `Decide` with `ask`.
    Asked {
        child: SessionId,
        ask: AskId,
        permission: Arc<PermissionRequest>,
        answers: mpsc::WeakSender<SessionCommand>,
    },
    /// The question is answered or void.
    Settled { child: SessionId, ask: AskId },
    /// A call that was asked about has its outcome.
    Finished { child: SessionId, outcome: Arc<ToolOutcome> },
    /// The user said "always". It holds already; this is for the log.
    Allowed { rule: Rule },
    /// A model call of the child was paid for, whatever comes of the child; `by` is whose it was.
    Spent { model: ModelName, usage: Usage, by: String },
    /// A child lives.
    Began {
        child: SessionId,
        commands: mpsc::WeakSender<SessionCommand>,
        /// Whether a mode that the user chooses meanwhile is its own.
        follows_mode: bool,
        /// What clients are told of an agent; `None` for a callback, which is shown to nobody.
        about: Option<Arc<SubagentInfo>>,
    },
    /// A piece of an agent's stream, or of the stream of one that works for it.
    Streamed { session: SessionId, out: SessionEvent },
    /// The child is gone, with every question that is still open.
    Ended { child: SessionId, end: SubagentEnd },
}

/// A queue of news, for any number of children.
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
    /// Whether somebody hears it.
    pub fn send(&self, news: ChildNews) -> bool {
        if self.wake.is_closed() {
            return false;
        }
        match news {
            ChildNews::Streamed { session, out } => match lock(&self.queue).put(&session, out) {
                PutResult::Queued | PutResult::Dropped | PutResult::Gap => {}
                PutResult::Full(_) => unreachable!("the number of items has no limit"),
            },
            news => lock(&self.queue).put_own(news),
        }
        // One that is there already wakes the receiver.
        let _ = self.wake.try_send(());
        true
    }
}

impl NewsReceiver {
    /// The next news; `None` once no sender is left. Dropping the future loses nothing.
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

    /// The next news, if there is one by now.
    pub fn try_recv(&mut self) -> Option<ChildNews> {
        lock(&self.queue).pop().map(|item| match item {
            QueuedItem::Event { session, out } => ChildNews::Streamed { session, out },
            QueuedItem::Own(news) => news,
        })
    }
}

fn lock(queue: &NewsQueue) -> MutexGuard<'_, EventQueue<ChildNews>> {
    // Nothing that could panic runs under this lock.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the parent that the child is gone, however it goes.
pub(super) struct ChildGoneGuard {
    pub child: SessionId,
    /// Why, as far as it is known.
    pub end: SubagentEnd,
    pub news: NewsSender,
}

impl Drop for ChildGoneGuard {
    fn drop(&mut self) {
        // A parent that is gone itself needs no word.
        self.news.send(ChildNews::Ended { child: self.child.clone(), end: self.end.clone() });
    }
}
