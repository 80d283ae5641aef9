//! Rules that only version 2 of the protocol has. Each cites its page below `protocol/v2/`.

use serde_json::{Value, json};

use super::client::{Checked, Client, Permission, Stop, Version, ensure, failed, nothing, prompt_params};
use super::model::{SAY_PING, hang, run_long};
use super::outcome::RuleLevel;
use super::rules::{
    METHOD_NOT_FOUND, ProtocolRule, UNKNOWN, cancelled, ends_as_cancelled, held, replayed, rule_table,
    streaming,
};

const INVALID_PARAMS: i64 = -32602;
const CANCELLED: i64 = -32800;

const V2: Option<Version> = Some(Version::V2);

pub(super) const RULES: [ProtocolRule; 15] = rule_table! {
    V2 Required "version-2" version "initialization"
        "Version 2 is answered with version 2, `info` and `capabilities`";
    V2 Recommended "gone-methods" gone_methods "session-setup" "Methods that version 2 has removed don't exist";
    V2 Recommended "relative-cwd" relative_cwd "session-setup" "A relative working directory is an error";
    V2 Required "replay-unknown" replay_unknown "session-setup#current-state-synchronization"
        "A replay from an unknown place is an error";
    V2 Required "resume-state" resume_state "session-setup#current-state-synchronization"
        "A session that is resumed without a replay reports its state before the answer";
    V2 Required "resume-replays" resume_replays "session-setup#current-state-synchronization"
        "A replay shows the conversation with the same ids before the answer";
    V2 Required "resume-running" resume_running "session-setup#current-state-synchronization"
        "A session that works is resumed as running";
    V2 Required "inserted" inserted "prompt-lifecycle#2-prompt-accepted"
        "A prompt is answered when its message is in the conversation, not when the work ends";
    V2 Required "echoed" echoed "prompt-lifecycle#1-user-message"
        "The message of a prompt is shown with the id of its answer";
    V2 Required "states" states "prompt-lifecycle#session-states" "A turn is running, then idle with a stop reason";
    V2 Required "held-prompt" held_prompt "prompt-lifecycle#cancellation"
        "A prompt during work is inserted, or cancelled with the work";
    V2 Required "same-key" same_key "prompt-lifecycle#1-user-message"
        "A prompt that is sent again with its `idempotencyKey` is inserted once";
    V2 Recommended "cancel-unknown-work" cancel_unknown_work "tool-calls#cancelling-tool-calls"
        "Cancelling an unknown call or terminal is an error";
    V2 Recommended "cancel-call" cancel_call "tool-calls#cancelling-tool-calls"
        "A call that is cancelled ends, and the turn goes on";
    V2 Required "close-running" close_running "session-setup"
        "Closing ends the work before its answer, and nothing follows";
};

fn version(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    let offered = &client.offered;
    let is_new = offered["protocolVersion"] == 2 && offered["info"]["name"].is_string();
    let is_old = offered.get("agentCapabilities").is_some() || offered.get("agentInfo").is_some();
    ensure(is_new && !is_old, "`protocolVersion` 2, `info` and `capabilities`", offered)
}

fn gone_methods(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.error("session/load", client.opening_of(&session), &[METHOD_NOT_FOUND])?;
    let mode = json!({ "sessionId": session, "modeId": "acp-check-unknown" });
    client.error("session/set_mode", mode, &[METHOD_NOT_FOUND])?;
    client.error("authenticate", json!({ "methodId": "acp-check-unknown" }), &[METHOD_NOT_FOUND])
}

fn relative_cwd(client: &mut Client<'_>) -> Checked {
    client.initialize()?;
    client.error("session/new", json!({ "cwd": "acp-check/relative" }), &[INVALID_PARAMS])
}

/// Opens a session with one turn, then starts the agent again and resumes it. Returns its id, the id of the prompt's
/// message and the answer to `session/resume`.
fn resumed(client: &mut Client<'_>, replay_from: Value) -> Checked<(String, String, Value)> {
    let session = client.session()?;
    client.turn(&session, SAY_PING)?;
    let message = client.updates(&session).into_iter().find_map(|update| {
        let kind = update["sessionUpdate"].as_str()?;
        kind.starts_with("user_message").then(|| update["messageId"].as_str().map(str::to_owned))?
    });
    client.restart();
    client.initialize()?;
    let answer = resume(client, &session, replay_from)?;
    Ok((session, message.unwrap_or_default(), answer))
}

fn resume(client: &mut Client<'_>, session: &str, replay_from: Value) -> Checked<Value> {
    let mut params = client.opening_of(session);
    if !replay_from.is_null() {
        params["replayFrom"] = replay_from;
    }
    client.call("session/resume", params)
}

fn replay_unknown(client: &mut Client<'_>) -> Checked {
    let (session, _, answer) = resumed(client, json!({ "type": "acp_check_unknown" }))?;
    let is_refused = answer["error"]["code"] == INVALID_PARAMS;
    ensure(is_refused, format!("`session/resume` fails with {INVALID_PARAMS}"), answer)?;
    nothing("no update of a session that was not resumed", client.updates(&session).first().copied())
}

/// Checks that a resumed session has reported its state, and returns the state that was reported last.
fn reported(client: &Client<'_>, session: &str, answer: &Value) -> Checked<Value> {
    ensure(answer["result"].is_object(), "a result of `session/resume`", answer)?;
    let updates = client.updates(session);
    match updates.iter().rev().find(|update| update["sessionUpdate"] == "state_update") {
        Some(state) => Ok((*state).clone()),
        None => failed("`state_update` before the answer", answer.to_string()),
    }
}

fn resume_state(client: &mut Client<'_>) -> Checked {
    let (session, _, answer) = resumed(client, Value::Null)?;
    let state = reported(client, &session, &answer)?;
    ensure(state["state"] == "idle", "the state `idle`", state)?;
    let said = client.text(&session);
    ensure(said.is_empty(), "no messages without `replayFrom`", said)
}

fn resume_replays(client: &mut Client<'_>) -> Checked {
    let (session, message, answer) = resumed(client, json!({ "type": "start" }))?;
    reported(client, &session, &answer)?;
    replayed(&client.text_by("user_message", &session), &client.text(&session))?;
    let has_id = client.updates(&session).iter().any(|update| update["messageId"] == *message);
    ensure(has_id, format!("the prompt's message with its id {message}"), "other ids")
}

fn resume_running(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    streaming(client, &session)?;
    client.news.clear();
    let answer = resume(client, &session, Value::Null)?;
    let state = reported(client, &session, &answer)?;
    held(client, state["state"] == "running")?;
    ensure(state["state"] == "running", "the state `running`", state)
}

/// Sends a prompt, waits until its work has begun and ended, and checks the stop reason. `cancels`: whether to cancel the
/// work once it has begun.
fn works_until(client: &mut Client<'_>, session: &str, prompt: &str, cancels: bool, reason: &str) -> Checked {
    let prompt = client.prompt(session, prompt)?;
    let answer = client.answer(prompt, "session/prompt")?;
    client.inserted(&answer)?;
    client.works(session)?;
    if cancels {
        client.cancel(session)?;
    }
    let idle = client.idle(session)?;
    if cancels {
        return ends_as_cancelled(client, idle["stopReason"].as_str().unwrap_or_default());
    }
    ensure(idle["stopReason"] == reason, format!("the state `idle` with the stop reason {reason}"), idle)
}

fn inserted(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    // Without a model, the rule is not run.
    client.turn(&session, SAY_PING)?;
    works_until(client, &session, &hang(), true, "cancelled")
}

fn echoed(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let prompt = client.prompt(&session, SAY_PING)?;
    let answer = client.answer(prompt, "session/prompt")?;
    let id = match answer.get("error") {
        None => client.inserted(&answer)?,
        Some(error) => return Err(Stop::NotRun(format!("its prompt fails: {error}"))),
    };
    client.idle(&session)?;
    let shown = client.text_by("user_message", &session);
    let has_id = client.updates(&session).iter().any(|update| update["messageId"] == *id);
    let is_shown = has_id && shown == SAY_PING;
    ensure(is_shown, format!("the prompt as a message with the id {id}"), format!("{shown:?}"))
}

fn states(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.turn(&session, SAY_PING)?;
    works_until(client, &session, SAY_PING, false, "end_turn")
}

fn held_prompt(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let first = streaming(client, &session)?;
    let held = client.request("session/prompt", prompt_params(&session, SAY_PING))?;
    client.cancel(&session)?;
    cancelled(client, first)?;
    let answer = client.answer(held, "session/prompt")?;
    let is_right = answer["error"]["code"] == CANCELLED || answer.get("result").is_some();
    ensure(is_right, format!("a result, or the error {CANCELLED}"), answer)?;
    nothing("one answer to each prompt", client.silence()?.first())
}

fn same_key(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.turn(&session, SAY_PING)?;
    client.news.clear();
    let mut params = prompt_params(&session, SAY_PING);
    params["idempotencyKey"] = json!("acp-check-key");
    let first = client.prompt_with(params.clone())?;
    let answer = client.answer(first, "session/prompt")?;
    let id = client.inserted(&answer)?;
    client.idle(&session)?;
    let again = client.call("session/prompt", params)?;
    ensure(client.inserted(&again)? == id, format!("the id {id} again"), again)?;
    client.silence()?;
    let shown = client.text_by("user_message", &session);
    ensure(shown == SAY_PING, "one message", format!("{shown:?}"))
}

fn cancel_unknown_work(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    let call = json!({ "sessionId": session, "toolCallId": UNKNOWN });
    client.error("tool_call/cancel", call, &[INVALID_PARAMS])?;
    let terminal = json!({ "sessionId": session, "terminalId": UNKNOWN });
    client.error("terminal/cancel", terminal, &[INVALID_PARAMS])
}

fn cancel_call(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    client.permission = Permission::Allow;
    client.turn(&session, SAY_PING)?;
    let prompt = client.prompt(&session, &run_long())?;
    let offered = client.wait_for("a call, or the end of the turn", |message| {
        let update = &message["params"]["update"];
        (update["sessionUpdate"] == "tool_call_update" && update["status"] == "in_progress")
            || (update["sessionUpdate"] == "state_update" && update["state"] == "idle")
    })?;
    let call = offered["params"]["update"]["toolCallId"].clone();
    if call.is_null() {
        return Err(Stop::NotRun("its model runs no command here".to_owned()));
    }
    let updates = client.news.iter().chain([&offered]).map(|message| &message["params"]["update"]);
    let offers =
        |update: &Value| update["toolCallId"] == call && update["capabilities"]["cancel"].is_object();
    if !updates.into_iter().any(offers) {
        return Err(Stop::NotOffered("capabilities.cancel of a call".to_owned()));
    }
    client.result("tool_call/cancel", json!({ "sessionId": session, "toolCallId": call }))?;
    client.wait_for("the end of the call", |message| {
        let update = &message["params"]["update"];
        update["toolCallId"] == call
            && matches!(update["status"].as_str(), Some("completed" | "failed" | "cancelled"))
    })?;
    let reason = client.ended(prompt)?;
    ensure(reason != "cancelled", "a turn that goes on", "the stop reason cancelled")
}

fn close_running(client: &mut Client<'_>) -> Checked {
    let session = client.session()?;
    streaming(client, &session)?;
    client.news.clear();
    client.result("session/close", json!({ "sessionId": session }))?;
    let is_idle = |update: &&Value| update["sessionUpdate"] == "state_update" && update["state"] == "idle";
    let has_ended = client.updates(&session).iter().any(is_idle);
    ensure(has_ended, "the state `idle` before the answer", "no state")?;
    client.news.clear();
    client.silence()?;
    nothing("nothing after the answer", client.updates(&session).first().copied())
}
