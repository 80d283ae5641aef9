//! `epitome completions` and `epitome man`: made from the definition of the command line when they are asked for.

use std::fmt::Write as _;
use std::io;

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{AFTER_HELP, Cli, CliError, serve, sessions, terminal};
use crate::session_library;
use crate::store::Store;

/// The newest sessions that a shell offers.
const SESSIONS_MAX: usize = 100;

/// What completion scripts call for the ids of sessions.
pub const COMPLETE: &str = "__complete";

/// Values with these names are ids of sessions.
const ID_NAMES: [&str; 2] = ["ID", "SESSION"];

/// Print shell completions, which also complete session IDs
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

/// The newest sessions, one per line: the id, a tab, the title.
pub fn complete_sessions() -> Result<i32, CliError> {
    let store = Store::new(&serve::paths());
    let listed = session_library::list(&store, None, session_library::SessionFilter::Prompted);
    store.settle();
    let mut lines = String::new();
    for header in listed?.sessions.into_iter().take(SESSIONS_MAX) {
        let title = sessions::short_title(header.title.as_deref());
        // A tab or a newline would end the field or the line.
        let title: String = title.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(lines, "{}\t{title}", header.session);
    }
    terminal::print(&lines).map(|()| 0)
}

/// The definition without what clap adds to every command.
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

fn takes_id(arg: &Arg) -> bool {
    arg.get_value_names().is_some_and(|names| names.iter().any(|name| ID_NAMES.contains(&name.as_str())))
}

/// The commands whose first positional argument is the id of a session.
fn commands_with_id() -> Vec<String> {
    let has_id = |command: &Command| command.get_positionals().next().is_some_and(takes_id);
    all_commands().into_iter().filter(|named| has_id(&named.command)).map(|named| named.name).collect()
}

/// The spellings of an option, as they are typed.
fn spellings(arg: &Arg) -> Vec<String> {
    let long = arg.get_long_and_visible_aliases().unwrap_or_default();
    let short = arg.get_short_and_visible_aliases().unwrap_or_default();
    let long = long.into_iter().map(|name| format!("--{name}"));
    long.chain(short.into_iter().map(|name| format!("-{name}"))).collect()
}

fn bash() -> String {
    let mut options: Vec<String> = Vec::new();
    for NamedCommand { command, .. } in all_commands() {
        options.extend(command.get_opts().filter(|arg| takes_id(arg)).flat_map(spellings));
    }
    options.sort();
    options.dedup();
    let options = options.join("|");
    let lines = commands_with_id().iter().map(|line| format!("\"{line}\"")).collect::<Vec<_>>().join("|");
    format!(
        r#"{}
_epitome_or_session() {{
    local before="${{COMP_WORDS[COMP_CWORD-1]}}" line="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" ids=""
    case "$before" in {options}) ids=1 ;; esac
    case "$line" in {lines}) ids=1 ;; esac
    COMPREPLY=()
    if [[ -n "$ids" ]]; then
        COMPREPLY=($(compgen -W "$(epitome {COMPLETE} sessions 2>/dev/null | cut -f1)" -- "${{COMP_WORDS[COMP_CWORD]}}"))
    fi
    [[ ${{#COMPREPLY[@]}} -gt 0 ]] || _epitome "$@"
}}

complete -F _epitome_or_session -o bashdefault -o default epitome
"#,
        generated(Shell::Bash)
    )
}

fn zsh() -> String {
    let mut text = generated(Shell::Zsh);
    for name in ID_NAMES {
        text = text.replace(&format!(":{name}:_default"), &format!(":{name}:_epitome_sessions"));
    }
    let sessions = format!(
        r#"_epitome_sessions() {{
    local -a found
    local line
    for line in ${{(f)"$(epitome {COMPLETE} sessions 2>/dev/null)"}}; do
        found+=("${{line%%$'\t'*}}:${{${{line#*$'\t'}}//:/\\:}}")
    done
    _describe -V session found
}}

"#
    );
    text.replacen("_epitome() {", &format!("{sessions}_epitome() {{"), 1)
}

fn fish() -> String {
    let mut text = generated(Shell::Fish);
    let ids = format!("-k -a \"(epitome {COMPLETE} sessions 2>/dev/null)\"");
    for name in commands_with_id() {
        let _ = writeln!(text, "complete -c epitome -n \"{}\" -f {ids}", fish_condition(&name));
    }
    for NamedCommand { name, command } in all_commands() {
        for option in command.get_opts().filter(|arg| takes_id(arg)).flat_map(spellings) {
            let option = match option.strip_prefix("--") {
                Some(long) => format!("-l {long}"),
                None => format!("-s {}", option.trim_start_matches('-')),
            };
            let condition = fish_condition(&name);
            let _ = writeln!(text, "complete -c epitome -n \"{condition}\" {option} -x {ids}");
        }
    }
    text
}

/// A condition that holds after this command. Its functions are defined by the generated script.
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

/// One page for all commands, where clap_mangen alone would make a page for each.
fn page() -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    // An empty date would be left out, and what follows would take its place.
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
    let mut end = Roff::new();
    end.control("SH", ["ENVIRONMENT AND EXIT STATUS"]);
    preformatted(&mut end, AFTER_HELP);
    end.to_writer(&mut out)?;
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
        // The section of a command has no sections of its own.
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

/// Text whose lines and indentation stay as they are.
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
        let commands = commands_with_id();
        for command in ["sessions show", "sessions delete", "inspect", "hooks log"] {
            assert!(commands.iter().any(|known| known == command), "{command}");
        }
        assert!(!commands.iter().any(|command| command == "sessions list"));
        assert!(bash().contains("--conversation-id|--resume|--session|-c)"));
        assert!(zsh().contains("ID:_epitome_sessions") && !zsh().contains(":ID:_default"));
        assert!(
            fish().contains("__fish_epitome_using_subcommand sessions; and __fish_seen_subcommand_from show")
        );
    }

    #[test]
    fn the_man_page_has_every_command_and_option() {
        let page = page().expect("memory can be written");
        let page = String::from_utf8(page).expect("it is text").replace("\\-", "-");
        for NamedCommand { name, command } in all_commands() {
            assert!(page.contains(&format!("epitome {name}")), "{name}");
            for option in command.get_opts().filter(|arg| !arg.is_hide_set()) {
                let long = format!("--{}", option.get_long().expect("every option has a long name"));
                assert!(page.contains(&long), "{name} {long}");
            }
        }
    }
}
