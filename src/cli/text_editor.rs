//! Opens files in the user's text editor.

use std::path::Path;
use std::process::Command;

use super::{CliContext as _, CliError};

/// The command in `VISUAL` or `EDITOR`.
pub struct TextEditor(String);

impl TextEditor {
    /// The user's editor. The error suggests to open `file` in another way.
    pub fn of_user(file: &Path) -> Result<TextEditor, CliError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let editor = variable("VISUAL").or_else(|| variable("EDITOR")).ok_or_else(|| {
            CliError::failed("neither VISUAL nor EDITOR is set")
                .hint(format!("set one of them, or open {} yourself", file.display()))
        })?;
        Ok(TextEditor(editor))
    }

    /// Opens a file, and returns when the user has closed it.
    pub fn edit(&self, file: &Path) -> Result<(), CliError> {
        let TextEditor(editor) = self;
        // As in git, the variable is a shell command such as `code --wait`.
        let ended = Command::new("sh").arg("-c").arg(format!("{editor} \"$@\"")).arg("sh").arg(file).status();
        match ended.context("the editor can't be started")? {
            status if status.success() => Ok(()),
            status => Err(CliError::failed(format!("the editor {editor:?} ended with {status}"))),
        }
    }
}
