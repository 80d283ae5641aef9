//! The Agent Client Protocol: the only module that uses wire types.
//!
//! ```text
//!  bytes in  → connection → envelope → server ── SessionCommand ──► sessions
//!  bytes out ◄ connection ◄ writer ◄ to_wire, answers ◄ outbox ◄── Out ──┘
//! ```
//!
//! The thread that calls `serve` reads; a second thread writes. All output passes through the `outbox` in one order.
//! `requests` tracks unanswered requests in both directions. Translation is pure: `from_wire` translates input, and
//! output takes two steps. `to_wire`, with `updates`, `tool_wire`, `subagent_wire` and `compaction_wire`, turns the
//! events of a session into updates of the `model`, which has the shape of version 2. `v2` writes each of them with the types
//! of version 2, and `v1` translates it for connections that negotiated version 1 in `initialize`. `answers` and
//! `v2_answers` build results. `unpublished` has the types that are newer than the schema crate.

pub mod answers;
pub mod attached;
mod client_mcp;
mod compaction_wire;
pub mod connection;
pub mod envelope;
pub mod from_wire;
pub mod model;
pub mod outbox;
pub mod requests;
pub mod server;
mod subagent_wire;
pub mod to_wire;
pub mod tool_wire;
mod unpublished;
pub mod updates;
pub mod v1;
pub mod v2;
mod v2_answers;
pub mod writer;
