//! The agent loop as a state machine, from a prompt to its stop reason.
//!
//! A [`Turn`] is pure: it decides what happens next and performs nothing itself. The session drives it:
//!
//! 1. [`Turn::next`] returns a [`NextStep`]: a [`Change`] to commit to the log, an [`Effect`] to start (call the
//!    model, run hooks, request permission, run a tool, compact), [`NextStep::Wait`] or [`NextStep::End`].
//! 2. The session commits the change or starts the work, and calls `next` again until it gets `Wait` or
//!    `End`.
//! 3. When a piece of work finishes, the session passes the result to [`Turn::handle`] as an [`EffectResult`] and
//!    calls `next` again.
//!
//! A turn stores only the state of the loop. Messages, queued prompts and settings are in the [`Thread`],
//! which is passed in, so a request is built from the thread as it is at the moment of sending.
//!
//! ```text
//! Starting ─► Greeting ─► Ready ─► Sampling ─┬─ calls ─► Calls ─┬─► RoundEnd ─► Easing ─► Stopping ─► Ending ─► Ended
//!                ▲          ▲                └─ no calls ───────┘      │         │           │
//!                │          └─ calls answered, or a hook continues ────┼─────────┴───────────┤
//!                └──────────── a prompt was queued ────────────────────┴─────────────────────┘
//!
//! Sampling, RoundEnd, Stopping, Starting (by command) ─► Compacting
//!
//! Compacting:  Planning ─► Hooks ─► Summarising ─► Composing ─► Composed ─► (RoundEnd, by command) ─► Committed
//!                 ▲          │           │             │            │
//!                 └──────────┴───────────┘             └────────────┴─► Outdated ─► failed
//!                  the view changed                      the view changed
//!
//! RoundEnd, by command ─► Composing, once, if hooks edited the thread there
//! Committed ─► Restarting ─► the state that would have come next
//! ```
//!
//! | state | what happens in it |
//! | --- | --- |
//! | `Starting` | hooks see the start of the session, before its first prompt or compaction |
//! | `Greeting` | prompt hooks check each prompt before it enters the view |
//! | `Ready` | takes a queued prompt, or starts the next round, up to the round limit |
//! | `Sampling` | the model replies |
//! | `Calls` | hooks check all calls; permission is requested one by one; permitted calls run; hooks see each outcome |
//! | `RoundEnd` | hooks see the finished round, and the summary of a compaction by command |
//! | `Easing` | old tool outcomes are pruned if that pays for its cost |
//! | `Stopping` | the agent is about to stop; stop hooks can make it continue |
//! | `Compacting` | one compaction: plan, hooks, summary, change; it can end at each stage, with or without a change |
//! | `Committed` | the compaction is committed; hooks can react to it |
//! | `Restarting` | hooks see the start of the session on the summary |
//! | `Stuck` | the turn repeats itself (`repeats`): a note about that is committed |
//! | `Cancelling` | the turn is cancelled; hooks see what its interrupted calls have put out |
//! | `Ending` | the turn's last entry, `TurnEnded`, is committed |
//!
//! A stage of a compaction never starts over because of hooks: a plan is made again only if the view is no longer the
//! one that it was made for. In a session without hooks, the session answers the hook effects immediately.

mod ask;
mod calls;
mod compaction;
mod repeats;

use std::collections::VecDeque;
use std::sync::Arc;

pub use ask::{
    CompactionResult, Effect, EffectResult, HookPoint, HooksResult, ModelResult, NextStep, Permit, ReplyEnd,
};

pub use compaction::CHANGED;
pub use repeats::Stuck;

use calls::Calls;
use compaction::PendingCompaction;
use repeats::Repeats;

use epitome_thread::{
    CallId, Change, Entry, Origin, OutcomeStatus, ReplyCut, Seq, StopReason, Thread, ToolOutcome, Trigger,
    Usage, Withheld,
};

/// Maximum number of overflows in a row, with at most one reply between them, that lead to a compaction. Without this
/// limit, a model that reads the same long file again after each compaction would continue until its rounds are used
/// up, and each cycle costs two model calls.
const OVERFLOWS_IN_A_ROW_MAX: u32 = 3;

/// Limits of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// Model calls.
    pub rounds: u32,
    /// Rounds in a row that repeat each other; 0 for no limit.
    pub repeats: u32,
}

/// One turn of a session.
#[derive(Debug)]
pub struct Turn {
    state: TurnState,
    /// Whether the work of this state was requested. A compaction and a reply's calls record that themselves.
    asked: bool,
    commits: VecDeque<Change>,
    limits: TurnLimits,
    rounds: u32,
    repeats: Repeats,
    /// Whether the last reply reached the output limit.
    is_cut: bool,
    usage: Usage,
    /// Whether the view was compacted since the last reply.
    compacted: bool,
    /// Whether a compaction before the next call was attempted and freed nothing. The request is then sent unchanged,
    /// and the provider decides whether it fits.
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
enum TurnState {
    /// Hooks see the session start, before its `first` state.
    Starting {
        first: Box<TurnState>,
    },
    /// Hooks check the prompts in `prompts`, in order. `entered` if at least one prompt entered the view; otherwise the turn
    /// continues with `then`.
    Greeting {
        prompts: VecDeque<Change>,
        entered: bool,
        then: Continuation,
    },
    Ready,
    Sampling,
    Calls(Calls),
    /// Hooks see the round. `swap` is the result of a compaction by command, committed after they answer.
    RoundEnd {
        then: Continuation,
        swap: Option<Box<Change>>,
    },
    Stopping(StopReason),
    /// Old outcomes may be pruned; `edited` if hooks edited the view in this round.
    Easing {
        edited: bool,
        then: Continuation,
    },
    Compacting(PendingCompaction),
    /// A compaction is committed, and hooks can react to it. The session `restarts` on it unless the layer
    /// keeps the history.
    Committed {
        restarts: bool,
        then: Continuation,
    },
    Restarting(Continuation),
    /// The turn repeats itself, which is noted in the log before it ends.
    Stuck(Stuck),
    /// The turn is cancelled, and hooks see the outcomes of its last calls.
    Cancelling(Calls),
    Ending(StopReason),
    Ended(StopReason),
}

/// How a turn continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continuation {
    CallModel,
    /// Stop, unless hooks continue or a prompt was queued.
    Stop(StopReason),
    /// Stop, unless a prompt was queued.
    End(StopReason),
}

impl Continuation {
    /// How it continues after a hook has ended the turn.
    fn halted(self) -> Continuation {
        match self {
            Continuation::CallModel => Continuation::End(StopReason::EndTurn),
            Continuation::Stop(reason) | Continuation::End(reason) => Continuation::End(reason),
        }
    }
}

impl Turn {
    /// Creates a turn that starts with the prompt `prompt`, if hooks let it into the view. Prompts that a
    /// crashed or failed turn left in the queue are older, so they enter the view first.
    pub fn prompt(prompt: Change, thread: &Thread, limits: TurnLimits) -> Turn {
        let mut all: VecDeque<Change> = thread.queued().iter().filter_map(|entry| taken(entry)).collect();
        // One that was sent again is in the queue already.
        if !matches!(prompt, Change::Said { origin: Origin::Queue { .. }, .. }) {
            all.push_back(prompt);
        }
        let then = Continuation::End(StopReason::Refusal);
        let state = TurnState::Greeting { prompts: all, entered: false, then };
        Turn::new(state, VecDeque::new(), limits)
    }

    /// Creates a turn that consists of one compaction, started by the command recorded in `commanded`.
    /// Prompts that are queued in the meantime are answered after it.
    pub fn compact(commanded: Change, limits: TurnLimits) -> Turn {
        let compaction = PendingCompaction::new(Trigger::Manual, Continuation::Stop(StopReason::EndTurn));
        Turn::new(TurnState::Compacting(compaction), VecDeque::from([commanded]), limits)
    }

    /// Runs the session-start hooks first. For a turn that has not begun.
    pub fn start_session(&mut self) {
        let first = Box::new(std::mem::replace(&mut self.state, TurnState::Ready));
        self.state = TurnState::Starting { first };
    }

    fn new(state: TurnState, commits: VecDeque<Change>, limits: TurnLimits) -> Turn {
        Turn {
            state,
            asked: false,
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

    /// Returns the next step. After a `Commit` or an `Effect`, the caller calls this again until it returns
    /// `Wait` or `End`.
    pub fn next(&mut self, thread: &Thread) -> NextStep {
        loop {
            if let Some(change) = self.commits.pop_front() {
                return NextStep::Commit(Box::new(change));
            }
            let effect = match &mut self.state {
                TurnState::Starting { .. } => Effect::RunHooks(HookPoint::SessionStart),
                TurnState::Greeting { prompts, entered, then } => match prompts.front() {
                    Some(first) => Effect::RunHooks(HookPoint::Prompt(Box::new(first.clone()))),
                    None if *entered => {
                        self.enter(TurnState::Ready);
                        continue;
                    }
                    None => {
                        let then = *then;
                        self.follow(then, thread);
                        continue;
                    }
                },
                TurnState::Ready => {
                    if let Some(prompt) = self.take_queued(thread) {
                        self.greet(prompt, Continuation::CallModel);
                    } else if self.rounds >= self.limits.rounds {
                        self.enter(TurnState::Ending(StopReason::MaxRounds));
                    } else if let Some(stuck) = self.repeats.stuck(self.limits.repeats) {
                        self.enter(TurnState::Stuck(stuck));
                    } else {
                        self.rounds += 1;
                        self.enter(TurnState::Sampling);
                    }
                    continue;
                }
                TurnState::Sampling => Effect::CallModel,
                TurnState::Calls(calls) => match calls.next() {
                    Some(effect) => return NextStep::Run(effect),
                    None if !calls.are_finished() => return NextStep::Wait,
                    None => {
                        self.repeats.round(thread, self.is_cut, calls.are_usable());
                        self.enter(TurnState::RoundEnd { then: Continuation::CallModel, swap: None });
                        continue;
                    }
                },
                TurnState::RoundEnd { then, .. } => {
                    Effect::RunHooks(HookPoint::RoundEnd { last: *then != Continuation::CallModel })
                }
                TurnState::Easing { edited, .. } => Effect::Ease { edited: *edited },
                TurnState::Stopping(reason) => Effect::RunHooks(HookPoint::Stop(*reason)),
                TurnState::Compacting(compaction) => {
                    return compaction.next(thread.view().revision()).map_or(NextStep::Wait, NextStep::Run);
                }
                TurnState::Committed { .. } => Effect::RunHooks(HookPoint::PostCompact),
                TurnState::Restarting(_) => Effect::RunHooks(HookPoint::Restart),
                TurnState::Stuck(stuck) => Effect::Report(stuck.clone()),
                TurnState::Cancelling(calls) => match calls.take_unseen() {
                    Some(point) => return NextStep::Run(Effect::RunHooks(point)),
                    None if !calls.are_finished() => return NextStep::Wait,
                    None => {
                        self.enter(TurnState::Ending(StopReason::Cancelled));
                        continue;
                    }
                },
                TurnState::Ending(reason) => {
                    let reason = *reason;
                    self.enter(TurnState::Ended(reason));
                    let (usage, quiet_hooks) = (self.usage, self.quiet_hooks);
                    let failure = self.failure.clone().filter(|_| reason == StopReason::Failed);
                    return NextStep::Commit(Box::new(Change::TurnEnded {
                        reason,
                        usage,
                        quiet_hooks,
                        failure,
                    }));
                }
                TurnState::Ended(reason) => return NextStep::End(*reason),
            };
            return match std::mem::replace(&mut self.asked, true) {
                true => NextStep::Wait,
                false => NextStep::Run(effect),
            };
        }
    }

    fn enter(&mut self, state: TurnState) {
        (self.state, self.asked) = (state, false);
    }

    /// Processes an answer. One that the current state does not wait for is ignored.
    pub fn handle(&mut self, answer: EffectResult, thread: &Thread) {
        match (&mut self.state, answer) {
            (TurnState::Sampling, EffectResult::Model(answer)) => self.handle_model(answer),
            (TurnState::Calls(calls), EffectResult::ToolSeen(id, commits)) => {
                let is_seen = calls.seen(&id);
                self.commits.extend(commits.into_iter().filter(|_| is_seen));
            }
            (TurnState::Calls(calls), EffectResult::Permission(id, permit)) => {
                self.commits.extend(calls.decided(id, permit));
            }
            (TurnState::Calls(calls), EffectResult::Ran(outcome)) => calls.ran(outcome),
            (TurnState::Calls(calls) | TurnState::Cancelling(calls), EffectResult::Tool(id, outcome)) => {
                self.commits.extend(calls.finished(&id, *outcome));
            }
            (TurnState::Compacting(compaction), EffectResult::Planned(revision)) => {
                compaction.planned(revision)
            }
            (TurnState::Compacting(compaction), EffectResult::Instructed { edited }) => {
                compaction.hooks_ran(edited)
            }
            (TurnState::Compacting(compaction), EffectResult::Summarised) => compaction.summarised(),
            (TurnState::Compacting(compaction), EffectResult::Composed(change)) => {
                compaction.composed(change)
            }
            (TurnState::Compacting(compaction), EffectResult::Compacted(answer)) => {
                let (why, then, was_seen) = (compaction.why, compaction.then, compaction.was_seen);
                match answer {
                    CompactionResult::Done(change) if was_seen => self.swap(*change, then),
                    answer => self.handle_compacted(why, then, answer, thread),
                }
            }
            _ if !self.asked => {}
            (TurnState::Starting { first }, EffectResult::Started(commits)) => {
                self.commits.extend(commits);
                let first = std::mem::replace(&mut **first, TurnState::Ready);
                self.enter(first);
            }
            (TurnState::Greeting { prompts, entered, .. }, EffectResult::Greeted { commits, enters }) => {
                self.asked = false;
                if let Some(Change::Said { origin: Origin::Queue { entry }, .. }) = prompts.pop_front() {
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
            (TurnState::RoundEnd { .. } | TurnState::Stopping(_), EffectResult::Hooks(answer)) => {
                self.handle_hooks(answer, thread);
            }
            (TurnState::Easing { then, .. }, EffectResult::Eased(cut)) => {
                let then = *then;
                self.commits.extend(cut.map(|cut| *cut));
                self.follow(then, thread);
            }
            (TurnState::Committed { restarts, then }, EffectResult::Hooks(answer)) => {
                let (restarts, then) = (*restarts, if answer.halt { then.halted() } else { *then });
                self.commits.extend(answer.commits);
                match restarts {
                    true => self.enter(TurnState::Restarting(then)),
                    false => self.follow(then, thread),
                }
            }
            (TurnState::Restarting(then), EffectResult::Started(commits)) => {
                let then = *then;
                self.commits.extend(commits);
                self.follow(then, thread);
            }
            (TurnState::Stuck(_), EffectResult::Reported(note)) => {
                self.commits.push_back(*note);
                self.enter(TurnState::Ending(StopReason::MaxRounds));
            }
            // Late answers, after a cancel or the end of the turn.
            (
                TurnState::Starting { .. }
                | TurnState::Greeting { .. }
                | TurnState::Ready
                | TurnState::Sampling
                | TurnState::Calls(_)
                | TurnState::RoundEnd { .. }
                | TurnState::Easing { .. }
                | TurnState::Stopping(_)
                | TurnState::Compacting(_)
                | TurnState::Committed { .. }
                | TurnState::Restarting(_)
                | TurnState::Stuck(_)
                | TurnState::Cancelling(_)
                | TurnState::Ending(_)
                | TurnState::Ended(_),
                EffectResult::Started(_)
                | EffectResult::Greeted { .. }
                | EffectResult::Model(_)
                | EffectResult::ToolSeen(..)
                | EffectResult::Permission(..)
                | EffectResult::Ran(_)
                | EffectResult::Tool(..)
                | EffectResult::Hooks(_)
                | EffectResult::Eased(_)
                | EffectResult::Planned(_)
                | EffectResult::Instructed { .. }
                | EffectResult::Summarised
                | EffectResult::Composed(_)
                | EffectResult::Compacted(_)
                | EffectResult::Reported(_),
            ) => {}
        }
    }

    /// Ends the turn as cancelled. `partial` is the part of a running reply that was already shown, as the
    /// `Replied` to commit. Every open tool call gets an outcome that says whether it had begun, and hook
    /// decisions that are still pending are discarded. If calls have outcomes that hooks have not seen, the turn ends
    /// after these hooks, or at once when it is cancelled again. No-op on a turn that is ending or has ended.
    pub fn cancel(&mut self, partial: Option<Change>) {
        if let TurnState::Ending(_) | TurnState::Ended(_) = self.state {
            return;
        }
        let state = match std::mem::replace(&mut self.state, TurnState::Ending(StopReason::Cancelled)) {
            TurnState::Starting { first, .. } => *first,
            state => state,
        };
        match state {
            TurnState::Greeting { prompts, .. } => {
                self.commits.extend(prompts.iter().filter_map(never_entered));
            }
            TurnState::Sampling => self.keep(partial),
            TurnState::Calls(mut calls) => {
                self.commits.extend(calls.cancelled(true));
                self.state = TurnState::Cancelling(calls);
            }
            TurnState::Cancelling(mut calls) => self.commits.extend(calls.cancelled(false)),
            TurnState::Starting { .. }
            | TurnState::Ready
            | TurnState::RoundEnd { .. }
            | TurnState::Easing { .. }
            | TurnState::Stopping(_)
            | TurnState::Compacting(_)
            | TurnState::Committed { .. }
            | TurnState::Restarting(_)
            | TurnState::Stuck(_)
            | TurnState::Ending(_)
            | TurnState::Ended(_) => {}
        }
    }

    /// Withdraws a queued prompt: its text stays in the log but never enters the view, also not after a crash.
    pub fn withdraw(&mut self, queued: &Entry) {
        let Some(withdrawn) = withdrawn(queued) else { return };
        self.withdrawn.push(queued.seq);
        self.commits.push_back(withdrawn);
    }

    /// Whether the turn was cancelled, and ends as soon as hooks have seen the outcomes of its last calls.
    pub fn is_cancelling(&self) -> bool {
        matches!(&self.state, TurnState::Cancelling(calls) if !calls.are_finished())
    }

    /// The next outcome of a cancelled turn that hooks have not seen.
    pub fn take_unseen(&mut self) -> Option<HookPoint> {
        match &mut self.state {
            TurnState::Cancelling(calls) => calls.take_unseen(),
            _ => None,
        }
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

    /// Whether the next request may still be compacted before it is sent; this is attempted once.
    pub fn may_compact_before_call(&self) -> bool {
        !self.compacted && !self.tried
    }

    fn handle_model(&mut self, answer: ModelResult) {
        match answer {
            ModelResult::Reply { replied, stop } => {
                self.compacted = false;
                self.tried = false;
                self.failure = match &*replied {
                    Change::Replied { cut: Some(ReplyCut::Broken { reason }), .. } => Some(reason.clone()),
                    _ => None,
                };
                let calls = self.keep_reply(*replied);
                self.paused = stop == ReplyEnd::Paused && calls.is_empty();
                self.is_cut = stop == ReplyEnd::MaxTokens;
                let runs = !matches!(stop, ReplyEnd::Refused | ReplyEnd::Filtered | ReplyEnd::Broken);
                if !runs {
                    self.commits.extend(calls.iter().cloned().map(|call| not_run(call, BROKE_OFF)));
                }
                let round_end = |reason| TurnState::RoundEnd { then: Continuation::Stop(reason), swap: None };
                let next = match stop {
                    _ if runs && !calls.is_empty() => TurnState::Calls(Calls::new(calls)),
                    ReplyEnd::Finished | ReplyEnd::Other => round_end(StopReason::EndTurn),
                    // Its text is kept, but it is no answer.
                    ReplyEnd::Broken => {
                        TurnState::RoundEnd { then: Continuation::End(StopReason::Failed), swap: None }
                    }
                    ReplyEnd::Paused => TurnState::Ready,
                    ReplyEnd::WindowFull if !self.overflows_again() => TurnState::Compacting(
                        PendingCompaction::new(Trigger::Overflow, Continuation::CallModel),
                    ),
                    ReplyEnd::MaxTokens | ReplyEnd::WindowFull => round_end(StopReason::MaxTokens),
                    ReplyEnd::Refused | ReplyEnd::Filtered => round_end(StopReason::Refusal),
                };
                self.enter(next);
            }
            // Also just after a compaction: the window may have turned out to be smaller than it was made for.
            ModelResult::TooLong(message) if !self.overflows_again() => {
                self.failure = Some(message);
                self.compact_for(Trigger::Overflow, Continuation::CallModel);
            }
            ModelResult::TooLong(message) if self.compacted => self.fail(message),
            ModelResult::TooLong(message) => {
                self.fail(format!(
                    "{message} Compacting does not help: the next step fills the window again. \
                     A tool's output is probably larger than the window; ask for less at a time."
                ));
            }
            ModelResult::MustCompact => {
                // The request was not sent, so it does not count as a round.
                self.rounds -= 1;
                self.compact_for(Trigger::Must, Continuation::CallModel);
            }
            ModelResult::Failed(message) => self.fail(message),
        }
    }

    fn handle_compacted(
        &mut self,
        why: Trigger,
        then: Continuation,
        answer: CompactionResult,
        thread: &Thread,
    ) {
        match (answer, why) {
            // A compaction by command replaces the history only after the round-end hooks have seen it.
            (CompactionResult::Done(change), Trigger::Manual) => {
                self.enter(TurnState::RoundEnd { then, swap: Some(change) });
            }
            (CompactionResult::Done(change), _) => {
                // The refused request does not count as a round.
                if why == Trigger::Overflow && self.failure.take().is_some() {
                    self.rounds -= 1;
                }
                self.swap(*change, then);
            }
            (CompactionResult::Nothing, Trigger::Manual) => {
                self.follow(Continuation::End(StopReason::EndTurn), thread)
            }
            (CompactionResult::Failed(message), Trigger::Manual) => self.fail(message),
            (answer, Trigger::Overflow) => match (self.failure.take(), answer) {
                // The reply itself was kept, cut off where the window was full.
                (None, _) => {
                    let then = Continuation::Stop(StopReason::MaxTokens);
                    self.enter(TurnState::RoundEnd { then, swap: None });
                }
                (Some(message), CompactionResult::Failed(compaction)) => {
                    self.fail(format!("{message} Compacting the conversation failed as well: {compaction}"))
                }
                (Some(message), CompactionResult::Nothing | CompactionResult::Done(_)) => self.fail(message),
            },
            // The conversation continues unchanged; the session has already reported why.
            (_, Trigger::Threshold | Trigger::Hook | Trigger::Must) => {
                self.tried |= why == Trigger::Must;
                self.follow(then, thread);
            }
        }
    }

    fn handle_hooks(&mut self, answer: HooksResult, thread: &Thread) {
        let HooksResult { commits, go_on, compact, halt, replaced, swap: other } = answer;
        let edited = commits.iter().any(Change::rewrites);
        let touches = commits.iter().any(|change| matches!(change, Change::Edited { .. }));
        self.commits.extend(commits);
        let (then, swap, is_round_end) = match std::mem::replace(&mut self.state, TurnState::Ready) {
            TurnState::RoundEnd { then, swap, .. } => (then, swap, true),
            TurnState::Stopping(reason) => (Continuation::End(reason), None, false),
            other => unreachable!("hooks answer so in two states, not in {other:?}"),
        };
        if halt {
            return self.follow(then.halted(), thread);
        }
        let then = if go_on { Continuation::CallModel } else { then };
        let swap = swap.filter(|_| other.is_none() && !replaced);
        // The swap was composed before the edits: it would restore what they removed, and lack what they pinned.
        if touches && swap.is_some() {
            return self.enter(TurnState::Compacting(PendingCompaction::again(then)));
        }
        match (other.or(swap), compact) {
            (Some(swap), _) => self.swap(*swap, then),
            (_, Some(why)) if !self.compacted => self.compact_for(why, then),
            (_, None) if is_round_end && !replaced && !self.compacted => {
                self.enter(TurnState::Easing { edited, then });
            }
            (_, _) => self.follow(then, thread),
        }
    }

    fn compact_for(&mut self, why: Trigger, then: Continuation) {
        self.enter(TurnState::Compacting(PendingCompaction::new(why, then)));
    }

    fn swap(&mut self, compacted: Change, then: Continuation) {
        // Pruning alone leaves compaction as a further step, so it does not count as one.
        self.compacted |= !matches!(compacted, Change::Pruned { .. });
        // The provider continues a paused reply only after the same conversation, with the reply's signed thinking.
        self.paused = false;
        if let Change::Compacted { usage: Some(usage), .. } = &compacted {
            self.usage.add(usage);
        }
        let restarts = matches!(compacted, Change::Compacted { .. });
        self.commits.push_back(compacted);
        self.enter(TurnState::Committed { restarts, then });
    }

    /// Continues the turn. Prompts that were queued in the meantime come first, however the last reply ended: they were
    /// accepted, so the model must see them.
    fn follow(&mut self, then: Continuation, thread: &Thread) {
        let reason = match then {
            Continuation::CallModel => return self.enter(TurnState::Ready),
            Continuation::Stop(reason) | Continuation::End(reason) => reason,
        };
        if let Some(prompt) = self.take_queued(thread) {
            return self.greet(prompt, then);
        }
        self.enter(match then {
            Continuation::Stop(_) => TurnState::Stopping(reason),
            Continuation::CallModel | Continuation::End(_) => TurnState::Ending(reason),
        });
    }

    fn greet(&mut self, prompt: Change, then: Continuation) {
        self.enter(TurnState::Greeting { prompts: VecDeque::from([prompt]), entered: false, then });
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
        self.enter(TurnState::Ending(StopReason::Failed));
    }

    fn keep(&mut self, partial: Option<Change>) {
        if let Some(partial) = partial {
            let calls = self.keep_reply(partial);
            self.commits.extend(calls.into_iter().map(|call| not_run(call, BROKE_OFF)));
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

/// Converts a queued prompt into the `Said` that enters the view.
fn taken(queued: &Entry) -> Option<Change> {
    let Change::Queued { message } = &queued.change else { return None };
    Some(Change::Said { message: message.clone(), origin: Origin::Queue { entry: queued.seq } })
}

/// The record of a prompt that was cancelled before it entered the view. A queued one is already in the log.
fn never_entered(prompt: &Change) -> Option<Change> {
    match prompt {
        Change::Said { origin: Origin::Queue { .. }, .. } => None,
        Change::Said { message, origin } => {
            let (note, mut message) = (message.id, message.clone());
            if let Origin::Recipe { typed, .. } = origin {
                // Keep the text that the user typed.
                message.set_text(typed.clone());
            }
            Some(Change::Withheld { message, note, why: Withheld::Cancelled })
        }
        _ => None,
    }
}

/// The change that withdraws a queued prompt; `None` for any other entry.
pub fn withdrawn(queued: &Entry) -> Option<Change> {
    let Change::Queued { message } = &queued.change else { return None };
    let (message, note, why) = (message.clone(), message.id, Withheld::Cancelled);
    Some(Change::Withheld { message, note, why })
}

/// The outcome of a call that was interrupted by a cancel, or that may have been by a crash.
pub fn interrupted(call: CallId) -> Change {
    let text = "Interrupted before it finished. Changes already made were kept.";
    Change::ToolFinished { outcome: ToolOutcome::text(call, OutcomeStatus::Interrupted, text) }
}

/// Why a call from a reply that broke off or was refused did not run.
const BROKE_OFF: &str = "Not run: the reply that asked for it broke off.";

/// The outcome of a call that never ran, so neither the user nor the model has anything to clean up.
fn not_run(call: CallId, text: &str) -> Change {
    Change::ToolFinished { outcome: ToolOutcome::text(call, OutcomeStatus::Interrupted, text) }
}

/// The `ReplyCut` to record for a reply that ended this way, if any.
pub fn cut_of(stop: ReplyEnd, reason: &str) -> Option<ReplyCut> {
    match stop {
        ReplyEnd::Finished | ReplyEnd::Paused => None,
        ReplyEnd::MaxTokens => Some(ReplyCut::MaxTokens),
        ReplyEnd::Refused => Some(ReplyCut::Refused { reason: reason.to_owned() }),
        ReplyEnd::Broken => Some(ReplyCut::Broken { reason: reason.to_owned() }),
        ReplyEnd::WindowFull => Some(ReplyCut::WindowFull),
        ReplyEnd::Filtered => Some(ReplyCut::Filtered { reason: reason.to_owned() }),
        ReplyEnd::Other => Some(ReplyCut::Other { reason: reason.to_owned() }),
    }
}
