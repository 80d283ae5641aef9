//! Collects the parts of the log that a compaction quotes verbatim. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::carryover::user_reply;
use super::input::{CompactionInput, RewrittenEntries, tools};
use super::text::{said, said_with};
use epitome_thread::{Change, Content, Entry, Message, MessageId, Origin, PartId, Seq};

/// The contents outside of the kept view that are quoted next to the summary.
pub(super) struct Material {
    /// Entries that are kept.
    pub kept: HashSet<Seq>,
    /// The number of messages, replies and outcomes no longer in the view, with the first and the last.
    pub gone: Option<(usize, Seq, Seq)>,
    /// The user's last request.
    pub request: Option<LastRequest>,
    /// The user's other messages, newest first, including text given when refusing a call or answering a question.
    pub user: Vec<UserQuote>,
    /// The newest text of each instruction file, in the order in which they were added.
    pub instructions: Vec<QuotedInstructions>,
    /// Pinned parts.
    pub pins: Vec<(PartId, String)>,
    pub goal: Option<String>,
    /// The model-written summary that the view begins with.
    pub earlier: Option<String>,
    /// The current index in `PASTE_BYTES`.
    paste_step: usize,
}

/// A message of the user, and its quote.
pub(super) struct UserQuote {
    pub entry: Seq,
    /// The occasion, if it was not a prompt.
    occasion: Option<&'static str>,
    text: String,
    /// The text with the tags around it.
    pub quote: String,
    /// The size of the quote.
    pub tokens: u64,
}

/// The user's last request and its attachments.
pub(super) struct LastRequest {
    pub entry: Seq,
    content: Vec<Content>,
    /// The indices of the attachments in `content`, the lightest first.
    attached: Vec<usize>,
}

pub(super) struct QuotedInstructions {
    pub entry: Seq,
    pub path: String,
    pub text: String,
}

impl Material {
    /// Collects the material for a layer that keeps the view from index `cut` on.
    pub fn collect(input: &CompactionInput<'_>, cut: usize) -> Material {
        let thread = input.thread;
        let shown = input.entries();
        let kept: HashSet<Seq> = shown[cut..].iter().map(|entry| entry.seq).collect();
        let rewritten = RewrittenEntries::collect(thread);
        let pins: Vec<(PartId, String)> =
            thread.pins().into_iter().filter(|(part, _)| !kept.contains(&part.entry)).collect();
        let quoted: HashSet<Seq> =
            pins.iter().filter(|(part, _)| part.part.is_none()).map(|(part, _)| part.entry).collect();

        let replaced: HashMap<Seq, &Arc<Entry>> =
            shown[..cut].iter().map(|entry| (entry.seq, entry)).collect();

        let mut request = None;
        let mut user = Vec::new();
        let mut told: BTreeMap<&Path, Option<QuotedInstructions>> = BTreeMap::new();
        let names = tools(thread.entries());
        // Rewound prompts no longer apply.
        let standing: Vec<&Arc<Entry>> = thread.standing().collect();
        for entry in standing.into_iter().rev() {
            let origin = match &entry.change {
                Change::Said { origin, .. } => origin,
                Change::ToolFinished { outcome } => {
                    let is_gone = !kept.contains(&entry.seq) && !quoted.contains(&entry.seq);
                    let tool = names.get(outcome.call.0.as_str()).copied().unwrap_or_default();
                    if is_gone
                        && !rewritten.contains(entry.seq)
                        && let Some((occasion, text)) = user_reply(tool, outcome)
                    {
                        user.push(UserQuote::new(input, entry.seq, Some(occasion), text.to_owned()));
                    }
                    continue;
                }
                _ => continue,
            };
            // A quote from the log must not restore what a hook removed from the history.
            let current = match rewritten.contains(entry.seq) {
                true => replaced.get(&entry.seq).copied(),
                false => Some(entry),
            };
            let message = current.and_then(message_of);
            match origin {
                Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => {
                    let is_last = request.is_none();
                    if is_last {
                        let is_quoted = !kept.contains(&entry.seq);
                        request = Some(
                            message
                                .filter(|_| is_quoted)
                                .map(|message| LastRequest::new(input, entry, message)),
                        );
                    } else if let Some(message) = message
                        && !kept.contains(&entry.seq)
                        && !quoted.contains(&entry.seq)
                    {
                        let text = match origin {
                            Origin::Recipe { typed, .. } if !rewritten.contains(entry.seq) => typed.clone(),
                            _ => said(message),
                        };
                        if !text.trim().is_empty() {
                            user.push(UserQuote::new(input, entry.seq, None, text));
                        }
                    }
                }
                Origin::Instructions { path } if !told.contains_key(path.as_path()) => {
                    let text = message.map(|message| file_text(said(message), path));
                    let text = text.filter(|text| !text.trim().is_empty());
                    let text = text.filter(|_| !kept.contains(&entry.seq) && !quoted.contains(&entry.seq));
                    let newest = text.map(|text| QuotedInstructions {
                        entry: entry.seq,
                        path: path.display().to_string(),
                        text,
                    });
                    told.insert(path, newest);
                }
                Origin::Instructions { .. } | Origin::Hook { .. } | Origin::Context { .. } => {}
            }
        }
        let mut instructions: Vec<QuotedInstructions> = told.into_values().flatten().collect();
        instructions.sort_by_key(|file| file.entry);
        let goal = thread.goal().map(str::to_owned);
        let earlier = shown[..cut].first().and_then(|entry| earlier_summary(entry));
        let gone = gone(thread.entries(), &kept);
        Material {
            kept,
            gone,
            request: request.flatten(),
            user,
            instructions,
            pins,
            goal,
            earlier,
            paste_step: 0,
        }
    }
}

fn gone(entries: &[Arc<Entry>], kept: &HashSet<Seq>) -> Option<(usize, Seq, Seq)> {
    let is_spoken = |entry: &&Arc<Entry>| {
        matches!(entry.change, Change::Said { .. } | Change::Replied { .. } | Change::ToolFinished { .. })
    };
    let mut gone = entries.iter().filter(is_spoken).map(|entry| entry.seq).filter(|seq| !kept.contains(seq));
    let first = gone.next()?;
    Some(gone.fold((1, first, first), |(count, first, _), seq| (count + 1, first, seq)))
}

/// The file's text in an instruction message, without the surrounding text.
fn file_text(text: String, path: &Path) -> String {
    let head = format!("<instructions path=\"{}\">\n", path.display());
    let told = text.split_once(&head).and_then(|(_, rest)| rest.strip_suffix("\n</instructions>"));
    told.map(str::to_owned).unwrap_or(text)
}

impl UserQuote {
    fn new(
        input: &CompactionInput<'_>,
        entry: Seq,
        occasion: Option<&'static str>,
        text: String,
    ) -> UserQuote {
        let mut words = UserQuote { entry, occasion, text, quote: String::new(), tokens: 0 };
        words.cut(input, PASTE_BYTES[0]);
        words
    }

    /// Quotes the head and tail of the text, at most `bytes_max` of it.
    fn cut(&mut self, input: &CompactionInput<'_>, bytes_max: usize) {
        let text = input.head_and_tail(&self.text, bytes_max, self.entry);
        let occasion = self.occasion.map_or(String::new(), |occasion| format!(" when=\"{occasion}\""));
        self.quote = format!("<said entry=\"{}\"{occasion}>\n{text}\n</said>", self.entry);
        self.tokens = input.ruler.text(&self.quote);
    }
}

impl Material {
    /// Cuts the user's long pastes to the next shorter length. Returns `false` if no paste is that long.
    pub fn cut_pastes(&mut self, input: &CompactionInput<'_>) -> bool {
        while let Some(bytes_max) = PASTE_BYTES.get(self.paste_step + 1) {
            self.paste_step += 1;
            let mut long = self.user.iter_mut().filter(|words| words.text.len() > *bytes_max).peekable();
            if long.peek().is_some() {
                long.for_each(|words| words.cut(input, *bytes_max));
                return true;
            }
        }
        false
    }

    /// The size of all quotes of the user's messages.
    pub fn user_tokens(&self) -> u64 {
        self.user.iter().map(|words| words.tokens).sum()
    }

    /// The size of the message without a summary and tables.
    pub fn tokens(&self, input: &CompactionInput<'_>) -> u64 {
        let text = |text: &str| input.ruler.text(text);
        let instructions: u64 = self.instructions.iter().map(|file| text(&file.text)).sum();
        let pins: u64 = self.pins.iter().map(|(_, pinned)| text(pinned)).sum();
        let request = self.request.as_ref().map_or(0, |request| {
            input.ruler.message(&Message { id: MessageId(0), content: request.content.clone() })
        });
        let goal = self.goal.as_deref().map_or(0, text);
        self.user_tokens() + instructions + pins + request + goal + FRAME_TOKENS
    }
}

/// The approximate size of the sentences and tags around the parts.
const FRAME_TOKENS: u64 = 200;

impl LastRequest {
    fn new(input: &CompactionInput<'_>, entry: &Entry, message: &Message) -> LastRequest {
        let content = message.content.clone();
        let mut attached: Vec<usize> = (0..content.len()).filter(|at| content[*at].is_attachment()).collect();
        attached.sort_by_cached_key(|at| {
            input.ruler.message(&Message { id: message.id, content: vec![content[*at].clone()] })
        });
        LastRequest { entry: entry.seq, content, attached }
    }

    /// The number of attachments.
    pub fn attached(&self) -> usize {
        self.attached.len()
    }

    /// The text, with the attachments named in it, and the lightest `attached` attachments.
    pub fn with(&self, attached: usize) -> (String, Vec<Content>) {
        let with: HashSet<usize> = self.attached.iter().take(attached).copied().collect();
        let text = said_with(&self.content, |at| with.contains(&at));
        let content = self.content.iter().enumerate().filter(|(at, _)| with.contains(at));
        (text, content.map(|(_, content)| content.clone()).collect())
    }
}

fn message_of(entry: &Arc<Entry>) -> Option<&Message> {
    match &entry.change {
        Change::Said { message, .. } => Some(message),
        _ => None,
    }
}

/// The summary of an earlier compaction if a model wrote it. It is nowhere else in the log.
fn earlier_summary(entry: &Entry) -> Option<String> {
    let Change::Compacted { summary, .. } = &entry.change else { return None };
    // The provider's native form of it may come first.
    let text = summary.content.iter().find_map(Content::as_text);
    let (_, rest) = text?.split_once(SUMMARY_OPEN)?;
    let text =
        rest.strip_suffix(SUMMARY_CLOSE).or_else(|| rest.split_once(SUMMARY_CLOSE).map(|(text, _)| text))?;
    (!text.trim().is_empty()).then(|| text.to_owned())
}

/// Longer texts of the user are quoted by their head and tail: pastes are logs and files, whose middle can be read
/// again. In bytes, per attempt.
const PASTE_BYTES: [usize; 3] = [8 * 1024, 2 * 1024, 600];

pub(super) const SUMMARY_OPEN: &str = "<summary>\n";
pub(super) const SUMMARY_CLOSE: &str = "\n</summary>";
