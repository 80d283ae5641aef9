//! Which images and documents a model can be sent. The encoders write a line in the place of the others, and
//! the person is told.

use super::endpoint::Endpoint;
use crate::config::WireFormat;

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

fn is_common(mime_type: &str) -> bool {
    matches!(mime_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}
