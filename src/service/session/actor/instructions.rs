//! Scans of the instruction files before a model call and before a turn.

use super::Session;
use crate::instructions::ScannedInstructions;
use crate::work::{AfterScan, JobResult};
use epitome_platform::blocking;

impl Session {
    /// Continues the running turn after a scan of the instruction files. If no instructions can be sent now, continues
    /// at once: after a reply paused by the provider, which the model must continue directly, and in a child, which
    /// sees what its parent sees.
    pub(super) fn scan_first(&mut self, next: AfterScan) {
        let is_paused = self.work.as_ref().is_some_and(|work| work.turn.is_paused());
        if self.core.thread.frame().is_some() && (is_paused || self.core.lineage.is_child()) {
            return self.after_scan(next);
        }
        let look = self.instructions.look_at(&self.core);
        let (edits, learned) = (self.tools.edits().clone(), self.core.services.learned.clone());
        let looking = async move {
            edits.settle().await;
            // Read once; a first call would not know yet how its model is given tools.
            learned.load().await;
            blocking::start(look).await.ok()
        };
        self.start_job(looking, |scanned| JobResult::InstructionsScanned { scanned, next });
    }

    /// Continues the running turn with a scan's result.
    pub(super) fn instructions_scanned(&mut self, scanned: Option<ScannedInstructions>, next: AfterScan) {
        self.apply_scan(scanned);
        self.after_scan(next);
    }

    fn after_scan(&mut self, next: AfterScan) {
        match next {
            AfterScan::CallModel => self.call_with_instructions(),
            AfterScan::PlanCompaction(why) => self.decide_compaction(why),
        }
    }

    /// Scans the files outside of a turn.
    pub(crate) async fn scan_before_turn(&mut self) {
        let look = self.instructions.look_at(&self.core);
        let looked = blocking::start(look).await.ok();
        self.apply_scan(looked);
    }

    /// Applies the result of a scan. After a panic, the next scan finds everything again.
    fn apply_scan(&mut self, scanned: Option<ScannedInstructions>) {
        let ScannedInstructions { watch, problems, agents } = scanned.unwrap_or_default();
        self.instructions = watch;
        self.core.clients.notify_problems(&problems);
        if let Some(agents) = agents {
            self.subagents.found(&mut self.core, agents);
        }
    }
}
