//! Shared by the file tools: tool cards, running with a timeout, opening regular files only, atomic writes
//! and error messages. It decides nothing about permissions.
//!
//! Links in the paths passed here are already resolved (`Workspace::real`), and the last component is opened
//! without following links again: a link that was put there meanwhile fails. A parent directory that is
//! replaced by a link at exactly that moment goes unnoticed; whoever can do that can already run commands
//! here.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::buffers::Saved;
use super::walk::{self, Ignored};
use super::{BoxFuture, ToolContext, ToolResult, Workspace, input, read_state};
use epitome_files::atomic_file::AtomicFile;
use epitome_platform::disk::open_without_following;
use epitome_thread::{Card, Location, Shown, ToolKind};

/// Maximum bytes of a file that is edited or replaced; two copies of it are in memory.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Bytes per side of a displayed diff: diffs are stored and sent as one line of JSON, of which clients accept
/// at least 10 MiB.
pub const DIFF_BYTES_MAX: usize = 512 * 1024;

/// Maximum time of one call's disk work, twice that of a search. Anything slower hangs, for example in a
/// network file system or in a named pipe called `.gitignore`.
const WORK_MAX: Duration = Duration::from_secs(60);

/// Maximum time of the check before the user is asked.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// Directory entries examined to find similar names.
const NEAR_NAMES_LOOKED_AT: usize = 2_000;

/// Files of the workspace examined to find the same name.
const SAME_NAMES_LOOKED_AT: usize = 20_000;

/// Similar names that are suggested.
const NEAR_NAMES_MAX: usize = 3;

/// Minimum similarity of a suggested name, from 0 to 1.
const NEARNESS: f32 = 0.6;

/// Signals to work on the blocking pool that its result is no longer needed.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs blocking work; dropping the future sets the flag that the work can check.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce(&Stop) -> T + Send + 'static) -> T {
    struct Raise(Stop);
    impl Drop for Raise {
        fn drop(&mut self) {
            self.0.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = Stop::default();
    let _raise = Raise(stop.clone());
    match tokio::task::spawn_blocking(move || work(&stop)).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and this future with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Runs a tool that works on the disk. Failures become messages for the model.
pub fn run(
    context: ToolContext,
    work: impl FnOnce(&ToolContext, &Stop) -> Result<ToolResult, String> + Send + 'static,
) -> BoxFuture<ToolResult> {
    Box::pin(within(WORK_MAX, blocking(move |stop| work(&context, stop))))
}

/// Runs the check of a tool that works on the disk. If the disk hangs, the check passes and the run reports
/// it.
pub fn check(
    context: ToolContext,
    work: impl FnOnce(&ToolContext) -> Result<(), String> + Send + 'static,
) -> BoxFuture<Result<(), String>> {
    let checking = blocking(move |_| work(&context));
    Box::pin(async move { tokio::time::timeout(CHECK_MAX, checking).await.unwrap_or(Ok(())) })
}

/// Runs the preview of a tool that works on the disk: a message if the call can't succeed.
pub fn preview(
    context: ToolContext,
    work: impl FnOnce(&ToolContext) -> Result<Vec<Shown>, String> + Send + 'static,
) -> BoxFuture<Vec<Shown>> {
    let shown = blocking(move |_| work(&context));
    Box::pin(async move { shown.await.unwrap_or_else(|sentence| vec![Shown::Text { text: sentence }]) })
}

async fn within(limit: Duration, work: impl Future<Output = Result<ToolResult, String>>) -> ToolResult {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.unwrap_or_else(ToolResult::failed),
        Err(_) => ToolResult::failed(format!(
            "The disk took more than {} seconds, so the call was given up. Try a smaller part; what was being \
             written may be there or not.",
            limit.as_secs()
        )),
    }
}

/// The card of a tool for the file named by `file_path`; `verb` describes the action.
pub fn card(verb: &str, kind: ToolKind, input: &Value, workspace: &Workspace) -> Card {
    let Ok(path) = input::named(input, "file_path") else {
        return Card { title: format!("{verb} a file"), kind, locations: Vec::new() };
    };
    let path = workspace.resolve(&path);
    let title = format!("{verb} {}", workspace.display(&path));
    Card { title, kind, locations: vec![Location { path, line: None }] }
}

/// Opens a regular file for reading. Never blocks on a pipe. The error is a message for the model.
pub fn open(path: &Path, workspace: &Workspace) -> Result<(File, Metadata), String> {
    let name = workspace.display(path);
    // Checked before opening, because merely opening some devices has side effects.
    let metadata = fs::symlink_metadata(path).map_err(|error| trouble("read", path, workspace, &error))?;
    regular(&metadata, &name)?;
    let opened = open_without_following(path, OpenOptions::new().read(true));
    let file = opened.map_err(|error| trouble("read", path, workspace, &error))?;
    let metadata = file.metadata().map_err(|error| trouble("read", path, workspace, &error))?;
    regular(&metadata, &name)?;
    Ok((file, metadata))
}

/// Reads an entire file from the disk, up to `FILE_BYTES_MAX`.
pub fn read_whole(path: &Path, workspace: &Workspace) -> Result<Vec<u8>, String> {
    let (file, metadata) = open(path, workspace)?;
    let mut bytes = Vec::with_capacity(metadata.len().min(FILE_BYTES_MAX) as usize);
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| trouble("read", path, workspace, &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!(
            "{} is larger than {FILE_BYTES_MAX} bytes, too large to be edited here. Change it with a command.",
            workspace.display(path)
        ));
    }
    Ok(bytes)
}

/// The content of a file.
pub struct Current {
    pub bytes: Vec<u8>,
    /// Whether it is the unsaved text of the user's editor, and not what is on the disk.
    pub is_unsaved: bool,
}

/// Reads an entire file, or its unsaved text if the user's editor has some.
pub fn current(path: &Path, context: &ToolContext) -> Result<Current, String> {
    let bytes = read_whole(path, &context.workspace)?;
    let unsaved = context.unsaved.text(path, &bytes).map(|text| text.as_bytes().to_vec());
    Ok(Current { is_unsaved: unsaved.is_some(), bytes: unsaved.unwrap_or(bytes) })
}

fn regular(metadata: &Metadata, name: &str) -> Result<(), String> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        return Err(format!(
            "{name} is a directory. Use glob_tool to list its files, or give the path of a file."
        ));
    } else if kind.is_symlink() {
        "a symbolic link that leads nowhere"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(format!("{name} is {what}, not a file that can be read or written."))
}

/// An error message, with suggestions of similar names.
pub fn trouble(what: &str, path: &Path, workspace: &Workspace, error: &io::Error) -> String {
    let name = workspace.display(path);
    match error.kind() {
        io::ErrorKind::NotFound => {
            let near = near_names(path, workspace);
            if near.is_empty() {
                return format!("There is no file {name}. Use glob_tool to find the right path.");
            }
            let near: Vec<String> = near.iter().map(|path| workspace.display(path)).collect();
            format!("There is no file {name}. Did you mean {}?", near.join(" or "))
        }
        io::ErrorKind::PermissionDenied => {
            format!("Cannot {what} {name}: the system does not permit it.")
        }
        io::ErrorKind::NotADirectory => {
            format!("Cannot {what} {name}: a part of its path is a file, not a directory.")
        }
        _ => format!("Cannot {what} {name}: {error}."),
    }
}

/// Files that may be meant by a missing one: in its directory with a similar name, or else in the workspace with
/// the same name.
fn near_names(path: &Path, workspace: &Workspace) -> Vec<PathBuf> {
    let mut near = similar_names(path);
    if near.is_empty() {
        let mut visited = 0;
        walk::files(&workspace.cwd, Ignored::LeftOut, &Stop::default(), |file| {
            visited += 1;
            if file.file_name() == path.file_name() {
                near.push(file.to_path_buf());
            }
            near.len() < NEAR_NAMES_MAX && visited < SAME_NAMES_LOOKED_AT
        });
    }
    near
}

/// Files in the directory of a missing one with similar names.
fn similar_names(path: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Vec::new();
    };
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names: Vec<String> = entries
        .take(NEAR_NAMES_LOOKED_AT)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let lower: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    let candidates: Vec<&str> = lower.iter().map(String::as_str).collect();
    let near = similar::get_close_matches(&*name.to_lowercase(), &candidates, NEAR_NAMES_MAX, NEARNESS);
    let original = |lowered: &str| lower.iter().position(|name| name == lowered).map(|index| &names[index]);
    near.into_iter().filter_map(original).map(|name| directory.join(name)).collect()
}

/// Replaces a file's content, or creates the file and its parent directories. Readers see either the old or
/// the new file, and a process killed in between leaves no temporary file. The mode is preserved; other hard
/// links to the old file keep the old content.
///
/// If no file can be created in the directory, or the old one can't be replaced (a mounted file, a directory
/// without write permission), the old one is overwritten instead.
pub fn replace(path: &Path, bytes: &[u8], stop: &Stop) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("the path has no directory"))?;
    let old = match fs::symlink_metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match &old {
        // A rename would bypass the read-only mode.
        Some(old) if old.permissions().readonly() => {
            return Err(io::Error::other("the file is marked as read-only"));
        }
        Some(_) => {}
        None => fs::create_dir_all(directory)?,
    }
    let written = write_beside(directory, bytes, old.as_ref()).and_then(|new| {
        // Writing takes long on some disks.
        if stop.requested() {
            return Err(io::Error::other("cancelled"));
        }
        new.put_unsynced(path)
    });
    let Err(error) = written else { return Ok(()) };
    let in_place = matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ResourceBusy | io::ErrorKind::CrossesDevices
    );
    if old.is_none() || !in_place || stop.requested() {
        return Err(error);
    }
    let mut file = open_without_following(path, OpenOptions::new().write(true).truncate(true))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Sets a file's text: on the disk, or through the user's editor if that has unsaved changes of the file. In
/// the latter case returns whether the editor has saved it. The error is a message for the model.
pub fn put(
    path: &Path,
    text: &str,
    is_unsaved: bool,
    context: &ToolContext,
    stop: &Stop,
) -> Result<Option<Saved>, String> {
    if is_unsaved && !stop.requested() {
        let name = context.workspace.display(path);
        let taken = context.unsaved.put(path, text);
        return taken.map(Some).map_err(|why| format!("Cannot change {name}: {why}."));
    }
    replace(path, text.as_bytes(), stop)
        .map(|()| None)
        .map_err(|error| trouble("write", path, &context.workspace, &error))
}

/// The result of a change of one file, whose new text the model knows from now on. `done` is the report for
/// the model.
pub fn changed(
    path: &Path,
    text: &str,
    mut done: String,
    saved: Option<Saved>,
    context: &ToolContext,
) -> ToolResult {
    let known = [(path.to_path_buf(), Some(read_state::state_of(text.as_bytes())))];
    context.files.note(&known);
    if let Some(saved) = saved {
        done.push_str(&format!(" {}", saved.note()));
    }
    ToolResult { raw: Some(read_state::raw(&known)), ..ToolResult::completed(done) }
}

/// Writes a file's replacement to an unnamed file on the same disk.
fn write_beside(directory: &Path, bytes: &[u8], old: Option<&Metadata>) -> io::Result<AtomicFile> {
    // The replacement isn't accessible to others until it has the permissions of the old file.
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let mut unfinished = AtomicFile::begin(directory, mode)?;
    let file = unfinished.file();
    if let Some(old) = old {
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            // Only root may always do this; otherwise the file becomes the current user's, as with most
            // editors.
            let _ = fchown(&*file, Some(old.uid()), Some(old.gid()));
        }
        file.set_permissions(old.permissions())?;
    }
    file.write_all(bytes)?;
    unfinished.sync()?;
    Ok(unfinished)
}

/// A diff, or a message if it would be too large to store and send.
pub fn shown_diff(path: PathBuf, old: Option<String>, new: String) -> Shown {
    let old_length = old.as_ref().map_or(0, String::len);
    if old_length.max(new.len()) <= DIFF_BYTES_MAX {
        return Shown::Diff { path, old, new };
    }
    Shown::Text {
        text: format!(
            "{}: {old_length} bytes become {} bytes, too large for a diff.",
            path.display(),
            new.len()
        ),
    }
}

/// A fenced block with a fence that the text can't close.
pub fn fenced(language: &str, text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest + 1));
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}{language}\n{text}{end}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::OutcomeStatus;

    #[tokio::test]
    async fn hanging_work_times_out() {
        let result = within(Duration::from_millis(1), std::future::pending()).await;
        assert_eq!(result.status, OutcomeStatus::Failed);
    }

    #[test]
    fn card_displays_the_relative_path() {
        let workspace = Workspace::new("/w", Vec::new(), Arc::default());
        let title = |input| card("Read", ToolKind::Read, &input, &workspace).title;
        assert_eq!(title(serde_json::json!({"file_path": "src/../a.txt"})), "Read a.txt");
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
            let message = trouble("read", &workspace.resolve(path), &workspace, &error());
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
        let path = directory.path().join("run.sh");
        fs::write(&path, "old").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("set");
        replace(&path, b"new", &Stop::default()).expect("replaced");
        assert_eq!(fs::read(&path).expect("read"), b"new");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o750);
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    /// Regression test: a process that was killed during a write left `.epitome-….tmp` in the user's
    /// directory.
    #[test]
    fn pending_replacement_has_no_name() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("a");
        fs::write(&path, "old").expect("written");
        let old = fs::metadata(&path).expect("there");
        let new = write_beside(directory.path(), b"new", Some(&old)).expect("written");
        let names =
            fs::read_dir(directory.path()).expect("listed").map(|entry| entry.expect("one").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["a"]);
        drop(new);
        assert_eq!(fs::read(&path).expect("read"), b"old");
    }

    #[test]
    fn a_cancelled_write_leaves_the_old_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("a");
        fs::write(&path, "old").expect("written");
        let stop = Stop::default();
        stop.0.store(true, Ordering::Relaxed);
        assert!(replace(&path, b"new", &stop).is_err());
        assert_eq!(fs::read(&path).expect("read"), b"old");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 1);
    }
}
