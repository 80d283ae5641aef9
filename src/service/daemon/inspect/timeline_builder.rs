//! Walks through a log in order and collects what the page shows.

use std::collections::HashMap;

use super::meter::Meter;
use super::timeline::{
    CallMark, HookMark, LayerMark, PermissionMark, Switched, TimelineInputs, TimelineRound, TimelineTurn,
    head,
};
use epitome_provider::spent::cost_of_change;
use epitome_session::why;
use epitome_thread::text as lines;
use epitome_thread::{CallId, Change, ChangeGroup, Entry, Origin, OutcomeStatus, Seq, Thread, Usage};

/// Remarks reported per hook run; the entry has all of them.
const REMARKS_MAX: usize = 4;

pub(super) struct TimelineBuilder<'a> {
    thread: &'a Thread,
    facts: &'a TimelineInputs<'a>,
    /// Entries before this one are skipped, except layers.
    from: Seq,
    pub(super) meter: Meter<'a>,
    /// Time of the newest entry that a request depends on.
    ready: u64,
    /// The first entry of the current turn, if one is in progress.
    turn: Option<Seq>,
    replies: usize,
    /// Index of each call in `calls`.
    places: HashMap<CallId, usize>,
    pub(super) turns: Vec<TimelineTurn>,
    pub(super) rounds: Vec<TimelineRound>,
    pub(super) layers: Vec<LayerMark>,
    pub(super) hooks: Vec<HookMark>,
    pub(super) calls: Vec<CallMark>,
    pub(super) permissions: Vec<PermissionMark>,
}

impl<'a> TimelineBuilder<'a> {
    pub(super) fn new(thread: &'a Thread, facts: &'a TimelineInputs<'a>, from: Seq) -> TimelineBuilder<'a> {
        TimelineBuilder {
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

    pub(super) fn take(&mut self, entry: &std::sync::Arc<Entry>) {
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

    fn permit(&mut self, entry: &Entry, decision: &'static str, description: String) {
        self.permissions.push(PermissionMark { entry: entry.seq, at: entry.at, decision, description });
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
        self.turns.push(TimelineTurn {
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
        self.rounds.push(TimelineRound {
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
            // Logs of older builds don't record who decided.
            None if outcome.status == OutcomeStatus::Denied => {
                self.permit(entry, "denied", head(&format!("{title}: {text}")));
            }
            None => {}
        }
    }

    fn take_layer(&mut self, entry: &Entry) {
        let layer = self.thread.layer(entry.seq);
        let sizes = entry.change.context_sizes();
        let mut mark = LayerMark {
            entry: entry.seq,
            began: self.ready.min(entry.at),
            at: entry.at,
            kind: entry.change.kind(),
            description: why::what_was_done(self.thread, &entry.change).unwrap_or_default(),
            before: sizes.map(|sizes| sizes.before),
            after: sizes.map(|sizes| sizes.after),
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
            Change::Compacted { trigger, focus, model, usage, masks, account, .. } => {
                (mark.trigger, mark.usage, mark.masks) = (Some(*trigger), *usage, masks.len());
                mark.focus = focus.as_deref().map(head);
                mark.by = model.as_ref().map(|model| model.0.clone());
                mark.account = Some(account.clone());
            }
            Change::Pruned { masks, trigger, .. } => {
                (mark.trigger, mark.masks) = (Some(*trigger), masks.len());
            }
            Change::Mutated { by, .. } | Change::Edited { by, .. } => mark.by = Some(by.clone()),
            // A rewind is a layer, but is not shown as one.
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

/// Whether a request may have depended on this entry; entries that arrive while a reply streams don't count.
fn is_waited_for(change: &Change) -> bool {
    match change {
        Change::Hooked { event, .. } => event != "service",
        Change::Queued { .. } | Change::Withheld { .. } | Change::TurnEnded { .. } => false,
        Change::FilesRewound { .. } => true,
        change => match change.group() {
            ChangeGroup::Message | ChangeGroup::View | ChangeGroup::Lifecycle => true,
            ChangeGroup::Setting | ChangeGroup::Note => false,
        },
    }
}

fn cached_share(usage: &Usage) -> Option<f64> {
    (usage.input > 0).then(|| usage.cache_read.min(usage.input) as f64 / usage.input as f64)
}
