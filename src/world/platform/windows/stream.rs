//! A connection over a named pipe, with the methods of a socket.
//!
//! The pipes carry messages and are read as bytes: a message without bytes means that the other end writes no more, which
//! pipes cannot say otherwise. All operations are overlapped: on other pipes, a write waits for a running read.

use std::io::{self, Read, Write};
use std::mem::zeroed;
use std::net::Shutdown;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use windows_sys::Win32::Foundation::{
    ERROR_BROKEN_PIPE, ERROR_IO_PENDING, ERROR_PIPE_CONNECTED, HANDLE, WAIT_OBJECT_0,
};
use windows_sys::Win32::Storage::FileSystem::{ReadFile, WriteFile};
use windows_sys::Win32::System::IO::{CancelIoEx, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Pipes::ConnectNamedPipe;
use windows_sys::Win32::System::Threading::{
    CreateEventW, INFINITE, ResetEvent, SetEvent, WaitForMultipleObjects, WaitForSingleObject,
};

/// One end of a connection. Clones share it.
#[derive(Debug)]
pub struct Stream(Arc<StreamEnd>);

#[derive(Debug)]
struct StreamEnd {
    pipe: OwnedHandle,
    /// Set when nothing more is to be read.
    reading_ends: Event,
    read_timeout: Mutex<Option<Duration>>,
}

impl Stream {
    /// Takes over an end that is connected and was opened for overlapped operations.
    pub(crate) fn new(pipe: OwnedHandle) -> io::Result<Stream> {
        let reading_ends = Event::new()?;
        Ok(Stream(Arc::new(StreamEnd { pipe, reading_ends, read_timeout: Mutex::default() })))
    }

    pub(crate) fn pipe(&self) -> &OwnedHandle {
        &self.0.pipe
    }

    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(Stream(self.0.clone()))
    }

    /// The longest time that a read waits.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        *self.0.read_timeout.lock() = timeout;
        Ok(())
    }

    /// Its methods always block; `AsyncStream` has those that don't.
    pub fn set_nonblocking(&self, _: bool) -> io::Result<()> {
        Ok(())
    }

    /// After the end of reading, what has arrived can still be read.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.0.reading_ends.set();
        }
        if how != Shutdown::Read {
            let end = self.0.clone();
            // It waits for earlier writes.
            std::thread::Builder::new().name("pipe-end".to_owned()).spawn(move || drop(end.write(&[])))?;
        }
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // No bytes would end the connection.
        if bytes.is_empty() { Ok(0) } else { self.0.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StreamEnd {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let timeout = *self.read_timeout.lock();
        let limits = Limits { stop: Some(&self.reading_ends), timeout };
        let length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let at = buffer.as_mut_ptr();
        // SAFETY: the buffer has this length, and `perform` returns only after the operation.
        match perform(&self.pipe, limits, |operation| unsafe {
            ReadFile(self.pipe.as_raw_handle(), at, length, null_mut(), operation)
        }) {
            Err(error) if error.raw_os_error() == Some(ERROR_BROKEN_PIPE.cast_signed()) => Ok(0),
            Ok(Performed::Done(length)) => Ok(length),
            Ok(Performed::Stopped) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        // SAFETY: the bytes have this length, and `perform` returns only after the operation.
        let written = perform(&self.pipe, Limits::default(), |operation| unsafe {
            WriteFile(self.pipe.as_raw_handle(), bytes.as_ptr(), length, null_mut(), operation)
        })?;
        match written {
            Performed::Done(length) => Ok(length),
            Performed::Stopped => Ok(0),
        }
    }
}

/// Waits until a client has opened the pipe. Returns false if `stop` was set before.
pub(crate) fn wait_for_client(pipe: &OwnedHandle, stop: &Event) -> io::Result<bool> {
    // SAFETY: `perform` returns only after the operation.
    match perform(pipe, Limits { stop: Some(stop), timeout: None }, |operation| unsafe {
        ConnectNamedPipe(pipe.as_raw_handle(), operation)
    }) {
        Ok(Performed::Done(_)) => Ok(true),
        Ok(Performed::Stopped) => Ok(false),
        Err(error) if error.raw_os_error() == Some(ERROR_PIPE_CONNECTED.cast_signed()) => Ok(true),
        Err(error) => Err(error),
    }
}

/// The reasons to end an operation early.
#[derive(Default)]
struct Limits<'a> {
    stop: Option<&'a Event>,
    timeout: Option<Duration>,
}

enum Performed {
    Done(usize),
    Stopped,
}

/// Starts an overlapped operation and waits for it.
fn perform(
    pipe: &OwnedHandle,
    limits: Limits<'_>,
    start: impl FnOnce(*mut OVERLAPPED) -> i32,
) -> io::Result<Performed> {
    let done = Event::new()?;
    // SAFETY: a structure of integers and pointers.
    let mut operation: OVERLAPPED = unsafe { zeroed() };
    // With the lowest bit set, the end is not reported to the runtime, which may wait for the pipe as well.
    operation.hEvent = done.raw().map_addr(|address| address | 1);
    let mut ended_by = WAIT_OBJECT_0;
    if start(&mut operation) == 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(ERROR_IO_PENDING.cast_signed()) {
            return Err(error);
        }
        ended_by = wait(&done, &limits);
        if ended_by != WAIT_OBJECT_0 {
            // SAFETY: the operation was started on this pipe. It fails if the operation has ended since.
            unsafe { CancelIoEx(pipe.as_raw_handle(), &operation) };
        }
    }
    let mut length = 0;
    // SAFETY: the operation was started on this pipe; the call waits until it has ended, so that nothing writes to it later.
    let is_done = unsafe { GetOverlappedResult(pipe.as_raw_handle(), &operation, &mut length, 1) };
    match is_done {
        0 if ended_by == WAIT_OBJECT_0 => Err(io::Error::last_os_error()),
        0 if ended_by == WAIT_OBJECT_0 + 1 => Ok(Performed::Stopped),
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(Performed::Done(length as usize)),
    }
}

/// Returns the index of what has ended the wait, from `WAIT_OBJECT_0`: the operation, or the stop.
fn wait(done: &Event, limits: &Limits<'_>) -> u32 {
    let milliseconds = limits
        .timeout
        .map_or(INFINITE, |time| u32::try_from(time.as_millis().max(1)).unwrap_or(INFINITE - 1));
    // SAFETY: the events are open.
    match limits.stop {
        None => unsafe { WaitForSingleObject(done.raw(), milliseconds) },
        Some(stop) => {
            let events = [done.raw(), stop.raw()];
            unsafe { WaitForMultipleObjects(2, events.as_ptr(), 0, milliseconds) }
        }
    }
}

/// Something to wait for, which happens once.
#[derive(Debug)]
pub(crate) struct Event(OwnedHandle);

impl Event {
    pub fn new() -> io::Result<Event> {
        // SAFETY: without a name and attributes.
        let event = unsafe { CreateEventW(null(), 1, 0, null()) };
        if event.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just created, and nothing else closes it.
        Ok(Event(unsafe { OwnedHandle::from_raw_handle(event) }))
    }

    pub fn set(&self) {
        // SAFETY: it is open.
        unsafe { SetEvent(self.raw()) };
    }

    pub fn reset(&self) {
        // SAFETY: it is open.
        unsafe { ResetEvent(self.raw()) };
    }

    pub fn wait(&self) {
        // SAFETY: it is open.
        unsafe { WaitForSingleObject(self.raw(), INFINITE) };
    }

    fn raw(&self) -> HANDLE {
        self.0.as_raw_handle()
    }
}
