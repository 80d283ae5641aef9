//! The logins that `epitome login` stored: API keys of providers, each in a separate private file.
//!
//! They are not settings, but they are looked up together with providers, so [`Settings`](super::Settings) contains
//! the handle. Nothing is cached: a login that another process stores takes effect at the next lookup.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use epitome_files::atomic_file::{lock_for_change, replace_in_private_directory};
use serde::{Deserialize, Serialize};

/// The directory of logins below the user's data.
const DIRECTORY: &str = "logins";

/// Maximum bytes of a login file; tokens have a few kilobytes.
const LOGIN_BYTES_MAX: u64 = 64 * 1024;

/// Maximum number of logins that are listed; there is one per provider.
const LOGINS_MAX: usize = 256;

/// Maximum length of the name of a provider with a login, in bytes.
const PROVIDER_BYTES_MAX: usize = 64;

/// The location of stored logins. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logins {
    directory: Option<PathBuf>,
}

/// A stored login. `Debug` omits the key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLogin {
    /// Scheme, host and port of the service for which the key is valid. It is never sent to another one.
    pub origin: String,
    /// When it was stored, in milliseconds since the Unix epoch.
    pub stored_at: u64,
    #[serde(flatten)]
    pub secret: LoginSecret,
}

/// The credential of a login. Files name its kind, so that others can be added.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LoginSecret {
    /// A key that does not expire.
    ApiKey { key: String },
    /// A ChatGPT sign-in.
    ChatGpt(ChatGptLogin),
}

/// The data of a ChatGPT sign-in. The registration outlives the tokens.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatGptLogin {
    /// Identifies this installation, chosen once.
    pub host_id: String,
    /// The id under which the first sign-in registered this installation.
    pub client_id: Option<String>,
    /// `None` after they became invalid: the user has to sign in again.
    pub tokens: Option<ChatGptTokens>,
}

/// Tokens of a ChatGPT sign-in.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatGptTokens {
    pub access: String,
    /// Can be used once: each refresh replaces it.
    pub refresh: String,
    /// When the access token expires, in milliseconds since the Unix epoch.
    pub expires_at: u64,
    /// The user that signed in.
    pub subject: String,
}

impl fmt::Debug for StoredLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredLogin").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl StoredLogin {
    /// Creates an API key login for the service at `origin`, stored now.
    pub fn api_key(origin: impl Into<String>, key: impl Into<String>) -> StoredLogin {
        StoredLogin::new(origin, LoginSecret::ApiKey { key: key.into() })
    }

    /// Creates a login for the service at `origin`, stored now.
    pub fn new(origin: impl Into<String>, secret: LoginSecret) -> StoredLogin {
        StoredLogin { origin: origin.into(), stored_at: now(), secret }
    }

    /// The texts that must never be displayed.
    pub fn secrets(&self) -> Vec<&str> {
        match &self.secret {
            LoginSecret::ApiKey { key } => vec![key],
            LoginSecret::ChatGpt(login) => {
                login.tokens.iter().flat_map(|tokens| [&*tokens.access, &*tokens.refresh]).collect()
            }
        }
    }

    /// Whether it contains a usable credential.
    pub fn is_usable(&self) -> bool {
        match &self.secret {
            LoginSecret::ApiKey { .. } => true,
            LoginSecret::ChatGpt(login) => login.tokens.is_some(),
        }
    }
}

impl Logins {
    /// Returns the logins in a user's data directory.
    pub fn below(data: &Path) -> Logins {
        Logins { directory: Some(data.join(DIRECTORY)) }
    }

    /// Returns the login for a provider; `None` if none is stored. Fails if the file can't be read or isn't a login.
    pub fn find(&self, provider: &str) -> io::Result<Option<StoredLogin>> {
        let Some(path) = self.file_of(provider) else { return Ok(None) };
        match read(&path) {
            Err(error) if is_missing(&error) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Stores a login, replacing the provider's previous one.
    pub fn store(&self, provider: &str, login: &StoredLogin) -> io::Result<()> {
        self.lock(provider)?.store(login)
    }

    /// Locks a provider's login against changes by other tasks and processes. Waits for the current holder.
    pub fn lock(&self, provider: &str) -> io::Result<LockedLogin> {
        let path = self.file_of(provider).ok_or_else(|| unusable_name(provider))?;
        Ok(LockedLogin { _lock: lock_for_change(&path)?, path })
    }

    /// Removes a login; `None` if there was none. A file that isn't a login is removed too.
    pub fn remove(&self, provider: &str) -> io::Result<Option<RemovedLogin>> {
        let Some(path) = self.file_of(provider).filter(|path| path.exists()) else { return Ok(None) };
        let _lock = lock_for_change(&path)?;
        let login = read(&path).ok();
        match fs::remove_file(&path) {
            Ok(()) => Ok(Some(RemovedLogin { login })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The providers that have a login, sorted.
    pub fn providers(&self) -> Vec<String> {
        let entries = self.directory.as_ref().and_then(|directory| fs::read_dir(directory).ok());
        let names = entries.into_iter().flatten().flatten().map(|entry| PathBuf::from(entry.file_name()));
        let mut providers: Vec<String> = names
            .filter(|name| name.extension().is_some_and(|extension| extension == "json"))
            .filter_map(|name| Some(name.file_stem()?.to_str()?.to_owned()))
            .take(LOGINS_MAX)
            .collect();
        providers.sort();
        providers
    }

    /// The texts of all logins that must never be displayed, with the names of their providers. Unreadable files are
    /// skipped.
    pub fn secrets(&self) -> Vec<(String, String)> {
        let mut secrets = Vec::new();
        for provider in self.providers() {
            if let Ok(Some(login)) = self.find(&provider) {
                secrets.extend(login.secrets().into_iter().map(|text| (provider.clone(), text.to_owned())));
            }
        }
        secrets
    }

    /// Returns the file of a provider's login; `None` without a directory, or for an invalid file name.
    fn file_of(&self, provider: &str) -> Option<PathBuf> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let fits = (1..=PROVIDER_BYTES_MAX).contains(&provider.len());
        let is_name = fits && !provider.starts_with('.') && provider.bytes().all(is_plain);
        let directory = self.directory.as_ref().filter(|_| is_name)?;
        Some(directory.join(format!("{provider}.json")))
    }
}

/// A login that is no longer stored.
pub struct RemovedLogin {
    /// `None` if the file was damaged.
    pub login: Option<StoredLogin>,
}

/// A login that is locked against other changes.
pub struct LockedLogin {
    _lock: fs::File,
    path: PathBuf,
}

impl LockedLogin {
    pub fn store(&self, login: &StoredLogin) -> io::Result<()> {
        replace_in_private_directory(&self.path, &serde_json::to_vec(login)?)
    }
}

fn unusable_name(provider: &str) -> io::Error {
    let what = format!("no file can be named after the provider {provider:?}");
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Reads a login. Errors don't quote the file.
fn read(path: &Path) -> io::Result<StoredLogin> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LOGIN_BYTES_MAX).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it does not contain a login"))
}

/// Milliseconds since the Unix epoch.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_login_is_a_private_file_that_every_handle_sees() {
        let data = tempfile::tempdir().expect("a temporary directory");
        let logins = Logins::below(data.path());
        assert_eq!(logins.find("anthropic").expect("nothing is in the way"), None);
        let login = StoredLogin::api_key("https://api.anthropic.com", "sk-made-up");
        logins.store("anthropic", &login).expect("it is written");
        let other = Logins::below(data.path());
        assert_eq!(other.find("anthropic").expect("it is read"), Some(login.clone()));
        assert_eq!(other.secrets(), [("anthropic".to_owned(), "sk-made-up".to_owned())]);
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&data.path().join("logins/anthropic.json")), 0o600);
        assert_eq!(mode(&data.path().join("logins")), 0o700);
        assert!(!format!("{login:?}").contains("sk-made-up"));
        assert!(logins.remove("anthropic").expect("it is removed").is_some());
        assert!(other.remove("anthropic").expect("nothing is left").is_none());
        assert_eq!(other.providers(), Vec::<String>::new());
    }

    #[test]
    fn a_damaged_login_is_an_error_that_quotes_nothing() {
        let data = tempfile::tempdir().expect("a temporary directory");
        let logins = Logins::below(data.path());
        logins.store("openai", &StoredLogin::api_key("https://api.openai.com", "k")).expect("it is written");
        fs::write(data.path().join("logins/openai.json"), "{\"key\":\"sk-made-up\"").expect("it is written");
        let error = logins.find("openai").expect_err("it is no login").to_string();
        assert_eq!(error, "it does not contain a login");
        assert!(logins.remove("openai").expect("it is removed").is_some());
    }

    #[test]
    fn no_name_of_a_provider_leads_out_of_the_directory() {
        let data = tempfile::tempdir().expect("a temporary directory");
        let logins = Logins::below(data.path());
        for name in ["", "..", "../x", "a/b", ".hidden", "a\0b"] {
            assert!(logins.store(name, &StoredLogin::api_key("o", "k")).is_err(), "{name:?}");
            assert_eq!(logins.find(name).expect("it can't be there"), None, "{name:?}");
        }
    }
}
