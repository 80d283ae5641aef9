//! Subagents as separate sessions, for clients that show them so: each is announced under its parent's id, then its
//! events follow under its own id, and its end comes last.
//!
//! The log has none of this except the agents' calls. A client that loads a session sees the agents that are running,
//! with their entries so far.

use std::sync::Arc;

use super::Subagents;
use crate::client_list::ClientList;
use crate::{Attachment, SessionEvent, Subagent, SubagentEnd, SubagentInfo, SubagentState, agent_of_call};
use epitome_thread::{CallId, Change, Entry, Seq, SessionId, StopReason, Thread, ToolCall};

/// A running agent, as announced to clients.
pub(super) struct ShownAgent {
    /// The session that started it: this session, or one of its agents.
    under: SessionId,
    session: SessionId,
    about: Arc<SubagentInfo>,
    state: SubagentState,
    /// Its log so far, for clients that attach later.
    entries: Vec<Arc<Entry>>,
}

/// The newest call with this id, and the entry that contains it.
pub(in super::super) fn numbered_call<'t>(thread: &'t Thread, id: &CallId) -> Option<(Seq, &'t ToolCall)> {
    thread.entries().iter().rev().find_map(|entry| match &entry.change {
        Change::Replied { message, .. } => {
            message.calls().find(|call| call.id == *id).map(|call| (entry.seq, call))
        }
        _ => None,
    })
}

/// The end of this call's agent, for a client that continues after a daemon has died.
pub(in super::super) fn lost_agent(thread: &Thread, call: &ToolCall) -> Option<SessionEvent> {
    let (reply, _) = numbered_call(thread, &call.id)?;
    let session = agent_of_call(thread.session(), reply, call)?;
    let about = SubagentInfo {
        call: None,
        title: call.card.title.clone(),
        description: String::new(),
        cwd: thread.cwd().to_path_buf(),
    };
    Some(SessionEvent::Subagent(Subagent {
        session,
        about: Some(Arc::new(about)),
        state: SubagentState::Ended(SubagentEnd::Unknown),
    }))
}

impl Subagents {
    /// Forwards an event of an agent. Events of an agent whose end was announced are dropped.
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

    /// Announces the state of a subagent, if clients know it; its end after the ends of its own subagents.
    pub(super) fn show_state(&mut self, agent: &SessionId, state: SubagentState, clients: &ClientList) {
        let now = Subagent { session: agent.clone(), about: None, state };
        self.show_stream(self.session.clone(), SessionEvent::Subagent(now), clients);
    }

    /// Announces the end of all agents at once: the turn is cancelled, and its end must follow theirs.
    pub fn show_all_ended(&mut self, clients: &ClientList) {
        for agent in self.shown_under(&self.session) {
            self.end_calls(|call| call.child == agent, clients);
            let ended = SubagentState::Ended(SubagentEnd::Stopped(StopReason::Cancelled));
            self.show_state(&agent, ended, clients);
        }
    }

    fn is_shown(&self, agent: &SessionId) -> bool {
        self.shown.iter().any(|known| known.session == *agent)
    }

    fn shown_under(&self, above: &SessionId) -> Vec<SessionId> {
        let below = self.shown.iter().filter(|known| known.under == *above);
        below.map(|known| known.session.clone()).collect()
    }

    /// The session that started an agent.
    pub(super) fn shown_above(&self, agent: &SessionId) -> Option<SessionId> {
        self.shown.iter().find(|known| known.session == *agent).map(|known| known.under.clone())
    }

    /// Shows the running agents to a client that attaches later; `history` includes their entries so far.
    pub fn show_at_work(&self, attachment: &Attachment, history: bool) {
        if !attachment.outlet.shows_agents() {
            return;
        }
        for ShownAgent { under, session, about, state, entries } in &self.shown {
            let about = Some(about.clone());
            let now = Subagent { session: session.clone(), about, state: state.clone() };
            attachment.outlet.put(under, SessionEvent::Subagent(now));
            if history {
                attachment.replay(session, entries);
            }
        }
    }
}
