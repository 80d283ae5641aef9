//! Tracks the streamed part of a reply, so that it is not printed again with the entry. Pure.

use std::borrow::Cow;

use crate::session::TextKind;
use crate::thread::{Content, Message, MessageId};

/// The streamed part of a message that is not yet an entry.
///
/// The queue may drop text, and a cancelled reply may lack a part that was streamed, so parts are matched by their
/// position among those of their kind.
#[derive(Debug, Default)]
pub struct Streamed {
    message: Option<MessageId>,
    /// Part, kind, bytes.
    parts: Vec<(u32, TextKind, usize)>,
}

impl Streamed {
    pub fn saw(&mut self, message: MessageId, part: u32, kind: TextKind, bytes: usize) {
        if self.message != Some(message) {
            *self = Streamed { message: Some(message), parts: Vec::new() };
        }
        match self.parts.iter_mut().find(|(known, ..)| *known == part) {
            Some((.., sent)) => *sent += bytes,
            None => self.parts.push((part, kind, bytes)),
        }
    }

    /// Returns the part of the complete message that was not streamed.
    pub fn missing<'a>(&mut self, message: &'a Message) -> Vec<(TextKind, Cow<'a, str>)> {
        let streamed = std::mem::take(self);
        let parts = if streamed.message == Some(message.id) { streamed.parts } else { Vec::new() };
        let of = |wanted: TextKind| {
            let sizes = parts.iter().filter(move |(_, kind, _)| *kind == wanted);
            sizes.map(|(.., bytes)| *bytes).collect::<Vec<usize>>().into_iter()
        };
        let (mut thinking, mut reply) = (of(TextKind::Thinking), of(TextKind::Reply));
        let missing = message.content.iter().filter_map(|content| {
            let (kind, text, sent) = match content {
                Content::Text { text } => (TextKind::Reply, Cow::Borrowed(text.as_str()), reply.next()),
                Content::Thinking { text, .. } => (TextKind::Thinking, text.into(), thinking.next()),
                Content::Search(search) => match search.sources() {
                    sources if sources.is_empty() => return None,
                    sources => (TextKind::Reply, sources.into(), reply.next()),
                },
                Content::Image { .. }
                | Content::Document { .. }
                | Content::Resource { .. }
                | Content::ResourceLink { .. }
                | Content::Call(_) => return None,
            };
            let rest = match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.get(sent.unwrap_or(0)..)?),
                Cow::Owned(text) => text.get(sent.unwrap_or(0)..)?.to_owned().into(),
            };
            (!rest.is_empty()).then_some((kind, rest))
        });
        missing.collect()
    }
}
