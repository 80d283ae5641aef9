//! Scans a workspace: records the node at each path and stores file contents. A file that was seen before and
//! has the same stamp isn't read again. Changes nothing, and follows no links.

use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::Bounds;
use super::blobs::CheckpointBlobs;
use super::node::{self, FileNode, NodeStamp};
use super::record::TouchedPath;
use super::user_files::{NodeKind, NodeStat, UserFiles};
use super::walk::{order, walk};
use epitome_platform::disk::file_time;

/// Files that define what a scan ignores.
const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// A file that changed less than this before it was read may change again without a new stamp, because file system
/// clocks are coarse.
const TICK: Duration = Duration::from_millis(20);

/// Number of threads that read files, and the minimum number of files for which more than one is used.
const READERS: usize = 2;
const READ_TOGETHER_MIN: usize = 64;

/// The state of a workspace at one time.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceSnapshot {
    /// In the order of `walk::order`, without duplicates.
    pub found: Arc<Vec<ScannedPath>>,
    /// Start of the scan: nanoseconds since the epoch, by the clock of file stamps.
    pub began: i64,
    /// Whether nothing was skipped; otherwise a path that isn't in the snapshot may have existed.
    pub is_whole: bool,
    /// Descriptions of exceeded limits.
    pub beyond: Vec<String>,
    /// Number of files known only by their stamps until there is time to read them.
    pub pending: usize,
}

/// A path and its state. Shared between scans if nothing changed.
#[derive(Clone, Debug)]
pub struct ScannedPath {
    pub path: Arc<Path>,
    pub known: Arc<KnownNode>,
}

/// The known state of a path.
#[derive(Debug)]
pub struct KnownNode {
    pub node: FileNode,
    /// `None` if an earlier process scanned it.
    stamp: Option<NodeStamp>,
    /// Whether it must be read by the next scan: it hasn't been read yet, or was read so soon after a change
    /// that it may have changed again.
    is_open: bool,
}

impl KnownNode {
    /// Creates the state that an earlier process recorded.
    pub fn from_earlier(node: FileNode) -> KnownNode {
        KnownNode { node, stamp: None, is_open: true }
    }
}

impl ScannedPath {
    /// Whether the path is unchanged between two scans.
    pub fn is_same(&self, after: &ScannedPath) -> bool {
        if Arc::ptr_eq(&self.known, &after.known) || self.known.node == after.known.node {
            return true;
        }
        // The file was only read between the two scans.
        matches!(&self.known.node, FileNode::Unkept { stamp, .. } if after.known.stamp == Some(*stamp))
    }
}

impl WorkspaceSnapshot {
    pub fn get(&self, path: &Path) -> Option<&FileNode> {
        let at = self.found.binary_search_by(|found| order(&found.path, path)).ok()?;
        Some(&self.found[at].known.node)
    }
}

/// Iterates over two scans in parallel, path by path; each pair has at least one of the two.
pub fn zip_paths<'a>(
    before: &'a [ScannedPath],
    after: &'a [ScannedPath],
) -> impl Iterator<Item = (Option<&'a ScannedPath>, Option<&'a ScannedPath>)> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    std::iter::from_fn(move || {
        let which = match (before.peek(), after.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) if Arc::ptr_eq(&old.path, &new.path) => Ordering::Equal,
            (Some(old), Some(new)) => order(&old.path, &new.path),
        };
        Some(match which {
            Ordering::Less => (before.next(), None),
            Ordering::Greater => (None, after.next()),
            Ordering::Equal => (before.next(), after.next()),
        })
    })
}

/// The scope of a scan.
pub struct ScanScope<'a> {
    /// Must not contain links.
    pub roots: &'a [PathBuf],
    /// The data directory, which may be inside of a workspace.
    pub excluded: &'a Path,
    pub bounds: &'a Bounds,
}

/// Whether a scan precedes or follows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanTime {
    /// Before a command, which waits for the scan: reads for a short time, including files that earlier scans had no
    /// time for.
    Before,
    /// After a command: reads the files that changed.
    After,
}

/// Scans everything that isn't ignored. Files that changed since the `last` scan are read as time permits,
/// newest first, followed by those that an earlier scan had no time for.
pub fn scan(
    place: &ScanScope<'_>,
    last: &[ScannedPath],
    blobs: &CheckpointBlobs,
    when: ScanTime,
) -> WorkspaceSnapshot {
    let bounds = place.bounds;
    let mut seen = WorkspaceSnapshot { began: file_time(), is_whole: true, ..WorkspaceSnapshot::default() };
    let walked = walk(place, last.len(), Instant::now() + bounds.scan_time);
    if walked.is_late {
        seen.beyond.push(format!(
            "scanning the workspace took more than {} s and was stopped",
            bounds.scan_time.as_secs()
        ));
    }
    if walked.is_over {
        seen.beyond.push(format!("only the first {} files and directories were scanned", bounds.paths));
    }
    let mut unread = walked.unread;
    let mut found: Vec<ScannedPath> = Vec::with_capacity(walked.paths.len());
    let mut unread_files: Vec<Unread> = Vec::new();
    let mut last = last.iter().peekable();
    for (path, metadata) in walked.paths {
        while last.next_if(|old| order(&old.path, &path).is_lt()).is_some() {}
        let old = last.next_if(|old| *old.path == *path);
        let stat = NodeStat::from(&metadata);
        let stamp = stat.stamp;
        let had_stamp = old.is_some_and(|old| old.known.stamp == Some(stamp));
        let at = found.len();
        let scanned = |path: PathBuf, node, is_open| ScannedPath {
            // Shares the memory of the previous scan.
            path: old.map_or_else(|| path.into(), |old| old.path.clone()),
            known: Arc::new(KnownNode { node, stamp: Some(stamp), is_open }),
        };
        if stat.kind == NodeKind::File {
            match old {
                Some(old) if had_stamp && !old.known.is_open => found.push(old.clone()),
                Some(_) | None => {
                    found.push(scanned(path, node::unkept(&stat), true));
                    let is_old =
                        had_stamp && old.is_some_and(|old| matches!(old.known.node, FileNode::Unkept { .. }));
                    unread_files.push(Unread { at, stat, is_old });
                }
            }
            continue;
        }
        match node::of(blobs.files(), &path, &stat, |_, stat| Ok(node::unkept(stat))) {
            Ok(node) => match old {
                Some(old) if old.known.node == node && inode(old) == Some(stamp.inode) => {
                    found.push(old.clone());
                }
                Some(_) | None => found.push(scanned(path, node, false)),
            },
            Err(error) if node::is_absence(&error) => {}
            Err(_) => unread += 1,
        }
    }
    let mut gone = Vec::new();
    let all = unread_files.len();
    let files = read_all(&found, unread_files, bounds, blobs, when);
    seen.pending = all - files.len();
    for (Unread { at, stat, .. }, node) in files {
        let stamp = stat.stamp;
        match node {
            Ok(FileNode::Missing) => gone.push(at),
            Ok(node) => {
                let is_open = stamp.changed.saturating_add(TICK.as_nanos() as i64) >= seen.began;
                found[at].known = Arc::new(KnownNode { node, stamp: Some(stamp), is_open });
            }
            Err(_) => {
                gone.push(at);
                unread += 1;
            }
        }
    }
    gone.sort_unstable();
    gone.into_iter().rev().for_each(|at| drop(found.remove(at)));
    let is_too_large = |found: &&ScannedPath| matches!(found.known.node, FileNode::Unkept { .. });
    let unkept = found.iter().filter(is_too_large).count().saturating_sub(seen.pending);
    if unkept > 0 {
        let files = if unkept == 1 { "1 file is".to_owned() } else { format!("{unkept} files are") };
        seen.beyond.push(format!(
            "{files} too large to be stored (more than {} MB each, or {} MB together)",
            bounds.file_bytes / 1_000_000,
            bounds.session_bytes / 1_000_000
        ));
    }
    if unread > 0 {
        seen.beyond.push(format!("{unread} files or directories could not be read"));
    }
    seen.is_whole = !walked.is_late && !walked.is_over && unread == 0;
    seen.found = Arc::new(found);
    seen
}

/// Returns the inode at a path, unless an earlier process scanned it.
fn inode(scanned: &ScannedPath) -> Option<u64> {
    scanned.known.stamp.map(|stamp| stamp.inode)
}

struct Unread {
    /// Its index in the scan.
    at: usize,
    stat: NodeStat,
    /// Whether an earlier scan had no time for it.
    is_old: bool,
}

/// Stores the contents of files as time permits. Returns the processed files.
fn read_all(
    found: &[ScannedPath],
    mut files: Vec<Unread>,
    bounds: &Bounds,
    blobs: &CheckpointBlobs,
    when: ScanTime,
) -> Vec<(Unread, io::Result<FileNode>)> {
    // Recently changed files are the most likely to change next.
    files.sort_by_key(|file| (file.is_old, Reverse(file.stat.stamp.changed)));
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    let read = || {
        let mut nodes = Vec::new();
        loop {
            let nth = next.fetch_add(1, Relaxed);
            let Some(file) = files.get(nth) else { return nodes };
            let time = match (when, file.is_old) {
                (ScanTime::Before, _) => bounds.copy_time,
                (ScanTime::After, false) => bounds.scan_time,
                (ScanTime::After, true) => Duration::ZERO,
            };
            if began.elapsed() >= time {
                return nodes;
            }
            let node = match blobs.bytes() >= bounds.session_bytes {
                true => Ok(node::unkept(&file.stat)),
                false => keep(&found[file.at].path, &file.stat, bounds.file_bytes, blobs),
            };
            nodes.push((nth, node));
        }
    };
    let mut nodes: Vec<(usize, io::Result<FileNode>)> = match files.len() {
        0..READ_TOGETHER_MIN => read(),
        READ_TOGETHER_MIN.. => std::thread::scope(|scope| {
            let others: Vec<_> = (1..READERS).map(|_| scope.spawn(read)).collect();
            let mut nodes = read();
            for other in others {
                // Files read by a thread that panicked are read again by the next scan.
                nodes.extend(other.join().unwrap_or_default());
            }
            nodes
        }),
    };
    nodes.sort_unstable_by_key(|(nth, _)| *nth);
    let mut nodes = nodes.into_iter().peekable();
    let outcome = |(nth, file)| {
        let node = nodes.next_if(|(of, _)| *of == nth)?.1;
        Some((file, node))
    };
    files.into_iter().enumerate().filter_map(outcome).collect()
}

/// Returns the node of a file; stores its content if it has at most `bytes_max` bytes.
pub fn keep(path: &Path, stat: &NodeStat, bytes_max: u64, blobs: &CheckpointBlobs) -> io::Result<FileNode> {
    node_of(blobs.files(), path, stat, bytes_max, |content| blobs.put(content))
}

/// Like `keep`, but only computes the hash without storing the content.
pub fn name(files: &dyn UserFiles, path: &Path, stat: &NodeStat, bytes_max: u64) -> io::Result<FileNode> {
    node_of(files, path, stat, bytes_max, |content| Ok(super::blobs::hash(content)))
}

/// Returns the current node at a path, without storing its content.
pub fn look_named(files: &dyn UserFiles, path: &Path, bytes_max: u64) -> FileNode {
    node::look(files, path, |path, stat| name(files, path, stat, bytes_max)).unwrap_or(FileNode::Other)
}

fn node_of(
    files: &dyn UserFiles,
    path: &Path,
    stat: &NodeStat,
    bytes_max: u64,
    hash: impl FnOnce(&[u8]) -> io::Result<String>,
) -> io::Result<FileNode> {
    if stat.stamp.bytes > bytes_max {
        return Ok(node::unkept(stat));
    }
    match files.read(path, bytes_max) {
        Ok(Some(content)) => {
            let hash = hash(&content)?;
            Ok(FileNode::File { hash, bytes: content.len() as u64, mode: stat.stamp.mode })
        }
        // The file has just grown beyond the limit.
        Ok(None) => Ok(node::unkept(stat)),
        Err(error) if node::is_absence(&error) => Ok(FileNode::Missing),
        // An unreadable file is identified by its stamp.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(node::unkept(stat)),
        Err(error) => Err(error),
    }
}

/// Compares two scans of the same workspace.
///
/// A path that appears only in the second scan may have existed before, if it was ignored then or beyond a limit. It
/// counts as new if the first scan was complete and the path was created or changed since, or was moved with a
/// directory that was renamed, to a new path or replacing something. If that is uncertain, the path is in the second
/// list.
pub fn compare(
    files: &dyn UserFiles,
    before: &WorkspaceSnapshot,
    after: &WorkspaceSnapshot,
    bounds: &Bounds,
) -> (Vec<TouchedPath>, Vec<PathBuf>) {
    let mut differences: Vec<TouchedPath> = Vec::new();
    let mut differ = |path: &Path, before: &FileNode, after: FileNode| {
        differences.push(TouchedPath::new(path.to_path_buf(), before.clone(), Some(after)));
    };
    let mut unsure = Vec::new();
    let mut new: Vec<(&Path, &FileNode)> = Vec::new();
    let mut new_directories: HashSet<&Path> = HashSet::new();
    for pair in zip_paths(&before.found, &after.found) {
        match pair {
            (Some(old), Some(found)) => {
                let is_other = inode(old).is_some_and(|inode_before| Some(inode_before) != inode(found));
                if found.known.node.is_directory() && is_other {
                    new_directories.insert(&found.path);
                }
                if !old.is_same(found) {
                    differ(&old.path, &old.known.node, found.known.node.clone());
                }
            }
            (Some(old), None) => {
                // It is ignored now, beyond a limit, or deleted.
                let now = look_named(files, &old.path, bounds.file_bytes);
                if old.known.node != now && !has_stamp(files, &old.known.node, &old.path) {
                    differ(&old.path, &old.known.node, now);
                }
            }
            (None, Some(found)) => new.push((&found.path, &found.known.node)),
            (None, None) => {}
        }
    }
    let is_ignore_file =
        |path: &Path| path.file_name().is_some_and(|name| IGNORE_FILES.iter().any(|ignore| name == *ignore));
    let rules_changed = differences.iter().any(|difference| is_ignore_file(&difference.path))
        || new.iter().any(|(path, _)| is_ignore_file(path));
    // Files in a renamed directory have unchanged stamps.
    let gone: HashSet<FileNode> = differences.iter().map(|difference| difference.before.clone()).collect();
    for (path, node) in new {
        let came_along = path.parent().is_some_and(|parent| new_directories.contains(parent));
        let changed = files.stat(path).map(|stat| stat.stamp.changed);
        let is_older = changed.is_ok_and(|at| at.saturating_add(TICK.as_nanos() as i64) < before.began);
        if is_older && !came_along {
            continue;
        }
        let is_known = !is_older || node.is_directory() || gone.contains(node);
        if !is_known || !before.is_whole || (rules_changed && !is_ignore_file(path)) {
            unsure.push(path.to_path_buf());
            continue;
        }
        if node.is_directory() {
            new_directories.insert(path);
        }
        differences.push(TouchedPath::new(path.to_path_buf(), FileNode::Missing, Some(node.clone())));
    }
    (differences, unsure)
}

/// Whether a file that is known only by its stamp still has that stamp.
pub fn has_stamp(files: &dyn UserFiles, known: &FileNode, path: &Path) -> bool {
    let FileNode::Unkept { stamp, .. } = known else { return false };
    files.stat(path).is_ok_and(|found| found.stamp == *stamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CheckpointDisk;
    use crate::user_files::RealFiles;

    /// Creates a workspace with these files, and a blob store outside of it.
    fn bench(files: &[&str]) -> (tempfile::TempDir, [PathBuf; 1], CheckpointBlobs) {
        let home = tempfile::tempdir().expect("a temporary directory");
        let root = home.path().canonicalize().expect("it is there").join("w");
        std::fs::create_dir(&root).expect("made");
        for file in files {
            std::fs::write(root.join(file), file).expect("written");
        }
        let blobs =
            CheckpointBlobs::open(CheckpointDisk::real(), home.path().join("contents")).expect("opened");
        (home, [root], blobs)
    }

    fn looked(
        roots: &[PathBuf],
        last: &[ScannedPath],
        blobs: &CheckpointBlobs,
        bounds: &Bounds,
        when: ScanTime,
    ) -> WorkspaceSnapshot {
        scan(&ScanScope { roots, excluded: Path::new("/nowhere"), bounds }, last, blobs, when)
    }

    #[test]
    fn pending_files_are_stored_later_and_count_as_unchanged() {
        let (_home, roots, blobs) = bench(&["a", "b", "c"]);
        let (bounds, hurried) =
            (Bounds::default(), Bounds { copy_time: Duration::ZERO, ..Bounds::default() });
        let first = looked(&roots, &[], &blobs, &hurried, ScanTime::Before);
        assert_eq!((first.pending, first.is_whole, blobs.bytes()), (3, true, 0));
        std::fs::write(roots[0].join("b"), "other").expect("written");
        let mut last = first.found.clone();
        for (when, pending) in [(ScanTime::After, 2), (ScanTime::Before, 0)] {
            let seen = looked(&roots, &last, &blobs, &bounds, when);
            assert_eq!(seen.pending, pending);
            let (differences, unsure) = compare(&RealFiles, &first, &seen, &bounds);
            let paths: Vec<_> = differences.into_iter().map(|difference| difference.path).collect();
            assert_eq!((paths, unsure), (vec![roots[0].join("b")], Vec::new()));
            last = seen.found;
        }
    }

    /// The start of a scan was taken from the precise clock. On a busy virtual machine the clock of file stamps
    /// lagged more than a tick: files that a command had created seemed older than the scan before the command, and a
    /// rewind did not remove them.
    #[test]
    fn a_file_that_is_written_after_a_scan_began_is_not_older_than_the_scan() {
        let (_home, roots, _) = bench(&[]);
        for nth in 0..1_000 {
            let began = file_time();
            let path = roots[0].join(nth.to_string());
            std::fs::write(&path, "").expect("written");
            let stamp = NodeStamp::from_metadata(&std::fs::metadata(&path).expect("it is there"));
            assert!(stamp.changed >= began, "{} before the scan", began - stamp.changed);
        }
    }

    #[test]
    fn parallel_reads_store_all_files() {
        let names: Vec<String> = (0..3 * READ_TOGETHER_MIN).map(|nth| format!("f{nth}")).collect();
        let (_home, roots, blobs) = bench(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let bounds = Bounds::default();
        let seen = looked(&roots, &[], &blobs, &bounds, ScanTime::Before);
        assert_eq!((seen.found.len(), seen.pending), (names.len(), 0));
        for name in names {
            let wanted = super::super::blobs::hash(name.as_bytes());
            let node = seen.get(&roots[0].join(&name)).expect("it was seen");
            assert_eq!(node.hash(), Some(wanted.as_str()));
            assert_eq!(blobs.get(&wanted, name.len() as u64).expect("it is stored"), name.as_bytes());
        }
    }

    #[test]
    fn path_limit_keeps_the_same_files_each_time() {
        let (_home, roots, blobs) = bench(&["d", "c", "b", "a"]);
        let bounds = Bounds { paths: 2, ..Bounds::default() };
        for overlapping in [roots.to_vec(), vec![roots[0].clone(), roots[0].clone()]] {
            let seen = looked(&overlapping, &[], &blobs, &bounds, ScanTime::Before);
            let names: Vec<_> = seen.found.iter().filter_map(|found| found.path.file_name()).collect();
            assert_eq!((names, seen.is_whole), (vec!["a".as_ref(), "b".as_ref()], false));
        }
    }
}
