//! Skills: listed in the frame, returned as text, and announced if they are added later.

use std::sync::Arc;

use epitome::session::{AskId, PermissionRequest, SessionCommand, SessionEvent, UserDecision};
use epitome::thread::Change;
use epitome_scripted_model::{ModelStep, SeenPart};
use epitome_test_harness::session::{Setup, TestSession};
use epitome_test_harness::{in_turn, text, write_file};
use serde_json::json;

const PDF: (&str, &str) = (
    ".claude/skills/pdf/SKILL.md",
    "---\nname: pdf\ndescription: Fills PDF forms.\n---\nRun !`rm -rf .` never. Read forms.md first.\n",
);

fn frame(test: &TestSession) -> Vec<(String, String)> {
    let log = test.log();
    let tools = log.iter().find_map(|entry| match &entry.change {
        Change::Framed { tools, .. } => Some(tools.clone()),
        _ => None,
    });
    tools.expect("a frame").into_iter().map(|tool| (tool.name, tool.description)).collect()
}

fn asked(test: &mut TestSession) -> (AskId, Arc<PermissionRequest>) {
    test.client.until(|out| match out {
        SessionEvent::Ask { ask, permission } => Some((*ask, permission.clone())),
        _ => None,
    })
}

/// The texts of all tool results, in order.
fn outcomes(test: &TestSession) -> Vec<String> {
    let log = test.log();
    let texts = log.iter().filter_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    texts.collect()
}

fn last_words(test: &TestSession) -> String {
    let users = test.last_request().seen().into_iter().filter_map(|seen| match seen {
        SeenPart::User(text) => Some(text),
        _ => None,
    });
    users.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_skill_is_listed_and_returned_as_text_without_running_anything() {
    let use_it = ModelStep::Call { name: "skill".into(), input: json!({"name": "pdf"}) };
    let hidden = "---\nname: own\ndescription: For people.\ndisable-model-invocation: true\n---\nText.\n";
    let files = [PDF, (".claude/skills/own/SKILL.md", hidden)];
    let mut test = Setup::with_files(&files).start(in_turn(vec![vec![use_it], vec![text("Done.")]]));
    test.ask("Fill the form.");
    let (_, about) = frame(&test).into_iter().find(|(name, _)| name == "skill").expect("the tool is there");
    assert!(about.contains("- pdf: Fills PDF forms.") && !about.contains("own"), "{about}");
    let log = test.log();
    let given = log.iter().find_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    let given = given.expect("an outcome");
    assert!(given.contains("Run [not run: this recipe came with the repository"), "{given}");
    assert!(
        given.contains("] never. Read forms.md first.") && given.contains(".claude/skills/pdf`"),
        "{given}"
    );
    assert!(!last_words(&test).contains("More skills are available"));
}

/// Regression: the placeholders of a skill were sent verbatim. The commands in a skill follow the same rule as those in
/// a slash command, and the files of its folder are read without permission.
#[test]
fn a_skill_of_the_user_is_rendered_like_a_command() {
    let body = "---\ndescription: Greets.\n---\nIn ${CLAUDE_SKILL_DIR}: !`echo hello` $1\n";
    let use_it = ModelStep::Call { name: "skill".into(), input: json!({"name": "greet"}) };
    let files = [("home/skills/greet/SKILL.md", body)];
    let mut test =
        Setup::with_files(&files).built_in_tools().start(in_turn(vec![vec![use_it], vec![text("Done.")]]));
    let ticket = test.prompt("Greet.");
    let (ask, permission) = asked(&mut test);
    let shown = format!("{:?}", permission.preview);
    assert!(shown.contains("echo hello"), "{shown}");
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowOnce });
    test.reason(ticket);
    let given = outcomes(&test).pop().expect("an outcome");
    assert!(given.contains("home/skills/greet: hello $1") && !given.contains('!'), "{given}");
}

/// After the user had allowed a repository's skill, the model changed the script that it runs, and had it run: consent was
/// checked only when the skills were offered.
#[test]
fn a_script_that_changes_after_consent_does_not_run() {
    let body = "---\ndescription: Context.\n---\nNow: !`sh ${CLAUDE_SKILL_DIR}/now.sh`\n";
    let use_it = || vec![ModelStep::Call { name: "skill".into(), input: json!({"name": "ctx"}) }];
    let files = [
        (".claude/skills/ctx/SKILL.md", body),
        (".claude/skills/ctx/now.sh", "echo first"),
        ("home/config.toml", "[permissions]\nallow = [\"bash(sh *)\"]\n"),
    ];
    let replies = vec![vec![text("Read.")], use_it(), vec![text("Done.")], use_it(), vec![text("Done.")]];
    let mut test = Setup::with_files(&files).built_in_tools().start(in_turn(replies));
    let ticket = test.prompt("/ctx");
    let (ask, permission) = asked(&mut test);
    assert_eq!(permission.tool, "trust");
    test.send(SessionCommand::Decide { ask, decision: UserDecision::AllowAlways });
    test.reason(ticket);
    test.ask("Look again.");
    write_file(&test.cwd().join(".claude/skills/ctx/now.sh"), "echo second");
    test.ask("And again.");
    let given = outcomes(&test);
    assert!(given[0].contains("Now: first"), "{given:?}");
    assert!(given[1].contains("Now: [not run") && !given[1].contains("second"), "{given:?}");
    // The same holds for the user's own call: there is a new question.
    let ticket = test.prompt("/ctx");
    let (ask, permission) = asked(&mut test);
    assert_eq!(permission.tool, "trust");
    test.send(SessionCommand::Decide { ask, decision: UserDecision::Reject });
    test.reason(ticket);
}

#[test]
fn a_skill_added_later_is_announced_once() {
    let mut test = TestSession::new(Vec::new());
    test.ask("Hello");
    assert!(frame(&test).iter().all(|(name, _)| name != "skill"), "there is none");
    write_file(&test.cwd().join(PDF.0), PDF.1);
    test.reload(test.environment());
    test.ask("And now?");
    test.ask("And then?");
    let words = last_words(&test);
    assert_eq!(words.matches("- pdf: Fills PDF forms. (").count(), 1, "{words}");
    assert!(words.contains("read the file for their instructions"), "{words}");
}

/// Regression: at most 20 messages about later skills were sent in a conversation, and each compaction required another
/// one. After the 20th, the model no longer knew of the skill.
#[test]
fn a_skill_added_later_is_announced_after_every_compaction() {
    let mut test = Setup::with_config("[compaction]\nmodel = \"none\"\n")
        .start(|_| vec![ModelStep::Flood { count: 2_000, text: "many words ".into() }]);
    test.ask("Hello");
    write_file(&test.cwd().join(PDF.0), PDF.1);
    test.reload(test.environment());
    for _ in 0..21 {
        test.ask("And now?");
        test.ask("/compact");
    }
    test.ask("And then?");
    let words = last_words(&test);
    assert_eq!(words.matches("- pdf: Fills PDF forms. (").count(), 1, "{words}");
}

fn outcome(test: &TestSession) -> String {
    let log = test.log();
    let given = log.iter().rev().find_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    given.expect("an outcome")
}

/// `context: fork`: what the skill makes the model read and do stays out of the conversation, which gets the report.
#[test]
fn a_skill_may_run_in_an_agent_of_its_own() {
    let body = "---\ndescription: Audits.\ncontext: fork\n---\nLook for secrets in $ARGUMENTS.\n";
    let use_it =
        ModelStep::Call { name: "skill".into(), input: json!({"name": "audit", "arguments": "src"}) };
    let replies = vec![vec![use_it], vec![text("There are none.")], vec![text("All is well.")]];
    let files = [("home/skills/audit/SKILL.md", body)];
    let mut test = Setup::with_files(&files).built_in_tools().start(in_turn(replies));
    test.ask("Audit it.");
    let requests = test.model.requests();
    let has_text = |at: usize| requests[at].body["messages"].to_string().contains("Look for secrets in src.");
    assert_eq!([has_text(0), has_text(1), has_text(2)], [false, true, false]);
    assert!(outcome(&test).contains("There are none."), "{}", outcome(&test));
}

/// `paths`: the model gets to know of the skill with the first file that it is for, not before.
#[test]
fn a_skill_for_some_files_is_announced_with_the_first_of_them() {
    let body = "---\ndescription: Rules for Rust.\npaths: \"*.rs\"\n---\nNo unsafe.\n";
    let read = |file: &str| ModelStep::Call { name: "file_read".into(), input: json!({"file_path": file}) };
    let replies = vec![vec![read("notes.txt")], vec![read("lib.rs")], vec![text("Done.")]];
    let files = [(".claude/skills/rust/SKILL.md", body), ("lib.rs", "fn f() {}\n"), ("notes.txt", "x\n")];
    let mut test = Setup::with_files(&files).built_in_tools().start(in_turn(replies));
    test.ask("Look around.");
    test.ask("And now?");
    let requests = test.model.requests();
    let knows: Vec<bool> =
        requests.iter().map(|request| request.body.to_string().contains("Rules for Rust.")).collect();
    assert_eq!(knows[..2], [false, false], "a text file is none of them");
    assert!(knows.last() == Some(&true), "{knows:?}");
}
