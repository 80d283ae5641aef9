//! Tracks the edits of one session and the new errors in the files that it changes.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::client::LanguageServer;
use super::finding::{Diagnostic, new_errors};
use super::known::Installed;
use super::{LanguageServers, ServerContext};
use epitome_config::StartServers;
use epitome_tools::ToolError;
use epitome_tools::disk;

/// Timeout for checking a file in the background. A server that is starting loads the workspace first.
pub(super) const CHECK_TIME_MAX: Duration = Duration::from_secs(60);
/// Timeout for checking the state of a file before its first edit.
const BASELINE_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum errors reported to the model, per file and in total.
const ERRORS_PER_FILE_MAX: usize = 10;
const ERRORS_MAX: usize = 20;
/// Maximum files whose previous state is kept.
const FILES_MAX: usize = 200;
pub(super) const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Files that indicate the language of a workspace, each with an example of a file name in that language.
const MARKERS: [(&str, &str); 12] = [
    ("Cargo.toml", "a.rs"),
    ("go.mod", "a.go"),
    ("pyproject.toml", "a.py"),
    ("setup.py", "a.py"),
    ("requirements.txt", "a.py"),
    ("tsconfig.json", "a.ts"),
    ("package.json", "a.js"),
    ("compile_commands.json", "a.c"),
    ("CMakeLists.txt", "a.cc"),
    ("Makefile", "a.c"),
    ("build.zig", "a.zig"),
    ("Gemfile", "a.rb"),
];

#[derive(Clone, Debug)]
pub struct Edit {
    pub path: PathBuf,
    /// The text before the edit; `None` for a new file.
    pub before: Option<String>,
}

/// Checks the edits of one session. Cheap to clone.
#[derive(Clone)]
pub struct EditWatch {
    servers: LanguageServers,
    context: ServerContext,
    inner: Arc<WatchInner>,
}

#[derive(Default)]
struct WatchInner {
    state: Mutex<WatchState>,
    checked: Notify,
}

#[derive(Default)]
struct WatchState {
    /// The findings and the text of each file at the last report to the model.
    reported: HashMap<PathBuf, (Vec<Diagnostic>, String)>,
    /// The text of each file before its first edit that has not been checked.
    before: HashMap<PathBuf, Option<String>>,
    /// Locked by each check of a file: a language server may skip a text that is replaced while it waits.
    turns: HashMap<PathBuf, Weak<FileTurn>>,
    /// Findings since then.
    news: BTreeMap<PathBuf, FileNews>,
    /// The number of checks in progress on running servers.
    checking: usize,
}

type FileTurn = tokio::sync::Mutex<()>;

/// The current findings for an edited file.
struct FileNews {
    server: &'static str,
    /// The errors that have not been reported to the model.
    errors: Vec<Diagnostic>,
    findings: Vec<Diagnostic>,
    text: String,
}

impl EditWatch {
    pub fn new(servers: LanguageServers, context: ServerContext) -> EditWatch {
        EditWatch { servers, context, inner: Arc::default() }
    }

    /// Whether the workspace seems to have files of a language whose server is installed. Reads the file system.
    pub fn is_useful(&self) -> bool {
        self.context.settings.start != StartServers::Never
            && MARKERS.iter().any(|(marker, file)| {
                let root = &self.context.workspace.cwd;
                root.join(marker).exists() && self.context.installed(&root.join(file)).is_some()
            })
    }

    /// Checks changed files in the background.
    pub fn edited(&self, edits: Vec<Edit>) {
        for edit in edits {
            let watch = self.clone();
            let path = self.noted(edit);
            tokio::spawn(async move {
                if let Err(why) = watch.check(&path).await {
                    watch.inner.state.lock().before.remove(&path);
                    tracing::debug!(%why, "a changed file was not checked");
                }
            });
        }
    }

    /// Notes a file's text before its first edit, and returns its path.
    pub(super) fn noted(&self, edit: Edit) -> PathBuf {
        self.inner.state.lock().before.entry(edit.path.clone()).or_insert(edit.before);
        edit.path
    }

    /// Waits until running servers have checked the edits, at most for the configured time. Does not wait for servers
    /// that are still starting.
    pub async fn settle(&self) {
        let until = Instant::now() + self.context.settings.wait;
        loop {
            let checked = self.inner.checked.notified();
            if self.inner.state.lock().checking == 0 {
                return;
            }
            tokio::select! {
                () = checked => {}
                () = tokio::time::sleep_until(until) => return,
            }
        }
    }

    /// Returns the new errors of edited files, each only once; `None` if there are none.
    pub fn take_news(&self) -> Option<String> {
        let mut state = self.inner.state.lock();
        let news = std::mem::take(&mut state.news);
        let root = self.context.workspace.cwd.clone();
        let (mut left, mut servers, mut lines) = (ERRORS_MAX, Vec::new(), Vec::new());
        for (path, FileNews { server, errors, findings, text }) in news {
            let shown = errors.iter().take(ERRORS_PER_FILE_MAX.min(left)).count();
            left -= shown;
            let relative = path.strip_prefix(&root).unwrap_or(&path);
            lines.extend(errors[..shown].iter().map(|error| error.shown(relative)));
            if errors.len() > shown {
                lines.push(format!("({} more errors in {})", errors.len() - shown, path.display()));
            }
            if !errors.is_empty() && !servers.contains(&server) {
                servers.push(server);
            }
            state.reported.insert(path, (findings, text));
        }
        (!lines.is_empty()).then(|| {
            format!(
                "New errors in files that you changed, from {}:\n{}",
                servers.join(" and "),
                lines.join("\n")
            )
        })
    }

    /// Returns all current findings for a file, for the tool.
    pub(super) async fn findings(
        &self,
        path: &Path,
    ) -> Result<(Installed, Option<Vec<Diagnostic>>), ToolError> {
        let turn = self.turn(path);
        let _turn = turn.lock().await;
        let (installed, client, text) = self.open(path).await?;
        client.check(path, installed.language, &text, Duration::ZERO).await;
        let is_complete = client.is_idle_within(CHECK_TIME_MAX).await;
        let found = client.check(path, installed.language, &text, CHECK_TIME_MAX).await;
        // Servers publish an empty list before they have looked.
        let found = found.filter(|found| is_complete || !found.is_empty());
        Ok((installed, found))
    }

    /// Returns the server for a file, and the file's text. Starts the server if necessary.
    pub(super) async fn open(
        &self,
        path: &Path,
    ) -> Result<(Installed, Arc<LanguageServer>, String), ToolError> {
        let context = &self.context;
        let (installed, text) = read(context, path).await?;
        let client = self.servers.client(&installed, context).await?;
        Ok((installed, client, text))
    }

    /// Checks a file that was noted.
    pub(super) async fn check(&self, path: &Path) -> Result<(), ToolError> {
        let (installed, client, _) = self.open(path).await?;
        self.inner.state.lock().checking += 1;
        let done = CheckDone(self);
        let turn = self.turn(path);
        let _turn = turn.lock().await;
        // Another edit may have followed.
        let (_, text) = read(&self.context, path).await?;
        let language = installed.language;
        let (is_known, noted) = {
            let mut state = self.inner.state.lock();
            (state.reported.contains_key(path), state.before.remove(path).flatten())
        };
        if !is_known {
            let found = match &noted {
                Some(before) => client.check(path, language, before, BASELINE_TIME_MAX).await,
                None => None,
            };
            let mut state = self.inner.state.lock();
            if state.reported.len() >= FILES_MAX {
                state.reported.clear();
            }
            let reported = (found.unwrap_or_default(), noted.unwrap_or_default());
            state.reported.entry(path.to_path_buf()).or_insert(reported);
        }
        let found = client.check(path, language, &text, CHECK_TIME_MAX).await;
        let Some(now) = found else {
            return Err(ToolError::new(format!("{} reports nothing", installed.server.name)));
        };
        let mut state = self.inner.state.lock();
        let Some((before, text_before)) = state.reported.get(path) else { return Ok(()) };
        let errors = new_errors(before, text_before, &now, &text);
        // Replaces the findings of earlier edits, whose errors this edit may have fixed.
        let news = FileNews { server: installed.server.name, errors, findings: now, text };
        state.news.insert(path.to_path_buf(), news);
        drop(state);
        drop(done);
        Ok(())
    }

    /// Returns the lock of a file.
    pub(super) fn turn(&self, path: &Path) -> Arc<FileTurn> {
        let mut state = self.inner.state.lock();
        state.turns.retain(|_, turn| turn.strong_count() > 0);
        state.turns.get(path).and_then(Weak::upgrade).unwrap_or_else(|| {
            let turn = Arc::new(FileTurn::default());
            state.turns.insert(path.to_path_buf(), Arc::downgrade(&turn));
            turn
        })
    }
}

struct CheckDone<'a>(&'a EditWatch);

impl Drop for CheckDone<'_> {
    fn drop(&mut self) {
        let mut state = self.0.inner.state.lock();
        state.checking = state.checking.saturating_sub(1);
        drop(state);
        self.0.inner.checked.notify_waiters();
    }
}

async fn read(context: &ServerContext, path: &Path) -> Result<(Installed, String), ToolError> {
    let (context, path) = (context.clone(), path.to_path_buf());
    let read = tokio::task::spawn_blocking(move || {
        let installed = context.installed(&path).ok_or_else(|| {
            format!("There is no language server on PATH for {}, or the settings exclude it.", path.display())
        })?;
        // Not by its path: a command may have replaced the file with a link, and the server must not get what that leads to.
        let real = path.canonicalize().ok();
        let text = real.and_then(|real| disk::small_text(&real, FILE_BYTES_MAX, &context.workspace));
        Ok((installed, text.ok_or_else(|| format!("{} is not text that can be checked.", path.display()))?))
    });
    read.await.unwrap_or_else(|error| Err(ToolError::caused(error.to_string(), error)))
}
