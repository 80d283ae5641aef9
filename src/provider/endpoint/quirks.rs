//! What services do differently from the service whose wire format they speak, as data.

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

/// The differences of one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    pub key_header: KeyHeader,
    /// Ids of tool calls have exactly nine letters and digits.
    pub short_call_ids: bool,
    /// Reasoning is sent back in the field in which it came, or the next step of the turn is refused.
    pub reasoning_back: bool,
    /// The limit of a reply is `max_completion_tokens`.
    pub limits_completion: bool,
    /// An error without a body, with status 400 or 413, says that the request is too long.
    pub bare_error_is_overflow: bool,
    /// Google's cloud, whose addresses name the model and which takes Claude's requests in a form of its own.
    pub is_vertex: bool,
}

impl Quirks {
    pub const NONE: Quirks = Quirks {
        key_header: KeyHeader::OfFormat,
        short_call_ids: false,
        reasoning_back: false,
        limits_completion: false,
        bare_error_is_overflow: false,
        is_vertex: false,
    };
}
