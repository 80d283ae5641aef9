//! Questions to the user other than permissions: a form, or an address to open. They are sent to every client that
//! can show them; the first answer counts, and the others are withdrawn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::client_list::ClientList;
use super::{AskId, ClientId, SessionEvent};
use epitome_tools::question::{QuestionMessage, QuestionReply, QuestionSender, UserQuestion};

/// Maximum number of open questions; further ones are refused immediately.
const OPEN_MAX: usize = 8;

/// Maximum time for which a question is open: the tool or server that asks waits for it, and a user may be at lunch.
const OPEN_TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// The questions of a session, and the channel that they arrive on.
pub(super) struct Questions {
    sender: QuestionSender,
    asked: mpsc::Receiver<QuestionMessage>,
    open: Vec<PendingQuestion>,
}

/// A question that waits for the user.
struct PendingQuestion {
    ask: AskId,
    question: Arc<UserQuestion>,
    answer: oneshot::Sender<QuestionReply>,
    /// Clients that could not show it.
    absent: Vec<ClientId>,
}

impl Questions {
    pub fn new() -> Questions {
        let (sender, asked) = QuestionSender::new();
        Questions { sender, asked, open: Vec::new() }
    }

    /// The sender for tools and servers that ask.
    pub fn sender(&self) -> QuestionSender {
        self.sender.clone()
    }

    pub async fn next(&mut self) -> Option<QuestionMessage> {
        self.asked.recv().await
    }

    pub fn are_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The open questions, for a client that attaches later.
    pub fn shown(&self) -> impl Iterator<Item = SessionEvent> {
        self.open.iter().map(|open| SessionEvent::Question { ask: open.ask, question: open.question.clone() })
    }

    /// Shows a question to the clients. Returns the wait for its answer, whose result is the question to close.
    pub fn open(
        &mut self,
        asked: QuestionMessage,
        clients: &ClientList,
    ) -> Option<impl Future<Output = AskId> + use<>> {
        let (question, mut reply) = match asked {
            QuestionMessage::Question { question, reply } => (question, reply),
            QuestionMessage::Done { id } => {
                clients.announce(&SessionEvent::QuestionDone { id });
                return None;
            }
        };
        let refusal = match clients.shows().can(&question.wants) {
            false => Some(QuestionReply::Unable),
            true if self.open.len() >= OPEN_MAX || clients.are_closing() => Some(QuestionReply::Cancelled),
            true => None,
        };
        if let Some(refusal) = refusal {
            // The caller may have gone.
            let _ = reply.send(refusal);
            return None;
        }
        let (ask, question) = (AskId::fresh(), Arc::new(question));
        let (answer, answered) = oneshot::channel();
        self.open.push(PendingQuestion { ask, question: question.clone(), answer, absent: Vec::new() });
        clients.announce(&SessionEvent::Question { ask, question });
        Some(async move {
            tokio::select! {
                came = answered => {
                    let _ = reply.send(came.unwrap_or(QuestionReply::Cancelled));
                }
                () = reply.closed() => {}
                () = tokio::time::sleep(OPEN_TIME_MAX) => {
                    let _ = reply.send(QuestionReply::TimedOut);
                }
            }
            ask
        })
    }

    /// Answers and closes a question. A late or unknown answer is ignored.
    pub fn close(&mut self, ask: AskId, reply: QuestionReply, clients: &ClientList) {
        let Some(at) = self.open.iter().position(|open| open.ask == ask) else { return };
        let open = self.open.remove(at);
        clients.announce(&SessionEvent::Withdrawn { ask });
        // The caller may have gone.
        let _ = open.answer.send(reply);
    }

    /// Records that a client could not show a question, which is left to the others. Returns whether it is open.
    pub fn set_absent(&mut self, ask: AskId, client: ClientId) -> bool {
        let Some(open) = self.open.iter_mut().find(|open| open.ask == ask) else { return false };
        if !open.absent.contains(&client) {
            open.absent.push(client);
        }
        true
    }

    /// Follows the attached clients: updates which questions can be shown, and closes those that no remaining client
    /// can show, since no user could answer them.
    pub fn follow(&mut self, clients: &ClientList) {
        self.sender.set_shows(clients.shows());
        let is_unshown = |open: &&PendingQuestion| !clients.can_show(&open.question.wants, &open.absent);
        let unshown = self.open.iter().filter(is_unshown);
        for ask in unshown.map(|open| open.ask).collect::<Vec<_>>() {
            self.close(ask, QuestionReply::Unable, clients);
        }
    }

    /// Withdraws all questions, because the turn was cancelled.
    pub fn close_all(&mut self, clients: &ClientList) {
        while let Some(open) = self.open.first() {
            self.close(open.ask, QuestionReply::Cancelled, clients);
        }
    }
}
