//! Sessions of other agents. The files were written by these agents, in conversations with a mock provider, and were
//! shortened; next to each is the expected result.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

use super::*;
use epitome_thread::{Content, Message, Origin};

/// File names with their texts.
type FileTexts = &'static [(&'static str, &'static str)];

/// The file, the expected result, and the files in the same folder.
const SESSIONS: [(&str, &str, &str, FileTexts); 9] = [
    ("ses_1.json", include_str!("opencode.json"), include_str!("opencode.txt"), &[]),
    ("session-1.jsonl", include_str!("gemini.jsonl"), include_str!("gemini.txt"), &[]),
    (
        "events.jsonl",
        include_str!("copilot.jsonl"),
        include_str!("copilot.txt"),
        &[("workspace.yaml", "id: a\nname: \"Notes: and files\"\nuser_named: true\n")],
    ),
    (
        "1795444282775/api_conversation_history.json",
        include_str!("cline-tags.json"),
        include_str!("cline-tags.txt"),
        &[],
    ),
    (
        "1795443640833_q7re2.messages.json",
        include_str!("cline-cli.json"),
        include_str!("cline-cli.txt"),
        &[("1795443640833_q7re2.json", r#"{"cwd":"/w","metadata":{"title":"Notes and files"}}"#)],
    ),
    (
        "sessions/wd_w_1/session_1/agents/main/wire.jsonl",
        include_str!("kimi-code.jsonl"),
        include_str!("kimi-code.txt"),
        &[],
    ),
    (
        "sessions/0cc175b9/5fa1/context.jsonl",
        include_str!("kimi-cli.jsonl"),
        include_str!("kimi-cli.txt"),
        &[],
    ),
    (".aider.chat.history.md", include_str!("aider.md"), include_str!("aider.txt"), &[]),
    // In both of its forms, by hand.
    ("task.traj", include_str!("swe-agent.json"), include_str!("swe-agent.txt"), &[]),
];

fn read_with(path: &str, text: &str, files: &[(&str, &str)]) -> Result<Vec<ImportDraft>, Problem> {
    let sibling = |name: &Path| {
        files.iter().find(|(known, _)| Path::new(known) == name).map(|(_, text)| (*text).to_owned())
    };
    read(
        Path::new(path),
        text,
        &ImportContext { cwd: Path::new("/here"), now: 1_000, read_sibling: &sibling },
    )
}

/// The whole of a parser of YAML was linked for four fields, half a megabyte in the program that compacts transcripts.
#[test]
fn the_title_of_a_copilot_session_is_any_scalar_of_yaml() {
    for (fields, title) in [
        ("id: a\nname: Notes: and files\nuser_named: true\n", "Notes: and files"),
        ("name: Notes\nuser_named: false\nsummary: 'It''s done'\n", "It's done"),
        ("summary: \"a \\\"b\\\" c\"\nname: null\nuser_named: true\n", "a \"b\" c"),
        ("summary: >-\n  Two lines:\n  one title\nname: x\n", "Two lines: one title"),
        ("summary: a long text\n  that goes on\n", "a long text that goes on"),
    ] {
        let drafts = read_with("events.jsonl", include_str!("copilot.jsonl"), &[("workspace.yaml", fields)]);
        let drafts = drafts.expect("it can be read");
        let found = drafts[0].entries.iter().rev().find_map(|entry| match &entry.change {
            Change::Titled { title } => Some(title.as_str()),
            _ => None,
        });
        assert_eq!(found, Some(title), "{fields}");
    }
}

/// Formats a log in short form, with one entry per line.
fn describe(draft: &ImportDraft) -> String {
    let words = |message: &Message| {
        let parts = message.content.iter().map(|part| match part {
            Content::Text { text } => text.clone(),
            Content::Thinking { text, .. } => format!("(thinking: {text})"),
            Content::Call(call) => format!("[{} {} {} {:?}]", call.id, call.name, call.input, call.card.kind),
            other => format!("{other:?}"),
        });
        parts.collect::<Vec<_>>().join(" ")
    };
    let mut out = String::new();
    for entry in &draft.entries {
        let _ = write!(out, "{:>2} ", entry.seq.0);
        let _ = match &entry.change {
            Change::Opened { cwd, .. } => writeln!(out, "opened in {}", cwd.display()),
            Change::Titled { title } => writeln!(out, "title {title}"),
            Change::Said { message, origin: Origin::Person } => writeln!(out, "user: {}", words(message)),
            Change::Said { message, origin } => writeln!(out, "{origin:?}: {}", words(message)),
            Change::Replied { message, model, usage, cut } => {
                let usage = usage
                    .map(|usage| format!(" {}+{} tokens", usage.input, usage.output))
                    .unwrap_or_default();
                let cut = cut.as_ref().map(|cut| format!(" {cut:?}")).unwrap_or_default();
                writeln!(out, "{}{usage}{cut}: {}", model.0, words(message))
            }
            Change::ToolFinished { outcome } => {
                let raw = outcome.raw.as_ref().map(|raw| format!(" {raw}")).unwrap_or_default();
                writeln!(out, "{} {:?}{raw}: {}", outcome.call, outcome.status, outcome.model_text())
            }
            Change::Compacted { through, summary, trigger, tokens_before, .. } => writeln!(
                out,
                "compacted through {} ({trigger:?}, {tokens_before} tokens): {}",
                through.0,
                words(summary)
            ),
            Change::Planned { steps } => {
                let steps = steps.iter().map(|step| format!("{:?} {}", step.status, step.content));
                writeln!(out, "plan: {}", steps.collect::<Vec<_>>().join(", "))
            }
            Change::TurnEnded { reason, .. } => writeln!(out, "turn ended: {reason:?}"),
            other => writeln!(out, "{other:?}"),
        };
    }
    for note in &draft.notes {
        let _ = writeln!(out, "note: {note}");
    }
    let _ = writeln!(out, "id: {}", draft.foreign_id.as_deref().unwrap_or("none"));
    out
}

#[test]
fn a_session_of_each_agent_is_read() {
    for (path, text, expected, files) in SESSIONS {
        let mut drafts = read_with(path, text, files).expect("it can be read");
        assert_eq!(drafts.len(), 1);
        let draft = drafts.remove(0);
        assert_eq!(describe(&draft), expected, "{path}");
        thread(draft);
    }
}

/// Every prefix of a file is read or refused: missing ends are reported, and everything before them is
/// imported.
#[test]
fn a_truncated_file_loses_only_its_last_line() {
    for (path, text, _, files) in SESSIONS {
        let is_lines = path.ends_with(".jsonl") || path.ends_with(".md");
        let mut most = 0;
        for end in (0..text.trim_end().len()).filter(|end| text.is_char_boundary(*end)) {
            let Ok(drafts) = read_with(path, &text[..end], files) else { continue };
            for draft in drafts {
                let (count, notes) = (draft.entries.len(), draft.notes.join("\n"));
                let last = text[..end].rsplit('\n').next().unwrap_or_default();
                let is_whole = last.is_empty() || serde_json::from_str::<Value>(last).is_ok();
                let is_torn = path.ends_with(".jsonl") && !is_whole;
                assert_eq!(notes.contains("its last line is incomplete"), is_torn, "{path} {end}");
                thread(draft);
                most = most.max(count);
            }
        }
        assert_eq!(most > 0, is_lines, "{path}: a document is read whole or not at all");
    }
}

/// Replaces or removes a value of a document.
fn changed(value: &mut Value, at: &mut usize, with: &Value) -> bool {
    if *at == 0 {
        *value = with.clone();
        return true;
    }
    *at -= 1;
    match value {
        Value::Array(values) => values.iter_mut().any(|value| changed(value, at, with)),
        Value::Object(fields) => fields.values_mut().any(|value| changed(value, at, with)),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Files with changed bytes, reordered lines or values of other types are read or refused.
    #[test]
    fn no_file_makes_a_reader_panic(
        session in 0..SESSIONS.len(),
        bytes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        lines in prop::collection::vec((any::<Index>(), any::<Index>()), 0..4),
        values in prop::collection::vec((any::<Index>(), 0..400_usize, 0..7_usize), 0..4),
    ) {
        let (path, text, _, files) = SESSIONS[session];
        let others =
            [json!(null), json!([]), json!({}), json!(""), json!(-1), json!(u64::MAX), json!(["text", {"type": 1}])];
        let mut rows: Vec<String> = text.lines().map(str::to_owned).collect();
        for (one, other) in lines {
            let (one, other) = (one.index(rows.len()), other.index(rows.len()));
            rows.swap(one, other);
        }
        for (row, mut at, other) in values {
            let row = &mut rows[row.index(text.lines().count())];
            let comma = if row.ends_with(',') { "," } else { "" };
            if let Ok(mut value) = serde_json::from_str::<Value>(row.trim_end_matches(',')) {
                changed(&mut value, &mut at, &others[other]);
                *row = format!("{value}{comma}");
            }
        }
        let mut text = rows.join("\n").into_bytes();
        for (at, byte) in bytes {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let text = String::from_utf8_lossy(&text);
        for draft in read_with(path, &text, files).unwrap_or_default() {
            thread(draft);
        }
    }
}

/// Truncations in Cline's `ui_messages.json`, and the messages that Roo Code inserts for them.
#[test]
fn truncations_by_cline_are_layers() {
    let said = |role: &str, text: &str| json!({ "role": role, "content": text });
    let four = [
        said("user", "<task>One</task>"),
        said("assistant", "First"),
        said("user", "<feedback>Two</feedback>"),
        said("assistant", "Second"),
    ];
    let of = |more: Vec<Value>| Value::Array(four.iter().cloned().chain(more).collect()).to_string();
    let left_out = "user: The conversation up to here was left out of the context, without a summary. It began with:\n\nOne\n";
    let path = "1795444282775/api_conversation_history.json";
    let shown = r#"[{"conversationHistoryIndex":1},{"conversationHistoryIndex":3,"conversationHistoryDeletedRange":[2,3]},
        {"conversationHistoryIndex":4,"conversationHistoryDeletedRange":[2,3]},
        {"conversationHistoryIndex":9223372036854775807,"conversationHistoryDeletedRange":[2,9223372036854775807]}]"#;
    let three = vec![said("user", "<feedback>Three</feedback>"), said("assistant", "Third")];
    let then = "user: Three\ncline/unknown: Third\n";
    let mut marked = three.clone();
    marked.insert(0, json!({ "role": "user", "content": "Messages are hidden", "isTruncationMarker": true }));
    let mut summarised = three.clone();
    summarised.insert(0, json!({ "role": "assistant", "content": [{ "type": "text", "text": "Counted." }], "isSummary": true }));
    for (text, files, expected) in [
        (of(three), vec![("ui_messages.json", shown)], format!("{left_out}{then}")),
        (of(marked), vec![], format!("{left_out}{then}")),
        (
            of(summarised),
            vec![],
            format!("user: A summary of what was said and done so far:\n\nCounted.\n{then}"),
        ),
    ] {
        let draft = read_with(path, &text, &files).expect("it can be read").remove(0);
        assert_eq!(seen(&thread(draft)), expected);
    }
}

/// Cline's calls by tool support may have results in text. They were taken for messages, and all calls had none.
#[test]
fn results_in_text_belong_to_calls_by_tool_support() {
    let call = |id: &str, name: &str, input: Value| json!({ "type": "tool_use", "id": id, "name": name, "input": input });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let session = json!([
        { "role": "user", "content": [text("<task>One</task>")] },
        { "role": "assistant", "content": [
            call("a", "read_file", json!({ "absolutePath": "/w/a.ts" })),
            call("b", "execute_command", json!({ "command": "cd x\nmake" })),
        ] },
        { "role": "user", "content": [
            text("[execute_command for 'cd x\nmake'] Result:"), text("Command executed.\nOutput:\nok"),
            text("[read_file for 'a.ts'] Result:\nlet a = 1;"), { "type": "novelty" },
        ] },
        { "role": "assistant", "content": [call("c", "c1x0mcp0search", json!({ "query": "x" }))] },
        { "role": "user", "content": [text("[use_mcp_tool for 'search'] Result:\nfound")] },
    ]);
    let drafts = read_with("1795444282775/api_conversation_history.json", &session.to_string(), &[]);
    let draft = drafts.expect("it can be read").remove(0);
    assert_eq!(draft.notes, ["left out: parts of messages (1 novelty)"]);
    assert_eq!(
        seen(&thread(draft)),
        "user: One\ncline/unknown: \n  a read_file {\"absolutePath\":\"/w/a.ts\"}\n  \
         b execute_command {\"command\":\"cd x\\nmake\"}\n  \
         a Completed: let a = 1;\n  b Completed: Command executed.\nOutput:\nok\n\
         cline/unknown: \n  c c1x0mcp0search {\"query\":\"x\"}\n  c Completed: found\n"
    );
}

/// Messages of opencode 2, in the form of its tables.
#[test]
fn a_session_of_opencode_2_is_read() {
    let tool = |id: &str, state: Value| json!({ "type": "tool", "id": id, "name": "shell", "state": state });
    let texts =
        |texts: &[&str]| texts.iter().map(|text| json!({ "type": "text", "text": text })).collect::<Vec<_>>();
    let assistant = |id: &str, content: Vec<Value>, finish: &str| {
        json!({ "type": "assistant", "id": id, "time": { "created": 3 }, "model": { "id": "m1", "providerID": "mock" },
            "content": content, "finish": finish, "tokens": { "input": 5, "output": 2, "cache": { "read": 1 } } })
    };
    let session = json!({
        "info": { "id": "ses_1", "directory": "/w", "title": "Notes", "time": { "created": 1 } },
        "messages": [
            { "type": "model-switched", "id": "msg_0", "model": { "id": "m1", "providerID": "mock" } },
            { "type": "user", "id": "msg_1", "time": { "created": 2 }, "text": "Look.",
              "files": [{ "mime": "image/png", "data": "aGk=", "name": "a.png" }] },
            { "type": "synthetic", "id": "msg_2", "text": "A reminder." },
            { "type": "shell", "id": "msg_3", "command": "make", "output": { "output": "ok" } },
            assistant("msg_4", vec![
                json!({ "type": "reasoning", "text": "Hm." }),
                tool("c1", json!({ "status": "completed", "input": { "command": "ls" }, "content": texts(&["a", "b"]), "metadata": { "exit": 0 } })),
                tool("c2", json!({ "status": "error", "input": { "command": "rm" }, "error": { "message": "The user rejected permission to use this specific tool call." } })),
            ], "tool-calls"),
            { "type": "compaction", "id": "msg_5", "status": "completed", "reason": "auto", "summary": "Looked.", "recent": "Files: a, b." },
            { "type": "compaction", "id": "msg_6", "status": "failed", "reason": "auto", "error": {} },
            assistant("msg_7", texts(&["Done."]), "stop"),
            { "type": "novelty", "id": "msg_8" },
        ],
    });
    let draft = read_with("ses_1", &session.to_string(), &[]).expect("it can be read").remove(0);
    assert_eq!(
        describe(&draft),
        " 0 opened in /w\n 1 title Look.\n 2 user: Look. Image { mime_type: \"image/png\", data: \"aGk=\", uri: None }\n \
         3 Context { by: \"opencode\" }: A reminder.\n \
         4 turn ended: EndTurn\n 5 user: The user ran `make`:\n\nok\n \
         6 mock/m1 6+2 tokens: (thinking: Hm.) [c1 shell {\"command\":\"ls\"} Execute] [c2 shell {\"command\":\"rm\"} Execute]\n \
         7 c1 Completed {\"exitCode\":0}: a\nb\n \
         8 c2 Denied: The user rejected permission to use this specific tool call.\n \
         9 compacted through 8 (Threshold, 0 tokens): A summary of what was said and done so far:\n\nLooked.\n\nFiles: a, b.\n\
         10 mock/m1 6+2 tokens: Done.\n11 turn ended: EndTurn\n12 title Notes\n\
         note: left out: compactions that failed (1)\nnote: left out: messages of an unknown role or type (1)\nid: ses_1\n"
    );
}

/// A file of Gemini CLI whose first line lacks the project, or is missing, was no conversation in a known format.
#[test]
fn a_session_of_gemini_without_its_first_line_is_read() {
    let (path, text, expected, _) = SESSIONS[1];
    let (first, rest) = text.split_once('\n').expect("lines");
    let mut head: Value = serde_json::from_str(first).expect("JSON");
    head.as_object_mut().expect("an object").remove("projectHash");
    let in_view = |text: &str| {
        let draft = read_with(path, text, &[]).expect("it can be read").remove(0);
        seen(&thread(draft))
    };
    let whole = in_view(text);
    assert!(expected.contains("gemini/") && whole.contains("gemini/"), "{whole}");
    assert_eq!(in_view(&format!("{head}\n{rest}")), whole);
    assert_eq!(in_view(rest), whole);
}
