//! Token counts of a request by kind of content. Pure; each token is counted once.

use std::iter::Sum;

use serde::{Deserialize, Serialize};

use epitome_compaction::{CARRIED_HEAD, REQUEST_HEAD, USER_HEAD};
use epitome_thread::{
    Change, Content, Entry, Message, Origin, OutcomeContent, PINNED_BY_PERSON, Thread, ToolOutcome, ToolSpec,
};
use epitome_tokens::Ruler;

/// Heads by which parts of a compaction's message other than the summary are recognized.
const FACTS_HEADS: [&str; 2] = [CARRIED_HEAD, "<ledger>"];
const USER_HEADS: [&str; 4] = [
    USER_HEAD,
    REQUEST_HEAD,
    // From older logs.
    "What the person said before, word for word",
    "The last request before the compaction, word for word",
];
const INSTRUCTIONS_HEAD: &str = "<instructions path=";
const INSTRUCTIONS_TAIL: &str = "</instructions>";

/// Tokens of a request, or of a part of one, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinds {
    pub system: u64,
    pub tools: u64,
    pub instructions: u64,
    pub summaries: u64,
    /// The tables that a compaction computed from the log.
    pub facts: u64,
    /// The user's messages.
    pub person: u64,
    pub replies: u64,
    pub thinking: u64,
    pub calls: u64,
    pub outcomes: u64,
    /// Messages from hooks.
    pub hooks: u64,
    /// Images and documents, from any source.
    pub attached: u64,
}

impl Kinds {
    /// Measures the frame and the view of a thread: its next request, by the ruler alone.
    pub fn measure(ruler: &Ruler, thread: &Thread) -> Kinds {
        let frame = thread.frame().map(|(system, tools)| Kinds::measure_frame(ruler, system, tools));
        let entries = thread.view().entries().iter().map(|entry| Kinds::measure_entry(ruler, entry));
        frame.into_iter().chain(entries).sum()
    }

    /// Measures a system prompt, with its instructions apart, and the tools.
    pub fn measure_frame(ruler: &Ruler, system: &str, tools: &[ToolSpec]) -> Kinds {
        let frame = ruler.frame(system, tools);
        let text = ruler.frame(system, &[]).min(frame);
        let instructions = instructions_in(system).map_or(0, |text| ruler.text(text)).min(text);
        Kinds { tools: frame - text, instructions, system: text - instructions, ..Kinds::default() }
    }

    /// Measures an entry as the view shows it; the sum is the ruler's count for the entry.
    pub fn measure_entry(ruler: &Ruler, entry: &Entry) -> Kinds {
        let mut kinds = Kinds::default();
        let all = ruler.entry(entry);
        let plain = without_files(entry).map_or(all, |entry| ruler.entry(&entry).min(all));
        kinds.attached = all - plain;
        match &entry.change {
            Change::Said { origin, .. } => {
                let kind = match origin {
                    Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => &mut kinds.person,
                    Origin::Hook { hook } if hook == PINNED_BY_PERSON => &mut kinds.person,
                    Origin::Hook { .. } | Origin::Context { .. } => &mut kinds.hooks,
                    Origin::Instructions { .. } => &mut kinds.instructions,
                };
                *kind += plain;
            }
            Change::Compacted { summary, .. } => kinds.take_summary(ruler, summary, plain),
            Change::ToolFinished { .. } => kinds.outcomes += plain,
            // A view has no other entries than replies left.
            _ => kinds.take_reply(ruler, entry, plain),
        }
        kinds
    }

    /// The sum of all kinds.
    pub fn sum(&self) -> u64 {
        let (mut kinds, mut sum) = (*self, 0);
        kinds.each(|tokens| sum += *tokens);
        sum
    }

    /// Applies `of_kind` to the tokens of each kind.
    pub fn each(&mut self, of_kind: impl FnMut(&mut u64)) {
        self.all().into_iter().for_each(of_kind);
    }

    fn all(&mut self) -> [&mut u64; 12] {
        [
            &mut self.system,
            &mut self.tools,
            &mut self.instructions,
            &mut self.summaries,
            &mut self.facts,
            &mut self.person,
            &mut self.replies,
            &mut self.thinking,
            &mut self.calls,
            &mut self.outcomes,
            &mut self.hooks,
            &mut self.attached,
        ]
    }

    /// Counts a compaction's message: the summary, and the parts kept next to it.
    fn take_summary(&mut self, ruler: &Ruler, summary: &Message, all: u64) {
        let mut left = all;
        for content in &summary.content {
            let Content::Text { text } = content else { continue };
            let kind = if starts_with_any(text, &FACTS_HEADS) {
                &mut self.facts
            } else if text.starts_with(INSTRUCTIONS_HEAD) {
                &mut self.instructions
            } else if starts_with_any(text, &USER_HEADS) {
                &mut self.person
            } else {
                continue;
            };
            let tokens = ruler.text(text).min(left);
            *kind += tokens;
            left -= tokens;
        }
        self.summaries += left;
    }

    fn take_reply(&mut self, ruler: &Ruler, entry: &Entry, all: u64) {
        let Change::Replied { message, .. } = &entry.change else { return };
        let only = |wanted: fn(&Content) -> bool| -> u64 {
            let content: Vec<Content> = message.content.iter().filter(|part| wanted(part)).cloned().collect();
            if content.is_empty() {
                0
            } else {
                ruler.message(&Message { id: message.id, content, author: None })
            }
        };
        let thinking = only(|part| matches!(part, Content::Thinking { .. })).min(all);
        let calls = only(|part| matches!(part, Content::Call(_))).min(all - thinking);
        self.thinking += thinking;
        self.calls += calls;
        self.replies += all - thinking - calls;
    }
}

impl Sum for Kinds {
    fn sum<I: Iterator<Item = Kinds>>(kinds: I) -> Kinds {
        let mut all = Kinds::default();
        for mut kinds in kinds {
            all.all().into_iter().zip(kinds.all()).for_each(|(tokens, more)| *tokens += *more);
        }
        all
    }
}

/// The project's and the user's instructions in a system prompt.
fn instructions_in(system: &str) -> Option<&str> {
    let from = system.find(INSTRUCTIONS_HEAD)?;
    let to = system.rfind(INSTRUCTIONS_TAIL)? + INSTRUCTIONS_TAIL.len();
    system.get(from..to)
}

/// The entry without its images and documents; `None` if it has none.
fn without_files(entry: &Entry) -> Option<Entry> {
    let is_file = |part: &Content| matches!(part, Content::Image { .. } | Content::Document { .. });
    let change = match &entry.change {
        Change::Said { message, origin } if message.content.iter().any(is_file) => {
            let content = message.content.iter().filter(|part| !is_file(part)).cloned().collect();
            Change::Said {
                message: Message { id: message.id, content, author: None },
                origin: origin.clone(),
            }
        }
        Change::ToolFinished { outcome } => {
            let is_text = |part: &&OutcomeContent| matches!(part, OutcomeContent::Text { .. });
            if outcome.content.iter().all(|part| is_text(&part)) {
                return None;
            }
            let content = outcome.content.iter().filter(is_text).cloned().collect();
            let plain = ToolOutcome::text(outcome.call.clone(), outcome.status, "");
            Change::ToolFinished { outcome: ToolOutcome { content, ..plain } }
        }
        _ => return None,
    };
    Some(Entry { seq: entry.seq, at: entry.at, change })
}

fn starts_with_any(text: &str, heads: &[&str]) -> bool {
    heads.iter().any(|head| text.starts_with(head))
}
