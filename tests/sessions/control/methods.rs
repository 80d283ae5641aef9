//! Calls every method and checks its result.

use epitome::daemon::control::REPLACED;
use epitome::session::SessionEvent;
use epitome::thread::{Change, StopReason};
use serde_json::{Value, json};

use super::in_process::{InProcessClient, TestDaemon, Wire, text};

/// Calls a method and returns its result.
async fn done(wire: &mut Wire, method: &str, params: Value) -> Value {
    let answer = wire.call(method, params.clone()).await;
    assert!(answer.get("result").is_some(), "{method} {params}: {answer}");
    answer["result"].clone()
}

/// Calls a method and returns the kind and message of its error.
async fn refused(wire: &mut Wire, method: &str, params: Value) -> (String, String) {
    let answer = wire.call(method, params.clone()).await;
    let error = &answer["error"];
    let field = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{method}: {answer}")).to_owned();
    (field(&error["data"]["kind"]), field(&error["message"]))
}

#[tokio::test]
async fn status_reports_the_daemons_state_and_counters() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    test.session().await;
    let status = done(&mut wire, "status", json!({})).await;
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["home"], json!(test.daemon.paths.home));
    assert!(status["sockets"]["control"].as_str().is_some_and(|path| path.ends_with("control.sock")));
    assert!(status["store_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{status}");
    assert_eq!(status["running_turns"], 0);

    let own = &status["build"];
    assert_eq!(
        (&own["version"], own["sources"].as_str().map(str::len)),
        (&status["version"], Some(16)),
        "{own}"
    );

    let metrics = done(&mut wire, "metrics", json!({})).await;
    assert_eq!((&metrics["turns"], &metrics["rounds"]), (&json!(1), &json!(1)));
    assert_eq!(metrics["tokens"]["input"], 10);
    let text = done(&mut wire, "metrics", json!({ "format": "prometheus" })).await["text"].clone();
    let text = text.as_str().expect("text");
    for line in [
        "epitome_turns_total 1",
        "epitome_tokens_total{kind=\"output\"} 5",
        "# TYPE epitome_attachments gauge",
        "epitome_waiting_prompts 0",
        "# TYPE epitome_loop_late_seconds gauge",
        "# TYPE epitome_append_seconds histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    // The appends of all tests in this process.
    let appends = |line: &str| -> u64 {
        let found = text.lines().find_map(|found| found.strip_prefix(line));
        found.unwrap_or_else(|| panic!("{line} is not in\n{text}")).trim().parse().expect("a number")
    };
    let within =
        |bound: &str| appends(&format!("epitome_append_seconds_bucket{{backend=\"files\",le=\"{bound}\"}}"));
    let all = appends("epitome_append_seconds_count{backend=\"files\"}");
    assert!(
        all >= 5 && within("+Inf") == all && within("10.0") <= all && within("0.001") <= within("10.0"),
        "{text}"
    );
}

#[tokio::test]
async fn a_session_is_listed_shown_read_and_deleted() {
    let test = TestDaemon::new(vec![text("Hello yourself.")]);
    let mut wire = test.connect();
    let session = test.session().await;
    done(&mut wire, "sessions.rename", json!({ "session": session, "title": "Mine" })).await;

    let listed = done(&mut wire, "sessions.list", json!({ "cwd": test.cwd })).await;
    assert_eq!(listed["sessions"][0]["session"], session);
    assert_eq!(listed["sessions"][0]["title"], "Mine");
    let elsewhere = done(&mut wire, "sessions.list", json!({ "cwd": "/nowhere" })).await;
    assert_eq!(elsewhere["sessions"], json!([]));

    // A unique prefix of an id is sufficient, with or without its `s_`.
    let shown = done(&mut wire, "sessions.show", json!({ "session": session[2..9] })).await;
    assert_eq!((&shown["session"], &shown["counts"]["replied"]), (&json!(session), &json!(1)));
    assert_eq!(shown["usage"]["input"], 10);
    assert_eq!(shown["layers"], json!([]));
    assert!(shown["context_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{shown}");

    let first = done(&mut wire, "sessions.entries", json!({ "session": session, "limit": 2 })).await;
    assert_eq!(first["entries"].as_array().map(Vec::len), Some(2));
    let next = first["next"].clone();
    assert_eq!(next, "e2");
    let rest = done(&mut wire, "sessions.entries", json!({ "session": session, "from": next })).await;
    assert_eq!((&rest["entries"][0]["seq"], &rest["next"]), (&json!(2), &Value::Null));
    let (kind, _) = refused(&mut wire, "sessions.entries", json!({ "session": session, "limit": 0 })).await;
    assert_eq!(kind, "invalid_params");

    let timeline = done(&mut wire, "sessions.timeline", json!({ "session": session })).await;
    assert_eq!(timeline["rounds"].as_array().map(Vec::len), Some(1), "{timeline}");
    let looked = done(&mut wire, "sessions.entry", json!({ "session": session, "entry": "e0" })).await;
    assert!(looked.is_object(), "{looked}");
    let page = done(&mut wire, "inspect.open", json!({ "session": session })).await["url"].clone();
    assert!(page.as_str().is_some_and(|url| url.starts_with("http://127.0.0.1:")), "{page}");

    let renamed = done(&mut wire, "sessions.rename", json!({ "session": session, "title": "Ours" })).await;
    assert_eq!(renamed["outcome"]["rename"]["status"], "done");
    let markdown = json!({ "session": session, "format": "markdown" });
    let markdown = done(&mut wire, "sessions.export", markdown).await["text"].clone();
    assert!(markdown.as_str().is_some_and(|text| text.contains("Hello yourself.")), "{markdown}");
    let file = test.cwd.join("kept.jsonl");
    let exported = done(&mut wire, "sessions.export", json!({ "session": session, "file": file })).await;
    assert!(exported["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{exported}");
    let again = refused(&mut wire, "sessions.export", json!({ "session": session, "file": file })).await;
    assert_eq!(again.0, "store", "nothing is written over: {}", again.1);
    let imported = json!({ "files": [file], "cwd": test.cwd });
    let imported = done(&mut wire, "sessions.import", imported).await["sessions"][0].clone();
    assert_eq!((&imported["title"], imported["session"] == *session), (&json!("Ours"), false), "{imported}");
    let forked = done(&mut wire, "sessions.fork", json!({ "session": session, "entry": "e2" })).await;
    assert_eq!((&forked["from"], &forked["entry"]), (&json!(session), &json!("e2")));
    let none = refused(&mut wire, "sessions.fork", json!({ "session": session, "entry": 900 })).await;
    assert_eq!(none.0, "refused", "{}", none.1);
    let found = done(&mut wire, "sessions.search", json!({ "text": "yourself" })).await;
    assert_eq!(found["sessions"].as_array().map(Vec::len), Some(2), "the fork ends before it: {found}");

    assert_eq!(done(&mut wire, "sessions.delete", json!({ "session": session })).await["deleted"], true);
    let (kind, message) = refused(&mut wire, "sessions.show", json!({ "session": session })).await;
    assert_eq!((kind.as_str(), message), ("not_found", format!("there is no session {session}")));
}

/// The status counts queued prompts while they are waiting.
#[tokio::test]
async fn status_counts_queued_items() {
    use epitome_scripted_model::ModelStep;
    let test = TestDaemon::new(vec![vec![ModelStep::Text("long".into()), ModelStep::Wait]]);
    let mut wire = test.connect();
    let mut first = InProcessClient::new(&test, None).await;
    first.prompt("hello");
    first.until(|event| matches!(event, SessionEvent::Text { .. }).then_some(())).await;
    let mut second = InProcessClient::new(&test, Some(&first.session.0)).await;
    second.prompt("hello");
    let queued = |event: &SessionEvent| match event {
        SessionEvent::Entry { entry, .. } => matches!(entry.change, Change::Queued { .. }).then_some(()),
        _ => None,
    };
    first.until(queued).await;
    let status = done(&mut wire, "status", json!({})).await;
    let (all, live) = (&status["waiting"], &status["sessions"][0]);
    assert_eq!((&all["prompts"], &live["queued_prompts"]), (&json!(1), &json!(1)), "{status}");
    assert_eq!(
        (&all["events"], &all["thoughts"], &live["waiting_events"]),
        (&json!(0), &json!(0), &json!(0))
    );
    assert!(all["tasks"].as_u64().is_some_and(|tasks| tasks > 0), "{all}");
    assert!(all["loop_late_seconds"].as_f64().is_some_and(|late| late >= 0.0), "{all}");
    assert!(status["attachments"][0]["waiting"].is_u64(), "{status}");
    assert_eq!(done(&mut wire, "metrics", json!({})).await["waiting"]["prompts"], 1);
    test.model.release();
    for prompt in [&mut first, &mut second] {
        assert_eq!(prompt.ended().await, StopReason::EndTurn);
    }
    assert_eq!(done(&mut wire, "metrics", json!({})).await["waiting"]["prompts"], 0);
}

/// A script of an earlier version learns what to use instead.
#[tokio::test]
async fn a_method_that_followed_a_session_names_its_replacement() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    for (method, replacement) in REPLACED {
        let (kind, message) = refused(&mut wire, method, json!({})).await;
        assert_eq!(kind, "unknown_method");
        assert!(message.contains(method) && message.contains(replacement), "{message}");
    }
}

#[tokio::test]
async fn a_session_is_compacted_undone_and_redone() {
    let long = "All the details of the parser, once more. ".repeat(400);
    let test =
        TestDaemon::new(vec![text(&long), text(&long), text("<summary>A summary.</summary>"), text("after")]);
    let mut wire = test.connect();
    let session = test.session().await;
    let environment = test.environment();
    test.prompt(&session, "go on").await;

    let dry = json!({ "session": session, "dry_run": true, "environment": environment });
    let dry = done(&mut wire, "sessions.compact", dry).await;
    assert!(dry["outcome"].is_object(), "{dry}");
    let compacted = json!({ "session": session, "focus": "the parser", "environment": environment });
    let compacted = done(&mut wire, "sessions.compact", compacted).await;
    let compaction = &compacted["outcome"]["compaction"];
    assert_eq!(compaction["status"], "compacted", "{compacted}");
    let layers = done(&mut wire, "sessions.show", json!({ "session": session })).await["layers"].clone();
    assert_eq!((&layers[0]["kind"], &layers[0]["holds"]), (&json!("compacted"), &json!(true)));

    let entry = layers[0]["entry"].clone();
    let undone = done(&mut wire, "sessions.undo", json!({ "session": session, "entry": entry })).await;
    assert_eq!(undone["outcome"]["undo"]["status"], "undone", "{undone}");
    let redone = done(&mut wire, "sessions.redo", json!({ "session": session })).await;
    assert_eq!(redone["outcome"]["redo"]["status"], "redone", "{redone}");
    let (kind, message) =
        refused(&mut wire, "sessions.compact", json!({ "session": session, "focus": "above all" })).await;
    assert_eq!(kind, "invalid_params", "{message}");
}

#[tokio::test]
async fn options_stay_with_the_session() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    let session = test.session().await;
    let environment = test.environment();
    let chosen = json!({ "session": session, "mode": "full", "environment": environment });
    let chosen = done(&mut wire, "sessions.set", chosen).await;
    assert_eq!(chosen["options"]["mode"], "full");
    assert_eq!(done(&mut wire, "sessions.show", json!({ "session": session })).await["mode"], "full");
    let (kind, message) = refused(&mut wire, "sessions.set", json!({ "session": session })).await;
    assert_eq!((kind.as_str(), message.contains("nothing is chosen")), ("invalid_params", true));
    let unknown = json!({ "session": session, "model": "anthropic/none", "environment": environment });
    let (kind, _) = refused(&mut wire, "sessions.set", unknown).await;
    assert_eq!(kind, "refused");
}

#[tokio::test]
async fn cancel_without_a_running_turn_returns_false() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    let session = test.session().await;
    let cancelled = done(&mut wire, "sessions.cancel", json!({ "session": session })).await;
    assert_eq!(cancelled["cancelled"], false);
    let none = json!({ "session": "s_00000000000000000000" });
    assert_eq!(refused(&mut wire, "sessions.cancel", none).await.0, "not_found");
}

#[tokio::test]
async fn recipes_and_hooks_of_a_directory_are_listed() {
    let test = TestDaemon::new(Vec::new());
    let mut wire = test.connect();
    let cwd = json!({ "cwd": test.cwd });
    let recipes = done(&mut wire, "recipes.list", cwd.clone()).await;
    let ids: Vec<&str> = recipes["recipes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|recipe| recipe["id"].as_str())
        .collect();
    assert!(ids.contains(&"compact"), "{ids:?}");
    let compact = done(&mut wire, "recipes.show", json!({ "cwd": test.cwd, "name": "/compact" })).await;
    assert!(compact["text"].as_str().is_some_and(|text| !text.is_empty()));
    let near = refused(&mut wire, "recipes.show", json!({ "cwd": test.cwd, "name": "compct" })).await;
    assert_eq!(near, ("not_found".to_owned(), "there is no recipe \"compct\"".to_owned()));

    let hooks = done(&mut wire, "hooks.list", cwd).await;
    assert_eq!((&hooks["hooks"], &hooks["enabled"]), (&json!([]), &json!(true)));
    let session = test.session().await;
    let trail = done(&mut wire, "hooks.trail", json!({ "session": session })).await;
    assert_eq!(trail["trail"], json!([]));

    let environment = test.environment();
    let models = json!({ "provider": "anthropic", "environment": environment });
    let models = done(&mut wire, "models.list", models).await["models"].clone();
    let models = models.as_array().expect("a list");
    assert!(!models.is_empty() && models.iter().all(|model| model["provider"] == "anthropic"), "{models:?}");
}

#[tokio::test]
async fn stop_is_refused_during_a_turn_unless_forced() {
    use epitome_scripted_model::ModelStep;
    let test = TestDaemon::new(vec![vec![ModelStep::Text("long".into()), ModelStep::Hang]]);
    let mut wire = test.connect();
    let mut client = InProcessClient::new(&test, None).await;
    client.prompt("hello");
    client.until(|event| matches!(event, SessionEvent::Text { .. }).then_some(())).await;
    let session = client.session.clone();
    let (kind, message) = refused(&mut wire, "stop", json!({})).await;
    assert_eq!((kind.as_str(), message.as_str()), ("refused", "a turn runs in this daemon"));
    assert!(!*test.daemon.stop.borrow());
    assert_eq!(done(&mut wire, "sessions.cancel", json!({ "session": session })).await["cancelled"], true);
    assert_eq!(client.ended().await, StopReason::Cancelled);
    assert_eq!(done(&mut wire, "stop", json!({ "force": true })).await["stopping"], true);
    assert!(*test.daemon.stop.borrow());
}
