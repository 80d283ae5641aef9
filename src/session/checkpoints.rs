//! A session and its checkpoints: what is recorded around calls, and what `/rewind` and `/checkpoints` do. What a
//! rewind of files does to the disk is decided and done in `checkpoint`.

use std::path::{Path, PathBuf};

use tokio::task::JoinHandle;

use super::NoticeSeverity;
use super::actor::Session;
use super::commands::rewind::model_line;
use super::core::Core;
use super::rounds::text_content;
use super::work::BackgroundResult;
use epitome_checkpoint::{AffectedFiles, CheckpointError, Checkpoints, RewindReport};
use epitome_platform::blocking;
use epitome_thread::{Change, Message, Origin};
use epitome_tools::Access;

/// Who says in the log what became of files. No hook has this name: a hook's is that of a file.
pub(super) const BY: &str = "/rewind";

/// Files that one entry of the log names.
const FILES_NAMED_MAX: usize = 1_000;

/// What is recorded around one call.
pub(super) struct CallCheckpoint {
    checkpoints: Checkpoints,
    roots: Vec<PathBuf>,
    what: AffectedFiles,
}

impl Core {
    /// What has to be recorded around a call that touches this; `None` where it changes no file.
    pub(super) fn call_checkpoint(&self, access: &Result<Access, String>) -> Option<CallCheckpoint> {
        let what = match access {
            Ok(Access::Write(paths)) => AffectedFiles::Files(paths.clone()),
            Ok(Access::Command { .. } | Access::External { .. }) => AffectedFiles::Anything,
            Ok(Access::Read(_) | Access::Nothing | Access::Fetch { .. }) | Err(_) => return None,
        };
        let checkpoints = self.services.checkpoints.clone()?;
        // A child's work is that of the turn that started it.
        if !self.lineage.is_child() {
            checkpoints.begin_turn(self.thread.turn_start(self.thread.next_seq()));
        }
        Some(CallCheckpoint { checkpoints, roots: self.roots(), what })
    }

    pub(super) fn roots(&self) -> Vec<PathBuf> {
        std::iter::once(&self.workspace.cwd).chain(&self.workspace.directories).cloned().collect()
    }

    /// Tells what could not be recorded.
    pub(super) fn report_checkpoint_errors(&mut self) {
        let troubles =
            { self.services.checkpoints.iter() }.flat_map(Checkpoints::take_troubles).collect::<Vec<_>>();
        for trouble in troubles {
            self.notify(
                NoticeSeverity::Warning,
                format!("It may not be possible to undo what a call changes: {trouble}."),
            );
        }
    }

    /// A rewind that the process before this one did, or only began, and did not write into the log.
    fn report_late_rewind(&mut self, report: &RewindReport) {
        let is_it = |change: &Change| matches!(change, Change::FilesRewound { rewind, .. } if Some(*rewind) == report.number);
        if self.thread.entries().iter().any(|entry| is_it(&entry.change)) {
            // The process ended before it could be noted that the log has it.
            return self.mark_reported(report);
        }
        let mut changes = self.files_rewound(report, false);
        let failed = report.failures.len();
        let text = match failed {
            0 => "An interrupted rewind of files was completed. The conversation stays as it is.".to_owned(),
            _ => format!("An interrupted rewind of files was completed, except for {failed} files."),
        };
        changes.push(Change::Noted { message: self.fresh_message(), text });
        for change in changes {
            // It is reported when the log can be written again.
            if self.commit(change).is_err() {
                return;
            }
        }
        self.mark_reported(report);
    }

    /// The entries by which the log, and the model, know of a rewind of files.
    pub(super) fn files_rewound(&mut self, report: &RewindReport, undo: bool) -> Vec<Change> {
        let Some(rewind) = report.number else { return Vec::new() };
        let named = report.changed.iter().take(FILES_NAMED_MAX);
        let more = report.changed.len().saturating_sub(FILES_NAMED_MAX);
        let left = report.conflicts.len() + report.failures.len();
        let rewound = Change::FilesRewound {
            turn: report.turns.first().copied().unwrap_or_default(),
            rewind,
            undo,
            // What is no text can't be stored as a path.
            files: named.map(|(path, _)| PathBuf::from(path.to_string_lossy().into_owned())).collect(),
            more: u32::try_from(more).unwrap_or(u32::MAX),
            left: u32::try_from(left).unwrap_or(u32::MAX),
        };
        vec![rewound, self.note_for_model(model_line(&self.shown_paths(report), undo))]
    }

    pub(super) fn note_for_model(&mut self, text: String) -> Change {
        let message = Message { id: self.fresh_message(), content: text_content(text) };
        Change::Said { message, origin: Origin::Context { by: BY.to_owned() } }
    }

    /// The log tells of it now. Where that can't be noted, it is told of once more at the next start.
    pub(super) fn mark_reported(&mut self, report: &RewindReport) {
        let (Some(number), Some(checkpoints)) = (report.number, self.services.checkpoints.clone()) else {
            return;
        };
        let session = self.id().clone();
        let syncer = self.log.syncer();
        self.background.spawn(async move {
            let synced = syncer.sync().await;
            if synced.is_ok()
                && let Err(error) = blocking::run(move || checkpoints.mark_reported(number)).await
            {
                tracing::warn!(%session, %error, "a rewind can't be marked as reported");
            }
            BackgroundResult::Synced(synced)
        });
    }

    /// The paths of a report as a user would write them here.
    pub(super) fn shown_paths(&self, report: &RewindReport) -> Vec<(String, &'static str)> {
        let shown = self.shown_path();
        report.changed.iter().map(|(path, verb)| (shown(path), *verb)).collect()
    }

    /// How a path is written here. The disk is asked once, whose links these are.
    pub(super) fn shown_path(&self) -> impl Fn(&Path) -> String + use<'_> {
        let real = self.workspace.cwd.canonicalize().ok();
        move |path| match real.as_ref().and_then(|real| path.strip_prefix(real).ok()) {
            Some(below) if !below.as_os_str().is_empty() => below.display().to_string(),
            Some(_) | None => self.workspace.display(path),
        }
    }

    /// Lets go of what is kept for commands to come. Nobody else may have these checkpoints open.
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

impl Session {
    /// Finishes what a process before this one left half done. Prompts wait for it.
    pub(super) fn take_up_checkpoints(&mut self) {
        let Some(checkpoints) = self.core.services.checkpoints.clone() else { return };
        if self.core.lineage.is_child() || !checkpoints.exist() {
            return;
        }
        self.inbox.set_paused(true);
        let roots = self.core.roots();
        self.core.background.spawn(async move {
            BackgroundResult::TakenUp(blocking::start(move || checkpoints.resume(&roots)).await.ok())
        });
    }

    pub(super) fn taken_up(&mut self, reports: Option<Result<Vec<RewindReport>, CheckpointError>>) {
        self.inbox.set_paused(false);
        match reports {
            Some(Ok(reports)) => reports.iter().for_each(|report| self.core.report_late_rewind(report)),
            Some(Err(error)) => {
                self.core.notify(NoticeSeverity::Warning, format!("The checkpoints of files: {error}."))
            }
            None => tracing::error!(session = %self.core.id(), "checkpoints panicked"),
        }
    }
}

/// Records what a call changes while it runs. What can't be recorded is told, and the call runs all the same.
pub(super) async fn around<T>(kept: Option<CallCheckpoint>, run: impl Future<Output = T>) -> T {
    let Some(kept) = kept else { return run.await };
    let CallCheckpoint { checkpoints, roots, what } = kept;
    let (first, at, before) = (checkpoints.clone(), roots.clone(), what.clone());
    let before = blocking::start(move || first.note(first.before(&at, &before)));
    let mut behind = AfterCall::new(before, move || checkpoints.note(checkpoints.after(&roots, &what)));
    behind.begun().await;
    let came_to = run.await;
    behind.now().await;
    came_to
}

/// What is done behind a call, also where it is cancelled and nobody waits for it; never before what is done in
/// front of the call has ended, which a cancel may meet.
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
            // A panic there is no reason not to run.
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
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;

    /// A call that was cancelled while the workspace was still looked at before it had its end recorded first and
    /// its beginning then: it counted as running for ever, and each rewind waited for it.
    #[tokio::test]
    async fn a_call_that_is_cancelled_while_it_begins_ends_behind_its_beginning() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (go, wait) = mpsc::channel();
        let (first, second) = (told.clone(), told.clone());
        let before = tokio::task::spawn_blocking(move || {
            wait.recv().expect("it is told to go");
            first.lock().expect("no panic").push("before");
        });
        let (done, ended) = tokio::sync::oneshot::channel();
        let behind = AfterCall::new(before, move || {
            second.lock().expect("no panic").push("behind");
            done.send(()).expect("it is waited for");
        });
        drop(behind);
        go.send(()).expect("it waits");
        ended.await.expect("it is recorded");
        assert_eq!(*told.lock().expect("no panic"), ["before", "behind"]);
    }
}
