//! Tests of the settings that a policy lets users change, and of the users who may write a policy.

use super::*;

const POLICY: &str = "/etc/epitome/policy.toml";

fn of_machine(text: &str) -> PolicyFile {
    PolicyFile { path: POLICY.into(), text: text.into(), is_of_store: false, home: None }
}

/// The settings of a user's file under a policy, and the mistakes in the policy.
fn under(policy: &str, user: &str) -> (Settings, Vec<String>) {
    let mut settings = Settings::default();
    let (_, problems) =
        file::apply(&mut settings, Path::new("config.toml"), user, FileOwner::User { home: None });
    assert_eq!(problems, [], "{user}");
    settings.policy = Policy { files: vec![of_machine(policy)], ..Policy::default() };
    let (_, problems) = settings.enforce_policy();
    // A second time, as over the options of a command line.
    let mut again = settings.clone();
    let (_, same) = again.enforce_policy();
    assert_eq!((&again, &same), (&settings, &problems), "{policy}");
    (settings, problems.iter().map(Problem::to_string).collect())
}

/// The value of a key under a policy and a user's file, as `epitome config show` prints it.
fn value(key: &str, policy: &str, user: &str) -> String {
    let (settings, problems) = under(policy, user);
    assert_eq!(problems, Vec::<String>::new(), "{policy}");
    let found = settings.keys().into_iter().find(|known| known.path.join(".") == key);
    found.expect("a key").value.unwrap_or_default().to_string()
}

#[test]
fn a_user_can_tighten_what_a_policy_sets_but_not_loosen_it() {
    for (key, policy, user, wanted) in [
        // Settings that are no limits follow the policy.
        ("sandbox.network", "sandbox.network = false", "sandbox.network = true", "false"),
        ("hooks.trust", "hooks.trust = \"never\"", "hooks.trust = \"run\"", "\"never\""),
        ("hooks.enabled", "hooks.enabled = true", "hooks.enabled = false", "true"),
        ("secrets.mask", "secrets.mask = true", "secrets.mask = false", "true"),
        ("sandbox.network", "hooks.enabled = true", "sandbox.network = true", "true"),
        // The lower of two limits counts.
        ("budget.day_usd", "budget.day_usd = 5", "budget.day_usd = 50", "5.0"),
        ("budget.day_usd", "budget.day_usd = 5", "budget.day_usd = 2", "2.0"),
        ("budget.day_usd", "budget.day_usd = 5", "", "5.0"),
        ("budget.month_tokens", "budget.month_tokens = 100", "budget.month_tokens = 200", "100"),
        ("max_rounds", "max_rounds = 500", "", "200"),
        ("max_rounds", "max_rounds = 20", "max_rounds = 1000", "20"),
        ("agents.max_parallel", "agents.max_parallel = 2", "agents.max_parallel = 9", "2"),
        ("agents.timeout_s", "agents.timeout_s = 60", "agents.timeout_s = 30", "30"),
        // The first mode of the list takes the place of another one.
        ("mode", "policy.modes = [\"ask\", \"auto\"]", "mode = \"full\"", "\"ask\""),
        ("mode", "policy.modes = [\"ask\", \"auto\"]", "mode = \"auto\"", "\"auto\""),
        ("mode", "policy.modes = [\"auto\"]", "mode = \"read_only\"", "\"read_only\""),
        ("mode", "policy.modes = []", "", "\"read_only\""),
        ("models.small", "policy.models = [\"a/*\"]", "models.small = \"b/c\"", "null"),
        ("models.small", "policy.models = [\"b/*\"]", "models.small = \"b/c\"", "\"b/c\""),
    ] {
        assert_eq!(value(key, policy, user), wanted, "{policy}, {user}");
    }
}

#[test]
fn rules_add_up() {
    let (settings, _) = under("permissions.deny = [\"bash(rm *)\"]", "permissions.allow = [\"bash(rm *)\"]");
    let rules: Vec<String> =
        settings.permissions.iter().map(|rule| format!("{rule} in {}", rule.path.display())).collect();
    assert_eq!(rules, ["allow bash(rm *) in config.toml", &format!("deny bash(rm *) in {POLICY}")]);
}

#[test]
fn a_server_of_the_policy_replaces_that_of_the_user() {
    let server = |command: &str| format!("[mcp.servers.tickets]\ncommand = \"{command}\"\n");
    let (settings, problems) = under(&server("theirs"), &server("own"));
    let targets: Vec<String> = settings.mcp.servers.iter().map(|server| server.way.target()).collect();
    assert_eq!((targets, problems), (vec!["theirs".to_owned()], Vec::new()));
}

/// Regression: a policy changed a built-in provider, which needs no address. The address in the user's entry of the same name
/// stayed in effect, and the prompts and the key were sent there.
#[test]
fn a_provider_of_the_policy_replaces_that_of_the_user() {
    let user = "[providers.anthropic]\nwire = \"anthropic\"\nbase_url = \"http://127.0.0.1:9\"\n";
    let (settings, problems) = under("[providers.anthropic]\nheaders = { X-Corp = \"1\" }\n", user);
    assert_eq!(problems, Vec::<String>::new());
    assert!(settings.providers.is_empty(), "{:?}", settings.providers);
    assert!(settings.built_in.contains_key("anthropic"));
}

/// Regression: a policy with one function took all of the user's functions away, and overrides of a hook with the same name
/// were mixed.
#[test]
fn functions_and_overrides_of_the_policy_are_added_to_those_of_the_user() {
    let policy = "[hooks.functions]\nshared = \"theirs\"\n[hooks.overrides.lint]\ntimeout_ms = 500\n";
    let user = "[hooks.functions]\nshared = \"own\"\nmine = \"own\"\n\
                [hooks.overrides.lint]\nfail_mode = \"open\"\n[hooks.overrides.other]\npriority = 1\n";
    let (settings, problems) = under(policy, user);
    assert_eq!(problems, Vec::<String>::new());
    let functions = json!(settings.hooks.functions);
    assert_eq!(functions, json!({ "mine": "own", "shared": "theirs" }));
    let overrides = json!(settings.hooks.overrides);
    assert_eq!(overrides, json!({ "lint": { "timeout_ms": 500 }, "other": { "priority": 1 } }));
}

#[test]
fn models_and_modes_that_are_not_listed_are_refused_with_those_that_are() {
    let (settings, _) = under("policy.models = [\"a/*\", \"b/c\"]\npolicy.modes = [\"ask\"]", "");
    let policy = &settings.policy;
    for (model, is_refused) in [("a/x", false), ("b/c", false), ("b/cd", true), ("ab/x", true)] {
        assert_eq!(policy.refuses_model(Some(model)).is_some(), is_refused, "{model}");
    }
    let why = policy.refuses_model(Some("b/cd")).expect("it is not listed");
    assert_eq!(why, format!("The policy {POLICY} does not allow the model b/cd; it allows a/*, b/c."));
    for mode in Mode::ALL {
        let is_refused = !matches!(mode, Mode::Ask | Mode::ReadOnly);
        assert_eq!(policy.refuses_mode(mode).is_some(), is_refused, "{mode:?}");
    }
    let why = policy.refuses_mode(Mode::Full).expect("it is not listed");
    assert_eq!(why, format!("The policy {POLICY} does not allow the mode full; it allows ask, read_only."));
    let free = Policy::default();
    assert_eq!((free.refuses_model(Some("b/cd")), free.refuses_mode(Mode::Full)), (None, None));
}

/// With an empty list, the message about a model ended in "it allows .", and without a model it asked for a key.
#[test]
fn a_policy_that_allows_no_model_says_so() {
    let (settings, problems) = under("policy.models = []", "model = \"a/x\"");
    assert_eq!(problems, Vec::<String>::new());
    let why = format!("The policy {POLICY} allows no model: the list `models` of its [policy] is empty.");
    for model in [None, Some("a/x")] {
        assert_eq!(settings.policy.refuses_model(model).as_deref(), Some(&*why), "{model:?}");
    }
}

/// A policy with `permission.deny` for `permissions.deny` must not seem to apply.
#[test]
fn a_policy_with_a_mistake_stops_everything() {
    for (policy, place) in [
        ("permission.deny = [\"bash\"]", "1:1: unknown key"),
        ("permissions.deny = [\"Bsh\"]", "1:21: "),
        ("policy.modes = [\"yolo\"]", "1:16: there is no mode"),
        ("policy.models = [\"*-mini\"]", "1:17: a model is named as"),
        ("budget.day_usd = \"5\"", "1:18: this must be dollars"),
        ("max_rounds = 5\nmode =", "2:"),
    ] {
        let (settings, problems) = under(policy, "hooks.trust = \"run\"\nmcp.servers.a.command = \"a\"");
        let why = settings.policy.refuses_model(None).expect("no model is called");
        assert!(problems[0].contains(place) && why.contains(&problems[0]), "{policy}: {why}");
        assert_eq!((settings.hooks.enabled, settings.hooks.trust), (false, HookTrust::Never), "{policy}");
        assert!(settings.mcp.servers.is_empty(), "{policy}");
    }
}

#[test]
fn only_a_policy_has_the_table_of_the_policy() {
    let mut settings = Settings::default();
    let text = "policy.modes = [\"full\"]";
    let (_, problems) =
        file::apply(&mut settings, Path::new("config.toml"), text, FileOwner::User { home: None });
    assert_eq!((problems.len(), settings), (1, Settings::default()));
}

#[test]
fn a_policy_that_others_could_have_written_is_not_trusted() {
    let chain = |owners: [(u32, u32); 3]| {
        let paths = [POLICY, "/etc/epitome", "/etc"].map(PathBuf::from);
        paths.into_iter().zip(owners).map(|(path, (owner, mode))| (path, owner, mode)).collect::<Vec<_>>()
    };
    for (owners, wanted) in [
        ([(0, 0o100_644), (0, 0o40_755), (0, 0o40_755)], None),
        ([(0, 0o100_400), (0, 0o40_700), (0, 0o40_555)], None),
        ([(1000, 0o100_644), (0, 0o40_755), (0, 0o40_755)], Some("policy.toml belongs to the user 1000")),
        ([(0, 0o100_664), (0, 0o40_755), (0, 0o40_755)], Some("chmod go-w /etc/epitome/policy.toml")),
        ([(0, 0o100_644), (1000, 0o40_755), (0, 0o40_755)], Some("/etc/epitome belongs to the user 1000")),
        ([(0, 0o100_644), (0, 0o40_777), (0, 0o40_755)], Some("chmod go-w /etc/epitome`")),
        ([(0, 0o100_644), (0, 0o40_755), (0, 0o41_777)], Some("chmod go-w /etc`")),
    ] {
        let why = mistrust(&chain(owners), ADMINISTRATOR).err();
        assert_eq!(why.is_some(), wanted.is_some(), "{why:?}");
        assert!(
            wanted.is_none_or(|wanted| why.as_ref().is_some_and(|why| why.to_string().contains(wanted))),
            "{why:?}"
        );
    }
}

#[cfg(unix)]
/// A file in a directory of the user, or for everybody as `/tmp`, is not the administrator's.
#[test]
fn a_policy_of_the_user_is_reported_and_stops_model_calls() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths { policy: directory.path().to_owned(), ..Paths::below(directory.path()) };
    assert_eq!(Policy::read(&paths), (Policy::default(), None));
    std::fs::write(paths.policy_file(), "max_rounds = 3").unwrap();
    let (policy, problem) = Policy::read(&paths);
    assert_eq!(problem.expect("it is not trusted").path, paths.policy_file());
    assert!(policy.refuses_model(None).is_some());
}

/// Neither the policy of a machine nor that of a database loosens the other.
#[test]
fn policies_of_a_database_and_of_the_machine_add_up() {
    let under_both = |of_store: &str, machine: &str| {
        let files = vec![PolicyFile::of_store("the database work at db", of_store), of_machine(machine)];
        let mut settings = Settings { policy: Policy { files, ..Policy::default() }, ..Settings::default() };
        let (values, problems) = settings.enforce_policy();
        assert_eq!(problems, [], "{of_store}, {machine}");
        (settings, values)
    };
    for (of_store, machine, mode, model) in [
        ("policy.modes = [\"ask\", \"full\"]", "policy.modes = [\"auto\", \"ask\"]", Mode::Ask, None),
        ("policy.modes = [\"full\"]", "policy.modes = [\"auto\"]", Mode::ReadOnly, None),
        (
            "policy.models = [\"a/*\"]",
            "policy.models = [\"*\"]",
            Mode::Ask,
            Some("the policy in the database"),
        ),
        ("policy.models = [\"b/c\"]", "policy.models = [\"a/*\"]", Mode::Ask, Some(POLICY)),
    ] {
        let machine = machine.replace("\"*\"", "\"b/*\"");
        let (settings, _) = under_both(of_store, &machine);
        assert_eq!(settings.mode, mode, "{of_store}, {machine}");
        let why = settings.policy.refuses_model(Some("b/c"));
        let names = |model: &str| why.as_ref().is_some_and(|why| why.to_lowercase().contains(model));
        assert!(model.is_none_or(names), "{of_store}, {machine}: {why:?}");
    }
    let (settings, values) = under_both(
        "max_rounds = 9\nsandbox.network = true\nbudget.day_usd = 1\npermissions.deny = [\"bash(a)\"]",
        "max_rounds = 20\nsandbox.network = false\nbudget.day_usd = 3\npermissions.deny = [\"bash(b)\"]",
    );
    assert_eq!((settings.max_rounds, settings.sandbox.network, settings.permissions.len()), (9, false, 2));
    let rounds = values.iter().find(|set| set.key == ["max_rounds"]).expect("it is set");
    assert_eq!(rounds.path, Path::new("the policy in the database work at db"));
}

/// Regression: a policy that was written to the database without `epitome store policy set` stopped all runs, as it should. But what
/// it must not set was in effect, so that spans were sent to another server.
#[test]
fn nothing_of_a_policy_with_mistakes_in_a_database_applies() {
    let text = "telemetry.endpoint = \"https://other.example\"\nmax_rounds = 3";
    let files = vec![PolicyFile::of_store("the database work at db", text)];
    let mut settings = Settings { policy: Policy { files, ..Policy::default() }, ..Settings::default() };
    let (values, problems) = settings.enforce_policy();
    assert_eq!((values, problems.len()), (Vec::new(), 1));
    assert_eq!((&settings.telemetry, settings.max_rounds), (&None, Settings::default().max_rounds));
    assert!(settings.policy.refuses_model(None).is_some());
}

#[test]
fn a_policy_in_a_database_starts_no_programs() {
    for (text, key) in [
        ("mcp.servers.a.command = \"a\"", "mcp"),
        ("[hooks.functions]", "hooks.functions"),
        ("permissions.allow = [\"bash\"]", "permissions.allow"),
        ("store = \"postgres://db/other\"", "store"),
        // Regression: the prompts of everybody would have gone to this server.
        ("providers.openai.base_url = \"https://other.example\"", "providers"),
    ] {
        let problems = check_policy_of_store("the database work at db", text);
        let why = problems.iter().map(Problem::to_string).collect::<String>();
        assert!(why.contains(&format!("a policy in a database can't set {key:?}")), "{text}: {why}");
    }
    // Regression: a person who could write to the database had the hooks of each repository run on all machines.
    let problems = check_policy_of_store("the database work at db", "hooks.trust = \"run\"");
    assert!(problems[0].message.contains("hooks of repositories"), "{problems:?}");
    let text = "hooks.trust = \"never\"\npermissions.deny = [\"bash(a)\"]\nbudget.day_usd = 1";
    assert_eq!(check_policy_of_store("the database work at db", text), []);
}
