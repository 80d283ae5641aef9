//! Repositories that a command links to: the user's `git status` runs Git in each of them, with its settings.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Place, has_namespaces, has_program, text};
use epitome::thread::Mode;
use epitome::tools::ToolContext;
use epitome_test_harness::WITHIN;

/// Makes a commit in a new repository, and settings that name a program.
const REPOSITORY: &str = "git init -q -b main . && git config user.name a && git config user.email a@b && \
                          git commit -q --allow-empty -m one";
const EVIL: &str = "git config core.fsmonitor 'touch ran; false'";

fn sh(directory: &Path, line: &str) -> String {
    fs::create_dir_all(directory).expect("made");
    let output = Command::new("sh").args(["-ec", line]).current_dir(directory).output().expect("sh runs");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A workspace that is a repository; `None` if this system lacks something.
fn place() -> Option<Place> {
    if !has_namespaces() || !has_program("git") {
        return None;
    }
    let mut place = Place::new();
    let cwd = place.root.join("home/project");
    sh(&cwd, REPOSITORY);
    place.work_in(cwd);
    Some(place)
}

/// The arguments of a command that links `path` and then reports that in a pipe.
fn linking(place: &Place, path: &str, more: &str) -> Value {
    let cwd = &place.workspace.cwd;
    let commit = sh(cwd, "mkfifo linked; git rev-parse HEAD");
    let link = format!("git update-index --add --cacheinfo 160000,{},{path}", commit.trim());
    json!({"description": "a test", "command": format!("{link} && echo > linked; {more}")})
}

/// Waits until something has been written into the pipe.
async fn linked(place: &Place) {
    let pipe = place.workspace.cwd.join("linked");
    tokio::time::timeout(WITHIN, tokio::task::spawn_blocking(move || fs::read(pipe)))
        .await
        .expect("in time")
        .expect("no panic")
        .expect("readable");
}

/// Waits until a path exists.
async fn appears(path: &Path) {
    let there = async {
        while path.symlink_metadata().is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WITHIN, there).await.unwrap_or_else(|_| panic!("{} never appeared", path.display()));
}

/// A background command linked a repository whose settings named a program, and nothing examined it: the user's next
/// `git status` ran the program. Nor may the command have to end first.
#[tokio::test]
async fn settings_of_a_repository_linked_in_the_background_are_put_aside() {
    let Some(place) = place() else { return };
    let cwd = place.workspace.cwd.clone();
    sh(&cwd.join("sub"), &format!("{REPOSITORY} && {EVIL}"));
    let mut input = linking(&place, "sub", "read -r < linked");
    input["background"] = json!(true);
    let context = ToolContext {
        mode: Mode::Ask,
        sandbox: place.rules.clone().into(),
        ..ToolContext::bare(place.workspace.clone().into())
    };
    let bash = place.tools.get("bash").expect("a built-in tool");
    let (started, ()) = tokio::join!(bash.run(input, context.clone()), linked(&place));
    appears(&cwd.join("sub/.git/config.refused")).await;
    assert_eq!(context.background.running(), 1, "it still runs: {}", text(&started));
    sh(&cwd, "git status && test ! -e ran && test ! -e sub/ran");
}

/// The same after a call that the user cancelled: it ended before the check.
#[tokio::test]
async fn settings_of_a_repository_linked_by_a_cancelled_call_are_put_aside() {
    let Some(place) = place() else { return };
    let cwd = place.workspace.cwd.clone();
    sh(&cwd.join("sub"), &format!("{REPOSITORY} && {EVIL}"));
    let input = linking(&place, "sub", "read -r < linked");
    tokio::select! {
        result = place.call(Mode::Ask, input) => panic!("it waits: {result:?}"),
        () = linked(&place) => {}
    }
    appears(&cwd.join("sub/.git/config.refused")).await;
    sh(&cwd, "git status && test ! -e ran && test ! -e sub/ran");
}

/// The check was made only after commands that may change Git: one linked a directory, and the next command made a
/// repository in it.
#[tokio::test]
async fn a_repository_that_is_made_behind_a_link_is_examined() {
    let Some(place) = place() else { return };
    let cwd = place.workspace.cwd.clone();
    let commit = sh(&cwd, "git rev-parse HEAD");
    let link = format!("git update-index --add --cacheinfo 160000,{},sub", commit.trim());
    place.bash(&link).await;
    let make = "cp -r .git copy && mkdir sub && mv copy sub/.git && printf '[core]\\nfsmonitor = x\\n' > \
                        sub/.git/config";
    let made = place.bash(make).await;
    assert!(text(&made).contains("could make Git run a program: config"), "{}", text(&made));
    assert!(!cwd.join("sub/.git/config").exists(), "{}", text(&made));
}

/// A command linked the index to another repository of the user, through a symbolic link, an absolute path, or a `.git`
/// file. The check then renamed the settings of that repository.
#[tokio::test]
async fn a_link_to_a_repository_elsewhere_changes_nothing_there() {
    let Some(place) = place() else { return };
    let cwd = place.workspace.cwd.clone();
    let other = place.root.join("beside/other");
    sh(&other, &format!("{REPOSITORY} && {EVIL} && echo x > .git/hooks/pre-commit"));
    let config = fs::read(other.join(".git/config")).expect("it is there");
    let commit = sh(&cwd, "git rev-parse HEAD");
    let index_with = |path: &str| {
        format!(
            "git update-index --add --cacheinfo 160000,{},{} && sed -i 's,{},{path},' .git/index",
            commit.trim(),
            "x".repeat(path.len()),
            "x".repeat(path.len())
        )
    };
    let absolute = other.to_str().expect("UTF-8");
    let upwards = "../../beside/other";
    // A link that was there before is the user's.
    symlink(&other, cwd.join("mine")).expect("made");
    sh(&cwd, &index_with("mine"));
    let result = place.bash_on_git("true").await;
    assert!(cwd.join("mine").is_symlink(), "{}", text(&result));
    sh(&cwd, "rm -rf .git/index* mine");
    for (line, renamed) in [
        ("ln -s ../../beside/other link".to_owned() + " && " + &index_with("link"), "link"),
        ("ln -s ../../beside deep".to_owned() + " && " + &index_with("deep/other"), "deep"),
        (
            format!("mkdir file && echo 'gitdir: {absolute}/.git' > file/.git && {}", index_with("file")),
            "file/.git",
        ),
        (format!("mkdir own && echo 'gitdir: ../.git' > own/.git && {}", index_with("own")), "own/.git"),
        (index_with(absolute), ".git/index"),
        (index_with(upwards), ".git/index"),
    ] {
        let result = place.bash(&line).await;
        assert!(text(&result).contains("leads Git to"), "{line}: {}", text(&result));
        assert!(
            cwd.join(format!("{renamed}.refused")).symlink_metadata().is_ok(),
            "{line}: {}",
            text(&result)
        );
        assert!(cwd.join(renamed).symlink_metadata().is_err(), "{line}");
        assert_eq!(fs::read(other.join(".git/config")).expect("it is there"), config, "{line}");
        assert!(other.join(".git/hooks/pre-commit").exists() && cwd.join(".git/config").exists(), "{line}");
        sh(&cwd, "rm -rf .git/index* *.refused");
    }
}

/// Submodules and nested repositories that Git itself makes stay as they are.
#[tokio::test]
async fn ordinary_submodules_can_be_added() {
    let Some(place) = place() else { return };
    let cwd = place.workspace.cwd.clone();
    sh(&place.root.join("beside/lib"), REPOSITORY);
    for line in [
        "git -c protocol.file.allow=always submodule --quiet add ../../beside/lib lib && git commit -q -m two",
        "git -c protocol.file.allow=always clone -q ../../beside/lib inner && git add inner && git commit -q -m three",
    ] {
        let result = place.bash(line).await;
        assert!(text(&result).contains("[exit code 0]"), "{line}: {}", text(&result));
        assert!(!text(&result).contains("refused"), "{line}: {}", text(&result));
    }
    assert_eq!(sh(&cwd, "git status --porcelain; git -C lib log --format=%s"), "one\n");
}
