//! Logging in from a shell and from an editor, with the built program.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use epitome_scripted_model::ScriptedModel;
use epitome_test_harness::agent::{Agent, agent_text, obey};
use epitome_test_harness::user::{User, program};
use serde_json::{Value, json};

const KEY: &str = "sk-ant-PLANTED-0123456789";

/// A user without a key. Requests to Anthropic go to a scripted model.
fn user_without_a_key() -> (User, ScriptedModel) {
    let model = ScriptedModel::start(obey).expect("loopback");
    let mut user = User::new();
    user.set("ANTHROPIC_BASE_URL", model.base_url());
    // A port without a listener, because the test machine may have a local server.
    user.set("EPITOME_LOCAL_URL", "http://127.0.0.1:9/v1");
    (user, model)
}

/// Runs a command in a pseudo-terminal. Each text is typed once its question is shown. Returns the exit code and the
/// complete terminal output.
fn in_a_terminal(user: &User, arguments: &str, dialogue: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new("script");
    let line = format!("{} {arguments}", program().display());
    command.args(["-qec", &line, "/dev/null"]).env_clear().current_dir(user.project());
    for (name, value) in user.command(&[]).get_envs() {
        command.env(name, value.expect("no variable is removed"));
    }
    let mut child = command
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`script` of util-linux is installed");
    let (mut keys, mut screen) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let mut shown = Vec::new();
    for (question, typed) in dialogue {
        while !String::from_utf8_lossy(&shown).contains(question) {
            let mut piece = [0; 1024];
            let count = screen.read(&mut piece).expect("it can be read");
            assert!(count > 0, "it ended before {question:?}: {}", String::from_utf8_lossy(&shown));
            shown.extend_from_slice(&piece[..count]);
        }
        keys.write_all(typed.as_bytes()).expect("it reads");
    }
    screen.read_to_end(&mut shown).expect("it can be read");
    (child.wait().expect("it ends").code(), String::from_utf8_lossy(&shown).into_owned())
}

/// The relevant part of Zed's `initialize` parameters.
fn zed() -> Value {
    json!({ "protocolVersion": 1, "clientInfo": { "name": "zed", "version": "1.0.0" },
        "clientCapabilities": { "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true,
            "auth": { "terminal": true }, "_meta": { "terminal_output": true, "terminal-auth": true } } })
}

/// Regression: the editor's only button did nothing and reported success, and the instructions were never shown to the
/// user.
#[test]
fn the_first_minute_in_an_editor_without_a_key_leads_to_a_session() {
    let (user, model) = user_without_a_key();
    let mut agent = Agent::spawn(user.agent_command(&[]));
    let offered = agent.call("initialize", zed());
    let method = &offered["authMethods"][0];
    assert_eq!((&method["type"], &method["args"]), (&json!("terminal"), &json!(["login"])));
    let task = &method["_meta"]["terminal-auth"];
    assert_eq!(task["command"], json!(program()));
    assert_eq!(task["env"]["EPITOME_HOME"], json!(user.own()));

    let opening = json!({ "cwd": user.project(), "mcpServers": [] });
    for (name, params) in
        [("session/new", opening.clone()), ("authenticate", json!({ "methodId": "environment" }))]
    {
        let id = agent.request(name, params);
        let refused = agent.answer(id).1["error"].clone();
        assert_eq!(refused["code"], -32000, "{name}");
        assert!(refused["message"].as_str().expect("a sentence").contains("epitome login"), "{refused}");
    }

    // The editor runs the command that starts the agent, with the arguments of the method.
    let dialogue = [("Which provider?", "1\n"), ("Paste the key", &format!("{KEY}\r"))];
    let (code, shown) = in_a_terminal(&user, "acp login", &dialogue);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("The key works. Logged in to Anthropic."), "{shown}");
    assert!(!shown.contains("PLANTED"), "the key is not shown: {shown}");

    // The daemon is still running.
    agent.call("authenticate", json!({ "methodId": "environment" }));
    let session = agent.call("session/new", opening)["sessionId"].as_str().expect("an id").to_owned();
    let (updates, reason) = agent.turn(&session, "say hello");
    assert_eq!((agent_text(&updates).as_str(), reason.as_str()), ("You said hello.", "end_turn"));
    let requests = model.requests();
    assert_eq!(requests.last().expect("it was asked").header("x-api-key"), Some(KEY));
    agent.close_input();
    agent.ended();
}

#[test]
fn a_stored_key_is_used_shown_nowhere_and_removed() {
    let (user, model) = user_without_a_key();
    let printed = user.run_with_stdin(&["login", "anthropic", "--key-stdin"], &format!("{KEY}\n")).ok();
    assert!(printed.starts_with("The key works. Logged in to Anthropic."), "{printed}");
    let file = user.own().join("data/logins/anthropic.json");
    assert_eq!(file.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
    assert_eq!(user.run(&["run", "say", "hello"]).ok(), "You said hello.\n");
    assert_eq!(model.requests()[0].header("x-api-key"), Some(KEY));

    let status = user.run(&["login", "--status"]).ok();
    assert!(
        status.contains("anthropic   stored login, since 20") && status.contains("openai      no key"),
        "{status}"
    );
    let rows = user.run(&["login", "--status", "--json"]).json();
    assert_eq!((&rows[0]["provider"], &rows[0]["source"]), (&json!("anthropic"), &json!("stored")));
    let report = user.run(&["bug-report", "-"]).ok();
    for text in [printed, status, rows.to_string(), report] {
        assert!(!text.contains("PLANTED"), "{text}");
    }

    assert!(user.run(&["logout", "anthropic"]).ok().starts_with("Removed the stored login for anthropic."));
    assert!(!file.exists());
    assert!(user.run(&["run", "say", "hello"]).exited(1).err.contains("epitome login"));
    assert_eq!(user.run(&["logout", "--all"]).ok(), "There is no stored login to remove.\n");
    // Regression: a mistyped name looked like a login that is gone.
    assert!(user.run(&["logout", "antropic"]).exited(2).err.contains("there is no provider \"antropic\""));
}

#[test]
fn the_environment_has_precedence_and_the_status_says_so() {
    let (mut user, model) = user_without_a_key();
    user.run_with_stdin(&["login", "claude", "--key-stdin"], KEY).ok();
    user.set("ANTHROPIC_API_KEY", "sk-of-the-environment");
    user.run(&["run", "say", "hello"]).ok();
    assert_eq!(model.requests()[0].header("x-api-key"), Some("sk-of-the-environment"));
    let rows = user.run(&["login", "--status", "--json"]).json();
    assert_eq!(
        (&rows[0]["source"], &rows[0]["variable"]),
        (&json!("environment"), &json!("ANTHROPIC_API_KEY"))
    );
}

/// Simulates OpenRouter: issues a key for a code, and accepts that key.
fn openrouter() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    let base = format!("http://{}/api/v1", listener.local_addr().expect("it is bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let is_known = head.iter().any(|line| line.ends_with("Bearer sk-or-PLANTED"));
            let (status, body) = match head.first().map(String::as_str).unwrap_or_default() {
                "POST /api/v1/auth/keys HTTP/1.1" => ("200 OK", r#"{"key":"sk-or-PLANTED"}"#),
                "GET /api/v1/key HTTP/1.1" if is_known => ("200 OK", r#"{"data":{"label":"sk-or"}}"#),
                _ => ("401 Unauthorized", r#"{"error":{"code":401,"message":"no"}}"#),
            };
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            // Reads the rest of the request, so that closing the connection does not reset it.
            drop((&stream).write_all(answer.as_bytes()).and_then(|()| stream.shutdown(Shutdown::Write)));
            drop(std::io::copy(&mut &stream, &mut std::io::sink()));
        }
    });
    base
}

#[test]
fn a_sign_in_waits_for_the_browser() {
    let mut user = User::new();
    user.set("OPENROUTER_BASE_URL", openrouter());
    let mut child = user.command(&["login", "openrouter", "--no-browser"]).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let line = lines.next().expect("a line").expect("text");
    let link = line.strip_prefix("Sign in at ").expect("the link");
    let callback = link.split("callback_url=").nth(1).and_then(|rest| rest.split('&').next());
    let callback = callback.expect("an address").replace("%3A", ":").replace("%2F", "/").replace("%2E", ".");
    let callback = callback.replace("%2D", "-").replace("%5F", "_");
    let (authority, path) = callback["http://".len()..].split_once('/').expect("it has a path");
    let mut browser = TcpStream::connect(authority).expect("it listens");
    write!(browser, "GET /{path}?code=c HTTP/1.1\r\n\r\n").expect("it reads");
    let mut page = String::new();
    browser.read_to_string(&mut page).expect("it answers");
    assert!(page.contains("You are logged in"), "{page}");
    let output = child.wait_with_output().expect("it ends");
    let out = String::from_utf8(output.stdout).expect("text");
    assert!(out.starts_with("The key works. Logged in to OpenRouter."), "{out}");
    let stored =
        std::fs::read_to_string(user.own().join("data/logins/openrouter.json")).expect("it is there");
    assert!(stored.contains("sk-or-PLANTED") && !out.contains("PLANTED"), "{out}");
}

#[test]
fn without_a_network_nothing_is_stored_unless_the_test_is_left_out() {
    let mut user = User::new();
    user.set("ANTHROPIC_BASE_URL", "http://127.0.0.1:9");
    let login = ["login", "anthropic", "--key-stdin"];
    let ran = user.run_with_stdin(&login, KEY).exited(1);
    assert!(ran.err.contains("cannot be reached") && ran.err.contains("--no-test"), "{ran:?}");
    let file = user.own().join("data/logins/anthropic.json");
    assert!(!file.exists());
    let printed = user.run_with_stdin(&[&login[..], &["--no-test"]].concat(), KEY).ok();
    assert!(printed.starts_with("It was not tested. Logged in"), "{printed}");
    assert!(file.exists());
}

#[test]
fn a_login_that_cannot_be_asked_for_says_how_to_give_the_key() {
    let user = User::new();
    let ran = user.run(&["login"]).exited(2);
    assert!(ran.err.contains("name a provider: anthropic, openai, gemini, openrouter, chatgpt"), "{ran:?}");
    let ran = user.run(&["login", "nobody", "--key-stdin"]).exited(2);
    assert!(ran.err.contains("there is no provider \"nobody\""), "{ran:?}");
    let ran = user.run_with_stdin(&["login", "openai", "--key-stdin"], "two words").exited(1);
    assert!(ran.err.contains("this is not a key") && !ran.err.contains("two words"), "{ran:?}");
}
