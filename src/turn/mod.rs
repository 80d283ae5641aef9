//! The agent loop as a state machine: from a prompt to its stop reason.
//!
//! A turn decides and does nothing: it asks for a model call, a permission, a tool, a compaction or a
//! commit, and is told what came of it. It holds nothing that the thread holds, so a request is built
//! from the thread at the moment when it is sent.
//!
//! ```text
//!  Ready ── CallModel ──► Sampling ── reply without calls ──► Ending ──► Ended
//!    ▲                        │  │
//!    │                        │  └─ too long ─► Compacting ─► Ready
//!    └── all calls finished ── Calls (permission one at a time, tools together)
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use crate::thread::{
    CallId, Change, Cut, Entry, Origin, OutcomeStatus, Seq, StopReason, Thread, ToolOutcome, Usage,
};

/// Overflows with one reply between them that are compacted. A model that reads the same long file again
/// after each compaction would do so until its rounds are used up, each at the price of two calls.
const OVERFLOWS_IN_A_ROW_MAX: u32 = 3;

/// What the session is to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Journal, apply and announce this, then ask again.
    Commit(Box<Change>),
    /// Start this and come back with its answer; meanwhile ask again.
    Ask(Ask),
    /// Nothing to do until an answer comes.
    Wait,
    /// The turn is over and its `TurnEnded` is committed.
    End(StopReason),
}

/// What a turn needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Send the thread's view to the model.
    CallModel,
    /// Replace old entries by a summary.
    Compact {
        focus: Option<String>,
        why: Why,
    },
    /// May this call run?
    Permission(CallId),
    RunTool(CallId),
}

/// What made a compaction necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Command,
    Overflow,
}

/// What came of an ask. An answer that nothing waits for is ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Model(ModelAnswer),
    Compacted(CompactAnswer),
    Permission(CallId, Permit),
    Tool(CallId, Box<ToolOutcome>),
}

/// What came of a model call.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelAnswer {
    /// A reply, as the `Replied` to commit.
    Reply { replied: Box<Change>, stop: ReplyEnd },
    /// The request does not fit the window.
    TooLong(String),
    /// It failed for good and nothing of it was shown.
    Failed(String),
}

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyEnd {
    Finished,
    /// To be sent back as it is.
    Paused,
    MaxTokens,
    Refused,
    /// It broke off after something had been shown.
    Broken,
}

/// What came of a compaction.
#[derive(Clone, Debug, PartialEq)]
pub enum CompactAnswer {
    /// The `Compacted` to commit.
    Done(Box<Change>),
    /// There was nothing to gain; nothing changes.
    Nothing,
    /// It could not be done; nothing changes.
    Failed(String),
}

/// Whether a call may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    Allowed,
    /// Somebody said no. With a sentence for the model.
    Denied(String),
    /// It can't run at all: an unknown tool, arguments that make no sense.
    Impossible(String),
}

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
    /// The round of the last overflow, and how many came with one reply between them.
    overflowed_at: Option<u32>,
    overflows: u32,
    withdrawn: Vec<Seq>,
    failure: Option<String>,
}

#[derive(Debug)]
enum State {
    Ready,
    Sampling,
    Calls(Vec<Call>),
    /// `ask` until the compaction was asked for.
    Compacting {
        ask: Option<Ask>,
        why: Why,
    },
    Ending(StopReason),
    Ended(StopReason),
}

#[derive(Debug)]
struct Call {
    id: CallId,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Waiting,
    Asking,
    Permitted,
    Running,
    Finished,
}

impl Turn {
    /// A turn that begins by committing `said`. What a crash left in the queue was said before it, and
    /// enters the view before it.
    pub fn prompt(said: Change, thread: &Thread, max_rounds: u32) -> Turn {
        let mut commits: VecDeque<Change> = thread.queued().iter().filter_map(|entry| taken(entry)).collect();
        commits.push_back(said);
        Turn::new(State::Ready, commits, max_rounds)
    }

    /// A turn that is one compaction, begun by the command that `commanded` records. What the person
    /// says meanwhile is answered behind it.
    pub fn compact(commanded: Change, focus: Option<String>, max_rounds: u32) -> Turn {
        let why = Why::Command;
        let state = State::Compacting { ask: Some(Ask::Compact { focus, why }), why };
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
            overflowed_at: None,
            overflows: 0,
            withdrawn: Vec::new(),
            failure: None,
        }
    }

    /// What to do now. After a `Commit` or an `Ask`, call it again until it says `Wait` or `End`.
    pub fn next(&mut self, thread: &Thread) -> Next {
        if let Some(change) = self.commits.pop_front() {
            return Next::Commit(Box::new(change));
        }
        loop {
            match &mut self.state {
                State::Ready => {
                    if let Some(taken) = self.take_queued(thread) {
                        return Next::Commit(Box::new(taken));
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
                State::Calls(calls) => {
                    if let Some(call) = calls.iter_mut().find(|call| call.step == Step::Permitted) {
                        call.step = Step::Running;
                        return Next::Ask(Ask::RunTool(call.id.clone()));
                    }
                    // A person answers one card at a time; what is allowed runs meanwhile.
                    let asking = calls.iter().any(|call| call.step == Step::Asking);
                    if let Some(call) = calls.iter_mut().find(|call| call.step == Step::Waiting)
                        && !asking
                    {
                        call.step = Step::Asking;
                        return Next::Ask(Ask::Permission(call.id.clone()));
                    }
                    if calls.iter().any(|call| call.step != Step::Finished) {
                        return Next::Wait;
                    }
                    self.state = State::Ready;
                }
                State::Compacting { ask, .. } => return ask.take().map_or(Next::Wait, Next::Ask),
                State::Ending(reason) => {
                    let reason = *reason;
                    self.state = State::Ended(reason);
                    return Next::Commit(Box::new(Change::TurnEnded {
                        reason,
                        usage: self.usage,
                        quiet_hooks: 0,
                    }));
                }
                State::Ended(reason) => return Next::End(*reason),
            }
        }
    }

    /// Takes an answer in.
    pub fn tell(&mut self, answer: Answer, thread: &Thread) {
        match (&mut self.state, answer) {
            (State::Sampling, Answer::Model(answer)) => self.tell_model(answer, thread),
            (State::Compacting { why, .. }, Answer::Compacted(answer)) => {
                let why = *why;
                self.tell_compacted(why, answer, thread);
            }
            (State::Calls(calls), Answer::Permission(id, permit)) => {
                let Some(call) = calls.iter_mut().find(|call| call.id == id && call.step == Step::Asking)
                else {
                    return;
                };
                let (status, why) = match permit {
                    Permit::Allowed => {
                        call.step = Step::Permitted;
                        return;
                    }
                    Permit::Denied(why) => (OutcomeStatus::Denied, why),
                    Permit::Impossible(why) => (OutcomeStatus::Failed, why),
                };
                call.step = Step::Finished;
                let outcome = ToolOutcome::text(id, status, why);
                self.commits.push_back(Change::ToolFinished { outcome });
            }
            (State::Calls(calls), Answer::Tool(id, outcome)) => {
                let Some(call) = calls.iter_mut().find(|call| call.id == id && call.step == Step::Running)
                else {
                    return;
                };
                call.step = Step::Finished;
                self.commits.push_back(Change::ToolFinished { outcome: *outcome });
            }
            // Late answers of what a cancel or an end overtook.
            (
                State::Ready
                | State::Sampling
                | State::Calls(_)
                | State::Compacting { .. }
                | State::Ending(_)
                | State::Ended(_),
                Answer::Model(_) | Answer::Compacted(_) | Answer::Permission(..) | Answer::Tool(..),
            ) => {}
        }
    }

    /// Ends the turn as cancelled. `partial` is what had been shown of a running reply, as the
    /// `Replied` to keep. Every open call gets the outcome "interrupted". No-op on a turn that ends.
    pub fn cancel(&mut self, partial: Option<Change>) {
        match &self.state {
            State::Ending(_) | State::Ended(_) => return,
            State::Ready | State::Compacting { .. } => {}
            State::Sampling => self.keep(partial),
            State::Calls(calls) => {
                let open = calls.iter().filter(|call| call.step != Step::Finished);
                let outcomes: Vec<Change> = open.map(|call| interrupted(call.id.clone())).collect();
                self.commits.extend(outcomes);
            }
        }
        self.state = State::Ending(StopReason::Cancelled);
    }

    /// A queued prompt is taken back; its text stays in the log and never enters the view.
    pub fn withdraw(&mut self, queued: Seq) {
        self.withdrawn.push(queued);
    }

    /// Why the turn ended with `StopReason::Failed`.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Tokens that the turn has taken so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    fn tell_model(&mut self, answer: ModelAnswer, thread: &Thread) {
        match answer {
            ModelAnswer::Reply { replied, stop } => {
                self.compacted = false;
                let calls = self.keep_reply(*replied);
                let runs = matches!(stop, ReplyEnd::Finished | ReplyEnd::Paused | ReplyEnd::MaxTokens);
                if !runs {
                    self.commits.extend(calls.iter().map(|call| interrupted(call.id.clone())));
                }
                self.state = match stop {
                    ReplyEnd::Finished | ReplyEnd::Paused | ReplyEnd::MaxTokens if !calls.is_empty() => {
                        State::Calls(calls)
                    }
                    ReplyEnd::Finished | ReplyEnd::Broken => self.end_or_go_on(StopReason::EndTurn, thread),
                    ReplyEnd::Paused => State::Ready,
                    ReplyEnd::MaxTokens => self.end_or_go_on(StopReason::MaxTokens, thread),
                    ReplyEnd::Refused => self.end_or_go_on(StopReason::Refusal, thread),
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
                let why = Why::Overflow;
                self.state = State::Compacting { ask: Some(Ask::Compact { focus: None, why }), why };
            }
            ModelAnswer::Failed(message) => self.fail(message),
        }
    }

    fn tell_compacted(&mut self, why: Why, answer: CompactAnswer, thread: &Thread) {
        if let CompactAnswer::Done(change) = &answer
            && let Change::Compacted { usage: Some(usage), .. } = &**change
        {
            self.usage.add(usage);
        }
        match (why, answer) {
            (Why::Command, CompactAnswer::Done(change)) => {
                self.commits.push_back(*change);
                self.state = self.end_or_go_on(StopReason::EndTurn, thread);
            }
            (Why::Command, CompactAnswer::Nothing) => {
                self.state = self.end_or_go_on(StopReason::EndTurn, thread)
            }
            (Why::Command, CompactAnswer::Failed(message)) => self.fail(message),
            (Why::Overflow, CompactAnswer::Done(change)) => {
                self.commits.push_back(*change);
                self.failure = None;
                self.compacted = true;
                self.rounds -= 1;
                self.state = State::Ready;
            }
            (Why::Overflow, CompactAnswer::Nothing) => {
                let message = self.failure.take().unwrap_or_default();
                self.fail(message);
            }
            (Why::Overflow, CompactAnswer::Failed(compaction)) => {
                let message = self.failure.take().unwrap_or_default();
                self.fail(format!("{message} Compacting the conversation failed as well: {compaction}"));
            }
        }
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
            self.commits.extend(calls.into_iter().map(|call| interrupted(call.id)));
        }
    }

    fn keep_reply(&mut self, replied: Change) -> Vec<Call> {
        let mut calls = Vec::new();
        if let Change::Replied { message, usage, .. } = &replied {
            calls.extend(message.calls().map(|call| Call { id: call.id.clone(), step: Step::Waiting }));
            if let Some(usage) = usage {
                self.usage.add(usage);
            }
        }
        self.commits.push_back(replied);
        calls
    }

    /// Ends the turn, or goes on with what the person said meanwhile: it was accepted, so the model
    /// must see it, however the reply before it ended.
    fn end_or_go_on(&self, reason: StopReason, thread: &Thread) -> State {
        if self.next_queued(thread).is_some() { State::Ready } else { State::Ending(reason) }
    }

    fn take_queued(&self, thread: &Thread) -> Option<Change> {
        self.next_queued(thread).and_then(|entry| taken(entry))
    }

    fn next_queued<'a>(&self, thread: &'a Thread) -> Option<&'a Arc<Entry>> {
        thread.queued().iter().find(|queued| !self.withdrawn.contains(&queued.seq))
    }
}

/// A queued prompt as it enters the view.
fn taken(queued: &Entry) -> Option<Change> {
    let Change::Queued { message } = &queued.change else { return None };
    Some(Change::Said { message: message.clone(), origin: Origin::Queue { entry: queued.seq } })
}

/// The outcome of a call that a cancel or a crash overtook.
pub fn interrupted(call: CallId) -> Change {
    let text = "Interrupted before it finished; what it did until then stands.";
    Change::ToolFinished { outcome: ToolOutcome::text(call, OutcomeStatus::Interrupted, text) }
}

/// The cut that goes with a reply's end, where there is one.
pub fn cut_of(stop: ReplyEnd, reason: &str) -> Option<Cut> {
    match stop {
        ReplyEnd::Finished | ReplyEnd::Paused => None,
        ReplyEnd::MaxTokens => Some(Cut::MaxTokens),
        ReplyEnd::Refused => Some(Cut::Refused { reason: reason.to_owned() }),
        ReplyEnd::Broken => Some(Cut::Broken { reason: reason.to_owned() }),
    }
}
