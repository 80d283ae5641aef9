//! Epitome's ends of a process's pipes: buffered input, and bounded output.

use std::future::pending;
use std::io;

use epitome_platform::pipe;
use epitome_thread::terminal_text::plain;
use tokio::io::AsyncWriteExt;

/// Maximum bytes read from each stream after the process has ended: the capacity of the largest pipe
/// available to unprivileged users. More can only come from a child that keeps writing.
const LEFTOVER_BYTES_MAX: usize = 1024 * 1024;

/// Read buffer size in bytes: the size of a Linux pipe.
pub(super) const READ_BYTES: usize = 64 * 1024;

/// Data to be written to a process.
pub(super) struct Feed {
    /// `None` once it is closed.
    pipe: Option<pipe::Sender>,
    bytes: Vec<u8>,
    at: usize,
}

impl Feed {
    pub fn new(pipe: pipe::Sender, bytes: Vec<u8>) -> Feed {
        let mut feed = Feed { pipe: Some(pipe), bytes, at: 0 };
        feed.close_when_done();
        feed
    }

    /// Writes as much as the pipe accepts; never resolves if there is nothing left to write.
    pub async fn write(&mut self) {
        let Some(pipe) = &mut self.pipe else { return pending().await };
        match pipe.write(&self.bytes[self.at..]).await {
            Ok(written) => self.at += written,
            // The process closed its end: it does not need the rest.
            Err(_) => self.at = self.bytes.len(),
        }
        self.close_when_done();
    }

    fn close_when_done(&mut self) {
        if self.at == self.bytes.len() {
            self.pipe = None;
        }
    }
}

/// The part of a stream that is kept, with its maximum size in bytes.
#[derive(Clone, Copy)]
pub(super) enum KeptPart {
    Beginning(usize),
    End(usize),
}

/// One output stream of a process.
pub(super) struct OutputStream {
    /// `None` once the other end is closed.
    pipe: Option<pipe::Receiver>,
    keep: KeptPart,
    pub kept: Vec<u8>,
    pub cut: bool,
}

impl OutputStream {
    pub fn new(pipe: pipe::Receiver, keep: KeptPart) -> OutputStream {
        OutputStream { pipe: Some(pipe), keep, kept: Vec::new(), cut: false }
    }

    /// Waits for data or the end of the stream. Never resolves after the end was read.
    pub async fn ready(&self) -> io::Result<()> {
        match &self.pipe {
            Some(pipe) => pipe.readable().await,
            None => pending().await,
        }
    }

    /// Reads once after `ready`.
    pub fn take(&mut self, ready: io::Result<()>, buffer: &mut [u8]) {
        let Some(pipe) = &self.pipe else { return };
        match ready.and_then(|()| pipe.try_read(buffer)) {
            Ok(0) => self.pipe = None,
            Ok(length) => self.put(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.pipe = None,
        }
    }

    /// Reads the current content of the pipe.
    pub fn take_leftover(&mut self, buffer: &mut [u8]) {
        let mut taken = 0;
        while let Some(pipe) = &self.pipe
            && taken < LEFTOVER_BYTES_MAX
        {
            match pipe::read_available(pipe, buffer) {
                Ok(length @ 1..) => {
                    taken += length;
                    self.put(&buffer[..length]);
                }
                Ok(0) | Err(_) => self.pipe = None,
            }
        }
        self.trim(0);
    }

    /// The kept bytes as text, without the colors of a program.
    pub fn text(&self) -> String {
        plain(String::from_utf8_lossy(&self.kept).into_owned())
    }

    fn put(&mut self, bytes: &[u8]) {
        match self.keep {
            KeptPart::Beginning(most) => {
                let room = most - self.kept.len();
                self.cut |= bytes.len() > room;
                self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            KeptPart::End(most) => {
                self.kept.extend_from_slice(bytes);
                // With slack, so that a long stream is not moved for every piece.
                self.trim(most);
            }
        }
    }

    /// Drops the oldest bytes if the kept ones exceed the limit by more than `slack`.
    fn trim(&mut self, slack: usize) {
        if let KeptPart::End(most) = self.keep
            && self.kept.len() > most + slack
        {
            self.kept.drain(..self.kept.len() - most);
            self.cut = true;
        }
    }
}
