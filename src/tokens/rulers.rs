//! The rulers of all models: the vocabulary, loaded once, and what was learnt of each model, shared by all
//! sessions of the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::calibration::Calibration;
use super::ruler::Ruler;
use super::tally::Tally;
use super::vocabulary::Vocabulary;
use epitome_thread::ModelName;

/// Models that are remembered; a client that makes names up costs no more than this.
const MODELS_MAX: usize = 1_000;

/// The vocabulary is dropped when nothing was counted for so long.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// How nice the loading thread is to all others.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// A cheap handle on what tokens are counted with.
#[derive(Clone, Debug, Default)]
pub struct Rulers {
    learnt: Arc<Mutex<HashMap<ModelName, Calibration>>>,
    vocabulary: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
enum State {
    /// Estimates do, for all that comes: for programs that count little, and tests.
    #[default]
    NotWanted,
    NotLoaded,
    Loading,
    Loaded {
        vocabulary: Arc<Vocabulary>,
        used: Instant,
    },
    Failed,
}

impl Rulers {
    /// Those that load the vocabulary when they are told to.
    pub fn with_vocabulary() -> Rulers {
        Rulers { vocabulary: Arc::new(Mutex::new(State::NotLoaded)), ..Rulers::default() }
    }

    /// The ruler of a model as things stand; `None` where no model is chosen.
    pub fn of(&self, model: Option<&ModelName>) -> Ruler {
        let ruler = Ruler::of(model).exact(self.ready());
        match model.and_then(|model| lock(&self.learnt).get(model).copied()) {
            Some(calibration) => ruler.calibrated(calibration),
            None => ruler,
        }
    }

    /// Takes over what an earlier process learnt of a model. What this one learnt itself is newer.
    pub fn know(&self, model: &ModelName, calibration: Calibration) {
        let mut learnt = lock(&self.learnt);
        if learnt.len() < MODELS_MAX {
            learnt.entry(model.clone()).or_insert(calibration);
        }
    }

    /// Learns from a whole request, of which the model's provider reports so many tokens. Gives back what
    /// is known now, for who keeps it.
    pub fn learn(&self, model: &ModelName, sent: Tally, reported: u64) -> Calibration {
        let mut learnt = lock(&self.learnt);
        let known = learnt.get(model).copied();
        let mut calibration = known.unwrap_or_else(|| Ruler::of(Some(model)).calibration());
        calibration.learn(sent, reported);
        if known.is_some() || learnt.len() < MODELS_MAX {
            learnt.insert(model.clone(), calibration);
        }
        calibration
    }

    /// Has the vocabulary loaded by a thread of its own, unless it is or was tried.
    pub fn load(&self) {
        let mut state = lock(&self.vocabulary);
        if !matches!(*state, State::NotLoaded) {
            return;
        }
        *state = State::Loading;
        drop(state);
        let shared = self.vocabulary.clone();
        let loading = thread::Builder::new().name("vocabulary".to_owned()).spawn(move || hold(&shared));
        if let Err(error) = loading {
            tracing::warn!(%error, "no thread to load the vocabulary; tokens are estimated");
            *lock(&self.vocabulary) = State::Failed;
        }
    }

    /// The vocabulary, if it is loaded.
    pub fn ready(&self) -> Option<Arc<Vocabulary>> {
        match &mut *lock(&self.vocabulary) {
            State::Loaded { vocabulary, used } => {
                *used = Instant::now();
                Some(vocabulary.clone())
            }
            State::NotWanted | State::NotLoaded | State::Loading | State::Failed => None,
        }
    }
}

/// Loads the vocabulary and drops it again when nobody has used it for long.
fn hold(shared: &Mutex<State>) {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "the vocabulary is loaded at ordinary priority");
    }
    let began = Instant::now();
    match Vocabulary::load() {
        Ok(vocabulary) => {
            tracing::info!(milliseconds = began.elapsed().as_millis(), "the vocabulary is loaded");
            *lock(shared) = State::Loaded { vocabulary: Arc::new(vocabulary), used: Instant::now() };
        }
        Err(error) => {
            tracing::warn!(%error, "tokens are estimated");
            *lock(shared) = State::Failed;
            return;
        }
    }
    while let Some(rest) = drop_idle(shared, IDLE_MAX) {
        thread::sleep(rest);
    }
}

/// Drops the vocabulary if it was not used for `idle_max`; else the time until it may be.
fn drop_idle(shared: &Mutex<State>, idle_max: Duration) -> Option<Duration> {
    let mut state = lock(shared);
    let State::Loaded { used, .. } = &*state else { return None };
    let rest = idle_max.saturating_sub(used.elapsed());
    if rest.is_zero() {
        let idle = std::mem::replace(&mut *state, State::NotLoaded);
        // Freeing it takes a while, for which nobody is to wait.
        drop(state);
        drop(idle);
        return None;
    }
    Some(rest)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;

    #[test]
    fn the_vocabulary_is_loaded_once_and_dropped_when_idle() {
        let rulers = Rulers::with_vocabulary();
        assert!(rulers.ready().is_none() && !rulers.of(None).is_exact());
        rulers.load();
        // A second wish finds the first one under way.
        rulers.clone().load();
        while matches!(*lock(&rulers.vocabulary), State::Loading) {
            thread::yield_now();
        }
        let vocabulary = rulers.ready().expect("it is embedded");
        assert!(Arc::ptr_eq(&vocabulary, &rulers.clone().ready().expect("shared")));
        assert_eq!(rulers.of(None).text("hello world"), 3);
        assert!(drop_idle(&rulers.vocabulary, IDLE_MAX).is_some());
        assert_eq!(drop_idle(&rulers.vocabulary, Duration::ZERO), None);
        assert!(rulers.ready().is_none());
    }

    #[test]
    fn nothing_is_loaded_where_estimates_do() {
        let rulers = Rulers::default();
        rulers.load();
        assert!(matches!(*lock(&rulers.vocabulary), State::NotWanted));
    }

    #[test]
    fn what_is_learnt_of_a_model_is_known_to_every_session() {
        let (model, other) = (ModelName("p/m".into()), ModelName("p/n".into()));
        let rulers = Rulers::default();
        let learnt = rulers.learn(&model, Tally { text: 10_000, media: 0 }, 15_000);
        let elsewhere = rulers.clone();
        assert_eq!(elsewhere.of(Some(&model)).calibration(), learnt);
        assert!(!elsewhere.of(Some(&other)).calibration().is_learnt());
        // What an earlier process knew is older.
        for model in [&model, &other] {
            elsewhere.know(model, Calibration::start(Family::Claude));
        }
        assert_eq!(rulers.of(Some(&model)).calibration(), learnt);
        assert_eq!(rulers.of(Some(&other)).calibration(), Calibration::start(Family::Claude));
    }
}
