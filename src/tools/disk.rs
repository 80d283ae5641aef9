//! What the file tools share: their card and the frame of their run, opening only what is a file,
//! writing it whole or not at all, and saying in a sentence what went wrong. It decides nothing about
//! permission.
//!
//! Paths that come here have had their links followed (`Workspace::real`), and the last part of a path
//! is opened without following links again: a link that was put there meanwhile fails. A directory on
//! the way that is exchanged for a link at just that moment is not noticed; whoever can do that runs
//! commands here already.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::OFlags;
use serde_json::Value;

use super::buffers::Saved;
use super::{BoxFuture, ToolContext, ToolResult, Workspace, input};
use epitome_files::whole::Unfinished;
use epitome_thread::{Card, Location, Shown, ToolKind};

/// Bytes of a file that is edited or replaced: all of it is held in memory, twice.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Bytes of one side of a diff that is shown: diffs are stored and sent as one line of JSON, of which
/// clients read at least 10 MiB.
pub const DIFF_BYTES_MAX: usize = 512 * 1024;

/// How long one call may work on the disk: twice what a search takes at most. What takes longer hangs,
/// in a network file system or in a named pipe that somebody called `.gitignore`.
const WORK_MAX: Duration = Duration::from_secs(60);

/// How long the look may take that comes before a person is asked.
const CHECK_MAX: Duration = Duration::from_secs(10);

/// Names of a directory that are looked at to find near ones.
const NEAR_NAMES_LOOKED_AT: usize = 2_000;

/// Near names that are suggested.
const NEAR_NAMES_MAX: usize = 3;

/// How alike a name must be to be suggested, from 0 to 1.
const NEARNESS: f32 = 0.6;

/// Tells work on the blocking pool that nobody waits for it any more.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs blocking work; dropping the future raises the flag that the work gets to look at.
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
            // The runtime is being shut down, and this future with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// The run of a tool that works on the disk. What is wrong with the call, or goes wrong, is a sentence
/// for the model.
pub fn run<C: Send + 'static>(
    call: Result<C, String>,
    context: ToolContext,
    work: impl FnOnce(C, &ToolContext, &Stop) -> Result<ToolResult, String> + Send + 'static,
) -> BoxFuture<ToolResult> {
    Box::pin(async move {
        let call = match call {
            Ok(call) => call,
            Err(sentence) => return ToolResult::failed(sentence),
        };
        within(WORK_MAX, blocking(move |stop| work(call, &context, stop))).await
    })
}

/// The check of a tool that works on the disk. A disk that hangs is left to the run, which says so.
pub fn check<C: Send + 'static>(
    call: Result<C, String>,
    context: ToolContext,
    work: impl FnOnce(C, &ToolContext) -> Result<(), String> + Send + 'static,
) -> BoxFuture<Result<(), String>> {
    Box::pin(async move {
        let call = call?;
        let checking = blocking(move |_| work(call, &context));
        tokio::time::timeout(CHECK_MAX, checking).await.unwrap_or(Ok(()))
    })
}

/// The preview of a tool that works on the disk: nothing for a call that is wrong, a sentence where it can't be done.
pub fn preview<C: Send + 'static>(
    call: Result<C, String>,
    context: ToolContext,
    work: impl FnOnce(C, &ToolContext) -> Result<Vec<Shown>, String> + Send + 'static,
) -> BoxFuture<Vec<Shown>> {
    Box::pin(async move {
        let Ok(call) = call else { return Vec::new() };
        let shown = blocking(move |_| work(call, &context)).await;
        shown.unwrap_or_else(|sentence| vec![Shown::Text { text: sentence }])
    })
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

/// The card of a tool that works on the file that `file_path` names; `verb` says what it does to it.
pub fn card(verb: &str, kind: ToolKind, input: &Value, workspace: &Workspace) -> Card {
    let Ok(path) = input::named(input, "file_path") else {
        return Card { title: format!("{verb} a file"), kind, locations: Vec::new() };
    };
    let path = workspace.resolve(&path);
    let title = format!("{verb} {}", workspace.display(&path));
    Card { title, kind, locations: vec![Location { path, line: None }] }
}

/// Opens a regular file for reading. Never waits for the other end of a pipe. The error is a sentence.
pub fn open(path: &Path, workspace: &Workspace) -> Result<(File, Metadata), String> {
    let name = workspace.display(path);
    // Looked at first, because opening some devices does something.
    let metadata = fs::symlink_metadata(path).map_err(|error| trouble("read", path, workspace, &error))?;
    regular(&metadata, &name)?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| trouble("read", path, workspace, &error))?;
    let metadata = file.metadata().map_err(|error| trouble("read", path, workspace, &error))?;
    regular(&metadata, &name)?;
    Ok((file, metadata))
}

/// The whole of a file as it is on the disk, up to `FILE_BYTES_MAX`.
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

/// A sentence on what could not be done, with the names that may have been meant.
pub fn trouble(what: &str, path: &Path, workspace: &Workspace, error: &io::Error) -> String {
    let name = workspace.display(path);
    match error.kind() {
        io::ErrorKind::NotFound => {
            let near = near_names(path);
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

/// Files beside a missing one whose names are like it; else those of the same name one level around.
fn near_names(path: &Path) -> Vec<PathBuf> {
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

/// Puts `bytes` in the place of a file, or makes it with the directories above it. Readers see the old
/// file or the new one, and a process that is killed on the way leaves nothing beside it. The mode is kept; other
/// hard links to the old file keep the old text.
///
/// Where no new file can be made beside the old one, or none put in its place (a mounted file, a
/// directory that may not be written), the old one is overwritten instead.
pub fn replace(path: &Path, bytes: &[u8], stop: &Stop) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("the path has no directory"))?;
    let old = match fs::symlink_metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match &old {
        // Renaming over it would ignore what its owner said.
        Some(old) if old.permissions().readonly() => {
            return Err(io::Error::other("the file is marked as read-only"));
        }
        Some(_) => {}
        None => fs::create_dir_all(directory)?,
    }
    let written = write_beside(directory, bytes, old.as_ref()).and_then(|new| {
        // It took its time, on some disks a long one.
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
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file =
        OpenOptions::new().write(true).truncate(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes a file hold a text: on the disk, or through the person's editor where that holds unsaved changes of it. Then
/// it tells whether the editor has saved it. The error is a sentence.
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

/// What is to take a file's place, on the disk and without a name.
fn write_beside(directory: &Path, bytes: &[u8], old: Option<&Metadata>) -> io::Result<Unfinished> {
    // Until the old one's rights are known to be right for it, what takes its place is nobody else's.
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let mut unfinished = Unfinished::begin(directory, mode)?;
    let file = unfinished.file();
    if let Some(old) = old {
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            // Only root may always do this; for others the file becomes theirs, as with most editors.
            let owner = rustix::process::Uid::from_raw(old.uid());
            let group = rustix::process::Gid::from_raw(old.gid());
            let _ = rustix::fs::fchown(&*file, Some(owner), Some(group));
        }
        file.set_permissions(old.permissions())?;
    }
    file.write_all(bytes)?;
    unfinished.sync()?;
    Ok(unfinished)
}

/// A diff, or a sentence where it would be too large to store and send.
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

/// A fenced block that no text inside can end.
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
    async fn work_that_hangs_is_given_up() {
        let result = within(Duration::from_millis(1), std::future::pending()).await;
        assert_eq!(result.status, OutcomeStatus::Failed);
    }

    #[test]
    fn a_card_names_the_file_as_a_person_would() {
        let workspace = Workspace { cwd: "/w".into(), directories: Vec::new(), environment: Arc::default() };
        let title = |input| card("Read", ToolKind::Read, &input, &workspace).title;
        assert_eq!(title(serde_json::json!({"file_path": "src/../a.txt"})), "Read a.txt");
        assert_eq!(title(serde_json::json!({})), "Read a file");
    }

    #[test]
    fn a_fence_is_longer_than_any_inside() {
        assert_eq!(fenced("sh", "ls"), "```sh\nls\n```");
        assert_eq!(fenced("", "```\ncode\n```\n"), "````\n```\ncode\n```\n````");
    }

    #[test]
    fn replacing_keeps_the_mode_and_leaves_nothing_beside() {
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

    /// A process that was killed while it wrote left `.epitome-….tmp` in the person's directory.
    #[test]
    fn what_is_on_its_way_has_no_name_yet() {
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
