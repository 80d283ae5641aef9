//! The words of a shell line as names of files, with the shell's wildcards.

use epitome_shell::word::{LITERAL, UNKNOWN};

/// The beginnings of the shell's patterns.
pub const WILDCARDS: [char; 3] = ['*', '?', '['];

/// A possible file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileNameWord {
    /// The name with the shell's `*`, `?` and `[…]`.
    pub glob: String,
    /// Whether only the shell can determine some part of it.
    pub is_open: bool,
}

impl FileNameWord {
    pub(super) fn parse(word: &str) -> FileNameWord {
        let is_open = word.contains(UNKNOWN);
        FileNameWord { glob: word.replace(UNKNOWN, "*").replace(LITERAL, "_"), is_open }
    }

    /// Whether it may refer to a file with this name (the last component of a path).
    pub fn may_end_in(&self, name: &str) -> bool {
        let last = self.glob.rsplit('/').next().unwrap_or_default();
        // Braces alone are no expansion: `find . -exec grep x {} +`.
        if !last.contains(['*', '?', '[', '{']) || last.trim_matches(['{', '}']).is_empty() {
            return last.eq_ignore_ascii_case(name);
        }
        // Shell wildcards match hidden names only with an explicit dot.
        if name.starts_with('.') && !last.starts_with('.') && !self.is_open {
            return false;
        }
        let glob = globset::GlobBuilder::new(last).case_insensitive(true).build();
        // A pattern that is invalid here may still be valid for the shell.
        glob.map_or(true, |glob| glob.compile_matcher().is_match(name))
    }

    /// The path, if it contains no wildcards.
    pub fn path(&self) -> Option<&str> {
        let is_path = !self.glob.is_empty() && !self.glob.contains(['*', '?', '[', '{']);
        is_path.then_some(self.glob.as_str())
    }
}

/// Whether a word has a wildcard that may stand for this text.
pub(super) fn may_expand_to(word: &str, text: &str) -> bool {
    let glob = || globset::Glob::new(word).map_or(true, |glob| glob.compile_matcher().is_match(text));
    word.contains(WILDCARDS) && glob()
}
