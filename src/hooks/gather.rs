//! Collects hook candidates from folders and settings files. Nothing is run or checked for consent here.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::claude;
use super::digest;
use super::discover::{Candidate, DECLARATION_BYTES_MAX, ENTRIES_MAX, Finder, HOOKS_MAX, Written};
use super::hook::{Kind, Place};
use super::manifest::Syntax;
use super::places::{Source, SourceForm, enforced};
use super::trust::Verdict;
use epitome_problem::Problem;

const OUT_OF_REPOSITORY: &str = "a link that leads out of the repository, or nowhere";

impl Finder<'_> {
    /// `switch` is the user's settings file that disables the hooks of all settings files, if any.
    pub fn source(&mut self, source: &Source, switch: Option<&Path>) {
        match source.form {
            SourceForm::Settings => self.settings(&source.path, source.place, switch),
            SourceForm::Folder => self.folder(&source.path, source.place, ""),
            SourceForm::Plugins => {
                for plugin in self.children(&source.path) {
                    let Some(name) = plugin.file_name().and_then(|name| name.to_str()) else { continue };
                    if plugin.is_dir() && !name.starts_with('.') {
                        self.folder(&plugin.join("hooks"), source.place, &format!("{name}/"));
                    }
                }
            }
        }
    }

    fn folder(&mut self, folder: &Path, place: Place, prefix: &str) {
        if !folder.exists() {
            return;
        }
        if !self.may_enter(place, folder) {
            return self.skip(folder.to_path_buf(), OUT_OF_REPOSITORY);
        }
        for path in self.children(folder) {
            if path == enforced(self.search.paths) {
                continue;
            }
            match self.written(place, &path) {
                Ok(Some((name, written))) => {
                    if self.candidates.len() >= HOOKS_MAX {
                        self.skip(path, format!("there are more than {HOOKS_MAX} hooks"));
                        continue;
                    }
                    let found_as = format!("{prefix}{name}");
                    // Plugins are installed as `org@repo` and shown as `org/repo/name`.
                    let alias = prefix.contains('@').then(|| found_as.clone());
                    let name = if alias.is_some() { found_as.replacen('@', "/", 1) } else { found_as };
                    let (digest, verdict, files) = (String::new(), Verdict::Unknown, vec![path.clone()]);
                    self.candidates.push(Candidate {
                        name,
                        alias,
                        path,
                        place,
                        written,
                        files,
                        digest,
                        verdict,
                    });
                }
                Ok(None) => {}
                Err(reason) => self.skip(path, reason),
            }
        }
    }

    fn settings(&mut self, path: &Path, place: Place, switch: Option<&Path>) {
        if !path.exists() && !path.is_symlink() {
            return;
        }
        if !self.may_enter(place, path) {
            return self.skip(path.to_path_buf(), OUT_OF_REPOSITORY);
        }
        let text = match declaration(path) {
            Ok(text) => text,
            Err(message) => {
                return self.problem(Problem { path: path.to_path_buf(), place: None, message, hint: None });
            }
        };
        let (hooks, problems) = claude::parse(path, &text, place, self.search.cwd);
        if let Some(switch) = switch {
            if !hooks.is_empty() {
                self.skip(path.to_path_buf(), format!("{} says `disableAllHooks`", switch.display()));
            }
            return;
        }
        problems.into_iter().for_each(|problem| self.problem(problem));
        let groups = self.groups;
        for mut hook in hooks {
            let named = match &mut hook.kind {
                Kind::Claude { line, group, .. } => {
                    // Numbered across files, so that groups of two files never run concurrently.
                    *group += groups;
                    self.groups = self.groups.max(*group + 1);
                    match place {
                        Place::Repository => digest::named(line, &self.roots),
                        Place::Enforced | Place::Person => Ok(Vec::new()),
                    }
                }
                Kind::Script { .. }
                | Kind::Resident { .. }
                | Kind::Declared { .. }
                | Kind::Webhook { .. } => Ok(Vec::new()),
            };
            match named {
                Ok(named) => hook.files = [path.to_path_buf()].into_iter().chain(named).collect(),
                Err(reason) => {
                    self.skip(path.to_path_buf(), format!("{}: {reason}", hook.name));
                    continue;
                }
            }
            if self.candidates.len() >= HOOKS_MAX {
                return self.skip(path.to_path_buf(), format!("there are more than {HOOKS_MAX} hooks"));
            }
            self.candidates.push(Candidate {
                name: hook.name.clone(),
                alias: None,
                path: path.to_path_buf(),
                place,
                files: hook.files.clone(),
                written: Written::Claude(Box::new(hook)),
                digest: String::new(),
                verdict: Verdict::Unknown,
            });
        }
    }

    /// Classifies a file; the error is why it is not a hook. `None` if a problem was reported.
    fn written(&mut self, place: Place, path: &Path) -> Result<Option<(String, Written)>, String> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or("its name is not UTF-8")?.to_owned();
        if let Some(reason) = not_by_name(&name) {
            return Err(reason.to_owned());
        }
        if !self.may_enter(place, path) {
            return Err(OUT_OF_REPOSITORY.to_owned());
        }
        let metadata = path.metadata().map_err(|error| format!("it cannot be read: {error}"))?;
        if metadata.is_dir() {
            return Err("a directory".to_owned());
        }
        if !metadata.is_file() {
            return Err("not an ordinary file".to_owned());
        }
        let Some(syntax) = syntax_of(&name) else {
            let runs = metadata.permissions().mode() & 0o111 != 0;
            return match runs {
                true => Ok(Some((name, Written::Executable))),
                false => Err("not executable".to_owned()),
            };
        };
        match declaration(path) {
            Ok(content) => Ok(Some((name, Written::Declarative { syntax, content }))),
            Err(message) => {
                self.problem(Problem { path: path.to_path_buf(), place: None, message, hint: None });
                Ok(None)
            }
        }
    }

    /// Whether a file or folder may be read. A repository's link to the outside would allow content to change
    /// without consent, or run a file that was never meant as a hook.
    fn may_enter(&self, place: Place, path: &Path) -> bool {
        match place {
            Place::Enforced | Place::Person => true,
            Place::Repository => {
                let inside = |root: &PathBuf| path.canonicalize().is_ok_and(|real| real.starts_with(root));
                self.repository.as_ref().is_some_and(inside)
            }
        }
    }

    /// The entries of a folder, sorted by name. A missing folder is empty.
    fn children(&mut self, folder: &Path) -> Vec<PathBuf> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                let message = format!("this folder of hooks cannot be read: {error}");
                self.problem(Problem { path: folder.to_path_buf(), place: None, message, hint: None });
                return Vec::new();
            }
        };
        let mut paths: Vec<PathBuf> =
            entries.flatten().take(self.entries).map(|entry| entry.path()).collect();
        self.entries -= paths.len();
        if self.entries == 0 {
            self.skip(
                folder.to_path_buf(),
                format!("more than {ENTRIES_MAX} files; the rest is not looked at"),
            );
        }
        paths.sort();
        paths
    }
}

/// Whether this is a settings file of the user that disables the hooks of all settings files.
pub(super) fn switches_settings_off(source: &Source) -> bool {
    let of_person = source.form == SourceForm::Settings && source.place == Place::Person;
    of_person && declaration(&source.path).is_ok_and(|text| claude::disables_all(&text))
}

/// Why a file with this name is not a hook.
fn not_by_name(name: &str) -> Option<&'static str> {
    if name.starts_with('.') {
        return Some("a hidden file");
    }
    if name.ends_with('~') || name.ends_with(".bak") {
        return Some("a backup");
    }
    if name.ends_with(".disable") {
        return Some("switched off by its name");
    }
    if name.ends_with(".md") || name.ends_with(".txt") {
        return Some("a text");
    }
    None
}

fn syntax_of(name: &str) -> Option<Syntax> {
    match Path::new(name).extension()?.to_str()? {
        "yaml" | "yml" => Some(Syntax::Yaml),
        "json" => Some(Syntax::Json),
        _ => None,
    }
}

/// Reads a declaration, which must be an ordinary file.
fn declaration(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot read this file: {error}");
    // Opening a named pipe would block until a writer appears.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Err("a declaration of hooks must be an ordinary file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(DECLARATION_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > DECLARATION_BYTES_MAX {
        return Err(format!("a declaration of hooks has at most {} KiB", DECLARATION_BYTES_MAX / 1024));
    }
    String::from_utf8(bytes).map_err(|_| "a declaration of hooks must be UTF-8 text".to_owned())
}
