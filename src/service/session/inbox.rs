//! A session's incoming commands, and the prompts that wait until a turn can begin with them.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio::task;

use super::responder::{QueuedPrompt, Responder};
use super::{ClientId, SessionCommand, Ticket};

/// The receiver of a session's commands, with a sender so that the session can send itself some.
pub(super) struct Channel {
    sender: mpsc::WeakSender<SessionCommand>,
    commands: mpsc::Receiver<SessionCommand>,
}

impl Channel {
    pub fn new(sender: &mpsc::Sender<SessionCommand>, commands: mpsc::Receiver<SessionCommand>) -> Channel {
        Channel { sender: sender.downgrade(), commands }
    }

    /// Whether commands sent here are received by this channel.
    pub fn is_of(&self, sender: &mpsc::Sender<SessionCommand>) -> bool {
        self.sender.upgrade().is_some_and(|own| own.same_channel(sender))
    }

    /// Closes the channel; returns the commands that are left.
    pub fn close(&mut self) -> impl Iterator<Item = SessionCommand> {
        self.commands.close();
        std::iter::from_fn(|| self.commands.try_recv().ok())
    }
}

/// See the module.
pub(super) struct Inbox {
    channel: Channel,
    prompts: VecDeque<QueuedPrompt>,
    /// The background work that the prompts wait for.
    paused_by: Option<(task::Id, InboxPause)>,
    /// Stops the command that they wait for, if it can be stopped.
    stop: Option<Arc<Notify>>,
}

/// The work that prompts wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InboxPause {
    /// A command that works on the disk, such as one that rewinds files.
    Command,
    /// The checkpoints of a session that was just loaded are read.
    Checkpoints,
}

impl Inbox {
    pub fn new(channel: Channel) -> Inbox {
        Inbox { channel, prompts: VecDeque::new(), paused_by: None, stop: None }
    }

    // ── Commands ───────────────────────────────────────────────────────────────────────────────

    /// The next command; `None` once all senders are gone.
    pub async fn next(&mut self) -> Option<SessionCommand> {
        self.channel.commands.recv().await
    }

    /// Whether any commands have not been received yet.
    pub fn has_commands(&self) -> bool {
        !self.channel.commands.is_empty()
    }

    pub fn sender(&self) -> mpsc::WeakSender<SessionCommand> {
        self.channel.sender.clone()
    }

    /// Closes the channel; returns the commands that are left.
    pub fn close(&mut self) -> Vec<SessionCommand> {
        self.channel.close().collect()
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

    /// Returns a prompt to the front of the queue.
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

    /// Removes the prompts of a client that leaves; returns their responders.
    pub fn take_by_client(&mut self, client: ClientId) -> Vec<Responder> {
        let (theirs, others): (VecDeque<QueuedPrompt>, _) =
            self.take_all().into_iter().partition(|prompt| prompt.responder.client() == client);
        self.prompts = others;
        theirs.into_iter().map(|prompt| prompt.responder).collect()
    }

    /// Pauses the prompts until this background work has ended.
    pub fn pause_for(&mut self, work: task::Id, reason: InboxPause) {
        self.paused_by = Some((work, reason));
    }

    pub fn resume(&mut self) {
        (self.paused_by, self.stop) = (None, None);
    }

    /// The command that the prompts wait for can be stopped.
    pub fn stop_with(&mut self, stop: Option<Arc<Notify>>) {
        self.stop = stop;
    }

    pub fn stop_command(&self) {
        self.stop.iter().for_each(|stop| stop.notify_one());
    }

    /// Background work has panicked. The prompts may have waited for it.
    pub fn resume_after(&mut self, work: task::Id) {
        self.paused_by.take_if(|(awaited, _)| *awaited == work);
    }

    pub fn is_paused(&self) -> bool {
        self.paused_by.is_some()
    }

    pub fn waits_for_command(&self) -> bool {
        self.paused_by.is_some_and(|(_, reason)| reason == InboxPause::Command)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::task::JoinSet;

    use super::*;

    /// Regression: work that the prompts waited for had panicked. No prompt was answered any more.
    #[tokio::test]
    async fn prompts_do_not_wait_for_work_that_panicked() {
        let (sender, receiver) = mpsc::channel(1);
        let mut inbox = Inbox::new(Channel::new(&sender, receiver));
        let mut background = JoinSet::new();
        let [awaited, other] = [(); 2].map(|()| background.spawn(ready(())).id());
        inbox.pause_for(awaited, InboxPause::Command);
        inbox.resume_after(other);
        assert!(inbox.is_paused(), "files are still being rewound");
        inbox.resume_after(awaited);
        assert!(!inbox.is_paused());
    }
}
