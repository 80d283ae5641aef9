//! Starts commands with a profile of Seatbelt, the sandbox of macOS. Other systems have none here.
//!
//! The last of several matching rules counts. Everything is denied that is not listed, so that a command can't ask
//! another program to act for it, such as `open` or `launchctl`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::sandbox::{Confinement, Support};

/// The sandbox of a system that has none.
pub const NONE: &str = "this build uses no sandbox";

/// The program that starts another one with a profile.
const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// The rights of every program: to run programs, to read files, and to ask the system about users, time and settings.
const BASE: &str = r#"(version 1)
(deny default)
(allow process-exec process-fork)
(allow process-info* signal (target same-sandbox))
(allow sysctl-read system-sched pseudo-tty ipc-posix-sem ipc-posix-shm* user-preference-read)
(allow file-read* file-ioctl file-map-executable file-test-existence)
(allow mach-lookup
  (global-name "com.apple.cfprefsd.agent")
  (global-name "com.apple.cfprefsd.daemon")
  (global-name "com.apple.diagnosticd")
  (global-name "com.apple.logd")
  (global-name "com.apple.system.DirectoryService.libinfo_v1")
  (global-name "com.apple.system.logger")
  (global-name "com.apple.system.notification_center")
  (global-name "com.apple.system.opendirectoryd.libinfo")
  (global-name "com.apple.system.opendirectoryd.membership"))
"#;

/// The rights of programs with network access: names, routes and certificates.
const NETWORK: &str = r#"(allow network-outbound (remote ip))
(allow network-inbound network-bind (local ip))
(allow system-socket)
(allow mach-lookup
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.dnssd.service")
  (global-name "com.apple.networkd")
  (global-name "com.apple.trustd")
  (global-name "com.apple.trustd.agent"))
(allow network-outbound (literal "/private/var/run/mDNSResponder"))
"#;

const LOOPBACK: &str = r#"(allow network-bind network-inbound (local ip "localhost:*"))
(allow network-outbound (remote ip "localhost:*"))
"#;

pub fn probe() -> Support {
    let seatbelt = cfg!(target_os = "macos") && Path::new(SANDBOX_EXEC).exists();
    Support { seatbelt, ..Support::default() }
}

/// Returns the command that starts this one in its sandbox, with the variables that are set and no others.
pub(crate) fn command(command: &Command, confinement: &Confinement) -> io::Result<Command> {
    if !confinement.support.seatbelt {
        return Err(io::Error::other("this system has no sandbox"));
    }
    let mut confined = Command::new(SANDBOX_EXEC);
    confined.arg("-p").arg(profile(confinement)?);
    confined.arg(command.get_program()).args(command.get_args());
    confined.current_dir(&confinement.start).env_clear();
    confined.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ok(confined)
}

/// The rules, in the language of Seatbelt.
fn profile(confinement: &Confinement) -> io::Result<OsString> {
    let Confinement { paths, reach, .. } = confinement;
    let mut rules = Rules(BASE.to_owned());
    rules.0.push_str(if reach.network { NETWORK } else { LOOPBACK });
    if reach.unix_sockets {
        rules
            .0
            .push_str("(allow network* (local unix-socket) (remote unix-socket))\n(allow system-socket)\n");
    }
    rules.paths("allow file-write*", "subpath", &paths.writable)?;
    rules.paths("allow file-write*", "literal", &paths.devices)?;
    // First the directories that are closed as a whole, then what is open in them, then single paths.
    rules.paths("deny file-write*", "subpath", &paths.closed)?;
    let is_open = |fixed: &&std::path::PathBuf| {
        paths.closed.iter().any(|closed| *fixed != closed && fixed.starts_with(closed))
    };
    let open: Vec<_> = paths.fixed.iter().filter(is_open).cloned().collect();
    rules.paths("allow file-write*", "subpath", &open)?;
    rules.paths("deny file-write-create file-write-unlink", "literal", &paths.fixed)?;
    rules.paths("deny file-write*", "subpath", &paths.frozen)?;
    rules.paths("deny file-write*", "subpath", &paths.replaced)?;
    rules.paths("deny file-read* file-write* process-exec", "subpath", &paths.hidden)?;
    Ok(rules.0.into())
}

struct Rules(String);

impl Rules {
    fn paths(&mut self, rule: &str, filter: &str, paths: &[std::path::PathBuf]) -> io::Result<()> {
        if paths.is_empty() {
            return Ok(());
        }
        self.0.push_str(&format!("({rule}"));
        for path in paths {
            let path = quoted(path.as_os_str())?;
            // Writing to a `String` does not fail.
            let _ = write!(self.0, "\n  ({filter} {path})");
        }
        self.0.push_str(")\n");
        Ok(())
    }
}

/// A path as a text of the language. A path that is not UTF-8 can't be written, and must not be left out.
fn quoted(path: &OsStr) -> io::Result<String> {
    let text = std::str::from_utf8(path.as_bytes()).map_err(|_| {
        io::Error::other(format!("the path {} is not UTF-8, which the sandbox needs", path.display()))
    })?;
    Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{SandboxAllowances, SandboxPaths};

    fn confinement(paths: SandboxPaths) -> Confinement {
        let reach = SandboxAllowances { network: false, unix_sockets: false, processes: None, memory: None };
        Confinement { paths, start: "/w".into(), reach, support: Support { seatbelt: true, ..probe() } }
    }

    #[test]
    fn later_rules_take_from_what_earlier_ones_allow() {
        let paths = SandboxPaths {
            writable: vec!["/w".into()],
            hidden: vec!["/w/.env".into(), "/home/.ssh".into()],
            frozen: vec!["/w/.git/config".into()],
            fixed: vec!["/w/.git".into(), "/w/.git/objects".into()],
            closed: vec!["/w/.git".into()],
            ..SandboxPaths::default()
        };
        let profile = profile(&confinement(paths)).expect("all are UTF-8").into_string().expect("UTF-8");
        let at = |rule: &str| profile.find(rule).unwrap_or_else(|| panic!("{rule} in {profile}"));
        let order = [
            "(deny default)",
            "(allow file-write*\n  (subpath \"/w\"))",
            "(deny file-write*\n  (subpath \"/w/.git\"))",
            "(allow file-write*\n  (subpath \"/w/.git/objects\"))",
            "(deny file-write-create file-write-unlink\n  (literal \"/w/.git\")",
            "(deny file-write*\n  (subpath \"/w/.git/config\"))",
            "(deny file-read* file-write* process-exec\n  (subpath \"/w/.env\")\n  (subpath \"/home/.ssh\"))",
        ];
        assert!(order.map(at).is_sorted(), "{profile}");
        assert!(!profile.contains("(remote ip)"), "no network but the loopback: {profile}");
    }

    /// A quote in a file name must not end the text, or the rest of the name would be rules.
    #[test]
    fn names_of_files_are_no_rules() {
        assert_eq!(
            quoted(OsStr::new("/a\") (allow default) \\")).expect("UTF-8"),
            r#""/a\") (allow default) \\""#
        );
        let paths =
            SandboxPaths { hidden: vec![OsStr::from_bytes(b"/\xff").into()], ..SandboxPaths::default() };
        assert!(profile(&confinement(paths)).is_err(), "a path that can't be hidden");
    }

    #[test]
    fn a_command_keeps_only_the_variables_that_are_set() {
        let mut plain = Command::new("/bin/sh");
        plain.args(["-c", "true"]).env("A", "1").env_remove("B");
        let made = command(&plain, &confinement(SandboxPaths::default())).expect("there is a sandbox");
        assert_eq!(made.get_program(), SANDBOX_EXEC);
        assert_eq!(made.get_args().skip(2).collect::<Vec<_>>(), ["/bin/sh", "-c", "true"]);
        assert_eq!(made.get_envs().filter_map(|(_, value)| value).collect::<Vec<_>>(), ["1"]);
    }
}
