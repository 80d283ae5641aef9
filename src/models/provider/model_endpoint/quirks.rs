//! How services deviate from the service whose wire format they use, as data.

/// How a key is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyHeader {
    /// As the wire format defines it.
    #[default]
    OfFormat,
    /// `Authorization: Bearer KEY`.
    Bearer,
    /// `api-key: KEY`.
    ApiKey,
}

/// The deviations of one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    pub key_header: KeyHeader,
    /// Ids of tool calls must have exactly nine letters and digits.
    pub short_call_ids: bool,
    /// Reasoning must be sent back in the field in which it arrived, or the next step of the turn is refused.
    pub reasoning_back: bool,
    /// Fields that the service refuses; `Endpoint::omitted` has those that are found by a refusal.
    pub omits: &'static [&'static str],
    /// Google's cloud: its URLs contain the model, and it takes Claude requests in its own form.
    pub is_vertex: bool,
}

impl Quirks {
    pub const NONE: Quirks = Quirks {
        key_header: KeyHeader::OfFormat,
        short_call_ids: false,
        reasoning_back: false,
        omits: &[],
        is_vertex: false,
    };
}
