//! The keys of prompts: a client that repeats a request whose answer it did not get sends the same key, and the prompt
//! must not enter the conversation twice. An index, so that a look-up does not read the log.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Change, MessageId};

/// How many of the newest keys are known. A client repeats a request that it has just sent, and has far fewer open.
const KEYS_MAX: usize = 256;

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PromptKeys(VecDeque<KnownKey>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct KnownKey {
    key: String,
    message: MessageId,
    /// Whether the message is in the conversation.
    is_inserted: bool,
}

/// The state of the prompt with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedPrompt {
    /// It is in the conversation.
    Inserted(MessageId),
    /// It is in the queue, or was lost before it got anywhere.
    Missing(MessageId),
}

impl PromptKeys {
    pub(crate) fn take(&mut self, change: &Change) {
        match change {
            Change::PromptKeyed { message, key } => {
                if self.0.len() == KEYS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back(KnownKey { key: key.clone(), message: *message, is_inserted: false });
            }
            Change::Said { .. } | Change::Commanded { .. } => {
                let inserted = change.prompt();
                for known in self.0.iter_mut().rev().filter(|known| Some(known.message) == inserted) {
                    known.is_inserted = true;
                }
            }
            // The prompts that a fork copied were sent to another session.
            Change::Forked { .. } => self.0.clear(),
            _ => {}
        }
    }

    /// The newest message that was announced with a key.
    pub fn find(&self, key: &str) -> Option<KeyedPrompt> {
        let known = self.0.iter().rev().find(|known| known.key == key)?;
        Some(match known.is_inserted {
            true => KeyedPrompt::Inserted(known.message),
            false => KeyedPrompt::Missing(known.message),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, Origin, Seq, SessionId};

    fn keyed(message: u64, key: &str) -> Change {
        Change::PromptKeyed { message: MessageId(message), key: key.to_owned() }
    }

    fn said(message: u64) -> Change {
        let message = Message { id: MessageId(message), content: Vec::new(), author: None };
        Change::Said { message, origin: Origin::Person }
    }

    fn keys(changes: &[Change]) -> PromptKeys {
        let mut keys = PromptKeys::default();
        changes.iter().for_each(|change| keys.take(change));
        keys
    }

    /// The log used to be read from its end for each prompt with a key, so that a prompt got slower as its conversation
    /// got longer.
    #[test]
    fn a_key_leads_to_the_message_that_it_was_announced_for() {
        let keys = keys(&[keyed(1, "a"), said(1), keyed(2, "b")]);
        assert_eq!(keys.find("a"), Some(KeyedPrompt::Inserted(MessageId(1))));
        assert_eq!(keys.find("b"), Some(KeyedPrompt::Missing(MessageId(2))));
        assert_eq!(keys.find("c"), None);
    }

    #[test]
    fn a_key_that_is_announced_again_counts_for_the_newer_message() {
        // The process ended between the key and the message, and the client has sent the prompt again.
        let keys = keys(&[keyed(1, "a"), keyed(2, "a"), said(2)]);
        assert_eq!(keys.find("a"), Some(KeyedPrompt::Inserted(MessageId(2))));
    }

    /// Each prompt of an editor has a key. A conversation of 25,000 turns kept them all, and wrote them with each turn.
    #[test]
    fn only_the_newest_keys_are_known() {
        let sent = (0..1_000).flat_map(|at| [keyed(at, &at.to_string()), said(at)]);
        let keys = keys(&sent.collect::<Vec<_>>());
        assert_eq!((keys.find("0"), keys.0.len()), (None, KEYS_MAX));
        assert_eq!(keys.find("999"), Some(KeyedPrompt::Inserted(MessageId(999))));
    }

    #[test]
    fn a_fork_knows_no_keys_of_the_session_that_it_is_from() {
        let forked = Change::Forked { from: SessionId("s".to_owned()), through: Seq(1) };
        assert_eq!(keys(&[keyed(1, "a"), said(1), forked]).find("a"), None);
    }
}
