//! The log of a session: filtered by a session id, it shows turns, rounds, tools, hooks and model calls with outcome
//! and duration, and none of the conversation's contents. Each test runs in a separate process, because the log is
//! process-wide.

use std::io;
use std::sync::{Arc, OnceLock};

use epitome::session::{SessionCommand, SessionEvent};
use epitome::thread::StopReason;
use epitome_scripted_model::ModelStep;
use epitome_test_harness::own_process;
use epitome_test_harness::session::{TestSession, call};
use epitome_test_harness::text;
use parking_lot::Mutex;
use serde_json::json;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::session::stage::with_hooks;

/// All log lines of this process so far.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
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

/// The log of this process, at the most verbose level.
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

/// Runs a test of this module in a process with a log.
#[track_caller]
fn with_log(test: &str, body: impl FnOnce()) {
    own_process::alone(&format!("{}::{test}", module_path!()), || {
        log();
        body();
    });
}

/// The lines that contain the session's id, without their timestamps.
fn lines_of(test: &TestSession) -> Vec<String> {
    let text = String::from_utf8(log().0.lock().clone()).expect("text");
    let of_session = text.lines().filter(|line| line.contains(&test.session.0));
    of_session.map(|line| line.split_once(' ').expect("a time").1.trim_start().to_owned()).collect()
}

/// The lines that report the end of a span of this kind.
fn ends(lines: &[String], kind: &str) -> Vec<String> {
    let is_end = |line: &&String| {
        let scope = line.split(": epitome_").next().unwrap_or_default();
        line.contains(" ended milliseconds=")
            && scope.rsplit("}:").next().is_some_and(|last| last.contains(&format!("{kind}{{")))
    };
    lines.iter().filter(is_end).cloned().collect()
}

#[test]
fn the_log_shows_every_timed_step_of_a_session() {
    with_log("the_log_shows_every_timed_step_of_a_session", || {
        let hook = json!({"events": ["before_tool_call"], "then": {}}).to_string();
        let input = json!({"says": "a PLANTED outcome", "key": "PLANTED"});
        let replies = vec![vec![text("PLANTED words"), call(input)], vec![text("done")]];
        let mut test = with_hooks(&[("look.json", hook)], &[], replies);
        assert_eq!(test.ask("A PLANTED prompt"), StopReason::EndTurn);
        let lines = lines_of(&test);
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
        // In its round: the second reply has no call.
        assert!(ends(&lines, "tool")[0].contains("round{n=1"), "{lines:#?}");
        let calls: Vec<bool> = ends(&lines, "round").iter().map(|line| line.contains("calls=1")).collect();
        assert_eq!(calls, [true, false]);
        let all = String::from_utf8(log().0.lock().clone()).expect("text");
        assert!(!all.contains("PLANTED"), "{all}");
    });
}

#[test]
fn a_cancelled_turn_logs_its_cancelled_steps() {
    with_log("a_cancelled_turn_logs_its_cancelled_steps", || {
        let mut test = TestSession::new(vec![vec![call(json!({"do": "wait"}))]]);
        let ticket = test.prompt("Go");
        test.client.until(|out| matches!(out, SessionEvent::CallStarted { .. }).then_some(()));
        test.send(SessionCommand::Cancel);
        assert_eq!(test.reason(ticket), StopReason::Cancelled);
        let lines = lines_of(&test);
        for kind in ["turn", "round"] {
            let found = ends(&lines, kind);
            assert!(found.len() == 1 && found[0].contains("outcome=\"cancelled\""), "{kind}: {lines:#?}");
        }
    });
}

#[test]
fn a_rejected_model_call_logs_its_error() {
    with_log("a_rejected_model_call_logs_its_error", || {
        let mut test =
            TestSession::new(vec![vec![ModelStep::Error { status: 401, retry_after: None, message: None }]]);
        let ticket = test.prompt("Go");
        assert!(test.client.answer(ticket).is_err());
        let calls = ends(&lines_of(&test), "model_call");
        assert_eq!(calls.len(), 1);
        assert!(
            calls[0].contains("status=401") && calls[0].contains("outcome=\"not authorised\""),
            "{}",
            calls[0]
        );
    });
}

/// Stream chunks cause no log lines, whatever the filter.
#[test]
fn the_number_of_log_lines_is_independent_of_stream_chunks() {
    with_log("the_number_of_log_lines_is_independent_of_stream_chunks", || {
        let of_pieces = |count: usize| {
            let mut test = TestSession::new(vec![vec![ModelStep::Flood { count, text: "word ".into() }]]);
            assert_eq!(test.ask("Go"), StopReason::EndTurn);
            lines_of(&test).len()
        };
        assert_eq!(of_pieces(1000), of_pieces(1));
    });
}
