//! The daemon: one per user and home. It owns the store and the sessions; front ends connect editors to it.
//!
//! ```text
//!  editor ── stdio ── epitome acp ──┐ acp.sock: hello, then ACP                ┌─ sessions
//!  editor ── stdio ── epitome acp ──┤  (lines to the daemon, frames from it)   │
//!                                   ├────────────► epitome daemon ─────────────┼─ store
//!  shell  ── epitome sessions … ────┤ control.sock: JSON-RPC, a line a message │
//!  shell  ── socat, python ─────────┘                                          └─ inspect (loopback)
//! ```
//!
//! - `place`: paths of sockets and locks, and their access checks.
//! - `attachments`: the table of connected clients.
//! - `control`: the control API.
//! - `serve`: the daemon's main loop; `entrance`: its listening sockets; `doors`: connected front ends.
//! - `start`: starts a detached daemon.
//! - `build`: identifies the build of a program.
//! - `hello`, `frame`: the protocol between daemon and front end.
//! - `front`: the front end.
//! - `inspect`: the web page for inspecting sessions.
//! - `lean`: returns unused memory to the OS while idle.

pub mod attachments;
pub mod build;
pub mod control;
mod doors;
mod entrance;
pub mod frame;
pub mod front;
pub mod hello;
pub mod inspect;
pub mod place;
pub mod serve;
pub mod start;

pub use doors::configured;

use std::time::SystemTime;

use tokio::sync::watch;

use attachments::Attachments;
use epitome_files::paths::Paths;
use epitome_session::registry::Sessions;
use epitome_store::Store;
use inspect::Inspect;
use place::Place;

/// State shared by the parts of a running daemon, in an `Arc`.
pub struct Daemon {
    pub paths: Paths,
    pub place: Place,
    pub sessions: Sessions,
    pub store: Store,
    pub attachments: Attachments,
    pub control: control::Desk,
    pub inspect: Inspect,
    pub started_at: SystemTime,
    /// Set to true to make the daemon shut down.
    pub stop: watch::Sender<bool>,
}

impl Daemon {
    pub fn new(paths: Paths, sessions: Sessions, store: Store) -> Daemon {
        Daemon {
            place: Place::of(&paths),
            paths,
            sessions,
            store,
            attachments: Attachments::default(),
            control: control::Desk::default(),
            inspect: Inspect::default(),
            started_at: SystemTime::now(),
            stop: watch::Sender::new(false),
        }
    }
}
