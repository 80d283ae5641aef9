//! What happened in a session, in the order of time: rounds, what filled the context after each of them,
//! what was made of the history, what hooks and permissions said. A fold of the log: no clock, no disk.
//!
//! It has numbers and short heads of texts; `entry` has the texts.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Serialize;

use super::meter::{Meter, Point};
use super::words::head;
use crate::config::Settings;
use crate::provider::spent::{Spent, cost_of_change};
use crate::session::meter::Kinds;
use crate::session::why;
use crate::thread::text as lines;
use crate::thread::{
    Account, CallId, Change, Entry, Mode, ModelName, Origin, OutcomeStatus, Seq, SessionId, StopReason,
    ThoughtLevel, Thread, ToolKind, Trigger, Usage, Verdict,
};
use crate::tokens::Ruler;

/// Rounds that are told: the newest. A page shows no more at a time, and of older ones it says how many.
pub const ROUNDS_MAX: usize = 1_000;

/// Remarks of a hook's run that are told; the entry has all.
const REMARKS_MAX: usize = 4;

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

/// The log on its way.
struct Walk<'a> {
    thread: &'a Thread,
    facts: &'a Facts<'a>,
    /// What is before it is passed over, layers excepted.
    from: Seq,
    meter: Meter<'a>,
    /// When the newest entry came that a request waits for.
    ready: u64,
    /// Whether a turn runs, by the entries so far, and how it began.
    turn: Option<Seq>,
    replies: usize,
    /// Where each call is among `calls`, and which of them have no outcome.
    places: HashMap<CallId, usize>,
    turns: Vec<Turn>,
    rounds: Vec<Round>,
    layers: Vec<LayerMark>,
    hooks: Vec<HookMark>,
    calls: Vec<CallMark>,
    permissions: Vec<PermissionMark>,
}

impl<'a> Walk<'a> {
    fn new(thread: &'a Thread, facts: &'a Facts<'a>, from: Seq) -> Walk<'a> {
        Walk {
            thread,
            facts,
            from,
            meter: Meter::new(facts.ruler, from),
            ready: thread.entries().first().map_or(0, |entry| entry.at),
            turn: None,
            replies: 0,
            places: HashMap::new(),
            turns: Vec::new(),
            rounds: Vec::new(),
            layers: Vec::new(),
            hooks: Vec::new(),
            calls: Vec::new(),
            permissions: Vec::new(),
        }
    }

    fn take(&mut self, entry: &std::sync::Arc<Entry>) {
        self.meter.take(entry);
        self.take_turn(entry);
        match &entry.change {
            Change::Replied { .. } => self.take_reply(entry),
            Change::ToolFinished { .. } => self.take_outcome(entry),
            Change::Undone { entry: layer } => self.switch(*layer, entry, "undone"),
            Change::Redone { entry: layer } => self.switch(*layer, entry, "redone"),
            change if change.is_layer() => self.take_layer(entry),
            _ if entry.seq < self.from => {}
            Change::CallChanged { call, by, card, .. } => {
                if let Some(mark) = self.places.get(call).and_then(|at| self.calls.get_mut(*at)) {
                    mark.changed_by = Some(by.clone());
                    mark.title = head(&lines::title(&mark.name, card));
                }
            }
            Change::Hooked { event, runs } => {
                self.hooks.extend(runs.iter().map(|run| HookMark {
                    entry: entry.seq,
                    at: entry.at,
                    event: event.clone(),
                    hook: run.hook.clone(),
                    asked: head(&run.asked),
                    verdict: run.verdict,
                    end: head(&run.end),
                    milliseconds: run.milliseconds,
                    remarks: run.remarks.iter().take(REMARKS_MAX).map(|remark| head(remark)).collect(),
                }));
            }
            Change::Allowed { rule } => self.permit(entry, "allowed", head(&rule.words())),
            Change::Forgotten { rule } => self.permit(entry, "forgotten", head(&rule.words())),
            Change::ModeChosen { mode } => self.permit(entry, "mode", mode.name().to_owned()),
            _ => {}
        }
        if is_waited_for(&entry.change) {
            self.ready = entry.at;
        }
    }

    fn permit(&mut self, entry: &Entry, decision: &'static str, told: String) {
        self.permissions.push(PermissionMark { entry: entry.seq, at: entry.at, decision, told });
    }

    fn take_turn(&mut self, entry: &Entry) {
        let began = match &entry.change {
            Change::Said { message, origin } => match origin {
                Origin::Person | Origin::Queue { .. } => Some((head(&message.text()), false)),
                Origin::Recipe { typed, .. } => Some((head(typed), false)),
                Origin::Hook { .. } | Origin::Context { .. } | Origin::Instructions { .. } => None,
            },
            Change::Commanded { typed, .. } => Some((head(typed), true)),
            Change::Withheld { message, .. } => Some((head(&message.text()), false)),
            Change::TurnEnded { reason, usage, .. } => {
                self.turn = None;
                if let Some(turn) = self.turns.last_mut().filter(|turn| turn.ended.is_none()) {
                    (turn.ended, turn.end) = (Some(entry.at), Some(entry.seq));
                    (turn.stop, turn.usage) = (Some(*reason), *usage);
                }
                None
            }
            _ => None,
        };
        let Some((prompt, command)) = began.filter(|_| self.turn.is_none()) else { return };
        self.turn = Some(entry.seq);
        self.turns.push(Turn {
            entry: entry.seq,
            began: entry.at,
            ended: None,
            end: None,
            prompt,
            command,
            stop: None,
            usage: Usage::default(),
        });
    }

    fn take_reply(&mut self, entry: &Entry) {
        let Change::Replied { message, model, usage, cut } = &entry.change else { return };
        self.replies += 1;
        if entry.seq < self.from {
            return;
        }
        for call in message.calls() {
            self.places.insert(call.id.clone(), self.calls.len());
            self.calls.push(CallMark {
                entry: entry.seq,
                outcome: None,
                call: call.id.clone(),
                name: head(&call.name),
                title: head(&lines::call_title(call)),
                kind: call.card.kind,
                began: entry.at,
                ended: None,
                status: None,
                bytes: 0,
                tokens: 0,
                whole_bytes: None,
                changed_by: None,
            });
        }
        self.rounds.push(Round {
            entry: entry.seq,
            number: self.replies,
            turn: self.turn,
            began: self.ready.min(entry.at),
            replied: entry.at,
            ended: entry.at,
            model: model.clone(),
            usage: *usage,
            cached: usage.as_ref().and_then(cached_share),
            cost: cost_of_change(self.facts.settings, &entry.change),
            cut: cut.as_ref().map(|cut| head(&lines::cut_words(cut))),
            text: head(&message.text()),
            calls: message.calls().count(),
        });
    }

    fn take_outcome(&mut self, entry: &Entry) {
        let Change::ToolFinished { outcome } = &entry.change else { return };
        let Some(mark) = self.places.get(&outcome.call).and_then(|at| self.calls.get_mut(*at)) else {
            return;
        };
        let text = outcome.model_text();
        mark.outcome = Some(entry.seq);
        mark.ended = Some(entry.at);
        mark.status = Some(outcome.status);
        mark.bytes = text.len() as u64;
        mark.whole_bytes = outcome.whole.as_ref().map(|whole| whole.len() as u64);
        mark.tokens = self.facts.ruler.entry(entry);
        let (reply, title) = (mark.entry, mark.title.clone());
        if let Some(round) = self.rounds.iter_mut().rev().find(|round| round.entry == reply) {
            round.ended = round.ended.max(entry.at);
        }
        match &outcome.decided {
            Some(decided) => {
                let (decision, why) = match decided.allowed {
                    true => ("let", String::new()),
                    false => ("denied", format!(": {text}")),
                };
                self.permit(entry, decision, head(&format!("{title}: {decided}{why}")));
            }
            // By an older build, whose log does not say who decided.
            None if outcome.status == OutcomeStatus::Denied => {
                self.permit(entry, "denied", head(&format!("{title}: {text}")));
            }
            None => {}
        }
    }

    fn take_layer(&mut self, entry: &Entry) {
        let layer = self.thread.layer(entry.seq);
        let mut mark = LayerMark {
            entry: entry.seq,
            began: self.ready.min(entry.at),
            at: entry.at,
            kind: entry.change.kind(),
            told: why::what_was_done(self.thread, &entry.change).unwrap_or_default(),
            before: None,
            after: None,
            trigger: None,
            focus: None,
            by: None,
            usage: None,
            cost: cost_of_change(self.facts.settings, &entry.change),
            account: None,
            masks: 0,
            holds: layer.is_some_and(|layer| layer.holds),
            inside: layer.and_then(|layer| layer.inside),
            switched: Vec::new(),
        };
        match &entry.change {
            Change::Compacted {
                trigger,
                focus,
                tokens_before,
                tokens_after,
                model,
                usage,
                masks,
                account,
                ..
            } => {
                (mark.before, mark.after) = (Some(*tokens_before), Some(*tokens_after));
                (mark.trigger, mark.usage, mark.masks) = (Some(*trigger), *usage, masks.len());
                mark.focus = focus.as_deref().map(head);
                mark.by = model.as_ref().map(|model| model.0.clone());
                mark.account = Some(account.clone());
            }
            Change::Pruned { masks, trigger, tokens_before, tokens_after } => {
                (mark.before, mark.after) = (Some(*tokens_before), Some(*tokens_after));
                (mark.trigger, mark.masks) = (Some(*trigger), masks.len());
            }
            Change::Mutated { by, tokens_before, tokens_after, .. } => {
                (mark.before, mark.after) = (Some(*tokens_before), Some(*tokens_after));
                mark.by = Some(by.clone());
            }
            Change::Edited { by, .. } => mark.by = Some(by.clone()),
            // No other change is a layer.
            _ => return,
        }
        self.layers.push(mark);
    }

    fn switch(&mut self, layer: Seq, entry: &Entry, to: &'static str) {
        if let Some(mark) = self.layers.iter_mut().find(|mark| mark.entry == layer) {
            mark.switched.push(Switched { entry: entry.seq, at: entry.at, to });
        }
    }
}

/// Whether a request may have waited for this: what comes while a reply streams is none of it.
fn is_waited_for(change: &Change) -> bool {
    match change {
        Change::Hooked { event, .. } => event != "service",
        Change::Opened { .. }
        | Change::Framed { .. }
        | Change::Said { .. }
        | Change::Commanded { .. }
        | Change::Replied { .. }
        | Change::ToolFinished { .. }
        | Change::Compacted { .. }
        | Change::Pruned { .. }
        | Change::Mutated { .. }
        | Change::Edited { .. }
        | Change::Rewound { .. }
        | Change::FilesRewound { .. }
        | Change::Forked { .. }
        | Change::Undone { .. }
        | Change::Redone { .. }
        | Change::ThinkingDropped { .. } => true,
        Change::Queued { .. }
        | Change::CallChanged { .. }
        | Change::Withheld { .. }
        | Change::GoalSet { .. }
        | Change::Noted { .. }
        | Change::ModelChosen { .. }
        | Change::ModeChosen { .. }
        | Change::ThoughtChosen { .. }
        | Change::Titled { .. }
        | Change::Planned { .. }
        | Change::Allowed { .. }
        | Change::Spent { .. }
        | Change::Forgotten { .. }
        | Change::TurnEnded { .. } => false,
    }
}

fn cached_share(usage: &Usage) -> Option<f64> {
    (usage.input > 0).then(|| usage.cache_read.min(usage.input) as f64 / usage.input as f64)
}
