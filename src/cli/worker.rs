//! `epitome worker`: serves clients of a server with the files of this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::acp::RemoteCredentials;
use super::overrides::OverrideArgs;
use super::token::date;
use super::{CliContext as _, CliError, log, serve, terminal};
use crate::daemon::control::EnvironmentObject;
use crate::daemon::front::attach::Connector;
use crate::daemon::front::worker::{Worker, WorkerName};
use crate::session::registry::Overrides;
use crate::thread::visible::visible_line;
use epitome_platform::signals::EndRequests;

/// Serve clients of a server with local files
///
/// It connects to a machine with `epitome serve`, whose clients choose it with `epitome acp --worker NAME`. Tools, the
/// sandbox and checkpoints work here. The token needs the scope `work`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct WorkerArgs {
    /// Address of the server, for example wss://server.example:4711
    ///
    /// The token is that of EPITOME_REMOTE_TOKEN.
    #[arg(long, value_name = "ADDRESS")]
    remote: Option<String>,
    /// Name by which clients choose it; workers with the same name share their files
    #[arg(long)]
    name: Option<WorkerName>,
    /// Directory below which sessions may work; may be repeated [default: the current one]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    directory: Vec<PathBuf>,
    /// Seconds that running turns get to end after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u32,
    #[command(flatten)]
    credentials: RemoteCredentials,
    #[command(flatten)]
    overrides: OverrideArgs,
    #[command(subcommand)]
    action: Option<WorkerAction>,
}

#[derive(Debug, clap::Subcommand)]
enum WorkerAction {
    List(ListWorkersArgs),
}

/// List the workers that are connected to a server
#[derive(Debug, clap::Args)]
struct ListWorkersArgs {
    /// Address of the server; the token is that of EPITOME_REMOTE_TOKEN, with any scope but `work`
    #[arg(long, value_name = "ADDRESS")]
    remote: String,
    #[command(flatten)]
    credentials: RemoteCredentials,
    /// Print one JSON object for each worker
    #[arg(long)]
    json: bool,
}

/// Serves clients until it is interrupted, and then until their turns have ended.
pub fn main(args: WorkerArgs) -> Result<i32, CliError> {
    if let Some(WorkerAction::List(args)) = &args.action {
        return list(args);
    }
    let (Some(address), Some(name)) = (args.remote, args.name) else {
        return Err(CliError::usage("a worker needs --remote ADDRESS, that of its server, and --name NAME"));
    };
    let paths = serve::paths();
    log::to_file(&paths);
    let server = args.credentials.server(&address)?;
    let directories = match args.directory.is_empty() {
        true => vec![serve::working_directory()?],
        false => args.directory,
    };
    let directories = directories.iter().map(|path| real(path)).collect::<Result<Vec<_>, _>>()?;
    let below = directories.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let overrides = Overrides::from(args.overrides);
    let environment = EnvironmentObject::current();
    let connector = move || {
        Connector::new(&paths, environment.clone(), overrides.clone())
            .map_err(|error| format!("this program is not found: {error}"))
    };
    let worker = Worker::new(server, name, directories, Arc::new(connector))?;
    worker.check_daemon()?;
    let limit = Duration::from_secs(args.drain_timeout.into());
    let runtime = serve::runtime()?;
    let ended = runtime.block_on(async {
        let mut signals = EndRequests::new().map_err(|error| error.to_string())?;
        note!("sessions may work below {below}");
        tokio::select! {
            refused = worker.serve(|text| note!("{text}")) => {
                return refused.context("the server can't be used").map(|()| 1);
            }
            _ = signals.recv() => {}
        }
        super::server::end_in_time(&mut signals, worker.end(limit), limit).await
    });
    runtime.shutdown_background();
    ended
}

/// The real path of a directory, which the daemon compares with those of sessions.
fn real(directory: &Path) -> Result<PathBuf, CliError> {
    let real = directory.canonicalize().map_err(|error| error.to_string());
    let usable = real.and_then(|real| match (real.is_dir(), real.to_str()) {
        (true, Some(_)) => Ok(real),
        (false, _) => Err("it is not a directory".to_owned()),
        (true, None) => Err("its name is not UTF-8".to_owned()),
    });
    usable.context(format_args!("--directory {}", directory.display()))
}

fn list(args: &ListWorkersArgs) -> Result<i32, CliError> {
    let server = args.credentials.server(&args.remote)?;
    let unusable = "the server can't be used";
    let text = serve::runtime()?.block_on(server.get("workers")).context(unusable)?;
    let workers: Vec<Value> = serde_json::from_str(&text).context(unusable)?;
    if workers.is_empty() && !args.json {
        note!("no worker is connected");
    }
    for worker in workers {
        let line = if args.json { worker.to_string() } else { as_text(&worker) };
        terminal::print(&format!("{line}\n"))?;
    }
    Ok(0)
}

fn as_text(worker: &Value) -> String {
    let text = |name: &str| visible_line(worker[name].as_str().unwrap_or_default());
    let clients = match worker["clients"].as_u64() {
        Some(1) => "1 client".to_owned(),
        clients => format!("{} clients", clients.unwrap_or_default()),
    };
    let since = date(worker["connected_at"].as_u64().unwrap_or_default());
    format!("{}  connected {since}  token {}  {clients}", text("name"), text("token"))
}
