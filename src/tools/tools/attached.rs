//! Files passed to the model in their original form: images and PDF documents, within the limits of
//! providers. Doesn't resize images.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{ToolContext, ToolError, ToolResult, disk, read_state};
use epitome_thread::attached::FileType;
use epitome_thread::{Location, OutcomeContent, ToolDisplay};

/// Maximum pixels per side of an image: Anthropic's models reject the entire request for more.
const SIDE_PIXELS_MAX: u32 = 8_000;

/// Reads the rest of an image or document whose first bytes are in `bytes`. Whether the model accepts documents is
/// checked when the request is built.
pub fn read(
    kind: FileType,
    mut bytes: Vec<u8>,
    rest: File,
    path: &Path,
    context: &ToolContext,
) -> Result<ToolResult, ToolError> {
    let workspace = &*context.workspace;
    let name = workspace.display(path);
    let unreadable = |error: io::Error| disk::trouble("read", path, workspace, error);
    let size = rest.metadata().map_err(unreadable)?.len();
    rest.take(kind.bytes_max() as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    // The file may grow while it is read.
    let size = bytes.len().max(usize::try_from(size).unwrap_or(usize::MAX));
    let text = described(&name, kind, size, &bytes, context.sees_images)?;
    let known = [(path.to_path_buf(), Some(read_state::state_of(&bytes)))];
    context.files.note(&known);
    let file_name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(ToolResult {
        content: vec![OutcomeContent::Text { text: text.clone() }, content(kind, &bytes, file_name)],
        shown: vec![ToolDisplay::Text { text: text.clone() }],
        locations: vec![Location { path: workspace.target(path), line: None }],
        raw: Some(read_state::raw(&known)),
        ..ToolResult::completed(text)
    })
}

/// Describes an image or document in one line for the model. The error is a message that explains why it can't be
/// sent.
pub fn described(
    name: &str,
    kind: FileType,
    size: usize,
    bytes: &[u8],
    sees_images: bool,
) -> Result<String, ToolError> {
    if is_image(kind) {
        let (width, height) =
            fitting(kind, size, bytes, sees_images).map_err(|why| format!("{name} {why}"))?;
        return Ok(format!("{name} ({}, {width}×{height} pixels, {size} bytes)", kind.mime_type()));
    }
    match kind.too_large(size) {
        Some(why) => Err(ToolError::new(format!("{name} is {why}. Use a command for that."))),
        None => Ok(format!("{name} ({}, {size} bytes)", kind.mime_type())),
    }
}

/// Returns an image or document as content of a tool result.
pub fn content(kind: FileType, bytes: &[u8], name: Option<String>) -> OutcomeContent {
    let (mime_type, data) = (kind.mime_type().to_owned(), STANDARD.encode(bytes));
    match is_image(kind) {
        true => OutcomeContent::Image { mime_type, data },
        false => OutcomeContent::Document { mime_type, data, name },
    }
}

pub fn is_image(kind: FileType) -> bool {
    match kind {
        FileType::Png | FileType::Jpeg | FileType::Gif | FileType::Webp => true,
        FileType::Pdf => false,
    }
}

/// Returns the width and height of an image that can be sent to the model. The error continues a sentence that begins
/// with the image's name. Images that providers can't decode are rejected here, because they would break every later
/// request of the conversation.
fn fitting(kind: FileType, size: usize, bytes: &[u8], sees_images: bool) -> Result<(u32, u32), ToolError> {
    if !sees_images {
        return Err(ToolError::new(
            "is an image, and the current model accepts none. Ask the user what it shows, or inspect it \
                    with a command.",
        ));
    }
    if let Some(why) = kind.too_large(size) {
        return Err(ToolError::new(format!("is {why}. Use a command for that.")));
    }
    let (width, height) =
        pixels(kind, bytes).filter(|(width, height)| *width > 0 && *height > 0).ok_or_else(|| {
            format!("begins like {} and is damaged: its size in pixels cannot be read.", kind.mime_type())
        })?;
    if width.max(height) > SIDE_PIXELS_MAX {
        return Err(ToolError::new(format!(
            "is an image of {width}×{height} pixels, and a model takes at most {SIDE_PIXELS_MAX} a side. Make a \
             smaller copy, or cut out what matters, with a command."
        )));
    }
    Ok((width, height))
}

fn pixels(kind: FileType, bytes: &[u8]) -> Option<(u32, u32)> {
    match kind {
        FileType::Png => Some((big(bytes, 16, 4)?, big(bytes, 20, 4)?)),
        FileType::Gif => Some((little(bytes, 6, 2)?, little(bytes, 8, 2)?)),
        FileType::Webp => webp(bytes),
        FileType::Jpeg => jpeg(bytes),
        FileType::Pdf => None,
    }
}

/// The three WebP formats store the size at different offsets.
fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8 " => Some((little(bytes, 26, 2)? & 0x3fff, little(bytes, 28, 2)? & 0x3fff)),
        b"VP8L" => {
            let both = little(bytes, 21, 4)?;
            Some(((both & 0x3fff) + 1, ((both >> 14) & 0x3fff) + 1))
        }
        b"VP8X" => Some((little(bytes, 24, 3)? + 1, little(bytes, 27, 3)? + 1)),
        _ => None,
    }
}

/// The size is in the first frame header; the segments before it contain their length.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        let (head, marker) = (*bytes.get(at)?, *bytes.get(at + 1)?);
        match (head, marker) {
            (0xff, 0xff) => at += 1,
            // Markers without a length.
            (0xff, 0x01 | 0xd0..=0xd8) => at += 2,
            // Frame headers, excluding tables and extensions.
            (0xff, 0xc0..=0xcf) if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                return Some((big(bytes, at + 7, 2)?, big(bytes, at + 5, 2)?));
            }
            (0xff, _) => at += 2 + big(bytes, at + 2, 2)? as usize,
            _ => return None,
        }
    }
}

fn big(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

fn little(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    Some(bytes.get(at..at + length)?.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes
    }

    #[test]
    fn image_size_is_read_for_each_type() {
        let webp = |form: &[u8]| [b"RIFF\0\0\0\0WEBP", form].concat();
        for (bytes, expected) in [
            (png(640, 480), Some((640, 480))),
            (b"\x89PNG\r\n\x1a\n....".to_vec(), None),
            (b"GIF89a\x80\x02\xe0\x01".to_vec(), Some((640, 480))),
            (webp(b"VP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x80\x02\xe0\x01"), Some((640, 480))),
            (webp(b"VP8L\0\0\0\0\x2f\x7f\xc2\x77\x00"), Some((640, 480))),
            (webp(b"VP8X\0\0\0\0\0\0\0\0\x7f\x02\x00\xdf\x01\x00"), Some((640, 480))),
            (webp(b"ALPH"), None),
            (b"\xff\xd8\xff\xe0\0\x04ab\xff\xc2\0\x0b\x08\x01\xe0\x02\x80".to_vec(), Some((640, 480))),
            (b"\xff\xd8\xff\xe0\xff\xff".to_vec(), None),
        ] {
            let kind = FileType::detect(&bytes).expect("an image");
            assert_eq!(pixels(kind, &bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn unsupported_images_are_rejected_with_a_reason() {
        let bytes = png(8_001, 10);
        let fitting = |bytes: &[u8], sees| fitting(FileType::Png, bytes.len(), bytes, sees);
        assert_eq!(fitting(&png(8_000, 10), true), Ok((8_000, 10)));
        assert!(fitting(&bytes, true).is_err_and(|why| why.to_string().contains("8001×10 pixels")));
        assert!(fitting(&png(0, 10), true).is_err_and(|why| why.to_string().contains("damaged")));
        assert!(fitting(&png(10, 10), false).is_err_and(|why| why.to_string().contains("accepts none")));
    }
}
