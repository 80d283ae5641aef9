//! Continues the session when concurrent work has ended: jobs of the running turn, and work outside of turns. Each
//! result names its data; the methods that are called here are in the files below `actor`.

use std::sync::Arc;

use tokio::task;

use super::Session;
use crate::background::BackgroundResult;
use crate::work::JobResult;
use crate::{NoticeSeverity, SessionError};
use epitome_store::StoreError;
use epitome_tools::question::QuestionReply;

impl Session {
    /// A job of the running turn has ended.
    pub(super) fn job_ended(&mut self, result: JobResult) {
        match result {
            JobResult::Tool(call, outcome, plan) => self.tool_done(&call, outcome, plan),
            JobResult::PermissionPreviewed { call, preview } => self.permission_previewed(call, preview),
            JobResult::HooksEnded { point, resolution } => self.hooks_done(point, Some(*resolution)),
            JobResult::InstructionsScanned { scanned, next } => self.instructions_scanned(scanned, next),
            JobResult::CompactionPlanned { why, decided } => self.compaction_planned(why, decided),
            JobResult::SummaryWritten(attempt) => self.summary_written(attempt),
            JobResult::CancelDue => self.cancel(),
            JobResult::CompactionPruned { revision, pruned } => self.compaction_pruned(revision, pruned),
            JobResult::CompactionComposed(composed) => self.compaction_composed(composed),
            JobResult::OldOutcomesPruned { revision, pruned } => self.old_outcomes_pruned(revision, pruned),
            JobResult::SwapComposed { revision, made } => self.swap_composed(revision, made),
            JobResult::CallbackWeighed { recipe, callback, decided } => {
                self.callback_weighed(recipe, callback, decided);
            }
            JobResult::CallbackEnded(called) => self.callback_ended(called),
            JobResult::OtherReplaced { target, count, replaced } => {
                self.other_replaced(&target, count, replaced);
            }
        }
    }

    /// Work outside of turns has ended.
    pub(super) fn background_ended(&mut self, result: BackgroundResult) {
        let Session { core, .. } = self;
        match result {
            BackgroundResult::Done => {}
            // `handle_events` has already checked whether to suspend the session.
            BackgroundResult::Idle => self.watch_idle(),
            BackgroundResult::SyncDue => {
                core.log.sync_begins();
                core.sync_in_background();
            }
            BackgroundResult::Synced(synced) => self.synced(synced),
            BackgroundResult::DraftDue => self.save_draft(),
            BackgroundResult::DraftSaved(saved) => core.log.draft.saved(&saved),
            BackgroundResult::EncodingUnused { at } => self.forget_unused_encoding(at),
            BackgroundResult::CheckpointsResumed(reports) => self.checkpoints_resumed(reports),
            BackgroundResult::QuestionExpired(ask) => {
                self.questions.close(ask, QuestionReply::Cancelled, &core.clients);
            }
            BackgroundResult::EditorWaited(waited) => self.editors.waited(waited, &core.clients),
            BackgroundResult::ModelsListed(listed) => self.models_listed(listed),
            BackgroundResult::ModelsFound(found) => self.models_found(found),
            BackgroundResult::HooksFound(discovery) => {
                if self.hooks.take_found(core, *discovery) {
                    self.mcp.start_trusted(core, &self.hooks);
                    self.recipes.trust(core, &self.hooks);
                }
            }
            BackgroundResult::RecipesRead(catalog, watch) => self.recipes_read(catalog, watch),
            BackgroundResult::ServersWaited => self.mcp.end_wait(core, self.inbox.has_prompts()),
            BackgroundResult::PromptFetched { ticket, fetched } => self.mcp_prompt_fetched(ticket, fetched),
            BackgroundResult::ResourcesFetched { ticket, content } => {
                self.mcp_resources_fetched(ticket, content);
            }
            BackgroundResult::ShellCallsRan { ticket, outputs } => self.shell_calls_ran(ticket, outputs),
            BackgroundResult::CacheExpires { at } => self.compactor.preview_before_break(core, at),
            BackgroundResult::BreakPreviewed { at, budget, preview } => {
                if let Some(compact) = self.compactor.before_break(core, at, &budget, &preview) {
                    self.prompt(compact);
                }
            }
            BackgroundResult::CompactionPreviewed(previewed) => self.compaction_previewed(*previewed),
            BackgroundResult::CommandOnDisk(prompt, result) => self.command_on_disk(prompt, result),
            BackgroundResult::HooksEnded { event, ask, resolution } => {
                self.hooks_aside_ended(event, ask, *resolution);
            }
            BackgroundResult::ServicePlanned { hook, plan, answer } => {
                self.service_planned(&hook, plan, answer);
            }
            BackgroundResult::CallbackEnded(called) => self.background_callback_ended(called),
            BackgroundResult::SummaryPlanned(decided) => self.summary_planned(decided),
            BackgroundResult::SummaryPrepared(plan, attempt) => self.summary_prepared(plan, attempt),
        }
    }

    /// The log was synced, or an error prevented it.
    fn synced(&mut self, synced: Result<(), Arc<StoreError>>) {
        if let Err(error) = synced {
            tracing::error!(session = %self.core.id(), %error, "the log could not be synced");
            let text = format!("The session's log could not be synced to disk: {error}");
            self.core.notify(NoticeSeverity::Error, text);
        }
    }

    /// Background work panicked. It is unknown what it was, so everything that may be waiting for some is released.
    pub(super) fn background_panicked(&mut self, work: task::Id) {
        self.inbox.resume_after(work);
        if let Some(rendering) = self.recipes.take_failed() {
            let message = "the recipe's commands failed with an internal error of Epitome".to_owned();
            rendering.prompt.responder.answer(Err(SessionError::Internal(message)));
        }
        if self.core.model.is_searching() {
            self.models_found(None);
        }
        self.recipes.give_up_reading();
        self.hooks.set_read(true);
        self.core.log.sync_begins();
        self.core.log.draft.skip();
    }
}
