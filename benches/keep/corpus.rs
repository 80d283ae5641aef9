//! Conversations and summaries from elsewhere: real sessions with stored summaries (`--corpus DIR`), and the score
//! of any stored summary. `benches/keep/README.md` has the format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use epitome::thread::OutcomeStatus;
use serde::Deserialize;
use serde_json::Value;

use crate::bench::plant::{Fact, Kind};
use crate::bench::session::{Session, Step, ended, outcome, replied, ruler, said, tokens};
use crate::bench::strategy;
use crate::measure::Score;

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

/// Scores by who wrote the summary: alone, with the ledger, and the ledger without it, all at the same tokens.
pub type ByWriter = BTreeMap<String, [Score; 3]>;

/// A session with its stored summaries, by writer.
pub struct Stored {
    pub session: Session,
    pub summaries: BTreeMap<String, String>,
}

/// Reads `NAME.jsonl` with `NAME.facts.json` and `NAME.summary.WRITER.md` for each name.
pub fn read(directory: &Path) -> Result<Vec<Stored>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read the corpus {}", directory.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut all = Vec::new();
    for file in &files {
        let Some(name) = name_of(file).and_then(|name| name.strip_suffix(".jsonl").map(str::to_owned)) else {
            continue;
        };
        let session = session(&name, file)?;
        let prefix = format!("{name}.summary.");
        let mut summaries = BTreeMap::new();
        for other in &files {
            let Some(other_name) = name_of(other) else { continue };
            let writer = other_name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".md"));
            if let Some(writer) = writer {
                summaries.insert(writer.to_owned(), text(other)?);
            }
        }
        all.push(Stored { session, summaries });
    }
    ensure!(!all.is_empty(), "{} has no session: a session is a file NAME.jsonl", directory.display());
    Ok(all)
}

fn session(name: &str, file: &Path) -> Result<Session> {
    let mut steps = Vec::new();
    let (mut calls, mut answered) = (0, 0);
    for (at, line) in text(file)?.lines().enumerate() {
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
    let facts = file.with_extension("facts.json");
    let facts: Vec<ToldFact> = match facts.exists() {
        true => serde_json::from_str(&text(&facts)?).with_context(|| facts.display().to_string())?,
        false => Vec::new(),
    };
    let facts = facts.into_iter().map(|ToldFact { kind, anchor, about, values, depth }| {
        let kind = Kind::of_title(&kind).with_context(|| format!("{name}: no kind is called {kind:?}"))?;
        Ok(Fact { kind, anchor, about, values, pinned: false, depth })
    });
    let facts = facts.collect::<Result<Vec<Fact>>>()?;
    let ruler = ruler();
    let size = steps.iter().map(|step| tokens(&ruler, &step.change)).sum();
    Ok(Session { name: name.to_owned(), steps, facts, tokens: size })
}

fn text(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Scores stored summaries at `budget` tokens, those that are longer cut.
pub fn score<'a>(
    summaries: impl IntoIterator<Item = (&'a str, &'a Session, &'a str)>,
    budget: u64,
) -> ByWriter {
    let mut by_writer = ByWriter::new();
    for (writer, session, summary) in summaries {
        let [alone, with_ledger, ledger] = by_writer.entry(writer.to_owned()).or_default();
        alone.add(session, &strategy::summary(summary, budget));
        for (score, text) in [(with_ledger, Some(summary.to_owned())), (ledger, None)] {
            match strategy::epitome(session, 1, budget, |_| text.clone()) {
                Ok(left) => score.add(session, &left),
                Err(why) => score.failures.push(why),
            }
        }
    }
    by_writer
}
