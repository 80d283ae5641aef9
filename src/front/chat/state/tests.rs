//! The chat without a terminal and without an agent: what keys and messages do, and what is shown.

use epitome_session_api::QuestionReply;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyModifiers};
use ratatui::style::Modifier;
use serde_json::{Value, json};

use super::*;
use crate::images::PromptImage;

/// A chat whose session is open, with a clock that advances by one second per event.
struct ChatFixture {
    chat: ChatState,
    now: Duration,
    /// Prompts that were kept for later chats.
    remembered: Vec<ChatEffect>,
}

impl ChatFixture {
    fn new() -> ChatFixture {
        let (chat, effects) = ChatState::new(
            PathBuf::from("/home/ann/project"),
            ChatStart::Session { session: None, prompt: None },
            &[],
        );
        let begin = ChatRequest::Create { cwd: PathBuf::from("/home/ann/project") };
        assert_eq!(effects, [ChatEffect::Request(begin)]);
        let mut fixture = ChatFixture { chat, now: Duration::ZERO, remembered: Vec::new() };
        let option = |id: &str, category: &str, values: [&str; 2]| {
            let options: Vec<Value> =
                values.iter().map(|value| json!({ "value": value, "name": value })).collect();
            json!({ "configId": id, "name": id, "category": category, "type": "select", "currentValue": values[0],
                    "options": options })
        };
        let options =
            json!([option("mode", "mode", ["ask", "auto"]), option("model", "model", ["a/b", "c/d"])]);
        let compact = json!([{ "type": "command", "name": "compact", "description": "Replace the conversation",
                               "input": { "type": "text", "hint": "[dry]" } }]);
        fixture.receive(AgentMessage::Opened {
            session: "s_1".to_owned().into(),
            options: serde_json::from_value(options).expect("options"),
            commands: slash_commands(serde_json::from_value(compact).expect("commands")),
        });
        fixture
    }

    fn event(&mut self, event: ChatEvent) -> Vec<ChatEffect> {
        self.now += Duration::from_secs(1);
        let mut effects = self.chat.update(event, self.now);
        self.remembered.extend(effects.extract_if(.., |effect| matches!(effect, ChatEffect::Remember(_))));
        effects
    }

    fn receive(&mut self, message: AgentMessage) {
        assert_eq!(self.event(ChatEvent::Agent(message)), []);
    }

    fn update_of(&mut self, session: &str, update: Value) {
        let notification = json!({ "sessionId": session, "update": update });
        let notification = serde_json::from_value(notification).expect("an update of the protocol");
        self.receive(AgentMessage::Update(Box::new(notification)));
    }

    fn update(&mut self, update: Value) {
        self.update_of("s_1", update);
    }

    fn say(&mut self, id: &str, text: &str) {
        self.update(json!({ "sessionUpdate": "agent_message_chunk", "messageId": id,
                            "content": { "type": "text", "text": text } }));
    }

    fn state(&mut self, state: Value) {
        let mut update = state;
        update["sessionUpdate"] = json!("state_update");
        self.update(update);
    }

    fn card(&mut self, number: u64, lines: usize) {
        let text: String = (0..lines).map(|line| format!("line {line}\n")).collect();
        let request = json!({
            "sessionId": "s_1", "title": "Run `make`",
            "subject": { "type": "tool_call", "toolCall": {
                "toolCallId": "c1", "content": [{ "type": "content", "content": { "type": "text", "text": text } }]
            } },
            "options": [
                { "optionId": "allow_once", "name": "Allow", "kind": "allow_once" },
                { "optionId": "reject_once", "name": "Reject", "kind": "reject_once" },
            ],
        });
        let request = Box::new(serde_json::from_value(request).expect("a request"));
        self.receive(AgentMessage::Card { card: number, request });
    }

    fn press(&mut self, code: KeyCode) -> Vec<ChatEffect> {
        self.event(ChatEvent::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    fn ctrl(&mut self, letter: char) -> Vec<ChatEffect> {
        self.event(ChatEvent::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL)))
    }

    fn types(&mut self, text: &str) {
        for letter in text.chars() {
            assert_eq!(self.press(KeyCode::Char(letter)), [], "{letter}");
        }
    }

    fn screen(&mut self, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a screen");
        terminal.draw(|frame| draw(&mut self.chat, frame, self.now)).expect("it is drawn");
        let buffer = terminal.backend().buffer();
        let cells = |row: u16| (0..columns).map(move |column| buffer[(column, row)].symbol());
        (0..rows).map(|row| cells(row).collect::<String>().trim_end().to_owned()).collect()
    }

    fn shows(&mut self, text: &str) -> bool {
        self.screen(80, 24).join("\n").contains(text)
    }
}

/// Input methods show their candidates at the cursor of the terminal, which was hidden and stayed somewhere else.
#[test]
fn the_terminals_cursor_is_where_the_next_letter_goes() {
    let mut fixture = ChatFixture::new();
    let cursor = |fixture: &mut ChatFixture| {
        let mut terminal = Terminal::new(TestBackend::new(40, 12)).expect("a screen");
        terminal.draw(|frame| draw(&mut fixture.chat, frame, fixture.now)).expect("it is drawn");
        let at = terminal.backend().cursor_position();
        assert!(!terminal.backend().buffer()[at].modifier.contains(Modifier::REVERSED), "two cursors");
        (at.x, at.y)
    };
    assert_eq!(cursor(&mut fixture), (0, 10));
    fixture.types("漢字");
    assert_eq!(cursor(&mut fixture), (4, 10));
    fixture.press(KeyCode::Left);
    assert_eq!(cursor(&mut fixture), (2, 10));
}

/// Regression: on a narrow screen, the list of keys was broken within words ("the se", "lected option").
#[test]
fn the_list_of_keys_is_broken_between_words() {
    let mut fixture = ChatFixture::new();
    assert_eq!(fixture.press(KeyCode::F(1)), []);
    let screen = fixture.screen(40, 40);
    let rows: Vec<&str> = screen.iter().map(|row| row.trim_matches(['│', ' '])).collect();
    assert!(rows.contains(&"Enter: send; answer with the selected"), "{rows:?}");
}

fn prompt(text: &str) -> ChatEffect {
    ChatEffect::Request(ChatRequest::Prompt {
        session: "s_1".to_owned().into(),
        text: text.to_owned(),
        images: Vec::new(),
        cwd: PathBuf::from("/home/ann/project"),
    })
}

fn cancel() -> ChatEffect {
    ChatEffect::Request(ChatRequest::Cancel { session: "s_1".to_owned().into() })
}

#[test]
fn a_turn_is_shown_from_its_prompt_to_its_end() {
    let mut fixture = ChatFixture::new();
    fixture.types("fix it");
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("fix it")]);
    fixture.update(json!({ "sessionUpdate": "user_message", "messageId": "m1",
                        "content": [{ "type": "text", "text": "fix it" }] }));
    fixture.state(json!({ "state": "running" }));
    fixture.say("m2.0", "I **edit** the fi");
    assert!(fixture.shows("I edit the") && fixture.shows("working"));
    fixture.update(json!({
        "sessionUpdate": "tool_call_update", "toolCallId": "c1", "title": "Edit `a.rs`", "status": "completed",
        "content": [{ "type": "diff",
            "changes": [{ "operation": "modify", "path": "/home/ann/project/a.rs" }],
            "patch": { "format": "git_patch", "text": "--- a\n+++ b\n@@ -1 +1 @@\n-one\n+two\n" } }],
    }));
    fixture.say("m3.0", "Done.");
    fixture.update(json!({ "sessionUpdate": "usage_update", "used": 12_000, "size": 200_000,
                        "cost": { "amount": 0.031, "currency": "USD" } }));
    fixture.update(json!({ "sessionUpdate": "session_info_update", "title": "Fix it" }));
    fixture.state(json!({ "state": "idle", "stopReason": "end_turn" }));
    let shown = fixture.screen(80, 24);
    let expected = [
        "› fix it",
        "",
        "I edit the fi",
        "",
        "● Edit a.rs",
        "    @@ -1 +1 @@",
        "    -one",
        "    +two",
        "",
        "Done.",
    ];
    assert!(shown.join("\n").contains(&expected.join("\n")), "{shown:#?}");
    let status = shown.last().expect("a row");
    assert_eq!(status, "ask · a/b · Fix it                        ░░░░░░░░░░ 6 % · 12.0k of 200k · $0.03");
}

#[test]
fn small_screens_show_the_same() {
    let mut fixture = ChatFixture::new();
    fixture.say("m", "A reply with 日本語 and שלום, which is wrapped.\n");
    fixture.update(json!({ "sessionUpdate": "usage_update", "used": 150_000, "size": 200_000 }));
    fixture.types("/comp");
    let shown = fixture.screen(40, 12);
    assert_eq!(shown.len(), 12);
    assert!(shown.iter().any(|row| row.contains("/compact")), "{shown:#?}");
    assert!(shown[11].ends_with("75 %"), "{shown:#?}");
    // Nothing is drawn, and nothing breaks, where there is no room.
    for (columns, rows) in [(1, 1), (3, 2), (4, 3), (10, 5), (300, 100)] {
        fixture.card(9, 30);
        fixture.screen(columns, rows);
        fixture.receive(AgentMessage::CardWithdrawn(9));
        fixture.screen(columns, rows);
    }
}

#[test]
fn a_card_is_answered_by_number_or_selection() {
    let mut fixture = ChatFixture::new();
    fixture.state(json!({ "state": "requires_action" }));
    for (number, keys, option) in [
        (1, vec![KeyCode::Char('1')], "allow_once"),
        (2, vec![KeyCode::Enter], "allow_once"),
        (3, vec![KeyCode::Down, KeyCode::Enter], "reject_once"),
    ] {
        fixture.card(number, 2);
        assert!(fixture.shows("Run make") && fixture.shows("line 1") && fixture.shows("2. Reject"));
        let effects: Vec<ChatEffect> = keys.into_iter().flat_map(|key| fixture.press(key)).collect();
        let decide = ChatRequest::Decide { card: number, option: option.to_owned().into() };
        assert_eq!(effects, [ChatEffect::Request(decide)]);
        assert!(!fixture.shows("Run make"));
    }
    // After a letter, which was meant for the draft, Enter was meant for it too.
    fixture.card(5, 2);
    fixture.screen(80, 24);
    fixture.press(KeyCode::Char('y'));
    let enter = ChatEvent::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
    assert_eq!(fixture.chat.update(enter, fixture.now + Duration::from_millis(50)), []);
    fixture.receive(AgentMessage::CardWithdrawn(5));
    // A long one must be read first, and letters are not answers.
    fixture.card(4, 100);
    fixture.screen(80, 24);
    assert_eq!(fixture.press(KeyCode::Char('y')), []);
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("there is more to read"));
    for _ in 0..10 {
        fixture.press(KeyCode::PageDown);
        fixture.screen(80, 24);
    }
    assert!(fixture.shows("line 99"));
    assert_eq!(fixture.press(KeyCode::Enter).len(), 1);
}

/// Regression: a text that was pasted while a card was open was lost.
#[test]
fn a_paste_answers_no_card_and_waits_in_the_draft() {
    let mut fixture = ChatFixture::new();
    fixture.types("see ");
    fixture.card(1, 2);
    fixture.screen(80, 24);
    assert_eq!(fixture.event(ChatEvent::Paste("1\n2".to_owned())), []);
    assert!(fixture.shows("Run make") && fixture.shows("pasted"));
    // Enter right behind it was meant for the draft too.
    let enter = ChatEvent::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
    assert_eq!(fixture.chat.update(enter, fixture.now + Duration::from_millis(50)), []);
    assert!(matches!(
        fixture.press(KeyCode::Char('2'))[..],
        [ChatEffect::Request(ChatRequest::Decide { .. })]
    ));
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("see 1\n2")]);
}

#[test]
fn a_withdrawn_card_cannot_be_answered() {
    let mut fixture = ChatFixture::new();
    fixture.card(1, 1);
    fixture.receive(AgentMessage::CardWithdrawn(1));
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(!fixture.shows("Run make"));
}

#[test]
fn commands_are_completed_and_hinted() {
    let mut fixture = ChatFixture::new();
    fixture.types("/");
    assert!(fixture.shows("/compact") && fixture.shows("/sessions"));
    fixture.types("com");
    // Enter completes first.
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("/compact") && fixture.shows("[dry]"));
    fixture.types("dry");
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("/compact dry")]);
    fixture.types("/mod");
    fixture.press(KeyCode::Down);
    fixture.press(KeyCode::Tab);
    assert_eq!(fixture.press(KeyCode::Enter), []);
    // The list of modes.
    assert!(fixture.shows("auto"));
    fixture.press(KeyCode::Down);
    let set = ChatRequest::SetOption {
        session: "s_1".to_owned().into(),
        option: "mode".to_owned().into(),
        value: wire::SessionConfigOptionValue::Id { value: "auto".to_owned().into() },
    };
    assert_eq!(fixture.press(KeyCode::Enter), [ChatEffect::Request(set.clone())]);
    // The same with one key.
    assert_eq!(fixture.press(KeyCode::BackTab), [ChatEffect::Request(set)]);
}

#[test]
fn ctrl_c_clears_then_cancels_then_leaves() {
    let mut fixture = ChatFixture::new();
    fixture.types("a thought");
    assert_eq!(fixture.ctrl('c'), []);
    assert!(!fixture.shows("a thought") && fixture.shows("Ctrl+C again to leave"));
    assert_eq!(fixture.ctrl('c'), [ChatEffect::Leave]);
    let mut fixture = ChatFixture::new();
    fixture.state(json!({ "state": "running" }));
    assert_eq!(fixture.ctrl('c'), [cancel()]);
    // Any other key in between, or too much time.
    fixture.types("x");
    assert_eq!(fixture.ctrl('c'), []);
    fixture.now += Duration::from_secs(5);
    assert_eq!(fixture.ctrl('c'), [cancel()]);
    assert_eq!(fixture.press(KeyCode::Esc), [cancel()]);
    fixture.state(json!({ "state": "idle", "stopReason": "cancelled" }));
    assert_eq!(fixture.press(KeyCode::Esc), []);
    assert_eq!(fixture.ctrl('d'), [ChatEffect::Leave]);
}

/// Regression: the remark stayed on the screen until the next key, and so promised more than the two seconds.
#[test]
fn ctrl_c_leaves_only_while_the_screen_says_so() {
    let mut fixture = ChatFixture::new();
    fixture.ctrl('c');
    assert!(fixture.chat.is_animated() && fixture.shows("Ctrl+C again to leave"));
    fixture.now += Duration::from_secs(3);
    assert!(!fixture.shows("Ctrl+C again to leave") && !fixture.chat.is_animated());
    assert_eq!(fixture.ctrl('c'), []);
}

/// Regression: a reply that was cancelled just ended within a word.
#[test]
fn a_cancelled_turn_says_so() {
    let mut fixture = ChatFixture::new();
    fixture.state(json!({ "state": "running" }));
    fixture.say("m1", "Half of a sen");
    fixture.state(json!({ "state": "idle", "stopReason": "cancelled" }));
    assert!(fixture.shows("Half of a sen\n\nCancelled"));
}

/// Regression: rows that a narrower screen adds were taken for new ones below, so that another part was shown.
#[test]
fn what_is_read_stays_on_a_narrower_screen() {
    let mut fixture = ChatFixture::new();
    let line = |number: usize| format!("line {number} of a reply that is broken at forty columns\n");
    fixture.say("m", &(0..200).map(line).collect::<String>());
    fixture.state(json!({ "state": "idle", "stopReason": "end_turn" }));
    fixture.screen(80, 24);
    fixture.press(KeyCode::PageUp);
    fixture.press(KeyCode::PageUp);
    for columns in [80, 40, 80] {
        let screen = fixture.screen(columns, 24).join("\n");
        assert!(screen.contains("line 160 of") && !screen.contains("line 162 of"), "{columns}: {screen}");
    }
}

#[test]
fn ctrl_z_suspends_and_changes_nothing() {
    let mut fixture = ChatFixture::new();
    fixture.types("a thought");
    assert_eq!(fixture.ctrl('z'), [ChatEffect::Suspend]);
    fixture.card(1, 1);
    assert_eq!(fixture.ctrl('z'), [ChatEffect::Suspend]);
    fixture.receive(AgentMessage::CardWithdrawn(1));
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("a thought")]);
}

/// Regression: rows were counted as if words were broken, so that the first row of a prompt with long words was hidden.
#[test]
fn all_rows_of_a_short_draft_are_shown() {
    for (word, words, columns) in [("averyverylongwordabc", 4, 39), ("abcde", 3, 8), ("日本語", 2, 8)] {
        let mut fixture = ChatFixture::new();
        let text = vec![word; words].join(" ");
        fixture.event(ChatEvent::Paste(text));
        let screen = fixture.screen(columns, 24).concat().replace(' ', "");
        assert_eq!(screen.matches(word).count(), words, "{word}");
    }
}

#[test]
fn a_prompt_that_was_not_taken_comes_back() {
    let mut fixture = ChatFixture::new();
    fixture.types("hello");
    fixture.press(KeyCode::Enter);
    fixture.receive(AgentMessage::PromptFailed {
        text: "hello".to_owned(),
        why: "Interrupted: send it again".to_owned(),
    });
    assert!(fixture.shows("Interrupted: send it again"));
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("hello")]);
    // Up returns to what was sent.
    assert_eq!(fixture.press(KeyCode::Up), []);
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("hello")]);
}

/// Regression: of several prompts that waited when the turn was cancelled, only the first one came back.
#[test]
fn all_prompts_that_were_not_taken_come_back() {
    let mut fixture = ChatFixture::new();
    fixture.state(json!({ "state": "running" }));
    for text in ["one", "two"] {
        fixture.types(text);
        fixture.press(KeyCode::Enter);
    }
    for text in ["one", "two"] {
        fixture.receive(AgentMessage::PromptFailed { text: text.to_owned(), why: "Cancelled".to_owned() });
    }
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("one\ntwo")]);
}

#[test]
fn prompts_that_wait_are_shown_until_they_are_taken() {
    let mut fixture = ChatFixture::new();
    fixture.state(json!({ "state": "running" }));
    fixture.types("and then");
    fixture.press(KeyCode::Enter);
    assert!(fixture.shows("⏳") && fixture.shows("and then") && !fixture.shows("› and then"));
    fixture.update(json!({ "sessionUpdate": "user_message", "messageId": "m5",
                        "content": [{ "type": "text", "text": "and then" }] }));
    assert!(!fixture.shows("⏳") && fixture.shows("› and then"));
}

fn session(id: &str, cwd: &str, title: &str) -> ChatSession {
    ChatSession {
        id: id.to_owned(),
        cwd: cwd.into(),
        title: Some(title.to_owned()),
        age: "2 days ago".to_owned(),
        excerpt: String::new(),
    }
}

#[test]
fn another_session_is_opened_from_the_list() {
    let mut fixture = ChatFixture::new();
    fixture.say("m", "old words");
    let list = ChatRequest::List { cwd: PathBuf::from("/home/ann/project"), cursor: None };
    assert_eq!(fixture.press(KeyCode::F(2)), [ChatEffect::Request(list)]);
    let parser = session("s_2", "/home/ann/project", "Parser\u{1b}[2J");
    fixture.receive(AgentMessage::Sessions { sessions: vec![parser], is_next: false, cursor: None });
    assert!(fixture.shows("Parser\\u{1b}[2J  2 days ago"));
    let effects = fixture.press(KeyCode::Enter);
    let resume = ChatRequest::Resume { session: "s_2".to_owned().into(), cwd: "/home/ann/project".into() };
    let close = ChatRequest::Close { session: "s_1".to_owned().into() };
    assert_eq!(effects, [ChatEffect::Request(close), ChatEffect::Request(resume)]);
    assert!(!fixture.shows("old words"));
    fixture.say("m", "of the closed one");
    fixture.update_of(
        "s_2",
        json!({ "sessionUpdate": "agent_message", "messageId": "m",
                                  "content": [{ "type": "text", "text": "of the resumed one" }] }),
    );
    // Its last word may still become something else.
    fixture.update_of("s_2", json!({ "sessionUpdate": "state_update", "state": "idle" }));
    assert!(fixture.shows("of the resumed one") && !fixture.shows("of the closed one"));
}

/// Regression: what the daemon still sent of the session that `/new` had left was shown as the new one's.
#[test]
fn a_session_that_was_left_is_not_shown_in_a_new_one() {
    let mut fixture = ChatFixture::new();
    fixture.types("/new");
    fixture.press(KeyCode::Enter);
    fixture.say("m", "old words");
    fixture.update(json!({ "sessionUpdate": "session_info_update", "title": "Old title" }));
    assert!(!fixture.shows("old words") && !fixture.shows("Old title"));
}

/// Regression: the user chose another session while one was still being opened. The late answer for the first one took
/// its place below the conversation of the second, and prompts went there.
#[test]
fn a_session_that_is_being_opened_is_waited_for() {
    let mut fixture = ChatFixture::new();
    fixture.types("/new");
    let opened = fixture.press(KeyCode::Enter);
    assert!(matches!(opened[..], [_, ChatEffect::Request(ChatRequest::Create { .. })]), "{opened:?}");
    fixture.types("/new");
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("still being opened"));
    fixture.receive(AgentMessage::OpenFailed("The disk is full.".to_owned()));
    fixture.types("/new");
    assert_eq!(fixture.press(KeyCode::Enter).len(), 1);
}

#[test]
fn a_running_turn_is_not_left_for_another_session() {
    let mut fixture = ChatFixture::new();
    fixture.state(json!({ "state": "running" }));
    fixture.types("/new");
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("cancel the turn first"));
}

#[test]
fn what_is_read_stays_while_more_arrives() {
    let mut fixture = ChatFixture::new();
    (0..100).for_each(|line| fixture.say("m", &format!("row {line}\n")));
    assert!(fixture.shows("row 99") && !fixture.shows("row 50\n"));
    for _ in 0..2 {
        fixture.press(KeyCode::PageUp);
        fixture.screen(80, 24);
    }
    let before = fixture.screen(80, 24);
    (100..200).for_each(|line| fixture.say("m", &format!("row {line}\n")));
    let after = fixture.screen(80, 24);
    assert_eq!(before[..20], after[..20]);
    assert!(after.join("\n").contains("↓ "), "{after:#?}");
    fixture.event(ChatEvent::Wheel { up: false });
    assert_ne!(fixture.screen(80, 24)[..20], after[..20]);
    // Another width keeps the end in view after a new prompt.
    fixture.types("x");
    fixture.press(KeyCode::Enter);
    assert!(fixture.screen(40, 12).iter().any(|row| row == "row 199"));
}

#[test]
fn output_of_a_command_is_text_without_escape_sequences() {
    let mut fixture = ChatFixture::new();
    fixture.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "title": "Run `make`",
                        "status": "in_progress", "content": [{ "type": "terminal", "terminalId": "t" }] }));
    for piece in ["10%\r", "\u{1b}[31", "m100%\n\u{1b}]0;owned\u{7}done\n"] {
        let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, piece);
        fixture.update(json!({ "sessionUpdate": "terminal_output_chunk", "terminalId": "t", "data": data }));
    }
    fixture.update(
        json!({ "sessionUpdate": "terminal_update", "terminalId": "t", "exitStatus": { "exitCode": 2 } }),
    );
    let shown = fixture.screen(80, 24).join("\n");
    assert!(shown.contains("    100%\n    done\n    exit code 2"), "{shown}");
    assert!(!shown.contains("10%\n") && !shown.contains("owned"), "{shown}");
}

#[test]
fn errors_and_compactions_are_shown() {
    let mut fixture = ChatFixture::new();
    fixture.update(
        json!({ "sessionUpdate": "compaction_update", "compactionId": "k", "status": "in_progress" }),
    );
    assert!(fixture.shows("Compacting…"));
    fixture.update(json!({ "sessionUpdate": "compaction_update", "compactionId": "k", "status": "completed",
        "summary": [{ "type": "text", "text": "They did things." }, { "type": "text", "text": "Compacted e1 to e9." }] }));
    assert!(fixture.shows("Compacted e1 to e9.") && !fixture.shows("They did things."));
    assert_eq!(fixture.ctrl('o'), []);
    assert!(fixture.shows("They did things."));
    fixture.state(json!({ "state": "idle", "stopReason": "error",
                       "error": { "code": -32603, "message": "The key was refused", "data": { "details": "Set another." } } }));
    assert!(fixture.shows("The key was refused. Set another."));
    fixture.receive(AgentMessage::Ended("the daemon closed the connection".to_owned()));
    assert!(fixture.chat.lost().is_some() && fixture.shows("the daemon closed the connection"));
}

/// The oldest part goes, whatever an agent sends.
#[test]
fn memory_is_bounded() {
    let mut fixture = ChatFixture::new();
    for message in 0..6 {
        let id = format!("m{message}");
        (0..40).for_each(|_| fixture.say(&id, &"0123456789 word\n".repeat(1_000)));
    }
    let height = fixture.chat.transcript.height();
    assert!((10_000..400_000).contains(&height), "{height}");
    let kept = fixture.chat.transcript.bytes();
    assert!(kept <= 3 * 1024 * 1024, "{kept}");
}

#[test]
fn a_question_is_answered_in_the_place_of_the_draft() {
    let mut fixture = ChatFixture::new();
    fixture.types("a prompt that is not finis");
    let schema = json!({ "properties": {
        "colour": { "type": "string", "title": "The colour", "enum": ["red", "blue"] },
        "note": { "type": "string" },
    }, "required": ["colour"] });
    fixture.state(json!({ "state": "requires_action" }));
    let form = FormDialog::of_schema("Which one?", &schema);
    fixture.receive(AgentMessage::Form { card: 1, form });
    assert!(fixture.shows("Which one?") && fixture.shows("2. blue") && fixture.shows("Enter answers"));
    assert!(!fixture.shows("not finis"), "the draft waits");
    fixture.types("green");
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("not a valid answer"));
    fixture.ctrl('u');
    fixture.types("2");
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("note (empty for nothing"));
    let fields = json!({ "colour": "blue" }).as_object().cloned().expect("an object");
    let fill = ChatRequest::Fill { card: 1, reply: QuestionReply::Accepted(fields) };
    assert_eq!(fixture.press(KeyCode::Enter), [ChatEffect::Request(fill)]);
    assert!(fixture.shows("a prompt that is not finis") && !fixture.shows("Which one?"));
}

#[test]
fn an_answered_or_typed_ahead_question_takes_nothing_from_the_draft() {
    let mut fixture = ChatFixture::new();
    fixture.types("hello");
    fixture.receive(AgentMessage::Form { card: 1, form: FormDialog::of_schema("First?", &json!({})) });
    // Enter within the time in which it was meant for the prompt.
    let enter = ChatEvent::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
    assert_eq!(fixture.chat.update(enter, fixture.now + Duration::from_millis(50)), []);
    fixture.receive(AgentMessage::Form { card: 3, form: FormDialog::of_schema("Second?", &json!({})) });
    fixture.receive(AgentMessage::CardWithdrawn(1));
    assert!(fixture.shows("Second?") && !fixture.shows("First?"));
    fixture.receive(AgentMessage::CardWithdrawn(3));
    assert!(fixture.shows("hello"));
}

/// Only sessions of the same directory could be found, by their titles.
#[test]
fn sessions_of_all_directories_are_searched_by_their_texts() {
    let mut fixture = ChatFixture::new();
    fixture.press(KeyCode::F(2));
    let here = vec![session("s_2", "/home/ann/project", "Fix the parser")];
    fixture.receive(AgentMessage::Sessions { sessions: here.clone(), is_next: false, cursor: None });
    // One search runs at a time, for what is typed when the last one ends.
    assert_eq!(fixture.press(KeyCode::Char('p')), []);
    assert_eq!(fixture.press(KeyCode::Char('a')), [ChatEffect::Search("pa".to_owned())]);
    assert_eq!(fixture.press(KeyCode::Char('r')), []);
    let found = |words: &str, found| ChatEvent::Found { words: words.to_owned(), found };
    assert_eq!(fixture.event(found("pa", Ok(Vec::new()))), [ChatEffect::Search("par".to_owned())]);
    let other = ChatSession { excerpt: "a parcel".to_owned(), ..session("s_3", "/srv/shop", "Post") };
    assert_eq!(fixture.event(found("par", Ok([here, vec![other]].concat()))), []);
    assert!(
        fixture.shows("Post            2 days ago · /srv/shop · a parcel"),
        "{:?}",
        fixture.screen(80, 24)
    );
    assert_eq!(fixture.screen(80, 24).iter().filter(|row| row.contains("Fix the parser")).count(), 1);
    fixture.press(KeyCode::Down);
    let resume = ChatRequest::Resume { session: "s_3".to_owned().into(), cwd: "/srv/shop".into() };
    let close = ChatRequest::Close { session: "s_1".to_owned().into() };
    assert_eq!(fixture.press(KeyCode::Enter), [ChatEffect::Request(close), ChatEffect::Request(resume)]);
    assert!(fixture.shows("this session works in /srv/shop"));
    assert_eq!(fixture.chat.cwd(), Path::new("/srv/shop"));
}

#[test]
fn a_search_that_fails_says_why() {
    let mut fixture = ChatFixture::new();
    fixture.press(KeyCode::F(2));
    fixture.receive(AgentMessage::Sessions { sessions: Vec::new(), is_next: false, cursor: None });
    assert!(fixture.shows("No sessions of this directory · type to search all"));
    fixture.press(KeyCode::Char('z'));
    assert_eq!(fixture.press(KeyCode::Char('z')), [ChatEffect::Search("zz".to_owned())]);
    assert!(fixture.shows("searching…"));
    let found = Err("the disk is full".to_owned());
    fixture.event(ChatEvent::Found { words: "zz".to_owned(), found });
    assert!(fixture.shows("nothing is found") && fixture.shows("the disk is full"));
}

#[test]
fn a_pasted_image_is_sent_with_the_prompt_that_names_it() {
    let mut fixture = ChatFixture::new();
    let image = |path: &str| {
        let image = wire::ImageContent::new("aGk=", "image/png").uri(format!("file://{path}"));
        PromptImage { path: path.into(), block: wire::ContentBlock::Image(image) }
    };
    let paste = |fixture: &mut ChatFixture, path: &str| {
        let pasted = fixture.event(ChatEvent::Paste(path.to_owned()));
        assert_eq!(pasted, [ChatEffect::ReadImages(path.to_owned())]);
        let read = PastedImages::Read(vec![image(path)]);
        assert_eq!(fixture.event(ChatEvent::Images { pasted: path.to_owned(), read }), []);
    };
    fixture.types("compare ");
    paste(&mut fixture, "/a/shot.png");
    paste(&mut fixture, "/b/shot.png");
    assert!(fixture.shows("compare [image shot.png] [image shot.png 2]"));
    // An image is removed as a whole.
    fixture.press(KeyCode::Backspace);
    fixture.press(KeyCode::Backspace);
    assert!(fixture.shows("compare [image shot.png]") && !fixture.shows("shot.png 2"));
    fixture.types("please");
    let sent = ChatRequest::Prompt {
        session: "s_1".to_owned().into(),
        text: "compare [image shot.png] please".to_owned(),
        images: vec![image("/a/shot.png").block],
        cwd: "/home/ann/project".into(),
    };
    assert_eq!(fixture.press(KeyCode::Enter), [ChatEffect::Request(sent)]);
    // Later chats have the path of the image.
    assert_eq!(fixture.remembered, [ChatEffect::Remember("compare /a/shot.png please".to_owned())]);
    let blocks =
        json!([{ "type": "text", "text": "compare [image shot.png] please" }, image("/a/shot.png").block]);
    fixture.update(json!({ "sessionUpdate": "user_message", "messageId": "m1", "content": blocks }));
    assert!(fixture.shows("› compare [image shot.png] please") && !fixture.shows("please [image"));
}

/// A prompt with an image, taken from the history of an earlier chat, was sent with the path only.
#[test]
fn a_recalled_prompt_has_its_images_again() {
    let mut fixture = ChatFixture::new();
    let old = "compare /a/shot.png, please";
    fixture.chat.draft.remember("explain this");
    fixture.chat.draft.remember(old);
    let word = "/a/shot.png".to_owned();
    assert_eq!(fixture.press(KeyCode::Up), [ChatEffect::RecallImages(vec![word.clone()])]);
    let image = wire::ContentBlock::Image(wire::ImageContent::new("aGk=", "image/png"));
    let read = PromptImage { path: word.clone().into(), block: image.clone() };
    fixture.event(ChatEvent::Recalled(vec![(word.clone(), read.clone())]));
    assert!(fixture.shows("compare [image shot.png], please"));
    // The next keys continue in the history.
    fixture.press(KeyCode::Up);
    assert!(fixture.shows("explain this"));
    fixture.press(KeyCode::Down);
    fixture.event(ChatEvent::Recalled(vec![(word, read)]));
    let sent = ChatRequest::Prompt {
        session: "s_1".to_owned().into(),
        text: "compare [image shot.png], please".to_owned(),
        images: vec![image],
        cwd: "/home/ann/project".into(),
    };
    assert_eq!(fixture.press(KeyCode::Enter), [ChatEffect::Request(sent)]);
    assert_eq!(fixture.remembered, [ChatEffect::Remember(old.to_owned())]);
}

#[test]
fn an_image_that_cannot_be_sent_is_pasted_as_text_with_the_reason() {
    let mut fixture = ChatFixture::new();
    fixture.event(ChatEvent::Paste("/a/shot.png".to_owned()));
    let read = PastedImages::Unusable("it is too large".to_owned());
    fixture.event(ChatEvent::Images { pasted: "/a/shot.png".to_owned(), read });
    assert!(fixture.shows("it is too large"));
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("/a/shot.png")]);
}

#[test]
fn the_keys_of_vim_edit_the_prompt_and_its_history() {
    let mut fixture = ChatFixture::new();
    fixture.chat.use_vim_keys();
    fixture.types("first");
    assert!(fixture.screen(80, 24)[23].starts_with("INSERT · "));
    fixture.press(KeyCode::Enter);
    fixture.types("second thing");
    fixture.press(KeyCode::Esc);
    assert!(fixture.screen(80, 24)[23].starts_with("NORMAL · "));
    fixture.types("bD");
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("second")]);
    // In the first line, `k` is Up.
    fixture.types("kk");
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("first")]);
    fixture.state(json!({ "state": "running" }));
    assert_eq!(fixture.press(KeyCode::Esc), [cancel()], "in normal mode, Esc is that of the chat");
}

#[test]
fn a_long_list_of_sessions_is_loaded_in_parts() {
    let mut fixture = ChatFixture::new();
    let part = |numbers: std::ops::Range<usize>, is_next, cursor: Option<&str>| {
        let session = |at| session(&format!("s_{at}"), "/home/ann/project", &format!("No {at}."));
        let sessions = numbers.map(session).collect();
        AgentMessage::Sessions { sessions, is_next, cursor: cursor.map(|cursor| cursor.to_owned().into()) }
    };
    let list = |cursor: Option<&str>| {
        let cursor = cursor.map(|cursor| cursor.to_owned().into());
        [ChatEffect::Request(ChatRequest::List { cwd: PathBuf::from("/home/ann/project"), cursor })]
    };
    assert_eq!(fixture.press(KeyCode::F(2)), list(None));
    fixture.receive(part(0..3, false, Some("c3")));
    assert_eq!((fixture.press(KeyCode::Down), fixture.press(KeyCode::Down)), (vec![], vec![]));
    assert_eq!(fixture.press(KeyCode::Down), list(Some("c3")));
    fixture.receive(part(3..5, true, None));
    assert_eq!(fixture.press(KeyCode::Down), []);
    let resume = ChatRequest::Resume { session: "s_4".to_owned().into(), cwd: "/home/ann/project".into() };
    let close = ChatRequest::Close { session: "s_1".to_owned().into() };
    assert_eq!(fixture.press(KeyCode::Enter), [ChatEffect::Request(close), ChatEffect::Request(resume)]);
}

#[test]
fn the_end_of_a_long_turn_is_announced() {
    for (seconds, announced) in [(5, false), (60, true)] {
        let mut fixture = ChatFixture::new();
        fixture.state(json!({ "state": "running" }));
        fixture.now += Duration::from_secs(seconds);
        let update = json!({ "sessionUpdate": "state_update", "state": "idle", "stopReason": "end_turn" });
        let notification = json!({ "sessionId": "s_1", "update": update });
        let notification = serde_json::from_value(notification).expect("an update of the protocol");
        let effects = fixture.event(ChatEvent::Agent(AgentMessage::Update(Box::new(notification))));
        assert_eq!(effects.contains(&ChatEffect::Notify), announced, "{seconds} s");
    }
}

/// Regression: `epitome chat -r compact --follow` was refused, because the chat took no options.
#[test]
fn a_chat_continues_a_session_and_sends_its_first_prompt_once_it_is_open() {
    let cwd = PathBuf::from("/home/ann/project");
    let session = wire::SessionId::from("s_1".to_owned());
    let (mut chat, effects) = ChatState::new(
        cwd.clone(),
        ChatStart::Session {
            session: Some((session.clone(), cwd.clone())),
            prompt: Some("/compact".to_owned()),
        },
        &[],
    );
    assert_eq!(
        effects,
        [ChatEffect::Request(ChatRequest::Resume { session: session.clone(), cwd: cwd.clone() })]
    );
    let mut opened = || {
        let opened =
            AgentMessage::Opened { session: session.clone(), options: Vec::new(), commands: Vec::new() };
        chat.update(ChatEvent::Agent(opened), Duration::ZERO)
    };
    let (text, images) = ("/compact".to_owned(), Vec::new());
    let prompt = ChatRequest::Prompt { session: session.clone(), text, images, cwd };
    let remembered = ChatEffect::Remember("/compact".to_owned());
    assert_eq!(opened(), [remembered, ChatEffect::Request(prompt)]);
    assert_eq!(opened(), [], "only the first session gets it");
}

/// Mistyped commands, and those of other agents' chats, went to the model and were paid for.
#[test]
fn what_looks_like_a_command_is_sent_as_text_only_when_asked_for() {
    let mut fixture = ChatFixture::new();
    fixture.types("/compcat now");
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("no command /compcat; did you mean /compact?"));
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("/compcat now")]);
    for (typed, effect) in
        [("/exit", ChatEffect::Leave), (":q", ChatEffect::Leave), ("/diff", ChatEffect::Diff)]
    {
        fixture.types(typed);
        assert_eq!(fixture.press(KeyCode::Enter), [effect], "{typed}");
    }
    fixture.types("/cost");
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("/usage")]);
    fixture.types("/model nonsense");
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("\"nonsense\" is not offered for /model"));
}

/// `/model opus`, as the guide has it, was refused because several models have that in their names.
#[test]
fn a_name_that_several_values_have_shows_them_to_choose_from() {
    let mut fixture = ChatFixture::new();
    fixture.types("/model /");
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("(Enter, Esc) /") && fixture.shows("a/b") && fixture.shows("c/d"));
    fixture.press(KeyCode::Down);
    let [ChatEffect::Request(ChatRequest::SetOption { value, .. })] = &fixture.press(KeyCode::Enter)[..]
    else {
        panic!("it sets the model");
    };
    assert_eq!(*value, wire::SessionConfigOptionValue::Id { value: "c/d".to_owned().into() });
}

#[test]
fn a_command_of_the_user_goes_to_the_shell_of_the_session() {
    let mut fixture = ChatFixture::new();
    fixture.types("!git status");
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("/shell git status")]);
    assert_eq!(fixture.remembered, [ChatEffect::Remember("!git status".to_owned())]);
}

fn mode(value: &str) -> ChatEffect {
    ChatEffect::Request(ChatRequest::SetOption {
        session: "s_1".to_owned().into(),
        option: "mode".to_owned().into(),
        value: wire::SessionConfigOptionValue::Id { value: value.to_owned().into() },
    })
}

/// One press of Shift+Tab too many gave full access without a word.
#[test]
fn full_access_is_reached_by_a_question_only() {
    let mut fixture = ChatFixture::new();
    let values = ["plan", "full", "ask"].map(|value| json!({ "value": value, "name": value }));
    fixture.update(json!({ "sessionUpdate": "config_option_update", "configOptions": [
        { "configId": "mode", "name": "mode", "category": "mode", "type": "select", "currentValue": "plan",
          "options": values }] }));
    assert_eq!(fixture.press(KeyCode::BackTab), []);
    assert!(fixture.shows("Give the agent full access?"));
    assert_eq!(fixture.press(KeyCode::Enter), [mode("ask")]);
    fixture.press(KeyCode::BackTab);
    fixture.press(KeyCode::Down);
    assert_eq!(fixture.press(KeyCode::Enter), [mode("full")]);
    // By its name, and from the list of modes.
    for command in ["/mode full", "/mode"] {
        fixture.types(command);
        fixture.press(KeyCode::Enter);
        if command == "/mode" {
            fixture.press(KeyCode::Down);
            assert_eq!(fixture.press(KeyCode::Enter), []);
        }
        assert!(fixture.shows("Give the agent full access?"), "{command}");
        assert_eq!(fixture.press(KeyCode::Enter), [], "{command}");
        fixture.types(command);
        fixture.press(KeyCode::Esc);
        fixture.ctrl('c');
    }
}

/// Up and Enter sent a waiting prompt twice.
#[test]
fn a_waiting_prompt_is_taken_back_to_be_edited() {
    let mut fixture = ChatFixture::new();
    fixture.state(json!({ "state": "running" }));
    fixture.types("and test");
    fixture.press(KeyCode::Enter);
    let withdraw = ChatEffect::Request(ChatRequest::Withdraw { text: "and test".to_owned() });
    assert_eq!(fixture.press(KeyCode::Up), [withdraw]);
    fixture.receive(AgentMessage::PromptFailed { text: "and test".to_owned(), why: "Cancelled".to_owned() });
    fixture.types(" it");
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("and test it")]);
    assert!(!fixture.shows("Cancelled"));
}

#[test]
fn a_rejection_is_explained_before_the_agent_goes_on() {
    let mut fixture = ChatFixture::new();
    fixture.state(json!({ "state": "running" }));
    fixture.card(7, 1);
    assert!(fixture.shows("3. Reject, and say what to do instead"));
    assert_eq!(fixture.press(KeyCode::Char('3')), []);
    assert_eq!(fixture.press(KeyCode::Esc), []);
    assert!(fixture.shows("1. Allow"), "Esc goes back to the card");
    assert_eq!(fixture.press(KeyCode::Char('3')), []);
    fixture.types("use ninja");
    let reject = ChatRequest::Decide { card: 7, option: "reject_once".to_owned().into() };
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("use ninja"), ChatEffect::Request(reject)]);
}

#[test]
fn esc_twice_goes_back_to_an_earlier_prompt() {
    let mut fixture = ChatFixture::new();
    for (id, text) in [("m1", "first"), ("m2", "/compact"), ("m3", "third")] {
        fixture.update(json!({ "sessionUpdate": "user_message", "messageId": id,
                               "content": [{ "type": "text", "text": text }] }));
    }
    assert_eq!(fixture.press(KeyCode::Esc), []);
    assert_eq!(fixture.press(KeyCode::Esc), []);
    assert!(fixture.shows("Undo this prompt and everything after it"));
    assert_eq!(fixture.press(KeyCode::Down), []);
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("/rewind message m1")]);
}

#[test]
fn earlier_prompts_of_all_chats_are_searched() {
    let start = ChatStart::Session { session: None, prompt: None };
    let earlier = ["fix the parser", "write tests", "fix the build"].map(str::to_owned);
    let (chat, _) = ChatState::new(PathBuf::from("/home/ann/project"), start, &earlier);
    let mut fixture = ChatFixture { chat, now: Duration::ZERO, remembered: Vec::new() };
    assert_eq!(fixture.ctrl('r'), []);
    fixture.types("fix pars");
    assert!(fixture.shows("fix the parser") && !fixture.shows("fix the build"));
    assert_eq!(fixture.press(KeyCode::Enter), []);
    assert!(fixture.shows("fix the parser"));
}

#[test]
fn files_are_listed_once_for_a_mention() {
    let mut fixture = ChatFixture::new();
    fixture.types("see ");
    assert_eq!(fixture.press(KeyCode::Char('@')), [ChatEffect::ListFiles]);
    let files = ["src/main.rs", "src/lib.rs"].map(str::to_owned).to_vec();
    assert_eq!(fixture.event(ChatEvent::Files(files)), []);
    fixture.types("lib");
    assert!(fixture.shows("src/lib.rs") && !fixture.shows("src/main.rs"));
    assert_eq!(fixture.press(KeyCode::Enter), [], "it completes");
    assert_eq!(fixture.press(KeyCode::Enter), [prompt("see @src/lib.rs")]);
}
