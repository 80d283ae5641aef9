//! Names in a summary that the log does not know. Pure.
//!
//! A model that writes a summary may make up a path or a function, and the one that reads it takes it for true.

use std::collections::BTreeSet;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use crate::thread::{Change, Content, Edit, Message, OutcomeContent, Thread};

/// Names of one summary that are looked for.
const NAMES_MAX: usize = 200;

/// Bytes of a log that are searched, in about 50 ms. Of a longer one nothing is said: a name may stand in the
/// rest.
const SEARCHED_BYTES_MAX: usize = 16 << 20;

/// Bytes of a name at the least and at the most.
const NAME_BYTES: std::ops::RangeInclusive<usize> = 4..=256;

/// Digits of a hash at the least, as version control shortens them, and at the most.
const HASH_DIGITS: std::ops::RangeInclusive<usize> = 7..=64;

/// Endings of names of files that need no directory to be known as such.
const ENDINGS: [&str; 32] = [
    "c", "cc", "cpp", "cs", "css", "go", "h", "hpp", "html", "java", "js", "json", "jsx", "kt", "lock",
    "lua", "md", "php", "py", "rb", "rs", "scss", "sh", "sql", "svelte", "swift", "toml", "ts", "tsx", "vue",
    "yaml", "yml",
];

/// A summary with a line about the names in it that the log does not know, where there are any.
pub(super) fn flagged(mut summary: String, thread: &Thread) -> String {
    let unknown = unknown_identifiers(&summary, thread);
    if !unknown.is_empty() {
        summary.push_str(&format!("\n\n(not found in the log: {})", unknown.join(", ")));
    }
    summary
}

/// The paths, URLs, hashes and names of functions and the like in a summary that stand nowhere in the log, in
/// the order of the alphabet. At most 200 names are looked for, and none in a log of over 16 MB.
pub fn unknown_identifiers(summary: &str, thread: &Thread) -> Vec<String> {
    let names: Vec<&str> = names(summary).into_iter().take(NAMES_MAX).collect();
    if names.is_empty() {
        return Vec::new();
    }
    // One look at a table for each byte, also where the names are many.
    let automaton = AhoCorasick::builder().kind(Some(AhoCorasickKind::DFA)).build(&names);
    let Ok(automaton) = automaton else { return Vec::new() };
    let mut search =
        Search { automaton, unknown: (0..names.len()).collect(), left: SEARCHED_BYTES_MAX, is_over: false };
    for entry in thread.entries().iter().rev() {
        search.change(&entry.change);
        if search.unknown.is_empty() || search.is_over {
            return Vec::new();
        }
    }
    search.unknown.into_iter().map(|at| names[at].to_owned()).collect()
}

struct Search {
    automaton: AhoCorasick,
    /// Those that were not found yet.
    unknown: BTreeSet<usize>,
    left: usize,
    is_over: bool,
}

impl Search {
    fn text(&mut self, text: &str) {
        match self.left.checked_sub(text.len()) {
            Some(left) => self.left = left,
            None => self.is_over = true,
        }
        if self.is_over {
            return;
        }
        for found in self.automaton.find_overlapping_iter(text) {
            self.unknown.remove(&found.pattern().as_usize());
        }
    }

    fn message(&mut self, message: &Message) {
        self.contents(&message.content);
    }

    fn contents(&mut self, contents: &[Content]) {
        for content in contents {
            match content {
                Content::Text { text } | Content::Thinking { text, .. } => self.text(text),
                Content::Image { uri, .. } => self.text(uri.as_deref().unwrap_or_default()),
                Content::Document { name, .. } => self.text(name.as_deref().unwrap_or_default()),
                Content::Resource { uri, text } => {
                    self.text(uri);
                    self.text(text);
                }
                Content::ResourceLink { uri, name } => {
                    self.text(uri);
                    self.text(name);
                }
                Content::Call(call) => {
                    self.text(&call.name);
                    self.text(&call.input.to_string());
                }
            }
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Opened { cwd, .. } => self.text(&cwd.to_string_lossy()),
            Change::Framed { system, tools } => {
                self.text(system);
                for tool in tools {
                    self.text(&tool.name);
                    self.text(&tool.description);
                    self.text(&tool.schema.to_string());
                }
            }
            Change::Queued { message }
            | Change::Said { message, .. }
            | Change::Replied { message, .. }
            | Change::Withheld { message, .. } => self.message(message),
            // Of what a model wrote before it is not asked again.
            Change::Compacted { summary, .. } => self.message(summary),
            Change::ToolFinished { outcome } => {
                for content in &outcome.content {
                    match content {
                        OutcomeContent::Text { text } => self.text(text),
                        OutcomeContent::Image { .. } => {}
                        OutcomeContent::Document { name, .. } => {
                            self.text(name.as_deref().unwrap_or_default())
                        }
                    }
                }
                for location in &outcome.locations {
                    self.text(&location.path.to_string_lossy());
                }
                self.text(outcome.whole.as_deref().unwrap_or_default());
            }
            Change::Mutated { messages, .. } => {
                messages.iter().for_each(|spoken| self.message(&spoken.message))
            }
            Change::Edited { edits, .. } => {
                for edit in edits {
                    match edit {
                        Edit::Append { message, .. } => self.message(message),
                        Edit::Replace { content, .. } => self.contents(content),
                        Edit::Mask { note, .. } => self.text(note),
                        Edit::Pin { .. } | Edit::Unpin { .. } | Edit::Drop { .. } => {}
                    }
                }
            }
            Change::CallChanged { input, .. } => self.text(&input.to_string()),
            Change::GoalSet { goal } => self.text(goal.as_deref().unwrap_or_default()),
            Change::Commanded { typed, .. } => self.text(typed),
            Change::Noted { text, .. } => self.text(text),
            Change::Planned { steps } => steps.iter().for_each(|step| self.text(&step.content)),
            Change::Titled { title } => self.text(title),
            Change::ModelChosen { model } => self.text(&model.0),
            Change::FilesRewound { files, .. } => {
                files.iter().for_each(|file| self.text(&file.to_string_lossy()));
            }
            Change::Pruned { .. }
            | Change::Rewound { .. }
            | Change::Forked { .. }
            | Change::Hooked { .. }
            | Change::ThinkingDropped { .. }
            | Change::Undone { .. }
            | Change::Redone { .. }
            | Change::ModeChosen { .. }
            | Change::ThoughtChosen { .. }
            | Change::Allowed { .. }
            | Change::Spent { .. }
            | Change::Forgotten { .. }
            | Change::TurnEnded { .. } => {}
        }
    }
}

/// What in a text names something that a log can know.
fn names(text: &str) -> BTreeSet<&str> {
    let is_end = |character: char| character.is_whitespace() || "\"'`[]{}<>,;|*=()".contains(character);
    let mut names = BTreeSet::new();
    for (at, word) in words(text, is_end) {
        let is_called = text[at + word.len()..].starts_with('(');
        let word = word.trim_matches(['.', ':', '!', '?', '#', '@']);
        let word = word.strip_prefix("./").unwrap_or(word);
        let word = without_line(word);
        let is_name = is_called && is_plain(word) || names_something(word);
        if is_name && NAME_BYTES.contains(&word.len()) {
            names.insert(word);
        }
    }
    names
}

/// The words of a text with their places.
fn words(text: &str, is_end: impl Fn(char) -> bool) -> impl Iterator<Item = (usize, &str)> {
    text.split(is_end).map(move |word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
}

/// A place in a file without its line and column.
fn without_line(word: &str) -> &str {
    let mut word = word;
    while let Some((before, number)) = word.rsplit_once(':')
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
    {
        word = before;
    }
    word
}

fn names_something(word: &str) -> bool {
    if word.contains("://") {
        return true;
    }
    if !word.bytes().any(|byte| byte.is_ascii_alphanumeric()) {
        return false;
    }
    let last = word.rsplit('/').next().unwrap_or(word);
    let ending = last.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, ending)| ending);
    let has_ending = ending.is_some_and(|ending| ENDINGS.contains(&ending));
    let is_path =
        word.matches('/').count() > 1 || word.starts_with(['/', '~']) || word.contains('/') && has_ending;
    let is_hash = HASH_DIGITS.contains(&word.len())
        && word.bytes().all(|byte| byte.is_ascii_hexdigit())
        && word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().any(|byte| byte.is_ascii_alphabetic());
    let joined = |sign: &str| {
        word.split(sign).count() > 1 && word.split(sign).all(|part| !part.is_empty() && is_plain(part))
    };
    is_path || has_ending || is_hash || joined("::") || joined("_") || is_camel(word)
}

/// Whether it is of letters, digits and underscores alone.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|character| character.is_alphanumeric() || character == '_')
}

/// `someName`: a capital behind a small letter, and nothing but letters and digits.
fn is_camel(word: &str) -> bool {
    let mut pairs = word.as_bytes().windows(2);
    word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && pairs.any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::thread::{Entry, FORMAT_VERSION, MessageId, Origin, Seq, SessionId};

    #[test]
    fn only_what_names_something_is_looked_for() {
        let text = "Done: `src/a.rs:10-12`, see https://x.org/y. The call parse_all() and/or Parser::new(1), \
                    1a2b3c4 of main.rs (e.g. in v1.2.3), 20 bytes, someName; retry() yes/no, hello(world).";
        let expected = [
            "1a2b3c4",
            "Parser::new",
            "hello",
            "https://x.org/y",
            "main.rs",
            "parse_all",
            "retry",
            "someName",
            "src/a.rs",
        ];
        assert_eq!(names(text).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_stands_nowhere_in_the_log_is_named() {
        let session = SessionId("s_00000000000000000001".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
        let said = Content::Text { text: "look at /w/src/a.rs and parse_all".into() };
        let message = Message { id: MessageId(0), content: vec![said] };
        let entries = [opened, Change::Said { message, origin: Origin::Person }];
        let entries =
            (0..).zip(entries).map(|(seq, change)| Arc::new(Entry { seq: Seq(seq), at: 0, change }));
        let thread = Thread::replay(entries).expect("a log");
        let summary = "parse_all() in ./src/a.rs:3 is fixed, `parse_some` in src/b.rs is not";
        assert_eq!(unknown_identifiers(summary, &thread), ["parse_some", "src/b.rs"]);
        let marked = flagged(summary.to_owned(), &thread);
        assert!(marked.ends_with("(not found in the log: parse_some, src/b.rs)"), "{marked}");
        assert_eq!(flagged("all of src/a.rs".to_owned(), &thread), "all of src/a.rs");
    }
}
