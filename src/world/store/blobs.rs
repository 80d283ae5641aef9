//! Large bodies outside the journal: files named by the SHA-256 of their content, in one directory per
//! session.
//!
//! Sessions don't share blobs, so that deleting one session can never remove another's body. A missing or
//! changed blob affects only that body: the entry then contains a placeholder.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::disk::{Disk, PutMode};
use super::{DiskResultExt, StoreError};

/// Longest text kept within a journal line, in bytes. Longer ones would slow down every reader of the
/// journal, and sled keeps large values in files that it never syncs.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Most bytes read from a blob. Far above every limit on what becomes one (32 MB of tool output, in base64);
/// keeps a tampered file from exhausting memory.
const BLOB_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The large bodies of one session, by their [`digest`].
pub trait Blobs: Send + Sync + std::fmt::Debug {
    /// Stores a body durably. It may be stored already.
    fn put(&self, hash: &str, body: &[u8]) -> Result<(), StoreError>;

    /// `None` if there is no such body.
    fn get(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError>;
}

/// The blobs of one session as files.
#[derive(Clone, Debug)]
pub(super) struct BlobStore {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
}

/// The strings of an entry that were moved out: JSON pointers mapped to the hashes of the strings.
pub(super) type MovedStrings = Map<String, Value>;

impl BlobStore {
    pub fn new(disk: Arc<dyn Disk>, directory: PathBuf) -> BlobStore {
        BlobStore { disk, directory }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn write(&self, hash: &str, body: &[u8]) -> io::Result<()> {
        let path = self.directory.join(hash);
        if self.disk.put(&path, body, PutMode::Replace).if_found()?.is_some() {
            return Ok(());
        }
        self.disk.make_directory(&self.directory)?;
        self.disk.put(&path, body, PutMode::Replace)
    }

    /// Checks that a body exists and is unchanged.
    pub fn check(&self, hash: &str) -> Result<(), BodyError> {
        BodyReader::new(self).read(hash).map(drop)
    }

    /// Gives another session the same body, as a hard link where the file system supports it. Blobs are never
    /// modified, so sharing is safe.
    pub fn share(&self, hash: &str, with: &BlobStore) -> io::Result<()> {
        if !is_hash(hash) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a body has no valid name"));
        }
        with.disk.make_directory(&with.directory)?;
        let (from, to) = (self.directory.join(hash), with.directory.join(hash));
        match self.disk.link(&from, &to) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            Err(_) => self.copy(hash, with).map(drop),
        }
    }

    /// Gives another store the same body, and returns its length. A changed body is copied as it is.
    pub fn copy(&self, hash: &str, with: &BlobStore) -> io::Result<u64> {
        let body = self.disk.read(&self.directory.join(hash), BLOB_BYTES_MAX)?;
        with.write(hash, &body)?;
        Ok(body.len() as u64)
    }

    /// Makes the names of all blobs written so far durable; their contents already are.
    pub fn sync_names(&self) -> Result<(), StoreError> {
        // The directories of the session and of all blobs may be as new as the blob.
        for directory in self.directory.ancestors().take(3) {
            // A power loss may have removed all of them; their entries contain placeholders.
            self.disk.sync_directory(directory).if_found().doing("sync the directory", &self.directory)?;
        }
        Ok(())
    }

    /// Removes all blobs of the session.
    pub fn remove(&self) -> Result<(), StoreError> {
        self.disk.remove_directory(&self.directory).if_found().doing("remove", &self.directory).map(drop)
    }
}

/// Moves large strings and all data of images and documents out of an entry's JSON; each is stored durably before this
/// returns. Empty strings take their places.
///
/// Moved strings are recorded separately from the entry, by JSON pointer, so that no text of a user or tool can be
/// mistaken for a moved one.
pub(super) fn move_out(entry: &mut Value, blobs: &dyn Blobs) -> Result<MovedStrings, StoreError> {
    let mut moved = MovedStrings::new();
    move_from(entry, String::new(), false, blobs, &mut moved)?;
    Ok(moved)
}

/// `always`: whether a string at this place is moved even if it is short.
fn move_from(
    value: &mut Value,
    place: String,
    always: bool,
    blobs: &dyn Blobs,
    moved: &mut MovedStrings,
) -> Result<(), StoreError> {
    match value {
        Value::String(text) if always || text.len() > INLINE_BYTES_MAX => {
            let hash = digest(text.as_bytes());
            blobs.put(&hash, text.as_bytes())?;
            text.clear();
            moved.insert(place, Value::String(hash));
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                move_from(item, format!("{place}/{index}"), false, blobs, moved)?;
            }
        }
        Value::Object(fields) => {
            let is_attachment = is_attachment(fields);
            for (name, field) in fields.iter_mut() {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                let is_data = is_attachment && name == "data";
                move_from(field, format!("{place}/{escaped}"), is_data, blobs, moved)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Puts the moved strings back. One that can't be read is replaced by a placeholder that names it; an
/// image or document becomes a text part, because every provider would reject a broken one.
pub(super) fn move_in(entry: &mut Value, moved: &MovedStrings, bodies: &BodyReader<'_>) {
    for (place, hash) in moved {
        let Value::String(hash) = hash else { continue };
        let text = bodies.read(hash).unwrap_or_else(|reason| {
            tracing::warn!(blobs = ?bodies.blobs, hash, %reason, "blob cannot be read");
            let placeholder = format!("[A body of this entry is lost: blob {hash} {reason}.]");
            let parent = place.strip_suffix("/data").and_then(|parent| entry.pointer_mut(parent));
            if let Some(part) = parent.filter(|part| part.as_object().is_some_and(is_attachment)) {
                *part = json!({ "type": "text", "text": placeholder });
            }
            placeholder
        });
        if let Some(value) = entry.pointer_mut(place) {
            *value = Value::String(text);
        }
    }
}

/// Why a body has no text. The words continue a sentence about it.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("has no valid name")]
    InvalidName,
    #[error("is missing")]
    Missing,
    #[error("was changed")]
    Changed,
    #[error("is not text")]
    NotText(#[from] std::string::FromUtf8Error),
    #[error("cannot be read: {0}")]
    Read(#[from] StoreError),
    /// The store can't be reached. Each attempt may wait for a timeout, so there is only one.
    #[error("cannot be read")]
    NotTried,
}

/// Reads the bodies of one log, and records which are lost.
pub(super) struct BodyReader<'a> {
    blobs: &'a dyn Blobs,
    lost: RefCell<BTreeSet<String>>,
    /// Why bodies can't be read at the moment. That does not make them lost.
    unreachable: RefCell<Option<StoreError>>,
}

impl<'a> BodyReader<'a> {
    pub fn new(blobs: &'a dyn Blobs) -> BodyReader<'a> {
        BodyReader { blobs, lost: RefCell::default(), unreachable: RefCell::default() }
    }

    /// Reads a body and verifies its hash.
    fn read(&self, hash: &str) -> Result<String, BodyError> {
        self.verified(hash).inspect_err(|_| {
            self.lost.borrow_mut().insert(hash.to_owned());
        })
    }

    fn verified(&self, hash: &str) -> Result<String, BodyError> {
        if !is_hash(hash) {
            return Err(BodyError::InvalidName);
        }
        if self.unreachable.borrow().is_some() {
            return Err(BodyError::NotTried);
        }
        let body = match self.blobs.get(hash) {
            Err(error @ StoreError::Unreachable { .. }) => {
                self.unreachable.replace(Some(error));
                return Err(BodyError::NotTried);
            }
            body => body?.ok_or(BodyError::Missing)?,
        };
        if digest(&body) != hash {
            return Err(BodyError::Changed);
        }
        Ok(String::from_utf8(body)?)
    }

    /// Returns the lost bodies. Fails if some could not be read at the moment: their entries then contain placeholders,
    /// which must not be taken for the log's content.
    pub fn finish(self) -> Result<BTreeSet<String>, StoreError> {
        self.unreachable.into_inner().map_or_else(|| Ok(self.lost.into_inner()), Err)
    }
}

impl Blobs for BlobStore {
    /// An existing file is only checked for its length; reading verifies the hash.
    fn put(&self, hash: &str, body: &[u8]) -> Result<(), StoreError> {
        let path = self.directory.join(hash);
        if self.disk.stat(&path).is_ok_and(|found| found.is_file && found.bytes == body.len() as u64) {
            return Ok(());
        }
        self.write(hash, body).doing("write a blob in", &self.directory)
    }

    fn get(&self, hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.directory.join(hash);
        self.disk.read(&path, BLOB_BYTES_MAX).if_found().doing("read", &path)
    }
}

/// Whether a text is a valid hash. Hashes become file names, so nothing else may pass.
fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether the object is an image or document of a message or tool result.
fn is_attachment(fields: &Map<String, Value>) -> bool {
    matches!(fields.get("type").and_then(Value::as_str), Some("image" | "document"))
}

/// The name of a body: its SHA-256 in hexadecimal digits.
pub fn digest(body: &[u8]) -> String {
    use std::fmt::Write;
    Sha256::digest(body).iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing into a string cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn blobs() -> (tempfile::TempDir, BlobStore) {
        let directory = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(Arc::new(RealDisk), directory.path().join("blobs/s_1"));
        (directory, blobs)
    }

    #[test]
    fn small_text_stays_inline() {
        let (_directory, blobs) = blobs();
        let mut entry = json!({"text": "a".repeat(INLINE_BYTES_MAX)});
        assert!(move_out(&mut entry, &blobs).unwrap().is_empty());
        assert!(!blobs.directory().exists());
    }

    #[test]
    fn large_text_and_images_roundtrip_through_blobs() {
        let (_directory, blobs) = blobs();
        let entry = json!({
            "a/b~c": ["", "b".repeat(INLINE_BYTES_MAX + 1)],
            "content": [{"type": "image", "mime_type": "image/png", "data": "aGk="}],
        });
        let mut stored = entry.clone();
        let moved = move_out(&mut stored, &blobs).unwrap();
        assert_eq!(moved.keys().collect::<Vec<_>>(), ["/a~1b~0c/1", "/content/0/data"]);
        assert_eq!(stored["a/b~c"][1], "");
        assert_eq!(stored["content"][0]["data"], "");
        move_in(&mut stored, &moved, &BodyReader::new(&blobs));
        assert_eq!(stored, entry);
    }

    #[test]
    fn equal_bodies_share_one_file() {
        let (_directory, blobs) = blobs();
        let big = "x".repeat(INLINE_BYTES_MAX + 1);
        move_out(&mut json!([big.clone(), big]), &blobs).unwrap();
        assert_eq!(std::fs::read_dir(blobs.directory()).unwrap().count(), 1);
    }

    #[test]
    fn a_changed_blob_is_replaced_by_a_placeholder() {
        let (_directory, blobs) = blobs();
        let mut entry = json!({"text": "x".repeat(INLINE_BYTES_MAX + 1)});
        let moved = move_out(&mut entry, &blobs).unwrap();
        let hash = moved["/text"].as_str().unwrap();
        std::fs::write(blobs.directory().join(hash), "y").unwrap();
        move_in(&mut entry, &moved, &BodyReader::new(&blobs));
        let text = entry["text"].as_str().unwrap();
        assert!(text.contains(hash) && text.contains("was changed"), "{text}");
    }

    #[test]
    fn a_missing_image_becomes_a_text_part() {
        let (_directory, blobs) = blobs();
        let mut entry = json!([{"type": "image", "mime_type": "image/png", "data": "aGk="}]);
        let moved = move_out(&mut entry, &blobs).unwrap();
        blobs.remove().unwrap();
        move_in(&mut entry, &moved, &BodyReader::new(&blobs));
        assert_eq!(entry[0]["type"], "text");
        assert!(entry[0]["text"].as_str().unwrap().contains("is missing"));
        assert!(entry[0].get("data").is_none());
    }
}
