//! The program as users start it. Cargo also builds it for the tests of `epitome` because of this test.

use std::process::Command;

#[test]
fn it_says_which_command_is_missing() {
    let ran = Command::new(env!("CARGO_BIN_EXE_acp-check")).arg("--json").output().expect("it starts");
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.code() == Some(2) && errors.contains("<COMMAND>"), "{errors}");
}
