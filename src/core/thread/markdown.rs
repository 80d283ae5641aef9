//! A thread as a Markdown document, for exports.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::describe::{EntryLine, EntryPart, describe};
use super::lines::call_title;
use super::text::{attached, outcome_text, outcomes_of, prompt_text, role_and_text};
use super::visible::fenced;
use super::{CallId, Change, ChangeGroup, Content, Entries, Seq, Thread, ToolOutcome};

/// Renders a complete thread as a Markdown document.
pub fn markdown(thread: &Thread) -> String {
    let mut text = format!("# {}\n\n", thread.title().unwrap_or("Conversation"));
    let _ = writeln!(text, "- Session: `{}`", thread.session());
    let _ = writeln!(text, "- Directory: `{}`", thread.cwd().display());
    text.push_str(&markdown_of(thread.entries()));
    text
}

/// Renders entries of a log as the body of such a document.
pub fn markdown_of<'a>(entries: impl Into<Entries<'a>>) -> String {
    let entries = entries.into();
    let outcomes = outcomes_of(entries.clone());
    let mut text = String::new();
    for entry in entries {
        let change = &entry.change;
        // A taken prompt has another entry, and an outcome is shown below its call.
        let is_omitted = match change {
            Change::Queued { .. } | Change::ToolFinished { .. } => true,
            Change::Hooked { .. } | Change::Planned { .. } => true,
            change => change.group() == ChangeGroup::Setting,
        };
        if is_omitted {
            continue;
        }
        let EntryLine { heading, line, parts } = describe(change);
        let line = line.map(|line| format!("\n*{line}*\n")).unwrap_or_default();
        match (&heading, change) {
            (_, Change::Commanded { .. }) => text.push_str("\n## You\n"),
            (Some(heading), _) => {
                let _ = write!(text, "\n## {}\n", capital(heading));
            }
            (None, Change::Compacted { .. } | Change::Mutated { .. }) => {
                let _ = write!(text, "\n---\n{line}");
            }
            (None, _) => text.push_str(&line),
        }
        for part in parts {
            markdown_part(part, &outcomes, &mut text);
        }
        if heading.is_some() {
            text.push_str(&line);
        }
    }
    text
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn markdown_part(part: EntryPart<'_>, outcomes: &HashMap<&CallId, (Seq, &ToolOutcome)>, text: &mut String) {
    let paragraph = match part {
        EntryPart::Reply(message) => {
            return message.content.iter().for_each(|content| markdown_content(content, outcomes, text));
        }
        EntryPart::Prompt(message, origin) => prompt_text(message, origin),
        EntryPart::Typed(typed) => format!("`{typed}`"),
        EntryPart::Summary(message) => quoted(&message.text()),
        EntryPart::Spoken(role, message) => quoted(&role_and_text(role, message)),
        _ => return,
    };
    let _ = write!(text, "\n{paragraph}\n");
}

fn markdown_content(content: &Content, outcomes: &HashMap<&CallId, (Seq, &ToolOutcome)>, text: &mut String) {
    match content {
        Content::Text { text: inner } => {
            let _ = write!(text, "\n{}\n", inner.trim_end());
        }
        Content::Call(call) => {
            let outcome = outcomes.get(&call.id);
            let words = outcome.map_or("no result yet", |(_, outcome)| outcome.status.id());
            let _ = write!(text, "\n- **{}** → {words}\n", call_title(call).replace('*', "\\*"));
            if let Some((_, outcome)) = outcome {
                let _ = write!(text, "\n{}\n", fenced("", outcome_text(outcome).trim_end_matches('\n')));
            }
        }
        Content::Thinking { .. } => {}
        Content::Search(search) => {
            let _ = write!(text, "\n{}\n", search.text());
        }
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
