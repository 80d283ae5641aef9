//! Small logs for tests of reminders.

use std::path::PathBuf;
use std::sync::Arc;

use epitome_thread::{
    Change, Content, Entry, FORMAT_VERSION, HistoryMessage, Message, MessageId, Origin, Role, Seq, SessionId,
    Thread, Trigger,
};

/// A thread with these changes after its opening entry.
pub fn thread(changes: Vec<Change>) -> Thread {
    let session = SessionId("s_00000000000000000000".to_owned());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: PathBuf::from("/w") };
    let log = entries([opened].into_iter().chain(changes));
    Thread::replay(log).expect("the log begins with its opening entry")
}

pub fn entries(changes: impl IntoIterator<Item = Change>) -> Vec<Arc<Entry>> {
    let entry = |(change, seq)| Arc::new(Entry { seq: Seq(seq), at: 0, change });
    changes.into_iter().zip(0..).map(entry).collect()
}

pub fn message(text: &str) -> Message {
    Message { id: MessageId(0), content: vec![Content::Text { text: text.to_owned() }], author: None }
}

pub fn person(text: &str) -> Change {
    Change::Said { message: message(text), origin: Origin::Person }
}

/// A context message of the session with this name.
pub fn context(by: &str, text: &str) -> Change {
    let message = message(&format!("<context from=\"{by}\">\n{text}\n</context>"));
    Change::Said { message, origin: Origin::Context { by: by.to_owned() } }
}

pub fn compacted(through: u64, text: &str) -> Change {
    Change::Compacted {
        through: Seq(through),
        summary: message(text),
        trigger: Trigger::Manual,
        focus: None,
        tokens_before: 9,
        tokens_after: 1,
        window: None,
        model: None,
        usage: None,
        masks: Vec::new(),
        account: Default::default(),
    }
}

pub fn mutated(through: u64) -> Change {
    Change::Mutated {
        through: Seq(through),
        messages: vec![HistoryMessage { role: Role::User, message: message("Another past.") }],
        by: "hook".into(),
        tokens_before: 9,
        tokens_after: 1,
        window: None,
    }
}
