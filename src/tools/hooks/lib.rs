//! Hooks: scripts and handlers that run at events of a session, and the interpretation of their results.
//!
//! ```text
//!  files ── discover ──► Hook (declared)         trust: may it run?
//!  session ─ HookContext ► Chain ── payload ──► run (script, webhook, resident, function)
//!                        ▲  └──── outcome ◄── read ◄── stdout
//!                        └─► Resolution + trail ──► the session commits what it means
//! ```
//!
//! `event`, `hook`, `hook_context` and `output` are data. The steps of an event:
//!
//! - Parse: `discover` finds the hooks (`gather` collects candidates, `probe` asks executables, `manifest` parses
//!   declarations); `trust` and `digest` decide which of them may run.
//! - Select: `filter` decides whether a hook runs at an event, `handlers::plan` adds the handlers of recipes.
//! - Run: `run` starts what `chain` asks for, with the input of `payload` and `messages`: a `process`, a `webhook`, a
//!   `resident` process, a handler (`handlers`) or a function of an embedding program (`functions`).
//! - Interpret: `read` parses a hook's stdout as JSON, `normalise` is the only place that knows the spellings of a
//!   result (`fields` provides typed access), and `outcome` combines both into the outcome of one run.
//! - Combine: `aggregate` merges the outcomes, and `guards` removes what would loop.
//!
//! `claude` has the formats of Claude Code. Only `discover`, `trust` and `run` access the disk or start processes.

mod aggregate;
pub mod aside;
pub mod chain;
pub mod claude;
pub mod command_function;
mod declare;
pub mod digest;
pub mod discover;
pub mod event;
mod fields;
mod filter;
pub mod functions;
mod gather;
pub mod guards;
pub mod handlers;
pub mod hook;
pub mod hook_context;
pub mod manifest;
pub mod messages;
pub mod normalise;
pub mod outcome;
pub mod output;
pub mod payload;
mod probe;
pub mod process;
pub mod read;
pub mod resident;
mod resident_process;
pub mod run;
pub mod servers;
pub mod shown;
mod sources;
mod streams;
pub mod transcript;
pub mod trust;
pub mod webhook;
pub mod words;
