//! How much of a conversation a compaction keeps, measured like KeepBench measures real sessions, here with a small
//! session of the project itself. The numbers below have been reached: examine any change that keeps less.

#[path = "../../benches/keep/bench/mod.rs"]
mod bench;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use bench::corpus::{Block, Corpus, Fact, Message, Session};
use bench::generated::{conversation, request};
use bench::measure::{Later, holds, planted, section_terms, share, truth, verbatim};
use bench::surprise::{Oracle, next_words};
use bench::ways::{Ours, append, cut, masked_tail, ruler, tail};
use bench::{baseline, corpus};
use epitome::compaction::KeptTail;
use epitome::thread::{Change, Entry, Thread};
use epitome_test_harness::own_process;
use regex::Regex;
use serde_json::{Value, json};

/// The number of facts in benches/keep/own/gold-facts.json, and how many of them must be kept.
const FACTS: usize = 26;
const KEPT: usize = 26;
const KEPT_IN_HALF: usize = 26;

fn own() -> Corpus {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/keep/own");
    Corpus::read(&folder).expect("the session of our own")
}

fn missing(text: &str, facts: &[Fact]) -> Vec<String> {
    facts.iter().filter(|fact| !holds(text, fact)).map(|fact| fact.what.clone()).collect()
}

#[test]
fn our_own_session_keeps_its_facts_at_full_and_half_size() {
    let corpus = own();
    let (session, facts) = (&corpus.sessions[0], &corpus.facts["tidelog"]);
    assert_eq!(facts.len(), FACTS);
    assert_eq!(missing(&session.before(), facts), Vec::<String>::new(), "the session itself has them all");

    let message = Ours::default().message(session).expect("it can be compacted");
    let lost = missing(&message, facts);
    assert!(FACTS - lost.len() >= KEPT, "lost: {lost:#?}\n\n{message}");

    let size = message.chars().count();
    let half = Ours::default().half_message(session, size).expect("it can be compacted");
    assert!(half.chars().count() <= size / 2);
    let lost = missing(&half, facts);
    assert!(FACTS - lost.len() >= KEPT_IN_HALF, "lost: {lost:#?}\n\n{half}");
    let simple = missing(&baseline::compact(&session.messages, half.chars().count()), facts);
    assert!(
        lost.len() <= simple.len(),
        "the baseline keeps more: it loses {simple:?}, ours {lost:?}\n{half}"
    );
}

/// Of the facts of real sessions, 97 % were once in the message of a first compaction, and 90 % in that of a second one.
#[test]
fn facts_survive_three_compactions() {
    let corpus = own();
    let (session, facts) = (&corpus.sessions[0], &corpus.facts["tidelog"]);
    let messages = Ours::default().generations(session, &[0.6, 0.8, 1.0]).expect("it can be compacted");
    assert_eq!(messages.len(), 3);
    let [first, .., last] = messages.as_slice() else { panic!("three") };
    let known = |text: &str| facts.len() - missing(text, facts).len();
    assert!(known(first) < known(last), "the facts of the whole session are not in its first part");
    assert!(known(last) >= KEPT, "{:?}", missing(last, facts));
}

#[test]
fn what_the_message_calls_failed_or_open_is_true() {
    let session = &own().sessions[0];
    let message = Ours::default().message(session).expect("it can be compacted");
    let found = truth(&message, session, &session.thread());
    assert_eq!(found.wrong, Vec::<String>::new());
    // `make test`, `make types`, and three steps of the plan.
    assert_eq!(found.right, 5, "{message}");

    // A successful run is not a failed one, and a completed step is not open.
    let ok = session.thread().entries().iter().find_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } if outcome.model_text().ends_with("OK") => Some(entry.seq),
        _ => None,
    });
    let claims = format!(
        "## Commands that failed when last run, newest first\n- `make test` (last {}): OK\n\
         ## Plan\n- [pending] Read decimal commas",
        ok.expect("tests that passed")
    );
    let found = truth(&claims, session, &session.thread());
    assert_eq!((found.right, found.wrong.len()), (0, 2));
}

/// If the order of a hash map reaches the message, a preview does not describe the compaction that follows it.
#[test]
fn the_same_session_gives_the_same_message_in_every_process() {
    const PRINTS: &str = "EPITOME_PRINT_DIGEST";
    let mut sessions = own().sessions;
    let generated = |turns| Session::of("generated", conversation(turns)).expect("it can be imported");
    sessions.extend([5, 20, 60].map(generated));
    let patch: String =
        (0..9).map(|file| format!("*** Update File: src/part_{file}.rs\n+fn work() {{}}\n")).collect();
    let input = json!({ "patch": patch });
    let call = Block::Call { id: "p".to_owned(), name: "apply_patch".to_owned(), input };
    let result = Message::Result { call: "p".to_owned(), text: "Done.".to_owned(), failed: false };
    let patched = [Message::User("Add it.".to_owned()), Message::Agent(vec![call]), result].to_vec();
    sessions.push(Session::of("patched", patched).expect("it can be imported"));
    let digest = || {
        let mut hasher = DefaultHasher::new();
        for session in &sessions {
            for (window, tokens) in [(200_000, None), (200_000, Some(1_000)), (32_000, None)] {
                let ours = Ours { window, tokens, ..Ours::default() };
                ours.message(session).hash(&mut hasher);
            }
        }
        format!("digest {:016x}", hasher.finish())
    };
    let first = digest();
    if std::env::var_os(PRINTS).is_some() {
        return println!("{first}");
    }
    assert_eq!(digest(), first, "in one process");
    let test = concat!(module_path!(), "::the_same_session_gives_the_same_message_in_every_process");
    let child = std::process::Command::new(own_process::program())
        .args(own_process::arguments(test))
        .env(PRINTS, "1")
        .output()
        .expect("it starts");
    let printed = String::from_utf8_lossy(&child.stdout);
    assert!(
        printed.contains(&first),
        "in another process: {printed}{}",
        String::from_utf8_lossy(&child.stderr)
    );
}

#[test]
fn user_messages_survive_ten_consecutive_compactions() {
    let session = Session::of("generated", conversation(60)).expect("it can be imported");
    let entries = &session.entries;
    let mut thread = Thread::replay(entries[..1].iter().cloned()).expect("it begins with its opening entry");
    let is_request = |entry: &Entry| matches!(entry.change, Change::Said { .. });
    let mut turns = 0;
    for entry in &entries[1..] {
        if is_request(entry) {
            if turns > 0 && turns % 6 == 0 {
                Ours { keep: KeptTail::Nothing, ..Ours::default() }
                    .compact(&mut thread)
                    .expect("it is long enough");
            }
            turns += 1;
        }
        let mut change = entry.change.clone();
        if let Change::Said { message, .. } | Change::Replied { message, .. } = &mut change {
            message.id = thread.next_message();
        }
        append(&mut thread, change);
    }
    Ours::default().compact(&mut thread).expect("it is long enough");
    let view: Vec<String> = thread.view().pieces().iter().map(|(_, piece)| piece.text()).collect();
    let requests: Vec<String> = (0..60).map(request).collect();
    assert_eq!(verbatim(&view.join("\n"), &requests), requests.len());
    assert!(ruler().view(thread.view()) * 3 < ruler().view(session.thread().view()));
}

#[test]
fn a_fact_is_kept_if_its_patterns_match_near_each_other() {
    let pattern = |pattern: &str| Regex::new(pattern).expect("a pattern");
    let fact = Fact { what: "the port".to_owned(), patterns: vec![pattern("port"), pattern("8443")] };
    let far = "é".repeat(750);
    for (text, expected) in [
        ("the port is 8443", true),
        ("8443 is the port", true),
        ("the port is 9443", false),
        (&format!("port {far} 8443"), false),
        (&format!("port {} 8443", &far[..1_200]), true),
        (&format!("port {far} 8443, the port"), true),
    ] {
        assert_eq!(holds(text, &fact), expected, "{text}");
    }
}

#[test]
fn only_files_and_identifiers_known_before_count_as_used_later() {
    let call = |path: &str, command: &str| {
        let input = json!({ "file_path": path, "command": command });
        Message::Agent(vec![Block::Call { id: String::new(), name: "Edit".to_owned(), input }])
    };
    let said = "I read pool.rs, retry_count, maxRetries, ABC-12 and #17 at 1a2b3c4 in deadbee.";
    let mut session = Session::of("s", vec![Message::User(said.to_owned())]).expect("it can be imported");
    assert!(Later::of(&session).is_none(), "nothing came later");
    let did = "retry_count maxRetries maxRetries newName newName retry_count 1a2b3c4 9f8e7d6";
    session.later = vec![call("/w/pool.rs", did); 10];
    session.later.push(call("/w/other.rs", "fooBarBaz"));
    assert!(Later::of(&session).is_none(), "too few to say anything");
    let more = "src/a.rs src/b.rs src/c.rs";
    session = Session::of("s", vec![Message::User(format!("{said} {more}"))]).expect("it can be imported");
    session.later =
        ["pool", "a", "b", "c"].repeat(3).iter().map(|name| call(&format!("/w/{name}.rs"), did)).collect();
    let later = Later::of(&session).expect("enough came later");
    assert_eq!(later.files.into_iter().collect::<Vec<_>>(), ["a.rs", "b.rs", "c.rs", "pool.rs"]);
    assert_eq!(later.identifiers.into_iter().collect::<Vec<_>>(), ["maxRetries", "retry_count"]);
    assert_eq!(later.hashes.iter().collect::<Vec<_>>(), ["1a2b3c4"]);
    assert_eq!(share("1a2b3c4", &later.hashes), Some(1.0));
    assert_eq!(share("", &Default::default()), None);
}

#[test]
fn summary_terms_are_those_of_its_sections_that_occur_in_the_conversation() {
    let summary = "Summary:\n1. Primary Request:\n   Use `heron_gate`.\n7. Pending Tasks:\n   - fix `pool.rs` and `other`\n\
                   8. Current Work:\n   nothing that is known\n9. Next Step:\n   HeronGate at 1a2b3c4";
    let sections = section_terms(summary, "heron_gate pool.rs HeronGate 1a2b3c4");
    let terms =
        |name: &str| sections.get(name).map(|terms| terms.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(terms("request"), Some(vec!["heron_gate"]));
    assert_eq!(terms("pending"), Some(vec!["pool.rs"]));
    assert_eq!(terms("current work"), None);
    assert_eq!(terms("next step"), Some(vec!["1a2b3c4", "HeronGate"]));
}

#[test]
fn instructions_are_planted_in_the_middle_and_counted_verbatim() {
    let instructions = ["no emojis".to_owned(), "port 8443\nnot 8080".to_owned()];
    let messages = planted(&conversation(8), &instructions);
    assert_eq!(messages.len(), conversation(8).len() + 4);
    let all = corpus::words(&messages);
    assert_eq!(verbatim(&all, &instructions), 2);
    assert_eq!(verbatim("No emojis. port 8443 not 8080", &instructions), 1);
}

#[test]
fn the_other_ways_keep_to_their_size() {
    let messages = conversation(20);
    for chars in [500, 2_000, 8_000] {
        for text in
            [tail(&messages, chars), masked_tail(&messages, chars), baseline::compact(&messages, chars)]
        {
            assert!(text.chars().count() <= chars, "{chars}: {text}");
            assert!(text.chars().count() > chars / 3, "{chars}: {text}");
        }
    }
    assert_eq!(cut("Ärger", 2), "Är");
    let simple = baseline::compact(&own().sessions[0].messages, 6_000);
    for part in [
        "not before Friday",
        "- [in_progress] Keep readings of -999",
        "`make types`",
        "tests/test_report.py",
        "ba7bc19",
    ] {
        assert!(simple.contains(part), "{part}: {simple}");
    }
}

/// If a session of a corpus is unreadable, it is reported by name and the others are still measured.
#[test]
fn an_unreadable_session_of_a_corpus_is_reported_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = format!("{:#}", Corpus::read(folder.path()).err().expect("it is empty"));
    assert!(error.contains("fetch-corpus.py"), "{error}");
    let sessions = folder.path().join("sessions");
    std::fs::create_dir(&sessions).expect("the folder is ours");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/keep/own/sessions/tidelog.jsonl");
    std::fs::copy(own, sessions.join("good.jsonl")).expect("the folder is ours");
    std::fs::write(sessions.join("bad.jsonl"), "Dear diary").expect("the folder is ours");
    std::fs::write(sessions.join("good.summary.someone.md"), "We fix it.").expect("the folder is ours");
    let later = "{\"role\":\"user\",\"text\":\"go on\"}\n{\"role\":\"tool\",\"id\":\"x\",\"text\":\"no\",\"err\":true}\n";
    std::fs::write(sessions.join("good.later.json"), later).expect("the folder is ours");
    let index = r#"[{"name": "good", "repo": "jdx/fnox", "agent": "codex"}]"#;
    std::fs::write(folder.path().join("index.json"), index).expect("the folder is ours");
    let corpus = Corpus::read_all(&[folder.path().to_owned()]).expect("one can be read");
    assert_eq!((corpus.sessions.len(), corpus.faults.len()), (1, 1));
    assert!(corpus.faults[0].contains("bad.jsonl"), "{:?}", corpus.faults);
    let session = corpus.session("good").expect("it was read");
    assert_eq!(session.summary.as_deref(), Some("We fix it."));
    assert_eq!((session.agent.as_str(), session.is_held_back), ("Codex", true));
    assert_eq!(self::own().sessions[0].agent, "Claude Code");
    let twice = [folder.path().to_owned(), folder.path().to_owned()];
    assert!(Corpus::read_all(&twice).is_err(), "two sessions of one name");
    assert!(matches!(&session.later[1], Message::Result { failed: true, .. }));
}

/// Answers requests as a model does whose tokens are characters.
fn serve(replies: usize, status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}/v1", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming().take(replies) {
            let mut stream = stream.expect("a connection");
            let mut request = Vec::new();
            let mut buffer = [0; 1_024];
            let body = loop {
                let count = stream.read(&mut buffer).expect("readable");
                assert!(count > 0, "the request is whole");
                request.extend_from_slice(&buffer[..count]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let body = text.split_once("\r\n\r\n").map(|(_, body)| serde_json::from_str::<Value>(body));
                if let Some(Ok(body)) = body {
                    break body;
                }
            };
            assert_eq!((&body["echo"], &body["model"]), (&json!(true), &json!("small")));
            let prompt = body["prompt"].as_str().expect("a prompt");
            // A model that knows the word from the text before is not surprised. One more token is generated.
            let is_known = prompt.matches("walnut").count() > 1;
            let bits = if is_known { 1.0 } else { 5.0 };
            let count = prompt.chars().count() + 1;
            let mut probabilities = vec![json!(-bits * std::f64::consts::LN_2); count];
            (probabilities[0], probabilities[count - 1]) = (Value::Null, json!(-99.0));
            let offsets: Vec<usize> = (0..count).collect();
            let logprobs = json!({ "token_logprobs": probabilities, "text_offset": offsets });
            let reply = json!({ "choices": [{ "logprobs": logprobs }] }).to_string();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", reply.len());
            stream.write_all((head + &reply).as_bytes()).expect("written");
        }
    });
    address
}

#[test]
fn only_the_next_words_are_counted_in_bits() {
    let oracle = Oracle::at(&serve(2, "200 OK"), "small").expect("an address");
    assert!((oracle.surprise("", "the walnut").expect("a reply") - 5.0).abs() < 1e-9);
    assert!((oracle.surprise("Über the walnut.\n\n", "the walnut").expect("a reply") - 1.0).abs() < 1e-9);
}

#[test]
fn what_is_no_measure_is_an_error() {
    let oracle = Oracle::at(&serve(1, "500 Oh"), "small").expect("an address");
    let error = oracle.surprise("", "x").expect_err("the server failed").to_string();
    assert!(error.starts_with("HTTP/1.1 500 Oh: "), "{error}");
    assert!(Oracle::at("https://a.b", "").is_err());
}

#[test]
fn the_next_words_are_those_of_the_agent() {
    let said = |text: &str| Message::User(text.to_owned());
    let replied = |text: &str| Message::Agent(vec![Block::Text(text.to_owned())]);
    let mut session = Session::of("x", vec![said("a"), replied("b")]).expect("a session");
    assert_eq!(next_words(&session), None);
    session.later = vec![said("Go on."), replied("I go on.")];
    assert_eq!(next_words(&session).as_deref(), Some("AGENT: I go on."));
}
