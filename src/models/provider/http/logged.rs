//! The log record of a model call: model, status, time to the first chunk, bytes received.

use tracing::field::Empty;
use tracing::info_span;

use crate::endpoint::Endpoint;
use crate::{ErrorClass, ProviderError};
use epitome_platform::timing::TimedSpan;

#[derive(Debug)]
pub(super) struct Logged {
    timed: TimedSpan,
    /// Bytes of the reply so far.
    received: usize,
}

impl Logged {
    /// Starts the record of a call, in the caller's span.
    pub(super) fn new(endpoint: &Endpoint) -> Logged {
        let span = info_span!(
            "model_call", model = %endpoint.name, status = Empty, first_milliseconds = Empty,
            received_bytes = Empty, outcome = Empty
        );
        Logged { timed: TimedSpan::new(span), received: 0 }
    }

    pub(super) fn answered(&mut self, status: u16) {
        self.timed.span().record("status", status);
    }

    /// Counts a chunk of the reply. Records the time of the first one.
    pub(super) fn count_chunk(&mut self, bytes: usize) {
        if self.received == 0 {
            self.timed.span().record("first_milliseconds", self.timed.milliseconds());
        }
        self.received = self.received.saturating_add(bytes);
    }

    /// Records the error and returns it.
    pub(super) fn failed(&mut self, error: ProviderError) -> ProviderError {
        self.end(match &error.class {
            ErrorClass::Retry { .. } => "try again",
            ErrorClass::Auth => "not authorised",
            ErrorClass::TooLong { .. } => "too long",
            ErrorClass::Empty => "empty",
            ErrorClass::BadReasoning => "thinking not taken",
            ErrorClass::ToolForm => "tools not taken in this form",
            ErrorClass::Budget => "budget used up",
            ErrorClass::Refused => "refused",
            ErrorClass::Broken => "broken",
        });
        error
    }

    pub(super) fn end(&mut self, outcome: &str) {
        self.timed.span().record("received_bytes", self.received);
        self.timed.end(outcome);
    }
}
