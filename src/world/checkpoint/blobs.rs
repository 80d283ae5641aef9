//! Compressed file contents of one session, stored in a directory under their SHA-256. Damage is detected when
//! reading. The caller decides which contents are needed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::CheckpointDisk;
use super::user_files::UserFiles;
use epitome_files::disk::PutMode;

/// Compression level, from 0 to 10: a command waits for the first scan of a workspace, and the lowest level already
/// reduces source code to a third.
const COMPRESSION: u8 = 1;

/// The stored contents of one session. `put` may be called from several threads.
pub struct CheckpointBlobs {
    disk: CheckpointDisk,
    directory: PathBuf,
    stored: Mutex<StoredContents>,
}

#[derive(Default)]
struct StoredContents {
    /// The contents by their hashes.
    known: HashMap<String, StoredContent>,
    /// Total size on the disk in bytes.
    bytes: u64,
}

#[derive(Clone, Copy)]
struct StoredContent {
    bytes: u64,
    /// Whether this process has written or read it. A power loss can damage what an earlier process had written.
    is_sound: bool,
}

impl StoredContents {
    fn forget(&mut self, hash: &str) {
        let bytes = self.known.remove(hash).map_or(0, |content| content.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl CheckpointBlobs {
    /// Opens the directory and lists the stored contents.
    pub fn open(disk: CheckpointDisk, directory: PathBuf) -> io::Result<CheckpointBlobs> {
        let mut stored = StoredContents::default();
        let names = match disk.disk.names(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        for name in names {
            let path = directory.join(&name);
            match is_hash(&name) {
                true => {
                    let bytes = disk.disk.stat(&path)?.bytes;
                    stored.bytes += bytes;
                    stored.known.insert(name, StoredContent { bytes, is_sound: false });
                }
                // Remove the leftover of an interrupted write.
                false => drop(disk.disk.remove_file(&path)),
            }
        }
        Ok(CheckpointBlobs { disk, directory, stored: Mutex::new(stored) })
    }

    /// The files whose contents these are.
    pub fn files(&self) -> &dyn UserFiles {
        &*self.disk.files
    }

    /// Size on the disk in bytes.
    pub fn bytes(&self) -> u64 {
        self.stored.lock().bytes
    }

    /// Stores a file's content and returns its hash.
    pub fn put(&self, content: &[u8]) -> io::Result<String> {
        let hash = hash(content);
        let known = self.stored.lock().known.get(&hash).copied();
        if known.is_some_and(|known| known.is_sound) {
            return Ok(hash);
        }
        let packed = compress_to_vec_zlib(content, COMPRESSION);
        let path = self.directory.join(&hash);
        // The same content is compressed to the same bytes.
        let is_there =
            known.is_some() && self.disk.disk.read(&path, u64::MAX).is_ok_and(|found| found == packed);
        if !is_there {
            self.disk.put(&path, &packed, PutMode::Unsynced)?;
        }
        let mut stored = self.stored.lock();
        let content = StoredContent { bytes: packed.len() as u64, is_sound: true };
        let before = stored.known.insert(hash.clone(), content);
        stored.bytes =
            stored.bytes + content.bytes - before.map_or(0, |before| before.bytes.min(stored.bytes));
        Ok(hash)
    }

    /// Returns a file's content by its hash.
    pub fn get(&self, wanted: &str, bytes: u64) -> io::Result<Vec<u8>> {
        let packed = self.disk.disk.read(&self.directory.join(wanted), u64::MAX);
        let packed = packed.map_err(|error| match error.kind() {
            kind @ io::ErrorKind::NotFound => {
                io::Error::new(kind, "its earlier content is not stored any more")
            }
            kind => io::Error::new(kind, format!("its stored content can't be read: {error}")),
        })?;
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "its stored content is damaged");
        let limit = usize::try_from(bytes).unwrap_or(usize::MAX);
        let content = decompress_to_vec_zlib_with_limit(&packed, limit).map_err(|_| damaged())?;
        if hash(&content) == wanted { Ok(content) } else { Err(damaged()) }
    }

    /// Removes all contents except the needed ones.
    pub fn retain(&self, needed: &HashSet<String>) {
        let mut stored = self.stored.lock();
        let unneeded: Vec<String> =
            stored.known.keys().filter(|hash| !needed.contains(*hash)).cloned().collect();
        for hash in unneeded {
            // If the file can't be removed now, it is removed with the session.
            let is_removed = self.disk.disk.remove_file(&self.directory.join(&hash)).is_ok();
            match is_removed {
                true => stored.forget(&hash),
                false => _ = stored.known.remove(&hash),
            }
        }
    }

    /// Syncs the contents with these hashes to the disk. After an error they are written again before they are needed
    /// next: the system may have dropped what it could not write, though it can still be read.
    pub fn sync<'a>(&self, hashes: impl Iterator<Item = &'a str>) -> io::Result<()> {
        let hashes: Vec<&str> = hashes.collect();
        if hashes.is_empty() {
            return Ok(());
        }
        let files: Vec<PathBuf> = hashes.iter().map(|hash| self.directory.join(hash)).collect();
        let disk = &self.disk;
        let synced = disk.disk.sync_files(&files).and_then(|()| disk.sync_names(&self.directory));
        if synced.is_err() {
            let mut stored = self.stored.lock();
            for hash in hashes {
                stored.forget(hash);
            }
        }
        synced
    }
}

pub fn hash(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
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
        let blobs =
            CheckpointBlobs::open(CheckpointDisk::real(), directory.path().join("blobs")).expect("opened");
        let name = blobs.put(b"\0binary\xff").expect("kept");
        assert_eq!(blobs.get(&name, 8).expect("it is there"), b"\0binary\xff");
        assert!(blobs.get(&hash(b"other"), 8).expect_err("it is not").to_string().contains("not stored"));
        std::fs::write(directory.path().join("blobs").join(&name), b"nonsense").expect("written");
        assert!(blobs.get(&name, 8).expect_err("it is damaged").to_string().contains("damaged"));
    }

    /// A content that an earlier process had stored counted as stored, even if a power loss had left its file empty: a
    /// rewind took it for saved and replaced the user's file, and the undo could not bring that content back.
    #[test]
    fn a_content_that_was_damaged_is_stored_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = directory.path().join("blobs");
        let open = || CheckpointBlobs::open(CheckpointDisk::real(), place.clone()).expect("opened");
        let name = open().put(b"a text").expect("kept");
        std::fs::write(place.join(&name), b"").expect("written");
        let blobs = open();
        assert_eq!(blobs.put(b"a text").expect("kept again"), name);
        assert_eq!(blobs.get(&name, 6).expect("it is there"), b"a text");
        assert_eq!(blobs.bytes(), open().bytes());
    }

    #[test]
    fn unneeded_contents_are_removed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = directory.path().join("blobs");
        let blobs = CheckpointBlobs::open(CheckpointDisk::real(), place.clone()).expect("opened");
        let (a, b) = (blobs.put(b"a").expect("kept"), blobs.put(b"b").expect("kept"));
        blobs.retain(&HashSet::from([a.clone()]));
        let again = CheckpointBlobs::open(CheckpointDisk::real(), place).expect("opened");
        assert_eq!(again.bytes(), blobs.bytes());
        assert!(again.get(&a, 1).is_ok() && again.get(&b, 1).is_err());
        again.put(b"b").expect("kept again");
        assert!(again.get(&b, 1).is_ok());
    }
}
