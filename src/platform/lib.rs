//! Linux specifics.
//!
//! `group`, `reaper` and `stragglers` end all processes of a command; `sandbox` restricts what a command can access;
//! `process` detaches a process and reports its memory; `lean` returns unused memory to the OS; `signals` waits for signals without a runtime; `holder` finds the process
//! that holds a file lock. Policy is elsewhere.

pub mod group;
pub mod holder;
pub mod lean;
pub mod process;
pub mod reaper;
pub mod sandbox;
pub mod signals;
mod stragglers;
