//! `epitome sessions show`.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{find, formats};
use crate::cli::terminal;
use crate::cli::{CliContext as _, CliError, serve};
use crate::config::Settings;
use crate::daemon::inspect::timeline::model_of;
use crate::provider::learned::Learned;
use crate::provider::spent::Spent;
use crate::session_library;
use crate::store::Store;
use crate::thread::text::{self, DetailLevel};
use crate::thread::{ModelName, Thread, Usage};
use crate::tokens::Ruler;
use crate::transfer;

/// Show a session: messages, tool calls with their results, and what the model still sees
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// ID of the session
    id: String,
    /// Include complete tool output and reasoning
    #[arg(long)]
    full: bool,
    /// Print the session in a format of `epitome sessions export`
    #[arg(long, value_parser = formats())]
    format: Option<session_library::ExportFormat>,
}

pub(super) fn show(store: &Store, args: &ShowArgs, json: bool) -> Result<i32, CliError> {
    let session = find(store, &args.id)?;
    if let Some(form) = args.format {
        let exported = session_library::export(store, &session, form)?;
        if let Some(damage) = exported.damage {
            note!("epitome: {damage}");
        }
        return terminal::print_exported(&exported.text).map(|()| 0);
    }
    let session_library::StoredConversation { thread, damage } = session_library::read(store, &session)?;
    if let Some(damage) = damage {
        // Everything that is not lost is still shown.
        note!("epitome: {damage}");
    }
    // Commands that depend on the settings report their problems.
    let (settings, _) = Settings::load(&serve::paths(), Some(thread.cwd()), |name| std::env::var_os(name));
    let spent = Spent::total(&settings, &thread);
    if json {
        return terminal::print_json(&json_of(&thread, &spent)?).map(|()| 0);
    }
    let detail = if args.full { DetailLevel::Full } else { DetailLevel::Short };
    let mut out = text::readable(&thread, detail);
    let taken = ruler(model_of(&thread))?.in_context(&thread);
    if taken > 0 {
        let _ = writeln!(out, "The next request has about {} tokens.", text::tokens(taken));
    }
    let Spent { usage, cost } = spent;
    if usage != Usage::default() {
        let _ = writeln!(out, "Its model calls took {}.", text::spent(&usage, cost));
    }
    terminal::print_visible(&out).map(|()| 0)
}

fn json_of(thread: &Thread, spent: &Spent) -> Result<Value, CliError> {
    let mut in_view: Vec<u64> = thread.view().entries().iter().map(|entry| entry.seq.0).collect();
    // The messages of a history that a hook replaced belong to one entry.
    in_view.dedup();
    let entries = thread.entries().iter().map(|entry| transfer::entry_json(thread.session(), entry));
    let entries = entries.collect::<Result<Vec<Value>, serde_json::Error>>();
    let entries = entries.context("an entry can't be written as JSON")?;
    Ok(json!({
        "session": thread.session(), "cwd": thread.cwd(), "title": thread.title(),
        "model": thread.model(), "mode": thread.mode(), "in_view": in_view,
        "usage": spent.usage, "cost": spent.cost.map(text::rounded_dollars), "entries": entries,
    }))
}

/// Returns the token counter of a model, with its learned calibration.
fn ruler(model: Option<&ModelName>) -> Result<Ruler, CliError> {
    let learned = Learned::below(&serve::paths().data);
    serve::runtime()?.block_on(learned.load());
    if let Some(fault) = learned.fault() {
        note!("epitome: {fault}");
    }
    let known = learned.calibrations().into_iter().find(|(known, _)| Some(known) == model);
    let ruler = Ruler::for_model(model);
    Ok(match known {
        Some((_, calibration)) => ruler.calibrated(calibration),
        None => ruler,
    })
}
