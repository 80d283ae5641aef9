//! Forwarding between servers whose daemons share the logs of sessions: a client uses a session through its own server,
//! although the daemon of another server has it open.
//!
//! ```text
//!                                       ┌─► daemon of this server (home)
//!  client ── front end ── forwarding ───┼─► server A ─► its daemon, which has session 1 open
//!                                       └─► server B ─► its daemon, which has sessions 2 and 3 open
//! ```
//!
//! To its front end, which may be on the client's machine, all of them are one daemon. `routes` decides which of them gets a
//! message. A request to open a session is sent home; if that daemon answers which server has the session open, the request
//! is sent there, over a connection with the client's own token. So that server applies the rights of the token, and
//! servers trust each other with nothing.
//!
//! The same with workers: home is the daemon of the worker that the client uses, and the others are those of other workers.
//!
//! If one of the daemons or servers ends, the link to the front end ends like that to a daemon that died. The front end
//! then begins it again and resumes its sessions where they were, wherever they can be opened now (`reconnect`). Turns go
//! on in the meantime, like those of a client whose server was killed.

pub mod routes;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::LAST_WORDS_TIME_MAX;
use super::attach::{DaemonLink, FindDaemon};
use super::dial::RemoteServerAddress;
use super::remote::Workers;
use crate::messages::{FrontendMessage, MESSAGE_BYTES_MAX, MessageKind, updates_after};
use epitome_acp::connection::LINE_BYTES_MAX;
use epitome_platform::local::{self, AsyncStream, OwnedReadHalf, OwnedWriteHalf};
use epitome_session::AccessGrant;
use routes::{ClientRoute, DaemonRoute, ForwardRoutes, HOME, OWN_INITIALIZE, Unreached};

/// Maximum number of connections to other servers, for all clients.
const LINKS_MAX: usize = 128;

/// Maximum number of connections to other servers for one client.
const LINKS_OF_CLIENT_MAX: usize = 8;

/// Time limit for another server to answer the first messages.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);

/// Delay before the own daemon is asked again about a session whose server could not be used.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How often a session is looked for before its client gets an error.
const SEARCHES_MAX: u32 = 6;

/// The same for sessions of a worker that can't be reached: its daemon keeps them for a minute, in which the worker may
/// connect again. Each search takes a second or two.
const SEARCHES_OF_WORKERS_MAX: u32 = 60;

/// Messages are written together up to about this many bytes.
const SHARED_BYTES: usize = 64 * 1024;

/// How a server reaches others, for all its clients.
pub struct Forwarding {
    /// Where others reach this server.
    address: String,
    /// The certificates, in PEM, that the others' have to be signed with.
    authority: Option<Vec<u8>>,
    links: Arc<Semaphore>,
    connections: Mutex<Vec<Weak<ForwardedConnection>>>,
    /// Whether this server is being ended, and its clients continue with another one.
    ending: AtomicBool,
}

impl Forwarding {
    /// For a server that others reach at this address. Tokens are sent to no server whose certificate is not signed with
    /// `authority`: a writer to the database could name any. An error is a sentence for the user.
    pub fn new(address: &str, authority: Option<Vec<u8>>) -> Result<Forwarding, String> {
        let forwarding = Forwarding {
            address: address.to_owned(),
            authority,
            links: Arc::new(Semaphore::new(LINKS_MAX)),
            connections: Mutex::default(),
            ending: AtomicBool::new(false),
        };
        if forwarding.authority.is_none() && address.starts_with("wss:") {
            return Err(
                "the authority of the servers' certificates has to be known (--peer-ca FILE), because \
                        the tokens of clients are sent to them"
                    .to_owned(),
            );
        }
        forwarding.server(address, "").map(|_| forwarding)
    }

    /// Where others reach this server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Number of sessions that are forwarded.
    pub fn sessions(&self) -> usize {
        let connections: Vec<_> = self.connections.lock().iter().filter_map(Weak::upgrade).collect();
        connections.iter().map(|connection| connection.routes.lock().sessions_elsewhere()).sum()
    }

    /// From now on, sessions at other servers are not closed with their connections: their turns go on until the clients have
    /// returned.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    fn enter(&self, connection: &Arc<ForwardedConnection>) {
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(connection));
    }

    fn server(&self, address: &str, token: &str) -> Result<RemoteServerAddress, String> {
        let scheme = |address: &str| address.split("://").next().unwrap_or_default().to_owned();
        if scheme(address) != scheme(&self.address) {
            return Err(format!("its address has another scheme than {}", self.address));
        }
        RemoteServerAddress::parse(address, token, self.authority.as_deref())
            .map(RemoteServerAddress::for_peer)
    }
}

/// The other daemons at which sessions of a client may be open.
#[derive(Clone)]
pub enum Peers {
    /// Those of other servers, which are shown the client's token.
    Servers(Arc<Forwarding>, String),
    /// Those of workers of this server.
    Workers(Arc<Workers>, AccessGrant),
}

impl Peers {
    /// Connects to a daemon by the address that it has in the database. Returns its socket, and what the link needs as
    /// long as it exists.
    async fn link(&self, address: &str, ids_above: u64) -> Result<(local::Stream, KeptForLink), String> {
        match self {
            Peers::Servers(forwarding, token) => {
                let permit = forwarding.links.clone().try_acquire_owned();
                let permit = permit.map_err(|_| format!("{LINKS_MAX} connections are forwarded already"))?;
                let server = Arc::new(forwarding.server(address, token)?);
                let (stream, carrying) = server.link(ids_above).await?;
                Ok((stream, Some((OwnedTask(tokio::spawn(carrying)), permit))))
            }
            Peers::Workers(workers, grant) => {
                Ok((workers.link_to_address(address, grant, ids_above).await?, None))
            }
        }
    }
}

/// The task and the place of a link to another server.
type KeptForLink = Option<(OwnedTask, OwnedSemaphorePermit)>;

/// Finds the daemon that a client uses, and forwards to others if it is known how.
pub struct ForwardingConnector<D> {
    home: D,
    peers: Option<Peers>,
    runtime: Handle,
}

impl<D> ForwardingConnector<D> {
    pub fn new(home: D, peers: Option<Peers>, runtime: Handle) -> ForwardingConnector<D> {
        ForwardingConnector { home, peers, runtime }
    }
}

impl<D: FindDaemon> FindDaemon for ForwardingConnector<D> {
    fn find(&mut self, ids_above: u64, to_newer: bool) -> Result<DaemonLink, String> {
        let link = self.home.find(ids_above, to_newer)?;
        let Some(peers) = self.peers.clone() else { return Ok(link) };
        let version = link.version.clone();
        let between = || {
            let (front, client) = local::pair()?;
            client.set_nonblocking(true)?;
            let _entered = self.runtime.enter();
            let (client, home) =
                (AsyncStream::from_std(client)?, AsyncStream::from_std(link.into_stream()?)?);
            let connection = ForwardedConnection::new(peers, ids_above);
            self.runtime.spawn(connection.serve(client, home));
            DaemonLink::new(front, version)
        };
        between().map_err(|error| format!("a connection can't be relayed: {error}"))
    }
}

/// A task that ends with its owner.
struct OwnedTask(JoinHandle<()>);

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The link to one daemon.
struct ForwardLink {
    /// That of its server; `None` for the own one.
    address: Option<String>,
    to_daemon: tokio::sync::Mutex<OwnedWriteHalf>,
    /// What the daemon sends.
    copying: Mutex<Option<OwnedTask>>,
    _kept: KeptForLink,
}

/// The connection of one client.
struct ForwardedConnection {
    peers: Peers,
    routes: Mutex<ForwardRoutes>,
    /// The first is that to the daemon of this server.
    links: Mutex<Vec<Arc<ForwardLink>>>,
    to_client: tokio::sync::Mutex<Option<OwnedWriteHalf>>,
    /// Only one link is opened at a time, so that there is one for each server.
    opening: tokio::sync::Mutex<()>,
    /// Set once the client or a daemon is gone. No link is added from then on.
    over: watch::Sender<bool>,
}

impl ForwardedConnection {
    fn new(peers: Peers, ids_above: u64) -> Arc<ForwardedConnection> {
        let searches_max = match &peers {
            Peers::Servers(..) => SEARCHES_MAX,
            Peers::Workers(..) => SEARCHES_OF_WORKERS_MAX,
        };
        let connection = Arc::new(ForwardedConnection {
            peers,
            routes: Mutex::new(ForwardRoutes::new(ids_above, searches_max)),
            links: Mutex::default(),
            to_client: tokio::sync::Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            over: watch::Sender::new(false),
        });
        if let Peers::Servers(forwarding, _) = &connection.peers {
            forwarding.enter(&connection);
        }
        connection
    }

    /// Serves the client until it closes its end, or a daemon is gone.
    async fn serve(self: Arc<Self>, client: AsyncStream, home: AsyncStream) {
        let (from_client, to_client) = client.into_split();
        *self.to_client.lock().await = Some(to_client);
        let (from_home, to_home) = home.into_split();
        self.add(None, BufReader::new(from_home), to_home, None);
        let mut over = self.over.subscribe();
        // The sender is owned by `self`, so waiting can't fail.
        let over = async { drop(over.wait_for(|over| *over).await) };
        tokio::select! {
            () = self.copy_up(from_client) => self.close().await,
            () = over => {}
        }
        self.over.send_replace(true);
        // Links that were not closed are cut, so that turns go on until the client returns.
        drop(std::mem::take(&mut *self.links.lock()));
        drop(self.to_client.lock().await.take());
    }

    /// Closes the links and passes on what the daemons send last. Those to other servers are left to be cut if this server is
    /// being ended.
    async fn close(&self) {
        let mut links = self.links.lock().clone();
        if let Peers::Servers(forwarding, _) = &self.peers
            && forwarding.ending.load(Ordering::Relaxed)
        {
            links.truncate(HOME + 1);
        }
        for link in &links {
            // Fails if the daemon is gone already.
            drop(link.to_daemon.lock().await.shutdown().await);
        }
        let copying = links.iter().filter_map(|link| link.copying.lock().take());
        let all = copying.collect::<Vec<_>>();
        let ended = async {
            for mut task in all {
                drop((&mut task.0).await);
            }
        };
        drop(timeout(LAST_WORDS_TIME_MAX, ended).await);
    }

    /// Adds a link and copies what its daemon sends. Returns its number; `None` if the connection is over: nobody would take
    /// the link out again.
    fn add(
        self: &Arc<Self>,
        address: Option<String>,
        from_daemon: BufReader<OwnedReadHalf>,
        to_daemon: OwnedWriteHalf,
        kept: KeptForLink,
    ) -> Option<usize> {
        let to_daemon = tokio::sync::Mutex::new(to_daemon);
        let link = Arc::new(ForwardLink { address, to_daemon, copying: Mutex::default(), _kept: kept });
        let mut links = self.links.lock();
        if *self.over.borrow() {
            return None;
        }
        let number = links.len();
        links.push(link.clone());
        let connection = self.clone();
        let copying = async move {
            if let Err(error) = connection.copy_down(number, from_daemon).await {
                tracing::debug!(number, %error, "a daemon's messages can't be passed on");
            }
            connection.over.send_replace(true);
        };
        *link.copying.lock() = Some(OwnedTask(tokio::spawn(copying)));
        Some(number)
    }

    /// Routes the client's lines until it closes its end.
    async fn copy_up(self: &Arc<Self>, from_client: OwnedReadHalf) {
        let mut reader = BufReader::new(from_client);
        let mut line = Vec::new();
        loop {
            line.clear();
            // The front end bounds its lines.
            match (&mut reader).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => self.route(&line).await,
            }
        }
    }

    async fn route(&self, line: &[u8]) {
        let route = self.routes.lock().client_sent(line);
        match route {
            ClientRoute::To(number) => self.send(number, line).await,
            ClientRoute::ToAll => {
                let count = self.links.lock().len();
                for number in 0..count {
                    self.send(number, line).await;
                }
            }
            ClientRoute::Nowhere => {}
            ClientRoute::Answer(answer) => self.show(&answer).await,
        }
    }

    /// Sends lines to a daemon. If it is gone, the connection is begun again.
    async fn send(&self, number: usize, lines: &[u8]) {
        let link = self.links.lock().get(number).cloned();
        if let Some(link) = link
            && link.to_daemon.lock().await.write_all(lines).await.is_err()
        {
            self.over.send_replace(true);
        }
    }

    /// A client that does not read is noticed by its front end.
    async fn show(&self, lines: &[u8]) {
        if let Some(client) = &mut *self.to_client.lock().await {
            drop(client.write_all(lines).await);
        }
    }

    /// Passes on what a daemon sends, until it ends or the connection has to be begun again.
    async fn copy_down(
        self: &Arc<Self>,
        number: usize,
        mut reader: BufReader<OwnedReadHalf>,
    ) -> io::Result<()> {
        let (mut lines, mut shown) = (Vec::new(), Vec::new());
        while read_message(&mut reader, &mut lines).await? {
            let route = self.routes.lock().daemon_sent(number, &FrontendMessage::raw(&lines));
            match &route {
                DaemonRoute::Show | DaemonRoute::Settled(_) => shown.append(&mut lines),
                DaemonRoute::Drop | DaemonRoute::Elsewhere { .. } | DaemonRoute::BeginAgain => {}
            }
            let continues =
                matches!(route, DaemonRoute::Show) && memchr::memchr(b'\n', reader.buffer()).is_some();
            if !continues || shown.len() >= SHARED_BYTES {
                self.show(&shown).await;
                shown.clear();
            }
            match route {
                DaemonRoute::Show | DaemonRoute::Drop => {}
                DaemonRoute::Settled(session) => {
                    // Not here: a daemon whose messages wait takes none.
                    tokio::spawn(self.clone().send_waiting(session));
                }
                DaemonRoute::Elsewhere { session, address } => {
                    tokio::spawn(self.clone().forward(session, address));
                }
                DaemonRoute::BeginAgain => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sends the request to open a session to the server that has it open.
    async fn forward(self: Arc<Self>, session: String, address: String) {
        let why = match self.link_to(&address).await {
            Ok(number) => {
                let line = self.routes.lock().reached(&session, number);
                return if let Some(line) = line {
                    self.send(number, &line).await
                };
            }
            Err(why) => why,
        };
        tracing::info!(session, address, why, "a session can't be forwarded");
        sleep(ASK_AGAIN).await;
        let next = self.routes.lock().unreached(&session, &address, &why);
        match next {
            Some(Unreached::Ask(line)) => self.send(HOME, &line).await,
            Some(Unreached::GiveUp(answer)) => {
                self.show(&answer).await;
                self.send_waiting(session).await;
            }
            None => {}
        }
    }

    /// Sends what waited for a session.
    async fn send_waiting(self: Arc<Self>, session: String) {
        loop {
            let next = self.routes.lock().next_waiting(&session);
            let Some((number, line)) = next else { return };
            self.send(number, &line).await;
        }
    }

    /// The number of the link to a server, which is opened if there is none.
    async fn link_to(self: &Arc<Self>, address: &str) -> Result<usize, String> {
        let _opening = self.opening.lock().await;
        let known = self.links.lock().iter().position(|link| link.address.as_deref() == Some(address));
        if let Some(number) = known {
            return Ok(number);
        }
        if self.links.lock().len() > LINKS_OF_CLIENT_MAX {
            return Err(format!("this client uses {LINKS_OF_CLIENT_MAX} other servers already"));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ids_above = self.routes.lock().ids_for_next(now.as_secs());
        let (stream, kept) = self.peers.link(address, ids_above).await?;
        let failed = |error: io::Error| format!("its messages can't be read: {error}");
        stream.set_nonblocking(true).map_err(failed)?;
        let (from_server, mut to_server) = AsyncStream::from_std(stream).map_err(failed)?.into_split();
        let mut from_server = BufReader::new(from_server);
        let greeting =
            self.routes.lock().greeting().ok_or("the client has not initialized the connection")?;
        let greeted = async {
            to_server.write_all(&greeting).await?;
            let mut lines = Vec::new();
            while read_message(&mut from_server, &mut lines).await? {
                let message = FrontendMessage::raw(&lines);
                if message.kind == MessageKind::Response && message.id == OWN_INITIALIZE {
                    return Ok(self.routes.lock().is_agreed(&lines));
                }
            }
            Err(io::ErrorKind::ConnectionAborted.into())
        };
        let greeted = timeout(GREETING_TIME_MAX, greeted).await.map_err(|_| "no answer in time")?;
        if !greeted.map_err(failed)? {
            return Err("it does not offer the version of the protocol that this client uses".to_owned());
        }
        let added = self.add(Some(address.to_owned()), from_server, to_server, kept);
        let number = added.ok_or("the client has gone")?;
        tracing::info!(address, "a client is forwarded");
        Ok(number)
    }
}

/// Reads a message as the daemon wrote it: a line, or a step with its updates. False at the end.
async fn read_message(reader: &mut BufReader<OwnedReadHalf>, lines: &mut Vec<u8>) -> io::Result<bool> {
    lines.clear();
    let mut left = 1;
    while left > 0 {
        let begin = lines.len();
        let room = MESSAGE_BYTES_MAX.saturating_sub(begin) as u64;
        (&mut *reader).take(room).read_until(b'\n', lines).await?;
        match lines.ends_with(b"\n") && lines.len() > begin {
            true => left += updates_after(&lines[begin..])?,
            false if lines.len() >= MESSAGE_BYTES_MAX => return Err(io::ErrorKind::InvalidData.into()),
            false => return Ok(false),
        }
        left -= 1;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a client left while its server was still connecting to the one that had its session open. The link was
    /// added to a connection that had ended, and nothing closed it: the other server went on asking a client that was gone.
    #[tokio::test]
    async fn a_link_that_is_ready_after_its_client_has_gone_is_closed() {
        let forwarding = Forwarding::new("ws://127.0.0.1:4711", None).expect("an address");
        let peers = Peers::Servers(Arc::new(forwarding), "made-up".to_owned());
        let connection = ForwardedConnection::new(peers, 0);
        let pair = || local::async_pair().expect("two sockets");
        let ((client, from_client), (home, mut daemon)) = (pair(), pair());
        let serving = tokio::spawn(connection.clone().serve(from_client, home));
        drop(client);
        daemon.read_to_end(&mut Vec::new()).await.expect("the client's end is passed on");
        drop(daemon);
        serving.await.expect("it does not panic");

        let (late, mut server) = pair();
        let (from_server, to_server) = late.into_split();
        let address = Some("ws://127.0.0.1:4712".to_owned());
        assert_eq!(connection.add(address, BufReader::new(from_server), to_server, None), None);
        let read = server.read_to_end(&mut Vec::new()).await.expect("it is closed");
        assert_eq!(read, 0);
    }
}
