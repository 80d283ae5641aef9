//! Limits on what a session may cost.

use epitome::session::SessionError;
use epitome::thread::StopReason;
use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::session::Setup;
use epitome_test_harness::{call, text};
use serde_json::json;

/// Replies that cost half a million uncached tokens each.
fn expensive(_: &RecordedRequest) -> Vec<ModelStep> {
    vec![text("Done."), ModelStep::Usage { input: 500_000, output: 10 }]
}

/// An unattended session could spend any amount of money.
#[test]
fn a_session_stops_at_its_budget() {
    let mut test = Setup::with_config("[budget]\nsession_tokens = 900000\n").start(expensive);
    assert_eq!(test.ask("One."), StopReason::EndTurn);
    assert_eq!(test.ask("Two."), StopReason::EndTurn);
    let ticket = test.prompt("Three.");
    let error = test.client.answer(ticket).expect_err("the budget is used up");
    assert!(matches!(&error, SessionError::OverBudget(_)), "{error:?}");
    assert!(error.to_string().contains("budget.session_tokens"), "{error}");
    assert_eq!(test.model.requests().len(), 2, "nothing was sent");
    // Usage that is in the log counts after a restart of the session, too.
    let environment = test.environment();
    test.reload(environment);
    let ticket = test.prompt("Four.");
    test.client.answer(ticket).expect_err("it is still used up");
}

/// Subagents spend their parent's money.
#[test]
fn subagents_spend_the_budget_of_their_session() {
    let script = |request: &RecordedRequest| match request.last_user_text().as_str() {
        "Delegate." => {
            vec![
                call("task", json!({"description": "d", "prompt": "Work.", "agent": "general"})),
                ModelStep::Usage { input: 10_000, output: 10 },
            ]
        }
        _ => vec![text("Done."), ModelStep::Usage { input: 500_000, output: 10 }],
    };
    let mut test = Setup::with_config("[budget]\nsession_tokens = 400000\n").built_in_tools().start(script);
    let ticket = test.prompt("Delegate.");
    let error = test.client.answer(ticket).expect_err("the subagent used it up");
    assert!(matches!(error, SessionError::OverBudget(_)), "{error:?}");
    assert_eq!(test.model.requests().len(), 2);
}
