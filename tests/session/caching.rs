//! What the providers' prompt caches have of a session: its requests begin with the same bytes as long as
//! nothing but appending has happened, and sessions of one place begin alike.

use epitome::config::WireFormat;
use epitome::provider::scripted::{CacheUse, ModelStep, RecordedRequest, Seen};
use epitome::thread::{Change, StopReason};
use serde_json::{Value, json};

use super::desk::{Desk, call, model_of, put, text};

/// A mark of Anthropic's format. It is no part of what the cache goes by.
const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;

fn is_summary(request: &RecordedRequest) -> bool {
    request.last_user_text().contains("Then write the handover")
}

/// A request up to its messages, and the bytes of its messages. How long the reply may be is left out: it is
/// learned on the way, and no cache goes by it.
fn halves(request: &RecordedRequest) -> (String, String) {
    let body = String::from_utf8(request.bytes.clone()).expect("JSON is text").replace(MARK, "");
    let list = match request.wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiChat => r#","messages":["#,
        WireFormat::OpenAiResponses => r#","input":["#,
        WireFormat::Gemini => r#","contents":["#,
    };
    let (head, messages) = body.split_once(list).expect("there are messages");
    let mut head: Value = serde_json::from_str(&format!("{head}}}")).expect("the order of fields is kept");
    let at_top = head.as_object_mut().expect("an object");
    at_top.retain(|name, _| {
        !["max_tokens", "max_completion_tokens", "max_output_tokens"].contains(&name.as_str())
    });
    if let Some(Value::Object(config)) = head.get_mut("generationConfig") {
        config.shift_remove("maxOutputTokens");
    }
    (head.to_string(), messages.strip_suffix("]}").expect("they are last").to_owned())
}

/// A model that calls many tools at once where it was asked something, and then answers.
fn works(request: &RecordedRequest) -> Vec<ModelStep> {
    const CALLS: usize = 30;
    if is_summary(request) {
        return vec![text("<summary>Things were done.</summary>")];
    }
    match request.seen().last() {
        Some(Seen::Result { .. }) => vec![ModelStep::Think("That is all.".into()), text("All are done.")],
        _ => {
            let calls = (0..CALLS).map(|nth| call(json!({"says": nth.to_string(), "bytes": 40, "a": {}})));
            [ModelStep::Think("Many things.".into()), text("I do all.")].into_iter().chain(calls).collect()
        }
    }
}

#[test]
fn requests_of_a_long_session_go_on_from_the_same_bytes() {
    for format in WireFormat::ALL {
        let mut desk = Desk::of_format(format, &[], works);
        for turn in 0..6 {
            assert_eq!(desk.ask("Go"), StopReason::EndTurn);
            // None of these is the model's business.
            match turn {
                1 => drop(desk.choose("mode", "full").expect("a mode")),
                2 => assert_eq!(desk.ask("/context"), StopReason::EndTurn),
                3 => {
                    put(&desk.cwd().join("AGENTS.md"), "Written later.");
                    desk.reload(desk.environment());
                }
                _ => {}
            }
        }
        let requests = desk.model.requests();
        assert_eq!(requests.len(), 12);
        for pair in requests.windows(2) {
            let ((head, messages), (later_head, later)) = (halves(&pair[0]), halves(&pair[1]));
            assert_eq!(later_head, head, "{format:?}, request {}", pair[1].number);
            assert!(later.starts_with(&messages), "{format:?}, request {}", pair[1].number);
            assert!(later.len() > messages.len());
        }
    }
}

#[test]
fn sessions_of_one_place_begin_alike_however_much_time_and_work_is_between() {
    for format in WireFormat::ALL {
        let mut desk = Desk::of_format(format, &[], works);
        assert_eq!(desk.ask("Go"), StopReason::EndTurn);
        let first = desk.session.clone();
        put(&desk.cwd().join("later.txt"), "New in the directory.");
        let ticket = desk.ticket();
        let opening = desk.opening(&desk.client, desk.environment());
        desk.session = desk.sessions.create(ticket, opening);
        desk.client.answer(ticket).expect("a session");
        assert_eq!(desk.ask("Go"), StopReason::EndTurn);
        assert_ne!(desk.session, first);

        let requests = desk.model.requests();
        assert_eq!(halves(&requests[0]), halves(&requests[2]), "{format:?}");
        let (head, _) = halves(&requests[0]);
        let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        for volatile in [first.0.as_str(), today.as_str(), "later.txt"] {
            assert!(!head.contains(volatile), "{volatile} in {head}");
        }
    }
}

/// The service's own rule, applied to every request: nothing is read twice, not even behind a round with more
/// calls than the service looks back for.
#[test]
fn every_token_is_paid_in_full_once() {
    let mut desk = Desk::of_format(WireFormat::AnthropicMessages, &[], works);
    // Less than 512 tokens would not be kept.
    assert_eq!(desk.ask(&"Do many things. ".repeat(100)), StopReason::EndTurn);
    for _ in 0..2 {
        assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    }
    desk.reload(desk.environment());
    assert_eq!(desk.ask("Go"), StopReason::EndTurn);
    let used: Vec<CacheUse> = desk.model.requests().iter().filter_map(|request| request.cache).collect();
    assert_eq!(used.len(), 8);
    assert_eq!(used[0].read, 0);
    for pair in used.windows(2) {
        assert_eq!((pair[1].read, pair[1].fresh), (pair[0].all(), 0), "{used:?}");
    }
}

/// A summary is asked for behind the very request that the cache has; after it, the frame is still read.
#[test]
fn a_compaction_reads_what_was_sent_and_leaves_the_frame_in_the_cache() {
    let models = WireFormat::ALL.map(|format| (format, model_of(format)));
    // Its thinking has a budget, which goes by how long the reply may be.
    let budgeted = (WireFormat::AnthropicMessages, "anthropic/claude-haiku-4-5");
    // So that system text and tools are long enough to be kept by all.
    let instructions = [("AGENTS.md".to_owned(), "Write short functions. ".repeat(1_000))];
    for (format, model) in models.into_iter().chain([budgeted]) {
        let mut desk = Desk::of_format(format, &instructions, works);
        desk.choose("model", model).expect("it is taken");
        for _ in 0..2 {
            assert_eq!(desk.ask("Go"), StopReason::EndTurn);
        }
        assert_eq!(desk.ask("/compact"), StopReason::EndTurn);
        desk.client.entry(|change| matches!(change, Change::Compacted { .. }).then_some(()));
        desk.ask("On");
        let requests = desk.model.requests();
        let at = requests.iter().position(is_summary).expect("a summary was asked for");
        let [before, summary, after] = &requests[at - 1..=at + 1] else { panic!("three requests") };
        let ((_, sent), (_, asked)) = (halves(before), halves(summary));
        assert!(asked.starts_with(&sent), "{format:?}");
        for field in
            ["model", "tools", "system", "instructions", "systemInstruction", "thinking", "reasoning"]
        {
            assert_eq!(summary.body[field], before.body[field], "{format:?}: {field}");
            assert_eq!(after.body[field], before.body[field], "{format:?}: {field}");
        }
        if let (Some(before), Some(summary), Some(after)) = (before.cache, summary.cache, after.cache) {
            assert_eq!((summary.read, summary.fresh), (before.all(), 0));
            assert!(after.read > 0 && after.read < before.read, "{after:?}");
        }
    }
}
