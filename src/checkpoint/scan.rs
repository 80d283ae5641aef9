//! Looks at a whole workspace: what stands at each path, with the contents of files kept. A file that was seen
//! before and has the same stamp is not read again. It changes nothing, and follows no link.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ignore::WalkBuilder;

use super::blobs::Blobs;
use super::node::{self, Node, Stamp};
use super::{Bounds, TEMPORARY};

/// The places where version control keeps its own files: the person's state there is theirs.
const VERSION_CONTROL: [&str; 4] = [".git", ".hg", ".svn", ".jj"];

/// The files by which a directory says what is left out of a look.
const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// A file that changed less than this before it was read may change again without another stamp: clocks of file
/// systems tick that slowly.
const TICK: Duration = Duration::from_millis(20);

/// What stood in a workspace at one time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub nodes: BTreeMap<PathBuf, Node>,
    /// When the look began: nanoseconds since the epoch, by the clock that files are stamped by.
    pub began: i64,
    /// Whether nothing was left out: else a path that is not in it may have been there.
    pub is_whole: bool,
    /// What was beyond the bounds, in words.
    pub beyond: Vec<String>,
}

/// What is known of files that were read.
#[derive(Default)]
pub struct Cache {
    files: HashMap<PathBuf, Known>,
}

struct Known {
    stamp: Stamp,
    node: Node,
    /// It was read so shortly after it changed that it has to be read again.
    is_fresh: bool,
}

impl Cache {
    /// The contents that it answers for.
    pub fn hashes(&self) -> impl Iterator<Item = &str> {
        self.files.values().filter_map(|known| known.node.hash())
    }
}

/// What is looked at, and what is not.
pub struct Place<'a> {
    /// Without links in them.
    pub roots: &'a [PathBuf],
    /// Our own data, should it lie in a workspace.
    pub excluded: &'a Path,
    pub bounds: &'a Bounds,
}

/// Looks at all that no ignore file leaves out.
pub fn scan(place: &Place<'_>, cache: &mut Cache, blobs: &mut Blobs) -> Seen {
    let mut seen = Seen { began: now(), is_whole: true, ..Seen::default() };
    let mut found: HashMap<PathBuf, Known> = HashMap::with_capacity(cache.files.len());
    let deadline = Instant::now() + place.bounds.scan_time;
    let (mut unkept, mut unread) = (0u64, 0u64);
    'roots: for root in place.roots {
        for entry in walk(root, place.excluded) {
            if Instant::now() >= deadline {
                seen.is_whole = false;
                seen.beyond.push(format!(
                    "looking at the workspace took more than {} s and was ended",
                    place.bounds.scan_time.as_secs()
                ));
                break 'roots;
            }
            let Ok(entry) = entry else {
                // A directory that may not be entered: what is in it is not known.
                seen.is_whole = false;
                unread += 1;
                continue;
            };
            if entry.depth() == 0 || is_ours(entry.path()) {
                continue;
            }
            if seen.nodes.len() >= place.bounds.paths {
                seen.is_whole = false;
                seen.beyond.push(format!(
                    "only the first {} files and directories were looked at",
                    place.bounds.paths
                ));
                break 'roots;
            }
            let path = entry.into_path();
            // Two roots may overlap.
            if seen.nodes.contains_key(&path) {
                continue;
            }
            match one(&path, place.bounds, cache, &mut found, blobs, seen.began) {
                Ok(Node::Missing) => {}
                Ok(node) => {
                    unkept += u64::from(matches!(node, Node::Unkept { .. }));
                    seen.nodes.insert(path, node);
                }
                Err(_) => {
                    seen.is_whole = false;
                    unread += 1;
                }
            }
        }
    }
    if unkept > 0 {
        seen.beyond.push(format!(
            "{unkept} files are too large to be kept (more than {} MB each, or {} MB together)",
            place.bounds.file_bytes / 1_000_000,
            place.bounds.session_bytes / 1_000_000
        ));
    }
    if unread > 0 {
        seen.beyond.push(format!("{unread} files or directories could not be read"));
    }
    cache.files = found;
    seen
}

fn one(
    path: &Path,
    bounds: &Bounds,
    cache: &mut Cache,
    found: &mut HashMap<PathBuf, Known>,
    blobs: &mut Blobs,
    began: i64,
) -> io::Result<Node> {
    let metadata = match std::fs::symlink_metadata(path) {
        Err(error) if node::is_absence(&error) => return Ok(Node::Missing),
        metadata => metadata?,
    };
    node::of(path, &metadata, |path, metadata| {
        let stamp = Stamp::of(metadata);
        if let Some(known) = cache.files.remove(path).filter(|known| known.stamp == stamp && !known.is_fresh)
        {
            let node = known.node.clone();
            found.insert(path.to_path_buf(), known);
            return Ok(node);
        }
        let node = match blobs.bytes() >= bounds.session_bytes {
            true => node::unkept(metadata),
            false => keep(path, metadata, bounds.file_bytes, blobs)?,
        };
        let is_fresh = stamp.changed.saturating_add(TICK.as_nanos() as i64) >= began;
        found.insert(path.to_path_buf(), Known { stamp, node: node.clone(), is_fresh });
        Ok(node)
    })
}

/// Keeps a file's content, if it has at most so many bytes.
pub fn keep(path: &Path, metadata: &Metadata, bytes_max: u64, blobs: &mut Blobs) -> io::Result<Node> {
    if metadata.len() > bytes_max {
        return Ok(node::unkept(metadata));
    }
    match node::read(path, bytes_max) {
        Ok(Some(content)) => {
            let hash = blobs.put(&content)?;
            Ok(Node::File { hash, bytes: content.len() as u64, mode: node::mode_of(metadata) })
        }
        // It grew just now.
        Ok(None) => Ok(node::unkept(metadata)),
        Err(error) if node::is_absence(&error) => Ok(Node::Missing),
        // Nobody but its owner may read it; it is known by its stamp all the same.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(node::unkept(metadata)),
        Err(error) => Err(error),
    }
}

/// How a file is known whose content need not be kept.
pub fn name(path: &Path, metadata: &Metadata, bytes_max: u64) -> io::Result<Node> {
    if metadata.len() > bytes_max {
        return Ok(node::unkept(metadata));
    }
    match node::read(path, bytes_max) {
        Ok(Some(content)) => Ok(Node::File {
            hash: super::blobs::hash(&content),
            bytes: content.len() as u64,
            mode: node::mode_of(metadata),
        }),
        Ok(None) => Ok(node::unkept(metadata)),
        Err(error) if node::is_absence(&error) => Ok(Node::Missing),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(node::unkept(metadata)),
        Err(error) => Err(error),
    }
}

fn walk(root: &Path, excluded: &Path) -> ignore::Walk {
    let excluded = excluded.to_path_buf();
    WalkBuilder::new(root)
        .hidden(false)
        .follow_links(false)
        // It would be that of our own environment, not of the session's.
        .git_global(false)
        .require_git(false)
        .sort_by_file_path(Path::cmp)
        .filter_entry(move |entry| {
            let name = entry.file_name().to_string_lossy();
            entry.depth() == 0 || !(VERSION_CONTROL.contains(&name.as_ref()) || entry.path() == excluded)
        })
        .build()
}

/// Whether a file is one of our own that has not its name yet.
fn is_ours(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name.starts_with(TEMPORARY) && name.ends_with(".tmp")
    })
}

/// What is different between two looks: each path with what stood there and what stands there now.
pub struct Difference {
    pub path: PathBuf,
    pub before: Node,
    pub after: Node,
}

/// Compares two looks at the same workspace.
///
/// A path that only the second look has seen may have been there all the time: ignored then and not now, or
/// beyond a bound. It counts as new where the first look was whole, and the path was made or changed since, or came
/// along with a directory that was renamed; where that is not known it is in the second part.
pub fn compare(before: &Seen, after: &Seen, bounds: &Bounds) -> (Vec<Difference>, Vec<PathBuf>) {
    let mut differences = Vec::new();
    let mut unsure = Vec::new();
    for (path, old) in &before.nodes {
        let new = match after.nodes.get(path) {
            Some(new) => new.clone(),
            // Ignored now, beyond a bound, or gone.
            None => node::look(path, |path, metadata| name(path, metadata, bounds.file_bytes))
                .unwrap_or(Node::Other),
        };
        if *old != new {
            differences.push(Difference { path: path.clone(), before: old.clone(), after: new });
        }
    }
    let is_ignore_file =
        |path: &Path| path.file_name().is_some_and(|name| IGNORE_FILES.iter().any(|ignore| name == *ignore));
    let new = after.nodes.iter().filter(|(path, _)| !before.nodes.contains_key(*path));
    let new: Vec<(&PathBuf, &Node)> = new.collect();
    let rules_changed = differences.iter().any(|difference| is_ignore_file(&difference.path))
        || new.iter().any(|(path, _)| is_ignore_file(path));
    // A directory that is renamed takes along files that show no sign of it.
    let gone: HashSet<Node> = differences.iter().map(|difference| difference.before.clone()).collect();
    let mut new_directories: HashSet<&Path> = HashSet::new();
    for (path, node) in new {
        let came_along = path.parent().is_some_and(|parent| new_directories.contains(parent));
        let changed = std::fs::symlink_metadata(path).map(|metadata| Stamp::of(&metadata).changed);
        let is_older = changed.is_ok_and(|at| at.saturating_add(TICK.as_nanos() as i64) < before.began);
        if is_older && !came_along {
            continue;
        }
        let is_known = !is_older || node.is_directory() || gone.contains(node);
        if !is_known || !before.is_whole || (rules_changed && !is_ignore_file(path)) {
            unsure.push(path.clone());
            continue;
        }
        if node.is_directory() {
            new_directories.insert(path);
        }
        differences.push(Difference { path: path.clone(), before: Node::Missing, after: node.clone() });
    }
    (differences, unsure)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
