//! Titles of tool calls. For some kinds of tools, editors show them verbatim, for the others as Markdown, where names
//! must be code spans: `src/__init__.py` would lose its underscores. Terminals and plain texts get the title without
//! these fences.
//!
//! The distinction is Zed's (`ToolCall::from_acp` in its crates/acp_thread/src/acp_thread.rs): it escapes titles of
//! edits, shows commands as plain text and renders all others as Markdown.

use std::borrow::Cow;

use super::{CallDisplay, ToolKind};

/// Characters that can turn prose into something else in Markdown.
const MARKDOWN: [char; 11] = ['`', '*', '_', '[', ']', '<', '>', '~', '\\', '|', '!'];

/// Whether editors show titles of this kind verbatim.
fn is_plain(kind: ToolKind) -> bool {
    matches!(kind, ToolKind::Edit | ToolKind::Execute)
}

/// A name, path or pattern in a title.
pub fn name_in_title(kind: ToolKind, name: &str) -> Cow<'_, str> {
    match is_plain(kind) || name.is_empty() {
        true => Cow::Borrowed(name),
        false => Cow::Owned(code_span(name)),
    }
}

/// Text of the model or of a server in a title, fenced only if it is more than prose.
pub fn words_in_title(kind: ToolKind, words: &str) -> Cow<'_, str> {
    match words.contains(MARKDOWN) {
        true => name_in_title(kind, words),
        false => Cow::Borrowed(words),
    }
}

/// A call's title without the fences of its names.
pub fn plain_title(card: &CallDisplay) -> Cow<'_, str> {
    match is_plain(card.kind) || !card.title.contains('`') {
        true => Cow::Borrowed(&card.title),
        false => Cow::Owned(without_code_spans(&card.title)),
    }
}

/// A one-line text as a Markdown code span that renders as exactly this text (CommonMark 0.31, section 6.1).
pub(super) fn code_span(line: &str) -> String {
    let longest_run = line.split(|c| c != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest_run + 1);
    // A backtick next to the fence would extend it, and renderers remove a space from both sides.
    let is_padded = line.starts_with(' ') && line.ends_with(' ');
    let border = if line.starts_with('`') || line.ends_with('`') || is_padded { " " } else { "" };
    format!("{fence}{border}{line}{border}{fence}")
}

fn without_code_spans(title: &str) -> String {
    let mut plain = String::with_capacity(title.len());
    let mut rest = title;
    while let Some(at) = rest.find('`') {
        let (before, fenced) = rest.split_at(at);
        plain.push_str(before);
        let fence = backticks(fenced);
        let inside = &fenced[fence..];
        match closing(inside, fence) {
            Some(end) => {
                plain.push_str(unpadded(&inside[..end]));
                rest = &inside[end + fence..];
            }
            // An unclosed fence is text.
            None => {
                plain.push_str(&fenced[..fence]);
                rest = inside;
            }
        }
    }
    plain.push_str(rest);
    plain
}

/// The number of backticks at the beginning of a text.
fn backticks(text: &str) -> usize {
    text.len() - text.trim_start_matches('`').len()
}

/// The start of the run of exactly `fence` backticks that closes a code span.
fn closing(inside: &str, fence: usize) -> Option<usize> {
    let mut at = 0;
    loop {
        at += inside[at..].find('`')?;
        match backticks(&inside[at..]) {
            run if run == fence => return Some(at),
            run => at += run,
        }
    }
}

/// The content of a code span as it is rendered.
fn unpadded(inside: &str) -> &str {
    let inner = inside.strip_prefix(' ').and_then(|inner| inner.strip_suffix(' '));
    inner.filter(|inner| !inner.trim().is_empty()).unwrap_or(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(kind: ToolKind, title: &str) -> String {
        let card = CallDisplay { title: title.to_owned(), kind, locations: Vec::new() };
        plain_title(&card).into_owned()
    }

    /// Regression: Zed rendered "Read src/__init__.py" as src/**init**.py, and "Find **/*.py in src/**" in bold.
    #[test]
    fn names_are_code_spans_where_titles_are_markdown() {
        for (kind, name, shown) in [
            (ToolKind::Read, "src/__init__.py", "`src/__init__.py`"),
            (ToolKind::Search, "a`b", "``a`b``"),
            (ToolKind::Search, "`a`", "`` `a` ``"),
            (ToolKind::Search, "```", "```` ``` ````"),
            (ToolKind::Search, " a ", "`  a  `"),
            (ToolKind::Edit, "src/__init__.py", "src/__init__.py"),
            (ToolKind::Execute, "echo `date`", "echo `date`"),
            (ToolKind::Read, "", ""),
        ] {
            assert_eq!(name_in_title(kind, name), shown, "{name:?}");
            assert_eq!(plain(kind, &format!("Read {shown} now")), format!("Read {name} now"));
        }
        assert_eq!(words_in_title(ToolKind::Think, "Find the walnut"), "Find the walnut");
        assert_eq!(words_in_title(ToolKind::Think, "Fix __init__"), "`Fix __init__`");
    }

    #[test]
    fn backticks_that_fence_nothing_are_kept() {
        for title in ["a ` b", "``", "a `` b ` c"] {
            assert_eq!(plain(ToolKind::Read, title), title);
        }
    }
}
