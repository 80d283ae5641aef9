//! The program as users start it. Cargo also builds it for the tests of `epitome` because of this test.

use std::process::Command;

#[test]
fn it_says_which_command_is_missing() {
    let ran = Command::new(env!("CARGO_BIN_EXE_acp-check")).arg("--json").output().expect("it starts");
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.code() == Some(2) && errors.contains("<COMMAND>"), "{errors}");
}

/// Regression: it exited with 0, although the agent offered nothing of what was to be checked.
#[cfg(unix)]
#[test]
fn a_run_in_which_nothing_ran_exits_with_2() {
    const AGENT: &str =
        r#"read -r line; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}'; cat >/dev/null"#;
    let ran = Command::new(env!("CARGO_BIN_EXE_acp-check"))
        .args(["--rule", "load-replays", "--", "sh", "-c", AGENT])
        .output()
        .expect("it starts");
    let out = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.code() == Some(2) && out.contains("not offered  load-replays"), "{out}");
}
