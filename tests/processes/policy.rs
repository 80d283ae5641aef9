//! The policy of a machine, `/etc/epitome/policy.toml`, as its users meet it. Each program runs in a mount namespace with
//! its own `/etc`, whose owner is root there.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use epitome_scripted_model::ModelStep;
use epitome_test_harness::agent::{Agent, agent_text};
use epitome_test_harness::postgres::PostgresServer;
use epitome_test_harness::user::{Ran, User};
use epitome_test_harness::{call, text as say, within};
use serde_json::json;

/// A machine with a policy.
struct Managed {
    user: User,
    etc: tempfile::TempDir,
}

impl Managed {
    /// `None`, with a message, if this system has no such namespaces.
    fn new(policy: &str, replies: Vec<Vec<ModelStep>>) -> Option<Managed> {
        let probe = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).status();
        if !probe.is_ok_and(|status| status.success()) {
            eprintln!("skipped: this system lets no user make mount namespaces");
            return None;
        }
        let etc = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(etc.path(), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        let managed = Managed { user: User::with_replies(replies), etc };
        managed.prescribe(policy);
        Some(managed)
    }

    fn file(&self) -> PathBuf {
        self.etc.path().join("epitome/policy.toml")
    }

    fn prescribe(&self, policy: &str) {
        epitome_test_harness::write_file(&self.file(), policy);
    }

    /// Adds a hook that creates a file at the end of each turn.
    fn install_audit(&self) {
        let hook = self.etc.path().join("epitome/hooks/audit");
        let script = "#!/bin/sh\n[ \"$1\" = hook ] && { echo turn_end; exit 0; }\ntouch \"$HOME/audited\"\n";
        epitome_test_harness::write_file(&hook, script);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let plain = self.user.command(arguments);
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$0\" /etc && exec \"$@\"",
        ]);
        command.arg(self.etc.path()).arg(plain.get_program()).args(plain.get_args());
        let variables = plain.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.env_clear().envs(variables).current_dir(plain.get_current_dir().unwrap_or(Path::new("/")));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.command(arguments).output().expect("the program starts"))
    }
}

const POLICY: &str = "\
[policy]
modes = [\"ask\", \"auto\"]
models = [\"local/*\"]

[permissions]
deny = [\"Read(secret.txt)\"]

[budget]
session_tokens = 1000000
";

#[test]
fn what_the_policy_sets_counts_over_files_variables_and_options() {
    let Some(mut managed) = Managed::new(POLICY, Vec::new()) else { return };
    let own = "mode = \"full\"\n[budget]\nsession_tokens = 2000000\nday_tokens = 5\n";
    managed.user.write(".epitome/config.toml", own);
    let shown = managed.run(&["config", "show"]).ok();
    let line = |key: &str| {
        let found = shown.lines().find(|line| line.starts_with(key));
        found.unwrap_or_else(|| panic!("{key} in {shown}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("mode = "), "mode = \"ask\" policy /etc/epitome/policy.toml");
    assert_eq!(
        line("budget.session_tokens"),
        "budget.session_tokens = 1000000 policy /etc/epitome/policy.toml:9"
    );
    assert!(line("budget.day_tokens").ends_with(".epitome/config.toml:4"), "{shown}");
    assert_eq!(
        line("permissions.deny"),
        "permissions.deny = \"Read(secret.txt)\" policy /etc/epitome/policy.toml:6"
    );
    let set = managed.run(&["config", "show", "policy.models", "--json"]).json();
    let setting = &set["settings"][0];
    assert_eq!((&setting["source"], &setting["line"]), (&json!("policy"), &json!(3)));

    managed.user.set("OPENAI_API_KEY", "made-up");
    let ran = managed.run(&["run", "--model", "openai/gpt-6-sol", "hello"]).exited(1);
    let why =
        "The policy /etc/epitome/policy.toml does not allow the model openai/gpt-6-sol; it allows local/*.";
    assert!(ran.err.contains(why), "{ran:?}");
    let models = managed.run(&["models"]).ok();
    assert!(!models.contains("openai/"), "{models}");
}

#[test]
fn a_rule_of_the_policy_denies_in_a_session_that_was_in_full_mode_before() {
    let read = || vec![call("file_read", json!({ "file_path": "secret.txt" }))];
    let script = vec![vec![say("Hello.")], read(), vec![say("I can't.")]];
    let Some(managed) = Managed::new("", script) else { return };
    managed.user.write("project/secret.txt", "made-up");
    managed.run(&["run", "--mode", "full", "hello"]).ok();
    managed.prescribe(POLICY);
    let ran = managed.run(&["run", "--follow", "--allow", "file_read", "read secret.txt"]);
    assert!(ran.out.contains("● Read secret.txt → denied"), "{ran:?}");
    let sent = managed.user.model().requests()[2].body.to_string();
    assert!(sent.contains("in /etc/epitome/policy.toml:6 forbids this in every mode"), "{sent}");
    let shown = managed.run(&["sessions", "show", &managed.user.session(), "--json"]).json();
    assert_eq!(shown["mode"], "ask", "the session has left the mode that is not allowed");
}

#[test]
fn a_policy_that_is_broken_or_not_of_root_stops_runs() {
    let Some(managed) = Managed::new("[permission]\ndeny = [\"bash\"]\n", Vec::new()) else { return };
    let why = "/etc/epitome/policy.toml:1:2: unknown key \"permission\" (did you mean \"permissions\"?)";
    let ran = managed.run(&["run", "hello"]).exited(1);
    assert!(ran.err.contains("No model is called") && ran.err.contains(why), "{ran:?}");
    assert!(managed.run(&["config", "check"]).exited(1).out.contains(why));
    // Without a chosen model, the answer was "No model is configured. Run `epitome login`".
    let mut keyed = managed.command(&["run", "hello"]);
    keyed.env_remove("EPITOME_MODEL").env_remove("EPITOME_LOCAL_URL").env("ANTHROPIC_API_KEY", "made-up");
    let ran = Ran::from(keyed.output().expect("the program starts")).exited(1);
    assert!(ran.err.contains("No model is called") && !ran.err.contains("epitome login"), "{ran:?}");
    // `doctor` called it a warning, and said that the valid parts of the file are used.
    let report = managed.run(&["doctor"]).exited(1).out;
    assert!(report.contains("error   policy") && !report.contains("valid parts"), "{report}");

    managed.prescribe(POLICY);
    std::fs::set_permissions(managed.file(), std::fs::Permissions::from_mode(0o666)).expect("it is ours");
    let ran = managed.run(&["run", "hello"]).exited(1);
    assert!(ran.err.contains("`chmod go-w /etc/epitome/policy.toml` prevents that"), "{ran:?}");
    assert!(managed.user.model().requests().is_empty());

    managed.prescribe(POLICY);
    assert_eq!(managed.run(&["run", "hello"]).ok(), "ok\n");
}

/// Regression: with a broken policy, the configured MCP servers were not started, but those that an editor brought were.
#[test]
fn a_broken_policy_stops_the_servers_of_an_editor() {
    let Some(managed) = Managed::new("[permission]\ndeny = [\"bash\"]\n", Vec::new()) else { return };
    let listed = || {
        let mut command = managed.command(&["acp", "--standalone"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut agent = Agent::spawn(command);
        agent.call("initialize", json!({ "protocolVersion": 1 }));
        let server = json!({ "name": "tickets", "command": "/bin/cat", "args": [], "env": [] });
        let opened = json!({ "cwd": managed.user.project(), "mcpServers": [server] });
        let session = agent.call("session/new", opened)["sessionId"].as_str().expect("an id").to_owned();
        agent_text(&agent.turn(&session, "/mcp").0)
    };
    let none = listed();
    assert!(none.starts_with("No MCP server is configured."), "{none}");
    managed.prescribe(POLICY);
    let started = listed();
    assert!(started.contains("**tickets**"), "{started}");
}

#[test]
fn the_example_of_the_documentation_is_valid() {
    let page = include_str!("../../docs/operators/policy.md");
    let example =
        page.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```")).expect("an example").0;
    let Some(managed) = Managed::new(example, Vec::new()) else { return };
    assert_eq!(managed.run(&["config", "check"]).ok(), "The settings have no problems.\n");
}

#[test]
fn hooks_of_the_machine_run_for_every_user() {
    let Some(managed) = Managed::new("[hooks]\nenabled = true\n", Vec::new()) else { return };
    managed.install_audit();
    managed.run(&["run", "--no-hooks", "hello"]).ok();
    assert!(managed.user.home().join("audited").exists());
}

/// Regression: a user's `hooks.overrides` gave the administrator's hook other events, at which it never ran.
#[test]
fn hooks_of_the_machine_keep_their_events_whatever_a_user_overrides() {
    let Some(managed) = Managed::new("[hooks]\nenabled = true\n", Vec::new()) else { return };
    managed.install_audit();
    let own = "[hooks.overrides.audit]\nevents = [\"pre_compact\"]\n";
    managed.user.write(".epitome/config.toml", own);
    managed.run(&["run", "hello"]).ok();
    assert!(managed.user.home().join("audited").exists());
}
/// The administrator of a database prescribes to everybody who has sessions in it.
#[test]
fn a_policy_in_the_database_counts_for_everybody_who_uses_it() {
    let Some(mut server) = PostgresServer::start() else { return };
    let address = PostgresServer::address(&[&server]);
    let users = [address.clone(), address.replace("//epitome@", "//member@")].map(|address| {
        let user = User::new();
        user.write(".epitome/config.toml", &format!("store = {address:?}\nmode = \"full\"\n"));
        user
    });
    let [administrator, member] = &users;
    let set = |user: &User, policy: &str| {
        user.write("project/policy.toml", policy);
        user.run(&["store", "policy", "set", "policy.toml"])
    };
    let refused = set(administrator, "[mcp.servers.tickets]\ncommand = \"tickets\"\n").exited(1);
    assert!(refused.err.contains("a policy in a database can't set \"mcp\""), "{refused:?}");
    set(administrator, "[policy]\nmodes = [\"ask\"]\nmodels = [\"local/*\"]\n").ok();
    let shown = administrator.run(&["store", "policy", "show"]).exited(0);
    assert!(shown.out.contains("modes = [\"ask\"]") && shown.err.contains("set by epitome, 2"), "{shown:?}");

    server.sql(GRANTS);
    let shown = member.run(&["config", "show", "policy"]).ok();
    assert!(
        shown.contains("policy.modes = [\"ask\"]") && shown.contains("the policy in the database"),
        "{shown}"
    );
    let ran = member.run(&["run", "--model", "openai/gpt-6-sol", "hello"]).exited(1);
    assert!(ran.err.contains("does not allow the model openai/gpt-6-sol; it allows local/*."), "{ran:?}");
    let denied = set(member, "").exited(1);
    assert!(denied.err.contains("permission denied for table epitome_policy"), "{denied:?}");

    let mut agent = member.start_trusted();
    let mut mode = || {
        let made = agent.call("session/new", json!({ "cwd": member.project(), "mcpServers": [] }));
        made["modes"]["currentModeId"].as_str().expect("a mode").to_owned()
    };
    assert_eq!(mode(), "ask");
    set(administrator, "policy.modes = [\"accept_edits\"]").ok();
    within("the daemon has read the policy again", || (mode() == "accept_edits").then_some(()));
    administrator.run(&["store", "policy", "remove"]).ok();
    within("the daemon has no policy any longer", || (mode() == "full").then_some(()));

    server.kill();
    let ran = administrator.run(&["run", "hello"]).exited(1);
    assert!(ran.err.contains("cannot read the policy in the database"), "{ran:?}");
}

/// As in `docs/operators/policy.md`.
const GRANTS: &str = "
    create role member login;
    grant select on epitome_policy, epitome_schema to member;
    grant select, insert, update, delete on epitome_session, epitome_process, epitome_entry, epitome_blob to member;
";
