//! Learned properties of a model are used wherever it is called: after a restart, by hooks, and in other
//! conversations.

use epitome::model_name::Family;
use epitome::provider::learned::Learned;
use epitome::session::SessionCommand;
use epitome::session::complete::find_endpoint;
use epitome::session::port::SessionPort as _;
use epitome::session::registry::{SessionServices, Sessions};
use epitome::thread::{ModelName, StopReason};
use epitome::tokens::{Calibration, Rulers, Tally};
use epitome_scripted_model::ModelStep;
use epitome_test_harness::session::TestSession;
use epitome_test_harness::{text, write_file};

const HAIKU: &str = "anthropic/claude-haiku-4-5";

/// The services of a new process for this session's home, with other `rulers`.
fn restarted(test: &TestSession, rulers: Rulers) -> SessionServices {
    let learned = Learned::below(&test.home.join("data"));
    SessionServices { learned, rulers, ..test.services.clone() }
}

fn sessions_of(test: &TestSession, services: &SessionServices) -> Sessions {
    test.on_runtime(|| Sessions::new(services.clone(), tokio::runtime::Handle::current()))
}

/// Regression: the calibration learned from a model's replies was lost at each restart, so each process started with
/// uncalibrated counts.
#[test]
fn a_models_token_calibration_survives_a_restart() {
    let usage = ModelStep::Usage { input: 9_000, output: 2 };
    let mut test = TestSession::new(vec![vec![text("Read."), usage]]);
    let before = restarted(&test, Rulers::with_vocabulary());
    before.rulers.load();
    while before.rulers.ready().is_none() {
        std::thread::yield_now();
    }
    test.sessions = sessions_of(&test, &before);
    let ticket = test.ticket();
    test.session = test.sessions.create(ticket, test.opening(&test.client, test.environment()));
    test.client.answer(ticket).expect("a session");
    test.ask(&"These are some words of a long paste. ".repeat(600));
    let model = test.model.requests()[0].body["model"].as_str().expect("a name").to_owned();
    let model = ModelName(format!("anthropic/{model}"));
    let learnt = before.rulers.for_model(Some(&model)).calibration();
    assert!(learnt.is_learnt());
    let close = SessionCommand::Close { ticket: test.ticket(), client: test.client.id };
    test.send(close);
    test.wait_for(test.sessions.settled());
    let after = restarted(&test, Rulers::default());
    test.sessions = sessions_of(&test, &after);
    let environment = test.environment();
    test.load(environment);
    test.ask("And now?");
    assert_eq!(after.rulers.for_model(Some(&model)).calibration(), learnt);
}

/// Regression: models called by hooks and callbacks used the window in the model table, even if a rejected request had
/// revealed a different one.
#[test]
fn hooks_and_callbacks_use_the_learned_window_of_a_model() {
    let test = TestSession::new(Vec::new());
    let model = ModelName(HAIKU.into());
    let (services, environment) = (restarted(&test, Rulers::default()), test.environment());
    let find = || async {
        find_endpoint(&services, Some(&model), &Default::default(), &environment).await.expect("a place")
    };
    let endpoint = test.wait_for(find());
    services.learned.learn_window(&endpoint, 50_000);
    assert_eq!(test.wait_for(find()).window, 50_000);
}

/// Regression: a model of `local/` was always looked up at the usual addresses of this machine, even if the user had
/// configured an address in `[providers.local]`.
#[test]
fn a_local_model_is_called_at_its_configured_address() {
    let mut test = TestSession::new(Vec::new());
    let base_url = test.model.openai_base_url();
    let config = format!("[providers.local]\nwire = \"openai_chat\"\nbase_url = \"{base_url}\"\n");
    write_file(&test.home.join("config.toml"), &config);
    // A different server answers at the address in the variable.
    let environment = |model: &str| {
        let pairs = [("EPITOME_MODEL", model), ("EPITOME_LOCAL_URL", "http://127.0.0.1:1")];
        pairs.map(|(name, value)| (name.into(), value.into())).to_vec()
    };
    test.reload(environment("local/qwen"));
    assert_eq!(test.ask("Hello?"), StopReason::EndTurn);
    assert_eq!(test.last_request().body["model"], "qwen");
    let (settings, _) = epitome::config::Settings::load(&test.services.paths, None, |_| None);
    let found = test.wait_for(async {
        let name = ModelName("local/other".into());
        find_endpoint(&test.services, Some(&name), &settings, &environment("local/qwen")).await
    });
    assert_eq!(found.expect("the address is configured").base_url, base_url);
}

#[test]
fn stored_calibrations_are_loaded_once_and_never_override_newer_ones() {
    let test = TestSession::new(Vec::new());
    let model = ModelName(HAIKU.into());
    let of = |reported| {
        let mut calibration = Calibration::start(Family::Claude);
        calibration.learn(Tally { text: 10_000, media: 0 }, reported);
        calibration
    };
    let earlier = Learned::below(&test.home.join("data"));
    earlier.learn_calibration(&model, of(15_000));
    test.wait_for(async { earlier.save().await });
    let services = restarted(&test, Rulers::default());
    test.wait_for(services.recall());
    assert_eq!(services.rulers.for_model(Some(&model)).calibration(), of(15_000));
    let newer = services.rulers.learn(&model, Tally { text: 10_000, media: 0 }, 12_000);
    test.wait_for(services.recall());
    assert_eq!(services.rulers.for_model(Some(&model)).calibration(), newer);
}
