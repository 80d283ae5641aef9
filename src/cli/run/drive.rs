//! Drives one prompt: shows the events of the session and answers its questions until the turn has ended.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::keyboard::{Keyboard, TypedAnswer, answer, listen};
use super::named;
use super::request::PromptRequest;
use super::{CLIENT, failed};
use crate::cli::form::FormDialog;
use crate::cli::json_lines::JsonLines;
use crate::cli::printer::{Printer, is_shown_whole};
use crate::cli::queue::{InputQueue, UserInput};
use crate::cli::terminal::{self, Color, Style};
use crate::cli::{CliError, EXIT_CANCELLED, serve};
use crate::recipe::catalog::RecipeCatalog;
use crate::session::event_queue::QueuedItem;
use crate::session::port::SessionPort;
use crate::session::{
    AskId, CommandInfo, PermissionRequest, QuestionReply, SessionAnswer, SessionCommand, SessionError,
    SessionEvent, SessionOptions, Ticket, UserDecision,
};
use crate::thread::{
    Change, Content, Decider, Mode, SessionId, StopReason, ThoughtLevel, ToolOutcome, Usage, text,
};

/// How often the progress line is updated.
const TICK: Duration = Duration::from_secs(1);

const MODEL: Ticket = Ticket(2);
const MODE: Ticket = Ticket(3);
const PROMPT: Ticket = Ticket(4);
const THOUGHT: Ticket = Ticket(5);

/// How events are shown.
pub enum EventPrinter {
    Text(Box<Printer<'static>>),
    Json(JsonLines<'static>),
    /// Only the result, as one object, with the text of the last reply.
    Result(String),
}

impl EventPrinter {
    fn show(&mut self, out: &SessionEvent) -> io::Result<()> {
        match self {
            EventPrinter::Text(printer) => printer.show(out),
            EventPrinter::Json(lines) => lines.show(out),
            EventPrinter::Result(text) => {
                if let SessionEvent::Entry { entry, replay: false, .. } = out
                    && let Change::Replied { message, .. } = &entry.change
                {
                    *text = message.text();
                }
                Ok(())
            }
        }
    }

    fn decided(&mut self, permission: &PermissionRequest, decision: &UserDecision) -> io::Result<()> {
        match self {
            EventPrinter::Text(printer) => printer.decided(permission, decision),
            EventPrinter::Json(lines) => lines.decided(permission, decision),
            EventPrinter::Result(_) => Ok(()),
        }
    }

    /// Prints text that the user must see in every format.
    fn on_stderr(&mut self, print: impl FnOnce(&mut Printer<'_>) -> io::Result<()>) -> io::Result<()> {
        match self {
            EventPrinter::Text(printer) => print(printer),
            EventPrinter::Json(_) | EventPrinter::Result(_) => {
                print(&mut Printer::new(io::sink(), Style::Plain, io::stderr(), Style::for_stderr()))
            }
        }
    }

    /// Prints a notice, which is for users only.
    fn remark(&mut self, text: &str) -> io::Result<()> {
        match self {
            EventPrinter::Text(printer) => printer.remark(Color::Dim, text),
            EventPrinter::Json(_) | EventPrinter::Result(_) => Ok(()),
        }
    }
}

/// One prompt and the session that receives it.
pub struct PromptRun<P> {
    sessions: P,
    session: SessionId,
    queue: Arc<InputQueue>,
    sink: EventPrinter,
    /// `None` after it has been sent.
    prompt: Option<Vec<Content>>,
    recipe: Option<String>,
    /// Additional directories of recipes.
    recipe_dirs: Vec<PathBuf>,
    model: Option<String>,
    mode: Option<Mode>,
    thought: Option<ThoughtLevel>,
    /// Settings that must be confirmed before the prompt is sent.
    waits_for: Vec<Ticket>,
    commands: Option<Arc<[CommandInfo]>>,
    ask: Option<(AskId, AskedQuestion)>,
    /// Questions queued after the open one, because a turn and callbacks of hooks may ask at the same time.
    asks: VecDeque<(AskId, AskedQuestion)>,
    /// Questions that can't be answered here. Another client may answer them, so the outcome of the call is decisive.
    left_open: Vec<Arc<PermissionRequest>>,
    keyboard: Keyboard,
    cancelled: bool,
    /// Cost of the session's model calls in US dollars, if prices are known.
    cost: Option<f64>,
}

/// An open question to the user.
enum AskedQuestion {
    Permission(Arc<PermissionRequest>),
    Form(Box<FormDialog>),
}

/// The end of a run.
enum RunEnd {
    Turn(StopReason, Usage, CommandResult),
    Error(CliError),
}

/// The result of a command under its name, for programs. Empty for a prompt.
#[derive(Default)]
struct CommandResult(Map<String, Value>);

impl CommandResult {
    fn new(meta: Option<Value>) -> CommandResult {
        let told = meta.as_ref().and_then(|meta| meta.get("epitome")).and_then(Value::as_object);
        CommandResult(told.cloned().unwrap_or_default())
    }

    /// Whether the command was refused or failed.
    fn is_refused(&self) -> bool {
        let status = |told: &Value| told.get("status").and_then(Value::as_str).map(str::to_owned);
        self.0.values().filter_map(status).any(|status| matches!(status.as_str(), "refused" | "failed"))
    }
}

impl<P: SessionPort> PromptRun<P> {
    pub fn new(
        sessions: P,
        session: SessionId,
        queue: Arc<InputQueue>,
        sink: EventPrinter,
        prompt: Vec<Content>,
        request: PromptRequest,
    ) -> PromptRun<P> {
        PromptRun {
            sessions,
            session,
            queue,
            sink,
            prompt: Some(prompt),
            recipe: request.recipe,
            recipe_dirs: request.overrides.recipe_dirs,
            model: request.overrides.model,
            mode: request.overrides.mode,
            thought: request.overrides.thought,
            waits_for: Vec::new(),
            commands: None,
            ask: None,
            asks: VecDeque::new(),
            left_open: Vec::new(),
            keyboard: Keyboard::Unknown,
            cancelled: false,
            cost: None,
        }
    }

    /// Prints until the prompt is answered, and returns the exit code.
    pub fn drive(&mut self) -> Result<i32, CliError> {
        let end = loop {
            let step = match self.queue.next(TICK) {
                Some(QueuedItem::Event { out, .. }) => self.take(out),
                Some(QueuedItem::Own(UserInput::Typed(line))) => self.typed(line).map(|()| None),
                Some(QueuedItem::Own(UserInput::Interrupted)) => self.interrupt().map(|()| None),
                None => self.tick().map(|()| None),
            };
            match step {
                Ok(None) => {}
                Ok(Some(end)) => break end,
                // The reader of the output is gone.
                Err(error) => {
                    drop(self.sessions.send(&self.session, SessionCommand::CancelPrompt { ticket: PROMPT }));
                    return match error.kind() {
                        io::ErrorKind::BrokenPipe => Ok(1),
                        _ => Err(terminal::cannot_write(&error)),
                    };
                }
            }
        };
        let code = match &end {
            RunEnd::Turn(StopReason::EndTurn, _, told) if told.is_refused() => 1,
            RunEnd::Turn(StopReason::EndTurn, ..) => 0,
            RunEnd::Turn(StopReason::Cancelled, ..) => EXIT_CANCELLED,
            RunEnd::Turn(..) | RunEnd::Error(_) => 1,
        };
        self.finish(&end).map_err(|error| terminal::cannot_write(&error))?;
        match end {
            RunEnd::Turn(..) => Ok(code),
            RunEnd::Error(error) => Err(error),
        }
    }

    fn take(&mut self, out: SessionEvent) -> io::Result<Option<RunEnd>> {
        match &out {
            SessionEvent::Answer { ticket, answer } => return self.answered(*ticket, answer.clone()),
            SessionEvent::Ask { ask, permission } => {
                self.ask_user(*ask, AskedQuestion::Permission(permission.clone()))?
            }
            SessionEvent::Question { ask, question } => {
                self.ask_user(*ask, AskedQuestion::Form(Box::new(FormDialog::new(question))))?;
            }
            SessionEvent::Withdrawn { ask } => {
                self.asks.retain(|(waiting, _)| waiting != ask);
                if self.ask.take_if(|(open, _)| open == ask).is_some() {
                    self.sink.remark("\n  (the question is withdrawn)")?;
                    self.ask_next()?;
                }
            }
            SessionEvent::Commands(commands) => {
                self.commands = Some(commands.clone());
                if let Some(error) = self.send_prompt() {
                    return Ok(Some(RunEnd::Error(error)));
                }
            }
            SessionEvent::Usage(usage) => self.cost = usage.cost,
            SessionEvent::Entry { entry, .. } => {
                if let Change::ToolFinished { outcome } = &entry.change {
                    self.report_unanswered(outcome)?;
                }
            }
            SessionEvent::CallFinished { outcome } => self.report_unanswered(outcome)?,
            SessionEvent::Text { .. }
            | SessionEvent::CallStarted { .. }
            | SessionEvent::CallProgress { .. }
            | SessionEvent::Seen(_)
            | SessionEvent::Subagent(_)
            | SessionEvent::Compaction { .. }
            | SessionEvent::Options(_)
            | SessionEvent::QuestionDone { .. }
            | SessionEvent::Wish { .. }
            | SessionEvent::State(_)
            | SessionEvent::Inserted { .. }
            | SessionEvent::Suggestions(_)
            | SessionEvent::TerminalEnded { .. }
            | SessionEvent::Notice { .. } => {}
        }
        // Do not overwrite the line of an open question.
        let is_question_open = matches!(self.sink, EventPrinter::Text(_)) && self.ask.is_some();
        if !(is_question_open && matches!(out, SessionEvent::CallProgress { .. })) {
            self.sink.show(&out)?;
        }
        Ok(None)
    }

    fn answered(
        &mut self,
        ticket: Ticket,
        answer: Result<SessionAnswer, SessionError>,
    ) -> io::Result<Option<RunEnd>> {
        let error = match answer {
            Err(error) => Some(failed(&error)),
            Ok(SessionAnswer::Attached { options, .. }) => {
                let chosen = self.choose(&options);
                chosen.err().map(|error| failed(&error)).or_else(|| self.send_prompt())
            }
            Ok(SessionAnswer::Options(_)) => {
                self.waits_for.retain(|waited| *waited != ticket);
                self.send_prompt()
            }
            Ok(SessionAnswer::TurnEnded { reason, usage, meta }) => {
                return Ok(Some(RunEnd::Turn(reason, usage, CommandResult::new(meta))));
            }
            Ok(SessionAnswer::Closed | SessionAnswer::Steered(_) | SessionAnswer::Accepted) => None,
        };
        Ok(error.map(RunEnd::Error))
    }

    /// Applies the options that differ from the session's settings.
    fn choose(&mut self, options: &SessionOptions) -> Result<(), SessionError> {
        let client = CLIENT;
        if let Some(model) = self.model.clone()
            && options.model.as_ref().is_none_or(|current| current.0 != model)
        {
            let (ticket, option, value) = (MODEL, "model".to_owned(), model);
            let command = SessionCommand::SetOption { ticket, client, option, value };
            self.sessions.send(&self.session, command)?;
            self.waits_for.push(ticket);
        }
        if let Some(level) = self.thought.filter(|level| *level != options.thought) {
            let (ticket, option, value) = (THOUGHT, "thought_level".to_owned(), level.id().to_owned());
            let command = SessionCommand::SetOption { ticket, client, option, value };
            self.sessions.send(&self.session, command)?;
            self.waits_for.push(ticket);
        }
        if let Some(mode) = self.mode.filter(|mode| *mode != options.mode) {
            let (ticket, mode) = (MODE, mode.id().to_owned());
            self.sessions.send(&self.session, SessionCommand::SetMode { ticket, client, mode })?;
            self.waits_for.push(ticket);
        }
        Ok(())
    }

    /// Sends the prompt after the settings are confirmed and the recipes are known. Before that, `/name` would be
    /// plain text.
    fn send_prompt(&mut self) -> Option<CliError> {
        let commands = self.commands.as_ref()?;
        if !self.waits_for.is_empty() {
            return None;
        }
        if let Some(recipe) = &self.recipe {
            let cwd = serve::working_directory().unwrap_or_default();
            let load = || RecipeCatalog::load(&cwd, &serve::paths(), &self.recipe_dirs);
            if let Some(error) = named::refused(recipe, commands, load) {
                return Some(error);
            }
        }
        let content = self.prompt.take()?;
        let prompt = SessionCommand::Prompt { ticket: PROMPT, client: CLIENT, content, key: None };
        let error = self.sessions.send(&self.session, prompt).err().map(|error| failed(&error));
        if self.cancelled && error.is_none() {
            // Ctrl-C was pressed before the prompt was sent.
            drop(self.sessions.send(&self.session, SessionCommand::CancelPrompt { ticket: PROMPT }));
        }
        error
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
            Keyboard::Nobody | Keyboard::Unknown => {
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
            self.keyboard = Keyboard::Nobody;
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
                // A closed session has withdrawn its questions.
                Some(reply) => {
                    drop(self.sessions.send(&self.session, SessionCommand::Answer { ask, reply }));
                }
                None => return self.ask_user(ask, AskedQuestion::Form(form)),
            },
        }
        self.ask_next()
    }

    /// Handles a question that nobody here can answer.
    fn unanswered(&mut self, ask: AskId, question: AskedQuestion) {
        match question {
            AskedQuestion::Permission(permission) => self.absent(ask, permission),
            AskedQuestion::Form(_) => {
                let reply = QuestionReply::Cancelled;
                drop(self.sessions.send(&self.session, SessionCommand::Answer { ask, reply }));
            }
        }
    }

    /// Leaves a question to the session's other clients, if any.
    fn absent(&mut self, ask: AskId, permission: Arc<PermissionRequest>) {
        self.left_open.push(permission);
        // A closed session has withdrawn its questions.
        drop(self.sessions.send(&self.session, SessionCommand::Absent { ask, client: CLIENT }));
    }

    /// Reports a call that was denied because no client could answer its question.
    fn report_unanswered(&mut self, outcome: &ToolOutcome) -> io::Result<()> {
        let is_of = |permission: &mut Arc<PermissionRequest>| permission.call == outcome.call;
        let by_nobody = outcome.decided.as_ref().is_some_and(|decided| decided.by == Decider::Nobody);
        for permission in self.left_open.extract_if(.., is_of) {
            if by_nobody {
                self.sink.decided(&permission, &UserDecision::Absent)?;
            }
        }
        Ok(())
    }

    fn decide(
        &mut self,
        ask: AskId,
        permission: &PermissionRequest,
        decision: UserDecision,
    ) -> io::Result<()> {
        self.sink.decided(permission, &decision)?;
        // A closed session has withdrawn its questions.
        drop(self.sessions.send(&self.session, SessionCommand::Decide { ask, decision }));
        Ok(())
    }

    fn interrupt(&mut self) -> io::Result<()> {
        self.cancelled = true;
        // Cancelling withdraws an open question, so its line ends here.
        let line = if self.ask.take().is_some() { "\n" } else { "" };
        drop(self.sessions.send(&self.session, SessionCommand::CancelPrompt { ticket: PROMPT }));
        self.sink.remark(&format!("{line}Cancelling (press Ctrl-C again to exit at once)."))
    }

    fn tick(&mut self) -> io::Result<()> {
        match &mut self.sink {
            // Do not overwrite the line of an open question.
            EventPrinter::Text(printer) if self.ask.is_none() => printer.tick(),
            EventPrinter::Text(_) | EventPrinter::Json(_) | EventPrinter::Result(_) => Ok(()),
        }
    }

    fn finish(&mut self, end: &RunEnd) -> io::Result<()> {
        match &mut self.sink {
            EventPrinter::Text(printer) => {
                printer.end()?;
                if let RunEnd::Turn(reason, ..) = end
                    && let Some(words) = text::ending(*reason)
                {
                    printer.remark(Color::Yellow, words)?;
                }
                if Style::for_stderr().is_terminal() {
                    let session = &self.session;
                    let mut line = String::new();
                    if let RunEnd::Turn(_, usage, _) = end
                        && *usage != Usage::default()
                    {
                        line = format!("\n{}", text::spent(usage, None));
                        if let Some(cost) = self.cost {
                            line.push_str(&format!(" · the session so far: ${cost:.4}"));
                        }
                    }
                    line.push_str(&format!(
                        "\nsession {session} · continue with: epitome run --resume {session} \"…\""
                    ));
                    printer.remark(Color::Dim, &line)?;
                }
                printer.end()
            }
            EventPrinter::Json(lines) => match end {
                RunEnd::Turn(reason, usage, told) => {
                    lines.done(&self.session, Ok(reason.id()), usage, &told.0)
                }
                RunEnd::Error(error) => {
                    let told = Err((error.message.as_str(), error.hint.as_deref()));
                    lines.done(&self.session, told, &Usage::default(), &Map::new())
                }
            },
            EventPrinter::Result(text) => match end {
                RunEnd::Turn(reason, usage, told) => {
                    let mut object =
                        Map::from_iter([("session".to_owned(), Value::from(self.session.0.as_str()))]);
                    if told.0.is_empty() {
                        object.insert("reason".to_owned(), reason.id().into());
                        object.insert("text".to_owned(), std::mem::take(text).into());
                        object.insert("usage".to_owned(), json!(usage));
                        object.insert("cost".to_owned(), json!(self.cost));
                    }
                    object.extend(told.0.clone());
                    writeln!(io::stdout(), "{}", Value::Object(object))
                }
                // The caller reports errors.
                RunEnd::Error(_) => Ok(()),
            },
        }
    }
}

/// Prints a question.
fn print_question(printer: &mut Printer<'_>, question: &AskedQuestion) -> io::Result<()> {
    match question {
        AskedQuestion::Permission(permission) => printer.question(permission),
        AskedQuestion::Form(form) => printer.form(form),
    }
}
