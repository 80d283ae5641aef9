//! The command line: commands, their arguments and help, and error reports.
//!
//! Each command's module defines its arguments with clap's derive. Parsing, help, completions and the man page are
//! generated from these definitions.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 130 cancelled by Ctrl-C.

/// Writes a line to stderr like `eprintln!`, as `terminal::to_stderr` writes text.
macro_rules! note {
    ($($words:tt)*) => { $crate::cli::terminal::to_stderr(&(format!($($words)*) + "\n")) };
}

mod acp;
mod agents;
mod bug_report;
mod chat;
mod config;
mod daemon;
mod daemon_serve;
mod demo;
mod doctor;
mod groups;
mod helper;
mod hooks;
mod inspect;
mod inventory;
mod json_lines;
mod live;
pub mod log;
mod login;
mod manual;
mod mcp;
mod memory;
mod methods;
mod models;
pub mod overrides;
mod plugins;
mod policy;
mod printer;
mod queue;
mod recipes;
mod renamed;
mod run;
mod scratch;
pub mod serve;
mod server;
mod sessions;
mod shown;
mod slash;
mod store;
mod streamed;
mod terminal;
mod text_editor;
mod token;
mod worktree;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;

pub use acp::RemoteToken;
use clap::{Args as _, CommandFactory as _, FromArgMatches as _, Parser};

use crate::daemon::control::fault::Fault;
use crate::daemon::front::access::ListenError;
use crate::daemon::front::attach::AttachError;
use crate::daemon::front::remote::ServeError;
use crate::daemon::front::tls::TlsError;
use crate::daemon::remote_tokens::RemoteTokenError;
use crate::daemon::serve::ClaimError;
use crate::hooks::trust::TrustError;
use crate::mcp::FIRST_START_ARGUMENT;
use crate::problem::{Problem, nearest};
use crate::session::worktree::WorktreeError;
use crate::session_library::LibraryError;
use crate::store::StoreError;
use crate::tools::launcher::{LAUNCH_ARGUMENT, launch_main};
use crate::tools::reaper::{REAP_ARGUMENT, reap_main};

/// The exit code after Ctrl-C: 128 + SIGINT, as in shells.
const EXIT_CANCELLED: i32 = 130;

/// The exit code after wrong arguments.
const EXIT_USAGE: i32 = 2;

/// The exit code if the budget is used up.
const EXIT_OVER_BUDGET: i32 = 3;

/// The widest that help is wrapped at.
const HELP_COLUMNS_MAX: usize = 100;

const AFTER_HELP: &str = "\
Without a command, or with `chat`, it opens a chat in the terminal: `epitome \"fix the parser\"` sends
a first prompt, `epitome -c` continues the last chat, `epitome chat --help` lists the options.

`epitome help COMMAND` explains a command. Models are named PROVIDER/NAME: anthropic/...,
openai/..., gemini/..., local/...; `epitome models` lists them.

Environment:
  ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY
                     API keys of the providers; `epitome login` stores one
  EPITOME_LOCAL_URL  base URL of a local model server
  EPITOME_MODEL      default model, as PROVIDER/NAME
  EPITOME_HOME       directory for all files (default: ~/.epitome and the XDG directories)
  EPITOME_LOG        log filter with the syntax of RUST_LOG, for example debug

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 over the budget, 130 cancelled with Ctrl-C.";

/// A coding agent for editors, with compaction that you can trust
#[derive(Debug, Parser)]
#[command(
    name = "epitome",
    version,
    after_help = AFTER_HELP,
    override_usage = "epitome [COMMAND]",
    args_override_self = true,
    arg_required_else_help = false,
    max_term_width = HELP_COLUMNS_MAX
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CliCommand {
    Acp(acp::AcpArgs),
    Serve(server::ServeArgs),
    Token(token::TokenArgs),
    Run(run::RunArgs),
    Compact(run::CompactArgs),
    Recipes(recipes::RecipesArgs),
    Agents(agents::AgentsArgs),
    Plugins(plugins::PluginsArgs),
    Inventory(inventory::InventoryArgs),
    Memory(memory::MemoryArgs),
    Login(login::LoginArgs),
    Logout(login::LogoutArgs),
    Sessions(sessions::SessionsArgs),
    Store(store::StoreArgs),
    Daemon(daemon::DaemonArgs),
    Models(models::ModelsArgs),
    Hooks(hooks::HooksArgs),
    Mcp(mcp::McpArgs),
    Doctor(doctor::DoctorArgs),
    BugReport(bug_report::BugReportArgs),
    Config(config::ConfigArgs),
    Demo(demo::DemoArgs),
    Completions(manual::CompletionsArgs),
    /// Open a chat in this terminal, as without a command
    #[command(hide = true)]
    Chat(chat::ChatArgs),
    /// Print the version
    #[command(hide = true)]
    Version,
}

/// An option of subcommands that is also accepted before the subcommand. Its help is in the definition of the same
/// name in the subcommand.
fn before_subcommand(name: &'static str) -> clap::Arg {
    clap::Arg::new(name).long(name).global(true).hide(true)
}

/// An error that ends a command: a message, and separately a hint about what to do.
#[derive(Debug, PartialEq)]
pub struct CliError {
    pub message: String,
    pub hint: Option<String>,
    pub code: i32,
}

impl CliError {
    /// The arguments are invalid or inconsistent.
    pub fn usage(message: impl Into<String>) -> CliError {
        CliError { message: message.into(), hint: None, code: EXIT_USAGE }
    }

    /// The command failed.
    pub fn failed(message: impl Into<String>) -> CliError {
        CliError { message: message.into(), hint: None, code: 1 }
    }

    pub fn hint(self, hint: impl Into<String>) -> CliError {
        self.hint_if(Some(hint.into()))
    }

    /// A hint that names the known word that was probably meant instead of an unknown one, or this hint.
    pub fn meant<'a>(
        self,
        unknown: &str,
        known: impl IntoIterator<Item = &'a str>,
        hint: impl Into<String>,
    ) -> CliError {
        let near = nearest(unknown, known).map(|near| format!("did you mean {near:?}?"));
        self.hint(near.unwrap_or_else(|| hint.into()))
    }

    pub fn hint_if(self, hint: Option<String>) -> CliError {
        CliError { hint, ..self }
    }
}

/// Says what failed, in front of the error that says why.
trait CliContext<T> {
    fn context(self, what: impl Display) -> Result<T, CliError>;
}

impl<T, E: Display> CliContext<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Result<T, CliError> {
        self.map_err(|error| CliError::failed(format!("{what}: {error}")))
    }
}

impl From<String> for CliError {
    fn from(message: String) -> CliError {
        CliError::failed(message)
    }
}

/// Errors whose text says it all.
macro_rules! without_hint {
    ($($error:ty),+ $(,)?) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> CliError {
                CliError::failed(error.to_string())
            }
        })+
    };
}

without_hint!(
    Problem,
    TrustError,
    WorktreeError,
    RemoteTokenError,
    ClaimError,
    AttachError,
    ListenError,
    ServeError,
    TlsError,
);

impl From<Fault> for CliError {
    fn from(fault: Fault) -> CliError {
        CliError::failed(fault.message).hint_if(fault.hint)
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> CliError {
        LibraryError::from(error).into()
    }
}

impl From<LibraryError> for CliError {
    fn from(error: LibraryError) -> CliError {
        CliError::failed(error.to_string()).hint_if(error.hint())
    }
}

/// Runs the command that the process was started with and returns its exit code.
pub fn main() -> i32 {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = run_internal(&arguments).unwrap_or_else(|| run_command(&arguments));
    log::flush();
    match done {
        Ok(code) => code,
        Err(error) => {
            note!("epitome: {}", error.message);
            let usage = || (error.code == EXIT_USAGE).then(|| groups::help_of(&arguments));
            if let Some(hint) = error.hint.clone().or_else(usage) {
                note!("hint: {hint}");
            }
            error.code
        }
    }
}

/// Runs internal commands, which only this program and its shell completions start. They are undocumented.
fn run_internal(arguments: &[OsString]) -> Option<Result<i32, CliError>> {
    if std::env::var_os(manual::COMPLETE_VARIABLE).is_some() {
        // Answers a shell and ends the process.
        clap_complete::CompleteEnv::with_factory(manual::completed).var(manual::COMPLETE_VARIABLE).complete();
    }
    let words: Vec<&str> = arguments.iter().map_while(|argument| argument.to_str()).collect();
    match words[..] {
        [REAP_ARGUMENT, ..] => Some(Ok(reap_main())),
        [LAUNCH_ARGUMENT] => Some(Ok(launch_main())),
        [FIRST_START_ARGUMENT] => Some(mcp::first_start()),
        ["daemon", "serve"] => Some(daemon_serve::main()),
        _ => None,
    }
}

/// Fails if `EPITOME_HOME` is relative. It would be ignored, and the command would act on the user's usual sessions
/// instead of those that were meant. Also fails without any home directory: the settings would be those of a directory in
/// which everybody can write.
fn check_home() -> Result<(), CliError> {
    match std::env::var_os("EPITOME_HOME").filter(|home| !home.is_empty()) {
        Some(home) if !Path::new(&home).is_absolute() => {
            let message = format!("EPITOME_HOME is {}, which is not an absolute path", home.display());
            Err(CliError::failed(message).hint("set it to an absolute path, or unset it"))
        }
        None if serve::paths().user_home.is_none() => {
            let error = CliError::failed(
                "your home directory is unknown: HOME is not an absolute path, and the system has none for you",
            );
            Err(error.hint("set HOME or EPITOME_HOME to an absolute path"))
        }
        Some(_) | None => Ok(()),
    }
}

fn run_command(arguments: &[OsString]) -> Result<i32, CliError> {
    if let Some(args) = front_end_arguments(arguments) {
        check_home()?;
        return acp::main(args);
    }
    if arguments.is_empty() && chat::is_possible() {
        check_home()?;
        return chat::main(chat::ChatArgs::default());
    }
    if arguments.is_empty() {
        terminal::print(&groups::definition().render_help().to_string())?;
        return Ok(EXIT_USAGE);
    }
    let arguments = &renamed::present(arguments)[..];
    if let Some(ran) = helper::compact_transcript(arguments) {
        return ran;
    }
    let words = std::iter::once("epitome".into()).chain(arguments.iter().cloned());
    let parsed = groups::definition().try_get_matches_from(words);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            if error.use_stderr() && chat::are_arguments(arguments) {
                return chat_with(arguments);
            }
            let ran = if groups::is_built_in(arguments) { None } else { helper::run(arguments) };
            return ran.unwrap_or_else(|| not_a_command(&error, arguments));
        }
    };
    check_home()?;
    match cli.command {
        CliCommand::Acp(args) => acp::main(args),
        CliCommand::Serve(args) => server::main(args),
        CliCommand::Token(args) => token::main(args),
        CliCommand::Run(args) => run::main(args),
        CliCommand::Compact(args) => run::compact(args),
        CliCommand::Recipes(args) => recipes::main(args),
        CliCommand::Agents(args) => agents::main(args),
        CliCommand::Plugins(args) => plugins::main(args),
        CliCommand::Inventory(args) => inventory::main(args),
        CliCommand::Memory(args) => memory::main(args),
        CliCommand::Login(args) => login::main(args),
        CliCommand::Logout(args) => login::logout(args),
        CliCommand::Sessions(args) => sessions::main(args),
        CliCommand::Store(args) => store::main(args),
        CliCommand::Daemon(args) => daemon::main(args),
        CliCommand::Models(args) => models::main(args),
        CliCommand::Hooks(args) => hooks::main(args),
        CliCommand::Mcp(args) => mcp::main(args),
        CliCommand::Doctor(args) => doctor::main(args),
        CliCommand::BugReport(args) => bug_report::main(args),
        CliCommand::Config(args) => config::main(args),
        CliCommand::Demo(args) => demo::main(args),
        CliCommand::Completions(args) => manual::completions(args),
        CliCommand::Chat(args) => chat::main(args),
        CliCommand::Version => terminal::print(&Cli::command().render_version()).map(|()| 0),
    }
}

/// Opens a chat with arguments that name no command.
fn chat_with(arguments: &[OsString]) -> Result<i32, CliError> {
    let words = ["epitome".into(), "chat".into()].into_iter().chain(arguments.iter().cloned());
    let parsed = groups::definition().try_get_matches_from(words);
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(Cli { command: CliCommand::Chat(args) }) => {
            check_home()?;
            chat::main(args)
        }
        Ok(_) => Err(CliError::usage("these are not arguments of the chat")),
        Err(error) => not_a_command(&error, arguments),
    }
}

/// The arguments of `epitome acp`, which each window of an editor starts; `None` for others, wrong ones included. Defining
/// all commands took a quarter of the time in which that is ready.
fn front_end_arguments(arguments: &[OsString]) -> Option<acp::AcpArgs> {
    let (command, arguments) = arguments.split_first()?;
    if command != "acp" {
        return None;
    }
    let definition = clap::Command::new("acp").no_binary_name(true).args_override_self(true);
    let parsed = acp::AcpArgs::augment_args(definition).try_get_matches_from(arguments).ok()?;
    acp::AcpArgs::from_arg_matches(&parsed).ok()
}

/// Prints help and the version to stdout, and errors to stderr with the common prefix of this program's errors.
fn not_a_command(error: &clap::Error, arguments: &[OsString]) -> Result<i32, CliError> {
    let text = groups::usage_text(error, arguments);
    if error.use_stderr() {
        terminal::to_stderr(&format!("epitome: {}", text.strip_prefix("error: ").unwrap_or(&text)));
    } else {
        terminal::print(&text)?;
    }
    Ok(error.exit_code())
}

#[cfg(test)]
mod tests;
