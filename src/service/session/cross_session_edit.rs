//! Edits of another conversation's history: a hook of one session may replace the history of another, if the user's
//! configuration allows it, both work in the same directory, and no prompt is running there.
//!
//! A conversation that is open in this process is changed by its session, any other one in its log.

use super::model_link::room;
use super::replacement::replacement;
use super::services::SessionServices;
use super::{Mutation, Replaced, ReplacementRefusal, RequesterContext};
use epitome_provider::endpoint::{self, ConfiguredModel};
use epitome_provider::models;
use epitome_store::StoreError;
use epitome_thread::{Change, ModelName, SessionId, Thread};

/// Replaces the history of a conversation that no process has open. Blocks on disk access. The learned facts about
/// models must be loaded already.
pub(super) fn in_store(
    services: &SessionServices,
    target: &SessionId,
    mutation: &Mutation,
) -> Result<Replaced, ReplacementRefusal> {
    let (mut journal, thread) = services.store.open(target).map_err(|error| match error {
        StoreError::NotFound(_) => ReplacementRefusal::NotFound(target.clone()),
        other => other.into(),
    })?;
    may_change(&thread, mutation)?;
    let model = model_of(&mutation.around, &thread);
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
    journal.append(change)?;
    journal.syncer().sync()?;
    Ok(replaced)
}

pub(super) fn may_change(thread: &Thread, mutation: &Mutation) -> Result<(), ReplacementRefusal> {
    let target = thread.session().clone();
    if thread.cwd() != mutation.cwd {
        return Err(ReplacementRefusal::OtherDirectory { target, cwd: thread.cwd().to_path_buf() });
    }
    if thread.in_turn() {
        return Err(ReplacementRefusal::InTurn(target));
    }
    Ok(())
}

/// The model that a conversation would call next; `None` if a local one has to be searched for.
fn model_of(context: &RequesterContext, thread: &Thread) -> Option<ModelName> {
    thread.model().cloned().or_else(|| match endpoint::choose(&context.settings, &context.environment) {
        ConfiguredModel::Named(model) => Some(model),
        ConfiguredModel::SearchLocal(_) => None,
    })
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

pub(super) fn replaced(change: &Change, mutation: &Mutation, target: &SessionId) -> Replaced {
    let Change::Mutated { tokens_before, tokens_after, .. } = change else {
        unreachable!("a replacement is a mutation")
    };
    let (from, hook, messages) = (&mutation.from, &mutation.by, mutation.messages.len());
    tracing::info!(session = %target, %from, hook, messages, "another conversation's hook replaces the history");
    Replaced { tokens_before: *tokens_before, tokens_after: *tokens_after }
}
