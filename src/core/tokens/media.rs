//! Tokens of images and documents, by each provider's rules for their size. Their base64 text is never counted.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};

use crate::model_name::Family;

/// Tokens of an image of unknown size: most providers have a limit near this value.
const IMAGE_TOKENS: u64 = 1_500;

/// The approximate size of a PDF page in bytes of base64, and its tokens: providers charge for its text and image,
/// Gemini only for the image. Counting the pages would require a PDF parser.
const PAGE_BASE64_BYTES: usize = 64 * 1024;
const PAGE_TOKENS: u64 = 2_500;
const PAGE_TOKENS_GEMINI: u64 = 258;

/// Maximum bytes of base64 that are read to find an image's size. In a JPEG it follows the camera's metadata, which
/// has at most 64 KB.
const HEADER_BYTES_MAX: usize = 128 * 1024;

/// Maximum accepted width or height in pixels; larger values are invalid.
const SIDE_MAX: u32 = 100_000;

/// Tokens of an image. `data` is its base64.
pub fn image_tokens(family: Family, data: &str) -> u64 {
    let Some((width, height)) = image_sides(data) else { return IMAGE_TOKENS };
    let (width, height) = (f64::from(width), f64::from(height));
    let tokens = match family {
        // The longer side is reduced to 1,568 pixels, and 750 pixels are a token.
        Family::Claude => {
            let scale = (1_568.0 / width.max(height)).min(1.0);
            (width * height * scale * scale / 750.0).min(1_600.0)
        }
        Family::Gemini if width.max(height) <= 384.0 => 258.0,
        Family::Gemini => 258.0 * tiles(width, height, 768.0),
        // Scaled into a square of 2,048, then to a shorter side of 768, then divided into tiles of 512.
        Family::OpenAi | Family::Qwen | Family::Chinese | Family::Mistral | Family::Llama | Family::Other => {
            let into = (2_048.0 / width.max(height)).min(1.0);
            let scale = into * (768.0 / (width.min(height) * into)).min(1.0);
            85.0 + 170.0 * tiles(width * scale, height * scale, 512.0)
        }
    };
    tokens.ceil() as u64
}

/// Maximum number of pages counted: a few scanned pages have the size of a book. A guess that is too low is corrected
/// by the provider's report; one that is too high causes a needless compaction.
const PAGES_MAX: usize = 20;

/// Tokens of a document. `data` is its base64.
pub fn document_tokens(family: Family, data: &str) -> u64 {
    let page = if family == Family::Gemini { PAGE_TOKENS_GEMINI } else { PAGE_TOKENS };
    data.len().div_ceil(PAGE_BASE64_BYTES).min(PAGES_MAX) as u64 * page
}

fn tiles(width: f64, height: f64, side: f64) -> f64 {
    // Providers reduce larger images first.
    ((width / side).ceil() * (height / side).ceil()).clamp(1.0, 16.0)
}

/// Returns the width and height in pixels of a PNG, GIF, WebP or JPEG; `None` if they can't be found. `data` is its
/// base64.
pub fn image_sides(data: &str) -> Option<(u32, u32)> {
    let head = data.as_bytes().get(..data.len().min(HEADER_BYTES_MAX) / 4 * 4)?;
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes = GeneralPurpose::new(&STANDARD, lenient).decode(head).ok()?;
    let sides = png_size(&bytes)
        .or_else(|| gif_size(&bytes))
        .or_else(|| webp_size(&bytes))
        .or_else(|| jpeg_size(&bytes));
    sides.filter(|(width, height)| (1..=SIDE_MAX).contains(width) && (1..=SIDE_MAX).contains(height))
}

fn png_size(bytes: &[u8]) -> Option<(u32, u32)> {
    bytes.strip_prefix(b"\x89PNG\r\n\x1a\n")?;
    let side = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    Some((side(16)?, side(20)?))
}

fn gif_size(bytes: &[u8]) -> Option<(u32, u32)> {
    bytes.strip_prefix(b"GIF8")?;
    Some((little(bytes, 6, 2)?, little(bytes, 8, 2)?))
}

fn webp_size(bytes: &[u8]) -> Option<(u32, u32)> {
    bytes.strip_prefix(b"RIFF")?;
    match bytes.get(8..16)? {
        b"WEBPVP8X" => Some((little(bytes, 24, 3)? + 1, little(bytes, 27, 3)? + 1)),
        b"WEBPVP8 " => Some((little(bytes, 26, 2)? & 0x3fff, little(bytes, 28, 2)? & 0x3fff)),
        b"WEBPVP8L" => {
            let bits = little(bytes, 21, 4)?;
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        _ => None,
    }
}

/// Walks the segments up to the first frame header.
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut rest = bytes.strip_prefix(&[0xff, 0xd8])?;
    loop {
        let [0xff, kind, high, low, ..] = *rest else { return None };
        let big = |at: usize| Some(u32::from(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?])));
        // The excluded markers in this range are tables instead of frames.
        if matches!(kind, 0xc0..=0xcf) && !matches!(kind, 0xc4 | 0xc8 | 0xcc) {
            return Some((big(7)?, big(5)?));
        }
        rest = rest.get(2 + usize::from(u16::from_be_bytes([high, low]))..)?;
    }
}

/// Reads a little-endian number of up to four bytes.
fn little(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + length)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn png(width: u32, height: u32) -> String {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes.extend([8, 6, 0, 0, 0]);
        STANDARD.encode(bytes)
    }

    #[test]
    fn an_image_costs_what_its_provider_charges_for_its_size() {
        for (family, width, height, tokens) in [
            (Family::Claude, 200, 200, 54),
            (Family::Claude, 1_000, 1_000, 1_334),
            (Family::Claude, 8_000, 8_000, 1_600),
            (Family::OpenAi, 512, 512, 255),
            (Family::OpenAi, 1_024, 1_024, 765),
            (Family::OpenAi, 2_048, 4_096, 1_105),
            (Family::Gemini, 300, 300, 258),
            (Family::Gemini, 960, 540, 516),
            (Family::Gemini, 90_000, 90_000, 4_128),
        ] {
            assert_eq!(image_tokens(family, &png(width, height)), tokens, "{family:?} {width}×{height}");
        }
    }

    #[test]
    fn the_size_is_read_from_each_image_format() {
        let jpeg =
            [&[0xff, 0xd8, 0xff, 0xe0, 0, 4, 1, 2, 0xff, 0xc2, 0, 17, 8, 0, 30, 0, 40, 3][..], &[0; 8]];
        for (bytes, sides_of_it) in [
            (b"GIF89a\x28\0\x1e\0\0\0".to_vec(), Some((40, 30))),
            (b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x27\0\0\x1d\0\0".to_vec(), Some((40, 30))),
            (b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x28\0\x1e\0".to_vec(), Some((40, 30))),
            (b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f\x27\x40\x07\0\0\0".to_vec(), Some((40, 30))),
            (jpeg.concat(), Some((40, 30))),
            (b"\xff\xd8\xff\xe0\0\0".to_vec(), None),
            (b"not an image".to_vec(), None),
        ] {
            assert_eq!(image_sides(&STANDARD.encode(&bytes)), sides_of_it, "{bytes:?}");
        }
        assert_eq!(image_sides("%%%%"), None);
        assert_eq!(image_tokens(Family::Claude, &png(0, 7)), IMAGE_TOKENS);
    }
}
