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

/// With the value that stood beside it in one line, a rule was gone as soon as the value changed.
#[test]
fn a_rule_outlives_the_value_that_it_was_said_with() {
    let told = told(&[
        Person("let's take 30 for the batch size of `pump_rows` and nothing in `kiwi_store` opens a socket"),
        Person("The batch size of `pump_rows` is now 45."),
    ]);
    assert!(told.contains("nothing in `kiwi_store` opens a socket"), "{told}");
    assert!(told.contains("take 30 [now 45] for"), "{told}");
}

#[test]
fn two_lines_that_happen_to_be_as_long_are_two_things() {
    let told = told(&[Person(
        "`kiwi_store` is written by the template, change that instead\n\
         the timeout in `plum_gate` is 3400 ms for the time being, ok",
    )]);
    assert!(below(&told, "What the person wants").contains("change that instead ("), "{told}");
}

#[test]
fn what_the_person_says_of_a_thing_is_what_they_want_whatever_the_words() {
    for words in [
        "`kiwi_store` runs on a board with half a gigabyte, more there is not.",
        "Anything in `kiwi_store` goes past Lena first",
    ] {
        let told = told(&[Person(words)]);
        assert!(below(&told, "What the person wants").contains("`kiwi_store`"), "{words}: {told}");
    }
}

/// "Scratch that, 8081 for the port" ended the newest rule, or one that had a word in common.
#[test]
fn a_corrected_value_ends_no_rule() {
    let told = told(&[
        Person("Never write to `kiwi_port` from a test."),
        Person("The port of `plum_gate` is 8080."),
        Person("scratch that, 8081 for the port of `plum_gate`"),
        Person("You may write to the port of `plum_gate` from a test."),
    ]);
    assert!(told.contains("Never write to `kiwi_port`"), "{told}");
}

/// Of three values the first was told with the second as the present one.
#[test]
fn each_older_value_is_told_with_the_newest() {
    let told = told(&[
        Person("take 5 for the batch size of `pump_rows`, and `kiwi_store` stays in Python"),
        Person("8 is better for the batch size of `pump_rows`, and `plum_gate` stays in Go"),
        Agent("I moved the batch size of `pump_rows` from 8 to 13."),
    ]);
    assert!(told.contains("take 5 [now 13] for") && told.contains("8 [now 13] is better"), "{told}");
}

#[test]
fn a_number_that_is_named_later_stands_beside_the_value() {
    let told = told(&[
        Person("We begin with 496 as the batch size of `pump_rows`."),
        Agent("We measured again; `pump_rows` runs best 512 at a time."),
    ]);
    assert!(told.contains("496 [later 512]"), "{told}");
}

#[test]
fn what_stands_behind_the_end_of_a_fence_is_said() {
    let told = told(&[Person("It prints this:\n```\nok\n``` Nothing in `kiwi_store` opens a socket.")]);
    assert!(told.contains("Nothing in `kiwi_store` opens a socket"), "{told}");
}

#[test]
fn a_long_line_is_told_to_its_end() {
    let long = "we looked at that for a while and everybody had something to say about it ".repeat(4);
    let told =
        told(&[Person(&format!("always remember that {long}and nothing in `kiwi_store` opens a socket"))]);
    assert!(told.contains("nothing in `kiwi_store` opens a socket"), "{told}");
}

#[test]
fn a_task_ends_when_what_it_names_is_done() {
    let lines = [
        Person("Don't forget to port `kiwi_store` to the new logger."),
        Agent("Done: the new logger is in `plum_gate`, the port was easy."),
    ];
    assert!(below(&told(&lines), "Still to do").contains("kiwi_store"));
}

#[test]
fn what_the_person_said_comes_before_what_an_agent_said() {
    let agent: Vec<String> =
        ["apple", "berry", "cherry", "grape", "lemon", "mango", "olive", "peach", "prune", "quince"]
            .iter()
            .map(|name| {
                format!("I decided to keep `{name}_part` because {name} trees never grow in one day.")
            })
            .collect();
    let mut lines: Vec<_> = agent.iter().map(|words| Agent(words)).collect();
    lines.insert(5, Person("`kiwi_store` speaks the old format until the last scanner is gone"));
    let told = told_of(&thread(&lines), 90).text;
    assert!(told.contains("kiwi_store"), "{told}");
}
