//! `epitome run`: one prompt without an editor, in the same kind of session as an editor's.
//!
//! It has no agent loop of its own: it is one more client of `session`, with an outlet that prints.

mod attach;
mod keyboard;
mod request;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};

use super::json_lines::JsonLines;
use super::printer::Printer;
use super::queue::{News, Queue};
use super::sessions::IN_USE_HINT;
use super::terminal::{self, Dress, Ink};
use super::{CliError, EXIT_CANCELLED, serve};
use crate::session::registry::Sessions;
use crate::session::{
    Answer, AskId, Attachment, ClientId, CommandInfo, Decision, Opening, Out, PermissionAsk, Replay,
    SessionCommand, SessionError, SessionOptions, Ticket,
};
use crate::store::Store;
use crate::thread::{Content, Mode, SessionId, StopReason, Usage, text};
use keyboard::{Keyboard, decision, listen};
use request::{Output, Request, Which};

/// How often the progress line is brought up to date.
const TICK: Duration = Duration::from_secs(1);

/// How long the end of the session may take. What was answered is on disk by then.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);

const CLIENT: ClientId = ClientId(1);
const ATTACH: Ticket = Ticket(1);
const MODEL: Ticket = Ticket(2);
const MODE: Ticket = Ticket(3);
const PROMPT: Ticket = Ticket(4);

const HELP: &str = "\
epitome run: one prompt without an editor

  epitome run [OPTIONS] \"prompt\"
  git diff | epitome run \"review this\"      text on stdin follows the prompt
  epitome run -r compact --follow           what /compact does in an editor

  -r, --recipe RECIPE   run a recipe; the prompt is its arguments
      --attach FILE     send an image (png, jpeg, gif, webp) or a PDF with the prompt; may stand
                        several times (also --image FILE)
      --follow          go on with the newest session of this directory
      --resume ID       go on with a session; a unique beginning of its id is enough
                        (also --conversation-id ID, -c ID); it counts before --follow
      --model NAME      provider/name, for example anthropic/..., gemini/..., local/...
      --mode MODE       ask, accept_edits, read_only or full
      --json            one JSON object a line on stdout
      --no-hooks        run no hooks
      --trust-hooks     run hooks that the repository brings without asking
      --recipe-dir DIR  look for recipes there, too (also --fragment-dirs DIR,DIR)
      --disable-auto-compact
                        compact only when asked, or when the provider refuses the length
      --compact-ratio R compact at this share of the window, from 0 to 1; 0 is never

Questions are asked on the terminal. Where there is none, what must be asked is not allowed.
Ctrl-C cancels the turn, a second one ends the process at once.

Exit codes: 0 the turn ended well, 1 it failed or a command was refused, 2 wrong usage, 130 cancelled.

With --json each line has a \"type\"; fields are only ever added:
  text, thinking   message, text (pieces, in order; those of one message belong together)
  tool_call        id, name, title, input
  permission       id, name, title, decision (allow_once, allow_always, reject), by (person, nobody)
  tool_result      id, status (completed, failed, denied, interrupted), text
  usage            used, size (tokens in context, the window), cost (US dollars of the session, where
                   known)
  notice           severity (info, warning, error), text
  compaction       entry, trigger (manual, overflow, threshold, must, hook), pre_tokens, post_tokens,
                   kept, masked, summarised (entries), quoted (messages of yours word for word), facts,
                   left_out (facts without room), fallback (why no model's summary stands, where none does)
  hook             hook, event, asked (what it asked for), verdict (nothing, done, refused, failed,
                   skipped), remarks (a list of texts); hooks that did and asked nothing have no line
  done             session, reason (end_turn, max_tokens, max_rounds, refusal, cancelled, failed),
                   usage (input, output, thinking, and of the input cache_read and cache_write) or
                   error and hint; of a command what came of it, below its name (compaction, undo,
                   redo, pin, unpin, history); always the last line
";

const COMPACT_HELP: &str = "\
epitome compact: make a session short, as /compact does in an editor

  epitome compact                        the newest session of this directory
  epitome compact --resume ID            another one; also --conversation-id ID, -c ID
  epitome compact keep the parser notes  what the summary must not lose
  epitome compact above e40              only what stands above the entry e40
  epitome compact --dry-run              what would be kept, shown shorter, quoted and summarised,
                                         with tokens and prices; nothing is done, no model is asked
  epitome compact --dry-run --json       the same as one object

It is `epitome run -r compact --follow` and takes the same options. `epitome undo` takes it back.

Exit codes: 0 done or nothing to do, 1 it failed or was refused, 2 wrong usage, 130 cancelled.
";

/// The commands of a session that have a command line of their own, each with its lines of help.
const OWN: [(&str, &str); 5] = [
    (
        "undo",
        "\
epitome undo: take back what changed a session's history

  epitome undo       the newest compaction, or what a hook or a pinned text changed since
  epitome undo e12   an older one; what was said since stays
",
    ),
    (
        "redo",
        "\
epitome redo: bring again what was taken back

  epitome redo       what was taken back last
  epitome redo e12   another one
",
    ),
    (
        "history",
        "\
epitome history: what changed a session's history, and what can be undone now

  epitome history          newest first: what, who asked for it, tokens before and after
  epitome history --json   the same as one object
",
    ),
    (
        "pin",
        "\
epitome pin: keep something through every compaction as it is

  epitome pin                    what is pinned, and how much of the window it takes
  epitome pin e12                an entry; `epitome sessions show ID` has their numbers
  epitome pin \"never force push\"  some words, which the model is told, too
",
    ),
    (
        "unpin",
        "\
epitome unpin: let go of what was pinned

  epitome unpin e12   one entry
  epitome unpin all   all of them
",
    ),
];

/// What the help of each of them ends with.
const OWN_HELP: &str = "
They act on the newest session of this directory, or on one that is named:
  --resume ID   a unique beginning of its id is enough (also --conversation-id ID, -c ID)
  --json        what came of it, as one object

Exit codes: 0 done or nothing to do, 1 refused or failed, 2 wrong usage.
";

pub fn main(arguments: Vec<OsString>) -> Result<i32, CliError> {
    match Request::parse(arguments)? {
        Some(request) => perform(request),
        None => terminal::print(HELP).map(|()| 0),
    }
}

/// `epitome compact`: a run of the compact recipe.
pub fn compact(arguments: Vec<OsString>) -> Result<i32, CliError> {
    match Request::parse_compact(arguments)? {
        Some(request) => perform(request),
        None => terminal::print(COMPACT_HELP).map(|()| 0),
    }
}

/// Whether a command of sessions has a command line of its own.
pub fn is_own(name: &str) -> bool {
    OWN.iter().any(|(own, _)| *own == name)
}

/// `epitome undo` and the like: what the command of this name does in an editor.
pub fn own(name: &str, arguments: Vec<OsString>) -> Result<i32, CliError> {
    match Request::parse_own(name, arguments)? {
        Some(request) => perform(request),
        None => {
            let help = OWN.iter().find_map(|(own, help)| (*own == name).then_some(*help)).unwrap_or_default();
            terminal::print(&format!("{help}{OWN_HELP}")).map(|()| 0)
        }
    }
}

fn perform(request: Request) -> Result<i32, CliError> {
    if let Some(notice) = request.notice {
        eprintln!("epitome: {notice}");
    }
    let paths = serve::paths();
    serve::log_to_file(&paths);
    let cwd = std::env::current_dir()
        .map_err(|error| CliError::failed(format!("the working directory is not known: {error}"), None))?;
    let mut prompt = attach::read(&request.attached)?;
    let text = request.prompt()?;
    if !text.is_empty() {
        prompt.insert(0, Content::Text { text });
    }
    let resumed = match &request.session {
        Which::Named(id) => {
            let store = Store::new(&paths);
            let found = super::sessions::find(&store, id);
            store.settle();
            Some(found?)
        }
        Which::New | Which::Newest => None,
    };
    let runtime = serve::runtime()?;
    let sessions = serve::sessions(paths, request.overrides.clone(), runtime.handle());
    let resumed = match request.session {
        Which::Newest => Some(newest(&sessions, &cwd)?),
        Which::New | Which::Named(_) => resumed,
    };

    let queue = Arc::new(Queue::default());
    catch_interrupts(&runtime, &queue)?;
    let opening = Opening {
        attachment: Attachment { client: CLIENT, outlet: queue.clone() },
        cwd,
        directories: Vec::new(),
        mcp_servers: Vec::new(),
        environment: serve::environment(),
    };
    let session = match resumed {
        Some(session) => {
            sessions.attach(ATTACH, session.clone(), opening, Replay::Nothing);
            session
        }
        None => sessions.create(ATTACH, opening),
    };
    let face = match request.output {
        Output::Text => {
            let (out, err) = (io::stdout(), io::stderr());
            Face::Text(Printer::new(out, Dress::of_stdout(), err, Dress::of_stderr()))
        }
        Output::Json => Face::Json(JsonLines::new(io::stdout())),
        Output::Result => Face::Result,
    };
    let mut run = Run {
        sessions: sessions.clone(),
        session,
        queue: queue.clone(),
        face,
        prompt: Some(prompt),
        recipe: request.recipe,
        model: request.overrides.model,
        mode: request.overrides.mode,
        waits_for: Vec::new(),
        commands: None,
        ask: None,
        asks: VecDeque::new(),
        keyboard: Keyboard::Unknown,
        cancelled: false,
        cost: None,
    };
    let code = run.drive();
    queue.close();
    sessions.detach(CLIENT);
    let settled = runtime.block_on(async { tokio::time::timeout(SETTLE_WITHIN, sessions.settled()).await });
    if settled.is_err() {
        tracing::warn!("the session did not end in time");
    }
    // Whatever still runs on a thread of its own must not hold up the end.
    runtime.shutdown_background();
    code
}

fn newest(sessions: &Sessions, cwd: &Path) -> Result<SessionId, CliError> {
    let listed = sessions.list(None).map_err(|error| failed(&error))?;
    let newest = listed.into_iter().find(|header| super::sessions::is_same_directory(&header.cwd, cwd));
    newest.map(|header| header.session).ok_or_else(|| {
        let hint = "`epitome run` without --follow begins one; `epitome sessions list` shows all";
        let hint = Some(hint.to_owned());
        CliError::failed(format!("there is no session of {} to go on with", cwd.display()), hint)
    })
}

/// The first Ctrl-C is news for the run, the second ends the process.
fn catch_interrupts(runtime: &tokio::runtime::Runtime, queue: &Arc<Queue>) -> Result<(), CliError> {
    let _inside = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| CliError::failed(format!("Ctrl-C can't be listened for: {error}"), None))?;
    let queue = queue.clone();
    runtime.spawn(async move {
        interrupts.recv().await;
        queue.tell(News::Interrupted);
        interrupts.recv().await;
        std::process::exit(EXIT_CANCELLED);
    });
    Ok(())
}

/// How the stream is shown.
enum Face {
    Text(Printer<'static>),
    Json(JsonLines<'static>),
    /// Nothing but what the command came to, as one object at its end.
    Result,
}

/// One prompt on its way.
struct Run {
    sessions: Sessions,
    session: SessionId,
    queue: Arc<Queue>,
    face: Face,
    /// Until it is sent.
    prompt: Option<Vec<Content>>,
    recipe: Option<String>,
    model: Option<String>,
    mode: Option<Mode>,
    /// Choices that must be answered before the prompt is sent.
    waits_for: Vec<Ticket>,
    commands: Option<Arc<[CommandInfo]>>,
    ask: Option<(AskId, Arc<PermissionAsk>)>,
    /// Questions that wait for the open one: a turn and what hooks called may ask at once.
    asks: VecDeque<(AskId, Arc<PermissionAsk>)>,
    keyboard: Keyboard,
    cancelled: bool,
    /// US dollars of the session's model calls, where prices are known.
    cost: Option<f64>,
}

/// What ends a run.
enum End {
    Turn(StopReason, Usage, Told),
    Error(CliError),
}

/// What a command came to, as machines are told of it: its name and what there is to say. Empty for a prompt.
#[derive(Default)]
struct Told(Map<String, Value>);

impl Told {
    fn of(meta: Option<Value>) -> Told {
        let told = meta.as_ref().and_then(|meta| meta.get("epitome")).and_then(Value::as_object);
        Told(told.cloned().unwrap_or_default())
    }

    /// Whether it did not do what was asked.
    fn is_refused(&self) -> bool {
        let status = |told: &Value| told.get("status").and_then(Value::as_str).map(str::to_owned);
        self.0.values().filter_map(status).any(|status| matches!(status.as_str(), "refused" | "failed"))
    }
}

impl Run {
    /// Prints until the prompt is answered, and gives the exit code.
    fn drive(&mut self) -> Result<i32, CliError> {
        let end = loop {
            let step = match self.queue.next(TICK) {
                Some(News::Out(out)) => self.take(out),
                Some(News::Typed(line)) => self.typed(line).map(|()| None),
                Some(News::Interrupted) => self.interrupt().map(|()| None),
                None => self.tick().map(|()| None),
            };
            match step {
                Ok(None) => {}
                Ok(Some(end)) => break end,
                // Who reads our output has gone: nobody wants the rest.
                Err(error) => {
                    drop(self.sessions.send(&self.session, SessionCommand::Cancel));
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
            Out::Ask { ask, permission } => self.asked(*ask, permission.clone())?,
            Out::Withdrawn { ask } => {
                self.asks.retain(|(waiting, _)| waiting != ask);
                if self.ask.take_if(|(open, _)| open == ask).is_some() {
                    if let Face::Text(printer) = &mut self.face {
                        printer.remark(Ink::Dim, "\n  (the question is withdrawn)")?;
                    }
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
            Out::Entry { .. }
            | Out::Text { .. }
            | Out::CallStarted { .. }
            | Out::CallProgress { .. }
            | Out::CallFinished { .. }
            | Out::Compaction { .. }
            | Out::Options(_)
            | Out::Notice { .. } => {}
        }
        match &mut self.face {
            Face::Text(printer) => printer.show(&out)?,
            Face::Json(lines) => lines.show(&out)?,
            Face::Result => {}
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
                return Ok(Some(End::Turn(reason, usage, Told::of(meta))));
            }
            Ok(Answer::Closed) => None,
        };
        Ok(error.map(End::Error))
    }

    /// Sets what the flags say and the session does not have yet.
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

    /// Sends the prompt once the choices are made and the recipes are known: before that, `/name`
    /// would be taken for plain text.
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
            // Ctrl-C came before there was anything to cancel.
            drop(self.sessions.send(&self.session, SessionCommand::Cancel));
        }
        error
    }

    /// Shows the next question that came while another was open.
    fn ask_next(&mut self) -> io::Result<()> {
        while self.ask.is_none()
            && let Some((ask, permission)) = self.asks.pop_front()
        {
            self.asked(ask, permission)?;
        }
        Ok(())
    }

    fn asked(&mut self, ask: AskId, permission: Arc<PermissionAsk>) -> io::Result<()> {
        if self.ask.is_some() {
            self.asks.push_back((ask, permission));
            return Ok(());
        }
        if matches!(self.keyboard, Keyboard::Unknown) {
            self.keyboard = listen(&self.queue);
        }
        match &mut self.keyboard {
            Keyboard::Open { reading, wanted } => {
                self.ask = Some((ask, permission.clone()));
                terminal::forget_typed();
                match &mut self.face {
                    Face::Text(printer) => printer.question(&permission)?,
                    Face::Json(_) | Face::Result => {
                        let (err, dress) = (io::stderr(), Dress::of_stderr());
                        Printer::new(io::sink(), Dress::Plain, err, dress).question(&permission)?;
                    }
                }
                if !std::mem::replace(reading, true) {
                    // It can only be full while a line is being read, and then none is asked for.
                    let _ = wanted.try_send(());
                }
                Ok(())
            }
            Keyboard::Nobody | Keyboard::Unknown => self.decide(ask, &permission, Decision::Dismissed),
        }
    }

    fn typed(&mut self, line: Option<String>) -> io::Result<()> {
        if let Keyboard::Open { reading, .. } = &mut self.keyboard {
            *reading = false;
        }
        let Some((ask, permission)) = self.ask.take() else { return Ok(()) };
        let decision = match line.as_deref().map(decision) {
            Some(Some(Decision::AllowAlways)) if permission.always.is_none() => None,
            Some(decision) => decision,
            None => {
                self.keyboard = Keyboard::Nobody;
                Some(Decision::Dismissed)
            }
        };
        match decision {
            Some(decision) => {
                self.decide(ask, &permission, decision)?;
                self.ask_next()
            }
            None => self.asked(ask, permission),
        }
    }

    fn decide(&mut self, ask: AskId, permission: &PermissionAsk, decision: Decision) -> io::Result<()> {
        match &mut self.face {
            Face::Text(printer) => printer.decided(permission, &decision)?,
            Face::Json(lines) => lines.decided(permission, &decision)?,
            Face::Result => {}
        }
        // A session that is gone has withdrawn its questions.
        drop(self.sessions.send(&self.session, SessionCommand::Decide { ask, decision }));
        Ok(())
    }

    fn interrupt(&mut self) -> io::Result<()> {
        self.cancelled = true;
        // The cancel withdraws an open question; its line is ended here.
        let line = if self.ask.take().is_some() { "\n" } else { "" };
        drop(self.sessions.send(&self.session, SessionCommand::Cancel));
        match &mut self.face {
            Face::Text(printer) => {
                printer.remark(Ink::Dim, &format!("{line}Cancelling (Ctrl-C again ends at once)."))
            }
            Face::Json(_) | Face::Result => Ok(()),
        }
    }

    fn tick(&mut self) -> io::Result<()> {
        match &mut self.face {
            // The line of an open question stays as it is.
            Face::Text(printer) if self.ask.is_none() => printer.tick(),
            Face::Text(_) | Face::Json(_) | Face::Result => Ok(()),
        }
    }

    fn finish(&mut self, end: &End) -> io::Result<()> {
        match &mut self.face {
            Face::Text(printer) => {
                printer.end()?;
                if let End::Turn(reason, ..) = end
                    && let Some(words) = text::ending(*reason)
                {
                    printer.remark(Ink::Yellow, words)?;
                }
                if Dress::of_stderr().is_terminal() {
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
                        "\nsession {session} · go on with: epitome run --resume {session} \"…\""
                    ));
                    printer.remark(Ink::Dim, &line)?;
                }
                printer.end()
            }
            Face::Json(lines) => match end {
                End::Turn(reason, usage, told) => {
                    lines.done(&self.session, Ok(reason_id(*reason)), usage, &told.0)
                }
                End::Error(error) => {
                    let told = Err((error.message.as_str(), error.hint.as_deref()));
                    lines.done(&self.session, told, &Usage::default(), &Map::new())
                }
            },
            Face::Result => match end {
                End::Turn(_, _, told) => {
                    let mut object =
                        Map::from_iter([("session".to_owned(), Value::from(self.session.0.as_str()))]);
                    object.extend(told.0.clone());
                    writeln!(io::stdout(), "{}", Value::Object(object))
                }
                // It is told as every error is.
                End::Error(_) => Ok(()),
            },
        }
    }
}

fn reason_id(reason: StopReason) -> &'static str {
    match reason {
        StopReason::EndTurn => "end_turn",
        StopReason::MaxTokens => "max_tokens",
        StopReason::MaxRounds => "max_rounds",
        StopReason::Refusal => "refusal",
        StopReason::Cancelled => "cancelled",
        StopReason::Failed => "failed",
        StopReason::Interrupted => "interrupted",
    }
}

/// A session's error as the command's.
fn failed(error: &SessionError) -> CliError {
    let hint = match error {
        SessionError::NotFound(_) => Some("`epitome sessions list` shows what there is".to_owned()),
        SessionError::InUse(_) => Some(IN_USE_HINT.to_owned()),
        SessionError::Provider { hint, .. } => hint.clone(),
        SessionError::AuthRequired(_)
        | SessionError::Invalid(_)
        | SessionError::TooLong(_)
        | SessionError::Store(_)
        | SessionError::Busy(_)
        | SessionError::Internal(_) => None,
    };
    CliError::failed(error.to_string(), hint)
}
