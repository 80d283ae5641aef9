//! Finds the hooks of a session: what is in the places, what of it may run, and what it declares.
//!
//! Nothing that a repository brings is started, not even to be asked what it handles, before the person
//! has consented to it. What is not taken is listed with its reason; nothing is passed over in silence.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::asked::{self, Answers};
use super::claude;
use super::digest;
use super::hook::{Hook, Kind, Place};
use super::manifest::{self, Declared, Form, Given, Syntax};
pub use super::places::watched;
use super::places::{Source, SourceForm, enforced, sources};
use super::trust::{Trust, Verdict};
use crate::config;
use crate::paths::Paths;
use crate::problem::Problem;
use crate::tools::reaper::Reaper;

/// Hooks of one session; a folder with more is one of something else.
pub const HOOKS_MAX: usize = 500;
/// Directory entries looked at for one search.
pub const ENTRIES_MAX: usize = 10_000;
/// Bytes of a declarative file or of a settings file.
pub const DECLARATION_BYTES_MAX: u64 = 256 * 1024;
/// Problems kept of one search; more of them is one mistake made often.
pub const PROBLEMS_MAX: usize = 50;
/// Characters that a description of what consent is asked for has.
const WHAT_CHARS_MAX: usize = 400;

/// What a search goes by.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    pub paths: &'a Paths,
    /// The session's directory.
    pub cwd: &'a Path,
    pub settings: &'a config::Hooks,
    pub reaper: &'a Arc<Reaper>,
    /// What executables run in, and where `$NAME` of a webhook is looked up.
    pub environment: &'a Arc<Vec<(OsString, OsString)>>,
    pub trust: &'a Trust,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// In the order in which they run: by priority, then by place, then by name.
    pub hooks: Vec<Arc<Hook>>,
    /// What came with the repository and waits for the person's word.
    pub untrusted: Vec<Untrusted>,
    pub skipped: Vec<Skipped>,
    pub problems: Vec<Problem>,
}

/// Something that runs only if the person allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untrusted {
    pub name: String,
    /// The declaration.
    pub path: PathBuf,
    pub digest: String,
    /// In words, what it would do; bounded.
    pub what: String,
    /// What the digest is over: the declaration first.
    pub files: Vec<PathBuf>,
}

/// Something in a place for hooks that is none, or is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    pub reason: String,
}

/// Finds the hooks of a session. Blocks on the disk and on the executables that are asked what they
/// handle: call it on a blocking thread.
pub fn discover(search: &Search<'_>) -> Found {
    if !search.settings.enabled {
        return Found::default();
    }
    let roots = search.paths.repository_roots(search.cwd);
    let mut finder = Finder {
        search,
        repository: roots.last().and_then(|root| root.canonicalize().ok()),
        roots,
        found: Found::default(),
        entries: ENTRIES_MAX,
        candidates: Vec::new(),
        groups: 0,
    };
    let sources = sources(&finder.roots, search.paths, search.settings.compat_dirs);
    let switch =
        sources.iter().find(|source| switches_settings_off(source)).map(|source| source.path.clone());
    for source in &sources {
        finder.source(source, switch.as_deref());
    }
    let mut answers = Answers::load(search.paths);
    finder.judge(&answers);
    finder.ask(&mut answers);
    answers.save();
    finder.declare(&answers)
}

/// A file that may be a hook.
struct Candidate {
    name: String,
    /// Another name that the person may use for it.
    alias: Option<String>,
    path: PathBuf,
    place: Place,
    written: Written,
    /// What the digest is over, the declaration first.
    files: Vec<PathBuf>,
    /// Filled by `judge`.
    digest: String,
    verdict: Verdict,
}

enum Written {
    Executable,
    Declarative {
        syntax: Syntax,
        content: String,
    },
    /// One line of a settings file, as it was read there.
    Claude(Box<Hook>),
}

struct Finder<'a> {
    search: &'a Search<'a>,
    /// The session's directory and the root of its repository.
    roots: Vec<PathBuf>,
    /// The latter's real path.
    repository: Option<PathBuf>,
    found: Found,
    /// Directory entries that may still be looked at.
    entries: usize,
    candidates: Vec<Candidate>,
    /// Groups of the settings files so far.
    groups: usize,
}

impl Finder<'_> {
    /// `switch` is the person's file that switches off the hooks of all settings files.
    fn source(&mut self, source: &Source, switch: Option<&Path>) {
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
        if !folder.is_dir() {
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
                    // Installed as `org@repo`, shown as `org/repo/name`.
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
                    // Those of two files never run side by side.
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

    /// What a file is, or why it is no hook. `None`: a problem was told.
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

    /// Makes the digests, and by them decides what may run.
    fn judge(&mut self, answers: &Answers) {
        let trust = self.search.trust;
        let mut judged = Vec::new();
        for mut candidate in std::mem::take(&mut self.candidates) {
            let digest = match (&candidate.written, candidate.place) {
                (Written::Claude(hook), _) => digest::of_hook(hook),
                (Written::Executable | Written::Declarative { .. }, Place::Repository) => {
                    digest::of_files(&candidate.files)
                }
                // The person's own needs no consent, so that the look of the file does.
                (Written::Executable | Written::Declarative { .. }, Place::Enforced | Place::Person) => {
                    answers.digest(&candidate.path).map_or_else(|| digest::of_files(&candidate.files), Ok)
                }
            };
            candidate.digest = match digest {
                Ok(digest) => digest,
                Err(reason) => {
                    self.skip(candidate.path, reason);
                    continue;
                }
            };
            candidate.verdict = match candidate.place {
                Place::Enforced | Place::Person => Verdict::Trusted,
                Place::Repository => trust.verdict(&candidate.path, &candidate.digest),
            };
            judged.push(candidate);
        }
        self.candidates = judged;
    }

    /// Asks the trusted executables whose answer is not known.
    fn ask(&self, answers: &mut Answers) {
        let executables = self.candidates.iter().filter(|candidate| {
            matches!(candidate.written, Written::Executable) && candidate.verdict == Verdict::Trusted
        });
        let unknown: Vec<(&Path, &str)> = executables
            .filter(|candidate| !answers.keep(&candidate.path, &candidate.digest))
            .map(|candidate| (candidate.path.as_path(), candidate.name.as_str()))
            .collect();
        let given = asked::ask_all(self.search.reaper, &unknown, self.search.cwd, self.search.environment);
        for (path, answer) in given {
            let digest = self.candidates.iter().find(|candidate| candidate.path == path);
            if let Some(candidate) = digest {
                answers.learn(&path, &candidate.digest, answer);
            }
        }
    }

    /// Reads what each declares; of several with one name the earliest valid one counts.
    fn declare(mut self, answers: &Answers) -> Found {
        let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut hooks = Vec::new();
        for candidate in std::mem::take(&mut self.candidates) {
            if let Some(earlier) = names.get(&candidate.name) {
                let reason = format!("{} has the same name and comes first", earlier.display());
                self.skip(candidate.path, reason);
                continue;
            }
            match candidate.verdict {
                Verdict::Trusted => {
                    if let Some(hook) = self.hook(&candidate, answers) {
                        names.insert(candidate.name, candidate.path);
                        hooks.push(hook);
                    }
                }
                Verdict::Refused => {
                    let reason = match self.search.settings.trust {
                        config::Trust::Never => "hooks.trust is never",
                        config::Trust::Ask | config::Trust::Run => "you said never to this version",
                    };
                    self.skip(candidate.path, reason);
                }
                Verdict::Unknown => {
                    let what = self.what(&candidate);
                    let Candidate { name, path, digest, mut files, .. } = candidate;
                    files.retain(|file| file.exists());
                    self.found.untrusted.push(Untrusted { name, path, digest, what, files });
                }
            }
        }
        // Stable: within a priority the order of the places, and in one place that of the names, stays.
        hooks.sort_by_key(|hook| std::cmp::Reverse(hook.manifest.priority));
        self.found.hooks = hooks.into_iter().map(Arc::new).collect();
        self.found
    }

    /// The hook that a candidate declares; where there is none it is told why.
    fn hook(&mut self, candidate: &Candidate, answers: &Answers) -> Option<Hook> {
        let declared = match &candidate.written {
            Written::Claude(hook) => return Some(self.of_claude(hook, candidate)),
            Written::Declarative { .. } => self.declared(candidate, None),
            Written::Executable => match answers.answer(&candidate.path) {
                Ok(answer) => self.declared(candidate, Some(answer)),
                Err(message) => {
                    let hint = "called with `hook` it must print the names of its events and end with 0";
                    let (path, hint) = (candidate.path.clone(), Some(hint.to_owned()));
                    Err(Problem { path, place: None, message: message.to_owned(), hint })
                }
            },
        };
        let kind_and_declared =
            declared.and_then(|declared| Ok((self.kind(candidate, &declared)?, declared)));
        match kind_and_declared {
            Ok((kind, declared)) => {
                declared.notes.into_iter().for_each(|note| self.problem(note));
                Some(Hook {
                    name: candidate.name.clone(),
                    place: candidate.place,
                    kind,
                    events: declared.events,
                    manifest: declared.manifest,
                    digest: candidate.digest.clone(),
                    files: candidate.files.clone(),
                })
            }
            Err(problem) => {
                self.problem(problem);
                None
            }
        }
    }

    /// A line of a settings file with the person's fields on top; how it is matched and run is its own.
    fn of_claude(&mut self, hook: &Hook, candidate: &Candidate) -> Hook {
        let mut hook = Hook { digest: candidate.digest.clone(), ..hook.clone() };
        if let Some(fields) = self.search.settings.overrides.get(&hook.name) {
            let file = self.search.paths.config_file();
            let (manifest, notes) = manifest::overridden(hook.manifest, fields, &hook.name, &file);
            hook.manifest = manifest;
            notes.into_iter().for_each(|note| self.problem(note));
        }
        hook
    }

    /// What a candidate declares: by its file, or by the answer that it gave.
    fn declared(&self, candidate: &Candidate, answer: Option<&str>) -> Result<Declared, Problem> {
        let overrides = &self.search.settings.overrides;
        let by_alias = || candidate.alias.as_ref().and_then(|alias| overrides.get(alias));
        let fields = overrides.get(&candidate.name).or_else(by_alias);
        let file = self.search.paths.config_file();
        let given = Given {
            timeout: self.search.settings.timeout,
            overrides: fields.map(|fields| (fields, file.as_path())),
            name: &candidate.name,
        };
        match (&candidate.written, answer) {
            (Written::Declarative { syntax, content }, _) => {
                manifest::read_file(&candidate.path, content, *syntax, given)
            }
            (Written::Executable | Written::Claude(_), answer) => {
                manifest::read_answer(&candidate.path, answer.unwrap_or_default(), given)
            }
        }
    }

    fn kind(&self, candidate: &Candidate, declared: &Declared) -> Result<Kind, Problem> {
        let path = candidate.path.clone();
        Ok(match &declared.form {
            Form::Script => Kind::Script { path },
            Form::Resident => Kind::Resident { path },
            Form::Result(then) => Kind::Declared { then: then.clone() },
            Form::Webhook { url, headers, secret } => {
                let resolve = |secret: &manifest::Secret| {
                    secret.resolve(self.search.environment).map_err(|message| {
                        let hint = Some("set it where the editor or the shell is started".to_owned());
                        Problem { path: path.clone(), place: None, message, hint }
                    })
                };
                let headers = headers
                    .iter()
                    .map(|(name, value)| Ok((name.clone(), resolve(value)?)))
                    .collect::<Result<_, _>>()?;
                Kind::Webhook { url: url.clone(), headers, secret: secret.as_ref().map(resolve).transpose()? }
            }
        })
    }

    /// What an untrusted file would do, in words. An executable is not asked.
    fn what(&self, candidate: &Candidate) -> String {
        let what = match &candidate.written {
            Written::Executable => "runs this file at the moments that it names".to_owned(),
            Written::Claude(hook) => what_of_claude(hook),
            Written::Declarative { .. } => self.what_of_declared(candidate),
        };
        match what.char_indices().nth(WHAT_CHARS_MAX) {
            None => what,
            Some((at, _)) => format!("{}… ({} more characters)", &what[..at], what[at..].chars().count()),
        }
    }

    fn what_of_declared(&self, candidate: &Candidate) -> String {
        match self.declared(candidate, None) {
            Err(problem) => format!("cannot be read: {}", problem.message),
            Ok(declared) => {
                let events: Vec<&str> = declared.events.iter().map(|(event, _)| event.name()).collect();
                let events = events.join(", ");
                match &declared.form {
                    Form::Result(then) => {
                        let then = serde_json::to_string(then).unwrap_or_default();
                        format!("at {events}, without a program: {then}")
                    }
                    Form::Webhook { url, headers, secret } => {
                        let variables: BTreeSet<&str> =
                            headers.values().chain(secret).filter_map(manifest::Secret::variable).collect();
                        let variables: Vec<&str> = variables.into_iter().collect();
                        let with = match variables.is_empty() {
                            true => String::new(),
                            false => format!(", with the variables {}", variables.join(", ")),
                        };
                        format!("at {events} posts what happens to {url}{with}")
                    }
                    Form::Script | Form::Resident => format!("runs at {events}"),
                }
            }
        }
    }

    /// Whether a file or folder may be looked into. A repository's link to somewhere else could swap what
    /// was consented to from outside, or run what was never meant as a hook.
    fn may_enter(&self, place: Place, path: &Path) -> bool {
        match place {
            Place::Enforced | Place::Person => true,
            Place::Repository => {
                let inside = |root: &PathBuf| path.canonicalize().is_ok_and(|real| real.starts_with(root));
                self.repository.as_ref().is_some_and(inside)
            }
        }
    }

    /// What is in a folder, sorted by name. A missing folder is empty.
    fn children(&mut self, folder: &Path) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
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

    fn skip(&mut self, path: PathBuf, reason: impl Into<String>) {
        self.found.skipped.push(Skipped { path, reason: reason.into() });
    }

    fn problem(&mut self, problem: Problem) {
        if self.found.problems.len() < PROBLEMS_MAX {
            self.found.problems.push(problem);
        }
    }
}

const OUT_OF_REPOSITORY: &str = "a link that leads out of the repository, or nowhere";

/// Whether it is a settings file of the person's that switches the hooks of all of them off.
fn switches_settings_off(source: &Source) -> bool {
    let of_person = source.form == SourceForm::Settings && source.place == Place::Person;
    of_person && declaration(&source.path).is_ok_and(|text| claude::disables_all(&text))
}

fn what_of_claude(hook: &Hook) -> String {
    let events: Vec<&str> = hook.events.iter().map(|(_, name)| name.as_str()).collect();
    let events = events.join(", ");
    match &hook.kind {
        Kind::Claude { line, matcher, .. } if matcher.is_empty() => format!("at {events} runs: {line}"),
        Kind::Claude { line, matcher, .. } => format!("at {events} of {matcher} runs: {line}"),
        Kind::Script { .. } | Kind::Resident { .. } | Kind::Declared { .. } | Kind::Webhook { .. } => events,
    }
}

/// Why a file of this name is no hook.
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

/// The text of a declaration, an ordinary file.
fn declaration(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("cannot read this file: {error}");
    // Opening a pipe would wait for its writer.
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
