//! Sessions from outside, without an editor's wire: steering, cancels, panics, compaction in small
//! windows, and what survives a restart.

mod child;
mod compaction;
// `tests/full_disk.rs` uses the rest of it.
#[allow(dead_code)]
mod desk;
mod guards;
mod steering;
mod turns;
