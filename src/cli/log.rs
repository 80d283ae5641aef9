//! Logging to one file per day, bounded in size and number. Never logs to stdout or stderr, which are used by the
//! protocol and the editor. Spans are also sent to a collector, if one is configured.

mod otel;

use epitome_platform::os::{DirBuilderExt, OpenOptionsExt, set_mode};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::paths::Paths;

/// Maximum number of log files that are kept, one per day.
const FILES_MAX: usize = 7;

/// Maximum size of a day's file, in bytes. A busy day has some megabytes; more is the same error repeated.
const DAY_BYTES_MAX: u64 = 64 * 1024 * 1024;

const DAY_S: u64 = 24 * 60 * 60;

/// The default log filter. The MCP SDK logs the content of unexpected messages, which may contain secrets, as
/// warnings.
const FILTER: &str = "epitome=info,rmcp=error,warn";

/// Converts module names in a filter to those in the log: `epitome::session`, the former name, is the crate
/// `epitome_session`. The names in a filter are prefixes of targets, so `epitome` covers all crates of Epitome.
fn in_crates(filter: &str) -> String {
    filter.replace("epitome::", "epitome_").replace("epitome_cli", "epitome::cli")
}

/// Starts logging to the file of the day. `EPITOME_LOG` is a filter with the syntax of `RUST_LOG`; without it, the level of
/// kodelet's variable applies.
pub fn to_file(paths: &Paths) {
    let set = |name| std::env::var(name).ok().filter(|filter| !filter.is_empty());
    let wanted = set("EPITOME_LOG").or_else(|| old_level(&set("KODELET_LOG_LEVEL")?));
    let parsed = wanted.map(|filter| EnvFilter::try_new(in_crates(&filter)));
    let (filter, fault) = match parsed {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(FILTER), Some(error)),
        None => (EnvFilter::new(FILTER), None),
    };
    let writer = LogFile { directory: paths.log_directory(), day: Mutex::default() };
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    let (subscriber, unusable) = match otel::layer(paths) {
        Ok(layer) => (subscriber.with(layer), None),
        Err(error) => (subscriber.with(None), Some(error)),
    };
    // A second call, as in tests, keeps the first subscriber.
    drop(tracing::subscriber::set_global_default(subscriber));
    if let Some(error) = unusable {
        tracing::warn!(
            %error,
            "no spans are sent: the collector can't be used as the environment or `telemetry.endpoint` names it"
        );
    }
    if let Some(error) = fault {
        // Somebody who sets it wants more in the log, and would not look there for the reason why there is none.
        let message = format!("EPITOME_LOG can't be parsed: {error}; {FILTER} is used");
        note!("epitome: {message}");
        tracing::warn!("{message}");
    }
}

/// The level that kodelet calls by this name.
fn old_level(name: &str) -> Option<String> {
    let level = match name.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => "error",
        "warn" | "warning" => "warn",
        "debug" => "debug",
        "trace" => "trace",
        // Also `info`, which is the default.
        _ => return None,
    };
    Some(level.to_owned())
}

/// Sends the pending spans to the collector before the process ends.
pub fn flush() {
    otel::flush();
}

/// Opens the log when the first line is written, so that it costs nothing at startup. If it can't be opened, lines
/// are dropped: logging must not stop work.
struct LogFile {
    directory: PathBuf,
    day: Mutex<Option<Day>>,
}

/// The file of a day, named by its date in UTC.
struct Day {
    /// Days since the Unix epoch, which is cheaper to compare than a date string.
    number: u64,
    file: File,
    /// Size of the file in bytes, including lines of other processes before it was opened.
    written: u64,
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = &'a LogFile;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &LogFile {
    /// Expects complete lines, as the formatter writes them. Never returns errors, because the formatter would print
    /// them on stderr.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        drop(self.write_at(now / DAY_S, line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl LogFile {
    fn write_at(&self, today: u64, line: &[u8]) -> io::Result<()> {
        let mut day = self.day.lock();
        let day = match &mut *day {
            Some(day) if day.number == today => day,
            other => other.insert(Day::open(&self.directory, today)?),
        };
        let was_full = day.written > DAY_BYTES_MAX;
        day.written = day.written.saturating_add(line.len() as u64);
        match day.written > DAY_BYTES_MAX {
            false => day.file.write_all(line),
            true if was_full => Ok(()),
            true => writeln!(
                day.file,
                "Today's log has {} MiB: process {} logs nothing more until tomorrow.",
                DAY_BYTES_MAX / 1024 / 1024,
                std::process::id()
            ),
        }
    }
}

impl Day {
    fn open(directory: &Path, number: u64) -> io::Result<Day> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let date = jiff::Timestamp::from_second((number * DAY_S) as i64).map_err(io::Error::other)?;
        let path = directory.join(date.strftime("epitome.%Y-%m-%d.log").to_string());
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        // A file from an earlier version may be readable for others.
        drop(set_mode(&file, 0o600));
        let kept = super::daemon::logs_of(directory);
        for old in &kept[..kept.len().saturating_sub(FILES_MAX)] {
            drop(std::fs::remove_file(old));
        }
        let written = file.metadata()?.len();
        Ok(Day { number, file, written })
    }
}

#[cfg(test)]
mod tests {
    use epitome_platform::os::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_filter_names_all_crates_or_one() {
        assert_eq!(in_crates("epitome::session=debug,warn"), "epitome_session=debug,warn");
        assert_eq!(in_crates("epitome=debug,epitome::cli=info"), "epitome=debug,epitome::cli=info");
    }

    #[test]
    fn lines_go_to_the_private_file_of_the_day_until_it_is_full() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let log = LogFile { directory: home.path().join("logs"), day: Mutex::default() };
        let lines = |name: &str| {
            let path = home.path().join("logs").join(name);
            let mode = std::fs::metadata(&path).expect("the file of the day").permissions().mode();
            assert_eq!(
                mode & 0o777,
                0o600,
                "nobody else can read {name}, not even where the directory is moved"
            );
            std::fs::read_to_string(path).expect("text").lines().map(str::to_owned).collect::<Vec<_>>()
        };
        log.write_at(20_454, b"one\n").expect("room");
        log.day.lock().as_mut().expect("open").written = DAY_BYTES_MAX;
        for line in [b"two\n", b"six\n"] {
            log.write_at(20_454, line).expect("a full day is no error");
        }
        let first = lines("epitome.2026-01-01.log");
        assert_eq!((first[0].as_str(), first.len()), ("one", 2), "{first:?}");
        assert!(first[1].contains("logs nothing more until tomorrow"), "{first:?}");
        log.write_at(20_455, b"midnight\n").expect("the next day has room again");
        assert_eq!(lines("epitome.2026-01-02.log"), ["midnight"]);
    }

    #[test]
    fn files_of_older_days_are_removed() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let log = LogFile { directory: home.path().to_owned(), day: Mutex::default() };
        for day in 0..=FILES_MAX as u64 {
            log.write_at(20_454 + day, b"line\n").expect("room");
        }
        let left = super::super::daemon::logs_of(home.path());
        assert_eq!(left.len(), FILES_MAX);
        assert!(left[0].ends_with("epitome.2026-01-02.log"), "{left:?}");
    }
}
