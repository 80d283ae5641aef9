//! Frames to the other side of a connection. The newest are kept after they were sent, because a socket that fails may lose
//! them: the next one continues after the frames that have arrived.

use std::collections::VecDeque;

use tokio_tungstenite::tungstenite::Utf8Bytes;

/// See the module. Frames are numbered from the beginning of the connection.
#[derive(Default)]
pub struct KeptFrames {
    frames: VecDeque<Utf8Bytes>,
    bytes: usize,
    /// Number of frames that are no longer kept.
    dropped: u64,
    /// Number of frames that a socket was given.
    sent: u64,
}

impl KeptFrames {
    pub fn put(&mut self, frame: Utf8Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// The next frame to send.
    pub fn next(&mut self) -> Option<Utf8Bytes> {
        let next = self.frames.get(self.sent_and_kept()).cloned()?;
        self.sent += 1;
        Some(next)
    }

    /// Continues after the first `arrived` frames. False if others are needed that are no longer kept, or if the other side
    /// can't have received as many.
    #[must_use]
    pub fn resume(&mut self, arrived: u64) -> bool {
        let may_resume = (self.dropped..=self.sent).contains(&arrived);
        if may_resume {
            self.sent = arrived;
        }
        may_resume
    }

    /// Drops the oldest frame, if it was sent.
    pub fn drop_oldest(&mut self) -> bool {
        let Some(frame) = self.frames.pop_front_if(|_| self.dropped < self.sent) else { return false };
        self.bytes -= frame.len();
        self.dropped += 1;
        true
    }

    /// Drops the oldest frames that were sent, while more bytes than this are kept.
    pub fn trim(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max && self.drop_oldest() {}
    }

    /// Drops all frames, sent or not.
    pub fn clear(&mut self) {
        self.dropped += self.frames.len() as u64;
        self.sent = self.dropped;
        self.frames.clear();
        self.bytes = 0;
    }

    /// Number of frames that were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes of all frames that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn unsent_bytes(&self) -> usize {
        self.frames.iter().skip(self.sent_and_kept()).map(|frame| frame.len()).sum()
    }

    /// Whether [`KeptFrames::drop_oldest`] would drop one.
    pub fn keeps_sent(&self) -> bool {
        self.dropped < self.sent
    }

    fn sent_and_kept(&self) -> usize {
        usize::try_from(self.sent - self.dropped).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(texts: &[&'static str]) -> KeptFrames {
        let mut frames = KeptFrames::default();
        texts.iter().for_each(|text| frames.put(Utf8Bytes::from_static(text)));
        frames
    }

    fn rest(frames: &mut KeptFrames) -> Vec<String> {
        std::iter::from_fn(|| frames.next()).map(|frame| frame.as_str().to_owned()).collect()
    }

    #[test]
    fn a_socket_continues_after_the_frames_that_have_arrived() {
        let mut frames = with(&["a", "b", "c"]);
        assert_eq!((frames.next(), frames.next()), (Some("a".into()), Some("b".into())));
        assert!(!frames.resume(3), "it can't have received what was not sent");
        assert_eq!(rest(&mut frames), ["c"], "nothing has changed");
        assert!(frames.resume(1));
        assert_eq!((rest(&mut frames), frames.sent()), (vec!["b".to_owned(), "c".to_owned()], 3));
        assert!(frames.resume(3));
        assert!(rest(&mut frames).is_empty(), "all have arrived");
    }

    #[test]
    fn only_frames_that_were_sent_are_dropped() {
        let mut frames = with(&["aaaa", "bbbb", "cccc"]);
        frames.trim(0);
        assert_eq!((frames.bytes(), frames.unsent_bytes(), frames.keeps_sent()), (12, 12, false));
        frames.next();
        frames.next();
        frames.trim(8);
        assert_eq!((frames.bytes(), frames.unsent_bytes(), frames.keeps_sent()), (8, 4, true));
        assert!(!frames.resume(0), "it is gone");
        assert!(frames.resume(1));
        assert!(!frames.drop_oldest(), "it is to be sent again");
        assert_eq!(rest(&mut frames), ["bbbb", "cccc"]);
    }

    #[test]
    fn after_all_were_dropped_later_ones_have_their_numbers() {
        let mut frames = with(&["a", "b"]);
        frames.next();
        frames.clear();
        frames.put("c".into());
        assert_eq!((frames.bytes(), frames.unsent_bytes()), (1, 1));
        assert_eq!((rest(&mut frames), frames.sent()), (vec!["c".to_owned()], 3));
        assert!(!frames.resume(1));
    }
}
