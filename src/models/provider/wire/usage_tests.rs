//! The same usage as reported by each service: they count differently, but the results must be equal.

use super::stream::Decoding;
use crate::ProviderEvent;
use crate::collect::Collector;
use crate::endpoint::{Endpoint, test_chat_endpoint, test_endpoint};
use crate::models::cost;
use epitome_config::Settings;
use epitome_thread::Usage;

/// Usage of a request of 10,000 tokens, of which 8,000 were read from the cache and 1,500 written to it, and a reply of
/// 1,000 tokens, of which 600 are thinking.
const STORY: [(&str, &str); 4] = [
    // Uncached, read and written tokens: three separate numbers.
    (
        "anthropic",
        r#"{"type":"message_start","message":{"usage":{"input_tokens":500,"cache_read_input_tokens":8000,"cache_creation_input_tokens":1500,"output_tokens":1}}}
{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Done."}}
{"type":"content_block_stop","index":0}
{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1000,"output_tokens_details":{"thinking_tokens":600}}}
{"type":"message_stop"}"#,
    ),
    // The total, which includes tokens read and written.
    (
        "responses",
        r#"{"type":"response.created","response":{"status":"in_progress"}}
{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"msg_1","role":"assistant","content":[]}}
{"type":"response.output_text.delta","output_index":0,"content_index":0,"item_id":"msg_1","delta":"Done."}
{"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Done."}]}}
{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":10000,"input_tokens_details":{"cached_tokens":8000,"cache_write_tokens":1500},"output_tokens":1000,"output_tokens_details":{"reasoning_tokens":600},"total_tokens":11000}}}"#,
    ),
    (
        "chat",
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"Done."},"finish_reason":null}]}
{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}
{"choices":[],"usage":{"prompt_tokens":10000,"prompt_tokens_details":{"cached_tokens":8000,"cache_write_tokens":1500},"completion_tokens":1000,"completion_tokens_details":{"reasoning_tokens":600},"total_tokens":11000}}
[DONE]"#,
    ),
    // The total, which includes tokens read; writes aren't billed. Candidates exclude thoughts.
    (
        "gemini",
        r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"Done."}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":10000,"cachedContentTokenCount":8000,"candidatesTokenCount":400,"thoughtsTokenCount":600,"totalTokenCount":11000}}"#,
    ),
];

fn endpoint_of(service: &str) -> Endpoint {
    match service {
        "anthropic" => test_endpoint("anthropic/claude-sonnet-5-5"),
        "responses" => test_endpoint("openai/gpt-6-sol"),
        "chat" => test_chat_endpoint("openai/gpt-6-sol"),
        "gemini" => test_endpoint("gemini/gemini-4-argon"),
        other => panic!("no such service: {other}"),
    }
}

fn usage_of(endpoint: &Endpoint, events: &str) -> Usage {
    let mut decoding = Decoding::new(endpoint.clone(), "p".into(), None);
    let mut out = Vec::new();
    for data in events.lines() {
        decoding.push(format!("data: {data}\n\n").as_bytes(), &mut out).expect("a sound stream");
    }
    decoding.end(&mut out).expect("a whole stream");
    let mut collector = Collector::new(&endpoint.name);
    assert!(out.iter().any(|event| matches!(event, ProviderEvent::Text(_))), "{out:?}");
    for event in out {
        collector.feed(event);
    }
    collector.finish().usage.expect("usage was reported")
}

#[test]
fn equal_tokens_give_equal_usage_and_list_price_cost() {
    let all = Usage {
        input: 10_000,
        output: 1_000,
        cache_read: 8_000,
        cache_write: 1_500,
        thinking: 600,
        searches: 0,
        context: 0,
    };
    // Calculated by hand, in dollars per million: 500 fresh, 8,000 read, 1,500 written, 1,000 output.
    let cases = [
        (all, 500.0 * 2.0 + 8_000.0 * 0.1 + 1_500.0 * 2.5 + 1_000.0 * 10.0),
        (all, 500.0 * 2.0 + 8_000.0 * 0.2 + 1_500.0 * 2.5 + 1_000.0 * 10.0),
        (all, 500.0 * 2.0 + 8_000.0 * 0.2 + 1_500.0 * 2.5 + 1_000.0 * 10.0),
        (Usage { cache_write: 0, ..all }, 2_000.0 * 2.0 + 8_000.0 * 0.1 + 1_000.0 * 10.0),
    ];
    for ((service, events), (expected, millionths)) in STORY.into_iter().zip(cases) {
        let endpoint = endpoint_of(service);
        let usage = usage_of(&endpoint, events);
        assert_eq!(usage, expected, "{service}");
        let dollars = cost(&Settings::default(), &endpoint.name, &usage).expect("the price is known");
        assert!((dollars * 1e6 - millionths).abs() < 1e-6, "{service}: {dollars}");
    }
}

/// Regression: a server that reported -1 as an unsigned number ended the session's task, where the tokens of the turn were
/// added up.
#[test]
fn impossible_numbers_of_tokens_are_not_believed() {
    let impossible = format!(":{}", u64::MAX);
    for (service, events) in STORY {
        let endpoint = endpoint_of(service);
        let reported = events.replace(":10000", &impossible).replace(":500,", &format!("{impossible},"));
        assert!(reported.contains(&impossible), "{service}");
        let usage = usage_of(&endpoint, &reported);
        assert!(usage.input <= 9_500 && usage.output == 1_000, "{service}: {usage:?}");
    }
}

/// Groq sends the usage also if that was refused to be asked for.
#[test]
fn usage_is_found_wherever_it_is() {
    for usage in [
        r#""x_groq":{"usage":{"prompt_tokens":4,"completion_tokens":6}}"#,
        r#""usage":{"prompt_tokens":4,"completion_tokens":6},"x_groq":{"id":"r"}"#,
        r#""usage":null,"x_groq":{"usage":{"prompt_tokens":4,"completion_tokens":6}}"#,
    ] {
        let chunk =
            format!(r#"{{"choices":[{{"delta":{{"content":"Hi."}},"finish_reason":"stop"}}],{usage}}}"#);
        let found = usage_of(&endpoint_of("chat"), &chunk);
        assert_eq!((found.input, found.output), (4, 6), "{usage}");
    }
}

/// Mistral does not count audio among the tokens of the prompt, and it was taken for thinking, at the price of a reply. Some
/// gateways do the same with what was cached.
#[test]
fn tokens_that_only_the_total_counts_belong_to_the_prompt_or_to_the_thinking() {
    for (usage, expected) in [
        (r#""total_tokens":3264,"prompt_audio_seconds":203"#, (2_629, 635, 0)),
        (r#""total_tokens":3264,"prompt_audio_seconds":null"#, (4, 3_260, 2_625)),
        (r#""total_tokens":1639,"prompt_tokens_details":{"cached_tokens":1000}"#, (1_004, 635, 0)),
        (r#""total_tokens":739,"completion_tokens_details":{"reasoning_tokens":100}"#, (4, 735, 100)),
        (r#""total_tokens":639,"reasoning_tokens":91"#, (4, 635, 91)),
        (r#""total_tokens":639,"completion_tokens_details":{"reasoning_tokens":100}"#, (4, 635, 100)),
    ] {
        let chunk = format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":[{{"type":"text","text":"Hi."}}]}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":4,"completion_tokens":635,{usage}}}}}"#
        );
        let found = usage_of(&endpoint_of("chat"), &chunk);
        assert_eq!((found.input, found.output, found.thinking), expected, "{usage}");
    }
}
