//! The rulers of all models: the vocabulary, loaded once, and the calibration of each model, shared by all sessions
//! of the process.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::calibration::Calibration;
use super::ruler::{ExactCounter, Ruler};
use super::tally::Tally;
use super::vocabulary::Vocabulary;
use epitome_thread::ModelName;

/// Maximum number of models remembered, so that invented model names can't use more memory.
const MODELS_MAX: usize = 1_000;

/// The vocabulary may be dropped after this time without a count: shorter than the time after which sessions rest, which
/// count when they do.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// A shared handle that is cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Rulers {
    learnt: Arc<Mutex<HashMap<ModelName, Calibration>>>,
    vocabulary: Arc<Mutex<VocabularyState>>,
}

#[derive(Debug, Default)]
enum VocabularyState {
    /// It could not be loaded, or estimates are sufficient: for programs that count little, and for tests.
    #[default]
    NotWanted,
    NotLoaded,
    Loading,
    Loaded {
        vocabulary: Arc<Vocabulary>,
        used: Instant,
    },
}

impl Rulers {
    /// Creates rulers that load the vocabulary when [`Rulers::load`] is called.
    pub fn with_vocabulary() -> Rulers {
        Rulers { vocabulary: Arc::new(Mutex::new(VocabularyState::NotLoaded)), ..Rulers::default() }
    }

    /// Returns the current ruler for a model; `None` if no model is chosen.
    pub fn for_model(&self, model: Option<&ModelName>) -> Ruler {
        let vocabulary = self.ready().map(|vocabulary| vocabulary as Arc<dyn ExactCounter>);
        let ruler = Ruler::for_model(model).exact(vocabulary);
        match model.and_then(|model| self.learnt.lock().get(model).copied()) {
            Some(calibration) => ruler.calibrated(calibration),
            None => ruler,
        }
    }

    /// Adopts an earlier process's calibration of a model. One learned by this process takes precedence.
    pub fn know(&self, model: &ModelName, calibration: Calibration) {
        let mut learnt = self.learnt.lock();
        if learnt.len() < MODELS_MAX {
            learnt.entry(model.clone()).or_insert(calibration);
        }
    }

    /// Learns from a complete request, for which the provider reported `reported` tokens. Returns the current
    /// calibration, for storing it.
    pub fn learn(&self, model: &ModelName, sent: Tally, reported: u64) -> Calibration {
        let mut learnt = self.learnt.lock();
        let known = learnt.get(model).copied();
        let mut calibration = known.unwrap_or_else(|| Ruler::for_model(Some(model)).calibration());
        calibration.learn(sent, reported);
        if known.is_some() || learnt.len() < MODELS_MAX {
            learnt.insert(model.clone(), calibration);
        }
        calibration
    }

    /// Loads the vocabulary in a separate thread, unless it is loaded, being loaded, or failed to load.
    pub fn load(&self) {
        let mut state = self.vocabulary.lock();
        if !matches!(*state, VocabularyState::NotLoaded) {
            return;
        }
        *state = VocabularyState::Loading;
        drop(state);
        let shared = self.vocabulary.clone();
        let loading = thread::Builder::new().name("vocabulary".to_owned()).spawn(move || load(&shared));
        if let Err(error) = loading {
            tracing::warn!(%error, "no thread to load the vocabulary; tokens are estimated");
            *self.vocabulary.lock() = VocabularyState::NotWanted;
        }
    }

    /// Returns the vocabulary, if it is loaded.
    pub fn ready(&self) -> Option<Arc<Vocabulary>> {
        let mut state = self.vocabulary.lock();
        let VocabularyState::Loaded { vocabulary, used } = &mut *state else { return None };
        *used = Instant::now();
        Some(vocabulary.clone())
    }

    /// The time until the vocabulary may be dropped, if it is not used before; `None` if it is not loaded.
    pub fn unused_in(&self) -> Option<Duration> {
        let VocabularyState::Loaded { used, .. } = &*self.vocabulary.lock() else { return None };
        Some(IDLE_MAX.saturating_sub(used.elapsed()))
    }

    /// Drops the vocabulary if it has not been used for a while; the next [`Rulers::load`] loads it again. Returns whether it
    /// did. Blocks while it is freed.
    pub fn drop_unused(&self) -> bool {
        self.drop_after(IDLE_MAX)
    }

    fn drop_after(&self, idle_max: Duration) -> bool {
        let mut state = self.vocabulary.lock();
        let is_unused = matches!(&*state, VocabularyState::Loaded { used, .. } if used.elapsed() >= idle_max);
        let unused = is_unused.then(|| std::mem::replace(&mut *state, VocabularyState::NotLoaded));
        // Nobody waits for it to be freed.
        drop(state);
        unused.is_some()
    }
}

fn load(shared: &Mutex<VocabularyState>) {
    let began = Instant::now();
    let loaded = Vocabulary::load().map(Arc::new);
    *shared.lock() = match loaded {
        Ok(vocabulary) => {
            tracing::info!(milliseconds = began.elapsed().as_millis(), "the vocabulary is loaded");
            VocabularyState::Loaded { vocabulary, used: Instant::now() }
        }
        Err(error) => {
            tracing::warn!(%error, "tokens are estimated");
            VocabularyState::NotWanted
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_name::Family;

    #[test]
    fn the_vocabulary_is_loaded_once_and_dropped_when_idle() {
        let rulers = Rulers::with_vocabulary();
        assert!(rulers.ready().is_none() && !rulers.for_model(None).is_exact());
        rulers.load();
        // A second call finds the first one in progress.
        rulers.clone().load();
        while matches!(*rulers.vocabulary.lock(), VocabularyState::Loading) {
            thread::yield_now();
        }
        let vocabulary = rulers.ready().expect("it is embedded");
        assert!(Arc::ptr_eq(&vocabulary, &rulers.clone().ready().expect("shared")));
        assert_eq!(rulers.for_model(None).text("hello world"), 3);
        assert!(rulers.unused_in().is_some() && !rulers.drop_unused());
        assert!(rulers.drop_after(Duration::ZERO));
        assert!(rulers.ready().is_none() && rulers.unused_in().is_none());
    }

    #[test]
    fn nothing_is_loaded_if_estimates_are_sufficient() {
        let rulers = Rulers::default();
        rulers.load();
        assert!(matches!(*rulers.vocabulary.lock(), VocabularyState::NotWanted));
    }

    #[test]
    fn a_calibration_is_shared_by_all_sessions() {
        let (model, other) = (ModelName("p/m".into()), ModelName("p/n".into()));
        let rulers = Rulers::default();
        let learnt = rulers.learn(&model, Tally { text: 10_000, media: 0 }, 15_000);
        let elsewhere = rulers.clone();
        assert_eq!(elsewhere.for_model(Some(&model)).calibration(), learnt);
        assert!(!elsewhere.for_model(Some(&other)).calibration().is_learnt());
        // A calibration from an earlier process is older and must be ignored.
        for model in [&model, &other] {
            elsewhere.know(model, Calibration::start(Family::Claude));
        }
        assert_eq!(rulers.for_model(Some(&model)).calibration(), learnt);
        assert_eq!(rulers.for_model(Some(&other)).calibration(), Calibration::start(Family::Claude));
    }
}
