//! Pipes between this process and its children: this process's ends belong to the runtime, those of children are not
//! overlapped, because programs don't expect that of their standard streams.

use std::io;
use std::os::windows::io::IntoRawHandle;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::windows::named_pipe::NamedPipeServer;

use super::local::{PipeUse, with_child};
use super::os::OwnedFd;

/// The end that this process writes to.
#[derive(Debug)]
pub struct Sender(NamedPipeServer);

/// The end that this process reads from.
#[derive(Debug)]
pub struct Receiver(NamedPipeServer);

/// Returns an end for this process and one for a child, which reads from it.
pub fn to_child() -> io::Result<(Sender, OwnedFd)> {
    let (ours, theirs) = with_child(PipeUse::ToChild)?;
    Ok((Sender(registered(ours)?), theirs))
}

/// Returns an end for this process and one for a child, which writes to it.
pub fn from_child() -> io::Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = with_child(PipeUse::FromChild)?;
    Ok((Receiver(registered(ours)?), theirs))
}

fn registered(pipe: OwnedFd) -> io::Result<NamedPipeServer> {
    // SAFETY: it is a pipe for overlapped operations, and the runtime owns the handle.
    unsafe { NamedPipeServer::from_raw_handle(pipe.into_raw_handle()) }
}

/// Reads the data that the runtime has of a pipe.
pub fn read_available(pipe: &Receiver, buffer: &mut [u8]) -> io::Result<usize> {
    pipe.try_read(buffer)
}

impl Receiver {
    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await
    }

    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl AsyncRead for Receiver {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Sender {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
