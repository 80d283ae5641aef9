//! The history of a session in chronological order: rounds, the context after each of them, rewrites of the
//! history, hooks and permissions. A fold over the log, without clock or disk.
//!
//! It contains numbers and short excerpts; `entry` returns complete texts.

use std::path::PathBuf;

use serde::Serialize;

use super::meter::ContextPoint;
use super::timeline_builder::TimelineBuilder;
use epitome_config::Settings;
use epitome_provider::spent::Spent;
use epitome_session::meter::Kinds;
use epitome_thread::text::rounded_dollars;
use epitome_thread::visible::one_line;
use epitome_thread::{
    CallId, Change, CompactionStats, HookRunResult, Mode, ModelName, OutcomeStatus, Seq, SessionId,
    StopReason, ThoughtLevel, Thread, ToolKind, Trigger, Usage,
};
use epitome_tokens::Ruler;

/// Most rounds reported, newest first. The page shows no more at a time; the number of older ones is
/// reported.
pub const ROUNDS_MAX: usize = 1_000;

/// Most characters of an excerpt: two lines on the page. The entry has the complete text.
const HEAD_CHARS_MAX: usize = 240;

/// Returns the beginning of a text, on one line.
pub(super) fn head(text: &str) -> String {
    one_line(text, HEAD_CHARS_MAX)
}

/// Inputs that the thread itself does not contain.
#[derive(Clone, Copy, Debug)]
pub struct TimelineInputs<'a> {
    /// Counts tokens.
    pub ruler: &'a Ruler,
    /// Source of prices.
    pub settings: &'a Settings,
    /// The context window of the current model, if known.
    pub window: Option<ContextWindow>,
}

/// A model's context window, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ContextWindow {
    pub size: u64,
    /// Tokens reserved for the reply.
    pub reserve: u64,
}

/// Everything that the page shows of a session. Times are milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    pub session: SessionId,
    pub cwd: PathBuf,
    pub title: Option<String>,
    pub goal: Option<String>,
    /// The model chosen for the session, otherwise the one that answered last.
    pub model: Option<ModelName>,
    pub mode: Mode,
    pub thought: ThoughtLevel,
    /// Whether a turn is in progress.
    pub in_turn: bool,
    /// The number that the next entry will get; live events start there.
    pub next: u64,
    pub window: Option<ContextWindow>,
    /// Tokens of the next request: the provider's last report plus an estimate of what was added since.
    pub used: u64,
    /// Our own token counts of the current context, by kind.
    pub context: Kinds,
    pub spent: Usage,
    /// US dollars, for the calls with known prices.
    pub cost: Option<f64>,
    pub turns: Vec<TimelineTurn>,
    pub rounds: Vec<TimelineRound>,
    pub meter: Vec<ContextPoint>,
    pub layers: Vec<LayerMark>,
    pub hooks: Vec<HookMark>,
    pub calls: Vec<CallMark>,
    pub permissions: Vec<PermissionMark>,
    /// Number of older rounds not included in `rounds`. Other items from before the first included round are
    /// left out as well, except layers.
    pub rounds_left_out: usize,
}

/// A prompt or command, up to the end of its turn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineTurn {
    /// The entry that began it.
    pub entry: Seq,
    pub began: u64,
    /// `None` while it runs, or if the process ended first.
    pub ended: Option<u64>,
    /// The entry that ended it.
    pub end: Option<Seq>,
    /// The beginning of the typed text.
    pub prompt: String,
    /// Whether it is a slash command handled locally, which does not necessarily call a model.
    pub command: bool,
    pub stop: Option<StopReason>,
    pub usage: Usage,
}

/// A model's reply and the results of its tool calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineRound {
    /// The entry of the reply.
    pub entry: Seq,
    /// Counted from 1 over the complete session.
    pub number: usize,
    /// `entry` of its turn.
    pub turn: Option<Seq>,
    /// When the request could be sent: the time of the newest entry that it depended on.
    pub began: u64,
    /// When the reply was complete.
    pub replied: u64,
    /// When the last result of its calls arrived.
    pub ended: u64,
    pub model: ModelName,
    /// `None` if the provider reported nothing.
    pub usage: Option<Usage>,
    /// Share of the input that was read from the provider's cache, from 0 to 1.
    pub cached: Option<f64>,
    pub cost: Option<f64>,
    /// Why the reply was cut short.
    pub cut: Option<String>,
    /// The beginning of its text.
    pub text: String,
    pub calls: usize,
}

/// A change to what the model sees, other than an addition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerMark {
    pub entry: Seq,
    pub began: u64,
    pub at: u64,
    /// `compacted`, `pruned`, `mutated` or `edited`.
    pub kind: &'static str,
    /// The description that `/why` gives.
    #[serde(rename = "told")]
    pub description: String,
    /// Tokens before and after; not stored for an edit.
    pub before: Option<u64>,
    pub after: Option<u64>,
    pub trigger: Option<Trigger>,
    pub focus: Option<String>,
    /// The author of the summary: a model, or the hook that replaced the history.
    pub by: Option<String>,
    pub usage: Option<Usage>,
    pub cost: Option<f64>,
    /// The effect of the compaction on the view; its `fallback` says why there is no summary by a model.
    pub account: Option<CompactionStats>,
    /// Number of masked entries, which are shown shortened.
    pub masks: usize,
    /// Whether it currently shapes the view.
    pub holds: bool,
    /// The layer that covers everything this one covered.
    pub inside: Option<Seq>,
    pub switched: Vec<Switched>,
}

/// An undo or redo of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Switched {
    pub entry: Seq,
    pub at: u64,
    /// `undone` or `redone`.
    pub to: &'static str,
}

/// A hook run that did or requested something.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HookMark {
    pub entry: Seq,
    pub at: u64,
    /// The canonical name of the hook event.
    pub event: String,
    pub hook: String,
    /// A short text of the hook's request; empty if there is none.
    pub asked: String,
    pub verdict: HookRunResult,
    pub end: String,
    pub milliseconds: u64,
    pub remarks: Vec<String>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallMark {
    /// The entry of the reply that requested it.
    pub entry: Seq,
    /// The entry of its result; `None` while it runs.
    pub outcome: Option<Seq>,
    pub call: CallId,
    pub name: String,
    pub title: String,
    pub kind: ToolKind,
    /// When it was requested. The duration includes hooks and the wait for the user's permission.
    pub began: u64,
    pub ended: Option<u64>,
    pub status: Option<OutcomeStatus>,
    /// Bytes of text that the model was given.
    pub bytes: u64,
    pub tokens: u64,
    /// Bytes of the complete output, if it was truncated on arrival.
    pub whole_bytes: Option<u64>,
    /// The hook that changed its input.
    pub changed_by: Option<String>,
}

/// A decision about what the agent may do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PermissionMark {
    pub entry: Seq,
    pub at: u64,
    /// `allowed` or `forgotten` for a rule of the session, `let` or `denied` for one call, or `mode`.
    pub decision: &'static str,
    #[serde(rename = "told")]
    pub description: String,
}

/// Builds the timeline of a thread.
pub fn timeline(thread: &Thread, facts: &TimelineInputs<'_>) -> Timeline {
    let replies: Vec<Seq> = thread
        .entries()
        .iter()
        .filter(|entry| matches!(entry.change, Change::Replied { .. }))
        .map(|entry| entry.seq)
        .collect();
    let rounds_left_out = replies.len().saturating_sub(ROUNDS_MAX);
    let from = match rounds_left_out {
        0 => Seq(0),
        left_out => replies[left_out],
    };
    let mut builder = TimelineBuilder::new(thread, facts, from);
    thread.entries().iter().for_each(|entry| builder.take(entry));
    if let (1.., Some(first)) = (rounds_left_out, builder.rounds.first()) {
        let began = first.began;
        builder.turns.retain(|turn| turn.ended.is_none_or(|ended| ended >= began));
    }
    let Spent { usage, cost } = Spent::total(facts.settings, thread);
    Timeline {
        session: thread.session().clone(),
        cwd: thread.cwd().to_path_buf(),
        title: thread.title().map(str::to_owned),
        goal: thread.goal().map(head),
        model: model_of(thread).cloned(),
        mode: thread.mode(),
        thought: thread.thought(),
        in_turn: thread.in_turn(),
        next: thread.next_seq().0,
        window: facts.window,
        used: facts.ruler.in_context(thread),
        context: Kinds::measure(facts.ruler, thread),
        spent: usage,
        cost: cost.map(rounded_dollars),
        turns: builder.turns,
        rounds: builder.rounds,
        meter: builder.meter.points(),
        layers: builder.layers,
        hooks: builder.hooks,
        calls: builder.calls,
        permissions: builder.permissions,
        rounds_left_out,
    }
}

/// The model chosen for the conversation, otherwise the one that answered last.
pub fn model_of(thread: &Thread) -> Option<&ModelName> {
    let answered = thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Replied { model, .. } => Some(model),
        _ => None,
    });
    thread.model().or(answered)
}
