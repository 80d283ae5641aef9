//! OpenAI's Responses format: a request as JSON. Pure; nothing is sent from here.

use super::turns::Turn;
use super::{Around, Envelope, Format, Prefix, Written};
use crate::provider::endpoint::Endpoint;
use crate::thread::ToolSpec;

pub struct Responses;

impl Format for Responses {
    fn tools(&self, _: &Endpoint, _: &[ToolSpec]) -> Vec<u8> {
        todo!()
    }

    fn turn(&self, _: &Endpoint, _: &Turn<'_>, _: &mut Prefix, _: &mut Vec<u8>) -> Written {
        todo!()
    }

    fn envelope(&self, _: &Endpoint, _: &Around<'_>) -> Envelope {
        todo!()
    }
}
