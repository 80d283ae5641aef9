//! Hooks: what a person declares to run at moments of a session, and what comes of it.
//!
//! ```text
//!  files ── discover ──► Hook (declared)         trust: may it run?
//!  session ─ Moment ──► Chain ── payload ──► run (script, webhook, resident, function)
//!                        ▲  └──── normalise ◄── read ◄── stdout
//!                        └─► Resolution + trail ──► the session commits what it means
//! ```
//!
//! `event`, `hook`, `moment` and `output` are data. `read` takes what a hook printed as JSON,
//! `normalise` is the one place that knows every spelling of a result (`fields` gives it the types),
//! `heard` puts the two together for one run. `chain` decides in what order hooks run (`fits` whether at
//! all), `fold` what all of their results together mean, `settle` holds that to the guards. `payload` and
//! `messages` write what hooks are given. All of these are pure. `handlers` are what recipes declare,
//! `functions` those of a program that Epitome is built into. `run` starts processes, `discover` and
//! `trust` touch the disk (`gather` looks into the places, `declare` reads what is found there).

mod asked;
pub mod chain;
pub mod claude;
mod claude_match;
pub mod claude_output;
pub mod claude_payload;
pub mod claude_tools;
mod claude_words;
mod declare;
pub mod digest;
pub mod discover;
pub mod event;
mod fields;
pub mod fits;
mod fold;
pub mod functions;
mod gather;
pub mod handlers;
pub mod heard;
pub mod hook;
pub mod manifest;
mod manifest_fields;
pub mod messages;
pub mod moment;
pub mod normalise;
pub mod output;
pub mod payload;
mod places;
pub mod process;
pub mod read;
pub mod resident;
mod resident_process;
pub mod run;
pub mod settle;
pub mod shown;
mod streams;
pub mod transcript;
pub mod trust;
pub mod webhook;
pub mod words;
