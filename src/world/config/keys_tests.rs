//! The keys of the settings, their schema, and the layer that sets a value.

use super::*;

#[test]
fn each_value_is_listed_with_the_layer_that_set_it() {
    let person = "max_rounds = 7\n[providers.router]\nwire = \"openai_chat\"\n\
                  base_url = \"https://u:sk-secret@x.example/v1?key=sk-secret\"\nheaders = { \"X-Key\" = \"sk-secret\" }\n\
                  [providers.broken]\nwire = \"gemini\"\n[models]\nsmall = \"a/s\"\n";
    let disk = ConfigDisk::new(person, "thought = \"high\"\nmode = \"full\"\n");
    let paths = Paths::below(&disk.root.path().join("home"));
    let loaded = LoadedSettings::load(&paths, Some(&disk.root.path().join("repo")), |name| {
        (name == "EPITOME_MODE").then(|| "auto".into())
    });
    let reported: Vec<String> = loaded
        .values
        .iter()
        .map(|set| {
            let file = set.path.file_name().expect("a name").to_string_lossy();
            format!("{} = {} ({file}:{})", set.key.join("."), set.value, set.line.unwrap_or(0))
        })
        .collect();
    assert_eq!(
        reported,
        [
            "max_rounds = 7 (config.toml:1)",
            "models.small = \"a/s\" (config.toml:9)",
            "providers.router.base_url = \"https://x.example/…\" (config.toml:4)",
            "providers.router.headers = {\"X-Key\":\"<masked>\"} (config.toml:5)",
            "providers.router.wire = \"openai_chat\" (config.toml:3)",
            "thought = \"high\" (config.toml:1)",
            "mode = \"auto\" ($EPITOME_MODE:0)",
        ]
    );
}

/// Regression: a password in the parameters of the store's address was displayed.
#[test]
fn no_password_of_the_store_is_listed() {
    for (url, shown) in [
        ("postgres://me@box/db", "postgres://me@box/db"),
        ("postgres://me:hunter2@box/db", "postgres://…@box/db"),
        ("postgres://me@box/db?password=hunter2", "postgres://…"),
        ("host=box user=me password=hunter2", "postgres://…"),
    ] {
        let settings = Settings { store: Some(url.to_owned()), ..Settings::default() };
        let keys = settings.keys();
        let key = keys.iter().find(|key| key.path == ["store"]).expect("there is one");
        assert_eq!(key.value, Some(shown.into()), "{url}");
    }
}

#[test]
fn the_reader_lists_its_keys_with_their_values() {
    let settings = Settings { max_rounds: 7, ..Settings::default() };
    let keys = settings.keys();
    let find = |name: &str| {
        keys.iter().find(|key| key.path.join(".") == name).unwrap_or_else(|| panic!("{name} in {keys:?}"))
    };
    assert_eq!(find("max_rounds").value, Some(7.into()));
    assert_eq!(find("compaction.threshold").value, Some(0.8.into()));
    assert_eq!(find("model").value, None);
    assert_eq!(find("hooks.timeout_ms").value, Some(30_000.into()));
    assert_eq!(find("models.*.price.cache_read").value, None);
    assert!(find("compaction.ratio").is_alias && !find("compaction.threshold").is_alias);
    for name in ["models.small", "providers.*.wire", "mcp.servers.*.command", "hooks.overrides.*.priority"] {
        find(name);
    }
}

#[test]
fn the_schema_has_the_tables_of_the_keys() {
    let schema = schema(&Settings::default().keys(), |key| {
        let described = key.path == ["mode"];
        described.then(|| ("description".to_owned(), "The mode".into())).into_iter().collect()
    });
    assert_eq!(schema["properties"]["mode"]["enum"][0], "ask");
    assert_eq!(schema["properties"]["mode"]["description"], "The mode");
    assert_eq!(schema["properties"]["agents"]["properties"]["max_depth"]["maximum"], 3);
    assert_eq!(schema["properties"]["models"]["properties"]["small"]["type"], "string");
    let model = &schema["properties"]["models"]["additionalProperties"];
    assert_eq!(model["properties"]["price"]["properties"]["input"]["minimum"], 0);
    assert_eq!(model["additionalProperties"], false);
}

#[test]
fn an_option_adds_an_allow_rule_or_says_why_not() {
    let mut settings = Settings::default();
    settings.allow("bash(cargo test *)", "--allow").expect("a rule");
    assert_eq!(settings.permissions[0].to_string(), "allow bash(cargo test *)");
    for (rule, why) in
        [("bsh(ls)", "did you mean \"bash\"?"), ("Foo", "no tool \"Foo\""), ("bash(", "closing")]
    {
        let error = settings.allow(rule, "--allow").expect_err(rule);
        assert!(error.to_string().contains(why), "{rule}: {error}");
    }
    assert_eq!(settings.permissions.len(), 1);
}
