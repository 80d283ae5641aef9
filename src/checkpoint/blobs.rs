//! Compressed file contents of one session, stored in a directory under their SHA-256. Damage is detected when
//! reading. The caller decides which contents are needed.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use sha2::{Digest, Sha256};

use epitome_files::atomic_file::{private_directory, replace_private_unsynced};
use epitome_platform::disk::sync_files;

/// Compression level, from 0 to 10: a command waits for the first scan of a workspace, and the lowest level already
/// reduces source code to a third.
const COMPRESSION: u8 = 1;

/// The stored contents of one session. `put` may be called from several threads.
pub struct CheckpointBlobs {
    directory: PathBuf,
    stored: Mutex<StoredHashes>,
}

#[derive(Default)]
struct StoredHashes {
    /// Hashes of the stored contents.
    known: HashSet<String>,
    /// Total size on the disk in bytes.
    bytes: u64,
}

impl CheckpointBlobs {
    /// Opens the directory and lists the stored contents.
    pub fn open(directory: PathBuf) -> io::Result<CheckpointBlobs> {
        let mut stored = StoredHashes::default();
        let listing = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            listing => Some(listing?),
        };
        for file in listing.into_iter().flatten() {
            let file = file?;
            let Ok(name) = file.file_name().into_string() else { continue };
            match is_hash(&name) {
                true => {
                    stored.bytes += file.metadata()?.len();
                    stored.known.insert(name);
                }
                // Remove the leftover of an interrupted write.
                false => drop(fs::remove_file(file.path())),
            }
        }
        Ok(CheckpointBlobs { directory, stored: Mutex::new(stored) })
    }

    /// Size on the disk in bytes.
    pub fn bytes(&self) -> u64 {
        self.stored().bytes
    }

    fn stored(&self) -> MutexGuard<'_, StoredHashes> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a file's content and returns its hash.
    pub fn put(&self, content: &[u8]) -> io::Result<String> {
        let hash = hash(content);
        if self.stored().known.contains(&hash) {
            return Ok(hash);
        }
        let packed = compress_to_vec_zlib(content, COMPRESSION);
        let path = self.directory.join(&hash);
        replace_private_unsynced(&path, &packed).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                private_directory(&self.directory)?;
                replace_private_unsynced(&path, &packed)
            }
            _ => Err(error),
        })?;
        let mut stored = self.stored();
        if stored.known.insert(hash.clone()) {
            stored.bytes += packed.len() as u64;
        }
        Ok(hash)
    }

    /// Returns a file's content by its hash. The error is a clause that continues a sentence about a file.
    pub fn get(&self, wanted: &str, bytes: u64) -> Result<Vec<u8>, String> {
        let packed = fs::read(self.directory.join(wanted)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "its earlier content is not stored any more".to_owned(),
            _ => format!("its stored content can't be read: {error}"),
        })?;
        let limit = usize::try_from(bytes).unwrap_or(usize::MAX);
        let content = decompress_to_vec_zlib_with_limit(&packed, limit)
            .map_err(|_| "its stored content is damaged".to_owned())?;
        match hash(&content) == wanted {
            true => Ok(content),
            false => Err("its stored content is damaged".to_owned()),
        }
    }

    /// Removes all contents except the needed ones.
    pub fn retain(&self, needed: &HashSet<String>) {
        let mut stored = self.stored();
        let unneeded: Vec<String> =
            stored.known.iter().filter(|hash| !needed.contains(*hash)).cloned().collect();
        for hash in unneeded {
            let path = self.directory.join(&hash);
            let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            // If the file can't be removed now, it is removed with the session.
            if fs::remove_file(&path).is_ok() {
                stored.bytes = stored.bytes.saturating_sub(bytes);
            }
            stored.known.remove(&hash);
        }
    }

    /// Syncs the contents with these hashes to the disk.
    pub fn sync<'a>(&self, hashes: impl Iterator<Item = &'a str>) -> io::Result<()> {
        let files: Vec<PathBuf> = hashes.map(|hash| self.directory.join(hash)).collect();
        if files.is_empty() {
            return Ok(());
        }
        sync_files(&files)?;
        match File::open(&self.directory) {
            Ok(directory) => directory.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

pub fn hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_hash(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_contents_are_detected() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let blobs = CheckpointBlobs::open(directory.path().join("blobs")).expect("opened");
        let name = blobs.put(b"\0binary\xff").expect("kept");
        assert_eq!(blobs.get(&name, 8).expect("it is there"), b"\0binary\xff");
        assert!(blobs.get(&hash(b"other"), 8).expect_err("it is not").contains("not stored"));
        fs::write(directory.path().join("blobs").join(&name), b"nonsense").expect("written");
        assert!(blobs.get(&name, 8).expect_err("it is damaged").contains("damaged"));
    }

    #[test]
    fn unneeded_contents_are_removed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = directory.path().join("blobs");
        let blobs = CheckpointBlobs::open(place.clone()).expect("opened");
        let (a, b) = (blobs.put(b"a").expect("kept"), blobs.put(b"b").expect("kept"));
        blobs.retain(&HashSet::from([a.clone()]));
        let again = CheckpointBlobs::open(place).expect("opened");
        assert_eq!(again.bytes(), blobs.bytes());
        assert!(again.get(&a, 1).is_ok() && again.get(&b, 1).is_err());
        again.put(b"b").expect("kept again");
        assert!(again.get(&b, 1).is_ok());
    }
}
