//! What a turn asks for, and what it is told.

use epitome_thread::{CallId, Change, StopReason, ToolOutcome};

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
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// A prompt is about to enter the view: what do hooks say to it?
    Greet(Box<Change>),
    /// Send the thread's view to the model.
    CallModel,
    /// Replace old entries by a summary.
    Compact {
        focus: Option<String>,
        why: Why,
    },
    /// What do hooks say to this call? Asked for all calls of a reply at once.
    BeforeTool(CallId),
    /// May this call run? Asked for one call at a time.
    Permission(CallId),
    RunTool(CallId),
    /// A reply and the outcomes of its calls are in: what do hooks want done? `last` tells whether the
    /// agent would stop here.
    RoundEnd {
        last: bool,
    },
    /// The agent would stop: what do hooks want done?
    Stop(StopReason),
    /// A compaction is committed: what do hooks have to add?
    Swapped,
}

/// What made a compaction necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Command,
    Overflow,
    /// The configured share of the window was reached.
    Threshold,
    /// A hook or a recipe's handler asked for it.
    Hook,
    /// The next request might not fit.
    Must,
}

/// What came of an ask. An answer that nothing waits for is ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Model(ModelAnswer),
    Compacted(CompactAnswer),
    /// The changes to commit, the prompt's `Said` among them if it enters the view.
    Greeted {
        commits: Vec<Change>,
        enters: bool,
    },
    /// The call goes on its way to permission.
    ToolSeen(CallId, Vec<Change>),
    Permission(CallId, Permit),
    /// Also of a call that a hook stopped.
    Tool(CallId, Box<ToolOutcome>),
    /// To `RoundEnd`, `Stop` and `Swapped`.
    Hooks(HooksAnswer),
}

/// What hooks want at the end of a round, at the agent's stop or behind a compaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HooksAnswer {
    /// Mutations, follow-ups, the trail.
    pub commits: Vec<Change>,
    /// Call the model again.
    pub go_on: bool,
    /// Compact first. Not heard behind a compaction.
    pub compact: Option<Why>,
    /// End the turn here, whatever else is asked.
    pub halt: bool,
    /// The history was replaced: a summary that waits to take its place is dropped.
    pub replaced: bool,
    /// The `Compacted` to commit behind the rest: a recipe's text takes the history's place.
    pub swap: Option<Box<Change>>,
}

/// What came of a model call.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelAnswer {
    /// A reply, as the `Replied` to commit.
    Reply { replied: Box<Change>, stop: ReplyEnd },
    /// The request does not fit the window.
    TooLong(String),
    /// It might not fit, and was not made.
    MustCompact,
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
    /// The window was full; with less before it, the agent can go on.
    WindowFull,
    Refused,
    /// Held back by a filter of the provider's.
    Filtered,
    /// For a reason that nobody knows here: as if it were finished, with a word about it.
    Other,
    /// It broke off after something had been shown.
    Broken,
}

/// What came of a compaction.
#[derive(Clone, Debug, PartialEq)]
pub enum CompactAnswer {
    /// The `Compacted` to commit, or the `Mutated` that a hook put in its place.
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
