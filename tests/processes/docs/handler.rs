//! The example handler of `CONTRIBUTING.md`, compiled here exactly as printed there.

#[path = "note_length.rs"]
mod note_length;
#[expect(dead_code, reason = "the example uses only a part of it")]
#[path = "../../../src/tools/hooks/handlers/params.rs"]
mod params;

use note_length::HANDLER;
use serde_json::{Map, Value, json};

use crate::hooks::event::HookEvent;
use crate::hooks::handlers::HandlerError;
use crate::hooks::hook_context::EventData;

fn params(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

#[test]
fn contributing_md_shows_the_handler_verbatim() {
    let page = super::text(&super::root().join("CONTRIBUTING.md"));
    let unindented: String =
        page.lines().map(|line| format!("{}\n", line.strip_prefix("   ").unwrap_or(line))).collect();
    assert!(unindented.contains(include_str!("note_length.rs")));
}

#[test]
fn the_worked_handler_reports_only_long_replies() {
    let mut hook_context = super::sample::hook_context(HookEvent::TurnEnd);
    let notice = |hook_context: &_, words: u64| {
        let params::HandlerRun::Pure(run) = HANDLER.run else { panic!("it needs no disk") };
        let output =
            run(&params(json!({ "words": words })), hook_context).map_err(|error| error.to_string())?;
        Ok(output.notice)
    };
    assert_eq!(notice(&hook_context, 3), Ok(None));
    assert_eq!(notice(&hook_context, 2), Ok(Some("The reply has 3 words, 2 were wanted.".to_owned())));
    hook_context.what = EventData::SessionEnd { reason: "other" };
    assert_eq!(notice(&hook_context, 2), Err("there is no reply to count".to_owned()));
    assert_eq!((HANDLER.events, HANDLER.params), (&[HookEvent::TurnEnd][..], &["words"][..]));
    assert!((HANDLER.check)(&params(json!({ "words": "many" }))).is_err());
}
