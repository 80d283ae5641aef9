//! The MCP section of `epitome doctor`. Connects to the servers of the user's settings with a timeout; those of a
//! repository are only listed.

use std::time::Duration;

use super::DoctorLine;
use crate::cli::hooks::Project;
use crate::config::{McpServer, McpSource};
use crate::hooks::servers::{self, PinnedServer};
use crate::hooks::trust::{TrustStore, TrustVerdict};
use crate::mcp::{Hub, McpEvent, ServerState, ServerStatus};
use crate::problem::Problem;
use crate::tools::question::QuestionSender;

/// Timeout for connecting to all servers.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(15);

pub(super) fn lines(project: &Project) -> Vec<DoctorLine> {
    let configured = &project.settings.mcp.servers;
    let (own, theirs): (Vec<&McpServer>, Vec<&McpServer>) =
        configured.iter().partition(|server| server.from == McpSource::Person);
    let (on, off): (Vec<&McpServer>, Vec<&McpServer>) = own.into_iter().partition(|server| server.enabled);
    let mut lines: Vec<DoctorLine> =
        off.iter().map(|server| DoctorLine::ok("mcp", format!("{} is switched off", server.name))).collect();
    let roots = project.paths.repository_roots(&project.cwd);
    let pinned = |server: &McpServer| servers::pin(server, &roots, &project.environment, &project.trust);
    lines.extend(theirs.iter().filter_map(|server| Some(waiting(server, pinned(server)?, &project.trust))));
    if !on.is_empty() {
        lines.extend(connected(on, project).iter().map(line));
    }
    lines
}

fn waiting(server: &McpServer, pinned: Result<PinnedServer, Problem>, trust: &TrustStore) -> DoctorLine {
    let item = match pinned {
        Ok(pinned) => pinned.item,
        Err(problem) => {
            return DoctorLine::warning("mcp", problem.message, problem.hint.unwrap_or_default());
        }
    };
    match trust.verdict(&item.path, &item.digest) {
        TrustVerdict::Trusted => {
            DoctorLine::ok("mcp", format!("{} came with the repository and is allowed", server.name))
        }
        TrustVerdict::Refused => {
            DoctorLine::ok("mcp", format!("{} came with the repository and is not run", server.name))
        }
        TrustVerdict::Unknown => DoctorLine::warning(
            "mcp",
            format!("{} came with the repository and is not trusted yet", server.name),
            "the first prompt of a session here asks about it",
        ),
    }
}

/// Returns the status of the servers after all have connected or failed, or after the timeout. Then stops them.
fn connected(servers: Vec<&McpServer>, project: &Project) -> Vec<ServerStatus> {
    let Ok(runtime) = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
    else {
        return Vec::new();
    };
    runtime.block_on(async {
        let around = project.mcp_context();
        // Questions can't be answered here.
        let (questions, _asked) = QuestionSender::new();
        let (mut hub, mut news) = Hub::new(around, questions);
        hub.start(servers.into_iter().cloned(), |_| false);
        let settled = async {
            let is_connecting = |status: &ServerStatus| status.state == ServerState::Connecting;
            while hub.statuses().iter().any(is_connecting) {
                match news.recv().await {
                    Some(
                        McpEvent::Changed { .. }
                        | McpEvent::Gone { .. }
                        | McpEvent::Remark(_)
                        | McpEvent::ModelWanted { .. },
                    ) => {}
                    None => return,
                }
            }
        };
        // Servers that take longer are reported as connecting.
        drop(tokio::time::timeout(CONNECT_TIME_MAX, settled).await);
        hub.statuses()
    })
}

fn line(status: &ServerStatus) -> DoctorLine {
    let name = &status.spec.name;
    match &status.state {
        ServerState::Ready => {
            let remarks: String = status.remarks.iter().map(|remark| format!("; {remark}")).collect();
            DoctorLine::ok("mcp", format!("{name} is connected, with {} tools{remarks}", status.tools.len()))
        }
        ServerState::Idle | ServerState::Connecting => DoctorLine::warning(
            "mcp",
            format!("{name} did not answer within {} s", CONNECT_TIME_MAX.as_secs()),
            "start its command in a shell and see what it waits for",
        ),
        ServerState::Gone(why) => DoctorLine::warning(
            "mcp",
            format!("{name} is not connected: {why}"),
            "correct it in the settings, or remove it",
        ),
    }
}
