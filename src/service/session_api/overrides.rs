//! Settings from a client's command line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use epitome_config::{CompactionThreshold, HookTrust, ProviderSettings, Settings};
use epitome_files::paths::Paths;
use epitome_provider::endpoint::EnvironmentPairs;
use epitome_thread::problem::Problem;
use epitome_thread::{Mode, ThoughtLevel};

/// The options that add rules; messages name them where they would name a file.
pub const ALLOW_OPTION: &str = "--allow";
pub const DENY_OPTION: &str = "--deny";

/// Settings from a client's command line. They override every file and variable for the sessions that it opens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    pub model: Option<String>,
    pub mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought: Option<ThoughtLevel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rounds: Option<u32>,
    /// The maximum cost of a session, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<f64>,
    /// Permission rules of the kind `allow`, as written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Permission rules of the kind `deny`, as written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Whether hooks run.
    pub hooks: Option<bool>,
    pub trust: Option<HookTrust>,
    /// Whether compactions start automatically.
    pub auto_compact: Option<bool>,
    pub threshold: Option<CompactionThreshold>,
    /// Additional directories of recipes; relative ones are relative to the session's directory.
    pub recipe_dirs: Vec<PathBuf>,
    /// The client's redirections of requests to providers, such as to a gateway. Not part of a command line.
    #[serde(skip)]
    pub routes: BTreeMap<String, ProviderSettings>,
}

impl Overrides {
    /// Loads the settings for a directory, with these over them. Also returns the problems in their files.
    pub fn load(
        &self,
        paths: &Paths,
        cwd: &Path,
        environment: &EnvironmentPairs,
    ) -> (Settings, Vec<Problem>) {
        let variable =
            |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let (settings, problems) = Settings::load(paths, Some(cwd), variable);
        (self.over(settings), problems)
    }

    pub fn over(&self, mut settings: Settings) -> Settings {
        settings.model = self.model.clone().or(settings.model);
        settings.mode = self.mode.unwrap_or(settings.mode);
        settings.thought = self.thought.unwrap_or(settings.thought);
        settings.max_rounds = self.max_rounds.unwrap_or(settings.max_rounds);
        settings.budget.session_usd = self.max_cost.or(settings.budget.session_usd);
        // The command line has reported invalid rules; here they must not allow anything.
        let added = self.allow.iter().map(|rule| settings.allow(rule, ALLOW_OPTION)).collect::<Vec<_>>();
        let denied = self.deny.iter().map(|rule| settings.deny(rule, DENY_OPTION));
        for error in added.into_iter().chain(denied).filter_map(Result::err) {
            tracing::warn!(%error, "a rule is ignored");
        }
        settings.hooks.enabled = self.hooks.unwrap_or(settings.hooks.enabled);
        settings.hooks.trust = self.trust.unwrap_or(settings.hooks.trust);
        settings.compaction.auto = self.auto_compact.unwrap_or(settings.compaction.auto);
        settings.compaction.threshold = self.threshold.unwrap_or(settings.compaction.threshold);
        settings.providers.extend(self.routes.clone());
        settings.enforce_policy();
        settings
    }
}
