//! The sandbox of a session's commands, and the parts of it that this machine can't enforce.

use std::path::PathBuf;
use std::sync::Arc;

use super::NoticeSeverity;
use super::core::Core;
use epitome_config::Settings;
use epitome_files::paths::Paths;
use epitome_thread::Mode;
use epitome_tools::Access;
use epitome_tools::permission::ruled::HiddenFiles;
use epitome_tools::sandbox::{SandboxRules, TEMPORARY, default_memory};

/// The restrictions for the sandboxed programs of a session with these settings.
pub fn sandbox_rules(settings: &Settings, paths: &Paths) -> SandboxRules {
    let sockets = paths.socket_directory();
    let own = [paths.data.clone(), paths.state.clone(), paths.runtime.clone(), sockets, paths.config_file()];
    let deny_read = HiddenFiles::denied(&settings.permissions);
    let settings = &settings.sandbox;
    SandboxRules {
        enabled: settings.enabled,
        in_full_mode: settings.in_full_mode,
        network: settings.network,
        unix_sockets: settings.unix_sockets,
        processes: Some(settings.processes),
        memory: settings.memory_mib.map(|mib| mib << 20).or_else(default_memory),
        temporary: TEMPORARY.map(PathBuf::from).into(),
        write: settings.write.clone(),
        hide: own.into_iter().chain(settings.hide.iter().cloned()).collect(),
        settings: Some(paths.home.clone()),
        deny_read,
    }
}

impl Core {
    /// The sandbox rules for the session's commands.
    pub(super) fn sandbox_rules(&self) -> Arc<SandboxRules> {
        Arc::new(sandbox_rules(&self.settings, &self.services.paths))
    }

    /// Reports once per session what the sandbox does not enforce on this machine.
    pub(super) fn report_sandbox_gap(&mut self, access: &Access) {
        let (mode, rules) = (self.thread.mode(), self.sandbox_rules());
        let gap = match mode {
            // This mode asks about commands because of the gap, even if the sandbox is switched off.
            Mode::Auto => self.sandbox_remark(access).map(|why| {
                format!(
                    "The mode {:?} asks about commands here, because it needs the sandbox. {why}",
                    mode.name()
                )
            }),
            Mode::Ask | Mode::AcceptEdits | Mode::ReadOnly | Mode::Full if rules.applies_in(mode) => {
                self.sandbox_remark(access)
            }
            Mode::Ask | Mode::AcceptEdits | Mode::ReadOnly | Mode::Full => None,
        };
        if let Some(gap) = gap
            && self.clients.is_first_of_sandbox()
        {
            self.notify(NoticeSeverity::Warning, gap);
        }
    }

    /// The remark about gaps in the sandbox for a command's permission prompt; `None` if there is none.
    pub(super) fn sandbox_remark(&self, access: &Access) -> Option<String> {
        let Access::Command { confined: true, .. } = access else { return None };
        match self.settings.sandbox.enabled {
            true => self.sandbox_rules().gap(),
            false => Some("The sandbox is switched off in the settings.".to_owned()),
        }
    }
}
