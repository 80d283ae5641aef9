//! The client of the Agent Client Protocol, version 2: carries out requests of the chat, and passes on what the agent
//! sends. Nothing in it knows the terminal.

use epitome_platform::file_uri;
use epitome_platform::local::{self, AsyncStream};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v2::{ConnectionTo, InitializeOutcome, Responder, SentRequest, schema as wire};
use agent_client_protocol::{
    Agent, Client, Error, JsonRpcResponse, Lines, on_receive_notification, on_receive_request,
};
use futures_util::{sink, stream};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::{mpsc, oneshot};

use crate::form::{FormDialog, FormReply};

/// Messages that wait for the chat, and requests that wait to be sent. While it is reached, nothing more is read from
/// the agent, or typed by the user.
const WAITING_MAX: usize = 256;

/// Larger files are not sent with a prompt.
const ATTACHED_BYTES_MAX: u64 = 256 * 1024;

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
    /// `cursor` is where the list continues.
    List {
        cwd: PathBuf,
        cursor: Option<wire::SessionListCursor>,
    },
    /// Files that are named in the text, as `@src/main.rs`, are attached. They are relative to `cwd`.
    Prompt {
        session: wire::SessionId,
        text: String,
        cwd: PathBuf,
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
    /// Answers a form.
    Fill {
        card: u64,
        reply: FormReply,
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
    Form {
        card: u64,
        form: FormDialog,
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
    /// `is_next` if these follow others; `cursor` is where the list continues.
    Sessions {
        sessions: Vec<wire::SessionInfo>,
        is_next: bool,
        cursor: Option<wire::SessionListCursor>,
    },
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
    pub requests: mpsc::Sender<ChatRequest>,
    pub messages: mpsc::Receiver<AgentMessage>,
    /// Whether a model can be used, or the user has to log in first.
    pub has_login: bool,
}

/// Initializes a connection over this stream and serves it in the background. Fails with a sentence.
pub async fn connect(stream: local::Stream) -> Result<ChatConnection, String> {
    let stream = stream.set_nonblocking(true).and_then(|()| AsyncStream::from_std(stream));
    let stream = stream.map_err(|error| format!("the connection to the daemon can't be used: {error}"))?;
    let (requests, wanted) = mpsc::channel(WAITING_MAX);
    let (sender, messages) = mpsc::channel(WAITING_MAX);
    let (ready, is_ready) = oneshot::channel();
    tokio::spawn(async move {
        let ended = serve(stream, wanted, &sender, ready).await;
        let why = ended.err().map_or("the daemon closed the connection".to_owned(), |error| sentence(&error));
        // There is no receiver if the chat has ended first.
        drop(sender.send(AgentMessage::Ended(why)).await);
    });
    let has_login = is_ready.await.map_err(|_| "the daemon closed the connection".to_owned())??;
    Ok(ChatConnection { requests, messages, has_login })
}

/// The user's answer to a card.
enum CardReply {
    Option(wire::PermissionOptionId),
    Form(FormReply),
}

/// Permission requests and forms that wait for the user.
type OpenCards = Arc<Mutex<HashMap<u64, oneshot::Sender<CardReply>>>>;

async fn serve(
    stream: AsyncStream,
    wanted: mpsc::Receiver<ChatRequest>,
    sender: &mpsc::Sender<AgentMessage>,
    ready: oneshot::Sender<Result<bool, String>>,
) -> Result<(), Error> {
    let cards = OpenCards::default();
    let (updates, asked, answered) = (sender.clone(), sender.clone(), sender.clone());
    let (mut next_card, waiting) = (0, cards.clone());
    let (mut next_form, unfilled, filled) = (0, cards.clone(), sender.clone());
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
                // Cards have even numbers, and forms odd ones.
                next_card += 2;
                let card = Card { number: next_card, cards: waiting.clone(), sender: asked.clone() };
                let message = AgentMessage::Card { card: next_card, request: Box::new(request) };
                connection.spawn(card.ask(message, responder, decided))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: wire::CreateElicitationRequest,
                        responder: Responder<wire::CreateElicitationResponse>,
                        connection: ConnectionTo<Agent>| {
                let Some(form) = form_of(&request) else { return responder.respond(filled_in(None)) };
                next_form += 2;
                let card = next_form + 1;
                let open = Card { number: card, cards: unfilled.clone(), sender: filled.clone() };
                connection.spawn(open.ask(AgentMessage::Form { card, form }, responder, filled_in))
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
    stream: AsyncStream,
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
    let questions = wire::ElicitationCapabilities::new()
        .form(wire::ElicitationFormCapabilities::new())
        .url(wire::ElicitationUrlCapabilities::new());
    let capabilities = wire::ClientCapabilities::new().elicitation(questions);
    let request = wire::InitializeRequest::new(ProtocolVersion::V2, info).capabilities(capabilities);
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
    mut wanted: mpsc::Receiver<ChatRequest>,
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
            ChatRequest::List { cwd, cursor } => {
                let is_next = cursor.is_some();
                let request =
                    wire::ListSessionsRequest::new().cwd(wire::AbsolutePath::new(cwd)).cursor(cursor);
                answer(connection.send_request(request), sender, AgentMessage::Failed, move |listed| {
                    AgentMessage::Sessions { sessions: listed.sessions, is_next, cursor: listed.next_cursor }
                })?;
            }
            ChatRequest::Prompt { session, text, cwd } => {
                let sent = connection.send_request(wire::PromptRequest::new(session, content(&text, &cwd)));
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
                reply(cards, card, CardReply::Option(option));
            }
            ChatRequest::Fill { card, reply: filled } => reply(cards, card, CardReply::Form(filled)),
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

/// Answers a card, unless the agent has withdrawn it.
fn reply(cards: &OpenCards, card: u64, reply: CardReply) {
    let open = cards.lock().remove(&card);
    open.map(|open| open.send(reply));
}

/// A permission request or a form that is passed to the chat.
struct Card {
    number: u64,
    cards: OpenCards,
    sender: mpsc::Sender<AgentMessage>,
}

impl Card {
    /// Waits for the user's answer, or until the agent withdraws the request.
    async fn ask<R: JsonRpcResponse>(
        self,
        message: AgentMessage,
        responder: Responder<R>,
        response: fn(Option<CardReply>) -> R,
    ) -> Result<(), Error> {
        let (reply, replied) = oneshot::channel();
        self.cards.lock().insert(self.number, reply);
        self.sender.send(message).await.map_err(Error::into_internal_error)?;
        let cancellation = responder.cancellation();
        tokio::select! {
            Ok(reply) = replied => responder.respond(response(Some(reply))),
            () = cancellation.cancelled() => {
                self.cards.lock().remove(&self.number);
                let withdrawn = AgentMessage::CardWithdrawn(self.number);
                self.sender.send(withdrawn).await.map_err(Error::into_internal_error)?;
                responder.respond(response(None))
            }
        }
    }
}

/// The response to a permission request.
fn decided(reply: Option<CardReply>) -> wire::RequestPermissionResponse {
    let outcome = match reply {
        Some(CardReply::Option(option)) => {
            wire::RequestPermissionOutcome::Selected(wire::SelectedPermissionOutcome::new(option))
        }
        Some(CardReply::Form(_)) | None => wire::CancelledPermissionOutcome::new().into(),
    };
    wire::RequestPermissionResponse::new(outcome)
}

/// The response to a question of the agent.
fn filled_in(reply: Option<CardReply>) -> wire::CreateElicitationResponse {
    let action = match reply {
        Some(CardReply::Form(FormReply::Accepted(fields))) => {
            let fields = fields.into_iter().map(|(name, value)| (name, value_of(value))).collect();
            wire::ElicitationAcceptAction::new().content(Some(fields)).into()
        }
        Some(CardReply::Form(FormReply::Declined)) => wire::ElicitationAction::Decline,
        Some(CardReply::Option(_)) | None => wire::ElicitationAction::Cancel,
    };
    wire::CreateElicitationResponse::new(action)
}

fn value_of(value: Value) -> wire::ElicitationContentValue {
    serde_json::from_value(value.clone()).unwrap_or(wire::ElicitationContentValue::Other(value))
}

/// The form that a question wants; `None` for kinds that the chat did not offer.
fn form_of(request: &wire::CreateElicitationRequest) -> Option<FormDialog> {
    match &request.mode {
        wire::ElicitationMode::Form(form) => {
            let schema = serde_json::to_value(&form.requested_schema).ok()?;
            Some(FormDialog::of_schema(&request.message, &schema))
        }
        wire::ElicitationMode::Url(address) => Some(FormDialog::of_address(&request.message, &address.url)),
        _ => None,
    }
}

/// A prompt: its text, and each file that it names as `@PATH`. What names no file stays plain text.
fn content(text: &str, cwd: &Path) -> Vec<wire::ContentBlock> {
    let mut blocks = vec![text.into()];
    let mut attached = BTreeSet::new();
    for name in text.split_whitespace().filter_map(|word| word.strip_prefix('@')) {
        // A sentence may end behind the name.
        let names = [name, name.trim_end_matches(|c: char| c.is_ascii_punctuation() && c != '/')];
        let found = names.iter().find(|name| !name.is_empty() && cwd.join(name).is_file());
        if let Some(name) = found.filter(|name| attached.insert(**name)) {
            blocks.push(attachment(name, &cwd.join(name)));
        }
    }
    blocks
}

/// A file: its text, or a link that the agent can follow to what is larger or not text.
fn attachment(name: &str, path: &Path) -> wire::ContentBlock {
    let mut text = String::new();
    let file = File::open(path).map(|file| file.take(ATTACHED_BYTES_MAX + 1));
    let is_text = file.and_then(|mut file| file.read_to_string(&mut text)).is_ok();
    if is_text && text.len() as u64 <= ATTACHED_BYTES_MAX {
        let contents = wire::TextResourceContents::new(text, file_uri::of(path));
        let contents = wire::EmbeddedResourceResource::TextResourceContents(contents);
        return wire::ContentBlock::Resource(wire::EmbeddedResource::new(contents));
    }
    wire::ContentBlock::ResourceLink(wire::ResourceLink::new(name, file_uri::of(path)))
}

/// An error for the user.
fn sentence(error: &Error) -> String {
    with_hint(&error.message, error.data.as_ref())
}

/// The message of an error with the hint in its data.
pub fn with_hint(message: &str, data: Option<&Value>) -> String {
    match data.and_then(|data| data.get("details")).and_then(|details| details.as_str()) {
        Some(hint) if !message.contains(hint) => format!("{}. {hint}", message.trim_end_matches('.')),
        Some(_) | None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_prompt_names_are_attached() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(scratch.path().join("src")).expect("made");
        std::fs::write(scratch.path().join("src/main.rs"), "fn main() {}").expect("written");
        std::fs::write(scratch.path().join("chart.png"), [0x89, b'P', 0xff]).expect("written");
        let attached = |text: &str| -> Vec<(String, String)> {
            let blocks = content(text, scratch.path());
            assert_eq!(blocks[0], wire::ContentBlock::from(text));
            let attached = |block: &wire::ContentBlock| match block {
                wire::ContentBlock::ResourceLink(link) => ("a link".to_owned(), link.uri.clone()),
                wire::ContentBlock::Resource(resource) => match &resource.resource {
                    wire::EmbeddedResourceResource::TextResourceContents(contents) => {
                        (contents.text.clone(), contents.uri.clone())
                    }
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            };
            blocks[1..].iter().map(attached).collect()
        };
        let place = scratch.path().display();
        let main = ("fn main() {}".to_owned(), format!("file://{place}/src/main.rs"));
        let chart = ("a link".to_owned(), format!("file://{place}/chart.png"));
        assert_eq!(attached("Compare @src/main.rs, and again @src/main.rs with @chart.png."), [main, chart]);
        assert_eq!(attached("ann@example.org and @nobody, in @src or @"), []);
    }

    #[test]
    fn the_fields_of_a_form_are_sent_with_their_types() {
        let Value::Object(fields) = serde_json::json!({ "n": 7, "s": "x", "b": true, "l": ["a"] }) else {
            panic!("an object");
        };
        let response = filled_in(Some(CardReply::Form(FormReply::Accepted(fields.clone()))));
        let sent = serde_json::to_value(response).expect("JSON");
        assert_eq!((&sent["action"], &sent["content"]), (&"accept".into(), &Value::Object(fields)));
    }
}
