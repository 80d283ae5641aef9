//! Compacts the conversation of any coding agent into one message, without a model and without storing anything.
//!
//! ```text
//!  text ─► transcript ── what of it is compacted ─► epitome-import ─► log
//!                                                                      │ earlier: messages that Epitome composed before
//!                                                                      ▼ become what they were made from
//!  message ◄─ marker ◄─ epitome-compaction ◄─ thread, pins, instructions
//! ```
//!
//! [`compact`] is the whole interface. The program `epitome-compact` reads and writes files for it.

mod transcript;

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use epitome_compaction::{
    Budget, CompactionDecision, CompactionInput, CompactionRefusal, CompactionRequest, KeptTail, Summary,
    SummaryReader, compacted, decide,
};
use epitome_import::{EntryAppender, ImportContext, OwnCompaction};
use epitome_thread::compaction_settings::{CompactionSettings, Summariser};
use epitome_thread::problem::Problem;
use epitome_thread::{Change, CompactionStats, Content, Entry, Origin, Seq, Thread, Trigger};
use epitome_tokens::Ruler;

pub use transcript::AgentTranscript;

/// The limit for a message, in tokens, unless another one is requested.
pub const TOKENS_DEFAULT: u64 = 20_000;

/// The smallest limit for a message, in tokens.
pub const TOKENS_MIN: u64 = 400;

/// What is left of a conversation at most, in percent. With less gain it should stay as it is.
const LEFT_PERCENT_MAX: u64 = 90;

/// Divisor: the largest share of the message for the tables computed from the log.
const TABLES_PART: u64 = 2;

/// What a compaction keeps besides what the conversation says.
#[derive(Clone, Debug, Default)]
pub struct CompactOptions {
    /// Limit for the message, in tokens by an estimate.
    pub max_tokens: u64,
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
    add(&mut log, options);
    let thread = Thread::replay(log.into_iter().map(Arc::new));
    let thread = thread.map_err(|error| {
        CompactError::Unreadable(Problem::new(transcript.path, format!("its log is not valid: {error}")))
    })?;
    let size = |through: Seq| -> u64 {
        let covered = thread.entries().iter().take_while(|entry| entry.seq <= through);
        covered.map(|entry| ruler.entry(entry)).sum()
    };
    // Only a request's messages are split before they are read.
    let keep = if rest.is_some() { 0 } else { options.keep };
    let change = composed(&thread, &ruler, options, keep)?;
    let Change::Compacted { through, summary, tokens_after, account, .. } = change else {
        return Err(CompactError::NoGain("the compaction is not a message".to_owned()));
    };
    let tokens_before = size(through);
    if tokens_after * 100 > tokens_before * LEFT_PERCENT_MAX {
        let why = format!(
            "of {tokens_before} tokens, {tokens_after} would be left; a smaller size leaves out more"
        );
        return Err(CompactError::NoGain(why));
    }
    let covered = thread.entries().iter().take_while(|entry| entry.seq <= through);
    let entries = covered.filter(|entry| entry.change.is_spoken()).count();
    let texts: Vec<&str> = summary.content.iter().filter_map(Content::as_text).collect();
    let (message, digest) = epitome_import::sealed(&texts.join("\n\n"), entries);
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

/// Adds what the options contain, and a frame without tools: the message must not name one that its reader lacks.
fn add(log: &mut Vec<Entry>, options: &CompactOptions) {
    let mut log = EntryAppender::new(log);
    for (path, text) in &options.instructions {
        let text = format!("<instructions path=\"{}\">\n{text}\n</instructions>", path.display());
        log.say(text, Origin::Instructions { path: path.clone() });
    }
    for pin in &options.pins {
        log.pin(pin.clone());
    }
    log.push(Change::Framed { system: String::new(), tools: Vec::new() });
}

fn composed(
    thread: &Thread,
    ruler: &Ruler,
    options: &CompactOptions,
    keep: usize,
) -> Result<Change, CompactError> {
    let tokens = options.max_tokens;
    let settings = CompactionSettings { model: Summariser::None, ..CompactionSettings::default() };
    let budget = Budget {
        carried_max: tokens / TABLES_PART,
        user_min: tokens / TABLES_PART,
        pins_max: tokens,
        due_at: tokens,
        ..Budget::new(&settings, tokens, 0, 0)
    };
    let reader = SummaryReader::OtherAgent { recall: options.recall.clone() };
    let input = CompactionInput::new(ruler, thread, &budget).for_reader(&reader);
    let keep = if keep == 0 { KeptTail::Nothing } else { KeptTail::Messages(keep) };
    let request = CompactionRequest { trigger: Trigger::Manual, keep, focus: None, summary: true };
    let refused = |why: CompactionRefusal| CompactError::NoGain(why.to_string());
    let plan = match decide(&input, &request) {
        CompactionDecision::Summarise(plan) => plan,
        CompactionDecision::Nothing(why) => return Err(refused(why)),
        CompactionDecision::Prune(_) => {
            return Err(CompactError::NoGain("old results only would be cut".to_owned()));
        }
    };
    compacted(&input, &plan, thread.next_message(), Summary::default()).map_err(refused)
}
