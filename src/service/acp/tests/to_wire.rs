//! Tests of what a client is shown for each event, live and in a replay. Every update is parsed back with the
//! schema's own types.

#[path = "around.rs"]
mod around;
#[path = "calls.rs"]
mod calls;

use std::path::PathBuf;

use agent_client_protocol::v1::schema::SessionUpdate;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{v1, v2};
use epitome_session_api::{CommandInfo, ModelOption, SessionOptions, UsageNow};
use epitome_thread::{
    CallDisplay, Decider, HistoryMessage, HookRun, Location, Mode, ModelName, OutcomeStatus, PartId,
    PermissionChoice, PlanPriority, PlanStatus, PlanStep, RecordedDecision, ReplyCut, Role, Rule, Seq,
    SessionId, StopReason, ThoughtLevel, ToolDisplay, ToolKind, ToolOutcome, Trigger, Usage, ViewEdit,
    Withheld,
};

const PLAIN: ClientTraits = ClientTraits {
    version: AcpVersion::V1,
    compaction: false,
    notices: false,
    terminal_output: false,
    read_text_file: false,
    write_text_file: false,
    boolean_options: false,
    elicitation_form: false,
    elicitation_url: false,
    auth_terminal: false,
    drops_prompt_errors: false,
    subagents: false,
    plan_updates: false,
    cursors: false,
    details_alone: false,
    reviews_writes: false,
    reads_log: false,
    skills: false,
};

/// A client of one session, and all updates sent to it.
struct WireClient {
    cursor: Cursor,
    traits: ClientTraits,
    updates: Vec<Value>,
    seq: u64,
}

impl WireClient {
    fn new(traits: ClientTraits) -> WireClient {
        WireClient { cursor: Cursor::default(), traits, updates: Vec::new(), seq: 0 }
    }

    fn put(&mut self, out: SessionEvent) -> &mut WireClient {
        let mut updates = Vec::new();
        self.cursor.translate(out, &self.traits, &mut updates);
        for update in updates {
            v1::project(update, &mut |update| {
                let mut json = serde_json::to_value(&update).expect("an update is JSON");
                let read: SessionUpdate = serde_json::from_value(json.clone()).expect("the schema reads it");
                let read = serde_json::to_value(&read).expect("an update is JSON");
                assert!(!has_null(&json), "optional fields are left out, never null: {json}");
                // The schema leaves out the default, which clients have to be shown.
                if json["sessionUpdate"] == "tool_call" && json["status"] == "pending" {
                    json.as_object_mut().expect("an update is an object").remove("status");
                }
                assert_eq!(read, json, "what the schema does not know is lost");
                self.updates.push(json);
            });
        }
        self
    }

    fn entry(&mut self, change: Change) -> &mut WireClient {
        self.any_entry(change, false, true)
    }

    fn replayed(&mut self, change: Change) -> &mut WireClient {
        self.any_entry(change, true, true)
    }

    fn any_entry(&mut self, change: Change, replay: bool, own: bool) -> &mut WireClient {
        self.seq += 1;
        let entry = Arc::new(Entry { seq: Seq(self.seq), at: 1_700_000_000_000, change });
        self.put(SessionEvent::Entry { entry, replay, own })
    }

    fn text(&mut self, part: u32, kind: TextKind, text: &str) -> &mut WireClient {
        self.put(SessionEvent::Text { message: MessageId(7), part, kind, text: text.to_owned() })
    }

    /// The text of each message id, in order of first appearance.
    fn texts(&self) -> Vec<(String, String)> {
        let mut texts: Vec<(String, String)> = Vec::new();
        for update in &self.updates {
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
        card: CallDisplay {
            title: "ls".to_owned(),
            kind,
            locations: vec![Location { path: PathBuf::from("/w/a.rs"), line: Some(3) }],
        },
    })
}

fn said(content: Vec<Content>, origin: Origin) -> Change {
    Change::Said { message: Message { id: MessageId(3), content, author: None }, origin }
}

fn replied(content: Vec<Content>, cut: Option<ReplyCut>) -> Change {
    let model = ModelName("anthropic/x".to_owned());
    Change::Replied { message: Message { id: MessageId(7), content, author: None }, model, usage: None, cut }
}

fn finished(id: &str, status: OutcomeStatus, output: &str) -> Change {
    Change::ToolFinished { outcome: ToolOutcome::text(CallId(id.to_owned()), status, output) }
}

fn compacted() -> Change {
    Change::Compacted {
        through: Seq(4),
        summary: Message { id: MessageId(9), content: vec![text("We wrote a parser.")], author: None },
        trigger: Trigger::Manual,
        focus: None,
        tokens_before: 88_000,
        tokens_after: 6_200,
        window: Some(200_000),
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
        window: Some(200_000),
        model,
        usage,
        masks: Vec::new(),
        account: Default::default(),
    }
}

fn mutated() -> Change {
    let message = Message { id: MessageId(9), content: vec![text("so far")], author: None };
    let messages = vec![HistoryMessage { role: Role::User, message }];
    let by = "swap".to_owned();
    Change::Mutated {
        through: Seq(4),
        messages,
        by,
        tokens_before: 88_000,
        tokens_after: 6_200,
        window: None,
    }
}

fn part(entry: u64) -> PartId {
    PartId { entry: Seq(entry), part: None }
}

fn withheld(why: Withheld) -> Change {
    Change::Withheld {
        message: Message { id: MessageId(3), content: vec![text("hello")], author: None },
        note: MessageId(4),
        why,
    }
}

fn ended(reason: StopReason) -> Change {
    Change::TurnEnded { reason, usage: Usage::default(), quiet_hooks: 0, failure: None }
}

fn chunk(kind: &str, id: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text }, "messageId": id })
}

#[test]
fn a_turn_looks_the_same_live_and_replayed() {
    let changes = || {
        [
            said(vec![text("hello")], Origin::Person),
            replied(vec![thinking("hm"), text("I look."), call("c1", ToolKind::Read), text("Then.")], None),
            finished("c1", OutcomeStatus::Completed, "a.rs"),
            ended(StopReason::EndTurn),
        ]
    };
    let (mut live, mut loaded) = (WireClient::new(PLAIN), WireClient::new(PLAIN));
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
        loaded.updates,
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

/// Regression: the reason of a failed turn was only in the response to its prompt. After the session was opened again, the
/// user saw that there had been an error, but not which.
#[test]
fn a_failed_turn_is_replayed_with_its_reason() {
    let failed = |failure: Option<&str>| {
        let (reason, usage) = (StopReason::Failed, Usage::default());
        Change::TurnEnded { reason, usage, quiet_hooks: 0, failure: failure.map(str::to_owned) }
    };
    let mut client = WireClient::new(PLAIN);
    assert_eq!(client.entry(failed(Some("No credit."))).updates, [Value::Null; 0], "the response says it");
    for (failure, line) in [
        (Some("No credit."), "This turn ended with an error: No credit."),
        (None, "This turn ended with an error."),
    ] {
        let texts = WireClient::new(PLAIN).replayed(failed(failure)).texts();
        assert_eq!(texts.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), [line]);
    }
}

#[test]
fn a_client_is_not_shown_its_own_prompt_again() {
    let change = || said(vec![text("hello")], Origin::Person);
    assert_eq!(WireClient::new(PLAIN).entry(change()).updates, [Value::Null; 0]);
    let shown = [chunk("user_message_chunk", "m3", "hello")];
    assert_eq!(WireClient::new(PLAIN).any_entry(change(), false, false).updates, shown);
    assert_eq!(WireClient::new(PLAIN).replayed(change()).updates, shown);
}

#[test]
fn a_recipe_shows_what_was_typed() {
    let origin = Origin::Recipe { recipe: "review".to_owned(), typed: "/review src".to_owned() };
    let link = Content::ResourceLink { uri: "file:///a".to_owned(), name: "a".to_owned() };
    let mut client = WireClient::new(PLAIN);
    client.replayed(said(vec![text("You are a reviewer of src."), link], origin));
    assert_eq!(client.updates[0], chunk("user_message_chunk", "m3", "/review src"));
    assert_eq!(
        client.updates[1]["content"],
        json!({ "type": "resource_link", "uri": "file:///a", "name": "a" })
    );
}

#[test]
fn attachments_are_replayed_unchanged() {
    let mut client = WireClient::new(PLAIN);
    client.replayed(said(
        vec![
            Content::Image { mime_type: "image/png".to_owned(), data: "iVBO".to_owned(), uri: None },
            Content::Resource { uri: "file:///b.rs".to_owned(), text: "fn b() {}".to_owned() },
        ],
        Origin::Person,
    ));
    let content: Vec<&Value> = client.updates.iter().map(|update| &update["content"]).collect();
    assert_eq!(content[0], &json!({ "type": "image", "data": "iVBO", "mimeType": "image/png" }));
    assert_eq!(
        content[1],
        &json!({ "type": "resource", "resource": { "uri": "file:///b.rs", "text": "fn b() {}" } })
    );
}

#[test]
fn long_text_is_split_into_chunks() {
    let long = "é✓".repeat(500_000);
    let mut client = WireClient::new(PLAIN);
    client.replayed(said(vec![text(&long)], Origin::Person)).replayed(replied(vec![text(&long)], None));
    assert_eq!(client.updates.len(), 6);
    assert!(client.texts() == [("m3".to_owned(), long.clone()), ("m7.0".to_owned(), long)]);
}

#[test]
fn a_queued_prompt_that_was_never_taken_is_replayed() {
    let queued = |id, words: &str| Change::Queued {
        message: Message { id: MessageId(id), content: vec![text(words)], author: None },
    };
    let mut client = WireClient::new(PLAIN);
    client.replayed(queued(4, "taken")).replayed(queued(5, "cancelled"));
    client.replayed(said(vec![text("taken")], Origin::Queue { entry: Seq(1) }));
    client.replayed(ended(StopReason::Cancelled));
    assert_eq!(client.texts(), [("m3".into(), "taken".into()), ("m5".into(), "cancelled".into())]);
}

/// Regression: a crash leaves the prompt in the queue, and it enters the view with the next prompt.
#[test]
fn a_queued_prompt_left_by_a_crash_is_replayed_once() {
    let message = Message { id: MessageId(4), content: vec![text("and this")], author: None };
    let mut client = WireClient::new(PLAIN);
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
fn entries_map_to_one_update_or_none() {
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
        // The note of the same command says what was undone.
        (Change::Undone { entry: Seq(12) }, vec![]),
        (
            compacted(),
            vec![chunk(
                "agent_message_chunk",
                "m9",
                "Compacted: context 88.0k → 6.2k of 200k. /undo undoes it.",
            )],
        ),
        (
            by_threshold(),
            vec![chunk(
                "agent_message_chunk",
                "m9",
                "Compacted, because the window filled up: context 88.0k → 6.2k of 200k. /undo undoes it.",
            )],
        ),
        (
            mutated(),
            vec![chunk(
                "agent_message_chunk",
                "e1",
                "History replaced by swap: 88.0k → 6.2k tokens; /undo undoes it.",
            )],
        ),
        (
            Change::Edited {
                by: "tidy".into(),
                edits: vec![
                    ViewEdit::Drop { at: part(3) },
                    ViewEdit::Pin { at: part(4) },
                    ViewEdit::Drop { at: part(5) },
                ],
            },
            vec![chunk(
                "agent_message_chunk",
                "e1",
                "History edited by tidy: 1 pinned, 2 dropped; /undo undoes it.",
            )],
        ),
        (
            Change::Edited { by: "tidy".into(), edits: vec![ViewEdit::Pin { at: part(4) }] },
            vec![chunk("agent_message_chunk", "e1", "History edited by tidy: 1 pinned.")],
        ),
        (
            Change::GoalSet { goal: Some("green".into()) },
            vec![chunk("agent_message_chunk", "e1", "Goal: green")],
        ),
        (Change::GoalSet { goal: None }, vec![chunk("agent_message_chunk", "e1", "The goal was cleared.")]),
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
        assert_eq!(WireClient::new(PLAIN).entry(change.clone()).updates, expected, "{change:?}");
        let in_replay = if matches!(change, Change::ModeChosen { .. }) { vec![] } else { expected };
        assert_eq!(WireClient::new(PLAIN).replayed(change.clone()).updates, in_replay, "replayed {change:?}");
    }
}

/// An editor sorts its sessions by their last activity. A session of last week that was used an hour ago moved down to
/// last week when it was loaded, because its replayed title came with the time at which it got the title.
#[test]
fn a_replayed_title_has_no_time() {
    let titled = Change::Titled { title: "Fix it".into() };
    let title = json!({ "sessionUpdate": "session_info_update", "title": "Fix it" });
    assert_eq!(WireClient::new(PLAIN).replayed(titled.clone()).updates, std::slice::from_ref(&title));
    let mut live = title;
    live["updatedAt"] = json!("2023-11-14T22:13:20Z");
    assert_eq!(WireClient::new(PLAIN).entry(titled).updates, [live]);
}

#[test]
fn a_withheld_prompt_is_answered_with_the_reason_and_replayed() {
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
        assert_eq!(WireClient::new(PLAIN).entry(withheld(why.clone())).updates, line);
        assert_eq!(WireClient::new(PLAIN).any_entry(withheld(why.clone()), false, false).updates, both);
        assert_eq!(WireClient::new(PLAIN).replayed(withheld(why)).updates, both);
    }
}

/// The prompt is shown where it was withheld, or where a crash ended the turn for which it was queued.
#[test]
fn a_queued_prompt_that_is_withheld_is_replayed_once() {
    let queued = || Change::Queued {
        message: Message { id: MessageId(3), content: vec![text("hello")], author: None },
    };
    for end in [None, Some(ended(StopReason::Interrupted))] {
        let mut client = WireClient::new(PLAIN);
        client.replayed(queued());
        if let Some(end) = end {
            client.replayed(end);
        }
        client.replayed(withheld(Withheld::Cancelled)).replayed(ended(StopReason::Cancelled));
        let said =
            client.updates.iter().filter(|update| update["sessionUpdate"] == "user_message_chunk").count();
        assert_eq!(said, 1, "{:?}", client.updates);
    }
}

#[test]
fn a_cancelled_reply_without_thinking_completes_the_right_text() {
    // The thinking was streamed as part 0 but, being unsigned, is not in the entry, so the text moved up.
    let mut client = WireClient::new(PLAIN);
    client.text(0, TextKind::Thinking, "a long thought").text(1, TextKind::Reply, "Hel");
    client.entry(replied(vec![text("Hello")], Some(ReplyCut::Cancelled)));
    assert_eq!(
        client.texts(),
        [("m7.0".into(), "a long thought".into()), ("m7.1".to_owned(), "Hello".to_owned())]
    );
}

#[test]
fn encrypted_thinking_does_not_repeat_shown_text() {
    let mut client = WireClient::new(PLAIN);
    client.text(1, TextKind::Thinking, "hm").text(2, TextKind::Reply, "so");
    client.entry(replied(vec![thinking(""), thinking("hm"), text("so")], None));
    assert_eq!(client.texts(), [("m7.1".into(), "hm".into()), ("m7.2".to_owned(), "so".to_owned())]);
}

#[test]
fn a_second_replay_starts_over() {
    let opened = || Change::Opened { format: 1, session: SessionId("s_0".into()), cwd: "/w".into() };
    let mut client = WireClient::new(PLAIN);
    for _ in 0..2 {
        client.replayed(opened()).replayed(replied(vec![call("c1", ToolKind::Read)], None));
    }
    assert_eq!(client.updates.len(), 2, "the call is announced in each replay");
}

proptest! {
    /// The chunks of a reply add up to its text, whatever part of it was streamed and in whatever pieces.
    #[test]
    fn chunks_add_up_to_the_text(parts in prop::collection::vec(("[a-zé✓]{1,12}", any::<bool>(), 0usize..16), 1..5)) {
        let mut client = WireClient::new(PLAIN);
        let mut whole = true;
        for (index, (words, is_reply, streamed)) in parts.iter().enumerate() {
            let kind = if *is_reply { TextKind::Reply } else { TextKind::Thinking };
            for piece in words.chars().take(*streamed).filter(|_| whole) {
                client.text(index as u32, kind, &piece.to_string());
            }
            // After a dropped piece, no further text is streamed.
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
