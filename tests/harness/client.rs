//! A client of sessions, with the events that it received.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use epitome_session::{
    ClientId, EditorSupport, EventSink, QuestionSupport, SessionAnswer, SessionError, SessionEvent, Ticket,
};
use epitome_thread::{Change, SessionId};
use parking_lot::Mutex;

use super::WITHIN;

/// See the module's documentation.
pub struct TestClient {
    pub id: ClientId,
    pub outlet: Arc<Events>,
    events: Receiver<(SessionId, SessionEvent)>,
    /// Events that no test has consumed.
    pub seen: Vec<SessionEvent>,
}

/// The receiver of a client's events, and the client's abilities.
pub struct Events {
    sender: Mutex<Sender<(SessionId, SessionEvent)>>,
    offers: Mutex<EditorSupport>,
    shows: QuestionSupport,
    shows_agents: bool,
    follows_state: bool,
}

impl EventSink for Events {
    fn put(&self, session: &SessionId, out: SessionEvent) {
        // A finished test has dropped the receiver.
        drop(self.sender.lock().send((session.clone(), out)));
    }

    fn offers(&self) -> EditorSupport {
        *self.offers.lock()
    }

    fn shows_summaries(&self) -> bool {
        true
    }

    fn shows(&self) -> QuestionSupport {
        self.shows
    }

    fn shows_agents(&self) -> bool {
        self.shows_agents
    }

    fn follows_state(&self) -> bool {
        self.follows_state
    }
}

impl TestClient {
    pub fn new(id: u64) -> TestClient {
        TestClient::with(id, QuestionSupport::default(), false, false)
    }

    /// A client that follows the session's state, as those of version 2 do.
    pub fn that_follows_state(id: u64) -> TestClient {
        TestClient::with(id, QuestionSupport::default(), false, true)
    }

    /// A client that shows forms or URLs.
    pub fn that_shows(id: u64, shows: QuestionSupport) -> TestClient {
        TestClient::with(id, shows, false, false)
    }

    /// A client that shows subagents, whose events it receives too.
    pub fn that_shows_agents(id: u64) -> TestClient {
        TestClient::with(id, QuestionSupport::default(), true, false)
    }

    fn with(id: u64, shows: QuestionSupport, shows_agents: bool, follows_state: bool) -> TestClient {
        let (sender, events) = channel();
        let events_of = Events {
            sender: Mutex::new(sender),
            offers: Mutex::default(),
            shows,
            shows_agents,
            follows_state,
        };
        TestClient { id: ClientId(id), outlet: Arc::new(events_of), events, seen: Vec::new() }
    }

    /// Declares the editor features of the client from now on.
    pub fn offers(&self, offers: EditorSupport) {
        *self.outlet.offers.lock() = offers;
    }

    /// The next event with its session; not one of `seen`.
    #[track_caller]
    pub fn next_event(&mut self) -> (SessionId, SessionEvent) {
        let next = self.events.recv_timeout(WITHIN);
        next.unwrap_or_else(|_| panic!("it did not come; so far {}", described(&self.seen)))
    }

    /// Waits for an event of this kind and consumes it; one that came earlier and was not consumed counts.
    #[track_caller]
    pub fn until<T>(&mut self, wanted: impl Fn(&SessionEvent) -> Option<T>) -> T {
        for at in 0.. {
            if at == self.seen.len() {
                let (_, out) = self.next_event();
                self.seen.push(out);
            }
            if let Some(found) = wanted(&self.seen[at]) {
                self.seen.remove(at);
                return found;
            }
        }
        unreachable!("the loop ends by what it waits for")
    }

    /// The events that have arrived and were not consumed.
    pub fn arrived(&mut self) -> &[SessionEvent] {
        self.seen.extend(self.events.try_iter().map(|(_, out)| out));
        &self.seen
    }

    #[track_caller]
    pub fn answer(&mut self, wanted: Ticket) -> Result<SessionAnswer, SessionError> {
        self.until(|out| match out {
            SessionEvent::Answer { ticket, answer } if *ticket == wanted => Some(answer.clone()),
            _ => None,
        })
    }

    /// Waits for an entry of the log of this kind and consumes it.
    #[track_caller]
    pub fn entry<T>(&mut self, wanted: impl Fn(&Change) -> Option<T>) -> T {
        self.until(|out| match out {
            SessionEvent::Entry { entry, .. } => wanted(&entry.change),
            _ => None,
        })
    }
}

/// A short description of each event.
fn described(seen: &[SessionEvent]) -> String {
    let lines =
        seen.iter().map(|out| format!("\n{}", format!("{out:?}").chars().take(160).collect::<String>()));
    lines.collect()
}
