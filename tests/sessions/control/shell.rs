//! Commands that read or change sessions, with and without a running daemon.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;

use epitome::session::UserDecision;
use epitome::thread::{Change, StopReason};
use epitome_client::ClientEvent;
use epitome_scripted_model::ModelStep;
use epitome_test_harness::user::Ran;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::editor::Editor;
use super::process::Home;

/// Creates a session with one prompt.
fn said(home: &Home) -> String {
    let run = home.shell(&["run", "hello", "--json"]);
    let last = run.objects().pop().unwrap_or_else(|| panic!("{run:?}"));
    last["session"].as_str().expect("an id").to_owned()
}

/// Normalizes output: replaces paths and ids that differ between homes with placeholders.
struct Normalizer {
    home: String,
    ids: BTreeMap<String, String>,
}

impl Normalizer {
    fn of(&mut self, ran: &Ran) -> (Option<i32>, String, String) {
        (ran.code, self.plain(&ran.out), self.plain(&ran.err))
    }

    fn plain(&mut self, text: &str) -> String {
        let text = text.replace(&self.home, "HOME");
        let mut plain = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find("s_") {
            let (before, behind) = rest.split_at(at);
            let length =
                behind[2..].find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(behind.len() - 2);
            let (id, behind) = behind.split_at(2 + length);
            let count = self.ids.len();
            let name = self.ids.entry(id.to_owned()).or_insert_with(|| format!("session {count}"));
            plain = plain + before + name;
            rest = behind;
        }
        plain + rest
    }
}

/// Runs every command that changes a session, one after the other.
fn changes(home: &Home, session: &str) -> Vec<(Option<i32>, String, String)> {
    let mut normalizer = Normalizer { home: home.user.home().display().to_string(), ids: BTreeMap::new() };
    let mut tell = |arguments: &[&str]| normalizer.of(&home.shell(arguments));
    let short = &session[..12];
    vec![
        tell(&["sessions", "rename", short, "The", "build"]),
        tell(&["sessions", "undo", session]),
        tell(&["sessions", "undo", session, "e1"]),
        tell(&["sessions", "fork", short, "--at", "e1"]),
        tell(&["sessions", "fork", session, "--json"]),
        tell(&["sessions", "fork", session, "--at", "e99"]),
        tell(&["sessions", "fork", session, "--at", "99"]),
        tell(&["sessions", "fork", "s_zz"]),
        tell(&["sessions", "export", session, "kept.jsonl"]),
        tell(&["sessions", "import", "kept.jsonl"]),
        tell(&["sessions", "import", "kept.jsonl", "--keep-id"]),
        tell(&["sessions", "import", "nothing.jsonl"]),
        tell(&["sessions", "delete", short]),
        tell(&["sessions", "delete", short, "--yes"]),
        tell(&["sessions", "delete", session, "--yes"]),
        tell(&["sessions", "rename", session, "Gone"]),
    ]
}

/// Regression: for a session that was open in an editor, shell commands failed with "It is open in another process":
/// the user could not rename, undo, fork or delete it.
#[test]
fn commands_that_change_sessions_print_the_same_with_and_without_a_daemon() {
    let (alone, served) = (Home::new(), Home::new());
    let without = changes(&alone, &said(&alone));
    assert!(!alone.runtime_dir().control_socket().exists(), "none was started");

    let _daemon = served.daemon();
    let session = said(&served);
    let _editor = Editor::new(&served, Some(&session));
    let with = changes(&served, &session);
    for (without, with) in without.iter().zip(&with) {
        assert_eq!(without, with);
    }
    let codes: Vec<Option<i32>> = with.iter().map(|(code, ..)| *code).collect();
    let [done, failed, usage] = [Some(0), Some(1), Some(2)];
    assert_eq!(
        codes,
        [
            done, done, failed, done, done, failed, usage, failed, done, done, failed, failed, failed, done,
            failed, failed
        ],
        "{with:#?}"
    );
}

/// Runs every command that reads a session, also with invalid session names, and with `--json`.
fn looks(home: &Home, session: &str) -> Vec<(String, Option<i32>, String, String)> {
    let mut normalizer = Normalizer { home: home.user.home().display().to_string(), ids: BTreeMap::new() };
    // Masks values that differ between homes: times and therefore checksums, the moments of syncs, and token counts,
    // which depend on whether the process has already learned from a reply of the model.
    let times = r#"("(?:[a-z_]*tokens|synced)":)[0-9]+|("(?:crc|prev)":)"[0-9a-f]{8}"|\b1[0-9]{12}\b|\d{4}-\d\d-\d\d \d\d:\d\d"#;
    let times = regex::Regex::new(times).expect("well formed");
    let mut tell = |arguments: &[&str]| {
        let (code, out, err) = normalizer.of(&home.shell(arguments));
        let plain = |text: &str| times.replace_all(text, "${1}${2}0").into_owned();
        let line = arguments.join(" ").replace(session, "ID").replace(&session[..12], "BEGINNING");
        (line, code, plain(&out), plain(&err))
    };
    let short = &session[..12];
    let mut outputs = Vec::new();
    // A fork makes the prefix `s_` ambiguous.
    outputs.push(tell(&["sessions", "fork", session]));
    for arguments in [
        &["sessions", "show", short][..],
        &["sessions", "show", session, "--full"],
        &["sessions", "show", session, "--json"],
        &["sessions", "show", session, "--format", "markdown"],
        &["sessions", "show", session, "--format", "raw"],
        &["sessions", "show", session, "--format", "pdf"],
        &["sessions", "search", "Said", "by", "--json", "--limit", "5"],
        &["sessions", "search", "nowhere to be found"],
        &["sessions", "search", "--regex", "("],
        &["sessions", "export", session],
        &["sessions", "checkpoints", short, "--json"],
        &["sessions", "checkpoints", short],
        &["sessions", "permissions", short],
        &["sessions", "permissions", "--json", short, "forget", "7"],
        &["sessions", "history", short],
        &["sessions", "history", short, "--json"],
        &["sessions", "pin", short, "--json", "mind", "the gap"],
        &["sessions", "pin", short],
        &["sessions", "unpin", short, "all", "--json"],
        &["sessions", "redo", short],
        &["sessions", "undo", short, "e99", "--json"],
        &["run", "--resume", short, "--json", "/rewind dry"],
        &["sessions", "rewind", short, "--dry-run", "--json"],
        &["sessions", "rewind", short, "nonsense"],
        &["sessions", "undo", short, "--json"],
        &["sessions", "redo", short, "--json"],
        &["sessions", "rename", short, "--json", "--", "-A", "title"],
        &["sessions", "rename", short, "--json"],
        &["sessions", "rename", short, "Another"],
        &["sessions", "export", session, "a.jsonl", "--json"],
        &["sessions", "export", session, "a.jsonl"],
        &["sessions", "import", "a.jsonl", "--json"],
    ] {
        outputs.push(tell(arguments));
    }
    for wrong in ["s_zz", "zz", "", "s_zzzzzzzzzzzzzzzzzzzz", "s_ffffffffffffffffffff", "../x"] {
        for command in [
            "show",
            "fork",
            "undo",
            "redo",
            "history",
            "pin",
            "permissions",
            "checkpoints",
            "rewind",
            "export",
            "delete",
        ] {
            let mut arguments = vec!["sessions", command, wrong];
            arguments.extend((command == "delete").then_some("--yes"));
            outputs.push(tell(&arguments));
        }
        outputs.push(tell(&["sessions", "tail", wrong]));
    }
    outputs.push(tell(&["sessions", "delete", short, "--yes", "--json"]));
    outputs
}

#[test]
fn commands_that_read_sessions_print_the_same_with_and_without_a_daemon() {
    let (alone, served) = (Home::new(), Home::new());
    let without = looks(&alone, &said(&alone));
    let _daemon = served.daemon();
    let session = said(&served);
    let _editor = Editor::new(&served, Some(&session));
    let with = looks(&served, &session);
    for (without, with) in without.iter().zip(&with) {
        assert_eq!(without, with);
    }
    for (line, code, out, err) in &with {
        let wanted = match line.as_str() {
            "sessions show ID --format pdf"
            | "sessions rename BEGINNING --json"
            | "sessions rewind BEGINNING nonsense" => 2,
            "sessions search --regex ("
            | "sessions permissions --json BEGINNING forget 7"
            | "sessions undo BEGINNING e99 --json" => 1,
            // The file already exists then.
            "sessions export ID a.jsonl" => 1,
            line if ["zz", "ffff", "../x"].iter().any(|wrong| line.contains(wrong)) => 1,
            line if line.ends_with(' ') || line.contains("delete  --yes") => 1,
            _ => 0,
        };
        assert_eq!(*code, Some(wanted), "{line}: {out}{err}");
        if wanted > 0 && !line.contains("--json") {
            assert!(!err.is_empty(), "{line} says nothing of why");
            let says_what_to_do = match wanted {
                2 => err.ends_with(" --help\n"),
                _ => err.lines().count() == 2,
            };
            assert!(says_what_to_do, "what went wrong, and what to do: {line}: {err}");
        }
        if wanted == 0 && line.contains("--json") {
            let objects = out.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>();
            assert!(objects.is_ok_and(|objects| !objects.is_empty()), "{line}: {out}");
        }
    }
    // An ambiguous prefix lists its candidates.
    for command in ["show", "undo", "checkpoints", "delete"] {
        let ran = served.shell(&["sessions", command, "s_"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains("session IDs begin with s_\nhint: give more of the id: s_"), "{ran:?}");
    }
}

#[test]
fn a_listing_marks_sessions_that_are_open_in_the_daemon() {
    let home = Home::new();
    let daemon = home.daemon();
    let session = said(&home);
    let editor = Editor::new(&home, Some(&session));
    let listed = home.shell(&["sessions", "list"]);
    assert!(
        listed.out.contains(&session) && listed.out.contains("project · live with editor\n"),
        "{listed:?}"
    );
    let json = home.shell(&["sessions", "list", "--json"]).objects();
    assert_eq!((&json[0]["live"], &json[0]["clients"]), (&Value::from(true), &Value::from(1)), "{json:?}");
    drop((editor, daemon));
    let listed = home.shell(&["sessions", "list"]);
    assert!(listed.out.contains(&session) && !listed.out.contains("live"), "{listed:?}");
}

#[test]
fn a_standalone_run_ignores_the_daemon() {
    let home = Home::new();
    let _daemon = home.daemon();
    let session = said(&home);
    let _editor = Editor::new(&home, Some(&session));
    let fresh = home.shell(&["run", "--standalone", "hello"]);
    assert!(fresh.code == Some(0) && fresh.out.contains("Said by the model."), "{fresh:?}");
    let arguments: [&[&str]; 3] = [
        &["run", "--standalone", "--resume", &session, "again"],
        &["run", "--standalone", "--resume", &session, "/undo"],
        &["compact", "--standalone", "-c", &session],
    ];
    for arguments in arguments {
        let refused = home.shell(arguments);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.err.contains("is open in another process"), "{refused:?}");
    }
}

/// Regression: the run fell back to its own process without telling the user that the versions differ.
#[test]
fn a_run_explains_that_the_daemon_has_another_version() {
    let home = Home::new();
    home.runtime_dir().prepare().expect("a directory");
    let listener = UnixListener::bind(home.runtime_dir().acp_socket()).expect("a socket");
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            for line in BufReader::new(&stream).lines().map_while(Result::ok) {
                let message: Value = serde_json::from_str(&line).expect("JSON");
                let answer = match message["method"].as_str() {
                    Some("initialize") => json!({
                        "jsonrpc": "2.0", "id": message["id"], "result": { "protocolVersion": 2 },
                    }),
                    _ => {
                        json!({ "version": "9.9.9", "pid": 1, "refused": null })
                    }
                };
                // A probe does not listen.
                let _ = writeln!(&stream, "{answer}");
            }
        }
    });
    let run = home.shell(&["run", "hello"]);
    assert!(run.code == Some(0) && run.out.contains("Said by the model."), "{run:?}");
    assert!(run.err.contains("the daemon is of version 9.9.9, this program of version"), "{run:?}");
    assert!(run.err.contains("`epitome daemon stop` ends it"), "{run:?}");
}

/// Regression: in a directory whose name is not UTF-8, `epitome run` failed with "Parse error: path contains invalid UTF-8
/// characters", and the chat with "Internal error".
#[test]
fn a_directory_that_is_not_utf8_is_refused_with_a_reason() {
    let home = Home::new();
    let directory = home.user.project().join(OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&directory).expect("its parent exists");
    let mut command = home.command(&["run", "hello"]);
    let run = Ran::from(command.current_dir(&directory).output().expect("the program starts"));
    assert!(run.code == Some(1) && run.err.contains("whose name is not UTF-8"), "{run:?}");
}

/// Regression: Ctrl-C in a shell canceled the turn that an editor had started in the same session.
#[test]
fn ctrl_c_withdraws_a_prompt_from_an_editors_turn_and_ends_its_own() {
    let replies = Mutex::new(vec![
        vec![ModelStep::Text("Once upon".into()), ModelStep::Hang],
        vec![ModelStep::Text("Half ".into()), ModelStep::Wait, ModelStep::Text("done.".into())],
    ]);
    let next = move || replies.lock().pop();
    let home = Home::with_replies(move || next().unwrap_or_else(|| vec![ModelStep::Text("Hello.".into())]));
    let _daemon = home.daemon();
    let made = home.shell(&["sessions", "list", "--json"]);
    assert!(made.code == Some(0), "{made:?}");
    let mut editor = Editor::new(&home, None);
    let session = editor.session.0.clone();

    let run = |words: &str| {
        let mut command = home.command(&["run", "--resume", &session, words]);
        command.spawn().expect("the binary is built")
    };
    let interrupted = |child: std::process::Child| {
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        let ended = Ran::from(child.wait_with_output().expect("it ends"));
        assert_eq!(ended.code, Some(130), "{ended:?}");
    };
    let streamed = |event: &ClientEvent| matches!(event, ClientEvent::Text { .. }).then_some(());
    editor.prompt("Do it");
    editor.until(streamed);
    let child = run("No, this");
    editor.until(|out| match out {
        ClientEvent::Entry { entry, .. } => matches!(entry.change, Change::Queued { .. }).then_some(()),
        _ => None,
    });
    interrupted(child);
    home.model.release();
    let ended = editor.until(|event| match event {
        ClientEvent::PromptEnded(ended) => Some(ended.reason),
        _ => None,
    });
    assert_eq!(ended, Some(StopReason::EndTurn));

    let child = run("Tell me a story");
    editor.until(streamed);
    interrupted(child);
    let reason = editor.until(|out| match out {
        ClientEvent::Entry { entry, .. } => match &entry.change {
            Change::TurnEnded { reason, .. } => Some(*reason),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(reason, StopReason::Cancelled);
}

/// Regression: a run without a terminal dismissed every permission request of a session that was also open in an
/// editor.
#[test]
fn a_run_that_cannot_ask_leaves_permission_requests_to_the_editor() {
    let touch = || ModelStep::Call { name: "bash".into(), input: json!({ "command": "touch here" }) };
    let text = |text: &str| vec![ModelStep::Text(text.into())];
    let replies =
        Mutex::new(vec![text("Not made."), vec![touch()], text("Made."), vec![touch()], text("Hi.")]);
    let next = move || replies.lock().pop();
    let home = Home::with_replies(move || next().unwrap_or_else(|| vec![ModelStep::Text("Hello.".into())]));
    let _daemon = home.daemon();
    let session = said(&home);
    let mut editor = Editor::new(&home, Some(&session));

    let mut command = home.command(&["run", "--resume", &session, "make it"]);
    let child = command.spawn().expect("the binary is built");
    let ask = editor.until(|out| match out {
        ClientEvent::Ask { ask, .. } => Some(*ask),
        _ => None,
    });
    editor.decide(ask, UserDecision::AllowOnce);
    let run = Ran::from(child.wait_with_output().expect("it ends"));
    assert!(run.out.contains("Made.") && home.user.project().join("here").exists(), "{run:?}");
    assert!(!run.err.contains("nobody is there"), "{run:?}");

    std::fs::remove_file(home.user.project().join("here")).expect("it was made");
    drop(editor);
    let run = home.shell(&["run", "--resume", &session, "make it again"]);
    assert!(run.out.contains("Not made.") && !home.user.project().join("here").exists(), "{run:?}");
    assert!(run.err.contains("there is no terminal to ask"), "{run:?}");
}
