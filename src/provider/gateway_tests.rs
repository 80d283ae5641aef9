//! What a client of a server sends, and what the server makes of it.

use std::ffi::OsString;
use std::sync::Arc;

use super::*;
use crate::endpoint::{choose, is_searched, resolve};
use crate::learned::Learned;
use crate::wire::Purpose;
use crate::wire::encoding::Encoding;
use crate::wire::views_tests::{OwnedView, text};
use epitome_config::BuiltInSettings;

/// The variables of a server with keys for all formats and clouds.
const VARIABLES: [(&str, &str); 10] = [
    ("ANTHROPIC_API_KEY", "sk-secret"),
    ("OPENAI_API_KEY", "sk-secret"),
    ("GEMINI_API_KEY", "sk-secret"),
    ("MISTRAL_API_KEY", "sk-secret"),
    ("AZURE_OPENAI_API_KEY", "sk-secret"),
    ("AZURE_OPENAI_RESOURCE_NAME", "ours"),
    ("AWS_BEARER_TOKEN_BEDROCK", "sk-secret"),
    ("AWS_REGION", "eu-west-1"),
    ("GOOGLE_CLOUD_PROJECT", "ours"),
    ("GOOGLE_CLOUD_LOCATION", "global"),
];

const MODELS: [&str; 9] = [
    "anthropic/claude-sonnet-5-5",
    "openai/gpt-6-sol",
    "openai/gpt-4-turbo",
    "gemini/gemini-3.8-flash",
    "mistral/devstral-latest",
    "azure/gpt-5.4",
    "bedrock/eu.anthropic.claude-sonnet-5-5-v1:0",
    "vertex/claude-opus-4-5@20251101",
    "vertex/gemini-3.8-flash",
];

fn environment(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn of_server(model: &str, settings: &Settings) -> Endpoint {
    resolve(&ModelName(model.into()), settings, &environment(&VARIABLES)).expect("all keys are set")
}

/// The settings of a client to whom a server offers these endpoints.
fn clients_settings(settings: &Settings, endpoints: &[Endpoint]) -> Settings {
    let models = endpoints.iter().map(|it| (it.name.0.clone(), describe(settings, it))).collect();
    let offered = GatewayModels {
        address: "https://server:4711".to_owned(),
        default: Some(endpoints[0].name.0.clone()),
        models,
    };
    // As it arrives.
    let offered =
        serde_json::from_slice(&serde_json::to_vec(&offered).expect("plain data")).expect("the same");
    let gateway = GatewaySettings {
        address: "https://server:4711".to_owned(),
        offered: Arc::new(offered),
        ..GatewaySettings::default()
    };
    Settings { gateway: Some(gateway), ..Settings::default() }
}

fn path_of(url: &str) -> &str {
    url.strip_prefix("https://server:4711").expect("it is sent to the server")
}

#[test]
fn a_client_sends_the_same_bodies_and_the_server_sends_them_to_the_same_urls() {
    let settings = Settings::default();
    let endpoints = MODELS.map(|model| of_server(model, &settings));
    let clients = clients_settings(&settings, &endpoints);
    for own in &endpoints {
        let client = resolve(&own.name, &clients, &environment(&[("EPITOME_REMOTE_TOKEN", "t")]));
        let client = client.expect("it is offered");
        assert_eq!(
            (client.wire, client.window, client.max_output, &client.abilities, client.edit_tools),
            (own.wire, own.window, own.max_output, &own.abilities, own.edit_tools),
            "{}",
            own.name
        );
        for (theirs, ours) in [
            (Some(client.url()), Some(own.url())),
            (client.count_url(), own.count_url()),
            (client.compact_url(), own.compact_url()),
        ] {
            let called = theirs.as_ref().map(|url| {
                let (_, url) = own.call_of_client(path_of(url), None).unwrap_or_else(|| panic!("{url}"));
                url
            });
            assert_eq!(called, ours, "{}", own.name);
        }
        let view = OwnedView::default().user(vec![text("hello")]).with_tools();
        for purpose in [Purpose::Reply, Purpose::Count] {
            let encode =
                |endpoint: &Endpoint| Encoding::default().encode(endpoint, &view.request(), purpose).bytes();
            let body = encode(&client);
            assert_eq!(body, encode(own), "{}", own.name);
            assert_eq!(own.check_body(&body), Ok(()), "{}", own.name);
        }
        let sent: Vec<&str> = client.sent_headers().map(|(name, _)| name.as_str()).collect();
        assert!(sent.iter().all(|name| name.starts_with("anthropic-")), "{sent:?}");
    }
}

#[test]
fn the_servers_settings_of_a_model_apply_to_its_clients_unless_they_have_their_own() {
    let mut settings = Settings::default();
    let of_model = ModelSettings {
        context_window: Some(50_000),
        images: Some(false),
        price: Some(PriceSettings { input: 1.0, output: 2.0, cache_read: None, cache_write: None }),
        ..ModelSettings::default()
    };
    settings.models.insert(MODELS[0].to_owned(), of_model);
    let mut clients = clients_settings(&settings, &[of_server(MODELS[0], &settings)]);
    let model = ModelName(MODELS[0].into());
    let learned = Learned::below(std::path::Path::new("/nowhere"));
    let client = |clients: &Settings| {
        let mut endpoint = resolve(&model, clients, &[]).expect("it is offered");
        learned.apply(clients, &mut endpoint);
        endpoint
    };
    let endpoint = client(&clients);
    assert_eq!((endpoint.window, endpoint.abilities.images), (50_000, false));
    assert_eq!(models::price(&clients, &model).map(|price| price.output), Some(2.0));
    let own = ModelSettings { context_window: Some(40_000), ..ModelSettings::default() };
    clients.models.insert(MODELS[0].to_owned(), own);
    assert_eq!(client(&clients).window, 40_000);
}

#[test]
fn the_other_forms_of_tools_are_called_too() {
    let mut settings = Settings::default();
    let chat = BuiltInSettings { wire: Some(WireFormat::OpenAiChat), ..BuiltInSettings::default() };
    settings.built_in.insert("openai".into(), chat);
    let own = of_server("openai/gpt-6-sol", &settings);
    let clients = clients_settings(&settings, std::slice::from_ref(&own));
    let learned = Learned::below(std::path::Path::new("/nowhere"));
    let client = resolve(&own.name, &clients, &[]).expect("it is offered");
    let other = learned.other_form(&clients, &client, &ErrorClass::ToolForm).expect("there is one");
    assert_eq!(path_of(&other.url()), "/gateway/openai%2Fgpt-6-sol/responses");
    let (endpoint, url) =
        own.call_of_client(path_of(&other.url()), None).expect("this endpoint sends such requests");
    assert_eq!((endpoint.wire, url.as_str()), (other.wire, "https://api.openai.com/v1/responses"));
    assert!(other.own_api, "the service is still OpenAI's");
}

#[test]
fn no_other_path_is_called() {
    let settings = Settings::default();
    let [claude, gemini] = [MODELS[0], MODELS[3]].map(|model| of_server(model, &settings));
    for (endpoint, path) in [
        (&claude, "/gateway/anthropic%2Fclaude-sonnet-5-5"),
        (&claude, "/gateway/anthropic%2Fclaude-sonnet-5-5/v1/models"),
        (&claude, "/gateway/anthropic%2Fclaude-sonnet-5-5/v1/messages?beta=true"),
        (&claude, "/gateway/anthropic%2Fclaude-sonnet-5-5/v1/messages/batches"),
        (&claude, "/gateway/anthropic%2Fclaude-opus-5-5/v1/messages"),
        (&claude, "/gateway/anthropic%2Fclaude-sonnet-5-5/../../v1/messages"),
        (&claude, "@evil.example/v1/messages"),
        (
            &gemini,
            "/gateway/gemini%2Fgemini-3.8-flash/v1beta/models/gemini-4-argon:streamGenerateContent?alt=sse",
        ),
        (&gemini, "/gateway/gemini%2Fgemini-3.8-flash/v1beta/models/gemini-3.8-flash:generateContent"),
    ] {
        assert_eq!(endpoint.call_of_client(path, None), None, "{path}");
    }
}

#[test]
fn a_body_for_another_model_or_with_other_fields_is_refused() {
    let claude = of_server(MODELS[0], &Settings::default());
    for (body, part) in [
        (r#"{"model":"claude-opus-5-5","messages":[]}"#, "for the model"),
        (r#"{"model":"claude-sonnet-5-5","mod\u0065l":"claude-opus-5-5"}"#, "occurs twice"),
        (r#"{"model":["claude-sonnet-5-5"]}"#, "no request"),
        (r#"{"model":"claude-sonnet-5-5","models":["claude-opus-5-5"]}"#, "\"models\""),
        (r#"{"model":"claude-sonnet-5-5","service_tier":"priority"}"#, "\"service_tier\""),
        ("[]", "no request"),
        ("", "no request"),
    ] {
        let refused = claude.check_body(body.as_bytes()).expect_err(body);
        assert!(refused.contains(part), "{body}: {refused}");
    }
}

#[test]
fn the_models_of_the_server_are_found_before_those_of_this_machine() {
    let settings = Settings::default();
    let mut clients = clients_settings(&settings, &[of_server("openai/gpt-6-sol", &settings)]);
    let key = environment(&[("ANTHROPIC_API_KEY", "own")]);
    let chosen = crate::endpoint::ConfiguredModel::Named(ModelName("openai/gpt-6-sol".into()));
    assert_eq!(choose(&clients, &key), chosen);
    // What the server doesn't offer is called as usual.
    let own = resolve(&ModelName(MODELS[0].into()), &clients, &key).expect("there is a key");
    assert_eq!(own.url(), "https://api.anthropic.com/v1/messages");
    assert!(is_searched(&ModelName("local/qwen".into()), &clients));
    // Before the server has answered, nothing is called in its place.
    clients.gateway.as_mut().expect("it is set").offered = Arc::default();
    let unknown = resolve(&ModelName(MODELS[0].into()), &clients, &key).expect_err("it may be the server's");
    assert!(unknown.message.contains("not known yet"), "{unknown}");
}
