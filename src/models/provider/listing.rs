//! Models in a provider's own list.
//!
//! Makes no decisions: `learned` resolves conflicts between sources.

mod facts;
mod read;
pub(crate) mod request;

use super::address::{host_of, is_loopback};
use super::model_endpoint::Endpoint;

pub use facts::{Lifecycle, ListedModel, ModelFacts};

/// Maximum number of models kept per provider: some routers have hundreds, more than users choose from.
pub const LISTED_MAX: usize = 500;

/// Whether the server is the user's own: requests to it are free, and its loaded models change from hour to hour.
pub fn is_near(endpoint: &Endpoint) -> bool {
    endpoint.provider() == "local" || is_loopback(host_of(&endpoint.base_url))
}

/// Parses the list of an OpenAI-compatible server: names, and context windows if included.
pub(super) fn read_compatible(body: &[u8]) -> Option<Vec<ListedModel>> {
    read::page(body, false).map(|page| page.listed)
}
