//! Caches the encoding of a conversation for an endpoint between calls. Encoded turns are sent again as the same bytes,
//! so the cost of encoding a call depends on the new turns and not on the entire history.

use bytes::Bytes;

use super::images::OldestImages;
use super::turns::{WireTurn, turns};
use super::{BodyEnvelope, CacheMarks, Format, Prefix, Purpose, RequestMeta, TurnWriter, format_of};
use crate::budget::BYTES_PER_TOKEN;
use crate::model_endpoint::Endpoint;
use crate::{Basis, ModelRequest};
use epitome_thread::{Content, OutcomeContent};
use epitome_tokens::model_name::Family;
use epitome_tokens::{document_tokens, image_tokens};

/// Number of turns that are kept separate, so that cache marks can be inserted; older ones are joined.
const APART: usize = 4;

/// Number of separate turns above which the older ones are joined. This limits a body to about a hundred pieces, and
/// copies each byte once more.
const GATHERED_MAX: usize = 32;

/// A request's body, and the digest of everything in it that signed thinking depends on.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The pieces of the body, in order.
    pub body: Vec<Bytes>,
    /// Digest of the prefix. It is stored with the reply's signed thinking, which is only sent back after the same
    /// prefix.
    pub prefix: String,
    /// Bytes of the body that were encoded for this call; the others were cached.
    pub fresh: usize,
    /// Bytes of the body, in which images and documents count as much text as costs the same number of tokens.
    pub priced: usize,
}

impl Encoded {
    /// The length of the body, in bytes.
    pub fn len(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The body as one buffer.
    pub fn bytes(&self) -> Vec<u8> {
        self.body.concat()
    }
}

/// The cached encoding of one conversation.
#[derive(Clone, Debug, Default)]
pub struct Encoding {
    cached: Option<CachedEncoding>,
}

#[derive(Clone, Debug)]
struct CachedEncoding {
    endpoint: Endpoint,
    basis: Basis,
    /// The images of the conversation that are left out.
    images: OldestImages,
    tools: Bytes,
    prefix: Prefix,
    /// Turns, oldest first. In each piece, every message is preceded by a comma.
    joined: Vec<Bytes>,
    apart: Vec<EncodedPiece>,
    /// Number of turns in `joined` and `apart`.
    turns: usize,
    /// Bytes in them that cost nothing.
    free: usize,
    continuation: EncodingStart,
}

/// A position where the conversion of a view to turns can continue instead of starting at its first item.
#[derive(Clone, Copy, Debug, Default)]
struct EncodingStart {
    /// The item that begins an agent's turn.
    item: usize,
    /// The number of turns before the one that precedes it. The conversion puts a turn of the user into that one's place.
    turns: usize,
}

#[derive(Clone, Debug)]
struct EncodedPiece {
    bytes: Bytes,
    /// Whether this is a reply that begins with the model's own thinking.
    begins_with_thinking: bool,
    /// Whether this is a turn of the user, or one with tool results.
    of_user: bool,
    /// Bytes that cost nothing, because they are not text.
    free: usize,
}

impl Encoding {
    /// Encodes a request. Turns that were encoded for an earlier request with the same endpoint and basis are reused.
    /// Without a basis, or if it or the images to leave out differ, everything is encoded again.
    pub fn encode(
        &mut self,
        endpoint: &Endpoint,
        request: &ModelRequest<'_>,
        purpose: Purpose<'_>,
    ) -> Encoded {
        let format = format_of(endpoint.wire);
        let images = OldestImages::of_request(endpoint, &request.items);
        let mut cached = self.take(format, endpoint, request, images);
        let mut from = cached.continuation;
        let (mut all, mut begin) = turns(request.items.get(from.item..).unwrap_or_default());
        // The newest turn may still grow before the model replies, so it is not cached.
        if from.item >= request.items.len() || cached.turns > from.turns + all.len() - 1 {
            cached = CachedEncoding::new(format, endpoint, request, images);
            from = EncodingStart::default();
            (all, begin) = turns(&request.items);
        }
        let (newest, older) = all.split_last().expect("a view has at least one turn");
        let mut fresh = 0;
        for turn in &older[cached.turns - from.turns..] {
            let piece = write_turn(format, endpoint, turn, &mut cached.prefix);
            fresh += piece.bytes.len();
            cached.push(piece);
        }
        if let Some(last) = older.iter().rposition(|turn| matches!(turn, WireTurn::Agent { .. })) {
            cached.continuation =
                EncodingStart { item: from.item + begin[last], turns: from.turns + last - 1 };
        }
        let mut prefix = cached.prefix.clone();
        let newest = write_turn(format, endpoint, newest, &mut prefix);
        fresh += newest.bytes.len();
        let meta = RequestMeta {
            request,
            tools: &cached.tools,
            continues_without_thinking: cached.continues_without_thinking(&all),
            purpose,
        };
        let envelope = format.envelope(endpoint, &meta);
        fresh += envelope.head.len() + envelope.tail.len();
        let free = cached.free + newest.free;
        let mut encoded =
            Encoded { body: cached.body(newest, envelope), prefix: prefix.digest(), fresh, priced: 0 };
        encoded.priced = encoded.len().saturating_sub(free);
        if request.basis.is_some() {
            self.cached = Some(cached);
        }
        encoded
    }

    /// Whether images of the conversation are left out of its requests.
    pub fn leaves_images_out(&self) -> bool {
        self.cached.as_ref().is_some_and(|cached| cached.images != OldestImages::default())
    }

    /// Takes the cached encoding if it has the same endpoint, basis and images, else returns an empty one.
    fn take(
        &mut self,
        format: &dyn Format,
        endpoint: &Endpoint,
        request: &ModelRequest<'_>,
        images: OldestImages,
    ) -> CachedEncoding {
        let basis = request.basis.unwrap_or_default();
        let is_same = |cached: &mut CachedEncoding| {
            cached.endpoint == *endpoint && cached.basis == basis && cached.images == images
        };
        let cached = request.basis.and_then(|_| self.cached.take_if(is_same));
        cached.unwrap_or_else(|| CachedEncoding::new(format, endpoint, request, images))
    }
}

impl CachedEncoding {
    fn new(
        format: &dyn Format,
        endpoint: &Endpoint,
        request: &ModelRequest<'_>,
        images: OldestImages,
    ) -> CachedEncoding {
        let tools = Bytes::from(format.tools(endpoint, request.tools));
        let prefix = Prefix::new(request.system, &tools, images);
        CachedEncoding {
            endpoint: endpoint.clone(),
            basis: request.basis.unwrap_or_default(),
            images,
            tools,
            prefix,
            joined: Vec::new(),
            apart: Vec::new(),
            turns: 0,
            free: 0,
            continuation: EncodingStart::default(),
        }
    }

    fn push(&mut self, piece: EncodedPiece) {
        self.turns += 1;
        self.free += piece.free;
        self.apart.push(piece);
        if self.apart.len() > GATHERED_MAX {
            let old = self.apart.drain(..self.apart.len() - APART);
            let joined: Vec<Bytes> = old.map(|piece| piece.bytes).collect();
            self.joined.push(Bytes::from(joined.concat()));
        }
    }

    fn continues_without_thinking(&self, turns: &[WireTurn<'_>]) -> bool {
        let answers = matches!(turns.last(), Some(WireTurn::User { answers, .. }) if !answers.is_empty());
        let newest_reply = self.apart.iter().rfind(|piece| !piece.of_user);
        answers && newest_reply.is_some_and(|reply| !reply.begins_with_thinking)
    }

    fn body(&self, newest: EncodedPiece, envelope: BodyEnvelope) -> Vec<Bytes> {
        let mut body: Vec<Bytes> = Vec::with_capacity(self.joined.len() + self.apart.len() + 5);
        body.push(Bytes::from(envelope.head));
        let messages = body.len();
        body.extend(self.joined.iter().cloned());
        let before = self.apart.iter().rposition(|piece| piece.of_user);
        for (at, piece) in self.apart.iter().enumerate() {
            put(piece, envelope.marks.filter(|_| Some(at) == before), &mut body);
        }
        put(&newest, envelope.marks.filter(|marks| marks.newest), &mut body);
        // The first message has no comma before it.
        body[messages] = body[messages].slice(1..);
        body.push(Bytes::from_static(envelope.tail.as_bytes()));
        body
    }
}

/// The end of a turn with cache marks: the ends of its last block, of the list and of the message. A mark precedes them.
const TURN_END: &str = "}]}";

fn put(piece: &EncodedPiece, marks: Option<CacheMarks>, body: &mut Vec<Bytes>) {
    let Some(CacheMarks { text, .. }) = marks else { return body.push(piece.bytes.clone()) };
    let at = piece.bytes.len() - TURN_END.len();
    body.extend([piece.bytes.slice(..at), Bytes::from_static(text.as_bytes()), piece.bytes.slice(at..)]);
}

fn write_turn(
    format: &dyn Format,
    endpoint: &Endpoint,
    turn: &WireTurn<'_>,
    prefix: &mut Prefix,
) -> EncodedPiece {
    let mut out = TurnWriter { endpoint, prefix, bytes: vec![b','] };
    let begins_with_thinking = format.turn(endpoint, turn, &mut out);
    let bytes = Bytes::from(out.bytes);
    // Images that are left out have no bytes here.
    let free = free_bytes(turn, Family::detect(&endpoint.model)).min(bytes.len());
    EncodedPiece { bytes, begins_with_thinking, of_user: matches!(turn, WireTurn::User { .. }), free }
}

/// The bytes of a turn's images and documents, less those of a text with as many tokens. Base64 has far more bytes than
/// providers charge for.
fn free_bytes(turn: &WireTurn<'_>, family: Family) -> usize {
    let WireTurn::User { answers, parts, .. } = turn else { return 0 };
    let free = |data: &str, tokens: u64| data.len().saturating_sub(tokens as usize * BYTES_PER_TOKEN);
    let of_image = |data: &str| free(data, image_tokens(family, data));
    let of_document = |data: &str| free(data, document_tokens(family, data));
    let outcomes = answers.iter().filter_map(|answer| answer.outcome).flat_map(|outcome| &outcome.content);
    let in_outcomes = outcomes.map(|content| match content {
        OutcomeContent::Image { data, .. } => of_image(data),
        OutcomeContent::Document { data, .. } => of_document(data),
        _ => 0,
    });
    let in_parts = parts.iter().map(|part| match &**part {
        Content::Image { data, .. } => of_image(data),
        Content::Document { data, .. } => of_document(data),
        _ => 0,
    });
    in_outcomes.chain(in_parts).sum()
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
