//! What the log tells of a session: who looks for its id finds its turns, rounds, tools, hooks and model calls with
//! how they ended and how long they took, and nothing of what was said. A file of its own: a process has one log.

#[path = "session/desk.rs"]
#[allow(dead_code)]
mod desk;
#[path = "session/stage.rs"]
#[allow(dead_code)]
mod stage;

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use epitome::provider::scripted::ModelStep;
use epitome::session::{Out, SessionCommand};
use epitome::thread::StopReason;
use serde_json::json;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use desk::{Desk, call, text};
use stage::with_hooks;

/// All lines of this process so far.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nothing panicked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.clone()
    }
}

/// The log of this process, which tells all that there is.
fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new("epitome=debug"))
            .with_ansi(false)
            .with_writer(log.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("it is the first");
        log
    })
}

/// What the log has with the session's id, without the time at the beginning of each line.
fn lines_of(desk: &Desk) -> Vec<String> {
    let text = String::from_utf8(log().0.lock().expect("nothing panicked").clone()).expect("text");
    let of_session = text.lines().filter(|line| line.contains(&desk.session.0));
    of_session.map(|line| line.split_once(' ').expect("a time").1.trim_start().to_owned()).collect()
}

/// The lines that say that something has ended, of this kind.
fn ends(lines: &[String], kind: &str) -> Vec<String> {
    let is_end = |line: &&String| {
        let scope = line.split(": epitome_").next().unwrap_or_default();
        line.contains(" ended milliseconds=")
            && scope.rsplit("}:").next().is_some_and(|last| last.contains(&format!("{kind}{{")))
    };
    lines.iter().filter(is_end).cloned().collect()
}

#[test]
fn who_looks_for_a_session_finds_all_that_took_time_in_it() {
    log();
    let hook = json!({"events": ["before_tool_call"], "then": {}}).to_string();
    let input = json!({"says": "a PLANTED outcome", "key": "PLANTED"});
    let replies = vec![vec![text("PLANTED words"), call(input)], vec![text("done")]];
    let mut desk = with_hooks(&[("look.json", hook)], &[], replies);
    assert_eq!(desk.ask("A PLANTED prompt"), StopReason::EndTurn);
    let lines = lines_of(&desk);
    for (kind, count, wanted) in [
        ("turn", 1, &["rounds=2", "input=", "output=", "outcome=\"end_turn\""][..]),
        ("round", 2, &["outcome=\"completed\"", "calls="]),
        ("tool", 1, &["name=\"does\"", "outcome=\"completed\"", "call=call_1"]),
        ("model_call", 2, &["status=200", "first_milliseconds=", "outcome=\"finished\""]),
        ("hook", 1, &["name=\"look.json\"", "event=\"before_tool_call\"", "outcome=\"completed\""]),
    ] {
        let found = ends(&lines, kind);
        assert_eq!(found.len(), count, "{kind}: {lines:#?}");
        for line in &found {
            assert!(wanted.iter().all(|wanted| line.contains(wanted)), "{wanted:?} is not in {line}");
        }
    }
    // In what it happened: the second reply has no call.
    assert!(ends(&lines, "tool")[0].contains("round{n=1"), "{lines:#?}");
    let calls: Vec<bool> = ends(&lines, "round").iter().map(|line| line.contains("calls=1")).collect();
    assert_eq!(calls, [true, false]);
    let all = String::from_utf8(log().0.lock().expect("nothing panicked").clone()).expect("text");
    assert!(!all.contains("PLANTED"), "{all}");
}

#[test]
fn a_cancelled_turn_tells_what_it_broke_off() {
    log();
    let mut desk = Desk::new(vec![vec![call(json!({"do": "wait"}))]]);
    let ticket = desk.prompt("Go");
    desk.client.until(|out| matches!(out, Out::CallStarted { .. }).then_some(()));
    desk.send(SessionCommand::Cancel);
    assert_eq!(desk.reason(ticket), StopReason::Cancelled);
    let lines = lines_of(&desk);
    for kind in ["turn", "round"] {
        let found = ends(&lines, kind);
        assert!(found.len() == 1 && found[0].contains("outcome=\"cancelled\""), "{kind}: {lines:#?}");
    }
}

#[test]
fn a_call_that_the_provider_refuses_says_how() {
    log();
    let mut desk = Desk::new(vec![vec![ModelStep::Error { status: 401, retry_after: None, message: None }]]);
    let ticket = desk.prompt("Go");
    assert!(desk.client.answer(ticket).is_err());
    let calls = ends(&lines_of(&desk), "model_call");
    assert_eq!(calls.len(), 1);
    assert!(
        calls[0].contains("status=401") && calls[0].contains("outcome=\"not authorised\""),
        "{}",
        calls[0]
    );
}

/// Nothing is made for a piece of a stream, whatever the filter.
#[test]
fn a_reply_in_a_thousand_pieces_has_no_more_lines_than_one_in_one() {
    log();
    let of_pieces = |count: usize| {
        let mut desk = Desk::new(vec![vec![ModelStep::Flood { count, text: "word ".into() }]]);
        assert_eq!(desk.ask("Go"), StopReason::EndTurn);
        lines_of(&desk).len()
    };
    assert_eq!(of_pieces(1000), of_pieces(1));
}
