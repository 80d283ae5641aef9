//! Subagents that the model starts: their input, their result, and their limits.

use epitome::provider::spent::Spent;
use epitome::session::{CancelTarget, Replay, SessionAnswer, SessionCommand, SessionEvent, UserDecision};
use epitome::thread::{CallId, Change, OutcomeStatus, StopReason, Thread, ToolOutcome};
use epitome_scripted_model::{ModelStep, RecordedRequest, SeenPart};
use epitome_test_harness::client::TestClient;
use epitome_test_harness::session::{Setup, TestSession, call};
use epitome_test_harness::text;
use serde_json::{Value, json};

use super::stage::{payloads, recorder};

fn task(input: Value) -> ModelStep {
    ModelStep::Call { name: "task".into(), input }
}

/// A call that starts a subagent.
fn hand(agent: &str, prompt: &str) -> ModelStep {
    task(json!({"description": "Do it", "prompt": prompt, "agent": agent}))
}

fn is_agents(request: &RecordedRequest) -> bool {
    request.body["system"].to_string().contains("You are the agent")
}

fn tool_names(request: &RecordedRequest) -> Vec<String> {
    let tools = request.body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A session whose parent and subagents send these replies, and then "ok".
fn started(config: &str, parent: Vec<Vec<ModelStep>>, agents: Vec<Vec<ModelStep>>) -> TestSession {
    started_with(&[("home/config.toml", config)], parent, agents)
}

fn started_with(
    files: &[(&str, &str)],
    parent: Vec<Vec<ModelStep>>,
    agents: Vec<Vec<ModelStep>>,
) -> TestSession {
    let files: Vec<(String, String)> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let (mut parent, mut agents) = (parent.into_iter(), agents.into_iter());
    Setup::with_files(&files).tools(&["task"]).start(move |request| {
        let next = if is_agents(request) { agents.next() } else { parent.next() };
        next.unwrap_or_else(|| vec![text("ok")])
    })
}

/// The outcomes of the conversation's own calls.
fn outcomes(test: &TestSession) -> Vec<ToolOutcome> {
    let log = test.log();
    let outcomes = log.iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.clone()),
        _ => None,
    });
    outcomes.collect()
}

fn raw(outcome: &ToolOutcome) -> &Value {
    outcome.raw.as_ref().expect("its figures")
}

#[test]
fn a_subagent_has_its_own_conversation_and_returns_its_last_text() {
    let usage = |input, output| ModelStep::Usage { input, output };
    let mut test = started(
        "",
        vec![
            vec![hand("general", "Find the walnut."), usage(100, 10)],
            vec![text("It is in a.rs."), usage(200, 5)],
        ],
        vec![
            vec![text("Looking."), call(json!({})), usage(40, 4)],
            vec![text("a.rs, line 7."), usage(50, 6)],
        ],
    );
    let ticket = test.prompt("Where is the walnut?");
    let Ok(SessionAnswer::TurnEnded { usage: turn, .. }) = test.client.answer(ticket) else {
        panic!("it ends")
    };
    let requests = test.model.requests();
    let (parent, agent) = (&requests[0], &requests[1]);
    assert_eq!(
        agent.seen(),
        [SeenPart::User("Find the walnut.".into())],
        "nothing of the parent's conversation"
    );
    assert!(tool_names(parent).contains(&"task".to_owned()));
    assert_eq!(tool_names(agent), ["does", "bash", "recall"], "all but task");
    let tools = parent.body["tools"].to_string();
    assert!(tools.contains("- explore: Finds things out") && tools.contains("- general: "), "{tools}");

    let outcome = &outcomes(&test)[0];
    assert_eq!((outcome.status, outcome.model_text().as_str()), (OutcomeStatus::Completed, "a.rs, line 7."));
    let figures = raw(outcome);
    assert_eq!((&figures["agent"], &figures["ended"]), (&json!("general"), &json!("done")));
    assert_eq!((&figures["rounds"], &figures["calls"]), (&json!(2), &json!(1)));
    assert_eq!((&figures["tokens"]["input"], &figures["tokens"]["output"]), (&json!(90), &json!(10)));
    let work = outcome.whole.as_deref().expect("its work is kept");
    for part in ["# Do it", "## Task\n\nFind the walnut.", "Looking.", "**Doing**", "a.rs, line 7."] {
        assert!(work.contains(part), "{part:?} is missing in {work}");
    }

    // Its usage is added to its parent's and logged, so a reloaded session includes it.
    assert_eq!((turn.input, turn.output), (390, 25));
    let thread = Thread::replay(test.log()).expect("a log");
    let spent = Spent::total(&Default::default(), &thread);
    assert_eq!((spent.usage.input, spent.usage.output), (390, 25));
    let cost = spent.cost.expect("the model's prices are known");
    let live = test.client.seen.iter().rev().find_map(|out| match out {
        SessionEvent::Usage(usage) => usage.cost,
        _ => None,
    });
    assert!((live.expect("it is reported") - cost).abs() < 1e-9, "{live:?} and {cost}");
}

#[test]
fn a_subagents_work_is_shown_as_progress() {
    let mut test = started(
        "",
        vec![vec![hand("general", "Go")]],
        vec![vec![text("I look first.\nWell."), call(json!({}))]],
    );
    test.ask("Go");
    let progress: String = test
        .client
        .seen
        .iter()
        .filter_map(|out| match out {
            SessionEvent::CallProgress { output, .. } => Some(output.text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(progress, "I look first.\n→ Doing\n");
}

/// A user's file in Claude Code's format, with its tool names.
#[test]
fn the_users_own_agent_has_the_tools_that_its_file_lists() {
    let checker = "---\nname: checker\ndescription: Checks it.\ntools: Bash, Read\n---\nYou check things.";
    let broken = "---\nname: broken\ndescription: Never.\ntools: {a: b}\n---\n";
    let files = [(".claude/agents/checker.md", checker), ("home/agents/broken.md", broken)];
    let mut test = started_with(
        &files,
        vec![vec![hand("checker", "Check")], vec![hand("broken", "Check"), hand("nobody", "Check")]],
        Vec::new(),
    );
    test.ask("Go");
    let requests = test.model.requests();
    assert!(requests[0].body["tools"].to_string().contains("- checker: Checks it."));
    assert_eq!(tool_names(&requests[1]), ["bash", "recall"]);
    assert!(requests[1].body["system"].to_string().contains("You check things."));
    let outcomes = outcomes(&test);
    // Both ran concurrently.
    let mut texts: Vec<String> = outcomes[1..].iter().map(ToolOutcome::model_text).collect();
    texts.sort();
    assert!(
        texts[0].contains("no agent \"broken\"") && texts[0].contains("must be a list of names"),
        "{texts:?}"
    );
    assert!(texts[1].contains("The agents are checker, explore, general"), "{texts:?}");
    test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } if text.contains("broken.md:4:") => Some(()),
        _ => None,
    });
}

#[test]
fn a_subagents_permission_request_names_it_and_returns_its_answer() {
    let asks = vec![call(json!({"asks": "person"}))];
    let mut test = started("", vec![vec![hand("general", "Go")]], vec![asks, vec![text("Done.")]]);
    let ticket = test.prompt("Go");
    let (ask, permission) = test.client.until(|out| match out {
        SessionEvent::Ask { ask, permission } => Some((*ask, permission.clone())),
        _ => None,
    });
    assert_eq!(permission.card.title, "general: Doing");
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert_eq!(outcomes(&test)[0].model_text(), "Done.");
}

/// Each row is a limit, the reason why the subagent ended, and the number of its model calls; the last of
/// them is for its final text.
#[test]
fn a_subagent_that_reaches_a_limit_reports_its_partial_result() {
    for (config, ended, rounds) in
        [("max_rounds = 2", "rounds", 3), ("max_tokens = 100", "tokens", 3), ("max_rounds = 1", "rounds", 2)]
    {
        let mut asked = 0;
        let config = format!("[agents]\n{config}");
        let mut test = Setup::with_config(&config).tools(&["task"]).start(move |request| {
            if !is_agents(request) {
                asked += 1;
                return if asked == 1 { vec![hand("general", "Go")] } else { vec![text("ok")] };
            }
            match request.last_user_text().contains("You reached your limit") {
                // Some models make another call even if they are asked not to.
                true => vec![text("Half of it."), call(json!({}))],
                false => vec![text("On."), call(json!({})), ModelStep::Usage { input: 50, output: 10 }],
            }
        });
        assert_eq!(test.ask("Go"), StopReason::EndTurn);
        let outcome = &outcomes(&test)[0];
        assert_eq!(outcome.status, OutcomeStatus::Completed, "{config}");
        let text = outcome.model_text();
        assert!(text.starts_with("Half of it.\n\n[The agent reached its limit of"), "{config}: {text}");
        assert_eq!(
            (&raw(outcome)["ended"], &raw(outcome)["rounds"]),
            (&json!(ended), &json!(rounds)),
            "{config}"
        );
        let work = outcome.whole.as_deref().unwrap_or_default();
        assert!(work.contains("No more calls are run"), "the call behind the last words is denied: {work}");
    }
}

/// The subagent's work is canceled, but it is still asked for its results.
#[test]
fn a_subagent_that_times_out_reports_its_partial_result() {
    let waits = vec![text("I begin."), call(json!({"do": "wait"}))];
    let agents = vec![waits, vec![text("Half of it.")]];
    let mut test = started("[agents]\ntimeout_s = 1", vec![vec![hand("general", "Go")]], agents);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let outcome = &outcomes(&test)[0];
    let text = outcome.model_text();
    assert!(text.starts_with("Half of it.\n\n[The agent reached its limit of time"), "{text}");
    assert_eq!((outcome.status, &raw(outcome)["ended"]), (OutcomeStatus::Completed, &json!("time")));
}

#[test]
fn a_subagent_ends_with_its_turn_and_its_work_is_kept() {
    let waits = vec![text("I begin."), call(json!({"do": "wait"}))];
    let mut test = started("", vec![vec![hand("general", "Go")]], vec![waits]);
    let ticket = test.prompt("Go");
    test.client.until(|out| {
        matches!(out, SessionEvent::CallProgress { output, .. } if output.text.contains('→')).then_some(())
    });
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    let outcome = &outcomes(&test)[0];
    assert_eq!(outcome.status, OutcomeStatus::Interrupted);
    assert!(outcome.whole.as_deref().is_some_and(|work| work.contains("I begin.")), "{outcome:?}");
    // One permit: a tool that outlived its subagent would take it from the next call.
    test.release_tool();
    test.ask("Again");
    assert_eq!(outcomes(&test).len(), 1);
}

#[test]
fn a_failed_subagent_has_an_outcome_that_says_why() {
    let refused = ModelStep::Error { status: 400, retry_after: None, message: Some("no such thing".into()) };
    let agents = vec![vec![text("I begin."), call(json!({}))], vec![refused]];
    let mut test = started("", vec![vec![hand("general", "Go")]], agents);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let outcome = &outcomes(&test)[0];
    let text = outcome.model_text();
    assert_eq!(outcome.status, OutcomeStatus::Failed);
    assert!(text.starts_with("I begin.") && text.contains("no such thing"), "{text}");
    assert_eq!(raw(outcome)["ended"], "failed");
}

#[test]
fn no_more_than_max_parallel_subagents_work_concurrently() {
    let all = (0..3).map(|at| hand("general", &format!("Part {at}"))).collect();
    let mut test =
        started("[agents]\nmax_parallel = 2", vec![all], vec![vec![call(json!({"do": "wait"}))]; 3]);
    let ticket = test.prompt("Go");
    for wanted in ["→ Doing\n", "→ Doing\n", "waiting for another agent to end\n"] {
        test.client.until(|out| {
            matches!(out, SessionEvent::CallProgress { output, .. } if output.text == wanted).then_some(())
        });
    }
    assert_eq!(test.model.requests().len(), 3, "the parent and two agents");
    (0..3).for_each(|_| test.release_tool());
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert!(outcomes(&test).iter().all(|outcome| outcome.model_text() == "ok"));
}

#[test]
fn subagents_are_limited_in_number_and_depth() {
    let mut test = started(
        "[agents]\nmax_per_turn = 1",
        vec![vec![hand("general", "One"), hand("general", "Two")]],
        vec![vec![hand("general", "Deeper")]],
    );
    test.ask("Go");
    let mut texts: Vec<String> = outcomes(&test).iter().map(ToolOutcome::model_text).collect();
    texts.sort();
    assert!(texts[0].starts_with("1 agents were started") && texts[1] == "ok", "{texts:?}");
    // The subagent called `task`, which is not in its tool list.
    let seen = format!("{:?}", test.model.requests().iter().rfind(|request| is_agents(request)));
    assert!(seen.contains("There is no tool"), "{seen}");
}

#[test]
fn with_max_depth_0_the_model_has_no_task_tool() {
    let mut test = started("[agents]\nmax_depth = 0", vec![vec![hand("general", "One")]], Vec::new());
    test.ask("Go");
    assert!(!tool_names(&test.model.requests()[0]).contains(&"task".to_owned()));
    assert!(outcomes(&test)[0].model_text().contains("No agent may be started from here"));
}

/// A user who revokes permissions for changes expects running subagents to stop changing things too.
#[test]
fn a_mode_change_applies_to_running_subagents() {
    let agents =
        vec![vec![call(json!({"do": "wait"}))], vec![call(json!({"asks": "person"}))], vec![text("Done.")]];
    let mut test = started("", vec![vec![hand("general", "Go")]], agents);
    let ticket = test.prompt("Go");
    test.client.until(|out| {
        matches!(out, SessionEvent::CallProgress { output, .. } if output.text.contains('→')).then_some(())
    });
    test.choose("mode", "full").expect("a mode");
    test.release_tool();
    // No permission request is shown.
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert_eq!(outcomes(&test)[0].model_text(), "Done.");
}

/// Regression: a user had switched to the mode in which nothing may be changed while a subagent waited for another one to
/// end. It began in the mode of its call, and ran commands without asking.
#[test]
fn a_mode_change_applies_to_subagents_that_wait_for_others() {
    let agents = vec![
        vec![call(json!({"do": "wait"}))],
        vec![text("Done.")],
        vec![call(json!({"asks": "person"}))],
        vec![text("Done, too.")],
    ];
    let both = vec![hand("general", "One"), hand("general", "Two")];
    let mut test = started("mode = \"full\"\n[agents]\nmax_parallel = 1", vec![both], agents);
    let ticket = test.prompt("Go");
    waiting_call(&mut test);
    test.choose("mode", "read_only").expect("a mode");
    test.release_tool();
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    let last = test.model.requests().into_iter().rfind(is_agents).expect("a request");
    assert!(format!("{:?}", last.seen()).contains("Commands cannot be run"), "{:?}", last.seen());
}

/// Regression: to cancel a subagent that waited for another one to end was answered as done, but it began nevertheless.
#[test]
fn a_subagent_that_waits_for_others_can_be_cancelled() {
    let both = vec![hand("general", "One"), hand("general", "Two")];
    let mut test = started("[agents]\nmax_parallel = 1", vec![both], vec![vec![call(json!({"do": "wait"}))]]);
    let ticket = test.prompt("Go");
    let target = CancelTarget::Call(waiting_call(&mut test));
    let (cancel, client) = (test.ticket(), test.client.id);
    test.send(SessionCommand::CancelOne { ticket: cancel, client, target });
    test.client.answer(cancel).expect("it is cancelled");
    test.release_tool();
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert_eq!(test.model.requests().len(), 4, "two of the parent and two of the first agent");
    let statuses: Vec<OutcomeStatus> = outcomes(&test).iter().map(|outcome| outcome.status).collect();
    assert_eq!(statuses, [OutcomeStatus::Interrupted, OutcomeStatus::Completed]);
}

/// Regression: that a subagent's change could not be recorded was reported to the subagent alone. The user expected to be
/// able to rewind it.
#[test]
fn the_user_learns_that_a_subagents_change_can_not_be_undone() {
    // A file where the directory of checkpoints would be.
    let files = [("home/config.toml", "mode = \"full\"\n"), ("home/data/checkpoints", "")];
    let write = json!({"file_path": "new.txt", "text": "new\n"});
    let mut test = Setup::with_files(&files).built_in_tools().start(move |request| {
        match (is_agents(request), request.seen().len()) {
            (false, 1) => vec![hand("general", "Write it")],
            (true, 1) => vec![ModelStep::Call { name: "file_write".into(), input: write.clone() }],
            _ => vec![text("Done.")],
        }
    });
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    assert!(test.cwd().join("new.txt").exists());
    test.client.until(|out| match out {
        SessionEvent::Notice { text, .. } => text.contains("may not be undoable").then_some(()),
        _ => None,
    });
}

/// Regression: a user cancelled a turn while the model of a subagent was at work. The cost of this call was in no log.
#[test]
fn the_running_call_of_a_subagent_is_paid_for_if_the_turn_is_cancelled() {
    let usage = ModelStep::Usage { input: 70_000, output: 10 };
    let agents = vec![vec![ModelStep::Think("Hm.".into()), usage, ModelStep::Hang]];
    let mut test = started("", vec![vec![hand("general", "Go")]], agents);
    let mut shower = TestClient::that_shows_agents(7);
    test.attach(&shower, Replay::Nothing);
    let ticket = test.prompt("Go");
    shower.until(|out| matches!(out, SessionEvent::Text { .. }).then_some(()));
    test.send(SessionCommand::Cancel);
    assert_eq!(test.reason(ticket), StopReason::Cancelled);
    test.client.entry(|change| match change {
        Change::Spent { usage, by, .. } => (usage.input == 70_000 && by == "general").then_some(()),
        _ => None,
    });
}

/// Waits until a subagent waits for another one; returns its call.
fn waiting_call(test: &mut TestSession) -> CallId {
    test.client.until(|out| match out {
        SessionEvent::CallProgress { call, output }
            if output.text == "waiting for another agent to end\n" =>
        {
            Some(call.clone())
        }
        _ => None,
    })
}

/// Regression: an "always" decision only applied to the session or subagent that had asked, and to subagents started
/// later. A running subagent asked again for a permission that the user had just given.
#[test]
fn an_always_decision_applies_to_all_running_subagents_immediately() {
    let asks = || call(json!({"asks": "person"}));
    let waits = || call(json!({"do": "wait"}));
    let agent = vec![vec![waits()], vec![asks()], vec![text("Done.")]];
    // The asking one of the three: the session itself, or one of its subagents.
    let of_session = (vec![vec![hand("general", "Go"), asks()]], agent.clone());
    let two = vec![vec![hand("general", "One"), hand("general", "Two")], vec![asks()]];
    let (mut calls, mut ends) = (0, 0);
    let mut test = started("", of_session.0, of_session.1);
    answered_once(&mut test);

    let mut parent = two.into_iter();
    let mut of_agents = Setup::new().tools(&["task"]).start(move |request| {
        if !is_agents(request) {
            return parent.next().unwrap_or_else(|| vec![text("ok")]);
        }
        let is_one = request.body["messages"].to_string().contains("One");
        let at = if is_one { &mut calls } else { &mut ends };
        *at += 1;
        match (is_one, *at) {
            (true, 1) | (false, 2) => vec![asks()],
            (false, 1) => vec![waits()],
            (_, _) => vec![text("Done.")],
        }
    });
    answered_once(&mut of_agents);
}

/// Answers the only permission request with "always", then lets the waiting tools continue; no other request may
/// follow.
fn answered_once(test: &mut TestSession) {
    let ticket = test.prompt("Go");
    let ask = test.client.until(|out| match out {
        SessionEvent::Ask { ask, .. } => Some(*ask),
        _ => None,
    });
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowAlways });
    test.client.until(|out| matches!(out, SessionEvent::Withdrawn { .. }).then_some(()));
    test.release_tool();
    assert_eq!(test.reason(ticket), StopReason::EndTurn);
    assert!(
        !test.client.seen.iter().any(|out| matches!(out, SessionEvent::Ask { .. })),
        "it was asked again"
    );
    let allowed = test.log().iter().filter(|entry| matches!(entry.change, Change::Allowed { .. })).count();
    assert_eq!(allowed, 1, "the log has it once");
}

#[test]
fn hooks_see_calls_and_end_of_a_subagent_as_a_subagents() {
    let declares = r#"{"protocol": 2, "events": ["before_tool_call", "agent_stop"]}"#;
    let files = [("home/hooks/watch".to_owned(), recorder(declares))];
    let mut test = Setup::with_files(&files).tools(&["task"]).start(|request| {
        match (is_agents(request), request.seen().len()) {
            (true, 1) => vec![call(json!({}))],
            (false, 1) => vec![hand("explore", "Go")],
            _ => vec![text("Done.")],
        }
    });
    test.ask("Go");
    let seen: Vec<String> = payloads(&test)
        .iter()
        .map(|payload| {
            let word = |field: &str| payload[field].as_str().unwrap_or_default().to_owned();
            format!(
                "{} {} {} {}",
                word("event"),
                word("tool_name"),
                word("invoked_by"),
                word("invoked_recipe")
            )
        })
        .collect();
    // `explore` has no tool that changes anything, and call hooks do not run for an unknown tool.
    assert_eq!(seen, ["before_tool_call task main ", "agent_stop  subagent explore", "agent_stop  main "]);
}

/// Regression: plan mode blocked edits, but the model was never informed, and tried again and again.
#[test]
fn plan_mode_is_announced_after_an_unchanged_prefix() {
    let mut test = TestSession::new(Vec::new());
    test.ask("Hello");
    test.choose("mode", "read_only").expect("a mode");
    test.ask("Plan it");
    test.ask("Go on");
    test.choose("mode", "ask").expect("a mode");
    test.ask("Carry it out");
    let requests = test.model.requests();
    let counts: Vec<(usize, usize)> = requests
        .iter()
        .map(|request| {
            let seen = format!("{:?}", request.seen());
            (seen.matches("Plan mode is on").count(), seen.matches("Plan mode is off").count())
        })
        .collect();
    assert_eq!(counts, [(0, 0), (1, 0), (1, 0), (1, 1)]);
    let (first, last) = (&requests[0], &requests[3]);
    assert_eq!((&first.body["system"], &first.body["tools"]), (&last.body["system"], &last.body["tools"]));
    assert_eq!(last.seen()[..1], first.seen()[..]);
}

/// A subagent may run as long as its parent, and its window is no larger, so it must be able to compact.
#[test]
fn a_subagent_whose_window_fills_compacts_its_own_conversation() {
    let config = "[models.\"anthropic/claude-sonnet-5-5\"]\ncontext_window = 16000\nmax_output = 1000\n\
                  [compaction]\nmodel = \"none\"";
    let flood = || ModelStep::Flood { count: 2_000, text: "many words ".into() };
    let says = |input| vec![flood(), call(json!({})), ModelStep::Usage { input, output: 4_000 }];
    let agents = vec![says(1_000), says(5_000), says(10_000), vec![text("All read.")]];
    let mut test =
        started(config, vec![vec![hand("general", "Read all of it, and remember the walnut.")]], agents);
    assert_eq!(test.ask("Go"), StopReason::EndTurn);
    let outcome = &outcomes(&test)[0];
    assert_eq!(outcome.model_text(), "All read.", "{outcome:?}");
    assert!(raw(outcome)["compactions"].as_u64().is_some_and(|count| count > 0), "{:?}", outcome.raw);
    let last = test.model.requests().into_iter().rfind(is_agents).expect("a request");
    assert!(format!("{:?}", last.seen()).contains("remember the walnut"), "its task outlives it");
}
