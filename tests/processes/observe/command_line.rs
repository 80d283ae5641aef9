//! Shell completions and the man page, checked with the shells and formatters that read them.

use std::collections::HashMap;
use std::process::Command;

use regex::Regex;

use epitome_test_harness::user::User;

/// Commands that are programs of their own.
const PROGRAMS: [&str; 3] = ["ahp", "check", "import"];

/// The names of the built-in commands that `epitome --help` lists.
fn commands(user: &User) -> Vec<String> {
    let help = user.run(&["--help"]).ok();
    let groups = help.split("\nPrograms of their own:\n").next().expect("groups of commands");
    let commands = groups.lines().filter_map(|line| line.strip_prefix("  "));
    commands.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_has_help() {
    let user = User::new();
    let commands = commands(&user);
    assert!((15..=24).contains(&commands.len()), "{commands:?}");
    for program in PROGRAMS {
        assert!(user.run(&[program, "--help"]).ok().contains("Usage: "), "{program}");
    }
    for command in commands {
        let help = user.run(&[&command, "--help"]).ok();
        assert!(help.contains(&format!("Usage: epitome {command}")), "{help}");
        assert_eq!(user.run(&["help", &command]).ok(), help);
    }
}

/// The commands that a page shows in a `console` or `sh` block, or in backticks, split into words. Lines of a synopsis
/// (`undo|redo`, `[--json]`) are omitted, because they are not command lines.
fn commands_in(page: &str) -> Vec<Vec<String>> {
    let line = Regex::new(r"(?m)(?:^\$ |`|^)epitome ([^`\n#]+)").expect("well formed");
    let quoted = Regex::new("'[^']*'|\"[^\"]*\"").expect("well formed");
    let mut found = Vec::new();
    for line in line.captures_iter(page) {
        let line = quoted.replace_all(&line[1], "TEXT");
        let line = line.split("  ").next().unwrap_or_default();
        if line.contains(['|', '[', '\\', '…']) || line.contains("...") {
            continue;
        }
        found.push(line.split_whitespace().map(str::to_owned).collect());
    }
    found
}

/// Every option that the documentation shows is listed in the command's help.
#[test]
fn documented_commands_exist_with_their_options() {
    let user = User::new();
    let mut known = commands(&user);
    known.extend(PROGRAMS.map(str::to_owned));
    // Most commands are in the pages several times.
    let mut helps: HashMap<Vec<String>, String> = HashMap::new();
    let mut help_of = |command: &[&str]| {
        let key = command.iter().map(|word| (*word).to_owned()).collect();
        let help = || user.run(&[command, &["--help"]].concat()).ok();
        helps.entry(key).or_insert_with(help).clone()
    };
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["docs", "docs/operators", "docs/builders"].map(|folder| root.join(folder));
    let pages = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("there is a guide"));
    let pages = pages.map(|entry| entry.expect("it can be read").path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut count = 0;
    for page in pages.chain([root.join("README.md")]) {
        let text = std::fs::read_to_string(&page).expect("it is text");
        for words in commands_in(&text) {
            let place = format!("{}: epitome {}", page.display(), words.join(" "));
            let name = words[0].as_str();
            // Skips `epitome --help`, `epitome COMMAND --help`, and sentences that begin with the name.
            if !known.iter().any(|known| known == name) {
                let is_command = name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
                let has_option = words.iter().skip(1).any(|word| word.starts_with('-'));
                assert!(name.starts_with('-') || !is_command || !has_option, "{place}: no such command");
                continue;
            }
            count += 1;
            let group = help_of(&[name]);
            let is_group = group.contains("\nCommands:\n");
            let help = match words.get(1) {
                Some(sub) if is_group && !sub.starts_with('-') => help_of(&[name, sub]),
                _ => group,
            };
            let own = words.iter().take_while(|word| *word != "--");
            for option in own.filter(|word| word.starts_with('-') && word.len() > 1) {
                assert!(help.contains(option.as_str()), "{place}: no {option}");
            }
        }
    }
    assert!(count > 80, "only {count} command lines were found");
}

/// A user with one session, and its id.
fn user_with_session() -> (User, String) {
    let user = User::with_model(epitome_test_harness::agent::obey);
    user.run(&["run", "say one"]).ok();
    let session = user.session();
    (user, session)
}

/// A directory with the completions of a shell and the program.
fn completing(user: &User, shell: &str, file: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let script = user.run(&["completions", shell]).ok();
    std::fs::write(directory.path().join(file), script).expect("a file");
    std::os::unix::fs::symlink(epitome_test_harness::user::program(), directory.path().join("epitome"))
        .expect("a link");
    directory
}

/// The words that bash offers for the word at a position.
fn offered_by_bash(user: &User, words: &str, at: usize) -> Vec<String> {
    let directory = completing(user, "bash", "epitome.bash");
    let script = format!(
        "PATH={directory}:$PATH; source {directory}/epitome.bash; COMP_WORDS=({words}); COMP_CWORD={at}; COMP_TYPE=9\n\
         _clap_complete_epitome epitome \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        directory = directory.path().display()
    );
    let mut shell = Command::new("bash");
    shell.args(["--norc", "-c", &script]).current_dir(user.project());
    shell.env("HOME", user.home()).env("EPITOME_HOME", user.own());
    let output = shell.output().expect("bash is here");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn bash_completes_commands_flags_and_sessions() {
    let (user, session) = user_with_session();
    for (words, at, wanted) in [
        ("epitome se", 1, "sessions"),
        ("epitome sessions ex", 2, "export"),
        ("epitome run --fo", 2, "--follow"),
        ("epitome run --mode re", 3, "read_only"),
        ("epitome sessions show s_", 3, &session),
        ("epitome compact --resume s_", 3, &session),
    ] {
        let offered = offered_by_bash(&user, words, at);
        assert!(offered.iter().any(|word| word == wanted), "{words}: {offered:?}");
    }
}

/// Runs a shell or formatter and returns its output; prints a message and returns `None` if it is not installed.
fn shell(name: &str, arguments: &[&str]) -> Option<String> {
    if Command::new(name).arg("--version").output().is_err() {
        eprintln!("left out: there is no {name} on this user");
        return None;
    }
    // `timeout` ends a shell that hangs.
    let output = Command::new("timeout").arg("60").arg(name).args(arguments).output().expect("it is there");
    Some(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

/// Regression: `--resume` was offered after every command, even those without that flag.
#[test]
fn fish_completes_commands_flags_and_sessions() {
    let (user, session) = user_with_session();
    let directory = completing(&user, "fish", "epitome.fish");
    let at = directory.path().display();
    let setting = format!("set -x EPITOME_HOME {}; set -x PATH {at} $PATH", user.own().display());
    for (line, wanted, unwanted) in [
        ("epitome se", "sessions\t", "daemon"),
        ("epitome sessions ex", "export\t", "show"),
        ("epitome run --fo", "--follow\t", "--force"),
        ("epitome run --mode re", "read_only", "full"),
        ("epitome sessions show ", &session, "list"),
        ("epitome compact --resume ", &session, "--model"),
        ("epitome daemon status --", "--json\t", "--resume"),
        ("epitome sessions undo s_123 --", "--json\t", "--resume"),
    ] {
        let script = format!("{setting}; source {at}/epitome.fish; complete -C '{line}'");
        let Some(printed) = shell("fish", &["--no-config", "-c", &script]) else { return };
        assert!(printed.contains(wanted) && !printed.contains(unwanted), "{line}: {printed}");
    }
}

/// A user types a line and presses Tab, in a pseudo-terminal.
#[test]
fn zsh_completes_commands_flags_and_sessions() {
    let (user, session) = user_with_session();
    let directory = completing(&user, "zsh", "_epitome");
    let (at, own) = (directory.path().display(), user.own());
    let own = own.display();
    for (line, wanted) in [
        ("epitome se", "List, search, export and delete sessions"),
        ("epitome sessions ", "Export a session to a file"),
        ("epitome run --m", "PROVIDER/NAME"),
        ("epitome run --mode ", "accept_edits"),
        ("epitome sessions show ", &session),
        ("epitome compact --resume ", &session),
    ] {
        // Each step waits for the output of the previous one; `timeout` ends the script if it never appears.
        let script = format!(
            "zmodload zsh/zpty; zpty z zsh -f -i; zpty -w z \"TERM=dumb; export EPITOME_HOME={own}; path=({at} \\$path); stty cols 200\"\n\
             zpty -w z \"fpath=({at} \\$fpath); autoload -Uz compinit; compinit -u -d {at}/dump\"\n\
             zpty -w z \"bindkey '^X' list-choices; print REA\"'\"\"DY'\n\
             zpty -r z out '*READY*'; zpty -n -w z '{line}'$'\\x18'; zpty -r z out '*{wanted}*' && print FOUND\n"
        );
        let Some(printed) = shell("zsh", &["-f", "-c", &script]) else { return };
        assert!(printed.contains("FOUND"), "{line}: {printed}");
    }
}

/// The name of a recipe that a shell must not expand.
const COMMAND_AS_NAME: &str = "$(touch${IFS}RAN)`touch${IFS}RAN`";

/// Regression: Tab ran the commands in the names of a cloned repository's recipes. Such names are not offered.
#[test]
fn a_shell_runs_no_command_in_the_name_of_a_recipe() {
    let user = User::new();
    user.write(format!("project/.epitome/recipes/{COMMAND_AS_NAME}.md"), "Do it.");
    user.write("project/.epitome/recipes/plain.md", "Do it.");
    let offered = offered_by_bash(&user, "epitome recipes show ''", 3);
    assert!(offered.iter().any(|name| name == "plain"), "{offered:?}");
    assert!(!offered.iter().any(|name| name.contains("touch")), "{offered:?}");
    assert!(!user.project().join("RAN").exists());
}

/// The page must not cause warnings of a formatter, and must contain the expected sections.
#[test]
fn man_shows_the_page_without_a_word_of_complaint() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let page = directory.path().join("epitome.1");
    std::fs::write(&page, User::new().run(&["completions", "man"]).ok()).expect("a file");
    let page = page.to_str().expect("it is text");
    let Some(printed) = shell("groff", &["-ww", "-man", "-Tascii", page]) else { return };
    // Removes the overstriking of bold letters.
    let overstruck = Regex::new("\\x1b\\[[0-9;]*m|.\\x08").expect("well formed");
    let plain = overstruck.replace_all(&printed, "");
    for wanted in ["epitome sessions export", "EXIT STATUS", "ANTHROPIC_API_KEY"] {
        assert!(plain.contains(wanted), "{plain}");
    }
    assert!(!printed.contains("warning:") && !printed.contains("error:"), "{printed}");
}

#[test]
fn completions_and_the_man_page_have_all_commands() {
    let user = User::new();
    let text = user.run(&["completions", "man"]).ok().replace("\\-", "-");
    let offered = offered_by_bash(&user, "epitome ''", 1);
    for command in commands(&user) {
        assert!(text.contains(&command), "the page has no {command}");
        assert!(offered.contains(&command), "{command} is not offered: {offered:?}");
    }
}
