//! The parts of the compaction message. Pure.

use super::calls::RECALL;
use super::carryover::TAG;
use super::input::{CompactionInput, SummaryReader};
use super::material::Material;
use super::text::{QUOTE_BYTES_MIN, head_and_tail};
use super::wording::{
    CARRIED_HEAD, COMPACTED, GAP, GOAL_HEAD, PINS_HEAD, PLACES, REQUEST_HEAD, SUMMARY_CLOSE, SUMMARY_OPEN,
    USER_HEAD,
};
use epitome_thread::{Change, Content, Entry, ModelName, PartId, Seq, Usage};

/// The second sentence of the message. It keeps the model from redoing what the summary lists.
const INTRO: &str = "This is its summary, kept as background. It is not a new request: what it lists as done is \
                     done, and what it decided stands.";

/// The introduction without a summary.
const INTRO_WITHOUT: &str = "What follows was kept of it, as background. It is not a new request, and what was done \
                             need not be done again.";

/// The introduction with the summary of an earlier compaction.
const INTRO_EARLIER: &str = "This is the summary of its older part, kept as background; of what came after that part, \
                             only what follows was kept. It is not a new request: what it lists as done is \
                             done, and what it decided stands.";

/// The summary in a message, with the sentences before it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SummaryPart {
    intro: &'static str,
    /// Empty without a summary.
    pub text: String,
}

impl SummaryPart {
    /// A new summary, or the one of an earlier compaction, whose contents must not be lost.
    pub fn new(written: Option<&str>, earlier: Option<&str>) -> SummaryPart {
        let (intro, text) = match written {
            Some(text) => (INTRO, text),
            None => (INTRO_EARLIER, earlier.unwrap_or_default()),
        };
        SummaryPart { intro, text: text.to_owned() }
    }

    /// The first part of the message, with the head and tail of the summary.
    pub fn part(&self, bytes_max: usize) -> String {
        if bytes_max == 0 || self.text.is_empty() {
            return format!("{COMPACTED} {INTRO_WITHOUT}");
        }
        let text = head_and_tail(&self.text, bytes_max);
        format!("{COMPACTED} {}\n\n{SUMMARY_OPEN}{text}{SUMMARY_CLOSE}", self.intro)
    }
}

/// The text that replaces a part of the view, as a model or a hook has written it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The summary. Without one, that of an earlier compaction is used, and the computed tables.
    pub text: Option<String>,
    /// Texts that hooks add to the summary, each with its hook.
    pub context: Vec<(String, String)>,
    /// The provider's native form of the summary, for the model that wrote it. It precedes everything else.
    pub native: Vec<Content>,
    /// The model that wrote it, and its usage.
    pub by: Option<(ModelName, Usage)>,
    /// Whether the text is the reply to the last request, which asked for it. If that is the prompt of a recipe, only what
    /// the user typed is quoted.
    pub is_reply: bool,
    /// Why the wanted kind of summary is missing.
    pub fallback: Option<String>,
}

/// The parts of the message, and how much of each it has.
pub(super) struct Composition<'a> {
    pub input: &'a CompactionInput<'a>,
    pub material: Material,
    /// The provider's native form of the summary.
    pub native: Vec<Content>,
    pub summary: SummaryPart,
    /// Bytes of the summary.
    pub summary_max: usize,
    /// The additions of hooks to the summary.
    pub context: Option<String>,
    /// The tables.
    pub carried: String,
    /// Number of instruction files that are left out, oldest first.
    pub without_files: usize,
    /// Bytes of the goal.
    pub goal_max: usize,
    /// Tokens of the user's earlier messages.
    pub user_max: u64,
    /// Bytes of the last request.
    pub request_max: usize,
    /// Number of attachments of the request that are included.
    pub attached: usize,
    /// Whether words of the user that the summary contains follow it all the same.
    pub repeats_summary: bool,
}

/// The compaction message and its contents.
#[derive(Clone, Debug)]
pub(super) struct CompactionMessage {
    pub content: Vec<Content>,
    /// The number of lines in the tables.
    pub facts: usize,
    /// Entries that are quoted verbatim, in the order of the log.
    pub quoted: Vec<Seq>,
    /// Entries that are quoted without their middle or without attached files, in the order of the log.
    pub shortened: Vec<Seq>,
    /// Entries of instruction files and of the user's messages that did not fit, in the order of the log.
    pub left_out: Vec<Seq>,
}

impl Composition<'_> {
    /// The message with these parts.
    pub fn message(&self) -> CompactionMessage {
        let (input, material) = (self.input, &self.material);
        let mut texts = vec![self.summary.part(self.summary_max)];
        // However it is broken into lines.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let summary = if self.repeats_summary { String::new() } else { words(&texts[0]) };
        let is_known = |text: &str| {
            let text = words(text);
            text.len() >= QUOTE_BYTES_MIN && summary.contains(&text)
        };
        texts.extend(self.context.clone());
        let mut quoted = Vec::new();
        if !self.carried.is_empty() {
            let (places, carried) = (input.reader.place(PLACES).unwrap_or_default(), &self.carried);
            texts.push(format!("{CARRIED_HEAD}{places}\n\n<{TAG}>\n{carried}\n</{TAG}>"));
        }
        let (without, with) =
            material.instructions.split_at(self.without_files.min(material.instructions.len()));
        for file in with {
            let path = file.path.replace('"', "&quot;");
            texts.push(format!("<instructions path=\"{path}\">\n{}\n</instructions>", file.text));
            quoted.push(file.entry);
        }
        if let Some(goal) = &material.goal {
            texts.push(goal_words(&head_and_tail(goal, self.goal_max)));
        }
        let (mut shortened, mut left_out) = (Vec::new(), Vec::new());
        texts.extend(self.user_words(is_known, [&mut quoted, &mut shortened, &mut left_out]));
        if !material.pins.is_empty() {
            let mut pins = PINS_HEAD.to_owned();
            for (part, pinned) in &material.pins {
                let entry = input.entry_attribute(part);
                pins.push_str(&format!("\n\n<pinned{entry}>\n{pinned}\n</pinned>"));
            }
            texts.push(pins);
            // A call's pin does not quote the reply that it is a part of.
            let is_call = |part: &PartId| {
                let entry = input.thread.entry(part.entry);
                part.part.is_some()
                    && entry.is_some_and(|entry| matches!(entry.change, Change::Replied { .. }))
            };
            for part in material.pins.iter().map(|(part, _)| part).filter(|part| !is_call(part)) {
                let loses = input.thread.entry(part.entry).is_some_and(|entry| loses_data(entry));
                if loses { &mut shortened } else { &mut quoted }.push(part.entry);
            }
        }
        let mut content: Vec<Content> = texts.into_iter().map(|text| Content::Text { text }).collect();
        if let Some(request) = &material.request
            && !(request.attached() == 0 && is_known(&request.with(0).0))
        {
            let (text, attached) = request.with(self.attached);
            let is_without_files = attached.len() < request.attached();
            let is_cut = text.len() > self.request_max || is_without_files;
            let text = input.head_and_tail(&text, self.request_max, request.entry);
            let hint = match is_without_files {
                true => input.recall_hint(request.entry, "reads the text of its files"),
                false => String::new(),
            };
            content.push(Content::Text {
                text: format!(
                    "{REQUEST_HEAD} (it may be answered already{hint}):\n\n\
                     <last_request>\n{text}\n</last_request>"
                ),
            });
            content.extend(attached);
            if is_cut { &mut shortened } else { &mut quoted }.push(request.entry);
        }
        content.push(Content::Text {
            text: index_line(input, material, without.iter().map(|file| file.path.as_str())),
        });
        quoted.sort_unstable();
        quoted.dedup();
        // A pin also quotes the last request.
        shortened.retain(|entry| quoted.binary_search(entry).is_err());
        shortened.sort_unstable();
        left_out.extend(without.iter().map(|file| file.entry));
        left_out.sort_unstable();
        left_out.dedup();
        content.splice(..0, self.native.iter().cloned());
        CompactionMessage { content, facts: self.carried.lines().count(), quoted, shortened, left_out }
    }

    /// Quotes the user's messages in their order, except for those that the summary contains, and lists which are complete,
    /// shortened, and left out. If not all fit, the newest take precedence.
    fn user_words(
        &self,
        is_known: impl Fn(&str) -> bool,
        [quoted, shortened, left_out]: [&mut Vec<Seq>; 3],
    ) -> Option<String> {
        let material = &self.material;
        let is_room = material.beyond.is_none() && material.user_tokens() <= self.user_max;
        let gap = if is_room { 0 } else { self.input.ruler.text(GAP) };
        let mut left = self.user_max;
        let mut parts: Vec<&str> = Vec::new();
        for one in material.user.iter().filter(|one| !is_known(one.text())) {
            match left.checked_sub(one.tokens + gap) {
                Some(rest) => {
                    left = rest;
                    parts.push(&one.quote);
                    if one.is_cut() { &mut *shortened } else { &mut *quoted }.push(one.entry);
                }
                None => {
                    left_out.push(one.entry);
                    parts.push(GAP);
                }
            }
        }
        parts.extend(material.beyond.map(|_| GAP));
        parts.dedup_by(|one, other| *one == GAP && *other == GAP);
        parts.reverse();
        let gaps = if parts.contains(&GAP) { ", with […] for what is left out" } else { "" };
        parts.iter().any(|part| *part != GAP).then(|| {
            format!(
                "{USER_HEAD}, oldest first{gaps}; where two messages disagree, the newest one holds:\n\n<user>\n{}\n</user>",
                parts.join("\n")
            )
        })
    }
}

/// Whether the text of a pin only names a part of the message.
fn loses_data(entry: &Entry) -> bool {
    let is_lost = |part: &Content| matches!(part, Content::Image { .. } | Content::Document { .. });
    matches!(&entry.change, Change::Said { message, .. } if message.content.iter().any(is_lost))
}

/// The goal as stated to a model, in a summary and elsewhere.
pub fn goal_words(goal: &str) -> String {
    format!("{GOAL_HEAD}{goal}\n</goal>")
}

/// Opening of the sentence that names instructions that were dropped.
pub const NO_ROOM_FOR_INSTRUCTIONS: &str = "There was no room for the instructions of";

/// States what is no longer in the view, and how it can be found.
fn index_line<'a>(
    input: &CompactionInput<'_>,
    material: &Material,
    without: impl Iterator<Item = &'a str>,
) -> String {
    let mut line = match (material.gone, input.reader) {
        (Some((count, first, last)), SummaryReader::Session) => {
            format!("{count} entries from {first} to {last} are no longer in view")
        }
        (Some((count, ..)), SummaryReader::OtherAgent { .. }) => {
            format!("{count} earlier messages and results are no longer in view")
        }
        (None, _) => "Older entries are no longer in view".to_owned(),
    };
    match input.reader {
        SummaryReader::OtherAgent { recall: Some(recall) } => line.push_str(&format!(": {recall}")),
        SummaryReader::Session if input.has_recall => {
            line.push_str(&format!(": the tool `{RECALL}` finds and reads them"));
        }
        SummaryReader::Session | SummaryReader::OtherAgent { recall: None } => {}
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
