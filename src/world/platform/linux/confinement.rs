//! How a process is confined, as the kernel reports it. Used to refuse clients that are more confined than the
//! daemon, because by controlling the daemon they could escape their confinement.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::process::Pid;

use super::stragglers;

/// Maximum bytes of a status file that are read; it has about two thousand.
const STATUS_BYTES_MAX: u64 = 64 * 1024;

/// Maximum number of a process's ancestors that are examined.
const ANCESTORS_MAX: usize = 64;

/// The confinement of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessConfinement {
    /// The mark of the command that the process descends from.
    mark: Option<Vec<u8>>,
    no_new_privileges: bool,
    has_seccomp_filter: bool,
    /// Identifies the user namespace.
    user_namespace: Vec<u8>,
}

impl ProcessConfinement {
    /// Returns the confinement of this process. Fails if `/proc` is not mounted.
    pub fn current() -> io::Result<ProcessConfinement> {
        ProcessConfinement::read("/proc/self")
    }

    /// Returns the confinement of another process. Fails if it has ended, or belongs to another user.
    pub fn for_process(process: Pid) -> io::Result<ProcessConfinement> {
        ProcessConfinement::read(&format!("/proc/{}", process.as_raw_nonzero()))
    }

    fn read(process: &str) -> io::Result<ProcessConfinement> {
        // Files opened through this descriptor belong to the same process, even if its number is reused.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process: OwnedFd = openat(CWD, process, flags, Mode::empty())?;
        let file = |name: &str| -> io::Result<File> {
            Ok(File::from(openat(&process, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
        };
        let mut status = String::with_capacity(stragglers::READ_AT_ONCE_BYTES);
        file("status")?.take(STATUS_BYTES_MAX).read_to_string(&mut status)?;
        let field = |name: &str| field(&status, name);
        Ok(ProcessConfinement {
            mark: stragglers::mark_in(file("environ")?)?,
            no_new_privileges: field("NoNewPrivs") == Some("1"),
            has_seccomp_filter: field("Seccomp") == Some("2"),
            user_namespace: readlinkat(&process, "ns/user", Vec::new())?.into_bytes(),
        })
    }

    /// Whether a process descends from a command that this process does not descend from, as far as its ancestors are
    /// running and visible. `is_command` knows more commands than the marks show. A process can remove the mark from
    /// its own environment, but not from that of its ancestors.
    pub fn lacks_ancestor_of(&self, process: Pid, is_command: impl Fn(Pid) -> bool) -> bool {
        let parent = |process: &Pid| Pid::from_raw(stragglers::parent(process.as_raw_nonzero().get())?);
        let lineage = std::iter::successors(Some(process), parent);
        lineage.take(ANCESTORS_MAX).any(|process| {
            // The environments of other users' processes can't be read.
            let environment = File::open(format!("/proc/{}/environ", process.as_raw_nonzero()));
            let mark = environment.and_then(stragglers::mark_in).ok().flatten();
            is_command(process) || mark.is_some() && mark != self.mark
        })
    }

    /// Returns how it is more confined than another one; completes a sentence that starts with "it".
    pub fn exceeds(&self, other: &ProcessConfinement) -> Option<&'static str> {
        if self.mark.is_some() && self.mark != other.mark {
            Some("was started by a command of a session")
        } else if self.user_namespace != other.user_namespace {
            Some("is in another user namespace than the daemon")
        } else if self.has_seccomp_filter && !other.has_seccomp_filter {
            Some("has a filter of system calls, which the daemon has not")
        } else if self.no_new_privileges && !other.no_new_privileges {
            Some("can't gain privileges, which the daemon can")
        } else {
            None
        }
    }
}

/// A field of a status file.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::system::stragglers::ProcessMark;

    #[test]
    fn a_process_is_compared_with_this_one() {
        let own = ProcessConfinement::current().expect("/proc is mounted");
        assert_eq!(own.exceeds(&own), None);
        let confined = ProcessConfinement { no_new_privileges: true, ..own.clone() };
        let free = ProcessConfinement { no_new_privileges: false, ..own.clone() };
        assert!(confined.exceeds(&free).is_some() && free.exceeds(&confined).is_none());
        let other = ProcessConfinement { user_namespace: b"user:[1]".to_vec(), ..own.clone() };
        assert!(other.exceeds(&own).is_some() && own.exceeds(&other).is_some());

        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        ProcessMark::generate().of_command(1).put_on(&mut command);
        let mut marked = command.spawn().expect("cat runs");
        // The process has its environment only after its program has started; its answer shows that.
        std::io::Write::write_all(marked.stdin.as_mut().expect("piped"), b"x").expect("it reads");
        marked.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it answers");
        let pid = Pid::from_raw(marked.id().cast_signed()).expect("a number");
        let found = ProcessConfinement::for_process(pid).expect("it runs");
        assert!(found.exceeds(&own).is_some_and(|how| how.contains("a command of a session")), "{found:?}");
        drop(marked.stdin.take());
        marked.wait().expect("it ends");
        assert!(ProcessConfinement::for_process(pid).is_err(), "it has ended");
    }
}
