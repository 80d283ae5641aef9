//! What is made of files for other agents, at the command line.

use epitome_test_harness::user::User;
use serde_json::{Value, json};

/// Most commands of other agents take options, and `recipes render` refused them.
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
    user.write("fmt/commands/run.md", "Run $1.");
    let hooks = r#"{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "${CLAUDE_PLUGIN_ROOT}/stop.sh"}]}]}}"#;
    user.write("fmt/hooks/hooks.json", hooks);
    let plugin = user.project().parent().expect("it has one").join("fmt");
    let plugin = plugin.to_str().expect("it is text");
    for command in [&["plugins", "check", plugin][..], &["plugins", "install", plugin, "--yes"]] {
        let said = user.run(command).ok();
        for part in ["fmt 1.2  Formats", "/fmt:run", "Stop: ${CLAUDE_PLUGIN_ROOT}/stop.sh"] {
            assert!(said.contains(part), "{said}");
        }
    }
    assert!(user.run(&["plugins", "list"]).ok().contains("commands: 1, hooks: 1"));
    assert_eq!(user.run(&["recipes", "render", "fmt:run", "it"]).ok(), "Run it.\n");
    assert!(user.run(&["hooks", "list"]).ok().contains("Stop#1@plugin fmt"));
    let again = user.run(&["plugins", "install", plugin, "--yes"]).exited(1);
    assert!(again.err.contains("there is a plugin fmt already"), "{again:?}");
    assert!(user.run(&["plugins", "remove", "fmt", "--yes"]).ok().contains("removed fmt"));
    assert_eq!(user.run(&["plugins", "list"]).ok(), "There are no plugins here.\n");
}
