//! Performs model calls: the one place that has an HTTP client. It sends what the wire formats' files
//! encoded, and decides nothing about retries.

mod body;
mod clients;
mod limits;
mod logged;
pub mod page;
mod reply;
mod trouble;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Client, Method, Request, Response};
use tokio::time::timeout;

use super::ProviderError;
use super::address::is_http;
use super::endpoint::{Endpoint, Secret};
use super::network::Network;
use super::wire::encoding::Encoded;
use body::Pieces;
use clients::{Clients, Key, Made};
use logged::Logged;
use trouble::{is_untrusted, no_first_byte, reason, unreachable_now, unusable};

pub use clients::CLIENTS_MAX;
pub use limits::Limits;
pub use reply::{ERROR_BODY_BYTES_MAX, ReplyStream};

/// A handle on the process's HTTP clients. Cheap to clone.
///
/// Each provider has a client of its own for each network, so that editors with different environments
/// share no connection. Loopback addresses are never asked through a proxy, which would not find them.
#[derive(Clone, Debug, Default)]
pub struct Http {
    shared: Arc<Shared>,
    /// For what has no endpoint.
    network: Network,
    /// In place of those that suit the endpoint.
    limits: Option<Limits>,
}

#[derive(Debug, Default)]
struct Shared {
    clients: Clients,
    /// Addresses that were found to count no tokens.
    uncounting: Mutex<BTreeSet<String>>,
}

/// A call that was encoded and not yet sent. Dropping it ends the call.
pub type Starting = Pin<Box<dyn Future<Output = Result<ReplyStream, ProviderError>> + Send + 'static>>;

/// The answer to a question that is no model call.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    /// What an answer means that is no success.
    pub(super) fn refusal(&self, endpoint: &Endpoint) -> ProviderError {
        reply::refusal(endpoint, self.status, &self.headers, &String::from_utf8_lossy(&self.body))
    }
}

impl Http {
    /// A handle on clients of its own, without a proxy for what has no endpoint.
    pub fn new() -> Http {
        Http::default()
    }

    /// The same clients, and this network for what has no endpoint.
    pub fn within(&self, network: Network) -> Http {
        Http { network, ..self.clone() }
    }

    /// The same clients, with these limits for every call.
    pub fn with_limits(&self, limits: Limits) -> Http {
        Http { limits: Some(limits), ..self.clone() }
    }

    /// A call with a request that was encoded for this endpoint. Nothing is sent before the future is
    /// polled, which owns all it needs; it is done when the response's headers are there. The body is sent
    /// as it was written, with its length, and not copied.
    pub fn start(&self, endpoint: &Endpoint, encoded: &Encoded) -> Result<Starting, ProviderError> {
        let limits = self.limits.unwrap_or_else(|| Limits::of(endpoint));
        let asked = Asked { method: Method::POST, body: Some(encoded), accept: "text/event-stream" };
        let sending = self.sending(endpoint, &endpoint.url(), asked, limits)?;
        let prefix = encoded.prefix.clone();
        let endpoint = endpoint.clone();
        let mut logged = Logged::new(&endpoint);
        Ok(Box::pin(async move {
            let response = match sending.send(&endpoint).await {
                Ok(response) => response,
                Err(error) => return Err(logged.failed(error)),
            };
            ReplyStream::open(endpoint, prefix, response, limits.silence, logged).await
        }))
    }

    /// Asks something else of the service at an endpoint, with its key: a GET, or a POST where there is a
    /// body. More than `most` bytes or more than `time` for all of it is an error of class `Retry` or
    /// `Broken`; a status other than 200 is none.
    pub(super) async fn ask(
        &self,
        endpoint: &Endpoint,
        url: &str,
        body: Option<&Encoded>,
        most: usize,
        time: Duration,
    ) -> Result<Answer, ProviderError> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let asked = Asked { method, body, accept: "application/json" };
        // The same client as for the calls themselves, whose connection it then is.
        let limits = self.limits.unwrap_or_else(|| Limits::of(endpoint));
        let asking = async {
            let response = self.sending(endpoint, url, asked, limits)?.send(endpoint).await?;
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            let body = read(response, most).await.map_err(|why| unusable(endpoint, &why))?;
            Ok(Answer { status, headers, body })
        };
        timeout(time, asking).await.unwrap_or_else(|_| Err(no_first_byte(endpoint, time)))
    }

    /// Posts a body somewhere else than to a provider, and gives back the answer's status and body. More
    /// than `most` bytes or more than `time` is an error. Redirects are not followed. An error is the end
    /// of a sentence (`… could not be reached: {}`) and names neither the URL nor a header's value, which
    /// may hold keys. Dropping the future ends the request.
    pub async fn post(
        &self,
        url: &str,
        headers: &[(String, Secret)],
        body: Vec<u8>,
        most: usize,
        time: Duration,
    ) -> Result<(u16, Vec<u8>), String> {
        let post = self.client(url)?.post(url).timeout(time).headers(header_map(headers)?).body(body);
        let response = post.send().await.map_err(|error| reason(&error))?;
        let status = response.status().as_u16();
        Ok((status, read(response, most).await?))
    }

    /// Gets a document that no endpoint is known for yet. As `post` in everything else.
    pub(super) async fn get(&self, url: &str, most: usize, time: Duration) -> Result<(u16, Vec<u8>), String> {
        let response =
            self.client(url)?.get(url).timeout(time).send().await.map_err(|error| reason(&error))?;
        let status = response.status().as_u16();
        Ok((status, read(response, most).await?))
    }

    /// Sends a request of a protocol that is spoken elsewhere, and gives the whole answer back. As `post` in
    /// everything else.
    pub async fn exchange(
        &self,
        request: hyper::Request<Vec<u8>>,
        most: usize,
        time: Duration,
    ) -> Result<hyper::Response<Vec<u8>>, String> {
        let client = self.client(&request.uri().to_string())?;
        let request = Request::try_from(request).map_err(|_| "it asks for what is no address".to_owned())?;
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

    /// The client for somebody who speaks a protocol of their own over HTTP to a server that is no provider:
    /// with this network's proxies and certificates, and without a limit for a whole answer. An error is a clause.
    pub fn client_for(&self, url: &str) -> Result<Client, String> {
        self.client(url)
    }

    /// The client for a URL that is no endpoint's.
    pub(super) fn client(&self, url: &str) -> Result<Client, String> {
        let connect = self.limits.unwrap_or_default().connect;
        let key = Key {
            provider: String::new(),
            network: self.network.clone(),
            direct: self.network.is_direct(url),
            connect,
        };
        Ok(self.shared.clients.get(key)?.client)
    }

    /// Whether this address was found to count no tokens.
    pub(super) fn is_uncounting(&self, url: &str) -> bool {
        let known = self.shared.uncounting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.contains(url)
    }

    /// Remembers for the life of the process that an address counts no tokens.
    pub(super) fn note_uncounting(&self, url: &str, most: usize) {
        let mut known = self.shared.uncounting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if known.len() >= most {
            known.clear();
        }
        known.insert(url.to_owned());
    }

    fn sending(
        &self,
        endpoint: &Endpoint,
        url: &str,
        asked: Asked<'_>,
        limits: Limits,
    ) -> Result<Sending, ProviderError> {
        if !is_http(&endpoint.base_url) {
            let why = "its base URL is none that begins with http:// or https:// and names a host";
            return Err(unusable(endpoint, why));
        }
        let key = Key {
            provider: endpoint.provider().to_owned(),
            network: endpoint.network.clone(),
            direct: endpoint.network.is_direct(url),
            connect: limits.connect,
        };
        let made = self.shared.clients.get(key.clone()).map_err(|why| unusable(endpoint, &why))?;
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static(asked.accept));
        if asked.body.is_some() {
            headers.insert("content-type", HeaderValue::from_static("application/json"));
        }
        headers.extend(header_map(&endpoint.headers).map_err(|why| unusable(endpoint, &why))?);
        let mut request = made.client.request(asked.method, url).headers(headers);
        if let Some(body) = asked.body {
            request = request.body(Body::wrap(Pieces::new(&body.body)));
        }
        let request = request.build().map_err(|error| unusable(endpoint, &reason(&error)))?;
        Ok(Sending { request, key, made, limits, shared: self.shared.clone() })
    }
}

/// What is asked of a service.
struct Asked<'a> {
    method: Method,
    body: Option<&'a Encoded>,
    accept: &'static str,
}

/// A request that is ready, and what its failure is told by.
struct Sending {
    request: Request,
    key: Key,
    made: Made,
    limits: Limits,
    shared: Arc<Shared>,
}

impl Sending {
    async fn send(self, endpoint: &Endpoint) -> Result<Response, ProviderError> {
        let Sending { request, key, made, limits, shared } = self;
        match timeout(limits.first_byte, made.client.execute(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                if is_untrusted(&error) {
                    shared.clients.forget(&key);
                }
                Err(unreachable_now(endpoint, &error, limits, &made.faults))
            }
            Err(_) => Err(no_first_byte(endpoint, limits.first_byte)),
        }
    }
}

/// The whole body of an answer. An error is a clause.
async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, String> {
    let mut answer = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| reason(&error))? {
        if answer.len() + piece.len() > most {
            return Err(format!("the answer is longer than {most} bytes"));
        }
        answer.extend_from_slice(&piece);
    }
    Ok(answer)
}

/// Headers whose values no log shows. They take the place of what the client would send by itself, such as
/// the user of an address. An error is a clause that names a header without its value.
fn header_map(headers: &[(String, Secret)]) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        // Such a name may be a key that was put in the wrong place.
        let unfit = |_| "the name of a header has characters that none can hold".to_owned();
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(unfit)?;
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the value of the header {name} has characters that no header can hold"))?;
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(map)
}
