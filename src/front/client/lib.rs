//! A client of the Agent Client Protocol, version 2, for Epitome's own front ends.
//!
//! ```text
//!  requests ──► SessionClient ──► AcpLink ──► lines ──► agent
//!  SessionMessage ◄── events ◄──────┘ ◄──────── lines ◄──┘
//! ```
//!
//! - `link`: the unanswered requests of one connection. No I/O: lines in, lines out.
//! - `handshake`: the requests with which a connection begins.
//! - `session_client`: the requests about sessions, over a socket or pipes.
//! - `events`: the one place that reads what the agent sends about a session.
//! - `blocks`: prompts and servers in the forms of the protocol.
//! - `attach`: images and documents as parts of a prompt.
//!
//! If the protocol has no field for something that is printed, the agent adds it to `_meta.epitome`, provided that the
//! client's capabilities ask for it: entries of the log, whole permission requests, ends of prompts (`docs/builders/integrate.md`).

mod attach;
mod blocks;
mod events;
mod handshake;
mod link;
mod session_client;

pub use attach::{AttachmentError, read_attachment};
pub use blocks::of_prompt;
pub use events::{ClientEvent, ContextUsage, PromptEnd, SessionChoices, slash_commands};
pub use handshake::{Handshake, halves, sentence, with_hint};
pub use link::{AcpLink, LinkMessage};
pub use session_client::{
    OpenedSession, QuestionForms, SessionClient, SessionMessage, SessionRequest, cancelled, elicitation,
    question_answer, selected,
};
