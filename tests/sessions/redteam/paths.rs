//! Paths that resolve to other locations than they appear to.

use epitome_test_harness::does_without;
use serde_json::json;

use super::range::{Expect, Group, Place, SECRET, command, read, row, write};

const CONFIG: &str = "[permissions]\nallow = [\"file_read(**)\", \"bash(cat *)\"]\nask = [\"Edit(careful*)\"]\n\
                      deny = [\"Read(private/**)\"]\n";

fn prepare(place: &Place) {
    place.write("a.txt", "plain text\n");
    place.write(".env", SECRET);
    place.write("sub/.env.local", SECRET);
    place.write("private/key.txt", SECRET);
    place.write("careful.txt", "careful\n");
    place.link("link.txt", place.outside.join("secret.txt"));
    place.link("linked", &place.outside);
    place.link("first", "second");
    place.link("second", "link.txt");
    place.link("dangling", place.outside.join("pwned"));
    place.link("loop", "loop");
    place.link("env-link.txt", ".env");
    place.link("open", "private");
    place.link("swapped", place.outside.join("harmless.txt"));
    place.write_outside("harmless.txt", "harmless\n");
    place.write_outside("words.txt", "words from outside\n");
    place.write(".git/HEAD", "ref: refs/heads/main\n");
    std::fs::hard_link(place.outside.join("words.txt"), place.workspace.join("hard.txt")).expect("linked");
}

pub fn group() -> Group {
    use Expect::{Asked, AskedThen, Denied, Refused, Shows};
    let rule = "forbids this in every mode";
    let search = |name, input, expect| row(name, "grep_tool", input, expect);
    Group {
        title: "Paths",
        about: "The workspace has a `.env`, links to the outside, and a directory `private` that a rule denies \
                (`deny = [\"Read(private/**)\"]`); `allow` has `file_read(**)` and `bash(cat *)`. `$OUT` is outside of \
                the workspace.",
        config: CONFIG,
        prepare,
        rows: vec![
            read("up with ..", "../../../../../../../../etc/hostname", Asked),
            read("absolute", "$OUT/secret.txt", Asked),
            read("the home", "~/secret.txt", Asked),
            read("a link to a file outside", "link.txt", Asked),
            read("below a link to a directory outside", "linked/secret.txt", Asked),
            read("a link to a link to the outside", "first", Asked),
            read(".. after a link", "linked/../secret.txt", Refused("There is no file")),
            read("through a process's root", "/proc/self/root$OUT/secret.txt", Asked),
            read("through a process's directory", "/proc/self/cwd/Cargo.toml", Asked),
            read("a process's environment", "/proc/self/environ", Asked),
            read("a process's memory", "/proc/self/mem", Asked),
            read("standard input", "/dev/stdin", Asked),
            read("a process's descriptors", "/dev/fd/0", Asked),
            read("keys by name", ".env", Asked),
            read("keys in another case", ".ENV", Asked),
            read("keys with ./ and .. in the path", "./sub/../././.env", Asked),
            read("keys with a trailing slash", ".env/", Asked),
            read("keys with a trailing dot", ".env/.", Asked),
            read("keys of a directory", "sub/.env.local", Asked),
            read("keys through a link with a harmless name", "env-link.txt", Asked),
            read(
                "a very long path",
                &"a/".repeat(3_000),
                Refused(if does_without("the reason why a path can't be opened") {
                    ""
                } else {
                    "Cannot read"
                }),
            ),
            read("very many ..", &format!("{}a.txt", "x/../".repeat(1_000)), Shows("plain text")),
            read("a link to itself", "loop", Refused("symbolic link")),
            read("full-width dots", "\u{ff0e}\u{ff0e}/secret.txt", Refused("There is no file")),
            read("a NUL byte", "a.txt\u{0}/../secret", Refused("")),
            read(
                "a hard link to a file outside (to make one, you need to run commands here)",
                "hard.txt",
                Shows("words from outside"),
            )
            .limit(),
            read(
                "a link that is replaced while the prompt is open",
                "swapped",
                AskedThen("changed while the user decided"),
            )
            .allowed()
            .meanwhile(|place| {
                std::fs::remove_file(place.workspace.join("swapped")).expect("removed");
                place.link("swapped", place.outside.join("secret.txt"));
            }),
            read("a denied file, in full mode", "private/key.txt", Denied(rule)).mode("full"),
            read("the same, through a link", "open/key.txt", Denied(rule)).mode("full"),
            read("the same in another case", "PRIVATE/key.txt", Denied(rule)).mode("full"),
            read("the same, with a path from outside", "$IN/../work/private/key.txt", Denied(rule))
                .mode("full"),
            command("the same, with a command", "cat private/key.txt", Denied(rule)).mode("full"),
            command("the same, with quotes", "cat pri\"va\"te/key.txt", Denied(rule)).mode("full"),
            command("the same, with a shell pattern", "cat priv*/key.txt", Asked).mode("full"),
            command("the same, through a variable", "D=private; cat $D/key.txt", Denied(rule)).mode("full"),
            command("keys, with an allowed command", "cat .env", Asked),
            command("keys, with a pattern", "cat .e*", Asked),
            command(
                "keys, through a link with another name (only the words of a command are checked)",
                "cat env-link.txt",
                Shows(SECRET),
            )
            .limit(),
            row(
                "editing a file that must not be read",
                "file_edit",
                json!({"file_path": "private/key.txt", "old_text": "a", "new_text": "b"}),
                Denied(rule),
            )
            .mode("full"),
            search(
                "searching a directory with keys",
                json!({"pattern": "frog", "path": "."}),
                Shows("hold secrets were not searched"),
            ),
            search(
                "searching for the key's text",
                json!({"pattern": "frog", "include": ".env*"}),
                Shows("hold secrets were not searched"),
            ),
            search("searching in a key file", json!({"pattern": "frog", "path": ".env"}), Asked),
            search(
                "searching above a denied directory",
                json!({"pattern": "frog|careful", "path": "$IN"}),
                Shows("because of a permission rule"),
            ),
            search(
                "searching a denied directory",
                json!({"pattern": "frog", "path": "private"}),
                Denied(rule),
            ),
            search("searching outside", json!({"pattern": "frog", "path": "$OUT"}), Asked),
            row("listing with .. in the pattern", "glob_tool", json!({"pattern": "../../*"}), Refused("")),
            row("listing outside", "glob_tool", json!({"pattern": "*", "path": "$OUT"}), Asked),
            write("a file outside, in full mode", "$OUT/pwned", Asked).mode("full"),
            write("through a dangling link", "dangling", Asked).mode("accept_edits"),
            write("below a link to the outside", "linked/pwned", Asked).mode("accept_edits"),
            write("a Git hook", ".git/hooks/pre-commit", Asked).mode("accept_edits"),
            write("the same in another case", ".GIT/hooks/pre-commit", Asked).mode("accept_edits"),
            write("Epitome's settings in the repository", ".epitome/config.toml", Asked).mode("accept_edits"),
            write("an editor's tasks", ".vscode/tasks.json", Asked).mode("accept_edits"),
            write("a file that a shell runs", "sub/.envrc", Asked).mode("accept_edits"),
            write("a file that runs later", ".gitmodules", Asked).mode("accept_edits"),
            write("a file that runs later", ".gitattributes", Asked).mode("accept_edits"),
            write("a file that runs later", ".githooks/pre-push", Asked).mode("accept_edits"),
            write("a file that runs later", ".ripgreprc", Asked).mode("accept_edits"),
            write("a file that runs later", ".opencode/plugin/x.js", Asked).mode("accept_edits"),
            write("a file that runs later", "opencode.json", Asked).mode("accept_edits"),
            write("a file that runs later", ".gdbinit", Asked).mode("accept_edits"),
            write("a file that runs later", ".pre-commit-config.yaml", Asked).mode("accept_edits"),
            write("a file that runs later", "mise.toml", Asked).mode("accept_edits"),
            write("a file that runs later", ".yarnrc.yml", Asked).mode("accept_edits"),
            write("a file that runs later", "epitome.code-workspace", Asked).mode("accept_edits"),
            write("a file that runs later", ".venv/bin/python", Asked).mode("accept_edits"),
            write("a file that runs later", "node_modules/.bin/tsc", Asked).mode("accept_edits"),
            write("a file that runs later", ".mvn/extensions.xml", Asked).mode("accept_edits"),
            write("a file that runs later", "AGENTS.md", Asked).mode("accept_edits"),
            write("a file that runs later", "sub/CLAUDE.md", Asked).mode("accept_edits"),
            write("a file that runs later", "hooks/pre-commit", Asked).mode("accept_edits"),
            write("a file that runs later", ".new-tool/settings.toml", Asked).mode("accept_edits"),
            write("a file that no tool runs", ".github/ISSUE_TEMPLATE/bug.md", Shows("Created"))
                .mode("accept_edits"),
            write("a file with an ask rule, in full mode", "careful-new.txt", Asked).mode("full"),
            write("a file in read-only mode", "pwned", Denied("read-only mode")).mode("read_only"),
        ],
    }
}
