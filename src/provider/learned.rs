//! What this installation has learned about models: from the providers' own lists, from requests that were
//! refused, and from how many tokens the others had. All sessions of a process share it, and all
//! processes of a home its file.
//!
//! What counts of several words on a window, the first first: the person's configuration, what a refused
//! request taught (where it is smaller than what the provider says), the provider's own list, the built-in
//! table, a guess. That a server counts fewer tokens than we do says nothing of its window: it may only
//! count in another way.

mod book;

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::endpoint::Endpoint;
use super::http::Http;
use super::listing::{self, Facts, ListError, Listed};
use super::models::{self, OUTPUT_DEFAULT, WINDOW_DEFAULT};
use book::{Book, Calibrated, Known, Learnt, Lesson};
use epitome_config::Settings;
use epitome_thread::ModelName;
use epitome_tokens::Calibration;

/// The window of a model on one's own machine of which nothing is known, in tokens. Such servers
/// often have a small one, which is learned from what they list or refuse; below this, a conversation with
/// tools would be compacted at every step.
pub const WINDOW_NEAR_DEFAULT: u64 = 32_768;

/// A window below this many tokens is a misread number: the system text alone would not fit.
pub const WINDOW_TOKENS_MIN: u64 = 1_000;

/// A provider is asked for its list once in this time.
const LIST_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What was learned is on disk after this time, together with what else was learned in it.
const SAVE_WITHIN: Duration = Duration::from_secs(1);

/// The most that the file may have, in bytes: twice what all that is kept can take.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Places that may be asked at the same time by one session each.
const ASKING_MAX: usize = 64;

/// Where a fact on a model comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Config,
    /// A request that was refused.
    Overflow,
    /// The provider's own list.
    Endpoint,
    /// The built-in table.
    Table,
    /// Nothing is known.
    Guess,
}

impl Source {
    /// One word for a table or a JSON document.
    pub fn word(self) -> &'static str {
        match self {
            Source::Config => "config",
            Source::Overflow => "learned",
            Source::Endpoint => "provider",
            Source::Table => "table",
            Source::Guess => "guess",
        }
    }
}

/// When a provider is asked for its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// If it was not asked today. A server of one's own is asked each time.
    Due,
    Now,
}

/// A cheap handle on it. No lock is held while a disk or a network is waited for.
#[derive(Clone)]
pub struct Learned {
    inner: Arc<Inner>,
}

struct Inner {
    file: PathBuf,
    state: Mutex<State>,
    loaded: tokio::sync::OnceCell<()>,
    /// One writer of the file at a time.
    saving: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    book: Book,
    /// Something is not on disk yet.
    is_dirty: bool,
    /// Somebody will write it soon.
    is_due: bool,
    /// Why the file could not be used, until somebody was told.
    fault: Option<String>,
    asking: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
}

impl Learned {
    /// What is kept in this directory. Nothing is read before `load`.
    pub fn below(data: &Path) -> Learned {
        let inner = Inner {
            file: data.join("models.json"),
            state: Mutex::default(),
            loaded: tokio::sync::OnceCell::new(),
            saving: tokio::sync::Mutex::default(),
        };
        Learned { inner: Arc::new(inner) }
    }

    /// Reads the file, once, on a thread of its own.
    pub async fn load(&self) {
        let read = async {
            let file = self.inner.file.clone();
            let read = tokio::task::spawn_blocking(move || read(&file)).await;
            match read.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(book) => self.state().book.merge(book),
                Err(fault) => self.state().fault = Some(fault),
            }
        };
        self.inner.loaded.get_or_init(|| read).await;
    }

    /// What the person must know of the file, for the first who asks.
    pub fn fault(&self) -> Option<String> {
        self.state().fault.take()
    }

    /// The window of this endpoint's model, in tokens, and who says so.
    pub fn window(&self, settings: &Settings, endpoint: &Endpoint) -> (u64, Source) {
        window(settings, endpoint, &self.known(endpoint))
    }

    /// Sets what is known of the endpoint's model: window, the most of a reply, abilities. Says where the
    /// window is from.
    pub fn apply(&self, settings: &Settings, endpoint: &mut Endpoint) -> Source {
        let known = self.known(endpoint);
        let (window, source) = window(settings, endpoint, &known);
        endpoint.max_output = max_output(endpoint, &known.facts).0;
        endpoint.set_window(window);
        let configured = settings.models.get(&endpoint.name.0);
        if let Some(most) = configured.and_then(|model| model.max_output) {
            endpoint.max_output = most;
        }
        known.facts.set_abilities(&mut endpoint.abilities);
        if let Some(configured) = configured {
            endpoint.abilities = endpoint.abilities.clone().with(configured);
        }
        source
    }

    /// The most tokens of a reply of this endpoint's model, before its window limits it, and who says so.
    pub fn max_output(&self, settings: &Settings, endpoint: &Endpoint) -> (u32, Source) {
        let configured = settings.models.get(&endpoint.name.0).and_then(|model| model.max_output);
        let known = || max_output(endpoint, &self.known(endpoint).facts);
        configured.map_or_else(known, |most| (most, Source::Config))
    }

    /// Keeps a window that a refused request taught.
    pub fn learn_window(&self, endpoint: &Endpoint, tokens: u64) {
        if tokens >= WINDOW_TOKENS_MIN {
            let learnt = Learnt { tokens, by: Lesson::Overflow, at: now() };
            self.change(|book| book.learn(&endpoint.place(), &endpoint.model, learnt));
        }
    }

    /// Keeps how a model counts, where it counts otherwise than was known.
    pub fn learn_calibration(&self, model: &ModelName, calibration: Calibration) {
        let kept = self.state().book.calibrations.get(&model.0).map(|kept| kept.calibration);
        if kept.is_none_or(|kept| calibration.is_news_beside(&kept)) {
            self.change(|book| book.calibrate(&model.0, Calibrated { calibration, at: now() }));
        }
    }

    /// How models count, as far as it was found out.
    pub fn calibrations(&self) -> Vec<(ModelName, Calibration)> {
        let state = self.state();
        let all = state.book.calibrations.iter();
        all.map(|(model, kept)| (ModelName(model.clone()), kept.calibration)).collect()
    }

    /// Keeps a whole list of a provider.
    pub fn learn_list(&self, endpoint: &Endpoint, listed: &[Listed]) {
        self.change(|book| book.list(&endpoint.place(), listed, now()));
    }

    /// The provider's last list.
    pub fn list(&self, endpoint: &Endpoint) -> Vec<Listed> {
        self.state().book.listed(&endpoint.place())
    }

    /// Whether the person was not yet told that this model's window is not known; they are now.
    pub fn tell_of_guess(&self, endpoint: &Endpoint) -> bool {
        let is_new = self.known(endpoint).told_at == 0;
        if is_new {
            self.change(|book| book.told(&endpoint.place(), &endpoint.model, now()));
        }
        is_new
    }

    /// Asks the endpoint's provider for its list, where that is due. Whoever asks the same provider
    /// meanwhile waits for the same answer.
    pub async fn refresh(&self, http: &Http, endpoint: &Endpoint, when: When) -> Result<(), ListError> {
        let place = endpoint.place();
        let turn = {
            let mut state = self.state();
            if state.asking.len() >= ASKING_MAX {
                // Those who ask now keep their turn; at worst, one place is asked twice.
                state.asking.clear();
            }
            state.asking.entry(place.clone()).or_default().clone()
        };
        let _turn = turn.lock().await;
        let is_due = when == When::Now || listing::is_near(endpoint) || {
            let asked_at = self.state().book.places.get(&place).map_or(0, |place| place.asked_at);
            now().saturating_sub(asked_at) >= LIST_AGE_MAX.as_millis() as u64
        };
        if !is_due {
            return Ok(());
        }
        let listed = listing::list(http, endpoint).await;
        match &listed {
            Ok(listed) => self.learn_list(endpoint, listed),
            Err(ListError::Refused { .. }) => self.change(|book| book.asked(&place, now())),
            // Tomorrow would be late; the next session tries again.
            Err(ListError::Unreachable { .. }) => {}
        }
        listed.map(drop)
    }

    /// Brings what was learned to the disk.
    pub async fn save(&self) {
        let _alone = self.inner.saving.lock().await;
        let book = {
            let mut state = self.state();
            state.is_due = false;
            if !std::mem::take(&mut state.is_dirty) {
                return;
            }
            state.book.clone()
        };
        let file = self.inner.file.clone();
        let written = tokio::task::spawn_blocking(move || write(&file, book)).await;
        match written.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(merged) => self.state().book.merge(merged),
            // It is learned again where it matters.
            Err(error) => tracing::warn!(%error, "what was learned of models could not be kept"),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Book)) {
        let mut state = self.state();
        change(&mut state.book);
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

    fn known(&self, endpoint: &Endpoint) -> Known {
        self.state().book.model(&endpoint.place(), &endpoint.model).cloned().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that could panic leaves a book half changed.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn window(settings: &Settings, endpoint: &Endpoint, known: &Known) -> (u64, Source) {
    let configured = settings.models.get(&endpoint.name.0).and_then(|model| model.context_window);
    if let Some(window) = configured {
        return (window, Source::Config);
    }
    let listed = known.facts.window.filter(|window| *window >= WINDOW_TOKENS_MIN);
    let learnt = known.learnt(now()).filter(|learnt| listed.is_none_or(|listed| learnt.tokens < listed));
    if let Some(learnt) = learnt {
        return (learnt.tokens, Source::Overflow);
    }
    match (listed, models::known(&endpoint.name)) {
        (Some(window), _) => (window, Source::Endpoint),
        (None, Some(table)) => (table.window, Source::Table),
        (None, None) if listing::is_near(endpoint) => (WINDOW_NEAR_DEFAULT, Source::Guess),
        (None, None) => (WINDOW_DEFAULT, Source::Guess),
    }
}

fn max_output(endpoint: &Endpoint, facts: &Facts) -> (u32, Source) {
    match (facts.max_output, models::known(&endpoint.name)) {
        (Some(most), _) => (most, Source::Endpoint),
        (None, Some(table)) => (table.max_output, Source::Table),
        (None, None) => (OUTPUT_DEFAULT, Source::Guess),
    }
}

/// Milliseconds since the epoch.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Reads the file; none is an empty one. One that is no such file is set aside, with a sentence on it.
fn read(file: &Path) -> Result<Book, String> {
    let mut text = String::new();
    let opened = std::fs::File::open(file);
    match opened.and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text)) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Book::default()),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(set_aside(file, "it is not text"));
        }
        Err(error) => return Err(format!("{} can't be read: {error}", file.display())),
    }
    Book::from_text(&text).map_err(|why| set_aside(file, &why))
}

fn set_aside(file: &Path, why: &str) -> String {
    let aside = file.with_extension("json.broken");
    let what = match std::fs::rename(file, &aside) {
        Ok(()) => format!("it is now {}", aside.display()),
        Err(error) => format!("it could not be set aside: {error}"),
    };
    format!(
        "What was learned about models in {} can't be read ({why}); {what}. It will be learned again.",
        file.display()
    )
}

/// Writes a book over the file, with what another process has put there meanwhile, and gives back both.
/// Two that write in the very same moment keep what the later one knows; the rest is learned again.
fn write(file: &Path, mut book: Book) -> Result<Book, String> {
    let told = |error: std::io::Error| format!("{}: {error}", file.display());
    let folder = file.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(told)?;
    match read(file) {
        Ok(there) => book.merge(there),
        Err(fault) => tracing::warn!(%fault, "what was learned of models is written anew"),
    }
    // Only the person can read it, and it is whole or not there.
    epitome_files::whole::replace_private(file, book.to_text().as_bytes()).map_err(told)?;
    Ok(book)
}

#[cfg(test)]
#[path = "learned/tests.rs"]
mod tests;
