//! Table-driven tests of choosing and resolving models.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::*;
use crate::ErrorClass;
use crate::listing::{Lifecycle, ListedModel, ModelFacts};
use crate::resolve::LOCAL_BASES;
use epitome_config::{BuiltInSettings, ModelSettings, ProviderSettings, Settings, WireFormat};
use epitome_thread::ModelName;

fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn settings(model: Option<&str>) -> Settings {
    Settings { model: model.map(str::to_owned), ..Settings::default() }
}

fn named(name: &str) -> ConfiguredModel {
    ConfiguredModel::Named(ModelName(name.into()))
}

fn header<'a>(endpoint: &'a Endpoint, name: &str) -> Option<&'a str> {
    endpoint.sent_headers().find(|(key, _)| key == name).map(|(_, value)| value.expose())
}

fn with_provider(name: &str, wire: WireFormat, base_url: &str, key: Option<&str>) -> Settings {
    let provider = ProviderSettings {
        wire,
        base_url: base_url.into(),
        key_variable: key.map(str::to_owned),
        headers: BTreeMap::from([("X-Team".into(), "blue".into())]),
    };
    Settings { providers: BTreeMap::from([(name.into(), provider)]), ..Settings::default() }
}

#[test]
fn model_choice_follows_precedence() {
    let anthropic = ("ANTHROPIC_API_KEY", "a");
    let openai = ("OPENAI_API_KEY", "o");
    for (configured, variables, expected) in [
        (None, vec![anthropic, openai], named("anthropic/claude-sonnet-5-5")),
        (None, vec![("ANTHROPIC_AUTH_TOKEN", "t")], named("anthropic/claude-sonnet-5-5")),
        (None, vec![openai], named("openai/gpt-6-sol")),
        (None, vec![("OPENAI_BASE_URL", "http://box:8000/v1")], named("openai/gpt-6-sol")),
        (None, vec![("GEMINI_API_KEY", "g"), openai], named("openai/gpt-6-sol")),
        (None, vec![("GEMINI_API_KEY", "g")], named("gemini/gemini-3.8-flash")),
        (None, vec![("GOOGLE_API_KEY", "g")], named("gemini/gemini-3.8-flash")),
        (Some("local/qwen3:8b"), vec![anthropic], named("local/qwen3:8b")),
        // The settings already include the variable, overridden by the flag.
        (Some("local/qwen3:8b"), vec![("EPITOME_MODEL", "openai/gpt-5.4")], named("local/qwen3:8b")),
        (None, vec![("EPITOME_MODEL", "claude-opus-5-5")], named("anthropic/claude-opus-5-5")),
        (None, vec![("EPITOME_MODEL", "gemini-4-argon")], named("gemini/gemini-4-argon")),
        (None, vec![("EPITOME_MODEL", " "), openai], named("openai/gpt-6-sol")),
        (None, vec![], ConfiguredModel::SearchLocal(LOCAL_BASES.map(str::to_owned).to_vec())),
        (
            None,
            vec![("EPITOME_LOCAL_URL", "http://box:1234/")],
            ConfiguredModel::SearchLocal(vec!["http://box:1234/v1".into()]),
        ),
    ] {
        assert_eq!(choose(&settings(configured), &env(&variables)), expected, "{configured:?} {variables:?}");
    }
}

#[test]
fn anthropic_gets_the_current_version_and_the_key() {
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    assert_eq!(endpoint.url(), "https://api.anthropic.com/v1/messages");
    assert_eq!(endpoint.model, "claude-sonnet-5-5");
    assert!(endpoint.own_api);
    assert_eq!(header(&endpoint, "x-api-key"), Some("sk-test-key"));
    assert_eq!(header(&endpoint, "anthropic-version"), Some("2026-10-21"));
    assert_eq!((endpoint.window, endpoint.max_output), (1_000_000, 128_000));
}

#[test]
fn anthropic_gateways_get_the_common_version() {
    let env = env(&[
        ("ANTHROPIC_BASE_URL", "https://gateway.example/anthropic/v1/"),
        ("ANTHROPIC_AUTH_TOKEN", "tok"),
        ("ANTHROPIC_CUSTOM_HEADERS", "X-Tenant: seven\nX-Trace:on"),
    ]);
    let model = ModelName("anthropic/claude-sonnet-5-5".into());
    let endpoint = resolve(&model, &Settings::default(), &env).expect("a token is there");
    assert_eq!(endpoint.url(), "https://gateway.example/anthropic/v1/messages");
    assert!(!endpoint.own_api);
    assert_eq!(header(&endpoint, "anthropic-version"), Some("2023-06-01"));
    assert_eq!(header(&endpoint, "authorization"), Some("Bearer tok"));
    assert_eq!(header(&endpoint, "x-api-key"), None);
    assert_eq!(header(&endpoint, "x-tenant"), Some("seven"));
    assert_eq!(header(&endpoint, "x-trace"), Some("on"));
}

#[test]
fn openai_and_compatible_services_get_their_headers() {
    let own = env(&[("OPENAI_API_KEY", "k"), ("OPENAI_ORG_ID", "org"), ("OPENAI_PROJECT_ID", "proj")]);
    let model = ModelName("openai/gpt-6-sol".into());
    let endpoint = resolve(&model, &Settings::default(), &own).expect("a key is there");
    assert_eq!(endpoint.url(), "https://api.openai.com/v1/responses");
    assert!(endpoint.own_api);
    assert_eq!(header(&endpoint, "authorization"), Some("Bearer k"));
    assert_eq!(header(&endpoint, "openai-organization"), Some("org"));
    assert_eq!(header(&endpoint, "openai-project"), Some("proj"));

    let compatible = env(&[("OPENAI_BASE_URL", "http://box:8000")]);
    let endpoint = resolve(&model, &Settings::default(), &compatible).expect("no key is needed");
    assert_eq!(endpoint.url(), "http://box:8000/v1/chat/completions");
    assert!(!endpoint.own_api && endpoint.headers.is_empty());
}

#[test]
fn configured_provider_is_found_by_name() {
    let settings =
        with_provider("router", WireFormat::OpenAiChat, "https://router.example/api/v1", Some("R_KEY"));
    let model = ModelName("router/some/model".into());
    let endpoint = resolve(&model, &settings, &env(&[("R_KEY", "k")])).expect("its key is there");
    assert_eq!(endpoint.url(), "https://router.example/api/v1/chat/completions");
    assert_eq!((endpoint.provider(), endpoint.model.as_str()), ("router", "some/model"));
    assert_eq!(header(&endpoint, "authorization"), Some("Bearer k"));
    assert_eq!(header(&endpoint, "x-team"), Some("blue"));
    let error = resolve(&model, &settings, &env(&[])).expect_err("its key is missing");
    assert_eq!(error.class, ErrorClass::Auth);
    assert!(error.hint.is_some_and(|hint| hint.contains("R_KEY")));
}

#[test]
fn configured_provider_overrides_built_in_of_the_same_name() {
    let settings = with_provider("anthropic", WireFormat::AnthropicMessages, "http://127.0.0.1:9", None);
    let model = ModelName("anthropic/any".into());
    let endpoint = resolve(&model, &settings, &env(&[])).expect("it wants no key");
    assert_eq!(endpoint.url(), "http://127.0.0.1:9/v1/messages");
}

#[test]
fn gemini_accepts_either_key_variable() {
    let model = ModelName("gemini/gemini-3.8-flash".into());
    for (variables, url, key) in [
        (
            vec![("GEMINI_API_KEY", "g")],
            "https://generativelanguage.googleapis.com/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
            Some("g"),
        ),
        (
            vec![
                ("GEMINI_API_KEY", "g"),
                ("GOOGLE_API_KEY", "wins"),
                ("GOOGLE_GEMINI_BASE_URL", "https://gateway.example/google/"),
            ],
            "https://gateway.example/google/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
            Some("wins"),
        ),
        (
            vec![("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:9/v1")],
            "http://127.0.0.1:9/v1/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
            None,
        ),
    ] {
        let endpoint = resolve(&model, &Settings::default(), &env(&variables)).expect("it can be called");
        assert_eq!(endpoint.url(), url);
        assert_eq!((endpoint.wire, header(&endpoint, "x-goog-api-key")), (WireFormat::Gemini, key));
    }
}

#[test]
fn openai_format_depends_on_url_and_model() {
    use WireFormat::{AnthropicMessages, OpenAiChat, OpenAiResponses};
    let own = ("OPENAI_API_KEY", "k");
    let region = ("OPENAI_BASE_URL", "https://eu.api.openai.com/v1");
    let gateway = ("OPENAI_BASE_URL", "https://gateway.example/v1");
    for (model, configured, variables, expected) in [
        ("gpt-6-sol", None, vec![own], OpenAiResponses),
        ("gpt-4.1", None, vec![own], OpenAiResponses),
        ("gpt-3.5-turbo", None, vec![own], OpenAiChat),
        ("gpt-6-sol", None, vec![own, region], OpenAiResponses),
        ("gpt-6-sol", None, vec![own, gateway], OpenAiChat),
        ("gpt-6-sol", Some(OpenAiResponses), vec![own, gateway], OpenAiResponses),
        ("gpt-6-sol", Some(OpenAiChat), vec![own], OpenAiChat),
        ("claude-opus-5-5", Some(AnthropicMessages), vec![own, gateway], AnthropicMessages),
    ] {
        let built_in = BuiltInSettings { wire: configured, ..BuiltInSettings::default() };
        let settings =
            Settings { built_in: BTreeMap::from([("openai".into(), built_in)]), ..Settings::default() };
        let model = ModelName(format!("openai/{model}"));
        let endpoint = resolve(&model, &settings, &env(&variables)).expect("a key is there");
        assert_eq!(endpoint.wire, expected, "{model} {configured:?} {variables:?}");
    }
}

#[test]
fn built_in_provider_accepts_custom_key_and_headers() {
    let work = BuiltInSettings {
        wire: None,
        key_variable: Some("WORK_KEY".into()),
        headers: BTreeMap::from([("X-Team".into(), "blue".into())]),
    };
    let settings = Settings { built_in: BTreeMap::from([("gemini".into(), work)]), ..Settings::default() };
    let both = env(&[("WORK_KEY", "w"), ("GEMINI_API_KEY", "own")]);
    let model = ModelName("gemini/gemini-4-argon".into());
    let endpoint = resolve(&model, &settings, &both).expect("a key is there");
    assert_eq!(header(&endpoint, "x-goog-api-key"), Some("w"));
    assert_eq!(header(&endpoint, "x-team"), Some("blue"));
    assert_eq!(choose(&settings, &both), named("gemini/gemini-3.8-flash"));

    let without = env(&[("GEMINI_API_KEY", "own")]);
    let error = resolve(&model, &settings, &without).expect_err("the named key is missing");
    assert!(error.hint.is_some_and(|hint| hint.contains("WORK_KEY")));
    assert!(matches!(choose(&settings, &without), ConfiguredModel::SearchLocal(_)));
}

/// Regression: a limit with a mistake did not apply, and the call was sent.
#[test]
fn no_model_is_called_while_a_limit_on_cost_is_unknown() {
    let env = env(&[("GEMINI_API_KEY", "k")]);
    let model = ModelName("gemini/gemini-4-argon".into());
    let mut settings = Settings::default();
    assert!(resolve(&model, &settings, &env).is_ok());
    settings.budget.fault = Some("config.toml:2:1: unknown key \"day\"".to_owned());
    let error = resolve(&model, &settings, &env).expect_err("it could cost too much");
    assert!(error.message.contains("config.toml:2:1: unknown key"), "{error:?}");
    assert_eq!(nothing_configured(&settings, &[]), error);
}

#[test]
fn each_format_has_its_urls() {
    use WireFormat::{AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses};
    for (wire, base, url, count, models) in [
        (
            AnthropicMessages,
            "https://h",
            "https://h/v1/messages",
            Some("https://h/v1/messages/count_tokens"),
            "https://h/v1/models",
        ),
        (
            OpenAiResponses,
            "https://h/v1",
            "https://h/v1/responses",
            Some("https://h/v1/responses/input_tokens"),
            "https://h/v1/models",
        ),
        (OpenAiChat, "https://h", "https://h/v1/chat/completions", None, "https://h/v1/models"),
        (
            OpenAiChat,
            "https://h/api/v3/",
            "https://h/api/v3/chat/completions",
            None,
            "https://h/api/v3/models",
        ),
        (
            Gemini,
            "https://h",
            "https://h/v1beta/models/m:streamGenerateContent?alt=sse",
            Some("https://h/v1beta/models/m:countTokens"),
            "https://h/v1beta/models",
        ),
        (
            Gemini,
            "https://h/v1",
            "https://h/v1/models/m:streamGenerateContent?alt=sse",
            Some("https://h/v1/models/m:countTokens"),
            "https://h/v1/models",
        ),
    ] {
        let settings = with_provider("x", wire, base, None);
        let endpoint = resolve(&ModelName("x/m".into()), &settings, &[]).expect("it wants no key");
        assert_eq!(endpoint.url(), url);
        assert_eq!(endpoint.count_url().as_deref(), count);
        assert_eq!(endpoint.models_url(), models);
    }
}

/// Regression: a question mark in a model's name ended the path, so that another model was called, or none.
#[test]
fn a_models_name_is_escaped_in_a_path() {
    let settings = with_provider("x", WireFormat::Gemini, "https://h", None);
    for (model, path) in
        [("a/b@1-2.5", "a/b@1-2.5"), ("what? #1 100%", "what%3F%20%231%20100%25"), ("é", "%C3%A9")]
    {
        let endpoint = resolve(&ModelName(format!("x/{model}")), &settings, &[]).expect("it wants no key");
        let url = format!("https://h/v1beta/models/{path}");
        assert_eq!(endpoint.url(), format!("{url}:streamGenerateContent?alt=sse"));
        assert_eq!(endpoint.count_url(), Some(format!("{url}:countTokens")));
    }
}

#[test]
fn beta_features_are_added_to_those_in_custom_headers() {
    let wanted = ModelSettings { betas: vec!["a-1".into(), "b-2".into()], ..ModelSettings::default() };
    let name = "anthropic/claude-opus-5-5";
    let mut settings = Settings::default();
    let beta = |settings: &Settings, variables: &[(&str, &str)]| {
        let variables = env(&[&[("ANTHROPIC_API_KEY", "k")], variables].concat());
        let endpoint = resolve(&ModelName(name.into()), settings, &variables).expect("a key is there");
        header(&endpoint, "anthropic-beta").map(str::to_owned)
    };
    assert_eq!(beta(&settings, &[]), None);
    settings.models.insert(name.into(), wanted);
    assert_eq!(beta(&settings, &[]).as_deref(), Some("a-1,b-2"));
    let custom = [("ANTHROPIC_CUSTOM_HEADERS", "Anthropic-Beta: c-3, a-1")];
    assert_eq!(beta(&settings, &custom).as_deref(), Some("c-3,a-1,b-2"));
}

#[test]
fn native_compaction_has_its_url_and_header() {
    let all = env(&[("ANTHROPIC_API_KEY", "k"), ("OPENAI_API_KEY", "k"), ("GEMINI_API_KEY", "k")]);
    for (name, url, beta) in [
        (
            "anthropic/claude-opus-5-5",
            Some("https://api.anthropic.com/v1/messages"),
            Some("a-1,compact-2026-09-04"),
        ),
        ("openai/gpt-6-sol", Some("https://api.openai.com/v1/responses/compact"), None),
        ("gemini/gemini-4-argon", None, None),
    ] {
        let mut settings = Settings::default();
        let betas = vec!["a-1".to_owned()];
        let wanted = ModelSettings { betas, native_compaction: Some(true), ..ModelSettings::default() };
        settings.models.insert(name.into(), wanted);
        let endpoint = resolve(&ModelName(name.into()), &settings, &all).expect("a key is there");
        assert!(endpoint.native_compaction, "{name}");
        assert_eq!(endpoint.compact_url().as_deref(), url, "{name}");
        assert_eq!(header(&endpoint, "anthropic-beta"), beta, "{name}");
    }
}

#[test]
fn missing_configuration_is_reported() {
    for (model, class, words) in [
        ("anthropic/claude-sonnet-5-5", ErrorClass::Auth, "ANTHROPIC_API_KEY"),
        ("openai/gpt-6-sol", ErrorClass::Auth, "OPENAI_API_KEY"),
        ("gemini/gemini-4-argon", ErrorClass::Auth, "GOOGLE_API_KEY (or GEMINI_API_KEY)"),
        ("nobody/x", ErrorClass::Refused, "anthropic, openai, gemini, openrouter, chatgpt, groq"),
        ("nobody/x", ErrorClass::Refused, "[providers.nobody]"),
        ("bare", ErrorClass::Refused, "provider/name"),
    ] {
        let error = resolve(&ModelName(model.into()), &Settings::default(), &[]).expect_err("nothing is set");
        assert_eq!(error.class, class, "{model}");
        assert!(error.hint.clone().unwrap_or_default().contains(words), "{error:?}");
    }
    let hint = nothing_configured(&Settings::default(), &[]).hint.unwrap_or_default();
    for way in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "EPITOME_LOCAL_URL"] {
        assert!(hint.contains(way));
    }
}

#[test]
fn unknown_model_gets_default_limits_unless_configured() {
    let mut settings = settings(None);
    let env = env(&[("EPITOME_LOCAL_URL", "http://box:1234/v1")]);
    let model = ModelName("local/qwen".into());
    let limits = |settings: &Settings| {
        let endpoint = resolve(&model, settings, &env).expect("the address is given");
        (endpoint.window, endpoint.max_output)
    };
    assert_eq!(limits(&settings), (128_000, 16_384));
    let window = |window| ModelSettings { context_window: Some(window), ..ModelSettings::default() };
    settings.models.insert("local/qwen".into(), window(8_192));
    assert_eq!(limits(&settings), (8_192, 2_048));
    let exact =
        ModelSettings { context_window: Some(8_192), max_output: Some(4_000), ..ModelSettings::default() };
    settings.models.insert("local/qwen".into(), exact);
    assert_eq!(limits(&settings), (8_192, 4_000));
}

#[test]
fn local_server_window_is_used() {
    let model = ModelName("local/qwen".into());
    let facts = ModelFacts { window: Some(32_768), ..ModelFacts::default() };
    let server = LocalServer {
        base_url: "http://127.0.0.1:8080/v1".into(),
        models: vec![ListedModel { name: "qwen".into(), facts, life: Lifecycle::Active }],
    };
    let endpoint = resolve_local(&model, &server, &Settings::default(), &[]).expect("it wants no key");
    assert_eq!((endpoint.window, endpoint.max_output), (32_768, 8_192));
    assert_eq!(endpoint.url(), "http://127.0.0.1:8080/v1/chat/completions");
}

#[test]
fn picker_offers_callable_models() {
    let mut settings = settings(Some("local/qwen"));
    settings.models.insert("router/mix".into(), ModelSettings::default());
    let names = |env: &EnvironmentPairs| -> Vec<String> {
        offered(&settings, env).into_iter().map(|(name, _)| name.0).collect()
    };
    assert_eq!(names(&[]), ["local/qwen", "router/mix"]);
    let with_key = names(&env(&[("OPENAI_API_KEY", "k")]));
    assert!(with_key.contains(&"openai/gpt-6-sol".to_owned()), "{with_key:?}");
    assert!(with_key.contains(&"openai/gpt-6-astra".to_owned()), "{with_key:?}");
    assert!(with_key.iter().all(|name| !name.starts_with("anthropic/")));
    let at_gateway = names(&env(&[("OPENAI_BASE_URL", "http://gateway.example/v1")]));
    assert!(at_gateway.contains(&"openai/gpt-6-sol".to_owned()), "{at_gateway:?}");
    assert!(!at_gateway.contains(&"openai/gpt-6-astra".to_owned()), "it takes no tools there");
}

#[test]
fn configured_means_that_a_prompt_could_be_answered() {
    let key = env(&[("ANTHROPIC_API_KEY", "k")]);
    assert_eq!(configured(&settings(None), &key), Ok(()));
    assert_eq!(configured(&settings(Some("anthropic/claude-haiku-5-5")), &key), Ok(()));
    let missing = configured(&settings(Some("openai/gpt-5.4")), &key).expect_err("there is no key");
    assert!(missing.hint.is_some_and(|hint| hint.contains("OPENAI_API_KEY")));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let port = listener.local_addr().expect("it is bound").port();
    let local = env(&[("EPITOME_LOCAL_URL", &format!("http://localhost:{port}"))]);
    assert_eq!(configured(&settings(None), &local), Ok(()));
    drop(listener);
    let missing = configured(&settings(None), &local).expect_err("nothing listens");
    assert_eq!(missing, nothing_configured(&settings(None), &local));
}

#[test]
fn a_secret_is_never_shown() {
    let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
    assert!(!format!("{endpoint:?}").contains("sk-test-key"));
    assert_eq!(Secret::new("x").to_string(), "[secret]");
}

#[test]
fn base_url_is_shown_without_its_password() {
    let settings = with_provider("box", WireFormat::OpenAiChat, "https://me:pw@box:8000/v1?key=k", None);
    let endpoint = resolve(&ModelName("box/m".into()), &settings, &[]).expect("it wants no key");
    assert_eq!(endpoint.shown_url(), "https://box:8000/v1");
}

/// Regression: the model was missing in "No provider is known for the model \"antropic\"".
#[test]
fn an_unknown_provider_is_named_with_its_model() {
    let error =
        resolve(&ModelName("antropic/claude-x".into()), &Settings::default(), &[]).expect_err("a typo");
    assert_eq!(error.message, "There is no provider \"antropic\" for the model \"antropic/claude-x\".");
    assert!(error.hint.is_some_and(|hint| hint.starts_with("Did you mean anthropic? ")));
}

/// Regression: when the server at `EPITOME_LOCAL_URL` answered with an HTML page, the error reported that nothing was
/// configured.
#[test]
fn unanswered_local_url_is_reported_without_its_password() {
    let env = env(&[("EPITOME_LOCAL_URL", "http://me:secret@box:1234")]);
    let message = nothing_configured(&Settings::default(), &env).message;
    assert!(message.contains("at http://box:1234/v1"), "{message}");
    assert!(!message.contains("secret"), "{message}");
}

/// Regression: `localhost:1234`, the format of Ollama's own variable, was mistaken for a URL without a host.
#[test]
fn local_url_needs_no_scheme() {
    let env = env(&[("EPITOME_LOCAL_URL", "localhost:1234")]);
    assert_eq!(local_urls(&Settings::default(), &env), ["http://localhost:1234/v1"]);
}

/// Regression: for gateways with the key in the base URL, the path was appended to the query.
#[test]
fn paths_are_inserted_before_the_base_urls_query() {
    for (wire, base, called, listed) in [
        (
            WireFormat::AnthropicMessages,
            "https://gw/v1?key=k",
            "https://gw/v1/messages?key=k",
            "https://gw/v1/models?key=k",
        ),
        (
            WireFormat::OpenAiChat,
            "https://gw?key=k",
            "https://gw/v1/chat/completions?key=k",
            "https://gw/v1/models?key=k",
        ),
        (
            WireFormat::OpenAiResponses,
            "https://gw/api/?key=k",
            "https://gw/api/responses?key=k",
            "https://gw/api/models?key=k",
        ),
        (
            WireFormat::Gemini,
            "https://gw?key=k",
            "https://gw/v1beta/models/m:streamGenerateContent?key=k&alt=sse",
            "https://gw/v1beta/models?key=k",
        ),
    ] {
        let settings = with_provider("box", wire, base, None);
        let endpoint = resolve(&ModelName("box/m".into()), &settings, &[]).expect("it wants no key");
        assert_eq!((endpoint.url().as_str(), endpoint.models_url().as_str()), (called, listed), "{wire:?}");
    }
}

#[test]
fn variables_with_keys_of_all_providers_are_withheld() {
    let mut settings =
        with_provider("acme", WireFormat::OpenAiChat, "https://acme.example", Some("ACME_LOGIN"));
    let gemini = BuiltInSettings { key_variable: Some("MY_GEMINI".into()), ..BuiltInSettings::default() };
    settings.built_in.insert("gemini".into(), gemini);
    let names = [
        "ACME_LOGIN",
        "MY_GEMINI",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_CUSTOM_HEADERS",
        "OPENAI_API_KEY",
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
    ];
    let variables = names.map(|name| (name, "made-up")).into_iter().chain([("PATH", "/bin")]);
    let left = exposure(&settings).for_users_programs(&env(&variables.collect::<Vec<_>>()));
    assert_eq!(left, env(&[("PATH", "/bin")]));
}

/// Each preset needs its key and nothing else.
#[test]
fn presets_need_only_their_key() {
    for (model, variable, url, name, value) in [
        (
            "groq/m",
            "GROQ_API_KEY",
            "https://api.groq.com/openai/v1/chat/completions",
            "authorization",
            "Bearer k",
        ),
        ("xai/m", "XAI_API_KEY", "https://api.x.ai/v1/responses", "authorization", "Bearer k"),
        (
            "mistral/m",
            "MISTRAL_API_KEY",
            "https://api.mistral.ai/v1/chat/completions",
            "authorization",
            "Bearer k",
        ),
        (
            "deepseek/m",
            "DEEPSEEK_API_KEY",
            "https://api.deepseek.com/v1/chat/completions",
            "authorization",
            "Bearer k",
        ),
        (
            "together/a/m",
            "TOGETHER_API_KEY",
            "https://api.together.ai/v1/chat/completions",
            "authorization",
            "Bearer k",
        ),
        (
            "fireworks/a/m",
            "FIREWORKS_API_KEY",
            "https://api.fireworks.ai/inference/v1/chat/completions",
            "authorization",
            "Bearer k",
        ),
        (
            "cerebras/m",
            "CEREBRAS_API_KEY",
            "https://api.cerebras.ai/v1/chat/completions",
            "authorization",
            "Bearer k",
        ),
        (
            "moonshot/m",
            "MOONSHOT_API_KEY",
            "https://api.moonshot.ai/v1/chat/completions",
            "authorization",
            "Bearer k",
        ),
        (
            "zai/m",
            "ZAI_API_KEY",
            "https://api.z.ai/api/paas/v4/chat/completions",
            "authorization",
            "Bearer k",
        ),
        (
            "azure/m",
            "AZURE_OPENAI_API_KEY",
            "https://unit.openai.azure.com/openai/v1/responses",
            "api-key",
            "k",
        ),
        (
            "bedrock/anthropic.claude-opus-5-5",
            "AWS_BEARER_TOKEN_BEDROCK",
            "https://bedrock-runtime.eu-west-1.amazonaws.com/anthropic/v1/messages",
            "authorization",
            "Bearer k",
        ),
    ] {
        let place = [("AZURE_OPENAI_RESOURCE_NAME", "unit"), ("AWS_DEFAULT_REGION", "eu-west-1")];
        let pairs = env(&[&[(variable, "k")], &place[..]].concat());
        let name_of = ModelName(model.into());
        let endpoint = resolve(&name_of, &Settings::default(), &pairs).expect("its key is there");
        assert_eq!(endpoint.url(), url);
        assert_eq!(header(&endpoint, name), Some(value), "{model}");
        if !model.starts_with("bedrock") {
            let error =
                resolve(&name_of, &Settings::default(), &env(&place)).expect_err("its key is missing");
            assert!(error.hint.is_some_and(|hint| hint.contains(variable)), "{model}");
        }
        let chosen = choose(&Settings::default(), &pairs);
        let provider = endpoint.provider().to_owned();
        assert!(
            matches!(chosen, ConfiguredModel::Named(model) if model.0.starts_with(&provider)),
            "{provider}"
        );
    }
    let error = resolve(&ModelName("azure/m".into()), &Settings::default(), &[]).expect_err("no address");
    assert!(error.hint.is_some_and(|hint| hint.contains("AZURE_OPENAI_RESOURCE_NAME")));
}

/// Regression test: `aws configure` stores the region in the profile, but only the environment was read.
#[test]
fn the_region_of_bedrock_is_that_of_the_profile_unless_the_environment_has_one() {
    let config = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(config.path(), "[default]\nregion = us-west-2\n").expect("it is written");
    let path = config.path().display().to_string();
    let of = |pairs: &[(&str, &str)]| {
        let pairs = env(&[&[("AWS_CONFIG_FILE", path.as_str())], pairs].concat());
        resolve(&ModelName("bedrock/m".into()), &Settings::default(), &pairs).expect("an address").base_url
    };
    assert_eq!(of(&[]), "https://bedrock-runtime.us-west-2.amazonaws.com/anthropic");
    let other = of(&[("AWS_REGION", "eu-west-1")]);
    assert_eq!(other, "https://bedrock-runtime.eu-west-1.amazonaws.com/anthropic");
}

#[test]
fn local_presets_need_no_key() {
    for (model, url) in [
        ("ollama/m", "http://127.0.0.1:11434/v1/chat/completions"),
        ("lmstudio/m", "http://127.0.0.1:1234/v1/chat/completions"),
        ("vllm/a/m", "http://127.0.0.1:8000/v1/chat/completions"),
    ] {
        let endpoint =
            resolve(&ModelName(model.into()), &Settings::default(), &[]).expect("no key is needed");
        assert_eq!(endpoint.url(), url);
    }
}

#[test]
fn vertex_names_project_location_and_model_in_its_address() {
    for (model, location, url) in [
        (
            "vertex/claude-opus-5-5",
            "global",
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/anthropic/models/claude-opus-5-5:streamRawPredict",
        ),
        (
            "vertex/gemini-3.8-flash",
            "eu",
            "https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu/publishers/google/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
        ),
        (
            "vertex/gemini-3.8-flash",
            "us-east5",
            "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5/publishers/google/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
        ),
    ] {
        let pairs = env(&[("GOOGLE_CLOUD_PROJECT", "p"), ("GOOGLE_CLOUD_LOCATION", location)]);
        let endpoint =
            resolve(&ModelName(model.into()), &Settings::default(), &pairs).expect("its place is known");
        assert_eq!(endpoint.url(), url);
        let (host, _) = url.split_once("/v1/").expect("it names the version");
        let publisher = if model.contains("claude") { "anthropic" } else { "google" };
        assert_eq!(endpoint.models_url(), format!("{host}/v1beta1/publishers/{publisher}/models"));
        assert_eq!(endpoint.credential_origin(), CredentialOrigin::Cloud("Google Cloud"));
        assert_eq!(endpoint.window, 1_000_000.max(endpoint.window), "the table knows the model");
    }
}

/// Regression: the beta had no effect on the window, which had to be set as well.
#[test]
fn the_beta_for_a_larger_window_widens_it() {
    for (model, expected) in [
        ("anthropic/claude-sonnet-4-5", 1_000_000),
        ("anthropic/claude-sonnet-4-5-20250929", 1_000_000),
        ("anthropic/claude-haiku-4-5", 200_000),
    ] {
        let mut settings = Settings::default();
        let betas = vec!["context-1m-2025-08-07".to_owned()];
        settings.models.insert(model.to_owned(), ModelSettings { betas, ..ModelSettings::default() });
        let pairs = env(&[("ANTHROPIC_API_KEY", "k")]);
        let endpoint = resolve(&ModelName(model.into()), &settings, &pairs).expect("there is a key");
        assert_eq!(endpoint.window, expected, "{model}");
    }
}

#[test]
fn azure_takes_an_application_of_entra_if_there_is_no_key() {
    let model = ModelName("azure/gpt-5.4".into());
    let application = [
        ("AZURE_OPENAI_RESOURCE_NAME", "unit"),
        ("AZURE_TENANT_ID", "t"),
        ("AZURE_CLIENT_ID", "c"),
        ("AZURE_CLIENT_SECRET", "s"),
    ];
    let of = |pairs: &[(&str, &str)]| resolve(&model, &Settings::default(), &env(pairs));
    let endpoint = of(&application).expect("it has an application");
    assert_eq!(endpoint.credential_origin(), CredentialOrigin::Cloud("Microsoft Entra"));
    let error = of(&application[..3]).expect_err("its secret is missing");
    assert_eq!(error.class, ErrorClass::Auth);
    let with_key = [application.as_slice(), &[("AZURE_OPENAI_API_KEY", "k")]].concat();
    let endpoint = of(&with_key).expect("it has a key");
    assert_eq!(endpoint.credential_origin(), CredentialOrigin::Variable("AZURE_OPENAI_API_KEY"));
}

/// A service that is configured by its URL has the same quirks as its preset.
#[test]
fn quirks_follow_the_host() {
    let of = |base: &str| {
        let settings = with_provider("mine", WireFormat::OpenAiChat, base, None);
        resolve(&ModelName("mine/m".into()), &settings, &[]).expect("no key is named").quirks
    };
    assert!(of("https://api.mistral.ai/v1").short_call_ids);
    assert!(of("https://api.deepseek.com").reasoning_back);
    assert_eq!(of("https://unit.openai.azure.com/openai/v1").key_header, KeyHeader::ApiKey);
    assert_eq!(of("https://generativelanguage.googleapis.com/v1beta/openai"), Quirks::NONE);
    assert_eq!(of("https://api.mistral.ai.example.org/v1"), Quirks::NONE);
}

/// `epitome_config` checks the names of provider tables without depending on this crate.
#[test]
fn the_configuration_knows_all_built_in_providers() {
    let mut known: Vec<&str> = built_in_providers().chain(["local"]).collect();
    let mut configurable = epitome_config::BUILT_IN_PROVIDERS.to_vec();
    known.sort_unstable();
    configurable.sort_unstable();
    assert_eq!(known, configurable);
}
