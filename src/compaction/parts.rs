//! The parts of the one message that stands for what was replaced. Pure.

use super::carryover::{CarriedText, TAG};
use super::material::{Material, SUMMARY_CLOSE, SUMMARY_OPEN};
use super::prune::RECALL;
use super::scene::Scene;
use super::text::head_and_tail;
use epitome_thread::{Content, Part, Seq};

/// How the one message begins. What it lists is not to be done again.
const INTRO: &str = "The conversation so far was compacted. This is its summary, kept as background. It is not a \
                     new request: what it lists as done is done, and what it decided stands.";

/// How it begins where no summary was written.
const INTRO_WITHOUT: &str = "The conversation so far was compacted. What follows was kept of it, as background. It \
                             is not a new request, and what was done need not be done again.";

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
    /// Tokens of what the user said before.
    pub user: u64,
    /// Tokens of the tables computed from the log.
    pub carried: u64,
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

/// The one message, and what is in it.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub content: Vec<Content>,
    /// Entries that are quoted word for word, in the order of the log.
    pub quoted: Vec<Seq>,
    /// Files of instructions and words of the user that there was no room for.
    pub left_out: Vec<Seq>,
}

impl Parts {
    pub fn of(
        scene: &Scene<'_>,
        material: &Material,
        carried: &CarriedText,
        summary: &Summary,
        measure: &Measure,
    ) -> Parts {
        let mut texts = vec![summary.part(measure.summary)];
        let mut quoted = Vec::new();
        if !carried.text.is_empty() {
            texts.push(format!("{CARRIED_HEAD}\n\n<{TAG}>\n{}\n</{TAG}>", carried.text));
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
        let user = user_words(scene, material, measure.user);
        texts.extend(user.text);
        quoted.extend(user.entries);
        if !material.pins.is_empty() {
            let mut pins = "Pinned parts of the conversation, verbatim:".to_owned();
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
        let left_out = without.iter().map(|file| file.entry).chain(user.left_out).collect();
        Parts { content, quoted, left_out }
    }
}

/// How the part begins that holds the tables computed from the log.
pub const CARRIED_HEAD: &str =
    "What the log shows, computed without a model. Entries such as e12 are places in the log";

/// How the part begins that holds what the user said before.
pub const USER_HEAD: &str = "What the user said before, verbatim";

/// How the part begins that holds their last request.
pub const REQUEST_HEAD: &str = "The last request before the compaction, verbatim";

/// How the words about the goal begin that a model is told.
pub const GOAL_HEAD: &str = "The goal of the work:\n\n<goal>\n";

/// The goal as a model is told of it, in a summary and elsewhere.
pub fn goal_words(goal: &str) -> String {
    format!("{GOAL_HEAD}{goal}\n</goal>")
}

/// The user's words in the message.
#[derive(Default)]
struct UserWords {
    text: Option<String>,
    /// The entries that are quoted.
    entries: Vec<Seq>,
    /// Those that there was no room for.
    left_out: Vec<Seq>,
}

/// What the user said, in the order in which they did, within so many tokens: the newest first where not all fits.
fn user_words(scene: &Scene<'_>, material: &Material, tokens_max: u64) -> UserWords {
    let said = &material.user;
    let is_room = material.user_tokens() <= tokens_max;
    let gap = if is_room { 0 } else { scene.ruler.text(GAP) };
    let mut words = UserWords::default();
    let mut left = tokens_max;
    let mut parts: Vec<&str> = Vec::new();
    for one in said {
        match left.checked_sub(one.tokens + gap) {
            Some(rest) => {
                left = rest;
                parts.push(&one.quote);
                words.entries.push(one.entry);
            }
            None => {
                words.left_out.push(one.entry);
                if parts.last() != Some(&GAP) {
                    parts.push(GAP);
                }
            }
        }
    }
    if !words.entries.is_empty() {
        parts.reverse();
        let gaps = if words.left_out.is_empty() { "" } else { ", with […] for what is left out" };
        words.text = Some(format!(
            "{USER_HEAD}, oldest first{gaps}; where two messages disagree, the newest one holds:\n\n<user>\n{}\n</user>",
            parts.join("\n")
        ));
    }
    words
}

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
