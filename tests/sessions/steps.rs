//! Work that may block, in a simulation: as tasks of its only thread, or on threads that run one at a time, so that
//! other tasks go on while the work waits for one of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{panic_any, resume_unwind};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;

use epitome_platform::blocking::{self, Simulation, WorkFuture};
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

/// Runs the work that this thread starts as tasks of its runtime. It can't wait for other tasks.
pub fn as_tasks() {
    let run = |work: Box<dyn FnOnce() + Send>| -> WorkFuture { Box::pin(async move { work() }) };
    let wait = |_: &Handle, _| panic!("this simulation has nothing that work waits for");
    blocking::simulate(Simulation { run, wait });
}

/// Runs the work that this thread starts on threads of its own.
pub fn in_steps() {
    blocking::simulate(Simulation { run: |work| Box::pin(run(work)), wait });
}

/// Ends the work of a simulated process that is killed. Call this before its runtime is dropped: the work may have locks that
/// tasks take when they are dropped.
pub fn end(runtime: &Handle) {
    let steppers = STEPPERS.with_borrow_mut(|steppers| steppers.remove(&runtime.id())).unwrap_or_default();
    steppers.iter().filter_map(Weak::upgrade).for_each(|stepper| drop(stepper.end()));
}

thread_local! {
    /// On a thread that runs in steps: what it waits for, and the sign to go on.
    static WAITS: RefCell<Option<(mpsc::Sender<WorkFuture>, mpsc::Receiver<()>)>> = const { RefCell::new(None) };
    /// On the thread of the simulation: the work of each runtime.
    static STEPPERS: RefCell<HashMap<Id, Vec<Weak<Stepper>>>> = RefCell::default();
}

/// A thread that runs only while the simulation's thread waits for it.
struct Stepper {
    waited: Mutex<mpsc::Receiver<WorkFuture>>,
    go_on: Mutex<Option<mpsc::Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Stepper {
    fn new(work: Box<dyn FnOnce() + Send>) -> Arc<Stepper> {
        let ((waits, waited), (go_on, continues)) = (mpsc::channel(), mpsc::channel());
        let (runtime, seed) = (Handle::current(), fastrand::u64(..));
        let id = runtime.id();
        let thread = std::thread::spawn(move || {
            let _within = runtime.enter();
            in_steps();
            WAITS.set(Some((waits, continues)));
            fastrand::seed(seed);
            work();
        });
        let (waited, go_on) = (Mutex::new(waited), Mutex::new(Some(go_on)));
        let stepper = Arc::new(Stepper { waited, go_on, thread: Mutex::new(Some(thread)) });
        STEPPERS.with_borrow_mut(|steppers| {
            let steppers = steppers.entry(id).or_default();
            steppers.retain(|stepper| stepper.strong_count() > 0);
            steppers.push(Arc::downgrade(&stepper));
        });
        stepper
    }

    /// Lets the thread run until it waits for something. `None` once it has ended.
    fn step(&self) -> Option<WorkFuture> {
        self.waited.lock().recv().ok()
    }

    fn go_on(&self) {
        let _ = self.go_on.lock().as_ref().map(|go_on| go_on.send(()));
    }

    /// Ends the thread. Work that waits is unwound.
    fn end(&self) -> std::thread::Result<()> {
        *self.go_on.lock() = None;
        let thread = self.thread.lock().take();
        thread.map_or(Ok(()), JoinHandle::join)
    }
}

async fn run(work: Box<dyn FnOnce() + Send>) {
    let stepper = Stepper::new(work);
    while let Some(waited) = stepper.step() {
        waited.await;
        stepper.go_on();
    }
    if let Err(panic) = stepper.end() {
        // Not `resume_unwind`: the hook that records panics must run on the simulation's thread.
        panic_any(panic)
    }
}

fn wait(_: &Handle, task: WorkFuture) {
    WAITS.with_borrow(|waits| {
        let (waits, go_on) = waits.as_ref().expect("only work that may block waits");
        // Otherwise the simulated process was killed.
        if waits.send(task).is_err() || go_on.recv().is_err() {
            resume_unwind(Box::new(()))
        }
    });
}
