//! Rules of the protocol that can't be expressed as fixtures, because they depend on advertised capabilities, on time,
//! or on an agent's processes. Each cites its source.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{
    Checked, Client, Permission, RuleSetting, Stop, Version, ensure, failed, id_of, nothing, prompt_params,
};
use super::model::{PING, PROBE_FILE, SAY_PING, hang, run_command, run_long};
use super::outcome::{FixtureFailure, FixtureOutcome, RuleLevel};
use super::rules_v2;

/// One rule.
pub struct ProtocolRule {
    pub name: &'static str,
    pub title: &'static str,
    /// The page of the protocol's documentation, or another specification.
    pub cites: &'static str,
    pub level: RuleLevel,
    /// The only version that has this rule; `None` for both.
    pub(super) only: Option<Version>,
    pub(super) check: fn(&mut Client<'_>) -> Checked,
}

pub(super) const METHOD_NOT_FOUND: i64 = -32601;

/// A session id that no agent has issued.
pub(super) const UNKNOWN: &str = "acp-check-unknown-session";

/// Number of requests sent without reading a response. They exceed the buffers of a pipe in both directions.
const UNREAD_REQUESTS: usize = 3000;

/// How long the processes of an agent may outlive it.
const ORPHANS_WITHIN: Duration = Duration::from_secs(5);

/// Timeout from a prompt to the first text of its reply.
const FIRST_TEXT_WITHIN: Duration = Duration::from_secs(20);

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

const BOTH: Option<Version> = None;
const V1: Option<Version> = Some(Version::V1);

/// A table of rules: the version that has it, its level, name, check, page and title.
macro_rules! rule_table {
    ($($only:ident $level:ident $name:literal $check:ident $cites:literal $title:literal;)*) => {
        [$(ProtocolRule {
            name: $name,
            title: $title,
            cites: $cites,
            level: RuleLevel::$level,
            only: $only,
            check: $check,
        }),*]
    };
}
pub(super) use rule_table;

const RULES: [ProtocolRule; 33] = rule_table! {
    V1 Required "version-not-supported" version "initialization#version-negotiation"
        "An unknown version is answered with one that the agent supports";
    BOTH Recommended "first-line" first_line "transports" "The first line on standard output answers `initialize`";
    BOTH Recommended "login-methods" login_methods "registry: AUTHENTICATION.md"
        "Without keys, there are login methods of a known type";
    BOTH Recommended "login-unknown" login_unknown "authentication"
        "`authenticate` with an unknown method is an error";
    BOTH Required "login-status" login_status "rfds/auth-status" "`auth/status` answers without a login";
    BOTH Recommended "not-advertised" not_advertised "JSON-RPC 2.0 §5.1"
        "Methods that are not advertised don't exist";
    BOTH Required "sessions-differ" sessions_differ "session-setup#creating-a-session"
        "Two sessions have different ids";
    BOTH Recommended "answer-first" answer_first "session-setup#creating-a-session"
        "No update names a session before the answer that creates it";
    BOTH Required "in-flight" in_flight "JSON-RPC 2.0 §5" "Requests in flight get one answer each";
    BOTH Recommended "bad-params" bad_params "JSON-RPC 2.0 §5.1" "Missing and malformed parameters are errors";
    BOTH Required "cancel-idle" cancel_idle "JSON-RPC 2.0 §4.1" "Cancelling an idle session changes nothing";
    BOTH Required "cancel-unknown-request" cancel_unknown_request "JSON-RPC 2.0 §4.1"
        "Cancelling an unknown request is ignored";
    V1 Recommended "modes" modes "session-modes" "Every mode that is offered can be set, and no other";
    BOTH Required "options" options "session-config-options#from-the-client"
        "Every option can be set, and the answer has all of them";
    BOTH Recommended "options-unknown" options_unknown "session-config-options#from-the-client"
        "An unknown option or value is an error";
    BOTH Required "list" list "session-list" "Sessions are listed with their ids and directories";
    BOTH Recommended "list-cursor" list_cursor "session-list#pagination"
        "A cursor that the agent has not issued is an error";
    V1 Recommended "load-unknown" load_unknown "session-setup#loading-sessions"
        "Loading an unknown session is an error";
    BOTH Recommended "resume-unknown" resume_unknown "session-setup#resuming-sessions"
        "Resuming an unknown session is an error";
    BOTH Recommended "close" close "session-setup#closing-active-sessions" "A closed session takes no prompt";
    BOTH Recommended "delete" delete "session-delete" "Deleting twice succeeds";
    BOTH Recommended "status" status "rfds/session-status" "The status of a session is read without opening it";
    BOTH Required "prompt" prompt "prompt-turn" "A prompt's updates precede its answer, which has a stop reason";
    V1 Recommended "prompt-not-echoed" not_echoed "prompt-turn" "A live prompt is not sent back";
    BOTH Required "cancel-at-once" cancel_at_once "prompt-turn#cancellation"
        "A prompt that is cancelled at once ends as cancelled";
    BOTH Required "cancel-streaming" cancel_streaming "prompt-turn#cancellation"
        "A cancelled reply ends as cancelled, and nothing follows";
    BOTH Required "cancel-request" cancel_request "cancellation"
        "A prompt that is cancelled as a request gets one answer";
    BOTH Recommended "permission-rejected" permission_rejected "tool-calls#requesting-permission"
        "A command that the user rejects does not run";
    BOTH Required "cancel-asking" cancel_asking "prompt-turn#cancellation"
        "Cancelling withdraws a permission request";
    V1 Required "load-replays" load_replays "session-setup#loading-a-session"
        "A loaded session is shown before the answer";
    BOTH Required "stalled-reader" stalled_reader "JSON-RPC 2.0 §5" "A client that reads late gets every answer";
    BOTH Recommended "end-of-input" end_of_input "transports"
        "The agent ends when its input is closed, also in a turn";
    BOTH Recommended "no-orphans" no_orphans "transports" "Commands end with the agent";
};

impl ProtocolRule {
    /// The address of the page in the documentation of a version.
    pub fn cites(&self, version: Version) -> String {
        address_of(self.cites, version)
    }

    /// Checks an agent, in a separate process and workspace.
    pub fn check(&self, setting: RuleSetting<'_>) -> FixtureOutcome {
        let mut client = match Client::new(setting) {
            Ok(client) => client,
            Err(error) => return FixtureOutcome::NotMeant(format!("it could not be set up: {error}")),
        };
        let checked = (self.check)(&mut client);
        match checked {
            Ok(()) => FixtureOutcome::Passed,
            Err(Stop::NotOffered(what)) => FixtureOutcome::NotOffered(what),
            Err(Stop::NotRun(why)) => FixtureOutcome::NotMeant(why),
            Err(Stop::Failed { expected, got }) => {
                let transcript = client.transcript.last_messages();
                FixtureOutcome::Failed(FixtureFailure { transcript, ..FixtureFailure::new(0, expected, got) })
            }
        }
    }
}

/// The address of a page of the protocol's documentation, or of the specification that is cited in its place.
pub(super) fn address_of(cites: &str, version: Version) -> String {
    let version = match version {
        Version::V1 => "v1",
        Version::V2 => "v2",
    };
    match cites {
        _ if cites.starts_with("JSON-RPC") => format!("{cites}, https://www.jsonrpc.org/specification"),
        _ if cites.starts_with("registry") => {
            "https://github.com/agentclientprotocol/registry/blob/main/AUTHENTICATION.md".to_owned()
        }
        _ if cites.starts_with("rfds/") => format!("https://agentclientprotocol.com/{cites}"),
        _ if version == "v2" => {
            let page = cites.replace("prompt-turn", "prompt-lifecycle");
            format!("https://agentclientprotocol.com/protocol/v2/{page}")
        }
        _ => format!("https://agentclientprotocol.com/protocol/v1/{cites}"),
    }
}

fn version(client: &mut Client<'_>) -> Checked {
    let params = json!({ "protocolVersion": 65_535, "clientCapabilities": {} });
    let offered = client.result("initialize", params)?;
    let version = &offered["protocolVersion"];
    let is_version = matches!(version.as_u64(), Some(1..=64));
    ensure(is_version, "the newest version that it supports", version)
}

fn first_line(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    nothing("the answer to `initialize` as the first line", client.news.front())
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
    let known = ["authenticated", "unauthenticated", "not_required", "unknown"];
    ensure(known.iter().any(|known| status["state"] == *known), "a known state", status)
}

fn not_advertised(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    let absent: Vec<&str> =
        GATED.iter().filter(|(gate, _)| !client.offers(gate)).map(|(_, method)| *method).collect();
    if absent.is_empty() {
        return Err(Stop::NotRun("it advertises all of them".to_owned()));
    }
    for method in absent {
        let mut params = client.opening_of(UNKNOWN);
        params["title"] = json!("Title");
        client.error(method, params, &[METHOD_NOT_FOUND])?;
    }
    Ok(())
}

fn sessions_differ(client: &mut Client<'_>) -> Checked {
    let (one, other) = (client.open()?, client.another()?);
    ensure(id_of(&one) != id_of(&other), "two ids", format!("{} twice", id_of(&one)))
}

fn answer_first(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    nothing("the answer to `session/new` before any update", client.updates(&session).first().copied())
}

fn in_flight(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    let ids: Vec<u64> =
        (0..20).map(|_| client.request("acp-check/unknown", json!({}))).collect::<Checked<_>>()?;
    for id in ids {
        client.answer(id, "acp-check/unknown")?;
    }
    nothing("one answer to each request", client.silence()?.first())
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
    client.cancel(&session)?;
    client.cancel(UNKNOWN)?;
    nothing("no answer to a notification", client.silence()?.first())?;
    let reason = client.turn(&session, SAY_PING)?;
    ensure(reason != "cancelled", "a prompt that is not cancelled by an earlier cancel", reason)
}

fn cancel_unknown_request(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.notify("$/cancel_request", json!({ "requestId": 987_654 }))?;
    client.notify("$/cancel_request", json!({ "requestId": "acp-check" }))?;
    nothing("silence", client.silence()?.first())
}

fn modes(client: &mut Client<'_>) -> Checked {
    let opened = client.open()?;
    let Some(modes) = opened["modes"]["availableModes"].as_array().cloned() else {
        return Err(Stop::NotOffered("modes".to_owned()));
    };
    let session = id_of(&opened);
    let current = &opened["modes"]["currentModeId"];
    ensure(modes.iter().any(|mode| mode["id"] == *current), "a current mode that is offered", current)?;
    for mode in &modes {
        client.result("session/set_mode", json!({ "sessionId": session, "modeId": mode["id"] }))?;
    }
    client.error("session/set_mode", json!({ "sessionId": session, "modeId": "acp-check-unknown" }), &[])
}

/// Opens a session and returns its id and its options.
fn offered_options(client: &mut Client<'_>) -> Checked<(String, Vec<Value>)> {
    let opened = client.open()?;
    match opened["configOptions"].as_array().filter(|options| !options.is_empty()) {
        Some(options) => Ok((id_of(&opened), options.clone())),
        None => Err(Stop::NotOffered("configOptions".to_owned())),
    }
}

fn option_key(client: &Client<'_>) -> &'static str {
    if client.version == Version::V1 { "id" } else { "configId" }
}

fn options(client: &mut Client<'_>) -> Checked {
    let (session, options) = offered_options(client)?;
    let key = option_key(client);
    for option in &options {
        let is_boolean = option["type"] == "boolean";
        let is_taken = !is_boolean || client.version == Version::V2;
        ensure(is_taken, "no boolean option, as the client does not take them", option)?;
        let (id, value) = (&option[key], &option["currentValue"]);
        let mut set = json!({ "sessionId": session, "configId": id, "value": value });
        if client.version == Version::V2 {
            set["type"] = json!(if is_boolean { "boolean" } else { "id" });
        }
        let answer = client.result("session/set_config_option", set)?;
        let all = answer["configOptions"].as_array().map_or(0, Vec::len);
        ensure(all >= options.len(), "all options in the answer", answer)?;
    }
    Ok(())
}

fn options_unknown(client: &mut Client<'_>) -> Checked {
    let (session, options) = offered_options(client)?;
    let key = option_key(client);
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
        let has_both = session["sessionId"].is_string() && session["cwd"].is_string();
        ensure(has_both, "`sessionId` and `cwd` of each session", session)?;
    }
    Ok(())
}

fn list_cursor(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.needs("sessionCapabilities.list")?;
    client.error("session/list", json!({ "cursor": "acp-check-not-a-cursor" }), &[])
}

fn load_unknown(client: &mut Client<'_>) -> Checked {
    unknown_session(client, "loadSession", "session/load")
}

fn resume_unknown(client: &mut Client<'_>) -> Checked {
    unknown_session(client, "sessionCapabilities.resume", "session/resume")
}

fn unknown_session(client: &mut Client<'_>, capability: &str, method: &str) -> Checked {
    client.initialize()?;
    client.needs(capability)?;
    client.error(method, client.opening_of(UNKNOWN), &[])
}

fn close(client: &mut Client<'_>) -> Checked {
    let session = client.session_with("sessionCapabilities.close")?;
    client.result("session/close", json!({ "sessionId": session }))?;
    client.error("session/prompt", prompt_params(&session, SAY_PING), &[])
}

fn delete(client: &mut Client<'_>) -> Checked {
    let session = client.session_with("sessionCapabilities.delete")?;
    client.result("session/delete", json!({ "sessionId": session }))?;
    client.result("session/delete", json!({ "sessionId": session })).map(drop)
}

fn status(client: &mut Client<'_>) -> Checked {
    let session = client.session_with("sessionCapabilities.status")?;
    let status = client.result("session/status", json!({ "sessionId": session }))?;
    ensure(status["status"] == "open", "the status open", status)?;
    client.error("session/status", json!({ "sessionId": UNKNOWN }), &[-32002])
}

fn prompt(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let calls = client.calls();
    let reason = client.turn(&session, SAY_PING)?;
    ensure(reason == "end_turn", "the stop reason end_turn", reason)?;
    let text = client.text(&session);
    if text.is_empty() {
        client.silence()?;
        let late = client.text(&session);
        let got = match late.is_empty() {
            true => "an answer without any text of a message".to_owned(),
            false => format!("the text {late:?} after the answer"),
        };
        return failed("the text of the reply, in updates before the answer to `session/prompt`", got);
    }
    // An agent that has not asked the scripted model answers what it likes.
    let is_shown = client.calls() == calls || text.to_lowercase().contains(PING);
    let expected = format!("the model's reply {PING:?} in the text of the message");
    ensure(is_shown, expected, format!("the text {text:?}"))?;
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
    client.turn(&session, SAY_PING)?;
    let updates = client.updates(&session);
    let echo = updates.into_iter().find(|update| update["sessionUpdate"] == "user_message_chunk");
    nothing("no `user_message_chunk` of a live prompt", echo)
}

fn cancel_at_once(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    // If the model can't be called, the prompt ends for that reason, and the rule is not run.
    client.turn(&session, SAY_PING)?;
    let prompt = client.prompt(&session, &hang())?;
    client.cancel(&session)?;
    cancelled(client, prompt)
}

pub(super) fn cancelled(client: &mut Client<'_>, prompt: u64) -> Checked {
    let reason = client.ended(prompt)?;
    ends_as_cancelled(client, &reason)
}

/// Checks the stop reason of a turn whose reply does not end before it is cancelled. An agent that answers without asking the
/// scripted model has ended its turn before.
pub(super) fn ends_as_cancelled(client: &Client<'_>, reason: &str) -> Checked {
    let is_cancelled = reason == "cancelled";
    held(client, is_cancelled)?;
    ensure(is_cancelled, "the stop reason cancelled, as the model's reply had not ended", reason)
}

/// Doesn't run a rule about a turn that goes on if the turn may have ended.
pub(super) fn held(client: &Client<'_>, is_right: bool) -> Checked {
    match is_right || client.is_held() {
        true => Ok(()),
        false => Err(Stop::NotRun("not decided: its turn may have ended before the cancel".to_owned())),
    }
}

/// Sends a prompt whose reply does not end, and waits for its first text. An agent need not show the text of a reply that has
/// not ended.
pub(super) fn streaming(client: &mut Client<'_>, session: &str) -> Checked<u64> {
    client.turn(session, SAY_PING)?;
    client.news.clear();
    let prompt = client.prompt(session, &hang())?;
    let is_text = |update: &Value| {
        matches!(
            update["sessionUpdate"].as_str(),
            Some("agent_message_chunk" | "agent_thought_chunk" | "agent_message" | "agent_thought")
        )
    };
    let deadline = Instant::now() + FIRST_TEXT_WITHIN;
    while Instant::now() < deadline
        && !(client.version == Version::V1 && client.is_answered(prompt))
        && !client.updates(session).into_iter().any(is_text)
    {
        client.pause()?;
    }
    Ok(prompt)
}

fn cancel_streaming(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let prompt = streaming(client, &session)?;
    client.cancel(&session)?;
    cancelled(client, prompt)?;
    client.news.clear();
    client.silence()?;
    let updates = client.updates(&session);
    let late = updates.into_iter().find(|update| {
        matches!(
            update["sessionUpdate"].as_str(),
            Some("agent_message_chunk" | "agent_thought_chunk" | "tool_call" | "tool_call_update")
        )
    });
    nothing("nothing of the turn after its answer", late)
}

fn cancel_request(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let prompt = streaming(client, &session)?;
    client.notify("$/cancel_request", json!({ "requestId": prompt }))?;
    // An agent may ignore this notification; canceling the turn must still work.
    client.cancel(&session)?;
    let answer = client.answer(prompt, "session/prompt")?;
    let is_right = match client.version {
        Version::V1 => answer["result"]["stopReason"] == "cancelled",
        // The prompt is in the conversation, so the notification no longer concerns it.
        Version::V2 => answer["result"]["messageId"].is_string(),
    };
    let is_right = is_right || answer["error"]["code"] == -32800;
    held(client, is_right)?;
    ensure(is_right, "the answer of a cancelled prompt, or the error -32800", answer)?;
    nothing("one answer", client.silence()?.first())
}

/// Prompts for a command and waits for the permission request. If none arrives, the rule is not run.
fn asked(client: &mut Client<'_>, session: &str) -> Checked<(u64, Value)> {
    client.turn(session, SAY_PING)?;
    let prompt = client.prompt(session, &run_command())?;
    let asked = client.wait_in_turn("a permission request, or the end of the turn", prompt, |message| {
        message["method"] == "session/request_permission"
    })?;
    let asked = asked.ok_or_else(|| Stop::NotRun("it asks for no permission here".to_owned()))?;
    Ok((prompt, asked))
}

fn has_not_run(client: &Client<'_>) -> Checked {
    let has_run = client.workspace().join(PROBE_FILE).exists();
    ensure(!has_run, "a command that does not run", format!("{PROBE_FILE} was made"))
}

fn permission_rejected(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.permission = Permission::Reject;
    let (prompt, asked) = asked(client, &session)?;
    let has_options = asked["params"]["options"].as_array().is_some_and(|options| !options.is_empty());
    ensure(has_options, "options to choose from", &asked)?;
    client.ended(prompt)?;
    has_not_run(client)?;
    let call = match client.version {
        Version::V1 => &asked["params"]["toolCall"]["toolCallId"],
        Version::V2 => &asked["params"]["subject"]["toolCall"]["toolCallId"],
    };
    let updates = client.updates(&session);
    let last =
        updates.iter().rev().find(|update| update["toolCallId"] == *call && update["status"].is_string());
    let status = last.map_or("nothing", |update| update["status"].as_str().unwrap_or_default());
    let is_failed = status == "failed" || (status == "cancelled" && client.version == Version::V2);
    ensure(is_failed, "a call that ends as failed", status)
}

fn cancel_asking(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.permission = Permission::Leave;
    let (prompt, asked) = asked(client, &session)?;
    client.cancel(&session)?;
    // Clients that cancel a turn must give this answer to all open permission requests.
    let outcome = json!({ "outcome": { "outcome": "cancelled" } });
    client.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": outcome }))?;
    let reason = client.ended(prompt)?;
    ensure(reason == "cancelled", "the stop reason cancelled", reason)?;
    has_not_run(client)
}

fn load_replays(client: &mut Client<'_>) -> Checked {
    let session = client.session_with("loadSession")?;
    client.turn(&session, SAY_PING)?;
    client.restart();
    client.initialize()?;
    client.result("session/load", client.opening_of(&session))?;
    let updates = client.updates(&session);
    let text_of = |kind: &str| -> String {
        let chunks = updates.iter().filter(|update| update["sessionUpdate"] == kind);
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    };
    replayed(&text_of("user_message_chunk"), &text_of("agent_message_chunk"))
}

/// Checks that the conversation of one turn was shown.
pub(super) fn replayed(user: &str, agent: &str) -> Checked {
    let is_shown = user.contains("single word") && agent.to_lowercase().contains(PING);
    ensure(is_shown, "the prompt and the reply before the answer", format!("{user:?} and {agent:?}"))
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
    client.close()?;
    client.restart();
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
    client.turn(&session, SAY_PING)?;
    client.prompt(&session, &run_long())?;
    let is_sleep = |command: &String| command == "sleep 311";
    let deadline = Instant::now() + COMMAND_WITHIN;
    while !client.processes().iter().any(is_sleep) {
        if Instant::now() > deadline {
            return Err(Stop::NotRun("its model runs no command here".to_owned()));
        }
        client.pause()?;
    }
    if client.close().is_err() {
        return Err(Stop::NotRun("it does not end with its input".to_owned()));
    }
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
