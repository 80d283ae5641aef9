//! Parses a patch: OpenAI's format (`*** Begin Patch`), or a unified diff. Pure. It doesn't access the files, and it
//! rejects lines that it doesn't understand.

use crate::ToolError;

/// Maximum size of a patch in bytes; several times what a model writes in one reply.
pub const PATCH_BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of files per patch; their old and new texts are in memory together.
pub const FILES_MAX: usize = 200;

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const ADD: &str = "*** Add File:";
const DELETE: &str = "*** Delete File:";
const UPDATE: &str = "*** Update File:";
const MOVE: &str = "*** Move to:";
const END_OF_FILE: &str = "*** End of File";
const NOWHERE: &str = "/dev/null";

/// The change of one file, identified by the path in the patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilePatch {
    Add { path: String, text: String },
    Delete { path: String },
    Update { path: String, to: Option<String>, hunks: Vec<Hunk> },
}

impl FilePatch {
    /// All paths that the change touches.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let (path, to) = match self {
            FilePatch::Add { path, .. } | FilePatch::Delete { path } => (path, None),
            FilePatch::Update { path, to, .. } => (path, to.as_deref()),
        };
        std::iter::once(path.as_str()).chain(to)
    }
}

/// Consecutive lines of a file, and their changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hunk {
    /// Lines that precede it, from outer to inner: `class A`, `def b`.
    pub headers: Vec<String>,
    /// The starting line in a unified diff, from 1.
    pub line: Option<usize>,
    pub lines: Vec<PatchLine>,
    /// Whether it ends at the end of the file.
    pub at_end: bool,
    /// Whether the new file ends with a newline, if specified.
    pub last_break: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchLine {
    Same(String),
    Out(String),
    In(String),
}

/// Parses a patch. The error is a message for the model that quotes the offending line.
pub fn parse(text: &str) -> Result<Vec<FilePatch>, ToolError> {
    if text.len() > PATCH_BYTES_MAX {
        return Err(ToolError::new(format!("The patch has more than {PATCH_BYTES_MAX} bytes. Split it.")));
    }
    let lines: Vec<&str> = text.lines().collect();
    let begin = lines.iter().position(|line| line.trim() == BEGIN);
    let files = match begin {
        Some(begin) => envelope(&lines, begin + 1)?,
        None if lines.iter().any(|line| line.starts_with("--- ") || line.starts_with("diff --git ")) => {
            unified(&lines)?
        }
        None => {
            return Err(ToolError::new(format!(
                "The patch begins neither with `{BEGIN}` nor like a unified diff (`--- a/path`). Write it as the \
                 tool's description says."
            )));
        }
    };
    match files.len() {
        0 => Err(ToolError::new(
            "The patch names no file. After `*** Begin Patch` comes `*** Update File: path`, `*** Add File: \
                  path` or `*** Delete File: path`.",
        )),
        count if count > FILES_MAX => Err(ToolError::new(format!(
            "The patch is of {count} files; at most {FILES_MAX} are taken at once."
        ))),
        _ => Ok(files),
    }
}

fn wrong<T>(at: usize, line: &str, why: &str) -> Result<T, ToolError> {
    Err(ToolError::new(format!("Line {} of the patch is wrong, {line:?}: {why}.", at + 1)))
}

// ── The format of `*** Begin Patch` ────────────────────────────────────────────────────────────────

fn envelope(lines: &[&str], begin: usize) -> Result<Vec<FilePatch>, ToolError> {
    let mut files: Vec<FilePatch> = Vec::new();
    for (at, line) in lines.iter().enumerate().skip(begin) {
        if line.trim_end() == END {
            without_gap(files.last_mut(), &lines[..at]);
            return finished(files);
        }
        if let Some(file) = file_of(line) {
            without_gap(files.last_mut(), &lines[..at]);
            if file.paths().any(str::is_empty) {
                return wrong(at, line, "the path is missing");
            }
            files.push(file);
            continue;
        }
        match files.last_mut() {
            None if line.trim().is_empty() => {}
            None => {
                return wrong(
                    at,
                    line,
                    "it must be `*** Update File: path`, `*** Add File: path` or `*** Delete File: path`",
                );
            }
            Some(FilePatch::Add { text, .. }) => match line.strip_prefix('+') {
                Some(added) => {
                    text.push_str(added);
                    text.push('\n');
                }
                None if line.trim().is_empty() => {}
                None => return wrong(at, line, "each line of a new file begins with `+`"),
            },
            Some(FilePatch::Delete { .. }) if line.trim().is_empty() => {}
            Some(FilePatch::Delete { .. }) => {
                return wrong(at, line, "a deleted file has no lines");
            }
            Some(FilePatch::Update { to, hunks, .. }) => {
                if let Some(path) = line.strip_prefix(MOVE) {
                    *to = Some(path.trim().to_owned());
                } else {
                    hunk_line(hunks, at, line)?;
                }
            }
        }
    }
    Err(ToolError::new(format!(
        "The patch has no `{END}` at its end, so it may be cut off. Nothing was changed; write it again, in \
                 several patches if it is long."
    )))
}

fn file_of(line: &str) -> Option<FilePatch> {
    let after = |head: &str| line.strip_prefix(head).map(|path| path.trim().to_owned());
    if let Some(path) = after(ADD) {
        return Some(FilePatch::Add { path, text: String::new() });
    }
    if let Some(path) = after(DELETE) {
        return Some(FilePatch::Delete { path });
    }
    after(UPDATE).map(|path| FilePatch::Update { path, to: None, hunks: Vec::new() })
}

fn hunk_line(hunks: &mut Vec<Hunk>, at: usize, line: &str) -> Result<(), ToolError> {
    if let Some(header) = line.strip_prefix("@@") {
        // Consecutive headers narrow down one position.
        if hunks.last().is_none_or(|hunk| !hunk.lines.is_empty()) {
            hunks.push(Hunk::default());
        }
        let hunk = hunks.last_mut().expect("one was pushed where there was none");
        match range(header) {
            Some(line) => hunk.line = Some(line),
            None if header.trim().is_empty() => {}
            None => hunk.headers.push(header.strip_prefix(' ').unwrap_or(header).trim_end().to_owned()),
        }
        return Ok(());
    }
    if line.trim_end() == END_OF_FILE {
        if let Some(hunk) = hunks.last_mut() {
            hunk.at_end = true;
        }
        return Ok(());
    }
    // The first hunk needs no header, and neither does one after an end-of-file marker.
    if hunks.last().is_none_or(|hunk| hunk.at_end) {
        hunks.push(Hunk::default());
    }
    let hunk = hunks.last_mut().expect("one was pushed where there was none");
    match changed(line) {
        Some(changed) => hunk.lines.push(changed),
        None => {
            return wrong(
                at,
                line,
                "a line of a hunk begins with a blank (unchanged), `-` (removed) or `+` (added)",
            );
        }
    }
    Ok(())
}

/// Parses a line of a hunk. An empty line is context whose leading space was lost.
fn changed(line: &str) -> Option<PatchLine> {
    let rest = || line[1..].to_owned();
    match line.bytes().next() {
        None => Some(PatchLine::Same(String::new())),
        Some(b' ') => Some(PatchLine::Same(rest())),
        Some(b'-') => Some(PatchLine::Out(rest())),
        Some(b'+') => Some(PatchLine::In(rest())),
        Some(_) => None,
    }
}

/// Removes the empty lines between two sections of a patch from the preceding hunk; they don't belong to the file.
fn without_gap(file: Option<&mut FilePatch>, before: &[&str]) {
    let Some(FilePatch::Update { hunks, .. }) = file else { return };
    let Some(hunk) = hunks.last_mut() else { return };
    let gap = before.iter().rev().take_while(|line| line.is_empty()).count();
    hunk.lines.truncate(hunk.lines.len().saturating_sub(gap));
}

fn finished(mut files: Vec<FilePatch>) -> Result<Vec<FilePatch>, ToolError> {
    for file in &mut files {
        let FilePatch::Update { path, to, hunks } = file else { continue };
        hunks.retain(|hunk| !(hunk.lines.is_empty() && hunk.headers.is_empty()));
        if hunks.iter().any(|hunk| hunk.lines.is_empty()) {
            return Err(ToolError::new(format!("A hunk of {path} has an `@@` line and nothing below it.")));
        }
        if hunks.is_empty() && to.is_none() {
            return Err(ToolError::new(format!(
                "The patch changes nothing in {path}: there is no hunk below it."
            )));
        }
    }
    Ok(files)
}

// ── Unified diffs ──────────────────────────────────────────────────────────────────────────────────

fn unified(lines: &[&str]) -> Result<Vec<FilePatch>, ToolError> {
    let mut files: Vec<FilePatch> = Vec::new();
    let mut renamed: Option<&str> = None;
    // Remaining lines of the old and new file, according to the hunk header.
    let mut left = (0_usize, 0_usize);
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let is_head =
            line.starts_with("--- ") && lines.get(at + 1).is_some_and(|next| next.starts_with("+++ "));
        let in_hunk = left.0 > 0 && left.1 > 0;
        if is_head && !in_hunk {
            files.push(between(at, &line[4..], &lines[at + 1][4..])?);
            at += 1;
        } else if line.starts_with("diff --git ") {
            left = (0, 0);
        } else if let Some(from) = line.strip_prefix("rename from ") {
            renamed = Some(from);
        } else if let (Some(to), Some(from)) = (line.strip_prefix("rename to "), renamed) {
            let (path, to) = (from.trim().to_owned(), Some(to.trim().to_owned()));
            files.push(FilePatch::Update { path, to, hunks: Vec::new() });
            renamed = None;
        } else if line.starts_with("GIT binary patch") || line.starts_with("Binary files ") {
            return wrong(at, line, "binary files cannot be patched here");
        } else if let Some(header) = line.strip_prefix("@@") {
            let Some(start) = range(header) else {
                return wrong(
                    at,
                    line,
                    "a hunk of a unified diff begins with `@@ -line,count +line,count @@`",
                );
            };
            left = counts(header);
            let hunk = Hunk { line: Some(start), ..Hunk::default() };
            match files.last_mut() {
                Some(FilePatch::Update { hunks, .. }) => hunks.push(hunk),
                Some(FilePatch::Add { .. } | FilePatch::Delete { .. }) => {}
                None => return wrong(at, line, "no file was named before it"),
            }
        } else if line.starts_with('\\') {
            no_break(files.last_mut());
        } else if line.is_empty() && left == (0, 0) {
            // The line is between two files.
        } else if let Some(changed) = changed(line) {
            let (old, new) = match &changed {
                PatchLine::Same(_) => (1, 1),
                PatchLine::Out(_) => (1, 0),
                PatchLine::In(_) => (0, 1),
            };
            left = (left.0.saturating_sub(old), left.1.saturating_sub(new));
            match files.last_mut() {
                Some(FilePatch::Update { hunks, .. }) => {
                    if let Some(hunk) = hunks.last_mut() {
                        hunk.lines.push(changed);
                    }
                }
                Some(FilePatch::Add { text, .. }) => {
                    if let PatchLine::In(added) = changed {
                        text.push_str(&added);
                        text.push('\n');
                    }
                }
                Some(FilePatch::Delete { .. }) | None => {}
            }
        }
        at += 1;
    }
    finished(merged(files))
}

/// Joins a file's rename header with the hunks that follow it.
fn merged(files: Vec<FilePatch>) -> Vec<FilePatch> {
    let mut merged: Vec<FilePatch> = Vec::new();
    for file in files {
        if let (
            Some(FilePatch::Update { to: Some(to), hunks: none, .. }),
            FilePatch::Update { path, to: named, hunks },
        ) = (merged.last_mut(), &file)
            && none.is_empty()
            && named.as_ref().unwrap_or(path) == to
        {
            *none = hunks.clone();
            continue;
        }
        merged.push(file);
    }
    merged
}

/// The file named by the `---` and `+++` lines.
fn between(at: usize, old: &str, new: &str) -> Result<FilePatch, ToolError> {
    // Some tools append a timestamp after a tab.
    let name = |text: &str| text.split('\t').next().unwrap_or(text).trim().trim_matches('"').to_owned();
    let (old, new) = (name(old), name(new));
    let is_git =
        [(&old, "a/"), (&new, "b/")].iter().all(|(path, head)| path.starts_with(head) || *path == NOWHERE);
    let plain = |path: String, head| match is_git {
        true => path.strip_prefix(head).map(str::to_owned).unwrap_or(path),
        false => path,
    };
    match (old == NOWHERE, new == NOWHERE) {
        (true, true) => wrong(at, NOWHERE, "one of the two must be a file"),
        (true, false) => Ok(FilePatch::Add { path: plain(new, "b/"), text: String::new() }),
        (false, true) => Ok(FilePatch::Delete { path: plain(old, "a/") }),
        (false, false) => {
            let (path, to) = (plain(old, "a/"), plain(new, "b/"));
            let to = (to != path).then_some(to);
            Ok(FilePatch::Update { path, to, hunks: Vec::new() })
        }
    }
}

/// Handles `\ No newline at end of file`, which refers to the preceding line.
fn no_break(file: Option<&mut FilePatch>) {
    match file {
        Some(FilePatch::Add { text, .. }) => {
            text.pop();
        }
        Some(FilePatch::Update { hunks, .. }) => {
            if let Some(hunk) = hunks.last_mut() {
                hunk.last_break = Some(matches!(hunk.lines.last(), Some(PatchLine::Out(_))));
            }
        }
        Some(FilePatch::Delete { .. }) | None => {}
    }
}

/// Returns the first line of the old file in ` -3,7 +3,8 @@ fn main`.
fn range(header: &str) -> Option<usize> {
    let (old, rest) = header.trim_start().strip_prefix('-')?.split_once(' ')?;
    rest.trim_start().strip_prefix('+')?.split_once("@@")?;
    old.split(',').next()?.parse().ok()
}

fn counts(header: &str) -> (usize, usize) {
    let mut counts = header.split_whitespace().take(2).map(|range| {
        let range = range.trim_start_matches(['-', '+']);
        range.split_once(',').map_or(1, |(_, count)| count.parse().unwrap_or(0))
    });
    (counts.next().unwrap_or(0), counts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(text: &str) -> PatchLine {
        PatchLine::Same(text.to_owned())
    }
    fn out(text: &str) -> PatchLine {
        PatchLine::Out(text.to_owned())
    }
    fn put(text: &str) -> PatchLine {
        PatchLine::In(text.to_owned())
    }

    #[test]
    fn every_operation_is_parsed() {
        let patch = "*** Begin Patch\n*** Add File: new/a.txt\n+one\n+\n+two\n*** Update File: src/b.py\n*** Move to: src/c.py\n\
                     @@ class A\n@@   def f(self):\n     x = 1\n-    y = 2\n+    y = 3\n\n*** End of File\n*** Update File: d\n-x\n+y\n\n\
                     *** Delete File: old.txt\n*** End Patch\n";
        let files = parse(patch).expect("well formed");
        let hunk = Hunk {
            headers: vec!["class A".into(), "  def f(self):".into()],
            lines: vec![same("    x = 1"), out("    y = 2"), put("    y = 3"), same("")],
            at_end: true,
            ..Hunk::default()
        };
        let plain = Hunk { lines: vec![out("x"), put("y")], ..Hunk::default() };
        assert_eq!(
            files,
            [
                FilePatch::Add { path: "new/a.txt".into(), text: "one\n\ntwo\n".into() },
                FilePatch::Update { path: "src/b.py".into(), to: Some("src/c.py".into()), hunks: vec![hunk] },
                FilePatch::Update { path: "d".into(), to: None, hunks: vec![plain] },
                FilePatch::Delete { path: "old.txt".into() },
            ]
        );
    }

    #[test]
    fn shell_heredoc_around_a_patch_is_ignored() {
        let patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: a\n*** End Patch\nEOF\n";
        assert_eq!(parse(patch), Ok(vec![FilePatch::Delete { path: "a".into() }]));
    }

    #[test]
    fn unified_diff_is_parsed_with_its_line_numbers() {
        let diff = "diff --git a/x.c b/x.c\nindex 1..2 100644\n--- a/x.c\n+++ b/x.c\n@@ -3,3 +3,3 @@ int main()\n a\n--- b\n+++ c\n d\n\
                    \\ No newline at end of file\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+hi\n\\ No newline at end of file\n\
                    --- a/gone\t2020-01-01\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n\
                    diff --git a/o b/p\nsimilarity index 90%\nrename from o\nrename to p\n--- a/o\n+++ b/p\n@@ -1 +1 @@\n-1\n+2\n";
        let hunk = |line, lines| Hunk { line: Some(line), lines, ..Hunk::default() };
        let first =
            Hunk { last_break: Some(false), ..hunk(3, vec![same("a"), out("-- b"), put("++ c"), same("d")]) };
        assert_eq!(
            parse(diff).expect("well formed"),
            [
                FilePatch::Update { path: "x.c".into(), to: None, hunks: vec![first] },
                FilePatch::Add { path: "new".into(), text: "hi".into() },
                FilePatch::Delete { path: "gone".into() },
                FilePatch::Update {
                    path: "o".into(),
                    to: Some("p".into()),
                    hunks: vec![hunk(1, vec![out("1"), put("2")])]
                },
            ]
        );
        let plain = parse("--- x.c\n+++ x.c\n@@ -1 +1 @@\n-a\n+b\n").expect("well formed");
        assert_eq!(plain[0].paths().collect::<Vec<_>>(), ["x.c"]);
    }

    #[test]
    fn errors_quote_the_offending_line() {
        for (patch, part) in [
            ("", "begins neither"),
            ("*** Begin Patch\n*** End Patch", "names no file"),
            ("*** Begin Patch\n*** Update File: a\n-x\n+y", "no `*** End Patch`"),
            ("*** Begin Patch\nhello\n*** End Patch", "Line 2 of the patch is wrong, \"hello\""),
            ("*** Begin Patch\n*** Add File: a\none\n*** End Patch", "Line 3"),
            ("*** Begin Patch\n*** Add File:\n+one\n*** End Patch", "the path is missing"),
            ("*** Begin Patch\n*** Update File: a\n@@\nx\n*** End Patch", "Line 4"),
            ("*** Begin Patch\n*** Update File: a\n*** End Patch", "changes nothing in a"),
            ("*** Begin Patch\n*** Update File: a\n@@ fn x\n*** End Patch", "nothing below it"),
            ("*** Begin Patch\n*** Delete File: a\n+x\n*** End Patch", "Line 3"),
            ("--- a/x\n+++ b/x\n@@ fn x\n-a\n", "Line 3"),
            ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "binary"),
        ] {
            let why = parse(patch).expect_err("it is wrong");
            assert!(why.to_string().contains(part), "{patch:?}: {why}");
        }
    }
}
