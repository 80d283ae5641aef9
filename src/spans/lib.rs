//! What takes time, in the log: a span each, and one line when it ends, with how it ended and how long it took.
//!
//! A session, its turns and rounds, tools, hooks and model calls are such. Their fields are ids, names, counts and
//! durations; never what was said, an input, a key or an environment. Nothing is made for a piece of a stream.

use std::time::Instant;

use tracing::Span;

/// Something that goes on. Where nobody says how it ended, it was dropped: cancelled, or its session panicked.
#[derive(Debug)]
pub struct Timed {
    span: Span,
    began: Instant,
    is_over: bool,
}

impl Timed {
    /// It begins now. The span needs a field `outcome`, empty so far.
    pub fn new(span: Span) -> Timed {
        tracing::debug!(parent: &span, "begun");
        Timed { span, began: Instant::now(), is_over: false }
    }

    pub fn span(&self) -> &Span {
        &self.span
    }

    /// How long it has taken so far.
    pub fn milliseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// It ended so, in a word. What is said of an end after the first is not heard.
    pub fn end(&mut self, outcome: &str) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        self.span.record("outcome", outcome);
        if !self.span.is_disabled() {
            tracing::info!(parent: &self.span, milliseconds = self.milliseconds(), "ended");
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.end("dropped");
    }
}
