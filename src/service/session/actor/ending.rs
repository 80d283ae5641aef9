//! Ends of things: of a turn with its answer, a cancelled prompt, a turn whose log can't be written, and the session.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use super::Session;
use crate::background::BackgroundResult;
use crate::core::{Core, Unwritten};
use crate::responder::{Responder, cancelled};
use crate::resumed::KEPT;
use crate::work::{JobResult, RunningTurn, TurnFault};
use crate::{
    Attaching, ClientId, CompactionState, SessionAnswer, SessionError, SessionEvent, Ticket, WorkEnd,
};
use epitome_hooks::hook_context::EventData;
use epitome_thread::{Change, Entry, Message, MessageId, ReplyCut, Seq, StopReason, Thread, Usage};
use epitome_turn::{interrupted, withdrawn};

/// How long the encoded conversation is kept after a turn: a user who replies soon benefits from it, and an idle
/// session does not keep its conversation in memory twice.
const ENCODING_KEPT: Duration = Duration::from_secs(60);

/// How long a cancelled turn waits for the hooks that see the outcomes of its calls.
const CANCEL_HOOKS_MAX: Duration = Duration::from_secs(5);

// ── A turn ─────────────────────────────────────────────────────────────────────────────────────────

impl Core {
    /// A crash or a full disk may have left calls without an outcome and a turn without an end. Both are committed now,
    /// so that every later view is valid. Does nothing if the turn has ended.
    pub(super) fn close_open_turn(&mut self, reason: StopReason) -> Result<(), SessionError> {
        for call in self.thread.open_calls().to_vec() {
            self.commit(interrupted(call))?;
        }
        if self.thread.in_turn()
            && reason == StopReason::Interrupted
            && let Some(replied) = self.log.draft.take(|id| is_past(&self.thread, id))
        {
            self.commit(replied)?;
        }
        if self.thread.in_turn() {
            self.commit(Change::TurnEnded {
                reason,
                usage: Usage::default(),
                quiet_hooks: 0,
                failure: None,
            })?;
        }
        Ok(())
    }
}

impl Session {
    /// Ends the turn that an earlier process left open. If the log can't be written, this is done before the next prompt.
    pub(crate) async fn end_interrupted_turn(&mut self) {
        let core = &mut self.core;
        // A damaged log is not written; its turn is ended once the user has accepted the damage.
        if core.log.damage().is_some() {
            return;
        }
        let ended = core.close_open_turn(StopReason::Interrupted);
        if let Err(error) = ended.and(core.settle().await.map_err(|unwritten| unwritten.error)) {
            tracing::error!(session = %core.id(), %error, "an interrupted turn could not be ended");
        }
    }

    /// Ends the turn, whose last entry is committed: syncs the log, then answers.
    pub(super) async fn end(&mut self, reason: StopReason) {
        self.core.log.start_sync();
        if reason == StopReason::Cancelled && self.compactor.is_announced() {
            self.compaction_meta("cancelled", None);
        }
        self.compactor.show_ended(&self.core, CompactionState::Cancelled);
        let Some(work) = self.take_work() else { return };
        self.core.trace.end_turn(&self.core.thread, reason, &work.turn.usage());
        // For a cancelled turn, this is the only safe point.
        self.apply_background_callback();
        // The last entries are sent before the answer.
        let synced = match self.settle_log().await {
            Ok(()) => self.core.log.syncer().sync().await.map_err(|error| {
                SessionError::Store(format!("the turn could not be synced to disk: {error}"))
            }),
            Err(error) => Err(error),
        };
        self.core.log.save_thread(&self.core.thread);
        let answer = match synced {
            Err(error) => Err(error),
            Ok(()) if reason == StopReason::Failed => Err(failed(&work)),
            Ok(()) => Ok(SessionAnswer::TurnEnded { reason, usage: work.turn.usage(), meta: work.meta }),
        };
        let error = answer.as_ref().err().cloned();
        if let Some(error) = error.as_ref().filter(|_| reason == StopReason::Failed) {
            let what = EventData::TurnFailed { kind: work.fault.name(), message: error.to_string() };
            // Not in the background: a program that runs one prompt ends with it.
            self.run_last_hooks(what).await;
        }
        self.end_foreground(WorkEnd { reason, usage: work.turn.usage(), error });
        answer_all(&self.core.thread, work.responders, &answer);
        let (at, kept) = (self.core.thread.next_seq(), ENCODING_KEPT.min(self.core.services.suspend_after));
        self.core.start(tokio::time::sleep(kept), move |()| BackgroundResult::EncodingUnused { at });
        self.compactor.watch_cache(&mut self.core, at);
    }

    /// Frees the memory of the encoded conversation and of older entries if it has not been continued since this entry.
    pub(super) fn forget_unused_encoding(&mut self, at: Seq) {
        if self.work.is_none() && self.core.thread.next_seq() == at {
            self.core.model.forget_encoding();
            self.core.log.free_older(&mut self.core.thread);
        }
    }

    /// Takes the running turn and resets what components keep about it.
    fn take_work(&mut self) -> Option<RunningTurn> {
        self.drop_compaction();
        self.compactor.end_turn();
        self.hooks.end_turn();
        self.subagents.end_turn();
        self.tools.end_turn();
        self.core.permissions.end_turn();
        self.work.take()
    }

    /// Ends the turn with an error because the log can't be written. The session remains loadable.
    pub(super) fn abandon(&mut self, error: &SessionError) {
        self.compactor.show_ended(&self.core, CompactionState::Failed(error.to_string()));
        if let Some(RunningTurn { responders, turn, .. }) = self.take_work() {
            self.core.trace.end_turn(&self.core.thread, StopReason::Failed, &turn.usage());
            self.withdraw_permission();
            // If this fails, the turn stays open in the log, and the next prompt tries again.
            if let Err(error) = self.core.close_open_turn(StopReason::Failed) {
                tracing::error!(session = %self.core.id(), %error, "the turn could not be ended in the log");
            }
            let end = WorkEnd { reason: StopReason::Failed, usage: turn.usage(), error: Some(error.clone()) };
            self.end_foreground(end);
            answer_all(&self.core.thread, responders, &Err(error.clone()));
        }
    }

    /// Cancels the running turn and all waiting prompts. The turn still waits for hooks that see the outcomes of its
    /// calls, for a limited time or until it is cancelled again.
    pub(super) fn cancel(&mut self) {
        self.cancel_rendering();
        if let Some(prompt) = self.hooks.drop_consent(&self.core) {
            prompt.responder.answer(Ok(cancelled()));
        }
        for prompt in self.inbox.take_all() {
            prompt.responder.answer(Ok(cancelled()));
        }
        self.inbox.stop_command();
        self.questions.close_all(&self.core.clients);
        self.editors.cancel(&self.core.clients);
        self.take_child_news();
        self.stop_calls();
        let Some(work) = &mut self.work else { return };
        work.jobs.abort_all();
        if work.turn.is_cancelling() {
            work.outcome_hooks.abort_all();
        }
        self.stop_agents();
        let Some(work) = &mut self.work else { return };
        let call = work.model.take();
        let partial = call.and_then(|call| self.partial_reply(call, ReplyCut::Cancelled));
        self.note_running_cost();
        self.withdraw_permission();
        self.drop_compaction();
        let Some(work) = &mut self.work else { return };
        work.turn.cancel(partial);
        while let Some(point) = self.work.as_mut().and_then(|work| work.turn.take_unseen()) {
            self.ask_hooks(point);
        }
        let is_closing = self.core.clients.are_closing();
        let Some(work) = self.work.as_mut().filter(|work| work.turn.is_cancelling()) else { return };
        if is_closing {
            // The session ends at once; what these hooks were to see is not kept.
            work.turn.cancel(None);
        } else {
            work.jobs.spawn(tokio::time::sleep(CANCEL_HOOKS_MAX).map(|()| JobResult::CancelDue));
        }
    }

    /// Without a running turn, withdraws the prompts that an earlier process has left for the next one: the user has
    /// cancelled, perhaps before the client knew that they were left.
    pub(super) fn withdraw_kept(&mut self) {
        if self.work.is_some() {
            return;
        }
        let kept: Vec<Change> =
            self.core.thread.queued().iter().filter_map(|entry| withdrawn(entry)).collect();
        for withdrawn in kept {
            if let Err(error) = self.core.commit(withdrawn) {
                tracing::warn!(session = %self.core.id(), %error, "a prompt could not be withdrawn");
                return;
            }
        }
    }

    fn withdraw_permission(&mut self) {
        if let Some(withdrawn) = self.core.permissions.withdraw() {
            self.core.announce(&withdrawn);
        }
    }

    fn cancel_rendering(&mut self) {
        if let Some(rendering) = self.recipes.cancel_rendering() {
            rendering.job.abort();
            rendering.prompt.responder.answer(Ok(cancelled()));
        }
    }

    pub(super) fn cancel_prompt(&mut self, ticket: Ticket) {
        if self.hooks.consent_is_for(Some(ticket)) {
            if let Some(prompt) = self.hooks.drop_consent(&self.core) {
                prompt.responder.answer(Ok(cancelled()));
            }
            return;
        }
        if self.recipes.are_rendering_for(ticket) {
            return self.cancel_rendering();
        }
        if let Some(prompt) = self.inbox.take_by_ticket(ticket) {
            prompt.responder.answer(Ok(cancelled()));
            // No prompt is waiting for this consent any more; the next prompt asks again.
            if !self.inbox.has_prompts() && self.hooks.consent_is_for(None) {
                self.hooks.drop_consent(&self.core);
            }
            return;
        }
        let Some(work) = &mut self.work else {
            // A command may be waiting for its card.
            if self.inbox.is_paused() {
                self.inbox.stop_command();
                self.questions.close_all(&self.core.clients);
            }
            return;
        };
        let Some(at) = work.responders.iter().position(|(responder, _)| responder.ticket == ticket) else {
            return;
        };
        let client = work.responders[at].0.client();
        let is_shared = work.responders.iter().any(|(other, _)| other.client() != client);
        let queued = work.responders[at].1;
        // A queued prompt that is not in the view yet is withdrawn alone. One that is can't be; only its answer is sent
        // early.
        match queued {
            Some(entry) if withdraw(work, &self.core.thread, entry) || is_shared => {
                work.responders.remove(at).0.answer(Ok(cancelled()));
            }
            Some(_) | None => self.cancel(),
        }
    }
}

/// Withdraws a prompt that waits for the turn. Returns whether it did.
pub(super) fn withdraw(work: &mut RunningTurn, thread: &Thread, queued: Seq) -> bool {
    let waits = thread.queued().iter().find(|entry| entry.seq == queued);
    waits.inspect(|waits| work.turn.withdraw(waits)).is_some()
}

/// Answers the prompts of a turn. Those that it did not read before it failed are kept.
fn answer_all(
    thread: &Thread,
    responders: Vec<(Responder, Option<Seq>)>,
    answer: &Result<SessionAnswer, SessionError>,
) {
    for (responder, queued) in responders {
        let is_kept = thread.queued().iter().any(|entry| Some(entry.seq) == queued);
        responder.answer(match answer {
            Err(error) if is_kept => {
                let text = format!("The turn failed before it read this prompt. {KEPT} {error}");
                Err(SessionError::Interrupted(text))
            }
            answer => answer.clone(),
        });
    }
}

impl Session {
    /// Waits until all entries are in the journal, and releases their events. If an entry can't be written, the running
    /// turn ends with the error, and the session continues from the entries before it.
    pub(crate) async fn settle_log(&mut self) -> Result<(), SessionError> {
        let Err(Unwritten { error, refused }) = self.core.settle().await else { return Ok(()) };
        // Entries that it covers may have been undone.
        self.drop_prepared();
        self.instructions.require_check();
        self.subagents.set_mode(self.core.thread.mode());
        self.core.announce(&SessionEvent::Options(self.core.options()));
        self.abandon(&error);
        for client in refused {
            self.turn_away(client);
        }
        Err(error)
    }

    /// Removes a client that was attached before the log refused the entries on which its attachment depends. It has
    /// been informed, but its messages since then need an answer too.
    fn turn_away(&mut self, client: ClientId) {
        let others_stay = self.core.clients.others_stay(client);
        self.core.clients.unwatch(client);
        self.core.clients.dismiss(client);
        match others_stay {
            true => self.leave_to_others(client),
            false => {
                self.core.clients.close();
                self.cancel();
            }
        }
    }
}

/// Whether a reply is in the log, or is older than the newest prompt or command: then its turn has been ended by another
/// machine.
fn is_past(thread: &Thread, id: MessageId) -> bool {
    let is_later = |entry: &Arc<Entry>| match &entry.change {
        Change::Said { message: Message { id: later, .. }, .. }
        | Change::Commanded { message: later, .. } => *later > id,
        _ => false,
    };
    let is_of_turn = |entry: &&Arc<Entry>| !matches!(entry.change, Change::TurnEnded { .. });
    let is_it = |change: &Change| matches!(change, Change::Replied { message, .. } if message.id == id);
    thread.entries().iter().rev().any(|entry| is_it(&entry.change))
        || thread.entries().iter().rev().take_while(is_of_turn).any(is_later)
}

fn failed(work: &RunningTurn) -> SessionError {
    let message = work.turn.failure().unwrap_or("the model call failed").to_owned();
    match work.fault {
        TurnFault::TooLong => SessionError::TooLong(message),
        TurnFault::OverBudget => SessionError::OverBudget(message),
        TurnFault::Unauthorised => SessionError::AuthRequired(message),
        TurnFault::Provider | TurnFault::Limited | TurnFault::Refused => {
            SessionError::Provider { message, hint: None }
        }
    }
}

// ── The session ────────────────────────────────────────────────────────────────────────────────────

impl Session {
    /// Refuses further commands, and keeps the observers until the session is opened again. Returns the clients that tried
    /// to attach too late.
    pub(super) fn take_no_more(&mut self) -> Vec<Attaching> {
        let (others, id) = (self.core.process.sessions(), self.core.id().clone());
        let mut too_late = Vec::new();
        let mut close = || {
            for command in self.inbox.close() {
                self.refuse(command, &mut too_late);
            }
            self.core.clients.take_watchers(self.core.thread.next_seq())
        };
        match others {
            Some(others) => others.keep_watchers_of(&id, &mut close),
            None => drop(close()),
        }
        too_late
    }

    /// Refuses further commands, syncs the log and releases its lock. Only then answers the clients that requested the
    /// end, so that they can delete or load the session at once.
    pub(super) async fn end_for_good(mut self: Box<Self>) -> Vec<Attaching> {
        self.subagents.end_all_calls(&self.core.clients);
        self.drop_prepared();
        self.close_state();
        // It logs what could not be written.
        drop(self.core.settle().await);
        let too_late = self.take_no_more();
        self.core.trace.end("closed");
        self.core.release_checkpoints().await;
        let syncer = self.core.log.syncer();
        let session = self.core.id().clone();
        drop(self.core.log);
        if let Err(error) = syncer.sync().await {
            tracing::error!(%session, %error, "the last entries of a closed session are not synced");
        }
        self.core.clients.answer_closers();
        too_late
    }
}
