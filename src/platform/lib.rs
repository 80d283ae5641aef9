//! Linux specifics.
//!
//! `blocking` runs work that may block; `child_output` runs a command to its end; `group`, `reaper` and `stragglers` end all processes of a command; `launcher`
//! starts sandboxed ones; `piped` starts one with pipes; `confinement` compares how processes are confined; `process`
//! detaches a process and reports its memory; `sandbox` restricts what a command can access; `memory_trim` returns
//! unused memory to the OS; `signals` waits for signals without a runtime; `holder` finds the process that holds a
//! file lock; `root` opens paths below directories that can't be redirected; `unnamed_file` creates files without a
//! name; `disk` syncs file systems; `late_timers` lets a library's polling threads rest. Policy is elsewhere.

pub mod blocking;
pub mod child_output;
pub mod confinement;
pub mod disk;
pub mod group;
pub mod holder;
pub mod late_timers;
pub mod launcher;
pub mod memory_trim;
pub mod piped;
pub mod process;
pub mod reaper;
pub mod root;
pub mod sandbox;
pub mod signals;
mod stragglers;
pub mod unnamed_file;

pub use stragglers::VARIABLE as COMMAND_VARIABLE;
