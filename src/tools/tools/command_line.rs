//! Decides whether a shell line runs only commands that a recipe or rule allows. Pure. It guides a well-behaved
//! model and is no sandbox: of an allowed program's arguments only options that write a file or run another
//! program are examined (`effects`).
//!
//! The line is parsed as Bash, and every simple command in it is checked, including those in pipes, lists,
//! loops, functions, substitutions and here-documents. Anything uncertain is refused: only the listed kinds
//! of syntax pass, and no text passes that the parser takes as plain but Bash might execute.

mod effects;
mod file_name;
mod nested;
pub mod parts;

use epitome_shell::word::literal;
use epitome_shell::{children, delimiter, document_in, parse};
use tree_sitter::Node;

/// Maximum size of a line in bytes; a longer one belongs in a file.
const LINE_BYTES_MAX: usize = 32 * 1024;
/// Maximum length in characters of a command or construct quoted in a refusal.
const SHOWN_CHARS_MAX: usize = 200;
const PATTERNS_SHOWN_MAX: usize = 20;

/// Returns a message for the model that explains why a line may not run; `None` if it may.
///
/// A pattern is compared with the words of a simple command, joined by single spaces; `*` matches any text,
/// everything else is literal. A pattern that ends in ` *` also allows the command without arguments.
/// Assignments before a command are part of its words, and an assignment alone is a command. Writing a file
/// (`> file`) is never allowed, except to `/dev/null` and the like. An option that writes a file or runs a
/// program (`--output=file`) is allowed only by a pattern that names it.
pub fn refused(line: &str, allowed: &[String]) -> Option<String> {
    if line.len() > LINE_BYTES_MAX {
        return Some(format!("the command line has more than {} KiB", LINE_BYTES_MAX / 1024));
    }
    if let Some(c) = line.chars().find(|c| is_treacherous(*c)) {
        return Some(format!("the command line has a character that shells read differently: {c:?}"));
    }
    let Some(tree) = parse(line).filter(|tree| !tree.root_node().has_error()) else {
        return Some("the command line cannot be parsed, so it is not known what it would run".to_owned());
    };
    let root = tree.root_node();
    // An escaped space at the start is a word for Bash, but is skipped by the grammar.
    if !(line[..root.start_byte()].trim().is_empty() && line[root.end_byte()..].trim().is_empty()) {
        return Some(unclear(line));
    }
    let check = LineCheck { line, allowed };
    let mut pending = vec![(root, Quotes::Quote)];
    while let Some((node, quotes)) = pending.pop() {
        match check.node(node, quotes) {
            Ok(None) => {}
            // Pushed in reverse, so that the first violation in the line is the one reported.
            Ok(Some(inside)) => pending.extend(children(node).into_iter().rev().map(|child| (child, inside))),
            Err(reason) => return Some(reason),
        }
    }
    None
}

/// Characters that a parser may take for white space and Bash for a part of a word, or vice versa.
fn is_treacherous(c: char) -> bool {
    (c.is_control() || c.is_whitespace()) && !matches!(c, ' ' | '\t' | '\n')
}

/// The meaning of single quotes at some position.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quotes {
    Quote,
    /// Within `${x:-…}` they don't quote if double quotes enclose it.
    MayNot,
}

/// Operators of `${…}` that only select or trim text. Others assign, dereference, or evaluate a variable's
/// value (`${x@P}` executes it).
const EXPANSION_TOKENS: [&str; 14] =
    ["${", "}", ":-", "-", ":+", "+", ":?", "?", "#", "##", "%", "%%", "/", "//"];

struct LineCheck<'a> {
    line: &'a str,
    allowed: &'a [String],
}

impl<'a> LineCheck<'a> {
    fn text(&self, node: Node<'_>) -> &'a str {
        &self.line[node.byte_range()]
    }

    /// Checks a single node. Returns the meaning of single quotes in its children, which are checked separately; `None` if
    /// they need no check.
    fn node(&self, node: Node<'_>, quotes: Quotes) -> Result<Option<Quotes>, String> {
        let text = self.text(node);
        if !node.is_named() {
            let operator = node.parent().is_some_and(|parent| parent.kind() == "expansion");
            let plain = if operator { EXPANSION_TOKENS.contains(&text) } else { !text.starts_with("((") };
            let unclear = || unclear(node.parent().map_or(text, |parent| self.text(parent)));
            return if plain { Ok(None) } else { Err(unclear()) };
        }
        let sound = match node.kind() {
            "raw_string" if quotes == Quotes::Quote => return Ok(None),
            // Shells disagree about where an ANSI-C string with `\'` ends.
            "ansi_c_string" if quotes == Quotes::Quote && !text.contains("\\'") => return Ok(None),
            "arithmetic_expansion" if is_plain_arithmetic(text) => return Ok(None),
            "comment" if self.is_comment(node) => return Ok(None),
            "heredoc_body" if self.is_quoted(node) => return Ok(None),
            "command_substitution" | "process_substitution" if self.has_blank_gaps(node) => {
                return Ok(Some(Quotes::Quote));
            }
            "expansion" if self.has_blank_gaps(node) => return Ok(Some(Quotes::MayNot)),
            // The grammar has words that begin with the end of the previous line.
            "word" => !hides(text, "()<>|&;'\" \t\n"),
            "number" | "regex" | "extglob_pattern" | "heredoc_content" | "string_content" | "string"
            | "heredoc_body" => self.gaps(node).all(|gap| !hides(gap, "")),
            "heredoc_start"
            | "heredoc_end"
            | "file_descriptor"
            | "variable_name"
            | "special_variable_name" => true,
            "program"
            | "list"
            | "pipeline"
            | "subshell"
            | "compound_statement"
            | "if_statement"
            | "elif_clause"
            | "else_clause"
            | "while_statement"
            | "do_group"
            | "case_statement"
            | "case_item"
            | "function_definition"
            | "negated_command"
            | "array" => self.has_blank_gaps(node),
            "concatenation"
            | "simple_expansion"
            | "brace_expression"
            | "herestring_redirect"
            | "variable_assignments" => self.is_one_line(node),
            "redirected_statement" => {
                let body = node.named_child(0).filter(|body| self.is_followed_by_dash(*body));
                self.is_one_line(node) || body.is_some()
            }
            "for_statement" => {
                let mut words = children(node).into_iter().map(|child| literal(child, self.line));
                match words.find_map(|word| effects::for_any_program(&word)) {
                    Some(option) => return Err(has_effect(&option, text)),
                    None => self.has_blank_gaps(node) && self.sets_a_local_variable(node),
                }
            }
            "heredoc_redirect" => self.is_plain_here_document(node),
            "file_redirect" => {
                self.redirect(node)?;
                self.is_one_line(node)
            }
            "command" | "declaration_command" | "unset_command" => {
                let command = self.words(node);
                let around = node.parent().and_then(|statement| statement.parent());
                if around.and_then(|around| document_in(around, self.line)).is_none() {
                    self.allowed(&command)?;
                    self.options(node, &command)?;
                }
                self.is_one_line(node)
            }
            "command_name" => self.is_literal_name(node),
            "variable_assignment" => {
                let of_command = ["command", "declaration_command"];
                if node.parent().is_none_or(|parent| !of_command.contains(&parent.kind())) {
                    self.allowed(text)?;
                }
                self.is_one_line(node)
            }
            _ => false,
        };
        if sound { Ok(Some(quotes)) } else { Err(unclear(text)) }
    }

    /// The text of a node outside of its children.
    fn gaps<'n>(&self, node: Node<'n>) -> impl Iterator<Item = &'a str> + use<'n, 'a> {
        let line = self.line;
        let mut at = node.start_byte();
        let mut spans: Vec<_> = children(node).into_iter().map(|child| child.byte_range()).collect();
        spans.push(node.end_byte()..node.end_byte());
        spans.into_iter().map(move |span| {
            let gap = line.get(at..span.start).unwrap_or_default();
            at = span.end.max(at);
            gap
        })
    }

    /// Whether only white space separates the children. A line continuation without white space splits a word for the
    /// grammar, but joins two words for Bash.
    fn has_blank_gaps(&self, node: Node<'_>) -> bool {
        self.gaps(node).all(|gap| {
            let joined = gap.replace("\\\n", "");
            joined.trim().is_empty() && (gap.is_empty() || !joined.is_empty())
        })
    }

    /// Like `has_blank_gaps`, but a line end also ends the command; the grammar would continue it if the next line
    /// begins with a backslash.
    fn is_one_line(&self, node: Node<'_>) -> bool {
        self.has_blank_gaps(node) && self.gaps(node).all(|gap| !gap.replace("\\\n", "").contains('\n'))
    }

    /// Returns the words of a command, joined by single spaces; quotes around words that don't need them are removed.
    fn words(&self, command: Node<'_>) -> String {
        let mut words = String::new();
        let mut end = None;
        for child in children(command) {
            if matches!(child.kind(), "file_redirect" | "heredoc_redirect" | "herestring_redirect") {
                continue;
            }
            if end.is_some_and(|end| end != child.start_byte()) {
                words.push(' ');
            }
            words.push_str(self.unquoted(child).unwrap_or_else(|| self.text(child)));
            end = Some(child.end_byte());
        }
        if self.is_followed_by_dash(command) {
            words.push_str(" -");
        }
        words
    }

    /// Whether a command ends with the argument `-` and one here-document: the grammar skips that argument.
    fn is_followed_by_dash(&self, command: Node<'_>) -> bool {
        let statement = command.parent().filter(|parent| parent.kind() == "redirected_statement");
        let [body, document] = statement.map(children).unwrap_or_default()[..] else { return false };
        let between = &self.line[body.end_byte()..document.start_byte()];
        body == command && document.kind() == "heredoc_redirect" && matches!(between, " - " | " -")
    }

    /// Returns the content of a quoted word that means the same without quotes.
    fn unquoted(&self, node: Node<'_>) -> Option<&'a str> {
        let quote = match node.kind() {
            "raw_string" => '\'',
            "string" => '"',
            "command_name" => return self.unquoted(node.named_child(0)?),
            _ => return None,
        };
        let inner = self.text(node).strip_prefix(quote)?.strip_suffix(quote)?;
        let plain = |c: char| c.is_alphanumeric() || "_./+@:%,=-".contains(c);
        (!inner.is_empty() && inner.chars().all(plain)).then_some(inner)
    }

    fn is_literal_name(&self, name: Node<'_>) -> bool {
        let text = self.unquoted(name).unwrap_or_else(|| self.text(name));
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./+@:%-".contains(c))
    }

    fn allowed(&self, command: &str) -> Result<(), String> {
        if self.allowed.iter().any(|pattern| matches_pattern(pattern.trim(), command)) {
            return Ok(());
        }
        let patterns = self.allowed.iter().take(PATTERNS_SHOWN_MAX);
        let mut patterns = patterns.map(|pattern| format!("`{pattern}`")).collect::<Vec<_>>();
        if self.allowed.len() > PATTERNS_SHOWN_MAX {
            patterns.push("…".to_owned());
        }
        let which = match &patterns[..] {
            [] => "no command may run here".to_owned(),
            _ => format!("only these commands may: {}", patterns.join(", ")),
        };
        Err(format!("`{}` may not run here; {which}", shown(command)))
    }

    /// Refuses options with effects that no pattern which allows the command names.
    fn options(&self, node: Node<'_>, command: &str) -> Result<(), String> {
        let is_word =
            |child: &Node<'_>| child.kind() != "variable_assignment" && !child.kind().ends_with("_redirect");
        let words = children(node).into_iter().filter(is_word);
        let words: Vec<String> = words
            .map(|child| {
                literal(
                    child.named_child(0).filter(|_| child.kind() == "command_name").unwrap_or(child),
                    self.line,
                )
            })
            .collect();
        let is_named = |option: &String| {
            let mut patterns = self.allowed.iter().map(|pattern| pattern.trim());
            patterns.any(|pattern| matches_pattern(pattern, command) && effects::is_named(option, pattern))
        };
        match effects::options(&words).into_iter().find(|option| !is_named(option)) {
            Some(option) => Err(has_effect(&option, command)),
            None => Ok(()),
        }
    }

    /// Accepts a redirection that reads, or that writes to a target that stores nothing.
    fn redirect(&self, redirect: Node<'_>) -> Result<(), String> {
        let text = self.text(redirect);
        let parts = children(redirect);
        let operator = parts.iter().find(|part| !part.is_named()).map(|part| self.text(*part));
        let targets: Vec<&Node<'_>> =
            parts.iter().filter(|part| part.is_named() && part.kind() != "file_descriptor").collect();
        // The grammar counts words after the target as targets; Bash passes them to the command.
        let target = match targets[..] {
            [] => None,
            [target] => Some(target),
            _ => return Err(unclear(text)),
        };
        let is_descriptor = |text: &str| text == "-" || text.chars().all(|c| c.is_ascii_digit());
        match (operator, target) {
            (Some("<"), Some(_)) | (Some("<&-" | ">&-"), None) => Ok(()),
            (Some(">&" | "<&"), Some(target)) if is_descriptor(self.text(*target)) => Ok(()),
            (Some(_), Some(target))
                if target.kind() == "process_substitution"
                    || ["/dev/null", "/dev/stdout", "/dev/stderr"].contains(&self.text(*target)) =>
            {
                Ok(())
            }
            _ => Err(format!(
                "`{}` writes a file, which no command line may do here; print the text, or use a tool that \
                 writes files",
                shown(text)
            )),
        }
    }

    /// Whether a here-document certainly ends where the parser sees its end.
    fn is_plain_here_document(&self, redirect: Node<'_>) -> bool {
        let find = |kind: &str| children(redirect).into_iter().find(|child| child.kind() == kind);
        let (Some(start), Some(end)) = (find("heredoc_start"), find("heredoc_end")) else { return false };
        let mark = delimiter(self.text(start)).0;
        let is_name = !mark.is_empty() && mark.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_mark = |line: &str| line.trim_start_matches('\t') == mark;
        let body = find("heredoc_body").map_or("", |body| self.text(body));
        let line_start = self.line[..end.start_byte()].rfind('\n').map_or(0, |at| at + 1);
        let line_end =
            self.line[end.end_byte()..].find('\n').map_or(self.line.len(), |at| end.end_byte() + at);
        let no_arguments = redirect.children_by_field_name("argument", &mut redirect.walk()).next().is_none();
        is_name
            && no_arguments
            && is_mark(&self.line[line_start..line_end])
            && !body.lines().any(is_mark)
            && self.has_blank_gaps(redirect)
    }

    fn is_quoted(&self, body: Node<'_>) -> bool {
        let start = body.parent().and_then(|redirect| {
            children(redirect).into_iter().find(|child| child.kind() == "heredoc_start")
        });
        start.is_some_and(|start| delimiter(self.text(start)).1)
    }

    /// Whether Bash also takes this for a comment: `\ #` and `a\⏎#` continue a word.
    fn is_comment(&self, comment: Node<'_>) -> bool {
        let mut before = self.line[..comment.start_byte()].chars().rev();
        match before.next() {
            None => true,
            Some(last) => " \t\n;&|(".contains(last) && before.next() != Some('\\'),
        }
    }

    /// Refuses `for PATH in …`, which would choose what runs; variables that programs read are upper case.
    fn sets_a_local_variable(&self, statement: Node<'_>) -> bool {
        let variable = statement.child_by_field_name("variable");
        variable.is_some_and(|name| self.text(name).starts_with(|c: char| c.is_ascii_lowercase()))
    }
}

/// Whether a text that the parser takes as plain contains something that Bash would act on: a substitution, or one of
/// `others`, that is not escaped with a backslash.
fn hides(text: &str, others: &str) -> bool {
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' => drop(characters.next()),
            '`' => return true,
            '$' if characters.peek().is_some_and(|next| "({[".contains(*next)) => return true,
            _ if others.contains(c) => return true,
            _ => {}
        }
    }
    false
}

/// Whether it contains only numbers and operators. Bash would evaluate a variable's value, and a value such as
/// `a[$(…)]` executes the substitution.
fn is_plain_arithmetic(text: &str) -> bool {
    let inner = text.strip_prefix("$((").and_then(|text| text.strip_suffix("))"));
    inner.is_some_and(|inner| inner.chars().all(|c| c.is_ascii_digit() || " +-*/%()".contains(c)))
}

/// Whether a text matches a pattern in which `*` matches any text.
pub(super) fn matches_pattern(pattern: &str, text: &str) -> bool {
    if pattern.strip_suffix(" *").is_some_and(|bare| !bare.contains('*') && bare == text) {
        return true;
    }
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some(at) = text.find(piece) else { return false };
        text = &text[at + piece.len()..];
    }
    text.ends_with(last)
}

fn has_effect(option: &str, command: &str) -> String {
    format!(
        "`{}` of `{}` writes a file or runs a program, which only a pattern that names it allows",
        shown(option),
        shown(command)
    )
}

fn unclear(text: &str) -> String {
    format!("it is not certain what `{}` would run; write it in a plainer way", shown(text))
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[path = "command_line_tests.rs"]
mod tests;
