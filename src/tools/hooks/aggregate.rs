//! Aggregates the outcomes of hooks, one after another, into the resolution and the trail. Pure; `chain`
//! orders the runs.
//!
//! Pairs in the resolution contain the hook's name first, then its value.

mod changes;

use std::time::Duration;

use super::chain::{ChainLink, ChainRun, ToolInputCheck};
use super::event::HookEvent;
use super::guards::checked;
use super::hook_context::{EventData, HookContext};
use super::outcome::{RunOutcome, RunStatus};
use super::output::{HistoryAction, HookOutput, PermissionDecision, RequestedEdits, Resolution};
use super::words;
use epitome_thread::{HookRun, HookRunResult};

/// The hook context as changed so far, and the decisions so far.
#[derive(Clone, Debug)]
pub(super) struct Aggregate {
    pub hook_context: HookContext,
    pub resolution: Resolution,
    /// Whether a hook has ended the chain.
    pub over: bool,
    /// Whether the current batch of runs ran concurrently, all with the same hook context.
    pub is_concurrent: bool,
    /// The first hook of the batch that changed the hook context.
    pub changed_by: Option<String>,
    /// Checks changed inputs; `None` accepts all.
    pub takes: Option<ToolInputCheck>,
    /// Bytes of context that may still be added.
    context_room: usize,
}

/// The trail record of one run while its output is processed.
#[derive(Debug, Default)]
struct RunRecord {
    hook: String,
    asked: Vec<String>,
    refused: bool,
    remarks: Vec<String>,
}

impl RunRecord {
    fn done(&mut self, what: impl Into<String>) {
        self.asked.push(what.into());
    }

    fn refused(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.asked.push(what.into());
        self.remarks.push(why.into());
        self.refused = true;
    }
}

impl Aggregate {
    pub fn new(hook_context: HookContext) -> Aggregate {
        Aggregate {
            hook_context,
            resolution: Resolution::default(),
            over: false,
            is_concurrent: false,
            changed_by: None,
            takes: None,
            context_room: words::CONTEXT_BYTES_MAX,
        }
    }

    /// Processes one run.
    pub fn add(&mut self, run: &ChainRun, outcome: RunOutcome, took: Duration) {
        let mut account =
            RunRecord { hook: run.link.name(), remarks: outcome.remarks, ..RunRecord::default() };
        self.apply(outcome.output, &mut account);
        let verdict = match outcome.status {
            RunStatus::Failed => HookRunResult::Failed,
            RunStatus::Skipped => HookRunResult::Skipped,
            RunStatus::Result if account.refused => HookRunResult::Refused,
            RunStatus::Result if account.asked.is_empty() => HookRunResult::Nothing,
            RunStatus::Result => HookRunResult::Done,
        };
        if !outcome.stderr.is_empty() {
            tracing::debug!(
                hook = account.hook,
                event = run.event_name,
                stderr = outcome.stderr,
                "a hook wrote to stderr"
            );
        }
        if verdict == HookRunResult::Nothing && account.remarks.is_empty() && outcome.stderr.is_empty() {
            // Users do not expect the compaction trigger in the count.
            if !run.link.is_compact_trigger() {
                self.resolution.quiet += 1;
                self.resolution.quiet_names.push(account.hook);
            }
            return;
        }
        let digest = match &run.link {
            ChainLink::Hook(hook) => hook.digest.clone(),
            ChainLink::Handler(_) => String::new(),
        };
        self.resolution.trail.push(HookRun {
            hook: account.hook,
            event: run.event_name.clone(),
            digest,
            milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            end: outcome.end,
            asked: account.asked.join(", "),
            verdict,
            remarks: account.remarks,
            stderr: outcome.stderr,
        });
    }

    fn apply(&mut self, output: HookOutput, account: &mut RunRecord) {
        account.remarks.extend(output.warnings);
        if let Some(text) = output.notice {
            account.done("notice");
            self.resolution.notices.push((account.hook.clone(), text));
        }
        // After a concurrent hook has blocked, no other request of this hook is carried out.
        if let Some((by, _)) = self.resolution.block.clone().filter(|_| self.over) {
            let changes = output.input.is_some() || output.message.is_some() || !output.context.is_empty();
            let asked = match output.decision {
                _ if output.block.is_some() => Some("block"),
                Some(decision) => Some(decision.id()),
                None => changes.then_some("a change"),
            };
            if let Some(asked) = asked {
                account.refused(asked, format!("{by}, which ran at the same time, had blocked it"));
            }
            return;
        }
        if let Some(reason) = output.halt {
            self.halt(reason, account);
        }
        if let Some(reason) = output.block {
            self.block(reason, account);
        }
        if self.over {
            // A hook may block a compaction and request edits of the history instead.
            if let Some(edits) = output.edits {
                self.edit(edits, account);
            }
            return;
        }
        if let Some(decision) = output.decision {
            self.decide(decision, output.decision_reason, account);
        }
        if self.over {
            return;
        }
        if let Some(input) = output.input {
            self.input(input, account);
        }
        if let Some(text) = output.message {
            self.message(text, account);
        }
        if let Some(text) = output.custom_instructions {
            self.instructions(text, account);
        }
        if let Some(text) = output.summary {
            match self.resolution.summary.as_ref() {
                Some((by, _)) => account.refused("summary", format!("the summary of {by} was first")),
                None => {
                    account.done("summary");
                    self.resolution.summary = Some((account.hook.clone(), text));
                }
            }
        }
        self.result(output.output, output.output_text, account);
        self.context(output.context, account);
        // Continue only after an accepted action: after a refused callback there is nothing to continue with.
        let taken = self.act(output.action, account);
        self.resolution.go_on |= output.go_on && taken;
        if let Some(edits) = output.edits {
            self.edit(edits, account);
        }
        if !output.follow_ups.is_empty() {
            account.done(format!("continue with {}", words::messages(output.follow_ups.len())));
            for follow_up in output.follow_ups {
                if !self.resolution.follow_ups.iter().any(|(_, known)| *known == follow_up) {
                    self.resolution.follow_ups.push((account.hook.clone(), follow_up));
                }
            }
        }
    }

    fn block(&mut self, reason: Option<String>, account: &mut RunRecord) {
        let event = self.hook_context.what.event();
        if let EventData::PreCompact { must: true, .. } = self.hook_context.what {
            let why = "nothing else fits the window, so this compaction cannot be blocked";
            return account.refused("block", why);
        }
        if !event.blocks() {
            return account.refused("block", format!("nothing can be blocked at {event}"));
        }
        account.done("block");
        let reason = reason.unwrap_or_else(|| format!("Blocked by the hook {}.", account.hook));
        self.resolution.block = Some((account.hook.clone(), reason));
        self.over = true;
    }

    /// Ends the turn, and blocks a prompt or call that has not started yet.
    fn halt(&mut self, reason: String, account: &mut RunRecord) {
        account.done("end the turn");
        if let HookEvent::UserMessageSend | HookEvent::BeforeToolCall = self.hook_context.what.event() {
            self.resolution.block = Some((account.hook.clone(), reason.clone()));
            self.over = true;
        }
        self.resolution.halt.get_or_insert((account.hook.clone(), reason));
    }

    /// The strictest decision wins. A denied call is blocked.
    fn decide(&mut self, decision: PermissionDecision, reason: Option<String>, account: &mut RunRecord) {
        let word = decision.id();
        if decision == PermissionDecision::Allow
            && let Some(by) = self.changed_by.as_ref().filter(|by| **by != account.hook)
        {
            return account.refused(word, format!("it was given another input than that of {by}"));
        }
        let earlier = self.resolution.decision.as_ref().map(|(earlier, by, _)| (*earlier, by));
        if let Some((stricter, by)) = earlier.filter(|(earlier, _)| *earlier > decision) {
            return account.refused(word, format!("{} by {by} is stricter", stricter.id()));
        }
        let is_new = earlier.is_none_or(|(earlier, _)| earlier < decision);
        account.done(word);
        let by = account.hook.clone();
        if decision == PermissionDecision::Deny {
            let reason = reason.clone().unwrap_or_else(|| format!("Denied by the hook {by}."));
            self.resolution.block.get_or_insert((by.clone(), reason));
            self.over = true;
        }
        if is_new {
            self.resolution.decision = Some((decision, by, reason));
        }
    }

    /// Records the action; returns false if it is refused.
    fn act(&mut self, mut action: HistoryAction, account: &mut RunRecord) -> bool {
        let Some(word) = words::action(&action) else { return true };
        if self.resolution.action != HistoryAction::None {
            let by = &self.resolution.action_by;
            let earlier = words::action(&self.resolution.action).unwrap_or_default();
            match (&action, &self.resolution.action) {
                (HistoryAction::Swap { .. }, HistoryAction::Mutate { .. }) => {
                    account.done(word);
                    account.remarks.push(format!("{by} has already replaced the history"));
                }
                _ => account.refused(word, format!("{earlier} by {by} was first")),
            }
            return false;
        }
        // A replacement is based on the history before the edits.
        let replaces = matches!(action, HistoryAction::Mutate { .. } | HistoryAction::Swap { .. });
        if let Some((by, _)) = self.resolution.edits.first().filter(|_| replaces) {
            account.refused(word, format!("the edits of {by} were first"));
            return false;
        }
        if let HistoryAction::Mutate { messages, .. } = &mut action {
            match checked(messages) {
                Ok(checked) => *messages = checked,
                Err(why) => {
                    account.refused(word, why.to_string());
                    return false;
                }
            }
        }
        account.done(word);
        self.resolution.action = action;
        self.resolution.action_by.clone_from(&account.hook);
        true
    }

    fn edit(&mut self, edits: RequestedEdits, account: &mut RunRecord) {
        let word = words::edits(edits.edits.len());
        if let HistoryAction::Mutate { .. } | HistoryAction::Swap { .. } = self.resolution.action {
            let by = &self.resolution.action_by;
            return account.refused(word, format!("{by} replaced the history first"));
        }
        account.done(word);
        self.resolution.edits.push((account.hook.clone(), edits));
    }
}
