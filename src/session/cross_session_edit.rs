//! Edits of another conversation's history: a hook of one session may replace the history of another, if the user's
//! configuration allows it, both work in the same directory, and no prompt is running there.
//!
//! A conversation that is open in this process is changed by its session, any other one in its log.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::actor::Session;
use super::callbacks::guarded;
use super::core::Core;
use super::registry::SessionServices;
use super::rounds::room;
use super::work::PendingResolution;
use epitome_compaction as compaction;
use epitome_config::Settings;
use epitome_hooks::guards;
use epitome_hooks::output::Utterance;
use epitome_provider::endpoint::{self, ConfiguredModel};
use epitome_provider::models;
use epitome_store::StoreError;
use epitome_thread::{
    Change, Content, HistoryMessage, Message, MessageId, ModelName, Seq, SessionId, Thread, edits,
};
use epitome_tokens::Ruler;

/// A replacement history for another conversation. It has keys in its environment, so it is not `Debug`.
#[derive(Clone)]
pub struct Mutation {
    /// The conversation of the hook, and its working directory.
    pub from: SessionId,
    pub cwd: PathBuf,
    /// The hook.
    pub by: String,
    pub messages: Vec<Utterance>,
    pub preserve_recent: usize,
    pub around: RequesterContext,
}

/// The settings and environment of the requesting session. They apply to the other conversation as well, because both
/// work in the same directory.
#[derive(Clone)]
pub struct RequesterContext {
    settings: Arc<Settings>,
    environment: Arc<Vec<(OsString, OsString)>>,
}

impl RequesterContext {
    /// The model that a conversation would call next; `None` if a local one has to be searched for.
    fn model_of(&self, thread: &Thread) -> Option<ModelName> {
        thread.model().cloned().or_else(|| match endpoint::choose(&self.settings, &self.environment) {
            ConfiguredModel::Named(model) => Some(model),
            ConfiguredModel::SearchLocal(_) => None,
        })
    }
}

impl Mutation {
    /// The author of the change, as recorded in the other conversation's log.
    fn author(&self) -> String {
        format!("{} of {}", self.by, self.from)
    }
}

/// The tokens of the view before and after a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub tokens_before: u64,
    pub tokens_after: u64,
}

/// Receives the result; an error is a sentence.
pub type ReplacedAnswer = oneshot::Sender<Result<Replaced, String>>;

/// Returns the change that replaces a thread's view up to and including `through` (the complete view if `None`) by
/// these messages, or why that is impossible. The messages are numbered from `first` and may take up to `tokens_max`
/// tokens.
pub(super) fn replacement(
    ruler: &Ruler,
    thread: &Thread,
    first: MessageId,
    by: String,
    (messages, preserve_recent): (&[Utterance], usize),
    through: Option<Seq>,
    tokens_max: u64,
) -> Result<Change, String> {
    let spoken = guards::checked(messages)?.into_iter().map(|Utterance { role, text }| HistoryMessage {
        role,
        message: Message { id: first, content: vec![Content::Text { text }], author: None },
    });
    let revision = thread.view().revision();
    let mut replacement = edits::mutation(thread, revision, first, spoken.collect(), preserve_recent)?;
    replacement.through = through.unwrap_or(replacement.through);
    compaction::mutated(ruler, thread, replacement, by, tokens_max)
}

impl Core {
    /// Hands a history from a hook of a callback's run to the conversation that called it.
    pub(super) fn hand_to_parent(
        &self,
        by: &str,
        messages: Vec<Utterance>,
        preserve_recent: usize,
        target: &str,
    ) -> Result<(), String> {
        if self.lineage.parent.as_ref().is_none_or(|parent| parent.0 != target) {
            return Err(format!(
                "a callback run can change the conversation that called it, and {target} is not it"
            ));
        }
        self.lineage.handed.put(HandedHistory { by: by.to_owned(), messages, preserve_recent });
        Ok(())
    }
}

impl Session {
    /// Sends a hook's history to another conversation. The turn waits for the result.
    pub(super) fn mutate_elsewhere(
        &mut self,
        pending: PendingResolution,
        messages: Vec<Utterance>,
        preserve_recent: usize,
        target: String,
    ) {
        let way = match (SessionId::parse(&target), self.core.process.sessions()) {
            (None, _) => Err(format!("{target:?} is not the id of a conversation")),
            (Some(_), _) if !self.core.settings.hooks.cross_session => Err(format!(
                "{target} is another conversation ({} messages), and the configuration does not let hooks change \
                 others (hooks.cross_session)",
                messages.len()
            )),
            (Some(_), None) => Err(format!("{target} can't be reached from here")),
            (Some(target), Some(sessions)) => Ok((target, sessions)),
        };
        let (target, sessions) = match way {
            Ok(way) => way,
            Err(why) => return self.refuse_action(pending, why),
        };
        let (count, by) = (messages.len(), pending.resolution.action_by.clone());
        let (from, cwd) = (self.core.id().clone(), self.core.thread.cwd().to_path_buf());
        let (settings, environment) = (self.core.settings.shared(), self.core.workspace.environment.clone());
        let around = RequesterContext { settings, environment };
        let mutation = Mutation { from, cwd, by, messages, preserve_recent, around };
        self.hooks.turn().pending = Some(pending);
        let id = target.clone();
        let mutating = guarded(async move { sessions.mutate(&id, mutation).await });
        self.start_job(mutating, move |session, replaced| {
            let Some(mut pending) = session.hooks.turn().pending.take() else { return };
            let Replaced { tokens_before, tokens_after } = match replaced {
                Ok(replaced) => replaced,
                Err(why) => return session.refuse_action(pending, why),
            };
            let words = format!(
                "{count} messages replaced the history of {target}: about {tokens_before} tokens became \
                 {tokens_after}"
            );
            let hook = &pending.resolution.action_by;
            tracing::info!(session = %session.core.id(), hook, words, "another conversation was changed");
            pending.done([words]);
            session.settle_round(pending);
        });
    }

    /// Replaces this conversation's history, for a hook of another one.
    pub(super) fn mutated_by_other(&mut self, mutation: &Mutation, answer: ReplacedAnswer) {
        let is_busy = self.work.is_some() || self.inbox.has_prompts() || self.recipes.are_rendering();
        let made = match is_busy {
            true => Err(format!("a prompt runs in {}", self.core.id())),
            false => may_change(&self.core.thread, mutation).and_then(|()| {
                let (author, messages) = (mutation.author(), mutation.messages.clone());
                self.core.mutation(&author, messages, mutation.preserve_recent, None)
            }),
        };
        let committed = made.and_then(|change| {
            let replaced = replaced(&change, mutation, self.core.id());
            self.core.commit(change).map(|_| replaced).map_err(|error| error.to_string())
        });
        match committed {
            Ok(replaced) => self.core.sync_then(move |synced| {
                // The receiver may be gone.
                drop(answer.send(synced.as_ref().map(|()| replaced).map_err(ToString::to_string)));
            }),
            Err(why) => drop(answer.send(Err(why))),
        }
    }
}

/// A history that a hook of a callback's run made for the conversation that called it.
#[derive(Clone, Debug, PartialEq)]
pub struct HandedHistory {
    pub by: String,
    pub messages: Vec<Utterance>,
    pub preserve_recent: usize,
}

/// Where a callback's run leaves histories for the conversation that called it.
#[derive(Clone, Debug, Default)]
pub struct Handover(Arc<Mutex<Vec<HandedHistory>>>);

impl Handover {
    fn put(&self, handed: HandedHistory) {
        self.0.lock().push(handed);
    }

    pub(super) fn take(&self) -> Vec<HandedHistory> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Replaces the history of a conversation that no process has open. Blocks on disk access. What was learned about
/// models must be loaded already.
pub(super) fn in_store(
    services: &SessionServices,
    target: &SessionId,
    mutation: &Mutation,
) -> Result<Replaced, String> {
    let (mut journal, entries) = services.store.load(target).map_err(|error| match error {
        StoreError::NotFound(_) => format!("there is no conversation {target}"),
        other => other.to_string(),
    })?;
    let thread = Thread::replay(entries).map_err(|error| format!("the log of {target}: {error}"))?;
    may_change(&thread, mutation)?;
    let model = mutation.around.model_of(&thread);
    let ruler = services.rulers.for_model(model.as_ref());
    let change = replacement(
        &ruler,
        &thread,
        thread.next_message(),
        mutation.author(),
        (&mutation.messages, mutation.preserve_recent),
        None,
        room_in(services, &mutation.around, model.as_ref(), ruler.frame_of(&thread)),
    )?;
    let replaced = replaced(&change, mutation, target);
    journal.append(change).map_err(|error| error.to_string())?;
    journal.syncer().sync().map_err(|error| error.to_string())?;
    Ok(replaced)
}

fn may_change(thread: &Thread, mutation: &Mutation) -> Result<(), String> {
    let target = thread.session();
    if thread.cwd() != mutation.cwd {
        return Err(format!("{target} works in another directory, {}", thread.cwd().display()));
    }
    if thread.in_turn() {
        return Err(format!("the last prompt of {target} has not ended; load it first"));
    }
    Ok(())
}

/// Maximum tokens of the view of a conversation that is not open.
fn room_in(
    services: &SessionServices,
    around: &RequesterContext,
    model: Option<&ModelName>,
    frame: u64,
) -> u64 {
    let RequesterContext { settings, environment } = around;
    let endpoint = model.and_then(|model| endpoint::resolve(model, settings, environment).ok());
    let (window, output) = match endpoint {
        Some(mut endpoint) => {
            services.learned.apply(settings, &mut endpoint);
            (endpoint.window, endpoint.max_output)
        }
        // Without credentials, only the known limits of the model are available.
        None => {
            let configured = model.and_then(|model| settings.models.get(&model.0));
            let known = model.and_then(models::known);
            let window = model.and_then(|model| models::configured_window(model, configured));
            let output = configured.and_then(|configured| configured.max_output);
            (
                window.or(known.map(|known| known.window)).unwrap_or(models::WINDOW_DEFAULT),
                output.or(known.map(|known| known.max_output)).unwrap_or(models::OUTPUT_DEFAULT),
            )
        }
    };
    room(window, output, frame)
}

fn replaced(change: &Change, mutation: &Mutation, target: &SessionId) -> Replaced {
    let Change::Mutated { tokens_before, tokens_after, .. } = change else {
        unreachable!("a replacement is a mutation")
    };
    let (from, hook, messages) = (&mutation.from, &mutation.by, mutation.messages.len());
    tracing::info!(session = %target, %from, hook, messages, "another conversation's hook replaces the history");
    Replaced { tokens_before: *tokens_before, tokens_after: *tokens_after }
}
