//! Files that models read as they are: which type one has, by its first bytes, and how large one may be.
//!
//! A name's ending and what a client says of a type are not trusted: a provider refuses a whole request for
//! one image of another type than was said, and with it every later request of the conversation.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Content;

/// The most bytes of an image: providers take 5 MB of base64.
const IMAGE_BYTES_MAX: usize = 3_750_000;

/// The most bytes of a document. It goes with every later request, and Anthropic's hold 32 MB at most, base64
/// and the rest of the conversation included.
const DOCUMENT_BYTES_MAX: usize = 15_000_000;

/// The most bytes of base64 that one prompt may bring, for the same reason.
const PROMPT_BASE64_BYTES_MAX: usize = 24_000_000;

/// The types of file that are images or documents to at least one provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    Png,
    Jpeg,
    Gif,
    Webp,
    Pdf,
}

impl FileType {
    /// The type of a file that begins so; `None` for all that is none of these.
    pub fn of(start: &[u8]) -> Option<FileType> {
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

    /// The most bytes that such a file may have.
    pub fn bytes_max(self) -> usize {
        match self {
            FileType::Png | FileType::Jpeg | FileType::Gif | FileType::Webp => IMAGE_BYTES_MAX,
            FileType::Pdf => DOCUMENT_BYTES_MAX,
        }
    }

    /// Why a file of so many bytes is refused, to stand behind "it is".
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

/// Why a prompt's attachments are refused, to stand behind "it has".
pub fn together_too_large(content: &[Content]) -> Option<String> {
    let sizes = content.iter().map(|part| match part {
        Content::Image { data, .. } | Content::Document { data, .. } => data.len(),
        Content::Text { .. }
        | Content::Thinking { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. }
        | Content::Call(_) => 0,
    });
    let total: usize = sizes.sum();
    (total > PROMPT_BASE64_BYTES_MAX).then(|| {
        format!(
            "images and documents of {} MB together, and one prompt may bring {} MB: attach some of them later",
            megabytes(total / 4 * 3),
            megabytes(PROMPT_BASE64_BYTES_MAX / 4 * 3)
        )
    })
}

/// With two digits, so that what is just above a bound doesn't look like it.
fn megabytes(bytes: usize) -> String {
    format!("{:.2}", bytes as f64 / 1_000_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_is_told_by_the_first_bytes() {
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
            assert_eq!(FileType::of(start).map(FileType::mime_type), expected, "{start:?}");
        }
    }

    #[test]
    fn what_is_too_large_is_refused_with_its_size_and_what_to_do() {
        assert_eq!(FileType::Png.too_large(IMAGE_BYTES_MAX), None);
        assert_eq!(
            FileType::Png.too_large(4_201_000).as_deref(),
            Some("an image of 4.20 MB, and a model takes at most 3.75 MB: make a smaller copy of it")
        );
        let most = FileType::Pdf.content(&vec![0; DOCUMENT_BYTES_MAX], None, None);
        assert_eq!(together_too_large(std::slice::from_ref(&most)), None);
        let told = together_too_large(&[most.clone(), most]).expect("40 MB of base64 are too many");
        assert!(told.starts_with("images and documents of 30.00 MB together"), "{told}");
    }
}
