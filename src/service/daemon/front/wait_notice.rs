//! The notice that a window shows while it waits for a daemon, once in each session. Pure.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::handshake::RETURN_TIME_MAX;
use epitome_acp::model::AcpVersion;
use epitome_acp::updates::waiting_line;

/// The last wait that the user was shown.
#[derive(Debug, Default)]
pub struct WaitNotice(Option<ShownWait>);

#[derive(Debug)]
struct ShownWait {
    /// The reason for the wait.
    text: String,
    began: Instant,
    is_over: bool,
    /// The sessions that show it.
    sessions: BTreeSet<String>,
}

impl WaitNotice {
    /// A wait begins. Sessions that show the same because of an earlier wait a short time before are not shown it again.
    pub fn begin(&mut self, text: &str, running: &BTreeSet<String>, now: Instant) {
        let last = self
            .0
            .take()
            .filter(|last| last.text == text && now.saturating_duration_since(last.began) <= RETURN_TIME_MAX);
        let sessions = last.map(|last| &last.sessions & running).unwrap_or_default();
        self.0 = Some(ShownWait { text: text.to_owned(), began: now, is_over: false, sessions });
    }

    /// There is a daemon again, or none is waited for any longer.
    pub fn end(&mut self) {
        if let Some(wait) = &mut self.0 {
            wait.is_over = true;
        }
    }

    pub fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(|wait| wait.is_over)
    }

    /// The lines that show the reason for the wait in those of the sessions that don't show it.
    pub fn show(&mut self, sessions: impl IntoIterator<Item = String>, version: AcpVersion) -> Vec<u8> {
        let Some(wait) = &mut self.0 else { return Vec::new() };
        let text = &wait.text;
        let new = sessions.into_iter().filter(|session| wait.sessions.insert(session.clone()));
        new.flat_map(|session| waiting_line(&session, text, version)).collect()
    }
}
