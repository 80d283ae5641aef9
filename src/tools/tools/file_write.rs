//! `file_write`: creates a file or replaces its entire content. Never appends, never deletes.

use std::path::{Path, PathBuf};

use serde_json::Value;

use epitome_thread::{CallDisplay, Location, ToolDisplay, ToolKind, ToolSpec};

use super::disk::{CancelFlag, CurrentContent};
use super::file_edit::{is_crlf, with_crlf};
use super::notebook::Notebook;
use super::schema::{self, InputKey};
use super::{
    Access, BoxFuture, Needs, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input,
    read_state, truncate,
};

pub struct FileWrite;

impl ParsedTool for FileWrite {
    type Call = FileWriteCall;
    const NEEDS: Needs = Needs::EditorBuffers;

    fn spec(&self) -> ToolSpec {
        schema::spec(
            "file_write",
            "Writes a file: makes it with its directories, or replaces all of its text. Read an existing file before \
             you replace it. To change a part of a file use file_edit.",
            [
                InputKey::text("file_path", schema::FILE).required(),
                InputKey::text("text", "The whole new text of the file.").required(),
            ],
        )
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        disk::display("Write", ToolKind::Edit, ("file_path", "a file"), input, workspace)
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<FileWriteCall, ToolError> {
        let call =
            FileWriteCall { path: input::named(input, "file_path")?, text: input::text(input, "text")? };
        if call.text.len() as u64 > disk::FILE_BYTES_MAX {
            return Err(ToolError::new(format!(
                "`text` has more than {} bytes. Write the file with a command.",
                disk::FILE_BYTES_MAX
            )));
        }
        Ok(call)
    }

    fn access(&self, call: FileWriteCall, workspace: &Workspace) -> Result<Access, ToolError> {
        Ok(Access::Write(vec![workspace.real(&call.path)]))
    }

    fn preview(&self, call: FileWriteCall, context: ToolContext) -> BoxFuture<Vec<ToolDisplay>> {
        disk::preview(context, move |context| {
            let real = context.permitted(&call.path)?;
            let old = old_text(&real, context)?;
            let text = content(&real, &old, call.text)?;
            Ok(shown(context.workspace.target(&real), old, text))
        })
    }

    fn check(&self, call: FileWriteCall, context: ToolContext) -> BoxFuture<Result<(), ToolError>> {
        disk::check(context, move |context| {
            let real = context.permitted(&call.path)?;
            let old = known(&real, context)?;
            content(&real, &old, call.text).map(drop)
        })
    }

    fn run(&self, call: FileWriteCall, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, stop| write(call, context, stop))
    }
}

pub struct FileWriteCall {
    path: String,
    text: String,
}

fn write(call: FileWriteCall, context: &ToolContext, stop: &CancelFlag) -> Result<ToolResult, ToolError> {
    let workspace = &*context.workspace;
    let real = context.permitted(&call.path)?;
    let name = workspace.display(&real);
    let old = known(&real, context)?;
    let text = content(&real, &old, call.text)?;
    let is_unsaved = matches!(old, OldContent::Text { is_unsaved: true, .. });
    let saved = disk::put(&real, &text, is_unsaved, context, stop)?;
    let done = match &old {
        OldContent::Missing => "Created",
        OldContent::Text { text: old, is_unsaved: false } if *old == text => "Wrote the same text to",
        OldContent::Text { .. } | OldContent::Other { .. } => "Overwrote",
    };
    let done = format!("{done} {name} ({} bytes).", text.len());
    let path = workspace.target(&real);
    let shown = match old {
        // A diff without an old text would mean that the file was created.
        OldContent::Other { .. } => vec![replaces(&path)],
        OldContent::Missing | OldContent::Text { .. } => shown(path.clone(), old, text.clone()),
    };
    let result = disk::changed(&real, &text, done, saved, shown, context);
    Ok(ToolResult { locations: vec![Location { path, line: Some(1) }], ..result })
}

/// The text to write. `file_read` shows the cells of a notebook, and a model writes them in the same form. The line ends
/// and the byte order mark of the old file are preserved.
fn content(real: &Path, old: &OldContent, text: String) -> Result<String, ToolError> {
    let old = match old {
        OldContent::Text { text, .. } => Some(text.as_str()),
        OldContent::Other { .. } if text.contains(char::REPLACEMENT_CHARACTER) => {
            return Err(ToolError::new(
                "`text` has U+FFFD, which file_read shows in the place of bytes that are not UTF-8: they would be \
                        lost. Change the file with a command instead.",
            ));
        }
        OldContent::Missing | OldContent::Other { .. } => None,
    };
    let mut text = Notebook::written(real, old, text)?;
    let Some(old) = old else { return Ok(text) };
    if is_crlf(old) && !text.contains("\r\n") {
        text = with_crlf(&text);
    }
    if old.starts_with(truncate::BYTE_ORDER_MARK) && !text.starts_with(truncate::BYTE_ORDER_MARK) {
        text.insert(0, truncate::BYTE_ORDER_MARK);
    }
    Ok(text)
}

/// Returns the file's content if the model knows its current state, or if there is no file.
fn known(real: &Path, context: &ToolContext) -> Result<OldContent, ToolError> {
    let old = old_text(real, context)?;
    let name = context.workspace.display(real);
    let (state, text) = match &old {
        OldContent::Missing => return Ok(old),
        OldContent::Text { text, is_unsaved } => {
            if *is_unsaved {
                context.unsaved.refuse_change(&name)?;
            }
            (read_state::state_of(text.as_bytes()), Some(text.as_str()))
        }
        OldContent::Other { is_binary: true, .. } => return Err(read_state::binary(&name).into()),
        OldContent::Other { state, is_binary: false } => (state.clone(), None),
    };
    context.files.check(real, &state, text, &name)?;
    Ok(old)
}

enum OldContent {
    Missing,
    Text {
        text: String,
        /// Whether it is unsaved text of the user's editor.
        is_unsaved: bool,
    },
    /// A file that isn't text, or that is too large for a diff.
    Other {
        state: String,
        is_binary: bool,
    },
}

fn old_text(path: &Path, context: &ToolContext) -> Result<OldContent, ToolError> {
    let workspace = &context.workspace;
    match disk::metadata(path, workspace) {
        Ok(None) => Ok(OldContent::Missing),
        Err(error) => Err(disk::trouble("write", path, workspace, error)),
        Ok(Some(metadata)) if metadata.is_file() && metadata.len() > disk::FILE_BYTES_MAX => {
            Ok(OldContent::Other { state: read_state::state_of_large(&metadata), is_binary: false })
        }
        Ok(Some(_)) => {
            let CurrentContent { bytes, is_unsaved } = disk::current(path, context)?;
            Ok(match String::from_utf8(bytes) {
                Ok(text) => OldContent::Text { text, is_unsaved },
                Err(error) => OldContent::Other {
                    state: read_state::state_of(error.as_bytes()),
                    is_binary: error.as_bytes().contains(&0),
                },
            })
        }
    }
}

fn replaces(path: &Path) -> ToolDisplay {
    ToolDisplay::Text { text: format!("Replaces {}, which is not text or very large.", path.display()) }
}

/// The display of a write. The new text is displayed in any case, because a permission prompt must show what it covers.
fn shown(path: PathBuf, old: OldContent, new: String) -> Vec<ToolDisplay> {
    let replaces = matches!(old, OldContent::Other { .. }).then(|| replaces(&path));
    let old = match old {
        OldContent::Text { text, .. } => Some(text),
        OldContent::Missing | OldContent::Other { .. } => None,
    };
    replaces.into_iter().chain([ToolDisplay::Diff { path, old, new }]).collect()
}
