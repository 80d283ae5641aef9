//! Tests with a shell script as the server. It reports one error for each text that contains `bad`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Map;
use tempfile::TempDir;

use super::*;
use epitome_tools::question::{QuestionMessage, QuestionSupport};

/// Answers `initialize`, whose id is 1, and publishes an error for each text that contains `bad`.
const SERVER: &str = r#"#!/bin/sh
echo started >> "$0.starts"
emit() { printf 'Content-Length: %d\r\n\r\n%s' "${#1}" "$1"; }
emit '{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}'
while IFS= read -r line; do
  case "$line" in
  *textDocument/didOpen*|*textDocument/didChange*)
    uri=$(printf '%s' "$line" | sed 's/.*"uri":"\([^"]*\)".*/\1/')
    version=$(printf '%s' "$line" | sed 's/.*"version":\([0-9]*\).*/\1/')
    found=
    case "$line" in *bad*) found='{"range":{"start":{"line":0,"character":0},"end":{"line":0,"character":3}},"severity":1,"code":"E7","message":"this is bad"}';; esac
    emit '{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":"'"$uri"'","version":'"$version"',"diagnostics":['"$found"']}}' ;;
  *textDocument/didClose*) echo closed >> "$0.closes" ;;
  esac
done
"#;

/// The same, but like real servers it publishes only for the last of several texts that arrive quickly.
const DEBOUNCING_SERVER: &str = r#"#!/usr/bin/env bash
emit() { printf 'Content-Length: %d\r\n\r\n%s' "${#1}" "$1"; }
emit '{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}'
last=
while :; do
  IFS= read -r -t 0.2 line
  status=$?
  case "$line" in *textDocument/didOpen*|*textDocument/didChange*) last=$line ;; esac
  if [ $status -gt 128 ] && [ -n "$last" ]; then
    uri=$(printf '%s' "$last" | sed 's/.*"uri":"\([^"]*\)".*/\1/')
    version=$(printf '%s' "$last" | sed 's/.*"version":\([0-9]*\).*/\1/')
    found=
    case "$last" in *bad*) found='{"range":{"start":{"line":0,"character":0},"end":{"line":0,"character":3}},"severity":1,"code":"E7","message":"this is bad"}';; esac
    emit '{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":"'"$uri"'","version":'"$version"',"diagnostics":['"$found"']}}'
    last=
  elif [ $status -ne 0 ] && [ $status -le 128 ]; then
    exit
  fi
done
"#;

/// Reports that it loads the workspace, and publishes an empty list for the first text. Finds an error, and has loaded the
/// workspace, with the second one.
const LOADING_SERVER: &str = r#"#!/bin/sh
emit() { printf 'Content-Length: %d\r\n\r\n%s' "${#1}" "$1"; }
progress() { emit '{"jsonrpc":"2.0","method":"$/progress","params":{"token":"load","value":{"kind":"'"$1"'"}}}'; }
emit '{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}'
progress begin
while IFS= read -r line; do
  found=
  case "$line" in
  *textDocument/didOpen*) ;;
  *textDocument/didChange*)
    found='{"range":{"start":{"line":0,"character":0},"end":{"line":0,"character":3}},"severity":1,"code":"E7","message":"this is bad"}'
    progress end ;;
  *) continue ;;
  esac
  uri=$(printf '%s' "$line" | sed 's/.*"uri":"\([^"]*\)".*/\1/')
  emit '{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":{"uri":"'"$uri"'","diagnostics":['"$found"']}}'
done
"#;

/// Answers `initialize`, and reads nothing.
const DEAF_SERVER: &str = r#"#!/bin/sh
echo $$ > "$0.pid"
body='{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}'
printf 'Content-Length: %d\r\n\r\n%s' "${#body}" "$body"
exec sleep 600
"#;

struct GoProject {
    directory: TempDir,
    servers: LanguageServers,
}

impl GoProject {
    fn new() -> GoProject {
        GoProject::with(SERVER)
    }

    fn with(server: &str) -> GoProject {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["bin", "work"] {
            fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        let program = directory.path().join("bin/gopls");
        fs::write(&program, server).expect("a script");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it can be run");
        GoProject { directory, servers: LanguageServers::default() }
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.work().join("a.go");
        fs::write(&path, text).expect("a file");
        path
    }

    fn work(&self) -> PathBuf {
        fs::canonicalize(self.directory.path().join("work")).expect("it is there")
    }

    fn starts(&self) -> usize {
        let log = self.directory.path().join("bin/gopls.starts");
        fs::read_to_string(log).unwrap_or_default().lines().count()
    }

    fn watch(&self, start: StartServers, questions: QuestionSender) -> EditWatch {
        let path = format!("{}:/usr/bin:/bin", self.directory.path().join("bin").display());
        let workspace = Workspace::new(self.work(), Vec::new(), vec![("PATH".into(), path.into())].into());
        let settings =
            DiagnosticsSettings { start, wait: Duration::from_secs(60), ..DiagnosticsSettings::default() };
        EditWatch::new(
            self.servers.clone(),
            ServerContext {
                workspace: Arc::new(workspace),
                sandbox: Arc::default(),
                settings,
                reaper: Arc::new(Reaper::disabled()),
                questions,
            },
        )
    }
}

/// Makes an edit and returns the news after it.
async fn edit(watch: &EditWatch, path: &Path, before: Option<&str>, text: &str) -> Option<String> {
    fs::write(path, text).expect("a file");
    let noted = watch.noted(Edit { path: path.to_path_buf(), before: before.map(str::to_owned) });
    watch.check(&noted).await.expect("it is checked");
    watch.settle().await;
    watch.take_news()
}

#[tokio::test]
async fn new_errors_are_reported_once() {
    let project = GoProject::new();
    let watch = project.watch(StartServers::Always, QuestionSender::new().0);
    let path = project.file("fine()\n");
    let news = edit(&watch, &path, Some("fine()\n"), "bad()\n").await.expect("there is an error");
    assert!(news.contains("gopls:\na.go:1:1: error [E7]: this is bad"), "{news}");
    assert_eq!(watch.take_news(), None);
    assert_eq!(edit(&watch, &path, Some("bad()\n"), "bad() \n").await, None, "the model knows it");
    assert_eq!(edit(&watch, &path, Some("bad() \n"), "fine()\n").await, None);
    assert!(edit(&watch, &path, Some("fine()\n"), "bad()\n").await.is_some(), "it is back");
}

#[tokio::test]
async fn earlier_errors_of_a_file_are_not_reported() {
    let project = GoProject::new();
    let watch = project.watch(StartServers::Always, QuestionSender::new().0);
    let path = project.file("bad()\n");
    assert_eq!(edit(&watch, &path, Some("bad()\n"), "bad()\nmore()\n").await, None);
}

#[tokio::test]
async fn an_error_fixed_by_a_second_edit_is_not_reported() {
    let project = GoProject::new();
    let watch = project.watch(StartServers::Always, QuestionSender::new().0);
    let path = project.file("bad()\n");
    let edit = |before: &str| Edit { path: path.clone(), before: Some(before.to_owned()) };
    watch.check(&watch.noted(edit("fine()\n"))).await.expect("it is checked");
    fs::write(&path, "good()\n").expect("a file");
    watch.check(&watch.noted(edit("bad()\n"))).await.expect("it is checked");
    assert_eq!(watch.take_news(), None);
}

/// Regression test: a model edited a file twice in one reply, and the first edit broke it. Both checks sent their text
/// before the edit, and servers publish only for the later of two texts that arrive quickly. So the errors of the first
/// edit were taken for old ones, and the model never learned of them.
#[tokio::test]
async fn errors_of_the_first_of_two_edits_are_reported() {
    let project = GoProject::with(DEBOUNCING_SERVER);
    let watch = project.watch(StartServers::Always, QuestionSender::new().0);
    let path = project.file("bad()\nmore()\n");
    let edit = |before: &str| watch.noted(Edit { path: path.clone(), before: Some(before.to_owned()) });
    let (first, second) = (edit("fine()\n"), edit("bad()\n"));
    let (first, second) = tokio::join!(watch.check(&first), watch.check(&second));
    first.and(second).expect("both are checked");
    let news = watch.take_news().expect("there is an error");
    assert!(news.contains("this is bad"), "{news}");
}

/// Regression test: a server that stopped reading made the tool and all checks wait forever, and with them a run. The
/// server itself was never ended.
#[tokio::test]
async fn a_server_that_stops_reading_is_ended() {
    let project = GoProject::with(DEAF_SERVER);
    let watch = project.watch(StartServers::Always, QuestionSender::new().0);
    let path = project.file("");
    let (_, client, _) = watch.open(&path).await.expect("it starts");
    let pid = fs::read_to_string(project.directory.path().join("bin/gopls.pid")).expect("it is running");
    // From here on, each timeout passes at once.
    tokio::time::pause();
    for n in 0..client::OUTBOX_MAX {
        // More than the buffer of a socket.
        fs::write(&path, format!("{n}{}", "x".repeat(500_000))).expect("a file");
        let noted = watch.noted(Edit { path: path.clone(), before: None });
        watch.check(&noted).await.expect_err("it reports nothing");
        if client.has_ended() {
            break;
        }
    }
    assert!(client.has_ended());
    assert!(client.request("textDocument/definition", json!({})).await.is_err());
    let now = tokio::time::Instant::now();
    watch.settle().await;
    assert_eq!(now.elapsed(), Duration::ZERO, "no check is in progress");
    let ends_by = std::time::Instant::now() + Duration::from_secs(20);
    while Path::new("/proc").join(pid.trim()).exists() {
        assert!(std::time::Instant::now() < ends_by, "its process runs on");
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn only_so_many_files_are_open_in_a_server() {
    let project = GoProject::new();
    let watch = project.watch(StartServers::Always, QuestionSender::new().0);
    let path = project.file("bad()\n");
    let (_, client, _) = watch.open(&path).await.expect("it starts");
    for n in 0..=client::OPEN_MAX {
        client.check(&project.work().join(format!("{n}.go")), "go", "fine()\n", Duration::ZERO).await;
    }
    // Its answer comes after everything before.
    watch.findings(&path).await.expect("an answer");
    let closes = fs::read_to_string(project.directory.path().join("bin/gopls.closes"));
    assert_eq!(closes.expect("one was closed").lines().count(), 1);
}

#[tokio::test]
async fn sessions_of_a_workspace_share_a_server() {
    let project = GoProject::new();
    let path = project.file("bad()\n");
    for _ in 0..2 {
        let watch = project.watch(StartServers::Always, QuestionSender::new().0);
        let (_, found) = watch.findings(&path).await.expect("an answer");
        assert_eq!(found.expect("it was checked").len(), 1);
    }
    assert_eq!(project.starts(), 1);
}

/// A server can run code of the repository.
#[tokio::test]
async fn no_server_is_started_before_the_user_agrees() {
    let project = GoProject::new();
    let path = project.file("bad()\n");
    // No client can be asked.
    let unasked = project.watch(StartServers::Ask, QuestionSender::new().0);
    assert!(unasked.findings(&path).await.is_err_and(|why| why.to_string().contains("did not agree")));
    let never = project.watch(StartServers::Never, QuestionSender::new().0);
    assert!(never.findings(&path).await.is_err());
    assert_eq!(project.starts(), 0);
    let (questions, mut asked) = QuestionSender::new();
    questions.set_shows(QuestionSupport { forms: true, urls: false });
    let user = tokio::spawn(async move {
        let mut count = 0;
        while let Some(message) = asked.recv().await {
            let QuestionMessage::Question { question, reply } = message else { continue };
            assert!(
                question.message.contains("gopls") && question.message.contains("code of the repository")
            );
            count += 1;
            let answer = Map::from_iter([("start".to_owned(), "yes".into())]);
            reply.send(QuestionReply::Accepted(answer)).expect("somebody waits");
        }
        count
    });
    let watch = project.watch(StartServers::Ask, questions);
    for _ in 0..2 {
        watch.findings(&path).await.expect("an answer");
    }
    drop(watch);
    assert_eq!((user.await.expect("an end"), project.starts()), (1, 1));
}

/// Programs of the repository are untrusted.
#[tokio::test]
async fn servers_in_the_workspace_are_not_used() {
    let project = GoProject::new();
    let path = project.file("bad()\n");
    fs::rename(project.directory.path().join("bin/gopls"), project.work().join("gopls"))
        .expect("it is moved");
    let environment = vec![("PATH".into(), format!("{}:/usr/bin:/bin", project.work().display()).into())];
    let workspace = Workspace::new(project.work(), Vec::new(), environment.into());
    assert!(known::for_file(&path, &workspace, None).is_none());
}

/// Regression test: servers that were ended because nobody used them counted as crashed. After four breaks of ten minutes,
/// the model learned of no errors until the daemon was restarted.
#[test]
fn only_crashes_count_against_a_server() {
    let servers = LanguageServers::default();
    let key = (PathBuf::from("/work"), "gopls");
    for (has_crashed, counted) in [(false, None), (true, Some(&1))] {
        let mut state = servers.state.lock();
        state.starts.insert(key.clone(), 1);
        state.running.insert(key.clone(), Arc::default());
        assert!(state.end(&key, has_crashed).is_some());
        assert_eq!(state.starts.get(&key), counted);
    }
}

/// Regression test: a question that nobody answered kept all other workspaces waiting too.
#[tokio::test]
async fn a_question_about_one_workspace_does_not_delay_another() {
    let project = GoProject::new();
    let path = project.file("bad()\n");
    let (questions, mut asked) = QuestionSender::new();
    questions.set_shows(QuestionSupport { forms: true, urls: false });
    let watch = project.watch(StartServers::Ask, questions);
    let waiting = tokio::spawn(async move { watch.findings(&path).await.is_ok() });
    let unanswered = asked.recv().await.expect("a question");

    let other = GoProject { servers: project.servers.clone(), ..GoProject::new() };
    let path = other.file("bad()\n");
    let unasked = other.watch(StartServers::Ask, QuestionSender::new().0);
    assert!(unasked.findings(&path).await.is_err_and(|why| why.to_string().contains("did not agree")));
    drop(unanswered);
    assert!(!waiting.await.expect("no panic"));
}

/// Regression test: rust-analyzer publishes an empty list before it has looked. The model read that a file had no errors,
/// and that a name was used nowhere else.
#[tokio::test]
async fn an_empty_list_of_a_server_that_loads_the_workspace_says_nothing() {
    let project = GoProject::with(LOADING_SERVER);
    let watch = project.watch(StartServers::Always, QuestionSender::new().0);
    let path = project.file("fine()\n");
    let (_, client, text) = watch.open(&path).await.expect("it starts");
    client.check(&path, "go", &text, client::QUIET * 100).await.expect("it publishes an empty list");
    assert!(!client.is_idle_within(Duration::ZERO).await);
    // From here on, each timeout passes at once.
    tokio::time::pause();
    assert!(watch.findings(&path).await.expect("an answer").1.is_none());
    tokio::time::resume();
    project.file("bad()\n");
    let (_, found) = watch.findings(&path).await.expect("an answer");
    assert_eq!(found.expect("it was checked").len(), 1);
    assert!(client.is_idle_within(Duration::ZERO).await);
}

/// Regression test: gopls shows an error of `go.mod` as progress, until it is corrected. Each answer waited a minute for the end
/// of that, and said that the workspace was still being loaded.
#[tokio::test]
async fn a_workspace_that_can_not_be_loaded_is_not_waited_for() {
    let failure = r#"{"kind":"begin","title":"Error loading workspace","message":"unknown directive"}"#;
    let progress =
        format!(r#"{{"jsonrpc":"2.0","method":"$/progress","params":{{"token":"1","value":{failure}}}}}"#);
    let server = SERVER.replace("while IFS", &format!("emit '{progress}'\nwhile IFS"));
    let project = GoProject::with(&server);
    let watch = project.watch(StartServers::Always, QuestionSender::new().0);
    let path = project.file("bad()\n");
    let (_, client, text) = watch.open(&path).await.expect("it starts");
    client.check(&path, "go", &text, client::QUIET * 100).await.expect("it publishes an error");
    assert!(client.is_idle_within(Duration::ZERO).await);
    let (_, found) = watch.findings(&path).await.expect("an answer");
    assert_eq!(found.expect("it was checked").len(), 1);
}
