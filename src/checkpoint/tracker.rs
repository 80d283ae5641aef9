//! The checkpoints of one session: told before and behind each call that may change files (`calls`), and asked to
//! take changes back (`rewinds`). One thing at a time; a look that runs is waited for.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::blobs::{Blobs, Durable};
use super::plan::Conflict;
use super::record::{self, TurnRecord};
use super::restore::{self, Failure};
use super::scan::{Found, Seen};
use super::{Bounds, CheckpointError, directory};
use epitome_thread::{Seq, SessionId};

/// How long the look behind a call may take that has ended: twice what a look takes at most.
const CALL_END_MAX: Duration = Duration::from_secs(10);

/// Troubles that are kept until they are told: more would be the same again.
const TROUBLES_MAX: usize = 4;

/// What a call may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// These files and nothing else.
    Files(Vec<PathBuf>),
    /// Anything in the workspace.
    Anything,
}

/// What is to be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// What this turn and all behind it changed.
    From(Seq),
    /// The newest rewind that holds.
    Undo,
}

/// What a rewind of files did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Names the rewind; `None` where nothing was done.
    pub number: Option<u32>,
    pub turns: Vec<Seq>,
    /// What became of each path that was, or would be, put back.
    pub changed: Vec<(PathBuf, &'static str)>,
    pub conflicts: Vec<Conflict>,
    pub failures: Vec<Failure>,
    /// What was beyond a bound when the turns ran, in words.
    pub beyond: Vec<String>,
}

/// A handle on the checkpoints of one session. Clones are the same.
#[derive(Clone)]
pub struct Checkpoints {
    inner: Arc<Inner>,
}

struct Inner {
    directory: PathBuf,
    data: PathBuf,
    bounds: Bounds,
    /// `None` until something is wanted: most sessions are only listed and read.
    state: Mutex<Option<State>>,
    beside: Mutex<Beside>,
    /// A call's end is recorded.
    ended: Condvar,
}

/// What is told and asked while a look runs, and so lies beside the state that the look holds.
#[derive(Default)]
struct Beside {
    /// The turn that runs.
    turn: Seq,
    /// What went wrong and was not told yet.
    troubles: Vec<String>,
    /// Calls that have begun and whose end is not recorded yet.
    under_way: usize,
}

pub(super) struct State {
    pub(super) blobs: Blobs,
    /// What the newest look saw.
    pub(super) last: Arc<Vec<Found>>,
    /// The turn that was touched last, and as it is on the disk.
    pub(super) record: Option<TurnRecord>,
    saved: Option<TurnRecord>,
    /// The look before the commands that run, and how many of them run.
    pub(super) before: Option<Seen>,
    pub(super) running: usize,
    pub(super) baseline: Baseline,
}

/// What was let go to stay within the bounds.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct LetGo {
    /// Turns up to this one have no checkpoint any more.
    pub(super) through: Seq,
}

impl Checkpoints {
    /// Makes a handle; it touches no disk. `data` is the data directory.
    pub fn new(data: &Path, session: &SessionId, bounds: Bounds) -> Checkpoints {
        let inner = Inner {
            directory: directory(data, session),
            data: data.canonicalize().unwrap_or_else(|_| data.to_path_buf()),
            bounds,
            state: Mutex::default(),
            beside: Mutex::default(),
            ended: Condvar::new(),
        };
        Checkpoints { inner: Arc::new(inner) }
    }

    /// Whether anything is kept at all.
    pub fn exist(&self) -> bool {
        self.inner.directory.exists()
    }

    /// Keeps what went wrong, until it is told.
    pub fn note(&self, done: Result<(), CheckpointError>) {
        if let Err(error) = done {
            let mut beside = self.beside();
            beside.troubles.truncate(TROUBLES_MAX - 1);
            beside.troubles.push(error.to_string());
        }
    }

    /// What went wrong and was not told yet.
    pub fn take_troubles(&self) -> Vec<String> {
        std::mem::take(&mut self.beside().troubles)
    }

    /// Says which turn runs, by its first entry. What is changed from here on is its own.
    pub fn begin_turn(&self, turn: Seq) {
        self.beside().turn = turn;
    }

    /// What turns did to files, oldest first; those that changed nothing are not in it.
    pub fn turns(&self) -> Result<Vec<TurnRecord>, CheckpointError> {
        self.wait_for_calls();
        let _guard = self.state()?;
        let (records, _) = record::all(&self.turns_directory())?;
        Ok(records.into_iter().filter(|record| !record.is_empty()).collect())
    }

    /// Lets go of what is kept for commands to come. The next one reads the workspace anew.
    pub fn rest(&self) -> Result<(), CheckpointError> {
        let mut guard = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = guard.as_mut().filter(|state| state.running == 0) else { return Ok(()) };
        state.last = Arc::default();
        state.baseline.let_go()?;
        let needed = self.needed(state)?;
        state.blobs.retain(&needed);
        *guard = None;
        Ok(())
    }

    /// Takes the record of the turn that runs into the hand.
    pub(super) fn open_record(&self, state: &mut State) -> Result<(), CheckpointError> {
        let turn = self.beside().turn;
        if state.record.as_ref().is_some_and(|record| record.turn == turn) {
            return Ok(());
        }
        let (mut records, _) = record::all(&self.turns_directory())?;
        let known = records.iter().position(|record| record.turn == turn).map(|at| records.remove(at));
        let is_new = known.is_none();
        state.saved = known.clone();
        state.record = Some(known.unwrap_or_else(|| TurnRecord::new(turn)));
        if is_new {
            self.make_room(state, records)?;
        }
        Ok(())
    }

    /// Lets the oldest turns go until there is room.
    fn make_room(&self, state: &mut State, records: Vec<TurnRecord>) -> Result<(), CheckpointError> {
        let bounds = &self.inner.bounds;
        let mut left = records.len();
        for record in records {
            if left < bounds.turns && state.blobs.bytes() < bounds.session_bytes {
                break;
            }
            let gone = LetGo { through: record.turn };
            record::save(&self.let_go_path(), &gone, Durable::No)?;
            record.remove(&self.turns_directory());
            left -= 1;
            let needed = self.needed(state)?;
            state.blobs.retain(&needed);
        }
        Ok(())
    }

    /// The contents that something refers to.
    fn needed(&self, state: &State) -> Result<HashSet<String>, CheckpointError> {
        let (records, _) = record::all(&self.turns_directory())?;
        let rewinds = restore::all(&self.rewinds_directory())?;
        let records = records.iter().chain(&state.record);
        let mut needed: HashSet<String> = records.flat_map(TurnRecord::hashes).map(str::to_owned).collect();
        let looks = state.last.iter().chain(state.before.iter().flat_map(|seen| seen.found.iter()));
        needed.extend(looks.filter_map(|found| found.known.node.hash()).map(str::to_owned));
        let steps = rewinds.iter().flat_map(|rewind| &rewind.steps);
        let nodes = steps.flat_map(|step| [step.now.hash(), step.to.hash()]);
        needed.extend(nodes.flatten().map(str::to_owned));
        Ok(needed)
    }

    pub(super) fn save_record(&self, state: &mut State) -> Result<(), CheckpointError> {
        if let Some(record) = &state.record
            && state.saved.as_ref() != Some(record)
        {
            state.saved = None;
            record.save(&self.turns_directory())?;
            state.saved = Some(record.clone());
        }
        Ok(())
    }

    /// The bounds that were given.
    pub(super) fn bounds(&self) -> &Bounds {
        &self.inner.bounds
    }

    /// What is never looked at: our own data.
    pub(super) fn excluded(&self) -> &Path {
        &self.inner.data
    }

    /// A call begins. `call_ended` comes behind each of these.
    pub(super) fn call_begins(&self) {
        self.beside().under_way += 1;
    }

    pub(super) fn call_ended(&self) {
        let mut beside = self.beside();
        beside.under_way = beside.under_way.saturating_sub(1);
        self.inner.ended.notify_all();
    }

    /// Waits until the end of each call is recorded: one that was cancelled just now is still being looked at.
    pub(super) fn wait_for_calls(&self) {
        // What takes longer runs on beside the conversation, and is not waited for.
        drop(self.inner.ended.wait_timeout_while(self.beside(), CALL_END_MAX, |beside| beside.under_way > 0));
    }

    fn beside(&self) -> MutexGuard<'_, Beside> {
        self.inner.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, opened where it was not: `opened` gives it.
    pub(super) fn state(&self) -> Result<MutexGuard<'_, Option<State>>, CheckpointError> {
        let mut guard = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            let place = self.inner.directory.join("contents");
            let blobs =
                Blobs::open(place.clone()).map_err(|error| CheckpointError::io("list", &place, &error))?;
            *guard = Some(State {
                blobs,
                last: Arc::default(),
                record: None,
                saved: None,
                before: None,
                running: 0,
                baseline: Baseline::new(&self.inner.directory),
            });
        }
        Ok(guard)
    }

    pub(super) fn turns_directory(&self) -> PathBuf {
        self.inner.directory.join("turns")
    }

    pub(super) fn rewinds_directory(&self) -> PathBuf {
        self.inner.directory.join("rewinds")
    }

    pub(super) fn let_go_path(&self) -> PathBuf {
        self.inner.directory.join("let-go.json")
    }
}

pub(super) fn opened<'a>(guard: &'a mut MutexGuard<'_, Option<State>>) -> &'a mut State {
    guard.as_mut().expect("it was opened with its lock")
}
