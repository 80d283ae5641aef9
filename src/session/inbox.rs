//! What waits for a session: commands of its clients, and prompts until a turn can begin with them.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use super::work::{QueuedPrompt, Responder};
use super::{ClientId, SessionCommand, Ticket};

/// Where a session's commands come from, with a way to send itself some.
pub(super) type Channel = (mpsc::WeakSender<SessionCommand>, mpsc::Receiver<SessionCommand>);

/// See the module.
pub(super) struct Inbox {
    sender: mpsc::WeakSender<SessionCommand>,
    commands: mpsc::Receiver<SessionCommand>,
    prompts: VecDeque<QueuedPrompt>,
    is_held: bool,
}

impl Inbox {
    pub fn new((sender, commands): Channel) -> Inbox {
        Inbox { sender, commands, prompts: VecDeque::new(), is_held: false }
    }

    // ── Commands ───────────────────────────────────────────────────────────────────────────────

    /// The next command; `None` once nobody can send one any more.
    pub async fn next(&mut self) -> Option<SessionCommand> {
        self.commands.recv().await
    }

    /// Whether somebody has sent something that was not taken yet.
    pub fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    pub fn sender(&self) -> mpsc::WeakSender<SessionCommand> {
        self.sender.clone()
    }

    /// Lets nobody send any more; returns the commands that were not taken.
    pub fn close(&mut self) -> Vec<SessionCommand> {
        self.commands.close();
        std::iter::from_fn(|| self.commands.try_recv().ok()).collect()
    }

    // ── Prompts ────────────────────────────────────────────────────────────────────────────────

    pub fn has_prompts(&self) -> bool {
        !self.prompts.is_empty()
    }

    pub fn prompts(&self) -> usize {
        self.prompts.len()
    }

    pub fn first(&self) -> Option<&QueuedPrompt> {
        self.prompts.front()
    }

    pub fn push(&mut self, prompt: QueuedPrompt) {
        self.prompts.push_back(prompt);
    }

    pub fn take_first(&mut self) -> Option<QueuedPrompt> {
        self.prompts.pop_front()
    }

    /// Puts the prompt back that was taken.
    pub fn put_back(&mut self, prompt: QueuedPrompt) {
        self.prompts.push_front(prompt);
    }

    pub fn take_all(&mut self) -> VecDeque<QueuedPrompt> {
        std::mem::take(&mut self.prompts)
    }

    pub fn take_by_ticket(&mut self, ticket: Ticket) -> Option<QueuedPrompt> {
        let at = self.prompts.iter().position(|prompt| prompt.responder.ticket == ticket)?;
        self.prompts.remove(at)
    }

    /// Takes out the prompts of a client that leaves; returns those that wait for their answers.
    pub fn take_by_client(&mut self, client: ClientId) -> Vec<Responder> {
        let (theirs, others): (VecDeque<QueuedPrompt>, _) =
            self.take_all().into_iter().partition(|prompt| prompt.responder.client() == client);
        self.prompts = others;
        theirs.into_iter().map(|prompt| prompt.responder).collect()
    }

    /// Has prompts wait while files are put back, or looked at for it.
    pub fn set_paused(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    pub fn is_held(&self) -> bool {
        self.is_held
    }
}
