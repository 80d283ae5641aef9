//! Converts the parts of user messages and tool outcomes to parts that an endpoint accepts; others are replaced by a
//! line of text. Independent of wire formats.

use std::borrow::Cow;

use super::turns::NO_OUTPUT;
use crate::attachments::{IMAGE_SIDE_MAX, is_image_too_large, takes_document, takes_image};
use crate::model_endpoint::Endpoint;
use epitome_thread::{Content, OutcomeContent, ToolOutcome};

/// A part that the endpoint accepts.
#[derive(Debug)]
pub enum Sendable<'a> {
    Text(Cow<'a, str>),
    /// `data` is base64, as for documents.
    Image {
        mime_type: &'a str,
        data: &'a str,
    },
    /// `name` is never empty.
    Document {
        mime_type: &'a str,
        data: &'a str,
        name: Option<&'a str>,
    },
}

/// Name of an unnamed document, for formats that require one.
pub const UNNAMED: &str = "document.pdf";

/// Converts a part of a user message; `None` for parts that only occur in replies.
pub fn user_part<'a>(part: &'a Content, endpoint: &Endpoint) -> Option<Sendable<'a>> {
    Some(match part {
        Content::Text { text } => Sendable::Text(text.into()),
        Content::Image { mime_type, data, .. } => image(mime_type, data, endpoint),
        Content::Document { mime_type, data, name } => document(mime_type, data, name.as_deref(), endpoint),
        Content::Resource { uri, text } => {
            // Framed, so that the model can distinguish it from text that the user typed.
            Sendable::Text(format!("<resource uri=\"{uri}\">\n{text}\n</resource>").into())
        }
        // The user referred to the resource without sending it.
        Content::ResourceLink { uri, name } => Sendable::Text(format!("[{name}]({uri})").into()),
        Content::Thinking { .. } | Content::Call(_) | Content::Search(_) => return None,
    })
}

/// The content of an outcome as shown to the model, without blank texts; may be empty.
pub fn shown<'a>(outcome: &'a ToolOutcome, endpoint: &Endpoint) -> impl Iterator<Item = Sendable<'a>> {
    outcome.content.iter().filter_map(|part| match part {
        OutcomeContent::Text { text } if text.trim().is_empty() => None,
        OutcomeContent::Text { text } => Some(Sendable::Text(text.into())),
        OutcomeContent::Image { mime_type, data } => Some(image(mime_type, data, endpoint)),
        OutcomeContent::Document { mime_type, data, name } => {
            Some(document(mime_type, data, name.as_deref(), endpoint))
        }
    })
}

/// Like `shown`, for formats whose outcomes only contain text: all texts joined, and the other parts.
pub fn text_and_rest<'a>(outcome: &'a ToolOutcome, endpoint: &Endpoint) -> (String, Vec<Sendable<'a>>) {
    let (mut texts, mut rest) = (Vec::new(), Vec::new());
    for part in shown(outcome, endpoint) {
        match part {
            Sendable::Text(text) => texts.push(text),
            Sendable::Image { .. } | Sendable::Document { .. } => rest.push(part),
        }
    }
    (if texts.is_empty() { NO_OUTPUT.into() } else { texts.join("\n") }, rest)
}

/// An image or a document as a data URL.
pub fn data_url(mime_type: &str, data: &str) -> String {
    format!("data:{mime_type};base64,{data}")
}

/// The text that replaces an image that the model doesn't accept.
pub fn image_left_out(mime_type: &str) -> String {
    format!("(An image of type {mime_type} was attached here and left out: this model does not take it.)")
}

/// The text that replaces an image or a document that the service has refused.
fn refused(mime_type: &str) -> Sendable<'static> {
    let text =
        format!("(A file of type {mime_type} was attached here and left out: the service refused it.)");
    Sendable::Text(text.into())
}

/// The text that replaces a document that the model doesn't accept.
pub fn document_left_out(mime_type: &str, name: Option<&str>) -> String {
    let named = name.map(|name| format!(" {name}")).unwrap_or_default();
    let kind = if mime_type.starts_with("audio/") { "recording" } else { "document" };
    format!(
        "(The {kind}{named} of type {mime_type} was attached here and left out: this model does not take it.)"
    )
}

fn image<'a>(mime_type: &'a str, data: &'a str, endpoint: &Endpoint) -> Sendable<'a> {
    match takes_image(endpoint, mime_type) {
        true if endpoint.omitted.has_attachment(data) => refused(mime_type),
        true if is_image_too_large(endpoint, data) => Sendable::Text(
            format!(
                "(An image was attached here and left out: one of its sides has more than {IMAGE_SIDE_MAX} pixels, which \
                 this model does not take. A smaller copy can be looked at.)"
            )
            .into(),
        ),
        true => Sendable::Image { mime_type, data },
        false => Sendable::Text(image_left_out(mime_type).into()),
    }
}

fn document<'a>(
    mime_type: &'a str,
    data: &'a str,
    name: Option<&'a str>,
    endpoint: &Endpoint,
) -> Sendable<'a> {
    let name = name.filter(|name| !name.is_empty());
    match takes_document(endpoint, mime_type) {
        true if endpoint.omitted.has_attachment(data) => refused(mime_type),
        true => Sendable::Document { mime_type, data, name },
        false => Sendable::Text(document_left_out(mime_type, name).into()),
    }
}
