//! A worker: offers the daemon of this machine to the clients of a server. It dials the server, so that no port of this
//! machine has to be reachable.
//!
//! One socket waits at the server for a client. Once it is used, the next one is dialled.

use std::io;
use std::net::Shutdown;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderValue;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::dial::{DialError, RemoteServerAddress, Transport, is_passing};
use super::remote::{INSTANCE_HEADER, NewConnector, WORKER_HEADER, address_of, end_clients};
use super::tunnel::{Tunnel, TunnelAnswer, TunnelRequest, worker_protocol};
use crate::build::VERSION;
use crate::remote_tokens::check_name;
use crate::token::secret;
use epitome_platform::local::{self, AsyncStream};

/// Characters of the random part of an address.
const INSTANCE_CHARS: usize = 16;

const CLIENTS_MAX: usize = 32;

/// Delay before the first attempt to connect again; it doubles with each.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The longest such delay. Clients wait longer for a worker that has vanished.
const TRY_AGAIN_MAX: Duration = Duration::from_secs(15);

/// A connection that lasted this long was no failed attempt.
const LASTED: Duration = Duration::from_secs(30);

/// The name of a worker, as it is sent in a header.
#[derive(Clone, Debug)]
pub struct WorkerName(pub(super) HeaderValue);

impl FromStr for WorkerName {
    type Err = String;

    fn from_str(name: &str) -> Result<WorkerName, String> {
        check_name("a worker", name)?;
        HeaderValue::from_str(name).map(WorkerName).map_err(|_| "a worker's name is ASCII".to_owned())
    }
}

/// See the module.
pub struct Worker {
    server: RemoteServerAddress,
    name: WorkerName,
    /// Distinguishes it from others with the same name.
    instance: String,
    directories: Vec<PathBuf>,
    connector: NewConnector,
    slots: Arc<Semaphore>,
    clients: Mutex<JoinSet<()>>,
    /// Whether the connections of clients are to be closed.
    closing: watch::Sender<bool>,
}

/// The daemon's end of a tunnel.
struct DaemonEnd {
    stream: local::Stream,
    /// Another handle, which closes one direction.
    writer: Arc<local::Stream>,
    version: String,
}

impl Worker {
    /// `directories`: the real paths below which sessions may work. An error is a sentence for the user.
    pub fn new(
        server: RemoteServerAddress,
        name: WorkerName,
        directories: Vec<PathBuf>,
        connector: NewConnector,
    ) -> Result<Worker, String> {
        let mut instance = secret().map_err(|error| format!("no id can be made: {error}"))?;
        instance.truncate(INSTANCE_CHARS);
        let slots = Arc::new(Semaphore::new(CLIENTS_MAX));
        let (clients, closing) = (Mutex::default(), watch::Sender::new(false));
        Ok(Worker { server, name, instance, directories, connector, slots, clients, closing })
    }

    /// Serves clients until the server refuses this worker, which is the error. `report`: shows sentences to the user.
    pub async fn serve(&self, report: impl Fn(&str)) -> Result<(), String> {
        let instance = HeaderValue::from_str(&self.instance).map_err(|error| error.to_string())?;
        let mut pause = TRY_AGAIN;
        let mut last_report = String::new();
        let mut report_change = |text: String| {
            if text != last_report {
                report(&text);
                last_report = text;
            }
        };
        loop {
            // The semaphore is never closed.
            let permit = self.slots.clone().acquire_owned().await.map_err(|error| error.to_string())?;
            let headers = vec![(WORKER_HEADER, self.name.0.clone()), (INSTANCE_HEADER, instance.clone())];
            let why = match self.server.connect(&worker_protocol(), headers).await {
                Ok((socket, progress, _)) => {
                    report_change("connected to the server, whose clients can use this worker".to_owned());
                    let connected = Instant::now();
                    let mut tunnel = Tunnel::new(socket, progress);
                    if let Some(request) = tunnel.request().await {
                        pause = TRY_AGAIN;
                        let client = self.serve_client(tunnel, request);
                        let mut clients = self.clients.lock();
                        while clients.try_join_next().is_some() {}
                        clients.spawn(async move {
                            client.await;
                            drop(permit);
                        });
                        continue;
                    }
                    if connected.elapsed() > LASTED {
                        pause = TRY_AGAIN;
                    }
                    "the connection to the server is lost".to_owned()
                }
                Err(DialError::Refused(status, text)) if !is_passing(status) => {
                    return Err(DialError::Refused(status, text).to_string());
                }
                Err(error) => error.to_string(),
            };
            report_change(format!(
                "{why}; trying again, at intervals of up to {} s",
                TRY_AGAIN_MAX.as_secs()
            ));
            drop(permit);
            sleep(pause).await;
            pause = (pause * 2).min(TRY_AGAIN_MAX);
        }
    }

    /// Checks that the daemon can be used, and lets it know where its sessions are reached. An error is a sentence.
    pub fn check_daemon(&self) -> Result<(), String> {
        let mut connector = (self.connector)()?;
        connector.advertise(&self.address());
        connector.attach(0).map(drop)
    }

    fn address(&self) -> String {
        address_of(self.name.0.to_str().unwrap_or_default(), &self.instance)
    }

    /// Attaches a client to the daemon, and carries its bytes.
    fn serve_client(
        &self,
        mut tunnel: Tunnel<Box<dyn Transport>>,
        request: TunnelRequest,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (connector, directories) = (self.connector.clone(), self.directories.clone());
        let address = self.address();
        let mut closing = self.closing.subscribe();
        async move {
            let attaching =
                tokio::task::spawn_blocking(move || attach(&connector, &address, directories, request));
            let attached = tunnel.while_attaching(attaching).await;
            let attached = attached.unwrap_or_else(|error| Err(error.to_string()));
            let answer = match &attached {
                Ok(end) => TunnelAnswer { version: end.version.clone(), refused: None },
                Err(why) => TunnelAnswer { version: VERSION.to_owned(), refused: Some(why.clone()) },
            };
            let is_heard = tunnel.say(&answer).await;
            let (true, Ok(DaemonEnd { stream, writer, .. })) = (is_heard, attached) else {
                return tunnel.close().await;
            };
            let local = match AsyncStream::from_std(stream) {
                Ok(local) => local,
                Err(error) => return tracing::error!(%error, "a client can't be served"),
            };
            let close = async {
                // The sender is owned by the worker.
                if closing.wait_for(|closing| *closing).await.is_ok() {
                    // Fails if the daemon has ended.
                    drop(writer.shutdown(Shutdown::Write));
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                _ = tunnel.carry(local, None) => {}
                () = close => {}
            }
        }
    }

    /// Waits at most this long for the running turns of its clients, and closes their connections. A daemon that nobody
    /// else uses ends as well. Returns how many turns were cancelled. An error is a sentence.
    pub async fn end(&self, limit: Duration) -> Result<usize, String> {
        let runtime_dir = (self.connector)()?.runtime_dir().clone();
        let close = async |_| {
            self.closing.send_replace(true);
        };
        end_clients(&runtime_dir, Instant::now() + limit, close).await
    }
}

fn attach(
    connector: &NewConnector,
    address: &str,
    directories: Vec<PathBuf>,
    TunnelRequest { mut grant, ids_above }: TunnelRequest,
) -> Result<DaemonEnd, String> {
    let mut connector = connector()?;
    grant.directories = directories;
    connector.restrict(grant);
    connector.advertise(address);
    let link = connector.attach(ids_above)?;
    let (writer, version) = (link.writer.clone(), link.version.clone());
    let stream = link.into_stream().map_err(|error: io::Error| format!("a socket can't be used: {error}"))?;
    Ok(DaemonEnd { stream, writer, version })
}
