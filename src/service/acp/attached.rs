//! Attachments of a prompt: images, and files embedded as bytes. Pure.
//!
//! Formats that models can read are passed on unchanged, text as text. Anything else is replaced by a line that
//! states what was left out and why, so that neither the model nor the user assumes that the file was read.

use std::borrow::Cow;

use agent_client_protocol::v1::schema::{BlobResourceContents, ImageContent};
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD};
use percent_encoding::percent_decode_str;

use super::from_wire::BadParams;
use epitome_thread::Content;
use epitome_thread::attached::FileType;

/// Some clients omit the padding or leave non-zero trailing bits in the last character.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Converts an image block. An image without data becomes a link to its URI.
pub fn image(field: &str, image: ImageContent) -> Result<Content, BadParams> {
    if image.data.is_empty() {
        let uri = image.uri.filter(|uri| !uri.is_empty());
        let uri = uri.ok_or_else(|| BadParams(format!("`{field}` must have `data` or a `uri`")))?;
        return Ok(Content::ResourceLink { name: name_of(&uri).unwrap_or_else(|| "image".to_owned()), uri });
    }
    let bytes = decoded(&format!("{field}.data"), &image.data)?;
    let claimed = essence(&image.mime_type);
    match FileType::detect(&bytes) {
        Some(kind) => attached(field, kind, &bytes, image.uri),
        // With a wrong MIME type, the provider would reject every later request of the conversation.
        None if is_known(&claimed) => {
            Err(BadParams(format!("`{field}` is declared as {claimed}, but its data is not such an image")))
        }
        None => {
            check_size(field, FileType::Png, &bytes)?;
            Ok(Content::Image { mime_type: claimed, data: STANDARD.encode(&bytes), uri: image.uri })
        }
    }
}

/// Maximum bytes of audio: about ten minutes of speech as MP3, and within what requests can contain.
const AUDIO_BYTES_MAX: usize = 10 * 1024 * 1024;

/// Converts an audio block. As for images, a wrong MIME type would break every later request, so it follows from the
/// bytes.
pub fn audio(field: &str, data: &str) -> Result<Content, BadParams> {
    let bytes = decoded(&format!("{field}.data"), data)?;
    let known = "audio of a known type: WAV, MP3, FLAC, Ogg, AIFF or AAC";
    let mime_type = audio_type(&bytes).ok_or_else(|| BadParams(format!("`{field}` is not {known}")))?;
    if bytes.len() > AUDIO_BYTES_MAX {
        let why = format!("has more than {} MB of audio", AUDIO_BYTES_MAX / 1024 / 1024);
        return Err(BadParams(format!("`{field}` {why}: send a shorter or smaller recording")));
    }
    Ok(Content::Document { mime_type: mime_type.to_owned(), data: STANDARD.encode(&bytes), name: None })
}

fn audio_type(bytes: &[u8]) -> Option<&'static str> {
    Some(match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => "audio/wav",
        [b'f', b'L', b'a', b'C', ..] => "audio/flac",
        [b'O', b'g', b'g', b'S', ..] => "audio/ogg",
        [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F', ..] => "audio/aiff",
        // The synchronization of a frame, whose layer tells both formats apart.
        [0xFF, layer, ..] if layer & 0xF6 == 0xF0 => "audio/aac",
        [b'I', b'D', b'3', ..] => "audio/mpeg",
        [0xFF, layer, ..] if layer & 0xE0 == 0xE0 => "audio/mpeg",
        _ => return None,
    })
}

/// Validates a part received through the control API like one from an editor. The error is a complete sentence.
pub fn checked(field: &str, part: Content) -> Result<Content, BadParams> {
    match part {
        Content::Image { mime_type, data, uri } => image(field, ImageContent::new(data, mime_type).uri(uri)),
        Content::Document { mime_type, data, .. } if mime_type.starts_with("audio/") => audio(field, &data),
        Content::Document { data, name, .. } => decoded(&format!("{field}.data"), &data).and_then(|bytes| {
            let kind = FileType::detect(&bytes).ok_or_else(|| {
                BadParams(format!("`{field}` is neither a PDF document nor an image of a supported type"))
            })?;
            check_size(field, kind, &bytes)?;
            Ok(kind.content(&bytes, None, name))
        }),
        other @ (Content::Text { .. }
        | Content::Thinking { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. }
        | Content::Call(_)
        | Content::Search(_)) => Ok(other),
    }
}

/// Converts an embedded binary resource.
pub fn blob(field: &str, resource: BlobResourceContents) -> Result<Content, BadParams> {
    let bytes = decoded(&format!("{field}.resource.blob"), &resource.blob)?;
    if let Some(kind) = FileType::detect(&bytes) {
        return attached(field, kind, &bytes, Some(resource.uri));
    }
    let claimed = resource.mime_type.as_deref().map(essence).unwrap_or_default();
    let text = match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => text,
        Ok(text) => left_out(&claimed, text.len()),
        Err(error) if claimed.starts_with("text/") => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        Err(error) => left_out(&claimed, error.as_bytes().len()),
    };
    Ok(Content::Resource { uri: resource.uri, text })
}

fn attached(field: &str, kind: FileType, bytes: &[u8], uri: Option<String>) -> Result<Content, BadParams> {
    check_size(field, kind, bytes)?;
    let name = uri.as_deref().and_then(name_of);
    Ok(kind.content(bytes, uri, name))
}

fn check_size(field: &str, kind: FileType, bytes: &[u8]) -> Result<(), BadParams> {
    let too_large = kind.too_large(bytes.len());
    too_large.map_or(Ok(()), |why| Err(BadParams(format!("`{field}` is {why}"))))
}

/// Placeholder for bytes that no model can read.
fn left_out(mime_type: &str, bytes: usize) -> String {
    let of_type = if mime_type.is_empty() { String::new() } else { format!(" of type {mime_type}") };
    format!(
        "(A binary file{of_type}, {bytes} bytes, was attached here and left out: models read text, images and \
         PDF documents only. If it is needed, look at the file itself with a tool.)"
    )
}

fn decoded(field: &str, data: &str) -> Result<Vec<u8>, BadParams> {
    let mut data = Cow::Borrowed(data);
    if data.contains(|c: char| c.is_ascii_whitespace()) {
        data.to_mut().retain(|c| !c.is_ascii_whitespace());
    }
    LENIENT.decode(&*data).map_err(|_| BadParams(format!("`{field}` must be base64")))
}

/// A MIME type without its parameters.
fn essence(mime_type: &str) -> String {
    mime_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn is_known(mime_type: &str) -> bool {
    matches!(mime_type, "image/png" | "image/jpeg" | "image/jpg" | "image/gif" | "image/webp")
}

/// The file name: the last path segment of the URI.
fn name_of(uri: &str) -> Option<String> {
    let path = uri.split(['?', '#']).next().unwrap_or_default();
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = percent_decode_str(last).decode_utf8_lossy().into_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &str = "iVBORw0KGgoAAAANSUhEUg==";
    const PDF: &str = "JVBERi0xLjcKJQ==";

    fn image_content(mime_type: &str, data: &str, uri: Option<&str>) -> Result<Content, BadParams> {
        image("prompt[0]", ImageContent::new(data, mime_type).uri(uri.map(str::to_owned)))
    }

    fn blob_content(mime_type: &str, blob: &str) -> Result<Content, BadParams> {
        let contents = BlobResourceContents::new(blob, "file:///w/My%20Plan.pdf?x#page=2");
        super::blob("prompt[0]", contents.mime_type(mime_type.to_owned()))
    }

    fn an_image(mime_type: &str, data: &str, uri: Option<&str>) -> Content {
        let (mime_type, data) = (mime_type.to_owned(), data.to_owned());
        Content::Image { mime_type, data, uri: uri.map(str::to_owned) }
    }

    #[test]
    fn the_type_of_an_image_follows_from_its_bytes() {
        let wrapped = format!("{}\n{}", &PNG[..8], &PNG[8..].trim_end_matches('='));
        let table: [(&str, &str, Result<Content, &str>); 7] = [
            ("image/png", PNG, Ok(an_image("image/png", PNG, None))),
            ("image/jpeg", PNG, Ok(an_image("image/png", PNG, None))),
            ("image/png", &wrapped, Ok(an_image("image/png", PNG, None))),
            ("image/TIFF; x=y", "SUkqAA==", Ok(an_image("image/tiff", "SUkqAA==", None))),
            (
                "image/png",
                "aGVsbG8=",
                Err("`prompt[0]` is declared as image/png, but its data is not such an image"),
            ),
            ("image/png", "no!", Err("`prompt[0].data` must be base64")),
            ("image/png", "", Err("`prompt[0]` must have `data` or a `uri`")),
        ];
        for (mime_type, data, expected) in table {
            let expected = expected.map_err(|why| BadParams(why.to_owned()));
            assert_eq!(image_content(mime_type, data, None), expected, "{mime_type} {data}");
        }
    }

    #[test]
    fn an_image_without_data_is_a_link() {
        let uri = "https://example.org/a/chart.png";
        let link = Content::ResourceLink { uri: uri.to_owned(), name: "chart.png".to_owned() };
        assert_eq!(image_content("image/png", "", Some(uri)), Ok(link));
    }

    #[test]
    fn binary_resources_are_converted_to_what_models_read() {
        let uri = "file:///w/My%20Plan.pdf?x#page=2";
        let document = Content::Document {
            mime_type: "application/pdf".to_owned(),
            data: PDF.to_owned(),
            name: Some("My Plan.pdf".to_owned()),
        };
        let text = |text: &str| Content::Resource { uri: uri.to_owned(), text: text.to_owned() };
        let binary = "(A binary file of type application/zip, 4 bytes, was attached here and left out: models \
                      read text, images and PDF documents only. If it is needed, look at the file itself with a \
                      tool.)";
        let table = [
            ("application/pdf", PDF, document.clone()),
            ("application/octet-stream", PDF, document),
            ("image/png", PNG, an_image("image/png", PNG, Some(uri))),
            ("application/json", "eyJhIjoxfQ==", text("{\"a\":1}")),
            ("text/plain; charset=latin1", "4Q==", text("\u{fffd}")),
            ("application/zip", "UEsD/w==", text(binary)),
            ("application/zip", "AAAAAA==", text(binary)),
        ];
        for (mime_type, blob, expected) in table {
            assert_eq!(blob_content(mime_type, blob), Ok(expected), "{mime_type} {blob}");
        }
    }

    #[test]
    fn the_type_of_audio_follows_from_its_bytes() {
        for (bytes, mime_type) in [
            (b"RIFF\x24\0\0\0WAVEfmt ".as_slice(), "audio/wav"),
            (b"ID3\x04".as_slice(), "audio/mpeg"),
            (b"\xff\xfb\x90".as_slice(), "audio/mpeg"),
            (b"\xff\xf1\x50".as_slice(), "audio/aac"),
            (b"fLaC".as_slice(), "audio/flac"),
        ] {
            let data = STANDARD.encode(bytes);
            let expected =
                Content::Document { mime_type: mime_type.to_owned(), data: data.clone(), name: None };
            assert_eq!(audio("prompt[0]", &data), Ok(expected));
        }
        let expected = "`prompt[0]` is not audio of a known type: WAV, MP3, FLAC, Ogg, AIFF or AAC";
        assert_eq!(audio("prompt[0]", "aGVsbG8="), Err(BadParams(expected.to_owned())));
    }

    #[test]
    fn an_oversized_image_is_rejected_with_its_size() {
        let mut large = b"\x89PNG\r\n\x1a\n".to_vec();
        large.resize(FileType::Png.bytes_max() + 50_000, 0);
        let refused = image_content("image/png", &STANDARD.encode(&large), None);
        let expected = "`prompt[0]` is an image of 3.80 MB, and a model takes at most 3.75 MB: make a smaller copy of it";
        assert_eq!(refused, Err(BadParams(expected.to_owned())));
    }
}
