//! Epitome: a coding-agent daemon for editors, with compaction that you can trust.
//!
//! This page is the map. `README.md` is for users, and `CONTRIBUTING.md` says where a change goes.
//! `docs/builders/architecture.md` has the five decisions behind the code, the way of a prompt, of a model call and of a
//! compaction through it, and the invariants.
//!
//! # The rooms
//!
//! Each folder below `src/` is a room of crates named `epitome-NAME`, except `cli`, which is a module of this package. A
//! crate may use those of its own room and of the rooms drawn below it; its manifest lists which.
//!
//! ```text
//!  cli       the commands, and where the program is put together
//!  programs  ┌ ahp              the Agent Host Protocol, as a client of the daemon
//!            │ compact          compacts conversations of other agents
//!            │ import           reads the sessions of other agents
//!            └ acp_check        checks any ACP agent with rules and protocol fixtures
//!  front     ┌ chat             the chat in the terminal, pure but for its shell
//!            └ client           a client of the Agent Client Protocol, for all front ends
//!  service   ┌ daemon           one process for all windows, with control API and inspector
//!            │ acp              the Agent Client Protocol
//!            │ session          the only writer of a thread
//!            │ session_api      the commands and events of a session
//!            └ session_library  stored sessions: list, show, search, fork, export, import
//!  tools     ┌ tools            tools of the model, and permissions
//!            │ hooks            programs that run at events of a session
//!            │ mcp              tools of MCP servers
//!            └ diagnostics      language servers
//!  models    ─ provider         model services: wire formats, HTTP, properties of models
//!  world     ┌ config           reads the layered settings; permission rules as they are written
//!            │ recipe           Markdown files as slash commands and agents
//!            │ store            journals, blobs, index
//!            │ store_postgres   the logs of sessions in PostgreSQL
//!            │ checkpoint       files as they were before a turn changed them
//!            │ files            paths of the user's files; atomic writes
//!            └ platform         what depends on the system: process groups, sandbox, signals, memory
//!  core      ┌ thread           data: messages, changes, views
//!            │ turn             the agent loop as a state machine
//!            │ compaction       decides and composes compactions
//!            │ tokens           counts tokens, calibrated per model
//!            │ recall           searches what is no longer in the view
//!            │ shell            reads shell command lines
//!            │ transfer         conversations as files
//!            └ secrets          finds and masks keys
//! ```
//!
//! All of `core` is pure. `programs` are not linked into `epitome`, which starts those beside it for `epitome NAME`.
//! `tests/pure/tidy.rs` compares the drawing with the manifests, and checks that some external crates have few users.
//! Start reading at `core/turn/lib.rs` (the loop), then `service/session/actor.rs` (what carries it out), then
//! `core/thread/view.rs` (what the model sees).

pub mod cli;

pub use epitome_acp as acp;
pub use epitome_chat as chat;
pub use epitome_checkpoint as checkpoint;
pub use epitome_compaction as compaction;
pub use epitome_config as config;
pub use epitome_config::rules;
pub use epitome_daemon as daemon;
pub use epitome_diagnostics as diagnostics;
pub use epitome_files::{atomic_file, memory, paths};
pub use epitome_hooks as hooks;
pub use epitome_mcp as mcp;
pub use epitome_provider as provider;
pub use epitome_recall as recall;
pub use epitome_recipe as recipe;
pub use epitome_secrets as secrets;
pub use epitome_session as session;
pub use epitome_session_library as session_library;
pub use epitome_store as store;
pub use epitome_thread as thread;
pub use epitome_thread::problem;
pub use epitome_tokens as tokens;
pub use epitome_tokens::model_name;
pub use epitome_tools as tools;
pub use epitome_transfer as transfer;
pub use epitome_turn as turn;
