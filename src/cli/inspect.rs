//! `epitome sessions inspect`: opens a page in the browser that shows sessions.

use std::process::{Command, Stdio};

use serde_json::json;

use super::{CliContext as _, CliError, log, serve, terminal};
use crate::daemon::control::ControlClient;
use crate::daemon::start;
use crate::paths::Paths;
use epitome_files::atomic_file::replace_private;
use epitome_platform::child_output::keep_from_workspace;
use epitome_platform::os::OPENER;

/// Inspect sessions in a browser
///
/// Shows what filled the context over time, compactions and what they kept, hooks, tool calls, cost and cache use. Each
/// entry explains why the model sees it or not. The daemon serves the page to this machine only, and the page
/// changes nothing. The printed address can be used once, within five minutes.
#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// ID of a session [default: the list of sessions]
    #[arg(value_name = "SESSION")]
    pub session: Option<String>,
    /// Print the address without opening a browser
    #[arg(long)]
    no_open: bool,
    /// Print {"url": ...}, and open no browser
    #[arg(long)]
    json: bool,
}

pub fn main(args: InspectArgs) -> Result<i32, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    let runtime = serve::runtime()?;
    let opened = runtime.block_on(async {
        let client = daemon(&paths).await?;
        let params = args.session.map_or_else(|| json!({}), |session| json!({ "session": session }));
        Ok::<_, CliError>(client.call("inspect.open", params).await?)
    });
    let opened = opened?;
    let url = opened["url"].as_str().unwrap_or_default();
    if args.json {
        terminal::print(&format!("{opened}\n"))?;
    } else {
        terminal::print(&format!("{url}\n"))?;
    }
    // The address works once: a browser would use up the one that a program was given.
    if !(args.no_open || args.json || open_privately(&paths, url)) {
        note!("epitome: no browser could be opened by {}; open the address above", OPENER[0]);
    }
    Ok(0)
}

const LOG_HINT: &str = "`epitome daemon logs` may say why";

/// Connects to the daemon. Starts one if none is running, because the page outlives this command.
async fn daemon(paths: &Paths) -> Result<ControlClient, CliError> {
    if let Some(client) = ControlClient::connect_for(paths).await? {
        return Ok(client);
    }
    let program = start::this_program().context("the path of this program is unknown")?;
    start::start(&program, &serve::environment(), start::SlowNotices::StandardError)
        .map_err(|error| CliError::failed(error.to_string()).hint(LOG_HINT))?;
    ControlClient::connect_for(paths)
        .await?
        .ok_or_else(|| CliError::failed("the daemon was started but does not answer").hint(LOG_HINT))
}

/// Opens a page that leads to an address, so that the address, whose ticket is a secret, is in no list of processes.
fn open_privately(paths: &Paths, url: &str) -> bool {
    let page = paths.state.join("inspect.html");
    let text = format!(
        "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={url}\"><title>Epitome</title>\n"
    );
    let made = std::fs::create_dir_all(&paths.state).and_then(|()| replace_private(&page, text.as_bytes()));
    made.is_ok() && open(&page.to_string_lossy())
}

/// Opens an address in the browser; returns whether one was started. Its output is discarded.
pub fn open(url: &str) -> bool {
    let mut opener = Command::new(OPENER[0]);
    keep_from_workspace(&mut opener, &std::env::current_dir().unwrap_or_default());
    opener.args(&OPENER[1..]).arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    opener.spawn().is_ok()
}
