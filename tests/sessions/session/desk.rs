//! A test bench for sessions: real sessions, store and HTTP, a scripted model, and a tool that does what its
//! input says. It knows no editor protocol.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use epitome::config::WireFormat;
use epitome::hooks::functions::Functions;
use epitome::paths::Paths;
use epitome::provider::http::Http;
use epitome::recipe::watch::RecipeWatch;
use epitome::session::registry::{Services, Sessions};
use epitome::session::resting::REST_AFTER;
use epitome::session::{
    Answer, Attachment, ClientId, Offers, Opening, Out, Outlet, Replay, SessionCommand, SessionError, Ticket,
};
use epitome::store::Store;
use epitome::thread::{
    Card, Change, Content, Entry, Location, OutcomeContent, OutcomeStatus, SessionId, Shown, StopReason,
    ToolSpec,
};
use epitome::tokens::Rulers;
use epitome::tools::{Access, BoxFuture, Tool, ToolContext, ToolResult, Toolbox, Workspace};
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// Nothing on loopback takes this long; a test that waits longer has failed.
const WITHIN: Duration = Duration::from_secs(20);

/// A client of one session, and everything that it needs.
pub struct Desk {
    pub services: Services,
    pub sessions: Sessions,
    pub model: ScriptedModel,
    pub session: SessionId,
    pub home: PathBuf,
    pub client: Client,
    gate: Arc<Semaphore>,
    tickets: u64,
    /// The wire format of the initial model, if there is a model of each format.
    format: Option<WireFormat>,
    _directory: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

/// A client with the events that it received.
pub struct Client {
    pub id: ClientId,
    news: Receiver<Out>,
    outlet: Arc<Tray>,
    pub seen: Vec<Out>,
}

struct Tray {
    news: Mutex<Sender<Out>>,
    offers: Mutex<Offers>,
}

impl Outlet for Tray {
    fn put(&self, _: &SessionId, out: Out) {
        // A finished test has dropped the receiver.
        drop(self.news.lock().expect("no panic under it").send(out));
    }

    fn offers(&self) -> Offers {
        *self.offers.lock().expect("no panic under it")
    }
}

impl Client {
    pub fn new(id: u64) -> Client {
        let (sender, news) = channel();
        let outlet = Tray { news: Mutex::new(sender), offers: Mutex::default() };
        Client { id: ClientId(id), news, outlet: Arc::new(outlet), seen: Vec::new() }
    }

    /// Declares the editor features of the client from now on.
    pub fn offers(&self, offers: Offers) {
        *self.outlet.offers.lock().expect("no panic under it") = offers;
    }

    /// Waits for an event of this kind; also searches earlier events that no test has consumed.
    pub fn until<T>(&mut self, wanted: impl Fn(&Out) -> Option<T>) -> T {
        for at in 0.. {
            if at == self.seen.len() {
                let news = self.news.recv_timeout(WITHIN);
                self.seen
                    .push(news.unwrap_or_else(|_| panic!("it did not come; so far {}", told(&self.seen))));
            }
            if let Some(found) = wanted(&self.seen[at]) {
                self.seen.remove(at);
                return found;
            }
        }
        unreachable!("the loop ends by what it waits for")
    }

    pub fn answer(&mut self, wanted: Ticket) -> Result<Answer, SessionError> {
        self.until(|out| match out {
            Out::Answer { ticket, answer } if *ticket == wanted => Some(answer.clone()),
            _ => None,
        })
    }

    pub fn entry<T>(&mut self, wanted: impl Fn(&Change) -> Option<T>) -> T {
        self.until(|out| match out {
            Out::Entry { entry, .. } => wanted(&entry.change),
            _ => None,
        })
    }
}

impl Desk {
    /// A new session with a model that sends these replies, one per call, and then "ok".
    pub fn new(replies: Vec<Vec<ModelStep>>) -> Desk {
        let mut replies = VecDeque::from(replies);
        Desk::with(move |_| replies.pop_front().unwrap_or_else(|| vec![ModelStep::Text("ok".into())]))
    }

    pub fn with(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> Desk {
        Desk::with_recipes(&[], script)
    }

    /// The same for a user with these recipes.
    pub fn with_recipes(
        recipes: &[(&str, &str)],
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> Desk {
        let files: Vec<(String, String)> =
            recipes.iter().map(|(name, text)| (format!("home/recipes/{name}"), (*text).to_owned())).collect();
        Desk::set(&files, Functions::default(), script)
    }

    /// The same with these files below the session's directory, of which `home` is the user's; files that
    /// begin with `#!` are executable. The program registers these functions.
    pub fn set(
        files: &[(String, String)],
        functions: Functions,
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> Desk {
        Desk::start(files, functions, None, REST_AFTER, &[], script)
    }

    /// The same with subagents that the model can start.
    pub fn with_agents(
        files: &[(String, String)],
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> Desk {
        Desk::start(files, Functions::default(), None, REST_AFTER, &[epitome::tools::task::NAME], script)
    }

    /// The same with a model of each format, all with the same script, starting with this one; see
    /// [`model_of`].
    pub fn of_format(
        format: WireFormat,
        files: &[(String, String)],
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> Desk {
        Desk::start(files, Functions::default(), Some(format), REST_AFTER, &[], script)
    }

    /// The same with these files and sessions that are suspended after this idle time.
    pub fn that_rests(
        rest_after: Duration,
        files: &[(String, String)],
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> Desk {
        Desk::start(files, Functions::default(), None, rest_after, &[], script)
    }

    /// The same with these files, and token counts by the vocabulary once it is loaded.
    pub fn that_counts(
        files: &[(String, String)],
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> Desk {
        Desk::counting(Rulers::with_vocabulary(), files, Functions::default(), None, REST_AFTER, &[], script)
    }

    /// The same with these files, and these built-in tools in addition to its own.
    pub fn with_tools(names: &[&str], files: &[(&str, &str)], replies: Vec<Vec<ModelStep>>) -> Desk {
        let files: Vec<(String, String)> =
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let mut replies = VecDeque::from(replies);
        let script = move |_: &RecordedRequest| {
            replies.pop_front().unwrap_or_else(|| vec![ModelStep::Text("ok".into())])
        };
        Desk::start(&files, Functions::default(), None, REST_AFTER, names, script)
    }

    fn start(
        files: &[(String, String)],
        functions: Functions,
        format: Option<WireFormat>,
        rest_after: Duration,
        real_tools: &[&str],
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> Desk {
        Desk::counting(Rulers::default(), files, functions, format, rest_after, real_tools, script)
    }

    fn counting(
        rulers: Rulers,
        files: &[(String, String)],
        functions: Functions,
        format: Option<WireFormat>,
        rest_after: Duration,
        real_tools: &[&str],
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> Desk {
        let model = ScriptedModel::start(script).expect("loopback");
        let directory = tempfile::tempdir().expect("a scratch directory");
        let home = directory.path().join("home");
        std::fs::create_dir_all(home.join("recipes")).expect("a directory");
        for (name, text) in files {
            put(&directory.path().join(name), text);
        }
        if format.is_some() {
            put(&home.join("config.toml"), &models_of_all_formats(&model));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let paths = Paths::below(&home);
        let gate = Arc::new(Semaphore::new(0));
        let mut tools: Vec<Arc<dyn Tool>> =
            ["does", "bash"].map(|name| Arc::new(Does { name, gate: gate.clone() }) as Arc<dyn Tool>).into();
        let built_in = Toolbox::built_in(Arc::new(epitome::tools::reaper::Reaper::none()));
        let real = [epitome::recall::NAME].iter().chain(real_tools);
        tools.extend(real.filter_map(|name| built_in.get(name).cloned()));
        let services = Services {
            store: Store::new(&paths),
            paths,
            http: Http::new(),
            learned: epitome::provider::learned::Learned::below(&home.join("data")),
            toolbox: Toolbox::new(tools),
            watch: RecipeWatch::new(),
            reaper: Arc::new(epitome::tools::reaper::Reaper::none()),
            rulers,
            functions,
            rest_after,
            checkpoints: None,
        };
        let sessions = Sessions::new(services.clone(), runtime.handle().clone());
        let mut desk = Desk {
            services,
            sessions,
            model,
            session: SessionId(String::new()),
            home,
            client: Client::new(1),
            gate,
            tickets: 0,
            format,
            _directory: directory,
            runtime,
        };
        let ticket = desk.ticket();
        let opening = desk.opening(&desk.client, desk.environment());
        desk.session = desk.sessions.create(ticket, opening);
        desk.client.answer(ticket).expect("a session");
        desk.client.until(|out| matches!(out, Out::Commands(_)).then_some(()));
        desk
    }

    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let anthropic =
            [("ANTHROPIC_BASE_URL", self.model.base_url()), ("ANTHROPIC_API_KEY", "sk-test-1".into())];
        let chosen = self.format.map(|format| ("EPITOME_MODEL", model_of(format).to_owned()));
        anthropic.into_iter().chain(chosen).map(|(name, value)| (name.into(), value.into())).collect()
    }

    pub fn opening(&self, client: &Client, environment: Vec<(OsString, OsString)>) -> Opening {
        Opening {
            attachment: Attachment { client: client.id, outlet: client.outlet.clone() },
            cwd: self.cwd().to_path_buf(),
            directories: Vec::new(),
            mcp_servers: Vec::new(),
            environment: Arc::new(environment),
            overrides: Arc::default(),
        }
    }

    pub fn cwd(&self) -> &Path {
        self.home.parent().expect("the home is below the scratch directory")
    }

    pub fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    pub fn send(&mut self, command: SessionCommand) {
        self.sessions.send(&self.session, command).expect("the session lives");
    }

    pub fn prompt(&mut self, text: &str) -> Ticket {
        self.prompt_with(vec![Content::Text { text: text.into() }])
    }

    pub fn prompt_with(&mut self, content: Vec<Content>) -> Ticket {
        let ticket = self.ticket();
        self.send(SessionCommand::Prompt { ticket, client: self.client.id, content });
        ticket
    }

    /// Sends a prompt and waits for the end of its turn.
    pub fn ask(&mut self, text: &str) -> StopReason {
        let ticket = self.prompt(text);
        self.reason(ticket)
    }

    pub fn reason(&mut self, ticket: Ticket) -> StopReason {
        match self.client.answer(ticket) {
            Ok(Answer::TurnEnded { reason, .. }) => reason,
            other => panic!("a turn's end was expected: {other:?}"),
        }
    }

    pub fn choose(&mut self, option: &str, value: &str) -> Result<Answer, SessionError> {
        let ticket = self.ticket();
        let client = self.client.id;
        let (option, value) = (option.to_owned(), value.to_owned());
        self.send(SessionCommand::SetOption { ticket, client, option, value });
        self.client.answer(ticket)
    }

    /// Closes the session and loads it again from its log, with this environment.
    pub fn reload(&mut self, environment: Vec<(OsString, OsString)>) {
        let ticket = self.ticket();
        self.send(SessionCommand::Close { ticket, client: self.client.id });
        self.client.answer(ticket).expect("it closes");
        self.client.seen.clear();
        self.load(environment);
    }

    pub fn load(&mut self, environment: Vec<(OsString, OsString)>) {
        let ticket = self.ticket();
        let opening = self.opening(&self.client, environment);
        self.sessions.attach(ticket, self.session.clone(), opening, Replay::Nothing);
        self.client.answer(ticket).expect("it loads");
        self.client.until(|out| matches!(out, Out::Commands(_)).then_some(()));
    }

    /// Lets one waiting tool continue.
    pub fn release_tool(&self) {
        self.gate.add_permits(1);
    }

    /// Runs code that needs the runtime's signals or timers.
    pub fn on_runtime<T>(&self, run: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        run()
    }

    /// Runs a future in the background.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Waits for a future; a test that waits longer than [`WITHIN`] has failed.
    pub fn wait_for<T>(&self, work: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(WITHIN, work).await };
        self.runtime.block_on(bounded).expect("it did not come")
    }

    pub fn journal(&self) -> PathBuf {
        Paths::below(&self.home).data.join("journals").join(format!("{}.jsonl", self.session))
    }

    /// The log as stored on disk.
    pub fn log(&self) -> Vec<Arc<Entry>> {
        Store::new(&Paths::below(&self.home)).read(&self.session).expect("a whole log")
    }

    /// The last request to the model.
    pub fn last_request(&self) -> RecordedRequest {
        self.model.requests().pop().expect("a request")
    }
}

impl Drop for Desk {
    /// No test may pass with requests that the real services would reject.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(
                self.model.refusals(),
                Vec::<String>::new(),
                "what was sent breaks the provider's rules"
            );
        }
    }
}

/// The model of a format on a desk with one of each.
pub fn model_of(format: WireFormat) -> &'static str {
    match format {
        WireFormat::AnthropicMessages => "anthropic/claude-sonnet-5-5",
        WireFormat::OpenAiResponses => "responses/gpt-6-astra",
        WireFormat::OpenAiChat => "chat/gpt-4.1",
        WireFormat::Gemini => "google/gemini-4-argon",
    }
}

fn models_of_all_formats(model: &ScriptedModel) -> String {
    let sections = WireFormat::ALL.map(|format| {
        let base_url = match format {
            WireFormat::AnthropicMessages | WireFormat::Gemini => model.base_url(),
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat => model.openai_base_url(),
        };
        let (name, id) = (model_of(format), format.id());
        let (provider, _) = name.split_once('/').expect("a provider's model");
        let place = match format {
            // It is configured by default.
            WireFormat::AnthropicMessages => String::new(),
            WireFormat::OpenAiResponses | WireFormat::OpenAiChat | WireFormat::Gemini => {
                format!("[providers.{provider}]\nwire = \"{id}\"\nbase_url = \"{base_url}\"\n")
            }
        };
        format!("{place}[models.\"{name}\"]\ncontext_window = 200000\n")
    });
    sections.concat()
}

/// Writes a file, creating its folders; a file that begins with `#!` is executable.
pub fn put(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("it is below something")).expect("a directory");
    std::fs::write(path, text).expect("a file");
    let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
}

/// A short description of each event.
fn told(seen: &[Out]) -> String {
    let lines =
        seen.iter().map(|out| format!("\n{}", format!("{out:?}").chars().take(160).collect::<String>()));
    lines.collect()
}

/// A call of the tool that does what its input says; `id`s are `toolu_1`, `toolu_2`, ….
pub fn call(input: Value) -> ModelStep {
    ModelStep::Call { name: "does".into(), input }
}

pub fn text(text: &str) -> ModelStep {
    ModelStep::Text(text.into())
}

/// `{"do": "wait" | "panic" | "say", "bytes": 10, "says": "a text", "prints": "live", "image": true, "asks":
/// "nothing" | "person" | "the impossible", "preview": "panic", "touches": "a path", "whole_repeats": "the
/// text that is stored in full, without its dashes"}`
struct Does {
    name: &'static str,
    gate: Arc<Semaphore>,
}

impl Tool for Does {
    fn spec(&self) -> ToolSpec {
        let schema = json!({"type": "object", "properties": {}});
        ToolSpec { name: self.name.into(), description: "Does what it is told.".into(), schema }
    }

    fn card(&self, input: &Value, workspace: &Workspace) -> Card {
        let touched = input["touches"].as_str().map(|path| workspace.resolve(path));
        let locations = touched.map(|path| Location { path, line: None }).into_iter().collect();
        Card { title: "Doing".into(), locations, ..Card::default() }
    }

    fn access(&self, input: &Value, _: &Workspace) -> Result<Access, String> {
        match input["asks"].as_str() {
            Some("person") => Ok(Access::Command { line: "do".into(), confined: true, changes_git: false }),
            Some("the impossible") => Err("that can't be done".into()),
            _ => Ok(Access::Nothing),
        }
    }

    fn preview(&self, input: &Value, _: ToolContext) -> BoxFuture<Vec<Shown>> {
        assert_ne!(input["preview"], "panic", "the tool was told to panic");
        Box::pin(async { Vec::new() })
    }

    fn run(&self, input: Value, context: ToolContext) -> BoxFuture<ToolResult> {
        let gate = self.gate.clone();
        Box::pin(async move {
            assert_ne!(input["do"], "panic", "the tool was told to panic");
            if let Some(live) = input["prints"].as_str() {
                (context.progress)(live.to_owned());
            }
            if input["do"] == "wait" || input["command"].as_str().is_some_and(|line| line.contains("wait")) {
                gate.acquire().await.expect("the gate stays").forget();
            }
            let bytes = input["bytes"].as_u64().unwrap_or(4);
            let words = "done ".repeat(usize::try_from(bytes / 5 + 1).expect("a small number"));
            let words = input["says"].as_str().map_or(words, str::to_owned);
            let repeated = |text: &str| format!("{}\n", text.replace('-', "")).repeat(10_000);
            let whole = input["whole_repeats"].as_str().map(repeated);
            let mut result =
                ToolResult { status: OutcomeStatus::Completed, whole, ..ToolResult::completed(words) };
            if input["image"] == true {
                let image = OutcomeContent::Image { mime_type: "image/png".into(), data: "aGk=".into() };
                result.content.push(image);
            }
            result
        })
    }
}
