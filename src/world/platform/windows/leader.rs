//! The first process of a command, and all that it starts: they are in one job object, which ends when its handle is
//! closed, also by the end of this process.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::os::windows::process::CommandExt;
use std::process::{Child, Command};
use std::ptr::null;

use windows_sys::Win32::Foundation::INVALID_HANDLE_VALUE;
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation, SetInformationJobObject,
    TerminateJobObject,
};
use windows_sys::Win32::System::Threading::{
    CREATE_NEW_PROCESS_GROUP, CREATE_NO_WINDOW, CREATE_SUSPENDED, GetExitCodeProcess, INFINITE, OpenThread,
    ResumeThread, THREAD_SUSPEND_RESUME, WaitForSingleObject,
};

use super::group::CommandExit;
use super::os::{Pid, for_programs};

/// The exit code of processes that are ended.
const ENDED: u32 = 1;

pub(super) struct Leader {
    id: Pid,
    process: OwnedHandle,
    job: OwnedHandle,
}

impl Leader {
    /// Starts a command in a job of its own, without a window.
    pub fn start(command: &mut Command) -> io::Result<Leader> {
        let job = new_job()?;
        if let Some(directory) = command.get_current_dir().map(|path| for_programs(path).into_owned()) {
            command.current_dir(directory);
        }
        // It must be in its job before it can start others.
        command.creation_flags(CREATE_SUSPENDED | CREATE_NO_WINDOW | CREATE_NEW_PROCESS_GROUP);
        let mut child = command.spawn()?;
        match run_in(&job, &child) {
            Ok(()) => {
                let id = Pid::from_number(child.id());
                Ok(Leader { id, process: child.into(), job })
            }
            Err(error) => {
                // It has not run yet.
                let _ = child.kill();
                Err(error)
            }
        }
    }

    pub fn id(&self) -> Pid {
        self.id
    }

    /// Programs without a window can't be asked to end.
    pub fn terminate(&self) {
        self.kill();
    }

    pub fn kill(&self) {
        // SAFETY: the job is open. It fails if all of its processes have ended.
        unsafe { TerminateJobObject(self.job.as_raw_handle(), ENDED) };
    }

    /// No process leaves the job.
    pub fn end_stragglers(&self) {}

    pub fn wait(&self) -> CommandExit {
        let process = self.process.as_raw_handle();
        let mut code = 0;
        // SAFETY: the process is open, and the result is written to a local variable.
        let is_known = unsafe {
            WaitForSingleObject(process, INFINITE);
            GetExitCodeProcess(process, &mut code)
        };
        if is_known == 0 { CommandExit::Unknown } else { CommandExit::Code(code.cast_signed()) }
    }

    /// A process number is not used again while the process is open.
    pub fn reap(&self) {}
}

/// A job whose processes are killed when its last handle is closed. Only this process has one.
fn new_job() -> io::Result<OwnedHandle> {
    // SAFETY: without a name and attributes.
    let job = unsafe { CreateJobObjectW(null(), null()) };
    if job.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just created, and nothing else closes it.
    let job = unsafe { OwnedHandle::from_raw_handle(job) };
    // SAFETY: a structure of integers.
    let mut limits: JOBOBJECT_EXTENDED_LIMIT_INFORMATION = unsafe { zeroed() };
    limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
    // SAFETY: the structure is that of this kind of information, and outlives the call.
    let is_set = unsafe {
        SetInformationJobObject(
            job.as_raw_handle(),
            JobObjectExtendedLimitInformation,
            (&raw const limits).cast(),
            size_of_val(&limits) as u32,
        )
    };
    if is_set == 0 { Err(io::Error::last_os_error()) } else { Ok(job) }
}

fn run_in(job: &OwnedHandle, child: &Child) -> io::Result<()> {
    // SAFETY: both are open.
    if unsafe { AssignProcessToJobObject(job.as_raw_handle(), child.as_raw_handle()) } == 0 {
        return Err(io::Error::last_os_error());
    }
    resume(child.id())
}

/// Lets a process run that was started suspended. It has one thread, which is searched for among those of all processes.
fn resume(process: u32) -> io::Result<()> {
    // SAFETY: the snapshot is closed by its owner. The entry has the size that it names, and is written by the calls.
    unsafe {
        let threads = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
        if threads == INVALID_HANDLE_VALUE {
            return Err(io::Error::last_os_error());
        }
        let threads = OwnedHandle::from_raw_handle(threads);
        let mut entry: THREADENTRY32 = zeroed();
        entry.dwSize = size_of::<THREADENTRY32>() as u32;
        let mut is_entry = Thread32First(threads.as_raw_handle(), &mut entry);
        while is_entry != 0 {
            if entry.th32OwnerProcessID == process {
                let thread = OpenThread(THREAD_SUSPEND_RESUME, 0, entry.th32ThreadID);
                if thread.is_null() {
                    return Err(io::Error::last_os_error());
                }
                let thread = OwnedHandle::from_raw_handle(thread);
                return match ResumeThread(thread.as_raw_handle()) {
                    u32::MAX => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                };
            }
            is_entry = Thread32Next(threads.as_raw_handle(), &mut entry);
        }
    }
    Err(io::Error::other("the new process has no thread"))
}
