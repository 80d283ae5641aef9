//! The program's help with its commands in groups, and the help that a usage error refers to.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory as _};

use super::Cli;
use super::helper::PROGRAMS;
use crate::problem::nearest;

/// The groups of the help, with their commands in order. Add new commands here.
pub const GROUPS: [(&str, &[&str]); 4] = [
    ("Start", &["demo", "login", "logout", "doctor", "models", "config"]),
    ("Work", &["acp", "run", "sessions", "compact", "store", "serve", "token"]),
    ("Extend", &["recipes", "hooks", "agents", "plugins", "mcp", "memory", "inventory"]),
    ("Maintain", &["daemon", "bug-report", "completions"]),
];

/// Whether a command line begins with an option or a command of this program.
pub fn is_built_in(arguments: &[OsString]) -> bool {
    let first = arguments.first().and_then(|first| first.to_str()).unwrap_or("-");
    first.starts_with('-') || first == "help" || Cli::command().find_subcommand(first).is_some()
}

/// Returns the definition of the command line.
pub fn definition() -> Command {
    let root = Cli::command();
    let groups = groups(&root);
    root.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}

fn groups(root: &Command) -> String {
    let width = root.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or_default();
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "{group}:");
        for name in names {
            let about = root.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name:width$}  {about}");
        }
        text.push('\n');
    }
    text.push_str("Programs of their own:\n");
    for (name, _, about) in PROGRAMS {
        let _ = writeln!(text, "  {name:width$}  {about}");
    }
    text.push('\n');
    text
}

/// Returns the command line that prints the help for these arguments.
pub fn help_of(arguments: &[OsString]) -> String {
    let mut root = Cli::command();
    root.build();
    format!("{} --help", command_of(&root, arguments).get_bin_name().unwrap_or("epitome"))
}

fn command_of<'a>(root: &'a Command, arguments: &[OsString]) -> &'a Command {
    let words = arguments.iter().filter_map(|argument| argument.to_str());
    words.fold(root, |command, word| command.find_subcommand(word).unwrap_or(command))
}

/// Formats a usage error: what is wrong, what was probably meant, and which help to read.
pub fn usage_text(error: &clap::Error, arguments: &[OsString]) -> String {
    let tip = meant(error, arguments).map(|word| format!("  tip: did you mean '{word}'?\n\n"));
    let hint = format!("{}hint: {}", tip.unwrap_or_default(), help_of(arguments));
    error.render().to_string().replace("For more information, try '--help'.", &hint)
}

/// Returns the word that was probably meant. Clap would suggest `--modle` for `--mode`.
fn meant(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let context = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let root = Cli::command();
    let command = command_of(&root, arguments);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = context(ContextKind::InvalidSubcommand)?;
            let has_it = |group: &&str| {
                command.find_subcommand(group).is_some_and(|group| group.find_subcommand(&typed).is_some())
            };
            if let Some(group) = ["sessions", "store"].into_iter().find(has_it) {
                return Some(format!("{group} {typed}"));
            }
            let known = command.get_subcommands().filter(|command| !command.is_hide_set());
            let programs = PROGRAMS.iter().map(|(name, ..)| *name);
            nearest(&typed, known.map(Command::get_name).chain(programs)).map(str::to_owned)
        }
        ErrorKind::UnknownArgument => {
            let typed = context(ContextKind::InvalidArg)?;
            let known = command.get_opts().filter(|option| !option.is_hide_set());
            let near = nearest(typed.strip_prefix("--")?, known.filter_map(|option| option.get_long()))?;
            Some(format!("--{near}"))
        }
        ErrorKind::InvalidValue => {
            let Some(ContextValue::Strings(known)) = error.get(ContextKind::ValidValue) else { return None };
            nearest(&context(ContextKind::InvalidValue)?, known.iter().map(String::as_str)).map(str::to_owned)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum length of a description: about six words, so that the list can be read at a glance.
    const ABOUT_CHARS_MAX: usize = 48;

    #[test]
    fn every_command_is_in_one_group_with_a_short_description() {
        let root = definition();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut known: Vec<&str> =
            root.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name).collect();
        grouped.sort_unstable();
        known.sort_unstable();
        assert_eq!(grouped, known, "a new command needs a line in GROUPS");
        for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(
                (10..=ABOUT_CHARS_MAX).contains(&about.chars().count()),
                "{}: {about}",
                command.get_name()
            );
        }
        let help = definition().render_help().to_string();
        assert!(help.contains("\nStart:\n  demo ") && help.contains("\nMaintain:\n  daemon "), "{help}");
    }

    /// Every usage error referred to the help of the program instead of the command.
    #[test]
    fn a_usage_error_points_to_the_help_of_its_command() {
        for (line, help) in [
            ("run --modle x", "epitome run --help"),
            ("sessions show --wild", "epitome sessions show --help"),
            ("--json sessions lst", "epitome sessions --help"),
            ("nonsense", "epitome --help"),
            ("", "epitome --help"),
        ] {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(help_of(&arguments), help, "{line}");
        }
    }
}
