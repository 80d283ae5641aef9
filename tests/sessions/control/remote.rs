//! The crate's own client: typed calls.

use epitome::daemon::control::fault::FaultKind;
use serde_json::json;

use super::in_process::TestDaemon;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_call_has_a_kind_and_a_hint() {
    let test = TestDaemon::new(Vec::new());
    let client = test.client();
    assert_eq!(client.call("status", json!({})).await.expect("a status")["running_turns"], 0);
    let fault = client.call("sessions.show", json!({ "session": "x" })).await.expect_err("there is none");
    assert_eq!((fault.kind, fault.hint.is_some()), (FaultKind::NotFound, true));
}
