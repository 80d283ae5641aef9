//! Forms of the protocol that are newer than the schema crate (1.15.1), each with its source. They move to the crate's
//! types once it has them.

use super::from_wire::{BadParams, RequestParams};

/// Longest key, in characters: the schema's `maxLength`.
const KEY_CHARS_MAX: usize = 255;

/// `idempotencyKey` of `session/prompt` in version 2 (schema 1.19 and later, `PromptRequest`): 1 to 255 characters,
/// opaque, of one session. The same key inserts at most one message, and every request with it gets that message's id. It
/// has no capability of its own.
pub fn idempotency_key(params: &RequestParams<'_>) -> Result<Option<String>, BadParams> {
    let key: Option<String> = params.optional("idempotencyKey")?;
    match key.as_ref().map(|key| key.chars().count()) {
        None | Some(1..=KEY_CHARS_MAX) => Ok(key),
        Some(_) => Err(BadParams(format!("`idempotencyKey` must have 1 to {KEY_CHARS_MAX} characters"))),
    }
}
