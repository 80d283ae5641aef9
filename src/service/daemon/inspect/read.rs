//! Reads the page's data from the store and from what the daemon knows about models. Blocks on the disk.

use super::entry::{self, EntryDetails};
use super::timeline::{self, ContextWindow, Timeline, TimelineInputs, model_of};
use crate::Daemon;
use crate::control::fault::{Fault, FaultKind};
use crate::control::fold;
use epitome_config::Settings;
use epitome_provider::{endpoint, models};
use epitome_thread::{Change, Seq, SessionId, Thread};

/// The timeline of a session, from its current log.
pub fn timeline(daemon: &Daemon, session: &SessionId) -> Result<Timeline, Fault> {
    let (thread, _) = fold(daemon, session)?;
    let environment = epitome_platform::os::environment();
    let variable = |name: &str| std::env::var_os(name);
    // Problems in the settings are reported by commands that act on them.
    let (settings, _) = Settings::load(&daemon.paths, Some(thread.cwd()), variable);
    let ruler = daemon.sessions.services().rulers.for_model(model_of(&thread));
    let window = window(daemon, &settings, &thread, &environment);
    Ok(timeline::timeline(&thread, &TimelineInputs { ruler: &ruler, settings: &settings, window }))
}

/// One entry of a session.
pub fn entry(daemon: &Daemon, session: &SessionId, seq: Seq) -> Result<EntryDetails, Fault> {
    let (thread, _) = fold(daemon, session)?;
    let newest = thread.next_seq().0.saturating_sub(1);
    entry::look(&thread, seq).ok_or_else(|| {
        let message = format!("there is no entry {seq} in {session}; the newest is e{newest}");
        Fault::new(FaultKind::Refused, message)
    })
}

/// The context window of a session's model, as known to this process; `None` if the model is unknown.
fn window(
    daemon: &Daemon,
    settings: &Settings,
    thread: &Thread,
    environment: &endpoint::EnvironmentPairs,
) -> Option<ContextWindow> {
    let model = model_of(thread)?;
    let (size, most) = match endpoint::resolve(model, settings, environment) {
        Ok(mut endpoint) => {
            daemon.sessions.services().learned.apply(settings, &mut endpoint);
            (endpoint.window, endpoint.max_output)
        }
        // Its key may be in an editor's environment, but not in ours.
        Err(_) => {
            let (known, configured) = (models::known(model), settings.models.get(&model.0));
            let size = models::configured_window(model, configured)
                .or_else(|| recorded_window(thread))
                .or(known.map(|known| known.window))?;
            let most = configured.and_then(|model| model.max_output).or(known.map(|known| known.max_output));
            (size, most.unwrap_or(models::OUTPUT_DEFAULT))
        }
    };
    let reserve = u64::from(settings.compaction.output_reserve.min(most)).min(size / 4);
    Some(ContextWindow { size, reserve })
}

/// The context window recorded by the newest compaction of the current model.
fn recorded_window(thread: &Thread) -> Option<u64> {
    let newest = thread.entries().iter().rev();
    let of_model = newest.take_while(|entry| !matches!(entry.change, Change::ModelChosen { .. }));
    of_model.filter_map(|entry| entry.change.context_sizes()?.window).next()
}
