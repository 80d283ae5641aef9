//! Calls that would block forever time out without affecting other calls.

use std::process::Command;
use std::time::Duration;

use epitome::daemon::control::limits::MethodTimeouts;
use serde_json::json;

use super::in_process::{InProcessClient, TestDaemon};

/// Regression: on a home on an unreachable network drive, opening the session's log blocks. Calls for the session
/// blocked too and occupied the connection's entire queue, and their callers never got an answer.
#[test]
fn calls_to_an_unreadable_log_time_out_and_others_are_served() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let short = Duration::from_millis(200);
        let test = TestDaemon::with_limits(
            Vec::new(),
            MethodTimeouts {
                read: short,
                change: short,
                long: short,
                compact: short,
                ..MethodTimeouts::default()
            },
        );
        let mut wire = test.connect();
        let session = "s_00000000000000000000";
        let journals = test.daemon.paths.data.join("journals");
        std::fs::create_dir_all(&journals).expect("a directory");
        // Opening a pipe for reading blocks until there is a writer.
        let made = Command::new("mkfifo").arg(journals.join(format!("{session}.jsonl"))).status();
        assert!(made.expect("mkfifo is there").success());

        let environment = test.environment();
        for (method, more) in
            [("sessions.show", json!({})), ("sessions.entries", json!({})), ("sessions.export", json!({}))]
        {
            let mut params = more;
            params["session"] = json!(session);
            let answer = wire.call(method, params).await;
            let error = &answer["error"];
            assert_eq!(
                (&error["code"], &error["data"]["kind"]),
                (&json!(-32008), &json!("timed_out")),
                "{answer}"
            );
            let message = error["message"].as_str().unwrap_or_default();
            assert!(message.starts_with(method) && message.ends_with("within 0.2 s"), "{message}");
            assert!(
                error["data"]["hint"].as_str().is_some_and(|hint| hint.contains("daemon logs")),
                "{answer}"
            );
        }
        // Calls that open the file for writing as well do not block, and fail because it is not a regular file.
        for (method, more) in
            [("sessions.undo", json!({})), ("sessions.compact", json!({ "environment": environment }))]
        {
            let mut params = more;
            params["session"] = json!(session);
            let answer = wire.call(method, params).await;
            assert_eq!(answer["error"]["data"]["kind"], "store", "{answer}");
        }
        // The connection and other sessions still work, and the daemon can be stopped.
        InProcessClient::new(&test, None).await;
        assert_eq!(wire.call("stop", json!({ "force": true })).await["result"]["stopping"], true);
    });
    // Threads are still blocked on the pipe, as intended.
    runtime.shutdown_background();
}
