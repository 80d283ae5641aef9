//! `epitome acp`: speaks the Agent Client Protocol on stdin and stdout. It is a thin front end of the daemon, or runs
//! the entire agent in this process if requested or if no daemon can be started.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::overrides::OverrideArgs;
use super::{CliContext as _, CliError, EXIT_USAGE, helper, log, login, serve, server, terminal};
use crate::acp::connection::{Connection, ConnectionCloser, Tap};
use crate::acp::server::ConnectionConfig;
use crate::acp::writer::Positions;
use crate::atomic_file::read_private;
use crate::config::REMOTE_TOKEN_VARIABLE;
use crate::daemon::ClientLogin;
use crate::daemon::control::EnvironmentObject;
use crate::daemon::front;
use crate::daemon::front::access::{AcceptedTokens, RemoteAccess};
use crate::daemon::front::attach::{AttachError, Connector, DaemonLink, FindDaemon};
use crate::daemon::front::dial::{RemoteConnector, RemoteServerAddress};
use crate::daemon::front::remote::{PATH, RemoteServer, SocketSecurity};
use crate::daemon::front::signals::BlockedSignals;
use crate::daemon::token::secret;
use crate::paths::Paths;
use crate::session::ClientId;
use crate::session::registry::{Overrides, Sessions};
use crate::thread::visible::visible_line;
use epitome_platform::local;
use epitome_platform::process::standard_ends;
use epitome_platform::signals::EndRequests;

/// Timeout for pending work after the client has disconnected.
const SETTLE_TIME_MAX: Duration = Duration::from_millis(200);

/// Serve an editor over stdin and stdout
///
/// For editors: speaks the Agent Client Protocol. One daemon serves all editor windows; it is started if necessary.
#[derive(Debug, clap::Args)]
pub struct AcpArgs {
    /// Record all messages in this file, with keys masked
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    transcript: Option<PathBuf>,
    /// Run the agent in this process, without a daemon
    #[arg(long)]
    standalone: bool,
    /// Serve clients over WebSocket and HTTP on this loopback address, at /acp, instead of stdin and stdout
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["transcript", "standalone"])]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Origin of a web page that may connect; may be repeated
    #[arg(long, value_name = "ORIGIN", requires = "listen")]
    allow_origin: Vec<String>,
    #[command(flatten)]
    overrides: OverrideArgs,
    #[command(subcommand)]
    action: Option<AcpAction>,
}

/// The daemon of another machine.
#[derive(Debug, clap::Args)]
struct RemoteArgs {
    /// Use the daemon of another machine, which runs `epitome serve`, for example wss://build.example:4711
    ///
    /// The token is that of EPITOME_REMOTE_TOKEN.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["standalone", "listen"])]
    remote: Option<String>,
    #[arg(long, hide = true)]
    worker: Option<String>,
    #[command(flatten)]
    credentials: RemoteCredentials,
}

/// How a server is authenticated, and this side to it.
#[derive(Debug, clap::Args)]
pub struct RemoteCredentials {
    /// File with the token for --remote, which only you can read
    #[arg(long, value_name = "FILE", requires = "remote", value_hint = clap::ValueHint::FilePath)]
    remote_token_file: Option<PathBuf>,
    /// PEM file with the certificates to trust for --remote, instead of the public ones
    #[arg(long, value_name = "FILE", requires = "remote", value_hint = clap::ValueHint::FilePath)]
    tls_ca: Option<PathBuf>,
}

impl RemoteCredentials {
    /// The server at an address.
    pub fn server(&self, address: &str) -> Result<RemoteServerAddress, CliError> {
        let token = match &self.remote_token_file {
            Some(path) => {
                read_private(path).map_err(|why| CliError::failed(format!("{} {why}", path.display())))?
            }
            None => std::env::var(REMOTE_TOKEN_VARIABLE).unwrap_or_default(),
        };
        if token.trim().is_empty() {
            return Err(CliError::failed("--remote needs a token of the server")
                .hint(format!("set {REMOTE_TOKEN_VARIABLE}, or name a file with --remote-token-file")));
        }
        let authorities = self.tls_ca.as_deref().map(server::read).transpose()?;
        RemoteServerAddress::parse(address, token.trim(), authorities.as_deref())
            .map_err(|error| CliError::failed(error.to_string()))
    }
}

/// Subcommands that editors run in a terminal by appending them to the command that starts the agent.
#[derive(Debug, clap::Subcommand)]
enum AcpAction {
    Login(login::LoginArgs),
}

/// The text for users who start this in a terminal. `PROGRAM` is replaced.
const FOR_PEOPLE: &str = "\
`epitome acp` is for editors: it speaks the Agent Client Protocol on stdin and stdout. Tell your editor to run it, for
example Zed in its settings.json:

  \"agent_servers\": {
    \"Epitome\": { \"type\": \"custom\", \"command\": \"PROGRAM\", \"args\": [\"acp\"], \"env\": {} }
  }

Other editors take the same command and argument. In a terminal, use `epitome` for a chat, or
`epitome run \"...\"` for one prompt.
";

/// Explains the command to a user at a terminal; returns whether it did.
fn explained() -> bool {
    let is_person = io::stdin().is_terminal() && io::stdout().is_terminal();
    if is_person {
        let program = std::env::current_exe().map_or("epitome".into(), |path| path.display().to_string());
        terminal::to_stderr(&FOR_PEOPLE.replace("PROGRAM", &visible_line(&program)));
    }
    is_person
}

pub fn main(args: AcpArgs) -> Result<i32, CliError> {
    if let Some(AcpAction::Login(args)) = args.action {
        return login::main(args);
    }
    if let Some(address) = args.listen {
        return listen(address, args.allow_origin, Overrides::from(args.overrides));
    }
    if explained() {
        return Ok(EXIT_USAGE);
    }
    let overrides = Overrides::from(args.overrides);
    let paths = serve::paths();
    log::to_file(&paths);
    let tap = args.transcript.as_deref().map(helper::record).transpose()?;
    let (reader, writer) = standard_ends().map_err(|error| {
        CliError::failed(format!("stdin and stdout can't be used: {error}"))
            .hint("start it from an editor, or with pipes")
    })?;
    if let Some(address) = &args.remote.remote {
        if overrides != Overrides::default() {
            return Err(CliError::usage(
                "--remote uses the settings of the server: give the options to `epitome serve`",
            ));
        }
        return remote(address, &args.remote, (reader, writer), tap);
    }
    if !args.standalone {
        match attach(&paths, &overrides) {
            Ok((connector, link, signals)) => {
                return serve_by(connector, link, (reader, writer), tap, signals);
            }
            Err(error) => {
                let why = error.message;
                tracing::warn!(why, "no daemon can be reached: this window runs the agent in its own process")
            }
        }
    }
    standalone(paths, overrides, (reader, writer), tap)
}

/// Serves the editor by the daemon of another machine.
fn remote(address: &str, args: &RemoteArgs, ends: (File, File), tap: Option<Tap>) -> Result<i32, CliError> {
    if args.worker.is_some() {
        note!(
            "--worker is no longer used: --remote names the machine with the files, which runs `epitome serve`"
        );
    }
    let server = args.credentials.server(address)?;
    let connector = RemoteConnector::new(server);
    let mut connector = connector.context("no thread can be started")?;
    let link = connector.find(0, false).context("the server can't be used")?;
    let signals = BlockedSignals::new().context("signals can't be blocked")?;
    serve_by(connector, link, ends, tap, signals)
}

/// Serves the editor by a daemon, and ends the process.
fn serve_by(
    connector: impl FindDaemon + 'static,
    link: DaemonLink,
    (reader, writer): (File, File),
    tap: Option<Tap>,
    signals: BlockedSignals,
) -> Result<i32, CliError> {
    front::run(connector, link, reader, writer, tap, signals)
        .context("the threads of the front end can't be started")?;
    // Returning from main would wait for a thread that may still read.
    std::process::exit(0)
}

/// Finds or starts the daemon, and then blocks signals, which later threads inherit: a signal ends a window that waits
/// for a slow daemon.
fn attach(paths: &Paths, overrides: &Overrides) -> Result<(Connector, DaemonLink, BlockedSignals), CliError> {
    let (connector, link) = connect(paths, overrides)?;
    let signals = BlockedSignals::new().context("signals can't be blocked")?;
    Ok((connector, link, signals))
}

/// Finds or starts the daemon.
pub fn connect(paths: &Paths, overrides: &Overrides) -> Result<(Connector, DaemonLink), String> {
    let environment = EnvironmentObject::current();
    let mut connector = Connector::new(paths, environment, overrides.clone())
        .map_err(|error| format!("the path of this program is unknown: {error}"))?;
    let link = connector.attach(0).map_err(|error| error.to_string())?;
    Ok((connector, link))
}

/// The environment variable that contains the bearer token for clients that connect.
const TOKEN_VARIABLE: &str = "EPITOME_ACP_TOKEN";

/// The token that clients need to connect.
pub struct RemoteToken {
    pub value: String,
    /// Whether it was made for this process, so that the user has to be shown it.
    pub is_new: bool,
    variable: &'static str,
}

impl RemoteToken {
    /// The token in a variable of the environment, or a new one.
    pub fn from_environment(variable: &'static str) -> Result<RemoteToken, CliError> {
        if let Some(value) = std::env::var(variable).ok().filter(|token| !token.is_empty()) {
            return Ok(RemoteToken { value, is_new: false, variable });
        }
        let value = secret().context("no token can be made")?;
        Ok(RemoteToken { value, is_new: true, variable })
    }

    /// The environment without the token, which commands of sessions have no use for.
    pub fn environment(&self) -> EnvironmentObject {
        let mut environment = EnvironmentObject::current();
        environment.0.retain(|(name, _)| name != self.variable);
        environment
    }
}

/// Serves clients over WebSocket and HTTP until it is interrupted.
fn listen(address: SocketAddr, origins: Vec<String>, overrides: Overrides) -> Result<i32, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    let token = RemoteToken::from_environment(TOKEN_VARIABLE)?;
    let environment = token.environment();
    let connector =
        move || Connector::new(&paths, environment.clone(), overrides.clone()).map_err(AttachError::Program);
    let access = RemoteAccess { tokens: AcceptedTokens::One(token.value.clone()), origins };
    serve::runtime()?.block_on(async {
        let server = RemoteServer::listen(address, SocketSecurity::Loopback, access, Arc::new(connector));
        let server = server.await?;
        let address = server.address().map_err(|error| error.to_string())?;
        note!("listening on ws://{address}{PATH}");
        if token.is_new {
            note!("token: {} (set {TOKEN_VARIABLE} to choose one)", token.value);
        }
        server.serve().await;
        Ok(0)
    })
}

fn standalone(
    paths: Paths,
    overrides: Overrides,
    (reader, writer): (File, File),
    tap: Option<Tap>,
) -> Result<i32, CliError> {
    let runtime = serve::runtime()?;
    let sessions = serve::sessions(paths.clone(), runtime.handle())?;
    sessions.services().store.keep_listing();
    let connection = Connection::open(writer, local_client(&sessions, paths, overrides, &runtime), tap);
    let end = LocalShutdown { closer: connection.closer(), sessions, runtime: runtime.handle().clone() };
    end_on_signal(&runtime, &end);
    runtime.spawn(crate::daemon::idle::tidy_while_idle(end.sessions.clone()));
    connection.read(reader);
    end.now()
}

/// The only client of the sessions of this process.
fn local_client(
    sessions: &Sessions,
    paths: Paths,
    overrides: Overrides,
    runtime: &tokio::runtime::Runtime,
) -> ConnectionConfig<Sessions> {
    let environment = serve::environment();
    let v2_paths = paths.clone();
    let login = ClientLogin::new(paths, overrides, environment.clone());
    ConnectionConfig {
        sessions: sessions.clone(),
        runtime: runtime.handle().clone(),
        client: ClientId(1),
        grant: None,
        environment,
        login: Arc::new(login),
        ids_above: 0,
        positions: Positions::Omitted,
        offers_v2: Box::new(move || crate::daemon::offers_v2(&v2_paths)),
    }
}

/// An agent that runs in this process for one of its commands, and ends with the connection.
pub struct LocalAgent {
    pub sessions: Sessions,
    /// The client's end.
    pub stream: local::Stream,
}

impl LocalAgent {
    /// Serves the connection on threads of its own.
    pub fn start(
        paths: Paths,
        overrides: Overrides,
        runtime: &tokio::runtime::Runtime,
    ) -> Result<LocalAgent, CliError> {
        let sessions = serve::sessions(paths.clone(), runtime.handle())?;
        let started = LocalAgent::serve(paths, overrides, runtime, sessions);
        started.context("the agent can't be started in this process")
    }

    fn serve(
        paths: Paths,
        overrides: Overrides,
        runtime: &tokio::runtime::Runtime,
        sessions: Sessions,
    ) -> io::Result<LocalAgent> {
        let (stream, served) = local::pair()?;
        let (reader, config) = (served.try_clone()?, local_client(&sessions, paths, overrides, runtime));
        std::thread::Builder::new().name("agent-reader".to_owned()).spawn(move || {
            let connection = Connection::open(served, config, None);
            connection.read(reader);
            connection.closer().close();
        })?;
        Ok(LocalAgent { sessions, stream })
    }
}

/// Ends a process that runs without a daemon.
#[derive(Clone)]
struct LocalShutdown {
    closer: ConnectionCloser<Sessions>,
    sessions: Sessions,
    runtime: tokio::runtime::Handle,
}

impl LocalShutdown {
    /// Blocks, so it must not be called on a thread of the runtime.
    fn now(&self) -> ! {
        self.closer.close();
        // Save what was learned about models, and end the sessions.
        drop(
            self.runtime
                .block_on(async { tokio::time::timeout(SETTLE_TIME_MAX, self.sessions.settled()).await }),
        );
        self.sessions.services().store.settle();
        log::flush();
        // Returning from main would wait for abandoned work of the runtime.
        std::process::exit(0)
    }
}

/// Editors end this process with SIGTERM; running work is recorded before the exit.
fn end_on_signal(runtime: &tokio::runtime::Runtime, end: &LocalShutdown) {
    let end = end.clone();
    runtime.spawn(async move {
        let Ok(mut signals) = EndRequests::new() else { return };
        signals.recv().await;
        // It blocks, which threads of the runtime must not do.
        std::thread::spawn(move || end.now());
    });
}
