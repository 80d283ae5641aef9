//! A simulated daemon: its sessions play turns step by step, and their logs survive it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use epitome::session::port::{OptionsQuery, SessionPort, SessionStatus, StoredSessionPort};
use epitome::session::registry::Header;
use epitome::session::resumed::{Fate, rest};
use epitome::session::{
    Attachment, ClientId, Opening, Position, Replay, Seen, SessionAnswer, SessionCommand, SessionError,
    SessionEvent, SessionOptions, TextKind, Ticket,
};
use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, Message, MessageId, Mode, ModelName, Origin,
    OutcomeStatus, Seq, SessionId, StopReason, ThoughtLevel, Thread, ToolCall, ToolOutcome, Usage,
};

/// The logs. A killed process loses nothing that it has written.
pub type Logs = Arc<Mutex<BTreeMap<SessionId, Vec<Arc<Entry>>>>>;

/// Rounds of a turn.
const ROUNDS_MAX: u32 = 3;

/// See the module.
#[derive(Clone)]
pub struct Daemon {
    logs: Logs,
    state: Arc<Mutex<State>>,
}

struct State {
    live: BTreeMap<SessionId, Live>,
    rng: fastrand::Rng,
}

#[derive(Default)]
struct Live {
    clients: Vec<Attachment>,
    turn: Option<Turn>,
    next_message: u64,
    /// The client of each prompt.
    authors: BTreeMap<Seq, ClientId>,
}

struct Turn {
    waiting: Vec<(Ticket, Attachment)>,
    rounds: u32,
    stage: Stage,
}

enum Stage {
    Thinking,
    Streaming { message: MessageId, text: String, sent: usize, calls: Vec<CallId> },
    Calling(Vec<CallId>),
}

impl Daemon {
    pub fn new(logs: Logs, seed: u64) -> Daemon {
        let state = State { live: BTreeMap::new(), rng: fastrand::Rng::with_seed(seed) };
        Daemon { logs, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under it")
    }

    /// Sessions whose turn can go on.
    pub fn working(&self) -> Vec<SessionId> {
        let state = self.state();
        let works = state.live.iter().filter(|(_, live)| live.turn.is_some());
        works.map(|(session, _)| session.clone()).collect()
    }

    /// Lets the turn of a session make one step.
    pub fn step(&self, session: &SessionId) {
        let mut state = self.state();
        let State { live, rng } = &mut *state;
        let Some(live) = live.get_mut(session) else { return };
        let Some(mut turn) = live.turn.take() else { return };
        let mut log = Log { session, logs: &self.logs, live };
        turn.stage = match turn.stage {
            Stage::Thinking => {
                if let Some(queued) = log.first_queued() {
                    let Change::Queued { message } = &queued.change else { unreachable!("it is queued") };
                    let origin = Origin::Queue { entry: queued.seq };
                    let author = log.live.authors.get(&queued.seq).copied();
                    log.commit(Change::Said { message: message.clone(), origin }, author);
                    Stage::Thinking
                } else if turn.rounds >= ROUNDS_MAX || turn.rounds > 0 && rng.u8(..3) == 0 {
                    let (reason, usage) = (StopReason::EndTurn, Usage::default());
                    log.commit(Change::TurnEnded { reason, usage, quiet_hooks: 0 }, None);
                    for (ticket, attachment) in turn.waiting {
                        let answer = Ok(SessionAnswer::TurnEnded { reason, usage, meta: None });
                        attachment.outlet.put(session, SessionEvent::Answer { ticket, answer });
                    }
                    return;
                } else {
                    turn.rounds += 1;
                    let message = log.fresh();
                    let text = format!("Reply {message}: ") + &"word ".repeat(rng.usize(..40));
                    let calls = (0..rng.u64(..3)).map(|at| CallId(format!("c{}_{at}", message.0)));
                    let calls = if turn.rounds < ROUNDS_MAX { calls.collect() } else { Vec::new() };
                    Stage::Streaming { message, text, sent: 0, calls }
                }
            }
            Stage::Streaming { message, text, sent, calls } if sent < text.len() && rng.u8(..8) > 0 => {
                let to = text.floor_char_boundary(sent + rng.usize(1..60));
                let (part, kind) = (0, TextKind::Reply);
                log.announce(&SessionEvent::Text { message, part, kind, text: text[sent..to].to_owned() });
                Stage::Streaming { message, text, sent: to, calls }
            }
            // The rest of the text is in the entry.
            Stage::Streaming { message, text, calls, .. } => {
                let call = |id: &CallId| {
                    let input = serde_json::json!({});
                    Content::Call(ToolCall {
                        id: id.clone(),
                        name: "bash".to_owned(),
                        input,
                        card: CallDisplay::default(),
                    })
                };
                let mut content = vec![Content::Text { text }];
                content.extend(calls.iter().map(call));
                let message = Message { id: message, content };
                log.commit(Change::Replied { message, model: model(), usage: None, cut: None }, None);
                Stage::Calling(calls)
            }
            Stage::Calling(mut calls) => {
                if let Some(call) = calls.pop() {
                    log.announce(&SessionEvent::CallStarted { call: call.clone() });
                    let outcome = ToolOutcome::text(call, OutcomeStatus::Completed, "done");
                    log.commit(Change::ToolFinished { outcome }, None);
                }
                if calls.is_empty() { Stage::Thinking } else { Stage::Calling(calls) }
            }
        };
        live.turn = Some(turn);
    }
}

/// The log of a live session.
struct Log<'a> {
    session: &'a SessionId,
    logs: &'a Logs,
    live: &'a mut Live,
}

impl Log<'_> {
    fn entries(&self) -> Vec<Arc<Entry>> {
        self.logs.lock().expect("no panic under it").get(self.session).cloned().unwrap_or_default()
    }

    fn commit(&mut self, change: Change, author: Option<ClientId>) -> Seq {
        let entry = {
            let mut logs = self.logs.lock().expect("no panic under it");
            let log = logs.get_mut(self.session).expect("it has a log");
            let entry = Arc::new(Entry { seq: Seq(log.len() as u64), at: 0, change });
            log.push(entry.clone());
            entry
        };
        if let Some(author) = author {
            self.live.authors.insert(entry.seq, author);
        }
        for attachment in &self.live.clients {
            let own = author == Some(attachment.client);
            attachment
                .outlet
                .put(self.session, SessionEvent::Entry { entry: entry.clone(), replay: false, own });
        }
        entry.seq
    }

    fn announce(&self, out: &SessionEvent) {
        self.live.clients.iter().for_each(|attachment| attachment.outlet.put(self.session, out.clone()));
    }

    fn fresh(&mut self) -> MessageId {
        let thread = Thread::replay(self.entries()).expect("a log");
        let id = self.live.next_message.max(thread.next_message().0);
        self.live.next_message = id + 1;
        MessageId(id)
    }

    fn first_queued(&self) -> Option<Arc<Entry>> {
        let entries = self.entries();
        let is_taken = |seq: Seq| {
            entries.iter().any(|entry| {
                matches!(&entry.change, Change::Said { origin: Origin::Queue { entry }, .. } if *entry == seq)
            })
        };
        let waits =
            |entry: &&Arc<Entry>| matches!(entry.change, Change::Queued { .. }) && !is_taken(entry.seq);
        entries.iter().find(waits).cloned()
    }

    /// Ends a turn that an earlier process left open.
    fn repair(&mut self) {
        let entries = self.entries();
        let mut open: Vec<CallId> = Vec::new();
        let mut in_turn = false;
        for entry in &entries {
            match &entry.change {
                Change::Said { .. } => in_turn = true,
                Change::Replied { message, .. } => open.extend(message.calls().map(|call| call.id.clone())),
                Change::ToolFinished { outcome } => open.retain(|call| *call != outcome.call),
                Change::TurnEnded { .. } => in_turn = false,
                _ => {}
            }
        }
        for call in open {
            let outcome = ToolOutcome::text(call, OutcomeStatus::Interrupted, "interrupted");
            self.commit(Change::ToolFinished { outcome }, None);
        }
        if in_turn {
            let (reason, usage) = (StopReason::Interrupted, Usage::default());
            self.commit(Change::TurnEnded { reason, usage, quiet_hooks: 0 }, None);
        }
    }

    fn attach(&mut self, ticket: Ticket, attachment: &Attachment, replay: &Replay) {
        let entries = self.entries();
        let put = |out: SessionEvent| attachment.outlet.put(self.session, out);
        let is_replay = match replay {
            Replay::Everything => {
                entries
                    .iter()
                    .cloned()
                    .for_each(|entry| put(SessionEvent::Entry { entry, replay: true, own: false }));
                true
            }
            Replay::Nothing => {
                let entries = entries.last().cloned().into_iter().collect();
                put(SessionEvent::Seen(Box::new(Seen { entries, position: Position::default() })));
                false
            }
            Replay::Rest { position, prompts } => {
                let rest = rest(&entries, position, prompts);
                rest.events.into_iter().for_each(put);
                for (prompt, fate) in prompts.iter().zip(rest.fates) {
                    let ticket = prompt.ticket;
                    match (fate, &mut self.live.turn) {
                        (Fate::Open { .. }, Some(turn)) => turn.waiting.push((ticket, attachment.clone())),
                        (fate, _) => put(SessionEvent::Answer { ticket, answer: fate.answer() }),
                    }
                }
                position.replay
            }
        };
        let answer = Ok(SessionAnswer::Attached {
            session: self.session.clone(),
            cwd: "/w".into(),
            options: options(),
            now: None,
        });
        let answered = SessionEvent::Answer { ticket, answer };
        let live = match &self.live.turn {
            Some(Turn { stage: Stage::Streaming { message, text, sent, .. }, .. }) if *sent > 0 => {
                let (part, kind) = (0, TextKind::Reply);
                Some(SessionEvent::Text { message: *message, part, kind, text: text[..*sent].to_owned() })
            }
            Some(_) | None => None,
        };
        if is_replay {
            live.into_iter().chain([answered]).for_each(put);
        } else {
            [answered].into_iter().chain(live).for_each(put);
        }
        self.live.clients.retain(|known| known.client != attachment.client);
        self.live.clients.push(attachment.clone());
    }

    fn prompt(&mut self, ticket: Ticket, client: ClientId, content: Vec<Content>) {
        let Some(attachment) = self.live.clients.iter().find(|known| known.client == client).cloned() else {
            return;
        };
        let message = Message { id: self.fresh(), content };
        match self.live.turn.take() {
            Some(mut turn) => {
                self.commit(Change::Queued { message }, Some(client));
                turn.waiting.push((ticket, attachment));
                self.live.turn = Some(turn);
            }
            None => {
                self.commit(Change::Said { message, origin: Origin::Person }, Some(client));
                let waiting = vec![(ticket, attachment)];
                self.live.turn = Some(Turn { waiting, rounds: 0, stage: Stage::Thinking });
            }
        }
    }
}

fn model() -> ModelName {
    ModelName("a/b".to_owned())
}

fn options() -> Arc<SessionOptions> {
    Arc::new(SessionOptions {
        mode: Mode::Ask,
        model: Some(model()),
        models: Vec::new(),
        thought: ThoughtLevel::Medium,
        remarks: Vec::new(),
    })
}

impl StoredSessionPort for Daemon {
    fn status(&self, session: &SessionId) -> Result<SessionStatus, SessionError> {
        if self.state().live.contains_key(session) {
            return Ok(SessionStatus::Open);
        }
        let is_known = self.logs.lock().expect("no panic under it").contains_key(session);
        if is_known { Ok(SessionStatus::Saved) } else { Err(SessionError::NotFound(session.clone())) }
    }

    fn set_title(&self, _: &SessionId, _: &str) -> Result<String, SessionError> {
        unreachable!("windows of this world name no session")
    }

    fn set_archived(&self, _: &SessionId, _: bool) -> Result<(), SessionError> {
        unreachable!("windows of this world archive no session")
    }

    fn options(&self, _: &OptionsQuery) -> Result<Arc<SessionOptions>, SessionError> {
        Ok(options())
    }
}

impl SessionPort for Daemon {
    fn create(&self, ticket: Ticket, opening: Opening) -> SessionId {
        let mut state = self.state();
        let id = {
            let mut logs = self.logs.lock().expect("no panic under it");
            let session = SessionId(format!("s_{:020x}", logs.len() + 1));
            let opened =
                Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: "/w".into() };
            logs.insert(session.clone(), vec![Arc::new(Entry { seq: Seq(0), at: 0, change: opened })]);
            session
        };
        let live = state.live.entry(id.clone()).or_default();
        Log { session: &id, logs: &self.logs, live }.attach(ticket, &opening.attachment, &Replay::Nothing);
        id
    }

    fn attach(&self, ticket: Ticket, session: SessionId, opening: Opening, replay: Replay) {
        let mut state = self.state();
        let is_known = self.logs.lock().expect("no panic under it").contains_key(&session);
        if !is_known {
            let answer = Err(SessionError::NotFound(session.clone()));
            return opening.attachment.outlet.put(&session, SessionEvent::Answer { ticket, answer });
        }
        let is_new = !state.live.contains_key(&session);
        let live = state.live.entry(session.clone()).or_default();
        let mut log = Log { session: &session, logs: &self.logs, live };
        if is_new {
            log.repair();
        }
        log.attach(ticket, &opening.attachment, &replay);
    }

    fn send(&self, session: &SessionId, command: SessionCommand) -> Result<(), SessionError> {
        let mut state = self.state();
        let live = state.live.get_mut(session).ok_or_else(|| SessionError::NotFound(session.clone()))?;
        if let SessionCommand::Prompt { ticket, client, content, key: _ } = command {
            Log { session, logs: &self.logs, live }.prompt(ticket, client, content);
        }
        Ok(())
    }

    fn list(&self, _: Option<&Path>) -> Result<Vec<Header>, SessionError> {
        Ok(Vec::new())
    }

    fn delete(&self, _: &SessionId) -> Result<(), SessionError> {
        Ok(())
    }

    fn fork(&self, session: &SessionId, _: Option<Seq>) -> Result<SessionId, SessionError> {
        Err(SessionError::NotFound(session.clone()))
    }

    fn detach(&self, _: ClientId) {}
}
