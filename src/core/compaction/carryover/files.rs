//! Files: those that calls changed, created, deleted or read, those named in results, and definitions in edits.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::commands::program;
use super::history::{CallRecord, CallStatus, ConversationHistory};
use super::quote::{BoundedLines, noted};
use super::{Facts, LostKind, Render};
use epitome_shell::ShellCommand;
use epitome_shell::word::{LITERAL, UNKNOWN};
use epitome_thread::{Seq, ToolDisplay};

/// Longer texts are not considered paths.
const PATH_BYTES_MAX: usize = 300;

/// Bytes of a result that are searched for file names.
const RESULT_BYTES_MAX: usize = 16 * 1024;

/// Bytes of an edit that are searched for definitions.
const EDIT_BYTES_MAX: usize = 64 * 1024;
/// Files of prose, in which a line may begin with "class" or "type" as well.
const PROSE: [&str; 5] = [".md", ".mdx", ".txt", ".rst", ".html"];
/// Maximum number of definitions listed for a file.
const FILE_NAMES_MAX: usize = 14;

/// An action on a file, in increasing order of importance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FileAction {
    Read,
    Changed,
    Created,
    Deleted,
}

/// The activity of calls on a file.
struct FileActivity {
    changes: u32,
    /// The last change; `Read` if there was none.
    action: FileAction,
    changed: Seq,
    last: Seq,
}

pub(super) fn touched<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let mut newest: Vec<(String, FileActivity)> = touched_files(history).into_iter().collect();
    // The files of a patch have the same entry.
    newest.sort_by(|(path, file), (other, of)| (Reverse(file.last), path).cmp(&(Reverse(of.last), other)));
    let (changed, read): (Vec<_>, Vec<_>) =
        newest.into_iter().partition(|(_, file)| file.action != FileAction::Read);
    let rows = [("- changed: ", changed), ("- read or used: ", read)].map(|(head, files)| {
        (head, files.iter().map(|(path, file)| named(history, path, file)).collect::<Vec<_>>())
    });
    Box::new(move |bytes_max| {
        let mut lines = BoundedLines::within(bytes_max);
        for (head, names) in rows.iter().filter(|(_, names)| !names.is_empty()) {
            let row = joined(names, lines.left().saturating_sub(head.len() + 1));
            if !row.is_empty() {
                lines.push(format!("{head}{row}"));
            }
        }
        lines.text()
    })
}

/// A file in the list: the action, the number of changes if more than one, and the entry of the last one.
fn named(history: &ConversationHistory<'_>, path: &str, file: &FileActivity) -> String {
    let done = match file.action {
        FileAction::Created => "created",
        FileAction::Deleted => "deleted",
        FileAction::Changed => "",
        FileAction::Read => return path.to_owned(),
    };
    let times = if file.changes > 1 { format!("{}×", file.changes) } else { String::new() };
    format!("{path}{}", noted([done.to_owned(), times, history.place("", file.changed)]))
}

/// The files that calls changed, created or deleted, each with the entry of the last change, oldest first.
pub(super) fn changed_files(history: &ConversationHistory<'_>) -> Facts {
    let files = touched_files(history).into_iter().filter(|(_, file)| file.action != FileAction::Read);
    let mut files: Facts = files.map(|(path, file)| (LostKind::File, Some(file.changed), path)).collect();
    files.sort();
    files
}

/// Joins as many names as fit, followed by the number of the others.
pub(super) fn joined(names: &[String], bytes_max: usize) -> String {
    /// Bytes for ` and 12345 more`.
    const MORE_BYTES: usize = 16;
    let mut row = String::new();
    for (at, name) in names.iter().enumerate() {
        let rest = if at + 1 < names.len() { MORE_BYTES } else { 0 };
        if row.len() + name.len() + 2 + rest > bytes_max {
            return if row.is_empty() { row } else { format!("{row} and {} more", names.len() - at) };
        }
        if at > 0 {
            row.push_str(", ");
        }
        row.push_str(name);
    }
    row
}

/// Every file that a successful call touched, by its path relative to the working directory.
fn touched_files(history: &ConversationHistory<'_>) -> HashMap<String, FileActivity> {
    let mut files: HashMap<String, FileActivity> = HashMap::new();
    for call in &history.calls {
        // That a command ended well is often unknown, and it may fail after it has read a file.
        let is_relevant = match call.status {
            CallStatus::Succeeded => true,
            CallStatus::Running | CallStatus::Unknown => call.statements().is_some() && call.has_result(),
            CallStatus::Failed | CallStatus::Silent | CallStatus::Refused => false,
        };
        // Other shells of Windows have other rules for backslashes than Bash, and `nul`.
        let is_other_shell = has_drive(history.cwd) && !call.name.eq_ignore_ascii_case("bash");
        let is_read = !(is_other_shell
            && call.command().is_some_and(|line| line.contains('\\') || line.contains(">nul")));
        let paths = if is_relevant && is_read { paths_of(call) } else { Vec::new() };
        for (path, action) in paths {
            let path = relative(&path, history.cwd);
            if path.is_empty() || path.len() > PATH_BYTES_MAX || path.contains(['\n', '*']) {
                continue;
            }
            let file = files.entry(path).or_insert(FileActivity {
                changes: 0,
                action: FileAction::Read,
                changed: call.entry,
                last: call.entry,
            });
            file.last = call.entry;
            if action != FileAction::Read {
                file.changes += 1;
                file.changed = call.entry;
                // A created file that is changed later is still new.
                let is_new = file.action == FileAction::Created && action == FileAction::Changed;
                file.action = if is_new { FileAction::Created } else { action };
            }
        }
    }
    files
}

/// The path relative to the working directory if it is below that.
fn relative(path: &str, cwd: &Path) -> String {
    let path = without_lines(path.strip_prefix("file://").unwrap_or(path));
    let path = with_drive(path, cwd);
    match below(&path, cwd) {
        Some(below) => below,
        None => path.strip_prefix("./").unwrap_or(&path).to_owned(),
    }
}

/// The path relative to the working directory; `None` if it is elsewhere.
pub(super) fn below(path: &str, cwd: &Path) -> Option<String> {
    let directory = cwd.to_string_lossy();
    let (path, directory) = (with_drive(path, cwd), with_drive(&directory, cwd));
    Some(Path::new(&*path).strip_prefix(&*directory).ok()?.display().to_string())
}

fn has_drive(cwd: &Path) -> bool {
    cwd.as_os_str().as_encoded_bytes().get(1) == Some(&b':')
}

/// The path in the form `C:/a` if the working directory has a drive: also `c:\a`, and Git Bash's `/c/a`.
fn with_drive<'p>(path: &'p str, cwd: &Path) -> Cow<'p, str> {
    if !has_drive(cwd) {
        return Cow::Borrowed(path);
    }
    let path = path.replace('\\', "/");
    let (drive, rest) = match path.as_bytes() {
        [drive, b':', ..] => (drive, &path[2..]),
        [b'/', drive, b'/', ..] => (drive, &path[2..]),
        _ => return Cow::Owned(path),
    };
    Cow::Owned(format!("{}:{rest}", char::from(drive.to_ascii_uppercase())))
}

/// The path without `.` and `..`, as far as the directories before them are known.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::ParentDir if matches!(normal.components().next_back(), Some(Component::Normal(_))) => {
                normal.pop();
            }
            Component::CurDir => {}
            _ => normal.push(component),
        }
        normal
    })
}

/// The path without the lines behind it: `a.ts:310-345`.
fn without_lines(path: &str) -> &str {
    let is_of_lines = |c: char| c.is_ascii_digit() || matches!(c, '-' | ':');
    match path.split_once(':') {
        Some((file, lines)) if !lines.is_empty() && lines.chars().all(is_of_lines) => file,
        _ => path,
    }
}

/// Whether a call is an edit rather than a command.
pub(super) fn changes_a_file(call: &CallRecord<'_>) -> bool {
    call.command().is_none() && paths_of(call).iter().any(|(_, action)| *action != FileAction::Read)
}

/// The files of a call, with its action on each.
fn paths_of(call: &CallRecord<'_>) -> Vec<(String, FileAction)> {
    let mut paths: Vec<(String, FileAction)> = Vec::new();
    // The result of Epitome's tools contains the diff, and whether the file existed before.
    for shown in call.shown {
        if let ToolDisplay::Diff { path, old, .. } = shown {
            let action = if old.is_none() { FileAction::Created } else { FileAction::Changed };
            paths.push((path.to_string_lossy().into_owned(), action));
        }
    }
    if !paths.is_empty() {
        return paths;
    }
    if call.command().is_some() {
        return paths_in_command(call);
    }
    if let Some(patch) = call.patch() {
        paths.extend(patched(patch).map(|(path, action, _)| (path.to_owned(), action)));
    }
    let Some(action) = action_of(call) else { return paths };
    match call.path() {
        Some(path) => paths.push((path.to_owned(), action)),
        None if paths.is_empty() => {
            let locations = call.card.locations.iter();
            paths.extend(locations.map(|at| (at.path.to_string_lossy().into_owned(), action)));
        }
        None => {}
    }
    paths
}

/// The files that the programs on a command line read, write and delete.
fn paths_in_command(call: &CallRecord<'_>) -> Vec<(String, FileAction)> {
    let mut found: Vec<(String, FileAction)> = Vec::new();
    let mut directory = PathBuf::from(call.directory().unwrap_or_default());
    let pipelines = call.statements().into_iter().flatten().flat_map(|statement| &statement.pipelines);
    for command in pipelines.flat_map(|pipeline| &pipeline.commands).flat_map(ShellCommand::all) {
        let words = &command.words[..];
        let mut add = |path: &str, action| {
            // A path in the home is in no other directory.
            let path =
                if path.starts_with('~') { PathBuf::from(path) } else { normal(&directory.join(path)) };
            found.push((path.to_string_lossy().into_owned(), action))
        };
        command.writes.iter().for_each(|path| add(path, FileAction::Changed));
        let is_git = program(command) == "git";
        // `HEAD:src/a.rs`
        let path_of = |word| if is_git { str::rsplit(word, ':').next().unwrap_or(word) } else { word };
        let files = words.iter().skip(1).map(|word| path_of(word.as_str())).filter(|path| is_path(path));
        match program(command) {
            "cd" => {
                if let [_, to] = words
                    && !to.contains([UNKNOWN, LITERAL, '*', '~'])
                    && to != "-"
                {
                    directory.push(to);
                }
            }
            "apply_patch" => {
                let patch = command.document.as_ref().or(words.get(1));
                patch.iter().flat_map(|patch| patched(patch)).for_each(|(path, action, _)| add(path, action));
            }
            "sed" | "perl" if words.iter().any(|word| word.starts_with("-i")) => {
                files.for_each(|path| add(path, FileAction::Changed));
            }
            "tee" => files.for_each(|path| add(path, FileAction::Changed)),
            "rm" => files.for_each(|path| add(path, FileAction::Deleted)),
            "mv" => {
                let files: Vec<&str> = files.collect();
                let target = words.last().map_or("", String::as_str);
                let moved = files.iter().filter(|path| **path != target);
                let is_file = files.contains(&target);
                for path in moved {
                    add(path, FileAction::Deleted);
                    let below = Path::new(target).join(file_name(path));
                    let target = if is_file { Path::new(target) } else { &below };
                    add(&target.to_string_lossy(), FileAction::Created);
                }
            }
            // It is not known which of the files is new; and arguments of the others are patterns or addresses.
            "cp" | "find" | "gh" | "glab" | "curl" => {}
            _ => files.for_each(|path| add(path, FileAction::Read)),
        }
    }
    found
}

/// Whether a word is the path of a file, as far as its form tells.
fn is_path(word: &str) -> bool {
    !word.contains([UNKNOWN, LITERAL]) && paths_in(word).eq([word.strip_prefix("./").unwrap_or(word)])
}

/// The action of a call on the file it names; `None` if it does not touch a file, such as a search.
fn action_of(call: &CallRecord<'_>) -> Option<FileAction> {
    // An editing tool with several commands.
    match call.input.get("command").and_then(Value::as_str) {
        Some("view") => return Some(FileAction::Read),
        Some("create") => return Some(FileAction::Created),
        Some("str_replace" | "insert" | "undo_edit") => return Some(FileAction::Changed),
        Some(_) | None => {}
    }
    let name = call.name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(&["grep", "glob", "search", "find", "list"]) {
        None
    } else if has(&["delete", "remove"]) {
        Some(FileAction::Deleted)
    } else if has(&[
        "edit", "write", "patch", "apply", "replace", "insert", "create", "update", "rename", "move",
    ]) {
        Some(FileAction::Changed)
    } else {
        Some(FileAction::Read)
    }
}

/// The files of a patch, each with the lines below its head.
fn patched(patch: &str) -> impl Iterator<Item = (&str, FileAction, &str)> {
    const HEADS: [(&str, FileAction); 4] = [
        ("*** Update File: ", FileAction::Changed),
        ("*** Add File: ", FileAction::Created),
        ("*** Delete File: ", FileAction::Deleted),
        ("*** Move to: ", FileAction::Created),
    ];
    let mut rest = patch;
    std::iter::from_fn(move || {
        while let Some((line, behind)) = rest.split_once('\n').or((!rest.is_empty()).then_some((rest, ""))) {
            rest = behind;
            let head = HEADS.iter().find_map(|(head, action)| Some((line.strip_prefix(head)?, *action)));
            if let Some((path, action)) = head {
                let end = behind.find("\n*** ").unwrap_or(behind.len());
                return Some((path.trim(), action, &behind[..end]));
            }
        }
        None
    })
}

pub(super) fn mentioned<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    let touched = touched_files(history);
    let known: HashSet<&str> = touched.keys().map(|path| file_name(path)).collect();
    // By name, the last result that mentions the file, and the path in the first.
    let mut files: HashMap<&str, (Seq, &str)> = HashMap::new();
    for call in &history.calls {
        let text = call.text();
        for path in paths_in(&text[..text.floor_char_boundary(RESULT_BYTES_MAX)]) {
            let name = file_name(path);
            if !known.contains(name) {
                files.entry(name).or_insert((call.entry, path)).0 = call.entry;
            }
        }
    }
    let mut files: Vec<(Seq, &str)> = files.into_values().collect();
    files.sort_by_key(|(last, path)| (Reverse(*last), *path));
    let names: Vec<String> = files.into_iter().map(|(.., path)| relative(path, history.cwd)).collect();
    Box::new(move |bytes_max| joined(&names, bytes_max))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The words of a text that are file paths: a name with a common extension.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    let is_of_path = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-' | b'+' | b'@' | b'~')
    };
    let bytes = text.as_bytes();
    let mut from = 0;
    std::iter::from_fn(move || {
        while let Some(dot) = memchr::memchr(b'.', &bytes[from..]).map(|at| from + at) {
            let begin =
                bytes[from..dot].iter().rposition(|byte| !is_of_path(*byte)).map_or(from, |at| from + at + 1);
            let end =
                bytes[dot..].iter().position(|byte| !is_of_path(*byte)).map_or(bytes.len(), |at| dot + at);
            from = end.max(dot + 1);
            // A path with other characters, of which this is the end; or a call.
            let is_part =
                begin > 0 && matches!(bytes[begin - 1], b']' | b')' | b'}' | b'%' | b'\\' | b'$' | b'*');
            if is_part || bytes.get(end) == Some(&b'(') {
                continue;
            }
            // Path characters are ASCII, so these are character boundaries.
            let word = text[begin..end].trim_end_matches(['.', '-', '/']);
            // The prefixes of the two sides of a diff.
            let word = ["./", "a/", "b/"].iter().find_map(|side| word.strip_prefix(side)).unwrap_or(word);
            let Some((stem, extension)) = word.rsplit_once('.') else { continue };
            let stem = stem.rsplit('/').next().unwrap_or(stem);
            // `main..HEAD` is a range of commits.
            let has_name = stem.bytes().any(|byte| byte.is_ascii_alphabetic()) && !stem.ends_with('.');
            // `fmt.Println`, `user@host.org`, `//host.org` and `roles/cloudsql.admin` are not files.
            let is_file = is_source(extension) && has_name && word.len() <= PATH_BYTES_MAX;
            let is_other = ["//", "...", "--"].iter().any(|begin| word.starts_with(begin));
            if is_file && !is_other && !word.contains('@') {
                return Some(word);
            }
        }
        None
    })
}

/// Extensions by which a name is recognized as a file.
fn is_source(extension: &str) -> bool {
    const EXTENSIONS: [&str; 70] = [
        "rs", "go", "ts", "tsx", "js", "jsx", "mjs", "cjs", "mts", "py", "pyi", "ipynb", "rb", "java", "kt",
        "kts", "swift", "c", "h", "cc", "cpp", "hpp", "cs", "php", "lua", "sh", "bash", "zsh", "fish", "ps1",
        "sql", "md", "mdx", "rst", "txt", "json", "jsonl", "json5", "yaml", "yml", "toml", "xml", "html",
        "css", "scss", "svg", "vue", "svelte", "astro", "dart", "ex", "exs", "erl", "hs", "ml", "clj",
        "scala", "jl", "tf", "hcl", "proto", "graphql", "prisma", "gradle", "cmake", "nix", "lock", "ini",
        "csv", "tsv",
    ];
    EXTENSIONS.contains(&extension)
}

/// A definition in one of the common languages: the keyword and the name after it. Variables only at the top level.
static DEFINITION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?m)^[+ \t]*(?:(?:export|pub(?:\([a-z]+\))?|async|static|public|private|protected|default|abstract|unsafe) +)*(?:func(?: *\([^)\n]*\))?|fn|def|class|struct|enum|trait|interface|type|function|module|impl) +([A-Za-z_][A-Za-z0-9_]{3,})|^\+?(?:export +|pub +)?(?:const|static|var|let|val) +([A-Za-z_][A-Za-z0-9_]{3,})",
    )
    .expect("a valid pattern")
});

pub(super) fn defined<'a>(history: &ConversationHistory<'a>) -> Render<'a> {
    // For each file, the entry in which each name was defined last.
    let mut files: BTreeMap<String, HashMap<&str, Seq>> = BTreeMap::new();
    for call in &history.calls {
        if call.status != CallStatus::Succeeded || call.command().is_some() {
            continue;
        }
        let new =
            ["new_string", "new_text", "new_str", "newText", "newString", "content", "file_text", "text"];
        let Some(new) = call.input_text(&new).or_else(|| call.patch()) else { continue };
        let is_code = |path: &str| !PROSE.iter().any(|extension| path.ends_with(extension));
        let mut edits: Vec<(String, &str)> =
            patched(new).map(|(path, _, lines)| (path.to_owned(), lines)).collect();
        if edits.is_empty() {
            let changed = paths_of(call).into_iter().find(|(_, action)| *action != FileAction::Read);
            edits.extend(changed.map(|(path, _)| (path, new)));
        }
        for (path, lines) in edits.into_iter().filter(|(path, _)| is_code(path)) {
            for name in names_in(lines) {
                files.entry(relative(&path, history.cwd)).or_default().insert(name, call.entry);
            }
        }
    }
    let mut files: Vec<(Option<Seq>, String)> = files
        .into_iter()
        .map(|(path, names)| {
            let mut names: Vec<(&str, Seq)> = names.into_iter().collect();
            names.sort_by_key(|(name, entry)| (Reverse(*entry), *name));
            names.truncate(FILE_NAMES_MAX);
            let newest = names.first().map(|(_, entry)| *entry);
            let names: Vec<&str> = names.into_iter().map(|(name, _)| name).collect();
            (newest, format!("- {}: {}", file_name(&path), names.join(", ")))
        })
        .collect();
    files.sort_by_key(|(newest, _)| Reverse(*newest));
    Box::new(move |bytes_max| BoundedLines::of(bytes_max, files.iter().map(|(_, line)| line)).text())
}

fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let text = &text[..text.floor_char_boundary(EDIT_BYTES_MAX)];
    DEFINITION.captures_iter(text).filter_map(|found| found.get(1).or(found.get(2))).map(|name| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_an_extension_are_paths() {
        for (text, paths) in [
            ("src/a.rs:12: fn main", vec!["src/a.rs"]),
            ("see ./docs/x.md, README.md.", vec!["docs/x.md", "README.md"]),
            ("fmt.Println(1.5) v1.2.3 e.g. a...b origin/main..HEAD", vec![]),
            ("person@example.com 请看src/a.rs。", vec!["src/a.rs"]),
            ("+++ b/cmd/hooks.go|x.tar.gz https://host.org/a", vec!["cmd/hooks.go"]),
            (".", vec![]),
        ] {
            assert_eq!(paths_in(text).collect::<Vec<_>>(), paths, "{text}");
        }
    }
}
