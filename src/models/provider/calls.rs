//! Sends model calls and other requests to an endpoint's service. Encoded requests are sent as they are, and retries are
//! left to the caller.

mod body;
mod limits;
mod logged;
mod reply;
mod trouble;

use std::future::Future;
#[cfg(feature = "zstd")]
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Client, Method, Request, Response, StatusCode, Url};
use tokio::time::timeout;

use super::address::is_http;
use super::budget::{PlannedCall, Reservation};
use super::cloud::aws::Unsigned;
use super::credential::Credential;
use super::http::{
    CachedClient, CallTimeouts, ClientKey, Http, SimulatedNetwork, SimulatedRequest, header_map,
    is_untrusted, read, reason,
};
use super::model_endpoint::Endpoint;
use super::wire::encoding::Encoded;
use super::wire::stream::{Decoding, KEPT_BYTES_MAX};
use super::{ProviderError, ProviderEvent};
use body::BodyPieces;
#[cfg(feature = "zstd")]
use epitome_platform::blocking;
use logged::Logged;
use trouble::{no_first_byte, unreachable_now, unreadable, unusable};

pub use reply::{ERROR_BODY_BYTES_MAX, ReplyStream};

/// Shorter requests are not compressed: they fit in the first packets of a connection.
#[cfg(feature = "zstd")]
const COMPRESSED_BYTES_MIN: usize = 16 * 1024;

/// Timeout of a reply in one piece; callers apply a shorter one.
const WHOLE_REPLY_TIME_MAX: Duration = Duration::from_secs(5 * 60);

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
    /// Reserves the estimated cost of a call; `None` if costs are not limited.
    pub(super) async fn admit(
        &self,
        endpoint: &Endpoint,
        encoded: &Encoded,
    ) -> Result<Option<Reservation>, ProviderError> {
        match self.budget() {
            Some(budget) => budget.admit(planned(endpoint, encoded.priced)).await.map(Some),
            None => Ok(None),
        }
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

    /// Makes a call whose reply arrives in one piece; `encoded` must be encoded with `Purpose::Whole`.
    pub async fn whole(
        &self,
        endpoint: &Endpoint,
        encoded: &Encoded,
    ) -> Result<Vec<ProviderEvent>, ProviderError> {
        let mut reservation = self.admit(endpoint, encoded).await?;
        let url = endpoint.whole_url();
        let answer = self.ask(endpoint, &url, Some(encoded), KEPT_BYTES_MAX, WHOLE_REPLY_TIME_MAX).await?;
        if answer.status != 200 {
            return Err(answer.refusal());
        }
        let mut decoding = Decoding::new(answer.endpoint, encoded.prefix.clone(), None);
        let mut events = Vec::new();
        let decoded = decoding.push(&answer.body, &mut events);
        let decoded = decoded.and_then(|()| decoding.end(&mut events));
        if let Some(reservation) = &mut reservation {
            events.iter().for_each(|event| reservation.received(event));
        }
        decoded.map(|()| events)
    }

    /// Opens a connection to an endpoint's service, unless one may be open: the next request needs not wait for name
    /// resolution, TCP and TLS then. Returns at once. All that is sent is a HEAD request for `/`, without a key. Does
    /// nothing for services without TLS, which are near. Must be called within a runtime.
    pub fn warm(&self, endpoint: &Endpoint) {
        let Some(url) = root_of(&endpoint.base_url).filter(|_| self.simulated.is_none()) else { return };
        let limits = self.limits.unwrap_or_else(|| CallTimeouts::for_endpoint(endpoint));
        let key = client_key(endpoint, &endpoint.url(), limits.connect);
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
            let body = read(response, most).await.map_err(|why| unreadable(&endpoint, &why.to_string()))?;
            Ok(HttpResponse { endpoint, status, headers, body })
        };
        timeout(time, asking).await.unwrap_or_else(|_| Err(no_first_byte(endpoint, time)))
    }

    fn sending(&self, endpoint: &Endpoint, asked: RequestShape) -> Result<Sending, ProviderError> {
        let limits = self.limits.unwrap_or_else(|| CallTimeouts::for_endpoint(endpoint));
        if !is_http(&endpoint.base_url) {
            let why = "its base URL must begin with http:// or https:// and name a host";
            return Err(unusable(endpoint, why));
        }
        let key = client_key(endpoint, &asked.url, limits.connect);
        let made =
            self.shared.clients.get(key.clone()).map_err(|why| unusable(endpoint, &why.to_string()))?;
        Ok(Sending { asked, key, made, limits, http: self.clone() })
    }
}

/// Describes a call with a request of this size to the budget.
pub(super) fn planned(endpoint: &Endpoint, bytes: usize) -> PlannedCall<'_> {
    PlannedCall {
        model: &endpoint.name,
        bytes,
        window: endpoint.window,
        max_output: endpoint.max_output,
        searches: endpoint.searches(),
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
    #[cfg(feature = "zstd")]
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

    /// The answer of a simulated network to this request.
    async fn simulated(&self, network: &dyn SimulatedNetwork, headers: &HeaderMap) -> Response {
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.to_string(), value.to_str().unwrap_or_default().to_owned())
        };
        let request = SimulatedRequest {
            method: self.method.to_string(),
            url: self.url.clone(),
            headers: headers.iter().map(header).collect(),
            body: match (&self.compressed, &self.body) {
                (Some(compressed), _) => compressed.to_vec(),
                (None, Some(pieces)) => pieces.concat(),
                (None, None) => Vec::new(),
            },
        };
        network.answer(request).await.into()
    }

    fn build(&self, client: &Client, endpoint: &Endpoint) -> Result<Request, ProviderError> {
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static(self.accept));
        if self.body.is_some() {
            headers.insert("content-type", HeaderValue::from_static("application/json"));
        }
        headers
            .extend(header_map(endpoint.sent_headers()).map_err(|why| unusable(endpoint, &why.to_string()))?);
        if let Credential::Aws(aws) = &endpoint.credential {
            let body = self.body.as_deref();
            let unsigned = Unsigned {
                method: self.method.as_str(),
                url: &self.url,
                content_type: body.map(|_| "application/json"),
                body: body.unwrap_or_default(),
            };
            headers.extend(
                header_map(&aws.sign(&unsigned)).map_err(|why| unusable(endpoint, &why.to_string()))?,
            );
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

/// The client for a request to a URL of the endpoint's service.
fn client_key(endpoint: &Endpoint, url: &str, connect: Duration) -> ClientKey {
    ClientKey {
        provider: endpoint.provider().to_owned(),
        network: endpoint.network.clone(),
        direct: endpoint.network.is_direct(url),
        connect,
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
        #[cfg(feature = "zstd")]
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
                Some(network) => Ok(asked.simulated(&**network, request.headers()).await),
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

#[cfg(feature = "zstd")]
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

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
