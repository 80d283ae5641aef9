//! How tools are sent to a model at a service that refuses the usual form.
//!
//! OpenAI's models since GPT-5.4 accept function tools in Chat Completions only without reasoning; the newest don't
//! accept them there. All accept them in the Responses API. Gateways differ in which of the two APIs they offer. When
//! an error reports this, the other forms are tried in order, and `learned` remembers the one that works.

use serde::{Deserialize, Serialize};

use super::Endpoint;
use epitome_config::{ModelSettings, WireFormat};

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

impl Endpoint {
    /// Switches to this form. `configured` are the user's settings of the model.
    pub(crate) fn take_form(&mut self, form: ToolForm, configured: Option<&ModelSettings>) {
        let wire = match form {
            ToolForm::Usual => return,
            ToolForm::Responses => WireFormat::OpenAiResponses,
            ToolForm::WithoutReasoning => WireFormat::OpenAiChat,
        };
        let (base, quirks, own_api) = (std::mem::take(&mut self.base_url), self.quirks, self.own_api);
        self.set_place(wire, &base);
        (self.quirks, self.own_api) = (quirks, own_api);
        self.set_what_is_known(configured);
        self.form = form;
    }
}
