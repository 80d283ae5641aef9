//! What a shell line does to files, and which command it is. Reads words, runs nothing. Pure.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::calls::Action;

/// Words of a line that are looked at.
const WORDS_MAX: usize = 400;

/// The files that a line changes, as far as its words tell.
pub(super) fn touched(line: &str) -> Vec<(String, Action)> {
    let mut found = Vec::new();
    for command in commands(line) {
        redirected(&command, &mut found);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let words = words
            .iter()
            .position(|word| !is_setting(word) && *word != "sudo")
            .map_or(&[][..], |at| &words[at..]);
        let Some((program, arguments)) = words.split_first() else { continue };
        let plain = || {
            arguments.iter().take_while(|word| !is_redirection(word)).filter(|word| !word.starts_with('-'))
        };
        let mut all = |action: Action, paths: Vec<&str>| {
            found.extend(paths.into_iter().filter(|path| is_path(path)).map(|path| (path.to_owned(), action)))
        };
        match *program {
            "sed" | "perl"
                if arguments.iter().any(|word| {
                    word.starts_with("-i") || word.starts_with("-pi") || *word == "--in-place"
                }) =>
            {
                let script = usize::from(!arguments.iter().any(|word| *word == "-e" || *word == "-f"));
                all(Action::Modified, plain().skip(script.max(1)).copied().collect());
            }
            "rm" | "unlink" | "rmdir" | "trash" => all(Action::Deleted, plain().copied().collect()),
            "mv" => {
                let mut paths: Vec<&str> = plain().copied().collect();
                if let Some(to) = paths.pop() {
                    all(Action::Deleted, paths);
                    all(Action::Moved, vec![to]);
                }
            }
            "cp" | "install" | "ln" => all(Action::Created, plain().last().copied().into_iter().collect()),
            "touch" => all(Action::Created, plain().copied().collect()),
            "tee" | "truncate" => all(Action::Modified, plain().copied().collect()),
            "git" => git(&plain().copied().collect::<Vec<_>>(), arguments, &mut all),
            "cat" | "head" | "tail" | "less" | "bat" | "nl" => {
                all(Action::Read, plain().filter(|word| word.contains(['.', '/'])).copied().collect());
            }
            _ => {}
        }
    }
    found
}

fn git(plain: &[&str], arguments: &[&str], all: &mut impl FnMut(Action, Vec<&str>)) {
    let behind =
        || arguments.iter().skip_while(|word| **word != "--").skip(1).copied().collect::<Vec<&str>>();
    match plain.first() {
        Some(&("checkout" | "restore")) if !behind().is_empty() => all(Action::Modified, behind()),
        Some(&"restore") => all(Action::Modified, plain[1..].to_vec()),
        Some(&"rm") => all(Action::Deleted, plain[1..].to_vec()),
        Some(&"mv") => {
            if let [_, from @ .., to] = plain {
                all(Action::Deleted, from.to_vec());
                all(Action::Moved, vec![to]);
            }
        }
        Some(_) | None => {}
    }
}

/// What is written to with `>` and `>>`.
fn redirected(words: &[String], found: &mut Vec<(String, Action)>) {
    for (at, word) in words.iter().enumerate() {
        let bare = word.trim_start_matches(['1', '2', '&']);
        let Some(rest) = bare.strip_prefix('>') else { continue };
        let action = if rest.starts_with('>') { Action::Modified } else { Action::Created };
        let rest = rest.trim_start_matches(['>', '|']);
        let path = if rest.is_empty() { words.get(at + 1).map_or("", String::as_str) } else { rest };
        if is_path(path) && !path.starts_with('&') && !path.starts_with("/dev/") {
            found.push((path.to_owned(), action));
        }
    }
}

fn is_redirection(word: &str) -> bool {
    word.contains('>') || word.starts_with('<')
}

fn is_path(word: &str) -> bool {
    !word.is_empty() && !word.contains(['*', '$', '{', '(', '\n', '|']) && word.len() < 256
}

/// `NAME=value` before a program.
fn is_setting(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

/// The commands of a line, each as its words; what stands in a here-document is left out.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut word = String::new();
    let mut quote: Option<char> = None;
    let mut words = 0;
    let mut until: Option<String> = None;
    for text in line.split_inclusive('\n') {
        if let Some(end) = &until {
            if text.trim() == end {
                until = None;
            }
            continue;
        }
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            match (character, quote) {
                (end, Some(open)) if end == open => quote = None,
                (inside, Some(_)) => word.push(inside),
                ('\'' | '"', None) => quote = Some(character),
                ('\\', None) => word.extend(characters.next().filter(|next| *next != '\n')),
                (';' | '\n' | '|' | '(' | ')', None) | ('&', None)
                    if character != '&' || !word.ends_with('>') =>
                {
                    push(&mut all, &mut word, &mut words);
                    all.push(Vec::new());
                }
                ('>', None)
                    if !word.is_empty()
                        && !word.ends_with('>')
                        && !matches!(word.as_str(), "1" | "2" | "&") =>
                {
                    push(&mut all, &mut word, &mut words);
                    word.push('>');
                }
                (blank, None) if blank.is_whitespace() => push(&mut all, &mut word, &mut words),
                (other, None) => word.push(other),
            }
            if words > WORDS_MAX {
                return all;
            }
        }
        if let Some(at) = text.find("<<") {
            let name =
                text[at + 2..].trim_start_matches(['-', ' ']).split_whitespace().next().unwrap_or_default();
            let name = name.trim_matches(['\'', '"', '\\']);
            until = (!name.is_empty() && !name.starts_with('<')).then(|| name.to_owned());
        }
    }
    push(&mut all, &mut word, &mut words);
    all
}

fn push(all: &mut [Vec<String>], word: &mut String, words: &mut usize) {
    if !word.is_empty() {
        *words += 1;
        if let Some(last) = all.last_mut() {
            last.push(std::mem::take(word));
        }
    }
}

/// How a command is known from one run to the next: on one line, without where it is run and what is done
/// with its output.
pub(super) fn key(line: &str) -> String {
    let mut line: String = line.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some((first, rest)) = line.split_once("&&")
        && (first.trim_start().starts_with("cd ") || first.trim_start().starts_with("export "))
    {
        line = rest.trim_start().to_owned();
    }
    for behind in ["| tail", "| head", "2>&1", "| tee", "| cat", "| grep", "| less"] {
        if let Some(at) = line.find(behind) {
            line.truncate(at);
        }
    }
    line.trim().to_owned()
}

/// How much it matters that a command was run: tests and builds most, looking around least.
///
/// It is asked by the key of a command.
pub(super) fn weight(key: &str) -> u8 {
    const CHECKS: &[&str] = &[
        "test",
        "build",
        "check",
        "clippy",
        "lint",
        "tsc",
        "mypy",
        "pytest",
        "vitest",
        "jest",
        "make",
        "cargo run",
        "npm run",
        "deploy",
        "migrate",
        "bench",
        "release",
        "publish",
        "install",
        "terraform",
        "kubectl",
        "docker",
        "curl",
        "ctest",
        "tox",
        "ruff",
    ];
    const LOOKS: &[&str] = &[
        "ls", "cat", "head", "tail", "pwd", "echo", "cd", "grep", "rg", "find", "wc", "which", "tree", "sed",
        "less", "stat", "file", "env", "nl", "awk", "date",
    ];
    static CHECKED: LazyLock<AhoCorasick> = LazyLock::new(|| {
        AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::DFA))
            .build(CHECKS)
            .expect("the words are few and short")
    });
    let first = key.split_whitespace().find(|word| !is_setting(word)).unwrap_or_default();
    if LOOKS.contains(&first) {
        return 1;
    }
    if CHECKED.is_match(key) {
        return 4;
    }
    let looks_at_git =
        ["git status", "git diff", "git log", "git show"].iter().any(|look| key.starts_with(look));
    if looks_at_git { 1 } else { 2 }
}

/// Whether a run of `newer` that went well says that what failed in `older` is solved: the same command,
/// or one that does all of it.
pub(super) fn covers(newer: &str, older: &str) -> bool {
    let goes_on = || older.strip_prefix(newer).is_some_and(|rest| rest.starts_with(' '));
    older == newer || goes_on() && newer.split_whitespace().nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_what_a_line_does() {
        for (line, expected) in [
            ("echo hi > out.txt", vec![("out.txt", Action::Created)]),
            ("echo hi >>log/a.txt 2>&1", vec![("log/a.txt", Action::Modified)]),
            (
                "cd x && sed -i 's/a b/c/' src/a.rs src/b.rs",
                vec![("src/a.rs", Action::Modified), ("src/b.rs", Action::Modified)],
            ),
            ("sed -i -e 's/a/b/' a.rs", vec![("a.rs", Action::Modified)]),
            (
                "mv a.rs b.rs; rm -rf build",
                vec![("a.rs", Action::Deleted), ("b.rs", Action::Moved), ("build", Action::Deleted)],
            ),
            ("git checkout -- src/x.rs", vec![("src/x.rs", Action::Modified)]),
            ("git checkout main", vec![]),
            (
                "cat <<'EOF' > conf.toml\nrm -rf nothing\nEOF\ntouch b",
                vec![("conf.toml", Action::Created), ("b", Action::Created)],
            ),
            ("cat src/main.rs | grep fn", vec![("src/main.rs", Action::Read)]),
            ("cargo test >/dev/null", vec![]),
            ("RUST_LOG=x sudo tee /etc/hosts", vec![("/etc/hosts", Action::Modified)]),
            ("rm *.o", vec![]),
            ("echo 'a > b'", vec![]),
        ] {
            let found = touched(line);
            let found: Vec<(&str, Action)> =
                found.iter().map(|(path, action)| (path.as_str(), *action)).collect();
            assert_eq!(found, expected, "{line}");
        }
    }

    #[test]
    fn runs_of_one_command_are_known_as_one() {
        assert_eq!(key("cd /w && cargo  test 2>&1 | tail -5"), "cargo test");
        assert!(covers("cargo test", "cargo test parser::"));
        assert!(!covers("cargo test parser::", "cargo test"));
        assert!(!covers("cargo", "cargo test"));
        assert!(weight("cargo test") > weight("git commit") && weight("git commit") > weight("ls -la"));
    }
}
