//! A hook's history for another conversation: sending it there, and applying one that comes from there.

use super::Session;
use crate::UserDecision;
use crate::called::guarded;
use crate::core::Core;
use crate::cross_session_edit::{may_change, replaced};
use crate::lineage::HandedHistory;
use crate::work::{JobResult, PendingResolution};
use crate::{Mutation, Replaced, ReplacedAnswer, ReplacementRefusal, RequesterContext};
use epitome_hooks::output::Utterance;
use epitome_thread::SessionId;

impl Core {
    /// Hands a history from a hook of a callback's run to the conversation that called it.
    pub(super) fn hand_to_parent(
        &self,
        by: &str,
        messages: Vec<Utterance>,
        preserve_recent: usize,
        target: &str,
    ) -> Result<(), ReplacementRefusal> {
        if self.lineage.parent.as_ref().is_none_or(|parent| parent.0 != target) {
            return Err(ReplacementRefusal::NotTheCaller(target.to_owned()));
        }
        self.lineage.handed.put(HandedHistory { by: by.to_owned(), messages, preserve_recent });
        Ok(())
    }
}

impl Session {
    /// Sends a hook's history to another conversation, if the settings or the user allow it. The turn waits for the
    /// result.
    pub(super) fn mutate_elsewhere(
        &mut self,
        pending: PendingResolution,
        messages: Vec<Utterance>,
        preserve_recent: usize,
        target: String,
    ) {
        let way = match (SessionId::parse(&target), self.core.process.sessions()) {
            (None, _) => Err(ReplacementRefusal::NotAnId(target)),
            (Some(target), None) => Err(ReplacementRefusal::Unreachable(target)),
            (Some(target), Some(sessions)) => Ok((target, sessions)),
        };
        let (target, sessions) = match way {
            Ok(way) => way,
            Err(why) => return self.refuse_action(pending, why),
        };
        let (count, by) = (messages.len(), pending.resolution.action_by.clone());
        let (from, cwd) = (self.core.id().clone(), self.core.thread.cwd().to_path_buf());
        let (settings, environment) = (self.core.settings.shared(), self.core.workspace.environment.clone());
        let around = RequesterContext { settings, environment };
        let mutation = Mutation { from, cwd, by, messages, preserve_recent, around };
        let allowed = match self.core.settings.hooks.cross_session {
            true => None,
            false => Some(self.hooks.ask_about_conversation(&self.core, &mutation.by, count, &target)),
        };
        self.hooks.keep_pending(pending);
        let named = target.clone();
        let mutating = guarded(async move {
            let allowed = match allowed {
                Some(asked) => asked.await.unwrap_or(UserDecision::Dismissed),
                None => UserDecision::AllowOnce,
            };
            match allowed {
                UserDecision::AllowOnce | UserDecision::AllowAlways => sessions.mutate(named, mutation).await,
                UserDecision::Absent => {
                    Err(ReplacementRefusal::NotConfigured { target: named, messages: count })
                }
                UserDecision::Reject
                | UserDecision::RejectBecause(_)
                | UserDecision::RejectAlways
                | UserDecision::Dismissed => Err(ReplacementRefusal::NotAllowed(named)),
            }
        });
        self.start_job(mutating, move |replaced| JobResult::OtherReplaced { target, count, replaced });
    }

    /// Continues the round's end once the other conversation has answered.
    pub(super) fn other_replaced(
        &mut self,
        target: &SessionId,
        count: usize,
        replaced: Result<Replaced, ReplacementRefusal>,
    ) {
        let Some(mut pending) = self.hooks.take_pending() else { return };
        let Replaced { tokens_before, tokens_after } = match replaced {
            Ok(replaced) => replaced,
            Err(why) => return self.refuse_action(pending, why),
        };
        let words = format!(
            "{count} messages replaced the history of {target}: about {tokens_before} tokens became \
             {tokens_after}"
        );
        let hook = &pending.resolution.action_by;
        tracing::info!(session = %self.core.id(), hook, words, "another conversation was changed");
        pending.done([words]);
        self.settle_round(pending);
    }

    /// Replaces this conversation's history, for a hook of another one.
    pub(super) fn mutated_by_other(&mut self, mutation: &Mutation, answer: ReplacedAnswer) {
        let is_busy = self.work.is_some() || self.inbox.has_prompts() || self.recipes.are_rendering();
        let made = match is_busy {
            true => Err(ReplacementRefusal::PromptRuns(self.core.id().clone())),
            false => may_change(&self.core.thread, mutation).and_then(|()| {
                let (author, messages) = (mutation.author(), mutation.messages.clone());
                self.core.mutation(&author, messages, mutation.preserve_recent, None)
            }),
        };
        let committed = made.and_then(|change| {
            let replaced = replaced(&change, mutation, self.core.id());
            self.core.commit(change)?;
            Ok(replaced)
        });
        match committed {
            Ok(replaced) => self.core.sync_then(move |synced| {
                // The receiver may be gone.
                let synced = synced.clone().map_err(ReplacementRefusal::Store);
                drop(answer.send(synced.map(|()| replaced)));
            }),
            Err(why) => drop(answer.send(Err(why))),
        }
    }
}
