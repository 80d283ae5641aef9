//! The workers of a server: machines whose daemons serve clients that ask for one of them by name. Each has a socket that
//! waits for a client, and dials the next one when it is used.
//!
//! Workers with the same name share their files. All clients use the one that has been connected longest, so that a session
//! is where its other clients are, and another one takes its place once it has vanished.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::websocket::switching;
use super::{DRAINING, RemoteClients, RemoteResponse, text, value};
use crate::front::access::{AccessRefusal, AdmittedToken, RemoteAccess, frame_limits, subprotocols};
use crate::front::attach::{DaemonLink, FindDaemon};
use crate::front::progress::SocketProgress;
use crate::front::tunnel::{Tunnel, TunnelAnswer, TunnelRequest, WORKER_PROTOCOL, worker_protocol};
use crate::remote_tokens::{StoredToken, check_name};
use crate::start::READY_TIME_MAX;
use epitome_platform::local::{self, AsyncStream};
use epitome_session::{AccessGrant, AccessScope};

/// The name of the worker that a client wants, or that a worker has.
pub const WORKER_HEADER: HeaderName = HeaderName::from_static("epitome-worker");

/// Distinguishes workers with the same name.
pub const INSTANCE_HEADER: HeaderName = HeaderName::from_static("epitome-worker-instance");

/// What the addresses of workers begin with, by which their sessions are found in a database.
const ADDRESS_SCHEME: &str = "worker:";

/// Maximum number of sockets of workers, each of which waits for a client or serves one.
const SOCKETS_MAX: usize = 256;

/// Longest id of a worker, in bytes.
const INSTANCE_BYTES_MAX: usize = 100;

/// How long a client waits for the next socket of a worker that is connected.
const OFFER_TIME_MAX: Duration = Duration::from_secs(5);

/// Time limit for a worker to attach a client to its daemon, which may have to be started.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(READY_TIME_MAX.as_secs() + 5);

/// The address of a worker.
pub fn address_of(name: &str, instance: &str) -> String {
    format!("{ADDRESS_SCHEME}{name}/{instance}")
}

/// See the module.
#[derive(Default)]
pub struct Workers {
    sockets: Mutex<Vec<WorkerSocket>>,
    /// The number of the next socket.
    numbers: AtomicU64,
    /// Signals each new socket.
    offered: Notify,
}

/// A socket of a worker. Dropping its `end` ends it.
struct WorkerSocket {
    number: u64,
    worker: WorkerIdentity,
    token: StoredToken,
    /// When the worker connected, for people: clocks are set.
    since: SystemTime,
    /// The number of its first socket, by which it is known which worker connected first.
    first: u64,
    /// Takes the client that it is to serve; `None` once it has one.
    offer: Option<oneshot::Sender<WorkerClient>>,
    _end: oneshot::Sender<()>,
}

#[derive(Clone, PartialEq, Eq)]
struct WorkerIdentity {
    name: String,
    instance: String,
}

/// A client that a worker is to serve.
struct WorkerClient {
    request: TunnelRequest,
    /// The other end of the front end's socket, twice.
    front: (AsyncStream, local::Stream),
    answer: oneshot::Sender<Option<TunnelAnswer>>,
}

/// What a worker's socket waits for.
struct OfferedSocket {
    number: u64,
    client: oneshot::Receiver<WorkerClient>,
    end: oneshot::Receiver<()>,
}

impl Workers {
    fn enter(&self, worker: WorkerIdentity, token: StoredToken) -> Result<OfferedSocket, String> {
        let mut sockets = self.sockets.lock();
        if sockets.len() >= SOCKETS_MAX {
            return Err(format!("workers have {SOCKETS_MAX} sockets already"));
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let own = sockets.iter().find(|socket| socket.worker == worker && socket.token == token);
        let (since, first) = own.map_or_else(|| (SystemTime::now(), number), |own| (own.since, own.first));
        let ((offer, client), (end, ended)) = (oneshot::channel(), oneshot::channel());
        sockets.push(WorkerSocket { number, worker, token, since, first, offer: Some(offer), _end: end });
        drop(sockets);
        self.offered.notify_waiters();
        Ok(OfferedSocket { number, client, end: ended })
    }

    fn leave(&self, number: u64) {
        self.sockets.lock().retain(|socket| socket.number != number);
    }

    /// Gives up the waiting sockets of the worker of a socket: its machine may be gone.
    fn mistrust(&self, number: u64) {
        let mut sockets = self.sockets.lock();
        let failed = sockets.iter().find(|socket| socket.number == number);
        let Some((worker, token)) = failed.map(|socket| (socket.worker.clone(), socket.token.clone())) else {
            return;
        };
        sockets.retain(|socket| socket.offer.is_none() || socket.worker != worker || socket.token != token);
    }

    /// Checks whether a worker is connected. The error is a sentence that names those that are.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let sockets = self.sockets.lock();
        let names: BTreeSet<&str> = sockets.iter().map(|socket| &*socket.worker.name).collect();
        match (names.contains(name), names.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(format!("No worker {name:?} is connected, and no other")),
            (false, false) => {
                let names = names.into_iter().collect::<Vec<_>>().join(", ");
                Err(format!("No worker {name:?} is connected, but these: {names}"))
            }
        }
    }

    /// The waiting socket of the worker that has been connected longest, or of this instance; `None` if it is about to
    /// dial one, unless `any` may be used.
    fn offer(&self, name: &str, instance: Option<&str>, any: bool) -> Option<oneshot::Sender<WorkerClient>> {
        let mut sockets = self.sockets.lock();
        let is_meant = |worker: &WorkerIdentity| {
            worker.name == name && instance.is_none_or(|instance| worker.instance == instance)
        };
        let meant =
            sockets.iter().filter(|socket| is_meant(&socket.worker) && (!any || socket.offer.is_some()));
        let first = meant.min_by_key(|socket| socket.first)?;
        let (worker, token) = (first.worker.clone(), first.token.clone());
        let is_own = |socket: &&mut WorkerSocket| socket.worker == worker && socket.token == token;
        sockets.iter_mut().filter(is_own).find_map(|socket| socket.offer.take())
    }

    /// Connects a front end to the daemon of the worker with an address. Returns its socket.
    pub async fn link_to_address(
        &self,
        address: &str,
        grant: &AccessGrant,
        ids_above: u64,
    ) -> Result<local::Stream, String> {
        let named = address.strip_prefix(ADDRESS_SCHEME).and_then(|rest| rest.split_once('/'));
        let (name, instance) = named.ok_or("it is not a worker of this server")?;
        let is_it = |socket: &WorkerSocket| socket.worker.name == name && socket.worker.instance == instance;
        if !self.sockets.lock().iter().any(is_it) {
            return Err("it is not connected".to_owned());
        }
        Ok(self.link(name, Some(instance), grant, ids_above).await?.0)
    }

    /// Connects a front end to the daemon of a worker. Returns its socket and the version of the daemon.
    async fn link(
        &self,
        name: &str,
        instance: Option<&str>,
        grant: &AccessGrant,
        ids_above: u64,
    ) -> Result<(local::Stream, String), String> {
        let until = Instant::now() + OFFER_TIME_MAX;
        loop {
            let offered = self.offered.notified();
            self.check(name)?;
            let is_late = Instant::now() >= until;
            let Some(offer) = self.offer(name, instance, is_late) else {
                if is_late {
                    return Err(format!("the worker {name} serves as many clients as it can"));
                }
                drop(timeout_at(until, offered).await);
                continue;
            };
            let failed = |error: std::io::Error| format!("a socket can't be made: {error}");
            let (front, other) = local::pair().map_err(failed)?;
            let probe = other.try_clone().map_err(failed)?;
            other.set_nonblocking(true).map_err(failed)?;
            let other = AsyncStream::from_std(other).map_err(failed)?;
            let (answer, answered) = oneshot::channel();
            let request = TunnelRequest { grant: grant.clone(), ids_above };
            // Fails if the worker has vanished; then another one is asked.
            drop(offer.send(WorkerClient { request, front: (other, probe), answer }));
            match answered.await {
                Ok(Some(TunnelAnswer { refused: Some(why), .. })) => {
                    return Err(format!("the worker {name} can't be used: {why}"));
                }
                Ok(Some(TunnelAnswer { version, refused: None })) => return Ok((front, version)),
                Ok(None) | Err(_) if is_late => return Err(format!("the worker {name} has vanished")),
                Ok(None) | Err(_) => tracing::info!(name, "a worker has vanished before it served a client"),
            }
        }
    }

    /// Ends the sockets whose token is no longer valid.
    pub fn end_invalid(&self, access: &RemoteAccess) {
        let mut tokens: Vec<StoredToken> = Vec::new();
        for socket in &*self.sockets.lock() {
            if !tokens.contains(&socket.token) {
                tokens.push(socket.token.clone());
            }
        }
        for token in tokens {
            let admitted = Some(token);
            if !access.is_valid(&admitted) {
                self.sockets.lock().retain(|socket| Some(&socket.token) != admitted.as_ref());
            }
        }
    }

    /// Cuts all sockets. Turns go on until the clients return, to whichever server.
    pub fn cut(&self) {
        self.sockets.lock().clear();
    }

    /// The connected workers, each with the number of its clients.
    pub fn list(&self) -> Vec<Value> {
        let sockets = self.sockets.lock();
        let mut workers: Vec<(&WorkerSocket, usize)> = Vec::new();
        for socket in &*sockets {
            let clients = usize::from(socket.offer.is_none());
            match workers
                .iter_mut()
                .find(|(first, _)| first.worker == socket.worker && first.token == socket.token)
            {
                Some((_, all)) => *all += clients,
                None => workers.push((socket, clients)),
            }
        }
        workers.sort_by_key(|(worker, _)| (&worker.worker.name, worker.first));
        let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let shown = workers.into_iter().map(|(worker, clients)| {
            json!({
                "name": worker.worker.name,
                "token": worker.token.name,
                "connected_at": seconds(worker.since),
                "clients": clients,
            })
        });
        shown.collect()
    }
}

/// Finds the daemon of a worker for a client of this server.
pub struct WorkerConnector {
    pub workers: Arc<Workers>,
    pub name: String,
    pub grant: AccessGrant,
    pub runtime: Handle,
}

impl FindDaemon for WorkerConnector {
    fn find(&mut self, ids_above: u64, _to_newer: bool) -> Result<DaemonLink, String> {
        let linked = self.runtime.block_on(self.workers.link(&self.name, None, &self.grant, ids_above));
        let (stream, version) = linked?;
        DaemonLink::new(stream, version).map_err(|error| format!("a socket can't be used: {error}"))
    }
}

/// Whether a request is that of a worker that offers a socket.
pub fn is_offer(request: &Request<Incoming>) -> bool {
    subprotocols(request.headers()).any(|name| name.starts_with(WORKER_PROTOCOL))
}

/// Checks that workers have a token for workers, and that such a token is used by nobody else.
pub fn check_scope(request: &Request<Incoming>, token: &AdmittedToken) -> Result<(), AccessRefusal> {
    let is_for_worker = token.as_ref().is_some_and(|token| token.scope == AccessScope::Work);
    match (is_offer(request), is_for_worker) {
        (true, false) => Err((
            StatusCode::FORBIDDEN,
            "A worker needs a token with the scope `work`; `epitome token create` on the server makes one",
        )),
        (false, true) => Err((
            StatusCode::FORBIDDEN,
            "This token has the scope `work`, which allows nothing but to be a worker and to call models",
        )),
        (true, true) | (false, false) => Ok(()),
    }
}

/// Answers the handshake of a worker.
pub async fn accept(
    clients: &RemoteClients,
    mut request: Request<Incoming>,
    token: StoredToken,
) -> RemoteResponse {
    let headers = request.headers();
    let key = headers.get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let instance = value(headers, &INSTANCE_HEADER).filter(|instance| instance.len() <= INSTANCE_BYTES_MAX);
    let (Some(key), Some(name), Some(instance)) = (key, value(headers, &WORKER_HEADER), instance) else {
        return text(StatusCode::BAD_REQUEST, "A worker has a name and an id");
    };
    let protocol = worker_protocol();
    if subprotocols(headers).all(|name| name != protocol) {
        return text(StatusCode::BAD_REQUEST, "The worker has to be of the same version as the server");
    }
    if let Err(why) = check_name("a worker", name) {
        return text(StatusCode::BAD_REQUEST, &why);
    }
    if let Some(own) = token.worker.as_ref().filter(|own| *own != name) {
        return text(StatusCode::FORBIDDEN, &format!("This token is for the worker {own:?}"));
    }
    if clients.draining.load(Ordering::Relaxed) {
        return text(StatusCode::SERVICE_UNAVAILABLE, DRAINING);
    }
    let worker = WorkerIdentity { name: name.to_owned(), instance: instance.to_owned() };
    let offered = match clients.workers.enter(worker, token) {
        Ok(offered) => offered,
        Err(why) => return text(StatusCode::SERVICE_UNAVAILABLE, &why),
    };
    let response = switching(&key, Some(&protocol));
    let upgrade = hyper::upgrade::on(&mut request);
    let workers = clients.workers.clone();
    tokio::spawn(async move {
        let number = offered.number;
        match upgrade.await {
            Ok(upgraded) => {
                let progress = SocketProgress::default();
                let io = progress.count(TokioIo::new(upgraded));
                let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(frame_limits())).await;
                let OfferedSocket { client, end, .. } = offered;
                tokio::select! {
                    is_whole = serve(Tunnel::new(socket, progress), client) => {
                        if !is_whole {
                            workers.mistrust(number);
                        }
                    }
                    // Its sender is dropped.
                    _ = end => {}
                }
            }
            Err(error) => tracing::info!(%error, "a worker's handshake failed"),
        }
        workers.leave(number);
    });
    response
}

/// Waits for a client of an offered socket, and serves it. Returns false if the socket has failed.
async fn serve<S>(mut tunnel: Tunnel<S>, client: oneshot::Receiver<WorkerClient>) -> bool
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let client = tokio::select! {
        client = client => client,
        () = tunnel.wait() => return false,
    };
    let Ok(WorkerClient { request, front, answer }) = client else {
        tunnel.close().await;
        return true;
    };
    let answered = match tunnel.say(&request).await {
        true => tunnel.answer(ATTACH_TIME_MAX).await,
        false => None,
    };
    let refused = answered.as_ref().map(|answered| answered.refused.is_some());
    // Fails if the client has gone, which is noticed at its socket.
    drop(answer.send(answered));
    match refused {
        Some(false) => tunnel.carry(front.0, Some(front.1)).await,
        Some(true) => true,
        None => false,
    }
}

/// Answers a request for the list of workers.
pub fn listed(clients: &RemoteClients) -> RemoteResponse {
    let mut response = text(StatusCode::OK, &Value::from(clients.workers.list()).to_string());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote_tokens::RemoteTokens;

    fn tokens() -> [StoredToken; 2] {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let tokens = RemoteTokens::below(scratch.path());
        ["box", "other"].map(|name| tokens.create(name, AccessScope::Work, None, None).expect("a token").0)
    }

    fn enter(workers: &Workers, name: &str, instance: &str, token: &StoredToken) -> OfferedSocket {
        let worker = WorkerIdentity { name: name.to_owned(), instance: instance.to_owned() };
        workers.enter(worker, token.clone()).expect("there is room")
    }

    /// Whether the next client of a name gets this socket.
    fn is_next(workers: &Workers, name: &str, socket: &mut OfferedSocket) -> bool {
        drop(workers.offer(name, None, false));
        matches!(socket.client.try_recv(), Err(oneshot::error::TryRecvError::Closed))
    }

    #[tokio::test]
    async fn clients_use_the_worker_that_has_been_connected_longest() {
        let (workers, [token, _]) = (Workers::default(), tokens());
        let mut first = enter(&workers, "box", "a", &token);
        // Regression: the clock was set back, and the next worker took the clients of this one.
        workers.sockets.lock()[0].since = SystemTime::now() + Duration::from_secs(3600);
        let mut second = enter(&workers, "box", "b", &token);
        enter(&workers, "another", "c", &token);
        assert!(is_next(&workers, "box", &mut first));
        assert!(!is_next(&workers, "box", &mut second), "the first one is about to dial its next socket");
        let mut next = enter(&workers, "box", "a", &token);
        assert!(is_next(&workers, "box", &mut next));
        assert!(workers.offer("box", None, true).is_some(), "it does not dial, so another one is used");
        workers.leave(first.number);
        workers.leave(next.number);
        let mut next = enter(&workers, "box", "b", &token);
        assert!(is_next(&workers, "box", &mut next), "the first one has vanished");
    }

    #[tokio::test]
    async fn a_client_that_names_no_connected_worker_learns_which_there_are() {
        let (workers, [token, _]) = (Workers::default(), tokens());
        assert!(workers.check("box").expect_err("none is there").contains("and no other"));
        let _socket = enter(&workers, "build", "a", &token);
        assert!(workers.check("box").expect_err("it is not there").ends_with("but these: build"));
        assert_eq!(workers.check("build"), Ok(()));
        let grant =
            AccessGrant { name: "anna".to_owned(), scope: AccessScope::Read, directories: Vec::new() };
        for address in ["wss://a", "worker:build/b", "worker:build"] {
            assert!(workers.link_to_address(address, &grant, 0).await.is_err(), "{address}");
        }
    }

    /// A worker with another token can't get the clients of this one by using its id.
    #[tokio::test]
    async fn the_sockets_of_a_worker_have_one_token() {
        let (workers, [token, other]) = (Workers::default(), tokens());
        let mut own = enter(&workers, "box", "a", &token);
        let mut foreign = enter(&workers, "box", "a", &other);
        assert!(is_next(&workers, "box", &mut own));
        assert!(!is_next(&workers, "box", &mut foreign));
        assert_eq!(workers.list().len(), 2);
    }
}
