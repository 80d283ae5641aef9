//! Tests keys before they are stored.

use std::time::Duration;

use super::credential::{Credential, key_header};
use super::endpoint::{Endpoint, key_check_url};
use super::http::Http;
use super::{ErrorClass, ProviderError};

/// Timeout of the request that tests a key; the user waits for it.
const CHECK_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum bytes of its answer, a page of a list of models.
const CHECK_BYTES_MAX: usize = 2 * 1024 * 1024;

/// What a provider said about a key. The errors have the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyCheck {
    Accepted,
    Rejected(ProviderError),
    /// Nobody answered, or with a temporary error.
    Unreachable(ProviderError),
    /// The service gives no list of models, which says nothing about the key.
    Unknown(ProviderError),
}

/// Asks a service for its models, or for the key itself where the list is public, with this key. Costs nothing.
pub async fn check_key(http: &Http, service: &Endpoint, key: &str) -> KeyCheck {
    let headers = vec![key_header(service, key)];
    let endpoint = Endpoint { credential: Credential::Fixed(headers), ..service.clone() };
    let url = key_check_url(&endpoint);
    let error = match http.ask(&endpoint, &url, None, CHECK_BYTES_MAX, CHECK_TIME_MAX).await {
        Ok(answer) if answer.status == 200 => return KeyCheck::Accepted,
        Ok(answer) => answer.refusal(),
        Err(error) => return KeyCheck::Unreachable(error),
    };
    match error.class {
        ErrorClass::Auth => KeyCheck::Rejected(error),
        ErrorClass::Retry { .. } => KeyCheck::Unreachable(error),
        ErrorClass::TooLong { .. }
        | ErrorClass::BadReasoning
        | ErrorClass::ToolForm
        | ErrorClass::Budget
        | ErrorClass::Refused
        | ErrorClass::Broken => KeyCheck::Unknown(error),
    }
}
