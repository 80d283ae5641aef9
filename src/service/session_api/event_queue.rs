//! The bounded queue between a session and a client, which merges events that the client has not read yet.
//!
//! Streamed text, output of running calls and states (usage, commands, options) may be merged or dropped, because a
//! later event contains them. All other events are kept, in order. Without side effects: the caller locks the queue,
//! wakes its reader, and decides what to do when it is full.

use std::collections::{HashMap, VecDeque};
use std::mem::discriminant;

use super::{CompactionState, SessionEvent};
use epitome_thread::{CallId, CallOutput, Change, MessageId, SessionId};

/// Overhead counted for each queued piece of text or output, so that empty pieces are bounded as well.
const PIECE_BYTES: usize = 160;

/// Number of items searched backwards for one to merge with: this many sessions can stream at once and still merge.
const MERGE_REACH: usize = 16;

/// The bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Maximum number of queued items.
    pub items: usize,
    /// Maximum bytes of all queued text and output. With 0, neither is queued.
    pub bytes: usize,
    /// Maximum bytes of merged text in one item.
    pub text_bytes: usize,
    /// Maximum bytes of queued output of one running call; the newest part is kept.
    pub output_bytes: usize,
    /// Maximum number of queued notices; further ones are dropped.
    pub notices: usize,
    /// Whether a newer state replaces a queued one.
    pub replaces_states: bool,
}

impl QueueLimits {
    pub const NONE: QueueLimits = QueueLimits {
        items: usize::MAX,
        bytes: usize::MAX,
        text_bytes: usize::MAX,
        output_bytes: usize::MAX,
        notices: usize::MAX,
        replaces_states: false,
    };
}

/// A queued event, or an item of the queue's owner.
#[derive(Debug)]
pub enum QueuedItem<T> {
    Event { session: SessionId, out: SessionEvent },
    Own(T),
}

/// The fate of an event.
#[derive(Debug)]
pub enum PutResult {
    /// Queued, or merged with a queued one.
    Queued,
    /// Dropped, because a later event contains it or there are too many notices.
    Dropped,
    /// A piece of streamed text was dropped. No further text of its message is queued; the entry contains all of it.
    Gap,
    /// The queue is full, and this event must not be dropped.
    Full(SessionEvent),
}

/// How a queue treats an event.
enum EventClass<'a> {
    /// Streamed text of a message or summary.
    Text(MessageId, &'a str),
    /// Output of a running call.
    Output(&'a CallOutput),
    /// Complete information that replaces earlier information of the same kind.
    State,
    Notice,
    /// Kept in order.
    Event,
    /// Kept in order, and no state is moved across it.
    Barrier,
}

impl EventClass<'_> {
    fn classify(out: &SessionEvent) -> EventClass<'_> {
        match out {
            SessionEvent::Text { message, text, .. } => EventClass::Text(*message, text),
            SessionEvent::Compaction { id, state: CompactionState::Wrote(text) } => {
                EventClass::Text(*id, text)
            }
            SessionEvent::CallProgress { output, .. } => EventClass::Output(output),
            SessionEvent::Usage(_) | SessionEvent::Commands(_) | SessionEvent::Options(_) => {
                EventClass::State
            }
            SessionEvent::Notice { .. } => EventClass::Notice,
            SessionEvent::CallStarted { .. }
            | SessionEvent::CallFinished { .. }
            | SessionEvent::TerminalEnded { .. }
            | SessionEvent::Seen(_)
            | SessionEvent::Compaction {
                state: CompactionState::Began { .. } | CompactionState::Failed(_) | CompactionState::Cancelled,
                ..
            } => EventClass::Event,
            SessionEvent::Entry { .. }
            | SessionEvent::Answer { .. }
            | SessionEvent::Ask { .. }
            | SessionEvent::Question { .. }
            | SessionEvent::QuestionDone { .. }
            | SessionEvent::EditorRequest { .. }
            | SessionEvent::Subagent(_)
            | SessionEvent::State(_)
            | SessionEvent::Inserted { .. }
            | SessionEvent::Withdrawn { .. } => EventClass::Barrier,
        }
    }

    /// The bytes that count towards [`QueueLimits::bytes`].
    fn bytes(&self) -> usize {
        match self {
            EventClass::Text(_, text) => text.len() + PIECE_BYTES,
            EventClass::Output(output) => output.bytes() + PIECE_BYTES,
            EventClass::State | EventClass::Notice | EventClass::Event | EventClass::Barrier => 0,
        }
    }
}

/// Events of any number of sessions, and items of type `T`, in one order.
#[derive(Debug)]
pub struct EventQueue<T> {
    items: VecDeque<QueuedItem<T>>,
    limits: QueueLimits,
    bytes: usize,
    notices: usize,
    /// The message whose text has a gap, by session.
    gaps: HashMap<SessionId, MessageId>,
}

impl<T> EventQueue<T> {
    pub fn new(limits: QueueLimits) -> EventQueue<T> {
        EventQueue { items: VecDeque::new(), limits, bytes: 0, notices: 0, gaps: HashMap::new() }
    }

    /// Queues an event, or merges it with a queued one.
    pub fn put(&mut self, session: &SessionId, out: SessionEvent) -> PutResult {
        match EventClass::classify(&out) {
            EventClass::Text(message, _) => self.put_text(session, message, out),
            EventClass::Output(_) => self.put_output(session, out),
            EventClass::State => match self.queued_state(session, &out) {
                Some(queued) => {
                    *queued = out;
                    PutResult::Queued
                }
                None => self.push(session, out),
            },
            EventClass::Notice if self.notices >= self.limits.notices => PutResult::Dropped,
            EventClass::Notice | EventClass::Event => self.push(session, out),
            EventClass::Barrier => {
                if let SessionEvent::Entry { entry, .. } = &out
                    && let Change::Replied { message, .. } | Change::Compacted { summary: message, .. } =
                        &entry.change
                    && self.gaps.get(session) == Some(&message.id)
                {
                    self.gaps.remove(session);
                }
                self.push(session, out)
            }
        }
    }

    /// Queues an item of the owner, who limits their number.
    pub fn put_own(&mut self, item: T) {
        self.items.push_back(QueuedItem::Own(item));
    }

    /// Removes the oldest item.
    pub fn pop(&mut self) -> Option<QueuedItem<T>> {
        let item = self.items.pop_front()?;
        if let QueuedItem::Event { out, .. } = &item {
            self.bytes -= EventClass::classify(out).bytes();
            self.notices -= usize::from(matches!(out, SessionEvent::Notice { .. }));
        }
        Some(item)
    }

    /// Moves all items into the given list. Drops the list's items and reuses its memory for the queue.
    pub fn take(&mut self, items: &mut VecDeque<QueuedItem<T>>) {
        std::mem::swap(items, &mut self.items);
        (self.bytes, self.notices) = (0, 0);
        self.items.clear();
    }

    pub fn clear(&mut self) {
        self.take(&mut VecDeque::new());
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of queued text and output.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn put_text(&mut self, session: &SessionId, message: MessageId, out: SessionEvent) -> PutResult {
        if self.limits.bytes == 0 {
            return PutResult::Dropped;
        }
        if self.gaps.get(session) == Some(&message) {
            return PutResult::Gap;
        }
        if self.bytes + EventClass::classify(&out).bytes() <= self.limits.bytes {
            let text_bytes = self.limits.text_bytes;
            if let Some((text, more)) = self.continued(session, &out)
                && text.len() + more.len() <= text_bytes
            {
                text.push_str(more);
                self.bytes += more.len();
                return PutResult::Queued;
            }
            if let PutResult::Queued = self.push(session, out) {
                return PutResult::Queued;
            }
        }
        self.gaps.insert(session.clone(), message);
        PutResult::Gap
    }

    fn put_output(&mut self, session: &SessionId, mut out: SessionEvent) -> PutResult {
        let (most, room) = (self.limits.output_bytes, self.limits.bytes - self.bytes);
        if let SessionEvent::CallProgress { call, output: more } = &out
            && let Some(output) = self.output_of(session, call)
        {
            let before = output.bytes();
            output.append(more);
            output.keep_newest(most.min(before + room));
            let after = output.bytes();
            self.bytes = self.bytes - before + after;
            return PutResult::Queued;
        }
        if let SessionEvent::CallProgress { output, .. } = &mut out {
            output.keep_newest(most);
        }
        if EventClass::classify(&out).bytes() > room {
            return PutResult::Dropped;
        }
        match self.push(session, out) {
            PutResult::Full(_) => PutResult::Dropped,
            put => put,
        }
    }

    fn push(&mut self, session: &SessionId, out: SessionEvent) -> PutResult {
        if self.items.len() >= self.limits.items {
            return PutResult::Full(out);
        }
        self.bytes += EventClass::classify(&out).bytes();
        self.notices += usize::from(matches!(out, SessionEvent::Notice { .. }));
        self.items.push_back(QueuedItem::Event { session: session.clone(), out });
        PutResult::Queued
    }

    /// The output of the session's newest event, if that is output of this call.
    fn output_of(&mut self, session: &SessionId, call: &CallId) -> Option<&mut CallOutput> {
        match self.recent(session).next()? {
            SessionEvent::CallProgress { call: same, output } if same == call => Some(output),
            _ => None,
        }
    }

    /// The text of the session's newest event, if the new event continues it, and the text to append.
    fn continued<'a>(
        &'a mut self,
        session: &SessionId,
        new: &'a SessionEvent,
    ) -> Option<(&'a mut String, &'a str)> {
        match (self.recent(session).next()?, new) {
            (
                SessionEvent::Text { message, part, text, .. },
                SessionEvent::Text { message: same, part: same_part, text: more, .. },
            ) if (*message, *part) == (*same, *same_part) => Some((text, more)),
            (
                SessionEvent::Compaction { id, state: CompactionState::Wrote(text) },
                SessionEvent::Compaction { id: same, state: CompactionState::Wrote(more) },
            ) if id == same => Some((text, more)),
            _ => None,
        }
    }

    /// A queued state that the new one may replace.
    fn queued_state(&mut self, session: &SessionId, new: &SessionEvent) -> Option<&mut SessionEvent> {
        let replaces = self.limits.replaces_states;
        self.recent(session)
            .take_while(|out| replaces && !matches!(EventClass::classify(out), EventClass::Barrier))
            .find(|out| discriminant::<SessionEvent>(out) == discriminant(new))
    }

    /// The session's events among the last [`MERGE_REACH`] items, the newest first.
    fn recent<'a>(&'a mut self, session: &SessionId) -> impl Iterator<Item = &'a mut SessionEvent> {
        self.items.iter_mut().rev().take(MERGE_REACH).filter_map(move |item| match item {
            QueuedItem::Event { session: other, out } if other == session => Some(out),
            QueuedItem::Event { .. } | QueuedItem::Own(_) => None,
        })
    }
}

/// Truncates text at the front to at most `bytes`, at a character boundary.
pub fn keep_newest(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        text.drain(..text.ceil_char_boundary(text.len() - bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{NoticeSeverity, SessionAnswer, TextKind, Ticket, UsageNow};
    use epitome_thread::{CallId, Content, Entry, Message, ModelName, Seq, Usage};

    fn session(name: u64) -> SessionId {
        SessionId(format!("s_{name:020x}"))
    }

    fn text(message: u64, text: &str) -> SessionEvent {
        SessionEvent::Text {
            message: MessageId(message),
            part: 0,
            kind: TextKind::Reply,
            text: text.to_owned(),
        }
    }

    fn wrote(summary: u64, piece: &str) -> SessionEvent {
        SessionEvent::Compaction { id: MessageId(summary), state: CompactionState::Wrote(piece.to_owned()) }
    }

    fn output(call: &str, output: &str) -> SessionEvent {
        SessionEvent::CallProgress { call: CallId(call.to_owned()), output: output.into() }
    }

    fn reply(seq: u64, message: u64, text: &str) -> SessionEvent {
        let message = Message {
            id: MessageId(message),
            content: vec![Content::Text { text: text.to_owned() }],
            author: None,
        };
        let change = Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None };
        SessionEvent::Entry {
            entry: Arc::new(Entry { seq: Seq(seq), at: 0, change }),
            replay: false,
            own: true,
        }
    }

    fn usage(used: u64) -> SessionEvent {
        SessionEvent::Usage(UsageNow { used, size: 200_000, cost: None, last: Usage::default() })
    }

    fn queued(queue: &mut EventQueue<()>) -> Vec<String> {
        std::iter::from_fn(|| queue.pop())
            .map(|item| match item {
                QueuedItem::Event { out: SessionEvent::Text { text, .. }, .. } => text,
                QueuedItem::Event { out: SessionEvent::Usage(usage), .. } => format!("usage {}", usage.used),
                QueuedItem::Event { out: SessionEvent::CallProgress { output, .. }, .. } => output.text,
                QueuedItem::Event {
                    out: SessionEvent::Compaction { state: CompactionState::Wrote(piece), .. },
                    ..
                } => piece,
                QueuedItem::Event { .. } => "event".to_owned(),
                QueuedItem::Own(()) => "own".to_owned(),
            })
            .collect()
    }

    fn filled(limits: QueueLimits, events: impl IntoIterator<Item = (u64, SessionEvent)>) -> EventQueue<()> {
        let mut queue = EventQueue::new(limits);
        for (name, out) in events {
            queue.put(&session(name), out);
        }
        queue
    }

    #[test]
    fn text_merges_even_when_sessions_alternate() {
        let alternating = (0..3).flat_map(|_| [(1, text(7, "ab")), (2, text(7, "cd"))]);
        let mut queue = filled(QueueLimits::NONE, alternating.chain([(1, text(8, "new"))]));
        assert_eq!(queued(&mut queue), ["ababab", "cdcdcd", "new"]);
    }

    #[test]
    fn text_does_not_merge_across_an_entry() {
        let mut queue =
            filled(QueueLimits::NONE, [(1, text(7, "a")), (1, reply(1, 7, "a")), (1, text(8, "b"))]);
        assert_eq!(queued(&mut queue), ["a", "event", "b"]);
    }

    #[test]
    fn text_is_merged_up_to_the_limit_of_an_item() {
        let limits = QueueLimits { text_bytes: 4, ..QueueLimits::NONE };
        let mut queue = filled(limits, ["abc", "d", "e", "too long"].map(|piece| (1, text(7, piece))));
        assert_eq!(queued(&mut queue), ["abcd", "e", "too long"]);
    }

    #[test]
    fn after_a_dropped_piece_of_a_summary_no_more_of_it_is_queued() {
        let mut queue =
            filled(QueueLimits { bytes: 400, ..QueueLimits::NONE }, [(1, wrote(7, "a")), (1, wrote(7, "b"))]);
        assert!(matches!(queue.put(&session(1), wrote(7, &"c".repeat(300))), PutResult::Gap));
        assert_eq!(queued(&mut queue), ["ab"]);
        assert!(matches!(queue.put(&session(1), wrote(7, "d")), PutResult::Gap));
        queue.put(&session(1), wrote(8, "the next one"));
        assert_eq!(queued(&mut queue), ["the next one"]);
    }

    #[test]
    fn only_the_newest_usage_is_queued_but_not_moved_across_entries() {
        let limits = QueueLimits { replaces_states: true, ..QueueLimits::NONE };
        let before = (1..5).flat_map(|used| [(1, usage(used)), (1, text(7, "a"))]);
        let mut queue = filled(limits, before.chain([(1, reply(1, 7, "aaaa")), (1, usage(9))]));
        assert_eq!(queued(&mut queue), ["usage 4", "aaaa", "event", "usage 9"]);
    }

    #[test]
    fn the_newest_output_of_a_call_is_kept() {
        let limits = QueueLimits { output_bytes: 5, ..QueueLimits::NONE };
        let mut queue = filled(limits, ["éé", "aé", "é"].map(|piece| (1, output("c", piece))));
        assert_eq!(queued(&mut queue), ["aéé"]);
    }

    #[derive(Clone, Debug)]
    enum QueueStep {
        Text(u64, usize),
        Output(u64, usize),
        Usage(u64),
        Notice(u64),
        Started(u64),
        Entry(u64),
        Answer(u64),
        Read(usize),
    }

    fn step() -> impl Strategy<Value = QueueStep> {
        let name = 0u64..3;
        prop_oneof![
            4 => (name.clone(), 0usize..300).prop_map(|(name, bytes)| QueueStep::Text(name, bytes)),
            2 => (name.clone(), 0usize..300).prop_map(|(name, bytes)| QueueStep::Output(name, bytes)),
            1 => name.clone().prop_map(QueueStep::Usage),
            1 => name.clone().prop_map(QueueStep::Notice),
            1 => name.clone().prop_map(QueueStep::Started),
            1 => name.clone().prop_map(QueueStep::Entry),
            1 => name.prop_map(QueueStep::Answer),
            2 => (1usize..8).prop_map(QueueStep::Read),
        ]
    }

    fn limits() -> impl Strategy<Value = QueueLimits> {
        let bytes = prop_oneof![Just(0), 200usize..2000, Just(usize::MAX)];
        let limits = (1usize..20, bytes, 1usize..500, 1usize..200, 0usize..3, any::<bool>());
        limits.prop_map(|(items, bytes, text_bytes, output_bytes, notices, replaces_states)| QueueLimits {
            items,
            bytes,
            text_bytes,
            output_bytes,
            notices,
            replaces_states,
        })
    }

    /// Everything that a client has read.
    #[derive(Default)]
    struct QueueReader {
        /// Text by session and message.
        texts: BTreeMap<(SessionId, u64), String>,
        /// The numbers of the events that must not be dropped.
        kept: Vec<u64>,
        usage: BTreeMap<SessionId, u64>,
    }

    impl QueueReader {
        fn read(&mut self, item: QueuedItem<()>, limits: &QueueLimits) {
            let QueuedItem::Event { session, out } = item else { panic!("no own item was put in") };
            match out {
                SessionEvent::Text { message, text, .. } => {
                    self.texts.entry((session, message.0)).or_default().push_str(&text);
                }
                SessionEvent::CallProgress { output, .. } => assert!(output.bytes() <= limits.output_bytes),
                SessionEvent::Usage(now) => drop(self.usage.insert(session, now.used)),
                SessionEvent::Notice { .. } => {}
                SessionEvent::CallStarted { call } => self.kept.push(call.0.parse().expect("a number")),
                SessionEvent::Answer { ticket, .. } => self.barrier(&session, ticket.0),
                SessionEvent::Entry { entry, .. } => {
                    let Change::Replied { message, .. } = &entry.change else { panic!("a reply was put in") };
                    let read = self.texts.remove(&(session.clone(), message.id.0)).unwrap_or_default();
                    assert!(message.text().starts_with(&read), "the text read before an entry begins it");
                    self.barrier(&session, entry.seq.0);
                }
                other => panic!("{other:?} was not put in"),
            }
        }

        fn barrier(&mut self, session: &SessionId, number: u64) {
            let usage = self.usage.get(session);
            assert!(usage.is_none_or(|usage| *usage < number), "no usage moves across a barrier");
            self.kept.push(number);
        }
    }

    proptest! {
        /// For any interleaving of sessions, events and reads, and any limits.
        #[test]
        fn readers_get_every_message_and_event_in_order(
            limits in limits(),
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let mut queue = EventQueue::<()>::new(limits);
            let mut client = QueueReader::default();
            // By session: the message that is streamed, its text, and whether a piece of it was dropped.
            let mut streamed: BTreeMap<u64, (u64, String, bool)> = BTreeMap::new();
            let (mut kept, mut newest) = (Vec::new(), BTreeMap::new());
            for (number, step) in (0u64..).zip(steps) {
                let (name, mut out) = match step {
                    QueueStep::Read(items) => {
                        for _ in 0..items {
                            if let Some(item) = queue.pop() {
                                client.read(item, &limits);
                            }
                        }
                        continue;
                    }
                    // All pieces are distinct, so that a missing one is detected.
                    QueueStep::Text(name, bytes) => {
                        let piece = format!("{number}é").repeat(bytes / 4);
                        let (message, whole, _) = streamed.entry(name).or_default();
                        whole.push_str(&piece);
                        (name, text(*message, &piece))
                    }
                    QueueStep::Output(name, bytes) => (name, output("c", &"é".repeat(bytes / 2))),
                    QueueStep::Usage(name) => {
                        newest.insert(session(name), number);
                        (name, usage(number))
                    }
                    QueueStep::Notice(name) => {
                        (name, SessionEvent::Notice { severity: NoticeSeverity::Info, text: "a notice".to_owned() })
                    }
                    QueueStep::Started(name) => (name, SessionEvent::CallStarted { call: CallId(number.to_string()) }),
                    QueueStep::Entry(name) => {
                        let (message, whole, has_gap) = streamed.entry(name).or_default();
                        let entry = reply(number, *message, whole);
                        (*message, *has_gap) = (*message + 1, false);
                        whole.clear();
                        (name, entry)
                    }
                    QueueStep::Answer(name) => {
                        (name, SessionEvent::Answer { ticket: Ticket(number), answer: Ok(SessionAnswer::Closed) })
                    }
                };
                let (is_text, is_kept) = (
                    matches!(out, SessionEvent::Text { .. }),
                    matches!(out, SessionEvent::CallStarted { .. } | SessionEvent::Entry { .. } | SessionEvent::Answer { .. }),
                );
                let may_be_dropped = is_text || matches!(out, SessionEvent::CallProgress { .. } | SessionEvent::Notice { .. });
                loop {
                    match queue.put(&session(name), out) {
                        PutResult::Full(back) => {
                            prop_assert!(!is_text && queue.len() == limits.items);
                            out = back;
                            client.read(queue.pop().expect("a full queue has items"), &limits);
                            continue;
                        }
                        PutResult::Queued => prop_assert!(!is_text || !streamed[&name].2, "no piece after a gap"),
                        PutResult::Gap | PutResult::Dropped => {
                            prop_assert!(may_be_dropped);
                            if is_text {
                                streamed.entry(name).or_default().2 = true;
                            }
                        }
                    }
                    break;
                }
                if is_kept {
                    kept.push(number);
                }
                prop_assert!(queue.bytes() <= limits.bytes && queue.len() <= limits.items);
            }
            while let Some(item) = queue.pop() {
                client.read(item, &limits);
            }
            prop_assert_eq!(queue.bytes(), 0);
            prop_assert_eq!(client.kept, kept);
            prop_assert_eq!(client.usage, newest);
            for (name, (message, whole, has_gap)) in streamed {
                let read = client.texts.remove(&(session(name), message)).unwrap_or_default();
                prop_assert!(whole.starts_with(&read) && (has_gap || whole == read));
            }
            prop_assert!(client.texts.is_empty(), "text was read after its entry");
        }
    }
}
