//! The sandbox mechanisms that this system supports, determined once by trying them.

use std::sync::OnceLock;

use crate::system::sandbox;

/// The available sandbox mechanisms. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// The Landlock ABI version; 0 if unsupported.
    pub landlock: u32,
    pub namespaces: Namespaces,
    /// Whether a command can have a process namespace with its own `/proc`.
    pub own_processes: bool,
    /// Whether system calls can be filtered on this architecture.
    pub filter: bool,
    /// Whether commands can be started with a profile of Seatbelt, the sandbox of macOS.
    pub seatbelt: bool,
}

/// The kinds of namespaces that a command can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    #[default]
    None,
    /// Mount and network namespaces, created with the privileges of this process.
    OfAdministrator,
    /// The same within a user namespace.
    OfUser,
}

impl Namespaces {
    /// Whether the kernel counts processes in the namespace separately from the user's others: in a user
    /// namespace, since Linux 5.14. Root's processes are never limited.
    pub fn count_processes(self) -> bool {
        self == Namespaces::OfUser && !crate::process::is_root()
    }
}

/// The first version in which Landlock can confine signals to a command.
const SIGNALS_FROM: u32 = 6;

/// The first version in which Landlock can restrict `truncate`.
const WHOLE_FROM: u32 = 3;

/// Probes the system, once per process; the first call may start processes.
pub fn support() -> &'static Support {
    static SUPPORT: OnceLock<Support> = OnceLock::new();
    SUPPORT.get_or_init(sandbox::probe)
}

impl Support {
    pub fn is_nothing(&self) -> bool {
        self.landlock == 0 && self.namespaces == Namespaces::None && !self.filter && !self.seatbelt
    }

    /// Whether paths below writable ones can be read-only or hidden.
    pub fn excludes_below_writable(&self) -> bool {
        self.namespaces != Namespaces::None || self.seatbelt
    }

    /// A short description of the available mechanisms.
    pub fn words(&self) -> String {
        if self.is_nothing() {
            return sandbox::NONE.to_owned();
        }
        if self.seatbelt {
            return "Seatbelt".to_owned();
        }
        let landlock = match self.landlock {
            0 => "no landlock".to_owned(),
            version => format!("landlock ABI {version}"),
        };
        let namespaces = match self.namespaces {
            Namespaces::None => "no namespaces",
            Namespaces::OfAdministrator => "mount and network namespaces",
            Namespaces::OfUser => "user, mount and network namespaces",
        };
        let processes = match self.own_processes {
            _ if self.namespaces == Namespaces::None => "",
            true => "a process namespace, ",
            false => "no process namespace, ",
        };
        let filter = if self.filter { "seccomp" } else { "no seccomp" };
        format!("{landlock}, {namespaces}, {processes}{filter}")
    }

    /// Describes for the user what isn't enforced on this system.
    pub fn gap(&self) -> Option<String> {
        if self.seatbelt {
            let gap = "Commands are only partly sandboxed: Seatbelt limits neither their processes nor their memory, \
                       and Epitome's profile has not been tested on macOS yet.";
            return Some(gap.to_owned());
        }
        let mut gaps = Vec::new();
        match self.landlock {
            0 => gaps.push("commands can read and change every file that you can".to_owned()),
            version => {
                if version < WHOLE_FROM {
                    gaps.push(format!("its Landlock (ABI {version}) is too old to restrict every change"));
                }
                if version < SIGNALS_FROM {
                    gaps.push("commands can send signals to your other processes".to_owned());
                }
            }
        }
        if self.namespaces == Namespaces::None {
            gaps.push(
                "commands can change files that run later, such as .git/hooks, they have no terminals of their \
                 own, and their processes and memory are not limited"
                    .to_owned(),
            );
            if !self.filter {
                gaps.push("commands reach the network".to_owned());
            }
        }
        if self.namespaces != Namespaces::None && !self.own_processes {
            gaps.push(
                "commands see the command lines of your other processes, and their memory is not limited"
                    .to_owned(),
            );
        }
        if !self.filter {
            gaps.push("commands reach the sockets of other programs".to_owned());
        }
        let head = match self.landlock {
            0 if self.is_nothing() => "Commands run without a sandbox: this system has none of what it needs",
            _ => "Commands are only partly sandboxed: this system lacks some of what the sandbox needs",
        };
        (!gaps.is_empty()).then(|| format!("{head} ({}). So {}.", self.words(), gaps.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_names_only_missing_mechanisms() {
        let gap = |landlock, namespaces, filter| {
            let own_processes = namespaces != Namespaces::None;
            Support { landlock, namespaces, own_processes, filter, seatbelt: false }.gap()
        };
        let complete = Support {
            landlock: 7,
            namespaces: Namespaces::OfUser,
            own_processes: false,
            filter: true,
            seatbelt: false,
        };
        assert!(complete.gap().is_some_and(|gap| gap.contains("command lines")));
        assert_eq!(gap(7, Namespaces::OfUser, true), None);
        for (support, said) in [
            (gap(0, Namespaces::None, false), "without a sandbox"),
            (gap(0, Namespaces::OfUser, true), "every file"),
            (gap(7, Namespaces::None, true), ".git/hooks"),
            (gap(5, Namespaces::OfUser, true), "signals"),
            (gap(2, Namespaces::OfUser, true), "too old"),
            (gap(7, Namespaces::OfUser, false), "sockets"),
        ] {
            let support = support.expect("something is missing");
            assert!(support.contains(said), "{said:?} in {support}");
        }
    }
}
