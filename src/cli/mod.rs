//! The command line: what can be asked of the binary, and how its faults are told.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 130 cancelled by Ctrl-C.

mod acp;
mod bug_report;
pub mod check;
mod daemon;
mod daemon_serve;
mod demo;
mod doctor;
mod form;
mod hooks;
mod inspect;
mod json_lines;
mod live;
mod log;
mod manual;
mod methods;
mod models;
mod overrides;
mod plot;
mod printer;
mod queue;
mod recipes;
mod run;
mod scratch;
mod serve;
mod sessions;
mod terminal;
pub mod words;

use std::ffi::OsString;

/// The exit code of what the person ended by Ctrl-C, as shells have it for SIGINT.
const EXIT_CANCELLED: i32 = 130;

/// A fault that ends a command: what was tried, and apart from it what to do.
#[derive(Debug)]
pub struct CliError {
    pub message: String,
    pub hint: Option<String>,
    pub code: i32,
}

impl CliError {
    /// The arguments make no sense.
    pub fn usage(message: impl Into<String>) -> CliError {
        let hint = Some("`epitome --help` shows what there is".to_owned());
        CliError { message: message.into(), hint, code: 2 }
    }

    /// It was tried and did not work.
    pub fn failed(message: impl Into<String>, hint: Option<String>) -> CliError {
        CliError { message: message.into(), hint, code: 1 }
    }
}

impl From<lexopt::Error> for CliError {
    fn from(error: lexopt::Error) -> CliError {
        CliError::usage(error.to_string())
    }
}

/// Runs the command that the process was started with and returns its exit code.
pub fn main() -> i32 {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == crate::tools::reaper::REAP_ARGUMENT) {
        return crate::tools::reaper::reap_main();
    }
    let done = dispatch(arguments);
    log::flush();
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("epitome: {}", error.message);
            if let Some(hint) = &error.hint {
                eprintln!("hint: {hint}");
            }
            error.code
        }
    }
}

/// What a command reads out of its arguments, or the message that the person gets.
#[cfg(test)]
fn parsed<T>(
    parse: impl FnOnce(Vec<OsString>) -> Result<Option<T>, CliError>,
    arguments: &[&str],
) -> Result<T, String> {
    let request = parse(arguments.iter().map(OsString::from).collect());
    request.map(|request| request.expect("no help was asked for")).map_err(|error| error.message)
}

fn dispatch(mut arguments: Vec<OsString>) -> Result<i32, CliError> {
    if arguments.is_empty() {
        terminal::print(HELP)?;
        return Ok(2);
    }
    let command = arguments.remove(0);
    match command.to_str() {
        Some("acp") => acp::main(arguments),
        Some("run") => run::main(arguments),
        Some("compact") => run::compact(arguments),
        Some(name) if run::is_own(name) => run::own(name, arguments),
        Some("recipes") => recipes::main(arguments),
        Some("sessions") => sessions::main(arguments),
        Some("models") => models::main(arguments),
        Some("hooks") => hooks::main(arguments),
        Some("doctor") => doctor::main(arguments),
        Some("bug-report") => bug_report::main(arguments),
        Some("inspect") => inspect::main(arguments),
        Some("demo") => demo::main(arguments),
        Some("check") => check::main(arguments),
        Some("daemon") => daemon::main(arguments),
        Some("completions") => manual::completions(arguments),
        Some("man") => manual::man(arguments),
        Some(name) if manual::is_complete(name) => manual::complete(&arguments),
        Some("--version" | "-V" | "version") => {
            println!("epitome {}", env!("CARGO_PKG_VERSION"));
            Ok(0)
        }
        Some("--help" | "-h" | "help") => {
            terminal::print(HELP)?;
            Ok(0)
        }
        Some(other) => Err(CliError::usage(format!("there is no command {other:?}"))),
        None => Err(CliError::usage(format!("there is no command {command:?}"))),
    }
}

const HELP: &str = "\
epitome: a coding agent for editors, with compaction that you can trust

  epitome acp [--model NAME] [--mode MODE] [--transcript FILE] [--standalone]
        speak the Agent Client Protocol on stdin and stdout; this is what editors launch. One daemon serves
        all windows and is started when it is needed; --standalone does all in this one process
  epitome run [-r RECIPE] [--follow | --resume ID] [--model NAME] [--mode MODE] [--json] \"prompt\"
        one prompt without an editor; --follow goes on with the newest session of this directory
  epitome compact [--dry-run] [--json] [--resume ID] [focus...]
        make a session short: what /compact does in an editor; --dry-run tells what it would do
  epitome undo|redo [ENTRY] | history | pin [ENTRY | TEXT] | unpin ENTRY|all
        take back, bring again and list what changed a session's history; keep parts of it
  epitome rewind [ENTRY] | checkpoints | permissions [forget|keep N] | rename TITLE
        go back to before a turn, with its files; what may run without a question; another title
  epitome recipes list|show NAME|render NAME|check [PATH...]
        the slash commands: which there are, what they would send, what is wrong with their files
  epitome sessions list|show|search|tail|fork|rename|undo|redo|rewind|checkpoints|export|import|delete
        what was said, and where
  epitome daemon status|stop|logs
        the one process behind all windows
  epitome models [PROVIDER | TEXT] [--all] [--refresh]
        which models can be chosen, what they hold and cost
  epitome hooks list|trust|test|log
        what runs at moments of a session, and what of a repository may
  epitome doctor [--repair] [--compact] [--backup DIR]
        is all well, and what to do if not
  epitome bug-report [FILE] [--session ID]
        one text file that tells how things stand, without keys and without anything that was said
  epitome inspect [SESSION] [--no-open] [--json]
        look at sessions in a browser: what filled the context, what was compacted, and why
  epitome check [FILE...] -- COMMAND...
        run protocol fixtures against any ACP agent
  epitome demo [--fast]
        see it work without a key: a real daemon and client, a scripted model
  epitome completions bash|zsh|fish
  epitome man
        for the Tab key, and the man page; both on stdout
  epitome --version | --help

acp, run and compact also take:
  --no-hooks              run no hooks
  --trust-hooks           run what a repository brings without asking
  --disable-auto-compact  compact only when asked, or when the provider refuses the length
  --compact-ratio R       compact at this share of the window, from 0 to 1; 0 is never
  --recipe-dir DIR        look for recipes there, too (also --fragment-dirs DIR,DIR)
  --standalone            do all in this process, also where a daemon runs

All but acp have a --help of their own.

Models are named provider/name: anthropic/..., openai/..., gemini/..., local/...
Keys come from the environment: ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY; a local server from EPITOME_LOCAL_URL.
EPITOME_HOME moves all files (default ~/.epitome); EPITOME_LOG=debug fills the log below the state directory.
";
