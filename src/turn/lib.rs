//! The agent loop as a state machine, from a prompt to its stop reason.
//!
//! A [`Turn`] is pure: it decides what happens next and performs nothing itself. The session drives it:
//!
//! 1. [`Turn::next`] returns a [`Next`]: a [`Change`] to commit to the log, an [`Ask`] to start (call the
//!    model, run hooks, request permission, run a tool, compact), [`Next::Wait`] or [`Next::End`].
//! 2. The session commits the change or starts the work, and calls `next` again until it gets `Wait` or
//!    `End`.
//! 3. When a piece of work finishes, the session passes the result to [`Turn::tell`] as an [`Answer`] and
//!    calls `next` again.
//!
//! A turn stores only the state of the loop. Messages, queued prompts and settings are in the [`Thread`],
//! which is passed in, so a request is built from the thread as it is at the moment of sending.
//!
//! ```text
//!  Starting ─► Greeting ─► Ready ─► Sampling ─┬─ tool calls ─► Calls ─┬─► RoundEnd ─► Easing ─► Stopping ─► Ending ─► Ended
//!                 ▲          ▲                └─ no calls ────────────┘      │         │           │
//!                 │          └─ calls answered, or a hook continues ─────────┼─────────┴───────────┤
//!                 └──────────── a prompt was queued ─────────────────────────┴─────────────────────┘
//!
//!  Sampling, RoundEnd, Stopping, Starting (by command) ─► Compacting
//!
//!  Compacting:  Planning ─► Hooks ─► Summarising ─► Composing ─► Composed ─► (RoundEnd, by command) ─► Committed
//!                  ▲          │           │             │            │
//!                  └──────────┴───────────┘             └────────────┴─► Outdated ─► failed
//!                   the view changed                      the view changed
//!
//!  Committed ─► Restarting ─► the state that would have come next
//! ```
//!
//! | state | what happens in it |
//! | --- | --- |
//! | `Starting` | hooks see the start of the session, before its first prompt or compaction |
//! | `Greeting` | prompt hooks check each prompt before it enters the view |
//! | `Ready` | takes a queued prompt, or starts the next round, up to the round limit |
//! | `Sampling` | the model replies |
//! | `Calls` | hooks check all calls; permission is requested for one at a time; permitted calls run; hooks see each outcome |
//! | `RoundEnd` | hooks see the finished round, and the summary of a compaction by command |
//! | `Easing` | old tool outcomes are pruned if that pays for its cost |
//! | `Stopping` | the agent is about to stop; stop hooks can make it continue |
//! | `Compacting` | one compaction: plan, hooks, summary, change; it can end at each stage, with or without a change |
//! | `Committed` | the compaction is committed; hooks can react to it |
//! | `Restarting` | hooks see the start of the session on the summary |
//! | `Stuck` | the turn repeats itself (`repeats`): a note that says so is committed |
//! | `Ending` | the turn's last entry, `TurnEnded`, is committed |
//!
//! A stage of a compaction never starts over because of hooks: a plan is made again only if the view is not
//! the one that it was made for. In a session without hooks, the session answers the hook asks immediately.

mod ask;
mod calls;
mod compaction;
mod repeats;

use std::collections::VecDeque;
use std::sync::Arc;

pub use ask::{Answer, Ask, CompactAnswer, HookAsk, HooksAnswer, ModelAnswer, Next, Permit, ReplyEnd, Why};

pub use compaction::CHANGED;
pub use repeats::Stuck;

use calls::Calls;
use compaction::Compaction;
use repeats::Repeats;

use epitome_thread::{
    CallId, Change, Cut, Entry, Origin, OutcomeStatus, Seq, StopReason, Thread, ToolOutcome, Usage, Withheld,
};

/// Maximum number of overflows in a row, with at most one reply between them, that lead to a compaction.
/// Without this bound, a model that reads the same long file again after each compaction would continue until
/// its rounds are used up, and each cycle costs two model calls.
const OVERFLOWS_IN_A_ROW_MAX: u32 = 3;

/// What bounds a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Model calls.
    pub rounds: u32,
    /// Rounds in a row that repeat each other; 0 for any number.
    pub repeats: u32,
}

/// One turn of a session.
#[derive(Debug)]
pub struct Turn {
    state: State,
    commits: VecDeque<Change>,
    limits: Limits,
    rounds: u32,
    repeats: Repeats,
    /// Whether the last reply reached the output limit.
    is_cut: bool,
    usage: Usage,
    /// Whether the view was compacted since the last reply. A request that is still too long then ends the
    /// turn, so overflows cannot loop.
    compacted: bool,
    /// Whether a compaction before the next call was tried and freed nothing. The request is then sent as it
    /// is, and the provider decides whether it fits.
    tried: bool,
    /// The round of the last overflow, and the number of overflows with at most one reply between them.
    overflowed_at: Option<u32>,
    overflows: u32,
    withdrawn: Vec<Seq>,
    failure: Option<String>,
    quiet_hooks: u32,
    /// Whether the provider paused the last reply, which must be sent back unchanged.
    paused: bool,
}

#[derive(Debug)]
enum State {
    /// Hooks see the session start, before its `first` state.
    Starting {
        asked: bool,
        first: Box<State>,
    },
    /// Hooks check the prompts in `said`, in order; `asked` if they are checking the first one now. `entered`
    /// if at least one prompt entered the view; otherwise the turn goes on with `then`.
    Greeting {
        said: VecDeque<Change>,
        asked: bool,
        entered: bool,
        then: Then,
    },
    Ready,
    Sampling,
    Calls(Calls),
    /// Hooks see the round. `swap` is the result of a compaction by command, committed after they answer.
    RoundEnd {
        asked: bool,
        then: Then,
        swap: Option<Box<Change>>,
    },
    Stopping {
        asked: bool,
        reason: StopReason,
    },
    /// Old outcomes may be cut; `edited` if hooks edited the view in this round.
    Easing {
        asked: bool,
        edited: bool,
        then: Then,
    },
    Compacting(Compaction),
    /// A compaction is committed, and hooks can react to it. The session `restarts` on it unless the layer
    /// keeps the history.
    Committed {
        asked: bool,
        restarts: bool,
        then: Then,
    },
    Restarting {
        asked: bool,
        then: Then,
    },
    /// It repeats itself, which is noted in the log before it ends.
    Stuck {
        asked: bool,
        stuck: Stuck,
    },
    Ending(StopReason),
    Ended(StopReason),
}

/// How a turn continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    CallModel,
    /// Stop, unless hooks continue or a prompt was queued.
    Stop(StopReason),
    /// Stop, unless a prompt was queued.
    End(StopReason),
}

impl Turn {
    /// Creates a turn that starts with the prompt `said`, if hooks let it into the view. Prompts that a
    /// crashed turn left in the queue are older, so they enter the view first.
    pub fn prompt(said: Change, thread: &Thread, limits: Limits) -> Turn {
        let mut all: VecDeque<Change> = thread.queued().iter().filter_map(|entry| taken(entry)).collect();
        all.push_back(said);
        let then = Then::End(StopReason::Refusal);
        let state = State::Greeting { said: all, asked: false, entered: false, then };
        Turn::new(state, VecDeque::new(), limits)
    }

    /// Creates a turn that consists of one compaction, started by the command recorded in `commanded`.
    /// Prompts queued meanwhile are answered after it.
    pub fn compact(commanded: Change, limits: Limits) -> Turn {
        let compaction = Compaction::new(Why::Command, Then::Stop(StopReason::EndTurn));
        Turn::new(State::Compacting(compaction), VecDeque::from([commanded]), limits)
    }

    /// Has hooks see the start of the session first. For a turn that has not begun.
    pub fn start_session(&mut self) {
        let first = Box::new(std::mem::replace(&mut self.state, State::Ready));
        self.state = State::Starting { asked: false, first };
    }

    fn new(state: State, commits: VecDeque<Change>, limits: Limits) -> Turn {
        Turn {
            state,
            commits,
            limits,
            rounds: 0,
            repeats: Repeats::default(),
            is_cut: false,
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

    /// Returns the next step. After a `Commit` or an `Ask`, the caller calls this again until it returns
    /// `Wait` or `End`.
    pub fn next(&mut self, thread: &Thread) -> Next {
        loop {
            if let Some(change) = self.commits.pop_front() {
                return Next::Commit(Box::new(change));
            }
            match &mut self.state {
                State::Starting { asked, .. } => return once(asked, HookAsk::SessionStart),
                State::Greeting { said, asked, entered, then } => match said.front() {
                    Some(first) => return once(asked, HookAsk::Prompt(Box::new(first.clone()))),
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
                    if self.rounds >= self.limits.rounds {
                        self.state = State::Ending(StopReason::MaxRounds);
                        continue;
                    }
                    if let Some(stuck) = self.repeats.stuck(self.limits.repeats) {
                        self.state = State::Stuck { asked: false, stuck };
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
                        self.repeats.round(thread, self.is_cut, calls.are_usable());
                        self.state = State::RoundEnd { asked: false, then: Then::CallModel, swap: None };
                    }
                },
                State::RoundEnd { asked, then, .. } => {
                    return once(asked, HookAsk::RoundEnd { last: *then != Then::CallModel });
                }
                State::Easing { asked: true, .. } => return Next::Wait,
                State::Easing { asked, edited, .. } => {
                    *asked = true;
                    return Next::Ask(Ask::Ease { edited: *edited });
                }
                State::Stopping { asked, reason } => return once(asked, HookAsk::Stop(*reason)),
                State::Compacting(compaction) => {
                    return compaction.next(thread.view().revision()).map_or(Next::Wait, Next::Ask);
                }
                State::Committed { asked, .. } => return once(asked, HookAsk::PostCompact),
                State::Restarting { asked, .. } => return once(asked, HookAsk::Restart),
                State::Stuck { asked: true, .. } => return Next::Wait,
                State::Stuck { asked, stuck } => {
                    *asked = true;
                    return Next::Ask(Ask::Report(stuck.clone()));
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

    /// Processes an answer. One that the current state does not wait for is ignored.
    pub fn tell(&mut self, answer: Answer, thread: &Thread) {
        match (&mut self.state, answer) {
            (State::Starting { asked: true, first }, Answer::Started(commits)) => {
                self.commits.extend(commits);
                self.state = std::mem::replace(&mut **first, State::Ready);
            }
            (State::Greeting { said, asked, entered, .. }, Answer::Greeted { commits, enters }) if *asked => {
                *asked = false;
                if let Some(Change::Said { origin: Origin::Queue { entry }, .. }) = said.pop_front() {
                    // Withdrawn while hooks checked it.
                    if self.withdrawn.contains(&entry) {
                        return;
                    }
                    // A prompt that a hook blocked must not be taken from the queue again.
                    if !enters {
                        self.withdrawn.push(entry);
                    }
                }
                *entered |= enters;
                // The new prompt may be what makes the next request too long, so compaction is allowed again.
                self.compacted &= !enters;
                self.tried &= !enters;
                if enters {
                    self.repeats.forget();
                }
                self.commits.extend(commits);
            }
            (State::Sampling, Answer::Model(answer)) => self.tell_model(answer),
            (State::Calls(calls), Answer::ToolSeen(id, commits)) => {
                if calls.seen(&id) {
                    self.commits.extend(commits);
                }
            }
            (State::Calls(calls), Answer::Permission(id, permit)) => {
                self.commits.extend(calls.decided(id, permit));
            }
            (State::Calls(calls), Answer::Ran(outcome)) => calls.ran(outcome),
            (State::Calls(calls), Answer::Tool(id, outcome)) => {
                self.commits.extend(calls.finished(&id, *outcome));
            }
            (
                State::RoundEnd { asked: true, .. } | State::Stopping { asked: true, .. },
                Answer::Hooks(answer),
            ) => {
                self.tell_hooks(answer, thread);
            }
            (State::Easing { asked: true, then, .. }, Answer::Eased(cut)) => {
                let then = *then;
                self.commits.extend(cut.map(|cut| *cut));
                self.follow(then, thread);
            }
            (State::Compacting(compaction), Answer::Planned(revision)) => compaction.planned(revision),
            (State::Compacting(compaction), Answer::Instructed { edited }) => compaction.hooks_ran(edited),
            (State::Compacting(compaction), Answer::Summarised) => compaction.summarised(),
            (State::Compacting(compaction), Answer::Composed(change)) => compaction.composed(change),
            (State::Compacting(compaction), Answer::Compacted(answer)) => {
                let (why, then) = (compaction.why, compaction.then);
                self.tell_compacted(why, then, answer, thread);
            }
            (State::Committed { asked: true, restarts, then }, Answer::Hooks(answer)) => {
                let (restarts, then) = (*restarts, *then);
                self.commits.extend(answer.commits);
                match restarts {
                    true => self.state = State::Restarting { asked: false, then },
                    false => self.follow(then, thread),
                }
            }
            (State::Restarting { asked: true, then }, Answer::Started(commits)) => {
                let then = *then;
                self.commits.extend(commits);
                self.follow(then, thread);
            }
            (State::Stuck { asked: true, .. }, Answer::Reported(note)) => {
                self.commits.push_back(*note);
                self.state = State::Ending(StopReason::MaxRounds);
            }
            // Late answers that a cancel or the end of the turn has overtaken.
            (
                State::Starting { .. }
                | State::Greeting { .. }
                | State::Ready
                | State::Sampling
                | State::Calls(_)
                | State::RoundEnd { .. }
                | State::Easing { .. }
                | State::Stopping { .. }
                | State::Compacting(_)
                | State::Committed { .. }
                | State::Restarting { .. }
                | State::Stuck { .. }
                | State::Ending(_)
                | State::Ended(_),
                Answer::Started(_)
                | Answer::Greeted { .. }
                | Answer::Model(_)
                | Answer::ToolSeen(..)
                | Answer::Permission(..)
                | Answer::Ran(_)
                | Answer::Tool(..)
                | Answer::Hooks(_)
                | Answer::Eased(_)
                | Answer::Planned(_)
                | Answer::Instructed { .. }
                | Answer::Summarised
                | Answer::Composed(_)
                | Answer::Compacted(_)
                | Answer::Reported(_),
            ) => {}
        }
    }

    /// Ends the turn as cancelled. `partial` is the part of a running reply that was already shown, as the
    /// `Replied` to commit. Every open tool call gets the outcome "interrupted", and hook decisions that are
    /// still pending are discarded. No-op on a turn that is ending or has ended.
    pub fn cancel(&mut self, partial: Option<Change>) {
        if let State::Ending(_) | State::Ended(_) = self.state {
            return;
        }
        let state = match std::mem::replace(&mut self.state, State::Ending(StopReason::Cancelled)) {
            State::Starting { first, .. } => *first,
            state => state,
        };
        match state {
            State::Greeting { said, .. } => {
                self.commits.extend(said.iter().filter_map(never_entered));
            }
            State::Sampling => self.keep(partial),
            State::Calls(calls) => {
                self.commits.extend(calls.open().cloned().map(interrupted));
            }
            State::Starting { .. }
            | State::Ready
            | State::RoundEnd { .. }
            | State::Easing { .. }
            | State::Stopping { .. }
            | State::Compacting(_)
            | State::Committed { .. }
            | State::Restarting { .. }
            | State::Stuck { .. }
            | State::Ending(_)
            | State::Ended(_) => {}
        }
    }

    /// Withdraws a queued prompt: its text stays in the log but never enters the view.
    pub fn withdraw(&mut self, queued: Seq) {
        self.withdrawn.push(queued);
    }

    /// Counts hook runs that did nothing, for the turn's last entry.
    pub fn count_quiet_hooks(&mut self, runs: u32) {
        self.quiet_hooks = self.quiet_hooks.saturating_add(runs);
    }

    /// Adds tokens used for this turn outside of its own model calls, by callbacks.
    pub fn add_usage(&mut self, usage: &Usage) {
        self.usage.add(usage);
    }

    /// Whether the provider paused the last reply. It resumes only if that reply is the end of the request.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Why the turn ended with `StopReason::Failed`.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Tokens used by the turn so far.
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

    /// Whether the next request may still be compacted before it is sent; this is tried once.
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
                self.is_cut = stop == ReplyEnd::MaxTokens;
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
                    ReplyEnd::WindowFull if !self.overflows_again() => {
                        State::Compacting(Compaction::new(Why::Overflow, Then::CallModel))
                    }
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
                // The request was not sent, so it does not count as a round.
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
            // A compaction by command replaces the history only after the round-end hooks have seen it.
            (Why::Command, CompactAnswer::Done(change)) => {
                self.state = State::RoundEnd { asked: false, then, swap: Some(change) };
            }
            (Why::Command, CompactAnswer::Nothing) => self.follow(Then::End(StopReason::EndTurn), thread),
            (Why::Command, CompactAnswer::Failed(message)) => self.fail(message),
            (Why::Overflow, CompactAnswer::Done(change)) => {
                // The refused request does not count as a round.
                if self.failure.take().is_some() {
                    self.rounds -= 1;
                }
                self.swap(*change, then);
            }
            // The reply itself was kept, cut off where the window was full.
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
            // The conversation continues unchanged; the session has already reported why.
            (Why::Threshold | Why::Hook, CompactAnswer::Nothing | CompactAnswer::Failed(_)) => {
                self.follow(then, thread);
            }
        }
    }

    fn tell_hooks(&mut self, answer: HooksAnswer, thread: &Thread) {
        let HooksAnswer { commits, go_on, compact, halt, replaced, swap: other } = answer;
        let edited = commits.iter().any(Change::rewrites);
        self.commits.extend(commits);
        let (then, swap, is_round_end) = match std::mem::replace(&mut self.state, State::Ready) {
            State::RoundEnd { then, swap, .. } => (then, swap, true),
            State::Stopping { reason, .. } => (Then::End(reason), None, false),
            other => unreachable!("hooks answer so in two states, not in {other:?}"),
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
            (_, None) if is_round_end && !replaced && !self.compacted => {
                self.state = State::Easing { asked: false, edited, then };
            }
            (_, _) => self.follow(then, thread),
        }
    }

    fn compact_for(&mut self, why: Why, then: Then) {
        self.state = State::Compacting(Compaction::new(why, then));
    }

    fn swap(&mut self, compacted: Change, then: Then) {
        // Pruning alone leaves compaction as a further step, so it does not count as one.
        self.compacted |= !matches!(compacted, Change::Pruned { .. });
        let restarts = matches!(compacted, Change::Compacted { .. });
        self.commits.push_back(compacted);
        self.state = State::Committed { asked: false, restarts, then };
    }

    /// Continues the turn. Prompts that were queued meanwhile come first, however the last reply ended: they
    /// were accepted, so the model must see them.
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

    /// Records an overflow, and returns whether too many followed each other with at most one reply between
    /// them.
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

    /// Commits a reply and returns the ids of its calls.
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

/// The ask of a state, the first time.
fn once(asked: &mut bool, hooks: HookAsk) -> Next {
    match std::mem::replace(asked, true) {
        true => Next::Wait,
        false => Next::Ask(Ask::RunHooks(hooks)),
    }
}

/// Converts a queued prompt into the `Said` that enters the view.
fn taken(queued: &Entry) -> Option<Change> {
    let Change::Queued { message } = &queued.change else { return None };
    Some(Change::Said { message: message.clone(), origin: Origin::Queue { entry: queued.seq } })
}

/// What is recorded of a prompt that was cancelled before it entered the view. A queued one is already in the
/// log.
fn never_entered(said: &Change) -> Option<Change> {
    match said {
        Change::Said { origin: Origin::Queue { .. }, .. } => None,
        Change::Said { message, origin } => {
            let (note, mut message) = (message.id, message.clone());
            if let Origin::Recipe { typed, .. } = origin {
                // Shown as the user typed it.
                message.set_text(typed.clone());
            }
            Some(Change::Withheld { message, note, why: Withheld::Cancelled })
        }
        _ => None,
    }
}

/// The outcome of a call that was interrupted by a cancel or a crash.
pub fn interrupted(call: CallId) -> Change {
    let text = "Interrupted before it finished; what it did until then stands.";
    Change::ToolFinished { outcome: ToolOutcome::text(call, OutcomeStatus::Interrupted, text) }
}

/// The outcome of a call from a reply that broke off or was refused. The call never ran, so neither the user
/// nor the model has anything to clean up.
fn not_run(call: CallId) -> Change {
    let text = "Not run: the reply that asked for it broke off.";
    Change::ToolFinished { outcome: ToolOutcome::text(call, OutcomeStatus::Interrupted, text) }
}

/// The `Cut` to record for a reply that ended this way, if any.
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
