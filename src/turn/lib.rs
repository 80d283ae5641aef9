//! The agent loop as a state machine: from a prompt to its stop reason.
//!
//! A turn decides and does nothing: it asks for a model call, a permission, a tool, a compaction, what
//! hooks say, or a commit, and is told what came of it. It holds nothing that the thread holds, so a
//! request is built from the thread at the moment when it is sent.
//!
//! ```text
//!  Greeting ─► Ready ── CallModel ──► Sampling ──► Calls (hooks together, permission one at a time,
//!    ▲           ▲                      │  │         │     tools together)
//!    │ queued    │ calls, follow-ups    │  ▼         ▼
//!    │           └──────────────────────┼─ RoundEnd ◄┘
//!    │                                  │  │ no calls
//!    └──────────────────────────────────┼─ Stopping ──► Ending ──► Ended
//!                                       ▼
//!                        Compacting ─► Swapping ─► back to where it was asked for
//! ```
//!
//! Where a session has no hooks their asks are answered at once.

mod ask;
mod calls;

use std::collections::VecDeque;
use std::sync::Arc;

pub use ask::{Answer, Ask, CompactAnswer, HooksAnswer, ModelAnswer, Next, Permit, ReplyEnd, Why};

use calls::Calls;

use epitome_thread::{
    CallId, Change, Cut, Entry, Origin, OutcomeStatus, Seq, StopReason, Thread, ToolOutcome, Usage, Withheld,
};

/// Overflows with one reply between them that are compacted. A model that reads the same long file again
/// after each compaction would do so until its rounds are used up, each at the price of two calls.
const OVERFLOWS_IN_A_ROW_MAX: u32 = 3;

/// One turn of a session.
#[derive(Debug)]
pub struct Turn {
    state: State,
    commits: VecDeque<Change>,
    max_rounds: u32,
    rounds: u32,
    usage: Usage,
    /// Since the last reply. A second overflow in a row ends the turn: no loop is possible.
    compacted: bool,
    /// One was tried before the next call and came to nothing; now the provider has the word.
    tried: bool,
    /// The round of the last overflow, and how many came with one reply between them.
    overflowed_at: Option<u32>,
    overflows: u32,
    withdrawn: Vec<Seq>,
    failure: Option<String>,
    quiet_hooks: u32,
    /// The last reply is to be sent back as it is.
    paused: bool,
}

#[derive(Debug)]
enum State {
    /// Prompts on their way into the view, the first of them `asked` about; `then` follows if none of
    /// them gets in.
    Greeting {
        said: VecDeque<Change>,
        asked: bool,
        entered: bool,
        then: Then,
    },
    Ready,
    Sampling,
    Calls(Calls),
    /// Hooks see the round. `swap` is a compaction by command that waits for them.
    RoundEnd {
        asked: bool,
        then: Then,
        swap: Option<Box<Change>>,
    },
    Stopping {
        asked: bool,
        reason: StopReason,
    },
    /// `ask` until the compaction was asked for.
    Compacting {
        ask: Option<Ask>,
        why: Why,
        then: Then,
    },
    /// A compaction is committed, and hooks see it.
    Swapping {
        asked: bool,
        then: Then,
    },
    Ending(StopReason),
    Ended(StopReason),
}

/// Where a turn goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    CallModel,
    /// Stop, if hooks let it and nothing was said meanwhile.
    Stop(StopReason),
    /// Stop, if nothing was said meanwhile.
    End(StopReason),
}

impl Turn {
    /// A turn that begins with `said`, if hooks let it in. What a crash left in the queue was said
    /// before it, and enters the view before it.
    pub fn prompt(said: Change, thread: &Thread, max_rounds: u32) -> Turn {
        let mut all: VecDeque<Change> = thread.queued().iter().filter_map(|entry| taken(entry)).collect();
        all.push_back(said);
        let then = Then::End(StopReason::Refusal);
        let state = State::Greeting { said: all, asked: false, entered: false, then };
        Turn::new(state, VecDeque::new(), max_rounds)
    }

    /// A turn that is one compaction, begun by the command that `commanded` records. What the person
    /// says meanwhile is answered behind it.
    pub fn compact(commanded: Change, focus: Option<String>, max_rounds: u32) -> Turn {
        let why = Why::Command;
        let ask = Some(Ask::Compact { focus, why });
        let state = State::Compacting { ask, why, then: Then::Stop(StopReason::EndTurn) };
        Turn::new(state, VecDeque::from([commanded]), max_rounds)
    }

    fn new(state: State, commits: VecDeque<Change>, max_rounds: u32) -> Turn {
        Turn {
            state,
            commits,
            max_rounds,
            rounds: 0,
            usage: Usage::default(),
            compacted: false,
            tried: false,
            overflowed_at: None,
            overflows: 0,
            withdrawn: Vec::new(),
            failure: None,
            quiet_hooks: 0,
            paused: false,
        }
    }

    /// What to do now. After a `Commit` or an `Ask`, call it again until it says `Wait` or `End`.
    pub fn next(&mut self, thread: &Thread) -> Next {
        loop {
            if let Some(change) = self.commits.pop_front() {
                return Next::Commit(Box::new(change));
            }
            match &mut self.state {
                State::Greeting { said, asked, entered, then } => match said.front() {
                    Some(_) if *asked => return Next::Wait,
                    Some(first) => {
                        *asked = true;
                        return Next::Ask(Ask::Greet(Box::new(first.clone())));
                    }
                    None if *entered => self.state = State::Ready,
                    None => {
                        let then = *then;
                        self.follow(then, thread);
                    }
                },
                State::Ready => {
                    if let Some(said) = self.take_queued(thread) {
                        self.greet(said, Then::CallModel);
                        continue;
                    }
                    if self.rounds >= self.max_rounds {
                        self.state = State::Ending(StopReason::MaxRounds);
                        continue;
                    }
                    self.rounds += 1;
                    self.state = State::Sampling;
                    return Next::Ask(Ask::CallModel);
                }
                State::Sampling => return Next::Wait,
                State::Calls(calls) => match calls.next() {
                    Some(ask) => return Next::Ask(ask),
                    None if !calls.are_finished() => return Next::Wait,
                    None => {
                        self.state = State::RoundEnd { asked: false, then: Then::CallModel, swap: None };
                    }
                },
                State::RoundEnd { asked, .. } if *asked => return Next::Wait,
                State::RoundEnd { asked, then, .. } => {
                    *asked = true;
                    return Next::Ask(Ask::RoundEnd { last: *then != Then::CallModel });
                }
                State::Stopping { asked, .. } if *asked => return Next::Wait,
                State::Stopping { asked, reason } => {
                    *asked = true;
                    return Next::Ask(Ask::Stop(*reason));
                }
                State::Compacting { ask, .. } => return ask.take().map_or(Next::Wait, Next::Ask),
                State::Swapping { asked, .. } if *asked => return Next::Wait,
                State::Swapping { asked, .. } => {
                    *asked = true;
                    return Next::Ask(Ask::Swapped);
                }
                State::Ending(reason) => {
                    let reason = *reason;
                    self.state = State::Ended(reason);
                    let (usage, quiet_hooks) = (self.usage, self.quiet_hooks);
                    return Next::Commit(Box::new(Change::TurnEnded { reason, usage, quiet_hooks }));
                }
                State::Ended(reason) => return Next::End(*reason),
            }
        }
    }

    /// Takes an answer in.
    pub fn tell(&mut self, answer: Answer, thread: &Thread) {
        match (&mut self.state, answer) {
            (State::Greeting { said, asked, entered, .. }, Answer::Greeted { commits, enters }) if *asked => {
                *asked = false;
                if let Some(Change::Said { origin: Origin::Queue { entry }, .. }) = said.pop_front() {
                    // Taken back while hooks saw it.
                    if self.withdrawn.contains(&entry) {
                        return;
                    }
                    // One that a hook kept out is not taken from the queue again.
                    if !enters {
                        self.withdrawn.push(entry);
                    }
                }
                *entered |= enters;
                // What was said since may be what does not fit.
                self.compacted &= !enters;
                self.tried &= !enters;
                self.commits.extend(commits);
            }
            (State::Sampling, Answer::Model(answer)) => self.tell_model(answer),
            (State::Compacting { why, then, .. }, Answer::Compacted(answer)) => {
                let (why, then) = (*why, *then);
                self.tell_compacted(why, then, answer, thread);
            }
            (State::Calls(calls), Answer::ToolSeen(id, commits)) => {
                if calls.seen(&id) {
                    self.commits.extend(commits);
                }
            }
            (State::Calls(calls), Answer::Permission(id, permit)) => {
                self.commits.extend(calls.decided(id, permit));
            }
            (State::Calls(calls), Answer::Tool(id, outcome)) => {
                self.commits.extend(calls.finished(&id, *outcome));
            }
            (
                State::RoundEnd { asked: true, .. }
                | State::Stopping { asked: true, .. }
                | State::Swapping { asked: true, .. },
                Answer::Hooks(answer),
            ) => self.tell_hooks(answer, thread),
            // Late answers of what a cancel or an end overtook.
            (
                State::Greeting { .. }
                | State::Ready
                | State::Sampling
                | State::Calls(_)
                | State::RoundEnd { .. }
                | State::Stopping { .. }
                | State::Compacting { .. }
                | State::Swapping { .. }
                | State::Ending(_)
                | State::Ended(_),
                Answer::Greeted { .. }
                | Answer::Model(_)
                | Answer::Compacted(_)
                | Answer::ToolSeen(..)
                | Answer::Permission(..)
                | Answer::Tool(..)
                | Answer::Hooks(_),
            ) => {}
        }
    }

    /// Ends the turn as cancelled. `partial` is what had been shown of a running reply, as the
    /// `Replied` to keep. Every open call gets the outcome "interrupted"; what hooks had not decided
    /// does not happen. No-op on a turn that ends.
    pub fn cancel(&mut self, partial: Option<Change>) {
        match &self.state {
            State::Ending(_) | State::Ended(_) => return,
            State::Ready
            | State::RoundEnd { .. }
            | State::Stopping { .. }
            | State::Compacting { .. }
            | State::Swapping { .. } => {}
            State::Greeting { said, .. } => {
                let kept = said.iter().filter_map(never_entered).collect::<Vec<_>>();
                self.commits.extend(kept);
            }
            State::Sampling => self.keep(partial),
            State::Calls(calls) => {
                let outcomes: Vec<Change> = calls.open().cloned().map(interrupted).collect();
                self.commits.extend(outcomes);
            }
        }
        self.state = State::Ending(StopReason::Cancelled);
    }

    /// A queued prompt is taken back; its text stays in the log and never enters the view.
    pub fn withdraw(&mut self, queued: Seq) {
        self.withdrawn.push(queued);
    }

    /// Hook runs that did nothing, for the turn's last entry.
    pub fn count_quiet_hooks(&mut self, runs: u32) {
        self.quiet_hooks = self.quiet_hooks.saturating_add(runs);
    }

    /// Tokens that were taken for this turn beside its own model calls: by callbacks.
    pub fn add_usage(&mut self, usage: &Usage) {
        self.usage.add(usage);
    }

    /// Whether a compaction by command waits for the hooks of a round's end.
    pub fn waits_to_swap(&self) -> bool {
        matches!(self.state, State::RoundEnd { swap: Some(_), .. })
    }

    /// Whether the provider paused the last reply: it goes on where that is the end of the request.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Why the turn ended with `StopReason::Failed`.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Tokens that the turn has taken so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Model calls so far.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Whether the view was compacted since the last reply.
    pub fn compacted_since_reply(&self) -> bool {
        self.compacted
    }

    /// Whether the next request may be made shorter before it is sent: it is tried once.
    pub fn may_compact_before_call(&self) -> bool {
        !self.compacted && !self.tried
    }

    fn tell_model(&mut self, answer: ModelAnswer) {
        match answer {
            ModelAnswer::Reply { replied, stop } => {
                self.compacted = false;
                self.tried = false;
                let calls = self.keep_reply(*replied);
                self.paused = stop == ReplyEnd::Paused && calls.is_empty();
                let runs = match stop {
                    ReplyEnd::Finished
                    | ReplyEnd::Paused
                    | ReplyEnd::MaxTokens
                    | ReplyEnd::WindowFull
                    | ReplyEnd::Other => true,
                    ReplyEnd::Refused | ReplyEnd::Filtered | ReplyEnd::Broken => false,
                };
                if !runs {
                    self.commits.extend(calls.iter().cloned().map(not_run));
                }
                let round_end =
                    |reason| State::RoundEnd { asked: false, then: Then::Stop(reason), swap: None };
                self.state = match stop {
                    _ if runs && !calls.is_empty() => State::Calls(Calls::new(calls)),
                    ReplyEnd::Finished | ReplyEnd::Other | ReplyEnd::Broken => round_end(StopReason::EndTurn),
                    ReplyEnd::Paused => State::Ready,
                    ReplyEnd::WindowFull if !self.overflows_again() => State::Compacting {
                        ask: Some(Ask::Compact { focus: None, why: Why::Overflow }),
                        why: Why::Overflow,
                        then: Then::CallModel,
                    },
                    ReplyEnd::MaxTokens | ReplyEnd::WindowFull => round_end(StopReason::MaxTokens),
                    ReplyEnd::Refused | ReplyEnd::Filtered => round_end(StopReason::Refusal),
                };
            }
            ModelAnswer::TooLong(message) if self.compacted => self.fail(message),
            ModelAnswer::TooLong(message) if self.overflows_again() => {
                self.fail(format!(
                    "{message} Compacting does not help: each time, what comes next fills the window again. \
                     A tool's output is probably larger than the window; ask for less of it at a time."
                ));
            }
            ModelAnswer::TooLong(message) => {
                self.failure = Some(message);
                self.compact_for(Why::Overflow, Then::CallModel);
            }
            ModelAnswer::MustCompact => {
                // A request that was not made was no round.
                self.rounds -= 1;
                self.compact_for(Why::Must, Then::CallModel);
            }
            ModelAnswer::Failed(message) => self.fail(message),
        }
    }

    fn tell_compacted(&mut self, why: Why, then: Then, answer: CompactAnswer, thread: &Thread) {
        if let CompactAnswer::Done(change) = &answer
            && let Change::Compacted { usage: Some(usage), .. } = &**change
        {
            self.usage.add(usage);
        }
        match (why, answer) {
            // A recipe's text takes the place of the history once hooks have seen it.
            (Why::Command, CompactAnswer::Done(change)) => {
                self.state = State::RoundEnd { asked: false, then, swap: Some(change) };
            }
            (Why::Command, CompactAnswer::Nothing) => self.follow(Then::End(StopReason::EndTurn), thread),
            (Why::Command, CompactAnswer::Failed(message)) => self.fail(message),
            (Why::Overflow, CompactAnswer::Done(change)) => {
                // A refused request was no round.
                if self.failure.take().is_some() {
                    self.rounds -= 1;
                }
                self.swap(*change, then);
            }
            // The reply is there, cut where the window was full.
            (Why::Overflow, CompactAnswer::Nothing | CompactAnswer::Failed(_)) if self.failure.is_none() => {
                let then = Then::Stop(StopReason::MaxTokens);
                self.state = State::RoundEnd { asked: false, then, swap: None };
            }
            (Why::Overflow, CompactAnswer::Nothing) => {
                let message = self.failure.take().unwrap_or_default();
                self.fail(message);
            }
            (Why::Overflow, CompactAnswer::Failed(compaction)) => {
                let message = self.failure.take().unwrap_or_default();
                self.fail(format!("{message} Compacting the conversation failed as well: {compaction}"));
            }
            (Why::Threshold | Why::Hook | Why::Must, CompactAnswer::Done(change)) => self.swap(*change, then),
            (Why::Must, CompactAnswer::Nothing | CompactAnswer::Failed(_)) => {
                self.tried = true;
                self.follow(then, thread);
            }
            // The conversation goes on as it is; the session has told why.
            (Why::Threshold | Why::Hook, CompactAnswer::Nothing | CompactAnswer::Failed(_)) => {
                self.follow(then, thread);
            }
        }
    }

    fn tell_hooks(&mut self, answer: HooksAnswer, thread: &Thread) {
        let HooksAnswer { commits, go_on, compact, halt, replaced, swap: other } = answer;
        self.commits.extend(commits);
        let (then, swap) = match std::mem::replace(&mut self.state, State::Ready) {
            State::RoundEnd { then, swap, .. } => (then, swap),
            State::Stopping { reason, .. } => (Then::End(reason), None),
            State::Swapping { then, .. } => (then, None),
            other => unreachable!("hooks are asked in three states, not in {other:?}"),
        };
        if halt {
            self.state = State::Ending(match then {
                Then::CallModel => StopReason::EndTurn,
                Then::Stop(reason) | Then::End(reason) => reason,
            });
            return;
        }
        let then = if go_on { Then::CallModel } else { then };
        match (other.or(swap.filter(|_| !replaced)), compact) {
            (Some(swap), _) => self.swap(*swap, then),
            (_, Some(why)) if !self.compacted => self.compact_for(why, then),
            (_, _) => self.follow(then, thread),
        }
    }

    fn compact_for(&mut self, why: Why, then: Then) {
        self.state = State::Compacting { ask: Some(Ask::Compact { focus: None, why }), why, then };
    }

    fn swap(&mut self, compacted: Change, then: Then) {
        // Cutting old outcomes is not the last that can be done.
        self.compacted |= !matches!(compacted, Change::Pruned { .. });
        self.commits.push_back(compacted);
        self.state = State::Swapping { asked: false, then };
    }

    /// Goes on, first with what the person said meanwhile: it was accepted, so the model must see it,
    /// however the reply before it ended.
    fn follow(&mut self, then: Then, thread: &Thread) {
        let reason = match then {
            Then::CallModel => return self.state = State::Ready,
            Then::Stop(reason) | Then::End(reason) => reason,
        };
        if let Some(said) = self.take_queued(thread) {
            return self.greet(said, then);
        }
        self.state = match then {
            Then::Stop(_) => State::Stopping { asked: false, reason },
            Then::CallModel | Then::End(_) => State::Ending(reason),
        };
    }

    fn greet(&mut self, said: Change, then: Then) {
        self.state = State::Greeting { said: VecDeque::from([said]), asked: false, entered: false, then };
    }

    /// Counts an overflow, and tells whether too many came right behind a compaction each.
    fn overflows_again(&mut self) -> bool {
        let follows = self.overflowed_at.is_some_and(|round| self.rounds <= round + 1);
        self.overflows = if follows { self.overflows + 1 } else { 1 };
        self.overflowed_at = Some(self.rounds);
        self.overflows > OVERFLOWS_IN_A_ROW_MAX
    }

    fn fail(&mut self, message: String) {
        self.failure = Some(message);
        self.state = State::Ending(StopReason::Failed);
    }

    fn keep(&mut self, partial: Option<Change>) {
        if let Some(partial) = partial {
            let calls = self.keep_reply(partial);
            self.commits.extend(calls.into_iter().map(not_run));
        }
    }

    /// Gives back the calls of the reply.
    fn keep_reply(&mut self, replied: Change) -> Vec<CallId> {
        let mut calls = Vec::new();
        if let Change::Replied { message, usage, .. } = &replied {
            calls.extend(message.calls().map(|call| call.id.clone()));
            if let Some(usage) = usage {
                self.usage.add(usage);
            }
        }
        self.commits.push_back(replied);
        calls
    }

    fn take_queued(&self, thread: &Thread) -> Option<Change> {
        let waits = |queued: &&Arc<Entry>| !self.withdrawn.contains(&queued.seq);
        thread.queued().iter().find(waits).and_then(|entry| taken(entry))
    }
}

/// A queued prompt as it enters the view.
fn taken(queued: &Entry) -> Option<Change> {
    let Change::Queued { message } = &queued.change else { return None };
    Some(Change::Said { message: message.clone(), origin: Origin::Queue { entry: queued.seq } })
}

/// What is kept of a prompt that a cancel overtook. A queued one is in the log already.
fn never_entered(said: &Change) -> Option<Change> {
    match said {
        Change::Said { origin: Origin::Queue { .. }, .. } => None,
        Change::Said { message, origin } => {
            let (note, mut message) = (message.id, message.clone());
            if let Origin::Recipe { typed, .. } = origin {
                // It is shown as the person gave it.
                message.set_text(typed.clone());
            }
            Some(Change::Withheld { message, note, why: Withheld::Cancelled })
        }
        _ => None,
    }
}

/// The outcome of a call that a cancel or a crash overtook.
pub fn interrupted(call: CallId) -> Change {
    let text = "Interrupted before it finished; what it did until then stands.";
    Change::ToolFinished { outcome: ToolOutcome::text(call, OutcomeStatus::Interrupted, text) }
}

/// The outcome of a call of a reply that was not let end: nothing of it was done, and whoever reads it, the model
/// too, has nothing to look after.
fn not_run(call: CallId) -> Change {
    let text = "Not run: the reply that asked for it broke off.";
    Change::ToolFinished { outcome: ToolOutcome::text(call, OutcomeStatus::Interrupted, text) }
}

/// The cut that goes with a reply's end, where there is one.
pub fn cut_of(stop: ReplyEnd, reason: &str) -> Option<Cut> {
    match stop {
        ReplyEnd::Finished | ReplyEnd::Paused => None,
        ReplyEnd::MaxTokens => Some(Cut::MaxTokens),
        ReplyEnd::Refused => Some(Cut::Refused { reason: reason.to_owned() }),
        ReplyEnd::Broken => Some(Cut::Broken { reason: reason.to_owned() }),
        ReplyEnd::WindowFull => Some(Cut::WindowFull),
        ReplyEnd::Filtered => Some(Cut::Filtered { reason: reason.to_owned() }),
        ReplyEnd::Other => Some(Cut::Other { reason: reason.to_owned() }),
    }
}
