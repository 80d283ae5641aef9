//! Converts results of MCP tools to tool results. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::json;

use super::listed::short;
use epitome_thread::attached::FileType;
use epitome_thread::{OutcomeContent, OutcomeStatus, ToolDisplay};
use epitome_tools::ToolResult;
use epitome_tools::truncate::{
    KEPT_NOWHERE, OUTPUT_BYTES_MAX, OUTPUT_HEAD_BYTES, WHOLE_BYTES_MAX, head_and_tail,
};

/// Maximum images kept per result.
const IMAGES_MAX: usize = 8;
/// Maximum bytes (base64) of all images of one result; every later request carries them.
const IMAGE_BYTES_MAX: usize = 8_000_000;

/// Converts a result. The texts come first, then the images.
pub fn result(server: &str, tool: &str, came: CallToolResult) -> ToolResult {
    let mut texts: Vec<String> = Vec::new();
    let mut images = Vec::new();
    let mut image_bytes = 0;
    let has_content = !came.content.is_empty();
    for block in came.content {
        match block {
            ContentBlock::Text(text) => texts.push(text.text),
            ContentBlock::Image(image) => {
                image_bytes += image.data.len();
                match checked_image(&image.data) {
                    _ if images.len() == IMAGES_MAX || image_bytes > IMAGE_BYTES_MAX => {
                        texts.push("[An image was left out: the result has too many.]".to_owned());
                    }
                    Ok(mime_type) => images
                        .push(OutcomeContent::Image { mime_type: mime_type.to_owned(), data: image.data }),
                    Err(why) => texts.push(format!("[An image was left out: it {why}.]")),
                }
            }
            ContentBlock::Audio(audio) => {
                texts.push(format!("[Audio ({}) was left out.]", short(&audio.mime_type)));
            }
            ContentBlock::Resource(embedded) => texts.push(match embedded.resource {
                ResourceContents::TextResourceContents { uri, text, .. } => {
                    format!("[Resource {}]\n{text}", short(&uri))
                }
                ResourceContents::BlobResourceContents { uri, mime_type, .. } => format!(
                    "[The resource {} ({}) is no text and was left out.]",
                    short(&uri),
                    short(mime_type.as_deref().unwrap_or("of unknown type"))
                ),
                _ => "[A resource of an unknown kind was left out.]".to_owned(),
            }),
            ContentBlock::ResourceLink(link) => {
                texts.push(format!("[Resource {} at {}]", short(&link.name), link.uri));
            }
            _ => texts.push("[Content of an unknown kind was left out.]".to_owned()),
        }
    }
    // Servers that return both return the same data in both.
    if let Some(structured) = came.structured_content.filter(|_| !has_content) {
        texts.push(structured.to_string());
    }
    let whole = texts.join("\n");
    let text = match whole.is_empty() && images.is_empty() {
        true => "The tool returned nothing.".to_owned(),
        false => head_and_tail(&whole, OUTPUT_BYTES_MAX, OUTPUT_HEAD_BYTES, "recall reads the rest"),
    };
    let whole = (whole.len() > OUTPUT_BYTES_MAX)
        .then(|| head_and_tail(&whole, WHOLE_BYTES_MAX, WHOLE_BYTES_MAX / 2, KEPT_NOWHERE));
    let shown = vec![ToolDisplay::Text { text: fenced(&text) }];
    let mut content = vec![OutcomeContent::Text { text }];
    content.extend(images);
    ToolResult {
        status: if came.is_error == Some(true) { OutcomeStatus::Failed } else { OutcomeStatus::Completed },
        content,
        whole,
        shown,
        locations: Vec::new(),
        raw: Some(json!({ "mcp": { "server": server, "tool": tool } })),
        plan: None,
    }
}

/// Detects an image's type from its bytes. The server's claim isn't trusted, because one wrong image makes a
/// provider reject every later request. The error completes a sentence that begins with "it".
fn checked_image(data: &str) -> Result<&'static str, String> {
    let bytes = STANDARD.decode(data).map_err(|_| "is not valid base64".to_owned())?;
    match FileType::detect(&bytes) {
        Some(kind @ (FileType::Png | FileType::Jpeg | FileType::Gif | FileType::Webp)) => {
            match kind.too_large(bytes.len()) {
                Some(why) => Err(format!("is {why}")),
                None => Ok(kind.mime_type()),
            }
        }
        Some(FileType::Pdf) | None => Err("has a type that models cannot read".to_owned()),
    }
}

/// Server text in a code fence that nothing in it can close; otherwise an editor would render it as Markdown.
pub fn fenced(text: &str) -> String {
    epitome_tools::disk::fenced("", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came(content: Vec<ContentBlock>) -> CallToolResult {
        CallToolResult::success(content)
    }

    #[test]
    fn texts_are_joined_and_errors_become_failures() {
        let blocks = vec![ContentBlock::text("a"), ContentBlock::embedded_text("file:///x", "b")];
        let done = result("s", "t", came(blocks));
        assert_eq!(done.status, OutcomeStatus::Completed);
        assert_eq!(done.content, [OutcomeContent::Text { text: "a\n[Resource file:///x]\nb".to_owned() }]);
        let failed = result("s", "t", CallToolResult::error(vec![ContentBlock::text("no")]));
        assert_eq!(failed.status, OutcomeStatus::Failed);
        let structured = result("s", "t", CallToolResult::structured(json!({"n": 1})));
        assert!(matches!(&structured.content[0], OutcomeContent::Text { text } if text == "{\"n\":1}"));
        let nothing = result("s", "t", came(Vec::new()));
        assert!(matches!(&nothing.content[0], OutcomeContent::Text { text } if text.contains("nothing")));
    }

    #[test]
    fn large_text_is_cut_and_invalid_images_are_dropped() {
        let blocks = vec![
            ContentBlock::text("x".repeat(10_000_000)),
            ContentBlock::image("bm9uc2Vuc2U=", "image/png"),
        ];
        let done = result("s", "t", came(blocks));
        let OutcomeContent::Text { text } = &done.content[0] else { panic!("text") };
        assert!(text.len() < OUTPUT_BYTES_MAX + 500);
        assert!(text.contains("An image was left out"), "the end is kept");
        assert_eq!(done.content.len(), 1);
        assert!(done.whole.expect("it is kept").len() < WHOLE_BYTES_MAX + 500);
    }
}
