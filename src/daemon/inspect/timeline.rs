//! What happened in a session, in the order of time: rounds, what filled the context after each of them,
//! what was made of the history, what hooks and permissions said. A fold of the log: no clock, no disk.
//!
//! It has numbers and short heads of texts; `entry` has the texts.

use std::path::PathBuf;

use serde::Serialize;

use super::meter::Point;
use super::walk::Walk;
use super::words::head;
use epitome_config::Settings;
use epitome_provider::spent::Spent;
use epitome_session::meter::Kinds;
use epitome_thread::{
    Account, CallId, Change, Mode, ModelName, OutcomeStatus, Seq, SessionId, StopReason, ThoughtLevel,
    Thread, ToolKind, Trigger, Usage, Verdict,
};
use epitome_tokens::Ruler;

/// Rounds that are told: the newest. A page shows no more at a time, and of older ones it says how many.
pub const ROUNDS_MAX: usize = 1_000;

/// What a thread itself does not know.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What tokens are counted with.
    pub ruler: &'a Ruler,
    /// Where prices are.
    pub settings: &'a Settings,
    /// The window of the model in use, where it is known.
    pub window: Option<Window>,
}

/// A model's window, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    pub size: u64,
    /// What is kept free for the reply.
    pub reserve: u64,
}

/// All that the page shows of a session. Times are milliseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    pub session: SessionId,
    pub cwd: PathBuf,
    pub title: Option<String>,
    pub goal: Option<String>,
    /// The model that was chosen, else the one that answered last.
    pub model: Option<ModelName>,
    pub mode: Mode,
    pub thought: ThoughtLevel,
    /// Whether a turn has begun and not ended.
    pub in_turn: bool,
    /// The number that the next entry gets: where to follow from.
    pub next: u64,
    pub window: Option<Window>,
    /// Tokens that the next request takes, by what the provider said last and what came behind it.
    pub used: u64,
    /// What our own count makes of the context now, by kind.
    pub context: Kinds,
    pub spent: Usage,
    /// US dollars, of the calls whose prices are known.
    pub cost: Option<f64>,
    pub turns: Vec<Turn>,
    pub rounds: Vec<Round>,
    pub meter: Vec<Point>,
    pub layers: Vec<LayerMark>,
    pub hooks: Vec<HookMark>,
    pub calls: Vec<CallMark>,
    pub permissions: Vec<PermissionMark>,
    /// Older rounds that are not among `rounds`; what came before the first that is, layers excepted, is not
    /// told either.
    pub rounds_left_out: usize,
}

/// From a prompt, or a command, to its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turn {
    /// What began it.
    pub entry: Seq,
    pub began: u64,
    /// `None` while it runs, or where the process ended first.
    pub ended: Option<u64>,
    /// The entry that ended it.
    pub end: Option<Seq>,
    /// The beginning of what was typed.
    pub prompt: String,
    /// Whether it is a command of ours, which asks no model by itself.
    pub command: bool,
    pub stop: Option<StopReason>,
    pub usage: Usage,
}

/// A reply of the model, and the outcomes of its calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Round {
    /// The reply.
    pub entry: Seq,
    /// From 1, in the whole session.
    pub number: usize,
    /// The turn's `entry`.
    pub turn: Option<Seq>,
    /// When the request could be sent: the newest entry that it waited for.
    pub began: u64,
    /// When the reply was whole.
    pub replied: u64,
    /// When its last call had its outcome.
    pub ended: u64,
    pub model: ModelName,
    /// `None` where the provider reported nothing.
    pub usage: Option<Usage>,
    /// The part of the input that came from the provider's cache, from 0 to 1.
    pub cached: Option<f64>,
    pub cost: Option<f64>,
    /// Why the reply is shorter than the model meant it to be.
    pub cut: Option<String>,
    /// The beginning of what it said.
    pub text: String,
    pub calls: usize,
}

/// Something that changed what the model sees, other than by adding to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerMark {
    pub entry: Seq,
    pub began: u64,
    pub at: u64,
    /// `compacted`, `pruned`, `mutated` or `edited`.
    pub kind: &'static str,
    /// The sentence that `/why` says.
    pub told: String,
    /// Tokens before and after; an edit has none stored.
    pub before: Option<u64>,
    pub after: Option<u64>,
    pub trigger: Option<Trigger>,
    pub focus: Option<String>,
    /// Who wrote the summary: a model, or the hook whose history it is.
    pub by: Option<String>,
    pub usage: Option<Usage>,
    pub cost: Option<f64>,
    /// What became of the view; its `fallback` tells why there is no model's summary.
    pub account: Option<Account>,
    /// Entries that are shown shorter.
    pub masks: usize,
    /// Whether it shapes the view now.
    pub holds: bool,
    /// The layer that covers all that this one did.
    pub inside: Option<Seq>,
    pub switched: Vec<Switched>,
}

/// A layer was taken back, or brought again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Switched {
    pub entry: Seq,
    pub at: u64,
    /// `undone` or `redone`.
    pub to: &'static str,
}

/// A run of a hook that did or asked for something.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HookMark {
    pub entry: Seq,
    pub at: u64,
    /// The canonical name of the moment.
    pub event: String,
    pub hook: String,
    /// In short; empty where it asked for nothing.
    pub asked: String,
    pub verdict: Verdict,
    pub end: String,
    pub milliseconds: u64,
    pub remarks: Vec<String>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallMark {
    /// The reply that asked for it.
    pub entry: Seq,
    /// The entry of its outcome; `None` while it has none.
    pub outcome: Option<Seq>,
    pub call: CallId,
    pub name: String,
    pub title: String,
    pub kind: ToolKind,
    /// When it was asked for. Hooks, and the time in which a person thought about it, count in.
    pub began: u64,
    pub ended: Option<u64>,
    pub status: Option<OutcomeStatus>,
    /// Bytes of text that the model was given.
    pub bytes: u64,
    pub tokens: u64,
    /// Bytes of all of it, where it was cut on arrival.
    pub whole_bytes: Option<u64>,
    /// The hook that changed what it was run with.
    pub changed_by: Option<String>,
}

/// What was decided about what the agent may do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PermissionMark {
    pub entry: Seq,
    pub at: u64,
    /// `allowed` for the rest of the session, `forgotten` again, `let` or `denied` for one call, or `mode`.
    pub decision: &'static str,
    pub told: String,
}

/// The timeline of a thread.
pub fn timeline(thread: &Thread, facts: &Facts<'_>) -> Timeline {
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
    let mut walk = Walk::new(thread, facts, from);
    thread.entries().iter().for_each(|entry| walk.take(entry));
    if let (1.., Some(first)) = (rounds_left_out, walk.rounds.first()) {
        let began = first.began;
        walk.turns.retain(|turn| turn.ended.is_none_or(|ended| ended >= began));
    }
    let Spent { usage, cost } = Spent::of(facts.settings, thread);
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
        context: Kinds::of(facts.ruler, thread),
        spent: usage,
        cost,
        turns: walk.turns,
        rounds: walk.rounds,
        meter: walk.meter.points(),
        layers: walk.layers,
        hooks: walk.hooks,
        calls: walk.calls,
        permissions: walk.permissions,
        rounds_left_out,
    }
}

/// The model that was chosen for a conversation, else the one that answered last.
pub fn model_of(thread: &Thread) -> Option<&ModelName> {
    let answered = thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Replied { model, .. } => Some(model),
        _ => None,
    });
    thread.model().or(answered)
}
