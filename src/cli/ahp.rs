//! `epitome ahp`: serves clients of the Agent Host Protocol over WebSocket. They share the daemon's sessions.

use std::net::SocketAddr;

use super::acp::RemoteToken;
use super::overrides::OverrideArgs;
use super::{CliContext as _, CliError, log, serve};
use crate::daemon::front::access::{AcceptedTokens, RemoteAccess};
use crate::daemon::front::attach::Connector;
use crate::session::registry::Overrides;
use epitome_ahp::AhpServer;

/// The environment variable that contains the token of clients.
const TOKEN_VARIABLE: &str = "EPITOME_AHP_TOKEN";

/// Serve clients of the Agent Host Protocol
///
/// VS Code and other clients attach to sessions of the daemon, several to one session. Sessions are created in this
/// directory unless the client names another.
#[derive(Debug, clap::Args)]
pub struct AhpArgs {
    /// Loopback address to listen on; port 0 chooses a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Origin of a web page that may connect; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    #[command(flatten)]
    overrides: OverrideArgs,
}

/// Serves clients until it is interrupted.
pub fn main(args: AhpArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    let token = RemoteToken::from_environment(TOKEN_VARIABLE)?;
    let connector = Connector::new(&paths, token.environment(), Overrides::from(args.overrides))
        .context("this program is not found")?;
    let directory = serve::working_directory()?;
    serve::runtime()?.block_on(async {
        let access =
            RemoteAccess { tokens: AcceptedTokens::One(token.value.clone()), origins: args.allow_origin };
        let server = AhpServer::listen(args.listen, access, connector, directory).await?;
        let address = server.address().map_err(|error| error.to_string())?;
        note!("listening on ws://{address}/");
        if token.is_new {
            note!(
                "connect to ws://{address}/?tkn={} (set {TOKEN_VARIABLE} to choose the token)",
                token.value
            );
        }
        Err(server.serve().await.into())
    })
}
