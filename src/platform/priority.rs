//! Thread priorities.

use std::io;

/// Lowers the calling thread's priority by this niceness. Does nothing on systems other than Linux, where only
/// processes have priorities.
pub fn lower_thread(niceness: i32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // On Linux, `None` is the calling thread.
        let now = rustix::process::getpriority_process(None)?;
        rustix::process::setpriority_process(None, now + niceness)?;
    }
    let _ = niceness;
    Ok(())
}
