//! Background commands: informs the model of states that its view does not show.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ReminderText, Topic, text_by};
use epitome_thread::{Change, Entry, ToolOutcome};
use epitome_tools::background::CommandStatus;
use serde_json::Value;

const BY: &str = "/background";

/// The beginning of a line about a command; its id follows.
const HEAD: &str = "Background command ";

/// How the text after the id begins if the command has ended.
const IS_OVER: [&str; 2] = [" has ended", " is gone"];

/// A line for each command whose current state the view does not show. `all_ours`: whether every command in the view
/// belongs to this session; a child has its parent's view, whose commands are not gone.
pub fn topic(view: &[Arc<Entry>], statuses: &[CommandStatus], all_ours: bool) -> Topic {
    Topic { by: BY, what: ReminderText::Missing(missing_lines(view, statuses, all_ours)) }
}

fn missing_lines(view: &[Arc<Entry>], statuses: &[CommandStatus], all_ours: bool) -> Vec<String> {
    let known = known(view);
    let mut lines = Vec::new();
    for CommandStatus { id, line, ended, is_end_reported } in statuses {
        match ended {
            None if !known.contains_key(id) => lines.push(format!(
                "{HEAD}{id} still runs: `{line}`. bash_output reads what it prints, bash_kill ends it."
            )),
            Some(words) if !is_end_reported => lines.push(format!(
                "{HEAD}{id} has ended ({words}): `{line}`. bash_output reads what it printed last."
            )),
            None | Some(_) => {}
        }
    }
    let is_here = |id: &String| statuses.iter().any(|status| status.id == *id);
    let gone = known.iter().filter(|(id, runs)| all_ours && **runs && !is_here(id));
    lines.extend(gone.map(|(id, _)| {
        format!("{HEAD}{id} is gone: it ended when the session was closed, or it belongs to another session.")
    }));
    lines
}

/// The state of a background command in the outcome of a tool call.
pub fn state_in(outcome: &ToolOutcome) -> Option<&Value> {
    outcome.raw.as_ref()?.get("background")
}

/// The commands in the view, and whether each is running according to the newest text.
fn known(view: &[Arc<Entry>]) -> BTreeMap<String, bool> {
    let mut known = BTreeMap::new();
    for entry in view {
        match &entry.change {
            Change::ToolFinished { outcome } => {
                let background = state_in(outcome);
                if let Some(id) = background.and_then(|background| background["id"].as_str()) {
                    let runs = background.is_some_and(|background| background["state"] == "running");
                    known.insert(id.to_owned(), runs);
                }
            }
            change => {
                for line in text_by(BY, change).unwrap_or_default().lines() {
                    let Some((id, rest)) = line.strip_prefix(HEAD).and_then(|line| line.split_once(' '))
                    else {
                        continue;
                    };
                    let is_over = IS_OVER.iter().any(|over| rest.starts_with(over.trim_start()));
                    known.insert(id.to_owned(), !is_over);
                }
            }
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::logs_tests::{context, entries};
    use super::*;
    use epitome_thread::{CallId, OutcomeStatus, ToolOutcome};

    fn outcome(id: &str, state: &str) -> Change {
        let mut outcome = ToolOutcome::text(CallId("c".into()), OutcomeStatus::Completed, "…");
        outcome.raw = Some(json!({"background": {"id": id, "state": state}}));
        Change::ToolFinished { outcome }
    }

    fn status(id: &str, ended: Option<&str>, is_end_reported: bool) -> CommandStatus {
        CommandStatus {
            id: id.into(),
            line: "make watch".into(),
            ended: ended.map(str::to_owned),
            is_end_reported,
        }
    }

    fn first_words(view: Vec<Change>, statuses: &[CommandStatus]) -> Vec<String> {
        let words = |line: &String| line.split(' ').skip(2).take(3).collect::<Vec<_>>().join(" ");
        missing_lines(&entries(view), statuses, true).iter().map(words).collect()
    }

    #[test]
    fn the_model_is_sent_states_missing_from_its_view() {
        let runs = || status("b1", None, false);
        let ended = |is_reported| status("b1", Some("exit code 0"), is_reported);
        for (view, statuses, expected) in [
            (vec![outcome("b1", "running")], vec![runs()], vec![]),
            // A compaction removed the start from the view.
            (vec![], vec![runs()], vec!["b1 still runs:"]),
            (vec![outcome("b1", "running")], vec![ended(false)], vec!["b1 has ended"]),
            (vec![outcome("b1", "running"), outcome("b1", "ended")], vec![ended(true)], vec![]),
            (vec![], vec![ended(true)], vec![]),
            // An earlier process ran it.
            (vec![outcome("b1", "running")], vec![], vec!["b1 is gone:"]),
            (vec![outcome("b1", "running"), outcome("b1", "ended")], vec![], vec![]),
        ] {
            assert_eq!(first_words(view, &statuses), expected);
        }
    }

    #[test]
    fn what_was_said_is_known_the_next_time() {
        for statuses in
            [vec![status("b1", None, false)], vec![status("b1", Some("exit code 1"), false)], vec![]]
        {
            let before = vec![outcome("b0", "running")];
            let lines = missing_lines(&entries(before.clone()), &statuses, true);
            assert!(!lines.is_empty());
            let after: Vec<Change> = before.into_iter().chain([context(BY, &lines.join("\n"))]).collect();
            let reported: Vec<CommandStatus> = statuses
                .into_iter()
                .map(|status| CommandStatus { is_end_reported: status.ended.is_some(), ..status })
                .collect();
            assert_eq!(missing_lines(&entries(after), &reported, true), Vec::<String>::new());
        }
    }

    #[test]
    fn a_child_is_not_informed_of_the_end_of_its_parents_commands() {
        assert!(missing_lines(&entries(vec![outcome("b1", "running")]), &[], false).is_empty());
    }
}
