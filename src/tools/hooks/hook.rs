//! A discovered hook: its origin, the events that it handles, and how it is run.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::claude::action::ClaudeAction;
use super::event::HookEvent;
use epitome_recipe::foreign::PluginFolders;
use epitome_tools::sandbox;
use epitome_tools::{Workspace, normal};

/// Default timeout of a run.
pub const RUN_TIME: Duration = Duration::from_secs(30);
/// Range of configurable timeouts.
pub const RUN_TIME_MIN: Duration = Duration::from_millis(100);
pub const RUN_TIME_MAX: Duration = Duration::from_secs(600);

/// A discovered hook, ready to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Hook {
    /// Shown to users and passed to the hook; unique among the hooks of a session.
    pub name: String,
    pub origin: HookOrigin,
    pub kind: HookKind,
    /// The events, each with the name under which the hook registered.
    pub events: Vec<(HookEvent, String)>,
    pub manifest: Manifest,
    /// SHA-256 over the declaration and the scripts that it names, in hexadecimal.
    pub digest: String,
    /// The files covered by the digest, the declaration first.
    pub files: Vec<PathBuf>,
}

/// The installer of a hook, which determines how far the hook is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookOrigin {
    /// The user's own, which nothing from a repository may shadow or disable.
    Enforced,
    /// The user's own.
    User,
    /// From the repository: runs only with the user's consent to its digest.
    Repository,
}

impl HookOrigin {
    /// The environment variables for executables of this origin.
    pub fn environment(self, workspace: &Workspace) -> Vec<(OsString, OsString)> {
        let environment = sandbox::outside(workspace);
        match self.is_repository() {
            true => workspace.exposure().for_programs_of_repository(&environment),
            false => workspace.exposure().for_users_programs(&environment),
        }
    }

    pub fn is_repository(self) -> bool {
        match self {
            HookOrigin::Repository => true,
            HookOrigin::Enforced | HookOrigin::User => false,
        }
    }
}

/// How a hook is run. `Debug` omits a webhook's URL and credentials.
#[derive(Clone, PartialEq)]
pub enum HookKind {
    /// `path run`, with the payload on stdin and the result on stdout.
    Script { path: PathBuf },
    /// One process per session, one JSON object per line.
    Resident { path: PathBuf },
    /// The declared result; nothing is run.
    Declared { then: Map<String, Value> },
    /// The payload is posted; the body of a 2xx response is the result. `secret` signs the body. If a header's
    /// value or the secret is `$NAME`, that variable is used, so that no key has to be written to a file.
    Webhook { url: String, headers: BTreeMap<String, String>, secret: Option<String> },
    /// A Claude Code hook: a shell command line, or the text of another action. Hooks of one `group` run
    /// concurrently, groups run sequentially in the order of their settings files. `only_if` is a permission rule
    /// (`Bash(git *)`) that a tool call has to match; empty matches all.
    Claude { line: String, group: usize, matcher: String, only_if: String, options: ClaudeOptions },
}

impl Hook {
    /// The script that is all that the hook runs, for a hook in this directory; `None` if it may run anything else. Only a
    /// line that is one of the files which the digest covers is a script.
    pub fn script(&self, cwd: &Path) -> Option<PathBuf> {
        let line = match &self.kind {
            HookKind::Script { path } | HookKind::Resident { path } => return Some(path.clone()),
            HookKind::Claude { line, .. } => line.trim().replace('"', ""),
            HookKind::Declared { .. } | HookKind::Webhook { .. } => return None,
        };
        let of_project = ["$CLAUDE_PROJECT_DIR/", "${CLAUDE_PROJECT_DIR}/"]
            .iter()
            .find_map(|name| line.strip_prefix(name));
        let (directory, name) = match of_project {
            Some(name) => (self.project(cwd), name),
            None => (cwd, &*line),
        };
        // A name without a slash is looked up on the `PATH`.
        let is_path = of_project.is_some() || name.contains('/');
        let is_plain = name.chars().all(|c| c.is_alphanumeric() || "/._-+@".contains(c));
        let script = normal(&directory.join(name));
        (is_path && is_plain && self.files.iter().skip(1).any(|file| *file == script)).then_some(script)
    }

    /// The repository whose `.claude/` contains the hook; the session's directory for a user's own hook and for a plugin's
    /// hook.
    pub fn project<'a>(&'a self, cwd: &'a Path) -> &'a Path {
        let is_of_plugin = matches!(&self.kind, HookKind::Claude { options, .. } if options.plugin.is_some());
        let settings = self.files.first().filter(|_| self.origin.is_repository() && !is_of_plugin);
        settings.and_then(|settings| settings.parent()?.parent()).unwrap_or(cwd)
    }
}

/// Options of a Claude Code hook, from its file or the location of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaudeOptions {
    /// `async`: it runs in the background.
    pub runs_async: bool,
    /// The action that uses the line.
    pub action: ClaudeAction,
    /// The plugin to which it belongs.
    pub plugin: Option<PluginFolders>,
    /// Line and column of the hook in its file.
    pub written_at: Option<(u64, u64)>,
}

impl fmt::Debug for HookKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookKind::Script { path } => write!(f, "Script({})", path.display()),
            HookKind::Resident { path } => write!(f, "Resident({})", path.display()),
            HookKind::Declared { then } => write!(f, "Declared({then:?})"),
            HookKind::Webhook { headers, .. } => write!(f, "Webhook({:?})", headers.keys()),
            HookKind::Claude { line, group, matcher, only_if, options: _ } => {
                write!(f, "Claude({group}, {matcher:?}, {only_if:?}, {line:?})")
            }
        }
    }
}

impl HookKind {
    /// Replaces the variables in a webhook's headers and secret by their values.
    pub fn resolve(&mut self, environment: &[(OsString, OsString)]) -> Result<(), UnsetVariable> {
        let HookKind::Webhook { headers, secret, .. } = self else { return Ok(()) };
        for value in headers.values_mut().chain(secret) {
            let Some(name) = variable(value) else { continue };
            let found = environment.iter().find(|(known, _)| known == name);
            let found = found.and_then(|(_, value)| value.to_str()).filter(|value| !value.is_empty());
            *value = found.ok_or_else(|| UnsetVariable(name.to_owned()))?.to_owned();
        }
        Ok(())
    }

    /// The variables whose values it sends.
    pub fn variables(&self) -> BTreeSet<&str> {
        match self {
            HookKind::Webhook { headers, secret, .. } => {
                headers.values().chain(secret).filter_map(|value| variable(value)).collect()
            }
            HookKind::Claude { options, .. } => options.action.variables().collect(),
            HookKind::Script { .. } | HookKind::Resident { .. } | HookKind::Declared { .. } => {
                BTreeSet::new()
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the environment variable {0} is not set")]
pub struct UnsetVariable(String);

/// The name in `$NAME` or `${NAME}`.
fn variable(value: &str) -> Option<&str> {
    let name = value.strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (is_name && !name.is_empty()).then_some(name)
}

/// The properties that a hook declares, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub protocol: u32,
    pub matches: HookConditions,
    pub timeout: Duration,
    /// Higher priorities run first.
    pub priority: i32,
    pub fail_mode: FailMode,
    /// Exit code 2 blocks, with stderr as the reason.
    pub exit_2_blocks: bool,
    /// `None` means the default of the event: all messages at `agent_stop`, none at `turn_end` and
    /// `pre_compact`. Other payloads never contain messages.
    pub messages: Option<PayloadMessages>,
    pub description: String,
    /// Whether the hook needs a file with the conversation as JSON lines.
    pub transcript: bool,
}

impl Default for Manifest {
    fn default() -> Manifest {
        Manifest {
            protocol: 1,
            matches: HookConditions::default(),
            timeout: RUN_TIME,
            priority: 0,
            fail_mode: FailMode::Open,
            exit_2_blocks: false,
            messages: None,
            description: String::new(),
            transcript: false,
        }
    }
}

/// The effect of a failure of the hook itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    /// Work continues.
    Open,
    /// The hook blocks if the event can be blocked.
    Closed,
}

/// How much of the conversation a payload contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMessages {
    Full,
    Last(usize),
    None,
}

/// Conditions for running a hook; missing conditions always match. Lists are globs, any of which may match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookConditions {
    pub tool_name: Vec<String>,
    pub recipe: Vec<String>,
    pub invoked_by: Vec<String>,
    pub trigger: Vec<String>,
    /// The used fraction of the context window, from 0 to 1.
    pub usage_ratio_gte: Option<f64>,
    /// Every n-th round of a prompt.
    pub every_turns: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line may run whatever is in the workspace, while its digest covers only the files that it names: `make Makefile` and
    /// `sh tools/check.sh` ran outside of the sandbox.
    #[test]
    fn only_a_line_that_is_one_named_script_is_a_script() {
        let script = PathBuf::from("/w/.claude/check.sh");
        let files = vec!["/w/.claude/settings.json".into(), script.clone(), "/w/Makefile".into()];
        for (line, is_script) in [
            (".claude/check.sh", true),
            ("./.claude/check.sh ", true),
            ("/w/.claude/check.sh", true),
            ("\"$CLAUDE_PROJECT_DIR/.claude/check.sh\"", true),
            ("\"$CLAUDE_PROJECT_DIR\"/.claude/check.sh", true),
            ("${CLAUDE_PROJECT_DIR}/.claude/check.sh", true),
            ("sh .claude/check.sh", false),
            ("make Makefile", false),
            ("Makefile", false),
            (".claude/check.sh --all", false),
            (".claude/check.sh;make", false),
            ("$CLAUDE_PROJECT_DIRx/.claude/check.sh", false),
            ("'$CLAUDE_PROJECT_DIR/.claude/check.sh'", false),
            (".claude/other.sh", false),
            (".claude/*.sh", false),
            ("$SCRIPT", false),
        ] {
            let kind = HookKind::Claude {
                line: line.to_owned(),
                group: 0,
                matcher: String::new(),
                only_if: String::new(),
                options: ClaudeOptions::default(),
            };
            let hook = Hook {
                name: "check".to_owned(),
                origin: HookOrigin::Repository,
                kind,
                events: Vec::new(),
                manifest: Manifest::default(),
                digest: String::new(),
                files: files.clone(),
            };
            assert_eq!(hook.script(Path::new("/w")), is_script.then(|| script.clone()), "{line}");
        }
    }
}
