//! Measures how much of a corpus's sessions each way retains.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use epitome::compaction::KeptTail;
use epitome::config::{CompactionSettings, CompactionThreshold};

use crate::bench::baseline;
use crate::bench::corpus::{Corpus, Fact, Message, Session};
use crate::bench::measure::{Later, SECTIONS, Truth, holds, planted, section_terms, share, truth, verbatim};
use crate::bench::surprise::{Oracle, next_words};
use crate::bench::ways::{Ours, cut, masked_tail, ruler, tail};

/// A way of shortening a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Ours,
    OursHalf,
    OursWithSummary,
    Summary,
    SummaryCut,
    Baseline,
    BaselineHalf,
    Tail,
    MaskedTail,
}

impl Way {
    pub fn title(self) -> &'static str {
        match self {
            Way::Ours => "Epitome, no model",
            Way::OursHalf => "Epitome, no model, half the size",
            Way::OursWithSummary => "Epitome with the stored summary",
            Way::Summary => "stored summary alone",
            Way::SummaryCut => "stored summary, cut to Epitome's size",
            Way::Baseline => "baseline, Epitome's size",
            Way::BaselineHalf => "baseline, half the size",
            Way::Tail => "end of the conversation",
            Way::MaskedTail => "the same, results cut to 200 characters",
        }
    }
}

/// The measures for each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    Facts,
    Files,
    Identifiers,
    Hashes,
    /// Terms of a section of the stored summary, by the index of the section.
    Section(usize),
}

/// The sessions of one agent on one side of the split: held back, or tuned on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub is_held_back: bool,
    pub agent: String,
}

/// The mean of shares from 0 to 1, with their count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    pub fn add(&mut self, share: Option<f64>) {
        self.sum += share.unwrap_or_default();
        self.count += usize::from(share.is_some());
    }

    pub fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    pub fn count(self) -> usize {
        self.count
    }

    fn merge(&mut self, other: Mean) {
        self.sum += other.sum;
        self.count += other.count;
    }
}

#[derive(Default)]
pub struct Score {
    pub asked: BTreeMap<Asked, Mean>,
    pub chars: Mean,
}

impl Score {
    fn add(&mut self, asked: Asked, share: Option<f64>) {
        self.asked.entry(asked).or_default().add(share);
    }

    fn merge(&mut self, other: &Score) {
        for (asked, mean) in &other.asked {
            self.asked.entry(*asked).or_default().merge(*mean);
        }
        self.chars.merge(other.chars);
    }
}

/// Shares of the window that are kept verbatim after the message.
pub const TAILS: [f64; 5] = [0.0, 0.05, 0.1, 0.2, 0.4];
/// How often a session is compacted to count what is left of its facts.
pub const GENERATIONS: usize = 3;
/// Windows in which instructions are planted, in tokens.
pub const WINDOWS: [u64; 3] = [200_000, 64_000, 32_000];

/// A point of the curve: the retention of message and tail together, that of the tail alone, and their tokens.
#[derive(Default)]
pub struct Point {
    pub both: Score,
    pub tail: Score,
    pub tokens: Mean,
}

#[derive(Default)]
pub struct Results {
    pub ways: BTreeMap<Group, BTreeMap<Way, Score>>,
    /// By side of the split and generation: the facts that Epitome's message and the baseline keep.
    pub generations: BTreeMap<bool, [[Mean; 2]; GENERATIONS]>,
    pub curve: [Point; TAILS.len()],
    /// By window: how many of the instructions the message contains verbatim.
    pub instructions: Vec<(u64, usize)>,
    pub truth: Truth,
    /// Sessions that were not compacted, and why.
    pub faults: Vec<String>,
    pub missing: Vec<String>,
    pub messages: BTreeMap<String, String>,
}

impl Results {
    /// The scores of all groups together that the filter selects.
    pub fn scores(&self, is_selected: impl Fn(&Group) -> bool) -> BTreeMap<Way, Score> {
        let mut scores: BTreeMap<Way, Score> = BTreeMap::new();
        for ways in self.ways.iter().filter(|(group, _)| is_selected(group)).map(|(_, ways)| ways) {
            for (way, score) in ways {
                scores.entry(*way).or_default().merge(score);
            }
        }
        scores
    }
}

/// Files, identifiers and summary terms to look for in one session.
struct Questions {
    later: Option<Later>,
    sections: BTreeMap<&'static str, std::collections::BTreeSet<String>>,
}

pub fn measure(corpus: &Corpus) -> Result<Results> {
    let mut results = Results { faults: corpus.faults.clone(), ..Results::default() };
    for session in &corpus.sessions {
        if let Err(fault) = one(corpus, session, &mut results) {
            results.faults.push(format!("{}: {fault}", session.name));
        }
    }
    // The longest session, which has the most to retain.
    let host = corpus.sessions.iter().max_by_key(|session| session.messages.len());
    for window in WINDOWS {
        let Some(host) = host.filter(|_| !corpus.instructions.texts.is_empty()) else { break };
        let host = Session::of(&host.name, planted(&host.messages, &corpus.instructions.messages))?;
        let message = Ours { window, ..Ours::default() }.message(&host).map_err(anyhow::Error::msg)?;
        results.instructions.push((window, verbatim(&message, &corpus.instructions.texts)));
    }
    for name in corpus.facts.keys() {
        ensure!(
            corpus.session(name).is_some(),
            "gold-facts.json has facts of {name}, and there is no such session"
        );
    }
    Ok(results)
}

fn one(corpus: &Corpus, session: &Session, results: &mut Results) -> Result<(), String> {
    let ours = Ours::default();
    let message = ours.message(session)?;
    let size = message.chars().count();
    let half = ours.half_message(session, size)?;
    let half_size = half.chars().count();
    let mut ways = vec![
        (Way::Baseline, baseline::compact(&session.messages, size)),
        (Way::BaselineHalf, baseline::compact(&session.messages, half_size)),
        (Way::Tail, tail(&session.messages, size)),
        (Way::MaskedTail, masked_tail(&session.messages, size)),
    ];
    if let Some(summary) = &session.summary {
        let with = Ours { summary: Some(summary.clone()), ..ours };
        ways.push((Way::OursWithSummary, with.message(session)?));
        ways.push((Way::Summary, summary.clone()));
        ways.push((Way::SummaryCut, cut(summary, size)));
    }
    let found = truth(&message, session, &session.thread());
    results.truth.right += found.right;
    results.truth.wrong.extend(found.wrong);
    for (name, text) in [(session.name.clone(), &message), (format!("{}.half", session.name), &half)] {
        let facts = corpus.facts.get(&session.name).into_iter().flatten();
        results
            .missing
            .extend(facts.filter(|fact| !holds(text, fact)).map(|fact| format!("{name}: {}", fact.what)));
        results.messages.insert(name, text.clone());
    }
    ways.push((Way::Ours, message));
    ways.push((Way::OursHalf, half));
    let before = session.before();
    let sections =
        session.summary.as_ref().map(|summary| section_terms(summary, &before)).unwrap_or_default();
    let questions = Questions { later: Later::of(session), sections };
    let group = Group { is_held_back: session.is_held_back, agent: session.agent.clone() };
    let scores = results.ways.entry(group).or_default();
    for (way, text) in ways {
        ask(corpus, session, &questions, &text, scores.entry(way).or_default());
    }
    let generations = results.generations.entry(session.is_held_back).or_default();
    generation_facts(corpus.facts.get(&session.name).map_or(&[], Vec::as_slice), session, generations)?;
    curve(corpus, session, &questions, &mut results.curve)
}

fn ask(corpus: &Corpus, session: &Session, questions: &Questions, text: &str, score: &mut Score) {
    score.chars.add(Some(text.chars().count() as f64));
    for fact in corpus.facts.get(&session.name).into_iter().flatten() {
        score.add(Asked::Facts, Some(f64::from(u8::from(holds(text, fact)))));
    }
    if let Some(later) = &questions.later {
        score.add(Asked::Files, share(text, &later.files));
        score.add(Asked::Identifiers, share(text, &later.identifiers));
        score.add(Asked::Hashes, share(text, &later.hashes));
    }
    for (at, (_, section)) in SECTIONS.iter().enumerate() {
        score.add(Asked::Section(at), questions.sections.get(section).and_then(|terms| share(text, terms)));
    }
}

/// The surprise of a model at what the agent did next, given nothing, the end of the conversation, the baseline, Epitome's message,
/// and the stored summary. Only sessions that have one are compared.
pub fn surprises(corpus: &Corpus, results: &Results, oracle: &Oracle) -> Result<Vec<(&'static str, Mean)>> {
    let ways = [Way::Tail, Way::Baseline, Way::Ours, Way::Summary].map(Way::title);
    let mut bits: Vec<(&str, Mean)> =
        ["nothing"].into_iter().chain(ways).map(|way| (way, Mean::default())).collect();
    for session in &corpus.sessions {
        let (Some(next), Some(summary)) = (next_words(session), &session.summary) else { continue };
        let Some(ours) = results.messages.get(&session.name) else { continue };
        let size = ours.chars().count();
        let simple = baseline::compact(&session.messages, size);
        let given = ["", &tail(&session.messages, size), &simple, ours, summary];
        for ((_, bits), given) in bits.iter_mut().zip(given) {
            bits.add(Some(oracle.surprise(&format!("{given}\n\n"), &next)?));
        }
        eprintln!("{}: {:?}", session.name, bits.iter().map(|(_, bits)| bits.value()).collect::<Vec<_>>());
    }
    Ok(bits)
}

/// Compacts the session where it was really compacted, and again after each half of what was said later, and counts its
/// facts each time.
fn generation_facts(
    facts: &[Fact],
    session: &Session,
    generations: &mut [[Mean; 2]; GENERATIONS],
) -> Result<(), String> {
    if facts.is_empty() || session.later.is_empty() {
        return Ok(());
    }
    let (before, later) = (session.messages.len(), session.later.len());
    let ends: [usize; GENERATIONS] = std::array::from_fn(|nth| before + later * nth / (GENERATIONS - 1));
    let all: Vec<Message> = session.messages.iter().chain(&session.later).cloned().collect();
    let shares = ends.map(|end| end as f64 / all.len() as f64);
    let longer = Session::of(&session.name, all).map_err(|why| why.to_string())?;
    let messages = Ours::default().generations(&longer, &shares)?;
    for ((message, end), kept) in messages.iter().zip(ends).zip(generations) {
        let simple = baseline::compact(&longer.messages[..end], message.chars().count());
        for (text, kept) in [message, &simple].into_iter().zip(kept) {
            facts.iter().for_each(|fact| kept.add(Some(f64::from(u8::from(holds(text, fact))))));
        }
    }
    Ok(())
}

/// Computes the curve as if the session had just filled its window up to the compaction threshold.
fn curve(
    corpus: &Corpus,
    session: &Session,
    questions: &Questions,
    points: &mut [Point],
) -> Result<(), String> {
    let ruler = ruler();
    let CompactionThreshold::Ratio(due) = CompactionSettings::default().threshold else {
        return Err("no threshold".to_owned());
    };
    let window = (ruler.view(session.thread().view()) as f64 / due) as u64;
    for (point, ratio) in points.iter_mut().zip(TAILS) {
        let keep = if ratio == 0.0 { KeptTail::Nothing } else { KeptTail::Ratio(ratio) };
        let mut thread = session.thread();
        Ours { window, keep, ..Ours::default() }.compact(&mut thread)?;
        let shown: Vec<String> = thread.view().pieces().iter().map(|(_, piece)| piece.text()).collect();
        ask(corpus, session, questions, &shown.join("\n"), &mut point.both);
        // The first piece is the message.
        ask(corpus, session, questions, &shown[1..].join("\n"), &mut point.tail);
        point.tokens.add(Some(ruler.view(thread.view()) as f64));
    }
    Ok(())
}
