//! A session's options (mode, model, thought level), and the effects of new facts about the model.

use std::path::Path;
use std::sync::Arc;

use super::actor::Session;
use super::core::Core;
use super::model_link::{Choices, Located, ModelEffect, ModelLink};
use super::provider_error;
use super::registry::{Overrides, SessionServices};
use super::{NoticeSeverity, SessionAnswer, SessionError, SessionEvent, SessionOptions};
use epitome_config::Settings;
use epitome_provider::endpoint::{EnvironmentPairs, LocalServer};
use epitome_recipe::render::ShellOutputs;
use epitome_thread::{Change, Entry, FORMAT_VERSION, Mode, ModelName, Seq, SessionId, ThoughtLevel, Thread};
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

/// The options that a session would have if a client opened it with these arguments; with `entries` a stored one,
/// otherwise a new one. Opens nothing and makes no request; it only reads settings.
pub(super) fn options_before_opening(
    services: &SessionServices,
    cwd: &Path,
    overrides: &Overrides,
    environment: &EnvironmentPairs,
    entries: Option<Vec<Arc<Entry>>>,
) -> Result<Arc<SessionOptions>, SessionError> {
    let (settings, _) = overrides.load(&services.paths, cwd, environment);
    let is_new = entries.is_none();
    let opened = || {
        let session = SessionId(String::new());
        let change = Change::Opened { format: FORMAT_VERSION, session, cwd: cwd.to_path_buf() };
        vec![Arc::new(Entry { seq: Seq(0), at: 0, change })]
    };
    let mut thread = Thread::replay(entries.unwrap_or_else(opened))
        .map_err(|error| SessionError::Store(error.to_string()))?;
    if is_new {
        for (at, change) in (1..).zip(configured_choices(&settings, overrides, &thread)) {
            thread.apply(Arc::new(Entry { seq: Seq(at), at: 0, change }));
        }
    }
    let choices = Choices { thread: &thread, settings: &settings, environment };
    Ok(ModelLink::new(services, &settings, &thread).options(choices))
}

/// Leaves a mode that the policy does not allow any longer.
pub(super) fn adopt_policy(core: &mut Core) {
    let Some(why) = core.settings.policy.refuses_mode(core.thread.mode()) else { return };
    let mode = core.settings.mode;
    if core.commit(Change::ModeChosen { mode }).is_ok() {
        core.notify(NoticeSeverity::Warning, format!("The mode is now {:?}. {why}", mode.name()));
    }
}

impl Core {
    /// Writes configured options to the log of a new session, so that they survive changes of the settings.
    pub(super) fn adopt_settings(&mut self) {
        for change in configured_choices(&self.settings, &self.settings.overrides(), &self.thread) {
            drop(self.commit(change));
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
                    self.start(ask, |session, asked| {
                        let effects = session.core.model.apply_learned(asked, &session.core.settings);
                        session.core.model_learned(effects);
                    });
                }
                ModelEffect::Search(search) => {
                    self.start(search, Session::models_found);
                }
            }
        }
    }
}

/// If the turn's call waits for another attempt, the model that was just chosen is called now instead.
fn call_chosen_model(session: &mut Session) {
    let Some(work) = &mut session.work else { return };
    if work.run.endpoint.is_none() && work.model.take_if(|call| call.is_waiting()).is_some() {
        session.scan_first(Session::call_with_instructions);
    }
}

impl Session {
    /// Sets one option. An unknown option or value is an error and changes nothing.
    pub(super) fn choose(&mut self, option: &str, value: &str) -> Result<SessionAnswer, SessionError> {
        let unknown = |what: &str| SessionError::Invalid(format!("there is no {what} {value:?} to choose"));
        let change = match option {
            "mode" => {
                let mode = Mode::parse(value).ok_or_else(|| unknown("mode"))?;
                match self.core.settings.policy.refuses_mode(mode) {
                    None => Change::ModeChosen { mode },
                    Some(why) => return Err(SessionError::Invalid(why)),
                }
            }
            "thought_level" => Change::ThoughtChosen {
                level: ThoughtLevel::parse(value).ok_or_else(|| unknown("thought level"))?,
            },
            "auto_compact" => Change::AutoCompactChosen {
                is_on: match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(unknown("choice")),
                },
            },
            "model" => {
                let choices = Choices::new(&self.core.thread, &self.core.settings, &self.core.workspace);
                let model = self.core.model.chosen(value, choices)?;
                self.core.model.forget_endpoint();
                Change::ModelChosen { model }
            }
            _ => return Err(SessionError::Invalid(format!("there is no option {option:?}"))),
        };
        let entry = self.core.commit(change)?;
        match entry.change {
            Change::ModeChosen { mode } => self.subagents.set_mode(mode),
            Change::ModelChosen { .. } => call_chosen_model(self),
            _ => {}
        }
        self.core.locate();
        let options = self.core.options();
        self.core.announce(&SessionEvent::Options(options.clone()));
        Ok(SessionAnswer::Options(options))
    }

    pub(super) fn models_found(&mut self, found: Option<LocalServer>) {
        let choices = Choices::new(&self.core.thread, &self.core.settings, &self.core.workspace);
        let searched = self.core.model.searched(found, choices);
        let postponed = self.work.as_mut().and_then(|work| work.postponed.take());
        let error = match searched {
            Ok((effects, renamed)) => {
                self.core.model_learned(effects);
                if renamed {
                    self.core.announce(&SessionEvent::Options(self.core.options()));
                }
                self.core.announce_usage();
                return postponed.map_or((), |ask| self.perform(ask));
            }
            Err(error) => error,
        };
        match postponed {
            Some(ask) => self.fail_without_model(&ask, &error),
            // During a turn, waiting prompts don't wait for the server.
            None if self.work.is_some() => {}
            None => {
                let mut first = None;
                for prompt in self.inbox.take_all() {
                    if self.is_built_in(&prompt) {
                        // It may only be waiting for the recipes' names.
                        self.inbox.push(prompt);
                    } else if !self.needs_no_model(&prompt) {
                        prompt.responder.answer(Err(provider_error(&error)));
                    } else if first.is_none() {
                        first = Some(prompt);
                    } else {
                        self.inbox.push(prompt);
                    }
                }
                if let Some(prompt) = first {
                    self.begin_command(prompt, ShellOutputs::new());
                }
            }
        }
    }
}
