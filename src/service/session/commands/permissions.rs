//! `/permissions`: shows the mode and the permission rules, and revokes or saves remembered ones.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::core::Core;
use super::super::saved_permissions;
use super::{CommandContext, CommandOutcome, why};
use epitome_thread::{Change, Rule};

/// Rules listed; the rest are counted.
const LISTED_MAX: usize = 100;

/// How long a permission lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GrantDuration {
    Session,
    Workspace,
}

impl GrantDuration {
    fn words(self) -> &'static str {
        match self {
            GrantDuration::Session => "for this session",
            GrantDuration::Workspace => "kept for this workspace",
        }
    }
}

pub(super) fn permissions(core: &mut Core, _: &CommandContext<'_>, typed: &str) -> CommandOutcome {
    let kept = match saved_permissions::read(&core.services.paths, core.thread.cwd()) {
        Ok(kept) => kept,
        Err(why) => return refused_permissions(&why.to_string()),
    };
    let remembered = remembered(core.thread.rules(), &kept);
    match typed.split_whitespace().collect::<Vec<_>>()[..] {
        [] => list_permissions(core, &remembered),
        ["forget", "all"] if remembered.is_empty() => CommandOutcome::text("Nothing is remembered."),
        ["forget", "all"] => forget(core, remembered),
        [verb @ ("forget" | "keep"), number] => match (verb, named(number, &remembered)) {
            (_, None) if remembered.is_empty() => refused_permissions("No permissions are remembered."),
            (_, None) => refused_permissions(&format!(
                "{number:?} is not a number from 1 to {}; /permissions lists them.",
                remembered.len()
            )),
            ("forget", Some(rule)) => forget(core, vec![rule.clone()]),
            (_, Some((_, GrantDuration::Workspace))) => CommandOutcome::text("It is already kept."),
            (_, Some((rule, GrantDuration::Session))) => keep(core, rule.clone()),
        },
        _ => refused_permissions(
            "Use /permissions, /permissions forget N, /permissions forget all, or /permissions keep N.",
        ),
    }
}

fn refused_permissions(why: &str) -> CommandOutcome {
    CommandOutcome::text(why).with("permissions", json!({ "status": "refused", "reason": why }))
}

fn list_permissions(core: &mut Core, remembered: &[(Rule, GrantDuration)]) -> CommandOutcome {
    let mode = core.thread.mode();
    let mut out = format!("The mode is {:?}: {}.\n", mode.name(), mode.description());
    let rules = &core.settings.permissions;
    if rules.is_empty() {
        let file = core.services.paths.config_file();
        let _ = writeln!(out, "\nNo file has rules; add them to [permissions] in {}.", file.display());
    } else {
        out.push_str("\nRules of files; deny beats ask, ask beats allow:\n\n");
        for rule in rules.iter().take(LISTED_MAX) {
            let because = rule.mistake.as_ref().map(|mistake| format!(", because of {mistake}"));
            let because = because.unwrap_or_default();
            let _ = writeln!(out, "- {rule} ({}:{}){because}", rule.path.display(), rule.line);
        }
        why::more(&mut out, rules.len(), LISTED_MAX);
    }
    if remembered.is_empty() {
        out.push_str("\nNo permissions are remembered.");
    } else {
        out.push_str("\nRemembered permissions:\n\n");
        for (number, (rule, term)) in (1..).zip(remembered).take(LISTED_MAX) {
            let _ = writeln!(out, "{number}. {}, {}", why::line(&rule.words()), term.words());
        }
        out.push_str(
            "\n/permissions forget N or /permissions forget all revokes it; /permissions keep N keeps it for \
             later sessions of this workspace.",
        );
    }
    let files: Vec<Value> = rules
        .iter()
        .map(|rule| json!({ "rule": rule.to_string(), "path": rule.path, "line": rule.line }))
        .collect();
    let data = json!({
        "status": "done", "mode": mode.id(), "rules": files,
        "remembered": remembered.iter().map(|(rule, term)| json!({
            "rule": rule, "words": rule.words(), "kept": *term == GrantDuration::Workspace,
        })).collect::<Vec<_>>(),
    });
    CommandOutcome::text(out).with("permissions", data)
}

fn forget(core: &mut Core, rules: Vec<(Rule, GrantDuration)>) -> CommandOutcome {
    let of = |term: GrantDuration| rules.iter().filter(move |(_, of)| *of == term).map(|(rule, _)| rule);
    if of(GrantDuration::Workspace).next().is_some() {
        let gone =
            |kept: &mut Vec<Rule>| kept.retain(|rule| !of(GrantDuration::Workspace).any(|gone| gone == rule));
        if let Err(why) = saved_permissions::change(&core.services.paths, core.thread.cwd(), gone) {
            return refused_permissions(&format!("Nothing was revoked: {why}"));
        }
    }
    let words: Vec<String> =
        rules.iter().map(|(rule, _)| format!("- {}", why::line(&rule.words()))).collect();
    // A saved rule may also be a rule of this session, where it must not survive.
    let of_session = |rule: &&Rule| core.thread.rules().contains(rule);
    let forgotten = rules.iter().map(|(rule, _)| rule).filter(of_session);
    let changes = forgotten.map(|rule| Change::Forgotten { rule: rule.clone() }).collect();
    let text = format!("Revoked; you will be asked again:\n\n{}", words.join("\n"));
    CommandOutcome { changes, ..CommandOutcome::text(text) }
        .with("permissions", json!({ "status": "done", "forgotten": words.len() }))
}

fn keep(core: &mut Core, rule: Rule) -> CommandOutcome {
    let words = rule.words();
    let add = |kept: &mut Vec<Rule>| {
        if !kept.contains(&rule) {
            kept.push(rule);
        }
    };
    match saved_permissions::change(&core.services.paths, core.thread.cwd(), add) {
        Err(why) => refused_permissions(&format!("Not kept: {why}")),
        Ok(()) => {
            let file = saved_permissions::file(&core.services.paths);
            let text = format!(
                "Kept for every session in {}: {}. It is in {}, not in the repository.",
                core.thread.cwd().display(),
                why::line(&words),
                file.display()
            );
            CommandOutcome::text(text).with("permissions", json!({ "status": "done", "kept": words }))
        }
    }
}

/// The remembered rules, each once, with the longer of its durations.
fn remembered(session: &[Rule], kept: &[Rule]) -> Vec<(Rule, GrantDuration)> {
    let mut all: Vec<(Rule, GrantDuration)> = Vec::new();
    let of_session = session.iter().map(|rule| match kept.contains(rule) {
        true => (rule, GrantDuration::Workspace),
        false => (rule, GrantDuration::Session),
    });
    for (rule, term) in of_session.chain(kept.iter().map(|rule| (rule, GrantDuration::Workspace))) {
        if !all.iter().any(|(known, _)| known == rule) {
            all.push((rule.clone(), term));
        }
    }
    all
}

fn named<'r>(number: &str, remembered: &'r [(Rule, GrantDuration)]) -> Option<&'r (Rule, GrantDuration)> {
    remembered.get(number.parse::<usize>().ok()?.checked_sub(1)?)
}
