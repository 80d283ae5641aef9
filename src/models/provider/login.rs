//! Tests keys before they are stored.

use std::time::Duration;

use super::credential::{Credential, key_header};
use super::endpoint::{Endpoint, key_check_url};
use super::http::Http;
use super::{ErrorClass, ProviderError};

/// Timeout of the request that tests a key; the user waits for it.
const CHECK_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum bytes of the response, a page of a list of models.
const CHECK_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The result of testing a key. The errors contain the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyCheck {
    Accepted,
    Rejected(ProviderError),
    /// There was no response, or one with a temporary error.
    Unreachable(ProviderError),
    /// The service returned no list of models, so the key may or may not be valid.
    Unknown(ProviderError),
}

/// Tests a key with a request for the service's list of models, or for the key's details if the list is public. Free.
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
        | ErrorClass::Empty
        | ErrorClass::BadReasoning
        | ErrorClass::ToolForm
        | ErrorClass::Budget
        | ErrorClass::Refused
        | ErrorClass::Broken => KeyCheck::Unknown(error),
    }
}
