//! Reads the file of a session, and other files that belong to it.

use std::io::{self, Read};
use std::path::{Component, Path};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{ImportContext, detect, stored};
use epitome_platform::root::DirectoryEntry;
use epitome_thread::problem::Problem;
use epitome_transfer::{IMPORT_BYTES_MAX, ImportDraft, ImportSource};

/// Reads the conversations of a file whose contents are these.
pub fn read_bytes(path: &Path, cwd: &Path, bytes: Vec<u8>) -> Result<Vec<ImportDraft>, Problem> {
    if stored::is_database(path) {
        let problem = Problem::new(path, "this is a database of many sessions");
        return Err(
            problem.with_hint("`epitome sessions import --from opencode` or `--from kodelet` lists them")
        );
    }
    let (text, is_lossy) = match stored::text(path) {
        Some(text) => (text.map_err(|error| Problem::unreadable(path, &error))?, false),
        None => text_of(path, bytes)?,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let folder = path.parent().unwrap_or(path);
    let sibling = |name: &Path| read_sibling(folder, name);
    let context = ImportContext { cwd, now, read_sibling: &sibling };
    let mut drafts = super::read(path, &text, &context)?;
    if is_lossy {
        let note = "it contains bytes that are not UTF-8; each became the character \u{fffd}";
        drafts.iter_mut().for_each(|draft| draft.notes.push(note.to_owned()));
    }
    Ok(drafts)
}

/// Returns the contents as text. In sessions of other agents, bytes that are not UTF-8 are replaced, which the second
/// result reports: the agent may have been killed in the middle of a character.
fn text_of(path: &Path, bytes: Vec<u8>) -> Result<(String, bool), Problem> {
    let error = match String::from_utf8(bytes) {
        Ok(text) => return Ok((text, false)),
        Err(error) => error,
    };
    let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
    if detect(&text).is_some_and(ImportSource::is_foreign) {
        return Ok((text, true));
    }
    let at = error.utf8_error().valid_up_to();
    Err(Problem::new(path, format!("this file is not text: byte {at} is not UTF-8")))
}

/// Reads another file of an imported session, in or below its directory; paths that lead elsewhere are rejected.
pub fn read_sibling(folder: &Path, name: &Path) -> Option<String> {
    String::from_utf8(read_below(folder, name).ok()?).ok()
}

/// Reads the first `IMPORT_BYTES_MAX` bytes of a regular file below `folder`. A session that someone sent may contain links
/// to private files of the user, and pipes, so neither is opened.
pub fn read_below(folder: &Path, name: &Path) -> io::Result<Vec<u8>> {
    if !name.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(io::Error::other("its path leads elsewhere"));
    }
    // The user may reach the directory itself by links.
    let real = Path::new(".").join(folder).canonicalize()?.join(name);
    let file = DirectoryEntry::at(&real)?.read()?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(IMPORT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn make_pipe(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo runs").success());
    }

    /// An archive of a session had a link to a private key in place of a result's file. The import followed it, and the
    /// key was in the log. A pipe in that place blocked the import forever.
    #[test]
    fn other_files_of_a_session_are_not_reached_by_links() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (private, session) = (folder.path().join("private"), folder.path().join("session"));
        fs::create_dir(&private).expect("made");
        fs::create_dir_all(session.join("results")).expect("made");
        for file in [private.join("key"), session.join("results/one")] {
            fs::write(file, "text").expect("written");
        }
        symlink(&private, session.join("directory")).expect("linked");
        symlink(private.join("key"), session.join("results/key")).expect("linked");
        let pipe = session.join("pipe");
        make_pipe(&pipe);
        for name in ["directory/key", "results/key", "pipe", "results", "../private/key", "missing"] {
            assert_eq!(read_sibling(&session, Path::new(name)), None, "{name}");
        }
        // The session's directory may be a link: the user chose it.
        let chosen = folder.path().join("chosen");
        symlink(&session, &chosen).expect("linked");
        for folder in [&session, &chosen] {
            assert_eq!(read_sibling(folder, Path::new("results/one")).as_deref(), Some("text"));
        }
    }
}
