//! Special files, huge files, and endless output.

use std::os::unix::fs::FileExt;

use serde_json::json;

use epitome::tools::sandbox::support;

use super::range::{Expect, Group, Place, command, read, row, write};

/// Bytes of a file that is too large for memory; it is sparse, so it takes no disk space.
const HUGE: u64 = 8 << 30;

fn prepare(place: &Place) {
    place.write("a.txt", "plain text\n");
    let fifo = place.workspace.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
    assert!(made.success());
    drop(std::os::unix::net::UnixListener::bind(place.workspace.join("socket")).expect("bound"));
    place.link("zero", "/dev/zero");
    place.link("random", "/dev/random");
    place.link("terminal", "/dev/tty");
    place.write("binary", [0, 159, 146, 150, 0, 1, 2]);
    let huge = std::fs::File::create(place.workspace.join("huge.txt")).expect("made");
    huge.write_at(b"the first line\nthe second\n", 0).expect("written");
    huge.set_len(HUGE).expect("sparse");
    place.write("line.txt", "x".repeat(4 << 20));
    place.write("lines.txt", "a line like all others\n".repeat(300_000));
    place.write("lies.png", "this is no picture\n");
    place.write("key.txt", key());
}

/// A fake key; concatenated here so that no scanner reports it as a leak.
fn key() -> String {
    format!("token = ghp_{}\n", "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fG3hJ6")
}

pub fn group() -> Group {
    use Expect::{Asked, AskedThen, Refused, Shows};
    Group {
        title: "Files and outputs",
        about: "Only ordinary files may be opened, endless input must not block or flood a session, and keys must be masked.",
        config: "",
        prepare,
        rows: vec![
            read("a named pipe without a writer", "pipe", Refused("is a named pipe")),
            row("searching a named pipe", "grep_tool", json!({"pattern": "x", "path": "pipe"}), Refused("a named pipe")),
            row("searching a directory with a named pipe", "grep_tool", json!({"pattern": "plain", "include": "[ap]*"}), Shows("plain text")),
            write("a named pipe", "pipe", Refused("a named pipe")).mode("accept_edits"),
            read("a socket", "socket", Refused("is a socket")),
            read("endless zeros, through a link", "zero", AskedThen("is a device")).allowed(),
            read("endless random bytes, through a link", "random", AskedThen("is a device")).allowed(),
            read("the terminal, through a link", "terminal", AskedThen("is a device")).allowed(),
            write("a device, through a link", "zero", Refused("is a device")),
            read("a directory", ".", Refused("is a directory")),
            write("a directory", ".", Refused("is a directory")).mode("accept_edits"),
            read("a binary file", "binary", Refused("is a binary file")),
            read("text with an image's name", "lies.png", Shows("this is no picture")),
            read("a file of 8 GiB", "huge.txt", Refused("is a binary file")),
            row("editing a file of 8 GiB", "file_edit", json!({"file_path": "huge.txt", "old_text": "the first", "new_text": "x"}), Refused("too large to be edited")).mode("accept_edits"),
            row("searching a file of 8 GiB", "grep_tool", json!({"pattern": "nowhere", "path": "huge.txt"}), Shows("No line")),
            read("a line of 4 MiB", "line.txt", Shows("bytes of this line left out")),
            read("300,000 lines", "lines.txt", Shows("remain: offset=")),
            row("a search with 300,000 matches", "grep_tool", json!({"pattern": "like all", "path": "lines.txt"}), Shows("there are more")),
            command("an output of 8 MB", "head -c 8000000 /dev/zero | tr '\\0' 'x'", Shows("xxxx")).mode("full"),
            command("bytes that are not text", "head -c 2000 /dev/urandom; echo end", Shows("end")).mode("full"),
            command("an endless line", "yes | tr -d '\\n' | head -c 3000000; echo end", Shows("end")).mode("full"),
            command("a question at the user's terminal", "read -r x < /dev/tty; echo \"got $x\"", Shows("got")).mode("full"),
            read("a key in a file", "key.txt", Shows("[secret masked: looks like a GitHub token]")),
            command("a key in an output", "cat key.txt", Shows("[secret masked: looks like a GitHub token]")).mode("full"),
            command("the user's own key", "echo \"[$ANTHROPIC_API_KEY] $(env | grep -c sk-test)\"", Shows("[] 0")).mode("auto").where_there_is(|| support().gap().is_none()),
            command("the same key from elsewhere", "echo sk-te''st-1", Shows("[secret masked: the value of ANTHROPIC_API_KEY]")).mode("full"),
            row(
                "writing a mask over the key",
                "file_write",
                json!({"file_path": "key.txt", "text": "token = [secret masked: looks like a GitHub token]\n"}),
                Refused("would replace the key"),
            )
            .mode("full"),
            read("a missing file", "pwned", Refused("There is no file")),
            command("a command that the user rejects", "echo x > pwned", Asked),
        ],
    }
}
