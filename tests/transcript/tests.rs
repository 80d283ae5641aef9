//! Parsing and writing complete transcripts.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::setup::{FileBody, FileLocation};
use super::*;

const EXAMPLE: &str = r#"# A tool call, told in full.
any agent
needs loadSession
aside usage title
file notes.txt: token=abc
file long.txt <<END
one
  two
END

editor> session/new
agent<  result {"sessionId":"$S1","*":"*"}
agent~  session/update $S1 available_commands /commit /review
editor> session/prompt $S1 "what is in notes.txt?"
model?  user "what is in notes.txt?"  # new lines only
model!  call file_read {"file_path":"notes.txt"}
agent<  session/update $S1 tool_call $C1 file_read pending title="Read notes.txt" kind=read
agent<  session/update $S1 tool_call_update $C1 file_read completed "token=abc"
model?  result file_read "token=abc"
model!  text "It has "
model!  text "a token."
agent<  session/update $S1 text "It has a token."
agent<  result end_turn
then file notes.txt: token=abc
restart
editor> {"jsonrpc":"2.0","id":"x","method":"m"}
agent<  {"jsonrpc":"2.0","id":"x","error":{"code":-32601,"*":"*"}}
editor> raw "{" times 3
agent<  error #null -32700
"#;

#[test]
fn a_transcript_is_written_as_it_was_parsed() {
    let fixture = Fixture::parse(EXAMPLE).expect("the example is well formed");
    assert_eq!(fixture.to_string(), EXAMPLE);
    assert_eq!(fixture.title(), "A tool call, told in full.");
    assert!(fixture.is_for_any_agent());
}

#[test]
fn a_file_may_be_one_line_or_many() {
    let fixture = Fixture::parse(EXAMPLE).expect("the example is well formed");
    let texts: Vec<String> = fixture
        .setups()
        .filter_map(|setup| match setup {
            Setup::File { body, .. } => Some(body.text()),
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["token=abc\n", "one\n  two\n"]);
}

#[test]
fn a_wide_value_may_continue_below_the_gutter() {
    let text = "agent<  result {\"a\":1,\n          \"b\":2}\n";
    let fixture = Fixture::parse(text).expect("the value is whole");
    assert_eq!(fixture.to_string(), "agent<  result {\"a\":1,\"b\":2}\n");
}

#[test]
fn lines_without_a_meaning_are_refused_with_their_number() {
    for (text, line, part) in [
        ("# ok\nagnet< result {}\n", 2, "a line begins with"),
        ("editor> session/prompt $S1 unquoted\n", 1, "in quotes"),
        ("\n\nmodel!  shout \"x\"\n", 3, "a model says"),
        ("file a <<END\nnever\n", 1, "no end"),
        ("file ../a: x\n", 1, "inside of the workspace"),
        ("agent<  session/update $S1 dance\n", 1, "no shorthand"),
    ] {
        let error = Fixture::parse(text).expect_err("the line has no meaning");
        assert_eq!(error.line, line, "{error}");
        assert!(error.message.contains(part), "{error}");
    }
}

fn any_text() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9 ,.#*\"\\\\\n\u{2026}é]{0,40}"
}

fn any_word() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9_]{0,10}"
}

fn any_step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        any_text().prop_map(ModelStep::Text),
        any_text().prop_map(ModelStep::Think),
        (any_word(), any_text())
            .prop_map(|(name, text)| ModelStep::Call { name, input: json!({"text": text, "n": [1, null]}) }),
        (any_text(), any_text()).prop_map(|(query, url)| ModelStep::Search { query, url }),
        prop_oneof![
            Just(ScriptedStop::MaxTokens),
            any_text().prop_map(ScriptedStop::Refusal),
            Just(ScriptedStop::Window),
            Just(ScriptedStop::Pause)
        ]
        .prop_map(ModelStep::Stop),
        (any::<u64>(), any::<u64>()).prop_map(|(input, output)| ModelStep::Usage { input, output }),
        (400u16..600, proptest::option::of(0u64..100), proptest::option::of(any_text()))
            .prop_map(|(status, retry_after, message)| ModelStep::Error { status, retry_after, message }),
        Just(ModelStep::Overflow),
        Just(ModelStep::Cut),
        Just(ModelStep::Hang),
        Just(ModelStep::Wait),
        (0usize..100_000, any_text()).prop_map(|(count, text)| ModelStep::Flood { count, text }),
    ]
}

fn any_seen() -> impl Strategy<Value = SeenPart> {
    prop_oneof![
        Just(SeenPart::Anew),
        Just(SeenPart::Again),
        any_text().prop_map(SeenPart::User),
        any_word().prop_map(SeenPart::UserPart),
        any_text().prop_map(SeenPart::Agent),
        (any_word(), any_text())
            .prop_map(|(name, text)| SeenPart::AgentCall { name, input: json!({"x": text}) }),
        (any_word(), any_text()).prop_map(|(tool, text)| SeenPart::Result { tool, text }),
    ]
}

fn any_body() -> impl Strategy<Value = FileBody> {
    prop_oneof![
        "[a-zA-Z0-9=:# ]{0,30}[a-z]".prop_map(|text| FileBody::Line(text.trim_start().to_owned())),
        proptest::collection::vec("[a-z #>]{0,20}", 0..4)
            .prop_map(|lines| FileBody::Lines { end: "END".into(), lines }),
    ]
}

fn any_setup() -> impl Strategy<Value = Setup> {
    prop_oneof![
        Just(Setup::AnyAgent),
        Just(Setup::NoModel),
        Just(Setup::Restart),
        Just(Setup::Kill),
        any_word().prop_map(Setup::Needs),
        proptest::collection::vec(any_word(), 1..4).prop_map(Setup::Aside),
        (any_word(), any_body()).prop_map(|(path, body)| Setup::File {
            place: FileLocation::Home,
            path,
            body
        }),
        (any_word(), any_body()).prop_map(|(path, body)| Setup::ThenFile { path, body }),
        any_word().prop_map(|path| Setup::ThenNoFile { path }),
        (any_word(), "[a-z0-9/:]{0,12}").prop_map(|(name, value)| Setup::Env { name, value }),
    ]
}

/// Messages of an agent, with and without shorthand.
fn any_agent_message() -> impl Strategy<Value = Value> {
    let update = |update: Value| {
        json!({"jsonrpc": "2.0", "method": "session/update",
        "params": {"sessionId": "s_1", "update": update}})
    };
    prop_oneof![
        any_text().prop_map(move |text| update(json!({"sessionUpdate": "agent_message_chunk",
            "messageId": "m1", "content": {"type": "text", "text": text}}))),
        (any_text(), any_text()).prop_map(move |(title, text)| update(json!({"sessionUpdate": "tool_call",
            "toolCallId": "c1", "title": title, "name": "bash", "kind": "execute", "rawInput": {"command": title},
            "locations": [{"path": format!("/{title}"), "line": 3}],
            "content": [{"type": "content", "content": {"type": "text", "text": text}}]}))),
        any_text().prop_map(move |text| update(json!({"sessionUpdate": "plan",
            "entries": [{"content": text, "priority": "low", "status": "pending"}]}))),
        any_text().prop_map(move |text| update(json!({"sessionUpdate": "other", "text": text}))),
        any_text().prop_map(|text| json!({"jsonrpc": "2.0", "id": 1, "result": {"text": text}})),
        any_text().prop_map(|text| json!({"jsonrpc": "2.0", "id": null,
            "error": {"code": -32600, "message": text, "data": {"x": text}}})),
        any_text().prop_map(|text| json!({"jsonrpc": "2.0", "id": 5, "method": "_ask", "params": {"x": text}})),
    ]
}

fn any_what() -> impl Strategy<Value = LineContent> {
    let agent = any_agent_message().prop_map(|message| {
        let mut book = book::Shorthand::default();
        let detail = agent::WriteDetail { ids: true, calls: true };
        let words = agent::words_of(&message, &mut book, detail);
        let expected = Expected::read(&words).expect("what is written has a meaning");
        LineContent::Agent(words, expected)
    });
    let editor = prop_oneof![
        any_text().prop_map(|text| vec![
            LineWord::Bare("session/prompt".into()),
            LineWord::Bare("$S1".into()),
            LineWord::Json(Value::String(text))
        ]),
        any_text().prop_map(|text| vec![LineWord::Bare("raw".into()), LineWord::Json(Value::String(text))]),
    ];
    let editor = editor.prop_map(|words| {
        let act = EditorAct::read(&words).expect("the words are well formed");
        LineContent::Editor(words, act)
    });
    prop_oneof![
        Just(LineContent::Blank),
        any_setup().prop_map(LineContent::Setup),
        editor,
        agent,
        any_seen().prop_map(LineContent::Sees),
        any_step().prop_map(LineContent::Says),
    ]
}

proptest! {
    #[test]
    fn parsing_a_written_transcript_gives_the_same_lines(whats in proptest::collection::vec(any_what(), 0..8)) {
        let lines = whats.into_iter().map(|what| FixtureLine { number: 0, what, comment: None }).collect();
        let fixture = Fixture { lines };
        let text = fixture.to_string();
        let mut again = Fixture::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        again.lines.iter_mut().for_each(|line| line.number = 0);
        prop_assert_eq!(again, fixture, "{}", text);
    }

    #[test]
    fn the_words_for_a_message_match_the_message(message in any_agent_message()) {
        let mut book = book::Shorthand::default();
        book.record_editor_message(&json!({"id": 1, "method": "session/prompt"}));
        let words = agent::words_of(&message, &mut book, agent::WriteDetail { ids: true, calls: true });
        let expected = Expected::read(&words).expect("what is written has a meaning");
        prop_assert_eq!(expected.compare(&message, &mut book), agent::Comparison::Same, "{:?}", words);
    }
}

/// Compares the line with a text chunk of a session `s_1`.
fn against_chunk(line: &str, text: &str) -> agent::Comparison {
    let (words, _) = words::read(line).expect("the line is well formed");
    let expected = Expected::read(&words).expect("the line has a meaning");
    let message = json!({"method": "session/update", "params": {"sessionId": "s_1", "update":
        {"sessionUpdate": "agent_message_chunk", "messageId": "m1", "content": {"type": "text", "text": text}}}});
    expected.compare(&message, &mut book::Shorthand::default())
}

#[test]
fn a_text_may_be_split_into_any_chunks() {
    use agent::Comparison::{Different, More, Part, Same};
    let line = r#"session/update $S1 text "Hello there""#;
    assert_eq!(against_chunk(line, "Hello there"), Same);
    assert_eq!(against_chunk(line, "Hel"), More);
    assert_eq!(against_chunk(line, "Hello there, you"), Part("Hello there".len()));
    assert_eq!(against_chunk(line, "Hi"), Different);
    assert_eq!(against_chunk(r#"session/update $S1 think "Hello""#, "Hello"), Different);
    assert_eq!(against_chunk(r#"session/update $S1 text "Hel…""#, "He"), More);
}

#[test]
fn an_answer_belongs_to_the_oldest_open_request_by_default() {
    let mut book = book::Shorthand::default();
    book.record_editor_message(&json!({"id": 1, "method": "session/prompt"}));
    book.record_editor_message(&json!({"id": 2, "method": "session/list"}));
    let verdict = |line: &str, id: u64, book: &mut book::Shorthand| {
        let (words, _) = words::read(line).expect("the line is well formed");
        let expected = Expected::read(&words).expect("the line has a meaning");
        expected.compare(&json!({"id": id, "result": {"sessions": []}}), book)
    };
    assert_eq!(verdict(r#"result {"sessions":[]}"#, 2, &mut book), agent::Comparison::Different);
    assert_eq!(verdict(r#"result session/list {"sessions":[]}"#, 2, &mut book), agent::Comparison::Same);
    assert_eq!(verdict(r#"result #2 {"sessions":[]}"#, 2, &mut book), agent::Comparison::Same);
    assert_eq!(verdict(r#"result {"sessions":[]}"#, 1, &mut book), agent::Comparison::Same);
}
