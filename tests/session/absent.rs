//! Clients that have nobody to ask, in a session that others may follow.

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

/// A desk with a second client, and a card that both of them show.
fn shared() -> (Desk, Client, Ticket, AskId) {
    let mut desk = Desk::new(vec![vec![call(json!({"asks": "person"}))]]);
    let mut other = Client::new(2);
    attach(&mut desk, &mut other);
    let ticket = desk.prompt("Go");
    let ask = asked(&mut desk.client);
    assert_eq!(asked(&mut other), ask);
    (desk, other, ticket, ask)
}

/// A command line without a terminal took part in an editor's session: it dismissed every card at once, before
/// the person at the editor could read it.
#[test]
fn who_has_nobody_to_ask_leaves_the_card_to_the_others() {
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
fn a_card_is_settled_at_once_when_all_are_absent() {
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
fn who_leaves_is_counted_no_more() {
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

/// What a client said before it left does not hold of who comes in its place.
#[test]
fn who_comes_back_is_asked_again() {
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
fn consent_is_asked_of_whoever_is_there() {
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
