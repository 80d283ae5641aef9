//! The parts of the one message that stands for what was replaced. Pure.

use super::ledger::{Ledger, Told};
use super::material::{Material, SUMMARY_CLOSE, SUMMARY_OPEN};
use super::prune::{RECALL, head_and_tail_of};
use super::scene::Scene;
use super::text::head_and_tail;
use crate::thread::{Content, Part, Seq};

/// A longer text of the person's is quoted by its head and its tail, in bytes: pastes are logs and files, whose
/// middle can be read again.
const PASTE_BYTES_MAX: usize = 8 * 1024;

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
    /// Whether what is attached to it comes along.
    pub attached: bool,
    /// Bytes of the goal.
    pub goal: usize,
    /// How many files of instructions are left out, oldest first.
    pub without_files: usize,
}

/// The one message, and what is in it.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub content: Vec<Content>,
    pub told: Told,
    /// Entries that are quoted word for word, in the order of the log.
    pub quoted: Vec<Seq>,
    /// Files of instructions that there was no room for.
    pub without: Vec<Seq>,
}

impl Parts {
    pub fn of(
        scene: &Scene<'_>,
        material: &Material,
        ledger: &Ledger,
        summary: &Summary,
        measure: &Measure,
    ) -> Parts {
        let mut texts = vec![summary.part(measure.summary)];
        let mut quoted = Vec::new();
        let told = match measure.ledger {
            0 => Told::default(),
            tokens_max => ledger.told(&scene.ruler, scene.thread, &material.kept, tokens_max),
        };
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
        let person = person(scene, material, measure.person);
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
            let text = if measure.attached { &request.text_with_attached } else { &request.text };
            let text = head_and_tail_of(text, measure.request, request.entry);
            content.push(Content::Text {
                text: format!(
                    "{REQUEST_HEAD} (it may be answered already, see the summary):\n\n\
                     <last_request>\n{text}\n</last_request>"
                ),
            });
            if measure.attached {
                content.extend(request.attached.iter().cloned());
            }
            quoted.push(request.entry);
        }
        content.push(Content::Text {
            text: index_line(scene, material, without.iter().map(|file| file.path.as_str())),
        });
        quoted.sort_unstable();
        quoted.dedup();
        Parts { content, told, quoted, without: without.iter().map(|file| file.entry).collect() }
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

/// The newest of what the person said, in the order in which they did, within so many tokens.
fn person(scene: &Scene<'_>, material: &Material, tokens_max: u64) -> Person {
    let mut left = tokens_max;
    let mut parts = Vec::new();
    let mut entries = Vec::new();
    for (entry, text) in &material.person {
        let text = head_and_tail_of(text, PASTE_BYTES_MAX, *entry);
        let part = format!("<said entry=\"{entry}\">\n{text}\n</said>");
        let Some(rest) = left.checked_sub(scene.ruler.text(&part)) else { break };
        left = rest;
        parts.push(part);
        entries.push(*entry);
    }
    if parts.is_empty() {
        return Person::default();
    }
    parts.reverse();
    let text = format!(
        "{PERSON_HEAD}, oldest first; where it differs, the newest holds:\n\n<person>\n{}\n</person>",
        parts.join("\n")
    );
    Person { text: Some(text), entries }
}

/// How the sentence begins that names instructions which gave way.
pub const NO_ROOM_FOR_INSTRUCTIONS: &str = "There was no room for the instructions of";

/// How what is no longer in view can be found.
fn index_line<'a>(scene: &Scene<'_>, material: &Material, without: impl Iterator<Item = &'a str>) -> String {
    let gone = scene.thread.entries().iter().filter(|entry| is_spoken(&entry.change)).map(|entry| entry.seq);
    let gone: Vec<Seq> = gone.filter(|seq| !material.kept.contains(seq)).collect();
    let mut line = match (gone.first(), gone.last()) {
        (Some(first), Some(last)) => {
            format!("{} entries from {first} to {last} are no longer in view", gone.len())
        }
        _ => "Older entries are no longer in view".to_owned(),
    };
    line.push_str(&format!(": the tool `{RECALL}` finds and reads them."));
    let files: Vec<&str> = without.collect();
    if !files.is_empty() {
        line.push_str(&format!(
            " {NO_ROOM_FOR_INSTRUCTIONS} {}: read them before you change anything they may be about.",
            files.join(", ")
        ));
    }
    line
}

fn is_spoken(change: &crate::thread::Change) -> bool {
    use crate::thread::Change;
    matches!(change, Change::Said { .. } | Change::Replied { .. } | Change::ToolFinished { .. })
}

/// The names of pinned parts.
pub(super) fn names(pins: &[(Part, String)]) -> String {
    let names: Vec<String> = pins.iter().map(|(part, _)| part.to_string()).collect();
    names.join(", ")
}
