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

use std::collections::BTreeMap;

use super::command::split_words;
use super::render::{Rendered, RenderedPrompt, ShellCall, ShellOutputs};
use super::shell_quotes::ShellPosition;
use super::template::{OUTPUT_BYTES_MAX, SHELL_CALLS_MAX};

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

/// Expands a Claude Code command. Also returns whether the body uses the free text. Fails if the text becomes too long.
pub(super) fn render_claude(
    body: &str,
    with: ExpandWith<'_>,
    outputs: &ShellOutputs,
) -> Result<(Rendered, bool), String> {
    let mut expansion = Expansion::new(body, with, outputs);
    let scripts = scripts(body);
    let mut rest = body;
    while let Some(at) = rest.find(['$', '!', '\\', '`']).filter(|_| !expansion.is_too_long) {
        expansion.push(&rest[..at]);
        rest = &rest[at..];
        let script = scripts.get(&(body.len() - rest.len())).copied();
        rest = if let Some((line, behind)) = expansion.shell(rest, script) {
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
/// the body uses the free text. Fails if the text becomes too long.
pub(super) fn render_gemini(
    body: &str,
    free: &str,
    outputs: &ShellOutputs,
) -> Result<(Rendered, bool), String> {
    const ARGS: &str = "{{args}}";
    let mut expansion = Expansion::new(body, ExpandWith { free, ..ExpandWith::default() }, outputs);
    let braces = braces(body);
    let mut rest = body;
    while let Some(at) = rest.find(['{', '!']).filter(|_| !expansion.is_too_long) {
        expansion.push(&rest[..at]);
        rest = &rest[at..];
        if let Some(behind) = rest.strip_prefix(ARGS) {
            expansion.takes_input = true;
            expansion.push(free);
            rest = behind;
        } else if let Some((line, behind)) = gemini_call(body, body.len() - rest.len(), &braces) {
            expansion.takes_input |= line.contains(ARGS);
            let mut pieces = line.split(ARGS);
            let mut position = ShellPosition::default();
            let first = pieces.next().unwrap_or_default();
            position.pass(first);
            let quoted = pieces.try_fold(first.to_owned(), |line, piece| {
                let value = position.quoted(free, &[free.to_owned()])?;
                position.pass(piece);
                expansion.is_too_long |= line.len() > OUTPUT_BYTES_MAX;
                Some(line + &value + piece).filter(|_| !expansion.is_too_long)
            });
            match quoted {
                Some(line) => expansion.run(line),
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
pub(super) fn claude_calls<'b>(body: &'b str, names: &[String]) -> Vec<&'b str> {
    // Placeholders, which may become white space, end with a letter, a digit, a bracket or like their name.
    let ends_placeholder =
        |c: char| c.is_alphanumeric() || matches!(c, ']' | '}') || names.iter().any(|name| name.ends_with(c));
    let may_begin = |at: usize| {
        let before = body[..at].chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || ends_placeholder(c))
    };
    let lines = body.match_indices(LINE).filter(|(at, _)| may_begin(*at));
    let lines = lines.filter_map(|(at, _)| line(&body[at..]));
    scripts(body).into_values().chain(lines).map(|(call, _)| call).collect()
}

/// The shell calls in the body of a Gemini command, as they are written.
pub(super) fn gemini_calls(body: &str) -> Vec<&str> {
    let (braces, mut next) = (braces(body), 0);
    let mut calls = Vec::new();
    for (at, _) in body.match_indices(CALL) {
        // A call inside of another one is a part of it.
        if at >= next
            && let Some((call, behind)) = gemini_call(body, at, &braces)
        {
            calls.push(call);
            next = body.len() - behind.len();
        }
    }
    calls
}

/// The scripts of fenced blocks by the offsets of their fences, each with the text after its block. Where arguments
/// decide whether a fence opens a block, blocks overlap; if they have more than `OUTPUT_BYTES_MAX` bytes together, the
/// later ones are not scripts. Takes linear time, because a repository may have written the text.
fn scripts(body: &str) -> BTreeMap<usize, (&str, &str)> {
    let lines: Vec<usize> = body.match_indices('\n').map(|(at, _)| at + 1).collect();
    // The fences at the start of a line, each with the end of the text before it.
    let closing = lines.iter().filter_map(|line| {
        let rest = &body[*line..];
        let indent = rest.find(|c: char| c == '\n' || !c.is_whitespace())?;
        let fence = line + indent;
        rest[indent..].starts_with("```").then(|| (fence, body[..fence].trim_end().len()))
    });
    let closing: Vec<(usize, usize)> = closing.collect();
    let mut scripts = BTreeMap::new();
    let mut bytes = 0;
    for (at, _) in body.match_indices(FENCE) {
        let Some(&begin) = lines.get(lines.partition_point(|line| *line <= at)) else { break };
        let Some(&(fence, end)) = closing.get(closing.partition_point(|(fence, _)| *fence < begin)) else {
            break;
        };
        bytes += end.saturating_sub(begin);
        if bytes > OUTPUT_BYTES_MAX {
            break;
        }
        if end > begin {
            scripts.insert(at, (&body[begin..end], &body[fence + "```".len()..]));
        }
    }
    scripts
}

/// The command between backticks, and the text after it.
fn line(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(LINE)?.split_once('`').filter(|(line, _)| !line.trim().is_empty())
}

/// The offsets of all opening braces that are closed, with those of the closing ones.
fn braces(body: &str) -> BTreeMap<usize, usize> {
    let (mut open, mut closed) = (Vec::new(), BTreeMap::new());
    for (at, brace) in body.match_indices(['{', '}']) {
        if brace == "{" {
            open.push(at);
        } else if let Some(begin) = open.pop() {
            closed.insert(begin, at);
        }
    }
    closed
}

/// The call that begins at an offset, and the text after it.
fn gemini_call<'a>(body: &'a str, at: usize, braces: &BTreeMap<usize, usize>) -> Option<(&'a str, &'a str)> {
    body[at..].strip_prefix(CALL)?;
    let begin = at + CALL.len();
    let end = *braces.get(&(begin - 1))?;
    Some((&body[begin..end], &body[end + 1..]))
}

/// The digit of a `$N` that starts the text. `$10` is more likely a price than the tenth argument.
fn digit(text: &str) -> Option<usize> {
    let [b'$', digit @ b'0'..=b'9', rest @ ..] = text.as_bytes() else { return None };
    (!rest.first().is_some_and(u8::is_ascii_digit)).then(|| usize::from(digit - b'0'))
}

/// The index of a `$ARGUMENTS[N]` that starts the text, and its length.
fn index(text: &str) -> Option<(usize, usize)> {
    let inside = text.strip_prefix(ALL)?.strip_prefix('[')?;
    let end = inside.find(|c: char| !c.is_ascii_digit())?;
    let number = inside[end..].starts_with(']').then(|| &inside[..end])?;
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
    /// Whether something was left out because the text would have more than `OUTPUT_BYTES_MAX` bytes.
    is_too_long: bool,
    /// The start of the last line of the text.
    line: usize,
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
            is_too_long: false,
            line: 0,
            warnings: Vec::new(),
        }
    }

    fn push(&mut self, text: &str) {
        if self.text.len() + text.len() > OUTPUT_BYTES_MAX {
            self.is_too_long = true;
            return;
        }
        if let Some(end) = text.rfind('\n') {
            self.line = self.text.len() + end + 1;
        }
        self.text.push_str(text);
    }

    /// The shell command at the start of the text, and the text after it. `script` is the one that begins there.
    fn shell<'t>(&self, rest: &'t str, script: Option<(&'t str, &'t str)>) -> Option<(&'t str, &'t str)> {
        if rest.starts_with(FENCE) {
            return script.filter(|_| self.text[self.line..].trim().is_empty());
        }
        let is_line_start = self.line == self.text.len();
        line(rest).filter(|_| is_line_start || self.text.ends_with(char::is_whitespace))
    }

    /// Expands the placeholder at the start of the text, or keeps its first character. Returns the remaining text.
    fn placeholder<'t>(&mut self, rest: &'t str) -> &'t str {
        if let Some(escaped) = rest.strip_prefix('\\')
            && let Some((length, _)) = self.value(escaped)
        {
            self.push(&escaped[..length]);
            return &escaped[length..];
        }
        let (length, value) = self
            .value(rest)
            .unwrap_or_else(|| (rest.chars().next().map_or(0, char::len_utf8), PlaceholderValue::Nothing));
        self.takes_input |= matches!(value, PlaceholderValue::Input(_));
        match &value {
            PlaceholderValue::Input(text) | PlaceholderValue::Variable(text) => self.push(text),
            PlaceholderValue::Nothing => self.push(&rest[..length]),
        }
        &rest[length..]
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
        let inside = text.strip_prefix("${")?;
        let is_it = |name: &str| inside.strip_prefix(name).is_some_and(|behind| behind.starts_with('}'));
        let (name, value) = self.with.variables.iter().find(|(name, _)| is_it(name))?;
        Some((name.len() + 3, PlaceholderValue::Variable(value.clone())))
    }

    /// Expands the placeholders of a shell line; `None` if an argument has to be quoted and can't be.
    fn with_arguments(&mut self, line: &str) -> Option<String> {
        let outer = (std::mem::take(&mut self.text), std::mem::take(&mut self.line));
        let mut position = ShellPosition::default();
        let (mut rest, mut is_possible) = (line, true);
        while let Some(at) = rest.find(['$', '\\']).filter(|_| !self.is_too_long) {
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
        let line = std::mem::replace(&mut self.text, outer.0);
        self.line = outer.1;
        is_possible.then_some(line)
    }

    fn run(&mut self, line: String) {
        let call = ShellCall::Line(line);
        if let Some(output) = self.outputs.get(&call) {
            self.push(output.trim_end_matches(['\n', '\r']));
        } else if self.outputs.len() + self.needs.len() >= SHELL_CALLS_MAX {
            self.warnings.push(format!("only the first {SHELL_CALLS_MAX} commands were run"));
        } else if !self.needs.contains(&call) {
            self.needs.push(call);
        }
    }

    fn finish(mut self) -> Result<(Rendered, bool), String> {
        if self.is_too_long {
            return Err(format!("the rendered text has more than {OUTPUT_BYTES_MAX} bytes"));
        }
        self.warnings.dedup();
        let prompt = RenderedPrompt { text: self.text, warnings: self.warnings };
        let rendered =
            if self.needs.is_empty() { Rendered::Done(prompt) } else { Rendered::Needs(self.needs) };
        Ok((rendered, self.takes_input))
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
