//! Reads command lines of Bash. Pure: it parses and describes, and decides nothing. What may run is decided in the room of
//! the tools, which treats everything uncertain as forbidden; here a line means what its author most likely meant.

mod statements;
pub mod word;

use tree_sitter::{Node, Parser, Tree};

pub use statements::{Joint, Pipeline, ShellCommand, ShellStatement, statements};

/// Maximum depth of a parsed line. Looking up a node's parent takes time for each level above it, so 32 KiB of `$(`
/// took 24 s. A list of commands has a level for each.
const NESTING_MAX: u32 = 1_000;

/// Parses a line; `None` if it nests too deeply.
pub fn parse(line: &str) -> Option<Tree> {
    let mut parser = Parser::new();
    let language = parser.set_language(&tree_sitter_bash::LANGUAGE.into());
    let tree = language.ok().and_then(|()| parser.parse(line, None));
    tree.filter(|tree| !nests_too_deeply(tree))
}

fn nests_too_deeply(tree: &Tree) -> bool {
    let mut cursor = tree.walk();
    loop {
        if cursor.depth() > NESTING_MAX {
            return true;
        }
        if cursor.goto_first_child() {
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return false;
            }
        }
    }
}

/// The children of a node, with its punctuation.
pub fn children<'t>(node: Node<'t>) -> Vec<Node<'t>> {
    node.children(&mut node.walk()).collect()
}

/// The text in `"$(cat <<'E' … E)"`, a long way to write one.
pub fn document_in<'a>(substitution: Node<'_>, line: &'a str) -> Option<&'a str> {
    let statement = substitution.named_child(0).filter(|_| substitution.named_child_count() == 1)?;
    let [command, document] = children(statement)[..] else { return None };
    let parts = children(document);
    let part = |kind: &str| Some(&line[parts.iter().find(|part| part.kind() == kind)?.byte_range()]);
    let is_text = (substitution.kind(), statement.kind()) == ("command_substitution", "redirected_statement")
        && &line[command.byte_range()] == "cat"
        && delimiter(part("heredoc_start")?).1;
    part("heredoc_body").filter(|_| is_text)
}

/// The delimiter of a here-document, and whether it is quoted, in which case its text isn't expanded.
pub fn delimiter(start: &str) -> (&str, bool) {
    for quote in ['\'', '"'] {
        if let Some(name) = start.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return (name, true);
        }
    }
    match start.strip_prefix('\\') {
        Some(name) => (name, true),
        None => (start, false),
    }
}
