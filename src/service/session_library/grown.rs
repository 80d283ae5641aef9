//! What a session of another agent has that was not in it when it was imported. Pure.

use std::collections::HashMap;

use epitome_thread::{Change, Content, Entry, Message, MessageId, Origin, OutcomeStatus, Seq, Thread};

/// The entries to add to an imported session so that it has all of `draft`, the same session as it is now; `None` if the
/// stored one has other messages, or the other agent has rewritten what was imported.
pub fn grown(thread: &Thread, draft: &[Entry]) -> Option<Vec<Entry>> {
    let stored = thread.entries();
    // Where each entry of the draft is, or will be, in the stored log.
    let mut seqs: HashMap<Seq, Seq> = HashMap::new();
    let mut late = Vec::new();
    let mut new = draft.iter().skip(1).peekable();
    for entry in stored.iter().skip(1) {
        let is_next = |draft: &&&Entry| {
            is_same(&entry.change, &draft.change) || late_result(&entry.change, &draft.change).is_some()
        };
        let mut next = new.next_if(|draft| is_next(&draft));
        // The other agent may have given it another title.
        while next.is_none()
            && !is_added(&entry.change)
            && new.next_if(|draft| is_added(&draft.change)).is_some()
        {
            next = new.next_if(|draft| is_next(&draft));
        }
        match next {
            Some(known) => {
                seqs.insert(known.seq, entry.seq);
                late.extend(late_result(&entry.change, &known.change));
            }
            None if is_added(&entry.change) => {}
            None => return None,
        }
    }
    let (mut seq, mut message) = (thread.next_seq(), thread.next_message());
    let mut last = stored.last().map_or(0, |entry| entry.at);
    let add = |entry: &Entry| {
        let mut change = entry.change.clone();
        if let Some(own) = message_mut(&mut change) {
            own.id = message;
            message = MessageId(message.0 + 1);
        }
        if let Change::Compacted { through, .. } = &mut change {
            // The newest entry up to there that is in the log.
            let before = (0..=through.0).rev().find_map(|seq| seqs.get(&Seq(seq)));
            *through = before.copied().unwrap_or_default();
        }
        seqs.insert(entry.seq, seq);
        last = last.max(entry.at);
        let added = Entry { seq, at: last, change };
        seq = Seq(seq.0 + 1);
        added
    };
    // An earlier import may have added it.
    let is_known = |text: &str| {
        let messages = stored.iter().filter_map(|entry| entry.change.shown_message());
        messages.into_iter().any(|message| message.text() == text)
    };
    let context = |text| {
        let message = Message { id: MessageId(0), content: vec![Content::Text { text }], author: None };
        let origin = Origin::Context { by: "import".to_owned() };
        Entry { seq: Seq(u64::MAX), at: 0, change: Change::Said { message, origin } }
    };
    let late: Vec<Entry> = late.into_iter().filter(|text: &String| !is_known(text)).map(context).collect();
    Some(late.iter().chain(new).map(add).collect())
}

/// Whether both are the same part of the conversation. Numbers of messages and entries differ if something was added.
fn is_same(stored: &Change, draft: &Change) -> bool {
    match (stored, draft) {
        (Change::Said { message: a, origin: of_a }, Change::Said { message: b, origin: of_b }) => {
            a.content == b.content && of_a == of_b
        }
        (
            Change::Replied { message: a, model: by_a, .. },
            Change::Replied { message: b, model: by_b, .. },
        ) => a.content == b.content && by_a == by_b,
        (Change::Compacted { summary: a, .. }, Change::Compacted { summary: b, .. }) => {
            a.content == b.content
        }
        (stored, draft) => stored == draft,
    }
}

/// The result of a call that had none when it was imported. A log has one result for each call, so it becomes a message.
fn late_result(stored: &Change, draft: &Change) -> Option<String> {
    let (stored, draft) = (stored.outcome()?, draft.outcome()?);
    let is_late = stored.call == draft.call
        && stored.status == OutcomeStatus::Interrupted
        && draft.status != OutcomeStatus::Interrupted;
    is_late.then(|| {
        format!("The result of the call {}, which came later:\n\n{}", draft.call.0, draft.model_text())
    })
}

/// Whether a change adds nothing to the conversation with the other agent.
fn is_added(change: &Change) -> bool {
    match change {
        Change::Said { origin, .. } => matches!(origin, Origin::Context { .. } | Origin::Instructions { .. }),
        Change::Replied { .. } | Change::ToolFinished { .. } | Change::Queued { .. } => false,
        _ => true,
    }
}

fn message_mut(change: &mut Change) -> Option<&mut Message> {
    match change {
        Change::Said { message, .. } | Change::Replied { message, .. } => Some(message),
        Change::Compacted { summary, .. } => Some(summary),
        _ => None,
    }
}
