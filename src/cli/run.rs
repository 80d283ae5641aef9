//! `epitome run`: one prompt without an editor, in the same kind of session that editors use.
//!
//! It contains no agent loop: it is a client of the Agent Client Protocol that prints. If a daemon is running, it connects
//! to the daemon; otherwise it serves itself in this process.

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

use crate::daemon::front::attach::AttachError;
use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Runtime;

use super::acp::LocalAgent;
use super::json_lines::JsonLines;
use super::mcp::import::from_claude;
use super::methods;
use super::overrides::doubtful_model;
use super::printer::Printer;
use super::queue::{InputQueue, RunInput};
use super::sessions::{self, IN_USE_HINT};
use super::terminal::{self, Style};
use super::{CliContext as _, CliError, EXIT_CANCELLED, EXIT_OVER_BUDGET, log, serve};
use crate::config::{McpServer, McpSource, Settings};
use crate::daemon::control::EnvironmentObject;
use crate::daemon::front::attach::Connector;
use crate::paths::Paths;
use crate::session::SessionError;
use crate::session::registry::Overrides;
use crate::thread::visible::visible_line;
use crate::thread::{Content, SessionId};
use drive::{PromptRun, RunInputs, RunRequest};
use epitome_client::{QuestionForms, SessionClient, SessionRequest};
use epitome_platform::local::Stream;
use epitome_platform::signals::Interrupts;
use event_printer::EventPrinter;
use expected::ExpectedJson;
use host::HostLink;
pub use host_input::HostLine;
use host_input::{HostReader, HostRequest, HostSetup};
pub use request::{CompactArgs, RunArgs};
use request::{OutputFormat, PromptRequest, SessionChoice};
use stream_json::StreamJson;

/// The name of this client.
const NAME: &str = "epitome-run";

/// How long the daemon may take to let go of the session at the end.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

pub fn main(args: RunArgs) -> Result<i32, CliError> {
    perform(args.request()?)
}

/// `epitome compact`: a run of the compact recipe.
pub fn compact(args: CompactArgs) -> Result<i32, CliError> {
    perform(args.request()?)
}

/// `epitome sessions undo` and similar commands: run the slash command of that name in the session with this complete id.
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
            expected =
                Some(ExpectedJson::new(schema.clone()).map_err(|error| CliError::usage(error.to_string()))?);
        }
    }
    if let Some(name) = &request.worktree {
        cwd = super::worktree::open(&cwd, name)?;
    }
    let resumed = resumed(&paths, &request, &cwd)?;
    let is_there = stdin.is_none() && terminal::keyboard().is_some();
    let forms = if is_there { QuestionForms::Shown } else { QuestionForms::Unsupported };
    let runtime = serve::runtime()?;
    let overrides = request.overrides.clone();
    // The session reports mistakes in the settings.
    let (settings, _) = Settings::load(&paths, None, |name| std::env::var_os(name));
    if let Some(remark) = doubtful_model(overrides.model.as_deref(), &settings) {
        note!("epitome: {remark}");
    }
    let daemon = match request.standalone {
        true => None,
        false => in_daemon(&paths, overrides.clone(), NAME, forms).unwrap_or_else(|error| {
            note!("epitome: {}; continuing without it", error.message);
            None
        }),
    };
    let prepared = PreparedRun { request, prompt, stdin, expected, cwd, resumed };
    let code = match daemon {
        Some(connection) => prepared.run(&runtime, connection),
        None => {
            let agent = LocalAgent::start(paths, overrides, &runtime)?;
            let connected = SessionClient::connect(agent.stream, NAME, forms);
            let code = connected.map_err(CliError::failed).and_then(|client| prepared.run(&runtime, client));
            serve::settle(&agent.sessions, &runtime);
            code
        }
    };
    // Running threads must not delay the exit.
    runtime.shutdown_background();
    code
}

/// A client, and the reader of what the agent sends to it.
pub(super) type Connected<K> = (SessionClient<K>, BufReader<Stream>);

/// A client of the daemon, whose sessions include those open in editors, if one is running. The daemon knows it by this
/// name.
pub(super) fn in_daemon<K>(
    paths: &Paths,
    overrides: Overrides,
    name: &str,
    forms: QuestionForms,
) -> Result<Option<Connected<K>>, CliError> {
    let connector = Connector::new(paths, EnvironmentObject::current(), overrides);
    let mut connector = connector.map_err(AttachError::Program)?;
    let Some(link) = connector.attach_running()? else { return Ok(None) };
    let version = link.version.clone();
    let stream = link.into_stream().and_then(|stream| stream.set_nonblocking(false).map(|()| stream));
    let stream = stream.context("the connection to the daemon can't be used")?;
    SessionClient::connect(stream, name, forms).map(Some).map_err(|why| {
        match env!("CARGO_PKG_VERSION") {
            own if own == version => CliError::failed(why),
            own => CliError::failed(format!(
                "the daemon is of version {version}, this program of version {own} (`epitome daemon stop` ends it; the \
                 next window starts another, of its own version)"
            )),
        }
    })
}

/// The session that is continued, if any.
fn resumed(paths: &Paths, request: &PromptRequest, cwd: &Path) -> Result<Option<SessionId>, CliError> {
    let session = match &request.session {
        SessionChoice::New => return Ok(None),
        SessionChoice::Newest => sessions::newest(paths, cwd)?,
        SessionChoice::Named(id) => super::sessions::named(paths, id)?,
    };
    if request.changes_history() {
        introduce(paths, &session);
    }
    Ok(Some(session))
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
struct PreparedRun {
    request: PromptRequest,
    prompt: Vec<Content>,
    stdin: Option<HostInput>,
    expected: Option<ExpectedJson>,
    cwd: PathBuf,
    /// The session to resume.
    resumed: Option<SessionId>,
}

impl PreparedRun {
    fn run(self, runtime: &Runtime, (mut client, reader): Connected<RunRequest>) -> Result<i32, CliError> {
        let PreparedRun { request, prompt, stdin, expected, cwd, resumed } = self;
        let queue = Arc::new(InputQueue::default());
        catch_interrupts(runtime, &queue)?;
        queue.read_agent(reader).context("no thread can be started for the connection")?;
        // Without a word of the user, a session goes on where it was, wherever this command is started.
        let is_chosen = resumed.is_none() || request.cwd.is_some() || request.worktree.is_some();
        let opening = SessionRequest {
            cwd: if is_chosen { cwd } else { PathBuf::new() },
            directories: absolute(&request.program.directories)?,
            mcp_servers: mcp_servers(&request.program.mcp_servers)?,
            instructions: request.program.instructions.clone(),
        };
        match &resumed {
            Some(session) => {
                // The first line of the format of SDKs has what the log contains.
                let replays = request.output == OutputFormat::StreamJson;
                client.resume(session, &opening, replays, RunRequest::Open);
            }
            None => client.create(&opening, RunRequest::Open),
        }
        let sink = match request.output {
            OutputFormat::Text if expected.is_some() => EventPrinter::Value,
            OutputFormat::Text => {
                let (out, err) = (io::stdout(), io::stderr());
                let mut printer = Printer::new(out, Style::for_stdout(), err, Style::for_stderr());
                // The answer to a slash command that is typed here names others like it.
                printer.session = (!request.is_slash()).then(|| SessionId(String::new()));
                EventPrinter::Text(Box::new(match request.plain {
                    true => printer,
                    false => printer.rendering(terminal::columns()),
                }))
            }
            OutputFormat::Jsonl => EventPrinter::Json(JsonLines::new(io::stdout())),
            OutputFormat::Json => EventPrinter::Result,
            OutputFormat::StreamJson => {
                EventPrinter::Stream(Box::new(StreamJson::new(io::stdout(), request.program.is_partial)))
            }
        };
        let host = stdin.map(|stdin| feed(stdin, &request, &queue)).transpose()?;
        let inputs = RunInputs { prompt: host.is_none().then_some(prompt), host, expected };
        let session = resumed.unwrap_or_else(|| SessionId(String::new()));
        let mut run = PromptRun::new(client, session, queue.clone(), sink, inputs, request);
        let code = run.drive();
        queue.close();
        run.client.close();
        // The next command may use the session at once.
        let until = Instant::now() + CLOSE_WITHIN;
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
            && !matches!(queue.next(left), Some(RunInput::AgentLeft))
        {}
        code
    }
}

/// Queues the lines of a program.
fn feed(stdin: HostInput, request: &PromptRequest, queue: &Arc<InputQueue>) -> Result<HostLink, CliError> {
    let HostInput { reader, first, setup } = stdin;
    let is_over = first.is_none() && setup.is_none();
    if let Some(line) = first {
        queue.put_input(RunInput::Host(line));
    }
    match is_over {
        true => queue.put_input(RunInput::HostLeft),
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
        let imported = from_claude(&text, Path::new(""));
        let imported = imported.ok_or_else(|| wrong(format!("{option}: it is not valid JSON")))?;
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

/// Names the session on stderr: unless one was named, it is the newest of the directory.
fn introduce(paths: &Paths, session: &SessionId) {
    let shown = methods::call(paths, "sessions.show", json!({ "session": session })).unwrap_or_default();
    match shown["title"].as_str() {
        Some(title) => note!("Session: {} ({session})", visible_line(title)),
        None => note!("Session: {session}"),
    }
}

/// The first Ctrl-C cancels the turn, the second ends the process.
fn catch_interrupts(runtime: &Runtime, queue: &Arc<InputQueue>) -> Result<(), CliError> {
    let _inside = runtime.enter();
    let mut interrupts = Interrupts::new().context("Ctrl-C can't be handled")?;
    let queue = queue.clone();
    runtime.spawn(async move {
        interrupts.recv().await;
        queue.put_input(RunInput::Interrupted);
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
