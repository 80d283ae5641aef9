//! The requests of a turn to its session, and the answers.

use super::repeats::Stuck;
use epitome_thread::{CallId, Change, Seq, StopReason, ToolOutcome, Trigger};

/// The next step of a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum NextStep {
    /// Journal, apply and announce this change, then call [`Turn::next`](super::Turn::next) again.
    Commit(Box<Change>),
    /// Start this work and call `next` again; report the result later with [`Turn::handle`](super::Turn::handle).
    Run(Effect),
    /// Nothing to do until an answer arrives.
    Wait,
    /// The turn is over, and its `TurnEnded` is committed.
    End(StopReason),
}

/// Work that a turn needs done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Run hooks; if none are configured, answer immediately.
    RunHooks(HookPoint),
    /// Send the thread's view to the model.
    CallModel,
    /// Decide whether this call may run. Requested for one call at a time.
    Permission(CallId),
    RunTool(CallId),
    /// A round ended and nothing else shortens the view: prune old tool outcomes if that pays for its cost. `edited`
    /// if hooks just edited the view, which is enough for one round.
    Ease {
        edited: bool,
    },
    /// Decide which entries a compaction replaces.
    PlanCompaction(Trigger),
    /// Get the summary for the plan: from a hook or from a model.
    Summarise,
    /// Compose the change from the plan and the summary.
    Compose,
    /// Clean up a compaction that fails for this reason.
    AbandonCompaction(String),
    /// The turn ends because it repeats itself: make a note of it.
    Report(Stuck),
}

/// The points at which a turn waits for hooks.
#[derive(Clone, Debug, PartialEq)]
pub enum HookPoint {
    /// The session starts.
    SessionStart,
    /// This prompt is about to enter the view.
    Prompt(Box<Change>),
    /// Requested for all calls of a reply at once.
    BeforeTool(CallId),
    /// A call has this outcome, which only hooks see before it is committed.
    AfterTool(Box<ToolOutcome>),
    /// A reply and the outcomes of its calls are committed. `last` if the agent would stop here.
    RoundEnd { last: bool },
    /// The agent is about to stop.
    Stop(StopReason),
    /// A compaction is planned.
    PreCompact,
    /// A compaction is composed and still fits the view.
    Composed(Box<Change>),
    /// A layer that shortens the view was committed.
    PostCompact,
    /// The session starts again on a summary.
    Restart,
}

/// The result of an [`Effect`]. An answer that the turn does not wait for is ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum EffectResult {
    /// To `SessionStart` and `Restart`: the changes that hooks add to the view.
    Started(Vec<Change>),
    /// To `Prompt`: the changes to commit, including the prompt's `Said` if it enters the view.
    Greeted {
        commits: Vec<Change>,
        enters: bool,
    },
    Model(ModelResult),
    /// To `BeforeTool`: hooks let the call continue to the permission check.
    ToolSeen(CallId, Vec<Change>),
    Permission(CallId, Permit),
    /// The outcome of a call, from the tool or from a hook that stopped it.
    Ran(Box<ToolOutcome>),
    /// To `AfterTool`: the outcome as hooks left it. Also for a running call that hooks don't see.
    Tool(CallId, Box<ToolOutcome>),
    /// To `RoundEnd`, `Stop` and `PostCompact`.
    Hooks(HooksResult),
    /// To `Ease`: the cut to commit, if any.
    Eased(Option<Box<Change>>),
    /// To `PlanCompaction`: the plan is made, for this revision of the view.
    Planned(Seq),
    /// To `PreCompact`: the compaction continues, with another plan if hooks edited the history.
    Instructed {
        edited: bool,
    },
    Summarised,
    Composed(Box<Change>),
    /// The end of a compaction, at any of its stages.
    Compacted(CompactionResult),
    /// To `Report`: the `Noted` to commit.
    Reported(Box<Change>),
}

/// Requests of hooks at the end of a round, when the agent is about to stop, or after a compaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HooksResult {
    /// Mutations, follow-ups and the trail of the hook runs.
    pub commits: Vec<Change>,
    /// Call the model again.
    pub go_on: bool,
    /// Compact first. Ignored if the view was already compacted since the last reply.
    pub compact: Option<Trigger>,
    /// End the turn here; overrides every other request.
    pub halt: bool,
    /// The history was replaced, so a pending summary is dropped.
    pub replaced: bool,
    /// A `Compacted` to commit after `commits`: the text of a recipe that replaces the history.
    pub swap: Option<Box<Change>>,
}

/// The result of a model call.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelResult {
    /// A reply, as the `Replied` to commit; for an empty one, a `Noted` that reports it.
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
pub enum CompactionResult {
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
