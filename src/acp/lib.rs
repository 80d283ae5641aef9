//! The Agent Client Protocol: the only place that names wire types.
//!
//! ```text
//!  bytes in  → connection → envelope → server ── SessionCommand ──► sessions
//!  bytes out ◄ connection ◄ post ◄ to_wire, answers ◄ outlet ◄──── Out ──┘
//! ```
//!
//! The reader is the thread that calls `serve`; one more thread writes. Whatever is to be written
//! passes the outbox (`outlet`) in one order. Translating is pure (`to_wire`, `updates`, `tool_wire`,
//! `subagent_wire`, `answers`, `from_wire`); `requests` knows who waits for an answer.

pub mod answers;
pub mod attached;
mod compaction_wire;
pub mod connection;
pub mod envelope;
pub mod from_wire;
mod hook_wire;
pub mod outlet;
pub mod post;
pub mod requests;
pub mod server;
mod subagent_wire;
pub mod to_wire;
pub mod tool_wire;
pub mod updates;
