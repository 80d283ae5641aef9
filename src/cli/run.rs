//! `epitome run`: one prompt without an editor, in the same kind of session that editors use.
//!
//! It contains no agent loop: it is a client of `session` that prints. If a daemon is running, it connects to the
//! daemon's sessions; otherwise it runs them in this process.

mod attach;
mod drive;
mod keyboard;
mod named;
mod request;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use super::json_lines::JsonLines;
use super::printer::Printer;
use super::queue::{InputQueue, UserInput};
use super::sessions::IN_USE_HINT;
use super::terminal::{self, Style};
use super::{CliError, EXIT_CANCELLED, EXIT_OVER_BUDGET, log, serve};
use crate::daemon::control::ControlClient;
use crate::daemon::control::fault::Fault;
use crate::daemon::control::remote::RemoteSessions;
use crate::daemon::runtime_dir::RuntimeDir;
use crate::session::port::SessionPort;
use crate::session::{Attachment, ClientId, Opening, QuestionSupport, Replay, SessionError, Ticket};
use crate::session_library;
use crate::thread::visible::visible;
use crate::thread::{Content, SessionId};
use drive::{EventPrinter, PromptRun};
pub use request::{CompactArgs, RunArgs, SessionSubcommand};
use request::{OutputFormat, PromptRequest, SessionChoice};

/// Timeout for the end of the session. Its results are already on disk.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);

const CLIENT: ClientId = ClientId(1);
const ATTACH: Ticket = Ticket(1);

pub fn main(args: RunArgs) -> Result<i32, CliError> {
    perform(args.request()?)
}

/// `epitome compact`: a run of the compact recipe.
pub fn compact(args: CompactArgs) -> Result<i32, CliError> {
    perform(args.request()?)
}

/// `epitome undo` and similar commands: run the slash command of that name.
pub fn session_command(command: SessionSubcommand) -> Result<i32, CliError> {
    perform(command.request()?)
}

/// Like `session_command`, for a session with this complete id.
pub fn command_of(session: SessionId, name: &str, words: Vec<String>, json: bool) -> Result<i32, CliError> {
    perform(PromptRequest::command(session.0.to_string(), name, words, json))
}

fn perform(request: PromptRequest) -> Result<i32, CliError> {
    if let Some(notice) = request.notice {
        eprintln!("epitome: {notice}");
    }
    let paths = serve::paths();
    log::to_file(&paths);
    let cwd = match &request.cwd {
        Some(directory) => super::sessions::real_directory(directory)?,
        None => serve::working_directory()?,
    };
    let mut prompt = attach::read(&request.attached)?;
    let text = request.prompt()?;
    if !text.is_empty() {
        prompt.insert(0, Content::Text { text });
    }
    let resumed = match &request.session {
        SessionChoice::Named(id) => Some(super::sessions::named(&paths, id)?),
        SessionChoice::New | SessionChoice::Newest => None,
    };
    let runtime = serve::runtime()?;
    let daemon = match request.standalone {
        true => None,
        false => runtime.block_on(in_daemon(&RuntimeDir::new(&paths))).unwrap_or_else(|fault| {
            eprintln!("epitome: {}; continuing without it", visible(&fault.message));
            if let Some(hint) = &fault.hint {
                eprintln!("hint: {}", visible(hint));
            }
            None
        }),
    };
    let prepared = RunRequest { request, prompt, cwd, resumed };
    let code = match daemon {
        Some(sessions) => prepared.run(&runtime, &sessions),
        None => {
            let sessions = serve::sessions(paths, runtime.handle());
            let code = prepared.run(&runtime, &sessions);
            let settled = async { tokio::time::timeout(SETTLE_WITHIN, sessions.settled()).await };
            if runtime.block_on(settled).is_err() {
                tracing::warn!("the session did not end in time");
            }
            code
        }
    };
    // Running threads must not delay the exit.
    runtime.shutdown_background();
    code
}

/// Returns the sessions of the daemon, which include those open in editors, if one is running.
async fn in_daemon(runtime_dir: &RuntimeDir) -> Result<Option<RemoteSessions>, Fault> {
    match ControlClient::connect(runtime_dir).await? {
        Some(client) => RemoteSessions::begin(client).await.map(Some),
        None => Ok(None),
    }
}

/// The data that is known before the session is opened.
struct RunRequest {
    request: PromptRequest,
    prompt: Vec<Content>,
    cwd: PathBuf,
    /// The session to resume.
    resumed: Option<SessionId>,
}

impl RunRequest {
    fn run<P: SessionPort>(self, runtime: &Runtime, sessions: &P) -> Result<i32, CliError> {
        let RunRequest { request, prompt, cwd, resumed } = self;
        let resumed = match &request.session {
            SessionChoice::Newest => Some(newest(sessions, &cwd)?),
            SessionChoice::New | SessionChoice::Named(_) => resumed,
        };
        let is_there = terminal::keyboard().is_some();
        let queue = Arc::new(InputQueue::new(QuestionSupport { forms: is_there, urls: is_there }));
        catch_interrupts(runtime, &queue)?;
        let opening = Opening {
            attachment: Attachment { client: CLIENT, outlet: queue.clone() },
            cwd,
            directories: Vec::new(),
            mcp_servers: Vec::new(),
            environment: serve::environment(),
            overrides: Arc::new(request.overrides.clone()),
            instructions: None,
            choices: Vec::new(),
        };
        let session = match resumed {
            Some(session) => {
                sessions.attach(ATTACH, session.clone(), opening, Replay::Nothing);
                session
            }
            None => sessions.create(ATTACH, opening),
        };
        let sink = match request.output {
            OutputFormat::Text => {
                let (out, err) = (io::stdout(), io::stderr());
                let printer = Printer::new(out, Style::for_stdout(), err, Style::for_stderr());
                EventPrinter::Text(Box::new(match request.plain {
                    true => printer,
                    false => printer.rendering(terminal::columns()),
                }))
            }
            OutputFormat::Json => EventPrinter::Json(JsonLines::new(io::stdout())),
            OutputFormat::Result => EventPrinter::Result(String::new()),
        };
        let code = PromptRun::new(sessions.clone(), session, queue.clone(), sink, prompt, request).drive();
        queue.close();
        sessions.detach(CLIENT);
        code
    }
}

fn newest(sessions: &impl SessionPort, cwd: &Path) -> Result<SessionId, CliError> {
    let listed = sessions.list(None).map_err(|error| failed(&error))?;
    let newest = listed.into_iter().find(|header| session_library::is_same_directory(&header.cwd, cwd));
    newest.map(|header| header.session).ok_or_else(|| {
        let hint = "`epitome run` without --follow starts one; `epitome sessions list` shows all";
        let hint = Some(hint.to_owned());
        CliError::failed(format!("there is no session of {} to continue", cwd.display()), hint)
    })
}

/// The first Ctrl-C cancels the turn, the second ends the process.
fn catch_interrupts(runtime: &Runtime, queue: &Arc<InputQueue>) -> Result<(), CliError> {
    let _inside = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| CliError::failed(format!("Ctrl-C can't be handled: {error}"), None))?;
    let queue = queue.clone();
    runtime.spawn(async move {
        interrupts.recv().await;
        queue.put_input(UserInput::Interrupted);
        interrupts.recv().await;
        std::process::exit(EXIT_CANCELLED);
    });
    Ok(())
}

/// Converts a session's error to an error of the command.
fn failed(error: &SessionError) -> CliError {
    let hint = match error {
        SessionError::NotFound(_) => Some("`epitome sessions list` shows all".to_owned()),
        SessionError::InUse(_) => Some(IN_USE_HINT.to_owned()),
        SessionError::Provider { hint, .. } => hint.clone(),
        SessionError::AuthRequired(_)
        | SessionError::Invalid(_)
        | SessionError::TooLong(_)
        | SessionError::OverBudget(_)
        | SessionError::Store(_)
        | SessionError::Busy(_)
        | SessionError::Interrupted(_)
        | SessionError::Internal(_) => None,
    };
    let code = if matches!(error, SessionError::OverBudget(_)) { EXIT_OVER_BUDGET } else { 1 };
    CliError { code, ..CliError::failed(error.to_string(), hint) }
}
