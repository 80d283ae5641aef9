//! Options that make a command write a file or run another program. Pure.
//!
//! An allow rule such as `git log *` assumes that `git log` only prints. Its `*` doesn't cover `--output=FILE`, just
//! as it doesn't cover `> FILE`: the rule has to name such an option. Options are recognized by their long names for
//! any program, and by their letters for common programs that only read. This is no security boundary; the sandbox
//! is.

use super::parts::base;
use epitome_shell::word::UNKNOWN;

/// Long options of any program whose value is a file or directory to write.
const WRITES: [&str; 12] = [
    "output",
    "output-file",
    "output-dir",
    "output-directory",
    "out",
    "out-file",
    "out-dir",
    "outfile",
    "outdir",
    "log-file",
    "dump-header",
    "cookie-jar",
];
/// Values with which `--output` selects a format instead (`kubectl get --output=json`).
const FORMATS: [&str; 14] = [
    "json", "jsonl", "ndjson", "yaml", "yml", "text", "txt", "table", "wide", "name", "csv", "tsv", "xml",
    "html",
];
/// Long options of any program whose value is a program to run, or that run a configured one.
const RUNS: [&str; 21] = [
    "exec",
    "exec-batch",
    "exec-path",
    "execdir",
    "ext-diff",
    "open-files-in-pager",
    "upload-pack",
    "receive-pack",
    "config-env",
    "command",
    "cmd",
    "pager",
    "editor",
    "rsh",
    "to-command",
    "use-compress-program",
    "compress-program",
    "checkpoint-action",
    "info-script",
    "new-volume-script",
    "split-string",
];
/// Suffixes of names of options that are followed by a program.
const RUNS_ENDS: [&str; 5] = ["-command", "-cmd", "-program", "-exec", "-pager"];

/// The options with effects of one program.
struct ProgramOptions {
    /// The program's name, with its subcommand if only that has the options.
    name: &'static str,
    /// Complete words: long options and those of `find`.
    words: &'static [&'static str],
    /// Letters of short options with effects.
    letters: &'static str,
    /// Letters of short options whose value may follow in the same word.
    values: &'static str,
}

const PROGRAMS: [ProgramOptions; 26] = [
    program("find", &FIND, "", ""),
    program("fd", &[], "xX", "etdEgSoc"),
    program("fdfind", &[], "xX", "etdEgSoc"),
    program("git", &["--git-dir", "--work-tree", "--textconv", "--filters"], "", ""),
    program("git interpret-trailers", &["--in-place"], "", ""),
    program("git init", &["--template", "--separate-git-dir"], "", ""),
    program("git fast-export", &["--export-marks"], "", ""),
    program("git mailsplit", &[], "o", "df"),
    program("git diagnose", &[], "o", "s"),
    program("git difftool", &["--extcmd", "--tool"], "xt", ""),
    program("git daemon", &["--access-hook"], "", ""),
    program("git instaweb", &["--httpd"], "d", "pm"),
    program("git svn", &["--authors-prog"], "", ""),
    program("git grep", &[], "O", "efABCm"),
    program("git archive", &[], "o", ""),
    program("git format-patch", &[], "o", "nv"),
    program("git bugreport", &[], "o", "s"),
    program("git rebase", &[], "x", "XsC"),
    program("git clone", &["--config", "--template", "--separate-git-dir"], "uc", "boj"),
    program("sort", &[], "o", "ktST"),
    program("sed", &["--in-place"], "i", "efl"),
    program("rg", &["--pre", "--hostname-bin"], "", ""),
    program("tree", &[], "o", "LPI"),
    program("less", &[], "oO", "ptTxy"),
    program("tar", &[], "IF", "fCXT"),
    program("curl", &["--remote-name", "--remote-name-all", "--config"], "oODcK", "HdXuAebFTmrwxyz"),
];
/// Subcommands of Git, with the word after which they run a program.
const RUNNING: [(&str, &str); 6] = [
    ("bisect", "run"),
    ("filter-branch", "filter-branch"),
    ("for-each-repo", "for-each-repo"),
    ("hook", "run"),
    ("merge-index", "merge-index"),
    ("submodule", "foreach"),
];
const FIND: [&str; 9] =
    ["-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls"];

const fn program(
    name: &'static str,
    words: &'static [&'static str],
    letters: &'static str,
    values: &'static str,
) -> ProgramOptions {
    ProgramOptions { name, words, letters, values }
}

/// Returns the scripts of sed that may write a file or run a program: all but simple ones.
fn of_sed(arguments: &[String]) -> Vec<String> {
    const PLAIN: &str =
        " --debug --in-place --null-data --posix --quiet --regexp-extended --separate --silent --unbuffered ";
    let (mut found, mut scripts, mut is_next, mut rest) = (Vec::new(), Vec::new(), false, Vec::new());
    for word in arguments {
        let option = word.strip_prefix('-').filter(|option| !option.is_empty() && !is_next);
        match option {
            Some(option) if option.starts_with('-') => match word.split_once('=') {
                Some(("--expression", script)) => scripts.push(script),
                _ if word == "--expression" => is_next = true,
                _ if PLAIN.contains(&format!(" {} ", word.split('=').next().unwrap_or_default())) => {}
                _ => found.push(word.clone()),
            },
            Some(option) => {
                let letters = option.trim_start_matches(['n', 'E', 'r', 's', 'u', 'z']);
                match letters.chars().next() {
                    Some('e') if letters.len() == 1 => is_next = true,
                    Some('e') => scripts.push(&letters[1..]),
                    // It is found by its letter.
                    None | Some('i') => {}
                    Some(_) => found.push(word.clone()),
                }
            }
            None if std::mem::take(&mut is_next) => scripts.push(word),
            None => rest.push(word.as_str()),
        }
    }
    if scripts.is_empty() {
        scripts.extend(rest.first());
    }
    found.extend(scripts.into_iter().filter(|one| !one.split(';').all(only_prints)).map(str::to_owned));
    found
}

/// Whether a command of sed is a substitution, or an address with a command that only prints or omits lines.
fn only_prints(command: &str) -> bool {
    let command = command.trim_matches(' ');
    if let Some(delimiter) = command.strip_prefix('s').and_then(|rest| rest.chars().next()) {
        let parts: Vec<&str> = command[1 + delimiter.len_utf8()..].split(delimiter).collect();
        let is_flag = |c: char| "gpiIm".contains(c) || c.is_ascii_digit();
        return parts.len() == 3 && parts[2].chars().all(is_flag) && !command.contains(['\n', UNKNOWN]);
    }
    let is_address = |address: &str| {
        let pattern = address.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
        pattern.map_or_else(
            || address.chars().all(|c| "$+~! ".contains(c) || c.is_ascii_digit()),
            |pattern| !pattern.contains(['/', '\n', UNKNOWN]),
        )
    };
    command.trim_end_matches(['p', 'd', 'q', '=', '!']).split(',').all(is_address)
}

/// Returns the options of a command that write a file or run a program, in the form in which a rule may name them.
pub(super) fn options(words: &[String]) -> Vec<String> {
    let Some((first, arguments)) = words.split_first() else { return Vec::new() };
    let name = base(first);
    let subcommand = subcommand(arguments);
    let with_subcommand = format!("{name} {subcommand}");
    let programs: Vec<&ProgramOptions> =
        PROGRAMS.iter().filter(|program| program.name == name || program.name == with_subcommand).collect();
    let is_git = name == "git";
    let mut found = if name == "sed" { of_sed(arguments) } else { Vec::new() };
    for (at, word) in arguments.iter().enumerate() {
        let next = arguments.get(at + 1).map_or("", String::as_str);
        let long = long_option(word, !programs.is_empty());
        found.extend(long.filter(|_| is_git || !selects_format(word, next)));
        if is_git && RUNNING.contains(&(subcommand, word.as_str())) {
            found.push(word.clone());
        }
        // `git -c core.pager=…`; `git log -c` is another option.
        if is_git && word == "-c" && next.contains(['=', UNKNOWN]) {
            found.push("-c".to_owned());
        }
        for program in &programs {
            let name = word.split('=').next().unwrap_or_default();
            if program.words.contains(&name) {
                found.push(name.to_owned());
            }
            found.extend(letter(word, program).map(|letter| format!("-{letter}")));
        }
        // `$x-output=file` for a program with such options.
        let rest = word.trim_start_matches(UNKNOWN);
        if !programs.is_empty() && rest.len() < word.len() && rest.contains('=') {
            found.push(rest.to_owned());
        }
    }
    found
}

/// Returns the option with effects in a word, if the program that receives the word is unknown.
pub(super) fn for_any_program(word: &str) -> Option<String> {
    let by_program = PROGRAMS.iter().find_map(|program| {
        let named = program.words.contains(&word.split('=').next().unwrap_or_default());
        named.then(|| word.to_owned()).or_else(|| letter(word, program).map(|letter| format!("-{letter}")))
    });
    long_option(word, true).or(by_program)
}

/// Returns the first word that is neither an option nor the value of a common one.
fn subcommand(arguments: &[String]) -> &str {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-C" | "-c" => drop(words.next()),
            option if option.starts_with('-') => {}
            subcommand => return subcommand,
        }
    }
    ""
}

/// Returns a long option with effects. `by_prefix`: whether a prefix of its name is accepted, as by Git and GNU
/// programs.
fn long_option(word: &str, by_prefix: bool) -> Option<String> {
    let name = word.strip_prefix("--")?.split('=').next().filter(|name| !name.is_empty())?;
    // `--config` is a separate option.
    let is = |full: &&str| *full == name || (by_prefix && full.starts_with(name) && name != "config");
    let is_listed = WRITES.iter().chain(&RUNS).any(is);
    (is_listed || runs_program(name) || name.contains(UNKNOWN)).then(|| format!("--{name}"))
}

/// Whether the value of a long option of any program is a program.
pub(super) fn runs_program(name: &str) -> bool {
    RUNS.contains(&name) || !name.starts_with("no-") && RUNS_ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether the value of an `--output` is the name of a format rather than of a file.
fn selects_format(word: &str, next: &str) -> bool {
    let value = word.split_once('=').map_or(next, |(_, value)| value);
    word.starts_with("--output") && FORMATS.contains(&value)
}

/// Returns the short option with effects in a word, which may be a cluster (`-uo`).
fn letter(word: &str, program: &ProgramOptions) -> Option<char> {
    let letters = word.strip_prefix('-').filter(|letters| !letters.starts_with('-'))?;
    letters
        .chars()
        .take_while(|c| c.is_ascii_alphabetic())
        .take_while(|c| !program.values.contains(*c))
        .find(|c| program.letters.contains(*c))
}

/// Whether a rule's pattern names the option.
pub(super) fn is_named(option: &str, pattern: &str) -> bool {
    pattern.split_whitespace().any(|word| {
        let word = word.split('=').next().unwrap_or_default().trim_end_matches('*');
        let is_cluster = word.starts_with('-') && !word.starts_with("--") && option.len() == 2;
        word == option || is_cluster && option.chars().nth(1).is_some_and(|letter| word.contains(letter))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Vec<String> {
        options(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_that_write_or_run_are_found() {
        for (line, option) in [
            ("git log -1 --output=.git/commondir", "--output"),
            ("git log --outp=x", "--outp"),
            ("git diff --output x", "--output"),
            ("git log -p --ext-diff", "--ext-diff"),
            ("git log --ext", "--ext"),
            ("git grep -Ovim x", "-O"),
            ("git grep -nO x", "-O"),
            ("git grep --open-files-in-pager=x y", "--open-files-in-pager"),
            ("git -c core.pager=x log", "-c"),
            ("git --exec-path=. log", "--exec-path"),
            ("git --git-dir=evil log", "--git-dir"),
            ("git fetch --upload-pack=x .", "--upload-pack"),
            ("git archive -o x HEAD", "-o"),
            ("git rebase -x make HEAD~2", "-x"),
            ("git rebase --exec make HEAD~2", "--exec"),
            ("git ls-remote --exec=./x origin", "--exec"),
            ("git cat-file --textconv HEAD:x", "--textconv"),
            ("git cat-file --filters HEAD:x", "--filters"),
            ("git interpret-trailers --in-place README", "--in-place"),
            ("git init --template=./evil x", "--template"),
            ("git clone --template ./evil a b", "--template"),
            ("git difftool --extcmd=./x", "--extcmd"),
            ("git bisect run ./x", "run"),
            ("git submodule foreach ./x", "foreach"),
            ("git hook run x", "run"),
            ("git merge-index ./x -a", "merge-index"),
            ("git bugreport -o x", "-o"),
            ("find . -name a -exec rm {} +", "-exec"),
            ("find . -delete", "-delete"),
            ("find . -fprintf x %p", "-fprintf"),
            ("fd a -x rm", "-x"),
            ("sort -o x y", "-o"),
            ("sort -uox y", "-o"),
            ("sort --compress-program=x y", "--compress-program"),
            ("sed -ni s/a/b/ x", "-i"),
            ("sed -i.bak s/a/b/ x", "-i"),
            // A script of sed writes files and runs programs, as in an advisory of another agent.
            ("sed wx y", "wx"),
            ("sed -n s/a/b/wx y", "s/a/b/wx"),
            ("sed -ne 1p;1e./x y", "1p;1e./x"),
            ("sed --expression=s/a/./e y", "s/a/./e"),
            ("sed -nf x y", "-nf"),
            ("sed /a/,/b/{wx y", "/a/,/b/{wx"),
            ("rg --pre ./x y", "--pre"),
            ("tar -tf x --to-command=y", "--to-command"),
            ("tar -tf x --checkpoint-action=exec=y", "--checkpoint-action"),
            ("curl -sSLo x https://a.example", "-o"),
            ("prog --output report.txt", "--output"),
            ("prog --format-command=x", "--format-command"),
            ("git log --\u{1}=x", "--\u{1}"),
            ("git log \u{1}output=x", "output=x"),
        ] {
            let found = of(line);
            assert!(found.iter().any(|name| name == option), "{line}: {found:?}");
        }
    }

    #[test]
    fn ordinary_options_have_no_effects() {
        for line in [
            "git log --oneline -5 --stat -p --format=%h -Sconfig -L1,20:src/config.rs --author=me",
            "git log -c --cc --text --exclude=x --since=yesterday",
            "git diff --text --name-only --no-ext-diff HEAD~1..HEAD",
            "git diff -O.order",
            "git --no-pager log",
            "eslint --ext .ts src",
            "gradle test --info",
            "pip install --pre x",
            "git ls-files -o -c --exclude-standard",
            "git commit -am x",
            "git -C sub status --short",
            "git branch --contains HEAD",
            "git grep -n -e output",
            "git submodule status run",
            "git log run",
            "find . -name *.rs -newer x -print0 -o -type d",
            "fd -e rs -o root x",
            "grep -rnoc --include=*.rs --exclude-dir=x -e -o x",
            "rg -o --pre-glob=x --only-matching --context=3 x",
            "sort -t o -k 2 -u",
            "sed -n 1,5p -e s/i/o/ x",
            "sed -n /from/,/to/p x w",
            "sed -E s|e(w)|\\1|g;$d e",
            "sed -s --quiet -e 3q w",
            "ls -oac --color",
            "cargo test --release -p x -- --nocapture",
            "cargo build --config x --target-dir=y",
            "pytest -x -o log_cli=true --exitfirst",
            "kubectl get pods -o json --output=yaml",
            "jq --raw-output .key",
            "npm test -- --coverage --reporter=dot",
            "go test -exec x ./... -run X",
            "ps -o pid -e",
            "tar -tzf x",
        ] {
            assert_eq!(of(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn a_rule_names_an_option_in_its_own_words() {
        for (option, pattern, expected) in [
            ("--output", "git log --output=*", true),
            ("--output", "git log --output *", true),
            ("--output", "git log *", false),
            ("run", "git bisect run *", true),
            ("run", "git bisect *", false),
            ("-o", "sort -o *", true),
            ("-o", "sort -uo *", true),
            ("-o", "sort *", false),
            ("-exec", "find * -exec grep *", true),
            ("-delete", "find * -exec *", false),
            ("-i", "sed -i* *", true),
        ] {
            assert_eq!(is_named(option, pattern), expected, "{option} in {pattern}");
        }
    }
}
