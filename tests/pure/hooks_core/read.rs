//! Parsing of printed results, from clean JSON to the output of typical shell scripts.

use epitome::hooks::event::HookEvent;
use epitome::hooks::normalise::normalise;
use epitome::hooks::output::HistoryAction;
use epitome::hooks::read::{ParsedStdout, read};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::user;

fn object_of(stdout: &str) -> (Value, Vec<String>) {
    match read(stdout.as_bytes()) {
        ParsedStdout::Object { object, warnings } => (Value::Object(object), warnings),
        other => panic!("{stdout:?} was read as {other:?}"),
    }
}

#[test]
fn empty_output_is_no_action_like_an_empty_object() {
    for nothing in ["", "  \n\t\n", "\u{feff}\n"] {
        assert_eq!(read(nothing.as_bytes()), ParsedStdout::Nothing, "{nothing:?}");
    }
    assert_eq!(object_of("{}\n"), (json!({}), vec![]));
}

#[test]
fn every_documented_json_object_is_accepted_unchanged() {
    for printed in [
        r#"{"result": "callback", "callback": "compact"}"#,
        r#"{"result": "callback", "callback": "compact", "callback_args": {"target_conversation_id": "s_01"}}"#,
        r#"{"action": "compact"}"#,
        r#"{"follow_up_messages":["I noticed foo.txt exists. Please remove it."]}"#,
        r#"{"result": "continue", "messages": [{"role": "user", "content": "Please run the linter to check for any issues."}]}"#,
        r#"{"blocked": true, "reason": "Security policy: 'sudo' is not allowed"}"#,
        "{\n  \"blocked\": false\n}\n",
    ] {
        let expected: Value = serde_json::from_str(printed).unwrap();
        assert_eq!(object_of(printed), (expected, vec![]));
    }
}

/// A script that builds its JSON by hand printed the line breaks of the first message unescaped, which is invalid JSON.
/// It only worked with one-line messages.
#[test]
fn simple_compact_with_raw_line_breaks_is_a_mutation() {
    let printed = "{\"result\": \"mutate\", \"messages\": [{\"role\": \"user\", \"content\": \"Previous context summary: Fix the bug\n\tin auth.go\r\nplease\"}]}\n";
    let ParsedStdout::Object { object, warnings } = read(printed.as_bytes()) else {
        panic!("it is a result")
    };
    assert_eq!(warnings, Vec::<String>::new());
    let output = normalise(HookEvent::AgentStop, &object);
    let messages = vec![user("Previous context summary: Fix the bug\n\tin auth.go\r\nplease")];
    assert_eq!(output.action, HistoryAction::Mutate { messages, preserve_recent: 0, target: None });
}

#[test]
fn simple_compact_with_a_double_quote_in_its_text_is_a_failed_run() {
    let printed = "{\"result\": \"mutate\", \"messages\": [{\"role\": \"user\", \"content\": \"Previous context summary: say \"hello\"\"}]}";
    assert!(matches!(read(printed.as_bytes()), ParsedStdout::Invalid(_)));
}

/// The printed script omits the quotes around the summary, so it was never valid JSON.
#[test]
fn the_recipe_completion_script_is_always_a_failed_run() {
    for summary in ["## Summary\n\n### Primary Objective\nFix it", "done"] {
        let printed = format!(
            "{{\"result\": \"mutate\", \"messages\": [{{\"role\": \"user\", \"content\": {summary}}}], \"target_conversation_id\": \"s_01\"}}\n"
        );
        let ParsedStdout::Invalid(why) = read(printed.as_bytes()) else { panic!("{printed} is no JSON") };
        assert!(why.starts_with("it printed something that is not a JSON object: {\"result\""), "{why}");
    }
}

#[test]
fn a_banner_before_the_result_is_skipped_with_a_warning() {
    for printed in [
        "Loading config...\nDone.\n{\"blocked\": true}\n",
        "{\"level\":\"info\",\"msg\":\"starting\"}\n{\"blocked\": true}\n",
        "{\"blocked\": false}\n{\"blocked\": true}",
        "{\"blocked\": true}\nbye",
    ] {
        let (object, warnings) = object_of(printed);
        assert_eq!(object, json!({"blocked": true}), "{printed}");
        assert_eq!(warnings.len(), 1, "{printed}");
    }
}

#[test]
fn an_object_without_a_known_field_is_not_a_result() {
    assert!(matches!(read(b"hello\n{\"level\":\"info\"}\n"), ParsedStdout::Invalid(_)));
}

#[test]
fn json_that_is_not_an_object_is_a_failed_run() {
    for printed in ["[{\"blocked\": true}]", "[\n{\"blocked\":true}\n]", "\"blocked\"", "true", "null", "7"] {
        let ParsedStdout::Invalid(why) = read(printed.as_bytes()) else { panic!("{printed} is no object") };
        assert!(why.starts_with("it printed JSON that is not an object: "), "{why}");
    }
}

#[test]
fn the_excerpt_of_invalid_output_is_short_and_escaped() {
    let ParsedStdout::Invalid(why) = read("\u{1b}[2J\u{202e}evil\u{7}\n".repeat(100).as_bytes()) else {
        panic!("it is no JSON")
    };
    assert!(why.contains("\\u{1b}[2J\\u{202e}evil\\u{7}\\u{a}"), "{why}");
    assert!(!why.chars().any(char::is_control));
    let ParsedStdout::Invalid(why) = read("ä".repeat(500).as_bytes()) else { panic!("it is no JSON") };
    assert!(why.ends_with(&format!("{}…", "ä".repeat(100))), "{why}");
}

#[test]
fn invalid_utf_8_is_replaced_with_a_warning() {
    let ParsedStdout::Object { object, warnings } = read(b"{\"blocked\": true, \"reason\": \"\xff\"}") else {
        panic!("it is a result")
    };
    assert_eq!(object["reason"], "\u{fffd}");
    assert_eq!(warnings.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_bytes_make_the_reader_panic(bytes: Vec<u8>) {
        read(&bytes);
    }

    #[test]
    fn no_combination_of_json_tokens_makes_the_reader_panic(
        pieces in prop::collection::vec(
            prop::sample::select(vec!["{", "}", "[", "]", "\"", "\\", "\n", "\t", ":", ",", "blocked", "true", "ä", "\u{1}"]),
            0..40,
        )
    ) {
        read(pieces.concat().as_bytes());
    }

    /// Any text that a script inserts into a string, except quotes and backslashes, is preserved.
    #[test]
    fn a_string_with_raw_control_characters_is_preserved(text in "[a-z\n\r\t\u{1}ä ]{0,40}") {
        let printed = format!("{{\"reason\": \"{text}\"}}");
        let ParsedStdout::Object { object, .. } = read(printed.as_bytes()) else { panic!("{printed:?}") };
        prop_assert_eq!(object["reason"].as_str(), Some(text.as_str()));
    }

    #[test]
    fn output_of_a_json_library_is_parsed_unchanged(text: String, flag: bool) {
        let value = json!({"blocked": flag, "reason": text});
        let ParsedStdout::Object { object, warnings } = read(value.to_string().as_bytes()) else { panic!("{value}") };
        prop_assert_eq!(Value::Object(object), value);
        prop_assert!(warnings.is_empty());
    }
}
