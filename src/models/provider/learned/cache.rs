//! Learned facts about models as data: validity, retention and merging. Pure.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::listing::{LISTED_MAX, Lifecycle, ListedModel, ModelFacts};
use crate::model_endpoint::ToolForm;
use epitome_tokens::Calibration;

/// Maximum number of providers, by URL. Users have a handful, but the URLs of test servers accumulate.
const SERVICES_MAX: usize = 16;

/// Maximum number of models with a token calibration. Users have a handful.
const CALIBRATIONS_MAX: usize = 500;

/// Lifetime, in milliseconds, of facts learned from rejected requests: the server may have changed since, for example
/// to a larger window.
const LEARNT_AGE_MAX: u64 = 30 * 24 * 60 * 60 * 1000;

/// A context window revealed by a rejected request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedWindow {
    pub tokens: u64,
    pub by: WindowOrigin,
    /// Milliseconds since the epoch.
    pub at: u64,
}

/// The form in which a service accepted requests after it had refused the usual one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedForm {
    pub form: ToolForm,
    /// The fields that requests do without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<String>,
    /// Milliseconds since the epoch.
    pub at: u64,
}

/// How a window was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowOrigin {
    /// A request was rejected as too long. The window is the reported limit, or else the size of the request.
    Overflow,
}

/// Knowledge of one model of one provider. Times are milliseconds since the epoch, 0 for never.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelEntry {
    /// The facts in the provider's list.
    pub facts: ModelFacts,
    pub life: Lifecycle,
    /// When the list last contained the model.
    pub listed_at: u64,
    /// When the listed window last changed; windows learned before that are invalid.
    pub window_since: u64,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "if_known")]
    pub learnt: Option<LearnedWindow>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "if_known")]
    pub form: Option<LearnedForm>,
    /// When the user was informed that the window is unknown.
    #[serde(rename = "told_at")]
    pub reported_at: u64,
}

impl ModelEntry {
    /// The learned window; `None` once it is outdated.
    pub fn learnt(&self, now: u64) -> Option<LearnedWindow> {
        let limit = now.saturating_sub(LEARNT_AGE_MAX);
        self.learnt.filter(|learnt| learnt.at >= self.window_since && learnt.at >= limit)
    }

    /// The form in which requests are accepted; `None` once outdated, as the service may have changed.
    pub fn form(&self, now: u64) -> Option<&LearnedForm> {
        let limit = now.saturating_sub(LEARNT_AGE_MAX);
        self.form.as_ref().filter(|known| known.at >= limit)
    }

    fn merge(&mut self, other: ModelEntry) {
        if other.listed_at > self.listed_at {
            (self.facts, self.life) = (other.facts, other.life);
            (self.listed_at, self.window_since) = (other.listed_at, other.window_since);
        }
        self.learnt = other.learnt.into_iter().chain(self.learnt).max_by_key(|learnt| learnt.at);
        self.form = other.form.into_iter().chain(self.form.take()).max_by_key(|known| known.at);
        self.reported_at = self.reported_at.max(other.reported_at);
    }

    fn newest(&self) -> u64 {
        let learnt =
            self.learnt.map_or(0, |learnt| learnt.at).max(self.form.as_ref().map_or(0, |known| known.at));
        self.listed_at.max(self.reported_at).max(learnt)
    }
}

/// The models of one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProviderEntry {
    /// When the provider was last asked for its list, successfully or not.
    pub asked_at: u64,
    /// When it last returned a list.
    pub listed_at: u64,
    /// Keyed by name.
    #[serde(deserialize_with = "known_entries")]
    pub models: BTreeMap<String, ModelEntry>,
}

impl ProviderEntry {
    /// Whether the last list contains the model.
    fn lists(&self, known: &ModelEntry) -> bool {
        known.listed_at > 0 && known.listed_at == self.listed_at
    }

    fn merge(&mut self, other: ProviderEntry) {
        self.asked_at = self.asked_at.max(other.asked_at);
        self.listed_at = self.listed_at.max(other.listed_at);
        for (name, known) in other.models {
            self.models.entry(name).or_default().merge(known);
        }
        shrink(&mut self.models, LISTED_MAX, ModelEntry::newest);
    }
}

/// A model's token calibration and when it was learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    #[serde(flatten)]
    pub calibration: Calibration,
    /// Milliseconds since the epoch.
    pub at: u64,
}

/// Everything that was learned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LearnedCache {
    /// Keyed by URL without user and query.
    #[serde(deserialize_with = "known_entries", rename = "places")]
    pub services: BTreeMap<String, ProviderEntry>,
    /// Keyed by `provider/name`: a model counts the same way at every URL.
    #[serde(deserialize_with = "known_entries")]
    pub calibrations: BTreeMap<String, Calibrated>,
}

/// Why the file's contents can't be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidCache {
    #[error("it is not text")]
    NotText(#[source] std::io::Error),
    #[error("it is not a JSON object: {0}")]
    NotAnObject(#[source] serde_json::Error),
    #[error(transparent)]
    Fields(serde_json::Error),
}

impl LearnedCache {
    pub fn model(&self, service: &str, model: &str) -> Option<&ModelEntry> {
        self.services.get(service)?.models.get(model)
    }

    /// The models of the last list from this URL.
    pub fn listed(&self, service: &str) -> Vec<ListedModel> {
        let Some(service) = self.services.get(service) else { return Vec::new() };
        let current = service.models.iter().filter(|(_, known)| service.lists(known));
        current
            .map(|(name, known)| ListedModel {
                name: name.clone(),
                facts: known.facts.clone(),
                life: known.life.clone(),
            })
            .collect()
    }

    /// The future of a model according to the last list from this URL, if the list contains it.
    pub fn life(&self, service: &str, model: &str) -> Option<Lifecycle> {
        let service = self.services.get(service)?;
        service.models.get(model).filter(|known| service.lists(known)).map(|known| known.life.clone())
    }

    /// Replaces the list of this URL. Facts that the new list omits keep their known values.
    pub fn list(&mut self, service: &str, listed: &[ListedModel], now: u64) {
        let mut new = ProviderEntry { asked_at: now, listed_at: now, models: BTreeMap::new() };
        for model in listed.iter().take(LISTED_MAX) {
            let old = self.model(service, &model.name).cloned().unwrap_or_default();
            // The first listed window is not a change.
            let changed = model.facts.window.zip(old.facts.window).is_some_and(|(new, old)| new != old);
            let known = ModelEntry {
                window_since: if changed { now } else { old.window_since },
                facts: model.facts.clone().or(old.facts),
                life: model.life.clone(),
                listed_at: now,
                ..ModelEntry::default()
            };
            new.models.insert(model.name.clone(), known);
        }
        self.merge_service(service, new);
    }

    /// Records that a list was requested but not returned.
    pub fn record_request(&mut self, service: &str, now: u64) {
        let asked = ProviderEntry { asked_at: now, ..ProviderEntry::default() };
        self.merge_service(service, asked);
    }

    pub fn learn(&mut self, service: &str, model: &str, learnt: LearnedWindow) {
        self.note(service, model, ModelEntry { learnt: Some(learnt), ..ModelEntry::default() });
    }

    pub fn learn_form(&mut self, service: &str, model: &str, form: LearnedForm) {
        self.note(service, model, ModelEntry { form: Some(form), ..ModelEntry::default() });
    }

    pub fn mark_reported(&mut self, service: &str, model: &str, now: u64) {
        self.note(service, model, ModelEntry { reported_at: now, ..ModelEntry::default() });
    }

    fn note(&mut self, service: &str, model: &str, known: ModelEntry) {
        let models = BTreeMap::from([(model.to_owned(), known)]);
        let noted = ProviderEntry { models, ..ProviderEntry::default() };
        self.merge_service(service, noted);
    }

    pub fn calibrate(&mut self, model: &str, calibrated: Calibrated) {
        let calibrations = BTreeMap::from([(model.to_owned(), calibrated)]);
        self.merge(LearnedCache { calibrations, ..LearnedCache::default() });
    }

    fn merge_service(&mut self, name: &str, service: ProviderEntry) {
        self.merge(LearnedCache {
            services: BTreeMap::from([(name.to_owned(), service)]),
            ..LearnedCache::default()
        });
    }

    /// Merges newer facts of another cache. Merging is commutative, unless both caches learned something in the same
    /// millisecond.
    pub fn merge(&mut self, other: LearnedCache) {
        for (name, service) in other.services {
            self.services.entry(name).or_default().merge(service);
        }
        let newest = |service: &ProviderEntry| {
            service.models.values().map(ModelEntry::newest).fold(service.asked_at, u64::max)
        };
        shrink(&mut self.services, SERVICES_MAX, newest);
        for (model, calibrated) in other.calibrations {
            let known = self.calibrations.entry(model).or_insert(calibrated);
            if calibrated.at > known.at {
                *known = calibrated;
            }
        }
        shrink(&mut self.calibrations, CALIBRATIONS_MAX, |calibrated| calibrated.at);
    }

    /// Serializes the cache for the file.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain data can always be written");
        text.push('\n');
        text
    }

    /// Parses the file's text. Unknown fields, and models in an unknown format, are skipped, because a newer version
    /// may have written them.
    pub fn from_text(text: &str) -> Result<LearnedCache, InvalidCache> {
        let object: serde_json::Map<String, Value> =
            serde_json::from_str(text).map_err(InvalidCache::NotAnObject)?;
        let read = LearnedCache::deserialize(Value::Object(object)).map_err(InvalidCache::Fields)?;
        // Merging enforces the limits.
        let mut cache = LearnedCache::default();
        cache.merge(read);
        Ok(cache)
    }
}

/// Deserializes a map, skipping entries in an unknown format.
fn known_entries<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    entries: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let entries = BTreeMap::<String, Value>::deserialize(entries)?.into_iter();
    Ok(entries.filter_map(|(name, entry)| Some((name, serde_json::from_value(entry).ok()?))).collect())
}

/// Deserializes a learned fact; `None` for kinds that this version doesn't know or no longer uses, such as windows
/// guessed from a server's low token counts.
fn if_known<'de, D: Deserializer<'de>, T: DeserializeOwned>(known: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(known)?).ok())
}

/// Keeps the newest `most` entries.
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
