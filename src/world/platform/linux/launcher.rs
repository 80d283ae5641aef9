//! A helper process that starts sandboxed commands.
//!
//! A sandbox takes three forks, each of which copies the page tables of its parent, and its first process lives as
//! long as the command, next to it. The daemon is large and has keys in its memory, so it must not be that parent.
//! The helper is Epitome's executable, started once with a hidden argument and an empty environment; it contains no
//! secrets and forks fast.
//!
//! A request is a message on the helper's standard input with descriptors: a file with the text of the request, a pipe
//! for errors, the command's three standard streams, and the reaper's pipe. The reply is the number of the command's
//! process. That process is a child of the daemon, not of the helper (`CLONE_PARENT`), so that it is waited for like any
//! other. It prepares and enters the sandbox and executes the command; what fails before is written to the error pipe,
//! which closes unused when the command's program starts.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, setrlimit, setsid};

use super::sandbox::{enter, prepare_filters};
use crate::group::{EndPolicy, RunningCommand};
use crate::leader::Leader;
use crate::reaper::{AnnouncementKey, DESCRIPTORS_BEFORE, LINE_BYTES, Reaper, announcement};
use crate::sandbox::{Confinement, Namespaces, SandboxAllowances, SandboxPaths, Support};
use crate::signals::unblock_all;

/// The hidden argument: `epitome __launch`.
pub const LAUNCH_ARGUMENT: &str = "__launch";

/// Number of descriptors of one request.
const DESCRIPTORS_MAX: usize = 6;

/// Timeout for the helper's reply, which takes it a fork. A stopped or stuck helper is replaced.
const REPLY_WAIT: Duration = Duration::from_secs(10);

/// Maximum bytes of an error that is reported; it names one file.
const ERROR_BYTES_MAX: u64 = 16 * 1024;

/// The connection to the helper process.
#[derive(Default)]
pub(crate) struct Launcher(Option<(Child, OwnedFd)>);

/// A command to be started in a sandbox.
struct Request {
    pub key: AnnouncementKey,
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// The variables in the form `NAME=value`.
    pub environment: Vec<OsString>,
    /// The limit of open files, if it differs from the helper's.
    pub descriptors: Option<Rlimit>,
    pub confinement: Confinement,
}

/// A command whose process exists.
struct Launched {
    pub process: Pid,
    errors: OwnedFd,
}

impl Launched {
    /// Waits until the command's program runs. On error, the process has ended and must still be reaped.
    pub fn wait(self) -> io::Result<()> {
        let mut error = Vec::new();
        File::from(self.errors).take(ERROR_BYTES_MAX).read_to_end(&mut error)?;
        match error.split_first_chunk() {
            None if error.is_empty() => Ok(()),
            Some((code, [])) => Err(io::Error::from_raw_os_error(i32::from_le_bytes(*code))),
            _ => Err(io::Error::other(String::from_utf8_lossy(&error[error.len().min(4)..]).into_owned())),
        }
    }
}

/// Starts a marked command in its sandbox. Needs the helper's executable.
pub(crate) fn spawn(
    reaper: &Arc<Reaper>,
    launcher: &Mutex<Launcher>,
    command: &Command,
    streams: [BorrowedFd<'_>; 3],
    policy: EndPolicy,
    confinement: Confinement,
) -> io::Result<RunningCommand> {
    let helper = reaper.program.as_ref().ok_or_else(|| {
        io::Error::other("the sandbox needs a helper process, and there is no executable for it")
    })?;
    let starting = reaper.starting.read();
    let (key, mark, pipe) = reaper.prepare();
    let variable = |(name, value): (&OsStr, Option<&OsStr>)| {
        let mut variable = name.to_os_string();
        variable.push("=");
        variable.push(value?);
        Some(variable)
    };
    let mut environment: Vec<OsString> = command.get_envs().filter_map(variable).collect();
    environment.push(mark.variable());
    let request = Request {
        key,
        program: command.get_program().to_os_string(),
        arguments: command.get_args().map(OsStr::to_os_string).collect(),
        environment,
        descriptors: DESCRIPTORS_BEFORE.get().copied(),
        confinement,
    };
    let launched = {
        let mut launcher = launcher.lock();
        launcher.launch(helper, &request, streams, pipe.as_ref().map(AsFd::as_fd))
    };
    let launched = launched.inspect_err(|_| reaper.forget(key))?;
    let group = launched.process;
    reaper.add(key, group, policy, true);
    drop(starting);
    if let Err(error) = launched.wait() {
        reaper.forget(key);
        // The process has ended or is about to: it does nothing after reporting the error.
        let _ = rustix::process::waitpid(Some(group), WaitOptions::empty());
        return Err(error);
    }
    // No process outlives its process namespace, so none has to be searched for.
    let searched = (!request.confinement.support.own_processes).then_some(mark);
    RunningCommand::new(Leader::new(group, searched), policy, reaper.clone(), key)
}

impl Launcher {
    /// Starts a command with these standard streams; its process group is announced on `reaper`.
    fn launch(
        &mut self,
        helper: &Path,
        request: &Request,
        streams: [BorrowedFd<'_>; 3],
        reaper: Option<BorrowedFd<'_>>,
    ) -> io::Result<Launched> {
        let text = rustix::fs::memfd_create(c"request", MemfdFlags::CLOEXEC)?;
        File::from(text.try_clone()?).write_all(&request.encode())?;
        let (errors, errors_written) = io::pipe()?;
        let mut descriptors = vec![text.as_fd(), errors_written.as_fd()];
        descriptors.extend(streams);
        descriptors.extend(reaper);
        let process = match self.0.as_ref().map(|(_, socket)| send(socket, &descriptors)) {
            Some(Ok(())) => self.receive(),
            // There is no helper, or it was killed: an unreceived request can be sent again.
            Some(Err(_)) | None => {
                self.end();
                let (child, socket) = start(helper)?;
                let sent = send(&socket, &descriptors);
                self.0 = Some((child, socket));
                sent.and_then(|()| self.receive())
            }
        };
        // Replace a helper that did not reply correctly.
        let process = process.inspect_err(|_| self.end())?;
        Ok(Launched { process: process?, errors: errors.into() })
    }

    /// Returns the number of the started process, or the helper's error.
    fn receive(&self) -> io::Result<io::Result<Pid>> {
        let (_, socket) = self.0.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut reply = [0; 4];
        let length = loop {
            match rustix::net::recv(socket, &mut reply, RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                length => break length?.0,
            }
        };
        match (length, i32::from_le_bytes(reply)) {
            (4, number) if let Some(process) = Pid::from_raw(number).filter(|_| number > 0) => {
                Ok(Ok(process))
            }
            (4, number) => Ok(Err(io::Error::from_raw_os_error(number.saturating_neg()))),
            _ => Err(io::Error::other("the helper process that starts commands has ended")),
        }
    }

    fn end(&mut self) {
        if let Some((mut child, _)) = self.0.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.end();
    }
}

fn start(helper: &Path) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_timeout(&ours, rustix::net::sockopt::Timeout::Recv, Some(REPLY_WAIT))?;
    let child = Command::new(helper)
        .arg0(OsStr::new("epitome"))
        .arg(LAUNCH_ARGUMENT)
        // A separate group: an editor may end the daemon's group while commands should continue.
        .process_group(0)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((child, ours))
}

fn send(socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"+")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Runs the helper process and returns its exit code.
///
/// `main` calls this before anything else if the first argument is `LAUNCH_ARGUMENT`: while it has one thread, its
/// forks may call any function.
pub fn launch_main() -> i32 {
    prepare_filters();
    let socket = io::stdin();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Err(Errno::INTR) => continue,
            Ok(message) if message.bytes > 0 => {}
            // The daemon has ended.
            Ok(_) | Err(_) => return 0,
        }
        let descriptors: Vec<OwnedFd> = control
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
                _ => Vec::new(),
            })
            .collect();
        let reply = match fork_for_parent() {
            Ok(0) => run(descriptors),
            Ok(process) => process,
            Err(error) => error.raw_os_error().unwrap_or(libc::EIO).saturating_neg(),
        };
        drop(descriptors);
        if rustix::net::send(&socket, &reply.to_le_bytes(), SendFlags::NOSIGNAL).is_err() {
            return 0;
        }
    }
}

/// Forks a child of this process's parent; returns 0 in the child. Skips the handlers of the C library.
fn fork_for_parent() -> io::Result<libc::pid_t> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without a stack this is a fork, on every architecture: the child runs on a copy of this stack. The
    // process has only one thread, so that no lock is held in the copy.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        process => Ok(process as libc::pid_t),
    }
}

/// Runs a command's process until its program starts.
fn run(descriptors: Vec<OwnedFd>) -> ! {
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next();
    if let (Some(text), Some(errors), Some(input), Some(output), Some(diagnostics)) =
        (next(), next(), next(), next(), next())
    {
        let error = execute(text, &errors, [input, output, diagnostics], next()).err();
        let error = error.unwrap_or_else(|| io::Error::other("the program did not start"));
        let mut text = error.raw_os_error().unwrap_or_default().to_le_bytes().to_vec();
        if error.raw_os_error().is_none() {
            text.extend(error.to_string().bytes());
        }
        // If the pipe has no reader, nothing waits for the command.
        let _ = rustix::io::write(&errors, &text);
    }
    // SAFETY: ends the process without running the handlers inherited from its parent.
    unsafe { libc::_exit(127) }
}

fn execute(
    text: OwnedFd,
    errors: &OwnedFd,
    streams: [OwnedFd; 3],
    reaper: Option<OwnedFd>,
) -> io::Result<std::convert::Infallible> {
    let group = setsid()?;
    if let Some(reaper) = reaper {
        // Announce the group before anything runs: a command can't outlive a daemon that is killed.
        let mut line = [0; LINE_BYTES];
        let key = Request::key_of(&text)?;
        rustix::io::write(&reaper, announcement(key, group.as_raw_nonzero().get(), &mut line))?;
    }
    let mut bytes = Vec::new();
    let mut text = File::from(text);
    io::Seek::rewind(&mut text)?;
    text.read_to_end(&mut bytes)?;
    let request = Request::decode(&bytes).ok_or_else(|| io::Error::other("the request can't be read"))?;
    if let Some(limit) = request.descriptors {
        setrlimit(Resource::Nofile, limit)?;
    }
    let [input, output, diagnostics] = streams;
    rustix::stdio::dup2_stdin(input)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(diagnostics)?;
    let c = |text: &OsString| CString::new(text.as_bytes()).map_err(io::Error::from);
    let program = c(&request.program)?;
    let arguments = std::iter::once(&request.program).chain(&request.arguments).map(c);
    let arguments = arguments.collect::<io::Result<Vec<CString>>>()?;
    let environment = request.environment.iter().map(c).collect::<io::Result<Vec<CString>>>()?;
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (arguments, environment) = (pointers(&arguments), pointers(&environment));
    rustix::process::chdir(&request.confinement.start)?;
    if !has_reader(errors) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    // This must be last: the process that continues has another number inside of the sandbox.
    enter(&request.confinement)?;
    unblock_all();
    // SAFETY: system calls with pointers to values that live until then. Rust's runtime ignores SIGPIPE, and an
    // ignored signal stays ignored in a new program.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr());
    }
    Err(io::Error::last_os_error())
}

/// Whether the daemon still waits for this command; it may have given up.
fn has_reader(errors: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(errors, PollFlags::empty())];
    let is_polled = poll(&mut polled, Some(&Timespec::default())).is_ok();
    is_polled && !polled[0].revents().contains(PollFlags::ERR)
}

// ── The text of a request ──────────────────────────────────────────────────────────────────────────

impl SandboxPaths {
    /// All lists, in a fixed order.
    fn lists(&self) -> [&Vec<PathBuf>; 10] {
        let SandboxPaths { hidden, read, covered, writable, devices, frozen, fixed, closed, replaced, links } =
            self;
        [hidden, read, covered, writable, devices, frozen, fixed, closed, replaced, links]
    }

    fn lists_mut(&mut self) -> [&mut Vec<PathBuf>; 10] {
        let SandboxPaths { hidden, read, covered, writable, devices, frozen, fixed, closed, replaced, links } =
            self;
        [hidden, read, covered, writable, devices, frozen, fixed, closed, replaced, links]
    }
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let Confinement { paths, start, reach, support } = &self.confinement;
        let mut bytes = Vec::new();
        let (current, maximum) = match self.descriptors {
            None => (0, 0),
            Some(limit) => (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)),
        };
        let namespaces = match support.namespaces {
            Namespaces::None => 0,
            Namespaces::OfAdministrator => 1,
            Namespaces::OfUser => 2,
        };
        let numbers = [
            self.key,
            u64::from(self.descriptors.is_some()),
            current,
            maximum,
            u64::from(reach.network),
            u64::from(reach.unix_sockets),
            u64::from(reach.processes.is_some()),
            reach.processes.unwrap_or_default(),
            u64::from(reach.memory.is_some()),
            reach.memory.unwrap_or_default(),
            u64::from(support.landlock),
            namespaces,
            u64::from(support.own_processes),
            u64::from(support.filter),
        ];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        let mut list = |texts: &mut dyn Iterator<Item = &OsStr>| {
            let texts: Vec<&OsStr> = texts.collect();
            bytes.extend((texts.len() as u64).to_le_bytes());
            for text in texts {
                bytes.extend((text.len() as u64).to_le_bytes());
                bytes.extend(text.as_bytes());
            }
        };
        list(&mut [self.program.as_os_str(), start.as_os_str()].into_iter());
        list(&mut self.arguments.iter().map(OsString::as_os_str));
        list(&mut self.environment.iter().map(OsString::as_os_str));
        for paths in paths.lists() {
            list(&mut paths.iter().map(|path| path.as_os_str()));
        }
        bytes
    }

    /// Decodes the output of `encode`; `None` if it is malformed.
    fn decode(bytes: &[u8]) -> Option<Request> {
        let mut rest = EncodedBytes(bytes);
        let mut number = || rest.number();
        let key = number()?;
        let (has_limit, current, maximum) = (number()? == 1, number()?, number()?);
        let of = |limit: u64| Some(limit).filter(|limit| *limit != u64::MAX);
        let descriptors = has_limit.then(|| Rlimit { current: of(current), maximum: of(maximum) });
        let (network, unix_sockets) = (number()? == 1, number()? == 1);
        let (has_processes, processes) = (number()? == 1, number()?);
        let (has_memory, memory) = (number()? == 1, number()?);
        let (processes, memory) = (has_processes.then_some(processes), has_memory.then_some(memory));
        let reach = SandboxAllowances { network, unix_sockets, processes, memory };
        let landlock = u32::try_from(number()?).ok()?;
        let namespaces = match number()? {
            0 => Namespaces::None,
            1 => Namespaces::OfAdministrator,
            2 => Namespaces::OfUser,
            _ => return None,
        };
        let (own_processes, filter) = (number()? == 1, number()? == 1);
        let support = Support { landlock, namespaces, own_processes, filter, seatbelt: false };
        let [program, start] = rest.list()?.try_into().ok()?;
        let (arguments, environment) = (rest.list()?, rest.list()?);
        let mut paths = SandboxPaths::default();
        for paths in paths.lists_mut() {
            *paths = rest.list()?.into_iter().map(PathBuf::from).collect();
        }
        let confinement = Confinement { paths, start: start.into(), reach, support };
        Some(Request { key, program, arguments, environment, descriptors, confinement })
    }

    /// Decodes only the key.
    fn key_of(text: &OwnedFd) -> io::Result<AnnouncementKey> {
        let mut key = [0; 8];
        rustix::io::pread(text, &mut key, 0)?;
        Ok(u64::from_le_bytes(key))
    }
}

/// The bytes that are still to be decoded.
struct EncodedBytes<'a>(&'a [u8]);

impl EncodedBytes<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn list(&mut self) -> Option<Vec<OsString>> {
        let length = usize::try_from(self.number()?).ok()?;
        // Each text takes at least the bytes of its length.
        let mut texts = Vec::with_capacity(length.min(self.0.len() / size_of::<u64>()));
        for _ in 0..length {
            let bytes = usize::try_from(self.number()?).ok()?;
            let (text, rest) = self.0.split_at_checked(bytes)?;
            self.0 = rest;
            texts.push(OsString::from_vec(text.to_vec()));
        }
        Some(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let mut paths = SandboxPaths::default();
        for (at, paths) in paths.lists_mut().into_iter().enumerate() {
            *paths = vec![format!("/{at}\n").into(), OsString::from_vec(vec![b'/', 0xff]).into()];
        }
        let reach = SandboxAllowances {
            network: true,
            unix_sockets: false,
            processes: Some(7),
            memory: Some(1 << 33),
        };
        let support = Support {
            landlock: 6,
            namespaces: Namespaces::OfUser,
            own_processes: true,
            filter: false,
            seatbelt: false,
        };
        let request = Request {
            key: 12,
            program: "/bin/bash".into(),
            arguments: vec!["-c".into(), "".into()],
            environment: vec!["A=b=c".into()],
            descriptors: Some(Rlimit { current: Some(1024), maximum: None }),
            confinement: Confinement { paths: paths.clone(), start: "/w".into(), reach, support },
        };
        let bytes = request.encode();
        let read = Request::decode(&bytes).expect("it is one");
        assert_eq!(read.encode(), bytes);
        assert_eq!((read.confinement.paths, read.confinement.support), (paths, support));
        assert_eq!(read.confinement.reach, reach);
        assert_eq!(read.descriptors.map(|limit| (limit.current, limit.maximum)), Some((Some(1024), None)));
        for length in 0..bytes.len() {
            assert!(Request::decode(&bytes[..length]).is_none(), "{length}");
        }
    }
}
