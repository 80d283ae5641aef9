//! Locations in which programs store keys, read with a rule that allows everything below the home.

use serde_json::json;

use super::range::{Expect, Group, Place, Row, SECRET, read, row};

const SECRETS: [&str; 24] = [
    ".aws/credentials",
    ".aws/config",
    ".bash_history",
    ".claude.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".config/Bitwarden CLI/data.json",
    ".config/Code/User/globalStorage/state.vscdb",
    ".config/age/keys.txt",
    ".config/gh/hosts.yml",
    ".config/hcloud/cli.toml",
    ".config/new-tool/access_tokens.json",
    ".config/op/config",
    ".config/rclone/rclone.conf",
    ".config/solana/id.json",
    ".docker/config.json",
    ".fly/config.yml",
    ".gnupg/private-keys-v1.d/key",
    ".kube/config",
    ".local/share/atuin/history.txt",
    ".local/share/fish/fish_history",
    ".mozilla/firefox/x.default/logins.json",
    ".cache/huggingface/token",
    ".ssh/config",
];

fn prepare(place: &Place) {
    for file in SECRETS {
        place.write_outside(file, SECRET);
    }
    place.write_outside("notes.txt", "notes\n");
    place.write_outside(".config/Slack/Local State", SECRET);
    place.write_outside(".config/Slack/storage/workspace", SECRET);
    place.link("notes", place.outside.join(".config/gh"));
}

fn at(name: &'static str, file: &str) -> Row {
    read(name, &format!("~/{file}"), Expect::Asked)
}

pub fn group() -> Group {
    use Expect::{Asked, Shows};
    let mut rows = vec![read("a file that the rule covers", "~/notes.txt", Shows("notes"))];
    rows.extend(SECRETS.iter().map(|file| at("a program's keys", file)));
    rows.extend(SECRETS.iter().map(|file| at("the same in read-only mode", file).mode("read_only")));
    rows.extend([
        at("the profile of an Electron program", ".config/Slack/storage/workspace"),
        read("below a link with a harmless name", "notes/hosts.yml", Asked),
        row("searching a secret place", "grep_tool", json!({"pattern": "frog", "path": "~/.aws"}), Asked),
        row("listing a secret place", "glob_tool", json!({"pattern": "*", "path": "~/.ssh"}), Asked),
        row(
            "searching above secret places",
            "grep_tool",
            json!({"pattern": "frog", "path": "~/.config"}),
            Shows("hold secrets were not searched"),
        ),
        row(
            "listing above secret places",
            "glob_tool",
            json!({"pattern": "**/hosts.yml", "path": "~/.config"}),
            Shows("No file in"),
        ),
    ]);
    Group {
        title: "Secret places",
        about: "The home has keys, tokens and histories of many programs. A rule allows reading all of it \
                (`allow = [\"Read(~/**)\"]`), but doesn't cover secret places that it doesn't name.",
        config: "[permissions]\nallow = [\"Read(~/**)\", \"file_read(~/**)\", \"grep_tool(~/**)\", \"glob_tool(~/**)\"]\n",
        prepare,
        rows,
    }
}
