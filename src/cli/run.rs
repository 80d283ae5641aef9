//! `epitome run`: one prompt without an editor, in the same kind of session that editors use.
//!
//! It contains no agent loop: it is a client of `session` that prints. If a daemon is running, it connects to the
//! daemon's sessions; otherwise it runs them in this process.

mod attach;
mod drive;
mod event_printer;
mod expected;
mod host;
mod host_input;
mod keyboard;
mod named;
mod partial;
mod request;
mod stream_json;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::runtime::Runtime;

use super::json_lines::JsonLines;
use super::mcp::import::from_claude;
use super::printer::Printer;
use super::queue::{InputQueue, UserInput};
use super::sessions::IN_USE_HINT;
use super::terminal::{self, Style};
use super::{CliContext as _, CliError, EXIT_CANCELLED, EXIT_OVER_BUDGET, log, serve};
use crate::config::{McpServer, McpSource};
use crate::daemon::control::ControlClient;
use crate::daemon::control::fault::Fault;
use crate::daemon::control::remote::RemoteSessions;
use crate::paths::Paths;
use crate::session::port::SessionPort;
use crate::session::{Attachment, ClientId, Opening, QuestionSupport, Replay, SessionError, Ticket};
use crate::store::SessionQuery;
use crate::thread::visible::visible_line;
use crate::thread::{Content, SessionId};
use drive::{PromptRun, RunInputs};
use epitome_platform::signals::Interrupts;
use event_printer::EventPrinter;
use expected::ExpectedJson;
use host::HostLink;
pub use host_input::HostLine;
use host_input::{HostReader, HostRequest, HostSetup};
pub use request::{CompactArgs, RunArgs, SessionSubcommand};
use request::{OutputFormat, PromptRequest, SessionChoice};
use stream_json::StreamJson;

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

fn perform(mut request: PromptRequest) -> Result<i32, CliError> {
    if let Some(notice) = request.notice {
        note!("epitome: {notice}");
    }
    let paths = serve::paths();
    log::to_file(&paths);
    let mut cwd = serve::session_directory(match &request.cwd {
        Some(directory) => super::sessions::real_directory(directory)?,
        None => serve::working_directory()?,
    })?;
    let mut prompt = attach::read(&request.attached)?;
    let text = request.prompt()?;
    if !text.is_empty() {
        prompt.insert(0, Content::Text { text });
    }
    let mut expected = request.program.schema.as_deref().map(ExpectedJson::read).transpose()?;
    let stdin = request.program.reads_stream.then(HostInput::begin);
    if let Some(HostInput { setup: Some((_, setup)), .. }) = &stdin {
        // An SDK would go on without what its program relies on, such as a hook that denies calls.
        setup.check().map_err(CliError::usage)?;
        request.program.instructions = request.program.instructions.or(setup.instructions.clone());
        if let (None, Some(schema)) = (&expected, &setup.schema) {
            expected = Some(ExpectedJson::new(schema.clone()).map_err(CliError::usage)?);
        }
    }
    let resumed = match &request.session {
        SessionChoice::Named(id) => Some(super::sessions::named(&paths, id)?),
        SessionChoice::New | SessionChoice::Newest => None,
    };
    if let Some(name) = &request.worktree {
        cwd = super::worktree::open(&cwd, name)?;
    }
    let runtime = serve::runtime()?;
    let daemon = match request.standalone {
        true => None,
        false => runtime.block_on(in_daemon(&paths)).unwrap_or_else(|fault| {
            note!("epitome: {}; continuing without it", fault.message);
            if let Some(hint) = &fault.hint {
                note!("hint: {hint}");
            }
            None
        }),
    };
    let prepared = RunRequest { request, prompt, stdin, expected, cwd, resumed };
    let code = match daemon {
        Some(sessions) => prepared.run(&runtime, &sessions),
        None => {
            let sessions = serve::sessions(paths, runtime.handle());
            let code = prepared.run(&runtime, &sessions);
            serve::settle(&sessions, &runtime);
            code
        }
    };
    // Running threads must not delay the exit.
    runtime.shutdown_background();
    code
}

/// Returns the sessions of the daemon, which include those open in editors, if one is running.
async fn in_daemon(paths: &Paths) -> Result<Option<RemoteSessions>, Fault> {
    match ControlClient::connect_for(paths).await? {
        Some(client) => RemoteSessions::begin(client).await.map(Some),
        None => Ok(None),
    }
}

/// The stdin of a program, whose first line has been read: it may configure the session.
struct HostInput {
    reader: HostReader,
    first: Option<Result<HostLine, String>>,
    setup: Option<(String, HostSetup)>,
}

impl HostInput {
    fn begin() -> HostInput {
        let mut reader = HostReader::new();
        match reader.next() {
            Some(Ok(HostLine::Request { id, request: HostRequest::Initialize(setup) })) => {
                HostInput { reader, first: None, setup: Some((id, *setup)) }
            }
            first => HostInput { reader, first, setup: None },
        }
    }
}

/// The data that is known before the session is opened.
struct RunRequest {
    request: PromptRequest,
    prompt: Vec<Content>,
    stdin: Option<HostInput>,
    expected: Option<ExpectedJson>,
    cwd: PathBuf,
    /// The session to resume.
    resumed: Option<SessionId>,
}

impl RunRequest {
    fn run<P: SessionPort>(self, runtime: &Runtime, sessions: &P) -> Result<i32, CliError> {
        let RunRequest { request, prompt, stdin, expected, cwd, resumed } = self;
        let resumed = match &request.session {
            SessionChoice::Newest => Some(newest(sessions, &cwd)?),
            SessionChoice::New | SessionChoice::Named(_) => resumed,
        };
        if let Some(session) = &resumed
            && request.changes_history()
        {
            introduce(sessions, session);
        }
        let is_there = stdin.is_none() && terminal::keyboard().is_some();
        let queue = Arc::new(InputQueue::new(QuestionSupport { forms: is_there, urls: is_there }));
        catch_interrupts(runtime, &queue)?;
        let opening = Opening {
            attachment: Attachment { client: CLIENT, outlet: queue.clone() },
            cwd,
            directories: absolute(&request.program.directories)?,
            mcp_servers: mcp_servers(&request.program.mcp_servers)?,
            environment: serve::environment(),
            overrides: Arc::new(request.overrides.clone()),
            instructions: request.program.instructions.clone(),
            choices: Vec::new(),
        };
        let session = match resumed {
            Some(session) => {
                // The first line of the format of SDKs has what the log contains.
                let replay = match request.output {
                    OutputFormat::StreamJson => Replay::Everything,
                    OutputFormat::Text | OutputFormat::Json | OutputFormat::Jsonl => Replay::Nothing,
                };
                sessions.attach(ATTACH, session.clone(), opening, replay);
                session
            }
            None => sessions.create(ATTACH, opening),
        };
        let sink = match request.output {
            OutputFormat::Text if expected.is_some() => EventPrinter::Value,
            OutputFormat::Text => {
                let (out, err) = (io::stdout(), io::stderr());
                let printer = Printer::new(out, Style::for_stdout(), err, Style::for_stderr());
                EventPrinter::Text(Box::new(match request.plain {
                    true => printer,
                    false => printer.rendering(terminal::columns()),
                }))
            }
            OutputFormat::Jsonl => EventPrinter::Json(JsonLines::new(io::stdout())),
            OutputFormat::Json => EventPrinter::Result,
            OutputFormat::StreamJson => {
                let is_partial = request.program.is_partial;
                let lines = StreamJson::new(io::stdout(), session.clone(), is_partial);
                EventPrinter::Stream(Box::new(lines))
            }
        };
        let host = stdin.map(|stdin| feed(stdin, &request, &queue)).transpose()?;
        let inputs = RunInputs { prompt: host.is_none().then_some(prompt), host, expected };
        let code = PromptRun::new(sessions.clone(), session, queue.clone(), sink, inputs, request).drive();
        queue.close();
        sessions.detach(CLIENT);
        code
    }
}

/// Queues the lines of a program.
fn feed(stdin: HostInput, request: &PromptRequest, queue: &Arc<InputQueue>) -> Result<HostLink, CliError> {
    let HostInput { reader, first, setup } = stdin;
    let is_over = first.is_none() && setup.is_none();
    if let Some(line) = first {
        queue.put_input(UserInput::Host(line));
    }
    match is_over {
        true => queue.put_input(UserInput::HostLeft),
        false => reader.feed(queue).context("no thread can be started for stdin")?,
    }
    Ok(HostLink::new(request.program.decides, setup.map(|(id, _)| id)))
}

/// Reads the MCP servers of `--mcp-config`.
fn mcp_servers(options: &[String]) -> Result<Vec<McpServer>, CliError> {
    let mut servers = Vec::new();
    for option in options {
        let wrong = |why: String| CliError::usage(format!("--mcp-config: {why}"));
        let text = match option.trim_start().starts_with('{') {
            true => option.clone(),
            false => fs::read_to_string(option)
                .map_err(|error| wrong(format!("{option} can't be read: {error}")))?,
        };
        let imported = from_claude(&text, Path::new("")).map_err(|why| wrong(format!("{option}: {why}")))?;
        if !imported.skipped.is_empty() {
            return Err(wrong(imported.skipped.join("; ")));
        }
        servers.extend(
            imported.servers.into_iter().map(|server| McpServer { from: McpSource::Client, ..server }),
        );
    }
    Ok(servers)
}

/// Makes the directories of `--add-dir` absolute. They must exist.
fn absolute(directories: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    directories.iter().map(|directory| super::sessions::real_directory(directory)).collect()
}

fn newest(sessions: &impl SessionPort, cwd: &Path) -> Result<SessionId, CliError> {
    let query = SessionQuery {
        cwd: Some(cwd.to_owned()),
        has_prompt: true,
        limit: Some(1),
        ..SessionQuery::default()
    };
    let newest = sessions.list(&query).map_err(|error| failed(&error))?.pop();
    newest.map(|header| header.session).ok_or_else(|| {
        let hint = "`epitome run` without --follow starts one; `epitome sessions list` shows all";
        CliError::failed(format!("there is no session of {} to continue", cwd.display())).hint(hint)
    })
}

/// Names the session on stderr: unless one was named, it is the newest of the directory.
fn introduce(sessions: &impl SessionPort, session: &SessionId) {
    let query = SessionQuery {
        prefix: session.0.clone(),
        has_prompt: true,
        // Without a limit, every session is looked at.
        limit: Some(1),
        ..SessionQuery::default()
    };
    let listed = sessions.list(&query).unwrap_or_default();
    let title = listed.into_iter().find_map(|header| header.title);
    let name = title.unwrap_or_else(|| session.to_string());
    note!("Session: {}", visible_line(&name));
}

/// The first Ctrl-C cancels the turn, the second ends the process.
fn catch_interrupts(runtime: &Runtime, queue: &Arc<InputQueue>) -> Result<(), CliError> {
    let _inside = runtime.enter();
    let mut interrupts = Interrupts::new().context("Ctrl-C can't be handled")?;
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
        SessionError::InUse(..) => Some(IN_USE_HINT.to_owned()),
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
    CliError { code, ..CliError::failed(error.to_string()).hint_if(hint) }
}
