//! The secret that a client of either socket has to know: only processes that can read the runtime directory can
//! command the daemon. Sandboxed commands can't read it, even if the sandbox lets them connect to sockets.

use std::fmt;
use std::io::{self, ErrorKind, Read};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::runtime_dir::RuntimeDir;
use epitome_files::atomic_file;

/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1024;

/// 256 random bits in hexadecimal, new with each daemon. `Debug` doesn't print them.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Creates a token and stores it where clients look for it, in a file that only the user can read. The daemon
    /// calls this before it listens, so that a client that can connect finds the token of the daemon that answers.
    pub fn create(runtime_dir: &RuntimeDir) -> io::Result<Token> {
        let token = Token(secret()?);
        token.store(runtime_dir)?;
        Ok(token)
    }

    /// Stores the token of this daemon again, whose file was removed.
    pub fn store(&self, runtime_dir: &RuntimeDir) -> io::Result<()> {
        atomic_file::replace_private_unsynced(&runtime_dir.token(), format!("{}\n", self.0).as_bytes())
    }

    /// Reads the token of the running daemon. If there is no file, the token is empty, which no daemon with a token
    /// accepts. Call this after connecting.
    pub fn read(runtime_dir: &RuntimeDir) -> io::Result<Token> {
        let mut text = String::new();
        match std::fs::File::open(runtime_dir.token()) {
            // A daemon of an earlier version has no token and does not ask for one.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Token::default()),
            Err(error) => return Err(error),
            Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text)?,
        };
        Ok(Token(text.trim_end().to_owned()))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether a client's secret is this token.
    pub fn matches(&self, given: &str) -> bool {
        !self.0.is_empty() && is_same(&self.0, given)
    }
}

/// Compares secrets through their digests, so that the time taken reveals nothing about them.
pub fn is_same(a: &str, b: &str) -> bool {
    Sha256::digest(a) == Sha256::digest(b)
}

/// 256 random bits in hexadecimal.
pub fn secret() -> io::Result<String> {
    let mut bytes = [0; 32];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| io::Error::other("the system provides no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_private_and_new_with_each_daemon() {
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let runtime_dir = RuntimeDir { directory: scratch.path().to_path_buf() };
        assert!(!Token::read(&runtime_dir).expect("no file").matches(""), "no token is not an empty one");
        let first = Token::create(&runtime_dir).expect("a token");
        let mode = std::fs::metadata(runtime_dir.token()).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = Token::create(&runtime_dir).expect("a token");
        let read = Token::read(&runtime_dir).expect("it is there");
        assert!(second.matches(read.text()) && !first.matches(read.text()) && !second.matches(""));
        assert!(!format!("{second:?}").contains(second.text()));
    }
}
