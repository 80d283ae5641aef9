//! Subagents as separate sessions, for clients that show them: their events, ids and order.

use std::collections::HashSet;

use epitome::session::{
    Replay, SessionAnswer, SessionCommand, SessionEvent, Subagent, SubagentEnd, SubagentState, UserDecision,
};
use epitome::thread::{Change, OutcomeStatus, SessionId, StopReason};
use epitome_scripted_model::{ModelStep, RecordedRequest};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::text;
use serde_json::json;

/// A client that shows subagents, and all its events with their sessions.
struct Shower {
    client: TestClient,
    events: Vec<(SessionId, SessionEvent)>,
    /// The indices of events that a test has waited for.
    found: HashSet<usize>,
}

impl Shower {
    fn join(test: &mut TestSession, id: u64, replay: Replay) -> Shower {
        let client = TestClient::that_shows_agents(id);
        test.attach(&client, replay);
        let mut shower = Shower { client, events: Vec::new(), found: HashSet::new() };
        shower.until(|_, out| matches!(out, SessionEvent::Answer { .. }).then_some(()));
        shower
    }

    /// Waits for an event of this kind that no earlier call returned.
    ///
    /// Earlier events count too: the first subagent's call may precede the second one's start, so a test that waits for
    /// both starts and then for the calls would otherwise wait forever.
    fn until<T>(&mut self, wanted: impl Fn(&SessionId, &SessionEvent) -> Option<T>) -> T {
        for at in 0.. {
            if at == self.events.len() {
                self.events.push(self.client.next_event());
            }
            let (session, out) = &self.events[at];
            if !self.found.contains(&at)
                && let Some(found) = wanted(session, out)
            {
                self.found.insert(at);
                return found;
            }
        }
        unreachable!("the loop ends by what it waits for")
    }

    fn began(&mut self) -> Subagent {
        self.until(|_, out| match out {
            SessionEvent::Subagent(now) if now.about.is_some() => Some(now.clone()),
            _ => None,
        })
    }

    fn ended(&mut self, agent: &SessionId) -> SubagentEnd {
        self.until(|_, out| match out {
            SessionEvent::Subagent(Subagent { session, state: SubagentState::Ended(end), .. })
                if session == agent =>
            {
                Some(end.clone())
            }
            _ => None,
        })
    }

    /// The session and a short description of each event.
    fn story(&self, test: &TestSession) -> Vec<String> {
        let mut story: Vec<String> = Vec::new();
        for (session, out) in &self.events {
            let place = if *session == test.session { "parent" } else { "agent" };
            let what = match out {
                SessionEvent::Subagent(Subagent { about: Some(about), .. }) => {
                    format!("works: {}", about.title)
                }
                SessionEvent::Subagent(Subagent { about: None, state, .. }) => match state {
                    SubagentState::Running => "goes on".to_owned(),
                    SubagentState::RequiresAction => "waits".to_owned(),
                    SubagentState::Ended(end) => format!("{end:?}"),
                },
                SessionEvent::Entry { entry, .. } if place == "agent" => entry.change.kind().to_owned(),
                SessionEvent::Ask { permission, .. } => format!("asks: {}", permission.card.title),
                SessionEvent::Withdrawn { .. } => "answered".to_owned(),
                _ => continue,
            };
            let line = format!("{place} {what}");
            if story.last() != Some(&line) {
                story.push(line);
            }
        }
        story
    }
}

fn hand(agent: &str, prompt: &str) -> ModelStep {
    let input = json!({"description": "Do it", "prompt": prompt, "agent": agent});
    ModelStep::Call { name: "task".into(), input }
}

fn is_agents(request: &RecordedRequest) -> bool {
    request.body["system"].to_string().contains("You are the agent")
}

fn started(config: &str, parent: Vec<Vec<ModelStep>>, agents: Vec<Vec<ModelStep>>) -> TestSession {
    let (mut parent, mut agents) = (parent.into_iter(), agents.into_iter());
    Setup::with_config(config).tools(&["task"]).start(move |request| {
        let next = if is_agents(request) { agents.next() } else { parent.next() };
        next.unwrap_or_else(|| vec![text("ok")])
    })
}

#[test]
fn a_subagent_is_announced_before_its_stream_and_ended_after_it() {
    let agents = vec![vec![text("I ask."), call(json!({"asks": "person"}))], vec![text("Done.")]];
    let mut test = started("", vec![vec![hand("general", "Go")]], agents);
    let mut shower = Shower::join(&mut test, 7, Replay::Nothing);
    let ticket = test.prompt("Go");
    let agent = shower.began().session;
    let (ask, card) = shower.until(|_, out| match out {
        SessionEvent::Ask { ask, permission } => Some((*ask, permission.clone())),
        _ => None,
    });
    let of = card.agent.as_ref().expect("whose card it is");
    assert_eq!((&of.session, of.title.as_str()), (&agent, "Doing"));
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert_eq!(shower.ended(&agent), SubagentEnd::Stopped(StopReason::EndTurn));
    assert_eq!(
        shower.story(&test),
        [
            "parent works: general: Do it",
            "agent titled",
            "agent said",
            "agent replied",
            "parent waits",
            "parent asks: general: Doing",
            "parent answered",
            "parent goes on",
            "agent tool_finished",
            "agent replied",
            "agent turn_ended",
            "parent Stopped(EndTurn)",
        ]
    );
    // A client that does not show subagents gets no such events, but the permission request as usual.
    assert!(!test.client.seen.iter().any(|out| matches!(out, SessionEvent::Subagent(_))));
}

#[test]
fn cancelling_one_subagent_leaves_its_session_and_the_others_running() {
    let both = vec![hand("general", "One"), hand("general", "Two")];
    let agents = vec![vec![text("I begin."), call(json!({"do": "wait"}))]; 2];
    let mut test = started("", vec![both], agents);
    let mut shower = Shower::join(&mut test, 7, Replay::Nothing);
    let ticket = test.prompt("Go");
    let (one, two) = (shower.began().session, shower.began().session);
    let mut waits = Vec::new();
    while waits.len() < 2 {
        let running = shower.until(|session, out| match out {
            SessionEvent::CallStarted { .. } => Some(session.clone()),
            _ => None,
        });
        if running == one || running == two {
            waits.push(running);
        }
    }
    test.send(SessionCommand::CancelAgent { agent: one.clone() });
    assert_eq!(shower.ended(&one), SubagentEnd::Stopped(StopReason::Cancelled));
    test.release_tool();
    assert_eq!(shower.ended(&two), SubagentEnd::Stopped(StopReason::EndTurn));
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    let mut outcomes: Vec<_> = test
        .log()
        .iter()
        .filter_map(|entry| match &entry.change {
            Change::ToolFinished { outcome } => Some((outcome.status, outcome.model_text())),
            _ => None,
        })
        .collect();
    outcomes.sort_by_key(|(status, _)| *status == OutcomeStatus::Failed);
    assert_eq!(outcomes[0], (OutcomeStatus::Completed, "ok".to_owned()));
    assert_eq!(outcomes[1].0, OutcomeStatus::Failed);
    assert!(outcomes[1].1.contains("did not finish: the user cancelled it"), "{}", outcomes[1].1);
}

#[test]
fn subagents_end_before_their_cancelled_turn() {
    let agents = vec![vec![text("I ask."), call(json!({"asks": "person"}))]];
    let mut test = started("", vec![vec![hand("general", "Go")]], agents);
    let mut shower = Shower::join(&mut test, 7, Replay::Nothing);
    let ticket = test.prompt("Go");
    let agent = shower.began().session;
    shower.until(|_, out| matches!(out, SessionEvent::Ask { .. }).then_some(()));
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    shower.until(|session, out| match out {
        SessionEvent::Entry { entry, .. } if *session == test.session => {
            matches!(entry.change, Change::TurnEnded { .. }).then_some(())
        }
        _ => None,
    });
    let end = "parent Stopped(Cancelled)";
    let story = shower.story(&test);
    let (answered, ended) = (
        story.iter().position(|line| line == "parent answered").expect("the card is void"),
        story.iter().position(|line| line == end).expect("the agent has ended"),
    );
    assert!(answered < ended, "{story:?}");
    assert!(!story[ended..].iter().any(|line| line.starts_with("agent")), "{story:?}");
    assert_eq!(test.ask("What did it say?"), StopReason::EndTurn);
    let sent = format!("{:?}", test.last_request().seen());
    assert!(sent.contains("I ask.") && sent.contains("was stopped with the turn"), "{sent}");
    let _ = agent;
}

#[test]
fn a_client_that_attaches_later_learns_of_running_subagents() {
    let agents = vec![vec![text("I begin."), call(json!({"do": "wait"}))]];
    let mut test = started("", vec![vec![hand("general", "Go")]], agents);
    let mut early = Shower::join(&mut test, 6, Replay::Nothing);
    let ticket = test.prompt("Go");
    // Text is streamed before it is in the log, so a client that attaches in between would get neither.
    let agent = early.began().session;
    early.until(|session, out| {
        let is_reply =
            matches!(out, SessionEvent::Entry { entry, .. } if matches!(entry.change, Change::Replied { .. }));
        (*session == agent && is_reply).then_some(())
    });
    let loaded = Shower::join(&mut test, 7, Replay::Everything);
    assert_eq!(
        loaded.story(&test),
        ["parent works: general: Do it", "agent titled", "agent said", "agent replied"]
    );
    let mut resumed = Shower::join(&mut test, 8, Replay::Nothing);
    resumed.began();
    test.release_tool();
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    resumed.ended(&agent);
    // It has received no earlier events.
    let story = resumed.story(&test);
    assert_eq!(story[..2], ["parent works: general: Do it", "agent tool_finished"], "{story:?}");
}

#[test]
fn a_nested_subagent_belongs_to_its_parent_and_is_cancelled_alone() {
    let agents = vec![vec![hand("general", "Deeper")], vec![text("I begin."), call(json!({"do": "wait"}))]];
    let mut test = started("[agents]\nmax_depth = 2", vec![vec![hand("general", "Go")]], agents);
    let mut shower = Shower::join(&mut test, 7, Replay::Nothing);
    let ticket = test.prompt("Go");
    let child = shower.began().session;
    let (under, grandchild) = shower.until(|session, out| match out {
        SessionEvent::Subagent(now) if now.about.is_some() => Some((session.clone(), now.session.clone())),
        _ => None,
    });
    assert_eq!(under, child);
    shower.until(|session, out| {
        (*session == grandchild && matches!(out, SessionEvent::CallStarted { .. })).then_some(())
    });
    test.send(SessionCommand::CancelAgent { agent: grandchild.clone() });
    assert_eq!(shower.ended(&grandchild), SubagentEnd::Stopped(StopReason::Cancelled));
    assert_eq!(shower.ended(&child), SubagentEnd::Stopped(StopReason::EndTurn));
    let Ok(SessionAnswer::TurnEnded { reason, .. }) = test.client.answer(ticket) else { panic!("it ends") };
    assert_eq!(reason, StopReason::EndTurn);
}
