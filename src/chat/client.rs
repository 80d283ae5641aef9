//! The client of the Agent Client Protocol, version 2: carries out requests of the chat, and passes on what the agent
//! sends. Nothing in it knows the terminal.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v2::{ConnectionTo, InitializeOutcome, Responder, SentRequest, schema as wire};
use agent_client_protocol::{
    Agent, Client, Error, JsonRpcResponse, Lines, on_receive_notification, on_receive_request,
};
use futures_util::{sink, stream};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

/// Messages that wait for the chat. While they do, nothing more is read from the agent.
const WAITING_MAX: usize = 256;

/// What the chat wants.
#[derive(Clone, Debug, PartialEq)]
pub enum ChatRequest {
    Create {
        cwd: PathBuf,
    },
    Resume {
        session: wire::SessionId,
        cwd: PathBuf,
    },
    Close {
        session: wire::SessionId,
    },
    List {
        cwd: PathBuf,
    },
    Prompt {
        session: wire::SessionId,
        text: String,
    },
    Cancel {
        session: wire::SessionId,
    },
    SetOption {
        session: wire::SessionId,
        option: wire::SessionConfigId,
        value: wire::SessionConfigOptionValue,
    },
    /// Answers a permission request.
    Decide {
        card: u64,
        option: wire::PermissionOptionId,
    },
}

/// What the chat hears.
#[derive(Debug)]
pub enum AgentMessage {
    Update(Box<wire::UpdateSessionNotification>),
    Card {
        card: u64,
        request: Box<wire::RequestPermissionRequest>,
    },
    /// The agent does not wait for this answer any more.
    CardWithdrawn(u64),
    Opened {
        session: wire::SessionId,
        options: Vec<wire::SessionConfigOption>,
        commands: Vec<wire::AvailableCommand>,
    },
    OpenFailed(String),
    Options(Vec<wire::SessionConfigOption>),
    Sessions(Vec<wire::SessionInfo>),
    /// This prompt was not taken.
    PromptFailed {
        text: String,
        why: String,
    },
    Failed(String),
    Ended(String),
}

/// The end of the connection that the chat holds.
pub struct ChatConnection {
    pub requests: mpsc::UnboundedSender<ChatRequest>,
    pub messages: mpsc::Receiver<AgentMessage>,
    /// Whether a model can be used, or the user has to log in first.
    pub has_login: bool,
}

/// Initializes a connection over this stream and serves it in the background. Fails with a sentence.
pub async fn connect(stream: StdUnixStream) -> Result<ChatConnection, String> {
    let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
    let stream = stream.map_err(|error| format!("the connection to the daemon can't be used: {error}"))?;
    let (requests, wanted) = mpsc::unbounded_channel();
    let (sender, messages) = mpsc::channel(WAITING_MAX);
    let (ready, is_ready) = oneshot::channel();
    tokio::spawn(async move {
        let ended = serve(stream, wanted, &sender, ready).await;
        let why = ended.err().map_or("the daemon closed the connection".to_owned(), |error| sentence(&error));
        // Nobody listens if the chat has ended first.
        drop(sender.send(AgentMessage::Ended(why)).await);
    });
    let has_login = is_ready.await.map_err(|_| "the daemon closed the connection".to_owned())??;
    Ok(ChatConnection { requests, messages, has_login })
}

/// Permission requests that wait for the user.
type OpenCards = Arc<Mutex<HashMap<u64, oneshot::Sender<wire::PermissionOptionId>>>>;

async fn serve(
    stream: UnixStream,
    wanted: mpsc::UnboundedReceiver<ChatRequest>,
    sender: &mpsc::Sender<AgentMessage>,
    ready: oneshot::Sender<Result<bool, String>>,
) -> Result<(), Error> {
    let cards = OpenCards::default();
    let (updates, asked, answered) = (sender.clone(), sender.clone(), sender.clone());
    let waiting = cards.clone();
    let mut next_card = 0;
    Client
        .v2()
        .name("epitome-chat")
        .on_receive_notification(
            async move |update: wire::UpdateSessionNotification, _: ConnectionTo<Agent>| {
                updates.send(AgentMessage::Update(Box::new(update))).await.map_err(Error::into_internal_error)
            },
            on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: wire::RequestPermissionRequest,
                        responder: Responder<wire::RequestPermissionResponse>,
                        connection: ConnectionTo<Agent>| {
                next_card += 1;
                let card = Card { number: next_card, cards: waiting.clone(), sender: asked.clone() };
                connection.spawn(card.ask(request, responder))
            },
            on_receive_request!(),
        )
        .connect_with(lines(stream, sender.clone()), async move |connection| {
            let has_login = initialize(&connection).await;
            let is_initialized = has_login.is_ok();
            if ready.send(has_login).is_ok() && is_initialized {
                perform(&connection, wanted, &cards, &answered).await?;
            }
            Ok(())
        })
        .await
}

/// The lines of the stream. The next one is read when the chat has room for it.
fn lines(
    stream: UnixStream,
    room: mpsc::Sender<AgentMessage>,
) -> Lines<
    impl futures_util::Sink<String, Error = io::Error> + Send + 'static,
    impl futures_util::Stream<Item = io::Result<String>> + Send + 'static,
> {
    let (reading, writing) = stream.into_split();
    let incoming = stream::unfold((BufReader::new(reading).lines(), room), async |(mut lines, room)| {
        drop(room.reserve().await);
        let line = lines.next_line().await.transpose()?;
        Some((line, (lines, room)))
    });
    let outgoing = sink::unfold(writing, async |mut writing, mut line: String| {
        line.push('\n');
        writing.write_all(line.as_bytes()).await?;
        Ok(writing)
    });
    Lines::new(outgoing, incoming)
}

/// Returns whether a model can be used.
async fn initialize(connection: &ConnectionTo<Agent>) -> Result<bool, String> {
    let info = wire::Implementation::new("epitome-chat", env!("CARGO_PKG_VERSION"));
    let request = wire::InitializeRequest::new(ProtocolVersion::V2, info);
    match connection.send_initialize(request).block_task().await {
        Ok(InitializeOutcome::Initialized(_)) => {}
        Ok(_) => {
            return Err(
                "the chat needs version 2 of the protocol, which `acp_v2 = false` in config.toml turns off"
                    .into(),
            );
        }
        Err(error) => return Err(sentence(&error)),
    }
    let status = connection.send_request(wire::AuthStatusRequest::new()).block_task().await;
    Ok(status.map_err(|error| sentence(&error))?.state != wire::AuthState::Unauthenticated)
}

async fn perform(
    connection: &ConnectionTo<Agent>,
    mut wanted: mpsc::UnboundedReceiver<ChatRequest>,
    cards: &OpenCards,
    sender: &mpsc::Sender<AgentMessage>,
) -> Result<(), Error> {
    loop {
        let request = tokio::select! {
            request = wanted.recv() => request,
            () = connection.incoming_closed() => None,
        };
        let Some(request) = request else { return Ok(()) };
        let sender = sender.clone();
        match request {
            ChatRequest::Create { cwd } => {
                let sent = connection.send_request(wire::NewSessionRequest::new(cwd));
                answer(sent, sender, AgentMessage::OpenFailed, |made| AgentMessage::Opened {
                    session: made.session_id,
                    options: made.config_options,
                    commands: made.available_commands,
                })?;
            }
            ChatRequest::Resume { session, cwd } => {
                let start = wire::ReplayFrom::Start(wire::ReplayFromStart::new());
                let request = wire::ResumeSessionRequest::new(session.clone(), cwd).replay_from(start);
                answer(connection.send_request(request), sender, AgentMessage::OpenFailed, |resumed| {
                    AgentMessage::Opened {
                        session,
                        options: resumed.config_options,
                        commands: resumed.available_commands,
                    }
                })?;
            }
            ChatRequest::Close { session } => {
                connection.send_request(wire::CloseSessionRequest::new(session)).detach();
            }
            ChatRequest::List { cwd } => {
                let sent = connection
                    .send_request(wire::ListSessionsRequest::new().cwd(wire::AbsolutePath::new(cwd)));
                answer(sent, sender, AgentMessage::Failed, |listed| AgentMessage::Sessions(listed.sessions))?;
            }
            ChatRequest::Prompt { session, text } => {
                let sent =
                    connection.send_request(wire::PromptRequest::new(session, vec![text.clone().into()]));
                sent.on_receiving_result(async move |taken| {
                    let Err(error) = taken else { return Ok(()) };
                    let failed = AgentMessage::PromptFailed { text, why: sentence(&error) };
                    sender.send(failed).await.map_err(Error::into_internal_error)
                })?;
            }
            ChatRequest::Cancel { session } => {
                connection.send_notification(wire::CancelSessionNotification::new(session))?;
            }
            ChatRequest::SetOption { session, option, value } => {
                let sent =
                    connection.send_request(wire::SetSessionConfigOptionRequest::new(session, option, value));
                answer(sent, sender, AgentMessage::Failed, |set| AgentMessage::Options(set.config_options))?;
            }
            ChatRequest::Decide { card, option } => {
                let open = cards.lock().unwrap_or_else(PoisonError::into_inner).remove(&card);
                // The agent may have withdrawn it.
                open.map(|open| open.send(option));
            }
        }
    }
}

/// Passes on the answer to a request, or its error.
fn answer<T: JsonRpcResponse + Send + 'static>(
    sent: SentRequest<T>,
    sender: mpsc::Sender<AgentMessage>,
    failed: fn(String) -> AgentMessage,
    message: impl FnOnce(T) -> AgentMessage + Send + 'static,
) -> Result<(), Error> {
    sent.on_receiving_result(async move |answered| {
        let message = answered.map_or_else(|error| failed(sentence(&error)), message);
        sender.send(message).await.map_err(Error::into_internal_error)
    })
}

/// A permission request that is passed to the chat.
struct Card {
    number: u64,
    cards: OpenCards,
    sender: mpsc::Sender<AgentMessage>,
}

impl Card {
    /// Waits for the user's decision, or until the agent withdraws the request.
    async fn ask(
        self,
        request: wire::RequestPermissionRequest,
        responder: Responder<wire::RequestPermissionResponse>,
    ) -> Result<(), Error> {
        let (decide, decided) = oneshot::channel();
        self.cards.lock().unwrap_or_else(PoisonError::into_inner).insert(self.number, decide);
        let card = AgentMessage::Card { card: self.number, request: Box::new(request) };
        self.sender.send(card).await.map_err(Error::into_internal_error)?;
        let cancellation = responder.cancellation();
        tokio::select! {
            Ok(option) = decided => {
                let outcome = wire::SelectedPermissionOutcome::new(option);
                let outcome = wire::RequestPermissionOutcome::Selected(outcome);
                responder.respond(wire::RequestPermissionResponse::new(outcome))
            }
            () = cancellation.cancelled() => {
                self.cards.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
                let withdrawn = AgentMessage::CardWithdrawn(self.number);
                self.sender.send(withdrawn).await.map_err(Error::into_internal_error)?;
                let outcome = wire::CancelledPermissionOutcome::new();
                responder.respond(wire::RequestPermissionResponse::new(outcome.into()))
            }
        }
    }
}

/// An error for the user.
fn sentence(error: &Error) -> String {
    with_hint(&error.message, error.data.as_ref())
}

/// The message of an error with the hint in its data.
pub fn with_hint(message: &str, data: Option<&serde_json::Value>) -> String {
    match data.and_then(|data| data.get("details")).and_then(|details| details.as_str()) {
        Some(hint) if !message.contains(hint) => format!("{}. {hint}", message.trim_end_matches('.')),
        Some(_) | None => message.to_owned(),
    }
}
