//! What a client is shown of each thing that can happen, now and in a replay. Every update is read
//! back by the schema's own types.

use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::session::{CommandInfo, ModelChoice, SessionOptions, UsageNow};
use crate::thread::{
    Card, Cut, Edit, HookRun, Location, Mode, ModelName, OutcomeStatus, Part, PlanPriority, PlanStatus,
    PlanStep, Role, Rule, Seq, SessionId, Shown, Spoken, StopReason, ThoughtLevel, ToolKind, ToolOutcome,
    Trigger, Usage, Withheld,
};

const PLAIN: ClientTraits = ClientTraits {
    compaction: false,
    notices: false,
    terminal_output: false,
    read_text_file: false,
    write_text_file: false,
    boolean_options: false,
    elicitation_form: false,
    elicitation_url: false,
    auth_terminal: false,
    subagents: false,
    details_alone: false,
};

/// A client of one session, and all that it was told.
struct Client {
    cursor: Cursor,
    traits: ClientTraits,
    told: Vec<Value>,
    seq: u64,
}

impl Client {
    fn new(traits: ClientTraits) -> Client {
        Client { cursor: Cursor::default(), traits, told: Vec::new(), seq: 0 }
    }

    fn put(&mut self, out: Out) -> &mut Client {
        let mut updates = Vec::new();
        self.cursor.translate(out, &self.traits, &mut updates);
        for update in updates {
            let json = serde_json::to_value(&update).expect("an update is JSON");
            let read: SessionUpdate = serde_json::from_value(json.clone()).expect("the schema reads it");
            assert_eq!(read, update);
            assert!(!has_null(&json), "optional fields are left out, never null: {json}");
            self.told.push(json);
        }
        self
    }

    fn entry(&mut self, change: Change) -> &mut Client {
        self.any_entry(change, false, true)
    }

    fn replayed(&mut self, change: Change) -> &mut Client {
        self.any_entry(change, true, true)
    }

    fn any_entry(&mut self, change: Change, replay: bool, own: bool) -> &mut Client {
        self.seq += 1;
        let entry = Arc::new(Entry { seq: Seq(self.seq), at: 1_700_000_000_000, change });
        self.put(Out::Entry { entry, replay, own })
    }

    fn text(&mut self, part: u32, kind: TextKind, text: &str) -> &mut Client {
        self.put(Out::Text { message: MessageId(7), part, kind, text: text.to_owned() })
    }

    /// All text that came under each message id, in the order of first sight.
    fn texts(&self) -> Vec<(String, String)> {
        let mut texts: Vec<(String, String)> = Vec::new();
        for update in &self.told {
            let (Some(id), Some(text)) = (update["messageId"].as_str(), update["content"]["text"].as_str())
            else {
                continue;
            };
            match texts.iter_mut().find(|(known, _)| known == id) {
                Some((_, whole)) => whole.push_str(text),
                None => texts.push((id.to_owned(), text.to_owned())),
            }
        }
        texts
    }
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn text(text: &str) -> Content {
    Content::Text { text: text.to_owned() }
}

fn thinking(text: &str) -> Content {
    Content::Thinking { text: text.to_owned(), native: None }
}

fn call(id: &str, kind: ToolKind) -> Content {
    Content::Call(ToolCall {
        id: CallId(id.to_owned()),
        name: "bash".to_owned(),
        input: json!({ "command": "ls" }),
        card: Card {
            title: "ls".to_owned(),
            kind,
            locations: vec![Location { path: PathBuf::from("/w/a.rs"), line: Some(3) }],
        },
    })
}

fn said(content: Vec<Content>, origin: Origin) -> Change {
    Change::Said { message: Message { id: MessageId(3), content }, origin }
}

fn replied(content: Vec<Content>, cut: Option<Cut>) -> Change {
    let model = ModelName("anthropic/x".to_owned());
    Change::Replied { message: Message { id: MessageId(7), content }, model, usage: None, cut }
}

fn finished(id: &str, status: OutcomeStatus, output: &str) -> Change {
    Change::ToolFinished { outcome: ToolOutcome::text(CallId(id.to_owned()), status, output) }
}

fn compacted() -> Change {
    Change::Compacted {
        through: Seq(4),
        summary: Message { id: MessageId(9), content: vec![text("We wrote a parser.")] },
        trigger: Trigger::Manual,
        focus: None,
        tokens_before: 88_000,
        tokens_after: 6_200,
        model: None,
        usage: None,
        masks: Vec::new(),
        account: Default::default(),
    }
}

fn by_threshold() -> Change {
    let Change::Compacted { through, summary, focus, tokens_before, tokens_after, model, usage, .. } =
        compacted()
    else {
        unreachable!("it is one")
    };
    let trigger = Trigger::Threshold;
    Change::Compacted {
        through,
        summary,
        trigger,
        focus,
        tokens_before,
        tokens_after,
        model,
        usage,
        masks: Vec::new(),
        account: Default::default(),
    }
}

fn mutated() -> Change {
    let message = Message { id: MessageId(9), content: vec![text("so far")] };
    let messages = vec![Spoken { role: Role::User, message }];
    let by = "swap".to_owned();
    Change::Mutated { through: Seq(4), messages, by, tokens_before: 88_000, tokens_after: 6_200 }
}

fn part(entry: u64) -> Part {
    Part { entry: Seq(entry), part: None }
}

fn withheld(why: Withheld) -> Change {
    Change::Withheld {
        message: Message { id: MessageId(3), content: vec![text("hello")] },
        note: MessageId(4),
        why,
    }
}

fn ended(reason: StopReason) -> Change {
    Change::TurnEnded { reason, usage: Usage::default(), quiet_hooks: 0 }
}

fn chunk(kind: &str, id: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text }, "messageId": id })
}

#[test]
fn a_turn_is_shown_alike_when_it_happens_and_when_it_is_replayed() {
    let changes = || {
        [
            said(vec![text("hello")], Origin::Person),
            replied(vec![thinking("hm"), text("I look."), call("c1", ToolKind::Read), text("Then.")], None),
            finished("c1", OutcomeStatus::Completed, "a.rs"),
            ended(StopReason::EndTurn),
        ]
    };
    let (mut live, mut loaded) = (Client::new(PLAIN), Client::new(PLAIN));
    for change in changes() {
        if matches!(change, Change::Replied { .. }) {
            live.text(0, TextKind::Thinking, "h").text(0, TextKind::Thinking, "m");
            live.text(1, TextKind::Reply, "I lo").text(1, TextKind::Reply, "ok.");
            live.text(3, TextKind::Reply, "Then.");
        }
        live.any_entry(change, false, false);
    }
    for change in changes() {
        loaded.replayed(change);
    }
    assert_eq!(live.texts(), loaded.texts());
    assert_eq!(
        loaded.told,
        [
            chunk("user_message_chunk", "m3", "hello"),
            chunk("agent_thought_chunk", "m7.0", "hm"),
            chunk("agent_message_chunk", "m7.1", "I look."),
            chunk("agent_message_chunk", "m7.3", "Then."),
            json!({ "sessionUpdate": "tool_call", "toolCallId": "c1", "title": "ls", "name": "bash",
                "kind": "read", "locations": [{ "path": "/w/a.rs", "line": 3 }],
                "rawInput": { "command": "ls" } }),
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed",
                "content": [{ "type": "content", "content": { "type": "text", "text": "```\na.rs\n```" } }] }),
        ]
    );
}

#[test]
fn the_person_does_not_see_their_own_prompt_twice() {
    let change = || said(vec![text("hello")], Origin::Person);
    assert_eq!(Client::new(PLAIN).entry(change()).told, [Value::Null; 0]);
    let shown = [chunk("user_message_chunk", "m3", "hello")];
    assert_eq!(Client::new(PLAIN).any_entry(change(), false, false).told, shown);
    assert_eq!(Client::new(PLAIN).replayed(change()).told, shown);
}

#[test]
fn a_recipe_shows_what_was_typed() {
    let origin = Origin::Recipe { recipe: "review".to_owned(), typed: "/review src".to_owned() };
    let link = Content::ResourceLink { uri: "file:///a".to_owned(), name: "a".to_owned() };
    let mut client = Client::new(PLAIN);
    client.replayed(said(vec![text("You are a reviewer of src."), link], origin));
    assert_eq!(client.told[0], chunk("user_message_chunk", "m3", "/review src"));
    assert_eq!(
        client.told[1]["content"],
        json!({ "type": "resource_link", "uri": "file:///a", "name": "a" })
    );
}

#[test]
fn what_a_person_attached_is_replayed_as_it_came() {
    let mut client = Client::new(PLAIN);
    client.replayed(said(
        vec![
            Content::Image { mime_type: "image/png".to_owned(), data: "iVBO".to_owned(), uri: None },
            Content::Resource { uri: "file:///b.rs".to_owned(), text: "fn b() {}".to_owned() },
        ],
        Origin::Person,
    ));
    let content: Vec<&Value> = client.told.iter().map(|update| &update["content"]).collect();
    assert_eq!(content[0], &json!({ "type": "image", "data": "iVBO", "mimeType": "image/png" }));
    assert_eq!(
        content[1],
        &json!({ "type": "resource", "resource": { "uri": "file:///b.rs", "text": "fn b() {}" } })
    );
}

#[test]
fn a_text_longer_than_clients_read_comes_in_several_chunks() {
    let long = "é✓".repeat(500_000);
    let mut client = Client::new(PLAIN);
    client.replayed(said(vec![text(&long)], Origin::Person)).replayed(replied(vec![text(&long)], None));
    assert_eq!(client.told.len(), 6);
    assert!(client.texts() == [("m3".to_owned(), long.clone()), ("m7.0".to_owned(), long)]);
}

#[test]
fn a_prompt_that_was_queued_and_never_taken_is_not_lost_in_a_replay() {
    let queued = |id, words: &str| Change::Queued {
        message: Message { id: MessageId(id), content: vec![text(words)] },
    };
    let mut client = Client::new(PLAIN);
    client.replayed(queued(4, "taken")).replayed(queued(5, "cancelled"));
    client.replayed(said(vec![text("taken")], Origin::Queue { entry: Seq(1) }));
    client.replayed(ended(StopReason::Cancelled));
    assert_eq!(client.texts(), [("m3".into(), "taken".into()), ("m5".into(), "cancelled".into())]);
}

/// A crash leaves it in the queue, and it enters the view with the next prompt.
#[test]
fn a_queued_prompt_that_outlived_its_turn_is_replayed_once() {
    let message = Message { id: MessageId(4), content: vec![text("and this")] };
    let mut client = Client::new(PLAIN);
    client.replayed(Change::Queued { message }).replayed(ended(StopReason::Interrupted));
    client.replayed(said(vec![text("and this")], Origin::Queue { entry: Seq(1) }));
    assert_eq!(
        client.texts().iter().filter(|(_, said)| said == "and this").count(),
        1,
        "{:?}",
        client.texts()
    );
}

#[test]
fn entries_that_are_one_update_or_none() {
    let step = |content: &str, status| PlanStep {
        content: content.to_owned(),
        status,
        priority: PlanPriority::High,
    };
    let cases: Vec<(Change, Vec<Value>)> = vec![
        (Change::Framed { system: String::new(), tools: Vec::new() }, vec![]),
        (Change::ModelChosen { model: ModelName("a/b".into()) }, vec![]),
        (Change::ThoughtChosen { level: ThoughtLevel::High }, vec![]),
        (Change::Allowed { rule: Rule::EditsInWorkspace }, vec![]),
        (
            Change::ModeChosen { mode: Mode::AcceptEdits },
            vec![json!({ "sessionUpdate": "current_mode_update", "currentModeId": "accept_edits" })],
        ),
        (
            Change::Titled { title: "Fix it".into() },
            vec![json!({ "sessionUpdate": "session_info_update", "title": "Fix it",
                "updatedAt": "2023-11-14T22:13:20Z" })],
        ),
        (
            Change::Planned {
                steps: vec![step("a", PlanStatus::Completed), step("b", PlanStatus::InProgress)],
            },
            vec![json!({ "sessionUpdate": "plan", "entries": [
                { "content": "a", "priority": "high", "status": "completed" },
                { "content": "b", "priority": "high", "status": "in_progress" }] })],
        ),
        (
            Change::Noted { message: MessageId(8), text: "Noted.".into() },
            vec![chunk("agent_message_chunk", "m8", "Noted.")],
        ),
        (
            Change::Undone { entry: Seq(12) },
            vec![chunk(
                "agent_message_chunk",
                "e1",
                "Undone: e12 is taken back; the conversation is as it would be without it.",
            )],
        ),
        (
            compacted(),
            vec![chunk("agent_message_chunk", "m9", "Compacted: 88.0k → 6.2k tokens. /undo takes it back.")],
        ),
        (
            by_threshold(),
            vec![chunk(
                "agent_message_chunk",
                "m9",
                "Compacted, because the window filled up: 88.0k → 6.2k tokens. /undo takes it back.",
            )],
        ),
        (
            mutated(),
            vec![chunk(
                "agent_message_chunk",
                "e1",
                "History replaced by swap: 88k → 6k tokens; /undo takes it back",
            )],
        ),
        (
            Change::Edited {
                by: "tidy".into(),
                edits: vec![
                    Edit::Drop { at: part(3) },
                    Edit::Pin { at: part(4) },
                    Edit::Drop { at: part(5) },
                ],
            },
            vec![chunk(
                "agent_message_chunk",
                "e1",
                "History edited by tidy: 1 pinned, 2 dropped; /undo takes it back.",
            )],
        ),
        (
            Change::Edited { by: "tidy".into(), edits: vec![Edit::Pin { at: part(4) }] },
            vec![chunk("agent_message_chunk", "e1", "History edited by tidy: 1 pinned.")],
        ),
        (
            Change::GoalSet { goal: Some("green".into()) },
            vec![chunk("agent_message_chunk", "e1", "Goal: green")],
        ),
        (Change::GoalSet { goal: None }, vec![chunk("agent_message_chunk", "e1", "The goal is ended.")]),
        (Change::Hooked { event: "turn_end".into(), runs: vec![HookRun::default()] }, vec![]),
        (said(vec![text("British spelling.")], Origin::Context { by: "style".into() }), vec![]),
        (ended(StopReason::EndTurn), vec![]),
        (
            ended(StopReason::Interrupted),
            vec![chunk(
                "agent_message_chunk",
                "e1",
                "Interrupted: the agent's process ended before this turn was done.",
            )],
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(Client::new(PLAIN).entry(change.clone()).told, expected, "{change:?}");
        let in_replay = if matches!(change, Change::ModeChosen { .. }) { vec![] } else { expected };
        assert_eq!(Client::new(PLAIN).replayed(change.clone()).told, in_replay, "replayed {change:?}");
    }
}

#[test]
fn a_follow_up_is_the_hook_s_line_as_it_happens_and_a_user_message_in_a_replay() {
    let change = || said(vec![text("Please run the linter.")], Origin::Hook { hook: "lint".into() });
    let mut line = chunk("agent_message_chunk", "m3", "↻ lint: Please run the linter.");
    line["_meta"] = json!({ "epitome": { "hook": "lint" } });
    for own in [true, false] {
        assert_eq!(Client::new(PLAIN).any_entry(change(), false, own).told, [line.clone()]);
        let shown = [chunk("user_message_chunk", "m3", "Please run the linter.")];
        assert_eq!(Client::new(PLAIN).any_entry(change(), true, own).told, shown);
    }
}

#[test]
fn a_history_that_a_hook_made_is_no_compaction_to_clients_that_show_those() {
    let mut client = Client::new(ClientTraits { compaction: true, ..PLAIN });
    assert_eq!(client.entry(mutated()).told[0]["sessionUpdate"], "agent_message_chunk");
}

#[test]
fn a_withheld_prompt_is_answered_with_why_and_replayed_with_its_words() {
    let blocked = |reason: &str| Withheld::Blocked { hook: "guard".into(), reason: reason.into() };
    let prompt = chunk("user_message_chunk", "m3", "hello");
    for (why, line) in [
        (blocked("A secret."), Some("A secret.")),
        (blocked(" "), Some("The hook guard stopped this prompt.")),
        (Withheld::Cancelled, None),
    ] {
        let line: Vec<Value> =
            line.map(|line| chunk("agent_message_chunk", "m4", line)).into_iter().collect();
        let both: Vec<Value> = std::iter::once(prompt.clone()).chain(line.clone()).collect();
        assert_eq!(Client::new(PLAIN).entry(withheld(why.clone())).told, line);
        assert_eq!(Client::new(PLAIN).any_entry(withheld(why.clone()), false, false).told, both);
        assert_eq!(Client::new(PLAIN).replayed(withheld(why)).told, both);
    }
}

/// It is shown where it was withheld, or where a crash ended the turn that it had waited for.
#[test]
fn a_queued_prompt_that_is_withheld_is_replayed_once() {
    let queued = || Change::Queued { message: Message { id: MessageId(3), content: vec![text("hello")] } };
    for end in [None, Some(ended(StopReason::Interrupted))] {
        let mut client = Client::new(PLAIN);
        client.replayed(queued());
        if let Some(end) = end {
            client.replayed(end);
        }
        client.replayed(withheld(Withheld::Cancelled)).replayed(ended(StopReason::Cancelled));
        let said =
            client.told.iter().filter(|update| update["sessionUpdate"] == "user_message_chunk").count();
        assert_eq!(said, 1, "{:?}", client.told);
    }
}

#[test]
fn a_call_that_a_hook_changed_shows_what_it_is_run_with() {
    let changed = Change::CallChanged {
        call: CallId("c1".into()),
        input: json!({ "command": "ls -a" }),
        card: Card { title: "ls -a".into(), kind: ToolKind::Execute, locations: Vec::new() },
        by: "guard".into(),
    };
    let update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c1", "title": "ls -a",
        "rawInput": { "command": "ls -a" } });
    let line = chunk("agent_message_chunk", "e2", "guard changed what this call is run with: ls -a");
    let mut client = Client::new(PLAIN);
    client.entry(replied(vec![call("c1", ToolKind::Execute)], None)).entry(changed.clone());
    assert_eq!(client.told[1..], [update, line]);
    // Of a call that was never announced, editors take no update.
    assert_eq!(Client::new(PLAIN).entry(changed).told.len(), 1);
}

/// Context may be added before the prompt, and chunks outside of a turn are an error to some editors.
#[test]
fn a_notice_waits_for_the_prompt_and_not_for_context() {
    let mut client = Client::new(PLAIN);
    client.put(Out::Notice { severity: Severity::Info, text: "By the way.".into() });
    client.entry(said(vec![text("British spelling.")], Origin::Context { by: "style".into() }));
    assert_eq!(client.told.len(), 0);
    client.entry(withheld(Withheld::Cancelled));
    assert_eq!(client.told, [chunk("agent_thought_chunk", "n1", "By the way.")]);
}

#[test]
fn a_client_that_shows_compactions_gets_one_and_in_a_replay_what_stands() {
    let statuses = |client: &Client| -> Vec<String> {
        client.told.iter().map(|update| update["status"].as_str().unwrap_or("chunk").to_owned()).collect()
    };
    let mut client = Client::new(ClientTraits { compaction: true, ..PLAIN });
    let id = MessageId(9);
    client.put(Out::Compaction { id, state: CompactionState::Began { tokens: 88_000 } });
    client.put(Out::Compaction { id, state: CompactionState::Wrote("We wrote".into()) });
    client.entry(compacted());
    assert_eq!(statuses(&client), ["in_progress", "chunk", "completed"]);
    client.told.clear();
    client.replayed(compacted());
    assert_eq!(statuses(&client), ["completed"]);
    client.told.clear();
    // It joins in the middle: what is running comes behind the replay.
    let opened = Change::Opened { format: 1, session: SessionId("s".into()), cwd: PathBuf::from("/w") };
    let id = MessageId(11);
    client.put(Out::Compaction { id, state: CompactionState::Began { tokens: 88_000 } });
    client.replayed(opened);
    client.put(Out::Compaction { id, state: CompactionState::Wrote("lost".into()) });
    client.put(Out::Compaction { id, state: CompactionState::Began { tokens: 88_000 } });
    client.put(Out::Compaction { id, state: CompactionState::Wrote("We".into()) });
    client.put(Out::Compaction { id, state: CompactionState::Failed("no model".into()) });
    client.put(Out::Compaction { id, state: CompactionState::Cancelled });
    assert_eq!(statuses(&client), ["in_progress", "in_progress", "chunk", "failed"]);
    assert_eq!(client.told[3]["error"], "no model");
}

#[test]
fn a_client_that_shows_no_compactions_is_told_that_one_takes_a_while() {
    let mut client = Client::new(PLAIN);
    client.entry(said(vec![text("go")], Origin::Person));
    client.told.clear();
    let state = CompactionState::Began { tokens: 88_231 };
    client.put(Out::Compaction { id: MessageId(2), state });
    client.put(Out::Compaction { id: MessageId(2), state: CompactionState::Wrote("We wrote".into()) });
    client.put(Out::Compaction { id: MessageId(2), state: CompactionState::Cancelled });
    assert_eq!(client.told, [chunk("agent_thought_chunk", "n1", "Compacting 88k tokens…")]);
}

#[test]
fn a_reply_that_was_cut_says_why_unless_the_person_did_it() {
    for (cut, expected) in [
        (Cut::MaxTokens, Some("\n\nCut short: the model reached its output limit.")),
        (Cut::Refused { reason: String::new() }, Some("\n\nCut short: the model declined.")),
        (Cut::Refused { reason: "policy".into() }, Some("\n\nCut short: the model declined: policy")),
        (
            Cut::Broken { reason: "the connection was lost".into() },
            Some("\n\nCut short: the connection was lost"),
        ),
        (Cut::Cancelled, None),
    ] {
        let mut client = Client::new(PLAIN);
        client.entry(replied(vec![text("Half")], Some(cut)));
        let mut texts = vec![("m7.0".to_owned(), "Half".to_owned())];
        texts.extend(expected.map(|line| ("m7.cut".to_owned(), line.to_owned())));
        assert_eq!(client.texts(), texts);
    }
}

/// Clients that don't look at ids showed "(try 2 of 6).Anthropic is overloaded" and, behind `/rewind undo`, "without
/// it.Taken back": what we say goes behind other text as a paragraph of its own.
#[test]
fn what_we_say_behind_other_text_is_set_apart_and_the_first_of_a_turn_is_not() {
    let mut client = Client::new(PLAIN);
    client.entry(said(vec![text("go")], Origin::Person));
    let notice = |text: &str| Out::Notice { severity: Severity::Warning, text: text.to_owned() };
    client.put(notice("Trying again."));
    client.put(notice("Trying again."));
    let noted = |id: u64| Change::Noted { message: MessageId(id), text: "Done.".to_owned() };
    client.entry(noted(20));
    client.entry(noted(21));
    client.entry(said(vec![text("again")], Origin::Person));
    client.entry(noted(22));
    let texts: Vec<String> = client.texts().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["Trying again.", "\n\nTrying again.", "Done.", "\n\nDone.", "Done."]);
}

/// Editors without `compaction_update` that don't look at ids showed "from 45k to 6k tokens.I go on with the parser".
#[test]
fn the_models_text_behind_a_line_of_ours_is_set_apart() {
    let mut client = Client::new(PLAIN);
    client.entry(said(vec![text("go")], Origin::Person));
    client.entry(Change::Noted { message: MessageId(20), text: "Compacted.".to_owned() });
    client.text(0, TextKind::Reply, "I go").text(0, TextKind::Reply, " on.");
    client.entry(replied(vec![text("I go on.")], None));
    let texts: Vec<String> = client.texts().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["Compacted.\n\n", "I go on."], "not a byte of the model's message is ours");
    // A load shows the same.
    let mut client = Client::new(PLAIN);
    client.replayed(said(vec![text("go")], Origin::Person));
    client.replayed(Change::Noted { message: MessageId(20), text: "Compacted.".to_owned() });
    client.replayed(replied(vec![text("I go on.")], None));
    let texts: Vec<String> = client.texts().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["go", "Compacted.\n\n", "I go on."]);
}

#[test]
fn a_cancelled_reply_without_its_thinking_still_completes_the_right_text() {
    // The thinking was streamed as part 0 and, unsigned, is not in the entry: the text moved up.
    let mut client = Client::new(PLAIN);
    client.text(0, TextKind::Thinking, "a long thought").text(1, TextKind::Reply, "Hel");
    client.entry(replied(vec![text("Hello")], Some(Cut::Cancelled)));
    assert_eq!(
        client.texts(),
        [("m7.0".into(), "a long thought".into()), ("m7.1".to_owned(), "Hello".to_owned())]
    );
}

#[test]
fn a_call_goes_from_pending_through_running_to_its_outcome() {
    let mut client = Client::new(PLAIN);
    let id = CallId("c1".to_owned());
    client.entry(replied(vec![call("c1", ToolKind::Execute)], None));
    client.put(Out::CallStarted { call: id.clone() });
    client.put(Out::CallProgress { call: id.clone(), output: "one\n".to_owned() });
    client.put(Out::CallProgress { call: id.clone(), output: "two\n".to_owned() });
    client.entry(finished("c1", OutcomeStatus::Interrupted, "The command was stopped."));
    let steps: Vec<(&Value, &Value)> = client
        .told
        .iter()
        .map(|update| (&update["status"], &update["content"][0]["content"]["text"]))
        .collect();
    assert_eq!(
        steps,
        [
            (&Value::Null, &Value::Null),
            (&json!("in_progress"), &Value::Null),
            (&json!("in_progress"), &json!("```\none\n```")),
            (&json!("in_progress"), &json!("```\none\ntwo\n```")),
            (&json!("failed"), &json!("The command was stopped.")),
        ]
    );
    // It is over: nothing more is said of it.
    let count = client.told.len();
    client.put(Out::CallStarted { call: id.clone() }).put(Out::CallProgress { call: id, output: "x".into() });
    client.entry(finished("c1", OutcomeStatus::Completed, "again"));
    assert_eq!(client.told.len(), count);
}

#[test]
fn the_diff_comes_first_in_an_outcome() {
    let outcome = ToolOutcome {
        shown: vec![
            Shown::Text { text: "**done**".into() },
            Shown::Diff { path: "/w/a.rs".into(), old: None, new: "fn a() {}\n".into() },
        ],
        raw: Some(json!({ "exitCode": 0 })),
        whole: None,
        locations: vec![Location { path: "/w/a.rs".into(), line: None }],
        ..ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Completed, "ok")
    };
    let mut client = Client::new(PLAIN);
    client.entry(replied(vec![call("c1", ToolKind::Edit)], None));
    client.entry(Change::ToolFinished { outcome });
    assert_eq!(
        client.told[1],
        json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed",
            "content": [
                { "type": "diff", "path": "/w/a.rs", "newText": "fn a() {}\n" },
                { "type": "content", "content": { "type": "text", "text": "**done**" } }],
            "locations": [{ "path": "/w/a.rs" }], "rawOutput": { "exitCode": 0 } })
    );
}

#[test]
fn output_with_fences_of_its_own_gets_a_longer_one() {
    let mut client = Client::new(PLAIN);
    client.entry(replied(vec![call("c1", ToolKind::Read)], None));
    client.entry(finished("c1", OutcomeStatus::Completed, "````\ncode\n````\n"));
    assert_eq!(client.told[1]["content"][0]["content"]["text"], "`````\n````\ncode\n````\n`````");
}

#[test]
fn a_terminal_gets_what_is_new_and_then_its_end() {
    let mut client = Client::new(ClientTraits { terminal_output: true, ..PLAIN });
    client.entry(replied(vec![call("c1", ToolKind::Execute), call("c2", ToolKind::Execute)], None));
    assert_eq!(client.told[0]["content"], json!([{ "type": "terminal", "terminalId": "c1" }]));
    assert_eq!(client.told[0]["_meta"], json!({ "terminal_info": { "terminal_id": "c1" } }));
    client.put(Out::CallProgress { call: CallId("c1".into()), output: "one\n".into() });
    client.entry(finished("c1", OutcomeStatus::Completed, "one\n"));
    client.entry(finished("c2", OutcomeStatus::Completed, "two\n"));
    let meta: Vec<&Value> = client.told[2..].iter().map(|update| &update["_meta"]).collect();
    assert_eq!(
        meta,
        [
            &json!({ "terminal_output": { "terminal_id": "c1", "data": "one\n" } }),
            &json!({ "terminal_exit": { "terminal_id": "c1" } }),
            &json!({ "terminal_output": { "terminal_id": "c2", "data": "two\n" } }),
            &json!({ "terminal_exit": { "terminal_id": "c2" } }),
        ]
    );
}

/// A permission card shows the command in the place of the terminal, and the terminal did not come back before the
/// command had ended: nobody saw its live output.
#[test]
fn a_terminal_comes_back_when_the_command_begins() {
    let mut client = Client::new(ClientTraits { terminal_output: true, ..PLAIN });
    client.entry(replied(vec![call("c1", ToolKind::Execute), call("c2", ToolKind::Read)], None));
    client.put(Out::CallStarted { call: CallId("c1".into()) });
    client.put(Out::CallStarted { call: CallId("c2".into()) });
    let started = &client.told[client.told.len() - 2..];
    assert_eq!(started[0]["content"], json!([{ "type": "terminal", "terminalId": "c1" }]));
    assert_eq!(started[1]["content"], Value::Null);
}

#[test]
fn a_terminal_learns_by_which_signal_its_command_ended() {
    let mut client = Client::new(ClientTraits { terminal_output: true, ..PLAIN });
    client.entry(replied(vec![call("c1", ToolKind::Execute)], None));
    let outcome = ToolOutcome {
        raw: Some(json!({ "stdout": "", "exitCode": 137, "signal": 9 })),
        ..ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Failed, "")
    };
    client.entry(Change::ToolFinished { outcome });
    let exit = json!({ "terminal_id": "c1", "exit_code": 137, "signal": "SIGKILL" });
    assert_eq!(client.told.last().expect("the end")["_meta"]["terminal_exit"], exit);
}

#[test]
fn a_terminal_that_missed_output_is_shown_beside_the_text() {
    for (output, expected) in [("one\n", 1), ("one\ntwo\n", 2)] {
        let mut client = Client::new(ClientTraits { terminal_output: true, ..PLAIN });
        client.entry(replied(vec![call("c1", ToolKind::Execute)], None));
        client.put(Out::CallProgress { call: CallId("c1".into()), output: "one\n".into() });
        let outcome = ToolOutcome {
            raw: Some(json!({ "stdout": output, "exitCode": 3 })),
            whole: None,
            ..ToolOutcome::text(CallId("c1".into()), OutcomeStatus::Completed, output)
        };
        client.entry(Change::ToolFinished { outcome });
        let last = client.told.last().unwrap();
        assert_eq!(last["content"].as_array().unwrap().len(), expected);
        assert_eq!(last["content"][0], json!({ "type": "terminal", "terminalId": "c1" }));
        assert_eq!(last["_meta"], json!({ "terminal_exit": { "terminal_id": "c1", "exit_code": 3 } }));
    }
}

#[test]
fn old_output_is_capped_in_a_replay_and_progress_is_bounded() {
    let output = "x".repeat(100_000);
    let mut loaded = Client::new(PLAIN);
    loaded.replayed(replied(vec![call("c1", ToolKind::Read)], None));
    loaded.replayed(finished("c1", OutcomeStatus::Completed, &output));
    let shown = loaded.told[1]["content"][0]["content"]["text"].as_str().unwrap();
    assert!(shown.len() < 9_000 && shown.contains("bytes are not shown"));

    let mut live = Client::new(PLAIN);
    live.entry(replied(vec![call("c1", ToolKind::Execute)], None));
    for _ in 0..10_000 {
        live.put(Out::CallProgress { call: CallId("c1".into()), output: "é".repeat(1000) });
    }
    let sent: usize = live.told.iter().map(|update| update.to_string().len()).sum();
    assert!(sent < 2 * PROGRESS_SENT_BYTES_MAX, "{sent} bytes");
}

#[test]
fn session_wide_news() {
    let mut client = Client::new(ClientTraits { notices: true, ..PLAIN });
    let last = Usage { input: 100, output: 20, cache_read: 60, cache_write: 5, thinking: 7 };
    client.put(Out::Usage(UsageNow { used: 120, size: 200_000, cost: Some(0.5), last }));
    client.put(Out::Usage(UsageNow { used: 1, size: 2, cost: Some(f64::NAN), last: Usage::default() }));
    let hint = Some("what to keep".to_owned());
    let command = CommandInfo { name: "compact".into(), description: "Compacts".into(), hint };
    client.put(Out::Commands(Arc::new([command])));
    client.put(Out::Notice { severity: Severity::Warning, text: "Retrying\nin 2 s".into() });
    client.put(Out::Notice { severity: Severity::Error, text: " \n".into() });
    assert_eq!(
        client.told,
        [
            json!({ "sessionUpdate": "usage_update", "used": 120, "size": 200_000,
                "cost": { "amount": 0.5, "currency": "USD" },
                "_meta": { "usage": { "inputTokens": 100, "outputTokens": 20, "cachedReadTokens": 60,
                    "cachedWriteTokens": 5, "thoughtTokens": 7, "totalTokens": 120 } } }),
            json!({ "sessionUpdate": "usage_update", "used": 1, "size": 2,
                "_meta": { "usage": { "inputTokens": 0, "outputTokens": 0, "cachedReadTokens": 0,
                    "cachedWriteTokens": 0, "thoughtTokens": 0, "totalTokens": 0 } } }),
            json!({ "sessionUpdate": "available_commands_update", "availableCommands": [
                { "name": "compact", "description": "Compacts", "input": { "hint": "what to keep" } }] }),
            json!({ "sessionUpdate": "notice", "severity": "warning", "title": "Retrying",
                "description": "in 2 s" }),
        ]
    );
}

#[test]
fn options_are_complete_and_in_order() {
    let options = SessionOptions {
        mode: Mode::Ask,
        model: Some(ModelName("a/b".into())),
        models: vec![ModelChoice { name: ModelName("a/c".into()), about: "C".into() }],
        thought: ThoughtLevel::Low,
        remarks: vec![(ThoughtLevel::Off, "always thinks".into())],
    };
    let mut client = Client::new(PLAIN);
    client.put(Out::Options(Arc::new(options)));
    let offered = client.told[0]["configOptions"].as_array().unwrap();
    let summary: Vec<(&str, &str, &str, usize)> = offered
        .iter()
        .map(|option| {
            let text = |name: &str| option[name].as_str().unwrap();
            (text("id"), text("category"), text("currentValue"), option["options"].as_array().unwrap().len())
        })
        .collect();
    assert_eq!(
        summary,
        [
            ("model", "model", "a/b", 2),
            ("mode", "mode", "ask", 4),
            ("thought_level", "thought_level", "low", 5)
        ]
    );
    assert_eq!(
        offered[2]["options"][0]["description"], "always thinks",
        "a level without its effect says so"
    );
    assert_eq!(offered[2]["options"][1].get("description"), None);
}

/// The values of the model option, with the groups that hold them.
fn offered_models(names: &[&str]) -> Value {
    let models =
        names.iter().map(|name| ModelChoice { name: ModelName((*name).into()), about: String::new() });
    let options = SessionOptions {
        mode: Mode::Ask,
        model: Some(ModelName("anthropic/a1".into())),
        models: models.collect(),
        thought: ThoughtLevel::Low,
        remarks: vec![(ThoughtLevel::Off, "always thinks".into())],
    };
    let mut client = Client::new(PLAIN);
    client.put(Out::Options(Arc::new(options)));
    client.told[0]["configOptions"][0]["options"].clone()
}

#[test]
fn few_models_are_one_list_and_many_are_groups() {
    assert_eq!(
        offered_models(&["anthropic/a1", "local/org/l1"]),
        json!([{ "value": "anthropic/a1", "name": "a1 (Anthropic)" },
            { "value": "local/org/l1", "name": "org/l1 (This machine)" }])
    );
    let many: Vec<String> = (1..=9).map(|at| format!("local/l{at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let grouped = offered_models(&many);
    let groups: Vec<(&str, usize)> = grouped
        .as_array()
        .unwrap()
        .iter()
        .map(|group| (group["name"].as_str().unwrap(), group["options"].as_array().unwrap().len()))
        .collect();
    assert_eq!(groups, [("Anthropic", 1), ("This machine", 9)], "the current one is always among them");
    assert_eq!(grouped[1]["options"][0], json!({ "value": "local/l1", "name": "l1" }));
}

#[test]
fn a_notice_waits_for_a_turn_where_the_client_knows_no_notices() {
    let mut client = Client::new(PLAIN);
    client.put(Out::Notice { severity: Severity::Info, text: "no MCP".into() });
    assert!(client.told.is_empty(), "a chunk outside of a turn is an error to some editors");
    client.entry(said(vec![text("hi")], Origin::Person));
    client.put(Out::Notice { severity: Severity::Info, text: "retrying".into() });
    assert_eq!(
        client.texts(),
        [("n1".into(), "no MCP".into()), ("n2".to_owned(), "\n\nretrying".to_owned())]
    );
    client.entry(ended(StopReason::EndTurn));
    client.put(Out::Notice { severity: Severity::Info, text: "later".into() });
    assert_eq!(client.told.len(), 2);
}

#[test]
fn a_notice_after_a_replay_is_not_taken_for_an_earlier_one() {
    let opened = Change::Opened { format: 1, session: SessionId("s_0".into()), cwd: "/w".into() };
    let notice = |text: &str| Out::Notice { severity: Severity::Info, text: text.into() };
    let mut client = Client::new(PLAIN);
    client.entry(said(vec![text("hi")], Origin::Person)).put(notice("first"));
    client.entry(ended(StopReason::EndTurn)).put(notice("waits"));
    client.replayed(opened).entry(said(vec![text("again")], Origin::Person));
    assert_eq!(client.texts(), [("n1".into(), "first".into()), ("n2".to_owned(), "waits".to_owned())]);
}

#[test]
fn thinking_that_only_its_provider_can_read_does_not_repeat_what_was_shown() {
    let mut client = Client::new(PLAIN);
    client.text(1, TextKind::Thinking, "hm").text(2, TextKind::Reply, "so");
    client.entry(replied(vec![thinking(""), thinking("hm"), text("so")], None));
    assert_eq!(client.texts(), [("m7.1".into(), "hm".into()), ("m7.2".to_owned(), "so".to_owned())]);
}

#[test]
fn a_second_replay_begins_anew() {
    let opened = || Change::Opened { format: 1, session: SessionId("s_0".into()), cwd: "/w".into() };
    let mut client = Client::new(PLAIN);
    for _ in 0..2 {
        client.replayed(opened()).replayed(replied(vec![call("c1", ToolKind::Read)], None));
    }
    assert_eq!(client.told.len(), 2, "the call is announced in each replay");
}

#[test]
fn a_permission_card_has_one_option_of_each_kind() {
    let ask = |always: Option<&str>| crate::session::PermissionAsk {
        call: CallId("c1".into()),
        tool: "file_edit".into(),
        input: json!({ "path": "a.rs" }),
        card: Card { title: String::new(), kind: ToolKind::Edit, locations: vec![] },
        preview: vec![
            Shown::Text { text: "why".into() },
            Shown::Diff { path: "/w/a.rs".into(), old: Some("a".into()), new: "b".into() },
        ],
        always: always.map(str::to_owned),
        never: None,
        agent: None,
    };
    let session = SessionId("s_0".into());
    let card = serde_json::to_value(tool_wire::permission(&session, &ask(Some("edits")))).unwrap();
    assert!(!has_null(&card));
    assert_eq!(card["toolCall"]["title"], "file_edit");
    assert_eq!(card["toolCall"]["content"][0]["type"], "diff");
    assert_eq!(
        card["options"],
        json!([{ "optionId": "allow_once", "name": "Allow", "kind": "allow_once" },
            { "optionId": "allow_always", "name": "Always allow: edits", "kind": "allow_always" },
            { "optionId": "reject_once", "name": "Reject", "kind": "reject_once" }])
    );
    let card = serde_json::to_value(tool_wire::permission(&session, &ask(None))).unwrap();
    assert_eq!(card["options"].as_array().unwrap().len(), 2);
}

proptest! {
    /// Whatever part of a reply was streamed, in whatever pieces: the chunks come to its text.
    #[test]
    fn chunks_come_to_the_text(parts in prop::collection::vec(("[a-zé✓]{1,12}", any::<bool>(), 0usize..16), 1..5)) {
        let mut client = Client::new(PLAIN);
        let mut whole = true;
        for (index, (words, is_reply, streamed)) in parts.iter().enumerate() {
            let kind = if *is_reply { TextKind::Reply } else { TextKind::Thinking };
            for piece in words.chars().take(*streamed).filter(|_| whole) {
                client.text(index as u32, kind, &piece.to_string());
            }
            // Once a piece was forgotten, none follows.
            whole &= *streamed >= words.chars().count();
        }
        let content = parts.iter().map(|(words, is_reply, _)| if *is_reply { text(words) } else { thinking(words) });
        client.entry(replied(content.collect(), None));
        let mut expected: Vec<(String, String)> =
            parts.iter().enumerate().map(|(at, (words, ..))| (format!("m7.{at}"), words.clone())).collect();
        let mut texts = client.texts();
        texts.sort();
        expected.sort();
        prop_assert_eq!(texts, expected);
    }
}
