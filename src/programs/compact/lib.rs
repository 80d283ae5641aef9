//! Compacts the conversation of any coding agent into one message, without a model and without storing anything.
//!
//! ```text
//!  text ─► transcript ── what of it is compacted ─► epitome-import ─► log
//!                                                                      │ messages that Epitome composed before become
//!                                                                      ▼ what they were made from
//!  message ◄─ first line ◄─ epitome-compaction ◄─ thread, pins, instructions
//! ```
//!
//! [`compact`] is the whole interface. The program `epitome-compact` reads and writes files for it.

mod transcript;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use epitome_compaction::{
    Budget, CompactionDecision, CompactionInput, CompactionRefusal, CompactionRequest, KeptTail, Summary,
    SummaryReader, compacted, decide,
};
use epitome_import::{Builder, ImportContext, OwnCompaction};
use epitome_thread::compaction_settings::{CompactionSettings, Summariser};
use epitome_thread::problem::Problem;
use epitome_thread::{
    CallId, Change, CompactionStats, Content, Entry, Message, Origin, Seq, Thread, Trigger,
};
use epitome_tokens::Ruler;

pub use transcript::AgentTranscript;

/// The limit for a message, in tokens, unless another one is requested.
pub const TOKENS_DEFAULT: u64 = 20_000;

/// The smallest limit for a message, in tokens.
pub const TOKENS_MIN: u64 = 100;

/// What is left of a conversation at most, in percent. With less gain it should stay as it is.
const LEFT_PERCENT_MAX: u64 = 90;

/// Divisor: the largest share of the message for the tables computed from the log.
const TABLES_PART: u64 = 2;

/// What a compaction keeps besides what the conversation says.
#[derive(Clone, Debug, Default)]
pub struct CompactOptions {
    /// Limit for the message, in tokens by an estimate. If it is given, there is a message even if hardly anything is gained.
    pub max_tokens: Option<u64>,
    /// The number of newest messages that stay as they are, so that the message does not cover them.
    pub keep: usize,
    /// Texts that the message contains verbatim.
    pub pins: Vec<String>,
    /// Instruction files: path and text.
    pub instructions: Vec<(PathBuf, String)>,
    /// How the reader of the message finds what is no longer in view, as a clause.
    pub recall: Option<String>,
}

/// A conversation as one message.
#[derive(Clone, Debug, Serialize)]
pub struct CompactedTranscript {
    pub message: String,
    /// SHA-256 of the message behind its first line: its first 16 hexadecimal digits.
    pub digest: String,
    /// Messages, replies and results that the message covers.
    pub entries: usize,
    /// The size of what the message covers, and of the message.
    pub tokens_before: u64,
    pub tokens_after: u64,
    /// Messages of the user that are in it word for word, that are shortened, and for which there was no room.
    pub quoted: usize,
    pub shortened: usize,
    pub left_out: usize,
    /// Sentences about what could not be read.
    pub notes: Vec<String>,
    /// The conversation from now on, for a request's messages: the message and those behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Vec<Value>>,
}

/// Why there is no message.
#[derive(Debug, thiserror::Error)]
pub enum CompactError {
    #[error("{0}")]
    Unreadable(Problem),
    #[error("{0}")]
    Usage(String),
    /// The conversation should stay as it is.
    #[error("nothing is gained: {0}")]
    NoGain(String),
}

/// Compacts a conversation.
///
/// The result depends on nothing but these texts and the other files of the session, so it is the same each time. The errors distinguish what
/// can't be read, what can't be meant, and what gains nothing.
pub fn compact(
    transcript: &AgentTranscript<'_>,
    options: &CompactOptions,
) -> Result<CompactedTranscript, CompactError> {
    let (text, rest) = transcript.split(options.keep)?;
    let context = ImportContext { cwd: transcript.cwd, now: 0, read_sibling: transcript.read_sibling };
    let draft = match rest {
        Some(_) => epitome_import::read_request(transcript.path, &text, &context),
        None => epitome_import::read_foreign(transcript.path, &text, &context),
    };
    let draft = draft.map_err(CompactError::Unreadable)?;
    let notes = draft.notes.clone();
    let ruler = Ruler::for_model(None);
    let mut log = epitome_import::unfolded(draft.entries, OwnCompaction::LeftOut);
    // A request's messages were split before they were read.
    if rest.is_none() {
        log.truncate(first_kept(&log, options.keep));
    }
    // The options add entries that are not a part of the conversation.
    let conversation_end = Seq(log.len() as u64);
    let thread = Thread::replay(with(log, options).into_iter().map(Arc::new));
    let thread = thread.map_err(|error| {
        CompactError::Unreadable(Problem::new(transcript.path, format!("its log is not valid: {error}")))
    })?;
    let size = |through: Seq| -> u64 {
        let covered = thread.entries().iter().take_while(|entry| entry.seq <= through);
        covered.map(|entry| ruler.entry(entry)).sum()
    };
    let compose = |tokens, tables_max| composed(&thread, &ruler, options, tokens, tables_max);
    let tokens = options.max_tokens.unwrap_or(TOKENS_DEFAULT);
    let mut made = compose(tokens, tokens / TABLES_PART)?;
    let tokens_before = size(made.through);
    let gains = |made: &ComposedMessage| made.tokens * 100 <= tokens_before * LEFT_PERCENT_MAX;
    if !gains(&made) {
        let words_cut = |made: &ComposedMessage| made.account.shortened.len() + made.account.left_out.len();
        let is_whole = |other: &ComposedMessage| words_cut(other) <= words_cut(&made);
        // The tables of a short conversation may have nearly all of it. An earlier summary is all that is left of another.
        let is_first = thread.last_compaction().is_none();
        let gaining = tokens.min(tokens_before * LEFT_PERCENT_MAX / 100);
        let shorter = is_first.then(|| compose(gaining, gaining / TABLES_PART).ok()).flatten();
        match shorter.filter(is_whole).filter(gains) {
            Some(shorter) => made = shorter,
            None if options.max_tokens.is_none() => {
                return Err(CompactError::NoGain(format!(
                    "of {tokens_before} tokens, {} would be left; with --max-tokens it is made all the same",
                    made.tokens
                )));
            }
            None if is_first => made = compose(tokens, 0)?,
            None => {}
        }
    }
    let ComposedMessage { through, summary, tokens: tokens_after, account } = made;
    let covered = || {
        let covered = |entry: &&Entry| entry.seq <= through && entry.seq < conversation_end;
        thread.entries().iter().map(|entry| &**entry).take_while(covered)
    };
    let texts: Vec<&str> = summary.content.iter().filter_map(Content::as_text).collect();
    let (message, digest) = epitome_import::sealed(&texts.join("\n\n"), covered());
    let entries = covered().filter(|entry| entry.change.is_spoken()).count();
    let CompactionStats { quoted, shortened, left_out, .. } = account;
    Ok(CompactedTranscript {
        messages: rest.map(|rest| rest.behind(&message)),
        message,
        digest,
        entries,
        tokens_before,
        tokens_after,
        quoted: quoted.len(),
        shortened: shortened.len(),
        left_out: left_out.len(),
        notes,
    })
}

/// The index of the first of the `keep` newest messages. A reply stays with the results of its calls.
fn first_kept(log: &[Entry], keep: usize) -> usize {
    let mut spoken = (0..log.len()).filter(|at| log[*at].change.is_spoken());
    let Some(newest) = keep.checked_sub(1) else { return log.len() };
    let first = spoken.next().unwrap_or(log.len());
    let cut = spoken.nth_back(newest).unwrap_or(first);
    let finished = |entry: &'_ Entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.call.clone()),
        _ => None,
    };
    let finished: HashSet<CallId> = log[cut..].iter().filter_map(finished).collect();
    let calls = |entry: &Entry| entry.change.calls().any(|call| finished.contains(&call.id));
    log[..cut].iter().rposition(calls).unwrap_or(cut)
}

/// Adds what the options contain, and a frame without tools: the message must not name one that its reader lacks.
fn with(log: Vec<Entry>, options: &CompactOptions) -> Vec<Entry> {
    let mut log = Builder::over(log);
    for (path, text) in &options.instructions {
        let text = format!("<instructions path=\"{}\">\n{text}\n</instructions>", path.display());
        log.say(text, Origin::Instructions { path: path.clone() });
    }
    for pin in &options.pins {
        log.pin(pin.clone());
    }
    log.push(Change::Framed { system: String::new(), tools: Vec::new() });
    log.into_entries()
}

/// A message, and what it covers.
struct ComposedMessage {
    through: Seq,
    summary: Message,
    tokens: u64,
    account: CompactionStats,
}

/// Composes a message of at most `tokens`, of which the tables take at most `tables_max`.
fn composed(
    thread: &Thread,
    ruler: &Ruler,
    options: &CompactOptions,
    tokens: u64,
    tables_max: u64,
) -> Result<ComposedMessage, CompactError> {
    let settings = CompactionSettings { model: Summariser::None, ..CompactionSettings::default() };
    let budget = Budget {
        carried_max: tables_max,
        user_min: tokens / TABLES_PART,
        pins_max: tokens,
        due_at: tokens,
        ..Budget::new(&settings, tokens, 0, 0)
    };
    let reader = SummaryReader::OtherAgent { recall: options.recall.clone() };
    let input = CompactionInput::new(ruler, thread, &budget).for_reader(&reader);
    let keep = KeptTail::Nothing;
    let request = CompactionRequest { trigger: Trigger::Manual, keep, focus: None, summary: true };
    let refused = |why: CompactionRefusal| CompactError::NoGain(why.to_string());
    let plan = match decide(&input, &request) {
        CompactionDecision::Summarise(plan) => plan,
        CompactionDecision::Nothing(why) => return Err(refused(why)),
        CompactionDecision::Prune(_) => {
            return Err(CompactError::NoGain("old results only would be cut".to_owned()));
        }
    };
    match compacted(&input, &plan, thread.next_message(), Summary::default()).map_err(refused)? {
        Change::Compacted { through, summary, tokens_after: tokens, account, .. } => {
            Ok(ComposedMessage { through, summary, tokens, account })
        }
        _ => Err(CompactError::NoGain("the compaction is not a message".to_owned())),
    }
}
