//! The state of a session, for clients that follow it: whether it runs, waits for the user or is idle, its background
//! commands, and the message that a prompt became. Clients that don't follow it get none of these events.

use std::sync::Arc;

use super::actor::Session;
use super::core::Core;
use super::ending::cancelled;
use super::subagents::{agent_id, call_with_place};
use super::work::{QueuedPrompt, Responder};
use super::{
    BackgroundTerminal, CancelTarget, ClientId, Foreground, SessionAnswer, SessionError, SessionEvent,
    SessionNow, SessionState, WorkEnd,
};
use epitome_thread::{
    Change, Entry, KeyedPrompt, Message, MessageId, Origin, Seq, StopReason, Thread, Usage,
};
use epitome_tools::task;

// ── State ──────────────────────────────────────────────────────────────────────────────────────────

/// Foreground work starts: all following events belong to it.
pub(super) fn begins(session: &mut Session) {
    set(session, Foreground::Running);
}

/// Foreground work has ended, and all its events were announced.
pub(super) fn ended(session: &mut Session, end: WorkEnd) {
    set(session, Foreground::Idle(Some(end)));
}

/// Announces changes of the state. Called after every event.
pub(super) fn refresh(session: &mut Session) {
    let foreground = foreground(session);
    set(session, foreground);
}

/// The session ends, and with it its background commands.
pub(super) fn closes(session: &mut Session) {
    if !session.core.clients.is_followed() {
        return;
    }
    for BackgroundTerminal { call, .. } in &session.core.clients.state().background {
        let ended = SessionEvent::TerminalEnded { call: call.clone(), code: None, signal: None };
        session.core.clients.announce_to_followers(&ended);
    }
    session
        .core
        .clients
        .set_state(SessionState { foreground: Foreground::Idle(None), background: Vec::new() });
}

fn set(session: &mut Session, foreground: Foreground) {
    if !session.core.clients.is_followed() {
        return;
    }
    let commands = session.tools.background().clone();
    let background: Vec<BackgroundTerminal> = background(session);
    for gone in session.core.clients.state().background.iter().filter(|known| !background.contains(known)) {
        let (code, signal) = commands.exit_of(&gone.call).unwrap_or_default();
        let ended = SessionEvent::TerminalEnded { call: gone.call.clone(), code, signal };
        session.core.clients.announce_to_followers(&ended);
    }
    session.core.clients.set_state(SessionState { foreground, background });
}

fn foreground(session: &Session) -> Foreground {
    let is_asking = session.hooks.open_consent().is_some();
    match &session.work {
        Some(work) => {
            let waits = work.model.is_none() && work.jobs.is_empty();
            match waits && session.core.permissions.shown().is_some() {
                true => Foreground::RequiresAction,
                false => Foreground::Running,
            }
        }
        None if is_asking => Foreground::RequiresAction,
        None if session.recipes.are_rendering() || session.inbox.is_paused() => Foreground::Running,
        None => Foreground::Idle(None),
    }
}

/// Whether only the user can go on.
pub(super) fn asks(session: &Session) -> bool {
    matches!(foreground(session), Foreground::RequiresAction)
}

fn background(session: &Session) -> Vec<BackgroundTerminal> {
    let running = session.tools.background().terminals();
    // A call that is still running is foreground work.
    let open = session.core.thread.open_calls();
    running
        .into_iter()
        .filter(|(call, _)| !open.contains(call))
        .map(|(call, line)| BackgroundTerminal { call, line })
        .collect()
}

/// The state for a client that attaches.
pub(super) fn now(session: &Session) -> SessionNow {
    let foreground = match foreground(session) {
        Foreground::Idle(_) => Foreground::Idle(last_end(&session.core.thread)),
        foreground => foreground,
    };
    SessionNow {
        state: SessionState { foreground, background: background(session) },
        commands: session.recipes.command_list(),
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

/// The end of a command that called no model.
pub(super) fn command_ended(session: &mut Session, reason: StopReason, error: Option<SessionError>) {
    ended(session, WorkEnd { reason, usage: Usage::default(), error });
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

/// The message that a change inserts for a prompt, and the entry in which the prompt was queued.
fn inserts(change: &Change) -> Option<(MessageId, Option<Seq>)> {
    match change {
        Change::Said { message, origin: Origin::Person | Origin::Recipe { .. } } => Some((message.id, None)),
        Change::Said { message, origin: Origin::Queue { entry } } => Some((message.id, Some(*entry))),
        Change::Commanded { message, .. } => Some((*message, None)),
        _ => None,
    }
}

/// Commits a change of the running turn. If it inserts a prompt's message, the prompt's key is written before it, and
/// the clients are sent the message's id.
pub(super) fn commit_of_turn(session: &mut Session, change: Change) -> Result<(), SessionError> {
    let Session { core, work: Some(work), .. } = session else {
        return session.core.commit(change).map(drop);
    };
    if let Change::Withheld { message, .. } = &change {
        let is_it = |entry: &&Arc<Entry>| matches!(&entry.change, Change::Queued { message: queued } if queued.id == message.id);
        let queued = core.thread.queued().iter().find(is_it).map(|entry| entry.seq);
        let author = author(core, &work.responders, queued);
        core.clients.set_prompt_author(author);
    }
    let Some((message, queued)) = inserts(&change) else { return core.commit(change).map(drop) };
    // Another client may have queued a prompt since.
    let author = author(core, &work.responders, queued);
    core.clients.set_prompt_author(author);
    let waiting: Vec<&mut Responder> = work
        .responders
        .iter_mut()
        .filter(|(responder, at)| *at == queued && !responder.is_inserted())
        .map(|(responder, _)| responder)
        .collect();
    insert(core, waiting, message, queued, change)
}

/// Who sent a prompt: the one that began the turn, or the one that waited in this entry.
fn author(core: &Core, responders: &[(Responder, Option<Seq>)], queued: Option<Seq>) -> Option<ClientId> {
    // A client may have sent it to a process before this one, and wait for it here.
    let waits = || responders.iter().find(|(_, at)| *at == queued).map(|(responder, _)| responder.client());
    queued.and_then(|entry| core.clients.queued_by(entry)).or_else(waits)
}

/// Commits the command that a prompt is.
pub(super) fn commit_command(
    core: &mut Core,
    responder: &mut Responder,
    change: Change,
) -> Result<(), SessionError> {
    match inserts(&change) {
        Some((message, queued)) => insert(core, vec![responder], message, queued, change),
        None => core.commit(change).map(drop),
    }
}

fn insert(
    core: &mut Core,
    waiting: Vec<&mut Responder>,
    message: MessageId,
    queued: Option<Seq>,
    change: Change,
) -> Result<(), SessionError> {
    // A queued prompt's key precedes its queued message.
    let key = waiting.first().and_then(|responder| responder.key()).filter(|_| queued.is_none());
    if let Some(key) = key {
        core.commit(Change::PromptKeyed { message, key: key.to_owned() })?;
    }
    core.commit(change)?;
    for responder in waiting {
        responder.inserted(message);
    }
    Ok(())
}

// ── Cancelling one thing ───────────────────────────────────────────────────────────────────────────

/// Cancels one running call, or the command of one terminal. Clients see its end like any other.
pub(super) fn cancel(session: &mut Session, target: &CancelTarget) -> Result<SessionAnswer, SessionError> {
    let (CancelTarget::Call(call) | CancelTarget::Terminal(call)) = target;
    let is_open = session.core.thread.open_calls().contains(call);
    if matches!(target, CancelTarget::Terminal(_)) && !is_open && session.tools.background().end(call) {
        return Ok(SessionAnswer::Accepted);
    }
    let placed = call_with_place(&session.core.thread, call);
    if let Some((reply, found)) = placed.filter(|_| is_open)
        && found.name == task::NAME
        // One that waits for others to end has no session yet, and is stopped like any call.
        && session.subagents.cancel(agent_id(session.core.id(), reply, call))
    {
        return Ok(SessionAnswer::Accepted);
    }
    match session.tools.call(call).stop.take().filter(|_| is_open) {
        Some(stop) => {
            stop.notify_one();
            Ok(SessionAnswer::Accepted)
        }
        None => Err(SessionError::Invalid("there is nothing of this id that could be cancelled".to_owned())),
    }
}
