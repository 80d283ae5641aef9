//! The daemon: one per user and home. It owns the store and the sessions; front ends connect editors to it.
//!
//! ```text
//!  editor ── stdio ── epitome acp ──┐ acp.sock: hello, then ACP                ┌─ sessions
//!  editor ── stdio ── epitome acp ──┤  (one line per message)                  │
//!                                   ├────────────► epitome daemon ─────────────┼─ store
//!  shell  ── epitome sessions … ────┤ control.sock: JSON-RPC, a line a message │
//!  shell  ── socat, python ─────────┘                                          └─ inspect (loopback)
//! ```
//!
//! - `runtime_dir`: paths of sockets and locks, and their access checks.
//! - `attachments`: the table of connected clients.
//! - `control`: the control API.
//! - `serve`: the daemon's main loop; `listener`: its sockets; `frontends`: connected front ends.
//! - `start`: starts a detached daemon.
//! - `token`: the secret that clients of both sockets have to know; `peer`: which processes are refused nevertheless.
//! - `remote_tokens`: the tokens of clients on other machines.
//! - `build`: identifies the build of a program.
//! - `handshake`, `messages`: the protocol between daemon and front end.
//! - `front`: the front end.
//! - `inspect`: the web page for inspecting sessions.
//! - `idle`: what it does while no turn runs.

pub mod attachments;
pub mod build;
pub mod control;
pub mod front;
mod frontends;
pub mod handshake;
pub mod idle;
pub mod inspect;
mod listener;
pub mod messages;
mod peer;
pub mod remote_tokens;
pub mod runtime_dir;
pub mod serve;
pub mod start;
pub mod token;

pub use frontends::{ClientLogin, offers_v2};

use std::time::SystemTime;

use tokio::sync::watch;

use attachments::Attachments;
use epitome_files::paths::Paths;
use epitome_session::registry::Sessions;
use epitome_store::Store;
use inspect::Inspect;
use runtime_dir::RuntimeDir;

/// State shared by the parts of a running daemon, in an `Arc`.
pub struct Daemon {
    pub paths: Paths,
    pub runtime_dir: RuntimeDir,
    pub sessions: Sessions,
    pub store: Store,
    pub attachments: Attachments,
    pub control: control::ControlState,
    pub inspect: Inspect,
    pub started_at: SystemTime,
    /// Set to true to make the daemon shut down.
    pub stop: watch::Sender<bool>,
}

impl Daemon {
    pub fn new(paths: Paths, sessions: Sessions, store: Store) -> Daemon {
        Daemon {
            runtime_dir: RuntimeDir::new(&paths),
            paths,
            sessions,
            store,
            attachments: Attachments::default(),
            control: control::ControlState::default(),
            inspect: Inspect::default(),
            started_at: SystemTime::now(),
            stop: watch::Sender::new(false),
        }
    }
}
