//! Files for other agents, as used from the command line.

use epitome_test_harness::user::User;
use serde_json::{Value, json};

/// Regression: `recipes render` rejected options, although most commands of other agents take some.
#[test]
fn options_in_the_text_of_a_recipe_are_text() {
    let user = User::new();
    user.write("project/.claude/commands/sc/analyze.md", "Analyze $ARGUMENTS.");
    for words in [&["--", "--focus", "security"][..], &["--focus", "security"], &["src", "--focus", "x"]] {
        let mut arguments = vec!["recipes", "render", "sc:analyze"];
        arguments.extend(words);
        let wanted: Vec<&str> = words.iter().copied().filter(|word| *word != "--").collect();
        assert_eq!(user.run(&arguments).ok(), format!("Analyze {}.\n", wanted.join(" ")));
    }
}

#[test]
fn agents_are_listed_and_checked() {
    let user = User::new();
    assert_eq!(user.run(&["agents", "check"]).ok(), "0 agents, nothing wrong\n");
    user.write(
        "project/.claude/agents/one.md",
        "---\nname: one\ndescription: Use it: always\nhooks: {}\n---\nDo.\n",
    );
    user.write("project/.claude/agents/two.md", "Nothing.");
    let listed = user.run(&["agents", "list"]).ok();
    assert!(listed.contains("one") && listed.contains("Use it: always [.claude/agents/one.md]"), "{listed}");
    let ran = user.run(&["agents", "check"]).exited(1);
    assert!(ran.out.contains("two.md:1:1: an agent needs front matter"), "{ran:?}");
    assert!(ran.out.contains("one.md:4:8: \"hooks\" has no effect here"), "{ran:?}");
    let found: Value =
        serde_json::from_str(&user.run(&["agents", "list", "--json"]).ok()).expect("it is JSON");
    assert_eq!((&found["agents"][0]["name"], &found["problems"][0]["line"]), (&json!("one"), &json!(1)));
}

#[test]
fn a_plugin_is_checked_installed_used_and_removed() {
    let user = User::new();
    user.write(
        "fmt/.claude-plugin/plugin.json",
        r#"{"name": "fmt", "version": "1.2", "description": "Formats"}"#,
    );
    // The card named commands only, though their shell lines run as well.
    let line = format!("echo {}; : LAST", "a".repeat(3_000));
    user.write("fmt/commands/run.md", &format!("Run $1 !`{line}`."));
    let hooks = r#"{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "${CLAUDE_PLUGIN_ROOT}/stop.sh"}]}]}}"#;
    user.write("fmt/hooks/hooks.json", hooks);
    let plugin = user.project().parent().expect("it has one").join("fmt");
    let plugin = plugin.to_str().expect("it is text");
    for command in [&["plugins", "check", plugin][..], &["plugins", "install", plugin, "--yes"]] {
        let said = user.run(command).ok();
        for part in [
            "fmt 1.2  Formats",
            "/fmt:run",
            &format!("/fmt:run: {line}"),
            "Stop: ${CLAUDE_PLUGIN_ROOT}/stop.sh",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
    assert!(user.run(&["plugins", "list"]).ok().contains("commands: 1, shell lines: 1, hooks: 1"));
    assert!(user.run(&["recipes", "render", "fmt:run", "it"]).ok().starts_with("Run it aaa"));
    assert!(user.run(&["hooks", "list"]).ok().contains("Stop#1@plugin fmt"));
    let again = user.run(&["plugins", "install", plugin, "--yes"]).exited(1);
    assert!(again.err.contains("there is a plugin fmt already"), "{again:?}");
    assert!(user.run(&["plugins", "remove", "fmt", "--yes"]).ok().contains("removed fmt"));
    assert_eq!(user.run(&["plugins", "list"]).ok(), "There are no plugins here.\n");
}

/// A marketplace in a Git repository, with one plugin that has a manifest and one that is described by its entry.
fn marketplace(user: &User) -> String {
    let list = json!({"name": "acme", "plugins": [
        {"name": "fmt", "source": "./plugins/fmt"},
        {"name": "docs", "source": "./", "strict": false, "description": "Writes docs", "skills": ["./skills/docs"]},
    ]});
    user.write("market/.claude-plugin/marketplace.json", &list.to_string());
    user.write("market/plugins/fmt/.claude-plugin/plugin.json", r#"{"name": "fmt", "version": "1"}"#);
    user.write("market/plugins/fmt/commands/run.md", "Run $1.");
    user.write("market/skills/docs/SKILL.md", "---\nname: docs\ndescription: d\n---\nWrite.");
    user.write("market/skills/other/SKILL.md", "---\nname: other\ndescription: d\n---\nNo.");
    commit(user);
    let folder = user.project().parent().expect("it has one").join("market");
    format!("file://{}", folder.display())
}

fn commit(user: &User) {
    let folder = user.project().parent().expect("it has one").join("market");
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b.example"];
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "x"]] {
        let ran =
            std::process::Command::new("git").args(identity).args(arguments).current_dir(&folder).status();
        assert!(ran.expect("git runs").success(), "{arguments:?}");
    }
}

#[test]
fn plugins_of_a_marketplace_are_installed_from_git_and_updated() {
    let user = User::new();
    let market = marketplace(&user);
    let refused = user.run(&["plugins", "install", &market, "--yes"]).exited(1);
    assert!(
        refused.err.contains("name one of its plugins") && refused.err.contains("fmt, docs"),
        "{refused:?}"
    );
    let said = user.run(&["plugins", "install", &format!("fmt@{market}"), "--yes"]).ok();
    assert!(said.contains(", commit ") && said.contains("/fmt:run"), "{said}");
    user.run(&["plugins", "install", &format!("docs@{market}"), "--yes"]).ok();
    let listed = user.run(&["plugins", "list"]).ok();
    assert!(listed.contains("docs  Writes docs\n    skills: 1\n"), "only what the entry names: {listed}");

    assert_eq!(user.run(&["plugins", "update", "fmt", "--yes"]).ok(), "fmt: nothing has changed\n");
    user.write(
        "market/plugins/fmt/hooks/hooks.json",
        r#"{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "new.sh"}]}]}}"#,
    );
    commit(&user);
    let unasked = user.run(&["plugins", "update", "fmt"]).exited(1);
    assert!(unasked.out.contains("+ Stop: new.sh"), "{unasked:?}");
    assert!(!user.run(&["hooks", "list"]).ok().contains("new.sh"), "nothing was agreed to");
    assert!(user.run(&["plugins", "update", "--yes"]).ok().contains("fmt: updated"));
    assert!(user.run(&["hooks", "list"]).ok().contains("Stop#1@plugin fmt"));
}

/// A user consents to a digest, not to a folder: other programs that can write to the folder could add hooks.
#[test]
fn a_plugin_that_has_changed_is_used_again_only_after_consent() {
    let user = User::new();
    let market = marketplace(&user);
    user.run(&["plugins", "install", &format!("fmt@{market}"), "--yes"]).ok();
    let own = user.own().join("plugins/fmt");
    std::fs::write(own.join("commands/run.md"), "Run and send $1.").expect("it is written");
    let listed = user.run(&["plugins", "list"]).exited(1);
    assert!(listed.out.contains("it is not what you installed: files of it have changed"), "{listed:?}");
    assert!(user.run(&["recipes", "render", "fmt:run", "it"]).exited(1).err.contains("fmt:run"));
    assert!(user.run(&["plugins", "accept", "fmt", "--yes"]).ok().contains("/fmt:run"));
    assert_eq!(user.run(&["recipes", "render", "fmt:run", "it"]).ok(), "Run and send it.\n");
    assert!(user.run(&["plugins", "remove", "fmt", "--yes"]).ok().contains("removed fmt"));
    user.run(&["plugins", "install", &format!("fmt@{market}"), "--yes"]).ok();
}

#[test]
fn extensions_of_gemini_and_plugins_of_codex_are_used() {
    let user = User::new();
    let gemini = user.home().join(".gemini/extensions/flow");
    user.write(gemini.join("gemini-extension.json"), r#"{"name": "flow", "version": "1"}"#);
    user.write(gemini.join("commands/plan.toml"), "prompt = \"Plan {{args}}.\"");
    user.write(gemini.join("GEMINI.md"), "Always plan.");
    let codex = user.home().join(".codex/plugins/cache/acme/tools/1.0");
    user.write(codex.join(".codex-plugin/plugin.json"), r#"{"name": "tools", "skills": "./skills/"}"#);
    user.write(codex.join("skills/pdf/SKILL.md"), "---\nname: pdf\ndescription: d\n---\nRead.");
    user.write(user.home().join(".codex/config.toml"), "[plugins.\"tools@acme\"]\nenabled = true\n");
    assert_eq!(user.run(&["recipes", "render", "flow:plan", "it"]).ok(), "Plan it.\n");
    let found: Value = serde_json::from_str(&user.run(&["plugins", "list", "--json"]).ok()).expect("JSON");
    let of = |at: usize, key: &str| found["plugins"][at][key].clone();
    assert_eq!((of(0, "format"), of(0, "skills")), (json!("codex"), json!(["/tools:pdf"])));
    assert_eq!(of(1, "format"), json!("gemini"));
    let inventory = user.run(&["inventory"]).ok();
    assert!(inventory.contains("extensions/flow/GEMINI.md"), "{inventory}");
    user.write(
        user.home().join(".gemini/extensions/extension-enablement.json"),
        r#"{"flow": {"overrides": ["!/*"]}}"#,
    );
    assert!(
        user.run(&["plugins", "list"]).ok().contains("it is switched off for this directory in Gemini CLI")
    );
}
