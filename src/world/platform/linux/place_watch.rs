//! Reports that entries of a directory may no longer be where they were.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::net::unix::pipe::Receiver;

use super::directory_watch::{EVENTS_BYTES, is_local};

/// Watches a directory, and the ones above it, without a timer.
#[derive(Debug)]
pub struct PlaceWatch(Receiver);

impl PlaceWatch {
    /// Fails if changes may go unreported, as on a network file system. Needs a runtime.
    pub fn new(directory: &Path) -> io::Result<PlaceWatch> {
        if !is_local(directory)? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let changes = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let moved = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
        let own = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO | WatchFlags::MODIFY;
        add_watch(&changes, directory, moved | own)?;
        for above in directory.ancestors().skip(1) {
            // It fails for directories that only others may read, which this user can't move either.
            let _ = add_watch(&changes, above, moved);
        }
        // The descriptor is no pipe, but it becomes readable in the same way.
        Receiver::from_file_unchecked(File::from(changes)).map(PlaceWatch)
    }

    /// Waits until an entry is written, renamed or removed, or the directory or one above it is moved or removed.
    pub async fn changed(&self) -> io::Result<()> {
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut [0; EVENTS_BYTES]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The caller looks for itself, whatever the events say.
                read => return read.map(drop),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Regression: an idle daemon woke up every three seconds to see whether its sockets were still in place.
    #[tokio::test]
    async fn what_takes_the_directory_or_its_entries_away_is_reported() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let directory = parent.path().join("above/run");
        let above = parent.path().join("above");
        type Step<'a> = (&'a str, &'a dyn Fn() -> io::Result<()>);
        let steps: [Step; 5] = [
            ("an entry is removed", &|| std::fs::remove_file(directory.join("socket"))),
            ("an entry is written", &|| std::fs::write(directory.join("socket"), "other")),
            ("an entry is replaced", &|| {
                std::fs::rename(parent.path().join("new"), directory.join("socket"))
            }),
            ("all is removed", &|| std::fs::remove_dir_all(&directory)),
            ("the directory above is moved", &|| std::fs::rename(&above, parent.path().join("moved"))),
        ];
        for (what, step) in steps {
            std::fs::create_dir_all(&directory).expect("created");
            std::fs::write(directory.join("socket"), "one").expect("written");
            std::fs::write(parent.path().join("new"), "two").expect("written");
            let watch = PlaceWatch::new(&directory).expect("a local file system");
            std::fs::read(directory.join("socket")).expect("read");
            assert!(timeout(Duration::ZERO, watch.changed()).await.is_err(), "before {what}");
            step().expect(what);
            timeout(Duration::from_secs(20), watch.changed()).await.expect(what).expect(what);
        }
    }
}
