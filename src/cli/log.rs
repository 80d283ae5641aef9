//! Logging to one file per day, bounded in size and number. Never logs to stdout or stderr, which belong to the protocol
//! and the editor. With the feature `otel`, spans also go to a configured collector.

#[cfg(feature = "otel")]
mod otel;

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::paths::Paths;

/// Log files that are kept, one per day.
const FILES_MAX: usize = 7;

/// Largest file of a day, in bytes. A busy day has some megabytes; more is the same error over and over.
const DAY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The default log filter. The MCP SDK logs the content of unexpected messages as warnings, which may have secrets.
const FILTER: &str = "epitome=info,rmcp=error,warn";

/// Names modules as they are in the log: `epitome::session`, as it was once written, is the crate `epitome_session`. A
/// target begins with the name in the filter, so `epitome` stands for all crates of Epitome.
fn in_crates(filter: &str) -> String {
    filter.replace("epitome::", "epitome_").replace("epitome_cli", "epitome::cli")
}

/// Starts logging to the file of the day. `EPITOME_LOG` is a filter with the syntax of `RUST_LOG`.
pub fn to_file(paths: &Paths) {
    let wanted = std::env::var("EPITOME_LOG").ok().filter(|filter| !filter.is_empty());
    let parsed = wanted.map(|filter| EnvFilter::try_new(in_crates(&filter)));
    let (filter, fault) = match parsed {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(FILTER), Some(error)),
        None => (EnvFilter::new(FILTER), None),
    };
    let writer = LogFile { directory: paths.log_directory(), file: OnceLock::new() };
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    #[cfg(feature = "otel")]
    let (subscriber, unusable) = match otel::layer() {
        Ok(layer) => (subscriber.with(layer), None),
        Err(error) => (subscriber.with(None), Some(error)),
    };
    // A second call, as in tests, keeps the first subscriber.
    drop(tracing::subscriber::set_global_default(subscriber));
    #[cfg(feature = "otel")]
    if let Some(error) = unusable {
        tracing::warn!(error, "no spans are sent: the collector can't be used as the environment names it");
    }
    if let Some(error) = fault {
        tracing::warn!(%error, "EPITOME_LOG can't be parsed; {FILTER} is used");
    }
}

/// Sends the pending spans to the collector before the process ends.
pub fn flush() {
    #[cfg(feature = "otel")]
    otel::flush();
}

/// Opens the log at the first line, so that it costs nothing at startup. If it can't be opened, lines are dropped:
/// logging must not stop work.
struct LogFile {
    directory: PathBuf,
    file: OnceLock<Option<BoundedAppender>>,
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Box<dyn Write + 'a>;

    fn make_writer(&'a self) -> Self::Writer {
        match self.file.get_or_init(|| BoundedAppender::open(&self.directory)) {
            Some(file) => Box::new(file),
            None => Box::new(io::sink()),
        }
    }
}

/// The appender with the size of the day's file.
struct BoundedAppender {
    appender: RollingFileAppender,
    directory: PathBuf,
    /// The day whose file is known to be private, in days since the Unix epoch.
    private_day: AtomicU64,
    day: Mutex<Day>,
}

impl BoundedAppender {
    fn open(directory: &Path) -> Option<BoundedAppender> {
        // The appender would report a missing directory on stderr.
        DirBuilder::new().recursive(true).mode(0o700).create(directory).ok()?;
        let date = today();
        make_private(directory, &date);
        let appender = RollingFileAppender::builder()
            .rotation(Rotation::DAILY)
            .max_log_files(FILES_MAX)
            .filename_prefix("epitome")
            .filename_suffix("log")
            .build(directory)
            .ok()?;
        // What other processes have written today counts too.
        let file = directory.join(format!("epitome.{date}.log"));
        let written = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
        let private_day = AtomicU64::new(day_number());
        Some(BoundedAppender {
            appender,
            directory: directory.to_path_buf(),
            private_day,
            day: Mutex::new(Day { date, written }),
        })
    }
}

impl Write for &BoundedAppender {
    /// Expects complete lines, as the formatter writes them.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let room = self.day.lock().unwrap_or_else(PoisonError::into_inner).take(today, line.len());
        let now = day_number();
        if self.private_day.swap(now, Ordering::Relaxed) != now {
            make_private(&self.directory, &today());
        }
        let mut file = self.appender.make_writer();
        match room {
            RoomLeft::Fits => file.write_all(line)?,
            RoomLeft::Last => writeln!(
                file,
                "The log of this day has {} MiB: what process {} has to say today is left out from here on.",
                DAY_BYTES_MAX / 1024 / 1024,
                std::process::id()
            )?,
            RoomLeft::None => {}
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.appender.make_writer().flush()
    }
}

/// Creates the file of a day before the appender does, which would let others read it. If that fails, the directory still
/// keeps them out.
fn make_private(directory: &Path, date: &str) {
    let file = directory.join(format!("epitome.{date}.log"));
    if let Ok(file) = OpenOptions::new().append(true).create(true).mode(0o600).open(file) {
        // One of an earlier version.
        drop(file.set_permissions(Permissions::from_mode(0o600)));
    }
}

/// Today in days since the Unix epoch, which costs less than the date as text.
fn day_number() -> u64 {
    const DAY_S: u64 = 24 * 60 * 60;
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY_S)
}

/// The date in the name of the appender's file, in UTC.
fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

/// A day and the size of its file in bytes.
struct Day {
    date: String,
    written: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum RoomLeft {
    Fits,
    /// It is the first line that does not fit.
    Last,
    None,
}

impl Day {
    /// Whether a line of this many bytes fits into the day's file.
    fn take(&mut self, today: impl Fn() -> String, bytes: usize) -> RoomLeft {
        let was_full = self.written > DAY_BYTES_MAX;
        self.written = self.written.saturating_add(bytes as u64);
        if self.written <= DAY_BYTES_MAX {
            return RoomLeft::Fits;
        }
        // Checked only when the file is full, so that not every line needs the date. Lines written after midnight until
        // then count for the wrong day, which at most makes the next file smaller.
        let date = today();
        if date != self.date {
            *self = Day { date, written: bytes as u64 };
            return RoomLeft::Fits;
        }
        if was_full { RoomLeft::None } else { RoomLeft::Last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_all_crates_or_one() {
        assert_eq!(in_crates("epitome::session=debug,warn"), "epitome_session=debug,warn");
        assert_eq!(in_crates("epitome=debug,epitome::cli=info"), "epitome=debug,epitome::cli=info");
    }

    #[test]
    fn a_day_that_is_full_says_so_once_and_the_next_day_has_room_again() {
        let date = |date: &'static str| move || date.to_owned();
        let mut day = Day { date: "2026-01-01".to_owned(), written: DAY_BYTES_MAX - 10 };
        assert_eq!(day.take(date("2026-01-01"), 10), RoomLeft::Fits);
        assert_eq!(day.take(date("2026-01-01"), 10), RoomLeft::Last);
        assert_eq!(day.take(date("2026-01-01"), 10), RoomLeft::None);
        assert_eq!(day.take(date("2026-01-02"), 10), RoomLeft::Fits);
        assert_eq!(day.written, 10);
    }

    #[test]
    fn lines_go_to_the_file_of_the_day_until_it_is_full() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let file = BoundedAppender::open(home.path()).expect("a log");
        (&file).write_all(b"one\n").expect("room");
        let path = home.path().join(format!("epitome.{}.log", today()));
        let mode = std::fs::metadata(&path).expect("the appender names its file so").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "nobody else can read it, not even where the directory is moved");
        // At the next midnight the appender would create the next file.
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
        file.private_day.store(0, Ordering::Relaxed);
        (&file).write_all(b"midnight\n").expect("room");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        file.day.lock().expect("nothing panicked").written = DAY_BYTES_MAX;
        (&file).write_all(b"two\n").expect("room");
        (&file).write_all(b"three\n").expect("room");
        let text = std::fs::read_to_string(home.path().join(format!("epitome.{}.log", today())));
        let text = text.expect("the appender names its file so");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines.len()), ("one", 3), "{text}");
        assert!(lines[2].contains("is left out from here on"), "{text}");
    }
}
