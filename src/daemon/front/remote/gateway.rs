//! Calls the models of this machine for others, which have no keys. It runs in the server's own process: that has the
//! environment with the keys, a call ends with its client's connection, and no reply passes through the daemon.
//!
//! A client chooses among the models that are offered, and sends the bodies of requests. Everything else, such as
//! addresses, headers and credentials, comes from the settings of this machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::oneshot;

use super::http::collect;
use super::{DRAINING, RemoteClients, RemoteResponse, text};
use crate::front::access::RemoteAccess;
use crate::remote_tokens::StoredToken;
use epitome_acp::connection::LINE_BYTES_MAX;
use epitome_config::{GatewayModels, Settings};
use epitome_files::paths::Paths;
use epitome_provider::calls::PassedReply;
use epitome_provider::catalog::{CatalogScope, ModelCatalog};
use epitome_provider::endpoint::{self, Endpoint};
use epitome_provider::gateway::{TOKEN_ERROR, describe, path_of_model};
use epitome_provider::http::Http;
use epitome_provider::learned::{Learned, RefreshTime};
use epitome_provider::network::Network;
use epitome_provider::{ErrorClass, ProviderError};
use epitome_session::registry::Overrides;

pub use epitome_provider::gateway::GATEWAY_PATH;

/// Maximum number of models that are offered.
const MODELS_MAX: usize = 2_000;

/// How long the offered models are used before settings, policy and lists are read again.
const OFFERED_FOR: Duration = Duration::from_secs(10);

/// Time limit for asking the providers for their lists, which is done once a day.
const LISTS_TIME_MAX: Duration = Duration::from_secs(8);

/// Maximum number of running calls. The body of each is kept until it is sent.
const CALLS_MAX: usize = 128;

/// Maximum number of running calls with one token.
const CALLS_OF_TOKEN_MAX: usize = 32;

/// Time limit for the body of a request. Those of long conversations have megabytes.
const BODY_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// The models that a server calls for others.
pub struct ModelGateway {
    paths: Paths,
    overrides: Overrides,
    environment: Vec<(OsString, OsString)>,
    http: Http,
    /// What was listed last, and what could be called, each with the time at which it began to be looked up. Locked while
    /// it is looked up, so that all who wait share it.
    listed: RenewedModels,
    callable: RenewedModels,
    /// The running calls: dropping one's sender ends it.
    running: Mutex<Vec<(StoredToken, oneshot::Sender<()>)>>,
    calls: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

type RenewedModels = tokio::sync::Mutex<Option<(Instant, Arc<OfferedModels>)>>;

struct OfferedModels {
    settings: Settings,
    /// By the paths below which they are called.
    endpoints: BTreeMap<String, Endpoint>,
    list: Bytes,
}

/// A call that runs. It is counted and logged when it ends.
struct PassedCall {
    gateway: Arc<ModelGateway>,
    /// Ready when the token has been revoked or has expired.
    ended: oneshot::Receiver<()>,
    token: String,
    model: String,
    status: u16,
    sent: u64,
    received: u64,
    began: Instant,
}

impl ModelGateway {
    /// Calls models with the settings and the environment of this process.
    pub fn new(paths: Paths, overrides: Overrides, environment: Vec<(OsString, OsString)>) -> ModelGateway {
        ModelGateway {
            paths,
            overrides,
            environment,
            http: Http::new(),
            listed: RenewedModels::default(),
            callable: RenewedModels::default(),
            running: Mutex::default(),
            calls: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
        }
    }

    /// Number of running calls.
    pub(super) fn running(&self) -> usize {
        self.running.lock().iter().filter(|(_, running)| !running.is_closed()).count()
    }

    /// Ends the calls with tokens that were revoked or have expired.
    pub(super) fn end_invalid(&self, access: &RemoteAccess) {
        let mut running = self.running.lock();
        running.retain(|(_, running)| !running.is_closed());
        // Not by name: a token may have that of one that was revoked.
        let mut checked: Vec<(StoredToken, bool)> = Vec::new();
        running.retain(|(token, _)| {
            if let Some((_, is_valid)) = checked.iter().find(|(known, _)| known == token) {
                return *is_valid;
            }
            let is_valid = access.is_valid(&Some(token.clone()));
            checked.push((token.clone(), is_valid));
            is_valid
        });
    }

    /// The figures in the Prometheus text format.
    pub(super) fn figures(&self) -> String {
        let counters = [
            ("calls", "Model calls for other machines.", &self.calls),
            (
                "sent_bytes",
                "Bytes of requests that were sent to models for other machines.",
                &self.sent_bytes,
            ),
            ("received_bytes", "Bytes of the replies to them.", &self.received_bytes),
        ];
        let mut text = format!(
            "# HELP epitome_gateway_running_calls Model calls for other machines that run.\n\
             # TYPE epitome_gateway_running_calls gauge\nepitome_gateway_running_calls {}\n",
            self.running()
        );
        for (name, help, counter) in counters {
            let count = counter.load(Ordering::Relaxed);
            text += &format!(
                "# HELP epitome_gateway_{name}_total {help}\n# TYPE epitome_gateway_{name}_total counter\n\
                 epitome_gateway_{name}_total {count}\n"
            );
        }
        text
    }

    /// The models that can be called now. `asks`: for a list, for which providers are asked first, if that is due.
    async fn offered(&self, asks: bool) -> Result<Arc<OfferedModels>, String> {
        let came = Instant::now();
        let known = if asks { &self.listed } else { &self.callable };
        let mut known = known.lock().await;
        let is_new = |at: &Instant| if asks { *at > came } else { at.elapsed() < OFFERED_FOR };
        if let Some((_, offered)) = known.as_ref().filter(|(at, _)| is_new(at)) {
            return Ok(offered.clone());
        }
        let began = Instant::now();
        let offered = self.look_up(asks).await?;
        *known = Some((began, offered.clone()));
        if asks {
            // What was listed can be called at once.
            *self.callable.lock().await = known.clone();
        }
        Ok(offered)
    }

    async fn look_up(&self, asks: bool) -> Result<Arc<OfferedModels>, String> {
        let (paths, overrides, environment) =
            (self.paths.clone(), self.overrides.clone(), self.environment.clone());
        let settings = tokio::task::spawn_blocking(move || {
            let get = |name: &str| {
                environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            };
            overrides.over(Settings::load(&paths, None, get).0)
        });
        let settings = settings.await.map_err(|error| error.to_string())?;
        // Also what the daemon has learned since.
        let learned = Learned::below(&self.paths.data);
        learned.load().await;
        let http = self.http.within(Network::read(&self.environment));
        let local = endpoint::find_local(&http, &endpoint::local_urls(&settings, &self.environment)).await;
        let catalog = ModelCatalog {
            settings: &settings,
            environment: &self.environment,
            learned: &learned,
            local: local.as_ref(),
        };
        let asking = async {
            for place in catalog.places().into_iter().filter(|_| asks) {
                if let Err(error) = learned.refresh(&self.http, &place, RefreshTime::Due).await {
                    tracing::info!(%error, "the models of a provider are offered as known so far");
                }
            }
        };
        drop(tokio::time::timeout(LISTS_TIME_MAX, asking).await);
        learned.save().await;
        let chosen = catalog.chosen_model();
        let offers = catalog.offers(CatalogScope::Usable, MODELS_MAX);
        let found = offers.into_iter().filter_map(|offer| catalog.endpoint(&offer.name));
        let found: Vec<Endpoint> = found.collect();
        let default = found.iter().find(|endpoint| Some(&endpoint.name) == chosen.as_ref()).or(found.first());
        let list = GatewayModels {
            address: String::new(),
            default: default.map(|endpoint| endpoint.name.0.clone()),
            models: found.iter().map(|it| (it.name.0.clone(), describe(&settings, it))).collect(),
        };
        let list = Bytes::from(serde_json::to_vec(&list).map_err(|error| error.to_string())?);
        let endpoints = found.into_iter().map(|endpoint| (path_of_model(&endpoint.name), endpoint)).collect();
        Ok(Arc::new(OfferedModels { settings, endpoints, list }))
    }

    /// Begins a call, unless there are too many.
    fn begin(self: &Arc<Self>, token: &StoredToken, model: String) -> Option<PassedCall> {
        let mut running = self.running.lock();
        running.retain(|(_, running)| !running.is_closed());
        let of_token = running.iter().filter(|(other, _)| other == token).count();
        if running.len() >= CALLS_MAX || of_token >= CALLS_OF_TOKEN_MAX {
            return None;
        }
        let (sender, ended) = oneshot::channel();
        running.push((token.clone(), sender));
        Some(PassedCall {
            gateway: self.clone(),
            ended,
            token: token.name.clone(),
            model,
            status: 0,
            sent: 0,
            received: 0,
            began: Instant::now(),
        })
    }
}

impl Drop for PassedCall {
    fn drop(&mut self) {
        let gateway = &self.gateway;
        gateway.calls.fetch_add(1, Ordering::Relaxed);
        gateway.sent_bytes.fetch_add(self.sent, Ordering::Relaxed);
        gateway.received_bytes.fetch_add(self.received, Ordering::Relaxed);
        tracing::info!(
            token = self.token,
            model = self.model,
            status = self.status,
            sent_bytes = self.sent,
            received_bytes = self.received,
            milliseconds = self.began.elapsed().as_millis() as u64,
            "a model was called for another machine"
        );
    }
}

/// Answers a request of a client with this token.
pub async fn answer(
    clients: &RemoteClients,
    gateway: &Arc<ModelGateway>,
    request: Request<Incoming>,
    token: &StoredToken,
) -> RemoteResponse {
    if clients.draining.load(Ordering::Relaxed) {
        discard(request.into_body()).await;
        return refused(StatusCode::SERVICE_UNAVAILABLE, DRAINING);
    }
    let offered = match gateway.offered(request.method() == Method::GET).await {
        Ok(offered) => offered,
        Err(why) => {
            tracing::error!(why, "the models are not known");
            return refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "The models are not known; see the log of the server",
            );
        }
    };
    match *request.method() {
        Method::GET if request.uri().path() == GATEWAY_PATH => {
            let mut response = text(StatusCode::OK, "");
            *response.body_mut() = super::full(offered.list.clone());
            let kind = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Method::POST => call(gateway, &offered, request, token).await,
        _ => refused(StatusCode::METHOD_NOT_ALLOWED, "GET /gateway lists the models, and POST calls one"),
    }
}

async fn call(
    gateway: &Arc<ModelGateway>,
    offered: &OfferedModels,
    request: Request<Incoming>,
    token: &StoredToken,
) -> RemoteResponse {
    let (head, body) = request.into_parts();
    if body.size_hint().lower() >= LINE_BYTES_MAX as u64 {
        discard(body).await;
        return refused(StatusCode::PAYLOAD_TOO_LARGE, "The request is longer than 64 MiB");
    }
    let path = head.uri.path_and_query().map_or("", |path| path.as_str());
    let (mut call, endpoint, url) = match begin(gateway, offered, path, token) {
        Ok(begun) => begun,
        Err(refused) => {
            discard(body).await;
            return *refused;
        }
    };
    match send(gateway, endpoint, &url, body, &mut call).await {
        Ok(reply) => passed(reply, call),
        Err(response) => {
            call.status = response.status().as_u16();
            *response
        }
    }
}

/// Reads the body of a request that is refused: many clients read a response only after they have sent everything.
pub async fn discard(mut body: Incoming) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    drop(tokio::time::timeout(BODY_TIME_MAX, rest).await);
}

/// Finds what a client's path stands for. Returns the call with the endpoint and the URL to send it to.
fn begin(
    gateway: &Arc<ModelGateway>,
    offered: &OfferedModels,
    path: &str,
    token: &StoredToken,
) -> Result<(PassedCall, Endpoint, String), Box<RemoteResponse>> {
    let not_found = |why: &str| Box::new(refused(StatusCode::NOT_FOUND, why));
    // `/gateway/MODEL/…`
    let end = path.match_indices('/').nth(2).map_or(path.len(), |(at, _)| at);
    let endpoint = offered.endpoints.get(&path[..end]);
    let endpoint = endpoint.ok_or_else(|| not_found("The server does not offer this model"))?;
    let configured = offered.settings.models.get(&endpoint.name.0);
    let called = endpoint.call_of_client(path, configured);
    let (endpoint, url) =
        called.ok_or_else(|| not_found("The server sends no such requests for this model"))?;
    let call = gateway.begin(token, endpoint.name.0.clone()).ok_or_else(|| {
        let mut response = refused(StatusCode::TOO_MANY_REQUESTS, "There are too many model calls already");
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        Box::new(response)
    })?;
    Ok((call, endpoint, url))
}

/// Reads a client's request and sends it. A client that goes away drops this.
async fn send(
    gateway: &ModelGateway,
    endpoint: Endpoint,
    url: &str,
    body: Incoming,
    call: &mut PassedCall,
) -> Result<PassedReply, Box<RemoteResponse>> {
    let body = collect(body, BODY_TIME_MAX).await?;
    let (checked, own) = (body.clone(), endpoint.clone());
    let checking = tokio::task::spawn_blocking(move || own.check_body(&checked)).await;
    let checked = checking.unwrap_or_else(|error| Err(error.to_string()));
    checked.map_err(|why| Box::new(refused(StatusCode::BAD_REQUEST, &why)))?;
    call.sent = body.len() as u64;
    let reply = tokio::select! {
        reply = gateway.http.pass_on(&endpoint, url, body) => reply,
        _ = &mut call.ended => {
            let why = "The token has been revoked or has expired";
            return Err(Box::new(refused(StatusCode::UNAUTHORIZED, why)));
        }
    };
    reply.map_err(|error| {
        tracing::info!(model = call.model, error = error.message, "a call for another machine failed");
        Box::new(unreachable(&error))
    })
}

/// Passes on a reply as it arrives.
fn passed(reply: PassedReply, mut call: PassedCall) -> RemoteResponse {
    call.status = reply.status;
    let status = match reply.status {
        // To the client, this is about its own token.
        401 => StatusCode::FORBIDDEN,
        status => StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    let headers = reply.headers.clone();
    let frames = stream::unfold(Some((reply, call)), |running| async move {
        let (mut reply, mut call) = running?;
        let next = tokio::select! {
            next = reply.next() => next,
            _ = &mut call.ended => Err("the token has been revoked or has expired".to_owned()),
        };
        match next {
            Ok(Some(piece)) => {
                call.received += piece.len() as u64;
                Some((Ok(Frame::data(piece)), Some((reply, call))))
            }
            Ok(None) => None,
            // The client must not take what it has for all of it.
            Err(why) => Some((Err(io::Error::other(why)), None)),
        }
    });
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
    *response.status_mut() = status;
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// The response if the provider could not be called.
fn unreachable(error: &ProviderError) -> RemoteResponse {
    let (status, after) = match error.class {
        ErrorClass::Retry { after } => (StatusCode::SERVICE_UNAVAILABLE, after),
        ErrorClass::Auth => (StatusCode::FORBIDDEN, None),
        _ => (StatusCode::FAILED_DEPENDENCY, None),
    };
    let hint = error.hint.as_deref().unwrap_or_default();
    let mut response = refused(status, format!("{} {hint}", error.message).trim_end());
    if let Some(after) = after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs()));
    }
    response
}

/// The answer to a token without the right to call models.
pub fn refused_token(why: &str) -> RemoteResponse {
    error(StatusCode::FORBIDDEN, TOKEN_ERROR, why)
}

fn refused(status: StatusCode, why: &str) -> RemoteResponse {
    error(status, "epitome_gateway", why)
}

/// An error of the server itself, in a form that clients of every format read.
fn error(status: StatusCode, kind: &str, why: &str) -> RemoteResponse {
    let error = json!({ "error": { "type": kind, "message": why } });
    let mut response = text(status, &error.to_string());
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;
    use crate::front::access::AcceptedTokens;
    use crate::remote_tokens::RemoteTokens;
    use epitome_session::AccessScope;

    /// Regression: each of many calls that came at the same time read the settings, the policy and the lists on its own.
    #[tokio::test]
    async fn calls_that_come_together_share_what_is_looked_up() {
        let home = tempfile::tempdir().expect("a directory");
        let gateway = ModelGateway::new(Paths::below(home.path()), Overrides::default(), Vec::new());
        let (first, second) = tokio::join!(gateway.offered(false), gateway.offered(false));
        assert!(Arc::ptr_eq(&first.expect("settings"), &second.expect("settings")));
        let lists = tokio::join!(gateway.offered(true), gateway.offered(true), gateway.offered(true));
        let [_, second, third] = <[_; 3]>::from(lists).map(|list| list.expect("settings"));
        // The first one had begun when they came.
        assert!(Arc::ptr_eq(&second, &third));
    }

    /// Regression: a token was revoked and made again with the same name, as when it is rotated. The calls with the new one
    /// ended with those of the old one.
    #[tokio::test]
    async fn only_calls_with_a_token_that_was_revoked_end() {
        let home = tempfile::tempdir().expect("a directory");
        let gateway = ModelGateway::new(Paths::below(home.path()), Overrides::default(), Vec::new());
        let (gateway, tokens) = (Arc::new(gateway), RemoteTokens::below(home.path()));
        let create = || tokens.create("box", AccessScope::Work, None, None).expect("a token").0;
        let begin =
            |token: &StoredToken| gateway.begin(token, "a/b".to_owned()).expect("there is room for a call");
        let old = create();
        let mut revoked = begin(&old);
        tokens.revoke("box").expect("it is removed");
        let mut valid = begin(&create());
        let access = RemoteAccess { tokens: AcceptedTokens::Stored(tokens.clone()), origins: Vec::new() };
        gateway.end_invalid(&access);
        assert_eq!(revoked.ended.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(valid.ended.try_recv(), Err(TryRecvError::Empty));
    }
}
