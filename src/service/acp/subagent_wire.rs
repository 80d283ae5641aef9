//! Translates a session's subagents to wire updates: child sessions, for clients that support them. Pure.
//!
//! A child is announced on its parent before anything is sent under its own id, and its end is reported last. While it
//! runs, the client can only cancel it. Its task, the message from its parent, is part of its own stream.

use agent_client_protocol::v2::schema as wire;
use wire::SessionUpdate;

use super::answers;
use super::model::Update;
use super::requests::FinishedAgent;
use super::updates::{agent_line, pieces, user_message, wire_path};
use super::v2;
use epitome_session_api::{Subagent, SubagentEnd, SubagentInfo, SubagentState};
use epitome_thread::visible::visible_line;
use epitome_thread::{Change, Content, Message, MessageId, Origin, SessionId};

/// The update for a subagent's state.
pub(super) fn update(now: &Subagent) -> SessionUpdate {
    let mut update = wire::SubagentUpdate::new(now.session.0.as_str()).state(state(&now.state));
    if let Some(SubagentInfo { call: _, title, description, cwd }) = now.about.as_deref() {
        update = update.title(visible_line(title)).cwd(wire_path(cwd));
        if !description.is_empty() {
            update = update.description(description);
        }
    }
    let cancel = || wire::SubagentSessionCapabilities::new().cancel(wire::SessionCancelCapabilities::new());
    SessionUpdate::SubagentUpdate(match (&now.state, &now.about) {
        (SubagentState::Ended(_), _) => update.capabilities(None),
        (SubagentState::Running | SubagentState::RequiresAction, Some(_)) => update.capabilities(cancel()),
        (SubagentState::Running | SubagentState::RequiresAction, None) => update,
    })
}

fn state(state: &SubagentState) -> wire::StateUpdate {
    let idle = |reason| wire::StateUpdate::Idle(wire::IdleStateUpdate::new().stop_reason(reason));
    let failed = |why: &str| idle(Some(v2::failed(answers::internal(why))));
    match state {
        SubagentState::Running => wire::StateUpdate::Running(wire::RunningStateUpdate::new()),
        SubagentState::RequiresAction => {
            wire::StateUpdate::RequiresAction(wire::RequiresActionStateUpdate::new())
        }
        SubagentState::Ended(SubagentEnd::Stopped(reason)) => match answers::stop_reason(*reason) {
            Some(reason) => idle(Some(reason)),
            None => failed("it did not finish"),
        },
        SubagentState::Ended(SubagentEnd::Failed(why)) => failed(why),
        SubagentState::Ended(SubagentEnd::Unknown) => idle(None),
    }
}

/// Appends the task that a parent gives to its subagent, as part of the subagent's stream.
pub(super) fn task(parent: &SessionId, agent: &SessionId, message: &Message, updates: &mut Vec<Update>) {
    let id = wire::MessageId::new(message.id.to_string());
    let header = wire::SessionMessage::new(id.clone())
        .sender_session_id(wire::SessionId::new(parent.0.as_str()))
        .recipient_session_id(wire::SessionId::new(agent.0.as_str()));
    updates.push(Update::shared(SessionUpdate::SessionMessage(header)));
    // Tasks consist only of text.
    for piece in message.content.iter().filter_map(Content::as_text).flat_map(pieces) {
        let chunk = wire::SessionMessageChunk::new(id.clone(), wire::ContentBlock::from(piece));
        updates.push(Update::shared(SessionUpdate::SessionMessageChunk(chunk)));
    }
}

/// The work of a finished subagent as a conversation of two messages, its task and the transcript in the log; `None` if
/// the log has none.
pub(super) fn record(agent: &FinishedAgent) -> Option<Vec<Update>> {
    let Change::ToolFinished { outcome } = &agent.outcome.change else { return None };
    let whole = outcome.whole.as_deref()?;
    // The transcript begins with the task.
    let work = match whole.split_once(agent.task.trim()) {
        Some((_, work)) if !agent.task.trim().is_empty() => work,
        _ => whole,
    };
    let task =
        Message { id: MessageId(1), content: vec![Content::Text { text: agent.task.clone() }], author: None };
    let mut updates = Vec::new();
    user_message(&task, &Origin::Person, &mut updates);
    agent_line("m2", work.trim().to_owned(), &mut updates);
    Some(updates)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use agent_client_protocol::v1::schema as wire_v1;
    use epitome_thread::StopReason;
    use serde_json::{Value, json};

    use super::*;

    fn describe_state(about: bool, state: SubagentState) -> Value {
        let about = about.then(|| {
            Arc::new(SubagentInfo {
                call: None,
                title: "explore: Find it".into(),
                description: "Finds things out.".into(),
                cwd: PathBuf::from("/w"),
            })
        });
        let now = Subagent { session: SessionId("s_b".into()), about, state };
        let update = serde_json::to_value(update(&now)).expect("JSON");
        let read: wire_v1::SessionUpdate =
            serde_json::from_value(update.clone()).expect("the schema of version 1 reads it");
        assert_eq!(serde_json::to_value(read).expect("JSON"), update);
        update
    }

    #[test]
    fn a_subagent_is_announced_in_full_then_by_state_changes() {
        let update = "subagent_update";
        assert_eq!(
            describe_state(true, SubagentState::Running),
            json!({
                "sessionUpdate": update, "sessionId": "s_b", "title": "explore: Find it", "cwd": "/w",
                "description": "Finds things out.", "capabilities": { "cancel": {} }, "state": { "state": "running" },
            })
        );
        assert_eq!(
            describe_state(false, SubagentState::RequiresAction),
            json!({ "sessionUpdate": update, "sessionId": "s_b", "state": { "state": "requires_action" } })
        );
    }

    #[test]
    fn an_ended_subagent_has_a_reason_and_cannot_be_cancelled() {
        let stopped = |reason| SubagentEnd::Stopped(reason);
        let table = [
            (stopped(StopReason::EndTurn), json!({ "state": "idle", "stopReason": "end_turn" })),
            (stopped(StopReason::MaxRounds), json!({ "state": "idle", "stopReason": "max_turn_requests" })),
            (stopped(StopReason::Cancelled), json!({ "state": "idle", "stopReason": "cancelled" })),
            (
                SubagentEnd::Failed("the model is gone".into()),
                json!({ "state": "idle", "stopReason": "error",
                        "error": { "code": -32603, "message": "the model is gone" } }),
            ),
            (SubagentEnd::Unknown, json!({ "state": "idle" })),
        ];
        for (end, state) in table {
            let described = describe_state(false, SubagentState::Ended(end));
            assert_eq!(described["state"], state);
            assert_eq!(described.get("capabilities"), Some(&Value::Null));
        }
    }
}
