//! Drives one prompt: shows the events of the session and answers its questions until the turn has ended.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::keyboard::{Keyboard, decision, listen};
use super::request::Request;
use super::{CLIENT, failed};
use crate::cli::form::Form;
use crate::cli::json_lines::JsonLines;
use crate::cli::printer::{Printer, is_shown_whole};
use crate::cli::queue::{Input, Queue};
use crate::cli::terminal::{self, Color, Style};
use crate::cli::{CliError, EXIT_CANCELLED};
use crate::session::event_queue::Item;
use crate::session::port::SessionPort;
use crate::session::{
    Answer, AskId, CommandInfo, Decision, Out, PermissionAsk, Reply, SessionCommand, SessionError,
    SessionOptions, Ticket,
};
use crate::thread::{Change, Content, Decider, Mode, SessionId, StopReason, ToolOutcome, Usage, text};

/// How often the progress line is updated.
const TICK: Duration = Duration::from_secs(1);

const MODEL: Ticket = Ticket(2);
const MODE: Ticket = Ticket(3);
const PROMPT: Ticket = Ticket(4);

/// How events are shown.
pub enum EventSink {
    Text(Box<Printer<'static>>),
    Json(JsonLines<'static>),
    /// Only the result of the command, as one object.
    Result,
}

impl EventSink {
    fn show(&mut self, out: &Out) -> io::Result<()> {
        match self {
            EventSink::Text(printer) => printer.show(out),
            EventSink::Json(lines) => lines.show(out),
            EventSink::Result => Ok(()),
        }
    }

    fn decided(&mut self, permission: &PermissionAsk, decision: &Decision) -> io::Result<()> {
        match self {
            EventSink::Text(printer) => printer.decided(permission, decision),
            EventSink::Json(lines) => lines.decided(permission, decision),
            EventSink::Result => Ok(()),
        }
    }

    /// Prints a remark, which is for users only.
    fn remark(&mut self, text: &str) -> io::Result<()> {
        match self {
            EventSink::Text(printer) => printer.remark(Color::Dim, text),
            EventSink::Json(_) | EventSink::Result => Ok(()),
        }
    }
}

/// One prompt and the session it is sent to.
pub struct Run<P> {
    sessions: P,
    session: SessionId,
    queue: Arc<Queue>,
    sink: EventSink,
    /// `None` once it is sent.
    prompt: Option<Vec<Content>>,
    recipe: Option<String>,
    model: Option<String>,
    mode: Option<Mode>,
    /// Settings that must be confirmed before the prompt is sent.
    waits_for: Vec<Ticket>,
    commands: Option<Arc<[CommandInfo]>>,
    ask: Option<(AskId, OpenQuestion)>,
    /// Questions behind the open one, since a turn and callbacks of hooks may ask at the same time.
    asks: VecDeque<(AskId, OpenQuestion)>,
    /// Questions that nobody here can answer. Another client may, so the outcome of the call tells.
    left_open: Vec<Arc<PermissionAsk>>,
    keyboard: Keyboard,
    cancelled: bool,
    /// Cost of the session's model calls in US dollars, if prices are known.
    cost: Option<f64>,
}

/// What the user is asked.
enum OpenQuestion {
    Permission(Arc<PermissionAsk>),
    Form(Box<Form>),
}

/// What ends a run.
enum End {
    Turn(StopReason, Usage, CommandResult),
    Error(CliError),
}

/// The result of a command below its name, for programs. Empty for a prompt.
#[derive(Default)]
struct CommandResult(Map<String, Value>);

impl CommandResult {
    fn of(meta: Option<Value>) -> CommandResult {
        let told = meta.as_ref().and_then(|meta| meta.get("epitome")).and_then(Value::as_object);
        CommandResult(told.cloned().unwrap_or_default())
    }

    /// Whether the command was refused or failed.
    fn is_refused(&self) -> bool {
        let status = |told: &Value| told.get("status").and_then(Value::as_str).map(str::to_owned);
        self.0.values().filter_map(status).any(|status| matches!(status.as_str(), "refused" | "failed"))
    }
}

impl<P: SessionPort> Run<P> {
    pub fn new(
        sessions: P,
        session: SessionId,
        queue: Arc<Queue>,
        sink: EventSink,
        prompt: Vec<Content>,
        request: Request,
    ) -> Run<P> {
        Run {
            sessions,
            session,
            queue,
            sink,
            prompt: Some(prompt),
            recipe: request.recipe,
            model: request.overrides.model,
            mode: request.overrides.mode,
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
                Some(Item::Event { out, .. }) => self.take(out),
                Some(Item::Own(Input::Typed(line))) => self.typed(line).map(|()| None),
                Some(Item::Own(Input::Interrupted)) => self.interrupt().map(|()| None),
                None => self.tick().map(|()| None),
            };
            match step {
                Ok(None) => {}
                Ok(Some(end)) => break end,
                // The reader of the output has gone.
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
            End::Turn(StopReason::EndTurn, _, told) if told.is_refused() => 1,
            End::Turn(StopReason::EndTurn, ..) => 0,
            End::Turn(StopReason::Cancelled, ..) => EXIT_CANCELLED,
            End::Turn(..) | End::Error(_) => 1,
        };
        self.finish(&end).map_err(|error| terminal::cannot_write(&error))?;
        match end {
            End::Turn(..) => Ok(code),
            End::Error(error) => Err(error),
        }
    }

    fn take(&mut self, out: Out) -> io::Result<Option<End>> {
        match &out {
            Out::Answer { ticket, answer } => return self.answered(*ticket, answer.clone()),
            Out::Ask { ask, permission } => self.asked(*ask, OpenQuestion::Permission(permission.clone()))?,
            Out::Question { ask, question } => {
                self.asked(*ask, OpenQuestion::Form(Box::new(Form::of(question))))?;
            }
            Out::Withdrawn { ask } => {
                self.asks.retain(|(waiting, _)| waiting != ask);
                if self.ask.take_if(|(open, _)| open == ask).is_some() {
                    self.sink.remark("\n  (the question is withdrawn)")?;
                    self.ask_next()?;
                }
            }
            Out::Commands(commands) => {
                self.commands = Some(commands.clone());
                if let Some(error) = self.send_prompt() {
                    return Ok(Some(End::Error(error)));
                }
            }
            Out::Usage(usage) => self.cost = usage.cost,
            Out::Entry { entry, .. } => {
                if let Change::ToolFinished { outcome } = &entry.change {
                    self.report_unanswered(outcome)?;
                }
            }
            Out::CallFinished { outcome } => self.report_unanswered(outcome)?,
            Out::Text { .. }
            | Out::CallStarted { .. }
            | Out::CallProgress { .. }
            | Out::Seen(_)
            | Out::Subagent(_)
            | Out::Compaction { .. }
            | Out::Options(_)
            | Out::QuestionDone { .. }
            | Out::Wish { .. }
            | Out::Notice { .. } => {}
        }
        // Do not overwrite the line of an open question.
        let is_question_open = matches!(self.sink, EventSink::Text(_)) && self.ask.is_some();
        if !(is_question_open && matches!(out, Out::CallProgress { .. })) {
            self.sink.show(&out)?;
        }
        Ok(None)
    }

    fn answered(&mut self, ticket: Ticket, answer: Result<Answer, SessionError>) -> io::Result<Option<End>> {
        let error = match answer {
            Err(error) => Some(failed(&error)),
            Ok(Answer::Attached { options, .. }) => {
                let chosen = self.choose(&options);
                chosen.err().map(|error| failed(&error)).or_else(|| self.send_prompt())
            }
            Ok(Answer::Options(_)) => {
                self.waits_for.retain(|waited| *waited != ticket);
                self.send_prompt()
            }
            Ok(Answer::TurnEnded { reason, usage, meta }) => {
                return Ok(Some(End::Turn(reason, usage, CommandResult::of(meta))));
            }
            Ok(Answer::Closed | Answer::Steered(_)) => None,
        };
        Ok(error.map(End::Error))
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
        if let Some(mode) = self.mode.filter(|mode| *mode != options.mode) {
            let (ticket, mode) = (MODE, mode.id().to_owned());
            self.sessions.send(&self.session, SessionCommand::SetMode { ticket, client, mode })?;
            self.waits_for.push(ticket);
        }
        Ok(())
    }

    /// Sends the prompt once the settings are confirmed and the recipes are known. Before that, `/name` would be plain
    /// text.
    fn send_prompt(&mut self) -> Option<CliError> {
        let commands = self.commands.as_ref()?;
        if !self.waits_for.is_empty() {
            return None;
        }
        if let Some(recipe) = &self.recipe
            && !commands.iter().any(|command| command.name == *recipe)
        {
            let known: Vec<&str> = commands.iter().map(|command| command.name.as_str()).collect();
            let hint = Some(format!("there are: {}", known.join(", ")));
            return Some(CliError { message: format!("there is no recipe {recipe:?}"), hint, code: 2 });
        }
        let content = self.prompt.take()?;
        let prompt = SessionCommand::Prompt { ticket: PROMPT, client: CLIENT, content };
        let error = self.sessions.send(&self.session, prompt).err().map(|error| failed(&error));
        if self.cancelled && error.is_none() {
            // Ctrl-C was pressed before the prompt was sent.
            drop(self.sessions.send(&self.session, SessionCommand::CancelPrompt { ticket: PROMPT }));
        }
        error
    }

    /// Shows the next question that came while another was open.
    fn ask_next(&mut self) -> io::Result<()> {
        while self.ask.is_none()
            && let Some((ask, question)) = self.asks.pop_front()
        {
            self.asked(ask, question)?;
        }
        Ok(())
    }

    fn asked(&mut self, ask: AskId, question: OpenQuestion) -> io::Result<()> {
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
                match &mut self.sink {
                    EventSink::Text(printer) => print_question(printer, &question)?,
                    EventSink::Json(_) | EventSink::Result => {
                        let (err, style) = (io::stderr(), Style::of_stderr());
                        print_question(&mut Printer::new(io::sink(), Style::Plain, err, style), &question)?;
                    }
                }
                self.ask = Some((ask, question));
                if !std::mem::replace(reading, true) {
                    // The channel is only full while a line is being read, and then none is requested.
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
            OpenQuestion::Permission(permission) => {
                let allowed = decision(&line).filter(|decision| match decision {
                    Decision::AllowAlways => {
                        permission.always.is_some() && is_shown_whole(&permission.preview)
                    }
                    Decision::AllowOnce => is_shown_whole(&permission.preview),
                    Decision::Reject | Decision::RejectAlways | Decision::Dismissed | Decision::Absent => {
                        true
                    }
                });
                match allowed {
                    Some(decision) => self.decide(ask, &permission, decision)?,
                    None => return self.asked(ask, OpenQuestion::Permission(permission)),
                }
            }
            OpenQuestion::Form(mut form) => match form.typed(&line) {
                // A closed session has withdrawn its questions.
                Some(reply) => {
                    drop(self.sessions.send(&self.session, SessionCommand::Answer { ask, reply }));
                }
                None => return self.asked(ask, OpenQuestion::Form(form)),
            },
        }
        self.ask_next()
    }

    /// There is nobody to answer a question.
    fn unanswered(&mut self, ask: AskId, question: OpenQuestion) {
        match question {
            OpenQuestion::Permission(permission) => self.absent(ask, permission),
            OpenQuestion::Form(_) => {
                let reply = Reply::Cancelled;
                drop(self.sessions.send(&self.session, SessionCommand::Answer { ask, reply }));
            }
        }
    }

    /// Leaves a question to the session's other clients, if there are any.
    fn absent(&mut self, ask: AskId, permission: Arc<PermissionAsk>) {
        self.left_open.push(permission);
        // A closed session has withdrawn its questions.
        drop(self.sessions.send(&self.session, SessionCommand::Absent { ask, client: CLIENT }));
    }

    /// Reports a call that was denied because no client could answer its question.
    fn report_unanswered(&mut self, outcome: &ToolOutcome) -> io::Result<()> {
        let is_of = |permission: &mut Arc<PermissionAsk>| permission.call == outcome.call;
        let by_nobody = outcome.decided.as_ref().is_some_and(|decided| decided.by == Decider::Nobody);
        for permission in self.left_open.extract_if(.., is_of) {
            if by_nobody {
                self.sink.decided(&permission, &Decision::Absent)?;
            }
        }
        Ok(())
    }

    fn decide(&mut self, ask: AskId, permission: &PermissionAsk, decision: Decision) -> io::Result<()> {
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
            EventSink::Text(printer) if self.ask.is_none() => printer.tick(),
            EventSink::Text(_) | EventSink::Json(_) | EventSink::Result => Ok(()),
        }
    }

    fn finish(&mut self, end: &End) -> io::Result<()> {
        match &mut self.sink {
            EventSink::Text(printer) => {
                printer.end()?;
                if let End::Turn(reason, ..) = end
                    && let Some(words) = text::ending(*reason)
                {
                    printer.remark(Color::Yellow, words)?;
                }
                if Style::of_stderr().is_terminal() {
                    let session = &self.session;
                    let mut line = String::new();
                    if let End::Turn(_, usage, _) = end
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
            EventSink::Json(lines) => match end {
                End::Turn(reason, usage, told) => lines.done(&self.session, Ok(reason.id()), usage, &told.0),
                End::Error(error) => {
                    let told = Err((error.message.as_str(), error.hint.as_deref()));
                    lines.done(&self.session, told, &Usage::default(), &Map::new())
                }
            },
            EventSink::Result => match end {
                End::Turn(_, _, told) => {
                    let mut object =
                        Map::from_iter([("session".to_owned(), Value::from(self.session.0.as_str()))]);
                    object.extend(told.0.clone());
                    writeln!(io::stdout(), "{}", Value::Object(object))
                }
                // Errors are reported by the caller.
                End::Error(_) => Ok(()),
            },
        }
    }
}

/// Prints a question.
fn print_question(printer: &mut Printer<'_>, question: &OpenQuestion) -> io::Result<()> {
    match question {
        OpenQuestion::Permission(permission) => printer.question(permission),
        OpenQuestion::Form(form) => printer.form(form),
    }
}
