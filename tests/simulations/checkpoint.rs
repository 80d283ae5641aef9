//! Checkpoints on simulated disks: turns change files, rewinds put them back, calls fail and the power is lost at any of
//! them. Whatever happens, a rewind is complete or was never begun, and what it replaced can be brought back.
//!
//! `EPITOME_DISKS` is the number of disks, `EPITOME_SEED` the first seed.

#![expect(clippy::print_stdout, reason = "what a failed disk went through is printed")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome_files::disk::{Disk, OpenMode, PutMode};
use epitome_simulated_disk::{InjectedFault, SimDisk};
use epitome_thread::{Seq, SessionId};
use parking_lot::Mutex;

use epitome_checkpoint::{
    AffectedFiles, Bounds, CheckpointDisk, Checkpoints, NodeKind, NodeStamp, NodeStat, RewindReport,
    RewindTarget, TEMPORARY, UserFiles,
};

/// Disks of a normal run.
const DISKS: u64 = 400;

/// Steps of a disk's life.
const STEPS_MAX: usize = 16;

/// Different contents: few, so that the same one is stored again, and again after a power loss.
const CONTENTS: u64 = 4;

/// States that a run of `DISKS` reaches, or nothing is known of them.
const RARE: [&str; 8] = [
    "a file was deleted",
    "a rewind failed and changed nothing",
    "a rewind was completed later",
    "a rewind was undone",
    "files were rewound",
    "nothing was left of a rewind",
    "the power was lost in a rewind",
    "the power was lost in a turn",
];

/// The files of a simulated disk. The user's edit is saved at the next sync.
#[derive(Clone, Debug)]
struct SimFiles(SimDisk, UserEdit);

type UserEdit = Arc<Mutex<Option<PathBuf>>>;

const EDITED: &[u8] = b"typed by the user";

impl UserFiles for SimFiles {
    fn stat(&self, path: &Path) -> io::Result<NodeStat> {
        let stat = Disk::stat(&self.0, path)?;
        let kind = if stat.is_file { NodeKind::File } else { NodeKind::Directory };
        let mode = if stat.is_file { 0o644 } else { 0o755 };
        let changed = stat.changed_at as i64;
        let stamp = NodeStamp { bytes: stat.bytes, modified: changed, changed, inode: stat.id.inode, mode };
        Ok(NodeStat { kind, stamp })
    }

    fn read_link(&self, _: &Path) -> io::Result<PathBuf> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let bytes = Disk::read(&self.0, path, bytes_max.saturating_add(1))?;
        Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
    }

    fn is_real_directory(&self, path: &Path) -> bool {
        self.stat(path).is_ok_and(|found| found.kind == NodeKind::Directory)
    }

    fn write(&self, path: &Path, content: &[u8], _: u32) -> io::Result<()> {
        let _ = self.0.remove_file(path);
        self.0.open(path, OpenMode::AppendNew)?.append(content)
    }

    fn link(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.0.make_directory(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        match self.0.names(path)?.is_empty() {
            true => self.0.remove_directory(path),
            false => Err(io::ErrorKind::DirectoryNotEmpty.into()),
        }
    }

    fn set_mode(&self, _: &Path, _: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self, paths: &[PathBuf]) -> io::Result<()> {
        paths.iter().try_for_each(|path| match self.stat(path)?.kind {
            NodeKind::Directory => self.0.sync_directory(path),
            _ => self.0.sync_files(std::slice::from_ref(path)),
        })?;
        let edited = self.1.lock().take();
        edited.map_or(Ok(()), |path| self.0.put(&path, EDITED, PutMode::Replace))
    }
}

/// The contents of files, by their paths. The contents are recognized by their first words.
type Contents = BTreeMap<PathBuf, SimContent>;

#[derive(Clone, PartialEq, Eq)]
struct SimContent(Vec<u8>);

impl std::fmt::Debug for SimContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = String::from_utf8_lossy(&self.0[..self.0.len().min(9)]);
        write!(f, "{head:?} and {} bytes", self.0.len())
    }
}

/// The changes of a turn: for each path the content before it, or nothing.
type Changed = BTreeMap<PathBuf, Option<SimContent>>;

struct SimWorkspace {
    disk: SimDisk,
    checkpoints: Checkpoints,
    rng: fastrand::Rng,
    turns: BTreeMap<Seq, Changed>,
}

fn workspace() -> PathBuf {
    PathBuf::from("/home/work")
}

fn open(disk: &SimDisk) -> Checkpoints {
    open_with(disk, UserEdit::default())
}

fn open_with(disk: &SimDisk, edit: UserEdit) -> Checkpoints {
    let on = CheckpointDisk { disk: Arc::new(disk.clone()), files: Arc::new(SimFiles(disk.clone(), edit)) };
    let session = SessionId("s_00000000000000000001".into());
    Checkpoints::on(on, Path::new("/home/data"), &session, Bounds::default())
}

impl SimWorkspace {
    fn new(seed: u64) -> SimWorkspace {
        fastrand::seed(seed);
        let disk = SimDisk::new(seed, Path::new("/home/data"));
        for path in ["/home/data".into(), workspace(), workspace().join("sub")] {
            disk.make_directory(&path).expect("nothing fails yet");
            disk.sync_directory(path.parent().expect("it has one")).expect("nothing fails yet");
        }
        let checkpoints = open(&disk);
        SimWorkspace { disk, checkpoints, rng: fastrand::Rng::with_seed(!seed), turns: BTreeMap::new() }
    }

    /// The user's files.
    fn contents(&self) -> Contents {
        let files = self.disk.files().into_iter().filter(|(path, _)| path.starts_with(workspace()));
        files.map(|(path, content)| (path, SimContent(content))).collect()
    }

    fn play(&mut self) {
        for step in 0..self.rng.usize(4..STEPS_MAX) {
            match self.rng.u32(..8) {
                0..4 => self.turn(Seq(step as u64 + 1)),
                4 | 5 if !self.turns.is_empty() => {
                    let turns: Vec<Seq> = self.turns.keys().copied().collect();
                    let from = *self.rng.choice(&turns).expect("there are some");
                    self.rewind(RewindTarget::From(from));
                }
                6 => self.rewind(RewindTarget::Undo),
                _ => self.lose_power(),
            }
        }
    }

    fn plan_fault(&mut self, calls: u64) {
        let fault = match self.rng.u32(..4) {
            0 => InjectedFault::Error(io::ErrorKind::StorageFull),
            1 => InjectedFault::Error(io::ErrorKind::Other),
            _ => InjectedFault::PowerLoss,
        };
        let call = self.rng.u64(1..calls);
        self.disk.plan(call, fault);
    }

    /// A turn changes some files with a tool, whose own writes are durable.
    fn turn(&mut self, turn: Seq) {
        let names = ["a", "b", "sub/c"];
        let paths: BTreeSet<PathBuf> = (0..self.rng.usize(1..3))
            .map(|_| workspace().join(self.rng.choice(names).expect("some")))
            .collect();
        let before = self.contents();
        let (files, roots) = (AffectedFiles::Files(paths.iter().cloned().collect()), [workspace()]);
        if self.rng.u32(..6) == 0 {
            self.plan_fault(12);
        }
        self.checkpoints.begin_turn(turn);
        let recorded = self.checkpoints.before(&roots, &files);
        self.disk.heal();
        if !self.disk.is_off() {
            paths.iter().for_each(|path| self.tool_writes(path));
        }
        let recorded = recorded.and(self.checkpoints.after(&roots, &files));
        println!("turn {turn}: {recorded:?}, {:?}", self.contents());
        if self.disk.is_off() {
            self.disk.count("the power was lost in a turn");
            return self.lose_power();
        }
        let changed = paths.into_iter().map(|path| (path.clone(), before.get(&path).cloned())).collect();
        // A change that could not be recorded can't be undone, and a notice says so.
        if recorded.is_ok() {
            self.turns.insert(turn, changed);
        }
    }

    fn tool_writes(&mut self, path: &Path) {
        if self.rng.u32(..5) == 0 {
            drop(self.disk.remove_file(path));
            self.disk.count("a file was deleted");
        } else {
            let nth = self.rng.u64(..CONTENTS);
            let content = format!("content {nth} ").repeat(10 + 200 * nth as usize);
            self.disk.put(path, content.as_bytes(), PutMode::Replace).expect("nothing fails");
        }
        self.disk.sync_directory(path.parent().expect("it has one")).expect("nothing fails");
    }

    fn lose_power(&mut self) {
        let before = self.contents();
        println!("the power is lost");
        self.disk.restart();
        self.checkpoints = open(&self.disk);
        let reports = self.checkpoints.resume(&[workspace()]).expect("nothing fails");
        assert!(reports.iter().all(|report| report.failures.is_empty()), "{reports:?}");
        assert_eq!(self.contents(), before, "nothing was under way");
        self.expect_nothing_staged();
    }

    fn expect_nothing_staged(&self) {
        let is_ours = |path: &&PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY))
        };
        let files = self.disk.files();
        let staged = files.keys().find(is_ours);
        assert!(staged.is_none(), "{staged:?} was left behind");
    }

    fn rewind(&mut self, target: RewindTarget) {
        let before = self.contents();
        let forced = self.rng.bool();
        if self.rng.bool() {
            self.plan_fault(70);
        }
        let rewound = self.checkpoints.rewind(target, forced);
        println!("rewind {target:?}: {rewound:?}");
        let is_off = self.disk.is_off();
        self.disk.heal();
        if is_off {
            self.disk.count("the power was lost in a rewind");
            return self.recover(target, &before);
        }
        let after = self.contents();
        let Ok(report) = rewound else {
            assert_eq!(after, before, "an error means that nothing was changed");
            self.disk.count("a rewind failed and changed nothing");
            return self.expect_nothing_staged();
        };
        if report.number.is_none() {
            return assert_eq!(after, before, "nothing was to be done");
        }
        self.disk.count("files were rewound");
        self.expect_rewound(target, &report, &before, &after);
        if !report.failures.is_empty() {
            // The user was told that it may not survive a power loss; the system brings it to the disk in time.
            let directories = [workspace(), workspace().join("sub")];
            directories.iter().for_each(|path| self.disk.sync_directory(path).expect("nothing fails"));
        }
        let is_undo = target == RewindTarget::Undo;
        if !is_undo && report.failures.is_empty() && report.beyond.is_empty() {
            if self.rng.bool() {
                self.lose_power();
            }
            self.undo(&before, &report);
        }
    }

    /// Undoes a rewind: the replaced contents come back.
    fn undo(&mut self, before: &Contents, report: &RewindReport) {
        let undone = self.checkpoints.rewind(RewindTarget::Undo, false);
        let undone = undone.expect("what was replaced is stored");
        let tried: BTreeSet<&PathBuf> = report.changed.iter().map(|(path, _)| path).collect();
        let back: BTreeSet<&PathBuf> = undone.changed.iter().map(|(path, _)| path).collect();
        assert_eq!(tried, back, "{undone:?}");
        let after = self.contents();
        for path in tried {
            assert_eq!(after.get(path), before.get(path), "{} is another", path.display());
        }
        self.disk.count("a rewind was undone");
        self.mark_all();
    }

    /// The power was lost in a rewind: the next process completes it, or nothing has happened.
    fn recover(&mut self, target: RewindTarget, before: &Contents) {
        self.disk.restart();
        self.checkpoints = open(&self.disk);
        let mut late = self.checkpoints.resume(&[workspace()]).expect("nothing fails");
        self.expect_nothing_staged();
        let after = self.contents();
        assert!(late.len() < 2, "the others are in the log: {late:?}");
        let late = late.pop();
        match late {
            Some(late) => {
                assert!(late.failures.is_empty(), "{late:?}");
                for (path, _) in &late.changed {
                    assert_ne!(after.get(path), before.get(path), "{} was not restored", path.display());
                }
                let untouched = |path: &&PathBuf| !late.changed.iter().any(|(changed, _)| changed == *path);
                for path in before.keys().chain(after.keys()).filter(untouched) {
                    assert_eq!(after.get(path), before.get(path), "{} is another", path.display());
                }
                self.disk.count("a rewind was completed later");
                self.mark_all();
                if target != RewindTarget::Undo {
                    self.undo(before, &late);
                }
            }
            None => {
                assert_eq!(after, *before, "it is complete or was never begun");
                self.disk.count("nothing was left of a rewind");
            }
        }
    }

    /// All rewinds are in the log now.
    fn mark_all(&mut self) {
        for report in self.checkpoints.resume(&[workspace()]).expect("nothing fails") {
            let number = report.number.expect("it is done");
            self.checkpoints.mark_reported(number).expect("nothing fails");
        }
    }

    /// Each path that a report names is as the first of its turns had found it; all others are as they were.
    fn expect_rewound(
        &mut self,
        target: RewindTarget,
        report: &RewindReport,
        before: &Contents,
        after: &Contents,
    ) {
        let failed = |path: &PathBuf| report.failures.iter().any(|failure| failure.path == *path);
        // The contents before a turn that could not be recorded are not known here.
        let is_known = report.turns.iter().all(|turn| self.turns.contains_key(turn));
        if is_known && target != RewindTarget::Undo {
            for (path, _) in report.changed.iter().filter(|(path, _)| !failed(path)) {
                let wanted = report.turns.iter().find_map(|turn| self.turns[turn].get(path));
                let wanted = wanted.expect("a turn has changed it");
                assert_eq!(after.get(path), wanted.as_ref(), "{} is another", path.display());
            }
        }
        let is_named =
            |path: &&PathBuf| failed(path) || report.changed.iter().any(|(named, _)| named == *path);
        for path in before.keys().chain(after.keys()).filter(|path| !is_named(path)) {
            assert_eq!(after.get(path), before.get(path), "{} is another", path.display());
        }
        self.mark_all();
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

#[test]
fn a_rewind_is_complete_or_was_never_begun() {
    let (first, disks) = (number("EPITOME_SEED").unwrap_or(0), number("EPITOME_DISKS").unwrap_or(DISKS));
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in first..first + disks {
        let played = catch_unwind(AssertUnwindSafe(|| {
            let mut world = SimWorkspace::new(seed);
            world.play();
            world.disk.seen()
        }));
        match played {
            Ok(more) => more.into_iter().for_each(|(what, times)| *seen.entry(what).or_default() += times),
            Err(_) => panic!(
                "to repeat it: EPITOME_SEED={seed} EPITOME_DISKS=1 cargo test -p epitome-simulations checkpoint"
            ),
        }
    }
    if disks >= DISKS {
        let missing: Vec<_> = RARE.iter().filter(|state| !seen.contains_key(**state)).collect();
        assert!(missing.is_empty(), "never reached: {missing:?} of {seen:#?}");
    }
}

/// A turn changes the two paths, which existed before it.
fn edited_by_a_turn(disk: &SimDisk, edit: &UserEdit) -> Checkpoints {
    for directory in ["/home/data".into(), workspace()] {
        disk.make_directory(&directory).expect("nothing fails");
        disk.sync_directory(Path::new("/home")).expect("nothing fails");
    }
    let checkpoints = open_with(disk, edit.clone());
    let paths = ["a", "b"].map(|name| workspace().join(name));
    let put = |content: &[u8]| {
        paths.iter().for_each(|path| disk.put(path, content, PutMode::Replace).expect("nothing fails"));
        disk.sync_directory(&workspace()).expect("nothing fails");
    };
    put(b"before");
    let (files, roots) = (AffectedFiles::Files(paths.to_vec()), [workspace()]);
    checkpoints.begin_turn(Seq(1));
    checkpoints.before(&roots, &files).expect("nothing fails");
    put(b"by the agent");
    checkpoints.after(&roots, &files).expect("nothing fails");
    checkpoints
}

/// A user saved a file while a rewind ran: the rewind had stored the content that it found before, then replaced the
/// file without looking again, and the edit was gone.
#[test]
fn an_edit_during_a_rewind_survives_it() {
    let (disk, edit) = (SimDisk::new(1, Path::new("/home/data")), UserEdit::default());
    let checkpoints = edited_by_a_turn(&disk, &edit);
    let [a, b] = ["a", "b"].map(|name| workspace().join(name));
    *edit.lock() = Some(a.clone());
    let report = checkpoints.rewind(RewindTarget::From(Seq(1)), false).expect("nothing fails");
    let files = disk.files();
    assert_eq!((&files[&a][..], &files[&b][..]), (EDITED, &b"before"[..]));
    let failures: Vec<_> =
        report.failures.iter().map(|failure| (&failure.path, failure.why.as_str())).collect();
    assert_eq!(failures, [(&a, "it was changed while the rewind ran, so it was left alone")]);
}

/// A rewind was interrupted by a crash, and an hour later the user edited one of its files. The next session completed
/// the rewind and replaced the edit, which was stored nowhere.
#[test]
fn an_edit_after_an_interrupted_rewind_survives_its_completion() {
    let [a, b] = ["a", "b"].map(|name| workspace().join(name));
    let mut completed = 0;
    for call in 1.. {
        let (disk, edit) = (SimDisk::new(call, Path::new("/home/data")), UserEdit::default());
        let checkpoints = edited_by_a_turn(&disk, &edit);
        disk.plan(call, InjectedFault::PowerLoss);
        drop(checkpoints.rewind(RewindTarget::From(Seq(1)), false));
        if !disk.is_off() {
            break;
        }
        disk.restart();
        disk.put(&a, EDITED, PutMode::Replace).expect("nothing fails");
        let reports = open(&disk).resume(&[workspace()]).expect("nothing fails");
        let files = disk.files();
        assert_eq!(files[&a], EDITED, "the power was lost at call {call}");
        if let [report] = &reports[..] {
            completed += 1;
            assert_eq!(files[&b], b"before", "the power was lost at call {call}");
            // A rewind that was complete by then has no step left.
            assert!(report.failures.iter().all(|failure| failure.path == a), "{report:?}");
        }
    }
    assert!(completed > 2, "the power is lost while files are restored");
}
