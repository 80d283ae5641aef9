//! The rulers of all models: what was learnt of each, shared by all sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::calibration::Calibration;
use super::ruler::Ruler;
use super::tally::Tally;
use crate::thread::ModelName;

/// Models that are remembered; a client that makes names up costs no more than this.
const MODELS_MAX: usize = 1_000;

/// A cheap handle on what is known of every model.
#[derive(Clone, Debug, Default)]
pub struct Rulers {
    learnt: Arc<Mutex<HashMap<ModelName, Calibration>>>,
}

impl Rulers {
    /// The ruler of a model as things stand; `None` where no model is chosen.
    pub fn of(&self, model: Option<&ModelName>) -> Ruler {
        let ruler = Ruler::of(model);
        match model.and_then(|model| self.learnt().get(model).copied()) {
            Some(calibration) => ruler.calibrated(calibration),
            None => ruler,
        }
    }

    /// Takes over what an earlier process learnt of a model.
    pub fn know(&self, model: &ModelName, calibration: Calibration) {
        let mut learnt = self.learnt();
        if learnt.len() < MODELS_MAX || learnt.contains_key(model) {
            learnt.insert(model.clone(), calibration);
        }
    }

    /// Learns from a whole request, of which the model's provider reports so many tokens. Gives back what
    /// is known now, for who keeps it.
    pub fn learn(&self, model: &ModelName, sent: Tally, reported: u64) -> Calibration {
        let mut calibration = self.of(Some(model)).calibration();
        calibration.learn(sent, reported);
        self.know(model, calibration);
        calibration
    }

    fn learnt(&self) -> MutexGuard<'_, HashMap<ModelName, Calibration>> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
