//! Background commands, commands that leave their process group, and commands whose output is not plain text.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epitome::thread::{OutcomeContent, OutcomeStatus};
use epitome::tools::background::{BackgroundCommands, RUNNING_MAX};
use epitome::tools::reaper::Reaper;
use epitome::tools::{ToolContext, ToolResult, Toolbox, Workspace};
use epitome_test_harness::{WITHIN, does_without};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

struct Place {
    directory: TempDir,
    workspace: Arc<Workspace>,
    tools: Toolbox,
    background: Arc<BackgroundCommands>,
    progress: Arc<Mutex<Vec<String>>>,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let workspace = Workspace::new(
            directory.path().canonicalize().expect("it exists"),
            Vec::new(),
            Arc::new(vec![("PATH".into(), std::env::var_os("PATH").unwrap_or_default())]),
        );
        Place {
            directory,
            workspace: Arc::new(workspace),
            tools: Toolbox::built_in(Arc::new(Reaper::disabled())),
            background: Arc::default(),
            progress: Arc::default(),
        }
    }

    async fn run(&self, tool: &str, input: Value) -> ToolResult {
        let progress = self.progress.clone();
        let context = ToolContext {
            progress: Arc::new(move |output| progress.lock().push(output.text)),
            background: self.background.clone(),
            ..ToolContext::bare(self.workspace.clone())
        };
        let run = self.tools.get(tool).expect("a built-in tool").run(input, context);
        tokio::time::timeout(WITHIN, run).await.expect("it ends in time")
    }

    async fn bash(&self, command: &str) -> ToolResult {
        self.run("bash", json!({"description": "a test", "command": command})).await
    }

    /// Starts a background command; returns its id and the first result.
    async fn start(&self, command: &str) -> (String, String) {
        let input = json!({"description": "a test", "command": command, "background": true});
        let result = self.run("bash", input).await;
        assert_eq!(result.status, OutcomeStatus::Completed, "{}", text(&result));
        let raw = result.raw.as_ref().expect("it is there");
        (raw["background"]["id"].as_str().expect("an id").to_owned(), text(&result).to_owned())
    }

    async fn output(&self, id: &str, more: Value) -> String {
        let mut input = json!({"id": id});
        for (key, value) in more.as_object().into_iter().flatten() {
            input[key] = value.clone();
        }
        text(&self.run("bash_output", input).await).to_owned()
    }

    /// The process id that a command writes to `pid`; waits for the file.
    async fn number(&self) -> u32 {
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(self.directory.path().join("pid")).unwrap_or_default();
            if let Some(number) = text.strip_suffix('\n').and_then(|text| text.trim().parse().ok()) {
                return number;
            }
            assert!(started.elapsed() < WITHIN, "the command began");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn text(result: &ToolResult) -> &str {
    match &result.content[0] {
        OutcomeContent::Text { text } => text,
        OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => panic!("no text: {result:?}"),
    }
}

/// Waits until the process has ended or is a zombie that its parent has not reaped yet.
async fn assert_ends(number: u32) {
    let started = Instant::now();
    let runs = || {
        let status = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
    };
    while runs() {
        assert!(started.elapsed() < WITHIN, "process {number} still runs");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

// Background commands.

#[tokio::test]
async fn a_background_command_is_started_read_and_ended() {
    let place = Place::new();
    let line = "echo $$ > pid; echo listening on 80; while read -t 60 line <> fifo; do :; done; sleep 60";
    let (id, said) = place.start(line).await;
    assert!(said.starts_with(&format!("Background command {id}: `echo $$")), "{said}");
    assert!(said.contains("\nlistening on 80\n") && said.contains("still runs"), "{said}");
    let again = place.output(&id, json!({})).await;
    assert!(again.contains("(no new output)") && again.contains("still runs"), "{again}");
    assert_eq!(place.background.running(), 1);
    let number = place.number().await;
    let result = place.run("bash_kill", json!({"id": id})).await;
    assert!(text(&result).contains("has ended: ended by signal 15"), "{}", text(&result));
    assert_ends(number).await;
    assert_eq!(place.background.running(), 0);
    let unknown = place.output("bzzzz", json!({})).await;
    assert!(unknown.contains("no background command \"bzzzz\"") && unknown.contains(&id), "{unknown}");
}

#[tokio::test]
async fn bash_output_can_wait_for_output() {
    let place = Place::new();
    // A separate pipe each: a reopened pipe could still be connected to the previous writer, which may not have closed
    // it yet.
    for name in ["go", "on"] {
        rustix::fs::mkfifoat(rustix::fs::CWD, place.directory.path().join(name), 0o600.into()).expect("made");
    }
    let (id, _) =
        place.start("echo one; read x < go; echo two $x; read x < on; printf 'ready: 80'; exit 3").await;
    let write = |name: &str, text: &'static str| {
        let path = place.directory.path().join(name);
        tokio::task::spawn_blocking(move || fs::write(path, text).expect("written"))
    };
    let (read, _) = tokio::join!(place.output(&id, json!({"wait": 20})), write("go", "more\n"));
    assert!(read.contains("two more"), "{read}");
    let wait = json!({"wait": 20, "until": "^ready: \\d+$"});
    let (read, _) = tokio::join!(place.output(&id, wait), write("on", "\n"));
    assert!(read.contains("ready: 80"), "{read}");
    let read = place.output(&id, json!({"wait": 20, "until": "never"})).await;
    assert!(read.contains("has ended: exit code 3") || read.contains("(no new output)"), "{read}");
    let wrong = place.output(&id, json!({"until": "("})).await;
    assert!(wrong.contains("not a regular expression"), "{wrong}");
}

#[tokio::test]
async fn a_command_that_fails_at_once_reports_it_in_the_first_result() {
    let place = Place::new();
    let (_, said) = place.start("echo no such thing >&2; exit 7").await;
    assert!(said.contains("no such thing") && said.contains("has ended: exit code 7"), "{said}");
    assert_eq!(place.background.running(), 0);
}

#[tokio::test]
async fn the_number_of_background_commands_is_limited() {
    let place = Place::new();
    let starts = (0..RUNNING_MAX).map(|_| place.start("sleep 60"));
    futures_util::future::join_all(starts).await;
    let input = json!({"description": "a test", "command": "sleep 60", "background": true});
    let result = place.run("bash", input).await;
    assert!(text(&result).contains("End one with bash_kill first"), "{}", text(&result));
}

#[tokio::test]
async fn unread_output_is_dropped_from_its_beginning() {
    let place = Place::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.directory.path().join("go"), 0o600.into()).expect("made");
    let (id, _) = place.start("read x < go; seq 500000; echo the end; sleep 60").await;
    fs::write(place.directory.path().join("go"), "\n").expect("written");
    // The output is not read until now; the command must finish anyway.
    let read = place.output(&id, json!({"wait": 20, "until": "the end"})).await;
    assert!(read.contains("499999\n500000\nthe end\n"), "{}", read.len());
    assert!(read.contains("bytes of its output before this are lost"), "{}", read.len());
}

#[tokio::test]
async fn ending_a_session_ends_its_commands() {
    let mut place = Place::new();
    place.start("trap '' TERM; echo $$ > pid; while :; do sleep 1; done").await;
    let number = place.number().await;
    place.background = Arc::default();
    assert_ends(number).await;
}

// Processes that leave their group.

/// A daemonized process leaves the process group of its command, and used to survive it.
#[tokio::test]
async fn a_daemonized_process_ends_with_its_command() {
    if does_without("finding processes that left their group") {
        return;
    }
    let place = Place::new();
    let result = place
        .bash(
            "setsid sh -c 'echo $$ > pid; exec sleep 600' < /dev/null > /dev/null 2>&1 & \
                             while [ ! -s pid ]; do sleep 0.01; done; echo done",
        )
        .await;
    assert_eq!(text(&result), "done\n[exit code 0]");
    assert_ends(place.number().await).await;
}

#[tokio::test]
async fn a_daemonized_process_ends_with_its_background_command() {
    if does_without("finding processes that left their group") {
        return;
    }
    let place = Place::new();
    let (id, _) = place.start("(setsid sh -c 'echo $$ > pid; exec sleep 600' &) ; sleep 600").await;
    let number = place.number().await;
    place.run("bash_kill", json!({"id": id})).await;
    assert_ends(number).await;
}

#[tokio::test]
async fn a_daemonized_process_ends_with_a_command_that_timed_out() {
    if does_without("finding processes that left their group") {
        return;
    }
    let place = Place::new();
    let line = "setsid sh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 1; done' & sleep 60";
    let result = place.run("bash", json!({"command": line, "timeout": 1})).await;
    assert!(text(&result).contains("time limit"), "{}", text(&result));
    assert_ends(place.number().await).await;
}

// Output that is not plain text.

#[tokio::test]
async fn any_output_becomes_text_of_bounded_size() {
    let place = Place::new();
    for (line, begins) in [
        ("head -c 3000000 /dev/urandom", ""),
        ("head -c 8000000 /dev/zero", ""),
        ("head -c 8000000 /dev/zero | tr '\\0' x", "xxxx"),
        ("printf 'a\\0b\\xff\\033[31mc\\033[0m\\r\\nd'", "ab\u{fffd}c\nd"),
        ("yes | head -c 16000000", "y\ny\n"),
    ] {
        let result = place.bash(line).await;
        assert_eq!(result.status, OutcomeStatus::Completed, "{line}");
        assert!(text(&result).len() < 40_000, "{line}: {}", text(&result).len());
        assert!(text(&result).starts_with(begins), "{line}");
        assert!(!text(&result).contains('\0') && !text(&result).contains('\u{1b}'), "{line}");
        let shown: usize = place.progress.lock().drain(..).map(|text| text.len()).sum();
        assert!(shown < 4_000_000, "{line}: {shown} bytes were passed on");
    }
}
