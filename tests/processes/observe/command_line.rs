//! Shell completions and the man page, checked with the shells and formatters that read them.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use regex::Regex;

use epitome_test_harness::user::User;

/// The names of the commands that `epitome --help` lists.
fn commands(user: &User) -> Vec<String> {
    let help = user.run(&["--help"]).ok();
    let groups = help.split("\nOptions:\n").next().expect("groups of commands");
    let commands = groups.lines().filter_map(|line| line.strip_prefix("  "));
    commands.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_has_help() {
    let user = User::new();
    let commands = commands(&user);
    assert!(commands.len() > 20, "{commands:?}");
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
    let known = commands(&user);
    // Most commands are in the pages several times.
    let mut helps: HashMap<Vec<String>, String> = HashMap::new();
    let mut help_of = |command: &[&str]| {
        let key = command.iter().map(|word| (*word).to_owned()).collect();
        let help = || user.run(&[command, &["--help"]].concat()).ok();
        helps.entry(key).or_insert_with(help).clone()
    };
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = std::fs::read_dir(root.join("docs")).expect("there is a guide");
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

/// Runs a script with bash; returns whether it succeeded, and its output.
fn bash(script: &str) -> (bool, String) {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut bash = bash.spawn().expect("bash is here");
    let mut stdin = bash.stdin.take().expect("it is a pipe");
    stdin.write_all(script.as_bytes()).expect("it reads");
    drop(stdin);
    let output = bash.wait_with_output().expect("it ends");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn bash_completes_commands_flags_and_sessions() {
    let completions = User::new().run(&["completions", "bash"]).ok();
    let (is_read, printed) = bash(&format!("bash -n <<'EPITOME_END'\n{completions}\nEPITOME_END\n"));
    assert!(is_read, "{printed}");
    for (words, at, wanted) in [
        ("epitome se", 1, "sessions"),
        ("epitome sessions ex", 2, "export"),
        ("epitome run --fo", 2, "--follow"),
        ("epitome run --mode re", 3, "read_only"),
        ("epitome sessions show s_1", 3, "s_123"),
        ("epitome compact --resume s_", 3, "s_123"),
        ("epitome run --model s_", 3, "s_123"),
        ("epitome recipes show s_", 3, "s_123"),
    ] {
        let script = format!(
            "{completions}\nepitome() {{ printf 's_123\\tThe build\\n'; }}\nCOMP_WORDS=({words})\nCOMP_CWORD={at}\n\
             _epitome_or_value epitome \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        );
        let (_, printed) = bash(&script);
        assert!(printed.lines().any(|line| line == wanted), "{words}: {printed}");
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

/// A directory with the completions of a shell and a program named `epitome` that lists one session.
fn completing(completions: &str, file: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a scratch directory");
    std::fs::write(directory.path().join(file), completions).expect("a file");
    let program = directory.path().join("epitome");
    std::fs::write(&program, "#!/bin/sh\nprintf 's_123\\tThe: build\\n'\n").expect("a file");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    directory
}

/// Regression: `--resume` was offered after every command, even those without that flag.
#[test]
fn fish_completes_commands_flags_and_sessions() {
    let directory = completing(&User::new().run(&["completions", "fish"]).ok(), "epitome.fish");
    let at = directory.path().display();
    for (line, wanted, unwanted) in [
        ("epitome se", "sessions\t", "daemon"),
        ("epitome sessions ex", "export\t", "show"),
        ("epitome run --fo", "--follow\t", "--force"),
        ("epitome run --mode re", "read_only", "full"),
        ("epitome sessions show ", "s_123\tThe: build", "list"),
        ("epitome compact --resume ", "s_123\tThe: build", "--model"),
        ("epitome daemon status --", "--json\t", "--resume"),
        ("epitome sessions undo s_123 --", "--json\t", "--resume"),
    ] {
        let script = format!("set -x PATH {at} $PATH; source {at}/epitome.fish; complete -C '{line}'");
        let Some(printed) = shell("fish", &["--no-config", "-c", &script]) else { return };
        assert!(printed.contains(wanted) && !printed.contains(unwanted), "{line}: {printed}");
    }
}

/// A user types a line and presses Tab, in a pseudo-terminal.
#[test]
fn zsh_completes_commands_flags_and_sessions() {
    let directory = completing(&User::new().run(&["completions", "zsh"]).ok(), "_epitome");
    let at = directory.path().display();
    for (line, wanted) in [
        ("epitome se", "List, search, export and delete sessions"),
        ("epitome sessions ", "Export a session to a file"),
        ("epitome run --m", "PROVIDER/NAME"),
        ("epitome run --mode ", "accept_edits"),
        ("epitome sessions show ", "s_123*The: build"),
        ("epitome compact --resume ", "s_123*The: build"),
    ] {
        // Each step waits for the output of the previous one; `timeout` ends the script if it never appears.
        let script = format!(
            "zmodload zsh/zpty; zpty z zsh -f -i; zpty -w z \"TERM=dumb; path=({at} \\$path); stty cols 200\"\n\
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

/// Regression: Tab ran the commands in the names of a cloned repository's recipes, because `compgen -W` expands its
/// words.
#[test]
fn bash_runs_no_command_in_the_name_of_a_recipe() {
    let user = User::new();
    user.write(format!("project/.epitome/recipes/{COMMAND_AS_NAME}.md"), "Do it.");
    let program = epitome_test_harness::user::program();
    let script = format!(
        "{}\nepitome() {{ '{}' \"$@\"; }}\nCOMP_WORDS=(epitome recipes show '$')\nCOMP_CWORD=3\n\
         _epitome_or_value epitome '$' show\neval \"printf '%s\\n' ${{COMPREPLY[*]}}\"\n",
        user.run(&["completions", "bash"]).ok(),
        program.display()
    );
    let mut shell = Command::new("bash");
    shell.args(["--norc", "-c", &script]).current_dir(user.project());
    shell.env("HOME", user.home()).env("EPITOME_HOME", user.own());
    let output = shell.output().expect("bash is here");
    // The shell reads the offered word as the name.
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{COMMAND_AS_NAME}\n"), "{output:?}");
    assert!(!user.project().join("RAN").exists());
}

/// Like the previous one.
#[test]
fn fish_runs_no_command_in_the_name_of_a_recipe() {
    let directory = completing(&User::new().run(&["completions", "fish"]).ok(), "epitome.fish");
    let at = directory.path().display();
    let program = format!("#!/bin/sh\nprintf '%s\\tAbout\\n' '{COMMAND_AS_NAME}'\n");
    std::fs::write(directory.path().join("epitome"), program).expect("a file");
    let script = format!(
        "cd {at}; set -x PATH {at} $PATH; source {at}/epitome.fish; complete -C 'epitome recipes show '"
    );
    let Some(printed) = shell("fish", &["--no-config", "-c", &script]) else { return };
    assert!(printed.contains(COMMAND_AS_NAME), "{printed}");
    assert!(!directory.path().join("RAN").exists(), "{printed}");
}

/// The page must not cause warnings of a formatter, and must contain the expected sections.
#[test]
fn man_shows_the_page_without_a_word_of_complaint() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let page = directory.path().join("epitome.1");
    std::fs::write(&page, User::new().run(&["man"]).ok()).expect("a file");
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
    for arguments in
        [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"], &["man"]]
    {
        let text = user.run(arguments).ok().replace("\\-", "-");
        for command in commands(&user) {
            assert!(text.contains(&command), "{arguments:?} have no {command}");
        }
    }
}
