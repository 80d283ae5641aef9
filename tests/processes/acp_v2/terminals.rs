//! V11: what a terminal shows is what its command wrote, to the byte.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use epitome_test_harness::agent::obey;
use serde_json::{Value, json};

use super::window::Window;

/// The bytes of the terminals as the updates since `from` give them, and how often they were replaced as a whole.
fn written(window: &Window, from: usize) -> (Vec<u8>, usize) {
    let decoded = |data: &Value| STANDARD.decode(data.as_str().expect("base64")).expect("base64");
    let (mut bytes, mut replaced) = (Vec::new(), 0);
    for update in window.updates[from..].iter().map(|message| &message["params"]["update"]) {
        match update["sessionUpdate"].as_str() {
            Some("terminal_output_chunk") => bytes.extend(decoded(&update["data"])),
            Some("terminal_update") if update["output"].is_object() => {
                bytes = decoded(&update["output"]["data"]);
                replaced += 1;
            }
            _ => {}
        }
    }
    (bytes, replaced)
}

#[test]
fn a_terminal_has_the_bytes_that_its_command_wrote() {
    let user = super::user(obey);
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    // Bytes that are not UTF-8, escape sequences, a progress bar, characters in two pieces, and more than one line of
    // the protocol holds.
    let commands: [(&str, &[u8]); 5] = [
        ("printf 'a\\377\\200b\\000c\\n'", b"a\xff\x80b\x00c\n"),
        ("printf '\\033[1;31mred\\033[0m\\n'", b"\x1b[1;31mred\x1b[0m\n"),
        ("printf '10%%\\r50%%\\r100%%\\n'", b"10%\r50%\r100%\n"),
        ("printf '\\342\\202'; sleep 0.3; printf '\\254\\n'", "€\n".as_bytes()),
        ("head -c 100000 /dev/zero", &[0; 100_000]),
    ];
    for (command, bytes) in commands {
        let from = window.updates.len();
        window.turn(&session, &format!("run {command}"));
        assert_eq!(written(&window, from), (bytes.to_vec(), 0), "{command}");
    }
}

/// Live output is not stored. A terminal whose bytes could not all be sent has the text of the log in the end, which is
/// also what a window that comes later is shown.
#[test]
fn output_that_is_too_fast_is_replaced_by_its_text() {
    let user = super::user(obey);
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    window.turn(&session, "run yes | head -c 4000000");
    let (bytes, replaced) = written(&window, 0);
    assert_eq!(replaced, 1);
    let text = String::from_utf8(bytes).expect("text");
    assert!(text.starts_with("y\ny\n") && text.contains('…') && text.ends_with("y\ny\n"), "{text:.100}");
}

/// A key is masked wherever its output is shown, also in a terminal.
#[test]
fn a_key_does_not_reach_a_terminal() {
    let user = super::user(obey);
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    let key = ["sk", "ant", "api03", &"a1B2".repeat(20)].join("-");
    window.turn(&session, &format!("run printf 'key \\033[1m%s\\377\\n' {key}"));
    let (bytes, replaced) = written(&window, 0);
    let text = String::from_utf8_lossy(&bytes);
    assert!(!text.contains(&key[10..]) && text.contains("[secret masked"), "{text}");
    assert_eq!(replaced, 1);
}

/// A command in the background has a terminal of its own from its start on.
#[test]
fn a_background_terminal_has_the_bytes_of_its_command() {
    let user = super::user(obey);
    let mut window = Window::start(&user, &["--mode", "full"]);
    let session = window.new_session(&user);
    let idle = window
        .turn(&session, "background printf 'a\\377\\n'; sleep 2; printf '\\033[1mb\\n'; exec sleep 1000");
    let terminal = idle["background"][0]["terminalId"].as_str().expect("it is listed").to_owned();
    let is_last = |update: &Value| {
        let data = update["data"].as_str().and_then(|data| STANDARD.decode(data).ok()).unwrap_or_default();
        data.ends_with(b"b\n")
    };
    if !window.of_kind("terminal_output_chunk").iter().any(is_last) {
        window.update("terminal_output_chunk", is_last);
    }
    assert_eq!(written(&window, 0), (b"a\xff\n\x1b[1mb\n".to_vec(), 0));
    window.call("terminal/cancel", json!({ "sessionId": session, "terminalId": terminal }));
}
