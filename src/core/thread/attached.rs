//! Attachments that models read natively: file types, recognized by their first bytes, and size limits.
//!
//! File extensions and the types that clients declare are not trusted: a provider rejects an entire request, and
//! with it every later request of the conversation, because of one image with a wrong type.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Content;

/// Largest image: providers accept 5 MB of base64.
const IMAGE_BYTES_MAX: usize = 3_750_000;

/// Largest document. It is sent with every later request, and Anthropic accepts requests of up to 32 MB,
/// including base64 and the rest of the conversation.
const DOCUMENT_BYTES_MAX: usize = 15_000_000;

/// Most bytes of base64 in one prompt, for the same reason.
const PROMPT_BASE64_BYTES_MAX: usize = 24_000_000;

/// Most images and documents in one prompt: Anthropic's limit for a request.
const PROMPT_ATTACHED_MAX: usize = 100;

/// Most bytes of text in one prompt, including embedded files: twice what the largest windows can take. All
/// of it is kept in the log; a prompt that exceeds the model's window is refused later, with its token count.
const PROMPT_TEXT_BYTES_MAX: usize = 8_000_000;

/// Most parts of one prompt. Editors send one part for each mentioned file.
const PROMPT_PARTS_MAX: usize = 1024;

/// File types that at least one provider accepts as an image or document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    Png,
    Jpeg,
    Gif,
    Webp,
    Pdf,
}

impl FileType {
    /// Detects the type from the first bytes of a file; `None` for any other type.
    pub fn detect(start: &[u8]) -> Option<FileType> {
        match start {
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some(FileType::Png),
            [0xff, 0xd8, 0xff, ..] => Some(FileType::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(FileType::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(FileType::Webp),
            [b'%', b'P', b'D', b'F', b'-', ..] => Some(FileType::Pdf),
            _ => None,
        }
    }

    pub fn mime_type(self) -> &'static str {
        match self {
            FileType::Png => "image/png",
            FileType::Jpeg => "image/jpeg",
            FileType::Gif => "image/gif",
            FileType::Webp => "image/webp",
            FileType::Pdf => "application/pdf",
        }
    }

    /// The maximum size of such a file in bytes.
    pub fn bytes_max(self) -> usize {
        match self {
            FileType::Png | FileType::Jpeg | FileType::Gif | FileType::Webp => IMAGE_BYTES_MAX,
            FileType::Pdf => DOCUMENT_BYTES_MAX,
        }
    }

    /// Why a file of this size is refused, as the end of a sentence that starts with "it is".
    pub fn too_large(self, bytes: usize) -> Option<String> {
        let (what, instead) = match self {
            FileType::Png | FileType::Jpeg | FileType::Gif | FileType::Webp => {
                ("an image", "make a smaller copy of it")
            }
            FileType::Pdf => ("a PDF document", "take out the pages that matter, or its text"),
        };
        let most = self.bytes_max();
        (bytes > most).then(|| {
            format!(
                "{what} of {} MB, and a model takes at most {} MB: {instead}",
                megabytes(bytes),
                megabytes(most)
            )
        })
    }

    /// The file as a part of a prompt.
    pub fn content(self, bytes: &[u8], uri: Option<String>, name: Option<String>) -> Content {
        let (mime_type, data) = (self.mime_type().to_owned(), STANDARD.encode(bytes));
        match self {
            FileType::Png | FileType::Jpeg | FileType::Gif | FileType::Webp => {
                Content::Image { mime_type, data, uri }
            }
            FileType::Pdf => Content::Document { mime_type, data, name },
        }
    }
}

/// Why a prompt is refused for its size, as the end of a sentence that starts with "it has".
pub fn prompt_too_large(content: &[Content]) -> Option<String> {
    if content.len() > PROMPT_PARTS_MAX {
        return Some(format!(
            "{} parts, and one prompt may have {PROMPT_PARTS_MAX}: name a folder, and it is looked through",
            content.len()
        ));
    }
    let (mut attached, mut base64_bytes, mut text_bytes) = (0, 0, 0);
    for part in content {
        match part {
            Content::Image { data, .. } | Content::Document { data, .. } => {
                attached += 1;
                base64_bytes += data.len();
            }
            Content::Text { text } | Content::Thinking { text, .. } | Content::Resource { text, .. } => {
                text_bytes += text.len();
            }
            Content::ResourceLink { .. } | Content::Call(_) | Content::Search(_) => {}
        }
    }
    if attached > PROMPT_ATTACHED_MAX {
        return Some(format!(
            "{attached} images and documents, and one prompt may bring {PROMPT_ATTACHED_MAX}: attach some of them \
             later"
        ));
    }
    if base64_bytes > PROMPT_BASE64_BYTES_MAX {
        return Some(format!(
            "images and documents of {} MB together, and one prompt may bring {} MB: attach some of them later",
            megabytes(base64_bytes / 4 * 3),
            megabytes(PROMPT_BASE64_BYTES_MAX / 4 * 3)
        ));
    }
    (text_bytes > PROMPT_TEXT_BYTES_MAX).then(|| {
        format!(
            "{} MB of text, and one prompt may bring {} MB: put it into a file and name that",
            megabytes(text_bytes),
            megabytes(PROMPT_TEXT_BYTES_MAX)
        )
    })
}

/// Formats with two decimals, so that a size just above a limit does not look equal to it.
fn megabytes(bytes: usize) -> String {
    format!("{:.2}", bytes as f64 / 1_000_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_types_are_detected_by_the_first_bytes() {
        let table: [(&[u8], Option<&str>); 9] = [
            (b"\x89PNG\r\n\x1a\n....", Some("image/png")),
            (b"\xff\xd8\xff\xe0", Some("image/jpeg")),
            (b"GIF89a..", Some("image/gif")),
            (b"RIFF\0\0\0\0WEBPVP8 ", Some("image/webp")),
            (b"%PDF-1.7\n", Some("application/pdf")),
            (b"RIFF\0\0\0\0WAVE", None),
            (b"a text about %PDF-1.7", None),
            (b"\x89PN", None),
            (b"", None),
        ];
        for (start, expected) in table {
            assert_eq!(FileType::detect(start).map(FileType::mime_type), expected, "{start:?}");
        }
    }

    #[test]
    fn oversized_prompts_are_refused_with_size_and_advice() {
        assert_eq!(FileType::Png.too_large(IMAGE_BYTES_MAX), None);
        assert_eq!(
            FileType::Png.too_large(4_201_000).as_deref(),
            Some("an image of 4.20 MB, and a model takes at most 3.75 MB: make a smaller copy of it")
        );
        let most = FileType::Pdf.content(&vec![0; DOCUMENT_BYTES_MAX], None, None);
        assert_eq!(prompt_too_large(std::slice::from_ref(&most)), None);
        let small = FileType::Png.content(b"\x89PNG\r\n\x1a\n", None, None);
        let text = |bytes: usize| Content::Text { text: "x".repeat(bytes) };
        let link = Content::ResourceLink { uri: "file:///a".to_owned(), name: "a".to_owned() };
        let embedded =
            Content::Resource { uri: "file:///a".to_owned(), text: "x".repeat(PROMPT_TEXT_BYTES_MAX) };
        for (content, expected) in [
            (vec![most.clone(), most], "images and documents of 30.00 MB together"),
            (vec![small.clone(); 101], "101 images and documents, and one prompt may bring 100"),
            (vec![text(1), embedded.clone()], "8.00 MB of text"),
            (vec![link.clone(); 1025], "1025 parts, and one prompt may have 1024"),
        ] {
            let why = prompt_too_large(&content).expect("it is too much");
            assert!(why.starts_with(expected), "{why}");
        }
        for content in [vec![small; 100], vec![embedded], vec![link; 1024], vec![]] {
            assert_eq!(prompt_too_large(&content), None);
        }
    }
}
