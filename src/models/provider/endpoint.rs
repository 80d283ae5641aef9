//! Endpoints of models, for other crates: found in settings and an environment, or at a local server.

pub use super::environment::EnvironmentPairs;
pub use super::local::{LocalServer, find_local};
pub use super::model_endpoint::{CredentialOrigin, Endpoint, KeyHeader, ProviderSearch, Quirks, ToolForm};
pub use super::models::NO_MODEL;
pub use super::resolve::{
    ConfiguredModel, NamedEndpoint, built_in_providers, choose, configured, exposure, is_searched, key_page,
    local_urls, no_local_server, nothing_configured, offered, provider_title, resolve, resolve_local,
    service,
};
#[cfg(test)]
pub(crate) use super::resolve::{test_chat_endpoint, test_endpoint};
pub use super::secret::Secret;

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
