//! The queue of inputs that a run reacts to, in order: lines of the agent, and input of the user.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::run::HostLine;

/// Lines that may wait to be printed. While there are so many, nothing more is read from the agent.
const LINES_MAX: usize = 256;

/// A line of the agent, or input.
#[derive(Debug)]
pub enum RunInput {
    Agent(Vec<u8>),
    /// The agent sends nothing more.
    AgentLeft,
    /// A line that the user typed; `None` at the end of input.
    Typed(Option<String>),
    /// The user pressed Ctrl-C.
    Interrupted,
    /// A line of the program that runs this one.
    Host(Result<HostLine, String>),
    /// The program has closed stdin.
    HostLeft,
}

#[derive(Default)]
pub struct InputQueue {
    state: Mutex<InputQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct InputQueueState {
    items: VecDeque<RunInput>,
    /// How many of them are lines of the agent.
    lines: usize,
    closed: bool,
}

impl InputQueue {
    /// Returns the next item, or `None` after the timeout.
    pub fn next(&self, within: Duration) -> Option<RunInput> {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| state.items.is_empty(), within);
        let item = state.items.pop_front();
        if let Some(RunInput::Agent(_)) = item {
            state.lines -= 1;
            self.changed.notify_all();
        }
        item
    }

    /// Queues input of the user. Its amount is small, so it is not limited.
    pub fn put_input(&self, input: RunInput) {
        self.state.lock().items.push_back(input);
        self.changed.notify_all();
    }

    /// Reads the lines of the agent on a thread of its own, until the agent sends nothing more.
    pub fn read_agent(
        self: &Arc<Self>,
        mut reader: BufReader<impl Read + Send + 'static>,
    ) -> std::io::Result<()> {
        let queue = self.clone();
        let read = move || {
            let mut line = Vec::new();
            while let Ok(1..) = reader.read_until(b'\n', &mut line) {
                queue.put_line(std::mem::take(&mut line));
            }
            queue.put_input(RunInput::AgentLeft);
        };
        std::thread::Builder::new().name("agent".to_owned()).spawn(read).map(drop)
    }

    /// Drops the lines of the agent from now on, because nobody prints them any more.
    pub fn close(&self) {
        let mut state = self.state.lock();
        (state.closed, state.lines) = (true, 0);
        state.items.retain(|item| !matches!(item, RunInput::Agent(_)));
        self.changed.notify_all();
    }

    fn put_line(&self, line: Vec<u8>) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.lines >= LINES_MAX && !state.closed);
        if !state.closed {
            state.lines += 1;
            state.items.push_back(RunInput::Agent(line));
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_waits_for_a_slow_printer_but_not_for_one_that_has_gone() {
        let queue = Arc::new(InputQueue::default());
        let lines = "a\n".repeat(LINES_MAX + 2);
        queue.read_agent(BufReader::new(std::io::Cursor::new(lines))).expect("a thread");
        while queue.state.lock().lines < LINES_MAX {
            std::thread::yield_now();
        }
        queue.put_input(RunInput::Interrupted);
        assert!(matches!(queue.next(Duration::ZERO), Some(RunInput::Agent(line)) if line == b"a\n"));
        queue.close();
        let rest = std::iter::from_fn(|| queue.next(Duration::from_secs(5)));
        let ends = |item: &RunInput| matches!(item, RunInput::AgentLeft);
        let rest: Vec<RunInput> =
            rest.scan(false, |over, item| (!std::mem::replace(over, ends(&item))).then_some(item)).collect();
        assert!(matches!(rest[..], [RunInput::Interrupted, RunInput::AgentLeft]), "{rest:?}");
    }
}
