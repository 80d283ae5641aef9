//! The command line as a user or a script sees it: the real binary, its own home directory, and a scripted
//! model behind HTTP on loopback.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use serde_json::{Value, json};

/// A user's machine: a home, a project, and an environment that contains only what a test sets.
struct Machine {
    directory: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Machine {
    fn new() -> Machine {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let machine = Machine { directory, environment: Vec::new() };
        std::fs::create_dir(machine.project()).expect("a directory");
        machine
    }

    /// A machine with a model that sends these replies, one per call.
    fn with_model(replies: Vec<Vec<ModelStep>>) -> (Machine, ScriptedModel) {
        let mut machine = Machine::new();
        let model = ScriptedModel::start(move |request: &RecordedRequest| {
            replies.get(request.number).cloned().unwrap_or_else(|| {
                vec![ModelStep::Error {
                    status: 400,
                    retry_after: None,
                    message: Some("not in the script".into()),
                }]
            })
        })
        .expect("a free port");
        machine.set("EPITOME_MODEL", "local/scripted");
        machine.set("EPITOME_LOCAL_URL", &model.openai_base_url());
        (machine, model)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    fn project(&self) -> PathBuf {
        self.directory.path().canonicalize().expect("it was made").join("project")
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.project().join(name), text).expect("a file");
    }

    fn write_home(&self, name: &str, text: &str) {
        let home = self.directory.path().join("home");
        std::fs::create_dir_all(&home).expect("a directory");
        std::fs::write(home.join(name), text).expect("a file");
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_epitome"));
        command.args(arguments).current_dir(self.project()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("EPITOME_HOME", self.directory.path().join("home"));
        command.env("HOME", self.directory.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().expect("the binary starts"))
    }

    fn run_with_stdin(&self, arguments: &[&str], stdin: &str) -> Ran {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().expect("the binary starts");
        let mut input = child.stdin.take().expect("it is a pipe");
        input.write_all(stdin.as_bytes()).expect("it reads stdin");
        drop(input);
        Ran::of(child.wait_with_output().expect("it ends"))
    }

    /// The id of the only session.
    fn session(&self) -> String {
        let listed = self.run(&["sessions", "list", "--json"]).ok();
        let [line] = listed.lines().collect::<Vec<&str>>()[..] else { panic!("one session: {listed}") };
        let header: Value = serde_json::from_str(line).expect("a line is a JSON object");
        header["session"].as_str().expect("it has an id").to_owned()
    }
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("only text is printed"),
            err: String::from_utf8(output.stderr).expect("only text is printed"),
        }
    }

    /// Asserts success and returns stdout.
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    fn objects(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
    }
}

fn say(text: &str) -> ModelStep {
    ModelStep::Text(text.to_owned())
}

fn call(name: &str, input: Value) -> ModelStep {
    ModelStep::Call { name: name.to_owned(), input }
}

fn exists(path: &Path) -> bool {
    path.try_exists().expect("it can be looked for")
}

#[test]
fn an_empty_home_lists_no_sessions() {
    let machine = Machine::new();
    assert_eq!(machine.run(&["sessions", "list"]).ok(), "There are no sessions yet.\n");
    assert_eq!(machine.run(&["sessions", "list", "--json"]).ok(), "");
}

#[test]
fn a_run_without_a_model_explains_what_to_set() {
    let mut machine = Machine::new();
    // A port without a listener, because the test machine may have a local server.
    machine.set("EPITOME_LOCAL_URL", "http://127.0.0.1:9/v1");
    let ran = machine.run(&["run", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    for name in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "EPITOME_LOCAL_URL"] {
        assert!(ran.err.contains(name), "{ran:?}");
    }
}

#[test]
fn a_run_prints_replies_and_one_line_per_call() {
    let (machine, _model) = Machine::with_model(vec![
        vec![say("I look."), call("file_read", json!({ "file_path": "a.txt" }))],
        vec![say("It says "), say("hello.")],
    ]);
    machine.write("a.txt", "hello\n");
    let ran = machine.run(&["run", "what", "does a.txt say?"]);
    assert_eq!(ran.out, "I look.\n\n● Read a.txt → completed\n\nIt says hello.\n", "{ran:?}");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn piped_input_is_part_of_the_prompt() {
    let (machine, model) = Machine::with_model(vec![vec![say("Fine.")]]);
    machine.run_with_stdin(&["run", "review this"], "+ a line\n").ok();
    assert_eq!(model.requests()[0].last_user_text(), "review this\n\n+ a line");
}

#[test]
fn json_output_is_one_object_per_line_and_ends_with_the_result() {
    let (machine, _model) = Machine::with_model(vec![
        vec![say("I look."), call("file_read", json!({ "file_path": "a.txt" }))],
        vec![say("Done."), ModelStep::Usage { input: 2_000, output: 5 }],
    ]);
    machine.write("a.txt", "hello\n");
    let ran = machine.run(&["run", "--json", "look"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let objects = ran.objects();
    let of = |kind: &str| objects.iter().filter(|object| object["type"] == kind).collect::<Vec<&Value>>();
    let said: String = of("text").iter().filter_map(|object| object["text"].as_str()).collect();
    assert_eq!(said, "I look.Done.");
    assert_eq!(of("tool_call")[0]["name"], "file_read");
    assert_eq!(of("tool_call")[0]["id"], of("tool_result")[0]["id"]);
    assert_eq!(of("tool_result")[0]["status"], "completed");
    assert_eq!(of("usage").last().expect("usage is told")["used"], 2_005);
    let done = objects.last().expect("there is a last line");
    assert_eq!((&done["type"], &done["reason"]), (&json!("done"), &json!("end_turn")));
    assert_eq!(done["session"], machine.session());
}

#[test]
fn usage_is_printed_with_the_share_of_cached_tokens() {
    let (machine, _model) = Machine::with_model(vec![vec![
        say("Done."),
        ModelStep::Usage { input: 2_000, output: 5 },
        ModelStep::Cached(1_500),
    ]]);
    machine.write_home(
        "config.toml",
        "[models.\"local/scripted\"]\nprice = { input = 2, output = 10, cache_read = 1 }\n",
    );
    let objects = machine.run(&["run", "--json", "look"]).objects();
    let done = objects.last().expect("there is a last line");
    let usage = json!({ "input": 2_000, "output": 5, "cache_read": 1_500, "cache_write": 0, "thinking": 0 });
    assert_eq!(done["usage"], usage);

    let session = machine.session();
    let shown = machine.run(&["sessions", "show", &session]).ok();
    // 500 tokens at 2, 1500 at 1 and 5 at 10 dollars per million.
    assert!(
        shown.contains("Its model calls took 2.0k tokens in (75 % from the cache), 5 out, $0.0026."),
        "{shown}"
    );
    let shown = machine.run(&["sessions", "show", &session, "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).expect("one object");
    assert_eq!(shown["usage"], usage);
    assert!((shown["cost"].as_f64().expect("the price is known") - 0.002_55).abs() < 1e-9, "{shown}");
}

#[test]
fn a_run_reports_provider_retries_and_explains_giving_up() {
    let busy = |seconds| ModelStep::Error { status: 429, retry_after: Some(seconds), message: None };
    let (machine, _model) = Machine::with_model(vec![vec![busy(1)], vec![say("Here.")], vec![busy(61)]]);
    let ran = machine.run(&["run", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "Here.\n"), "{ran:?}");
    assert!(
        ran.err.contains("limits the rate") && ran.err.contains("Trying again in 1.0 s (try 2 of 6)."),
        "{ran:?}"
    );
    let ran = machine.run(&["run", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert!(
        ran.err.contains("It asks to wait 61 seconds") && ran.err.contains("choose another model"),
        "{ran:?}"
    );
}

#[test]
fn a_failed_run_prints_its_error_as_text_and_as_json() {
    let refusal = ModelStep::Error { status: 400, retry_after: None, message: Some("no such thing".into()) };
    let (machine, _model) = Machine::with_model(vec![vec![refusal.clone()], vec![refusal]]);
    let ran = machine.run(&["run", "hello"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.err.contains("no such thing"), "{ran:?}");
    let ran = machine.run(&["run", "--json", "hello"]);
    let objects = ran.objects();
    let done = objects.last().expect("there is a last line");
    assert_eq!((ran.code, &done["reason"]), (Some(1), &json!("failed")));
    assert!(done["error"].as_str().is_some_and(|error| error.contains("no such thing")), "{done}");
}

#[test]
fn without_a_user_to_ask_an_edit_is_denied_with_a_hint() {
    let edit = || vec![call("file_write", json!({ "file_path": "new.txt", "text": "x\n" }))];
    let (machine, _model) =
        Machine::with_model(vec![edit(), vec![say("Then not.")], edit(), vec![say("Written.")]]);
    let ran = machine.run(&["run", "write"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("● Write new.txt → denied"), "{ran:?}");
    assert!(ran.err.contains("there is no terminal to ask") && ran.err.contains("--mode auto"), "{ran:?}");
    assert!(!exists(&machine.project().join("new.txt")));

    let ran = machine.run(&["run", "--follow", "--mode", "accept_edits", "write"]);
    assert!(ran.out.contains("● Write new.txt → completed\n    + x\n"), "{ran:?}");
    assert!(exists(&machine.project().join("new.txt")));
}

#[test]
fn follow_and_resume_continue_the_same_session() {
    let (machine, model) = Machine::with_model(vec![
        vec![say("Noted.")],
        vec![say("Forty-two.")],
        vec![say("Still forty-two.")],
    ]);
    machine.run(&["run", "The number is 42."]).ok();
    machine.run(&["run", "--follow", "Which number?"]).ok();
    let session = machine.session();
    machine.run(&["run", "--resume", &session[..10], "And now?"]).ok();
    assert_eq!(machine.session(), session);
    let last = model.requests()[2].body.to_string();
    for said in ["The number is 42.", "Forty-two.", "And now?"] {
        assert!(last.contains(said), "{said}: {last}");
    }
}

#[test]
fn follow_and_resume_without_a_session_fail_with_a_hint() {
    let (machine, model) = Machine::with_model(Vec::new());
    let ran = machine.run(&["run", "--follow", "go on"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("there is no session of") && ran.err.contains("hint:"), "{ran:?}");
    let ran = machine.run(&["run", "--resume", "s_abc", "go on"]);
    assert!(ran.err.contains("there is no session s_abc"), "{ran:?}");
    assert!(model.requests().is_empty());
}

#[test]
fn a_session_is_compacted_from_the_command_line_and_nothing_is_lost() {
    let long = "all work and no play makes a dull test ".repeat(200);
    let (machine, _model) = Machine::with_model(vec![
        vec![say(&long)],
        vec![say("<summary>\nThe agent repeated one sentence.\n</summary>")],
    ]);
    machine.run(&["run", "say something long"]).ok();
    let ran = machine.run(&["compact"]);
    assert!(ran.out.starts_with("Compacted: ") && ran.code == Some(0), "{ran:?}");
    let shown = machine.run(&["sessions", "show", &machine.session()]).ok();
    assert!(shown.contains("say something long") && shown.contains("[left the view]"), "{shown}");
    assert!(shown.contains("The agent repeated one sentence."), "{shown}");
    let ran = machine.run(&["run", "--follow", "/undo"]);
    assert!(ran.out.starts_with("Undone: ") && ran.code == Some(0), "{ran:?}");
}

/// `epitome compact` refused without a configured model, even if no model was to write the summary.
#[test]
fn an_imported_session_is_compacted_without_any_model() {
    let mut machine = Machine::new();
    machine.set("EPITOME_LOCAL_URL", "http://127.0.0.1:9/v1");
    machine.write_home("config.toml", "[compaction]\nmodel = \"none\"\n");
    let said = |role: &str, parent: &str, id: &str, text: &str| {
        let content = json!([{"type": "text", "text": text}]);
        let message =
            json!({"role": role, "content": content, "provider": "a", "model": "b", "stopReason": "stop"});
        json!({"type": "message", "id": id, "parentId": parent, "message": message}).to_string()
    };
    let header = json!({"type": "session", "version": 3, "id": "x", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": machine.project()});
    let long = "all work and no play makes a dull test ".repeat(400);
    let lines = [
        header.to_string(),
        said("user", "", "u", "Never touch vendor/"),
        said("assistant", "u", "a", &long),
    ];
    machine.write("talk.jsonl", &lines.join("\n").replace("\"parentId\":\"\"", "\"parentId\":null"));
    machine.run(&["sessions", "import", "talk.jsonl"]).ok();
    let dry = machine.run(&["compact", "--dry-run"]).ok();
    assert!(dry.starts_with("A compaction would do this now."), "{dry}");
    let compacted = machine.run(&["compact"]).ok();
    assert!(compacted.starts_with("Compacted: "), "{compacted}");
    let history = machine.run(&["history"]).ok();
    assert!(history.contains("compacted up to") && history.contains("no model"), "{history}");
    assert!(machine.run(&["undo"]).ok().starts_with("Undone: "));
}

/// `/compact dry`, `/history`, `/undo`, `/redo`, `/pin` and `/unpin`, from a shell.
#[test]
fn history_undo_redo_and_pins_work_from_the_command_line() {
    let long = "all work and no play makes a dull test ".repeat(200);
    let (machine, model) = Machine::with_model(vec![
        vec![say(&long)],
        vec![say("<summary>\nThe agent repeated one sentence.\n</summary>")],
    ]);
    let object = |arguments: &[&str]| -> (Option<i32>, Value) {
        let ran = machine.run(arguments);
        let objects = ran.objects();
        assert_eq!(objects.len(), 1, "{arguments:?}: {ran:?}");
        (ran.code, objects[0].clone())
    };
    machine.run(&["run", "say something long"]).ok();
    assert!(machine.run(&["undo"]).ok().starts_with("Nothing to undo"));

    let (code, dry) = object(&["compact", "--dry-run", "--json", "the", "plan"]);
    assert_eq!((code, &dry["compaction"]["status"]), (Some(0), &json!("dry_run")), "{dry}");
    assert_eq!(dry["compaction"]["command"], "/compact the plan");
    assert_eq!(model.requests().len(), 1, "a dry run asks no model");
    machine.run(&["compact"]).ok();

    let ran = machine.run(&["history", "e3"]);
    assert!(ran.code == Some(2) && ran.err.contains("unexpected argument 'e3'"), "{ran:?}");
    let (_, listed) = object(&["history", "--json"]);
    let entry = listed["history"]["layers"][0]["entry"].as_str().expect("a layer").to_owned();
    assert!(machine.run(&["undo", &entry]).ok().starts_with("Undone: "));
    let twice = machine.run(&["undo", &entry]);
    assert!(twice.code == Some(1) && twice.out.contains("is undone already"), "{twice:?}");
    let (code, redone) = object(&["redo", "--json"]);
    assert_eq!((code, &redone["redo"]["status"]), (Some(0), &json!("redone")));

    assert!(
        machine.run(&["pin", "never", "force push"]).ok().starts_with("Pinned, and shown to the model: ")
    );
    assert!(machine.run(&["pin"]).ok().contains("never force push"));
    assert_eq!(object(&["unpin", "all", "--json"]).1["unpin"]["pinned"], json!([]));

    // The compaction is followed by a boundary record, for readers that look for one.
    let session = machine.session();
    let exported = machine.run(&["sessions", "export", &session]);
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
    let (machine, _model) = Machine::with_model(vec![vec![say("one")], vec![say("two")]]);
    machine.run(&["run", "first"]).ok();
    let session = machine.session();
    let ran = machine.run(&["run", "--follow", "--conversation-id", &session, "second"]);
    assert!(ran.err.contains("--follow has no effect together with --resume"), "{ran:?}");
    assert_eq!((ran.code, machine.session()), (Some(0), session));
}

#[test]
fn recipes_are_listed_shown_and_rendered_without_running_project_commands() {
    let machine = Machine::new();
    let folder = machine.project().join(".epitome/recipes");
    std::fs::create_dir_all(&folder).expect("a directory");
    let text = "---\naliases: [l]\narguments: {n: {default: \"3\"}}\n---\nLog: {{bash \"touch\" \"ran\"}}, {{.n}}.\n";
    std::fs::write(folder.join("log.md"), text).expect("a file");
    std::fs::write(folder.join("commit.md"), "Mine.").expect("a file");

    let listed = machine.run(&["recipes", "list"]).ok();
    assert!(listed.contains("[.epitome/recipes/log.md; also l]"), "{listed}");
    // A repository's file doesn't replace a built-in command.
    assert!(
        listed.contains("repository/commit  Run the commit recipe [.epitome/recipes/commit.md]"),
        "{listed}"
    );
    assert!(listed.contains("Problems in recipe files: 1"), "{listed}");
    let listed: Value =
        serde_json::from_str(&machine.run(&["recipes", "list", "--json"]).ok()).expect("it is JSON");
    assert_eq!(listed["shadowed"], serde_json::json!([]));

    let shown = machine.run(&["recipes", "show", "log"]).ok();
    assert!(shown.contains("usage: /log [n=3] additional instructions\n") && shown.contains(text), "{shown}");
    let rendered = machine.run(&["recipes", "render", "l", "n=5", "and", "more"]).ok();
    let wanted = "Log: [not run: this recipe came with the repository, and nobody has allowed its commands], 5.\n\n\
                  ## Additional instructions\n\nand more\n";
    assert_eq!(rendered, wanted);
    assert!(!machine.project().join("ran").exists());

    let own = machine.directory.path().join("own");
    std::fs::create_dir(&own).expect("a directory");
    std::fs::write(own.join("mine"), "Said: {{bash \"echo\" \"it's me\"}}.").expect("a file");
    let own = own.to_str().expect("it is text");
    assert_eq!(machine.run(&["recipes", "render", "mine", "--recipe-dir", own]).ok(), "Said: it's me.\n");
    let ran = machine.run(&["recipes", "render", "revew"]);
    assert!(ran.code == Some(1) && ran.err.contains("did you mean \"review\"?"), "{ran:?}");
}

#[test]
fn built_in_commands_need_no_key_and_recipes_may_come_from_a_given_folder() {
    let machine = Machine::new();
    let own = machine.directory.path().join("own");
    std::fs::create_dir(&own).expect("a directory");
    std::fs::write(own.join("mine.md"), "---\ndescription: Mine alone\n---\nSay it.").expect("a file");
    let own = own.to_str().expect("it is text");
    for flag in ["--recipe-dir", "--fragment-dirs"] {
        let ran = machine.run(&["run", flag, own, "/help"]);
        assert!(ran.code == Some(0) && ran.out.contains("- /mine: Mine alone (yours)"), "{ran:?}");
    }
    let ran = machine.run(&["run", "/context"]);
    assert!(ran.code == Some(0) && ran.out.contains("no model is chosen"), "{ran:?}");
}

#[test]
fn recipe_errors_have_a_location_and_an_exit_code() {
    let machine = Machine::new();
    assert_eq!(machine.run(&["recipes", "check"]).ok(), "8 recipes, nothing wrong\n");
    machine.write("a.md", "---\nhooks: {turn_end: {handler: swap_contxt}}\n---\n");
    machine.write("b.md", "---\nallowed_tools: {}\n---\n");
    machine.write("c.md", "fine");
    let ran = machine.run(&["recipes", "check", "a.md", "b.md", "c.md", "d.md"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{ran:?}");
    assert!(
        lines[0].contains("a.md:2:29: ") && lines[0].ends_with("(did you mean \"swap_context\"?)"),
        "{ran:?}"
    );
    assert!(lines[1].contains("b.md:2:16: "), "{ran:?}");
    assert!(lines[2].contains("d.md: cannot read this recipe"), "{ran:?}");
    let ran = machine.run(&["recipes", "check", "--json", "a.md"]);
    let problems: Value = serde_json::from_str(&ran.out).expect("it is JSON");
    assert_eq!((&problems[0]["line"], &problems[0]["column"]), (&json!(2), &json!(29)));
}

#[test]
fn an_unknown_recipe_error_lists_the_known_ones() {
    let (machine, model) = Machine::with_model(Vec::new());
    let ran = machine.run(&["run", "-r", "nonsense"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("there is no recipe \"nonsense\"") && ran.err.contains("compact"), "{ran:?}");
    assert!(model.requests().is_empty());
}

#[test]
fn a_conversation_is_shown_exported_and_deleted() {
    let (machine, _model) = Machine::with_model(vec![
        vec![say("I look."), call("file_read", json!({ "file_path": "a.txt" }))],
        vec![say("It says hello.")],
    ]);
    machine.write("a.txt", "hello\n");
    machine.run(&["run", "what does a.txt say?"]).ok();
    let session = machine.session();

    let listed = machine.run(&["sessions", "list"]).ok();
    assert!(listed.contains(&session) && listed.contains("what does a.txt say?"), "{listed}");
    assert_eq!(machine.run(&["sessions", "list", "--cwd", "/"]).ok(), "There are no sessions yet.\n");

    let shown = machine.run(&["sessions", "show", &session[2..8]]).ok();
    for part in ["  what does a.txt say?", "● Read a.txt → completed", "  It says hello.", "The model sees"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = machine.run(&["sessions", "show", &session, "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).expect("one object");
    assert_eq!(shown["session"], session);

    let lines = machine.run(&["sessions", "export", &session]).ok();
    let first: Value =
        serde_json::from_str(lines.lines().next().expect("a log has a first entry")).expect("JSON");
    assert_eq!((&first["seq"], &first["change"]), (&json!(0), &json!("opened")));
    assert!(first.get("crc").is_none());
    machine.run(&["sessions", "export", &session, "talk.md", "--markdown"]).ok();
    let file = std::fs::read_to_string(machine.project().join("talk.md")).expect("it was written");
    assert!(file.starts_with("# what does a.txt say?"), "{file}");
    let again = machine.run(&["sessions", "export", &session, "talk.md"]);
    assert!(again.code == Some(1) && again.err.contains("can't be written"), "{again:?}");

    let refused = machine.run(&["sessions", "delete", &session]);
    assert!(refused.code == Some(1) && refused.err.contains("--yes"), "{refused:?}");
    assert_eq!(machine.session(), session);
    machine.run(&["sessions", "delete", &session, "--yes"]).ok();
    let gone = machine.run(&["sessions", "show", &session]);
    assert!(gone.code == Some(1) && gone.err.contains("there is no session"), "{gone:?}");
}

/// Times were always shown in UTC, whatever the time zone of the machine.
#[test]
fn times_are_shown_in_the_users_time_zone() {
    let (machine, _model) = Machine::with_model(vec![vec![say("Hello.")]]);
    machine.run(&["run", "hello"]).ok();
    let minute = |zone: &str| -> u32 {
        let listing = machine.command(&["sessions", "list"]).env("TZ", zone).output();
        let listed = Ran::of(listing.expect("the binary starts")).ok();
        let (_, behind) = listed.split_once(':').expect("the listing shows a time");
        behind[..2].parse().expect("minutes are two digits")
    };
    assert_eq!(minute("HERE-05:30"), (minute("UTC0") + 30) % 60);
}

#[test]
fn a_damaged_session_names_the_line_and_shows_the_intact_part() {
    let (machine, _model) = Machine::with_model(vec![vec![say("First.")]]);
    machine.run(&["run", "hello"]).ok();
    let session = machine.session();
    let journal = machine.directory.path().join(format!("home/data/journals/{session}.jsonl"));
    let text = std::fs::read_to_string(&journal).expect("the journal is there");
    std::fs::write(&journal, text.replacen("First.", "Forged", 1)).expect("it can be written");
    let shown = machine.run(&["sessions", "show", &session]);
    assert!(shown.err.contains("is damaged at line"), "{shown:?}");
    assert!(shown.out.contains("  hello") && !shown.out.contains("Forged"), "{shown:?}");
    let exported = machine.run(&["sessions", "export", &session]);
    assert!(exported.code == Some(1) && exported.err.contains("is damaged at line"), "{exported:?}");
}

#[test]
fn one_ctrl_c_cancels_the_turn_and_keeps_the_partial_reply() {
    let (machine, model) = Machine::with_model(vec![vec![say("Once upon"), ModelStep::Hang]]);
    let mut child = machine.command(&["run", "tell me a story"]).spawn().expect("the binary starts");
    // The first words have arrived: the model is still replying.
    let mut first = [0; 4];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut first).expect("text is streamed");
    let pid = rustix::process::Pid::from_child(&child);
    let meanwhile = machine.run(&["run", "--resume", &machine.session(), "and then?"]);
    assert!(meanwhile.err.contains("is open in another process"), "{meanwhile:?}");
    assert!(meanwhile.err.contains("close it in the editor or the other terminal first"), "{meanwhile:?}");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let ran = Ran::of(child.wait_with_output().expect("it ends"));
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.out.ends_with("upon\n"), "whatever reads it next begins a line of its own: {ran:?}");
    let shown = machine.run(&["sessions", "show", &machine.session()]).ok();
    assert!(shown.contains("Once upon") && shown.contains("[cancelled here]"), "{shown}");
    assert_eq!(model.requests().len(), 1);
}

#[test]
fn usage_errors_have_a_different_exit_code_than_failures() {
    let machine = Machine::new();
    for arguments in
        [&["run"][..], &["run", "--wild", "x"], &["sessions"], &["sessions", "show"], &["nonsense"]]
    {
        let ran = machine.run(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {ran:?}");
        assert!(ran.err.starts_with("epitome: "), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn the_demo_succeeds() {
    let ran = Machine::new().run(&["demo", "--fast"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in ["Compacted", "Undone", "kill -9", "Interrupted", "Everything worked"] {
        assert!(ran.out.contains(part), "{part}: {ran:?}");
    }
    assert!(!ran.out.contains('\u{1b}'), "no escapes without a terminal");
}

/// On a terminal the demo pauses for the reader, and token counts became exact in the meantime: it failed
/// there nearly every second time, and nowhere else.
#[test]
fn the_demo_succeeds_on_a_terminal() {
    let machine = Machine::new();
    let on_a_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let mut command = Command::new("python3");
    command.args(["-c", on_a_terminal]).args([env!("CARGO_BIN_EXE_epitome"), "demo"]);
    let own = machine.command(&[]);
    command.env_clear().envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null());
    let Ok(output) = command.output() else {
        eprintln!("skipped: there is no python3 on the PATH to make a terminal with");
        return;
    };
    let ran = Ran::of(output);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("Everything worked") && ran.out.contains('\u{1b}'), "{ran:?}");
}

#[test]
fn models_are_listed_with_windows_reported_by_their_servers() {
    let (mut machine, model) = Machine::with_model(Vec::new());
    machine.set("ANTHROPIC_API_KEY", "sk-test-1");
    machine.set("ANTHROPIC_BASE_URL", &model.base_url());
    let of = |arguments: &[&str], name: &str| -> Value {
        let list: Value = serde_json::from_str(&machine.run(arguments).ok()).expect("JSON");
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
    let text = machine.run(&["models", "local"]).ok();
    assert!(text.contains("* local/scripted") && !text.contains("anthropic/"), "{text}");
    let nothing = machine.run(&["models", "no-such-model"]);
    assert!(nothing.code == Some(1) && nothing.err.contains("--all"), "{nothing:?}");
}

#[test]
fn models_without_a_key_explains_what_to_set() {
    let mut machine = Machine::new();
    machine.set("EPITOME_LOCAL_URL", "http://127.0.0.1:1");
    let ran = machine.run(&["models"]);
    assert!(ran.code == Some(1) && ran.err.contains("ANTHROPIC_API_KEY"), "{ran:?}");
    let all = machine.run(&["models", "--all"]).ok();
    assert!(all.contains("(no key)") && all.contains("openai/"), "{all}");
}

/// `--model` applied to a single run: a later `--follow` without it continued with the configured model.
#[test]
fn a_model_given_on_the_command_line_stays_with_its_session() {
    let (machine, model) = Machine::with_model(vec![vec![say("One.")], vec![say("Two.")]]);
    machine.run(&["run", "--model", "local/gpt-4.1", "first"]).ok();
    machine.run(&["run", "--follow", "second"]).ok();
    let models: Vec<Value> = model.requests().iter().map(|request| request.body["model"].clone()).collect();
    assert_eq!(models, ["gpt-4.1", "gpt-4.1"]);
}
