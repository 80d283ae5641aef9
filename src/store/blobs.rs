//! Large bodies outside the journal: files named by the SHA-256 of their content, in one directory per
//! session.
//!
//! Sessions don't share blobs, so that deleting one session can never remove another's body. A missing or
//! changed blob affects only that body: the entry then contains a placeholder.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::disk::{Disk, PutMode};

/// Longest text kept within a journal line, in bytes. Longer ones would slow down every reader of the
/// journal, and sled keeps large values in files that it never syncs.
pub(super) const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Most bytes read from a blob. Far above every limit on what becomes one (32 MB of tool output, in base64);
/// keeps a tampered file from exhausting memory.
const BLOB_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The blobs of one session.
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

    /// Moves large strings and all data of images and documents out of an entry's JSON; each is written and
    /// synced before this returns. Empty strings take their paths.
    ///
    /// Moved strings are recorded separately from the entry, by JSON pointer, so that no text of a user or
    /// tool can be mistaken for a moved one.
    pub fn move_out(&self, entry: &mut Value) -> io::Result<MovedStrings> {
        let mut moved = MovedStrings::new();
        self.walk(entry, &mut String::new(), &mut moved)?;
        Ok(moved)
    }

    fn walk(&self, value: &mut Value, place: &mut String, moved: &mut MovedStrings) -> io::Result<()> {
        match value {
            Value::String(text) => {
                if text.len() > INLINE_BYTES_MAX {
                    self.move_string(text, place, moved)?;
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.walk_child(item, &index.to_string(), place, moved)?;
                }
            }
            Value::Object(fields) => {
                let is_attachment = is_attachment(fields);
                for (name, field) in fields.iter_mut() {
                    match field {
                        Value::String(data) if is_attachment && name == "data" => {
                            let end = place.len();
                            place.push_str("/data");
                            self.move_string(data, place, moved)?;
                            place.truncate(end);
                        }
                        field => {
                            let escaped = name.replace('~', "~0").replace('/', "~1");
                            self.walk_child(field, &escaped, place, moved)?;
                        }
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    fn walk_child(
        &self,
        child: &mut Value,
        name: &str,
        place: &mut String,
        moved: &mut MovedStrings,
    ) -> io::Result<()> {
        let end = place.len();
        place.push('/');
        place.push_str(name);
        self.walk(child, place, moved)?;
        place.truncate(end);
        Ok(())
    }

    fn move_string(&self, text: &mut String, place: &str, moved: &mut MovedStrings) -> io::Result<()> {
        let hash = self.write(text.as_bytes())?;
        text.clear();
        moved.insert(place.to_owned(), Value::String(hash));
        Ok(())
    }

    /// Puts the moved strings back. One that can't be read is replaced by a placeholder that names it; an
    /// image or document becomes a text part, because every provider would reject a broken one.
    pub fn move_in(&self, entry: &mut Value, moved: &MovedStrings) {
        for (place, hash) in moved {
            let Value::String(hash) = hash else { continue };
            let parent = place.strip_suffix("/data");
            match self.read(hash) {
                Ok(text) => {
                    if let Some(value) = entry.pointer_mut(place) {
                        *value = Value::String(text);
                    }
                }
                Err(reason) => {
                    tracing::warn!(directory = %self.directory.display(), hash, %reason, "blob cannot be read");
                    let placeholder = format!("[A body of this entry is lost: blob {hash} {reason}.]");
                    match parent.and_then(|parent| entry.pointer_mut(parent)) {
                        Some(Value::Object(part)) if is_attachment(part) => {
                            part.clear();
                            part.insert("type".to_owned(), Value::String("text".to_owned()));
                            part.insert("text".to_owned(), Value::String(placeholder));
                        }
                        _ => {
                            if let Some(value) = entry.pointer_mut(place) {
                                *value = Value::String(placeholder);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Writes a body and returns its hash. An existing file is only checked for its length; reading verifies
    /// the hash.
    fn write(&self, body: &[u8]) -> io::Result<String> {
        let hash = hex(&Sha256::digest(body));
        let path = self.directory.join(&hash);
        if self.disk.stat(&path).is_ok_and(|found| found.is_file && found.bytes == body.len() as u64) {
            return Ok(hash);
        }
        self.put(&hash, body)?;
        Ok(hash)
    }

    fn put(&self, hash: &str, body: &[u8]) -> io::Result<()> {
        let path = self.directory.join(hash);
        match self.disk.put(&path, body, PutMode::Replace) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.disk.make_directory(&self.directory)?;
                self.disk.put(&path, body, PutMode::Replace)
            }
            put => put,
        }
    }

    /// Checks that a body exists and is unchanged; the error is the rest of a sentence.
    pub fn check(&self, hash: &str) -> Result<(), String> {
        self.read(hash).map(drop)
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
        with.put(hash, &body)?;
        Ok(body.len() as u64)
    }

    fn read(&self, hash: &str) -> Result<String, String> {
        if !is_hash(hash) {
            return Err("has no valid name".to_owned());
        }
        let body = self.disk.read(&self.directory.join(hash), BLOB_BYTES_MAX);
        let body = body.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "is missing".to_owned(),
            _ => format!("cannot be read: {error}"),
        })?;
        if hex(&Sha256::digest(&body)) != hash {
            return Err("was changed".to_owned());
        }
        String::from_utf8(body).map_err(|_| "is not text".to_owned())
    }

    /// Makes the names of all blobs written so far durable; their contents already are.
    pub fn sync_names(&self) -> io::Result<()> {
        // The directories of the session and of all blobs may be as new as the blob.
        let sync = |directory: &Path| match self.disk.sync_directory(directory) {
            // A power loss removed all of them; their entries contain placeholders.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced,
        };
        self.directory.ancestors().take(3).try_for_each(sync)
    }

    /// Removes all blobs of the session.
    pub fn remove(&self) -> io::Result<()> {
        match self.disk.remove_directory(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
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

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing into a string cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;
    use serde_json::json;

    fn blobs() -> (tempfile::TempDir, BlobStore) {
        let directory = tempfile::tempdir().unwrap();
        let blobs = BlobStore::new(Arc::new(RealDisk), directory.path().join("blobs/s_1"));
        (directory, blobs)
    }

    #[test]
    fn small_text_stays_inline() {
        let (_directory, blobs) = blobs();
        let mut entry = json!({"text": "a".repeat(INLINE_BYTES_MAX)});
        assert!(blobs.move_out(&mut entry).unwrap().is_empty());
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
        let moved = blobs.move_out(&mut stored).unwrap();
        assert_eq!(moved.keys().collect::<Vec<_>>(), ["/a~1b~0c/1", "/content/0/data"]);
        assert_eq!(stored["a/b~c"][1], "");
        assert_eq!(stored["content"][0]["data"], "");
        blobs.move_in(&mut stored, &moved);
        assert_eq!(stored, entry);
    }

    #[test]
    fn equal_bodies_share_one_file() {
        let (_directory, blobs) = blobs();
        let big = "x".repeat(INLINE_BYTES_MAX + 1);
        blobs.move_out(&mut json!([big.clone(), big])).unwrap();
        assert_eq!(std::fs::read_dir(blobs.directory()).unwrap().count(), 1);
    }

    #[test]
    fn a_changed_blob_is_replaced_by_a_placeholder() {
        let (_directory, blobs) = blobs();
        let mut entry = json!({"text": "x".repeat(INLINE_BYTES_MAX + 1)});
        let moved = blobs.move_out(&mut entry).unwrap();
        let hash = moved["/text"].as_str().unwrap();
        std::fs::write(blobs.directory().join(hash), "y").unwrap();
        blobs.move_in(&mut entry, &moved);
        let text = entry["text"].as_str().unwrap();
        assert!(text.contains(hash) && text.contains("was changed"), "{text}");
    }

    #[test]
    fn a_missing_image_becomes_a_text_part() {
        let (_directory, blobs) = blobs();
        let mut entry = json!([{"type": "image", "mime_type": "image/png", "data": "aGk="}]);
        let moved = blobs.move_out(&mut entry).unwrap();
        blobs.remove().unwrap();
        blobs.move_in(&mut entry, &moved);
        assert_eq!(entry[0]["type"], "text");
        assert!(entry[0]["text"].as_str().unwrap().contains("is missing"));
        assert!(entry[0].get("data").is_none());
    }
}
