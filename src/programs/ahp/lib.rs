//! The Agent Host Protocol (AHP): clients such as VS Code attach to the sessions of the daemon, several at a time.
//!
//! ```text
//!  client ── WebSocket ──┐                     ┌ session: SessionState, ChatState
//!  client ── WebSocket ──┤ serve ── host ──────┤ session    ▲ folded by the protocol's own reducers
//!  client ── WebSocket ──┘            │        └ …          │
//!                                     │ agent: requests     │ updates, calls: actions
//!                                     ▼                     │
//!                               epitome daemon (ACP, version 2)
//! ```
//!
//! The host is one client of the daemon, like an editor's window, and does nothing to a session that a window can't do.
//! It folds what the daemon sends into the state that AHP describes, by actions that it numbers and distributes. A
//! client gets the state once, when it subscribes, and then the actions.
//!
//! - `host`: requests and actions of clients; `snapshots`: answers with states; `daemon_side`: what the daemon sends. No
//!   I/O: frames and lines in, frames and lines out.
//! - `clients`: who follows what; `failure`: errors.
//! - `session`: the state of a session, and the actions that clients may take.
//! - `updates`, `calls`: translate what the daemon sends about a session.
//! - `messages`, `models`, `uri`: forms of both protocols. Pure.
//! - `log`: numbers the actions, and keeps the last ones for clients that reconnect.
//! - `agent`: requests to the daemon that are not answered yet.
//! - `serve`: sockets.

mod agent;
mod calls;
mod clients;
mod daemon_side;
mod failure;
mod host;
#[cfg(test)]
mod host_tests;
mod log;
mod messages;
mod models;
mod serve;
mod session;
mod snapshots;
mod updates;
mod uri;

pub use serve::AhpServer;
