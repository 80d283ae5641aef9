//! Version 2 over `epitome acp --remote`.

use epitome_test_harness::agent::obey;
use epitome_test_harness::serve::{remote_agent, serve, token};
use epitome_test_harness::user::User;
use serde_json::json;

use super::user;
use super::window::Window;
use crate::daemon::remote::CuttableRelay;

/// The connection is cut in a turn, then the server is killed while a prompt waits: nothing is missing, and nothing is shown
/// or inserted twice.
#[test]
fn a_remote_window_of_version_2_continues_without_a_gap() {
    let (build, laptop) = (user(obey), User::new());
    let secret = token(&build, "anna", "approve");
    let server = serve(&build, &["--listen", "127.0.0.1:0"]);
    let relay = CuttableRelay::to(&server.address);
    let remote = |address: &str| Window::of(remote_agent(&laptop, &format!("ws://{address}"), &secret, &[]));
    let mut window = remote(&relay.address);
    let session = window.new_session(&build);
    let id = window.prompt(&session, "half");
    window.answer(id);
    window.hear("The first half, ");
    relay.cut();
    build.model().release();
    assert_eq!(window.idle()["stopReason"], "end_turn");

    // A prompt with a key is sent again by its client, too.
    let keyed = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "half" }],
        "idempotencyKey": "k-1" });
    let id = window.request("session/prompt", keyed.clone());
    let first = window.answer(id)["result"]["messageId"].clone();
    window.hear("The first half, ");
    let address = server.address.clone();
    drop(server);
    relay.cut();
    let _next = serve(&build, &["--listen", &address]);
    let id = window.request("session/prompt", keyed);
    assert_eq!(window.answer(id)["result"]["messageId"], first);
    build.model().release();
    assert_eq!(window.idle()["stopReason"], "end_turn");

    let mut later = remote(&address);
    let params = json!({ "sessionId": session, "cwd": build.project(), "replayFrom": { "type": "start" } });
    later.call("session/resume", params);
    let said = |window: &Window| {
        let mut ids: Vec<String> = Vec::new();
        let messages = window.updates.iter().map(|message| &message["params"]["update"]);
        for id in messages.filter_map(|update| update["messageId"].as_str()) {
            if !ids.iter().any(|known| known == id) {
                ids.push(id.to_owned());
            }
        }
        ids.iter().map(|id| window.text(id)).filter(|text| !text.is_empty()).collect::<Vec<_>>()
    };
    let reply = "The first half, the second half.";
    assert_eq!(said(&window), ["half", reply, "half", reply]);
    assert_eq!(said(&later), said(&window));
    assert_eq!(build.model().requests().len(), 2);
}
