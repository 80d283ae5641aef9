//! No command outlives its turn, session or agent, however these end.

use epitome_test_harness::agent::{Agent, obey, stop_reason};
use epitome_test_harness::user::{User, program};
use epitome_test_harness::{does_without, within};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

/// A unique sleep duration, by which the command is found.
fn long_time() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("1000.{:07}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The number of living processes with this text in their arguments. Zombies have no arguments.
fn processes_with(marker: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let arguments = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    arguments.filter(|arguments| String::from_utf8_lossy(arguments).contains(marker)).count()
}

/// The number of living processes with this home in their environment: agents, daemons, and all their descendants.
pub fn processes_of(home: &Path) -> usize {
    let home = home.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = entries.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
    environments.filter(|environment| String::from_utf8_lossy(environment).contains(home)).count()
}

/// Has a hook start a sleeper in a turn, ends the turn with `end`, and asserts that all processes are gone.
fn sleeper_of_hook_ends_by(script: &str, end: impl FnOnce(&mut Agent, &str)) {
    let user = super::user(obey);
    let marker = long_time();
    let folder = user.own().join("hooks");
    std::fs::create_dir(&folder).unwrap();
    let hook = folder.join("sleeps");
    std::fs::write(&hook, script.replace("MARKER", &marker)).unwrap();
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    agent.prompt(&session, "say hello");
    let sleeper = format!("sleep\0{marker}");
    within("the sleeper", || (processes_with(&sleeper) == 1).then_some(()));
    end(&mut agent, &session);
    within("the end of the sleeper", || (processes_with(&marker) == 0).then_some(()));
}

/// A hook that is still running, with a child that ignores SIGTERM.
const SLEEPS: &str = "#!/bin/sh
if [ \"$1\" = hook ]; then echo user.message; exit; fi
trap '' TERM
sleep MARKER
";

/// A resident hook that answers, with a child that keeps running.
const STAYS: &str = r#"#!/bin/sh
if [ "$1" = hook ]; then echo '{"protocol":2,"events":["user.message"],"mode":"resident"}'; exit; fi
trap '' TERM
sleep MARKER &
while IFS= read -r line; do
    id=${line#'{"id":'}
    echo '{"id":'"${id%%,*}"',"result":{}}'
done
wait
"#;

#[test]
fn running_hooks_end_with_the_turn_the_session_and_the_agent() {
    sleeper_of_hook_ends_by(SLEEPS, |agent, session| agent.cancel(session));
    sleeper_of_hook_ends_by(SLEEPS, |agent, session| {
        agent.request("session/close", json!({ "sessionId": session }));
    });
    sleeper_of_hook_ends_by(SLEEPS, |agent, _| agent.close_input());
    sleeper_of_hook_ends_by(SLEEPS, |agent, _| agent.kill_now());
}

#[test]
fn resident_hooks_end_with_the_session_and_the_agent() {
    sleeper_of_hook_ends_by(STAYS, |agent, session| {
        agent.call("session/close", json!({ "sessionId": session }));
    });
    sleeper_of_hook_ends_by(STAYS, |agent, _| agent.close_input());
    sleeper_of_hook_ends_by(STAYS, |agent, _| agent.kill_now());
}

/// Starts two sleepers in a turn, ends it with `end`, and asserts that they are gone.
fn sleepers_end_by(prefix: &str, end: impl FnOnce(&User, &mut Agent, &str)) {
    let user = super::user(obey);
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    let marker = long_time();
    agent.prompt(&session, &format!("run {prefix}sleep {marker} & sleep {marker}"));
    // The shell has the marker too, unless it became the second sleeper.
    within("the sleepers", || (processes_with(&format!("sleep\0{marker}")) == 2).then_some(()));
    end(&user, &mut agent, &session);
    within("the end of the sleepers", || (processes_with(&marker) == 0).then_some(()));
}

/// Ends both kinds of commands: those that exit on SIGTERM, and those that ignore it.
fn all_sleepers_end_by(end: impl Fn(&User, &mut Agent, &str)) {
    sleepers_end_by("", &end);
    sleepers_end_by("trap '' TERM; ", &end);
}

/// `epitome check` left the daemon of the agent that it had checked behind for ten minutes.
#[test]
fn a_checked_agent_leaves_no_daemon_behind() {
    let user = User::new();
    let program = program().display().to_string();
    let ran = user.run(&["check", "--home", "empty", "--rule", "first-line", "--", &program, "acp"]);
    assert!(ran.ok().contains("1 passed, 0 failed"));
    within("the end of its daemon", || (processes_of(&user.own()) == 0).then_some(()));
}

#[test]
fn commands_end_when_the_agent_is_terminated() {
    all_sleepers_end_by(|_, agent, _| agent.terminate());
}

#[test]
fn commands_end_when_the_agent_is_killed() {
    all_sleepers_end_by(|_, agent, _| agent.kill_now());
}

#[test]
fn commands_end_when_the_editor_closes_the_pipe() {
    all_sleepers_end_by(|_, agent, _| agent.close_input());
}

#[test]
fn commands_end_with_a_cancelled_turn() {
    all_sleepers_end_by(|_, agent, session| agent.cancel(session));
}

#[test]
fn commands_end_with_a_closed_session() {
    all_sleepers_end_by(|_, agent, session| {
        agent.request("session/close", json!({ "sessionId": session }));
    });
}

#[test]
fn commands_end_with_a_deleted_session() {
    all_sleepers_end_by(|user, agent, session| {
        agent.call("session/delete", json!({ "sessionId": session }));
        assert!(!user.journal(session).exists());
    });
}

/// Starts a sleeper in the background and one that left its process group, cancels a turn, ends the session
/// with `end`, and asserts that both are gone.
fn background_sleepers_end_by(end: impl FnOnce(&User, &mut Agent, &str)) {
    if does_without("finding processes that left their group") {
        return;
    }
    let user = super::user(obey);
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    let marker = long_time();
    agent.turn(&session, &format!("background setsid sleep {marker} & trap '' TERM; sleep {marker}"));
    let sleepers = || processes_with(&format!("sleep\0{marker}"));
    within("the sleepers", || (sleepers() == 2).then_some(()));
    let hanging = agent.prompt(&session, "hang");
    agent.cancel(&session);
    let (_, answer) = agent.answer(hanging);
    assert_eq!(stop_reason(&answer), "cancelled");
    assert_eq!(sleepers(), 2, "a cancel leaves what is the session's");
    end(&user, &mut agent, &session);
    within("the end of the sleepers", || (processes_with(&marker) == 0).then_some(()));
}

#[test]
fn background_commands_outlive_a_cancel_but_not_their_session() {
    background_sleepers_end_by(|_, agent, session| {
        agent.request("session/close", json!({ "sessionId": session }));
    });
    background_sleepers_end_by(|user, agent, session| {
        agent.call("session/delete", json!({ "sessionId": session }));
        assert!(!user.journal(session).exists());
    });
}

#[test]
fn background_commands_do_not_outlive_the_agent() {
    background_sleepers_end_by(|_, agent, _| agent.close_input());
    background_sleepers_end_by(|_, agent, _| agent.kill_now());
}

#[test]
fn the_model_is_notified_once_when_a_background_command_ends() {
    let user = super::user(obey);
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    let go = user.project().join("go");
    agent.turn(&session, "background mkfifo go; read x < go; exit 3");
    within("the pipe", || go.exists().then_some(()));
    let said = |words: &str| {
        let messages = serde_json::to_string(&user.last_messages()).expect("JSON is written");
        messages.matches(words).count()
    };
    agent.turn(&session, "say hello");
    assert_eq!((said("was started"), said("has ended")), (1, 0), "its start says that it runs");
    std::fs::write(&go, "\n").expect("written");
    within("the news", || {
        agent.turn(&session, "say hello");
        (said("has ended (exit code 3)") == 1).then_some(())
    });
    agent.turn(&session, "say hello");
    assert_eq!(said("has ended (exit code 3)"), 1);
}

#[test]
fn the_watchdog_process_of_commands_ends_too() {
    let user = super::user(obey);
    let mut agent = user.start_trusted();
    let session = user.new_session(&mut agent);
    agent.turn(&session, "run true");
    let ours = || processes_of(&user.own());
    assert!(ours() >= 1, "the agent itself is seen");
    user.kill(agent);
    within("the end of all that was started", || (ours() == 0).then_some(()));
}
