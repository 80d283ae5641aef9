//! Work that may block: runs on a pool of threads or, in a simulation, as tasks of the simulation's only thread.
//!
//! With several threads, the scheduler determines the order in which work ends. A simulation must be deterministic,
//! so it calls [`as_tasks`] on the thread of its runtime.

use std::cell::Cell;
use std::panic::resume_unwind;

use tokio::task::JoinHandle;

thread_local! {
    static AS_TASKS: Cell<bool> = const { Cell::new(false) };
}

/// From now on, runs the work that this thread starts as tasks of its runtime, in the order in which it was started.
pub fn as_tasks() {
    AS_TASKS.set(true);
}

/// Whether `as_tasks` was called on this thread.
pub fn are_tasks() -> bool {
    AS_TASKS.get()
}

/// Starts work that may block. Must be called within a runtime. Dropping the handle does not stop the work.
pub fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match AS_TASKS.get() {
        true => tokio::spawn(async move { work() }),
        false => tokio::task::spawn_blocking(work),
    }
}

/// Runs work that may block, and waits for it. Panics are propagated.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match start(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // Only a runtime that is shutting down cancels such work, and nothing waits for it then.
            Err(_) => std::future::pending().await,
        },
    }
}
