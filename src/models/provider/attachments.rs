//! Decides which images and documents a model accepts. The encoders replace others with a line of text, and the user is
//! notified.

use std::collections::BTreeSet;

use super::model_endpoint::{Endpoint, attachment_digest};
use epitome_config::WireFormat;
use epitome_thread::{Content, OutcomeContent, ViewItem};
use epitome_tokens::image_sides;
use epitome_tokens::model_name::Family;

const PDF: &str = "application/pdf";

/// Maximum pixels of a side of an image that Claude accepts. A longer screenshot makes the service reject every later
/// request of the conversation.
pub const IMAGE_SIDE_MAX: u32 = 8_000;

/// Whether an image is larger than the model accepts. `data` is its base64.
pub fn is_image_too_large(endpoint: &Endpoint, data: &str) -> bool {
    Family::detect(&endpoint.model) == Family::Claude && longer_side(data) > IMAGE_SIDE_MAX
}

/// The pixels of an image's longer side; 0 if they can't be found.
pub(super) fn longer_side(data: &str) -> u32 {
    image_sides(data).map_or(0, |(width, height)| width.max(height))
}

/// Whether an image of this type can be sent as an image.
pub fn takes_image(endpoint: &Endpoint, mime_type: &str) -> bool {
    let takes_type = match endpoint.wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiResponses => is_common(mime_type),
        // Compatible servers differ in the types that they accept.
        WireFormat::OpenAiChat => !endpoint.own_api || is_common(mime_type),
        WireFormat::Gemini => {
            matches!(mime_type, "image/png" | "image/jpeg" | "image/webp" | "image/heic" | "image/heif")
        }
    };
    endpoint.abilities.images && takes_type
}

/// Whether a document of this type can be sent as a document.
pub fn takes_document(endpoint: &Endpoint, mime_type: &str) -> bool {
    // The form for documents in Chat Completions is specific to OpenAI; compatible servers reject the entire request.
    let has_form = endpoint.wire != WireFormat::OpenAiChat || endpoint.own_api;
    match mime_type {
        PDF => endpoint.abilities.documents && has_form,
        _ => endpoint.abilities.audio && takes_audio(endpoint.wire, mime_type),
    }
}

/// Whether audio of this type can be expressed.
fn takes_audio(wire: WireFormat, mime_type: &str) -> bool {
    match wire {
        WireFormat::AnthropicMessages | WireFormat::OpenAiResponses => false,
        WireFormat::OpenAiChat => audio_format(mime_type).is_some(),
        WireFormat::Gemini => {
            audio_format(mime_type).is_some()
                || matches!(mime_type, "audio/aac" | "audio/aiff" | "audio/flac" | "audio/ogg")
        }
    }
}

/// OpenAI's name for a type of audio; `None` if it is none, or another one.
pub fn audio_format(mime_type: &str) -> Option<&'static str> {
    match mime_type {
        "audio/wav" | "audio/x-wav" | "audio/wave" => Some("wav"),
        "audio/mpeg" | "audio/mp3" => Some("mp3"),
        _ => None,
    }
}

/// A message for the user if the prompt contains attachments that the model doesn't accept; otherwise `None`.
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
            Content::Image { data, .. } if is_image_too_large(endpoint, data) => {
                format!("no images with more than {IMAGE_SIDE_MAX} pixels on a side")
            }
            Content::Document { mime_type, .. } if !takes_document(endpoint, mime_type) => {
                match mime_type.as_str() {
                    PDF => "no PDF documents".to_owned(),
                    _ if mime_type.starts_with("audio/") && !endpoint.abilities.audio => {
                        "no audio".to_owned()
                    }
                    audio if audio.starts_with("audio/") => format!("no audio of type {audio}"),
                    other => format!("no documents of type {other}"),
                }
            }
            Content::Text { .. }
            | Content::Thinking { .. }
            | Content::Image { .. }
            | Content::Document { .. }
            | Content::Resource { .. }
            | Content::ResourceLink { .. }
            | Content::Call(_)
            | Content::Search(_) => continue,
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

/// Digests of the attachments to leave out after a refusal that is about one of them: those since the last reply, because what
/// came before was accepted; if there are none, all that were sent.
pub fn refused(endpoint: &Endpoint, items: &[ViewItem<'_>]) -> BTreeSet<u64> {
    let newest = digests(endpoint, &items[answered(items)..]);
    if newest.is_empty() { digests(endpoint, items) } else { newest }
}

/// Digests of the attachments to leave out after a refusal of a request's size in bytes: those that the model has answered;
/// if there are none, all. Empty if attachments are less than half of the conversation, which a compaction shortens better.
pub fn too_large(endpoint: &Endpoint, items: &[ViewItem<'_>]) -> BTreeSet<u64> {
    if sent(endpoint, items).map(str::len).sum::<usize>() < items.iter().map(other_bytes).sum() {
        return BTreeSet::new();
    }
    let older = digests(endpoint, &items[..answered(items)]);
    if older.is_empty() { digests(endpoint, items) } else { older }
}

/// The number of items up to the last reply.
fn answered(items: &[ViewItem<'_>]) -> usize {
    items.iter().rposition(|item| matches!(item, ViewItem::Agent(..))).map_or(0, |at| at + 1)
}

fn digests(endpoint: &Endpoint, items: &[ViewItem<'_>]) -> BTreeSet<u64> {
    sent(endpoint, items).map(attachment_digest).collect()
}

/// The base64 of attachments that are not left out yet.
fn sent<'a>(endpoint: &Endpoint, items: &[ViewItem<'a>]) -> impl Iterator<Item = &'a str> {
    items.iter().flat_map(attached).filter(|data| !endpoint.omitted.has_attachment(data))
}

/// The size of an item as JSON, without what is attached.
fn other_bytes(item: &ViewItem<'_>) -> usize {
    let json = match item {
        ViewItem::User(message) | ViewItem::Summary(message) | ViewItem::Agent(message, _) => {
            serde_json::to_string(message)
        }
        ViewItem::Outcomes(outcomes) => serde_json::to_string(outcomes),
    };
    let attached: usize = attached(item).iter().map(|data| data.len()).sum();
    json.map_or(0, |json| json.len().saturating_sub(attached))
}

/// The base64 of the images and documents of an item.
fn attached<'a>(item: &ViewItem<'a>) -> Vec<&'a str> {
    match item {
        ViewItem::User(message) | ViewItem::Summary(message) => {
            let data = message.content.iter().map(|part| match part {
                Content::Image { data, .. } | Content::Document { data, .. } => Some(data.as_str()),
                _ => None,
            });
            data.flatten().collect()
        }
        ViewItem::Outcomes(outcomes) => {
            let data = outcomes.iter().flat_map(|outcome| &outcome.content).map(|part| match part {
                OutcomeContent::Image { data, .. } | OutcomeContent::Document { data, .. } => {
                    Some(data.as_str())
                }
                OutcomeContent::Text { .. } => None,
            });
            data.flatten().collect()
        }
        ViewItem::Agent(..) => Vec::new(),
    }
}

fn is_common(mime_type: &str) -> bool {
    matches!(mime_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::test_endpoint;
    use crate::wire::views_tests::{OwnedView, text};

    #[test]
    fn unsupported_attachments_are_reported() {
        let image = |mime_type: &str| Content::Image {
            mime_type: mime_type.to_owned(),
            data: "aGk=".to_owned(),
            uri: None,
        };
        let document = |mime_type: &str| Content::Document {
            mime_type: mime_type.to_owned(),
            data: "JVBERi0=".to_owned(),
            name: None,
        };
        let all = [image("image/png"), image("image/png"), document(PDF), image("image/tiff")];
        let zip = [Content::Text { text: "look".to_owned() }, document("application/zip")];
        let mut seeing = test_endpoint("anthropic/claude-sonnet-5-5");
        (seeing.abilities.images, seeing.abilities.documents) = (true, true);
        let mut reading = seeing.clone();
        (reading.abilities.images, reading.abilities.documents) = (false, false);
        let mut hearing = test_endpoint("gemini/gemini-3.8-flash");
        hearing.name = seeing.name.clone();
        let audio = [document("audio/wav"), document("audio/flac")];
        let speech = [document("audio/basic")];
        let table: [(&Endpoint, &[Content], Option<&str>); 8] = [
            (&seeing, &audio, Some("no audio")),
            (&hearing, &audio, None),
            (&hearing, &speech, Some("no audio of type audio/basic")),
            (&seeing, &all[..3], None),
            (&seeing, &all, Some("no images of type image/tiff")),
            (&seeing, &zip, Some("no documents of type application/zip")),
            (&reading, &all, Some("no images and no PDF documents")),
            (&reading, &zip[..1], None),
        ];
        for (endpoint, content, expected) in table {
            let expected = expected.map(|what| {
                format!(
                    "anthropic/claude-sonnet-5-5 takes {what}; it only gets a note that something was \
                     attached.\nChoose a model that does, and send this again."
                )
            });
            assert_eq!(left_out(endpoint, content), expected, "{content:?}");
        }
    }

    /// The service accepted the first image earlier, so it is left out only if the refusal is not about the second.
    #[test]
    fn newest_attachments_are_left_out_first() {
        let image = |data: &str| Content::Image {
            mime_type: "image/png".to_owned(),
            data: data.to_owned(),
            uri: None,
        };
        let view = OwnedView::default().user(vec![image("AAAA")]).agent(vec![text("A dot.")]);
        let view = view.user(vec![image("BBBB"), text("And this?")]);
        let request = view.request();
        let mut endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
        for expected in [vec!["BBBB"], vec!["AAAA"], vec![]] {
            let refused = refused(&endpoint, &request.items);
            assert_eq!(refused, expected.into_iter().map(attachment_digest).collect());
            endpoint.omitted.attachments.extend(refused);
        }
    }

    /// An agent read screenshots until its service refused requests by their size (413), and each later prompt as well. What
    /// the model has answered is left out first; a long text is a matter of compaction.
    #[test]
    fn older_attachments_are_left_out_of_requests_that_are_too_large() {
        let image = |data: String| Content::Image { mime_type: "image/png".to_owned(), data, uri: None };
        let view = OwnedView::default().user(vec![image("A".repeat(4000))]).agent(vec![text("A dot.")]);
        let view = view.user(vec![image("B".repeat(4000)), text("And this?")]);
        let request = view.request();
        let mut endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
        for expected in [vec!["A"], vec!["B"], vec![]] {
            let left_out = too_large(&endpoint, &request.items);
            assert_eq!(
                left_out,
                expected.into_iter().map(|data| attachment_digest(&data.repeat(4000))).collect()
            );
            endpoint.omitted.attachments.extend(left_out);
        }
        let long = OwnedView::default().user(vec![image("A".repeat(4000)), text(&"word ".repeat(2000))]);
        let endpoint = test_endpoint("anthropic/claude-sonnet-5-5");
        assert_eq!(too_large(&endpoint, &long.request().items), BTreeSet::new());
    }
}
