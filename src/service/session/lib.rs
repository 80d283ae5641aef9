//! Sessions. Each is a task that owns one conversation and is the only writer of its log.
//!
//! A session has at most one running `Turn`. Clients send it `SessionCommand`s and receive `SessionEvent`s through an
//! `EventSink`, in a single order; the answer to a command is an event of the same stream. These are in a crate of their
//! own, `session_api`, which clients use without sessions.
//!
//! `Session` (`actor`) consists of the `Core` and the components. The `Core` holds what all of them use: the
//! conversation and its log, clients, permissions, the model, settings and services; only `Core::commit` changes the
//! conversation. A component's fields are private. It receives the core and its other inputs as arguments, never the
//! session, and returns what has to be done. `Session` only decides what follows an event: it drives the turn and
//! connects the components.
//!
//! | part of the core | owns |
//! |---|---|
//! | `ClientList` | attached and leaving clients, the prompt's sender, shown notices, events that wait for the log |
//! | `SessionLog` (`log`) | the journal and its writer, syncing, message ids |
//! | `ModelLink` | the endpoint, its window, token counts, cost, encoded requests |
//! | `Permissions` | permission rules, and the open request |
//! | `Trace` | the tracing spans of the session and its turn |
//!
//! | component | owns |
//! |---|---|
//! | `Inbox` | incoming commands, waiting prompts |
//! | `Questions` | questions of tools and MCP servers to the user |
//! | `EditorBuffers` | unsaved texts of editors, and requests to editors |
//! | `ToolHost` | state shared by tool calls: files, live output, background commands, data about the turn's calls |
//! | `Subagents` | running children, their permission requests and streams |
//! | `HookHost` | the discovered hooks, consent to them, and their requests to the running turn |
//! | `Compactor` | the compaction of the running turn, the summary that is prepared in advance |
//! | `SessionRecipes` (`recipes`) | the catalog, and the prompt that is being rendered |
//! | `McpHost` (`mcp`) | MCP servers |
//! | `InstructionWatch` (`instructions`) | the instruction files |
//!
//! Everything that changes a `Session` stands in `actor` and below it, where its fields are private: `actor::clients`
//! takes the commands of clients, `actor::driving` carries out what a turn asks for, and `actor::session_state` reports
//! to clients that follow it whether the session is working, waiting or idle.
//!
//! Slow work runs beside the session and ends in a value: `JobResult` (`work`) for jobs of the running turn,
//! `BackgroundResult` (`background`) for all other work. `actor::finished` has one line for each of them, with the method
//! that goes on.
//!
//! Imports run downwards: `registry` and `child` use the actor, the actor uses the components, these use the core, and the
//! core uses none of them. A session reaches the other sessions of its process through the trait in `host`. `reminders`
//! compares the view with what the model has to know. `commands` are functions over the core.

mod actor;
mod background;
mod budget;
mod called;
mod checkpoints;
pub mod child;
mod client_list;
mod commands;
mod compacting;
pub mod complete;
mod core;
pub mod counts;
pub mod cpu_worker;
pub mod cross_session_edit;
mod diagnostics;
mod draft;
mod editor_buffers;
mod effects;
mod event_gate;
mod hook_host;
mod host;
mod inbox;
mod instructions;
mod lineage;
mod log;
mod mcp;
pub mod meter;
mod model_link;
mod models;
mod optional_tools;
mod output_truncation;
mod own_grants;
mod permissions;
mod preflight;
mod prompt;
mod provider_errors;
mod questions;
mod recipes;
mod refusal;
pub mod registry;
mod reminders;
mod replacement;
mod requests;
mod responder;
pub mod resumed;
mod sandbox;
mod saved_permissions;
mod services;
pub mod session_permissions;
mod skills;
mod subagents;
mod summary;
mod tasks;
mod tool_host;
mod trace;
mod work;
pub mod worktree;

pub use actor::suspended;
pub use commands::{name_in as command_name_in, why};
pub use epitome_session_api::*;
pub use instructions::folders as instruction_files;
pub use mcp::{LISTINGS as MCP_LISTINGS, LOGINS as MCP_LOGINS};
pub use provider_errors::provider_error;
pub use sandbox::sandbox_rules;
