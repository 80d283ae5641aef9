//! Line diffs of texts. Pure and without a time limit, so that the same texts give the same diff everywhere.
//!
//! All comparisons of texts are made here: each crate that calls `similar` would add half a megabyte to the
//! binary.

use std::path::Path;

use similar::{ChangeTag, TextDiff};
pub use similar::{DiffOp, DiffTag};

/// Unchanged lines shown around each change.
const DIFF_CONTEXT_LINES: usize = 2;

/// Unchanged lines around each change in a patch; the same number as git uses.
const PATCH_CONTEXT_LINES: usize = 3;

/// Largest changed part, old and new text together; longer ones are not compared. Comparing two very different texts
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
    /// Whether it is a blank line of a text.
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

/// Whether the changed parts of two texts are short enough to be compared by `diff`.
pub fn is_comparable(old: Option<&str>, new: &str) -> bool {
    let (old, new) = changed_part(old.unwrap_or_default(), new);
    old.len() + new.len() <= DIFF_BYTES_MAX
}

/// The parts of two texts without the lines at their beginning and end that are the same, except for a few around the
/// change.
pub fn changed_part<'a>(old: &'a str, new: &'a str) -> (&'a str, &'a str) {
    let same = old.bytes().zip(new.bytes()).take_while(|(one, other)| one == other).count();
    let newlines = old.as_bytes()[..same].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    // The first of these newlines ends the last line that is the same.
    let start = newlines.map(|(at, _)| at + 1).nth(PATCH_CONTEXT_LINES).unwrap_or(0);
    let (old, new) = (&old[start..], &new[start..]);
    // The lines before the change may be repeated after it: they must not be left out twice.
    let before = same - start;
    let most = old.len().min(new.len()).saturating_sub(before);
    let bytes = old.bytes().rev().zip(new.bytes().rev()).take(most);
    let same = bytes.take_while(|(one, other)| one == other).count();
    let mut newlines =
        old.as_bytes()[old.len() - same..].iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let end = newlines.nth(PATCH_CONTEXT_LINES).map_or(0, |(at, _)| same - at - 1);
    (&old[..old.len() - end], &new[..new.len() - end])
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

/// A section of a patch as `git apply` reads it, for one file with this absolute path; `old` is `None` for a new
/// file. The path is written without the prefixes `a/` and `b/`. `None` if the texts are too long to compare.
pub fn git_patch(path: &Path, old: Option<&str>, new: &str) -> Option<String> {
    if !is_comparable(old, new) {
        return None;
    }
    let path = patch_path(&path.to_string_lossy());
    let mut patch = format!("diff --git {path} {path}\n");
    if old.is_none() {
        patch.push_str("new file mode 100644\n");
    }
    let compared = TextDiff::from_lines(old.unwrap_or_default(), new);
    let hunks = compared.unified_diff().context_radius(PATCH_CONTEXT_LINES).to_string();
    if !hunks.is_empty() {
        // A tab ends a name that has spaces.
        let end = if path.contains(' ') && !path.starts_with('"') { "\t" } else { "" };
        let before = if old.is_none() { "/dev/null".to_owned() } else { format!("{path}{end}") };
        patch.push_str(&format!("--- {before}\n+++ {path}{end}\n{hunks}"));
    }
    Some(patch)
}

/// A path as git writes it: quoted if it has special characters.
fn patch_path(path: &str) -> String {
    if !path.contains(|c: char| c.is_control() || matches!(c, '"' | '\\')) {
        return path.to_owned();
    }
    let mut quoted = String::from("\"");
    for byte in path.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => quoted.push_str(&format!("\\{byte:03o}")),
        }
    }
    quoted.push('"');
    quoted
}

/// The operations that turn the lines of one text into those of another, in order.
pub fn line_ops(old: &str, new: &str) -> Vec<DiffOp> {
    TextDiff::from_lines(old, new).ops().to_vec()
}

/// At most `most` of the candidates, the most similar first. `nearness` is the minimum similarity, from 0 to 1.
pub fn similar_texts<'a>(wanted: &str, candidates: &[&'a str], most: usize, nearness: f32) -> Vec<&'a str> {
    similar::get_close_matches(wanted, candidates, most, nearness)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_files_by_their_absolute_paths() {
        let patch = |path: &str, old: Option<&str>, new: &str| git_patch(Path::new(path), old, new).unwrap();
        assert_eq!(
            patch("/w/a.rs", Some("a\nb\n"), "a\nc"),
            "diff --git /w/a.rs /w/a.rs\n--- /w/a.rs\n+++ /w/a.rs\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
        );
        assert_eq!(
            patch("/w/my file", None, "x\n"),
            "diff --git /w/my file /w/my file\nnew file mode 100644\n--- /dev/null\n+++ /w/my file\t\n@@ -0,0 +1 @@\n+x\n"
        );
        assert_eq!(patch_path("/w/\"é\n"), "\"/w/\\\"\\303\\251\\012\"");
        assert_eq!(git_patch(Path::new("/w/a"), None, &"x".repeat(DIFF_BYTES_MAX + 1)), None);
    }

    #[test]
    fn a_diff_shows_changed_lines_with_their_surroundings() {
        let old = "a\nb\nc\nd\ne\nf\n";
        let new = "a\nb\nc\nd\nE\nf\n";
        let lines: Vec<String> = diff(Some(old), new).iter().map(DiffLine::signed).collect();
        assert_eq!(lines, ["  c", "  d", "- e", "+ E", "  f"]);
        let lines: Vec<String> = diff(None, "new\n").iter().map(DiffLine::signed).collect();
        assert_eq!(lines, ["+ new"]);
    }

    /// The change of one line in a file of 300 KB could only be rejected in the chat, because the limit was for the
    /// file.
    #[test]
    fn the_limit_is_for_the_changed_part_of_a_file() {
        let numbers = |changed: &str| -> String {
            (0..200_000)
                .map(|line| if line == 100_000 { changed.to_owned() } else { format!("{line}\n") })
                .collect()
        };
        let (old, new) = (numbers("old\n"), numbers("new\nnewer\n"));
        assert!(old.len() > DIFF_BYTES_MAX);
        assert_eq!(
            changed_part(&old, &new),
            (
                "99997\n99998\n99999\nold\n100001\n100002\n100003\n",
                "99997\n99998\n99999\nnew\nnewer\n100001\n100002\n100003\n"
            )
        );
        let patch = git_patch(Path::new("/w/a"), Some(&old), &new).unwrap();
        assert!(patch.contains("@@ -99998,7 +99998,8 @@\n 99997\n"), "{patch}");
    }

    #[test]
    fn a_changed_part_has_all_that_differs() {
        let rows = [
            ("", "", ("", "")),
            ("a\n", "a\n", ("a\n", "a\n")),
            ("é\n", "è\n", ("é\n", "è\n")),
            ("a\na\na\na\na\na\n", "a\na\na\na\na\n", ("a\na\na\na\n", "a\na\na\n")),
            ("1\n2\n3\n4\n5", "1\n2\n3\n4\n6", ("2\n3\n4\n5", "2\n3\n4\n6")),
            ("1\n2\n3\n4\n5\n", "0\n2\n3\n4\n5\n", ("1\n2\n3\n4\n", "0\n2\n3\n4\n")),
        ];
        for (old, new, parts) in rows {
            assert_eq!(changed_part(old, new), parts, "{old:?} -> {new:?}");
        }
    }
}
