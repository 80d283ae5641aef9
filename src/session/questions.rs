//! Questions to the person that are no permission: a form, or an address to go to. They go to every client
//! that can show them; the first answer counts, and the others are taken back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::actor::Session;
use super::work::Background;
use super::{AskId, Attachment, Out};
use epitome_tools::question::{Asked, Question, Reply};

/// Questions that are open at a time; more are put aside at once.
const OPEN_MAX: usize = 8;

/// How long a question is open. Who asks waits for it, and a person may be at lunch.
const OPEN_TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// A question that waits for the person.
pub(super) struct OpenQuestion {
    ask: AskId,
    question: Arc<Question>,
    answer: oneshot::Sender<Reply>,
}

impl Session {
    pub(super) fn asked(&mut self, asked: Asked) {
        match asked {
            Asked::Question { question, reply } => self.open_question(question, reply),
            Asked::Done { id } => self.announce(&Out::QuestionDone { id }),
        }
    }

    fn open_question(&mut self, question: Question, mut reply: oneshot::Sender<Reply>) {
        let refusal = match self.audience.shows().can(&question.wants) {
            false => Some(Reply::Unable),
            true if self.questions.len() >= OPEN_MAX || self.closing => Some(Reply::Cancelled),
            true => None,
        };
        if let Some(refusal) = refusal {
            // Who asked may have gone meanwhile.
            let _ = reply.send(refusal);
            return;
        }
        let (ask, question) = (AskId::fresh(), Arc::new(question));
        let (answer, answered) = oneshot::channel();
        self.questions.push(OpenQuestion { ask, question: question.clone(), answer });
        self.announce(&Out::Question { ask, question });
        self.background.spawn(async move {
            tokio::select! {
                came = answered => {
                    let _ = reply.send(came.unwrap_or(Reply::Cancelled));
                }
                () = reply.closed() => {}
                () = tokio::time::sleep(OPEN_TIME_MAX) => {
                    let _ = reply.send(Reply::TimedOut);
                }
            }
            Background::QuestionOver(ask)
        });
    }

    /// The first answer counts; a late or unknown one is ignored.
    pub(super) fn close_question(&mut self, ask: AskId, reply: Reply) {
        let Some(at) = self.questions.iter().position(|open| open.ask == ask) else { return };
        let open = self.questions.remove(at);
        self.announce(&Out::Withdrawn { ask });
        // Who asked may have gone meanwhile.
        let _ = open.answer.send(reply);
    }

    /// Puts the questions aside that nobody who is left can show: their answer would be waited for in vain.
    pub(super) fn settle_unshown(&mut self) {
        if self.questions.is_empty() {
            return;
        }
        let shows = self.audience.shows();
        let unshown = self.questions.iter().filter(|open| !shows.can(&open.question.wants));
        for ask in unshown.map(|open| open.ask).collect::<Vec<_>>() {
            self.close_question(ask, Reply::Unable);
        }
    }

    pub(super) fn close_questions(&mut self) {
        while let Some(open) = self.questions.first() {
            self.close_question(open.ask, Reply::Cancelled);
        }
    }

    /// The open questions, for a client that comes later.
    pub(super) fn show_open_questions(&self, attachment: &Attachment) {
        for open in &self.questions {
            let out = Out::Question { ask: open.ask, question: open.question.clone() };
            attachment.outlet.put(&self.id, out);
        }
    }
}
