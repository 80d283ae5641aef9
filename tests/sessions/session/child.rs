//! Child sessions that run a recipe, with the parent's history, limits and user.

use std::sync::Arc;
use std::time::Duration;

use epitome::hooks::output::Utterance;
use epitome::session::child::{
    self, ChildError, ChildHistory, ChildModel, ChildNews, ChildOutcome, ChildSpec, Lineage, NewsReceiver,
};
use epitome::session::complete::{complete, find_endpoint};
use epitome::session::port::SessionPort as _;
use epitome::session::registry::SessionQuery;
use epitome::session::session_permissions::SessionPermissions;
use epitome::session::{PermissionRequest, SessionCommand, UserDecision};
use epitome::thread::{
    Change, Mode, ModelName, OutcomeStatus, Role, Rule, StopReason, ThoughtLevel, Thread, ToolOutcome,
};
use epitome::tools::Workspace;
use epitome_scripted_model::{ModelStep, SeenPart};
use epitome_test_harness::session::{TestSession, call};
use epitome_test_harness::text;
use serde_json::json;
use tokio::task::JoinHandle;

/// Time limit of a child, except of those that are ended early.
const TIME: Duration = Duration::from_secs(15);

type Running = (JoinHandle<Result<ChildOutcome, ChildError>>, NewsReceiver);

fn thread(test: &TestSession) -> Thread {
    Thread::replay(test.log()).expect("a log")
}

/// A child that runs the recipe `review` for the test's session in its current state.
fn spec(test: &TestSession, prompt: &str) -> ChildSpec {
    let parent = thread(test);
    let lineage = Lineage {
        parent: Some(test.session.clone()),
        recipe: "review".into(),
        depth: 1,
        ..Lineage::default()
    };
    let workspace = Workspace::new(test.cwd().to_path_buf(), Vec::new(), Arc::new(test.environment()));
    ChildSpec {
        lineage,
        prompt: prompt.into(),
        history: ChildHistory::None,
        frame: parent.frame_entry().cloned(),
        workspace: Arc::new(workspace),
        overrides: Default::default(),
        model: ChildModel::Configured,
        thought: ThoughtLevel::default(),
        mode: Mode::Ask,
        session_permissions: SessionPermissions::default(),
        allowed_tools: None,
        max_rounds: None,
        time: TIME,
        hooks: Arc::default(),
        agent: None,
    }
}

fn native(test: &TestSession, prompt: &str) -> ChildSpec {
    ChildSpec { history: ChildHistory::Native(thread(test).view().clone()), ..spec(test, prompt) }
}

fn start(test: &TestSession, spec: ChildSpec) -> Running {
    let (news, received) = child::news();
    (test.spawn(child::run(test.services.clone(), spec, news)), received)
}

fn run(test: &TestSession, spec: ChildSpec) -> Result<ChildOutcome, String> {
    let (child, _received) = start(test, spec);
    test.wait_for(child).expect("no panic").map_err(|error| error.to_string())
}

/// The next message of a child, except its usage and start.
async fn next(received: &mut NewsReceiver) -> Option<ChildNews> {
    loop {
        match received.recv().await {
            Some(ChildNews::Spent { .. } | ChildNews::Began { .. }) => {}
            other => return other,
        }
    }
}

/// Waits for the next permission request, and answers it.
fn decide(test: &TestSession, received: &mut NewsReceiver, decision: UserDecision) -> Arc<PermissionRequest> {
    let Some(ChildNews::Asked { ask, permission, answers, .. }) = test.wait_for(next(received)) else {
        panic!("a question was expected")
    };
    let answers = answers.upgrade().expect("the child lives");
    answers.try_send(SessionCommand::Decide { ask, decision }).expect("there is room");
    permission
}

fn finished(outcome: &ChildOutcome) -> Vec<&ToolOutcome> {
    let outcomes = outcome.entries.iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome),
        _ => None,
    });
    outcomes.collect()
}

#[test]
fn a_child_returns_its_last_text_and_leaves_nothing_behind() {
    let usage = ModelStep::Usage { input: 20, output: 3 };
    let mut test = TestSession::new(vec![
        vec![text("Hello.")],
        vec![text("Looking."), call(json!({})), usage.clone()],
        vec![text("All is well."), usage],
    ]);
    test.ask("Hello");
    let before = test.log().len();
    let outcome = run(&test, spec(&test, "/compact is what this says")).expect("an outcome");
    assert_eq!(
        (outcome.text.as_str(), outcome.reason, outcome.rounds),
        ("All is well.", StopReason::EndTurn, 2)
    );
    assert_eq!((outcome.usage.input, outcome.usage.output), (40, 6));
    assert_eq!(finished(&outcome)[0].status, OutcomeStatus::Completed);
    assert_eq!(test.model.requests()[1].seen(), [SeenPart::User("/compact is what this says".into())]);
    let listed: Vec<_> = test
        .sessions
        .list(&SessionQuery::default())
        .expect("a list")
        .into_iter()
        .map(|header| header.session)
        .collect();
    assert_eq!(listed, [test.session.clone()]);
    let files = test.journal().parent().expect("a folder").read_dir().expect("a listing");
    let names = files.map(|file| file.expect("an entry").file_name().into_string().expect("a name"));
    let other = names.filter(|name| !name.starts_with(&test.session.0)).collect::<Vec<_>>();
    assert_eq!((other, test.log().len()), (Vec::new(), before));
}

/// All bytes before the recipe's text are equal to those of the parent's request; otherwise the provider's cache would
/// miss.
#[test]
fn a_child_with_the_history_sends_the_same_prefix_as_its_parent() {
    let mut test =
        TestSession::new(vec![vec![text("Reading."), call(json!({"bytes": 5}))], vec![text("Read.")]]);
    test.ask("Read it");
    let parent = test.last_request();
    assert_eq!(run(&test, native(&test, "Sum it up")).expect("an outcome").text, "ok");
    let child = test.last_request();
    assert_eq!(
        (&child.body["system"], &child.body["tools"]),
        (&parent.body["system"], &parent.body["tools"])
    );
    let (was, is) = (parent.seen(), child.seen());
    assert_eq!(is[..was.len()], was);
    assert_eq!(is[was.len()..], [SeenPart::Agent("Read.".into()), SeenPart::User("Sum it up".into())]);
}

#[test]
fn a_flat_history_is_one_text() {
    let mut test = TestSession::new(vec![vec![text("Hello, you.")]]);
    test.ask("Hello");
    let ChildHistory::Native(view) = native(&test, "").history else { panic!("it was made above") };
    let flat = ChildSpec { history: ChildHistory::Flat(view), ..spec(&test, "Sum it up") };
    run(&test, flat).expect("an outcome");
    let seen = test.last_request().seen();
    let [SeenPart::User(history), SeenPart::User(prompt)] = &seen[..] else { panic!("two texts: {seen:?}") };
    assert!(history.contains("USER: Hello\n\nAGENT: Hello, you."), "{history}");
    assert_eq!(prompt, "Sum it up");
}

/// Some providers reject a request that has calls but declares no tools.
#[test]
fn a_child_without_tools_gets_earlier_calls_as_text() {
    let mut test =
        TestSession::new(vec![vec![text("Reading."), call(json!({"bytes": 5}))], vec![text("Read.")]]);
    test.ask("Read it");
    run(&test, ChildSpec { allowed_tools: Some(Vec::new()), ..native(&test, "Sum it up") })
        .expect("an outcome");
    let request = test.last_request();
    assert!(request.body["tools"].as_array().is_none_or(Vec::is_empty), "{}", request.body["tools"]);
    let seen = request.seen();
    let has_calls = |seen: &SeenPart| matches!(seen, SeenPart::AgentCall { .. } | SeenPart::Result { .. });
    assert!(!seen.iter().any(has_calls), "{seen:?}");
    let shown = format!("{seen:?}");
    assert!(shown.contains("Using tool: does") && shown.contains("Tool result: done"), "{shown}");
}

#[test]
fn a_child_may_only_use_its_tools_and_command_lines() {
    let foreign = ModelStep::Call { name: "bash".into(), input: json!({}) };
    let mut test = TestSession::new(vec![
        vec![text("Hi.")],
        vec![foreign, call(json!({"asks": "person"})), call(json!({}))],
        vec![text("Done.")],
    ]);
    test.ask("Hello");
    let mut spec = ChildSpec { allowed_tools: Some(vec!["does".into()]), ..spec(&test, "Go") };
    spec.lineage.allowed_commands = Some(vec!["git *".into()]);
    let outcome = run(&test, spec).expect("an outcome");
    let names = test.last_request().body["tools"].as_array().expect("tools").len();
    assert_eq!(names, 1);
    let came_of_it: Vec<_> =
        finished(&outcome).iter().map(|outcome| (outcome.status, outcome.model_text())).collect();
    let [unknown, command, allowed] = &came_of_it[..] else { panic!("three outcomes: {came_of_it:?}") };
    assert!(unknown.0 == OutcomeStatus::Failed && unknown.1.contains("The tools are does."), "{}", unknown.1);
    assert!(command.0 == OutcomeStatus::Denied && command.1.contains("git *"), "{}", command.1);
    assert_eq!(allowed.0, OutcomeStatus::Completed);
}

#[test]
fn a_childs_permission_request_is_answered_through_its_parent() {
    let asks = || vec![call(json!({"asks": "person"}))];
    let test = TestSession::new(vec![asks(), asks(), vec![text("Done.")]]);
    let (child, mut received) = start(&test, spec(&test, "Go"));
    let card = decide(&test, &mut received, UserDecision::AllowAlways);
    assert_eq!(card.card.title, "review: Doing");
    let rule = Rule::Command { line: "do".into() };
    let mut news = Vec::new();
    while let Some(next) = test.wait_for(next(&mut received)) {
        news.push(match next {
            ChildNews::Asked { .. } => panic!("always was said"),
            ChildNews::Spent { .. } => unreachable!("it is passed over"),
            ChildNews::Settled { .. } => "settled".to_owned(),
            ChildNews::Allowed { rule: allowed } => {
                assert_eq!(allowed, rule);
                "allowed".to_owned()
            }
            ChildNews::Finished { outcome, .. } => {
                assert_eq!(outcome.call, card.call);
                "finished".to_owned()
            }
            ChildNews::Ended { .. } => "ended".to_owned(),
            ChildNews::Began { .. } => unreachable!("`next` passes it over"),
            ChildNews::Streamed { .. } => panic!("a callback is not shown"),
        });
    }
    assert_eq!(news, ["settled", "allowed", "finished", "ended"]);
    let outcome = test.wait_for(child).expect("no panic").expect("an outcome");
    assert!(finished(&outcome).iter().all(|outcome| outcome.status == OutcomeStatus::Completed));
}

#[test]
fn a_permission_request_without_a_receiver_is_denied() {
    let test = TestSession::new(vec![vec![call(json!({"asks": "person"}))]]);
    let (child, received) = start(&test, spec(&test, "Go"));
    drop(received);
    let outcome = test.wait_for(child).expect("no panic").expect("an outcome");
    assert_eq!(finished(&outcome)[0].status, OutcomeStatus::Denied);
}

#[test]
fn dropping_a_child_ends_its_tools_and_withdraws_its_request() {
    let waits = || vec![call(json!({"do": "wait"}))];
    let both = vec![call(json!({"do": "wait"})), call(json!({"asks": "person"}))];
    let test = TestSession::new(vec![both, waits(), vec![text("Done.")]]);
    let (child, mut received) = start(&test, spec(&test, "Go"));
    assert!(matches!(test.wait_for(next(&mut received)), Some(ChildNews::Asked { .. })));
    child.abort();
    assert!(matches!(test.wait_for(next(&mut received)), Some(ChildNews::Ended { .. })));
    // One permit: a tool that outlived its child would take it from the next call.
    test.release_tool();
    assert_eq!(run(&test, spec(&test, "Again")).expect("an outcome").text, "Done.");
}

#[test]
fn a_child_that_exceeds_its_time_limit_is_stopped() {
    let test = TestSession::new(vec![vec![ModelStep::Hang]]);
    let brief = ChildSpec { time: Duration::from_millis(50), ..spec(&test, "Go") };
    let error = run(&test, brief).expect_err("it hangs");
    assert!(error.contains("\"review\"") && error.contains("within 0.05 s"), "{error}");
}

#[test]
fn a_failed_childs_error_names_the_recipe_and_the_reason() {
    let refused = ModelStep::Error { status: 400, retry_after: None, message: Some("no such thing".into()) };
    let test = TestSession::new(vec![vec![refused]]);
    let error = run(&test, spec(&test, "Go")).expect_err("it was refused");
    assert!(error.contains("\"review\"") && error.contains("no such thing"), "{error}");
}

#[test]
fn a_child_stops_at_its_limit_of_rounds() {
    let test = TestSession::with(|_| vec![text("Once more."), call(json!({}))]);
    let outcome = run(&test, ChildSpec { max_rounds: Some(2), ..spec(&test, "Go") }).expect("an outcome");
    assert_eq!((outcome.reason, outcome.rounds), (StopReason::MaxRounds, 2));
}

/// The window differs from the one in the model table: the provider rejects the history, with or without reporting the
/// actual window.
#[test]
fn a_history_that_does_not_fit_is_shortened_until_it_does() {
    for names_limit in [true, false] {
        let mut test = TestSession::with(move |request| {
            let used = request.body.to_string().len() / 4;
            let is_child = request.last_user_text() == "Sum it up";
            let why = match names_limit {
                true => format!("prompt is too long: {used} tokens > 6000 maximum"),
                false => "prompt is too long".to_owned(),
            };
            match is_child && used > 6_000 {
                true => vec![ModelStep::Error { status: 400, retry_after: None, message: Some(why) }],
                false => vec![ModelStep::Flood { count: 4_000, text: "many words ".into() }],
            }
        });
        test.ask("Say many words");
        test.ask("And the last word is walnut");
        let outcome = run(&test, native(&test, "Sum it up")).expect("it fits in the end");
        assert!(outcome.text.contains("many words"));
        let seen = format!("{:?}", test.last_request().seen());
        assert!(seen.contains("walnut") && seen.contains("left out"), "{seen}");
    }
}

/// The child must not discard its work and start again.
#[test]
fn results_that_a_child_read_are_compacted_when_they_do_not_fit() {
    let test = TestSession::with(|request| {
        let used = request.body.to_string().len() / 4;
        if used > 6_000 {
            let message = Some(format!("prompt is too long: {used} tokens > 6000 maximum"));
            return vec![ModelStep::Error { status: 400, retry_after: None, message }];
        }
        match request.last_user_text() {
            last if last == "Go" && !request.body.to_string().contains("tool_result") => {
                vec![call(json!({"says": "many words ".repeat(3_000)}))]
            }
            last if last.contains("Then write the handover") => vec![text("It was read.")],
            _ => vec![text("Done.")],
        }
    });
    let outcome = run(&test, spec(&test, "Go")).expect("an outcome");
    assert_eq!(outcome.text, "Done.");
    let compacted = outcome.entries.iter().filter(|entry| matches!(entry.change, Change::Compacted { .. }));
    assert_eq!((compacted.count(), finished(&outcome).len()), (1, 1));
}

#[test]
fn a_history_that_cannot_fit_is_shortened_before_it_is_sent() {
    let mut test =
        TestSession::new(vec![vec![ModelStep::Flood { count: 4_000, text: "many words ".into() }]]);
    test.ask("Say many words");
    let services = test.services.clone();
    let environment = test.environment();
    let mut endpoint = test.wait_for(async move {
        find_endpoint(&services, None, &Default::default(), &environment).await.expect("a place")
    });
    endpoint.set_window(6_000);
    let outcome =
        run(&test, ChildSpec { model: ChildModel::At(Box::new(endpoint)), ..native(&test, "Sum it up") });
    assert_eq!(outcome.expect("an outcome").text, "ok");
    assert_eq!(test.model.requests().len(), 2);
    let bytes = test.last_request().body.to_string().len();
    assert!(bytes / 4 < 6_000, "{bytes}");
}

#[test]
fn a_completion_is_one_request_without_tools() {
    let test = TestSession::new(vec![vec![text("Four."), ModelStep::Usage { input: 9, output: 2 }]]);
    let environment = test.environment();
    let said = |role, text: &str| Utterance { role, text: text.into() };
    let messages = [said(Role::System, "Count."), said(Role::User, "Two and two?")];
    let answer = |messages: Vec<Utterance>| {
        let services = test.services.clone();
        let environment = environment.clone();
        test.wait_for(async move {
            let model = ModelName("anthropic/claude-haiku-4-5".into());
            let found = find_endpoint(&services, Some(&model), &Default::default(), &environment).await;
            complete(&services.http, &found.expect("a place"), &messages, 50).await
        })
    };
    let (said_back, usage) = answer(messages.to_vec()).expect("an answer");
    assert_eq!((said_back.as_str(), usage.input, usage.output), ("Four.", 9, 2));
    let request = test.last_request();
    assert_eq!(
        (&request.body["model"], &request.body["max_tokens"]),
        (&json!("claude-haiku-4-5"), &json!(50))
    );
    assert!(request.body["system"].to_string().contains("Count."));
    assert_eq!(request.seen(), [SeenPart::User("Two and two?".into())]);
    let error = answer(vec![said(Role::Assistant, "Hm.")]).expect_err("nothing to answer").to_string();
    assert!(error.contains("user"), "{error}");
}
