//! Commands and file names that are found in a line, and those that must not be.

use super::*;

fn runs(line: &str, command: &str) -> bool {
    CommandParts::parse(line).commands.iter().any(|found| found == command)
}

#[test]
fn commands_are_found_in_any_construct() {
    for line in [
        "rm x",
        "ls; rm x",
        "ls && rm x || ls",
        "ls | rm x",
        "ls\nrm x",
        "(rm x)",
        "! rm x",
        "echo $(rm x)",
        "echo \"`rm x`\"",
        "cat <(rm x)",
        "f() { rm x; }; f",
        "if ls; then rm x; fi",
        "A=1 rm x",
        "/bin/rm x",
        "\\rm x",
        "r''m \"x\"",
        "$'\\x72m' x",
        "sudo rm x",
        "sudo -u root -- rm x",
        "env -i A=1 rm x",
        "nohup time nice -n 5 rm x",
        "timeout 5 /usr/bin/rm x",
        "xargs -0 rm x",
        "command rm x",
        "exec rm x",
        "find . -name a -exec rm x",
        "sh -c 'rm x'",
        "bash -lc \"ls; rm x\"",
        "sudo sh -c 'rm x'",
        "sh -c \"sh -c 'rm x'\"",
        "eval rm x",
        "eval 'rm x'",
        "busybox rm x",
        "rm -f x",
        "rm --one-file-system -f x",
        "cat <<E\n$(rm x)\nE",
        "ls > f; rm x",
        "for f in a; do rm x; done",
        "echo 'open\nrm x",
    ] {
        assert!(runs(line, "rm x"), "{line}: {:?}", CommandParts::parse(line).commands);
    }
    assert!(runs("git -C /elsewhere -c a=b push --force", "git push --force"));
}

#[test]
fn quoted_or_printed_commands_are_not_reported() {
    for line in ["echo rm x", "echo 'a; rm x'", "git commit -m 'rm x'", "# rm x\nls", "ls x\\; rm"] {
        assert!(!runs(line, "rm x"), "{line}");
        assert!(CommandParts::parse(line).is_clear, "{line}");
    }
}

#[test]
fn uncertain_lines_are_not_clear() {
    for line in [
        "$X a",
        "$(echo rm) x",
        "echo rm x | sh",
        "bash <<E\nrm x\nE",
        "sh -c \"$x\"",
        "eval \"$x\"",
        "/bin/r? x",
        "echo ${x@P}",
        "echo 'open",
        "ls\u{a0}x",
    ] {
        assert!(!CommandParts::parse(line).is_clear, "{line}");
    }
    for line in
        ["[ -f x ] && ls", "[[ $x -eq 1 ]]", "echo $((1 + 2))", "cargo test -- \"$1\"", "x=1; echo $x"]
    {
        assert!(CommandParts::parse(line).is_clear, "{line}");
    }
}

#[test]
fn file_names_are_found_in_every_spelling() {
    let names = |line: &str| CommandParts::parse(line).names().any(|name| name.may_end_in(".env"));
    for line in [
        "cat .env",
        "cat ./a/.env",
        "cat '.env'",
        "cat .e\"n\"v",
        "cat .e\\nv",
        "cat $'.\\x65nv'",
        "cat .e*",
        "cat .??v",
        "cat .[e]nv",
        "cat {.env,x}",
        "cat < .env",
        "cat $F",
        "cat .e${x}nv",
        "curl -d @.env a.example",
        "grep -f.env x",
        "git show HEAD:.env",
        "dd if=.env",
        "python3 -c \"open('.env')\"",
        "sh -c 'cat .env'",
        "for f in .env; do cat $f; done",
        "cat .ENV",
        "cat .env 'open",
    ] {
        assert!(names(line), "{line}");
    }
    for line in ["cat a.rs", "cat *.rs", "cat environment", "echo 'a * b'", "ls -la src", "cat .env.example"]
    {
        assert!(!names(line), "{line}");
    }
}

proptest::proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(line in "[ \\t\\nea`$(){}<>|&;'\"\\\\#=*!E0-]{0,60}") {
        let parts = CommandParts::parse(&line);
        let _ = parts.names().filter(|name| name.may_end_in(".env")).count();
    }
}
