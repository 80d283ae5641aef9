//! The order of links, and `once` runs.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::super::tests::{handler, hook_context, said};
use super::*;
use crate::hook::{Hook, HookKind, HookOrigin, Manifest};
use crate::hook_context::{EventData, HookRound};

fn script(name: &str) -> ChainLink {
    let kind = HookKind::Script { path: PathBuf::from(name) };
    let (manifest, origin) = (Manifest::default(), HookOrigin::User);
    let (events, files) = (Vec::new(), Vec::new());
    ChainLink::Hook(Arc::new(Hook {
        name: name.to_owned(),
        origin,
        kind,
        events,
        manifest,
        digest: String::new(),
        files,
    }))
}

fn built_in(name: &str, once: bool, params: Value) -> DeclaredHandler {
    DeclaredHandler::Handler(Arc::new(Handler { once, ..handler(name, params) }))
}

fn named(name: &str, once: bool) -> DeclaredHandler {
    DeclaredHandler::Script { name: name.to_owned(), once }
}

fn names(links: &[ChainLink]) -> Vec<&str> {
    links
        .iter()
        .map(|link| match link {
            ChainLink::Hook(hook) => hook.name.as_str(),
            ChainLink::Handler(handler) => handler.name.as_str(),
        })
        .collect()
}

fn order(declared: &[DeclaredHandler], hook_context: &HookContext, fired: &Fired) -> Vec<ChainLink> {
    plan(Some(declared), vec![script("a"), script("b")], hook_context, fired)
}

#[test]
fn default_order_is_scripts_handlers_threshold() {
    let swap = || built_in("swap_context", true, json!({}));
    let external = || DeclaredHandler::External { once: false };
    let cases: [(Vec<DeclaredHandler>, &[&str]); 8] = [
        (vec![], &["a", "b", COMPACT_TRIGGER]),
        (vec![swap()], &["a", "b", "swap_context", COMPACT_TRIGGER]),
        (vec![external(), swap()], &["a", "b", "swap_context", COMPACT_TRIGGER]),
        (vec![swap(), external()], &["swap_context", "a", "b", COMPACT_TRIGGER]),
        (vec![named("b", false), swap(), external()], &["b", "swap_context", "a", COMPACT_TRIGGER]),
        (vec![swap(), named("a", false)], &["b", "swap_context", "a", COMPACT_TRIGGER]),
        (vec![named("a", false), named("a", false), external(), external()], &["a", "b", COMPACT_TRIGGER]),
        (vec![named("c", false)], &["a", "b", "c", COMPACT_TRIGGER]),
    ];
    for (declared, wanted) in cases {
        assert_eq!(names(&order(&declared, &said("S"), &Fired::default())), wanted, "{declared:?}");
    }
}

#[test]
fn the_threshold_runs_at_turn_end_if_enabled() {
    let mut off = said("S");
    off.base.auto_compact = None;
    assert!(plan(None, Vec::new(), &off, &Fired::default()).is_empty());
    let start = hook_context(EventData::SessionStart { source: "startup" });
    assert!(plan(None, Vec::new(), &start, &Fired::default()).is_empty());
}

#[test]
fn once_is_one_success_for_each_invocation() {
    let declared = [built_in("swap_context", true, json!({})), built_in("compact_context", false, json!({}))];
    let mut fired = Fired::default();
    let links = order(&declared, &said("S"), &fired);
    assert_eq!(names(&links), ["a", "b", "swap_context", "compact_context", COMPACT_TRIGGER]);
    // The first run failed, so it may run again.
    assert_eq!(order(&declared, &said("S"), &fired), links);
    links.iter().for_each(|link| fired.succeeded(HookEvent::TurnEnd, link));
    let next = ["a", "b", "compact_context", COMPACT_TRIGGER];
    assert_eq!(names(&order(&declared, &said("S"), &fired)), next);
    fired.invoked();
    assert_eq!(order(&declared, &said("S"), &fired), links);
}

#[test]
fn once_holds_for_a_script_only_where_the_recipe_names_it() {
    let ran = |declared: &[DeclaredHandler]| {
        let mut fired = Fired::default();
        let links = order(declared, &said("S"), &fired);
        links.iter().for_each(|link| fired.succeeded(HookEvent::TurnEnd, link));
        let again = order(declared, &said("S"), &fired);
        names(&again).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ran(&[built_in("swap_context", true, json!({}))]), ["a", "b", COMPACT_TRIGGER]);
    assert_eq!(ran(&[named("a", true), named("a", true)]), ["b", COMPACT_TRIGGER]);
    assert_eq!(ran(&[DeclaredHandler::External { once: true }]), [COMPACT_TRIGGER]);
    assert_eq!(ran(&[DeclaredHandler::External { once: true }, named("b", false)]), ["b", COMPACT_TRIGGER]);
}

/// Regression: a first reply with only tool calls used up the one run, and nothing was ever swapped; a reply
/// with text and tool calls was swapped in although it was incomplete.
#[test]
fn a_swap_waits_for_a_text_reply_without_tool_calls() {
    let declared = [built_in("swap_context", true, json!({}))];
    let round = |response: &str, tools_used| {
        hook_context(EventData::TurnEnd(HookRound {
            response: response.to_owned(),
            tools_used,
            ..HookRound::default()
        }))
    };
    for (hook_context, runs) in [
        (round("", true), false),
        (round("I will look", true), false),
        (round(" ", false), false),
        (round("S", false), true),
    ] {
        let links = order(&declared, &hook_context, &Fired::default());
        assert_eq!(names(&links).contains(&"swap_context"), runs, "{:?}", hook_context.what);
    }
}

#[test]
fn once_per_session_survives_new_invocations() {
    let declared = [built_in("append_context", false, json!({"once_per_session": true}))];
    let mut fired = Fired::default();
    order(&declared, &said("S"), &fired).iter().for_each(|link| fired.succeeded(HookEvent::TurnEnd, link));
    fired.invoked();
    assert_eq!(names(&order(&declared, &said("S"), &fired)), ["a", "b", COMPACT_TRIGGER]);
}
