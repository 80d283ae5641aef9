//! What can be asked for.

use std::str::FromStr;

use epitome_thread::{Part, Seq};

/// A question. With a range alone it is read, else searched; conditions combine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub range: Option<Range>,
    /// Words that must all be there, in any case of letters.
    pub text: Option<String>,
    pub regex: Option<String>,
    /// A file or directory, absolute or from the working directory.
    pub path: Option<String>,
    pub kind: Option<Kind>,
    /// A time in words: see `Clock::time`.
    pub since: Option<String>,
    pub until: Option<String>,
    /// Of a text, the byte to begin at; of what is found, how many to pass over.
    pub offset: usize,
    /// At most so many bytes of a text, or so many finds.
    pub limit: Option<usize>,
}

impl Ask {
    pub(super) fn is_search(&self) -> bool {
        let by_words = self.text.is_some() || self.regex.is_some();
        by_words
            || self.path.is_some()
            || self.kind.is_some()
            || self.since.is_some()
            || self.until.is_some()
            || self.range.is_none()
    }
}

/// One entry or part, or several entries in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub from: Part,
    pub through: Part,
}

impl Range {
    pub(super) fn has(&self, part: Part) -> bool {
        let is_at = |own: Part| own.part.is_none() || own.part == part.part;
        if self.from.entry == self.through.entry {
            return self.from.entry == part.entry && is_at(self.from);
        }
        (self.from.entry..=self.through.entry).contains(&part.entry)
    }

    /// The one entry that it is about, if it is one.
    pub(super) fn single(&self) -> Option<Seq> {
        (self.from.entry == self.through.entry).then_some(self.from.entry)
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Range, String> {
        let wrong = || format!("{text:?} names no entry: it is e12, e12.2 for a part, or e12-e20.");
        let part = |text: &str| text.trim().parse::<Part>().map_err(|()| wrong());
        let range = match text.split_once('-') {
            Some((from, through)) => Range { from: part(from)?, through: part(through)? },
            None => {
                let one = part(text)?;
                Range { from: one, through: one }
            }
        };
        if range.from.entry > range.through.entry { Err(wrong()) } else { Ok(range) }
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The person's words, and what stands for them: hooks', recipes', instructions.
    Said,
    Reply,
    Call,
    Outcome,
    Summary,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Said, Kind::Reply, Kind::Call, Kind::Outcome, Kind::Summary];

    pub fn word(self) -> &'static str {
        match self {
            Kind::Said => "said",
            Kind::Reply => "reply",
            Kind::Call => "call",
            Kind::Outcome => "outcome",
            Kind::Summary => "summary",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == text.trim());
        kind.ok_or_else(|| {
            let words = Kind::ALL.map(Kind::word);
            format!("There is no kind {text:?}: it is {}.", words.join(", "))
        })
    }
}
