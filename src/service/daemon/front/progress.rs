//! Counts the bytes that a socket moves, by which a slow transfer differs from a peer that has gone.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

/// A socket whose bytes are counted.
pub struct CountedSocket<S> {
    inner: S,
    progress: SocketProgress,
}

/// The bytes that a socket has moved. Clones count the same socket.
#[derive(Clone, Default)]
pub struct SocketProgress {
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    /// The bytes of `written` that were pings.
    pings: Arc<AtomicU64>,
}

impl SocketProgress {
    pub fn count<S>(&self, inner: S) -> CountedSocket<S> {
        CountedSocket { inner, progress: self.clone() }
    }

    /// Waits for a write. `None` if the peer takes nothing for this long.
    pub async fn while_writing<T>(&self, limit: Duration, write: impl Future<Output = T>) -> Option<T> {
        while_growing(limit, || self.written.load(Ordering::Relaxed), write).await
    }

    /// Waits for the write of a ping. Nothing has moved because of it: the system takes it although the peer has gone.
    pub async fn while_pinging<T>(&self, limit: Duration, write: impl Future<Output = T>) -> Option<T> {
        let before = self.written.load(Ordering::Relaxed);
        let done = self.while_writing(limit, write).await;
        let written = self.written.load(Ordering::Relaxed).wrapping_sub(before);
        self.pings.fetch_add(written, Ordering::Relaxed);
        done
    }

    /// Waits for a message. `None` if nothing moves for this long. A peer whose bytes are slow to arrive sends no more
    /// than these, and one that is sent a long message can't answer a ping behind it.
    pub async fn while_moving<T>(&self, limit: Duration, read: impl Future<Output = T>) -> Option<T> {
        let count = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let moved = || count(&self.read) + count(&self.written).wrapping_sub(count(&self.pings));
        while_growing(limit, moved, read).await
    }
}

async fn while_growing<T>(
    limit: Duration,
    count: impl Fn() -> u64,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(work);
    loop {
        let before = count();
        match timeout(limit, &mut work).await {
            Ok(done) => return Some(done),
            Err(_) if count() == before => return None,
            Err(_) => {}
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        self.progress.read.fetch_add(bytes as u64, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &polled {
            self.progress.written.fetch_add(*count as u64, Ordering::Relaxed);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Regression: a message that took longer than the limit was cut, and sent again from its beginning, for ever.
    #[tokio::test(start_paused = true)]
    async fn a_slow_transfer_is_no_peer_that_has_gone() {
        let (near, mut far) = tokio::io::duplex(16);
        let progress = SocketProgress::default();
        let mut near = progress.count(near);
        let reader = tokio::spawn(async move {
            let mut byte = [0];
            for _ in 0..100 {
                sleep(Duration::from_secs(1)).await;
                far.read_exact(&mut byte).await.expect("it is sent");
            }
            far
        });
        assert!(progress.while_writing(LIMIT, near.write_all(&[7; 100])).await.is_some());
        let _far = reader.await.expect("no panic");
        assert!(progress.while_writing(LIMIT, near.write_all(&[7; 100])).await.is_none());
        assert!(progress.while_moving(LIMIT, near.read_u8()).await.is_none());
    }

    /// Regression: the machine of a client was gone. Its connection was kept for a quarter of an hour, until the system gave
    /// it up, because the pings that it was sent counted as movement.
    #[tokio::test(start_paused = true)]
    async fn pings_are_no_movement() {
        let (near, _far) = tokio::io::duplex(1024);
        let progress = SocketProgress::default();
        let (mut reading, mut writing) = split(progress.count(near));
        let pings = async {
            for _ in 0..10 {
                sleep(LIMIT / 3).await;
                let written = progress.while_pinging(LIMIT, writing.write_all(&[0x89, 0])).await;
                assert!(written.is_some_and(|written| written.is_ok()));
            }
        };
        tokio::select! {
            received = progress.while_moving(LIMIT, reading.read_u8()) => assert!(received.is_none()),
            () = pings => panic!("a peer that is silent is waited for as long as it is sent pings"),
        }
    }
}
