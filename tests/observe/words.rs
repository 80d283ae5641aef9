//! The table of words against what each `--help` says, and what is made of it against those who read it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use epitome::cli::words::{WORDS, Word};
use regex::Regex;

use crate::machine::Machine;

/// The flags that a help has, as they are typed; what is in backticks is another command's.
fn flags_in(help: &str) -> BTreeSet<String> {
    let quoted = Regex::new("`[^`]*`").expect("well formed");
    let flag = Regex::new(r"(?:^|[\s\[(|])(--[a-z][a-z-]*|-[a-z]\b)").expect("well formed");
    let own = quoted.replace_all(help, " ");
    let found = flag.captures_iter(&own).map(|found| found[1].to_owned());
    found.filter(|flag| flag != "--help").collect()
}

fn flags_of(word: &Word) -> BTreeSet<String> {
    let all = [word].into_iter().chain(word.below).flat_map(|word| word.flags.iter());
    let all = all.flat_map(|flags| flags.iter());
    let written =
        all.flat_map(|flag| [Some(format!("--{}", flag.long)), flag.short.map(|short| format!("-{short}"))]);
    written.flatten().collect()
}

/// What the program says of a command. `acp` is spoken of in the help of all.
fn help_of(machine: &Machine, word: &Word) -> String {
    match word.name {
        "acp" => {
            let all = machine.ok(&["--help"]);
            let own = all.split("\n  epitome ").find(|part| part.starts_with("acp ")).expect("a part");
            let shared = all.split("also take:\n").nth(1).expect("a part");
            format!("{own}\n{}", shared.split("\n\n").next().expect("a part"))
        }
        // It takes what a run takes.
        "compact" => machine.ok(&["compact", "--help"]) + &machine.ok(&["run", "--help"]),
        name => machine.ok(&[name, "--help"]),
    }
}

#[test]
fn the_table_has_the_flags_that_the_helps_have() {
    let machine = Machine::new();
    for word in WORDS {
        assert_eq!(flags_of(word), flags_in(&help_of(&machine, word)), "{}", word.name);
    }
    let tail = flags_in(&machine.ok(&["sessions", "tail", "--help"]));
    assert!(tail.iter().all(|flag| ["--from", "--json"].contains(&flag.as_str())), "{tail:?}");
}

#[test]
fn the_table_has_the_commands_that_the_helps_have() {
    let machine = Machine::new();
    let help = machine.ok(&["--help"]);
    let lines: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  epitome ")).collect();
    let words = Regex::new("[a-z][a-z-]+").expect("well formed");
    for word in WORDS {
        let is_told = lines.iter().any(|line| words.find_iter(line).any(|found| found.as_str() == word.name));
        assert!(is_told, "the help has no {}", word.name);
    }
    for line in lines.iter().filter(|line| !line.starts_with("--")) {
        for name in line.split(' ').next().expect("a word").split('|') {
            assert!(WORDS.iter().any(|word| word.name == name), "the table has no {name}");
        }
    }
    for word in WORDS.iter().filter(|word| !word.below.is_empty()) {
        let help = machine.ok(&[word.name, "--help"]);
        let line = Regex::new(&format!("(?m)^  epitome {} ([a-z|]+)", word.name)).expect("well formed");
        let told = line
            .captures_iter(&help)
            .flat_map(|found| found[1].split('|').map(str::to_owned).collect::<Vec<_>>());
        let told: BTreeSet<String> = told.collect();
        let known: BTreeSet<String> = word.below.iter().map(|below| below.name.to_owned()).collect();
        assert_eq!(known, told, "{}", word.name);
    }
}

/// Runs a line of bash behind the completions, as a person's shell does.
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
    let completions = Machine::new().ok(&["completions", "bash"]);
    let (is_read, told) = bash(&format!("bash -n <<'EPITOME_END'\n{completions}\nEPITOME_END\n"));
    assert!(is_read, "{told}");
    for (words, at, wanted) in [
        ("epitome se", 1, "sessions"),
        ("epitome sessions ex", 2, "export"),
        ("epitome run --fo", 2, "--follow"),
        ("epitome run --mode re", 3, "read_only"),
        ("epitome sessions show s_1", 3, "s_123"),
        ("epitome compact --resume s_", 3, "s_123"),
    ] {
        let script = format!(
            "{completions}\nepitome() {{ printf 's_123\\tThe build\\n'; }}\nCOMP_WORDS=({words})\nCOMP_CWORD={at}\n\
             _epitome_or_session epitome \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        );
        let (_, told) = bash(&script);
        assert!(told.lines().any(|line| line == wanted), "{words}: {told}");
    }
}

/// A shell of that name with these arguments, or a line that says that the test is left out.
fn shell(name: &str, arguments: &[&str]) -> Option<String> {
    if Command::new(name).arg("--version").output().is_err() {
        eprintln!("left out: there is no {name} on this machine");
        return None;
    }
    // A shell that waits for what does not come is ended.
    let output = Command::new("timeout").arg("60").arg(name).args(arguments).output().expect("it is there");
    Some(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

/// A directory with the completions of a shell and a program of our name that has one session.
fn completing(completions: &str, file: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a scratch directory");
    std::fs::write(directory.path().join(file), completions).expect("a file");
    let program = directory.path().join("epitome");
    std::fs::write(&program, "#!/bin/sh\nprintf 's_123\\tThe: build\\n'\n").expect("a file");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    directory
}

/// `--resume` was offered behind every command, also behind those that have no such flag.
#[test]
fn fish_completes_commands_flags_and_sessions() {
    let directory = completing(&Machine::new().ok(&["completions", "fish"]), "epitome.fish");
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
        let Some(told) = shell("fish", &["--no-config", "-c", &script]) else { return };
        assert!(told.contains(wanted) && !told.contains(unwanted), "{line}: {told}");
    }
}

/// What a person sees who types a line and asks for the choices, in a terminal that is made for it.
#[test]
fn zsh_completes_commands_flags_and_sessions() {
    let directory = completing(&Machine::new().ok(&["completions", "zsh"]), "_epitome");
    let at = directory.path().display();
    for (line, wanted) in [
        ("epitome se", "what was said, and where"),
        ("epitome sessions ", "write it into a file"),
        ("epitome run --m", "provider/name"),
        ("epitome run --mode ", "accept_edits"),
        ("epitome sessions show ", "s_123*The: build"),
        ("epitome compact --resume ", "s_123*The: build"),
    ] {
        // Each step waits for what the one before it shows; what never comes ends in `timeout`.
        let script = format!(
            "zmodload zsh/zpty; zpty z zsh -f -i; zpty -w z \"TERM=dumb; path=({at} \\$path); stty cols 200\"\n\
             zpty -w z \"fpath=({at} \\$fpath); autoload -Uz compinit; compinit -u -d {at}/dump\"\n\
             zpty -w z \"bindkey '^X' list-choices; print REA\"'\"\"DY'\n\
             zpty -r z out '*READY*'; zpty -n -w z '{line}'$'\\x18'; zpty -r z out '*{wanted}*' && print FOUND\n"
        );
        let Some(told) = shell("zsh", &["-f", "-c", &script]) else { return };
        assert!(told.contains("FOUND"), "{line}: {told}");
    }
}

/// A page that a formatter complains about, or that has nothing for a reader.
#[test]
fn man_shows_the_page_without_a_word_of_complaint() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let page = directory.path().join("epitome.1");
    std::fs::write(&page, Machine::new().ok(&["man"])).expect("a file");
    let page = page.to_str().expect("it is text");
    let Some(told) = shell("groff", &["-ww", "-man", "-Tascii", page]) else { return };
    // Without the overstriking of bold letters.
    let overstruck = Regex::new("\\x1b\\[[0-9;]*m|.\\x08").expect("well formed");
    let plain = overstruck.replace_all(&told, "");
    for wanted in ["epitome sessions export", "EXIT STATUS", "ANTHROPIC_API_KEY"] {
        assert!(plain.contains(wanted), "{plain}");
    }
    assert!(!told.contains("warning") && !told.contains("error:"), "{told}");
}

#[test]
fn every_shell_and_the_page_have_all_commands() {
    let machine = Machine::new();
    for arguments in
        [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"], &["man"]]
    {
        let text = machine.ok(arguments).replace("\\-", "-");
        for word in WORDS {
            assert!(text.contains(word.name), "{arguments:?} have no {}", word.name);
        }
    }
}
