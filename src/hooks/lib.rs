//! Hooks: scripts and handlers that run at events of a session, and the interpretation of their results.
//!
//! ```text
//!  files ── discover ──► Hook (declared)         trust: may it run?
//!  session ─ Moment ──► Chain ── payload ──► run (script, webhook, resident, function)
//!                        ▲  └──── normalise ◄── read ◄── stdout
//!                        └─► Resolution + trail ──► the session commits what it means
//! ```
//!
//! `event`, `hook`, `moment` and `output` are data. `read` parses a hook's stdout as JSON, `normalise` is the
//! only place that knows the spellings of a result (`fields` provides typed access), and `heard` combines
//! both into the outcome of one run. `chain` orders the hooks (`fits` decides whether one runs at all),
//! `fold` aggregates their results, and `settle` applies the guards. `payload` and `messages` build the input
//! of hooks. All of these are pure. `handlers` are declared by recipes, `functions` are registered by an
//! embedding program. `run` starts processes; `discover` and `trust` access the disk (`gather` collects
//! candidates, `declare` reads their declarations).

mod aggregate;
pub mod chain;
pub mod claude;
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
pub mod manifest;
pub mod messages;
pub mod moment;
pub mod normalise;
pub mod outcome;
pub mod output;
pub mod payload;
mod places;
mod probe;
pub mod process;
pub mod read;
pub mod resident;
mod resident_process;
pub mod run;
pub mod shown;
mod streams;
pub mod transcript;
pub mod trust;
pub mod webhook;
pub mod words;
