//! The functions that depend on the operating system. All other crates are the same everywhere.
//!
//! | modules | what for |
//! | --- | --- |
//! | `blocking` | work that may block |
//! | `child_output`, `piped`, `pipe` | commands that run to their end, and commands with pipes |
//! | `group`, `reaper`, `stragglers` | end all processes of a command |
//! | `sealed` | programs that can't change before they run |
//! | `sandbox`, `launcher` | restrict what a command can access, and start sandboxed commands |
//! | `confinement` | compares how processes are confined |
//! | `local` | connects processes |
//! | `root`, `directories` | open paths below directories that can't be redirected |
//! | `disk`, `unnamed_file` | sync file systems, and create files without a name |
//! | `directory_watch`, `entry_watch`, `place_watch` | report which entries of a directory have changed, that files were replaced, and that they may have moved |
//! | `holder` | finds the process that holds a file lock |
//! | `process` | this process: its memory, its streams, and how it detaches from its parent |
//! | `program` | finds programs and the shell |
//! | `signals`, `terminal` | wait for signals without a runtime, and read keys without showing them |
//! | `memory_trim`, `library_threads` | return unused memory to the system; let threads of a library rest, and keep their files private |
//! | `os`, `file_uri` | extensions of the standard library; paths as URIs |
//! | `timing` | spans of work in the log |
//!
//! Policy is elsewhere.
//!
//! `linux` has what only Linux offers. `portable` does without it, for macOS and, with the feature `portable`, to be
//! tested on Linux. `windows` replaces the modules that are for Unix; it was never run on Windows.

pub mod blocking;
pub mod child_output;
#[cfg_attr(windows, path = "windows/directories.rs")]
mod directories;
#[cfg_attr(windows, path = "windows/disk.rs")]
pub mod disk;
pub mod file_uri;
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
pub mod program;
#[cfg_attr(windows, path = "windows/reaper.rs")]
pub mod reaper;
pub mod root;
pub mod sandbox;
#[cfg_attr(windows, path = "windows/signals.rs")]
pub mod signals;
#[cfg_attr(windows, path = "windows/terminal.rs")]
pub mod terminal;
pub mod timing;

#[cfg_attr(all(target_os = "linux", not(feature = "portable")), path = "linux/mod.rs")]
#[cfg_attr(windows, path = "windows/mod.rs")]
#[cfg_attr(not(any(windows, all(target_os = "linux", not(feature = "portable")))), path = "portable/mod.rs")]
mod system;

/// Whether commands have no sandbox of Linux, and what only `/proc` shows is not known.
pub const IS_PORTABLE: bool = cfg!(not(all(target_os = "linux", not(feature = "portable"))));

/// The environment variable with the mark of a command's processes.
pub const COMMAND_VARIABLE: &str = "EPITOME_COMMAND";

pub use system::{
    confinement, directory_watch, entry_watch, holder, launcher, library_threads, memory_trim, place_watch,
    sealed,
};
