//! The results of searching and reading small conversations.

use jiff::tz::TimeZone;

use super::*;
use epitome_thread::{
    CallDisplay, CallId, Content, FORMAT_VERSION, HistoryMessage, Location, Message, MessageId, ModelName,
    Origin, OutcomeStatus, PartId, Role, SessionId, ToolCall, ToolKind, ToolOutcome, Trigger, ViewEdit,
    Withheld,
};

const HOUR: u64 = 3_600_000;

fn message(text: &str) -> Message {
    Message { id: MessageId(0), content: vec![Content::Text { text: text.to_owned() }], author: None }
}

fn person(text: &str) -> Change {
    Change::Said { message: message(text), origin: Origin::Person }
}

/// A reply with thinking, a text and tool calls, each with a path or a command.
fn reply(text: &str, calls: &[(&str, &str, &str)]) -> Change {
    let thinking = Content::Thinking { text: "a secret thought".to_owned(), native: None };
    let calls = calls.iter().map(|(id, name, what)| {
        let is_path = what.starts_with('/');
        let input = serde_json::json!({ if is_path { "file_path" } else { "command" }: what });
        let locations = is_path.then(|| Location { path: PathBuf::from(what), line: None });
        let kind = if is_path { ToolKind::Read } else { ToolKind::Execute };
        let card =
            CallDisplay { title: (*what).to_owned(), kind, locations: locations.into_iter().collect() };
        Content::Call(ToolCall { id: CallId((*id).to_owned()), name: (*name).to_owned(), input, card })
    });
    let text = Content::Text { text: text.to_owned() };
    let content = [thinking, text].into_iter().chain(calls).collect();
    let message = Message { id: MessageId(0), content, author: None };
    Change::Replied { message, model: ModelName("scripted/a".to_owned()), usage: None, cut: None }
}

fn outcome(id: &str, text: &str) -> Change {
    let outcome = ToolOutcome::text(CallId(id.to_owned()), OutcomeStatus::Completed, text);
    Change::ToolFinished { outcome }
}

fn compacted(through: u64) -> Change {
    Change::Compacted {
        through: Seq(through),
        summary: message("They looked at the parser."),
        trigger: Trigger::Manual,
        focus: None,
        tokens_before: 9,
        tokens_after: 1,
        window: None,
        model: None,
        usage: None,
        masks: Vec::new(),
        account: Default::default(),
    }
}

fn mutated(through: u64, text: &str) -> Change {
    Change::Mutated {
        through: Seq(through),
        messages: vec![HistoryMessage { role: Role::User, message: message(text) }],
        by: "hook".to_owned(),
        tokens_before: 9,
        tokens_after: 1,
        window: None,
    }
}

fn edited(edit: ViewEdit) -> Change {
    Change::Edited { by: "hook".to_owned(), edits: vec![edit] }
}

fn at(entry: u64, part: Option<u32>) -> PartId {
    PartId { entry: Seq(entry), part }
}

/// Creates a thread with these changes after its opening entry, one per hour.
fn thread(changes: Vec<Change>) -> Thread {
    let session = SessionId("s_00000000000000000000".to_owned());
    let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: PathBuf::from("/w") };
    let log = [opened].into_iter().chain(changes).zip(0..);
    let entry = |(change, seq)| Arc::new(Entry { seq: Seq(seq), at: seq * HOUR, change });
    Thread::replay(log.map(entry)).expect("the log begins with its opening entry")
}

fn answer(log: Vec<Change>, ask: &RecallQuery) -> Result<String, RecallError> {
    let clock = Clock { now: log.len() as u64 * HOUR, zone: TimeZone::UTC };
    RecallLog::snapshot(&thread(log), usize::MAX).answer(ask, &clock, &|| false)
}

/// The ids of the search results, in order.
fn found(log: Vec<Change>, ask: &RecallQuery) -> Vec<String> {
    let answer = answer(log, ask).expect("the question is a good one");
    let hits = answer.split("\n\n").skip(1).filter(|part| part.starts_with('e'));
    hits.filter_map(|hit| hit.split(' ').next()).map(str::to_owned).collect()
}

fn conversation() -> Vec<Change> {
    vec![
        person("Look at the Parser, please."), // e1
        reply("I read it.", &[("c1", "file_read", "/w/src/parser.rs"), ("c2", "bash", "make")]), // e2
        outcome("c1", "fn parse() {}\n// line two\n"), // e3
        outcome("c2", "error: no rule\nERROR: again\n"), // e4
        reply("The make failed.", &[("c3", "recall", "error")]), // e5
        outcome("c3", "1 found: error"),       // e6
        reply("Done.", &[]),                   // e7
    ]
}

fn text(text: &str) -> RecallQuery {
    RecallQuery { text: Some(text.to_owned()), ..RecallQuery::default() }
}

fn read(entry: &str) -> RecallQuery {
    RecallQuery { range: Some(entry.parse().expect("an entry")), ..RecallQuery::default() }
}

#[test]
fn search_conditions_can_be_combined() {
    let kind = |kind| RecallQuery { kind: Some(kind), ..RecallQuery::default() };
    let path = |path: &str| RecallQuery { path: Some(path.to_owned()), ..RecallQuery::default() };
    let regex = |regex: &str| RecallQuery { regex: Some(regex.to_owned()), ..RecallQuery::default() };
    let since = |since: &str| RecallQuery { since: Some(since.to_owned()), ..RecallQuery::default() };
    for (ask, wanted) in [
        (text("parser"), vec!["e2.1", "e1"]),
        (text("PARSER look"), vec!["e1"]),
        (text("error"), vec!["e4"]),
        (text("parser nowhere"), vec![]),
        (text("thought"), vec![]),
        (regex("^// line"), vec!["e3"]),
        (regex("Parser"), vec!["e1"]),
        (regex("(?i)parser\\b"), vec!["e2.1", "e1"]),
        (path("src/parser.rs"), vec!["e3", "e2.1"]),
        (path("./src/"), vec!["e3", "e2.1"]),
        (path("/w/src/parser.rs"), vec!["e3", "e2.1"]),
        (path("arser.rs"), vec!["e3", "e2.1"]),
        (path("/elsewhere"), vec![]),
        (kind(RecordKind::Reply), vec!["e7", "e5", "e2"]),
        (kind(RecordKind::Said), vec!["e1"]),
        (kind(RecordKind::Outcome), vec!["e4", "e3"]),
        (since("3h ago"), vec!["e7", "e5", "e4"]),
        (
            RecallQuery { until: Some("1970-01-01T02:00".to_owned()), ..text("e") },
            vec!["e2.2", "e2.1", "e2", "e1"],
        ),
        (RecallQuery { kind: Some(RecordKind::Call), ..path("src") }, vec!["e2.1"]),
        (RecallQuery { range: "e3-e4".parse().ok(), ..text("e") }, vec!["e4", "e3"]),
        (RecallQuery { limit: Some(1), ..kind(RecordKind::Reply) }, vec!["e7"]),
        (RecallQuery { limit: Some(1), offset: 1, ..kind(RecordKind::Reply) }, vec!["e5"]),
    ] {
        assert_eq!(found(conversation(), &ask), wanted, "{ask:?}");
    }
}

#[test]
fn a_result_shows_kind_time_and_matching_lines() {
    assert_eq!(
        answer(conversation(), &text("error")).expect("an answer"),
        "1 found, newest first; these are 1 to 1. Read one with its entry, from a byte with offset.\n\n\
         e4 outcome of bash (make) · 1970-01-01 04:00 · 28 bytes · in your view\n  \
         offset 0: error: no rule\n  offset 15: ERROR: again\n\n\
         [Nothing has left your view: all of this is still in it.]"
    );
    let more = answer(
        conversation(),
        &RecallQuery {
            limit: Some(2),
            ..RecallQuery { kind: Some(RecordKind::Reply), ..RecallQuery::default() }
        },
    );
    assert!(
        more.expect("an answer")
            .starts_with("3 found, newest first; these are 1 to 2; offset 2 shows the next.")
    );
}

#[test]
fn entries_parts_and_ranges_are_read() {
    for (entry, wanted) in [
        ("e1", "[e1 said by the user · 1970-01-01 01:00 · bytes 0 to 27 of 27]\nLook at the Parser, please."),
        ("e2.2", "[e2.2 call of bash (make) · 1970-01-01 02:00 · bytes 0 to 13 of 13]\ncommand: make"),
        (
            "e6-e7",
            "[e6 outcome of recall (error) · 1970-01-01 06:00 · bytes 0 to 14 of 14]\n1 found: error\n\n[e7 reply · 1970-01-01 07:00 · bytes 0 to 5 of 5]\nDone.",
        ),
    ] {
        let answer = answer(conversation(), &read(entry)).expect("an answer");
        assert_eq!(answer.split("\n\n[Nothing").next(), Some(wanted), "{entry}");
    }
    for (entry, why) in [("e99", "the last is e7"), ("e0", "nothing of this"), ("e2.7", "nothing of this")] {
        assert!(answer(conversation(), &read(entry)).unwrap_err().to_string().contains(why), "{entry}");
    }
    for wrong in ["12", "e", "e2-", "e3-e2", "e1-e2-e3"] {
        assert!(wrong.parse::<EntryRange>().unwrap_err().to_string().contains("names no entry"), "{wrong}");
    }
}

#[test]
fn compacted_entries_are_found_together_with_the_summary() {
    let mut log = conversation();
    log.push(compacted(4)); // e8
    assert_eq!(found(log.clone(), &text("parser")), ["e8", "e2.1", "e1"]);
    let answer = answer(log.clone(), &text("parser")).expect("an answer");
    assert!(!answer.contains("Nothing has left"), "{answer}");
    assert_eq!(answer.matches("in your view").count(), 1, "the summary alone: {answer}");
    // The compaction is undone.
    log.push(Change::Undone { entry: Seq(8) });
    assert_eq!(found(log, &text("parser")), ["e2.1", "e1"]);
}

#[test]
fn pages_together_are_the_complete_text() {
    let line = "déjà vu, said the line that is numbered\n";
    let whole: String = (0..3_000).map(|number| format!("{number} {line}")).collect();
    let mut cut = ToolOutcome::text(CallId("c1".to_owned()), OutcomeStatus::Completed, "0 déjà vu […]");
    cut.whole = Some(whole.clone());
    let log = || {
        let call = reply("", &[("c1", "bash", "make")]);
        vec![person("hi"), call, Change::ToolFinished { outcome: cut.clone() }, outcome("c9", "after")]
    };
    let (mut text, mut offset, mut pages) = (String::new(), 0, 0);
    loop {
        let page = answer(log(), &RecallQuery { offset, limit: Some(20_000), ..read("e3") }).expect("a page");
        assert!(page.len() < 20_500);
        let (_, page) = page.split_once("]\n").expect("a head");
        pages += 1;
        match page.split_once("\n\n[") {
            Some((part, note)) => {
                text.push_str(part);
                let next = note.split("offset ").nth(1).expect("where it goes on");
                offset = next.trim_end_matches(']').parse().expect("a number");
            }
            None => {
                text.push_str(page);
                break;
            }
        }
    }
    assert_eq!(text, whole);
    assert!(pages > 5);
    let late = answer(log(), &RecallQuery { offset: 10_000_000, ..read("e3") });
    assert!(late.unwrap_err().to_string().contains("past the end"));
    // In the middle of a character, and at the offset of a result.
    assert!(answer(log(), &RecallQuery { offset: 4, ..read("e3") }).expect("a page").contains("bytes 5 to"));
    let hit = answer(log(), &self::text("2999 déjà")).expect("a find");
    let offset = hit.split("offset ").nth(1).and_then(|rest| rest.split(':').next()).expect("an offset");
    let ask = RecallQuery { offset: offset.parse().expect("a number"), ..read("e3") };
    assert!(answer(log(), &ask).expect("a page").contains("]\n2999 déjà vu"));
}

/// Each row is a change by a hook after the conversation, and the entries that a search for words in most entries
/// still finds.
#[test]
fn text_removed_by_a_hook_is_never_found() {
    let everything = ["e7", "e4", "e3", "e2.2", "e2.1", "e2", "e1"];
    let without = |gone: &[&'static str]| -> Vec<&str> {
        everything.into_iter().filter(|id| !gone.contains(id)).collect()
    };
    let note = String::new;
    let withheld = Change::Withheld {
        message: message("e, but not for you"),
        note: MessageId(0),
        why: Withheld::Blocked { hook: "hook".to_owned(), reason: String::new() },
    };
    let replaced = ViewEdit::Replace { at: at(4, None), content: message("gone").content };
    for (story, more, wanted) in [
        ("nothing", vec![], everything.to_vec()),
        ("a mask", vec![edited(ViewEdit::Mask { at: at(1, None), note: note() })], without(&["e1"])),
        ("another text", vec![edited(replaced.clone())], without(&["e4"])),
        (
            "a call goes with its outcome",
            vec![edited(ViewEdit::Drop { at: at(2, Some(1)) })],
            without(&["e2", "e2.1", "e2.2", "e3"]),
        ),
        (
            "an outcome goes with its call",
            vec![edited(ViewEdit::Drop { at: at(4, None) })],
            without(&["e2.2", "e4"]),
        ),
        (
            "a mask that was taken back",
            vec![edited(replaced), Change::Undone { entry: Seq(8) }],
            everything.to_vec(),
        ),
        ("pins change nothing", vec![edited(ViewEdit::Pin { at: at(1, None) })], everything.to_vec()),
        ("a prompt was withheld", vec![withheld], everything.to_vec()),
        ("another history", vec![mutated(4, "Made up.")], vec!["e8.1", "e7"]),
        (
            "a compaction, then another history: the summary told of what is gone",
            vec![compacted(4), mutated(7, "Made up.")],
            vec!["e9.1"],
        ),
        (
            "a compaction, whose summary a hook then masks: so it is with all that it stands for",
            vec![compacted(4), edited(ViewEdit::Mask { at: at(8, None), note: note() })],
            vec!["e7"],
        ),
    ] {
        let mut log = conversation();
        log.extend(more);
        let by_e = found(log.clone(), &RecallQuery { regex: Some("e".to_owned()), ..RecallQuery::default() });
        let by_e: Vec<String> = by_e.into_iter().filter(|id| id != "e5").collect();
        assert_eq!(by_e, wanted, "{story}");
        for id in everything.iter().filter(|id| !wanted.contains(id)) {
            assert!(answer(log.clone(), &read(id)).is_err(), "{story}: {id} is read");
        }
    }
    let mut log = conversation();
    log.push(edited(ViewEdit::Mask { at: at(1, None), note: note() }));
    assert!(answer(log, &read("e1")).unwrap_err().to_string().contains("a hook removed it"));
}

/// A text that the user had pinned was attributed to a hook.
#[test]
fn a_pinned_text_is_the_users() {
    let append = || ViewEdit::Append { role: Role::User, message: message("The port is 8123.") };
    for (by, author) in [("/pin", "by the user"), ("style", "by a hook")] {
        let log = vec![Change::Edited { by: by.to_owned(), edits: vec![append()] }];
        let hit = answer(log, &text("port")).expect("a find");
        assert!(hit.contains(&format!("e1.1 said {author}")), "{hit}");
    }
}

/// Regression: the model searched for a cache after the user had rewound "always use redis", and found that
/// instruction as if it applied. The user's own search finds it.
#[test]
fn rewound_entries_are_not_found_by_the_model() {
    let mut log = vec![
        person("Always use redis for the cache."),     // e1
        reply("", &[("c1", "bash", "install redis")]), // e2
        outcome("c1", "redis is the cache now"),       // e3
        Change::Rewound { to: Seq(1) },                // e4
        person("Use memcached for the cache."),        // e5
        reply("I use memcached as the cache.", &[]),   // e6
        compacted(6),                                  // e7
    ];
    assert_eq!(found(log.clone(), &text("cache")), ["e6", "e5"]);
    for entry in ["e1", "e2.1", "e3"] {
        assert!(answer(log.clone(), &read(entry)).is_err(), "{entry} is read");
    }
    assert!(answer(log.clone(), &read("e1")).unwrap_err().to_string().contains("rewound"));
    let clock = Clock { now: 0, zone: TimeZone::UTC };
    let all = RecallLog::with_rewound(&thread(log.clone()), usize::MAX);
    let (_, count) = all.find(&text("cache"), &clock, &|| false).expect("a search");
    assert_eq!(count, 4);
    // The rewind is undone, together with the compaction that came after it.
    log.push(Change::Undone { entry: Seq(7) });
    log.push(Change::Undone { entry: Seq(4) });
    assert_eq!(found(log, &text("cache")), ["e6", "e5", "e3", "e1"]);
}

#[test]
fn messages_from_hooks_are_found() {
    let append = ViewEdit::Append { role: Role::Assistant, message: message("I said nothing.") };
    let log = vec![person("hi"), edited(append), mutated(0, "Made up.")];
    assert_eq!(found(log.clone(), &text("nothing")), ["e2.1"]);
    assert_eq!(found(log, &text("made")), ["e3.1"]);
}

#[test]
fn invalid_questions_are_refused_with_a_reason() {
    let regex = |regex: String| RecallQuery { regex: Some(regex), ..RecallQuery::default() };
    for (ask, why) in [
        (regex("(".to_owned()), "can't be used"),
        (regex("a{1000}{1000}".to_owned()), "can't be used"),
        (regex("a".repeat(1_001)), "Ask for less"),
        (text(&"word ".repeat(30)), "Ask for less"),
        (
            RecallQuery { since: Some("soon".to_owned()), ..RecallQuery::default() },
            "not a known form of time",
        ),
    ] {
        let error = answer(conversation(), &ask).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let log = RecallLog::snapshot(&thread(conversation()), usize::MAX);
    let clock = Clock { now: 0, zone: TimeZone::UTC };
    let stopped = log.answer(&text("e"), &clock, &|| true).expect("an answer");
    assert!(stopped.contains("took too long"), "{stopped}");
}

#[test]
fn an_answer_is_bounded_however_much_is_found() {
    let line = format!("needle {}\n", "x".repeat(3_000));
    let mut log = vec![person("hi")];
    for number in 0..100 {
        let id = format!("c{number}");
        log.push(reply("", &[(&id, "bash", "make")]));
        log.push(outcome(&id, &line.repeat(20)));
    }
    for answer_bytes in [0, 4_000, usize::MAX] {
        let bytes_max = answer_bytes.clamp(ANSWER_BYTES_MIN, ANSWER_BYTES_MAX) + 1_500;
        let log = RecallLog::snapshot(&thread(log.clone()), answer_bytes);
        let clock = Clock { now: 0, zone: TimeZone::UTC };
        for ask in [text("needle"), read("e1-e150")] {
            let answer = log.answer(&ask, &clock, &|| false).expect("an answer");
            assert!(answer.len() < bytes_max, "{} bytes of {bytes_max}", answer.len());
        }
    }
}
