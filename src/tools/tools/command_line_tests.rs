//! Lines that a recipe's list of commands accepts, and lines that it must refuse.

use super::*;

fn with(allowed: &[&str], line: &str) -> Option<String> {
    refused(line, &allowed.iter().map(|pattern| (*pattern).to_owned()).collect::<Vec<_>>())
}

const ALLOWED: [&str; 8] =
    ["git status", "git log *", "git diff *", "cat *", "echo *", "ls", "grep *", "npm run *"];

#[test]
fn lines_of_allowed_commands_run() {
    for line in [
        "git status",
        "  git   status  ",
        "git log",
        "git log --oneline -3",
        "git log -3 | grep 'fix' && echo done || echo none; ls",
        "git log --format='%h %s' -- \"src/a b.rs\"",
        "git \"log\" 'HEAD'",
        "git log \\\n  -3",
        "git log \"$(git diff --stat)\" `ls`",
        "cat <(git log) <<< \"text $x\"",
        "cat <<E\nplain ${x:-text} $(ls)\nE",
        "cat <<'E'\n$(rm x) `rm y`\nE",
        "cat <<\\E && ls\n`rm x`\nE\nls",
        "cat <<E | grep x\nhello\nE",
        "for f in a b; do cat \"$f\"; done",
        "while grep -q x f; do ls; done; until ls; do ls; done",
        "if ls; then git status; elif ls; then ls; else ls; fi",
        "case $x in a|b*) ls;; *) git status;; esac",
        "(ls; { ls; }); ! ls",
        "ls 2>&1 >/dev/null",
        "cat < in.txt &>/dev/null &",
        "echo 'a; rm b' \"c && rm d\" e\\;f \\`rm\\`",
        "echo ${x:-a} ${#x} ${x%.rs} ${x##*/} \"$1 $? $@\" $((2 * (3+4)))",
        "ls # a remark; rm x\n# another\nls",
        "echo it costs 5$ {1..3} ~/x *.c a#b",
        "echo $'tab\\t'",
        "echo \"\"",
        "",
    ] {
        assert_eq!(with(&ALLOWED, line), None, "{line}");
    }
}

#[test]
fn disallowed_commands_are_found_in_any_construct() {
    for (line, command) in [
        ("rm -rf x", "rm -rf x"),
        ("git push", "git push"),
        ("git logs", "git logs"),
        ("git status --short", "git status --short"),
        ("ls -l", "ls -l"),
        ("ls; rm x", "rm x"),
        ("ls && rm x", "rm x"),
        ("ls || rm x", "rm x"),
        ("ls | rm x", "rm x"),
        ("ls |& rm x", "rm x"),
        ("ls & rm x", "rm x"),
        ("ls\nrm x", "rm x"),
        ("(rm x)", "rm x"),
        ("{ rm x; }", "rm x"),
        ("! rm x", "rm x"),
        ("echo $(rm x)", "rm x"),
        ("echo \"a $(rm x)\"", "rm x"),
        ("echo `rm x`", "rm x"),
        ("echo $(cat $(rm x))", "rm x"),
        ("cat <(rm x)", "rm x"),
        ("ls > >(rm x)", "rm x"),
        ("cat <<E\n$(rm x)\nE", "rm x"),
        ("cat <<E\n${y:-$(rm x)}\nE", "rm x"),
        ("cat <<E\na\nE\nrm x", "rm x"),
        ("cat <<E | rm x\na\nE", "rm x"),
        ("cat <<< $(rm x)", "rm x"),
        ("echo ${y:-$(rm x)}", "rm x"),
        ("f() { rm x; }; ls", "rm x"),
        ("function f { rm x; }", "rm x"),
        ("if rm x; then ls; fi", "rm x"),
        ("if ls; then ls; else rm x; fi", "rm x"),
        ("for f in $(rm x); do ls; done", "rm x"),
        ("for f in a; do rm x; done", "rm x"),
        ("while ls; do rm x; done", "rm x"),
        ("case a in a) rm x;; esac", "rm x"),
        ("case $(rm x) in a) ls;; esac", "rm x"),
        ("\"rm\" x", "rm x"),
        ("/bin/rm x", "/bin/rm x"),
        ("eval ls", "eval ls"),
        ("exec ls", "exec ls"),
        ("source f", "source f"),
        (". f", ". f"),
        ("xargs rm", "xargs rm"),
        ("env X=1 ls", "env X=1 ls"),
        ("time ls", "time ls"),
        ("command ls", "command ls"),
        ("bash -c 'ls x'", "bash -c 'ls x'"),
        ("coproc ls", "coproc ls"),
        ("GIT_EXTERNAL_DIFF=evil git diff", "GIT_EXTERNAL_DIFF=evil git diff"),
        ("PATH=/evil; ls", "PATH=/evil"),
        ("X=1 PATH=/evil", "X=1"),
        ("export PATH=/evil; ls", "export PATH=/evil"),
        ("unset PATH", "unset PATH"),
        ("x=(1 2)", "x=(1 2)"),
    ] {
        let refusal = with(&ALLOWED, line).unwrap_or_else(|| panic!("it runs: {line}"));
        assert!(
            refusal.starts_with(&format!("`{command}` may not run here; only these")),
            "{line}: {refusal}"
        );
    }
    assert_eq!(
        with(&["git log *", "ls"], "rm x").as_deref(),
        Some("`rm x` may not run here; only these commands may: `git log *`, `ls`")
    );
    assert_eq!(with(&[], "ls").as_deref(), Some("`ls` may not run here; no command may run here"));
}

#[test]
fn nothing_writes_a_file() {
    for line in [
        "ls > f",
        "ls >> f",
        "ls >| f",
        "ls &> f",
        "ls &>> f",
        "ls >& f",
        "ls 2> f",
        "ls > $f",
        "ls > \"/dev/null/../f\"",
        "> f",
        "> f ls",
        "{ ls; } > f",
        "for f in a; do ls; done > f",
        "cat <<E > f\na\nE",
        "f() { ls; } > f",
    ] {
        let refusal = with(&["*"], line).unwrap_or_else(|| panic!("it writes: {line}"));
        assert!(refusal.contains("writes a file"), "{line}: {refusal}");
    }
}

/// Each of these executes, or may execute, something in Bash that looks like plain text.
#[test]
fn uncertain_lines_are_refused() {
    for line in [
        // The command is the value of a variable, or is assembled from pieces.
        "$X a",
        "${X} a",
        "$(echo rm) x",
        "r\\m x",
        "r''m x",
        "{rm,x}",
        "~/bin/x",
        // Values that are evaluated.
        "echo $((x))",
        "echo $((a[$(rm x)]))",
        "echo $[x]",
        "echo ${x@P}",
        "echo ${!x}",
        "echo ${x:=1}",
        "echo ${x[$(rm y)]}",
        "echo ${x:1:2}",
        "(( x = 1 ))",
        "[[ $x -eq 1 ]]",
        "[ -f x ]",
        "for ((i = 0; i < 3; i++)); do ls; done",
        "for PATH in /evil; do ls; done",
        // Not comments: `\ ` and a line continuation are inside a word.
        "echo \\ #; rm x",
        "echo a\\\n#; rm x",
        // A line that begins with a backslash is a new one, and a line continuation splits no word.
        "echo a\n\\rm x",
        "echo a\n\\\nrm x",
        "ec\\\nho a",
        "!\\\nls",
        "\\ ls",
        // Words that the parser doesn't look into.
        "echo ${x:-`rm y`}",
        "echo \"${x:+'`rm y`'}\"",
        "cat <<E\n`rm y`\nE",
        // Here-documents that end elsewhere for Bash.
        "cat <<E\nE \necho '\nE\nrm x\necho '",
        "cat <<A <<B\na\nA\nb\nB",
        "cat <<\"E F\"\nx\nE F\nls",
        // Words after a redirection belong to the command.
        "git status > /dev/null --short",
        "git status <<E --short\nE",
        // Shells disagree about where this text ends.
        "echo $'a\\'; rm x #'",
        // No-break space, vertical tab, carriage return: white space to some parsers.
        "echo x\u{a0}#; rm y",
        "ls\u{b}x",
        "ls\r",
        "ls\0",
        // Incomplete lines.
        "echo \"open",
        "ls ))",
        "ls &&",
        "if ls",
        "echo a\\",
    ] {
        let refusal = with(&["*"], line).unwrap_or_else(|| panic!("it runs: {line}"));
        assert!(!refusal.contains("may not run here"), "{line}: {refusal}");
    }
}

#[test]
fn patterns_match_the_whole_command() {
    for (pattern, line, runs) in [
        ("ls", "ls", true),
        ("ls", "lsof", false),
        ("ls *", "ls", true),
        ("ls *", "ls -la /tmp", true),
        ("ls *", "lsof", false),
        ("ls*", "lsof", true),
        ("git * --stat", "git diff HEAD --stat", true),
        ("git * --stat", "git diff --stat HEAD", false),
        ("*", "anything at all", true),
        ("a*b*c", "a1b2c", true),
        ("a*b*c", "acb", false),
        ("ab*ba", "aba", false),
        (" git status ", "git status", true),
        ("git log -n [0-9]", "git log -n 5", false),
        ("FOO=* make", "FOO=1 make", true),
        ("xargs ls", "xargs ls", true),
        ("git commit -m *", "git commit -m 'two\nlines'", true),
        ("git status", "'git status'", false),
        ("npm run test", "npm 'run test'", false),
        ("", "ls", false),
    ] {
        assert_eq!(with(&[pattern], line).is_none(), runs, "{pattern} on {line}");
    }
}

#[test]
fn long_lines_and_deep_nesting_are_refused_without_a_crash() {
    assert!(with(&["*"], &"a".repeat(LINE_BYTES_MAX + 1)).is_some());
    let deep = |levels: usize| format!("echo {}{}", "$(echo ".repeat(levels), ")".repeat(levels));
    assert_eq!(with(&["echo *"], &deep(300)), None);
    assert!(with(&["echo *"], &deep(4000)).is_some());
    let refusal = with(&[], &format!("rm {}", "x".repeat(1000))).expect("nothing is allowed");
    assert!(refusal.len() < 400, "{refusal}");
}

/// Models write messages of several lines in this way, and a rule such as `git commit *` never covered them.
#[test]
fn a_quoted_here_document_is_a_text() {
    let message = "git commit -m \"$(cat <<'EOF'\nFix it\n\n`rm x` $(rm y)\nEOF\n)\"";
    assert_eq!(with(&["git commit *"], message), None);
    assert_eq!(with(&["git add *", "git commit *"], &format!("git add -A && {message}")), None);
    assert_eq!(with(&["python3 *"], "python3 - <<'PY'\nimport os\nprint('a; b')\nPY"), None);
    assert_eq!(with(&["git commit -F -"], "git commit -F - <<'E'\nFix it\nE"), None);
    assert!(with(&["git commit -F"], "git commit -F - <<'E'\nFix it\nE").is_some());
    assert_eq!(with(&["python3 *"], "python3 <<'PY'\nprint(1)\nPY\n"), None);
    for line in [
        "git commit -m \"$(cat <<EOF\n$(rm x)\nEOF\n)\"",
        "git commit -m \"$(cat <<EOF\na\nEOF\n)\"",
        "git commit -m \"$(cat key <<'EOF'\na\nEOF\n)\"",
        "git commit -m \"$(tee <<'EOF'\na\nEOF\n)\"",
        "git commit -m \"$(cat <<'EOF' > x\na\nEOF\n)\"",
        "git commit -m \"$(cat <<'EOF'; rm x\na\nEOF\n)\"",
        "git commit -m \"$(cat <<'EOF' | sh\na\nEOF\n)\"",
        "git commit -m \"$(cat <<'EOF'\na\nEOF\nrm x)\"",
        "git commit -m x; cat <<'EOF'\na\nEOF",
        "git commit -m \"$(cat)\"",
    ] {
        assert!(with(&["git commit *"], line).is_some(), "{line}");
    }
}

proptest::proptest! {
    /// For any text: no panic, and nothing runs except `echo` with words.
    #[test]
    fn arbitrary_text_does_not_panic(line in "[ \\t\\nea`$(){}<>|&;'\"\\\\#=*!E0-]{0,60}") {
        let _ = with(&["echo *"], &line);
    }
}

/// A line of 32 KiB that nests `$(` took 24 s of CPU, because the parents of each node were looked up.
#[test]
fn a_line_that_nests_too_deeply_is_not_taken_apart() {
    let nested = |levels: usize| "$(".repeat(levels) + "rm x" + &")".repeat(levels);
    assert!(parse(&nested(100)).is_some());
    assert!(parse(&nested(600)).is_none() && parse(&nested(5_000)).is_none());
    assert!(with(&["*"], &nested(5_000)).is_some_and(|why| why.contains("cannot be parsed")));
    let parts = parts::CommandParts::parse(&nested(600));
    assert!(!parts.is_clear);
    assert!(parts.commands.contains(&"rm x".to_owned()), "its commands are found roughly");
}
