//! Conversations from elsewhere (`--corpus DIR`): what `epitome sessions import` reads, with facts planted into it, and
//! sessions with stored summaries. `benches/keep/README.md` has the forms.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use epitome::thread::{CallId, Change, Entry, ModelName, OutcomeStatus, ToolOutcome};
use epitome::transfer::{self, Circumstances, Draft, IMPORT_BYTES_MAX, Source};
use serde::Deserialize;
use serde_json::Value;

use super::generate::planted;
use super::phrases::Half;
use super::plant::{Fact, Kind};
use super::session::{Session, Step, ended, outcome, replied, ruler, said, tokens};

/// What the importer puts before a summary of pi's.
const PI_SUMMARY_HEAD: &str = "A summary of what was said and done so far:\n\n";

/// A line of a session's file.
#[derive(Deserialize)]
#[serde(tag = "role", rename_all = "snake_case", deny_unknown_fields)]
enum Told {
    User {
        text: String,
    },
    Assistant {
        #[serde(default)]
        text: String,
        #[serde(default)]
        calls: Vec<ToldCall>,
    },
    Tool {
        text: String,
        #[serde(default)]
        failed: bool,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToldCall {
    name: String,
    input: Value,
}

/// An object of a session's file of facts, which a person writes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToldFact {
    kind: String,
    anchor: String,
    #[serde(default)]
    about: String,
    #[serde(default)]
    values: Vec<String>,
    /// Where it is told, as a share of the session.
    #[serde(default)]
    depth: f64,
}

/// A session with its stored summaries, by writer.
pub struct Stored {
    pub session: Session,
    pub summaries: BTreeMap<String, String>,
}

/// What a directory holds.
#[derive(Default)]
pub struct Corpus {
    /// Sessions that have summaries.
    pub stored: Vec<Stored>,
    /// Imported sessions with facts planted in the open phrases, and in the others.
    pub open: Vec<Session>,
    pub held_out: Vec<Session>,
    /// What a person should know of each file: a line each.
    pub told: Vec<String>,
}

/// Reads all conversations of a directory, and plants `each` facts of each kind into those that were imported. A file
/// that cannot be read is told of; an error when there is no other.
pub fn read(directory: &Path, seed: u64, each: usize) -> Result<Corpus> {
    let unreadable = || format!("cannot read the corpus {}", directory.display());
    let entries = std::fs::read_dir(directory).with_context(unreadable)?;
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .with_context(unreadable)?;
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        file.is_file()
            && !name.ends_with(".facts.json")
            && !(name.contains(".summary.") && name.ends_with(".md"))
    });
    files.sort();
    let mut corpus = Corpus::default();
    let mut is_empty = true;
    for file in &files {
        match corpus.add(file, seed, each) {
            Ok(()) => is_empty = false,
            Err(error) => corpus.told.push(format!("{error:#}")),
        }
    }
    let told: String = corpus.told.iter().map(|line| format!("\n{line}")).collect();
    ensure!(!is_empty, "{} has no conversation that can be read{told}", directory.display());
    Ok(corpus)
}

impl Corpus {
    fn add(&mut self, file: &Path, seed: u64, each: usize) -> Result<()> {
        let text = text(file)?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        if is_ours(&text) {
            let session = session(&name, told(file, &text)?, given(file, &name)?);
            self.stored.push(Stored { session, summaries: summaries(file, &name)? });
            return Ok(());
        }
        let circumstances = Circumstances { cwd: Path::new("/work/app"), now: 0 };
        let drafts =
            transfer::read(file, &text, &circumstances).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        let several = drafts.len() > 1;
        // Nothing of a file is taken when a part of it can't be.
        let mut new = Corpus::default();
        for (nth, draft) in (1..).zip(drafts) {
            let name = if several { format!("{name}-{nth}") } else { name.to_string() };
            let real = session(&name, steps(&draft.entries), given(file, &name)?);
            new.told.push(told_of(&real, &draft));
            let seed = seed + (self.open.len() + new.open.len()) as u64;
            new.open.push(planted(&real, seed, each, Half::Open)?);
            new.held_out.push(planted(&real, seed, each, Half::HeldOut)?);
            if draft.source == Source::Pi && !real.facts.is_empty() {
                new.stored.extend(compacted(&real, &draft, &text));
            }
            let summaries = summaries(file, &name)?;
            if !summaries.is_empty() {
                new.stored.push(Stored { session: real, summaries });
            }
        }
        self.stored.extend(new.stored);
        self.open.extend(new.open);
        self.held_out.extend(new.held_out);
        self.told.extend(new.told);
        Ok(())
    }
}

fn told_of(session: &Session, draft: &Draft) -> String {
    let turns = session.steps.iter().filter(|step| matches!(step.change, Change::TurnEnded { .. })).count();
    let left_out = match draft.source {
        // Those are about what may be done in a session that is gone on with.
        Source::Export => String::new(),
        Source::Transcript | Source::Pi => draft.notes.iter().map(|note| format!("; {note}")).collect(),
    };
    format!("{}: {}, {turns} turns, {} tokens{left_out}", session.name, draft.source.words(), session.tokens)
}

/// What was said and done, without what changes how a log is shown: it names entries by numbers, which planted ones
/// shift.
fn steps(entries: &[Entry]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut open: Vec<CallId> = Vec::new();
    let mut in_turn = false;
    for Entry { change, .. } in entries {
        match change {
            Change::Replied { message, .. } => open.extend(message.calls().map(|call| call.id.clone())),
            Change::ToolFinished { outcome } => open.retain(|call| *call != outcome.call),
            // Of a command that only the program answered.
            Change::TurnEnded { .. } if !in_turn => continue,
            Change::Said { .. } | Change::Planned { .. } | Change::TurnEnded { .. } => {}
            _ => continue,
        }
        in_turn = !matches!(change, Change::TurnEnded { .. });
        steps.push(Step::plain(change.clone()));
    }
    for call in open {
        let outcome = ToolOutcome::text(call, OutcomeStatus::Interrupted, "No result was recorded.");
        steps.push(Step::plain(Change::ToolFinished { outcome }));
    }
    if in_turn {
        steps.push(Step::plain(ended()));
    }
    steps
}

/// Each summary that the model of a session of pi wrote, with the session as far as it was to sum it up and the facts
/// that were told there.
fn compacted(real: &Session, draft: &Draft, text: &str) -> Vec<Stored> {
    let mut model = None;
    let mut stored = Vec::new();
    for entry in &draft.entries {
        match (&entry.change, model) {
            (Change::Replied { model: replied, .. }, _) => model = Some(replied),
            (Change::Compacted { through, summary, .. }, Some(model)) => {
                let summary = summary.text();
                let summary = summary.strip_prefix(PI_SUMMARY_HEAD).unwrap_or(&summary);
                if !wrote(text, summary, model) {
                    continue;
                }
                let until = draft.entries.partition_point(|entry| entry.seq <= *through);
                let name = format!("{} up to {through}", real.name);
                let mut session = session(&name, steps(&draft.entries[..until]), Vec::new());
                let share = session.tokens as f64 / real.tokens as f64;
                let told = real.facts.iter().filter(|fact| fact.depth < share).cloned();
                session.facts = told.map(|fact| Fact { depth: fact.depth / share, ..fact }).collect();
                let summaries = BTreeMap::from([(model.0.clone(), summary.to_owned())]);
                stored.push(Stored { session, summaries });
            }
            _ => {}
        }
    }
    stored
}

/// Whether the file leaves no doubt that this model wrote the summary: no extension did, and no other model was chosen
/// since the model's reply.
fn wrote(text: &str, summary: &str, model: &ModelName) -> bool {
    let mut newest = Value::Null;
    for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        match line["type"].as_str() {
            Some("model_change") => newest = line["modelId"].clone(),
            Some("message") if line["message"]["role"] == "assistant" => {
                newest = line["message"]["model"].clone()
            }
            Some("compaction") if line["summary"] == summary => {
                let known = newest.as_str().is_some_and(|newest| model.0.ends_with(&format!("/{newest}")));
                return known && line["fromHook"] != true;
            }
            Some(_) | None => {}
        }
    }
    false
}

/// Whether a text is of our own lines, by its first one.
fn is_ours(text: &str) -> bool {
    let first = text.lines().next().and_then(|line| serde_json::from_str::<Value>(line).ok());
    first.is_some_and(|first| first["role"].is_string())
}

/// The summaries `NAME.summary.WRITER.md` beside a session, by writer.
fn summaries(file: &Path, name: &str) -> Result<BTreeMap<String, String>> {
    let prefix = format!("{name}.summary.");
    let mut summaries = BTreeMap::new();
    for other in file.parent().unwrap_or(Path::new(".")).read_dir()? {
        let other = other?.path();
        let other_name = other.file_name().unwrap_or_default().to_string_lossy();
        let writer = other_name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".md"));
        if let Some(writer) = writer {
            summaries.insert(writer.to_owned(), text(&other)?);
        }
    }
    Ok(summaries)
}

fn told(file: &Path, lines: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let (mut calls, mut answered) = (0, 0);
    for (at, line) in lines.lines().enumerate() {
        let place = || format!("{}:{}", file.display(), at + 1);
        let told: Told = serde_json::from_str(line).with_context(place)?;
        match told {
            Told::User { text } => {
                if !steps.is_empty() {
                    steps.push(Step::plain(ended()));
                }
                steps.push(Step::plain(said(text)));
            }
            Told::Assistant { text, calls: asked } => {
                let first = calls;
                calls += asked.len();
                let asked = asked.iter().map(|call| (call.name.as_str(), call.input.clone())).collect();
                steps.push(Step::plain(replied(text, asked, first)));
            }
            Told::Tool { text, failed } => {
                ensure!(answered < calls, "{}: an outcome without its call", place());
                let status = if failed { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
                steps.push(Step::plain(outcome(answered, status, text, None)));
                answered += 1;
            }
        }
    }
    Ok(steps)
}

/// The facts that a person wrote, `NAME.facts.json`, if there are any.
fn given(file: &Path, name: &str) -> Result<Vec<Fact>> {
    let facts = file.with_file_name(format!("{name}.facts.json"));
    let facts: Vec<ToldFact> = match facts.exists() {
        true => serde_json::from_str(&text(&facts)?).with_context(|| facts.display().to_string())?,
        false => Vec::new(),
    };
    let facts = facts.into_iter().map(|ToldFact { kind, anchor, about, values, depth }| {
        let kind = Kind::of_title(&kind).with_context(|| format!("{name}: no kind is called {kind:?}"))?;
        Ok(Fact { kind, anchor, about, values, pinned: false, depth })
    });
    facts.collect()
}

fn session(name: &str, steps: Vec<Step>, facts: Vec<Fact>) -> Session {
    let ruler = ruler();
    let size = steps.iter().map(|step| tokens(&ruler, &step.change)).sum();
    Session { name: name.to_owned(), steps, facts, tokens: size }
}

fn text(file: &Path) -> Result<String> {
    let unreadable = || format!("cannot read {}", file.display());
    let mut text = String::new();
    let opened = File::open(file).with_context(unreadable)?;
    opened.take(IMPORT_BYTES_MAX + 1).read_to_string(&mut text).with_context(unreadable)?;
    ensure!(
        text.len() as u64 <= IMPORT_BYTES_MAX,
        "{} has more than {IMPORT_BYTES_MAX} bytes",
        file.display()
    );
    Ok(text)
}
