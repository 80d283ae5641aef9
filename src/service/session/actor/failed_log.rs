//! A log that can't be written any more: its disk has failed, it is damaged, or another process has the session now. The
//! session goes on with the log as it is once it can be opened again.
//!
//! Everything that is not made from the log stays as it is: hooks and commands that run, prompts that wait, and open
//! questions. So none of them can keep a session on a log that has failed.

use super::Session;
use super::clients::refuse_client;
use crate::log::read_log;
use crate::{ClientId, SessionCommand, SessionError, SessionEvent};

impl Session {
    /// Ends the turn, of which the log can't keep the rest, and opens the log again if that was not tried before.
    pub(super) async fn leave_failed_log(&mut self) {
        if self.work.is_some()
            && let Err(error) = self.core.check_log()
        {
            self.abandon(&error);
        }
        if !self.core.log.has_just_failed() || !self.can_reopen() {
            return;
        }
        // It logs what could not be written.
        drop(self.settle_log().await);
        if let Err(error) = self.reopen_log(None).await {
            tracing::warn!(session = %self.core.id(), %error, "the log can't be opened again yet");
        }
    }

    /// Opens the log again for a command that needs it. Returns the command unless that fails: then it is refused.
    pub(super) async fn with_log(&mut self, command: SessionCommand) -> Option<SessionCommand> {
        let reloading = match &command {
            SessionCommand::Attach(attaching) => attaching.reloads(),
            SessionCommand::Prompt { .. }
            | SessionCommand::Steer { .. }
            | SessionCommand::SetMode { .. }
            | SessionCommand::SetOption { .. }
            | SessionCommand::Record { .. }
            | SessionCommand::Mutate { .. } => None,
            _ => return Some(command),
        };
        let is_of_stranger = |(_, client)| !self.core.clients.know(client);
        let is_attach = matches!(command, SessionCommand::Attach(_));
        // A client that was refused is refused again.
        if !self.can_reopen() || !is_attach && command.asker().is_some_and(is_of_stranger) {
            return Some(command);
        }
        let error = match self.reopen_log(reloading).await {
            Ok(()) => return Some(command),
            Err(error) => error,
        };
        let responder = command.asker().and_then(|(ticket, client)| self.core.responder(ticket, client));
        match (command, responder) {
            (SessionCommand::Attach(attaching), _) => refuse_client(&mut self.core, attaching, &error),
            (SessionCommand::Record { answer, .. }, _) => drop(answer.send(Err(error.clone()))),
            (_, Some(responder)) => responder.answer(Err(error.clone())),
            (_, None) => {}
        }
        if matches!(error, SessionError::NotFound(_)) {
            self.core.clients.close();
        }
        None
    }

    /// Whether nothing of a turn is left, and the session is to go on.
    fn can_reopen(&self) -> bool {
        self.work.is_none()
            && self.core.process.sessions().is_some()
            && !self.core.lineage.is_child()
            && !self.subagents.have_calls()
            && !self.core.clients.wait_to_leave()
            && !self.core.clients.are_closing()
    }

    /// `reloading`: the client that is about to be shown the conversation.
    async fn reopen_log(&mut self, reloading: Option<ClientId>) -> Result<(), SessionError> {
        self.core.log.close();
        let (journal, thread) = read_log(&self.core.services.store, self.core.id()).await?;
        let seen = self.core.thread.next_seq();
        self.core.reopened(journal, thread);
        self.tools.log_reopened();
        self.thread_replaced();
        self.show_later(seen, reloading);
        self.end_interrupted_turn().await;
        // Another machine, with another policy, may have changed the mode meanwhile.
        self.core.adopt_policy();
        Ok(())
    }

    /// Updates what was made from entries that are no longer there, or not the last ones.
    pub(super) fn thread_replaced(&mut self) {
        self.drop_prepared();
        self.instructions.require_check();
        self.subagents.set_mode(self.core.thread.mode());
        self.core.announce(&SessionEvent::Options(self.core.options()));
    }
}
