//! The definition of the command line, and helpers for tests of commands.

use clap::error::ErrorKind;

use super::*;

/// Parses what a user types after `epitome`.
pub fn parsed(line: &[&str]) -> Cli {
    let words = std::iter::once("epitome").chain(line.iter().copied());
    Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// Checks that a command line is refused, and that the error has this text.
pub fn usage_error(line: &[&str], expected: &str) {
    let words = std::iter::once("epitome").chain(line.iter().copied());
    match Cli::try_parse_from(words) {
        Ok(cli) => panic!("{line:?} was accepted: {cli:?}"),
        Err(error) => {
            let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
            let text = groups::usage_text(&error, &arguments);
            assert_eq!(error.exit_code(), 2, "{line:?}: {text}");
            assert!(text.contains(expected), "{line:?}: {text}");
        }
    }
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_later_option_overrides_an_earlier_one() {
    parsed(&["run", "--model", "anthropic/a", "--json", "--model", "openai/b", "--json", "x"]);
}

#[test]
fn the_short_way_to_the_front_end_reads_its_arguments_in_the_same_way() {
    for line in [
        &["acp"][..],
        &["acp", "--standalone", "--transcript", "t.jsonl", "--model", "a/b", "--model", "c/d"],
        &["acp", "--remote", "wss://build.example:4711", "--tls-ca", "ca.pem"],
        &["acp", "--listen", "127.0.0.1:1", "--allow-origin", "https://a.example"],
    ] {
        let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
        let args = front_end_arguments(&arguments).unwrap_or_else(|| panic!("{line:?} is refused"));
        assert_eq!(format!("{:?}", CliCommand::Acp(args)), format!("{:?}", parsed(line).command));
    }
    // The complete definition has the error texts, and the help.
    for line in [&["acp", "--standalon"][..], &["acp", "--help"], &["run", "x"], &[]] {
        let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
        assert!(front_end_arguments(&arguments).is_none(), "{line:?}");
    }
}

#[test]
fn an_option_of_a_subcommand_may_precede_it() {
    for (line, names) in [
        (["hooks", "--json", "list"], ["hooks", "list"]),
        (["hooks", "--json", "log"], ["hooks", "log"]),
        (["daemon", "--json", "status"], ["daemon", "status"]),
        (["daemon", "status", "--json"], ["daemon", "status"]),
    ] {
        let matches = Cli::command().get_matches_from(std::iter::once("epitome").chain(line));
        let found = names.iter().try_fold(&matches, |matches, name| matches.subcommand_matches(name));
        assert!(found.expect("the subcommand").get_flag("json"), "{line:?}");
    }
}

#[test]
fn a_typo_is_answered_with_what_was_probably_meant() {
    for (line, meant) in [
        (&["sesions", "list"][..], "'sessions'"),
        (&["rnu", "x"], "'run'"),
        (&["run", "--folow", "x"], "'--follow'"),
        // Clap takes this for `--mode`.
        (&["run", "--modle", "a/b"], "'--model'"),
        (&["run", "--mode", "reed_only", "x"], "'read_only'"),
        (&["sessions", "lst"], "'list'"),
        (&["undo"], "'sessions undo'"),
        (&["policy", "show"], "'store policy'"),
    ] {
        usage_error(line, &format!("did you mean {meant}?"));
    }
}

#[test]
fn every_command_explains_itself() {
    fn check(command: &clap::Command) {
        let name = command.get_bin_name().unwrap_or_default().to_owned();
        assert!(command.get_about().is_some(), "{name} has no description");
        for option in command.get_opts().filter(|option| !option.is_hide_set()) {
            assert!(option.get_help().is_some(), "{name} {option}");
        }
        let help = command.clone().render_long_help().to_string();
        let after = [command.get_after_help(), command.get_after_long_help()].into_iter().flatten();
        let after = after.map(ToString::to_string).collect::<String>();
        for line in help.lines().chain(after.lines()) {
            assert!(line.chars().count() <= HELP_COLUMNS_MAX, "{name}: {line}");
        }
        command.get_subcommands().for_each(check);
    }
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    check(&root);
    for help in ["--help", "-h"] {
        let error = Cli::try_parse_from(["epitome", "run", help]).expect_err("help is not a command");
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::DisplayHelp, 0));
    }
}
