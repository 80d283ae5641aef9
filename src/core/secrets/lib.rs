//! Detects secrets in texts and masks them. Pure. Texts without secrets are only scanned, not copied.
//!
//! Recognizes the key formats of vendors, private keys, signed tokens, assignments to names that indicate a secret,
//! and values of an environment. Nothing is masked on mere suspicion: hashes, images and ids are kept, because the
//! model works with the masked text.

pub mod exposure;
mod forms;
mod names;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::ffi::OsString;
use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use aho_corasick::{AhoCorasick, MatchKind};
use forms::{FORMS, KeyForm, SHAPES};
use regex::Regex;
use serde_json::Value;

/// Minimum bytes of an environment value; a shorter one would match in ordinary text.
const VALUE_BYTES_MIN: usize = 8;
/// Minimum bytes of a value without digits: `production` is not a secret.
const WORD_BYTES_MIN: usize = 20;
/// Maximum bytes between the first and last line of a private key; real keys have about three thousand.
const BLOCK_BYTES_MAX: usize = 32 * 1024;
/// Maximum bytes of a key before its mark.
const BEFORE_BYTES_MAX: usize = 64;
/// Minimum number of different characters in a key.
const DIFFERENT_MIN: usize = 6;
/// Minimum bytes of a key that consists only of letters.
const MIXED_BYTES_MIN: usize = 30;

/// The start of a mask, and of each description in one.
const MASK: &str = "[secret masked: ";
const LOOKS_LIKE: &str = "looks like ";
const VALUE_OF: &str = "the value of ";
const LOGIN_FOR: &str = "the login for ";
const DESCRIPTIONS: [&str; 3] = [LOOKS_LIKE, VALUE_OF, LOGIN_FOR];

/// The start of a PEM block.
const BLOCK: &str = "-----BEGIN ";

struct KnownKeyForms {
    /// The marks of all forms, and `BLOCK`.
    marks: AhoCorasick,
    /// The form of each mark, as an index in `FORMS`.
    forms: Vec<usize>,
    /// The expressions for the text before and after a mark, in the order of `FORMS`. Each is compiled when a mark of its
    /// form first occurs: most never do.
    around: Vec<OnceLock<(Option<Regex>, Regex)>>,
}

static KNOWN: LazyLock<KnownKeyForms> = LazyLock::new(|| KnownKeyForms {
    marks: AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(FORMS.iter().flat_map(|form| form.marks).chain([&BLOCK]))
        .expect("a few short words make an automaton"),
    forms: FORMS.iter().enumerate().flat_map(|(form, of)| of.marks.iter().map(move |_| form)).collect(),
    around: FORMS.iter().map(|_| OnceLock::new()).collect(),
});

/// The expressions for the text before and after the mark of a form. `\w` is that of ASCII, like keys: Unicode's has
/// hundreds of states in each repetition.
fn around(form: &KeyForm) -> (Option<Regex>, Regex) {
    let before = (!form.before.is_empty()).then(|| expression(&format!(r"(?-u:{})\z", form.before)));
    (before, expression(&format!(r"\A(?-u:{})", form.after)))
}

static SHAPED: LazyLock<Regex> = LazyLock::new(|| {
    let shapes: Vec<String> = SHAPES.iter().map(|(shape, _)| format!("({shape})")).collect();
    expression(&format!(r"(?-u:\b(?:{})\b)", shapes.join("|")))
});

static BLOCK_BEGIN: LazyLock<Regex> =
    LazyLock::new(|| expression(r"\A-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"));

static BLOCK_END: LazyLock<Regex> =
    LazyLock::new(|| expression(r"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"));

/// The lines of a key: base64, including line prefixes added by tools.
static BLOCK_LINES: LazyLock<Regex> = LazyLock::new(|| {
    expression(r#"\A(?:\\n|\\r|[\s"',+|:-]|[0-9]{1,7}[\t:]|[A-Za-z0-9+/=]{16,}|[A-Za-z0-9+/]{1,15}={1,2})+"#)
});

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("the expression is well formed")
}

/// The secrets to mask in the texts of one session.
#[derive(Debug, Default)]
pub struct Masker {
    /// Values of the environment and keys of logins, with their descriptions.
    values: Option<(AhoCorasick, Vec<String>)>,
}

impl Masker {
    /// Creates a masker for known key formats and for environment values whose names indicate a secret.
    pub fn new(environment: &[(OsString, OsString)]) -> Masker {
        Masker::with_keys(environment, &[], &[])
    }

    /// Like `new`, but also masks the keys of these logins, each with the name of its provider, and the environment
    /// values of the variables that the settings name for keys of providers.
    pub fn with_keys(
        environment: &[(OsString, OsString)],
        logins: &[(String, String)],
        variables: &[String],
    ) -> Masker {
        let keys = logins.iter().filter(|(_, key)| key.len() >= VALUE_BYTES_MIN);
        let described = keys.map(|(provider, key)| (format!("{LOGIN_FOR}{provider}"), key.clone()));
        let (mut names, mut values): (Vec<String>, Vec<String>) = described.unzip();
        for (name, value) in environment {
            if let (Some(name), Some(value)) = (name.to_str(), value.to_str())
                && (is_secret_name(name) || variables.iter().any(|known| known == name))
                && is_long_enough(value)
            {
                names.push(format!("{VALUE_OF}{name}"));
                values.push(value.to_owned());
            }
        }
        let automaton = (!values.is_empty())
            .then(|| AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(values))
            // Too many values for an automaton: key formats are still masked.
            .and_then(Result::ok);
        Masker { values: automaton.map(|automaton| (automaton, names)) }
    }

    /// Replaces each secret with a mask. Texts without secrets, which are the majority, are returned unchanged.
    pub fn mask<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let text = match &self.values {
            Some((values, names)) if values.is_match(text) => {
                let masks: Vec<String> = names.iter().map(|name| masked(name)).collect();
                Cow::Owned(values.replace_all(text, &masks))
            }
            Some(_) | None => Cow::Borrowed(text),
        };
        match text {
            Cow::Borrowed(text) => mask(text),
            Cow::Owned(text) => Cow::Owned(mask(&text).into_owned()),
        }
    }

    /// Masks every text in a JSON value; returns whether anything was masked.
    pub fn mask_json(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => self.mask_in(text),
            // Visits all items, without stopping at the first masked one.
            Value::Array(items) => items.iter_mut().fold(false, |any, item| self.mask_json(item) | any),
            Value::Object(fields) => fields.iter_mut().fold(false, |any, (name, field)| {
                if let Value::String(text) = field
                    && names::is_secret(name, text)
                {
                    *text = masked(&format!("{VALUE_OF}{name}"));
                    return true;
                }
                self.mask_json(field) | any
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// Masks a text in place; returns whether anything was masked.
    pub fn mask_in(&self, text: &mut String) -> bool {
        let Cow::Owned(masked) = self.mask(text) else { return false };
        *text = masked;
        true
    }
}

/// Returns the mask of a secret. `what` starts with one of `DESCRIPTIONS`.
fn masked(what: &str) -> String {
    format!("{MASK}{what}]")
}

/// Whether a text contains a mask. Written to a file, the mask would replace the secret.
pub fn has_mask(text: &str) -> bool {
    // Names of fields and providers may contain anything, so the rest of a mask is not checked.
    text.split(MASK).skip(1).any(|what| DESCRIPTIONS.iter().any(|start| what.starts_with(start)))
}

/// Like `has_mask`, for every text in a JSON value.
pub fn has_mask_in(value: &Value) -> bool {
    match value {
        Value::String(text) => has_mask(text),
        Value::Array(items) => items.iter().any(has_mask_in),
        Value::Object(fields) => fields.values().any(has_mask_in),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A secret in a text.
struct FoundSecret {
    at: Range<usize>,
    what: String,
}

/// Masks secrets that are recognizable by their format or by the name to which they are assigned.
pub fn mask(text: &str) -> Cow<'_, str> {
    let mut found = known(text);
    found.extend(shaped(text));
    found.extend(names::given(text));
    found.sort_by_key(|found| (found.at.start, Reverse(found.at.end)));
    let mut out = String::new();
    let mut done = 0;
    for FoundSecret { at, what } in found {
        // This is part of a secret that is already masked.
        if at.start < done {
            continue;
        }
        out.push_str(&text[done..at.start]);
        out.push_str(&masked(&what));
        done = at.end;
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

/// Finds keys by their marks, and private keys.
fn known(text: &str) -> Vec<FoundSecret> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(mark) = KNOWN.marks.find(aho_corasick::Input::new(text).range(at..)) {
        let found = match KNOWN.forms.get(mark.pattern().as_usize()) {
            None => block(&text[mark.start()..]).map(|length| FoundSecret {
                at: mark.start()..mark.start() + length,
                what: format!("{LOOKS_LIKE}a private key"),
            }),
            Some(form) => key(*form, text, mark.range())
                .map(|at| FoundSecret { at, what: format!("{LOOKS_LIKE}{}", FORMS[*form].what) }),
        };
        // If this is not a key, another mark may start within it; marks are ASCII.
        at = found.as_ref().map_or(mark.start() + 1, |found| found.at.end);
        all.extend(found);
    }
    all
}

fn shaped(text: &str) -> Vec<FoundSecret> {
    let found = SHAPED.captures_iter(text).filter_map(|found| {
        let which = (1..found.len()).find(|group| found.get(*group).is_some())?;
        let at = found.get(0)?.range();
        is_varied(&text[at.clone()])
            .then(|| FoundSecret { at, what: format!("{LOOKS_LIKE}{}", SHAPES[which - 1].1) })
    });
    found.collect()
}

/// Returns the key around a mark of this form.
fn key(form: usize, text: &str, mark: Range<usize>) -> Option<Range<usize>> {
    let (before, after) = KNOWN.around[form].get_or_init(|| around(&FORMS[form]));
    let begin = match before {
        None => mark.start,
        Some(before) => {
            let from = text.floor_char_boundary(mark.start.saturating_sub(BEFORE_BYTES_MAX));
            from + before.find(&text[from..mark.start])?.start()
        }
    };
    let end = mark.end + after.find(&text[mark.end..])?.end();
    let goes_on = text[end..].starts_with(|c: char| c.is_ascii_alphanumeric());
    // The mark of a webhook is in the middle of its address.
    let is_apart = text[mark.clone()].contains('/') || begins_a_word(text, begin);
    let own = if before.is_some() { &text[begin..end] } else { &text[mark.end..end] };
    (!goes_on && is_apart && is_varied(own)).then_some(begin..end)
}

/// Whether a text could be random: `sk-learn-something`, variables and placeholders such as `ghp_xxxxxxxx` are not.
fn is_varied(text: &str) -> bool {
    let has = |is: fn(&u8) -> bool| text.bytes().any(|byte| is(&byte));
    let different: HashSet<u8> = text.bytes().collect();
    let mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) && !text.contains(['-', '_', '.']);
    (has(u8::is_ascii_digit) || mixed && text.len() >= MIXED_BYTES_MIN)
        && has(u8::is_ascii_alphabetic)
        && different.len() >= DIFFERENT_MIN
}

/// Whether a match at this position starts a word, rather than being inside of a word.
fn begins_a_word(text: &str, at: usize) -> bool {
    let before = &text[..at];
    match before.chars().next_back() {
        // `\nghp_…` within JSON, and a terminal's color sequence.
        Some(c) if c.is_ascii_alphanumeric() => {
            ["\\n", "\\t", "\\r"].iter().any(|end| before.ends_with(end)) || COLOUR.is_match(before)
        }
        _ => true,
    }
}

/// A terminal escape sequence at the end of a text.
static COLOUR: LazyLock<Regex> = LazyLock::new(|| expression(r"\x1b\[[0-9;]{0,12}m\z"));

/// Returns the length of the private key at the start of a text, even if it is truncated.
fn block(text: &str) -> Option<usize> {
    let begin = BLOCK_BEGIN.find(text)?.end();
    let within = &text[begin..text.floor_char_boundary(begin + BLOCK_BYTES_MAX)];
    let has_key = |body: &str| {
        body.split(|c: char| !(c.is_ascii_alphanumeric() || "+/=".contains(c))).any(|run| run.len() >= 40)
    };
    if let Some(end) = BLOCK_END.find(within)
        && has_key(&within[..end.start()])
        // Source code that contains both lines has other text between them.
        && within[..end.start()].split_whitespace().count() < 2 + within[..end.start()].len() / 12
    {
        return Some(begin + end.end());
    }
    let lines = BLOCK_LINES.find(within)?;
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    has_key(lines.as_str()).then(|| begin + lines.as_str().trim_end_matches(|c| !is_of_key(c)).len())
}

/// Whether a variable's name indicates a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    const WORDS: [&str; 17] = [
        "KEY",
        "TOKEN",
        "SECRET",
        "PASSPHRASE",
        "PASS",
        "PWD",
        "APIKEY",
        "PAT",
        "AUTH",
        "CREDENTIAL",
        "CREDENTIALS",
        "AUTHTOKEN",
        "ACCESSTOKEN",
        "SECRETKEY",
        "ACCESSKEY",
        "PRIVATEKEY",
        "JWT",
    ];
    // `PGPASSWORD` matches; `BYPASS`, `KEYBOARD_LAYOUT` and `MONKEY` don't; `SSH_AUTH_SOCK` and `KEY_FILE` contain a path.
    const ENDS: [&str; 3] = ["PASSWORD", "PASSWD", "SSHPASS"];
    name != "PWD"
        && name.split('_').any(|word| WORDS.contains(&word) || ENDS.iter().any(|end| word.ends_with(end)))
        && !["FILE", "PATH", "DIR", "SOCK", "ID", "NAME", "VARIABLE"].iter().any(|end| name.ends_with(end))
}

fn is_long_enough(value: &str) -> bool {
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    let is_text = value.contains(char::is_whitespace) || is_path(value) || value.contains("://");
    let long = value.len() >= VALUE_BYTES_MIN && has_digit || value.len() >= WORD_BYTES_MIN;
    long && !is_text
}

/// Whether the value is a path, as in `GOOGLE_APPLICATION_CREDENTIALS`: the secret, if any, is in a file, which is
/// protected separately. A key in base64 may begin like a path.
fn is_path(value: &str) -> bool {
    let is_base64 = value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
    value.starts_with(['/', '~', '.']) && !(is_base64 && names::looks_random(value))
}

#[cfg(test)]
mod tests;
