//! What the ledger makes of sentences without a cue, of those that come again and again, and of their neighbours.

use serde_json::json;

use super::tests::Line::{Agent, Person, Run, Tool};
use super::tests::{below, thread, told, told_of};

#[test]
fn what_names_something_is_told_without_a_cue() {
    for (words, piece) in [
        ("Hashing with argon2 in `vault_gate` wins; bcrypt truncates long passwords.", "bcrypt truncates"),
        ("tracking ticket: OPS-5765", "tracking ticket: OPS-5765"),
        ("The importer lives in src/jobs/import.rs, start there.", "src/jobs/import.rs, start there"),
    ] {
        let told = told(&[Agent(words)]);
        assert!(told.contains(piece), "{words}: {told}");
    }
}

/// What an agent says at each step pushed out what it said once.
#[test]
fn what_is_said_again_and_again_of_this_and_that_comes_last() {
    let routine: Vec<String> =
        (0..12).map(|at| format!("The tests of `part_{at}` pass, so I go on with `next_{at}`.")).collect();
    let mut lines: Vec<_> = routine.iter().map(|words| Agent(words)).collect();
    lines.insert(3, Agent("Rows in `ledger_rows` are sorted by day, so a late one is put in front."));
    let told = told_of(&thread(&lines), 60).text;
    assert!(told.contains("sorted by day"), "{told}");
}

#[test]
fn a_sentence_that_names_nothing_explains_the_one_beside_it() {
    for words in [
        "Fine, one table per tenant in `tenant_store` then. Nightly exports locked everybody out.",
        "Nightly exports locked everybody out all the time. One table per tenant in `tenant_store` it is.",
    ] {
        let told = told(&[Person(words)]);
        let line = told.lines().find(|line| line.contains("tenant_store")).unwrap_or_default();
        assert!(line.contains("locked everybody out"), "{words}: {told}");
    }
}

#[test]
fn a_run_that_failed_ended_with_the_line_that_is_like_no_other() {
    let log = "2026-03-04T10:00:01Z ERROR a: retrying\n2026-03-04T10:00:02Z ERROR b: retrying\n";
    let told = told(&[Run("make check", &format!("{log}linker wants libfoo 3 but got libfoo 2\n"), 2)]);
    assert!(below(&told, "Open errors").contains("linker wants libfoo 3 but got libfoo 2"), "{told}");
}

#[test]
fn an_edit_that_gives_a_name_another_value_changes_it() {
    let told = told(&[
        Person("Let's take 30 for the batch size of `pump_rows`."),
        Tool(
            "file_edit",
            json!({"file_path": "src/pump.rs", "old_text": "pump_rows = 30", "new_text": "pump_rows = 45"}),
            "Edited.",
        ),
    ]);
    assert!(told.contains("pump_rows = 45") && !told.contains("take 30"), "{told}");
}

/// "port `x`" was read as the value of a port, and with the next port the task was gone.
#[test]
fn a_task_outlives_the_values_in_it() {
    let told = told(&[
        Person("Before the release we still need to port `mail_queue` to the new logger."),
        Person("The port is 8080."),
        Person("The port is now 8081."),
    ]);
    assert!(below(&told, "Still to do").contains("port `mail_queue`"), "{told}");
}
