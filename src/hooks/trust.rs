//! The user's consent to code from a repository: which files, in which version, may run.
//!
//! Consent is pinned to a path and a digest: a changed file needs new consent. A store that cannot be read
//! trusts nothing. It is shared by all processes of a home: each change reads the file again under a lock and
//! replaces it atomically.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use super::digest::{recipe_digest, unchanged};
use epitome_config as config;
use epitome_files::paths::Paths;
use epitome_problem::Problem;

/// Maximum decisions kept; beyond it the oldest are forgotten, and the user is asked again.
pub const CONSENTS_MAX: usize = 10_000;
/// Maximum size of the store in bytes: `CONSENTS_MAX` decisions with long paths.
const STORE_BYTES_MAX: u64 = 8 << 20;
/// The format version of the store that we write.
const VERSION: u32 = 1;

/// The subject of a decision.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    pub path: PathBuf,
    pub digest: String,
}

/// A decision of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed for this session.
    Once,
    /// Allowed for these digests.
    Always,
    /// Never for these digests.
    Never,
}

/// Whether a file may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Trusted,
    /// The user refused it, or runs nothing from repositories.
    Refused,
    /// The user has not decided.
    Unknown,
}

/// The decisions that apply to a session.
#[derive(Clone, Debug)]
pub struct Trust {
    policy: config::Trust,
    file: PathBuf,
    stored: BTreeMap<Item, Stored>,
    /// Allowed for this session.
    once: BTreeSet<Item>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Allow,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stored {
    word: Word,
    /// Milliseconds since the Unix epoch.
    at: u64,
}

/// The store's file format.
#[derive(Serialize, Deserialize)]
struct StoreFile {
    version: u32,
    consents: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    path: PathBuf,
    sha256: String,
    decision: Word,
    at: u64,
}

impl Trust {
    /// The path of the store. Not in the configuration, which users edit or copy to other machines: consent
    /// refers to paths of this machine.
    pub fn file(paths: &Paths) -> PathBuf {
        paths.data.join("trust.json")
    }

    /// Loads the decisions. A damaged store is a problem, and trusts nothing. Blocks on disk I/O.
    pub fn load(paths: &Paths, policy: config::Trust) -> (Trust, Option<Problem>) {
        let file = Trust::file(paths);
        let (stored, problem) = match read(&file) {
            Ok(stored) => (stored, None),
            Err(message) => {
                let hint = "nothing of a repository runs until it is allowed anew; the next decision sets this file aside";
                (
                    BTreeMap::new(),
                    Some(Problem { path: file.clone(), place: None, message, hint: Some(hint.to_owned()) }),
                )
            }
        };
        (Trust { policy, file, stored, once: BTreeSet::new() }, problem)
    }

    /// Reads the store again, because another process may have changed it; decisions for this session are
    /// kept.
    pub fn reload(&mut self) -> Option<Problem> {
        match read(&self.file) {
            Ok(stored) => {
                self.stored = stored;
                None
            }
            Err(message) => {
                self.stored.clear();
                Some(Problem { path: self.file.clone(), place: None, message, hint: None })
            }
        }
    }

    /// Whether this version of this file may run. Blocks on disk I/O while resolving the path's links, so
    /// that a file has one name.
    pub fn verdict(&self, path: &Path, digest: &str) -> Verdict {
        let item = named(path, digest);
        let stored = self.stored.get(&item).map(|stored| stored.word);
        match (self.policy, stored) {
            (config::Trust::Never, _) => Verdict::Refused,
            // A decision for this session is the newer one.
            _ if self.once.contains(&item) => Verdict::Trusted,
            (config::Trust::Ask | config::Trust::Run, Some(Word::Never)) => Verdict::Refused,
            (config::Trust::Ask, Some(Word::Allow)) | (config::Trust::Run, _) => Verdict::Trusted,
            (config::Trust::Ask, None) => Verdict::Unknown,
        }
    }

    /// Records a decision, on disk unless it is only for this session. If writing fails, the error is a
    /// message and the decision still applies to this session. Blocks on disk I/O.
    pub fn remember(&mut self, items: &[Item], decision: Decision) -> Result<(), String> {
        let items = items.iter().map(|item| named(&item.path, &item.digest));
        let word = match decision {
            Decision::Once => {
                self.once.extend(items);
                return Ok(());
            }
            Decision::Always => Word::Allow,
            Decision::Never => Word::Never,
        };
        let at = now();
        let new: Vec<(Item, Stored)> = items.map(|item| (item, Stored { word, at })).collect();
        for (item, stored) in &new {
            self.once.remove(item);
            self.stored.insert(item.clone(), *stored);
        }
        self.stored = store(&self.file, new).map_err(|error| {
            format!(
                "the decision holds for this session alone: {} cannot be written: {error}",
                self.file.display()
            )
        })?;
        Ok(())
    }
}

/// Canonicalizes the path, so that a file has one name.
fn named(path: &Path, digest: &str) -> Item {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    Item { path, digest: digest.to_owned() }
}

fn read(file: &Path) -> Result<BTreeMap<Item, Stored>, String> {
    let unreadable = |error: io::Error| format!("what hooks you trust cannot be read: {error}");
    let mut bytes = Vec::new();
    match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(unreadable(error)),
        Ok(open) => open.take(STORE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?,
    };
    if bytes.len() as u64 > STORE_BYTES_MAX {
        return Err(format!("what hooks you trust is damaged: more than {} MiB", STORE_BYTES_MAX >> 20));
    }
    let store: StoreFile = serde_json::from_slice(&bytes)
        .map_err(|error| format!("what hooks you trust is damaged: {error}"))?;
    if store.version != VERSION {
        return Err(format!("what hooks you trust has the unknown form {}", store.version));
    }
    let rows = store.consents.into_iter();
    Ok(rows
        .map(|row| {
            let item = Item { path: row.path, digest: row.sha256 };
            (item, Stored { word: row.decision, at: row.at })
        })
        .collect())
}

/// Adds decisions to the store under its lock; returns all of them.
fn store(file: &Path, new: Vec<(Item, Stored)>) -> io::Result<BTreeMap<Item, Stored>> {
    let folder = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let lock = private().create(true).truncate(false).open(file.with_extension("lock"))?;
    lock.lock()?;
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
    let rows = all.iter().map(|(item, stored)| Row {
        path: item.path.clone(),
        sha256: item.digest.clone(),
        decision: stored.word,
        at: stored.at,
    });
    let whole = StoreFile { version: VERSION, consents: rows.collect() };
    replace(file, &serde_json::to_vec_pretty(&whole)?)?;
    Ok(all)
}

/// Atomically replaces a file with a private one.
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    epitome_files::atomic_file::replace_private(file, bytes)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
