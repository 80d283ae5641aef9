//! `/hooks`: a session's hooks in the order in which they run, and what they have done so far. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::why::line;
use epitome_hooks::discover::{FoundHooks, Skipped, UntrustedHook};
use epitome_hooks::hook::{Hook, HookKind, HookOrigin};
use epitome_thread::visible::code;
use epitome_thread::{Change, HookRunResult, Thread};

/// Maximum length of each list; the rest are counted.
const SHOWN_MAX: usize = 50;

/// The results of a hook's runs, from the log.
#[derive(Default)]
struct HookRunCounts {
    done: u32,
    refused: u32,
    failed: u32,
    skipped: u32,
}

pub(super) fn text(found: &FoundHooks, enabled: bool, thread: &Thread) -> String {
    if !enabled {
        return "Hooks are switched off, by hooks.enabled in the settings or by --no-hooks.".to_owned();
    }
    let (mut runs, quiet) = trail(thread);
    let mut out = String::new();
    if found.hooks.is_empty() {
        out.push_str("No hook runs in this session.\n");
    } else {
        out.push_str("Hooks of this session, in the order in which they run:\n\n");
    }
    for (number, hook) in (1..).zip(found.hooks.iter().take(SHOWN_MAX)) {
        let ran = runs.remove(&hook.name).unwrap_or_default();
        let _ = writeln!(out, "{number}. {}", described(hook, &ran));
    }
    more(&mut out, found.hooks.len());
    for hook in found.hooks.iter().skip(SHOWN_MAX) {
        runs.remove(&hook.name);
    }
    list(&mut out, "Waiting for your consent; `epitome hooks trust` allows them", &found.untrusted, waiting);
    list(&mut out, "Not used", &found.skipped, |skipped: &Skipped| {
        format!("{}: {}", skipped.path.display(), line(&skipped.reason))
    });
    list(&mut out, "With problems", &found.problems, |problem| line(&problem.to_string()));
    // Handlers of recipes, and hooks that have since been removed.
    let others: Vec<(String, HookRunCounts)> = runs.into_iter().collect();
    list(&mut out, "Ran before, or for a recipe", &others, |(name, ran)| {
        format!("{name}: {}", counted(ran).unwrap_or_default())
    });
    if quiet > 0 {
        let _ = writeln!(out, "\n{quiet} runs did nothing.");
    }
    out.push_str("\n/why shows what hooks did; /why with a hook's name shows its runs.");
    out
}

fn described(hook: &Hook, ran: &HookRunCounts) -> String {
    let events = hook.events.iter().map(|(event, registered)| match registered == event.name() {
        true => event.name().to_owned(),
        false => format!("{} (as {registered})", event.name()),
    });
    let events = events.collect::<Vec<_>>().join(", ");
    let mut out = format!("{}: {events}; {}, {}", hook.name, origin(hook.origin), kind(hook));
    if hook.manifest.priority != 0 {
        let _ = write!(out, ", priority {}", hook.manifest.priority);
    }
    match counted(ran) {
        Some(runs) => {
            let _ = write!(out, "; {runs}");
        }
        None => out.push_str("; asked for nothing so far"),
    }
    out
}

fn origin(origin: HookOrigin) -> &'static str {
    match origin {
        HookOrigin::Enforced => "enforced",
        HookOrigin::User => "yours",
        HookOrigin::Repository => "of the repository, allowed",
    }
}

fn kind(hook: &Hook) -> &'static str {
    match hook.kind {
        HookKind::Script { .. } => "a script",
        HookKind::Resident { .. } => "resident",
        HookKind::Declared { .. } => "declared",
        HookKind::Webhook { .. } => "a webhook",
        HookKind::Claude { .. } => "a Claude Code hook",
    }
}

fn waiting(item: &UntrustedHook) -> String {
    format!("{} ({}) {}: {}", item.name, item.path.display(), item.what, code(&line(&item.runs)))
}

fn list<T>(out: &mut String, title: &str, items: &[T], words: impl Fn(&T) -> String) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}:\n");
    for item in items.iter().take(SHOWN_MAX) {
        let _ = writeln!(out, "- {}", words(item));
    }
    more(out, items.len());
}

fn more(out: &mut String, count: usize) {
    if count > SHOWN_MAX {
        let _ = writeln!(out, "- and {} more; `epitome hooks list` shows all", count - SHOWN_MAX);
    }
}

/// Counts each hook's runs by name, and the runs that did nothing.
fn trail(thread: &Thread) -> (BTreeMap<String, HookRunCounts>, u64) {
    let mut runs: BTreeMap<String, HookRunCounts> = BTreeMap::new();
    let mut quiet = 0;
    for entry in thread.entries() {
        match &entry.change {
            Change::Hooked { runs: ran, .. } => {
                for run in ran {
                    let counts = runs.entry(run.hook.clone()).or_default();
                    match run.verdict {
                        HookRunResult::Nothing | HookRunResult::Done => counts.done += 1,
                        HookRunResult::Refused => counts.refused += 1,
                        HookRunResult::Failed => counts.failed += 1,
                        HookRunResult::Skipped => counts.skipped += 1,
                    }
                }
            }
            Change::TurnEnded { quiet_hooks, .. } => quiet += u64::from(*quiet_hooks),
            _ => {}
        }
    }
    (runs, quiet)
}

fn counted(runs: &HookRunCounts) -> Option<String> {
    let counts =
        [(runs.done, "done"), (runs.refused, "refused"), (runs.failed, "failed"), (runs.skipped, "not run")];
    let counts: Vec<String> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    (!counts.is_empty()).then(|| counts.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::super::why::tests::{long_story, thread};
    use super::*;
    use epitome_hooks::event::HookEvent;
    use epitome_hooks::hook::Manifest;

    fn hook(name: &str, origin: HookOrigin, events: &[(HookEvent, &str)], priority: i32) -> Arc<Hook> {
        Arc::new(Hook {
            name: name.to_owned(),
            origin,
            kind: HookKind::Script { path: PathBuf::from("/x") },
            events: events.iter().map(|(event, name)| (*event, (*name).to_owned())).collect(),
            manifest: Manifest { priority, ..Manifest::default() },
            digest: "d".repeat(64),
            files: Vec::new(),
        })
    }

    #[test]
    fn hooks_are_listed_in_their_order_with_their_effects() {
        let found = FoundHooks {
            hooks: vec![
                hook("guard", HookOrigin::Repository, &[(HookEvent::BeforeToolCall, "PreToolUse")], 10),
                hook("quiet", HookOrigin::User, &[(HookEvent::TurnEnd, "turn_end")], 0),
            ],
            untrusted: vec![UntrustedHook {
                name: "new".to_owned(),
                path: PathBuf::from("/w/.epitome/hooks/new"),
                digest: String::new(),
                what: "runs at `turn_end`".to_owned(),
                runs: "/w/.epitome/hooks/new".to_owned(),
                files: Vec::new(),
            }],
            servers: std::collections::BTreeMap::new(),
            skipped: vec![Skipped {
                path: PathBuf::from("/w/.epitome/hooks/README"),
                reason: "not executable".to_owned(),
            }],
            problems: Vec::new(),
        };
        assert_eq!(
            text(&found, true, &long_story()),
            "Hooks of this session, in the order in which they run:\n\
             \n\
             1. guard: before_tool_call (as PreToolUse); of the repository, allowed, a script, priority 10; \
             1 done\n\
             2. quiet: turn_end; yours, a script; asked for nothing so far\n\
             \n\
             Waiting for your consent; `epitome hooks trust` allows them:\n\
             \n\
             - new (/w/.epitome/hooks/new) runs at `turn_end`: `/w/.epitome/hooks/new`\n\
             \n\
             Not used:\n\
             \n\
             - /w/.epitome/hooks/README: not executable\n\
             \n\
             Ran before, or for a recipe:\n\
             \n\
             - shrink: 1 done, 1 refused\n\
             \n\
             3 runs did nothing.\n\
             \n\
             /why shows what hooks did; /why with a hook's name shows its runs."
        );
    }

    #[test]
    fn where_nothing_runs_it_says_so() {
        let none = text(&FoundHooks::default(), true, &thread(Vec::new()));
        assert!(none.starts_with("No hook runs in this session.\n"), "{none}");
        assert!(text(&FoundHooks::default(), false, &thread(Vec::new())).contains("switched off"));
    }
}
