//! The terminal of this process.

use std::fs::File;
use std::io;

use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcgetwinsize,
    tcsetattr,
};

const TERMINAL: &str = "/dev/tty";

/// The keys of the terminal, even if standard input is something else.
pub fn keys() -> io::Result<File> {
    File::open(TERMINAL)
}

/// The screen of the terminal.
pub fn screen() -> io::Result<File> {
    File::options().write(true).open(TERMINAL)
}

/// The width of the terminal in columns.
pub fn columns() -> Option<usize> {
    let size = tcgetwinsize(io::stderr()).or_else(|_| tcgetwinsize(io::stdout())).ok()?;
    Some(size.ws_col.into())
}

/// Discards keys that were typed and not read.
pub fn forget_typed(keys: &File) {
    // If this fails, an early line counts as the answer, as in most programs.
    let _ = tcflush(keys, QueueSelector::IFlush);
}

/// Disables echo and line buffering of a terminal until dropped. Ctrl-C is read as a key.
pub struct HiddenInput {
    keys: File,
    before: Termios,
}

impl HiddenInput {
    /// Discards earlier input.
    pub fn begin(keys: &File) -> io::Result<HiddenInput> {
        let before = tcgetattr(keys)?;
        let mut hidden = before.clone();
        // Without `ISIG`, Ctrl-C is read as a key: the signal would end the process without restoring the terminal.
        hidden.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        hidden.special_codes[SpecialCodeIndex::VMIN] = 1;
        hidden.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(keys, OptionalActions::Flush, &hidden)?;
        Ok(HiddenInput { keys: keys.try_clone()?, before })
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // Errors are ignored: the terminal is gone.
        let _ = tcsetattr(&self.keys, OptionalActions::Flush, &self.before);
    }
}
