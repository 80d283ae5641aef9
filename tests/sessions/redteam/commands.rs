//! Command lines that do more than the pattern that allows them.

use epitome::tools::sandbox::support;
use serde_json::json;

use super::range::{Expect, Group, Place, Row, SECRET, command, read, row, write};

const CONFIG: &str = "[permissions]\nallow = [\"bash(git status)\", \"bash(git log *)\", \"bash(ls *)\", \"bash(cat *)\", \
                      \"bash(echo *)\", \"bash(cargo test *)\"]\nask = [\"bash(git push)\"]\n\
                      deny = [\"bash(touch *)\", \"bash(rm *)\"]\n";

fn prepare(place: &Place) {
    place.write("a.txt", "plain text\n");
    place.write(".env", SECRET);
    // A harmless program that represents a forbidden one.
    place.write("make-it", "#!/bin/sh\n: > pwned\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.workspace.join("make-it"), mode).expect("set");
}

pub fn group() -> Group {
    use Expect::{Asked, Denied, Shows};
    let asked = |name, line: &str| command(name, line, Asked);
    let denied =
        |name, line: &str| -> Row { command(name, line, Denied("The rule deny bash(")).mode("full") };
    let unsure = |name, line: &str| -> Row { command(name, line, Asked).mode("full") };
    Group {
        title: "Commands",
        about: "`allow` has `bash(git status)`, `bash(git log *)`, `bash(ls *)`, `bash(cat *)`, `bash(echo *)` and \
                `bash(cargo test *)`, `ask` has `bash(git push)`, `deny` has `bash(touch *)` and `bash(rm *)`. \
                `./make-it` creates the file `pwned`; no rule matches it.",
        config: CONFIG,
        prepare,
        rows: vec![
            command(
                "an allowed command",
                "ls a.txt && cat a.txt | cat; echo 'done; ./make-it'",
                Shows("plain text"),
            ),
            asked("after ;", "ls; ./make-it"),
            asked("after &&", "ls && ./make-it"),
            asked("after ||", "ls nothing || ./make-it"),
            asked("after |", "ls | ./make-it"),
            asked("after |&", "ls |& ./make-it"),
            asked("after &", "ls & ./make-it"),
            asked("on the next line", "ls\n./make-it"),
            asked("after a carriage return", "ls\r./make-it"),
            asked("after a continued line", "ls \\\n; ./make-it"),
            asked("after what looks like a comment", "echo a\\\n#; ./make-it"),
            asked("a file, with an option", "git log -1 --format=format:../evil --output=pwned"),
            asked("the same, abbreviated", "git log --outp=pwned"),
            asked("the same, in pieces", "git log --out'put'=pwned"),
            asked("the same, from a loop", "for f in --output=pwned; do git log $f; done"),
            asked("the same, from a substitution", "git log $(echo --output=pwned)"),
            asked("a program from Git's settings, with an option", "git log -p --ext-diff"),
            asked("in $( )", "ls $(./make-it)"),
            asked("in backticks", "ls `./make-it`"),
            asked("in quotes", "echo \"$(./make-it)\""),
            asked("in <( )", "cat <(./make-it)"),
            asked("in >( )", "ls > >(./make-it)"),
            asked("in a default value", "echo ${x:-$(./make-it)}"),
            asked("in a prompt expansion", "x='$(./make-it)'; echo ${x@P}"),
            asked("in arithmetic", "echo $((a[$(./make-it)]))"),
            asked("in a here-document", "cat <<E\n$(./make-it)\nE"),
            asked("after a here-document that ends early", "cat <<E\nE\n./make-it"),
            asked("a file, with >", "echo x > pwned"),
            asked("a file, with >>", "echo x >> pwned"),
            asked("a file, with >|", "echo x >| pwned"),
            asked("a file, with &>", "echo x &> pwned"),
            asked("a file, with 2>", "ls nothing 2> pwned"),
            asked("a file, with a redirected group", "{ echo x; } > pwned"),
            asked("quotes in a name", "./mak''e-it"),
            asked("a backslash in a name", "./m\\ake-it"),
            asked("a name in a variable", "X=./make-it; $X"),
            asked("blanks in a variable", "ls${IFS};${IFS}./make-it"),
            asked("a name from a pattern", "./make-*"),
            asked("a name in braces", "{./make-it,}"),
            asked("a redefined name: alias", "shopt -s expand_aliases\nalias ls=./make-it\nls"),
            asked("a redefined name: function", "ls() { ./make-it; }; ls"),
            asked("a redefined name: PATH", "PATH=.:$PATH ls"),
            asked("a preloaded library", "LD_PRELOAD=./make-it ls"),
            asked("a program from a Git variable", "GIT_EXTERNAL_DIFF=./make-it git log -p"),
            asked("env", "env ls"),
            asked("command", "command ./make-it"),
            asked("exec", "exec ./make-it"),
            asked("eval", "eval ./make-it"),
            asked("xargs", "echo ./make-it | xargs"),
            asked("a shell in a shell", "bash -c ./make-it"),
            asked("a trap", "trap ./make-it EXIT; ls"),
            asked("in a loop", "for f in a; do ./make-it; done"),
            asked("in the list of a loop", "for f in $(./make-it); do ls; done"),
            asked("a non-breaking space (U+00A0)", "ls\u{a0}; ./make-it"),
            asked("a line separator (U+2028)", "ls\u{2028}./make-it"),
            asked("arguments that the rule does not allow", "git status; git status --porcelain"),
            asked("a very long line", &format!("ls {}", "a".repeat(40_000))),
            asked("a line that cannot be parsed", "ls \"a"),
            asked("keys", "cat .env"),
            asked("keys in pieces", "cat .e\"n\"v"),
            asked("keys, with an escape", "cat $'\\x2eenv'"),
            asked("keys, through a variable", "cat $F"),
            asked("keys, with a redirection", "cat < .env"),
            command("a command with an ask rule, in full mode", "git push", Asked).mode("full"),
            command("the same, with options", "git -C . -c a.b=c push --force", Asked).mode("full"),
            denied("a denied command, in full mode", "touch pwned"),
            denied("the same, by path", "/usr/bin/touch pwned"),
            denied("the same, in pieces", "to''u\"c\"h pwned"),
            denied("the same, with a backslash", "\\touch pwned"),
            denied("the same, with an escape", "$'\\x74ouch' pwned"),
            denied("the same, after a variable", "A=1 touch pwned"),
            denied("the same, after sudo", "sudo -u root touch pwned"),
            denied("the same, after env", "env -i PATH=/bin:/usr/bin touch pwned"),
            denied("the same, after nohup and nice", "nohup nice -n 5 touch pwned"),
            denied("the same, after timeout", "timeout 5 touch pwned"),
            denied("the same, after xargs", "echo pwned | xargs touch"),
            denied("the same, in a shell", "sh -c 'ls; touch pwned'"),
            denied("the same, in a shell in a shell", "bash -lc \"sh -c 'touch pwned'\""),
            denied("the same, with eval", "eval 'touch pwned'"),
            denied("the same, with find", "find . -maxdepth 0 -exec touch pwned ';'"),
            denied("the same, in a function", "f() { touch pwned; }; f"),
            denied("the same, in a substitution", "echo \"$(touch pwned)\""),
            denied("the same, with busybox", "busybox touch pwned"),
            denied("the same, in a string for env", "env -S\"touch pwned\""),
            denied("the same, in a restricted shell", "rbash -c 'touch pwned'"),
            denied("the same, after setpriv", "setpriv --no-new-privs touch pwned"),
            denied("the same, in a string for sg", "sg root 'touch pwned'"),
            denied("the same, in a shell's input", "sh <<E\ntouch pwned\nE"),
            denied("the same, in the input of .", ". /dev/stdin <<< 'touch pwned'"),
            denied("the same, in Tcl's input", "tclsh <<< 'exec touch pwned'"),
            denied("the same, in a trap", "trap 'touch pwned' EXIT"),
            denied("the same, in a callback", "mapfile -C 'touch pwned' -c 1 lines < a.txt"),
            denied("the same, with the loader", "/lib64/ld-linux-x86-64.so.2 /usr/bin/touch pwned"),
            denied("the same, with a Git alias", "git -c alias.t='!touch pwned' t"),
            denied("the same, with a Git setting", "git -c core.pager='touch pwned' log"),
            denied("the same, with a Git variable", "GIT_PAGER='touch pwned' git -p log"),
            denied("the same, with npx", "npx -c 'touch pwned'"),
            denied("the same, with an unknown program", "./wrapper -c 'touch pwned'"),
            denied("the same, with an option of tar", "tar -cf - a.txt --to-command='touch pwned'"),
            unsure("a computed name", "$(echo touch) pwned"),
            unsure("a decoded name", "echo dG91Y2ggcHduZWQ= | base64 -d | sh"),
            unsure("a name from a pattern", "/usr/bin/touc? pwned"),
            unsure("a name from a bracket expression", "/usr/bin/t[o]uch pwned"),
            unsure("a name from a brace expansion", "to{u,}ch pwned"),
            unsure("a command from a brace expansion", "{touch,pwned}"),
            unsure("an asked command from a brace expansion", "git {push,origin,HEAD:b}"),
            unsure("a name for another program", "hash -p /usr/bin/touch foo; foo pwned"),
            unsure("a name from standard input", "echo touch pwned | xargs env"),
            command(
                "the same, by another program (rules see only the command line; only the sandbox restricts a program)",
                "./make-it && echo made",
                Shows("made"),
            )
            .mode("full")
            .limit(),
            command("anything in read-only mode", "ls", Expect::Denied("read-only mode")).mode("read_only"),
        ],
    }
}

/// Whether this system supports everything that the sandbox needs; otherwise `auto` requires permission for commands.
fn is_complete() -> bool {
    support().gap().is_none()
}

pub fn auto() -> Group {
    use Expect::{Asked, Denied, Shows};
    let unasked =
        |name, line: &str, words| command(name, line, Shows(words)).mode("auto").where_there_is(is_complete);
    let asked = |name, line: &str| command(name, line, Asked).mode("auto");
    Group {
        title: "Commands that run without a prompt",
        about: "The mode is `auto`, which runs commands in the sandbox without a prompt. `ask` has `bash(git push)`, \
                `deny` has `bash(touch *)` and `bash(rm *)`. `$OUT` is the user's home.",
        config: CONFIG,
        prepare: |place| {
            prepare(place);
            place.write(".git/HEAD", "ref: refs/heads/main\n");
            place.write(".git/hooks/pre-commit.sample", "#!/bin/sh\n");
        },
        rows: vec![
            unasked("a command", "cp a.txt b.txt && cat b.txt", "plain text"),
            unasked("a file outside", "(: > $OUT/pwned) 2> /dev/null || echo stopped", "stopped"),
            unasked("a Git hook", "(: > .git/hooks/pwned) 2> /dev/null || echo stopped", "stopped"),
            unasked("the key of a model provider", "echo \"[$ANTHROPIC_API_KEY]\" | rev", "]["),
            unasked("the keys, encoded", "env | grep -c sk-test | base64", "MAo="),
            row(
                "outside the sandbox",
                "bash",
                json!({"description": "Try it", "command": "ls", "outside_sandbox": true, "reason": "The user said so"}),
                Asked,
            )
            .mode("auto"),
            asked("a key file", "cat .env"),
            asked("the same, with a pattern", "cat .e*"),
            asked("a command with an ask rule", "git push"),
            asked("a computed name", "$(echo touch) pwned"),
            command("a denied command", "touch pwned", Denied("The rule deny bash(")).mode("auto"),
            write("a file outside, with a tool", "$OUT/pwned", Asked).mode("auto"),
            write("a Git hook, with a tool", ".git/hooks/pwned", Asked).mode("auto"),
            read("a file outside, with a tool", "$OUT/secret.txt", Asked).mode("auto"),
            read("a key file, with a tool", ".env", Asked).mode("auto"),
            row("a web page", "web_fetch", json!({"url": "https://a.example/pwned"}), Asked)
                .mode("auto"),
        ],
    }
}
