//! A session's checkpoints: recording changes of files around calls, and reporting rewinds (`/rewind`, `/checkpoints`).
//! The rewind of files itself is in the crate `checkpoint`.

use std::path::{Path, PathBuf};

use tokio::task::JoinHandle;

use super::NoticeSeverity;
use super::background::BackgroundResult;
use super::core::Core;
use epitome_checkpoint::{AffectedFiles, Checkpoints, RewindReport};
use epitome_platform::blocking;
use epitome_thread::visible::visible_line;
use epitome_thread::{Change, Origin};
use epitome_tools::Access;

/// The source of notes about rewound files in the log. No hook can have this name, because a hook is named by its file.
pub(super) const BY: &str = "/rewind";

/// Maximum number of files named in one entry of the log.
const FILES_NAMED_MAX: usize = 1_000;

/// Files named in the message for the model.
const FILES_TOLD_MAX: usize = 50;

/// The files to record around one call.
pub(super) struct CallCheckpoint {
    checkpoints: Checkpoints,
    roots: Vec<PathBuf>,
    what: AffectedFiles,
}

impl Core {
    /// Returns what to record around a call with this access; `None` if the call changes no file.
    pub(super) fn call_checkpoint(&self, access: Option<&Access>) -> Option<CallCheckpoint> {
        let what = match access {
            Some(Access::Write(paths)) => AffectedFiles::Files(paths.clone()),
            Some(Access::Command { .. } | Access::External { .. }) => AffectedFiles::Anything,
            Some(Access::Read(_) | Access::Nothing | Access::Remember(_) | Access::Fetch { .. }) | None => {
                return None;
            }
        };
        let checkpoints = self.services.checkpoints.clone()?;
        // A child's changes belong to the turn that started it.
        if !self.lineage.is_child() {
            checkpoints.begin_turn(self.thread.turn_start(self.thread.next_seq()));
        }
        Some(CallCheckpoint { checkpoints, roots: self.roots(), what })
    }

    pub(super) fn roots(&self) -> Vec<PathBuf> {
        std::iter::once(&self.workspace.cwd).chain(&self.workspace.directories).cloned().collect()
    }

    /// Warns the user about changes that could not be recorded. Those of a child are reported by its parent: the user sees
    /// no notices of a child.
    pub(super) fn report_checkpoint_errors(&mut self) {
        if self.lineage.is_child() {
            return;
        }
        let troubles =
            { self.services.checkpoints.iter() }.flat_map(Checkpoints::take_troubles).collect::<Vec<_>>();
        for trouble in troubles {
            self.notify(
                NoticeSeverity::Warning,
                format!("Changes by this call may not be undoable: {trouble}."),
            );
        }
    }

    /// Reports a rewind that an earlier process completed or only began, without an entry in the log.
    pub(super) fn report_late_rewind(&mut self, report: &RewindReport) {
        let is_it = |change: &Change| matches!(change, Change::FilesRewound { rewind, .. } if Some(*rewind) == report.number);
        if self.thread.entries().iter().any(|entry| is_it(&entry.change)) {
            // The process ended before it could mark the rewind as reported.
            return self.mark_reported(report);
        }
        let mut changes = self.files_rewound(report, false);
        let failed = report.failures.len();
        let text = match failed {
            0 => "An interrupted rewind of files was completed. The conversation stays as it is.".to_owned(),
            _ => format!("An interrupted rewind of files was completed, except for {failed} files."),
        };
        changes.push(self.note(text));
        for change in changes {
            // It is reported again when the log is writable.
            if self.commit(change).is_err() {
                return;
            }
        }
        self.mark_reported(report);
    }

    /// The entries that record a rewind of files in the log and report it to the model.
    pub(super) fn files_rewound(&mut self, report: &RewindReport, undo: bool) -> Vec<Change> {
        let Some(rewind) = report.number else { return Vec::new() };
        let named = report.changed.iter().take(FILES_NAMED_MAX);
        let more = report.changed.len().saturating_sub(FILES_NAMED_MAX);
        let left = report.conflicts.len() + report.failures.len();
        let rewound = Change::FilesRewound {
            turn: report.turns.first().copied().unwrap_or_default(),
            rewind,
            undo,
            // A path that is not UTF-8 can't be stored unchanged.
            files: named.map(|(path, _)| PathBuf::from(path.to_string_lossy().into_owned())).collect(),
            more: u32::try_from(more).unwrap_or(u32::MAX),
            left: u32::try_from(left).unwrap_or(u32::MAX),
        };
        vec![rewound, self.note_for_model(model_line(&self.shown_paths(report), undo))]
    }

    pub(super) fn note_for_model(&mut self, text: String) -> Change {
        Change::Said { message: self.message(text), origin: Origin::Context { by: BY.to_owned() } }
    }

    /// Marks a rewind as reported once the log is on disk. If that fails, it is reported again at the next start.
    pub(super) fn mark_reported(&mut self, report: &RewindReport) {
        let (Some(number), Some(checkpoints)) = (report.number, self.services.checkpoints.clone()) else {
            return;
        };
        let session = self.id().clone();
        let syncer = self.log.syncer();
        let marking = async move {
            let synced = syncer.sync().await;
            if synced.is_ok()
                && let Err(error) = blocking::run(move || checkpoints.mark_reported(number)).await
            {
                tracing::warn!(%session, %error, "a rewind can't be marked as reported");
            }
            synced
        };
        self.start(marking, BackgroundResult::Synced);
    }

    /// The paths of a report as displayed to the user.
    pub(super) fn shown_paths(&self, report: &RewindReport) -> Vec<(String, &'static str)> {
        let shown = self.shown_path();
        report.changed.iter().map(|(path, verb)| (shown(path), *verb)).collect()
    }

    /// Returns a function that displays a path, relative to the working directory if possible. Resolves the working
    /// directory's symbolic links once.
    pub(super) fn shown_path(&self) -> impl Fn(&Path) -> String + use<'_> {
        let real = self.workspace.cwd.canonicalize().ok();
        move |path| {
            let shown = match real.as_ref().and_then(|real| path.strip_prefix(real).ok()) {
                Some(below) if !below.as_os_str().is_empty() => below.display().to_string(),
                Some(_) | None => self.workspace.display(path),
            };
            visible_line(&shown).into_owned()
        }
    }

    /// Releases the resources kept for further commands. Does nothing in a child, whose checkpoints are its parent's.
    pub(super) fn release_checkpoints(&self) -> impl Future<Output = ()> + Send + use<> {
        let own = self.services.checkpoints.clone().filter(|_| !self.lineage.is_child());
        let (checkpoints, session) = (own.filter(Checkpoints::exist), self.id().clone());
        async move {
            let Some(checkpoints) = checkpoints else { return };
            let rested = blocking::start(move || checkpoints.release()).await;
            if let Ok(Err(error)) = rested {
                tracing::warn!(%session, %error, "checkpoints that are not needed could not be let go");
            }
        }
    }
}

/// The line that informs the model about restored files.
fn model_line(changed: &[(String, &'static str)], undo: bool) -> String {
    let named: Vec<String> =
        changed.iter().take(FILES_TOLD_MAX).map(|(path, verb)| format!("{path} ({verb})")).collect();
    let more = match changed.len().saturating_sub(FILES_TOLD_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let did = match undo {
        false => "The user reverted changes to files",
        true => "The user undid an earlier rewind of files",
    };
    format!("{did} ({BY}): {}{more}. Read them again before you rely on their contents.", named.join(", "))
}

/// Records the files that a call changes while it runs. If that fails, it is reported, and the call runs anyway, with the
/// result of `ready`, for which it waits, too.
pub(super) async fn around<R, F: Future>(
    kept: Option<CallCheckpoint>,
    ready: impl Future<Output = R>,
    run: impl FnOnce(R) -> F,
) -> F::Output {
    let Some(kept) = kept else { return run(ready.await).await };
    let CallCheckpoint { checkpoints, roots, what } = kept;
    let (first, at, before) = (checkpoints.clone(), roots.clone(), what.clone());
    let before = blocking::start(move || first.note(first.before(&at, &before)));
    let mut behind = AfterCall::new(before, move || checkpoints.note(checkpoints.after(&roots, &what)));
    let ((), ready) = tokio::join!(behind.begun(), ready);
    let came_to = run(ready).await;
    behind.now().await;
    came_to
}

/// Work to do after a call, even if the call is cancelled. Never runs before the work that precedes the call has ended,
/// even if the cancel arrives during that work.
struct AfterCall<F: FnOnce() + Send + 'static> {
    before: Option<JoinHandle<()>>,
    work: Option<F>,
}

impl<F: FnOnce() + Send + 'static> AfterCall<F> {
    fn new(before: JoinHandle<()>, work: F) -> AfterCall<F> {
        AfterCall { before: Some(before), work: Some(work) }
    }

    async fn begun(&mut self) {
        if let Some(before) = &mut self.before {
            // The call runs even if that panicked.
            drop(before.await);
        }
        self.before = None;
    }

    async fn now(mut self) {
        if let Some(work) = self.work.take() {
            drop(blocking::start(work).await);
        }
    }
}

impl<F: FnOnce() + Send + 'static> Drop for AfterCall<F> {
    fn drop(&mut self) {
        let (before, Some(work)) = (self.before.take(), self.work.take()) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Some(before) = before {
                    drop(before.await);
                }
                drop(blocking::start(work).await);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use parking_lot::Mutex;

    use super::*;

    /// A call cancelled while the workspace was being recorded had its end recorded before its beginning: it counted as
    /// running forever, and every rewind waited for it.
    #[tokio::test]
    async fn a_call_that_is_cancelled_while_it_begins_ends_behind_its_beginning() {
        let events = Arc::new(Mutex::new(Vec::new()));
        let (go, wait) = mpsc::channel();
        let (first, second) = (events.clone(), events.clone());
        let before = tokio::task::spawn_blocking(move || {
            wait.recv().expect("the test lets it go");
            first.lock().push("before");
        });
        let (done, ended) = tokio::sync::oneshot::channel();
        let behind = AfterCall::new(before, move || {
            second.lock().push("behind");
            done.send(()).expect("it is waited for");
        });
        drop(behind);
        go.send(()).expect("it waits");
        ended.await.expect("it is recorded");
        assert_eq!(*events.lock(), ["before", "behind"]);
    }

    #[test]
    fn the_model_is_informed_in_one_line() {
        let line = model_line(&[("a.rs".to_owned(), "put back"), ("b".to_owned(), "deleted")], false);
        assert_eq!(
            line,
            "The user reverted changes to files (/rewind): a.rs (put back), b (deleted). Read them again \
             before you rely on their contents."
        );
        let many: Vec<(String, &str)> = (0..60).map(|nth| (nth.to_string(), "deleted")).collect();
        assert!(model_line(&many, true).contains("49 (deleted) and 10 more."));
    }
}
