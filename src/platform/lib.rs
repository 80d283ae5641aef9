//! Linux specifics.
//!
//! `group`, `reaper` and `stragglers` end all processes of a command; `sandbox` restricts what a command can access;
//! `lean` returns unused memory to the OS; `signals` waits for signals without a runtime; `holder` finds the process
//! that holds a file lock; `unnamed_file` creates files without a name; `disk` opens files without following links
//! and syncs file systems; `priority` lowers that of a thread. Policy is elsewhere.

pub mod disk;
pub mod group;
pub mod holder;
pub mod lean;
pub mod priority;
pub mod reaper;
pub mod sandbox;
pub mod signals;
mod stragglers;
pub mod unnamed_file;
