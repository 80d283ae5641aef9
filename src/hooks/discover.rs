//! Finds the hooks of a session: what is in the places, what of it may run, and what it declares.
//!
//! Nothing that a repository brings is started, not even to be asked what it handles, before the person
//! has consented to it. What is not taken is listed with its reason; nothing is passed over in silence.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::asked::{self, Answers};
use super::digest;
use super::gather::switches_settings_off;
use super::hook::{Hook, Place};
use super::manifest::Syntax;
use super::places::sources;
pub use super::places::watched;
use super::trust::{Trust, Verdict};
use epitome_config as config;
use epitome_files::paths::Paths;
use epitome_platform::reaper::Reaper;
use epitome_problem::Problem;

/// Hooks of one session; a folder with more is one of something else.
pub const HOOKS_MAX: usize = 500;
/// Directory entries looked at for one search.
pub const ENTRIES_MAX: usize = 10_000;
/// Bytes of a declarative file or of a settings file.
pub const DECLARATION_BYTES_MAX: u64 = 256 * 1024;
/// Problems kept of one search; more of them is one mistake made often.
pub const PROBLEMS_MAX: usize = 50;

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
    if finder.candidates.is_empty() {
        // Most sessions: there is nothing to look up.
        return finder.found;
    }
    let mut answers = Answers::load(search.paths);
    finder.judge(&answers);
    finder.ask(&mut answers);
    answers.save();
    finder.declare(&answers)
}

/// A file that may be a hook.
pub(super) struct Candidate {
    pub name: String,
    /// Another name that the person may use for it.
    pub alias: Option<String>,
    pub path: PathBuf,
    pub place: Place,
    pub written: Written,
    /// What the digest is over, the declaration first.
    pub files: Vec<PathBuf>,
    /// Filled by `judge`.
    pub digest: String,
    pub verdict: Verdict,
}

pub(super) enum Written {
    Executable,
    Declarative {
        syntax: Syntax,
        content: String,
    },
    /// One line of a settings file, as it was read there.
    Claude(Box<Hook>),
}

pub(super) struct Finder<'a> {
    pub search: &'a Search<'a>,
    /// The session's directory and the root of its repository.
    pub roots: Vec<PathBuf>,
    /// The latter's real path.
    pub repository: Option<PathBuf>,
    pub found: Found,
    /// Directory entries that may still be looked at.
    pub entries: usize,
    pub candidates: Vec<Candidate>,
    /// Groups of the settings files so far.
    pub groups: usize,
}

impl Finder<'_> {
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

    pub fn skip(&mut self, path: PathBuf, reason: impl Into<String>) {
        self.found.skipped.push(Skipped { path, reason: reason.into() });
    }

    pub fn problem(&mut self, problem: Problem) {
        if self.found.problems.len() < PROBLEMS_MAX {
            self.found.problems.push(problem);
        }
    }
}
