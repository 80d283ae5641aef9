//! `file_edit`: replaces an exact text in a file. It never guesses the position: if the text doesn't occur exactly,
//! it changes nothing and reports similar text of the file.

use std::path::Path;

use serde_json::Value;

use epitome_thread::diff::similar_texts;
use epitome_thread::{CallDisplay, Location, ToolDisplay, ToolKind, ToolSpec};

use super::disk::{CancelFlag, CurrentContent};
use super::notebook::Notebook;
use super::schema::{self, InputKey};
use super::{
    Access, BoxFuture, Needs, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input,
    read_state, truncate,
};

/// Maximum size in bytes of a file in which the line of an edit is located before the call runs.
const LOCATED_BYTES_MAX: u64 = 256 * 1024;

const PLACES_LISTED_MAX: usize = 10;
const LINES_COMPARED_MAX: usize = 20_000;

/// Maximum byte pairs compared to find the most similar line: about a second of work.
const PAIRS_COMPARED_MAX: usize = 100_000_000;

/// Minimum similarity of the nearest line, from 0 to 1.
const NEARNESS: f32 = 0.6;

const QUOTE_BYTES_MAX: usize = 200;

pub struct FileEdit;

impl ParsedTool for FileEdit {
    type Call = FileEditCall;
    const NEEDS: Needs = Needs::EditorBuffers;

    fn spec(&self) -> ToolSpec {
        schema::spec(
            "file_edit",
            "Replaces old_text by new_text in a file that you have read. old_text must be in the file exactly as \
             given, white space included and without file_read's line numbers, and only once unless replace_all is \
             true: take enough lines around the place to make it the only one. An empty new_text deletes. To make a \
             new file use file_write.",
            [
                InputKey::text("file_path", schema::FILE).required(),
                InputKey::text("old_text", "The text to replace, exactly as in the file.").required(),
                InputKey::text("new_text", "The text to put there.").required(),
                InputKey::flag("replace_all", "Replace every occurrence; false if left out."),
            ],
        )
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let mut card = disk::display("Edit", ToolKind::Edit, ("file_path", "a file"), input, workspace);
        if let (Some(location), Ok(call)) = (card.locations.first_mut(), self.parse(input, workspace)) {
            location.line = first_line(&call, workspace);
        }
        card
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<FileEditCall, ToolError> {
        let call = FileEditCall {
            path: input::named(input, "file_path")?,
            old: input::text(input, "old_text")?,
            new: input::text(input, "new_text")?,
            all: input::flag(input, "replace_all")?,
        };
        if call.old.is_empty() {
            return Err(ToolError::new(
                "`old_text` is empty. Give the text to replace, or use file_write to write a whole \
                        file.",
            ));
        }
        if call.old == call.new {
            return Err(ToolError::new(
                "`old_text` and `new_text` are the same; there is nothing to change.",
            ));
        }
        Ok(call)
    }

    fn access(&self, call: FileEditCall, workspace: &Workspace) -> Result<Access, ToolError> {
        Ok(Access::Write(vec![workspace.real(&call.path)]))
    }

    fn preview(&self, call: FileEditCall, context: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        disk::preview(context, move |context| {
            let real = context.permitted(&call.path)?;
            let now = now(&real, context)?;
            let edit = edited(&call, &real, &now.text, &context.workspace)?;
            let path = context.workspace.target(&real);
            Ok(vec![ToolDisplay::Diff { path, old: Some(now.text), new: edit.text }])
        })
    }

    fn check(&self, call: FileEditCall, context: ToolContext) -> BoxFuture<Result<(), ToolError>> {
        disk::check(context, move |context| prepare(&call, context).map(drop))
    }

    fn run(&self, call: FileEditCall, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, stop| run(&call, context, stop))
    }
}

pub struct FileEditCall {
    path: String,
    old: String,
    new: String,
    all: bool,
}

/// Returns the line at which the text to replace begins, if it is found quickly: editors that follow the agent scroll
/// to it.
fn first_line(call: &FileEditCall, workspace: &Workspace) -> Option<u32> {
    let text = disk::small_text(&workspace.real(&call.path), LOCATED_BYTES_MAX, workspace)?;
    let old = line_ends(&text, &call.old)(&call.old);
    let before = &text[..text.find(&old)?];
    u32::try_from(before.matches('\n').count() + 1).ok()
}

fn run(call: &FileEditCall, context: &ToolContext, stop: &CancelFlag) -> Result<ToolResult, ToolError> {
    let workspace = &*context.workspace;
    let real = context.permitted(&call.path)?;
    let name = workspace.display(&real);
    let (now, edit) = prepare(call, context)?;
    let saved = disk::put(&real, &edit.text, now.is_unsaved, context, stop)?;
    let done = match edit.lines.as_slice() {
        [line] => format!("Edited {name} at line {line}."),
        lines => format!("Edited {name} at {} places, lines {}.", lines.len(), listed(lines)),
    };
    let path = workspace.target(&real);
    let diff = ToolDisplay::Diff { path: path.clone(), old: Some(now.text), new: edit.text.clone() };
    let line = edit.lines.first().and_then(|line| u32::try_from(*line).ok());
    let result = disk::changed(&real, &edit.text, done, saved, vec![diff], context);
    Ok(ToolResult { locations: vec![Location { path, line }], ..result })
}

/// Returns the file's current text and its edited form, if the model knows the file's current state. The
/// error is a message for the model.
fn prepare(call: &FileEditCall, context: &ToolContext) -> Result<(CurrentText, EditedText), ToolError> {
    let workspace = &*context.workspace;
    let real = context.permitted(&call.path)?;
    let name = workspace.display(&real);
    let now = now(&real, context)?;
    if now.is_unsaved {
        context.unsaved.refuse_change(&name)?;
    }
    let state = read_state::state_of(now.text.as_bytes());
    context.files.check(&real, &state, Some(&now.text), &name)?;
    let edit = edited(call, &real, &now.text, workspace)?;
    Ok((now, edit))
}

/// The file's text: unsaved text of the user's editor, or else the text on the disk.
struct CurrentText {
    text: String,
    is_unsaved: bool,
}

fn now(real: &Path, context: &ToolContext) -> Result<CurrentText, ToolError> {
    let CurrentContent { bytes, is_unsaved } = disk::current(real, context)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        let name = context.workspace.display(real);
        format!("{name} is not UTF-8 text. Change it with a command instead.")
    })?;
    Ok(CurrentText { text, is_unsaved })
}

fn edited(
    call: &FileEditCall,
    real: &Path,
    text: &str,
    workspace: &Workspace,
) -> Result<EditedText, ToolError> {
    let book = Notebook::read(real, text);
    let shown = book.as_ref().map_or(text, Notebook::text);
    let edited = edit(shown, &call.old, &call.new, call.all).and_then(|edited| match book {
        Some(book) => Ok(EditedText { text: book.with(&edited.text)?, ..edited }),
        None => Ok(edited),
    });
    edited.map_err(|why| why.about(&workspace.display(real)))
}

#[derive(Debug, PartialEq, Eq)]
struct EditedText {
    text: String,
    /// The line of each change in the old text, from 1.
    lines: Vec<usize>,
}

/// Replaces one or all occurrences of a text. Both texts may use LF in a CRLF file, or CRLF in a file without it; the replacement
/// gets the line ends of the file.
fn edit(text: &str, old: &str, new: &str, all: bool) -> Result<EditedText, ToolError> {
    let converted = line_ends(text, old);
    let (old, new) = (converted(old), converted(new));
    if old == new {
        return Err(ToolError::new(
            "`old_text` and `new_text` differ in their line ends only, and those of this file stay CRLF. \
                    Convert it with a command.",
        ));
    }
    let lines = occurrences(text, &old);
    match lines.len() {
        0 => return Err(explain_missing(text, &old).into()),
        1 => {}
        count if !all => {
            return Err(ToolError::new(format!(
                "`old_text` is there {count} times, at lines {}. Take more lines around the one that you mean, or \
                 set replace_all to true.",
                listed(&lines)
            )));
        }
        _ => {}
    }
    // Many occurrences of a short text and a long replacement could exhaust the memory.
    let length = text.len() - lines.len() * old.len() + lines.len().saturating_mul(new.len());
    if length as u64 > disk::FILE_BYTES_MAX {
        return Err(ToolError::new(format!(
            "The file would grow to {length} bytes, and at most {} can be edited here. Change it with a command.",
            disk::FILE_BYTES_MAX
        )));
    }
    Ok(EditedText { text: text.replace(&old, &new), lines })
}

/// The line ends in which a text occurs in a file: CRLF if the file has it, or the text occurs only in that form; LF if the text has
/// CRLF, and the file has none.
fn line_ends(text: &str, old: &str) -> fn(&str) -> String {
    if !text.contains('\r') && old.contains("\r\n") {
        return |text| text.replace("\r\n", "\n");
    }
    let is_as_given = !text.contains("\r\n") || (text.contains(old) && !is_crlf(text));
    if is_as_given || !text.contains(&with_crlf(old)) { str::to_owned } else { with_crlf }
}

/// Whether most lines of a text end with CRLF.
pub(super) fn is_crlf(text: &str) -> bool {
    text.matches("\r\n").count() * 2 > text.matches('\n').count()
}

pub(super) fn with_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}

/// Returns the lines at which a text begins.
fn occurrences(text: &str, part: &str) -> Vec<usize> {
    let (mut line, mut from) = (1, 0);
    text.match_indices(part)
        .map(|(at, _)| {
            line += text[from..at].matches('\n').count();
            from = at;
            line
        })
        .collect()
}

pub(super) fn listed(lines: &[usize]) -> String {
    let shown: Vec<String> = lines.iter().take(PLACES_LISTED_MAX).map(usize::to_string).collect();
    let more = if lines.len() > PLACES_LISTED_MAX { ", …" } else { "" };
    shown.join(", ") + more
}

fn explain_missing(text: &str, old: &str) -> String {
    let wanted: Vec<&str> = old.lines().collect();
    if !wanted.is_empty() && wanted.iter().all(|line| is_numbered(line)) {
        return "`old_text` is not there: it begins with line numbers as file_read shows them. Leave the \
                numbers and the tab behind them out."
            .to_string();
    }
    let lines: Vec<&str> = text.lines().collect();
    let blank = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted_blank: Vec<String> = wanted.iter().map(|line| blank(line)).collect();
    let compared = &lines[..lines.len().min(LINES_COMPARED_MAX)];
    let compared_blank: Vec<String> = compared.iter().map(|line| blank(line)).collect();
    if !old.trim().is_empty()
        && let Some(at) = compared_blank.windows(wanted_blank.len()).position(|part| part == wanted_blank)
    {
        let last = at + wanted.len();
        return format!(
            "`old_text` is not there as given, but lines {}-{last} differ from it in white space only (tabs, \
             indentation, blanks at the ends). Read them with offset={} and copy them exactly.",
            at + 1,
            at + 1
        );
    }
    let first = wanted.iter().find(|line| !line.trim().is_empty()).map_or("", |line| line.trim());
    let candidates: Vec<&str> = compared.iter().map(|line| line.trim()).collect();
    let near = nearest(first, &candidates);
    match near {
        Some(at) => format!(
            "`old_text` is not there. The line nearest to its first line is line {}:\n{}\nRead the file around \
             it with file_read and copy the text exactly.",
            at + 1,
            truncate::line(lines[at], QUOTE_BYTES_MAX)
        ),
        None => {
            "`old_text` is not there, and nothing like its first line. Read the file again with file_read; \
                 it may have changed, or be another file."
                .to_string()
        }
    }
}

/// Returns the index of the line most similar to `wanted`.
pub(super) fn nearest(wanted: &str, lines: &[&str]) -> Option<usize> {
    if wanted.is_empty() || wanted.len() > truncate::LINE_BYTES_MAX {
        return None;
    }
    if let Some(same) = lines.iter().position(|line| *line == wanted) {
        return Some(same);
    }
    // Lines of very different length can't be similar, and take longest to compare.
    let alike = |line: &&str| line.len() >= wanted.len() / 3 && line.len() <= wanted.len() * 3;
    let mut pairs = 0;
    let within_bounds = |line: &&str| {
        pairs += line.len() * wanted.len();
        pairs <= PAIRS_COMPARED_MAX
    };
    let candidates: Vec<&str> = lines.iter().copied().filter(alike).take_while(within_bounds).collect();
    let near = similar_texts(wanted, &candidates, 1, NEARNESS);
    let near = near.first()?;
    lines.iter().position(|line| line == near)
}

/// Whether a line looks like `     7<tab>text`.
fn is_numbered(line: &str) -> bool {
    let Some((number, _)) = line.split_once('\t') else { return false };
    let number = number.trim_start();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unique_text_is_replaced() {
        let edited = edit("one\ntwo\nthree\n", "two", "2", false);
        assert_eq!(edited, Ok(EditedText { text: "one\n2\nthree\n".into(), lines: vec![2] }));
    }

    #[test]
    fn repeated_text_needs_replace_all() {
        let why = edit("x\ny\nx\n", "x", "z", false).unwrap_err();
        assert!(why.to_string().contains("2 times") && why.to_string().contains("lines 1, 3"), "{why}");
        let edited = edit("x\ny\nx\n", "x", "z", true);
        assert_eq!(edited, Ok(EditedText { text: "z\ny\nz\n".into(), lines: vec![1, 3] }));
    }

    #[test]
    fn an_edit_that_would_fill_the_memory_is_refused() {
        let text = "x\n".repeat(100_000);
        let why = edit(&text, "x", &"y".repeat(1_000), true).unwrap_err();
        assert!(why.to_string().contains("grow to 100100000 bytes"), "{why}");
    }

    #[test]
    fn a_crlf_file_is_edited_with_lf_and_keeps_its_line_ends() {
        let edited = edit("a\r\nb\r\nc\r\n", "a\nb", "a\nx\nb", false).expect("found");
        assert_eq!(edited.text, "a\r\nx\r\nb\r\nc\r\n");
    }

    /// A model wrote CRLF for a file with LF, and was told that white space differs.
    #[test]
    fn a_file_with_lf_is_edited_with_crlf_and_keeps_its_line_ends() {
        let edited = edit("a\nb\nc\n", "a\r\nb", "a\r\nx\r\nb", false).expect("found");
        assert_eq!(edited.text, "a\nx\nb\nc\n");
    }

    /// A line of a CRLF file was replaced by two, and the new line ended with LF. After that, the model could not edit
    /// both lines together: their text was in the file neither with LF nor with CRLF.
    #[test]
    fn new_lines_in_a_crlf_file_end_with_crlf() {
        let text = "a\r\nb\r\nc\r\n";
        let edited = edit(text, "b", "b1\nb2", false).expect("found").text;
        assert_eq!(edited, "a\r\nb1\r\nb2\r\nc\r\n");
        let edited = edit(&edited, "b1\nb2\n", "b\n", false).expect("both lines are found").text;
        assert_eq!(edited, text);
        // Text that begins with a line break doesn't separate the CR from it.
        assert_eq!(edit(text, "\nb", "\nb\n", false).expect("found").text, "a\r\nb\r\n\r\nc\r\n");
        let why = edit(text, "b\r\n", "b\n", false).unwrap_err();
        assert!(why.to_string().contains("stay CRLF"), "{why}");
        // A file with mostly LF.
        assert_eq!(edit("a\r\nb\nc\n", "b", "b\n", false).expect("found").text, "a\r\nb\n\nc\n");
    }

    #[test]
    fn white_space_difference_is_located() {
        let why = edit("fn a() {\n\tb();\n}\n", "fn a() {\n    b();\n}", "", false).unwrap_err();
        assert!(why.to_string().contains("lines 1-3") && why.to_string().contains("white space"), "{why}");
    }

    #[test]
    fn near_miss_names_the_nearest_line() {
        let why = edit("let total = 1;\nlet count = 2;\n", "let counts = 2;", "", false).unwrap_err();
        assert!(why.to_string().contains("line 2") && why.to_string().contains("let count = 2;"), "{why}");
    }

    #[test]
    fn line_numbers_in_the_text_are_recognised() {
        let why = edit("one\n", "     1\tone", "", false).unwrap_err();
        assert!(why.to_string().contains("line numbers"), "{why}");
    }

    #[test]
    fn error_says_if_nothing_is_similar() {
        let why = edit("one\n", "something else altogether", "", false).unwrap_err();
        assert!(why.to_string().contains("nothing like"), "{why}");
    }

    /// An edit was announced without its line, so an editor that follows the agent opened the top of the file.
    #[test]
    fn an_edit_is_announced_with_its_line() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let cwd = directory.path().join("w");
        std::fs::create_dir(&cwd).expect("made");
        for file in [cwd.join("a"), directory.path().join("outside")] {
            std::fs::write(file, "one\r\ntwo\r\nthree\r\n").expect("written");
        }
        let workspace = Workspace::new(&cwd, Vec::new(), Default::default());
        for (path, old, line) in [
            ("a", "two\nthree", Some(2)),
            ("a", "four", None),
            ("missing", "two", None),
            ("../outside", "two", None),
        ] {
            let input = json!({"file_path": path, "old_text": old, "new_text": "x"});
            let card = ParsedTool::display(&FileEdit, &input, &workspace);
            assert_eq!(card.locations[0].line, line, "{path} {old:?}");
        }
    }

    #[test]
    fn empty_and_equal_texts_are_refused() {
        let workspace = Workspace::new("/w", Vec::new(), Default::default());
        let call = |old: &str, new: &str| {
            let input = json!({"file_path": "a", "old_text": old, "new_text": new});
            FileEdit.parse(&input, &workspace).err()
        };
        assert!(call("", "x").is_some_and(|why| why.to_string().contains("file_write")));
        assert!(call("x", "x").is_some_and(|why| why.to_string().contains("the same")));
        assert_eq!(call("x", ""), None);
    }
}
