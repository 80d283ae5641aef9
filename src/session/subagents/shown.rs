//! Agents as sessions of their own, for clients that show them so: each is told of under the id of who started it
//! before anything of it, then its stream follows under its own id, and its end stands behind all of that.
//!
//! Nothing of it is in the log, but what the agents' calls hold: a session that is loaded shows the agents that work
//! now, with what they have done so far.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::Subagents;
use crate::client_list::ClientList;
use crate::{Attachment, SessionEvent, Subagent, SubagentEnd, SubagentInfo, SubagentState};
use epitome_thread::{CallId, Change, Entry, Seq, SessionId, StopReason, Thread, ToolCall};

/// An agent that works, as clients were told of it.
pub(super) struct ShownAgent {
    /// Who started it: this session, or an agent of it.
    under: SessionId,
    session: SessionId,
    about: Arc<SubagentInfo>,
    state: SubagentState,
    /// Its log so far, for clients that come later.
    entries: Vec<Arc<Entry>>,
}

/// The id of the agent that a call starts, made of what the log holds: when its daemon dies, the next one can tell
/// clients of its end. A call's own id may come again in another reply.
pub(in super::super) fn agent_id(parent: &SessionId, reply: Seq, call: &CallId) -> SessionId {
    let digest = Sha256::digest(format!("{parent}\0{reply}\0{call}"));
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    SessionId(format!("s_{hex}"))
}

/// The newest call of this id, with the entry that it stands in.
pub(in super::super) fn call_with_place<'t>(thread: &'t Thread, id: &CallId) -> Option<(Seq, &'t ToolCall)> {
    thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Replied { message, .. } => {
            message.calls().find(|call| call.id == *id).map(|call| (entry.seq, call))
        }
        _ => None,
    })
}

/// That the agent of this call is no more, for a client that goes on behind a daemon's death.
pub(in super::super) fn lost_agent(thread: &Thread, call: &ToolCall) -> Option<SessionEvent> {
    let (reply, _) = call_with_place(thread, &call.id).filter(|_| call.name == epitome_tools::task::NAME)?;
    let about = SubagentInfo {
        call: None,
        title: call.card.title.clone(),
        description: String::new(),
        cwd: thread.cwd().to_path_buf(),
    };
    Some(SessionEvent::Subagent(Subagent {
        session: agent_id(thread.session(), reply, &call.id),
        about: Some(Arc::new(about)),
        state: SubagentState::Ended(SubagentEnd::Unknown),
    }))
}

impl Subagents {
    /// Announces a subagent that starts to work for this session.
    pub(super) fn show_begun(&mut self, session: SessionId, about: Arc<SubagentInfo>, clients: &ClientList) {
        let began = Subagent { session, about: Some(about), state: SubagentState::Running };
        self.show_stream(self.session.clone(), SessionEvent::Subagent(began), clients);
    }

    /// Passes a piece of an agent's stream on. What comes of one that has ended for everybody is late, and dropped.
    pub(super) fn show_stream(&mut self, session: SessionId, out: SessionEvent, clients: &ClientList) {
        if session != self.session && !self.is_shown(&session) {
            return;
        }
        match &out {
            SessionEvent::Subagent(Subagent { session: agent, about: Some(about), state }) => {
                self.shown.push(ShownAgent {
                    under: session.clone(),
                    session: agent.clone(),
                    about: about.clone(),
                    state: state.clone(),
                    entries: Vec::new(),
                });
            }
            SessionEvent::Subagent(Subagent {
                session: agent,
                about: None,
                state: SubagentState::Ended(_),
            }) => {
                if !self.is_shown(agent) {
                    return;
                }
                for below in self.shown_under(agent) {
                    let state = SubagentState::Ended(SubagentEnd::Stopped(StopReason::Cancelled));
                    let ended = Subagent { session: below, about: None, state };
                    self.show_stream(agent.clone(), SessionEvent::Subagent(ended), clients);
                }
                self.shown.retain(|known| known.session != *agent);
            }
            SessionEvent::Subagent(Subagent { session: agent, about: None, state }) => {
                let known = self.shown.iter_mut().find(|known| known.session == *agent);
                match known {
                    Some(known) if known.state != *state => known.state = state.clone(),
                    Some(_) | None => return,
                }
            }
            SessionEvent::Entry { entry, .. } => {
                if let Some(known) = self.shown.iter_mut().find(|known| known.session == session) {
                    known.entries.push(entry.clone());
                }
            }
            _ => {}
        }
        clients.announce_subagent(&session, &out);
    }

    /// Announces whether a subagent of this session waits for the user.
    pub(super) fn show_waiting(&mut self, agent: &SessionId, clients: &ClientList) {
        let waits = self.calls.iter().any(|call| call.child == *agent && call.open.is_some());
        let state = if waits { SubagentState::RequiresAction } else { SubagentState::Running };
        self.show_state(agent, state, clients);
    }

    /// Announces the end of a subagent, after the ends of its own subagents.
    pub(super) fn show_end(&mut self, agent: &SessionId, end: SubagentEnd, clients: &ClientList) {
        self.show_state(agent, SubagentState::Ended(end), clients);
    }

    /// Announces the state of a subagent, if clients know it.
    fn show_state(&mut self, agent: &SessionId, state: SubagentState, clients: &ClientList) {
        let now = Subagent { session: agent.clone(), about: None, state };
        self.show_stream(self.session.clone(), SessionEvent::Subagent(now), clients);
    }

    /// Ends all agents for the clients at once: their turn is cancelled, and its end must not stand before theirs.
    pub fn show_all_ended(&mut self, clients: &ClientList) {
        for agent in self.shown_under(&self.session) {
            self.end_calls(|call| call.child == agent, clients);
            self.show_end(&agent, SubagentEnd::Stopped(StopReason::Cancelled), clients);
        }
    }

    fn is_shown(&self, agent: &SessionId) -> bool {
        self.shown.iter().any(|known| known.session == *agent)
    }

    fn shown_under(&self, above: &SessionId) -> Vec<SessionId> {
        let below = self.shown.iter().filter(|known| known.under == *above);
        below.map(|known| known.session.clone()).collect()
    }

    /// Who started an agent.
    pub(super) fn shown_above(&self, agent: &SessionId) -> Option<SessionId> {
        self.shown.iter().find(|known| known.session == *agent).map(|known| known.under.clone())
    }

    /// Shows the agents at work to a client that comes later: that they work, and with `history` what they did.
    pub fn show_at_work(&self, attachment: &Attachment, history: bool) {
        if !attachment.outlet.shows_agents() {
            return;
        }
        for ShownAgent { under, session, about, state, entries } in &self.shown {
            let about = Some(about.clone());
            let now = Subagent { session: session.clone(), about, state: state.clone() };
            attachment.outlet.put(under, SessionEvent::Subagent(now));
            for entry in entries.iter().filter(|_| history) {
                let out = SessionEvent::Entry { entry: entry.clone(), replay: true, own: false };
                attachment.outlet.put(session, out);
            }
        }
    }
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
