//! The command line as a user or a script sees it: the real binary, a separate home directory, and a scripted model
//! over HTTP on loopback.

use std::path::Path;
use std::process::{Command, Stdio};

use epitome_scripted_model::ModelStep;
use epitome_test_harness::user::{Ran, User, program};
use epitome_test_harness::{call, text as say, within};
use serde_json::{Value, json};

/// A user of a model that sends these replies, one per call, and no other.
fn user_with(replies: Vec<Vec<ModelStep>>) -> User {
    let mut replies = replies.into_iter();
    let message = || Some("not in the script".to_owned());
    let unexpected = move || vec![ModelStep::Error { status: 400, retry_after: None, message: message() }];
    User::with_model(move |_| replies.next().unwrap_or_else(&unexpected))
}

fn exists(path: &Path) -> bool {
    path.try_exists().expect("it can be looked for")
}

#[test]
fn an_empty_home_lists_no_sessions() {
    let user = User::new();
    assert_eq!(user.run(&["sessions", "list"]).ok(), "There are no sessions yet.\n");
    assert_eq!(user.run(&["sessions", "list", "--json"]).ok(), "");
}

#[test]
fn a_run_without_a_model_explains_what_to_set() {
    let mut user = User::new();
    // A port without a listener, because the test machine may have a local server.
    user.set("EPITOME_LOCAL_URL", "http://127.0.0.1:9/v1");
    let ran = user.run(&["run", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    for name in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "EPITOME_LOCAL_URL"] {
        assert!(ran.err.contains(name), "{ran:?}");
    }
}

/// Regression: a failed run printed nothing with `--output json`, so that `| jq -r .text` ended with nothing and 0.
#[test]
fn a_failed_run_prints_one_object_too() {
    let user = user_with(Vec::new());
    let ran = user.run(&["run", "--output", "json", "hello"]).exited(1);
    let [done] = &ran.objects()[..] else { panic!("{ran:?}") };
    assert_eq!(done["reason"], "failed");
    for error in [done["error"].as_str().expect("a text"), &ran.err] {
        assert!(error.contains("not in the script"), "{ran:?}");
    }
}

/// Regression: a reader that closed the pipe (`epitome run … | head -1`) was reported as an error when the run ended.
#[test]
fn a_run_without_a_reader_ends_without_a_message() {
    let user = user_with(vec![vec![say("Hello.")]]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let child = user.command(&["run", "--output", "json", "hello"]).stdout(writer).spawn();
    let ran = child.and_then(std::process::Child::wait_with_output).expect("the program starts");
    assert_eq!((ran.status.code(), String::from_utf8_lossy(&ran.stderr).as_ref()), (Some(1), ""));
}

/// Regression: a relative `EPITOME_HOME` was ignored without a word, and the user's own sessions were used.
#[test]
fn a_relative_home_is_an_error() {
    let mut user = User::new();
    user.set("EPITOME_HOME", "elsewhere");
    let ran = user.run(&["sessions", "list"]).exited(1);
    assert!(ran.out.is_empty() && ran.err.contains("EPITOME_HOME is elsewhere"), "{ran:?}");
    // With a relative HOME, the settings were those of /tmp, where everybody can write them.
    user.set("EPITOME_HOME", "");
    user.set("HOME", "elsewhere");
    let ran = user.run(&["config", "path"]).exited(1);
    assert!(ran.out.is_empty() && ran.err.contains("set HOME or EPITOME_HOME"), "{ran:?}");
}

/// Regression: some commands without their subcommand printed their help as if it were an error.
#[test]
fn a_missing_subcommand_is_named_by_every_command() {
    let user = User::new();
    for command in ["sessions", "store", "store policy", "token"] {
        let words: Vec<&str> = command.split(' ').collect();
        let ran = user.run(&words).exited(2);
        let expected = format!("epitome: 'epitome {command}' requires a subcommand");
        assert!(ran.out.is_empty() && ran.err.starts_with(&expected), "{ran:?}");
    }
}

/// Regression: the name of a recipe whose file has an error was reported as one that does not exist.
#[test]
fn the_error_of_a_recipe_that_is_typed_is_shown() {
    let user = user_with(Vec::new());
    user.write(".epitome/recipes/ship.md", "Ship {{if .x}}\n");
    let ran = user.run(&["run", "/ship"]).exited(2);
    assert!(
        ran.err.contains("the recipe \"ship\" can't be used") && ran.err.contains("ship.md:1:"),
        "{ran:?}"
    );
}

/// Regression: `epitome run /udno` asked the model, which costs money and does nothing.
#[test]
fn a_command_that_does_not_exist_is_not_sent_to_the_model() {
    let user = user_with(vec![vec![say("Not much.")]]);
    let ran = user.run(&["run", "--output", "json", "/udno", "e12"]).exited(2);
    assert!(ran.err.contains("there is no command /udno\nhint: did you mean /undo?"), "{ran:?}");
    assert_eq!(ran.objects()[0]["reason"], "failed");
    assert_eq!(user.run(&["run", "/tmp: what is in it?"]).exited(0).out, "Not much.\n");
    assert_eq!(user.model().requests().len(), 1);
}

/// Regression: `epitome chat`, which many type, was no command.
#[test]
fn the_chat_has_a_name_and_needs_a_terminal() {
    let ran = User::new().run(&["chat"]).exited(2);
    assert!(ran.out.is_empty() && ran.err.contains("the chat needs a terminal"), "{ran:?}");
}

/// Regression: `sessions list --limit 0` said that there were no sessions yet.
#[test]
fn a_list_of_no_sessions_is_refused() {
    for line in [&["sessions", "list", "--limit", "0"][..], &["sessions", "search", "--limit", "0", "x"]] {
        let ran = User::new().run(line).exited(2);
        assert!(ran.out.is_empty() && ran.err.contains("0 is not in 1.."), "{ran:?}");
    }
}

/// Regression: the list left out a session whose log was emptied, as if nobody had ever said anything in it.
#[test]
fn a_session_that_lost_everything_is_listed() {
    let user = user_with(vec![vec![say("Hello.")]]);
    user.run(&["run", "hello"]).ok();
    let session = user.session();
    std::fs::write(user.paths().data.join("journals").join(format!("{session}.jsonl")), "").expect("a file");
    let listed = user.run(&["sessions", "list"]).ok();
    assert!(listed.contains(&session) && listed.contains(" entries are lost"), "{listed}");
    let listed = user.run(&["sessions", "list", "--json"]).exited(0);
    assert!(listed.objects()[0]["lost"].as_u64() > Some(1), "{listed:?}");
    assert!(user.run(&["doctor"]).exited(1).out.contains(&session));
}

#[test]
fn a_run_prints_replies_and_one_line_per_call() {
    let user = user_with(vec![
        vec![say("I look."), call("file_read", json!({ "file_path": "a.txt" }))],
        vec![say("It says "), say("hello.")],
    ]);
    user.write("project/a.txt", "hello\n");
    let ran = user.run(&["run", "what", "does a.txt say?"]);
    assert_eq!(ran.out, "I look.\n\n● Read a.txt → completed\n\nIt says hello.\n", "{ran:?}");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn piped_input_is_part_of_the_prompt() {
    let user = user_with(vec![vec![say("Fine.")]]);
    user.run_with_stdin(&["run", "review this"], "+ a line\n").ok();
    assert_eq!(user.model().requests()[0].last_user_text(), "review this\n\n+ a line");
}

#[test]
fn json_output_is_one_object_per_line_and_ends_with_the_result() {
    let user = user_with(vec![
        vec![say("I look."), call("file_read", json!({ "file_path": "a.txt" }))],
        vec![say("Done."), ModelStep::Usage { input: 2_000, output: 5 }],
    ]);
    user.write("project/a.txt", "hello\n");
    let ran = user.run(&["run", "--json", "look"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let objects = ran.objects();
    let of = |kind: &str| objects.iter().filter(|object| object["type"] == kind).collect::<Vec<&Value>>();
    let said: String = of("text").iter().filter_map(|object| object["text"].as_str()).collect();
    assert_eq!(said, "I look.Done.");
    assert_eq!(of("tool_call")[0]["name"], "file_read");
    assert_eq!(of("tool_call")[0]["id"], of("tool_result")[0]["id"]);
    assert_eq!(of("tool_result")[0]["status"], "completed");
    assert_eq!(of("usage").last().expect("usage is reported")["used"], 2_005);
    let done = objects.last().expect("there is a last line");
    assert_eq!((&done["type"], &done["reason"]), (&json!("done"), &json!("end_turn")));
    assert_eq!(done["session"], user.session());
}

#[test]
fn usage_is_printed_with_the_share_of_cached_tokens() {
    let user = user_with(vec![vec![
        say("Done."),
        ModelStep::Usage { input: 2_000, output: 5 },
        ModelStep::Cached(1_500),
    ]]);
    user.write(
        ".epitome/config.toml",
        "[models.\"local/scripted\"]\nprice = { input = 2, output = 10, cache_read = 1 }\n",
    );
    let objects = user.run(&["run", "--json", "look"]).objects();
    let done = objects.last().expect("there is a last line");
    let usage = json!({ "input": 2_000, "output": 5, "cache_read": 1_500, "cache_write": 0, "thinking": 0 });
    assert_eq!(done["usage"], usage);

    let session = user.session();
    let shown = user.run(&["sessions", "show", &session]).ok();
    // 500 tokens at 2, 1500 at 1 and 5 at 10 dollars per million.
    assert!(
        shown.contains("Its model calls took 2.0k tokens in (75 % from the cache), 5 out, $0.0026."),
        "{shown}"
    );
    let shown = user.run(&["sessions", "show", &session, "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).expect("one object");
    assert_eq!(shown["usage"], usage);
    assert!((shown["cost"].as_f64().expect("the price is known") - 0.002_55).abs() < 1e-9, "{shown}");
}

#[test]
fn a_run_reports_provider_retries_and_explains_giving_up() {
    let busy = |seconds| ModelStep::Error { status: 429, retry_after: Some(seconds), message: None };
    let user = user_with(vec![vec![busy(1)], vec![say("Here.")], vec![busy(61)]]);
    let ran = user.run(&["run", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "Here.\n"), "{ran:?}");
    assert!(
        ran.err.contains("limits the rate") && ran.err.contains("Trying again in 1.0 s (try 2 of 6)."),
        "{ran:?}"
    );
    let ran = user.run(&["run", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert!(
        ran.err.contains("It asks to wait 61 seconds") && ran.err.contains("choose another model"),
        "{ran:?}"
    );
}

#[test]
fn a_failed_run_prints_its_error_as_text_and_as_json() {
    let refusal = ModelStep::Error { status: 400, retry_after: None, message: Some("no such thing".into()) };
    let user = user_with(vec![vec![refusal.clone()], vec![refusal]]);
    let ran = user.run(&["run", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.err.contains("no such thing"), "{ran:?}");
    let ran = user.run(&["run", "--json", "hello"]);
    let objects = ran.objects();
    let done = objects.last().expect("there is a last line");
    assert_eq!((ran.code, &done["reason"]), (Some(1), &json!("failed")));
    assert!(done["error"].as_str().is_some_and(|error| error.contains("no such thing")), "{done}");
}

#[test]
fn without_a_user_to_ask_an_edit_is_denied_with_a_hint() {
    let edit = || vec![call("file_write", json!({ "file_path": "new.txt", "text": "x\n" }))];
    let user = user_with(vec![edit(), vec![say("Then not.")], edit(), vec![say("Written.")]]);
    let ran = user.run(&["run", "write"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("● Write new.txt → denied"), "{ran:?}");
    assert!(ran.err.contains("there is no terminal to ask") && ran.err.contains("--mode auto"), "{ran:?}");
    assert!(!exists(&user.project().join("new.txt")));

    let ran = user.run(&["run", "--follow", "--mode", "accept_edits", "write"]);
    assert!(ran.out.contains("● Write new.txt → completed\n    + x\n"), "{ran:?}");
    assert!(exists(&user.project().join("new.txt")));
}

#[test]
fn follow_and_resume_continue_the_same_session() {
    let user = user_with(vec![vec![say("Noted.")], vec![say("Forty-two.")], vec![say("Still forty-two.")]]);
    user.run(&["run", "The number is 42."]).ok();
    user.run(&["run", "--follow", "Which number?"]).ok();
    let session = user.session();
    user.run(&["run", "--resume", &session[..10], "And now?"]).ok();
    assert_eq!(user.session(), session);
    let last = user.model().requests()[2].body.to_string();
    for said in ["The number is 42.", "Forty-two.", "And now?"] {
        assert!(last.contains(said), "{said}: {last}");
    }
}

#[test]
fn follow_and_resume_without_a_session_fail_with_a_hint() {
    let user = user_with(Vec::new());
    let ran = user.run(&["run", "--follow", "go on"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains(" has no session") && ran.err.contains("hint:"), "{ran:?}");
    let ran = user.run(&["run", "--resume", "s_abc", "go on"]);
    assert!(ran.err.contains("there is no session s_abc"), "{ran:?}");
    assert!(user.model().requests().is_empty());
}

#[test]
fn a_session_is_compacted_from_the_command_line_and_nothing_is_lost() {
    let long = "all work and no play makes a dull test ".repeat(200);
    let user = user_with(vec![
        vec![say(&long)],
        vec![say("<summary>\nThe agent repeated one sentence.\n</summary>")],
    ]);
    user.run(&["run", "say something long"]).ok();
    let ran = user.run(&["compact"]);
    assert!(ran.out.starts_with("Compacted: ") && ran.code == Some(0), "{ran:?}");
    assert!(ran.out.contains("entry became one message"), "the number of messages: {ran:?}");
    assert!(ran.err.starts_with("Session: say something long (s_"), "the session that was chosen: {ran:?}");
    let shown = user.run(&["sessions", "show", &user.session()]).ok();
    assert!(shown.contains("say something long") && shown.contains("[left the view]"), "{shown}");
    assert!(shown.contains("The agent repeated one sentence."), "{shown}");
    let ran = user.run(&["run", "--follow", "/undo"]);
    assert!(ran.out.starts_with("Undone: ") && ran.code == Some(0), "{ran:?}");
}

/// Regression: `epitome compact` failed without a configured model, even if no model was needed for the summary.
#[test]
fn an_imported_session_is_compacted_without_any_model() {
    let mut user = User::new();
    user.set("EPITOME_LOCAL_URL", "http://127.0.0.1:9/v1");
    user.write(".epitome/config.toml", "[compaction]\nmodel = \"none\"\n");
    let said = |role: &str, parent: &str, id: &str, text: &str| {
        let content = json!([{"type": "text", "text": text}]);
        let message =
            json!({"role": role, "content": content, "provider": "a", "model": "b", "stopReason": "stop"});
        json!({"type": "message", "id": id, "parentId": parent, "message": message}).to_string()
    };
    let header = json!({"type": "session", "version": 3, "id": "x", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": user.project()});
    let long = "all work and no play makes a dull test ".repeat(400);
    let lines = [
        header.to_string(),
        said("user", "", "u", "Never touch vendor/"),
        said("assistant", "u", "a", &long),
    ];
    user.write("project/talk.jsonl", &lines.join("\n").replace("\"parentId\":\"\"", "\"parentId\":null"));
    user.run(&["sessions", "import", "talk.jsonl"]).ok();
    let dry = user.run(&["compact", "--dry-run"]).ok();
    assert!(dry.starts_with("Preview only; nothing changed"), "{dry}");
    let compacted = user.run(&["compact"]).ok();
    assert!(compacted.starts_with("Compacted: "), "{compacted}");
    let history = user.run(&["sessions", "history", "latest"]).ok();
    assert!(history.contains("compacted up to") && history.contains("no model"), "{history}");
    assert!(user.run(&["sessions", "undo", "latest"]).ok().starts_with("Undone: "));
}

/// A mistake in `config.toml` was printed twice: by the command, and by its session.
#[test]
fn a_run_reports_a_mistake_in_the_settings_once() {
    let user = user_with(vec![vec![say("Done.")]]);
    user.write(".epitome/config.toml", "modle = \"a/b\"\n");
    let ran = user.run(&["run", "go"]);
    assert!(ran.code == Some(0) && ran.err.matches("unknown key \"modle\"").count() == 1, "{ran:?}");
}

/// `/compact dry`, `/history`, `/undo`, `/redo`, `/pin` and `/unpin`, from a shell.
#[test]
fn history_undo_redo_and_pins_work_from_the_command_line() {
    let long = "all work and no play makes a dull test ".repeat(200);
    let user = user_with(vec![
        vec![say(&long)],
        vec![say("<summary>\nThe agent repeated one sentence.\n</summary>")],
    ]);
    let object = |arguments: &[&str]| -> (Option<i32>, Value) {
        let ran = user.run(arguments);
        let objects = ran.objects();
        assert_eq!(objects.len(), 1, "{arguments:?}: {ran:?}");
        (ran.code, objects[0].clone())
    };
    user.run(&["run", "say something long"]).ok();
    assert!(user.run(&["sessions", "undo", "latest"]).ok().starts_with("Nothing left to undo"));

    let (code, dry) = object(&["compact", "--dry-run", "--json", "the", "plan"]);
    assert_eq!((code, &dry["compaction"]["status"]), (Some(0), &json!("dry_run")), "{dry}");
    assert_eq!(dry["compaction"]["command"], "/compact the plan");
    assert_eq!(user.model().requests().len(), 1, "a dry run asks no model");
    user.run(&["compact"]).ok();

    let ran = user.run(&["sessions", "history", "latest", "e3"]);
    assert!(ran.code == Some(2) && ran.err.contains("unexpected argument 'e3'"), "{ran:?}");
    let (_, listed) = object(&["sessions", "history", "latest", "--json"]);
    let entry = listed["history"]["layers"][0]["entry"].as_str().expect("a layer").to_owned();
    assert!(user.run(&["sessions", "undo", "latest", &entry]).ok().starts_with("Undone: "));
    let twice = user.run(&["sessions", "undo", "latest", &entry]);
    assert!(twice.code == Some(1) && twice.out.contains("is undone already"), "{twice:?}");
    let (code, redone) = object(&["sessions", "redo", "latest", "--json"]);
    assert_eq!((code, &redone["redo"]["status"]), (Some(0), &json!("redone")));

    let pinned = user.run(&["sessions", "pin", "latest", "never", "force push"]).ok();
    assert!(pinned.starts_with("Pinned, and shown to the model: "), "{pinned}");
    let listed = user.run(&["sessions", "pin", "latest"]).ok();
    assert!(listed.contains("never force push"), "{listed}");
    // Regression: a user of a shell was told to type `/unpin`, which works in a chat only.
    let unpin = format!("`epitome sessions unpin {} all` unpins everything", user.session());
    assert!(listed.contains(&unpin) && !listed.contains("/unpin"), "{listed}");
    for former in [&["pin"][..], &["pin", "--resume", &user.session()]] {
        let former = user.run(former);
        assert!(former.err.contains("`epitome pin` is now `epitome sessions pin latest`"), "{former:?}");
        assert!(former.ok().contains("never force push"));
    }
    assert_eq!(object(&["sessions", "unpin", "latest", "all", "--json"]).1["unpin"]["pinned"], json!([]));

    // The compaction is followed by a boundary record, for readers that look for one.
    let session = user.session();
    let exported = user.run(&["sessions", "export", &session]);
    let boundary = exported.objects().into_iter().find_map(|entry| entry.get("boundary").cloned());
    let boundary = boundary.expect("a compaction has one");
    assert_eq!((&boundary["type"], &boundary["subtype"]), (&json!("system"), &json!("compact_boundary")));
    assert_eq!(
        (&boundary["session_id"], &boundary["compact_metadata"]["trigger"]),
        (&json!(session), &json!("manual"))
    );
}

#[test]
fn a_named_session_overrides_follow_with_a_warning() {
    let user = user_with(vec![vec![say("one")], vec![say("two")]]);
    user.run(&["run", "first"]).ok();
    let session = user.session();
    let ran = user.run(&["run", "--follow", "--conversation-id", &session, "second"]);
    assert!(ran.err.contains("--follow has no effect together with --resume"), "{ran:?}");
    assert_eq!((ran.code, user.session()), (Some(0), session));
}

#[test]
fn recipes_are_listed_shown_and_rendered_without_running_project_commands() {
    let user = User::new();
    let folder = user.project().join(".epitome/recipes");
    std::fs::create_dir_all(&folder).expect("a directory");
    let text = "---\naliases: [l]\narguments: {n: {default: \"3\"}}\n---\nLog: {{bash \"touch\" \"ran\"}}, {{.n}}.\n";
    std::fs::write(folder.join("log.md"), text).expect("a file");
    std::fs::write(folder.join("commit.md"), "Mine.").expect("a file");

    let listed = user.run(&["recipes", "list"]).ok();
    assert!(listed.contains("[.epitome/recipes/log.md; also l]"), "{listed}");
    // A repository's file does not replace a built-in command.
    assert!(
        listed.contains("repository/commit  Run the commit recipe [.epitome/recipes/commit.md]"),
        "{listed}"
    );
    assert!(listed.contains("Problems in recipe files: 1"), "{listed}");
    let listed: Value =
        serde_json::from_str(&user.run(&["recipes", "list", "--json"]).ok()).expect("it is JSON");
    assert_eq!(listed["shadowed"], serde_json::json!([]));

    let shown = user.run(&["recipes", "show", "log"]).ok();
    assert!(shown.contains("usage: /log [n=3] additional instructions\n") && shown.contains(text), "{shown}");
    let rendered = user.run(&["recipes", "render", "l", "n=5", "and", "more"]).ok();
    let wanted = "Log: [not run: this recipe came with the repository, and nobody has allowed its commands], 5.\n\n\
                  ## Additional instructions\n\nand more\n";
    assert_eq!(rendered, wanted);
    assert!(!user.project().join("ran").exists());

    let own = user.home().join("own");
    std::fs::create_dir(&own).expect("a directory");
    std::fs::write(own.join("mine"), "Said: {{bash \"echo\" \"it's me\"}}.").expect("a file");
    let own = own.to_str().expect("it is text");
    assert_eq!(user.run(&["recipes", "render", "mine", "--recipe-dir", own]).ok(), "Said: it's me.\n");
    let ran = user.run(&["recipes", "render", "revew"]);
    assert!(ran.code == Some(1) && ran.err.contains("did you mean \"review\"?"), "{ran:?}");
}

#[test]
fn built_in_commands_need_no_key_and_recipes_may_come_from_a_given_folder() {
    let user = User::new();
    let own = user.home().join("own");
    std::fs::create_dir(&own).expect("a directory");
    std::fs::write(own.join("mine.md"), "---\ndescription: Mine alone\n---\nSay it.").expect("a file");
    let own = own.to_str().expect("it is text");
    for flag in ["--recipe-dir", "--fragment-dirs"] {
        let ran = user.run(&["run", flag, own, "/help"]);
        assert!(ran.code == Some(0) && ran.out.contains("- /mine: Mine alone (yours)"), "{ran:?}");
    }
    let ran = user.run(&["run", "/context"]);
    assert!(ran.code == Some(0) && ran.out.contains("no model is chosen"), "{ran:?}");
}

#[test]
fn recipe_errors_have_a_location_and_an_exit_code() {
    let user = User::new();
    assert_eq!(user.run(&["recipes", "check"]).ok(), "8 recipes, nothing wrong\n");
    user.write("project/a.md", "---\nhooks: {turn_end: {handler: swap_contxt}}\n---\n");
    user.write("project/b.md", "---\nallowed_tools: {}\n---\n");
    user.write("project/c.md", "fine");
    let ran = user.run(&["recipes", "check", "a.md", "b.md", "c.md", "d.md"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{ran:?}");
    assert!(
        lines[0].contains("a.md:2:29: ") && lines[0].ends_with("(did you mean \"swap_context\"?)"),
        "{ran:?}"
    );
    assert!(lines[1].contains("b.md:2:16: "), "{ran:?}");
    assert!(lines[2].contains("d.md: cannot read this recipe"), "{ran:?}");
    let ran = user.run(&["recipes", "check", "--json", "a.md"]);
    let problems: Value = serde_json::from_str(&ran.out).expect("it is JSON");
    assert_eq!((&problems[0]["line"], &problems[0]["column"]), (&json!(2), &json!(29)));
}

#[test]
fn an_unknown_recipe_error_lists_the_known_ones() {
    let user = user_with(Vec::new());
    user.write("project/.epitome/recipes/bad.md", "---\nmax_turns: many\n---\n");
    let ran = user.run(&["run", "-r", "bad"]).exited(2);
    assert!(
        ran.err.contains("the recipe \"bad\" can't be used") && ran.err.contains("bad.md:2:12"),
        "{ran:?}"
    );
    let ran = user.run(&["run", "-r", "nonsense"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("there is no recipe \"nonsense\"") && ran.err.contains("compact"), "{ran:?}");
    assert!(user.model().requests().is_empty());
}

#[test]
fn a_conversation_is_shown_exported_and_deleted() {
    let user = user_with(vec![
        vec![say("I look."), call("file_read", json!({ "file_path": "a.txt" }))],
        vec![say("It says hello.")],
    ]);
    user.write("project/a.txt", "hello\n");
    user.run(&["run", "what does a.txt say?"]).ok();
    let session = user.session();

    let listed = user.run(&["sessions", "list"]).ok();
    assert!(listed.contains(&session) && listed.contains("what does a.txt say?"), "{listed}");
    assert_eq!(user.run(&["sessions", "list", "--cwd", "/"]).ok(), "There are no sessions yet.\n");

    let shown = user.run(&["sessions", "show", &session[2..8]]).ok();
    for part in ["  what does a.txt say?", "● Read a.txt → completed", "  It says hello.", "The model sees"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = user.run(&["sessions", "show", &session, "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).expect("one object");
    assert_eq!(shown["session"], session);

    let lines = user.run(&["sessions", "export", &session]).ok();
    let first: Value =
        serde_json::from_str(lines.lines().next().expect("a log has a first entry")).expect("JSON");
    assert_eq!((&first["seq"], &first["change"]), (&json!(0), &json!("opened")));
    assert!(first.get("crc").is_none());
    user.run(&["sessions", "export", &session, "talk.md", "--markdown"]).ok();
    let file = std::fs::read_to_string(user.project().join("talk.md")).expect("it was written");
    assert!(file.starts_with("# what does a.txt say?"), "{file}");
    let again = user.run(&["sessions", "export", &session, "talk.md"]);
    assert!(again.code == Some(1) && again.err.contains("can't be written"), "{again:?}");

    let refused = user.run(&["sessions", "delete", &session]);
    assert!(refused.code == Some(1) && refused.err.contains("--yes"), "{refused:?}");
    assert_eq!(user.session(), session);
    user.run(&["sessions", "delete", &session, "--yes"]).ok();
    let gone = user.run(&["sessions", "show", &session]);
    assert!(gone.code == Some(1) && gone.err.contains("there is no session"), "{gone:?}");
}

/// Regression: times were always shown in UTC, whatever the machine's time zone.
#[test]
fn times_are_shown_in_the_users_time_zone() {
    let user = user_with(vec![vec![say("Hello.")]]);
    user.run(&["run", "hello"]).ok();
    let minute = |zone: &str| -> u32 {
        let listing = user.command(&["sessions", "list"]).env("TZ", zone).output();
        let listed = Ran::from(listing.expect("the binary starts")).ok();
        let (_, behind) = listed.split_once(':').expect("the listing shows a time");
        behind[..2].parse().expect("minutes are two digits")
    };
    assert_eq!(minute("HERE-05:30"), (minute("UTC0") + 30) % 60);
}

#[test]
fn a_damaged_session_names_the_line_and_shows_the_intact_part() {
    let user = user_with(vec![vec![say("First.")]]);
    user.run(&["run", "hello"]).ok();
    let session = user.session();
    let journal = user.journal(&session);
    let text = std::fs::read_to_string(&journal).expect("the journal is there");
    std::fs::write(&journal, text.replacen("First.", "Forged", 1)).expect("it can be written");
    let shown = user.run(&["sessions", "show", &session]);
    assert!(shown.err.contains("is damaged at line"), "{shown:?}");
    assert!(shown.out.contains("  hello") && !shown.out.contains("Forged"), "{shown:?}");
    let exported = user.run(&["sessions", "export", &session]);
    assert!(exported.code == Some(1) && exported.out.contains("\"lost\""), "{exported:?}");
    assert!(exported.err.contains("is damaged at line"), "{exported:?}");
}

#[test]
fn one_ctrl_c_cancels_the_turn_and_keeps_the_partial_reply() {
    let user = user_with(vec![vec![say("Once upon"), ModelStep::Hang]]);
    let mut child = user.command(&["run", "tell me a story"]).spawn().expect("the binary starts");
    // The first words have arrived: the model is still replying.
    let mut first = [0; 4];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut first).expect("text is streamed");
    let pid = rustix::process::Pid::from_child(&child);
    let meanwhile = user.run(&["run", "--resume", &user.session(), "and then?"]);
    assert!(meanwhile.err.contains("is open in another process"), "{meanwhile:?}");
    assert!(meanwhile.err.contains("close it in the editor or the other terminal first"), "{meanwhile:?}");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let ran = Ran::from(child.wait_with_output().expect("it ends"));
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.out.ends_with("upon\n"), "whatever reads it next begins a line of its own: {ran:?}");
    let shown = user.run(&["sessions", "show", &user.session()]).ok();
    assert!(shown.contains("Once upon") && shown.contains("[cancelled here]"), "{shown}");
    assert_eq!(user.model().requests().len(), 1);
}

#[test]
fn usage_errors_have_a_different_exit_code_than_failures() {
    let user = User::new();
    for arguments in
        [&["run"][..], &["run", "--wild", "x"], &["sessions"], &["sessions", "show"], &["nonsense"]]
    {
        let ran = user.run(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {ran:?}");
        assert!(ran.err.starts_with("epitome: "), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn the_demo_succeeds() {
    let ran = User::new().run(&["demo", "--fast"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in ["Compacted", "Undone", "kill -9", "Interrupted", "Everything worked"] {
        assert!(ran.out.contains(part), "{part}: {ran:?}");
    }
    assert!(!ran.out.contains('\u{1b}'), "no escapes without a terminal");
}

/// Regression: on a terminal the demo pauses for the reader, and token counts became exact during the pause. The demo
/// failed in nearly half of the runs there, and nowhere else.
#[test]
fn the_demo_succeeds_on_a_terminal() {
    let user = User::new();
    let on_a_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut command = Command::new("python3");
    command.args(["-c", on_a_terminal]).arg(program()).arg("demo");
    let own = user.command(&[]);
    command.env_clear().envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null());
    let Ok(output) = command.output() else {
        eprintln!("skipped: there is no python3 on the PATH to make a terminal with");
        return;
    };
    let ran = Ran::from(output);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("Everything worked") && ran.out.contains('\u{1b}'), "{ran:?}");
}

#[test]
fn models_are_listed_with_windows_reported_by_their_servers() {
    let mut user = user_with(Vec::new());
    user.set("ANTHROPIC_API_KEY", "sk-test-1");
    user.set("ANTHROPIC_BASE_URL", user.model().base_url());
    let of = |arguments: &[&str], name: &str| -> Value {
        let list: Value = serde_json::from_str(&user.run(arguments).ok()).expect("JSON");
        let found = list.as_array().expect("a list").iter().find(|model| model["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("{name} is not in {list}"))
    };
    let local = of(&["models", "--json"], "local/scripted");
    assert_eq!((&local["chosen"], &local["window"]["from"]), (&json!(true), &json!("provider")));
    assert_eq!(local["dollars_per_million_tokens"], json!(null));
    let hosted = "anthropic/claude-sonnet-5-5";
    assert_eq!(of(&["models", "--json"], hosted)["window"]["from"], "table");
    let asked = of(&["models", "--json", "--refresh", "sonnet"], hosted);
    assert_eq!((&asked["window"]["from"], &asked["usable"]), (&json!("provider"), &json!(true)));
    assert_eq!(of(&["models", "--json"], hosted), asked, "what was asked is kept");
    let text = user.run(&["models", "local"]).ok();
    assert!(text.contains("* local/scripted") && !text.contains("anthropic/"), "{text}");
    let nothing = user.run(&["models", "no-such-model"]);
    assert!(nothing.code == Some(1) && nothing.err.contains("--all"), "{nothing:?}");
    // Regression: a user who asked for the list of a provider without a key was told that no model has this name.
    let keyless = user.run(&["models", "groq", "--refresh"]);
    assert!(keyless.code == Some(1) && keyless.err.contains("There is no key for Groq."), "{keyless:?}");
    assert!(keyless.err.contains("GROQ_API_KEY"), "{keyless:?}");
}

#[test]
fn models_without_a_key_explains_what_to_set() {
    let mut user = User::new();
    user.set("EPITOME_LOCAL_URL", "http://127.0.0.1:1");
    let ran = user.run(&["models"]);
    assert!(ran.code == Some(1) && ran.err.contains("ANTHROPIC_API_KEY"), "{ran:?}");
    let all = user.run(&["models", "--all"]).ok();
    assert!(all.contains("(no key)") && all.contains("openai/"), "{all}");
}

/// Regression: `--model` applied to a single run; a later `--follow` without it continued with the configured model.
#[test]
fn a_model_given_on_the_command_line_stays_with_its_session() {
    let user = user_with(vec![vec![say("One.")], vec![say("Two.")]]);
    user.run(&["run", "--model", "local/gpt-4.1", "first"]).ok();
    user.run(&["run", "--follow", "second"]).ok();
    let models: Vec<Value> =
        user.model().requests().iter().map(|request| request.body["model"].clone()).collect();
    assert_eq!(models, ["gpt-4.1", "gpt-4.1"]);
}

/// Regression: the error of a server, which may contain escape sequences that set the clipboard or move the cursor over a
/// question, went to the terminal unchanged, and so did the commands of a repository's MCP servers.
#[test]
fn no_escape_sequence_of_a_server_or_file_reaches_the_terminal() {
    let hostile = "\u{1b}]52;c;cm0gLXJmIH4=\u{7}\u{9b}2J";
    let message = Some(hostile.to_owned());
    let user = User::with_model(move |_| {
        vec![ModelStep::Error { status: 400, retry_after: None, message: message.clone() }]
    });
    let servers = json!({"mcpServers": {"x": {"command": hostile}, "y": {"type": "http", "url": hostile}}});
    user.write("project/.mcp.json", &servers.to_string());
    user.write(".claude.json", &servers.to_string());
    for arguments in [
        &["run", "hello"][..],
        &["mcp", "list"],
        &["mcp", "import", "--yes"],
        &["recipes", "show", hostile],
        &[hostile],
    ] {
        let ran = user.run(arguments);
        let printed = ran.out + &ran.err;
        assert!(printed.contains("\\u{1b}]52") && !printed.contains(['\u{1b}', '\u{9b}']), "{printed:?}");
    }
}

/// Regression: a server with a mistake was missing from the list, which then said that none is configured.
#[test]
fn the_list_of_servers_names_what_is_wrong_in_their_files() {
    let user = User::new();
    user.write("project/.mcp.json", r#"{"mcpServers": {"one": {"command": "x", "args": [1]}}}"#);
    let listed = user.run(&["mcp", "list"]);
    assert!(listed.out.contains(r#"the MCP server "one" has "args""#), "{}", listed.out);
    let listed = user.run(&["mcp", "list", "--json"]);
    assert!(listed.out.contains(r#""problems":[{"#), "{}", listed.out);
}

/// Regression: with a closed stderr, an error message was a panic with the exit code 101.
#[test]
fn a_closed_stderr_does_not_change_the_exit_code() {
    let user = User::new();
    let mut shell = Command::new("sh");
    let script = "exec \"$0\" recipes show nothing 2>&-";
    shell.args(["-c", script]).arg(program()).current_dir(user.project()).env("EPITOME_HOME", user.own());
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let broken = user.command(&["recipes", "show", "nothing"]).stderr(writer).status();
    assert_eq!(broken.expect("the program starts").code(), Some(1));
    assert_eq!(shell.status().expect("sh is here").code(), Some(1));
}

/// Regression: `epitome daemon logs -f | head -1` never ended, because it ignored that nobody read its output.
#[test]
fn following_the_log_ends_with_its_reader() {
    let user = User::new();
    let log = user.paths().log_directory().join("epitome.2026-01-01.log");
    epitome_test_harness::write_file(&log, "one\n");
    let mut child = user.command(&["daemon", "logs", "--follow"]).spawn().expect("the program starts");
    let mut first = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().expect("it is a pipe"));
    std::io::BufRead::read_line(&mut out, &mut first).expect("it is text");
    assert_eq!(first, "one\n");
    drop(out);
    epitome_test_harness::write_file(&log, "one\ntwo\n");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// Regression: a script asked for the address of the page, which works once, and a browser had used it up. And `latest`, which
/// all commands take for a session, was no session here.
#[test]
fn an_address_for_a_program_is_not_opened() {
    let mut user = User::new();
    // A browser can't be started, which is said if it is tried.
    user.set("PATH", user.home().join("no-programs"));
    let printed = user.run(&["sessions", "inspect", "--json"]);
    assert!(printed.out.starts_with("{\"url\":") && printed.err.is_empty(), "{printed:?}");
    let latest = user.run(&["sessions", "inspect", "latest"]);
    assert!(latest.err.contains("has no sessions"), "{latest:?}");
}

/// The address was an argument of the browser's command line, and another user of the machine took its ticket from the list of
/// processes. And the program that opens the browser was looked for in the workspace.
#[cfg(target_os = "linux")]
#[test]
fn the_ticket_of_a_page_is_in_no_list_of_processes() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut user = User::new();
    let opened = user.home().join("opened");
    let programs = [user.project().join(".venv/bin"), user.home().join("bin")];
    for (directory, prefix) in programs.iter().zip(["planted", ""]) {
        std::fs::create_dir_all(directory).expect("a directory");
        let opener = directory.join("xdg-open");
        let script =
            format!("#!/bin/sh\necho \"{prefix}$@\" > '{0}.new' && mv '{0}.new' '{0}'\n", opened.display());
        std::fs::write(&opener, script).expect("a program");
        std::fs::set_permissions(&opener, std::fs::Permissions::from_mode(0o755)).expect("set");
    }
    let [planted, own] = programs.map(|path| path.display().to_string());
    user.set("PATH", format!("{planted}:{own}:{}", std::env::var("PATH").expect("it is set")));
    let printed = user.run(&["sessions", "inspect"]).ok();
    let ticket = printed.trim().rsplit('=').next().expect("a ticket").to_owned();
    let arguments = within("the browser", || std::fs::read_to_string(&opened).ok());
    assert!(ticket.len() > 20 && !arguments.contains(&ticket), "{arguments}");
    assert!(!arguments.contains("planted"), "{arguments}");
}
