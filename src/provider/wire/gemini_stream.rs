//! The stream of Gemini, event by event. Pure.

use super::Decode;
use super::stream::{DecodeError, Unfinished};
use crate::provider::ProviderEvent;

/// Decodes one reply.
#[derive(Debug)]
pub(super) struct Decoder {
    prefix: String,
}

impl Decoder {
    /// `prefix` is the digest that the request's encoder gave.
    pub(super) fn new(prefix: String) -> Decoder {
        Decoder { prefix }
    }
}

impl Decode for Decoder {
    fn event(&mut self, _: &str, _: &mut Vec<ProviderEvent>) -> Result<(), DecodeError> {
        todo!("{}", self.prefix)
    }

    fn is_whole(&self) -> bool {
        todo!()
    }

    fn end(&mut self, _: &mut Vec<ProviderEvent>) -> Result<(), Unfinished> {
        todo!()
    }
}
