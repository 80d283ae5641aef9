//! Detects secrets in texts and masks them. Pure. Texts without secrets are only scanned, not copied.
//!
//! It recognises the key formats of vendors, private keys, signed tokens, assignments to names that indicate
//! a secret, and values of an environment. Nothing is masked on mere suspicion: hashes, images and ids
//! remain, because the model works with the masked text.

use std::borrow::Cow;
use std::ffi::OsString;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use regex::Regex;
use serde_json::Value;

/// Minimum bytes of an environment value; a shorter one would match in ordinary text.
const VALUE_BYTES_MIN: usize = 8;
/// Minimum bytes of a value without digits: `production` is no secret.
const WORD_BYTES_MIN: usize = 20;
/// Maximum bytes between the first and last line of a private key; real keys have about three thousand.
const BLOCK_BYTES_MAX: usize = 32 * 1024;
/// Minimum bytes of an alphanumeric run in a value that looks random.
const RUN_BYTES_MIN: usize = 16;

/// A key format: its prefix, its complete pattern and its description.
struct Form {
    begins: &'static str,
    whole: &'static str,
    what: &'static str,
}

const fn form(begins: &'static str, whole: &'static str, what: &'static str) -> Form {
    Form { begins, whole, what }
}

/// Longer prefixes precede the shorter ones that they start with.
const FORMS: [Form; 34] = [
    form("sk-ant-", r"sk-ant-[a-z]{2,8}[0-9]{2}-[A-Za-z0-9_-]{20,}", "an Anthropic key"),
    form("sk-proj-", r"sk-proj-[A-Za-z0-9_-]{20,}", "an OpenAI key"),
    form("sk-svcacct-", r"sk-svcacct-[A-Za-z0-9_-]{20,}", "an OpenAI key"),
    form("sk-admin-", r"sk-admin-[A-Za-z0-9_-]{20,}", "an OpenAI key"),
    form("sk-or-v1-", r"sk-or-v1-[0-9a-f]{40,}", "an OpenRouter key"),
    form("sk_live_", r"sk_live_[A-Za-z0-9]{16,}", "a Stripe key"),
    form("rk_live_", r"rk_live_[A-Za-z0-9]{16,}", "a Stripe key"),
    form("whsec_", r"whsec_[A-Za-z0-9+/=]{24,}", "a Stripe secret"),
    form("sk-", r"sk-[A-Za-z0-9]{20,}", "a key of a model's provider"),
    form("AKIA", r"AKIA[A-Z2-7]{16}", "an AWS key"),
    form("ASIA", r"ASIA[A-Z2-7]{16}", "an AWS key"),
    form("ghp_", r"ghp_[A-Za-z0-9]{30,}", "a GitHub token"),
    form("gho_", r"gho_[A-Za-z0-9]{30,}", "a GitHub token"),
    form("ghu_", r"ghu_[A-Za-z0-9]{30,}", "a GitHub token"),
    form("ghs_", r"ghs_[A-Za-z0-9]{30,}", "a GitHub token"),
    form("ghr_", r"ghr_[A-Za-z0-9]{30,}", "a GitHub token"),
    form("github_pat_", r"github_pat_[A-Za-z0-9_]{40,}", "a GitHub token"),
    form("glpat-", r"glpat-[A-Za-z0-9_-]{20,}", "a GitLab token"),
    form("xoxb-", r"xoxb-[0-9]{6,}-[A-Za-z0-9-]{10,}", "a Slack token"),
    form("xoxp-", r"xoxp-[0-9]{6,}-[A-Za-z0-9-]{10,}", "a Slack token"),
    form("xoxa-", r"xoxa-[0-9]{1,}-[A-Za-z0-9-]{10,}", "a Slack token"),
    form("xoxs-", r"xoxs-[0-9]{6,}-[A-Za-z0-9-]{10,}", "a Slack token"),
    form("xapp-", r"xapp-[0-9]-[A-Z0-9]{6,}-[0-9]+-[a-f0-9]{20,}", "a Slack token"),
    form("AIza", r"AIza[A-Za-z0-9_-]{35}", "a Google key"),
    form("ya29.", r"ya29\.[A-Za-z0-9_-]{30,}", "a Google token"),
    form("GOCSPX-", r"GOCSPX-[A-Za-z0-9_-]{20,}", "a Google secret"),
    form("hf_", r"hf_[A-Za-z0-9]{30,}", "a Hugging Face token"),
    form("npm_", r"npm_[A-Za-z0-9]{36}", "an npm token"),
    form("pypi-", r"pypi-AgE[A-Za-z0-9_-]{50,}", "a PyPI token"),
    form("gsk_", r"gsk_[A-Za-z0-9]{40,}", "a Groq key"),
    form("xai-", r"xai-[A-Za-z0-9]{60,}", "an xAI key"),
    form("SG.", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{30,}", "a SendGrid key"),
    form("AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}", "an age key"),
    form("eyJ", r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}", "a signed token"),
];

/// The start of a PEM block.
const BLOCK: &str = "-----BEGIN ";

struct Known {
    begins: AhoCorasick,
    /// In the order of `FORMS`.
    wholes: Vec<Regex>,
}

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let begins = FORMS.iter().map(|form| form.begins).chain([BLOCK]);
    Known {
        begins: AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(begins)
            .expect("a few short words make an automaton"),
        wholes: FORMS.iter().map(|form| expression(&format!(r"\A(?:{})", form.whole))).collect(),
    }
});

static BLOCK_BEGIN: LazyLock<Regex> =
    LazyLock::new(|| expression(r"\A-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"));

static BLOCK_END: LazyLock<Regex> =
    LazyLock::new(|| expression(r"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"));

/// The lines of a key: base64, including line prefixes added by tools.
static BLOCK_LINES: LazyLock<Regex> = LazyLock::new(|| {
    expression(r#"\A(?:\\n|\\r|[\s"',+|:-]|[0-9]{1,7}[\t:]|[A-Za-z0-9+/=]{16,}|[A-Za-z0-9+/]{1,15}={1,2})+"#)
});

/// A name that indicates a secret, as in a `.env` file, and its value.
static ASSIGNED: LazyLock<Regex> = LazyLock::new(|| {
    expression(
        r#"([A-Z][A-Z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD))["']?[ \t]{0,4}[=:][ \t]{0,4}["']?([A-Za-z0-9+/=_.~-]{16,})"#,
    )
});

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("the expression is well formed")
}

/// The secrets to mask in the texts of one session.
#[derive(Debug, Default)]
pub struct Masker {
    /// Values of the environment, and their names.
    values: Option<(AhoCorasick, Vec<String>)>,
}

impl Masker {
    /// Creates a masker for known key formats and for environment values whose names indicate a secret.
    pub fn new(environment: &[(OsString, OsString)]) -> Masker {
        let mut names = Vec::new();
        let mut values = Vec::new();
        for (name, value) in environment {
            if let (Some(name), Some(value)) = (name.to_str(), value.to_str())
                && is_secret_name(name)
                && is_long_enough(value)
            {
                names.push(name.to_owned());
                values.push(value.to_owned());
            }
        }
        let automaton = (!values.is_empty())
            .then(|| AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(values))
            // Too many values for an automaton: key formats are still masked.
            .and_then(Result::ok);
        Masker { values: automaton.map(|automaton| (automaton, names)) }
    }

    /// Replaces each secret with a mask. Texts without secrets, which are most, are returned unchanged.
    pub fn mask<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let text = match &self.values {
            Some((values, names)) if values.is_match(text) => {
                let masks: Vec<String> =
                    names.iter().map(|name| masked(&format!("the value of {name}"))).collect();
                Cow::Owned(values.replace_all(text, &masks))
            }
            Some(_) | None => Cow::Borrowed(text),
        };
        match text {
            Cow::Borrowed(text) => mask(text),
            Cow::Owned(text) => match mask(&text) {
                Cow::Borrowed(_) => Cow::Owned(text),
                Cow::Owned(masked) => Cow::Owned(masked),
            },
        }
    }

    /// Masks every text in a JSON value; returns whether anything was masked.
    pub fn mask_json(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => self.mask_in(text),
            // Visits all items, without stopping at the first masked one.
            Value::Array(items) => items.iter_mut().fold(false, |any, item| self.mask_json(item) | any),
            Value::Object(fields) => {
                fields.values_mut().fold(false, |any, field| self.mask_json(field) | any)
            }
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

/// The mask of a secret.
fn masked(what: &str) -> String {
    format!("[secret masked: {what}]")
}

/// Whether a text contains a mask, which would replace the secret if it were written to a file.
pub fn has_mask(text: &str) -> bool {
    static MASK: LazyLock<Regex> =
        LazyLock::new(|| expression(r"\[secret masked: (?:looks like|the value of) [A-Za-z0-9_' ]+\]"));
    text.contains("[secret masked") && MASK.is_match(text)
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

/// Masks secrets recognisable by their format.
pub fn mask(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut done = 0;
    let mut at = 0;
    while let Some(found) = KNOWN.begins.find(aho_corasick::Input::new(text).range(at..)) {
        at = found.end();
        let begin = found.start();
        let which = found.pattern().as_usize();
        let (length, what) = match FORMS.get(which) {
            None => (block(&text[begin..]), "looks like a private key"),
            Some(_) if !begins_a_word(text, begin) => continue,
            Some(form) => (key(which, form, &text[begin..]), form.what),
        };
        if let Some(length) = length {
            out.push_str(&text[done..begin]);
            out.push_str(&match which < FORMS.len() {
                true => masked(&format!("looks like {what}")),
                false => masked(what),
            });
            done = begin + length;
            at = done;
        }
    }
    let by_form = match done {
        0 => Cow::Borrowed(text),
        _ => {
            out.push_str(&text[done..]);
            Cow::Owned(out)
        }
    };
    match by_form {
        Cow::Borrowed(text) => assigned(text),
        Cow::Owned(text) => match assigned(&text) {
            Cow::Borrowed(_) => Cow::Owned(text),
            Cow::Owned(masked) => Cow::Owned(masked),
        },
    }
}

/// The length of the key at the start of a text.
fn key(which: usize, form: &Form, text: &str) -> Option<usize> {
    let found = KNOWN.wholes[which].find(text)?;
    let end = found.end();
    let goes_on = text[end..].starts_with(|c: char| c.is_ascii_alphanumeric());
    let has = |is: fn(&u8) -> bool| found.as_str().bytes().any(|byte| is(&byte));
    // `sk-learn-something` and variable names aren't keys.
    let is_mixed = has(u8::is_ascii_digit)
        && found.as_str()[form.begins.len()..].bytes().any(|byte| byte.is_ascii_alphabetic());
    let is_id = matches!(form.begins, "AKIA" | "ASIA");
    (!goes_on && (is_mixed || is_id) && !is_all_the_same(&found.as_str()[form.begins.len()..])).then_some(end)
}

/// A placeholder such as `ghp_xxxxxxxx…` in documentation.
fn is_all_the_same(text: &str) -> bool {
    let mut bytes = text.bytes();
    let first = bytes.next();
    bytes.all(|byte| Some(byte) == first)
}

/// Whether a match at this position starts a word, rather than being inside of a word or of base64.
fn begins_a_word(text: &str, at: usize) -> bool {
    let mut before = text[..at].chars().rev();
    match before.next() {
        None => true,
        // `\nghp_…` within JSON.
        Some('n' | 't' | 'r') => before.next() == Some('\\'),
        Some(c) => !(c.is_ascii_alphanumeric() || "+/_-.".contains(c)),
    }
}

/// The length of the private key at the start of a text, even if it is truncated.
fn block(text: &str) -> Option<usize> {
    let begin = BLOCK_BEGIN.find(text)?.end();
    let within = &text[begin..text.floor_char_boundary(begin + BLOCK_BYTES_MAX)];
    let has_key = |body: &str| {
        body.split(|c: char| !(c.is_ascii_alphanumeric() || "+/=".contains(c))).any(|run| run.len() >= 40)
    };
    if let Some(end) = BLOCK_END.find(within)
        && has_key(&within[..end.start()])
        // Source code with both lines has other text between them.
        && within[..end.start()].split_whitespace().count() < 2 + within[..end.start()].len() / 12
    {
        return Some(begin + end.end());
    }
    let lines = BLOCK_LINES.find(within)?;
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    has_key(lines.as_str()).then(|| begin + lines.as_str().trim_end_matches(|c| !is_of_key(c)).len())
}

/// Masks values whose names indicate a secret.
fn assigned(text: &str) -> Cow<'_, str> {
    // The regular expression is slow; skip it for texts without any of its words.
    static WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| {
        AhoCorasick::new(["KEY", "TOKEN", "SECRET", "PASSW"]).expect("four words make an automaton")
    });
    if !WORDS.is_match(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let mut done = 0;
    for found in ASSIGNED.captures_iter(text) {
        let (Some(name), Some(value)) = (found.get(1), found.get(2)) else { continue };
        if !looks_random(value.as_str()) {
            continue;
        }
        out.push_str(&text[done..value.start()]);
        out.push_str(&masked(&format!("the value of {}", name.as_str())));
        done = value.end();
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

/// Whether a value looks generated: a long run of mixed upper case, lower case and digits, or of hexadecimal
/// digits.
fn looks_random(value: &str) -> bool {
    let runs = value.split(|c: char| !(c.is_ascii_alphanumeric() || c == '+' || c == '/'));
    { runs }.any(|run| {
        let has = |is: fn(&u8) -> bool| run.bytes().any(|byte| is(&byte));
        let digits = run.bytes().filter(u8::is_ascii_digit).count();
        let mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && digits >= 2;
        let hexadecimal = run.len() >= 32 && run.bytes().all(|byte| byte.is_ascii_hexdigit()) && digits >= 2;
        run.len() >= RUN_BYTES_MIN && (mixed || hexadecimal)
    })
}

/// Whether a variable's name indicates a secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let is_word =
        |word: &str| ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY"].contains(&word);
    // `KEYBOARD_LAYOUT` and `MONKEY` don't match; `SSH_AUTH_SOCK` and `KEY_FILE` contain a path.
    name.split('_').any(is_word)
        && !["FILE", "PATH", "DIR", "SOCK", "ID", "NAME", "VARIABLE"].iter().any(|end| name.ends_with(end))
}

fn is_long_enough(value: &str) -> bool {
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    let is_text =
        value.contains(char::is_whitespace) || value.starts_with(['/', '~', '.']) || value.contains("://");
    let long = value.len() >= VALUE_BYTES_MIN && has_digit || value.len() >= WORD_BYTES_MIN;
    long && !is_text
}

#[cfg(test)]
mod tests;
