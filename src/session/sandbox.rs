//! What a session's commands are held to, and what of it this machine can't enforce.

use std::path::PathBuf;
use std::sync::Arc;

use super::Severity;
use super::core::Core;
use epitome_tools::Access;
use epitome_tools::sandbox::{Rules, TEMPORARY};

impl Core {
    /// What the session's commands are held to.
    pub(super) fn sandbox_rules(&self) -> Arc<Rules> {
        let (settings, paths) = (&self.settings.sandbox, &self.services.paths);
        let sockets = paths.socket_directory();
        let own =
            [paths.data.clone(), paths.state.clone(), paths.runtime.clone(), sockets, paths.config_file()];
        Arc::new(Rules {
            enabled: settings.enabled,
            in_full_mode: settings.in_full_mode,
            network: settings.network,
            unix_sockets: settings.unix_sockets,
            processes: Some(settings.processes),
            temporary: TEMPORARY.map(PathBuf::from).into(),
            write: settings.write.clone(),
            hide: own.into_iter().chain(settings.hide.iter().cloned()).collect(),
        })
    }

    /// Says once in the life of a session what the sandbox does not hold here.
    pub(super) fn tell_sandbox_gap(&mut self, access: Result<&Access, &String>) {
        let is_held = matches!(access, Ok(Access::Command { confined: true, .. }))
            && self.sandbox_rules().hold_in(self.thread.mode());
        if !is_held || !self.clients.is_first_of_sandbox() {
            return;
        }
        if let Some(gap) = self.sandbox_rules().gap() {
            self.say(Severity::Warning, gap);
        }
    }

    /// The same for the card of a command.
    pub(super) fn sandbox_remark(&self, access: &Access) -> Option<String> {
        let Access::Command { confined: true, .. } = access else { return None };
        match self.settings.sandbox.enabled {
            true => self.sandbox_rules().gap(),
            false => Some("The sandbox is switched off in the settings.".to_owned()),
        }
    }
}
