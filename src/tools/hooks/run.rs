//! Runs the hooks of an event: gets the next runs from the chain, runs them, and reports their results to it.
//!
//! Results are not interpreted here. Any error in running a hook, including a bug in Epitome, is a failure of
//! that run only.

use super::read::shown;
use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, info_span};

use super::aside::AsideHooks;
use super::chain::{Chain, ChainLink, ChainRun};
use super::claude::action::{self, ClaudeAction};
use super::digest::ApprovedScript;
use super::event::HookEvent;
use super::hook::{Hook, HookKind};
use super::hook_context::HookContext;
use super::output::{ProcessExit, RawOutcome, Resolution};
use super::payload::{Addressee, PROTOCOL, payload};
use super::process::{self, HookProgram, HookSandbox, ProcessSpec};
use super::resident::{HookServices, Resident, Residents};
use super::transcript::Transcript;
use super::webhook::{self, Webhook};
use super::{claude, digest, handlers};
use epitome_platform::reaper::Reaper;
use epitome_platform::timing::TimedSpan;
use epitome_provider::http::Http;
use epitome_tools::sandbox::SandboxRules;

/// Maximum concurrent hooks of one group. Users have a handful.
const CONCURRENT_MAX: usize = 8;

/// The resources for running a session's hooks. Cheap to clone.
#[derive(Clone)]
pub struct Runner {
    /// The session's id.
    pub session: String,
    /// Working directory and environment of hooks, and the functions of the embedding program.
    pub at: handlers::HandlerContext,
    pub reaper: Arc<Reaper>,
    /// The rules for hooks of a repository.
    pub sandbox: Arc<SandboxRules>,
    pub http: Http,
    /// Lives as long as the session.
    pub residents: Arc<Residents>,
    /// Hooks that run in the background. Lives as long as the session.
    pub aside: Arc<AsideHooks>,
    /// Lives as long as the session.
    pub transcript: Arc<Transcript>,
    /// The calls available to resident hooks.
    pub services: Arc<dyn HookServices>,
}

/// Runs a chain to its end. Dropping the future terminates every process that it started, except resident
/// ones.
pub async fn perform(runner: &Runner, mut chain: Chain) -> Resolution {
    let (transcript, event) = (OnceCell::new(), chain.event());
    while let Some(runs) = chain.next() {
        let results = stream::iter(runs.into_iter().map(|run| timed(runner, run, &transcript)));
        chain.record_results(results.buffered(CONCURRENT_MAX).collect().await);
    }
    let mut resolution = chain.finish();
    if event == HookEvent::SessionStart {
        resolution.exports = runner.transcript.exports().await;
    }
    resolution
}

/// The path of the transcript, written at most once per event, or why it could not be written.
type WrittenTranscript = OnceCell<io::Result<PathBuf>>;

async fn timed(runner: &Runner, run: ChainRun, transcript: &WrittenTranscript) -> (RawOutcome, Duration) {
    let begun = Instant::now();
    let mut logged = in_log(&run);
    let perform = AssertUnwindSafe(perform_one(runner, &run, transcript)).catch_unwind();
    let ran = perform.instrument(logged.span().clone()).await;
    let ran = ran.unwrap_or_else(|_| {
        tracing::error!(hook = run.link.name(), "running a hook panicked");
        RawOutcome::Failed("running it hit a bug in Epitome; the log has the details".to_owned())
    });
    logged.end(&ended(&ran));
    (ran, begun.elapsed())
}

/// The log span of a run. The compaction trigger runs every round and is not logged.
fn in_log(run: &ChainRun) -> TimedSpan {
    if run.link.is_compact_trigger() {
        return TimedSpan::new(Span::none());
    }
    TimedSpan::new(info_span!("hook", name = run.link.name(), event = run.event_name, outcome = Empty))
}

/// How a run ended, without its output.
fn ended(ran: &RawOutcome) -> Cow<'static, str> {
    match ran {
        RawOutcome::Ended { exit: ProcessExit::Code(code), .. } => format!("exit {code}").into(),
        RawOutcome::Ended { exit: ProcessExit::Signal(signal), .. } => format!("signal {signal}").into(),
        RawOutcome::Ended { exit: ProcessExit::TimedOut(_), .. } => "timed out".into(),
        RawOutcome::Replied { status, .. } => format!("status {status}").into(),
        RawOutcome::Object(_) | RawOutcome::Answered(_) => "completed".into(),
        RawOutcome::Failed(_) => "failed".into(),
        RawOutcome::Skipped(_) => "skipped".into(),
        RawOutcome::Remarked(ran, _) => ended(ran),
    }
}

async fn perform_one(runner: &Runner, run: &ChainRun, transcript: &WrittenTranscript) -> RawOutcome {
    let hook = match &run.link {
        ChainLink::Handler(handler) => {
            return handlers::perform(handler, &run.hook_context, &runner.at).await;
        }
        ChainLink::Hook(hook) => hook,
    };
    if !is_unchanged(hook).await {
        return RawOutcome::Skipped(
            "it was changed since it was trusted, or while this session is open; it has to be trusted again"
                .to_owned(),
        );
    }
    let transcript = if wants_transcript(hook) {
        match transcript.get_or_init(|| runner.transcript.write(&run.hook_context)).await {
            Ok(path) => Some(path.as_path()),
            Err(error) => return RawOutcome::Failed(error.to_string()),
        }
    } else {
        None
    };
    deliver(runner, hook, &run.event_name, || input(hook, &run.hook_context, &run.event_name, transcript))
        .await
}

/// The input of a hook for a hook context.
pub fn input(hook: &Hook, hook_context: &HookContext, event_name: &str, transcript: Option<&Path>) -> Value {
    if let HookKind::Claude { .. } = hook.kind {
        // In a session, it is always written for this kind of hook.
        return claude::payload::payload(hook_context, transcript.unwrap_or(Path::new("")));
    }
    payload(
        hook_context,
        &Addressee { name: &hook.name, event_name, messages: hook.manifest.messages, transcript },
    )
}

/// Runs a hook with this input.
pub async fn deliver(runner: &Runner, hook: &Hook, event: &str, input: impl FnOnce() -> Value) -> RawOutcome {
    let limit = hook.manifest.timeout;
    let failed = |error: io::Error| RawOutcome::Failed(error.to_string());
    match &hook.kind {
        HookKind::Declared { then } => RawOutcome::Object(then.clone()),
        HookKind::Script { path } => {
            let spec = spec_of(runner, hook, event, HookProgram::script(path), line(&input()));
            process::run(spec).await.unwrap_or_else(failed)
        }
        HookKind::Claude { line: prompt, options, .. }
            if let ClaudeAction::Prompt { small } = options.action =>
        {
            ask_model(runner, hook, action::question(prompt, small, &input())).await
        }
        HookKind::Claude { line: url, options, .. }
            if let ClaudeAction::Post { headers, variables } = &options.action =>
        {
            let workspace = &runner.at.workspace;
            let environment = hook.origin.environment(workspace);
            let headers = action::headers(headers, variables, &environment);
            let to = Webhook { url, headers: &headers, secret: None };
            webhook::post(&runner.http, to, line(&input()), limit).await
        }
        HookKind::Claude { line: shell_line, options, .. } => {
            let program = HookProgram::Line(shell_line.clone());
            let mut spec = spec_of(runner, hook, event, program, line(&input()));
            let project = hook.project(&spec.cwd).as_os_str().to_owned();
            spec.more.push(("CLAUDE_PROJECT_DIR", project));
            if let Some(plugin) = &options.plugin {
                spec.more.push(("CLAUDE_PLUGIN_ROOT", plugin.root.clone().into_os_string()));
                spec.more.push(("CLAUDE_PLUGIN_DATA", plugin.data.clone().into_os_string()));
            }
            if event == "SessionStart" {
                match runner.transcript.exports_file(spec.sandbox.is_some()).await {
                    Ok(path) => spec.more.push(("CLAUDE_ENV_FILE", path.into_os_string())),
                    Err(error) => return RawOutcome::Failed(error.to_string()),
                }
            }
            let ran = runner.aside.run(&hook.name, spec, options.runs_async).await;
            ran.unwrap_or_else(failed)
        }
        HookKind::Webhook { url, headers, secret } => {
            let to = Webhook { url, headers, secret: secret.as_deref() };
            webhook::post(&runner.http, to, line(&input()), limit).await
        }
        HookKind::Resident { path } => {
            let mut spec = spec_of(runner, hook, event, HookProgram::script(path), Vec::new());
            // One process handles many events.
            spec.more.retain(|(name, _)| *name != EVENT_VARIABLE);
            let (name, digest) = (hook.name.clone(), hook.digest.clone());
            let resident = Resident { name, digest, spec, services: runner.services.clone() };
            runner.residents.ask(resident, input(), limit).await
        }
    }
}

/// Asks a model for the decision.
async fn ask_model(runner: &Runner, hook: &Hook, question: Value) -> RawOutcome {
    let limit = hook.manifest.timeout;
    let asking = runner.services.call(&hook.name, "model.judge", question);
    match tokio::time::timeout(limit, asking).await {
        Ok(Ok(answer)) => {
            let text = answer["text"].as_str().unwrap_or_default();
            match action::verdict(text) {
                Some(object) => RawOutcome::Object(object),
                None => RawOutcome::Failed(format!(
                    "the model answered neither yes nor no: {}",
                    shown(text.trim())
                )),
            }
        }
        Ok(Err(why)) => RawOutcome::Failed(format!("the model could not be asked: {why}")),
        Err(_) => RawOutcome::Failed(format!("the model gave no answer within {} s", limit.as_secs())),
    }
}

/// Whether a repository's hook is still the one that was trusted. Checked before every run, since anyone with
/// write access to the repository can change its files.
async fn is_unchanged(hook: &Arc<Hook>) -> bool {
    if !hook.origin.is_repository() {
        // The user's own hooks need no consent.
        return true;
    }
    let hook = hook.clone();
    // If the check itself fails, treat the hook as changed.
    tokio::task::spawn_blocking(move || digest::unchanged(&hook)).await.unwrap_or(false)
}

fn wants_transcript(hook: &Hook) -> bool {
    match hook.kind {
        HookKind::Claude { .. } => true,
        HookKind::Declared { .. } => false,
        HookKind::Script { .. } | HookKind::Resident { .. } | HookKind::Webhook { .. } => {
            hook.manifest.transcript
        }
    }
}

fn line(payload: &Value) -> Vec<u8> {
    let mut line = payload.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Environment variable with the event name under which the hook registered.
const EVENT_VARIABLE: &str = "EPITOME_HOOK_EVENT";

fn spec_of(runner: &Runner, hook: &Hook, event: &str, program: HookProgram, stdin: Vec<u8>) -> ProcessSpec {
    let workspace = &runner.at.workspace;
    let more = vec![
        (EVENT_VARIABLE, OsString::from(event)),
        ("EPITOME_SESSION_ID", OsString::from(&runner.session)),
        ("EPITOME_CWD", workspace.cwd.clone().into_os_string()),
        ("EPITOME_HOOK_PROTOCOL", OsString::from(PROTOCOL.to_string())),
        ("EPITOME_HOOK_NAME", OsString::from(&hook.name)),
    ];
    let approved = ApprovedScript::of(hook, &workspace.cwd).filter(|_| hook.origin.is_repository());
    ProcessSpec {
        program,
        stdin,
        cwd: workspace.cwd.clone(),
        environment: Arc::new(hook.origin.environment(workspace)),
        more,
        limit: hook.manifest.timeout,
        reaper: runner.reaper.clone(),
        sandbox: HookSandbox::of(
            hook.origin,
            &runner.sandbox,
            workspace,
            runner.transcript.files(),
            approved,
        ),
    }
}
