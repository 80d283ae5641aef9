//! Thread priorities.

use std::io;

/// Lowers the calling thread's priority by this niceness. Does nothing on systems other than Linux, where only
/// processes have priorities.
pub fn lower_thread(niceness: i32) -> io::Result<()> {
    super::system::lower_thread(niceness)
}
