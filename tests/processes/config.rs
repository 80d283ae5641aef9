//! `epitome config`, and the command line's error messages, as a user sees them.

use std::os::unix::fs::PermissionsExt as _;

use epitome_scripted_model::ModelStep;
use epitome_test_harness::user::User;
use epitome_test_harness::{call, text as say};
use serde_json::{Value, json};

#[test]
fn settings_are_shown_with_the_file_and_line_they_come_from() {
    let mut user = User::new();
    user.write(
        ".epitome/config.toml",
        "max_rounds = 9\n[providers.router]\nwire = \"openai_chat\"\n\
        base_url = \"https://x.example\"\nheaders = { \"X-Key\" = \"sk-very-secret\" }\n",
    );
    user.write("project/.epitome/config.toml", "thought = \"low\"\n");
    user.set("EPITOME_MODE", "auto");
    let shown = user.run(&["config", "show"]).ok();
    let line = |key: &str| {
        let found = shown.lines().find(|line| line.starts_with(key));
        found.unwrap_or_else(|| panic!("{key} in {shown}")).to_owned()
    };
    assert!(line("max_rounds = 9").ends_with(".epitome/config.toml:1"), "{shown}");
    assert!(line("thought = \"low\"").ends_with("project/.epitome/config.toml:1"), "{shown}");
    assert!(line("mode = \"auto\"").ends_with("$EPITOME_MODE"), "{shown}");
    assert!(line("max_repeats = 5").ends_with("default"), "{shown}");
    assert!(line("providers.router.headers").contains("<masked>") && !shown.contains("sk-very"), "{shown}");

    let ran = user.run(&["config", "show", "max_rounds", "--json"]).json();
    let setting = &ran["settings"][0];
    assert_eq!(
        (&setting["value"], &setting["source"], &setting["line"]),
        (&json!(9), &json!("file"), &json!(1))
    );
    let ran = user.run(&["config", "show", "max_runds"]).exited(1);
    assert!(ran.err.contains("did you mean \"max_rounds\"?"), "{ran:?}");
    let path = user.run(&["config", "path"]).ok();
    assert!(path.trim().ends_with(".epitome/config.toml"), "{path}");
}

#[test]
fn problems_of_all_files_are_listed_by_line() {
    let user = User::new();
    assert_eq!(user.run(&["config", "check"]).ok(), "The settings have no problems.\n");
    user.write(".epitome/config.toml", "web_fetch = 1\nmodle = \"a/b\"\n[permissions]\nallow = [\"Foo\"]\n");
    user.write("project/.epitome/config.toml", "mode = \"full\"\n");
    let ran = user.run(&["config", "check"]).exited(1);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].contains("config.toml:1:13: "), "{ran:?}");
    assert!(
        lines[1].contains("config.toml:2:1: ") && lines[1].contains("did you mean \"model\"?"),
        "{ran:?}"
    );
    assert!(lines[2].contains("config.toml:4:10: there is no tool \"Foo\""), "{ran:?}");
    assert!(lines[3].contains("project/.epitome/config.toml:1:1: a repository cannot set"), "{ran:?}");
    let problems: Value =
        serde_json::from_str(&user.run(&["config", "check", "--json"]).exited(1).out).expect("JSON");
    assert_eq!(problems[1]["line"], 2);
}

#[test]
fn edit_creates_the_file_opens_the_editor_and_checks() {
    let mut user = User::new();
    let ran = user.run(&["config", "edit"]).exited(1);
    assert!(ran.err.contains("neither VISUAL nor EDITOR is set"), "{ran:?}");
    // `EDITOR` is a shell command line.
    user.set("EDITOR", "printf 'mode = \"wild\"\\n' | tee -a");
    let ran = user.run(&["config", "edit"]).exited(1);
    assert!(ran.out.contains("there is no mode \"wild\""), "{ran:?}");
    let file = user.home().join(".epitome/config.toml");
    let text = std::fs::read_to_string(&file).expect("it was created");
    assert!(text.starts_with("# Settings of Epitome.") && text.ends_with("mode = \"wild\"\n"), "{text}");
    assert_eq!(file.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn schemas_are_printed_for_editors() {
    let user = User::new();
    let schema = user.run(&["config", "schema"]).json();
    assert_eq!(schema["properties"]["max_rounds"]["default"], 200);
    assert!(user.run(&["config", "schema", "recipe"]).json()["properties"]["allowed_tools"].is_object());
    assert!(user.run(&["config", "schema", "hook"]).json()["properties"]["fail_mode"]["enum"].is_array());
}

/// Regression: every usage error suggested `epitome --help`, which rarely helped the user.
#[test]
fn usage_errors_name_the_nearest_word_and_the_help_of_the_command() {
    let user = User::new();
    for (arguments, nearest, help) in [
        (&["rnu", "x"][..], "'run'", "hint: epitome --help"),
        (&["run", "--modle", "a/b"], "'--model'", "hint: epitome run --help"),
        (&["run", "--mode", "reed_only", "x"], "'read_only'", "hint: epitome run --help"),
        (&["sessions", "sohw"], "'show'", "hint: epitome sessions --help"),
        (&["run", "--allow", "bsh(ls)", "x"], "\"bash\"", "hint: epitome run --help"),
        (&["run"], "there is no prompt", "hint: epitome run --help"),
    ] {
        let ran = user.run(arguments).exited(2);
        assert!(ran.err.contains(nearest) && ran.err.trim_end().ends_with(help), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn a_script_allows_one_command_and_gets_one_object() {
    let run = || vec![call("bash", json!({ "command": "mkdir made", "description": "Make a directory" }))];
    let user = User::with_replies(vec![
        run(),
        vec![say("Then not.")],
        run(),
        vec![say("**Made.**"), ModelStep::Usage { input: 20, output: 5 }],
    ]);
    let made = user.project().join("made");
    user.run(&["run", "--allow", "bash(cargo test *)", "make it"]).ok();
    assert!(!made.exists());
    let done = user.run(&["run", "--allow", "bash(mkdir *)", "--output", "json", "make it"]).json();
    assert_eq!((&done["reason"], &done["text"]), (&json!("end_turn"), &json!("**Made.**")));
    assert!(done["usage"]["output"].as_u64() >= Some(5), "{done}");
    assert!(made.exists());
}

#[test]
fn a_run_may_work_in_another_directory_and_is_limited_in_rounds() {
    let look = || vec![call("file_read", json!({ "file_path": "a.txt" }))];
    let user = User::with_replies(vec![look(), look(), vec![say("Enough.")]]);
    user.write("elsewhere/a.txt", "from elsewhere\n");
    let elsewhere = user.home().join("elsewhere");
    let elsewhere = elsewhere.to_str().expect("it is text");
    let ran = user.run(&["run", "--cwd", elsewhere, "--max-rounds", "1", "--json", "look"]);
    assert!(ran.out.contains("from elsewhere"), "{ran:?}");
    assert_eq!(ran.objects().last().map(|done| done["reason"].clone()), Some(json!("max_rounds")));
    assert_eq!(user.model().requests().len(), 1);
}

/// Regression: a recipe with a syntax error was reported as nonexistent, followed by a list of all other recipes.
#[test]
fn a_faulty_or_mistyped_recipe_is_named_as_such() {
    let user = User::with_replies(Vec::new());
    user.write(".epitome/recipes/bad.md", "---\ndescription: x\nmax_turns: 0\n---\nHello\n");
    let ran = user.run(&["run", "-r", "bad"]).exited(2);
    assert!(ran.err.contains("the recipe \"bad\" can't be used") && ran.err.contains("bad.md:3:"), "{ran:?}");
    let ran = user.run(&["run", "-r", "compcat"]).exited(2);
    assert!(ran.err.contains("did you mean \"compact\"?"), "{ran:?}");
}

/// Regression: `epitome hooks test` reported a failed hook as "meaning: nothing", with exit code 0.
#[test]
fn testing_a_failing_hook_fails() {
    let user = User::new();
    user.write(".epitome/hooks/guard", "#!/bin/sh\n[ \"$1\" = hook ] && echo turn_end && exit\nexit 1\n");
    let file = user.home().join(".epitome/hooks/guard");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let ran = user.run(&["hooks", "test", "guard", "turn_end"]).exited(1);
    assert!(ran.out.contains("the run failed, so what it printed is ignored"), "{ran:?}");
    let ran = user.run(&["hooks", "test", "guard", "trun_end"]).exited(1);
    assert!(ran.err.contains("did you mean \"turn_end\"?"), "{ran:?}");
}

#[test]
fn a_list_of_sessions_can_be_short() {
    let user = User::with_replies(vec![vec![say("One.")], vec![say("Two.")]]);
    user.run(&["run", "first"]).ok();
    user.run(&["run", "second"]).ok();
    let listed = user.run(&["sessions", "list", "--limit", "1"]).ok();
    assert!(
        listed.contains("second") && !listed.contains("first") && listed.contains("just now"),
        "{listed}"
    );
    assert!(listed.contains("and more; --limit N"), "{listed}");
    assert_eq!(user.run(&["sessions", "list", "--limit", "1", "--json"]).objects().len(), 1);
}
