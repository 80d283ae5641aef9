//! The program as `epitome ahp` starts it. Cargo also builds it for the tests of `epitome` because of this test.

use std::process::Command;

#[test]
fn an_address_that_is_none_is_refused() {
    let ran = Command::new(env!("CARGO_BIN_EXE_epitome-ahp")).args(["--listen", "here"]).output();
    let ran = ran.expect("it starts");
    assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
}
