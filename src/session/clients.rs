//! A session's clients: attaching, leaving, prompts and slash commands, and the work outside of turns.

use std::sync::Arc;
use std::time::Instant;

use super::actor::Session;
use super::commands;
use super::models::Located;
use super::replies::sentence;
use super::trace::TurnTrace;
use super::work::{Background, Closer, Prompt, Responder, TooLate, Work};
use super::{
    Answer, Attachment, ClientId, Opening, Out, Replay, SessionCommand, SessionError, Severity, Steered,
    Ticket, problem_notice,
};
use epitome_problem::Problem;
use epitome_provider::ProviderError;
use epitome_provider::attachments::left_out;
use epitome_provider::wire::encoding::Encoding;
use epitome_recipe::command;
use epitome_recipe::render::ShellOutputs;
use epitome_thread::{Change, Content, Message, Origin, Seq, StopReason};
use epitome_turn::Turn;

/// How many prompts may wait for a turn to end or for a model to be found.
const WAITING_MAX: usize = 64;

/// The longest title, in characters.
const TITLE_CHARS_MAX: usize = 60;

impl Session {
    pub(super) fn command(&mut self, command: SessionCommand) {
        self.active_at = Instant::now();
        match command {
            SessionCommand::Attach { ticket, opening, replay } => self.attach(ticket, opening, replay),
            SessionCommand::Prompt { ticket, client, content } => {
                let Some(responder) = self.responder(ticket, client) else { return };
                self.prompt(Prompt { responder, client, content });
            }
            SessionCommand::Steer { ticket, client, content } => {
                let Some(responder) = self.responder(ticket, client) else { return };
                responder.answer(self.steered(client, content).map(Answer::Steered));
            }
            SessionCommand::Cancel => self.cancel(),
            SessionCommand::CancelAgent { agent } => self.cancel_agent(agent),
            SessionCommand::CancelPrompt { ticket } => self.cancel_prompt(ticket),
            SessionCommand::SetMode { ticket, client, mode } => {
                let Some(responder) = self.responder(ticket, client) else { return };
                let chosen = self.choose("mode", &mode);
                responder.answer(chosen.map(|()| Answer::Options(self.options())));
            }
            SessionCommand::SetOption { ticket, client, option, value } => {
                let Some(responder) = self.responder(ticket, client) else { return };
                let chosen = self.choose(&option, &value);
                responder.answer(chosen.map(|()| Answer::Options(self.options())));
            }
            SessionCommand::Decide { ask, decision } => self.decided(ask, decision),
            SessionCommand::Absent { ask, client } => self.absent(ask, client),
            SessionCommand::Answer { ask, reply } => self.close_question(ask, reply),
            SessionCommand::Fulfil { ask, answer } => self.wish_answered(ask, answer),
            SessionCommand::Close { ticket, client } => {
                let Some(responder) = self.responder(ticket, client) else { return };
                if self.others_stay(client) {
                    self.leave_to_others(client);
                    return responder.answer(Ok(Answer::Closed));
                }
                self.cancel();
                self.closers.push(Closer::Client(client, responder));
            }
            SessionCommand::Detach { client } => {
                self.audience.unwatch(client);
                if self.others_stay(client) {
                    return self.leave_to_others(client);
                }
                self.cancel();
                self.closers.push(Closer::Gone(client));
            }
            SessionCommand::Watch(watcher) => self.watch(watcher),
            SessionCommand::Unwatch { client } => self.audience.unwatch(client),
            SessionCommand::RecipesChanged => self.load_recipes(),
            SessionCommand::HooksChanged => self.load_hooks(),
            SessionCommand::Mutate { mutation, answer } => self.mutated_by_other(&mutation, answer),
            SessionCommand::End => {
                self.cancel();
                self.closing = true;
            }
        }
    }

    pub(super) fn attach(&mut self, ticket: Ticket, opening: Opening, replay: Replay) {
        let attachment = opening.attachment.clone();
        let others = self.audience.clients().filter(|client| *client != attachment.client).count();
        let follows_already = self.audience.leave(attachment.client);
        match replay {
            Replay::Everything => {
                for entry in self.thread.entries() {
                    let out = Out::Entry { entry: entry.clone(), replay: true, own: false };
                    attachment.outlet.put(&self.id, out);
                }
                self.show_live_text(&attachment);
                self.show_agents_at_work(&attachment, true);
            }
            Replay::Repairs => self.show_repairs(&attachment),
            Replay::Nothing => {}
        }
        let responder = Responder::new(ticket, self.id.clone(), attachment.clone());
        responder.answer(Ok(Answer::Attached { session: self.id.clone(), options: self.options() }));
        // Without a replay nothing of the conversation may stand before the answer.
        if replay != Replay::Everything && !follows_already {
            self.show_live_text(&attachment);
            self.show_agents_at_work(&attachment, false);
        }
        self.audience.join(opening.clone());
        // What runs goes on in the surroundings of who sent it.
        if others == 0 && self.work.is_none() {
            self.work_for(attachment.client);
        }
        self.door.set_shows(self.audience.shows());
        self.begin_mcp(&opening.mcp_servers);
        self.show_open_asks(&attachment);
        let problems = std::mem::take(&mut self.untold_problems);
        self.show_problems(&problems);
        if !self.hooks.is_read() {
            self.load_hooks();
        }
        if !self.catalog_read {
            self.load_recipes();
        } else {
            attachment.outlet.put(&self.id, Out::Commands(self.command_list()));
        }
        self.locate_quietly();
        if let Some(usage) = self.usage_now() {
            attachment.outlet.put(&self.id, Out::Usage(usage));
        }
    }

    /// The questions that wait for an answer, for somebody who comes later than they did.
    pub(super) fn show_open_asks(&self, attachment: &Attachment) {
        if let Some(open) = self.work.as_ref().and_then(|work| work.ask.as_ref())
            && let Some(permission) = open.shown.clone()
        {
            attachment.outlet.put(&self.id, Out::Ask { ask: open.ask, permission });
        }
        self.show_foreign_asks(attachment);
        self.show_open_questions(attachment);
        if let Some((ask, permission)) = self.open_consent() {
            attachment.outlet.put(&self.id, Out::Ask { ask, permission });
        }
    }

    /// What was streamed of the running reply or summary, for a client that joins in the middle of it.
    pub(super) fn show_live_text(&self, attachment: &Attachment) {
        for out in self.live_text().into_iter().chain(self.live_compaction()) {
            attachment.outlet.put(&self.id, out);
        }
    }

    pub(super) fn responder(&self, ticket: Ticket, client: ClientId) -> Option<Responder> {
        let seat = self.audience.seat(client)?;
        Some(Responder::new(ticket, self.id.clone(), seat.attachment.clone()))
    }

    /// Refuses what came too late; gives back a client that wanted to attach.
    pub(super) fn refuse(&mut self, command: SessionCommand) -> Option<TooLate> {
        let gone = || Err(SessionError::NotFound(self.id.clone()));
        match command {
            SessionCommand::Watch(watcher) => self.watch(watcher),
            SessionCommand::Unwatch { client } => self.audience.unwatch(client),
            SessionCommand::Attach { ticket, opening, replay } => {
                return Some(TooLate { ticket, opening, replay });
            }
            SessionCommand::Prompt { ticket, client, .. }
            | SessionCommand::Steer { ticket, client, .. }
            | SessionCommand::SetMode { ticket, client, .. }
            | SessionCommand::SetOption { ticket, client, .. }
            | SessionCommand::Close { ticket, client } => {
                if let Some(responder) = self.responder(ticket, client) {
                    responder.answer(gone());
                }
            }
            SessionCommand::Cancel
            | SessionCommand::CancelAgent { .. }
            | SessionCommand::CancelPrompt { .. }
            | SessionCommand::Decide { .. }
            | SessionCommand::Absent { .. }
            | SessionCommand::Answer { .. }
            | SessionCommand::Fulfil { .. }
            | SessionCommand::Detach { .. }
            | SessionCommand::End
            | SessionCommand::RecipesChanged
            | SessionCommand::HooksChanged
            | SessionCommand::Mutate { .. } => {}
        }
        None
    }
}

// ── Prompts and slash commands ─────────────────────────────────────────────────────────────────────

impl Session {
    /// Takes a prompt in: into the running turn, into the queue, or as the next turn.
    pub(super) fn prompt(&mut self, prompt: Prompt) {
        let waiting = self.waiting.len() + self.thread.queued().len();
        if waiting >= WAITING_MAX {
            return prompt.responder.answer(Err(SessionError::Busy(waiting)));
        }
        let is_command = match self.catalog_read {
            true => self.command_in(&prompt.content).is_some(),
            false => prompt.may_be_command(),
        };
        // What is said behind a command that waits means what comes after it.
        if self.work.is_some() && !is_command && self.waiting.is_empty() {
            return self.steer(prompt);
        }
        self.waiting.push_back(prompt);
    }

    /// A prompt during a turn enters before its next model call.
    fn steer(&mut self, prompt: Prompt) {
        match self.queue(prompt.client, prompt.content) {
            Ok(queued) => {
                if let Some(work) = &mut self.work {
                    work.responders.push((prompt.responder, Some(queued)));
                }
            }
            Err(error) => prompt.responder.answer(Err(error)),
        }
    }

    fn queue(&mut self, client: ClientId, content: Vec<Content>) -> Result<Seq, SessionError> {
        self.speaker = Some(client);
        self.say_what_is_left_out(&content);
        let message = Message { id: self.fresh_message(), content };
        let queued = self.commit(Change::Queued { message })?.seq;
        self.sync_beside();
        Ok(queued)
    }

    /// The same for who wants to know at once whether it will enter. What begins a turn, or comes behind one, is for
    /// a prompt: its answer is how a client learns of the turn's end.
    fn steered(&mut self, client: ClientId, content: Vec<Content>) -> Result<Steered, SessionError> {
        let required = |why: &str| Ok(Steered::PromptRequired(why.to_owned()));
        let waiting = self.waiting.len() + self.thread.queued().len();
        if waiting >= WAITING_MAX {
            return Err(SessionError::Busy(waiting));
        }
        if self.work.is_none() {
            return required("no turn runs");
        }
        if self.command_in(&content).is_some() {
            return required("a command is not for the model");
        }
        if !self.waiting.is_empty() {
            return required("a command waits for the turn's end, and this would come before it");
        }
        self.queue(client, content).map(|_| Steered::Injected)
    }

    /// Begins a turn with a prompt. `false` if it waits for a model to be found, and is kept.
    pub(super) fn begin(&mut self, prompt: Prompt) -> bool {
        if let Err(error) = self.close_open_turn(StopReason::Failed) {
            prompt.responder.answer(Err(error));
            return true;
        }
        self.speaker = Some(prompt.client);
        self.work_for(prompt.client);
        let typed = self.command_in(&prompt.content).map(|(_, typed)| typed.to_owned());
        if let Some(typed) = &typed
            && let Some(built_in) = commands::find(typed)
        {
            self.run_built_in(prompt, built_in, typed.clone());
            return true;
        }
        match self.locate() {
            Located::Ready => {}
            Located::Searching => {
                self.waiting.push_front(prompt);
                return false;
            }
            Located::Nowhere(_) if self.needs_no_model(&prompt) => {}
            Located::Nowhere(error) => {
                prompt.responder.answer(Err(provider_error(&error)));
                return true;
            }
        }
        self.say_what_is_left_out(&prompt.content);
        match typed {
            Some(_) => self.begin_command(prompt, ShellOutputs::new()),
            None => {
                let message = Message { id: self.fresh_message(), content: prompt.content };
                let said = Change::Said { message, origin: self.lineage.origin() };
                // Last words are one reply.
                let rounds = if self.lineage.wraps_up() { 1 } else { self.settings.max_rounds };
                self.begin_said(said, prompt.responder, rounds);
                if let Some(work) = &mut self.work {
                    work.allowed_commands = self.lineage.allowed_commands.clone();
                    work.handlers = self.lineage.handlers.clone();
                }
            }
        }
        true
    }

    /// Tells the person where the model can't be sent what they attached.
    fn say_what_is_left_out(&self, content: &[Content]) {
        let told = self.endpoint.as_ref().and_then(|endpoint| left_out(endpoint, content));
        if let Some(text) = told {
            self.say(Severity::Warning, text);
        }
    }

    pub(super) fn begin_said(&mut self, said: Change, responder: Responder, max_rounds: u32) {
        self.title_by(&said);
        let turn = Turn::prompt(said, &self.thread, max_rounds);
        let trace = TurnTrace::begin(self.timed.span(), self.thread.next_seq());
        self.start_work(Work::new(turn, trace, responder));
    }

    /// The command in a prompt, with the index of its part: the first text of it or the last. Some
    /// editors send what was cancelled, or what they attach, as a text before what is typed.
    pub(super) fn command_in<'a>(&self, content: &'a [Content]) -> Option<(usize, &'a str)> {
        if self.lineage.is_child() {
            return None;
        }
        let is_command = |text: &str| {
            command::parse(text).is_some_and(|typed| {
                commands::is_built_in(typed.name) || self.catalog.find(typed.name).is_some()
            })
        };
        outer_texts(content).find(|(_, text)| is_command(text))
    }

    fn title_by(&mut self, said: &Change) {
        if self.thread.title().is_some() {
            return;
        }
        let text = match said {
            Change::Said { origin: Origin::Recipe { typed, .. }, .. } => typed.clone(),
            Change::Said { message, .. } => message.text(),
            _ => return,
        };
        let title = title_of(&text);
        if !title.is_empty()
            && let Err(error) = self.commit(Change::Titled { title })
        {
            tracing::error!(session = %self.id, %error, "the title could not be written");
        }
    }
}

// ── Background work and problems ───────────────────────────────────────────────────────────────────

impl Session {
    pub(super) fn background_done(&mut self, done: Background) {
        match done {
            Background::Recipes(catalog, watch) => {
                let problems = catalog.problems.clone();
                let before = self.command_list();
                let first = !std::mem::replace(&mut self.catalog_read, true);
                self.catalog = Arc::new(catalog);
                self.watch = watch;
                self.offer_skills();
                let now = self.command_list();
                if first || before != now {
                    self.announce(&Out::Commands(now));
                }
                self.show_problems(&problems);
            }
            Background::Shell(ticket, outputs) => {
                if let Some(rendering) = self.rendering.take_if(|rendering| rendering.is_for(ticket)) {
                    self.begin_command(rendering.prompt, outputs);
                }
            }
            Background::LocalServer(server) => self.local_server_found(server),
            Background::Hooks(look, found, trust, watch) => self.hooks_found(look, *found, *trust, watch),
            Background::Ahead(plan, summary) => self.ahead_written(*plan, *summary),
            Background::Foreseen(decided) => self.foreseen(decided),
            Background::Previewed(ticket, previewed) => self.previewed(ticket, *previewed),
            Background::ServicePlan(hook, plan, answer) => self.service_planned(&hook, plan, answer),
            Background::OnDisk(prompt, came) => self.on_disk(*prompt, came),
            Background::TakenUp(reports) => self.taken_up(reports),
            Background::WishOver { ask, in_time } => self.wish_over(ask, in_time),
            Background::QuestionOver(ask) => {
                self.close_question(ask, epitome_tools::question::Reply::Cancelled)
            }
            Background::ServersAwaited => self.waited_for_servers(),
            Background::Side(called) => self.side_done(called),
            Background::ModelsAsked(asked) => self.models_asked(*asked),
            Background::Served => {}
            // It is asked before it comes here whether to rest.
            Background::Idle => self.await_rest(),
            Background::Rested(at) => {
                if self.work.is_none() && self.thread.next_seq() == at {
                    self.encoding = Encoding::default();
                }
            }
            Background::Synced(Ok(())) => self.sync_due = false,
            Background::Synced(Err(error)) => {
                self.sync_due = false;
                tracing::error!(session = %self.id, %error, "the log could not be synced");
                let text = format!("The session's log could not be brought to the disk: {error}");
                self.announce(&Out::Notice { severity: Severity::Error, text });
            }
        }
    }

    /// Work outside of turns panicked; which it was is not known, so whoever may wait for it goes on.
    pub(super) fn background_panicked(&mut self) {
        if let Some(rendering) = self.rendering.take_if(|rendering| rendering.job.is_finished()) {
            let message = "the recipe's commands failed by a fault of Epitome's own".to_owned();
            rendering.prompt.responder.answer(Err(SessionError::Internal(message)));
        }
        if self.searching {
            self.local_server_found(None);
        }
        self.catalog_read = true;
        self.hooks.set_read(true);
        self.sync_due = false;
    }

    /// Tells each problem once.
    pub(super) fn show_problems(&mut self, problems: &[Problem]) {
        for problem in problems {
            tracing::warn!(session = %self.id, %problem, "a file of the person's has a problem");
            if self.audience.is_empty() {
                self.untold_problems.push(problem.clone());
            } else if self.told_problems.insert(problem.clone()) {
                self.announce(&problem_notice(problem));
            }
        }
    }
}

/// What a prompt is answered with where a provider refuses or can't be reached.
pub fn provider_error(error: &ProviderError) -> SessionError {
    match error.class {
        epitome_provider::ErrorClass::Auth => SessionError::AuthRequired(sentence(error)),
        _ => SessionError::Provider { message: error.message.clone(), hint: error.hint.clone() },
    }
}

/// The first and the last text of a prompt, each with the index of its part: where a command may be.
pub(super) fn outer_texts(content: &[Content]) -> impl Iterator<Item = (usize, &str)> {
    let mut texts = content.iter().enumerate().filter_map(|(at, part)| match part {
        Content::Text { text } => Some((at, text.as_str())),
        Content::Thinking { .. }
        | Content::Call(_)
        | Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => None,
    });
    [texts.next(), texts.next_back()].into_iter().flatten()
}

/// A title from what the person said first: its first line, cut at a word.
fn title_of(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    if line.chars().count() <= TITLE_CHARS_MAX {
        return line.to_owned();
    }
    let head: String = line.chars().take(TITLE_CHARS_MAX - 1).collect();
    let cut = head.rfind(char::is_whitespace).filter(|at| *at > TITLE_CHARS_MAX / 2).unwrap_or(head.len());
    format!("{}…", head[..cut].trim_end())
}
