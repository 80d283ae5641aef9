//! End of a round and agent stop: applies the history changes and follow-ups that hooks request.

use std::fmt::Display;

use super::Session;
use crate::NoticeSeverity;
use crate::ReplacementRefusal;
use crate::compacting::{SummaryRequest, keep_of};
use crate::core::Core;
use crate::replacement::replacement;
use crate::work::PendingResolution;
use epitome_compaction as compaction;
use epitome_hooks::event::HookEvent;
use epitome_hooks::guards::{self, Guards, refuse};
use epitome_hooks::hook::HookKind;
use epitome_hooks::hook_context::EventData;
use epitome_hooks::output::{HistoryAction, RequestedEdit, RequestedEdits, Resolution, Utterance};
use epitome_thread::{Change, Content, MessageId, Origin, Seq, StopReason, Trigger, ViewEdit, edits};
use epitome_turn::{EffectResult, HooksResult};

impl Core {
    /// Returns the change that replaces the history with these messages, or the reason why it can't be replaced.
    pub(super) fn mutation(
        &mut self,
        by: &str,
        messages: Vec<Utterance>,
        preserve_recent: usize,
        through: Option<Seq>,
    ) -> Result<Change, ReplacementRefusal> {
        let first = self.fresh_message();
        // If the messages begin with the agent, one more is prepended.
        self.log.skip_messages(messages.len());
        let (by, room) = (by.to_owned(), self.view_tokens_max());
        replacement(&self.ruler(), &self.thread, first, by, (&messages, preserve_recent), through, room)
    }
}

impl Session {
    /// Ends a round that no hook observes: the reply and the outcomes of its calls are in.
    pub(super) fn round_unseen(&mut self) {
        let due = self.compaction_is_due().then_some(Trigger::Threshold);
        let compact = self.wanted_compaction().or(due);
        self.answer_turn(EffectResult::Hooks(HooksResult { compact, ..HooksResult::default() }));
    }

    /// The event of an agent that is about to stop; hooks may give it more work.
    pub(super) fn stop_event(&self, reason: StopReason) -> EventData {
        let continuations = self.hooks.continuations().0;
        let stop_reason = match reason {
            StopReason::EndTurn => "end_turn",
            StopReason::MaxTokens => "max_tokens",
            StopReason::MaxRounds => "max_turn_requests",
            StopReason::Refusal => "refusal",
            StopReason::Cancelled => "cancelled",
            StopReason::Failed | StopReason::Interrupted => "error",
        };
        EventData::AgentStop { round: self.round(), stop_reason, continuations }
    }

    /// Returns `Hook` if a resident hook has requested a compaction since the last safe point.
    fn wanted_compaction(&mut self) -> Option<Trigger> {
        let hook = self.hooks.take_wanted_compaction()?;
        if self.is_compacted_since_reply() {
            let text =
                format!("{hook}: not compacted, because that was already done since the last model call.");
            self.core.notify(NoticeSeverity::Info, text);
            return None;
        }
        Some(Trigger::Hook)
    }

    pub(super) fn halted(&mut self, hook: &str, reason: &str) -> HooksResult {
        self.drop_compaction();
        let text = match reason.trim() {
            "" => format!("The hook {hook} ended this turn."),
            reason => format!("The hook {hook} ended this turn: {reason}"),
        };
        HooksResult { commits: vec![self.core.note(text)], halt: true, ..HooksResult::default() }
    }

    /// Whether the configured share of the window is used, and a compaction would help.
    fn compaction_is_due(&mut self) -> bool {
        self.compactor.is_due(&mut self.core) && !self.is_compacted_since_reply()
    }

    fn guards(&self) -> Guards {
        let (continuations, last_follow_up) = self.hooks.continuations();
        let recipe = self.work.as_ref().and_then(|work| work.run.recipe.as_ref());
        let continuations_max = self.core.settings.hooks.max_continuations;
        let hooks = self.hooks.found().hooks.iter();
        let claude = hooks.filter(|hook| matches!(hook.kind, HookKind::Claude { .. }));
        Guards {
            continuations,
            continuations_max,
            claude: claude.map(|hook| hook.name.clone()).collect(),
            claude_continuations_max: guards::claude_continuations(
                &self.core.workspace.environment,
                continuations_max,
            ),
            last_follow_up: last_follow_up.cloned(),
            compacted_since_call: self.is_compacted_since_reply(),
            auto_compact_paused: self.compactor.is_paused(&self.core),
            depth: self.core.lineage.depth,
            running_recipe: recipe.map(|recipe| recipe.id.clone()),
        }
    }

    /// All hooks of a round's end or of the agent's stop have answered.
    pub(super) fn round_resolved(&mut self, event: HookEvent, last: bool, mut resolution: Resolution) {
        guards::enforce(&mut resolution, &self.guards());
        if let Some((hook, reason)) = resolution.halt.take() {
            let mut answer = self.halted(&hook, &reason);
            let trail = self.record(event, &mut resolution);
            answer.commits.splice(0..0, trail);
            return self.answer_turn(EffectResult::Hooks(answer));
        }
        let mut pending = PendingResolution { event, last, resolution, answer: HooksResult::default() };
        let made_for = self.core.thread.view().revision();
        self.edit(&mut pending, made_for);
        let by = pending.resolution.action_by.clone();
        match std::mem::take(&mut pending.resolution.action) {
            HistoryAction::None => pending.answer.compact = self.wanted_compaction(),
            HistoryAction::Mutate { messages, preserve_recent, target: Some(target) }
                if target != self.core.id().0 && !self.core.lineage.is_child() =>
            {
                return self.mutate_elsewhere(pending, messages, preserve_recent, target);
            }
            HistoryAction::Mutate { messages, preserve_recent, target } => {
                self.mutate(&mut pending, &by, messages, preserve_recent, target);
            }
            HistoryAction::Swap { summary, keep } => {
                return self.swap_text(pending, &summary, keep);
            }
            // Check the threshold again: a compaction just before may have freed little.
            HistoryAction::Compact { threshold: true, .. } if !self.compaction_is_due() => {}
            HistoryAction::Compact { keep, threshold } => {
                pending.answer.compact = Some(if threshold { Trigger::Threshold } else { Trigger::Hook });
                let (keep, by_recipe) = (Some(keep_of(keep)), !threshold);
                self.compactor.summarise_as(SummaryRequest { keep, by_recipe, ..SummaryRequest::default() });
            }
            HistoryAction::Callback(callback) => return self.call_back(pending, callback),
        }
        self.settle_round(pending);
    }

    /// Settles the round without its action, which is refused.
    pub(super) fn refuse_action(&mut self, mut pending: PendingResolution, why: impl Display) {
        let by = pending.resolution.action_by.clone();
        refuse(&mut pending.resolution, &by, why.to_string());
        self.settle_round(pending);
    }

    /// Finishes the round's end: commits follow-ups, context and the hooks' trail, and answers the turn.
    pub(super) fn settle_round(&mut self, pending: PendingResolution) {
        let PendingResolution { event, last, mut resolution, mut answer } = pending;
        let continues = last && guards::continues(&resolution);
        let said = guards::follow_up_text(&resolution);
        let follow_ups = std::mem::take(&mut resolution.follow_ups);
        if continues {
            answer.go_on = true;
            self.hooks.count_continuation(said);
        }
        for (hook, utterance) in follow_ups {
            let message = self.core.message(utterance.text);
            answer.commits.push(Change::Said { message, origin: Origin::Hook { hook } });
        }
        for (by, text) in std::mem::take(&mut resolution.context) {
            let context = self.core.context(by, text);
            answer.commits.push(context);
        }
        // A compaction by command that these hooks have seen is not made.
        if answer.replaced || answer.swap.is_some() {
            self.drop_compaction();
        }
        let trail = self.record(event, &mut resolution);
        answer.commits.splice(0..0, trail);
        self.answer_turn(EffectResult::Hooks(answer));
    }

    // ── Edits and mutations ────────────────────────────────────────────────────────────────────

    /// Applies each hook's edits as one change, all or none. `made_for` is the view's revision in the hooks' payload.
    pub(super) fn edit(&mut self, pending: &mut PendingResolution, made_for: Seq) {
        if pending.resolution.edits.is_empty() {
            return;
        }
        let mut edited = self.core.thread.clone();
        for (by, RequestedEdits { revision, edits }) in std::mem::take(&mut pending.resolution.edits) {
            let edits: Vec<ViewEdit> = edits.into_iter().map(|edit| self.wanted_edit(edit)).collect();
            // Another hook's edits at the same moment don't make these stale.
            let revision = match revision {
                Some(revision) if revision != made_for => revision,
                Some(_) | None => edited.view().revision(),
            };
            let first = MessageId(self.core.fresh_message().0 + 1);
            let checked = edits::check(&edited, revision, first, &edits)
                .map_err(|why| why.to_string())
                .and_then(|edits| {
                    self.core.log.skip_messages(edits.len());
                    let pins = edits.iter().any(|edit| matches!(edit, ViewEdit::Pin { .. }));
                    let change = Change::Edited { by: by.clone(), edits };
                    let mut trial = edited.clone();
                    trial.apply_trial(change.clone());
                    let most = self.core.pin_tokens_max();
                    match pins.then(|| compaction::pins_too_large(&self.core.ruler(), &trial, most)).flatten()
                    {
                        None => Ok((change, trial)),
                        Some(why) => Err(why),
                    }
                });
            match checked {
                Ok((change, trial)) => {
                    edited = trial;
                    pending.answer.commits.push(change);
                }
                Err(why) => refuse(&mut pending.resolution, &by, why),
            }
        }
    }

    fn wanted_edit(&mut self, edit: RequestedEdit) -> ViewEdit {
        match edit {
            RequestedEdit::Pin(at) => ViewEdit::Pin { at },
            RequestedEdit::Unpin(at) => ViewEdit::Unpin { at },
            RequestedEdit::Mask(at, note) => ViewEdit::Mask { at, note },
            RequestedEdit::Drop(at) => ViewEdit::Drop { at },
            RequestedEdit::Replace(at, text) => {
                ViewEdit::Replace { at, content: vec![Content::Text { text }] }
            }
            RequestedEdit::Append(Utterance { role, text }) => {
                ViewEdit::Append { role, message: self.core.message(text) }
            }
        }
    }

    fn mutate(
        &mut self,
        pending: &mut PendingResolution,
        by: &str,
        messages: Vec<Utterance>,
        preserve_recent: usize,
        target: Option<String>,
    ) {
        let made = match target.filter(|target| *target != self.core.id().0) {
            Some(target) => self.core.hand_to_parent(by, messages, preserve_recent, &target),
            None if self.core.lineage.depth > 0 => Err(ReplacementRefusal::InCallback),
            None => self.core.mutation(by, messages, preserve_recent, None).map(|change| {
                pending.answer.commits.push(change);
                pending.answer.replaced = true;
            }),
        };
        if let Err(why) = made {
            refuse(&mut pending.resolution, by, why.to_string());
        }
    }
}
