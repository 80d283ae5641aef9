//! Environments of editors. They are passed as lists, because each attached editor has its own.

use std::ffi::OsString;

/// An environment as a list; the first of several entries with the same name applies.
pub type EnvironmentPairs = [(OsString, OsString)];

/// The value of a variable; an empty one counts as unset.
pub(crate) fn value_of(env: &EnvironmentPairs, name: &str) -> Option<String> {
    let (_, value) = env.iter().find(|(key, _)| key == name)?;
    value.to_str().map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned)
}
