//! What a sentence speaks about: its words without endings, little words and synonyms. Pure.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{LazyLock, OnceLock};

/// A hasher for short words of our own lists: nobody can fill those with words that collide.
#[derive(Clone, Copy)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type Quick = BuildHasherDefault<Fnv>;

/// A hasher for what is a hash already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, hash: u32) {
        self.write_u64(u64::from(hash));
    }

    fn write_u64(&mut self, hash: u64) {
        // The table looks at the upper bits and at the lower ones.
        self.0 = (self.0.rotate_left(5) ^ hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map whose keys are hashes.
pub(super) type ByHash<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// A list of words, for looking one up.
pub(super) struct Set {
    list: &'static str,
    set: OnceLock<HashSet<&'static str, Quick>>,
}

impl Set {
    /// Of words with blanks between them.
    pub const fn of(list: &'static str) -> Set {
        Set { list, set: OnceLock::new() }
    }

    pub fn has(&self, word: &str) -> bool {
        self.set.get_or_init(|| self.list.split_whitespace().collect()).contains(word)
    }
}

/// Words of one sentence that are told apart.
const WORDS_MAX: usize = 48;

/// A word as it is compared: the hash of its stem.
pub(super) type Stem = u32;

/// Words that say nothing of the subject.
static LITTLE: Set = Set::of(
    "a about after again all also am an and any anymore are as at be been before but by can \
     currently did do does for from had has have here how i if in instead into is it its just let ll \
     longer me more my new now of ok okay on or our please really s said set should so still t than \
     that the their them then there these they this those to too up us use using value was we were \
     what when which while will with would yes you your re ve default actual actually der die das \
     und ist bitte le la les el los de",
);

/// Words that turn a sentence around. They stay, as one.
static NEGATIONS: Set = Set::of("not no never don without avoid nicht kein keine jamais nunca");

/// Words for the same thing, the first standing for all; as stems.
const SYNONYMS: &str = "limit cap max maximum ceil ceiling quota|timeout timelimit|database db|url endpoint address uri|\
     directory dir folder|retry attempt tri retri|worker thread concurrency parallelism|\
     interval period delay|config configuration setting|repo repository|environment env|\
     auth authentication|dependency dep|minimum min|production prod|development dev|\
     password passwd passphrase|host hostname server|test spec|deadline duedate cutoff|remove delete|\
     postgres postgresql pg|kubernetes k8";

/// Verbs that are in every second request: two sentences that share only these speak of different things.
const COMMON_VERBS: &str = "touch change edit make modify add write run want need keep go may forget fine still todo remain \
     open later left next";

/// The stems of a text, sorted, each once. A negation counts as one more word.
pub(super) fn stems(text: &str) -> Vec<Stem> {
    let mut found = Vec::new();
    each_word(text, |word| {
        if NEGATIONS.has(word) {
            found.push(not());
        } else if let Some(stem) = stem(word) {
            found.push(stem);
        }
        found.len() < WORDS_MAX
    });
    found.sort_unstable();
    found.dedup();
    found
}

/// What a sentence is without the names, the numbers and the marks in it: the same for those that somebody says
/// again and again of this and that. `None` where nothing is left.
pub(super) fn shape(sentence: &str) -> Option<Stem> {
    let mut shape = 0x811c_9dc5_u32;
    let mut words = 0;
    for word in sentence.split_ascii_whitespace() {
        let word = word.trim_matches(|character: char| character.is_ascii_punctuation());
        let is_plain = |byte: u8| byte.is_ascii_alphabetic() || byte == b'\'' || byte >= 0x80;
        if word.is_empty() || !word.bytes().all(is_plain) {
            continue;
        }
        words += 1;
        for byte in word.bytes().chain([b' ']) {
            shape = (shape ^ u32::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0193);
        }
    }
    (words > 0).then_some(shape)
}

/// The stems of a subject in their order; the last is its head. Negations are no part of it.
pub(super) fn subject(text: &str) -> Vec<Stem> {
    let mut found = Vec::new();
    each_word(text, |word| {
        if !NEGATIONS.has(word)
            && let Some(stem) = stem(word)
            && !found.contains(&stem)
        {
            found.push(stem);
        }
        found.len() < WORDS_MAX
    });
    found
}

/// Whether what a task speaks of is in what was said to be done, for the most part.
pub(super) fn is_covered(task: &[Stem], by: &[Stem]) -> bool {
    const COVERED_PERCENT: usize = 60;
    let telling = || task.iter().filter(|stem| !is_common(**stem));
    let shared = telling().filter(|stem| by.binary_search(stem).is_ok()).count();
    let all = telling().count();
    (shared >= 2 || shared == 1 && all == 1) && shared * 100 >= all * COVERED_PERCENT
}

/// How much of the smaller of two sorted lists is in the other, in per cent, and how many words that is.
/// Common verbs and negations count only where nothing else is there.
pub(super) fn overlap(one: &[Stem], other: &[Stem]) -> (usize, usize) {
    let own = |stems: &[Stem]| -> Vec<Stem> {
        let telling: Vec<Stem> = stems.iter().copied().filter(|stem| !is_common(*stem)).collect();
        if telling.is_empty() { stems.to_vec() } else { telling }
    };
    let (one, other) = (own(one), own(other));
    let shared = one.iter().filter(|stem| other.binary_search(stem).is_ok()).count();
    let smaller = one.len().min(other.len());
    ((shared * 100).checked_div(smaller).unwrap_or(0), shared)
}

fn is_common(stem: Stem) -> bool {
    static COMMON: LazyLock<HashSet<Stem, Quick>> =
        LazyLock::new(|| COMMON_VERBS.split(' ').map(|verb| hash(&root(verb))).chain([not()]).collect());
    COMMON.contains(&stem)
}

/// What stands for each negation.
pub(super) fn not() -> Stem {
    hash("\u{0}not")
}

/// Calls `take` with each word in lower case, until it says that it has enough. Names are taken apart:
/// `maxRetries`, `max_retries` and `max retries` are the same words.
fn each_word(text: &str, mut take: impl FnMut(&str) -> bool) {
    let mut word = String::new();
    let mut was_lower = false;
    for character in text.chars() {
        let begins = character.is_uppercase() && was_lower;
        if (begins || !character.is_alphanumeric()) && !word.is_empty() {
            if !take(&word) {
                return;
            }
            word.clear();
        }
        if character.is_alphanumeric() {
            was_lower = character.is_lowercase();
            match character.is_ascii() {
                true => word.push(character.to_ascii_lowercase()),
                false => word.extend(character.to_lowercase()),
            }
        } else {
            was_lower = false;
        }
    }
    if !word.is_empty() {
        take(&word);
    }
}

/// `None` for a word that says nothing.
fn stem(word: &str) -> Option<Stem> {
    if LITTLE.has(word) {
        return None;
    }
    static STANDING: LazyLock<HashMap<&str, &str, Quick>> = LazyLock::new(|| {
        let groups = SYNONYMS.split('|').map(|group| group.split(' '));
        groups
            .flat_map(|mut group| group.next().map(|first| group.map(move |word| (word, first))))
            .flatten()
            .collect()
    });
    let root = root(word);
    Some(hash(STANDING.get(root.as_ref()).unwrap_or(&root.as_ref())))
}

/// The word without its ending; the same for all forms of most words, which is all that is asked.
fn root(word: &str) -> Cow<'_, str> {
    let cut =
        |ending: &str, length_min: usize| word.strip_suffix(ending).filter(|rest| rest.len() >= length_min);
    if let Some(rest) = cut("ies", 3) {
        return Cow::Owned(format!("{rest}y"));
    }
    let root = cut("ing", 4)
        .or_else(|| cut("ed", 4))
        .or_else(|| cut("s", 3).filter(|rest| !rest.ends_with(['s', 'u', 'i'])))
        .unwrap_or(word);
    Cow::Borrowed(root)
}

/// FNV-1a. The same in each build and on each machine.
pub(super) fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_and_synonyms_of_a_word_are_one_word() {
        for (one, other) in [
            ("retries", "Retry"),
            ("the maximum of connections", "maxConnections"),
            ("MAX_CONNECTIONS", "connection limit"),
            ("touching tests", "touch the test"),
            ("our DB", "database"),
        ] {
            assert_eq!(stems(one), stems(other), "{one} / {other}");
        }
        assert_ne!(stems("read port"), stems("write port"));
        assert_ne!(stems("use tabs"), stems("never use tabs"));
    }
}
