//! `epitome inspect`: opens the page on which sessions can be looked at.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use serde_json::json;

use super::{CliError, log, serve, terminal};
use crate::daemon::control::Client;
use crate::daemon::control::fault::Fault;
use crate::daemon::place::Place;
use crate::daemon::start;

const HELP: &str = "\
epitome inspect: look at sessions in a browser

  epitome inspect [SESSION] [--no-open] [--json]

What filled the context over time, compactions with what they kept, hooks, tool calls, cost and
cache; an entry opens with why it is in the model's view or not. The daemon serves the page, on this
machine alone, and the page changes nothing. A unique beginning of a session's id is enough.

  --no-open   print the address and open no browser
  --json      print {\"url\": …} alone

The address is good for one use, within five minutes.
";

/// What opens an address with the person's browser.
#[cfg(target_os = "macos")]
const OPENER: &str = "open";
#[cfg(not(target_os = "macos"))]
const OPENER: &str = "xdg-open";

pub fn main(arguments: Vec<OsString>) -> Result<i32, CliError> {
    let Some(request) = Request::parse(arguments)? else {
        terminal::print(HELP)?;
        return Ok(0);
    };
    let paths = serve::paths();
    log::to_file(&paths);
    let runtime = serve::runtime()?;
    let opened = runtime.block_on(async {
        let client = daemon(&Place::of(&paths)).await?;
        let params = match &request.session {
            Some(session) => json!({ "session": session }),
            None => json!({}),
        };
        client.call("inspect.open", params).await.map_err(failed)
    });
    let opened = opened?;
    let url = opened["url"].as_str().unwrap_or_default();
    match request.form {
        Form::Json => terminal::print(&format!("{opened}\n"))?,
        Form::Text => terminal::print(&format!("{url}\n"))?,
    }
    if request.browser == Browser::Open && !open(url) {
        eprintln!("epitome: no browser could be opened by {OPENER}; open the address above");
    }
    Ok(0)
}

/// A connection to the daemon, which is started where none runs: the page outlives this command.
async fn daemon(place: &Place) -> Result<Client, CliError> {
    if let Some(client) = Client::connect(place).await.map_err(failed)? {
        return Ok(client);
    }
    let program = start::this_program()
        .map_err(|error| CliError::failed(format!("this program's own path is not known: {error}"), None))?;
    start::start(&program, &serve::environment()).map_err(|why| CliError::failed(why, log_hint()))?;
    Client::connect(place)
        .await
        .map_err(failed)?
        .ok_or_else(|| CliError::failed("the daemon was started and does not answer", log_hint()))
}

fn log_hint() -> Option<String> {
    Some("its log, below the state directory, tells more".to_owned())
}

fn failed(fault: Fault) -> CliError {
    CliError::failed(fault.message, fault.hint)
}

/// Whether a browser was started. What it says goes nowhere.
fn open(url: &str) -> bool {
    let mut opener = Command::new(OPENER);
    opener.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    opener.spawn().is_ok()
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    session: Option<String>,
    form: Form,
    browser: Browser,
}

#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

#[derive(Debug, PartialEq, Eq)]
enum Browser {
    Open,
    Leave,
}

impl Request {
    /// `None`: the person wants to know what there is.
    fn parse(arguments: Vec<OsString>) -> Result<Option<Request>, CliError> {
        use lexopt::prelude::*;
        let mut request = Request { session: None, form: Form::Text, browser: Browser::Open };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("no-open") => request.browser = Browser::Leave,
                Long("json") => request.form = Form::Json,
                Value(word) if request.session.is_none() => {
                    request.session = Some(word.to_string_lossy().into_owned());
                }
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(Some(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_and_flags_are_read() {
        let parsed = |arguments: &[&str]| crate::cli::parsed(Request::parse, arguments);
        let all = Request { session: Some("s_1".to_owned()), form: Form::Json, browser: Browser::Leave };
        assert_eq!(parsed(&["--json", "s_1", "--no-open"]), Ok(all));
        let none = Request { session: None, form: Form::Text, browser: Browser::Open };
        assert_eq!(parsed(&[]), Ok(none));
        for wrong in [&["a", "b"][..], &["--all"]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
