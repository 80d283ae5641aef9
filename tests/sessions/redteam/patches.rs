//! Patches that lead out of the workspace, or change files that are executed later.

use serde_json::json;

use super::range::{Expect, Group, Place, Row, SECRET, read, row};

fn prepare(place: &Place) {
    for (path, text) in [
        ("a.txt", "plain text\n"),
        ("sub/b.txt", "more\n"),
        (".git/HEAD", "ref: refs/heads/main\n"),
        (".git/config", "[core]\n"),
        (".env", SECRET),
        ("private/key.txt", "one\n"),
        ("turned/x", "x\n"),
    ] {
        place.write(path, text);
    }
    // Searches read ignore files, and must not wait for a writer of this one.
    let made = std::process::Command::new("mkfifo").arg(place.workspace.join(".ignore")).status();
    assert!(made.expect("mkfifo runs").success());
    place.link("linked", &place.outside);
    place.link("dangling", place.outside.join("pwned"));
    place.link("other-name", "private/key.txt");
    place.link("link.txt", place.outside.join("secret.txt"));
}

/// A patch in the mode that allows edits within the workspace without permission.
fn patch(name: &'static str, lines: &str, expect: Expect) -> Row {
    let whole = format!("*** Begin Patch\n{lines}\n*** End Patch");
    row(name, "apply_patch", json!({ "input": whole }), expect).mode("accept_edits")
}

fn diff(name: &'static str, lines: &str, expect: Expect) -> Row {
    row(name, "apply_patch", json!({ "input": lines }), expect).mode("accept_edits")
}

fn turn(place: &Place) {
    let directory = place.workspace.join("turned");
    std::fs::remove_dir_all(&directory).expect("removed");
    std::os::unix::fs::symlink(&place.outside, directory).expect("linked");
}

pub fn group() -> Group {
    use Expect::{Asked, AskedThen, Denied, Refused, Shows};
    Group {
        title: "Patches",
        about: "Edits in the workspace run without a prompt (`accept_edits`), unless another mode is named. A rule \
                denies `private` (`deny = [\"Read(private/**)\", \"Edit(private/**)\"]`).",
        config: "[permissions]\ndeny = [\"Read(private/**)\", \"Edit(private/**)\"]\n",
        prepare,
        rows: vec![
            patch("an allowed file", "*** Add File: new.txt\n+x", Shows("new.txt")),
            read("reading a file, so that it can be changed", "a.txt", Shows("plain text")),
            read("reading a file of Git's", ".git/HEAD", Shows("ref:")),
            read("reading Git's settings", ".git/config", Shows("core")),
            row(
                "searching where a named pipe is called .ignore",
                "grep_tool",
                json!({"pattern": "plain", "include": "a.txt"}),
                Shows("plain text"),
            ),
            patch("an absolute path", "*** Add File: $OUT/pwned\n+x", Asked),
            patch("up with ..", "*** Add File: sub/../../../pwned\n+x", Asked),
            patch("the home", "*** Add File: ~/pwned\n+x", Asked),
            patch("below a link to the outside", "*** Add File: linked/pwned\n+x", Asked),
            patch("through a dangling link", "*** Add File: dangling\n+x", Asked),
            patch(
                "outside, after an allowed file",
                "*** Add File: one.txt\n+x\n*** Add File: linked/pwned\n+x",
                Asked,
            ),
            patch(
                "a file moved to the outside",
                "*** Update File: a.txt\n*** Move to: $OUT/pwned\n@@\n-plain text\n+x",
                Asked,
            ),
            patch(
                "a file moved in from the outside",
                "*** Update File: $OUT/secret.txt\n*** Move to: c.txt\n@@\n-x\n+y",
                Refused("was not read"),
            ),
            patch(
                "a file outside, deleted through a link",
                "*** Delete File: linked/secret.txt",
                Refused("was not read"),
            ),
            patch(
                "guessing the contents of a file outside",
                "*** Update File: link.txt\n@@\n-the-frog\n+x",
                Refused("was not read"),
            ),
            diff("the same as a diff", "--- /dev/null\n+++ b/../../pwned\n@@ -0,0 +1 @@\n+x\n", Asked),
            diff("an absolute path in a diff", "--- /dev/null\n+++ $OUT/pwned\n@@ -0,0 +1 @@\n+x\n", Asked),
            diff(
                "another name in a diff's header",
                "diff --git a/new.txt b/new.txt\nrename from a.txt\nrename to ../../pwned\n--- a/a.txt\n+++ b/../../pwned\n@@ -1 +1 @@\n-plain text\n+x\n",
                Asked,
            ),
            patch("a Git hook", "*** Add File: .git/hooks/pwned\n+x", Asked),
            patch("all of .git", "*** Delete File: .git", Refused("is a directory")),
            patch("the same in another case", "*** Delete File: .GIT/HEAD", Refused("There is no file")),
            patch("a part of .git", "*** Delete File: .git/HEAD", Asked),
            patch(
                "Git's settings, with a move",
                "*** Update File: a.txt\n*** Move to: .git/config\n@@\n-plain text\n+x",
                Refused("exists already"),
            ),
            patch("Epitome's settings", "*** Add File: .epitome/config.toml\n+mode = \"full\"", Asked),
            patch(
                "keys, moved to a readable name",
                "*** Update File: .env\n*** Move to: env.txt\n@@\n-x\n+y",
                Refused("was not read"),
            ),
            patch(
                "a denied file",
                "*** Update File: private/key.txt\n@@\n-one\n+two",
                Denied("forbids this in every mode"),
            )
            .mode("full"),
            patch(
                "the same, through a link",
                "*** Update File: other-name\n@@\n-one\n+two",
                Denied("forbids this in every mode"),
            )
            .mode("full"),
            patch(
                "the same, with a move",
                "*** Update File: private/key.txt\n*** Move to: k.txt\n@@\n-one\n+two",
                Denied("forbids this in every mode"),
            )
            .mode("full"),
            patch("a directory", "*** Delete File: sub", Refused("sub")),
            patch("a device", "*** Add File: /dev/null\n+x", Refused("is a device")),
            patch("a file that was not read", "*** Update File: sub/b.txt\n@@\n-more\n+x", Refused("read")),
            patch("read-only mode", "*** Add File: pwned\n+x", Denied("read-only mode")).mode("read_only"),
            patch("a NUL byte", "*** Add File: x\0/../../pwned\n+x", Refused("")),
            patch(
                "a directory that is replaced while the prompt is open",
                "*** Add File: turned/pwned\n+x",
                AskedThen("changed while the user decided"),
            )
            .mode("ask")
            .allowed()
            .meanwhile(turn),
        ],
    }
}
