//! Clients that cannot ask their user, in a session with other clients.

use epitome::session::{AskId, Decision, Out, Replay, SessionCommand, Ticket};
use epitome::thread::{Answered, Change, Decided, Decider, OutcomeStatus, StopReason, ToolOutcome};
use serde_json::json;

use super::desk::{Client, Desk, call};
use super::hooks_consent::repository;

fn asked(client: &mut Client) -> AskId {
    client.until(|out| match out {
        Out::Ask { ask, .. } => Some(*ask),
        _ => None,
    })
}

fn outcome(client: &mut Client) -> ToolOutcome {
    client.entry(|change| match change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    })
}

fn by(outcome: &ToolOutcome) -> (OutcomeStatus, Option<Decided>) {
    (outcome.status, outcome.decided.clone())
}

const ONCE: Option<Decided> = Some(Decided { allowed: true, by: Decider::Person { answer: Answered::Once } });
const NOBODY: Option<Decided> = Some(Decided { allowed: false, by: Decider::Nobody });

fn absent(desk: &mut Desk, ask: AskId, client: &Client) {
    desk.send(SessionCommand::Absent { ask, client: client.id });
}

fn attach(desk: &mut Desk, client: &mut Client) {
    let (ticket, opening) = (desk.ticket(), desk.opening(client, desk.environment()));
    desk.sessions.attach(ticket, desk.session.clone(), opening, Replay::Nothing);
    client.answer(ticket).expect("it attaches");
}

/// A desk with a second client, and a permission request that both of them show.
fn shared() -> (Desk, Client, Ticket, AskId) {
    let mut desk = Desk::new(vec![vec![call(json!({"asks": "person"}))]]);
    let mut other = Client::new(2);
    attach(&mut desk, &mut other);
    let ticket = desk.prompt("Go");
    let ask = asked(&mut desk.client);
    assert_eq!(asked(&mut other), ask);
    (desk, other, ticket, ask)
}

/// A command line without a terminal that joined an editor's session dismissed every permission request at
/// once, before the user of the editor could read it.
#[test]
fn a_client_that_cannot_ask_leaves_the_request_to_the_others() {
    let (mut desk, mut other, ticket, ask) = shared();
    let here = Client::new(1);
    absent(&mut desk, ask, &here);
    absent(&mut desk, ask, &here);
    absent(&mut desk, ask, &Client::new(9));
    desk.send(SessionCommand::Decide { ask, decision: Decision::AllowOnce });
    assert_eq!(by(&outcome(&mut other)), (OutcomeStatus::Completed, ONCE));
    assert_eq!(desk.reason(ticket), StopReason::EndTurn);
}

#[test]
fn a_permission_request_is_denied_when_all_clients_are_absent() {
    let (mut desk, mut other, ticket, ask) = shared();
    absent(&mut desk, ask, &Client::new(1));
    absent(&mut desk, ask, &Client::new(2));
    other.until(|out| matches!(out, Out::Withdrawn { .. }).then_some(()));
    assert_eq!(by(&outcome(&mut other)), (OutcomeStatus::Denied, NOBODY));
    assert_eq!(desk.reason(ticket), StopReason::EndTurn);

    let mut alone = Desk::new(vec![vec![call(json!({"asks": "person"}))]]);
    let ticket = alone.prompt("Go");
    let ask = asked(&mut alone.client);
    absent(&mut alone, ask, &Client::new(1));
    assert_eq!(by(&outcome(&mut alone.client)), (OutcomeStatus::Denied, NOBODY));
    assert_eq!(alone.reason(ticket), StopReason::EndTurn);
}

#[test]
fn a_client_that_leaves_no_longer_counts() {
    for closes in [false, true] {
        let (mut desk, other, ticket, ask) = shared();
        absent(&mut desk, ask, &Client::new(1));
        let close = desk.ticket();
        desk.send(match closes {
            true => SessionCommand::Close { ticket: close, client: other.id },
            false => SessionCommand::Detach { client: other.id },
        });
        assert_eq!(by(&outcome(&mut desk.client)), (OutcomeStatus::Denied, NOBODY), "closes: {closes}");
        assert_eq!(desk.reason(ticket), StopReason::EndTurn);
    }
}

/// An answer given before a client left does not apply after it has attached again.
#[test]
fn a_client_that_attaches_again_is_asked_again() {
    let (mut desk, mut other, ticket, ask) = shared();
    absent(&mut desk, ask, &other);
    desk.send(SessionCommand::Detach { client: other.id });
    attach(&mut desk, &mut other);
    assert_eq!(asked(&mut other), ask);
    absent(&mut desk, ask, &Client::new(1));
    desk.send(SessionCommand::Decide { ask, decision: Decision::AllowOnce });
    assert_eq!(by(&outcome(&mut desk.client)), (OutcomeStatus::Completed, ONCE));
    assert_eq!(desk.reason(ticket), StopReason::EndTurn);
}

#[test]
fn consent_is_decided_by_a_present_client_or_denied() {
    for (decision, status) in
        [(Some(Decision::AllowOnce), OutcomeStatus::Completed), (None, OutcomeStatus::Denied)]
    {
        let mut desk = repository();
        let mut other = Client::new(2);
        attach(&mut desk, &mut other);
        let ticket = desk.prompt("Hello");
        let ask = asked(&mut other);
        absent(&mut desk, ask, &Client::new(1));
        match decision {
            Some(decision) => desk.send(SessionCommand::Decide { ask, decision }),
            None => absent(&mut desk, ask, &other),
        }
        let told = other.until(|out| match out {
            Out::CallFinished { outcome } => Some(outcome.status),
            _ => None,
        });
        assert_eq!(told, status);
        assert_eq!(desk.reason(ticket), StopReason::EndTurn);
    }
}
