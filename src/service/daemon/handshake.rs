//! The handshake: a front end introduces itself, and the daemon accepts or refuses it.
//!
//! One JSON line each way. Everything after them may change with `PROTOCOL`; these two lines only gain
//! fields, so that any two versions can at least detect that they are incompatible.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::build::{Build, VERSION};
use super::control::EnvironmentObject;
use super::token::Token;
use epitome_files::paths::Paths;
use epitome_session::AccessGrant;
use epitome_session::registry::Overrides;

/// Version of the protocol that follows the two handshake lines.
pub const PROTOCOL: u32 = 4;

/// How long a connection waits for its client to return after its sockets have failed. Turns continue in the meantime.
pub const RETURN_TIME_MAX: Duration = Duration::from_secs(60);

/// Longest hello, in bytes: an environment is a few megabytes at most.
pub const HELLO_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Longest answer to a hello, in bytes.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// The first message of a front end: facts about itself and its editor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    #[serde(flatten)]
    pub build: Build,
    pub pid: u32,
    #[serde(with = "bytes")]
    pub cwd: OsString,
    pub place: Home,
    /// The secret of the daemon, from its file.
    pub token: Token,
    /// The editor's environment.
    pub environment: EnvironmentObject,
    /// Overrides from the command line that the editor launched.
    #[serde(default)]
    pub overrides: Overrides,
    /// The highest id of a daemon request that this front end has seen; the daemon must use higher ones.
    #[serde(default)]
    pub ids_above: u64,
    /// The address of this front end's server for clients of other machines, if others may forward to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_at: Option<String>,
    /// The rights of a client on another machine. `None` for the user, who has all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<AccessGrant>,
}

/// The directories a daemon works on. A front end with different ones needs another daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    #[serde(with = "bytes")]
    pub home: OsString,
    #[serde(with = "bytes")]
    pub data: OsString,
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", Path::new(&self.home).display(), Path::new(&self.data).display())
    }
}

impl Home {
    pub fn new(paths: &Paths) -> Home {
        Home { home: paths.home.clone().into_os_string(), data: paths.data.clone().into_os_string() }
    }

    /// Checks that a client of a daemon for this home has the same one.
    pub fn check(&self, theirs: &Home, client: &'static str) -> Result<(), HelloError> {
        match theirs == self {
            true => Ok(()),
            false => Err(HelloError::OtherHome { ours: self.clone(), client, theirs: theirs.clone() }),
        }
    }
}

/// The daemon's answer to a hello.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HelloAnswer {
    #[serde(flatten)]
    pub build: Build,
    pub pid: u32,
    /// Why the front end is refused, as a sentence. If absent, messages follow.
    pub refused: Option<String>,
    /// Whether it restricts clients to their grants. Daemons of earlier versions would give them all rights.
    #[serde(default)]
    pub restricts: bool,
}

/// The part of a hello that every version has.
#[derive(Deserialize)]
struct HelloCore {
    protocol: u32,
    version: String,
}

/// Why a client can't be served.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    #[error("the hello can't be read: {0}")]
    Parse(#[from] serde_json::Error),
    #[error(
        "the daemon (version {VERSION}) speaks protocol {PROTOCOL}, and the front end (version {version}) {protocol}"
    )]
    Protocol { version: String, protocol: u32 },
    #[error(
        "the front end does not know the daemon's token, so it may not read the daemon's directory for sockets"
    )]
    Token,
    #[error("the running daemon uses another home ({ours}) than the {client} ({theirs})")]
    OtherHome { ours: Home, client: &'static str, theirs: Home },
}

/// Parses a hello whose sender can be served by a daemon for these paths.
pub fn read(line: &[u8], paths: &Paths, token: &Token) -> Result<Hello, HelloError> {
    let HelloCore { protocol, version } = serde_json::from_slice(line)?;
    if protocol != PROTOCOL {
        return Err(HelloError::Protocol { version, protocol });
    }
    let hello: Hello = serde_json::from_slice(line)?;
    if !token.matches(hello.token.text()) {
        return Err(HelloError::Token);
    }
    Home::new(paths).check(&hello.place, "front end")?;
    Ok(hello)
}

impl Hello {
    pub fn cwd(&self) -> PathBuf {
        PathBuf::from(&self.cwd)
    }

    /// Serializes it as one line, including the newline.
    pub fn to_line(&self) -> Vec<u8> {
        line(self)
    }
}

impl HelloAnswer {
    pub fn to_line(&self) -> Vec<u8> {
        line(self)
    }
}

fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("it is made of texts and numbers");
    line.push(b'\n');
    line
}

/// Serializes an `OsString`, which need not be valid UTF-8, as base64.
mod bytes {
    use epitome_platform::os::{OsStrExt, OsStringExt};
    use std::ffi::{OsStr, OsString};

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(text: &OsStr, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(text.as_bytes()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<OsString, D::Error> {
        let decoded = STANDARD.decode(String::deserialize(from)?);
        decoded.map(OsString::from_vec).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    fn token() -> Token {
        serde_json::from_str("\"made-up-token\"").expect("a text")
    }

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            build: Build::current().clone(),
            pid: 7,
            cwd: "/w".into(),
            place: Home::new(&Paths::below(Path::new("/h"))),
            token: token(),
            environment: EnvironmentObject(vec![
                ("A".into(), OsString::from_vec(vec![0xff, b'\n', b'"'])),
                ("B".into(), "".into()),
            ]),
            overrides: Overrides { model: Some("a/b".into()), ..Overrides::default() },
            ids_above: 12,
            served_at: None,
            grant: None,
        }
    }

    #[test]
    fn a_hello_roundtrips_with_non_utf8_values() {
        let line = hello().to_line();
        assert_eq!(memchr::memchr(b'\n', &line), Some(line.len() - 1), "one line");
        assert_eq!(read(&line, &Paths::below(Path::new("/h")), &token()).expect("a hello"), hello());
    }

    #[test]
    fn a_refusal_names_both_protocols_or_both_homes() {
        let paths = Paths::below(Path::new("/h"));
        let newer = Build { version: "9.9.9".into(), ..Build::current().clone() };
        let future = Hello { protocol: 99, build: newer, ..hello() };
        let mut strange: serde_json::Value = serde_json::from_slice(&future.to_line()).expect("it is JSON");
        strange.as_object_mut().expect("an object").remove("environment");
        for line in [future.to_line(), strange.to_string().into_bytes()] {
            let why = read(&line, &paths, &token()).expect_err("another protocol").to_string();
            assert!(why.contains("99") && why.contains("9.9.9") && why.contains(VERSION), "{why}");
        }
        let why = read(&hello().to_line(), &Paths::below(Path::new("/other")), &token())
            .expect_err("other files")
            .to_string();
        assert!(why.contains("/h/data") && why.contains("/other/data"), "{why}");
    }

    #[test]
    fn a_front_end_without_the_token_is_refused() {
        let paths = Paths::below(Path::new("/h"));
        for other in ["\"\"", "\"another\""] {
            let hello = Hello { token: serde_json::from_str(other).expect("a text"), ..hello() };
            let why = read(&hello.to_line(), &paths, &token()).expect_err("another token").to_string();
            assert!(why.contains("token"), "{why}");
        }
        assert!(
            read(&hello().to_line(), &paths, &Token::default()).is_err(),
            "a daemon without one serves no client"
        );
    }
}
