//! Compaction: decides when a view is shortened, which entries leave it, and what replaces them. Pure.
//!
//! ```text
//!  backoff ── is it due? ─► plan ── what to drop, cut, keep ─┬─► prune: cuts old outcomes, without a model
//!                             ▲                              └─► text ─► the model's summary, if any
//!                     budget, input                                        │
//!  log ─► carryover ── computed tables ─┬─► parts ─► fit ─► compose ◄──────┘
//!      ─► material ── verbatim quotes ──┘            └─► one `Compacted`, or why nothing is gained
//! ```
//!
//! `preview` runs the same functions and shows their results. The result is one entry of the log that contains all of
//! its texts, so an old view never changes with a setting or a new build. The session calls the model and commits the
//! entry.

mod author;
pub mod backoff;
mod budget;
mod calls;
mod carryover;
mod compose;
mod fit;
mod input;
mod left_by_hooks;
mod lost;
mod material;
mod parts;
mod plan;
mod preview;
mod prune;
mod refusal;
mod text;
mod unfold;
mod wording;

pub use budget::Budget;
pub use carryover::LostKind;
pub use compose::{EntryTreatment, compacted, mutated, pins_too_large, tables};
pub use input::{CompactionInput, SummaryReader};
pub use lost::{Forgotten, LostContent, lost};
pub use parts::{NO_ROOM_FOR_INSTRUCTIONS, Summary, goal_words};
pub use plan::{CompactionDecision, CompactionPlan, CompactionRequest, KeptTail, decide};
pub use preview::{Preview, PreviewLine, preview};
pub use prune::{due, pruned};
pub use refusal::CompactionRefusal;
pub use text::{CUT_OFF, extract, flat, is_tagged, pieces};
pub use unfold::{UnfoldedMessage, unfold};
pub use wording::{CARRIED_HEAD, GOAL_HEAD, PINS_HEAD, REQUEST_HEAD, USER_HEAD};

/// A compaction that shrinks the view by less than a tenth is not made: the next one would be due soon.
pub(crate) const GAIN_MIN_PERCENT: u64 = 10;

/// An automatic compaction should leave at most this share, in percent, of the view. With less room, the next one would
/// be due after a few rounds, and each costs a call with a full window.
pub(crate) const LEFT_PERCENT_MAX: u64 = 75;

#[cfg(test)]
mod decision_tests;
#[cfg(test)]
mod earlier_tests;
#[cfg(test)]
mod quoting_tests;
#[cfg(test)]
mod recalled_tests;
#[cfg(test)]
mod tests;
