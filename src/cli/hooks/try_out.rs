//! `epitome hooks test`: runs one hook and shows how its result is interpreted, without applying it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::super::serve;
use super::super::terminal;
use super::meaning::meaning;
use super::{CliError, Project};
use crate::cli::CliContext as _;
use crate::provider::http::Http;
use crate::provider::network::Network;
use crate::session::sandbox_rules;
use crate::thread::visible::visible;
use crate::thread::{Seq, ToolKind, View};
use epitome_hooks::event::HookEvent;
use epitome_hooks::functions::BoxError;
use epitome_hooks::functions::Functions;
use epitome_hooks::handlers::HandlerContext;
use epitome_hooks::hook::Hook;
use epitome_hooks::hook_context::{
    CompactTrigger, ContextFacts, EventData, HookCall, HookCallResult, HookContext, HookRound, InvokedBy,
    PayloadBase, UsageFacts,
};
use epitome_hooks::outcome::{RunOutcome, RunStatus, interpret};
use epitome_hooks::output::RawOutcome;
use epitome_hooks::resident::HookServices;
use epitome_hooks::run::{Runner, deliver, input};
use epitome_hooks::transcript::Transcript;

/// Maximum size of a payload, in bytes.
const PAYLOAD_BYTES_MAX: u64 = 16 << 20;

pub(super) fn test(
    project: &Project,
    name: &str,
    event: &str,
    given: Option<&Path>,
    json: bool,
) -> Result<i32, CliError> {
    let event = HookEvent::parse(event).ok_or_else(|| {
        let names = HookEvent::ALL.into_iter().flat_map(|event| event.names().iter().copied());
        let all = format!("events are {}", HookEvent::ALL.map(HookEvent::name).join(", "));
        CliError::failed(format!("there is no event {event:?}")).meant(event, names, all)
    })?;
    let found = project.find();
    let hook = found.hooks.iter().find(|hook| hook.name == name).ok_or_else(|| {
        if found.untrusted.iter().any(|item| item.name == name) {
            return CliError::failed(format!("{name} is not trusted yet"))
                .hint(format!("`epitome hooks trust {name}` allows it to run"));
        }
        let names = found.hooks.iter().map(|hook| hook.name.as_str());
        let unknown = CliError::failed(format!("there is no hook {name} here"));
        unknown.meant(name, names, "`epitome hooks list` shows all")
    })?;
    let Some((_, registered)) = hook.events.iter().find(|(known, _)| *known == event) else {
        let events: Vec<&str> = hook.events.iter().map(|(event, _)| event.name()).collect();
        return Err(CliError::failed(format!("{name} does not handle {event}"))
            .hint(format!("it handles {}", events.join(", "))));
    };
    let hook_context = sample(event, &project.cwd);
    let input = match given {
        Some(path) => payload_of(path)?,
        None => input(hook, &hook_context, registered, None),
    };
    let runner = runner(project);
    let began = Instant::now();
    let ran = serve::runtime()?.block_on(deliver(&runner, hook, registered, || input));
    let took = began.elapsed();
    let outcome = interpret(hook, &hook_context, registered, ran.clone());
    terminal::print(&match json {
        true => format!("{}\n", json_of(hook, event, &ran, &outcome, took)),
        false => text(&ran, &outcome, took),
    })?;
    Ok(i32::from(outcome.status != RunStatus::Result))
}

/// Creates a runner like that of a session in this directory.
fn runner(project: &Project) -> Runner {
    let workspace = Arc::new(project.workspace());
    Runner {
        session: SESSION.to_owned(),
        at: HandlerContext { workspace, functions: Functions::default() },
        reaper: project.reaper.clone(),
        sandbox: Arc::new(sandbox_rules(&project.settings, &project.paths)),
        http: Http::new().within(Network::read(&project.environment)),
        residents: Arc::default(),
        aside: Arc::default(),
        transcript: Arc::new(Transcript::new(&project.paths, SESSION)),
        services: Arc::new(NoSession),
    }
}

/// A resident hook can call nothing, because there is no session.
struct NoSession;

impl HookServices for NoSession {
    fn call<'a>(
        &'a self,
        _hook: &'a str,
        method: &'a str,
        _params: Value,
    ) -> BoxFuture<'a, Result<Value, BoxError>> {
        let why = format!("{method} needs a session, and this run has none");
        Box::pin(async { Err(why.into()) })
    }
}

fn text(ran: &RawOutcome, outcome: &RunOutcome, took: Duration) -> String {
    let mut out = String::new();
    let mut block = |title: &str, text: &str| {
        if !text.trim().is_empty() {
            let _ = writeln!(out, "{title}:");
            for line in visible(text).lines() {
                let _ = writeln!(out, "    {line}");
            }
        }
    };
    let (title, stdout, stderr) = printed(ran);
    block(title, &stdout);
    block(if title == "stdout" { "stderr" } else { "not run" }, &stderr);
    block("remarks", &outcome.remarks.join("\n"));
    let _ = writeln!(out, "end: {} after {} ms", outcome.end, took.as_millis());
    let meaning = meaning(&outcome.output);
    let short = match (outcome.status, meaning.is_empty()) {
        (RunStatus::Failed, true) => " the run failed, so what it printed is ignored",
        (RunStatus::Skipped, true) => " it was not run",
        (RunStatus::Result, true) => " nothing",
        (_, false) => "",
    };
    let _ = writeln!(out, "meaning:{short}");
    for line in &meaning {
        let _ = writeln!(out, "    {}", visible(line));
    }
    out
}

/// Returns the output of a run under its title, and its stderr or the reason why it did not run. Notices are shown
/// separately.
fn printed(ran: &RawOutcome) -> (&'static str, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match ran {
        RawOutcome::Remarked(ran, _) => printed(ran),
        RawOutcome::Ended { stdout, stderr, .. } => ("stdout", text(stdout), stderr.clone()),
        RawOutcome::Object(object) => ("result", Value::Object(object.clone()).to_string(), String::new()),
        RawOutcome::Replied { body, .. } => ("answer", text(body), String::new()),
        RawOutcome::Failed(reason) | RawOutcome::Skipped(reason) => ("result", String::new(), reason.clone()),
        RawOutcome::Answered(_) => ("result", String::new(), String::new()),
    }
}

fn json_of(hook: &Hook, event: HookEvent, ran: &RawOutcome, outcome: &RunOutcome, took: Duration) -> Value {
    let (_, stdout, stderr) = printed(ran);
    json!({
        "hook": hook.name, "event": event.name(), "digest": hook.digest, "stdout": stdout, "stderr": stderr,
        "end": outcome.end, "came": format!("{:?}", outcome.status).to_lowercase(), "remarks": outcome.remarks,
        "milliseconds": took.as_millis() as u64, "meaning": meaning(&outcome.output),
    })
}

/// Reads the user's payload. It must be JSON, because sessions send nothing else.
fn payload_of(path: &Path) -> Result<Value, CliError> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().lock().take(PAYLOAD_BYTES_MAX).read_to_string(&mut text),
        Some(_) | None => {
            std::fs::File::open(path).and_then(|file| file.take(PAYLOAD_BYTES_MAX).read_to_string(&mut text))
        }
    };
    read.context(format_args!("the payload {} can't be read", path.display()))?;
    serde_json::from_str(&text).map_err(|error| {
        let message = format!("the payload {} is not JSON: {error}", path.display());
        CliError::failed(message)
            .hint("sessions send only JSON; without --payload, a sample of the event is sent")
    })
}

/// The session id in a sample payload.
const SESSION: &str = "s_00000000000000000000";

fn sample(event: HookEvent, cwd: &Path) -> HookContext {
    let input = Map::from_iter([
        ("command".to_owned(), json!("ls")),
        ("description".to_owned(), json!("List files")),
    ]);
    let call = HookCall { id: "call_1".to_owned(), tool: "bash".to_owned(), input, kind: ToolKind::Execute };
    let round = HookRound {
        response: "Done.".to_owned(),
        number: 1,
        session_number: 5,
        tools_used: true,
        ..HookRound::default()
    };
    let what = match event {
        HookEvent::SessionStart => EventData::SessionStart { source: "startup" },
        HookEvent::UserMessageSend => EventData::UserMessageSend {
            message: "Please list the files.".to_owned(),
            attachments: Vec::new(),
        },
        HookEvent::BeforeToolCall => EventData::BeforeToolCall(call),
        HookEvent::AfterToolCall => {
            let result = HookCallResult {
                success: true,
                error: None,
                metadata_type: Some("bash".to_owned()),
                metadata: None,
                text: "README.md\nsrc\n".to_owned(),
                milliseconds: 12,
                blocked: false,
            };
            EventData::AfterToolCall { call, result }
        }
        HookEvent::PermissionRequest => EventData::PermissionRequest(call),
        HookEvent::Notification => EventData::Notification {
            kind: "permission_prompt",
            message: "Permission is needed to use Bash.".to_owned(),
        },
        HookEvent::SubagentStart => {
            EventData::SubagentStart { agent: "explore".to_owned(), id: SESSION.to_owned() }
        }
        HookEvent::TaskCompleted => {
            EventData::TaskCompleted { number: 1, subject: "Fix the parser".to_owned() }
        }
        HookEvent::TurnFailed => {
            EventData::TurnFailed { kind: "server_error", message: "The provider is overloaded.".to_owned() }
        }
        HookEvent::TurnEnd => EventData::TurnEnd(round),
        HookEvent::AgentStop => EventData::AgentStop { round, stop_reason: "end_turn", continuations: 0 },
        HookEvent::PreCompact => EventData::PreCompact {
            trigger: CompactTrigger::Manual,
            reason: "command",
            custom_instructions: None,
            context: Vec::new(),
            tokens: 88_000,
            compact_count: 40,
            preserve_count: 8,
            recipe: "compact".to_owned(),
            must: false,
        },
        HookEvent::PostCompact => EventData::PostCompact {
            trigger: CompactTrigger::Manual,
            tokens_before: 88_000,
            tokens_after: 6_000,
            summary: "What was said so far.".to_owned(),
            uuid: "00000000-0000-4000-8000-000000000000".to_owned(),
            fallback: None,
        },
        HookEvent::SessionEnd => EventData::SessionEnd { reason: "closed" },
    };
    let base = PayloadBase {
        session: SESSION.to_owned(),
        cwd: PathBuf::from(cwd),
        invoked_by: InvokedBy::Main,
        recipe: String::new(),
        callback_args: BTreeMap::new(),
        callback_depth: 0,
        model: None,
        mode: Default::default(),
        revision: Seq(0),
        view: View::default(),
        at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        usage: UsageFacts {
            input: 80_000,
            output: 8_000,
            used: 88_000,
            size: 128_000,
            ..UsageFacts::default()
        },
        auto_compact: Some(0.80),
        context: ContextFacts::default(),
    };
    HookContext { base, what }
}
