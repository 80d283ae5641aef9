//! Secrets by the names that they are given to: assignments, fields, headers, addresses with a password.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use regex::Regex;

use super::{FoundSecret, expression};

/// Minimum bytes of an alphanumeric run in a value that looks random.
const RUN_BYTES_MIN: usize = 14;
/// Minimum bytes of a password.
const PASSWORD_BYTES_MIN: usize = 8;

/// A name, a sign that gives it a value, and the value. Quotes may be escaped, as in JSON within JSON.
static GIVEN: LazyLock<Regex> = LazyLock::new(|| {
    expression(
        r#"([A-Za-z][A-Za-z0-9_.-]{1,80})(?:\\?["'`])?[ \t]{0,4}(?:=>|:=|\?=|==?|:)[ \t]{0,4}(?:\\?["'`])?([A-Za-z0-9+/=_.~%!@#$^&*?-]{7,})"#,
    )
});

/// A header with credentials, in a request, in a program or in arguments of curl.
static HEADER: LazyLock<Regex> = LazyLock::new(|| {
    expression(
        r#"(?i)(?:\bauthorization["']?[ \t]{0,4}[:=,][ \t]{0,4}["']?(?:bearer|basic|token|apikey|digest)?[ \t]{0,4}|\bbearer[ \t]{1,4})([A-Za-z0-9+/=_.~-]{8,})"#,
    )
});

/// The password in an address.
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    expression(r#"[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s/:@"'<>`]{0,80}:([^\s/@"'<>`{}]{3,120})@[A-Za-z0-9\[]"#)
});

/// The password of a `.netrc` or `.pgpass` entry, and `curl -u name:password`.
static WORDS: LazyLock<Regex> = LazyLock::new(|| {
    expression(
        r#"(?:\bmachine[ \t]+\S+[ \t\r\n]+login[ \t]+\S+[ \t\r\n]+password[ \t]+(\S{4,})|\bcurl\b[^\n]{0,200}[ \t](?:-u|--user)[ \t=]["']?[^\s:"']{1,80}:([^\s"']{4,})|(?m)^[\w.*-]+:(?:[0-9]{2,5}|\*):[\w*-]+:[\w*-]+:(\S{4,})$)"#,
    )
});

/// The private part of a key file of PuTTY.
static PUTTY: LazyLock<Regex> = LazyLock::new(|| {
    expression(r"Private-Lines: [0-9]{1,4}\r?\n((?:[A-Za-z0-9+/=]{8,80}(?:\r?\n|\z))*[A-Za-z0-9+/=]{8,80})")
});

/// What the lines around a value must contain for the expressions to be tried; they are slow.
static HINTS: LazyLock<AhoCorasick> = LazyLock::new(|| {
    let words = [
        "key",
        "token",
        "secret",
        "pass",
        "pwd",
        "credential",
        "auth",
        "bearer",
        "pat",
        "cookie",
        "session",
        "sig",
        "lines:",
        "://",
        "curl",
        ":5432:",
        ":3306:",
    ];
    AhoCorasick::builder().ascii_case_insensitive(true).build(words).expect("a few words make an automaton")
});

/// Values whose names indicate a secret.
pub(super) fn given(text: &str) -> Vec<FoundSecret> {
    if !HINTS.is_match(text) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for found in GIVEN.captures_iter(text) {
        let (Some(name), Some(value)) = (found.get(1), found.get(2)) else { continue };
        let trimmed = value.as_str().trim_end_matches(['.', ',', '?', '!']);
        if is_secret(name.as_str(), trimmed) && !is_code(text, name.range(), value.range()) {
            let at = value.start()..value.start() + trimmed.len();
            all.push(FoundSecret { at, what: format!("the value of {}", name.as_str()) });
        }
    }
    let mut add = |at: Range<usize>, what: &str| all.push(FoundSecret { at, what: what.to_owned() });
    for found in HEADER.captures_iter(text) {
        if let Some(value) = found.get(1).filter(|value| looks_random(value.as_str())) {
            add(value.range(), "looks like credentials in a header");
        }
    }
    for found in PUTTY.captures_iter(text) {
        if let Some(lines) = found.get(1) {
            add(lines.range(), "looks like a private key");
        }
    }
    for found in ADDRESS.captures_iter(text).chain(WORDS.captures_iter(text)) {
        let password = found.iter().skip(1).flatten().next();
        if let Some(password) = password.filter(|password| !is_placeholder(password.as_str())) {
            add(password.range(), "looks like a password");
        }
    }
    all
}

/// Whether what is given is a type, a variable or a call rather than a text.
fn is_code(text: &str, name: Range<usize>, value: Range<usize>) -> bool {
    let is_quoted = text[..value.start].ends_with(['"', '\'', '`']);
    let after = text[value.end..].trim_start_matches([' ', '\t']);
    let is_name = text[value].bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    // `"AWS::IAM::AccessKey": "72c2d9dd90025459"` is a table of types.
    text[..name.start].ends_with("::")
        || !is_quoted && is_name && after.starts_with(['=', '(', '[', '{', '<', ':'])
}

/// What kind of secret a name stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretKind {
    /// Chosen by people: need not look random.
    Password,
    /// Made by programs.
    Token,
    /// Many keys are none of secrets.
    Key,
}

/// Whether this value of a field or variable of this name is a secret.
pub(super) fn is_secret(name: &str, value: &str) -> bool {
    match kind(name) {
        None => false,
        Some(SecretKind::Password) => looks_random(value) || is_password(value),
        Some(SecretKind::Token) => looks_random(value) || is_mixed(value) || is_uuid(value),
        Some(SecretKind::Key) => looks_random(value),
    }
}

/// Words after the one that says what a name stands for.
const TAILS: [&str; 8] = ["base", "value", "string", "raw", "base64", "b64", "hex", "plain"];

fn kind(name: &str) -> Option<SecretKind> {
    let mut words = words(name);
    // `secret_key_base`, `API_KEY_2`.
    while words.len() > 1
        && words.last().is_some_and(|last| TAILS.contains(&last.as_str()) || last.len() == 1)
    {
        words.pop();
    }
    let last = words.last()?.as_str();
    let before = words.len().checked_sub(2).map_or("", |at| words[at].as_str());
    const NO_TOKENS: [&str; 9] =
        ["page", "next", "continuation", "sync", "cancellation", "cancel", "eos", "bos", "resume"];
    const NO_KEYS: [&str; 16] = [
        "public",
        "primary",
        "foreign",
        "cache",
        "sort",
        "partition",
        "idempotency",
        "hash",
        "map",
        "lookup",
        "routing",
        "dedupe",
        "unique",
        "object",
        "translation",
        "publishable",
    ];
    match last {
        "password" | "passwd" | "pwd" | "pass" | "passphrase" => Some(SecretKind::Password),
        "token" | "secret" | "authtoken" | "accesstoken" | "clientsecret" | "credential" | "credentials"
        | "pat" | "cookie" | "auth"
            if !NO_TOKENS.contains(&before) =>
        {
            Some(SecretKind::Token)
        }
        "apikey" | "secretkey" | "accesskey" | "privatekey" => Some(SecretKind::Token),
        "key" if ["api", "secret", "private", "access", "auth", "account"].contains(&before) => {
            Some(SecretKind::Token)
        }
        "key" if !before.is_empty() && !NO_KEYS.contains(&before) => Some(SecretKind::Key),
        // `client-key-data` of a kubeconfig.
        "data" if before == "key" => Some(SecretKind::Token),
        _ => None,
    }
}

/// Splits `awsSecretKey`, `aws_secret_key`, `AWS-SECRET.KEY` into lower-case words.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() || c.is_ascii_uppercase() && was_lower {
            words.push(String::new());
        }
        was_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        if c.is_ascii_alphanumeric() {
            words.last_mut().expect("it is never empty").push(c.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a value looks generated: a long run in which upper case, lower case and digits alternate as they do by
/// chance, or a long hexadecimal number.
pub(super) fn looks_random(value: &str) -> bool {
    let runs = value.split(|c: char| !(c.is_ascii_alphanumeric() || c == '+' || c == '/'));
    let class = |byte: u8| (byte.is_ascii_digit(), byte.is_ascii_uppercase());
    let in_runs = { runs }.any(|run| {
        let bytes = run.as_bytes();
        let digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
        let alternations = bytes.windows(2).filter(|pair| class(pair[0]) != class(pair[1])).count();
        let hexadecimal = bytes.len() >= 32 && bytes.iter().all(u8::is_ascii_hexdigit) && digits >= 2;
        bytes.len() >= RUN_BYTES_MIN
            && digits >= 2
            && alternations * 4 >= bytes.len()
            && !value.contains("::")
            || hexadecimal
    });
    in_runs || is_broken_up(value)
}

/// Whether a value is one word of letters and digits that could have been drawn by chance.
fn is_mixed(value: &str) -> bool {
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let pairs = value.as_bytes().windows(2);
    let alternations = pairs.filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit()).count();
    value.len() >= RUN_BYTES_MIN
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && digits >= 2
        && alternations * 7 >= value.len()
}

/// Whether a value is random with `_` and `-` in it, as in base64 for addresses.
fn is_broken_up(value: &str) -> bool {
    let bytes = value.as_bytes();
    let count = |is: fn(&u8) -> bool| bytes.iter().filter(|byte| is(byte)).count();
    let (digits, lower, upper) =
        (count(u8::is_ascii_digit), count(u8::is_ascii_lowercase), count(u8::is_ascii_uppercase));
    let class = |byte: u8| (byte.is_ascii_digit(), byte.is_ascii_uppercase(), byte.is_ascii_lowercase());
    let alternations = bytes.windows(2).filter(|pair| class(pair[0]) != class(pair[1])).count();
    value.len() >= 24
        && !value.contains(['/', '.'])
        && digits >= 3
        && lower + upper >= 3
        && alternations * 5 >= value.len() * 2
}

fn is_uuid(value: &str) -> bool {
    let parts: Vec<&str> = value.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether a value may be a password rather than code: letters and digits or signs, no name, path or call.
fn is_password(value: &str) -> bool {
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    let has_letter = value.bytes().any(|byte| byte.is_ascii_alphabetic());
    // Names of variables, paths and formats.
    let is_code =
        value.contains(['/', '$', '%', '*', '.', '_']) || value.contains("==") || value.contains("&&");
    value.len() >= PASSWORD_BYTES_MIN && has_digit && has_letter && !is_code && !is_placeholder(value)
}

/// What stands where a password would in documentation and code.
fn is_placeholder(value: &str) -> bool {
    let lower = value.to_ascii_lowercase();
    const WORDS: [&str; 14] = [
        "password", "passwd", "pass", "secret", "postgres", "root", "admin", "user", "test", "example",
        "changeme", "guest", "mysql", "your",
    ];
    let letters = lower.trim_matches(|c: char| !c.is_ascii_alphabetic());
    WORDS.contains(&letters)
        || value.starts_with(['$', '%', '<', '[', '{', '*', '('])
        || lower.contains("xxx")
        || lower.contains("***")
        || lower.starts_with("your")
        || lower.contains("placeholder")
        || lower.bytes().all(|byte| byte == lower.as_bytes()[0])
}
