//! `epitome completions` and `epitome man`: generated on request from the definition of the command line.

use std::fmt::Write as _;
use std::io;

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{AFTER_HELP, Cli, CliError, serve, sessions, terminal};
use crate::recipe::catalog::RecipeCatalog;
use crate::session_library;
use crate::store::{Header, SessionQuery};

/// Maximum number of sessions that a shell offers, newest first.
const SESSIONS_MAX: usize = 100;

/// The internal command that completion scripts call for values.
pub const COMPLETE: &str = "__complete";

/// Values that shells complete by calling this program: the kind of value, and the names of such values in the help.
const COMPLETED: [(&str, &[&str]); 3] =
    [("sessions", &["ID", "SESSION"]), ("models", &["MODEL"]), ("recipes", &["RECIPE"])];

/// Print shell completions
///
/// They also complete sessions, models and recipes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Install them with one of:
  epitome completions bash > ~/.local/share/bash-completion/completions/epitome
  epitome completions zsh  > DIR/_epitome    (DIR is a directory of $fpath)
  epitome completions fish > ~/.config/fish/completions/epitome.fish")]
pub struct CompletionsArgs {
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

pub fn completions(args: CompletionsArgs) -> Result<i32, CliError> {
    let text = match args.shell.as_str() {
        "bash" => bash(),
        "zsh" => zsh(),
        _ => fish(),
    };
    terminal::print(&text).map(|()| 0)
}

/// Prints the values that a shell offers, one per line: the value, a tab, a description.
pub fn complete(what: &str) -> Result<i32, CliError> {
    let values = match what {
        "sessions" => newest_sessions()?,
        "models" => super::models::names()?,
        "recipes" => known_recipes()?,
        _ => Vec::new(),
    };
    let mut lines = String::new();
    for (value, about) in values {
        // Names of files and models may contain anything; shells can't offer these.
        if value.contains(char::is_control) {
            continue;
        }
        // A tab or a newline would end the field or the line.
        let about: String = about.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(lines, "{value}\t{about}");
    }
    terminal::print(&lines).map(|()| 0)
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
    Cli::command().disable_help_subcommand(true).disable_help_flag(true).disable_version_flag(true)
}

// ── Completions ────────────────────────────────────────────────────────────────────────────────────

fn generated(shell: Shell) -> String {
    let mut root = visible(&Cli::command().disable_help_subcommand(true));
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut root, "epitome", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// A command without its hidden options and subcommands, which clap_complete would offer.
fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(visible);
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .args(arguments)
        .subcommands(subcommands)
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
        for sub in command.get_subcommands() {
            commands.push(NamedCommand { name: format!("{name} {}", sub.get_name()), command: sub.clone() });
        }
    }
    commands
}

/// Returns the kind of values that this program completes for an argument, if any.
fn completed_with(arg: &Arg) -> Option<&'static str> {
    let is_named = |known: &[&str]| {
        arg.get_value_names().is_some_and(|names| names.iter().any(|name| known.contains(&name.as_str())))
    };
    COMPLETED.into_iter().find(|(_, names)| is_named(names)).map(|(what, _)| what)
}

/// Returns the commands whose first positional argument is completed with this kind of values.
fn commands_with(what: &str) -> Vec<String> {
    let has = |command: &Command| command.get_positionals().next().and_then(completed_with) == Some(what);
    all_commands().into_iter().filter(|named| has(&named.command)).map(|named| named.name).collect()
}

/// Returns the options that are completed with this kind of values, in all spellings, each with its command.
fn options_with(what: &str) -> Vec<(String, String)> {
    let of_command = |NamedCommand { name, command }: NamedCommand| -> Vec<(String, String)> {
        let options = command.get_opts().filter(|arg| completed_with(arg) == Some(what));
        options.flat_map(spellings).map(|option| (name.clone(), option)).collect()
    };
    all_commands().into_iter().flat_map(of_command).collect()
}

/// Returns the spellings of an option on the command line.
fn spellings(arg: &Arg) -> Vec<String> {
    let long = arg.get_long_and_visible_aliases().unwrap_or_default();
    let short = arg.get_short_and_visible_aliases().unwrap_or_default();
    let long = long.into_iter().map(|name| format!("--{name}"));
    long.chain(short.into_iter().map(|name| format!("-{name}"))).collect()
}

fn bash() -> String {
    let mut cases = String::new();
    for (what, _) in COMPLETED {
        let mut options: Vec<String> = options_with(what).into_iter().map(|(_, option)| option).collect();
        options.sort();
        options.dedup();
        let lines: Vec<String> = commands_with(what).iter().map(|line| format!("\"{line}\"")).collect();
        for (word, patterns) in [("before", options), ("line", lines)] {
            if !patterns.is_empty() {
                let _ =
                    writeln!(cases, "    case \"${word}\" in {}) what={what} ;; esac", patterns.join("|"));
            }
        }
    }
    format!(
        r#"{}
_epitome_or_value() {{
    local before="${{COMP_WORDS[COMP_CWORD-1]}}" line="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" what=""
{cases}    COMPREPLY=()
    if [[ -n "$what" ]]; then
        # Not `compgen -W`, which expands its words: a repository chooses the names of its recipes.
        local word
        while IFS=$'\t' read -r word _; do
            [[ "$word" == "${{COMP_WORDS[COMP_CWORD]}}"* ]] && COMPREPLY+=("$(printf %q "$word")")
        done < <(epitome {COMPLETE} "$what" 2>/dev/null)
    fi
    [[ ${{#COMPREPLY[@]}} -gt 0 ]] || _epitome "$@"
}}

complete -F _epitome_or_value -o bashdefault -o default epitome
"#,
        generated(Shell::Bash)
    )
}

fn zsh() -> String {
    let mut text = generated(Shell::Zsh);
    let mut functions = String::new();
    for (what, names) in COMPLETED {
        for name in names {
            text = text.replace(&format!(":{name}:_default"), &format!(":{name}:_epitome_{what}"));
        }
        for NamedCommand { command, .. } in all_commands() {
            for arg in command.get_positionals().filter(|arg| completed_with(arg) == Some(what)) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let described = format!(":{} -- {help}:_", arg.get_id());
                text = text.replace(&format!("{described}default"), &format!("{described}epitome_{what}"));
            }
        }
        let _ = write!(
            functions,
            r#"_epitome_{what}() {{
    local -a found
    local line
    for line in ${{(f)"$(epitome {COMPLETE} {what} 2>/dev/null)"}}; do
        found+=("${{${{line%%$'\t'*}}//:/\\:}}:${{${{line#*$'\t'}}//:/\\:}}")
    done
    _describe -V {what} found
}}

"#
        );
    }
    text.replacen("_epitome() {", &format!("{functions}_epitome() {{"), 1)
}

fn fish() -> String {
    let mut text = generated(Shell::Fish);
    for (what, _) in COMPLETED {
        let values = format!("-k -a \"(epitome {COMPLETE} {what} 2>/dev/null)\"");
        for name in commands_with(what) {
            let _ = writeln!(text, "complete -c epitome -n \"{}\" -f {values}", fish_condition(&name));
        }
        for (name, option) in options_with(what) {
            let option = match option.strip_prefix("--") {
                Some(long) => format!("-l {long}"),
                None => format!("-s {}", option.trim_start_matches('-')),
            };
            let condition = fish_condition(&name);
            let _ = writeln!(text, "complete -c epitome -n \"{condition}\" {option} -x {values}");
        }
    }
    text
}

/// Returns a condition that is true after this command. Its functions are defined by the generated script.
fn fish_condition(name: &str) -> String {
    match name.split_once(' ') {
        None => format!("__fish_epitome_using_subcommand {name}"),
        Some((group, sub)) => {
            format!("__fish_epitome_using_subcommand {group}; and __fish_seen_subcommand_from {sub}")
        }
    }
}

// ── The man page ───────────────────────────────────────────────────────────────────────────────────

pub fn man() -> Result<i32, CliError> {
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
epitome undo                             undo it
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
        let commands = commands_with("sessions");
        for command in ["sessions show", "sessions delete", "inspect", "hooks log"] {
            assert!(commands.iter().any(|known| known == command), "{command}");
        }
        assert!(!commands.iter().any(|command| command == "sessions list"));
        assert!(bash().contains("--conversation-id|--resume|--session|-c) what=sessions"));
        assert!(
            bash().contains("in --model) what=models") && bash().contains("in --recipe|-r) what=recipes")
        );
        assert_eq!(commands_with("recipes"), ["recipes show", "recipes render"]);
        assert!(zsh().contains("ID:_epitome_sessions") && !zsh().contains(":ID:_default"));
        assert!(
            fish().contains("__fish_epitome_using_subcommand sessions; and __fish_seen_subcommand_from show")
        );
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
