//! The use of providers' prompt caches: a session's requests begin with the same bytes as long as the view is only
//! appended to, and sessions in one directory share their beginning.

use epitome::config::WireFormat;
use epitome::session::port::SessionPort as _;
use epitome::thread::{Change, StopReason};
use epitome_scripted_model::{CacheUse, ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::session::{Setup, call, model_of};
use epitome_test_harness::{text, write_file};
use serde_json::{Value, json};

/// A cache mark in Anthropic's format, which is not part of the cache key.
const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;

fn is_summary(request: &RecordedRequest) -> bool {
    request.last_user_text().contains("Then write the handover")
}

/// A request up to its messages, and the bytes of its messages. The maximum reply length is omitted: it is
/// learned during the session, and no cache depends on it.
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

/// A model that answers prompts with many concurrent tool calls, followed by a text.
fn works(request: &RecordedRequest) -> Vec<ModelStep> {
    const CALLS: usize = 30;
    if is_summary(request) {
        return vec![text("<summary>Things were done.</summary>")];
    }
    match request.seen().last() {
        Some(SeenPart::Result { .. }) => vec![ModelStep::Think("That is all.".into()), text("All are done.")],
        _ => {
            let calls = (0..CALLS).map(|nth| call(json!({"says": nth.to_string(), "bytes": 40, "a": {}})));
            [ModelStep::Think("Many things.".into()), text("I do all.")].into_iter().chain(calls).collect()
        }
    }
}

#[test]
fn requests_of_a_long_session_extend_the_same_bytes() {
    for format in WireFormat::ALL {
        let mut test = Setup::new().format(format).start(works);
        for turn in 0..6 {
            assert_eq!(test.ask("Go"), StopReason::EndTurn);
            // None of these is visible to the model.
            match turn {
                1 => drop(test.choose("mode", "full").expect("a mode")),
                2 => assert_eq!(test.ask("/context"), StopReason::EndTurn),
                3 => {
                    write_file(&test.cwd().join("AGENTS.md"), "Written later.");
                    test.reload(test.environment());
                }
                _ => {}
            }
        }
        let requests = test.model.requests();
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
fn sessions_in_one_directory_have_the_same_prefix() {
    for format in WireFormat::ALL {
        let mut test = Setup::new().format(format).start(works);
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
        let first = test.session.clone();
        write_file(&test.cwd().join("later.txt"), "New in the directory.");
        let ticket = test.ticket();
        let opening = test.opening(&test.client, test.environment());
        test.session = test.sessions.create(ticket, opening);
        test.client.answer(ticket).expect("a session");
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
        assert_ne!(test.session, first);

        let requests = test.model.requests();
        assert_eq!(halves(&requests[0]), halves(&requests[2]), "{format:?}");
        let (head, _) = halves(&requests[0]);
        let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        for volatile in [first.0.as_str(), today.as_str(), "later.txt"] {
            assert!(!head.contains(volatile), "{volatile} in {head}");
        }
    }
}

/// Applies the service's own caching rule to every request: no token is processed twice, even after a round with more
/// calls than the service looks back.
#[test]
fn every_token_is_paid_in_full_only_once() {
    let mut test = Setup::new().format(WireFormat::AnthropicMessages).start(works);
    // Less than 512 tokens are not cached.
    assert_eq!(test.ask(&"Do many things. ".repeat(100)), StopReason::EndTurn);
    for _ in 0..2 {
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
    }
    test.reload(test.environment());
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let used: Vec<CacheUse> = test.model.requests().iter().filter_map(|request| request.cache).collect();
    assert_eq!(used.len(), 8);
    assert_eq!(used[0].read, 0);
    for pair in used.windows(2) {
        assert_eq!((pair[1].read, pair[1].fresh), (pair[0].all(), 0), "{used:?}");
    }
}

/// The request for a summary extends the cached request; after the compaction, the frame is still cached.
#[test]
fn a_compaction_reads_from_the_cache_and_keeps_the_frame_in_it() {
    let models = WireFormat::ALL.map(|format| (format, model_of(format)));
    // Its thinking budget depends on the maximum reply length.
    let budgeted = (WireFormat::AnthropicMessages, "anthropic/claude-haiku-4-5");
    // Makes system text and tools long enough for all caches.
    let instructions = [("AGENTS.md".to_owned(), "Write short functions. ".repeat(1_000))];
    for (format, model) in models.into_iter().chain([budgeted]) {
        let mut test = Setup::with_files(&instructions).format(format).start(works);
        test.choose("model", model).expect("it is taken");
        for _ in 0..2 {
            assert_eq!(test.ask("Go"), StopReason::EndTurn);
        }
        assert_eq!(test.ask("/compact"), StopReason::EndTurn);
        test.client.entry(|change| matches!(change, Change::Compacted { .. }).then_some(()));
        test.ask("On");
        let requests = test.model.requests();
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
