//! `epitome-ahp`: serves clients of the Agent Host Protocol over WebSocket. They share the daemon's sessions.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use epitome::cli::overrides::OverrideArgs;
use epitome::cli::{CliError, RemoteToken, log, serve};
use epitome_ahp::AhpServer;
use epitome_daemon::front::access::{AcceptedTokens, RemoteAccess};
use epitome_daemon::front::attach::Connector;
use epitome_platform::program::helper;
use epitome_session_api::Overrides;

/// The environment variable that contains the token of clients.
const TOKEN_VARIABLE: &str = "EPITOME_AHP_TOKEN";

/// Serve clients of the Agent Host Protocol
///
/// VS Code and other clients attach to sessions of the daemon, several to one session. Sessions are created in this
/// directory unless the client names another.
#[derive(Debug, Parser)]
#[command(
    name = "epitome ahp",
    bin_name = "epitome ahp",
    version,
    args_override_self = true,
    max_term_width = 100
)]
struct AhpArgs {
    /// Loopback address to listen on; port 0 chooses a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Origin of a web page that may connect; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    #[command(flatten)]
    overrides: OverrideArgs,
}

fn main() -> ExitCode {
    let error = serve_clients(AhpArgs::parse()).unwrap_err();
    eprintln!("epitome: {}", error.message);
    if let Some(hint) = &error.hint {
        eprintln!("hint: {hint}");
    }
    log::flush();
    ExitCode::from(u8::try_from(error.code).unwrap_or(1))
}

/// Serves clients until it is interrupted.
fn serve_clients(args: AhpArgs) -> Result<std::convert::Infallible, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    let token = RemoteToken::from_environment(TOKEN_VARIABLE)?;
    let program = helper("epitome")?;
    let connector = Connector::new(&paths, token.environment(), Overrides::from(args.overrides))
        .map_err(|error| CliError::failed(format!("the path of this program is unknown: {error}")))?
        .starting(program);
    let directory = serve::working_directory()?;
    serve::runtime()?.block_on(async {
        let access =
            RemoteAccess { tokens: AcceptedTokens::One(token.value.clone()), origins: args.allow_origin };
        let server = AhpServer::listen(args.listen, access, connector, directory).await?;
        let address = server.address().map_err(|error| CliError::failed(error.to_string()))?;
        eprintln!("listening on ws://{address}/");
        if token.is_new {
            eprintln!(
                "connect to ws://{address}/?tkn={} (set {TOKEN_VARIABLE} to choose the token)",
                token.value
            );
        }
        Err(server.serve().await.into())
    })
}
