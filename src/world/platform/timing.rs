//! Spans of work in the log, written once on completion with their outcome and duration.
//!
//! Used for sessions, turns, rounds, tools, hooks and model calls. Fields are ids, names, counts and
//! durations, never messages, inputs, keys or environments. There are no spans for individual pieces of a
//! stream.

use std::time::Instant;

use tracing::Span;

/// A running operation. If it is dropped without an outcome, it was cancelled, or its session panicked.
#[derive(Debug)]
pub struct TimedSpan {
    span: Span,
    began: Instant,
    is_over: bool,
}

impl TimedSpan {
    /// Starts the timer. The span needs an empty field `outcome`.
    pub fn new(span: Span) -> TimedSpan {
        tracing::debug!(parent: &span, "begun");
        TimedSpan { span, began: Instant::now(), is_over: false }
    }

    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The elapsed time.
    pub fn milliseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Ends the span with an outcome, a single word. Later calls are ignored.
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

impl Drop for TimedSpan {
    fn drop(&mut self) {
        self.end("dropped");
    }
}
