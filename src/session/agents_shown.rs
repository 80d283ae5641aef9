//! Agents as sessions of their own, for clients that show them so: each is told of under the id of who started it
//! before anything of it, then its stream follows under its own id, and its end stands behind all of that.
//!
//! Nothing of it is in the log, but what the agents' calls hold: a session that is loaded shows the agents that work
//! now, with what they have done so far.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::actor::Session;
use super::{Attachment, Out, SessionCommand, Subagent, SubagentAbout, SubagentEnd, SubagentState, ToolCall};
use epitome_thread::{CallId, Change, Entry, Seq, SessionId, StopReason};

/// An agent that works, as clients were told of it.
pub(super) struct ShownAgent {
    /// Who started it: this session, or an agent of it.
    under: SessionId,
    session: SessionId,
    about: Arc<SubagentAbout>,
    state: SubagentState,
    /// Its log so far, for clients that come later.
    entries: Vec<Arc<Entry>>,
}

/// The id of the agent that a call starts, made of what the log holds: when its daemon dies, the next one can tell
/// clients of its end. A call's own id may come again in another reply.
pub(super) fn agent_id(parent: &SessionId, reply: Seq, call: &CallId) -> SessionId {
    let digest = Sha256::digest(format!("{parent}\0{reply}\0{call}"));
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    SessionId(format!("s_{hex}"))
}

impl Session {
    /// The newest call of this id, with the entry that it stands in.
    pub(super) fn call_with_place(&self, id: &CallId) -> Option<(Seq, &ToolCall)> {
        self.thread.entries().iter().rev().find_map(|entry| match &entry.change {
            Change::Replied { message, .. } => {
                message.calls().find(|call| call.id == *id).map(|call| (entry.seq, call))
            }
            _ => None,
        })
    }

    /// Tells of an agent that begins to work for this session.
    pub(super) fn show_agent(&mut self, session: SessionId, about: Arc<SubagentAbout>) {
        let began = Subagent { session, about: Some(about), state: SubagentState::Running };
        self.agent_streamed(self.id.clone(), Out::Subagent(began));
    }

    /// Passes a piece of an agent's stream on. What comes of one that has ended for everybody is late, and dropped.
    pub(super) fn agent_streamed(&mut self, session: SessionId, out: Out) {
        let is_known = |agents: &[ShownAgent]| agents.iter().any(|agent| agent.session == session);
        if session != self.id && !is_known(&self.agents_shown) {
            return;
        }
        match &out {
            Out::Subagent(Subagent { session: agent, about: Some(about), state }) => {
                self.agents_shown.push(ShownAgent {
                    under: session.clone(),
                    session: agent.clone(),
                    about: about.clone(),
                    state: state.clone(),
                    entries: Vec::new(),
                });
            }
            Out::Subagent(Subagent { session: agent, about: None, state: SubagentState::Ended(_) }) => {
                let agent = agent.clone();
                if !self.agents_shown.iter().any(|known| known.session == agent) {
                    return;
                }
                self.end_agents_under(&agent);
                self.agents_shown.retain(|known| known.session != agent);
            }
            Out::Subagent(Subagent { session: agent, about: None, state }) => {
                let known = self.agents_shown.iter_mut().find(|known| known.session == *agent);
                match known {
                    Some(known) if known.state != *state => known.state = state.clone(),
                    Some(_) | None => return,
                }
            }
            Out::Entry { entry, .. } => {
                if let Some(known) = self.agents_shown.iter_mut().find(|known| known.session == session) {
                    known.entries.push(entry.clone());
                }
            }
            _ => {}
        }
        self.clients.announce_subagent(&session, &out);
    }

    /// Tells whether an agent of this session waits for the person.
    pub(super) fn agent_waits(&mut self, agent: &SessionId) {
        let state = match self.has_open_card(agent) {
            true => SubagentState::RequiresAction,
            false => SubagentState::Running,
        };
        self.agent_stands(agent, state);
    }

    /// Tells of an agent's end, behind the ends of those that work for it.
    pub(super) fn agent_ended(&mut self, agent: &SessionId, end: SubagentEnd) {
        self.agent_stands(agent, SubagentState::Ended(end));
    }

    /// Tells how an agent of this session stands now; nothing, where clients know of none.
    fn agent_stands(&mut self, agent: &SessionId, state: SubagentState) {
        let now = Subagent { session: agent.clone(), about: None, state };
        self.agent_streamed(self.id.clone(), Out::Subagent(now));
    }

    /// Ends all agents for the clients at once: their turn is cancelled, and its end must not stand before theirs.
    pub(super) fn end_shown_agents(&mut self) {
        let own = self.agents_shown.iter().filter(|agent| agent.under == self.id);
        let own: Vec<SessionId> = own.map(|agent| agent.session.clone()).collect();
        for agent in own {
            self.end_foreign(|foreign| foreign.is_of(&agent));
            self.agent_ended(&agent, SubagentEnd::Stopped(StopReason::Cancelled));
        }
    }

    fn end_agents_under(&mut self, agent: &SessionId) {
        let below = self.agents_shown.iter().filter(|known| known.under == *agent);
        let below: Vec<SessionId> = below.map(|known| known.session.clone()).collect();
        for session in below {
            let state = SubagentState::Ended(SubagentEnd::Stopped(StopReason::Cancelled));
            self.agent_streamed(agent.clone(), Out::Subagent(Subagent { session, about: None, state }));
        }
    }

    /// Shows the agents at work to a client that comes later: that they work, and with `history` what they did.
    pub(super) fn show_agents_at_work(&self, attachment: &Attachment, history: bool) {
        if !attachment.outlet.shows_agents() {
            return;
        }
        for ShownAgent { under, session, about, state, entries } in &self.agents_shown {
            let about = Some(about.clone());
            let now = Subagent { session: session.clone(), about, state: state.clone() };
            attachment.outlet.put(under, Out::Subagent(now));
            for entry in entries.iter().filter(|_| history) {
                let out = Out::Entry { entry: entry.clone(), replay: true, own: false };
                attachment.outlet.put(session, out);
            }
        }
    }

    /// Tells a client that goes on behind a daemon's death that the agent of this call is no more.
    pub(super) fn show_lost_agent(&self, attachment: &Attachment, call: &ToolCall) {
        if !attachment.outlet.shows_agents() || call.name != epitome_tools::task::NAME {
            return;
        }
        let Some((reply, _)) = self.call_with_place(&call.id) else { return };
        let about = SubagentAbout {
            title: call.card.title.clone(),
            description: String::new(),
            cwd: self.thread.cwd().to_path_buf(),
        };
        let lost = Subagent {
            session: agent_id(&self.id, reply, &call.id),
            about: Some(Arc::new(about)),
            state: SubagentState::Ended(SubagentEnd::Unknown),
        };
        attachment.outlet.put(&self.id, Out::Subagent(lost));
    }

    /// Cancels one agent, wherever below this session it works.
    pub(super) fn cancel_agent(&mut self, agent: SessionId) {
        let (mut through, mut command) = (agent.clone(), SessionCommand::Cancel);
        // Of those below one another there are at most as many as are shown.
        for _ in 0..=self.agents_shown.len() {
            let direct = self.followers.iter().find(|follower| follower.child == through);
            if let Some(commands) = direct.and_then(|follower| follower.commands.upgrade()) {
                // A cancel must not get lost because of what stands before it.
                tokio::spawn(async move { commands.send(command).await });
                return;
            }
            let above = self.agents_shown.iter().find(|known| known.session == through);
            let Some(above) = above.map(|known| known.under.clone()) else { return };
            (through, command) = (above, SessionCommand::CancelAgent { agent: agent.clone() });
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
