//! Tracing spans of a session, its turns and its rounds: each reports how it ended, how long it took and how many
//! tokens it used, and contains the spans of tools, hooks and model calls.

use tracing::field::Empty;
use tracing::{Span, info_span};

use epitome_platform::timing::TimedSpan;
use epitome_thread::{Change, ContextSizes, Entry, Seq, StopReason, Thread, Usage};

/// The span of a session while it is in memory, and its running turn.
#[derive(Debug)]
pub(super) struct Trace {
    session: TimedSpan,
    turn: Option<TurnTrace>,
}

impl Trace {
    pub fn new(thread: &Thread) -> Trace {
        let (id, entries) = (thread.session(), thread.entries().len());
        let span = info_span!(parent: None, "session", %id, entries, parent = Empty, outcome = Empty);
        Trace { session: TimedSpan::new(span), turn: None }
    }

    pub fn session(&self) -> &Span {
        self.session.span()
    }

    /// The parent span for a tool, hook or model call that starts now: the round, between rounds the turn, between
    /// turns the session.
    pub fn scope(&self) -> &Span {
        match &self.turn {
            Some(TurnTrace { round: Some(round), .. }) => round.timed.span(),
            Some(TurnTrace { turn, round: None, .. }) => turn.span(),
            None => self.session.span(),
        }
    }

    /// Starts a turn whose first entry will be `from`.
    pub fn begin_turn(&mut self, from: Seq) {
        let span = info_span!(
            parent: self.session.span(), "turn", %from, rounds = Empty, input = Empty, output = Empty,
            cache_read = Empty, cache_write = Empty, outcome = Empty
        );
        self.turn = Some(TurnTrace { turn: TimedSpan::new(span), rounds: 0, round: None });
    }

    /// A model call starts. A repeated call, for example after an overflow, belongs to the same round.
    pub fn asks_model(&mut self, from: Seq) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.round.is_none()) else { return };
        turn.rounds += 1;
        let span = info_span!(
            parent: turn.turn.span(), "round", n = turn.rounds, calls = Empty, input = Empty, output = Empty,
            cache_read = Empty, cache_write = Empty, outcome = Empty
        );
        turn.round = Some(RoundTrace { timed: TimedSpan::new(span), from });
    }

    /// The reply and the outcomes of its calls are in.
    pub fn round_ended(&mut self, thread: &Thread) {
        if let Some(turn) = &mut self.turn {
            turn.end_round(thread, "completed");
        }
    }

    /// Ends the turn and its unfinished round.
    pub fn end_turn(&mut self, thread: &Thread, reason: StopReason, usage: &Usage) {
        let Some(mut turn) = self.turn.take() else { return };
        turn.end_round(thread, reason.id());
        turn.turn.span().record("rounds", turn.rounds);
        record_usage(turn.turn.span(), usage);
        turn.turn.end(reason.id());
    }

    pub fn end(&mut self, outcome: &str) {
        self.session.end(outcome);
    }
}

/// A running turn and its newest round.
#[derive(Debug)]
struct TurnTrace {
    turn: TimedSpan,
    rounds: u32,
    round: Option<RoundTrace>,
}

#[derive(Debug)]
struct RoundTrace {
    timed: TimedSpan,
    /// The next entry of the log when the round started.
    from: Seq,
}

impl TurnTrace {
    fn end_round(&mut self, thread: &Thread, outcome: &str) {
        let Some(mut round) = self.round.take() else { return };
        let replied = replied_since(thread, round.from);
        if let Some((calls, usage)) = replied {
            round.timed.span().record("calls", calls);
            record_usage(round.timed.span(), &usage);
        }
        round.timed.end(outcome);
    }
}

/// Logs a line for a change that replaced a part of the view.
pub(super) fn compacted(scope: &Span, change: &Change) {
    let Some(ContextSizes { before, after, .. }) = change.context_sizes() else { return };
    let kind = change.kind();
    tracing::info!(parent: scope, kind, tokens_before = before, tokens_after = after, "the view was rewritten");
}

/// The number of calls and the usage of the newest reply since the entry `from`.
fn replied_since(thread: &Thread, from: Seq) -> Option<(usize, Usage)> {
    let is_newer = |entry: &&std::sync::Arc<Entry>| entry.seq >= from;
    thread.entries().iter().rev().take_while(is_newer).find_map(|entry| match &entry.change {
        Change::Replied { message, usage, .. } => Some((message.calls().count(), usage.unwrap_or_default())),
        _ => None,
    })
}

fn record_usage(span: &Span, usage: &Usage) {
    span.record("input", usage.input);
    span.record("output", usage.output);
    span.record("cache_read", usage.cache_read);
    span.record("cache_write", usage.cache_write);
}
