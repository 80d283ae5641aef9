//! `epitome sessions export`.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{find, formats, print_json};
use crate::cli::{CliError, terminal};
use crate::session_library::{self, Exported, ExportedFiles, Unlisted};
use crate::store::Store;

/// Export a session to a file, or all of them to a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Formats:
  json      the entries of the log, one per line, which can be imported again; the entry of a
            compaction has its `compact_boundary` record as \"boundary\"
  markdown  for reading
  raw       the journal itself

The exit status is 1 if something is missing in an exported session, or if a session could not be
exported; stderr says what.")]
pub struct ExportArgs {
    /// ID of the session
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,
    /// File to create, or - for stdout [default: -]; with --json, prints what was written where
    #[arg(conflicts_with = "all", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Export all sessions to this directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    all: Option<PathBuf>,
    /// Format of the export [default: json]
    #[arg(long, value_parser = formats())]
    format: Option<session_library::ExportFormat>,
    /// The same as --format markdown
    #[arg(long)]
    markdown: bool,
}

/// Returns 1 if something is missing in what was exported.
pub(super) fn export(store: &Store, args: &ExportArgs, json: bool) -> Result<i32, CliError> {
    let form =
        if args.markdown { session_library::ExportFormat::Markdown } else { args.format.unwrap_or_default() };
    if let Some(directory) = &args.all {
        let ExportedFiles { files, problems } = session_library::export_all(store, directory, form)?;
        for Unlisted { problem, .. } in &problems {
            note!("epitome: {problem}");
        }
        match json {
            true => print_json(&json!({
                "format": form.id(), "directory": directory.to_string_lossy(),
                "files": files.iter().map(|file| file.to_string_lossy()).collect::<Vec<_>>(), "problems": problems,
            }))?,
            false => note!("exported {} sessions to {}", files.len(), directory.display()),
        }
        return Ok(i32::from(!problems.is_empty()));
    }
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    if json && file.is_none() {
        return Err(CliError::usage("--json needs a FILE, because it prints what was written to it"));
    }
    let session = find(store, args.id.as_deref().unwrap_or_default())?;
    let Exported { text, damage } = session_library::export(store, &session, form)?;
    if let Some(damage) = &damage {
        note!("epitome: {damage}");
    }
    let code = i32::from(damage.is_some());
    let Some(file) = file else {
        terminal::print_exported(&text)?;
        return Ok(code);
    };
    terminal::write_new(file, &text)?;
    match json {
        true => {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
            print_json(&json!({
                "session": session, "format": form.id(), "file": file.to_string_lossy(), "bytes": text.len(),
                "damage": damage.map(|damage| damage.to_string()),
            }))?;
        }
        false => note!("exported {session} to {}", file.display()),
    }
    Ok(code)
}
