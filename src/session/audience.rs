//! Who follows a session: its clients, of whom one may send prompts and be asked, and observers, who only look on.
//!
//! A session lives as long as it has a client. Observers keep nothing alive: when the session ends they are
//! handed back, to be there again when it is opened the next time.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::actor::Session;
use super::work::{Prompt, Responder};
use super::{AskId, Attachment, ClientId, Opening, Out, Shows};
use epitome_thread::{CallId, Change, Seq, SessionId, ToolCall};
use epitome_tools::Workspace;

/// Somebody who looks on, and the first entry that they have not seen.
pub struct Watcher {
    pub from: Seq,
    pub attachment: Attachment,
}

/// All who follow.
#[derive(Default)]
pub(super) struct Audience {
    /// With how each client was opened: its directories, its environment.
    seats: Vec<Opening>,
    observers: Vec<Attachment>,
    /// Which clients have nobody whom they could ask an open question.
    absences: Vec<(ClientId, AskId)>,
}

impl Audience {
    /// Whether no client is there who could be asked.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    pub fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.seats.iter().map(|seat| seat.attachment.client)
    }

    pub fn seat(&self, client: ClientId) -> Option<&Opening> {
        self.seats.iter().find(|seat| seat.attachment.client == client)
    }

    /// Who has been there longest.
    pub fn first(&self) -> Option<&Opening> {
        self.seats.first()
    }

    /// The questions that at least one of those who follow can show. Who looks on may answer, too.
    pub fn shows(&self) -> Shows {
        let all = self.seats.iter().map(|seat| &seat.attachment).chain(&self.observers);
        all.fold(Shows::default(), |shows, attachment| shows.or(attachment.outlet.shows()))
    }

    /// The clients, and the observers.
    pub fn counts(&self) -> (usize, usize) {
        (self.seats.len(), self.observers.len())
    }

    /// Takes a client in; one that is there already moves to its new opening. Whether it was there.
    pub fn join(&mut self, seat: Opening) -> bool {
        let was_there = self.leave(seat.attachment.client);
        self.seats.push(seat);
        was_there
    }

    /// Whether the client was there.
    pub fn leave(&mut self, client: ClientId) -> bool {
        let before = self.seats.len();
        self.seats.retain(|seat| seat.attachment.client != client);
        self.absences.retain(|(absent, _)| *absent != client);
        self.seats.len() < before
    }

    /// Keeps that a client, if it is one, has nobody to ask this.
    pub fn is_absent(&mut self, client: ClientId, ask: AskId) {
        if self.seat(client).is_some() && !self.absences.contains(&(client, ask)) {
            self.absences.push((client, ask));
        }
    }

    /// Forgets who was absent for other questions.
    pub fn keep_absences(&mut self, is_open: impl Fn(AskId) -> bool) {
        self.absences.retain(|(_, ask)| is_open(*ask));
    }

    /// The questions for which none of these clients has anybody; without clients, none.
    pub fn without_anybody(&self, clients: &[ClientId]) -> BTreeSet<AskId> {
        let is_unanswerable = |ask: &AskId| {
            !clients.is_empty() && clients.iter().all(|client| self.absences.contains(&(*client, *ask)))
        };
        self.absences.iter().map(|(_, ask)| *ask).filter(is_unanswerable).collect()
    }

    pub fn watch(&mut self, attachment: Attachment) {
        self.unwatch(attachment.client);
        self.observers.push(attachment);
    }

    pub fn unwatch(&mut self, client: ClientId) {
        self.observers.retain(|observer| observer.client != client);
    }

    /// Takes the observers out, who have seen all before this entry.
    pub fn take_watchers(&mut self, from: Seq) -> Vec<Watcher> {
        self.observers.drain(..).map(|attachment| Watcher { from, attachment }).collect()
    }

    /// Tells each of them something.
    pub fn tell(&self, session: &SessionId, mut out: impl FnMut(ClientId) -> Out) {
        for attachment in self.seats.iter().map(|seat| &seat.attachment).chain(&self.observers) {
            attachment.outlet.put(session, out(attachment.client));
        }
    }
}

impl Audience {
    /// Tells those who show agents something of one, under this session's id.
    pub fn tell_of_agents(&self, session: &SessionId, out: &Out) {
        let all = self.seats.iter().map(|seat| &seat.attachment).chain(&self.observers);
        for attachment in all.filter(|attachment| attachment.outlet.shows_agents()) {
            attachment.outlet.put(session, out.clone());
        }
    }
}

/// What can be seen of a session's life from outside, without asking it.
#[derive(Default)]
pub(super) struct Pulse {
    running: AtomicBool,
    clients: AtomicUsize,
    watchers: AtomicUsize,
    /// Prompts that wait for their turn, or for a turn to take them in.
    prompts: AtomicUsize,
    /// Whether entries are not known to be on the disk yet.
    unsynced: AtomicBool,
}

/// A session's life at one moment.
pub(super) struct Beat {
    /// A turn runs or waits.
    pub running: bool,
    pub clients: usize,
    pub watchers: usize,
    pub prompts: usize,
    pub unsynced: bool,
}

impl Pulse {
    fn set(&self, beat: &Beat) {
        // Each is a figure for a person to look at; none is told by another.
        self.running.store(beat.running, Ordering::Relaxed);
        self.clients.store(beat.clients, Ordering::Relaxed);
        self.watchers.store(beat.watchers, Ordering::Relaxed);
        self.prompts.store(beat.prompts, Ordering::Relaxed);
        self.unsynced.store(beat.unsynced, Ordering::Relaxed);
    }

    pub fn get(&self) -> Beat {
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Beat {
            running: self.running.load(Ordering::Relaxed),
            clients: count(&self.clients),
            watchers: count(&self.watchers),
            prompts: count(&self.prompts),
            unsynced: self.unsynced.load(Ordering::Relaxed),
        }
    }
}

impl Session {
    pub(super) fn show_pulse(&self) {
        self.door.set_shows(self.audience.shows());
        let running = self.work.is_some() || !self.waiting.is_empty();
        let (clients, watchers) = self.audience.counts();
        self.pulse.set(&Beat {
            running,
            clients,
            watchers,
            prompts: self.waiting.len() + self.thread.queued().len(),
            unsynced: self.sync_due,
        });
        let may_change_files =
            running || self.rendering.is_some() || self.rewinding || self.background_commands.running() > 0;
        self.buffers.set_busy(may_change_files);
    }

    /// Lets somebody look on, who is told of everything from this entry on.
    pub(super) fn watch(&mut self, Watcher { from, attachment }: Watcher) {
        for entry in self.thread.entries().iter().filter(|entry| entry.seq >= from) {
            let out = Out::Entry { entry: entry.clone(), replay: true, own: false };
            attachment.outlet.put(&self.id, out);
        }
        self.show_live_text(&attachment);
        self.show_agents_at_work(&attachment, true);
        self.show_open_asks(&attachment);
        if let Some(usage) = self.usage_now() {
            attachment.outlet.put(&self.id, Out::Usage(usage));
        }
        self.audience.watch(attachment);
    }

    /// Shows how a turn was ended that a process before this one left open.
    pub(super) fn show_repairs(&self, attachment: &Attachment) {
        let entries = self.thread.entries();
        let (before, repairs) =
            entries.split_at(entries.partition_point(|entry| entry.seq < self.repaired_from));
        let ended: Vec<&CallId> = repairs
            .iter()
            .filter_map(|entry| match &entry.change {
                Change::ToolFinished { outcome } => Some(&outcome.call),
                _ => None,
            })
            .collect();
        let replies = before.iter().rev().filter_map(|entry| match &entry.change {
            Change::Replied { message, .. } => Some(message),
            _ => None,
        });
        let calls: Vec<ToolCall> = replies
            .take(1)
            .flat_map(|message| message.calls())
            .filter(|call| ended.contains(&&call.id))
            .cloned()
            .collect();
        for call in &calls {
            self.show_lost_agent(attachment, call);
        }
        attachment.outlet.put(&self.id, Out::CallsSeen { calls });
        for entry in repairs {
            let out = Out::Entry { entry: entry.clone(), replay: false, own: false };
            attachment.outlet.put(&self.id, out);
        }
    }

    /// Works in the surroundings of a client from now on: its keys, its directories. Those of the log's own
    /// directory stay where the client is gone already.
    pub(super) fn work_for(&mut self, client: ClientId) {
        let Some(seat) = self.audience.seat(client) else { return };
        let (environment, directories) = (seat.environment.clone(), seat.directories.clone());
        let same = Arc::ptr_eq(&self.workspace.environment, &environment)
            || *self.workspace.environment == *environment;
        if same && self.workspace.directories == directories {
            return;
        }
        if !same {
            // Keys and addresses are looked up in the new one.
            self.endpoint = None;
        }
        let cwd = self.thread.cwd().to_path_buf();
        self.workspace = Arc::new(Workspace { cwd, directories, environment });
    }

    /// A client goes and others stay: nothing that runs is cancelled. What it had asked for is answered at
    /// once, and goes on for those who stay.
    pub(super) fn leave_to_others(&mut self, client: ClientId) {
        self.audience.leave(client);
        let is_theirs = |responder: &Responder| responder.client() == client;
        let (waiting, staying) =
            std::mem::take(&mut self.waiting).into_iter().partition(|prompt| is_theirs(&prompt.responder));
        self.waiting = staying;
        let waiting: VecDeque<Prompt> = waiting;
        let working: Vec<_> = match &mut self.work {
            Some(work) => work.responders.extract_if(.., |(responder, _)| is_theirs(responder)).collect(),
            None => Vec::new(),
        };
        let waiting = waiting.into_iter().map(|prompt| prompt.responder);
        for responder in waiting.chain(working.into_iter().map(|(responder, _)| responder)) {
            responder.answer(Ok(super::ending::cancelled()));
        }
    }

    /// Whether others than this client stay.
    pub(super) fn others_stay(&self, client: ClientId) -> bool {
        self.audience.clients().any(|other| other != client && !self.is_leaving(other))
    }
}
