//! Things that a command could misuse while it runs: terminals of the user, files that others replace, and files of
//! other commands.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use epitome::thread::{Mode, OutcomeStatus};
use epitome::tools::{ToolContext, ToolResult};
use epitome_test_harness::WITHIN;
use serde_json::{Value, json};

use super::{Place, as_user, has, has_landlock, has_namespaces, has_program, hold, hold_on_git, text};
use epitome::tools::sandbox::support;

/// Waits until a file contains a text.
async fn says(path: &Path, words: &str) {
    let there = async {
        while !fs::read_to_string(path).is_ok_and(|text| text.contains(words)) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WITHIN, there).await.unwrap_or_else(|_| panic!("{}: no {words}", path.display()));
}

/// Begins a call of the shell.
fn begin(place: &Place, input: Value) -> tokio::task::JoinHandle<ToolResult> {
    let context = ToolContext {
        mode: Mode::Ask,
        sandbox: Arc::new(place.rules.clone()),
        ..ToolContext::bare(Arc::new(place.workspace.clone()))
    };
    tokio::spawn(place.tools.get("bash").expect("a built-in tool").run(input, context))
}

async fn ended(call: tokio::task::JoinHandle<ToolResult>) -> ToolResult {
    tokio::time::timeout(WITHIN, call).await.expect("in time").expect("no panic")
}

/// Makes the workspace a repository with a commit.
fn repository(place: &Place) {
    as_user(
        place,
        "rm -rf .git && git init -q -b main . && git config user.name a && git config user.email a@b && git commit -q \
         --allow-empty -m one",
    );
}

/// A command opened the terminal in which the user typed the password for `sudo`, read part of it, and wrote to the
/// screen.
#[tokio::test]
async fn a_command_has_terminals_of_its_own_and_not_those_of_the_user() {
    if !has_landlock() || !has_program("python3") {
        return;
    }
    let script = "import os, pty, sys; m, s = pty.openpty(); os.write(m, b'hunter2\\n'); print(os.ttyname(s), flush=True); \
                  sys.stdin.read()";
    let mut terminal = Command::new("python3");
    terminal.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = terminal.spawn().expect("python3 runs");
    let mut name = String::new();
    BufReader::new(terminal.stdout.as_mut().expect("piped")).read_line(&mut name).expect("it prints");
    assert!(name.starts_with("/dev/pts/"), "{name}");
    let place = Place::new();
    for attempt in ["head -c1 < $T", "echo owned > $T", "echo x > /dev/tty"] {
        let attempt = attempt.replace("$T", name.trim());
        let result = place.bash(&attempt).await;
        assert_eq!(result.status, OutcomeStatus::Failed, "{attempt}: {}", text(&result));
    }
    if has_namespaces() {
        let python = "python3 -c 'import os, pty; m, s = pty.openpty(); os.write(m, b\"x\\n\"); assert os.read(s, 9) == b\"x\\n\"'";
        let rows = [
            ("script", "script -qec 'test -t 1 && echo x > /dev/tty' /dev/null"),
            ("python3", python),
            ("python3", "python3 -c 'import pty; exit(pty.spawn([\"test\", \"-t\", \"0\"]))'"),
        ];
        for (_, line) in rows.into_iter().filter(|(program, _)| has_program(program)) {
            hold(&place, &[(line, true)]).await;
        }
    }
    drop(terminal.stdin.take());
    terminal.wait().expect("it ends");
}

/// Only `socket` was refused: one of a pair of datagram sockets sent to the sockets of daemons, such as that of the
/// system's log.
#[tokio::test]
async fn a_pair_of_sockets_reaches_no_daemon() {
    if !has("seccomp", support().filter) || !has_program("python3") {
        return;
    }
    let mut place = Place::new();
    let daemon = UnixDatagram::bind(place.workspace.cwd.join("daemon.sock")).expect("bound");
    daemon.set_nonblocking(true).expect("set");
    let pair = |kind: &str, then: &str| {
        format!("python3 -c 'from socket import *; a, b = socketpair(AF_UNIX, {kind}); {then}'")
    };
    let send = "a.sendto(b\"x\", \"daemon.sock\")";
    let through = "a.send(b\"x\"); assert b.recv(1) == b\"x\"";
    hold(
        &place,
        &[
            (&pair("SOCK_DGRAM", send), false),
            (&pair("SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC", send), false),
            (&pair("SOCK_RAW", send), false),
            (&pair("SOCK_STREAM", send), false),
            (&pair("SOCK_STREAM", through), true),
            (&pair("SOCK_SEQPACKET", through), true),
        ],
    )
    .await;
    assert!(daemon.recv(&mut [0]).is_err(), "nothing came");
    place.rules.unix_sockets = true;
    hold(&place, &[(&pair("SOCK_DGRAM", through), true)]).await;
}

/// The user saved `.envrc` in an editor, which renamed the new file over the old one. That removed the mount from a
/// running command, which then wrote into the file.
#[tokio::test]
async fn a_command_is_ended_when_a_file_that_is_protected_from_it_is_replaced() {
    if !has_namespaces() {
        return;
    }
    let write = "for i in 1 2 3; do echo evil >> .envrc; done; echo tried > tried; while :; do echo evil >> .envrc; \
                 sleep 0.05; done 2> /dev/null";
    for replace in ["echo saved > new; mv new .envrc", "rm .envrc", "mv .envrc away"] {
        let place = Place::new();
        let call = begin(&place, json!({"description": "a test", "command": write}));
        says(&place.workspace.cwd.join("tried"), "tried").await;
        as_user(&place, replace);
        let result = ended(call).await;
        let report = ".envrc was replaced while this command ran; the sandbox can't protect it any longer, so the command \
                      was ended]";
        assert!(text(&result).contains(report), "{replace}: {}", text(&result));
        assert_eq!(result.status, OutcomeStatus::Failed, "{replace}");
    }
}

/// Editors and builds replace files all the time, and a command may move the directory of a protected file.
#[tokio::test]
async fn other_files_and_moved_directories_end_no_command() {
    if !has_namespaces() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.workspace.cwd.join("sub")).expect("made");
    fs::write(place.workspace.cwd.join("sub/.envrc"), "").expect("written");
    let line = "mv sub other && echo x > new && mv new src/main.rs && touch begun && until [ -e go ]; do sleep 0.01; done; \
                echo reached the end";
    let call = begin(&place, json!({"description": "a test", "command": line}));
    says(&place.workspace.cwd.join("begun"), "").await;
    as_user(&place, "echo '# changed in place' >> .envrc; echo y > n; mv n src/main.rs; touch go");
    let result = ended(call).await;
    assert!(text(&result).contains("reached the end"), "{}", text(&result));
}

/// A harmless change of another command's settings replaced `.git/config`, and with it went the mount that protected
/// it from a command in the background: that one added a setting that names a program.
#[tokio::test]
async fn settings_are_not_replaced_while_another_command_may_change_the_repository() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let place = Place::new();
    repository(&place);
    let cwd = &place.workspace.cwd;
    let write = "touch begun; until [ -e go ] || { [ ! -L .git/config ] && printf '[core]\\n\\tfsmonitor = x\\n' >> \
                 .git/config; }; do sleep 0.01; done 2> /dev/null; true";
    let call = begin(&place, json!({"description": "a test", "command": write, "changes_git": true}));
    says(&cwd.join("begun"), "").await;
    let set = "git remote add up https://example.com/a.git";
    let refused = place.bash_on_git(set).await;
    let reason = "were not applied: another command that may change the repository is running]";
    assert!(text(&refused).contains(reason), "{}", text(&refused));
    fs::write(cwd.join("go"), "").expect("written");
    ended(call).await;
    let config = || fs::read_to_string(cwd.join(".git/config")).expect("it is there");
    assert!(!config().contains("fsmonitor") && !config().contains("example.com/a.git"), "{}", config());
    let applied = place.bash_on_git(set).await;
    assert!(config().contains("example.com/a.git"), "{}", text(&applied));
}

/// Copies of settings were in the directory for temporary files, which every command may change: one without permission
/// for Git added an address to the copy of another one, to which the user's next `git push` would have gone.
#[tokio::test]
async fn the_copy_of_settings_that_another_command_works_with_is_out_of_reach() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let mut place = Place::new();
    repository(&place);
    let staging = place.root.join("home/.cache/epitome/staging");
    let leftover = staging.join("git-0");
    fs::create_dir_all(&leftover).expect("made");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(48 * 60 * 60);
    fs::File::open(&leftover).and_then(|file| file.set_modified(long_ago)).expect("set");
    let cwd = place.workspace.cwd.clone();
    let line = "git config user.name b; touch begun; until [ -e go ]; do sleep 0.01; done";
    let call = begin(&place, json!({"description": "a test", "command": line, "changes_git": true}));
    says(&cwd.join("begun"), "").await;
    let entries = fs::read_dir(&staging).expect("it is there").flatten().map(|entry| entry.file_name());
    let copies: Vec<_> = entries.filter(|name| name.as_encoded_bytes().starts_with(b"git-")).collect();
    assert_eq!(copies.len(), 1, "those of a killed daemon were removed: {copies:?}");
    let attempt = "printf '[remote \"origin\"]\\n\\tpushurl = /evil\\n' >> $(readlink -f ~/.cache/epitome/staging/*/0/config)";
    hold(&place, &[(attempt, false), ("mkdir ~/.cache/epitome/staging/x", false)]).await;
    let workspace = place.workspace.clone();
    // In a session whose directory is the home, the copies are below the workspace's directory.
    place.work_in(place.root.join("home"));
    hold(
        &place,
        &[
            (attempt, false),
            ("touch ~/.cache/epitome/x", false),
            ("mv ~/.cache ~/c", false),
            ("mv ~/.cache/epitome ~/e", false),
        ],
    )
    .await;
    place.workspace = workspace;
    fs::write(cwd.join("go"), "").expect("written");
    ended(call).await;
    let config = fs::read_to_string(cwd.join(".git/config")).expect("it is there");
    assert!(config.contains("name = b") && !config.contains("evil"), "{config}");
}

/// Regression: where the home is below a directory for temporary files, it is read-only, and so were the copies of settings
/// for the command that may change them.
#[tokio::test]
async fn settings_are_changed_with_a_home_below_a_directory_for_temporary_files() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let mut place = Place::new();
    repository(&place);
    place.rules.temporary = vec![place.root.clone()];
    hold_on_git(&place, &[("git config user.name b", true)]).await;
    let config = fs::read_to_string(place.workspace.cwd.join(".git/config")).expect("it is there");
    assert!(config.contains("name = b"), "{config}");
}

/// Only the hooks that the settings of the session's own directory name were protected: not those of a linked worktree,
/// whose settings are elsewhere, of a repository below, or of the one that the session's directory is part of.
#[tokio::test]
async fn hooks_that_settings_name_are_protected_in_every_repository() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let mut place = Place::new();
    place.work_in(place.root.join("beside"));
    as_user(
        &place,
        "git init -q -b main main && cd main && git config user.name a && git config user.email a@b && mkdir hooks other src
         for d in hooks other src; do echo '#!/bin/sh' > $d/pre-commit; chmod +x $d/pre-commit; done
         git add . && git commit -q -m one && git config core.hooksPath hooks && git config --add core.hooksPath other
         git config --add core.hooksPath hooks && git worktree add -q ../tree
         git config extensions.worktreeConfig true && git -C ../tree config --worktree core.hooksPath src",
    );
    let root = place.root.clone();
    for (cwd, hooks) in [
        ("beside/main", "hooks"),
        ("beside/main", "other"),
        ("beside/tree", "hooks"),
        ("beside/tree", "src"),
        ("beside", "main/hooks"),
        ("beside", "tree/hooks"),
        ("beside", "tree/src"),
        ("beside/main/hooks", "."),
    ] {
        place.work_in(root.join(cwd));
        hold(
            &place,
            &[(&format!("echo touch ran >> {hooks}/pre-commit"), false), (&format!("ls {hooks}"), true)],
        )
        .await;
    }
    place.work_in(root.join("beside/tree"));
    hold(&place, &[("echo x > new", true)]).await;
}
