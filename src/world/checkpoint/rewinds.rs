//! Rewinds: previews and applies them, and completes those that an earlier process left unfinished.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::blobs::CheckpointBlobs;
use super::calls::is_same;
use super::node::{self, FileNode};
use super::plan::{self, Conflict, CurrentState, TargetState};
use super::record::{self, PathName, TouchedPath, TurnRecord, add_new};
use super::restore::{Progress, Rewind};
use super::scan;
use super::tracker::{Checkpoints, DroppedTurns, RewindReport, RewindTarget, TrackerState, opened};
use super::{Bounds, CheckpointError};
use epitome_thread::Seq;

/// Maximum number of rewinds that can be undone. Contents needed only by older ones are released.
const REWINDS_MAX: usize = 20;

impl Checkpoints {
    /// Returns the effects of a rewind without changing files.
    pub fn preview(&self, asked: RewindTarget, forced: bool) -> Result<RewindReport, CheckpointError> {
        self.wait_for_calls();
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        Ok(self.plan(state, asked, forced, StoreContent::No)?.1)
    }

    /// Applies a rewind. On error, nothing was changed. If a rewind can't be recorded as completed, its report says
    /// so, and `resume` records it later.
    pub fn rewind(&self, asked: RewindTarget, forced: bool) -> Result<RewindReport, CheckpointError> {
        self.wait_for_calls();
        let mut guard = self.state()?;
        let state = opened(&mut guard);
        let (rewind, mut report) = self.plan(state, asked, forced, StoreContent::Yes)?;
        let Some(mut rewind) = rewind.filter(|rewind| !rewind.steps.is_empty()) else { return Ok(report) };
        let needed = rewind.steps.iter().filter_map(|step| step.now.hash());
        state.blobs.sync(needed).map_err(|error| {
            CheckpointError(format!("the current contents can't be stored first: {error}"))
        })?;
        rewind.choose_staging_paths(self.files());
        self.save_rewind(&rewind)?;
        let staged = rewind.stage(&state.blobs).and_then(|()| {
            rewind.came = Progress::Applying;
            self.save_rewind(&rewind)
        });
        if let Err(error) = staged {
            rewind.discard(self.disk(), &self.rewinds_directory());
            return Err(error);
        }
        report = report.with(rewind.apply(&state.blobs));
        report.number = Some(rewind.number);
        state.record = None;
        if let Err(error) = self.settle(&mut rewind) {
            report.beyond.push(format!(
                "the files were restored, but the checkpoints of these turns could not be updated: {error}"
            ));
        }
        Ok(report)
    }

    /// Completes the unfinished work of an earlier process: the record of a command, or a rewind. Returns the rewinds
    /// that aren't in the session's log yet.
    pub fn resume(&self, roots: &[PathBuf]) -> Result<Vec<RewindReport>, CheckpointError> {
        if !self.exist() {
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
        for mut rewind in self.rewinds()? {
            let failures = match rewind.came {
                Progress::Staging => {
                    rewind.discard(self.disk(), &self.rewinds_directory());
                    continue;
                }
                Progress::Applying => {
                    // A rewind that was reported was applied; the user may have changed the files since.
                    let failures = if rewind.reported { Vec::new() } else { rewind.apply(&state.blobs) };
                    state.record = None;
                    self.settle(&mut rewind)?;
                    failures
                }
                Progress::Done => Vec::new(),
            };
            if !rewind.reported {
                reports.push(report_of(&rewind).with(failures));
            }
        }
        Ok(reports)
    }

    /// Marks a rewind as recorded in the log.
    pub fn mark_reported(&self, number: u32) -> Result<(), CheckpointError> {
        let _guard = self.state()?;
        let Some(rewind) = self.rewinds()?.into_iter().find(|rewind| rewind.number == number) else {
            return Ok(());
        };
        self.save_rewind(&Rewind { reported: true, ..rewind })
    }

    fn plan(
        &self,
        state: &mut TrackerState,
        asked: RewindTarget,
        forced: bool,
        keep: StoreContent,
    ) -> Result<(Option<Rewind>, RewindReport), CheckpointError> {
        let rewinds = self.rewinds()?;
        let number = rewinds.last().map_or(1, |last| last.number + 1);
        let mut report = RewindReport::default();
        let mut rewind = Rewind { number, ..Rewind::default() };
        let wanted = match asked {
            RewindTarget::From(from) => {
                let (records, unreadable) = self.records()?;
                for path in unreadable {
                    report.beyond.push(format!("the record {} can't be read", path.display()));
                }
                let let_go = record::load::<DroppedTurns>(self.disk(), &self.dropped_turns_path())?
                    .unwrap_or_default();
                if from <= let_go.through && let_go.through > Seq(0) {
                    let text =
                        format!("the checkpoints of turns up to {} are not stored any more", let_go.through);
                    report.beyond.push(text);
                }
                // A rewind undoes its turns even if it skipped some paths; forcing it again applies to the skipped
                // ones.
                let is_meant =
                    |record: &&TurnRecord| record.turn >= from && (forced || record.taken_back.is_none());
                let records: Vec<&TurnRecord> = records.iter().filter(is_meant).collect();
                rewind.from = from;
                for record in &records {
                    rewind.turns.push(record.turn);
                    record.beyond.iter().for_each(|beyond| add_new(&mut report.beyond, beyond.clone()));
                    let unsure = record.unsure.iter().map(|PathName(path)| path.clone());
                    let is_there = unsure.filter(|path| self.files().stat(path).is_ok());
                    report
                        .conflicts
                        .extend(is_there.map(|path| Conflict { path, why: plan::ConflictReason::Unsure }));
                }
                plan::merge_records(records)
            }
            RewindTarget::Undo => {
                let newest = rewinds.iter().rev().find(|rewind| rewind.is_in_effect());
                let Some(undone) = newest else { return Ok((None, report)) };
                rewind.from = undone.from;
                rewind.turns = undone.turns.clone();
                rewind.undoes = Some(undone.number);
                let back = undone.steps.iter().map(|step| {
                    let (node, left) = (step.now.clone(), Some(step.to.clone()));
                    (step.path.clone(), TargetState { node, left, shared: false })
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

    /// Marks the turns as undone, or as in effect again, after every path was tried.
    fn settle(&self, rewind: &mut Rewind) -> Result<(), CheckpointError> {
        let ((mut records, _), mut rewinds) = (self.records()?, self.rewinds()?);
        for record in records.iter_mut().filter(|record| rewind.turns.contains(&record.turn)) {
            record.taken_back = match rewind.undoes {
                None => Some(rewind.number),
                // With force, a turn may already have been undone by an earlier rewind that is still in effect.
                Some(undone) => rewinds
                    .iter()
                    .rev()
                    .find(|known| {
                        known.is_in_effect() && known.number < undone && known.turns.contains(&record.turn)
                    })
                    .map(|known| known.number),
            };
            record.save(self.disk(), &self.turns_directory())?;
        }
        for undone in rewinds.iter_mut().filter(|known| Some(known.number) == rewind.undoes) {
            undone.undone = true;
            self.save_rewind(undone)?;
        }
        rewind.came = Progress::Done;
        self.save_rewind(rewind)?;
        let spare = rewinds.len().saturating_sub(REWINDS_MAX);
        rewinds.iter().take(spare).for_each(|old| old.remove(self.disk(), &self.rewinds_directory()));
        Ok(())
    }
}

/// Whether the current content of a path is stored when it is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreContent {
    Yes,
    No,
}

fn report_of(rewind: &Rewind) -> RewindReport {
    let change = |step: &plan::RestoreStep| {
        let as_touched = TouchedPath::new(step.path.clone(), step.now.clone(), Some(step.to.clone()));
        let verb = match as_touched.verb() {
            "changed" => "put back",
            "created" => "brought back",
            verb => verb,
        };
        (step.path.clone(), verb)
    };
    RewindReport {
        number: Some(rewind.number).filter(|_| rewind.came == Progress::Done),
        turns: rewind.turns.clone(),
        changed: rewind.steps.iter().map(change).collect(),
        ..RewindReport::default()
    }
}

/// Returns the current state of a path, compared with the state that the turns left and the wanted one.
fn now(
    path: &Path,
    wanted: &TargetState,
    bounds: &Bounds,
    blobs: &CheckpointBlobs,
    keep: StoreContent,
) -> CurrentState {
    let most = bounds.named_bytes;
    let looked = node::look(blobs.files(), path, |path, stat| match keep {
        StoreContent::Yes => scan::keep(path, stat, most, blobs),
        StoreContent::No => scan::name(blobs.files(), path, stat, most),
    });
    let node = looked.unwrap_or(FileNode::Other);
    let is_wanted = is_same(blobs.files(), &wanted.node, &node, path);
    // If a call was interrupted by a crash, the state that it left is unknown.
    let is_left = wanted.left.as_ref().is_none_or(|left| is_same(blobs.files(), left, &node, path));
    CurrentState { node, is_left, is_wanted }
}
