//! Completes the first start of a server after its session has ended, in a separate process: the server may be
//! installing itself (`npx`, `uvx`), and an installation that is killed by every short session would never finish.
//!
//! A daemon completes the start itself. A process that ends with its session hands it to this helper, which is
//! Epitome's executable with a hidden argument. The helper stores what the server offers, ends the server and exits.

use epitome_platform::os::CommandExt;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::connect::FIRST_START_TIME_MAX;
use super::{Hub, McpContext, ServerState};
use epitome_config::McpServer;
use epitome_platform::process::this_program;
use epitome_tools::question::QuestionSender;

/// The hidden argument: `epitome __first-start`.
pub const FIRST_START_ARGUMENT: &str = "__first-start";

/// Extra time for the helper, beyond the limit of the connection attempt.
const SPARE_TIME: Duration = Duration::from_secs(5);

/// The helper's standard input, as JSON. Its environment and directory are those of the session.
#[derive(Serialize, Deserialize)]
pub struct FirstStart {
    pub server: McpServer,
}

impl FirstStart {
    /// Starts the helper in its own process group, and does not wait for it.
    pub(super) fn hand_over(&self, cwd: &Path, environment: &[(OsString, OsString)]) -> io::Result<()> {
        let mut command = Command::new(this_program()?);
        command.arg0("epitome").arg(FIRST_START_ARGUMENT).process_group(0).current_dir(cwd);
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut helper = command.spawn()?;
        let stdin = helper.stdin.take();
        stdin.map_or(Ok(()), |mut stdin| stdin.write_all(&serde_json::to_vec(self)?))
    }

    /// Connects the server once, which stores what it offers.
    pub async fn complete(self, context: McpContext) -> io::Result<()> {
        // There is no user to answer questions.
        let (questions, _asked) = QuestionSender::new();
        let (mut hub, mut news) = Hub::new(McpContext { starts_at_use: false, ..context }, questions);
        hub.start([self.server], |_| false);
        let settled = async {
            while news.recv().await.is_some() {
                match hub.statuses().into_iter().next().map(|status| status.state) {
                    Some(ServerState::Ready) => return Ok(()),
                    Some(ServerState::Gone(why)) => return Err(io::Error::other(why)),
                    Some(ServerState::Idle | ServerState::Connecting) | None => {}
                }
            }
            Err(io::Error::other("it ended"))
        };
        let limit = FIRST_START_TIME_MAX + SPARE_TIME;
        tokio::time::timeout(limit, settled)
            .await
            .unwrap_or_else(|_| Err(io::Error::other("it takes too long")))
    }
}
