//! Compaction: what leaves the view, what stands for it, and when. Pure.
//!
//! ```text
//!  pace ── is it time? ─► plan ── what goes, is cut, stays ─┬─► prune: old outcomes are cut, no model is asked
//!                          ▲                                └─► text ─► the model's summary, or none
//!                        budget                                            │
//!  log ─► ledger ── facts, by code ─────────────────────────► compose ◄────┘
//!                                                               └─► one `Compacted`, or why it gains nothing
//! ```
//!
//! What is decided is stored with its texts in one entry of the log, so that an old view never changes with
//! a setting or a build. Who calls the model and commits is the session.

mod budget;
mod compose;
pub mod ledger;
pub mod pace;
mod plan;
mod prune;
mod text;

pub use budget::Budget;
pub use compose::{GOAL_HEAD, Written, compacted, goal_words, mutated, pins_too_large};
pub use plan::{Decision, Keep, NO_GAIN, Plan, Wish, can_shrink, decide, pruned, through};
pub use text::{extract, flat, pieces};
pub fn due(r: &crate::tokens::Ruler, t: &crate::thread::Thread, b: &Budget) -> Option<Vec<crate::thread::Mask>> { prune::enough(r, t, b) }

/// A compaction that does not shrink the view by a tenth is none: it would soon be needed again.
pub(crate) const GAIN_MIN_PERCENT: u64 = 10;

#[cfg(test)]
mod tests;
