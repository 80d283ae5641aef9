//! Repairs JSON strings that contain unpaired UTF-16 surrogates.
//!
//! Programs with UTF-16 strings produce these escapes when they cut a string in the middle of an emoji, and Epitome's
//! parsers reject them. Nothing else is repaired.

/// Added to an unpaired surrogate, this is the character that marks it, in an area for private use.
pub const MARKED: u32 = 0x10_0000;

/// Replaces each unpaired surrogate escape with U+FFFD; `None` if `json` has none. Apart from these, `json` must be
/// valid JSON.
pub fn replace_unpaired_surrogates(json: &str) -> Option<String> {
    with_unpaired_surrogates(json, |_| char::REPLACEMENT_CHARACTER)
}

/// Replaces each unpaired surrogate escape with a character that marks it, so that the two halves of a character can be
/// joined although they arrive in two pieces of JSON.
pub fn mark_unpaired_surrogates(json: &str) -> Option<String> {
    // Most texts have none, and need not be copied.
    if !["\\ud", "\\uD"].iter().any(|half| json.contains(half)) {
        return None;
    }
    with_unpaired_surrogates(json, |unit| {
        char::from_u32(MARKED + u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

fn with_unpaired_surrogates(json: &str, replaced: impl Fn(u16) -> char) -> Option<String> {
    const ESCAPE_BYTES: usize = "\\u0000".len();
    let half = |from: &str| -> Option<u16> {
        let digits = from.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok().filter(|unit| (0xd800..0xe000).contains(unit))
    };
    let mut repaired = String::new();
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        repaired.push_str(before);
        let length = match half(escape) {
            // After a backslash, the next character is part of the escape, in particular another backslash.
            None => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
            Some(0xd800..0xdc00) if half(&escape[ESCAPE_BYTES..]).is_some_and(|low| low >= 0xdc00) => {
                2 * ESCAPE_BYTES
            }
            Some(unit) => {
                repaired.push(replaced(unit));
                rest = &escape[ESCAPE_BYTES..];
                continue;
            }
        };
        repaired.push_str(&escape[..length]);
        rest = &escape[length..];
    }
    repaired.push_str(rest);
    (repaired != json).then_some(repaired)
}

#[cfg(test)]
mod tests {
    use super::replace_unpaired_surrogates;

    #[test]
    fn only_unpaired_surrogates_are_replaced() {
        for (json, expected) in [
            (r#""plain é""#, None),
            (r#""\ud83d\ude00""#, None),
            (r#""\\ud83d""#, None),
            (r#""\ud83d""#, Some("\"\u{fffd}\"")),
            (r#""\uDE00\uD83D""#, Some("\"\u{fffd}\u{fffd}\"")),
            (r#""\ud83d\ud83d\ude00""#, Some("\"\u{fffd}\\ud83d\\ude00\"")),
            (r#""\ud83d\n\"é""#, Some("\"\u{fffd}\\n\\\"é\"")),
            (r#""\ud83"#, None),
            ("\"\\", None),
        ] {
            assert_eq!(replace_unpaired_surrogates(json).as_deref(), expected, "{json}");
        }
    }
}
