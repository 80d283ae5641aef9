//! The tables, as Markdown.

use epitome::config::Settings;
use epitome::provider::models::price;
use epitome::thread::ModelName;

use crate::bench::corpus::Corpus;
use crate::bench::measure::SECTIONS;
use crate::bench::ways::MODEL;
use crate::retention::{Asked, Mean, Results, Score, TAILS, Way};
use crate::speed::Time;

/// Number of further requests whose price is reported.
const REQUESTS: f64 = 100.0;

const ALL: [Way; 9] = [
    Way::Ours,
    Way::OursHalf,
    Way::OursWithSummary,
    Way::Summary,
    Way::SummaryCut,
    Way::Baseline,
    Way::BaselineHalf,
    Way::Tail,
    Way::MaskedTail,
];

/// The columns: measure and heading.
fn columns() -> Vec<(Asked, String)> {
    let plain = [
        (Asked::Facts, "facts"),
        (Asked::Files, "files used later"),
        (Asked::Identifiers, "identifiers"),
        (Asked::Hashes, "hashes"),
    ];
    let sections =
        SECTIONS.iter().enumerate().map(|(at, (_, name))| (Asked::Section(at), (*name).to_owned()));
    plain.into_iter().map(|(asked, name)| (asked, name.to_owned())).chain(sections).collect()
}

/// The full report.
pub fn whole(corpus: &Corpus, results: &Results, times: &[Time]) -> String {
    let columns = columns();
    let mut parts = vec![
        "# KeepBench".to_owned(),
        about(corpus, results),
        "## Kept without any of the conversation behind it, in per cent".to_owned(),
        ways(results, &ALL, &columns),
        "## Kept, and what it costs".to_owned(),
        curve(results),
        "## Instructions".to_owned(),
        instructions(corpus, results),
        "## Lines that call something failed or open".to_owned(),
        truth(results),
    ];
    if !times.is_empty() {
        parts.extend(["## Time".to_owned(), self::times(times)]);
    }
    parts.join("\n\n")
}

const COLUMNS: &str = "\
Each number is the share, in per cent, that the model still sees after the compaction. *facts*: written down from three
of the sessions before any output was seen. *files used later*: files that the agent went on to use. *pending*, *current
work*, *next step*: names in those sections of the summary that Claude Code's model wrote at the same point; a dash
where that summary is part of the row. *baseline*: 200 lines of code that collect the obvious.";

/// The section for the README.
pub fn short(corpus: &Corpus, results: &Results) -> String {
    let shown = [Way::Ours, Way::OursWithSummary, Way::Summary, Way::Baseline, Way::Tail];
    let columns: Vec<_> = columns()
        .into_iter()
        .filter(|(asked, _)| !matches!(asked, Asked::Identifiers | Asked::Hashes | Asked::Section(3..)))
        .collect();
    let parts = [ways(results, &shown, &columns), COLUMNS.to_owned(), truth(results), about(corpus, results)];
    parts.join("\n\n")
}

fn about(corpus: &Corpus, results: &Results) -> String {
    let facts: usize = corpus.facts.values().map(Vec::len).sum();
    let ours = results.ways.get(&Way::Ours).map_or(0, |score| score.chars.count());
    let mut text = format!(
        "{} sessions, of which {ours} were compacted; {facts} facts of {} of them, {} instructions.",
        corpus.sessions.len() + corpus.faults.len(),
        corpus.facts.len(),
        corpus.instructions.len(),
    );
    for fault in &results.faults {
        text.push_str(&format!("\nNot compacted: {fault}"));
    }
    text
}

fn ways(results: &Results, shown: &[Way], columns: &[(Asked, String)]) -> String {
    let mut head = vec!["way".to_owned()];
    head.extend(columns.iter().map(|(_, name)| name.clone()));
    head.push("characters".to_owned());
    let rows = shown.iter().filter_map(|way| {
        let score = results.ways.get(way)?;
        // The terms were extracted from this text.
        let is_source = |asked: Asked| {
            matches!(asked, Asked::Section(_))
                && matches!(way, Way::Summary | Way::SummaryCut | Way::OursWithSummary)
        };
        let mut row = vec![way.title().to_owned()];
        row.extend(
            columns
                .iter()
                .map(|(asked, _)| if is_source(*asked) { "–".to_owned() } else { percent(score, *asked) }),
        );
        row.push(score.chars.value().map_or_else(dash, |chars| format!("{chars:.0}")));
        Some(row)
    });
    table(&head, rows)
}

fn curve(results: &Results) -> String {
    let price = price(&Settings::default(), &ModelName(MODEL.to_owned()));
    let head = [
        "kept",
        "facts",
        "files used later",
        "identifiers",
        "current work",
        "next step",
        "tail alone: facts",
        "files",
        "next step",
        "tokens",
        "USD",
    ];
    let rows = TAILS.iter().zip(&results.curve).map(|(ratio, point)| {
        let of = |score: &Score, asked: Asked| percent(score, asked);
        let tokens = point.tokens.value().unwrap_or_default();
        let dollars = price
            .as_ref()
            .map_or_else(dash, |price| format!("{:.2}", tokens * REQUESTS * price.cache_read / 1e6));
        vec![
            format!("{:.0} %", ratio * 100.0),
            of(&point.both, Asked::Facts),
            of(&point.both, Asked::Files),
            of(&point.both, Asked::Identifiers),
            of(&point.both, Asked::Section(1)),
            of(&point.both, Asked::Section(2)),
            of(&point.tail, Asked::Facts),
            of(&point.tail, Asked::Files),
            of(&point.tail, Asked::Section(2)),
            format!("{:.1}k", tokens / 1e3),
            dollars,
        ]
    });
    let table = table(&head.map(str::to_owned), rows);
    format!(
        "{table}\n\nkept: `preserve_ratio`, the part of the window that stays word for word. tokens: of all that a further request carries of the conversation. USD: {REQUESTS:.0} such requests read from the cache, at the price of `{MODEL}`."
    )
}

fn instructions(corpus: &Corpus, results: &Results) -> String {
    let head = ["window", "present word for word"].map(str::to_owned);
    let all = corpus.instructions.len();
    table(
        &head,
        results
            .instructions
            .iter()
            .map(|(window, kept)| vec![window.to_string(), format!("{kept} of {all}")]),
    )
}

fn truth(results: &Results) -> String {
    let right = results.truth.right;
    let all = right + results.truth.wrong.len();
    format!(
        "Of {all} lines of Epitome's messages that call a command failed or a step of the plan open, {right} ({}) are right by the log: \
         the command failed when it last ran, the step has that status in the newest plan.",
        percent_of(right, all)
    )
}

pub fn times(times: &[Time]) -> String {
    let head = ["tokens", "plan, ms", "message, ms", "both", "wanted"].map(str::to_owned);
    let rows = times.iter().map(|time| {
        vec![
            format!("{}k", time.tokens / 1_000),
            format!("{:.1}", time.plan),
            format!("{:.1}", time.message),
            format!("{:.1}", time.plan + time.message),
            format!("≤ {:.0}", time.wanted),
        ]
    });
    table(&head, rows)
}

fn percent(score: &Score, asked: Asked) -> String {
    let share = score.asked.get(&asked).copied().and_then(Mean::value);
    share.map_or_else(dash, |share| format!("{:.0}", share * 100.0))
}

fn percent_of(part: usize, all: usize) -> String {
    if all == 0 { dash() } else { format!("{:.0} %", part as f64 * 100.0 / all as f64) }
}

fn dash() -> String {
    "–".to_owned()
}

fn table(head: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let align: Vec<&str> =
        head.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "--:" }).collect();
    let mut lines = vec![line(head), format!("| {} |", align.join(" | "))];
    lines.extend(rows.map(|row| line(&row)));
    lines.join("\n")
}
