//! A fact: what it is about, where it was found, and by what it is known. Pure.

use super::words::{self, Stem};
use crate::thread::Seq;

/// Entries that one fact names: the first, and the newest.
const SOURCES_MAX: usize = 3;

/// What a fact is about. In the order in which a model is told of them, where room is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// How the person wants the work done.
    Rule,
    Error,
    Pending,
    Decision,
    Rejected,
    Value,
    File,
    Command,
    /// What was said of something that has a name, in a sentence that is none of the above by its words.
    Said,
    Name,
}

pub(super) const KINDS: [Kind; 10] = [
    Kind::Rule,
    Kind::Error,
    Kind::Pending,
    Kind::Decision,
    Kind::Rejected,
    Kind::Value,
    Kind::File,
    Kind::Command,
    Kind::Said,
    Kind::Name,
];

/// Where a fact was found: its entry and, for an outcome, the entry of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub entry: Seq,
    pub call: Option<Seq>,
}

/// Something that has one value at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// What it is, as it was called.
    pub name: String,
    /// The thing with a name of code that has it, if it is one: known by that name alone.
    pub thing: Option<Stem>,
    /// The stems of that; the last is the head.
    pub subject: Vec<Stem>,
    pub value: String,
    pub form: Form,
    /// The value that took its place.
    pub now: Option<String>,
    /// A value that was named later of the same thing, where it is not sure that it took its place.
    pub later: Option<String>,
    /// What else in its sentence may be the value: where this one is known of old, one of those is the new one.
    pub others: Vec<String>,
}

/// How sure it is that a value takes the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// "the limit is now 8": also of what was called a little otherwise.
    Changed,
    /// "the limit is 8", "limit = 8": of what has the same name.
    Told,
    /// A number that stands beside a thing with a name of code. It is no value where the thing has none.
    Near,
}

#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub kind: Kind,
    /// How sure it is that this matters; more is more.
    pub strength: u8,
    pub text: String,
    /// What came of it: a command's result, what became of a file; of an error, the command it came from.
    pub note: String,
    /// Oldest first.
    pub sources: Vec<Source>,
    /// What it speaks about.
    pub stems: Vec<Stem>,
    pub values: Vec<Value>,
    /// The person said it.
    pub by_person: bool,
    /// Its sentence says more than its values.
    pub more: bool,
    /// Taken back, done or solved since, and where.
    pub over: Option<Seq>,
    /// What its sentence is without the names and numbers in it.
    pub shape: Option<Stem>,
    /// By what it is the same as another.
    pub key: u64,
}

impl Fact {
    pub fn new(kind: Kind, strength: u8, text: String, source: Source) -> Fact {
        let stems = words::stems(&text);
        let key = sentence_key(kind, &stems);
        Fact {
            kind,
            strength,
            text,
            note: String::new(),
            sources: vec![source],
            stems,
            values: Vec::new(),
            by_person: false,
            more: false,
            over: None,
            shape: None,
            key,
        }
    }

    /// A fact that is known by a name, not by what it says.
    pub fn named(kind: Kind, strength: u8, name: &str, text: String, source: Source) -> Fact {
        let key = name_key(kind, name);
        Fact {
            kind,
            strength,
            text,
            note: String::new(),
            sources: vec![source],
            stems: Vec::new(),
            values: Vec::new(),
            by_person: false,
            more: false,
            over: None,
            shape: None,
            key,
        }
    }

    /// As a fact that is told in this sentence.
    pub fn shaped(mut self, sentence: &str) -> Fact {
        self.shape = words::shape(sentence);
        self
    }

    pub fn newest(&self) -> Seq {
        self.sources.last().map_or(Seq(0), |source| source.entry)
    }

    /// Whether nothing of what it says holds any more.
    pub fn is_replaced(&self) -> bool {
        !self.more && !self.values.is_empty() && self.values.iter().all(|value| value.now.is_some())
    }

    /// It was found once more.
    pub fn also(&mut self, source: Source) {
        if self.sources.last() == Some(&source) {
            return;
        }
        if self.sources.len() == SOURCES_MAX {
            self.sources.remove(1);
        }
        self.sources.push(source);
    }
}

fn sentence_key(kind: Kind, stems: &[Stem]) -> u64 {
    stems.iter().fold(0xcbf2_9ce4_8422_2325 ^ kind as u64, |key, stem| {
        (key ^ u64::from(*stem)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(super) fn name_key(kind: Kind, name: &str) -> u64 {
    let seed = 0x8422_2325_cbf2_9ce4 ^ (kind as u64 + 1);
    name.bytes().fold(seed, |key, byte| (key ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
