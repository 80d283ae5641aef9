//! The tables, as Markdown.

use std::collections::BTreeMap;

use epitome::config::Settings;
use epitome::provider::models::price;
use epitome::thread::ModelName;

use crate::bench::corpus::Corpus;
use crate::bench::measure::SECTIONS;
use crate::bench::ways::MODEL;
use crate::retention::{Asked, Group, Mean, Results, Score, TAILS, Way};
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

/// The sides of the split, and their headings.
const SIDES: [(bool, &str); 2] = [(true, "Sessions held back"), (false, "Sessions tuned on")];

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
pub fn whole(corpus: &Corpus, results: &Results, surprises: &[(&str, Mean)], times: &[Time]) -> String {
    let columns = columns();
    let mut parts = vec![
        "# KeepBench".to_owned(),
        about(corpus, results),
        "## Kept without any of the conversation behind it, in per cent".to_owned(),
    ];
    for (is_held_back, title) in SIDES {
        let scores = results.scores(|group| group.is_held_back == is_held_back);
        if !scores.is_empty() {
            parts.extend([format!("### {title}"), ways(&scores, &ALL, &columns)]);
        }
    }
    parts.extend([
        "## By agent".to_owned(),
        agents(results),
        "## Facts after one, two and three compactions".to_owned(),
        generations(results),
        "## Kept, and what it costs".to_owned(),
        curve(results),
        "## Instructions".to_owned(),
        instructions(corpus, results),
        "## Lines that call something failed or open".to_owned(),
        truth(results),
    ]);
    if !surprises.is_empty() {
        parts.extend(["## Surprise at what the agent did next".to_owned(), self::surprises(surprises)]);
    }
    if !times.is_empty() {
        parts.extend(["## Time".to_owned(), self::times(times)]);
    }
    parts.join("\n\n")
}

const COLUMNS: &str = "\
Per cent of what the model still sees after the compaction. *facts*: written down before any output was seen. *files used
later*: files that the agent went on to use. *pending*, *current work*, *next step*: names in those sections of the
summary that the agent's model wrote at that point. *baseline*: a 200-line extractor.";

/// The section for the README.
pub fn short(corpus: &Corpus, results: &Results) -> String {
    let shown = [Way::Ours, Way::Baseline, Way::OursHalf, Way::BaselineHalf, Way::Summary, Way::Tail];
    let columns: Vec<_> = columns()
        .into_iter()
        .filter(|(asked, _)| !matches!(asked, Asked::Identifiers | Asked::Hashes | Asked::Section(3..)))
        .collect();
    let held_back = results.scores(|group| group.is_held_back);
    let claims = format!("{}\n{}", truth(results), about(corpus, results));
    [ways(&held_back, &shown, &columns), COLUMNS.to_owned(), claims].join("\n\n")
}

fn about(corpus: &Corpus, results: &Results) -> String {
    let facts: usize = corpus.facts.values().map(Vec::len).sum();
    let count = |is_selected: fn(&Group) -> bool| {
        results.scores(is_selected).get(&Way::Ours).map_or(0, |score| score.chars.count())
    };
    let (ours, held_back) = (count(|_| true), count(|group| group.is_held_back));
    let all = corpus.sessions.len() + corpus.faults.len();
    let compacted = if ours == all { "all".to_owned() } else { ours.to_string() };
    let mut text = format!(
        "{all} sessions, {compacted} compacted, {held_back} held back; {facts} facts of {} sessions, {} instructions.",
        corpus.facts.len(),
        corpus.instructions.texts.len(),
    );
    for fault in &results.faults {
        text.push_str(&format!("\nNot compacted: {fault}"));
    }
    text
}

fn ways(scores: &BTreeMap<Way, Score>, shown: &[Way], columns: &[(Asked, String)]) -> String {
    let mut head = vec!["way".to_owned()];
    head.extend(columns.iter().map(|(_, name)| name.clone()));
    head.push("characters".to_owned());
    let rows = shown.iter().filter_map(|way| {
        let score = scores.get(way)?;
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

/// The most important measures by agent and side.
fn agents(results: &Results) -> String {
    const SHOWN: [(Way, &str); 4] = [
        (Way::Ours, "Epitome"),
        (Way::Baseline, "baseline"),
        (Way::OursHalf, "Epitome, half"),
        (Way::BaselineHalf, "baseline, half"),
    ];
    let mut head = vec!["agent".to_owned(), "sessions".to_owned()];
    for measure in ["facts", "files used later"] {
        head.extend(SHOWN.map(|(_, way)| format!("{measure}: {way}")));
    }
    let rows = results.ways.iter().map(|(group, ways)| {
        let side = if group.is_held_back { "held back" } else { "tuned on" };
        let sessions = ways.get(&Way::Ours).map_or(0, |score| score.chars.count());
        let mut row = vec![format!("{}, {side}", group.agent), sessions.to_string()];
        for asked in [Asked::Facts, Asked::Files] {
            row.extend(SHOWN.map(|(way, _)| ways.get(&way).map_or_else(dash, |score| percent(score, asked))));
        }
        row
    });
    table(&head, rows)
}

fn generations(results: &Results) -> String {
    let head = ["way", "facts", "first", "second", "third"].map(str::to_owned);
    let sides = results.generations.iter().filter(|(_, kept)| kept[0][0].count() > 0);
    let rows = sides.flat_map(|(is_held_back, kept)| {
        let side = if *is_held_back { "held back" } else { "tuned on" };
        ["Epitome", "baseline"].into_iter().enumerate().map(move |(way, name)| {
            let mut row = vec![format!("{name}, {side}"), kept[0][way].count().to_string()];
            let shares = kept.iter().map(|ways| ways[way].value());
            row.extend(shares.map(|share| share.map_or_else(dash, |share| format!("{:.0}", share * 100.0))));
            row
        })
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
    let all = corpus.instructions.texts.len();
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
        "{right} of {all} claims that a command failed when it last ran, or that a step of the plan is open, match the log."
    )
}

fn surprises(surprises: &[(&str, Mean)]) -> String {
    let head = ["given", "sessions", "bits a token"].map(str::to_owned);
    let row = |(way, bits): &(&str, Mean)| {
        let value = bits.value().map_or_else(dash, |bits| format!("{bits:.2}"));
        vec![(*way).to_owned(), bits.count().to_string(), value]
    };
    table(&head, surprises.iter().map(row))
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
