//! Content that a hook removed is hidden from `recall` and from the quotes of a compaction alike.

use std::sync::Arc;

use epitome::compaction::{
    Budget, CompactionDecision, CompactionInput, CompactionRequest, KeptTail, Summary, compacted, decide,
};
use epitome::recall::{Clock, RecallLog, RecallQuery};
use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, HistoryMessage, Message, MessageId,
    ModelName, Origin, OutcomeStatus, PartId, Role, Seq, SessionId, Thread, ToolCall, ToolOutcome, Trigger,
    ViewEdit,
};
use epitome::tokens::Ruler;

/// The word of each entry: its number, which no other text contains.
fn word(seq: Seq) -> String {
    format!("w{0}w{0}w", seq.0)
}

struct Log(Thread);

impl Log {
    /// e1 is a prompt, e2 a reply with a call, e3 its outcome, e4 a question, e5 the user's answer, e6 a prompt, e7 a
    /// long reply.
    fn new() -> Log {
        let session = SessionId("s_00000000000000000001".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
        let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        let mut log = Log(Thread::replay([opened]).expect("an opened thread"));
        log.said();
        log.called("bash");
        log.called("ask_user");
        log.said();
        log.replied(Vec::new());
        log
    }

    fn add(&mut self, change: Change) -> Seq {
        let seq = self.0.next_seq();
        self.0.apply(Arc::new(Entry { seq, at: 0, change }));
        seq
    }

    fn message(&self, text: String) -> Message {
        Message { id: self.0.next_message(), content: vec![Content::Text { text }], author: None }
    }

    fn said(&mut self) {
        let message = self.message(format!("Do {}.", word(self.0.next_seq())));
        self.add(Change::Said { message, origin: Origin::Person });
    }

    fn replied(&mut self, more: Vec<Content>) {
        let mut message =
            self.message(format!("I did {}. {}", word(self.0.next_seq()), "walnut ".repeat(3_000)));
        message.content.extend(more);
        self.add(Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None });
    }

    fn called(&mut self, tool: &str) {
        let (reply, outcome) = (self.0.next_seq(), Seq(self.0.next_seq().0 + 1));
        let id = CallId(format!("c{}", reply.0));
        let input = serde_json::json!({ "command": format!("make {}-call", word(reply)) });
        let call = ToolCall { id: id.clone(), name: tool.into(), input, card: CallDisplay::default() };
        self.replied(vec![Content::Call(call)]);
        let outcome = ToolOutcome::text(id, OutcomeStatus::Completed, format!("It says {}.", word(outcome)));
        self.add(Change::ToolFinished { outcome });
    }

    fn edited(&mut self, edit: ViewEdit) {
        self.add(Change::Edited { by: "h".into(), edits: vec![edit] });
    }

    /// Compacts everything without a model.
    fn compacted(&mut self) -> String {
        let (ruler, budget) = (Ruler::for_model(None), Budget::new(&Default::default(), 200_000, 0, 0));
        let keep = KeptTail::Nothing;
        let request = CompactionRequest { trigger: Trigger::Manual, keep, focus: None, summary: true };
        let CompactionDecision::Summarise(plan) =
            decide(&CompactionInput::new(&ruler, &self.0, &budget), &request)
        else {
            panic!("there is something to compact")
        };
        let id = self.0.next_message();
        let made = compacted(&CompactionInput::new(&ruler, &self.0, &budget), &plan, id, Summary::default());
        let change = made.expect("it gains something");
        let Change::Compacted { summary, .. } = &change else { panic!("it is {}", change.kind()) };
        let text = summary.text();
        self.add(change);
        text
    }

    fn is_hidden_from_recall(&self, entry: Seq) -> bool {
        let clock = Clock { now: 0, zone: jiff::tz::TimeZone::UTC };
        let range = Some(entry.to_string().parse().expect("an entry"));
        let query = RecallQuery { range, ..RecallQuery::default() };
        RecallLog::snapshot(&self.0, usize::MAX).answer(&query, &clock, &|| false).is_err()
    }
}

fn at(entry: u64, part: Option<u32>) -> PartId {
    PartId { entry: Seq(entry), part }
}

/// Regression: a hook replaced a compaction message that quoted a key. `recall` hid everything that the message covered,
/// but the next compaction quoted the originals again: each of the two had its own idea of what an edit removes.
#[test]
fn recall_and_compactions_agree_on_what_a_hook_removed() {
    let note = String::new;
    let other = || vec![Content::Text { text: "Nothing.".into() }];
    let compaction_edit = |log: &mut Log, edit: fn(PartId) -> ViewEdit| {
        log.compacted();
        let compaction = Seq(log.0.next_seq().0 - 1);
        log.edited(edit(at(compaction.0, None)));
        compaction
    };
    type Story<'a> = (&'a str, &'a dyn Fn(&mut Log));
    let stories: [Story; 9] = [
        ("nothing", &|_| {}),
        ("a mask", &|log| log.edited(ViewEdit::Mask { at: at(1, None), note: note() })),
        ("another text", &|log| log.edited(ViewEdit::Replace { at: at(6, None), content: other() })),
        ("a dropped call", &|log| log.edited(ViewEdit::Drop { at: at(2, Some(1)) })),
        ("a dropped answer", &|log| log.edited(ViewEdit::Drop { at: at(5, None) })),
        ("an edit that is undone", &|log| {
            log.edited(ViewEdit::Drop { at: at(1, None) });
            let edit = Seq(log.0.next_seq().0 - 1);
            log.add(Change::Undone { entry: edit });
        }),
        ("a history", &|log| {
            let message = Message { id: MessageId(90), content: other(), author: None };
            log.add(Change::Mutated {
                through: Seq(5),
                messages: vec![HistoryMessage { role: Role::User, message }],
                by: "h".into(),
                tokens_before: 0,
                tokens_after: 0,
                window: None,
            });
        }),
        ("an edited compaction", &|log| {
            compaction_edit(log, |at| ViewEdit::Mask { at, note: String::new() });
        }),
        ("an edited compaction that is undone", &|log| {
            let entry = compaction_edit(log, |at| ViewEdit::Mask { at, note: String::new() });
            log.add(Change::Undone { entry });
        }),
    ];
    for (story, happens) in stories {
        let mut log = Log::new();
        happens(&mut log);
        let hidden: Vec<Seq> = (1..=7).map(Seq).filter(|entry| log.is_hidden_from_recall(*entry)).collect();
        let rewritten: Vec<Seq> = (1..=7).map(Seq).filter(|entry| log.0.is_rewritten(*entry)).collect();
        // A dropped call hides its outcome and the reverse, whichever of them the edit names.
        assert!(rewritten.iter().all(|entry| hidden.contains(entry)), "{story}: {rewritten:?}, {hidden:?}");
        for _ in 0..2 {
            log.said();
            log.replied(Vec::new());
            let text = log.compacted();
            for entry in &hidden {
                assert!(!text.contains(&word(*entry)), "{story}: {entry} is quoted:\n{text}");
            }
            for said in [1, 5, 6].map(Seq).iter().filter(|entry| !hidden.contains(entry)) {
                assert!(text.contains(&word(*said)), "{story}: {said} is lost:\n{text}");
            }
        }
    }
}
