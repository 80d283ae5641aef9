//! Reports what another agent's compaction summary no longer mentions, and what Epitome's message would have kept.
//! Pure.
//!
//! A text mentions something if it contains most of its words. The comparison favors the text: reported items are
//! usually not in it in other words either, but unreported items may still be missing.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;

use super::author::{Author, author, typed};
use super::budget::Budget;
use super::calls::{asked, user_reply};
use super::carryover::{Facts, LostKind, facts};
use super::compose::compacted;
use super::input::CompactionInput;
use super::parts::Summary;
use super::plan::{CompactionDecision, CompactionRequest, KeptTail, decide};
use super::text::said;
use epitome_thread::compaction_settings::{CompactionSettings, Summariser};
use epitome_thread::{Change, CompactionStats, Content, Entry, Seq, Thread, Trigger, View};
use epitome_tokens::Ruler;

/// Windows assumed for Epitome's compaction; the smallest that fits the conversation is used. The log does not contain
/// the other agent's window.
const WINDOWS: [u64; 2] = [200_000, 1_000_000];

/// Minimum length in characters of a word that is compared. Shorter ones occur in every text.
const WORD_CHARS_MIN: usize = 4;

/// Minimum number of distinct words in a message that is compared.
const WORDS_MIN: usize = 3;

/// Maximum number of bytes of a message that are compared. Pasted text usually comes last, and no summary is expected
/// to contain all of it.
const SAID_BYTES_MAX: usize = 600;

/// Percentage of words of a message, a command or a step that a text must contain to mention it. Of 455 messages of users, the
/// summaries of 51 recorded sessions mention 88 % of their own by this measure and 8 % of those of another session. With 50,
/// that is 95 and 25 %, with 75 it is 84 and 3 %; shorter words or whole messages tell them apart less well.
const MENTIONED_PERCENT: usize = 67;

/// Something that the summary no longer mentions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    pub kind: LostKind,
    /// Its entry in the log. A step of a plan has no single entry.
    pub entry: Option<Seq>,
    pub text: String,
    /// Whether Epitome's message would mention it.
    pub is_ours: bool,
}

/// The content that a compaction by another agent lost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LostContent {
    /// The entry of the compaction.
    pub entry: Seq,
    /// Number of such compactions in the session; this is the newest.
    pub compactions: usize,
    pub at: u64,
    /// The sizes of its view and of Epitome's message.
    pub tokens: u64,
    pub our_tokens: u64,
    /// Number of items of each kind before it.
    pub counts: Vec<(LostKind, usize)>,
    pub forgotten: Vec<Forgotten>,
}

/// Examines the newest compaction by another agent; `None` if the log has none.
pub fn lost(thread: &Thread) -> Option<LostContent> {
    let is_foreign = |change: &Change| matches!(change, Change::Compacted { account, model: None, .. } if *account == CompactionStats::default());
    let foreign: Vec<&Arc<Entry>> =
        thread.entries().iter().filter(|entry| is_foreign(&entry.change)).collect();
    let entry = *foreign.last()?;
    let Change::Compacted { tokens_after, .. } = &entry.change else { return None };
    // The conversation directly before and directly after the compaction.
    let before = Thread::replay(thread.entries().before(entry.seq).cloned()).ok()?;
    let behind = before.with(entry.change.clone());
    let theirs = SearchedText::new(&view_text(behind.view()));
    let (our_text, our_tokens) = our_message(&before);
    let ours = SearchedText::new(&our_text);

    let contents = comparable_contents(&before);
    let counts = LostKind::ALL
        .map(|kind| (kind, contents.iter().filter(|(other, ..)| *other == kind).count()))
        .to_vec();
    let forgotten = contents.into_iter().filter(|(kind, _, text)| !theirs.mentions(*kind, text));
    let forgotten = forgotten.map(|(kind, entry, text)| {
        let is_ours = ours.mentions(kind, &text);
        Forgotten { kind, entry, text, is_ours }
    });
    Some(LostContent {
        entry: entry.seq,
        compactions: foreign.len(),
        at: entry.at,
        tokens: *tokens_after,
        our_tokens,
        counts,
        forgotten: forgotten.collect(),
    })
}

/// The contents of a conversation that can be compared with a summary.
fn comparable_contents(thread: &Thread) -> Facts {
    let mut contents = Facts::new();
    let asked = asked(thread.entries());
    for entry in thread.active_entries() {
        let text = match &entry.change {
            Change::Said { message, origin }
                if origin.is_prompt() && author(&message.content) == Author::User =>
            {
                said(&typed(&message.content))
            }
            Change::ToolFinished { outcome } => {
                let is_asked = asked.contains(outcome.call.0.as_str());
                user_reply(is_asked, outcome).map(|(_, text)| text.into_owned()).unwrap_or_default()
            }
            _ => continue,
        };
        let text = &text[..text.floor_char_boundary(SAID_BYTES_MAX)];
        if words(text).len() >= WORDS_MIN {
            contents.push((LostKind::Said, Some(entry.seq), text.to_owned()));
        }
    }
    contents.extend(facts(thread));
    contents
}

/// The message with which Epitome's compaction would replace the complete conversation, without a model and with
/// nothing kept after it, and its tokens. If the conversation is too short for a compaction, its view.
fn our_message(thread: &Thread) -> (String, u64) {
    let ruler = Ruler::for_model(None);
    let taken = ruler.in_context(thread);
    let window = WINDOWS.into_iter().find(|window| taken < *window).unwrap_or(WINDOWS[WINDOWS.len() - 1]);
    let settings = CompactionSettings { model: Summariser::None, ..CompactionSettings::default() };
    let budget = Budget::new(&settings, window, 0, 0);
    let input = CompactionInput::new(&ruler, thread, &budget);
    let request =
        CompactionRequest { trigger: Trigger::Manual, keep: KeptTail::Nothing, focus: None, summary: true };
    let made = match decide(&input, &request) {
        CompactionDecision::Summarise(plan) => {
            compacted(&input, &plan, thread.next_message(), Summary::default()).ok()
        }
        CompactionDecision::Nothing(_) | CompactionDecision::Prune(_) => None,
    };
    match made {
        Some(Change::Compacted { summary, tokens_after, .. }) => (summary.text(), tokens_after),
        _ => (view_text(thread.view()), taken),
    }
}

/// All text in a view that a model reads.
fn view_text(view: &View) -> String {
    let mut text = String::new();
    let mut add = |part: &str| {
        text.push_str(part);
        text.push('\n');
    };
    for entry in view.entries() {
        for part in entry.change.shown_message().into_iter().flat_map(|message| &message.content) {
            match part {
                Content::Text { text } => add(text),
                Content::Call(call) => add(&call.input.to_string()),
                _ => {}
            }
        }
        if let Some(outcome) = entry.change.outcome() {
            add(&outcome.model_text());
        }
    }
    text
}

/// A text that is searched for mentions.
struct SearchedText {
    /// In lower case, with single spaces.
    plain: String,
    words: HashSet<String>,
}

impl SearchedText {
    fn new(text: &str) -> SearchedText {
        SearchedText { plain: plain(text), words: words(text) }
    }

    fn mentions(&self, kind: LostKind, text: &str) -> bool {
        match kind {
            LostKind::File => self.has_name(text.rsplit('/').next().unwrap_or(text)),
            LostKind::Said | LostKind::Failing | LostKind::Step => self.has_words(text),
        }
    }

    fn has_words(&self, text: &str) -> bool {
        let wanted = words(text);
        let found = wanted.iter().filter(|word| self.words.contains(*word)).count();
        match wanted.is_empty() {
            true => self.plain.contains(&plain(text)),
            false => found * 100 > wanted.len() * MENTIONED_PERCENT,
        }
    }

    /// Whether the text contains this file name other than as part of a longer name.
    fn has_name(&self, name: &str) -> bool {
        let name = plain(name);
        let is_of_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        self.plain.match_indices(&name).any(|(at, found)| {
            let before = self.plain[..at].chars().next_back();
            let mut behind = self.plain[at + found.len()..].chars();
            let goes_on = match behind.next() {
                // The end of a sentence, or an extension.
                Some('.') => behind.next().is_some_and(is_of_name),
                next => next.is_some_and(is_of_name),
            };
            !before.is_some_and(is_of_name) && !goes_on
        })
    }
}

fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The distinct words of a text that are long enough to compare.
fn words(text: &str) -> HashSet<String> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.chars().count() >= WORD_CHARS_MIN).map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_mentions_something_if_it_contains_most_of_its_words() {
        let summary =
            "The user wants `retry` in src/net/http_client.rs.\nThe tests of the parser fail (cargo test).";
        for (kind, text, mentioned) in [
            (LostKind::File, "src/net/http_client.rs", true),
            (LostKind::File, "lib/http_client.rs", true),
            (LostKind::File, "src/client.rs", false),
            (LostKind::File, "src/http_client", false),
            (LostKind::Said, "The user wants a retry", true),
            (LostKind::Said, "Never touch the vendored folder", false),
            (LostKind::Step, "Fix the tests of the parser", true),
            (LostKind::Step, "Write the release notes", false),
            (LostKind::Failing, "cargo test", true),
            (LostKind::Failing, "make docs", false),
            // No word is long enough to compare.
            (LostKind::Said, "of the", true),
            (LostKind::Said, "go on", false),
        ] {
            assert_eq!(SearchedText::new(summary).mentions(kind, text), mentioned, "{kind:?} {text}");
        }
    }
}
