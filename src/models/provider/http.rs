//! Sends model calls; the only module with an HTTP client. It sends encoded requests as they are, and leaves retries to
//! the caller.

mod body;
mod clients;
mod limits;
mod logged;
pub mod page;
mod reply;
mod simulated;
mod trouble;

use std::collections::BTreeSet;
use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Client, Method, Request, Response, StatusCode, Url};
use tokio::time::timeout;

use super::ProviderError;
use super::address::is_http;
use super::budget::{CostBudget, Reservation};
use super::cloud::aws::Unsigned;
use super::credential::Credential;
use super::endpoint::{Endpoint, Secret};
use super::network::Network;
use super::sign_in::form;
use super::wire::encoding::Encoded;
use body::BodyPieces;
use clients::{CachedClient, ClientCache, ClientKey};
use epitome_platform::blocking;
use logged::Logged;
use trouble::{is_untrusted, no_first_byte, reason, unreachable_now, unreadable, unusable};

pub use clients::CLIENTS_MAX;
pub use limits::CallTimeouts;
pub use reply::{ERROR_BODY_BYTES_MAX, ReplyStream};
pub use simulated::{SimulatedNetwork, SimulatedRequest, SimulatedResponse};

/// Shorter requests are not compressed: they fit in the first packets of a connection.
const COMPRESSED_BYTES_MIN: usize = 16 * 1024;

/// A handle on the process's HTTP clients. Cheap to clone.
///
/// Each provider has a separate client per network, so that editors with different environments share no connections.
/// Loopback addresses bypass proxies, which can't reach them.
#[derive(Clone, Debug, Default)]
pub struct Http {
    shared: Arc<HttpShared>,
    /// Used for requests without an endpoint.
    network: Network,
    /// Overrides the limits derived from the endpoint.
    limits: Option<CallTimeouts>,
    /// Limits the cost of model calls.
    budget: Option<CostBudget>,
    /// Replaces the network for requests to providers.
    simulated: Option<Arc<dyn SimulatedNetwork>>,
}

#[derive(Debug, Default)]
struct HttpShared {
    clients: ClientCache,
    /// URLs that were found not to support token counts.
    uncounting: Mutex<BTreeSet<String>>,
    /// The service of plans has refused a compressed request.
    refuses_zstd: AtomicBool,
}

/// An encoded call that has not been sent yet. Dropping it cancels the call.
pub type Starting = Pin<Box<dyn Future<Output = Result<ReplyStream, ProviderError>> + Send + 'static>>;

/// The response to a request that isn't a model call.
#[derive(Debug)]
pub(super) struct HttpResponse {
    /// The endpoint with the credential that was used.
    endpoint: Endpoint,
    pub status: u16,
    headers: HeaderMap,
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// Classifies an unsuccessful response.
    pub(super) fn refusal(&self) -> ProviderError {
        reply::refusal(&self.endpoint, self.status, &self.headers, &String::from_utf8_lossy(&self.body))
    }
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

    /// Reserves the estimated cost of a call; `None` if costs are not limited.
    pub(super) async fn admit(
        &self,
        endpoint: &Endpoint,
        encoded: &Encoded,
    ) -> Result<Option<Reservation>, ProviderError> {
        match &self.budget {
            Some(budget) => budget.admit(endpoint, encoded.priced).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns a handle whose requests to providers are answered by this network.
    pub fn simulated(&self, network: Arc<dyn SimulatedNetwork>) -> Http {
        Http { simulated: Some(network), ..self.clone() }
    }

    /// Prepares a call with a request that was encoded for this endpoint. Nothing is sent until the future is polled.
    /// It owns its data and completes when the response headers have arrived. The body is sent as encoded, with a
    /// content length and without a copy.
    pub fn start(&self, endpoint: &Endpoint, encoded: &Encoded) -> Result<Starting, ProviderError> {
        let asked = RequestShape {
            method: Method::POST,
            url: endpoint.url(),
            body: Some(encoded.body.clone()),
            compressed: None,
            accept: "text/event-stream",
        };
        let sending = self.sending(endpoint, asked)?;
        let limits = sending.limits;
        let (http, encoded) = (self.clone(), encoded.clone());
        let endpoint = endpoint.clone();
        let mut logged = Logged::new(&endpoint);
        Ok(Box::pin(async move {
            let reservation = http.admit(&endpoint, &encoded).await.map_err(|error| logged.failed(error))?;
            let (endpoint, response) = match sending.send(&endpoint).await {
                Ok(sent) => sent,
                Err(error) => return Err(logged.failed(error)),
            };
            ReplyStream::open(endpoint, encoded.prefix, response, limits, logged, reservation).await
        }))
    }

    /// Opens a connection to an endpoint's service, unless one may be open: the next request needs not wait for name
    /// resolution, TCP and TLS then. Returns at once. All that is sent is a HEAD request for `/`, without a key. Does
    /// nothing for services without TLS, which are near. Must be called within a runtime.
    pub fn warm(&self, endpoint: &Endpoint) {
        let Some(url) = root_of(&endpoint.base_url).filter(|_| self.simulated.is_none()) else { return };
        let limits = self.limits.unwrap_or_else(|| CallTimeouts::for_endpoint(endpoint));
        let key = ClientKey::for_endpoint(endpoint, &endpoint.url(), limits.connect);
        let Ok(made) = self.shared.clients.get(key) else { return };
        if made.use_now() {
            return;
        }
        let opening = made.client.head(url).timeout(limits.connect).send();
        tokio::spawn(async move {
            if let Err(error) = opening.await {
                tracing::debug!(why = reason(&error), "no connection was opened in advance");
            }
        });
    }

    /// Sends another request to an endpoint's service, with the endpoint's credential: a GET, or a POST if there is a
    /// body. Exceeding `most` bytes is an error of class `Refused`; exceeding `time` in total is one of class `Retry`
    /// (`Broken` if `time` is above `TRIED_AGAIN_MAX`). A status other than 200 is not an error.
    pub(super) async fn ask(
        &self,
        endpoint: &Endpoint,
        url: &str,
        body: Option<&Encoded>,
        most: usize,
        time: Duration,
    ) -> Result<HttpResponse, ProviderError> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let body = body.map(|encoded| encoded.body.clone());
        let asked =
            RequestShape { method, url: url.to_owned(), body, compressed: None, accept: "application/json" };
        let asking = async {
            // The same client as for model calls, to reuse its connection.
            let (endpoint, response) = self.sending(endpoint, asked)?.send(endpoint).await?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let body = read(response, most).await.map_err(|why| unreadable(&endpoint, &why))?;
            Ok(HttpResponse { endpoint, status, headers, body })
        };
        timeout(time, asking).await.unwrap_or_else(|_| Err(no_first_byte(endpoint, time)))
    }

    /// Posts a body to a server that isn't a provider, and returns the response's status and body. Exceeding `most`
    /// bytes or `time` is an error. Redirects are not followed. An error completes a sentence (`… could not be reached:
    /// {}`). It contains neither the URL nor header values, as both may contain keys. Dropping the future cancels the
    /// request.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(String, Secret)],
        body: Vec<u8>,
        most: usize,
        time: Duration,
    ) -> Result<(u16, Vec<u8>), String> {
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
    ) -> Result<(u16, Vec<u8>), String> {
        let headers = [("content-type".to_owned(), Secret::new("application/x-www-form-urlencoded"))];
        self.post(url, &headers, form(fields).into_bytes(), most, time).await
    }

    /// Fetches a document from a server that isn't an endpoint. Otherwise like `post`.
    pub(super) async fn get(&self, url: &str, most: usize, time: Duration) -> Result<(u16, Vec<u8>), String> {
        answered(self.client(url)?.get(url).timeout(time), most).await
    }

    /// Sends a request of a protocol that is implemented by the caller, and returns the full response. Otherwise like
    /// `post`.
    pub async fn exchange(
        &self,
        request: hyper::Request<Vec<u8>>,
        most: usize,
        time: Duration,
    ) -> Result<hyper::Response<Vec<u8>>, String> {
        let client = self.client(&request.uri().to_string())?;
        let request = Request::try_from(request).map_err(|_| "its address is malformed".to_owned())?;
        let exchanging = async {
            let response = client.execute(request).await.map_err(|error| reason(&error))?;
            let (status, headers) = (response.status(), response.headers().clone());
            let mut answer = hyper::Response::new(read(response, most).await?);
            (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
            Ok(answer)
        };
        timeout(time, exchanging)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", time.as_secs())))
    }

    /// Returns the client for a URL without an endpoint. It has this network's proxies and certificates, and no limit
    /// on a response's size or duration. The error is a clause.
    pub fn client(&self, url: &str) -> Result<Client, String> {
        let key = ClientKey::without_provider(&self.network, url, self.limits.unwrap_or_default().connect);
        Ok(self.shared.clients.get(key)?.client)
    }

    /// The URLs that were found not to support token counts, for the lifetime of the process.
    pub(super) fn uncounting(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.shared.uncounting.lock()
    }

    fn sending(&self, endpoint: &Endpoint, asked: RequestShape) -> Result<Sending, ProviderError> {
        let limits = self.limits.unwrap_or_else(|| CallTimeouts::for_endpoint(endpoint));
        if !is_http(&endpoint.base_url) {
            let why = "its base URL must begin with http:// or https:// and name a host";
            return Err(unusable(endpoint, why));
        }
        let key = ClientKey::for_endpoint(endpoint, &asked.url, limits.connect);
        let made = self.shared.clients.get(key.clone()).map_err(|why| unusable(endpoint, &why))?;
        Ok(Sending { asked, key, made, limits, http: self.clone() })
    }
}

/// A request without the headers of its endpoint.
struct RequestShape {
    method: Method,
    url: String,
    body: Option<Vec<Bytes>>,
    /// The body as it is sent, if it is compressed with zstd.
    compressed: Option<Bytes>,
    accept: &'static str,
}

impl RequestShape {
    /// Compresses the body if the service takes that and it is long enough to gain from it. OpenAI's own agent
    /// compresses what it sends to the service of ChatGPT plans; no other service documents that it takes it.
    async fn compress(&mut self, endpoint: &Endpoint) {
        let Some(body) = self.body.clone().filter(|_| endpoint.is_plan) else { return };
        if body.iter().map(Bytes::len).sum::<usize>() < COMPRESSED_BYTES_MIN {
            return;
        }
        // Takes 10 ms for a megabyte.
        match blocking::run(move || zstd_of(&body)).await {
            Ok(compressed) => self.compressed = Some(compressed.into()),
            Err(error) => tracing::warn!(%error, "a request is sent without compression"),
        }
    }

    fn build(&self, client: &Client, endpoint: &Endpoint) -> Result<Request, ProviderError> {
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static(self.accept));
        if self.body.is_some() {
            headers.insert("content-type", HeaderValue::from_static("application/json"));
        }
        headers.extend(header_map(endpoint.sent_headers()).map_err(|why| unusable(endpoint, &why))?);
        if let Credential::Aws(aws) = &endpoint.credential {
            let body = self.body.as_deref();
            let unsigned = Unsigned {
                method: self.method.as_str(),
                url: &self.url,
                content_type: body.map(|_| "application/json"),
                body: body.unwrap_or_default(),
            };
            headers.extend(header_map(&aws.sign(&unsigned)).map_err(|why| unusable(endpoint, &why))?);
        }
        let mut request = client.request(self.method.clone(), &self.url).headers(headers);
        if let Some(compressed) = &self.compressed {
            request = request.header("content-encoding", "zstd").body(compressed.clone());
        } else if let Some(body) = &self.body {
            request = request.body(Body::wrap(BodyPieces::new(body)));
        }
        request.build().map_err(|error| unusable(endpoint, &reason(&error)))
    }
}

/// A prepared request, and the data for describing its failure.
struct Sending {
    asked: RequestShape,
    key: ClientKey,
    made: CachedClient,
    limits: CallTimeouts,
    http: Http,
}

impl Sending {
    /// Authenticates and sends the request. If the service rejects the credential, retries once with a newer one, if
    /// available. Returns the authenticated endpoint and the response.
    async fn send(mut self, endpoint: &Endpoint) -> Result<(Endpoint, Response), ProviderError> {
        let authenticated = endpoint.authenticated(&self.http).await?;
        if !self.http.shared.refuses_zstd.load(Ordering::Relaxed) {
            self.asked.compress(endpoint).await;
        }
        let mut response = self.attempt(&authenticated).await?;
        if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE && self.asked.compressed.take().is_some() {
            self.http.shared.refuses_zstd.store(true, Ordering::Relaxed);
            response = self.attempt(&authenticated).await?;
        }
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some(renewed) = endpoint.reauthenticated(&self.http, &authenticated).await
        {
            let response = self.attempt(&renewed).await?;
            return Ok((renewed, response));
        }
        Ok((authenticated, response))
    }

    async fn attempt(&self, endpoint: &Endpoint) -> Result<Response, ProviderError> {
        let Sending { asked, key, made, limits, http } = self;
        let request = asked.build(&made.client, endpoint)?;
        made.use_now();
        let executed = async {
            match &http.simulated {
                Some(network) => Ok(simulated::answer(&**network, asked, request.headers()).await),
                None => made.client.execute(request).await,
            }
        };
        match timeout(limits.first_byte, executed).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                if is_untrusted(&error) {
                    http.shared.clients.forget(key);
                }
                Err(unreachable_now(endpoint, &error, *limits, &made.faults))
            }
            Err(_) => Err(no_first_byte(endpoint, limits.first_byte)),
        }
    }
}

fn zstd_of(pieces: &[Bytes]) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
    pieces.iter().try_for_each(|piece| encoder.write_all(piece))?;
    encoder.finish()
}

/// The root of the server of a URL with TLS, without the user and the password that the URL may have.
fn root_of(url: &str) -> Option<Url> {
    let mut url = Url::parse(url).ok().filter(|url| url.scheme() == "https")?;
    url.set_path("/");
    url.set_query(None);
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    Some(url)
}

/// Sends a request and returns the response's status and body. The error is a clause.
async fn answered(request: reqwest::RequestBuilder, most: usize) -> Result<(u16, Vec<u8>), String> {
    let response = request.send().await.map_err(|error| reason(&error))?;
    let status = response.status().as_u16();
    Ok((status, read(response, most).await?))
}

/// Reads the body of a response, at most `most` bytes. The error is a clause.
async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, String> {
    let mut answer = Vec::new();
    match read_start(&mut response, most, &mut answer).await {
        Ok(false) => Ok(answer),
        Ok(true) => Err(format!("the answer is longer than {most} bytes")),
        Err(error) => Err(reason(&error)),
    }
}

/// Appends the body of a response to `start`, up to `most` bytes. Returns whether the body is longer.
async fn read_start(response: &mut Response, most: usize, start: &mut Vec<u8>) -> reqwest::Result<bool> {
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
/// URL. The error is a clause that names a header without its value.
fn header_map<'a>(headers: impl IntoIterator<Item = &'a (String, Secret)>) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        // The name is not shown, as it may be a misplaced key.
        let unfit = |_| "the name of a header has invalid characters".to_owned();
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(unfit)?;
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the value of the header {name} has invalid characters"))?;
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(map)
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
