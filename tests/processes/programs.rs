//! Programs as clients: the line format of SDKs, replies that match a schema, the packages for TypeScript and Python, and the
//! script of the GitHub Action.
//!
//! The packages are tested if their dependencies are there: `EPITOME_NODE_MODULES` names a `node_modules` directory with
//! `@agentclientprotocol/sdk`, `typescript`, `@types/node` and, for the other agent's SDK, `@anthropic-ai/claude-agent-sdk`;
//! `EPITOME_PYTHON` names a Python with `agent-client-protocol`, `claude-agent-sdk`, `pip` and `hatchling`.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use epitome_scripted_model::ModelStep;
use epitome_test_harness::agent::obey;
use epitome_test_harness::text as say;
use epitome_test_harness::user::{User, program};
use serde_json::{Value, json};

const STREAM: [&str; 3] = ["run", "--output-format", "stream-json"];
const BOTH: [&str; 5] = ["run", "--output-format", "stream-json", "--input-format", "stream-json"];

fn prompt(text: &str) -> String {
    format!("{}\n", json!({ "type": "user", "message": { "role": "user", "content": text } }))
}

/// The types of lines, with their subtypes.
fn kinds(lines: &[Value]) -> Vec<String> {
    let kind = |line: &Value| match line["subtype"].as_str() {
        Some(subtype) => format!("{}/{subtype}", line["type"].as_str().expect("a type")),
        None => line["type"].as_str().expect("a type").to_owned(),
    };
    lines.iter().map(kind).collect()
}

#[test]
fn several_prompts_on_stdin_have_a_result_each() {
    let user = User::with_model(obey);
    let stdin = prompt("run echo hi") + "\n" + &prompt("say two");
    let ran = user.run_with_stdin(&[&BOTH[..], &["--mode", "full"]].concat(), &stdin).exited(0);
    let lines = ran.objects();
    let lines: Vec<Value> = lines.into_iter().filter(|line| line["subtype"] != "informational").collect();
    let expected = [
        "system/init",
        "assistant",
        "user",
        "assistant",
        "result/success",
        "system/init",
        "assistant",
        "result/success",
    ];
    assert_eq!(kinds(&lines), expected, "{lines:#?}");
    let session = user.session();
    assert!(
        lines.iter().all(|line| line["session_id"] == *session && line["uuid"].is_string()),
        "{lines:#?}"
    );
    assert_eq!(lines[0]["permissionMode"], "bypassPermissions");
    assert!(lines[0]["tools"].as_array().expect("a list").contains(&json!("bash")), "{lines:#?}");
    let used = &lines[1]["message"]["content"][1];
    let result = &lines[2]["message"]["content"][0];
    assert_eq!((&used["type"], &used["name"]), (&json!("tool_use"), &json!("bash")));
    assert_eq!((&result["tool_use_id"], &result["is_error"]), (&used["id"], &json!(false)));
    assert_eq!((&lines[4]["num_turns"], &lines[4]["result"]), (&json!(2), &json!("Done.")));
    assert_eq!((&lines[7]["num_turns"], &lines[7]["result"]), (&json!(1), &json!("You said two.")));
}

#[test]
fn partial_messages_add_up_to_the_reply() {
    let user = User::with_model(obey);
    let ran = user.run(&[&STREAM[..], &["--include-partial-messages", "say it"]].concat()).exited(0);
    let lines = ran.objects();
    let deltas = lines.iter().filter_map(|line| line["event"]["delta"]["text"].as_str());
    assert_eq!(deltas.collect::<String>(), "You said it.");
    assert_eq!(lines.last().expect("a line")["result"], "You said it.");
}

/// A call that a program's own check should have stopped must not run.
#[test]
fn a_program_answers_permission_requests() {
    let user = User::with_model(obey);
    let arguments = [&BOTH[..], &["--permission-prompt-tool", "stdio"]].concat();
    let mut child = user.command(&arguments).stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = move |kind: &str| loop {
        let line: Value = serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
        if line["type"] == kind {
            return line;
        }
    };
    let answers = [
        ("allowed", json!({ "behavior": "allow", "updatedInput": { "command": "touch allowed" } })),
        ("changed", json!({ "behavior": "allow", "updatedInput": { "command": "touch other" } })),
        ("denied", json!({ "behavior": "deny", "message": "not today" })),
    ];
    for (name, answer) in answers {
        input.write_all(prompt(&format!("run touch {name}")).as_bytes()).expect("it reads");
        let asked = next("control_request");
        assert_eq!(asked["request"]["input"], json!({ "command": format!("touch {name}") }));
        let response = json!({ "subtype": "success", "request_id": asked["request_id"], "response": answer });
        writeln!(input, "{}", json!({ "type": "control_response", "response": response })).expect("it reads");
        let result = next("result");
        assert_eq!(
            result["permission_denials"].as_array().map(Vec::len),
            Some(usize::from(name != "allowed"))
        );
        assert_eq!(user.project().join(name).exists(), name == "allowed");
    }
    assert!(!user.project().join("other").exists());
    // Without the program, no client is left to ask.
    input.write_all(prompt("run touch left").as_bytes()).expect("it reads");
    drop(input);
    assert_eq!(next("result")["permission_denials"].as_array().map(Vec::len), Some(1));
    assert!(child.wait().expect("it ends").success() && !user.project().join("left").exists());
}

#[test]
fn a_program_is_refused_what_does_not_exist_here() {
    let user = User::with_model(obey);
    let setup = |request: Value| {
        format!("{}\n", json!({ "type": "control_request", "request_id": "1", "request": request }))
    };
    let hooks =
        setup(json!({ "subtype": "initialize", "hooks": { "PreToolUse": [{ "hookCallbackIds": ["a"] }] } }));
    for (stdin, expected) in [
        (hooks + &prompt("say hello"), "does not support these options of SDKs: hooks"),
        ("hello\n".to_owned(), "line 1 of stdin can't be used: it is not JSON: expected value at column 1"),
        (prompt(" "), "line 1 of stdin can't be used: the prompt is empty"),
        (
            "{\"type\": \"user\", \"message\": {\"content\": 1}}\n".to_owned(),
            "the content is neither a text nor a list of blocks",
        ),
        (String::new(), "stdin ended without a prompt"),
    ] {
        let refused = user.run_with_stdin(&BOTH, &stdin).exited(2);
        assert!(refused.err.contains(expected), "{refused:?}");
    }
    assert!(user.model().requests().is_empty(), "nothing was paid for");
    let answered = setup(json!({ "subtype": "initialize", "appendSystemPrompt": "Be brief." }))
        + &setup(json!({ "subtype": "mcp_status" }))
        + &prompt("say hello");
    let lines = user.run_with_stdin(&BOTH, &answered).exited(0).objects();
    let responses: Vec<&Value> = lines.iter().filter(|line| line["type"] == "control_response").collect();
    assert_eq!(responses[0]["response"]["error"], "Epitome does not support the request \"mcp_status\"");
    assert!(responses[1]["response"]["response"]["models"][0]["value"] == "local/scripted", "{responses:?}");
    assert!(user.model().requests()[0].body.to_string().contains("Be brief."));
}

/// A server's arguments may be wrong in a way that leaves a program without the tools that it needs.
#[test]
fn mcp_servers_of_a_run_are_used_or_refused() {
    let user = User::with_model(obey);
    user.write(
        "project/server.sh",
        r#"while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    case "$line" in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"look","description":"Looks","inputSchema":{"type":"object"}}]}' ;;
    *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#,
    );
    let config = r#"{"mcpServers": {"eyes": {"command": "sh", "args": ["server.sh"]}}}"#;
    let lines = user.run(&[&STREAM[..], &["--mcp-config", config, "say hello"]].concat()).exited(0).objects();
    assert!(
        lines[0]["tools"].as_array().expect("a list").contains(&json!("mcp__eyes__look")),
        "{}",
        lines[0]
    );
    let config = r#"{"mcpServers": {"old": {"type": "sse", "url": "https://old.example/sse"}}}"#;
    let refused = user.run(&["run", "--mcp-config", config, "say hello"]).exited(2);
    assert!(refused.err.contains("--mcp-config: \"old\""), "{refused:?}");
}

const COLOR: &str =
    r#"{"type": "object", "required": ["color"], "properties": {"color": {"enum": ["red", "blue"]}}}"#;

#[test]
fn only_a_reply_that_matches_the_schema_is_printed() {
    let replies = || {
        vec![
            vec![say("Green, I think.")],
            vec![say(r#"{"color": "green"}"#)],
            vec![say(r#"{"color": "red"}"#)],
        ]
    };
    let user = User::with_replies(replies());
    let ran = user.run(&["run", "--json-schema", COLOR, "pick a color"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), "{\"color\":\"red\"}\n", ""));
    let asked: Vec<String> = user.model().requests().iter().map(|request| request.last_user_text()).collect();
    assert!(asked[0].contains("pick a color") && asked[0].contains("JSON Schema"), "{asked:?}");
    assert!(asked[1].contains("not valid JSON") && asked[2].contains("/color"), "{asked:?}");

    let user = User::with_replies(replies());
    let result = user.run(&["run", "--output", "json", "--json-schema", COLOR, "pick a color"]).json();
    assert_eq!(result["structured_output"], json!({ "color": "red" }));
    let user = User::with_replies(replies());
    let lines =
        user.run(&[&STREAM[..], &["--json-schema", COLOR, "pick a color"]].concat()).exited(0).objects();
    assert_eq!(lines.last().expect("a line")["structured_output"], json!({ "color": "red" }));
}

#[test]
fn without_a_matching_reply_a_run_fails_after_a_few_attempts() {
    let user = User::with_model(|_| vec![say("I can't.")]);
    let ran = user.run(&["run", "--json-schema", COLOR, "pick a color"]).exited(1);
    assert!(ran.out.is_empty() && ran.err.contains("no reply matched the schema"), "{ran:?}");
    assert_eq!(user.model().requests().len(), 4);
    let ran = user.run(&[&STREAM[..], &["--json-schema", COLOR, "pick a color"]].concat()).exited(1);
    let result = ran.objects().pop().expect("a result");
    assert_eq!(result["subtype"], "error_max_structured_output_retries");
    let wrong = user.run(&["run", "--json-schema", "missing.json", "pick a color"]).exited(2);
    assert!(wrong.err.contains("missing.json can't be read"), "{wrong:?}");
}

/// A copy of a package with the modules that it needs, so that nothing is written into the repository.
struct NodePackage {
    directory: tempfile::TempDir,
}

impl NodePackage {
    /// `None`, with a message, if Node or a module is missing.
    fn new(modules: &[&str]) -> Option<NodePackage> {
        let installed = std::env::var_os("EPITOME_NODE_MODULES").map(PathBuf::from);
        let has_node = Command::new("node").arg("--version").output().is_ok();
        let missing = match &installed {
            Some(installed) if has_node => {
                modules.iter().find(|name| !installed.join(name).exists()).copied()
            }
            Some(_) => Some("node"),
            None => Some("EPITOME_NODE_MODULES"),
        };
        if let Some(missing) = missing {
            eprintln!("skipped: {missing} is missing");
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let modules = directory.path().join("node_modules");
        std::os::unix::fs::symlink(installed?, modules).expect("a link");
        copy(&root().join("packaging/sdk/typescript"), directory.path());
        Some(NodePackage { directory })
    }

    fn run(&self, program: &str, arguments: &[&str], user: &User) -> Output {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.directory.path()).env_clear();
        with_environment(&mut command, user);
        // npm's cache.
        command.env("npm_config_cache", self.directory.path().join("cache")).output().expect("it starts")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("it is there") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("it has a name"));
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(fs::copy(&path, &target).expect("it is copied")),
        }
    }
}

/// The environment of the user's programs.
fn with_environment(command: &mut Command, user: &User) {
    for (name, value) in user.command(&[]).get_envs() {
        command.env(name, value.expect("no variable is removed"));
    }
}

#[track_caller]
fn ok(output: Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The program with a name of its own, as SDKs need it.
fn wrapper(user: &User) -> PathBuf {
    let path = user.home().join("as-claude.sh");
    user.write(
        "as-claude.sh",
        &format!("#!/bin/sh\nexec '{}' run --standalone \"$@\"\n", program().display()),
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

#[test]
fn the_typescript_package_drives_sessions() {
    let Some(package) = NodePackage::new(&["@agentclientprotocol/sdk", "typescript", "@types/node"]) else {
        return;
    };
    let user = User::with_model(obey);
    ok(package.run("node", &["node_modules/typescript/bin/tsc"], &user));
    let (program, project) = (program().display().to_string(), user.project().display().to_string());
    assert_eq!(ok(package.run("node", &["test.mjs", &program, &project], &user)), "ok\n");
    let packed = ok(package.run("npm", &["pack", "--dry-run", "--json", "--ignore-scripts"], &user));
    let packed: Value = serde_json::from_str(&packed).expect("JSON");
    let packed = packed.get(0).or_else(|| packed.get("epitome-sdk")).expect("one package");
    let mut files: Vec<&str> =
        packed["files"].as_array().expect("a list").iter().filter_map(|file| file["path"].as_str()).collect();
    files.sort_unstable();
    let expected = [
        "README.md",
        "dist/control.d.ts",
        "dist/control.js",
        "dist/index.d.ts",
        "dist/index.js",
        "package.json",
    ];
    assert_eq!(files, expected);
}

#[test]
fn the_typescript_sdk_of_another_agent_runs_this_program() {
    let Some(package) = NodePackage::new(&["@anthropic-ai/claude-agent-sdk"]) else { return };
    let user = User::with_model(obey);
    let script = r#"
import assert from "node:assert/strict";
import { query } from "@anthropic-ai/claude-agent-sdk";
const options = { pathToClaudeCodeExecutable: process.argv[2], cwd: process.argv[3] };
async function result(prompt, more = {}) {
  let last;
  for await (const message of query({ prompt, options: { ...options, ...more } })) last = message;
  return last;
}
assert.equal((await result("say hello")).result, "You said hello.");
const asked = [];
const canUseTool = async (name, input) => (asked.push([name, input]), { behavior: "allow", updatedInput: input });
assert.equal((await result("run echo hi", { canUseTool })).result, "Done.");
assert.deepEqual(asked, [["bash", { command: "echo hi" }]]);
const denied = await result("run echo hi", { disallowedTools: ["Bash"], canUseTool });
assert.deepEqual([denied.permission_denials.length, asked.length], [1, 1]);
async function* prompts() {
  for (const content of ["say one", "say two"]) {
    yield { type: "user", session_id: "", message: { role: "user", content }, parent_tool_use_id: null };
  }
}
const results = [];
for await (const message of query({ prompt: prompts(), options })) if (message.type === "result") results.push(message.result);
assert.deepEqual(results, ["You said one.", "You said two."]);
const hooks = { PreToolUse: [{ hooks: [async () => ({})] }] };
await assert.rejects(result("say hello", { hooks }), /does not support these options of SDKs: hooks/);
console.log("ok");
"#;
    fs::write(package.directory.path().join("other.mjs"), script).expect("it is written");
    let (wrapper, project) = (wrapper(&user).display().to_string(), user.project().display().to_string());
    assert_eq!(ok(package.run("node", &["other.mjs", &wrapper, &project], &user)), "ok\n");
}

/// A Python with these modules; `None`, with a message, if there is none.
fn python(modules: &[&str]) -> Option<OsString> {
    let python = std::env::var_os("EPITOME_PYTHON").unwrap_or_else(|| "python3".into());
    let import = format!("import {}", modules.join(", "));
    let has = Command::new(&python).args(["-c", &import]).output();
    if !has.is_ok_and(|has| has.status.success()) {
        eprintln!("skipped: there is no Python with {}", modules.join(", "));
        return None;
    }
    Some(python)
}

fn run_python(python: &OsString, arguments: &[&str], user: &User) -> Output {
    let mut command = Command::new(python);
    command.args(arguments).current_dir(user.home()).env_clear();
    with_environment(&mut command, user);
    command.env("PYTHONPATH", root().join("packaging/sdk/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.output().expect("it starts")
}

#[test]
fn the_python_package_drives_sessions() {
    let Some(python) = python(&["acp"]) else { return };
    let user = User::with_model(obey);
    let script = root().join("packaging/sdk/python/test.py").display().to_string();
    let (program, project) = (program().display().to_string(), user.project().display().to_string());
    assert_eq!(ok(run_python(&python, &[&script, &program, &project], &user)), "ok\n");
}

#[test]
fn the_python_package_is_a_wheel() {
    let Some(python) = python(&["pip", "hatchling"]) else { return };
    let user = User::new();
    copy(&root().join("packaging/sdk/python"), &user.home().join("package"));
    let build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        "dist",
        "./package",
    ];
    ok(run_python(&python, &build, &user));
    let list = "import sys, zipfile; print(*sorted(zipfile.ZipFile(sys.argv[1]).namelist()), sep='\\n')";
    let wheel = "dist/epitome_sdk-0.1.0-py3-none-any.whl";
    let files = ok(run_python(&python, &["-c", list, wheel], &user));
    let files: Vec<&str> = files.lines().filter(|file| file.starts_with("epitome_sdk/")).collect();
    assert_eq!(
        files,
        ["__init__.py", "_client.py", "_control.py", "py.typed"].map(|file| format!("epitome_sdk/{file}"))
    );
}

#[test]
fn the_python_sdk_of_another_agent_runs_this_program() {
    let Some(python) = python(&["claude_agent_sdk"]) else { return };
    let user = User::with_model(obey);
    let script = r#"
import asyncio, sys
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, PermissionResultDeny, ResultMessage, query

async def main(path, cwd):
    async def deny(name, given, context):
        return PermissionResultDeny(message="not today")
    options = ClaudeAgentOptions(cli_path=path, cwd=cwd, can_use_tool=deny, include_partial_messages=True)
    async with ClaudeSDKClient(options) as client:
        for prompt, expected in [("say hello", ("You said hello.", 0)), ("run echo hi", ("Done.", 1))]:
            await client.query(prompt)
            *_, last = [message async for message in client.receive_response()]
            assert isinstance(last, ResultMessage), last
            assert (last.result, len(last.permission_denials)) == expected, last
        await client.set_permission_mode("acceptEdits")
        await client.interrupt()
    print("ok")

asyncio.run(main(*sys.argv[1:]))
"#;
    let (wrapper, project) = (wrapper(&user).display().to_string(), user.project().display().to_string());
    assert_eq!(ok(run_python(&python, &["-c", script, &wrapper, &project], &user)), "ok\n");
}

/// Runs the scripts of the action like a runner does; returns the outputs, and what was printed.
fn action(user: &User, inputs: &[(&str, &str)], more: &[(&str, &str)]) -> (Output, String) {
    let (output, temporary) = (user.home().join("output"), user.home().join("temporary"));
    fs::create_dir_all(&temporary).expect("a directory");
    fs::write(&output, "").expect("it is written");
    let mut command = Command::new(root().join("packaging/action/run.sh"));
    command.current_dir(user.project()).env_clear();
    with_environment(&mut command, user);
    let defaults = [
        ("INPUT_PROMPT", ""),
        ("INPUT_FILE", ""),
        ("INPUT_RECIPE", ""),
        ("INPUT_MODEL", "anthropic/claude-sonnet-4-5"),
        ("INPUT_MODE", "read_only"),
        ("INPUT_ALLOW", ""),
        ("INPUT_MAX_COST", "1.00"),
        ("INPUT_MAX_ROUNDS", "9"),
        ("INPUT_JSON_SCHEMA", ""),
        ("INPUT_WORKING_DIRECTORY", "."),
    ];
    command.envs(defaults).envs(inputs.iter().copied()).envs(more.iter().copied());
    command.env("EPITOME", program()).env("GITHUB_OUTPUT", &output).env("RUNNER_TEMP", &temporary);
    let ran = command.output().expect("bash runs");
    (ran, fs::read_to_string(output).expect("it is there"))
}

/// A budget in money refuses models without a price, so the scripted model is used as one that has a price.
fn priced(replies: Vec<Vec<ModelStep>>) -> User {
    let mut user = User::with_replies(replies);
    let address = user.model().base_url();
    user.set("ANTHROPIC_BASE_URL", address);
    user.set("ANTHROPIC_API_KEY", "sk-ant-PLANTED");
    user
}

#[test]
fn the_action_returns_the_reply_and_can_not_be_tricked_into_other_outputs() {
    if Command::new("jq").arg("--version").output().is_err() {
        return eprintln!("skipped: jq is not installed");
    }
    let reply = "Fine.\nreason<<EOF\nforged\nEOF\ntext=forged";
    let user = priced(vec![vec![say(reply)]]);
    user.write("home-of-diff/a.diff", "+ $(touch pwned)\n");
    let diff = user.home().join("home-of-diff/a.diff").display().to_string();
    let inputs = [("INPUT_PROMPT", "review `touch pwned` $(touch pwned)"), ("INPUT_FILE", &diff)];
    let (ran, outputs) = action(&user, &inputs, &[("GITHUB_TOKEN", "ghs_PLANTED")]);
    ok(ran);
    let delimiter =
        outputs.lines().next().and_then(|line| line.split_once("<<")).expect("an output").1.to_owned();
    assert!(outputs.starts_with(&format!("text<<{delimiter}\n{reply}\n{delimiter}\n")), "{outputs}");
    assert!(outputs.contains(&format!("reason<<{delimiter}\nend_turn\n{delimiter}\n")), "{outputs}");
    assert!(!user.project().join("pwned").exists());
    let asked = user.model().requests()[0].body.to_string();
    assert!(
        asked.contains("review `touch pwned` $(touch pwned)") && asked.contains("+ $(touch pwned)"),
        "{asked}"
    );

    for (inputs, expected) in [
        (&[("INPUT_MODE", "full")][..], "must be read_only or auto"),
        (&[("INPUT_FILE", "missing")], "names no file: missing"),
        (&[("INPUT_MAX_COST", "free")], "exit code 2"),
    ] {
        let (ran, _) = action(&user, inputs, &[("INPUT_PROMPT", "review")]);
        let printed = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(!ran.status.success() && printed.contains(expected), "{printed}");
    }
}

/// The names in a table of the page, or in a mapping of the action's description.
fn names(text: &str, from: &str, to: &str, is_name: impl Fn(&str) -> Option<&str>) -> Vec<String> {
    let part = text.split_once(from).expect("it begins").1.split_once(to).expect("it ends").0;
    part.lines().filter_map(is_name).map(str::to_owned).collect()
}

#[test]
fn the_page_lists_the_inputs_of_the_action_and_its_examples_use_no_other() {
    let description = fs::read_to_string(root().join("packaging/action/action.yml")).expect("it is there");
    let page = fs::read_to_string(root().join("docs/operators/github-action.md")).expect("it is there");
    let mut inputs = names(&description, "inputs:\n", "\noutputs:", |line| {
        line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.strip_suffix(':')
    });
    let mut listed =
        names(&page, "| --- | --- | --- |\n", "\n\n", |line| line.strip_prefix("| `")?.split('`').next());
    inputs.sort();
    listed.sort();
    assert_eq!(inputs, listed);
    for example in page.split("packaging/action@REVISION").skip(1) {
        let used = names(example, "with:\n", "prompt: >-", |line| Some(line.trim().split_once(':')?.0));
        assert!(!used.is_empty() && used.iter().all(|input| inputs.contains(input)), "{used:?}");
    }
    // Settings that would give strangers secrets, or the model a token that can write.
    assert!(!page.contains("on:\n  pull_request_target"), "forks must not get secrets");
    let (model_jobs, _) = page.split_once("propose:").expect("a second job");
    assert!(!model_jobs.contains("contents: write"), "the model's job may not write");
}
