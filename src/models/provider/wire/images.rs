//! Leaves out the oldest images of a conversation where Claude would reject them all: a request with more than
//! `FEW_MAX` images may not contain a large one, such as a screenshot, and the service rejects every later request of a
//! conversation that does. Pure.

use super::parts::Sendable;
use crate::attachments::{is_image_too_large, longer_side, takes_image};
use crate::model_endpoint::Endpoint;
use epitome_config::WireFormat;
use epitome_thread::{Content, OutcomeContent, ViewItem};
use epitome_tokens::model_name::Family;

/// Maximum images of a request if one of them is large.
const FEW_MAX: usize = 20;

/// Maximum images of a request in any case.
const MANY_MAX: usize = 100;

/// A larger image, in pixels of its longer side, is a large one.
const LARGE_FROM: u32 = 2_000;

/// Number of images that are left out at a time. Each time changes an early message, so that the provider's cache no
/// longer contains the conversation.
const STEP: usize = 10;

/// The text that replaces an image.
const LEFT_OUT: &str = "(An image was attached here and left out: the model takes no more images of this size at once, \
                        and there are newer ones.)";

/// The number of the oldest images that are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OldestImages(usize);

impl OldestImages {
    /// The images to leave out of a request. The number only grows while a conversation continues.
    pub fn of_request(endpoint: &Endpoint, items: &[ViewItem<'_>]) -> OldestImages {
        if endpoint.wire != WireFormat::AnthropicMessages
            || Family::detect(&endpoint.model) != Family::Claude
            || !endpoint.abilities.images
        {
            return OldestImages(0);
        }
        let mut images = images_of(items);
        images.retain(|(mime_type, _)| takes_image(endpoint, mime_type));
        // The sizes are only needed if there are many.
        if images.len() <= FEW_MAX {
            return OldestImages(0);
        }
        images.retain(|(_, data)| !is_image_too_large(endpoint, data));
        let are_large: Vec<bool> = images.iter().map(|(_, data)| longer_side(data) > LARGE_FROM).collect();
        let is_accepted = |oldest: &usize| {
            let sent = are_large.get(*oldest..).unwrap_or_default();
            sent.len() <= FEW_MAX || (sent.len() <= MANY_MAX && !sent.contains(&true))
        };
        OldestImages((0..are_large.len()).step_by(STEP).find(is_accepted).unwrap_or(are_large.len()))
    }

    /// Returns the next part as it is sent.
    pub fn admit<'a>(&mut self, part: Sendable<'a>) -> Sendable<'a> {
        match part {
            Sendable::Image { .. } if self.0 > 0 => {
                self.0 -= 1;
                Sendable::Text(LEFT_OUT.into())
            }
            part => part,
        }
    }
}

/// The images of a view, oldest first: types and base64.
fn images_of<'a>(items: &[ViewItem<'a>]) -> Vec<(&'a str, &'a str)> {
    let mut images: Vec<(&'a str, &'a str)> = Vec::new();
    for item in items {
        match item {
            ViewItem::User(message) | ViewItem::Summary(message) => {
                for part in &message.content {
                    if let Content::Image { mime_type, data, .. } = part {
                        images.push((mime_type, data));
                    }
                }
            }
            ViewItem::Outcomes(outcomes) => {
                for part in outcomes.iter().flat_map(|outcome| &outcome.content) {
                    if let OutcomeContent::Image { mime_type, data } = part {
                        images.push((mime_type, data));
                    }
                }
            }
            ViewItem::Agent(..) => {}
        }
    }
    images
}
