//! The ids of agents, which clients can show as sessions.

use sha2::{Digest, Sha256};

use epitome_thread::{CallId, Seq, SessionId, ToolCall};

/// The id of the agent that a call starts, derived from the log: if the daemon dies, the next one can announce the
/// agent's end. The call's id alone may be repeated in another reply.
pub fn agent_id(parent: &SessionId, reply: Seq, call: &CallId) -> SessionId {
    let digest = Sha256::digest(format!("{parent}\0{reply}\0{call}"));
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    SessionId(format!("s_{hex}"))
}

/// The agent that a call in the given reply starts; `None` if the call starts none.
pub fn agent_of_call(parent: &SessionId, reply: Seq, call: &ToolCall) -> Option<SessionId> {
    (call.name == epitome_tools::task::NAME).then(|| agent_id(parent, reply, &call.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_id_is_a_sessions_and_its_own() {
        let id = |parent: &str, reply, call: &str| {
            agent_id(&SessionId(parent.into()), Seq(reply), &CallId(call.into()))
        };
        let first = id("s_a", 7, "call_0");
        assert_eq!(first, id("s_a", 7, "call_0"));
        assert!(SessionId::parse(&first.0).is_some(), "{first}");
        for other in [id("s_b", 7, "call_0"), id("s_a", 9, "call_0"), id("s_a", 7, "call_1")] {
            assert_ne!(first, other);
        }
    }
}
