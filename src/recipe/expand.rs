//! Expands the placeholders of other agents' commands. Pure.
//!
//! Rules of Claude Code for commands and skills, which are the same there (changelog, and documentation pages at
//! code.claude.com/docs/en):
//!
//! | rule | source |
//! | --- | --- |
//! | `$ARGUMENTS` is all typed text, `$ARGUMENTS[N]` its word N, from 0 | CHANGELOG 2.1.19, skills page |
//! | `$N` is a word of the typed text | CHANGELOG 2.1.19 (`$0`), 1.0.x (`$1`) |
//! | a placeholder without an argument is kept | CHANGELOG 2.1.210 |
//! | `$name` is the word at the position of the name in `arguments` | skills page |
//! | a backslash before a placeholder escapes it | skills page |
//! | ``!`command` `` runs at the start of a line or after white space only | skills page |
//! | a fenced block that opens with `` ```! `` runs as one script | skills page |
//! | `${CLAUDE_SKILL_DIR}`, `${CLAUDE_SESSION_ID}`, `${CLAUDE_PLUGIN_ROOT}` | 2.1.64, 2.1.9, plugins-reference |
//!
//! Since 2.1.19, `$0` is the first word. Older commands, and even Anthropic's own, count from `$1`. So `$N` counts
//! from 1, unless the text contains `$0` or `$ARGUMENTS[`, which exist only in the newer scheme.

use super::command::split_words;
use super::render::{Rendered, RenderedPrompt, ShellCall, ShellOutputs};
use super::shell_quotes::ShellPosition;
use super::template::SHELL_CALLS_MAX;

const ALL: &str = "$ARGUMENTS";
const FENCE: &str = "```!";
const LINE: &str = "!`";
/// Begins a call of Gemini, which ends at the matching brace.
const CALL: &str = "!{";

/// The values for the placeholders of a text.
#[derive(Clone, Copy, Default)]
pub(super) struct ExpandWith<'a> {
    /// The text typed after the command's name.
    pub free: &'a str,
    /// The names of its first words.
    pub names: &'a [String],
    /// Values of `${NAME}`.
    pub variables: &'a [(&'static str, String)],
    /// Whether arguments are quoted in shell lines.
    pub quotes: bool,
}

/// Replaces the output of a shell line in which arguments cannot be quoted.
const NOT_QUOTABLE: &str = "[not run: the arguments can't be quoted safely at their place in this command]";

/// Whether the text has a placeholder for arguments.
pub(super) fn takes_arguments(body: &str, names: &[String]) -> bool {
    body.match_indices('$').any(|(at, _)| {
        let rest = &body[at..];
        rest.starts_with(ALL) || digit(rest).is_some() || name_of(rest, names).is_some()
    })
}

/// Expands a Claude Code command. Also returns whether the body uses the free text.
pub(super) fn render_claude(body: &str, with: ExpandWith<'_>, outputs: &ShellOutputs) -> (Rendered, bool) {
    let mut expansion = Expansion::new(body, with, outputs);
    let mut rest = body;
    while let Some(at) = rest.find(['$', '!', '\\', '`']) {
        expansion.push(&rest[..at]);
        rest = &rest[at..];
        rest = if let Some((line, behind)) = expansion.shell(rest) {
            match expansion.with_arguments(line) {
                Some(line) => expansion.run(line),
                None => expansion.push(NOT_QUOTABLE),
            }
            behind
        } else {
            expansion.placeholder(rest)
        };
    }
    expansion.push(rest);
    expansion.finish()
}

/// Expands `{{args}}` and `!{command}`; arguments inside a command are shell-quoted. Also returns whether
/// the body uses the free text.
pub(super) fn render_gemini(body: &str, free: &str, outputs: &ShellOutputs) -> (Rendered, bool) {
    const ARGS: &str = "{{args}}";
    let mut expansion = Expansion::new(body, ExpandWith { free, ..ExpandWith::default() }, outputs);
    let mut rest = body;
    while let Some(at) = rest.find(['{', '!']) {
        expansion.push(&rest[..at]);
        rest = &rest[at..];
        if let Some(behind) = rest.strip_prefix(ARGS) {
            expansion.takes_input = true;
            expansion.push(free);
            rest = behind;
        } else if let Some((line, behind)) = rest.strip_prefix(CALL).and_then(balanced) {
            expansion.takes_input |= line.contains(ARGS);
            let mut pieces = line.split(ARGS);
            let mut position = ShellPosition::default();
            let first = pieces.next().unwrap_or_default();
            position.pass(first);
            let quoted = pieces.map(|piece| {
                let value = position.quoted(free, &[free.to_owned()])?;
                position.pass(piece);
                Some(value + piece)
            });
            match quoted.collect::<Option<String>>() {
                Some(quoted) => expansion.run(first.to_owned() + &quoted),
                None => expansion.push(NOT_QUOTABLE),
            }
            rest = behind;
        } else {
            expansion.push(&rest[..1]);
            rest = &rest[1..];
        }
    }
    expansion.push(rest);
    expansion.finish()
}

/// The shell calls in the body of a Claude Code command, as they are written. Where arguments decide whether a text is
/// one, it is included.
pub(super) fn claude_calls(body: &str) -> Vec<&str> {
    let scripts = body.match_indices(FENCE).filter_map(|(at, _)| script(&body[at..]));
    let lines = body.match_indices(LINE).filter_map(|(at, _)| line(&body[at..]));
    scripts.chain(lines).map(|(call, _)| call).collect()
}

/// The shell calls in the body of a Gemini command, as they are written.
pub(super) fn gemini_calls(body: &str) -> Vec<&str> {
    let calls = body.match_indices(CALL).filter_map(|(at, _)| balanced(&body[at + CALL.len()..]));
    calls.map(|(call, _)| call).collect()
}

/// The script of a fenced block, and the text after the block.
fn script(block: &str) -> Option<(&str, &str)> {
    let (_, script) = block.strip_prefix(FENCE)?.split_once('\n')?;
    let (end, _) = script
        .match_indices("```")
        .find(|(at, _)| script[..*at].rsplit('\n').next().is_none_or(|indent| indent.trim().is_empty()))?;
    Some((script[..end].trim_end(), &script[end + 3..])).filter(|(script, _)| !script.trim().is_empty())
}

/// The command between backticks, and the text after it.
fn line(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(LINE)?.split_once('`').filter(|(line, _)| !line.trim().is_empty())
}

/// Splits at the closing brace that matches an already consumed opening brace.
fn balanced(text: &str) -> Option<(&str, &str)> {
    let mut depth = 1_usize;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[..at], &text[at + 1..]));
        }
    }
    None
}

/// The digit of a `$N` that starts the text. `$10` is more likely a price than the tenth argument.
fn digit(text: &str) -> Option<usize> {
    let [b'$', digit @ b'0'..=b'9', rest @ ..] = text.as_bytes() else { return None };
    (!rest.first().is_some_and(u8::is_ascii_digit)).then(|| usize::from(digit - b'0'))
}

/// The index of a `$ARGUMENTS[N]` that starts the text, and its length.
fn index(text: &str) -> Option<(usize, usize)> {
    let inside = text.strip_prefix(ALL)?.strip_prefix('[')?;
    let (number, _) = inside.split_once(']')?;
    Some((number.parse().ok()?, ALL.len() + number.len() + 2))
}

/// The position of the declared name whose `$name` starts the text.
fn name_of(text: &str, names: &[String]) -> Option<usize> {
    let word = text.strip_prefix('$')?;
    let end = word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len());
    // A declared name may contain a dash, which would otherwise end the name.
    let is_whole = |name: &String| {
        let behind = word.strip_prefix(name.as_str()).map(|behind| behind.chars().next());
        behind.is_some_and(|next| next.is_none_or(|c| !c.is_alphanumeric() && c != '_'))
    };
    let exact = names.iter().position(|name| name == &word[..end]);
    names.iter().position(|name| name.contains('-') && is_whole(name)).or(exact)
}

struct Expansion<'a> {
    text: String,
    with: ExpandWith<'a>,
    words: Vec<String>,
    /// The number that `$N` uses for the first word: 0 or 1.
    first: usize,
    outputs: &'a ShellOutputs,
    needs: Vec<ShellCall>,
    takes_input: bool,
    warnings: Vec<String>,
}

impl<'a> Expansion<'a> {
    fn new(body: &str, with: ExpandWith<'a>, outputs: &'a ShellOutputs) -> Expansion<'a> {
        let counts_from_zero = body
            .match_indices('$')
            .any(|(at, _)| digit(&body[at..]) == Some(0) || index(&body[at..]).is_some());
        Expansion {
            text: String::new(),
            with,
            words: split_words(with.free),
            first: usize::from(!counts_from_zero),
            outputs,
            needs: Vec::new(),
            takes_input: false,
            warnings: Vec::new(),
        }
    }

    fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The shell command at the start of the text, and the text after it.
    fn shell<'t>(&self, rest: &'t str) -> Option<(&'t str, &'t str)> {
        let is_line_start = self.text.is_empty() || self.text.ends_with('\n');
        if rest.starts_with(FENCE) {
            let indent = self.text.rsplit('\n').next().unwrap_or_default();
            return script(rest).filter(|_| is_line_start || indent.trim().is_empty());
        }
        line(rest).filter(|_| is_line_start || self.text.ends_with(char::is_whitespace))
    }

    /// Expands the placeholder at the start of the text, or keeps its first character. Returns the remaining text.
    fn placeholder<'t>(&mut self, rest: &'t str) -> &'t str {
        if let Some(escaped) = rest.strip_prefix('\\').filter(|text| self.value(text).is_some()) {
            let length = self.value(escaped).map_or(1, |(length, _)| length);
            self.push(&escaped[..length]);
            return &escaped[length..];
        }
        match self.value(rest) {
            Some((length, PlaceholderValue::Input(text))) => {
                self.takes_input = true;
                self.push(&text);
                &rest[length..]
            }
            Some((length, PlaceholderValue::Variable(text))) => {
                self.push(&text);
                &rest[length..]
            }
            Some((length, PlaceholderValue::Nothing)) => {
                self.push(&rest[..length]);
                &rest[length..]
            }
            None => {
                let length = rest.chars().next().map_or(0, char::len_utf8);
                self.push(&rest[..length]);
                &rest[length..]
            }
        }
    }

    /// The placeholder at the start of the text: its length and its value.
    fn value(&self, text: &str) -> Option<(usize, PlaceholderValue)> {
        let word = |index: Option<usize>| match index.and_then(|index| self.words.get(index)) {
            Some(word) => PlaceholderValue::Input(word.clone()),
            None => PlaceholderValue::Nothing,
        };
        if let Some((at, length)) = index(text) {
            return Some((length, word(Some(at))));
        }
        if text.starts_with(ALL) {
            return Some((ALL.len(), PlaceholderValue::Input(self.with.free.to_owned())));
        }
        if let Some(digit) = digit(text) {
            return Some((2, word(digit.checked_sub(self.first))));
        }
        if let Some(at) = name_of(text, self.with.names) {
            return Some((1 + self.with.names[at].len(), word(Some(at))));
        }
        let variable = text.strip_prefix("${").and_then(|text| text.split_once('}'))?.0;
        let (_, value) = self.with.variables.iter().find(|(name, _)| *name == variable)?;
        Some((variable.len() + 3, PlaceholderValue::Variable(value.clone())))
    }

    /// Expands the placeholders of a shell line; `None` if an argument has to be quoted and can't be.
    fn with_arguments(&mut self, line: &str) -> Option<String> {
        let outer = std::mem::take(&mut self.text);
        let mut position = ShellPosition::default();
        let (mut rest, mut is_possible) = (line, true);
        while let Some(at) = rest.find(['$', '\\']) {
            self.push(&rest[..at]);
            position.pass(&rest[..at]);
            rest = &rest[at..];
            match self.value(rest) {
                Some((length, PlaceholderValue::Input(text))) if self.with.quotes => {
                    self.takes_input = true;
                    let words = if rest.starts_with(ALL) && index(rest).is_none() {
                        &self.words[..]
                    } else {
                        std::slice::from_ref(&text)
                    };
                    let quoted = position.quoted(&text, words);
                    is_possible &= quoted.is_some();
                    self.push(&quoted.unwrap_or_default());
                    rest = &rest[length..];
                }
                _ => {
                    let behind = self.placeholder(rest);
                    position.pass(&rest[..rest.len() - behind.len()]);
                    rest = behind;
                }
            }
        }
        self.push(rest);
        let line = std::mem::replace(&mut self.text, outer);
        is_possible.then_some(line)
    }

    fn run(&mut self, line: String) {
        let call = ShellCall::Line(line);
        if let Some(output) = self.outputs.get(&call) {
            self.text.push_str(output.trim_end_matches(['\n', '\r']));
        } else if self.outputs.len() + self.needs.len() >= SHELL_CALLS_MAX {
            self.warnings.push(format!("only the first {SHELL_CALLS_MAX} commands were run"));
        } else if !self.needs.contains(&call) {
            self.needs.push(call);
        }
    }

    fn finish(mut self) -> (Rendered, bool) {
        self.warnings.dedup();
        let prompt = RenderedPrompt { text: self.text, warnings: self.warnings };
        let rendered =
            if self.needs.is_empty() { Rendered::Done(prompt) } else { Rendered::Needs(self.needs) };
        (rendered, self.takes_input)
    }
}

/// The value of a placeholder.
enum PlaceholderValue {
    /// A part of the typed text.
    Input(String),
    Variable(String),
    /// No argument was typed for it.
    Nothing,
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
