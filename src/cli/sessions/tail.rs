//! `epitome sessions tail`: prints the log of a session, and then its events if it is live in the daemon.

use std::io::{self, BufRead as _, Write as _};

use serde::Serialize;

use super::super::acp::LocalAgent;
use super::super::printer::Printer;
use super::super::run::{Connected, in_daemon};
use super::super::terminal::{self, Style};
use super::super::{CliError, serve};
use crate::paths::Paths;
use crate::session::registry::Overrides;
use crate::thread::visible::visible;
use crate::thread::{Change, Seq, SessionId};
use epitome_client::{ClientEvent, QuestionForms, SessionClient, SessionMessage};

/// Print the log of a session, then its events as they happen, until Ctrl-C
///
/// Without a daemon nothing happens in sessions, so the command ends after the log. With --json each line is an object
/// with session, type (entry, text, call_started, ask, usage, ...) and data.
#[derive(Debug, clap::Args)]
pub struct TailArgs {
    /// ID of the session
    pub(super) id: String,
    /// First entry of the log to print
    #[arg(long, value_name = "ENTRY", value_parser = super::entry, default_value = "e0")]
    pub(super) from: Seq,
}

/// The name of this client.
const NAME: &str = "epitome-tail";

pub(super) fn tail(paths: &Paths, args: &TailArgs, json: bool) -> Result<i32, CliError> {
    let session = super::named(paths, &args.id)?;
    let (overrides, forms) = (Overrides::default(), QuestionForms::Unsupported);
    if let Some(client) = in_daemon(paths, overrides.clone(), NAME, forms)? {
        return follow(client, &session, args.from, json, TailEnd::Interrupt);
    }
    let runtime = serve::runtime()?;
    let agent = LocalAgent::start(paths.clone(), overrides, &runtime)?;
    let client = SessionClient::connect(agent.stream, NAME, forms);
    let ended = client
        .map_err(CliError::failed)
        .and_then(|client| follow(client, &session, args.from, json, TailEnd::Log));
    runtime.shutdown_background();
    ended
}

/// When a tail ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TailEnd {
    /// It ends after the log: nothing else can happen.
    Log,
    Interrupt,
}

fn follow(
    (mut client, mut reader): Connected<()>,
    session: &SessionId,
    from: Seq,
    json: bool,
    end: TailEnd,
) -> Result<i32, CliError> {
    // The log up to now precedes its answer, unless the session is live.
    client.watch(session, from, ());
    let mut printer = Printer::new(io::stdout(), Style::for_stdout(), io::stderr(), Style::for_stderr());
    printer.session = Some(session.clone());
    let mut line = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut line) {
        let shown = match client.receive(&line) {
            SessionMessage::Event(event) if json => print_json(session, &event),
            SessionMessage::Event(event) => show(&mut printer, event),
            SessionMessage::Answer((), Err(error)) => {
                return Err(CliError::failed(error.to_string()));
            }
            SessionMessage::Answer((), Ok(_)) if end == TailEnd::Log => break,
            SessionMessage::Answer(..) | SessionMessage::Nothing => Ok(()),
        };
        match shown {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
            Err(error) => return Err(terminal::cannot_write(&error)),
        }
        line.clear();
    }
    if !json {
        printer.end().map_err(|error| terminal::cannot_write(&error))?;
    }
    Ok(0)
}

fn print_json(session: &SessionId, event: &ClientEvent) -> io::Result<()> {
    #[derive(Serialize)]
    struct TailItem<'a> {
        session: &'a SessionId,
        #[serde(flatten)]
        event: &'a ClientEvent,
    }
    let item = terminal::json_line(&TailItem { session, event })?;
    writeln!(io::stdout(), "{item}")
}

fn show(printer: &mut Printer<'_>, event: ClientEvent) -> io::Result<()> {
    if let ClientEvent::Entry { entry, .. } = &event
        && let Change::Said { message, origin } = &entry.change
        && origin.is_prompt()
    {
        printer.end()?;
        let text = message.text();
        return text.lines().try_for_each(|line| writeln!(io::stdout(), "> {}", visible(line)));
    }
    match event {
        ClientEvent::Ask { permission, .. } => printer.question(&permission),
        // Past entries are shown like new ones.
        ClientEvent::Entry { entry, .. } => printer.show(&ClientEvent::Entry { entry, replay: false }),
        event => printer.show(&event),
    }
}
