//! Judges what a text still holds. It knows the facts and reads the text as a careful reader would: by names that
//! stand alone, by the words around them, and for values by which one is given as the present one. It shares no
//! code with whatever made the text.

use std::collections::HashSet;
use std::ops::Range;

use epitome::thread::{Change, Content, Piece as Shown, View};

use super::plant::{Fact, Kind};

/// How far around an anchor the words are looked for that say what is about it, in bytes.
const AROUND_BYTES: usize = 400;
/// How near to its subject a value stands that is told of it, in bytes.
const VALUE_BYTES: usize = 160;
/// The share of the words of a reason, a task or a rule that make it the same one.
const WORDS_SHARE_MIN: f64 = 0.6;
/// The share of the words that say what an identifier names.
const NAMED_SHARE_MIN: f64 = 0.5;

/// Words that tell that something is not done, or not any more.
const AGAINST: &[&str] = &[
    "not",
    "no",
    "never",
    "don't",
    "doesn't",
    "didn't",
    "won't",
    "can't",
    "isn't",
    "wasn't",
    "aren't",
    "cannot",
    "without",
    "reject",
    "rejected",
    "rejects",
    "ruled",
    "rule",
    "out",
    "dropped",
    "discarded",
    "abandoned",
    "tried",
    "failed",
    "fails",
    "dead",
    "reverted",
    "undid",
    "against",
    "avoid",
    "unusable",
    "backed",
    "skip",
    "crossed",
    "rather",
    "unsuitable",
    "gave",
    "instead",
    "declined",
    "dismissed",
    "alone",
    "unfortunately",
    "undone",
    "given",
    "mistake",
    "vetoed",
    "threw",
    "thrown",
    "shot",
    "overruled",
    "scrapped",
    "negative",
    "over",
    "removed",
    "nope",
    "closed",
    "stopped",
    "drop",
    "discard",
    "discarding",
    "refrained",
    "refuse",
    "refused",
    "strike",
    "turn",
    "turned",
    "thumbs",
    "away",
    "forget",
    "verworfen",
    "nicht",
    "kein",
    "keine",
    "pas",
    "jamais",
    "nunca",
    "不",
];

/// Words behind which, or before which, a value is one that was.
const FORMERLY: &[&str] = &[
    "was",
    "were",
    "previously",
    "formerly",
    "old",
    "older",
    "earlier",
    "former",
    "superseded",
    "replaced",
    "replaces",
    "instead",
    "not",
    "originally",
    "initially",
    "outdated",
    "obsolete",
    "wrong",
    "before",
    "isn't",
    "wasn't",
    "longer",
    "anymore",
    "forget",
    "typo",
    "corrected",
];

const STOP_WORDS: &[&str] = &[
    "the", "and", "for", "with", "that", "this", "from", "into", "has", "have", "had", "are", "was", "were",
    "its", "our", "you", "your", "they", "them", "but", "not", "all", "any", "can", "may", "will", "would",
    "should", "must", "which", "when", "while", "there", "than", "then", "also", "who", "what", "where",
    "whenever", "only", "every", "before",
];

/// What a model would go on from.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
struct Piece {
    text: String,
    /// Where in the conversation these very words were said; `None` for words about it, which speak of now.
    said_at: Option<u64>,
}

impl Carried {
    /// A text about the conversation. Quotes that tell their entry (`<said entry="e5">`, `<pinned entry="e5">`)
    /// and the last request are taken as what was said then.
    pub fn of_summary(text: &str) -> Carried {
        let mut carried = Carried::default();
        carried.add_summary(text);
        carried
    }

    /// Messages as they were, each with its place.
    pub fn of_words(words: impl IntoIterator<Item = (u64, String)>) -> Carried {
        let pieces = words.into_iter().map(|(at, text)| Piece { text: plain(&text), said_at: Some(at) });
        Carried { pieces: pieces.collect() }
    }

    /// All that a view shows.
    pub fn of_view(view: &View) -> Carried {
        let mut carried = Carried::default();
        for (part, shown) in view.pieces() {
            match shown {
                Shown::Summary(message) => {
                    for content in &message.content {
                        if let Content::Text { text } = content {
                            carried.add_summary(text);
                        }
                    }
                }
                Shown::Said(..) | Shown::Reply(_) | Shown::Call(_) | Shown::Outcome(_) => {
                    let text = plain(&shown.text());
                    carried.pieces.push(Piece { text, said_at: Some(part.entry.0) });
                }
            }
        }
        carried
    }

    fn add_summary(&mut self, text: &str) {
        let mut rest = text;
        while let Some(quote) = Quote::first(rest) {
            self.pieces.push(Piece { text: plain(&rest[..quote.opening.start]), said_at: None });
            let body = &rest[quote.opening.end..quote.end];
            self.pieces.push(Piece { text: plain(body), said_at: Some(quote.said_at) });
            rest = &rest[quote.end..];
        }
        self.pieces.push(Piece { text: plain(rest), said_at: None });
    }

    /// What stands around the fact's anchor, for who looks into a verdict.
    pub fn around(&self, fact: &Fact) -> Vec<String> {
        let mut found = Vec::new();
        for piece in &self.pieces {
            for at in occurrences(&piece.text, &fact.anchor) {
                let words = &piece.text[around(&piece.text, at, VALUE_BYTES)];
                let when = piece.said_at.map_or("now".to_owned(), |at| format!("e{at}"));
                found.push(format!("{when}: {}", one_line(words)));
            }
        }
        found
    }

    /// Whether the fact is in there.
    pub fn holds(&self, fact: &Fact) -> bool {
        self.pieces.iter().any(|piece| piece.holds(fact))
    }

    /// Of the values of a subject that hold no more, how many are shown as if they did.
    pub fn stale(&self, fact: &Fact) -> usize {
        let Some((newest, older)) = fact.values.split_last() else { return 0 };
        let told_at = |value: &str| {
            let told = self.pieces.iter().filter(|piece| piece.tells(fact, value));
            told.map(|piece| piece.said_at.unwrap_or(u64::MAX)).max()
        };
        let newest_told = told_at(newest);
        let shown_as_current = |value: &&String| {
            self.pieces.iter().any(|piece| {
                // Words of then are no claim about now where the newer word is there too.
                let overtaken = piece.said_at.is_some_and(|at| newest_told.is_some_and(|told| told > at));
                !overtaken && piece.claims(fact, value, newest)
            })
        };
        older.iter().filter(shown_as_current).count()
    }
}

impl Piece {
    fn holds(&self, fact: &Fact) -> bool {
        let near = |share: f64| {
            occurrences(&self.text, &fact.anchor).any(|at| {
                let around = &self.text[around(&self.text, at, AROUND_BYTES)];
                share_of_words(&fact.about, &fact.anchor, around) >= share
            })
        };
        match fact.kind {
            Kind::Path => occurrences(&self.text, &fact.anchor).next().is_some(),
            Kind::Error => self.text.contains(&one_line(&fact.anchor)),
            Kind::Identifier => near(NAMED_SHARE_MIN),
            Kind::Decision | Kind::Constraint => near(WORDS_SHARE_MIN),
            Kind::Rejected => {
                near(WORDS_SHARE_MIN)
                    && occurrences(&self.text, &fact.anchor).any(|at| {
                        let around = &self.text[around(&self.text, at, AROUND_BYTES)];
                        around.contains(['❌', '👎', '✗'])
                            || words(around).iter().any(|word| AGAINST.contains(&word.as_str()))
                    })
            }
            Kind::Pending => {
                near(WORDS_SHARE_MIN)
                    && occurrences(&self.text, &fact.anchor).any(|at| {
                        let before = &self.text[around(&self.text, at.start..at.start, AROUND_BYTES / 4)];
                        !before.contains("[x]") && !before.contains("\"status\":\"completed\",\"content\"")
                    })
            }
            Kind::Superseded => fact.values.last().is_some_and(|newest| self.tells(fact, newest)),
        }
    }

    /// Whether the value is named near its subject.
    fn tells(&self, fact: &Fact, value: &str) -> bool {
        occurrences(&self.text, &fact.anchor).any(|at| {
            let near = &self.text[around(&self.text, at, VALUE_BYTES)];
            values(near, value).next().is_some()
        })
    }

    /// Whether the value is named in a line or sentence about the subject, and nothing there says that it was so
    /// once only.
    fn claims(&self, fact: &Fact, value: &str, newest: &str) -> bool {
        occurrences(&self.text, &fact.anchor).any(|at| {
            let near = around(&self.text, at.clone(), VALUE_BYTES);
            let sentence = &self.text[sentence(&self.text, at, near)];
            let superseded = values(sentence, newest).next().is_some()
                || words(sentence).iter().any(|word| FORMERLY.contains(&word.as_str()))
                || sentence.contains('→')
                || sentence.contains("->");
            let left = |at: usize| sentence[..at].trim_end_matches(['`', '"', '\'']).ends_with("from ");
            values(sentence, value).any(|at| !left(at)) && !superseded
        })
    }
}

/// A quote of a person's words in a summary.
struct Quote {
    opening: Range<usize>,
    end: usize,
    said_at: u64,
}

impl Quote {
    fn first(text: &str) -> Option<Quote> {
        let found = [
            ("<said entry=\"e", "</said>"),
            ("<pinned entry=\"e", "</pinned>"),
            ("<last_request>", "</last_request>"),
        ];
        let openings = found.iter().filter_map(|(open, close)| Some((text.find(open)?, *open, *close)));
        let (start, open, close) = openings.min_by_key(|(at, ..)| *at)?;
        let digits: String = text[start + open.len()..].chars().take_while(char::is_ascii_digit).collect();
        // The last request is the newest word of all.
        let said_at = digits.parse().unwrap_or(u64::MAX - 1);
        let opening_end = start + text[start..].find('>')? + 1;
        let end = opening_end + text[opening_end..].find(close)?;
        Some(Quote { opening: start..opening_end, end, said_at })
    }
}

/// Where a name stands by itself: `pool` is neither in `pool_size` nor in `src/pool.rs`, and a relative path is
/// in its absolute one.
fn occurrences<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    let is_path = name.contains('/');
    text.match_indices(name).filter_map(move |(start, found)| {
        let end = start + found.len();
        let before = &text[..start];
        let begins = match before.chars().next_back() {
            Some('/') => is_path && (before.ends_with("/work/app/") || before.ends_with("./")),
            Some('.' | '-' | '_') => false,
            Some(other) => !other.is_alphanumeric(),
            None => true,
        };
        let mut after = text[end..].chars();
        let ends = match after.next() {
            Some('.') => !after.next().is_some_and(char::is_alphanumeric),
            Some('-' | '_' | '/') => false,
            Some(other) => !other.is_alphanumeric(),
            None => true,
        };
        (begins && ends).then_some(start..end)
    })
}

/// Where a value stands by itself; a unit may stick to it.
fn values<'a>(text: &'a str, value: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(value).filter_map(move |(start, found)| {
        let before = text[..start].chars().next_back();
        let begins =
            !before.is_some_and(|before| before.is_alphanumeric() || matches!(before, '.' | '-' | '_'));
        let mut after = text[start + found.len()..].chars();
        let ends = match after.next() {
            Some('.' | ',') => !after.next().is_some_and(|next| next.is_ascii_digit()),
            Some('-' | '_') => false,
            Some(other) => !other.is_ascii_digit(),
            None => true,
        };
        (begins && ends).then_some(start)
    })
}

fn around(text: &str, at: Range<usize>, bytes: usize) -> Range<usize> {
    let start = text.floor_char_boundary(at.start.saturating_sub(bytes));
    let end = text.ceil_char_boundary((at.end + bytes).min(text.len()));
    start..end
}

/// The line or sentence around a place, within `bounds`.
fn sentence(text: &str, at: Range<usize>, bounds: Range<usize>) -> Range<usize> {
    let ends = ["\n", ". ", "; ", "? ", "! "];
    let before = &text[bounds.start..at.start];
    let start = ends.iter().filter_map(|end| Some(before.rfind(end)? + end.len())).max().unwrap_or(0);
    let after = &text[at.end..bounds.end];
    let end = ends.iter().filter_map(|end| after.find(end)).min().unwrap_or(after.len());
    bounds.start + start..at.end + end
}

/// Which share of the words that matter of `about` stands in `text`; all, where there are none.
fn share_of_words(about: &str, anchor: &str, text: &str) -> f64 {
    let own: HashSet<String> = words(anchor).into_iter().collect();
    let matters = |word: &String| {
        (word.len() > 2 || word.chars().all(|c| c.is_ascii_digit()))
            && !STOP_WORDS.contains(&word.as_str())
            && !own.contains(word)
    };
    let wanted: HashSet<String> =
        words(about).into_iter().filter(matters).map(|word| stem(&word).to_owned()).collect();
    if wanted.is_empty() {
        return 1.0;
    }
    let there: HashSet<String> = words(text).iter().map(|word| stem(word).to_owned()).collect();
    wanted.intersection(&there).count() as f64 / wanted.len() as f64
}

/// The beginning of a word, so that `dropped` is `drops`.
fn stem(word: &str) -> &str {
    const STEM_CHARS: usize = 5;
    match word.char_indices().nth(STEM_CHARS) {
        Some((end, _)) => &word[..end],
        None => word.strip_suffix('s').unwrap_or(word),
    }
}

fn words(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '\'' || c == '_';
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_matches('\'').to_lowercase());
    words.filter(|word| !word.is_empty()).collect()
}

/// Runs of blanks within a line as one, so that an indented or wrapped copy is a copy; quotes as people type them.
fn plain(text: &str) -> String {
    let lines: Vec<String> = text.replace('’', "'").lines().map(one_line).collect();
    lines.join("\n")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a change says, for who quotes it.
pub fn words_of(change: &Change) -> Option<String> {
    match change {
        Change::Said { message, .. } => Some(message.text()),
        Change::Replied { message, .. } => {
            let calls = message.calls().map(|call| Shown::Call(call).text());
            let parts: Vec<String> = std::iter::once(message.text()).chain(calls).collect();
            Some(parts.join("\n"))
        }
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    }
}
