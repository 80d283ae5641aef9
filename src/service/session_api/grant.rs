//! The rights of a client on another machine, by the token with which it connected.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The scope of a token. Each scope for clients includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessScope {
    /// List, load and watch sessions.
    Read,
    /// Also create sessions, send prompts and cancel turns.
    Prompt,
    /// Also answer permission requests, and everything else.
    Approve,
}

impl AccessScope {
    /// The scopes of new tokens.
    pub const ALL: [AccessScope; 3] = [AccessScope::Read, AccessScope::Prompt, AccessScope::Approve];

    pub fn name(self) -> &'static str {
        match self {
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
    /// The directories in which it may have sessions, with links resolved. `None` are all for `read`, and none for `prompt`:
    /// tokens of earlier versions have none. The scope `approve` is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directories: Option<Vec<PathBuf>>,
}

/// A client asked for something that its token does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs the scope `{}`, and the token {:?} has the scope `{}`; `epitome token create` on the server makes another",
    needed.name(), grant.name, grant.scope.name()
)]
pub struct ScopeError {
    what: String,
    needed: AccessScope,
    grant: AccessGrant,
}

impl AccessGrant {
    /// Checks the scope that `what` needs.
    pub fn check(&self, what: &str, needed: AccessScope) -> Result<(), ScopeError> {
        match self.scope >= needed {
            true => Ok(()),
            false => Err(ScopeError { what: what.to_owned(), needed, grant: self.clone() }),
        }
    }

    /// Checks a directory of a session. Reads the disk. The error is a sentence that says what to do.
    pub fn check_directory(&self, directory: &Path) -> Result<(), String> {
        let is_allowed = match (self.scope, &self.directories) {
            (AccessScope::Approve, _) | (AccessScope::Read, None) => true,
            (AccessScope::Prompt, None) => false,
            (AccessScope::Read | AccessScope::Prompt, Some(allowed)) => directory
                .canonicalize()
                .is_ok_and(|real| allowed.iter().any(|allowed| real.starts_with(allowed))),
        };
        if is_allowed {
            return Ok(());
        }
        Err(format!(
            "the token {:?} is not for sessions in {}; `epitome token create --directory DIR` on the server makes another",
            self.name,
            directory.display()
        ))
    }
}
