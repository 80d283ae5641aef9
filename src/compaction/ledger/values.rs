//! Values that a sentence or a line gives to something, and those that it ends. Pure.

use super::fact::{Form, Value};
use super::words::{self, Set};

/// Words of a subject: "the retry limit of the upload queue".
const SUBJECT_WORDS_MAX: usize = 6;
/// Words between a verb of change and the new value: "bump the limit of the pool from 5 to 8".
pub(super) const CHANGE_WORDS_MAX: usize = 12;
/// A longer value is a text.
const VALUE_BYTES_MAX: usize = 120;
/// Words of a sentence that are looked at.
const WORDS_MAX: usize = 80;
/// Values of one sentence.
pub(super) const VALUES_MAX: usize = 6;

/// What stands before the value of a line is no name where it is longer, with its marks.
const LINE_NAME_BYTES_MAX: usize = 80;

/// What a sentence says of values.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Told {
    pub values: Vec<Value>,
    /// Values that it says hold no longer.
    pub olds: Vec<String>,
}

pub(super) static CHANGE_VERBS: Set = Set::of(
    "change changed changing set setting sets bump bumped bumping raise raised raising lower lowered \
     lowering increase increased increasing reduce reduced reducing decrease decreased update \
     updated updating move moved moving switch switched switching rename renamed renaming point \
     pointed pin pinned upgrade upgraded upgrading downgrade downgraded migrate migrated configure \
     configured went goes dropped drop grew shrank cut doubled halved bring brought became reset \
     replace replaced swap swapped extend extended postponed pushed",
);

pub(super) static NOUNS: Set = Set::of(
    "port version branch timeout limit ticket issue release region ttl host hostname bucket database \
     schema table queue topic threshold interval retries workers threads tag commit revision model \
     python node postgres postgresql rust java ruby go namespace cluster image id budget deadline \
     edition account project msrv seed endpoint url owner codename channel cap quota environment \
     default size concurrency maximum minimum window level name address directory folder language \
     currency timezone date target reviewer key prefix suffix",
);

/// Those of them whose values are numbers: "port `x` to Rust" is work, and no value.
static NUMBERED: Set = Set::of(
    "port timeout limit ttl threshold interval retries workers threads cap quota size concurrency maximum minimum \
     window level seed",
);

/// Words at which a subject ends, when it is read backwards.
static BREAKS: Set = Set::of(
    "and but so because that if when then think says said since while or which where use please make \
     sure keep with have has you i we also as to by until after before must should note is are",
);

pub(super) static ARTICLES: Set = Set::of("the a an our your its their this my new current actual");

/// Words between a verb and its value.
static FILLERS: Set = Set::of(
    "now currently set to at still actually about exactly just only be changed called named again \
     roughly around",
);

pub(super) struct Word<'a> {
    /// Without the punctuation around it.
    pub text: &'a str,
    /// The same in lower case, as far as it is ASCII.
    pub lower: &'a str,
    pub ticked: bool,
    /// A clause ends behind it.
    pub ends: bool,
    /// It was struck out: `~~80~~`.
    pub struck: bool,
}

/// The values of a sentence that somebody said.
pub(super) fn of_sentence(sentence: &str) -> Told {
    let lowered = sentence.to_ascii_lowercase();
    let words = split(sentence, &lowered);
    let mut told = Told::default();
    for at in 0..words.len() {
        if told.values.len() >= VALUES_MAX {
            break;
        }
        match words[at].lower {
            "is" | "are" | "=" | "equals" | ":=" | "==" | "ist" => assigned(&words, at, &mut told),
            "to" | "->" | "→" | "=>" => changed(&words, at, &mut told),
            "for" => given(&words, at, &mut told),
            "of" | "than" => {
                if at > 0 && matches!(words[at - 1].lower, "instead" | "rather") {
                    ended(&words, at + 1, &mut told);
                }
            }
            "not" | "was" | "previously" | "formerly" | "longer" | "were" | "replaces" => {
                ended(&words, at + 1, &mut told)
            }
            _ => {
                glued(&words, at, &mut told);
                named(&words, at, &mut told);
            }
        }
    }
    told.olds.retain(|old| told.values.iter().all(|value| value.value != *old));
    told
}

/// `name = value`, `name: value`, `"name": value` as the one thing that a line says.
pub(super) fn of_line(line: &str, form: Form) -> Option<Value> {
    let line = line.trim().trim_end_matches([',', ';']);
    let at = memchr::memchr2(b'=', b':', line.as_bytes()).filter(|at| *at <= LINE_NAME_BYTES_MAX)?;
    let (name, rest) = line.split_at(at);
    let value = rest.trim_start_matches([':', '=']).trim();
    if rest.starts_with("::") || rest.starts_with("==") || rest.starts_with("=>") || rest.starts_with("://") {
        return None;
    }
    let name = name
        .trim()
        .trim_start_matches("export ")
        .trim_start_matches("- ")
        .trim_matches(['"', '\'', '`', '*', ' ']);
    let of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ' | '/');
    if name.len() > 60
        || name.split_whitespace().nth(4).is_some()
        || !name.chars().all(of_name)
        || !name.contains(|c: char| c.is_alphabetic())
    {
        return None;
    }
    let value = value.trim_matches(['"', '\'', '`']);
    let opens = || value.contains(['(', '{', '[', '<', ';', '$', '|']);
    if value.is_empty()
        || value.len() > VALUE_BYTES_MAX
        || value.split_whitespace().nth(3).is_some()
        || opens()
        || !is_value(value.split_whitespace().next()?)
    {
        return None;
    }
    make(name, value, form)
}

/// "S is V", "S is now V", "S = V".
fn assigned(words: &[Word], verb: usize, told: &mut Told) {
    let mut at = verb + 1;
    let mut now = false;
    while at < words.len() && FILLERS.has(words[at].lower) {
        now |= matches!(words[at].lower, "now" | "changed" | "actually");
        at += 1;
    }
    let Some(name) = before(words, verb) else { return };
    let head = name.split_whitespace().last().unwrap_or_default().to_lowercase();
    let Some(word) = words.get(at) else { return };
    let typed = now || NOUNS.has(head.as_str());
    if is_value(word.text) || word.ticked {
        now |= words.get(at + 1).is_some_and(|next| next.lower == "now") && !word.ends;
        let form = if now { Form::Changed } else { Form::Told };
        told.values.extend(make(&name, &with_unit(words, at), form));
    } else if typed && !is_participle(word.lower) && !BREAKS.has(word.lower) && word.lower != "not" {
        // "the owner is now Dana", "the deadline is next Friday": the next words as they stand.
        let mut value = word.text.to_owned();
        let mut last = at;
        while !words[last].ends && last + 1 < words.len() && last < at + 2 {
            last += 1;
            if BREAKS.has(words[last].lower) || FILLERS.has(words[last].lower) {
                break;
            }
            value.push(' ');
            value.push_str(words[last].text);
        }
        told.values.extend(make(&name, &value, if now { Form::Changed } else { Form::Told }));
    }
}

/// "bump S from A to V", "S changed from A to V", "renamed A to V".
fn changed(words: &[Word], to: usize, told: &mut Told) {
    let first = to.saturating_sub(CHANGE_WORDS_MAX);
    let Some(verb) = (first..to).rev().find(|at| CHANGE_VERBS.has(words[*at].lower)) else {
        return;
    };
    if (verb..to).any(|at| words[at].ends) || to + 1 >= words.len() {
        return;
    }
    let mut at = to + 1;
    while at + 1 < words.len() && ARTICLES.has(words[at].lower) {
        at += 1;
    }
    if !(is_value(words[at].text)
        || words[at].ticked
        || words[at].text.starts_with(|c: char| c.is_uppercase()))
    {
        let from = (verb..to).any(|at| words[at].lower == "from");
        if !from {
            return;
        }
    }
    let from = (verb + 1..to).find(|at| words[*at].lower == "from");
    if let Some(from) = from
        && let Some(old) = words.get(from + 1)
    {
        told.olds.push(clean(old.text));
    }
    let end = from.unwrap_or(to);
    let between = phrase(&words[verb + 1..end]);
    let name = if between.is_empty() { before(words, verb).unwrap_or_default() } else { between };
    let value = with_unit(words, at);
    if from.is_none()
        && is_value(&name)
        && !name.contains(' ')
        && matches!(words[verb].lower, "rename" | "renamed" | "renaming")
    {
        told.olds.push(clean(&name));
    }
    told.values.extend(make(&name, &value, Form::Changed));
}

/// "V for the S", as in "take 30 s for the timeout of the pool".
fn given(words: &[Word], at: usize, told: &mut Told) {
    let is_number = |at: usize| words[at].text.starts_with(|c: char| c.is_ascii_digit()) && !words[at].ends;
    let value = match at {
        0 => return,
        _ if is_number(at - 1) => at - 1,
        1 => return,
        _ if is_number(at - 2) && !words[at - 1].ends => at - 2,
        _ => return,
    };
    let rest = &words[at + 1..];
    let ends = rest.iter().position(|word| word.ends).map_or(rest.len(), |last| last + 1);
    let ends = rest[..ends].iter().position(|word| BREAKS.has(word.lower)).unwrap_or(ends);
    let subject = &rest[..ends.min(SUBJECT_WORDS_MAX)];
    if subject.iter().any(|word| NOUNS.has(word.lower) || word.ticked) {
        told.values.extend(make(&phrase(subject), &with_unit(words, value), Form::Changed));
    }
}

/// A value that holds no longer: "instead of 8080", "not `npm`", "was 5".
fn ended(words: &[Word], mut at: usize, told: &mut Told) {
    while at < words.len() && (ARTICLES.has(words[at].lower) || FILLERS.has(words[at].lower)) {
        at += 1;
    }
    if let Some(word) = words.get(at)
        && (is_value(word.text) || word.ticked)
        && word.text.len() <= VALUE_BYTES_MAX
    {
        told.olds.push(clean(word.text));
    }
}

/// `NAME=value` in one word, and "name: value" where the name is a name of code or stands first.
fn glued(words: &[Word], at: usize, told: &mut Told) {
    let word = &words[at];
    if let Some((name, value)) = word.text.split_once('=')
        && !name.is_empty()
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
    {
        told.values.extend(make(name, value, Form::Told));
    } else if let Some(name) = word.text.strip_suffix(':')
        && let Some(next) = words.get(at + 1)
        && (is_value(next.text) && !next.ticked
            || next.ticked && (next.ends || at + 2 == words.len() || is_number(next.text)))
    {
        let first = (0..at).rev().find(|at| words[*at].ends).map_or(0, |at| at + 1);
        let name = match at - first {
            0 => name.to_owned(),
            1..=4 => format!("{} {name}", phrase(&words[first..at])),
            _ => return,
        };
        told.values.extend(make(&name, &with_unit(words, at + 1), Form::Told));
    }
}

/// "port 8081", "Node 20", "branch `feat/x`": a noun and its value.
fn named(words: &[Word], at: usize, told: &mut Told) {
    let word = &words[at];
    if word.ends || !NOUNS.has(word.lower) {
        return;
    }
    let Some(next) = words.get(at + 1) else { return };
    if !(is_value(next.text) || next.ticked)
        || next.text.contains('=')
        || NUMBERED.has(word.lower) && !is_number(next.text)
    {
        return;
    }
    let own = at.checked_sub(1).map(|before| &words[before]).filter(|before| {
        let lower = before.lower;
        !before.ends
            && !before.ticked
            && lower.chars().all(char::is_alphanumeric)
            && !BREAKS.has(lower)
            && !ARTICLES.has(lower)
            && !CHANGE_VERBS.has(lower)
            && !FILLERS.has(lower)
            && words::subject(lower).len() == 1
            && !lower.ends_with("ing")
            && !matches!(
                lower,
                "under"
                    | "over"
                    | "via"
                    | "see"
                    | "run"
                    | "runs"
                    | "listens"
                    | "targets"
                    | "require"
                    | "requires"
            )
    });
    let name = own.map_or_else(|| word.text.to_owned(), |own| format!("{} {}", own.text, word.text));
    told.values.extend(make(&name, &with_unit(words, at + 1), Form::Told));
}

pub(super) fn make(name: &str, value: &str, form: Form) -> Option<Value> {
    let value = clean(value);
    let subject = words::subject(name);
    let fits = !subject.is_empty() && !value.is_empty() && value.len() <= VALUE_BYTES_MAX;
    fits.then(|| {
        let name = name.trim().to_owned();
        Value { thing: thing(&name), name, subject, value, form, now: None, later: None, others: Vec::new() }
    })
}

/// The one name of code in what a value is called by.
fn thing(name: &str) -> Option<words::Stem> {
    let mut things = name.split(' ').map(bare).filter(|word| word.contains('_'));
    let first = things.next()?;
    things.next().is_none().then(|| words::hash(first))
}

/// Where a value ends in a text in which it stands by itself.
pub(super) fn place(text: &str, value: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    text.match_indices(value).find_map(|(start, found)| {
        let end = start + found.len();
        let begins = !text[..start].ends_with(|c: char| is_part(c) || c == '.');
        let mut after = text[end..].chars();
        let ends = match after.next() {
            Some('.' | ',') => !after.next().is_some_and(|c| c.is_ascii_digit()),
            Some('`' | '"') => true,
            Some(next) => !is_part(next),
            None => true,
        };
        (begins && ends).then_some(end)
    })
}

/// What sort of value it is: values of one sort may be of the same thing. Numbers are one with their unit.
pub(super) fn sort(value: &str) -> (bool, usize, bool) {
    let has_letters =
        value.split(' ').next().unwrap_or_default().bytes().any(|byte| byte.is_ascii_alphabetic());
    (has_letters, value.matches('.').count().min(2), value.contains('-'))
}

/// A name of code without what stands around it.
pub(super) fn bare(word: &str) -> &str {
    word.trim_matches(['`', ':', ',', ';', '(', ')', '"', '\'', '.', '!', '?', '*'])
}

fn clean(value: &str) -> String {
    value
        .trim_matches(|c: char| {
            matches!(c, '`' | '"' | '\'' | '*' | '(' | ')' | ',' | ';' | ':' | '。' | '，' | '！')
                || c.is_whitespace()
        })
        .to_owned()
}

/// A number with the unit behind it, else the word alone.
pub(super) fn with_unit(words: &[Word], at: usize) -> String {
    static UNITS: Set = Set::of(
        "s ms seconds second minutes minute min hours hour days day weeks kb mb gb kib mib gib bytes \
         percent % px retries connections requests rows tokens",
    );
    let word = words[at].text;
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b',' | b'_'));
    match words.get(at + 1) {
        Some(unit) if is_number && !words[at].ends && UNITS.has(unit.lower) => {
            format!("{word} {}", unit.text)
        }
        _ => word.to_owned(),
    }
}

/// The words before a verb that name what it speaks about; "the port of the server" as "server port".
fn before(words: &[Word], verb: usize) -> Option<String> {
    let mut first = verb;
    while first > 0 && verb - first < SUBJECT_WORDS_MAX {
        let word = &words[first - 1];
        if word.ends || BREAKS.has(word.lower) || word.text.ends_with(':') {
            break;
        }
        first -= 1;
    }
    let name = phrase(&words[first..verb]);
    (!name.is_empty()).then_some(name)
}

fn phrase(words: &[Word]) -> String {
    let telling = |words: &[Word]| -> Vec<String> {
        let kept = words.iter().filter(|word| !ARTICLES.has(word.lower) && !FILLERS.has(word.lower));
        kept.map(|word| word.text.to_owned()).collect()
    };
    match words.iter().position(|word| matches!(word.lower, "of" | "for" | "in" | "on")) {
        Some(at) if at > 0 => {
            let mut all = telling(&words[at + 1..]);
            all.extend(telling(&words[..at]));
            all.join(" ")
        }
        Some(_) | None => telling(words).join(" "),
    }
}

pub(super) fn split<'a>(sentence: &'a str, lowered: &'a str) -> Vec<Word<'a>> {
    let all = sentence.split_whitespace().take(WORDS_MAX);
    all.filter_map(|raw| {
        // Where it stands in both: lower case takes as many bytes.
        let from = raw.as_ptr() as usize - sentence.as_ptr() as usize;
        word(raw, &lowered[from..from + raw.len()])
    })
    .collect()
}

fn word<'a>(raw: &'a str, lower: &'a str) -> Option<Word<'a>> {
    let bytes = raw.as_bytes();
    let is_bare = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    if is_bare(bytes.first()) && is_bare(bytes.last()) {
        return Some(Word { text: raw, lower, ticked: false, ends: false, struck: false });
    }
    let ends = raw.ends_with([',', ';', '.', '!', '?', ')', '—']) || raw.ends_with("):");
    let struck = raw.starts_with("~~");
    let text = raw
        .trim_matches(['~', '*', '"', '\'', '(', ')', ',', ';', '!', '?', '“', '”', '‘', '’', '[', ']', '„']);
    let text = text.strip_suffix('.').unwrap_or(text);
    let ticked = text.len() > 2 && text.starts_with('`') && text.trim_end_matches(['.', ',']).ends_with('`');
    let text = if ticked { text.trim_matches(['`', '.', ',']) } else { text };
    if text.is_empty() && raw != "=" {
        return None;
    }
    let text = if text.is_empty() { raw } else { text };
    let from = text.as_ptr() as usize - raw.as_ptr() as usize;
    Some(Word { text, lower: &lower[from..from + text.len()], ticked, ends, struck })
}

/// Whether a word looks like a value: a number, a version, an address, a name of code.
pub(super) fn is_value(word: &str) -> bool {
    let word = word.trim_matches(['`', '"', '\'']);
    let bytes = word.as_bytes();
    let inside = bytes.len() > 2
        && bytes[1..bytes.len() - 1].iter().any(|byte| matches!(byte, b'_' | b'/' | b'.' | b':' | b'@'));
    let dashed = bytes.len() > 4 && word.contains('-') && word.is_ascii() && !word.ends_with('-');
    let loud = bytes.len() > 1 && bytes.iter().all(u8::is_ascii_uppercase);
    let is_word = matches!(word, "true" | "false" | "null" | "none" | "on" | "off" | "enabled" | "disabled");
    bytes.iter().any(u8::is_ascii_digit) || inside || dashed || loud || is_word
}

pub(super) fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

fn is_participle(word: &str) -> bool {
    word.ends_with("ing")
        || word.ends_with("ed")
        || matches!(
            word,
            "in" | "on" | "a" | "an" | "the" | "very" | "too" | "not" | "no" | "what" | "how" | "why"
        )
}
