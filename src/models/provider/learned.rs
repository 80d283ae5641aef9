//! Facts that this installation has learned about models: from providers' model lists, from rejected requests, and from
//! token counts of accepted ones. Shared by all sessions of a process; the file is shared by all processes with the
//! same home directory.
//!
//! Precedence of context windows, highest first: the user's configuration, the limit that a rejected request revealed
//! (if smaller than the listed one), the provider's list, the built-in table, a guess. If a server counts fewer tokens
//! than Epitome, that says nothing about its window, because it may only count differently.

mod cache;
mod offers;

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::attachments;
use super::http::Http;
use super::listing::request::{ListError, list};
use super::listing::{self, Lifecycle, ListedModel, ModelFacts};
use super::model_endpoint::{Endpoint, ToolForm, known_fields};
use super::models::{self, OUTPUT_DEFAULT, WINDOW_DEFAULT};
use super::resolve::provider_title;
use super::wire::tools::{description_chars_max, refused};
use super::{ErrorClass, ProviderError, Remedy};
use cache::{Calibrated, InvalidCache, LearnedCache, LearnedForm, LearnedWindow, ModelEntry, WindowOrigin};
use epitome_config::Settings;
use epitome_config::logins::now;
use epitome_files::atomic_file::replace_in_private_directory;
use epitome_platform::blocking;
use epitome_thread::{ModelName, Thread, named_enum};
use epitome_tokens::Calibration;
use offers::KeptOffers;

/// Default context window, in tokens, of an unknown model on the user's own machine. Such servers often have a smaller
/// window, which their lists or rejections reveal. With a smaller default, a conversation with tools would be compacted
/// at every step.
pub const WINDOW_NEAR_DEFAULT: u64 = 32_768;

/// A smaller window must be a misread number: not even the system prompt would fit.
pub const WINDOW_TOKENS_MIN: u64 = 1_000;

/// Maximum age of a provider's model list.
const LIST_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Delay before changes are written to disk, together with all others made in the meantime.
const SAVE_WITHIN: Duration = Duration::from_secs(1);

/// Maximum bytes read of the file: twice the maximum size of its content.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Maximum number of providers with a lock for listing their models.
const ASKING_MAX: usize = 64;

named_enum! {
    /// The source of a fact about a model.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum FactSource {
        Config = "config",
        /// A rejected request.
        Overflow = "learned",
        /// The provider's list.
        Endpoint = "provider",
        /// The built-in table.
        Table = "table",
        /// A default value.
        Guess = "guess",
    }
}

/// The known facts about an endpoint's model.
#[derive(Debug)]
pub struct AppliedFacts {
    /// The context window in tokens, and its source.
    pub window: (u64, FactSource),
    /// Maximum tokens of a reply, before the window limits them, and their source.
    pub max_output: (u32, FactSource),
    /// The future of the model according to the provider's last list, if the list contains it.
    pub life: Option<Lifecycle>,
}

/// When to request a provider's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefreshTime {
    /// Only if the list is outdated. Local servers are always asked.
    Due,
    Now,
}

/// A cheap handle on the learned facts. No lock on them is held while waiting for disk or network.
#[derive(Clone)]
pub struct Learned {
    inner: Arc<LearnedInner>,
}

struct LearnedInner {
    file: PathBuf,
    state: Mutex<LearnedState>,
    loaded: tokio::sync::OnceCell<()>,
    /// Serializes writes of the file.
    saving: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct LearnedState {
    cache: LearnedCache,
    /// Number of changes of what `cache` knows of models so far. Calibrations, which change with each reply, are not counted.
    revision: u64,
    offers: KeptOffers,
    /// Whether there are changes that are not on disk.
    is_dirty: bool,
    /// Whether a write is scheduled.
    is_due: bool,
    /// Why the file could not be used; `None` once reported.
    fault: Option<String>,
    asking: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
}

impl LearnedState {
    fn facts_changed(&mut self) {
        self.revision += 1;
        self.offers.clear();
    }

    /// Adds what another process has learned.
    fn merge(&mut self, other: LearnedCache) {
        if other.services != self.cache.services {
            self.facts_changed();
        }
        self.cache.merge(other);
    }
}

impl Learned {
    /// Returns a handle on the data in this directory. Nothing is read before `load`.
    pub fn below(data: &Path) -> Learned {
        let inner = LearnedInner {
            file: data.join("models.json"),
            state: Mutex::default(),
            loaded: tokio::sync::OnceCell::new(),
            saving: tokio::sync::Mutex::default(),
        };
        Learned { inner: Arc::new(inner) }
    }

    /// Reads the file once, on a blocking thread.
    pub async fn load(&self) {
        let read = async {
            let file = self.inner.file.clone();
            match blocking::run(move || read(&file)).await {
                Ok(cache) => self.inner.state.lock().merge(cache),
                Err(fault) => self.inner.state.lock().fault = Some(fault.to_string()),
            }
        };
        self.inner.loaded.get_or_init(|| read).await;
    }

    /// Returns a problem with the file that the user should know about, only once.
    pub fn fault(&self) -> Option<String> {
        self.inner.state.lock().fault.take()
    }

    /// Applies the known facts to the endpoint: window, maximum output, abilities, form of tools.
    pub fn apply(&self, settings: &Settings, endpoint: &mut Endpoint) -> AppliedFacts {
        let service = endpoint.shown_url();
        let state = self.inner.state.lock();
        let known = state.cache.model(&service, &endpoint.model).cloned().unwrap_or_default();
        let life = state.cache.life(&service, &endpoint.model);
        drop(state);
        let window = window(settings, endpoint, &known);
        apply_form(settings, endpoint, &known);
        let of_model = max_output(endpoint, &known.facts);
        endpoint.max_output = of_model.0;
        endpoint.set_window(window.0);
        let configured = settings.models.get(&endpoint.name.0);
        let max_output = match configured.and_then(|model| model.max_output) {
            Some(most) => {
                endpoint.max_output = most;
                (most, FactSource::Config)
            }
            None => of_model,
        };
        known.facts.set_abilities(&mut endpoint.abilities);
        if let Some(configured) = configured {
            endpoint.abilities = endpoint.abilities.clone().with(configured);
        }
        AppliedFacts { window, max_output, life }
    }

    /// Records a context window that a rejected request revealed.
    pub fn learn_window(&self, endpoint: &Endpoint, tokens: u64) {
        if tokens >= WINDOW_TOKENS_MIN {
            let learnt = LearnedWindow { tokens, by: WindowOrigin::Overflow, at: now() };
            self.change(|cache| cache.learn(&endpoint.shown_url(), &endpoint.model, learnt));
        }
    }

    /// Switches to the form of tools that is known to be accepted.
    pub fn apply_form(&self, settings: &Settings, endpoint: &mut Endpoint) {
        apply_form(settings, endpoint, &self.known(endpoint));
    }

    /// Returns the endpoint for another attempt after an error: without what the service refuses, or with the next
    /// form of tools; `None` if another form wouldn't help. Any refusal rules out the Responses API, unless it has worked
    /// before.
    pub fn other_form(
        &self,
        settings: &Settings,
        endpoint: &Endpoint,
        thread: &Thread,
        error: &ProviderError,
    ) -> Option<Adapted> {
        let known = self.known(endpoint).form(now()).map(|known| known.form);
        let mut other = endpoint.clone();
        let refused = match &error.remedy {
            Some(Remedy::OmitField(field)) => {
                other.omitted.fields.insert(*field);
                Some(format!("`{}`", field.trim_start_matches("*.")))
            }
            Some(Remedy::OmitTool(_))
                if endpoint.omitted.description_chars_max.is_none()
                    && let Some(limit) = description_chars_max(&error.message) =>
            {
                other.omitted.description_chars_max = Some(limit);
                Some(format!("what is behind the first {limit} characters of the description of a tool"))
            }
            Some(Remedy::OmitTool(position)) => {
                let tools = thread.frame().map_or(&[][..], |(_, tools)| tools);
                let tool = refused(endpoint, tools, *position, &error.message);
                other.omitted.tools.extend(tool.clone());
                tool.map(|tool| format!("the tool {tool}"))
            }
            Some(Remedy::OmitAttachments) => {
                let attachments = attachments::refused(endpoint, &thread.view().items());
                other.omitted.attachments.extend(&attachments);
                (!attachments.is_empty()).then(|| "something that is attached".to_owned())
            }
            None if let ErrorClass::TooLong { window: false, .. } = error.class => {
                let attachments = attachments::too_large(endpoint, &thread.view().items());
                other.omitted.attachments.extend(&attachments);
                (!attachments.is_empty()).then(|| "a request of this size with what was attached".to_owned())
            }
            Some(Remedy::Shorten { .. }) | None => None,
        };
        if let Some(refused) = refused {
            let service = provider_title(endpoint.provider());
            let text = format!(
                "{service} does not accept {refused}, which is left out from now on. {}",
                error.message
            );
            return Some(Adapted { endpoint: other, notice: Some(text) });
        }
        let next = match (endpoint.form, &error.class) {
            (ToolForm::Usual, ErrorClass::ToolForm) => ToolForm::Responses,
            (ToolForm::Responses, ErrorClass::ToolForm | ErrorClass::Refused | ErrorClass::Broken)
                if known != Some(ToolForm::Responses) =>
            {
                ToolForm::WithoutReasoning
            }
            _ => return None,
        };
        other.take_form(next, settings.models.get(&endpoint.name.0));
        let notice = (next == ToolForm::WithoutReasoning).then(|| {
            format!(
                "{} at {} takes tools only without reasoning, and the service has no Responses API for it. It is \
                 asked without reasoning.",
                endpoint.name,
                endpoint.shown_url()
            )
        });
        Some(Adapted { endpoint: other, notice })
    }

    /// Records that the service accepted requests in the form that the endpoint uses.
    pub fn learn_form(&self, endpoint: &Endpoint) {
        let omitted: Vec<String> = endpoint.omitted.fields.iter().map(|field| (*field).to_owned()).collect();
        let known = self.known(endpoint);
        let is_known =
            known.form(now()).is_some_and(|known| known.form == endpoint.form && known.omitted == omitted);
        if !is_known && (endpoint.form != ToolForm::Usual || !omitted.is_empty()) {
            let learned = LearnedForm { form: endpoint.form, omitted, at: now() };
            self.change(|cache| cache.learn_form(&endpoint.shown_url(), &endpoint.model, learned));
        }
    }

    /// Records how a model counts tokens, if that differs from the known calibration.
    pub fn learn_calibration(&self, model: &ModelName, calibration: Calibration) {
        let kept = self.inner.state.lock().cache.calibrations.get(&model.0).map(|kept| kept.calibration);
        if kept.is_none_or(|kept| calibration.differs_from(&kept)) {
            let calibrated = Calibrated { calibration, at: now() };
            self.record(|state| state.cache.calibrate(&model.0, calibrated));
        }
    }

    /// The known token calibrations of models.
    pub fn calibrations(&self) -> Vec<(ModelName, Calibration)> {
        let state = self.inner.state.lock();
        let all = state.cache.calibrations.iter();
        all.map(|(model, kept)| (ModelName(model.clone()), kept.calibration)).collect()
    }

    /// Records a provider's complete list.
    pub fn learn_list(&self, endpoint: &Endpoint, listed: &[ListedModel]) {
        self.change(|cache| cache.list(&endpoint.shown_url(), listed, now()));
    }

    /// The provider's last list.
    pub fn list(&self, endpoint: &Endpoint) -> Vec<ListedModel> {
        self.inner.state.lock().cache.listed(&endpoint.shown_url())
    }

    /// Whether the endpoint's service was asked for its models, as it is after the user's first prompt, and by `epitome
    /// models`.
    pub fn knows_service(&self, endpoint: &Endpoint) -> bool {
        self.inner.state.lock().cache.services.contains_key(&endpoint.shown_url())
    }

    /// Returns whether the user has yet to be informed that this model's window is unknown, and records that this has
    /// been done.
    pub fn is_guess_unreported(&self, endpoint: &Endpoint) -> bool {
        let is_new = self.known(endpoint).reported_at == 0;
        if is_new {
            self.change(|cache| cache.mark_reported(&endpoint.shown_url(), &endpoint.model, now()));
        }
        is_new
    }

    /// Fetches the model list of the endpoint's provider if it is due. Concurrent calls for the same provider are
    /// serialized, so that an outdated list is fetched only once.
    pub async fn refresh(
        &self,
        http: &Http,
        endpoint: &Endpoint,
        when: RefreshTime,
    ) -> Result<(), ListError> {
        let service = endpoint.shown_url();
        let turn = {
            let mut state = self.inner.state.lock();
            if state.asking.len() >= ASKING_MAX {
                // Pending callers keep their lock; at worst, a provider is asked twice.
                state.asking.clear();
            }
            state.asking.entry(service.clone()).or_default().clone()
        };
        let _turn = turn.lock().await;
        let is_due = when == RefreshTime::Now || listing::is_near(endpoint) || {
            let asked_at = self.inner.state.lock().cache.services.get(&service).map_or(0, |it| it.asked_at);
            now().saturating_sub(asked_at) >= LIST_AGE_MAX.as_millis() as u64
        };
        if !is_due {
            return Ok(());
        }
        let listed = list(http, endpoint).await;
        match &listed {
            Ok(listed) => self.learn_list(endpoint, listed),
            Err(ListError::Refused { .. }) => self.change(|cache| cache.record_request(&service, now())),
            // Not recorded, so that the next session retries instead of waiting a day.
            Err(ListError::Unreachable { .. }) => {}
        }
        listed.map(drop)
    }

    /// Writes what was learned to disk.
    pub async fn save(&self) {
        let _alone = self.inner.saving.lock().await;
        let cache = {
            let mut state = self.inner.state.lock();
            state.is_due = false;
            if !std::mem::take(&mut state.is_dirty) {
                return;
            }
            state.cache.clone()
        };
        let file = self.inner.file.clone();
        match blocking::run(move || write(&file, cache)).await {
            Ok(merged) => self.inner.state.lock().merge(merged),
            // It will be learned again when it is needed.
            Err(error) => tracing::warn!(%error, "what was learned of models could not be kept"),
        }
    }

    /// Changes what is known of models.
    fn change(&self, change: impl FnOnce(&mut LearnedCache)) {
        self.record(|state| {
            change(&mut state.cache);
            state.facts_changed();
        });
    }

    fn record(&self, change: impl FnOnce(&mut LearnedState)) {
        let mut state = self.inner.state.lock();
        change(&mut state);
        state.is_dirty = true;
        if !std::mem::replace(&mut state.is_due, true)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let learned = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep(SAVE_WITHIN).await;
                learned.save().await;
            });
        }
    }

    fn known(&self, endpoint: &Endpoint) -> ModelEntry {
        let service = endpoint.shown_url();
        self.inner.state.lock().cache.model(&service, &endpoint.model).cloned().unwrap_or_default()
    }
}

fn apply_form(settings: &Settings, endpoint: &mut Endpoint, known: &ModelEntry) {
    let Some(known) = known.form(now()) else { return };
    endpoint.omitted.fields.extend(known_fields(&known.omitted));
    if known.form != endpoint.form {
        endpoint.take_form(known.form, settings.models.get(&endpoint.name.0));
    }
}

/// An endpoint that is adapted to a refusal of its service.
#[derive(Debug)]
pub struct Adapted {
    pub endpoint: Endpoint,
    /// A notice for the user about the change.
    pub notice: Option<String>,
}

fn window(settings: &Settings, endpoint: &Endpoint, known: &ModelEntry) -> (u64, FactSource) {
    if let Some(window) = models::configured_window(&endpoint.name, settings.models.get(&endpoint.name.0)) {
        return (window, FactSource::Config);
    }
    let listed = known.facts.window.filter(|window| *window >= WINDOW_TOKENS_MIN);
    let learnt = known.learnt(now()).filter(|learnt| listed.is_none_or(|listed| learnt.tokens < listed));
    if let Some(learnt) = learnt {
        return (learnt.tokens, FactSource::Overflow);
    }
    match (listed, models::known(&endpoint.name)) {
        (Some(window), _) => (window, FactSource::Endpoint),
        (None, Some(table)) => (table.window, FactSource::Table),
        (None, None) if listing::is_near(endpoint) => (WINDOW_NEAR_DEFAULT, FactSource::Guess),
        (None, None) => (WINDOW_DEFAULT, FactSource::Guess),
    }
}

fn max_output(endpoint: &Endpoint, facts: &ModelFacts) -> (u32, FactSource) {
    match (facts.max_output, models::known(&endpoint.name)) {
        (Some(most), _) => (most, FactSource::Endpoint),
        (None, Some(table)) => (table.max_output, FactSource::Table),
        (None, None) => (OUTPUT_DEFAULT, FactSource::Guess),
    }
}

/// Reads the file; a missing one counts as empty. An invalid one is renamed, and the error reports this.
fn read(file: &Path) -> Result<LearnedCache, LearnedError> {
    let mut text = String::new();
    let opened = std::fs::File::open(file);
    match opened.and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(LearnedCache::default()),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(LearnedError::set_aside(file, InvalidCache::NotText(error)));
        }
        Err(source) => return Err(LearnedError::Unreadable { file: file.to_owned(), source }),
    }
    LearnedCache::from_text(&text).map_err(|why| LearnedError::set_aside(file, why))
}

/// Why the file was not read or written.
#[derive(Debug, thiserror::Error)]
enum LearnedError {
    #[error("{} can't be read: {source}", file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },
    #[error(
        "What was learned about models in {} can't be read ({source}); {aside}. It will be learned again.",
        file.display()
    )]
    Invalid { file: PathBuf, aside: String, source: InvalidCache },
    #[error("{}: {source}", file.display())]
    Unwritable { file: PathBuf, source: std::io::Error },
}

impl LearnedError {
    /// Renames a file with invalid contents.
    fn set_aside(file: &Path, source: InvalidCache) -> LearnedError {
        let aside = file.with_extension("json.broken");
        let aside = match std::fs::rename(file, &aside) {
            Ok(()) => format!("it is now {}", aside.display()),
            Err(error) => format!("it could not be set aside: {error}"),
        };
        LearnedError::Invalid { file: file.to_owned(), aside, source }
    }
}

/// Merges the cache with what another process has written in the meantime, writes it to the file and returns the
/// result. If two processes write at the same time, the later one wins; lost facts are learned again.
fn write(file: &Path, mut cache: LearnedCache) -> Result<LearnedCache, LearnedError> {
    let failed = |source| LearnedError::Unwritable { file: file.to_owned(), source };
    match read(file) {
        Ok(there) => cache.merge(there),
        Err(fault) => tracing::warn!(%fault, "the learned facts about models are rewritten"),
    }
    // The write is atomic, and only the user can read the file.
    replace_in_private_directory(file, cache.to_text().as_bytes()).map_err(failed)?;
    Ok(cache)
}

#[cfg(test)]
#[path = "learned/tests.rs"]
mod tests;
