//! `epitome` without arguments in a terminal, or `epitome chat`: the chat, over the same connection to the daemon that
//! editors use.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use super::CliContext as _;
use super::overrides::{OverrideArgs, doubtful_model};
use super::terminal::{self, Style};
use super::text_editor::TextEditor;
use super::{CliError, acp, log, login, serve, sessions};
use crate::chat::{self, ChatEnd, ChatSetup};
use crate::config::ChatKeys;
use crate::daemon::front;
use crate::paths::Paths;
use crate::provider::endpoint::nothing_configured;
use crate::session::registry::Overrides;
use epitome_platform::local::Stream;

/// Whether the chat can be shown and used. A terminal without escape sequences (`TERM=dumb`) can't show it.
pub fn is_possible() -> bool {
    io::stdin().is_terminal() && Style::for_stdout().is_terminal()
}

/// Chat in this terminal
#[derive(Debug, Default, clap::Args)]
pub struct ChatArgs {
    /// The first prompt, or the arguments of the recipe
    prompt: Vec<String>,
    /// Run this recipe first, as with /NAME
    #[arg(long, short, value_name = "NAME")]
    recipe: Option<String>,
    /// Continue the newest session of this directory, unless --resume is given
    #[arg(long = "continue", short = 'c', visible_alias = "follow")]
    follow: bool,
    /// Continue the session with this ID or unique ID prefix; choose it from a list if there is no ID
    #[arg(long, visible_alias = "conversation-id", value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,
    #[command(flatten)]
    overrides: OverrideArgs,
}

impl ChatArgs {
    /// The first prompt.
    fn prompt(&self) -> Option<String> {
        let words = self.prompt.join(" ");
        let text = match &self.recipe {
            Some(recipe) => format!("/{} {words}", recipe.trim_start_matches('/')),
            None => words,
        };
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The session to continue, and its directory.
    fn session(&self, paths: &Paths, cwd: &Path) -> Result<Option<(String, PathBuf)>, CliError> {
        let session = match &self.resume {
            Some(id) if id.is_empty() => None,
            Some(id) => Some(sessions::named_with_directory(paths, id)?),
            None if self.follow => Some((sessions::newest(paths, cwd)?, cwd.to_path_buf())),
            None => None,
        };
        Ok(session.map(|(session, cwd)| (session.0, cwd)))
    }
}

pub fn main(args: ChatArgs) -> Result<i32, CliError> {
    if !is_possible() {
        let error = CliError::usage("the chat needs a terminal as its input and output");
        return Err(error.hint("`epitome run` answers a prompt without one"));
    }
    let paths = serve::paths();
    log::to_file(&paths);
    let cwd = serve::session_directory(serve::working_directory()?)?;
    let settings = serve::settings(&paths, Some(&cwd));
    let notification = settings.notify.sequence();
    let (session, prompt, chooses) =
        (args.session(&paths, &cwd)?, args.prompt(), args.resume.as_ref().is_some_and(String::is_empty));
    let overrides = Overrides::from(args.overrides);
    let setup = ChatSetup {
        chooses,
        remark: doubtful_model(overrides.model.as_deref(), &settings),
        history: paths.state.join("prompts.jsonl"),
        edit: |text| edited(text).map_err(|error| error.message),
        session,
        prompt,
        cwd,
        search: |words| sessions::found(words).map_err(|error| error.message),
        has_colors: Style::for_stdout() == Style::Colors,
        has_vim_keys: settings.chat_keys == ChatKeys::Vim,
        notification,
    };
    loop {
        match chat::run(daemon(&overrides)?, &setup)? {
            ChatEnd::Left { session, rows } => {
                let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
                terminal::print(&text)?;
                if let Some(session) = session {
                    note!("Continue with: epitome --resume {session}");
                }
                return Ok(0);
            }
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

/// Whether arguments that are no command of the program are those of a chat: they begin with an option, or with a prompt
/// of several words.
pub fn are_arguments(arguments: &[OsString]) -> bool {
    let first = arguments.first().map(|first| first.to_string_lossy());
    first.is_some_and(|first| first.starts_with('-') || first.trim().contains(char::is_whitespace))
}

/// A text as the user's editor left it.
fn edited(text: &str) -> Result<String, CliError> {
    let directory = tempfile::tempdir().context("the prompt can't be written for the editor")?;
    let file = directory.path().join("prompt.md");
    std::fs::write(&file, text).context("the prompt can't be written for the editor")?;
    TextEditor::of_user(&file)?.edit(&file)?;
    std::fs::read_to_string(&file).context("the prompt can't be read after the editor")
}

/// A connection to the daemon, which survives the daemon as that of an editor does.
fn daemon(overrides: &Overrides) -> Result<Stream, CliError> {
    let failed = |why: String| {
        CliError::failed(format!("no daemon can be reached: {why}"))
            .hint("`epitome run --standalone` works without a daemon; `epitome daemon logs` may say why")
    };
    let (mut connector, link) = acp::connect(&serve::paths(), overrides).map_err(failed)?;
    connector.report_in_log_only();
    front::through_socket(connector, link, || {}).map_err(|error| failed(error.to_string()))
}
