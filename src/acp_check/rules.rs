//! Rules of the protocol that can't be expressed as fixtures, because they depend on advertised capabilities, on time,
//! or on an agent's processes. Each cites its source.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::agent::Launch;
use super::client::{Checked, Client, Permission, Stop, Version, failed, failure, id_of};
use super::model::{PING, PROBE_FILE, SAY_PING, hang, run_command, run_long};
use super::rules_v2;
use super::story::FixtureOutcome;

/// One rule.
pub struct ProtocolRule {
    pub name: &'static str,
    pub title: &'static str,
    /// The page of the protocol's documentation, or another specification.
    pub cites: &'static str,
    /// The only version that has this rule; `None` for both.
    only: Option<Version>,
    check: fn(&mut Client<'_>) -> Checked,
}

pub(super) const METHOD_NOT_FOUND: i64 = -32601;

/// A session id that no agent has issued.
pub(super) const UNKNOWN: &str = "acp-check-unknown-session";

/// Number of requests sent without reading a response. They exceed the buffers of a pipe in both directions.
const UNREAD_REQUESTS: usize = 3000;

/// How long the processes of an agent may outlive it.
const ORPHANS_WITHIN: Duration = Duration::from_secs(5);

/// Timeout from a prompt to the start of the requested command.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);

/// Capabilities, each with a method that an agent must not support unless it advertises the capability.
const GATED: [(&str, &str); 10] = [
    ("sessionCapabilities.list", "session/list"),
    ("sessionCapabilities.resume", "session/resume"),
    ("sessionCapabilities.close", "session/close"),
    ("sessionCapabilities.delete", "session/delete"),
    ("sessionCapabilities.fork", "session/fork"),
    ("sessionCapabilities.archive", "session/archive"),
    ("sessionCapabilities.status", "session/status"),
    ("sessionCapabilities.title", "session/set_title"),
    ("auth.logout", "logout"),
    ("auth.status", "auth/status"),
];

/// The rules of a version, in the order in which they are checked.
pub fn rules(version: Version) -> impl Iterator<Item = &'static ProtocolRule> {
    let all = RULES.iter().chain(&rules_v2::RULES);
    all.filter(move |rule| rule.only.is_none_or(|only| only == version))
}

const RULES: [ProtocolRule; 31] = [
    rule(
        "version-not-supported",
        "An unknown version is answered with one that the agent supports",
        "initialization",
        version,
    )
    .only(Version::V1),
    rule("first-line", "The first line on standard output answers `initialize`", "transports", first_line),
    rule(
        "login-methods",
        "Without keys, there are login methods of a known type",
        "registry: AUTHENTICATION.md",
        login_methods,
    ),
    rule(
        "login-unknown",
        "`authenticate` with an unknown method is an error",
        "authentication",
        login_unknown,
    ),
    rule("login-status", "`auth/status` answers without a login", "rfds/auth-status", login_status),
    rule("not-advertised", "Methods that are not advertised don't exist", "initialization", not_advertised),
    rule("sessions-differ", "Two sessions have different ids", "session-setup", sessions_differ),
    rule(
        "answer-first",
        "No update names a session before the answer that creates it",
        "session-setup",
        answer_first,
    ),
    rule("in-flight", "Requests in flight get one answer each", "JSON-RPC 2.0 §5", in_flight),
    rule("bad-params", "Missing and malformed parameters are errors", "JSON-RPC 2.0 §5.1", bad_params),
    rule(
        "cancel-idle",
        "Cancelling an idle session changes nothing",
        "prompt-turn#cancellation",
        cancel_idle,
    ),
    rule(
        "cancel-unknown-request",
        "Cancelling an unknown request is ignored",
        "cancellation",
        cancel_unknown_request,
    ),
    rule("modes", "Every mode that is offered can be set, and no other", "session-modes", modes)
        .only(Version::V1),
    rule(
        "options",
        "Every option can be set, and the answer has all of them",
        "session-config-options",
        options,
    ),
    rule("list", "Sessions are listed by page, and a bad cursor is an error", "session-list", list),
    rule(
        "load-unknown",
        "Loading an unknown session is an error",
        "session-setup#loading-sessions",
        load_unknown,
    )
    .only(Version::V1),
    rule(
        "resume-unknown",
        "Resuming an unknown session is an error",
        "session-setup#resuming-sessions",
        resume_unknown,
    ),
    rule("close", "A closed session takes no prompt", "session-setup#closing-sessions", close),
    rule("delete", "Deleting twice succeeds", "session-delete", delete),
    rule("status", "The status of a session is read without opening it", "rfds/session-status", status),
    rule("prompt", "A prompt's updates precede its answer, which has a stop reason", "prompt-turn", prompt),
    rule("prompt-not-echoed", "A live prompt is not sent back", "prompt-turn", not_echoed).only(Version::V1),
    rule(
        "cancel-at-once",
        "A prompt that is cancelled at once ends as cancelled",
        "prompt-turn#cancellation",
        cancel_at_once,
    ),
    rule(
        "cancel-streaming",
        "A cancelled reply ends as cancelled, and nothing follows",
        "prompt-turn#cancellation",
        cancel_streaming,
    ),
    rule(
        "cancel-request",
        "A prompt that is cancelled as a request gets one answer",
        "cancellation",
        cancel_request,
    ),
    rule(
        "permission-rejected",
        "A command that the user rejects does not run",
        "tool-calls#requesting-permission",
        permission_rejected,
    ),
    rule(
        "cancel-asking",
        "Cancelling withdraws a permission request",
        "tool-calls#requesting-permission",
        cancel_asking,
    ),
    rule(
        "load-replays",
        "A loaded session is shown before the answer",
        "session-setup#loading-sessions",
        load_replays,
    )
    .only(Version::V1),
    rule("stalled-reader", "A client that reads late gets every answer", "transports", stalled_reader),
    rule(
        "end-of-input",
        "The agent ends when its input is closed, also in a turn",
        "transports",
        end_of_input,
    ),
    rule("no-orphans", "Commands end with the agent", "transports", no_orphans),
];

pub(super) const fn rule(
    name: &'static str,
    title: &'static str,
    cites: &'static str,
    check: fn(&mut Client<'_>) -> Checked,
) -> ProtocolRule {
    ProtocolRule { name, title, cites, only: None, check }
}

impl ProtocolRule {
    pub(super) const fn only(self, version: Version) -> ProtocolRule {
        ProtocolRule { only: Some(version), ..self }
    }

    /// Where the rule is in the documentation of a version.
    pub fn cites(&self, version: Version) -> &'static str {
        match (version, self.cites) {
            (Version::V2, "prompt-turn") => "prompt-lifecycle",
            (Version::V2, "prompt-turn#cancellation") => "prompt-lifecycle#cancellation",
            (_, cites) => cites,
        }
    }

    /// Checks an agent, in a separate process and workspace. `login` is the method to log in with.
    pub fn check(&self, agent: &dyn Launch, version: Version, login: Option<&str>) -> FixtureOutcome {
        let client = Client::new(agent, version, login).map_err(Stop::from);
        let checked = client.and_then(|mut client| (self.check)(&mut client));
        match checked {
            Ok(()) => FixtureOutcome::Passed,
            Err(Stop::NotOffered(what)) => FixtureOutcome::NotOffered(what),
            Err(Stop::NotRun(why)) => FixtureOutcome::NotMeant(why),
            Err(Stop::Failed { expected, got }) => FixtureOutcome::Failed(failure(expected, got)),
        }
    }
}

fn version(client: &mut Client<'_>) -> Checked {
    let params = json!({ "protocolVersion": 65_535, "clientCapabilities": {} });
    let offered = client.result("initialize", params)?;
    match offered["protocolVersion"].as_u64() {
        Some(1..=64) => Ok(()),
        _ => failed("the newest version that it supports", offered["protocolVersion"].to_string()),
    }
}

fn first_line(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    match client.news.pop_front() {
        None => Ok(()),
        Some(earlier) => failed("the answer to `initialize` as the first line", earlier.to_string()),
    }
}

fn login_methods(client: &mut Client<'_>) -> Checked {
    let (terminal, id) = match client.version {
        Version::V1 => (json!(true), "id"),
        Version::V2 => (json!({}), "methodId"),
    };
    client.initialize_as(json!({ "auth": { "terminal": terminal } }))?;
    let methods = client.offered["authMethods"].as_array().cloned().unwrap_or_default();
    if methods.is_empty() {
        return match client.call("session/new", client.opening())?.get("error") {
            None => Err(Stop::NotOffered("authMethods: it works without a login here".to_owned())),
            Some(error) => failed("login methods, as there is no session without", error.to_string()),
        };
    }
    for method in &methods {
        let kind = method["type"].as_str().unwrap_or("agent");
        let is_known = matches!(kind, "agent" | "terminal");
        if !is_known || !method[id].is_string() || !method["name"].is_string() {
            let expected = format!("methods of type agent or terminal, with `{id}` and `name`");
            return failed(expected, method.to_string());
        }
    }
    Ok(())
}

fn login_unknown(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.error(client.login_method(), json!({ "methodId": "acp-check-unknown" }), &[])
}

fn login_status(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("auth.status")?;
    let status = client.result("auth/status", json!({}))?;
    match status["state"].as_str() {
        Some("authenticated" | "unauthenticated" | "not_required" | "unknown") => Ok(()),
        _ => failed("a known state", status.to_string()),
    }
}

fn not_advertised(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    let absent: Vec<&str> =
        GATED.iter().filter(|(gate, _)| !client.offers(gate)).map(|(_, method)| *method).collect();
    if absent.is_empty() {
        return Err(Stop::NotRun("it advertises all of them".to_owned()));
    }
    for method in absent {
        let mut params = client.opening();
        params["sessionId"] = json!(UNKNOWN);
        params["title"] = json!("Title");
        client.error(method, params, &[METHOD_NOT_FOUND])?;
    }
    Ok(())
}

fn sessions_differ(client: &mut Client<'_>) -> Checked {
    let (one, other) = (client.open()?, client.another()?);
    if id_of(&one) == id_of(&other) {
        return failed("two ids", format!("{} twice", id_of(&one)));
    }
    Ok(())
}

fn answer_first(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    match client.updates(&session).first() {
        None => Ok(()),
        Some(update) => failed("the answer to `session/new` before any update", update.to_string()),
    }
}

fn in_flight(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    let ids: Vec<u64> =
        (0..20).map(|_| client.request("acp-check/unknown", json!({}))).collect::<Checked<_>>()?;
    for id in ids {
        client.answer(id, "acp-check/unknown")?;
    }
    match client.silence()?.first() {
        None => Ok(()),
        Some(second) => failed("one answer to each request", second.to_string()),
    }
}

fn bad_params(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let unknown_block = json!([{ "type": "acp_check_unknown" }]);
    for (method, params) in [
        ("session/new", json!({ "mcpServers": [] })),
        ("session/new", json!({ "cwd": 7, "mcpServers": [] })),
        ("session/prompt", json!({ "sessionId": session })),
        ("session/prompt", json!({ "sessionId": session, "prompt": unknown_block })),
        ("session/prompt", json!({ "prompt": [] })),
    ] {
        client.error(method, params, &[])?;
    }
    Ok(())
}

fn cancel_idle(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.notify("session/cancel", json!({ "sessionId": session }))?;
    client.notify("session/cancel", json!({ "sessionId": UNKNOWN }))?;
    if let Some(answer) = client.silence()?.first() {
        return failed("no answer to a notification", answer.to_string());
    }
    let prompt = client.prompt(&session, SAY_PING)?;
    match client.ended(prompt)?.as_str() {
        "cancelled" => failed("a prompt that is not cancelled by an earlier cancel", "cancelled"),
        _ => Ok(()),
    }
}

fn cancel_unknown_request(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.notify("$/cancel_request", json!({ "requestId": 987_654 }))?;
    client.notify("$/cancel_request", json!({ "requestId": "acp-check" }))?;
    match client.silence()?.first() {
        None => Ok(()),
        Some(answer) => failed("silence", answer.to_string()),
    }
}

fn modes(client: &mut Client<'_>) -> Checked {
    let opened = client.open()?;
    let Some(modes) = opened["modes"]["availableModes"].as_array().cloned() else {
        return Err(Stop::NotOffered("modes".to_owned()));
    };
    let session = id_of(&opened);
    if !modes.iter().any(|mode| mode["id"] == opened["modes"]["currentModeId"]) {
        return failed("a current mode that is offered", opened["modes"]["currentModeId"].to_string());
    }
    for mode in &modes {
        client.result("session/set_mode", json!({ "sessionId": session, "modeId": mode["id"] }))?;
    }
    client.error("session/set_mode", json!({ "sessionId": session, "modeId": "acp-check-unknown" }), &[])
}

fn options(client: &mut Client<'_>) -> Checked {
    let opened = client.open()?;
    let Some(options) = opened["configOptions"].as_array().filter(|options| !options.is_empty()).cloned()
    else {
        return Err(Stop::NotOffered("configOptions".to_owned()));
    };
    let session = id_of(&opened);
    let key = if client.version == Version::V1 { "id" } else { "configId" };
    for option in &options {
        let is_boolean = option["type"] == "boolean";
        if is_boolean && client.version == Version::V1 {
            return failed("no boolean option, as the client does not take them", option.to_string());
        }
        let (id, value) = (&option[key], &option["currentValue"]);
        let mut set = json!({ "sessionId": session, "configId": id, "value": value });
        if client.version == Version::V2 {
            set["type"] = json!(if is_boolean { "boolean" } else { "id" });
        }
        let answer = client.result("session/set_config_option", set)?;
        let all = answer["configOptions"].as_array().map_or(0, Vec::len);
        if all < options.len() {
            return failed("all options in the answer", answer.to_string());
        }
    }
    let unknown =
        json!({ "sessionId": session, "configId": "acp-check-unknown", "type": "id", "value": "x" });
    client.error("session/set_config_option", unknown, &[])?;
    let first = &options[0][key];
    let wrong =
        json!({ "sessionId": session, "configId": first, "type": "id", "value": "acp-check-unknown" });
    client.error("session/set_config_option", wrong, &[])
}

fn list(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("sessionCapabilities.list")?;
    let listed = client.result("session/list", json!({}))?;
    let Some(sessions) = listed["sessions"].as_array() else {
        return failed("`sessions`", listed.to_string());
    };
    for session in sessions {
        if !session["sessionId"].is_string() || !session["cwd"].is_string() {
            return failed("`sessionId` and `cwd` of each session", session.to_string());
        }
    }
    client.error("session/list", json!({ "cursor": "acp-check-not-a-cursor" }), &[])
}

fn load_unknown(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("loadSession")?;
    unknown_session(client, "session/load")
}

fn resume_unknown(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("sessionCapabilities.resume")?;
    unknown_session(client, "session/resume")
}

fn unknown_session(client: &mut Client<'_>, method: &str) -> Checked {
    let mut params = client.opening();
    params["sessionId"] = json!(UNKNOWN);
    client.error(method, params, &[])
}

fn close(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("sessionCapabilities.close")?;
    let session = id_of(&client.another()?);
    client.result("session/close", json!({ "sessionId": session }))?;
    let block = json!({ "type": "text", "text": SAY_PING });
    client.error("session/prompt", json!({ "sessionId": session, "prompt": [block] }), &[])
}

fn delete(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("sessionCapabilities.delete")?;
    let session = id_of(&client.another()?);
    client.result("session/delete", json!({ "sessionId": session }))?;
    client.result("session/delete", json!({ "sessionId": session })).map(drop)
}

fn status(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("sessionCapabilities.status")?;
    let session = id_of(&client.another()?);
    let status = client.result("session/status", json!({ "sessionId": session }))?;
    if status["status"] != "open" {
        return failed("the status open", status.to_string());
    }
    client.error("session/status", json!({ "sessionId": UNKNOWN }), &[-32002])
}

fn prompt(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let prompt = client.prompt(&session, SAY_PING)?;
    let reason = client.ended(prompt)?;
    if reason != "end_turn" {
        return failed("the stop reason end_turn", reason);
    }
    let said = client.text(&session);
    if !said.to_lowercase().contains(PING) {
        return failed("the reply before the answer to the prompt", format!("{said:?}"));
    }
    match client.version {
        Version::V1 => calls_are_announced(client, &session),
        Version::V2 => Ok(()),
    }
}

/// Checks that every update of a call follows its announcement.
fn calls_are_announced(client: &Client<'_>, session: &str) -> Checked {
    let mut known: Vec<&Value> = Vec::new();
    for update in client.updates(session) {
        match update["sessionUpdate"].as_str() {
            Some("tool_call") => known.push(&update["toolCallId"]),
            Some("tool_call_update") if !known.contains(&&update["toolCallId"]) => {
                return failed("`tool_call` before its updates", update.to_string());
            }
            _ => {}
        }
    }
    Ok(())
}

fn not_echoed(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let prompt = client.prompt(&session, SAY_PING)?;
    client.ended(prompt)?;
    let updates = client.updates(&session);
    match updates.iter().find(|update| update["sessionUpdate"] == "user_message_chunk") {
        None => Ok(()),
        Some(echo) => failed("no `user_message_chunk` of a live prompt", echo.to_string()),
    }
}

fn cancel_at_once(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    // If the model can't be called, the prompt ends for that reason, and the rule is not run.
    let works = client.prompt(&session, SAY_PING)?;
    client.ended(works)?;
    let prompt = client.prompt(&session, &hang())?;
    client.notify("session/cancel", json!({ "sessionId": session }))?;
    cancelled(client, prompt)
}

pub(super) fn cancelled(client: &mut Client<'_>, prompt: u64) -> Checked {
    let reason = client.ended(prompt)?;
    if reason == "cancelled" { Ok(()) } else { failed("the stop reason cancelled", reason) }
}

/// Sends a prompt whose reply does not end, and waits for the first text.
pub(super) fn streaming(client: &mut Client<'_>, session: &str) -> Checked<u64> {
    let works = client.prompt(session, SAY_PING)?;
    client.ended(works)?;
    client.news.clear();
    let prompt = client.prompt(session, &hang())?;
    client.wait_for("the first text of the reply", |message| {
        matches!(
            message["params"]["update"]["sessionUpdate"].as_str(),
            Some("agent_message_chunk" | "agent_thought_chunk" | "agent_message" | "agent_thought")
        )
    })?;
    Ok(prompt)
}

fn cancel_streaming(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let prompt = streaming(client, &session)?;
    client.notify("session/cancel", json!({ "sessionId": session }))?;
    cancelled(client, prompt)?;
    client.news.clear();
    client.silence()?;
    let updates = client.updates(&session);
    let late = updates.iter().find(|update| {
        matches!(
            update["sessionUpdate"].as_str(),
            Some("agent_message_chunk" | "agent_thought_chunk" | "tool_call" | "tool_call_update")
        )
    });
    match late {
        None => Ok(()),
        Some(late) => failed("nothing of the turn after its answer", late.to_string()),
    }
}

fn cancel_request(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let prompt = streaming(client, &session)?;
    client.notify("$/cancel_request", json!({ "requestId": prompt }))?;
    // An agent may ignore this notification; canceling the turn must still work.
    client.notify("session/cancel", json!({ "sessionId": session }))?;
    let answer = client.answer(prompt, "session/prompt")?;
    let is_right = match client.version {
        Version::V1 => answer["result"]["stopReason"] == "cancelled",
        // The prompt is in the conversation, so the notification no longer concerns it.
        Version::V2 => answer["result"]["messageId"].is_string(),
    };
    if !is_right && answer["error"]["code"] != -32800 {
        return failed("the answer of a cancelled prompt, or the error -32800", answer.to_string());
    }
    match client.silence()?.first() {
        None => Ok(()),
        Some(second) => failed("one answer", second.to_string()),
    }
}

/// Prompts for a command and waits for the permission request. If none arrives, the rule is not run.
fn asked(client: &mut Client<'_>, session: &str) -> Checked<(u64, Value)> {
    let works = client.prompt(session, SAY_PING)?;
    client.ended(works)?;
    let prompt = client.prompt(session, &run_command())?;
    let asked = client.wait_in_turn("a permission request, or the end of the turn", prompt, |message| {
        message["method"] == "session/request_permission"
    })?;
    let asked = asked.ok_or_else(|| Stop::NotRun("it asks for no permission here".to_owned()))?;
    Ok((prompt, asked))
}

fn permission_rejected(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.permission = Permission::Reject;
    let (prompt, asked) = asked(client, &session)?;
    if asked["params"]["options"].as_array().is_none_or(Vec::is_empty) {
        return failed("options to choose from", asked.to_string());
    }
    client.ended(prompt)?;
    if client.workspace().join(PROBE_FILE).exists() {
        return failed("a command that does not run", format!("{PROBE_FILE} was made"));
    }
    let call = match client.version {
        Version::V1 => &asked["params"]["toolCall"]["toolCallId"],
        Version::V2 => &asked["params"]["subject"]["toolCall"]["toolCallId"],
    };
    let updates = client.updates(&session);
    let last =
        updates.iter().rev().find(|update| update["toolCallId"] == *call && update["status"].is_string());
    match last.map(|update| update["status"].clone()) {
        Some(status) if status == "failed" => Ok(()),
        Some(status) if status == "cancelled" && client.version == Version::V2 => Ok(()),
        status => failed("a call that ends as failed", format!("{status:?}")),
    }
}

fn cancel_asking(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.permission = Permission::Leave;
    let (prompt, asked) = asked(client, &session)?;
    client.notify("session/cancel", json!({ "sessionId": session }))?;
    // Clients that cancel a turn must give this answer to all open permission requests.
    let outcome = json!({ "outcome": { "outcome": "cancelled" } });
    client.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": outcome }))?;
    cancelled(client, prompt)?;
    if client.workspace().join(PROBE_FILE).exists() {
        return failed("a command that does not run", format!("{PROBE_FILE} was made"));
    }
    Ok(())
}

fn load_replays(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("loadSession")?;
    let session = id_of(&client.another()?);
    let prompt = client.prompt(&session, SAY_PING)?;
    client.ended(prompt)?;
    client.restart()?;
    client.initialize()?;
    let mut params = client.opening();
    params["sessionId"] = json!(session);
    client.result("session/load", params)?;
    let updates = client.updates(&session);
    let text_of = |kind: &str| -> String {
        let chunks = updates.iter().filter(|update| update["sessionUpdate"] == kind);
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    };
    let (user, agent) = (text_of("user_message_chunk"), text_of("agent_message_chunk"));
    if !user.contains("single word") || !agent.to_lowercase().contains(PING) {
        return failed("the prompt and the reply before the answer", format!("{user:?} and {agent:?}"));
    }
    Ok(())
}

fn stalled_reader(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    let ids: Vec<u64> = (0..UNREAD_REQUESTS)
        .map(|_| client.request("acp-check/unknown", json!({ "text": "x".repeat(200) })))
        .collect::<Checked<_>>()?;
    for id in ids {
        client.answer(id, "acp-check/unknown")?;
    }
    Ok(())
}

fn end_of_input(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.restart()?;
    let session = client.session()?;
    streaming(client, &session)?;
    client.close()
}

fn no_orphans(client: &mut Client<'_>) -> Checked {
    if !Path::new("/proc/self/environ").exists() {
        return Err(Stop::NotRun("processes are found by /proc, which is not here".to_owned()));
    }
    let session = client.session()?;
    client.permission = Permission::Allow;
    let works = client.prompt(&session, SAY_PING)?;
    client.ended(works)?;
    client.prompt(&session, &run_long())?;
    let is_sleep = |command: &String| command == "sleep 311";
    let deadline = Instant::now() + COMMAND_WITHIN;
    while !client.processes().iter().any(is_sleep) {
        if Instant::now() > deadline {
            return Err(Stop::NotRun("its model runs no command here".to_owned()));
        }
        client.pause()?;
    }
    client.close()?;
    let deadline = Instant::now() + ORPHANS_WITHIN;
    loop {
        let left = client.processes();
        if !left.iter().any(is_sleep) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return failed("no process after the agent", left.join(", "));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
