//! Calls that would wait for ever come to an end, and cost nobody else anything.

use std::process::Command;
use std::time::Duration;

use epitome::daemon::control::limits::Limits;
use serde_json::{Value, json};

use super::desk::Desk;

/// A home on a network that is gone: whoever opens the session's log waits. Once each call for it waited as long,
/// with the connection's whole room for calls behind it, and no word to the caller.
#[test]
fn a_log_that_can_not_be_read_costs_its_callers_an_error_and_others_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let short = Duration::from_millis(200);
        let desk = Desk::with_limits(
            Vec::new(),
            Limits { read: short, change: short, long: short, compact: short, ..Limits::default() },
        );
        let mut wire = desk.connect();
        let session = "s_00000000000000000000";
        let journals = desk.daemon.paths.data.join("journals");
        std::fs::create_dir_all(&journals).expect("a directory");
        // Opened for reading, a pipe waits for who writes into it.
        let made = Command::new("mkfifo").arg(journals.join(format!("{session}.jsonl"))).status();
        assert!(made.expect("mkfifo is there").success());

        let environment = desk.environment();
        for (method, more) in [
            ("sessions.show", json!({})),
            ("sessions.entries", json!({})),
            ("sessions.tail", json!({})),
            ("sessions.export", json!({})),
            ("sessions.undo", json!({})),
            ("sessions.compact", json!({ "environment": environment })),
            ("sessions.prompt", json!({ "text": "hello", "environment": environment })),
        ] {
            let mut params = more;
            params["session"] = json!(session);
            let answer = wire.call(method, params).await;
            let error = &answer["error"];
            assert_eq!(
                (&error["code"], &error["data"]["kind"]),
                (&json!(-32008), &json!("timed_out")),
                "{answer}"
            );
            let told = error["message"].as_str().unwrap_or_default();
            assert!(told.starts_with(method) && told.ends_with("within 0.2 s"), "{told}");
            assert!(
                error["data"]["hint"].as_str().is_some_and(|hint| hint.contains("daemon logs")),
                "{answer}"
            );
        }
        // The connection goes on, other sessions do, and the daemon can be ended.
        let other = wire.call("sessions.new", json!({ "cwd": desk.cwd })).await;
        assert!(other["result"]["session"].is_string(), "{other}");
        let cancelled = wire.call("sessions.cancel", json!({ "session": session })).await;
        assert_ne!(cancelled["result"], Value::Null, "{cancelled}");
        assert_eq!(wire.call("stop", json!({ "force": true })).await["result"]["stopping"], true);
    });
    // Threads hang at the pipe, as they are to.
    runtime.shutdown_background();
}
