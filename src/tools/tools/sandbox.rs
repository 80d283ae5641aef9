//! The sandbox for commands: restricts what a command line from the model can read, write and connect to.
//!
//! This module decides what is allowed; `epitome_platform::sandbox` enforces it.
//!
//! The model's commands are sandboxed, and MCP servers whose settings say so. Hooks and the shell calls of recipes are
//! programs that the user consented to; they run without it.

pub(crate) mod command_disk;
mod denied;
pub(crate) mod git;
pub(crate) mod git_links;
mod git_settings;
mod hint;
mod link_guard;
mod outside;
pub(crate) mod paths;
mod repositories;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use command_disk::CommandDisk;
use epitome_platform::sandbox::{Confinement, SandboxAllowances};
pub use epitome_platform::sandbox::{Namespaces, Support, support};
use epitome_thread::Mode;
pub use git_settings::StagedSettings;
pub use hint::{HOW_TO_ASK, hint};
pub use link_guard::LinkGuard;
pub use outside::{is_of_user, outside};
use paths::caches;
pub(crate) use paths::home;
pub use repositories::FoundRepositories;

use super::Workspace;

/// Directories for temporary files that programs use regardless of the environment.
pub const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Sandbox settings for a session's commands. The default is no sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxRules {
    pub enabled: bool,
    /// Whether the sandbox also applies in full mode.
    pub in_full_mode: bool,
    pub network: bool,
    /// Whether Unix sockets in the file system may be used: the daemons that listen on them run outside of every
    /// sandbox.
    pub unix_sockets: bool,
    /// Maximum number of processes and threads of one command at a time; `None` is unlimited.
    pub processes: Option<u64>,
    /// Maximum memory in bytes of one command's processes together; `None` is unlimited.
    pub memory: Option<u64>,
    /// Directories for temporary files, in addition to the one named by the environment.
    pub temporary: Vec<PathBuf>,
    /// Additional files and directories that commands may change; absolute.
    pub write: Vec<PathBuf>,
    /// Additional files and directories that commands may not read; absolute.
    pub hide: Vec<PathBuf>,
    /// The directory of Epitome's settings, whose hooks run outside of the sandbox.
    pub settings: Option<PathBuf>,
    /// Path patterns of deny rules for reading; paths that match when a command starts are hidden from it.
    pub deny_read: Vec<String>,
}

/// The default memory limit of one command in bytes: three quarters of the machine's memory, so that other programs
/// keep running.
pub fn default_memory() -> Option<u64> {
    epitome_platform::process::machine_memory_bytes().map(|all| all / 4 * 3)
}

impl SandboxRules {
    /// Whether a command that did not request to run outside of the sandbox is sandboxed.
    pub fn applies_in(&self, mode: Mode) -> bool {
        self.enabled && (self.in_full_mode || mode != Mode::Full)
    }

    /// Whether the sandbox is enabled and this system supports all of it.
    pub fn is_complete(&self) -> bool {
        self.enabled && support().gap().is_none()
    }

    /// Returns a message for the user that explains why commands are only partially sandboxed or not at all; `None`
    /// if the sandbox is complete or disabled.
    pub fn gap(&self) -> Option<String> {
        if self.enabled { support().gap() } else { None }
    }
}

/// The parts of the workspace's repositories that a command may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitChanges {
    None,
    /// Everything except settings and hooks.
    WithoutSettings,
    /// Everything except hooks; harmless changes of settings are accepted.
    WithSettings,
}

/// The sandbox of a command.
pub struct CommandSandbox {
    pub confinement: Confinement,
    /// Call `finish` on it after the command has ended.
    pub settings: Option<StagedSettings>,
    /// Additional variables for the command's environment.
    pub variables: Vec<(OsString, OsString)>,
    /// Call `watch` on it when the command has started.
    pub links: Arc<LinkGuard>,
}

/// Why a program that must be in a sandbox is not started: a part of a sentence about that program.
#[derive(Debug, thiserror::Error)]
pub enum SandboxGap {
    #[error("its settings want a sandbox, which this system does not fully have: {0}")]
    Partial(String),
    #[error("its settings want a sandbox, which this system does not have")]
    Missing,
}

/// The sandbox for a program that is started in a directory and keeps running, such as an MCP server; reads the disk and
/// blocks. Returns it with additional variables for the environment. It is not started in a sandbox with gaps.
pub fn of_server(
    rules: &SandboxRules,
    workspace: &Workspace,
    directory: PathBuf,
    network: Option<bool>,
) -> Result<(Confinement, Vec<(OsString, OsString)>), SandboxGap> {
    if let Some(gap) = support().gap() {
        return Err(SandboxGap::Partial(gap));
    }
    let rules = SandboxRules { network: network.unwrap_or(rules.network), ..rules.clone() };
    let made = confinement(&rules, workspace, GitChanges::None);
    let made = made.ok_or(SandboxGap::Missing)?;
    let mut confinement = Confinement { start: directory, ..made.confinement };
    let disk = CommandDisk::new(workspace);
    let variables = caches::separate(&caches::CACHES_OF_SERVERS, &disk, &mut confinement.paths);
    Ok((confinement, variables))
}

/// The sandbox for one command; reads the disk and blocks. `None` if this system supports none of the
/// mechanisms. `git`: what the user agreed to.
pub fn confinement(rules: &SandboxRules, workspace: &Workspace, git: GitChanges) -> Option<CommandSandbox> {
    let support = support();
    if support.is_nothing() {
        return None;
    }
    let disk = &CommandDisk::new(workspace);
    let mut paths = paths::find(rules, disk, git != GitChanges::None, support);
    outside::note_roots(workspace, &paths.writable);
    let mut variables = caches::separate(&caches::CACHES_OF_COMMANDS, disk, &mut paths);
    if rules.network {
        variables.extend(caches::separate(&caches::CACHES_WITH_NETWORK, disk, &mut paths));
    }
    let worktrees: Vec<PathBuf> = disk.worktrees().map(Path::to_path_buf).collect();
    let frozen = match git {
        GitChanges::None => worktrees.iter().filter_map(|worktree| git::directory(worktree)).collect(),
        GitChanges::WithoutSettings | GitChanges::WithSettings => Vec::new(),
    };
    let staging = paths::staging(disk, support, &mut paths);
    let staging = staging.filter(|_| git == GitChanges::WithSettings);
    let settings = staging.and_then(|staging| StagedSettings::stage(&mut paths, &staging));
    let shared = workspace.found().links.clone();
    let links = Arc::new(LinkGuard::new(worktrees, frozen, &paths, git != GitChanges::None, shared));
    let SandboxRules { network, unix_sockets, processes, memory, .. } = *rules;
    let reach = SandboxAllowances { network, unix_sockets, processes, memory };
    let confinement = Confinement { paths, start: workspace.cwd.clone(), reach, support: *support };
    Some(CommandSandbox { confinement, settings, variables, links })
}
