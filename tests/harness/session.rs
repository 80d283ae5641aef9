//! A session in this process with real services: the store, HTTP to a scripted model, hooks and recipes. Its tool
//! follows the instructions in its input, unless a test asks for the built-in tools. No editor protocol is involved.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use epitome_config::WireFormat;
use epitome_files::disk::Disk;
use epitome_files::paths::Paths;
use epitome_hooks::functions::Functions;
use epitome_provider::http::Http;
use epitome_provider::learned::Learned;
use epitome_recipe::watch::RecipeWatch;
use epitome_scripted_model::{ModelStep, RecordedRequest, ScriptedModel};
use epitome_session::port::SessionPort as _;
use epitome_session::registry::{SessionServices, Sessions};
use epitome_session::suspended::REST_AFTER;
use epitome_session::{
    Attachment, Opening, Replay, SessionAnswer, SessionCommand, SessionError, SessionEvent, Ticket,
};
use epitome_store::Store;
use epitome_thread::{Content, Entry, SessionId, StopReason};
use epitome_tokens::Rulers;
use epitome_tools::reaper::Reaper;
use epitome_tools::{RunningCommands, Tool, Toolbox};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::client::TestClient;
use super::tool::Does;
use super::user::program;
use super::{WITHIN, allocations, in_turn, write_file};

/// The services of a process with the built-in tools and without a vocabulary: token counts are estimates.
pub fn services(paths: &Paths) -> SessionServices {
    // The program starts commands and hooks in a sandbox.
    let reaper = Arc::new(Reaper::with_program(program()));
    SessionServices {
        store: Store::new(paths),
        paths: paths.clone(),
        http: Http::new(),
        learned: Learned::below(&paths.data),
        toolbox: Toolbox::built_in(reaper.clone()),
        watch: RecipeWatch::new(),
        reaper,
        running: RunningCommands::default(),
        languages: Default::default(),
        rulers: Rulers::default(),
        functions: Functions::default(),
        suspend_after: REST_AFTER,
        ends_with_sessions: false,
        checkpoints: None,
    }
}

/// The runtime of sessions.
pub fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().on_thread_start(allocations::count_this_thread);
    runtime.build().expect("a runtime")
}

/// The tools of the model.
enum Tools {
    /// `does` and `bash`, which do what their input says, `recall`, and these built-in ones.
    Scripted(Vec<String>),
    BuiltIn,
}

/// The configuration of a test session.
pub struct Setup {
    files: Vec<(String, String)>,
    functions: Functions,
    format: Option<WireFormat>,
    suspend_after: Duration,
    rulers: Rulers,
    tools: Tools,
    disk: Option<Arc<dyn Disk>>,
}

impl Setup {
    pub fn new() -> Setup {
        Setup {
            files: Vec::new(),
            functions: Functions::default(),
            format: None,
            suspend_after: REST_AFTER,
            rulers: Rulers::default(),
            tools: Tools::Scripted(Vec::new()),
            disk: None,
        }
    }

    /// Files below the session's directory. `home` is the user's home directory; files that begin with `#!` are
    /// executable.
    pub fn with_files(files: &[(impl AsRef<str>, impl AsRef<str>)]) -> Setup {
        let owned = |(name, text): &(_, _)| (AsRef::<str>::as_ref(name).to_owned(), text_of(text));
        fn text_of(text: &impl AsRef<str>) -> String {
            text.as_ref().to_owned()
        }
        Setup { files: files.iter().map(owned).collect(), ..Setup::new() }
    }

    /// The user's own configuration.
    pub fn with_config(config: &str) -> Setup {
        Setup::with_files(&[("home/config.toml", config)])
    }

    /// Functions that the program registers.
    pub fn functions(self, functions: Functions) -> Setup {
        Setup { functions, ..self }
    }

    /// Configures a model for each format, all with the same script. The session starts with the model of this format;
    /// see [`model_of`].
    pub fn format(self, format: WireFormat) -> Setup {
        Setup { format: Some(format), ..self }
    }

    /// Idle time after which sessions are suspended.
    pub fn suspend_after(self, suspend_after: Duration) -> Setup {
        Setup { suspend_after, ..self }
    }

    /// Counts tokens with the vocabulary, once it is loaded.
    pub fn counts_by_vocabulary(self) -> Setup {
        Setup { rulers: Rulers::with_vocabulary(), ..self }
    }

    /// Stores the sessions on this disk instead of the machine's.
    pub fn disk(self, disk: Arc<dyn Disk>) -> Setup {
        Setup { disk: Some(disk), ..self }
    }

    /// Adds built-in tools to the scripted ones.
    pub fn tools(self, names: &[&str]) -> Setup {
        Setup { tools: Tools::Scripted(names.iter().map(|name| (*name).to_owned()).collect()), ..self }
    }

    /// Uses the built-in tools instead of the scripted ones, with the `PATH` of this process.
    pub fn built_in_tools(self) -> Setup {
        Setup { tools: Tools::BuiltIn, ..self }
    }

    /// Starts a session with a model that follows this script.
    pub fn start(
        self,
        script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static,
    ) -> TestSession {
        let model = ScriptedModel::start(script).expect("loopback");
        let directory = tempfile::tempdir().expect("a scratch directory");
        let home = directory.path().join("home");
        std::fs::create_dir_all(home.join("recipes")).expect("a directory");
        for (name, text) in &self.files {
            write_file(&directory.path().join(name), text);
        }
        if self.format.is_some() {
            let config = home.join("config.toml");
            let own = std::fs::read_to_string(&config).unwrap_or_default();
            write_file(&config, &format!("{own}{}", models_of_all_formats(&model)));
        }
        let runtime = runtime();
        let gate = Arc::new(Semaphore::new(0));
        let mut services = services(&Paths::below(&home));
        let has_path = matches!(self.tools, Tools::BuiltIn);
        if let Tools::Scripted(built_in) = &self.tools {
            services.toolbox = scripted_tools(&services.toolbox, built_in, &gate);
        }
        if let Some(disk) = self.disk {
            services.store = Store::on_disk(&services.paths.data, disk);
        }
        services = SessionServices {
            rulers: self.rulers,
            functions: self.functions,
            suspend_after: self.suspend_after,
            ends_with_sessions: false,
            ..services
        };
        let sessions = Sessions::new(services.clone(), runtime.handle().clone());
        let mut test = TestSession {
            services,
            sessions,
            model,
            session: SessionId(String::new()),
            home,
            client: TestClient::new(1),
            gate,
            tickets: 0,
            format: self.format,
            has_path,
            _directory: directory,
            runtime,
        };
        test.create(test.environment());
        test.client.until(|out| matches!(out, SessionEvent::Commands(_)).then_some(()));
        test
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup::new()
    }
}

fn scripted_tools(built_in: &Toolbox, names: &[String], gate: &Arc<Semaphore>) -> Toolbox {
    let scripted = |name| Arc::new(Does { name, gate: gate.clone() }) as Arc<dyn Tool>;
    let mut tools: Vec<Arc<dyn Tool>> = ["does", "bash"].map(scripted).into();
    let real = std::iter::once(epitome_recall::NAME).chain(names.iter().map(String::as_str));
    tools.extend(real.filter_map(|name| built_in.get(name).cloned()));
    Toolbox::new(tools)
}

/// A session with one client, and everything that they need.
pub struct TestSession {
    pub services: SessionServices,
    pub sessions: Sessions,
    pub model: ScriptedModel,
    pub session: SessionId,
    pub home: PathBuf,
    pub client: TestClient,
    gate: Arc<Semaphore>,
    tickets: u64,
    /// The wire format of the initial model, if there is a model of each format.
    format: Option<WireFormat>,
    has_path: bool,
    _directory: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl TestSession {
    /// A new session with a model that sends these replies, one per call, and then "ok".
    pub fn new(replies: Vec<Vec<ModelStep>>) -> TestSession {
        Setup::new().start(in_turn(replies))
    }

    pub fn with(script: impl FnMut(&RecordedRequest) -> Vec<ModelStep> + Send + 'static) -> TestSession {
        Setup::new().start(script)
    }

    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let anthropic =
            [("ANTHROPIC_BASE_URL", self.model.base_url()), ("ANTHROPIC_API_KEY", "sk-test-1".into())];
        let chosen = self.format.map(|format| ("EPITOME_MODEL", model_of(format).to_owned()));
        let path = self.has_path.then(|| std::env::var_os("PATH")).flatten();
        let set = anthropic.into_iter().chain(chosen).map(|(name, value)| (name.into(), value.into()));
        set.chain(path.map(|path| ("PATH".into(), path))).collect()
    }

    pub fn opening(&self, client: &TestClient, environment: Vec<(OsString, OsString)>) -> Opening {
        Opening {
            attachment: Attachment { client: client.id, outlet: client.outlet.clone() },
            cwd: self.cwd().to_path_buf(),
            directories: Vec::new(),
            mcp_servers: Vec::new(),
            environment: Arc::new(environment),
            overrides: Arc::default(),
            instructions: None,
            choices: Vec::new(),
        }
    }

    pub fn cwd(&self) -> &Path {
        self.home.parent().expect("the home is below the scratch directory")
    }

    pub fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Creates another session and switches to it.
    pub fn create(&mut self, environment: Vec<(OsString, OsString)>) {
        let opening = self.opening(&self.client, environment);
        self.create_with(opening);
    }

    pub fn create_with(&mut self, opening: Opening) {
        let ticket = self.ticket();
        self.session = self.sessions.create(ticket, opening);
        self.client.answer(ticket).expect("a session");
    }

    /// Attaches another client to the session.
    pub fn attach(&mut self, client: &TestClient, replay: Replay) {
        let ticket = self.ticket();
        let opening = self.opening(client, self.environment());
        self.sessions.attach(ticket, self.session.clone(), opening, replay);
    }

    pub fn send(&mut self, command: SessionCommand) {
        self.sessions.send(&self.session, command).expect("the session lives");
    }

    pub fn prompt(&mut self, text: &str) -> Ticket {
        self.prompt_with(vec![Content::Text { text: text.into() }])
    }

    pub fn prompt_with(&mut self, content: Vec<Content>) -> Ticket {
        let ticket = self.ticket();
        self.send(SessionCommand::Prompt { ticket, client: self.client.id, content, key: None });
        ticket
    }

    /// Sends a prompt and waits for the end of its turn.
    pub fn ask(&mut self, text: &str) -> StopReason {
        let ticket = self.prompt(text);
        self.reason(ticket)
    }

    #[track_caller]
    pub fn reason(&mut self, ticket: Ticket) -> StopReason {
        match self.client.answer(ticket) {
            Ok(SessionAnswer::TurnEnded { reason, .. }) => reason,
            other => panic!("a turn's end was expected: {other:?}"),
        }
    }

    pub fn choose(&mut self, option: &str, value: &str) -> Result<SessionAnswer, SessionError> {
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
        self.client.until(|out| matches!(out, SessionEvent::Commands(_)).then_some(()));
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

    /// Waits for a future; panics after [`WITHIN`].
    #[track_caller]
    pub fn wait_for<T>(&self, work: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(WITHIN, work).await };
        self.runtime.block_on(bounded).expect("it did not come")
    }

    pub fn journal(&self) -> PathBuf {
        self.services.paths.data.join("journals").join(format!("{}.jsonl", self.session))
    }

    /// The log as stored on disk.
    pub fn log(&self) -> Vec<Arc<Entry>> {
        Store::new(&self.services.paths).read(&self.session).expect("a whole log")
    }

    /// The last request to the model.
    pub fn last_request(&self) -> RecordedRequest {
        self.model.requests().pop().expect("a request")
    }
}

impl Drop for TestSession {
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

/// A call of the tool that does what its input says; `id`s are `toolu_1`, `toolu_2`, ….
pub fn call(input: Value) -> ModelStep {
    super::call("does", input)
}

/// The model of a format in a [`Setup::format`].
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
