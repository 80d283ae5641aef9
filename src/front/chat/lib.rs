//! The chat in the terminal: a client of the Agent Client Protocol, version 2, and nothing else. Whatever it knows of a
//! session came over its connection to the daemon.
//!
//! ```text
//!  keys, paste, wheel ──► ┌───────────┐ ──► ChatEffect ──► client ──► daemon
//!  AgentMessage ────────► │ ChatState │
//!  time ────────────────► └───────────┘ ──► view: cells
//! ```
//!
//! - `state`: the state and its `update`, which decides; `state/view`: what the screen shows. Both pure.
//! - `keys`, `draft`, `complete`, `card`, `form`, `picker`: what keys do, and what they work on. Pure.
//! - `transcript`, `call`, `rows`, `markdown`: the conversation as rows of the screen. Pure.
//! - `client`: the protocol. `shell`: the terminal.
//!
//! Text of models and tools passes through `thread::visible`, so that it can't contain escape sequences.

mod call;
mod card;
mod client;
mod complete;
mod draft;
mod files;
pub mod form;
mod history;
mod images;
mod keys;
pub mod markdown;
mod picker;
mod rows;
mod shell;
mod state;
mod transcript;
mod vim;

pub use picker::ChatSession;
pub use shell::{ChatEnd, ChatSetup, run};
