//! Ends a server without breaking what runs: no connection and no turn begins any more, running turns end, and the daemon
//! gives its sessions back, so that other machines can open them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use super::{RemoteClients, RemoteServer, ServeError};
use crate::control::ControlClient;
use crate::control::fault::FaultKind;
use crate::runtime_dir::{END_TIME_MAX, RuntimeDir};

/// Interval of looks at the running turns.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time limit for the daemon to record turns that are cancelled, and to close the sessions of clients that have gone.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// Ends a server.
pub struct Drain {
    clients: Arc<RemoteClients>,
}

impl RemoteServer {
    pub fn drain(&self) -> Drain {
        Drain { clients: self.clients.clone() }
    }
}

impl Drain {
    /// Waits at most this long for running turns, and ends all connections. A daemon that nobody else uses ends as well.
    /// Returns how many turns were cancelled.
    pub async fn run(self, limit: Duration) -> Result<usize, ServeError> {
        self.clients.draining.store(true, Ordering::Relaxed);
        let over = Instant::now() + limit;
        let runtime_dir = (self.clients.connector)()?.runtime_dir().clone();
        let connections = || self.clients.connections.lock().values().cloned().collect::<Vec<_>>();
        let closing = async |closed: Instant| {
            for connection in connections() {
                // Messages that the daemon still sends are passed on. A client that reads none is ended below.
                drop(timeout_at(closed, connection.close_front()).await);
            }
        };
        let cancelled = end_clients(&runtime_dir, over, closing).await;
        connections().iter().for_each(|connection| connection.end());
        cancelled
    }
}

/// Waits until `over` at most for the running turns of the clients that this process has at a daemon, and has `close` close
/// their connections until the time that it is given. A daemon that nobody else uses ends as well. Returns how many turns
/// were cancelled.
async fn end_clients(
    runtime_dir: &RuntimeDir,
    over: Instant,
    close: impl AsyncFnOnce(Instant),
) -> Result<usize, ServeError> {
    let Some(control) = ControlClient::connect(runtime_dir).await? else {
        close(Instant::now() + CLOSE_TIME_MAX).await;
        return Ok(0);
    };
    let mut own = HashSet::new();
    let mut now = DaemonNow::read(&control, over, &mut own).await?;
    while now.running > 0 && Instant::now() < over {
        sleep(LOOK_EVERY).await;
        now = DaemonNow::read(&control, over, &mut own).await?;
    }
    let cancelled = now.running;
    let closed = Instant::now() + CLOSE_TIME_MAX;
    close(closed).await;
    while now.clients > 0 && Instant::now() < closed {
        sleep(LOOK_EVERY).await;
        now = DaemonNow::read(&control, closed, &mut own).await?;
    }
    if !now.has_others {
        control.call("stop", json!({ "force": true })).await?;
        drop(control);
        if !runtime_dir.ended_within(END_TIME_MAX).await {
            return Err(ServeError::NoExit);
        }
    }
    Ok(cancelled)
}

/// The state of a daemon that matters to this process.
struct DaemonNow {
    /// The clients of this process.
    clients: usize,
    /// Sessions of these clients with a running turn.
    running: usize,
    /// Whether there are windows of other programs, or sessions that others have open, over the control API.
    has_others: bool,
}

impl DaemonNow {
    /// Waits until `over` for the answer of a daemon that is busy, and a while in any case. `own`: the ids of this process's
    /// clients so far, some of which may be about to leave their sessions.
    async fn read(
        control: &ControlClient,
        over: Instant,
        own: &mut HashSet<u64>,
    ) -> Result<DaemonNow, ServeError> {
        let within = over.max(Instant::now() + CLOSE_TIME_MAX);
        loop {
            match timeout_at(within, control.call("status", json!({}))).await {
                Ok(Ok(status)) => return Ok(DaemonNow::of(&status, std::process::id(), own)),
                // The daemon has its own time limit for an answer.
                Ok(Err(fault)) if fault.kind == FaultKind::TimedOut => {}
                Ok(Err(fault)) => return Err(fault.into()),
                Err(_) => return Err(ServeError::NoAnswer),
            }
        }
    }

    /// `server`: this process.
    fn of(status: &Value, server: u32, own: &mut HashSet<u64>) -> DaemonNow {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let (attached, others): (Vec<Value>, Vec<Value>) = list(&status["attachments"])
            .into_iter()
            .filter(|attached| attached["kind"] == "editor")
            .partition(|attached| attached["pid"] == server);
        own.extend(attached.iter().filter_map(|attached| attached["client"].as_u64()));
        let is_own = |id: &Value| id.as_u64().is_some_and(|id| own.contains(&id));
        let mut now = DaemonNow { clients: attached.len(), running: 0, has_others: !others.is_empty() };
        for session in list(&status["sessions"]) {
            let (own, others): (Vec<Value>, Vec<Value>) =
                list(&session["client_ids"]).into_iter().partition(is_own);
            now.running += usize::from(session["running"] == true && !own.is_empty());
            now.has_others |= !others.is_empty();
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_turns_of_the_servers_own_clients_are_waited_for() {
        let attached =
            |client: u64, kind: &str, pid: u32| json!({ "client": client, "kind": kind, "pid": pid });
        let session = |running: bool, clients: &[u64]| json!({ "running": running, "client_ids": clients });
        for (attachments, sessions, wanted) in [
            (vec![attached(1, "control", 7)], vec![], (0, 0, false)),
            (vec![attached(1, "editor", 7)], vec![session(true, &[1])], (1, 1, false)),
            (vec![attached(1, "editor", 7)], vec![session(false, &[1])], (1, 0, false)),
            (
                vec![attached(1, "editor", 7), attached(2, "editor", 8)],
                vec![session(true, &[2])],
                (1, 0, true),
            ),
            (
                vec![attached(1, "editor", 7), attached(2, "editor", 8)],
                vec![session(true, &[1, 2]), session(true, &[2])],
                (1, 1, true),
            ),
            // A program over the control API.
            (
                vec![attached(1, "editor", 7), attached(2, "control", 9)],
                vec![session(true, &[2])],
                (1, 0, true),
            ),
            // A client that has gone, and whose session has not noticed yet.
            (vec![], vec![session(true, &[3])], (0, 1, false)),
        ] {
            let status = json!({ "attachments": attachments, "sessions": sessions });
            let now = DaemonNow::of(&status, 7, &mut HashSet::from([3]));
            assert_eq!((now.clients, now.running, now.has_others), wanted, "{status}");
        }
    }
}
