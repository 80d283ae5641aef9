//! Collects the parts of the log that a compaction quotes verbatim. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::author::{Author, author, typed};
use super::calls::{asked, user_reply};
use super::input::CompactionInput;
use super::left_by_hooks;
use super::text::{flat_entry, said, said_with};
use super::wording::{COMPACTED, SUMMARY_CLOSE, SUMMARY_OPEN};
use epitome_thread::{
    Change, Content, EarlierWords, Entry, Message, MessageId, Origin, PartId, RewrittenEntries, Seq, Thread,
};

/// The contents outside of the kept view that are quoted next to the summary.
#[derive(Default)]
pub(super) struct Material {
    /// Entries that are kept.
    pub kept: HashSet<Seq>,
    /// The number of messages, replies and outcomes no longer in the view, with the first and the last.
    pub gone: Option<(usize, Seq, Seq)>,
    /// The user's last request.
    pub request: Option<LastRequest>,
    /// The user's other messages, newest first, including text given when refusing a call or answering a question, and what
    /// programs sent in the user's role.
    pub user: Vec<UserQuote>,
    /// The messages before these, for which there is no room even if all others are shortened.
    pub beyond: Option<EarlierWords>,
    /// The size of all quotes in tokens if each is as short as possible.
    least: u64,
    /// The newest text of each instruction file, in the order in which they were added.
    pub instructions: Vec<QuotedInstructions>,
    /// Pinned parts.
    pub pins: Vec<(PartId, String)>,
    pub goal: Option<String>,
    /// The summary or hook's history that the view begins with. It is nowhere else in the view.
    pub earlier: Option<String>,
    /// The provider's native form of that summary.
    pub native: Vec<Content>,
    /// The current index in `PASTE_CHARS`.
    paste_step: usize,
}

/// A message of the user, and its quote.
pub(super) struct UserQuote {
    pub entry: Seq,
    /// The element around it, `said` by the user or `not_by_user`, and its other attributes.
    element: (&'static str, String),
    text: String,
    /// The length of the text in characters, and the maximum for its quote.
    chars: usize,
    chars_max: usize,
    /// Whether the text lacks a part of the message even if it is complete, such as attached files.
    is_partial: bool,
    /// The text with the tags around it.
    pub quote: String,
    /// The size of the quote.
    pub tokens: u64,
}

/// The user's last request and its attachments.
pub(super) struct LastRequest {
    pub entry: Seq,
    content: Vec<Content>,
    /// The text that the user typed, if that is not the content.
    typed: Option<String>,
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
        let rewritten = thread.rewritten();
        let pins: Vec<(PartId, String)> =
            thread.pins().into_iter().filter(|(part, _)| !kept.contains(&part.entry)).collect();
        let quoted: HashSet<Seq> =
            pins.iter().filter(|(part, _)| part.part.is_none()).map(|(part, _)| part.entry).collect();

        let replaced: HashMap<Seq, &Arc<Entry>> =
            shown[..cut].iter().map(|entry| (entry.seq, entry)).collect();

        let mut material = Material {
            earlier: earlier_summary(thread, &shown[..cut], &rewritten),
            native: shown[..cut].first().map(|head| native_summary(head)).unwrap_or_default(),
            goal: thread.goal().map(str::to_owned),
            kept,
            pins,
            ..Material::default()
        };
        let mut request = None;
        let mut by_path: BTreeMap<&Path, Option<QuotedInstructions>> = BTreeMap::new();
        let asked = asked(thread.entries());
        let oldest_kept = material.kept.iter().min().copied();
        // Rewound prompts no longer apply.
        for entry in thread.active_entries().rev() {
            let is_kept = Some(entry.seq) >= oldest_kept && material.kept.contains(&entry.seq);
            if entry.change.is_spoken() && !is_kept && !rewritten.contains(entry.seq) {
                let (count, _, last) = material.gone.unwrap_or((0, entry.seq, entry.seq));
                material.gone = Some((count + 1, entry.seq, last));
            }
            let (logged, origin) = match &entry.change {
                Change::Said { message, origin } => (&message.content, origin),
                Change::ToolFinished { outcome } => {
                    let is_gone = !is_kept && !quoted.contains(&entry.seq);
                    let is_asked = asked.contains(outcome.call.0.as_str());
                    if is_gone
                        && !rewritten.contains(entry.seq)
                        && !rewritten.contains_call(&outcome.call)
                        && let Some((occasion, text)) = user_reply(is_asked, outcome)
                    {
                        let said = ("said", format!(" when=\"{occasion}\""));
                        material.add(input, entry.seq, said, false, || text.into_owned());
                    }
                    continue;
                }
                _ => continue,
            };
            // A quote from the log must not restore what a hook removed from the history.
            let content = match rewritten.contains(entry.seq) {
                true => {
                    let in_view = || replaced.get(&entry.seq).copied().and_then(content_of);
                    rewritten.content(entry.seq).or_else(in_view)
                }
                false => Some(logged.as_slice()),
            };
            match origin {
                Origin::Person | Origin::Recipe { .. } | Origin::Queue { .. } => {
                    let author = author(logged);
                    let content = content.map(typed);
                    if request.is_none() && author == Author::User {
                        request = Some(
                            content
                                .filter(|_| !is_kept)
                                .map(|content| LastRequest::new(input, entry.seq, &content, origin)),
                        );
                    } else if let Some(content) = content
                        && !is_kept
                        && !quoted.contains(&entry.seq)
                    {
                        let is_partial = content.iter().any(Content::has_attached_data);
                        let element = match author {
                            Author::Program(name) => ("not_by_user", format!(" sent_by=\"{name}\"")),
                            Author::User | Author::UserToClient => ("said", String::new()),
                        };
                        match origin {
                            Origin::Recipe { typed, .. } if !rewritten.contains(entry.seq) => {
                                material.add(input, entry.seq, element, is_partial, || typed.clone());
                            }
                            _ => material.add(input, entry.seq, element, is_partial, || said(&content)),
                        }
                    }
                }
                Origin::Instructions { path } if !by_path.contains_key(path.as_path()) => {
                    let text = content.map(|content| file_text(said(content), path));
                    let text = text.filter(|text| !text.trim().is_empty());
                    let text = text.filter(|_| !is_kept && !quoted.contains(&entry.seq));
                    let newest = text.map(|text| QuotedInstructions {
                        entry: entry.seq,
                        path: path.display().to_string(),
                        text,
                    });
                    by_path.insert(path, newest);
                }
                Origin::Instructions { .. } | Origin::Hook { .. } | Origin::Context { .. } => {}
            }
        }
        material.request = request.flatten();
        material.instructions = by_path.into_values().flatten().collect();
        material.instructions.sort_by_key(|file| file.entry);
        // Pastes that exceed what is guaranteed to the user would be read with every further request.
        let excess = material.user_tokens().saturating_sub(input.budget.user_min);
        material.cut_longer(input, PASTE_CHARS[1], excess);
        material
    }
}

impl Material {
    /// Adds a message that is older than the others, unless it is blank, as far as there can be room for it. So the cost of
    /// a compaction does not grow with the conversation.
    fn add(
        &mut self,
        input: &CompactionInput<'_>,
        entry: Seq,
        element: (&'static str, String),
        is_partial: bool,
        text: impl FnOnce() -> String,
    ) {
        if self.least > input.limit {
            let newest = EarlierWords { through: entry, entries: 0 };
            self.beyond.get_or_insert(newest).entries += 1;
            return;
        }
        let text = text();
        if !text.trim().is_empty() {
            let quote = UserQuote::new(input, entry, element, text, is_partial);
            self.least += quote.least(input);
            self.user.push(quote);
        }
    }

    /// Adds what hooks left of the user's older messages, unless `summary` contains it: the log must not be quoted for
    /// these, and a new summary replaces the only text that had them.
    pub fn add_words_left_by_hooks(&mut self, input: &CompactionInput<'_>, summary: &str) {
        let Some((layer, words)) = left_by_hooks::words(input.thread) else { return };
        let element = || ("said", " when=\"before, as a hook left it\"".to_owned());
        let missing = words.into_iter().rev().filter(|words| !summary.contains(words.as_str()));
        self.user.extend(missing.map(|words| UserQuote::new(input, layer, element(), words, true)));
    }
}

/// The file's text in an instruction message, without the surrounding text.
fn file_text(text: String, path: &Path) -> String {
    let head = format!("<instructions path=\"{}\">\n", path.display());
    let inner = text.split_once(&head).and_then(|(_, rest)| rest.strip_suffix("\n</instructions>"));
    inner.map(str::to_owned).unwrap_or(text)
}

impl UserQuote {
    fn new(
        input: &CompactionInput<'_>,
        entry: Seq,
        element: (&'static str, String),
        text: String,
        is_partial: bool,
    ) -> UserQuote {
        let [longest, .., shortest] = PASTE_CHARS;
        let chars_max = if element.0 == "said" { longest } else { shortest };
        let (chars, quote) = (text.chars().count(), String::new());
        let mut words = UserQuote { entry, element, text, chars, chars_max, is_partial, quote, tokens: 0 };
        words.quote = words.quoted(input, chars_max);
        words.tokens = input.ruler.text(&words.quote);
        words
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// At most `chars_max` of the text, with the tags around it.
    fn quoted(&self, input: &CompactionInput<'_>, chars_max: usize) -> String {
        let text = input.most_telling_lines(&self.text, chars_max, self.entry);
        let (name, attributes) = &self.element;
        format!("<{name}{}{attributes}>\n{text}\n</{name}>", input.entry_attribute(self.entry))
    }

    /// The size of the shortest quote.
    fn least(&self, input: &CompactionInput<'_>) -> u64 {
        let [.., chars_max] = PASTE_CHARS;
        match self.chars > chars_max {
            true => input.ruler.text(&self.quoted(input, chars_max)).min(self.tokens),
            false => self.tokens,
        }
    }

    /// Shortens the quote to `chars_max`, and returns the number of tokens that this saves. The mark of the cut may be
    /// longer than the text that it replaces; then the quote stays as it is.
    fn cut(&mut self, input: &CompactionInput<'_>, chars_max: usize) -> u64 {
        let quote = self.quoted(input, chars_max);
        let tokens = input.ruler.text(&quote);
        let saved = self.tokens.saturating_sub(tokens);
        if saved > 0 {
            (self.quote, self.tokens) = (quote, tokens);
            self.chars_max = chars_max;
        }
        saved
    }

    /// Whether a part of the message is missing from the quote.
    pub fn is_cut(&self) -> bool {
        self.is_partial || self.chars > self.chars_max
    }
}

impl Material {
    /// Shortens the user's long pastes by at least `tokens`: to the next length, the longest first and then the oldest
    /// first, and only as many as necessary. If that is not enough, the next call goes on. Returns `false` if nothing
    /// can be shortened to at least `chars_min`.
    pub fn cut_pastes(&mut self, input: &CompactionInput<'_>, tokens: u64, chars_min: usize) -> bool {
        while let Some(chars_max) = PASTE_CHARS.get(self.paste_step + 1).filter(|max| **max >= chars_min) {
            let saved = self.cut_longer(input, *chars_max, tokens);
            self.paste_step += usize::from(saved < tokens);
            if saved > 0 {
                return true;
            }
        }
        false
    }

    /// Shortens texts of more than `chars_max` until that saves this many tokens, and returns how many it saves.
    fn cut_longer(&mut self, input: &CompactionInput<'_>, chars_max: usize, tokens: u64) -> u64 {
        let is_long = |words: &&mut UserQuote| words.chars.min(words.chars_max) > chars_max;
        let mut long: Vec<&mut UserQuote> = self.user.iter_mut().filter(is_long).collect();
        long.sort_by_key(|words| (Reverse(words.chars), words.entry));
        let mut saved = 0;
        for words in long {
            if saved >= tokens {
                break;
            }
            saved += words.cut(input, chars_max);
        }
        saved
    }

    /// The size of all quotes of the user's messages.
    pub fn user_tokens(&self) -> u64 {
        self.user.iter().map(|words| words.tokens).sum()
    }
}

impl LastRequest {
    fn new(input: &CompactionInput<'_>, entry: Seq, content: &[Content], origin: &Origin) -> LastRequest {
        let content = content.to_vec();
        let mut attached: Vec<usize> = (0..content.len()).filter(|at| content[*at].is_attachment()).collect();
        attached.sort_by_cached_key(|at| {
            input.ruler.message(&Message {
                id: MessageId(0),
                content: vec![content[*at].clone()],
                author: None,
            })
        });
        let typed = match origin {
            Origin::Recipe { typed, .. } => Some(typed.clone()),
            _ => None,
        };
        LastRequest { entry, content, typed, attached }
    }

    /// The request as the user typed it.
    pub fn into_typed(self) -> LastRequest {
        match self.typed {
            Some(text) => LastRequest {
                content: vec![Content::Text { text }],
                typed: None,
                attached: Vec::new(),
                ..self
            },
            None => self,
        }
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

fn content_of(entry: &Arc<Entry>) -> Option<&[Content]> {
    match &entry.change {
        Change::Said { message, .. } => Some(&message.content),
        _ => None,
    }
}

/// The summary or the hook's history that the replaced part of the view begins with, unless all of it was computed or
/// quoted from the log. Without a new summary, its text is carried over.
fn earlier_summary(thread: &Thread, replaced: &[Arc<Entry>], rewritten: &RewrittenEntries) -> Option<String> {
    let head = replaced.first()?;
    let text = match &head.change {
        // The other parts of Epitome's message are made again. A hook's edit must not be undone by that, and a message
        // of another program has no parts.
        Change::Compacted { summary, .. } if !rewritten.contains(head.seq) && is_composed(summary) => {
            written_summary(summary)?
        }
        Change::Compacted { summary, .. } => summary.text(),
        _ => {
            let Change::Mutated { .. } = thread.entry(head.seq)?.change else { return None };
            let history: Vec<&Arc<Entry>> =
                replaced.iter().take_while(|entry| entry.seq == head.seq).collect();
            match (history.len(), content_of(head)) {
                (1, Some(content)) => said(content),
                _ => {
                    let parts = history.iter().map(|entry| flat_entry(entry, &HashMap::new()));
                    parts.collect::<Vec<_>>().join("\n\n")
                }
            }
        }
    };
    (!text.trim().is_empty()).then_some(text)
}

/// Whether Epitome composed this compaction message, rather than the agent that an imported session is from.
fn is_composed(message: &Message) -> bool {
    message.content.iter().find_map(Content::as_text).is_some_and(|text| text.starts_with(COMPACTED))
}

/// The model's summary in a composed message.
fn written_summary(message: &Message) -> Option<String> {
    // The provider's native form of it may come first.
    let (_, rest) = message.content.iter().find_map(Content::as_text)?.split_once(SUMMARY_OPEN)?;
    let text = rest.strip_suffix(SUMMARY_CLOSE).or_else(|| Some(rest.split_once(SUMMARY_CLOSE)?.0));
    text.map(str::to_owned)
}

/// The provider's native form of the summary in a compaction message.
fn native_summary(head: &Entry) -> Vec<Content> {
    let Change::Compacted { summary, .. } = &head.change else { return Vec::new() };
    let is_native = |part: &&Content| matches!(part, Content::Thinking { native: Some(_), .. });
    summary.content.iter().filter(is_native).cloned().collect()
}

/// Longer texts of the user are quoted without most of their middle if there is no room for them: pastes are logs and files,
/// which can be read again. In characters, per attempt.
const PASTE_CHARS: [usize; 4] = [usize::MAX, 8 * 1024, LONG_PASTE_CHARS, 600];

/// Long pastes keep this many characters until the tables have been shortened.
pub const LONG_PASTE_CHARS: usize = 2 * 1024;
