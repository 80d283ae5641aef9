//! Hooks and commands of a repository do not run before the user's consent.

use std::sync::Arc;

use epitome::session::{AskId, Decision, Out, PermissionAsk, Replay, SessionCommand};
use epitome::thread::StopReason;

use super::desk::{Client, Desk, put};
use super::stage::{recorder, told_of, with_hooks};

const HOOK: &str = ".epitome/hooks/theirs";

/// A desk in a repository with a hook of its own.
pub fn repository() -> Desk {
    with_hooks(&[], &[(HOOK, &recorder("user_message_send"))], Vec::new())
}

fn asked(client: &mut Client) -> (AskId, Arc<PermissionAsk>) {
    client.until(|out| match out {
        Out::Ask { ask, permission } => Some((*ask, permission.clone())),
        _ => None,
    })
}

fn is_question(out: &Out) -> bool {
    matches!(out, Out::Ask { .. })
}

fn runs(desk: &Desk) -> usize {
    told_of(desk, "event").len()
}

/// Sends a prompt, answers the permission request that precedes it, and waits for the end of the turn.
fn decide(desk: &mut Desk, decision: Decision) -> StopReason {
    let before = desk.model.requests().len();
    let ticket = desk.prompt("Hello");
    let (ask, permission) = asked(&mut desk.client);
    assert_eq!(permission.tool, "trust");
    assert_eq!(desk.model.requests().len(), before, "the prompt waits");
    desk.send(SessionCommand::Decide { ask, decision });
    desk.reason(ticket)
}

#[test]
fn hooks_run_only_if_allowed_and_consent_is_requested_once() {
    for (decision, runs_now) in [
        (Decision::AllowOnce, 2),
        (Decision::AllowAlways, 2),
        (Decision::Reject, 0),
        (Decision::RejectAlways, 0),
        (Decision::Dismissed, 0),
    ] {
        let mut desk = repository();
        assert_eq!(decide(&mut desk, decision.clone()), StopReason::EndTurn, "{decision:?}");
        assert_eq!(desk.ask("Next"), StopReason::EndTurn);
        assert!(!desk.client.seen.iter().any(is_question), "{decision:?}");
        assert_eq!(runs(&desk), runs_now, "{decision:?}");
    }
}

#[test]
fn only_always_and_never_are_remembered() {
    for (decision, asks_again) in [
        (Decision::AllowOnce, true),
        (Decision::AllowAlways, false),
        (Decision::Reject, true),
        (Decision::RejectAlways, false),
    ] {
        let mut desk = repository();
        decide(&mut desk, decision.clone());
        desk.reload(desk.environment());
        if asks_again {
            assert_eq!(decide(&mut desk, Decision::Reject), StopReason::EndTurn);
        } else {
            assert_eq!(desk.ask("Again"), StopReason::EndTurn, "{decision:?}");
            assert!(!desk.client.seen.iter().any(is_question), "{decision:?}");
        }
    }
}

#[test]
fn a_cancel_withdraws_the_consent_request_and_the_next_prompt_asks_again() {
    let mut desk = repository();
    for by_prompt in [false, true] {
        let ticket = desk.prompt("Hello");
        let (ask, _) = asked(&mut desk.client);
        match by_prompt {
            true => desk.send(SessionCommand::CancelPrompt { ticket }),
            false => desk.send(SessionCommand::Cancel),
        }
        assert_eq!(desk.reason(ticket), StopReason::Cancelled);
        desk.client.until(|out| matches!(out, Out::Withdrawn { ask: back } if *back == ask).then_some(()));
        assert!(desk.model.requests().is_empty());
    }
    assert_eq!(decide(&mut desk, Decision::AllowOnce), StopReason::EndTurn);
    assert_eq!(runs(&desk), 1);
}

#[test]
fn a_second_client_sees_the_consent_request_and_may_answer_it() {
    let mut desk = repository();
    let ticket = desk.prompt("Hello");
    let (ask, _) = asked(&mut desk.client);
    let mut second = Client::new(2);
    let attach = desk.ticket();
    let opening = desk.opening(&second, desk.environment());
    desk.sessions.attach(attach, desk.session.clone(), opening, Replay::Nothing);
    second.answer(attach).expect("it attaches");
    assert_eq!(asked(&mut second).0, ask);
    desk.send(SessionCommand::Decide { ask, decision: Decision::AllowOnce });
    assert_eq!(desk.reason(ticket), StopReason::EndTurn);
    desk.client.until(|out| matches!(out, Out::Withdrawn { ask: settled } if *settled == ask).then_some(()));
    assert_eq!(runs(&desk), 1);
}

#[test]
fn a_changed_script_requires_consent_again() {
    let mut desk = repository();
    decide(&mut desk, Decision::AllowAlways);
    let ticket = desk.ticket();
    let client = desk.client.id;
    desk.send(SessionCommand::Close { ticket, client });
    desk.client.answer(ticket).expect("it closes");
    desk.client.seen.clear();
    put(&desk.cwd().join(HOOK), &format!("{}# changed\n", recorder("user_message_send")));
    desk.load(desk.environment());
    assert_eq!(decide(&mut desk, Decision::Reject), StopReason::EndTurn);
    assert_eq!(runs(&desk), 1, "the changed one did not run");
}

#[test]
fn shell_calls_of_a_repositorys_recipe_require_consent() {
    let recipe = "---\ndescription: d\n---\nIt says {{bash \"echo\" \"walnut\"}}.\n";
    for (decision, said) in [(Decision::AllowOnce, true), (Decision::Reject, false)] {
        let mut desk = with_hooks(&[], &[(".epitome/recipes/say.md", recipe)], Vec::new());
        let ticket = desk.prompt("/say");
        let (ask, _) = asked(&mut desk.client);
        desk.send(SessionCommand::Decide { ask, decision });
        assert_eq!(desk.reason(ticket), StopReason::EndTurn);
        let text = desk.last_request().last_user_text();
        // The desk's tool prints that, whatever command it is given.
        assert_eq!(text.contains("says done"), said, "{text}");
    }
    let mut desk = with_hooks(&[], &[(".epitome/recipes/say.md", recipe)], Vec::new());
    let ticket = desk.prompt("/say");
    asked(&mut desk.client);
    desk.send(SessionCommand::CancelPrompt { ticket });
    assert_eq!(desk.reason(ticket), StopReason::Cancelled);
    assert_eq!(desk.ask("Next"), StopReason::EndTurn, "nothing waits for the answer");
}
