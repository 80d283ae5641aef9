//! `epitome inspect`: opens the page on which sessions can be looked at.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{CliError, serve, sessions, terminal};
use crate::daemon::Daemon;

const HELP: &str = "\
epitome inspect: look at sessions in a browser

  epitome inspect [SESSION] [--no-open] [--json]

What filled the context over time, compactions with what they kept, hooks, tool calls, cost and
cache; an entry opens with why it is in the model's view or not. The page is served on this machine
alone, and changes nothing. A unique beginning of a session's id is enough.

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
    serve::log_to_file(&paths);
    let runtime = serve::runtime()?;
    let sessions = serve::sessions(paths.clone(), runtime.handle());
    let store = sessions.services().store.clone();
    let session = request.session.as_deref().map(|typed| sessions::find(&store, typed)).transpose()?;
    let daemon = Arc::new(Daemon::new(paths, sessions, store.clone()));
    let served = runtime.block_on(async {
        let url = daemon.inspect.open(&daemon, session.as_ref()).map_err(|error| {
            CliError::failed(format!("the page can't be served on this machine: {error}"), None)
        })?;
        match request.form {
            Form::Json => terminal::print(&format!("{}\n", json!({ "url": url })))?,
            Form::Text => terminal::print(&format!("{url}\n"))?,
        }
        if request.browser == Browser::Open && !open(&url) {
            eprintln!("epitome: no browser could be opened by {OPENER}; open the address above");
        }
        until_over(&daemon).await
    });
    runtime.shutdown_background();
    store.settle();
    served
}

/// Waits for Ctrl-C, or until nobody has used the page for long.
async fn until_over(daemon: &Daemon) -> Result<i32, CliError> {
    let cannot = |error| CliError::failed(format!("signals can't be waited for: {error}"), None);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = daemon.inspect.closed() => {}
    }
    Ok(0)
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
