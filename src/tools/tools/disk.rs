//! Helpers of the file tools: tool cards, running with a timeout, opening regular files only, atomic writes and error
//! messages. Makes no permission decisions.
//!
//! Paths passed to these functions have no symbolic links (`ToolContext::permitted`) and are opened by descriptor,
//! relative to the workspace's directories as they were when the session began: if a directory is replaced by a link
//! in the meantime, the call fails.

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::buffers::{DiskStamp, Saved, WriteRoute};
use super::walk::{self, Ignored};
use super::{BoxFuture, ToolContext, ToolError, ToolResult, Workspace, input, read_state};
use epitome_files::atomic_file::AtomicFile;
use epitome_platform::os::{FileTypeExt, MetadataExt, copy_owner_and_mode};
use epitome_platform::root::{self, DirectoryEntry};
use epitome_thread::diff::similar_texts;
pub use epitome_thread::visible::fenced;
use epitome_thread::{CallDisplay, Location, ToolDisplay, ToolKind};

/// Maximum size in bytes of a file that is edited or replaced; two copies of it are in memory.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Maximum bytes per side of a diff in the result of a call: both texts are stored.
const DIFF_BYTES_MAX: usize = 512 * 1024;

/// Timeout of one call's disk work, twice that of a search. Anything slower hangs, for example in a network file
/// system or on a named pipe called `.gitignore`.
const WORK_MAX: Duration = Duration::from_secs(60);

/// Timeout of the check that precedes a permission request.
const CHECK_MAX: Duration = Duration::from_secs(10);

const NEAR_NAMES_LOOKED_AT: usize = 2_000;
const SAME_NAMES_LOOKED_AT: usize = 20_000;
const NEAR_NAMES_MAX: usize = 3;

/// Minimum similarity of a suggested name, from 0 to 1.
const NEARNESS: f32 = 0.6;

/// Signals to work on the blocking pool that its result is no longer needed.
#[derive(Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A file whose reads fail once the call is cancelled, even in the middle of a large file.
pub struct Stoppable<'a> {
    pub file: File,
    pub stop: &'a CancelFlag,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.requested() {
            return Err(io::Error::other("cancelled"));
        }
        self.file.read(buffer)
    }
}

/// Runs blocking work; dropping the future sets the flag that the work can check.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce(&CancelFlag) -> T + Send + 'static) -> T {
    struct CancelOnDrop(CancelFlag);
    impl Drop for CancelOnDrop {
        fn drop(&mut self) {
            self.0.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = CancelFlag::default();
    let _raise = CancelOnDrop(stop.clone());
    match tokio::task::spawn_blocking(move || work(&stop)).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down and will drop this future.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Runs a tool's disk work with a timeout. Failures become messages for the model.
pub fn run(
    context: ToolContext,
    work: impl FnOnce(&ToolContext, &CancelFlag) -> Result<ToolResult, ToolError> + Send + 'static,
) -> BoxFuture<ToolResult> {
    let work = move |stop: &CancelFlag| {
        let result = work(&context, stop)?;
        Ok(ToolResult { shown: result.shown.into_iter().map(stored).collect(), ..result })
    };
    Box::pin(within(WORK_MAX, blocking(work)))
}

/// Runs a tool's check on the disk. If the disk hangs, the check passes and the run reports the problem.
pub fn check(
    context: ToolContext,
    work: impl FnOnce(&ToolContext) -> Result<(), ToolError> + Send + 'static,
) -> BoxFuture<Result<(), ToolError>> {
    let checking = blocking(move |_| work(&context));
    Box::pin(async move { tokio::time::timeout(CHECK_MAX, checking).await.unwrap_or(Ok(())) })
}

/// Runs a tool's preview on the disk. If the call can't succeed, the preview is a message.
pub fn preview(
    context: ToolContext,
    work: impl FnOnce(&ToolContext) -> Result<Vec<ToolDisplay>, ToolError> + Send + 'static,
) -> BoxFuture<Vec<ToolDisplay>> {
    let shown = blocking(move |_| work(&context));
    Box::pin(async move {
        shown.await.unwrap_or_else(|sentence| vec![ToolDisplay::Text { text: sentence.into() }])
    })
}

async fn within(limit: Duration, work: impl Future<Output = Result<ToolResult, ToolError>>) -> ToolResult {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.unwrap_or_else(ToolResult::failed),
        Err(_) => ToolResult::failed(format!(
            "The disk took more than {} seconds, so the call was abandoned. Try a smaller part. What was \
             being written may or may not be there.",
            limit.as_secs()
        )),
    }
}

/// Returns the card of a tool for the file named by `key` in its input; `verb` describes the action. If the path
/// leads to another file, the card names that file too.
pub fn display(
    verb: &str,
    kind: ToolKind,
    (key, what): (&str, &str),
    input: &Value,
    workspace: &Workspace,
) -> CallDisplay {
    let Ok(path) = input::named(input, key) else {
        return CallDisplay { title: format!("{verb} {what}"), kind, locations: Vec::new() };
    };
    let path = workspace.resolve(&path);
    let title = format!("{verb} {}", workspace.describe(&path, kind));
    CallDisplay { title, kind, locations: vec![Location { path: workspace.target(&path), line: None }] }
}

/// Opens a regular file for reading. Never blocks on a pipe. The error is a message for the model.
pub fn open(path: &Path, workspace: &Workspace) -> Result<(File, Metadata), ToolError> {
    let name = workspace.display(path);
    let trouble = |error: io::Error| trouble("read", path, workspace, error);
    let entry = workspace.roots().entry(path).map_err(trouble)?;
    // Checked before opening, because merely opening some devices has side effects.
    regular(&entry.metadata().map_err(trouble)?, &name)?;
    let file = entry.read().map_err(trouble)?;
    let metadata = file.metadata().map_err(trouble)?;
    regular(&metadata, &name)?;
    Ok((file, metadata))
}

/// Returns the metadata of the file at a path; `None` if it doesn't exist.
pub fn metadata(path: &Path, workspace: &Workspace) -> io::Result<Option<Metadata>> {
    match workspace.roots().entry(path).and_then(|entry| entry.metadata()) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads an entire file from the disk, up to `FILE_BYTES_MAX`.
pub fn read_whole(path: &Path, workspace: &Workspace) -> Result<Vec<u8>, ToolError> {
    let (file, metadata) = open(path, workspace)?;
    let mut bytes = Vec::with_capacity(metadata.len().min(FILE_BYTES_MAX) as usize);
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| trouble("read", path, workspace, error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ToolError::new(format!(
            "{} is larger than {FILE_BYTES_MAX} bytes, too large to be edited here. Change it with a command.",
            workspace.display(path)
        )));
    }
    Ok(bytes)
}

/// Returns the text of a workspace file of at most `bytes_max` bytes; `None` for any other file.
pub fn small_text(path: &Path, bytes_max: u64, workspace: &Workspace) -> Option<String> {
    workspace.roots().containing(path)?;
    // Check for existence first: `open` would search for names similar to a missing file's.
    let found = metadata(path, workspace).ok()??;
    if !found.is_file() || found.len() > bytes_max {
        return None;
    }
    let (file, _) = open(path, workspace).ok()?;
    let mut text = String::new();
    file.take(bytes_max).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The content of a file.
pub struct CurrentContent {
    pub bytes: Vec<u8>,
    /// Whether it is unsaved text of the user's editor instead of the file on the disk.
    pub is_unsaved: bool,
}

/// Reads an entire file, or the unsaved text that the user's editor has of it.
pub fn current(path: &Path, context: &ToolContext) -> Result<CurrentContent, ToolError> {
    let bytes = read_whole(path, &context.workspace)?;
    let unsaved = context.unsaved.text(path, &bytes).map(|text| text.as_bytes().to_vec());
    Ok(CurrentContent { is_unsaved: unsaved.is_some(), bytes: unsaved.unwrap_or(bytes) })
}

fn regular(metadata: &Metadata, name: &str) -> Result<(), ToolError> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        return Err(ToolError::new(format!(
            "{name} is a directory. Use glob_tool to list its files, or give the path of a file."
        )));
    } else if kind.is_symlink() {
        "a symbolic link that leads nowhere"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(ToolError::new(format!("{name} is {what}, not a file that can be read or written.")))
}

/// Returns an error message, with suggestions of similar names.
pub fn trouble(what: &str, path: &Path, workspace: &Workspace, error: io::Error) -> ToolError {
    let name = workspace.display(path);
    let text = match error.kind() {
        io::ErrorKind::NotFound => {
            let near = near_names(path, workspace);
            if near.is_empty() {
                format!("There is no file {name}. Use glob_tool to find the right path.")
            } else {
                let near: Vec<String> = near.iter().map(|path| workspace.display(path)).collect();
                format!("There is no file {name}. Did you mean {}?", near.join(" or "))
            }
        }
        io::ErrorKind::PermissionDenied => {
            format!("Cannot {what} {name}: the system does not permit it.")
        }
        io::ErrorKind::NotADirectory => {
            format!("Cannot {what} {name}: a part of its path is a file, not a directory.")
        }
        _ if root::is_link(&error) => format!(
            "Cannot {what} {name}: a part of its path is a symbolic link that was put there since the call was \
             checked, or that leads nowhere. Nothing was read or written."
        ),
        _ => format!("Cannot {what} {name}: {error}."),
    };
    ToolError::caused(text, error)
}

/// Returns files that the model may have meant by a missing one: those in its directory with a similar name, or else
/// those in the workspace with the same name.
fn near_names(path: &Path, workspace: &Workspace) -> Vec<PathBuf> {
    let mut near = similar_names(path, workspace);
    if near.is_empty() {
        let mut visited = 0;
        let cwd = super::real_path(&workspace.cwd);
        // If the workspace can't be listed, there are no suggestions.
        let _ = walk::files(&cwd, workspace.roots(), Ignored::LeftOut, &CancelFlag::default(), |file| {
            visited += 1;
            if file.relative.file_name() == path.file_name() {
                near.push(workspace.cwd.join(file.relative));
            }
            near.len() < NEAR_NAMES_MAX && visited < SAME_NAMES_LOOKED_AT
        });
    }
    near
}

/// Returns files with similar names in the directory of a missing one.
fn similar_names(path: &Path, workspace: &Workspace) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let listed = workspace.roots().directory(directory).and_then(|directory| directory.entries());
    let names: Vec<String> = listed
        .unwrap_or_default()
        .into_iter()
        .take(NEAR_NAMES_LOOKED_AT)
        .filter_map(|(name, _)| name.into_string().ok())
        .collect();
    let lower: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    let candidates: Vec<&str> = lower.iter().map(String::as_str).collect();
    let near = similar_texts(&name.to_lowercase(), &candidates, NEAR_NAMES_MAX, NEARNESS);
    let original = |lowered: &str| lower.iter().position(|name| name == lowered).map(|index| &names[index]);
    near.into_iter().filter_map(original).map(|name| directory.join(name)).collect()
}

/// Replaces a file's content, or creates the file and its parent directories. Readers see either the old or
/// the new file, and a process killed in between leaves no temporary file. The mode is preserved; other hard
/// links to the old file keep the old content, which the result then says: written in place, a link that the workspace
/// contains would change a file outside of it.
///
/// If no file can be created in the directory, or the old one can't be replaced (a mounted file, a directory
/// without write permission), the old one is overwritten instead.
///
/// Fails if another program changes the file in the meantime.
pub fn replace(
    path: &Path,
    bytes: &[u8],
    workspace: &Workspace,
    stop: &CancelFlag,
) -> io::Result<Option<Saved>> {
    replace_after(path, bytes, workspace, stop, || ())
}

/// `written` is called when the new content is on the disk, before it replaces the old file.
fn replace_after(
    path: &Path,
    bytes: &[u8],
    workspace: &Workspace,
    stop: &CancelFlag,
    written: impl FnOnce(),
) -> io::Result<Option<Saved>> {
    let old = metadata(path, workspace)?;
    let entry = match &old {
        // A rename would bypass the read-only mode.
        Some(old) if old.permissions().readonly() => {
            return Err(io::Error::other("the file is marked as read-only"));
        }
        Some(_) => workspace.roots().entry(path)?,
        None => workspace.roots().entry_with_parents(path)?,
    };
    let check = || match (&old, entry.metadata()) {
        (Some(old), Ok(now)) if DiskStamp::of(old) == DiskStamp::of(&now) => Ok(()),
        (Some(_), Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
        (Some(_), _) => Err(changed_now()),
        (None, _) => Ok(()),
    };
    let replaced = write_replacement(&entry, bytes, old.as_ref()).and_then(|new| {
        written();
        // Writing may take long on some disks.
        if stop.requested() {
            return Err(io::Error::other("cancelled"));
        }
        check()?;
        let name = Path::new(entry.name());
        match &old {
            Some(_) => new.put_unsynced(name),
            None => new.put_new(name).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => changed_now(),
                _ => error,
            }),
        }
    });
    let Err(error) = replaced else {
        return Ok(old.is_some_and(|old| old.nlink() > 1).then_some(Saved::Detached));
    };
    let in_place = matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices
    );
    if old.is_none() || !in_place || stop.requested() {
        return Err(error);
    }
    check()?;
    let mut file = entry.overwrite()?;
    file.write_all(bytes)?;
    file.sync_all().map(|()| None)
}

/// Removes a file.
pub fn remove(path: &Path, workspace: &Workspace) -> io::Result<()> {
    workspace.roots().entry(path)?.remove_file()
}

/// Sets a file's text by the way that `WriteRoute` selects. If an editor accepted the text but the file's content
/// differs, returns whether the editor has saved it; otherwise as [`replace`]. The error is a message for the model.
pub fn put(
    path: &Path,
    text: &str,
    is_unsaved: bool,
    context: &ToolContext,
    stop: &CancelFlag,
) -> Result<Option<Saved>, ToolError> {
    let route = match stop.requested() {
        true => WriteRoute::Disk,
        false => context.unsaved.route(path, text, is_unsaved),
    };
    match route {
        WriteRoute::Buffer => {
            let name = context.workspace.display(path);
            let taken = context.unsaved.put(path, text);
            return taken
                .map(Some)
                .map_err(|why| ToolError::caused(format!("Cannot change {name}: {why}."), why));
        }
        WriteRoute::Review => {
            if let Some(saved) = reviewed(path, text, context)? {
                return Ok(saved);
            }
        }
        WriteRoute::Disk => {}
    }
    replace(path, text.as_bytes(), &context.workspace, stop)
        .map_err(|error| trouble("write", path, &context.workspace, error))
}

/// Has the user's editor write a text. Returns the report if the editor wrote the file, exactly or in the form that
/// it saves; `None` if this process still has to write it. Fails if the file was changed while the editor did not
/// answer.
fn reviewed(path: &Path, text: &str, context: &ToolContext) -> Result<Option<Option<Saved>>, ToolError> {
    let workspace = &context.workspace;
    let found = || metadata(path, workspace).ok().flatten();
    let stamp = || found().map(|file| DiskStamp::of(&file));
    let before = stamp();
    let taken = context.unsaved.put(path, text);
    let is_exact = || read_whole(path, workspace).is_ok_and(|bytes| bytes == text.as_bytes());
    match taken {
        Ok(_) if is_exact() => Ok(Some(None)),
        Ok(Saved::Otherwise) if found().is_some() => Ok(Some(Some(Saved::Otherwise))),
        Ok(_) => Ok(None),
        Err(why) => {
            tracing::debug!(path = %path.display(), %why, "the editor did not write an edit");
            match stamp() == before || is_exact() {
                true => Ok(None),
                false => Err(trouble("write", path, workspace, changed_now())),
            }
        }
    }
}

/// The error for a file that another program changes at the same time.
fn changed_now() -> io::Error {
    io::Error::other("it was changed at this moment; read it again")
}

/// Returns the result of a change of one file, and records that the model knows its new text. `done` is the report
/// for the model, `shown` what the person sees.
pub fn changed(
    path: &Path,
    text: &str,
    mut done: String,
    saved: Option<Saved>,
    mut shown: Vec<ToolDisplay>,
    context: &ToolContext,
) -> ToolResult {
    let known = [(path.to_path_buf(), Some(read_state::state_of(text.as_bytes())))];
    context.files.note(&known);
    if let Some(saved) = saved {
        done.push_str(&format!(" {}", saved.note()));
        shown.extend(saved.shown(saved.note()));
    }
    ToolResult { shown, raw: Some(read_state::raw(&known)), ..ToolResult::completed(done) }
}

/// Writes an entry's replacement to an unnamed file in the same directory.
fn write_replacement(entry: &DirectoryEntry, bytes: &[u8], old: Option<&Metadata>) -> io::Result<AtomicFile> {
    // The replacement isn't accessible to others until it has the permissions of the old file.
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let mut unfinished = AtomicFile::begin_in(entry.directory()?, mode)?;
    let file = unfinished.file();
    if let Some(old) = old {
        copy_owner_and_mode(old, file)?;
    }
    file.write_all(bytes)?;
    unfinished.sync()?;
    Ok(unfinished)
}

/// Replaces a diff that is too large to be stored by a message.
fn stored(shown: ToolDisplay) -> ToolDisplay {
    let ToolDisplay::Diff { path, old, new } = &shown else { return shown };
    let old_length = old.as_ref().map_or(0, String::len);
    if old_length.max(new.len()) <= DIFF_BYTES_MAX {
        return shown;
    }
    let path = path.display();
    let text = format!("{path}: {old_length} bytes became {} bytes, too large for a diff.", new.len());
    ToolDisplay::Text { text }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use epitome_thread::OutcomeStatus;

    fn workspace_of(directory: &tempfile::TempDir) -> Workspace {
        Workspace::new(directory.path().canonicalize().expect("it is there"), Vec::new(), Arc::default())
    }

    #[tokio::test]
    async fn hanging_work_times_out() {
        let result = within(Duration::from_millis(1), std::future::pending()).await;
        assert_eq!(result.status, OutcomeStatus::Failed);
    }

    #[test]
    fn card_displays_the_relative_path() {
        let workspace = Workspace::new("/w", Vec::new(), Arc::default());
        let title =
            |input| display("Read", ToolKind::Read, ("file_path", "a file"), &input, &workspace).title;
        assert_eq!(title(serde_json::json!({"file_path": "src/../a.txt"})), "Read `a.txt`");
        assert_eq!(title(serde_json::json!({})), "Read a file");
    }

    #[test]
    fn a_missing_file_is_suggested_from_its_directory_or_the_workspace() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let cwd = directory.path().to_path_buf();
        fs::create_dir_all(cwd.join("crates/one/src")).expect("made");
        fs::write(cwd.join("crates/one/src/reader.rs"), "").expect("written");
        let workspace = Workspace::new(cwd, Vec::new(), Arc::default());
        let error = || io::ErrorKind::NotFound.into();
        for (path, suggested) in [
            ("crates/one/src/readers.rs", "Did you mean crates/one/src/reader.rs?"),
            ("src/reader.rs", "Did you mean crates/one/src/reader.rs?"),
            ("src/writer.rs", "Use glob_tool to find the right path."),
        ] {
            let message = trouble("read", &workspace.resolve(path), &workspace, error()).to_string();
            assert!(message.ends_with(suggested), "{message}");
        }
    }

    #[test]
    fn a_fence_is_longer_than_any_inside() {
        assert_eq!(fenced("sh", "ls"), "```sh\nls\n```");
        assert_eq!(fenced("", "```\ncode\n```\n"), "````\n```\ncode\n```\n````");
    }

    #[test]
    fn replace_keeps_the_mode_and_leaves_no_temporary_file() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().canonicalize().expect("it is there").join("run.sh");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("set");
        replace(&path, b"new", &workspace_of(&directory), &CancelFlag::default()).expect("replaced");
        assert_eq!(fs::read(&path).expect("read"), b"new");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o750);
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    /// Regression test: a process that was killed during a write left `.epitome-….tmp` in the user's directory.
    #[test]
    fn pending_replacement_has_no_name() {
        if epitome_platform::IS_PORTABLE {
            return eprintln!("skipped: only Linux has files without a name");
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().canonicalize().expect("it is there").join("a");
        fs::write(&path, "old").expect("written");
        let old = fs::metadata(&path).expect("there");
        let entry = DirectoryEntry::at(&path).expect("there");
        let new = write_replacement(&entry, b"new", Some(&old)).expect("written");
        let names =
            fs::read_dir(directory.path()).expect("listed").map(|entry| entry.expect("one").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["a"]);
        drop(new);
        assert_eq!(fs::read(&path).expect("read"), b"old");
    }

    #[test]
    fn a_cancelled_write_leaves_the_old_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().canonicalize().expect("it is there").join("a");
        fs::write(&path, "old").expect("written");
        let stop = CancelFlag::default();
        stop.0.store(true, Ordering::Relaxed);
        assert!(replace(&path, b"new", &workspace_of(&directory), &stop).is_err());
        assert_eq!(fs::read(&path).expect("read"), b"old");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    /// A file of two names was edited under one of them. The other silently kept the old content.
    #[test]
    fn other_names_of_a_replaced_file_are_reported() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        fs::write(base.join("a"), "old").expect("written");
        fs::hard_link(base.join("a"), base.join("b")).expect("linked");
        let replace = |name: &str| {
            replace(&base.join(name), b"new", &workspace_of(&directory), &CancelFlag::default())
                .expect("replaced")
        };
        assert_eq!(replace("a"), Some(Saved::Detached));
        assert_eq!(fs::read(base.join("b")).expect("read"), b"old");
        assert_eq!(replace("a"), None, "it has one name now");
        assert_eq!(replace("b"), None);
    }

    /// The user saved a file in the tenths of a second in which the agent's edit was synced to the disk, and the edit,
    /// which was made for the earlier text, replaced it.
    #[test]
    fn a_save_during_a_write_is_not_replaced() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        fs::write(base.join("old"), "old").expect("written");
        for name in ["old", "new"] {
            let path = base.join(name);
            let save = || fs::write(&path, "typed").expect("saved");
            let stop = CancelFlag::default();
            let error = replace_after(&path, b"by the agent", &workspace_of(&directory), &stop, save)
                .expect_err("it was changed");
            assert!(error.to_string().contains("changed at this moment; read it again"), "{error}");
            assert_eq!(fs::read(&path).expect("read"), b"typed");
        }
        assert_eq!(fs::read_dir(&base).expect("listed").count(), 2);
    }

    /// A background command replaced a directory with a link while the agent wrote and read files in it: 91 of 118
    /// writes landed outside of the workspace, and 13 of 66 reads returned what the sandbox hides.
    #[test]
    fn a_directory_exchanged_after_the_decision_is_not_followed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        for (file, text) in [("w/d/hosts.yml", "ours"), ("home/hosts.yml", "secret")] {
            fs::create_dir_all(base.join(file).parent().expect("it has one")).expect("made");
            fs::write(base.join(file), text).expect("written");
        }
        let workspace = Workspace::new(base.join("w"), Vec::new(), Arc::default());
        let (there, new) = (workspace.real("d/hosts.yml"), workspace.real("d/new/file"));
        fs::rename(base.join("w/d"), base.join("w/was")).expect("renamed");
        std::os::unix::fs::symlink(base.join("home"), base.join("w/d")).expect("linked");
        let refused = |result: Result<(), ToolError>| {
            let why = result.expect_err("it leads elsewhere");
            assert!(why.to_string().contains("a symbolic link that was put there since"), "{why}");
        };
        let explain = |error: io::Error| trouble("write", &there, &workspace, error);
        refused(open(&there, &workspace).map(drop));
        refused(read_whole(&there, &workspace).map(drop));
        refused(metadata(&there, &workspace).map(drop).map_err(explain));
        refused(replace(&there, b"x", &workspace, &CancelFlag::default()).map(drop).map_err(explain));
        refused(replace(&new, b"x", &workspace, &CancelFlag::default()).map(drop).map_err(explain));
        refused(remove(&there, &workspace).map_err(explain));
        assert!(
            !trouble("read", &there, &workspace, io::ErrorKind::NotFound.into())
                .to_string()
                .contains("Did you mean d/")
        );
        let now = fs::read_dir(base.join("home")).expect("listed").count();
        assert_eq!((now, &*fs::read(base.join("home/hosts.yml")).expect("read")), (1, &b"secret"[..]));
    }

    /// A session's working directory was moved away and replaced by a link to the home directory: from then on the
    /// home directory was the workspace.
    #[test]
    fn a_replaced_workspace_is_refused() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let base = directory.path().canonicalize().expect("it is there");
        for file in ["w/file", "home/file"] {
            fs::create_dir_all(base.join(file).parent().expect("it has one")).expect("made");
            fs::write(base.join(file), file).expect("written");
        }
        let workspace = Workspace::new(base.join("w"), Vec::new(), Arc::default());
        fs::rename(base.join("w"), base.join("old")).expect("renamed");
        std::os::unix::fs::symlink(base.join("home"), base.join("w")).expect("linked");
        assert!(!workspace.contains(&workspace.real("file")), "it leads to the home");
        fs::remove_file(base.join("w")).expect("removed");
        fs::create_dir(base.join("w")).expect("made");
        let path = workspace.real("file");
        for error in [
            open(&path, &workspace).map(drop).expect_err("replaced").to_string(),
            replace(&path, b"x", &workspace, &CancelFlag::default()).expect_err("replaced").to_string(),
        ] {
            assert!(error.contains("was replaced since the session began"), "{error}");
            assert!(error.contains("opening the session again"), "{error}");
        }
    }
}
