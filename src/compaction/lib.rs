//! Compaction: decides when a view is shortened, what leaves it, and what replaces that. Pure.
//!
//! ```text
//!  pace ── is it due? ─► plan ── what to drop, cut, keep ─┬─► prune: cuts old outcomes, without a model
//!                          ▲                              └─► text ─► the model's summary, if any
//!                  budget, scene                                        │
//!  log ─► carryover ── computed tables ─┬─► parts ─► fit ─► compose ◄───┘
//!      ─► material ── verbatim quotes ──┘            └─► one `Compacted`, or why nothing is gained
//! ```
//!
//! `preview` runs the same functions and shows their results. The result is one entry of the log that
//! contains all of its texts, so an old view never changes with a setting or a new build. The session calls
//! the model and commits the entry.

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

/// A compaction that shrinks the view by less than a tenth is not made: the next one would be due soon.
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
