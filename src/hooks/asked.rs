//! Asks executables what they handle, and keeps their answers: a hook is asked once for each version.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::trust;
use crate::paths::Paths;
use crate::tools::group::Ending;
use crate::tools::reaper::Reaper;

/// How long an executable may take to say what it handles.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer; a manifest has some hundred.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// Executables that are asked at the same time.
const ASKED_AT_ONCE_MAX: usize = 8;
/// Answers that are kept; beyond it those that this search did not use go.
const ANSWERS_MAX: usize = 2_000;
/// Bytes of the file that they are kept in.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Tries to start a file that somebody has still open for writing, and the time between two.
const BUSY_TRIES_MAX: u32 = 20;
const BUSY_WAIT: Duration = Duration::from_millis(10);

/// The answers that are known, by file.
pub(super) struct Answers {
    file: PathBuf,
    known: BTreeMap<PathBuf, Answer>,
    /// Why there is no answer.
    failed: BTreeMap<PathBuf, String>,
    used: BTreeMap<PathBuf, ()>,
    changed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer {
    look: Look,
    sha256: String,
    answer: String,
}

/// What a file looks like from outside. Who may write the file can forge all of it but the time of
/// change, which counts only for the person's own files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Look {
    size: u64,
    /// Nanoseconds since the Unix epoch.
    modified: i64,
    changed: i64,
    inode: u64,
}

impl Look {
    fn of(metadata: &Metadata) -> Look {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Look {
            size: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
        }
    }
}

impl Answers {
    /// Reads what is known. A damaged file is as good as none: everything is asked again.
    pub fn load(paths: &Paths) -> Answers {
        let file = paths.data.join("hooks-cache.json");
        let mut bytes = Vec::new();
        let read = fs::File::open(&file).and_then(|open| open.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        let known = match read {
            Ok(_) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => BTreeMap::new(),
        };
        Answers { file, known, failed: BTreeMap::new(), used: BTreeMap::new(), changed: false }
    }

    /// The digest of a file that looks as it did.
    pub fn digest(&self, path: &Path) -> Option<String> {
        let known = self.known.get(path)?;
        let look = Look::of(&path.metadata().ok()?);
        (known.look == look).then(|| known.sha256.clone())
    }

    /// Whether the answer of this version is known.
    pub fn keep(&mut self, path: &Path, digest: &str) -> bool {
        let known = self.known.get(path).is_some_and(|known| known.sha256 == digest);
        if known {
            self.used.insert(path.to_path_buf(), ());
        }
        known
    }

    pub fn learn(&mut self, path: &Path, digest: &str, answer: Result<String, String>) {
        match (answer, path.metadata()) {
            (Ok(answer), Ok(metadata)) => {
                let known = Answer { look: Look::of(&metadata), sha256: digest.to_owned(), answer };
                self.known.insert(path.to_path_buf(), known);
                self.used.insert(path.to_path_buf(), ());
                self.changed = true;
            }
            (Ok(_), Err(error)) => {
                drop(self.failed.insert(path.to_path_buf(), format!("it is gone: {error}")))
            }
            (Err(reason), _) => drop(self.failed.insert(path.to_path_buf(), reason)),
        }
    }

    /// What an executable answered, or why there is no answer.
    pub fn answer(&self, path: &Path) -> Result<&str, &str> {
        if let Some(reason) = self.failed.get(path) {
            return Err(reason);
        }
        self.known.get(path).map(|known| known.answer.as_str()).ok_or("it was not asked")
    }

    /// Keeps what was learnt. Where that fails it is asked again next time.
    pub fn save(&mut self) {
        if !self.changed {
            return;
        }
        if self.known.len() > ANSWERS_MAX {
            let used = &self.used;
            self.known.retain(|path, _| used.contains_key(path));
        }
        let written = serde_json::to_vec(&self.known).map_err(io::Error::from);
        if let Err(error) = written.and_then(|bytes| trust::replace(&self.file, &bytes)) {
            tracing::debug!(file = %self.file.display(), %error, "the answers of hooks cannot be kept");
        }
    }
}

/// Asks several executables, some at the same time. Each has its name beside it.
pub(super) fn ask_all(
    reaper: &Arc<Reaper>,
    executables: &[(&Path, &str)],
    cwd: &Path,
    environment: &[(OsString, OsString)],
) -> Vec<(PathBuf, Result<String, String>)> {
    if executables.is_empty() {
        return Vec::new();
    }
    // A thread of its own: the caller's may be one of a runtime, where another cannot run.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => {
                    let reason = format!("it could not be asked: {error}");
                    return executables
                        .iter()
                        .map(|(path, _)| (path.to_path_buf(), Err(reason.clone())))
                        .collect();
                }
            };
            let answers = executables.iter().map(|(path, name)| async move {
                (path.to_path_buf(), ask(reaper, path, name, cwd, environment).await)
            });
            runtime.block_on(futures_util::stream::iter(answers).buffered(ASKED_AT_ONCE_MAX).collect())
        });
        asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

async fn ask(
    reaper: &Arc<Reaper>,
    path: &Path,
    name: &str,
    cwd: &Path,
    environment: &[(OsString, OsString)],
) -> Result<String, String> {
    let failed = |error: io::Error| format!("called with `hook` it could not be started: {error}");
    let (read, write) = io::pipe().map_err(failed)?;
    let mut command = Command::new(path);
    command.arg("hook").current_dir(cwd).stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(Stdio::from(OwnedFd::from(write)));
    command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    command
        .env("PWD", cwd)
        .env("EPITOME_CWD", cwd)
        .env("EPITOME_HOOK_PROTOCOL", "2")
        .env("EPITOME_HOOK_NAME", name);
    let mut tries = 0;
    let mut running = loop {
        tries += 1;
        match reaper.spawn(&mut command) {
            // Its writer, or a process that was started meanwhile, has it open for a moment more.
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < BUSY_TRIES_MAX => {
                tokio::time::sleep(BUSY_WAIT).await;
            }
            started => break started.map_err(failed)?,
        }
    };
    // Our copy of the pipe's other end is in `command`; while it is open there is no end.
    drop(command);
    let pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(read)).map_err(failed)?;
    let mut answer = Vec::new();
    let ending = tokio::time::timeout(ANSWER_TIME_MAX, &mut running.ending);
    let reading = async {
        let mut pipe = pipe.take(ANSWER_BYTES_MAX + 1);
        pipe.read_to_end(&mut answer).await
    };
    let (ending, read) = tokio::join!(ending, tokio::time::timeout(ANSWER_TIME_MAX, reading));
    match (ending.map(|ending| ending.unwrap_or(Ending::Unknown)), read) {
        (Err(_), _) | (_, Err(_)) => {
            running.end();
            return Err(format!("called with `hook` it did not end within {} s", ANSWER_TIME_MAX.as_secs()));
        }
        (Ok(Ending::Code(0)), Ok(Ok(_))) => {}
        (Ok(Ending::Code(0)), Ok(Err(error))) => return Err(format!("its answer cannot be read: {error}")),
        (Ok(Ending::Code(code)), _) => {
            return Err(format!("called with `hook` it ended with exit code {code}"));
        }
        (Ok(Ending::Signal(signal)), _) => {
            return Err(format!("called with `hook` it was ended by signal {signal}"));
        }
        (Ok(Ending::Unknown), _) => return Err("called with `hook` it ended in an unknown way".to_owned()),
    }
    if answer.len() as u64 > ANSWER_BYTES_MAX {
        return Err(format!("its answer to `hook` has more than {} KiB", ANSWER_BYTES_MAX / 1024));
    }
    String::from_utf8(answer).map_err(|_| "its answer to `hook` is not UTF-8 text".to_owned())
}
