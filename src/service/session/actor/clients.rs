//! A session's clients: attaching, leaving, prompts and slash commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Session;
use super::ending::withdraw;
use super::session_state::{answer_repeated, queued_earlier};
use crate::commands;
use crate::core::Core;
use crate::instructions;
use crate::model_link::Located;
use crate::provider_errors::provider_error;
use crate::responder::{LeavingClient, QueuedPrompt, Responder, cancelled, outer_texts};
use crate::resumed::{self, Fate};
use crate::subagents::lost_agent;
use crate::work::RunningTurn;
use crate::{
    AccessGrant, AccessScope, AskId, Attaching, Attachment, ClientId, CompactionState, NoticeSeverity,
    Opening, PendingPrompt, Position, Replay, ScopeError, Seen, SessionAnswer, SessionCommand, SessionError,
    SessionEvent, Steered, TextShown, Ticket, UserDecision, Watcher,
};
use epitome_hooks::handlers;
use epitome_provider::attachments::left_out;
use epitome_recipe::catalog::RecipeCatalog;
use epitome_recipe::command;
use epitome_recipe::render::{self, ShellOutputs};
use epitome_thread::{Change, Content, Message, Origin, Seq, StopReason};
use epitome_turn::{Turn, TurnLimits, withdrawn};

/// Maximum number of prompts waiting for the end of a turn or for a model to be found.
const WAITING_MAX: usize = 64;

/// Maximum length of a title, in characters.
const TITLE_CHARS_MAX: usize = 60;

impl Core {
    pub(super) fn responder(&self, ticket: Ticket, client: ClientId) -> Option<Responder> {
        let attachment = self.clients.attachment(client)?;
        Some(Responder::new(ticket, self.id().clone(), attachment.clone()))
    }
}

impl Session {
    pub(super) fn command(&mut self, command: SessionCommand) {
        // Every connection that closes leaves all sessions, which must not keep them all from being suspended.
        if let SessionCommand::Detach { client } | SessionCommand::Unwatch { client } = command
            && !self.core.clients.know(client)
        {
            return self.core.clients.forget_refused(client);
        }
        if !matches!(command, SessionCommand::Attach { .. })
            && let Some((ticket, client)) = command.asker()
            && let Some(attachment) = self.core.clients.refused(client)
        {
            let responder = Responder::new(ticket, self.core.id().clone(), attachment.clone());
            return responder.answer(Err(SessionError::NotFound(self.core.id().clone())));
        }
        self.core.clients.note_activity();
        match command {
            SessionCommand::Attach(attaching) => {
                match attaching.opening.check_for(&attaching.replay, self.core.thread.cwd()) {
                    Ok(()) => self.attach(attaching),
                    Err(error) => refuse_client(&mut self.core, attaching, &error),
                }
            }
            SessionCommand::Prompt { ticket, client, content, key } => {
                let Some(mut responder) = self.core.responder(ticket, client) else { return };
                responder.set_key(key);
                let prompt = QueuedPrompt { responder, client, content };
                if let Some(prompt) = answer_repeated(&self.core, prompt) {
                    self.prompt(prompt);
                }
            }
            SessionCommand::Steer { ticket, client, content } => {
                let Some(responder) = self.core.responder(ticket, client) else { return };
                responder.answer(self.steered(client, content).map(SessionAnswer::Steered));
            }
            SessionCommand::Cancel => {
                self.cancel();
                self.withdraw_kept();
            }
            SessionCommand::CancelAgent { agent } => {
                self.subagents.cancel(agent);
            }
            SessionCommand::CancelPrompt { ticket } => self.cancel_prompt(ticket),
            SessionCommand::CancelOne { ticket, client, target } => {
                let Some(responder) = self.core.responder(ticket, client) else { return };
                responder.answer(self.cancel_one(&target));
            }
            SessionCommand::SetMode { ticket, client, mode } => {
                let Some(responder) = self.core.responder(ticket, client) else { return };
                // A stricter mode must survive a power failure.
                let chosen = self.choose("mode", &mode);
                self.core.answer_when_synced(responder, chosen);
            }
            SessionCommand::SetOption { ticket, client, option, value } => {
                let Some(responder) = self.core.responder(ticket, client) else { return };
                let chosen = self.choose(&option, &value);
                self.core.answer_when_synced(responder, chosen);
            }
            SessionCommand::Decide { ask, decision } => self.decided(ask, decision),
            SessionCommand::Absent { ask, client } => self.absent(ask, client),
            SessionCommand::Answer { ask, reply } => self.questions.close(ask, reply, &self.core.clients),
            SessionCommand::Fulfil { ask, answer } => self.editors.answered(ask, answer),
            SessionCommand::Close { ticket, client } => {
                let Some(responder) = self.core.responder(ticket, client) else { return };
                if self.core.clients.others_stay(client) {
                    self.core.clients.dismiss(client);
                    self.leave_to_others(client);
                    return responder.answer(Ok(SessionAnswer::Closed));
                }
                self.cancel();
                self.core.clients.leave_later(LeavingClient { client, responder: Some(responder) });
            }
            SessionCommand::Detach { client } => {
                self.core.clients.unwatch(client);
                if self.core.clients.others_stay(client) {
                    return self.leave_to_others(client);
                }
                self.cancel();
                self.core.clients.leave_later(LeavingClient { client, responder: None });
            }
            SessionCommand::Watch(watcher) => self.watch(watcher),
            SessionCommand::Unwatch { client } => self.core.clients.unwatch(client),
            SessionCommand::RecipesChanged => self.recipes.load(&mut self.core, self.inbox.sender()),
            SessionCommand::HooksChanged => self.hooks.load(&mut self.core, self.inbox.sender()),
            SessionCommand::Record { change, answer } => self.core.record(*change, answer),
            SessionCommand::Mutate { mutation, answer } => self.mutated_by_other(&mutation, answer),
            SessionCommand::End => {
                self.core.clients.close();
                self.cancel();
            }
        }
    }

    pub(crate) fn attach(&mut self, Attaching { ticket, opening, replay }: Attaching) {
        let attachment = self.core.clients.gated(&opening.attachment);
        let opening = Opening { attachment: attachment.clone(), ..opening };
        if let Replay::Rest { position, .. } = &replay
            && position.after > self.core.thread.entries().last().map(|entry| entry.seq)
        {
            let error = SessionError::Store(format!(
                "Session {} was continued elsewhere, so this view is out of date. Load it again",
                self.core.id()
            ));
            return refuse_client(&mut self.core, Attaching { ticket, opening, replay }, &error);
        }
        // The directory is that of the session, whatever the client has sent.
        let granted = attachment.outlet.grant().map(|grant| grant.check_directory(self.core.thread.cwd()));
        if let Some(Err(why)) = granted {
            let error = SessionError::Invalid(why);
            return refuse_client(&mut self.core, Attaching { ticket, opening, replay }, &error);
        }
        // A client whose instructions can't be stored is not attached.
        if let Err(error) = instructions::client::take(&mut self.core, opening.instructions.as_ref()) {
            return refuse_client(&mut self.core, Attaching { ticket, opening, replay }, &error);
        }
        for (option, value) in &opening.choices {
            if let Err(error) = self.choose(option, value) {
                tracing::info!(session = %self.core.id(), option, %error, "a client's initial option is ignored");
            }
        }
        self.core.adopt_policy();
        let follows_already = self.core.clients.leave(attachment.client);
        let is_alone = self.core.clients.is_empty();
        let shown = match &replay {
            Replay::Rest { position, .. } => position.text.clone(),
            Replay::Everything | Replay::Nothing => None,
        };
        let mut lost = Vec::new();
        let is_replay = match replay {
            Replay::Everything => {
                attachment.replay(self.core.id(), self.core.thread.entries());
                self.core.log.free_older(&mut self.core.thread);
                true
            }
            Replay::Rest { position, prompts } => {
                lost = self.show_rest(&attachment, &position, prompts);
                position.replay
            }
            // The client has seen it.
            Replay::Nothing if follows_already => false,
            Replay::Nothing => {
                // The client has the conversation from elsewhere.
                let entries = self.core.thread.entries().last().cloned().into_iter().collect();
                let seen = Seen { entries, position: Position::default() };
                attachment.outlet.put(self.core.id(), SessionEvent::Seen(Box::new(seen)));
                false
            }
        };
        if is_replay {
            self.show_live_text(&attachment, shown.as_ref());
            self.subagents.show_at_work(&attachment, true);
        }
        let responder = Responder::new(ticket, self.core.id().clone(), attachment.clone());
        responder.answer(Ok(SessionAnswer::Attached {
            session: self.core.id().clone(),
            cwd: self.core.thread.cwd().to_path_buf(),
            options: self.core.options(),
            now: attachment.outlet.follows_state().then(|| Arc::new(self.state_now())),
        }));
        // Without a replay, the answer must precede all events of the conversation.
        if !is_replay && !follows_already {
            self.show_live_text(&attachment, shown.as_ref());
            self.subagents.show_at_work(&attachment, false);
        }
        self.core.clients.join(opening.clone());
        // A running turn keeps the environment of its prompt's sender.
        if is_alone && self.work.is_none() {
            self.core.work_for(attachment.client);
        }
        self.questions.follow(&self.core.clients);
        self.mcp.begin(&mut self.core, &opening.mcp_servers, attachment.outlet.mcp());
        self.show_open_asks(&attachment);
        if let Some(damage) = self.core.log.damage() {
            let out = SessionEvent::Notice { severity: NoticeSeverity::Warning, text: damage.to_string() };
            attachment.outlet.put(self.core.id(), out);
        }
        self.core.clients.notify_pending_problems();
        if !self.hooks.is_read() {
            self.hooks.load(&mut self.core, self.inbox.sender());
        }
        if !self.recipes.are_read() {
            self.recipes.load(&mut self.core, self.inbox.sender());
        } else {
            attachment.outlet.put(self.core.id(), SessionEvent::Commands(self.recipes.command_list()));
        }
        self.core.locate();
        if let Some(usage) = self.core.usage_now() {
            attachment.outlet.put(self.core.id(), SessionEvent::Usage(usage));
        }
        lost.into_iter().for_each(|prompt| self.prompt(prompt));
    }

    /// Sends the open questions to a client that attaches after they were asked.
    pub(super) fn show_open_asks(&self, attachment: &Attachment) {
        if let Some(card) = self.core.permissions.shown() {
            attachment.outlet.put(self.core.id(), card);
        }
        for out in self.subagents.permission_events().chain(self.questions.shown()) {
            attachment.outlet.put(self.core.id(), out);
        }
        if let Some((ask, permission)) = self.hooks.open_consent() {
            attachment.outlet.put(self.core.id(), SessionEvent::Ask { ask, permission });
        }
    }

    /// Sends what was streamed so far of the running reply or summary, for a client that attaches in the middle of it and may
    /// have been shown some of the reply.
    pub(super) fn show_live_text(&self, attachment: &Attachment, shown: Option<&TextShown>) {
        let text = self.live_text().into_iter().filter_map(|out| resumed::unseen(out, shown));
        for out in text.chain(self.compactor.live()) {
            attachment.outlet.put(self.core.id(), out);
        }
    }

    /// Refuses a command that came too late. A client that wants to attach is added to `late`.
    pub(super) fn refuse(&mut self, command: SessionCommand, late: &mut Vec<Attaching>) {
        let error = SessionError::NotFound(self.core.id().clone());
        let asker = command.asker();
        match (command, asker) {
            (SessionCommand::Watch(watcher), _) => self.watch(watcher),
            (SessionCommand::Unwatch { client }, _) => self.core.clients.unwatch(client),
            (SessionCommand::Attach(attaching), _) => late.push(attaching),
            (SessionCommand::Detach { client }, _) => late
                .extract_if(.., |attaching| attaching.opening.attachment.client == client)
                .for_each(|attaching| attaching.refuse(self.core.id(), &error)),
            (_, Some((ticket, client))) => {
                let clients = &self.core.clients;
                let mut attaching = late.iter().map(|attaching| &attaching.opening.attachment);
                let attachment = clients.attachment(client).or_else(|| clients.refused(client));
                let attachment =
                    attachment.or_else(|| attaching.find(|attachment| attachment.client == client));
                if let Some(attachment) = attachment {
                    Responder::new(ticket, self.core.id().clone(), attachment.clone()).answer(Err(error));
                }
            }
            (_, None) => {}
        }
    }
}

pub(super) fn refuse_client(core: &mut Core, attaching: Attaching, error: &SessionError) {
    if !core.clients.know(attaching.opening.attachment.client) {
        core.clients.refuse(attaching.opening.attachment.clone());
    }
    attaching.refuse(core.id(), error);
}

impl Session {
    /// Sends a client of an earlier process everything after its position, and answers its pending prompts. Returns those that
    /// the log does not have, which are still to be done.
    fn show_rest(
        &mut self,
        attachment: &Attachment,
        position: &Position,
        prompts: Vec<PendingPrompt>,
    ) -> Vec<QueuedPrompt> {
        let id = self.core.id().clone();
        let rest = resumed::rest(self.core.thread.entries(), position, &prompts);
        for call in rest.open_calls.iter().filter(|call| !self.core.thread.open_calls().contains(&call.id)) {
            if let Some(lost) =
                lost_agent(&self.core.thread, call).filter(|_| attachment.outlet.shows_agents())
            {
                attachment.outlet.put(&id, lost);
            }
        }
        rest.events.into_iter().for_each(|out| attachment.outlet.put(&id, out));
        if let Some(compaction) = rest.open_compaction {
            let state = CompactionState::Cancelled;
            attachment.outlet.put(&id, SessionEvent::Compaction { id: compaction, state });
        }
        let mut lost = Vec::new();
        for (prompt, found) in prompts.into_iter().zip(rest.prompts) {
            let mut responder = Responder::new(prompt.ticket, id.clone(), attachment.clone());
            if let Some(message) = found.message {
                self.core.clients.note_author(message, attachment.client);
                if found.is_inserted {
                    responder.inserted(message);
                }
            }
            // Without a turn, nothing else withdraws it, and it would be read with the next prompt.
            if prompt.was_cancelled
                && self.work.is_none()
                && let Some(waits) =
                    self.core.thread.queued().iter().find(|waits| waits.change.prompt() == found.message)
                && let Some(withdrawn) = withdrawn(waits)
            {
                let answer = self.core.commit(withdrawn).map(|_| cancelled());
                self.core.answer_when_synced(responder, answer);
                continue;
            }
            match (found.fate, &mut self.work, prompt.content) {
                (Fate::Open { queued }, Some(work), _) => work.responders.push((responder, queued)),
                (Fate::Lost, _, Some(content)) if !prompt.was_cancelled => {
                    responder.set_key(Some(prompt.key));
                    lost.push(QueuedPrompt { responder, client: attachment.client, content });
                }
                (fate, ..) => self.core.answer_when_synced(responder, fate.answer()),
            }
        }
        lost
    }
}

// ── Observers and leaving clients ──────────────────────────────────────────────────────────────────

impl Core {
    /// From now on, works with the environment and directories of this client. Does nothing if the client has left.
    pub(super) fn work_for(&mut self, client: ClientId) {
        let Some(opening) = self.clients.opening(client) else { return };
        let (environment, directories) = (opening.environment.clone(), opening.directories.clone());
        let same = Arc::ptr_eq(&self.workspace.environment, &environment)
            || *self.workspace.environment == *environment;
        if same && self.workspace.directories == directories {
            return;
        }
        if !same {
            // Keys and addresses must be looked up again, in the new environment.
            self.model.forget_endpoint();
        }
        self.workspace = Arc::new(self.workspace.changed(directories, environment));
    }
}

impl Session {
    pub(super) fn publish_activity(&self) {
        let running = self.work.is_some() || self.inbox.has_prompts();
        let prompts = self.inbox.prompts() + self.core.thread.queued().len();
        let asks = self.waits_for_user();
        self.core.clients.publish_activity(running, asks, prompts, self.core.log.is_unsynced());
        let may_change_files = running
            || self.recipes.are_rendering()
            || self.inbox.is_paused()
            || self.tools.background().running() > 0;
        self.editors.set_busy(may_change_files);
    }

    /// Adds an observer, and sends it everything from this entry on.
    pub(crate) fn watch(&mut self, Watcher { from, attachment }: Watcher) {
        let gated = self.core.clients.gated(&attachment);
        gated.replay(self.core.id(), self.core.thread.entries().since(from));
        self.show_live_text(&gated, None);
        self.subagents.show_at_work(&gated, true);
        self.show_open_asks(&gated);
        if let Some(usage) = self.core.usage_now() {
            gated.outlet.put(self.core.id(), SessionEvent::Usage(usage));
        }
        self.core.clients.watch(attachment);
    }

    /// Removes a client while others stay: nothing that runs is cancelled. Its prompts are answered as cancelled, and those
    /// that were not read are withdrawn; the turn goes on for the others.
    pub(super) fn leave_to_others(&mut self, client: ClientId) {
        self.core.clients.leave(client);
        let is_theirs = |responder: &Responder| responder.client() == client;
        let waiting = self.inbox.take_by_client(client);
        let working: Vec<_> = match &mut self.work {
            Some(work) => {
                let theirs = work.responders.extract_if(.., |(responder, _)| is_theirs(responder));
                let theirs: Vec<_> = theirs.collect();
                for queued in theirs.iter().filter_map(|(_, queued)| *queued) {
                    withdraw(work, &self.core.thread, queued);
                }
                theirs
            }
            None => Vec::new(),
        };
        for responder in waiting.into_iter().chain(working.into_iter().map(|(responder, _)| responder)) {
            responder.answer(Ok(cancelled()));
        }
    }

    /// Records that a client has no user who could answer. Ignored if the question is not open or the client is
    /// unknown.
    fn absent(&mut self, ask: AskId, client: ClientId) {
        if self.questions.set_absent(ask, client) {
            return;
        }
        let open = self.open_permissions();
        self.core.clients.set_absent(client, ask, &open);
    }

    /// Settles the questions that no remaining client can answer. Checked after every event, because a client that
    /// leaves may have been the only one with a user.
    pub(super) fn settle_absent(&mut self) {
        for ask in self.core.clients.take_unanswerable() {
            self.decided(ask, UserDecision::Absent);
        }
    }

    /// The open permission requests of this session and its children.
    fn open_permissions(&self) -> Vec<AskId> {
        let own = self.core.permissions.open_ask();
        let consent = self.hooks.open_consent().map(|(ask, _)| ask);
        own.into_iter().chain(consent).chain(self.subagents.open_asks()).collect()
    }
}

// ── Prompts and slash commands ─────────────────────────────────────────────────────────────────────

impl Core {
    /// Warns the user if the model can't receive some of the attachments.
    fn report_dropped_attachments(&self, content: &[Content]) {
        let warning = self.model.endpoint().and_then(|endpoint| left_out(endpoint, content));
        if let Some(text) = warning {
            self.notify(NoticeSeverity::Warning, text);
        }
    }

    fn title_by(&mut self, change: &Change) {
        if self.thread.title().is_some() {
            return;
        }
        let text = match change {
            Change::Said { origin: Origin::Recipe { typed, .. }, .. } => typed.clone(),
            Change::Said { message, .. } => message.text(),
            _ => return,
        };
        let title = title_of(&text);
        if !title.is_empty() {
            drop(self.commit(Change::Titled { title }));
        }
    }
}

impl Session {
    /// Accepts a prompt: into the running turn if possible, otherwise into the queue.
    pub(crate) fn prompt(&mut self, prompt: QueuedPrompt) {
        let waiting = self.inbox.prompts() + self.core.thread.queued().len();
        if waiting >= WAITING_MAX {
            return prompt.responder.answer(Err(SessionError::Busy(waiting)));
        }
        let is_command = match self.recipes.are_read() {
            true => self.command_in(&prompt.content).is_some(),
            false => prompt.may_be_command(),
        };
        // A prompt sent after a waiting command is meant to follow it.
        if self.work.as_ref().is_some_and(RunningTurn::is_open) && !is_command && !self.inbox.has_prompts() {
            return self.steer(prompt);
        }
        self.inbox.push(prompt);
    }

    /// Queues a prompt that enters the running turn before its next model call.
    fn steer(&mut self, prompt: QueuedPrompt) {
        self.recipes.report_unknown(&self.core, &prompt.content);
        match self.queue(prompt.client, prompt.content, prompt.responder.key()) {
            Ok(queued) => {
                if let Some(work) = &mut self.work {
                    work.responders.push((prompt.responder, Some(queued)));
                }
            }
            Err(error) => prompt.responder.answer(Err(error)),
        }
    }

    fn queue(
        &mut self,
        client: ClientId,
        content: Vec<Content>,
        key: Option<&str>,
    ) -> Result<Seq, SessionError> {
        if let Some((queued, _)) = queued_earlier(&self.core.thread, key) {
            return Ok(queued);
        }
        self.core.check_log()?;
        self.core.report_dropped_attachments(&content);
        let message = Message { id: self.core.fresh_message(), content, author: None };
        self.core.clients.note_author(message.id, client);
        if let Some(key) = key {
            self.core.commit(Change::PromptKeyed { message: message.id, key: key.to_owned() })?;
        }
        let queued = self.core.commit(Change::Queued { message })?.seq;
        self.core.sync_in_background();
        Ok(queued)
    }

    /// Like `steer`, but reports at once whether the message will enter the turn. Anything that would begin a turn, or
    /// has to wait for one, must be sent as a prompt, whose answer reports the end of its turn.
    fn steered(&mut self, client: ClientId, content: Vec<Content>) -> Result<Steered, SessionError> {
        let required = |why: &str| Ok(Steered::PromptRequired(why.to_owned()));
        let waiting = self.inbox.prompts() + self.core.thread.queued().len();
        if waiting >= WAITING_MAX {
            return Err(SessionError::Busy(waiting));
        }
        if !self.work.as_ref().is_some_and(RunningTurn::is_open) {
            return required("no turn runs");
        }
        if self.command_in(&content).is_some() {
            return required("a command is not for the model");
        }
        if self.inbox.has_prompts() {
            return required("a command is waiting for the end of the turn, and this would overtake it");
        }
        self.queue(client, content, None).map(|_| Steered::Injected)
    }

    /// Begins a turn with a prompt. Returns `false` if a model is still being looked for; the prompt is then kept.
    pub(super) fn begin(&mut self, prompt: QueuedPrompt) -> bool {
        // The same request may have arrived again while the prompt was waiting.
        let Some(prompt) = answer_repeated(&self.core, prompt) else { return true };
        let typed = self.command_in(&prompt.content).map(|(_, typed)| typed.to_owned());
        let built_in = typed.as_deref().and_then(commands::find);
        if let Err(error) = self.ready_for(prompt.client, typed.as_deref()) {
            prompt.responder.answer(Err(error));
            return true;
        }
        self.core.work_for(prompt.client);
        if let (Some(typed), Some(built_in)) = (&typed, built_in) {
            self.run_built_in(prompt, built_in, typed.clone());
            return true;
        }
        if let Err(error) = self.core.check_log() {
            prompt.responder.answer(Err(error));
            return true;
        }
        match self.core.locate() {
            Located::Ready => {}
            Located::Searching => {
                self.inbox.put_back(prompt);
                return false;
            }
            Located::Nowhere(_) if self.needs_no_model(&prompt) => {}
            Located::Nowhere(error) => {
                prompt.responder.answer(Err(provider_error(&error)));
                return true;
            }
        }
        let Some(prompt) = self.fetch_mcp_resources(prompt) else { return true };
        self.core.report_dropped_attachments(&prompt.content);
        match typed {
            Some(typed) => {
                if let Some(prompt) = self.fetch_mcp_prompt(prompt, &typed) {
                    self.begin_command(prompt, ShellOutputs::new());
                }
            }
            None => {
                self.recipes.report_unknown(&self.core, &prompt.content);
                let key = prompt.responder.key();
                let change = match queued_earlier(&self.core.thread, key) {
                    Some((entry, message)) => {
                        Change::Said { message: message.clone(), origin: Origin::Queue { entry } }
                    }
                    None => {
                        let message =
                            Message { id: self.core.fresh_message(), content: prompt.content, author: None };
                        Change::Said { message, origin: self.core.lineage.origin() }
                    }
                };
                // An agent that wraps up gets a single reply.
                let rounds = if self.core.lineage.wraps_up() { 1 } else { self.core.settings.max_rounds };
                self.begin_prompt(change, prompt.responder, rounds);
                if let Some(work) = &mut self.work {
                    work.run.allowed_commands = self.core.lineage.allowed_commands.clone();
                    work.run.handlers = self.core.lineage.handlers.clone();
                }
            }
        }
        true
    }

    /// Checks the rights of a prompt's client, and makes the log ready for the prompt.
    fn ready_for(&mut self, client: ClientId, typed: Option<&str>) -> Result<(), SessionError> {
        if let Some((grant, typed)) = self.core.clients.grant(client).zip(typed) {
            let built_in = commands::find(typed).map_or(Ok(()), |built_in| built_in.check(grant));
            let recipe = || check_recipe(&self.core, self.recipes.catalog(), grant, typed);
            let allowed = built_in.and_then(|()| recipe());
            allowed.map_err(|error| SessionError::Invalid(error.to_string()))?;
        }
        if typed.is_some_and(commands::is_repair)
            && let Some(acceptance) = self.core.log.acceptance()
        {
            self.core.commit(acceptance)?;
        }
        self.core.close_open_turn(StopReason::Failed)
    }

    pub(super) fn begin_prompt(&mut self, change: Change, responder: Responder, rounds: u32) {
        self.core.title_by(&change);
        let limits = TurnLimits { rounds, repeats: self.core.settings.max_repeats };
        // A process before this one may have queued it.
        let queued = match &change {
            Change::Said { origin: Origin::Queue { entry }, .. } => Some(*entry),
            _ => None,
        };
        let mut work = RunningTurn::new(Turn::prompt(change, &self.core.thread, limits), responder);
        work.responders[0].1 = queued;
        self.start_work(work);
    }

    /// The command in a prompt, with the index of its content part. Only the first and the last text are considered:
    /// some editors put a cancelled prompt or an attachment as text before the typed text.
    pub(super) fn command_in<'a>(&self, content: &'a [Content]) -> Option<(usize, &'a str)> {
        if self.core.lineage.is_child() {
            return None;
        }
        let is_command = |text: &str| {
            command::parse(text).is_some_and(|typed| {
                commands::is_built_in(typed.name)
                    || self.recipes.catalog().find(typed.name).is_some()
                    || self.mcp.has_prompt(typed.name)
            })
        };
        outer_texts(content).find(|(_, text)| is_command(text))
    }
}

/// Checks the rights of a client that typed a recipe. Programs and handlers of a recipe run without another question.
fn check_recipe(
    core: &Core,
    catalog: &RecipeCatalog,
    grant: &AccessGrant,
    typed: &str,
) -> Result<(), ScopeError> {
    let name = command::parse(typed).map(|typed| typed.name);
    let Some(recipe) = name.and_then(|name| catalog.called(name)) else { return Ok(()) };
    let (handlers, _) = core.handlers_of(recipe, &BTreeMap::new());
    match render::shell_calls(recipe).is_empty() && handlers::writes(&handlers).next().is_none() {
        true => Ok(()),
        false => grant
            .check(&format!("/{}, which runs programs or writes files,", recipe.id), AccessScope::Approve),
    }
}

/// The title for a first message: its first non-empty line, truncated at a word.
fn title_of(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    if line.chars().count() <= TITLE_CHARS_MAX {
        return line.to_owned();
    }
    let head: String = line.chars().take(TITLE_CHARS_MAX - 1).collect();
    let cut = head.rfind(char::is_whitespace).filter(|at| *at > TITLE_CHARS_MAX / 2).unwrap_or(head.len());
    format!("{}…", head[..cut].trim_end())
}
