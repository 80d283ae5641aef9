//! One running language server.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc::{self, PermitIterator};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use super::finding::Diagnostic;
use super::known::{Installed, LOAD_FAILED, RUST_ANALYZER};
use super::wire;
use epitome_platform::file_uri;
use epitome_platform::group::{EndPolicy, RunningCommand};
use epitome_platform::os::{AsFd as _, NULL_DEVICE};
use epitome_platform::pipe;
use epitome_platform::reaper::Reaper;
use epitome_tools::Workspace;
use epitome_tools::sandbox::{GitChanges, SandboxRules, confinement};

/// Timeout for `initialize`. rust-analyzer takes a minute to load a large workspace, but answers this request
/// immediately.
const INITIALIZE_TIME_MAX: Duration = Duration::from_secs(45);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);
/// Findings count as complete when none have been published for this long.
pub(super) const QUIET: Duration = Duration::from_millis(400);
/// Maximum queued messages to the server. A message may contain a whole file.
pub(super) const OUTBOX_MAX: usize = 16;
/// Maximum files that are open in the server; the least recently checked one is closed first.
pub(super) const OPEN_MAX: usize = 200;
const PENDING_MAX: usize = 64;
const WORKING_MAX: usize = 256;
/// The token for rust-analyzer's own report of its state, which begins before its first work.
const STATUS: &str = "status";
const FILES_MAX: usize = 2_000;

pub struct LanguageServer {
    outbox: mpsc::Sender<Vec<u8>>,
    next: AtomicI64,
    has_ended: AtomicBool,
    state: Mutex<LanguageServerState>,
    published: Notify,
    running: RunningCommand,
}

#[derive(Default)]
struct LanguageServerState {
    pending: HashMap<i64, oneshot::Sender<Result<Value, String>>>,
    open: HashMap<PathBuf, OpenFile>,
    /// Keyed by URI.
    findings: HashMap<String, Published>,
    last_used: Option<Instant>,
    /// Tokens of work that the server reports, such as loading the workspace, and when it last reported any.
    working: HashSet<String>,
    worked_at: Option<Instant>,
    /// The version of the text that was sent last. Counts for all files, so that no reopened file gets an old number.
    version: i64,
}

struct OpenFile {
    version: i64,
    text: String,
    sent_at: Instant,
    checked_at: Instant,
}

struct Published {
    version: Option<i64>,
    findings: Vec<Diagnostic>,
    at: Instant,
}

impl LanguageServer {
    /// Starts a server in a workspace, in the sandbox for commands if that is enabled. The error is a clause.
    pub async fn start(
        installed: &Installed,
        workspace: &Arc<Workspace>,
        rules: &SandboxRules,
        reaper: &Arc<Reaper>,
    ) -> Result<Arc<LanguageServer>, String> {
        let (program, name) = (installed.program.clone(), installed.server.name);
        let (arguments, rules) = (installed.arguments(), rules.clone());
        let (in_workspace, reaper) = (workspace.clone(), reaper.clone());
        let spawned =
            tokio::task::spawn_blocking(move || spawn(&program, arguments, &in_workspace, &rules, &reaper));
        let started = spawned.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let failed = |why: &dyn std::fmt::Display| format!("{name} could not be started: {why}");
        let (running, mut output, input) = started.map_err(|error| failed(&error))?;
        let (outbox, mut queued) = mpsc::channel::<Vec<u8>>(OUTBOX_MAX);
        let client = Arc::new(LanguageServer {
            outbox,
            next: AtomicI64::new(1),
            has_ended: AtomicBool::new(false),
            state: Mutex::default(),
            published: Notify::new(),
            running,
        });
        tokio::spawn(async move {
            while let Some(message) = queued.recv().await {
                if output.write_all(&message).await.is_err() {
                    break;
                }
            }
        });
        let reader = Arc::downgrade(&client);
        tokio::spawn(async move {
            let mut input = BufReader::new(input);
            loop {
                let message = wire::read(&mut input).await;
                let Some(client) = reader.upgrade() else { break };
                match message {
                    Ok(Some(message)) => client.received(&message),
                    Ok(None) | Err(_) => {
                        client.ended();
                        break;
                    }
                }
            }
        });
        let root = file_uri::of(&workspace.cwd);
        let folder = json!({ "uri": root, "name": "workspace" });
        let asked = json!({
            "processId": null,
            "clientInfo": { "name": "epitome" },
            "rootUri": root,
            "workspaceFolders": [folder],
            "initializationOptions": options(name),
            "capabilities": {
                "textDocument": {
                    "synchronization": { "didSave": true },
                    "publishDiagnostics": { "versionSupport": true },
                    "definition": {},
                    "references": {},
                },
                "workspace": { "configuration": true, "workspaceFolders": true },
                "window": { "workDoneProgress": true },
                "experimental": { "serverStatusNotification": true },
            },
        });
        let initialized = timeout(INITIALIZE_TIME_MAX, client.request("initialize", asked)).await;
        initialized
            .unwrap_or_else(|_| Err(format!("no answer within {} s", INITIALIZE_TIME_MAX.as_secs())))
            .map_err(|why| failed(&why))?;
        if name == RUST_ANALYZER {
            client.report_work(STATUS, true);
        }
        client.send(&json!({ "jsonrpc": "2.0", "method": "initialized", "params": {} })).await;
        Ok(client)
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// The time since the last request.
    pub fn idle_for(&self) -> Duration {
        self.state.lock().last_used.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Sends a file's text to the server unless it has it already, and waits at most `wait` for the findings. `None` if
    /// nothing has been published for this text: the server is still working, or has nothing to report.
    pub async fn check(
        &self,
        path: &Path,
        language: &str,
        text: &str,
        wait: Duration,
    ) -> Option<Vec<Diagnostic>> {
        let asked_at = Instant::now();
        let (version, sent_at) = self.show(path, language, text).await?;
        self.settled(&file_uri::of(path), version, sent_at, asked_at + wait).await
    }

    /// Sends a file's text to the server unless it has it already. Returns the text's version and when it was sent;
    /// `None` if the server has ended.
    async fn show(&self, path: &Path, language: &str, text: &str) -> Option<(i64, Instant)> {
        // Room for all messages first: then they are sent in the order of their versions, and never only some of them.
        let mut room = self.room(3).await?;
        let now = Instant::now();
        let mut state = self.state.lock();
        state.last_used = Some(now);
        if let Some(open) = state.open.get_mut(path).filter(|open| open.text == text) {
            open.checked_at = now;
            return Some((open.version, open.sent_at));
        }
        let mut notify = |method: &str, params: Value| {
            if let Some(room) = room.next() {
                room.send(wire::frame(&json!({ "jsonrpc": "2.0", "method": method, "params": params })));
            }
        };
        state.version += 1;
        let version = state.version;
        let open = OpenFile { version, text: text.to_owned(), sent_at: now, checked_at: now };
        let own = file_uri::of(path);
        if state.open.insert(path.to_path_buf(), open).is_some() {
            let changed = json!({
                "textDocument": { "uri": own, "version": version }, "contentChanges": [{ "text": text }],
            });
            notify("textDocument/didChange", changed);
        } else {
            let document = json!({ "uri": own, "languageId": language, "version": version, "text": text });
            notify("textDocument/didOpen", json!({ "textDocument": document }));
        }
        notify("textDocument/didSave", json!({ "textDocument": { "uri": own }, "text": text }));
        if state.open.len() > OPEN_MAX
            && let Some(oldest) = state.open.iter().min_by_key(|(_, open)| open.checked_at)
        {
            let oldest = oldest.0.clone();
            state.open.remove(&oldest);
            state.findings.remove(&file_uri::of(&oldest));
            notify("textDocument/didClose", json!({ "textDocument": { "uri": file_uri::of(&oldest) } }));
        }
        Some((version, now))
    }

    /// Waits until the server reports no work in progress: before, its findings are incomplete, and so are places. Returns
    /// `false` if that takes longer than `wait`.
    pub async fn is_idle_within(&self, wait: Duration) -> bool {
        let idle = self.wait_for(Instant::now() + wait, |state| match state.worked_at.map(|at| at + QUIET) {
            _ if !state.working.is_empty() => Err(None),
            Some(quiet_at) if quiet_at > Instant::now() => Err(Some(quiet_at)),
            Some(_) | None => Ok(()),
        });
        idle.await.is_some()
    }

    /// Waits until the findings for a text have been published and no more follow.
    async fn settled(
        &self,
        uri: &str,
        version: i64,
        since: Instant,
        until: Instant,
    ) -> Option<Vec<Diagnostic>> {
        let settled = self.wait_for(until, |state| {
            // With a version, findings must be for that text; without one, they must have arrived after it was sent.
            let found = state.findings.get(uri).filter(|published| match published.version {
                Some(published) => published >= version,
                None => published.at >= since,
            });
            match found {
                Some(found) if found.at.elapsed() >= QUIET => Ok(found.findings.clone()),
                found => Err(found.map(|found| found.at + QUIET)),
            }
        });
        settled.await.or_else(|| {
            let state = self.state.lock();
            let found = state.findings.get(uri).filter(|published| published.at >= since);
            found.map(|found| found.findings.clone())
        })
    }

    /// Waits until `look` finds something in the state; `None` when `until` has passed or the server has ended. `look`
    /// may say when it wants to look again, although there is no news.
    async fn wait_for<T>(
        &self,
        until: Instant,
        look: impl Fn(&LanguageServerState) -> Result<T, Option<Instant>>,
    ) -> Option<T> {
        loop {
            let news = self.published.notified();
            let looked = look(&self.state.lock());
            let again = match looked {
                Ok(found) => return Some(found),
                Err(again) => again.map_or(until, |at| at.min(until)),
            };
            if Instant::now() >= until || self.has_ended() {
                return None;
            }
            tokio::select! {
                () = news => {}
                () = tokio::time::sleep_until(again) => {}
            }
        }
    }

    pub async fn request(&self, method: &str, params: Value) -> Result<Value, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state.lock();
            state.last_used = Some(Instant::now());
            if self.has_ended() || state.pending.len() >= PENDING_MAX {
                return Err("it has ended, or does not answer".to_owned());
            }
            state.pending.insert(id, answer);
        }
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        let limit = if method == "initialize" { INITIALIZE_TIME_MAX } else { ANSWER_TIME_MAX };
        let answer = timeout(limit, answered).await;
        self.state.lock().pending.remove(&id);
        match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err("it ended".to_owned()),
            Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
        }
    }

    /// Waits for room for this many messages; `None` if the server has ended. A server that does not read is ended: its
    /// callers would wait forever.
    async fn room(&self, messages: usize) -> Option<PermitIterator<'_, Vec<u8>>> {
        let room = timeout(ANSWER_TIME_MAX, self.outbox.reserve_many(messages)).await;
        if room.is_err() {
            tracing::warn!("a language server does not read what it is sent, and is ended");
            self.running.end();
            self.ended();
        }
        room.ok()?.ok().filter(|_| !self.has_ended())
    }

    async fn send(&self, message: &Value) {
        // The reader detects that a server has ended.
        if let Some(room) = self.room(1).await {
            room.for_each(|room| room.send(wire::frame(message)));
        }
    }

    fn received(&self, message: &Value) {
        match (message["method"].as_str(), message.get("id")) {
            (Some(method), Some(id)) => self.answer(method, id, &message["params"]),
            (Some("textDocument/publishDiagnostics"), None) => self.publish(&message["params"]),
            (Some("$/progress"), None) => {
                let params = &message["params"];
                match params["value"]["kind"].as_str() {
                    Some("begin") if params["value"]["title"] == LOAD_FAILED => {}
                    Some("begin") => self.report_work(&params["token"].to_string(), true),
                    Some("end") => self.report_work(&params["token"].to_string(), false),
                    _ => {}
                }
            }
            (Some("experimental/serverStatus"), None) => {
                self.report_work(STATUS, message["params"]["quiescent"] == false);
            }
            (Some(_), None) => {}
            (None, Some(id)) => {
                let pending = id.as_i64().and_then(|id| self.state.lock().pending.remove(&id));
                let answer = match message.get("error") {
                    Some(error) => Err(error["message"].as_str().unwrap_or("it failed").to_owned()),
                    None => Ok(message["result"].clone()),
                };
                // The caller may have been dropped.
                if let Some(pending) = pending {
                    drop(pending.send(answer));
                }
            }
            (None, None) => {}
        }
    }

    /// Answers a request of the server; some servers wait for the response.
    fn answer(&self, method: &str, id: &Value, params: &Value) {
        let result = match method {
            "workspace/configuration" => {
                let items = params["items"].as_array().map_or(0, Vec::len);
                Some(Value::Array(vec![Value::Null; items]))
            }
            "client/registerCapability"
            | "client/unregisterCapability"
            | "window/workDoneProgress/create"
            | "workspace/diagnostic/refresh"
            | "workspace/workspaceFolders" => Some(Value::Null),
            // Servers may not edit files.
            "workspace/applyEdit" => Some(json!({ "applied": false })),
            _ => None,
        };
        let answer = match result {
            Some(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            None => {
                let error = json!({ "code": -32601, "message": "not supported" });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            }
        };
        // A server that sends more requests than it reads responses gets none.
        drop(self.outbox.try_send(wire::frame(&answer)));
    }

    fn report_work(&self, token: &str, begins: bool) {
        let mut state = self.state.lock();
        if !begins {
            state.working.remove(token);
        } else if state.working.len() < WORKING_MAX {
            state.working.insert(token.to_owned());
        }
        state.worked_at = Some(Instant::now());
        drop(state);
        self.published.notify_waiters();
    }

    fn publish(&self, params: &Value) {
        let Some(uri) = params["uri"].as_str() else { return };
        let listed = params["diagnostics"].as_array().map(Vec::as_slice).unwrap_or_default();
        let findings = listed.iter().map(Diagnostic::read).collect();
        let published = Published { version: params["version"].as_i64(), findings, at: Instant::now() };
        let mut state = self.state.lock();
        if state.findings.len() >= FILES_MAX && !state.findings.contains_key(uri) {
            state.findings.clear();
        }
        state.findings.insert(decoded(uri), published);
        drop(state);
        self.published.notify_waiters();
    }

    fn ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.state.lock().pending.clear();
        self.published.notify_waiters();
    }
}

/// Ends the server and all its child processes.
impl Drop for LanguageServer {
    fn drop(&mut self) {
        self.running.end();
    }
}

fn options(server: &str) -> Value {
    match server {
        // By default, its checks and the agent's builds block each other on the target directory.
        RUST_ANALYZER => json!({ "cargo": { "targetDir": true } }),
        // By default, while a project is loaded, a second process answers that knows only the open files: uses in
        // other files are missing then, without a sign of it.
        "typescript-language-server" => json!({ "tsserver": { "useSyntaxServer": "never" } }),
        _ => Value::Null,
    }
}

/// Starts the program with pipes to its standard input and from its output. Blocks. Must be called within a runtime.
fn spawn(
    program: &Path,
    arguments: &[&str],
    workspace: &Workspace,
    rules: &SandboxRules,
    reaper: &Arc<Reaper>,
) -> io::Result<(RunningCommand, pipe::Sender, pipe::Receiver)> {
    let (to_server, input) = pipe::to_child()?;
    let (from_server, output) = pipe::from_child()?;
    let mut command = Command::new(program);
    command.args(arguments);
    let environment = workspace.exposure().for_commands(&workspace.environment);
    command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    command.env("PWD", &workspace.cwd);
    let sandbox = rules.enabled.then(|| confinement(rules, workspace, GitChanges::None)).flatten();
    let running = match sandbox {
        Some(sandbox) => {
            let nowhere = File::options().read(true).write(true).open(NULL_DEVICE)?;
            let streams = [input.as_fd(), output.as_fd(), nowhere.as_fd()];
            reaper.spawn_confined(&command, streams, EndPolicy::Terminate, sandbox.confinement)?
        }
        None => {
            command.current_dir(&workspace.cwd).stderr(Stdio::null());
            command.stdin(Stdio::from(input)).stdout(Stdio::from(output));
            reaper.spawn_marked(&mut command)?
        }
    };
    Ok((running, to_server, from_server))
}

/// Normalizes a URI's percent-encoding to that of `file_uri`, as servers differ in what they escape.
fn decoded(written: &str) -> String {
    file_uri::path(written).map_or_else(|| written.to_owned(), |path| file_uri::of(&path))
}
