//! Handles requests and notifications from a server: progress is forwarded to its call, a changed list is fetched
//! again, the workspace directories are its roots, log messages are kept, and questions to the user and calls of the
//! model are passed to the session, within limits. Everything else is refused.

// Roots, sampling and logging are deprecated in the protocol's newest version, but current servers use them.
#![expect(deprecated)]

use epitome_platform::file_uri;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
    ElicitResult, ElicitationAction, ElicitationCapability, ErrorCode, ErrorData, FormElicitationCapability,
    Implementation, ListRootsResult, LoggingMessageNotificationParam, ProgressNotificationParam,
    ProgressToken, ProtocolVersion, Role, Root, RootsCapabilities, SamplingCapability, SamplingMessage,
    UrlElicitationCapability,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use super::McpEvent;
use super::listed::short;
use super::outcome::fenced;
use super::redact::ServerRedactor;
use epitome_thread::visible::{invisible_in, visible};
use epitome_tools::question::{QuestionKind, QuestionReply, QuestionSender, UserQuestion, fitting};

/// Maximum questions to the user per connection.
pub const QUESTIONS_MAX: u32 = 20;
/// Consecutive questions without an accepted answer after which further ones are declined.
const UNANSWERED_MAX: u32 = 3;
/// Maximum bytes of a question's message.
const MESSAGE_BYTES_MAX: usize = 4 * 1024;
/// Maximum bytes of a form's schema.
const FORM_BYTES_MAX: usize = 16 * 1024;
/// Maximum characters shown of one progress message.
const PROGRESS_CHARS_MAX: usize = 200;
/// Maximum bytes of the messages in a sampling request: the user is shown all of them.
const SAMPLED_BYTES_MAX: usize = 16 * 1024;
/// Error code of a refused sampling request (Sampling, Error Handling: "User rejected sampling request").
const REFUSED: ErrorCode = ErrorCode(-1);
/// Log messages kept per server, the newest ones.
const LOG_LINES_MAX: usize = 10;
/// Maximum bytes kept of one log message.
const LOG_LINE_BYTES_MAX: usize = 300;
/// Maximum bytes of one that are searched for secrets.
const LOG_READ_BYTES_MAX: usize = 16 * 1024;

/// Words that indicate a secret, without blanks and signs. Forms must not ask for secrets: the answer passes through a
/// model's tools.
const SECRET_WORDS: [&str; 11] = [
    "password",
    "passwort",
    "kennwort",
    "passphrase",
    "passcode",
    "secret",
    "token",
    "apikey",
    "privatekey",
    "credential",
    "pincode",
];

/// Such words that are also parts of others.
const SHORT_SECRET_WORDS: [&str; 4] = ["pin", "otp", "pwd", "cvv"];

/// Receives the progress of a call.
type ProgressListener = Arc<dyn Fn(String) + Send + Sync>;

/// State shared by a connection and its calls.
#[derive(Default)]
pub struct ClientShared {
    /// Each with the flag that is set when progress arrives.
    listeners: Mutex<HashMap<ProgressToken, (ProgressListener, Arc<AtomicBool>)>>,
    /// Questions that the user has not answered yet.
    asking: AtomicU32,
    /// Questions that are closed.
    closed: AtomicU32,
    asked: AtomicU32,
    unanswered: AtomicU32,
    /// Whether the user allows all calls of the model for this server.
    may_call_model: AtomicBool,
    /// Notified when one of the server's lists has changed.
    pub list_changed: Notify,
    log: Mutex<VecDeque<String>>,
}

impl ClientShared {
    /// Passes the progress of a call to its listener, until the call is forgotten.
    pub fn listen(&self, token: ProgressToken, listener: ProgressListener) -> CallActivity {
        let moved = Arc::new(AtomicBool::new(false));
        self.listeners.lock().insert(token, (listener, moved.clone()));
        CallActivity { moved, closed: self.closed.load(Ordering::Relaxed) }
    }

    fn progressed(&self, token: &ProgressToken, text: String) {
        let listener = self.listeners.lock().get(token).cloned();
        if let Some((listener, moved)) = listener {
            moved.store(true, Ordering::Relaxed);
            listener(text);
        }
    }

    pub fn forget(&self, token: &ProgressToken) {
        self.listeners.lock().remove(token);
    }

    /// The newest log messages of the server, with their levels.
    pub fn log_lines(&self) -> Vec<String> {
        self.log.lock().iter().cloned().collect()
    }

    fn keep_log_line(&self, line: String) {
        let mut log = self.log.lock();
        log.push_back(line);
        if log.len() > LOG_LINES_MAX {
            log.pop_front();
        }
    }
}

/// Tracks whether a call makes progress. Each call has its own: several may run at the same time, and a check of one
/// must not consume another one's progress.
pub struct CallActivity {
    moved: Arc<AtomicBool>,
    /// Number of closed questions when it was last asked.
    closed: u32,
}

impl CallActivity {
    /// Whether progress has arrived or a question was closed since the last time, or a question is open: a server's
    /// question does not say to which call it belongs.
    pub fn has_moved(&mut self, shared: &ClientShared) -> bool {
        let has_progress = self.moved.swap(false, Ordering::Relaxed);
        let closed = shared.closed.load(Ordering::Relaxed);
        let has_closed = std::mem::replace(&mut self.closed, closed) != closed;
        has_progress || has_closed || shared.asking.load(Ordering::Relaxed) > 0
    }
}

/// The client handler for one server.
pub struct McpClient {
    pub server: String,
    pub shared: Arc<ClientShared>,
    pub redactor: ServerRedactor,
    /// The directories of the workspace.
    pub roots: Vec<PathBuf>,
    pub questions: QuestionSender,
    pub news: mpsc::WeakSender<McpEvent>,
    /// Limits a server to one question at a time.
    pub turn: Semaphore,
}

impl ClientHandler for McpClient {
    fn get_info(&self) -> ClientConfig {
        let shows = self.questions.shows();
        let mut elicits = ElicitationCapability::new();
        if shows.forms {
            elicits = elicits.with_form(FormElicitationCapability::default());
        }
        if shows.urls {
            elicits = elicits.with_url(UrlElicitationCapability::default());
        }
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = (shows.forms || shows.urls).then_some(elicits);
        capabilities.roots = Some(RootsCapabilities::default());
        // The user's consent to sampling is requested with a form.
        capabilities.sampling = shows.forms.then(SamplingCapability::default);
        ClientConfig::new(capabilities, Implementation::new("epitome", env!("CARGO_PKG_VERSION")))
            // The newest version that starts with `initialize`.
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(self.roots.iter().map(|root| Root::new(file_uri::of(root))).collect()))
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let text = match &params.data {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let level = format!("{:?}", params.level).to_lowercase();
        let line = log_line(&level, &text, &self.redactor);
        tracing::debug!(server = %self.server, "{line}");
        self.shared.keep_log_line(line);
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.shared.list_changed.notify_one();
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.shared.progressed(&params.progress_token, progress(&params));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.shared.list_changed.notify_one();
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let declined = || ElicitResult::new(ElicitationAction::Decline);
        let question = match self.question(request) {
            Ok(question) => question,
            Err(why) => {
                self.note(why);
                return Ok(declined());
            }
        };
        let schema = match &question.wants {
            QuestionKind::Form { schema } => Some(schema.clone()),
            QuestionKind::Url { .. } => None,
        };
        let Some(reply) = self.ask(question).await else { return Ok(declined()) };
        let accepted = || ElicitResult::new(ElicitationAction::Accept);
        let cancelled = || ElicitResult::new(ElicitationAction::Cancel);
        Ok(match (reply, schema) {
            (QuestionReply::Accepted(_), None) => accepted(),
            (QuestionReply::Accepted(content), Some(schema)) => match fitting(&schema, content) {
                Ok(content) => accepted().with_content(Value::Object(content)),
                Err(why) => {
                    self.note(&format!("received no answer: {why}"));
                    cancelled()
                }
            },
            (QuestionReply::Unable, _) => {
                self.note("asks something that your client cannot show; the question was declined");
                declined()
            }
            (QuestionReply::Declined, _) => declined(),
            (QuestionReply::Cancelled | QuestionReply::TimedOut, _) => cancelled(),
        })
    }

    /// Runs the session's model for the server if the user agrees (sampling).
    async fn create_message(
        &self,
        request: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let messages = sampled_messages(&request)?;
        // Counts as activity of the call that caused it.
        let _asking = self.open_question();
        if !self.shared.may_call_model.load(Ordering::Relaxed) {
            self.ask_about_model(&messages, request.max_tokens).await?;
        }
        let (answer, answered) = oneshot::channel();
        let params = json!({ "messages": messages, "max_tokens": request.max_tokens });
        let wanted = McpEvent::ModelWanted { server: self.server.clone(), params, answer };
        let ending = || refused("the session is ending");
        let news = self.news.upgrade().ok_or_else(ending)?;
        news.send(wanted).await.map_err(|_| ending())?;
        let reply = answered.await.map_err(|_| ending())?.map_err(|error| refused(error.to_string()))?;
        let text = reply["text"].as_str().unwrap_or_default();
        let message = SamplingMessage::assistant_text(text);
        let model = reply["model"].as_str().unwrap_or_default().to_owned();
        Ok(CreateMessageResult::new(message, model)
            .with_stop_reason(CreateMessageResult::STOP_REASON_END_TURN))
    }
}

fn refused(why: impl Into<Cow<'static, str>>) -> ErrorData {
    ErrorData::new(REFUSED, why, None)
}

/// The messages of a sampling request, with its system prompt first.
fn sampled_messages(request: &CreateMessageRequestParams) -> Result<Vec<Value>, ErrorData> {
    if request.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
        return Err(refused("the model is not called with tools of a server"));
    }
    let system = request.system_prompt.iter().map(|text| json!({"role": "system", "content": text}));
    let mut messages: Vec<Value> = system.collect();
    for message in &request.messages {
        let role = match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        for content in message.content.iter() {
            let Some(text) = content.as_text() else {
                return Err(refused("the model is called with texts only"));
            };
            messages.push(json!({"role": role, "content": text.text}));
        }
    }
    let bytes: usize = messages.iter().map(|message| message["content"].as_str().map_or(0, str::len)).sum();
    match bytes > SAMPLED_BYTES_MAX {
        true => {
            Err(refused(format!("the model is called with at most {SAMPLED_BYTES_MAX} bytes, not {bytes}")))
        }
        false => Ok(messages),
    }
}

/// The name of the field in the sampling question, and its values.
const MAY_CALL: &str = "answer";
const ONCE: &str = "This time";
const ALWAYS: &str = "Always in this session";
const NEVER: &str = "No";

/// Counts a question as open until dropped, even if the waiting future is dropped.
struct OpenQuestionGuard<'a>(&'a ClientShared);

impl Drop for OpenQuestionGuard<'_> {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, Ordering::Relaxed);
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

impl McpClient {
    /// Shows a question and waits for its answer. Returns `None` if the server has asked too many.
    async fn ask(&self, question: UserQuestion) -> Option<QuestionReply> {
        if self.shared.asked.fetch_add(1, Ordering::Relaxed) >= QUESTIONS_MAX
            || self.shared.unanswered.load(Ordering::Relaxed) >= UNANSWERED_MAX
        {
            self.note("asked too many questions; further ones are declined");
            return None;
        }
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await;
        // Check again: earlier questions may have remained unanswered.
        if self.shared.unanswered.load(Ordering::Relaxed) >= UNANSWERED_MAX {
            return None;
        }
        let asking = self.open_question();
        let reply = self.questions.ask(question).await;
        drop(asking);
        let unanswered = match &reply {
            QuestionReply::Accepted(_) => 0,
            QuestionReply::Declined
            | QuestionReply::Cancelled
            | QuestionReply::Unable
            | QuestionReply::TimedOut => self.shared.unanswered.load(Ordering::Relaxed) + 1,
        };
        self.shared.unanswered.store(unanswered, Ordering::Relaxed);
        Some(reply)
    }

    fn open_question(&self) -> OpenQuestionGuard<'_> {
        self.shared.asking.fetch_add(1, Ordering::Relaxed);
        OpenQuestionGuard(&self.shared)
    }

    /// Asks the user whether to call the model for the server: the call costs tokens, and its answer goes to the
    /// server. The complete text is shown. The error is a sentence for the server.
    async fn ask_about_model(&self, messages: &[Value], max_tokens: u32) -> Result<(), ErrorData> {
        let text = |message: &Value| {
            format!(
                "{}: {}",
                message["role"].as_str().unwrap_or_default(),
                message["content"].as_str().unwrap_or_default()
            )
        };
        let shown = messages.iter().map(text).collect::<Vec<String>>().join("\n\n");
        let message = format!(
            "The MCP server {} wants the session's model to answer this, in up to {max_tokens} tokens. You pay for it, and \
             the server gets the answer.\n\n{}",
            self.server,
            fenced(&visible(&shown))
        );
        let schema = json!({
            "type": "object",
            "properties": { MAY_CALL: {"type": "string", "title": "Call the model", "enum": [ONCE, ALWAYS, NEVER]} },
            "required": [MAY_CALL],
        });
        let question = UserQuestion { message, wants: QuestionKind::Form { schema }, call: None };
        match self.ask(question).await {
            Some(QuestionReply::Accepted(answer))
                if answer.get(MAY_CALL).is_some_and(|given| given == ONCE) =>
            {
                Ok(())
            }
            Some(QuestionReply::Accepted(answer))
                if answer.get(MAY_CALL).is_some_and(|given| given == ALWAYS) =>
            {
                self.shared.may_call_model.store(true, Ordering::Relaxed);
                Ok(())
            }
            Some(QuestionReply::Unable) => {
                self.note("wants to call the model, and your client cannot ask you about it; it was refused");
                Err(refused("no user can be asked whether it may call the model"))
            }
            Some(
                QuestionReply::Accepted(_)
                | QuestionReply::Declined
                | QuestionReply::Cancelled
                | QuestionReply::TimedOut,
            )
            | None => Err(refused("the user did not allow it to call the model")),
        }
    }

    fn note(&self, why: &str) {
        if let Some(news) = self.news.upgrade() {
            let text = format!("The MCP server {} {why}.", self.server);
            // If the channel is full, the user has enough remarks already.
            let _ = news.try_send(McpEvent::Remark(text));
        }
    }

    /// The question as shown to the user. The error completes a sentence that begins with "The MCP server x".
    fn question(&self, request: ElicitRequestParams) -> Result<UserQuestion, &'static str> {
        let full = |message: &str| {
            let cut = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
            format!("The MCP server {} asks: {}", self.server, cut.trim())
        };
        match request {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                let schema = serde_json::to_value(&requested_schema)
                    .map_err(|_| "asks for a form that cannot be read; the question was declined")?;
                let text = schema.to_string();
                if text.len() > FORM_BYTES_MAX {
                    return Err("asks for a form that is too large; the question was declined");
                }
                if wants_secret(&message, &schema) {
                    return Err("asks for a secret in a form, which is not safe; the question was declined");
                }
                Ok(UserQuestion { message: full(&message), wants: QuestionKind::Form { schema }, call: None })
            }
            ElicitRequestParams::UrlElicitationParams { message, url, elicitation_id, .. } => {
                if !is_page(&url) {
                    return Err(
                        "asks you to open an address that is not a web page; the question was declined",
                    );
                }
                // The server's id may not be unique; the id shown to the client must be.
                let id = format!("mcp_{:016x}_{}", fastrand::u64(..), short(&elicitation_id));
                Ok(UserQuestion { message: full(&message), wants: QuestionKind::Url { url, id }, call: None })
            }
            _ => Err("asks in an unsupported way; the question was declined"),
        }
    }
}

/// A log message on one line. It is cut after its secrets are redacted: a part of one would not be recognized.
fn log_line(level: &str, message: &str, redactor: &ServerRedactor) -> String {
    let read = &message[..message.floor_char_boundary(LOG_READ_BYTES_MAX)];
    let mut line = redactor.redact(&format!("{level}: {}", read.replace('\n', " ")));
    line.truncate(line.floor_char_boundary(LOG_LINE_BYTES_MAX));
    line
}

/// Whether a form asks for a secret, judging by its message and its fields' names, titles, descriptions and formats.
fn wants_secret(message: &str, schema: &Value) -> bool {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return false };
    names_secret(message)
        || properties.iter().any(|(name, property)| {
            let of = |key: &str| property.get(key).and_then(Value::as_str).unwrap_or_default();
            of("format") == "password" || [name, of("title"), of("description")].into_iter().any(names_secret)
        })
}

/// Whether a text names a secret, in whatever spelling. Letters of several scripts in one word count as one.
fn names_secret(text: &str) -> bool {
    let text = text.to_lowercase();
    let letters: String = text.chars().filter(|c| c.is_alphabetic()).collect();
    let visible: String = text.chars().filter(|c| invisible_in(&c.to_string()).is_empty()).collect();
    let mut words = visible.split(|c: char| !c.is_alphabetic());
    let is_mixed = |word: &str| {
        let mut letters = word.chars();
        letters.any(|c| c.is_ascii()) && word.chars().any(|c| c >= '\u{370}')
    };
    SECRET_WORDS.iter().any(|secret| letters.contains(secret))
        || words.any(|word| SHORT_SECRET_WORDS.contains(&word) || is_mixed(word))
}

/// Whether an address is one of a page on the web, as it is read: without a user's name, and in ASCII.
fn is_page(url: &str) -> bool {
    url.parse::<http::Uri>().is_ok_and(|address| {
        matches!(address.scheme_str(), Some("https" | "http"))
            && address.authority().is_some_and(|authority| !authority.as_str().contains('@'))
    })
}

fn progress(params: &ProgressNotificationParam) -> String {
    let printed: String =
        params.message.as_deref().unwrap_or_default().chars().take(PROGRESS_CHARS_MAX).collect();
    let done = match params.total {
        Some(total) => format!("{} of {total}", params.progress),
        None => params.progress.to_string(),
    };
    match printed.trim() {
        "" => format!("{done}\n"),
        printed => format!("{done}: {printed}\n"),
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ContentBlock, NumberOrString};

    use super::*;
    use epitome_config::McpTransport;

    /// Regression: the calls of a connection shared one flag for progress. Of two long calls at the same time that both
    /// reported progress every second, the first one to look cleared the flag, and the other was cancelled as silent.
    #[test]
    fn calls_at_the_same_time_have_progress_of_their_own() {
        let shared = ClientShared::default();
        let token = |number| ProgressToken(NumberOrString::Number(number));
        let mut calls = [1, 2].map(|number| shared.listen(token(number), Arc::new(|_: String| {})));
        let mut moved = || calls.each_mut().map(|call| call.has_moved(&shared));
        for number in [1, 2] {
            shared.progressed(&token(number), "half".to_owned());
        }
        assert_eq!(moved(), [true, true]);
        assert_eq!(moved(), [false, false]);
        // One call's progress does not keep the other alive.
        shared.progressed(&token(2), "nearly".to_owned());
        assert_eq!(moved(), [false, true]);
        let open = OpenQuestionGuard(&shared);
        shared.asking.fetch_add(1, Ordering::Relaxed);
        assert_eq!(moved(), [true, true]);
        drop(open);
        assert_eq!(moved(), [true, true], "the answer begins a new period of silence");
        assert_eq!(moved(), [false, false]);
    }

    /// Regression: a message was cut first, so that half of a key at the cut was shown and logged.
    #[test]
    fn log_messages_are_cut_after_their_secrets_are_redacted() {
        let env = vec![("KEY".to_owned(), "sk-made-up-key-of-the-server".to_owned())];
        let way = McpTransport::Stdio { command: String::new(), args: Vec::new(), env };
        let redactor = ServerRedactor::new(&way);
        for before in 270..300 {
            let message =
                format!("{}sk-made-up-key-of-the-server\n{}", "x".repeat(before), "y".repeat(100_000));
            let line = log_line("info", &message, &redactor);
            assert!(line.len() <= LOG_LINE_BYTES_MAX && !line.contains("sk-"), "{before}: {line}");
        }
    }

    #[test]
    fn the_model_is_called_with_bounded_texts_only() {
        let request =
            |text: &str| CreateMessageRequestParams::new(vec![SamplingMessage::user_text(text)], 100);
        let messages = sampled_messages(&request("hi").with_system_prompt("Be short.")).expect("it is fine");
        assert_eq!(
            messages,
            [json!({"role": "system", "content": "Be short."}), json!({"role": "user", "content": "hi"})]
        );
        assert!(sampled_messages(&request(&"x".repeat(SAMPLED_BYTES_MAX + 1))).is_err());
        let picture = ContentBlock::image("", "image/png");
        let picture = serde_json::from_value(json!({"role": "user", "content": picture})).expect("a message");
        assert!(sampled_messages(&CreateMessageRequestParams::new(vec![picture], 1)).is_err());
    }

    #[test]
    fn secret_forms_are_recognized_by_their_fields() {
        for (property, expected) in [
            (json!({"branch": {"type": "string"}}), false),
            (json!({"password": {"type": "string"}}), true),
            (json!({"a": {"type": "string", "title": "Your API key"}}), true),
            (json!({"a": {"type": "string", "description": "The access token of the site"}}), true),
            (json!({"a": {"type": "string", "format": "password"}}), true),
            (json!({"spinning": {"type": "string"}}), false),
            // Other spellings were shown to the user.
            (json!({"pass_phrase": {"type": "string"}}), true),
            (json!({"pass\u{200b}word": {"type": "string"}}), true),
            (json!({"p\u{430}ssword": {"type": "string"}}), true),
            (json!({"Kennwort": {"type": "string"}}), true),
            (json!({"otp_code": {"type": "string"}}), true),
            (json!({"a": {"type": "string", "title": "Größe in Pixeln"}}), false),
            (json!({"a": {"type": "string", "title": "Имя ветки"}}), false),
        ] {
            assert_eq!(wants_secret("Fill in", &json!({"properties": property})), expected, "{property}");
        }
    }
}
