//! Pure computation over a complete conversation, outside of the sessions' tasks: deciding and composing compactions.
//! It takes milliseconds per hundred thousand tokens; in a session's task it would block every other session on the
//! same thread.
//!
//! A single thread of the process does all of it. It works on a snapshot, and its result is valid for the snapshot's
//! revision: the caller checks whether the view still has that revision.
//!
//! The thread has the priority of all others. A user waits for a compaction: with a lower priority, one that needs 0.2 s of
//! CPU time took 3 s while compilers ran on the same machine.

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use tokio::sync::{mpsc, oneshot};

use epitome_platform::blocking;

/// Maximum number of waiting jobs; a caller with another one waits until there is room.
const WAITING_MAX: usize = 64;

type CpuJob = Box<dyn FnOnce() + Send>;

/// `None` if the thread could not be started.
static WORKER: OnceLock<Option<mpsc::Sender<CpuJob>>> = OnceLock::new();

fn start_worker() -> Option<mpsc::Sender<CpuJob>> {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    let thread = std::thread::Builder::new().name("epitome-cpu".to_owned());
    match thread.spawn(|| run_all(receiver)) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "no CPU worker thread; the runtime's own do it");
            None
        }
    }
}

/// Number of waiting jobs; 0 if the worker has not been used yet.
pub fn waiting() -> usize {
    WORKER.get().into_iter().flatten().map(|queue| queue.max_capacity() - queue.capacity()).sum()
}

/// Runs a job and returns its result; `None` if it panicked. A job whose caller has given up before it starts is
/// skipped.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let worker = if blocking::is_simulated() { &None } else { WORKER.get_or_init(start_worker) };
    let Some(worker) = worker else { return blocking::start(work).await.ok() };
    let (answer, answered) = oneshot::channel();
    let work = move || {
        if !answer.is_closed() {
            // The caller may have given up.
            let _ = answer.send(work());
        }
    };
    worker.send(Box::new(work)).await.ok()?;
    answered.await.ok()
}

fn run_all(mut waiting: mpsc::Receiver<CpuJob>) {
    while let Some(work) = waiting.blocking_recv() {
        // A panic only affects this job: its caller gets no result.
        if std::panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!("work on the CPU thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_in_its_order_on_one_thread_and_a_panic_costs_its_own_answer_alone() {
        let name = || std::thread::current().name().map(str::to_owned);
        let broken = || -> u32 { panic!("as a test of what a panic costs") };
        let (first, none, second) = tokio::join!(run(name), run(broken), run(name));
        assert_eq!((first.flatten().as_deref(), none), (Some("epitome-cpu"), None));
        assert_eq!(second.flatten().as_deref(), Some("epitome-cpu"));
    }

    #[tokio::test]
    async fn abandoned_work_is_not_started() {
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let blocking = tokio::spawn(run(move || begun.recv().is_ok()));
        let (sender, mut receiver) = mpsc::unbounded_channel::<&str>();
        let given_up = tokio::spawn({
            let sender = sender.clone();
            run(move || sender.send("given up").is_ok())
        });
        tokio::task::yield_now().await;
        given_up.abort();
        assert!(given_up.await.is_err_and(|error| error.is_cancelled()));
        begin.send(()).expect("it waits");
        assert_eq!(blocking.await.ok().flatten(), Some(true));
        assert_eq!(run(move || sender.send("done").is_ok()).await, Some(true));
        assert_eq!(receiver.recv().await, Some("done"));
    }
}
