//! `epitome sessions tail`: what a session says, as it says it. Of a session that lives in the daemon all that
//! happens, and of any what its log has.

use std::ffi::OsString;
use std::io::{self, Write as _};

use serde_json::Value;

use super::super::daemon::failed;
use super::super::printer::Printer;
use super::super::terminal::{self, Dress, harmless};
use super::super::{CliError, log, methods, serve};
use crate::daemon::control::Client;
use crate::daemon::control::client::Serves;
use crate::daemon::place::Place;
use crate::session::Out;
use crate::thread::{Change, Part, Seq};

const HELP: &str = "\
epitome sessions tail: what a session says, as it says it

  epitome sessions tail ID [--from e5] [--json]

First its log, from the entry on that --from names; then what happens, until Ctrl-C. Where no daemon
runs, nothing happens in its sessions, and it ends behind the log.
With --json one object a line: session, type (entry, text, call_started, ask, usage, ...) and data, as
sessions.tail of the control API has them.
";

pub fn main(arguments: Vec<OsString>) -> Result<i32, CliError> {
    let Some(request) = Request::parse(arguments)? else {
        return terminal::print(HELP).map(|()| 0);
    };
    let paths = serve::paths();
    log::to_file(&paths);
    let session = super::named(&paths, &request.id)?;
    let runtime = serve::runtime()?;
    let place = Place::of(&paths);
    let ended = runtime.block_on(async {
        let daemon = || methods::here(&paths, runtime.handle());
        let client = Client::connect_or_here(&place, daemon).await.map_err(failed)?;
        let last = match client.serves() {
            Serves::Daemon => None,
            Serves::ThisProcess => {
                let shown = serde_json::json!({ "session": session });
                let shown = client.call("sessions.show", shown).await.map_err(failed)?;
                shown["entries"].as_u64().map(|entries| Seq(entries.saturating_sub(1)))
            }
        };
        if last.is_some_and(|last| last < request.from) {
            return Ok(());
        }
        let mut tail = client.tail(&session, request.from).await.map_err(failed)?;
        let mut shown = Shown::new(request.json);
        while let Some(item) = tail.next().await {
            let item = item.map_err(failed)?;
            let is_last = item["data"]["entry"]["seq"].as_u64().map(Seq) == last && last.is_some();
            match shown.show(&item) {
                Ok(()) if is_last => break,
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                Err(error) => return Err(terminal::cannot_write(&error)),
            }
        }
        shown.end().map_err(|error| terminal::cannot_write(&error))
    });
    runtime.shutdown_background();
    ended.map(|()| 0)
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    id: String,
    from: Seq,
    json: bool,
}

impl Request {
    /// `None`: the person wants to know what there is.
    fn parse(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        use lexopt::prelude::*;
        let (mut id, mut from, mut json) = (None, Seq(0), false);
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("json") => json = true,
                Long("from") => {
                    let typed = parser.value()?.string()?;
                    from = match typed.parse::<Part>() {
                        Ok(Part { entry, part: None }) => entry,
                        Ok(Part { part: Some(_), .. }) | Err(()) => {
                            return Err(CliError::usage(format!("{typed:?} names no entry; say it as e12")));
                        }
                    };
                }
                Value(word) if id.is_none() => id = Some(word.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        match id {
            Some(id) => Ok(Some(Request { id, from, json })),
            None => Err(CliError::usage("tail needs the id of a session")),
        }
    }
}

/// How items are shown.
enum Shown {
    Json,
    Text(Box<Printer<'static>>),
}

impl Shown {
    fn new(json: bool) -> Shown {
        match json {
            true => Shown::Json,
            false => Shown::Text(Box::new(Printer::new(
                io::stdout(),
                Dress::of_stdout(),
                io::stderr(),
                Dress::of_stderr(),
            ))),
        }
    }

    fn show(&mut self, item: &Value) -> io::Result<()> {
        let printer = match self {
            Shown::Json => return writeln!(io::stdout(), "{item}"),
            Shown::Text(printer) => printer,
        };
        // What only the control API says is for machines.
        let Ok(out) = serde_json::from_value::<Out>(item.clone()) else { return Ok(()) };
        if let Out::Entry { entry, .. } = &out
            && let Change::Said { message, origin } = &entry.change
            && origin.is_prompt()
        {
            printer.end()?;
            let text = message.text();
            return text.lines().try_for_each(|line| writeln!(io::stdout(), "> {}", harmless(line)));
        }
        match out {
            Out::Ask { permission, .. } => printer.question(&permission),
            // The past is shown like the present.
            Out::Entry { entry, own, .. } => printer.show(&Out::Entry { entry, replay: false, own }),
            out => printer.show(&out),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        match self {
            Shown::Json => Ok(()),
            Shown::Text(printer) => printer.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let parsed = |arguments: &[&str]| crate::cli::parsed(Request::parse, arguments);
        let wanted = Request { id: "ab".to_owned(), from: Seq(5), json: true };
        assert_eq!(parsed(&["ab", "--from", "e5", "--json"]).expect("good arguments"), wanted);
        for (arguments, told) in [(&[][..], "needs the id"), (&["ab", "--from", "x"], "names no entry")] {
            assert!(parsed(arguments).expect_err("these are wrong").contains(told), "{arguments:?}");
        }
    }
}
