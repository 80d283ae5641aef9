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

/// A rule denied `git push`, and `git 2>&1 push` ran in full mode: the grammar counts the words after a redirection as its
/// targets, and they were left out.
#[test]
fn words_after_a_redirection_belong_to_the_command() {
    for line in [
        "git 2>&1 push x",
        "git push 2>/dev/null x",
        "git </dev/null push x",
        "git >f push x",
        "git &>f push x",
        "git <&0 push x",
        "git <<E push x\na\nE",
        "git <<E 2>&1 push x\na\nE",
        "git <<< a push x",
        "exec 3<&0 git push x",
        "env 2>/dev/null git push x",
        "2>&1 git push x",
        "git 2>/dev/null 1>&2 push x",
        "ls && git 2>&1 push x",
        "ls | ! git 2>&1 push x && ls",
        "if ! git 2>&1 push x; then ls; fi",
        "a || b | git <<E push x\nE",
    ] {
        assert!(runs(line, "git push x"), "{line}: {:?}", CommandParts::parse(line).commands);
    }
    assert!(runs("cat <<E | git push x\na\nE", "git push x"));
    assert!(!runs("git status > push 2> x", "git status push"), "these are targets");
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
    for line in [
        "[ -f x ] && ls",
        "A=1; echo $((A+1))",
        "git diff stash@{0}..stash@{1}",
        "[[ $x -eq 1 ]]",
        "echo $((1 + 2))",
        "cargo test -- \"$1\"",
        "x=1; echo $x",
    ] {
        assert!(CommandParts::parse(line).is_clear, "{line}");
    }
}

/// A rule denied `git push` and `touch`. Brace expansion, `[…]` in the name of a program, and names that the line
/// itself defines made commands that the rule did not see.
#[test]
fn words_that_the_shell_makes_of_others_are_uncertain() {
    for line in [
        "{touch,x}",
        "/bin/t[o]uch x",
        "to{u,}ch x",
        "env {a={},touch} x",
        "env {$'a=\\'',touch} x",
        "env {a=},touch} x",
        "x='a[$(touch${IFS}y)]'; echo $((x))",
        "x='a[$(touch${IFS}y)]'; (( x ))",
        "x='a[$(touch${IFS}y)]'; let x",
        "x='a[$(touch${IFS}y)]'; declare -i z=x",
        "PS4='$(touch${IFS}y)'; set -x; ls",
        "compgen -C touch${IFS}y x",
        "/bin/{touch,x}",
        "command to{u,}ch x",
        "sudo -u root $X",
        "env A=1 /bin/t?uch x",
        "hash -p /bin/touch foo; foo x",
        "enable -f ./touch.so touch",
        "shopt -s expand_aliases; alias foo=touch\nfoo x",
        "trap \"$x\" EXIT",
        "echo touch x | xargs env",
        "echo touch x | xargs -I% sh -c %",
    ] {
        assert!(!CommandParts::parse(line).is_clear, "{line}");
    }
    let hides = |line: &str, rule: &str| CommandParts::parse(line).may_hide(rule);
    for line in
        ["git {push,origin,HEAD:b}", "git -C x {push,-f}", "git p[u]sh", "git pus?", "echo push | xargs git"]
    {
        assert!(hides(line, "git push *"), "{line}");
    }
    for line in ["git add {a,b}.rs", "git add *.rs", "git show HEAD@{1}", "git log \"{a,b}\"", "git log '*'"]
    {
        assert!(!hides(line, "git push *"), "{line}");
    }
    for line in [
        "find . -exec rm {} +",
        "[ -f x ] && ls",
        "git show HEAD@{1}",
        "awk '{print $1, $2}' x",
        "echo ${x:-y} \"{a,b}\" \\{a,b\\}",
        "mkdir -p src/{a,b}",
        "timeout 5 rm *.o",
        "xargs -0 rm -f",
        "hash -r",
        "trap 'rm -f x' EXIT",
        "grep -F '[a]' x",
    ] {
        assert!(CommandParts::parse(line).is_clear, "{line}");
    }
}

/// Each program that Bash runs is found, or the line is not clear.
#[cfg(target_os = "linux")]
#[test]
fn no_line_hides_what_bash_runs() {
    for line in [
        "{touch,x}",
        "/bin/t[o]uch x",
        "to\"u\"{c,}h x",
        "command to{u,}ch x",
        "env A=1 /bin/t?uch x",
        "shopt -s extglob\n/bin/t@(o)uch x",
        "~/../bin/touch x",
        "touch$IFS\"x\"",
        "hash -p /bin/touch foo; foo x",
        "shopt -s expand_aliases; alias foo=touch\nfoo x",
        "x='touch x'; trap \"$x\" EXIT",
        "echo touch x | xargs env",
        "echo touch x | xargs -I% sh -c %",
        "echo x | xargs touch",
        "coproc touch x; wait",
        "exec -a ls touch x",
        "builtin eval touch x",
        "command_not_found_handle() { touch x; }; nosuch",
        "f() { \"$@\"; }; f touch x",
        "env 'BASH_FUNC_ls%%=() { touch x; }' bash -c ls",
        "BASH_ENV=/dev/stdin bash -c true <<< 'touch x'",
        "printf -v a touch; $a x",
        "a=(touch x); \"${a[@]}\"",
        "for c in touch; do $c x; done",
        "select a in touch; do $a x; break; done <<< 1",
        "mapfile -C 'touch x #' -c 1 l <<< a",
        ". <(echo touch x)",
        "printf 'touch x' | bash -s",
        "let 'a[$(touch x)]=1'",
        "test -v 'a[$(touch x)]'",
        "[ -v 'a[$(touch x)]' ]",
        "[[ 'a[$(touch x)]' -eq 1 ]]",
        "read 'a[$(touch x)]' <<< 1",
        "declare 'a[$(touch x)]=1'",
        "printf -v 'a[$(touch x)]' b",
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let bash = std::process::Command::new("bash")
            .args(["-c", line])
            .env("HOME", "/tmp")
            .current_dir(directory.path())
            .output()
            .expect("bash runs");
        assert!(directory.path().join("x").exists(), "{line}: {bash:?}");
        let parts = CommandParts::parse(line);
        let is_found =
            parts.commands.iter().any(|found| found.starts_with("touch")) || parts.may_hide("touch");
        assert!(!parts.is_clear || is_found, "{line}: {parts:?}");
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
        "echo \"$(cat .env)\"",
        "cat $(echo \"$(printf .e)nv\")",
        "echo \"$(printf .e)nv\" | xargs cat",
        "echo() { cat \"$@\"; }; echo \"$(printf .e)nv\"",
        "echo x > $F",
    ] {
        assert!(names(line), "{line}");
    }
    // Regression: the grammar splits `{}`, and `{` was taken for an invalid glob that may be any file.
    let braces = ["find . -exec grep x {} +", "echo {a}"];
    // `echo "$(date)"` was asked about, whatever was allowed: the date might have been the name of a file with keys.
    let printed = ["echo \"$(date)\"", "echo $(date) today; ls", "printf '%s\\n' \"$HOME/$x\""];
    for line in ["cat a.rs", "cat *.rs", "cat environment", "echo 'a * b'", "ls -la src", "cat .env.example"]
        .into_iter()
        .chain(braces)
        .chain(printed)
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
