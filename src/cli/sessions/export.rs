//! `epitome sessions export`.

use std::path::PathBuf;

use serde_json::json;

use super::{find, formats, print_json};
use crate::cli::terminal::Style;
use crate::cli::{CliError, terminal};
use crate::session_library;
use crate::store::Store;
use crate::thread::visible::visible;

/// Export a session to a file, or all of them to a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Formats:
  json      the entries of the log, one per line, which can be imported again; the entry of a
            compaction has its `compact_boundary` record as \"boundary\"
  markdown  for reading
  raw       the journal itself")]
pub struct ExportArgs {
    /// ID of the session
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,
    /// File to create [default: stdout]; with --json, prints what was written where
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

pub(super) fn export(store: &Store, args: &ExportArgs, json: bool) -> Result<(), CliError> {
    let form =
        if args.markdown { session_library::ExportFormat::Markdown } else { args.format.unwrap_or_default() };
    if let Some(directory) = &args.all {
        let written = session_library::export_all(store, directory, form)?;
        if json {
            let written: Vec<_> = written.iter().map(|file| file.to_string_lossy()).collect();
            return print_json(
                &json!({ "format": form.word(), "directory": directory.to_string_lossy(), "files": written }),
            );
        }
        note!("exported {} sessions to {}", written.len(), directory.display());
        return Ok(());
    }
    let session = find(store, args.id.as_deref().unwrap_or_default())?;
    let text = session_library::export(store, &session, form)?;
    let Some(file) = &args.file else {
        if json {
            return Err(CliError::usage("--json needs a FILE, because it prints what was written to it"));
        }
        // Files and pipes get the text as it is.
        let is_terminal = Style::for_stdout() != Style::Plain;
        return terminal::print(&if is_terminal { visible(&text) } else { text.as_str().into() });
    };
    terminal::write_new(file, &text)?;
    if json {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        return print_json(&json!({
            "session": session, "format": form.word(), "file": file.to_string_lossy(), "bytes": text.len(),
        }));
    }
    note!("exported {session} to {}", file.display());
    Ok(())
}
