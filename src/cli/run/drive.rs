//! Drives a run: sends its prompts, shows the events of the session and answers its questions until the last turn has
//! ended.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::event_printer::EventPrinter;
use super::expected::{ExpectedJson, ReplyCheck};
use super::failed;
use super::host::HostLink;
use super::keyboard::{Keyboard, TypedAnswer, answer, listen};
use super::named;
use super::request::PromptRequest;
use crate::chat::form::{FormDialog, form_of};
use crate::cli::printer::{Printer, is_shown_whole};
use crate::cli::queue::{InputQueue, RunInput};
use crate::cli::terminal;
use crate::cli::{CliError, EXIT_CANCELLED, serve};
use crate::recipe::catalog::RecipeCatalog;
use crate::session::{AskId, CommandInfo, PermissionRequest, QuestionReply, SessionError, UserDecision};
use crate::thread::{
    Change, Content, Decider, Mode, SessionId, StopReason, ThoughtLevel, ToolOutcome, Usage,
};
use epitome_client::{ClientEvent, OpenedSession, PromptEnd, SessionChoices, SessionClient, SessionMessage};

/// How often the progress line is updated.
const TICK: Duration = Duration::from_secs(1);

/// The purpose of a request, by which its answer is handled.
#[derive(Debug)]
pub enum RunRequest {
    /// Opens the session.
    Open,
    /// Changes a setting, before the prompt is sent.
    Choose,
    /// The prompt with this number.
    Prompt(u64),
    /// This request of the program.
    Host(String),
}

/// The prompts of a run and the session that receives them.
pub struct PromptRun {
    pub(super) client: SessionClient<RunRequest>,
    /// Empty until a new session is open.
    pub(super) session: SessionId,
    queue: Arc<InputQueue>,
    pub(super) sink: EventPrinter,
    /// Prompts that have not been sent.
    pub(super) prompts: VecDeque<Vec<Content>>,
    /// The number of prompts that were sent.
    sent: u64,
    /// The request of the latest prompt, and whether it is a message of the session yet.
    prompt: (u64, PromptProgress),
    is_running: bool,
    /// The program that sends prompts, if one does.
    pub(super) host: Option<HostLink>,
    /// The schema that replies must match.
    expected: Option<ExpectedJson>,
    recipe: Option<String>,
    /// The session's working directory.
    cwd: PathBuf,
    /// Additional directories of recipes.
    recipe_dirs: Vec<PathBuf>,
    model: Option<String>,
    mode: Option<Mode>,
    thought: Option<ThoughtLevel>,
    /// Settings that must be confirmed before the prompt is sent.
    waits_for: usize,
    pub(super) commands: Option<Vec<CommandInfo>>,
    pub(super) options: Option<SessionChoices>,
    ask: Option<(AskId, AskedQuestion)>,
    /// Questions queued after the open one, because a turn and callbacks of hooks may ask at the same time.
    asks: VecDeque<(AskId, AskedQuestion)>,
    /// Questions that can't be answered here. Another client may answer them, so the outcome of the call is decisive.
    left_open: Vec<Arc<PermissionRequest>>,
    keyboard: Keyboard,
    cancelled: bool,
    /// The text of the last reply.
    reply: String,
    /// Tokens of the running prompt, with repeated attempts.
    spent: Usage,
    /// Cost of the session's model calls in US dollars, if prices are known.
    cost: Option<f64>,
    /// The exit code if nothing else follows.
    code: Option<i32>,
}

/// Whether the session has taken the latest prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PromptProgress {
    Sent,
    /// It is to be cancelled, and may become a message before the session knows that.
    Cancelled,
    Taken,
}

/// An open question to the user.
enum AskedQuestion {
    Permission(Arc<PermissionRequest>),
    Form(Box<FormDialog>),
}

/// The end of a prompt.
pub enum RunEnd {
    Turn {
        reason: StopReason,
        result: CommandResult,
        /// The reply as JSON that matches the schema, if one is expected.
        structured: Option<Value>,
    },
    /// No reply matched the schema; the faults of the last one.
    Unfit(Vec<String>),
    Error(CliError),
}

impl RunEnd {
    fn code(&self) -> i32 {
        match self {
            RunEnd::Turn { reason: StopReason::EndTurn, result, .. } => i32::from(result.is_refused()),
            RunEnd::Turn { reason: StopReason::Cancelled, .. } => EXIT_CANCELLED,
            RunEnd::Turn { .. } | RunEnd::Unfit(_) => 1,
            RunEnd::Error(error) => error.code,
        }
    }
}

/// The result of a command under its name, for programs. Empty for a prompt.
#[derive(Default)]
pub struct CommandResult(pub Map<String, Value>);

impl CommandResult {
    /// Whether the command was refused or failed.
    fn is_refused(&self) -> bool {
        let status = |result: &Value| result.get("status").and_then(Value::as_str).map(str::to_owned);
        self.0.values().filter_map(status).any(|status| matches!(status.as_str(), "refused" | "failed"))
    }
}

impl PromptRun {
    pub fn new(
        client: SessionClient<RunRequest>,
        session: SessionId,
        queue: Arc<InputQueue>,
        sink: EventPrinter,
        inputs: RunInputs,
        request: PromptRequest,
    ) -> PromptRun {
        let RunInputs { prompt, host, expected } = inputs;
        PromptRun {
            client,
            session,
            queue,
            sink,
            prompts: prompt.into_iter().collect(),
            sent: 0,
            prompt: (0, PromptProgress::Taken),
            is_running: false,
            keyboard: if host.is_some() { Keyboard::Missing } else { Keyboard::Unknown },
            host,
            expected,
            recipe: request.recipe,
            cwd: PathBuf::new(),
            recipe_dirs: request.overrides.recipe_dirs,
            model: request.overrides.model,
            mode: request.overrides.mode,
            thought: request.overrides.thought,
            waits_for: 0,
            commands: None,
            options: None,
            ask: None,
            asks: VecDeque::new(),
            left_open: Vec::new(),
            cancelled: false,
            reply: String::new(),
            spent: Usage::default(),
            cost: None,
            code: None,
        }
    }

    /// Prints until the last prompt is answered, and returns the exit code.
    pub fn drive(&mut self) -> Result<i32, CliError> {
        loop {
            let step = match self.queue.next(TICK) {
                Some(RunInput::Agent(line)) => match self.client.receive(&line) {
                    SessionMessage::Event(event) => self.take(event),
                    SessionMessage::Answer(request, answer) => self.answered(request, answer),
                    SessionMessage::Nothing => Ok(None),
                },
                Some(RunInput::AgentLeft) => Ok(self.agent_left()),
                Some(RunInput::Typed(line)) => self.typed(line).map(|()| None),
                Some(RunInput::Interrupted) => self.interrupt().map(|()| None),
                Some(RunInput::Host(line)) => self.host_wrote(line),
                Some(RunInput::HostLeft) => {
                    self.host_left();
                    Ok(None)
                }
                None => self.tick().map(|()| None),
            };
            let mut ended = match step {
                Ok(ended) => ended.and_then(|end| self.checked(end)),
                // The reader of the output is gone.
                Err(error) => {
                    self.cancel();
                    return unprinted(&error);
                }
            };
            while let Some(end) = ended {
                self.code = Some(end.code());
                if let Err(error) = self.finish(&end) {
                    return unprinted(&error);
                }
                match end {
                    RunEnd::Error(error) if !self.is_running || self.host.is_none() => return Err(error),
                    RunEnd::Unfit(faults) if self.host.is_none() => return Err(unfit(&faults)),
                    RunEnd::Error(_) | RunEnd::Unfit(_) | RunEnd::Turn { .. } => {}
                }
                self.is_running = false;
                ended = self.send_prompt().map(RunEnd::Error);
            }
            if self.is_done() {
                return self.code.or(self.cancelled.then_some(EXIT_CANCELLED)).ok_or_else(no_prompt);
            }
        }
    }

    /// Whether nothing remains to be done.
    fn is_done(&self) -> bool {
        let is_idle = !self.is_running && self.prompts.is_empty();
        match &self.host {
            Some(host) => is_idle && !host.is_open() && host.is_answered(),
            None => is_idle && self.code.is_some(),
        }
    }

    /// Checks the reply of a turn. Returns `None` if the model is asked again.
    fn checked(&mut self, end: RunEnd) -> Option<RunEnd> {
        let (RunEnd::Turn { reason: StopReason::EndTurn, result, .. }, Some(expected)) =
            (&end, &mut self.expected)
        else {
            return Some(end);
        };
        if !result.0.is_empty() {
            // A command does not reply.
            return Some(end);
        }
        match expected.check(&self.reply) {
            ReplyCheck::Fit(value) => {
                let (reason, result) = (StopReason::EndTurn, CommandResult::default());
                Some(RunEnd::Turn { reason, result, structured: Some(value) })
            }
            ReplyCheck::Unfit(faults) => Some(RunEnd::Unfit(faults)),
            ReplyCheck::AskAgain(text) => {
                self.send(vec![Content::Text { text }]);
                None
            }
        }
    }

    fn take(&mut self, event: ClientEvent) -> io::Result<Option<RunEnd>> {
        match &event {
            ClientEvent::Ask { ask, permission } => {
                self.ask_user(*ask, AskedQuestion::Permission(permission.clone()))?
            }
            ClientEvent::Question { ask, question } => match form_of(question) {
                Some(form) => self.ask_user(*ask, AskedQuestion::Form(Box::new(form)))?,
                None => self.client.answer_question(*ask, QuestionReply::Cancelled),
            },
            ClientEvent::Withdrawn { ask } => {
                self.withdraw_from_host(*ask)?;
                self.asks.retain(|(waiting, _)| waiting != ask);
                if self.ask.take_if(|(open, _)| open == ask).is_some() {
                    self.sink.remark("\n  (the question is withdrawn)")?;
                    self.ask_next()?;
                }
            }
            ClientEvent::Commands(commands) => {
                self.commands = Some(commands.clone());
                self.introduce()?;
                if let Some(error) = self.send_prompt() {
                    return Ok(Some(RunEnd::Error(error)));
                }
            }
            ClientEvent::Usage(usage) => self.cost = usage.cost,
            ClientEvent::Entry { entry, replay: false } => match &entry.change {
                Change::ToolFinished { outcome } => self.report_unanswered(outcome)?,
                // Text before the last one, as before a provider's search, is not part of the answer.
                Change::Replied { message, .. } => {
                    let last = message.content.iter().rev().find_map(Content::as_text);
                    self.reply = last.unwrap_or_default().to_owned();
                }
                _ => {}
            },
            ClientEvent::CallFinished { outcome } => self.report_unanswered(outcome)?,
            ClientEvent::PromptEnded(ended) => return Ok(self.prompt_ended(ended)),
            ClientEvent::Text { .. }
            | ClientEvent::CallStarted { .. }
            | ClientEvent::CallProgress { .. }
            | ClientEvent::Compacting { .. }
            | ClientEvent::Options(_)
            | ClientEvent::Entry { replay: true, .. }
            | ClientEvent::Notice { .. } => {}
        }
        // Do not overwrite the line of an open question.
        let is_question_open = matches!(self.sink, EventPrinter::Text(_)) && self.ask.is_some();
        if !(is_question_open && matches!(event, ClientEvent::CallProgress { .. })) {
            self.sink.show(&event)?;
        }
        Ok(None)
    }

    /// A session's error, for a shell.
    fn failed(&self, error: &SessionError) -> CliError {
        failed(error).in_shell(&self.session)
    }

    fn prompt_ended(&mut self, ended: &PromptEnd) -> Option<RunEnd> {
        if !self.is_running || ended.request != self.prompt.0 {
            return None;
        }
        if let Some(error) = &ended.error {
            return Some(RunEnd::Error(self.failed(error)));
        }
        self.spent.add(&ended.usage);
        let reason = ended.reason.unwrap_or(StopReason::Failed);
        Some(RunEnd::Turn { reason, result: CommandResult(ended.result.clone()), structured: None })
    }

    fn answered(
        &mut self,
        request: RunRequest,
        answer: Result<Value, SessionError>,
    ) -> io::Result<Option<RunEnd>> {
        let error = match (request, answer) {
            (RunRequest::Host(id), answer) => {
                let answer = answer.map(|_| json!({})).map_err(|error| error.to_string());
                self.answer_host(&id, &answer)?;
                None
            }
            (RunRequest::Open, Ok(answer)) => match OpenedSession::read(answer) {
                Ok(opened) => self.opened(opened)?,
                Err(error) => Some(self.failed(&error)),
            },
            (RunRequest::Choose, Ok(_)) => {
                self.waits_for = self.waits_for.saturating_sub(1);
                self.send_prompt()
            }
            (RunRequest::Prompt(number), _) if number != self.sent => None,
            (RunRequest::Prompt(_), Ok(_)) => {
                if std::mem::replace(&mut self.prompt.1, PromptProgress::Taken) == PromptProgress::Cancelled {
                    self.cancel();
                }
                None
            }
            // The agent has reported how it ended, unless it could not read it.
            (RunRequest::Prompt(_), Err(error)) => self.is_running.then(|| self.failed(&error)),
            (RunRequest::Open | RunRequest::Choose, Err(error)) => Some(self.failed(&error)),
        };
        Ok(error.map(RunEnd::Error))
    }

    fn opened(&mut self, opened: OpenedSession) -> io::Result<Option<CliError>> {
        let OpenedSession { session, cwd, choices, commands: _ } = opened;
        if let Some(session) = session {
            self.session = session;
        }
        self.cwd.clone_from(&cwd);
        self.sink.attached(self.session.clone(), cwd, &choices);
        self.choose(&choices);
        self.send_early();
        self.options = Some(choices);
        self.introduce()?;
        Ok(self.send_prompt())
    }

    /// The agent is gone, and so is everything that it has not answered.
    fn agent_left(&mut self) -> Option<RunEnd> {
        if let Some(host) = &mut self.host {
            host.give_up();
        }
        self.prompts.clear();
        let (_, error) = self.client.ended();
        Some(RunEnd::Error(self.failed(&error)))
    }

    /// Applies the options that differ from the session's settings.
    fn choose(&mut self, current: &SessionChoices) {
        let model = self.model.clone().filter(|model| Some(model) != current.model.as_ref());
        let thought = self.thought.filter(|level| Some(*level) != current.thought);
        let mode = self.mode.filter(|mode| Some(*mode) != current.mode);
        let wanted = [
            ("model", model),
            ("thought_level", thought.map(|level| level.id().to_owned())),
            ("mode", mode.map(|mode| mode.id().to_owned())),
        ];
        for (option, value) in wanted {
            let Some(value) = value else { continue };
            self.client.set_option(&self.session, option, &value, RunRequest::Choose);
            self.waits_for += 1;
        }
    }

    /// Sends the prompt after the settings are confirmed and the recipes are known. Before that, `/name` would be
    /// plain text.
    pub(super) fn send_prompt(&mut self) -> Option<CliError> {
        let commands = self.commands.as_ref()?;
        if self.waits_for > 0 || self.options.is_none() || self.is_running {
            return None;
        }
        let load = || RecipeCatalog::load(&self.cwd, &serve::paths(), &self.recipe_dirs);
        let refused = match (&self.recipe, &self.host) {
            (Some(recipe), _) => named::refused(recipe, commands, load),
            (None, Some(_)) => None,
            (None, None) => {
                let typed = self.prompts.front().and_then(|prompt| prompt.first()?.as_text());
                typed.and_then(|typed| named::unknown(typed, commands, load))
            }
        };
        if refused.is_some() {
            return refused;
        }
        let mut content = self.prompts.pop_front()?;
        if let Some(expected) = &mut self.expected {
            expected.begin(&mut content);
        }
        (self.is_running, self.spent) = (true, Usage::default());
        self.sink.begin();
        self.send(content);
        if self.cancelled {
            // Ctrl-C was pressed before the prompt was sent.
            self.cancel();
        }
        None
    }

    fn send(&mut self, content: Vec<Content>) {
        self.reply.clear();
        self.sent += 1;
        let request = self.client.prompt(&self.session, content, RunRequest::Prompt(self.sent));
        self.prompt = (request, PromptProgress::Sent);
    }

    /// Stops for good, before the end of the running turn.
    pub(super) fn stop(&mut self) {
        self.cancel();
        self.is_running = false;
    }

    pub(super) fn cancel(&mut self) {
        if !self.is_running {
            return;
        }
        match self.prompt {
            // The work of others, which it waits for, goes on.
            (request, PromptProgress::Sent | PromptProgress::Cancelled) => {
                self.prompt.1 = PromptProgress::Cancelled;
                self.client.cancel_request(request);
            }
            (_, PromptProgress::Taken) => self.client.cancel(&self.session),
        }
    }

    /// Shows the next question that arrived while another was open.
    fn ask_next(&mut self) -> io::Result<()> {
        while self.ask.is_none()
            && let Some((ask, question)) = self.asks.pop_front()
        {
            self.ask_user(ask, question)?;
        }
        Ok(())
    }

    fn ask_user(&mut self, ask: AskId, question: AskedQuestion) -> io::Result<()> {
        if let AskedQuestion::Permission(permission) = &question
            && self.ask_host(ask, permission)?
        {
            return Ok(());
        }
        if self.ask.is_some() {
            self.asks.push_back((ask, question));
            return Ok(());
        }
        if matches!(self.keyboard, Keyboard::Unknown) {
            self.keyboard = listen(&self.queue);
        }
        match &mut self.keyboard {
            Keyboard::Open { reading, wanted } => {
                terminal::forget_typed();
                self.sink.on_stderr(|printer| print_question(printer, &question))?;
                self.ask = Some((ask, question));
                if !std::mem::replace(reading, true) {
                    // The channel is full only while a line is being read, and then none is requested.
                    let _ = wanted.try_send(());
                }
                Ok(())
            }
            Keyboard::Missing | Keyboard::Unknown => {
                self.unanswered(ask, question);
                Ok(())
            }
        }
    }

    fn typed(&mut self, line: Option<String>) -> io::Result<()> {
        if let Keyboard::Open { reading, .. } = &mut self.keyboard {
            *reading = false;
        }
        let Some((ask, question)) = self.ask.take() else { return Ok(()) };
        let Some(line) = line else {
            self.keyboard = Keyboard::Missing;
            self.unanswered(ask, question);
            return self.ask_next();
        };
        match question {
            AskedQuestion::Permission(permission) => {
                let shown_whole = is_shown_whole(&permission.preview);
                let is_possible = |decision: &UserDecision| match decision {
                    UserDecision::AllowAlways => permission.always.is_some() && shown_whole,
                    UserDecision::AllowOnce => shown_whole,
                    UserDecision::Reject
                    | UserDecision::RejectBecause(_)
                    | UserDecision::RejectAlways
                    | UserDecision::Dismissed
                    | UserDecision::Absent => true,
                };
                match answer(&line) {
                    TypedAnswer::Decision(decision) if is_possible(&decision) => {
                        self.decide(ask, &permission, decision)?;
                    }
                    TypedAnswer::Explain => {
                        self.sink.on_stderr(|printer| printer.explain(&permission))?;
                        return self.ask_user(ask, AskedQuestion::Permission(permission));
                    }
                    TypedAnswer::Decision(_) | TypedAnswer::Unclear => {
                        return self.ask_user(ask, AskedQuestion::Permission(permission));
                    }
                }
            }
            AskedQuestion::Form(mut form) => match form.typed(&line) {
                Some(reply) => self.client.answer_question(ask, reply),
                None => return self.ask_user(ask, AskedQuestion::Form(form)),
            },
        }
        self.ask_next()
    }

    /// Handles a question that nobody here can answer.
    fn unanswered(&mut self, ask: AskId, question: AskedQuestion) {
        match question {
            AskedQuestion::Permission(permission) => self.absent(ask, permission),
            AskedQuestion::Form(_) => self.client.answer_question(ask, QuestionReply::Cancelled),
        }
    }

    /// Leaves a question to the session's other clients, if any.
    pub(super) fn absent(&mut self, ask: AskId, permission: Arc<PermissionRequest>) {
        self.left_open.push(permission);
        self.client.decide(ask, &UserDecision::Absent);
    }

    /// Reports a call that was denied because no client could answer its question.
    fn report_unanswered(&mut self, outcome: &ToolOutcome) -> io::Result<()> {
        let is_of = |permission: &mut Arc<PermissionRequest>| permission.call == outcome.call;
        let is_unanswered = outcome.decided.as_ref().is_some_and(|decided| decided.by == Decider::Nobody);
        for permission in self.left_open.extract_if(.., is_of) {
            if is_unanswered {
                self.sink.decided(&permission, &UserDecision::Absent)?;
            }
        }
        Ok(())
    }

    pub(super) fn decide(
        &mut self,
        ask: AskId,
        permission: &PermissionRequest,
        decision: UserDecision,
    ) -> io::Result<()> {
        self.sink.decided(permission, &decision)?;
        self.client.decide(ask, &decision);
        Ok(())
    }

    fn interrupt(&mut self) -> io::Result<()> {
        self.cancelled = true;
        if self.host.is_some() {
            self.host_left();
            self.prompts.clear();
        }
        // Cancelling withdraws an open question, so its line ends here.
        let line = if self.ask.take().is_some() { "\n" } else { "" };
        self.cancel();
        self.sink.remark(&format!("{line}Cancelling (press Ctrl-C again to exit at once)."))
    }

    fn tick(&mut self) -> io::Result<()> {
        // Do not overwrite the line of an open question.
        match &mut self.sink {
            EventPrinter::Text(printer) if self.ask.is_none() => printer.tick(),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, end: &RunEnd) -> io::Result<()> {
        let figures =
            RunFigures { session: &self.session, reply: &self.reply, spent: &self.spent, cost: self.cost };
        self.sink.finish(end, &figures)
    }
}

/// The prompts of a run, and the expected form of its replies.
pub struct RunInputs {
    /// The prompt of the command line.
    pub prompt: Option<Vec<Content>>,
    pub host: Option<HostLink>,
    pub expected: Option<ExpectedJson>,
}

/// The figures that are printed at the end of a prompt.
pub struct RunFigures<'a> {
    pub session: &'a SessionId,
    pub reply: &'a str,
    pub spent: &'a Usage,
    pub cost: Option<f64>,
}

/// The result of a run whose output can't be printed. A reader that has closed the pipe (`| head`) is no reason for a
/// message.
fn unprinted(error: &io::Error) -> Result<i32, CliError> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(1),
        _ => Err(terminal::cannot_write(error)),
    }
}

/// The error of a program that sends nothing.
fn no_prompt() -> CliError {
    let hint = r#"write a line such as {"type":"user","message":{"role":"user","content":"…"}}"#;
    CliError::usage("stdin ended without a prompt").hint(hint)
}

/// The error after the last attempt.
pub(super) fn unfit(faults: &[String]) -> CliError {
    let message = format!("no reply matched the schema; the last one: {}", faults.join("; "));
    CliError::failed(message).hint("the session has all replies; a simpler schema or another model may help")
}

/// Prints a question.
fn print_question(printer: &mut Printer<'_>, question: &AskedQuestion) -> io::Result<()> {
    match question {
        AskedQuestion::Permission(permission) => printer.question(permission),
        AskedQuestion::Form(form) => printer.form(form),
    }
}
