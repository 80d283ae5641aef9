//! Reports that an entry of a directory was replaced or removed while a process runs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Bytes of events per read.
const EVENTS_BYTES: usize = 4096;

/// Interval between comparisons if there are no events.
const GLANCE_EVERY: Duration = Duration::from_millis(10);

/// Watches entries from its creation on: what happens until the first `wait` is not missed.
#[derive(Debug)]
pub struct EntryWatch {
    /// `None` if there are no events: a user's watches are limited, and a command could use them up.
    changes: Option<OwnedFd>,
    /// The directories and their watched names, by the number of the directory's watch.
    names: BTreeMap<i32, (PathBuf, Vec<OsString>)>,
    /// The paths and the identities of their targets, in case there are no events or the kernel drops some.
    before: Vec<(PathBuf, Option<(u64, u64)>)>,
}

/// The result of `wait`.
#[derive(Debug, PartialEq, Eq)]
pub enum EntryNews {
    Quiet,
    /// The path when the watch began.
    Replaced(PathBuf),
    /// The process has ended; what was replaced since doesn't matter.
    Ended,
}

impl EntryWatch {
    /// Paths without a parent are skipped.
    pub fn new<'a>(paths: impl Iterator<Item = &'a Path>) -> EntryWatch {
        let before = paths.map(|path| (path.to_path_buf(), identity(path))).collect();
        let mut watch = EntryWatch { changes: None, names: BTreeMap::new(), before };
        let changes = watch.subscribe();
        watch.changes =
            changes.inspect_err(|error| tracing::warn!(%error, "no events of protected files")).ok();
        watch
    }

    fn subscribe(&mut self) -> io::Result<OwnedFd> {
        let changes = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let kinds = WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        for (path, _) in &self.before {
            let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { continue };
            let number = add_watch(&changes, directory, kinds)?;
            let (_, names) =
                self.names.entry(number).or_insert_with(|| (directory.to_path_buf(), Vec::new()));
            names.push(name.to_owned());
        }
        Ok(changes)
    }

    /// Waits until an entry is replaced, or the process has ended. Blocks.
    pub fn wait(&self, process: &OwnedFd, at_most: Duration) -> io::Result<EntryNews> {
        let until = Instant::now() + at_most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let [has_ended, _] = match &self.changes {
                Some(changes) => ready([process, changes], left)?,
                None => ready([process, process], left.min(GLANCE_EVERY))?,
            };
            if has_ended {
                return Ok(EntryNews::Ended);
            }
            let replaced = match &self.changes {
                Some(changes) => self.replaced_by_events(changes)?,
                None => self.replaced(),
            };
            if let Some(path) = replaced {
                // The caller itself may replace entries as soon as the process has ended.
                let [has_ended, _] = ready([process, process], Duration::ZERO)?;
                return Ok(if has_ended { EntryNews::Ended } else { EntryNews::Replaced(path) });
            }
            // The command may cause other events all the time.
            if until <= Instant::now() {
                return Ok(EntryNews::Quiet);
            }
        }
    }

    /// Compares the paths with what they led to.
    fn replaced(&self) -> Option<PathBuf> {
        let mut replaced = self.before.iter().filter(|(path, before)| identity(path) != *before);
        replaced.next().map(|(path, _)| path.clone())
    }

    /// Reads some of the pending events.
    fn replaced_by_events(&self, changes: &OwnedFd) -> io::Result<Option<PathBuf>> {
        let mut space = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = Reader::new(changes, &mut space);
        loop {
            let event = match events.next() {
                Err(Errno::AGAIN) => return Ok(None),
                other => other?,
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW)
                && let Some(path) = self.replaced()
            {
                return Ok(Some(path));
            }
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            if let Some((directory, names)) = self.names.get(&event.wd())
                && let Some(name) = names.iter().find(|known| name == Some(known.as_os_str()))
            {
                return Ok(Some(directory.join(name)));
            }
            if events.is_buffer_empty() {
                return Ok(None);
            }
        }
    }
}

/// A descriptor that becomes readable when the process ends.
pub fn descriptor_of(process: Pid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(process, PidfdFlags::empty())?)
}

/// Waits until one of them is readable, and returns which ones are.
fn ready(descriptors: [&OwnedFd; 2], at_most: Duration) -> io::Result<[bool; 2]> {
    let mut polled = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    let at_most = Timespec::try_from(at_most).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&at_most)) {
        Ok(_) => Ok(polled.map(|descriptor| !descriptor.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; 2]),
        Err(error) => Err(error.into()),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_watched_entries_count_and_only_while_the_process_runs() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| directory.path().join(name);
        let mut process = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat runs");
        let running = Pid::from_raw(process.id().cast_signed()).expect("a number");
        let running = descriptor_of(running).expect("it runs");
        let watch = |name: &str| {
            fs::write(path(name), "x").expect("written");
            EntryWatch::new(std::iter::once(path(name).as_path()))
        };
        let news = |watch: &EntryWatch| watch.wait(&running, Duration::from_millis(1)).expect("it polls");
        let saved = |name: &str| {
            fs::write(path("new"), "y").expect("written");
            fs::rename(path("new"), path(name)).expect("replaced");
        };

        let kept = watch("kept");
        fs::write(path("kept"), "z").expect("changed in place");
        saved("other");
        assert_eq!(news(&kept), EntryNews::Quiet);
        saved("kept");
        assert_eq!(news(&kept), EntryNews::Replaced(path("kept")));
        let removed = watch("removed");
        fs::remove_file(path("removed")).expect("removed");
        assert_eq!(news(&removed), EntryNews::Replaced(path("removed")));
        let moved = watch("moved");
        fs::rename(path("moved"), path("away")).expect("moved");
        assert_eq!(news(&moved), EntryNews::Replaced(path("moved")));

        // A command used up the user's watches.
        let compared = EntryWatch { changes: None, ..watch("compared") };
        saved("other");
        assert_eq!(news(&compared), EntryNews::Quiet);
        saved("compared");
        assert_eq!(news(&compared), EntryNews::Replaced(path("compared")));

        let late = watch("late");
        drop(process.stdin.take());
        process.wait().expect("it ends");
        saved("late");
        assert_eq!(news(&late), EntryNews::Ended);
    }
}
