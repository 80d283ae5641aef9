//! A session's options (mode, model, thought level), and the effects of new facts about the model.

use std::path::Path;
use std::sync::Arc;

use super::Overrides;
use super::background::BackgroundResult;
use super::core::Core;
use super::model_link::{Choices, Located, ModelEffect, ModelLink, room};
use super::services::SessionServices;
use super::{NoticeSeverity, SessionError, SessionOptions};
use epitome_config::Settings;
use epitome_provider::endpoint::EnvironmentPairs;
use epitome_thread::{Change, Entry, FORMAT_VERSION, ModelName, Seq, SessionId, Thread};
use epitome_tokens::Ruler;

/// The changes that write configured options to the log of a new session, so that they survive changes of the
/// settings.
fn configured_choices(settings: &Settings, overrides: &Overrides, thread: &Thread) -> Vec<Change> {
    let (mode, level) = (settings.mode, settings.thought);
    let mut changes = Vec::new();
    if mode != thread.mode() {
        changes.push(Change::ModeChosen { mode });
    }
    if level != thread.thought() {
        changes.push(Change::ThoughtChosen { level });
    }
    // A configured model may change with the configuration; this one was chosen for this session.
    if let Some(model) = overrides.model.clone() {
        changes.push(Change::ModelChosen { model: ModelName(model) });
    }
    changes
}

/// The options that a session would have if a client opened it with these arguments; with `stored` a stored one,
/// otherwise a new one. Opens nothing and makes no request; it only reads settings.
pub(super) fn options_before_opening(
    services: &SessionServices,
    cwd: &Path,
    overrides: &Overrides,
    environment: &EnvironmentPairs,
    stored: Option<Thread>,
) -> Result<Arc<SessionOptions>, SessionError> {
    let (settings, _) = overrides.load(&services.paths, cwd, environment);
    let new = || -> Result<Thread, SessionError> {
        let session = SessionId(String::new());
        let change = Change::Opened { format: FORMAT_VERSION, session, cwd: cwd.to_path_buf() };
        let mut thread = Thread::replay([Arc::new(Entry { seq: Seq(0), at: 0, change })])
            .map_err(|error| SessionError::Store(error.to_string()))?;
        for (at, change) in (1..).zip(configured_choices(&settings, overrides, &thread)) {
            thread.apply(Arc::new(Entry { seq: Seq(at), at: 0, change }));
        }
        Ok(thread)
    };
    let thread = stored.map_or_else(new, Ok)?;
    let choices = Choices { thread: &thread, settings: &settings, environment };
    Ok(ModelLink::new(services, &settings, &thread).options(choices))
}

impl Core {
    /// Writes configured options to the log of a new session, so that they survive changes of the settings.
    pub(super) fn adopt_settings(&mut self) {
        for change in configured_choices(&self.settings, &self.settings.overrides(), &self.thread) {
            drop(self.commit(change));
        }
    }

    /// Withdraws permissions of the log that somebody else gave, and leaves a mode that the policy does not allow any longer.
    pub(super) fn adopt_policy(&mut self) {
        let foreign = self.permissions.foreign(&self.thread, self.settings.mode);
        if !foreign.is_empty() {
            let words = |change: &Change| match change {
                Change::Forgotten { rule } => rule.words(),
                _ => format!("the mode {:?}", self.thread.mode().name()),
            };
            let words: Vec<String> = foreign.iter().map(words).collect();
            foreign.into_iter().for_each(|change| drop(self.commit(change)));
            let text = format!(
                "The session's log has permissions that were not given on this machine. They were withdrawn: {}.",
                words.join("; ")
            );
            self.notify(NoticeSeverity::Warning, text);
        }
        let Some(why) = self.settings.policy.refuses_mode(self.thread.mode()) else { return };
        let mode = self.settings.mode;
        if self.commit(Change::ModeChosen { mode }).is_ok() {
            self.notify(NoticeSeverity::Warning, format!("The mode is now {:?}. {why}", mode.name()));
        }
    }

    /// The current mode and options.
    pub(super) fn options(&self) -> Arc<SessionOptions> {
        self.model.options(Choices::new(&self.thread, &self.settings, &self.workspace))
    }

    /// Token counter for the chosen model.
    pub(super) fn ruler(&self) -> Ruler {
        self.model.ruler(&self.thread)
    }

    /// Tokens of the next request, as shown to clients.
    pub(super) fn tokens_in_context(&mut self) -> u64 {
        self.model.tokens_in_context(&self.thread)
    }

    /// Upper bound of the tokens of the next request, for deciding whether it fits.
    pub(super) fn tokens_at_most(&mut self) -> u64 {
        self.model.tokens_at_most(&self.thread)
    }

    /// The tokens in context before and after a change of the view.
    pub(super) fn context_sizes(&mut self, view: (u64, u64)) -> (u64, u64) {
        self.model.context_sizes(view, &self.thread)
    }

    /// Returns the change with the sizes of the complete context.
    pub(super) fn sized(&mut self, change: Change) -> Change {
        self.model.sized(change, &self.thread)
    }

    /// Tokens that pins may take. Pins are never dropped, so the rest of the window must suffice for everything else.
    pub(super) fn pin_tokens_max(&self) -> u64 {
        (self.model.window() as f64 * self.settings.compaction.pin_share) as u64
    }

    /// Tokens that the view may take in addition to the frame and the reply.
    pub(super) fn view_tokens_max(&self) -> u64 {
        let Some(endpoint) = self.model.endpoint() else { return u64::MAX };
        let frame = self.ruler().frame_of(&self.thread);
        room(endpoint.window, endpoint.max_output, frame)
    }

    // ── Finding the model ──────────────────────────────────────────────────────────────────────

    /// Resolves the model's endpoint. Also called when no prompt waits, so that the size of the window is known.
    pub(super) fn locate(&mut self) -> Located {
        let choices = Choices::new(&self.thread, &self.settings, &self.workspace);
        let (located, effects) = self.model.locate(choices);
        self.model_learned(effects);
        located
    }

    /// Carries out the effects of new facts about the model.
    pub(super) fn model_learned(&mut self, effects: impl IntoIterator<Item = ModelEffect>) {
        for effect in effects {
            match effect {
                ModelEffect::Notice(severity, text) => self.notify(severity, text),
                ModelEffect::WindowChanged => self.announce_usage(),
                ModelEffect::Ask(ask) => {
                    self.start(ask, BackgroundResult::ModelsListed);
                }
                ModelEffect::Search(search) => {
                    self.start(search, BackgroundResult::ModelsFound);
                }
            }
        }
    }
}
