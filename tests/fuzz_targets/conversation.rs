//! Compacts conversations of arbitrary texts, tool names and inputs in a small and a large window, without a token
//! count of the provider and with counts that differ widely from the estimate: the compaction never fails, the result
//! fits, and no table is missing.
//!
//! The input is text. Form feeds separate entries; the first character of an entry is its kind: `a` a message
//! of the agent, `c` a call, `f` a failed call, `d` a denied call; everything else is a user message. A call
//! consists of tool name, JSON input and result, separated by vertical tabs; an input that is not JSON is
//! used as a command.

use std::sync::Arc;

use epitome_compaction::{
    Budget, CompactionDecision, CompactionInput, CompactionRequest, KeptTail, Summary, compacted, decide,
    preview, pruned,
};
use epitome_thread::compaction_settings::CompactionSettings;
use epitome_thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, Message, ModelName, Origin, OutcomeStatus,
    Seq, SessionId, Thread, ToolCall, ToolOutcome, Trigger,
};
use epitome_tokens::Ruler;
use serde_json::{Value, json};

/// Compacts an arbitrary conversation.
pub fn compact(data: &[u8]) {
    let thread = conversation(&String::from_utf8_lossy(data));
    let ruler = Ruler::for_model(None);
    let view = ruler.view(thread.view());
    for (window, used) in [(2_048, None), (2_048, Some(view * 7 / 10)), (200_000, Some(view * 13 / 10))] {
        let budget = Budget { used, ..Budget::new(&CompactionSettings::default(), window, window / 8, 0) };
        for (trigger, keep) in [(Trigger::Must, KeptTail::Ratio(0.4)), (Trigger::Manual, KeptTail::Nothing)] {
            let request =
                CompactionRequest { trigger, keep, focus: None, summary: trigger == Trigger::Manual };
            preview(&ruler, &thread, &budget, &request);
            let made = match decide(&CompactionInput::new(&ruler, &thread, &budget), &request) {
                CompactionDecision::Nothing(_) => continue,
                CompactionDecision::Prune(masks) => pruned(&ruler, &thread, masks, trigger),
                CompactionDecision::Summarise(plan) => {
                    let id = thread.next_message();
                    match compacted(
                        &CompactionInput::new(&ruler, &thread, &budget),
                        &plan,
                        id,
                        Summary::default(),
                    ) {
                        Ok(change) => change,
                        // A short conversation may have nothing to gain.
                        Err(_) => continue,
                    }
                }
            };
            if let Change::Compacted { summary, tokens_after, .. } = made {
                assert!(tokens_after <= budget.room());
                let is_ours = |content: &Content| matches!(content, Content::Text { text } if text.starts_with(epitome_compaction::CARRIED_HEAD));
                let tables = summary.content.iter().find(|content| is_ours(content));
                if let Some(Content::Text { text }) = tables {
                    assert!(!text.contains("\n(Could not be computed: "), "{text}");
                }
            }
        }
    }
}

fn conversation(text: &str) -> Thread {
    let session = SessionId("s_00000000000000000001".into());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
    let opened = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
    let mut thread = Thread::replay([opened]).expect("a log may begin so");
    for entry in text.split('\u{c}') {
        let (kind, rest) = match entry.chars().next() {
            Some(kind @ ('a' | 'c' | 'f' | 'd')) => (kind, &entry[1..]),
            _ => ('u', entry),
        };
        match kind {
            'u' => said(&mut thread, rest),
            'a' => replied(&mut thread, vec![Content::Text { text: rest.to_owned() }]),
            _ => called(&mut thread, kind, rest),
        }
    }
    thread
}

fn called(thread: &mut Thread, kind: char, text: &str) {
    let mut parts = text.splitn(3, '\u{b}');
    let name = parts.next().unwrap_or_default().to_owned();
    let input = parts.next().unwrap_or_default();
    let input = serde_json::from_str(input).ok().filter(Value::is_object);
    let input = input.unwrap_or_else(|| json!({ "command": text }));
    let id = CallId(format!("c{}", thread.next_seq().0));
    let call = ToolCall { id: id.clone(), name, input, card: CallDisplay::default() };
    replied(thread, vec![Content::Call(call)]);
    let status = match kind {
        'f' => OutcomeStatus::Failed,
        'd' => OutcomeStatus::Denied,
        _ => OutcomeStatus::Completed,
    };
    let outcome = ToolOutcome::text(id, status, parts.next().unwrap_or_default());
    append(thread, Change::ToolFinished { outcome });
}

fn said(thread: &mut Thread, text: &str) {
    let content = vec![Content::Text { text: text.to_owned() }];
    let message = Message { id: thread.next_message(), content, author: None };
    append(thread, Change::Said { message, origin: Origin::Person });
}

fn replied(thread: &mut Thread, content: Vec<Content>) {
    let message = Message { id: thread.next_message(), content, author: None };
    append(thread, Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None });
}

fn append(thread: &mut Thread, change: Change) {
    let seq = thread.next_seq();
    thread.apply(Arc::new(Entry { seq, at: 0, change }));
}
