//! Pipes between this process and its children: this process's ends belong to the runtime.

use std::io;

use rustix::io::Errno;

use super::os::{AsFd, OwnedFd};

pub use tokio::net::unix::pipe::{Receiver, Sender};

/// Returns an end for this process and one for a child, which reads from it.
pub fn to_child() -> io::Result<(Sender, OwnedFd)> {
    let (theirs, ours) = io::pipe()?;
    Ok((Sender::from_owned_fd(ours.into())?, theirs.into()))
}

/// Returns an end for this process and one for a child, which writes to it.
pub fn from_child() -> io::Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = io::pipe()?;
    Ok((Receiver::from_owned_fd(ours.into())?, theirs.into()))
}

/// Reads the data that is available in a pipe, even if the runtime has not been notified of it yet.
pub fn read_available(pipe: &Receiver, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match rustix::io::read(pipe.as_fd(), &mut *buffer) {
            Err(Errno::INTR) => {}
            read => return Ok(read?),
        }
    }
}
