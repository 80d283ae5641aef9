//! `epitome completions` and the manual page: generated from the definition of the command line.

use std::io;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{AFTER_HELP, CliError, groups, serve, sessions, terminal};
use crate::recipe::catalog::RecipeCatalog;
use crate::session_library;
use crate::store::{Header, SessionQuery};

/// Maximum number of sessions that a shell offers, newest first.
const SESSIONS_MAX: usize = 100;

/// The environment variable with which completion scripts ask this program.
pub const COMPLETE_VARIABLE: &str = "EPITOME_COMPLETE";

type FindValues = fn() -> Vec<CompletionCandidate>;

/// Values that shells complete by calling this program: the names of such values in the help, and what finds them.
const COMPLETED: [(&[&str], FindValues); 3] = [
    (&["ID", "SESSION"], || offered(newest_sessions())),
    (&["MODEL"], || offered(super::models::names())),
    (&["RECIPE"], || offered(known_recipes())),
];

/// Print shell completions, or the manual page
///
/// They also complete sessions, models and recipes. `epitome completions man | man -l -` shows the manual page.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Install them with one of:
  epitome completions bash > ~/.local/share/bash-completion/completions/epitome
  epitome completions zsh  > DIR/_epitome    (DIR is a directory of $fpath)
  epitome completions fish > ~/.config/fish/completions/epitome.fish")]
pub struct CompletionsArgs {
    #[arg(value_name = "SHELL|man", value_parser = ["bash", "zsh", "fish", "man"])]
    output: String,
}

pub fn completions(args: CompletionsArgs) -> Result<i32, CliError> {
    if args.output == "man" {
        return man();
    }
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(&args.output).ok_or_else(|| CliError::usage("unknown shell"))?;
    let written = shell.write_registration(COMPLETE_VARIABLE, "epitome", "epitome", "epitome", &mut script);
    written.map_err(|error| terminal::cannot_write(&error))?;
    terminal::print(&String::from_utf8_lossy(&script)).map(|()| 0)
}

/// The definition of the command line, with what finds the values that this program completes.
pub fn completed() -> Command {
    with_values(groups::definition())
}

fn with_values(command: Command) -> Command {
    let offering = |arg: Arg| match completed_with(&arg) {
        Some(found) => arg.add(ArgValueCandidates::new(found)),
        None => arg,
    };
    command.mut_args(offering).mut_subcommands(with_values)
}

/// Returns what finds the values for an argument, if this program completes it.
fn completed_with(arg: &Arg) -> Option<FindValues> {
    let is_named = |known: &[&str]| {
        arg.get_value_names().is_some_and(|names| names.iter().any(|name| known.contains(&name.as_str())))
    };
    COMPLETED.into_iter().find(|(names, _)| is_named(names)).map(|(_, found)| found)
}

/// The values that a shell offers, each with a description, in their order. There are none if they can't be found.
fn offered(values: Result<Vec<(String, String)>, CliError>) -> Vec<CompletionCandidate> {
    let one_line = |text: String| text.replace(char::is_control, " ");
    // A cloned repository chooses the names of its recipes, and bash runs commands in a name that it completes.
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@+,=%".contains(c);
    let values = values.unwrap_or_default().into_iter().filter(|(value, _)| value.chars().all(is_plain));
    let candidates = values.enumerate().map(|(at, (value, about))| {
        CompletionCandidate::new(value).help(Some(one_line(about).into())).display_order(Some(at))
    });
    candidates.collect()
}

fn newest_sessions() -> Result<Vec<(String, String)>, CliError> {
    let query = SessionQuery { has_prompt: true, limit: Some(SESSIONS_MAX), ..SessionQuery::default() };
    let listed = serve::with_store(&serve::paths(), |store| session_library::list(store, &query))?;
    let named = |header: Header| (header.session.to_string(), sessions::short_title(header.title.as_deref()));
    Ok(listed.sessions.into_iter().map(named).collect())
}

fn known_recipes() -> Result<Vec<(String, String)>, CliError> {
    let catalog = RecipeCatalog::load(&serve::working_directory()?, &serve::paths(), &[]);
    let recipes = catalog.recipes.iter().filter(|recipe| !recipe.hidden);
    Ok(recipes.map(|recipe| (recipe.id.clone(), recipe.description.clone())).collect())
}

/// The definition without the options and commands that clap adds.
fn documented() -> Command {
    groups::definition().disable_help_subcommand(true).disable_help_flag(true).disable_version_flag(true)
}

/// A command with its full name, such as `sessions show`.
struct NamedCommand {
    name: String,
    command: Command,
}

/// All commands, each followed by its subcommands.
fn all_commands() -> Vec<NamedCommand> {
    let mut root = documented();
    root.build();
    let mut commands = Vec::new();
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        commands.push(NamedCommand { name: name.to_owned(), command: command.clone() });
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            commands.push(NamedCommand { name: format!("{name} {}", sub.get_name()), command: sub.clone() });
        }
    }
    commands
}

// ── The man page ───────────────────────────────────────────────────────────────────────────────────

fn man() -> Result<i32, CliError> {
    let page = page().map_err(|error| terminal::cannot_write(&error))?;
    terminal::print(&String::from_utf8_lossy(&page)).map(|()| 0)
}

const FILES: &str = "\
~/.epitome/config.toml     your settings; `epitome config path` prints its path
~/.epitome/recipes         your recipes (slash commands)
~/.epitome/hooks           your hooks
.epitome                   settings, recipes and hooks of a repository
~/.local/share/epitome     sessions and what was learned about models
~/.local/state/epitome/log the log, a file per day

With EPITOME_HOME, or XDG_DATA_HOME and XDG_STATE_HOME, they are elsewhere.";

const EXAMPLES: &str = "\
epitome demo                             watch it work without a key
epitome run \"why does the build fail?\"   one prompt
epitome run --follow \"and on Windows?\"   the next one of the same session
git diff | epitome run \"review this\"
epitome compact --dry-run                what a compaction would keep
epitome sessions undo latest             undo it
epitome config check                     find mistakes in the settings";

const SEE_ALSO: &str = "bash(1), git(1), man(1)
The guide is in the directory docs of the source.";

/// Renders one page for all commands; clap_mangen would create one for each.
fn page() -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    // An empty date would be omitted, and the next field would take its position.
    let root = Man::new(documented()).title("EPITOME").date(" ").manual("User Commands");
    root.render_title(&mut out)?;
    root.render_name_section(&mut out)?;
    root.render_synopsis_section(&mut out)?;
    let mut heading = Roff::new();
    heading.control("SH", ["COMMANDS"]);
    heading.to_writer(&mut out)?;
    for NamedCommand { name, command } in all_commands() {
        command_section(&name, command, &mut out)?;
    }
    for (title, text) in [
        ("ENVIRONMENT AND EXIT STATUS", AFTER_HELP),
        ("FILES", FILES),
        ("EXAMPLES", EXAMPLES),
        ("SEE ALSO", SEE_ALSO),
    ] {
        let mut section = Roff::new();
        section.control("SH", [title]);
        preformatted(&mut section, text);
        section.to_writer(&mut out)?;
    }
    Ok(out)
}

fn command_section(name: &str, command: Command, out: &mut Vec<u8>) -> io::Result<()> {
    let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let mut section = Roff::new();
    section.control("SS", []);
    section.text([bold(format!("epitome {name}"))]);
    section.to_writer(&mut *out)?;
    let man = Man::new(command);
    let mut body = Vec::new();
    man.render_synopsis_section(&mut body)?;
    man.render_description_section(&mut body)?;
    man.render_options_section(&mut body)?;
    for line in String::from_utf8_lossy(&body).lines() {
        // The section of a command can't contain sections.
        let is_heading = line.starts_with(".SH ");
        out.extend(if is_heading { ".PP" } else { line }.bytes());
        out.push(b'\n');
    }
    let mut end = Roff::new();
    if let Some(after) = after {
        preformatted(&mut end, &after);
    }
    end.to_writer(out)
}

/// Adds text whose lines and indentation are preserved.
fn preformatted(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_are_completed_where_a_command_takes_one() {
        for NamedCommand { name, command } in all_commands() {
            let takes_session = ["sessions show", "sessions delete", "sessions inspect", "hooks log"];
            let first = command.get_positionals().next().and_then(completed_with);
            assert!(!takes_session.contains(&name.as_str()) || first.is_some(), "{name}");
            assert!(name != "sessions list" || first.is_none(), "{name}");
            for option in command.get_opts() {
                let takes_value = ["model", "recipe", "resume"].contains(&option.get_id().as_str());
                assert!(!takes_value || completed_with(option).is_some(), "{name} {option}");
            }
        }
        completed().debug_assert();
    }

    #[test]
    fn the_man_page_has_every_command_option_and_section() {
        let page = page().expect("memory can be written");
        let page = String::from_utf8(page).expect("it is text").replace("\\-", "-");
        for section in ["COMMANDS", "ENVIRONMENT AND EXIT STATUS", "FILES", "EXAMPLES", "SEE ALSO"] {
            assert!(page.contains(section), "{section}");
        }
        for NamedCommand { name, command } in all_commands() {
            assert!(page.contains(&format!("epitome {name}")), "{name}");
            for option in command.get_opts().filter(|arg| !arg.is_hide_set()) {
                let long = format!("--{}", option.get_long().expect("every option has a long name"));
                assert!(page.contains(&long), "{name} {long}");
            }
        }
    }
}
