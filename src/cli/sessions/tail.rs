//! `epitome sessions tail`: prints the log of a session, and then its events if it is live in the daemon.

use std::io::{self, Write as _};

use serde_json::Value;

use super::super::printer::Printer;
use super::super::terminal::{self, Style};
use super::super::{CliError, methods, serve};
use crate::daemon::control::ControlClient;
use crate::daemon::control::client::Serves;
use crate::paths::Paths;
use crate::session::SessionEvent;
use crate::thread::visible::visible;
use crate::thread::{Change, Seq};

/// Print the log of a session, then its events as they happen, until Ctrl-C
///
/// Without a daemon nothing happens in sessions, so the command ends after the log. With --json each line is an object
/// with session, type (entry, text, call_started, ask, usage, ...) and data, as in sessions.tail of the control API.
#[derive(Debug, clap::Args)]
pub struct TailArgs {
    /// ID of the session
    pub(super) id: String,
    /// First entry of the log to print
    #[arg(long, value_name = "ENTRY", value_parser = super::entry, default_value = "e0")]
    pub(super) from: Seq,
}

pub(super) fn tail(paths: &Paths, args: &TailArgs, json: bool) -> Result<i32, CliError> {
    let session = super::named(paths, &args.id)?;
    let runtime = serve::runtime()?;
    let ended = runtime.block_on(async {
        let daemon = || methods::here(paths, runtime.handle());
        let client = ControlClient::connect_or_here(paths, daemon).await?;
        let last = match client.serves() {
            Serves::Daemon => None,
            Serves::ThisProcess => {
                let shown = serde_json::json!({ "session": session });
                let shown = client.call("sessions.show", shown).await?;
                shown["entries"].as_u64().map(|entries| Seq(entries.saturating_sub(1)))
            }
        };
        if last.is_some_and(|last| last < args.from) {
            return Ok(());
        }
        let mut tail = client.tail(&session, args.from).await?;
        let mut printer = Printer::new(io::stdout(), Style::for_stdout(), io::stderr(), Style::for_stderr());
        while let Some(item) = tail.next().await {
            let item = item?;
            let is_last = item["data"]["entry"]["seq"].as_u64().map(Seq) == last && last.is_some();
            let shown = match json {
                true => writeln!(io::stdout(), "{item}"),
                false => show(&mut printer, &item),
            };
            match shown {
                Ok(()) if is_last => break,
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(terminal::cannot_write(&error)),
            }
        }
        if json {
            return Ok(());
        }
        printer.end().map_err(|error| terminal::cannot_write(&error))
    });
    runtime.shutdown_background();
    ended.map(|()| 0)
}

fn show(printer: &mut Printer<'_>, item: &Value) -> io::Result<()> {
    // Events that only the control API sends are for programs.
    let Ok(out) = serde_json::from_value::<SessionEvent>(item.clone()) else { return Ok(()) };
    if let SessionEvent::Entry { entry, .. } = &out
        && let Change::Said { message, origin } = &entry.change
        && origin.is_prompt()
    {
        printer.end()?;
        let text = message.text();
        return text.lines().try_for_each(|line| writeln!(io::stdout(), "> {}", visible(line)));
    }
    match out {
        SessionEvent::Ask { permission, .. } => printer.question(&permission),
        // Past entries are shown like new ones.
        SessionEvent::Entry { entry, own, .. } => {
            printer.show(&SessionEvent::Entry { entry, replay: false, own })
        }
        out => printer.show(&out),
    }
}
