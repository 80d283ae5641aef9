//! A request body in pieces, as encoded; sent with a content length and without concatenating the pieces.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

/// Adjacent smaller pieces are joined up to this many bytes, so that a single cache mark doesn't cost a packet.
const FRAME_BYTES_MIN: usize = 16 * 1024;

/// Larger pieces are sent in slices of this many bytes, because the client keeps a full frame in memory until the peer
/// has accepted it.
const FRAME_BYTES_MAX: usize = 256 * 1024;

/// The pieces that remain to be sent. The encoder shares the bytes, so that a retry sends exactly the same.
pub(super) struct BodyPieces {
    pieces: VecDeque<Bytes>,
    left: u64,
}

impl BodyPieces {
    pub(super) fn new(pieces: &[Bytes]) -> BodyPieces {
        let pieces: VecDeque<Bytes> = pieces.iter().filter(|piece| !piece.is_empty()).cloned().collect();
        let left = pieces.iter().map(|piece| piece.len() as u64).sum();
        BodyPieces { pieces, left }
    }

    fn next_frame(&mut self) -> Option<Bytes> {
        let mut first = self.pieces.pop_front()?;
        if first.len() > FRAME_BYTES_MAX {
            let frame = first.split_to(FRAME_BYTES_MAX);
            self.pieces.push_front(first);
            return Some(frame);
        }
        let fits = |joined: usize, next: Option<&Bytes>| {
            next.is_some_and(|next| joined + next.len() <= FRAME_BYTES_MIN)
        };
        if !fits(first.len(), self.pieces.front()) {
            return Some(first);
        }
        let mut joined = BytesMut::with_capacity(FRAME_BYTES_MIN);
        joined.extend_from_slice(&first);
        while fits(joined.len(), self.pieces.front())
            && let Some(next) = self.pieces.pop_front()
        {
            joined.extend_from_slice(&next);
        }
        Some(joined.freeze())
    }
}

impl Body for BodyPieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = self.next_frame();
        self.left -= frame.as_ref().map_or(0, |frame| frame.len() as u64);
        Poll::Ready(frame.map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    /// Exact, so that a content length is sent: llama.cpp and old proxies don't accept chunked bodies.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(pieces: &[Bytes]) -> Vec<Bytes> {
        let mut body = BodyPieces::new(pieces);
        std::iter::from_fn(|| body.next_frame()).collect()
    }

    #[test]
    fn small_pieces_are_joined_and_large_ones_are_not_copied() {
        let large = Bytes::from(vec![b'x'; FRAME_BYTES_MAX + 1]);
        let frames = frames(&[Bytes::from_static(b"{"), Bytes::from_static(b"a"), large.clone()]);
        let lengths: Vec<usize> = frames.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [2, FRAME_BYTES_MAX, 1]);
        assert_eq!(frames[1].as_ptr(), large.as_ptr());
    }

    proptest! {
        #[test]
        fn frames_concatenate_to_the_pieces(lengths in prop::collection::vec(0usize..40_000, 0..20)) {
            let pieces: Vec<Bytes> = (0u8..).zip(lengths).map(|(byte, length)| vec![byte; length].into()).collect();
            let frames = frames(&pieces);
            prop_assert!(frames.iter().all(|frame| !frame.is_empty() && frame.len() <= FRAME_BYTES_MAX));
            prop_assert_eq!(frames.concat(), pieces.concat());
        }
    }
}
