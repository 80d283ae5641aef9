//! The user's consent to code from a repository: which files, in which version, may run.
//!
//! Consent is pinned to a path and a digest: a changed file needs new consent. If the store cannot be read,
//! nothing is trusted. It is shared by all processes of a home: each change reads the file again under a lock and
//! replaces it atomically.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use super::digest::{recipe_digest, unchanged};
use super::servers::ServerRecord;
use epitome_config as config;
use epitome_files::atomic_file::{lock_for_change, replace_private};
use epitome_files::paths::Paths;
use epitome_thread::problem::Problem;

/// Maximum decisions kept; beyond it the oldest are forgotten, and the user is asked again.
pub const CONSENTS_MAX: usize = 10_000;
/// Maximum size of the store in bytes: `CONSENTS_MAX` decisions with long paths.
const STORE_BYTES_MAX: u64 = 8 << 20;
/// The format version of the store that this version writes.
const VERSION: u32 = 1;

/// The subject of a decision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrustSubject {
    pub path: PathBuf,
    #[serde(rename = "sha256")]
    pub digest: String,
}

/// A decision of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustDecision {
    /// Allowed for this session.
    Once,
    /// Allowed for these digests.
    Always,
    /// Never for these digests.
    Never,
}

/// Whether a file may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustVerdict {
    Trusted,
    /// The user refused it, or allows nothing from repositories.
    Refused,
    /// The user has not decided.
    Unknown,
}

/// The decisions that apply to a session.
#[derive(Clone, Debug)]
pub struct TrustStore {
    policy: config::HookTrust,
    file: PathBuf,
    stored: BTreeMap<TrustSubject, StoredDecision>,
    /// Allowed for this session.
    once: BTreeSet<TrustSubject>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredWord {
    Allow,
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredDecision {
    #[serde(rename = "decision")]
    word: StoredWord,
    /// Milliseconds since the Unix epoch.
    at: u64,
    /// The server that the decision is about, for an MCP server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    covers: Option<ServerRecord>,
}

/// The store's file format.
#[derive(Serialize, Deserialize)]
struct TrustFile {
    version: u32,
    consents: Vec<TrustRow>,
}

#[derive(Serialize, Deserialize)]
struct TrustRow {
    #[serde(flatten)]
    item: TrustSubject,
    #[serde(flatten)]
    stored: StoredDecision,
}

/// Why the decisions about hooks and servers can't be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("the list of trusted hooks cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("the list of trusted hooks is damaged: {0}")]
    Parse(#[from] serde_json::Error),
    #[error("the list of trusted hooks is damaged: more than {} MiB", STORE_BYTES_MAX >> 20)]
    TooLarge,
    #[error("the list of trusted hooks has the unknown format version {0}")]
    Version(u32),
    #[error("the decision applies to this session only: {} cannot be written: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
}

impl TrustStore {
    /// The path of the store. Not in the configuration, which users edit or copy to other machines: consent
    /// refers to paths of this machine.
    pub fn file(paths: &Paths) -> PathBuf {
        paths.data.join("trust.json")
    }

    /// Loads the decisions. If the store is damaged, returns a problem and a store that trusts nothing. Blocks on disk
    /// I/O.
    pub fn load(paths: &Paths, policy: config::HookTrust) -> (TrustStore, Option<Problem>) {
        let file = TrustStore::file(paths);
        let mut trust = TrustStore { policy, file, stored: BTreeMap::new(), once: BTreeSet::new() };
        let problem = trust.reload();
        (trust, problem)
    }

    /// Reads the store again, because another process may have changed it; decisions for this session are
    /// kept.
    pub fn reload(&mut self) -> Option<Problem> {
        let read = read(&self.file);
        let message = read.as_ref().err().map(ToString::to_string);
        self.stored = read.unwrap_or_default();
        let hint = "nothing from a repository runs until it is allowed again; the next decision sets this file aside";
        message.map(|message| Problem::new(&self.file, message).with_hint(hint))
    }

    /// Whether this version of this file may run. Blocks on disk I/O while resolving the path's links, so
    /// that a file has one name.
    pub fn verdict(&self, path: &Path, digest: &str) -> TrustVerdict {
        let item = named(path, digest);
        let stored = self.stored.get(&item).map(|stored| stored.word);
        match (self.policy, stored) {
            (config::HookTrust::Never, _) => TrustVerdict::Refused,
            // A decision for this session is newer.
            _ if self.once.contains(&item) => TrustVerdict::Trusted,
            (config::HookTrust::Ask | config::HookTrust::Run, Some(StoredWord::Never)) => {
                TrustVerdict::Refused
            }
            (config::HookTrust::Ask, Some(StoredWord::Allow)) | (config::HookTrust::Run, _) => {
                TrustVerdict::Trusted
            }
            (config::HookTrust::Ask, None) => TrustVerdict::Unknown,
        }
    }

    /// The version of this server that the user last allowed, by file and name.
    pub fn allowed_server(&self, file: &Path, name: &str) -> Option<&ServerRecord> {
        let file = named(file, "").path;
        let of_server =
            self.stored.iter().filter(|(item, stored)| item.path == file && stored.word == StoredWord::Allow);
        let records = of_server.filter_map(|(_, stored)| Some((stored.at, stored.covers.as_ref()?)));
        let newest = records.filter(|(_, record)| record.server == name).max_by_key(|(at, _)| *at);
        newest.map(|(_, record)| record)
    }

    /// Records a decision, on disk unless it is only for this session. If writing fails,
    /// the decision still applies to this session. Blocks on disk I/O.
    pub fn remember(&mut self, items: &[TrustSubject], decision: TrustDecision) -> Result<(), TrustError> {
        let items: Vec<(TrustSubject, Option<ServerRecord>)> =
            items.iter().map(|item| (item.clone(), None)).collect();
        self.remember_recorded(&items, decision)
    }

    /// Like `remember`, with records of the servers among the items.
    pub fn remember_recorded(
        &mut self,
        items: &[(TrustSubject, Option<ServerRecord>)],
        decision: TrustDecision,
    ) -> Result<(), TrustError> {
        let items = items.iter().map(|(item, covers)| (named(&item.path, &item.digest), covers.clone()));
        let word = match decision {
            TrustDecision::Once => {
                self.once.extend(items.map(|(item, _)| item));
                return Ok(());
            }
            TrustDecision::Always => StoredWord::Allow,
            TrustDecision::Never => StoredWord::Never,
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let new: Vec<(TrustSubject, StoredDecision)> =
            items.map(|(item, covers)| (item, StoredDecision { word, at, covers })).collect();
        for (item, stored) in &new {
            self.once.remove(item);
            self.stored.insert(item.clone(), stored.clone());
        }
        self.stored =
            store(&self.file, new).map_err(|source| TrustError::Write { file: self.file.clone(), source })?;
        Ok(())
    }
}

/// Canonicalizes the path, so that a file has one name.
fn named(path: &Path, digest: &str) -> TrustSubject {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    TrustSubject { path, digest: digest.to_owned() }
}

fn read(file: &Path) -> Result<BTreeMap<TrustSubject, StoredDecision>, TrustError> {
    let mut bytes = Vec::new();
    match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
        Ok(open) => open.take(STORE_BYTES_MAX + 1).read_to_end(&mut bytes)?,
    };
    if bytes.len() as u64 > STORE_BYTES_MAX {
        return Err(TrustError::TooLarge);
    }
    let store: TrustFile = serde_json::from_slice(&bytes)?;
    if store.version != VERSION {
        return Err(TrustError::Version(store.version));
    }
    Ok(store.consents.into_iter().map(|row| (row.item, row.stored)).collect())
}

/// Adds decisions to the store under its lock. Returns all decisions.
fn store(
    file: &Path,
    new: Vec<(TrustSubject, StoredDecision)>,
) -> io::Result<BTreeMap<TrustSubject, StoredDecision>> {
    let _lock = lock_for_change(file)?;
    let mut all = match read(file) {
        Ok(all) => all,
        Err(_) => {
            fs::rename(file, file.with_extension("damaged"))?;
            BTreeMap::new()
        }
    };
    all.extend(new);
    while all.len() > CONSENTS_MAX {
        let Some(oldest) = all.iter().min_by_key(|(_, stored)| stored.at).map(|(item, _)| item.clone())
        else {
            break;
        };
        all.remove(&oldest);
    }
    let rows = all.iter().map(|(item, stored)| TrustRow { item: item.clone(), stored: stored.clone() });
    let whole = TrustFile { version: VERSION, consents: rows.collect() };
    replace_private(file, &serde_json::to_vec_pretty(&whole)?)?;
    Ok(all)
}
