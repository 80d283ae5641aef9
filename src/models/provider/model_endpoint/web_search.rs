//! Web searches that a model's provider runs while the model replies.

use super::Endpoint;
use crate::abilities::is_before_gemini_3;
use epitome_config::rules::PermissionDecision;
use epitome_config::{SearchChoice, Settings, WireFormat};

/// A web search that the model's provider runs while the model replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderSearch {
    /// Hosts whose pages are left out, with their subdomains.
    pub blocked: Vec<String>,
}

impl ProviderSearch {
    /// The search of an endpoint's provider; `None` if the user doesn't want it.
    ///
    /// No search of a provider asks before it runs, so it is not used if a rule asks about searches, denies them, or
    /// denies hosts that the provider can't leave out.
    pub fn of(endpoint: &Endpoint, settings: &Settings) -> Option<ProviderSearch> {
        let is_wanted = match settings.web_search {
            // Other services with the same format rarely have it.
            SearchChoice::Auto => endpoint.own_api,
            choice => choice.uses_provider(),
        };
        let leaves_out = endpoint.wire == WireFormat::AnthropicMessages;
        // Older models search only in requests without functions.
        let is_able = endpoint.wire != WireFormat::Gemini || !is_before_gemini_3(&endpoint.model);
        let mut blocked = Vec::new();
        for rule in settings.permissions.iter().filter(|rule| rule.word != PermissionDecision::Allow) {
            let searches = ["web_search", "WebSearch"].iter().any(|name| rule.pattern.may_be_of(name));
            let fetches = ["web_fetch", "WebFetch"].iter().any(|name| rule.pattern.may_be_of(name));
            match (rule.word, &rule.pattern.about) {
                (PermissionDecision::Deny, Some(about)) if searches || fetches => {
                    blocked.push(blocked_host(about)?)
                }
                _ if searches => return None,
                _ => {}
            }
        }
        (is_wanted && is_able && (leaves_out || blocked.is_empty())).then_some(ProviderSearch { blocked })
    }
}

/// A host of a deny rule as Anthropic's API takes it, which includes all subdomains; `None` if it can't be expressed.
fn blocked_host(about: &str) -> Option<String> {
    let host = about.strip_prefix("*.").unwrap_or(about);
    let host = host.split_once(':').map_or(host, |(host, _)| host);
    (!host.contains(['*', '[']) && !host.is_empty()).then(|| host.to_owned())
}
