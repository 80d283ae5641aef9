//! Reads images and documents from the disk as parts of a prompt, by what is in them and not by their names.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use epitome_thread::Content;
use epitome_thread::attached::FileType;

/// Number of bytes at the start of a file that determine its type.
const START_BYTES: u64 = 16;

/// Why a file can't be attached: a sentence with its name.
#[derive(Debug)]
pub struct AttachmentError {
    message: String,
    hint: Option<&'static str>,
}

impl AttachmentError {
    /// A suggestion for the user.
    pub fn hint(&self) -> Option<&'static str> {
        self.hint
    }
}

impl fmt::Display for AttachmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Reads an image or a PDF document.
pub fn read_attachment(path: &Path) -> Result<Content, AttachmentError> {
    let failed = |why: &dyn fmt::Display| AttachmentError {
        message: format!("{} can't be attached: {why}", path.display()),
        hint: None,
    };
    // Opening a pipe would block until it has a writer.
    let metadata = path.metadata().map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        return Err(failed(&"it is not a regular file"));
    }
    let mut file = File::open(path).map_err(|error| failed(&error))?;
    let mut bytes = Vec::new();
    (&mut file).take(START_BYTES).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    let Some(kind) = FileType::detect(&bytes) else {
        let hint = "mention text files in the prompt instead; convert other files first";
        return Err(AttachmentError {
            hint: Some(hint),
            ..failed(&"it is not a PNG, JPEG, GIF, WebP or PDF file")
        });
    };
    file.take(kind.bytes_max() as u64).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    let size = bytes.len().max(usize::try_from(metadata.len()).unwrap_or(usize::MAX));
    match kind.too_large(size) {
        Some(why) => Err(failed(&format_args!("it is {why}"))),
        None => {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            Ok(kind.content(&bytes, None, name))
        }
    }
}
