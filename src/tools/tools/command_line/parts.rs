//! Finds the commands that a shell line may run and the files that it may name, for ask and deny rules. Pure.
//! When the line is ambiguous, it reports too much rather than too little.
//!
//! The counterpart of [`refused`](super::refused), which accepts a line only if all of it is certain; this
//! module finds every part that may be meant, including substitutions, functions, and commands within the
//! words of other commands (`nested`).

use std::collections::HashSet;

use epitome_shell::word::{LITERAL, UNKNOWN, expanded, in_command, literal};
use epitome_shell::{children, parse};
use tree_sitter::Node;

pub use super::file_name::FileNameWord;
use super::file_name::{WILDCARDS, may_expand_to};
use super::nested::{self, Nested};
use super::{LINE_BYTES_MAX, is_treacherous};

/// Options of `git` that are followed by a value.
pub(crate) const WITH_VALUE: [&str; 7] =
    ["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"];

/// Maximum nesting of lines within lines (`sh -c 'sh -c …'`).
const DEPTH_MAX: u32 = 4;
/// Maximum number of spellings kept of one line's commands; an ordinary line has about ten.
const SPELLINGS_MAX: usize = 4_000;
/// Maximum number of leading words of a command that are taken for options and their values.
const OPTIONS_MAX: usize = 24;

/// The commands and words found in a line.
#[derive(Debug, Default)]
pub struct CommandParts {
    /// The simple commands, their words joined by spaces, each in every spelling that a rule may use.
    pub commands: Vec<String>,
    /// All words in any position, as globs of their possible expansions.
    words: Vec<String>,
    /// The words of the commands that are not completely known.
    open: Vec<Vec<String>>,
    /// Whether it is certain that nothing else runs.
    pub is_clear: bool,
    /// Here-documents and here-strings, in which a shell may read its commands.
    inputs: Vec<String>,
    /// Whether a shell reads commands from its standard input.
    reads_input: bool,
}

impl CommandParts {
    pub fn parse(line: &str) -> CommandParts {
        let mut parts = CommandParts { is_clear: true, ..CommandParts::default() };
        parts.take(line, DEPTH_MAX);
        if parts.reads_input {
            for input in std::mem::take(&mut parts.inputs) {
                parts.take(&input, DEPTH_MAX - 1);
            }
        }
        // Settings of Git in the environment may contain aliases, those of Bash commands.
        if parts.words.iter().map(String::as_str).chain([line]).any(nested::sets_variables) {
            parts.is_clear = false;
        }
        parts
    }

    /// The complete words as file names; of `--option=value`, only the value.
    pub fn arguments(&self) -> impl Iterator<Item = FileNameWord> {
        self.words.iter().map(|word| {
            let value = word.strip_prefix("--").and_then(|option| Some(option.split_once('=')?.1));
            FileNameWord::parse(value.unwrap_or(word))
        })
    }

    /// Parts of words that may be file names: the complete word, and the pieces between its separators. In the
    /// returned globs, `*` matches any text.
    pub fn names(&self) -> impl Iterator<Item = FileNameWord> {
        self.words.iter().flat_map(|word| {
            let whole = std::iter::once(word.as_str());
            // `--file=.env`, `@.env`, `HEAD:.env`, `open('.env')`.
            let pieces = word.split(|c: char| !(c.is_alphanumeric() || "._-~/*?[]{}+\u{1}\u{2}".contains(c)));
            // `-f.env`
            let behind = word.strip_prefix('-').and_then(|word| word.get(1..));
            whole
                .chain(pieces)
                .chain(behind)
                .filter(|piece| !piece.is_empty())
                .map(FileNameWord::parse)
                .collect::<Vec<_>>()
        })
    }

    /// Whether a command may begin with the words of this pattern, up to its first wildcard, because one of its own
    /// words isn't known: `X=push; git $X`. A program that isn't known makes the line unclear.
    pub fn may_hide(&self, pattern: &str) -> bool {
        let plain = pattern.split('*').next().unwrap_or_default();
        let mut wanted = plain.split_whitespace().filter(|word| !word.starts_with('-'));
        let Some(program) = wanted.next() else { return false };
        let wanted: Vec<&str> = wanted.collect();
        self.open.iter().any(|words| match words.split_first() {
            Some((first, words)) => base(first) == program && may_be(words, &wanted, program == "git"),
            None => false,
        })
    }

    fn take(&mut self, line: &str, depth: u32) {
        if line.len() > LINE_BYTES_MAX || line.chars().any(is_treacherous) || depth == 0 {
            self.is_clear = false;
        }
        let line = &line[..line.floor_char_boundary(LINE_BYTES_MAX)];
        let tree = parse(line);
        if tree.as_ref().is_none_or(|tree| tree.root_node().has_error()) {
            self.is_clear = false;
            self.take_roughly(line);
        }
        let Some(tree) = tree else { return };
        let mut pending = vec![tree.root_node()];
        while let Some(node) = pending.pop() {
            match node.kind() {
                "command" => self.take_command(node, line, depth),
                "declaration_command" | "unset_command" => {
                    let words = children(node).into_iter().map(|child| in_command(child, line)).collect();
                    self.wrapped(words, depth);
                    self.take_assignments(node, line, depth);
                }
                "heredoc_body" => self.inputs.push(line[node.byte_range()].to_owned()),
                "herestring_redirect" => {
                    self.inputs.extend(node.named_child(0).map(|word| plain(&literal(word, line))));
                }
                "test_command"
                    if nested::indexes_by_command(line[node.byte_range()].trim_start_matches('[')) =>
                {
                    self.is_clear = false;
                }
                // Bash evaluates values later: in arithmetic, `[[ ]]`, `PS4` and `${x@P}`.
                "variable_assignment" if holds_code(node, line) => self.is_clear = false,
                // Arithmetic evaluates the values of variables.
                "arithmetic_expansion" | "subscript" if line[node.byte_range()].contains('[') => {
                    self.is_clear = false;
                }
                "expansion" if line[node.byte_range()].contains(['@', '!']) => self.is_clear = false,
                "word" | "string" | "raw_string" | "ansi_c_string" | "concatenation"
                | "translated_string" => {
                    let word = literal(node, line);
                    // What is only printed names no file.
                    if !(word.contains(UNKNOWN) && is_only_printed(node, line)) {
                        self.words.push(word);
                    }
                }
                "simple_expansion" | "expansion" | "command_substitution" | "process_substitution"
                    if node
                        .parent()
                        .is_some_and(|parent| ["command", "file_redirect"].contains(&parent.kind()))
                        && !is_only_printed(node, line) =>
                {
                    self.words.push(expanded(node, line));
                }
                _ => {}
            }
            pending.extend(children(node));
        }
    }

    /// Splits a line that can't be parsed wherever a command may begin.
    fn take_roughly(&mut self, line: &str) {
        for piece in line.split(['\n', ';', '&', '|', '(', ')', '{', '}', '`', '<', '>']) {
            let words: Vec<String> =
                piece.split_whitespace().map(|word| word.replace(['"', '\'', '\\'], "")).collect();
            self.words.extend(words.iter().cloned());
            self.push(words);
        }
    }

    fn take_command(&mut self, command: Node<'_>, line: &str, depth: u32) {
        let mut set = Vec::new();
        let mut variables = Vec::new();
        let mut words = Vec::new();
        for child in children(command) {
            match child.kind() {
                "variable_assignment" => {
                    let part = |field| child.child_by_field_name(field).map(|part| literal(part, line));
                    variables.extend(part("name").zip(part("value")));
                    set.push(line[child.byte_range()].to_owned());
                }
                "file_redirect" | "heredoc_redirect" | "herestring_redirect" => {
                    after_redirect(child, line, &mut words);
                }
                "command_name" => words.extend(child.named_child(0).map(|name| in_command(name, line))),
                _ => words.push(in_command(child, line)),
            }
        }
        after_redirects_around(command, line, &mut words);
        self.take_assignments(command, line, depth);
        if words.first().is_some_and(|program| base(program) == "git") {
            let settings = nested::git_settings(&variables);
            words.splice(1..1, settings.flat_map(|setting| ["-c".to_owned(), setting]));
        }
        if !set.is_empty() {
            let with: Vec<String> = set.into_iter().chain(words.iter().cloned()).collect();
            self.push_as_it_is(&with);
        }
        self.wrapped(words, depth);
    }

    /// Adds the commands in variables that a program may run: `PAGER='less -R' git log`, `GIT_EXTERNAL_DIFF=rm git diff`.
    fn take_assignments(&mut self, command: Node<'_>, line: &str, depth: u32) {
        for child in children(command).into_iter().filter(|child| child.kind() == "variable_assignment") {
            let value = child.child_by_field_name("value").map(|value| literal(value, line));
            if let Some(value) = value.filter(|value| value.contains(char::is_alphabetic)) {
                self.take_possible(&value, depth);
            }
        }
    }

    /// Adds the commands of a text that is usually, but not certainly, a command line.
    fn take_possible(&mut self, text: &str, depth: u32) {
        let is_clear = self.is_clear;
        if depth > 0 {
            self.take(&plain(text), depth - 1);
        }
        self.is_clear = is_clear;
    }

    /// Adds a command, and those that its arguments may run.
    fn wrapped(&mut self, words: Vec<String>, depth: u32) {
        let mut pending = vec![words];
        while let Some(words) = pending.pop() {
            let Some(program) = words.first() else { continue };
            if is_uncertain(program) {
                self.is_clear = false;
            }
            for nested in nested::of(&words) {
                match nested {
                    Nested::Line(line) if depth > 0 => self.take(&plain(&line), depth - 1),
                    Nested::Line(_) | Nested::Unclear => self.is_clear = false,
                    Nested::Possible(line) => self.take_possible(&line, depth),
                    Nested::Input => {
                        self.is_clear = false;
                        self.reads_input = true;
                    }
                    Nested::Command(words) => pending.push(words),
                    Nested::Suffix(words) => self.push(words),
                }
            }
            self.push(words);
        }
    }

    /// Stores a command in several spellings: with and without its program's directory, and with and without
    /// its leading options.
    fn push(&mut self, words: Vec<String>) {
        let Some(program) = words.first() else { return };
        self.push_as_it_is(&words);
        if words.iter().any(|word| word.contains(UNKNOWN) || word.contains(WILDCARDS))
            && self.open.len() < SPELLINGS_MAX
        {
            self.open.push(words.clone());
        }
        let mut plain = words.clone();
        plain[0] = base(program).to_owned();
        if plain != words {
            self.push_as_it_is(&plain);
        }
        // `git -C elsewhere push`: an option may be followed by a value.
        let mut at = 1;
        while at < plain.len().min(OPTIONS_MAX) && plain[at].starts_with('-') {
            for behind in [at + 1, at + 2] {
                if behind <= plain.len() {
                    let without: Vec<String> = plain[..1].iter().chain(&plain[behind..]).cloned().collect();
                    self.push_as_it_is(&without);
                }
            }
            let has_value = plain.get(at + 1).is_some_and(|next| !next.starts_with('-'))
                && plain.get(at + 2).is_some_and(|next| next.starts_with('-'));
            at += if has_value { 2 } else { 1 };
        }
    }

    fn push_as_it_is(&mut self, words: &[String]) {
        if self.commands.len() >= SPELLINGS_MAX {
            self.is_clear = false;
            return;
        }
        self.commands.push(words.join(" ").replace(LITERAL, "*"));
    }
}

/// Adds the words of a command that the grammar takes for targets of redirections: of `ls && env 2>&1 rm x`, it makes a
/// list that is redirected.
fn after_redirects_around(command: Node<'_>, line: &str, words: &mut Vec<String>) {
    let mut node = command;
    while let Some(parent) = node.parent() {
        match parent.kind() {
            "redirected_statement" if parent.child_by_field_name("body") == Some(node) => {
                children(parent).into_iter().for_each(|child| after_redirect(child, line, words));
            }
            "list" | "pipeline" | "negated_command" if children(parent).last() == Some(&node) => {}
            _ => return,
        }
        node = parent;
    }
}

/// Adds the words behind the target of one redirection.
fn after_redirect(redirect: Node<'_>, line: &str, words: &mut Vec<String>) {
    match redirect.kind() {
        "file_redirect" => {
            let parts = children(redirect);
            let has_target = !parts.iter().any(|part| ["<&-", ">&-"].contains(&part.kind()));
            let targets =
                parts.into_iter().filter(|part| part.is_named() && part.kind() != "file_descriptor");
            words.extend(targets.skip(usize::from(has_target)).map(|word| in_command(word, line)));
        }
        "heredoc_redirect" => {
            let mut cursor = redirect.walk();
            let arguments = redirect.children_by_field_name("argument", &mut cursor);
            words.extend(arguments.map(|word| in_command(word, line)));
            children(redirect).into_iter().for_each(|child| after_redirect(child, line, words));
        }
        _ => {}
    }
}

/// Whether a word is an argument of `echo` or `printf` that nothing else reads: neither the next command of a pipeline, nor a
/// function of this name.
fn is_only_printed(word: Node<'_>, line: &str) -> bool {
    let mut parents = std::iter::successors(word.parent(), |parent| parent.parent());
    let command = parents.find(|parent| !["concatenation", "string"].contains(&parent.kind()));
    let name = command
        .filter(|parent| parent.kind() == "command")
        .and_then(|command| command.child_by_field_name("name").map(|name| &line[name.byte_range()]));
    let is_passed_on = |parent: Node<'_>| ["pipeline", "function_definition"].contains(&parent.kind());
    matches!(name, Some("echo" | "printf")) && !parents.any(is_passed_on) && !line.contains("()")
}

/// Whether a value contains the text of an expansion, which is not expanded here.
fn holds_code(node: Node<'_>, line: &str) -> bool {
    match node.kind() {
        "raw_string" | "ansi_c_string" | "string" | "translated_string" | "word" => {
            literal(node, line).contains(['$', '`'])
        }
        // These are taken as commands.
        "command_substitution" | "process_substitution" => false,
        _ => children(node).into_iter().any(|child| holds_code(child, line)),
    }
}

/// Converts a word's text to a command line.
fn plain(word: &str) -> String {
    word.replace(UNKNOWN, "$_").replace(LITERAL, "*")
}

/// Whether a word in the place of a program may be another one after the shell has expanded it.
pub(super) fn is_uncertain(program: &str) -> bool {
    let is_test = matches!(program, "[" | "[[");
    let is_pattern = program.contains(WILDCARDS) || program.contains('(');
    program.contains(UNKNOWN) || is_pattern && !is_test || program.starts_with('~')
}

/// A program's name without its directory.
pub(super) fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Whether these words may begin with the wanted ones, because one that isn't known comes before the first that differs.
/// The word after an option may be its value, or not; only the options of Git are known.
fn may_be(words: &[String], wanted: &[&str], is_git: bool) -> bool {
    let (mut pending, mut seen) = (vec![(0, 0)], HashSet::new());
    while let Some((at, matched)) = pending.pop() {
        let (Some(word), Some(next)) = (words.get(at), wanted.get(matched)) else { continue };
        if !seen.insert((at, matched)) {
            continue;
        }
        match word.strip_prefix('-') {
            Some(_) if is_git && WITH_VALUE.contains(&word.as_str()) => pending.push((at + 2, matched)),
            Some(_) if is_git => pending.push((at + 1, matched)),
            Some(_) => pending.extend([(at + 1, matched), (at + 2, matched)]),
            None if word.contains(UNKNOWN) || may_expand_to(word, next) => return true,
            None if word == next => pending.push((at + 1, matched + 1)),
            None => {}
        }
    }
    false
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
