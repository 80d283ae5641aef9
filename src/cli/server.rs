//! `epitome serve`: serves clients on other machines.

use crate::daemon::front::attach::AttachError;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::overrides::OverrideArgs;
use super::{CliContext as _, CliError, log, serve};
use crate::config::Settings;
use crate::daemon::control::EnvironmentObject;
use crate::daemon::front::access::{AcceptedTokens, RemoteAccess};
use crate::daemon::front::attach::Connector;
use crate::daemon::front::dial::RemoteServerAddress;
use crate::daemon::front::remote::{NewConnector, PATH, RemoteServer, ServeError, SocketSecurity};
use crate::daemon::front::tls::{self, TlsError};
use crate::daemon::remote_tokens::RemoteTokens;
use crate::paths::Paths;
use crate::session::registry::Overrides;
use epitome_platform::signals::EndRequests;

/// Serve clients on other machines
///
/// They connect over WebSocket or HTTP with the tokens of `epitome token`, and share the sessions of this machine's
/// daemon. `epitome acp --remote` connects an editor.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Address to listen on; only this machine can connect to a loopback address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4711")]
    listen: SocketAddr,
    /// PEM file with the server's certificate, followed by those of its authorities
    #[arg(long, value_name = "FILE", requires = "tls_key", value_hint = clap::ValueHint::FilePath)]
    tls_cert: Option<PathBuf>,
    /// PEM file with the key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert", value_hint = clap::ValueHint::FilePath)]
    tls_key: Option<PathBuf>,
    /// Listen on any address without encryption, because a proxy in front of it encrypts
    #[arg(long, conflicts_with = "tls_cert")]
    tls_by_proxy: bool,
    /// Origin of a web page that may connect; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Seconds that running turns get to end after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_timeout: u32,
    /// Address at which clients reach this server, for example wss://node-a:4711
    ///
    /// Servers with the same `store` send clients here for sessions that are open here.
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    #[arg(long, hide = true)]
    peer_ca: Option<PathBuf>,
    #[command(flatten)]
    overrides: OverrideArgs,
}

/// Serves clients until it is interrupted, and then until their turns have ended.
pub fn main(args: ServeArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    let security = security(&args)?;
    let scheme = if matches!(security, SocketSecurity::Tls(_)) { "wss" } else { "ws" };
    let tokens = RemoteTokens::below(&paths.data);
    if tokens.list()?.is_empty() {
        note!("no client can connect yet: `epitome token create` makes a token");
    }
    if args.peer_ca.is_some() {
        note!(
            "--peer-ca is no longer used: clients go to the server that has a session, see docs/operators/fleet.md"
        );
    }
    args.advertise.as_deref().map(|address| check_advertised(address, &paths)).transpose()?;
    let overrides = Overrides::from(args.overrides);
    let advertised = args.advertise;
    let is_advertised = advertised.is_some();
    let connector: NewConnector = Arc::new(move || {
        let connector = Connector::new(&paths, EnvironmentObject::current(), overrides.clone());
        let mut connector = connector.map_err(AttachError::Program)?;
        if let Some(address) = &advertised {
            connector.advertise(address);
        }
        Ok(connector)
    });
    let access = RemoteAccess { tokens: AcceptedTokens::Stored(tokens), origins: args.allow_origin };
    let drain_timeout = Duration::from_secs(args.drain_timeout.into());
    let runtime = serve::runtime()?;
    let ended = runtime.block_on(async {
        let mut signals = EndRequests::new().map_err(|error| error.to_string())?;
        let server = RemoteServer::listen(args.listen, security, access, connector.clone()).await?;
        let address = server.address().map_err(|error| error.to_string())?;
        note!("listening on {scheme}://{address}{PATH}");
        if is_advertised {
            // A daemon that runs already learns at which address its sessions can be reached.
            tokio::task::spawn_blocking(move || {
                if let Err(error) = connector().and_then(|mut connector| connector.attach(0)) {
                    tracing::warn!(%error, "the daemon does not know the address of this server yet");
                }
            });
        }
        let drain = server.drain();
        let ending = async {
            signals.recv().await;
            end_in_time(&mut signals, drain.run(drain_timeout), drain_timeout).await
        };
        tokio::select! {
            () = server.serve() => Ok(0),
            code = ending => code,
        }
    });
    runtime.shutdown_background();
    ended
}

/// Waits for the end of running turns after a signal. Another signal ends at once.
pub async fn end_in_time(
    signals: &mut EndRequests,
    draining: impl Future<Output = Result<usize, ServeError>>,
    limit: Duration,
) -> Result<i32, CliError> {
    note!(
        "ending within {} s, when the running turns have ended; another signal ends at once",
        limit.as_secs()
    );
    tokio::select! {
        drained = draining => match drained? {
            0 => {}
            1 => note!("a turn had not ended and was cancelled"),
            turns => note!("{turns} turns had not ended and were cancelled"),
        },
        () = signals.recv() => return Ok(1),
    }
    Ok(0)
}

/// Checks the address that the other servers name to clients.
fn check_advertised(address: &str, paths: &Paths) -> Result<(), CliError> {
    let (settings, _) = Settings::load(paths, None, |_| None);
    if settings.store.is_none() {
        return Err(CliError::failed("--advertise is for servers that share their sessions").hint(format!(
            "name the database that the servers share as `store` in {}",
            paths.config_file().display()
        )));
    }
    RemoteServerAddress::parse(address, "", None).map(drop).context(format_args!("--advertise {address}"))
}

fn security(args: &ServeArgs) -> Result<SocketSecurity, CliError> {
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let config = tls::server(&read(certificate)?, &read(key)?);
        let named = |why: TlsError| format!("{} and {}: {why}", certificate.display(), key.display());
        return Ok(SocketSecurity::Tls(config.map_err(named)?));
    }
    match args.listen.ip().is_loopback() {
        true => Ok(SocketSecurity::Loopback),
        false if args.tls_by_proxy => Ok(SocketSecurity::Proxy),
        false => Err(CliError::failed(format!("{} can be reached from other machines, and nothing encrypts the connections", args.listen)).hint("give --tls-cert and --tls-key; or --tls-by-proxy, if a proxy in front of it encrypts; or listen on \
                 127.0.0.1")),
    }
}

/// Reads a file that the command line names.
pub fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    std::fs::read(path).context(format_args!("{} can't be read", path.display()))
}
