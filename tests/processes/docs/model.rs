//! The scripted model for the page on compaction. It can answer only the prompts of that page.

use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use serde_json::json;

/// The reply to a request for a summary.
const SUMMARY: &str = "<summary>\n## Goal\nFind out why the build fails.\n\n## State and next steps\n`drain_all` is to be \
                       called `drain`, in src/queue.rs. Nothing is changed yet.\n</summary>";

pub fn start() -> ScriptedModel {
    ScriptedModel::start(answer).expect("a free port")
}

/// The reply and its usage.
fn answer(request: &RecordedRequest) -> Vec<ModelStep> {
    let taken = request.cache.unwrap_or_default();
    let usage = [ModelStep::Usage { input: taken.all(), output: 40 }, ModelStep::Cached(taken.read)];
    words(request).into_iter().chain(usage).collect()
}

fn words(request: &RecordedRequest) -> Vec<ModelStep> {
    let say = |text: &str| vec![ModelStep::Text(text.to_owned())];
    let call = |name: &str, input| vec![ModelStep::Call { name: name.to_owned(), input }];
    let asked = request.last_user_text();
    let results = request.bytes.windows(b"tool_result".len()).filter(|at| *at == b"tool_result").count();
    match asked.as_str() {
        asked if asked.contains("write its handover") => say(SUMMARY),
        asked if asked.contains("Why does the build fail?") && results == 0 => {
            call("file_read", json!({"file_path": "build.log"}))
        }
        asked if asked.contains("Why does the build fail?") => {
            say("`drain_all` is gone since version 3 of the crate; it is called `drain` now.")
        }
        asked if asked.contains("How long may the queue be?") => {
            say("We decided on 64, because 128 made the tests time out.")
        }
        asked if asked.contains("On which line was it?") && results == 0 => {
            call("recall", json!({"text": "drain_all", "kind": "outcome"}))
        }
        asked if asked.contains("On which line was it?") => say("On line 41 of src/queue.rs."),
        asked => panic!("the page does not ask this: {asked}"),
    }
}
