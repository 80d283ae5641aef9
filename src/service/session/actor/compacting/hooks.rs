//! Hooks around a compaction: before it, when the recipe that wrote its summary stops, and after it.

use super::super::Session;
use crate::compacting::{SummaryRequest, shown};
use crate::work::PendingResolution;
use crate::{CompactionState, NoticeSeverity};
use epitome_hooks::event::HookEvent;
use epitome_hooks::guards::refuse;
use epitome_hooks::hook_context::{CompactTrigger, EventData, HookRound};
use epitome_hooks::output::{HistoryAction, Resolution};
use epitome_thread::{Change, HookRun, HookRunResult, Trigger};
use epitome_turn::{CompactionResult, EffectResult, HookPoint, HooksResult};

impl Session {
    // ── Hooks before it ────────────────────────────────────────────────────────────────────────

    /// The event of a planned compaction. Hooks may replace the instruction, write the summary or refuse.
    pub(in crate::actor) fn compaction_event(&mut self) -> Option<EventData> {
        let used = self.core.tokens_in_context();
        let (plan, requested) = (self.compactor.plan()?, self.compactor.requested());
        let (why, view) = (plan.trigger, self.core.thread.view());
        let preserve_count = view.kept_after(plan.through).len();
        Some(EventData::PreCompact {
            trigger: match why == Trigger::Manual {
                true => CompactTrigger::Manual,
                false => CompactTrigger::Auto,
            },
            reason: match why {
                Trigger::Manual => "command",
                Trigger::Overflow => "overflow",
                Trigger::Must => "must_compact",
                Trigger::Threshold => "threshold",
                Trigger::Hook if requested.by_recipe => "recipe",
                Trigger::Hook => "hook",
            },
            custom_instructions: plan.focus.clone(),
            context: Vec::new(),
            tokens: used,
            compact_count: view.entries().len() - preserve_count,
            preserve_count,
            recipe: requested.recipe.as_ref().map_or("compact", |recipe| &recipe.id).to_owned(),
            must: matches!(why, Trigger::Overflow | Trigger::Must),
        })
    }

    pub(in crate::actor) fn pre_compact_resolved(&mut self, mut resolution: Resolution) {
        let Some(why) = self.compactor.plan().map(|plan| plan.trigger) else { return };
        let made_for = self.core.thread.view().revision();
        let mut pending = PendingResolution {
            event: HookEvent::PreCompact,
            last: false,
            resolution,
            answer: HooksResult::default(),
        };
        self.edit(&mut pending, made_for);
        resolution = pending.resolution;
        let mut commits = self.record(HookEvent::PreCompact, &mut resolution);
        // A turn that only compacts ends anyway, and would end before the result is committed.
        if !matches!(why, Trigger::Manual) {
            self.hooks.request_halt(resolution.halt.take());
        }
        let edited = !pending.answer.commits.is_empty();
        commits.extend(pending.answer.commits);
        self.commit_all(commits);
        if let Some((hook, reason)) = resolution.block {
            let text = match reason.trim() {
                "" => format!("The hook {hook} stopped this compaction."),
                reason => format!("The hook {hook} stopped this compaction: {reason}"),
            };
            match why {
                Trigger::Manual | Trigger::Overflow => {
                    let note = self.core.note(text);
                    self.commit_all(vec![note]);
                }
                // Otherwise it would be attempted again after each round.
                Trigger::Threshold | Trigger::Hook | Trigger::Must => {
                    self.core.notify(NoticeSeverity::Info, text);
                    self.compactor.note_no_gain(&self.core);
                }
            }
            self.compaction_meta("blocked", None);
            return self.end_compaction(CompactionResult::Nothing);
        }
        self.compactor.instruct(&self.core, &self.recipes, resolution);
        self.answer_turn(EffectResult::Instructed { edited });
    }

    // ── The stop of the recipe that a hook called ──────────────────────────────────────────────

    /// Runs the stop hooks of the recipe that wrote the summary, as after any callback. Returns whether any hook runs.
    pub(in crate::actor) fn ask_of_callback(&mut self, text: &str, change: &Change) -> bool {
        if !self.may_run(HookEvent::AgentStop) {
            return false;
        }
        let SummaryRequest { recipe: Some(recipe), callback_args, .. } = self.compactor.requested().clone()
        else {
            return false;
        };
        let round = HookRound { response: text.to_owned(), message: None, number: 1, ..self.round() };
        let what = EventData::AgentStop { round, stop_reason: "end_turn", continuations: 0 };
        let mut hook_context = self.hook_context(what);
        hook_context.base.view = shown::view_with_reply(&mut self.core, text);
        hook_context.base.recipe = recipe.id.clone();
        hook_context.base.callback_depth = 1;
        hook_context.base.invoked_by = epitome_hooks::hook_context::InvokedBy::Subagent;
        hook_context.base.callback_args = callback_args;
        let links = self.hooks.scripts(&hook_context, true);
        if links.is_empty() {
            return false;
        }
        self.start_hooks(links, hook_context, HookPoint::Composed(Box::new(change.clone())));
        true
    }

    /// A script may replace the summary with its own history, if it names this conversation.
    pub(in crate::actor) fn callback_stop_resolved(&mut self, swap: Change, mut resolution: Resolution) {
        let by = resolution.action_by.clone();
        let own = self.core.id().0.clone();
        let mutated = match std::mem::take(&mut resolution.action) {
            HistoryAction::Mutate { messages, preserve_recent, target: Some(target) } if target == own => {
                match self.core.mutation(&by, messages, preserve_recent, None) {
                    Ok(change) => Some(change),
                    Err(why) => {
                        refuse(&mut resolution, &by, why.to_string());
                        None
                    }
                }
            }
            HistoryAction::None => None,
            HistoryAction::Mutate { .. }
            | HistoryAction::Callback(_)
            | HistoryAction::Swap { .. }
            | HistoryAction::Compact { .. } => {
                let why = "in a callback only a mutation that names its conversation has an effect";
                refuse(&mut resolution, &by, why.to_owned());
                None
            }
        };
        for (by, _) in std::mem::take(&mut resolution.follow_ups) {
            refuse(&mut resolution, &by, "a callback run is not continued".to_owned());
        }
        // Rejected actions are logged, but not reported: such a script just ignores `invoked_recipe`.
        let (unheard, runs): (Vec<HookRun>, Vec<HookRun>) = std::mem::take(&mut resolution.trail)
            .into_iter()
            .partition(|run| run.verdict == HookRunResult::Refused);
        resolution.trail = runs;
        let mut trail = self.record(HookEvent::AgentStop, &mut resolution);
        if !unheard.is_empty() {
            let event = HookEvent::AgentStop.name().to_owned();
            trail.push(Change::Hooked { event, runs: unheard });
        }
        self.commit_all(trail);
        match mutated {
            Some(change) => {
                self.drop_compaction();
                self.end_compaction(CompactionResult::Done(Box::new(change)));
            }
            None => self.end_compaction(CompactionResult::Done(Box::new(swap))),
        }
    }

    // ── Hooks after it ─────────────────────────────────────────────────────────────────────────

    /// Concludes a committed compaction, and returns its event for hooks.
    pub(in crate::actor) fn committed(&mut self) -> Option<EventData> {
        self.compactor.conclude();
        let newest = self.core.thread.last_layer().map(|entry| (entry.seq, &entry.change));
        let Some((seq, Change::Compacted { summary, trigger, tokens_before, tokens_after, account, .. })) =
            newest
        else {
            // A hook's history replaced the summary, so there was no compaction.
            self.compactor.show_ended(&self.core, CompactionState::Cancelled);
            return None;
        };
        let uuid = seq.uuid_in(&self.core.id().0);
        if let Some(work) = &mut self.work {
            let mut meta = account.counts();
            // Clients look for this status if no model's summary represents the removed entries.
            let status = if account.fallback.is_some() { "truncated" } else { "compacted" };
            meta["status"] = status.into();
            meta["pre_tokens"] = (*tokens_before).into();
            meta["post_tokens"] = (*tokens_after).into();
            meta["entry"] = seq.to_string().into();
            meta["uuid"] = uuid.clone().into();
            work.meta = Some(serde_json::json!({ "epitome": { "compaction": meta } }));
        }
        self.compactor.end_with_entry();
        let is_manual = *trigger == Trigger::Manual;
        Some(EventData::PostCompact {
            trigger: if is_manual { CompactTrigger::Manual } else { CompactTrigger::Auto },
            tokens_before: *tokens_before,
            tokens_after: *tokens_after,
            summary: summary.text(),
            uuid,
            fallback: account.fallback.is_some().then_some("truncated"),
        })
    }

    pub(in crate::actor) fn post_compact_resolved(&mut self, mut resolution: Resolution) {
        let halt = self.hooks.take_halt().or(resolution.halt.take());
        let mut answer = halt.map(|(hook, reason)| self.halted(&hook, &reason)).unwrap_or_default();
        let trail = self.record(HookEvent::PostCompact, &mut resolution);
        answer.commits.splice(0..0, trail);
        self.answer_turn(EffectResult::Hooks(answer));
    }
}
