//! Sessions in Git worktrees, with the built program and the installed Git.

use std::path::{Path, PathBuf};
use std::process::Command;

use epitome_test_harness::agent::{Agent, agent_text, obey};
use epitome_test_harness::user::User;
use serde_json::json;

/// A user whose project is a repository with one commit; `None` if Git is not installed.
fn user() -> Option<User> {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("skipped: Git is not installed");
        return None;
    }
    let user = User::with_model(obey);
    user.write("project/parser.txt", "one\n");
    git(&user.project(), &["init", "--quiet", "--initial-branch=main"]);
    for (key, value) in [("user.name", "Ann"), ("user.email", "ann@example.com")] {
        git(&user.project(), &["config", key, value]);
    }
    commit(&user.project(), "first");
    Some(user)
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let done = Command::new("git")
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("Git runs");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("it is text")
}

fn commit(directory: &Path, message: &str) {
    git(directory, &["add", "--all"]);
    git(directory, &["commit", "--quiet", "--message", message]);
}

fn worktree(user: &User, name: &str) -> PathBuf {
    user.home().join("project.worktrees").join(name)
}

/// The answer to `/worktree merge` or `/worktree discard` in the newest session of a worktree.
fn finished(user: &User, action: &str, name: &str) -> String {
    let ran = user.run(&["run", "--worktree", name, "--follow", &format!("/worktree {action}")]);
    ran.out + &ran.err
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn two_sessions_work_at_once_and_one_is_merged_and_one_thrown_away() {
    let Some(user) = user() else { return };
    for name in ["parser", "docs"] {
        let made = user.run(&[
            "run",
            "--mode",
            "full",
            "--worktree",
            name,
            &format!("run echo {name} > {name}.txt"),
        ]);
        assert!(made.err.contains(&format!("with the branch epitome/{name}")), "{made:?}");
        made.ok();
    }
    assert!(!user.project().join("parser.txt.new").exists() && !user.project().join("docs.txt").exists());
    let listed = user.run(&["sessions", "list"]).ok();
    for name in ["parser", "docs"] {
        assert!(listed.contains(&format!("project.worktrees/{name} · worktree {name}\n")), "{listed}");
    }

    // The same name continues there, in the newest session if that is wanted.
    let again =
        user.run(&["run", "--mode", "full", "--worktree", "parser", "--follow", "run git status --short"]);
    assert!(!again.err.contains("made the worktree"), "{again:?}");
    assert_eq!(user.run(&["sessions", "list", "--json"]).objects().len(), 2);

    // Nothing that is not committed gets lost, in either way.
    let refused = finished(&user, "merge", "parser");
    assert!(refused.contains("1 change in the worktree is not committed"), "{refused:?}");
    assert_eq!(read(worktree(&user, "parser").join("parser.txt")), "parser\n");
    commit(&worktree(&user, "parser"), "repair the parser");
    let merged = finished(&user, "merge", "parser");
    assert!(merged.contains("Merged epitome/parser into main"), "{merged}");
    assert_eq!(read(user.project().join("parser.txt")), "parser\n");

    commit(&worktree(&user, "docs"), "describe the parser");
    let tip = git(&worktree(&user, "docs"), &["rev-parse", "HEAD"]);
    std::fs::write(worktree(&user, "docs").join("new.txt"), "not committed\n").expect("it is written");
    let thrown = finished(&user, "discard", "docs");
    assert!(thrown.contains(&format!("git branch epitome/docs {}", tip.trim())), "{thrown}");
    git(&user.project(), &["branch", "restored", tip.trim()]);
    git(&user.project(), &["stash", "apply", "--quiet"]);
    assert_eq!(read(user.project().join("new.txt")), "not committed\n");

    // Nothing else is left.
    assert_eq!(git(&user.project(), &["worktree", "list"]).lines().count(), 1);
    assert_eq!(git(&user.project(), &["branch", "--list", "epitome/*"]), "");
    assert!(!user.home().join("project.worktrees").exists());
    assert!(!read(user.project().join(".git/config")).contains("epitome"));
}

#[test]
fn a_merge_that_conflicts_or_would_mix_with_changes_changes_nothing() {
    let Some(user) = user() else { return };
    user.run(&["run", "--worktree", "parser", "say hello"]).ok();
    std::fs::write(worktree(&user, "parser").join("parser.txt"), "two\n").expect("it is written");
    commit(&worktree(&user, "parser"), "second");

    user.write("project/parser.txt", "mine\n");
    let refused = finished(&user, "merge", "parser");
    assert!(refused.contains("commit or stash them first") && refused.contains("parser.txt"), "{refused:?}");
    commit(&user.project(), "mine");
    let head = git(&user.project(), &["rev-parse", "HEAD"]);
    let refused = finished(&user, "merge", "parser");
    assert!(refused.contains("change the same lines") && refused.contains("parser.txt"), "{refused:?}");
    assert_eq!(git(&user.project(), &["rev-parse", "HEAD"]), head);
    assert_eq!(git(&user.project(), &["status", "--short"]), "");
    assert_eq!(read(worktree(&user, "parser").join("parser.txt")), "two\n");

    git(&user.project(), &["switch", "--quiet", "--create", "other"]);
    let refused = finished(&user, "merge", "parser");
    assert!(refused.contains("the branch main is not checked out anywhere"), "{refused:?}");
}

/// Regression: Git overwrites ignored files without a word when a merge brings a file of the same name, so a merge could
/// replace the keys in `.env`.
#[test]
fn a_merge_spares_files_that_git_does_not_keep() {
    let Some(user) = user() else { return };
    user.write("project/.gitignore", ".env\ndata/\n");
    commit(&user.project(), "ignore");
    user.write("project/.env", "KEY=mine\n");
    user.write("project/data/db", "rows\n");
    user.run(&["run", "--worktree", "parser", "say hello"]).ok();
    let at = worktree(&user, "parser");
    std::fs::write(at.join(".env"), "KEY=example\n").expect("it is written");
    std::fs::write(at.join("data"), "a file\n").expect("it is written");
    git(&at, &["add", "--force", ".env", "data"]);
    commit(&at, "add examples");
    let refused = finished(&user, "merge", "parser");
    assert!(refused.contains("- `.env`") && refused.contains("- `data`"), "{refused:?}");
    assert_eq!(read(user.project().join(".env")), "KEY=mine\n");
    assert_eq!(read(user.project().join("data/db")), "rows\n");
}

/// Regression: a worktree whose base branch was deleted could never be removed, and one whose base had the name of a tag
/// could neither be shown nor merged.
#[test]
fn a_base_may_be_deleted_and_may_have_the_name_of_a_tag() {
    let Some(user) = user() else { return };
    git(&user.project(), &["switch", "--quiet", "--create", "feature"]);
    git(&user.project(), &["tag", "feature"]);
    for name in ["parser", "docs"] {
        user.run(&["run", "--worktree", name, "say hello"]).ok();
        std::fs::write(worktree(&user, name).join(format!("{name}.txt")), "two\n").expect("it is written");
        commit(&worktree(&user, name), name);
    }
    let merged = finished(&user, "merge", "parser");
    assert!(merged.contains("are removed"), "{merged}");
    git(&user.project(), &["switch", "--quiet", "main"]);
    git(&user.project(), &["branch", "--quiet", "-D", "feature"]);
    let thrown = finished(&user, "discard", "docs");
    assert!(thrown.contains("git branch epitome/docs"), "{thrown}");
}

/// Regression: `/worktree merge` removed a worktree in which another session was at work; only the command line looked.
#[test]
fn a_worktree_in_which_a_turn_runs_is_left_alone() {
    let Some(user) = user() else { return };
    let mut agent = user.start();
    let session = user.new_session(&mut agent);
    agent.turn(&session, "/worktree parser");
    let cwd = worktree(&user, "parser");
    let opened = agent.call("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
    let session = opened["sessionId"].as_str().expect("an id").to_owned();
    let prompt = agent.prompt(&session, "half");
    agent.hear("The first half, ");
    // The command of another session there leaves it alone.
    let mut other = user.start();
    let opened = other.call("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
    let second = opened["sessionId"].as_str().expect("an id").to_owned();
    let (refused, _) = other.turn(&second, "/worktree merge");
    assert!(agent_text(&refused).contains(&format!("session {session} is at work there")), "{refused:?}");
    other.close_input();
    agent.cancel(&session);
    agent.answer(prompt);
    finished(&user, "discard", "parser");
    assert!(!cwd.exists());
    agent.close_input();
}

/// The worktree of a submodule was made below `.git/modules` of the repository around it.
#[test]
fn the_worktree_of_a_submodule_lies_next_to_it() {
    let Some(user) = user() else { return };
    let library = user.home().join("library");
    git(&user.home(), &["clone", "--quiet", "project", "library"]);
    let source = library.to_string_lossy();
    let from_disk = "protocol.file.allow=always";
    git(&user.project(), &["-c", from_disk, "submodule", "--quiet", "add", &source, "sub"]);
    let mut command = user.command(&["run", "--mode", "full", "--worktree", "x", "run echo here > x.txt"]);
    let ran = command.current_dir(user.project().join("sub")).output().expect("it runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(read(user.project().join("sub.worktrees/x/x.txt")), "here\n");
}

#[test]
fn errors_name_what_is_in_the_way() {
    let Some(user) = user() else { return };
    git(&user.project(), &["branch", "epitome/taken"]);
    user.write("project.worktrees/there/file", "");
    user.write("elsewhere/file", "");
    let elsewhere = user.home().join("elsewhere").display().to_string();
    for (arguments, expected) in [
        (&["--worktree", "taken"][..], "the branch epitome/taken exists already"),
        (&["--worktree", "there"], "there exists already: choose another name"),
        (&["--worktree", "../up"], "can't be the name of a worktree"),
        (&["--worktree", "x", "--cwd", &elsewhere], "elsewhere is not in a Git repository"),
        (&["--worktree", "x", "--resume", "s_1"], "cannot be used with"),
    ] {
        let refused = user.run(&[&["run"], arguments, &["say hello"]].concat());
        assert!(refused.code != Some(0) && refused.err.contains(expected), "{arguments:?}: {refused:?}");
    }
    assert!(user.model().requests().is_empty(), "nothing was paid for");
    let made_by_hand = user.home().join("by-hand").display().to_string();
    git(&user.project(), &["worktree", "add", "--quiet", "-b", "epitome/mine", &made_by_hand]);
    let refused = finished(&user, "discard", "mine");
    assert!(refused.contains("the branch epitome/mine exists already"), "{refused:?}");
    assert!(Path::new(&made_by_hand).exists());
}

#[test]
fn a_card_asks_what_happens_to_the_worktree_of_a_session() {
    let Some(user) = user() else { return };
    let mut agent = Agent::spawn(user.agent_command(&[]));
    let capabilities = json!({ "elicitation": { "form": {} } });
    agent.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities }));
    let session = user.new_session(&mut agent);
    let (made, _) = agent.turn(&session, "/worktree parser");
    assert!(agent_text(&made).contains("Made the worktree"), "{made:?}");
    let cwd = worktree(&user, "parser");
    std::fs::write(cwd.join("parser.txt"), "two\n").expect("it is written");
    commit(&cwd, "second");
    let opened = agent.call("session/new", json!({ "cwd": cwd, "mcpServers": [] }));
    let session = opened["sessionId"].as_str().expect("an id").to_owned();

    for (action, expected) in [("keep", "stays as it is"), ("merge", "Merged epitome/parser into main")] {
        let prompt = agent.prompt(&session, "/worktree");
        let asked =
            agent.until("a card", |message| message["method"] == "elicitation/create").pop().expect("it");
        let text = asked["params"]["message"].as_str().expect("a text");
        assert!(text.contains("made from main") && text.contains("second"), "{text}");
        let answer = json!({ "action": "accept", "content": { "action": action } });
        agent.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer }));
        let (updates, answer) = agent.answer(prompt);
        assert!(agent_text(&updates).contains(expected), "{updates:?}");
        assert_eq!(answer["result"]["stopReason"], "end_turn");
        assert_eq!(cwd.exists(), action == "keep");
    }
    assert_eq!(read(user.project().join("parser.txt")), "two\n");
    agent.close_input();
}
