//! The connection to the agent: requests of the chat become lines of the protocol, and lines of the agent become messages.
//! Nothing in it knows the terminal.

use std::collections::BTreeSet;
use std::fs::File;
use std::future::pending;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use agent_client_protocol::v2::schema as wire;
use epitome_client::{
    AcpLink, Handshake, LinkMessage, elicitation, halves, question_answer, selected, sentence, slash_commands,
};
use epitome_platform::file_uri;
use epitome_platform::local::{self, AsyncStream, OwnedReadHalf, OwnedWriteHalf};
use epitome_session_api::{CommandInfo, QuestionReply};
use epitome_thread::text::ago;
use futures_util::FutureExt as _;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::form::{FormDialog, form_of};
use crate::images;
use crate::picker::ChatSession;

/// Bytes that wait to be sent, beyond which nothing more is typed by the user.
const UNSENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Larger files are not sent with a prompt.
const ATTACHED_BYTES_MAX: u64 = 256 * 1024;

/// A request of the chat to the agent.
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
        images: Vec<wire::ContentBlock>,
        cwd: PathBuf,
    },
    Cancel {
        session: wire::SessionId,
    },
    /// Takes a prompt back that waits for the agent.
    Withdraw {
        text: String,
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
        reply: QuestionReply,
    },
}

impl ChatRequest {
    /// Whether it sets an option to this value.
    pub fn sets(&self, id: &str, to: &str) -> bool {
        use wire::SessionConfigOptionValue::Id;
        matches!(self, ChatRequest::SetOption { option, value: Id { value }, .. }
            if *option.0 == *id && *value.0 == *to)
    }
}

/// A message of the agent to the chat.
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
        commands: Vec<CommandInfo>,
    },
    OpenFailed(String),
    Options(Vec<wire::SessionConfigOption>),
    /// `is_next` if these follow others; `cursor` is where the list continues.
    Sessions {
        sessions: Vec<ChatSession>,
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

/// A connection that is initialized.
pub struct InitializedChat {
    link: AcpLink<AnswerPurpose>,
    stream: local::Stream,
    /// Whether a model can be used, or the user has to log in first.
    pub has_login: bool,
    takes_images: bool,
}

/// The connection to the agent.
pub struct ChatConnection {
    link: AcpLink<AnswerPurpose>,
    from_agent: BufReader<OwnedReadHalf>,
    to_agent: OwnedWriteHalf,
    /// The part of a line that has arrived.
    line: Vec<u8>,
    unsent: Vec<u8>,
    /// The requests of prompts that are not answered, with their texts.
    prompts: Vec<(u64, String)>,
    takes_images: bool,
    is_ended: bool,
}

/// The request to which an answer belongs.
enum AnswerPurpose {
    /// The session, if the request named it.
    Open(Option<wire::SessionId>),
    Close,
    /// `is_next`: it continues a list.
    List {
        is_next: bool,
    },
    /// The text of a prompt.
    Prompt(String),
    SetOption,
}

/// Initializes a connection. Blocking. Fails with a sentence.
pub fn initialize(stream: local::Stream) -> Result<InitializedChat, String> {
    let info = wire::Implementation::new("epitome-chat", env!("CARGO_PKG_VERSION"));
    let capabilities = wire::ClientCapabilities::new().elicitation(elicitation());
    let mut handshake = Handshake::begin(halves(stream)?, info, capabilities)?;
    let has_login =
        handshake.call("auth/status", &wire::AuthStatusRequest::new())?["state"] != "unauthenticated";
    let takes_images = handshake.takes_images();
    let (link, _, stream) = handshake.finish();
    Ok(InitializedChat { link, stream, has_login, takes_images })
}

impl ChatConnection {
    pub fn new(initialized: InitializedChat) -> io::Result<ChatConnection> {
        let InitializedChat { link, stream, takes_images, .. } = initialized;
        stream.set_nonblocking(true)?;
        let (from_agent, to_agent) = AsyncStream::from_std(stream)?.into_split();
        let from_agent = BufReader::new(from_agent);
        Ok(ChatConnection {
            link,
            from_agent,
            to_agent,
            line: Vec::new(),
            unsent: Vec::new(),
            prompts: Vec::new(),
            takes_images,
            is_ended: false,
        })
    }

    /// Whether more can be requested: an agent that reads nothing must not let requests accumulate.
    pub fn has_room(&self) -> bool {
        self.unsent.len() <= UNSENT_BYTES_MAX
    }

    /// Queues a request. It is sent while the next message is waited for.
    pub fn request(&mut self, request: ChatRequest) {
        let link = &mut self.link;
        match request {
            ChatRequest::Create { cwd } => {
                link.request("session/new", &wire::NewSessionRequest::new(cwd), AnswerPurpose::Open(None));
            }
            ChatRequest::Resume { session, cwd } => {
                let start = wire::ReplayFrom::Start(wire::ReplayFromStart::new());
                let params = wire::ResumeSessionRequest::new(session.clone(), cwd).replay_from(start);
                link.request("session/resume", &params, AnswerPurpose::Open(Some(session)));
            }
            ChatRequest::Close { session } => {
                link.request("session/close", &wire::CloseSessionRequest::new(session), AnswerPurpose::Close);
            }
            ChatRequest::List { cwd, cursor } => {
                let pending = AnswerPurpose::List { is_next: cursor.is_some() };
                let params =
                    wire::ListSessionsRequest::new().cwd(wire::AbsolutePath::new(cwd)).cursor(cursor);
                link.request("session/list", &params, pending);
            }
            ChatRequest::Prompt { session, text, images, cwd } => {
                let mut content = content(&text, images, &cwd);
                if !self.takes_images {
                    content.iter_mut().for_each(name_image);
                }
                let params = wire::PromptRequest::new(session, content);
                let id = link.request("session/prompt", &params, AnswerPurpose::Prompt(text.clone()));
                self.prompts.push((id, text));
            }
            ChatRequest::Withdraw { text } => {
                if let Some((id, _)) = self.prompts.iter().rfind(|(_, sent)| *sent == text) {
                    link.cancel_request(*id);
                }
            }
            ChatRequest::Cancel { session } => {
                link.notify("session/cancel", &wire::CancelSessionNotification::new(session));
            }
            ChatRequest::SetOption { session, option, value } => {
                let params = wire::SetSessionConfigOptionRequest::new(session, option, value);
                link.request("session/set_config_option", &params, AnswerPurpose::SetOption);
            }
            ChatRequest::Decide { card, option } => link.answer(&card.into(), &selected(option)),
            ChatRequest::Fill { card, reply } => link.answer(&card.into(), &question_answer(reply)),
        }
        self.unsent.extend(link.take_lines());
    }

    /// Waits for the next message, and sends what waits meanwhile. The end of the connection is the last one. Nothing is
    /// lost if it is cancelled.
    pub async fn next(&mut self) -> AgentMessage {
        if self.is_ended {
            return pending().await;
        }
        loop {
            let ended = tokio::select! {
                read = self.from_agent.read_until(b'\n', &mut self.line) => match read {
                    Ok(0) => "the daemon closed the connection".to_owned(),
                    Ok(_) => {
                        let line = std::mem::take(&mut self.line);
                        match self.receive(&line) {
                            Some(message) => return message,
                            None => continue,
                        }
                    }
                    Err(error) => format!("the daemon's messages can't be read: {error}"),
                },
                written = self.to_agent.write(&self.unsent), if !self.unsent.is_empty() => {
                    // If it fails, the agent is gone, and reading ends.
                    let sent = written.unwrap_or(self.unsent.len());
                    self.unsent.drain(..sent);
                    continue;
                }
            };
            self.is_ended = true;
            return AgentMessage::Ended(ended);
        }
    }

    /// The next message, if it has arrived.
    pub fn try_next(&mut self) -> Option<AgentMessage> {
        self.next().now_or_never()
    }

    fn receive(&mut self, line: &[u8]) -> Option<AgentMessage> {
        let message = match self.link.receive(line) {
            Ok(LinkMessage::Answer(pending, answer)) => {
                if let AnswerPurpose::Prompt(text) = &pending
                    && let Some(at) = self.prompts.iter().position(|(_, sent)| sent == text)
                {
                    self.prompts.remove(at);
                }
                answered(pending, answer)
            }
            Ok(LinkMessage::Notification { method, params }) => match method.as_str() {
                "session/update" => read(params).map(|update| Some(AgentMessage::Update(update))),
                "$/cancel_request" => Ok(params["requestId"].as_u64().map(AgentMessage::CardWithdrawn)),
                _ => Ok(None),
            },
            Ok(LinkMessage::Request { id, method, params }) => self.asked(&id, &method, params),
            Ok(LinkMessage::Nothing) => Ok(None),
            Err(error) => Err(error),
        };
        message.unwrap_or_else(|error| {
            tracing::error!(%error, "a line of the agent can't be read");
            None
        })
    }

    /// A request of the agent to the user.
    fn asked(
        &mut self,
        id: &Value,
        method: &str,
        params: Value,
    ) -> Result<Option<AgentMessage>, serde_json::Error> {
        match (method, id.as_u64()) {
            ("session/request_permission", Some(card)) => {
                Ok(Some(AgentMessage::Card { card, request: read(params)? }))
            }
            ("elicitation/create", Some(card)) => {
                let form = form_of(&*read::<wire::CreateElicitationRequest>(params)?);
                if form.is_none() {
                    self.request(ChatRequest::Fill { card, reply: QuestionReply::Cancelled });
                }
                Ok(form.map(|form| AgentMessage::Form { card, form }))
            }
            _ => {
                self.link.refuse(id, "not supported");
                self.unsent.extend(self.link.take_lines());
                Ok(None)
            }
        }
    }
}

/// Converts an answer to a message for the chat.
fn answered(
    pending: AnswerPurpose,
    answer: Result<Value, Value>,
) -> Result<Option<AgentMessage>, serde_json::Error> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let why = sentence(&error);
            return Ok(match pending {
                AnswerPurpose::Open(_) => Some(AgentMessage::OpenFailed(why)),
                AnswerPurpose::Prompt(text) => Some(AgentMessage::PromptFailed { text, why }),
                AnswerPurpose::List { .. } | AnswerPurpose::SetOption => Some(AgentMessage::Failed(why)),
                AnswerPurpose::Close => None,
            });
        }
    };
    Ok(match pending {
        AnswerPurpose::Open(resumed) => {
            let session = resumed.or_else(|| Some(answer["sessionId"].as_str()?.into()));
            let opened: wire::ResumeSessionResponse = serde_json::from_value(answer)?;
            let (options, commands) = (opened.config_options, slash_commands(opened.available_commands));
            session.map(|session| AgentMessage::Opened { session, options, commands })
        }
        AnswerPurpose::List { is_next } => {
            let listed: wire::ListSessionsResponse = serde_json::from_value(answer)?;
            let sessions = listed.sessions.into_iter().map(chat_session).collect();
            Some(AgentMessage::Sessions { sessions, is_next, cursor: listed.next_cursor })
        }
        AnswerPurpose::SetOption => {
            let set: wire::SetSessionConfigOptionResponse = serde_json::from_value(answer)?;
            Some(AgentMessage::Options(set.config_options))
        }
        AnswerPurpose::Prompt(_) | AnswerPurpose::Close => None,
    })
}

fn chat_session(info: wire::SessionInfo) -> ChatSession {
    let used = info.updated_at.and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let age = |at: jiff::Timestamp| ago(jiff::Timestamp::now().duration_since(at).as_secs());
    ChatSession {
        id: info.session_id.to_string(),
        cwd: info.cwd.0,
        title: info.title,
        age: used.map(age).unwrap_or_default(),
        excerpt: String::new(),
    }
}

fn read<T: DeserializeOwned>(params: Value) -> Result<Box<T>, serde_json::Error> {
    serde_json::from_value(params).map(Box::new)
}

/// A prompt: its text, its images, and each file that it names as `@PATH`. A name without a file stays plain text.
fn content(text: &str, images: Vec<wire::ContentBlock>, cwd: &Path) -> Vec<wire::ContentBlock> {
    let mut blocks = vec![text.into()];
    blocks.extend(images);
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

/// Replaces an image by a link to it.
fn name_image(block: &mut wire::ContentBlock) {
    if let wire::ContentBlock::Image(image) = block {
        let uri = image.uri.clone().unwrap_or_default();
        *block = wire::ContentBlock::ResourceLink(wire::ResourceLink::new(images::name_of(image), uri));
    }
}

/// A file: an image, a document or its text, or a link that the agent can follow to what is larger or something else.
fn attachment(name: &str, path: &Path) -> wire::ContentBlock {
    if let Ok(block) = images::attached(path) {
        return block;
    }
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
            let blocks = content(text, Vec::new(), scratch.path());
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
}
