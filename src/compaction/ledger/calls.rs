//! What a tool call is about, whichever agent's tool it is: files, a command, a search. Pure.

use serde_json::Value as Json;

use super::fact::{Form, Value};
use super::{shell, values};
use crate::thread::{Card, Seq, ToolKind};

/// A longer path is none.
const PATH_BYTES_MAX: usize = 512;
/// Files of one call.
const PATHS_MAX: usize = 32;
/// Of a longer command only the beginning is looked at.
pub(super) const COMMAND_BYTES_MAX: usize = 4 * 1024;
/// Of what a call writes to a file so much is looked at.
const WRITTEN_BYTES_MAX: usize = 16 * 1024;

/// Larger changes of a file give values to more than can be told.
const EDIT_BYTES_MAX: usize = 2 * 1024;

/// The tool whose outcomes quote older entries.
const RECALL: &str = crate::recall::NAME;

/// What was done to a file. In the order of how much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Read,
    Modified,
    Created,
    Moved,
    Deleted,
}

impl Action {
    pub fn word(self) -> &'static str {
        match self {
            Action::Read => "read",
            Action::Modified => "modified",
            Action::Created => "created",
            Action::Moved => "moved",
            Action::Deleted => "deleted",
        }
    }

    pub fn is_change(self) -> bool {
        self != Action::Read
    }
}

/// What a call does, as far as its input tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Files(Action),
    Search,
    Command,
    /// Nothing that is a fact of its own, such as a search of the conversation.
    Quoting,
    Other,
}

/// A call that waits for its outcome.
#[derive(Clone, Debug)]
pub(super) struct Called {
    pub entry: Seq,
    pub name: String,
    pub doing: Doing,
    pub touched: Vec<(String, Action)>,
    pub command: Option<String>,
    /// What it writes into its file, where that is short enough to be looked at.
    pub written: Option<String>,
}

impl Called {
    pub fn read(entry: Seq, name: &str, input: &Json, card: &Card) -> Called {
        let command = command(input);
        let doing = doing(name, input, card.kind, command.is_some());
        let mut touched: Vec<(String, Action)> = Vec::new();
        let mut touch = |path: &str, action: Action| {
            let fits = !path.trim().is_empty() && path.len() <= PATH_BYTES_MAX && touched.len() < PATHS_MAX;
            if fits && !path.contains(['\n', '*']) && touched.iter().all(|(known, _)| known != path) {
                touched.push((path.to_owned(), action));
            }
        };
        if let Doing::Files(action) = doing {
            for (path, action) in paths(input, action) {
                touch(path, action);
            }
            if let Some(patch) = text(input, &["patch", "input", "diff", "patchText"]) {
                for (path, action) in patched(patch) {
                    touch(path, action);
                }
            }
        }
        if let (Doing::Command, Some(line)) = (doing, &command) {
            for (path, action) in shell::touched(line) {
                touch(&path, action);
            }
        }
        if touched.is_empty()
            && let Doing::Files(action) = doing
        {
            touched = card
                .locations
                .iter()
                .take(PATHS_MAX)
                .map(|at| (at.path.to_string_lossy().into_owned(), action))
                .collect();
        }
        let written = match doing {
            Doing::Files(Action::Modified | Action::Created) => {
                let is_settings = touched.iter().any(|(path, _)| is_settings(path));
                written(input, is_settings)
            }
            Doing::Files(_) | Doing::Search | Doing::Command | Doing::Quoting | Doing::Other => None,
        };
        Called { entry, name: name.to_owned(), doing, touched, command, written }
    }
}

/// What a call writes, as far as it tells values: all of a file of settings, and elsewhere the lines that give
/// another value to a name that had one.
fn written(input: &Json, is_settings: bool) -> Option<String> {
    let new = text(input, &["new_text", "new_string", "new_str", "text", "content", "file_text"])
        .filter(|text| text.len() <= WRITTEN_BYTES_MAX)?;
    if is_settings {
        return Some(new.to_owned());
    }
    let old =
        text(input, &["old_text", "old_string", "old_str"]).filter(|text| text.len() <= EDIT_BYTES_MAX)?;
    let before: Vec<Value> = old.lines().filter_map(|line| values::of_line(line, Form::Told)).collect();
    if before.is_empty() || new.len() > EDIT_BYTES_MAX {
        return None;
    }
    let is_changed = |line: &&str| {
        values::of_line(line, Form::Told)
            .is_some_and(|value| before.iter().any(|old| old.name == value.name && old.value != value.value))
    };
    let lines: Vec<&str> = new.lines().filter(is_changed).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Whether a file is one of settings, whose lines are values.
fn is_settings(path: &str) -> bool {
    const ENDINGS: &[&str] = &[
        ".toml",
        ".yaml",
        ".yml",
        ".json",
        ".ini",
        ".cfg",
        ".conf",
        ".env",
        ".properties",
        ".tf",
        ".tfvars",
    ];
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    name.starts_with(".env") || name == "Dockerfile" || ENDINGS.iter().any(|ending| name.ends_with(ending))
}

fn doing(name: &str, input: &Json, kind: ToolKind, has_command: bool) -> Doing {
    let bare = name.rsplit("__").next().unwrap_or(name).to_lowercase();
    if bare == RECALL {
        return Doing::Quoting;
    }
    let names = |words: &[&str]| words.iter().any(|word| bare.contains(word));
    if names(&["todo", "plan", "think"]) {
        return Doing::Quoting;
    }
    // One tool of several commands.
    match input.get("command").and_then(Json::as_str) {
        Some("view") => return Doing::Files(Action::Read),
        Some("create") => return Doing::Files(Action::Created),
        Some("str_replace" | "insert" | "undo_edit") => return Doing::Files(Action::Modified),
        Some(_) | None => {}
    }
    match kind {
        ToolKind::Read if names(&["list", "ls"]) => return Doing::Search,
        ToolKind::Read => return Doing::Files(Action::Read),
        ToolKind::Edit => return Doing::Files(Action::Modified),
        ToolKind::Delete => return Doing::Files(Action::Deleted),
        ToolKind::Move => return Doing::Files(Action::Moved),
        ToolKind::Search => return Doing::Search,
        ToolKind::Execute if has_command => return Doing::Command,
        ToolKind::Execute | ToolKind::Think | ToolKind::Fetch | ToolKind::Other => {}
    }
    if has_command && names(&["bash", "shell", "exec", "terminal", "command", "run"]) {
        Doing::Command
    } else if names(&["grep", "glob", "search", "find", "list"]) {
        Doing::Search
    } else if names(&["delete", "remove"]) {
        Doing::Files(Action::Deleted)
    } else if names(&["move", "rename"]) {
        Doing::Files(Action::Moved)
    } else if names(&["create"]) {
        Doing::Files(Action::Created)
    } else if names(&["edit", "write", "patch", "replace", "insert", "update"]) {
        Doing::Files(Action::Modified)
    } else if names(&["read", "view", "open", "cat"]) {
        Doing::Files(Action::Read)
    } else if has_command {
        Doing::Command
    } else {
        Doing::Other
    }
}

fn command(input: &Json) -> Option<String> {
    let value = ["command", "cmd", "script", "commandLine"].iter().find_map(|key| input.get(key))?;
    let line = match value {
        Json::String(line) => line.clone(),
        Json::Array(words) => words.iter().filter_map(Json::as_str).collect::<Vec<_>>().join(" "),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => return None,
    };
    // `bash -lc` is how it is run and not what.
    let line = ["bash -lc ", "bash -c ", "sh -c "]
        .iter()
        .find_map(|shell| line.strip_prefix(shell))
        .unwrap_or(&line)
        .trim();
    let line = &line[..line.floor_char_boundary(COMMAND_BYTES_MAX)];
    (!line.is_empty()).then(|| line.to_owned())
}

/// The text of the first of these keys that has one. Calls have few keys: to look through them is faster than to
/// ask for each of ours.
fn text<'a>(input: &'a Json, keys: &[&str]) -> Option<&'a str> {
    let found = input.as_object()?.iter().filter_map(|(key, value)| {
        let at = keys.iter().position(|known| *known == key.as_str())?;
        Some((at, value.as_str()?))
    });
    found.min_by_key(|(at, _)| *at).map(|(_, text)| text)
}

fn paths(input: &Json, action: Action) -> Vec<(&str, Action)> {
    const SINGLE: &[&str] = &[
        "file_path",
        "path",
        "filePath",
        "filename",
        "file_name",
        "file",
        "target_file",
        "notebook_path",
        "absolute_path",
        "relative_path",
        "abs_path",
        "uri",
        "relative_workspace_path",
        "target",
    ];
    const FROM: &[&str] = &["old_path", "source", "from", "src", "source_path"];
    const TO: &[&str] = &["new_path", "destination", "to", "dst", "dest", "destination_path"];
    let mut found: Vec<(&str, Action)> = text(input, SINGLE).map(|path| (path, action)).into_iter().collect();
    if action == Action::Moved {
        found.extend(text(input, FROM).map(|path| (path, Action::Deleted)));
        found.extend(text(input, TO).map(|path| (path, Action::Moved)));
    }
    for key in ["paths", "files", "file_paths"] {
        let Some(list) = input.get(key).and_then(Json::as_array) else { continue };
        found.extend(list.iter().take(PATHS_MAX).filter_map(|one| {
            let path = one.as_str().or_else(|| text(one, SINGLE))?;
            Some((path, action))
        }));
    }
    found
}

/// The files of a patch, in either of the common forms.
fn patched(patch: &str) -> Vec<(&str, Action)> {
    let forms: [(&str, Action); 5] = [
        ("*** Update File: ", Action::Modified),
        ("*** Add File: ", Action::Created),
        ("*** Delete File: ", Action::Deleted),
        ("*** Move to: ", Action::Moved),
        ("+++ b/", Action::Modified),
    ];
    let of_line = |line: &'_ str| -> Option<(usize, Action)> {
        forms.iter().find(|(begin, _)| line.starts_with(begin)).map(|(begin, action)| (begin.len(), *action))
    };
    patch
        .lines()
        .filter_map(|line| of_line(line).map(|(from, action)| (line[from..].trim(), action)))
        .take(PATHS_MAX)
        .collect()
}
