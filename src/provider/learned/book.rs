//! Learned facts about models as data: validity, retention and merging. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use crate::listing::{Facts, LISTED_MAX, Life, Listed};
use epitome_tokens::Calibration;

/// Maximum places. A user has a handful, but the URLs of test servers come and go.
const PLACES_MAX: usize = 16;

/// Maximum models with a token calibration. A user talks to a handful.
const CALIBRATIONS_MAX: usize = 500;

/// Lifetime, in milliseconds, of windows learned from rejected requests: a server may have been given a
/// larger window since.
const LEARNT_AGE_MAX: u64 = 30 * 24 * 60 * 60 * 1000;

/// A context window revealed by a rejected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learnt {
    pub tokens: u64,
    pub by: Lesson,
    /// Milliseconds since the epoch.
    pub at: u64,
}

/// How a window was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lesson {
    /// A request was rejected as too long: the limit, or, if that was not reported, the size of the rejected
    /// request.
    Overflow,
}

/// Knowledge of one model at one place. Times are milliseconds since the epoch, 0 for never.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Known {
    /// From the provider's list.
    pub facts: Facts,
    pub life: Life,
    /// When the list last contained the model.
    pub listed_at: u64,
    /// When the listed window last changed: lessons from before refer to another window.
    pub window_since: u64,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "lesson")]
    pub learnt: Option<Learnt>,
    /// When the user was told that the window is unknown.
    pub told_at: u64,
}

impl Known {
    /// The learned window, while it is valid.
    pub fn learnt(&self, now: u64) -> Option<Learnt> {
        let limit = now.saturating_sub(LEARNT_AGE_MAX);
        self.learnt.filter(|learnt| learnt.at >= self.window_since && learnt.at >= limit)
    }

    fn merge(&mut self, other: Known) {
        if other.listed_at > self.listed_at {
            (self.facts, self.life) = (other.facts, other.life);
            (self.listed_at, self.window_since) = (other.listed_at, other.window_since);
        }
        if other.learnt.map(|learnt| learnt.at) > self.learnt.map(|learnt| learnt.at) {
            self.learnt = other.learnt;
        }
        self.told_at = self.told_at.max(other.told_at);
    }

    fn newest(&self) -> u64 {
        self.listed_at.max(self.told_at).max(self.learnt.map_or(0, |learnt| learnt.at))
    }
}

/// The models of one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// When it was last asked for its list, successfully or not.
    pub asked_at: u64,
    /// When it last returned one.
    pub listed_at: u64,
    /// By name.
    pub models: BTreeMap<String, Known>,
}

impl Place {
    fn merge(&mut self, other: Place) {
        self.asked_at = self.asked_at.max(other.asked_at);
        self.listed_at = self.listed_at.max(other.listed_at);
        for (name, known) in other.models {
            self.models.entry(name).or_default().merge(known);
        }
        shrink(&mut self.models, LISTED_MAX, Known::newest);
    }
}

/// A model's token calibration and its time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    #[serde(flatten)]
    pub calibration: Calibration,
    /// Milliseconds since the epoch.
    pub at: u64,
}

/// Everything learned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Book {
    /// By URL without user and query.
    pub places: BTreeMap<String, Place>,
    /// By `provider/name`: a model counts the same way at every place.
    pub calibrations: BTreeMap<String, Calibrated>,
}

impl Book {
    pub fn model(&self, place: &str, model: &str) -> Option<&Known> {
        self.places.get(place)?.models.get(model)
    }

    /// The models of the place's last list.
    pub fn listed(&self, place: &str) -> Vec<Listed> {
        let Some(place) = self.places.get(place) else { return Vec::new() };
        let current = place
            .models
            .iter()
            .filter(|(_, known)| known.listed_at > 0 && known.listed_at == place.listed_at);
        current
            .map(|(name, known)| Listed {
                name: name.clone(),
                facts: known.facts.clone(),
                life: known.life.clone(),
            })
            .collect()
    }

    /// Replaces a place's list. Facts that the new list omits keep their known values.
    pub fn list(&mut self, place: &str, listed: &[Listed], now: u64) {
        let mut new = Place { asked_at: now, listed_at: now, models: BTreeMap::new() };
        for model in listed.iter().take(LISTED_MAX) {
            let old = self.model(place, &model.name).cloned().unwrap_or_default();
            // The first listed window isn't a change.
            let changed = match (model.facts.window, old.facts.window) {
                (Some(new), Some(old)) => new != old,
                (None, _) | (_, None) => false,
            };
            let known = Known {
                window_since: if changed { now } else { old.window_since },
                facts: model.facts.clone().or(old.facts),
                life: model.life.clone(),
                listed_at: now,
                ..Known::default()
            };
            new.models.insert(model.name.clone(), known);
        }
        self.merge_place(place, new);
    }

    /// Records that the place was asked but returned no list.
    pub fn asked(&mut self, place: &str, now: u64) {
        let asked = Place { asked_at: now, ..Place::default() };
        self.merge_place(place, asked);
    }

    pub fn learn(&mut self, place: &str, model: &str, learnt: Learnt) {
        self.note(place, model, Known { learnt: Some(learnt), ..Known::default() });
    }

    pub fn told(&mut self, place: &str, model: &str, now: u64) {
        self.note(place, model, Known { told_at: now, ..Known::default() });
    }

    fn note(&mut self, place: &str, model: &str, known: Known) {
        let models = BTreeMap::from([(model.to_owned(), known)]);
        let noted = Place { models, ..Place::default() };
        self.merge_place(place, noted);
    }

    pub fn calibrate(&mut self, model: &str, calibrated: Calibrated) {
        let calibrations = BTreeMap::from([(model.to_owned(), calibrated)]);
        self.merge(Book { calibrations, ..Book::default() });
    }

    fn merge_place(&mut self, name: &str, place: Place) {
        self.merge(Book { places: BTreeMap::from([(name.to_owned(), place)]), ..Book::default() });
    }

    /// Merges newer facts of another book. The order of merging makes no difference, unless both learned
    /// something in the same millisecond.
    pub fn merge(&mut self, other: Book) {
        for (name, place) in other.places {
            self.places.entry(name).or_default().merge(place);
        }
        let newest = |place: &Place| place.models.values().map(Known::newest).fold(place.asked_at, u64::max);
        shrink(&mut self.places, PLACES_MAX, newest);
        for (model, calibrated) in other.calibrations {
            let known = self.calibrations.entry(model).or_insert(calibrated);
            if calibrated.at > known.at {
                *known = calibrated;
            }
        }
        shrink(&mut self.calibrations, CALIBRATIONS_MAX, |calibrated| calibrated.at);
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let places: BTreeMap<&str, Value> = self
            .places
            .iter()
            .map(|(name, place)| {
                let Place { asked_at, listed_at, models } = place;
                (name.as_str(), json!({ "asked_at": asked_at, "listed_at": listed_at, "models": models }))
            })
            .collect();
        let mut text = format!("{:#}", json!({ "places": places, "calibrations": self.calibrations }));
        text.push('\n');
        text
    }

    /// Parses the file's text. Unknown fields, and models in an unknown format, are skipped: a newer version
    /// may have written them. An error explains why the file is invalid.
    pub fn from_text(text: &str) -> Result<Book, String> {
        let file: BTreeMap<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))?;
        let mut book = Book::default();
        let places = file.get("places").and_then(Value::as_object).into_iter().flatten();
        for (name, place) in places {
            let number = |field: &str| place[field].as_u64().unwrap_or(0);
            let models = place["models"].as_object().into_iter().flatten();
            let models = models
                .filter_map(|(name, known)| Some((name.clone(), Known::deserialize(known).ok()?)))
                .collect();
            let (asked_at, listed_at) = (number("asked_at"), number("listed_at"));
            let place = Place { asked_at, listed_at, models };
            book.merge_place(name, place);
        }
        let calibrations = file.get("calibrations").and_then(Value::as_object).into_iter().flatten();
        for (model, calibrated) in calibrations {
            if let Ok(calibrated) = Calibrated::deserialize(calibrated) {
                book.calibrate(model, calibrated);
            }
        }
        Ok(book)
    }
}

/// Deserializes a lesson; `None` for kinds that are no longer used, such as windows guessed from a server's
/// low token counts.
fn lesson<'de, D: Deserializer<'de>>(known: D) -> Result<Option<Learnt>, D::Error> {
    Ok(Learnt::deserialize(Value::deserialize(known)?).ok())
}

/// Keeps the newest entries.
fn shrink<T>(map: &mut BTreeMap<String, T>, most: usize, newest: impl Fn(&T) -> u64) {
    while map.len() > most {
        let oldest = map.iter().min_by_key(|(_, value)| newest(value)).map(|(name, _)| name.clone());
        let Some(oldest) = oldest else { return };
        map.remove(&oldest);
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
