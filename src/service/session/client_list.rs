//! The clients of a session, each of which may send prompts and answer questions, and its observers, which only receive
//! events.
//!
//! A session lives as long as it has a client. Observers don't keep it alive: when the session ends, they are kept
//! until it is opened again.

mod notices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use notices::Notices;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::event_gate::EventGate;
use super::responder::LeavingClient;
use super::{
    AccessGrant, AskId, Attachment, ClientId, EventSink, Foreground, Opening, QuestionKind, QuestionSupport,
    SessionAnswer, SessionError, SessionEvent, SessionState, Watcher,
};
use epitome_thread::{Change, Entry, MessageId, Origin, Seq, SessionId};

struct Observer {
    /// Not gated, for when the session is opened again.
    attachment: Attachment,
    gated: Attachment,
}

/// The clients and observers of one session.
pub(super) struct ClientList {
    session: SessionId,
    /// How each client was opened, with its directories and environment.
    openings: Vec<Opening>,
    observers: Vec<Observer>,
    /// Clients that were refused, or that have closed the session. Their messages since then need an answer.
    refused: Vec<Attachment>,
    /// Clients without a user who could answer an open question.
    absences: Vec<(ClientId, AskId)>,
    /// The senders of the messages that are being added or wait for a turn. A message is not sent to its sender again.
    authors: BTreeMap<MessageId, ClientId>,
    /// Clients that leave once the turn has ended.
    closers: Vec<LeavingClient>,
    /// The session is ending.
    closing: bool,
    /// The time of the last command.
    active_at: Instant,
    activity: Arc<Activity>,
    notices: Notices,
    /// The last state that was announced.
    state: Arc<SessionState>,
    gate: EventGate,
}

impl ClientList {
    pub fn new(session: SessionId) -> ClientList {
        ClientList {
            gate: EventGate::new(session.clone()),
            session,
            openings: Vec::new(),
            observers: Vec::new(),
            refused: Vec::new(),
            absences: Vec::new(),
            authors: BTreeMap::new(),
            closers: Vec::new(),
            closing: false,
            active_at: Instant::now(),
            activity: Arc::default(),
            notices: Notices::default(),
            state: Arc::new(SessionState { foreground: Foreground::Idle(None), background: Vec::new() }),
        }
    }

    // ── Membership ─────────────────────────────────────────────────────────────────────────────

    /// Whether no client could be asked.
    pub fn is_empty(&self) -> bool {
        self.openings.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = ClientId> {
        self.openings.iter().map(|opening| opening.attachment.client)
    }

    /// How a client was opened.
    pub fn opening(&self, client: ClientId) -> Option<&Opening> {
        self.openings.iter().find(|opening| opening.attachment.client == client)
    }

    pub fn attachment(&self, client: ClientId) -> Option<&Attachment> {
        self.opening(client).map(|opening| &opening.attachment)
    }

    /// An attachment whose events wait for the log, like those of all clients.
    pub fn gated(&self, attachment: &Attachment) -> Attachment {
        self.gate.attachment(attachment)
    }

    /// The client that has been attached for the longest time.
    pub fn first(&self) -> Option<&Opening> {
        self.openings.first()
    }

    /// The clients and the observers.
    fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        let observers = self.observers.iter().map(|observer| &observer.gated);
        self.openings.iter().map(|opening| &opening.attachment).chain(observers)
    }

    /// Whether this is a client or an observer.
    pub fn know(&self, client: ClientId) -> bool {
        self.attachments().any(|attachment| attachment.client == client)
    }

    /// The questions that at least one client or observer can show. Observers may answer them, too.
    pub fn shows(&self) -> QuestionSupport {
        self.attachments()
            .fold(QuestionSupport::default(), |shows, attachment| shows.or(attachment.outlet.shows()))
    }

    /// Whether a client or observer shows a summary while it is written.
    pub fn shows_summaries(&self) -> bool {
        self.attachments().any(|attachment| attachment.outlet.shows_summaries())
    }

    /// Whether a client or observer besides `absent` can show a question of this kind.
    pub fn can_show(&self, wants: &QuestionKind, absent: &[ClientId]) -> bool {
        let mut others = self.attachments().filter(|attachment| !absent.contains(&attachment.client));
        others.any(|attachment| attachment.outlet.shows().can(wants))
    }

    /// The numbers of clients and observers.
    pub fn present(&self) -> (Vec<ClientId>, usize) {
        (self.ids().collect(), self.observers.len())
    }

    /// Remembers a client that is not attached.
    pub fn refuse(&mut self, attachment: Attachment) {
        self.forget_refused(attachment.client);
        self.refused.push(attachment);
    }

    /// A client that was refused, or has closed the session, and has not been attached since.
    pub fn refused(&self, client: ClientId) -> Option<&Attachment> {
        self.refused.iter().find(|attachment| attachment.client == client)
    }

    pub fn forget_refused(&mut self, client: ClientId) {
        self.refused.retain(|attachment| attachment.client != client);
    }

    /// Removes a client that has closed the session. Its messages since then need an answer.
    pub fn dismiss(&mut self, client: ClientId) {
        if let Some(attachment) = self.attachment(client).cloned() {
            self.refuse(attachment);
        }
        self.leave(client);
    }

    /// Adds a client, or replaces its opening.
    pub fn join(&mut self, opening: Opening) {
        self.forget_refused(opening.attachment.client);
        self.leave(opening.attachment.client);
        self.openings.push(opening);
    }

    /// Removes a client; returns whether it was attached.
    pub fn leave(&mut self, client: ClientId) -> bool {
        let before = self.openings.len();
        self.openings.retain(|opening| opening.attachment.client != client);
        self.absences.retain(|(absent, _)| *absent != client);
        self.openings.len() < before
    }

    pub fn watch(&mut self, attachment: Attachment) {
        self.unwatch(attachment.client);
        self.observers.push(Observer { gated: self.gated(&attachment), attachment });
    }

    pub fn unwatch(&mut self, client: ClientId) {
        self.observers.retain(|observer| observer.attachment.client != client);
    }

    /// Removes and returns the observers. They have seen all entries before `from`.
    pub fn take_watchers(&mut self, from: Seq) -> Vec<Watcher> {
        let attachments = self.observers.drain(..).map(|observer| observer.attachment);
        attachments.map(|attachment| Watcher { from, attachment }).collect()
    }

    // ── Announcing ─────────────────────────────────────────────────────────────────────────────

    /// Holds all events from now on, because they follow an entry that is not written yet.
    pub fn hold_events(&self) {
        self.gate.close();
    }

    /// Sends the held events.
    pub fn release_events(&self) {
        self.gate.open();
    }

    /// Sends the held events after entries from this one on could not be written: without these entries, and with
    /// successful answers replaced by the error. Returns the clients whose successful answer to `Attach` was replaced.
    pub fn drop_events(&self, from: Seq, error: &SessionError) -> Vec<ClientId> {
        self.gate.fail(from, error)
    }

    /// Sends an event to all clients and observers.
    pub fn announce(&self, out: &SessionEvent) {
        self.send_each(|_| out.clone());
    }

    /// Sends an event to one client, if it is still attached.
    pub fn send(&self, client: ClientId, out: SessionEvent) {
        if let Some(attachment) = self.attachment(client) {
            attachment.outlet.put(&self.session, out);
        }
    }

    /// Sends a new entry of the log to all clients and observers.
    pub fn announce_entry(&self, entry: &Arc<Entry>) {
        self.send_each(|client| SessionEvent::Entry {
            entry: entry.clone(),
            replay: false,
            own: self.author(&entry.change) == Some(client),
        });
    }

    /// Sends an entry that others have added meanwhile to all clients and observers except for one.
    pub fn announce_later_entry(&self, entry: &Arc<Entry>, except: Option<ClientId>) {
        for attachment in self.attachments().filter(|attachment| Some(attachment.client) != except) {
            let entry = SessionEvent::Entry { entry: entry.clone(), replay: false, own: false };
            attachment.outlet.put(&self.session, entry);
        }
    }

    fn send_each(&self, out: impl Fn(ClientId) -> SessionEvent) {
        for attachment in self.attachments() {
            attachment.outlet.put(&self.session, out(attachment.client));
        }
    }

    /// Sends an event of a subagent, under the id of its session, to the clients and observers that show subagents.
    pub fn announce_subagent(&self, session: &SessionId, out: &SessionEvent) {
        self.announce_where(|sink| sink.shows_agents(), session, out);
    }

    fn announce_where(
        &self,
        is_wanted: impl Fn(&dyn EventSink) -> bool,
        session: &SessionId,
        out: &SessionEvent,
    ) {
        for attachment in self.attachments().filter(|attachment| is_wanted(&*attachment.outlet)) {
            attachment.outlet.put(session, out.clone());
        }
    }

    // ── The session's state ────────────────────────────────────────────────────────────────────

    /// Whether any client or observer follows the session's state.
    pub fn is_followed(&self) -> bool {
        self.attachments().any(|attachment| attachment.outlet.follows_state())
    }

    /// The last state that was announced.
    pub fn state(&self) -> Arc<SessionState> {
        self.state.clone()
    }

    /// Announces a state to followers if it differs. Work that ended unannounced is announced as running before its
    /// end.
    pub fn set_state(&mut self, state: SessionState) {
        use Foreground::{Idle, RequiresAction, Running};
        let is_known = match (&self.state.foreground, &state.foreground) {
            (Idle(_), Idle(Some(_))) => {
                let running = SessionState { foreground: Running, background: self.state.background.clone() };
                self.announce_to_followers(&SessionEvent::State(Arc::new(running)));
                false
            }
            (Running, Running) | (RequiresAction, RequiresAction) | (Idle(_), Idle(None)) => true,
            (Running | RequiresAction | Idle(_), _) => false,
        };
        if is_known && self.state.background == state.background {
            return;
        }
        self.state = Arc::new(state);
        self.announce_to_followers(&SessionEvent::State(self.state.clone()));
    }

    pub fn announce_to_followers(&self, out: &SessionEvent) {
        self.announce_where(|sink| sink.follows_state(), &self.session, out);
    }

    /// The rights of a client on another machine.
    pub fn grant(&self, client: ClientId) -> Option<&AccessGrant> {
        self.attachment(client)?.outlet.grant()
    }

    /// Names the author of a prompt that came from another machine.
    pub fn sign(&self, mut change: Change) -> Change {
        if let Change::Said { message, origin: Origin::Person | Origin::Recipe { .. } }
        | Change::Queued { message } = &mut change
            && message.author.is_none()
        {
            let author = self.authors.get(&message.id);
            message.author = author.and_then(|author| self.grant(*author)).map(|grant| grant.name.clone());
        }
        change
    }

    /// Records that a client has sent a message.
    pub fn note_author(&mut self, message: MessageId, client: ClientId) {
        self.authors.insert(message, client);
    }

    /// The client that has sent the message of a change.
    fn author(&self, change: &Change) -> Option<ClientId> {
        self.authors.get(&change.prompt()?).copied()
    }

    /// Only these prompts still wait.
    pub fn forget_authors(&mut self, waiting: &[Arc<Entry>]) {
        self.authors.retain(|message, _| waiting.iter().any(|entry| entry.change.prompt() == Some(*message)));
    }

    // ── Unanswerable questions ─────────────────────────────────────────────────────────────────

    /// Records that a client has no user who could answer this question. `open`: all open questions.
    pub fn set_absent(&mut self, client: ClientId, ask: AskId, open: &[AskId]) {
        self.absences.retain(|(_, about)| open.contains(about));
        let is_known = self.absences.contains(&(client, ask));
        if open.contains(&ask) && self.opening(client).is_some() && !is_known {
            self.absences.push((client, ask));
        }
    }

    /// Removes and returns the questions that no remaining client can answer. Returns none if no client remains.
    pub fn take_unanswerable(&mut self) -> BTreeSet<AskId> {
        let staying: Vec<ClientId> = self.ids().filter(|client| !self.is_leaving(*client)).collect();
        let is_unanswerable = |ask: &AskId| {
            !staying.is_empty() && staying.iter().all(|client| self.absences.contains(&(*client, *ask)))
        };
        let taken: BTreeSet<AskId> =
            self.absences.iter().map(|(_, ask)| *ask).filter(is_unanswerable).collect();
        self.absences.retain(|(_, ask)| !taken.contains(ask));
        taken
    }

    // ── Leaving and ending ─────────────────────────────────────────────────────────────────────

    /// Removes a client once the turn has ended.
    pub fn leave_later(&mut self, closer: LeavingClient) {
        self.closers.push(closer);
    }

    /// Whether any client is waiting for the end of the turn to leave.
    pub fn wait_to_leave(&self) -> bool {
        !self.closers.is_empty()
    }

    fn is_leaving(&self, client: ClientId) -> bool {
        self.closers.iter().any(|closer| closer.client == client)
    }

    /// Whether any other client stays.
    pub fn others_stay(&self, client: ClientId) -> bool {
        self.ids().any(|other| other != client && !self.is_leaving(other))
    }

    /// Removes the clients that were waiting for the end of the turn. If no others remain, the session ends instead,
    /// and those clients are answered at its end.
    pub fn release(&mut self) {
        if self.closers.is_empty() {
            return;
        }
        if self.ids().all(|client| self.is_leaving(client)) {
            self.closing = true;
            return;
        }
        for LeavingClient { client, responder } in std::mem::take(&mut self.closers) {
            match responder {
                Some(responder) => {
                    self.dismiss(client);
                    responder.answer(Ok(SessionAnswer::Closed));
                }
                None => drop(self.leave(client)),
            }
        }
    }

    /// Ends the session.
    pub fn close(&mut self) {
        self.closing = true;
    }

    pub fn are_closing(&self) -> bool {
        self.closing
    }

    /// Answers the clients that requested the end of the session.
    pub fn answer_closers(self) {
        for responder in self.closers.into_iter().filter_map(|closer| closer.responder) {
            responder.answer(Ok(SessionAnswer::Closed));
        }
    }

    // ── Activity ───────────────────────────────────────────────────────────────────────────────

    /// Records that a command has arrived.
    pub fn note_activity(&mut self) {
        self.active_at = Instant::now();
    }

    /// The time since the last command.
    pub fn idle_for(&self) -> Duration {
        self.active_at.elapsed()
    }

    /// Sets where the session publishes its activity.
    pub fn share_activity(&mut self, activity: Arc<Activity>) {
        self.activity = activity;
    }

    /// Publishes the session's activity. `unsynced`: some entries may not be on disk yet.
    pub fn publish_activity(&self, running: bool, asks: bool, prompts: usize, unsynced: bool) {
        let mut now = self.activity.0.lock();
        // Its memory is used again.
        let mut clients = std::mem::take(&mut now.clients);
        clients.clear();
        clients.extend(self.ids());
        *now = ActivityNow { running, asks, clients, watchers: self.observers.len(), prompts, unsynced };
    }
}

/// A session's activity, readable from outside without sending it a command.
#[derive(Clone, Default)]
pub(super) struct ActivityNow {
    /// A turn is running or waiting.
    pub running: bool,
    /// Only the user can go on.
    pub asks: bool,
    pub clients: Vec<ClientId>,
    pub watchers: usize,
    /// Prompts waiting for their turn or to enter the running one.
    pub prompts: usize,
    /// Some entries may not be on disk yet.
    pub unsynced: bool,
}

/// The shared place where a session publishes its activity.
#[derive(Default)]
pub(super) struct Activity(Mutex<ActivityNow>);

impl Activity {
    pub fn get(&self) -> ActivityNow {
        self.0.lock().clone()
    }
}
