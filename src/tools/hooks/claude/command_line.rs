//! Command lines of Claude Code hooks: the files that they name, and lines built from argument lists.

use crate::digest::PinError;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use epitome_tools::normal;

/// Maximum candidate paths of the words of one line. A line of maximum length has a few thousand words.
pub(crate) const PATHS_MAX: usize = 16 * 1024;
/// Maximum directories that one line may change to.
pub(crate) const DIRECTORIES_MAX: usize = 16;
/// The ways in which command lines refer to the project's directory.
const PROJECT_SPELLINGS: [&str; 7] = [
    "$(git rev-parse --show-toplevel)",
    "`git rev-parse --show-toplevel`",
    "$CLAUDE_PROJECT_DIR",
    "${PWD}",
    "$PWD",
    "$(pwd)",
    "`pwd`",
];

/// The paths that a shell line names, absolute and without duplicates: words that could be files, existing or
/// not. Words are resolved against `project` and the directories that the line changes to.
///
/// Paths known only at run time (other variables, computed names) are not found. Targets of output
/// redirection (`>> log.txt`) are left out: otherwise the digest of a line that appends to a log would change
/// with each run.
///
/// Fails if there are too many paths, since one that is left out would go unchecked.
pub fn files_named(line: &str, project: &Path) -> Result<Vec<PathBuf>, PinError> {
    let mut line = with_plain_braces(line);
    for spelling in PROJECT_SPELLINGS {
        line = line.replace(spelling, &project.to_string_lossy());
    }
    let mut bases = vec![project.to_path_buf()];
    let mut files: Vec<PathBuf> = Vec::new();
    let mut known: BTreeSet<PathBuf> = BTreeSet::new();
    let mut changes = false;
    for word in words(&line) {
        let entered = changes;
        changes = word == "cd";
        // A quoted word may be a path with spaces or a line for another shell; `NAME=path` names a path.
        let pieces = word.split_whitespace().filter(|piece| *piece != word);
        for piece in std::iter::once(word.as_str()).chain(pieces) {
            let piece =
                piece.rsplit_once('=').map_or(piece, |(_, value)| value).trim_matches(['"', '\'', ';']);
            if piece.is_empty() || piece.starts_with('-') || piece.contains(['\0', '\n']) {
                continue;
            }
            let paths: Vec<PathBuf> = bases.iter().map(|base| normal(&base.join(piece))).collect();
            if entered {
                bases.extend(paths);
                if bases.len() > DIRECTORIES_MAX {
                    return Err(PinError::TooManyDirectories);
                }
                continue;
            }
            for path in paths {
                if known.insert(path.clone()) {
                    files.push(path);
                }
            }
            if files.len() > PATHS_MAX {
                return Err(PinError::TooManyPaths);
            }
        }
    }
    Ok(files)
}

/// Replaces `${CLAUDE_PROJECT_DIR}`, also with a default value, by `$CLAUDE_PROJECT_DIR`.
fn with_plain_braces(line: &str) -> String {
    const OPEN: &str = "${CLAUDE_PROJECT_DIR";
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(OPEN) {
        plain.push_str(before);
        plain.push_str("$CLAUDE_PROJECT_DIR");
        rest = after.split_once('}').map_or("", |(_, after)| after);
    }
    plain + rest
}

/// Splits a line into words as a shell would, without quotes and redirection targets.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut is_target = false;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (Some('"') | None, '\\') => word.extend(letters.next()),
            (Some(_), letter) => word.push(letter),
            (None, letter) if letter.is_whitespace() || ";|&()<>`".contains(letter) => {
                let ended = std::mem::take(&mut word);
                let has_ended = !ended.is_empty();
                if has_ended && !is_target {
                    words.push(ended);
                }
                is_target = match letter {
                    '>' => true,
                    // `>& file`, and blanks before the name. A newline ends the command.
                    '&' | ' ' | '\t' => is_target && !has_ended,
                    _ => false,
                };
            }
            (None, letter) => word.push(letter),
        }
    }
    if !is_target {
        words.push(word);
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The variables that arguments may contain.
const EXPANDED: [&str; 3] = ["${CLAUDE_PROJECT_DIR}", "${CLAUDE_PLUGIN_ROOT}", "${CLAUDE_PLUGIN_DATA}"];

/// Quotes a program and its arguments as a shell line. Only the variables in `EXPANDED` are expanded.
pub(crate) fn quoted_line(program: &str, args: &[String]) -> String {
    let words: Vec<String> =
        std::iter::once(program).chain(args.iter().map(String::as_str)).map(quoted).collect();
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let first = EXPANDED.iter().filter_map(|name| Some((word.find(name)?, *name))).min();
    let Some((at, name)) = first else { return format!("'{}'", word.replace('\'', r"'\''")) };
    let (before, rest) = word.split_at(at);
    format!("{}\"{name}\"{}", quoted(before), quoted(&rest[name.len()..]))
}
