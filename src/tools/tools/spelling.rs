//! The spelling of a path on the disk. Unicode has several for the same name: macOS decomposes accents, models and keyboards
//! compose them.

use std::path::{Component, Path, PathBuf};

use unicode_normalization::UnicodeNormalization as _;

/// Maximum number of entries of a directory that are compared with a name.
const ENTRIES_MAX: usize = 10_000;

/// Returns the existing path whose name differs only in its spelling, or the same path.
pub fn on_disk(path: PathBuf) -> PathBuf {
    if path.as_os_str().as_encoded_bytes().is_ascii() || path.symlink_metadata().is_ok() {
        return path;
    }
    let mut found = PathBuf::new();
    for component in path.components() {
        let next = found.join(component);
        found = match component {
            Component::Normal(_) if next.symlink_metadata().is_err() => same_name(&next).unwrap_or(next),
            _ => next,
        };
    }
    found
}

fn same_name(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str().filter(|name| !name.is_ascii())?;
    let entries = path.parent()?.read_dir().ok()?.take(ENTRIES_MAX).flatten();
    let is_same = |entry: &std::fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|other| other.nfc().eq(name.nfc()))
    };
    entries.into_iter().find(is_same).map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file from a Mac was listed, and could not be read under the name that the model wrote.
    #[test]
    fn a_name_is_found_in_its_other_spelling() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let decomposed = scratch.path().join("cafe\u{301}").join("u\u{308}ber.txt");
        std::fs::create_dir_all(decomposed.parent().expect("it has one")).expect("a directory");
        std::fs::write(&decomposed, "").expect("a file");
        let composed = scratch.path().join("caf\u{e9}").join("\u{fc}ber.txt");
        assert_eq!(on_disk(composed), decomposed);
        let new = scratch.path().join("caf\u{e9}").join("n\u{e9}w.txt");
        assert_eq!(on_disk(new), scratch.path().join("cafe\u{301}").join("n\u{e9}w.txt"));
        let other = scratch.path().join("cafe.txt");
        assert_eq!(on_disk(other.clone()), other);
    }
}
