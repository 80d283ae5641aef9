//! Paths that resolve to a different place than they seem to.

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
    let rule = "does not let this run, in any mode";
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
            read(".. behind a link", "linked/../secret.txt", Refused("There is no file")),
            read("through the root of a process", "/proc/self/root$OUT/secret.txt", Asked),
            read("through the directory of a process", "/proc/self/cwd/Cargo.toml", Asked),
            read("the environment of a process", "/proc/self/environ", Asked),
            read("the memory of a process", "/proc/self/mem", Asked),
            read("standard input", "/dev/stdin", Asked),
            read("the descriptors of a process", "/dev/fd/0", Asked),
            read("keys by name", ".env", Asked),
            read("keys in another case", ".ENV", Asked),
            read("keys behind ./ and ..", "./sub/../././.env", Asked),
            read("keys with a slash behind", ".env/", Asked),
            read("keys with a dot behind", ".env/.", Asked),
            read("keys of a directory", "sub/.env.local", Asked),
            read("keys through a link with a harmless name", "env-link.txt", Asked),
            read("a very long path", &"a/".repeat(3_000), Refused("Cannot read")),
            read("very many ..", &format!("{}a.txt", "x/../".repeat(1_000)), Shows("plain text")),
            read("a link to itself", "loop", Refused("symbolic link")),
            read("dots of another script", "\u{ff0e}\u{ff0e}/secret.txt", Refused("There is no file")),
            read("a byte of zero", "a.txt\u{0}/../secret", Refused("")),
            read(
                "a hard link to a file outside (who can make one runs commands here)",
                "hard.txt",
                Shows("words from outside"),
            )
            .limit(),
            read(
                "a link that is exchanged while the person is asked",
                "swapped",
                AskedThen("changed while the user was asked"),
            )
            .allowed()
            .meanwhile(|place| {
                std::fs::remove_file(place.workspace.join("swapped")).expect("removed");
                place.link("swapped", place.outside.join("secret.txt"));
            }),
            read("what a rule denies, in full mode", "private/key.txt", Denied(rule)).mode("full"),
            read("the same by a link", "open/key.txt", Denied(rule)).mode("full"),
            read("the same in another case", "PRIVATE/key.txt", Denied(rule)).mode("full"),
            read("the same from outside", "$IN/../work/private/key.txt", Denied(rule)).mode("full"),
            command("the same by a command", "cat private/key.txt", Denied(rule)).mode("full"),
            command("the same in quotes", "cat pri\"va\"te/key.txt", Denied(rule)).mode("full"),
            command("the same by a pattern of the shell", "cat priv*/key.txt", Asked).mode("full"),
            command("the same by a variable", "D=private; cat $D/key.txt", Denied(rule)).mode("full"),
            command("keys by an allowed command", "cat .env", Asked),
            command("keys by a pattern", "cat .e*", Asked),
            command(
                "keys by a link, with another name (a command is judged by its words)",
                "cat env-link.txt",
                Shows(SECRET),
            )
            .limit(),
            row(
                "an edit of what may not be read",
                "file_edit",
                json!({"file_path": "private/key.txt", "old_text": "a", "new_text": "b"}),
                Denied(rule),
            )
            .mode("full"),
            search(
                "a search over keys",
                json!({"pattern": "frog", "path": "."}),
                Shows("hold secrets were not searched"),
            ),
            search(
                "a search for keys alone",
                json!({"pattern": "frog", "include": ".env*"}),
                Shows("hold secrets were not searched"),
            ),
            search("a search in keys", json!({"pattern": "frog", "path": ".env"}), Asked),
            search(
                "a search above what a rule denies",
                json!({"pattern": "frog|careful", "path": "$IN"}),
                Shows("because a permission rule is about them"),
            ),
            search(
                "a search in what a rule denies",
                json!({"pattern": "frog", "path": "private"}),
                Denied(rule),
            ),
            search("a search outside", json!({"pattern": "frog", "path": "$OUT"}), Asked),
            row("a list with .. in its pattern", "glob_tool", json!({"pattern": "../../*"}), Refused("")),
            row("a list outside", "glob_tool", json!({"pattern": "*", "path": "$OUT"}), Asked),
            write("a file outside, in full mode", "$OUT/pwned", Asked).mode("full"),
            write("through a link that leads nowhere", "dangling", Asked).mode("accept_edits"),
            write("below a link to the outside", "linked/pwned", Asked).mode("accept_edits"),
            write("a hook of Git", ".git/hooks/pre-commit", Asked).mode("accept_edits"),
            write("the same in another case", ".GIT/hooks/pre-commit", Asked).mode("accept_edits"),
            write("our own settings of the repository", ".epitome/config.toml", Asked).mode("accept_edits"),
            write("tasks of an editor", ".vscode/tasks.json", Asked).mode("accept_edits"),
            write("a file that a shell runs", "sub/.envrc", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".gitmodules", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".gitattributes", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".githooks/pre-push", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".ripgreprc", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".opencode/plugin/x.js", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", "opencode.json", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".gdbinit", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".pre-commit-config.yaml", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", "mise.toml", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".yarnrc.yml", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", "epitome.code-workspace", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".venv/bin/python", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", "node_modules/.bin/tsc", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".mvn/extensions.xml", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", "AGENTS.md", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", "sub/CLAUDE.md", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", "hooks/pre-commit", Asked).mode("accept_edits"),
            write("what a tool runs or obeys later", ".new-tool/settings.toml", Asked).mode("accept_edits"),
            write("what no tool runs", ".github/ISSUE_TEMPLATE/bug.md", Shows("Created"))
                .mode("accept_edits"),
            write("what a rule asks about, in full mode", "careful-new.txt", Asked).mode("full"),
            write("a file in read-only mode", "pwned", Denied("read-only mode")).mode("read_only"),
        ],
    }
}
