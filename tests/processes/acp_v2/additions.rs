//! Additions to the protocol: boolean options, skills as a kind of commands, gateways, cursors, and links to the
//! sessions of subagents. Most of them have to be asked for.

use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use epitome_test_harness::agent::{Agent, end_by, obey};
use epitome_test_harness::{call, text};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::window::Window;
use super::{INVALID_PARAMS, user};

fn option<'a>(options: &'a Value, key: &str, id: &str) -> &'a Value {
    let options = options["configOptions"].as_array().expect("options");
    options.iter().find(|option| option[key] == id).expect("the option is there")
}

/// Automatic compaction is a boolean where clients show such options, and a selection elsewhere. Both set the same.
#[test]
fn automatic_compaction_is_a_boolean_for_clients_that_show_those() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let made = window.call("session/new", json!({ "cwd": user.project() }));
    let session = made["sessionId"].as_str().expect("an id").to_owned();
    let offered = option(&made, "configId", "auto_compact");
    assert_eq!((&offered["type"], &offered["currentValue"]), (&json!("boolean"), &json!(true)));
    window.turn(&session, "say one");
    let mut old = user.start();
    user.load(&mut old, &session);
    let set = json!({ "sessionId": session, "configId": "auto_compact", "type": "boolean", "value": false });
    let answer = window.call("session/set_config_option", set);
    assert_eq!(option(&answer, "configId", "auto_compact")["currentValue"], false);
    let is_update = |message: &Value| message["params"]["update"]["sessionUpdate"] == "config_option_update";
    let shown = old.until("the options", is_update).pop().expect("it was read");
    let selection = option(&shown["params"]["update"], "id", "auto_compact");
    assert_eq!((&selection["type"], &selection["currentValue"]), (&json!("select"), &json!("off")));
    let set = json!({ "sessionId": session, "configId": "auto_compact", "value": "on" });
    let answer = old.call("session/set_config_option", set);
    assert_eq!(option(&answer, "id", "auto_compact")["currentValue"], "on");
    for wrong in [
        json!({ "sessionId": session, "configId": "auto_compact", "type": "id", "value": true }),
        json!({ "sessionId": session, "configId": "auto_compact", "type": "slider", "value": 1 }),
        json!({ "sessionId": session, "configId": "mode", "type": "boolean", "value": true }),
    ] {
        assert_eq!(window.error("session/set_config_option", wrong), INVALID_PARAMS);
    }
    // In version 1 a client asks for booleans.
    let mut asking = Agent::spawn(user.agent_command(&[]));
    let capabilities = json!({ "session": { "configOptions": { "boolean": {} } } });
    asking.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities }));
    let made = asking.call("session/new", json!({ "cwd": user.project(), "mcpServers": [] }));
    assert_eq!(option(&made, "id", "auto_compact")["type"], "boolean");
}

/// Queries of a client about a session that it has not opened.
#[test]
fn the_status_has_the_state_and_the_options_come_with_the_commands() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    // This is newer than the schema.
    let options = window.agent.call("session/options", json!({ "cwd": user.project() }));
    let session = window.new_session(&user);
    let commands = options["availableCommands"].as_array().expect("commands");
    assert!(commands.iter().any(|command| command["name"] == "compact"), "{options}");
    let mut other = Window::start(&user, &[]);
    let status = |other: &mut Window| {
        let status = other.call("session/status", json!({ "sessionId": session }));
        assert_eq!(status["status"], "open");
        status["state"]["state"].clone()
    };
    assert_eq!(status(&mut other), "idle");
    window.prompt(&session, "half");
    window.hear("The first half, ");
    assert_eq!(status(&mut other), "running");
    window.agent.cancel(&session);
    window.idle();
    window.prompt(&session, "run true");
    window.update("state_update", |update| update["state"] == "requires_action");
    assert_eq!(status(&mut other), "requires_action");
}

const SKILL: &str = "---\nname: greet\ndescription: Says hello\n---\nsay hello to $ARGUMENTS\n";

/// Skills are commands of their own kind for clients that show them so, and start by a block of a prompt.
#[test]
fn a_skill_is_a_command_of_its_own_kind_for_clients_that_show_those() {
    let user = user(obey);
    user.write(".epitome/skills/greet/SKILL.md", SKILL);
    let mut window = Window::start(&user, &[]);
    let shows = json!({ "session": { "commands": { "skill": {} } } });
    let info = json!({ "name": "test", "version": "1.0.0" });
    window.call("initialize", json!({ "protocolVersion": 2, "info": info, "capabilities": shows }));
    let session = window.new_session(&user);
    let is_complete = |update: &Value| update["availableCommands"].to_string().contains("greet");
    let listed = window.update("available_commands_update", is_complete);
    let mut commands = listed["availableCommands"].as_array().expect("commands").iter();
    let skill = commands.find(|command| command["name"] == "greet").expect("it is listed");
    assert_eq!((&skill["type"], &skill["description"]), (&json!("skill"), &json!("Says hello")));
    assert!(skill["path"].as_str().is_some_and(|path| path.ends_with("skills/greet/SKILL.md")));
    let start = |name: &str| {
        let prompt = json!([{ "type": "skill", "name": name }, { "type": "text", "text": "Ada" }]);
        json!({ "sessionId": session, "prompt": prompt })
    };
    let id = window.unchecked("session/prompt", start("greet"));
    assert!(window.answer(id)["result"]["messageId"].is_string());
    assert_eq!(window.idle()["stopReason"], "end_turn");
    assert!(user.model().requests().last().expect("a call").body.to_string().contains("say hello to Ada"));
    for unknown in ["nothing", "compact", "two words", ""] {
        assert_eq!(window.error("session/prompt", start(unknown)), INVALID_PARAMS, "{unknown:?}");
    }
    // A client that has not asked for it has a command.
    let mut other = Window::start(&user, &[]);
    other.call("session/resume", json!({ "sessionId": session, "cwd": user.project() }));
    let listed = other.update("available_commands_update", is_complete);
    let commands = listed["availableCommands"].as_array().expect("commands");
    assert!(commands.iter().all(|command| command["type"] == "command"));
    assert_eq!(other.error("session/prompt", start("greet")), INVALID_PARAMS);
}

/// A client sends the requests to a provider through a gateway, also when the daemon was replaced meanwhile.
#[test]
fn a_client_routes_a_provider_through_a_gateway() {
    let user = user(obey);
    let gateway = ScriptedModel::start(obey).expect("loopback");
    let address = gateway.base_url();
    let mut window = Window::start(&user, &["--model", "anthropic/claude-sonnet-4-5"]);
    let listed = window.call("providers/list", json!({}));
    let anthropic = |listed: &Value| {
        let all = listed["providers"].as_array().expect("providers").clone();
        all.into_iter().find(|provider| provider["providerId"] == "anthropic").expect("it is listed")
    };
    let before = anthropic(&listed);
    assert_eq!((&before["supported"], &before["required"]), (&json!(["anthropic"]), &json!(true)));
    assert_eq!(before["current"]["baseUrl"], "https://api.anthropic.com");
    let set = |provider: &str, kind: &str, base_url: &str| {
        let headers = json!({ "x-api-key": "of-the-gateway" });
        json!({ "providerId": provider, "apiType": kind, "baseUrl": base_url, "headers": headers })
    };
    for (provider, kind, base_url) in [
        ("nobody", "anthropic", address.as_str()),
        ("anthropic", "bedrock", address.as_str()),
        ("anthropic", "anthropic", "ftp://127.0.0.1"),
    ] {
        assert_eq!(window.error("providers/set", set(provider, kind, base_url)), INVALID_PARAMS);
    }
    assert_eq!(window.error("providers/disable", json!({ "providerId": "anthropic" })), INVALID_PARAMS);
    assert_eq!(window.call("providers/set", set("anthropic", "anthropic", &address)), json!({}));
    let listed = window.call("providers/list", json!({}));
    assert_eq!(anthropic(&listed)["current"]["baseUrl"], address);
    assert!(!listed.to_string().contains("of-the-gateway"), "headers are not shown");
    let session = window.new_session(&user);
    assert_eq!(window.turn(&session, "say one")["stopReason"], "end_turn");
    end_by(user.daemon().expect("a daemon serves"), Signal::KILL);
    assert_eq!(window.turn(&session, "say two")["stopReason"], "end_turn");
    let second = window.new_session(&user);
    assert_eq!(window.turn(&second, "say three")["stopReason"], "end_turn");
    let requests = gateway.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request.header("x-api-key") == Some("of-the-gateway")));
    assert_eq!(user.model().requests().len(), 0);
}

/// A fork begins at a cursor: after a message of the user, or after a turn. A replay has the same cursors.
#[test]
fn a_fork_begins_at_any_cursor() {
    let user = user(obey);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let mut cursors = Vec::new();
    for words in ["say one", "say two"] {
        window.turn(&session, words);
        cursors = window.of_kind("cursor_update");
    }
    let anchors: Vec<&str> =
        cursors.iter().map(|cursor| cursor["anchor"]["type"].as_str().unwrap()).collect();
    assert_eq!(anchors, ["user_message", "agent_message", "user_message", "agent_message"]);
    let said = window.text(cursors[1]["anchor"]["messageId"].as_str().expect("an id"));
    assert_eq!(said, "You said one.");
    let mut second = Window::start(&user, &[]);
    let params = json!({ "sessionId": session, "cwd": user.project(), "replayFrom": { "type": "start" } });
    second.call("session/resume", params);
    assert_eq!(second.of_kind("cursor_update"), cursors);
    let fork = |cursor: &Value| json!({ "sessionId": session, "cwd": user.project(), "cursorId": cursor });
    let made = second.call("session/fork", fork(&cursors[1]["cursorId"]));
    let forked = made["sessionId"].as_str().expect("an id").to_owned();
    second.turn(&forked, "say three");
    let request = user.model().requests().pop().expect("a call").body.to_string();
    assert!(request.contains("say one") && request.contains("say three") && !request.contains("say two"));
    for unknown in [json!("e99999"), json!("somewhere"), json!(7)] {
        assert_eq!(second.error("session/fork", fork(&unknown)), INVALID_PARAMS, "{unknown}");
    }
}

/// The call that starts a subagent links to its session, from the announcement of the session to the call's result.
#[test]
fn the_call_of_a_subagent_links_to_its_session() {
    let script = |request: &RecordedRequest| match request.last_user_text().contains("Count the files.") {
        true => vec![text("There is "), ModelStep::Wait, text("one file.")],
        false if request.number == 0 => {
            vec![call("task", json!({ "description": "Count", "prompt": "Count the files." }))]
        }
        false => vec![text("Done.")],
    };
    let user = user(script);
    let mut window = Window::start(&user, &[]);
    let session = window.new_session(&user);
    let id = window.prompt(&session, "go");
    window.answer(id);
    let announced = window.update("subagent_update", |_| true);
    let agent = &announced["sessionId"];
    // It is no session that the client could use.
    let load = json!({ "sessionId": agent, "cwd": user.project() });
    let prompt = json!({ "sessionId": agent, "prompt": [{ "type": "text", "text": "x" }] });
    for (method, params) in [("session/resume", &load), ("session/fork", &load), ("session/prompt", &prompt)]
    {
        assert_eq!(window.error(method, params.clone()), INVALID_PARAMS, "{method}");
    }
    user.model().release();
    window.idle();
    let link = json!({ "type": "session", "sessionId": agent });
    let is_linked = |update: &Value| update["content"].as_array().is_some_and(|all| all.contains(&link));
    let at = |is_it: &dyn Fn(&Value) -> bool| {
        window.updates.iter().position(|message| is_it(&message["params"]["update"])).expect("it came")
    };
    assert!(at(&|update| update["sessionUpdate"] == "subagent_update") < at(&is_linked));
    let calls = window.of_kind("tool_call_update");
    let end = calls.iter().find(|update| update["status"] == "completed").expect("the call has ended");
    assert!(is_linked(end) && end["content"].to_string().contains("There is one file."), "{end}");
}
