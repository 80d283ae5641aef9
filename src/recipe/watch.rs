//! Notifies sessions of changes in their recipe folders. One watcher per process; folders shared by several
//! sessions are watched once.
//!
//! It reads no files and has no timer: a burst of events causes one call, because the next call comes only
//! after the session announced that it is about to read again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use notify::{Config, EventKindMask, RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;

/// Maximum folders watched per session: each is one of the few thousand watches that the system grants a user
/// for all programs.
pub const FOLDERS_MAX: usize = 256;

/// The changes that a session is interested in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchPlan {
    /// Existing folders; each is watched non-recursively.
    pub directories: Vec<PathBuf>,
    /// The relevant roots, existing or not. An event counts if its path is at, below or above one of them.
    pub places: Vec<PathBuf>,
}

impl WatchPlan {
    /// Whether a change of this path can affect the catalog.
    pub fn concerns(&self, path: &Path) -> bool {
        self.places.iter().any(|place| path.starts_with(place) || place.starts_with(path))
    }
}

/// Which folders exist, for a plan: each is looked at once, and none below a missing one.
#[derive(Default)]
pub struct ExistingFolders(BTreeMap<PathBuf, bool>);

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
    /// Never locked by the watcher's own thread, because `watch` blocks on that thread.
    armed: Mutex<Armed>,
    interested: Arc<Mutex<Vec<Weak<Interest>>>>,
}

#[derive(Default)]
struct Armed {
    watcher: Option<RecommendedWatcher>,
    /// Number of registrations per folder.
    folders: BTreeMap<PathBuf, usize>,
}

struct Interest {
    plan: Mutex<WatchPlan>,
    notified: AtomicBool,
    changed: Box<dyn Fn() + Send + Sync>,
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
    ) -> Result<Registration, String> {
        if self.is_disabled {
            return Err("recipe folders are not watched".to_owned());
        }
        let mut armed = self.shared.armed.lock();
        if armed.watcher.is_none() {
            let interested = Arc::clone(&self.shared.interested);
            // Not what is only opened and read: each program that starts opens files in /etc.
            let kinds = Config::default().with_event_kinds(EventKindMask::CORE);
            let watcher = RecommendedWatcher::new(move |event| on_event(&interested, event), kinds);
            armed.watcher = Some(watcher.map_err(|error| format!("cannot watch recipe folders: {error}"))?);
        }
        drop(armed);
        let (plan_before, notified) = (Mutex::default(), AtomicBool::new(false));
        let interest = Arc::new(Interest { plan: plan_before, notified, changed: Box::new(changed) });
        let mut interested = self.shared.interested.lock();
        interested.retain(|known| known.strong_count() > 0);
        interested.push(Arc::downgrade(&interest));
        drop(interested);
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
                tracing::warn!(%error, "what changes on disk shows at the next session");
                None
            }
        }
    }

    /// Number of folders currently watched, for all sessions.
    pub fn folders(&self) -> usize {
        self.shared.armed.lock().folders.len()
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
        let mut armed = self.shared.armed.lock();
        let old = std::mem::replace(&mut *self.interest.plan.lock(), plan.clone());
        // New folders first, so that a folder in both plans is watched without interruption.
        for folder in distinct(&plan) {
            armed.want(folder);
        }
        for folder in distinct(&old) {
            armed.release(&folder);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A call in progress may still arrive; it finds a session that no longer listens.
        self.renew(WatchPlan::default());
    }
}

fn distinct(plan: &WatchPlan) -> BTreeSet<PathBuf> {
    plan.directories.iter().take(FOLDERS_MAX).cloned().collect()
}

impl Armed {
    fn want(&mut self, folder: PathBuf) {
        // Also for a folder that is watched already: after the folder was removed and recreated, the old
        // watch is dead, and watching a live one twice has no effect.
        if let Some(watcher) = &mut self.watcher
            && let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive)
        {
            tracing::debug!(folder = %folder.display(), %error, "a recipe folder cannot be watched");
        }
        *self.folders.entry(folder).or_default() += 1;
    }

    fn release(&mut self, folder: &Path) {
        let Some(count) = self.folders.get_mut(folder) else { return };
        *count -= 1;
        if *count == 0 {
            self.folders.remove(folder);
            if let Some(watcher) = &mut self.watcher {
                // Fails for a removed folder, whose watch is already gone.
                let _ = watcher.unwatch(folder);
            }
        }
    }
}

fn on_event(interested: &Mutex<Vec<Weak<Interest>>>, event: notify::Result<notify::Event>) {
    let event = match event {
        Ok(event) => event,
        Err(error) => {
            tracing::debug!(%error, "the watcher of recipe folders reports an error");
            return;
        }
    };
    // After `need_rescan`, the system dropped events: anything may have changed.
    let concerns =
        |plan: &WatchPlan| event.need_rescan() || event.paths.iter().any(|path| plan.concerns(path));
    let interested: Vec<Arc<Interest>> = interested.lock().iter().filter_map(Weak::upgrade).collect();
    for interest in interested {
        if concerns(&interest.plan.lock()) && !interest.notified.swap(true, Ordering::SeqCst) {
            (interest.changed)();
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
        WatchPlan { directories: vec![folder.to_path_buf()], places: vec![folder.to_path_buf()] }
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
        let plan = WatchPlan { directories: vec![root.path().to_path_buf()], places: vec![recipes.clone()] };
        let registration = watch.register(plan, news_to(tell)).expect("it watches");
        std::fs::create_dir_all(&recipes).expect("directories can be made");
        notified.recv_timeout(PATIENCE).expect("the folder above says that something came");

        registration.about_to_read();
        registration.renew(WatchPlan { directories: vec![recipes.clone()], places: vec![recipes.clone()] });
        std::fs::write(recipes.join("a.md"), "1").expect("files can be written");
        notified.recv_timeout(PATIENCE).expect("the new folder is watched");
    }
}
