//! The checkpoints of one session: notified before and after each call that may change files (`calls`), and used to
//! undo changes (`rewinds`). Operations are serialized; they wait for a running scan.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::blobs::CheckpointBlobs;
use super::plan::Conflict;
use super::record::{self, TurnRecord};
use super::restore::{self, RestoreFailure, Rewind};
use super::scan::{ScannedPath, WorkspaceSnapshot};
use super::user_files::UserFiles;
use super::{Bounds, CheckpointDisk, CheckpointError, directory};
use epitome_files::disk::PutMode;
use epitome_thread::{Seq, SessionId};

/// Maximum wait for the scan after an ended call: twice the time limit of a scan.
const CALL_END_MAX: Duration = Duration::from_secs(10);

/// Maximum number of errors kept until they are reported; further ones would be repetitions.
const TROUBLES_MAX: usize = 4;

/// The files that a call may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffectedFiles {
    /// Only these files.
    Files(Vec<PathBuf>),
    /// Anything in the workspace.
    Anything,
}

/// The changes to undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindTarget {
    /// The changes of this turn and all later ones.
    From(Seq),
    /// The newest rewind that is in effect.
    Undo,
}

/// The result or preview of a rewind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewindReport {
    /// The number of the rewind; `None` if nothing was done.
    pub number: Option<u32>,
    pub turns: Vec<Seq>,
    /// The paths that were or would be restored, with a description of the change.
    pub changed: Vec<(PathBuf, &'static str)>,
    pub conflicts: Vec<Conflict>,
    pub failures: Vec<RestoreFailure>,
    /// Descriptions of limits exceeded during the turns.
    pub beyond: Vec<String>,
}

impl RewindReport {
    /// The same with these failures: a path that was not restored is not among the changed ones.
    pub(super) fn with(mut self, failures: Vec<RestoreFailure>) -> RewindReport {
        let is_left =
            |path: &PathBuf| failures.iter().any(|failure| !failure.is_restored && failure.path == *path);
        self.changed.retain(|(path, _)| !is_left(path));
        self.failures = failures;
        self
    }
}

/// A handle to the checkpoints of one session. Clones share their state.
#[derive(Clone)]
pub struct Checkpoints {
    pub(super) inner: Arc<CheckpointsInner>,
}

pub(super) struct CheckpointsInner {
    disk: CheckpointDisk,
    directory: PathBuf,
    /// The data directory, which is never scanned.
    pub(super) data: PathBuf,
    pub(super) bounds: Bounds,
    /// `None` until first used: most sessions are only listed and read.
    state: Mutex<Option<TrackerState>>,
    pub(super) calls: Mutex<CallState>,
    /// Notified when a call's end is recorded.
    ended: Condvar,
}

/// State that must stay accessible during a scan, which locks the main state.
#[derive(Default)]
pub(super) struct CallState {
    /// The current turn.
    turn: Seq,
    /// Errors that have not been reported yet.
    troubles: Vec<String>,
    /// Number of calls whose end is not recorded yet.
    pub(super) under_way: usize,
}

pub(super) struct TrackerState {
    pub(super) blobs: CheckpointBlobs,
    /// The result of the newest scan.
    pub(super) last: Arc<Vec<ScannedPath>>,
    /// The record of the most recent turn, and its form on the disk.
    pub(super) record: Option<TurnRecord>,
    saved: Option<TurnRecord>,
    /// The scan before the running commands, and their number.
    pub(super) before: Option<WorkspaceSnapshot>,
    pub(super) running: usize,
    pub(super) baseline: Baseline,
}

/// Records which turns were dropped to stay within the limits.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct DroppedTurns {
    /// Turns up to and including this one no longer have a checkpoint.
    pub(super) through: Seq,
}

impl Checkpoints {
    /// Creates a handle without reading any checkpoints. `data` is the data directory.
    pub fn new(data: &Path, session: &SessionId, bounds: Bounds) -> Checkpoints {
        Checkpoints::on(CheckpointDisk::real(), data, session, bounds)
    }

    pub fn on(disk: CheckpointDisk, data: &Path, session: &SessionId, bounds: Bounds) -> Checkpoints {
        let inner = CheckpointsInner {
            disk,
            directory: directory(data, session),
            data: data.canonicalize().unwrap_or_else(|_| data.to_path_buf()),
            bounds,
            state: Mutex::default(),
            calls: Mutex::default(),
            ended: Condvar::new(),
        };
        Checkpoints { inner: Arc::new(inner) }
    }

    /// Whether there are any checkpoints.
    pub fn exist(&self) -> bool {
        self.disk().disk.stat(&self.inner.directory).is_ok()
    }

    /// Stores an error until it is reported.
    pub fn note(&self, done: Result<(), CheckpointError>) {
        if let Err(error) = done {
            let mut calls = self.inner.calls.lock();
            calls.troubles.truncate(TROUBLES_MAX - 1);
            calls.troubles.push(error.to_string());
        }
    }

    /// Returns and clears the unreported errors.
    pub fn take_troubles(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.calls.lock().troubles)
    }

    /// Sets the current turn, identified by its first entry. Later changes are attributed to it.
    pub fn begin_turn(&self, turn: Seq) {
        self.inner.calls.lock().turn = turn;
    }

    /// Returns the records of turns, oldest first, except those that changed nothing.
    pub fn turns(&self) -> Result<Vec<TurnRecord>, CheckpointError> {
        self.wait_for_calls();
        let _guard = self.state()?;
        let (records, _) = self.records()?;
        Ok(records.into_iter().filter(|record| !record.is_empty()).collect())
    }

    /// Releases data that is kept only to speed up future commands. The next one scans the workspace from scratch. Waits
    /// until the end of each call is recorded: the session may be opened again immediately, with another handle.
    pub fn release(&self) -> Result<(), CheckpointError> {
        self.wait_for_calls();
        let mut guard = self.inner.state.lock();
        let Some(state) = guard.as_mut().filter(|state| state.running == 0) else { return Ok(()) };
        state.last = Arc::default();
        state.baseline.remove_list()?;
        let needed = self.needed(state)?;
        state.blobs.retain(&needed);
        *guard = None;
        Ok(())
    }

    /// Loads or creates the record of the current turn.
    pub(super) fn open_record(&self, state: &mut TrackerState) -> Result<(), CheckpointError> {
        let turn = self.inner.calls.lock().turn;
        if state.record.as_ref().is_some_and(|record| record.turn == turn) {
            return Ok(());
        }
        let (mut records, _) = self.records()?;
        let known = records.iter().position(|record| record.turn == turn).map(|at| records.remove(at));
        let is_new = known.is_none();
        state.saved = known.clone();
        state.record = Some(known.unwrap_or_else(|| TurnRecord::new(turn)));
        if is_new {
            self.make_room(state, records)?;
        }
        Ok(())
    }

    /// Drops the oldest turns until the limits are met.
    fn make_room(&self, state: &mut TrackerState, records: Vec<TurnRecord>) -> Result<(), CheckpointError> {
        let bounds = &self.inner.bounds;
        let mut left = records.len();
        for record in records {
            if left < bounds.turns && state.blobs.bytes() < bounds.session_bytes {
                break;
            }
            let gone = DroppedTurns { through: record.turn };
            record::save(self.disk(), &self.dropped_turns_path(), &gone, PutMode::Unsynced)?;
            record.remove(self.disk(), &self.turns_directory());
            left -= 1;
            let needed = self.needed(state)?;
            state.blobs.retain(&needed);
        }
        Ok(())
    }

    /// Returns the hashes of the contents that a record, a scan or a rewind refers to.
    fn needed(&self, state: &TrackerState) -> Result<HashSet<String>, CheckpointError> {
        let ((records, _), rewinds) = (self.records()?, self.rewinds()?);
        let records = records.iter().chain(&state.record);
        let mut needed: HashSet<String> = records.flat_map(TurnRecord::hashes).map(str::to_owned).collect();
        let scans = state.last.iter().chain(state.before.iter().flat_map(|seen| seen.found.iter()));
        needed.extend(scans.filter_map(|found| found.known.node.hash()).map(str::to_owned));
        let steps = rewinds.iter().flat_map(|rewind| &rewind.steps);
        let nodes = steps.flat_map(|step| [step.now.hash(), step.to.hash()]);
        needed.extend(nodes.flatten().map(str::to_owned));
        Ok(needed)
    }

    pub(super) fn save_record(&self, state: &mut TrackerState) -> Result<(), CheckpointError> {
        if let Some(record) = &state.record
            && state.saved.as_ref() != Some(record)
        {
            state.saved = None;
            record.save(self.disk(), &self.turns_directory())?;
            state.saved = Some(record.clone());
        }
        Ok(())
    }

    pub(super) fn disk(&self) -> &CheckpointDisk {
        &self.inner.disk
    }

    pub(super) fn files(&self) -> &dyn UserFiles {
        &*self.inner.disk.files
    }

    pub(super) fn call_ended(&self) {
        let mut calls = self.inner.calls.lock();
        calls.under_way = calls.under_way.saturating_sub(1);
        self.inner.ended.notify_all();
    }

    /// Waits until the end of each call is recorded: the scan after a call that was just cancelled may still be
    /// running.
    pub(super) fn wait_for_calls(&self) {
        let mut calls = self.inner.calls.lock();
        // Calls that take longer are background commands, which are not waited for.
        self.inner.ended.wait_while_for(&mut calls, |calls| calls.under_way > 0, CALL_END_MAX);
    }

    /// Locks the state and initializes it if necessary; `opened` then returns it.
    pub(super) fn state(&self) -> Result<MutexGuard<'_, Option<TrackerState>>, CheckpointError> {
        let mut guard = self.inner.state.lock();
        if guard.is_none() {
            let place = self.inner.directory.join("contents");
            let blobs = CheckpointBlobs::open(self.disk().clone(), place.clone())
                .map_err(|error| CheckpointError::io("list", &place, &error))?;
            *guard = Some(TrackerState {
                blobs,
                last: Arc::default(),
                record: None,
                saved: None,
                before: None,
                running: 0,
                baseline: Baseline::new(self.disk().clone(), &self.inner.directory),
            });
        }
        Ok(guard)
    }

    /// Reads all records of turns, oldest first. Also returns the paths of unreadable ones.
    pub(super) fn records(&self) -> Result<(Vec<TurnRecord>, Vec<PathBuf>), CheckpointError> {
        record::all(self.disk(), &self.turns_directory())
    }

    /// Reads all rewinds, oldest first.
    pub(super) fn rewinds(&self) -> Result<Vec<Rewind>, CheckpointError> {
        restore::all(self.disk(), &self.rewinds_directory())
    }

    pub(super) fn save_rewind(&self, rewind: &Rewind) -> Result<(), CheckpointError> {
        rewind.save(self.disk(), &self.rewinds_directory())
    }

    pub(super) fn turns_directory(&self) -> PathBuf {
        self.inner.directory.join("turns")
    }

    pub(super) fn rewinds_directory(&self) -> PathBuf {
        self.inner.directory.join("rewinds")
    }

    pub(super) fn dropped_turns_path(&self) -> PathBuf {
        self.inner.directory.join("let-go.json")
    }
}

pub(super) fn opened<'a>(guard: &'a mut MutexGuard<'_, Option<TrackerState>>) -> &'a mut TrackerState {
    guard.as_mut().expect("it was opened with its lock")
}
