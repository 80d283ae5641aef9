//! Clients that cannot ask their user, in a session with other clients.

use epitome::session::port::SessionPort as _;
use epitome::session::{AskId, Replay, SessionCommand, SessionEvent, Ticket, UserDecision};
use epitome::thread::{
    Change, Decider, OutcomeStatus, PermissionChoice, RecordedDecision, StopReason, ToolOutcome,
};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{TestSession, call};
use serde_json::json;

use super::hooks_consent::repository;

fn asked(client: &mut TestClient) -> AskId {
    client.until(|out| match out {
        SessionEvent::Ask { ask, .. } => Some(*ask),
        _ => None,
    })
}

fn outcome(client: &mut TestClient) -> ToolOutcome {
    client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    })
}

fn by(outcome: &ToolOutcome) -> (OutcomeStatus, Option<RecordedDecision>) {
    (outcome.status, outcome.decided.clone())
}

const ONCE: Option<RecordedDecision> =
    Some(RecordedDecision { allowed: true, by: Decider::Person { answer: PermissionChoice::Once } });
const NOBODY: Option<RecordedDecision> = Some(RecordedDecision { allowed: false, by: Decider::Nobody });

fn absent(test: &mut TestSession, ask: AskId, client: &TestClient) {
    test.send(SessionCommand::Absent { ask, client: client.id });
}

fn attach(test: &mut TestSession, client: &mut TestClient) {
    let (ticket, opening) = (test.ticket(), test.opening(client, test.environment()));
    test.sessions.attach(ticket, test.session.clone(), opening, Replay::Nothing);
    client.answer(ticket).expect("it attaches");
}

/// A test with a second client, and a permission request that both of them show.
fn shared() -> (TestSession, TestClient, Ticket, AskId) {
    let mut test = TestSession::new(vec![vec![call(json!({"asks": "person"}))]]);
    let mut other = TestClient::new(2);
    attach(&mut test, &mut other);
    let ticket = test.prompt("Go");
    let ask = asked(&mut test.client);
    assert_eq!(asked(&mut other), ask);
    (test, other, ticket, ask)
}

/// Regression: a command line without a terminal that joined an editor's session immediately dismissed every permission
/// request, before the editor's user could read it.
#[test]
fn a_client_that_cannot_ask_leaves_the_request_to_the_others() {
    let (mut test, mut other, ticket, ask) = shared();
    let here = TestClient::new(1);
    absent(&mut test, ask, &here);
    absent(&mut test, ask, &here);
    absent(&mut test, ask, &TestClient::new(9));
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    assert_eq!(by(&outcome(&mut other)), (OutcomeStatus::Completed, ONCE));
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
}

#[test]
fn a_permission_request_is_denied_when_all_clients_are_absent() {
    let (mut test, mut other, ticket, ask) = shared();
    absent(&mut test, ask, &TestClient::new(1));
    absent(&mut test, ask, &TestClient::new(2));
    other.until(|out| matches!(out, SessionEvent::Withdrawn { .. }).then_some(()));
    assert_eq!(by(&outcome(&mut other)), (OutcomeStatus::Denied, NOBODY));
    assert_eq!(test.reason(ticket), StopReason::EndTurn);

    let mut alone = TestSession::new(vec![vec![call(json!({"asks": "person"}))]]);
    let ticket = alone.prompt("Go");
    let ask = asked(&mut alone.client);
    absent(&mut alone, ask, &TestClient::new(1));
    assert_eq!(by(&outcome(&mut alone.client)), (OutcomeStatus::Denied, NOBODY));
    assert_eq!(alone.reason(ticket), StopReason::EndTurn);
}

#[test]
fn a_client_that_leaves_no_longer_counts() {
    for closes in [false, true] {
        let (mut test, other, ticket, ask) = shared();
        absent(&mut test, ask, &TestClient::new(1));
        let close = test.ticket();
        test.send(match closes {
            true => SessionCommand::Close { ticket: close, client: other.id },
            false => SessionCommand::Detach { client: other.id },
        });
        assert_eq!(by(&outcome(&mut test.client)), (OutcomeStatus::Denied, NOBODY), "closes: {closes}");
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
    }
}

/// An answer that a client gave before it left does not apply after it has attached again.
#[test]
fn a_client_that_attaches_again_is_asked_again() {
    let (mut test, mut other, ticket, ask) = shared();
    absent(&mut test, ask, &other);
    test.send(SessionCommand::Detach { client: other.id });
    attach(&mut test, &mut other);
    assert_eq!(asked(&mut other), ask);
    absent(&mut test, ask, &TestClient::new(1));
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    assert_eq!(by(&outcome(&mut test.client)), (OutcomeStatus::Completed, ONCE));
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
}

#[test]
fn consent_is_decided_by_a_present_client_or_denied() {
    for (decision, status) in
        [(Some(UserDecision::AllowOnce), OutcomeStatus::Completed), (None, OutcomeStatus::Denied)]
    {
        let mut test = repository();
        let mut other = TestClient::new(2);
        attach(&mut test, &mut other);
        let ticket = test.prompt("Hello");
        let ask = asked(&mut other);
        absent(&mut test, ask, &TestClient::new(1));
        match decision {
            Some(decision) => test.send(SessionCommand::Decide { ask, decision }),
            None => absent(&mut test, ask, &other),
        }
        let shown = other.until(|out| match out {
            SessionEvent::CallFinished { outcome } => Some(outcome.status),
            _ => None,
        });
        assert_eq!(shown, status);
        assert_eq!(test.reason(ticket), StopReason::EndTurn);
    }
}
