//! Notifies sessions of changes in their recipe folders. One watcher per process; folders shared by several
//! sessions are watched once.
//!
//! It reads no files and has no timer: a burst of events causes one call, because the next call comes only
//! after the session announced that it is about to read again.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use notify::event::{EventKind, ModifyKind};
use notify::{Config, EventKindMask, PathOp, RecommendedWatcher, Watcher as _};
use parking_lot::Mutex;

/// Maximum folders watched per session: each is one of the few thousand watches that the system grants a user
/// for all programs.
pub const FOLDERS_MAX: usize = 256;

/// The changes that a session is interested in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchPlan {
    /// Existing folders; each is watched non-recursively, and none beyond the first `FOLDERS_MAX`.
    pub directories: BTreeSet<PathBuf>,
    /// The relevant roots, existing or not. An event counts if its path is at, below or above one of them.
    pub roots: Vec<PathBuf>,
}

impl WatchPlan {
    /// Whether a change of this path can affect the catalog.
    pub fn concerns(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| path.starts_with(root) || root.starts_with(path))
    }
}

/// Remembers which folders exist, for one plan: each is looked up once, and none below a missing one.
#[derive(Default)]
pub struct ExistingFolders(HashMap<PathBuf, bool>);

impl ExistingFolders {
    pub fn contains(&mut self, folder: &Path) -> bool {
        if let Some(known) = self.0.get(folder) {
            return *known;
        }
        let exists = folder.parent().is_none_or(|parent| self.contains(parent)) && folder.is_dir();
        self.0.insert(folder.to_path_buf(), exists);
        exists
    }

    /// The nearest existing folder of an absolute path: its own, or one above it.
    pub fn nearest(&mut self, path: &Path) -> Option<PathBuf> {
        path.ancestors().find(|folder| self.contains(folder)).map(Path::to_path_buf)
    }
}

/// The watcher of this process. Cheap to clone; nothing runs before the first registration.
#[derive(Clone, Default)]
pub struct RecipeWatch {
    shared: Arc<WatchShared>,
    is_disabled: bool,
}

#[derive(Default)]
struct WatchShared {
    /// Never locked by the watcher's own thread, which answers each change of what is watched.
    watcher: Mutex<Option<RecommendedWatcher>>,
    registered: Arc<WatchRegistry>,
}

/// The state that the watcher's thread uses too: no change of the watched folders waits under these locks.
#[derive(Default)]
struct WatchRegistry {
    interests: Mutex<Vec<Weak<Interest>>>,
    folders: Mutex<HashMap<PathBuf, FolderWatch>>,
}

#[derive(Default)]
struct FolderWatch {
    /// Number of registrations.
    registrations: usize,
    /// There is no watch for this path: the system refused one, or it is that of a folder that was removed or moved.
    is_lost: bool,
}

struct Interest {
    plan: Mutex<WatchPlan>,
    notified: AtomicBool,
    changed: Box<dyn Fn() + Send + Sync>,
}

/// Why changes of recipe folders are not noticed.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("recipe folders are not watched")]
    Disabled,
    #[error("cannot watch recipe folders: {0}")]
    System(#[from] notify::Error),
}

impl RecipeWatch {
    pub fn new() -> RecipeWatch {
        RecipeWatch::default()
    }

    /// A watch without notifications, for simulations, whose only threads come from their seed.
    pub fn disabled() -> RecipeWatch {
        RecipeWatch { is_disabled: true, ..RecipeWatch::default() }
    }

    /// Calls `changed` when something in the plan changes, until the registration is dropped. The call runs on the
    /// watcher's thread: it must only forward the notification and must not use the registration.
    ///
    /// Fails if the system provides no watcher; changes then take effect in the next session.
    pub fn register(
        &self,
        plan: WatchPlan,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> Result<Registration, WatchError> {
        if self.is_disabled {
            return Err(WatchError::Disabled);
        }
        let mut watcher = self.shared.watcher.lock();
        if watcher.is_none() {
            let registered = Arc::clone(&self.shared.registered);
            // Not what is only opened and read: each program that starts opens files in /etc.
            let kinds = Config::default().with_event_kinds(EventKindMask::CORE);
            let started = RecommendedWatcher::new(move |event| registered.on_event(event), kinds);
            *watcher = Some(started?);
        }
        drop(watcher);
        let (plan_before, notified) = (Mutex::default(), AtomicBool::new(false));
        let interest = Arc::new(Interest { plan: plan_before, notified, changed: Box::new(changed) });
        let mut interests = self.shared.registered.interests.lock();
        interests.retain(|known| known.strong_count() > 0);
        interests.push(Arc::downgrade(&interest));
        drop(interests);
        let registration = Registration { shared: Arc::clone(&self.shared), interest };
        registration.renew(plan);
        Ok(registration)
    }

    /// Announces that the watched folders are about to be read: renews a registration or creates the first
    /// one. `None` if the system provides no watcher.
    pub fn about_to_read(
        &self,
        known: Option<Arc<Registration>>,
        plan: WatchPlan,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> Option<Arc<Registration>> {
        if let Some(known) = known {
            known.about_to_read();
            known.renew(plan);
            return Some(known);
        }
        match self.register(plan, changed) {
            Ok(watch) => Some(Arc::new(watch)),
            Err(error) => {
                tracing::warn!(%error, "changes on disk show at the next session");
                None
            }
        }
    }

    /// Number of folders currently watched, for all sessions.
    pub fn folders(&self) -> usize {
        self.shared.registered.folders.lock().len()
    }
}

/// A session's registration; dropping it ends the notifications.
pub struct Registration {
    shared: Arc<WatchShared>,
    interest: Arc<Interest>,
}

impl Registration {
    /// Announces that the disk is about to be read: later changes are reported again. Call it before reading,
    /// or a change in between is lost.
    pub fn about_to_read(&self) {
        self.interest.notified.store(false, Ordering::SeqCst);
    }

    /// Switches to a new plan, since folders may have been created. Call it between `about_to_read` and
    /// reading.
    pub fn renew(&self, plan: WatchPlan) {
        let mut watcher = self.shared.watcher.lock();
        let old = std::mem::replace(&mut *self.interest.plan.lock(), plan.clone());
        let (changes, lost) = self.shared.registered.switch(&old, &plan);
        if let Some(watcher) = watcher.as_mut()
            && !changes.is_empty()
        {
            self.shared.registered.apply(watcher, changes);
            // Nobody was notified of what has changed there so far.
            self.shared.registered.notify_of_regained(lost);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A call in progress may still arrive; it finds a session that no longer listens.
        self.renew(WatchPlan::default());
    }
}

impl WatchRegistry {
    /// Registers the folders of a new plan, and removes those of the old one. Returns what the watcher has to change
    /// (usually nothing, because the sessions of a directory watch the same folders), and the folders among them whose
    /// watch was lost.
    fn switch(&self, old: &WatchPlan, new: &WatchPlan) -> (Vec<PathOp>, Vec<PathBuf>) {
        let mut folders = self.folders.lock();
        let (mut changes, mut lost) = (Vec::new(), Vec::new());
        // New folders first, so that a folder in both plans is watched without interruption.
        for folder in new.directories.iter().take(FOLDERS_MAX) {
            let watched = folders.entry(folder.clone()).or_default();
            watched.registrations += 1;
            let is_lost = std::mem::take(&mut watched.is_lost);
            if is_lost {
                changes.push(PathOp::unwatch(folder));
                lost.push(folder.clone());
            }
            if is_lost || watched.registrations == 1 {
                changes.push(PathOp::watch_non_recursive(folder));
            }
        }
        for folder in old.directories.iter().take(FOLDERS_MAX) {
            let Some(watched) = folders.get_mut(folder) else { continue };
            watched.registrations -= 1;
            if watched.registrations == 0 {
                folders.remove(folder);
                changes.push(PathOp::unwatch(folder));
            }
        }
        (changes, lost)
    }

    /// Has the watcher apply all changes that it can apply. It is asked once for all of them, because its thread
    /// has to wake up for each question.
    fn apply(&self, watcher: &mut RecommendedWatcher, mut changes: Vec<PathOp>) {
        while let Err(stopped) = watcher.update_paths(std::mem::take(&mut changes)) {
            changes = stopped.remaining;
            match stopped.origin {
                Some(PathOp::Watch(folder, _)) => {
                    let error = stopped.source;
                    tracing::debug!(folder = %folder.display(), %error, "a recipe folder cannot be watched");
                    if let Some(watched) = self.folders.lock().get_mut(&folder) {
                        watched.is_lost = true;
                    }
                }
                // The folder was removed, and its watch with it.
                Some(PathOp::Unwatch(_)) => {}
                None => break,
            }
        }
    }

    fn notify_of_regained(&self, mut lost: Vec<PathBuf>) {
        let folders = self.folders.lock();
        lost.retain(|folder| folders.get(folder).is_some_and(|watched| !watched.is_lost));
        drop(folders);
        self.notify(|plan| lost.iter().any(|folder| plan.concerns(folder)));
    }

    fn on_event(&self, event: notify::Result<notify::Event>) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::debug!(%error, "the watcher of recipe folders reports an error");
                return;
            }
        };
        if matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))) {
            for (folder, watched) in &mut *self.folders.lock() {
                watched.is_lost |= event.paths.iter().any(|path| folder.starts_with(path));
            }
        }
        // After `need_rescan`, the system dropped events: anything may have changed.
        let concerns =
            |plan: &WatchPlan| event.need_rescan() || event.paths.iter().any(|path| plan.concerns(path));
        self.notify(concerns);
    }

    fn notify(&self, concerns: impl Fn(&WatchPlan) -> bool) {
        let interests: Vec<Arc<Interest>> = self.interests.lock().iter().filter_map(Weak::upgrade).collect();
        for interest in interests {
            if concerns(&interest.plan.lock()) && !interest.notified.swap(true, Ordering::SeqCst) {
                (interest.changed)();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// How long a test waits for an expected event. Events take microseconds.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A callback that forwards the notification, ignoring that the test may have ended.
    fn news_to(tell: mpsc::Sender<()>) -> impl Fn() + Send + Sync {
        move || {
            let _ = tell.send(());
        }
    }

    fn plan(folder: &Path) -> WatchPlan {
        WatchPlan { directories: BTreeSet::from([folder.to_path_buf()]), roots: vec![folder.to_path_buf()] }
    }

    #[test]
    fn a_change_is_reported_once_until_the_session_reads_again() {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let watch = RecipeWatch::new();
        let (tell, notified) = mpsc::channel();
        let registration = watch.register(plan(folder.path()), news_to(tell)).expect("it watches");
        std::fs::write(folder.path().join("a.md"), "1").expect("files can be written");
        notified.recv_timeout(PATIENCE).expect("the change is notified");

        // Not reported a second time: the other session receives the same event, which proves that it
        // arrived.
        let (tell, other) = mpsc::channel();
        let _second = watch.register(plan(folder.path()), news_to(tell)).expect("it watches");
        std::fs::write(folder.path().join("b.md"), "2").expect("files can be written");
        other.recv_timeout(PATIENCE).expect("the change is notified to the other");
        assert!(notified.try_recv().is_err());

        registration.about_to_read();
        std::fs::write(folder.path().join("c.md"), "3").expect("files can be written");
        notified.recv_timeout(PATIENCE).expect("the next change is notified");
    }

    #[test]
    fn shared_folders_are_released_with_the_last_registration() {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let watch = RecipeWatch::new();
        let first = watch.register(plan(folder.path()), || ()).expect("it watches");
        let second = watch.register(plan(folder.path()), || ()).expect("it watches");
        assert_eq!(watch.folders(), 1);
        drop(first);
        assert_eq!(watch.folders(), 1);
        drop(second);
        assert_eq!(watch.folders(), 0);
    }

    #[test]
    fn a_folder_created_later_is_watched_after_renewal() {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        let recipes = root.path().join(".epitome/recipes");
        let watch = RecipeWatch::new();
        let (tell, notified) = mpsc::channel();
        let plan = WatchPlan {
            directories: BTreeSet::from([root.path().to_path_buf()]),
            roots: vec![recipes.clone()],
        };
        let registration = watch.register(plan, news_to(tell)).expect("it watches");
        std::fs::create_dir_all(&recipes).expect("directories can be made");
        notified.recv_timeout(PATIENCE).expect("the folder above says that something came");

        registration.about_to_read();
        registration.renew(WatchPlan {
            directories: BTreeSet::from([recipes.clone()]),
            roots: vec![recipes.clone()],
        });
        std::fs::write(recipes.join("a.md"), "1").expect("files can be written");
        notified.recv_timeout(PATIENCE).expect("the new folder is watched");
    }

    /// A session that began after `mv recipes old && mkdir recipes` shared the watch of an earlier one, which was on
    /// the moved folder: it missed all changes in the new one.
    #[test]
    fn a_folder_that_was_replaced_is_watched_for_all_sessions() {
        for is_moved in [true, false] {
            let root = tempfile::tempdir().expect("a temporary directory can be made");
            let folder = root.path().join("recipes");
            std::fs::create_dir(&folder).expect("directories can be made");
            let watch = RecipeWatch::new();
            let (first_sender, first_news) = mpsc::channel();
            let first = watch.register(plan(&folder), news_to(first_sender)).expect("it watches");
            match is_moved {
                true => std::fs::rename(&folder, root.path().join("old")),
                false => std::fs::remove_dir(&folder),
            }
            .expect("the folder can go");
            std::fs::create_dir(&folder).expect("directories can be made");
            first_news.recv_timeout(PATIENCE).expect("that it is gone is notified");

            first.about_to_read();
            let (second_sender, second_news) = mpsc::channel();
            let second = watch.register(plan(&folder), news_to(second_sender)).expect("it watches");
            first_news
                .recv_timeout(PATIENCE)
                .expect("the first one reads again, because nobody heard of the new folder");
            first.about_to_read();
            second.about_to_read();
            while first_news.try_recv().is_ok() || second_news.try_recv().is_ok() {}
            std::fs::write(folder.join("a.md"), "1").expect("files can be written");
            for news in [first_news, second_news] {
                news.recv_timeout(PATIENCE).expect("the change in the new folder is notified");
            }
        }
    }
}
