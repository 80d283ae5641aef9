//! The tokens of clients on other machines: a private file with their names, scopes and digests. It is read at each
//! connection, so that a change applies at once.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::token::secret;
use epitome_files::atomic_file;
use epitome_session::{AccessGrant, AccessScope};
use epitome_store::digest;

/// The prefix of a token, by which scanners for secrets recognize it.
const PREFIX: &str = "epitome-";

/// Maximum number of tokens: each connection is compared with all of them.
const TOKENS_MAX: usize = 1000;

/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Longest name of a token, in characters. It is shown next to prompts.
const NAME_CHARS_MAX: usize = 40;

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredToken {
    pub name: String,
    pub scope: AccessScope,
    /// The directories of its sessions; see `AccessGrant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directories: Option<Vec<PathBuf>>,
    /// SHA-256 of the secret, in hexadecimal.
    sha256: String,
    /// Seconds since the Unix epoch.
    pub created_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
}

impl StoredToken {
    pub fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= now())
    }

    pub fn grant(&self) -> AccessGrant {
        AccessGrant { name: self.name.clone(), scope: self.scope, directories: self.directories.clone() }
    }
}

#[derive(Default, Serialize, Deserialize)]
struct TokenFileContent {
    tokens: Vec<StoredToken>,
}

/// The file. Errors are sentences for the user.
#[derive(Clone, Debug)]
pub struct RemoteTokens {
    path: PathBuf,
}

/// Why tokens can't be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteTokenError {
    #[error("{} can't be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} can't be changed: {source}", path.display())]
    Change { path: PathBuf, source: io::Error },
    #[error("no token can be made: {0}")]
    NoSecret(#[source] io::Error),
    #[error(
        "there is a token {0:?} already; choose another name, or remove it with `epitome token revoke {0}`"
    )]
    Exists(String),
    #[error("there are {TOKENS_MAX} tokens already; `epitome token revoke` removes one")]
    TooMany,
    #[error("a token needs a name")]
    NoName,
    #[error("a token's name has at most {NAME_CHARS_MAX} characters")]
    LongName,
    #[error("a token's name has letters, digits and the characters - _ . @, and {0:?} has others")]
    Name(String),
}

impl RemoteTokens {
    pub fn below(data: &Path) -> RemoteTokens {
        RemoteTokens { path: data.join("remote-tokens.json") }
    }

    /// All tokens, oldest first.
    pub fn list(&self) -> Result<Vec<StoredToken>, RemoteTokenError> {
        let unread = |source: io::Error| RemoteTokenError::Read { path: self.path.clone(), source };
        let mut text = String::new();
        let read =
            File::open(&self.path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(unread)?,
        };
        let content: TokenFileContent = serde_json::from_str(&text).map_err(|error| unread(error.into()))?;
        Ok(content.tokens)
    }

    /// Creates a token and returns its secret, which is not stored.
    pub fn create(
        &self,
        name: &str,
        scope: AccessScope,
        directories: Option<Vec<PathBuf>>,
        lifetime: Option<Duration>,
    ) -> Result<(StoredToken, String), RemoteTokenError> {
        check_name(name)?;
        let secret = secret().map_err(RemoteTokenError::NoSecret)?;
        let secret = format!("{PREFIX}{secret}");
        let token = StoredToken {
            name: name.to_owned(),
            scope,
            directories,
            sha256: digest(secret.as_bytes()),
            created_at: now(),
            expires_at: lifetime.map(|lifetime| now().saturating_add(lifetime.as_secs())),
        };
        self.change(|tokens| {
            if tokens.iter().any(|token| token.name == name) {
                return Err(RemoteTokenError::Exists(name.to_owned()));
            }
            if tokens.len() >= TOKENS_MAX {
                return Err(RemoteTokenError::TooMany);
            }
            tokens.push(token.clone());
            Ok(())
        })?;
        Ok((token, secret))
    }

    /// Removes a token, whose connections end. Returns whether there was one with this name.
    pub fn revoke(&self, name: &str) -> Result<bool, RemoteTokenError> {
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            Ok(tokens.len() < before)
        })
    }

    /// The valid token with this secret. Takes the same time for every token.
    pub fn find(&self, secret: &str) -> Result<Option<StoredToken>, RemoteTokenError> {
        let given = digest(secret.as_bytes());
        let mut found = None;
        for token in self.list()? {
            if bool::from(token.sha256.as_bytes().ct_eq(given.as_bytes())) && !token.is_expired() {
                found = Some(token);
            }
        }
        Ok(found)
    }

    /// Whether a token that was found is still valid.
    pub fn is_valid(&self, token: &StoredToken) -> Result<bool, RemoteTokenError> {
        Ok(!token.is_expired() && self.list()?.contains(token))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut Vec<StoredToken>) -> Result<T, RemoteTokenError>,
    ) -> Result<T, RemoteTokenError> {
        let failed = |source: io::Error| RemoteTokenError::Change { path: self.path.clone(), source };
        let _lock = atomic_file::lock_for_change(&self.path).map_err(failed)?;
        let mut tokens = self.list()?;
        let changed = change(&mut tokens)?;
        let mut json = serde_json::to_vec_pretty(&TokenFileContent { tokens })
            .map_err(io::Error::from)
            .map_err(failed)?;
        json.push(b'\n');
        atomic_file::replace_private(&self.path, &json).map_err(failed)?;
        Ok(changed)
    }
}

/// Checks the name of a token, which is shown next to prompts and in logs.
fn check_name(name: &str) -> Result<(), RemoteTokenError> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    match name {
        "" => Err(RemoteTokenError::NoName),
        _ if name.chars().count() > NAME_CHARS_MAX => Err(RemoteTokenError::LongName),
        _ if !name.chars().all(is_plain) => Err(RemoteTokenError::Name(name.to_owned())),
        _ => Ok(()),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_digest_of_a_token_is_stored_and_only_the_user_can_read_it() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let tokens = RemoteTokens::below(scratch.path());
        let (_, secret) = tokens.create("laptop", AccessScope::Read, None, None).expect("a token");
        let text = std::fs::read_to_string(&tokens.path).expect("a file");
        let random = secret.strip_prefix(PREFIX).expect("a prefix");
        assert!(random.len() == 64 && !text.contains(random), "{text}");
        let mode = std::fs::metadata(&tokens.path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_token_is_valid_until_it_expires_or_is_revoked() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let tokens = RemoteTokens::below(scratch.path());
        let (laptop, secret) = tokens.create("laptop", AccessScope::Prompt, None, None).expect("a token");
        let (old, expired) =
            tokens.create("old", AccessScope::Read, None, Some(Duration::ZERO)).expect("a token");
        assert!(tokens.create("laptop", AccessScope::Read, None, None).is_err(), "the name is taken");
        assert_eq!(tokens.find(&secret).expect("read"), Some(laptop.clone()));
        assert_eq!(tokens.find(&expired).expect("read"), None);
        assert!(!tokens.is_valid(&old).expect("read"));
        assert_eq!(tokens.find("epitome-").expect("read"), None);
        assert!(tokens.revoke("laptop").expect("changed"));
        assert_eq!(tokens.find(&secret).expect("read"), None);
        assert!(!tokens.is_valid(&laptop).expect("read"));
        assert!(!tokens.revoke("laptop").expect("changed"));
    }

    #[test]
    fn names_are_short_and_plain() {
        assert!(check_name("anna@build-1.example").is_ok());
        for bad in ["", "a b", "a\nb", "\u{202e}a", &"a".repeat(41)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
