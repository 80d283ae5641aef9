//! `epitome` without arguments in a terminal, or `epitome chat`: the chat, over the same connection to the daemon that
//! editors use.

use std::io::{self, IsTerminal as _};

use super::terminal::{self, Style};
use super::{CliError, acp, log, login, serve};
use crate::chat::{self, ChatEnd, ChatSetup};
use crate::daemon::front;
use crate::provider::endpoint::nothing_configured;
use crate::session::registry::Overrides;
use epitome_platform::local::Stream;

/// Whether the chat can be shown and used. A terminal without escape sequences (`TERM=dumb`) can't show it.
pub fn is_possible() -> bool {
    io::stdin().is_terminal() && Style::for_stdout().is_terminal()
}

pub fn main() -> Result<i32, CliError> {
    let paths = serve::paths();
    log::to_file(&paths);
    let cwd = serve::session_directory(serve::working_directory()?)?;
    let notification = serve::settings(&paths, Some(&cwd)).notify.sequence();
    let setup = ChatSetup { cwd, has_colors: Style::for_stdout() == Style::Colors, notification };
    loop {
        match chat::run(daemon()?, &setup)? {
            ChatEnd::Left => return Ok(0),
            ChatEnd::Lost(why) => {
                return Err(CliError::failed(why).hint("`epitome` opens it again, and its sessions are kept"));
            }
            ChatEnd::NoLogin => {
                let settings = serve::settings(&paths, Some(&setup.cwd));
                let error = nothing_configured(&settings, &serve::environment());
                note!("epitome: {}", error.message);
                note!("hint: {}", error.hint.unwrap_or_default());
                let keyboard = terminal::keyboard();
                let wants = keyboard
                    .is_some_and(|mut keys| terminal::confirm(&mut *keys, "Run `epitome login` now?"));
                if !wants {
                    return Ok(1);
                }
                let code = login::main(login::LoginArgs::default())?;
                if code != 0 {
                    return Ok(code);
                }
            }
        }
    }
}

/// A connection to the daemon, which survives the daemon as that of an editor does.
fn daemon() -> Result<Stream, CliError> {
    let failed = |why: String| {
        CliError::failed(format!("no daemon can be reached: {why}"))
            .hint("`epitome run --standalone` works without a daemon; `epitome daemon logs` may say why")
    };
    let (mut connector, link) = acp::connect(&serve::paths(), &Overrides::default()).map_err(failed)?;
    connector.report_in_log_only();
    front::through_socket(connector, link, || {}).map_err(|error| failed(error.to_string()))
}
