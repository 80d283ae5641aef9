//! How tools are sent to a model at a service that refuses the usual form.
//!
//! OpenAI's models since GPT-5.4 accept function tools in Chat Completions only without reasoning; the newest don't
//! accept them there. All accept them in the Responses API. Gateways differ in which of the two APIs they offer. When
//! an error reports this, the other forms are tried in order, and `learned` remembers the one that works.

use serde::{Deserialize, Serialize};

/// The form of requests with tools, in the order in which they are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolForm {
    /// The format that the settings or the address select.
    #[default]
    Usual,
    /// The Responses API below the same base URL.
    Responses,
    /// Chat Completions with reasoning explicitly off.
    WithoutReasoning,
}
