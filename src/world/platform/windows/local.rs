//! Connections between processes of one user on this machine: named pipes that only this user may open.
//!
//! A file takes the place of the socket: it contains the name of the pipe, which is random, so that no other process can
//! create the pipe first.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle, IntoRawHandle, OwnedHandle};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::windows::named_pipe::NamedPipeClient;
use tokio::sync::{Mutex, mpsc};
use windows_sys::Win32::Foundation::{ERROR_PIPE_BUSY, INVALID_HANDLE_VALUE};
use windows_sys::Win32::Security::SECURITY_ATTRIBUTES;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_FIRST_PIPE_INSTANCE, FILE_FLAG_OVERLAPPED, PIPE_ACCESS_DUPLEX, PIPE_ACCESS_INBOUND,
    PIPE_ACCESS_OUTBOUND, SECURITY_IDENTIFICATION,
};
use windows_sys::Win32::System::Pipes::{
    CreateNamedPipeW, GetNamedPipeClientProcessId, PIPE_READMODE_BYTE, PIPE_REJECT_REMOTE_CLIENTS,
    PIPE_TYPE_BYTE, PIPE_TYPE_MESSAGE, PIPE_UNLIMITED_INSTANCES, PIPE_WAIT,
};

use super::os::{Pid, user_id};
use super::system::security;
pub use super::system::stream::Stream;
use super::system::stream::{Event, wait_for_client};

/// The prefix of the names of all pipes. Other names could lead to another machine.
const NAMES: &str = r"\\.\pipe\epitome-";

/// Bytes that a pipe takes before its writer waits.
const BUFFER_BYTES: u32 = 64 * 1024;

/// How long a client waits for a pipe whose clients are connected one after the other, and how often it tries.
const BUSY_TIME_MAX: Duration = Duration::from_secs(2);
const TRY_EVERY: Duration = Duration::from_millis(1);

/// Connections that wait until they are accepted.
const BACKLOG: usize = 64;

/// Delay before the listener tries again after an error.
const LISTEN_AGAIN: Duration = Duration::from_millis(50);

fn new_name() -> String {
    // Names are no secrets: only this user may open the pipes. They must not be guessed before the pipe exists.
    let random = || fastrand::Rng::new().u64(..);
    format!("{NAMES}{}-{:016x}{:016x}", std::process::id(), random(), random())
}

/// The purpose of a new pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PipeUse {
    Connections,
    /// From this process to a child, or the other way.
    ToChild,
    FromChild,
}

/// Creates a pipe, or another instance of the first one with this name.
pub(super) fn create(name: &str, is_first: bool, pipe_use: PipeUse) -> io::Result<OwnedHandle> {
    let attributes: SECURITY_ATTRIBUTES = security::for_this_user()?;
    let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
    let (access, kind) = match pipe_use {
        PipeUse::Connections => (PIPE_ACCESS_DUPLEX, PIPE_TYPE_MESSAGE),
        PipeUse::ToChild => (PIPE_ACCESS_OUTBOUND, PIPE_TYPE_BYTE),
        PipeUse::FromChild => (PIPE_ACCESS_INBOUND, PIPE_TYPE_BYTE),
    };
    let first = if is_first { FILE_FLAG_FIRST_PIPE_INSTANCE } else { 0 };
    // SAFETY: the name ends with a zero, and the attributes outlive the call.
    let pipe = unsafe {
        CreateNamedPipeW(
            name.as_ptr(),
            access | first | FILE_FLAG_OVERLAPPED,
            kind | PIPE_READMODE_BYTE | PIPE_WAIT | PIPE_REJECT_REMOTE_CLIENTS,
            PIPE_UNLIMITED_INSTANCES,
            BUFFER_BYTES,
            BUFFER_BYTES,
            0,
            &attributes,
        )
    };
    if pipe == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just created, and nothing else closes it.
    Ok(unsafe { OwnedHandle::from_raw_handle(pipe) })
}

/// Opens a pipe as a client. The server can't act in the name of this process.
fn open(name: &str, flags: u32) -> io::Result<OwnedHandle> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags).security_qos_flags(SECURITY_IDENTIFICATION);
    options.open(name).map(OwnedHandle::from)
}

/// Two connected ends.
pub fn pair() -> io::Result<(Stream, Stream)> {
    let name = new_name();
    let server = create(&name, true, PipeUse::Connections)?;
    Ok((Stream::new(server)?, Stream::new(open(&name, FILE_FLAG_OVERLAPPED)?)?))
}

/// The same, for the runtime.
pub fn async_pair() -> io::Result<(AsyncStream, AsyncStream)> {
    let (ours, theirs) = pair()?;
    Ok((AsyncStream::from_std(ours)?, AsyncStream::from_std(theirs)?))
}

/// Two connected ends, the second of which becomes a standard stream of a child: those are not overlapped.
pub fn pair_with_child() -> io::Result<(Stream, Stdio)> {
    let name = new_name();
    let server = create(&name, true, PipeUse::Connections)?;
    Ok((Stream::new(server)?, Stdio::from(open(&name, 0)?)))
}

/// A pipe whose other end is for a child.
pub(super) fn with_child(pipe_use: PipeUse) -> io::Result<(OwnedHandle, OwnedHandle)> {
    let name = new_name();
    let ours = create(&name, true, pipe_use)?;
    let mut options = OpenOptions::new();
    options.read(pipe_use == PipeUse::ToChild).write(pipe_use == PipeUse::FromChild);
    Ok((ours, options.security_qos_flags(SECURITY_IDENTIFICATION).open(&name)?.into()))
}

pub fn connect(path: &Path) -> io::Result<Stream> {
    let name = std::fs::read_to_string(path)?;
    if !name.starts_with(NAMES) {
        let nobody = format!("{} does not name a pipe of Epitome", path.display());
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, nobody));
    }
    let began = Instant::now();
    loop {
        match open(&name, FILE_FLAG_OVERLAPPED) {
            Ok(pipe) => return Stream::new(pipe),
            // The process that listened on it is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Err(error) if error.raw_os_error() == Some(ERROR_PIPE_BUSY.cast_signed()) => {
                if began.elapsed() > BUSY_TIME_MAX {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                std::thread::sleep(TRY_EVERY);
            }
            Err(error) => return Err(error),
        }
    }
}

pub async fn connect_async(path: &Path) -> io::Result<AsyncStream> {
    let path = path.to_path_buf();
    let connected = tokio::task::spawn_blocking(move || connect(&path)).await;
    AsyncStream::from_std(connected.unwrap_or_else(|error| Err(io::Error::other(error)))?)
}

/// The process at the other end of a connection.
pub struct PeerProcess {
    /// The number of its user: others can't connect.
    pub user: u32,
    pub process: Option<Pid>,
}

pub fn peer(stream: &AsyncStream) -> io::Result<PeerProcess> {
    let mut process = 0;
    // SAFETY: the pipe is open, and the result is written to a local variable.
    if unsafe { GetNamedPipeClientProcessId(stream.end.pipe().as_raw_handle(), &mut process) } == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerProcess { user: user_id(), process: Some(Pid::from_number(process)) })
}

/// Whether the other end neither writes nor reads any more. A pipe that was closed looks the same as one whose process has
/// died, so it is never said to have died.
pub fn has_hung_up(_: &Stream, _: std::time::Duration) -> bool {
    false
}

/// Waits until the other end, which writes no more, does not read any more either.
pub async fn closed(stream: &AsyncStream) {
    // The pipe breaks.
    let Ok(pipe) = stream.registered() else { return };
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// A pipe created by this process, which listens on it.
pub struct Socket {
    path: PathBuf,
    name: String,
    connections: Arc<Mutex<mpsc::Receiver<Stream>>>,
    closed: Arc<Event>,
}

impl Socket {
    /// Creates a pipe and listens on it. Fails if the path exists.
    pub fn listen(path: &Path) -> io::Result<Socket> {
        let name = new_name();
        let first = create(&name, true, PipeUse::Connections)?;
        OpenOptions::new().write(true).create_new(true).open(path)?.write_all(name.as_bytes())?;
        let (sender, connections) = mpsc::channel(BACKLOG);
        let closed = Arc::new(Event::new()?);
        let (listened, ends) = (name.clone(), closed.clone());
        std::thread::Builder::new()
            .name("pipe-listener".to_owned())
            .spawn(move || accept(&listened, first, &sender, &ends))?;
        Ok(Socket { path: path.to_path_buf(), name, connections: Arc::new(Mutex::new(connections)), closed })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether connections to the path still reach this pipe.
    pub fn is_found(&self) -> bool {
        std::fs::read_to_string(&self.path).is_ok_and(|name| name == self.name)
    }

    /// Removes the file if it still names this pipe.
    pub fn remove(&self) -> io::Result<()> {
        if self.is_found() { std::fs::remove_file(&self.path) } else { Ok(()) }
    }

    /// A handle for the runtime, to wait for connections.
    pub fn for_runtime(&self) -> io::Result<AsyncListener> {
        Ok(AsyncListener(self.connections.clone()))
    }

    /// Accepts a connection that is waiting. The error is `WouldBlock` if there is none.
    pub fn accept_at_once(&self) -> io::Result<AsyncStream> {
        let none = io::ErrorKind::WouldBlock;
        let mut connections = self.connections.try_lock().map_err(|_| none)?;
        AsyncStream::from_std(connections.try_recv().map_err(|_| none)?)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.closed.set();
    }
}

/// Accepts clients until the socket is closed. There is always an instance of the pipe that a client can open, or is about
/// to be one.
fn accept(name: &str, first: OwnedHandle, sender: &mpsc::Sender<Stream>, closed: &Event) {
    let mut next = Ok(first);
    loop {
        let accepted = next.and_then(|pipe| Ok(wait_for_client(&pipe, closed)?.then_some(pipe)));
        next = create(name, false, PipeUse::Connections);
        match accepted.and_then(|pipe| pipe.map(Stream::new).transpose()) {
            Ok(Some(stream)) => match sender.blocking_send(stream) {
                Ok(()) => {}
                Err(_) => return,
            },
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "a client of a pipe could not be accepted");
                std::thread::sleep(LISTEN_AGAIN);
            }
        }
    }
}

/// A pipe that the runtime listens on.
pub struct AsyncListener(Arc<Mutex<mpsc::Receiver<Stream>>>);

impl AsyncListener {
    pub async fn accept(&self) -> io::Result<AsyncStream> {
        let accepted = self.0.lock().await.recv().await;
        AsyncStream::from_std(accepted.ok_or(io::ErrorKind::BrokenPipe)?)
    }
}

/// A connection for the runtime, with which it is registered when it is first used.
#[derive(Debug)]
pub struct AsyncStream {
    end: Stream,
    registered: OnceLock<Result<NamedPipeClient, io::ErrorKind>>,
}

impl AsyncStream {
    pub fn from_std(end: Stream) -> io::Result<AsyncStream> {
        Ok(AsyncStream { end, registered: OnceLock::new() })
    }

    /// Fails after its first use: the runtime may have read from it.
    pub fn into_std(self) -> io::Result<Stream> {
        match self.registered.get() {
            None => Ok(self.end),
            Some(_) => Err(io::Error::other("the connection is in use")),
        }
    }

    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let shared = Arc::new(self);
        (OwnedReadHalf(shared.clone()), OwnedWriteHalf(shared))
    }

    /// Both ends of a pipe are used in the same way.
    fn registered(&self) -> io::Result<&NamedPipeClient> {
        let register = || {
            let pipe = self.end.pipe().try_clone()?;
            // SAFETY: it was opened for overlapped operations, and the runtime owns this handle.
            unsafe { NamedPipeClient::from_raw_handle(pipe.into_raw_handle()) }
        };
        let registered = self.registered.get_or_init(|| register().map_err(|error: io::Error| error.kind()));
        registered.as_ref().map_err(|kind| (*kind).into())
    }

    fn poll_read(&self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let pipe = self.registered()?;
        loop {
            ready!(pipe.poll_read_ready(context))?;
            match pipe.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(length) => {
                    buffer.advance(length);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // No bytes would end the connection.
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let pipe = self.registered()?;
        loop {
            ready!(pipe.poll_write_ready(context))?;
            match pipe.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn end_writing(&self) -> io::Result<()> {
        self.end.shutdown(std::net::Shutdown::Write)
    }
}

/// The reading side of a connection.
#[derive(Debug)]
pub struct OwnedReadHalf(Arc<AsyncStream>);

impl AsRef<AsyncStream> for OwnedReadHalf {
    fn as_ref(&self) -> &AsyncStream {
        &self.0
    }
}

/// The writing side of a connection. Once it is dropped, the other end reads the end of the stream.
#[derive(Debug)]
pub struct OwnedWriteHalf(Arc<AsyncStream>);

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        // The other end may be gone.
        let _ = self.0.end_writing();
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        (*self).poll_read(context, buffer)
    }
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.poll_read(context, buffer)
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        (*self).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.end_writing())
    }
}

impl AsyncWrite for OwnedWriteHalf {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.end_writing())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::net::Shutdown;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn an_end_that_writes_no_more_still_reads() {
        let (mut one, mut other) = pair().expect("a pair");
        one.write_all(b"question\n").expect("open");
        one.shutdown(Shutdown::Write).expect("open");
        let mut text = String::new();
        other.read_to_string(&mut text).expect("the end is seen");
        assert_eq!(text, "question\n");
        other.write_all(b"answer\n").expect("open");
        drop(other);
        text.clear();
        one.read_to_string(&mut text).expect("the end is seen");
        assert_eq!(text, "answer\n");
    }

    /// Windows lets a write on an ordinary pipe wait until a running read has ended.
    #[test]
    fn a_waiting_read_stops_no_write() {
        let (one, mut other) = pair().expect("a pair");
        let reading = one.try_clone().expect("shared");
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(reading).read_line(&mut line).map(|_| line)
        });
        (&one).write_all(b"x").expect("open");
        other.read_exact(&mut [0]).expect("it arrives");
        other.write_all(b"line\n").expect("open");
        assert_eq!(reader.join().expect("no panic").expect("read"), "line\n");
    }

    #[test]
    fn a_read_ends_at_its_timeout_and_when_it_is_stopped() {
        let (mut one, _other) = pair().expect("a pair");
        one.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
        assert_eq!(one.read(&mut [0]).expect_err("nothing comes").kind(), io::ErrorKind::TimedOut);
        one.set_read_timeout(None).expect("set");
        let mut reading = one.try_clone().expect("shared");
        let reader = std::thread::spawn(move || reading.read(&mut [0]));
        one.shutdown(Shutdown::Read).expect("open");
        assert_eq!(reader.join().expect("no panic").expect("stopped"), 0);
    }

    #[tokio::test]
    async fn clients_find_a_socket_by_its_file_until_it_is_gone() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("a.sock");
        assert_eq!(connect(&path).expect_err("nobody listens").kind(), io::ErrorKind::NotFound);
        let socket = Socket::listen(&path).expect("nobody else listens");
        assert!(Socket::listen(&path).is_err(), "the path is taken");
        let listener = socket.for_runtime().expect("a handle");
        let mut ends = Vec::new();
        for _ in 0..3 {
            let mut client = connect_async(&path).await.expect("it listens");
            client.write_all(b"?").await.expect("open");
            let server = listener.accept().await.expect("a client");
            let peer = peer(&server).expect("it is connected");
            assert_eq!(peer.process, Some(Pid::from_number(std::process::id())));
            let (mut reading, mut writing) = server.into_split();
            let mut byte = [0];
            reading.read_exact(&mut byte).await.expect("it arrives");
            writing.write_all(b"!").await.expect("open");
            client.read_exact(&mut byte).await.expect("it arrives");
            assert_eq!(&byte, b"!");
            client.shutdown().await.expect("open");
            assert_eq!(reading.read(&mut byte).await.expect("the end is seen"), 0);
            ends.push((client, reading, writing));
        }
        let (client, reading, _writing) = ends.pop().expect("three");
        drop(client);
        closed(reading.as_ref()).await;
        assert!(socket.is_found());
        socket.remove().expect("its own");
        drop((socket, listener));
        assert!(!path.exists());
        std::fs::write(&path, new_name()).expect("written");
        assert_eq!(connect(&path).expect_err("a leftover").kind(), io::ErrorKind::ConnectionRefused);
        std::fs::write(&path, r"\\elsewhere\pipe\epitome-1").expect("written");
        assert_eq!(connect(&path).expect_err("another machine").kind(), io::ErrorKind::ConnectionRefused);
    }

    #[tokio::test]
    async fn a_connection_is_used_without_the_runtime_before_its_first_use() {
        let (ours, theirs) = async_pair().expect("a pair");
        let mut ours = ours.into_std().expect("not used");
        let (mut reading, writing) = theirs.into_split();
        ours.write_all(b"a line\n").expect("open");
        let mut line = [0; 7];
        reading.read_exact(&mut line).await.expect("it arrives");
        drop(writing);
        assert_eq!(ours.read(&mut [0]).expect("the end is seen"), 0);
    }
}
