//! The command lines of Claude Code hooks: which files they name, and lines made of argument lists.

use std::path::{Path, PathBuf};

use epitome_tools::normal;

/// Files that one line can name; the rest of a longer line is not looked at.
pub(super) const FILES_NAMED_MAX: usize = 64;
/// The ways in which lines name the project's directory.
const PROJECT_SPELLINGS: [&str; 7] = [
    "$(git rev-parse --show-toplevel)",
    "`git rev-parse --show-toplevel`",
    "$CLAUDE_PROJECT_DIR",
    "${PWD}",
    "$PWD",
    "$(pwd)",
    "`pwd`",
];

/// The paths that a shell line names, absolute and without repetition: words that could be files, there
/// or not. Words are tried below `project` and below the directories that the line changes to.
///
/// What only the running shell knows (other variables, computed names) is not found. What output goes to (`>> log.txt`)
/// is named by no word: a line that keeps a log would be another one after each run.
pub fn files_named(line: &str, project: &Path) -> Vec<PathBuf> {
    let mut line = with_plain_braces(line);
    for spelling in PROJECT_SPELLINGS {
        line = line.replace(spelling, &project.to_string_lossy());
    }
    let mut bases = vec![project.to_path_buf()];
    let mut files: Vec<PathBuf> = Vec::new();
    let mut changes = false;
    for word in words(&line) {
        let entered = changes;
        changes = word == "cd";
        // A quoted word may be a path with blanks or a line for another shell; `NAME=path` names a path.
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
                bases.truncate(FILES_NAMED_MAX);
                continue;
            }
            for path in paths {
                if !files.contains(&path) && files.len() < FILES_NAMED_MAX {
                    files.push(path);
                }
            }
        }
    }
    files
}

/// `${CLAUDE_PROJECT_DIR}`, also with a default in it, as `$CLAUDE_PROJECT_DIR`.
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

/// Words as a shell would cut them, quotes taken off, without those that output is sent to.
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
                    // `>& file`, and blanks before the name. A line's end is a blank that ends a command.
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

/// A program and its arguments as a line that a shell takes to mean just these. Of variables only the
/// project's directory is filled in.
pub fn exec_form(program: &str, args: &[String]) -> String {
    let words: Vec<String> =
        std::iter::once(program).chain(args.iter().map(String::as_str)).map(quoted).collect();
    words.join(" ")
}

fn quoted(word: &str) -> String {
    const PROJECT: &str = "${CLAUDE_PROJECT_DIR}";
    let pieces: Vec<String> =
        word.split(PROJECT).map(|piece| format!("'{}'", piece.replace('\'', r"'\''"))).collect();
    pieces.join(&format!("\"{PROJECT}\""))
}
