//! Discovers a session's hooks: finds candidates, checks which of them may run, and reads what they declare.
//!
//! Nothing from a repository is started before the user has consented to it, not even to query its events.
//! Everything that is not used is listed with its reason.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::digest;
use super::gather::switches_settings_off;
use super::hook::{Hook, HookOrigin};
use super::manifest::ManifestSyntax;
use super::probe::{self, AnswerCache};
use super::servers::PinnedServer;
use super::sources::sources;
pub use super::sources::watched;
use super::trust::{TrustStore, TrustVerdict};
use epitome_config as config;
use epitome_files::paths::Paths;
use epitome_platform::reaper::Reaper;
use epitome_thread::problem::Problem;
use epitome_tools::Workspace;
use epitome_tools::sandbox::SandboxRules;

/// Maximum hooks per session; a folder with more probably contains something else.
pub const HOOKS_MAX: usize = 500;
/// Maximum directory entries read per search.
pub const ENTRIES_MAX: usize = 10_000;
/// Maximum size of a declarative file or a settings file in bytes.
pub const DECLARATION_BYTES_MAX: u64 = 256 * 1024;
/// Maximum problems kept per search; more than that is usually one repeated mistake.
pub const PROBLEMS_MAX: usize = 50;

/// The inputs of a search.
#[derive(Clone, Copy)]
pub struct HookSearch<'a> {
    pub paths: &'a Paths,
    /// The session's directory, and the environment of the client, in which `$NAME` of a webhook is looked up.
    pub workspace: &'a Workspace,
    pub settings: &'a config::HookSettings,
    pub reaper: &'a Arc<Reaper>,
    /// The rules for executables of a repository.
    pub sandbox: &'a Arc<SandboxRules>,
    pub trust: &'a TrustStore,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundHooks {
    /// In the order in which they run: by priority, then by origin, then by name.
    pub hooks: Vec<Arc<Hook>>,
    /// Hooks from the repository that wait for the user's decision.
    pub untrusted: Vec<UntrustedHook>,
    pub skipped: Vec<Skipped>,
    /// MCP servers of the repository, by name, as they are on disk. Filled in by the caller of `discover`.
    pub servers: BTreeMap<String, PinnedServer>,
    pub problems: Vec<Problem>,
}

/// A hook that runs only with the user's consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrustedHook {
    pub name: String,
    /// The file with the declaration.
    pub path: PathBuf,
    pub digest: String,
    /// When it would run, in Markdown.
    pub what: String,
    /// The program, line, address or result that it would run, as it is written.
    pub runs: String,
    /// Files covered by the digest, the declaration first.
    pub files: Vec<PathBuf>,
}

/// A file in a hook folder that is not a hook or not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    pub reason: String,
}

/// Finds the hooks of a session. Blocks on disk I/O and on the executables that are queried for their events, so it
/// must run on a blocking thread.
pub fn discover(search: &HookSearch<'_>) -> FoundHooks {
    if !search.settings.enabled {
        return FoundHooks::default();
    }
    let roots = search.paths.repository_roots(&search.workspace.cwd);
    let mut finder = HookFinder {
        search,
        repository: roots.last().and_then(|root| root.canonicalize().ok()),
        roots,
        found: FoundHooks::default(),
        entries: ENTRIES_MAX,
        candidates: Vec::new(),
        groups: 0,
        switch: None,
    };
    let sources = sources(&finder.roots, search.paths, search.settings.compat_dirs);
    let switch = sources.iter().find(|source| switches_settings_off(source));
    finder.switch = switch.map(|source| source.path.clone());
    sources.iter().for_each(|source| finder.source(source));
    finder.plugins();
    if finder.candidates.is_empty() {
        // The common case: nothing was found.
        return finder.found;
    }
    let mut answers = AnswerCache::load(search.paths);
    finder.judge(&answers);
    finder.ask(&mut answers);
    answers.save();
    finder.declare(&answers)
}

/// A file that may be a hook.
pub(super) struct HookCandidate {
    pub name: String,
    /// Another name that the user may use for it.
    pub alias: Option<String>,
    pub path: PathBuf,
    pub origin: HookOrigin,
    pub written: Declaration,
    /// Files covered by the digest, the declaration first.
    pub files: Vec<PathBuf>,
    /// Filled in by `judge`.
    pub digest: String,
    pub verdict: TrustVerdict,
}

impl HookCandidate {
    /// `files` begins with the declaration.
    pub fn new(name: String, files: Vec<PathBuf>, origin: HookOrigin, written: Declaration) -> HookCandidate {
        let path = files.first().cloned().unwrap_or_default();
        let (digest, verdict) = (String::new(), TrustVerdict::Unknown);
        HookCandidate { name, alias: None, path, origin, written, files, digest, verdict }
    }
}

pub(super) enum Declaration {
    Executable,
    Declarative {
        syntax: ManifestSyntax,
        content: String,
    },
    /// One command of a settings file, as parsed.
    Claude(Box<Hook>),
}

pub(super) struct HookFinder<'a> {
    pub search: &'a HookSearch<'a>,
    /// The session's directory and the root of its repository.
    pub roots: Vec<PathBuf>,
    /// The canonical path of the repository root.
    pub repository: Option<PathBuf>,
    pub found: FoundHooks,
    /// Directory entries that may still be read.
    pub entries: usize,
    pub candidates: Vec<HookCandidate>,
    /// Number of groups in the settings files so far.
    pub groups: usize,
    /// The user's settings file that disables the hooks of all settings files, if any.
    pub switch: Option<PathBuf>,
}

impl HookFinder<'_> {
    /// Computes the digests, and decides based on them which candidates may run.
    fn judge(&mut self, answers: &AnswerCache) {
        let trust = self.search.trust;
        let mut judged = Vec::new();
        for mut candidate in std::mem::take(&mut self.candidates) {
            let is_of_repository = candidate.origin.is_repository();
            // The user's own files need no consent, so unchanged metadata is sufficient.
            let known = || answers.digest(&candidate.path).filter(|_| !is_of_repository);
            let digest = match &candidate.written {
                Declaration::Claude(hook) => digest::hash_hook(hook),
                _ => known().map_or_else(|| digest::hash_files(&candidate.files), Ok),
            };
            candidate.digest = match digest {
                Ok(digest) => digest,
                Err(reason) => {
                    self.skip(candidate.path, reason.to_string());
                    continue;
                }
            };
            candidate.verdict = match is_of_repository {
                true => trust.verdict(&candidate.path, &candidate.digest),
                false => TrustVerdict::Trusted,
            };
            judged.push(candidate);
        }
        self.candidates = judged;
    }

    /// Queries the trusted executables whose answer is not cached.
    fn ask(&self, answers: &mut AnswerCache) {
        let executables = self.candidates.iter().filter(|candidate| {
            matches!(candidate.written, Declaration::Executable) && candidate.verdict == TrustVerdict::Trusted
        });
        let unknown: Vec<&HookCandidate> =
            executables.filter(|candidate| !answers.keep(&candidate.path, &candidate.digest)).collect();
        for (candidate, answer) in unknown.iter().zip(probe::ask_all(self.search, &unknown)) {
            answers.learn(&candidate.path, &candidate.digest, answer);
        }
    }

    /// Parses the declaration of each candidate. If names clash, the first valid one wins.
    fn declare(mut self, answers: &AnswerCache) -> FoundHooks {
        let mut names: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut hooks = Vec::new();
        for candidate in std::mem::take(&mut self.candidates) {
            if let Some(earlier) = names.get(&candidate.name) {
                let reason = format!("{} has the same name and comes first", earlier.display());
                self.skip(candidate.path, reason);
                continue;
            }
            match candidate.verdict {
                TrustVerdict::Trusted => {
                    if let Some(hook) = self.hook(&candidate, answers) {
                        names.insert(candidate.name, candidate.path);
                        hooks.push(hook);
                    }
                }
                TrustVerdict::Refused => {
                    let reason = match self.search.settings.trust {
                        config::HookTrust::Never => "hooks.trust is never",
                        config::HookTrust::Ask | config::HookTrust::Run => "you said never to this version",
                    };
                    self.skip(candidate.path, reason);
                }
                TrustVerdict::Unknown => {
                    let (what, runs) = self.what(&candidate);
                    let HookCandidate { name, path, digest, mut files, .. } = candidate;
                    files.retain(|file| file.exists());
                    self.found.untrusted.push(UntrustedHook { name, path, digest, what, runs, files });
                }
            }
        }
        // Stable sort: equal priorities keep the order of origins, and of names within one.
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
