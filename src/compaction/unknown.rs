//! Finds files that a summary names but the log does not. Pure.
//!
//! A model that writes a summary may invent a file, and the model that reads it believes that it exists. Only the base
//! names of source files are checked. In 45 summaries by frontier models, every flagged function, hash or directory was
//! a false positive, because these are written in many different ways.

use std::collections::BTreeMap;

use epitome_thread::Thread;

/// Maximum number of names checked in a summary.
const NAMES_MAX: usize = 200;

/// Maximum number of bytes of a log that are searched. For a longer log, nothing is reported, since a name may occur
/// in the rest.
const SEARCHED_BYTES_MAX: usize = 32 << 20;

/// Extensions of source files.
const EXTENSIONS: [&str; 32] = [
    "c", "cc", "cpp", "cs", "css", "go", "h", "hpp", "html", "java", "js", "json", "jsx", "kt", "lock",
    "lua", "md", "php", "py", "rb", "rs", "scss", "sh", "sql", "svelte", "swift", "toml", "ts", "tsx", "vue",
    "yaml", "yml",
];

/// Appends a line to the summary that lists files unknown to the log, if there are any.
pub(super) fn flagged(mut summary: String, thread: &Thread) -> String {
    let unknown = unknown_files(&summary, thread);
    if !unknown.is_empty() {
        summary.push_str(&format!("\n\n(not found in the log: {})", unknown.join(", ")));
    }
    summary
}

/// The source files in a summary whose base name does not occur in the log, as written in the summary.
fn unknown_files(summary: &str, thread: &Thread) -> Vec<String> {
    let mut unknown = files(summary);
    let mut left = SEARCHED_BYTES_MAX;
    for entry in thread.entries().iter().rev() {
        if unknown.is_empty() {
            break;
        }
        // File names contain no characters that JSON escapes.
        let Ok(json) = serde_json::to_string(&entry.change) else { return Vec::new() };
        let Some(rest) = left.checked_sub(json.len()) else { return Vec::new() };
        left = rest;
        unknown.retain(|name, _| !json.contains(name));
    }
    unknown.into_values().map(str::to_owned).collect()
}

/// The paths of source files in a text, by base name.
fn files(text: &str) -> BTreeMap<&str, &str> {
    let is_end = |character: char| character.is_whitespace() || "\"'`[]{}<>,;|*=()".contains(character);
    let mut files = BTreeMap::new();
    for word in text.split(is_end).filter(|word| !word.contains("://")) {
        let path = word.trim_matches([':', '!', '?', '#', '@']).trim_end_matches(['.', ':']);
        let path = path.strip_prefix("./").unwrap_or(path);
        // For example `src/a.rs:10-12`.
        let path =
            path.trim_end_matches(|character: char| character.is_ascii_digit() || ":-".contains(character));
        let name = path.rsplit('/').next().unwrap_or(path);
        let is_file = name
            .rsplit_once('.')
            .is_some_and(|(stem, extension)| stem.len() > 1 && EXTENSIONS.contains(&extension));
        if is_file && files.len() < NAMES_MAX {
            files.insert(name, path);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::TestConversation;

    #[test]
    fn only_source_files_are_looked_for() {
        let text = "Done: `src/a1.rs:10-12`, see https://x.org/y.md. The call parse_all() and/or Parser::new(1), \
                    1a2b3c4 of main.rs (e.g. in v1.2.3), someName in internal/queue, ./docs/notes.md.";
        let files: Vec<&str> = files(text).into_values().collect();
        assert_eq!(files, ["src/a1.rs", "main.rs", "docs/notes.md"]);
    }

    #[test]
    fn a_file_that_is_nowhere_in_the_log_is_named() {
        let mut conversation = TestConversation::new();
        conversation.add_prompt("look at /w/src/parser.rs");
        let summary = "parse_all() in ./src/parser.rs:3 is fixed, `parse_some` in src/made_up.rs is not";
        let marked = flagged(summary.to_owned(), &conversation.0);
        assert!(marked.ends_with("(not found in the log: src/made_up.rs)"), "{marked}");
        assert_eq!(flagged("all of src/parser.rs".to_owned(), &conversation.0), "all of src/parser.rs");
    }
}
