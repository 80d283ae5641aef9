//! A conversation as an endpoint takes it, kept from call to call: what was written once is sent again as
//! the same bytes, so that a call costs what is new and not the whole history.

use bytes::Bytes;

use super::turns::{Turn, turns};
use super::{Around, Envelope, Format, Prefix, Purpose, Written, format_of};
use crate::abilities::Abilities;
use crate::endpoint::Endpoint;
use crate::{Basis, Request};
use epitome_config::WireFormat;
use epitome_thread::ModelName;

/// Turns that are kept apart, so that a cache mark finds its place; older ones are joined.
const APART: usize = 4;

/// How many turns gather before the older ones are joined: a body is then some hundred pieces at most, and
/// each byte is copied once more in its life.
const GATHERED_MAX: usize = 32;

/// A request's body, and the digest of everything in it that signed thinking depends on.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// One behind another they are the body.
    pub body: Vec<Bytes>,
    /// Goes into the seal of the reply's thinking, which is sent again behind this prefix alone.
    pub prefix: String,
    /// Bytes of the body that were written for this call; the others were kept.
    pub fresh: usize,
}

impl Encoded {
    /// The length of the body, in bytes.
    pub fn len(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The body in one piece.
    pub fn bytes(&self) -> Vec<u8> {
        self.body.concat()
    }
}

/// What was written of one conversation so far.
#[derive(Clone, Debug, Default)]
pub struct Encoding {
    kept: Option<Kept>,
}

#[derive(Clone, Debug)]
struct Kept {
    of: Of,
    tools: Bytes,
    prefix: Prefix,
    /// Turns, oldest first, each piece with a comma before every message.
    joined: Vec<Bytes>,
    apart: Vec<Piece>,
    /// Turns in `joined` and `apart`.
    turns: usize,
}

/// What all that is kept was written for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Of {
    name: ModelName,
    model: String,
    wire: WireFormat,
    own_api: bool,
    abilities: Abilities,
    native_compaction: bool,
    basis: Basis,
}

#[derive(Clone, Debug)]
struct Piece {
    bytes: Bytes,
    written: Written,
    /// A person or a tool speaks.
    of_user: bool,
}

impl Encoding {
    /// Encodes a request. What was written for an earlier one of the same endpoint and basis is used
    /// again; any other, and one without a basis, is written anew.
    pub fn encode(&mut self, endpoint: &Endpoint, request: &Request<'_>, purpose: Purpose<'_>) -> Encoded {
        let format = format_of(endpoint.wire);
        let turns = turns(&request.items);
        // The newest turn may get more behind it before the other side speaks.
        let (newest, older) = turns.split_last().expect("a view has at least one turn");
        let mut kept = self.take(format, endpoint, request, older.len());
        let mut fresh = 0;
        for turn in &older[kept.turns..] {
            let piece = write_turn(format, endpoint, turn, &mut kept.prefix);
            fresh += piece.bytes.len();
            kept.push(piece);
        }
        let mut prefix = kept.prefix.clone();
        let newest = write_turn(format, endpoint, newest, &mut prefix);
        fresh += newest.bytes.len();
        let around = Around {
            request,
            tools: &kept.tools,
            goes_on_without_thinking: kept.goes_on_without_thinking(&turns),
            purpose,
        };
        let envelope = format.envelope(endpoint, &around);
        fresh += envelope.head.len() + envelope.tail.len();
        let encoded = Encoded { body: kept.body(newest, envelope), prefix: prefix.digest(), fresh };
        if request.basis.is_some() {
            self.kept = Some(kept);
        }
        encoded
    }

    /// What is kept, if it is the beginning of this request; else nothing yet.
    fn take(
        &mut self,
        format: &dyn Format,
        endpoint: &Endpoint,
        request: &Request<'_>,
        older: usize,
    ) -> Kept {
        let of = |basis: &Basis| Of {
            name: endpoint.name.clone(),
            model: endpoint.model.clone(),
            wire: endpoint.wire,
            own_api: endpoint.own_api,
            abilities: endpoint.abilities.clone(),
            native_compaction: endpoint.native_compaction,
            basis: *basis,
        };
        let of = of(&request.basis.unwrap_or_default());
        if request.basis.is_some()
            && let Some(kept) = self.kept.take_if(|kept| kept.of == of && kept.turns <= older)
        {
            return kept;
        }
        let tools = Bytes::from(format.tools(endpoint, request.tools));
        let prefix = Prefix::new(request.system, &tools);
        Kept { of, tools, prefix, joined: Vec::new(), apart: Vec::new(), turns: 0 }
    }
}

impl Kept {
    fn push(&mut self, piece: Piece) {
        self.turns += 1;
        self.apart.push(piece);
        if self.apart.len() > GATHERED_MAX {
            let old = self.apart.drain(..self.apart.len() - APART);
            let joined: Vec<Bytes> = old.map(|piece| piece.bytes).collect();
            self.joined.push(Bytes::from(joined.concat()));
        }
    }

    fn goes_on_without_thinking(&self, turns: &[Turn<'_>]) -> bool {
        let answers = matches!(turns.last(), Some(Turn::User { answers, .. }) if !answers.is_empty());
        let newest_reply = self.apart.iter().rfind(|piece| !piece.of_user);
        answers && newest_reply.is_some_and(|reply| !reply.written.begins_with_thinking)
    }

    fn body(&self, newest: Piece, envelope: Envelope) -> Vec<Bytes> {
        let mut body: Vec<Bytes> = Vec::with_capacity(self.joined.len() + self.apart.len() + 5);
        body.push(Bytes::from(envelope.head));
        let messages = body.len();
        body.extend(self.joined.iter().cloned());
        let before = self.apart.iter().rposition(|piece| piece.of_user && piece.written.mark.is_some());
        for (at, piece) in self.apart.iter().enumerate() {
            let mark = envelope.marks.filter(|_| Some(at) == before);
            put(piece, mark.map(|marks| marks.text), &mut body);
        }
        let mark = envelope.marks.filter(|marks| marks.newest);
        put(&newest, mark.map(|marks| marks.text), &mut body);
        // The first message has nothing before it.
        body[messages] = body[messages].slice(1..);
        body.push(Bytes::from_static(envelope.tail.as_bytes()));
        body
    }
}

fn put(piece: &Piece, mark: Option<&'static str>, body: &mut Vec<Bytes>) {
    match (mark, piece.written.mark) {
        (Some(mark), Some(at)) => {
            body.push(piece.bytes.slice(..at));
            body.push(Bytes::from_static(mark.as_bytes()));
            body.push(piece.bytes.slice(at..));
        }
        _ => body.push(piece.bytes.clone()),
    }
}

fn write_turn(format: &dyn Format, endpoint: &Endpoint, turn: &Turn<'_>, prefix: &mut Prefix) -> Piece {
    let mut bytes = vec![b','];
    let written = format.turn(endpoint, turn, prefix, &mut bytes);
    Piece { bytes: Bytes::from(bytes), written, of_user: matches!(turn, Turn::User { .. }) }
}

#[cfg(test)]
#[path = "encoding_tests.rs"]
mod tests;
