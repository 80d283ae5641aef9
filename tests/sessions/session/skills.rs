//! Skills: listed in the frame, returned as text, and announced if they are added later.

use epitome::thread::Change;
use epitome_scripted_model::{ModelStep, Seen};
use serde_json::json;

use super::desk::{Desk, put, text};

const PDF: (&str, &str) = (
    ".claude/skills/pdf/SKILL.md",
    "---\nname: pdf\ndescription: Fills PDF forms.\n---\nRun !`rm -rf .` never. Read forms.md first.\n",
);

fn frame(desk: &Desk) -> Vec<(String, String)> {
    let log = desk.log();
    let tools = log.iter().find_map(|entry| match &entry.change {
        Change::Framed { tools, .. } => Some(tools.clone()),
        _ => None,
    });
    tools.expect("a frame").into_iter().map(|tool| (tool.name, tool.description)).collect()
}

fn last_words(desk: &Desk) -> String {
    let users = desk.last_request().seen().into_iter().filter_map(|seen| match seen {
        Seen::User(text) => Some(text),
        _ => None,
    });
    users.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_skill_is_listed_and_returned_as_text_without_running_anything() {
    let use_it = ModelStep::Call { name: "skill".into(), input: json!({"name": "pdf"}) };
    let hidden = "---\nname: own\ndescription: For people.\ndisable-model-invocation: true\n---\nText.\n";
    let files = [PDF, (".claude/skills/own/SKILL.md", hidden)];
    let mut desk = Desk::with_tools(&[], &files, vec![vec![use_it], vec![text("Done.")]]);
    desk.ask("Fill the form.");
    let (_, about) = frame(&desk).into_iter().find(|(name, _)| name == "skill").expect("the tool is there");
    assert!(about.contains("- pdf: Fills PDF forms.") && !about.contains("own"), "{about}");
    let log = desk.log();
    let given = log.iter().find_map(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.model_text()),
        _ => None,
    });
    let given = given.expect("an outcome");
    assert!(given.contains("Run !`rm -rf .` never.") && given.contains(".claude/skills/pdf`"), "{given}");
    assert!(!last_words(&desk).contains("you were not told of"));
}

#[test]
fn a_skill_added_later_is_announced_once() {
    let mut desk = Desk::with_tools(&[], &[], Vec::new());
    desk.ask("Hello");
    assert!(frame(&desk).iter().all(|(name, _)| name != "skill"), "there is none");
    put(&desk.cwd().join(PDF.0), PDF.1);
    desk.reload(desk.environment());
    desk.ask("And now?");
    desk.ask("And then?");
    let words = last_words(&desk);
    assert_eq!(words.matches("- pdf: Fills PDF forms. (").count(), 1, "{words}");
    assert!(words.contains("read the file to have their instructions"), "{words}");
}
