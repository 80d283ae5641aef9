//! The process's HTTP clients, and requests to servers that aren't model endpoints.

mod clients;
mod error;
pub mod page;
mod simulated;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Request;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
/// For requests that others make with [`Http::client`].
pub use reqwest::{Client, Response};
use tokio::time::timeout;

use super::budget::CostBudget;
use super::network::Network;
use super::secret::Secret;
use clients::ClientCache;

pub use clients::{CLIENTS_MAX, ClientError};
pub(super) use clients::{CachedClient, ClientKey};
pub use error::HttpError;
pub(super) use error::{is_plain, is_untrusted, reason, tls_error};
pub use simulated::{SimulatedNetwork, SimulatedRequest, SimulatedResponse};

/// Timeout for connecting, including name resolution, TCP, proxy and TLS. Providers' front ends answer in well under a
/// second, or little more over a satellite link.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A handle on the process's HTTP clients. Cheap to clone.
///
/// Each provider has a separate client per network, so that editors with different environments share no connections.
/// Loopback addresses bypass proxies, which can't reach them.
#[derive(Clone, Debug, Default)]
pub struct Http {
    pub(super) shared: Arc<HttpShared>,
    /// Used for requests without an endpoint.
    network: Network,
    /// Overrides the limits derived from the endpoint.
    pub(super) limits: Option<CallTimeouts>,
    /// Limits the cost of model calls.
    budget: Option<CostBudget>,
    /// Replaces the network for requests to providers.
    pub(super) simulated: Option<Arc<dyn SimulatedNetwork>>,
}

#[derive(Debug, Default)]
pub(super) struct HttpShared {
    pub(super) clients: ClientCache,
    /// URLs that were found not to support token counts.
    uncounting: Mutex<BTreeSet<String>>,
    /// The service of plans has refused a compressed request.
    pub(super) refuses_zstd: AtomicBool,
}

/// Timeouts of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimeouts {
    pub connect: Duration,
    /// The maximum time from the start of the call to the response headers.
    pub first_byte: Duration,
    /// The maximum time between two chunks of the response, including pings.
    pub silence: Duration,
    /// The maximum time between two pieces of the reply. The user can set it per model.
    pub content: Duration,
}

impl Http {
    /// Returns a handle with new clients that uses no proxy for requests without an endpoint.
    pub fn new() -> Http {
        Http::default()
    }

    /// Returns a handle with the same clients and this network for requests without an endpoint.
    pub fn within(&self, network: Network) -> Http {
        Http { network, ..self.clone() }
    }

    /// Returns a handle with the same clients and these limits for every call.
    pub fn with_limits(&self, limits: CallTimeouts) -> Http {
        Http { limits: Some(limits), ..self.clone() }
    }

    /// Returns a handle with the same clients and this budget for all model calls, unless it already has one.
    pub fn with_budget(&self, budget: impl FnOnce() -> Option<CostBudget>) -> Http {
        Http { budget: self.budget.clone().or_else(budget), ..self.clone() }
    }

    /// The budget of its model calls; `None` if costs are not limited.
    pub fn budget(&self) -> Option<&CostBudget> {
        self.budget.as_ref()
    }

    /// Returns a handle whose requests to providers are answered by this network.
    pub fn simulated(&self, network: Arc<dyn SimulatedNetwork>) -> Http {
        Http { simulated: Some(network), ..self.clone() }
    }

    /// Posts a body to a server that isn't a provider, and returns the response's status and body. Exceeding `most`
    /// bytes or `time` is an error. Redirects are not followed. Dropping the future cancels the request.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(String, Secret)],
        body: Vec<u8>,
        most: usize,
        time: Duration,
    ) -> Result<(u16, Vec<u8>), HttpError> {
        let request = self.client(url)?.post(url).timeout(time).headers(header_map(headers)?).body(body);
        answered(request, most).await
    }

    /// Posts a form. Otherwise like `post`.
    pub(super) async fn post_form(
        &self,
        url: &str,
        fields: &[(&str, &str)],
        most: usize,
        time: Duration,
    ) -> Result<(u16, Vec<u8>), HttpError> {
        let headers = [("content-type".to_owned(), Secret::new("application/x-www-form-urlencoded"))];
        self.post(url, &headers, form(fields).into_bytes(), most, time).await
    }

    /// Fetches a document from a server that isn't an endpoint. Otherwise like `post`.
    pub(super) async fn get(
        &self,
        url: &str,
        most: usize,
        time: Duration,
    ) -> Result<(u16, Vec<u8>), HttpError> {
        answered(self.client(url)?.get(url).timeout(time), most).await
    }

    /// Sends a request of a protocol that is implemented by the caller, and returns the full response. Otherwise like
    /// `post`.
    pub async fn exchange(
        &self,
        request: hyper::Request<Vec<u8>>,
        most: usize,
        time: Duration,
    ) -> Result<hyper::Response<Vec<u8>>, HttpError> {
        let client = self.client(&request.uri().to_string())?;
        let request = Request::try_from(request).map_err(HttpError::Address)?;
        let exchanging = async {
            let response = client.execute(request).await.map_err(HttpError::transfer)?;
            let (status, headers) = (response.status(), response.headers().clone());
            let mut answer = hyper::Response::new(read(response, most).await?);
            (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
            Ok(answer)
        };
        timeout(time, exchanging).await.unwrap_or(Err(HttpError::Late { limit: time }))
    }

    /// Returns the client for a URL without an endpoint. It has this network's proxies and certificates, and no limit
    /// on a response's size or duration.
    pub fn client(&self, url: &str) -> Result<Client, ClientError> {
        let key = ClientKey::without_provider(
            &self.network,
            url,
            self.limits.map_or(CONNECT_MAX, |limits| limits.connect),
        );
        Ok(self.shared.clients.get(key)?.client)
    }

    /// The URLs that were found not to support token counts, for the lifetime of the process.
    pub(super) fn uncounting(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.shared.uncounting.lock()
    }
}

/// Sends a request and returns the response's status and body.
async fn answered(request: reqwest::RequestBuilder, most: usize) -> Result<(u16, Vec<u8>), HttpError> {
    let response = request.send().await.map_err(HttpError::transfer)?;
    let status = response.status().as_u16();
    Ok((status, read(response, most).await?))
}

/// Reads the body of a response, at most `most` bytes.
pub(super) async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, HttpError> {
    let mut answer = Vec::new();
    match read_start(&mut response, most, &mut answer).await {
        Ok(false) => Ok(answer),
        Ok(true) => Err(HttpError::TooLong { most }),
        Err(error) => Err(HttpError::transfer(error)),
    }
}

/// Appends the body of a response to `start`, up to `most` bytes. Returns whether the body is longer.
pub(super) async fn read_start(
    response: &mut Response,
    most: usize,
    start: &mut Vec<u8>,
) -> reqwest::Result<bool> {
    while let Some(piece) = response.chunk().await? {
        let space = most - start.len();
        start.extend_from_slice(&piece[..piece.len().min(space)]);
        if piece.len() > space {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Builds headers whose values are never logged. They replace those that the client would add, such as the user of a
/// URL.
pub(super) fn header_map<'a>(
    headers: impl IntoIterator<Item = &'a (String, Secret)>,
) -> Result<HeaderMap, HttpError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        // The name is not shown, as it may be a misplaced key.
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(HttpError::HeaderName)?;
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|source| HttpError::HeaderValue { name: name.clone(), source })?;
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(map)
}

/// Encodes name and value pairs as a query or a form.
pub(super) fn form(fields: &[(&str, &str)]) -> String {
    let escaped = |value: &str| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> =
        fields.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    pairs.join("&")
}
