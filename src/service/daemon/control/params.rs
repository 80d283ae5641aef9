//! Parameters of calls: JSON objects, parsed strictly so that a misspelled name is reported instead of
//! ignored.

use epitome_platform::os::{OsStrExt, OsStringExt};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::fault::{Fault, FaultKind};
use crate::Daemon;
use epitome_session_library::{self as session_library, LibraryError};
use epitome_thread::{PartId, Seq, SessionId};

/// Parses the parameters of a method; absent ones count as an empty object.
pub fn read<P: DeserializeOwned>(method: &str, params: Option<&str>) -> Result<P, Fault> {
    let text = params.unwrap_or("{}");
    if !text.trim_start().starts_with('{') {
        let message = format!("{method}: parameters must be an object, such as {{\"session\": \"s_…\"}}");
        return Err(Fault::new(FaultKind::InvalidParams, message).hint(DOCS_HINT));
    }
    serde_json::from_str(text).map_err(|error| {
        // Drops the position: it is relative to the parameters, which are only a part of the line that the
        // caller sent.
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        Fault::new(FaultKind::InvalidParams, format!("{method}: {message}")).hint(DOCS_HINT)
    })
}

const DOCS_HINT: &str = "docs/builders/control.md has the parameters of every method";

/// Parameters of a method that takes none.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// Parameters of a method that takes only a session.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionParams {
    pub session: SessionName,
}

/// Names a session: its id or a unique prefix of it; the leading `s_` may be omitted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SessionName(pub String);

impl SessionName {
    /// Resolves the session. Reads the disk if only a prefix is given.
    pub fn find(&self, daemon: &Daemon) -> Result<SessionId, Fault> {
        if let Some(session) = SessionId::parse(&self.0) {
            return Ok(session);
        }
        session_library::resolve(&daemon.store, &self.0).map_err(|error| match error {
            LibraryError::Refused { message, hint } => Fault { kind: FaultKind::NotFound, message, hint },
            other => other.into(),
        })
    }

    /// Like [`SessionName::find`], on a thread that may block.
    pub async fn find_blocking(&self, daemon: &Arc<Daemon>) -> Result<SessionId, Fault> {
        if let Some(session) = SessionId::parse(&self.0) {
            return Ok(session);
        }
        let (name, finding) = (self.clone(), daemon.clone());
        spawn_blocking(daemon, move || name.find(&finding)).await
    }
}

/// Runs blocking work on its own thread. If the future is dropped, the thread continues and keeps its disk
/// permit until it ends.
pub async fn spawn_blocking<T: Send + 'static>(
    daemon: &Daemon,
    act: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let room = daemon.control.disk_permit().await;
    let done = tokio::task::spawn_blocking(move || {
        let done = act();
        drop(room);
        done
    });
    let done = done.await;
    done.unwrap_or_else(|error| Err(Fault::new(FaultKind::Internal, error.to_string())))
}

/// An entry, written as `"e5"` or `5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct EntryName(pub Seq);

impl TryFrom<Value> for EntryName {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<EntryName, &'static str> {
        let named = || match value.as_str()?.parse() {
            Ok(PartId { entry, part: None }) => Some(entry),
            Ok(PartId { part: Some(_), .. }) | Err(()) => None,
        };
        let entry = value.as_u64().map(Seq).or_else(named);
        entry.map(EntryName).ok_or("name an entry as \"e5\" or 5")
    }
}

/// An environment: an object of names and values. A value that is not UTF-8 is `{"base64": "…"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct EnvironmentObject(pub Vec<(OsString, OsString)>);

impl EnvironmentObject {
    /// The environment of this process.
    pub fn current() -> EnvironmentObject {
        EnvironmentObject(epitome_platform::os::environment())
    }

    pub fn shared(self) -> Arc<Vec<(OsString, OsString)>> {
        Arc::new(self.0)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum VariableValue {
    Text(String),
    Bytes { base64: String },
}

impl VariableValue {
    fn new(value: &OsStr) -> VariableValue {
        match value.to_str() {
            Some(text) => VariableValue::Text(text.to_owned()),
            None => VariableValue::Bytes { base64: STANDARD.encode(value.as_bytes()) },
        }
    }

    fn read(self) -> Option<OsString> {
        match self {
            VariableValue::Text(text) => Some(text.into()),
            VariableValue::Bytes { base64 } => STANDARD.decode(base64).ok().map(OsString::from_vec),
        }
    }
}

impl Serialize for EnvironmentObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Names that are not UTF-8 are skipped: they are never looked up.
        let named =
            self.0.iter().filter_map(|(name, value)| Some((name.to_str()?, VariableValue::new(value))));
        serializer.collect_map(named)
    }
}

impl TryFrom<Value> for EnvironmentObject {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<EnvironmentObject, &'static str> {
        let read = |(name, value): (String, Value)| {
            Some((name.into(), VariableValue::deserialize(value).ok()?.read()?))
        };
        let variables = match value {
            Value::Object(variables) => variables.into_iter().map(read).collect::<Option<_>>(),
            _ => None,
        };
        variables.map(EnvironmentObject).ok_or("an environment is an object of names and texts")
    }
}

/// Checks a directory parameter. It must be absolute, because the daemon has no meaningful current directory.
pub fn directory(path: PathBuf) -> Result<PathBuf, Fault> {
    if path.is_absolute() {
        return Ok(path);
    }
    let message = format!("{} is not an absolute path", path.display());
    Err(Fault::new(FaultKind::InvalidParams, message).hint("give `cwd` as an absolute path"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn invalid_parameters_are_reported_with_the_expected_ones() {
        for (params, expected) in [
            (r#"{"sesion": "s_1"}"#, "sessions.show: unknown field `sesion`, expected `session`"),
            (r#"{}"#, "sessions.show: missing field `session`"),
            (r#"{"session": 5}"#, "sessions.show: invalid type: integer `5`, expected a string"),
            (r#"["s_1"]"#, "sessions.show: parameters must be an object"),
        ] {
            let fault = read::<SessionParams>("sessions.show", Some(params)).expect_err("it is wrong");
            assert!(fault.message.starts_with(expected), "{params}: {}", fault.message);
            assert_eq!(fault.kind, FaultKind::InvalidParams);
        }
        assert!(read::<NoParams>("status", None).is_ok());
    }

    #[test]
    fn entries_are_named_by_number_or_by_name() {
        for (written, wanted) in [(json!(5), Some(5)), (json!("e5"), Some(5)), (json!("5"), None)] {
            let read = serde_json::from_value::<EntryName>(written.clone()).ok();
            assert_eq!(read, wanted.map(|number| EntryName(Seq(number))), "{written}");
        }
    }

    #[test]
    fn an_environment_roundtrips_unchanged() {
        let odd = OsString::from_vec(vec![b'a', 0xff]);
        let environment = EnvironmentObject(vec![("A".into(), "1".into()), ("B".into(), odd)]);
        let written = serde_json::to_value(&environment).expect("it is JSON");
        assert_eq!(written, json!({"A": "1", "B": {"base64": "Yf8="}}));
        assert_eq!(serde_json::from_value::<EnvironmentObject>(written).expect("it is one"), environment);
        assert!(serde_json::from_value::<EnvironmentObject>(json!({"A": 1})).is_err());
    }
}
