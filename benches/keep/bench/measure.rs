//! Measures how much of a conversation a text contains, and whether the things that it reports as failed or open really
//! are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use epitome::thread::{Change, Seq, Thread};
use regex::Regex;

use super::baseline;
use super::corpus::{Fact, Message, Session, path_of, words};

/// Characters within which all patterns of a fact have to match.
const SPAN: usize = 700;
/// Matches of a fact's first pattern that are considered.
const PLACES_MAX: usize = 400;
/// Messages after the compaction in which identifiers count as used.
const USED_MESSAGES: usize = 80;

pub fn holds(text: &str, fact: &Fact) -> bool {
    let places = |pattern: &Regex| pattern.find_iter(text).map(|found| found.start()).collect::<Vec<_>>();
    let places: Vec<Vec<usize>> = fact.patterns.iter().map(places).collect();
    let Some((first, others)) = places.split_first() else { return false };
    let apart = |a: usize, b: usize| text[a.min(b)..a.max(b)].chars().count();
    first
        .iter()
        .take(PLACES_MAX)
        .any(|at| others.iter().all(|other| other.iter().any(|place| apart(*at, *place) <= SPAN)))
}

/// The share of the terms that a text contains; `None` if there are no terms.
pub fn share(text: &str, terms: &BTreeSet<String>) -> Option<f64> {
    let found = terms.iter().filter(|term| text.contains(term.as_str())).count();
    (!terms.is_empty()).then(|| found as f64 / terms.len() as f64)
}

/// Files and identifiers that occurred before the compaction and were used again after it.
#[derive(Default)]
pub struct Later {
    pub files: BTreeSet<String>,
    pub identifiers: BTreeSet<String>,
    pub hashes: BTreeSet<String>,
}

/// `snake_case`, `camelCase`, `PascalCase`, `ABC-12`, and issue numbers.
static IDENTIFIER: LazyLock<Regex> = LazyLock::new(|| {
    let names = [
        "[A-Za-z_][A-Za-z0-9]*_[A-Za-z0-9_]+",
        "[a-z]+[A-Z][A-Za-z0-9]+",
        "[A-Z][a-z0-9]+[A-Z][A-Za-z0-9]+",
        "[A-Z]{2,}-[0-9]+",
    ];
    Regex::new(&format!(r"\b(?:{})\b|#[0-9]{{2,}}\b", names.join("|"))).expect("a pattern")
});
/// A path with a directory and an ending, in a command or a patch of a script, as Codex writes them.
static SCRIPT_PATH: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?:^|[\s"'`=(:])(/?(?:[\w.@-]+/)+[\w@-]+(?:\.[\w-]+)*\.[A-Za-z]{1,5})\b"#)
        .expect("a pattern")
});
static HASH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b[0-9a-f]{7,12}\b").expect("a pattern"));

impl Later {
    /// `None` if there are too few later messages for a judgement.
    pub fn of(session: &Session) -> Option<Later> {
        if session.later.len() < 10 {
            return None;
        }
        let before = session.before();
        let calls: Vec<_> = session.later.iter().flat_map(Message::calls).collect();
        let paths = calls.iter().filter_map(|(_, _, input)| path_of(input));
        let scripts = calls.iter().filter(|(_, name, _)| *name == "exec");
        let scripts = scripts.filter_map(|(_, _, input)| input["input"].as_str());
        let in_scripts = scripts.flat_map(|script| SCRIPT_PATH.captures_iter(script));
        let paths = paths.chain(in_scripts.map(|found| found.extract::<1>().1[0]));
        let names = paths.filter_map(|path| path.rsplit('/').next());
        let files =
            names.filter(|name| !name.is_empty() && before.contains(name)).map(str::to_owned).collect();
        let did =
            session.later.iter().take(USED_MESSAGES).filter(|message| matches!(message, Message::Agent(_)));
        let did = words(&did.cloned().collect::<Vec<_>>());
        let known = identifiers(&before);
        let identifiers = identifiers(&did).into_iter().filter(|name| known.contains(name));
        let identifiers =
            identifiers.filter(|name| name.chars().count() >= 6 && did.matches(name.as_str()).count() >= 2);
        let known = hashes(&before);
        let hashes = hashes(&did).into_iter().filter(|hash| known.contains(hash)).collect();
        let later = Later { files, identifiers: identifiers.collect(), hashes };
        (later.files.len() + later.identifiers.len() >= 5).then_some(later)
    }
}

fn identifiers(text: &str) -> BTreeSet<String> {
    let is_apart = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let found = IDENTIFIER
        .find_iter(text)
        .filter(|found| !found.as_str().starts_with('#') || is_apart(found.start()));
    found.map(|found| found.as_str().to_owned()).collect()
}

fn hashes(text: &str) -> BTreeSet<String> {
    let found = HASH.find_iter(text).map(|found| found.as_str());
    let is_mixed = |hash: &&str| {
        hash.bytes().any(|b| b.is_ascii_digit()) && hash.bytes().any(|b| b.is_ascii_lowercase())
    };
    found.filter(is_mixed).map(str::to_owned).collect()
}

/// The sections of the summaries that Claude Code's models write, by section number.
pub const SECTIONS: [(&str, &str); 7] = [
    ("7", "pending"),
    ("8", "current work"),
    ("9", "next step"),
    ("1", "request"),
    ("3", "files and code"),
    ("4", "errors"),
    ("5", "problem solving"),
];

/// The terms of each section of a stored summary that occur in the conversation.
pub fn section_terms(summary: &str, before: &str) -> BTreeMap<&'static str, BTreeSet<String>> {
    static HEADING: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\n\s*(\d)\. (?:\*\*)?([A-Z][A-Za-z ]+):?").expect("a pattern"));
    static TERMS: LazyLock<[Regex; 4]> = LazyLock::new(|| {
        [
            r"`([^`\n]{4,80})`",
            r#""([^"\n]{12,160})""#,
            r"(\b[\w-]+\.(?:go|ts|md|json|yaml|yml|sh|rs|py)\b)",
            r"(\b(?:[A-Z][a-z0-9]+){2,}\b|\b[0-9a-f]{7,10}\b)",
        ]
        .map(|pattern| Regex::new(pattern).expect("a pattern"))
    });
    let headings: Vec<_> = HEADING.captures_iter(summary).collect();
    let mut sections = BTreeMap::new();
    for (at, heading) in headings.iter().enumerate() {
        let Some((_, name)) = SECTIONS.iter().find(|(number, _)| *number == &heading[1]) else { continue };
        let whole = |heading: &regex::Captures<'_>| heading.get(0).map_or(0..0, |found| found.range());
        let end = headings.get(at + 1).map_or(summary.len(), |next| whole(next).start);
        let body = &summary[whole(heading).end..end];
        let terms =
            TERMS.iter().flat_map(|pattern| pattern.captures_iter(body)).map(|found| found[1].to_owned());
        let terms: BTreeSet<String> = terms.filter(|term| before.contains(term.as_str())).collect();
        if !terms.is_empty() {
            sections.insert(*name, terms);
        }
    }
    sections
}

/// The number of instructions that occur in a text verbatim, ignoring differences in white space.
pub fn verbatim(text: &str, instructions: &[String]) -> usize {
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = flat(text);
    instructions.iter().filter(|instruction| text.contains(&flat(instruction))).count()
}

/// The conversation with each instruction inserted as a separate user turn, spread over the middle.
pub fn planted(messages: &[Message], instructions: &[String]) -> Vec<Message> {
    let is_place = |at: &usize| match &messages[*at] {
        Message::User(_) => true,
        Message::Agent(_) => !matches!(messages[at - 1], Message::Agent(_)),
        Message::Result { .. } => false,
    };
    let places: Vec<usize> = (messages.len() / 8..messages.len() * 5 / 8).filter(is_place).collect();
    let place = |nth: usize| places[nth * places.len() / instructions.len()];
    let mut planted = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        for (_, instruction) in instructions.iter().enumerate().filter(|(nth, _)| place(*nth) == at) {
            planted.push(Message::User(instruction.clone()));
            planted.push(Message::Agent(vec![super::corpus::Block::Text("Ok.".to_owned())]));
        }
        planted.push(message.clone());
    }
    planted
}

/// Counts the lines of a message that report something as failed or open, and those that the log confirms.
#[derive(Default)]
pub struct Truth {
    pub right: usize,
    pub wrong: Vec<String>,
}

/// Checks each line against the log: a command has failed if the named run failed and no later run of the
/// same command ended differently; a step of the plan has the status given in the newest plan.
pub fn truth(text: &str, session: &Session, thread: &Thread) -> Truth {
    static LAST: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\(last e(\d+)").expect("a pattern"));
    static STEP: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^- \[(\w+)\] (.*)$").expect("a pattern"));
    let plan = baseline::plan(&baseline::calls(&session.messages));
    let mut truth = Truth::default();
    let mut heading = "";
    for line in text.lines() {
        if let Some(new) = line.strip_prefix("## ") {
            heading = new;
        }
        let is_right = if heading.starts_with("Commands that failed") && line.starts_with("- `") {
            LAST.captures(line)
                .and_then(|last| last[1].parse().ok())
                .is_some_and(|entry| has_failed_last(thread, Seq(entry)))
        } else if let Some(step) =
            STEP.captures(line).filter(|step| heading == "Plan" && &step[1] != "completed")
        {
            let begins = |text: &str| {
                step[2]
                    .split(" […]")
                    .next()
                    .is_some_and(|begin| begin.starts_with(&text.chars().take(40).collect::<String>()))
            };
            plan.iter().any(|(status, text)| *status == step[1] && begins(&flat_line(text)))
                || is_in_newest_script(thread, &step[2], &step[1])
        } else {
            continue;
        };
        if is_right {
            truth.right += 1;
        } else {
            truth.wrong.push(format!("{}: {heading}: {line}", session.name));
        }
    }
    truth
}

/// Whether the newest call whose text has this step of a plan gives it this status. Codex writes plans in scripts.
fn is_in_newest_script(thread: &Thread, step: &str, status: &str) -> bool {
    let begin = step.split(" […]").next().unwrap_or_default();
    let newest = thread.entries().iter().rev().find_map(|entry| {
        let text = entry.change.calls().map(|call| call.input.to_string()).collect::<String>();
        let (_, after) = text.split_once(begin)?;
        Some(after.chars().take(60).collect::<String>())
    });
    newest.is_some_and(|after| after.contains(status))
}

/// The command before its first pipe that is not in quotation marks.
fn before_pipe(command: &str) -> &str {
    let mut quote = None;
    for (at, c) in command.char_indices() {
        match (quote, c) {
            (None, '|') => return &command[..at],
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    command
}

/// The text as it appears in one line of a message.
fn flat_line(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ⏎ ")
}

/// Whether the call with this outcome failed, and every later call of the same command failed too.
fn has_failed_last(thread: &Thread, entry: Seq) -> bool {
    let core = |call: &epitome::thread::CallId| {
        let input = &thread.call(call)?.input;
        let command = input["command"].as_str().or(input["input"].as_str())?;
        let command = before_pipe(command).trim().trim_end_matches("2>&1");
        let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(
            command
                .strip_prefix("cd ")
                .and_then(|rest| Some(rest.split_once(" && ")?.1.to_owned()))
                .unwrap_or(command),
        )
    };
    let outcomes = thread.entries().iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some((entry.seq, outcome)),
        _ => None,
    });
    let outcomes: Vec<_> = outcomes.collect();
    let Some((_, named)) = outcomes.iter().find(|(seq, _)| *seq == entry) else { return false };
    let command = core(&named.call);
    let mut runs = outcomes.iter().filter(|(seq, outcome)| *seq >= entry && core(&outcome.call) == command);
    command.is_some()
        && runs.all(|(_, outcome)| {
            let text = outcome.model_text();
            let printed =
                || text.split_once("\"exit_code\":")?.1.split([',', '}']).next()?.trim().parse().ok();
            let code = outcome.raw.as_ref().and_then(|raw| raw["exitCode"].as_i64()).or_else(printed);
            let was_run =
                !["The user doesn't want", "<tool_use_error>"].iter().any(|begin| text.starts_with(begin));
            was_run
                && (outcome.status == epitome::thread::OutcomeStatus::Failed
                    || code.is_some_and(|code| code != 0))
        })
}
