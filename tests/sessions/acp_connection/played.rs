//! Simulated sessions: the text of a prompt selects the session's behavior.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use epitome::session::port::{OptionsQuery, SessionPort, SessionStatus, StoredSessionPort};
use epitome::session::registry::{Header, SessionQuery};
use epitome::session::{
    AskId, Attachment, ClientId, CommandInfo, EventSink, Foreground, ModelOption, Opening, PendingPrompt,
    PermissionRequest, QuestionKind, QuestionReply, Replay, SessionAnswer, SessionCommand, SessionError,
    SessionEvent, SessionOptions, Steered, TextKind, Ticket, UserDecision, UserQuestion,
};
use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, Message, MessageId, Mode, ModelName, Origin, OutcomeStatus,
    Seq, SessionId, StopReason, ThoughtLevel, ToolKind, ToolOutcome, Usage,
};
use parking_lot::Mutex;
use serde_json::json;

#[derive(Clone, Default)]
pub struct Played {
    pub state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub struct State {
    pub live: HashMap<SessionId, Arc<dyn EventSink>>,
    pub made: u64,
    pub waiting: Vec<(SessionId, Ticket)>,
    pub decisions: Vec<(AskId, UserDecision)>,
    pub replies: Vec<(AskId, QuestionReply)>,
    pub headers: Vec<Header>,
    pub detached: Vec<ClientId>,
    /// The prompts that clients brought from a dead daemon.
    pub resumed: Vec<PendingPrompt>,
    /// What clients reached: what they did, and the session's directories if they opened one.
    pub reached: Vec<(&'static str, Vec<PathBuf>)>,
}

impl State {
    /// Records what opening a session reached, apart from the session.
    fn opened(&mut self, what: &'static str, opening: &Opening) {
        let directories = opening.directories.iter().chain([&opening.cwd]);
        self.reached.push((what, directories.filter(|path| !path.as_os_str().is_empty()).cloned().collect()));
        self.reached.extend((!opening.mcp_servers.is_empty()).then_some(("programs", Vec::new())));
        self.reached.extend((!opening.choices.is_empty()).then_some(("options", Vec::new())));
        self.reached.extend(opening.instructions.as_ref().map(|_| ("instructions", Vec::new())));
    }
}

fn options() -> Arc<SessionOptions> {
    let model = ModelName("anthropic/claude".into());
    Arc::new(SessionOptions {
        mode: Mode::Ask,
        model: Some(model.clone()),
        models: vec![ModelOption { name: model, about: "Claude".into() }],
        thought: ThoughtLevel::Medium,
        remarks: Vec::new(),
        auto_compact: true,
    })
}

fn entry(seq: u64, change: Change) -> Arc<Entry> {
    Arc::new(Entry { seq: Seq(seq), at: 0, change })
}

fn message(id: u64, text: &str) -> Message {
    Message { id: MessageId(id), content: vec![Content::Text { text: text.to_owned() }], author: None }
}

fn replied(id: u64, text: &str) -> Change {
    let model = ModelName("anthropic/claude".into());
    Change::Replied { message: message(id, text), model, usage: None, cut: None }
}

fn ended(reason: StopReason) -> Result<SessionAnswer, SessionError> {
    Ok(SessionAnswer::TurnEnded { reason, usage: Usage::default(), meta: None })
}

fn commands() -> SessionEvent {
    let compact =
        CommandInfo { name: "compact".into(), description: "Compacts".into(), hint: None, skill: None };
    SessionEvent::Commands(Arc::new([compact]))
}

/// A text longer than any pipe or outbox can buffer.
pub fn long_text() -> String {
    (0..400_000).map(|n| format!("{n} ")).collect()
}

impl StoredSessionPort for Played {
    async fn delete(&self, session: &SessionId) -> Result<(), SessionError> {
        let mut state = self.state.lock();
        state.reached.push(("delete", Vec::new()));
        state.live.remove(session);
        if session.0.ends_with("dead") {
            drop(state);
            panic!("the store is broken");
        }
        Ok(())
    }

    fn watch(&self, session: &SessionId, _: Seq, _: Attachment) -> Result<(), SessionError> {
        self.status(session).map(drop)
    }

    fn status(&self, session: &SessionId) -> Result<SessionStatus, SessionError> {
        let state = self.state.lock();
        match state.live.contains_key(session) {
            true => Ok(SessionStatus::Open(Foreground::Idle(None))),
            false if state.headers.iter().any(|header| header.session == *session) => {
                Ok(SessionStatus::Saved)
            }
            false => Err(SessionError::NotFound(session.clone())),
        }
    }

    async fn set_title(&self, session: &SessionId, title: &str) -> Result<String, SessionError> {
        self.state.lock().reached.push(("title", Vec::new()));
        self.status(session)?;
        Ok(title.to_owned())
    }

    async fn set_archived(&self, session: &SessionId, archived: bool) -> Result<(), SessionError> {
        let mut state = self.state.lock();
        state.reached.push(("archive", Vec::new()));
        let header = state.headers.iter_mut().find(|header| header.session == *session);
        let header = header.ok_or_else(|| SessionError::NotFound(session.clone()))?;
        header.archived = archived;
        Ok(())
    }

    fn options(&self, _: &OptionsQuery) -> Result<Arc<SessionOptions>, SessionError> {
        Ok(options())
    }

    fn commands(&self, _: &OptionsQuery) -> Arc<[CommandInfo]> {
        Arc::new([])
    }
}

impl SessionPort for Played {
    fn create(&self, ticket: Ticket, opening: Opening) -> SessionId {
        let mut state = self.state.lock();
        state.opened("create", &opening);
        state.made += 1;
        let session = SessionId(format!("s_{:020x}", state.made));
        let outlet = opening.attachment.outlet;
        state.live.insert(session.clone(), outlet.clone());
        let answer = Ok(SessionAnswer::Attached {
            session: session.clone(),
            cwd: "/w".into(),
            options: options(),
            now: None,
        });
        outlet.put(&session, SessionEvent::Answer { ticket, answer });
        outlet.put(&session, commands());
        session
    }

    fn attach(&self, ticket: Ticket, session: SessionId, opening: Opening, replay: Replay) {
        let mut state = self.state.lock();
        state.opened("attach", &opening);
        let outlet = opening.attachment.outlet;
        if !state.live.contains_key(&session) {
            let answer = Err(SessionError::NotFound(session.clone()));
            return outlet.put(&session, SessionEvent::Answer { ticket, answer });
        }
        state.live.insert(session.clone(), outlet.clone());
        if let Replay::Rest { prompts, .. } = &replay {
            state.resumed.extend(prompts.iter().cloned());
        }
        if replay == Replay::Everything {
            let past = [
                Change::Opened { format: 1, session: session.clone(), cwd: "/w".into() },
                Change::Said { message: message(0, "hello"), origin: Origin::Person },
                replied(1, "hi"),
            ];
            for (seq, change) in past.into_iter().enumerate() {
                outlet.put(
                    &session,
                    SessionEvent::Entry { entry: entry(seq as u64, change), replay: true, own: false },
                );
            }
        }
        let answer = Ok(SessionAnswer::Attached {
            session: session.clone(),
            cwd: "/w".into(),
            options: options(),
            now: None,
        });
        outlet.put(&session, SessionEvent::Answer { ticket, answer });
        outlet.put(&session, commands());
    }

    fn send(&self, session: &SessionId, command: SessionCommand) -> Result<(), SessionError> {
        let mut state = self.state.lock();
        let Some(outlet) = state.live.get(session).cloned() else {
            return Err(SessionError::NotFound(session.clone()));
        };
        let answer = |ticket, answer| outlet.put(session, SessionEvent::Answer { ticket, answer });
        state.reached.push((
            match &command {
                SessionCommand::Prompt { .. } | SessionCommand::Steer { .. } => "prompt",
                SessionCommand::Cancel
                | SessionCommand::CancelPrompt { .. }
                | SessionCommand::CancelOne { .. }
                | SessionCommand::CancelAgent { .. } => "cancel",
                SessionCommand::SetMode { .. } | SessionCommand::SetOption { .. } => "options",
                SessionCommand::Decide { .. } | SessionCommand::Answer { .. } => "answers",
                SessionCommand::Absent { .. }
                | SessionCommand::Close { .. }
                | SessionCommand::Detach { .. } => "leave",
                _ => "others",
            },
            Vec::new(),
        ));
        match command {
            SessionCommand::Prompt { ticket, content, .. } => match &content[0] {
                Content::Text { text } if text == "wait" => state.waiting.push((session.clone(), ticket)),
                Content::Text { text } if text == "ask" => {
                    outlet.put(
                        session,
                        SessionEvent::Ask { ask: AskId(1), permission: Arc::new(permission()) },
                    );
                    state.waiting.push((session.clone(), ticket));
                }
                Content::Text { text } if text == "visit" => {
                    let wants =
                        QuestionKind::Url { url: "https://login.example/a".into(), id: "mcp_1".into() };
                    let question = Arc::new(UserQuestion { message: "Log in".into(), wants, call: None });
                    outlet.put(session, SessionEvent::Question { ask: AskId(3), question });
                    state.waiting.push((session.clone(), ticket));
                }
                Content::Text { text } if text == "child" => {
                    // A call without an entry in the log, because a child of the session made it.
                    let call = CallId("s_child.c1".into());
                    let permission = Arc::new(PermissionRequest { call: call.clone(), ..permission() });
                    let outcome = Arc::new(ToolOutcome::text(call, OutcomeStatus::Denied, "No."));
                    outlet.put(session, SessionEvent::Ask { ask: AskId(2), permission });
                    outlet.put(session, SessionEvent::Withdrawn { ask: AskId(2) });
                    outlet.put(session, SessionEvent::CallFinished { outcome });
                    answer(ticket, ended(StopReason::EndTurn));
                }
                Content::Text { text } if text == "withdraw" => {
                    outlet.put(session, SessionEvent::Withdrawn { ask: AskId(1) });
                    answer(ticket, ended(StopReason::EndTurn));
                }
                Content::Text { text } if text == "stream" => {
                    let outlet = outlet.clone();
                    let session = session.clone();
                    std::thread::spawn(move || {
                        let whole = long_text();
                        for piece in whole.as_bytes().chunks(20) {
                            let text = std::str::from_utf8(piece).unwrap().to_owned();
                            let (message, kind) = (MessageId(1), TextKind::Reply);
                            outlet.put(&session, SessionEvent::Text { message, part: 0, kind, text });
                        }
                        let entry = entry(1, replied(1, &whole));
                        outlet.put(&session, SessionEvent::Entry { entry, replay: false, own: true });
                        outlet.put(
                            &session,
                            SessionEvent::Answer { ticket, answer: ended(StopReason::EndTurn) },
                        );
                    });
                }
                Content::Text { text } if text == "fail" => {
                    let (message, hint) = ("The key was refused".to_owned(), Some("Set another".to_owned()));
                    answer(ticket, Err(SessionError::Provider { message, hint }));
                }
                _ => answer(ticket, ended(StopReason::EndTurn)),
            },
            SessionCommand::Cancel => {
                let (ours, others): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut state.waiting).into_iter().partition(|(of, _)| of == session);
                state.waiting = others;
                for (_, ticket) in ours {
                    answer(ticket, ended(StopReason::Cancelled));
                }
            }
            SessionCommand::CancelPrompt { ticket } => {
                state.waiting.retain(|(_, waiting)| *waiting != ticket);
                answer(ticket, ended(StopReason::Cancelled));
            }
            SessionCommand::Steer { ticket, .. } => {
                answer(ticket, Ok(SessionAnswer::Steered(Steered::Injected)))
            }
            SessionCommand::SetMode { ticket, mode, .. } => answer(
                ticket,
                match Mode::parse(&mode) {
                    Some(_) => Ok(SessionAnswer::Options(options())),
                    None => Err(SessionError::Invalid("there is no such mode".into())),
                },
            ),
            SessionCommand::SetOption { ticket, .. } => answer(ticket, Ok(SessionAnswer::Options(options()))),
            SessionCommand::Decide { ask, decision } => {
                state.decisions.push((ask, decision));
                for (_, ticket) in std::mem::take(&mut state.waiting) {
                    answer(ticket, ended(StopReason::EndTurn));
                }
            }
            SessionCommand::Answer { ask, reply } => {
                state.replies.push((ask, reply));
                // Completion of a URL is announced once, however often the session reports it.
                for _ in 0..2 {
                    outlet.put(session, SessionEvent::QuestionDone { id: "mcp_1".into() });
                }
                for (_, ticket) in std::mem::take(&mut state.waiting) {
                    answer(ticket, ended(StopReason::EndTurn));
                }
            }
            SessionCommand::Absent { ask, .. } => state.decisions.push((ask, UserDecision::Absent)),
            SessionCommand::Fulfil { .. } => unreachable!("nothing is wanted of an editor here"),
            SessionCommand::Close { ticket, .. } => {
                state.live.remove(session);
                answer(ticket, Ok(SessionAnswer::Closed));
            }
            // The client has left the session; there is no answer.
            SessionCommand::Detach { .. } => {}
            SessionCommand::CancelAgent { .. } => {}
            SessionCommand::CancelOne { ticket, .. } => answer(ticket, Ok(SessionAnswer::Closed)),
            SessionCommand::Attach { .. }
            | SessionCommand::End
            | SessionCommand::RecipesChanged
            | SessionCommand::HooksChanged
            | SessionCommand::Watch(_)
            | SessionCommand::Unwatch { .. }
            | SessionCommand::Record { .. }
            | SessionCommand::Mutate { .. } => {
                unreachable!("the port has its own")
            }
        }
        Ok(())
    }

    fn list(&self, query: &SessionQuery) -> Result<Vec<Header>, SessionError> {
        let mut headers = self.state.lock().headers.clone();
        headers.sort_by(|a, b| (b.updated_at, &b.session).cmp(&(a.updated_at, &a.session)));
        Ok(query.select(headers))
    }

    fn fork(
        &self,
        session: &SessionId,
        _: Option<Seq>,
        opening: &Opening,
    ) -> Result<SessionId, SessionError> {
        self.state.lock().opened("create", opening);
        Err(SessionError::NotFound(session.clone()))
    }

    fn detach(&self, client: ClientId) {
        let mut state = self.state.lock();
        state.detached.push(client);
        state.live.clear();
    }
}

fn permission() -> PermissionRequest {
    PermissionRequest {
        call: CallId("c1".into()),
        tool: "bash".into(),
        input: json!({ "command": "make" }),
        card: CallDisplay { title: "make".into(), kind: ToolKind::Execute, locations: vec![] },
        preview: vec![],
        because: None,
        always: None,
        never: None,
        agent: None,
    }
}
