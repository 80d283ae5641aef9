//! Compaction: what leaves the view, what stands for it, and when. Pure.
//!
//! ```text
//!  pace ── is it time? ─► plan ── what goes, is cut, stays ─┬─► prune: old outcomes are cut, no model is asked
//!                          ▲                                └─► text ─► the model's summary, or none
//!                  budget, scene                                         │
//!  log ─► carryover ── tables, by code ─┬─► parts ─► fit ─► compose ◄───────┘
//!      ─► material ── verbatim ─────────┘            └─► one `Compacted`, or why it gains nothing
//! ```
//!
//! `preview` runs the same functions and shows what they give. What is decided is stored with its texts in one
//! entry of the log, so that an old view never changes with a setting or a build. Who calls the model and commits
//! is the session.

mod budget;
mod carryover;
mod compose;
mod fit;
mod lost;
mod material;
pub mod pace;
mod parts;
mod plan;
mod preview;
mod prune;
mod scene;
mod text;
mod unknown;

pub use budget::Budget;
pub use compose::{Fate, Written, compacted, compacted_in, mutated, pins_too_large, tables};
pub use lost::{Forgotten, Kind, Lost, lost};
pub use parts::{CARRIED_HEAD, GOAL_HEAD, NO_ROOM_FOR_INSTRUCTIONS, REQUEST_HEAD, USER_HEAD, goal_words};
pub use plan::{Decision, Keep, NO_GAIN, Plan, Wish, can_shrink, decide, decided, through};
pub use preview::{Line, Preview, preview};
pub use prune::{due, pruned};
pub use scene::Scene;
pub use text::{extract, flat, pieces};

/// A compaction that does not shrink the view by a tenth is none: it would soon be needed again.
pub(crate) const GAIN_MIN_PERCENT: u64 = 10;

#[cfg(test)]
mod decision_tests;
#[cfg(test)]
mod quoting_tests;
#[cfg(test)]
mod recalled_tests;
#[cfg(test)]
mod talk;
#[cfg(test)]
mod tests;
