//! `/permissions`: what may run without a question and by which words of the user's, and how it is taken back.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::core::Core;
use super::super::saved_permissions;
use super::{Beside, Ran, noted, said, why};
use epitome_thread::{Change, Rule};

/// Rules that are listed; a user with more reads their files.
const LISTED_MAX: usize = 100;

/// How long something stays allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Term {
    Session,
    Workspace,
}

impl Term {
    fn words(self) -> &'static str {
        match self {
            Term::Session => "for this session",
            Term::Workspace => "kept for this workspace",
        }
    }
}

pub(super) fn permissions(core: &mut Core, _: &Beside<'_>, typed: &str) -> Ran {
    let kept = match saved_permissions::read(&core.services.paths, core.thread.cwd()) {
        Ok(kept) => kept,
        Err(why) => return refused_permissions(core, &why),
    };
    let remembered = remembered(core.thread.rules(), &kept);
    match typed.split_whitespace().collect::<Vec<_>>()[..] {
        [] => list_permissions(core, &remembered),
        ["forget", "all"] if remembered.is_empty() => said(core, "Nothing is remembered."),
        ["forget", "all"] => forget(core, remembered),
        ["forget", number] => match named(number, &remembered) {
            Ok(rule) => forget(core, vec![rule.clone()]),
            Err(why) => refused_permissions(core, &why),
        },
        ["keep", number] => match named(number, &remembered) {
            Ok((_, Term::Workspace)) => said(core, "It is already kept."),
            Ok((rule, Term::Session)) => keep(core, rule.clone()),
            Err(why) => refused_permissions(core, &why),
        },
        _ => refused_permissions(
            core,
            "Use /permissions, /permissions forget N, /permissions forget all, or /permissions keep N.",
        ),
    }
}

fn refused_permissions(core: &mut Core, why: &str) -> Ran {
    said(core, why).with("permissions", json!({ "status": "refused", "reason": why }))
}

fn list_permissions(core: &mut Core, remembered: &[(Rule, Term)]) -> Ran {
    let mode = core.thread.mode();
    let mut out = format!("The mode is {:?}: {}.\n", mode.name(), mode.description());
    let rules = &core.settings.permissions;
    if rules.is_empty() {
        let file = core.services.paths.config_file();
        let _ = writeln!(out, "\nNo file has rules; add them to [permissions] in {}.", file.display());
    } else {
        out.push_str("\nRules of files; deny beats ask, ask beats allow:\n\n");
        for rule in rules.iter().take(LISTED_MAX) {
            let _ = writeln!(out, "- {rule} ({}:{})", rule.path.display(), rule.line);
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
    let told = json!({
        "status": "done", "mode": mode.id(), "rules": files,
        "remembered": remembered.iter().map(|(rule, term)| json!({
            "rule": rule, "words": rule.words(), "kept": *term == Term::Workspace,
        })).collect::<Vec<_>>(),
    });
    said(core, out).with("permissions", told)
}

fn forget(core: &mut Core, rules: Vec<(Rule, Term)>) -> Ran {
    let of = |term: Term| rules.iter().filter(move |(_, of)| *of == term).map(|(rule, _)| rule);
    if of(Term::Workspace).next().is_some() {
        let gone = |kept: &mut Vec<Rule>| kept.retain(|rule| !of(Term::Workspace).any(|gone| gone == rule));
        if let Err(why) = saved_permissions::change(&core.services.paths, core.thread.cwd(), gone) {
            return refused_permissions(core, &format!("Nothing was revoked: {why}"));
        }
    }
    let words: Vec<String> =
        rules.iter().map(|(rule, _)| format!("- {}", why::line(&rule.words()))).collect();
    // One that is kept may be of this session as well: it must not live on there.
    let of_session = |rule: &&Rule| core.thread.rules().contains(rule);
    let mut changes: Vec<Change> = Vec::new();
    for rule in rules.iter().map(|(rule, _)| rule).filter(of_session) {
        changes.push(Change::Forgotten { rule: rule.clone() });
    }
    changes.push(noted(core, format!("Revoked; you will be asked again:\n\n{}", words.join("\n"))));
    Ran::of(changes).with("permissions", json!({ "status": "done", "forgotten": words.len() }))
}

fn keep(core: &mut Core, rule: Rule) -> Ran {
    let words = rule.words();
    let add = |kept: &mut Vec<Rule>| {
        if !kept.contains(&rule) {
            kept.push(rule);
        }
    };
    match saved_permissions::change(&core.services.paths, core.thread.cwd(), add) {
        Err(why) => refused_permissions(core, &format!("Not kept: {why}")),
        Ok(()) => {
            let file = saved_permissions::file(&core.services.paths);
            let text = format!(
                "Kept for every session in {}: {}. It is in {}, not in the repository.",
                core.thread.cwd().display(),
                why::line(&words),
                file.display()
            );
            said(core, text).with("permissions", json!({ "status": "done", "kept": words }))
        }
    }
}

/// What is remembered, each once; what holds longer is told of.
fn remembered(session: &[Rule], kept: &[Rule]) -> Vec<(Rule, Term)> {
    let mut all: Vec<(Rule, Term)> = Vec::new();
    let of_session = session.iter().map(|rule| match kept.contains(rule) {
        true => (rule, Term::Workspace),
        false => (rule, Term::Session),
    });
    for (rule, term) in of_session.chain(kept.iter().map(|rule| (rule, Term::Workspace))) {
        if !all.iter().any(|(known, _)| known == rule) {
            all.push((rule.clone(), term));
        }
    }
    all
}

fn named<'r>(number: &str, remembered: &'r [(Rule, Term)]) -> Result<&'r (Rule, Term), String> {
    let at = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    at.and_then(|at| remembered.get(at)).ok_or_else(|| match remembered.len() {
        0 => "No permissions are remembered.".to_owned(),
        count => format!("{number:?} is not a number from 1 to {count}; /permissions lists them."),
    })
}
