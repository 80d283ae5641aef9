//! The results of reading files of each format, and the errors for unreadable ones.

mod agents;

use std::fmt::Write as _;

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use epitome_thread::{Change, Entry, Mode, SessionId, Thread, ViewItem};
use epitome_transfer::json_lines;

fn context() -> ImportContext<'static> {
    ImportContext { cwd: Path::new("/w"), now: 1_000, read_sibling: &|_| None }
}

fn read_all(text: &str) -> Result<Vec<ImportDraft>, Problem> {
    read(Path::new("talk"), text, &context())
}

fn read_one(text: &str) -> (Thread, Vec<String>) {
    let mut drafts = read_all(text).expect("it can be read");
    assert_eq!(drafts.len(), 1);
    let draft = drafts.remove(0);
    let notes = draft.notes.clone();
    (thread(draft), notes)
}

fn thread(draft: ImportDraft) -> Thread {
    let thread = Thread::replay(draft.into_entries(&SessionId("s_0123456789abcdef0123".to_owned())));
    let thread = thread.expect("an import is a log");
    assert!(thread.open_calls().is_empty(), "every call has its outcome");
    assert!(!thread.in_turn(), "every turn has its end");
    thread
}

/// Formats the model's view in short form.
fn seen(thread: &Thread) -> String {
    let mut text = String::new();
    for item in thread.view().items() {
        match item {
            ViewItem::User(message) | ViewItem::Summary(message) => {
                let _ = writeln!(text, "user: {}", message.text());
            }
            ViewItem::Agent(message, model) => {
                let _ = writeln!(text, "{model}: {}", message.text());
                for call in message.calls() {
                    let _ = writeln!(text, "  {} {} {}", call.id, call.name, call.input);
                }
            }
            ViewItem::Outcomes(outcomes) => {
                for outcome in outcomes {
                    let _ =
                        writeln!(text, "  {} {:?}: {}", outcome.call, outcome.status, outcome.model_text());
                }
            }
        }
    }
    text
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn file(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).expect("a file of the repository")
}

#[test]
fn our_own_export_is_imported_unchanged() {
    for name in ["format-1", "hooks", "layers"] {
        let log = file(&format!("tests/golden/{name}.jsonl"));
        let entries: Vec<Arc<Entry>> =
            log.lines().map(|line| Arc::new(serde_json::from_str(line).expect("an entry"))).collect();
        let before = Thread::replay(entries.iter().cloned()).expect("a log");
        let exported = json_lines(before.session(), &entries).expect("JSON");
        let draft = read_all(&exported).expect("our own export").remove(0);
        assert_eq!(draft.session.as_ref(), Some(before.session()));
        let same = draft.clone().into_entries(before.session());
        assert_eq!(same, entries, "{name}");
        assert_eq!(json_lines(before.session(), &same).expect("JSON"), exported, "{name}, to the byte");
        // The conversation doesn't depend on the id.
        let other = SessionId("s_00000000000000000077".to_owned());
        let after = Thread::replay(draft.into_entries(&other)).expect("a log");
        assert_eq!(after.session(), &other);
        assert_eq!(after.pins(), before.pins());
        assert_eq!(after.layers(), before.layers());
        assert_eq!(seen(&after), seen(&before));
    }
}

/// Lines in the form of a real session of pi, packages/coding-agent/test/fixtures/before-compaction.jsonl in
/// github.com/badlogic/pi-mono, with other texts.
const PI_FIRST: &str = r#"{"type":"session","id":"ffae","timestamp":"2025-12-09T00:53:29.825Z","cwd":"/p/mono","provider":"anthropic","modelId":"claude-opus-4-5","thinkingLevel":"off"}
{"type":"message","timestamp":"2025-12-08T22:41:05.306Z","message":{"role":"user","content":[{"type":"text","text":"Read main.ts.\nThen plan."}],"timestamp":1765233665292}}
{"type":"message","timestamp":"2025-12-08T22:41:09.389Z","message":{"role":"assistant","content":[{"type":"thinking","thinking":"Two files.","thinkingSignature":"abc"},{"type":"toolCall","id":"toolu_1","name":"read","arguments":{"path":"/p/mono/main.ts"}},{"type":"toolCall","id":"fc|2","name":"bash","arguments":{"command":"ls"}}],"api":"anthropic-messages","provider":"anthropic","model":"claude-opus-4-5","usage":{"input":2775,"output":141,"cacheRead":10,"cacheWrite":5,"totalTokens":2931},"stopReason":"toolUse","timestamp":1765233665294}}
{"type":"message","timestamp":"2025-12-08T22:41:09.394Z","message":{"role":"toolResult","toolCallId":"toolu_1","toolName":"read","content":[{"type":"text","text":"import x"}],"isError":false,"timestamp":1765233669394}}
{"type":"message","timestamp":"2025-12-08T22:41:09.395Z","message":{"role":"toolResult","toolCallId":"fc|2","toolName":"bash","content":[{"type":"text","text":"no such"}],"isError":true,"timestamp":1765233669395}}
{"type":"message","timestamp":"2025-12-08T22:41:20.000Z","message":{"role":"assistant","content":[{"type":"text","text":"It is one file."}],"provider":"google","model":"gemini-3","stopReason":"stop"}}
{"type":"message","timestamp":"2025-12-08T22:42:00.000Z","message":{"role":"bashExecution","command":"make","output":"ok","exitCode":2,"cancelled":false}}
{"type":"message","timestamp":"2025-12-08T22:42:05.000Z","message":{"role":"user","content":"Go on."}}
{"type":"message","timestamp":"2025-12-08T22:42:06.000Z","message":{"role":"assistant","content":[{"type":"toolCall","id":"toolu_1","name":"bash","arguments":{"command":"sleep"}}],"provider":"anthropic","model":"claude-opus-4-5","stopReason":"aborted"}}"#;

#[test]
fn a_session_of_pi_is_read() {
    let (thread, notes) = read_one(PI_FIRST);
    assert_eq!(
        seen(&thread),
        "user: Read main.ts.\nThen plan.\n\
         anthropic/claude-opus-4-5: \n  toolu_1 read {\"path\":\"/p/mono/main.ts\"}\n  fc2 bash {\"command\":\"ls\"}\n  \
         toolu_1 Completed: import x\n  fc2 Failed: no such\n\
         gemini/gemini-3: It is one file.\n\
         user: The user ran `make`:\n\nok\n\nIt ended with exit code 2.\nuser: Go on.\n\
         anthropic/claude-opus-4-5: \n  call_3 bash {\"command\":\"sleep\"}\n  \
         call_3 Interrupted: No result was recorded.\n"
    );
    assert_eq!(notes, [""; 0]);
    assert_eq!((thread.title(), thread.cwd()), (Some("Read main.ts."), Path::new("/p/mono")));
    assert_eq!((thread.spent().input, thread.spent().cache_read), (2_790, 10));
    assert_eq!(thread.entries()[0].at, 1_765_241_609_825, "times are pi's");
}

/// A message as a session of Epitome has it, and one as it leaves Epitome.
const OWN: &str = "The conversation so far was compacted. What follows was kept of it.\n\n\
    What the log shows, computed without a model. Entries such as e12 are places in the log\n\n<carried_over>\n\
    ## Other commands, most frequent first\n- `make` (3×, last e9): succeeded\n\n\
    ## What the agent said, newest last\ne12: Part 1 is done.\n</carried_over>\n\n\
    What the user said before, verbatim, oldest first; where two messages disagree, the newest one holds:\n\n<user>\n\
    <said entry=\"e2\">\nNever push.\n</said>\n</user>\n\n\
    The last request before the compaction, verbatim (it may be answered already):\n\n<last_request>\nTest part 1.\n\
    </last_request>\n\n11 entries from e2 to e12 are no longer in view: the tool `recall` finds and reads them.";

/// A session that began with a message of Epitome was imported with that message as the user's first words, so that each
/// round nested it once more: after five of them, 70 % of the facts were left.
#[test]
fn a_message_of_epitome_is_imported_as_what_it_contains() {
    let head = r#"{"type":"session","version":3,"id":"x","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/p"}"#;
    let line = |id: &str, parent: Value, role: &str, text: &str| {
        serde_json::json!({
            "type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:01.000Z",
            "message": {
                "role": role, "content": [{ "type": "text", "text": text }], "provider": "a", "model": "b",
                "stopReason": "stop",
            },
        })
    };
    let (sealed, _) = sealed(OWN, std::iter::empty());
    let wrapped = format!("Summary so far:\n<summary>\n{sealed}\n</summary>");
    for (first, title) in [(OWN, "Never push."), (&sealed, "Never push."), (&wrapped, "Summary so far:")] {
        let lines = [line("a", Value::Null, "user", first), line("b", "a".into(), "assistant", "Fine.")];
        let (thread, _) = read_one(&format!("{head}\n{}\n{}", lines[0], lines[1]));
        let expected = "user: (Entries such as e12 are places in an earlier session.)\n\n\
                        ## Other commands, most frequent first\n- `make` (3×, last e9): succeeded\n\n\
                        ## What the agent said, newest last\ne12: Part 1 is done.\n\
                        user: Never push.\nuser: Test part 1.\na/b: Fine.\n";
        assert_eq!(seen(&thread), expected);
        assert_eq!(thread.title(), Some(title));
    }

    // A sentence about such a message is not one.
    let quoted = format!("{OWN}\n\nWhy was this kept?");
    let (thread, _) = read_one(&format!("{head}\n{}", line("a", Value::Null, "user", &quoted)));
    assert_eq!(seen(&thread), format!("user: {quoted}\n"));
}

/// The model saw the other agent's heading, the first line and all parts of a message whose conversation is there, and a
/// compaction in Epitome nested all of it.
#[test]
fn a_compaction_by_epitome_stays_the_view_of_its_conversation() {
    let head = r#"{"type":"session","version":3,"id":"x","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/p"}"#;
    let said = |id: &str, parent: &str| {
        format!(
            r#"{{"type":"message","id":"{id}","parentId":{parent},"timestamp":"2026-01-01T00:00:01.000Z","message":{{"role":"user","content":"Say {id}."}}}}"#
        )
    };
    let reply = r#"{"type":"message","id":"r","parentId":"a","timestamp":"2026-01-01T00:00:01.000Z","message":{"role":"assistant","content":[{"type":"text","text":"A."}],"provider":"a","model":"b","stopReason":"stop"}}"#;
    let before = [head.to_owned(), said("a", "null"), reply.to_owned()];
    let (conversation, _) = read_one(&before.join("\n"));
    let (sealed, _) = sealed(OWN, conversation.entries().iter().map(|entry| &**entry));
    let compaction = serde_json::json!({
        "type": "compaction", "id": "c", "parentId": "b", "timestamp": "2026-01-01T00:00:02.000Z",
        "summary": sealed, "firstKeptEntryId": "b", "tokensBefore": 3000,
    });
    let after = [said("b", "\"r\""), compaction.to_string(), said("d", "\"c\"")];
    let (thread, _) = read_one(&[before, after].concat().join("\n"));
    assert_eq!(seen(&thread), format!("user: {OWN}\nuser: Say b.\nuser: Say d.\n"));
    assert_eq!(thread.title(), Some("Say a."));
}

/// Variations of a session's tree, and the part of each that is imported.
#[test]
fn the_newest_branch_of_a_pi_session_is_imported() {
    let head = r#"{"type":"session","version":3,"id":"x","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/p"}"#;
    let said = |id: &str, parent: &str, role: &str, text: &str| {
        let parent = if parent.is_empty() { "null".to_owned() } else { format!("{parent:?}") };
        format!(
            r#"{{"type":"message","id":"{id}","parentId":{parent},"timestamp":"2026-01-01T00:00:01.000Z","message":{{"role":"{role}","content":[{{"type":"text","text":"{text}"}}],"provider":"a","model":"b","stopReason":"stop"}}}}"#
        )
    };
    let lines = [
        head.to_owned(),
        said("a", "", "user", "One"),
        said("b", "a", "assistant", "First"),
        said("c", "b", "user", "Left behind"),
        r#"{"type":"branch_summary","id":"d","parentId":"b","timestamp":"2026-01-01T00:00:02.000Z","fromId":"c","summary":"Nothing came of it."}"#.to_owned(),
        said("e", "d", "user", "Two"),
        said("f", "e", "assistant", "Second"),
        r#"{"type":"session_info","id":"g","parentId":"f","timestamp":"2026-01-01T00:00:03.000Z","name":"Counting"}"#.to_owned(),
        r#"{"type":"compaction","id":"h","parentId":"g","timestamp":"2026-01-01T00:00:04.000Z","summary":"One was said.","firstKeptEntryId":"e","tokensBefore":900}"#.to_owned(),
        r#"{"type":"novelty","id":"i","parentId":"h"}"#.to_owned(),
        said("j", "i", "user", "Three"),
    ];
    let (thread, notes) = read_one(&lines.join("\n"));
    assert_eq!(
        seen(&thread),
        "user: A summary of what was said and done so far:\n\nOne was said.\nuser: Two\na/b: Second\nuser: Three\n"
    );
    assert_eq!(thread.title(), Some("Counting"));
    assert_eq!(
        notes,
        ["left out: entries of other branches (1)", "left out: entries of the type \"novelty\" (1)"]
    );
    let compaction = thread.last_compaction().expect("it is there").seq;
    let mut undone = thread.clone();
    let seq = undone.next_seq();
    undone.apply(Arc::new(Entry { seq, at: 0, change: Change::Undone { entry: compaction } }));
    assert!(seen(&undone).starts_with("user: One\na/b: First\nuser: What was done on another branch:"));
}

/// Regression: the kept part began with the outcomes that the prompt gave to open calls, so their reply was kept too.
#[test]
fn a_compaction_of_pi_keeps_no_reply_before_its_first_kept_prompt() {
    let text = r#"{"type":"session","version":3,"id":"x","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/p"}
{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"One"}}
{"type":"message","id":"b","parentId":"a","message":{"role":"assistant","content":[{"type":"toolCall","id":"t","name":"bash","arguments":{"command":"ls"}}],"provider":"a","model":"b","stopReason":"toolUse"}}
{"type":"message","id":"c","parentId":"b","message":{"role":"user","content":"Two"}}
{"type":"compaction","id":"d","parentId":"c","summary":"One was said.","firstKeptEntryId":"c","tokensBefore":900}
{"type":"message","id":"e","parentId":"d","message":{"role":"user","content":"Three"}}"#;
    let (thread, _) = read_one(text);
    assert_eq!(
        seen(&thread),
        "user: A summary of what was said and done so far:\n\nOne was said.\nuser: Two\nuser: Three\n"
    );
}

#[test]
fn a_recording_is_read() {
    let text = "\
# A recording. Keys are masked; read it before you share it.
editor> initialize
agent<  result {\"protocolVersion\":1}
editor> session/new
agent<  result {\"sessionId\":\"$S1\"}
agent<  session/update $S1 options model=anthropic/m mode=ask
editor> session/prompt $S1 \"Read $DIR/notes.txt\"
agent<  session/update $S1 title \"Notes\"
agent<  session/update $S1 think $M1 \"Let me \"
agent<  session/update $S1 think $M1 \"see.\"
agent<  session/update $S1 text $M1 \"I read it.\"
agent<  session/update $S1 tool_call $C1 file_read pending title=\"Read notes.txt\" kind=read at=$DIR/notes.txt:1
        input={\"file_path\":\"notes.txt\"}
agent<  session/update $S1 tool_call $C2 bash pending title=ls kind=execute input={\"command\":\"ls\"}
agent<  session/request_permission $S1 $C2 bash allow_once reject_once
editor> result reject_once
agent<  session/update $S1 tool_call_update $C1 file_read in_progress
agent<  session/update $S1 tool_call_update $C1 file_read completed \"milk, bread\"
agent<  session/update $S1 tool_call_update $C2 bash failed \"The user said no.\"
agent<  session/update $S1 plan completed \"Read\" pending \"Answer\"
agent<  session/update $S1 text $M2 \"Milk and bread.\"
agent<  session/update $S1 usage 100/200
agent<  result end_turn
editor> session/prompt $S1 [{\"type\":\"text\",\"text\":\"And this?\"},{\"type\":\"image\",\"data\":\"aGk=\",\"mimeType\":\"image/png\"}]
agent<  session/update $S1 text $M3 \"An im\"
agent<  result cancelled
";
    let (thread, notes) = read_one(text);
    assert_eq!(
        seen(&thread),
        "user: Read /w/notes.txt\nanthropic/m: I read it.\n  C1 file_read {\"file_path\":\"notes.txt\"}\n  \
         C2 bash {\"command\":\"ls\"}\n  C1 Completed: milk, bread\n  C2 Failed: The user said no.\n\
         anthropic/m: Milk and bread.\nuser: And this?\nanthropic/m: An im\n"
    );
    assert_eq!((thread.title(), thread.plan().len(), notes.len()), (Some("Notes"), 2, 0));
    let first = thread.entries().iter().find_map(|entry| match &entry.change {
        Change::Replied { message, .. } => Some(message.clone()),
        _ => None,
    });
    let first = serde_json::to_value(first).expect("JSON");
    assert_eq!(first["content"][0]["text"], "Let me see.");
    assert_eq!(
        first["content"][2]["card"]["locations"][0],
        serde_json::json!({"path": "/w/notes.txt", "line": 1})
    );
}

#[test]
fn a_replay_replaces_what_was_recorded_before_it() {
    let text = "\
editor> session/prompt $S1 \"One\"
agent<  session/update $S1 text $M1 \"First\"
agent<  result end_turn
editor> session/load $S1
agent<  session/update $S1 user $M2 \"One\"
agent<  session/update $S1 text $M1 \"First\"
agent<  result {}
editor> session/prompt $S1 \"Two\"
agent<  session/update $S1 text $M3 \"Second\"
agent<  result end_turn
editor> session/prompt $S2 \"Elsewhere\"
agent<  result refusal
";
    let drafts = read_all(text).expect("it can be read");
    let seen: Vec<String> = drafts.into_iter().map(|draft| self::seen(&thread(draft))).collect();
    assert_eq!(
        seen,
        [
            "user: One\ntranscript/unknown: First\nuser: Two\ntranscript/unknown: Second\n",
            "user: Elsewhere\n"
        ]
    );
}

/// The protocol fixtures are transcripts too, including unusual ones.
#[test]
fn every_protocol_fixture_is_read_or_refused_with_its_line() {
    let mut talks = 0;
    for fixture in std::fs::read_dir(repository().join("protocol-fixtures")).expect("it is there") {
        let path = fixture.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        match read_all(&text) {
            Ok(drafts) => {
                talks += drafts.len();
                drafts.into_iter().for_each(|draft| drop(thread(draft)));
            }
            Err(problem) => assert!(problem.position.is_some(), "{}: {problem}", path.display()),
        }
    }
    assert!(talks > 30, "only {talks} conversations were read");
}

#[test]
fn unreadable_files_are_reported_with_the_line() {
    let opened =
        r#"{"seq":0,"at":1,"change":"opened","format":1,"session":"s_00000000000000000001","cwd":"/w"}"#;
    let pi = r#"{"type":"session","version":3,"id":"x","cwd":"/p"}"#;
    for (text, position, message) in [
        (String::new(), None, "not a conversation in a known format"),
        ("Dear diary".to_owned(), None, "not a conversation in a known format"),
        (r#"{"type":"other"}"#.to_owned(), None, "not a conversation in a known format"),
        (format!("{opened}\n{{\"seq\":1,\n"), Some((2, 9)), "can't be read"),
        (
            format!("{opened}\n{{\"seq\":2,\"at\":1,\"change\":\"titled\",\"title\":\"x\"}}"),
            Some((2, 1)),
            "a line is missing",
        ),
        (opened.replace("\"format\":1", "\"format\":9"), Some((1, 1)), "newer Epitome"),
        (pi.to_owned(), Some((1, 1)), "has no messages"),
        (pi.replace("\"version\":3", "\"version\":4"), Some((1, 1)), "version 4"),
        (format!("{pi}\n{{\"id\":\"a\"}}"), Some((2, 1)), "no type"),
        (format!("{pi}\n{{\"type\":\"label\",\"id\":\"a\",\"parentId\":\"z\"}}"), Some((2, 1)), "parent z"),
        (
            format!("{pi}\n{{\"type\":\"label\",\"id\":\"a\",\"parentId\":\"a\"}}"),
            Some((2, 1)),
            "its own ancestor",
        ),
        ("editor> session/prompt $S1\n".to_owned(), Some((1, 1)), "has no messages"),
        ("editor> initialize\nagent<  nonsense\n".to_owned(), Some((2, 1)), "an agent's line is"),
        (
            "editor> session/prompt $S1 \"x\"\nagent<  session/update $S1 tool_call bash pending\n"
                .to_owned(),
            Some((2, 1)),
            "no name",
        ),
    ] {
        let problem = read_all(&text).expect_err("it can't be read");
        assert!(problem.message.contains(message), "{text}: {problem}");
        assert_eq!(problem.position, position, "{text}: {problem}");
        assert_eq!(problem.path, Path::new("talk"));
    }
}

/// An imported session kept its author's mode and permissions: a user who imported a shared session and
/// continued it ran commands without being asked.
#[test]
fn an_import_withdraws_what_its_author_granted() {
    let log = "\
{\"seq\":0,\"at\":1,\"change\":\"opened\",\"format\":1,\"session\":\"s_00000000000000000001\",\"cwd\":\"/w\"}
{\"seq\":1,\"at\":1,\"change\":\"mode_chosen\",\"mode\":\"full\"}
{\"seq\":2,\"at\":1,\"change\":\"allowed\",\"rule\":{\"rule\":\"command\",\"line\":\"make\"}}";
    let settled = |keeps| {
        let mut draft = read_all(log).expect("it is a log").remove(0);
        draft.settle_permissions(keeps).expect("it is a conversation");
        let notes = draft.notes.join("\n");
        let name = SessionId("s_00000000000000000002".into());
        (Thread::replay(draft.into_entries(&name)).expect("it is a conversation"), notes)
    };
    let (thread, notes) = settled(false);
    assert_eq!((thread.mode(), thread.rules()), (Mode::Ask, &[][..]));
    assert!(notes.contains("Full access") && notes.contains("were withdrawn: the command make"), "{notes}");
    // A backup of one's own.
    let (thread, notes) = settled(true);
    assert_eq!((thread.mode(), thread.rules().len()), (Mode::Full, 1));
    assert!(notes.contains("still apply: the command make"), "{notes}");
}
