//! Questions that nobody can answer: a client that has nobody to ask says so, and leaves the card to the others. Once
//! that holds of all who are there, the question is settled. It decides nothing that a person could.

use super::actor::Session;
use super::{AskId, ClientId, Decision};

impl Session {
    /// Takes in that a client has nobody to ask. A late or unknown question is ignored, as is a stranger's word.
    pub(super) fn absent(&mut self, ask: AskId, client: ClientId) {
        let open = self.open_permissions();
        self.audience.keep_absences(|about| open.contains(&about));
        if open.contains(&ask) {
            self.audience.is_absent(client, ask);
        }
    }

    /// Settles the questions that nobody can answer who is still there. It is looked at behind every event: a client
    /// that leaves may have been the only one with a person.
    pub(super) fn settle_absent(&mut self) {
        let left: Vec<ClientId> =
            self.audience.clients().filter(|client| !self.is_leaving(*client)).collect();
        for ask in self.audience.without_anybody(&left) {
            self.audience.keep_absences(|about| about != ask);
            self.decided(ask, Decision::Absent);
        }
    }

    /// The questions for permission that are open, this session's and its children's.
    fn open_permissions(&self) -> Vec<AskId> {
        let own = self.work.as_ref().and_then(|work| work.ask.as_ref()).map(|open| open.ask);
        let consent = self.open_consent().map(|(ask, _)| ask);
        own.into_iter().chain(consent).chain(self.foreign_asks()).collect()
    }
}
