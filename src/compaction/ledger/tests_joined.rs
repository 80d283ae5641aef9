//! What is told together, what is told of what somebody shows, and what gives way: examples of sentences that no list
//! of words was made for.

use super::tests::Line::{Agent, Person, Run};
use super::tests::{below, thread, told, told_of};

#[test]
fn a_rule_is_told_with_the_sentences_that_belong_to_it() {
    for (words, pieces) in [
        ("`mint_rows` is append-only. Two banks replay it.", ["append-only", "replay it"]),
        ("One sort order in `mint_rows`? Forget it. Customers sort by hand.", ["sort order", "sort by hand"]),
        (
            "Small files in `mint_rows`. You ask why? The scanner stops at one megabyte.",
            ["Small", "scanner stops"],
        ),
        ("House rules of `mint_rows`:\n- no globals\n- sums in cents\n", ["no globals", "sums in cents"]),
        (
            "Ok.\n\n**Names**\n\n* `mint_rows` has short ones\n* verbs come first\n",
            ["short ones", "verbs come"],
        ),
        ("`mint_rows` is public from now on\n(our lawyer says so)", ["public", "lawyer"]),
        ("Generated code! Edit the template, not `mint_rows`. I had a go at it.", ["Generated", "template"]),
        ("Calls to `mint_rows` cost money. At most 7 a day, please.", ["cost money", "7 a day"]),
        (
            "A cache in `mint_rows`? Been there. It served old rights, so never again.",
            ["cache in", "never again"],
        ),
        (
            "`mint_rows` is made by a script. If it has to change, never edit the output.",
            ["by a script", "output"],
        ),
        (
            "Is it clear that `mint_rows` must not print? A parent reads that stream.",
            ["must not", "parent reads"],
        ),
        (
            "- decision: one table for `mint_rows`\n- against: two\n- why: a join takes a second\n",
            ["one table", "a join"],
        ),
    ] {
        let told = told(&[Person(words)]);
        let line = told.lines().find(|line| line.contains("mint_rows")).unwrap_or_default();
        assert!(pieces.iter().all(|piece| line.contains(piece)), "{words}: {told}");
    }
}

#[test]
fn what_is_told_together_is_not_told_apart_too() {
    let told = told(&[Person("`mint_rows` has one owner. Never give it a second one.")]);
    assert_eq!(told.matches("second one").count(), 1, "{told}");
}

#[test]
fn a_choice_is_told_with_the_reason_below_it() {
    for words in [
        "Our pick: one table for `mint_rows`\nReason: a join takes a second\n",
        "## Rejected\n\nA second table for `mint_rows` was ruled out\n\n## Why\n\na join takes a second\n",
    ] {
        let told = told(&[Agent(words)]);
        let line = told.lines().find(|line| line.contains("mint_rows")).unwrap_or_default();
        assert!(line.contains("a join takes a second"), "{words}: {told}");
    }
}

/// Tables of an agent were taken for data.
#[test]
fn a_row_of_a_small_table_is_told_with_what_stands_over_it() {
    let words = "What I ruled out:\n\n| Idea | Problem |\n|---|---|\n| caching `mint_rows` | it shows old rights for 30 s |\n";
    let told = told(&[Agent(words)]);
    let line = "What I ruled out: caching `mint_rows`: it shows old rights for 30 s";
    assert!(below(&told, "Tried or ruled out").contains(line), "{told}");
}

#[test]
fn a_name_that_stands_alone_is_told_with_what_announced_it() {
    for (words, line) in [
        ("Our ticket? OPS-1200.", "Our ticket? OPS-1200."),
        ("There is one loader and it is here:\nsrc/mint/load.rs\n", "it is here: src/mint/load.rs"),
        ("Which ticket? OPS-1300, by the mail of yesterday.", "Which ticket? OPS-1300"),
        ("It is known by ticket=OPS-1400 in the tracker", "ticket=OPS-1400"),
        ("What you need is mint_reader_ro. That's the database role.", "That's the database role"),
        ("let me look... it was... MINT-77", "it was... MINT-77"),
    ] {
        let told = told(&[Person(words)]);
        assert!(told.contains(line), "{words}: {told}");
    }
}

#[test]
fn what_somebody_shows_as_failing_is_an_error_whatever_its_words() {
    let line = "** (OddOne) mint_rows.fold/2 is private to Acme.Run() in a.ex: 3";
    for words in [
        format!("it dies with\n{line}\nany idea?"),
        format!("Since today the build is broken:\n\n    {line}\n"),
        format!("QA can't explain what happens here:\n```\n{line}\n```\n"),
    ] {
        let told = told(&[Person(&words)]);
        assert!(below(&told, "Open errors").contains(line), "{words}: {told}");
    }
    // An example is no error.
    let told = told(&[Agent("Run it like this:\n\n    mint_rows --fold --all\n")]);
    assert!(!told.contains("Open errors"), "{told}");
}

#[test]
fn a_failed_run_ended_with_what_it_said_and_not_with_how_far_it_got() {
    let text =
        "Compiling mint v0.1.2\nGET /mint/rows 200 1 bytes\n./mint.sh: line 4: fold: command not found\n";
    let told = told(&[Run("make mint", text, 1)]);
    assert!(below(&told, "Open errors").contains("command not found"), "{told}");
    assert!(!told.contains("- Compiling") && !told.contains("GET /mint"), "{told}");
}

#[test]
fn a_newer_value_takes_the_place_of_the_old_one_in_any_words() {
    for newer in [
        "where it says 8080 for the port of `mint_gate`, read 9191",
        "We've outgrown 8080, so 9191 for the port of `mint_gate` it is.",
        "You still have 8080 in the port of `mint_gate`. Make it 9191.",
        "The port of `mint_gate` needed another value. 9191 is free.",
        "From 8080 to 9191: the port of `mint_gate`",
        "The port of `mint_gate`, 8080 out, 9191 in.",
    ] {
        let told = told(&[Person("The port of `mint_gate` is 8080 for now."), Person(newer)]);
        assert!(told.contains("9191"), "{newer}: {told}");
        assert!(!told.contains("for now"), "{newer}: {told}");
    }
    for newer in [
        "`mint_rows` → 640",
        "sry, 640 not 320 (`mint_rows`)",
        "Let's make `mint_rows` 640.",
        "Please take 640 as `mint_rows`.",
        "could you adapt `mint_rows`? 640 is what we need",
        "`mint_rows` must change. Set it to 640.",
        "Forget what I said about `mint_rows`. We go with 640.",
        "640. That's the new setting of `mint_rows`, and the only one that counts.",
        "You were right, 640 fits better. `mint_rows` is updated.",
        "it's 640 now, `mint_rows`, don't ask",
        "Next: `mint_rows`. Take out 320, put in 640.",
        "Il faut passer `mint_rows` de 320 à 640.",
        "| Setting | Was | Is |\n|---|---|---|\n| `mint_rows` | 320 | 640 |\n",
        "**`mint_rows`**: ~~320~~ 640",
    ] {
        let told = told(&[Person("Let's begin with 320 for `mint_rows`."), Person(newer)]);
        assert!(told.contains("640") && !told.contains("begin with 320 for"), "{newer}: {told}");
    }
}

/// Two ids of one kind were taken for a value and the one before it.
#[test]
fn an_id_that_is_named_later_leaves_the_first_one_known() {
    let told = told(&[Agent("deployment id: dpl_20af347749b8"), Agent("deployment id: dpl_99aa347749b8")]);
    assert!(told.contains("dpl_20af347749b8 [later dpl_99aa347749b8]"), "{told}");
}

#[test]
fn what_was_asked_for_the_moment_gives_way_to_what_holds() {
    let wish = "`mint_rows` answers in 20 ms, that is what we sold.";
    let errands = [
        "Why does `plum_rows` call `kiwi_rows` twice? It looks odd to me.",
        "Please add an endpoint to `plum_rows` that gives all of an account, with tests and an example.",
        "Don't worry about `plum_rows`, that one is on the desk of somebody else.",
        "There's a test of `plum_rows` that fails once in a while.",
    ];
    let mut lines: Vec<_> = errands.iter().map(|errand| Person(errand)).collect();
    for at in 0..=errands.len() {
        lines.insert(at, Person(wish));
        let told = told_of(&thread(&lines), 90).text;
        assert!(told.contains(wish), "{told}");
        assert!(!errands.iter().all(|errand| told.contains(errand)), "there is room for all: {told}");
        lines.remove(at);
    }
    // What lasts is no errand, whatever it begins with.
    let rule = "Add no more tables to `mint_rows`, the plan has a limit.";
    lines.push(Person(rule));
    let told = told_of(&thread(&lines), 90).text;
    assert!(told.contains(rule), "{told}");
}

#[test]
fn the_agents_own_work_for_later_is_still_to_do() {
    let told = told(&[Agent("I'll port `mint_rows` to the new logger once the runner is free.")]);
    assert!(below(&told, "Still to do").contains("port `mint_rows`"), "{told}");
}
