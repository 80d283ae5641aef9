//! Numbers the actions of all channels, and keeps the last ones for clients that reconnect.

use std::collections::VecDeque;

use ahp::ahp_types::actions::{ActionEnvelope, ActionOrigin, StateAction};
use jiff::Timestamp;
use serde_json::value::{RawValue, to_raw_value};

/// Bytes of actions that are kept.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

struct KeptAction {
    number: u64,
    channel: String,
    envelope: Box<RawValue>,
}

pub struct ActionLog {
    last: u64,
    kept: VecDeque<KeptAction>,
    bytes: usize,
}

impl ActionLog {
    /// Numbers begin with the time, so that a client of an earlier host has seen lower ones than this host's.
    pub fn new(now: Timestamp) -> ActionLog {
        ActionLog {
            last: u64::try_from(now.as_millisecond()).unwrap_or_default(),
            kept: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The number of the last action.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Numbers an action and returns its envelope, which is not kept.
    pub fn envelope(
        &mut self,
        channel: &str,
        action: StateAction,
        origin: Option<ActionOrigin>,
        rejection_reason: Option<String>,
    ) -> Box<RawValue> {
        self.last += 1;
        let channel = channel.to_owned();
        let envelope = ActionEnvelope { channel, action, server_seq: self.last, origin, rejection_reason };
        to_raw_value(&envelope).unwrap_or_else(|error| {
            tracing::error!(%error, "an action could not be written as JSON");
            RawValue::NULL.to_owned()
        })
    }

    /// Keeps the last envelope.
    pub fn keep(&mut self, channel: &str, envelope: Box<RawValue>) {
        self.bytes += envelope.get().len();
        self.kept.push_back(KeptAction { number: self.last, channel: channel.to_owned(), envelope });
        while self.bytes > KEPT_BYTES_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            self.bytes -= oldest.envelope.get().len();
        }
    }

    /// The envelopes of these channels after a number; `None` if some of them are no longer kept, or if this host has
    /// not given this number.
    pub fn since(&self, number: u64, channels: &[String]) -> Option<Vec<&RawValue>> {
        let oldest = self.kept.front().map_or(self.last + 1, |kept| kept.number);
        if number > self.last || number + 1 < oldest {
            return None;
        }
        let missed = self.kept.iter().filter(|kept| kept.number > number && channels.contains(&kept.channel));
        Some(missed.map(|kept| &*kept.envelope).collect())
    }
}

#[cfg(test)]
mod tests {
    use ahp::ahp_types::actions::ChatActivityChangedAction;

    use super::*;

    fn put(log: &mut ActionLog, channel: &str, text: &str) {
        let activity = Some(text.to_owned());
        let action = StateAction::ChatActivityChanged(ChatActivityChangedAction { activity });
        let envelope = log.envelope(channel, action, None, None);
        log.keep(channel, envelope);
    }

    #[test]
    fn a_client_gets_what_it_missed_if_all_of_it_is_kept() {
        let mut log = ActionLog::new(Timestamp::UNIX_EPOCH);
        let channels = ["a".to_owned()];
        let missed = |log: &ActionLog, number| log.since(number, &channels).map(|missed| missed.len());
        assert_eq!((missed(&log, 0), missed(&log, 1)), (Some(0), None), "nothing happened yet");
        for channel in ["a", "b", "a"] {
            put(&mut log, channel, "x");
        }
        assert_eq!(
            [0, 1, 2, 3, 4].map(|number| missed(&log, number)),
            [Some(2), Some(1), Some(1), Some(0), None]
        );
        put(&mut log, "a", &"x".repeat(KEPT_BYTES_MAX));
        assert_eq!([2, 3, 4].map(|number| missed(&log, number)), [None, None, Some(0)]);
        let later = ActionLog::new(Timestamp::from_millisecond(1_000).unwrap());
        assert_eq!(missed(&later, 4), None, "a number of an earlier host");
    }
}
