//! Learned facts about models as data: validity, retention and merging. Pure.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::endpoint::ToolForm;
use crate::listing::{LISTED_MAX, Lifecycle, ListedModel, ModelFacts};
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
pub struct LearnedWindow {
    pub tokens: u64,
    pub by: WindowOrigin,
    /// Milliseconds since the epoch.
    pub at: u64,
}

/// The form in which a service took tools after it had refused the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedForm {
    pub form: ToolForm,
    /// Milliseconds since the epoch.
    pub at: u64,
}

/// How a window was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowOrigin {
    /// A request was rejected as too long: the limit, or, if that was not reported, the size of the rejected
    /// request.
    Overflow,
}

/// Knowledge of one model at one place. Times are milliseconds since the epoch, 0 for never.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelEntry {
    /// From the provider's list.
    pub facts: ModelFacts,
    pub life: Lifecycle,
    /// When the list last contained the model.
    pub listed_at: u64,
    /// When the listed window last changed: lessons from before refer to another window.
    pub window_since: u64,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "if_known")]
    pub learnt: Option<LearnedWindow>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "if_known")]
    pub form: Option<LearnedForm>,
    /// When the user was told that the window is unknown.
    pub told_at: u64,
}

impl ModelEntry {
    /// The learned window, while it is valid.
    pub fn learnt(&self, now: u64) -> Option<LearnedWindow> {
        let limit = now.saturating_sub(LEARNT_AGE_MAX);
        self.learnt.filter(|learnt| learnt.at >= self.window_since && learnt.at >= limit)
    }

    /// The form in which tools are taken; a service may have got another API since.
    pub fn form(&self, now: u64) -> Option<ToolForm> {
        let limit = now.saturating_sub(LEARNT_AGE_MAX);
        self.form.filter(|known| known.at >= limit).map(|known| known.form)
    }

    fn merge(&mut self, other: ModelEntry) {
        if other.listed_at > self.listed_at {
            (self.facts, self.life) = (other.facts, other.life);
            (self.listed_at, self.window_since) = (other.listed_at, other.window_since);
        }
        if other.learnt.map(|learnt| learnt.at) > self.learnt.map(|learnt| learnt.at) {
            self.learnt = other.learnt;
        }
        if other.form.map(|known| known.at) > self.form.map(|known| known.at) {
            self.form = other.form;
        }
        self.told_at = self.told_at.max(other.told_at);
    }

    fn newest(&self) -> u64 {
        let learnt = self.learnt.map_or(0, |learnt| learnt.at).max(self.form.map_or(0, |known| known.at));
        self.listed_at.max(self.told_at).max(learnt)
    }
}

/// The models of one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProviderEntry {
    /// When it was last asked for its list, successfully or not.
    pub asked_at: u64,
    /// When it last returned one.
    pub listed_at: u64,
    /// By name.
    #[serde(deserialize_with = "known_entries")]
    pub models: BTreeMap<String, ModelEntry>,
}

impl ProviderEntry {
    fn merge(&mut self, other: ProviderEntry) {
        self.asked_at = self.asked_at.max(other.asked_at);
        self.listed_at = self.listed_at.max(other.listed_at);
        for (name, known) in other.models {
            self.models.entry(name).or_default().merge(known);
        }
        shrink(&mut self.models, LISTED_MAX, ModelEntry::newest);
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LearnedCache {
    /// By URL without user and query.
    #[serde(deserialize_with = "known_entries")]
    pub places: BTreeMap<String, ProviderEntry>,
    /// By `provider/name`: a model counts the same way at every place.
    #[serde(deserialize_with = "known_entries")]
    pub calibrations: BTreeMap<String, Calibrated>,
}

impl LearnedCache {
    pub fn model(&self, place: &str, model: &str) -> Option<&ModelEntry> {
        self.places.get(place)?.models.get(model)
    }

    /// The models of the place's last list.
    pub fn listed(&self, place: &str) -> Vec<ListedModel> {
        let Some(place) = self.places.get(place) else { return Vec::new() };
        let current = place
            .models
            .iter()
            .filter(|(_, known)| known.listed_at > 0 && known.listed_at == place.listed_at);
        current
            .map(|(name, known)| ListedModel {
                name: name.clone(),
                facts: known.facts.clone(),
                life: known.life.clone(),
            })
            .collect()
    }

    /// Replaces a place's list. Facts that the new list omits keep their known values.
    pub fn list(&mut self, place: &str, listed: &[ListedModel], now: u64) {
        let mut new = ProviderEntry { asked_at: now, listed_at: now, models: BTreeMap::new() };
        for model in listed.iter().take(LISTED_MAX) {
            let old = self.model(place, &model.name).cloned().unwrap_or_default();
            // The first listed window isn't a change.
            let changed = match (model.facts.window, old.facts.window) {
                (Some(new), Some(old)) => new != old,
                (None, _) | (_, None) => false,
            };
            let known = ModelEntry {
                window_since: if changed { now } else { old.window_since },
                facts: model.facts.clone().or(old.facts),
                life: model.life.clone(),
                listed_at: now,
                ..ModelEntry::default()
            };
            new.models.insert(model.name.clone(), known);
        }
        self.merge_place(place, new);
    }

    /// Records that the place was asked but returned no list.
    pub fn record_request(&mut self, place: &str, now: u64) {
        let asked = ProviderEntry { asked_at: now, ..ProviderEntry::default() };
        self.merge_place(place, asked);
    }

    pub fn learn(&mut self, place: &str, model: &str, learnt: LearnedWindow) {
        self.note(place, model, ModelEntry { learnt: Some(learnt), ..ModelEntry::default() });
    }

    pub fn learn_form(&mut self, place: &str, model: &str, form: LearnedForm) {
        self.note(place, model, ModelEntry { form: Some(form), ..ModelEntry::default() });
    }

    pub fn mark_reported(&mut self, place: &str, model: &str, now: u64) {
        self.note(place, model, ModelEntry { told_at: now, ..ModelEntry::default() });
    }

    fn note(&mut self, place: &str, model: &str, known: ModelEntry) {
        let models = BTreeMap::from([(model.to_owned(), known)]);
        let noted = ProviderEntry { models, ..ProviderEntry::default() };
        self.merge_place(place, noted);
    }

    pub fn calibrate(&mut self, model: &str, calibrated: Calibrated) {
        let calibrations = BTreeMap::from([(model.to_owned(), calibrated)]);
        self.merge(LearnedCache { calibrations, ..LearnedCache::default() });
    }

    fn merge_place(&mut self, name: &str, place: ProviderEntry) {
        self.merge(LearnedCache {
            places: BTreeMap::from([(name.to_owned(), place)]),
            ..LearnedCache::default()
        });
    }

    /// Merges newer facts of another cache. The order of merging makes no difference, unless both learned
    /// something in the same millisecond.
    pub fn merge(&mut self, other: LearnedCache) {
        for (name, place) in other.places {
            self.places.entry(name).or_default().merge(place);
        }
        let newest = |place: &ProviderEntry| {
            place.models.values().map(ModelEntry::newest).fold(place.asked_at, u64::max)
        };
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
        let mut text = serde_json::to_string_pretty(self).expect("plain data can always be written");
        text.push('\n');
        text
    }

    /// Parses the file's text. Unknown fields, and models in an unknown format, are skipped: a newer version
    /// may have written them. An error explains why the file is invalid.
    pub fn from_text(text: &str) -> Result<LearnedCache, String> {
        let object: serde_json::Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))?;
        let read = LearnedCache::deserialize(Value::Object(object)).map_err(|error| error.to_string())?;
        // Merging applies the bounds.
        let mut cache = LearnedCache::default();
        cache.merge(read);
        Ok(cache)
    }
}

/// Deserializes a map without the entries in an unknown format.
fn known_entries<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    entries: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let entries = BTreeMap::<String, Value>::deserialize(entries)?.into_iter();
    Ok(entries.filter_map(|(name, entry)| Some((name, serde_json::from_value(entry).ok()?))).collect())
}

/// Deserializes a lesson; `None` for kinds that this version doesn't know, or that are no longer used, such as windows
/// guessed from a server's low token counts.
fn if_known<'de, D: Deserializer<'de>, T: DeserializeOwned>(known: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(known)?).ok())
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
#[path = "cache_tests.rs"]
mod tests;
