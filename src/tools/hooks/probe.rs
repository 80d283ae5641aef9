//! Queries executables for the events they handle and caches the answers: each version of a hook is queried
//! once.

use super::process::ProgramError;
use epitome_platform::os::MetadataExt;
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use super::digest::ApprovedScript;
use super::discover::{HookCandidate, HookSearch};
use super::payload::PROTOCOL;
use super::process::{self, HookProgram, HookSandbox, ProcessSpec};
use epitome_files::atomic_file::replace_in_private_directory;
use epitome_files::paths::Paths;

/// Maximum time an executable may take to answer.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum size of an answer in bytes; a manifest has a few hundred.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Maximum executables queried concurrently.
const ASKED_AT_ONCE_MAX: usize = 8;
/// Maximum cached answers; beyond it, answers that the current search did not use are dropped.
const ANSWERS_MAX: usize = 2_000;
/// Maximum size of the cache file in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Known answers, by file.
pub(super) struct AnswerCache {
    file: PathBuf,
    known: BTreeMap<PathBuf, ProbeAnswer>,
    /// The answers for this search, or why there is none.
    answers: BTreeMap<PathBuf, Result<String, ProbeError>>,
    changed: bool,
}

/// Why an executable has not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("it was not asked")]
    NotAsked,
    #[error("it could not be asked: {0}")]
    Runtime(Arc<io::Error>),
    #[error("called with `hook` {0}")]
    Program(#[from] ProgramError),
    #[error("its answer to `hook` has more than {} KiB", ANSWER_BYTES_MAX / 1024)]
    TooLong,
    #[error("its answer to `hook` is not UTF-8 text")]
    NotUtf8(#[from] std::string::FromUtf8Error),
    #[error("it no longer exists: {0}")]
    Gone(#[source] io::Error),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ProbeAnswer {
    look: FileStamp,
    sha256: String,
    answer: String,
}

/// Metadata by which an unchanged file is recognized. Anyone who can write a file can forge all of it except
/// the change time, so it is relied on only for the user's own files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileStamp {
    size: u64,
    /// Nanoseconds since the Unix epoch.
    modified: i64,
    changed: i64,
    inode: u64,
}

impl FileStamp {
    fn from_metadata(metadata: &Metadata) -> FileStamp {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        FileStamp {
            size: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
        }
    }
}

impl AnswerCache {
    /// Loads the cache. A damaged cache file counts as empty: every executable is queried again.
    pub fn load(paths: &Paths) -> AnswerCache {
        let file = paths.data.join("hooks-cache.json");
        let mut bytes = Vec::new();
        let read = fs::File::open(&file).and_then(|open| open.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
        let known = read.ok().and_then(|_| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        AnswerCache { file, known, answers: BTreeMap::new(), changed: false }
    }

    /// The digest of a file whose metadata is unchanged.
    pub fn digest(&self, path: &Path) -> Option<String> {
        let known = self.known.get(path)?;
        let look = FileStamp::from_metadata(&path.metadata().ok()?);
        (known.look == look).then(|| known.sha256.clone())
    }

    /// Uses the known answer of this version. Returns whether there is one.
    pub fn keep(&mut self, path: &Path, digest: &str) -> bool {
        let known = self.known.get(path).filter(|known| known.sha256 == digest);
        let answer = known.map(|known| (path.to_path_buf(), Ok(known.answer.clone())));
        self.answers.extend(answer);
        known.is_some()
    }

    pub fn learn(&mut self, path: &Path, digest: &str, answer: Result<String, ProbeError>) {
        let answer = answer.and_then(|answer| {
            let metadata = path.metadata().map_err(ProbeError::Gone)?;
            let (look, sha256) = (FileStamp::from_metadata(&metadata), digest.to_owned());
            self.known.insert(path.to_path_buf(), ProbeAnswer { look, sha256, answer: answer.clone() });
            self.changed = true;
            Ok(answer)
        });
        self.answers.insert(path.to_path_buf(), answer);
    }

    /// The answer of an executable, or why there is none.
    pub fn answer(&self, path: &Path) -> Result<&str, &ProbeError> {
        self.answers.get(path).map_or(Err(&ProbeError::NotAsked), |answer| answer.as_deref())
    }

    /// Saves new answers. If that fails, the executables are queried again next time.
    pub fn save(&mut self) {
        if !self.changed {
            return;
        }
        if self.known.len() > ANSWERS_MAX {
            self.known.retain(|path, _| self.answers.contains_key(path));
        }
        let written = serde_json::to_vec(&self.known).map_err(io::Error::from);
        if let Err(error) = written.and_then(|bytes| replace_in_private_directory(&self.file, &bytes)) {
            tracing::debug!(file = %self.file.display(), %error, "the answers of hooks cannot be kept");
        }
    }
}

/// Queries several executables, some of them concurrently. Returns their answers in the same order.
pub(super) fn ask_all(
    search: &HookSearch<'_>,
    executables: &[&HookCandidate],
) -> Vec<Result<String, ProbeError>> {
    if executables.is_empty() {
        return Vec::new();
    }
    let ask_all = || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let error = Arc::new(error);
                return executables.iter().map(|_| Err(ProbeError::Runtime(error.clone()))).collect();
            }
        };
        let answers = executables.iter().map(|candidate| ask(search, candidate));
        runtime.block_on(futures_util::stream::iter(answers).buffered(ASKED_AT_ONCE_MAX).collect())
    };
    // On a separate thread: the caller's thread may belong to a runtime, in which no other runtime can run.
    let asked = std::thread::scope(|scope| scope.spawn(ask_all).join());
    asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

async fn ask(search: &HookSearch<'_>, candidate: &HookCandidate) -> Result<String, ProbeError> {
    let spec = ProcessSpec {
        program: HookProgram::File { path: candidate.path.clone(), arguments: vec!["hook".into()] },
        stdin: Vec::new(),
        cwd: search.workspace.cwd.clone(),
        environment: Arc::new(candidate.origin.environment(search.workspace)),
        more: vec![
            ("EPITOME_CWD", search.workspace.cwd.clone().into()),
            ("EPITOME_HOOK_NAME", candidate.name.as_str().into()),
            ("EPITOME_HOOK_PROTOCOL", PROTOCOL.to_string().into()),
        ],
        limit: ANSWER_TIME_MAX,
        reaper: search.reaper.clone(),
        sandbox: HookSandbox::of(
            candidate.origin,
            search.sandbox,
            search.workspace,
            Vec::new(),
            Some(ApprovedScript::executable(&candidate.path, &candidate.digest)),
        ),
    };
    let stdout = process::stdout_of(process::run(spec).await.map_err(ProgramError::Start)?);
    match stdout {
        Err(ProgramError::TooLong) => Err(ProbeError::TooLong),
        Ok(stdout) if stdout.len() > ANSWER_BYTES_MAX => Err(ProbeError::TooLong),
        stdout => Ok(String::from_utf8(stdout?)?),
    }
}
