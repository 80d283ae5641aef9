//! Converts results of MCP tools and contents of resources to tool results. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, Resource, ResourceContents};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::listed::short;
use epitome_thread::attached::FileType;
use epitome_thread::{OutcomeContent, OutcomeStatus, ToolDisplay};
use epitome_tools::ToolResult;
use epitome_tools::truncate::{
    KEPT_NOWHERE, OUTPUT_BYTES_MAX, OUTPUT_HEAD_BYTES, WHOLE_BYTES_MAX, head_and_tail,
};

/// Maximum images kept per result.
const IMAGES_MAX: usize = 8;
/// Maximum bytes (base64) of all images of one result; every later request contains them.
const IMAGE_BYTES_MAX: usize = 8_000_000;
/// Maximum bytes of the description of a linked resource.
const LINK_BYTES_MAX: usize = 500;

/// Converts a result. `mask` replaces secrets of the server in its texts.
pub fn result(server: &str, tool: &str, came: CallToolResult, mask: impl Fn(String) -> String) -> ToolResult {
    let mut parts = ContentParts::new(mask);
    let has_text = |value: &Value| {
        came.content.iter().any(|block| match block {
            ContentBlock::Text(text) => repeats(&text.text, value),
            _ => false,
        })
    };
    // The specification asks servers to repeat it as text; some only summarize it there.
    let structured = came.structured_content.clone().filter(|value| !value.is_null() && !has_text(value));
    for block in came.content {
        parts.add(block);
    }
    if let Some(structured) = structured {
        parts.text(structured.to_string());
    }
    let status = match came.is_error {
        Some(true) => OutcomeStatus::Failed,
        Some(false) | None => OutcomeStatus::Completed,
    };
    parts.finish(status, json!({ "mcp": { "server": server, "tool": tool } }))
}

/// Reads a result with content of a kind that the SDK doesn't know, which is left out: the rest must not be lost with it.
pub fn understood(mut came: Value) -> Option<CallToolResult> {
    for block in came.get_mut("content")?.as_array_mut()? {
        if ContentBlock::deserialize(&*block).is_err() {
            let kind = short(block["type"].as_str().unwrap_or("unknown"));
            *block = json!({ "type": "text", "text": format!("[Content of the kind {kind} was left out.]") });
        }
    }
    serde_json::from_value(came).ok()
}

/// Whether a text repeats structured content. Many servers wrap a result that is not an object in one, as its only
/// field (FastMCP's `result`).
fn repeats(text: &str, structured: &Value) -> bool {
    let is_same = |value: &Value| {
        value.as_str().is_some_and(|value| value == text)
            || serde_json::from_str(text).is_ok_and(|json: Value| json == *value)
    };
    let only =
        structured.as_object().filter(|fields| fields.len() == 1).and_then(|fields| fields.values().next());
    is_same(structured) || only.is_some_and(is_same)
}

/// Converts the contents of a resource.
pub fn resource(
    server: &str,
    uri: &str,
    contents: Vec<ResourceContents>,
    mask: impl Fn(String) -> String,
) -> ToolResult {
    let mut parts = ContentParts::new(mask);
    for content in contents {
        parts.resource(content);
    }
    parts.finish(OutcomeStatus::Completed, json!({ "mcp": { "server": server, "resource": short(uri) } }))
}

/// The content of a result, in the server's order.
struct ContentParts<M> {
    content: Vec<OutcomeContent>,
    images: usize,
    image_bytes: usize,
    mask: M,
}

impl<M: Fn(String) -> String> ContentParts<M> {
    fn new(mask: M) -> ContentParts<M> {
        ContentParts { content: Vec::new(), images: 0, image_bytes: 0, mask }
    }

    fn add(&mut self, block: ContentBlock) {
        match block {
            ContentBlock::Text(text) => self.text(text.text),
            ContentBlock::Image(image) => self.image(image.data),
            ContentBlock::Audio(audio) => {
                self.text(format!("[Audio ({}) was left out.]", short(&audio.mime_type)));
            }
            ContentBlock::Resource(embedded) => self.resource(embedded.resource),
            ContentBlock::ResourceLink(link) => self.text(link_text(&link)),
            _ => self.text("[Content of an unknown kind was left out.]".to_owned()),
        }
    }

    /// Appends a text, merged with a preceding text.
    fn text(&mut self, text: String) {
        let text = (self.mask)(text);
        match self.content.last_mut() {
            Some(OutcomeContent::Text { text: last }) => {
                last.push('\n');
                last.push_str(&text);
            }
            Some(OutcomeContent::Image { .. } | OutcomeContent::Document { .. }) | None => {
                self.content.push(OutcomeContent::Text { text });
            }
        }
    }

    fn image(&mut self, data: String) {
        self.image_bytes += data.len();
        match checked_image(&data) {
            _ if self.images == IMAGES_MAX || self.image_bytes > IMAGE_BYTES_MAX => {
                self.text("[An image was left out: the result has too many.]".to_owned());
            }
            Ok(mime_type) => {
                self.images += 1;
                self.content.push(OutcomeContent::Image { mime_type: mime_type.to_owned(), data });
            }
            Err(why) => self.text(format!("[An image was left out: it {why}.]")),
        }
    }

    fn resource(&mut self, contents: ResourceContents) {
        match contents {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                self.text(format!("[Resource {}]\n{text}", short(&uri)));
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                self.blob(&short(&uri), &mime_type.unwrap_or_default().to_ascii_lowercase(), blob);
            }
            _ => self.text("[A resource of an unknown kind was left out.]".to_owned()),
        }
    }

    fn blob(&mut self, uri: &str, mime_type: &str, blob: String) {
        if mime_type.starts_with("image/") && mime_type != "image/svg+xml" {
            self.text(format!("[Resource {uri}]"));
            return self.image(blob);
        }
        let decoded = is_text(mime_type).then(|| STANDARD.decode(&blob).ok()).flatten();
        match decoded.and_then(|bytes| String::from_utf8(bytes).ok()) {
            Some(text) => self.text(format!("[Resource {uri}]\n{text}")),
            None => {
                let kind = if mime_type.is_empty() { "of unknown type".to_owned() } else { short(mime_type) };
                self.text(format!("[The resource {uri} ({kind}) is not text and was left out.]"));
            }
        }
    }

    fn finish(self, status: OutcomeStatus, raw: Value) -> ToolResult {
        let mut content = self.content;
        let texts = content.iter().filter_map(OutcomeContent::as_text);
        let mut text = texts.collect::<Vec<&str>>().join("\n");
        let mut kept = None;
        if text.len() > OUTPUT_BYTES_MAX {
            // Truncates across all texts; the images follow.
            kept = Some(head_and_tail(&text, WHOLE_BYTES_MAX, WHOLE_BYTES_MAX / 2, KEPT_NOWHERE));
            text = head_and_tail(&text, OUTPUT_BYTES_MAX, OUTPUT_HEAD_BYTES, "recall reads the rest");
            content.retain(|content| !matches!(content, OutcomeContent::Text { .. }));
            content.insert(0, OutcomeContent::Text { text: text.clone() });
        }
        if content.is_empty() {
            content.push(OutcomeContent::Text { text: "The tool returned nothing.".to_owned() });
        }
        let shown = vec![ToolDisplay::Text { text: fenced(&text) }];
        ToolResult { status, content, whole: kept, shown, locations: Vec::new(), raw: Some(raw), plan: None }
    }
}

/// Whether data of this type is text that a model can read.
fn is_text(mime_type: &str) -> bool {
    let kind = mime_type.split(';').next().unwrap_or_default().trim();
    kind.starts_with("text/")
        || ["json", "xml", "yaml", "toml", "javascript", "sql"].iter().any(|text| {
            kind.strip_prefix("application/").is_some_and(|kind| {
                kind == *text
                    || kind.strip_suffix(text).is_some_and(|before| before.ends_with('+') || before == "x-")
            })
        })
        || kind == "image/svg+xml"
}

fn link_text(link: &Resource) -> String {
    let description = link.description.as_deref().or(link.title.as_deref()).unwrap_or_default().trim();
    let description = &description[..description.floor_char_boundary(LINK_BYTES_MAX)];
    let description = if description.is_empty() { String::new() } else { format!(": {description}") };
    format!("[Resource {} at {}{description}]", short(&link.name), link.uri)
}

/// Why an image is left out. The text completes a sentence that begins with "it".
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("is not valid base64")]
    Encoding(#[from] base64::DecodeError),
    #[error("is {0}")]
    TooLarge(String),
    #[error("has a type that models cannot read")]
    Type,
}

/// Detects an image's type from its bytes. The server's claim isn't trusted, because one wrong image makes a
/// provider reject every later request.
pub fn checked_image(data: &str) -> Result<&'static str, ImageError> {
    let bytes = STANDARD.decode(data)?;
    match FileType::detect(&bytes) {
        Some(kind @ (FileType::Png | FileType::Jpeg | FileType::Gif | FileType::Webp)) => {
            match kind.too_large(bytes.len()) {
                Some(why) => Err(ImageError::TooLarge(why)),
                None => Ok(kind.mime_type()),
            }
        }
        Some(FileType::Pdf) | None => Err(ImageError::Type),
    }
}

/// Puts server text into a code fence that the text can't close; otherwise an editor would render it as Markdown.
pub fn fenced(text: &str) -> String {
    epitome_tools::disk::fenced("", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest PNG file.
    const PNG: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

    fn converted(content: Vec<ContentBlock>) -> ToolResult {
        result("s", "t", CallToolResult::success(content), |text| text)
    }

    fn texts(result: &ToolResult) -> Vec<&str> {
        fn text_of(content: &OutcomeContent) -> &str {
            match content {
                OutcomeContent::Text { text } => text,
                OutcomeContent::Image { .. } => "<image>",
                OutcomeContent::Document { .. } => "<document>",
            }
        }
        result.content.iter().map(text_of).collect()
    }

    fn blob(uri: &str, mime_type: &str, bytes: &str) -> ContentBlock {
        let contents = ResourceContents::blob(STANDARD.encode(bytes), uri).with_mime_type(mime_type);
        ContentBlock::Resource(rmcp::model::EmbeddedResource::new(contents))
    }

    #[test]
    fn texts_are_joined_and_errors_become_failures() {
        let blocks = vec![ContentBlock::text("a"), ContentBlock::embedded_text("file:///x", "b")];
        let done = converted(blocks);
        assert_eq!(done.status, OutcomeStatus::Completed);
        assert_eq!(texts(&done), ["a\n[Resource file:///x]\nb"]);
        let failed = result("s", "t", CallToolResult::error(vec![ContentBlock::text("no")]), |text| text);
        assert_eq!(failed.status, OutcomeStatus::Failed);
        assert!(texts(&converted(Vec::new()))[0].contains("nothing"));
    }

    /// Regression: "3 rows found" hid the rows; a text that refers to "the image above" came before the image.
    #[test]
    fn structured_content_and_the_order_of_the_blocks_are_kept() {
        let structured = |content: Vec<ContentBlock>, value: Value| {
            let mut came = CallToolResult::success(content);
            came.structured_content = Some(value);
            texts(&result("s", "t", came, |text| text)).join("|")
        };
        let rows = || json!({"rows": [1, 2]});
        assert_eq!(structured(vec![ContentBlock::text("2 rows")], rows()), "2 rows\n{\"rows\":[1,2]}");
        assert_eq!(
            structured(vec![ContentBlock::text("{ \"rows\": [1, 2] }")], rows()),
            "{ \"rows\": [1, 2] }"
        );
        assert_eq!(structured(Vec::new(), rows()), "{\"rows\":[1,2]}");
        // As sent by FastMCP and by the filesystem server.
        assert_eq!(structured(vec![ContentBlock::text("[1,2]")], rows()), "[1,2]");
        assert_eq!(structured(vec![ContentBlock::text("a b")], json!({"result": "a b"})), "a b");

        let blocks =
            vec![ContentBlock::text("a"), ContentBlock::image(PNG, "image/png"), ContentBlock::text("b")];
        assert_eq!(texts(&converted(blocks)), ["a", "<image>", "b"]);
    }

    /// Regression: text files and images were left out if the server sent them as bytes, and links lost their
    /// description.
    #[test]
    fn readable_blobs_and_descriptions_of_links_are_kept() {
        let png = ContentBlock::Resource(rmcp::model::EmbeddedResource::new(
            ResourceContents::blob(PNG, "file:///a.png").with_mime_type("image/png"),
        ));
        for (block, wanted) in [
            (blob("file:///a", "text/plain; charset=utf-8", "hi"), "[Resource file:///a]\nhi"),
            (blob("file:///a", "application/json", "{}"), "[Resource file:///a]\n{}"),
            (blob("file:///a", "application/ld+json", "{}"), "[Resource file:///a]\n{}"),
            (png, "[Resource file:///a.png]|<image>"),
            (
                blob("file:///a", "application/zip", "x"),
                "[The resource file:///a (application/zip) is not text and was left out.]",
            ),
            (
                ContentBlock::ResourceLink(Resource::new("db://x", "x").with_description("All rows")),
                "[Resource x at db://x: All rows]",
            ),
        ] {
            assert_eq!(texts(&converted(vec![block])).join("|"), wanted);
        }
    }

    /// A block of a newer version of the protocol, and one with an error in it, took the other blocks with them.
    #[test]
    fn content_of_an_unknown_kind_leaves_the_rest() {
        let text = json!({ "type": "text", "text": "meta" });
        let came = json!({ "content": [text, { "type": "video", "src": 1 }, { "type": "image" }, text], "isError": true });
        let done = result("s", "t", understood(came).expect("it has content"), |text| text);
        assert_eq!(done.status, OutcomeStatus::Failed);
        let left_out = |kind| format!("[Content of the kind {kind} was left out.]");
        let wanted = ["meta".to_owned(), left_out("video"), left_out("image"), "meta".to_owned()];
        assert_eq!(texts(&done), [wanted.join("\n")]);
        assert!(understood(json!({ "contents": [] })).is_none());
    }

    #[test]
    fn secrets_of_the_server_are_masked() {
        let mask = |text: String| text.replace("sk-own", "[masked]");
        let done = result("s", "t", CallToolResult::success(vec![ContentBlock::text("key sk-own")]), mask);
        assert_eq!(texts(&done), ["key [masked]"]);
    }

    #[test]
    fn large_text_is_cut_and_invalid_images_are_dropped() {
        let blocks = vec![
            ContentBlock::text("x".repeat(10_000_000)),
            ContentBlock::image("bm9uc2Vuc2U=", "image/png"),
        ];
        let done = converted(blocks);
        let text = texts(&done)[0];
        assert!(text.len() < OUTPUT_BYTES_MAX + 500);
        assert!(text.contains("An image was left out"), "the end is kept");
        assert_eq!(done.content.len(), 1);
        assert!(done.whole.expect("it is kept").len() < WHOLE_BYTES_MAX + 500);
    }
}
