//! A callback that runs in the background while the session continues. At the next safe point, its output replaces the
//! history that it was made from.

use super::Session;
use crate::background::BackgroundResult;
use crate::called::{Called, StartedCallback, guarded};
use crate::refusal::HookRefusal;
use epitome_thread::{Change, HookRun, HookRunResult, Seq};

impl Session {
    /// Starts a callback in the background. Fails while another one is running.
    pub(super) fn start_background_callback(
        &mut self,
        by: String,
        called: impl Future<Output = Result<Called, HookRefusal>> + Send + 'static,
    ) -> Result<(), HookRefusal> {
        let slot = self.hooks.background_callback();
        if let Some(StartedCallback { by, .. }) = slot {
            return Err(HookRefusal::BackgroundBusy(by.clone()));
        }
        let through = self.core.thread.entries().last().map_or(Seq(0), |entry| entry.seq);
        *slot =
            Some(StartedCallback { by, through, revision: self.core.thread.view().revision(), result: None });
        self.core.start(guarded(called), BackgroundResult::CallbackEnded);
        Ok(())
    }

    /// The callback has ended. Without a running turn, now is a safe point; otherwise the end of the turn is one at the
    /// latest.
    pub(super) fn background_callback_ended(&mut self, result: Result<Called, HookRefusal>) {
        if let Some(started) = self.hooks.background_callback() {
            started.result = Some(result);
        }
        if self.work.is_none() {
            self.apply_background_callback();
        }
    }

    /// Applies the result of the background callback, if it has ended.
    pub(super) fn apply_background_callback(&mut self) {
        // Applying it now would change the history that a pending summary was made from.
        if self.compactor.summary().is_some() {
            return;
        }
        let slot = self.hooks.background_callback();
        let Some(started) = slot.take_if(|started| started.result.is_some()) else { return };
        let StartedCallback { by, through, revision, result } = started;
        let applied = match result {
            Some(Ok(_)) if self.core.thread.view().revision() != revision => Err(HookRefusal::Stale),
            Some(Ok(called)) => {
                let took = called.took.clone();
                self.apply_called(&by, called, Some(through))
                    .map(|applied| (applied, took))
                    .map_err(HookRefusal::from)
            }
            Some(Err(why)) => Err(why),
            None => return,
        };
        let (verdict, remarks, mut changes) = match applied {
            Ok((applied, took)) => {
                let took = std::iter::once(format!("it took {took}"));
                (HookRunResult::Done, took.chain(applied.remarks).collect(), applied.changes)
            }
            Err(why) => (HookRunResult::Refused, vec![why.to_string()], Vec::new()),
        };
        let run = HookRun {
            hook: by,
            event: "background callback".to_owned(),
            end: "ended".to_owned(),
            asked: "background callback".to_owned(),
            verdict,
            remarks,
            ..HookRun::default()
        };
        changes.insert(0, Change::Hooked { event: "background_callback".to_owned(), runs: vec![run] });
        self.commit_all(changes);
    }
}
