//! The colors of code: comments, strings, numbers and keywords of common languages, line by line. Pure.
//!
//! It is no grammar. A library with grammars (syntect) would add 2.2 MB to the program, 2.8 MB with TypeScript and TOML,
//! take 17 MB of memory at the first block of code, and color 0.1 MB a second, where a resize colors everything again.

use super::Color;

/// Colors the lines of one piece of code.
pub struct CodeColors {
    language: &'static CodeLanguage,
    /// The end of a comment or a string that goes on, and its color.
    open: Option<(String, CodeColor)>,
}

type CodeColor = &'static [Color];

const PLAIN: CodeColor = &[];
const COMMENT: CodeColor = &[Color::Dim];
const STRING: CodeColor = &[Color::Green];
const VALUE: CodeColor = &[Color::Yellow];
const KEYWORD: CodeColor = &[Color::Magenta];

struct CodeLanguage {
    /// As in a fence, or as the ending of a file.
    names: &'static str,
    line_comment: &'static [&'static str],
    block_comment: Option<(&'static str, &'static str)>,
    /// The delimiters of strings that may have several lines, and of those that have one.
    long_strings: &'static [&'static str],
    strings: &'static [&'static str],
    keywords: &'static str,
}

const C_COMMENT: Option<(&str, &str)> = Some(("/*", "*/"));

/// Words that are values in several languages.
const VALUES: &str = "true false null nil None True False undefined self this NULL nullptr";

const LANGUAGES: &[CodeLanguage] = &[
    CodeLanguage {
        names: "rust rs",
        line_comment: &["//"],
        block_comment: C_COMMENT,
        long_strings: &["\""],
        strings: &[],
        keywords: "as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod \
                   move mut pub ref return static struct super trait type union unsafe use where while yield",
    },
    CodeLanguage {
        names: "python py pyi",
        line_comment: &["#"],
        block_comment: None,
        long_strings: &["\"\"\"", "'''"],
        strings: &["\"", "'"],
        keywords: "and as assert async await break case class continue def del elif else except finally for from global \
                   if import in is lambda match nonlocal not or pass raise return try while with yield",
    },
    CodeLanguage {
        names: "javascript js jsx mjs cjs typescript ts tsx mts vue svelte json jsonc json5 jsonl css scss less",
        line_comment: &["//"],
        block_comment: C_COMMENT,
        long_strings: &["`"],
        strings: &["\"", "'"],
        keywords: "as async await break case catch class const continue default delete do else enum export extends \
                   finally for from function get if implements import in instanceof interface keyof let namespace \
                   new of private protected public readonly return satisfies set static super switch throw try type \
                   typeof var void while yield",
    },
    CodeLanguage {
        names: "go golang c h cpp c++ cc hpp cxx objc m java kotlin kt kts scala swift csharp cs dart php zig groovy proto",
        line_comment: &["//"],
        block_comment: C_COMMENT,
        long_strings: &["\"\"\"", "`"],
        strings: &["\"", "'"],
        keywords: "abstract as async auto await bool break case catch chan char class const constexpr continue data \
                   def default defer do double else enum export extends extern fallthrough final finally float fn for \
                   foreach fun func function go goto if implements import in inline int interface is let long map \
                   namespace new object override package private protected public range return select short signed \
                   sizeof static struct super switch template throw throws trait try type typedef union unsigned \
                   using val var virtual void when where while yield",
    },
    CodeLanguage {
        names: "sh bash zsh fish shell console dockerfile makefile make mk ruby rb elixir ex exs perl pl r toml ini conf \
                yaml yml nix hcl tf cmake",
        line_comment: &["#"],
        block_comment: None,
        long_strings: &["\"\"\""],
        strings: &["\"", "'"],
        keywords: "alias and begin case class continue def do done elif else elsif end ensure esac export fi for \
                   function if in let local module my next not or require return select set shift source sub then \
                   trap unless unset until when while yield CMD COPY ENTRYPOINT ENV EXPOSE FROM RUN WORKDIR",
    },
    CodeLanguage {
        names: "sql psql mysql sqlite lua haskell hs elm",
        line_comment: &["--"],
        block_comment: C_COMMENT,
        long_strings: &[],
        strings: &["\"", "'"],
        keywords: "all alter and as asc begin between by case commit create default delete desc distinct do drop \
                   else elseif end exists for foreign from function group having if in index inner insert into is \
                   join key left like limit local not on or order outer primary references returning right rollback \
                   select set table then union unique until update using values view when where while with",
    },
];

impl CodeColors {
    /// The colors of a language, by its name in a fence or the ending of a file.
    pub fn of(name: &str) -> Option<CodeColors> {
        let name = name.to_lowercase();
        let language =
            LANGUAGES.iter().find(|language| language.names.split(' ').any(|known| known == name))?;
        Some(CodeColors { language, open: None })
    }

    /// The parts of the next line with their colors. Together they are the line.
    pub fn line<'l>(&mut self, line: &'l str) -> Vec<(&'l str, CodeColor)> {
        let mut parts: Vec<(usize, usize, CodeColor)> = Vec::new();
        let mut at = 0;
        while at < line.len() {
            let (length, color) = self.token(&line[..at], &line[at..]);
            match parts.last_mut().filter(|(.., last)| *last == color) {
                Some((_, end, _)) => *end += length,
                None => parts.push((at, at + length, color)),
            }
            at += length;
        }
        parts.into_iter().map(|(start, end, color)| (&line[start..end], color)).collect()
    }

    /// The length of what the rest of a line begins with, and its color.
    fn token(&mut self, before: &str, rest: &str) -> (usize, CodeColor) {
        if let Some((end, color)) = self.open.take() {
            return self.until(0, rest, end, color);
        }
        let language = self.language;
        let is_after_word = before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '{'));
        let begins = |mark: &&&str| rest.starts_with(**mark);
        if !is_after_word && language.line_comment.iter().any(|mark| rest.starts_with(mark)) {
            return (rest.len(), COMMENT);
        }
        if let Some((_, end)) = language.block_comment.filter(|(mark, _)| rest.starts_with(mark)) {
            return self.until(2, rest, end.to_owned(), COMMENT);
        }
        if let Some(mark) = language.long_strings.iter().find(begins) {
            let hashes = if language.names.starts_with("rust") { hashes_of_raw_string(before) } else { 0 };
            return self.until(mark.len(), rest, format!("{mark}{}", "#".repeat(hashes)), STRING);
        }
        if let Some(mark) = language.strings.iter().find(begins) {
            let length = end_of(&rest[1..], mark, true).map_or(rest.len(), |end| end + 1);
            return (length, STRING);
        }
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        match rest.chars().next() {
            // The quote alone begins the name of a lifetime.
            Some('\'') => character(rest).map_or((1, PLAIN), |length| (length, STRING)),
            Some('0'..='9') => {
                let fraction = rest[word.len()..].strip_prefix('.').unwrap_or_default();
                let digits = fraction.len() - fraction.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                (word.len() + if digits > 0 { digits + 1 } else { 0 }, VALUE)
            }
            Some(_) if !word.is_empty() => {
                let is_sql = language.names.starts_with("sql");
                let is_in = |words: &str| {
                    words.split(' ').any(|known| known == word || is_sql && known.eq_ignore_ascii_case(word))
                };
                let color = match () {
                    () if is_in(VALUES) => VALUE,
                    () if is_in(language.keywords) => KEYWORD,
                    () => PLAIN,
                };
                (word.len(), color)
            }
            next => (next.map_or(0, char::len_utf8), PLAIN),
        }
    }

    /// The length of a comment or a string, which may go on in the next line; `skipped` are the bytes of its beginning.
    fn until(&mut self, skipped: usize, rest: &str, end: String, color: CodeColor) -> (usize, CodeColor) {
        let has_escapes = color == STRING && !end.ends_with(['#', '`']);
        match end_of(&rest[skipped..], &end, has_escapes) {
            Some(length) => (skipped + length, color),
            None => {
                self.open = Some((end, color));
                (rest.len(), color)
            }
        }
    }
}

/// The position after an end mark, before which a backslash may stand for another character.
fn end_of(text: &str, end: &str, has_escapes: bool) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if std::mem::take(&mut is_escaped) => {}
            '\\' if has_escapes => is_escaped = true,
            _ if text[at..].starts_with(end) => return Some(at + end.len()),
            _ => {}
        }
    }
    None
}

/// The hashes before a quote that begins a raw string of Rust.
fn hashes_of_raw_string(before: &str) -> usize {
    let start = before.trim_end_matches('#');
    if start.ends_with('r') { before.len() - start.len() } else { 0 }
}

/// The length of a character in quotes.
fn character(rest: &str) -> Option<usize> {
    let inner = &rest[1..];
    let first = inner.chars().next();
    let end = match first {
        Some('\\') => end_of(inner, "'", true),
        Some(c) => inner[c.len_utf8()..].starts_with('\'').then(|| c.len_utf8() + 1),
        None => None,
    };
    end.map(|end| end + 1)
}

/// The color of a line of a patch.
pub fn of_patch_line(line: &str) -> CodeColor {
    match line.as_bytes().first() {
        Some(b'+') => &[Color::Green],
        Some(b'-') => &[Color::Red],
        Some(b'@') => &[Color::Dim],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines with a letter for each color around the parts that have one.
    fn colored(language: &str, code: &str) -> Vec<String> {
        let mut colors = CodeColors::of(language).expect("it is known");
        let part = |(text, color): &(&str, CodeColor)| match color {
            [Color::Dim] => format!("c<{text}>"),
            [Color::Green] => format!("s<{text}>"),
            [Color::Yellow] => format!("v<{text}>"),
            [Color::Magenta] => format!("k<{text}>"),
            _ => (*text).to_owned(),
        };
        let line = |line| {
            let parts = colors.line(line);
            assert_eq!(parts.iter().map(|(text, _)| *text).collect::<String>(), line);
            parts.iter().map(part).collect()
        };
        code.lines().map(line).collect()
    }

    #[test]
    fn code_has_the_colors_of_its_language() {
        for (language, code, expected) in [
            (
                "rust",
                "pub fn f<'a>(x: &'a str) -> char { '\\'' }",
                "k<pub> k<fn> f<'a>(x: &'a str) -> char { s<'\\''> }",
            ),
            ("rs", "let x = 1_000.5; // it's", "k<let> x = v<1_000.5>; c<// it's>"),
            ("rs", "f(r#\"a \"b\" c\"#, 0..2)", "f(r#s<\"a \"b\" c\"#>, v<0>..v<2>)"),
            (
                "python",
                "def f(x=None): return f\"{x}\\\"\"  # it's",
                "k<def> f(x=v<None>): k<return> fs<\"{x}\\\"\">  c<# it's>",
            ),
            (
                "ts",
                "const a = `b` + 'c'; /* d */ new E()",
                "k<const> a = s<`b`> + s<'c'>; c</* d */> k<new> E()",
            ),
            (
                "sh",
                "if [ \"$#\" = 1 ]; then echo ${#a}; fi # end",
                "k<if> [ s<\"$#\"> = v<1> ]; k<then> echo ${#a}; k<fi> c<# end>",
            ),
            ("JSON", "{ \"a\": [1.5, true] }", "{ s<\"a\">: [v<1.5>, v<true>] }"),
            ("sql", "SELECT 'a' FROM t -- all", "k<SELECT> s<'a'> k<FROM> t c<-- all>"),
        ] {
            assert_eq!(colored(language, code), [expected], "{code}");
        }
    }

    #[test]
    fn comments_and_strings_may_have_several_lines() {
        assert_eq!(colored("c", "/* a\n b */ int c;"), ["c</* a>", "c< b */> k<int> c;"]);
        assert_eq!(
            colored("py", "\"\"\"a\n\nb\"\"\" + 'c\nd"),
            ["s<\"\"\"a>", "", "s<b\"\"\"> + s<'c>", "d"]
        );
        assert_eq!(colored("rs", "r#\"a\n\"\n\"#;"), ["r#s<\"a>", "s<\">", "s<\"#>;"]);
    }

    #[test]
    fn other_languages_have_no_colors() {
        assert!(["", "text", "brainfuck"].iter().all(|name| CodeColors::of(name).is_none()));
    }
}
