//! The state of a session, for clients that follow it: whether it runs, waits for the user or is idle, its background
//! commands, and the message that a prompt became. Clients that don't follow it get none of these events.

use std::sync::Arc;

use super::Session;
use crate::core::Core;
use crate::responder::{QueuedPrompt, Responder, cancelled};
use crate::subagents::numbered_call;
use crate::{
    BackgroundTerminal, CancelTarget, Foreground, SessionAnswer, SessionError, SessionEvent, SessionNow,
    SessionState, WorkEnd, agent_id,
};
use epitome_thread::{Change, Entry, KeyedPrompt, Message, MessageId, Seq, StopReason, Thread, Usage};
use epitome_tools::task;

// ── State ──────────────────────────────────────────────────────────────────────────────────────────

impl Session {
    /// Foreground work starts: all following events belong to it.
    pub(super) fn begin_foreground(&mut self) {
        self.set_foreground(Foreground::Running);
    }

    /// Foreground work has ended, and all its events were announced.
    pub(super) fn end_foreground(&mut self, end: WorkEnd) {
        self.core.clients.forget_authors(self.core.thread.queued());
        self.set_foreground(Foreground::Idle(Some(end)));
    }

    /// Announces changes of the state. Called after every event.
    pub(super) fn refresh_state(&mut self) {
        let foreground = self.foreground();
        self.set_foreground(foreground);
    }

    /// The session ends, and with it its background commands.
    pub(super) fn close_state(&mut self) {
        if !self.core.clients.is_followed() {
            return;
        }
        for BackgroundTerminal { call, .. } in &self.core.clients.state().background {
            let ended = SessionEvent::TerminalEnded { call: call.clone(), code: None, signal: None };
            self.core.clients.announce_to_followers(&ended);
        }
        self.core
            .clients
            .set_state(SessionState { foreground: Foreground::Idle(None), background: Vec::new() });
    }

    fn set_foreground(&mut self, foreground: Foreground) {
        if !self.core.clients.is_followed() {
            return;
        }
        let commands = self.tools.background().clone();
        let background: Vec<BackgroundTerminal> = self.background_terminals();
        for gone in self.core.clients.state().background.iter().filter(|known| !background.contains(known)) {
            let (code, signal) = commands.exit_of(&gone.call).unwrap_or_default();
            let ended = SessionEvent::TerminalEnded { call: gone.call.clone(), code, signal };
            self.core.clients.announce_to_followers(&ended);
        }
        self.core.clients.set_state(SessionState { foreground, background });
    }

    fn foreground(&self) -> Foreground {
        let is_asking = self.hooks.open_consent().is_some();
        match &self.work {
            Some(work) => {
                let waits = work.model.is_none() && work.jobs.is_empty() && work.outcome_hooks.is_empty();
                match waits && self.core.permissions.shown().is_some() {
                    true => Foreground::RequiresAction,
                    false => Foreground::Running,
                }
            }
            None if is_asking => Foreground::RequiresAction,
            None if self.recipes.are_rendering() || self.inbox.waits_for_command() => Foreground::Running,
            None => Foreground::Idle(None),
        }
    }

    /// Whether only the user can go on.
    pub(super) fn waits_for_user(&self) -> bool {
        matches!(self.foreground(), Foreground::RequiresAction)
    }

    fn background_terminals(&self) -> Vec<BackgroundTerminal> {
        let running = self.tools.background().terminals();
        // A call that is still running is foreground work.
        let open = self.core.thread.open_calls();
        running
            .into_iter()
            .filter(|(call, _)| !open.contains(call))
            .map(|(call, line)| BackgroundTerminal { call, line })
            .collect()
    }

    /// The state for a client that attaches.
    pub(super) fn state_now(&self) -> SessionNow {
        let foreground = match self.foreground() {
            Foreground::Idle(_) => Foreground::Idle(last_end(&self.core.thread)),
            foreground => foreground,
        };
        SessionNow {
            state: SessionState { foreground, background: self.background_terminals() },
            commands: self.recipes.command_list(),
        }
    }

    /// The end of a command that called no model.
    pub(super) fn end_command(&mut self, reason: StopReason, error: Option<SessionError>) {
        self.end_foreground(WorkEnd { reason, usage: Usage::default(), error });
    }

    /// Commits a change of the running turn. If it inserts a prompt's message, the clients are sent the message's id.
    pub(super) fn commit_of_turn(&mut self, change: Change) -> Result<(), SessionError> {
        let Session { core, work: Some(work), .. } = self else {
            return self.core.commit(change).map(drop);
        };
        let queued = change.prompt().and_then(|message| queue_entry(&core.thread, message));
        let waiting: Vec<&mut Responder> = work
            .responders
            .iter_mut()
            .filter(|(responder, at)| *at == queued && !responder.is_inserted())
            .map(|(responder, _)| responder)
            .collect();
        commit_prompt(core, waiting, change)
    }

    /// Cancels one running call, or the command of one terminal. Clients see its end like any other.
    pub(super) fn cancel_one(&mut self, target: &CancelTarget) -> Result<SessionAnswer, SessionError> {
        let (CancelTarget::Call(call) | CancelTarget::Terminal(call)) = target;
        let is_open = self.core.thread.open_calls().contains(call);
        if matches!(target, CancelTarget::Terminal(_)) && !is_open && self.tools.background().end(call) {
            return Ok(SessionAnswer::Accepted);
        }
        let placed = numbered_call(&self.core.thread, call);
        if let Some((reply, found)) = placed.filter(|_| is_open)
            && found.name == task::NAME
            // One that waits for others to end has no self yet, and is stopped like any call.
            && self.subagents.cancel(agent_id(self.core.id(), reply, call))
        {
            return Ok(SessionAnswer::Accepted);
        }
        match self.tools.call(call).stop.take().filter(|_| is_open) {
            Some(stop) => {
                stop.notify_one();
                Ok(SessionAnswer::Accepted)
            }
            None => Err(SessionError::Invalid("nothing with this id can be cancelled".to_owned())),
        }
    }
}

/// How the last turn ended, according to the log.
fn last_end(thread: &Thread) -> Option<WorkEnd> {
    let (reason, usage, failure) = thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::TurnEnded { reason, usage, failure, .. } => Some((*reason, *usage, failure)),
        _ => None,
    })?;
    let error = match reason {
        StopReason::Failed => Some(match failure {
            Some(failure) => SessionError::Provider { message: failure.clone(), hint: None },
            None => SessionError::Internal("The turn ended with an error".to_owned()),
        }),
        StopReason::Interrupted => {
            let text = "Epitome's process ended before this turn was done".to_owned();
            Some(SessionError::Interrupted(text))
        }
        StopReason::EndTurn
        | StopReason::MaxTokens
        | StopReason::MaxRounds
        | StopReason::Refusal
        | StopReason::Cancelled => None,
    };
    Some(WorkEnd { reason, usage, error })
}

// ── Prompts that become messages ───────────────────────────────────────────────────────────────────

/// Answers a prompt whose message is already in the conversation; returns any other prompt.
pub(super) fn answer_repeated(core: &Core, mut prompt: QueuedPrompt) -> Option<QueuedPrompt> {
    let earlier = prompt.responder.key().and_then(|key| core.thread.prompt_keys().find(key));
    let Some(KeyedPrompt::Inserted(message)) = earlier else { return Some(prompt) };
    prompt.responder.inserted(message);
    prompt.responder.answer(Ok(cancelled()));
    None
}

/// The entry in which an earlier request with this key waits for the next turn, and its message.
pub(super) fn queued_earlier<'a>(thread: &'a Thread, key: Option<&str>) -> Option<(Seq, &'a Message)> {
    let Some(KeyedPrompt::Missing(id)) = thread.prompt_keys().find(key?) else { return None };
    thread.queued().iter().find_map(|entry| match &entry.change {
        Change::Queued { message } if message.id == id => Some((entry.seq, message)),
        _ => None,
    })
}

/// The entry in which a prompt's message waits for a turn.
fn queue_entry(thread: &Thread, message: MessageId) -> Option<Seq> {
    let is_it = |entry: &&Arc<Entry>| entry.change.prompt() == Some(message);
    thread.queued().iter().find(is_it).map(|entry| entry.seq)
}

/// Commits a change. If it records a prompt, its sender is noted, and the key of the prompt is written before it, unless that
/// was written when the prompt was queued. `waiting`: the responders of the prompt, which are sent its message if it enters
/// the conversation.
pub(super) fn commit_prompt(
    core: &mut Core,
    waiting: Vec<&mut Responder>,
    change: Change,
) -> Result<(), SessionError> {
    let Some(message) = change.prompt() else { return core.commit(change).map(drop) };
    let enters = !matches!(change, Change::Withheld { .. });
    if let Some(responder) = waiting.first() {
        core.clients.note_author(message, responder.client());
    }
    let key = waiting.first().and_then(|responder| responder.key());
    if let Some(key) = key.filter(|_| queue_entry(&core.thread, message).is_none()) {
        core.commit(Change::PromptKeyed { message, key: key.to_owned() })?;
    }
    core.commit(change)?;
    for responder in waiting.into_iter().filter(|_| enters) {
        responder.inserted(message);
    }
    Ok(())
}

// ── Cancelling one thing ───────────────────────────────────────────────────────────────────────────
