//! Pure work over a whole conversation, away from the sessions' tasks: decisions and compositions of compactions. They
//! take milliseconds for each hundred thousand tokens, and a session that spent those itself would block every other
//! one on its thread.
//!
//! One thread of the process does it all, at a lower priority than everything else. It works on a snapshot, and its
//! result is for the revision that the snapshot had: the caller checks whether that is still the current one.

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::actor::Session;
use super::work::{Background, Done, Thought};

/// Pieces of work that wait; whoever has one more waits until there is room.
const WAITING_MAX: usize = 64;

/// What its thread adds to the process's niceness: the model's stream and the person's keys come first.
const NICENESS: i32 = 10;

/// What is said where the work panicked.
pub const FAULT: &str = "it met a fault of Epitome's own; its log has the details";

type Work = Box<dyn FnOnce() + Send>;

/// `None` where no thread could be started.
static THINKER: OnceLock<Option<mpsc::Sender<Work>>> = OnceLock::new();

fn thinker() -> Option<mpsc::Sender<Work>> {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    let thread = std::thread::Builder::new().name("epitome-thinking".to_owned());
    match thread.spawn(|| work_off(receiver)) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "no thread for thinking; the runtime's own do it");
            None
        }
    }
}

/// Pieces of work that wait for the one that is being done. None where nobody has thought yet.
pub fn waiting() -> usize {
    THINKER.get().into_iter().flatten().map(|queue| queue.max_capacity() - queue.capacity()).sum()
}

/// What the work comes to; `None` where it panicked. Work that nobody waits for any more when its turn comes is
/// not begun.
pub async fn think<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let Some(thinker) = THINKER.get_or_init(thinker) else {
        return tokio::task::spawn_blocking(work).await.ok();
    };
    let (answer, answered) = oneshot::channel();
    let work = move || {
        if !answer.is_closed() {
            // Whoever asked may have gone meanwhile.
            let _ = answer.send(work());
        }
    };
    thinker.send(Box::new(work)).await.ok()?;
    answered.await.ok()
}

fn work_off(mut waiting: mpsc::Receiver<Work>) {
    give_way();
    while let Some(work) = waiting.blocking_recv() {
        // It costs its own answer alone: whoever waits for that gets none.
        if std::panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!("a piece of thinking panicked");
        }
    }
}

/// Lowers the calling thread's priority.
fn give_way() {
    if let Err(error) = epitome_platform::priority::lower_thread(NICENESS) {
        tracing::debug!(%error, "thinking has the priority of everything else");
    }
}

impl Session {
    /// Has the running turn wait for what this work comes to; a cancel takes it with it. Nothing happens where no
    /// turn runs.
    pub(super) fn think<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
        named: impl FnOnce(Option<T>) -> Thought + Send + 'static,
    ) {
        let Some(running) = &mut self.work else { return };
        running.jobs.spawn(async move { Done::Thought(Box::new(named(think(work).await))) });
    }

    /// The same outside of turns.
    pub(super) fn think_beside<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
        named: impl FnOnce(Option<T>) -> Background + Send + 'static,
    ) -> AbortHandle {
        self.background.spawn(async move { named(think(work).await) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_in_its_order_on_one_thread_and_a_panic_costs_its_own_answer_alone() {
        let name = || std::thread::current().name().map(str::to_owned);
        let broken = || -> u32 { panic!("as a test of what a panic costs") };
        let (first, none, second) = tokio::join!(think(name), think(broken), think(name));
        assert_eq!((first.flatten().as_deref(), none), (Some("epitome-thinking"), None));
        assert_eq!(second.flatten().as_deref(), Some("epitome-thinking"));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_not_begun() {
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let held = tokio::spawn(think(move || begun.recv().is_ok()));
        let (told, mut tells) = mpsc::unbounded_channel::<&str>();
        let given_up = tokio::spawn({
            let told = told.clone();
            think(move || told.send("given up").is_ok())
        });
        tokio::task::yield_now().await;
        given_up.abort();
        assert!(given_up.await.is_err_and(|error| error.is_cancelled()));
        begin.send(()).expect("it waits");
        assert_eq!(held.await.ok().flatten(), Some(true));
        assert_eq!(think(move || told.send("done").is_ok()).await, Some(true));
        assert_eq!(tells.recv().await, Some("done"));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn everything_else_comes_first() {
        let of_thread = || rustix::process::getpriority_process(None).ok();
        let own = of_thread().expect("a thread has a priority");
        assert_eq!(think(of_thread).await.flatten(), Some((own + NICENESS).min(19)));
    }
}
