//! A thread as a Markdown document, for exports.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::lines::{call_title, cut_words, one_line, status, withheld};
use super::text::{attached, outcome_text, outcomes_of, role_and_text, said, speaker};
use super::{CallId, Change, Content, Entry, Origin, Thread, ToolOutcome};

/// Renders a complete thread as a Markdown document.
pub fn markdown(thread: &Thread) -> String {
    let mut text = format!("# {}\n\n", thread.title().unwrap_or("Conversation"));
    let _ = writeln!(text, "- Session: `{}`", thread.session());
    let _ = writeln!(text, "- Directory: `{}`", thread.cwd().display());
    text.push_str(&markdown_of(thread.entries()));
    text
}

/// Renders entries of a log as the body of such a document.
pub fn markdown_of(entries: &[Arc<Entry>]) -> String {
    let outcomes = outcomes_of(entries);
    let mut text = String::new();
    for entry in entries {
        match &entry.change {
            Change::Said { message, origin } => {
                let _ = write!(text, "\n## {}\n\n{}\n", capital(&speaker(origin)), said(message, origin));
            }
            Change::Withheld { message, why, .. } => {
                let _ = write!(text, "\n## You\n\n{}\n", said(message, &Origin::Person));
                if let Some(line) = withheld(why) {
                    let _ = write!(text, "\n*{line}*\n");
                }
            }
            Change::Mutated { messages, .. } => {
                let line = one_line(&entry.change).unwrap_or_default();
                let _ = write!(text, "\n---\n\n*{line}*\n");
                for spoken in messages {
                    let _ = write!(text, "\n{}\n", quoted(&role_and_text(spoken)));
                }
            }
            Change::Commanded { typed, .. } => {
                let _ = write!(text, "\n## You\n\n`{typed}`\n");
            }
            Change::Replied { message, model, cut, .. } => {
                let _ = write!(text, "\n## Agent ({model})\n");
                for content in &message.content {
                    markdown_part(content, &outcomes, &mut text);
                }
                if let Some(cut) = cut {
                    let _ = write!(text, "\n*{}*\n", cut_words(cut));
                }
            }
            Change::Compacted { summary, .. } => {
                let line = one_line(&entry.change).unwrap_or_default();
                let _ = write!(text, "\n---\n\n*{line}*\n\n{}\n", quoted(&summary.text()));
            }
            Change::Undone { .. }
            | Change::Rewound { .. }
            | Change::FilesRewound { .. }
            | Change::Forked { .. }
            | Change::Redone { .. }
            | Change::Pruned { .. }
            | Change::Edited { .. }
            | Change::CallChanged { .. }
            | Change::GoalSet { .. }
            | Change::ThinkingDropped { .. }
            | Change::Noted { .. }
            | Change::TurnEnded { .. } => {
                if let Some(line) = one_line(&entry.change) {
                    let _ = write!(text, "\n*{line}*\n");
                }
            }
            Change::Opened { .. }
            | Change::Framed { .. }
            | Change::Queued { .. }
            | Change::ToolFinished { .. }
            | Change::ModelChosen { .. }
            | Change::ModeChosen { .. }
            | Change::ThoughtChosen { .. }
            | Change::Titled { .. }
            | Change::Planned { .. }
            | Change::Allowed { .. }
            | Change::Spent { .. }
            | Change::Forgotten { .. }
            | Change::Hooked { .. } => {}
        }
    }
    text
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn markdown_part(content: &Content, outcomes: &HashMap<&CallId, &ToolOutcome>, text: &mut String) {
    match content {
        Content::Text { text: said } => {
            let _ = write!(text, "\n{}\n", said.trim_end());
        }
        Content::Call(call) => {
            let outcome = outcomes.get(&call.id);
            let words = outcome.map_or("no result yet", |outcome| status(outcome.status));
            let _ = write!(text, "\n- **{}** → {words}\n", call_title(call).replace('*', "\\*"));
            if let Some(outcome) = outcome {
                let _ = write!(text, "\n{}\n", fenced(&outcome_text(outcome)));
            }
        }
        Content::Thinking { .. } => {}
        Content::Image { .. }
        | Content::Document { .. }
        | Content::Resource { .. }
        | Content::ResourceLink { .. } => {
            let _ = write!(text, "\n{}\n", attached(content));
        }
    }
}

fn quoted(text: &str) -> String {
    text.lines().map(|line| format!("> {line}").trim_end().to_owned()).collect::<Vec<String>>().join("\n")
}

/// A code block whose fence is longer than any in the text.
fn fenced(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end_matches('\n'))
}
