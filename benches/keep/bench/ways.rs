//! Ways of shortening a conversation.

use epitome::compaction::{
    Budget, CompactionDecision, CompactionInput, CompactionRequest, KeptTail, Summary, compacted, decide,
};
use epitome::config::{CompactionSettings, Summariser};
use epitome::thread::{Change, Content, Entry, ModelName, Thread, Trigger, Usage};
use epitome::tokens::Ruler;

use super::corpus::{Message, Session, words};

/// The model for which conversations are counted and priced, and its window in tokens.
pub const MODEL: &str = "anthropic/claude-sonnet-5";
pub const WINDOW: u64 = 200_000;
/// Bytes of a masked result that are kept.
const MASKED: usize = 200;
/// Attempts to reach half of a size.
const HALVINGS: usize = 10;

/// The ruler for all ways: an estimate, as in a session that has not loaded the vocabulary.
pub fn ruler() -> Ruler {
    Ruler::for_model(Some(&ModelName(MODEL.to_owned())))
}

/// Parameters of a compaction by Epitome.
#[derive(Clone, Debug)]
pub struct Ours {
    pub window: u64,
    pub keep: KeptTail,
    /// The summary that a model wrote; `None` compacts without a model.
    pub summary: Option<String>,
    /// Token limit of the whole message, as an agent names one with `--max-tokens`.
    pub tokens: Option<u64>,
}

impl Default for Ours {
    fn default() -> Ours {
        Ours { window: WINDOW, keep: KeptTail::Nothing, summary: None, tokens: None }
    }
}

impl Ours {
    /// Compacts a thread like `/compact`. Returns the reason as an error if that is impossible.
    pub fn compact(&self, thread: &mut Thread) -> Result<(), String> {
        let ruler = ruler();
        let mut settings = CompactionSettings::default();
        if self.summary.is_none() {
            settings.model = Summariser::None;
        }
        let reserve = u64::from(settings.output_reserve).min(self.window / 4);
        let budget = match self.tokens {
            Some(tokens) => Budget {
                carried_max: tokens / 2,
                user_min: tokens / 2,
                pins_max: tokens,
                due_at: tokens,
                ..Budget::new(&settings, tokens, 0, 0)
            },
            None => Budget::new(&settings, self.window, reserve, ruler.frame_of(thread)),
        };
        let trigger = if self.keep == KeptTail::Nothing { Trigger::Manual } else { Trigger::Threshold };
        let request = CompactionRequest { trigger, keep: self.keep, focus: None, summary: true };
        let plan = match decide(&CompactionInput::new(&ruler, thread, &budget), &request) {
            CompactionDecision::Summarise(plan) => plan,
            other => return Err(format!("{other:?}")),
        };
        let by = self.summary.as_ref().map(|_| (ModelName(MODEL.to_owned()), Usage::default()));
        let written = Summary { text: self.summary.clone(), by, ..Summary::default() };
        let change =
            compacted(&CompactionInput::new(&ruler, thread, &budget), &plan, thread.next_message(), written)
                .map_err(|why| why.to_string())?;
        append(thread, change);
        Ok(())
    }

    /// The message that replaces the conversation.
    pub fn message(&self, session: &Session) -> Result<String, String> {
        let mut thread = session.thread();
        self.compact(&mut thread)?;
        newest_message(&thread)
    }

    /// The messages of several compactions of one session, after these shares of it.
    pub fn generations(&self, session: &Session, shares: &[f64]) -> Result<Vec<String>, String> {
        let is_spoken =
            |entry: &Entry| entry.change.shown_message().is_some() || entry.change.outcome().is_some();
        let (opening, entries) = session.entries.split_at(1);
        let all = entries.iter().filter(|entry| is_spoken(entry)).count();
        let mut thread = Thread::replay(opening.iter().cloned()).map_err(|why| why.to_string())?;
        let (mut played, mut messages) = (0, Vec::new());
        for entry in entries {
            let mut change = entry.change.clone();
            if let Change::Said { message, .. } | Change::Replied { message, .. } = &mut change {
                message.id = thread.next_message();
            }
            append(&mut thread, change);
            played += usize::from(is_spoken(entry));
            if shares.get(messages.len()).is_some_and(|share| played as f64 >= all as f64 * share) {
                self.compact(&mut thread)?;
                messages.push(newest_message(&thread)?);
            }
        }
        Ok(messages)
    }

    /// The message for a limit at which it has at most half of `chars`, or the shortest one that there is.
    pub fn half_message(&self, session: &Session, chars: usize) -> Result<String, String> {
        let is_half = |message: &str| message.chars().count() <= chars / 2;
        let (mut low, mut high) = (0, chars as u64 / 2);
        let mut best = self.message(session)?;
        for _ in 0..HALVINGS {
            let middle = u64::midpoint(low, high);
            match (Ours { tokens: Some(middle), ..self.clone() }.message(session), is_half(&best)) {
                (Ok(message), _) if is_half(&message) => (low, best) = (middle, message),
                (Ok(message), false) => (high, best) = (middle, message),
                (Ok(_), true) => high = middle,
                // There is no message that short.
                (Err(_), _) => low = middle,
            }
        }
        Ok(best)
    }
}

fn newest_message(thread: &Thread) -> Result<String, String> {
    let last = thread.last_compaction().ok_or("nothing was compacted")?;
    let Change::Compacted { summary, .. } = &last.change else { return Err("another change".to_owned()) };
    let texts = summary.content.iter().filter_map(Content::as_text);
    Ok(texts.collect::<Vec<_>>().join("\n"))
}

pub fn append(thread: &mut Thread, change: Change) {
    let seq = thread.next_seq();
    let at = thread.entries().last().map_or(0, |entry| entry.at) + 1_000;
    thread.apply(std::sync::Arc::new(epitome::thread::Entry { seq, at, change }));
}

/// The end of the conversation, verbatim.
pub fn tail(messages: &[Message], chars: usize) -> String {
    let all = words(messages);
    let skipped = all.chars().count().saturating_sub(chars);
    all.chars().skip(skipped).collect()
}

/// Like [`tail`], with only the beginning of each tool result.
pub fn masked_tail(messages: &[Message], chars: usize) -> String {
    let masked = messages.iter().map(|message| match message {
        Message::Result { call, text, failed } => {
            Message::Result { call: call.clone(), text: text.chars().take(MASKED).collect(), failed: *failed }
        }
        other => other.clone(),
    });
    tail(&masked.collect::<Vec<_>>(), chars)
}

/// The first characters of a text.
pub fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}
