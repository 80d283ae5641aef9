//! Holds a session's events until the entries that they follow are written.
//!
//! A session numbers an entry and continues while the entry is being written. All events to clients in the meantime,
//! including answers, wait here in order. If the entry can't be written, it is dropped as if it had never existed:
//! clients don't see it, and no answer reports a success.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Attachment, ClientId, EventSink, SessionAnswer, SessionError, SessionEvent};
use epitome_thread::{Seq, SessionId};

/// See the module. If it is dropped while closed, which only happens if the session panics, answers are sent as errors.
pub(super) struct EventGate {
    /// The session whose entries are checked; agents number their entries separately.
    session: SessionId,
    state: Arc<Mutex<GateState>>,
}

/// Events that are held for one client: those of the entries that wait for the writer (`log::UNWRITTEN_MAX`), a few with
/// each of them, and an answer to each request that the session has accepted.
const HELD_MAX: usize = 8_192;

#[derive(Default)]
struct GateState {
    is_closed: bool,
    /// The waiting events, at most [`HELD_MAX`] for each client: the gate is closed from an entry until it is written,
    /// and until then the session handles no other event.
    held: VecDeque<HeldEvent>,
}

struct HeldEvent {
    attachment: Attachment,
    session: SessionId,
    out: SessionEvent,
}

struct GatedOutlet {
    attachment: Attachment,
    gate: Arc<Mutex<GateState>>,
}

impl EventGate {
    pub fn new(session: SessionId) -> EventGate {
        EventGate { session, state: Arc::default() }
    }

    /// Returns the same attachment, with events passing through the gate.
    pub fn attachment(&self, attachment: &Attachment) -> Attachment {
        let outlet = GatedOutlet { attachment: attachment.clone(), gate: self.state.clone() };
        Attachment { client: attachment.client, outlet: Arc::new(outlet) }
    }

    pub fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Sends all held events, and all further ones at once.
    pub fn open(&self) {
        let mut state = self.state.lock();
        state.is_closed = false;
        // Under the lock, so that no event overtakes another.
        state.held.drain(..).for_each(HeldEvent::pass);
    }

    /// Opens the gate after entries from this one on could not be written. These are dropped, as are options and the
    /// messages of prompts. Successful answers may depend on them, so they become the error. Returns the clients whose
    /// successful answer to `Attach` was replaced.
    pub fn fail(&self, from: Seq, error: &SessionError) -> Vec<ClientId> {
        let mut state = self.state.lock();
        state.is_closed = false;
        let mut refused = Vec::new();
        for mut held in state.held.drain(..) {
            let may_be_unwritten = match &held.out {
                SessionEvent::Entry { entry, .. } => entry.seq >= from,
                // The session announces the present options next. The prompt's answer is the error.
                SessionEvent::Options(_) | SessionEvent::Inserted { .. } => true,
                _ => false,
            };
            if may_be_unwritten && held.session == self.session {
                continue;
            }
            if let SessionEvent::Answer { answer: answer @ Ok(_), .. } = &mut held.out {
                if matches!(answer, Ok(SessionAnswer::Attached { .. })) {
                    refused.push(held.attachment.client);
                }
                *answer = Err(error.clone());
            }
            held.pass();
        }
        refused
    }
}

impl Drop for EventGate {
    fn drop(&mut self) {
        let message = "the session ended before it could answer; load it again and repeat".to_owned();
        self.fail(Seq(0), &SessionError::Internal(message));
    }
}

impl HeldEvent {
    fn is_for(&self, client: ClientId) -> bool {
        self.attachment.client == client
    }

    fn pass(self) {
        self.attachment.outlet.put(&self.session, self.out);
    }
}

impl EventSink for GatedOutlet {
    fn put(&self, session: &SessionId, out: SessionEvent) {
        let mut gate = self.gate.lock();
        match gate.is_closed {
            true => {
                debug_assert!(
                    gate.held.len() < HELD_MAX
                        || gate.held.iter().filter(|held| held.is_for(self.attachment.client)).count()
                            < HELD_MAX,
                    "a gate opens between two events of its session"
                );
                let attachment = self.attachment.clone();
                gate.held.push_back(HeldEvent { attachment, session: session.clone(), out });
            }
            // Under the lock, so that events stay in order.
            false => self.attachment.outlet.put(session, out),
        }
    }

    fn inner(&self) -> Option<&dyn EventSink> {
        Some(&*self.attachment.outlet)
    }
}
