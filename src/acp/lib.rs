//! The Agent Client Protocol: the only module that uses wire types.
//!
//! ```text
//!  bytes in  → connection → envelope → server ── SessionCommand ──► sessions
//!  bytes out ◄ connection ◄ writer ◄ to_wire, answers ◄ outbox ◄── Out ──┘
//! ```
//!
//! The thread that calls `serve` reads; a second thread writes. Everything to be written passes through the
//! `outbox` in one order. Translation is pure (`to_wire`, `updates`, `tool_wire`, `subagent_wire`,
//! `answers`, `from_wire`); `requests` tracks unanswered requests in both directions.

pub mod answers;
pub mod attached;
mod compaction_wire;
pub mod connection;
pub mod envelope;
pub mod from_wire;
pub mod outbox;
pub mod requests;
pub mod server;
mod subagent_wire;
pub mod to_wire;
pub mod tool_wire;
mod unpublished;
pub mod updates;
pub mod writer;
