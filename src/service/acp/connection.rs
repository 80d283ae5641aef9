//! The transport: lines in, lines out, on two blocking threads. It knows no methods; the server interprets
//! the lines.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::envelope;
pub use super::envelope::LINE_BYTES_MAX;
use super::outbox::Outbox;
use super::requests::first_id;
use super::server::{AcpServer, ConnectionConfig, PendingCount};
use super::writer::UpdateWriter;
use epitome_session_api::port::{SessionPort, StoredSessionPort};

/// A line buffer that grew beyond this many bytes is freed after use.
const KEPT_BUFFER_BYTES: usize = 1024 * 1024;

/// Bytes collected for one write. Larger writes are no faster, and a long replay must not be in memory twice.
const WRITE_BYTES: usize = 256 * 1024;

const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Time limit for recording running turns as interrupted after the client has disconnected. Editors kill
/// processes that have not exited after a second.
const SETTLE_TIME_MAX: Duration = Duration::from_millis(400);

/// Time limit for a disconnecting client to read the remaining output.
const FLUSH_TIME_MAX: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineDirection {
    FromClient,
    ToClient,
}

/// Called with each line in both directions, without its newline, in wire order. Used for recordings.
pub type Tap = Box<dyn FnMut(LineDirection, &[u8]) + Send>;

/// Why the connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionExit {
    /// The client closed its end.
    EndOfInput,
    /// Reading failed.
    ReadFailed,
}

/// One client's connection. Both ends must be blocking.
pub struct Connection<P: StoredSessionPort> {
    server: AcpServer<P>,
    closer: ConnectionCloser<P>,
    tap: SharedTap,
}

type SharedTap = Option<Arc<Mutex<Tap>>>;

impl<P: StoredSessionPort> Connection<P> {
    /// Returns a function that counts the items queued for the client, and names it. It can still be called after the
    /// connection has ended.
    pub fn client_now(&self) -> impl Fn() -> (usize, Option<String>) + Send + Sync + use<P> {
        let outbox = self.closer.outbox.clone();
        move || outbox.client_now()
    }

    /// Starts the writer thread.
    pub fn open(
        writer: impl Write + Send + 'static,
        config: ConnectionConfig<P>,
        tap: Option<Tap>,
    ) -> Connection<P> {
        // Any clock will do: it only seeds the ids of requests to the client.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let outbox = Arc::new(Outbox::new(first_id(now, config.ids_above)));
        let tap: SharedTap = tap.map(|tap| Arc::new(Mutex::new(tap)));
        let (background, unreleased) = (PendingCount::new(), PendingCount::new());
        let closer = ConnectionCloser {
            outbox: outbox.clone(),
            background: background.clone(),
            unreleased: unreleased.clone(),
            sessions: config.sessions.clone(),
            client: config.client,
            runtime: config.runtime.clone(),
        };
        let (writer_tap, end) = (tap.clone(), WriterEnd(closer.clone()));
        let updates = UpdateWriter::new(config.positions);
        // Clients of other machines may return; the code that reads from them decides.
        let is_local = config.grant.is_none();
        std::thread::Builder::new()
            .name("acp-writer".to_owned())
            .spawn(move || {
                if let Err(error) = write_until_closed(&end.0.outbox, updates, writer, &writer_tap) {
                    tracing::info!(%error, "the client does not read any more");
                    if is_local {
                        end.0.detach();
                    }
                }
            })
            .expect("the system can start one thread");
        Connection { server: AcpServer::new(config, outbox, background, unreleased), closer, tap }
    }

    /// Reads until the client closes its end.
    pub fn read(&self, reader: impl Read) -> ConnectionExit {
        match self.read_lines(reader) {
            Ok(()) => ConnectionExit::EndOfInput,
            Err(error) => {
                tracing::warn!(%error, "reading from the client failed");
                ConnectionExit::ReadFailed
            }
        }
    }

    fn read_lines(&self, reader: impl Read) -> std::io::Result<()> {
        let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
        let mut line = Vec::new();
        while reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)? > 0 {
            if line.len() == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
                self.server.line_too_long(&envelope::outline(&line, &mut reader)?);
            } else {
                tap_line(&self.tap, LineDirection::FromClient, &line);
                self.server.receive(envelope::read(&line));
            }
            line.clear();
            if line.capacity() > KEPT_BUFFER_BYTES {
                line = Vec::new();
            }
        }
        Ok(())
    }

    /// Returns a handle that ends the connection from another thread.
    pub fn closer(&self) -> ConnectionCloser<P> {
        self.closer.clone()
    }
}

/// Ends a connection. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionCloser<P> {
    outbox: Arc<Outbox>,
    /// Requests that run on background threads.
    background: PendingCount,
    /// Attachments of this client that sessions have not released yet.
    unreleased: PendingCount,
    sessions: P,
    client: epitome_session_api::ClientId,
    runtime: tokio::runtime::Handle,
}

impl<P: SessionPort> ConnectionCloser<P> {
    /// Detaches the client from its sessions. Waits a bounded time for each session to release it (once its turn is
    /// recorded) and for pending requests to be answered, and then for the client to read the remaining output. Must
    /// not be called on a runtime thread. Repeated calls have no effect.
    pub fn close(&self) {
        self.detach();
        let settled = async {
            self.unreleased.settled().await;
            self.background.settled().await;
        };
        let in_time =
            self.runtime.block_on(async { tokio::time::timeout(SETTLE_TIME_MAX, settled).await.is_ok() });
        if !in_time {
            tracing::warn!("a turn or a request did not end in time");
        }
        self.outbox.close();
        if !self.outbox.wait_until_ended(FLUSH_TIME_MAX) {
            tracing::warn!("the client did not read what was left for it");
        }
    }

    fn detach(&self) {
        // First: a request in the background may be about to open another session for it.
        self.outbox.leave();
        self.sessions.detach(self.client);
    }
}

/// A connection without threads: the caller moves the bytes. For simulations, which control the order of all events.
pub struct Inline<P: StoredSessionPort> {
    server: AcpServer<P>,
    outbox: Arc<Outbox>,
    updates: UpdateWriter,
}

impl<P: StoredSessionPort> Inline<P> {
    pub fn new(config: ConnectionConfig<P>) -> Inline<P> {
        let outbox = Arc::new(Outbox::new(first_id(0, config.ids_above)));
        let updates = UpdateWriter::new(config.positions);
        let server = AcpServer::new(config, outbox.clone(), PendingCount::new(), PendingCount::new());
        Inline { server, outbox, updates }
    }

    /// Handles a line from the client.
    pub fn receive(&self, line: &[u8]) {
        self.server.receive(envelope::read(line));
    }

    /// Appends everything that is queued for the client.
    pub fn write(&mut self, buffer: &mut Vec<u8>) {
        let mut items = VecDeque::new();
        if self.outbox.client_now().0 > 0
            && let Some(traits) = self.outbox.take(&mut items)
        {
            for item in items {
                self.updates.write(item, &traits, &self.outbox, buffer);
            }
        }
    }
}

/// Marks the writer as ended when dropped, even by a panic, so that no thread keeps waiting for it and no turn
/// continues whose output can't be delivered.
struct WriterEnd<P: SessionPort>(ConnectionCloser<P>);

impl<P: SessionPort> Drop for WriterEnd<P> {
    fn drop(&mut self) {
        self.0.outbox.ended();
        if std::thread::panicking() {
            self.0.detach();
        }
    }
}

/// Writes everything that is queued in one write, immediately; there is no timer. While a write blocks on the client,
/// the outbox merges new items.
fn write_until_closed(
    outbox: &Outbox,
    mut updates: UpdateWriter,
    mut writer: impl Write,
    tap: &SharedTap,
) -> std::io::Result<()> {
    let mut items = VecDeque::new();
    let mut buffer = Vec::new();
    while let Some(traits) = outbox.take(&mut items) {
        while let Some(item) = items.pop_front() {
            updates.write(item, &traits, outbox, &mut buffer);
            if buffer.len() < WRITE_BYTES && !items.is_empty() {
                continue;
            }
            if tap.is_some() {
                for line in buffer.split_inclusive(|byte| *byte == b'\n') {
                    tap_line(tap, LineDirection::ToClient, line);
                }
            }
            writer.write_all(&buffer)?;
            writer.flush()?;
            buffer.clear();
            if buffer.capacity() > KEPT_BUFFER_BYTES {
                buffer = Vec::new();
            }
        }
    }
    Ok(())
}

fn tap_line(tap: &SharedTap, direction: LineDirection, line: &[u8]) {
    if let Some(tap) = tap {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut tap = tap.lock();
        (*tap)(direction, line);
    }
}
