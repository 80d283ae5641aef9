//! Line diffs of texts. Pure and without a time limit, so that the same texts give the same diff everywhere.
//!
//! All comparisons of texts are made here: each crate that called `similar` would add half a megabyte of it to the
//! binary.

use similar::{ChangeTag, TextDiff};
pub use similar::{DiffOp, DiffTag};

/// Unchanged lines shown around each change.
const DIFF_CONTEXT_LINES: usize = 2;

/// Largest input, old and new text together; longer ones are not compared. Comparing two very different texts
/// takes time quadratic in their length.
const DIFF_BYTES_MAX: usize = 512 * 1024;

/// One line of a diff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiffLine {
    Same(String),
    Removed(String),
    Added(String),
    /// Unchanged lines are omitted here.
    Gap,
    /// The texts are too long to compare.
    TooLong {
        bytes: usize,
    },
}

impl DiffLine {
    /// Whether it is a line of a text without anything that could be seen.
    pub fn is_empty(&self) -> bool {
        match self {
            DiffLine::Same(text) | DiffLine::Removed(text) | DiffLine::Added(text) => text.trim().is_empty(),
            DiffLine::Gap | DiffLine::TooLong { .. } => false,
        }
    }

    /// The line with a leading `+`, `-` or space, as in a patch.
    pub fn signed(&self) -> String {
        match self {
            DiffLine::Same(text) => format!("  {text}"),
            DiffLine::Removed(text) => format!("- {text}"),
            DiffLine::Added(text) => format!("+ {text}"),
            DiffLine::Gap => "  ⋯".to_owned(),
            DiffLine::TooLong { bytes } => format!("  (a change of {bytes} bytes, too long to show)"),
        }
    }
}

/// Whether two texts are short enough to be compared by `diff`.
pub fn is_comparable(old: Option<&str>, new: &str) -> bool {
    old.map_or(0, str::len) + new.len() <= DIFF_BYTES_MAX
}

/// Compares two texts by lines; `old` is `None` for a new file.
pub fn diff(old: Option<&str>, new: &str) -> Vec<DiffLine> {
    if !is_comparable(old, new) {
        return vec![DiffLine::TooLong { bytes: old.map_or(0, str::len) + new.len() }];
    }
    let old = old.unwrap_or_default();
    let compared = TextDiff::from_lines(old, new);
    let mut lines = Vec::new();
    for (index, group) in compared.grouped_ops(DIFF_CONTEXT_LINES).iter().enumerate() {
        if index > 0 {
            lines.push(DiffLine::Gap);
        }
        for change in group.iter().flat_map(|op| compared.iter_changes(op)) {
            let text = change.value().trim_end_matches(['\n', '\r']).to_owned();
            lines.push(match change.tag() {
                ChangeTag::Equal => DiffLine::Same(text),
                ChangeTag::Delete => DiffLine::Removed(text),
                ChangeTag::Insert => DiffLine::Added(text),
            });
        }
    }
    lines
}

/// The operations that turn the lines of one text into those of another, in order.
pub fn line_ops(old: &str, new: &str) -> Vec<DiffOp> {
    TextDiff::from_lines(old, new).ops().to_vec()
}

/// At most `most` of the candidates, the most similar first. `nearness` is the least similarity, from 0 to 1.
pub fn similar_texts<'a>(wanted: &str, candidates: &[&'a str], most: usize, nearness: f32) -> Vec<&'a str> {
    similar::get_close_matches(wanted, candidates, most, nearness)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_shows_changed_lines_with_their_surroundings() {
        let old = "a\nb\nc\nd\ne\nf\n";
        let new = "a\nb\nc\nd\nE\nf\n";
        let lines: Vec<String> = diff(Some(old), new).iter().map(DiffLine::signed).collect();
        assert_eq!(lines, ["  c", "  d", "- e", "+ E", "  f"]);
        let lines: Vec<String> = diff(None, "new\n").iter().map(DiffLine::signed).collect();
        assert_eq!(lines, ["+ new"]);
    }
}
