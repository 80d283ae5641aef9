//! What a client from another machine may do, by the token with which it connected.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What a token allows. Each scope for clients includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessScope {
    /// Serve clients of the server as its worker, and call its models, and nothing that a client may do.
    Work,
    /// List, load and watch sessions.
    Read,
    /// Also create sessions, send prompts and cancel turns.
    Prompt,
    /// Also answer permission requests, and everything else.
    Approve,
}

impl AccessScope {
    pub const ALL: [AccessScope; 4] =
        [AccessScope::Read, AccessScope::Prompt, AccessScope::Approve, AccessScope::Work];

    pub fn name(self) -> &'static str {
        match self {
            AccessScope::Work => "work",
            AccessScope::Read => "read",
            AccessScope::Prompt => "prompt",
            AccessScope::Approve => "approve",
        }
    }
}

/// The rights of a client, and who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessGrant {
    /// The name of its token.
    pub name: String,
    pub scope: AccessScope,
    /// The real paths of the directories below which its sessions may work; everywhere if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<PathBuf>,
}

impl AccessGrant {
    /// Checks the scope. The error is a sentence that says what to do.
    pub fn check(&self, what: &str, needed: AccessScope) -> Result<(), String> {
        if self.scope >= needed {
            return Ok(());
        }
        Err(format!(
            "{what} needs the scope `{}`, and the token {:?} has the scope `{}`; `epitome token create` on the server \
             makes another",
            needed.name(),
            self.name,
            self.scope.name()
        ))
    }

    /// Checks that sessions may work in a directory. The error is a sentence.
    pub fn check_directory(&self, directory: &Path) -> Result<(), String> {
        if self.directories.is_empty() {
            return Ok(());
        }
        let real = directory.canonicalize();
        let real = real.map_err(|error| format!("{} can't be used: {error}", directory.display()))?;
        if self.directories.iter().any(|allowed| real.starts_with(allowed)) {
            return Ok(());
        }
        let allowed: Vec<String> = self.directories.iter().map(|path| path.display().to_string()).collect();
        Err(format!(
            "{} is not below {}, where this worker allows sessions",
            real.display(),
            allowed.join(" or ")
        ))
    }
}
