//! The current process: its executable, its memory, its standard streams, and how it detaches from its parent.

use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::windows::io::{AsHandle, AsRawHandle, IntoRawHandle};
use std::os::windows::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use windows_sys::Win32::Foundation::CloseHandle;
use windows_sys::Win32::System::Console::{STD_OUTPUT_HANDLE, SetStdHandle};
use windows_sys::Win32::System::ProcessStatus::{GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
use windows_sys::Win32::System::Threading::{
    CREATE_BREAKAWAY_FROM_JOB, CREATE_NEW_PROCESS_GROUP, CREATE_NO_WINDOW, GetCurrentProcess,
};

use super::os::NULL_DEVICE;

pub fn this_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// A process has the name of its program.
pub fn set_process_name(_: &str) {}

/// Returns the memory of this process that is in use, in bytes.
pub fn resident_bytes() -> Option<u64> {
    // SAFETY: a structure of integers, which the call fills up to the size that is passed.
    unsafe {
        let mut used: PROCESS_MEMORY_COUNTERS = zeroed();
        let size = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
        (GetProcessMemoryInfo(GetCurrentProcess(), &mut used, size) != 0)
            .then_some(used.WorkingSetSize as u64)
    }
}

/// Returns the memory of the machine in bytes.
pub fn machine_memory_bytes() -> Option<u64> {
    // SAFETY: a structure of integers, which names its size and which the call fills.
    unsafe {
        let mut memory: MEMORYSTATUSEX = zeroed();
        memory.dwLength = size_of::<MEMORYSTATUSEX>() as u32;
        (GlobalMemoryStatusEx(&mut memory) != 0).then_some(memory.ullTotalPhys)
    }
}

/// Whether it belongs to the administrator. Nothing depends on it here.
pub fn is_root() -> bool {
    false
}

/// Starts a command that survives this process and the console that this process was started from.
pub fn start_detached(command: &mut Command) -> io::Result<Child> {
    let flags = CREATE_NEW_PROCESS_GROUP | CREATE_NO_WINDOW;
    // Editors put the programs that they start into a job that ends with them.
    let free = command.creation_flags(flags | CREATE_BREAKAWAY_FROM_JOB).spawn();
    match free {
        // The job of this process does not let others leave it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            command.creation_flags(flags).spawn()
        }
        started => started,
    }
}

/// Standard input and output as files, without the buffers of the standard library.
pub fn standard_ends() -> io::Result<(File, File)> {
    let reader = File::from(io::stdin().as_handle().try_clone_to_owned()?);
    let writer = File::from(io::stdout().as_handle().try_clone_to_owned()?);
    Ok((reader, writer))
}

/// Takes standard output away from this process: what is written to it later is lost.
pub fn take_stdout() -> io::Result<File> {
    let taken = io::stdout().as_handle().try_clone_to_owned()?;
    let null = File::options().write(true).open(NULL_DEVICE)?;
    let before = io::stdout().as_raw_handle();
    // SAFETY: nothing else uses the old handle, as the standard library asks for the current one each time. The new one is
    // never closed.
    unsafe {
        SetStdHandle(STD_OUTPUT_HANDLE, null.into_raw_handle());
        CloseHandle(before);
    }
    Ok(taken.into())
}
