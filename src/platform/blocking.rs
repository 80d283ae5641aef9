//! Work that may block: on threads that are there for it, or, in a simulation, as tasks of the simulation's only thread.
//!
//! With several threads it depends on the scheduler which work ends first. A simulation has to play the same way each
//! time, so it calls [`as_tasks`] on the thread of its runtime.

use std::cell::Cell;
use std::panic::resume_unwind;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

thread_local! {
    static AS_TASKS: Cell<bool> = const { Cell::new(false) };
}

/// From now on, what this thread starts runs as tasks of its runtime, in the order in which it was started.
pub fn as_tasks() {
    AS_TASKS.set(true);
}

/// Whether that is so.
pub fn are_tasks() -> bool {
    AS_TASKS.get()
}

/// Starts work that may block. Must be called within a runtime. Dropping the handle does not stop the work.
pub fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    start_on(&Handle::current(), work)
}

/// The same for a caller that is not within the runtime.
pub fn start_on<T: Send + 'static>(
    runtime: &Handle,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    if AS_TASKS.get() { runtime.spawn(async move { work() }) } else { runtime.spawn_blocking(work) }
}

/// Does work that may block, and waits for it. A panic of it is passed on.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match start(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // Only a runtime that ends cancels such work, and then nobody is left who waits for it.
            Err(_) => std::future::pending().await,
        },
    }
}
