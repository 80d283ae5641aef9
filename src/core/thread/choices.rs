//! A session's settings: its model, permission mode and rules, and reasoning effort. They are stored in the
//! log, so their names are stable.

use std::fmt;
use std::path::PathBuf;

use crate::named_enum;
use serde::{Deserialize, Deserializer, Serialize};

/// `provider/name`, for example `anthropic/claude-sonnet-5-5`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModelName(pub String);

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ModelName {
    /// Parses a name as users write it: the provider may be omitted for the vendors' own models.
    pub fn parse(name: &str) -> ModelName {
        let name = name.trim();
        let provider = match name {
            _ if name.contains('/') => None,
            _ if name.starts_with("claude-") => Some("anthropic"),
            _ if name.starts_with("gpt-") => Some("openai"),
            _ if name.starts_with("gemini-") => Some("gemini"),
            _ => None,
        };
        ModelName(provider.map_or(name.to_owned(), |provider| format!("{provider}/{name}")))
    }

    /// Splits the name at the first slash into provider and model. `None` if either is missing.
    pub fn split(&self) -> Option<(&str, &str)> {
        self.0.split_once('/').filter(|(provider, name)| !provider.is_empty() && !name.is_empty())
    }
}

named_enum! {
    /// The permission mode: which actions the agent may take without permission. The ids are those on the wire.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Mode {
        #[default]
        Ask = "ask",
        AcceptEdits = "accept_edits",
        Auto = "auto",
        ReadOnly = "read_only",
        Full = "full",
    }
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Ask => "Ask",
            Mode::AcceptEdits => "Accept edits",
            Mode::Auto => "Auto",
            Mode::ReadOnly => "Plan",
            Mode::Full => "Full access",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Mode::Ask => "Reads the workspace; asks before edits and commands",
            Mode::AcceptEdits => "Edits the workspace; asks before commands",
            Mode::Auto => "Edits the workspace and runs commands in the sandbox; asks for anything outside",
            Mode::ReadOnly => "Reads, searches and makes a plan; no edits, no commands",
            Mode::Full => "Edits and runs commands; asks only before writing outside the workspace",
        }
    }
}

/// Reads a mode from a log. A mode that this version does not know becomes `Ask`, so that the log of a newer version
/// is readable but grants nothing.
pub(super) fn mode_or_ask<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
    let id = String::deserialize(deserializer)?;
    Ok(Mode::parse(&id).unwrap_or(Mode::Ask))
}

named_enum! {
    /// The model's reasoning effort.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ThoughtLevel {
        Off = "off",
        Low = "low",
        #[default]
        Medium = "medium",
        High = "high",
        Max = "max",
    }
}

/// A permission for the rest of a session, never wider than what the user was shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Rule {
    /// Edits inside the workspace by any file tool.
    EditsInWorkspace,
    /// This exact command line, byte for byte.
    Command { line: String },
    /// This exact command line, byte for byte, outside of the sandbox.
    CommandOutside { line: String },
    /// Reads below this directory, which is outside of the workspace.
    ReadsBelow { path: PathBuf },
    /// Fetches from this host, exactly as named in the URL.
    Fetch { host: String },
    /// This tool of this MCP server.
    External { server: String, tool: String },
}

impl Rule {
    /// A description of the permission for the user.
    pub fn words(&self) -> String {
        match self {
            Rule::EditsInWorkspace => "edits in the workspace".to_owned(),
            Rule::Command { line } => format!("the command {line}"),
            Rule::CommandOutside { line } => format!("outside the sandbox, the command {line}"),
            Rule::ReadsBelow { path } => format!("reads below {}", path.display()),
            Rule::Fetch { host } => format!("fetching from {host}"),
            Rule::External { server, tool } => format!("{tool} of the server {server}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Change, Decider};

    /// A newer version's log must open in this one, and must not grant more than the user chose here.
    #[test]
    fn a_log_with_an_unknown_mode_is_read_as_asking() {
        let change: Change = serde_json::from_str(r#"{"change":"mode_chosen","mode":"of_tomorrow"}"#)
            .expect("an unknown mode is no error");
        assert_eq!(change, Change::ModeChosen { mode: Mode::Ask });
        let decider: Decider = serde_json::from_str(r#"{"who":"mode","mode":"of_tomorrow"}"#)
            .expect("an unknown mode is no error");
        assert_eq!(decider, Decider::Mode { mode: Mode::Ask });
    }

    #[test]
    fn every_mode_is_stored_by_its_id() {
        for mode in Mode::ALL {
            let change = Change::ModeChosen { mode };
            let stored = serde_json::to_value(&change).expect("it is JSON");
            assert_eq!(stored["mode"], mode.id());
            assert_eq!(serde_json::from_value::<Change>(stored).expect("it was just written"), change);
        }
    }
}
