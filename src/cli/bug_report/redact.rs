//! Redacts text: API keys by their form and name, secrets of the environment, and the user's identity. In doubt it
//! redacts too much.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use regex::{Captures, Regex};

/// The replacement for redacted text.
const GONE: &str = "<redacted>";

/// Minimum length in bytes of an environment secret that is redacted: shorter ones would match parts of words.
const KNOWN_BYTES_MIN: usize = 5;

/// Part of an expression: a name whose value is a secret.
const NAMES: &str = r"[A-Za-z0-9_.-]*(?:api[_-]?key|access[_-]?key|private[_-]?key|secret|token|passwd|password|passphrase|credentials?|signature|session[_-]?key)(?:[_-](?:key|id|value))?";

fn expression(text: &str) -> Regex {
    Regex::new(text).expect("the expression is well formed")
}

/// PEM blocks, including those truncated at either end or with newlines escaped as `\n`.
static BLOCKS: LazyLock<[Regex; 3]> = LazyLock::new(|| {
    [
        r"(?s)-----BEGIN [^-\n]{1,60}-----.*?-----END [^-\n]{1,60}-----",
        r"-----BEGIN [^-\n]{1,60}-----[A-Za-z0-9+/=\s\\]*",
        r"[A-Za-z0-9+/=\s\\]*-----END [^-\n]{1,60}-----",
    ]
    .map(expression)
});

/// Patterns with their replacements.
static SHAPES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let secret_names = format!(
        r#"(?i)\b({NAMES})(["'\\]*\s*(?:=>|[:=])\s*)(?:\\+"[^"\n]*"|"[^"\n]*"|'[^'\n]*'|(?:(?:bearer|basic)\s+)?[^\s"',;&}})\]]+)"#
    );
    [
        // Matches the rest of the line, because values of such headers contain spaces.
        (r#"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(["'\\]*\s*[:=]\s*).+"#, "$1$2<redacted>"),
        (r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s]*@", "$1<redacted>@"),
        (r#"([^\s:/@"'=<>(]+):[^\s/@"'<>]+@([A-Za-z0-9.-]+)"#, "<redacted>@$2"),
        (r#"([?&][^=\s&#"'<>]{1,100}=)[^&\s"'#<>]+"#, "$1<redacted>"),
        (&secret_names, "$1$2<redacted>"),
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", "$1 <redacted>"),
        (r"\beyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]+)*", GONE),
        (r"\b(?:AKIA|ASIA|AIDA|AROA|AGPA|ANPA|ABIA|ACCA)[A-Z0-9]{8,}", GONE),
        (r"\bAIza[A-Za-z0-9_-]{8,}", GONE),
        (r"\bya29\.[A-Za-z0-9_-]{8,}", GONE),
        (r"\b(?:sk|pk|rk|sess|xai|pplx|nvapi|tvly|fw|xapp|xox[a-z]|glpat|tskey|AGE-SECRET-KEY)-[A-Za-z0-9_-]{6,}", GONE),
        (r"\b(?:gh[a-z]|github_pat|hf|gsk|r8|npm|dop_v1|sk_live|sk_test|rk_live|rk_test|pk_live|pk_test|whsec|lin_api|csk|jina)_[A-Za-z0-9_]{6,}", GONE),
        (r"\bpypi-[A-Za-z0-9_-]{10,}", GONE),
        (r"\bSG\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}", GONE),
        (r"[A-Za-z0-9._+-]+@[A-Za-z0-9-]+\.[A-Za-z0-9.-]+", "<address>"),
    ]
    .into_iter()
    .map(|(shape, instead)| (expression(shape), instead))
    .collect()
});

/// Possible keys of an unknown form.
static LONG: LazyLock<[Regex; 2]> =
    LazyLock::new(|| [r"[A-Za-z0-9_-]{32,}", r"[A-Za-z0-9+/]{38,}={0,2}"].map(expression));

static UUID: LazyLock<Regex> = LazyLock::new(|| {
    expression(r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$")
});

/// A name of a variable, header or setting whose value is a secret.
static SECRET_NAME: LazyLock<Regex> = LazyLock::new(|| {
    expression(r"(?i)key|token|secret|pass|auth|credential|cookie|headers|signature|bearer")
});

/// Whether the value with this name may be a secret. `key_variable` and the like only name a variable.
pub(super) fn is_secret_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    !lower.ends_with("_variable") && !lower.ends_with("_env") && SECRET_NAME.is_match(name)
}

pub(super) struct ReportRedactor {
    known: Option<AhoCorasick>,
    /// Patterns that identify the user, with their replacements.
    person: Vec<(Regex, &'static str)>,
}

impl ReportRedactor {
    /// Texts in `secrets` are redacted in every form; `user` and `host` are names.
    pub(super) fn new(
        secrets: impl IntoIterator<Item = String>,
        home: Option<&Path>,
        user: Option<&str>,
        host: Option<&str>,
    ) -> ReportRedactor {
        let mut known = BTreeSet::new();
        for secret in secrets {
            // A variable may contain several headers, one per line.
            let parts = secret.split(['\n', ';', ',']).map(|part| part.split_once(':').unwrap_or((part, "")));
            known.extend(parts.flat_map(|(name, value)| [name, value]).map(|part| part.trim().to_owned()));
            // The JSON-escaped form.
            known.insert(serde_json::Value::from(secret.as_str()).to_string().trim_matches('"').to_owned());
            known.insert(secret);
        }
        known.retain(|secret| {
            secret.len() >= KNOWN_BYTES_MIN && secret != "false" && !secret.starts_with("http")
        });
        let known = (!known.is_empty())
            .then(|| AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(known))
            // If there are too many secrets for the matcher, only known forms are redacted.
            .and_then(Result::ok);
        let mut person = Vec::new();
        if let Some(home) = home.and_then(Path::to_str).filter(|home| home.len() > 1) {
            person.push((expression(&format!(r"{}\b", regex::escape(home))), "~"));
        }
        // Common words are not redacted as names.
        for (name, instead) in [(user.filter(|user| *user != "root"), "<user>"), (host, "<host>")] {
            if let Some(name) = name.filter(|name| name.len() > 1 && *name != "localhost") {
                person.push((expression(&format!(r"\b{}\b", regex::escape(name))), instead));
            }
        }
        ReportRedactor { known, person }
    }

    pub(super) fn clean(&self, text: &str) -> String {
        let mut text = Cow::Borrowed(text);
        for block in BLOCKS.iter() {
            text = Cow::Owned(block.replace_all(&text, "\n<redacted>").into_owned());
        }
        if let Some(known) = &self.known {
            let gone = vec![GONE; known.patterns_len()];
            text = Cow::Owned(known.replace_all(&text, &gone));
        }
        for (shape, instead) in SHAPES.iter() {
            text = Cow::Owned(shape.replace_all(&text, *instead).into_owned());
        }
        for long in LONG.iter() {
            text = Cow::Owned(long.replace_all(&text, unless_plain).into_owned());
        }
        for (who, instead) in &self.person {
            text = Cow::Owned(who.replace_all(&text, *instead).into_owned());
        }
        text.into_owned()
    }
}

/// The replacement for a long run of letters and digits. A run without digits is kept: it is a name or a path.
fn unless_plain(found: &Captures<'_>) -> String {
    let text = &found[0];
    let has = |is: fn(&u8) -> bool| text.as_bytes().iter().any(is);
    let is_plain = !has(u8::is_ascii_digit) || !has(u8::is_ascii_alphabetic) || UUID.is_match(text);
    if is_plain { text.to_owned() } else { GONE.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> ReportRedactor {
        ReportRedactor::new([], Some(Path::new("/home/ann")), Some("ann"), Some("annsbox"))
    }

    #[test]
    fn secrets_of_every_known_shape_are_taken_out() {
        let redactor = plain();
        for secret in [
            "sk-ant-api03-PLANTED0",
            "sk-proj-PLANTED1",
            "sk-PLANTED2",
            "AIzaSyPLANTED3",
            "ghp_PLANTED4",
            "github_pat_PLANTED5_x",
            "hf_PLANTED6x",
            "xoxb-1-PLANTED7",
            "glpat-PLANTED8",
            "AKIAPLANTED9XYZ",
            "eyJhbGciPLANTED.eyJzdWIiPLANTED.PLANTED-sig",
            "Bearer PLANTED.abc/def=",
            "Authorization: Basic PLANTED==",
            "authorization: Digest user=PLANTED, nonce=PLANTED",
            "Cookie: a=PLANTED; b=PLANTED",
            "https://ann:PLANTED@example.com/v1",
            "https://PLANTED@example.com/v1",
            "postgres://ann:p@PLANTED@db/x",
            "ann:PLANTED@example.com",
            "https://example.com/v1?key=PLANTED&alt=PLANTED",
            "api_key = \"PLANTED\"",
            "\"api-key\": \"PLANTED with blanks\"",
            "{\\\"apiKey\\\":\\\"PLANTED\\\"}",
            "OPENAI_API_KEY=PLANTED",
            "client_secret: 'PLANTED'",
            "aws_secret_access_key = wJalrPLANTED/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "it was wJalrXUtnFEMI/K7MDENG/bPxRfiCYPLANTEDKEY",
            "password=PLANTED",
            "ya29.PLANTED-x",
            "deadbeefPLANTEDdeadbeef0123456789abcdef",
            "ann.PLANTED@example.com",
        ] {
            let clean = redactor.clean(&format!("before {secret}\nafter"));
            assert!(!clean.contains("PLANTED"), "{secret:?} became {clean:?}");
            assert!(clean.starts_with("before") && clean.ends_with("after"), "{secret:?} became {clean:?}");
        }
    }

    #[test]
    fn blocks_of_keys_are_taken_out_also_where_one_end_is_cut_off() {
        let begin = "-----BEGIN RSA PRIVATE KEY-----";
        let end = "-----END RSA PRIVATE KEY-----";
        for block in [
            format!("{begin}\nProc-Type: 4,ENCRYPTED\n\nPLANTED\nPLANTED\n{end}"),
            format!("{begin}\\nPLANTED\\nPLANTED\\n{end}"),
            format!("{begin}\nPLANTED\nPLANTED="),
            format!("PLANTED\nPLANTED=\n{end}"),
        ] {
            let clean = plain().clean(&block);
            assert!(!clean.contains("PLANTED"), "{block:?} became {clean:?}");
        }
    }

    #[test]
    fn values_of_the_environment_are_redacted_everywhere() {
        let secrets = ["mine-of-5".to_owned(), "X-Tenant: quoted\"one\nX-Other: another1".to_owned()];
        let redactor = ReportRedactor::new(secrets, None, None, None);
        let clean = redactor.clean(r#"a mine-of-5b {"h": "quoted\"one"} and another1."#);
        assert!(!clean.contains("mine-of") && !clean.contains("another1"), "{clean}");
    }

    #[test]
    fn who_the_person_is_is_taken_out_and_what_helps_stays() {
        let clean = plain().clean("/home/ann/work/a.rs of ann on annsbox, not joanna");
        assert_eq!(clean, "~/work/a.rs of <user> on <host>, not joanna");
        for stays in [
            "2026-11-22T13:24:06.123456Z  INFO session{id=s_0123abcd0123456789ab}:turn{from=e3}: epitome::spans: ended",
            "base_url = \"https://gateway.example.com:8443/v1/models\"",
            "input=12 output=3 max_tokens: 4096 tokens=17",
            "id 123e4567-e89b-12d3-a456-426614174000",
            "anthropic/claude-sonnet-4-5-20250929",
            "src/session/compacting/order.rs:12:3",
        ] {
            assert_eq!(plain().clean(stays), stays);
        }
    }
}
