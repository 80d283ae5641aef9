//! A callback in the background: it runs while the session goes on, and its output is applied at the next
//! safe point, in the place of what it was made from.

use super::actor::Session;
use super::callbacks::Called;
use super::effects;
use super::work::Background;
use epitome_thread::{Change, HookRun, Seq, Verdict};

/// The one background callback of a session.
pub struct Side {
    /// The hook that asked for it.
    by: String,
    /// Where the history stood when it began.
    through: Seq,
    revision: Seq,
    /// What it came to, until the next safe point.
    came_to: Option<Result<Called, String>>,
}

impl Session {
    /// Starts a callback in the background; refused while another one runs.
    pub(super) fn start_side(
        &mut self,
        by: String,
        called: impl Future<Output = Result<Called, String>> + Send + 'static,
    ) -> Result<(), String> {
        if let Some(side) = &self.side {
            return Err(format!("a background callback of {} is still running; one at a time", side.by));
        }
        let through = self.thread.entries().last().map_or(Seq(0), |entry| entry.seq);
        self.side = Some(Side { by, through, revision: self.thread.view().revision(), came_to: None });
        self.background.spawn(async move {
            let fault = || Err("it met a fault of Epitome's own; its log has the details".to_owned());
            Background::Side(effects::guarded(called, fault).await)
        });
        Ok(())
    }

    /// It has ended. Where no turn runs, now is a safe point; else the next one is at the latest the turn's
    /// end.
    pub(super) fn side_done(&mut self, came_to: Result<Called, String>) {
        if let Some(side) = &mut self.side {
            side.came_to = Some(came_to);
        }
        if self.work.is_none() {
            self.apply_side_result();
        }
    }

    /// Applies what the background callback came to, if it has ended.
    pub(super) fn apply_side_result(&mut self) {
        // A summary that is on its way to take the history's place would be made from another one.
        if self.work.as_ref().is_some_and(|work| work.summary.is_some()) {
            return;
        }
        let Some(side) = self.side.take_if(|side| side.came_to.is_some()) else { return };
        let Side { by, through, revision, came_to } = side;
        let applied = match came_to {
            Some(Ok(_)) if self.thread.view().revision() != revision => {
                Err("the history was edited while it ran, so its result is stale and was dropped".to_owned())
            }
            Some(Ok(called)) => {
                let took = called.took.clone();
                self.apply_called(&by, called, Some(through)).map(|applied| (applied, took))
            }
            Some(Err(why)) => Err(why),
            None => return,
        };
        let mut run = HookRun {
            hook: by,
            event: "background callback".to_owned(),
            end: "ended".to_owned(),
            asked: "background callback".to_owned(),
            ..HookRun::default()
        };
        let mut changes = Vec::new();
        match applied {
            Ok((applied, took)) => {
                run.verdict = Verdict::Done;
                run.remarks.push(format!("it took {took}"));
                run.remarks.extend(applied.remarks);
                changes = applied.changes;
            }
            Err(why) => {
                run.verdict = Verdict::Refused;
                run.remarks.push(why);
            }
        }
        changes.insert(0, Change::Hooked { event: "background_callback".to_owned(), runs: vec![run] });
        self.commit_all(changes);
    }
}
