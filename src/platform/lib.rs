//! What depends on the operating system. All other crates are the same everywhere.
//!
//! `blocking` runs work that may block; `child_output` runs a command to its end; `group`, `reaper` and `stragglers` end
//! all processes of a command; `launcher` starts sandboxed ones; `piped` starts one
//! with pipes, which `pipe` makes; `local` connects processes; `os` has extensions of the standard library; `confinement` compares how processes are confined; `process`
//! detaches a process and reports its memory; `sandbox` restricts what a command can access; `memory_trim` returns
//! unused memory to the OS; `signals` waits for signals without a runtime; `holder` finds the process that holds a
//! file lock; `root` opens paths below directories that can't be redirected; `terminal` reads keys without showing them; `unnamed_file` creates files without a
//! name; `disk` syncs file systems; `entry_watch` reports replaced files;
//! `late_timers` lets a library's polling threads rest. Policy is elsewhere.
//!
//! `linux` has what only Linux offers. `portable` does without it, for macOS and, with the feature `portable`, to be
//! tested on Linux. `windows` replaces the modules that are for Unix; it was never run on Windows.

pub mod blocking;
pub mod child_output;
#[cfg_attr(windows, path = "windows/disk.rs")]
pub mod disk;
pub mod group;
#[cfg_attr(windows, path = "windows/leader.rs")]
mod leader;
#[cfg_attr(windows, path = "windows/local.rs")]
pub mod local;
#[cfg(unix)]
mod mark;
#[cfg_attr(windows, path = "windows/os.rs")]
pub mod os;
#[cfg_attr(windows, path = "windows/pipe.rs")]
pub mod pipe;
pub mod piped;
#[cfg_attr(windows, path = "windows/process.rs")]
pub mod process;
#[cfg_attr(windows, path = "windows/reaper.rs")]
pub mod reaper;
#[cfg_attr(windows, path = "windows/root.rs")]
pub mod root;
pub mod sandbox;
#[cfg_attr(windows, path = "windows/signals.rs")]
pub mod signals;
#[cfg_attr(windows, path = "windows/terminal.rs")]
pub mod terminal;

#[cfg_attr(all(target_os = "linux", not(feature = "portable")), path = "linux/mod.rs")]
#[cfg_attr(windows, path = "windows/mod.rs")]
#[cfg_attr(not(any(windows, all(target_os = "linux", not(feature = "portable")))), path = "portable/mod.rs")]
mod system;

/// Whether commands have no sandbox of Linux, and what only `/proc` shows is not known.
pub const IS_PORTABLE: bool = cfg!(not(all(target_os = "linux", not(feature = "portable"))));

/// The environment variable with the mark of a command's processes.
pub const COMMAND_VARIABLE: &str = "EPITOME_COMMAND";

pub use system::{confinement, entry_watch, holder, late_timers, launcher, memory_trim};
