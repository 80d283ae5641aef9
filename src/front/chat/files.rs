//! What the chat looks up in its directory: the files for mentions, and the uncommitted changes.

use std::path::Path;
use std::time::Duration;

use epitome_platform::child_output::{self, OutputLimits};

/// Files that are offered at most, directories that are searched for them, and bytes of changes that are shown.
const FILES_MAX: usize = 50_000;
const DIRECTORIES_MAX: usize = 5_000;
const DIFF_BYTES_MAX: usize = 256 * 1024;

/// Limits of Git.
const LIMITS: OutputLimits<'static> =
    OutputLimits { time: Duration::from_secs(30), bytes: 16 << 20, is_over: &|| None };

/// The files of a directory, relative to it: those that Git does not ignore, or all that are not hidden.
pub fn list(cwd: &Path) -> Vec<String> {
    let listed = git(cwd, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    match listed {
        Ok(listed) => {
            listed.split('\0').filter(|file| !file.is_empty()).take(FILES_MAX).map(str::to_owned).collect()
        }
        Err(_) => walk(cwd),
    }
}

fn walk(cwd: &Path) -> Vec<String> {
    let (mut files, mut pending) = (Vec::new(), vec![cwd.to_path_buf()]);
    let mut searched = 0;
    while let Some(directory) = pending.pop() {
        searched += 1;
        if searched > DIRECTORIES_MAX || files.len() >= FILES_MAX {
            break;
        }
        for entry in directory.read_dir().into_iter().flatten().flatten() {
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_hidden => pending.push(entry.path()),
                Ok(kind) if kind.is_file() && !is_hidden => {
                    files.extend(
                        entry.path().strip_prefix(cwd).ok().and_then(Path::to_str).map(str::to_owned),
                    );
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
    files
}

/// The uncommitted changes of the directory's repository. Fails with a sentence.
pub fn diff(cwd: &Path) -> Result<String, String> {
    let mut diff = git(cwd, &["diff", "--no-ext-diff", "--no-textconv", "HEAD"])?;
    if diff.len() > DIFF_BYTES_MAX {
        diff.truncate(diff.floor_char_boundary(DIFF_BYTES_MAX));
        diff.push_str("\n[cut here]");
    }
    Ok(diff)
}

fn git(cwd: &Path, arguments: &[&str]) -> Result<String, String> {
    child_output::output_of(child_output::git(arguments), cwd, &LIMITS)
        .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_without_ignored_and_hidden_ones() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        for file in ["a.rs", "src/b.rs", ".hidden/c", "out/d"] {
            let path = scratch.path().join(file);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            std::fs::write(path, "").expect("a file");
        }
        let mut files = walk(scratch.path());
        files.sort();
        assert_eq!(files, ["a.rs", "out/d", "src/b.rs"]);
        assert!(git(scratch.path(), &["init", "--quiet"]).is_ok());
        std::fs::write(scratch.path().join(".gitignore"), "out").expect("a file");
        let mut files = list(scratch.path());
        files.sort();
        assert_eq!(files, [".gitignore", ".hidden/c", "a.rs", "src/b.rs"]);
        assert!(diff(scratch.path()).is_err(), "there is no commit");
    }
}
