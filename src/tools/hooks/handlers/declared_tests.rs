//! Valid forms of a recipe's `hooks` table, and the problems reported for mistakes.

use serde_json::json;

use super::*;

fn read(hooks: Value) -> (HandlerTable, Vec<String>) {
    let mut functions = Functions::default();
    functions.register_handler("mine", |_, _| async { Ok(Default::default()) });
    let (table, problems) = declared("r", &hooks, &BTreeMap::new(), &functions, Path::new("r.md"));
    (table, problems.iter().map(Problem::to_string).collect())
}

fn built_in(name: &str, once: bool, params: Value) -> DeclaredHandler {
    let params = params.as_object().cloned().expect("an object");
    DeclaredHandler::Handler(Arc::new(Handler {
        recipe: "r".to_owned(),
        name: name.to_owned(),
        once,
        params,
    }))
}

#[test]
fn every_form_is_read() {
    let swap = || built_in("swap_context", true, json!({"preserve_recent": 2}));
    let cases = [
        (json!({"turn_end": "swap_context"}), vec![built_in("swap_context", false, json!({}))]),
        (
            json!({"after_turn": {"handler": "swap_context", "once": true, "params": {"preserve_recent": 2}}}),
            vec![swap()],
        ),
        (
            json!({"turn.end": {"handlers": ["external", "swap_context", "lint.sh"], "once": true,
                "params": {"preserve_recent": 2}}}),
            vec![
                DeclaredHandler::External { once: true },
                swap(),
                DeclaredHandler::Script { name: "lint.sh".to_owned(), once: true },
            ],
        ),
        (
            json!({"turn_end": [{"handler": "mine"}, {"handlers": ["external"]}, "compact_context"]}),
            vec![
                built_in("mine", false, json!({})),
                DeclaredHandler::External { once: false },
                built_in("compact_context", false, json!({})),
            ],
        ),
    ];
    for (hooks, wanted) in cases {
        let (table, problems) = read(hooks);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(table, HandlerTable::from([(HookEvent::TurnEnd, wanted)]));
    }
    assert_eq!(read(Value::Null), (HandlerTable::new(), Vec::new()));
}

#[test]
fn shared_parameters_go_to_the_handlers_that_accept_them() {
    let (table, problems) = read(json!({"turn_end": {"handlers": ["append_context", "swap_context"],
        "params": {"label": "L", "preserve_recent": 1, "labl": 2}}}));
    let wanted = [
        built_in("append_context", false, json!({"label": "L", "labl": 2})),
        built_in("swap_context", false, json!({"preserve_recent": 1, "labl": 2})),
    ];
    assert_eq!(table[&HookEvent::TurnEnd], wanted);
    assert_eq!(problems.len(), 2, "{problems:?}");
}

#[test]
fn typos_are_reported_with_suggestions() {
    let cases = [
        (json!({"turn_ned": "redact"}), "r.md: no event is called \"turn_ned\" (did you mean \"turn_end\"?)"),
        (
            json!({"turn_end": "swap_contxt"}),
            "r.md: no handler is called \"swap_contxt\": it does nothing (did you mean \"swap_context\"?)",
        ),
        (
            json!({"turn_end": {"handlers": ["swap-contxt"]}}),
            "r.md: no handler is called \"swap-contxt\"; it is taken for a script (did you mean \"swap_context\"?)",
        ),
        (
            json!({"turn_end": {"handler": "swap_context", "params": {"preserve_recnt": 1}}}),
            "r.md: swap_context: unknown parameter \"preserve_recnt\", ignored (did you mean \"preserve_recent\"?)",
        ),
        (
            json!({"turn_end": {"handler": "swap_context", "params": {"preserve_system_prompt": false}}}),
            "r.md: swap_context: \"preserve_system_prompt\" is always true: a swap never loses it",
        ),
        (
            json!({"turn_end": {"handler": "swap_context", "onces": true}}),
            "r.md: \"turn_end\" has an unknown field \"onces\", ignored (did you mean \"once\"?)",
        ),
        (
            json!({"turn_end": {"handler": "compact_context", "params": {"prune": true}}}),
            "r.md: compact_context: \"prune\" has no effect: a compaction does not shorten tool results first",
        ),
    ];
    for (hooks, wanted) in cases {
        let (table, problems) = read(hooks.clone());
        assert_eq!(problems, [wanted]);
        // Declarations whose intent is clear are kept.
        assert_eq!(table.is_empty(), wanted.contains("no event"), "{hooks}");
    }
}

#[test]
fn invalid_declarations_are_left_out() {
    let cases = [
        (json!([]), "\"hooks\" must be a map from events to handlers"),
        (json!({"turn_end": 3}), "\"turn_end\" must name a handler"),
        (json!({"turn_end": {"once": true}}), "\"turn_end\" needs either \"handler\""),
        (json!({"turn_end": {"handler": "swap_context", "handlers": []}}), "\"turn_end\" needs either"),
        (json!({"turn_end": {"handler": "swap_context", "once": 1}}), "\"once\" of \"turn_end\" must be"),
        (json!({"turn_end": {"handler": "swap_context", "params": []}}), "\"params\" of \"turn_end\" must"),
        (json!({"turn_end": [["swap_context"]]}), "\"turn_end\" has a list in its list"),
        (
            json!({"after_tool_call": "swap_context"}),
            "swap_context: it works at turn_end, not at after_tool_call",
        ),
        (
            json!({"turn_end": {"handler": "validate_output", "params": {"schema": {"type": "objekt"}}}}),
            "validate_output: this is not a usable JSON Schema",
        ),
        (json!({"turn_end": "validate_output"}), "validate_output: \"schema\" must be a JSON Schema"),
    ];
    for (hooks, wanted) in cases {
        let (table, problems) = read(hooks);
        let [problem] = problems.as_slice() else { panic!("{problems:?}") };
        assert!(problem.starts_with(&format!("r.md: {wanted}")), "{problem}");
        assert!(table.is_empty(), "{table:?}");
    }
}

#[test]
fn the_keep_argument_sets_preserve_recent() {
    let hooks = json!({"turn_end": "swap_context"});
    for (keep, params) in
        [("2", json!({"preserve_recent": 2})), (" ", json!({})), ("two", json!({"preserve_recent": "two"}))]
    {
        let arguments = BTreeMap::from([("keep".to_owned(), keep.to_owned())]);
        let (table, problems) = declared("r", &hooks, &arguments, &Functions::default(), Path::new("r.md"));
        match keep {
            "two" => assert!(problems[0].message.contains("preserve_recent"), "{problems:?}"),
            _ => assert_eq!(table[&HookEvent::TurnEnd], [built_in("swap_context", false, params)]),
        }
    }
}
