//! Learned properties of a model are used wherever it is called: after a restart, by hooks, and in other
//! conversations.

use epitome::model_name::Family;
use epitome::provider::learned::Learned;
use epitome::session::SessionCommand;
use epitome::session::complete::find_endpoint;
use epitome::session::registry::{Services, Sessions};
use epitome::thread::{ModelName, StopReason};
use epitome::tokens::{Calibration, Rulers, Tally};
use epitome_scripted_model::ModelStep;

use super::desk::{Desk, put, text};

const HAIKU: &str = "anthropic/claude-haiku-4-5";

/// The services of a new process on this desk's home, with its own `rulers`.
fn restarted(desk: &Desk, rulers: Rulers) -> Services {
    let learned = Learned::below(&desk.home.join("data"));
    Services { learned, rulers, ..desk.services.clone() }
}

fn sessions_of(desk: &Desk, services: &Services) -> Sessions {
    desk.on_runtime(|| Sessions::new(services.clone(), tokio::runtime::Handle::current()))
}

/// The calibration learned from a model's replies was lost at each restart: the first count of every process
/// was that of a model without any reply.
#[test]
fn a_models_token_calibration_survives_a_restart() {
    let usage = ModelStep::Usage { input: 9_000, output: 2 };
    let mut desk = Desk::new(vec![vec![text("Read."), usage]]);
    let before = restarted(&desk, Rulers::with_vocabulary());
    before.rulers.load();
    while before.rulers.ready().is_none() {
        std::thread::yield_now();
    }
    desk.sessions = sessions_of(&desk, &before);
    let ticket = desk.ticket();
    desk.session = desk.sessions.create(ticket, desk.opening(&desk.client, desk.environment()));
    desk.client.answer(ticket).expect("a session");
    desk.ask(&"These are some words of a long paste. ".repeat(600));
    let model = desk.model.requests()[0].body["model"].as_str().expect("a name").to_owned();
    let model = ModelName(format!("anthropic/{model}"));
    let learnt = before.rulers.of(Some(&model)).calibration();
    assert!(learnt.is_learnt());
    let close = SessionCommand::Close { ticket: desk.ticket(), client: desk.client.id };
    desk.send(close);
    desk.wait_for(desk.sessions.settled());
    let after = restarted(&desk, Rulers::default());
    desk.sessions = sessions_of(&desk, &after);
    let environment = desk.environment();
    desk.load(environment);
    desk.ask("And now?");
    assert_eq!(after.rulers.of(Some(&model)).calibration(), learnt);
}

/// Models called by hooks and callbacks used the window in the model table, even if a rejected request had
/// revealed a different one.
#[test]
fn hooks_and_callbacks_use_the_learned_window_of_a_model() {
    let desk = Desk::new(Vec::new());
    let model = ModelName(HAIKU.into());
    let (services, environment) = (restarted(&desk, Rulers::default()), desk.environment());
    let find = || async {
        find_endpoint(&services, Some(&model), &Default::default(), &environment).await.expect("a place")
    };
    let endpoint = desk.wait_for(find());
    services.learned.learn_window(&endpoint, 50_000);
    assert_eq!(desk.wait_for(find()).window, 50_000);
}

/// A model of `local/` was always looked for at the usual addresses of this machine, even if the user had
/// configured an address in `[providers.local]`.
#[test]
fn a_local_model_is_called_at_its_configured_address() {
    let mut desk = Desk::new(Vec::new());
    let base_url = desk.model.openai_base_url();
    let config = format!("[providers.local]\nwire = \"openai_chat\"\nbase_url = \"{base_url}\"\n");
    put(&desk.home.join("config.toml"), &config);
    // A different server answers at the address in the variable.
    let environment = |model: &str| {
        let pairs = [("EPITOME_MODEL", model), ("EPITOME_LOCAL_URL", "http://127.0.0.1:1")];
        pairs.map(|(name, value)| (name.into(), value.into())).to_vec()
    };
    desk.reload(environment("local/qwen"));
    assert_eq!(desk.ask("Hello?"), StopReason::EndTurn);
    assert_eq!(desk.last_request().body["model"], "qwen");
    let (settings, _) = epitome::config::Settings::load(&desk.services.paths, None, |_| None);
    let found = desk.wait_for(async {
        let name = ModelName("local/other".into());
        find_endpoint(&desk.services, Some(&name), &settings, &environment("local/qwen")).await
    });
    assert_eq!(found.expect("it is told where").base_url, base_url);
}

#[test]
fn stored_calibrations_are_loaded_once_and_never_override_newer_ones() {
    let desk = Desk::new(Vec::new());
    let model = ModelName(HAIKU.into());
    let of = |reported| {
        let mut calibration = Calibration::start(Family::Claude);
        calibration.learn(Tally { text: 10_000, media: 0 }, reported);
        calibration
    };
    let earlier = Learned::below(&desk.home.join("data"));
    earlier.learn_calibration(&model, of(15_000));
    desk.wait_for(async { earlier.save().await });
    let services = restarted(&desk, Rulers::default());
    desk.wait_for(services.recall());
    assert_eq!(services.rulers.of(Some(&model)).calibration(), of(15_000));
    let newer = services.rulers.learn(&model, Tally { text: 10_000, media: 0 }, 12_000);
    desk.wait_for(services.recall());
    assert_eq!(services.rulers.of(Some(&model)).calibration(), newer);
}
