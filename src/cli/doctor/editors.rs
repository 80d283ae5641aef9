//! The editors section of `epitome doctor`: whether editors are configured to start Epitome. Their files are JSON,
//! Lua and Lisp, so this searches for the quoted path of the program, which all have in common.

use epitome_platform::os::PermissionsExt;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::DoctorLine;

/// Files larger than this many bytes are skipped.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Limits of the search per editor: number of files, and depth of directories.
const FILES_MAX: usize = 500;
const DEPTH_MAX: usize = 6;

/// A quoted text that starts with a path to the program.
static PROGRAM: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"["']((?:/|~/)(?:[^"'\n\\]*/)?epitome)(?:\s[^"'\n]*)?["']"#)
        .expect("the expression is well formed")
});

/// An editor, and the files or directories that may contain its settings.
pub(super) struct Editor {
    name: &'static str,
    files: Vec<PathBuf>,
    /// The extension of the files to read in directories.
    extension: &'static str,
    /// The example configuration in Epitome's repository.
    example: &'static str,
}

pub(super) fn places(home: Option<&Path>, get: impl Fn(&str) -> Option<OsString>) -> Vec<Editor> {
    let Some(home) = home else { return Vec::new() };
    let config = get("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let config = config.unwrap_or_else(|| home.join(".config"));
    let editor = |name, files: &[PathBuf], extension, example| Editor {
        name,
        files: files.to_vec(),
        extension,
        example,
    };
    vec![
        editor("Zed", &[config.join("zed/settings.json")], "json", "editors/zed/settings.json"),
        editor("JetBrains", &[home.join(".jetbrains/acp.json")], "json", "editors/jetbrains/acp.json"),
        editor(
            "VS Code",
            &[
                config.join("Code/User/settings.json"),
                home.join("Library/Application Support/Code/User/settings.json"),
            ],
            "json",
            "editors/vscode/settings.json",
        ),
        editor("Neovim", &[config.join("nvim")], "lua", "editors/neovim/"),
        editor(
            "Emacs",
            &[
                home.join(".emacs"),
                home.join(".emacs.el"),
                home.join(".emacs.d"),
                config.join("emacs"),
                home.join(".doom.d"),
            ],
            "el",
            "editors/emacs/epitome.el",
        ),
        editor("acpx", &[home.join(".acpx/config.json")], "json", "editors/acpx/config.json"),
    ]
}

pub(super) fn lines(editors: &[Editor]) -> Vec<DoctorLine> {
    let mut lines = Vec::new();
    for editor in editors {
        let mut files = Vec::new();
        for place in &editor.files {
            gather(place, editor.extension, 0, &mut files);
        }
        if !files.is_empty() {
            lines.extend(check_editor(editor, &files));
        }
    }
    if lines.is_empty() {
        lines.push(DoctorLine::ok("editors", "no settings of a known editor are here"));
    }
    lines
}

fn check_editor(editor: &Editor, files: &[PathBuf]) -> Vec<DoctorLine> {
    let mut lines = Vec::new();
    let mut is_mentioned = false;
    for file in files {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        is_mentioned |= text.to_lowercase().contains("epitome");
        for found in PROGRAM.captures_iter(&text) {
            lines.push(check_path(editor, file, &found[1]));
        }
    }
    if !lines.is_empty() {
        return lines;
    }
    let name = editor.name;
    vec![if is_mentioned {
        DoctorLine::warning(
            "editors",
            format!("{name} starts Epitome without an absolute path"),
            format!("editors often have a different PATH; {} shows how", editor.example),
        )
    } else {
        DoctorLine::ok("editors", format!("{name} does not have Epitome; {} shows how", editor.example))
    }]
}

fn check_path(editor: &Editor, file: &Path, program: &str) -> DoctorLine {
    let (name, file) = (editor.name, file.display());
    if program.starts_with('~') {
        let what = format!("{name} starts {program}, but no shell expands the ~ ({file})");
        return DoctorLine::error("editors", what, "write the absolute path");
    }
    match std::fs::metadata(program) {
        Ok(metadata) if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 => {
            DoctorLine::ok("editors", format!("{name} starts {program} ({file})"))
        }
        Ok(_) => {
            let what = format!("{name} starts {program}, which is not executable ({file})");
            DoctorLine::error("editors", what, "set the path of the program and make it executable")
        }
        Err(error) => {
            let what = format!("{name} starts {program}, which can't be found: {error} ({file})");
            let own = std::env::current_exe()
                .map_or_else(|_| "this program".to_owned(), |own| own.display().to_string());
            DoctorLine::error("editors", what, format!("this one is {own}"))
        }
    }
}

/// Collects the file, or the files below a directory.
fn gather(place: &Path, extension: &str, depth: usize, files: &mut Vec<PathBuf>) {
    let Ok(metadata) = std::fs::metadata(place) else { return };
    if files.len() >= FILES_MAX {
        return;
    }
    if metadata.is_file() {
        let fits = depth == 0 || place.extension().is_some_and(|own| own == extension);
        if fits && metadata.len() <= FILE_BYTES_MAX {
            files.push(place.to_path_buf());
        }
    } else if metadata.is_dir() && depth < DEPTH_MAX {
        let listing = std::fs::read_dir(place).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = listing.map(|file| file.path()).collect();
        paths.sort();
        for path in paths {
            gather(&path, extension, depth + 1, files);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Status;

    /// Returns the report for these files in a home directory; `PROGRAM` is replaced by the path of an existing
    /// program.
    fn report_for(files: &[(&str, &str)]) -> Vec<DoctorLine> {
        let home = tempfile::tempdir().expect("a temporary directory");
        let program = home.path().join("bin/epitome");
        std::fs::create_dir_all(home.path().join("bin")).expect("it can be made");
        std::fs::write(&program, "#!/bin/sh\n").expect("it can be written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("ours");
        for (name, text) in files {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().expect("below the home")).expect("it can be made");
            std::fs::write(path, text.replace("PROGRAM", &program.display().to_string()))
                .expect("it can be written");
        }
        lines(&places(Some(home.path()), |_| None))
    }

    #[test]
    fn what_an_editor_would_start_is_looked_at() {
        for (file, text, status, words) in [
            (
                ".config/zed/settings.json",
                "{ // mine\n \"agent_servers\": {\"Epitome\": {\"command\": \"PROGRAM\", \"args\": [\"acp\"],}}}",
                Status::Ok,
                "Zed starts",
            ),
            (".jetbrains/acp.json", "{\"command\": \"/gone/epitome\"}", Status::Error, "can't be found"),
            (".jetbrains/acp.json", "{\"command\": \"~/bin/epitome\"}", Status::Error, "the ~"),
            (
                ".jetbrains/acp.json",
                "{\"command\": \"epitome\"}",
                Status::Warning,
                "without an absolute path",
            ),
            (".jetbrains/acp.json", "{\"command\": \"/\"}", Status::Ok, "does not have Epitome"),
            (
                ".config/nvim/lua/plugins/ai.lua",
                "default = { 'PROGRAM', 'acp' },",
                Status::Ok,
                "Neovim starts",
            ),
            (".config/nvim/README.md", "epitome", Status::Ok, "no settings of a known editor"),
            (".emacs.d/init.el", ":command \"/etc/epitome\"", Status::Error, "can't be found"),
            (".acpx/config.json", "{\"command\": \"PROGRAM acp\"}", Status::Ok, "acpx starts"),
        ] {
            let lines = report_for(&[(file, text)]);
            assert_eq!(lines.len(), 1, "{file}: {lines:?}");
            assert_eq!(lines[0].status, status, "{file}: {lines:?}");
            assert!(lines[0].what.contains(words), "{file}: {lines:?}");
        }
    }

    #[test]
    fn the_examples_of_the_repository_are_understood() {
        for (file, example) in [
            (".config/zed/settings.json", include_str!("../../../editors/zed/settings.json")),
            (".jetbrains/acp.json", include_str!("../../../editors/jetbrains/acp.json")),
            (".config/nvim/a.lua", include_str!("../../../editors/neovim/avante.lua")),
            (".config/nvim/b.lua", include_str!("../../../editors/neovim/codecompanion.lua")),
            (".emacs.d/epitome.el", include_str!("../../../editors/emacs/epitome.el")),
            (".config/Code/User/settings.json", include_str!("../../../editors/vscode/settings.json")),
            (".acpx/config.json", include_str!("../../../editors/acpx/config.json")),
        ] {
            let lines = report_for(&[(file, &example.replace("/absolute/path/to/epitome", "PROGRAM"))]);
            assert!(lines[0].what.contains(" starts ") && lines[0].status == Status::Ok, "{file}: {lines:?}");
        }
    }
}
