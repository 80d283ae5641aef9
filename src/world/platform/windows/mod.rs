//! What is different on Windows. The files here have the functions of the crate's own that are for Unix. There is no
//! sandbox, and what `absent` lacks is lacking as well.

pub mod security;
pub mod stream;

#[path = "../portable/absent.rs"]
mod absent;
#[path = "../portable/late_timers.rs"]
pub mod late_timers;

pub use absent::{confinement, directory_watch, entry_watch, holder, memory_trim};

/// Sandboxes, of which there is none.
pub mod sandbox {
    use crate::sandbox::Support;

    /// The sandbox of a system that has none.
    pub const NONE: &str = "there is none for Windows yet";

    pub fn probe() -> Support {
        Support::default()
    }
}

/// Starts sandboxed commands, of which there are none.
pub mod launcher {
    /// The hidden argument of the helper process that only Linux has.
    pub const LAUNCH_ARGUMENT: &str = "__launch";

    pub fn launch_main() -> i32 {
        eprintln!("epitome: this system needs no helper process to start commands");
        2
    }
}
