//! The console of this process.

use std::fs::File;
use std::io;
use std::mem::zeroed;
use std::os::windows::io::AsRawHandle;

use windows_sys::Win32::System::Console::{
    CONSOLE_SCREEN_BUFFER_INFO, ENABLE_ECHO_INPUT, ENABLE_LINE_INPUT, ENABLE_PROCESSED_INPUT,
    FlushConsoleInputBuffer, GetConsoleMode, GetConsoleScreenBufferInfo, SetConsoleMode,
};

/// The keys of the console, even if standard input is something else.
pub fn keys() -> io::Result<File> {
    File::options().read(true).write(true).open("CONIN$")
}

/// The screen of the console.
pub fn screen() -> io::Result<File> {
    File::options().read(true).write(true).open("CONOUT$")
}

/// The width of the console in columns.
pub fn columns() -> Option<usize> {
    let screen = screen().ok()?;
    // SAFETY: a structure of integers, which the call fills.
    unsafe {
        let mut info: CONSOLE_SCREEN_BUFFER_INFO = zeroed();
        let is_known = GetConsoleScreenBufferInfo(screen.as_raw_handle(), &mut info) != 0;
        let columns = info.srWindow.Right - info.srWindow.Left + 1;
        usize::try_from(columns).ok().filter(|_| is_known)
    }
}

/// Discards keys that were typed and not read.
pub fn forget_typed(keys: &File) {
    // SAFETY: the file is open.
    unsafe { FlushConsoleInputBuffer(keys.as_raw_handle()) };
}

/// Disables echo and line buffering of a console until dropped. Ctrl-C is read as a key.
pub struct HiddenInput {
    keys: File,
    before: u32,
}

impl HiddenInput {
    /// Discards earlier input.
    pub fn begin(keys: &File) -> io::Result<HiddenInput> {
        let mut before = 0;
        let hides = ENABLE_ECHO_INPUT | ENABLE_LINE_INPUT | ENABLE_PROCESSED_INPUT;
        // SAFETY: the file is open, and the result is written to a local variable.
        let is_hidden = unsafe {
            GetConsoleMode(keys.as_raw_handle(), &mut before) != 0
                && SetConsoleMode(keys.as_raw_handle(), before & !hides) != 0
        };
        if !is_hidden {
            return Err(io::Error::last_os_error());
        }
        forget_typed(keys);
        Ok(HiddenInput { keys: keys.try_clone()?, before })
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // SAFETY: the file is open. It fails if the console is gone.
        unsafe { SetConsoleMode(self.keys.as_raw_handle(), self.before) };
    }
}
