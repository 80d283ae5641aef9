//! Sample events and hooks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use epitome::hooks::chain::{Chain, ChainLink, links};
use epitome::hooks::event::HookEvent;
use epitome::hooks::hook::{ClaudeOptions, Hook, HookKind, HookOrigin, Manifest};
use epitome::hooks::hook_context::{
    CompactTrigger, ContextFacts, EventData, HookCall, HookCallResult, HookContext, HookRound, InvokedBy,
    PayloadBase, UsageFacts,
};
use epitome::hooks::normalise::normalise;
use epitome::hooks::output::{HookOutput, ProcessExit, RawOutcome, Resolution, Utterance};
use epitome::thread::{HookRun, Mode, Role, Seq, ToolKind, View};
use serde_json::{Map, Value, json};

pub fn base() -> PayloadBase {
    PayloadBase {
        session: "s_01".to_owned(),
        cwd: PathBuf::from("/w/app"),
        invoked_by: InvokedBy::Main,
        recipe: String::new(),
        callback_args: Default::default(),
        callback_depth: 0,
        model: None,
        mode: Mode::default(),
        revision: Seq(0),
        view: View::default(),
        at: 1_705_314_600_000,
        usage: UsageFacts { input: 80_000, output: 8_000, used: 88_000, size: 128_000, ..Default::default() },
        auto_compact: Some(0.8),
        context: ContextFacts::default(),
    }
}

pub fn at(what: EventData) -> HookContext {
    HookContext { base: base(), what }
}

pub fn round() -> HookRound {
    HookRound { number: 5, session_number: 41, tools_used: true, ..HookRound::default() }
}

pub fn turn_end() -> HookContext {
    at(EventData::TurnEnd(round()))
}

pub fn agent_stop() -> HookContext {
    at(EventData::AgentStop { round: round(), stop_reason: "end_turn", continuations: 0 })
}

pub fn prompt(text: &str) -> HookContext {
    at(EventData::UserMessageSend { message: text.to_owned(), attachments: Vec::new() })
}

pub fn call() -> HookCall {
    HookCall {
        id: "call_1".to_owned(),
        tool: "bash".to_owned(),
        input: object(json!({"command": "ls"})),
        kind: ToolKind::Execute,
    }
}

pub fn before_call() -> HookContext {
    at(EventData::BeforeToolCall(call()))
}

pub fn result(text: &str) -> HookCallResult {
    HookCallResult {
        success: true,
        error: None,
        metadata_type: Some("bash".to_owned()),
        metadata: Some(json!({"output": text, "exitCode": 0})),
        text: text.to_owned(),
        milliseconds: 12,
        blocked: false,
    }
}

pub fn after_call(text: &str) -> HookContext {
    at(EventData::AfterToolCall { call: call(), result: result(text) })
}

pub fn pre_compact(must: bool) -> HookContext {
    at(EventData::PreCompact {
        trigger: CompactTrigger::Auto,
        reason: if must { "must_compact" } else { "threshold" },
        custom_instructions: None,
        context: Vec::new(),
        tokens: 88_000,
        compact_count: 30,
        preserve_count: 4,
        recipe: "compact".to_owned(),
        must,
    })
}

/// One event of each kind.
pub fn every_moment() -> Vec<HookContext> {
    vec![
        at(EventData::SessionStart { source: "startup" }),
        prompt("hello"),
        before_call(),
        after_call("files"),
        turn_end(),
        agent_stop(),
        pre_compact(false),
        at(EventData::PostCompact {
            trigger: CompactTrigger::Manual,
            tokens_before: 88_231,
            tokens_after: 6_000,
            summary: "S".to_owned(),
            uuid: "7f0c".to_owned(),
            fallback: None,
        }),
        at(EventData::SessionEnd { reason: "closed" }),
    ]
}

/// A script that is registered for every event under its canonical name.
pub fn script(name: &str) -> Hook {
    Hook {
        name: name.to_owned(),
        origin: HookOrigin::User,
        kind: HookKind::Script { path: PathBuf::from(format!("/h/{name}")) },
        events: HookEvent::ALL.into_iter().map(|event| (event, event.name().to_owned())).collect(),
        manifest: Manifest::default(),
        digest: format!("digest of {name}"),
        files: Vec::new(),
    }
}

/// A hook of a Claude Code group, for every event of Claude Code, under its name there.
pub fn claude(name: &str, group: usize) -> Hook {
    let theirs = |event: HookEvent| {
        let name = event.names().iter().find(|name| name.starts_with(char::is_uppercase))?;
        Some((event, (*name).to_owned()))
    };
    let kind = HookKind::Claude {
        line: "true".to_owned(),
        group,
        matcher: String::new(),
        only_if: String::new(),
        options: ClaudeOptions::default(),
    };
    Hook { kind, events: HookEvent::ALL.into_iter().filter_map(theirs).collect(), ..script(name) }
}

pub fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

pub fn exit(code: i32, stdout: &str, stderr: &str) -> RawOutcome {
    RawOutcome::Ended {
        exit: ProcessExit::Code(code),
        stdout: stdout.as_bytes().to_vec(),
        stdout_cut: false,
        stderr: stderr.to_owned(),
    }
}

pub fn printed(value: Value) -> RawOutcome {
    exit(0, &value.to_string(), "")
}

/// A result that no process printed, so that a hook of any kind may return it.
pub fn answered(value: Value) -> RawOutcome {
    RawOutcome::Object(object(value))
}

/// Runs hooks in sequence with the given results; returns the resolution.
pub fn resolve(hook_context: HookContext, runs: Vec<(Hook, RawOutcome)>) -> Resolution {
    let hooks: Vec<Arc<Hook>> = runs.iter().map(|(hook, _)| Arc::new(hook.clone())).collect();
    let links = links(&hooks, &hook_context);
    drive(hook_context, links, |name| {
        let (_, ran) = runs.iter().find(|(hook, _)| hook.name == name).expect("a run for each hook");
        ran.clone()
    })
}

/// Runs a chain to its end.
pub fn drive(
    hook_context: HookContext,
    links: Vec<ChainLink>,
    mut ran: impl FnMut(&str) -> RawOutcome,
) -> Resolution {
    let mut chain = Chain::new(hook_context, links);
    while let Some(runs) = chain.next() {
        let heard = runs.iter().map(|run| (ran(&run.link.name()), Duration::from_millis(7))).collect();
        chain.record_results(heard);
    }
    chain.finish()
}

/// The trail entry of a hook.
pub fn trail<'a>(resolution: &'a Resolution, hook: &str) -> &'a HookRun {
    resolution.trail.iter().find(|run| run.hook == hook).unwrap_or_else(|| panic!("{hook} is in the trail"))
}

pub fn normal(event: HookEvent, value: Value) -> HookOutput {
    normalise(event, &object(value))
}

pub fn user(text: &str) -> Utterance {
    Utterance { role: Role::User, text: text.to_owned() }
}

pub fn agent(text: &str) -> Utterance {
    Utterance { role: Role::Assistant, text: text.to_owned() }
}
