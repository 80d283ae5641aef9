//! The parts of the one message that stands for what was replaced. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::ledger::Told;
use super::material::{Material, SUMMARY_CLOSE, SUMMARY_OPEN, Words};
use super::prune::RECALL;
use super::scene::Scene;
use super::text::head_and_tail;
use crate::thread::{Content, Part, Seq};

/// How the one message begins. What it lists is not to be done again.
const INTRO: &str = "The conversation so far was compacted. This is its summary, kept as background. It is not a \
                     new request: what it lists as done is done, and what it decided stands.";

/// How it begins where no summary was written.
const INTRO_WITHOUT: &str = "The conversation so far was compacted. What follows was kept of it, as background. It \
                             is not a new request: what was done is done, and what was decided stands.";

/// How it begins where the summary is an older one.
const INTRO_EARLIER: &str = "The conversation so far was compacted. This is the summary of its older part, kept as \
                             background; of what came behind that there is only what follows it. It is not a new \
                             request: what it lists as done is done, and what it decided stands.";

/// The summary of a message, and what it covers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Summary {
    None,
    /// Written for this compaction.
    New(String),
    /// Taken over from an earlier one.
    Earlier(String),
}

impl Summary {
    pub fn text(&self) -> &str {
        match self {
            Summary::None => "",
            Summary::New(text) | Summary::Earlier(text) => text,
        }
    }

    /// Its head and tail, as the first part of the message.
    pub fn part(&self, bytes_max: usize) -> String {
        let text = head_and_tail(self.text(), bytes_max);
        match self {
            Summary::New(_) if bytes_max > 0 => format!("{INTRO}\n\n{SUMMARY_OPEN}{text}{SUMMARY_CLOSE}"),
            Summary::Earlier(_) if bytes_max > 0 => {
                format!("{INTRO_EARLIER}\n\n{SUMMARY_OPEN}{text}{SUMMARY_CLOSE}")
            }
            Summary::None | Summary::New(_) | Summary::Earlier(_) => INTRO_WITHOUT.to_owned(),
        }
    }
}

/// How much of each part is said.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measure {
    /// Tokens of what the person said before.
    pub person: u64,
    /// Tokens of the ledger.
    pub ledger: u64,
    /// Bytes of the summary.
    pub summary: usize,
    /// Bytes of the last request.
    pub request: usize,
    /// How much of what is attached to it comes along.
    pub attached: usize,
    /// Bytes of the goal.
    pub goal: usize,
    /// How many files of instructions are left out, oldest first.
    pub without_files: usize,
}

/// What the ledger gives to a message.
pub(super) struct Facts {
    pub told: Told,
    /// The entries in which something was found that the person wants and that holds, with the bytes of it.
    pub found: HashMap<Seq, usize>,
}

/// The one message, and what is in it.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub content: Vec<Content>,
    /// Entries that are quoted word for word, in the order of the log.
    pub quoted: Vec<Seq>,
    /// Files of instructions that there was no room for.
    pub without: Vec<Seq>,
}

impl Parts {
    pub fn of(
        scene: &Scene<'_>,
        material: &Material,
        facts: &Facts,
        summary: &Summary,
        measure: &Measure,
    ) -> Parts {
        let mut texts = vec![summary.part(measure.summary)];
        let mut quoted = Vec::new();
        let told = &facts.told;
        if !told.text.is_empty() {
            texts.push(format!("<ledger>\n{}\n</ledger>", told.text));
        }
        let (without, with) =
            material.instructions.split_at(measure.without_files.min(material.instructions.len()));
        for file in with {
            let path = file.path.replace('"', "&quot;");
            texts.push(format!("<instructions path=\"{path}\">\n{}\n</instructions>", file.text));
            quoted.push(file.entry);
        }
        if let Some(goal) = &material.goal {
            texts.push(goal_words(&head_and_tail(goal, measure.goal)));
        }
        let person = person(scene, material, &facts.found, told, measure.person);
        texts.extend(person.text);
        quoted.extend(person.entries);
        if !material.pins.is_empty() {
            let mut pins = "Pinned parts of the conversation, word for word:".to_owned();
            for (part, pinned) in &material.pins {
                pins.push_str(&format!("\n\n<pinned entry=\"{part}\">\n{pinned}\n</pinned>"));
            }
            texts.push(pins);
            quoted.extend(material.pins.iter().map(|(part, _)| part.entry));
        }
        let mut content: Vec<Content> = texts.into_iter().map(|text| Content::Text { text }).collect();
        if let Some(request) = &material.request {
            let (text, attached) = request.with(measure.attached);
            let text = scene.head_and_tail(&text, measure.request, request.entry);
            content.push(Content::Text {
                text: format!(
                    "{REQUEST_HEAD} (it may be answered already, see the summary):\n\n\
                     <last_request>\n{text}\n</last_request>"
                ),
            });
            content.extend(attached);
            quoted.push(request.entry);
        }
        content.push(Content::Text {
            text: index_line(scene, material, without.iter().map(|file| file.path.as_str())),
        });
        quoted.sort_unstable();
        quoted.dedup();
        Parts { content, quoted, without: without.iter().map(|file| file.entry).collect() }
    }
}

/// How the part begins that holds what the person said before.
pub const PERSON_HEAD: &str = "What the person said before, word for word";

/// How the part begins that holds their last request.
pub const REQUEST_HEAD: &str = "The last request before the compaction, word for word";

/// How the words about the goal begin that a model is told.
pub const GOAL_HEAD: &str = "The goal of the work:\n\n<goal>\n";

/// The goal as a model is told of it, in a summary and elsewhere.
pub fn goal_words(goal: &str) -> String {
    format!("{GOAL_HEAD}{goal}\n</goal>")
}

/// What the person said, as far as it is said again.
#[derive(Default)]
struct Person {
    text: Option<String>,
    entries: Vec<Seq>,
}

/// What a message of the person's is worth where not all can be quoted, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Short, and nothing was found in it: thanks, and questions that were answered.
    SmallTalk,
    /// The ledger has most of it, in fewer words.
    Told,
    Plain,
    /// It says what the person wants or decided, and the ledger does not tell it.
    Fact,
}

impl Worth {
    fn of(words: &Words, found: &HashMap<Seq, usize>, told: &Told) -> Worth {
        match found.get(&words.entry) {
            None if words.bytes < SMALL_TALK_BYTES => Worth::SmallTalk,
            None => Worth::Plain,
            Some(bytes)
                if told.facts > 0
                    && told.left_out.binary_search(&words.entry).is_err()
                    && bytes * 100 >= words.bytes * TOLD_PERCENT =>
            {
                Worth::Told
            }
            Some(_) => Worth::Fact,
        }
    }
}

/// What the person said, in the order in which they did, within so many tokens: of what is worth most first, and
/// then the newest.
fn person(
    scene: &Scene<'_>,
    material: &Material,
    found: &HashMap<Seq, usize>,
    told: &Told,
    tokens_max: u64,
) -> Person {
    let said = &material.person;
    let gap = scene.ruler.text(GAP);
    let is_room = said.iter().map(|words| words.tokens).sum::<u64>() <= tokens_max;
    let mut order: Vec<usize> = (0..said.len()).collect();
    if !is_room {
        order.sort_by_key(|at| Reverse(Worth::of(&said[*at], found, told)));
    }
    let mut left = tokens_max;
    let mut is_quoted = vec![false; said.len()];
    for at in order {
        let tokens = said[at].tokens + if is_room { 0 } else { gap };
        if let Some(rest) = left.checked_sub(tokens) {
            left = rest;
            is_quoted[at] = true;
        }
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut entries = Vec::new();
    for (words, is_quoted) in said.iter().zip(is_quoted).rev() {
        if is_quoted {
            parts.push(&words.quote);
            entries.push(words.entry);
        } else if parts.last() != Some(&GAP) {
            parts.push(GAP);
        }
    }
    if entries.is_empty() {
        return Person::default();
    }
    let gaps = if is_room { "" } else { ", with […] for what is left out" };
    let head = format!("{PERSON_HEAD}, oldest first{gaps}; where it differs, the newest holds:");
    Person {
        text: Some(format!(
            "{head}

<person>
{}
</person>",
            parts.join(
                "
"
            )
        )),
        entries,
    }
}

/// A shorter message in which nothing was found is small talk, in bytes.
const SMALL_TALK_BYTES: usize = 60;

/// The part of a message, in per cent, that the ledger must have of it so that quoting it says nothing new.
const TOLD_PERCENT: usize = 60;

/// What stands for messages that there was no room for.
const GAP: &str = "[…]";

/// How the sentence begins that names instructions which gave way.
pub const NO_ROOM_FOR_INSTRUCTIONS: &str = "There was no room for the instructions of";

/// What is no longer in view, and how it can be found.
fn index_line<'a>(scene: &Scene<'_>, material: &Material, without: impl Iterator<Item = &'a str>) -> String {
    let mut line = match material.gone {
        Some((count, first, last)) => format!("{count} entries from {first} to {last} are no longer in view"),
        None => "Older entries are no longer in view".to_owned(),
    };
    if scene.has_recall {
        line.push_str(&format!(": the tool `{RECALL}` finds and reads them"));
    }
    line.push('.');
    let files: Vec<&str> = without.collect();
    if !files.is_empty() {
        line.push_str(&format!(
            " {NO_ROOM_FOR_INSTRUCTIONS} {}: read them before you change anything they may be about.",
            files.join(", ")
        ));
    }
    line
}

/// The names of pinned parts.
pub(super) fn names(pins: &[(Part, String)]) -> String {
    let names: Vec<String> = pins.iter().map(|(part, _)| part.to_string()).collect();
    names.join(", ")
}
