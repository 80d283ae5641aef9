//! The parts that are different on Windows. These files replace the crate's own modules that are for Unix. There is no
//! sandbox, and the functions that `absent` lacks are missing as well.

pub mod security;
pub mod stream;

#[path = "../portable/absent.rs"]
mod absent;
#[path = "../portable/library_threads.rs"]
pub mod library_threads;

pub use absent::{confinement, directory_watch, entry_watch, holder, memory_trim, place_watch, sealed};

/// Sandboxes, which Windows does not have.
pub mod sandbox {
    use crate::sandbox::Support;

    /// The sandbox of a system that has none.
    pub const NONE: &str = "there is none for Windows yet";

    pub fn probe() -> Support {
        Support::default()
    }
}

/// The launcher of sandboxed commands, which Windows does not have.
pub mod launcher {
    /// The hidden argument of the helper process that only Linux has.
    pub const LAUNCH_ARGUMENT: &str = "__launch";

    pub fn launch_main() -> i32 {
        eprintln!("epitome: this system needs no helper process to start commands");
        2
    }
}
