//! The wire itself: lines in, lines out, on two blocking threads. Knows no method; what a line means
//! is the server's business.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::envelope;
use super::outlet::Outbox;
use super::post::Post;
use super::requests::first_id;
use super::server::{Parts, Pending, Server};
use epitome_session::port::SessionPort;

/// The longest line that is read, in bytes: a prompt with several large images.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A line buffer above this is given back after use, in bytes.
const KEPT_BUFFER_BYTES: usize = 1024 * 1024;

/// What is put together for one write, in bytes. More does not make writing faster, and a long replay
/// must not be held twice in memory.
const WRITE_BYTES: usize = 256 * 1024;

const READ_BUFFER_BYTES: usize = 64 * 1024;

/// How long running turns get to be recorded as interrupted when the client is gone. Editors kill
/// what has not ended after a second.
const SETTLE_TIME_MAX: Duration = Duration::from_millis(400);

/// How long a client that is going gets to read what is left.
const FLUSH_TIME_MAX: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    FromClient,
    ToClient,
}

/// Sees each line of both directions, without its line end, in the order of the wire. For recordings.
pub type Tap = Box<dyn FnMut(Direction, &[u8]) + Send>;

/// Why the connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The client closed its end.
    EndOfInput,
    /// Reading failed; nothing more can come.
    ReadFailed,
}

/// Serves one client: reads on this thread until the client closes its end, and writes on another.
/// Both ends must be blocking ones. When it returns, what was left was written, as far as the client
/// read it in time; turns that were running are recorded as interrupted.
pub fn serve<P: SessionPort>(
    reader: impl Read + Send,
    writer: impl Write + Send + 'static,
    parts: Parts<P>,
    tap: Option<Tap>,
) -> Exit {
    let connection = Connection::open(writer, parts, tap);
    let exit = connection.read(reader);
    connection.closer().close();
    exit
}

/// The client's ends of a connection inside this process, for tests and the demo.
pub struct Memory {
    /// What the client writes. Dropping it closes the connection.
    pub to_agent: PipeWriter,
    pub from_agent: BufReader<PipeReader>,
    pub served: JoinHandle<Exit>,
}

/// Serves a client over two pipes, on a thread of its own.
pub fn memory<P: SessionPort>(parts: Parts<P>, tap: Option<Tap>) -> std::io::Result<Memory> {
    let (agent_reads, to_agent) = std::io::pipe()?;
    let (from_agent, agent_writes) = std::io::pipe()?;
    let served = std::thread::spawn(move || serve(agent_reads, agent_writes, parts, tap));
    Ok(Memory { to_agent, from_agent: BufReader::new(from_agent), served })
}

/// One client's connection. `serve` is all that is usually needed; the parts are for callers that
/// must end a connection from another thread, on a signal.
pub struct Connection<P: SessionPort> {
    server: Server<P>,
    closer: Closer<P>,
    tap: SharedTap,
}

type SharedTap = Option<Arc<Mutex<Tap>>>;

impl<P: SessionPort> Connection<P> {
    /// Tells how much waits for the client to read, also after the connection's end.
    pub fn waiting(&self) -> impl Fn() -> usize + Send + Sync + use<P> {
        let outbox = self.closer.outbox.clone();
        move || outbox.waiting()
    }

    /// Starts the writer's thread.
    pub fn open(writer: impl Write + Send + 'static, parts: Parts<P>, tap: Option<Tap>) -> Connection<P> {
        // Any clock will do: the ids of our questions are made of it.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let outbox = Arc::new(Outbox::new(first_id(now, parts.ids_above)));
        let tap: SharedTap = tap.map(|tap| Arc::new(Mutex::new(tap)));
        let (background, held) = (Pending::new(), Pending::new());
        let closer = Closer {
            outbox: outbox.clone(),
            background: background.clone(),
            held: held.clone(),
            sessions: parts.sessions.clone(),
            client: parts.client,
            runtime: parts.runtime.clone(),
        };
        let (writer_tap, end) = (tap.clone(), WriterEnd(closer.clone()));
        std::thread::Builder::new()
            .name("acp-writer".to_owned())
            .spawn(move || {
                if let Err(error) = write_until_closed(&end.0.outbox, writer, &writer_tap) {
                    tracing::info!(%error, "the client does not read any more");
                    end.0.detach();
                }
            })
            .expect("the system can start one thread");
        Connection { server: Server::new(parts, outbox, background, held), closer, tap }
    }

    /// Reads until the client closes its end.
    pub fn read(&self, reader: impl Read) -> Exit {
        let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
            match read {
                Ok(0) => return Exit::EndOfInput,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "reading from the client failed");
                    return Exit::ReadFailed;
                }
            }
            if line.len() == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
                self.server.line_too_long();
                if let Err(error) = reader.skip_until(b'\n') {
                    tracing::warn!(%error, "reading from the client failed");
                    return Exit::ReadFailed;
                }
            } else {
                tell(&self.tap, Direction::FromClient, &line);
                self.server.receive(envelope::read(&line));
            }
            if line.capacity() > KEPT_BUFFER_BYTES {
                line = Vec::new();
            }
        }
    }

    /// A handle that ends the connection from another thread.
    pub fn closer(&self) -> Closer<P> {
        self.closer.clone()
    }
}

/// Ends a connection. Cheap to clone.
#[derive(Clone)]
pub struct Closer<P> {
    outbox: Arc<Outbox>,
    /// Requests that are answered from background threads.
    background: Pending,
    /// What sessions hold of this client.
    held: Pending,
    sessions: P,
    client: epitome_session::ClientId,
    runtime: tokio::runtime::Handle,
}

impl<P: SessionPort> Closer<P> {
    /// Detaches the client from its sessions and waits shortly until each has let it go, which a session does
    /// when its turn is recorded; then for its requests to be answered and for the client to read what is left.
    /// Must not be called on a thread of the runtime; calling it again is harmless.
    pub fn close(&self) {
        self.detach();
        let settled = async {
            self.held.settled().await;
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
        self.sessions.detach(self.client);
    }
}

/// Says that the writer has ended, however it did: nobody may wait for it then, and no turn may go on
/// that nobody can see.
struct WriterEnd<P: SessionPort>(Closer<P>);

impl<P: SessionPort> Drop for WriterEnd<P> {
    fn drop(&mut self) {
        self.0.outbox.ended();
        if std::thread::panicking() {
            self.0.detach();
        }
    }
}

/// Whatever has arrived goes out in one write, at once; nothing waits for a timer. While a write is
/// held up by the client, the outbox merges what comes.
fn write_until_closed(outbox: &Outbox, mut writer: impl Write, tap: &SharedTap) -> std::io::Result<()> {
    let mut post = Post::default();
    let mut items = VecDeque::new();
    let mut buffer = Vec::new();
    while let Some(traits) = outbox.take(&mut items) {
        while let Some(item) = items.pop_front() {
            post.write(item, &traits, outbox, &mut buffer);
            if buffer.len() < WRITE_BYTES && !items.is_empty() {
                continue;
            }
            if tap.is_some() {
                for line in buffer.split_inclusive(|byte| *byte == b'\n') {
                    tell(tap, Direction::ToClient, line);
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

fn tell(tap: &SharedTap, direction: Direction, line: &[u8]) {
    if let Some(tap) = tap {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut tap = tap.lock().unwrap_or_else(PoisonError::into_inner);
        (*tap)(direction, line);
    }
}
