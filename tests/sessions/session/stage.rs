//! Helpers for tests of hooks: scripts as users write them, and the payloads that they received.

use epitome::hooks::functions::Functions;
use epitome::session::Out;
use epitome::thread::{Change, HookRun, Verdict};
use epitome_scripted_model::{ModelStep, RecordedRequest};
use serde_json::Value;

use super::desk::{Desk, put, text};

/// A script that answers `hook` with this declaration and runs this body for `run`, with the session's
/// directory in `EPITOME_CWD`.
pub fn script(declares: &str, body: &str) -> String {
    format!("#!/bin/sh\nif [ \"$1\" = hook ]; then\ncat <<'END'\n{declares}\nEND\nexit 0\nfi\n{body}\n")
}

/// A script that records its payloads; see [`told`].
pub fn recorder(declares: &str) -> String {
    script(declares, "cat >> \"$EPITOME_CWD/told\"")
}

/// A script that prints the result set by [`answers`], once.
pub fn puppet(declares: &str) -> String {
    script(declares, "cd \"$EPITOME_CWD\"; [ -e answer ] || exit 0; cat answer; rm answer")
}

/// Sets the result of the puppet's next run.
pub fn answers(desk: &Desk, answer: &Value) {
    put(&desk.cwd().join("answer"), &answer.to_string());
}

/// A desk with these hooks in the user's own folder, and other files as for [`Desk::set`].
pub fn with_hooks(hooks: &[(&str, String)], more: &[(&str, &str)], replies: Vec<Vec<ModelStep>>) -> Desk {
    let mut replies = replies.into_iter();
    stage(hooks, more, Functions::default(), move |_| replies.next().unwrap_or_else(|| vec![text("ok")]))
}

pub fn stage(
    hooks: &[(&str, String)],
    more: &[(&str, &str)],
    functions: Functions,
    model: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
) -> Desk {
    let hooks = hooks.iter().map(|(name, text)| (format!("home/hooks/{name}"), text.clone()));
    let more = more.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Desk::set(&hooks.chain(more).collect::<Vec<_>>(), functions, model)
}

/// The payloads that recorders received, in order.
pub fn told(desk: &Desk) -> Vec<Value> {
    let lines = std::fs::read_to_string(desk.cwd().join("told")).unwrap_or_default();
    lines.lines().map(|line| serde_json::from_str(line).expect("a payload")).collect()
}

/// One field of all payloads, as text.
pub fn told_of(desk: &Desk, field: &str) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    told(desk).iter().map(|payload| text(&payload[field])).collect()
}

/// All runs in the trail.
pub fn trail(desk: &Desk) -> Vec<HookRun> {
    let runs = desk.log().into_iter().filter_map(|entry| match &entry.change {
        Change::Hooked { runs, .. } => Some(runs.clone()),
        _ => None,
    });
    runs.flatten().collect()
}

/// The remarks of all refused runs in the trail.
pub fn refused(desk: &Desk) -> Vec<String> {
    let runs = trail(desk).into_iter().filter(|run| run.verdict == Verdict::Refused);
    runs.map(|run| run.remarks.join(" ")).collect()
}

/// Everything in the last request to the model, as text.
pub fn sent(desk: &Desk) -> String {
    format!("{:?}", desk.last_request().seen())
}

/// Notices so far.
pub fn notices(desk: &mut Desk) -> Vec<String> {
    desk.client.seen.iter().filter_map(notice).collect()
}

pub fn notice(out: &Out) -> Option<String> {
    match out {
        Out::Notice { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// How many such changes the log contains.
pub fn count(desk: &Desk, wanted: impl Fn(&Change) -> bool) -> usize {
    desk.log().iter().filter(|entry| wanted(&entry.change)).count()
}

pub fn flood() -> Vec<ModelStep> {
    vec![ModelStep::Flood { count: 2000, text: "many words ".into() }]
}
