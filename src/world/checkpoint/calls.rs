//! Records the files that a call may change: before it starts and after it ends.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::baseline::OpenCommand;
use super::blobs::CheckpointBlobs;
use super::node::{self, FileNode};
use super::record::{LineCount, PathName, TouchedPath, add_new};
use super::scan::{self, ScanScope, ScanTime, WorkspaceSnapshot};
use super::tracker::{AffectedFiles, Checkpoints, TrackerState, opened};
use super::user_files::UserFiles;
use super::{Bounds, CheckpointError};
use epitome_thread::diff::{DiffTag, line_ops};

/// Maximum number of changed files per call whose lines are counted, and maximum bytes of each compared side: the
/// counts are only for a listing.
const COUNTED_FILES_MAX: usize = 200;
const COUNTED_BYTES_MAX: u64 = 512 * 1024;

impl Checkpoints {
    /// Records the start of a call, and returns after everything that it may change is saved. `roots` are the
    /// directories of the workspace.
    ///
    /// Every call of this function must be followed by one of `after`, even if this one fails.
    pub fn before(&self, roots: &[PathBuf], what: &AffectedFiles) -> Result<(), CheckpointError> {
        self.inner.calls.lock().under_way += 1;
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        self.open_record(state)?;
        match what {
            AffectedFiles::Files(paths) => self.before_files(state, paths)?,
            AffectedFiles::Anything => self.before_anything(state, roots)?,
        }
        self.save_record(state)
    }

    /// Records the end of the call, however it ended.
    pub fn after(&self, roots: &[PathBuf], what: &AffectedFiles) -> Result<(), CheckpointError> {
        let recorded = self.record_after(roots, what);
        self.call_ended();
        recorded
    }

    fn record_after(&self, roots: &[PathBuf], what: &AffectedFiles) -> Result<(), CheckpointError> {
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        self.open_record(state)?;
        match what {
            AffectedFiles::Files(paths) => self.after_files(state, paths),
            AffectedFiles::Anything => self.after_anything(state, roots),
        }
        self.save_record(state)?;
        if state.running == 0 {
            state.baseline.close()?;
        }
        Ok(())
    }

    fn before_files(&self, state: &mut TrackerState, paths: &[PathBuf]) -> Result<(), CheckpointError> {
        for path in with_missing_directories(self.files(), paths) {
            let node = self.keep(state, &path)?;
            let Some(record) = &mut state.record else { return Ok(()) };
            match record.files.iter_mut().find(|touched| touched.path == path) {
                Some(touched) => {
                    touched.shared |= touched.after.as_ref().is_some_and(|after| *after != node);
                    touched.after = None;
                }
                None => record.files.push(TouchedPath::new(path, node, None)),
            }
        }
        Ok(())
    }

    fn after_files(&self, state: &mut TrackerState, paths: &[PathBuf]) {
        let known: Vec<PathBuf> = { state.record.iter().flat_map(|record| &record.files) }
            .filter(|touched| {
                touched.after.is_none() && paths.iter().any(|path| path.starts_with(&touched.path))
            })
            .map(|touched| touched.path.clone())
            .collect();
        for path in known {
            // The state is unknown, so a rewind will report a conflict.
            let node = self.keep(state, &path).unwrap_or(FileNode::Other);
            let TrackerState { record, blobs, .. } = state;
            let touched = record.iter_mut().flat_map(|record| &mut record.files);
            if let Some(touched) = { touched }.find(|touched| touched.path == path) {
                touched.lines = count(blobs, &touched.before, &node);
                touched.after = Some(node);
            }
        }
    }

    /// Scans the workspace before a command. The scan after the last command isn't reused, because the user may have
    /// changed files since.
    fn before_anything(&self, state: &mut TrackerState, roots: &[PathBuf]) -> Result<(), CheckpointError> {
        state.running += 1;
        if state.before.is_some() {
            return Ok(());
        }
        let bounds = &self.inner.bounds;
        let roots = real(roots);
        let seen = self.scan(state, &roots, ScanTime::Before);
        let Some(record) = &mut state.record else { return Ok(()) };
        record.record_beyond_limits(seen.beyond.iter().cloned());
        if seen.pending > 0 {
            record.record_beyond_limits([format!(
                "{} files were not stored yet when a command started: reading them would have taken more than {} s",
                seen.pending,
                bounds.copy_time.as_secs()
            )]);
        }
        for touched in &mut record.files {
            let now = now_of(self.files(), &touched.path, &seen, bounds);
            touched.shared |= touched
                .after
                .as_ref()
                .is_some_and(|after| !is_same(self.files(), after, &now, &touched.path));
        }
        let turn = record.turn;
        state.baseline.open(turn, roots.into_iter().map(PathName).collect(), &seen)?;
        state.before = Some(seen);
        Ok(())
    }

    fn after_anything(&self, state: &mut TrackerState, roots: &[PathBuf]) {
        state.running = state.running.saturating_sub(1);
        let Some(before) = state.before.take() else { return };
        self.merge(state, &before, &real(roots));
        if state.running > 0 {
            state.before = Some(before);
        }
    }

    /// Adds the differences from an earlier scan to the turn's record.
    fn merge(&self, state: &mut TrackerState, before: &WorkspaceSnapshot, roots: &[PathBuf]) {
        let seen = self.scan(state, roots, ScanTime::After);
        let bounds = &self.inner.bounds;
        let (differences, unsure) = scan::compare(self.files(), before, &seen, bounds);
        let TrackerState { record, blobs, .. } = state;
        let Some(record) = record else { return };
        record.record_beyond_limits(seen.beyond.iter().cloned());
        let mut counted = 0;
        let mut lines = |blobs: &CheckpointBlobs, before: &FileNode, after: &FileNode| {
            counted += 1;
            if counted <= COUNTED_FILES_MAX { count(blobs, before, after) } else { None }
        };
        for touched in &mut record.files {
            let now = now_of(self.files(), &touched.path, &seen, bounds);
            if touched.after.as_ref().is_none_or(|after| !is_same(self.files(), after, &now, &touched.path)) {
                touched.lines = lines(blobs, &touched.before, &now);
                touched.after = Some(now);
            }
        }
        let known: HashSet<PathBuf> = record.files.iter().map(|touched| touched.path.clone()).collect();
        for touched in differences.into_iter().filter(|touched| !known.contains(&touched.path)) {
            let lines = touched.after.as_ref().and_then(|after| lines(blobs, &touched.before, after));
            record.files.push(TouchedPath { lines, ..touched });
        }
        unsure.into_iter().for_each(|path| add_new(&mut record.unsure, PathName(path)));
    }

    /// Completes the record of a command that was running when the process ended: all differences are attributed to
    /// the turn.
    pub(super) fn finish_command(
        &self,
        state: &mut TrackerState,
        open: OpenCommand,
        before: &WorkspaceSnapshot,
        roots: &[PathBuf],
    ) -> Result<(), CheckpointError> {
        self.begin_turn(open.turn);
        self.open_record(state)?;
        let then: Vec<PathBuf> = open.roots.into_iter().map(|PathName(root)| root).collect();
        self.merge(state, before, &real(if then.is_empty() { roots } else { &then }));
        if let Some(record) = &mut state.record {
            let text = "Epitome ended while a command of this turn ran: all changes until the session was opened again count as the turn's";
            record.record_beyond_limits([text.to_owned()]);
        }
        self.save_record(state)?;
        state.baseline.close()
    }

    /// Scans a workspace, whose directories must not contain links.
    fn scan(&self, state: &mut TrackerState, roots: &[PathBuf], when: ScanTime) -> WorkspaceSnapshot {
        let place = ScanScope { roots, excluded: &self.inner.data, bounds: &self.inner.bounds };
        let seen = scan::scan(&place, &state.last, &state.blobs, when);
        state.last = seen.found.clone();
        seen
    }

    /// Returns the node at a path and stores its content.
    fn keep(&self, state: &mut TrackerState, path: &Path) -> Result<FileNode, CheckpointError> {
        let most = self.inner.bounds.named_bytes;
        node::look(self.files(), path, |path, stat| scan::keep(path, stat, most, &state.blobs))
            .map_err(|error| CheckpointError::io("keep", path, &error))
    }
}

/// Returns the paths, each preceded by its missing parent directories, which a write would create.
fn with_missing_directories(files: &dyn UserFiles, paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for path in paths {
        let missing = path.ancestors().skip(1).take_while(
            |above| matches!(files.stat(above), Err(error) if error.kind() == io::ErrorKind::NotFound),
        );
        let mut missing: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
        missing.reverse();
        missing.into_iter().chain([path.clone()]).for_each(|path| add_new(&mut all, path));
    }
    all
}

/// Returns the scanned node at a path; a path that the scan skipped is looked up individually.
fn now_of(files: &dyn UserFiles, path: &Path, seen: &WorkspaceSnapshot, bounds: &Bounds) -> FileNode {
    match seen.get(path) {
        Some(node) if !matches!(node, FileNode::Unkept { .. }) => node.clone(),
        Some(_) | None => scan::look_named(files, path, bounds.named_bytes),
    }
}

/// Returns the canonical paths of the workspace's directories.
pub(super) fn real(roots: &[PathBuf]) -> Vec<PathBuf> {
    roots.iter().filter_map(|root| root.canonicalize().ok()).collect()
}

/// Whether a known node equals the current one. A file known only by its stamp is compared by that.
pub(super) fn is_same(files: &dyn UserFiles, known: &FileNode, now: &FileNode, path: &Path) -> bool {
    known == now || (matches!(now, FileNode::File { .. }) && scan::has_stamp(files, known, path))
}

/// Counts added and removed lines if both sides are text of limited length.
fn count(blobs: &CheckpointBlobs, before: &FileNode, after: &FileNode) -> Option<LineCount> {
    let text = |node: &FileNode| match node {
        FileNode::Missing => Some(String::new()),
        FileNode::File { hash, bytes, .. } if *bytes <= COUNTED_BYTES_MAX => {
            String::from_utf8(blobs.get(hash, *bytes).ok()?).ok()
        }
        FileNode::File { .. }
        | FileNode::Unkept { .. }
        | FileNode::Link { .. }
        | FileNode::Directory { .. }
        | FileNode::Other => None,
    };
    if !matches!((before, after), (FileNode::File { .. }, _) | (_, FileNode::File { .. })) {
        return None;
    }
    let (before, after) = (text(before)?, text(after)?);
    let mut count = LineCount::default();
    for op in line_ops(&before, &after) {
        if op.tag() != DiffTag::Equal {
            count.removed += op.old_range().len() as u64;
            count.added += op.new_range().len() as u64;
        }
    }
    Some(count)
}
