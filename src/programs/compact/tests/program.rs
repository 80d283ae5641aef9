//! The program as agents use it: their conversations in, messages out.

mod round_trip;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn run(arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_epitome-compact"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A refused option is reported before stdin is read.
    drop(program.stdin.take().expect("a pipe").write_all(input.as_ref()));
    program.wait_with_output().expect("the program ends")
}

fn printed(arguments: &[&str], input: &str) -> String {
    let output = run(arguments, input);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// A turn in which a command prints something long, in OpenAI's form.
fn turn(number: usize, request: &str) -> Vec<Value> {
    let (id, printed) = (format!("call_{number}"), format!("line of the log {number}\n").repeat(200));
    let arguments = json!({ "command": format!("cargo test part_{number}") }).to_string();
    vec![
        user(request),
        json!({
            "role": "assistant", "content": null,
            "tool_calls": [{ "id": id, "type": "function", "function": { "name": "bash", "arguments": arguments } }],
        }),
        json!({ "role": "tool", "tool_call_id": id, "content": printed }),
        json!({ "role": "assistant", "content": format!("Part {number} is tested.") }),
    ]
}

fn conversation() -> Vec<Value> {
    let mut messages = vec![json!({ "role": "system", "content": "You are an agent." })];
    messages.extend(turn(1, "Never touch `vendor/`. Test part 1."));
    messages.extend(turn(2, "The release is called WALNUT-42. Test part 2."));
    messages.extend(turn(3, "Write <said entry=\"e1\"> in the docs. Test part 3."));
    messages
}

#[test]
fn the_messages_of_a_request_become_one_and_those_that_stay() {
    let request = json!({ "model": "gpt-5", "messages": conversation() }).to_string();
    let messages =
        printed(&["--from", "openai", "--to", "messages", "--keep", "2", "--max-tokens", "1000"], &request);
    let messages: Vec<Value> = serde_json::from_str(&messages).expect("JSON");
    let roles: Vec<&str> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
    // The result that would have been kept alone brings its call.
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    let message = messages[1]["content"].as_str().expect("a text");
    assert!(message.contains("Never touch `vendor/`. Test part 1."), "{message}");
    assert!(message.contains("cargo test part_2") && !message.contains("part_3"), "{message}");
    assert!(
        !message.contains("recall") && !message.contains(" e1"),
        "nothing to look up is named: {message}"
    );
}

/// Another agent passes the message on with what came after it. It was quoted as a whole, nested once more in each round,
/// and cut: of the user's facts, 45 % were left after three rounds.
#[test]
fn a_message_that_comes_back_is_made_anew() {
    let mut messages = conversation();
    let mut sizes = Vec::new();
    for round in 0..5 {
        let text = printed(
            &["--from", "openai", "--max-tokens", "1500", "--pin", "The port is 8123."],
            &json!(messages).to_string(),
        );
        sizes.push(text.len());
        for fact in
            ["Never touch `vendor/`.", "WALNUT-42", "Write <said entry=\"e1\"> in the docs.", "port is 8123"]
        {
            assert_eq!(text.matches(fact).count(), 1, "{fact} in round {round}: {text}");
        }
        assert!(text.contains("cargo test part_1"), "the tables of the first message are kept: {text}");
        assert_eq!(text.matches("[Epitome message").count(), 1, "{text}");
        assert_eq!(text.matches("The conversation so far was compacted").count(), 1, "{text}");
        // Hosts put their own words around it, and may join it with what the user says next.
        messages = vec![user(&format!("Summary of the conversation:\n\n<summary>\n{text}\n</summary>"))];
        messages.extend(turn(10 + round, "Go on."));
    }
    assert!(sizes[4] < sizes[0] * 2, "{sizes:?}");
}

/// pi passes its whole session, with the message of the compaction before. After `/compact FOCUS`, the message counted the
/// words about the focus as the conversation's, so the next compaction took it apart beside the conversation, and each word of
/// the user was in it twice.
#[test]
fn a_message_whose_conversation_is_there_is_left_out() {
    let line = |id: &str, parent: Option<&str>, message: Value| json!({ "type": "message", "id": id, "parentId": parent, "timestamp": "2026-11-28T10:00:00.000Z", "message": message });
    let said = |text: &str| json!({ "role": "user", "content": [{ "type": "text", "text": text }] });
    let replied = |text: &str| {
        json!({
            "role": "assistant", "content": [{ "type": "text", "text": text }], "provider": "x", "model": "x",
            "stopReason": "stop",
        })
    };
    let mut session = vec![
        json!({ "type": "session", "version": 3, "id": "s1", "timestamp": "2026-11-28T10:00:00.000Z", "cwd": "/w" }),
        line("a", None, said("Never push.")),
        line("b", Some("a"), replied(&"I looked at it in detail. ".repeat(400))),
        line("c", Some("b"), said("What now?")),
    ];
    let text = |session: &[Value]| session.iter().map(|line| format!("{line}\n")).collect::<String>();
    let options = ["--from", "pi", "--max-tokens", "1000", "--focus", "the port"];
    let first = printed(&[&["--to", "pi", "--before", "c"], &options[..]].concat(), &text(&session));
    let first: Value = serde_json::from_str(&first).expect("JSON");
    let summary = first["summary"].as_str().expect("a text");
    assert!(summary.contains("Never push.") && !summary.contains("What now?"), "{summary}");
    session.push(json!({
        "type": "compaction", "id": "d", "parentId": "c", "timestamp": "2026-11-28T10:01:00.000Z",
        "summary": summary, "firstKeptEntryId": "c", "tokensBefore": 3000,
    }));
    session.push(line("e", Some("d"), replied(&"And at this as well. ".repeat(400))));
    let second = printed(&[&["--json"], &options[..]].concat(), &text(&session));
    let second: Value = serde_json::from_str(&second).expect("JSON");
    assert_eq!(second["entries"], 4, "{second}");
    let message = second["message"].as_str().expect("a text");
    assert_eq!(message.matches("Never push.").count(), 1, "{message}");
    assert_eq!(message.matches("[Epitome message").count(), 1, "{message}");
}

/// Regression: `--keep` took the room of what stays from that of the message, down to a tenth, and covered everything without a word
/// where that did not fit.
#[test]
fn what_stays_takes_nothing_from_the_message() {
    let part = |kind: &str, text: &str| json!([{ "type": kind, "text": text }]);
    let line = |number: usize, message: Value| {
        json!({
            "type": "message", "id": format!("m{number}"), "timestamp": "2026-11-28T10:00:00.000Z",
            "parentId": number.checked_sub(1).map(|before| format!("m{before}")), "message": message,
        })
    };
    let mut session = vec![
        json!({ "type": "session", "version": 3, "id": "s1", "timestamp": "2026-11-28T10:00:00.000Z", "cwd": "/w" }),
    ];
    for turn in 0..20 {
        let said = json!({ "role": "user", "content": part("text", &format!("Request {turn}.")) });
        let long = format!("Reply {turn}. {}", "It took a while. ".repeat(400));
        let reply = json!({
            "role": "assistant", "content": part("text", &long), "provider": "x", "model": "x", "stopReason": "stop",
        });
        session.extend([line(2 * turn, said), line(2 * turn + 1, reply)]);
    }
    let session: String = session.iter().map(|line| format!("{line}\n")).collect();
    let compacted = |keep: &str| -> Value {
        let printed = printed(&["--from", "pi", "--json", "--max-tokens", "2000", "--keep", keep], &session);
        serde_json::from_str(&printed).expect("JSON")
    };
    for (keep, entries, last) in
        [("0", 40, "Request 19."), ("1", 39, "Request 19."), ("30", 10, "Request 4.")]
    {
        let made = compacted(keep);
        assert_eq!(made["entries"], entries, "{keep}");
        let message = made["message"].as_str().expect("a text");
        assert!(message.contains("Request 0.") && message.contains(last), "{keep}: {message}");
        assert!(!message.contains("Request 5.") || keep != "30", "{message}");
    }
    assert_eq!(
        run(&["--from", "pi", "--keep", "40"], &session).status.code(),
        Some(3),
        "nothing is left to compact"
    );
}

/// Scripts may say what is the default, also behind an alias with the opposite.
#[test]
fn nothing_is_stored_if_that_is_asked_for_last() {
    let request = json!({ "model": "gpt-5", "messages": conversation() }).to_string();
    let arguments = ["--from", "openai", "--max-tokens", "1000"];
    let message = printed(&arguments, &request);
    assert_eq!(printed(&[&arguments[..], &["--store", "--stateless"]].concat(), &request), message);
}

/// The directory of a Cline session is in a second file. It was not read, so the message named files by absolute paths.
#[test]
fn the_other_files_of_a_session_are_read() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let file = folder.path().join("1.messages.json");
    let result = json!([{ "query": "/w/notes.txt", "result": "milk, bread\n".repeat(400), "success": true }]);
    let messages = json!([
        user("<user_input mode=\"act\">Read the notes.</user_input>"),
        { "role": "assistant", "content": [{
            "type": "tool_use", "id": "c1", "name": "read_files",
            "input": { "files": [{ "path": "/w/notes.txt" }] },
        }]},
        { "role": "user", "content": [{
            "type": "tool_result", "tool_use_id": "c1", "name": "read_files", "content": result,
        }]},
        { "role": "assistant", "content": [{ "type": "text", "text": "I read them." }] },
    ]);
    let session = json!({ "version": 1, "sessionId": "1", "messages": messages });
    std::fs::write(&file, session.to_string()).expect("written");
    std::fs::write(folder.path().join("1.json"), json!({ "cwd": "/w" }).to_string()).expect("written");
    let message = printed(&["--from", "cline", file.to_str().expect("text")], "");
    assert!(message.contains("## Files, newest first\n- read or used: notes.txt"), "{message}");
}

#[test]
fn the_pins_of_a_repository_are_kept() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (below, pins) = (scratch.path().join("app/src"), scratch.path().join("app/.epitome/pins.md"));
    for directory in [&below, &scratch.path().join("app/.git"), &scratch.path().join("app/.epitome")] {
        std::fs::create_dir_all(directory).expect("made");
    }
    let request = json!(conversation()).to_string();
    let made = || printed(&["--from", "openai", "--cwd", below.to_str().expect("text")], &request);
    std::fs::write(&pins, "Releases are cut from `stable`.\n").expect("written");
    assert!(made().contains("Releases are cut from `stable`."));
    // A link may lead out of the repository, so it is not followed.
    std::fs::rename(&pins, scratch.path().join("private")).expect("moved");
    std::os::unix::fs::symlink("../../private", &pins).expect("linked");
    assert!(!made().contains("stable"));
}

#[test]
fn bytes_that_are_no_text_are_replaced_with_a_note() {
    let mut request = json!(conversation()).to_string().into_bytes();
    let at = request.windows(6).position(|bytes| bytes == b"vendor").expect("it is there");
    request[at] = 0xff;
    let output = run(&["--from", "openai"], &request);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("\u{fffd}endor"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stdin: bytes that are not UTF-8 are replaced"));
}

/// Conversations of a few hundred words were refused, because the tables repeated them: nothing was gained.
#[test]
fn a_short_conversation_is_compacted_to_the_size_that_is_asked_for() {
    let mut messages = Vec::new();
    for at in 0..12 {
        messages.push(user(&format!("Rule {at}: never call the part {at} by its old name.")));
        let reply =
            format!("Noted. I looked at part {at}, and it is used in {at} places that I listed before. ");
        messages.push(json!({ "role": "assistant", "content": reply.repeat(3) }));
    }
    let request = json!(messages).to_string();
    let sized = |arguments: &[&str]| -> Value {
        let made = printed(&[&["--from", "openai", "--json"], arguments].concat(), &request);
        serde_json::from_str(&made).expect("JSON")
    };
    for arguments in [&[][..], &["--max-tokens", "20000"], &["--max-tokens", "700"]] {
        let made = sized(arguments);
        let (before, after) = (made["tokens_before"].as_u64(), made["tokens_after"].as_u64());
        assert!(after.zip(before).is_some_and(|(after, before)| after * 100 <= before * 90), "{made}");
        let message = made["message"].as_str().expect("a text");
        assert!((0..12).all(|at| message.contains(&format!("Rule {at}: never call"))), "{message}");
    }
    let small = sized(&["--max-tokens", "200"]);
    assert!(small["tokens_after"].as_u64() <= Some(200), "{small}");
    let message = small["message"].as_str().expect("a text");
    assert!(message.contains("Rule 11: never call"), "the newest words are kept: {message}");

    // Here nothing can be gained, so there is a message only if it is asked for.
    let short = json!([user("Hello"), { "role": "assistant", "content": "Hello!" }]).to_string();
    let made = printed(&["--from", "openai", "--max-tokens", "300"], &short);
    assert!(made.contains("<last_request>\nHello\n</last_request>"), "{made}");
}

#[test]
fn what_gains_nothing_and_what_cannot_be_read_have_codes_of_their_own() {
    let short = json!([user("Hello"), { "role": "assistant", "content": "Hello!" }]).to_string();
    let output = run(&["--from", "openai"], &short);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let output = run(&["--from", "codex"], json!({ "parentUuid": null }).to_string());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(error.contains("this is a session of Claude Code, not a session of Codex"), "{error}");
    for wrong in
        [&["--from", "anthropic", "--before", "9"][..], &["--max-tokens", "0"], &["--from", "nobody"]]
    {
        assert_eq!(run(wrong, &short).status.code(), Some(2), "{wrong:?}");
    }
}

/// Every option and format of the page is one of the program, and its exit codes are those of the other tests.
#[test]
fn the_page_on_other_agents_describes_the_program() {
    let page = include_str!("../../../../docs/other-agents.md");
    let help = printed(&["--help"], "");
    let rows =
        page.split("## Options").nth(1).and_then(|rest| rest.split("\n### ").next()).expect("a chapter");
    let words = rows.split('`').skip(1).step_by(2).filter_map(|code| code.split_whitespace().next());
    let known: Vec<&str> = words.filter(|word| !word.chars().all(char::is_uppercase)).collect();
    assert!(known.len() > 20, "{known:?}");
    for word in
        known.into_iter().filter(|word| !["messages", "input", "id", "uuid", "epitome"].contains(word))
    {
        assert!(help.contains(word), "{word} is not in {help}");
    }
    for option in help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2) {
        let name = option.trim_end_matches([',', '.', ':', ';', ']']);
        assert!(
            ["--help", "--version", "--cwd"].contains(&name) || rows.contains(name),
            "{name} is not on the page"
        );
    }
}
