//! Which images and documents a model can be sent. The encoders write a line in the place of the others, and
//! the person is told.

use super::endpoint::Endpoint;
use crate::config::WireFormat;
use crate::thread::Content;

const PDF: &str = "application/pdf";

/// Whether an image of this type can be sent as one.
pub fn takes_image(endpoint: &Endpoint, mime_type: &str) -> bool {
    let takes_type = match endpoint.wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiResponses => is_common(mime_type),
        // What a compatible server takes is its own business.
        WireFormat::OpenAiChat => !endpoint.own_api || is_common(mime_type),
        WireFormat::Gemini => {
            matches!(mime_type, "image/png" | "image/jpeg" | "image/webp" | "image/heic" | "image/heif")
        }
    };
    endpoint.abilities.images && takes_type
}

/// Whether a document of this type can be sent as one.
pub fn takes_document(endpoint: &Endpoint, mime_type: &str) -> bool {
    let has_form = match endpoint.wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiResponses | WireFormat::Gemini => true,
        // The form is OpenAI's own; compatible servers refuse the whole request.
        WireFormat::OpenAiChat => endpoint.own_api,
    };
    endpoint.abilities.documents && has_form && mime_type == PDF
}

/// What to tell a person whose prompt holds what its model can't be sent; `None` where it holds nothing such.
pub fn left_out(endpoint: &Endpoint, content: &[Content]) -> Option<String> {
    let mut kinds: Vec<String> = Vec::new();
    for part in content {
        let kind = match part {
            Content::Image { mime_type, .. } if !takes_image(endpoint, mime_type) => {
                match endpoint.abilities.images {
                    true => format!("no images of type {mime_type}"),
                    false => "no images".to_owned(),
                }
            }
            Content::Document { mime_type, .. } if !takes_document(endpoint, mime_type) => {
                match mime_type.as_str() {
                    PDF => "no PDF documents".to_owned(),
                    other => format!("no documents of type {other}"),
                }
            }
            Content::Text { .. }
            | Content::Thinking { .. }
            | Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. }
            | Content::Call(_) => continue,
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    (!kinds.is_empty()).then(|| {
        format!(
            "{} takes {}; it only gets a note that something was attached.\nChoose a model that does, and send \
             this again.",
            endpoint.name,
            kinds.join(" and ")
        )
    })
}

fn is_common(mime_type: &str) -> bool {
    matches!(mime_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}
