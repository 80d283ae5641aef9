//! The checkpoints of one session: told before and behind each call that may change files, and asked to take
//! changes back. One thing at a time; a look that runs is waited for.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::baseline::{Baseline, Open};
use super::blobs::Blobs;
use super::node::{self, Node};
use super::plan::{self, Conflict, Now, Wanted};
use super::record::{self, LineCount, PathName, Touched, TurnRecord};
use super::restore::{self, Came, Failure, Rewind};
use super::scan::{self, Found, Place, Seen, When};
use super::{Bounds, CheckpointError, directory};
use crate::thread::{Seq, SessionId};

/// Rewinds that can be taken back, the newest of them first. What older ones need is let go.
const REWINDS_MAX: usize = 20;

/// How long the look behind a call may take that has ended: twice what a look takes at most.
const CALL_END_MAX: Duration = Duration::from_secs(10);

/// Troubles that are kept until they are told: more would be the same again.
const TROUBLES_MAX: usize = 4;

/// Changed files of one call whose lines are counted, and the bytes of a side that is compared: a listing is no
/// review.
const COUNTED_FILES_MAX: usize = 200;
const COUNTED_BYTES_MAX: u64 = 512 * 1024;

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
    /// The turn that runs.
    turn: Mutex<Seq>,
    troubles: Mutex<Vec<String>>,
    /// Calls that have begun and whose end is not recorded yet.
    under_way: (Mutex<usize>, Condvar),
}

struct State {
    blobs: Blobs,
    /// What the newest look saw.
    last: Arc<Vec<Found>>,
    /// The turn that was touched last, and as it is on the disk.
    record: Option<TurnRecord>,
    saved: Option<TurnRecord>,
    /// The look before the commands that run, and how many of them run.
    before: Option<Seen>,
    running: usize,
    baseline: Baseline,
}

/// What was let go to stay within the bounds.
#[derive(Default, Serialize, Deserialize)]
struct LetGo {
    /// Turns up to this one have no checkpoint any more.
    through: Seq,
}

impl Checkpoints {
    /// Makes a handle; it touches no disk. `data` is the data directory.
    pub fn new(data: &Path, session: &SessionId, bounds: Bounds) -> Checkpoints {
        let inner = Inner {
            directory: directory(data, session),
            data: data.canonicalize().unwrap_or_else(|_| data.to_path_buf()),
            bounds,
            state: Mutex::default(),
            turn: Mutex::default(),
            troubles: Mutex::default(),
            under_way: Default::default(),
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
            let mut troubles = self.inner.troubles.lock().unwrap_or_else(PoisonError::into_inner);
            troubles.truncate(TROUBLES_MAX - 1);
            troubles.push(error.to_string());
        }
    }

    /// What went wrong and was not told yet.
    pub fn take_troubles(&self) -> Vec<String> {
        std::mem::take(&mut *self.inner.troubles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says which turn runs, by its first entry. What is changed from here on is its own.
    pub fn begin_turn(&self, turn: Seq) {
        *self.inner.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
    }

    /// A call begins. `roots` are the workspace. It returns when what may be changed is kept.
    ///
    /// Each call of this has one of `after` behind it, also where it fails.
    pub fn before(&self, roots: &[PathBuf], what: &What) -> Result<(), CheckpointError> {
        *self.inner.under_way.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        self.open_record(state)?;
        match what {
            What::Files(paths) => self.before_files(state, paths)?,
            What::Anything => self.before_anything(state, roots)?,
        }
        self.save_record(state)
    }

    /// The same call has ended, in whatever way.
    pub fn after(&self, roots: &[PathBuf], what: &What) -> Result<(), CheckpointError> {
        let recorded = self.record_after(roots, what);
        let (under_way, ended) = &self.inner.under_way;
        let mut count = under_way.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_sub(1);
        ended.notify_all();
        recorded
    }

    /// Waits until the end of each call is recorded: one that was cancelled just now is still being looked at.
    fn wait_for_calls(&self) {
        let (under_way, ended) = &self.inner.under_way;
        let count = under_way.lock().unwrap_or_else(PoisonError::into_inner);
        // What takes longer runs on beside the conversation, and is not waited for.
        drop(ended.wait_timeout_while(count, CALL_END_MAX, |count| *count > 0));
    }

    fn record_after(&self, roots: &[PathBuf], what: &What) -> Result<(), CheckpointError> {
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        self.open_record(state)?;
        match what {
            What::Files(paths) => self.after_files(state, paths),
            What::Anything => self.after_anything(state, roots),
        }
        self.save_record(state)?;
        if state.running == 0 {
            state.baseline.close()?;
        }
        Ok(())
    }

    /// What turns did to files, oldest first; those that changed nothing are not in it.
    pub fn turns(&self) -> Result<Vec<TurnRecord>, CheckpointError> {
        self.wait_for_calls();
        let _guard = self.state()?;
        let (records, _) = record::all(&self.turns_directory())?;
        Ok(records.into_iter().filter(|record| !record.is_empty()).collect())
    }

    /// Says what would be taken back. It changes nothing.
    pub fn preview(&self, asked: Asked, forced: bool) -> Result<Report, CheckpointError> {
        self.wait_for_calls();
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        Ok(self.plan(state, asked, forced, Keep::No)?.1)
    }

    /// Takes back. An error says that nothing was changed.
    pub fn rewind(&self, asked: Asked, forced: bool) -> Result<Report, CheckpointError> {
        self.wait_for_calls();
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        let (rewind, mut report) = self.plan(state, asked, forced, Keep::Yes)?;
        let Some(mut rewind) = rewind.filter(|rewind| !rewind.steps.is_empty()) else { return Ok(report) };
        let needed = rewind.steps.iter().filter_map(|step| step.now.hash());
        state.blobs.sync(needed).map_err(|error| {
            CheckpointError(format!("what stands there now can't be kept first: {error}"))
        })?;
        rewind.choose_places();
        rewind.save(&self.rewinds_directory())?;
        if let Err(error) = rewind.stage(&state.blobs) {
            rewind.remove(&self.rewinds_directory());
            return Err(error);
        }
        rewind.came = Came::Applying;
        if let Err(error) = rewind.save(&self.rewinds_directory()) {
            rewind.unstage();
            rewind.remove(&self.rewinds_directory());
            return Err(error);
        }
        report.failures = rewind.apply(&state.blobs);
        report.number = Some(rewind.number);
        state.record = None;
        self.settle(&mut rewind)?;
        Ok(report)
    }

    /// Finishes what an earlier process left half done: the look behind a command, a rewind. Gives the rewinds that
    /// the session's log does not tell of yet.
    pub fn take_up(&self, roots: &[PathBuf]) -> Result<Vec<Report>, CheckpointError> {
        if !self.inner.directory.exists() {
            return Ok(Vec::new());
        }
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        if state.running == 0
            && let Some((open, before)) = state.baseline.left_open()?
        {
            self.finish_command(state, open, &before, roots)?;
        }
        let mut reports = Vec::new();
        for mut rewind in restore::all(&self.rewinds_directory())? {
            let failures = match rewind.came {
                Came::Staging => {
                    rewind.unstage();
                    rewind.remove(&self.rewinds_directory());
                    continue;
                }
                Came::Applying => {
                    let failures = rewind.apply(&state.blobs);
                    state.record = None;
                    self.settle(&mut rewind)?;
                    failures
                }
                Came::Done => Vec::new(),
            };
            if !rewind.told {
                reports.push(Report { failures, ..report_of(&rewind) });
            }
        }
        Ok(reports)
    }

    /// The log tells of a rewind now.
    pub fn told(&self, number: u32) -> Result<(), CheckpointError> {
        let _guard = self.state()?;
        let mut rewinds = restore::all(&self.rewinds_directory())?;
        match rewinds.iter_mut().find(|rewind| rewind.number == number) {
            Some(rewind) => {
                rewind.told = true;
                rewind.save(&self.rewinds_directory())
            }
            None => Ok(()),
        }
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

    // ── Before and behind calls ────────────────────────────────────────────────────────────────────

    fn before_files(&self, state: &mut State, paths: &[PathBuf]) -> Result<(), CheckpointError> {
        for path in with_missing_directories(paths) {
            let node = self.keep(state, &path)?;
            let Some(record) = &mut state.record else { return Ok(()) };
            match record.files.iter_mut().find(|touched| touched.path == path) {
                Some(touched) => {
                    touched.shared |= touched.after.as_ref().is_some_and(|after| *after != node);
                    touched.after = None;
                }
                None => record.files.push(touched(path, node, None)),
            }
        }
        Ok(())
    }

    fn after_files(&self, state: &mut State, paths: &[PathBuf]) {
        let known: Vec<PathBuf> = { state.record.iter().flat_map(|record| &record.files) }
            .filter(|touched| {
                touched.after.is_none() && paths.iter().any(|path| path.starts_with(&touched.path))
            })
            .map(|touched| touched.path.clone())
            .collect();
        for path in known {
            // What can't be looked at was left in a state that nobody knows; the next look at it is a conflict.
            let node = self.keep(state, &path).unwrap_or(Node::Other);
            let State { record, blobs, .. } = state;
            let touched = record.iter_mut().flat_map(|record| &mut record.files);
            if let Some(touched) = { touched }.find(|touched| touched.path == path) {
                touched.lines = count(blobs, &touched.before, &node);
                touched.after = Some(node);
            }
        }
    }

    /// A person may have changed files since the look behind the last command: that look does not stand for this one.
    fn before_anything(&self, state: &mut State, roots: &[PathBuf]) -> Result<(), CheckpointError> {
        state.running += 1;
        if state.before.is_some() {
            return Ok(());
        }
        let bounds = &self.inner.bounds;
        let roots = real(roots);
        let seen = self.scan(state, &roots, When::Before);
        let Some(record) = &mut state.record else { return Ok(()) };
        record.say_beyond(&seen.beyond);
        if seen.pending > 0 {
            let text = format!(
                "{} files were not kept yet when a command began: to read them would have taken more than {} s",
                seen.pending,
                bounds.copy_time.as_secs()
            );
            record.say_beyond(&[text]);
        }
        for touched in &mut record.files {
            let now = now_of(&touched.path, &seen, bounds);
            touched.shared |=
                touched.after.as_ref().is_some_and(|after| !is_same(after, &now, &touched.path));
        }
        let turn = record.turn;
        state.baseline.open(turn, roots.into_iter().map(PathName).collect(), &seen)?;
        state.before = Some(seen);
        Ok(())
    }

    fn after_anything(&self, state: &mut State, roots: &[PathBuf]) {
        state.running = state.running.saturating_sub(1);
        let Some(before) = state.before.take() else { return };
        self.merge(state, &before, &real(roots));
        if state.running > 0 {
            state.before = Some(before);
        }
    }

    /// Takes what is different from a look before into the turn's record.
    fn merge(&self, state: &mut State, before: &Seen, roots: &[PathBuf]) {
        let seen = self.scan(state, roots, When::Behind);
        let bounds = &self.inner.bounds;
        let (differences, unsure) = scan::compare(before, &seen, bounds);
        let State { record, blobs, .. } = state;
        let Some(record) = record else { return };
        record.say_beyond(&seen.beyond);
        let mut counted = 0;
        let mut lines = |blobs: &Blobs, before: &Node, after: &Node| {
            counted += 1;
            if counted <= COUNTED_FILES_MAX { count(blobs, before, after) } else { None }
        };
        for touched in &mut record.files {
            let now = now_of(&touched.path, &seen, bounds);
            if touched.after.as_ref().is_none_or(|after| !is_same(after, &now, &touched.path)) {
                touched.lines = lines(blobs, &touched.before, &now);
                touched.after = Some(now);
            }
        }
        let known: HashSet<PathBuf> = record.files.iter().map(|touched| touched.path.clone()).collect();
        for difference in differences.into_iter().filter(|difference| !known.contains(&difference.path)) {
            let lines = lines(blobs, &difference.before, &difference.after);
            let touched = touched(difference.path, difference.before, Some(difference.after));
            record.files.push(Touched { lines, ..touched });
        }
        for path in unsure.into_iter().map(PathName) {
            if !record.unsure.contains(&path) {
                record.unsure.push(path);
            }
        }
    }

    /// A process ended while a command ran: what is different now counts as the turn's.
    fn finish_command(
        &self,
        state: &mut State,
        open: Open,
        before: &Seen,
        roots: &[PathBuf],
    ) -> Result<(), CheckpointError> {
        self.begin_turn(open.turn);
        self.open_record(state)?;
        let then: Vec<PathBuf> = open.roots.into_iter().map(|PathName(root)| root).collect();
        self.merge(state, before, &real(if then.is_empty() { roots } else { &then }));
        if let Some(record) = &mut state.record {
            let text = "Epitome ended while a command of it ran, and what changed until it was opened again counts as its own";
            record.say_beyond(&[text.to_owned()]);
        }
        self.save_record(state)?;
        state.baseline.close()
    }

    /// Looks at a workspace, whose directories are without links.
    fn scan(&self, state: &mut State, roots: &[PathBuf], when: When) -> Seen {
        let place = Place { roots, excluded: &self.inner.data, bounds: &self.inner.bounds };
        let seen = scan::scan(&place, &state.last, &state.blobs, when);
        state.last = seen.found.clone();
        seen
    }

    /// What stands at a path, its content kept.
    fn keep(&self, state: &mut State, path: &Path) -> Result<Node, CheckpointError> {
        let most = self.inner.bounds.named_bytes;
        node::look(path, |path, metadata| scan::keep(path, metadata, most, &state.blobs))
            .map_err(|error| CheckpointError::io("keep", path, &error))
    }

    // ── Plans ──────────────────────────────────────────────────────────────────────────────────────

    fn plan(
        &self,
        state: &mut State,
        asked: Asked,
        forced: bool,
        keep: Keep,
    ) -> Result<(Option<Rewind>, Report), CheckpointError> {
        let rewinds = restore::all(&self.rewinds_directory())?;
        let number = rewinds.last().map_or(1, |last| last.number + 1);
        let mut report = Report::default();
        let mut rewind = Rewind {
            number,
            from: Seq(0),
            turns: Vec::new(),
            undoes: None,
            steps: Vec::new(),
            beside: Vec::new(),
            came: Came::Staging,
            undone: false,
            told: false,
        };
        let wanted = match asked {
            Asked::From(from) => {
                let (records, unreadable) = record::all(&self.turns_directory())?;
                for path in unreadable {
                    report.beyond.push(format!("the record {} can't be read", path.display()));
                }
                let let_go = record::load::<LetGo>(&self.let_go_path())?.unwrap_or_default();
                if from <= let_go.through && let_go.through > Seq(0) {
                    let text = format!("what turns up to {} did is not kept any more", let_go.through);
                    report.beyond.push(text);
                }
                let is_meant = |record: &&TurnRecord| record.turn >= from && record.taken_back.is_none();
                let records: Vec<&TurnRecord> = records.iter().filter(is_meant).collect();
                rewind.from = from;
                for record in &records {
                    rewind.turns.push(record.turn);
                    for beyond in &record.beyond {
                        if !report.beyond.contains(beyond) {
                            report.beyond.push(beyond.clone());
                        }
                    }
                    let unsure = record.unsure.iter().map(|PathName(path)| path.clone());
                    let is_there = unsure.filter(|path| fs::symlink_metadata(path).is_ok());
                    report.conflicts.extend(is_there.map(|path| Conflict { path, why: plan::Why::Unsure }));
                }
                plan::together(records)
            }
            Asked::Undo => {
                let Some(undone) = newest_that_holds(&rewinds) else { return Ok((None, report)) };
                rewind.from = undone.from;
                rewind.turns = undone.turns.clone();
                rewind.undoes = Some(undone.number);
                let back = undone.steps.iter().map(|step| {
                    let (node, left) = (step.now.clone(), Some(step.to.clone()));
                    (step.path.clone(), Wanted { node, left, shared: false })
                });
                back.collect::<BTreeMap<_, _>>()
            }
        };
        let bounds = &self.inner.bounds;
        let blobs = &state.blobs;
        let (steps, conflicts) =
            plan::decide(&wanted, |path, wanted| now(path, wanted, bounds, blobs, keep), forced);
        report.conflicts.extend(conflicts);
        rewind.steps = steps;
        let planned = report_of(&rewind);
        report.changed = planned.changed;
        report.turns = planned.turns;
        Ok((Some(rewind), report))
    }

    /// Every path was tried: the turns are taken back, or hold again.
    fn settle(&self, rewind: &mut Rewind) -> Result<(), CheckpointError> {
        let (mut records, _) = record::all(&self.turns_directory())?;
        for record in records.iter_mut().filter(|record| rewind.turns.contains(&record.turn)) {
            record.taken_back = rewind.undoes.is_none().then_some(rewind.number);
            record.save(&self.turns_directory())?;
        }
        let mut rewinds = restore::all(&self.rewinds_directory())?;
        for undone in rewinds.iter_mut().filter(|known| Some(known.number) == rewind.undoes) {
            undone.undone = true;
            undone.save(&self.rewinds_directory())?;
        }
        rewind.came = Came::Done;
        rewind.save(&self.rewinds_directory())?;
        let spare = rewinds.len().saturating_sub(REWINDS_MAX);
        rewinds.iter().take(spare).for_each(|old| old.remove(&self.rewinds_directory()));
        Ok(())
    }

    // ── The records ────────────────────────────────────────────────────────────────────────────────

    /// Takes the record of the turn that runs into the hand.
    fn open_record(&self, state: &mut State) -> Result<(), CheckpointError> {
        let turn = *self.inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
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
            record::save(&self.let_go_path(), &gone, super::blobs::Durable::No)?;
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

    fn save_record(&self, state: &mut State) -> Result<(), CheckpointError> {
        if let Some(record) = &state.record
            && state.saved.as_ref() != Some(record)
        {
            state.saved = None;
            record.save(&self.turns_directory())?;
            state.saved = Some(record.clone());
        }
        Ok(())
    }

    fn state(&self) -> Result<MutexGuard<'_, Option<State>>, CheckpointError> {
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

    fn turns_directory(&self) -> PathBuf {
        self.inner.directory.join("turns")
    }

    fn rewinds_directory(&self) -> PathBuf {
        self.inner.directory.join("rewinds")
    }

    fn let_go_path(&self) -> PathBuf {
        self.inner.directory.join("let-go.json")
    }
}

/// Whether what stands at a path is kept as it is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Yes,
    No,
}

fn opened<'a>(guard: &'a mut MutexGuard<'_, Option<State>>) -> &'a mut State {
    guard.as_mut().expect("it was opened with its lock")
}

fn touched(path: PathBuf, before: Node, after: Option<Node>) -> Touched {
    Touched { path, before, after, shared: false, lines: None }
}

/// The newest rewind that is none of a rewind and was not taken back.
fn newest_that_holds(rewinds: &[Rewind]) -> Option<&Rewind> {
    rewinds.iter().rev().find(|rewind| !rewind.undone && rewind.undoes.is_none())
}

fn report_of(rewind: &Rewind) -> Report {
    let change = |step: &super::plan::Step| {
        let as_touched = touched(step.path.clone(), step.now.clone(), Some(step.to.clone()));
        let verb = match as_touched.verb() {
            "changed" => "put back",
            "created" => "brought back",
            verb => verb,
        };
        (step.path.clone(), verb)
    };
    Report {
        number: Some(rewind.number).filter(|_| rewind.came == Came::Done),
        turns: rewind.turns.clone(),
        changed: rewind.steps.iter().map(change).collect(),
        ..Report::default()
    }
}

/// What stands at a path now, held against what was left there and what is wanted.
fn now(path: &Path, wanted: &Wanted, bounds: &Bounds, blobs: &Blobs, keep: Keep) -> Now {
    let most = bounds.named_bytes;
    let looked = node::look(path, |path, metadata| match keep {
        Keep::Yes => scan::keep(path, metadata, most, blobs),
        Keep::No => scan::name(path, metadata, most),
    });
    let node = looked.unwrap_or(Node::Other);
    let is_wanted = is_same(&wanted.node, &node, path);
    // A call that a crash broke off left nobody knows what.
    let is_left = wanted.left.as_ref().is_none_or(|left| is_same(left, &node, path));
    Now { node, is_left, is_wanted }
}

/// Whether what was known is what stands there now. A file that was known by its stamp alone is held against that.
fn is_same(known: &Node, now: &Node, path: &Path) -> bool {
    known == now || (matches!(now, Node::File { .. }) && scan::stands(known, path))
}

/// What a look has seen at a path; one that it left out is looked at by itself.
fn now_of(path: &Path, seen: &Seen, bounds: &Bounds) -> Node {
    match seen.get(path) {
        Some(node) if !matches!(node, Node::Unkept { .. }) => node.clone(),
        Some(_) | None => node::look(path, |path, metadata| scan::name(path, metadata, bounds.named_bytes))
            .unwrap_or(Node::Other),
    }
}

/// The workspace's directories without links.
fn real(roots: &[PathBuf]) -> Vec<PathBuf> {
    roots.iter().filter_map(|root| root.canonicalize().ok()).collect()
}

/// The paths with the directories above them that a write would make.
fn with_missing_directories(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for path in paths {
        let missing = path.ancestors().skip(1).take_while(|above| {
            matches!(fs::symlink_metadata(above), Err(error) if error.kind() == io::ErrorKind::NotFound)
        });
        let mut missing: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
        missing.reverse();
        for path in missing.into_iter().chain([path.clone()]) {
            if !all.contains(&path) {
                all.push(path);
            }
        }
    }
    all
}

/// The lines that came and went, where both sides are text of a bounded length.
fn count(blobs: &Blobs, before: &Node, after: &Node) -> Option<LineCount> {
    let text = |node: &Node| match node {
        Node::Missing => Some(String::new()),
        Node::File { hash, bytes, .. } if *bytes <= COUNTED_BYTES_MAX => {
            String::from_utf8(blobs.get(hash, *bytes).ok()?).ok()
        }
        Node::File { .. }
        | Node::Unkept { .. }
        | Node::Link { .. }
        | Node::Directory { .. }
        | Node::Other => None,
    };
    if !matches!((before, after), (Node::File { .. }, _) | (_, Node::File { .. })) {
        return None;
    }
    let (before, after) = (text(before)?, text(after)?);
    let mut count = LineCount::default();
    for op in similar::TextDiff::from_lines(&before, &after).ops() {
        if op.tag() != similar::DiffTag::Equal {
            count.removed += op.old_range().len() as u64;
            count.added += op.new_range().len() as u64;
        }
    }
    Some(count)
}
