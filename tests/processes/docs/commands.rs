//! The table of commands in `docs/cli.md`, generated from the program's help.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use epitome_test_harness::user::program;

const BEGINS: &str = "<!-- commands -->\n";
const ENDS: &str = "<!-- /commands -->\n";

/// Compares the table of a page with the program, or writes it with `UPDATE=1`.
pub fn page(path: &Path) {
    let page = super::text(path);
    let (before, rest) = page.split_once(BEGINS).expect("the page has a table of commands");
    let (table, after) = rest.split_once(ENDS).expect("the table ends");
    let actual = tables();
    if std::env::var_os("UPDATE").is_some() {
        let page = format!("{before}{BEGINS}{actual}{ENDS}{after}");
        return std::fs::write(path, page).expect("the page is ours");
    }
    assert_eq!(table, actual, "UPDATE=1 writes the commands into {}", path.display());
}

fn help(words: &[&str]) -> String {
    let home = tempfile::tempdir().expect("a home");
    let mut command = Command::new(program());
    let ran =
        command.args(words).arg("--help").env("EPITOME_HOME", home.path()).env("COLUMNS", "100").output();
    String::from_utf8(ran.expect("the program runs").stdout).expect("help is text")
}

/// One table for each group of the program's help.
fn tables() -> String {
    let mut tables = "\n".to_owned();
    let root = help(&[]);
    let (_, groups) = root.split_once("\n\n").and_then(|(_, rest)| rest.split_once("\n\n")).expect("groups");
    for group in groups.split("\n\n").take_while(|group| !group.starts_with("Options:")) {
        let mut lines = group.lines();
        let title = lines.next().expect("a group has a title").trim_end_matches(':');
        let _ = writeln!(tables, "| {} | |\n| --- | --- |", title);
        for line in lines {
            let (name, about) = line.trim().split_once("  ").expect("a command and what it does");
            match title {
                "Programs of their own" => row(&mut tables, &format!("epitome {name}"), about.trim()),
                _ => rows(&mut tables, &[name]),
            }
        }
        tables.push('\n');
    }
    tables
}

/// The row of a command that works without a subcommand, and those of its subcommands.
fn rows(table: &mut String, words: &[&str]) {
    let help = help(words);
    let about = help.split("\n\n").next().unwrap_or_default().replace('\n', " ");
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).expect("it has a usage");
    if !usage.ends_with(" <COMMAND>") {
        let usage = usage.replace(" [OPTIONS]", "").replace(" [COMMAND]", "").replace(['<', '>'], "");
        row(table, &usage, &about);
    }
    let Some((_, commands)) = help.split_once("\nCommands:\n") else { return };
    for line in commands.lines().take_while(|line| !line.is_empty()) {
        // Descriptions go on in lines that are indented further.
        let name = line.strip_prefix("  ").and_then(|line| line.split(' ').next()).unwrap_or_default();
        if !["", "help"].contains(&name) {
            rows(table, &[words, &[name]].concat());
        }
    }
}

fn row(table: &mut String, command: &str, about: &str) {
    let command = command.replace('|', "\\|");
    let _ = writeln!(table, "| `{command}` | {about} |");
}
