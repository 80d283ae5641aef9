//! Checkpoints from outside: a rewind restores the workspace as it was before a turn, whatever file tools and
//! commands did to it, and leaves external changes alone.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use epitome::checkpoint::{AffectedFiles, Bounds, Checkpoints, ConflictReason, RewindReport, RewindTarget};
use epitome::thread::{Seq, SessionId};
use proptest::prelude::*;

/// A workspace with its session's checkpoints.
struct Bench {
    home: tempfile::TempDir,
    checkpoints: Checkpoints,
}

impl Bench {
    fn new() -> Bench {
        Bench::within(Bounds::default())
    }

    fn within(bounds: Bounds) -> Bench {
        let home = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(home.path().join("w")).expect("a directory");
        let checkpoints = Checkpoints::new(&home.path().join("data"), &session(), bounds);
        Bench { home, checkpoints }
    }

    /// Waits until the file system's clock has advanced, so that later writes have newer timestamps than all
    /// earlier ones.
    fn tick(&self) {
        let probe = self.home.path().join("probe");
        let now = || {
            fs::write(&probe, "").expect("written");
            fs::metadata(&probe).expect("there").modified().expect("a time")
        };
        let before = now();
        while now() == before {}
    }

    /// Waits until all files are so old that a later rename of their directory leaves no trace in their timestamps.
    fn age(&self) {
        let probe = self.home.path().join("probe");
        let now = || {
            fs::write(&probe, "").expect("written");
            fs::metadata(&probe).expect("there").modified().expect("a time")
        };
        let before = now();
        while now() < before + Duration::from_millis(40) {}
    }

    fn root(&self) -> PathBuf {
        self.home.path().join("w").canonicalize().expect("it is there")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("directories");
        fs::write(path, text).expect("written");
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).expect("it is there")
    }

    /// A turn with one command, which runs `act`.
    fn command(&self, turn: u64, act: impl FnOnce()) {
        self.call(turn, &AffectedFiles::Anything, act);
    }

    /// A turn with one call of a file tool.
    fn tool(&self, turn: u64, path: &str, act: impl FnOnce()) {
        self.call(turn, &AffectedFiles::Files(vec![self.at(path)]), act);
    }

    fn call(&self, turn: u64, what: &AffectedFiles, act: impl FnOnce()) {
        self.checkpoints.begin_turn(Seq(turn));
        self.checkpoints.before(&[self.root()], what).expect("recorded");
        act();
        self.checkpoints.after(&[self.root()], what).expect("recorded");
    }

    fn sh(&self, script: &str) {
        let done = Command::new("sh").arg("-ec").arg(script).current_dir(self.root()).status();
        assert!(done.expect("a shell").success(), "{script}");
    }

    fn rewind(&self, turn: u64) -> RewindReport {
        self.checkpoints.rewind(RewindTarget::From(Seq(turn)), false).expect("taken back")
    }

    fn undo(&self) -> RewindReport {
        self.checkpoints.rewind(RewindTarget::Undo, false).expect("brought again")
    }

    fn tree(&self) -> Tree {
        tree(&self.root())
    }
}

fn session() -> SessionId {
    SessionId("s_00000000000000000001".to_owned())
}

/// Everything that a rewind restores: kinds, contents, modes and link targets.
type Tree = BTreeMap<PathBuf, (u32, TreeNode)>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum TreeNode {
    Bytes(Vec<u8>),
    Link(PathBuf),
    Directory,
}

fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("listed") {
            let path = entry.expect("an entry").path();
            let found = fs::symlink_metadata(&path).expect("it is there");
            let mode = found.permissions().mode() & 0o7777;
            let node = if found.is_symlink() {
                (0, TreeNode::Link(fs::read_link(&path).expect("a link")))
            } else if found.is_dir() {
                left.push(path.clone());
                (mode, TreeNode::Directory)
            } else {
                (mode, TreeNode::Bytes(fs::read(&path).expect("read")))
            };
            tree.insert(path, node);
        }
    }
    tree
}

/// The initial contents of each workspace of the table.
const BEGINNING: &str = "
    mkdir -p src empty deep/er target
    printf 'one\\ntwo\\n' > src/a.txt
    printf '#!/bin/sh\\n' > run.sh; chmod 750 run.sh
    printf '\\000\\377binary' > image.bin
    printf 'x' > deep/er/file
    ln -s src/a.txt link
    ln -s /nowhere dangling
    printf 'target/\\n' > .gitignore
    printf 'built' > target/out
";

#[test]
fn changes_by_commands_are_rewound_and_redone() {
    for script in [
        "echo new > new.txt",
        "echo more >> src/a.txt",
        "rm src/a.txt",
        "mv src/a.txt src/b.txt",
        "mv src source",
        "chmod 644 run.sh",
        "chmod 700 deep/er",
        "printf 'other\\000' > image.bin",
        "rm link; ln -s src/b.txt link",
        "rm dangling; echo a file now > dangling",
        "rm src/a.txt; ln -s ../image.bin src/a.txt",
        "rmdir empty",
        "rmdir empty; echo file > empty",
        "rm -r deep; echo file > deep",
        "rm run.sh; mkdir run.sh; echo in > run.sh/in",
        "mkdir -p one/two/three; chmod 711 one",
        "rm -r src; ln -s deep src",
        "rm -r deep; ln -s src deep",
        "rm -rf src deep empty link dangling image.bin run.sh",
        "mv image.bin src/a.txt",
        "printf '' > src/a.txt; : > nothing",
        "printf 'no newline' > 'a name with  spaces\n and a line'",
        "printf 'x' > \"$(printf 'latin-\\351')\"",
        "chmod 4755 run.sh",
    ] {
        let bench = Bench::new();
        bench.sh(BEGINNING);
        // The files are older than a tick of the file system's clock, and renaming their directory does not change
        // their own timestamps.
        bench.tick();
        let before = bench.tree();
        bench.command(5, || bench.sh(script));
        let after = bench.tree();
        assert_ne!(before, after, "{script} does something");
        let report = bench.rewind(5);
        assert_eq!((&report.conflicts, &report.failures), (&Vec::new(), &Vec::new()), "{script}");
        assert_eq!(bench.tree(), before, "{script}");
        let report = bench.undo();
        assert_eq!((&report.conflicts, &report.failures), (&Vec::new(), &Vec::new()), "{script}");
        assert_eq!(bench.tree(), after, "{script}, brought again");
    }
}

#[test]
fn changes_by_file_tools_are_rewound_with_created_directories() {
    let bench = Bench::new();
    bench.sh(BEGINNING);
    let before = bench.tree();
    bench.tool(3, "src/a.txt", || bench.write("src/a.txt", "two\nthree\nfour\n"));
    bench.tool(3, "new/below/it.txt", || bench.write("new/below/it.txt", "new"));
    let turns = bench.checkpoints.turns().expect("listed");
    let lines: Vec<_> = turns[0].changed().map(|touched| (touched.verb(), touched.lines)).collect();
    let count = |added, removed| Some(epitome::checkpoint::LineCount { added, removed });
    assert_eq!(
        lines,
        [
            ("changed", count(2, 1)),
            ("directory created", None),
            ("directory created", None),
            ("created", count(1, 0))
        ]
    );
    bench.rewind(3);
    assert_eq!(bench.tree(), before);
}

#[test]
fn a_dry_run_reports_the_changes_and_makes_none() {
    let bench = Bench::new();
    bench.sh(BEGINNING);
    bench.command(3, || bench.sh("rm src/a.txt; echo new > new.txt"));
    let after = bench.tree();
    let dry = bench.checkpoints.preview(RewindTarget::From(Seq(3)), false).expect("reported");
    assert_eq!(bench.tree(), after);
    let wanted = [(bench.at("new.txt"), "deleted"), (bench.at("src/a.txt"), "brought back")];
    assert_eq!(dry.changed, wanted);
    assert_eq!(dry.number, None);
    assert_eq!(bench.rewind(3).changed, wanted);
}

#[test]
fn several_turns_are_rewound_together_or_separately() {
    let bench = Bench::new();
    bench.write("a", "0");
    bench.command(1, || bench.write("a", "1"));
    bench.tool(4, "a", || bench.write("a", "2"));
    bench.command(8, || bench.write("a", "3"));
    assert_eq!(bench.rewind(8).turns, [Seq(8)]);
    assert_eq!(bench.read("a"), "2");
    // A turn that is already rewound is not rewound again.
    assert_eq!(bench.rewind(1).turns, [Seq(1), Seq(4)]);
    assert_eq!(bench.read("a"), "0");
    bench.undo();
    assert_eq!(bench.read("a"), "2");
    bench.undo();
    assert_eq!(bench.read("a"), "3");
    assert_eq!(bench.undo(), RewindReport::default());
    bench.rewind(1);
    assert_eq!(bench.read("a"), "0");
}

#[test]
fn external_changes_are_kept_unless_forced() {
    let bench = Bench::new();
    bench.sh(BEGINNING);
    bench.command(2, || {
        bench.sh("echo agent > src/a.txt; echo agent > new.txt; echo agent > run.sh; rm image.bin")
    });
    bench.write("src/a.txt", "the user's own");
    bench.write("new.txt", "the user's own");
    bench.write("image.bin", "the user's own");
    let report = bench.rewind(2);
    let left: Vec<_> =
        report.conflicts.iter().map(|conflict| (conflict.path.clone(), conflict.why)).collect();
    let edited = |path: &str| (bench.at(path), ConflictReason::Edited);
    assert_eq!(left, [edited("image.bin"), edited("new.txt"), edited("src/a.txt")]);
    assert_eq!(
        (bench.read("src/a.txt").as_str(), bench.read("run.sh").as_str()),
        ("the user's own", "#!/bin/sh\n")
    );
    bench.undo();
    let forced = bench.checkpoints.rewind(RewindTarget::From(Seq(2)), true).expect("taken back");
    assert_eq!(forced.conflicts, []);
    assert_eq!(bench.read("src/a.txt"), "one\ntwo\n");
    assert!(!bench.at("new.txt").exists());
    // Even a forced rewind can be undone.
    bench.undo();
    assert_eq!(bench.read("src/a.txt"), "the user's own");
}

/// Regression: a rewind restored one file, skipped another and reported that `force` would restore it. `/rewind e2
/// force` then answered that there was no file to restore: the turn counted as rewound and was not examined again.
#[test]
fn force_restores_what_an_earlier_rewind_skipped() {
    let bench = Bench::new();
    bench.write("theirs", "0");
    bench.command(2, || {
        bench.write("theirs", "agent");
        bench.write("made", "agent");
    });
    bench.write("theirs", "person");
    assert_eq!(bench.rewind(2).conflicts.len(), 1);
    assert!(!bench.at("made").exists());
    assert_eq!(bench.rewind(2).changed, [], "without force it stays the user's");
    let forced = bench.checkpoints.rewind(RewindTarget::From(Seq(2)), true).expect("taken back");
    assert_eq!(forced.changed.len(), 1, "what is back already is not done again");
    assert_eq!(bench.read("theirs"), "0");
    // Each is undone separately, and the turn counts as rewound until the last one is.
    let is_back = || bench.checkpoints.turns().expect("listed")[0].taken_back.is_some();
    bench.undo();
    assert_eq!((bench.read("theirs").as_str(), is_back()), ("person", true));
    bench.undo();
    assert_eq!((bench.read("made").as_str(), is_back()), ("agent", false));
    assert_eq!(bench.undo(), RewindReport::default());
}

#[test]
fn external_changes_between_two_calls_of_a_turn_are_conflicts() {
    for by_command in [true, false] {
        let bench = Bench::new();
        bench.write("a", "0");
        let what =
            if by_command { AffectedFiles::Anything } else { AffectedFiles::Files(vec![bench.at("a")]) };
        bench.call(2, &what, || bench.write("a", "agent"));
        bench.write("a", "person");
        bench.call(2, &what, || bench.write("a", "agent again"));
        let report = bench.rewind(2);
        assert_eq!(
            report.conflicts.iter().map(|conflict| conflict.why).collect::<Vec<_>>(),
            [ConflictReason::Between]
        );
        assert_eq!(bench.read("a"), "agent again");
    }
}

#[test]
fn a_file_that_is_already_restored_is_no_conflict() {
    let bench = Bench::new();
    bench.write("a", "0");
    bench.command(2, || bench.write("a", "1"));
    bench.write("a", "0");
    let report = bench.rewind(2);
    assert_eq!((report.changed.len(), report.conflicts.len()), (0, 0));
}

#[test]
fn a_rewind_never_writes_or_deletes_through_a_symlink() {
    // A command replaces a directory with a link that leads out of the workspace. Files with the same names at the
    // link's target do not belong to the agent.
    let bench = Bench::new();
    let outside = bench.home.path().join("outside");
    fs::create_dir(&outside).expect("a directory");
    fs::write(outside.join("a.txt"), "mine").expect("written");
    fs::write(outside.join("new.txt"), "mine").expect("written");
    bench.sh(BEGINNING);
    let before = bench.tree();
    bench.command(1, || bench.sh("echo agent > src/a.txt; echo agent > src/new.txt"));
    fs::remove_dir_all(bench.at("src")).expect("removed");
    symlink(&outside, bench.at("src")).expect("a link");
    let report = bench.rewind(1);
    assert!(report.failures.is_empty(), "{report:?}");
    assert_eq!(fs::read_to_string(outside.join("a.txt")).expect("there"), "mine");
    assert_eq!(fs::read_to_string(outside.join("new.txt")).expect("there"), "mine");
    fs::remove_file(bench.at("src")).expect("removed");
    // The same within a turn: the rewind removes the link and restores the directory.
    fs::create_dir(bench.at("src")).expect("made");
    bench.write("src/a.txt", "one\ntwo\n");
    bench.command(2, || bench.sh(&format!("rm -r src; ln -s {} src", outside.display())));
    let report = bench.rewind(2);
    assert!(report.failures.is_empty() && report.conflicts.is_empty(), "{report:?}");
    assert_eq!(fs::read_to_string(outside.join("a.txt")).expect("there"), "mine");
    assert_eq!(bench.tree(), before);
}

/// Regression: a file that could not be brought back, because its directory had become a link, was reported as brought back too, and
/// only that was told to the model.
#[test]
fn what_could_not_be_restored_is_not_reported_as_restored() {
    let bench = Bench::new();
    bench.sh(BEGINNING);
    bench.command(1, || bench.sh("rm src/a.txt"));
    fs::remove_dir_all(bench.at("src")).expect("removed");
    symlink(bench.home.path(), bench.at("src")).expect("a link");
    let report = bench.rewind(1);
    let failed: Vec<_> = report.failures.iter().map(|failure| failure.path.clone()).collect();
    assert_eq!((report.changed, failed), (Vec::new(), vec![bench.at("src/a.txt")]));
}

#[test]
fn files_beyond_the_limits_are_reported_and_kept() {
    let bench = Bench::within(Bounds { file_bytes: 10, ..Bounds::default() });
    bench.write("large", "more than ten bytes");
    bench.write("small", "small");
    bench.command(1, || {
        bench.sh("echo something else that is large > large; echo s > small; echo large too, and new > new")
    });
    let report = bench.rewind(1);
    let whys: Vec<_> =
        report.conflicts.iter().map(|conflict| (conflict.path.clone(), conflict.why)).collect();
    assert_eq!(whys, [(bench.at("large"), ConflictReason::NotKept)]);
    assert!(
        report.beyond.iter().any(|beyond| beyond.contains("too large to be stored")),
        "{:?}",
        report.beyond
    );
    assert_eq!(bench.read("small"), "small");
    assert!(!bench.at("new").exists(), "a large file that is new is kept before it goes");
    bench.undo();
    assert_eq!(bench.read("new"), "large too, and new\n");
    // The file that a file tool changes is kept, whatever its size.
    bench.tool(2, "large", || bench.write("large", "x"));
    bench.rewind(2);
    assert_eq!(bench.read("large"), "something else that is large\n");
}

#[test]
fn a_possibly_old_file_is_not_deleted_after_an_incomplete_scan() {
    let bench = Bench::within(Bounds { paths: 3, ..Bounds::default() });
    for name in ["a", "b", "c", "d"] {
        bench.write(name, name);
    }
    // Its position is beyond the limit in the first scan and within it in the second.
    bench.command(1, || bench.sh("rm a; echo changed > d"));
    let report = bench.rewind(1);
    assert_eq!(
        report.conflicts.iter().map(|conflict| conflict.why).collect::<Vec<_>>(),
        [ConflictReason::Unsure]
    );
    assert!(report.beyond.iter().any(|beyond| beyond.contains("only the first 3")), "{:?}", report.beyond);
    assert_eq!((bench.read("a").as_str(), bench.read("d").as_str()), ("a", "changed\n"));
}

#[test]
fn a_file_that_is_no_longer_ignored_does_not_count_as_new() {
    // It existed before, though the first scan skipped it: deleting it would lose contents that were never
    // stored.
    let bench = Bench::new();
    bench.write(".gitignore", "secret\n");
    bench.write("secret", "mine");
    bench.tick();
    bench.command(1, || bench.sh(": > .gitignore; echo new > new"));
    bench.rewind(1);
    assert_eq!(bench.read("secret"), "mine");
    assert_eq!(bench.read(".gitignore"), "secret\n");
    // A file that becomes ignored does not count as deleted.
    bench.write("plain", "plain");
    bench.command(2, || bench.sh("echo plain > .gitignore"));
    bench.rewind(2);
    assert_eq!(bench.read("plain"), "plain");
}

#[test]
fn an_interrupted_rewind_is_finished_and_an_unstarted_one_discarded() {
    for came in ["staging", "applying"] {
        let bench = Bench::new();
        bench.sh(BEGINNING);
        let before = bench.tree();
        bench.command(1, || bench.sh("rm -r deep; echo x > src/a.txt; echo new > new"));
        let after = bench.tree();
        bench.rewind(1);
        // The state after a crash: the journal records the progress, and none or half of the files are restored.
        let journal = bench.home.path().join("data/checkpoints").join(session().0).join("rewinds/1.json");
        let text = fs::read_to_string(&journal).expect("it is there");
        fs::write(&journal, text.replace("\"done\"", &format!("{came:?}"))).expect("written");
        bench.sh("rm -r deep; echo x > src/a.txt; echo new > new");
        if came == "staging" {
            fs::write(bench.at(".epitome-rewind-1-2.tmp"), "half").expect("written");
        }
        let again = Checkpoints::new(&bench.home.path().join("data"), &session(), Bounds::default());
        let reports = again.resume(&[bench.root()]).expect("taken up");
        match came {
            "applying" => {
                assert_eq!(bench.tree(), before);
                assert_eq!(reports.len(), 1, "the log gets it");
                again.mark_reported(1).expect("noted");
                assert_eq!(again.resume(&[bench.root()]).expect("nothing is left"), []);
            }
            _ => {
                fs::remove_file(bench.at(".epitome-rewind-1-2.tmp")).ok();
                assert_eq!(bench.tree(), after);
                assert_eq!(reports, []);
            }
        }
    }
}

/// An error would claim that no file was changed.
#[test]
fn a_rewind_that_cannot_be_recorded_is_reported_and_not_repeated() {
    let bench = Bench::new();
    bench.write("a", "old");
    bench.tool(1, "a", || bench.write("a", "new"));
    let first = bench.rewind(1).number.expect("it was applied");
    bench.checkpoints.mark_reported(first).expect("recorded");
    let turns = bench.home.path().join("data/checkpoints").join(&session().0).join("turns");
    let aside = turns.with_extension("aside");
    fs::rename(&turns, &aside).expect("moved");
    fs::write(&turns, "no directory").expect("written");
    let report = bench.undo();
    assert_eq!(bench.read("a"), "new");
    assert!(report.beyond[0].contains("could not be updated"), "{report:?}");
    fs::remove_file(&turns).expect("removed");
    fs::rename(&aside, &turns).expect("moved back");

    bench.checkpoints.mark_reported(report.number.expect("it was applied")).expect("recorded");
    bench.write("a", "by the user");
    let again = Checkpoints::new(&bench.home.path().join("data"), &session(), Bounds::default());
    assert_eq!(again.resume(&[bench.root()]).expect("taken up"), []);
    assert_eq!(bench.read("a"), "by the user");
    assert_eq!(again.turns().expect("listed")[0].taken_back, None);
}

#[test]
fn changes_between_two_commands_do_not_belong_to_the_turn() {
    // The scan after one command must not be reused as the scan before the next.
    let bench = Bench::new();
    for name in ["a", "b", "c"] {
        bench.write(name, "0");
    }
    bench.command(2, || bench.write("a", "agent"));
    bench.sh("echo person > b; rm c; echo person > new");
    let theirs = bench.tree();
    bench.command(2, || bench.write("a", "agent again"));
    bench.rewind(2);
    assert_eq!(bench.read("a"), "0");
    bench.write("a", "agent");
    assert_eq!(bench.tree(), theirs);
}

#[test]
fn after_a_crash_commands_are_compared_with_the_previous_scan() {
    // The scan is written to disk once and then updated: the updates have to cover each kind of change.
    let bench = Bench::new();
    bench.sh(BEGINNING);
    for deed in ["echo 1 > new", "rm -r deep", "mv src source; chmod 600 image.bin", "rm new; mkdir new", ":"]
    {
        bench.command(3, || bench.sh(deed));
    }
    let before = bench.tree();
    bench.checkpoints.begin_turn(Seq(7));
    bench.checkpoints.before(&[bench.root()], &AffectedFiles::Anything).expect("recorded");
    bench.sh("rm source/a.txt; rmdir new; echo > deep; chmod 644 image.bin");
    let again = Checkpoints::new(&bench.home.path().join("data"), &session(), Bounds::default());
    again.resume(&[bench.root()]).expect("taken up");
    let report = again.rewind(RewindTarget::From(Seq(7)), false).expect("taken back");
    assert_eq!((report.conflicts, report.failures), (Vec::new(), Vec::new()));
    assert_eq!(bench.tree(), before);
}

#[test]
fn a_command_does_not_wait_for_the_copy_of_a_large_workspace() {
    let bench = Bench::within(Bounds { copy_time: Duration::ZERO, ..Bounds::default() });
    bench.write("a", "0");
    bench.write("b", "0");
    bench.command(1, || bench.sh("echo changed > a; mv b c; echo new > new"));
    let report = bench.rewind(1);
    let whys: Vec<_> =
        report.conflicts.iter().map(|conflict| (conflict.path.clone(), conflict.why)).collect();
    assert_eq!(whys, [(bench.at("a"), ConflictReason::NotKept), (bench.at("b"), ConflictReason::NotKept)]);
    assert!(report.beyond.iter().any(|beyond| beyond.contains("2 files were not stored")), "{report:?}");
    assert!(!bench.at("new").exists(), "what was not there needs not be kept");
}

#[test]
fn changes_of_a_command_interrupted_by_a_crash_belong_to_its_turn() {
    let bench = Bench::new();
    bench.write("a", "0");
    bench.checkpoints.begin_turn(Seq(7));
    bench.checkpoints.before(&[bench.root()], &AffectedFiles::Anything).expect("recorded");
    bench.write("a", "half");
    let again = Checkpoints::new(&bench.home.path().join("data"), &session(), Bounds::default());
    again.resume(&[bench.root()]).expect("taken up");
    let report = again.rewind(RewindTarget::From(Seq(7)), false).expect("taken back");
    assert_eq!(bench.read("a"), "0");
    assert!(
        report.beyond.iter().any(|beyond| beyond.contains("ended while a command")),
        "{:?}",
        report.beyond
    );
}

#[test]
fn a_rewind_on_a_full_disk_changes_nothing() {
    // A directory without write permission simulates a full disk. Root can write to it anyway.
    if rustix_is_root() {
        eprintln!("skipped: root writes into any directory");
        return;
    }
    let bench = Bench::new();
    bench.sh("mkdir d e; echo 0 > d/a; echo 0 > e/b");
    bench.command(1, || bench.sh("echo 1 > d/a; echo 1 > e/b"));
    fs::set_permissions(bench.at("e"), Permissions::from_mode(0o555)).expect("set");
    let after = bench.tree();
    let error = bench.checkpoints.rewind(RewindTarget::From(Seq(1)), false).expect_err("it can't be staged");
    assert!(error.to_string().contains("e/b"), "{error}");
    assert_eq!(bench.tree(), after);
    fs::set_permissions(bench.at("e"), Permissions::from_mode(0o755)).expect("set");
}

fn rustix_is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.starts_with(b"0\n"))
}

#[test]
fn the_users_git_state_is_not_touched() {
    if Command::new("git").arg("--version").output().is_err() {
        eprintln!("skipped: there is no git");
        return;
    }
    let bench = Bench::new();
    bench.sh(BEGINNING);
    bench.sh("git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm first");
    bench.sh("echo staged > staged; git add staged; echo unstaged >> src/a.txt");
    let state = || {
        let run = |line: &str| {
            let done = Command::new("sh").arg("-c").arg(line).current_dir(bench.root()).output();
            String::from_utf8_lossy(&done.expect("git").stdout).into_owned()
        };
        [
            run("git rev-parse HEAD"),
            run("git diff --cached"),
            run("git diff"),
            run("git stash list"),
            run("git status --porcelain"),
        ]
    };
    let before = state();
    bench.command(1, || bench.sh("rm image.bin; echo x > src/a.txt; echo y > staged; echo z > z"));
    assert_ne!(state(), before);
    bench.rewind(1);
    assert_eq!(state(), before);
    assert!(!bench.read("src/a.txt").is_empty());
}

#[test]
fn unneeded_contents_and_the_oldest_turns_are_pruned() {
    let bench = Bench::within(Bounds { turns: 2, ..Bounds::default() });
    for turn in 1..5 {
        bench.command(turn * 10, || bench.write("a", &turn.to_string()));
    }
    let turns: Vec<_> = bench.checkpoints.turns().expect("listed").iter().map(|record| record.turn).collect();
    assert_eq!(turns, [Seq(30), Seq(40)]);
    let report = bench.rewind(10);
    assert!(report.beyond.iter().any(|beyond| beyond.contains("not stored any more")), "{:?}", report.beyond);
    assert_eq!(bench.read("a"), "2");
    bench.write("unchanged", &"x".repeat(1000));
    bench.command(50, || bench.write("a", "9"));
    let contents = || {
        fs::read_dir(bench.home.path().join("data/checkpoints").join(session().0).join("contents"))
            .expect("there")
            .count()
    };
    let (all, ()) = (contents(), bench.checkpoints.release().expect("let go"));
    assert!(contents() < all, "what only later commands would need is gone");
    bench.rewind(50);
    assert_eq!(bench.read("a"), "2");
}

/// Regression: a session that was closed while a command ran did not wait for the scan after it. When it was opened again at
/// once, it took the command for interrupted by a crash, and two handles recorded the same turn.
#[test]
fn checkpoints_are_released_once_the_end_of_each_call_is_recorded() {
    let bench = Bench::new();
    let (checkpoints, root, what) = (bench.checkpoints.clone(), bench.root(), AffectedFiles::Anything);
    checkpoints.begin_turn(Seq(7));
    checkpoints.before(std::slice::from_ref(&root), &what).expect("recorded");
    bench.write("a", "new");
    let (go, wait) = mpsc::channel();
    let ending = thread::spawn(move || {
        wait.recv().expect("the test lets it go");
        checkpoints.after(&[root], &what)
    });
    go.send(()).expect("it waits");
    bench.checkpoints.release().expect("let go");
    let again = Checkpoints::new(&bench.home.path().join("data"), &session(), Bounds::default());
    again.resume(&[bench.root()]).expect("taken up");
    let report = again.rewind(RewindTarget::From(Seq(7)), false).expect("taken back");
    assert_eq!(report.beyond, Vec::<String>::new());
    ending.join().expect("no panic").expect("recorded");
}

/// Regression: a rewind could not restore the contents of a directory that a command had replaced with a link to
/// another directory. They waited until the same names in the link's target were free, but those files are unrelated.
#[test]
fn a_directory_replaced_by_a_symlink_is_restored_with_its_contents() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/b; echo mine > a/b/c");
    let before = bench.tree();
    bench.command(1, || bench.sh("mkdir -p d; rm -r a; ln -s d a; mkdir d/b; echo other > a/b/e"));
    let after = bench.tree();
    bench.rewind(1);
    assert_eq!(bench.tree(), before);
    bench.undo();
    assert_eq!(bench.tree(), after);
}

/// Regression: a command renamed a directory over an empty one or over a file, so its new path was already known. Its
/// contents counted as older than the command, because renaming a directory does not change their timestamps: a rewind
/// left them at the new path and also restored them at the old one.
#[test]
fn a_rewind_restores_directories_that_were_renamed_over_others() {
    for there in ["mkdir b", "mkdir -p b/c; rmdir b/c", "echo file > b", "ln -s a b"] {
        let bench = Bench::new();
        bench.sh(&format!("mkdir -p a/below; echo mine > a/file; echo too > a/below/file; {there}"));
        // The session has scanned all of it.
        bench.command(1, || {});
        bench.age();
        let before = bench.tree();
        bench.command(2, || bench.sh("[ -d b ] && [ ! -L b ] || rm b; mv -T a b"));
        let after = bench.tree();
        let report = bench.rewind(2);
        assert_eq!((&report.conflicts, &report.failures), (&Vec::new(), &Vec::new()), "{there}");
        assert_eq!(bench.tree(), before, "{there}");
        bench.undo();
        assert_eq!(bench.tree(), after, "{there}");
    }
}

/// An action of a command.
#[derive(Clone, Debug)]
enum Deed {
    Write(u8, Vec<u8>),
    Append(u8),
    Remove(u8),
    Move(u8, u8),
    Mode(u8, u32),
    Link(u8, u8),
    Directory(u8),
}

fn place(root: &Path, name: u8) -> PathBuf {
    // Few names, so that actions collide: a path may have a file, a directory or a link as its parent.
    let parts = ["a", "b", "c"];
    let at = |digit: u8| parts[usize::from(digit % 3)];
    match name % 3 {
        0 => root.join(at(name / 3)),
        1 => root.join(at(name / 3)).join(at(name / 9)),
        _ => root.join(at(name / 3)).join(at(name / 9)).join(at(name / 27)),
    }
}

/// Performs the action if possible, below the root, where links lead only to names inside it.
fn act(root: &Path, deed: &Deed) {
    let real = |path: &PathBuf| {
        path.parent()
            .and_then(|parent| parent.canonicalize().ok())
            .is_some_and(|parent| parent.starts_with(root))
    };
    let make = |path: &PathBuf| {
        path.parent().map(|parent| fs::create_dir_all(parent).is_ok()).unwrap_or_default() && real(path)
    };
    match deed {
        Deed::Write(name, bytes) => {
            let path = place(root, *name);
            if make(&path) {
                fs::write(path, bytes).ok();
            }
        }
        Deed::Append(name) => {
            let path = place(root, *name);
            let text = fs::read(&path).unwrap_or_default();
            if real(&path) && path.exists() {
                fs::write(path, [text, b"more".to_vec()].concat()).ok();
            }
        }
        Deed::Remove(name) => {
            let path = place(root, *name);
            if real(&path) {
                fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).ok();
            }
        }
        Deed::Move(from, to) => {
            let (from, to) = (place(root, *from), place(root, *to));
            if real(&from) && real(&to) {
                fs::rename(from, to).ok();
            }
        }
        Deed::Mode(name, mode) => {
            let path = place(root, *name);
            if real(&path) && fs::symlink_metadata(&path).is_ok_and(|found| !found.is_symlink()) {
                // A directory that its owner cannot enter cannot be scanned either.
                fs::set_permissions(path, Permissions::from_mode(*mode | 0o700)).ok();
            }
        }
        Deed::Link(name, to) => {
            let path = place(root, *name);
            if real(&path) {
                symlink(place(root, *to), path).ok();
            }
        }
        Deed::Directory(name) => drop(fs::create_dir_all(place(root, *name)).ok()),
    }
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let name = || 0..81u8;
    let deed = prop_oneof![
        4 => (name(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(name, bytes)| Deed::Write(name, bytes)),
        2 => name().prop_map(Deed::Append),
        2 => name().prop_map(Deed::Remove),
        2 => (name(), name()).prop_map(|(from, to)| Deed::Move(from, to)),
        2 => (name(), 0..0o100u32).prop_map(|(name, mode)| Deed::Mode(name, mode)),
        1 => (name(), name()).prop_map(|(name, to)| Deed::Link(name, to)),
        1 => name().prop_map(Deed::Directory),
    ];
    prop::collection::vec(deed, 0..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_rewind_restores_any_tree_byte_for_byte(
        beginning in deeds(),
        turns in prop::collection::vec((deeds(), any::<bool>()), 1..4),
        back in any::<prop::sample::Index>(),
    ) {
        let bench = Bench::new();
        let root = bench.root();
        beginning.iter().for_each(|deed| act(&root, deed));
        let mut trees = vec![bench.tree()];
        for (turn, (deeds, restarts)) in (1u64..).zip(&turns) {
            bench.command(turn * 10, || deeds.iter().for_each(|deed| act(&root, deed)));
            trees.push(bench.tree());
            if *restarts {
                bench.checkpoints.release().expect("let go");
            }
        }
        let back = back.index(turns.len());
        let report = bench.rewind((back as u64 + 1) * 10);
        prop_assert_eq!((&report.conflicts, &report.failures), (&Vec::new(), &Vec::new()));
        prop_assert_eq!(&bench.tree(), &trees[back]);
        let report = bench.undo();
        prop_assert_eq!((&report.conflicts, &report.failures), (&Vec::new(), &Vec::new()));
        prop_assert_eq!(&bench.tree(), trees.last().expect("there is one"));
    }
}

/// Prints the duration of scans; run manually, because tests do not assert times.
#[test]
#[ignore = "it measures, and asserts nothing"]
fn time_scans_of_several_workspace_sizes() {
    for files in [1_000, 10_000] {
        let bench = Bench::new();
        for nth in 0..files {
            bench.write(&format!("d{}/f{nth}.rs", nth / 50), &format!("fn f{nth}() {{}}\n").repeat(300));
        }
        let time = |what: &str, work: &dyn Fn()| {
            let began = std::time::Instant::now();
            work();
            eprintln!("{files} files of 5 KB: {what} {:?}", began.elapsed());
        };
        time("first command, before and behind", &|| bench.command(10, || {}));
        bench.tick();
        time("next command, before and behind", &|| bench.command(20, || {}));
        time("next command, before and behind", &|| bench.command(30, || bench.write("d0/f0.rs", "changed")));
        time("a file tool", &|| bench.tool(40, "d1/f60.rs", || bench.write("d1/f60.rs", "changed")));
        time("a rewind of two files", &|| drop(bench.rewind(10)));
        time("a command that changes all", &|| {
            bench.command(50, || bench.sh("for f in d*/*; do echo x >> $f; done"))
        });
        time("a rewind of all", &|| drop(bench.rewind(50)));
    }
}
