//! Complete chains with hooks of every kind.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use epitome::hooks::chain::{Chain, ChainLink};
use epitome::hooks::event::HookEvent;
use epitome::hooks::functions::BoxError;
use epitome::hooks::functions::Functions;
use epitome::hooks::handlers::{Handler, HandlerContext};
use epitome::hooks::hook::{ClaudeOptions, Hook, HookKind, HookOrigin, Manifest};
use epitome::hooks::hook_context::{
    ContextFacts, EventData, HookContext, InvokedBy, PayloadBase, UsageFacts,
};
use epitome::hooks::output::Resolution;
use epitome::hooks::resident::HookServices;
use epitome::hooks::run::{Runner, perform};
use epitome::hooks::transcript::Transcript;
use epitome::paths::Paths;
use epitome::provider::http::Http;
use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, HookRunResult, Message, MessageId, Mode, ModelName, Origin,
    OutcomeStatus, Seq, ToolCall, ToolOutcome, Usage, View,
};
use epitome::tools::reaper::Reaper;
use epitome::tools::{Exposure, Workspace};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::scripts::{AMPLE, environment, patiently, script};

struct NoServices;

impl HookServices for NoServices {
    fn call<'a>(&'a self, _: &'a str, _: &'a str, _: Value) -> BoxFuture<'a, Result<Value, BoxError>> {
        Box::pin(async { Err("there are none".into()) })
    }
}

fn runner(folder: &Path) -> Runner {
    let workspace = Workspace::new(folder.to_path_buf(), Vec::new(), environment());
    Runner {
        session: "s_01".to_owned(),
        at: HandlerContext { workspace: Arc::new(workspace), functions: Functions::default() },
        reaper: Arc::new(Reaper::disabled()),
        sandbox: Arc::default(),
        http: Http::new(),
        residents: Arc::default(),
        aside: Arc::default(),
        transcript: Arc::new(Transcript::new(&Paths::below(folder), "s_01")),
        services: Arc::new(NoServices),
    }
}

fn prompt(folder: &Path) -> HookContext {
    let base = PayloadBase {
        session: "s_01".to_owned(),
        cwd: folder.to_path_buf(),
        invoked_by: InvokedBy::Main,
        recipe: String::new(),
        callback_args: BTreeMap::new(),
        callback_depth: 0,
        model: None,
        mode: Mode::Ask,
        revision: Seq(0),
        view: conversation(),
        at: 1_700_000_000_000,
        usage: UsageFacts { size: 200_000, ..UsageFacts::default() },
        auto_compact: None,
        context: ContextFacts::default(),
    };
    HookContext {
        base,
        what: EventData::UserMessageSend { message: "Fix it.".to_owned(), attachments: Vec::new() },
    }
}

fn conversation() -> View {
    let text = |text: &str| Content::Text { text: text.to_owned() };
    let call = ToolCall {
        id: CallId("c1".to_owned()),
        name: "bash".to_owned(),
        input: json!({"command": "ls", "timeout": 2}),
        card: CallDisplay::default(),
    };
    let message = |id, content| Message { id: MessageId(id), content, author: None };
    let changes = [
        Change::Said { message: message(1, vec![text("Look around.")]), origin: Origin::Person },
        Change::Replied {
            message: message(2, vec![text("Looking."), Content::Call(call)]),
            model: ModelName("some-model".to_owned()),
            usage: Some(Usage { input: 10, output: 5, ..Usage::default() }),
            cut: None,
        },
        Change::ToolFinished {
            outcome: ToolOutcome::text(CallId("c1".to_owned()), OutcomeStatus::Completed, "src"),
        },
    ];
    let entries: Vec<Arc<Entry>> = (1..)
        .zip(changes)
        .map(|(seq, change)| Arc::new(Entry { seq: Seq(seq), at: 1_700_000_000_000, change }))
        .collect();
    View::fold(&entries, &Default::default())
}

fn hook(name: &str, kind: HookKind) -> ChainLink {
    ChainLink::Hook(Arc::new(declared(name, kind)))
}

fn declared(name: &str, kind: HookKind) -> Hook {
    Hook {
        name: name.to_owned(),
        origin: HookOrigin::User,
        kind,
        events: vec![(HookEvent::UserMessageSend, "user.message".to_owned())],
        manifest: Manifest { timeout: AMPLE, ..Manifest::default() },
        digest: String::new(),
        files: Vec::new(),
    }
}

async fn resolve(runner: &Runner, folder: &Path, links: Vec<ChainLink>) -> Resolution {
    let (runner, chain) = (runner.clone(), Chain::new(prompt(folder), links));
    // In a separate task, like in a session.
    let task = tokio::spawn(async move { perform(&runner, chain).await });
    patiently(task).await.expect("no panic")
}

#[tokio::test]
async fn each_hook_receives_the_changes_of_the_previous_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let then = json!({"message": "Fix it all."}).as_object().cloned().expect("an object");
    let text = "#!/bin/sh\ncat > \"$EPITOME_CWD/payload\"; env | grep ^EPITOME | sort > names\n\
                echo '{\"context\":\"Mind the tests.\"}'\n";
    let path = script(folder.path(), "second", text);
    let links = vec![hook("first", HookKind::Declared { then }), hook("second", HookKind::Script { path })];
    let resolution = resolve(&runner(folder.path()), folder.path(), links).await;
    assert_eq!(resolution.message.as_deref(), Some("Fix it all."));
    assert_eq!(resolution.context, [("second".to_owned(), "Mind the tests.".to_owned())]);
    let payload = std::fs::read_to_string(folder.path().join("payload")).expect("it was written");
    assert!(payload.ends_with("}\n"), "one line");
    let payload: Value = serde_json::from_str(&payload).expect("JSON");
    assert_eq!((&payload["message"], &payload["event"]), (&json!("Fix it all."), &json!("user.message")));
    let names = std::fs::read_to_string(folder.path().join("names")).expect("it was written");
    let expected = format!(
        "EPITOME_CWD={}\nEPITOME_HOOK_EVENT=user.message\nEPITOME_HOOK_NAME=second\n\
         EPITOME_HOOK_PROTOCOL=2\nEPITOME_SESSION_ID=s_01\n",
        folder.path().display()
    );
    assert_eq!(names, expected);
}

/// Regression: every hook inherited the keys of model providers, and a repository's hook had access to all of the
/// user's tokens.
#[tokio::test]
async fn hooks_get_the_variables_of_their_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut variables = environment().to_vec();
    variables.push(("A_PROVIDER".into(), "made-up-provider-key".into()));
    variables.push(("GH_TOKEN".into(), "made-up".into()));
    let exposure = Exposure { provider_keys: vec!["A_PROVIDER".to_owned()], ..Exposure::default() };
    let workspace = Workspace::new(folder.path().to_path_buf(), Vec::new(), Arc::new(variables))
        .exposing(Arc::new(exposure));
    let at = HandlerContext { workspace: Arc::new(workspace), functions: Functions::default() };
    let runner = Runner { at, ..runner(folder.path()) };
    for (origin, wanted) in [(HookOrigin::User, "-made-up"), (HookOrigin::Repository, "-")] {
        let text = "#!/bin/sh\necho \"{\\\"message\\\":\\\"$A_PROVIDER-$GH_TOKEN\\\"}\"\n";
        let path = script(folder.path(), "prints", text);
        let mut hook =
            Hook { origin, files: vec![path.clone()], ..declared("prints", HookKind::Script { path }) };
        hook.digest = epitome::hooks::digest::hash_hook(&hook).expect("it can be read");
        let resolution = resolve(&runner, folder.path(), vec![ChainLink::Hook(Arc::new(hook))]).await;
        assert_eq!(resolution.message.as_deref(), Some(wanted), "{origin:?}");
    }
}

/// Two hooks of a group, each of which only ends when the other one has started.
#[tokio::test]
async fn hooks_of_a_group_run_concurrently() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("meet")).status();
    assert!(made.expect("mkfifo runs").success());
    let shell = |name: &str, line: &str| {
        let kind = HookKind::Claude {
            line: line.to_owned(),
            group: 1,
            matcher: String::new(),
            only_if: String::new(),
            options: ClaudeOptions::default(),
        };
        hook(name, kind)
    };
    let links = vec![shell("writes", "echo here > meet"), shell("reads", "read word < meet; echo $word")];
    let resolution = resolve(&runner(folder.path()), folder.path(), links).await;
    assert_eq!(resolution.context, [("reads".to_owned(), "here".to_owned())]);
}

/// Regression: a hook of a published plugin prints `{"async": true}` and continues in the background. The user's first
/// prompt waited 23 seconds for its end, and then its output was rejected as "not JSON". Each hook here waits for a
/// file that is only created once the hooks of the event are done.
#[tokio::test]
async fn hooks_in_the_background_are_not_waited_for_and_end_with_the_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(folder.path().join(name)).status();
        assert!(made.expect("mkfifo runs").success());
    };
    ["go", "came", "never"].into_iter().for_each(fifo);
    let shell = |name: &str, line: &str, runs_async| {
        let options = ClaudeOptions { runs_async, ..ClaudeOptions::default() };
        let (line, matcher, only_if) = (line.to_owned(), String::new(), String::new());
        hook(name, HookKind::Claude { line, group: 1, matcher, only_if, options })
    };
    let says = r#"echo '{"async": true, "asyncTimeout": 60000}'; read word < go; echo $word > came"#;
    let links = vec![shell("says", says, false), shell("declared", "read word < never", true)];
    let runner = runner(folder.path());
    let resolution = resolve(&runner, folder.path(), links).await;
    assert!(resolution.context.is_empty() && resolution.trail.is_empty(), "{:?}", resolution.trail);
    assert_eq!(runner.aside.running(), 2);
    let (go, came) = (folder.path().join("go"), folder.path().join("came"));
    let word = tokio::task::spawn_blocking(move || {
        std::fs::write(go, "on\n").expect("the hook reads it");
        std::fs::read_to_string(came).expect("the hook works on")
    });
    assert_eq!(word.await.expect("no panic"), "on\n");
    // No writer opens this hook's pipe. Its processes must all end with the session: opening the pipe for writing then
    // fails for lack of a reader.
    drop(runner);
    let never = folder.path().join("never");
    let readers = tokio::task::spawn_blocking(move || {
        use std::os::unix::fs::OpenOptionsExt as _;
        let open = || std::fs::OpenOptions::new().write(true).custom_flags(0o4000).open(&never);
        while open().is_ok() {
            std::thread::yield_now();
        }
    });
    readers.await.expect("no panic");
}

#[tokio::test]
async fn claude_code_hooks_receive_the_conversation_in_a_private_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "cat > payload; echo \"$CLAUDE_PROJECT_DIR\" > project".to_owned();
    let kind = HookKind::Claude {
        line,
        group: 1,
        matcher: String::new(),
        only_if: String::new(),
        options: ClaudeOptions::default(),
    };
    let runner = runner(folder.path());
    resolve(&runner, folder.path(), vec![hook("claude", kind)]).await;
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("it was written");
    assert_eq!(Path::new(read("project").trim()), folder.path());
    let payload: Value = serde_json::from_str(&read("payload")).expect("JSON");
    let transcript = PathBuf::from(payload["transcript_path"].as_str().expect("a path"));
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&transcript), mode(transcript.parent().expect("a folder"))), (0o600, 0o700));
    let text = std::fs::read_to_string(&transcript).expect("it is there");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let kinds: Vec<&Value> = lines.iter().map(|line| &line["type"]).collect();
    assert_eq!(kinds, ["user", "assistant", "user"]);
    assert_eq!(lines[1]["parentUuid"], lines[0]["uuid"]);
    let call =
        json!({"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "ls", "timeout": 2000}});
    assert_eq!(lines[1]["message"]["content"], json!([{"type": "text", "text": "Looking."}, call]));
    assert_eq!(lines[1]["message"]["usage"]["input_tokens"], json!(10));
    assert_eq!(lines[2]["message"]["content"][0]["content"], json!("src"));
    drop(runner);
    assert!(!transcript.exists(), "it goes with the session");
}

/// Regression: a killed agent left its transcript in the directory for temporary files, permanently and readable by
/// other users. Transcripts are now stored in the user's own folder, and the next session that writes one removes old
/// ones.
#[tokio::test]
async fn transcripts_left_by_killed_processes_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = Paths::below(folder.path());
    let left = paths.state.join("transcripts");
    std::fs::create_dir_all(&left).expect("a folder can be made");
    let days = |days: u64| SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60 + 60);
    for (name, written) in [("s_old.jsonl", days(1)), ("s_live.jsonl", days(0))] {
        let file = std::fs::File::create(left.join(name)).expect("a file can be made");
        file.set_modified(written).expect("its time can be set");
    }
    let transcript = Transcript::new(&paths, "s_01");
    let written = transcript.write(&prompt(folder.path())).await.expect("it is written");
    let names = || {
        let files = std::fs::read_dir(&left).expect("it can be listed").flatten();
        files.map(|file| file.file_name().into_string().expect("a name")).collect::<BTreeSet<_>>()
    };
    assert_eq!(written, left.join("s_01.jsonl"));
    assert_eq!(names(), ["s_01.jsonl", "s_live.jsonl"].map(str::to_owned).into());
    drop(transcript);
    assert_eq!(names(), ["s_live.jsonl"].map(str::to_owned).into());
}

#[tokio::test]
async fn a_repository_hook_that_changed_since_consent_does_not_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = script(folder.path(), "audit", "#!/bin/sh\ntouch ran\n");
    let mut audit = declared("audit", HookKind::Script { path: path.clone() });
    (audit.origin, audit.files) = (HookOrigin::Repository, vec![path.clone()]);
    audit.digest = epitome::hooks::digest::hash_hook(&audit).expect("it can be read");
    let links = vec![ChainLink::Hook(Arc::new(audit))];
    let runner = runner(folder.path());
    resolve(&runner, folder.path(), links.clone()).await;
    std::fs::remove_file(folder.path().join("ran")).expect("it ran");
    script(folder.path(), "audit", "#!/bin/sh\ntouch ran\necho changed\n");
    let resolution = resolve(&runner, folder.path(), links).await;
    assert!(!folder.path().join("ran").exists(), "it ran");
    assert_eq!(resolution.trail[0].verdict, HookRunResult::Skipped, "{:?}", resolution.trail);
}

/// Regression: a function of the embedding program that never returned held its session for good.
#[tokio::test(start_paused = true)]
async fn a_failing_hook_does_not_prevent_others_from_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut functions = Functions::default();
    functions.register_handler("panics", |_, _| async { panic!("not ours") });
    functions.register_handler("hangs", |_, _| std::future::pending());
    let mut runner = runner(folder.path());
    runner.at.functions = functions;
    let handler = |name: &str| {
        let params = serde_json::Map::new();
        ChainLink::Handler(Arc::new(Handler {
            recipe: String::new(),
            name: name.to_owned(),
            once: false,
            params,
        }))
    };
    let then = json!({"context": "Still here."}).as_object().cloned().expect("an object");
    let missing = HookKind::Script { path: folder.path().join("missing") };
    let links = vec![
        handler("panics"),
        handler("hangs"),
        handler("unknown"),
        hook("missing", missing),
        hook("last", HookKind::Declared { then }),
    ];
    let resolution = perform(&runner, Chain::new(prompt(folder.path()), links)).await;
    assert_eq!(resolution.context, [("last".to_owned(), "Still here.".to_owned())]);
    let failed: Vec<&str> = resolution
        .trail
        .iter()
        .filter(|run| run.verdict == HookRunResult::Failed)
        .map(|run| run.hook.as_str())
        .collect();
    assert_eq!(failed, ["panics", "hangs", "unknown", "missing"], "{:?}", resolution.trail);
}
