//! Resident hooks, and the shipped examples.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use epitome::hooks::functions::BoxError;
use epitome::hooks::output::{ProcessExit, RawOutcome};
use epitome::hooks::process::{HookProgram, ProcessSpec};
use epitome::hooks::resident::{
    CALLS_A_RUN_MAX, CALLS_OPEN_MAX, HookServices, RESTARTS_MAX, Resident, Residents, STRAY_LINES_MAX,
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::scripts::{AMPLE, is_gone, patiently, script, spec};

/// Returns each request; `nested` first calls the hook itself, and `boom` panics.
#[derive(Default)]
struct Echo {
    nested: OnceLock<(Arc<Residents>, ProcessSpec)>,
}

impl HookServices for Echo {
    fn call<'a>(
        &'a self,
        hook: &'a str,
        method: &'a str,
        params: Value,
    ) -> BoxFuture<'a, Result<Value, BoxError>> {
        Box::pin(async move {
            match method {
                "nested" => {
                    let (residents, spec) = self.nested.get().expect("set before");
                    let services = Arc::new(Echo::default());
                    let resident = resident_with(spec.clone(), services);
                    let ran = residents.ask(resident, json!({"event": "pre_compact"}), AMPLE).await;
                    Ok(json!(format!("{ran:?}")))
                }
                "boom" => panic!("a bug"),
                "wait" => std::future::pending().await,
                "no" => Err("that cannot be done".into()),
                _ => Ok(json!({"hook": hook, "method": method, "params": params})),
            }
        })
    }
}

fn resident_with(spec: ProcessSpec, services: Arc<dyn HookServices>) -> Resident {
    Resident { name: "hook".to_owned(), digest: "1".to_owned(), spec, services }
}

/// A hook in its own folder, and the session that calls it.
struct Session {
    folder: tempfile::TempDir,
    path: PathBuf,
    residents: Arc<Residents>,
    services: Arc<Echo>,
}

impl Session {
    /// A hook whose script runs `body` for each line that it reads, with the request's id in `$id`.
    fn new(body: &str) -> Session {
        let reading = "while IFS= read -r line; do id=${line#'{\"id\":'}; id=${id%%,*}";
        Session::of(&format!("#!/bin/sh\n{reading}\n{body}\ndone\n"))
    }

    fn of(text: &str) -> Session {
        let folder = tempfile::tempdir().expect("a folder");
        let path = script(folder.path(), "hook", text);
        Session { folder, path, residents: Arc::default(), services: Arc::default() }
    }

    fn shipped(name: &str) -> Session {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples/hooks").join(name);
        Session { path, ..Session::of("") }
    }

    fn spec(&self) -> ProcessSpec {
        spec(self.folder.path(), self.path.clone(), b"")
    }

    async fn ask_within(&self, payload: Value, limit: Duration) -> RawOutcome {
        let resident = resident_with(self.spec(), self.services.clone());
        patiently(self.residents.ask(resident, payload, limit)).await
    }

    async fn ask(&self, payload: Value) -> RawOutcome {
        self.ask_within(payload, AMPLE).await
    }

    async fn result(&self, payload: Value) -> Value {
        let (result, remarks) = self.remarked(payload).await;
        assert_eq!(remarks, Vec::<String>::new());
        result
    }

    /// Returns a result and its remarks.
    async fn remarked(&self, payload: Value) -> (Value, Vec<String>) {
        let (ran, remarks) = apart(self.ask(payload).await);
        match ran {
            RawOutcome::Object(object) => (Value::Object(object), remarks),
            other => panic!("no result: {other:?}"),
        }
    }

    async fn failure(&self) -> String {
        match apart(self.ask(json!({})).await).0 {
            RawOutcome::Failed(why) => why,
            other => panic!("no failure: {other:?}"),
        }
    }
}

fn apart(ran: RawOutcome) -> (RawOutcome, Vec<String>) {
    match ran {
        RawOutcome::Remarked(ran, remarks) => (*ran, remarks),
        other => (other, Vec::new()),
    }
}

#[tokio::test]
async fn one_process_answers_successive_requests() {
    let session = Session::new(r#"echo '{"id":'"$id"',"result":{"id":'"$id"',"process":'$$'}}'"#);
    let (first, second) = (session.result(json!({})).await, session.result(json!({})).await);
    assert_eq!((&first["id"], &second["id"]), (&json!(1), &json!(2)));
    assert_eq!(first["process"], second["process"]);
}

#[tokio::test]
async fn concurrent_requests_are_sent_one_by_one() {
    let session = Session::new(r#"echo '{"id":'"$id"',"result":{"id":'"$id"'}}'"#);
    let asks = (0..20).map(|_| session.result(json!({"event": "before_tool_call"})));
    let mut results = futures_util::future::join_all(asks).await;
    results.sort_by_key(|result| result["id"].as_u64());
    let expected: Vec<Value> = (1..=20).map(|id| json!({"id": id})).collect();
    assert_eq!(results, expected);
}

#[tokio::test]
async fn a_response_may_be_null_an_error_or_malformed() {
    for (answer, expected) in [
        (r#""result":null"#, RawOutcome::Object(serde_json::Map::new())),
        (r#""error":{"message":"no linter"}"#, RawOutcome::Failed("no linter".to_owned())),
        (r#""error":"no linter""#, RawOutcome::Failed("no linter".to_owned())),
        (r#""result":[1]"#, RawOutcome::Failed("its result is not a JSON object".to_owned())),
        (r#""say":1"#, RawOutcome::Failed("its answer has neither a result nor an error".to_owned())),
    ] {
        let session = Session::new(&format!(r#"echo '{{"id":"'"$id"'",{answer}}}'"#));
        assert_eq!(session.ask(json!({})).await, expected, "{answer}");
    }
}

#[tokio::test]
async fn unexpected_lines_are_skipped_and_reported() {
    let session = Session::new(
        r#"case $line in *first*) echo; echo starting up...; echo '[1]'; echo '{"method":"progress"}'
        echo '{"id":99,"result":{}}' ;; *second*) echo oops ;; esac
        echo '{"id":'"$id"',"result":{"done":true}}'"#,
    );
    for (payload, expected) in [
        (
            "first",
            Some("it wrote 4 lines that mean nothing; the first one is not a JSON object: starting up..."),
        ),
        ("second", Some("it wrote a line that is not a JSON object: oops")),
        ("third", None),
    ] {
        let (result, remarks) = session.remarked(json!({"event": payload})).await;
        assert_eq!(result, json!({"done": true}));
        assert_eq!(remarks, expected.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{payload}");
    }
}

#[tokio::test]
async fn too_many_unexpected_lines_end_the_process() {
    let most = STRAY_LINES_MAX + 1;
    let session =
        Session::new(&format!("i=0; while [ $i -lt {most} ]; do echo oops; i=$((i+1)); done; read -r l"));
    let why = session.failure().await;
    assert!(why.contains("too many lines"), "{why}");
}

/// Regression: for a hook that sent calls and never read the answers, refusals were queued without limit.
#[tokio::test]
async fn a_hook_that_calls_endlessly_is_ended() {
    let session = Session::new(r#"while :; do echo '{"id":"a1","method":"wait"}'; done"#);
    let why = session.failure().await;
    assert!(why.contains("too many lines"), "{why}");
}

#[tokio::test]
async fn too_many_concurrent_calls_are_refused() {
    let session = Session::new(&format!(
        r#"i=0; while [ $i -le {CALLS_OPEN_MAX} ]; do echo '{{"id":'"$i"',"method":"wait"}}'; i=$((i+1)); done
        IFS= read -r got; echo '{{"id":'"$id"',"result":{{"got":'"$got"'}}}}'"#
    ));
    let (result, remarks) = session.remarked(json!({})).await;
    let refused = json!({"message": format!("more than {CALLS_OPEN_MAX} calls at once")});
    assert_eq!(result["got"], json!({"id": CALLS_OPEN_MAX, "error": refused}));
    assert!(remarks[0].contains("too many calls at once"), "{remarks:?}");
}

#[tokio::test]
async fn too_many_calls_during_one_request_are_refused() {
    let session = Session::new(&format!(
        r#"i=0; while [ $i -le {CALLS_A_RUN_MAX} ]; do
            echo '{{"id":'"$i"',"method":"no"}}'; IFS= read -r got; i=$((i+1))
        done
        echo '{{"id":'"$id"',"result":{{"got":'"$got"'}}}}'"#
    ));
    let refused = json!({"message": format!("more than {CALLS_A_RUN_MAX} calls for one request")});
    // The limit applies to each request separately.
    for _ in 0..2 {
        let (result, _) = session.remarked(json!({})).await;
        assert_eq!(result["got"], json!({"id": CALLS_A_RUN_MAX, "error": refused}));
    }
}

#[tokio::test]
async fn an_overlong_line_fails_the_request_even_with_a_line_end() {
    let session = Session::new("head -c 3000000 /dev/zero | tr '\\0' x; echo");
    let why = session.failure().await;
    assert!(why.contains("longer than 1 MiB"), "{why}");
}

#[tokio::test]
async fn a_hook_may_call_back_during_a_request() {
    let calls = [
        (
            r#"{"id":"a1","method":"context.read","params":{"last":3}}"#,
            json!({"id": "a1", "result":
            {"hook": "hook", "method": "context.read", "params": {"last": 3}}}),
        ),
        (r#"{"id":7,"method":"no"}"#, json!({"id": 7, "error": {"message": "that cannot be done"}})),
        (
            r#"{"id":8,"method":"boom"}"#,
            json!({"id": 8, "error":
            {"message": "the call hit a bug in Epitome"}}),
        ),
    ];
    for (call, expected) in calls {
        let session = Session::new(&format!(
            r#"echo '{call}'; IFS= read -r got; echo '{{"id":'"$id"',"result":{{"got":'"$got"'}}}}'"#
        ));
        assert_eq!(session.result(json!({})).await, json!({"got": expected}), "{call}");
    }
}

/// A hook that requests a compaction is called again before the compaction: if that call waited for the first
/// response, both would wait forever.
#[tokio::test]
async fn a_request_caused_by_a_call_is_sent_while_the_call_is_open() {
    let session = Session::new(
        r#"echo '{"id":"a1","method":"nested"}'
        IFS= read -r second; second=${second#'{"id":'}; second=${second%%,*}
        echo '{"id":'"$second"',"result":{"inner":true}}'
        IFS= read -r got; echo '{"id":'"$id"',"result":{"got":'"$got"'}}'"#,
    );
    let nested = (session.residents.clone(), session.spec());
    assert!(session.services.nested.set(nested).is_ok());
    let result = session.result(json!({})).await;
    assert!(result["got"]["result"].as_str().is_some_and(|text| text.contains("inner")), "{result}");
}

#[tokio::test]
async fn a_process_that_exits_is_restarted_a_limited_number_of_times() {
    let session = Session::new("echo broken >&2; exit 3");
    for _ in 0..=RESTARTS_MAX {
        let why = session.failure().await;
        assert!(why.contains("exit code 3") && why.contains("broken"), "{why}");
    }
    let why = session.failure().await;
    assert!(why.contains("no more"), "{why}");
}

#[tokio::test]
async fn a_request_that_times_out_ends_the_process_but_not_the_hook() {
    let session = Session::new(
        r#"case $line in *hang*) sleep 600 ;; esac
        echo '{"id":'"$id"',"result":{"process":'$$'}}'"#,
    );
    let before = session.result(json!({})).await;
    let limit = Duration::from_millis(200);
    let ran = session.ask_within(json!({"event": "hang"}), limit).await;
    assert!(
        matches!(ran, RawOutcome::Ended { exit: ProcessExit::TimedOut(over), .. } if over == limit),
        "{ran:?}"
    );
    is_gone(group(&before)).await;
    assert_ne!(session.result(json!({})).await, before);
}

#[tokio::test]
async fn a_line_without_end_fails_the_request() {
    let session = Session::new("head -c 3000000 /dev/zero | tr '\\0' x");
    let why = session.failure().await;
    assert!(why.contains("longer than 1 MiB"), "{why}");
}

#[tokio::test]
async fn a_program_that_cannot_be_started_fails_with_a_reason() {
    let session = Session::of("#!/no/such/interpreter\n");
    let why = session.failure().await;
    assert!(why.contains("/no/such/interpreter"), "{why}");
}

#[tokio::test]
async fn dropping_the_session_ends_the_process() {
    let session = Session::new(r#"sleep 600 & echo '{"id":'"$id"',"result":{"process":'$$'}}'; wait"#);
    let process = group(&session.result(json!({})).await);
    drop(session);
    is_gone(process).await;
}

#[tokio::test]
async fn a_new_version_of_the_hook_gets_a_new_process() {
    let session = Session::new(r#"echo '{"id":'"$id"',"result":{"process":'$$'}}'"#);
    let before = session.result(json!({})).await;
    let changed =
        Resident { digest: "2".to_owned(), ..resident_with(session.spec(), session.services.clone()) };
    let ran = patiently(session.residents.ask(changed, json!({}), AMPLE)).await;
    assert!(matches!(&ran, RawOutcome::Object(after) if after["process"] != before["process"]), "{ran:?}");
    is_gone(group(&before)).await;
}

fn group(result: &Value) -> rustix::process::Pid {
    super::scripts::group(&result["process"].to_string())
}

#[tokio::test]
async fn the_python_example_blocks_a_forced_push_and_asks_for_tests() {
    let session = Session::shipped("resident.py");
    let call = |command: &str| json!({"canonical_event": "before_tool_call", "tool_name": "bash", "tool_input": {"command": command}});
    let refused = session.result(call("git push --force")).await;
    assert_eq!(refused["blocked"], json!(true), "{refused}");
    assert_eq!(session.result(call("git push")).await, json!({}));
    let stop = json!({"canonical_event": "agent_stop", "continuations": 0});
    assert!(session.result(stop).await["follow_up_messages"][0].is_string());
    assert!(manifest(&session).contains("resident"));
}

#[tokio::test]
async fn the_sh_example_blocks_a_forced_push() {
    let session = Session::shipped("resident.sh");
    let call = |command: &str| json!({"tool_name": "bash", "tool_input": {"command": command}});
    assert_eq!(session.result(call("git push --force")).await["blocked"], json!(true));
    assert_eq!(session.result(call("git push")).await, json!({}));
    assert!(manifest(&session).contains("resident"));
}

/// The manifest that a program prints.
fn manifest(session: &Session) -> String {
    let HookProgram::File { path, .. } = session.spec().program else { panic!("a file") };
    let said = std::process::Command::new(path).arg("hook").output().expect("it runs");
    let manifest: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    manifest["mode"].to_string()
}
