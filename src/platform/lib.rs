//! What is Linux's own, and would be done otherwise on another system.
//!
//! `group`, `reaper` and `stragglers` end what was started, however it hides; `sandbox` holds a command to what it may
//! touch; `lean` returns memory that nobody uses; `signals` takes signals without a runtime; `holder` tells who has a
//! file locked. What is decided by all this is elsewhere.

pub mod group;
pub mod holder;
pub mod lean;
pub mod reaper;
pub mod sandbox;
pub mod signals;
mod stragglers;
