//! Requests that this process end: Ctrl-C, Ctrl-Break, and the end of the console, the session or the machine.

use std::io;
use std::sync::OnceLock;

use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_logoff,
    ctrl_shutdown,
};
use windows_sys::Win32::System::Console::SetConsoleCtrlHandler;

use super::system::stream::Event;

static ENDING: OnceLock<Event> = OnceLock::new();

/// Receives the requests without a runtime, until dropped.
pub struct BlockedSignals(&'static Event);

unsafe extern "system" fn on_request(_: u32) -> i32 {
    ENDING.get().map_or(0, |ending| {
        ending.set();
        1
    })
}

impl BlockedSignals {
    pub fn new() -> io::Result<BlockedSignals> {
        let event = Event::new()?;
        let ending = ENDING.get_or_init(|| event);
        ending.reset();
        // SAFETY: the function only sets an event that is never closed.
        if unsafe { SetConsoleCtrlHandler(Some(on_request), 1) } == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(BlockedSignals(ending))
    }

    /// Waits for one of the requests.
    pub fn wait(&self) -> io::Result<()> {
        self.0.wait();
        Ok(())
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: it was added before. It fails only if it was not.
        unsafe { SetConsoleCtrlHandler(Some(on_request), 0) };
    }
}

/// Requests that this process end, for the runtime.
pub struct EndRequests {
    interrupts: Option<(CtrlC, CtrlBreak)>,
    close: CtrlClose,
    logoff: CtrlLogoff,
    shutdown: CtrlShutdown,
}

impl EndRequests {
    /// All of them.
    pub fn new() -> io::Result<EndRequests> {
        let without = EndRequests::without_interrupts()?;
        Ok(EndRequests { interrupts: Some((ctrl_c()?, ctrl_break()?)), ..without })
    }

    /// All but those of the keyboard.
    pub fn without_interrupts() -> io::Result<EndRequests> {
        Ok(EndRequests {
            interrupts: None,
            close: ctrl_close()?,
            logoff: ctrl_logoff()?,
            shutdown: ctrl_shutdown()?,
        })
    }

    /// Waits for one.
    pub async fn recv(&mut self) {
        let interrupted = async {
            match &mut self.interrupts {
                None => std::future::pending().await,
                Some((interrupt, interrupt_again)) => tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = interrupt_again.recv() => {}
                },
            }
        };
        tokio::select! {
            () = interrupted => {}
            _ = self.close.recv() => {}
            _ = self.logoff.recv() => {}
            _ = self.shutdown.recv() => {}
        }
    }
}

/// Ctrl-C, for the runtime.
pub struct Interrupts(CtrlC);

impl Interrupts {
    pub fn new() -> io::Result<Interrupts> {
        ctrl_c().map(Interrupts)
    }

    pub async fn recv(&mut self) {
        let _ = self.0.recv().await;
    }
}

/// Requests that this process stop and continue, which Windows doesn't have.
pub struct JobControl;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobRequest {
    Stop,
    Continue,
}

impl JobControl {
    pub fn new() -> io::Result<JobControl> {
        Ok(JobControl)
    }

    pub async fn recv(&mut self) -> JobRequest {
        std::future::pending().await
    }

    pub fn stop(&self) -> io::Result<()> {
        Ok(())
    }
}
