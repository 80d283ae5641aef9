//! Completing what an earlier process left of the checkpoints.

use tokio::task::JoinError;

use super::Session;
use crate::NoticeSeverity;
use crate::background::BackgroundResult;
use crate::inbox::InboxPause;
use epitome_checkpoint::{CheckpointError, RewindReport};
use epitome_platform::blocking;

impl Session {
    /// Completes what an earlier process left unfinished. Prompts wait until it is done.
    pub(super) fn take_up_checkpoints(&mut self) {
        let Some(checkpoints) = self.core.services.checkpoints.clone() else { return };
        if self.core.lineage.is_child() || !checkpoints.exist() {
            return;
        }
        let roots = self.core.roots();
        let resuming = async move { blocking::start(move || checkpoints.resume(&roots)).await };
        let resuming = self.core.start(resuming, BackgroundResult::CheckpointsResumed);
        self.inbox.pause_for(resuming.id(), InboxPause::Checkpoints);
    }

    /// Reports what was completed, and lets the prompts go on.
    pub(super) fn checkpoints_resumed(
        &mut self,
        reports: Result<Result<Vec<RewindReport>, CheckpointError>, JoinError>,
    ) {
        let Session { core, inbox, .. } = self;
        inbox.resume();
        match reports {
            Ok(Ok(reports)) => reports.iter().for_each(|report| core.report_late_rewind(report)),
            Ok(Err(error)) => {
                core.notify(NoticeSeverity::Warning, format!("The checkpoints of files: {error}."))
            }
            Err(_) => tracing::error!(session = %core.id(), "checkpoints panicked"),
        }
    }
}
