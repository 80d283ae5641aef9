//! Performs model calls: the one place that has an HTTP client. It encodes through the wire formats'
//! files and decides nothing about retries.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use reqwest::{Certificate, Client, Response};

use super::address::{host_of, is_loopback};
use super::endpoint::{Endpoint, Secret};
use super::failure::{self, Failure};
use super::wire::encoding::Encoded;
use super::wire::stream::Decoding;
use super::{ErrorClass, ProviderError, ProviderEvent, retry};

/// The longest wait for a connection. A provider's front answers in well under one second.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The longest silence, before the headers and between pieces. Models that think say nothing for
/// minutes only where the server sends no pings; there is no limit on the whole, as replies are long.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// The same for a server on this machine, which may read a long prompt for minutes before its first
/// word, and says nothing meanwhile.
const LOCAL_SILENCE_MAX: Duration = Duration::from_secs(15 * 60);

/// How long an unused connection is kept for the next round.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How often a quiet connection is tried, so that one that died in a sleep or behind a router is
/// noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The most that is read of an error's body, in bytes.
pub const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// How long the end of the transfer is awaited after the reply's last event: with it the connection
/// can be used again, and a server that keeps it open costs no more than this.
const END_OF_TRANSFER_MAX: Duration = Duration::from_millis(100);

/// Names the program to the providers.
const USER_AGENT: &str = concat!("epitome/", env!("CARGO_PKG_VERSION"));

/// A handle on the process's HTTP client, made at its first use.
///
/// There are two clients in it: loopback addresses are never asked through a proxy, which would not
/// find them, and need no certificates.
#[derive(Clone, Debug, Default)]
pub struct Http {
    clients: Arc<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    outside: OnceLock<Result<Client, String>>,
    loopback: OnceLock<Result<Client, String>>,
}

/// A call that was encoded and not yet sent. Dropping it ends the call.
pub type Starting = Pin<Box<dyn Future<Output = Result<ReplyStream, ProviderError>> + Send + 'static>>;

impl Http {
    pub fn new() -> Http {
        Http::default()
    }

    /// A call with a request that was encoded for this endpoint. Nothing is sent before the future is
    /// polled, which owns all it needs; it is done when the response's headers are there.
    pub fn start(&self, endpoint: &Endpoint, encoded: &Encoded) -> Result<Starting, ProviderError> {
        let (body, prefix) = (encoded.bytes(), encoded.prefix.clone());
        let url = endpoint.url();
        let client = self.client(&url).map_err(|why| unusable(endpoint, &why))?.clone();
        let mut post = client
            .post(&url)
            .header("content-type", "application/json")
            .header("accept", "text/event-stream")
            .body(body);
        for (name, value) in &endpoint.headers {
            let value = sensitive(value).ok_or_else(|| unusable(endpoint, &unfit_header(name)))?;
            post = post.header(name, value);
        }
        let post = post.build().map_err(|error| unusable(endpoint, &reason(&error)))?;
        let endpoint = endpoint.clone();
        Ok(Box::pin(async move {
            let response = client.execute(post).await.map_err(|error| unreachable_now(&endpoint, &error))?;
            ReplyStream::open(endpoint, prefix, response).await
        }))
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
        read_whole(self.client(url)?.post(url).timeout(time).body(body), headers, most).await
    }

    /// Gets a document that is no reply of a model. As `post` in everything else.
    pub async fn get(
        &self,
        url: &str,
        headers: &[(String, Secret)],
        most: usize,
        time: Duration,
    ) -> Result<(u16, Vec<u8>), String> {
        read_whole(self.client(url)?.get(url).timeout(time), headers, most).await
    }

    /// The client for a URL.
    pub(super) fn client(&self, url: &str) -> Result<&Client, String> {
        let (slot, is_local) = match is_loopback(host_of(url)) {
            true => (&self.clients.loopback, true),
            false => (&self.clients.outside, false),
        };
        slot.get_or_init(|| build_client(is_local)).as_ref().map_err(Clone::clone)
    }
}

/// A reply as it comes in. Dropping it closes the HTTP stream.
#[derive(Debug)]
pub struct ReplyStream {
    response: Response,
    decoding: Decoding,
    state: State,
}

#[derive(Debug)]
enum State {
    Open,
    /// The last event was given out; the transfer may not have ended yet.
    Whole,
    /// What came before this error was given out first.
    Failed(ProviderError),
    Ended,
}

impl ReplyStream {
    /// All events of everything that has arrived, waiting until there is at least one. `None` once
    /// after the reply's final event; a stream that ends without it is an error of class `Broken`, or
    /// `Retry` if it ended before anything was given out.
    ///
    /// Cancel-safe: dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Vec<ProviderEvent>>, ProviderError> {
        let mut events = Vec::new();
        loop {
            match std::mem::replace(&mut self.state, State::Open) {
                State::Open => {}
                State::Whole => {
                    self.state = State::Ended;
                    self.drain().await;
                    return Ok(None);
                }
                State::Ended => {
                    self.state = State::Ended;
                    return Ok(None);
                }
                State::Failed(error) => {
                    self.state = State::Ended;
                    return Err(error);
                }
            }
            let arrived = match events.is_empty() {
                true => self.response.chunk().await,
                // Takes what is there and never waits. The runtime's own budget bounds how much that
                // is before other tasks get their turn.
                false => match self.response.chunk().now_or_never() {
                    Some(arrived) => arrived,
                    None => return Ok(Some(events)),
                },
            };
            let result = match arrived {
                Ok(Some(piece)) => self.decoding.push(&piece, &mut events),
                Ok(None) => {
                    let result = self.decoding.end(&mut events);
                    if result.is_ok() {
                        self.state = State::Ended;
                    }
                    result
                }
                Err(error) => {
                    Err(self.decoding.lost(&format!("the connection was lost ({})", reason(&error))))
                }
            };
            match result {
                Err(error) => self.state = State::Failed(error),
                Ok(()) if matches!(self.state, State::Open) && self.decoding.is_whole() => {
                    self.state = State::Whole
                }
                Ok(()) => {}
            }
            if !matches!(self.state, State::Open) && !events.is_empty() {
                return Ok(Some(events));
            }
        }
    }

    async fn open(
        endpoint: Endpoint,
        prefix: String,
        mut response: Response,
    ) -> Result<ReplyStream, ProviderError> {
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let request_id = header("request-id").or_else(|| header("x-request-id"));
        let kind = header("content-type").unwrap_or_default();
        let is_text_of_another_kind = kind.starts_with("application/json") || kind.starts_with("text/html");
        if status == 200 && !is_text_of_another_kind {
            let decoding = Decoding::new(endpoint, prefix, request_id.map(str::to_owned));
            return Ok(ReplyStream { response, decoding, state: State::Open });
        }
        let body = read_error(&mut response).await;
        if status == 200 && !body.contains("\"error\"") {
            return Err(ProviderError {
                class: ErrorClass::Broken,
                message: format!(
                    "{} answered with {kind} instead of a stream of events (model {}).",
                    failure::subject(&endpoint),
                    endpoint.name
                ),
                hint: Some(format!("Check that {} is the base URL of the service.", endpoint.place())),
            });
        }
        let failure = Failure {
            status,
            retry_after: retry::retry_after(header),
            should_retry: header("x-should-retry").and_then(|value| value.parse().ok()),
            request_id,
            body: &body,
        };
        Err(failure::classify(&endpoint, &failure))
    }

    /// Reads to the end of the transfer.
    async fn drain(&mut self) {
        let to_end = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        // Too late is no matter: then the connection is closed instead of kept.
        let _ = tokio::time::timeout(END_OF_TRANSFER_MAX, to_end).await;
    }
}

/// Sends a request and reads the answer's status and body, which may have at most `most` bytes.
async fn read_whole(
    mut request: reqwest::RequestBuilder,
    headers: &[(String, Secret)],
    most: usize,
) -> Result<(u16, Vec<u8>), String> {
    for (name, value) in headers {
        let value = sensitive(value).ok_or_else(|| unfit_header(name))?;
        request = request.header(name, value);
    }
    let mut response = request.send().await.map_err(|error| reason(&error))?;
    let status = response.status().as_u16();
    let mut answer = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| reason(&error))? {
        if answer.len() + piece.len() > most {
            return Err(format!("the answer is longer than {most} bytes"));
        }
        answer.extend_from_slice(&piece);
    }
    Ok((status, answer))
}

async fn read_error(response: &mut Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        body.extend_from_slice(&piece[..piece.len().min(ERROR_BODY_BYTES_MAX - body.len())]);
        if body.len() >= ERROR_BODY_BYTES_MAX {
            break;
        }
    }
    String::from_utf8_lossy(&body).into_owned()
}

/// Builds a client. Redirects are not followed: the keys are in headers, and only some of those are
/// known to the client as secrets.
fn build_client(is_local: bool) -> Result<Client, String> {
    // Another part of the program may have installed one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(CONNECT_MAX)
        .pool_idle_timeout(IDLE_MAX)
        .tcp_keepalive(KEEP_ALIVE)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .http2_adaptive_window(true)
        .redirect(reqwest::redirect::Policy::none());
    let mut certificates = extra_certificates()?;
    let builder = match is_local {
        true => builder.no_proxy().read_timeout(LOCAL_SILENCE_MAX),
        false => builder.read_timeout(SILENCE_MAX),
    };
    for root in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
        certificates.push(Certificate::from_der(root).map_err(|error| reason(&error))?);
    }
    builder.tls_certs_only(certificates).build().map_err(|error| reason(&error))
}

/// The certificates of a company's own authority, as `SSL_CERT_FILE` names them.
fn extra_certificates() -> Result<Vec<Certificate>, String> {
    let Some(path) = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from)
    else {
        return Ok(Vec::new());
    };
    let read = std::fs::read(&path).map_err(|error| error.to_string());
    read.and_then(|bytes| Certificate::from_pem_bundle(&bytes).map_err(|error| reason(&error)))
        .map_err(|why| format!("SSL_CERT_FILE names {}, which cannot be read: {why}", path.display()))
}

/// A header's value that no log shows; `None` when it has characters that no header can hold.
fn sensitive(value: &Secret) -> Option<reqwest::header::HeaderValue> {
    let mut value = reqwest::header::HeaderValue::from_str(value.expose()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn unfit_header(name: &str) -> String {
    format!("the value of the header {name} has characters that no header can hold")
}

/// The request cannot be sent as things are set up.
fn unusable(endpoint: &Endpoint, why: &str) -> ProviderError {
    ProviderError {
        class: ErrorClass::Refused,
        message: failure::scrub(
            endpoint,
            &format!("No request can be sent to {}: {why}.", failure::subject(endpoint)),
        ),
        hint: Some(format!("Check the configuration of {}.", endpoint.place())),
    }
}

fn unreachable_now(endpoint: &Endpoint, error: &reqwest::Error) -> ProviderError {
    let message = format!(
        "{} cannot be reached at {}: {} (model {}).",
        failure::subject(endpoint),
        host_of(&endpoint.base_url),
        reason(error),
        endpoint.name
    );
    let hint = match is_loopback(host_of(&endpoint.base_url)) {
        true => "Check that the server is running.",
        false => "Check the network, and HTTPS_PROXY where there is a proxy.",
    };
    ProviderError {
        class: ErrorClass::Retry { after: None },
        message: failure::scrub(endpoint, &message),
        hint: Some(hint.into()),
    }
}

/// The innermost cause, without the URL that the client puts around it: that may hold a key.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() && !error.is_connect() {
        return "nothing came for too long".into();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match std::ptr::eq(cause, error as &dyn std::error::Error) {
        true if error.is_builder() => "the address or a header is not well formed".into(),
        true => "the transfer failed".into(),
        false => cause.to_string(),
    }
}
