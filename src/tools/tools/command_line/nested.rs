//! Finds commands within the words of a command: arguments of `sudo`, `xargs` and `sh -c`, aliases in `git -c`,
//! and options of any program that take a command line. Pure.
//!
//! It reports too much rather than too little, because it serves rules that ask or deny. Code in other languages,
//! such as `python -c`, isn't parsed.

use super::effects::runs_program;
use super::parts::{WITH_VALUE, base, is_uncertain};
use epitome_shell::word::{LITERAL, UNKNOWN};

const WRAPPED_WORDS_MAX: usize = 24;

/// Programs that run the command in their arguments.
const WRAPPERS: [&str; 64] = [
    "sudo",
    "doas",
    "pkexec",
    "su",
    "runuser",
    "setpriv",
    "capsh",
    "gosu",
    "su-exec",
    "env",
    "command",
    "builtin",
    "exec",
    "nohup",
    "time",
    "timeout",
    "nice",
    "ionice",
    "chrt",
    "taskset",
    "numactl",
    "prlimit",
    "choom",
    "setarch",
    "linux32",
    "linux64",
    "cgexec",
    "runcon",
    "setsid",
    "stdbuf",
    "unbuffer",
    "script",
    "xargs",
    "parallel",
    "entr",
    "watch",
    "watchexec",
    "hyperfine",
    "strace",
    "ltrace",
    "gdb",
    "valgrind",
    "perf",
    "chroot",
    "proot",
    "fakeroot",
    "fakechroot",
    "unshare",
    "nsenter",
    "flock",
    "tini",
    "dumb-init",
    "catchsegv",
    "dbus-run-session",
    "xvfb-run",
    "systemd-run",
    "caffeinate",
    "firejail",
    "bwrap",
    "busybox",
    "toybox",
    "npx",
    "bunx",
    "coproc",
];
/// Programs that start a shell if there is no command.
const STARTS_SHELL: [&str; 6] = ["sudo", "doas", "su", "runuser", "unshare", "nsenter"];
/// Programs that take a command line as an argument, or on their standard input.
const SHELLS: [&str; 21] = [
    "sh", "bash", "rbash", "zsh", "rzsh", "dash", "ksh", "rksh", "ksh93", "ash", "mksh", "lksh", "yash",
    "posh", "csh", "tcsh", "fish", "xonsh", "pwsh", "tclsh", "eval",
];
/// Other programs, any argument of which may be a command line.
const TAKE_LINES: [&str; 12] = [
    "trap",
    "mapfile",
    "readarray",
    "alias",
    "bind",
    "complete",
    "compgen",
    "sg",
    "watch",
    "parallel",
    "hyperfine",
    "expect",
];
/// Programs that run a command for each file that they find.
const FINDERS: [&str; 3] = ["find", "fd", "fdfind"];
/// Arguments of `find` and `fd` that are followed by a command.
const EXECUTES: [&str; 8] = ["-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"];
/// Subcommands that are followed by a command: `uv run`, `direnv exec .`, `git bisect run`.
const RUNNERS: [&str; 5] = ["run", "exec", "x", "foreach", "dlx"];
/// Programs whose `-c` is followed by text to search for.
const SEARCHES: [&str; 8] = ["grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "ugrep"];
/// Parts of the names of long options that take a command line.
const TAKES_LINE: [&str; 12] = [
    "command",
    "cmd",
    "exec",
    "run",
    "shell",
    "filter",
    "pager",
    "editor",
    "hook",
    "split-string",
    "pack",
    "rsh",
];

/// A command that a word, or the words after it, may run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Nested {
    /// A command line.
    Line(String),
    /// A text that may be a command line.
    Possible(String),
    /// A command, whose own arguments may have others.
    Command(Vec<String>),
    /// A command, if it begins at this word.
    Suffix(Vec<String>),
    /// Commands on standard input.
    Input,
    /// Something that can't be determined.
    Unclear,
}

/// Returns everything that the words of a command may run besides the program.
pub(super) fn of(words: &[String]) -> Vec<Nested> {
    let Some((first, arguments)) = words.split_first() else { return Vec::new() };
    let program = base(first);
    let mut found = Vec::new();
    if SHELLS.contains(&program) {
        shell(program, arguments, &mut found);
    }
    if matches!(program, "." | "source") {
        source(arguments, &mut found);
    }
    if TAKE_LINES.contains(&program) {
        let texts = arguments.iter().filter(|word| !word.starts_with('-'));
        found.extend(texts.map(|word| match (program, word.split_once('=')) {
            // `alias ls='rm x'`
            ("alias", Some((_, line))) => Nested::Possible(line.to_owned()),
            ("trap", _) => Nested::Line(word.clone()),
            _ => Nested::Possible(word.clone()),
        }));
    }
    // The next command may be called by another name: `hash -p /bin/rm x; x`.
    let renames = match program {
        "hash" => arguments.iter().any(|word| word.starts_with('-') && word.contains('p')),
        "alias" => arguments.iter().any(|word| word.contains('=')),
        "enable" | "compgen" | "complete" => !arguments.is_empty(),
        _ => false,
    };
    if renames || TAKE_NAMES.contains(&program) && arguments.iter().any(|word| indexes_by_command(word)) {
        found.push(Nested::Unclear);
    }
    // The dynamic loader runs the program in its arguments: `/lib64/ld-linux-x86-64.so.2 /bin/rm x`.
    if WRAPPERS.contains(&program) || program.starts_with("ld") && program.contains(".so") {
        wrapper(words, &mut found);
    }
    if FINDERS.contains(&program)
        && let Some(at) = words.iter().position(|word| EXECUTES.contains(&word.as_str()))
    {
        // The next `-exec` is among the words after the first one.
        let behind: Vec<String> = words[at + 1..].to_vec();
        let again = std::iter::once(words[0].clone()).chain(behind.iter().cloned()).collect();
        found.extend([Nested::Command(behind), Nested::Command(again)]);
    }
    let runner = arguments.iter().take(2).position(|word| RUNNERS.contains(&word.as_str()));
    if let Some(at) = runner {
        let behind = &arguments[at + 1..];
        found.push(Nested::Suffix(behind.to_vec()));
        found.extend(behind.get(1..).map(|words| Nested::Suffix(words.to_vec())));
        found.extend(behind.first().filter(|word| word.contains(' ')).cloned().map(Nested::Possible));
    }
    if program == "git" {
        git_alias(words, &mut found);
    }
    options(program, arguments, &mut found);
    found
}

fn shell(program: &str, arguments: &[String], found: &mut Vec<Nested>) {
    let lines: Vec<&String> = arguments.iter().filter(|word| !word.starts_with(['-', '+'])).collect();
    if lines.is_empty() || lines.iter().any(|word| is_input(word)) {
        found.push(Nested::Input);
    }
    if lines.iter().any(|word| word.contains(UNKNOWN)) {
        found.push(Nested::Unclear);
    }
    let joined = (program == "eval").then(|| arguments.join(" "));
    found.extend(lines.into_iter().cloned().chain(joined).map(Nested::Line));
}

/// `.` runs a file, which may be standard input.
fn source(arguments: &[String], found: &mut Vec<Nested>) {
    match arguments.first() {
        Some(file) if is_input(file) => found.push(Nested::Input),
        Some(file) if file.chars().eq([UNKNOWN]) => found.push(Nested::Unclear),
        Some(_) | None => {}
    }
}

fn is_input(file: &str) -> bool {
    file == "-" || file == "/dev/stdin" || file.starts_with("/dev/fd/") || file.starts_with("/proc/self/fd/")
}

fn wrapper(words: &[String], found: &mut Vec<Nested>) {
    if words.len() > WRAPPED_WORDS_MAX || wraps_uncertain(words) {
        found.push(Nested::Unclear);
    }
    // These start a shell.
    if STARTS_SHELL.contains(&base(&words[0])) && words[1..].iter().all(|word| word.starts_with('-')) {
        found.push(Nested::Input);
    }
    // These add words from their standard input: `echo push | xargs git`, `echo rm x | xargs env`.
    let adds = words.iter().any(|word| matches!(base(word), "xargs" | "parallel"));
    if adds && words[1..].last().is_some_and(|last| WRAPPERS.contains(&base(last))) {
        found.push(Nested::Unclear);
    }
    // They may also replace a part of a shell's line: `xargs -I% sh -c %`.
    let replaces =
        |word: &String| word.starts_with("-I") || word.starts_with("-i") || word.starts_with("--replace");
    if adds && words.iter().any(replaces) && words.iter().any(|word| SHELLS.contains(&base(word))) {
        found.push(Nested::Unclear);
    }
    for at in 1..words.len().min(WRAPPED_WORDS_MAX) {
        let inner = words[at..].to_vec();
        // All words of a nested wrapper are examined by this loop too.
        let is_wrapper = WRAPPERS.contains(&base(&inner[0]));
        // A program name contains no spaces, so this is text, such as a commit message.
        if inner[0].contains(' ') {
            continue;
        }
        if adds {
            let more = inner.iter().cloned().chain([UNKNOWN.to_string()]);
            found.push(Nested::Suffix(more.collect()));
        }
        match is_wrapper || of(&inner).is_empty() {
            true => found.push(Nested::Suffix(inner)),
            false => found.push(Nested::Command(inner)),
        }
    }
    // `env -S'rm x'`, `env -iS 'rm x'`
    for (at, word) in words.iter().enumerate().filter(|_| words.iter().any(|word| base(word) == "env")) {
        let glued = word.strip_prefix('-').filter(|word| !word.starts_with('-'));
        if let Some((_, line)) = glued.and_then(|word| word.split_once('S')) {
            let line = if line.is_empty() { words.get(at + 1).cloned() } else { Some(line.to_owned()) };
            found.extend(line.map(Nested::Line));
        }
    }
}

/// Whether the program that is run by these words, after the options and variables of the wrapper, isn't certain.
fn wraps_uncertain(words: &[String]) -> bool {
    let is_number = |word: &String| word.starts_with(|c: char| c.is_ascii_digit());
    let mut after_option = false;
    for word in &words[1..] {
        let is_option = word.starts_with('-');
        let is_variable = word.contains('=') && !word.starts_with(UNKNOWN);
        if is_uncertain(word) && !is_option && !is_variable {
            return true;
        }
        // The word after an option may be its value, and a wrapper may run another one.
        if !WRAPPERS.contains(&base(word)) && !is_option && !is_variable && !is_number(word) && !after_option
        {
            return false;
        }
        after_option = is_option;
    }
    false
}

/// Options of any program that take a command line: `-c 'rm x'`, `--exec='rm x'`, `git -c alias.x='!rm x'`.
fn options(program: &str, arguments: &[String], found: &mut Vec<Nested>) {
    let is_line = |text: &str| text.contains([' ', ';', '|', '&', '$', '\n']);
    for (at, word) in arguments.iter().enumerate() {
        let next = || arguments.get(at + 1).cloned().unwrap_or_default();
        let mut is_program = false;
        let text = match word.strip_prefix("--") {
            Some(option) => {
                let (name, value) = option.split_once('=').map_or((option, None), |(a, b)| (a, Some(b)));
                is_program = runs_program(name) || program == "rg" && name == "pre";
                let takes = is_program || TAKES_LINE.iter().any(|part| name.contains(part));
                takes.then(|| value.map_or_else(next, str::to_owned))
            }
            None if program == "git" => git_text(word, next),
            None if SEARCHES.contains(&program) || SHELLS.contains(&program) => None,
            None => (word.starts_with('-') && word.ends_with('c')).then(next),
        };
        let is_alias = |text: &String| program == "git" && !word.starts_with("--") && !text.is_empty();
        let is_command = |text: &String| is_program || is_line(text) || is_alias(text);
        found.extend(text.filter(is_command).map(Nested::Possible));
    }
}

/// Returns a command line in an argument of Git: the value of a setting, an alias, or that of `-x`.
fn git_text(word: &str, next: impl FnOnce() -> String) -> Option<String> {
    match word {
        "-c" => {
            let setting = next();
            let (_, value) = setting.split_once('=')?;
            Some(value.trim_start_matches('!').to_owned())
        }
        "-x" => Some(next()),
        _ => word.strip_prefix('!').or_else(|| word.strip_prefix("-O")).map(str::to_owned),
    }
}

/// The command for which an alias on the command line is an abbreviation: `git -c alias.p='push -f' p`.
fn git_alias(words: &[String], found: &mut Vec<Nested>) {
    let mut options: Vec<&[String]> = Vec::new();
    let mut rest = &words[1..];
    while let Some(option) = rest.first().filter(|word| word.starts_with('-')) {
        let length = if WITH_VALUE.contains(&option.as_str()) { 2 } else { 1 };
        let (own, behind) = rest.split_at(length.min(rest.len()));
        options.push(own);
        rest = behind;
    }
    // Git takes it from a variable.
    let is_elsewhere = |own: &&[String]| own[0].starts_with("--config-env");
    let has_unknown_key = |own: &&[String]| match own {
        [option, setting] => {
            option == "-c" && setting.split('=').next().is_some_and(|key| key.contains(UNKNOWN))
        }
        _ => false,
    };
    if options.iter().any(|own| is_elsewhere(own) || has_unknown_key(own)) {
        found.push(Nested::Unclear);
    }
    let Some((name, rest)) = rest.split_first() else { return };
    let value = |own: &[String]| match own {
        [option, setting] if option == "-c" => alias_value(setting, name).map(str::to_owned),
        _ => None,
    };
    // The last one counts.
    let Some(value_of_name) = options.iter().rev().find_map(|own| value(own)) else { return };
    if let Some(line) = value_of_name.strip_prefix('!') {
        return found.push(Nested::Possible(format!("{line} {}", rest.join(" "))));
    }
    let options = options.into_iter().filter(|own| value(own).is_none()).flatten().cloned();
    let meant = value_of_name.split_whitespace().map(|word| word.replace(['"', '\'', '\\'], ""));
    let command = words[..1].iter().cloned().chain(options).chain(meant).chain(rest.iter().cloned());
    found.push(Nested::Command(command.collect()));
}

/// The value of a setting if it defines this alias.
fn alias_value<'a>(setting: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = setting.split_once('=')?;
    let (section, alias) = key.split_once('.')?;
    let alias = alias.strip_suffix(".command").unwrap_or(alias);
    (section.eq_ignore_ascii_case("alias") && alias.eq_ignore_ascii_case(name)).then_some(value)
}

/// Built-in commands that take names of variables. The index of `a[$(rm x)]` is evaluated.
const TAKE_NAMES: [&str; 9] =
    ["test", "read", "printf", "declare", "typeset", "local", "export", "readonly", "let"];

/// Whether a text has an index with a command in it.
pub(super) fn indexes_by_command(text: &str) -> bool {
    let mut indexes = text.split(['[', LITERAL]).skip(1).filter_map(|index| index.split(']').next());
    indexes.any(|index| index.contains("$(") || index.contains('`'))
}

/// Names of variables from which Bash reads a file or functions.
const BASH_VARIABLES: [&str; 2] = ["BASH_ENV", "BASH_FUNC_"];
/// Names of variables from which Git reads settings; a number follows the first two.
const GIT_KEY: &str = "GIT_CONFIG_KEY_";
const GIT_VALUE: &str = "GIT_CONFIG_VALUE_";
const GIT_PARAMETERS: &str = "GIT_CONFIG_PARAMETERS";

/// Whether a text may set one of these variables.
pub(super) fn sets_variables(text: &str) -> bool {
    [GIT_KEY, GIT_VALUE, GIT_PARAMETERS].iter().chain(&BASH_VARIABLES).any(|name| text.contains(name))
}

/// The settings of Git in variables, as for `git -c`.
pub(super) fn git_settings(variables: &[(String, String)]) -> impl Iterator<Item = String> {
    variables.iter().filter_map(|(name, key)| {
        let value = format!("{GIT_VALUE}{}", name.strip_prefix(GIT_KEY)?);
        let (_, value) = variables.iter().rev().find(|(name, _)| *name == value)?;
        Some(format!("{key}={value}"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::parts::CommandParts;

    fn runs(line: &str, command: &str) -> bool {
        CommandParts::parse(line).commands.iter().any(|found| found == command)
    }

    /// A security review found these ways around a rule that denies a command.
    #[test]
    fn commands_within_words_are_found() {
        for line in [
            "env -S'rm x'",
            "env -S 'rm x'",
            "env -iS 'rm x'",
            "env --split-string='rm x'",
            "rbash -c 'rm x'",
            "dash -ec 'rm x'",
            "setpriv --reuid 1000 rm x",
            "sg root 'rm x'",
            ". /dev/stdin <<< 'rm x'",
            "source /dev/fd/0 <<E\nrm x\nE",
            "bash <<E\nrm x\nE",
            "bash -s <<< 'rm x'",
            "trap 'rm x' EXIT",
            "mapfile -C 'rm x' -c 1 a",
            "alias l='rm x'; l",
            "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
            "git -c alias.t='!rm x' t",
            "git config alias.t '!rm x'",
            "git -c core.pager='rm x' log",
            "git rebase -x 'rm x' HEAD~2",
            "git rebase --exec='rm x' HEAD~2",
            "git submodule foreach 'rm x'",
            "git bisect run rm x",
            "git grep -O'rm x' y",
            "GIT_PAGER='rm x' git log",
            "export PAGER='rm x'; git log",
            "npx -c 'rm x'",
            "npm exec -c 'rm x'",
            "tclsh <<< 'exec rm x'",
            "su -c 'rm x' me",
            "script -qc 'rm x' /dev/null",
            "flock lock -c 'rm x'",
            "unknown-wrapper -c 'rm x'",
            "unknown-wrapper -lc 'ls; rm x'",
            "rsync --rsh='rm x' a b",
            "tar -cf a --to-command='rm x' b",
            "split --filter='rm x' a",
            "uv run rm x",
            "direnv exec . rm x",
            "timeout 5 uv run rm x",
            "watch -n 5 'rm x'",
            "sudo env -S'rm x'",
            "nice git -c alias.t='!rm x' t",
            "sudo -s <<< 'rm x'",
            "unshare <<E\nrm x\nE",
        ] {
            assert!(runs(line, "rm x"), "{line}: {:?}", CommandParts::parse(line).commands);
        }
    }

    /// A rule denied `rm *`. Options and variables were examined only for commands of several words, although the program
    /// adds words itself.
    #[test]
    fn programs_that_get_their_arguments_from_others_are_found() {
        for line in [
            "GIT_EXTERNAL_DIFF=rm git diff",
            "export GIT_EXTERNAL_DIFF=rm; git diff",
            "fd --exec=rm x",
            "rg --pre rm x",
            "rg --pre=rm x",
            "git grep --open-files-in-pager=rm x",
            "sort --compress-program=rm x",
            "tar --use-compress-program=rm -cf a b",
        ] {
            assert!(runs(line, "rm"), "{line}: {:?}", CommandParts::parse(line).commands);
        }
    }

    /// `git -c alias.p=push p` ran although a rule denied `git push`.
    #[test]
    fn an_alias_on_the_command_line_is_resolved() {
        for line in [
            "git -c alias.p=push p x",
            "git -c alias.p='push x' p",
            "git -c alias.p='--no-pager push' p x",
            "git -c ALIAS.P=push -C elsewhere p x",
            "git -c alias.p=log -c alias.p=push p x",
            "git -c alias.a=b -c alias.b=push a x",
            "git -c alias.p.command=push p x",
            "git -c \"alias.p='push'\" p x",
            "/usr/bin/git -c alias.p=push p x",
            "sudo git -c alias.p=push p x",
            "git -c alias.p='!git push' p x",
            "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.p GIT_CONFIG_VALUE_0=push git p x",
            "GIT_CONFIG_KEY_0='alias.p' GIT_CONFIG_VALUE_0=\"push\" GIT_CONFIG_COUNT=1 git --no-pager p x",
        ] {
            assert!(runs(line, "git push x"), "{line}: {:?}", CommandParts::parse(line).commands);
        }
        assert!(!runs("git -c alias.p=push log x", "git push x"));
        // The same alias again ends it.
        assert!(runs("git -c alias.p=p p", "git p"));
        for unclear in [
            "git -c \"$X\" p",
            "git --config-env=alias.p=X p",
            "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.p GIT_CONFIG_VALUE_0=push; git p",
            "env GIT_CONFIG_COUNT=1 \"GIT_CONFIG\"_KEY_0=alias.p GIT_CONFIG_VALUE_0=push git p",
        ] {
            assert!(!CommandParts::parse(unclear).is_clear, "{unclear}");
        }
        assert!(CommandParts::parse("git -c user.name=\"$NAME\" commit -m x").is_clear);
    }

    #[test]
    fn ordinary_arguments_are_no_commands() {
        for line in [
            "git commit -m 'rm x'",
            "timeout 5 git commit -m 'rm x'",
            "git log --grep='rm x'",
            "grep -c 'rm x' a",
            "grep -rn 'rm x' a",
            "rg -c 'rm x'",
            "echo -n 'rm x'",
            "gh pr create --title 'rm x' --body 'rm x'",
            "cargo test -- 'rm x'",
            "cat > a <<E\nrm x\nE",
            "jq -r '.a | rm x' b",
            "git --no-pager rm x",
        ] {
            assert!(!runs(line, "rm x") && !runs(line, "rm"), "{line}");
        }
        for line in ["gcc -c a.c", "source .venv/bin/activate", ". \"$HOME/.cargo/env\"", "tar -c a"] {
            assert!(CommandParts::parse(line).is_clear, "{line}");
        }
    }
}
