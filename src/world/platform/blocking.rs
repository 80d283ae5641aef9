//! Work that may block: runs on a pool of threads or, in a simulation, as the simulation determines.
//!
//! With several threads, the scheduler determines the order in which work ends. A simulation must be deterministic,
//! so it calls [`simulate`] on the thread of its runtime.

use std::cell::Cell;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::mpsc;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

/// How a simulation runs work that may block.
#[derive(Clone, Copy)]
pub struct Simulation {
    /// Runs work as a task.
    pub run: fn(Box<dyn FnOnce() + Send>) -> WorkFuture,
    /// Waits for a task, within such work.
    pub wait: fn(&Handle, WorkFuture),
}

pub type WorkFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

thread_local! {
    static SIMULATION: Cell<Option<Simulation>> = const { Cell::new(None) };
}

/// From now on, runs the work that this thread starts in this way.
pub fn simulate(simulation: Simulation) {
    SIMULATION.set(Some(simulation));
}

/// Whether `simulate` was called on this thread.
pub fn is_simulated() -> bool {
    SIMULATION.get().is_some()
}

/// Starts work that may block. Must be called within a runtime. Dropping the handle does not stop the work.
pub fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let Some(simulation) = SIMULATION.get() else { return tokio::task::spawn_blocking(work) };
    let (answer, answered) = mpsc::sync_channel(1);
    let work = Box::new(move || drop(answer.send(work())));
    tokio::spawn(async move {
        (simulation.run)(work).await;
        answered.recv().expect("a panic was propagated")
    })
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

/// Does work that may block, on this thread. If the runtime can have another one, other tasks go on there.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Waits for a task of a runtime, within work that may block.
pub fn wait<T: Send + 'static>(runtime: &Handle, task: impl Future<Output = T> + Send + 'static) -> T {
    let (answer, answered) = mpsc::sync_channel(1);
    let task = async move { drop(answer.send(task.await)) };
    match SIMULATION.get() {
        None => drop(runtime.spawn(task)),
        Some(simulation) => (simulation.wait)(runtime, Box::pin(task)),
    }
    answered.recv().expect("the task does not panic")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Regression: a message of a worker's client had its session looked up in the database. While that did not answer, all
    /// sessions of the daemon stood still, which has one thread for them.
    #[test]
    fn other_tasks_go_on_while_one_blocks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.expect("a thread");
        let (other, others) = mpsc::sync_channel(1);
        let blocked = runtime.spawn(async move { in_place(|| others.recv_timeout(Duration::from_secs(30))) });
        drop(runtime.spawn(async move { other.send(()) }));
        let result = runtime.block_on(blocked).expect("no panic");
        result.expect("the other task runs");
    }
}
