//! Helpers for tests of hooks: scripts in the form that users write, and the payloads that they received.

use epitome::hooks::functions::Functions;
use epitome::session::SessionEvent;
use epitome::thread::{Change, HookRun, HookRunResult};
use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, write_file};
use serde_json::Value;

/// A script that prints this declaration for `hook` and runs this body for `run`, with the session's directory in
/// `EPITOME_CWD`.
pub fn script(declares: &str, body: &str) -> String {
    format!("#!/bin/sh\nif [ \"$1\" = hook ]; then\ncat <<'END'\n{declares}\nEND\nexit 0\nfi\n{body}\n")
}

/// A script that records its payloads; see [`payloads`].
pub fn recorder(declares: &str) -> String {
    script(declares, "cat >> \"$EPITOME_CWD/payloads\"")
}

/// A script that prints the result set by [`answers`], once.
pub fn puppet(declares: &str) -> String {
    script(declares, "cd \"$EPITOME_CWD\"; [ -e answer ] || exit 0; cat answer; rm answer")
}

/// Sets the result of the puppet's next run.
pub fn answers(test: &TestSession, answer: &Value) {
    write_file(&test.cwd().join("answer"), &answer.to_string());
}

/// A session with these hooks in the user's own folder, and other files as for [`Setup::with_files`].
pub fn with_hooks(
    hooks: &[(&str, String)],
    more: &[(&str, &str)],
    replies: Vec<Vec<ModelStep>>,
) -> TestSession {
    stage(hooks, more, Functions::default(), in_turn(replies))
}

pub fn stage(
    hooks: &[(&str, String)],
    more: &[(&str, &str)],
    functions: Functions,
    model: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
) -> TestSession {
    let hooks = hooks.iter().map(|(name, text)| (format!("home/hooks/{name}"), text.clone()));
    let more = more.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Setup::with_files(&hooks.chain(more).collect::<Vec<_>>()).functions(functions).start(model)
}

/// The payloads that recorders received, in order.
pub fn payloads(test: &TestSession) -> Vec<Value> {
    let lines = std::fs::read_to_string(test.cwd().join("payloads")).unwrap_or_default();
    lines.lines().map(|line| serde_json::from_str(line).expect("a payload")).collect()
}

/// One field of all payloads, as text.
pub fn payload_fields(test: &TestSession, field: &str) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    payloads(test).iter().map(|payload| text(&payload[field])).collect()
}

/// All runs in the trail.
pub fn trail(test: &TestSession) -> Vec<HookRun> {
    let runs = test.log().into_iter().filter_map(|entry| match &entry.change {
        Change::Hooked { runs, .. } => Some(runs.clone()),
        _ => None,
    });
    runs.flatten().collect()
}

/// The remarks of all refused runs in the trail.
pub fn refused(test: &TestSession) -> Vec<String> {
    let runs = trail(test).into_iter().filter(|run| run.verdict == HookRunResult::Refused);
    runs.map(|run| run.remarks.join(" ")).collect()
}

/// Everything in the last request to the model, as text.
pub fn sent(test: &TestSession) -> String {
    format!("{:?}", test.last_request().seen())
}

/// Notices so far.
pub fn notices(test: &mut TestSession) -> Vec<String> {
    test.client.seen.iter().filter_map(notice).collect()
}

pub fn notice(out: &SessionEvent) -> Option<String> {
    match out {
        SessionEvent::Notice { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// The number of matching changes in the log.
pub fn count(test: &TestSession, wanted: impl Fn(&Change) -> bool) -> usize {
    test.log().iter().filter(|entry| wanted(&entry.change)).count()
}

pub fn flood() -> Vec<ModelStep> {
    vec![ModelStep::Flood { count: 2000, text: "many words ".into() }]
}
