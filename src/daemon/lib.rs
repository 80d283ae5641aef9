//! One daemon for every window of a person: it owns the store and the sessions, and front ends carry the
//! protocol between it and their editors.
//!
//! ```text
//!  editor ── stdio ── epitome acp ──┐ acp.sock: hello, then ACP                ┌─ sessions
//!  editor ── stdio ── epitome acp ──┤  (lines to the daemon, frames from it)   │
//!                                   ├────────────► epitome daemon ─────────────┼─ store
//!  shell  ── epitome sessions … ────┤ control.sock: JSON-RPC, a line a message │
//!  shell  ── socat, python ─────────┘                                          └─ inspect (loopback)
//! ```
//!
//! - `place`: where sockets and locks are, and who may use them.
//! - `attachments`: who is connected.
//! - `control`: the control API.
//! - `serve`: the daemon's life; `entrance`: its sockets; `doors`: the front ends that are attached.
//! - `start`: how a daemon is started, detached.
//! - `build`: which program it is.
//! - `hello`, `frame`: what daemon and front end say to each other.
//! - `front`: the front end.
//! - `inspect`: the page to look at sessions.
//! - `lean`: what who waits gives back of its memory.

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

/// What the parts of a running daemon share. Behind an `Arc`.
pub struct Daemon {
    pub paths: Paths,
    pub place: Place,
    pub sessions: Sessions,
    pub store: Store,
    pub attachments: Attachments,
    pub control: control::Desk,
    pub inspect: Inspect,
    pub started_at: SystemTime,
    /// Turns true when the daemon is to end.
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
