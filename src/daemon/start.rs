//! Starts the daemon, detached from whoever starts it: hosts that end process groups, sessions or trees do not
//! take it along.
//!
//! The starter learns at once how it went: the daemon's stdout is a socket of the starter's, on which it says one
//! line and which it then closes. Nothing else of the starter stays with it, not its environment either: what a
//! session needs of that comes with each attachment.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use epitome_session::resting::REST_VARIABLE;

/// The arguments of the daemon itself.
pub const ARGUMENTS: [&str; 2] = ["daemon", "serve"];

/// How long a daemon may take to say that it is ready, also where it waits for a predecessor's end.
const READY_TIME_MAX: Duration = Duration::from_secs(5);

/// The longest line of a daemon that starts, in bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// What a daemon says that can be connected to.
const READY: &str = "ready";

/// What of the environment the daemon itself uses: never keys, which are a session's.
const NAMES: [&str; 10] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ", "EPITOME_HOME", "EPITOME_LOG"];

/// What their names begin with, for the rest of it.
const PREFIXES: [&str; 3] = ["LC_", "XDG_", "SSL_CERT_"];

fn is_for_daemon(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    [super::serve::IDLE_VARIABLE, REST_VARIABLE].contains(&name)
        || NAMES.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The running executable, also after an upgrade has replaced or removed its file.
pub fn this_program() -> io::Result<PathBuf> {
    let own = Path::new("/proc/self/exe");
    if own.exists() { Ok(own.to_path_buf()) } else { std::env::current_exe() }
}

/// Starts a daemon and waits until it can be connected to. An error is a sentence.
pub fn start(program: &Path, environment: &[(OsString, OsString)]) -> Result<(), String> {
    let failed = |error: io::Error| format!("the daemon could not be started: {error}");
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(program);
    command
        .arg0("epitome")
        .args(ARGUMENTS)
        .current_dir("/")
        .env_clear()
        .envs(environment.iter().filter(|(name, _)| is_for_daemon(name)).map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::from(OwnedFd::from(theirs)))
        .stderr(Stdio::null());
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `detach` makes system calls on
    // numbers and a signal set of its own, and allocates nothing.
    unsafe {
        command.pre_exec(detach);
    }
    // The child ends at once; its own child is the daemon.
    let mut child = command.spawn().map_err(failed)?;
    // The command holds the other end of the socket.
    drop(command);
    child.wait().map_err(failed)?;
    ours.set_read_timeout(Some(READY_TIME_MAX)).map_err(failed)?;
    let mut line = String::new();
    match BufReader::new(ours.take(LINE_BYTES_MAX)).read_line(&mut line) {
        Ok(_) if line.trim_end() == READY => Ok(()),
        Ok(0) => Err("the daemon ended while it started; its log tells more".to_owned()),
        Ok(_) => Err(line.trim_end().to_owned()),
        Err(error) => Err(format!("the daemon did not say that it is ready: {error}")),
    }
}

/// Runs in the child before the exec: a session of its own, out of reach by parenthood, with no descriptors and
/// no blocked signals of the starter's.
fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: `fork` is async-signal-safe; both sides go on with system calls only.
    match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: ends this process without running anything of it.
        _ => unsafe { libc::_exit(0) },
    }
    close_on_exec();
    // SAFETY: the set is ours, and is filled before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    Ok(())
}

/// Marks every descriptor but the first three as to be closed by the exec.
fn close_on_exec() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a system call on numbers. The descriptors stay open until the exec.
        let marked = unsafe {
            libc::syscall(libc::SYS_close_range, 3u32, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
        };
        if marked == 0 {
            return;
        }
    }
    /// Where a system has no call for all of them, the numbers up to here are marked one by one.
    const DESCRIPTORS_MAX: i32 = 1024;
    for descriptor in 3..DESCRIPTORS_MAX {
        // SAFETY: only flags are set; a number that is not open is refused.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// In the daemon: tells who started it, and lets go of the socket to it. `why` is the reason of a start that
/// failed.
pub fn tell_starter(outcome: Result<(), &str>) {
    let line = match outcome {
        Ok(()) => READY,
        Err(why) => why.lines().next().unwrap_or_default(),
    };
    let Ok(mut stdout) = io::stdout().as_fd().try_clone_to_owned().map(File::from) else { return };
    // A starter that has gone wants to hear nothing.
    drop(stdout.write_all(format!("{line}\n").as_bytes()));
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        // Where it fails the starter hears nothing more until we end, and waits for nothing more.
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_goes_along() {
        for (name, goes) in [
            ("PATH", true),
            ("EPITOME_HOME", true),
            ("EPITOME_IDLE_S", true),
            ("EPITOME_REST_S", true),
            ("XDG_RUNTIME_DIR", true),
            ("LC_ALL", true),
            ("SSL_CERT_FILE", true),
            ("ANTHROPIC_API_KEY", false),
            ("EPITOME_MODEL", false),
            ("EPITOME_LOCAL_URL", false),
            ("HTTPS_PROXY", false),
            ("MY_PATH", false),
        ] {
            assert_eq!(is_for_daemon(OsStr::new(name)), goes, "{name}");
        }
    }

    #[test]
    fn who_says_nothing_or_why_not_is_told_so() {
        let why = start(Path::new("/no/such/program"), &[]).expect_err("there is no such program");
        assert!(why.contains("could not be started"), "{why}");
        let ended = start(Path::new("/bin/true"), &[]).expect_err("it says nothing");
        assert!(ended.contains("ended while it started"), "{ended}");
        let said = start(Path::new("/bin/echo"), &[]).expect_err("it says something else");
        assert_eq!(said, "daemon serve");
    }
}
