//! Hooks, and the trail of their runs, as JSON for machine-readable output. Pure.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use super::discover::{FoundHooks, UntrustedHook};
use super::hook::{Hook, HookKind, HookOrigin};
use epitome_thread::problem::Problem;
use epitome_thread::{Change, Entry};

/// The result of a discovery: active hooks, hooks waiting for consent, skipped files, and problems.
pub fn found(found: &FoundHooks) -> Value {
    let hook = |hook: &Arc<Hook>| {
        json!({
            "name": hook.name,
            "events": hook.events.iter().map(|(event, _)| event.name()).collect::<Vec<_>>(),
            "place": word(hook.origin), "kind": kind(hook), "description": hook.manifest.description,
            "priority": hook.manifest.priority, "timeout_ms": hook.manifest.timeout.as_millis() as u64,
            "digest": hook.digest, "files": lossy(&hook.files), "trusted": true,
        })
    };
    let untrusted = |item: &UntrustedHook| {
        json!({
            "name": item.name, "path": item.path.to_string_lossy(), "digest": item.digest, "what": item.what,
            "runs": item.runs, "files": lossy(&item.files), "trusted": false,
        })
    };
    json!({
        "hooks": found.hooks.iter().map(hook).collect::<Vec<_>>(),
        "untrusted": found.untrusted.iter().map(untrusted).collect::<Vec<_>>(),
        "skipped": found.skipped.iter().map(|skipped| {
            json!({"path": skipped.path.to_string_lossy(), "reason": skipped.reason})
        }).collect::<Vec<_>>(),
        "problems": found.problems.iter().map(Problem::to_json).collect::<Vec<_>>(),
    })
}

fn lossy(paths: &[PathBuf]) -> Vec<Cow<'_, str>> {
    paths.iter().map(|path| path.to_string_lossy()).collect()
}

/// The owner of a hook, as shown to users.
pub fn word(origin: HookOrigin) -> &'static str {
    match origin {
        HookOrigin::Enforced => "enforced",
        HookOrigin::User => "yours",
        HookOrigin::Repository => "repository",
    }
}

/// The kind of a hook, as shown to users.
pub fn kind(hook: &Hook) -> &'static str {
    match hook.kind {
        HookKind::Script { .. } => "script",
        HookKind::Resident { .. } => "resident",
        HookKind::Declared { .. } => "declared",
        HookKind::Webhook { .. } => "webhook",
        HookKind::Claude { .. } => "Claude Code",
    }
}

/// The hook runs of a conversation, oldest first: each run, and the number of quiet runs of each turn.
pub fn trail(entries: &[Arc<Entry>]) -> Vec<Value> {
    let mut trail = Vec::new();
    for entry in entries {
        let seq = entry.seq.to_string();
        match &entry.change {
            Change::Hooked { event, runs } => {
                trail.extend(runs.iter().map(|run| json!({"entry": seq, "moment": event, "run": run})));
            }
            Change::TurnEnded { quiet_hooks: quiet @ 1.., .. } => {
                trail.push(json!({"entry": seq, "quiet": quiet}));
            }
            // Other entries are not about hooks.
            _ => {}
        }
    }
    trail
}
