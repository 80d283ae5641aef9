//! Quotes arguments for a place in a shell line, so that they are words of a command and never commands. Pure.
//!
//! The line is written by the author of a recipe, so the place is found by following its quotes. Where they are more
//! than that (here-documents, backticks), there is no answer.

/// A quote or substitution that is open at a position of a shell line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    Single,
    Double,
    /// A subshell or `$(…)`, with its own quotes.
    Parenthesis,
    /// `${…}`
    Brace,
}

/// A place in a shell line.
#[derive(Default)]
pub(super) struct ShellPosition {
    open: Vec<Opened>,
    in_comment: bool,
    /// The next character is escaped by a backslash.
    is_escaped: bool,
    /// The text so far has syntax that is not followed.
    is_unclear: bool,
    last: Option<char>,
}

impl ShellPosition {
    /// Moves behind a piece of the line.
    pub fn pass(&mut self, text: &str) {
        // Its patterns have closing parentheses without opening ones.
        self.is_unclear |= text.contains("case ");
        for c in text.chars() {
            let before = self.last.replace(c);
            if std::mem::take(&mut self.is_escaped) {
                // An escaped character has no meaning, and `$` or a blank before the next one neither.
                self.last = Some('\\');
                continue;
            }
            if self.in_comment {
                self.in_comment = c != '\n';
                continue;
            }
            let top = self.open.last().copied();
            if top == Some(Opened::Single) {
                if c == '\'' {
                    self.open.pop();
                }
                continue;
            }
            if top == Some(Opened::Brace) {
                match c {
                    '}' => drop(self.open.pop()),
                    '\\' | '\'' | '"' | '`' | '$' => self.is_unclear = true,
                    _ => {}
                }
                continue;
            }
            let in_double = top == Some(Opened::Double);
            match (c, before) {
                ('\\', _) => self.is_escaped = true,
                ('`', _) => self.is_unclear = true,
                ('{', Some('$')) => self.open.push(Opened::Brace),
                ('(', Some('$')) => self.open.push(Opened::Parenthesis),
                ('"', _) if in_double => drop(self.open.pop()),
                _ if in_double => {}
                ('\'', Some('$')) | ('"', Some('$')) | ('<', Some('<')) => self.is_unclear = true,
                ('"', _) => self.open.push(Opened::Double),
                ('\'', _) => self.open.push(Opened::Single),
                ('(', _) => self.open.push(Opened::Parenthesis),
                (')', _) if top == Some(Opened::Parenthesis) => drop(self.open.pop()),
                // A pattern of `case`.
                (')', _) => self.is_unclear = true,
                ('#', None) => self.in_comment = true,
                ('#', Some(before)) if before.is_whitespace() || ";&|(".contains(before) => {
                    self.in_comment = true
                }
                _ => {}
            }
        }
    }

    /// An argument as it has to be written here: its words where words are split, else its text.
    pub fn quoted(&self, text: &str, words: &[String]) -> Option<String> {
        if self.is_unclear || self.is_escaped {
            return None;
        }
        if self.in_comment {
            return Some(String::new());
        }
        Some(match self.open.last() {
            Some(Opened::Brace) => return None,
            Some(Opened::Single) => text.replace('\'', r"'\''"),
            Some(Opened::Double) => format!("\"{}\"", shell_quoted(text)),
            Some(Opened::Parenthesis) | None => {
                words.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ")
            }
        })
    }
}

/// The text as one word of a shell line.
pub(super) fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Reads a word with shell quoting: quotes group, a backslash escapes the next character (inside double
/// quotes only `"`, `\`, `$` and a backtick). Returns it with its length in the text; the error is the missing
/// closing quote.
pub(super) fn word(text: &str) -> Result<(String, usize), char> {
    let mut word = String::new();
    let mut quote = None;
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match (quote, character) {
            (None, c) if c.is_whitespace() => return Ok((word, at)),
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), c) if c == open => quote = None,
            (None, '\\') => word.extend(characters.next().map(|(_, c)| c).or(Some('\\'))),
            (Some('"'), '\\') => {
                let escaped = characters.next_if(|(_, c)| matches!(c, '"' | '\\' | '$' | '`'));
                word.push(escaped.map_or('\\', |(_, c)| c));
            }
            (_, c) => word.push(c),
        }
    }
    match quote {
        Some(open) => Err(open),
        None => Ok((word, text.len())),
    }
}

/// Splits text into words with shell quoting. An unclosed quote is an ordinary character.
pub(super) fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (word, length) = word(rest).unwrap_or_else(|_| {
            let length = rest.find(char::is_whitespace).unwrap_or(rest.len());
            (rest[..length].to_owned(), length)
        });
        rest = rest[length..].trim_start();
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row is the text before an argument, and the argument in it.
    #[test]
    fn an_argument_is_quoted_for_its_place() {
        let text = "7; rm 'x y'";
        let words = ["7;", "rm", "x y"].map(str::to_owned);
        for (before, wanted) in [
            ("echo ", Some("'7;' 'rm' 'x y'")),
            ("echo 'a' \"b\" ", Some("'7;' 'rm' 'x y'")),
            ("echo \"say ", Some(r#""'7; rm '\''x y'\'''""#)),
            ("echo 'say ", Some(r"7; rm '\''x y'\''")),
            ("echo \"$(git log ", Some("'7;' 'rm' 'x y'")),
            ("echo \"$(git log) ", Some(r#""'7; rm '\''x y'\'''""#)),
            ("echo it\\'s ", Some("'7;' 'rm' 'x y'")),
            ("# don't\necho ", Some("'7;' 'rm' 'x y'")),
            ("echo a#b ${X} ", Some("'7;' 'rm' 'x y'")),
            ("# see ", Some("")),
            ("echo ${X:-", None),
            ("cat <<END\n", None),
            ("echo $'", None),
            ("echo `ls ", None),
            ("case a in a) echo ", None),
            ("echo \\", None),
        ] {
            let mut position = ShellPosition::default();
            // The place is found in any pieces.
            before.chars().for_each(|c| position.pass(&c.to_string()));
            assert_eq!(position.quoted(text, &words).as_deref(), wanted, "{before}");
        }
    }

    #[test]
    fn words_split_as_in_a_shell() {
        assert_eq!(split_words(r#" a "b c" d\ e 'f"g' "#), ["a", "b c", "d e", "f\"g"]);
        assert_eq!(split_words("don't stop"), ["don't", "stop"]);
        assert_eq!(split_words(""), Vec::<String>::new());
    }
}
