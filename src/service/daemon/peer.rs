//! The processes that may be clients of the daemon, if they also know the token: no process of another user, and none
//! that is more confined than the daemon, because it could escape its confinement by commanding the daemon. So no
//! sandboxed command of a session can change its session's mode or answer its permission prompt. Outside of the sandbox
//! that is not certain: commands are identified by their marks and by their ancestors, and a process that removes its
//! mark and outlives its ancestors looks like any other process of the user.

use std::sync::LazyLock;

use epitome_platform::confinement::ProcessConfinement;
use epitome_platform::local::{self, AsyncStream, PeerProcess};
use epitome_platform::os::user_id;
use epitome_platform::reaper::Reaper;

/// `None` if `/proc` is not mounted.
static OWN: LazyLock<Option<ProcessConfinement>> = LazyLock::new(|| ProcessConfinement::current().ok());

/// Whether the process at the other end of a connection may be served.
pub enum Peer {
    /// Served if it knows the token.
    MayAsk,
    /// Refused; this sentence is its answer.
    Refused(String),
    /// A process of another or an unknown user: the connection is closed without an answer.
    Foreign,
}

/// Checks the process that has connected. The reaper has started the sessions' commands.
pub fn judge(stream: &AsyncStream, reaper: &Reaper) -> Peer {
    let peer = match local::peer(stream) {
        Ok(peer) if peer.user == user_id() => peer,
        Ok(peer) => {
            tracing::warn!(uid = peer.user, "another user's connection is refused");
            return Peer::Foreign;
        }
        Err(error) => {
            tracing::warn!(%error, "a connection whose user is not known is refused");
            return Peer::Foreign;
        }
    };
    match confined(&peer, reaper) {
        None => Peer::MayAsk,
        Some(how) => {
            tracing::warn!(
                pid = peer.process.map(|process| process.as_raw_pid()),
                how,
                "a connection of a confined process is refused"
            );
            Peer::Refused(format!(
                "this process may not control the daemon: it {how}; start the program where the daemon was started"
            ))
        }
    }
}

/// How a process is more confined than the daemon; `None` if it isn't.
fn confined(peer: &PeerProcess, reaper: &Reaper) -> Option<&'static str> {
    let own = OWN.as_ref()?;
    // A process that is invisible in this PID namespace is not a descendant of the daemon.
    let process = peer.process?;
    match ProcessConfinement::for_process(process) {
        Ok(peer) => peer.exceeds(own).or_else(|| {
            let is_of_command = own.lacks_ancestor_of(process, |process| reaper.has_command(process));
            is_of_command.then_some("was started by a command of a session")
        }),
        Err(error) => {
            tracing::debug!(%error, "a client can't be examined");
            Some("has ended, or can't be examined")
        }
    }
}
