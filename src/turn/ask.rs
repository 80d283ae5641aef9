//! The requests of a turn to its session, and the answers.

use epitome_thread::{CallId, Change, StopReason, ToolOutcome};

/// The next step of a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Journal, apply and announce this change, then call [`Turn::next`](super::Turn::next) again.
    Commit(Box<Change>),
    /// Start this work and call `next` again; report the result later with [`Turn::tell`](super::Turn::tell).
    Ask(Ask),
    /// Nothing to do until an answer arrives.
    Wait,
    /// The turn is over, and its `TurnEnded` is committed.
    End(StopReason),
}

/// Work that a turn needs done.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Run prompt hooks: this prompt is about to enter the view.
    Greet(Box<Change>),
    /// Send the thread's view to the model.
    CallModel,
    /// Replace old entries with a summary.
    Compact {
        focus: Option<String>,
        why: Why,
    },
    /// Run hooks before this call. Asked for all calls of a reply at once.
    BeforeTool(CallId),
    /// Decide whether this call may run. Asked for one call at a time.
    Permission(CallId),
    RunTool(CallId),
    /// Run hooks after a round: a reply and the outcomes of its calls are committed. `last` if the agent
    /// would stop here.
    RoundEnd {
        last: bool,
    },
    /// Run stop hooks: the agent is about to stop.
    Stop(StopReason),
    /// Run hooks after a compaction was committed.
    Swapped,
}

/// Why a compaction is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Command,
    Overflow,
    /// The configured share of the window is used.
    Threshold,
    /// A hook or a recipe's handler requested it.
    Hook,
    /// The next request might not fit.
    Must,
}

/// The result of an [`Ask`]. An answer that the turn does not wait for is ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Model(ModelAnswer),
    Compacted(CompactAnswer),
    /// The changes to commit, including the prompt's `Said` if it enters the view.
    Greeted {
        commits: Vec<Change>,
        enters: bool,
    },
    /// Hooks let the call continue to the permission check.
    ToolSeen(CallId, Vec<Change>),
    Permission(CallId, Permit),
    /// The outcome of a call, from the tool or from a hook that stopped it.
    Tool(CallId, Box<ToolOutcome>),
    /// Answers `RoundEnd`, `Stop` and `Swapped`.
    Hooks(HooksAnswer),
}

/// What hooks request at the end of a round, when the agent is about to stop, or after a compaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HooksAnswer {
    /// Mutations, follow-ups and the trail of the hook runs.
    pub commits: Vec<Change>,
    /// Call the model again.
    pub go_on: bool,
    /// Compact first. Ignored if the view was already compacted since the last reply.
    pub compact: Option<Why>,
    /// End the turn here; overrides every other request.
    pub halt: bool,
    /// The history was replaced, so a pending summary is dropped.
    pub replaced: bool,
    /// A `Compacted` to commit after `commits`: the text of a recipe that replaces the history.
    pub swap: Option<Box<Change>>,
}

/// The result of a model call.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelAnswer {
    /// A reply, as the `Replied` to commit; for an empty one, a `Noted` that says so.
    Reply { replied: Box<Change>, stop: ReplyEnd },
    /// The request exceeds the context window.
    TooLong(String),
    /// The request might not fit and was not sent.
    MustCompact,
    /// It failed permanently, and nothing of it was shown.
    Failed(String),
}

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyEnd {
    Finished,
    /// The provider paused it; it must be sent back unchanged.
    Paused,
    MaxTokens,
    /// The window was full; the agent can continue after a compaction.
    WindowFull,
    Refused,
    /// Withheld by a filter of the provider.
    Filtered,
    /// An unknown reason. Treated as finished, but the reason is recorded.
    Other,
    /// It broke off after part of it had been shown.
    Broken,
}

/// The result of a compaction.
#[derive(Clone, Debug, PartialEq)]
pub enum CompactAnswer {
    /// The `Compacted` or `Pruned` to commit, or the `Mutated` of a hook that replaces it.
    Done(Box<Change>),
    /// Nothing to gain; the view is unchanged.
    Nothing,
    /// It failed; the view is unchanged.
    Failed(String),
}

/// Whether a call may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    Allowed,
    /// The user or a rule refused; the text is for the model.
    Denied(String),
    /// It cannot run at all, for example because the tool is unknown or the arguments are invalid.
    Impossible(String),
}
