//! Functions that only Linux supports: on other systems they find nothing and do nothing.

/// How processes are confined, which is not known here.
pub mod confinement {
    use std::io;

    use crate::os::Pid;

    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ProcessConfinement;

    impl ProcessConfinement {
        pub fn current() -> io::Result<ProcessConfinement> {
            Ok(ProcessConfinement)
        }

        pub fn for_process(_: Pid) -> io::Result<ProcessConfinement> {
            Ok(ProcessConfinement)
        }

        /// Only the first process of a command is recognized.
        pub fn lacks_ancestor_of(&self, process: Pid, is_command: impl Fn(Pid) -> bool) -> bool {
            is_command(process)
        }

        pub fn exceeds(&self, _: &ProcessConfinement) -> Option<&'static str> {
            None
        }
    }
}

/// Changed entries of a directory, which are not reported.
pub mod directory_watch {
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::io;
    use std::path::Path;

    #[derive(Debug)]
    pub struct DirectoryWatch;

    impl DirectoryWatch {
        pub fn new(_: &Path) -> io::Result<DirectoryWatch> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub fn changed(&self) -> Option<BTreeSet<OsString>> {
            None
        }

        pub fn has_changes(&self) -> bool {
            true
        }
    }
}

/// Moved and removed entries, which are not reported.
pub mod place_watch {
    use std::io;
    use std::path::Path;

    #[derive(Debug)]
    pub enum PlaceWatch {}

    impl PlaceWatch {
        pub fn new(_: &Path) -> io::Result<PlaceWatch> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub async fn changed(&self) -> io::Result<()> {
            match *self {}
        }
    }
}

/// Replaced files. No sandbox here depends on which file is at a path.
pub mod entry_watch {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use crate::os::{OwnedFd, Pid};

    #[derive(Debug)]
    pub struct EntryWatch;

    #[derive(Debug)]
    pub enum EntryNews {
        Quiet,
        Replaced(PathBuf),
        Ended,
    }

    impl EntryWatch {
        pub fn new<'a>(_: impl Iterator<Item = &'a Path>) -> EntryWatch {
            EntryWatch
        }

        pub fn wait(&self, _: &OwnedFd, _: Duration) -> io::Result<EntryNews> {
            Ok(EntryNews::Quiet)
        }
    }

    pub fn descriptor_of(_: Pid) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The holder of a file lock, which is not known here.
pub mod holder {
    pub fn holder(_: &std::path::Path) -> Option<String> {
        None
    }
}

/// Returning memory to the system, which its allocator does.
pub mod memory_trim {
    pub fn share_heaps() {}

    pub fn let_go_of_program() {}

    pub fn trim() {}
}

/// Copies of programs in memory, from which nothing can be executed here.
pub mod sealed {
    use std::io;
    use std::process::Command;

    pub struct SealedProgram;

    impl SealedProgram {
        pub fn new(_: &[u8]) -> io::Result<SealedProgram> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub fn command(&self) -> Command {
            Command::new("")
        }
    }
}
